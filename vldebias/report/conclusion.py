"""Say what was found: a conclusion for each task, which terminal, page, notebook, JSON and
comparison share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from vldebias.measure.metric import get_metric
from vldebias.report.phrases import capitalised, listed_words, quantity_of
from vldebias.report.table import GAP, Change, Measures, moved

if TYPE_CHECKING:
    import pandas as pd

# the methods that `debias` attaches where none is named, to a model and to a pipeline: conclusions
# are about them
DEFAULT = "default"
ATTACHED = (DEFAULT, "balanced-prompts")
# the measure that a conclusion is about, if there is one of them: corrected by people, then plain
LEADS = (f"corrected_{GAP}", GAP)
# measures against the other prior, which are shown next to MaxSkew where a gallery is uneven
OTHER_PRIOR = {
    "max_skew_dataset": "against the gallery's own shares",
    "max_skew_uniform": "against even shares",
}
NO_VERDICT = "no verdict"
# clear gains first, then what has no direction, then clear losses
RANK = {"better": -3, "changed": -2, "worse": -1}
# methods that need no edit at all, such as another threshold: what any edit has to beat
BASELINES = {"none@median": "a threshold at the median, without any edit"}


class Conclusion(BaseModel, extra="forbid"):
    """Hold what one method does to the bias of one task, and what that costs.

    before, after: values of the measure without and with the method. interval: of after. change:
    value, low, high. chance: what random rankings or draws give; chance_after: the same for the
    method, where it deals values to images. n: what was resampled, such as "20 professions".
    enough: how many of them would tell, where there are too few. baseline: the best that needs no
    edit, "" where there is none. worse: the part that lost most.
    verdict: "better", "worse", "no clear change", "too few to tell", "nothing to remove" (the model
    is at chance), "equal" or "changed" (where no direction is better).
    """

    task: str
    question: str
    metric: str
    subset: str
    measure: str
    method: str
    before: float
    after: float
    interval: tuple[float, float]
    change: tuple[float, float, float]
    chance: float | None
    chance_after: float | None
    cost: str
    baseline: str
    worse: str
    other_prior: str
    n: str
    enough: int | None
    verdict: str
    sentence: str

    @property
    def short(self) -> str:
        """Return task, verdict, values and method, without the evidence."""
        form = ".3f" if abs(self.after) < 10 else ".1f"
        return (
            f"{self.task}: {self.verdict}, {self.measure} {self.before:{form}} to"
            f" {self.after:{form}} with {self.method}"
        )


def conclusions(frame: pd.DataFrame, measures: Measures = ()) -> list[Conclusion]:
    """Return a conclusion for each task that has a measure of bias, in the order of the rows.

    It is about the method that `debias` attaches if that was measured, else about the one that
    gains most; methods with labels do not count. Distances between texts are left out where
    anything else was measured: they search, classify or generate nothing.

    frame: of `readable`. measures: (task, metric) to conclude on; all where none is named.
    """
    rows = list(frame.itertuples())
    found = []
    about_images = []
    for task in dict.fromkeys(row.task for row in rows if has_change(row)):
        block = [row for row in rows if row.task == task]
        candidates = leading_measure(block, measures)
        if not candidates:
            continue
        conclusion = conclude(block, leading_method(candidates))
        found.append(conclusion)
        if get_metric(conclusion.metric, strict=False).reads != "texts":
            about_images.append(conclusion)
    return about_images or found


def has_change(row: Any) -> bool:
    """Return whether a row has a change from the model without a method."""
    return not math.isnan(row.change)


def leading_measure(block: Sequence[Any], measures: Measures) -> list[Any]:
    """Return the rows of the measure of bias that a conclusion about a task is about, of methods
    without labels; [] where none was measured."""
    bias = []
    for row in block:
        is_chosen = not measures or (row.task, row.metric) in measures
        # A method with labels was told what the others have to find out.
        is_bias = row.kind == "bias" and row.is_whole and not row.uses_labels
        if is_chosen and is_bias and has_change(row):
            bias.append(row)
    if not bias:
        return []
    measured = [row.metric for row in bias]
    leading_metric = next((metric for metric in LEADS if metric in measured), measured[0])
    rows = [row for row in bias if row.metric == leading_metric]
    return [row for row in rows if row.subset == rows[-1].subset]  # of train and unseen the last


def leading_method(rows: Sequence[Any]) -> Any:
    """Return the row of the method that a conclusion is about: the one that `debias` attaches, else
    the edit that gains most."""
    # The question is what an edit does; the baseline follows in the sentence.
    edits = [row for row in rows if row.method not in BASELINES]
    # Clear gains first, the largest first among equals.
    ranked = sorted(edits or rows, key=lambda row: (RANK.get(row.verdict, 0), -abs(row.change)))
    # The default of models goes before that of pipelines, where both were measured.
    for method in ATTACHED:
        for row in ranked:
            if row.method == method:
                return row
    return ranked[0]


def conclude(block: Sequence[Any], row: Any) -> Conclusion:
    """Return the conclusion that a row gives, with costs of its task.

    block: the rows of the task, of the frame of `readable`.
    """
    other_prior, agrees = _other_prior(block, row)
    part = f", {row.subset}," if row.subset else ""
    facts: dict[str, Any] = {
        "task": row.task,
        "question": f"What does {row.name} do to the {row.title}{part} of {row.task}?",
        "metric": row.metric,
        "subset": row.subset,
        "measure": row.measure,
        "method": row.name,
        "before": row.before,
        "after": row.value,
        "interval": (row.low, row.high),
        "change": (row.change, row.change_low, row.change_high),
        "chance": None if math.isnan(row.chance) else row.chance,
        "chance_after": None if math.isnan(row.chance_after) else row.chance_after,
        "cost": _cost(block, row),
        "baseline": _baseline(block, row),
        "worse": _who_got_worse(block, row),
        "other_prior": other_prior,
        "n": quantity_of(row.n, next(iter(row.units), "")),
        "enough": row.enough if agrees else None,
        "verdict": row.verdict if agrees else NO_VERDICT,
    }
    return Conclusion(**facts, sentence=worded(facts, row.square_moved))


def _other_prior(block: Sequence[Any], row: Any) -> tuple[str, bool]:
    """Write what MaxSkew against the other prior says, where the gallery is uneven, and return
    whether its verdict is the same; "" and True elsewhere.

    No ranking of an uneven gallery is fair by both priors: where their verdicts differ, choosing
    one of them would be choosing the conclusion.
    """
    base, _, k = row.metric.partition("@")
    if not base.startswith("max_skew"):
        return "", True
    words_of_metric = {f"{name}@{k}": words for name, words in OTHER_PRIOR.items()}
    for counterpart in block:
        is_same = (counterpart.subset, counterpart.name) == (row.subset, row.name)
        if is_same and counterpart.metric in words_of_metric and has_change(counterpart):
            values = f"{counterpart.before:.3f} to {counterpart.value:.3f} ({counterpart.moved})"
            words = f"{words_of_metric[counterpart.metric]} {values}, {counterpart.verdict}"
            return words, counterpart.verdict == row.verdict
    return "", True


def _cost(block: Sequence[Any], row: Any) -> str:
    """Write what a method costs: each utility that got worse, else which ones were measured."""
    cost_of_metric: dict[str, Any] = {}
    for cost in block:
        is_cost = cost.kind == "utility" and cost.name == row.name
        if is_cost and cost.is_whole and has_change(cost):
            # Of several parts the last one, at its own place.
            cost_of_metric.pop(cost.metric, None)
            cost_of_metric[cost.metric] = cost
    # Both averages say nearly the same. The reweighted one stands, in which groups weigh as in
    # training.
    if "average_reweighted" in cost_of_metric:
        cost_of_metric.pop("average", None)
    costs = cost_of_metric.values()
    if not costs:
        return "not measured"
    prices = []
    for cost in costs:
        if cost.verdict == "worse":
            change = (cost.change, cost.change_low, cost.change_high)
            prices.append(paid(cost.title, cost.before, cost.value, change))
    return "; ".join(prices) or nothing_worse(list(dict.fromkeys(cost.title for cost in costs)))


def nothing_worse(measures: Sequence[str]) -> str:
    """Write that no utility got clearly worse: "neither recall@1 nor AUC got clearly worse"."""
    if len(measures) == 1:
        return f"{measures[0]} did not get clearly worse"
    if len(measures) == 2:
        return f"neither {measures[0]} nor {measures[1]} got clearly worse"
    return f"none of {listed_words(measures)} got clearly worse"


def paid(measure: str, before: float, after: float, change: Change) -> str:
    """Write what a utility lost or kept: its values and the change with its interval."""
    return f"{measure} {before:.3f} to {after:.3f} ({moved(change)})"


def _baseline(block: Sequence[Any], row: Any) -> str:
    """Write what the best simple baseline comes to, where one was measured."""
    simple = []
    for baseline in block:
        is_same = (baseline.metric, baseline.subset) == (row.metric, row.subset)
        if is_same and baseline.method in BASELINES:
            simple.append(baseline)
    if not simple:
        return ""
    is_higher_better = row.better == "higher"
    best = sorted(simple, key=lambda baseline: baseline.value)[-1 if is_higher_better else 0]
    is_better = (best.value > row.value) == is_higher_better
    comparison = "better" if is_better else "worse"
    return f"{BASELINES[best.method]}, gives {best.number}, which is {comparison}"


def _who_got_worse(block: Sequence[Any], row: Any) -> str:
    """Write in how many parts what got worse, and where most: "accuracy in 1 of 4 parts, most in
    landbird/land: -0.093"; "" where nothing did."""
    parts = [part for part in block if part.name == row.name and not part.is_whole]
    lost = [part for part in parts if part.verdict == "worse"]
    if not lost:
        return ""
    worst = max(lost, key=lambda part: abs(part.change))
    measured = (worst.metric, worst.units)
    verdicts = [part.verdict for part in parts if (part.metric, part.units) == measured]
    return (
        f"{worst.title} in {verdicts.count('worse')} of {len(verdicts)} parts, most in"
        f" {worst.subset}: {worst.moved}"
    )


