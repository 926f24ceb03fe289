"""Write the first table in the README, and the tables by job in `docs/explanation/results.md`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from eval.experiments.first_plot import CALI, RANDOM, STAY, SURPLUS, TRUE_LABELS, WORSE, K
from eval.experiments.stated_values import LABELLED
from eval.first_plot import SHOWN, of_images
from eval.pages.methods import GENDER_INDEXES
from eval.pages.prompts import read_readings
from eval.pages.sources import headlines
from eval.pages.training import ADVISED, INFO_NCE, RECALL, found
from eval.tables import paragraph, read, rows_in, table
from vldebias.methods.declared import DECLARED
from vldebias.report.table import readable

GAP = "discrepancy"
WITH_LABELS = "classification, 20 labelled images: faces, CLIP ViT-B/32"
TOY = "the toy model (`miniature`)"
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

    def cells(self) -> list[str]:
        """Return the cells of the line, with the intervals of values rather than changes."""
        bias = self.bias
        before = f"{bias.title} {value_and_interval(self.rows.loc['none', self.metric])}"
        if not np.isnan(bias.chance):
            before += f"<br>chance: {bias.chance:.2f}"
            if bias.is_assigned:
                before += f", even assignment: {bias.chance_after:.2f}"
        after = value_and_interval(bias)
        if bias.verdict == "worse":
            after += ", **worse**"
        elif bias.verdict not in ("", "better"):
            after += f", {bias.verdict}"
        return [f"{self.how}: {self.task} ({_n(bias)})", before, f"{after}<br>{self.paid()}"]

    def brief(self) -> list[str]:
        """Return the cells of the line in the README: one cost, and no chance level."""
        bias = self.bias
        metric, title = next(iter(self.costs.items()))
        cost = self.rows.loc[self.row, metric]
        text = f"{title} {cost.before:.2f} to {cost.value:.2f}"
        if cost.verdict != "worse":
            text = f"{'no loss' if cost.verdict == 'better' else 'no clear loss'}: {text}"
        else:
            text = f"cost: {text}"
            if cost.high - cost.low > 0.1:  # a narrower one would not change what readers think
                text += f" [{cost.low:.2f}, {cost.high:.2f}]"
        before = f"{bias.title} {bias.before:.2f}"
        task = f"{self.how}: {self.task} ({_n(bias)})"
        return [task, before, f"{value_and_interval(bias)}<br>{text}"]

    def paid(self) -> str:
        """Format the costs with their intervals, and what was not found to get worse."""
        costs = []
        kept = []
        gains = []
        for metric, title in self.costs.items():
            if (self.row, metric) not in self.rows.index:
                continue
            cost = self.rows.loc[self.row, metric]
            text = f"{title} {cost.before:.2f} to {cost.value:.2f}"
            if cost.verdict == "worse":
                costs.append(f"{text} [{cost.low:.2f}, {cost.high:.2f}]")
            elif cost.better == "neither":  # replaced results are a cost, but not a loss of quality
                costs.append(text)
            elif cost.verdict == "better":
                gains.append(text)
            else:
                kept.append(text)
        parts = {"cost": costs, "no clear loss": kept, "no loss": gains}
        return "<br>".join(f"{name}: {', '.join(part)}" for name, part in parts.items() if part)


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
        "average": "average accuracy with the test set's groups",
        "worst_group_auc": "worst-group AUC",
    },
)
AGES = ("rivals_real", "celeba age", "worst_group", {"average": "average accuracy"})
EVEN = "index: portraits, women 50%"
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
WINDOW = {
    "generating": (
        Line(
            "people in everyday prompts, small model",
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
            "people in everyday prompts, small model",
            "the paper's projection, `cali`",
            *PEOPLE,
            "cali",
            WRITTEN,
        ),
        Line(
            "people, guidance 7.5, small model",
            "`cross-attention`, with unchanged prompts",
            *STEERED,
            "cross-attention",
            GENDER,
        ),
    ),
    "searching": (
        Line("the packaged photographs", "re-ranking (`rerank`)", *PACKAGED, "rerank"),
        Line(
            "CelebA, even gallery",
            "edit of the query (`difference+equalise`)",
            *SEARCH,
            DECLARED["difference+equalise"].title,
        ),
    ),
    "classifying": (
        Line("classifying cartoon birds", "edit from text (default)", *BIRDS, "default"),
        Line(
            "classifying cartoon birds",
            "no edit, threshold at the median score",
            *BIRDS,
            "none@median",
        ),
        Line(
            "classifying CelebA by age",
            "edit from text (default)",
            *AGES,
            "difference of the values",
        ),
    ),
}
"""A mapping from jobs to the lines of their tables, with the default first."""


def front() -> str:
    """Write the table in the README: each job with a real model, and with the toy model."""
    head = ["job", "with a real model", f"with {TOY}"]
    rows = (_generate(), _prompts(), _search(), _classify(), _train(), _project())
    return table(head, *rows)


def _generate() -> list[str]:
    """Write how even generated images are, and the visible subject as the cost."""
    images = of_images()
    one_gender = [sum(row[i] in (0, 1) for row in images) for i in (0, 1)]
    shares: dict[str, list[float]] = {"none": [], "balanced-prompts": []}
    for row in read("wordings").rows:
        if row.metric == "share" and "as people write it" in row.subset and row.method in shares:
            shares[row.method].append(max(row.value, 1 - row.value))
    before, after = (np.mean(values) for values in shares.values())
    toy = rows_in(read("wordings"), "wordings gender", WRITTEN)
    recognised = [toy[method, "recognised"].value for method in shares]
    return [
        "Generate, gender stated in turn",
        f"professions with one gender only: {one_gender[0]} of {len(images)} before,"
        f" {one_gender[1]} after (picture)",
        f"an everyday prompt: {before:.0%} of one gender before, {after:.0%} after<br>no loss: the"
        f" subject is recognised in {recognised[0]:.0%} before, {recognised[1]:.0%} after",
    ]


def _prompts() -> list[str]:
    """Write how many of the prompts that should be changed are, by the rules and a chat model."""
    counts = read_readings()[1]
    rules, chat = (counts[f"users, random rows{reader}"] for reader in ("", ", with a chat model"))
    plain = [counts[kind] for kind in ("varied plain prompts", "plain prompts")]
    changed = [row["of_these_changed"] / row["should_be_changed"] for row in (rules, chat, *plain)]
    wrong = [row["wrong"] / row["read"] for row in (rules, chat)]
    shown = rules["should_be_changed"] / rules["labelled"]
    return [
        "Change prompts",
        f"{shown:.0%} of users' prompts show somebody of open gender; of these, {changed[0]:.0%}"
        f" are changed, {changed[1]:.0%} with a chat model<br>cost: {wrong[0]:.0%} of the changes"
        f" are wrong, {wrong[1]:.0%} with it",
        f"plain product prompts: {changed[2]:.0%} to {changed[3]:.0%} are changed",
    ]


def picture(folder: str) -> str:
    """Write what the first picture shows, what each panel costs, and where the figures are from.

    Args:
        folder: the folder of the documentation, relative to the page.
    """
    images = of_images()
    one_gender = sum(before in (0, 1) for before, _, _ in images)
    tasks = ("professions", LABELLED)
    seen = [
        rows_in(read("stated_values"), task)["balanced-prompts", "recognised"].value
        for task in tasks
    ]
    rows = rows_in(read("first_plot"), "half women")
    queries = rows["none", SURPLUS.name].n["queries"]
    before, after = (rows[method, SURPLUS.name].value for method in ("none", "rerank"))
    stay, true = (rows[method, STAY.name].value for method in ("rerank", TRUE_LABELS))
    left = (
        f"Left: {one_gender} of {len(images)} professions in public images of Stable Diffusion 3.5"
        " show one gender only; with female and male stated in turn, as vldebias does, each shows"
        f" both equally. Cost: the profession is visible in {seen[0]:.0%} instead of 100%"
        f" ({seen[1]:.0%} without two that were never labelled)."
    )
    right = (
        f"Right: {before:.1f} of the first {K} faces are too many of one gender"
        f" ({queries} searches; {SHOWN} drawn at random), and {after:.1f} after re-ranking without"
        f" labels. Cost: {stay:.0%} of the results stay ({true:.0%} with true labels)."
        f" [Sources]({folder}explanation/results.md)."
    )
    return f"{paragraph(left)}\n{paragraph(right)}"


def _search() -> list[str]:
    """Write how many of the first results are too many of one gender, before and after."""
    rows = rows_in(read("first_plot"), "half women")
    before, after, chance = (rows[m, SURPLUS.name].value for m in ("none", "rerank", RANDOM))
    stay = rows["rerank", STAY.name].value
    worse = rows["rerank", WORSE.name].value
    left = [metrics["left"] for metrics in _searches().values()]
    return [
        "Search by gender, without labels",
        f"CLIP ViT-B/32: {before:.1f} of the first {K} too many of one gender before, {after:.1f}"
        f" after ({chance:.1f} by chance)<br>cost: {stay:.0%} of the results stay; {worse:.0%} of"
        " the queries get worse",
        f"{len(left)} indexes, first 50: in the median one, {np.median(left):.0%} of the skew above"
        f" chance is left (best {max(min(left), 0):.0%}, worst {max(left):.0%})",
    ]


def _project() -> list[str]:
    """Write what the paper's projection does to searches, and what is better."""
    rows = rows_in(read("first_plot"), "half women")
    before, after, better = (rows[m, SURPLUS.name].value for m in ("none", CALI, "rerank"))
    worse = rows[CALI, WORSE.name].value
    (table_of_paper,) = [e for e in headlines()["projection"] if e["where"] == "Table 7.5"]
    theirs = table_of_paper["theirs"].partition("gender ")[2]
    return [
        "Project queries (`cali`)",
        f"the same searches: {before:.1f} before, {after:.1f} after; {worse:.0%} of the queries get"
        f" worse<br>re-ranking leaves {better:.1f}, so prefer it<br>the paper, FairFace:"
        f" MaxSkew@1000 {theirs}",
        "generated images: no clear change",
    ]


