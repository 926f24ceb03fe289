"""What README.md shows of the committed results, and the tables of results that no experiment here makes."""

from __future__ import annotations

from dataclasses import dataclass

from eval.tables import fills, paragraph, read, rows_in, span, table
from vldebias.evaluation.report import verdict
from vldebias.evaluation.result import Measurement


# (task, metric) of wholes, (task, metric, subset) of parts
@dataclass(frozen=True)
class Line:
    """A line of the README's table: what is done and how, its measure of bias, and what that cost."""

    task: str
    how: str  # in plain words, with what a user calls it
    result: str
    block: str
    measure: tuple[str, str]  # metric, and what the table calls it
    cost: tuple[str, str]
    row: str  # the method of the result
    subset: str = ""


DRAWN = ("wordings", "wordings gender", ("discrepancy", "parity gap"), ("recognised", "subject accuracy"))
SEARCH = ("rivals_real", "celeba professions", ("max_skew@50", "MaxSkew@50"), ("query_cosine", "self-similarity"))
BIRDS = ("quickstart", "birds", ("worst_group", "worst group"), ("average_reweighted", "average accuracy"))
AGES = ("rivals_real", "celeba age", ("worst_group", "worst group"), ("average", "average accuracy"))
WINDOW = (
    Line("generating people", "default, `balanced-prompts`", *DRAWN, "balanced-prompts",
         "professions, as people write them"),
    Line("generating people", "the paper's projection, `cali`", *DRAWN, "cali", "professions, as people write them"),
    Line("searching photographs", "texts alone, default", *SEARCH, "difference of the values"),
    Line("searching photographs", "unlabelled photographs, `reference=`", *SEARCH,
         "calibration and equalised image means, lam 100"),
    Line("classifying photographs by age", "texts alone, default", *AGES, "difference of the values"),
    Line("classifying birds", "texts alone, default", *BIRDS, "default"),
    Line("classifying birds", "unlabelled pictures, `reference=`", *BIRDS, "cali+equalise"),
)  # fmt: skip


def rows_of_line(line: Line) -> tuple[Measurement, Measurement, tuple[float, float]]:
    """The measure of bias before and after, and the cost before and after."""
    rows = rows_in(read(line.result), line.block, line.subset)
    (metric, _), (use, _) = line.measure, line.cost
    return rows["none", metric], rows[line.row, metric], (rows["none", use].value, rows[line.row, use].value)


@fills("README.md", "window")
def window_block() -> str:
    """What is gained and what it costs, a line each; the intervals are those of the values."""
    lines = [["task", "before", "after", "cost"]]
    for line in WINDOW:
        none, bias, (before, after) = rows_of_line(line)
        values = [f"{line.measure[1]} {span(none, '.2f')}", span(bias, ".2f")]
        values[1] += {"better": "", "worse": ", **worse**"}.get(verdict(bias.change, bias.better), ", no clear change")
        lines.append([f"{line.task}: {line.how}", *values, f"{line.cost[1]} {before:.2f} to {after:.2f}"])
    return table(*lines)


@fills("README.md", "needs")
def needs_block() -> str:
    """What the two commands need, by the committed sizes."""
    (size,) = [row.value for row in read("install_sizes").rows if (row.metric, row.method) == ("MB", "all")]
    return paragraph(
        "Both need make, python 3.11 or newer, and once a network, from which they fetch packages that fill",
        f"{size / 1000:.0f} GB, most of it torch (`eval/results/install_sizes.json`). Nothing else is fetched.",
    )
