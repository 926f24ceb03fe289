"""Draw conclusions from results, for the terminal, pages, notebooks and comparisons."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel

from vldebias.measure.metric import TO_MEDIAN, get_metric
from vldebias.measure.rows import CHANCES, MEDIAN, NONE, ON_VAL
from vldebias.report.table import (
    CLEAR,
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
    setting_of,
    verdict,
    with_lam,
)
from vldebias.utils.phrases import capitalised, listed_words, quantity_of

if TYPE_CHECKING:
    import pandas as pd

# What we recommend for searches, models, models with reference images, and pipelines. A conclusion
# is about the first of these that was measured.
DEFAULT = "default"
RECOMMENDED = ("rerank", DEFAULT, "default+reference", "balanced-prompts")
# Preferred measures for conclusions, in this order. The first is corrected with human labels.
LEADS = (f"corrected_{GAP}", GAP)
# Variants of MaxSkew with a different prior, which are also reported if the gallery is uneven.
OTHER_PRIOR = {
    "max_skew_dataset": "against the gallery's own shares",
    "max_skew_uniform": "against even shares",
}
NO_VERDICT = "no verdict"
NOT_ATTACHED = "no edit is attached"
NOT_MEASURED = "not measured"
# Simple methods that do not edit the model. An edit is only worthwhile if it outperforms them.
BASELINES = {MEDIAN: "a threshold at the median, without any edit"}
# What methods are called in sentences. Others keep their names.
_WORDS_OF_METHOD = {
    "rerank": "re-ranking",
    "balanced-prompts": "balanced prompts",
    MEDIAN: "a threshold at the median",
}
# Utilities that overstate the loss, since they count equally good replacements as losses.
UPPER_BOUNDS = ("retained",)
UPPER_BOUND_LOSS = 0.1  # Smaller losses of such a utility are no reason to call a method costly.
WHICH_IS_BETTER = ", which is better"
UNCOUNTED = "too small a loss to count"
AT_A_COST = "better, at a cost"


class Conclusion(BaseModel, extra="forbid"):
    """A conclusion about a method's effect on bias in one task, and about its cost.

    Attributes:
        task: the task name.
        question: the question that the conclusion answers.
        metric: the name of the bias measure.
        subset: the part of the task, such as "unseen professions", or "" for the entire task.
        measure: the readable name of the bias measure.
        method: the readable name of the method.
        everyday: the name of the bias measure in everyday words.
        words: the method in everyday words, such as "an edit from text".
        before: the value of the measure without the method.
        after: the value of the measure with the method.
        interval: the 95% interval of `after`.
        change: the change and its interval, as (value, low, high).
        chance: the expected value for random rankings or images. None if unknown.
        chance_after: the chance level with the method, which differs if the method assigns values
            to images.
        cost: how the utilities change.
        paper: the value and cost with the paper's setting, or "" if this setting was not measured
            or is the one that the conclusion is about.
        on_val: the values for lambdas chosen on a validation split.
        baseline: the value of a baseline that does not edit the model, and how it compares.
        worse: the part of the task that got worse the most.
        other_prior: MaxSkew with the other prior, if the gallery is uneven.
        n: the number of resampled units, such as "20 professions".
        enough: the number of units that would be needed, if there are too few.
        verdict: "better", "better, at a cost" (see `cost_and_verdict`), "worse", "no clear change",
            "too few to tell", "nothing to remove" (the model is at chance), "no verdict" (the two
            priors disagree), "equal", or "changed" (if neither direction is better).
        sentence: the conclusion in words.
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
    chance: float | None = None
    chance_after: float | None = None
    cost: str = ""
    paper: str = ""
    on_val: str = ""
    baseline: str = ""
    worse: str = ""
    other_prior: str = ""
    n: str
    enough: int | None
    verdict: str
    sentence: str = ""
    everyday: str = ""
    words: str = ""

    @property
    def short(self) -> str:
        """Return the answer in one line of everyday words, with the metric's name behind them."""
        form = form_of_figures(self.after, self.change)
        low, high = self.interval
        line = f"{self.task}: {self.verdict}. {capitalised(self.everyday or self.measure)}"
        line += f" ({self.measure}):" if self.everyday else ":"
        line += f" {self.before:{form}} before, {self.after:{form}} [{low:{form}}, {high:{form}}]"
        line += f" with {self.words or self.method}"
        if self.chance is not None:
            line += f" (chance {self.chance:{form}})"
        if self.verdict == NO_VERDICT:
            line += "; the gallery is uneven, and the two priors disagree"
        if WHICH_IS_BETTER in self.baseline:
            line += f"; {self.baseline}"
        # The first cost without its interval: "accuracy 0.97 to 0.94 (-0.03 [-0.04, -0.01]); ...".
        costs = self.cost.split("; ")
        main_cost = re.sub(r" \([-+].*", "", costs[0])
        if main_cost == NOT_MEASURED:
            line += f"; cost {main_cost}"
        elif self.verdict == "better" and main_cost and not main_cost.startswith("no clear"):
            line += f"; {main_cost}, {UNCOUNTED}"
        elif main_cost:
            line += f"; {'' if main_cost.startswith('no clear') else 'cost: '}{main_cost}"
        # For searches, also say how many results the method replaced.
        for cost in costs[1:]:
            if cost.endswith(" stay"):
                line += f"; {cost}"
        return line