def _classify() -> list[str]:
    """Write the accuracy of the worst group, by text alone and with labels."""
    birds = rows_in(read("quickstart"), "birds")
    birds_right = [birds[method, "worst_group"].value for method in ("none", "default")]
    average = [birds[method, "average_reweighted"].value for method in ("none", "default")]
    rivals = read("simple_rivals")
    (about,) = [part for part in rivals.provenance if part.task == WITH_LABELS]
    faces = rows_in(rivals, WITH_LABELS)
    chosen = about.settings["default"]
    text, labels = (faces[method, "worst_group"].value for method in ("text alone", chosen))
    better, worse = (round(faces[chosen, name].value) for name in ("better", "worse"))
    return [
        "Classify, worst group",
        f"CLIP ViT-B/32, faces: {text:.0%} from text, {labels:.0%} with 20 labelled images (clearly"
        f" better in {better} of {about.n['rows']} tasks, worse in {worse})",
        f"cartoon birds, the best case, from text: {birds_right[0]:.0%} before,"
        f" {birds_right[1]:.0%} after<br>cost: all birds {average[0]:.0%} to {average[1]:.0%}",
    ]


def _train() -> list[str]:
    """Write the recall in a new domain, by the share of wrong captions, and in a known one."""

    def recall(texts: str, data: str = "titles") -> str:
        place = {"metric": RECALL, "recipe": ADVISED, "data": data, "task": "from start"}
        row = found("fine_tuning", f"{INFO_NCE}, saved", texts=texts, **place)
        _, low, high = row.change
        is_clear = not low <= 0 <= high
        return f"{row.value:.3f}" + ("" if is_clear else " (unclear)")

    start = found("fine_tuning", "not trained", data="titles", metric=RECALL).value
    known = found("fine_tuning", "not trained", data="captions", metric=RECALL).value
    return [
        "Fine-tune, recall@10",
        f"new domain: {start:.3f} before; {recall('right')} after with right captions,"
        f" {recall('30% of others')} with 30% wrong, {recall('60% of others')} with 60%<br>known"
        f" domain: {known:.3f} before, {recall('right', 'captions')} after",
        "not measured",
    ]


