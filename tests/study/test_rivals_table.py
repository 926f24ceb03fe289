"""Test the comparison of all methods on the same images: the experiment's task on a small world,
and its tables."""

from dataclasses import replace

import numpy as np
import pytest

from eval.experiments import rivals
from eval.pages.methods import compared
from tests.study.any_method_parts import GENDER, images, texts
from vldebias.hosts import TextTable
from vldebias.methods import METHODS
from vldebias.report.result import Result

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")


@pytest.fixture(scope="module")
def result() -> Result:
    """Return the result for two splits of a small world: a search, and groups."""
    patch = pytest.MonkeyPatch()
    patch.setattr(rivals, "RESAMPLES", 20)
    methods = [METHODS[name] for name in ("cali", "difference", "equalise", "leace", "roboshot")]
    searches = []
    groups = []
    people = replace(GENDER, name="gender")
    for seed in (0, 1):
        order = np.random.default_rng(seed).permutation(400)
        common = {"texts": TextTable(texts()), "prompt_set": people, "attribute": "gender"}
        common |= {"reference": images()[order[:150]], "gallery": images()[order[150:]]}
        searches.append(rivals.Split(queries=GENDER.classes, k=20, **common))
        groups.append(rivals.Split(classes=people, label="job", **common))
    done = [
        rivals.task("jobs", "Jobs", searches, methods),
        rivals.task("people", "People", groups, methods),
    ]
    patch.undo()
    return Result.from_tasks("rivals", done, seconds=0.0)


def test_a_value_is_the_mean_over_the_splits(result: Result) -> None:
    frame = result.to_pandas().query("task == 'jobs' and metric.str.startswith('max_skew')")
    titles = {
        "none",
        "random",
        *(
            METHODS[name].declaration.title
            for name in ("cali", "difference", "equalise", "leace", "roboshot")
        ),
    }
    assert set(frame.method) == titles
    for name in titles:
        mean = result.row("jobs", "max_skew@20", name)
        assert mean.interval[0] <= mean.value <= mean.interval[1]
        assert mean.n["splits"] == 2


def test_the_table_lists_what_each_method_needs_and_marks_the_attached_one(
    result: Result,
) -> None:
    lines = compared(result, "jobs").splitlines()
    rows = {line.split(" | ")[0].strip("| "): line for line in lines[2:]}
    # The worst method comes last.
    assert list(rows)[-1] == "`none`"
    assert "**labels**" in rows["`leace`"]
    assert "**labels**" not in rows["`equalise`"]
    # Searches are not edited based on text alone, so only classification marks the default's
    # method.
    assert not any(name.startswith("**") for name in rows)
    assert "| **`difference`, the default** |" in compared(result, "people")
    assert len({line.count("|") for line in lines}) == 1
    assert "worst group" in compared(result, "people")