def conclusions(frame: pd.DataFrame, measures: Measures = ()) -> list[Conclusion]:
    """Return a conclusion for each task that measures bias, in the order of the rows.

    Each conclusion is about the method that `debias` uses by default. If it was not measured, the
    paper's setting is used, and otherwise the method that was measured first. The choice never
    depends on the values. Methods that use labels are ignored. Distances between prompts are
    ignored if anything else was measured, since they do not measure a search, a classifier or
    images.

    Args:
        frame: a result's rows from `readable`.
        measures: the (task, metric) pairs to consider. Default: all of them.
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


def method_of_conclusion(block: Sequence[ReadableRow]) -> str:
    """Return the name of the method that a task's conclusion is about.

    The name includes lambda if several were measured. If there are no methods, it is "none".

    Args:
        block: the rows of the task. If none of them measures bias, all of their methods count.
    """
    candidates = leading_measure(block, ()) or [row for row in block if has_change(row)]
    return leading_method(candidates).name if candidates else NONE


def has_change(row: ReadableRow) -> bool:
    """Return whether a row contains the change relative to the model without a method."""
    return not math.isnan(row.change)


def leading_measure(block: Sequence[ReadableRow], measures: Measures) -> list[ReadableRow]:
    """Return the rows with a task's main bias measure, for methods that do not use labels.

    Args:
        block: the rows of the task.
        measures: the (task, metric) pairs to consider. Default: all of them.
    """
    bias = []
    for row in block:
        is_chosen = not measures or (row.task, row.metric) in measures
        # Methods that use labels have information that the others lack.
        is_bias = row.kind == "bias" and row.is_summary and not row.uses_labels
        if is_chosen and is_bias and has_change(row):
            bias.append(row)
    if not bias:
        return []
    measured = [row.metric for row in bias]
    leading_metric = next((metric for metric in LEADS if metric in measured), measured[0])
    rows = [row for row in bias if row.metric == leading_metric]
    # If there are several subsets, use the last one, such as the unseen professions.
    return [row for row in rows if row.subset == rows[-1].subset]


def leading_method(rows: Sequence[ReadableRow]) -> ReadableRow:
    """Choose the method that a conclusion is about, without looking at the values.

    For searches, re-ranking has priority. For everything else, it is the method that `debias` uses
    by default. These are followed by the paper's setting and the edit that was measured first.
    Selecting the best of several methods or lambdas on the same images would overestimate its
    effect.
    """
    # Prefer edits for the measured attribute. Baselines are mentioned later in the sentence.
    edits = [row for row in rows if row.method not in BASELINES]
    edits = [row for row in edits if not row.is_off_target] or edits
    for method in RECOMMENDED:
        for row in edits:
            if row.method == method:
                return row
    settings_of_paper = [row for row in edits if row.paper]
    return [*settings_of_paper, *edits, *rows][0]


def conclude(block: Sequence[ReadableRow], row: ReadableRow) -> Conclusion:
    """Draw a conclusion about the method and measure in a row.

    Args:
        block: all rows of the task from `readable`, which also contain the costs.
        row: the method's row for the bias measure.
    """
    other_prior, agrees = _other_prior(block, row)
    _, verdict_with_cost = cost_and_verdict(block, row)
    part = f", {row.subset}," if row.subset else ""
    conclusion = Conclusion(
        task=row.task,
        question=f"What does {row.name} do to the {row.title}{part} of {row.task}?",
        metric=row.metric,
        subset=row.subset,
        measure=row.measure,
        method=row.name,
        everyday=get_metric(row.metric, strict=False).everyday,
        words=words_of_method(row),
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
        verdict=verdict_with_cost if agrees else NO_VERDICT,
    )
    return conclusion.model_copy(update={"sentence": worded(conclusion, _notes(row))})


def _notes(row: ReadableRow) -> list[str]:
    """Return notes about a method that are added to the sentence in parentheses."""
    notes = []
    if row.square_moved:
        notes.append(f"its square without the noise of few images {row.square_moved}")
    if row.paper:
        # The method's name only includes lambda if several values were measured.
        lam = row.paper.partition(", ")[2]
        notes.append("the paper's setting" if lam in row.name else f"the paper's setting, {lam}")
    if row.is_identity:
        notes.append(NOT_ATTACHED)
    return notes


def _other_prior(block: Sequence[ReadableRow], row: ReadableRow) -> tuple[str, bool]:
    """Describe MaxSkew with the other prior, if the gallery is uneven.

    If a gallery is uneven, no ranking is fair according to both priors. If their verdicts differ,
    reporting only one of them would be arbitrary.

    Returns:
        The description, and whether both verdicts agree. For even galleries, "" and True.
    """
    base, _, k = row.metric.partition("@")
    if not base.startswith("max_skew"):
        return "", True
    words_of_metric = {f"{name}@{k}": words for name, words in OTHER_PRIOR.items()}
    for counterpart in block:
        is_same = (counterpart.subset, setting_of(counterpart)) == (row.subset, setting_of(row))
        if is_same and counterpart.metric in words_of_metric and has_change(counterpart):
            values = from_to(counterpart.before, counterpart.value, change_of(counterpart))
            words = f"{words_of_metric[counterpart.metric]} {values}, {counterpart.verdict}"
            return words, counterpart.verdict == row.verdict
    return "", True


def _cost(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Describe a method's cost, starting with the utilities that clearly got worse.

    For searches, this ends with the share of the results that stay.
    """
    costs = _utilities(block, row)
    if not costs:
        return NOT_MEASURED
    prices = []
    names_of_change: dict[str, dict[str, None]] = {"loss of": {}, "rise in": {}}
    for cost in costs:
        everyday = get_metric(cost.metric, strict=False).everyday
        if _has_lost(cost):
            name = f"{everyday} ({cost.title})" if everyday else cost.title
            price = f"{name} {from_to(cost.before, cost.value, change_of(cost))}"
            is_bound = cost.metric.partition("@")[0] in UPPER_BOUNDS
            prices.append(f"{price}, an upper bound" if is_bound else price)
        else:
            change = "loss of" if cost.better == "higher" else "rise in"
            names_of_change[change][everyday or cost.title] = None
    for change, names in names_of_change.items():
        if names:
            prices.append(f"no clear {change} {listed_words(list(names), 'or')}")
    stay = [cost for cost in block if cost.metric.startswith("stay@") and cost.is_summary]
    stay = [cost for cost in stay if setting_of(cost) == setting_of(row)]
    if stay:
        least = min(stay, key=lambda cost: cost.value)
        k = least.metric.partition("@")[2]
        prices.append(f"{least.value:.0%} of the first {k} results stay")
    worse = [cost for cost in block if cost.metric.startswith("queries_worse@")]
    worse = [cost for cost in worse if setting_of(cost) == setting_of(row) and cost.value > 0]
    if worse:
        most = max(worse, key=lambda cost: cost.value)
        k = most.metric.partition("@")[2]
        prices.append(f"{most.value:.0%} of the queries get worse in the first {k} results")
    return "; ".join(prices)


