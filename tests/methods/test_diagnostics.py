"""Test diagnostics against their definitions, written as loops."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from tests.methods.made import unit
from vldebias.hosts import TextTable
from vldebias.methods.diagnostics import Diagnostics, spread_along
from vldebias.projection.projection import CalibratedProjection
from vldebias.prompts import PromptSet

PAIRS = unit(6, 2, 16, seed=0)
SPURIOUS = unit(2, 16, seed=1)
CLASSES = unit(4, 16, seed=2)
CALI = CalibratedProjection().fit(PAIRS)


def test_diagnostics_depend_on_the_text_in_the_prompt_set() -> None:
    rows = {}
    for k, (a, b) in enumerate(PAIRS):
        rows |= {f"a {k}": a, f"b {k}": b}
    rows |= {f"class {k}": row for k, row in enumerate(CLASSES)} | {
        f"s {k}": row for k, row in enumerate(SPURIOUS)
    }
    groups = tuple((f"a {k}", f"b {k}") for k in range(6))
    names = tuple(f"class {k}" for k in range(4))
    prompt_set = PromptSet(
        "x",
        groups[:4],
        held_out_variants=groups[4:],
        classes=names,
        class_names=names,
        spurious=("s 0", "s 1"),
    )
    diagnostics = Diagnostics.from_edit(TextTable(rows), "text", CALI, prompt_set)
    P = CALI.matrix()
    for distances, pairs in (
        (diagnostics.pair_distance, PAIRS[:4]),
        (diagnostics.held_out_distance, PAIRS[4:]),
    ):
        expected = [
            sum((Q @ (a - b)).norm() for a, b in pairs) / len(pairs)
            for Q in (torch.eye(16).double(), P)
        ]
        assert distances == pytest.approx([float(distance) for distance in expected])
    spread = []
    for classes in (CLASSES, CLASSES @ P.T):
        cosines = [[float(cosine_similarity(c, s, dim=0)) for s in SPURIOUS] for c in classes]
        spread.append(sum(max(row) - min(row) for row in cosines) / len(cosines))
    assert diagnostics.spurious_spread == pytest.approx(spread)
    couples = list(itertools.combinations(CLASSES, 2))
    kept = sum((P @ (a - b)).norm() for a, b in couples) / sum((a - b).norm() for a, b in couples)
    assert diagnostics.signal_kept == pytest.approx(float(kept))
    assert diagnostics.class_cosine == pytest.approx(
        float(sum(cosine_similarity(c, P @ c, dim=0) for c in CLASSES)) / 4
    )
    bare = Diagnostics.from_edit(TextTable(rows), "text", CALI, PromptSet("x", groups[:4]))
    assert bare == Diagnostics(diagnostics.pair_distance)


class TestSpreadAlong:
    TEXTS = unit(6, 24, seed=7)

    def images(self, n: int) -> Tensor:
        """Return rows that vary along the texts, and slightly in all directions."""
        return unit(n, 6, seed=8) @ self.TEXTS + 0.1 * unit(n, 24, seed=9)

    def turned(self, seed: int) -> Tensor:
        q, r = torch.linalg.qr(unit(24, 24, seed=seed))
        return q * r.diagonal().sign()  # a uniformly distributed random rotation

    def test_the_spread_has_the_documented_mean_and_deviation_over_rotations(self) -> None:
        """This justifies a threshold in units of standard deviations."""
        spreads = [
            spread_along(self.images(40) @ self.turned(seed), self.TEXTS) for seed in range(400)
        ]
        spread, deviations = torch.tensor(spreads, dtype=torch.float64).T
        assert float(spread.mean()) == pytest.approx(1, abs=0.05)
        assert float(deviations.mean()) == pytest.approx(0, abs=0.15)
        assert float(deviations.std()) == pytest.approx(1, abs=0.1)

    def test_directions_with_one_percent_of_the_variance_are_excluded(self) -> None:
        eye = torch.eye(24, dtype=torch.float64)
        many = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
        texts = torch.cat([3 * eye[:2], -3 * eye[:2], 0.1 * eye[2:3]])
        assert spread_along(many * eye[2], texts)[0] < 0.1
        # All variance is along one of the two used directions, 2 of 24, which is 12 times an even
        # share.
        assert spread_along(many * eye[1], texts)[0] == pytest.approx(12, rel=0.01)

    def test_identical_rows_have_no_spread(self) -> None:
        assert spread_along(self.images(1).repeat(5, 1), self.TEXTS) == (0.0, 0.0)
        assert spread_along(self.images(5), self.TEXTS[:1].repeat(3, 1)) == (0.0, 0.0)
