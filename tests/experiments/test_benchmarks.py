"""Benchmarks on tiny sizes, whose times are never tested, and the command that compares this
version with another."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from eval.against import compare, rows_of
from eval.benchmarks import gpu_losses, speed, towers
from eval.experiments import draft_figures


def test_sorts_figures_into_equal_moved_went_and_came():
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
    assert [line.split(":")[0] for line in comparison.moved] == ["c", "d"]
    assert (comparison.went, comparison.came) == (["e"], ["f"])


def test_reads_rows_from_json_and_parquet_alike(tmp_path):
    row = {"task": "groups", "metric": "gap", "method": "cali", "value": 0.25, "change": None}
    figure = row | {"interval": [0.1, 0.4]}
    (tmp_path / "one.json").write_text(json.dumps({"figures": [figure]}))
    pd.DataFrame([row | {"low": 0.1, "high": 0.4}]).to_parquet(tmp_path / "two.parquet")
    files = sorted(map(str, tmp_path.iterdir()))
    rows = rows_of("\n".join(files), lambda name: (tmp_path / name).read_bytes())
    assert set(rows) == {"one: groups gap cali", "two: groups gap cali"}
    for values in rows.values():
        np.testing.assert_allclose(values, [0.25, 0.1, 0.4, np.nan, np.nan, np.nan])


def test_ours_gives_what_the_plain_way_gives() -> None:
    assert all(row["difference"] < 1e-5 for row in speed.of_losses([64], repetitions=1))
    assert speed.fit(16, 4, 2, repetitions=1)["difference"] < 1e-8
    assert speed.ranks(2000, queries=3, k=50, repetitions=1)["difference"] < 0.01
    assert speed.intervals(3000, queries=3, resamples=60)["difference"] < 5
    assert speed.reference(1000, repetitions=1)["difference"] == 0


def test_pictures_and_folders_are_read_alike() -> None:
    rows = list(towers.pictures(((96, 64),), side=16, rounds=1))
    assert rows[0]["equal pixels"]
    assert rows[0]["mean pixel change of a draft, sd"] < 0.2
    (row,) = towers.folder(5, (320, 240), workers=(0,), rounds=1)
    assert row["difference"] < 2e-3
    assert row["cosine of fast and exact features, least"] > 0.98


@pytest.mark.slow
def test_an_attached_tower_changes_some_texts() -> None:
    (row,) = towers.towers("ViT-B-32", {6: 1}, modes=("eager",))
    assert row["share of texts that are changed"] == pytest.approx(4 / 6)


def test_losses_of_a_gpu_are_the_same(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    (row,) = gpu_losses.gpu_losses((64,), rounds=1, device="cpu")
    plain = row["value, plain"]
    ours = [value for name, value in row.items() if name.startswith("value, ours")]
    assert ours == pytest.approx([plain] * 3, rel=0.02)
    speed.write_records(tmp_path / "gpu.json", "losses", [row], "what", ("size",))


@pytest.mark.slow
def test_figures_of_features_that_were_read_small_are_near() -> None:
    rows = list(draft_figures.rows_of("birds", 24))
    assert rows[0]["read small"] > 0.999
    figures = {row["figure"] for row in rows[1:]}
    assert {"worst_group", "average"} <= figures
    assert all(abs(row["change"]) < 0.2 for row in rows[1:])