def _utilities(block: Sequence[ReadableRow], row: ReadableRow) -> list[ReadableRow]:
    """Return a method's row for each utility, using the k with the largest loss."""
    cost_of_metric: dict[str, ReadableRow] = {}
    for cost in block:
        is_cost = cost.kind == "utility" and setting_of(cost) == setting_of(row)
        if is_cost and cost.is_summary and has_change(cost):
            # If there are several subsets, use the last one. Assigning to an existing key would
            # keep its old position, so remove the key first.
            cost_of_metric.pop(cost.metric, None)
            cost_of_metric[cost.metric] = cost
    # The averages are similar, so only report the one that weights groups as in the training data.
    if "average_reweighted" in cost_of_metric:
        cost_of_metric.pop("average", None)
    worst_of_base: dict[str, ReadableRow] = {}
    for metric, cost in cost_of_metric.items():
        base = metric.partition("@")[0]
        worst = worst_of_base.get(base)
        if worst is None or _loss(cost) > _loss(worst):
            worst_of_base[base] = cost
    return list(worst_of_base.values())


def cost_and_verdict(block: Sequence[ReadableRow], row: ReadableRow) -> tuple[str, str]:
    """Return a method's largest loss of utility for a table, and its verdict including the loss.

    Args:
        block: all rows of the task from `readable`.
        row: the row with the measured bias.

    Returns:
        The loss, such as "recall@1 -0.10 [-0.14, -0.06]", and the verdict. The verdict is "better,
        at a cost" if a utility clearly fell; retained hits must have fallen by `UPPER_BOUND_LOSS`.
    """
    costs = _utilities(block, row)
    losses = [cost for cost in costs if _has_lost(cost)]
    if not losses:
        return "no clear loss" if costs else "", row.verdict
    worst = max(losses, key=lambda cost: (_counts_as_cost(cost), _loss(cost)))
    cost = f"{worst.title} {worst.moved}"
    if row.verdict != "better":
        return cost, row.verdict
    return (cost, AT_A_COST) if _counts_as_cost(worst) else (f"{cost}, {UNCOUNTED}", row.verdict)


