"""Draw a conclusion for each task, as shown in the terminal, pages, notebooks and comparisons."""

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

# The methods that `debias` attaches by default to a model, to a model with reference images, and to
# a pipeline. Conclusions prefer them.
DEFAULT = "default"
ATTACHED = (DEFAULT, "default+equalise", "balanced-prompts")
# Measures that conclusions prefer: the gap corrected with human labels, then the plain gap.
LEADS = (f"corrected_{GAP}", GAP)
# Measures with the other prior, which are shown next to MaxSkew if the gallery is uneven.
OTHER_PRIOR = {
    "max_skew_dataset": "against the gallery's own shares",
    "max_skew_uniform": "against even shares",
}
NO_VERDICT = "no verdict"
# Methods that do not edit the model, such as a different threshold; an edit should outperform them.
BASELINES = {MEDIAN: "a threshold at the median, without any edit"}
# Utilities that overstate the loss, since they count an equally good replacement as lost.
UPPER_BOUNDS = ("kept",)


class Conclusion(BaseModel, extra="forbid"):
    """Store a method's effect on one task's bias, and its cost.

    Attributes:
        task: task name.
        question: the question that the conclusion answers.
        metric: name of the measure of bias.
        subset: part of the task, such as "unseen professions"; "" for the whole.
        measure: readable name of the measure.
        method: readable name of the method.
        before: value of the measure without the method.
        after: value with the method.
        interval: 95% interval of `after`.
        change: the change with its interval: value, low, high.
        chance: value for random rankings or images; None if unknown.
        chance_after: the same for the method, if it assigns values to images.
        cost: changes of the utilities.
        paper: value and cost with the paper's setting; "" if it was not measured, or is the method
            itself.
        on_val: values for lambdas chosen on a validation split.
        baseline: value of a method that does not edit the model, and whether it differs.
        worse: the part of the task that lost most.
        other_prior: MaxSkew with the other prior, if the gallery is uneven.
        n: number of resampled units, such as "20 professions".
        enough: number of units that would be sufficient, if there are too few.
        verdict: "better", "worse", "no clear change", "too few to tell", "nothing to remove" (the
            model is at chance), "no verdict" (the two priors disagree), "equal", or "changed" (if
            neither direction is better).
        sentence: all of this in words.
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
        """Return the task, verdict, values and method, without the evidence."""
        form = form_of_figures(self.after, self.change)
        return (
            f"{self.task}: {self.verdict}, {self.measure} {self.before:{form}} to"
            f" {self.after:{form}} with {self.method}"
        )


def conclusions(frame: pd.DataFrame, measures: Measures = ()) -> list[Conclusion]:
    """Return a conclusion for each task that measures bias, in the order of the rows.

    Each is about the method that `debias` attaches by default if it was measured, otherwise about
    the paper's setting, otherwise about the first measured method. It is never about the best of
    several methods. Methods that use labels are ignored. Distances between texts are ignored if
    anything else was measured, since they do not measure a search, a classifier or images.

    Args:
        frame: the rows of a result from `readable`.
        measures: pairs (task, metric) to consider; all if empty.
    """
    rows = cast("list[ReadableRow]", list(frame.itertuples()))
    all_conclusions = []
    about_images = []
    for task in dict.fromkeys(row.task for row in rows if has_change(row)):
        block = [row for row in rows if row.task == task]
        candidates = leading_measure(block, measures)
        if not candidates:
            continue
        conclusion = conclude(block, leading_method(candidates))
        all_conclusions.append(conclusion)
        if get_metric(conclusion.metric, strict=False).reads != "texts":
            about_images.append(conclusion)
    return about_images or all_conclusions


def has_change(row: ReadableRow) -> bool:
    """Return whether a row contains a change from the model without a method."""
    return not math.isnan(row.change)


def leading_measure(block: Sequence[ReadableRow], measures: Measures) -> list[ReadableRow]:
    """Return the rows of a task's main measure of bias, for methods without labels.

    Args:
        block: the rows of the task.
        measures: pairs (task, metric) to consider; all if empty.
    """
    bias = []
    for row in block:
        is_chosen = not measures or (row.task, row.metric) in measures
        # Methods with labels use information that the others do not have.
        is_bias = row.kind == "bias" and row.is_summary and not row.uses_labels
        if is_chosen and is_bias and has_change(row):
            bias.append(row)
    if not bias:
        return []
    measured = [row.metric for row in bias]
    leading_metric = next((metric for metric in LEADS if metric in measured), measured[0])
    rows = [row for row in bias if row.metric == leading_metric]
    # With several subsets, use the last one, such as the unseen professions.
    return [row for row in rows if row.subset == rows[-1].subset]


def leading_method(rows: Sequence[ReadableRow]) -> ReadableRow:
    """Choose the method that a conclusion is about, regardless of the values.

    This is the method that `debias` attaches by default, otherwise the paper's setting, otherwise
    the first measured edit. The best of several methods or lambdas on the same images would be
    biased upwards.
    """
    # A conclusion is about an edit for this attribute; baselines follow in its sentence.
    edits = [row for row in rows if row.method not in BASELINES]
    edits = [row for row in edits if not row.is_off_target] or edits
    for method in ATTACHED:
        for row in edits:
            if row.method == method:
                return row
    settings_of_paper = [row for row in edits if row.paper]
    return [*settings_of_paper, *edits, *rows][0]


def conclude(block: Sequence[ReadableRow], row: ReadableRow) -> Conclusion:
    """Return the conclusion about the method and measure of a row.

    Args:
        block: the rows of the task, from `readable`; they contain the costs.
        row: a row of the measure.
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
    """Return notes on a method for the sentence of its conclusion."""
    notes = []
    if row.square_moved:
        notes.append(f"its square without the noise of few images {row.square_moved}")
    if row.paper:
        # The name of the method contains its lambda only if several were measured.
        lam = row.paper.partition(", ")[2]
        notes.append("the paper's setting" if lam in row.name else f"the paper's setting, {lam}")
    if row.is_identity:
        notes.append("no edit is attached")
    return notes


