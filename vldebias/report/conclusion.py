"""Say what was found: a conclusion for each task, which terminal, page, notebook, JSON and
comparison share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel

from vldebias.measure.metric import TO_MEDIAN, get_metric
from vldebias.measure.rows import MEDIAN, ON_VAL
from vldebias.report.phrases import capitalised, listed_words, quantity_of
from vldebias.report.table import (
    FLOAT_NOISE,
    GAP,
    UNCLEAR,
    Change,
    Measures,
    ReadableRow,
    form_of_change,
    form_of_figures,
    from_to,
    moved,
    verdict,
)

if TYPE_CHECKING:
    import pandas as pd

# The methods that `debias` attaches if none is named: to a model, to a model with reference images,
# and to a pipeline. Conclusions are about them.
DEFAULT = "default"
ATTACHED = (DEFAULT, "default+equalise", "balanced-prompts")
# the measure that a conclusion is about, if there is one of them: corrected by people, then plain
LEADS = (f"corrected_{GAP}", GAP)
# measures against the other prior, which are shown next to MaxSkew where a gallery is uneven
OTHER_PRIOR = {
    "max_skew_dataset": "against the gallery's own shares",
    "max_skew_uniform": "against even shares",
}
NO_VERDICT = "no verdict"
# methods that need no edit at all, such as another threshold: what any edit has to beat
BASELINES = {MEDIAN: "a threshold at the median, without any edit"}
# utilities that overstate the loss, since they count an equally good replacement as lost
UPPER_BOUNDS = ("kept",)


class Conclusion(BaseModel, extra="forbid"):
    """Hold what one method does to the bias of one task, and what that costs.

    before, after: values of the measure without and with the method. interval: of after. change:
    value, low, high. chance: what random rankings or draws give; chance_after: the same for the
    method, where it deals values to images. n: what was resampled, such as "20 professions".
    enough: how many of them would tell, where there are too few. paper: what the paper's setting
    gives, "" if it was not measured or the conclusion is about it. on_val: what lambdas chosen on a
    validation split give. baseline: what a method without any edit gives, and whether that differs.
    worse: the part that lost most.
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
    paper: str
    on_val: str
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
        form = form_of_figures(self.after, self.change)
        return (
            f"{self.task}: {self.verdict}, {self.measure} {self.before:{form}} to"
            f" {self.after:{form}} with {self.method}"
        )


def conclusions(frame: pd.DataFrame, measures: Measures = ()) -> list[Conclusion]:
    """Return a conclusion for each task that has a measure of bias, in the order of the rows.

    Each is about the method that `debias` attaches by default if that was measured, else about the
    paper's setting, else about the first method that was measured, and never about the best of
    several. Methods with labels do not count. Distances between texts are left out if anything else
    was measured: they search, classify or generate nothing.

    frame: of `readable`. measures: (task, metric) to conclude on; all where none is named.
    """
    rows = cast("list[ReadableRow]", list(frame.itertuples()))
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


def has_change(row: ReadableRow) -> bool:
    """Return whether a row has a change from the model without a method."""
    return not math.isnan(row.change)


def leading_measure(block: Sequence[ReadableRow], measures: Measures) -> list[ReadableRow]:
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


def leading_method(rows: Sequence[ReadableRow]) -> ReadableRow:
    """Return the row of the method that a conclusion is about, whatever the methods achieved.

    That is the method that `debias` attaches by default, else the paper's setting, else the first
    edit that was measured: the best of several methods or lambdas on the same images would promise
    more than a user gets.
    """
    # The question is what an edit does; a baseline follows in the sentence. An edit for another
    # attribute answers another question.
    edits = [row for row in rows if row.method not in BASELINES]
    edits = [row for row in edits if not row.is_off_target] or edits
    for method in ATTACHED:
        for row in edits:
            if row.method == method:
                return row
    settings_of_paper = [row for row in edits if row.paper]
    return [*settings_of_paper, *edits, *rows][0]


