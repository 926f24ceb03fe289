"""Distances of pairs are those of a loop over pairs, of a model and of a pipeline, in Python and in the suites."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vldebias.errors import InvalidInputError
from vldebias.evaluation import TextsTask, evaluate, load_suite, run_suite
from vldebias.evaluation.report import published
from vldebias.evaluation.result import Result
from vldebias.hosts import resolve
from vldebias.methods import Problem
from vldebias.miniature import load_clip, load_pipeline
from vldebias.options import Options
from vldebias.prompts import PromptSet, make_prompt_set

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")

TONES = {tone: [tone] for tone in ("pale", "tan", "dark-skinned")}  # three prompts a concept, three pairs


@pytest.fixture(scope="module")
def prompts() -> PromptSet:
    return make_prompt_set("tones", TONES, ["nurse", "plumber", "chef"], test_concepts=["pilot", "clerk"])


@pytest.mark.parametrize(("kind", "role"), [("model", "joint"), ("pipeline", "sequence")])
@pytest.mark.parametrize(("method", "lam"), [("cali", 20.0), ("orth", None)])
def test_distances_are_those_of_a_loop_over_pairs(
    kind: str, role: str, method: str, lam: float | None, prompts: PromptSet
) -> None:
    model, _, tokenizer = load_clip()
    how: dict[str, Any]
    given, how = (load_pipeline(), {}) if kind == "pipeline" else (model, {"tokenizer": tokenizer})
    how |= {} if lam is None else {"lam": lam}
    found = evaluate(given, prompts=prompts, task="texts", method=method, resamples=20, **how)
    host = resolve(given, tokenizer=how.get("tokenizer"))
    edit = Problem(host, prompts, lam=lam).fit(method, role)
    for subset, groups in (("train", prompts.groups), ("unseen", prompts.held_out_groups)):
        for name, edited in (("none", lambda rows: rows), (method, edit)):
            rows = [edited(host.embed(list(group), role)).double() for group in groups]
            each = [float(torch.dist(a, b)) for group in rows for a, b in combinations(group, 2)]
            row = found.row("texts tones", "pair_distance", name, subset=subset)
            assert row.value == pytest.approx(np.mean(each))
            assert row.n == {"concepts": len(groups), "pairs": 3 * len(groups)}
            assert row.interval[0] <= row.value <= row.interval[1]
    assert row.value < found.row("texts tones", "pair_distance", "none", subset="unseen").value
    assert (row.lam, row.strength) == (lam, 1.0)


def test_concepts_with_more_pairs_count_more() -> None:
    one, two = [f"A photo of a {a} nurse." for a in TONES], ["A photo of a pale chef.", "A photo of a tan chef."]
    prompts = PromptSet(name="mixed", groups=(tuple(one), tuple(two)))
    host = resolve(load_pipeline())
    (told,) = TextsTask(name="pairs", title="", sets={"mixed": prompts}, resamples=20).measure(host)
    rows = [host.embed(group, "sequence") for group in (one, two)]
    each = [float(torch.dist(a, b)) for group in rows for a, b in combinations(group, 2)]
    assert (told.rows[0].value, told.rows[0].n["pairs"]) == (pytest.approx(np.mean(each)), 4)


def test_the_suite_gives_the_committed_rows(tmp_path: Path) -> None:
    rows = run_suite("miniature", Options(out=tmp_path), only=["pairs"]).rows
    committed = Result.read(Path(__file__).parents[2] / "eval/results/miniature.json")
    expected = [row for row in committed.rows if row.metric == "pair_distance"]
    assert len(rows) == len(expected) == 8
    for found, row in zip(rows, expected, strict=True):
        assert (found.task, found.method, found.subset, found.n) == (row.task, row.method, row.subset, row.n)
        assert (found.value, *found.interval) == pytest.approx((row.value, *row.interval), rel=1e-9)


def test_the_suite_of_the_paper_measures_what_is_published_and_a_user_chooses_lam(prompts: PromptSet) -> None:
    task = load_suite("generation").tasks[0]
    assert isinstance(task, TextsTask)
    assert task.with_options(Options(out=Path(), lam=7.0)).lam == 7.0
    figures = published("generation", "stable diffusion 2.1")
    assert {name for name, metric, *_ in figures if metric == "pair_distance"} == {
        f"pairs {name}" for name in task.sets
    }
    with pytest.raises(InvalidInputError, match="method="):
        evaluate(load_pipeline(), prompts=prompts, task="texts", methods=["cali", "orth"])
