"""The committed benchmark of the losses: the numbers of the plain ones, in half of the time; in blocks in no memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.experiments.records import rows_of
from vldebias.evaluation.result import Result

ROWS = rows_of(Result.read(Path(__file__).parents[2] / "eval" / "results" / "bench_losses.json"))


def test_blocks_need_an_eighth_of_the_memory_at_16384() -> None:
    large = [row for row in ROWS if row["batch"] == 16384]
    assert {row["loss"] for row in large} >= {"info_nce", "rince"}
    assert all(row["memory, ours"] <= row["memory, plain"] / 8 for row in large)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['method']}, {row['size']}")
def test_the_step_that_was_measured_was_the_same(row: dict) -> None:
    if row["loss"] in ("info_nce", "sigmoid") or row["batch"] == 16384:
        for name in ("values", "gradient_norms"):
            assert row[f"{name}, ours"] == pytest.approx(row[f"{name}, plain"], rel=1e-3)


def test_both_directions_cost_little_more_than_half_of_clip_loss() -> None:
    ratios = {(row["loss"], row["batch"]): row["ratio"] for row in ROWS if row["batch"] < 16384 and not row["blocks"]}
    for batch in (1024, 4096):
        assert ratios["info_nce", batch] > 1.5
        assert ratios["hard_negative_contrastive", batch] > 1
        assert ratios["sigmoid", batch] > 0.8  # SigLipLoss has one matrix as well