def with_costs(frame: pd.DataFrame, concluded: Sequence[Conclusion]) -> pd.DataFrame:
    """Add the column `cost`, and include the cost in the verdicts, using `cost_and_verdict`.

    Only bias measures have costs, in the parts of tasks that conclusions are about.

    Args:
        frame: a result's rows from `readable`.
        concluded: the conclusions that were drawn from these rows.
    """
    rows = cast("list[ReadableRow]", list(frame.itertuples()))
    rows_of_task: dict[str, list[ReadableRow]] = {}
    for row in rows:
        rows_of_task.setdefault(row.task, []).append(row)
    parts = {(conclusion.task, conclusion.subset) for conclusion in concluded}
    costs = []
    verdicts = []
    for row in rows:
        cost, verdict_of_row = "", row.verdict
        if row.kind == "bias" and (row.task, row.subset) in parts:
            cost, verdict_of_row = cost_and_verdict(rows_of_task[row.task], row)
        costs.append(cost)
        verdicts.append(verdict_of_row)
    return frame.assign(cost=costs, verdict=verdicts)


def shared_cost(
    block: Sequence[ReadableRow], rows: Sequence[ReadableRow]
) -> list[tuple[ReadableRow, ReadableRow]]:
    """Pair each method with its row for one utility, the one with any method's largest loss.

    Args:
        block: all rows of the task from `readable`.
        rows: the rows with the measured bias, one per method.
    """
    costs = [cost for row in rows for cost in _utilities(block, row)]
    if not costs:
        return []
    worst = max(costs, key=lambda cost: (_counts_as_cost(cost), _loss(cost)))
    pairs = []
    for row in rows:
        for cost in block:
            is_same = (cost.metric, cost.subset) == (worst.metric, worst.subset)
            is_same = is_same and setting_of(cost) == setting_of(row)
            if is_same and has_change(cost) and has_change(row):
                pairs.append((row, cost))
    return pairs


