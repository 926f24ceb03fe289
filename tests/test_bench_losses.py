"""The committed benchmark of the losses: the same numbers in blocks, in a fraction of the memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROWS = json.loads((Path(__file__).parents[1] / "eval" / "results" / "bench_losses.json").read_text())["rows"]


def test_blocks_need_an_eighth_of_the_memory_at_16384() -> None:
    large = [row for row in ROWS if row["batch"] == 16384]
    assert {row["loss"] for row in large} >= {"info_nce", "rince"}
    for row in large:
        assert row["chunked"]["peak_bytes"] <= row["dense"]["peak_bytes"] / 8
        assert row["memory_ratio"] == pytest.approx(row["chunked"]["peak_bytes"] / row["dense"]["peak_bytes"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['loss']}-{row['batch']}")
def test_the_step_that_was_measured_was_the_same(row: dict) -> None:
    for name in ("value", "gradient_norm"):
        assert row["chunked"][name] == pytest.approx(row["dense"][name], rel=1e-5)
