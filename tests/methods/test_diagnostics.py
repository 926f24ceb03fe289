"""Diagnostics against their definitions, one loop at a time."""

import itertools
import json

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from vldebias.errors import InvalidInputError
from vldebias.methods.diagnostics import (
    class_cosine,
    pair_distance,
    signal_kept,
    spread_along,
    spurious_cosine,
    text_diagnostics,
)
from vldebias.projection import CalibratedProjection


def embeddings(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


PAIRS, SPURIOUS, CLASSES = embeddings(6, 2, 16, seed=0), embeddings(2, 16, seed=1), embeddings(4, 16, seed=2)
PROJECTION = CalibratedProjection.fit(PAIRS, SPURIOUS)
P = PROJECTION.matrix()


def test_pair_distance_is_the_mean_over_pairs() -> None:
    before = sum((a - b).norm() for a, b in PAIRS) / len(PAIRS)
    after = sum((P @ a - P @ b).norm() for a, b in PAIRS) / len(PAIRS)
    assert pair_distance(PAIRS) == pytest.approx(float(before))
    assert pair_distance(PAIRS, PROJECTION) == pytest.approx(float(after))
    assert pair_distance(PAIRS, PROJECTION) < 0.1 * pair_distance(PAIRS)


def test_held_out_pairs_of_the_same_direction_come_closer() -> None:
    direction = embeddings(16, seed=3)
    train, test = embeddings(20, 16, seed=4), embeddings(5, 16, seed=5)
    pairs, held_out = (torch.stack([z + 0.3 * direction, z - 0.3 * direction], 1) for z in (train, test))
    found = text_diagnostics(CalibratedProjection.fit(pairs), pairs=pairs, held_out=held_out)
    assert found.held_out_distance[0] == pytest.approx(0.6)
    assert found.held_out_distance[1] < 0.01


def test_spurious_cosine() -> None:
    expected = [[float(cosine_similarity(c, s, dim=0)) for s in SPURIOUS] for c in CLASSES]
    torch.testing.assert_close(spurious_cosine(CLASSES, SPURIOUS), torch.tensor(expected, dtype=torch.float64))
    assert spurious_cosine(CLASSES, SPURIOUS, PROJECTION).abs().max() < 1e-9
    only_cali = CalibratedProjection.fit(PAIRS)
    expected = cosine_similarity(only_cali(CLASSES)[:, None], SPURIOUS[None], dim=-1)
    torch.testing.assert_close(spurious_cosine(CLASSES, SPURIOUS, only_cali), expected)


def test_signal_kept() -> None:
    pairs = list(itertools.combinations(CLASSES, 2))
    expected = sum((P @ (a - b)).norm() for a, b in pairs) / sum((a - b).norm() for a, b in pairs)
    assert signal_kept(CLASSES, PROJECTION) == pytest.approx(float(expected))
    gone = CalibratedProjection.fit(None, CLASSES)
    assert signal_kept(CLASSES, gone) == pytest.approx(0, abs=1e-9)
    assert signal_kept(CLASSES[:1], PROJECTION) is None
    assert signal_kept(CLASSES[[0, 0]], PROJECTION) is None


def test_diagnose_collects_what_it_was_given() -> None:
    found = text_diagnostics(PROJECTION, pairs=PAIRS, held_out=PAIRS[:2], classes=CLASSES, spurious=SPURIOUS)
    assert found.pair_distance == (pair_distance(PAIRS), pair_distance(PAIRS, PROJECTION))
    assert found.held_out_distance == (pair_distance(PAIRS[:2]), pair_distance(PAIRS[:2], PROJECTION))
    cosines = spurious_cosine(CLASSES, SPURIOUS)
    assert found.spurious_spread[0] == pytest.approx(float((cosines[:, 0] - cosines[:, 1]).abs().mean()))
    assert found.spurious_spread[1] < 1e-9
    assert found.signal_kept == signal_kept(CLASSES, PROJECTION)
    cosine = sum(cosine_similarity(c, P @ c, dim=0) for c in CLASSES) / len(CLASSES)
    assert found.class_cosine == class_cosine(CLASSES, PROJECTION) == pytest.approx(float(cosine))
    assert json.loads(json.dumps(found.to_dict()))["signal_kept"] == found.signal_kept


def test_what_was_not_given_is_none() -> None:
    found = text_diagnostics(PROJECTION, pairs=PAIRS)
    assert [found.held_out_distance, found.spurious_spread, found.signal_kept, found.class_cosine] == [None] * 4
    assert text_diagnostics(PROJECTION, pairs=PAIRS, classes=CLASSES).spurious_spread is None


@pytest.mark.parametrize("shape", [(0, 2, 16), (4, 16), (4, 3, 16)])
def test_pairs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match=r"pairs: expected shape \(n, 2, d\) with n > 0, got \(\d"):
        pair_distance(torch.zeros(shape))


class TestSpreadAlong:
    TEXTS = embeddings(6, 24, seed=7)

    def images(self, n: int, seed: int = 8) -> Tensor:
        """Rows that vary along the texts, and a little along everything."""
        return embeddings(n, 6, seed=seed) @ self.TEXTS + 0.1 * embeddings(n, 24, seed=seed + 1)

    def turned(self, seed: int) -> Tensor:
        q, r = torch.linalg.qr(embeddings(24, 24, seed=seed))
        return q * r.diagonal().sign()  # so that all rotations are alike likely

    def test_over_rotations_it_has_the_mean_and_the_deviation_that_are_told(self) -> None:
        """What makes a threshold in deviations mean something: share and deviations are those of random spaces."""
        told = [spread_along(self.images(40) @ self.turned(seed), self.TEXTS) for seed in range(400)]
        spread, deviations = torch.tensor(told, dtype=torch.float64).T
        assert float(spread.mean()) == pytest.approx(1, abs=0.05)
        assert float(deviations.mean()) == pytest.approx(0, abs=0.15)
        assert float(deviations.std()) == pytest.approx(1, abs=0.1)

    @pytest.mark.parametrize("n", [10, 100])
    def test_images_of_the_texts_own_space_are_far_above(self, n: int) -> None:
        spread, deviations = spread_along(self.images(n), self.TEXTS)
        assert spread > 3
        assert deviations > 4

    def test_length_and_place_do_not_count(self) -> None:
        base = spread_along(self.images(40), self.TEXTS)
        moved = spread_along(3 * self.images(40) + embeddings(24, seed=1), self.TEXTS + embeddings(24, seed=2))
        assert moved == pytest.approx(base)

    def test_what_does_not_differ_has_no_spread(self) -> None:
        assert spread_along(self.images(1).repeat(5, 1), self.TEXTS) == (0.0, 0.0)
        assert spread_along(self.images(5), self.TEXTS[:1].repeat(3, 1)) == (0.0, 0.0)