def _counts_as_cost(loss: ReadableRow) -> bool:
    """Return whether a clear loss is large enough to be part of the verdict."""
    is_bound = loss.metric.partition("@")[0] in UPPER_BOUNDS
    return not is_bound or abs(loss.change) > UPPER_BOUND_LOSS


def _loss(cost: ReadableRow) -> tuple[bool, float]:
    """Return a key for sorting utilities by whether their loss is clear, and then by its size."""
    return _has_lost(cost), -cost.change if cost.better == "higher" else cost.change


def _has_lost(cost: ReadableRow) -> bool:
    """Return whether the entire interval of a utility's change is on the worse side of zero."""
    if cost.better == "higher":
        return bool(cost.change_high < -FLOAT_NOISE)
    return bool(cost.change_low > FLOAT_NOISE)


def change_of(row: ReadableRow) -> Change:
    """Return a row's change and its interval."""
    return row.change, row.change_low, row.change_high


def _paper(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Describe the value and cost with the paper's setting.

    Returns:
        A string such as "0.674 (orth-cali, λ = 1000; +0.484 [+0.410, +0.558]; cost: recall@1
        -0.100)", or "" if this setting was not measured or is the one in `row`.
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
    """Describe each method's value with the lambda that was chosen on a validation split.

    Returns:
        A string such as "0.818 [0.743, 0.881] with cali, λ = 400", or "" if no lambda was chosen.
    """
    values = []
    for candidate in block:
        is_same = (candidate.metric, candidate.subset) == (row.metric, row.subset)
        if is_same and candidate.method.endswith(ON_VAL):
            method = candidate.method.removesuffix(ON_VAL)
            values.append(f"{candidate.number} with {with_lam(method, candidate.lam)}")
    return "; ".join(values)


