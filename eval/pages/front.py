"""Write the first table in the README, and the table in `docs/explanation/results.md`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from eval.pages.methods import GENDER_INDEXES
from eval.tables import paragraph, read, table
from vldebias.methods.declared import DECLARED
from vldebias.report.table import readable

GAP = "discrepancy"
COUNTED = ("professions", "jobs", "images each", "queries", "images")  # keys of `n`


@dataclass(frozen=True)
class Line:
    """A line in the table, with a task, its solution, the measure of bias, and the costs.

    Attributes:
        how: The call or command, in plain words.
        row: The name of the method in the result.
        costs: A mapping from metrics to their names in the table.
    """

    task: str
    how: str
    result: str
    block: str
    metric: str
    costs: Mapping[str, str]
    row: str
    subset: str = ""

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Return the rows of the task, by method and metric."""
        frame = readable(read(self.result))
        rows = frame[(frame.task == self.block) & (frame.subset == self.subset)]
        return rows.set_index(["method", "metric"], drop=False)

    @property
    def bias(self) -> Any:
        """Return the row of the measure of bias."""
        return self.rows.loc[self.row, self.metric]

    @property
    def main_cost(self) -> tuple[str, Any]:
        """Return the name of the first cost, and its row."""
        metric, title = next(iter(self.costs.items()))
        return title, self.rows.loc[self.row, metric]

    def cells(self) -> list[str]:
        """Return the cells of the line, with the intervals of values rather than changes."""
        bias = self.bias
        before = f"{bias.title} {value_and_interval(self.rows.loc['none', self.metric])}"
        after = value_and_interval(bias)
        if bias.verdict == "worse":
            after += ", **worse**"
        elif bias.verdict not in ("", "better"):
            after += f", {bias.verdict}"
        chance = "-"
        if not np.isnan(bias.chance):
            even = f", even assignment {bias.chance_after:.2f}" if bias.is_assigned else ""
            chance = f"{bias.chance:.2f}{even}"
        return [f"{self.task}: {self.how}", before, after, chance, self.paid(), _n(bias)]

    def brief(self) -> list[str]:
        """Return the cells of the line in the README: one cost, and no chance level."""
        bias = self.bias
        title, cost = self.main_cost
        text = f"{title} {cost.before:.2f} to {cost.value:.2f}"
        if cost.verdict != "worse":
            text = f"no loss found: {text}"
        elif cost.high - cost.low > 0.1:  # a narrower interval would not change what readers think
            text += f" [{cost.low:.2f}, {cost.high:.2f}]"
        before = f"{bias.title} {bias.before:.2f}"
        task = f"{self.task} ({_n(bias)}): {self.how}"
        return [task, before, value_and_interval(bias), text]

    def paid(self) -> str:
        """Format each cost before and after, with its interval if the cost increased."""
        costs = []
        for metric, title in self.costs.items():
            if (self.row, metric) not in self.rows.index:
                continue
            cost = self.rows.loc[self.row, metric]
            text = f"{title} {cost.before:.2f} to {cost.value:.2f}"
            if np.isnan(cost.before):  # the cost is relative to the hits before the edit
                text = f"{title} {cost.value:.2f}"
            if cost.verdict == "worse":
                text += f" [{cost.low:.2f}, {cost.high:.2f}]"
            costs.append(text)
        return ", ".join(costs)


def _n(row: Any) -> str:
    """Return the numbers of images and professions, or of other cases, behind a row."""
    counts = json.loads(row.counts)
    return ", ".join(f"{counts[key]:,} {key}" for key in COUNTED if key in counts)


def value_and_interval(row: Any) -> str:
    """Format the value of a row with its interval, and a warning if the interval is too narrow."""
    few = f" ({row.few})" if row.few else ""
    return f"{row.value:.2f} [{row.low:.2f}, {row.high:.2f}]{few}"


PEOPLE = ("wordings", "wordings gender", GAP, {"recognised": "subject accuracy"})
SEARCH = (
    "rivals_real",
    "celeba professions",
    "max_skew@50",
    {"retained@50": "retained hits"},  # these photographs have no captions
)
BIRDS = (
    "quickstart",
    "birds",
    "worst_group",
    {
        "average_reweighted": "average accuracy at the training frequencies",
        "average": "with groups as in the test set",
        "worst_group_auc": "worst-group AUC",
    },
)
AGES = ("rivals_real", "celeba age", "worst_group", {"average": "average accuracy"})
EVEN, UNEVEN = (f"index: portraits, women {share}%" for share in (50, 20))
WRITTEN = "professions, as people write them"
COUNTED_BY_ONE = (
    "stated_values",
    "professions",
    "gap_from_half_women",
    {"recognised": "visible profession"},
)
STEERED = ("steer_models", "miniature", GAP, {"recognised": "subject accuracy"})
GENDER = "attribute = gender; split = 1"
PACKAGED = (
    "quickstart",
    "photographs gender",
    "max_skew@20",
    {"retained@20": "retained hits", "stay@20": "results that stay"},
)
WINDOW = (
    Line(
        "people, everyday prompts, small model",
        "balanced prompts (default)",
        *PEOPLE,
        "balanced-prompts",
        WRITTEN,
    ),
    Line(
        "Stable Diffusion 3.5, public images counted by one person who knew the prompt",
        "female and male stated in turn",
        *COUNTED_BY_ONE,
        "balanced-prompts",
    ),
    Line(
        "people, everyday prompts, small model",
        "the paper's projection, `cali`",
        *PEOPLE,
        "cali",
        WRITTEN,
    ),
    Line(
        "people, guidance 7.5, small model",
        "unchanged prompts, `cross-attention`",
        *STEERED,
        "cross-attention",
        GENDER,
    ),
    Line(
        "searching CelebA, even gallery",
        "the query edited, `difference+equalise`",
        *SEARCH,
        DECLARED["difference+equalise"].title,
    ),
    Line(
        "searching the packaged photographs",
        "`rerank`",
        *PACKAGED,
        "rerank",
    ),
    Line(
        "classifying CelebA by age",
        "edit from text (default)",
        *AGES,
        "difference of the values",
    ),
    Line("classifying cartoon birds", "edit from text (default)", *BIRDS, "default"),
    Line(
        "classifying cartoon birds", "no edit, threshold at the median score", *BIRDS, "none@median"
    ),
)
# The README has these lines and that of `_searched`.
FRONT = (WINDOW[0], WINDOW[1], WINDOW[7])