def conclude(block: Sequence[ReadableRow], row: ReadableRow) -> Conclusion:
    """Return the conclusion that a row gives, with costs of its task.

    block: the rows of the task, of the frame of `readable`.
    """
    other_prior, agrees = _other_prior(block, row)
    part = f", {row.subset}," if row.subset else ""
    conclusion = Conclusion(
        task=row.task,
        question=f"What does {row.name} do to the {row.title}{part} of {row.task}?",
        metric=row.metric,
        subset=row.subset,
        measure=row.measure,
        method=row.name,
        before=row.before,
        after=row.value,
        interval=(row.low, row.high),
        change=(row.change, row.change_low, row.change_high),
        chance=None if math.isnan(row.chance) else row.chance,
        chance_after=None if math.isnan(row.chance_after) else row.chance_after,
        cost=_cost(block, row),
        paper=_paper(block, row),
        on_val=_on_val(block, row),
        baseline=_baseline(block, row),
        worse=_who_got_worse(block, row),
        other_prior=other_prior,
        n=quantity_of(row.n, next(iter(row.units), "")),
        enough=row.enough if agrees else None,
        verdict=row.verdict if agrees else NO_VERDICT,
        sentence="",
    )
    return conclusion.model_copy(update={"sentence": worded(conclusion, _notes(row))})


def _notes(row: ReadableRow) -> list[str]:
    """Write what a sentence says about a method in addition to its figures."""
    notes = []
    if row.square_moved:
        notes.append(f"its square without the noise of few images {row.square_moved}")
    if row.paper:
        # The name of the method has its lambda only if several were measured.
        lam = row.paper.partition(", ")[2]
        notes.append("the paper's setting" if lam in row.name else f"the paper's setting, {lam}")
    if row.is_identity:
        notes.append("no edit is attached")
    return notes


def _other_prior(block: Sequence[ReadableRow], row: ReadableRow) -> tuple[str, bool]:
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
            values = from_to(counterpart.before, counterpart.value, change_of(counterpart))
            words = f"{words_of_metric[counterpart.metric]} {values}, {counterpart.verdict}"
            return words, counterpart.verdict == row.verdict
    return "", True


