"""The experiments on choosing and on offsets: their parts against what they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.experiments import auto_worlds, offsets


@pytest.fixture(scope="module")
def place() -> auto_worlds.Place:
    return auto_worlds.made(0.3, 0.0, 0)


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
