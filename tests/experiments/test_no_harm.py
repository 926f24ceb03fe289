"""The experiments on choosing and on offsets: their parts against what they say, and what the results hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.experiments import auto_worlds, offsets
from eval.experiments.records import rows_of
from vldebias.evaluation.result import Result

RESULTS = Path(__file__).parents[2] / "eval" / "results"


@pytest.fixture(scope="module")
def place() -> auto_worlds.Place:
    return auto_worlds.made(0.3, 0.0, 0)


def read(name: str) -> dict[str, Any]:
    result = Result.read(RESULTS / name)
    settings = result.provenance[0].settings
    return {"summary": {row["method"]: row for row in rows_of(result)}, "rows": settings["settings"], **settings}


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return read("auto.json")


class TestReferences:
    def rows_of(self, place: auto_worlds.Place, kind: str) -> list[int]:
        """Which of the images that may be seen it holds, by place."""
        drawn = auto_worlds.REFERENCES[kind](place, np.random.default_rng(0))
        return [int((place.rows - row).abs().sum(1).argmin()) for row in drawn]

    @pytest.mark.parametrize(("kind", "first"), [("one value alone", 100), ("95 of 100 of one value", 95)])
    def test_shares_are_as_named(self, place: auto_worlds.Place, kind: str, first: int) -> None:
        rows = self.rows_of(place, kind)
        assert len(set(rows)) == len(rows) == 100
        assert int((place.value[rows] == 0).sum()) == first

    def test_another_attribute_goes_along_and_one_kind_is_alone(self, place: auto_worlds.Place) -> None:
        along = self.rows_of(place, "another attribute goes along")
        assert (place.value[along] == place.other[along]).all()
        assert len(set(place.value[along])) == 2
        assert not place.other[self.rows_of(place, "one kind of images alone")].any()

    def test_all_are_unit_rows_of_the_width(self, place: auto_worlds.Place) -> None:
        for kind, draw in auto_worlds.REFERENCES.items():
            drawn = draw(place, np.random.default_rng(1))
            assert drawn.shape[1] == place.rows.shape[1], kind
            assert np.allclose(drawn.norm(dim=1), 1), kind


@pytest.mark.parametrize("name", ["auto.json", "auto_again.json"])
def test_the_summary_counts_what_the_rows_say(name: str) -> None:
    told = read(name)
    rows, whole = told["rows"], told["summary"]["all"]
    assert whole["settings"] == len(rows) >= 200
    assert whole["worse"] == sum(row["change"][1] > 0 for row in rows if "error" not in row)
    assert whole["behind, largest"] == pytest.approx(max(row["auto"] - row["alone"] for row in rows), abs=1e-4)
    assert {row["reference"] for row in rows} == {"none", *auto_worlds.REFERENCES}


def test_both_ask_of_other_worlds(told: dict[str, Any]) -> None:
    worlds = [{row["world"] for row in one["rows"]} for one in (told, read("auto_again.json"))]
    assert len(worlds[0]) == len(worlds[1]) == 18
    assert not worlds[0] & worlds[1]


@pytest.mark.parametrize("name", ["auto.json", "auto_again.json"])
def test_auto_does_no_harm(name: str) -> None:
    """As docs/explanation/which-method.md claims: hardly ever worse, never silently, and most of the gain is had."""
    told = read(name)
    rows, whole = told["rows"], told["summary"]["all"]
    assert whole["errors"] == 0
    harmed = [row for row in rows if row["change"][1] > 0]
    assert len(harmed) <= len(rows) // 100
    assert all(row["warned"] for row in harmed)
    assert whole["behind, above 0.02"] <= len(rows) // 40  # aimed at: one in a hundred, as the page says
    assert told["summary"]["all images"]["missed"] <= 0.2
    assert told["summary"]["genuine"]["missed"] <= 0.33
    for kind, row in told["summary"].items():
        low, high = row["missed_interval"]
        assert low < row["missed"] < high, kind
        assert row["truth, missed"] <= min(row["missed"], row["incautious, missed"]), kind


def test_images_of_another_space_are_told_apart(told: dict[str, Any]) -> None:
    for kind in ("noise", "noise around the mean image", "another model"):
        row = told["summary"][kind]
        assert row["left_out"] >= 0.9 * row["settings"], kind
    assert told["summary"]["all images"]["left_out"] == told["summary"]["100 images"]["left_out"] == 0


def test_centred_intervals_cover(told: dict[str, Any]) -> None:
    """Where the gap is near the noise of the images too, since their noise is taken off; and nine in ten on average."""
    assert sum(row["centred"]["holds"] for row in told["coverage"]) >= 0.9 * len(told["coverage"])
    for row in told["coverage"]:
        assert row["centred"]["holds"] > 0.85, row
        assert row["centred"]["below 0"] >= row["percentile"]["below 0"] - 0.02, row


@given(seed=st.integers(0, 1000), shift=st.floats(-3, 3))
def test_an_offset_follows_a_shift_of_all_margins(seed: int, shift: float) -> None:
    """What moves the boundary as a whole is put back by each of them."""
    rng = np.random.default_rng(seed)
    before, after, value = rng.normal(size=40), rng.normal(size=40), rng.integers(0, 2, 40)
    before[:2] = -1, 1
    for name, of in offsets.OFFSETS.items():
        moved = of(offsets.Seen(before, after + shift, value))
        assert moved == pytest.approx(of(offsets.Seen(before, after, value)) + shift, abs=1e-9), name


def test_two_means_lie_between_two_clusters_of_any_size() -> None:
    rng = np.random.default_rng(0)
    margins = np.concatenate([rng.normal(-2, 0.1, 300), rng.normal(1, 0.1, 20)])
    assert offsets.two_means(margins) == pytest.approx(-0.5, abs=0.1)
    assert np.median(margins) < -1.5  # which the sizes pull away
