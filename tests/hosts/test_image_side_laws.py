"""What stands between image and text: P, its transpose, or both, as `vldebias.hosts.side` says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.hosts.side import SIDES, roles_of
from vldebias.projection import CalibratedProjection

DIM = 12
SEEDS = st.integers(0, 10_000)
LAMS = st.floats(0.1, 1000)


def rows(n: int, seed: int) -> Tensor:
    return normalize(torch.randn(n, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)), dim=1)


def fitted(method: str, seed: int, lam: float) -> CalibratedProjection:
    pairs, spurious = rows(8, seed).reshape(4, 2, DIM), rows(3, seed + 1)
    if method == "orth":
        return CalibratedProjection.fit(None, spurious)
    return CalibratedProjection.fit(pairs, spurious if method == "orth-cali" else None, lam)


def between(projection: CalibratedProjection, side: str, x: Tensor, z: Tensor) -> Tensor:
    """Products (n, m) of images and texts, each projected where `side` says, before normalising."""
    x = projection(x) if "image" in SIDES[side] else x
    z = projection(z) if "joint" in SIDES[side] else z
    return x @ z.T


@settings(max_examples=15, deadline=None)
@given(SEEDS, LAMS, st.sampled_from(["orth", "cali", "orth-cali"]))
def test_the_operator_of_each_side(seed: int, lam: float, method: str) -> None:
    projection, x, z = fitted(method, seed, lam), rows(5, seed + 2), rows(4, seed + 3)
    p = projection.matrix()
    for side, operator in {"text": p, "image": p.T, "both": p.T @ p}.items():
        torch.testing.assert_close(between(projection, side, x, z), x @ operator @ z.T)


@settings(max_examples=15, deadline=None)
@given(SEEDS, LAMS, st.sampled_from(["orth", "orth-cali"]))
def test_no_image_answers_a_spurious_prompt_any_more(seed: int, lam: float, method: str) -> None:
    projection, x, spurious = fitted(method, seed, lam), rows(5, seed + 2), rows(3, seed + 1)
    assert between(projection, "image", x, spurious).abs().max() < 1e-10
    assert (x @ spurious.T).abs().max() > 1e-3


@settings(max_examples=15, deadline=None)
@given(SEEDS, LAMS)
def test_norms_decide_nothing_on_the_side_that_shares_them(seed: int, lam: float) -> None:
    """Rankings of images on the text side, and choices of a class on the image side, are those of the products."""
    projection, x, z = fitted("orth-cali", seed, lam), rows(20, seed + 2), rows(4, seed + 3)
    product = between(projection, "text", x, z)
    cosine = x @ normalize(projection(z), dim=1).T
    assert torch.equal(product.argsort(0), cosine.argsort(0))
    product = between(projection, "image", x, z)
    cosine = normalize(projection(x), dim=1) @ z.T
    assert torch.equal(product.argmax(1), cosine.argmax(1))


def test_names_of_sides() -> None:
    assert [roles_of(side) for side in ("text", "image", "both")] == [("joint",), ("image",), ("joint", "image")]
    with pytest.raises(InvalidInputError, match=r"side: expected one of text, image, both, got 'visual'"):
        roles_of("visual")