def _cost(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Write what a method costs: each utility that lost, then those without a clear loss."""
    costs = _utilities(block, row)
    if not costs:
        return "not measured"
    prices = []
    kept = []
    for cost in costs:
        if _has_lost(cost):
            price = paid(cost.title, cost.before, cost.value, change_of(cost))
            is_bound = cost.metric.partition("@")[0] in UPPER_BOUNDS
            prices.append(f"{price}, an upper bound" if is_bound else price)
        else:
            kept.append(cost.title)
    if kept:
        prices.append(without_loss(list(dict.fromkeys(kept))))
    return "; ".join(prices)


def _utilities(block: Sequence[ReadableRow], row: ReadableRow) -> list[ReadableRow]:
    """Return the row of each utility of a method that changed from the model without it; of a
    utility at several k the one that lost most."""
    cost_of_metric: dict[str, ReadableRow] = {}
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
    worst_of_base: dict[str, ReadableRow] = {}
    for metric, cost in cost_of_metric.items():
        base = metric.partition("@")[0]
        worst = worst_of_base.get(base)
        if worst is None or _loss(cost) > _loss(worst):
            worst_of_base[base] = cost
    return list(worst_of_base.values())


def _loss(cost: ReadableRow) -> tuple[bool, float]:
    """Return whether a utility lost clearly, and how much it lost."""
    return _has_lost(cost), -cost.change if cost.better == "higher" else cost.change


def _has_lost(cost: ReadableRow) -> bool:
    """Return whether the whole interval of a change lies on the worse side of zero."""
    if cost.better == "higher":
        return bool(cost.change_high < -FLOAT_NOISE)
    return bool(cost.change_low > FLOAT_NOISE)


def without_loss(measures: Sequence[str]) -> str:
    """Write that no utility clearly lost: "no clear loss of recall@1 or AUC"."""
    return f"no clear loss of {listed_words(measures, 'or')}"


def paid(measure: str, before: float, after: float, change: Change) -> str:
    """Write what a utility lost: its values and the change with its interval."""
    return f"{measure} {from_to(before, after, change)}"


def change_of(row: ReadableRow) -> Change:
    """Return the change of a row with its interval."""
    return row.change, row.change_low, row.change_high


def _paper(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Write what the paper's setting gives and costs: "0.674 (orth-cali, λ = 1000; +0.484
    [+0.410, +0.558]; cost: recall@1 -0.100)"; "" if it was not measured or is what the conclusion
    is about."""
    if row.paper:
        return ""
    for other in block:
        is_same = (other.metric, other.subset) == (row.metric, row.subset)
        if is_same and other.paper and not other.is_off_target:
            lost = []
            for cost in _utilities(block, other):
                if _has_lost(cost):
                    lost.append(f"{cost.title} {cost.change:+{form_of_change(change_of(cost))}}")
            notes = f"{other.paper}; {other.moved}"
            if lost:
                notes += f"; cost: {', '.join(lost)}"
            form = form_of_figures(other.value, change_of(other))
            return f"{other.value:{form}} ({notes})"
    return ""


def _on_val(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Write what each method gives at the lambda that was chosen on a validation split: "0.818
    [0.743, 0.881] with cali, λ = 400"; "" if none was chosen."""
    found = []
    for other in block:
        is_same = (other.metric, other.subset) == (row.metric, row.subset)
        if is_same and other.method.endswith(ON_VAL):
            method = other.method.removesuffix(ON_VAL)
            found.append(f"{other.number} with {method}, λ = {other.lam:g}")
    return "; ".join(found)


def _baseline(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Write what a simple baseline gives, and by the paired difference whether it is better."""
    for baseline in block:
        is_same = (baseline.metric, baseline.subset) == (row.metric, row.subset)
        if is_same and baseline.method in BASELINES:
            words = f"{BASELINES[baseline.method]}, gives {baseline.number}"
            comparison = _compared_with_median(block, row)
            return f"{words}, {comparison}" if comparison else words
    return ""


def _compared_with_median(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Write whether the threshold at the median is better than a method; "" if their difference
    was not measured."""
    for difference in block:
        is_measured = difference.metric == TO_MEDIAN and difference.subset == row.title
        if is_measured and difference.method == row.method:
            # From the method to the threshold: the signs turn.
            change = (-difference.value, -difference.high, -difference.low)
            found = verdict(change, row.better)
            if found == "equal":
                return "the same"
            if found == UNCLEAR:
                return f"no clear difference ({moved(change)})"
            return f"which is {found} ({moved(change)})"
    return ""


def _who_got_worse(block: Sequence[ReadableRow], row: ReadableRow) -> str:
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


def worded(conclusion: Conclusion, notes: Sequence[str] = ()) -> str:
    """Write a conclusion in words.

    Args:
        conclusion: the conclusion, whose `sentence` is not read.
        notes: what stands in the brackets behind the change and chance.
    """
    headline = conclusion.verdict
    if conclusion.enough is not None:
        headline += f" from {conclusion.n}, about {conclusion.enough:,} would do"
    measure = capitalised(conclusion.measure)
    if conclusion.subset:
        measure = measure.replace(f", {conclusion.subset}", f" ({conclusion.subset})")
    # From where to where it moved: "falls from 0.475 to 0.096".
    form = form_of_figures(conclusion.after, conclusion.change)
    before = f"{conclusion.before:{form}}"
    after = f"{conclusion.after:{form}}"
    movement = f"goes from {before} to {after}"
    if before == after:
        movement = f"stays at {after}"
    elif conclusion.verdict in ("better", "worse", "changed"):
        verb = "rises" if conclusion.after > conclusion.before else "falls"
        movement = f"{verb} from {before} to {after}"
    words = f"{conclusion.task}: {headline}. {measure} {movement}"
    evidence = "; ".join([*_evidence(conclusion), *notes])
    words += f" with {article_of_method(conclusion.method)} ({evidence})"
    if conclusion.paper:
        words += f"; the paper's setting gives {conclusion.paper}"
    words += "."
    if conclusion.on_val:
        words += f" With λ chosen on val: {conclusion.on_val}."
    if conclusion.cost:
        words += f" Cost: {conclusion.cost}."
    if conclusion.other_prior and conclusion.verdict == NO_VERDICT:
        words += f" The gallery is uneven, and the two priors disagree: {conclusion.other_prior}."
    elif conclusion.other_prior:
        words += f" The gallery is uneven; {conclusion.other_prior} too."
    if conclusion.baseline:
        words += f" {capitalised(conclusion.baseline)}."
    return words


def _evidence(conclusion: Conclusion) -> list[str]:
    """Write the change that a conclusion rests on, with its interval, and what chance gives."""
    notes = [f"change {moved(conclusion.change)}"]
    chance = conclusion.chance
    low, high = conclusion.interval
    form = form_of_figures(conclusion.after, conclusion.change)
    if conclusion.chance_after not in (None, chance) and chance is not None:
        notes.append(f"chance {chance:{form}}, dealt evenly {conclusion.chance_after:{form}}")
    elif chance is not None and low <= chance <= high:
        notes.append(f"about chance, {chance:{form}}")
    elif chance is not None:
        notes.append(f"chance {chance:{form}}")
    return notes


def article_of_method(method: str) -> str:
    """Write the name of a method in a sentence: "the default" for the one that nobody names."""
    return f"the {method}" if method == DEFAULT else method
