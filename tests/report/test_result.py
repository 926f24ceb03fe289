"""Test that a result can be written, read and converted to a data frame without losing a digit."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.study.made_figures import protocol
from vldebias.errors import InvalidInputError
from vldebias.measure.rows import COLUMNS, TaskResult
from vldebias.metrics import bootstrap_interval
from vldebias.report.measurements import command_line
from vldebias.report.result import Result, format_json


def small() -> Result:
    part = TaskResult(protocol(methods={"cali": {"lam": 0.1 + 0.2, "strength": 1.0}}))
    part.add("gap", "none", 1 / 3, (0.1, 0.9), n={"images": 9, "smallest group": 2})
    part.add("gap", "cali", 2 / 7, (0.0, 0.9), n={"images": 9}, change=(1 / 3 - 2 / 7, -0.1, 0.2))
    part.add("cosine", "cali", 0.5, n={"prompts": 3}, subset="$a$ / <b>")
    return Result.from_tasks("small", [part], seconds=1.5)


def test_the_frame_has_the_columns_in_order() -> None:
    frame = small().to_pandas()
    assert (list(frame.columns), frame.n.tolist()) == (list(COLUMNS), [9, 9, 3])
    assert math.isnan(frame.change[0])
    assert (frame.change[1], frame.lam[1]) == (1 / 3 - 2 / 7, 0.1 + 0.2)
    assert (frame.low[2], frame.high[2], frame.lam[2]) == (0.5, 0.5, 0.1 + 0.2)
    ends = "value low high change change_low change_high"
    assert (
        " ".join(COLUMNS)
        == f"task metric method subset {ends} n better lam strength uses_labels counts"
    )
    assert all(shown in small()._repr_html_() for shown in ("<h3>small</h3>", "0.33 [0.10, 0.90]"))
    assert Result.from_tasks("nothing", [], seconds=0).to_pandas().shape == (0, len(COLUMNS))


@pytest.mark.parametrize("compact", [False, True])
def test_results_round_trip_to_the_last_digit(compact: bool, tmp_path: Path) -> None:
    result = small()
    path = result.write(tmp_path / "out" / "result.json", **({"compact": True} if compact else {}))
    assert Result.read(path) == result
    assert set(path.parent.iterdir()) == {
        path,
        *([path.with_suffix(".parquet")] if compact else []),
    }
    written = json.loads(path.read_text())
    keys = "format_version conclusions name figures protocols versions commit seconds date"
    keys += " command platform"
    assert set(keys.split()) == set(written)
    path.write_text(json.dumps({**written, "other": 1}))
    with pytest.raises(InvalidInputError, match="other"):
        Result.read(path)
    path.write_text(json.dumps(written))
    rows = path.with_suffix(".parquet")
    for spoil in (
        (lambda: rows.write_bytes(rows.read_bytes() + b"more"), rows.unlink) if compact else ()
    ):
        spoil()
        with pytest.raises(InvalidInputError, match=r"result\.parquet"):
            Result.read(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(max_size=9), inside),
    max_leaves=60,
)


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.text(max_size=9), JSON, min_size=1))
def test_json_formatting_does_not_change_the_content(content: dict[str, Any]) -> None:
    repeated = {name: [value] * 40 for name, value in content.items()}
    assert json.loads(format_json(repeated)) == repeated


def test_each_row_of_a_result_is_a_single_line(tmp_path: Path) -> None:
    lines = small().write(tmp_path / "r.json").read_text().splitlines()
    assert sum('"metric": "gap"' in line and '"value"' in line for line in lines) == 2


def test_names_in_the_csv_are_never_formulas(tmp_path: Path) -> None:
    result = small()
    result.rows[0] = result.rows[0].model_copy(
        update={"subset": "=HYPERLINK(1)", "method": "@x", "value": -0.5}
    )
    table = pd.read_csv(result.to_csv(tmp_path / "r.csv"))
    assert table.value.tolist() == result.to_pandas().value.tolist()
    first = table.iloc[0]
    assert (first.subset, first.method, first.value) == ("'=HYPERLINK(1)", "'@x", -0.5)


def test_files_that_are_not_results_are_rejected_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for content in (None, "", "[]", "{}", "[" * 100_000, '{"figures": {}}', '{"name": "x"}'):
        if content is not None:
            path.write_text(content)
        with pytest.raises(InvalidInputError, match=r"r\.json"):
            Result.read(path)


def test_a_row_is_found_by_name_and_a_miss_lists_the_closest_names() -> None:
    assert small().row("birds", "gap", "cali").value == 2 / 7
    with pytest.raises(KeyError, match="no row birds/gap/orth; the closest matches are"):
        small().row("birds", "gap", "orth")
    with pytest.raises(KeyError, match=r"birds/gap/cali, lam=7; the closest .*cali, lam=0.3"):
        small().row("birds", "gap", "cali", lam=7)


def test_a_partial_row_is_not_mistaken_for_the_overall_row() -> None:
    """Neither "all" nor a name with slashes is mistaken for a different row."""
    part = TaskResult(protocol())
    part.add("gap", "none", 0.1, n={"images": 9})
    part.add("gap", "none", 0.2, n={"images": 9}, subset="all")
    part.add("gap", "x", 0.3, n={"images": 9}, subset="y/z")
    part.add("gap", "x/y", 0.4, n={"images": 9}, subset="z")
    both = Result.from_tasks("small", [part], seconds=1.0)
    assert both.row("birds", "gap", "none").value == 0.1
    assert both.row("birds", "gap", "none", subset="all").value == 0.2
    assert both.row("birds", "gap", "x", subset="y/z").value == 0.3
    assert both.row("birds", "gap", "x/y", subset="z").value == 0.4
    with pytest.raises(KeyError, match="no row birds/gap/cali/all; the closest"):
        small().row("birds", "gap", "cali", subset="all")


def test_a_command_is_stored_without_local_folders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = (
        ["/home/me/bin/vldebias", "eval", "birds", "--out=/home/me/run"],
        "vldebias eval birds --out=run",
    )
    for words, kept in (
        installed,
        (["/home/me/work.py", "--n", "3"], "python work.py --n 3"),
        (["-c", "1"], None),
    ):
        monkeypatch.setattr("sys.argv", words)
        monkeypatch.setattr("sys.orig_argv", ["/usr/bin/python", *words])
        assert Result.from_tasks("x", [], seconds=0).command == kept


def test_a_command_to_repeat_keeps_paths_that_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["/bin/vldebias", "audit", f"{tmp_path}/a/p.txt", "--out", "/elsewhere/run"]
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setattr("sys.orig_argv", ["/usr/bin/python", *words])
    assert command_line() == "vldebias audit p.txt --out run"
    shown = command_line(keeps_folders=True)
    assert shown == "vldebias audit a/p.txt --out /elsewhere/run"


def test_resampled_rows_match_the_public_bootstrap() -> None:
    rng = np.random.default_rng(0)
    before = rng.random(30)
    after = rng.random(30)
    part = TaskResult(protocol())
    part.add_resampled("clip_score", {"none": before, "x": after}, n={"images": 30})
    unpaired = bootstrap_interval(after)
    paired = bootstrap_interval(after - before)
    none, x = part.rows
    assert none.change is None
    assert (x.value, *x.interval) == pytest.approx((unpaired.value, unpaired.low, unpaired.high))
    assert x.change == pytest.approx((paired.value, paired.low, paired.high))
