"""Rows that are read a block at a time are those of the whole at once."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from vldebias.data import Embeddings, UnitRows
from vldebias.errors import InvalidInputError
from vldebias.metrics.rankings import top_rankings

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(100, 8)).astype(np.float16)
WHOLE = normalize(torch.from_numpy(FEATURES.astype(np.float32)), dim=1)
MASK = RNG.random(100) < 0.4


def rows() -> UnitRows:
    return Embeddings.of(FEATURES).unit


@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_blocks_joined_are_the_whole(size: int) -> None:
    blocks = list(rows().split(size))
    assert {len(block) for block in blocks[:-1]} <= {size}
    torch.testing.assert_close(torch.cat(blocks), WHOLE)
    assert torch.equal(torch.cat(blocks), rows().whole())


@pytest.mark.parametrize("which", [MASK, np.flatnonzero(MASK)[::-1], torch.tensor([5, 5, 99]), slice(10, 20)])
def test_some_of_some_are_those_of_the_whole(which: object) -> None:
    own = which.numpy() if isinstance(which, torch.Tensor) else which
    expected = WHOLE.numpy()[own]
    np.testing.assert_allclose(rows()[which].numpy(), expected, rtol=1e-6)
    if not isinstance(which, slice):
        some = rows().some(own)
        assert some.shape == expected.shape
        np.testing.assert_allclose(torch.cat(list(some.split(3))).numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(some.some([1, 0]).whole().numpy(), expected[[1, 0]], rtol=1e-6)


def test_picked_rows_are_those_of_a_copy() -> None:
    data = Embeddings.of(FEATURES, {"kind": list("ab") * 50}, captions=[f"caption {i}" for i in range(100)])
    lazy, copied = data.picked(MASK), data[MASK]
    assert (lazy.ids, lazy.captions, lazy.dim, len(lazy)) == (copied.ids, copied.captions, 8, int(MASK.sum()))
    assert lazy.column("kind").counts == copied.column("kind").counts
    assert torch.equal(lazy.normalised(), copied.normalised())
    assert np.array_equal(lazy.picked([3, 1]).features[:], copied.features[[3, 1]])


def test_changes_come_one_after_the_other_in_every_block() -> None:
    changed = rows().changed(lambda x: x + 1).changed(lambda x: 2 * x)
    torch.testing.assert_close(torch.cat(list(changed.split(9))), 2 * (WHOLE + 1))


def test_products_and_rankings_are_those_of_the_whole() -> None:
    texts = torch.from_numpy(RNG.normal(size=(3, 8)))
    found = rows().some(MASK).products({"a": texts, "b": texts[:1]})
    torch.testing.assert_close(found["a"], WHOLE[torch.from_numpy(MASK)] @ texts.float().T)
    torch.testing.assert_close(found["b"], found["a"][:, :1])
    assert np.array_equal(top_rankings(texts, rows(), 20), top_rankings(texts, rows().whole(), 20))


def test_a_row_without_a_direction_is_named_when_it_is_read() -> None:
    broken = FEATURES.copy()
    broken[70], broken[90, 3] = 0, np.nan
    some = Embeddings.of(broken, ids=[f"image {i}" for i in range(100)]).unit.some(np.arange(60, 100))
    with pytest.raises(InvalidInputError, match=r"2 rows are zero or not finite, such as \['image 70', 'image 90'\]"):
        some.whole()