def _baseline(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Describe the value of a simple baseline, or of a better method than the recommended one.

    A method only counts as better if the two intervals do not overlap, because the best of several
    methods seems better than it is. Methods that use labels have information that others lack.
    """
    words = ""
    better: list[ReadableRow] = []
    seen = set()
    for other in block:
        is_same = (other.metric, other.subset) == (row.metric, row.subset)
        # The first row of a method is its own setting; others belong to a sweep over lambda.
        if not is_same or other.method in seen:
            continue
        seen.add(other.method)
        if other.method in BASELINES:
            words = f"{BASELINES[other.method]}, gives {other.number}"
            comparison = _compared_with_median(block, row)
            words = f"{words}, {comparison}" if comparison else words
            continue
        if row.method not in RECOMMENDED or other.uses_labels or other.method in CHANCES:
            continue
        is_higher = other.better == "higher" and other.low > row.high
        is_lower = other.better == "lower" and other.high < row.low
        if is_higher or is_lower:
            better.append(other)
    if better and WHICH_IS_BETTER not in words:
        best = max(better, key=lambda other: abs(other.value - row.value))
        return f"{words_of_method(best)} gives {best.number}{WHICH_IS_BETTER}"
    return words


def _compared_with_median(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Describe how a threshold at the median compares with a method, or "" if not measured."""
    for difference in block:
        is_measured = difference.metric == TO_MEDIAN and difference.subset == row.title
        if is_measured and difference.method == row.method:
            # Reverse the sign to get the change from the method to the threshold.
            change = (-difference.value, -difference.high, -difference.low)
            verdict_of_threshold = verdict(change, row.better)
            if verdict_of_threshold == "equal":
                return "the same"
            if verdict_of_threshold == UNCLEAR:
                return f"no clear difference ({moved(change)})"
            return f"which is {verdict_of_threshold} ({moved(change)})"
    return ""


def _who_got_worse(block: Sequence[ReadableRow], row: ReadableRow) -> str:
    """Describe which parts of a task got worse.

    Returns:
        A string such as "accuracy in 1 of 4 parts, most in landbird/land: -0.093", or "" if no part
        got worse.
    """
    parts = []
    for part in block:
        if setting_of(part) == setting_of(row) and not part.is_summary:
            parts.append(part)
    worse_parts = [part for part in parts if part.verdict == "worse"]
    if not worse_parts:
        return ""
    worst = max(worse_parts, key=lambda part: abs(part.change))
    measured = (worst.metric, worst.units)
    verdicts = [part.verdict for part in parts if (part.metric, part.units) == measured]
    part_name = worst.subset.rstrip(".")
    if re.match(r"[A-Z]\w* ", part_name):  # a query or a prompt: "A photo of a lumberjack."
        part_name = f'"{part_name}"'
    return (
        f"{worst.title} in {verdicts.count('worse')} of {len(verdicts)} parts, most in"
        f" {part_name}: {worst.moved}"
    )


def worded(conclusion: Conclusion, notes: Sequence[str] = ()) -> str:
    """Express a conclusion in sentences.

    Args:
        conclusion: the conclusion, whose own `sentence` is ignored.
        notes: additional notes to show in parentheses after the change and the chance level.
    """
    headline = conclusion.verdict
    if conclusion.enough is not None:
        headline += f" from {conclusion.n}, about {conclusion.enough:,} would do"
    measure = capitalised(conclusion.measure)
    if conclusion.everyday:
        measure = f"{capitalised(conclusion.everyday)} ({conclusion.measure})"
    elif conclusion.subset:
        measure = measure.replace(f", {conclusion.subset}", f" ({conclusion.subset})")
    form = form_of_figures(conclusion.after, conclusion.change)
    before = f"{conclusion.before:{form}}"
    after = f"{conclusion.after:{form}}"
    movement = f"goes from {before} to {after}"
    if before == after:
        movement = f"stays at {after}"
    elif conclusion.verdict in (*CLEAR, AT_A_COST, "changed"):
        verb = "rises" if conclusion.after > conclusion.before else "falls"
        movement = f"{verb} from {before} to {after}"
    words = f"{conclusion.task}: {headline}. {measure} {movement}"
    evidence = "; ".join([*_evidence(conclusion), *notes])
    words += f" with {conclusion.words or conclusion.method} ({evidence})"
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
    """Describe the change that a conclusion is based on, and the chance level."""
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


def words_of_method(row: ReadableRow) -> str:
    """Return what the method of a row is in everyday words, such as "re-ranking".

    The default is named after what it does in this task.
    """
    if row.method not in (DEFAULT, "default+reference"):
        return _WORDS_OF_METHOD.get(row.method, row.name)
    if row.is_identity:
        return "nothing attached"
    if row.is_assigned:
        return "balanced prompts"
    if row.method == DEFAULT:
        return "an edit from text"
    is_classifier = row.metric.startswith(("worst_group", "gap", "average"))
    return f"{'a boundary' if is_classifier else 'an edit'} from your images"


def title_of_method(row: ReadableRow) -> str:
    """Return the title of a row in a table of methods, such as "edit from text"."""
    return re.sub("^an? ", "", words_of_method(row)) if row.method != NONE else row.name