def _other_prior(block: Sequence[ReadableRow], row: ReadableRow) -> tuple[str, bool]:
    """Describe MaxSkew with the alternative prior, if the gallery is uneven.

    No ranking of an uneven gallery is fair by both priors. If their verdicts differ, reporting only
    one of them would be arbitrary.

    Returns:
        The description, and whether the verdict is the same; "" and True for even galleries.
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
    """Describe the cost of a method: first each utility with a clear loss, then the others."""
    costs = _utilities(block, row)
    if not costs:
        return "not measured"
    prices = []
    titles_without_loss = []
    for cost in costs:
        if _has_lost(cost):
            price = paid(cost.title, cost.before, cost.value, change_of(cost))
            is_bound = cost.metric.partition("@")[0] in UPPER_BOUNDS
            prices.append(f"{price}, an upper bound" if is_bound else price)
        else:
            titles_without_loss.append(cost.title)
    if titles_without_loss:
        prices.append(without_loss(list(dict.fromkeys(titles_without_loss))))
    return "; ".join(prices)


def _utilities(block: Sequence[ReadableRow], row: ReadableRow) -> list[ReadableRow]:
    """Return one row per utility of a method, with the largest loss over several k."""
    cost_of_metric: dict[str, ReadableRow] = {}
    for cost in block:
        is_cost = cost.kind == "utility" and cost.name == row.name
        if is_cost and cost.is_summary and has_change(cost):
            # With several subsets, use the last one, and keep that order.
            cost_of_metric.pop(cost.metric, None)
            cost_of_metric[cost.metric] = cost
    # Both averages are similar; prefer the one that weights groups as in the training data.
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
    """Return whether the loss of a utility is clear, and its size."""
    return _has_lost(cost), -cost.change if cost.better == "higher" else cost.change


def _has_lost(cost: ReadableRow) -> bool:
    """Return whether a change's entire interval lies on the worse side of zero."""
    if cost.better == "higher":
        return bool(cost.change_high < -FLOAT_NOISE)
    return bool(cost.change_low > FLOAT_NOISE)


def without_loss(measures: Sequence[str]) -> str:
    """Describe utilities without a clear loss: "no clear loss of recall@1 or AUC"."""
    return f"no clear loss of {listed_words(measures, 'or')}"


def paid(measure: str, before: float, after: float, change: Change) -> str:
    """Describe a utility's loss by its values and its change.

    Args:
        measure: utility name.
        before: value without the method.
        after: value with the method.
        change: the change with its interval: value, low, high.
    """
    return f"{measure} {from_to(before, after, change)}"


def change_of(row: ReadableRow) -> Change:
    """Return a row's change with its interval."""
    return row.change, row.change_low, row.change_high