def counts_by_query() -> dict[str, tuple[int, int]]:
    """Return the larger count of one gender among the first 20 photographs, before and after.

    Half of the photographs are of women, so MaxSkew is the logarithm of a share divided by a half.
    """
    counts: dict[str, dict[str, int]] = {}
    for row in read("quickstart").rows:
        if (row.task, row.metric) == ("photographs gender", f"max_skew@{K}") and row.subset:
            counts.setdefault(row.subset, {})[row.method] = round(K / 2 * np.exp(row.value))
    return {query: (count["none"], count["rerank"]) for query, count in counts.items()}


def toy_searches() -> str:
    """Write how skewed the searches of the packaged photographs are, before and after."""
    counts = np.array(list(counts_by_query().values()))
    before, after = np.median(counts, axis=0)
    worse = int((counts[:, 1] > counts[:, 0]).sum())
    better = int((counts[:, 1] < counts[:, 0]).sum())
    return paragraph(
        f"On {len(counts)} searches of the packaged photographs, with the toy model, the median"
        f" search has {before:g} of one gender among the first {K} before, and {after:g} after;"
        f" {better} searches get less skewed, and {worse} more (`eval/results/quickstart.json`)."
    )


def real_searches() -> str:
    """Write how skewed searches with a real CLIP are, by method."""
    titles = {
        "none": "as found",
        "rerank": "re-ranked, without labels",
        TRUE_LABELS: "re-ranked by true labels",
        CALI: "queries projected (`cali`)",
        RANDOM: "a random order",
    }
    result = read("first_plot")
    lines = [["gallery", "order", f"too many of one gender, of {K}", "worse queries", "stay"]]
    for part in result.provenance:
        rows = rows_in(result, part.task)
        for method, title in titles.items():
            surplus, worse, stay = (rows[method, m.name] for m in (SURPLUS, WORSE, STAY))
            low, high = surplus.interval
            figure = f"{surplus.value:.1f} [{low:.1f}, {high:.1f}]"
            lines.append([part.task, title, figure, f"{worse.value:.0%}", f"{stay.value:.0%}"])
    note = (
        "CLIP ViT-B/32 on faces of CelebA, 51 professions; intervals over professions. From"
        " `eval/results/first_plot.json`."
    )
    return table(*lines, note=note)


def _searches() -> dict[str, dict[str, float]]:
    """Return each metric of searches by index, for the first 50 results."""
    found: dict[str, dict[str, float]] = {}
    for row in read("search_index").rows:
        is_index = row.task.startswith(GENDER_INDEXES) and row.subset == "k = 50"
        if row.method == "queries.search" and is_index:
            found.setdefault(row.task, {})[row.metric] = row.value
    return found


def window(job: str) -> str:
    """Write the lines of a job, with benefits and costs."""
    files = dict.fromkeys(f"`eval/results/{line.result}.json`" for line in WINDOW[job])
    head = ["method and task", "before", "after, and what it costs"]
    note = f"From {', '.join(files)}."
    return table(head, *(line.cells() for line in WINDOW[job]), note=note)


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
