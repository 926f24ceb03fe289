"""A result is a frame, a file in two forms, a table and a plot; every number survives to the last digit."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import COLUMNS, Result, TaskProvenance, TaskResult
from vldebias.metrics import bootstrap_interval

RESULTS = Path(__file__).parents[2] / "eval" / "results"


def provenance(task: str = "birds") -> TaskProvenance:
    return TaskProvenance(
        task=task, description="d", model="A", fingerprint=None, prompts="p", prompts_hash="0", split="test",
        methods={}, seeds=[0], n={},
    )  # fmt: skip


def made() -> Result:
    part = TaskResult(provenance(), details={"cali": {"lam": 0.1 + 0.2, "strength": 1.0}})
    part.add("gap", "none", 1 / 3, (0.1, 0.9), n={"images": 9, "smallest group": 2})
    part.add("gap", "cali", 2 / 7, (0.0, 0.9), n={"images": 9}, change=(1 / 3 - 2 / 7, -0.1, 0.2))
    part.add("cosine", "cali", 0.5, n={"prompts": 3}, subset="$a$ / <b>")
    return Result.of("small", [part], seconds=1.5)


def test_the_frame_has_the_columns_in_their_order() -> None:
    frame = made().to_pandas()
    first = ["task", "metric", "method", "subset", "value", "low", "high", "change", "change_low", "change_high", "n"]
    assert list(frame.columns) == list(COLUMNS)
    assert list(frame.columns)[:11] == first
    assert frame.n.tolist() == [9, 9, 3]
    assert math.isnan(frame.change[0])
    assert frame.change[1] == 1 / 3 - 2 / 7
    assert frame.lam[1] == 0.1 + 0.2
    assert (frame.low[2], frame.high[2]) == (0.5, 0.5)
    assert Result.of("nothing", [], seconds=0).to_pandas().shape == (0, len(COLUMNS))


@pytest.mark.parametrize("compact", [False, True])
def test_what_is_written_is_read_to_the_last_digit(compact: bool, tmp_path: Path) -> None:
    result = made()
    path = result.write(tmp_path / "out" / "result.json", compact=compact)
    assert Result.read(path) == result
    assert set(path.parent.iterdir()) == {path, *([path.with_suffix(".parquet")] if compact else [])}
    told = json.loads(path.read_text())
    keys = "name figures protocols versions commit seconds date command platform"
    assert set(keys.split()) == set(told)
    path.write_text(json.dumps({**told, "other": 1}))
    with pytest.raises(InvalidInputError, match="other"):
        Result.read(path)


def test_no_name_in_the_csv_is_a_formula(tmp_path: Path) -> None:
    result = made()
    result.rows[0] = result.rows[0].model_copy(update={"subset": "=HYPERLINK(1)", "method": "@x", "value": -0.5})
    table = pd.read_csv(result.to_csv(tmp_path / "r.csv"))
    assert table.value.tolist() == result.to_pandas().value.tolist()
    first = table.iloc[0]
    assert (first.subset, first.method, first.value) == ("'=HYPERLINK(1)", "'@x", -0.5)


def test_a_compact_result_without_its_rows_says_so(tmp_path: Path) -> None:
    path = made().write(tmp_path / "result.json", compact=True)
    rows = path.with_suffix(".parquet")
    content = rows.read_bytes()
    rows.write_bytes(content + b"more")
    with pytest.raises(InvalidInputError, match=r"result\.parquet"):
        Result.read(path)
    rows.unlink()
    with pytest.raises(InvalidInputError, match=r"result\.parquet"):
        Result.read(path)


def test_what_is_no_result_is_told(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with pytest.raises(InvalidInputError, match=r"r\.json: got no such file"):
        Result.read(path)
    missing = r"figures: Field required"
    for text in ("", "[]", "{}", "[" * 100_000, '{"figures": {}}', '{"name": "x"}'):
        path.write_text(text)
        with pytest.raises(InvalidInputError, match=missing if "name" in text else r"r\.json"):
            Result.read(path)


def test_a_row_is_found_by_name_and_a_miss_lists_the_closest() -> None:
    assert made().row("birds", "gap", "cali").value == 2 / 7
    with pytest.raises(KeyError, match=r"no row birds/gap/orth/all; .*birds/gap/cali/all"):
        made().row("birds", "gap", "orth")
    many = made()
    many.rows = [row.model_copy(update={"subset": str(i)}) for i in range(20) for row in many.rows]
    with pytest.raises(KeyError) as told:
        many.row("birds", "gap", "cali", subset="none such")
    assert len(str(told.value)) < 600


def test_resampled_rows_are_those_of_the_public_bootstrap() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.random(30), rng.random(30)
    part = TaskResult(provenance())
    part.add_resampled("clip_score", {"none": before, "x": after}, n={"images": 30}, resamples=200, seed=3)
    own = bootstrap_interval(after, resamples=200, seed=3)
    paired = bootstrap_interval(after - before, resamples=200, seed=3)
    none, x = part.rows
    assert none.change is None
    assert (x.value, *x.interval) == pytest.approx((own.value, own.low, own.high))
    assert x.change == pytest.approx((paired.value, paired.low, paired.high))


def test_parts_are_the_arguments_of_a_metric_frame() -> None:
    """Those that fairlearn documents: metrics, y_true, y_pred, sensitive_features, sample_params."""
    part = TaskResult(provenance())
    part.add("accuracy", "none", 0.5, n={"images": 10}, subset="landbird/water")
    part.add("accuracy", "none", 0.9, n={"images": 30}, subset="landbird/land")
    result = Result.of("birds", [part], seconds=1.0)
    given = result.as_metric_frame("birds", "accuracy", "none")
    assert set(given) == {"metrics", "y_true", "y_pred", "sensitive_features", "sample_params"}
    assert given["sensitive_features"] == ["landbird/water", "landbird/land"]
    overall = given["metrics"]["accuracy"](given["y_true"], given["y_pred"], **given["sample_params"]["accuracy"])
    assert overall == pytest.approx((10 * 0.5 + 30 * 0.9) / 40)
    with pytest.raises(InvalidInputError, match="gap"):
        result.as_metric_frame("birds", "gap", "none")
