"""Test benchmarks at tiny sizes, without checking times, and the command that compares two versions
of the package."""

import json
import sys
from pathlib import Path

import numpy as np
import open_clip
import pandas as pd
import pytest

from eval.against import compare, rows_of
from eval.benchmarks import overheads, speed
from eval.tables import place_of, records
from vldebias.miniature import load_clip
from vldebias.report.result import Result


def test_figures_are_sorted_into_equal_changed_removed_and_added():
    old = {
        "a": np.ones((3, 3)),
        "b": [0.5, float("nan")],
        "c": [1.0],
        "d": "ValueError",
        "e": [1.0],
    }
    new = {"a": np.ones((3, 3)), "b": [0.5, float("nan")], "c": [1.1], "d": [2.0], "f": [1.0]}
    comparison = compare(old, new, 1e-6)
    assert comparison.equal == 2
    assert [line.split(":")[0] for line in comparison.changed] == ["c", "d"]
    assert (comparison.missing, comparison.added) == (["e"], ["f"])


def test_json_and_parquet_rows_are_read_identically(tmp_path):
    row = {"task": "groups", "metric": "gap", "method": "cali", "value": 0.25, "change": None}
    figure = row | {"interval": [0.1, 0.4]}
    (tmp_path / "one.json").write_text(json.dumps({"figures": [figure]}))
    pd.DataFrame([row | {"low": 0.1, "high": 0.4}]).to_parquet(tmp_path / "two.parquet")
    files = sorted(map(str, tmp_path.iterdir()))
    rows = rows_of("\n".join(files), lambda name: (tmp_path / name).read_bytes())
    assert set(rows) == {"one: groups gap cali", "two: groups gap cali"}
    for values in rows.values():
        np.testing.assert_allclose(values, [0.25, 0.1, 0.4, np.nan, np.nan, np.nan])


@pytest.mark.slow
def test_training_pipelines_and_servers_give_the_same_results_as_bare_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, preprocess, tokenizer = load_clip()
    model.logit_scale.data.fill_(3.0)  # its own temperature is below the minimum that is learned
    monkeypatch.setattr(
        open_clip, "create_model_and_transforms", lambda name: (model, preprocess, preprocess)
    )
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda name: tokenizer)
    rows = [
        *overheads.training(pairs=4, repetitions=1),
        *overheads.generation(images=2, steps=2, repetitions=1),
        *overheads.serve(repetitions=1),
    ]
    assert [speed.unequal(row) for row in rows] == [""] * 4
    assert all(row["ours"] > 0 and row["plain"] > 0 for row in rows)


def test_rows_that_are_not_measured_again_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    old = [
        {"what": "a", "size": "1", "ours": 1.0},
        {"what": "a", "size": "2", "ours": 2.0},
        {"what": "b", "size": "1", "ours": 3.0},
    ]
    records("rows", "about", old, "what", ("size",)).write(path)
    assert speed.earlier_rows(path, [{"what": "b", "size": "1", "ours": 4.0}]) == old[:2]


def test_a_row_is_only_printed_if_the_timed_results_are_equal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    times = {"what": "this / that", "ours": 0.1, "plain": 0.2, "ratio": 2.0}
    rows = [
        {**times, "size": "same", "difference": 1e-9, "within": 1e-6},
        {**times, "size": "other", "difference": 1e-3, "within": 1e-6},
        {**times, "size": "unknown"},
        {**times, "size": "no number", "difference": float("nan"), "within": 1e-6},
    ]
    monkeypatch.setitem(speed.PARTS, "made", lambda: rows)
    path = tmp_path / "made.json"
    monkeypatch.setattr(sys, "argv", ["speed", "--only", "made", "--json", str(path)])
    assert speed.main() == 1
    printed = capsys.readouterr()
    assert "same" in printed.out
    for size in ("other", "unknown", "no number"):
        assert size not in printed.out
        assert f"left out: this / that, {size}" in printed.err
    assert {place_of(row)["size"] for row in Result.read(path).rows} == {"same"}

    monkeypatch.setitem(speed.PARTS, "made", lambda: rows[:1])
    assert speed.main() == 0


def test_rows_that_got_slower_than_the_committed_ones_are_named() -> None:
    before = [
        {"what": "a / b", "size": "1", "ratio": 2.0},
        {"what": "a / b", "size": "2", "ratio": 2.0},
    ]
    committed = records("rows", "about", before, "what", ("size",))
    now = [{**before[0], "ratio": 1.7}, {**before[1], "ratio": 1.8}, {**before[1], "size": "new"}]
    (line,) = speed.slower(now, committed)
    assert "a / b, 1: ratio 2.00 before, 1.70 now" in line


def test_every_part_reports_the_difference_between_its_implementations() -> None:
    rows = [
        *speed.of_losses([64], repetitions=1),
        *speed.fit(16, 4, 2, repetitions=1),
        *overheads.label(2, 4),
    ]
    assert [speed.unequal(row) for row in rows] == [""] * len(rows)
