"""The experiment of docs/generation.md: who is left out of which fit, and what its intervals are over."""

from __future__ import annotations

import numpy as np
import pytest

from eval.experiments.generation import FITS, LEFT_OUT, SET, kept, over_fits, splits
from vldebias.evaluation.result import TaskProvenance, TaskResult
from vldebias.prompts import load_prompts


def task() -> TaskResult:
    return TaskResult(TaskProvenance(task="t", description=""))


def test_no_profession_is_drawn_under_a_fit_that_knows_it() -> None:
    every, shipped = splits(), load_prompts(SET)
    assert every[0] == shipped
    left = [name for one in every for name in one.held_out_class_names]
    assert len(set(left)) == len(left) == FITS * LEFT_OUT
    whole = {*shipped.class_names, *shipped.held_out_class_names}
    for one in every:
        assert {*one.class_names} == whole - {*one.held_out_class_names}
        said = " ".join(text for pair in one.groups for text in pair)
        assert not any(f"male {name}." in said for name in one.held_out_class_names)
        assert all(name in group[0] for name, group in zip(one.class_names, one.groups, strict=True))


def test_what_fits_differ_in_widens_the_interval() -> None:
    """Alike inside of each fit, unlike between: prompts alone would look certain."""
    values = {"none": np.ones(60), "one": np.repeat([0.0, 0.5, 1.0], 20)}
    widths = []
    for given in (np.repeat(np.arange(3), 20), np.zeros(60, int)):
        result = task()
        over_fits(result, "discrepancy", values, given, subset="", n={}, share=True)
        row = next(row for row in result.rows if row.method == "one")
        assert row.value == 0.5
        widths.append(row.interval[1] - row.interval[0])
    assert widths[0] > 2 * widths[1]


def test_only_images_that_show_it_without_a_method_count() -> None:
    shown = {
        "none": np.array([[True, True], [True, False], [False, False]]),
        "one": np.array([[True, False], [True, True], [True, True]]),
    }
    result = task()
    kept(result, shown, 1, "people")
    assert {row.method: row.value for row in result.rows} == {"none": 1.0, "one": pytest.approx(0.75)}