def front() -> str:
    """Write the table in the README, with its source."""
    files = ", ".join(f"`eval/results/{line.result}.json`" for line in FRONT)
    head = ["task and method", "before", "after", "main cost"]
    people, real, birds = (line.brief() for line in FRONT)
    rows = table(head, people, real, _searched(), birds)
    return f"{rows}From {files}, `eval/results/search_index.json`.\n\n"


def _searches() -> dict[str, dict[str, float]]:
    """Return each metric of searches by index, for the first 50 results, the worst index last."""
    found: dict[str, dict[str, float]] = {}
    for row in read("search_index").rows:
        is_index = row.task.startswith(GENDER_INDEXES) and row.subset == "k = 50"
        if row.method == "queries.search" and is_index:
            found.setdefault(row.task, {})[row.metric] = row.value
    return dict(sorted(found.items(), key=lambda item: item[1]["left"]))


def _searched() -> list[str]:
    """Return the cells for searches of large indexes, with the worst one for gender."""
    searches = _searches()
    worst = list(searches)[-1]
    even_left, uneven_left, worst_left = (searches[i]["left"] for i in (EVEN, UNEVEN, worst))
    even_stay, uneven_stay, worst_stay = (searches[i]["stay"] for i in (EVEN, UNEVEN, worst))
    return [
        "searching 100,000 portraits (blends of three photographs): `queries.search`",
        "one group's surplus: 100%",
        f"{even_left:.0%} left if half of the index shows women, {uneven_left:.0%} if a fifth"
        f" does, {worst_left:.0%} in the worst of {len(searches)} indexes"
        f" ({worst.partition(': ')[2]})",
        f"{even_stay:.0%}, {uneven_stay:.0%} and {worst_stay:.0%} of the first 50 results stay;"
        f" {searches[EVEN]['worse']:.0%}, {searches[UNEVEN]['worse']:.0%} and"
        f" {searches[worst]['worse']:.0%} of the queries get worse",
    ]


def window() -> str:
    """Write all lines, with benefits and costs."""
    head = ["task", "before", "after", "chance", "cost", "n"]
    return table(head, *(line.cells() for line in WINDOW))


# The values of two measures without a method: the measure, the rows of a result, and the case.
CASES: tuple[tuple[str, str, tuple[str, ...], str, str, str], ...] = (
    (
        "gap from even shares, small model",
        "wordings",
        ("wordings gender",),
        WRITTEN,
        GAP,
        'everyday prompts, such as "a nurse in a park"',
    ),
    (
        "",
        "quickstart",
        ("generation gender",),
        "unseen professions",
        GAP,
        '"A photo of a nurse."',
    ),
    (
        "",
        "steer_models",
        ("miniature",),
        GENDER,
        GAP,
        '"A photo of a nurse.", guidance 7.5 instead of 3, ten professions',
    ),
    (
        "MaxSkew, CelebA",
        "rivals_real",
        ("celeba professions",),
        "",
        "max_skew@50",
        "the first 50 of about 435 images, ten splits",
    ),
    (
        "",
        "photographs",
        ("photographs: CelebA, gender, draw 0", "photographs: CelebA, gender, draw 1"),
        "professions",
        "max_skew",
        "the first twentieth of 554 and of 586 images",
    ),
    (
        "",
        "closed_form",
        ("CLIP ViT-B/32, CelebA",),
        "",
        "max_skew@50",
        "the first 50 of 804 images, 32 queries",
    ),
)


def cases() -> str:
    """Write what two measures are without a method, by prompts, images and settings."""
    lines = [["measure", "without a method", "case", "file in `eval/results`"]]
    for measure, name, tasks, subset, metric, case in CASES:
        result = read(name)
        values = [result.row(task, metric, "none", subset=subset).value for task in tasks]
        lines.append([measure, f"{np.mean(values):.2f}", case, f"`{name}.json`"])
    return table(*lines)


def needs_of_commands() -> str:
    """Write the memory and disk space that the two commands need, based on committed sizes."""
    (size,) = [
        row.value for row in read("install_sizes").rows if (row.metric, row.method) == ("MB", "all")
    ]
    return paragraph(
        f"The first time, both download {size / 1000:.0f} GB of packages, most of it torch"
        " (`eval/results/install_sizes.json`).",
    )
