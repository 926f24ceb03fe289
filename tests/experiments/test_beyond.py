"""The table of everything: every method as a row, splits that share no image, regrets; what was committed."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_gallery import gallery

from eval.experiments import beyond, beyond_more, embeddings
from eval.experiments.beyond import FIXED, LOSS, PORTRAITS, Split, fitted
from eval.experiments.embeddings import Gallery, Sides, World, chance
from vldebias.data import Embeddings, Labels
from vldebias.evaluation.result import Measurement, Result
from vldebias.metrics import max_skew

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")  # made data are small
COMMITTED = Path(__file__).parents[2] / "eval" / "results" / "beyond.json"
TEXT_ROWS = {"none", "orth", "orth-cali", "cali", "difference", "auto", "bounded"}
IMAGE_ROWS = TEXT_ROWS | {"equalise", "cali+equalise", "cali+equalise, image side", "cali+equalise, both sides"}


@pytest.fixture(scope="module")
def data() -> Gallery:
    return gallery()


@pytest.fixture(scope="module")
def sides(data: Gallery) -> dict[str, Sides]:
    return fitted(data.texts.host, data.prompts, images=data.rows, top=0.1)


class TestRows:
    def test_every_method_is_there(self, data: Gallery, sides: dict[str, Sides]) -> None:
        assert set(sides) == IMAGE_ROWS | {"target, uniform"}
        assert set(FIXED) <= set(sides)
        assert set(fitted(data.texts.host, data.prompts)) == TEXT_ROWS

    def test_none_changes_nothing(self, data: Gallery, sides: dict[str, Sides]) -> None:
        torch.testing.assert_close(sides["none"].of_texts(data.rows), data.rows)
        torch.testing.assert_close(sides["none"].of_images(data.rows), data.rows)
        assert sides["none"].cosines(data.rows) == pytest.approx(1.0)

    def test_sides_are_one_projection(self, data: Gallery, sides: dict[str, Sides]) -> None:
        text, image, both = (sides[f"cali+equalise{side}"] for side in ("", ", image side", ", both sides"))
        torch.testing.assert_close(image.of_texts(data.rows), data.rows)
        torch.testing.assert_close(image.of_images(data.rows), text.of_texts(data.rows))
        torch.testing.assert_close(both.of_texts(data.rows), text.of_texts(data.rows))
        torch.testing.assert_close(both.of_images(data.rows), image.of_images(data.rows))
        assert not torch.allclose(image.of_images(data.rows), data.rows)

    def test_bounded_keeps_its_bound_on_every_neutral_text(self, data: Gallery, sides: dict[str, Sides]) -> None:
        classes = data.texts.embed(data.prompts.classes)
        assert float(sides["bounded"].cosines(classes).min()) >= 1 - LOSS - 1e-6
        assert float(sides["cali+equalise"].cosines(classes).min()) < 1 - LOSS

    def test_every_row_but_none_says_what_it_is(self, sides: dict[str, Sides]) -> None:
        assert sides["none"].about() == {}
        assert sides["cali+equalise, both sides"].about().keys() == {"texts", "images"}
        assert sides["equalise"].about()["texts"]["method"] == "equalise"
        assert sides["cali"].about()["texts"]["lam"] == 1000
        assert sides["target, uniform"].about()["texts"]["method"] == "target-shares"

    def test_queries_as_classes_are_another_fit(self, data: Gallery, sides: dict[str, Sides]) -> None:
        split = Split(np.arange(len(data.images)), data.pools([0]), 20)
        within = beyond.methods_of(data, split)["cali+equalise, within queries"]
        queries = data.texts.embed(data.queries)
        assert not torch.allclose(within.of_texts(queries), sides["cali+equalise"].of_texts(queries), atol=1e-4)


class TestSplits:
    @settings(max_examples=10, deadline=None)
    @given(sizes=st.tuples(st.integers(30, 200), st.integers(30, 200)), k=st.integers(5, 50))
    def test_chance_is_that_of_random_rankings(self, sizes: tuple[int, int], k: int) -> None:
        share = np.random.default_rng(0).hypergeometric(*sizes, k, size=20_000) / k
        with np.errstate(divide="ignore"):
            expected = np.log(2 * np.maximum(share, 1 - share)).mean()
        assert chance(min(k, sum(sizes)), *sizes) == pytest.approx(expected, abs=0.015)

    def test_halves_share_no_image_and_pools_are_balanced(self, data: Gallery) -> None:
        splits = list(beyond.random_halves(data, 3))
        for split in splits:
            assert len(split.fitted) == 200
            assert all(np.bincount(data.gender[pool]).tolist() == [len(pool) // 2] * 2 for pool in split.pools)
            assert not set(split.fitted) & set(np.concatenate(split.pools))
        assert not np.array_equal(splits[0].fitted, splits[1].fitted)

    def test_skew_is_that_of_the_package(self, data: Gallery, sides: dict[str, Sides]) -> None:
        queries = data.texts.embed(data.queries)
        split = Split(np.arange(3), data.pools([0, 1]), 20)
        measured = split.skews(sides["cali"], data)
        for query, value in zip(sides["cali"].of_texts(queries), measured, strict=True):
            of_pools = [max_skew(data.rows[pool] @ query, data.gender[pool], 20, n_groups=2) for pool in split.pools]
            assert value == pytest.approx(np.mean(of_pools))


def test_precision_of_professions() -> None:
    pictures = torch.eye(2, dtype=torch.float64).repeat_interleave(20, 0)
    profession = {"profession": Labels.of(["cook"] * 20 + ["pilot"] * 20, names=("cook", "pilot"))}
    images = Embeddings(pictures.numpy(), tuple(map(str, range(40))), profession)
    world, asked = World("portraits", gallery(20).texts, images, images), torch.eye(2, dtype=torch.float64)
    assert beyond.precision_at(20, Sides(), asked, world, ("cook", "cook")).tolist() == [1.0, 0.0]
    assert beyond.precision_at(20, Sides(), asked, world, ("smart", "cook")) is None


@pytest.mark.parametrize("flipped", [0.0, 0.3])
def test_pseudo_labels_are_compared_with_the_labels(flipped: float) -> None:
    data = gallery(flipped=flipped)
    part = beyond_more.TaskResult(beyond_more._of_labels([("made", data.texts, data.prompts, data.images, "gender")]))
    features, truth = data.images.features, data.images.column("gender")
    beyond_more._pseudo_labels(part, "made", data.texts, data.prompts, features, truth)
    found = {(row.metric, row.method): row.value for row in part.rows if row.subset == "made"}
    assert found["label_error", "labels"] == pytest.approx(flipped, abs=0.06)
    assert found["difference_left", "expected"] == pytest.approx(1, abs=0.03)
    if not flipped:
        assert found["difference_left", "labels"] == pytest.approx(1, abs=0.03)
        assert found["direction", "labels"] > 0.99


class TestRegret:
    def row(self, method: str, value: float, low: float, high: float, better: str = "lower") -> Measurement:
        change = None if method == "none" else (value - 0.5, low, high)
        return Measurement(
            task=f"t {better}", metric="max_skew@9" if better == "lower" else "worst_group", method=method, value=value,
            interval=(value, value), change=change, better=better, n={},
        )  # fmt: skip

    def value(self, rows: list[Measurement], metric: str, subset: str = "") -> float:
        return next(r.value for r in beyond.regret(rows).rows if (r.metric, r.subset) == (metric, subset))

    def test_the_share_of_the_gain_that_is_forgone(self) -> None:
        rows = [
            self.row("none", 0.5, 0, 0),
            self.row("cali", 0.1, -0.5, -0.3),
            self.row("auto", 0.2, -0.4, -0.2),
            self.row("bounded", 0.0, -0.6, -0.4),  # not a fixed method
        ]
        assert self.value(rows, "regret") == self.value(rows, "regret", "t lower") == pytest.approx(0.25)
        assert self.value(rows, "worse_than_none") == 0

    def test_higher_is_better_elsewhere(self) -> None:
        rows = [
            self.row("none", 0.5, 0, 0, "higher"),
            self.row("cali", 0.9, 0.3, 0.5, "higher"),
            self.row("auto", 0.4, -0.2, -0.01, "higher"),
        ]
        assert self.value(rows, "regret") == pytest.approx(1.25)
        assert self.value(rows, "worse_than_none") == 1

    def test_where_nothing_helps_there_is_nothing_to_forgo(self) -> None:
        helps = [self.row("none", 0.5, 0, 0), self.row("cali", 0.1, -0.5, -0.3), self.row("auto", 0.1, -0.5, -0.3)]
        in_vain = [
            self.row("none", 0.5, 0, 0, "higher"),
            self.row("cali", 0.6, -0.1, 0.2, "higher"),
            self.row("auto", 0.4, -0.2, 0.1, "higher"),
        ]
        assert beyond.regret(helps + in_vain).provenance.n == {"settings": 2, "with something to gain": 1}
        assert self.value(helps + in_vain, "regret") == 0
        assert self.value(helps + in_vain, "worse_than_none") == 0


def test_missing_data_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLDEBIAS_REAL", str(tmp_path))
    assert [name for name, _ in beyond.jobs(images=0)] == ["birds", *PORTRAITS, "pseudo-labels"]
    told = capsys.readouterr().err
    for name in (embeddings.FILE, embeddings.TEXTS):
        assert f"SKIPPED: {tmp_path / name} is missing; set VLDEBIAS_REAL" in told


def test_nothing_to_measure_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["beyond.py", "--only", "nothing", "--images", "0"])
    with pytest.raises(SystemExit, match=r"no setting starts with \['nothing'\]"):
        beyond.main()


@pytest.fixture(scope="module")
def result() -> Result:
    return Result.read(COMMITTED)


@pytest.mark.slow
class TestCommitted:
    def test_every_setting_has_every_row(self, result: Result) -> None:
        shown: dict[str, set[str]] = {}
        for row in result.rows:
            shown.setdefault(row.task, set()).add(row.method)
        texts = [task for task in shown if task.startswith("texts L/14")]
        retrieval = [task for task in shown if task.startswith(("celeba", "portraits"))]
        assert len(texts) == 5
        assert len(retrieval) == 3 + len(PORTRAITS)
        assert all(shown[task] >= TEXT_ROWS for task in texts)
        assert all(shown[task] >= IMAGE_ROWS | {"target, uniform", "random"} for task in retrieval)
        assert shown["birds"] >= IMAGE_ROWS
        assert shown["generation gender"] >= {"none", "cali", "difference", "auto", "bounded", "target, uniform"}
        assert {p.task for p in result.provenance} == set(shown)

    @pytest.mark.parametrize("job", ["celeba", "celeba 1-500", "texts L/14"])
    def test_the_committed_figures_are_what_the_code_gives(self, result: Result, job: str) -> None:
        if not embeddings.file().is_file():
            pytest.skip(f"REAL CLIP EMBEDDINGS NOT CHECKED: {embeddings.file()} is missing; set VLDEBIAS_REAL")
        for part in dict(beyond.jobs(images=0))[job]():
            for row in part.rows:
                again = result.row(row.task, row.metric, row.method, subset=row.subset)
                assert again.value == pytest.approx(row.value, abs=1e-6), (row.metric, row.method)


def test_a_world_says_what_it_is() -> None:
    data = gallery(20)
    world = World("birds", data.texts, data.images, data.images)
    assert world.split == "birds, 20 renders, seed 9001; fitted on 20, seed 9011"
    assert world.reference.dtype == np.float32
