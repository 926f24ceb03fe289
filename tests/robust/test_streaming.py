"""The experiment on streams, smaller: two processes share what one reads, and a kill loses and repeats nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.experiments.records import rows_of
from tests.robust import streaming
from vldebias.evaluation.result import Result


@pytest.mark.slow
def test_two_processes_share_the_stream_and_outlive_a_kill(tmp_path: Path) -> None:
    rows = 2400
    streaming.main(["--rows", str(rows), "--out", str(tmp_path), "--processes", "1", "2", "--pause", "0.02"])
    found = rows_of(Result.read(tmp_path / "streaming.json"))
    assert [(row["processes"], row["killed"]) for row in found] == [(1, False), (1, True), (2, False), (2, True)]
    assert all(row["captions"] == row["learned_from_once"] == rows for row in found)
    one, _, two, killed = found
    assert [one["rows_looked_at"], two["rows_looked_at"]] == [[rows], [rows // 2] * 2]
    assert all(bytes_read < 0.6 * one["bytes_read"][0] for bytes_read in two["bytes_read"])
    assert all(looked <= rows // 2 + 2 * streaming.BUFFER for looked in killed["rows_looked_at"])
