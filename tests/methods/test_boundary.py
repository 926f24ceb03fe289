"""The offset between two classes: a shift of all margins goes back, and what it was before stays."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.methods import Boundary, class_offset, with_offset


@given(seed=st.integers(0, 1000), shift=st.floats(-5, 5), scale=st.floats(0.1, 3))
def test_a_shift_of_all_margins_goes_back_to_the_middle_of_the_classes(seed: int, shift: float, scale: float) -> None:
    scores = torch.randn(30, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores[:2] = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    moved = scale * scores + torch.tensor([0.0, shift], dtype=torch.float64)
    margins = moved[:, 1] - moved[:, 0] - class_offset(scores, moved)
    second = scores[:, 1] > scores[:, 0]
    assert float(margins[second].mean()) == pytest.approx(-float(margins[~second].mean()), abs=1e-9)
    assert class_offset(scores, moved) - shift == pytest.approx(scale * class_offset(scores, scores), abs=1e-9)


@given(seed=st.integers(0, 1000), shift=st.floats(-5, 5))
def test_a_shift_of_all_margins_moves_the_boundary_and_its_offset_undoes_it(seed: int, shift: float) -> None:
    scores = torch.randn(30, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores[:2] = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    here = Boundary.of(("a", "b"), scores, scores)
    there = Boundary.of(("a", "b"), scores, with_offset(scores, -shift))
    assert (here.offset, here.second[0]) == (here.middle, here.second[1])
    assert (there.middle, there.images) == (here.middle, 30)
    assert there.offset == pytest.approx(here.offset + shift, abs=1e-9)
    assert there.second[0] == here.second[0] == float((scores[:, 1] > scores[:, 0]).double().mean())
    assert (there.second[1] >= here.second[1]) if shift > 0 else (there.second[1] <= here.second[1])
    moved = with_offset(with_offset(scores, -shift), there.offset)
    assert there.second[2] == float((moved[:, 1] > moved[:, 0]).double().mean())


def test_a_boundary_says_its_figures_or_that_it_has_none() -> None:
    before = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.1, 0.7], [0.2, 0.8]], dtype=torch.float64)
    said = str(Boundary.of(("dark", "blond"), before, with_offset(before, -1.0)))
    assert "by 4 images: taken for blond are 50% without the edit, 100% with it, 50% with the offset +1.0000" in said
    assert "a margin of +0.0000 without the edit, +1.0000 with it" in said
    alone = Boundary.of(("dark", "blond"), before[:2], before[:2])
    assert (alone.told, alone.offset) == (False, 0.0) == (False, class_offset(before[:2], before[:2] - 5))
    assert "takes all 2 images for dark, so they do not say where it lies" in str(alone)
    assert "for blond" in str(Boundary.of(("dark", "blond"), before[2:], before[2:]))
    with pytest.raises(InvalidInputError, match="expected at least one to say where the boundary lies, got none"):
        Boundary.of(("dark", "blond"), before[:0], before[:0])


@pytest.mark.parametrize("shape", [(4,), (4, 3), (3, 2)])
def test_two_classes_of_the_same_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"expected two of shape \(n, 2\), of two classes, got \(4, 2\) and"):
        class_offset(torch.zeros(4, 2), torch.zeros(shape))
