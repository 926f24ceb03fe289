"""Labels as people have them give the figures of the groups that they mean, and results say how many are unknown."""

from contextlib import nullcontext

import numpy as np
import pytest
from any_method_parts import GENDER, part, texts

from vldebias.errors import SuspectInputWarning
from vldebias.evaluation import Result, evaluate

pytestmark = pytest.mark.usefixtures("no_charts")

GALLERY = part("test")
JOB, SEX = GALLERY.column("job").codes, GALLERY.column("gender").codes


def measured(labels: object, **options: object) -> Result:
    fields = {"prompts": {"group": GENDER}, "methods": ["cali"], "k": 20, "resamples": 5, **options}
    return evaluate(texts(), GALLERY.features, labels={"group": labels}, **fields)


def figures(result: Result) -> list[tuple[str, str, str, float]]:
    return [(row.metric, row.method, row.subset, row.value) for row in result.rows]


@pytest.mark.parametrize("values", [(-1, 0, 1), (7, 70, 700), ("a", "b", "c"), (-1.0, 0.0, 1.0)])
def test_the_figures_do_not_depend_on_what_the_values_are_called(values: tuple) -> None:
    """-1 was read as unknown: a group of three less. Beside 0 it is asked about."""
    asked = pytest.warns(SuspectInputWarning, match="for '-1'; say unknown") if values[0] == -1 else nullcontext()
    with asked:
        result = measured(np.array(values)[JOB % 3])
    assert figures(result) == figures(measured((JOB % 3 + 1).tolist()))
    assert result.provenance[0].n["groups"] == 3
    assert result.provenance[0].n["unknown"] == 0


@pytest.mark.parametrize(
    ("absent", "unknown"),
    [(-1, ["-1", "?"]), (float("nan"), ()), (None, ()), ("?", "?")],
)
def test_unknown_rows_are_left_out_and_counted(absent: object, unknown: object) -> None:
    text = isinstance(absent, str)
    column = [absent if i % 5 == 0 else str(sex) if text else int(sex) for i, sex in enumerate(SEX)]
    result = measured(column, unknown=unknown)
    known = np.arange(len(SEX)) % 5 != 0
    expected = evaluate(
        texts(), GALLERY.features[known], prompts={"g": GENDER}, labels=SEX[known], methods="cali", k=20, resamples=5
    )
    assert figures(result) == figures(expected)
    (about,) = result.provenance
    assert (about.n["unknown"], about.n["groups"]) == (60, 2)
    assert about.settings["gallery"].get("values read as unknown") == ([str(absent)] if unknown != () else None)


def test_groups_leave_them_out_and_say_so() -> None:
    labels = {"job": JOB, "gender": np.where(np.arange(len(SEX)) % 5 == 0, -1, SEX)}
    options = {"task": "groups", "label": "job", "spurious": "gender", "methods": ["cali"], "resamples": 5}
    result = evaluate(texts(), GALLERY.features, prompts=GENDER, labels=labels, unknown=-1, **options)
    assert result.provenance[0].n["unknown"] == 60
    assert result.provenance[0].settings["data"]["values read as unknown"] == ["-1"]
