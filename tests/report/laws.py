"""State the rules for conclusions, independently of the code that draws them."""

import re
from typing import Any

from vldebias.measure.metric import get_metric
from vldebias.report.conclusion import Conclusion
from vldebias.report.page import front_groups, front_rows
from vldebias.report.result import Result
from vldebias.report.table import readable

# `debias` attaches these if no method is named.
RECOMMENDED = ("rerank", "default", "default+reference", "balanced-prompts")
REFERENCES = ("none", "none@median", "random", "even assignment")


def violated_rules(result: Result) -> list[str]:
    """Describe the rules that the conclusions of a result violate, or return []."""
    frame = readable(result)
    conclusions = result.conclusions()
    broken = []
    for conclusion in conclusions:
        rows = list(frame[frame.task == conclusion.task].itertuples())
        messages = [
            *_wrong_method_in_headline(conclusion, rows),
            *_lambda_tuned_on_measured_images(conclusion, rows),
            *_missing_costs(conclusion, rows),
            *_unsupported_baselines(conclusion, rows),
        ]
        broken += [f"{conclusion.task}: {message}" for message in messages]
    for group in front_groups(front_rows(frame, conclusions)):
        broken += _unexpected_rows(group)
    return broken


def _measured(conclusion: Conclusion, rows: list[Any]) -> list[Any]:
    """Return the rows of methods that a conclusion may be about, in the order in which they were
    measured."""
    measured = []
    for row in rows:
        is_same = (row.metric, row.subset) == (conclusion.metric, conclusion.subset)
        if is_same and row.method not in REFERENCES and not row.uses_labels and row.moved:
            measured.append(row)
    return [row for row in measured if not row.is_off_target] or measured


def _wrong_method_in_headline(conclusion: Conclusion, rows: list[Any]) -> list[str]:
    """Check that a headline is about what `debias` attaches by default, otherwise the paper's
    setting, otherwise the first method, regardless of their results."""
    measured = _measured(conclusion, rows)
    if not measured:
        return []
    attached = [row for name in RECOMMENDED for row in measured if row.method == name]
    papers = [row for row in measured if row.paper]
    expected = [*attached, *papers, *measured][0]
    messages = []
    if conclusion.method != expected.name:
        messages.append(f"about {conclusion.method}, expected {expected.name}")
    if papers and "the paper's setting" not in re.split("With λ|Cost:", conclusion.sentence)[0]:
        messages.append("the paper's setting is not in the first sentence")
    return messages


def _lambda_tuned_on_measured_images(conclusion: Conclusion, rows: list[Any]) -> list[str]:
    """Check that a lambda in a sentence is the method's own, the paper's, or was selected on
    val."""
    before, _, rest = conclusion.sentence.partition("With λ chosen on val:")
    on_val, _, after = rest.partition(" Cost:")
    sentence = before + after
    allowed = {row.paper.partition("λ = ")[2] for row in rows if row.paper}
    first_row_of_method: dict[str, Any] = {}
    for row in _measured(conclusion, rows):
        first_row_of_method.setdefault(row.method, row)
    allowed |= {f"{row.lam:g}" for row in first_row_of_method.values()}
    named = set(re.findall(r"λ = ([\d.e+]*\d)", sentence))
    messages = [f"says λ = {lam}, chosen on nothing" for lam in named - allowed]
    chosen = {f"{row.lam:g}" for row in rows if row.method.endswith("@val")}
    for lam in re.findall(r"λ = ([\d.e+]*\d)", on_val):
        if lam not in chosen:
            messages.append(f"says that λ = {lam} was chosen on val")
    return messages


def _missing_costs(conclusion: Conclusion, rows: list[Any]) -> list[str]:
    """Check that every utility whose interval shows a loss is listed as a cost, and that every
    other utility is listed as having no clear loss."""
    utilities: dict[str, Any] = {}
    for row in rows:
        is_utility = row.kind == "utility" and row.is_summary and row.moved
        if is_utility and row.name == conclusion.method:
            utilities[row.metric] = row
    if "average_reweighted" in utilities:
        utilities.pop("average", None)
    losers = []
    for row in utilities.values():
        is_higher_better = row.better == "higher"
        if row.change_high < -1e-9 if is_higher_better else row.change_low > 1e-9:
            losers.append(row)
    lost, _, kept = conclusion.cost.partition("no clear ")
    names_without_loss = re.split(", | or |; ", re.sub("no clear |loss of |rise in ", "", kept))
    messages = []
    for row in losers:
        base = row.title.partition("@")[0]
        if base not in lost:
            messages.append(f"{row.title} lost {row.moved}, and is no cost")
        everyday = get_metric(row.metric, strict=False).everyday or row.title
        if row.verdict == "nothing to remove" or everyday in names_without_loss:
            messages.append(f"{row.title} lost {row.moved}, and is called no loss")
    lost_bases = {row.title.partition("@")[0] for row in losers}
    for row in utilities.values():
        if row.title.partition("@")[0] not in lost_bases and f"{row.title} " in lost:
            messages.append(f"{row.title} did not lose, and is a cost")
    return messages


def _unsupported_baselines(conclusion: Conclusion, rows: list[Any]) -> list[str]:
    """Check that a baseline is only called better or worse if the interval of its paired difference
    excludes zero, and another method only if the intervals do not overlap."""
    word = re.search("which is (better|worse)", conclusion.baseline)
    if word is None:
        return []
    low, high = conclusion.interval
    for row in _measured(conclusion, rows):
        if row.number in conclusion.baseline and row.method != "none@median":
            return [] if row.low > high or row.high < low else [f"{row.method}: overlaps"]
    methods = {row.method for row in rows if row.name == conclusion.method}
    for row in rows:
        is_difference = row.metric == "difference_to_median" and row.method in methods
        if is_difference and row.subset in conclusion.measure:
            is_clear = row.low > 0 or row.high < 0
            return [] if is_clear else [f"{conclusion.baseline}: the interval holds zero"]
    return [f"{conclusion.baseline}: no difference was measured"]


def _unexpected_rows(group: dict[str, Any]) -> list[str]:
    """Check that the first table has each method at its own setting and at the paper's."""
    messages = []
    seen = set()
    for row in group["rows"]:
        if row.method in seen and not row.paper:
            messages.append(f"{row.task}: {row.name} is in the first table by no rule")
        seen.add(row.method)
    return messages