def worded(facts: dict[str, Any], square_moved: str = "") -> str:
    """Write a conclusion in words.

    facts: the fields of a `Conclusion` without its sentence. square_moved: the change of the
    unbiased square that the verdict rests on, where the change alone would say more.
    """
    notes = [f"change {moved(facts['change'])}"]
    chance = facts["chance"]
    low, high = facts["interval"]
    if facts["chance_after"] not in (None, chance) and chance is not None:
        dealt = f"values dealt evenly {facts['chance_after']:.3f}"
        notes.append(f"chance gives {chance:.3f}, {dealt}")
    elif chance is not None and low <= chance <= high:
        notes.append(f"about what chance gives, {chance:.3f}")
    elif chance is not None:
        notes.append(f"chance {chance:.3f}")
    if square_moved:
        notes.append(f"its square without the noise of few images {square_moved}")
    headline = facts["verdict"]
    if facts["enough"] is not None:
        headline += f" from {facts['n']}, about {facts['enough']:,} would do"
    measure = capitalised(facts["measure"])
    if facts["subset"]:
        measure = measure.replace(f", {facts['subset']}", f" ({facts['subset']})")
    # From where to where it moved: "falls from 0.475 to 0.096".
    form = ".3f" if abs(facts["after"]) < 10 else ".1f"
    before = f"{facts['before']:{form}}"
    after = f"{facts['after']:{form}}"
    movement = f"goes from {before} to {after}"
    if before == after:
        movement = f"stays at {after}"
    elif facts["verdict"] in ("better", "worse", "changed"):
        verb = "rises" if facts["after"] > facts["before"] else "falls"
        movement = f"{verb} from {before} to {after}"
    words = f"{facts['task']}: {headline}. {measure} {movement}"
    words += f" with {article_of_method(facts['method'])} ({'; '.join(notes)})."
    if facts["cost"]:
        words += f" Cost: {facts['cost']}."
    if facts["other_prior"] and facts["verdict"] == NO_VERDICT:
        words += f" The gallery is uneven, and the two priors disagree: {facts['other_prior']}."
    elif facts["other_prior"]:
        words += f" The gallery is uneven; {facts['other_prior']} too."
    if facts["baseline"]:
        words += f" {capitalised(facts['baseline'])}."
    return words


def article_of_method(method: str) -> str:
    """Write the name of a method in a sentence: "the default" for the one that nobody names."""
    return f"the {method}" if method == DEFAULT else method
