"""The offset between two classes: a shift of all margins goes back, and what it was before stays."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.methods import class_offset


@given(seed=st.integers(0, 1000), shift=st.floats(-5, 5), scale=st.floats(0.1, 3))
def test_a_shift_of_all_margins_goes_back_to_the_middle_of_the_classes(seed: int, shift: float, scale: float) -> None:
    scores = torch.randn(30, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores[:2] = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    moved = scale * scores + torch.tensor([0.0, shift], dtype=torch.float64)
    margins = moved[:, 1] - moved[:, 0] - class_offset(scores, moved)
    second = scores[:, 1] > scores[:, 0]
    assert float(margins[second].mean()) == pytest.approx(-float(margins[~second].mean()), abs=1e-9)
    assert class_offset(scores, moved) - shift == pytest.approx(scale * class_offset(scores, scores), abs=1e-9)


def test_images_of_one_class_alone_say_nothing() -> None:
    scores = torch.tensor([[0.0, 1.0], [0.0, 2.0]])
    assert class_offset(scores, scores - 5) == 0.0


@pytest.mark.parametrize("shape", [(4,), (4, 3), (3, 2)])
def test_two_classes_of_the_same_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"expected two of shape \(n, 2\), of two classes, got \(4, 2\) and"):
        class_offset(torch.zeros(4, 2), torch.zeros(shape))