def _paper(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Return the value and cost with the paper's setting.

    Such as "0.674 (orth-cali, λ = 1000; +0.484 [+0.410, +0.558]; cost: recall@1 -0.100)"; "" if it
    was not measured, or is the setting of the row.
    """
    if row.paper:
        return ""
    for candidate in block:
        is_same = (candidate.metric, candidate.subset) == (row.metric, row.subset)
        if is_same and candidate.paper and not candidate.is_off_target:
            losses = []
            for cost in _utilities(block, candidate):
                if _has_lost(cost):
                    losses.append(f"{cost.title} {cost.change:+{form_of_change(change_of(cost))}}")
            notes = f"{candidate.paper}; {candidate.moved}"
            if losses:
                notes += f"; cost: {', '.join(losses)}"
            form = form_of_figures(candidate.value, change_of(candidate))
            return f"{candidate.value:{form}} ({notes})"
    return ""


def _on_val(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Return each method's value at the lambda chosen on a validation split.

    Such as "0.818 [0.743, 0.881] with cali, λ = 400"; "" if none was chosen.
    """
    values = []
    for candidate in block:
        is_same = (candidate.metric, candidate.subset) == (row.metric, row.subset)
        if is_same and candidate.method.endswith(ON_VAL):
            method = candidate.method.removesuffix(ON_VAL)
            values.append(f"{candidate.number} with {method}, λ = {candidate.lam:g}")
    return "; ".join(values)


def _baseline(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Return a simple baseline's value, and whether it is better by the paired difference."""
    for baseline in block:
        is_same = (baseline.metric, baseline.subset) == (row.metric, row.subset)
        if is_same and baseline.method in BASELINES:
            words = f"{BASELINES[baseline.method]}, gives {baseline.number}"
            comparison = _compared_with_median(block, row)
            return f"{words}, {comparison}" if comparison else words
    return ""


def _compared_with_median(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Describe whether the threshold at the median is better than a method; "" if not measured."""
    for difference in block:
        is_measured = difference.metric == TO_MEDIAN and difference.subset == row.title
        if is_measured and difference.method == row.method:
            # Reverse the sign: the change from the method to the threshold.
            change = (-difference.value, -difference.high, -difference.low)
            verdict_of_threshold = verdict(change, row.better)
            if verdict_of_threshold == "equal":
                return "the same"
            if verdict_of_threshold == UNCLEAR:
                return f"no clear difference ({moved(change)})"
            return f"which is {verdict_of_threshold} ({moved(change)})"
    return ""


def _who_got_worse(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Describe which parts of a task got worse; "" if none did.

    Such as "accuracy in 1 of 4 parts, most in landbird/land: -0.093".
    """
    parts = [part for part in block if part.name == row.name and not part.is_summary]
    worse_parts = [part for part in parts if part.verdict == "worse"]
    if not worse_parts:
        return ""
    worst = max(worse_parts, key=lambda part: abs(part.change))
    measured = (worst.metric, worst.units)
    verdicts = [part.verdict for part in parts if (part.metric, part.units) == measured]
    return (
        f"{worst.title} in {verdicts.count('worse')} of {len(verdicts)} parts, most in"
        f" {worst.subset}: {worst.moved}"
    )


def worded(conclusion: Conclusion, notes: Sequence[str] = ()) -> str:
    """Return the sentences of a conclusion.

    Args:
        conclusion: the conclusion; its `sentence` is ignored.
        notes: notes in parentheses after the change and chance.
    """
    headline = conclusion.verdict
    if conclusion.enough is not None:
        headline += f" from {conclusion.n}, about {conclusion.enough:,} would do"
    measure = capitalised(conclusion.measure)
    if conclusion.subset:
        measure = measure.replace(f", {conclusion.subset}", f" ({conclusion.subset})")
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
    """Return the change that a conclusion is based on, and the chance level."""
    notes = [f"change {moved(conclusion.change)}"]
    chance = conclusion.chance
    low, high = conclusion.interval
    form = form_of_figures(conclusion.after, conclusion.change)
    if conclusion.chance_after not in (None, chance) and chance is not None:
        notes.append(f"chance {chance:{form}}, even assignment {conclusion.chance_after:{form}}")
    elif chance is not None and low <= chance <= high:
        notes.append(f"about chance, {chance:{form}}")
    elif chance is not None:
        notes.append(f"chance {chance:{form}}")
    return notes


def article_of_method(method: str) -> str:
    """Return a method's name for use in a sentence, such as "the default"."""
    return f"the {method}" if method == DEFAULT else method
