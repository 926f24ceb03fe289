"""Write the tables of the pages from the committed results; no figure is typed.

python -m eval.readme          # rewrite every page that has a block
python -m eval.readme --check  # fail if one is out of date

A page has a block's markers, and `BLOCKS` has what is written between them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eval import real
from eval.replay import commands
from eval.tables import Rivals, half, moved, paragraph, place_of, read, rows_in, span, table
from vldebias.methods import METHODS
from vldebias.report.result import Measurement, Result
from vldebias.report.table import ENOUGH, readable, verdict

ROOT = Path(__file__).parents[1]


# ---- README.md
# -------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A line of the README's table: what is done and how, its measure of bias, and what that
    cost."""

    task: str
    how: str  # in plain words, with what a user calls it
    result: str
    block: str
    metric: str
    costs: Mapping[str, str]  # metric -> what the table calls it
    row: str  # the method of the result
    subset: str = ""


GAP, SQUARED = "discrepancy", "discrepancy_squared"
PEOPLE = ("wordings", "wordings gender", GAP, {"recognised": "subject accuracy"})
SEARCH = (
    "rivals_real",
    "celeba professions",
    "max_skew@50",
    {"kept@50": "hits kept"},  # these photographs have no captions
)
BIRDS = (
    "quickstart",
    "birds",
    "worst_group",
    {
        "average_reweighted": "average accuracy at the training frequencies",
        "average": "with groups as in the test set",
        "worst_group_auc": "AUC of the worst group",
    },
)
AGES = ("rivals_real", "celeba age", "worst_group", {"average": "average accuracy"})
WRITTEN = "professions, as people write them"
STEERED = ("steer", "cross-attention", GAP, {"recognised": "subject accuracy"})
WINDOW = (
    Line("generating people", "default, `balanced-prompts`", *PEOPLE, "balanced-prompts", WRITTEN),
    Line("generating people", "the paper's projection, `cali`", *PEOPLE, "cali", WRITTEN),
    Line(
        "generating professions",
        "no word written, `cross-attention`",
        *STEERED,
        "cross-attention",
        "gender",
    ),
    Line(
        "generating professions",
        "the same with `balanced-prompts`",
        *STEERED,
        "balanced-prompts",
        "gender",
    ),
    Line("searching photographs", "texts alone, default", *SEARCH, "difference of the values"),
    Line(
        "searching photographs",
        "unlabelled photographs, `reference=`",
        *SEARCH,
        METHODS["default+equalise"].title,
    ),
    Line(
        "classifying photographs by age", "texts alone, default", *AGES, "difference of the values"
    ),
    Line("classifying birds", "texts alone, default", *BIRDS, "default"),
    Line("classifying birds", "unlabelled pictures, `reference=`", *BIRDS, "default+equalise"),
    Line("classifying birds", "no edit, threshold at the median score", *BIRDS, "none@median"),
)
COUNTED = ("professions", "images each", "queries", "images")  # of `n`


# The first line of each task, and that of pictures without a word more; the rest stands on the page
# of all figures.
FRONT = (WINDOW[0], WINDOW[2], WINDOW[5], WINDOW[7])


def front() -> str:
    """Write the lines that README opens with, and where they are from."""
    files = ", ".join(f"`eval/results/{line.result}.json`" for line in FRONT)
    return gains(FRONT) + f"From {files}.\n\n"


def window() -> str:
    """Write all lines."""
    return gains(WINDOW)


def gains(chosen: Sequence[Line]) -> str:
    """Write what is gained and what it costs, a line each; the intervals are those of the
    values."""
    lines = [["task", "before", "after", "chance", "cost", "n"]]
    for line in chosen:
        frame = readable(read(line.result))
        rows = frame[(frame.task == line.block) & (frame.subset == line.subset)]
        rows = rows.set_index(["method", "metric"], drop=False)
        bias = rows.loc[line.row, line.metric]
        is_judged = bias.verdict not in ("", "better")
        judged = f", {emphasised(bias.verdict)}" if is_judged else ""
        after = span_of(bias) + judged + unbiased(rows, line)
        before = f"{bias.title} {span_of(rows.loc['none', line.metric])}"
        counts = json.loads(bias.counts)
        n = ", ".join(f"{counts[key]:,} {key}" for key in COUNTED if key in counts)
        task = f"{line.task}: {line.how}"
        lines.append([task, before, after, chance(bias), paid(rows, line), n])
    return table(*lines)


def span_of(row: Any) -> str:
    """Write the value of a row of the frame with its interval."""
    return f"{row.value:.2f} [{row.low:.2f}, {row.high:.2f}]"


def emphasised(judged: str) -> str:
    """Write a verdict, in bold where a reader must not miss it."""
    return f"**{judged}**" if judged == "worse" else judged


def unbiased(rows: Any, line: Line) -> str:
    """Write the unbiased square of a gap, where the verdict rests on it."""
    bias = rows.loc[line.row, line.metric]
    if line.metric != GAP or bias.is_dealt or (line.row, SQUARED) not in rows.index:
        return ""
    square = rows.loc[line.row, SQUARED]
    ends = f"[{square.change_low:+.3f}, {square.change_high:+.3f}]"
    return (
        f"; squared and unbiased {square.before:.3f} to {square.value:.3f}"
        f" ({square.change:+.3f} {ends}), better"
        if bias.verdict == "better"
        else ""
    )


def chance(bias: Any) -> str:
    """Write what random draws or rankings give, and of dealt values what an even deal gives."""
    if np.isnan(bias.chance):
        return "-"
    dealt = f", dealt evenly {bias.chance_after:.2f}" if bias.is_dealt else ""
    return f"{bias.chance:.2f}{dealt}"


def paid(rows: Any, line: Line) -> str:
    """Write each measured cost before and after; one that got worse with its interval."""
    costs = []
    for metric, title in line.costs.items():
        if (line.row, metric) not in rows.index:
            continue
        cost = rows.loc[line.row, metric]
        worse = f" [{cost.change_low:+.3f}, {cost.change_high:+.3f}]"
        moved_by = worse if cost.verdict == "worse" else ""
        costs.append(f"{title} {cost.before:.2f} to {cost.value:.2f}{moved_by}")
    return ", ".join(costs)


def needs_of_commands() -> str:
    """Write what the two commands need, by the committed sizes."""
    (size,) = [
        row.value for row in read("install_sizes").rows if (row.metric, row.method) == ("MB", "all")
    ]
    return paragraph(
        "Both need make, python 3.11 or newer, and once a network, from which they fetch packages"
        " that fill",
        f"{size / 1000:.0f} GB, most of it torch (`eval/results/install_sizes.json`). Nothing else"
        " is fetched.",
    )


# ---- docs/methods
# -------------------------------------------------------------------------------------------------

# The forms that are attached where no method is named, and what a table says beside them.
ATTACHED = {
    "difference": "the default",
    "cali+equalise, lam 100": "the default with `reference=` to classify",
    "default+equalise": "the default with `reference=` to search",
}


def needs(rows: Rivals, method: str) -> str:
    """Write what a method was given: texts, images, true or zero-shot labels."""
    words = [word for word in rows.fact(method, "needs") or () if word != "labels"]
    labels = {"given": ["images", "**labels**"], "zero-shot": ["images", "zero-shot labels"]}
    words += [word for word in labels.get(rows.fact(method, "labels"), []) if word not in words]
    return ", ".join(words) or "-"


def compared(result: Result, task: str) -> str:
    """Write one task, the best first: what each method needs, gains and costs; what is attached is
    in bold."""
    rows = Rivals(result, task)
    gain = "worst group"
    cost = "average"
    metric = "average"
    if rows.main == "max_skew":
        gain = "MaxSkew"
        cost = "hits kept"
        metric = "kept"
    lines = [["method", "needs", f"{gain} [95 %]", "change from none [95 %]", cost]]
    for method in rows.methods:
        main, called = rows.rows[rows.main, method], rows.fact(method, "name")
        attached = f", {ATTACHED[called]}" if called in ATTACHED else ""
        # A side of a method for both, or templates of its own.
        is_variant = method.endswith((" alone", " templates"))
        alone = f", {method.rpartition(', ')[2]}" if is_variant else ""
        name = f"`{called}`{attached}{alone}"
        cells = [f"**{name}**" if attached else name, needs(rows, method)]
        lines.append([*cells, span(main), moved(main), f"{rows.rows[metric, method].value:.3f}"])
    return table(*lines).strip()


def rivals(*tasks: tuple[str, str]) -> str:
    """Write the tables of tasks, (result, task) each, with what they are and where they come
    from."""
    parts = []
    for name, task in tasks:
        result = read(name)
        (about,) = (one for one in result.provenance if one.task == task)
        n = ", ".join(f"{count:,} {what}" for what, count in about.n.items() if count)
        source = f"From `eval/results/{name}.json`, commit {result.commit}: {n}."
        parts.append(f"## {about.title}\n\n{compared(result, task)}\n\n{source}")
    return "\n" + "\n\n".join(parts) + "\n\n"


def few() -> str:
    """Write MaxSkew by the number of reference images, a row for each method."""
    result = read("rivals_few")
    tasks = {about.task: rows_in(result, about.task) for about in result.provenance}
    names = {
        method: told["name"]
        for about in result.provenance
        for method, told in about.methods.items()
    }
    lines = [["MaxSkew@50 of 51 professions", *tasks]]
    for method, metric in next(iter(tasks.values())):
        if metric == "max_skew@50" and method in names:
            lines.append(
                [f"`{names[method]}`", *(span(rows[method, metric]) for rows in tasks.values())]
            )
    return table(*lines, note="From `eval/results/rivals_few.json`, halves of the photographs.")


HARM = {
    "default": "the default, texts alone",
    "default+equalise": "the default, `reference=`",
    "paper": "`paper`",
}


def harm() -> str:
    """Write how many searches each default makes worse and better, by family of cells."""
    result = read("harm")
    lines = [
        ["searches for", "method", "cells", "made worse", "made better", "acts in", "gap removed"]
    ]
    for about in result.provenance:
        if about.task == "cells":
            continue
        rows = rows_in(result, about.task)
        for method, title in HARM.items():
            counts = [f"{rows[method, name].value:.0f}" for name in ("cells", *HARM_COUNTS)]
            removed = f"{rows[method, 'removed'].value + 0.0:.0%}"  # no "-0%"
            lines.append([about.task, title, *counts, removed])
    return table(*lines, note="From `eval/results/harm.json`.")


HARM_COUNTS = ("harmed", "helped", "attached")


def reranked() -> str:
    """Write what each way of evening results does to searches, by kind of cells, over all draws."""
    figures: dict[tuple[str, str], list[dict[str, float]]] = {}
    for name in RERANK_FILES:
        result = read(name)
        for about in result.provenance:
            if not about.task.startswith("all "):
                continue
            for (method, metric), row in rows_in(result, about.task).items():
                listed = figures.setdefault((about.task.removeprefix("all "), method), [{}])
                if metric in listed[-1]:
                    listed.append({})
                listed[-1][metric] = row.value
    lines = [["searches", "method", "cells", "made worse", "made better", "skew removed", "kept"]]
    for (kind, method), draws in sorted(figures.items(), key=lambda item: item[0][0]):
        # All methods where there are most cells; the rest is in the files.
        if method == "none" or (method not in ("quota", "fair") and "shared" not in kind):
            continue
        counts = [f"{sum(draw[name] for draw in draws):.0f}" for name in RERANK_COUNTS]
        removed = np.mean([draw["removed"] for draw in draws])
        kept = np.mean([draw["kept_first"] for draw in draws])
        lines.append([kind, method, *counts, f"{removed + 0.0:.0%}", f"{kept:.2f}"])
    files = ", ".join(f"`eval/results/{name}.json`" for name in RERANK_FILES)
    return table(*lines, note=f"From {files}.")


RERANK_FILES = ("rerank_harm", "rerank_shared_0", "rerank_shared_1", "rerank_shared_2")
RERANK_COUNTS = ("cells", "harmed", "helped")


def rerank_times() -> str:
    """Write what a re-ranking takes, beside a sort of the same scores."""
    times: dict[str, dict[str, str]] = {}
    for row in read("bench_rerank").rows:
        if row.metric == "milliseconds":
            times.setdefault(row.subset, {})[row.method] = f"{row.value:.2f} ms"
    names = list(times["10,000"])
    lines = [["candidates", *names]]
    for size, time_of_name in times.items():
        lines.append([size, *(time_of_name.get(name, "") for name in names)])
    return table(*lines, note="From `eval/results/bench_rerank.json`.")


def lean() -> str:
    """Write from which lean on the others are harmed, and what that does to what was left out."""
    result = read("lean")
    lines = [
        [
            "left out",
            "cells in which texts predict help",
            "made worse without a threshold",
            "threshold of the others",
            "made worse below it",
            "made worse below the package's",
        ]
    ]
    for about in result.provenance:
        if about.task == "cells":
            continue
        rows = rows_in(result, about.task)
        figures = {metric: row.value for (_, metric), row in rows.items()}
        bound = f"{figures['threshold']:.2f}" if "threshold" in figures else "none is harmed"
        counts = [f"{figures[name]:.0f}" for name in LEAN_COUNTS]
        lines.append([about.task, *counts[:2], bound, *counts[2:]])
    return table(*lines, note="From `eval/results/lean.json`.")


LEAN_COUNTS = ("cells", "harmed", "harmed_below", "harmed_by_package")


# ---- docs/explanation/evidence.md


SMALL, USUAL = "small", "usual"
Covered = dict[tuple[str, str], list[tuple[str, str, float, float]]]


def coverages() -> Covered:
    """Return (what, figure) -> (size, setting, coverage, width) of each simulated interval."""
    found: Covered = {}
    for row, width, about in of_simulations("coverage"):
        settings = about.settings
        smallest = min(settings["share"]) / sum(settings["share"]) * settings["n"]
        if row.method.endswith(("alone", "percentile")) or " of the hardest group" in row.method:
            continue
        size = USUAL if smallest >= 99 else SMALL
        kept = found.setdefault(("groups", row.method.replace("_", " ")), [])
        kept.append((size, about.task, row.value, width))
    for row, width, about in of_simulations("coverage_shares"):
        size = SMALL if row.method.endswith((" 30 labels", "gallery of 100")) else USUAL
        way = row.method.partition(",")[0].partition(" of ")[0]
        kept = found.setdefault((f"shares, {way}", row.subset), [])
        kept.append((size, about.task, row.value, width))
    for row, width, about in of_simulations("coverage_kinds"):
        size = USUAL if row.subset in about.settings["usual"] else SMALL
        kept = found.setdefault((about.task, row.method.replace("_", " ")), [])
        kept.append((size, row.subset.partition("; ")[0], row.value, width))
    return found


def of_simulations(name: str) -> list[tuple[Measurement, float, Any]]:
    """Return each row of coverage with the mean width beside it and what its task was."""
    result = read(name)
    about = {one.task: one for one in result.provenance}
    width = {}
    for row in result.rows:
        if row.metric == "width":
            width[row.task, row.method, row.subset] = row.value
    found = []
    for row in result.rows:
        if row.metric == "coverage":
            found.append((row, width[row.task, row.method, row.subset], about[row.task]))
    return found


def covered() -> str:
    """Write how often each kind of interval covers, at small and usual sizes, and for what it is
    too narrow or too wide."""
    lines = [["intervals", "of", "small n", "usual n", "width", "beyond .92 to .98 at usual n"]]
    for (what, figure), cells in coverages().items():
        ranges = {}
        for size in (SMALL, USUAL):
            ranges[size] = [cell[2] for cell in cells if cell[0] == size]
        widths = [cell[3] for cell in cells if cell[0] == USUAL]
        narrow = [cell[1] for cell in cells if cell[0] == USUAL and cell[2] < 0.92]
        wide = [cell[1] for cell in cells if cell[0] == USUAL and cell[2] > 0.98]
        notes = []
        for word, settings in (("too narrow", narrow), ("wide", wide)):
            if settings:
                notes.append(f"{word}: {'; '.join(dict.fromkeys(settings))}")
        spans = [low_to_high(ranges[size]) for size in (SMALL, USUAL)]
        lines.append([what, figure, *spans, low_to_high(widths), ". ".join(notes)])
    note = (
        "Lowest to highest over settings. From `eval/results/coverage.json`,"
        " `coverage_shares.json`, `coverage_kinds.json`: `python -m eval.experiments.coverage all`."
    )
    return table(*lines, note=note)


# Kind of interval -> what is resampled, where pages mark that there is too little of it.
RESAMPLED = {
    "means over prompts": "prompts",
    "ranking": "images",
    "ranking, over queries": "queries",
    "probe": "images",
}


def lowest_by_size() -> dict[tuple[str, str], dict[int, float]]:
    """Return (kind of interval, metric) -> number of units -> the least coverage of value and
    change over all settings."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for name in ("coverage_kinds", "coverage_large"):
        for row, _, about in of_simulations(name):
            if about.task not in RESAMPLED:
                continue
            units = int(row.subset.partition("; ")[2].split()[0])
            metric = row.method.removeprefix("change of ")
            lowest = found.setdefault((about.task, metric), {})
            lowest[units] = min(row.value, lowest.get(units, 1.0))
    return found


def enough() -> str:
    """Write from how many units on intervals hold, and under how many pages say "few"."""
    lines = [["intervals", "of", "lowest coverage, by number of units", "“few” under"]]
    for (what, metric), coverage in lowest_by_size().items():
        unit = RESAMPLED[what]
        parts = [f"{units:,}: {coverage[units]:.2f}" for units in sorted(coverage)]
        least = ENOUGH[unit].get(metric)
        mark = "" if least is None else f"{least:,.0f} {unit}"
        if least == np.inf:
            mark = "any number, “narrow interval”"
        lines.append([what, metric.replace("_", " "), "; ".join(parts), mark])
    note = (
        "Lowest over settings, of value and change. From `eval/results/coverage_kinds.json` and"
        " `coverage_large.json` (`python -m eval.experiments.coverage large`)."
    )
    return table(*lines, note=note)


def low_to_high(values: Sequence[float]) -> str:
    """Write the lowest and the highest of some values; "-" where there are none."""
    if not values:
        return "-"
    ends = f"{min(values):.2f}", f"{max(values):.2f}"
    return " to ".join(dict.fromkeys(ends))


def mended() -> str:
    """Write coverage and width of the intervals that were mended, before and after."""
    rows = {(row.task, row.method): (row, width) for row, width, _ in of_simulations("coverage")}
    lines = [["data", "interval of", "before", "after", "width before", "width after"]]
    for (task, method), (before, width) in rows.items():
        name = method.removesuffix(", percentile alone")
        if name == method:
            continue
        after, width_after = rows[task, name]
        if before.value == after.value:
            continue
        figures = [f"{value:.2f}" for value in (before.value, after.value)]
        figures += [f"{value:.3f}" for value in (width, width_after)]
        lines.append([task, name.replace("_", " "), *figures])
    return table(*lines, note="From `eval/results/coverage.json`, where the two differ.")


def replayed() -> str:
    """Write each committed result with its command and date, and how its figures came out when it
    was run again."""
    result = read("replay")
    counts: dict[str, dict[str, int]] = {}
    total: Counter[str] = Counter()
    for row in result.rows:
        counts.setdefault(row.task, {})[row.subset] = round(row.value)
        total[row.subset] += round(row.value)
    lines = [["result", "figures", "command", "date", "run again"]]
    for found in commands():
        if found.name == result.name:
            continue
        # A bar would end the cell.
        words = found.words.replace("|", "\\|")
        state = f"no: {found.reason}"
        if found.name in counts:
            state = _counted(counts[found.name])
        lines.append([f"`{found.name}`", f"{found.rows:,}", f"`{words}`", found.date, state])
    note = (
        f"Run again: {total.total():,} figures of {len(counts)} results, {_counted(total)}. From"
        " `eval/results/replay.json`; times of a machine are not compared."
    )
    return table(*lines, note=note)


def _counted(counts: Mapping[str, int]) -> str:
    """Write numbers by name: "12 equal, 1 inside"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def judged_so() -> str:
    """Write the share of data sets with each verdict, and of those with as many units as it asks
    for."""
    result = read("coverage_verdicts")
    titles = ("better", "worse", "no clear change", "too few to tell", "nothing to remove")
    lines = [["measured", "what was done", "units", *titles]]
    for about in result.provenance:
        rows = rows_in(result, about.task)
        for method in dict.fromkeys(method for method, _ in rows):
            cells = [rows[method, title.replace(" ", "_")] for title in titles]
            units = f"{cells[0].n['units']:,}"
            lines.append([about.task, method, units, *(f"{cell.value:.2f}" for cell in cells)])
    return table(*lines, note="From `eval/results/coverage_verdicts.json`.")


# ---- docs/how-to/miniature.md


def wordings() -> str:
    """Write how well the miniature reads prompts as it was trained, and as people write them."""
    lines = [["prompts", "method", "n", "the profession is recognised", "gender cannot be told"]]
    rows = {(row.subset, row.method, row.metric): row for row in read("wordings").rows}
    for subset, prompts in WORDINGS.items():
        for method, title in {"none": "as generated", "balanced-prompts": "balanced"}.items():
            recognised = rows[subset, method, "recognised"]
            unknown = rows[subset, method, "unknown"]
            n = f"{recognised.n['professions']} x {recognised.n['images each']}"
            lines.append([prompts, title, n, span(recognised, ".2f"), span(unknown, ".2f")])
    return table(*lines, note="From `eval/results/wordings.json` (`vldebias eval wordings`).")


WORDINGS = {
    "unseen professions": '"A photo of a nurse."',
    "professions, as people write them": "in a place, with a thing, adjectives, tags",
}


# ---- balanced prompts


def decided() -> str:
    """Write how often labelled prompts are decided as labelled, by label and attribute."""
    result = read("prompt_rules")
    lines = [["prompts", "right is", "attribute", "n", "right [95 %]"]]
    for about in result.provenance:
        for row in result.rows:
            if row.task == about.task and row.metric == "right" and ", " in row.subset:
                label, attribute = row.subset.split(", ")
                cells = [about.task, LABELS[label], attribute, str(row.n["prompts"])]
                lines.append([*cells, span(row, ".3f")])
    return table(*lines, note="From `eval/results/prompt_rules.json`.")


FIRST_RUNS = (
    "prompt_rules_first_a",
    "prompt_rules_first_b",
    "prompt_rules_first_c",
    "prompt_rules_first_e",
    "prompt_rules_blind2",
)


def first_runs() -> str:
    """Write how prompts were decided when they were scored for the first time, by label."""
    labels = ("fixed", "open", "group", "stated")
    lines = [["prompts", "rules of commit", *labels]]
    for name in FIRST_RUNS:
        result = read(name)
        for about in result.provenance:
            row_of_label = {
                row.subset: row
                for row in result.rows
                if row.task == about.task and row.metric == "right"
            }
            cells = [about.task.replace("_", " "), (result.commit or "")[:8]]
            for label in labels:
                row = row_of_label.get(label)
                cells.append("-" if row is None else f"{span(row, '.3f')}, n = {row.n['prompts']}")
            lines.append(cells)
    note = ", ".join(f"`eval/results/{name}.json`" for name in FIRST_RUNS)
    return table(*lines, note=f"From {note}.")


LABELS = {
    "open": "open: a value is written",
    "fixed": "fixed by context: left alone",
    "stated": "stated: left alone",
    "named": "somebody is named: left alone",
    "none": "no person: left alone",
    "mixed": "one person stated beside another",
    "group": "group: not of one value",
    "syntax": "syntax of tools: as labelled",
}


def left_alone() -> str:
    """Write why labelled prompts were left alone, by attribute."""
    counts: dict[tuple[str, str], float] = {}
    for row in read("prompt_rules").rows:
        if row.metric == "left_alone":
            place, reason = row.subset.split(": ", maxsplit=1)
            key = (place.split(", ")[1], reason)
            counts[key] = counts.get(key, 0.0) + row.value * row.n["prompts"]
    lines = [["attribute", "reason", "prompts"]]
    for (attribute, reason), count in sorted(
        counts.items(), key=lambda item: (item[0][0], -item[1])
    ):
        lines.append([attribute, reason, f"{count:.0f}"])
    return table(*lines, note="From `eval/results/prompt_rules.json`, all sets.")


LANGUAGES = {
    "de": "German",
    "fr": "French",
    "es": "Spanish",
    "it": "Italian",
    "pt": "Portuguese",
    "ru": "Russian",
    "zh": "Chinese",
    "ja": "Japanese",
    "ko": "Korean",
    "ar": "Arabic",
    "": "all",
}


def languages_blind() -> str:
    """Write how new prompts in ten languages came out when they were scored once."""
    columns = {
        "written": "open: written",
        "form_right": "of those: both texts right",
        "written_right": "open: written and right",
        "group_mixed": "group: both values",
        "left_alone": "left alone rightly",
    }
    rows = {(row.subset, row.metric): row for row in read("languages_blind").rows}
    lines = [["language", *columns.values()]]
    for language, title in LANGUAGES.items():
        cells = [title]
        for metric in columns:
            row = rows[language, metric]
            n = row.n["prompts"]
            low, high = row.interval
            cells.append(f"{row.value * n:.0f} of {n} [{low:.2f}, {high:.2f}]")
        lines.append(cells)
    return table(*lines, note="From `eval/results/languages_blind.json`.")


def history() -> str:
    """Write both errors on groups of people at events of history."""
    lines = [["attribute", "sources name", "n", "a value is written [95 %]", "should be"]]
    for row in read("dofair").rows:
        if row.metric in HISTORY:
            kind, goal = HISTORY[row.metric]
            lines.append([row.task, kind, str(row.n["prompts"]), span(row, ".3f"), goal])
    return table(*lines, note="From `eval/results/dofair.json`.")


HISTORY = {
    "written_into_one": ("one value", "low: it would be over-diversification"),
    "written_into_several": ("several values", "high: else under-diversification"),
}


def held_back() -> str:
    """Write how many ordinary prompts facts hold back, by attribute."""
    lines = [["attribute", "would be written into", "held back by facts [95 %]"]]
    for row in read("public_prompts").rows:
        if row.metric == "held_back":
            lines.append([row.task, f"{row.n['prompts']:,}", span(row, ".3f")])
    return table(*lines, note="From `eval/results/public_prompts.json`.")


def service() -> str:
    """Write how even values stay over requests to one worker, several, and none with a memory."""
    result = read("workers")
    lines = [["who answers", "images of one value more than of the other, mean [95 % of the runs]"]]
    lines += [[row.method, span(row, ".1f")] for row in result.rows]
    n = result.rows[0].n
    note = f"{n['requests']} requests, {n['runs']} runs; from `eval/results/workers.json`."
    return table(*lines, note=note)


def door(part: str, columns: Mapping[str, str]) -> str:
    """Write what a door costs: a line for each size, a column for each side.

    part: of `eval.benchmarks.doors`. columns: metric -> what the table calls it.
    """
    cells: dict[str, dict[str, float]] = {}
    for row in read("bench_doors").rows:
        if row.method == part:
            cells.setdefault(str(place_of(row)[part]), {})[row.metric] = row.value
    lines = [[part, *columns.values()]]
    for size, values in cells.items():
        texts = [_cost(name, values[name]) for name in columns]
        lines.append([size, *texts])
    return table(*lines, note="From `eval/results/bench_doors.json`.")


def _cost(name: str, value: float) -> str:
    """Write a time in milliseconds, or a share."""
    return f"{value:.2%}" if " / " in name else f"{value:.2f} ms"


def queries() -> str:
    """Write what the edit of queries adds to a flat search."""
    names = {"search, ms": "search", "edit, ms": "edit", "edit of lists, ms": "edit of lists"}
    return door("queries", {**names, "edit / search": "edit / search"})


def images() -> str:
    """Write what balanced prompts add to a request for images."""
    names = {
        "direct, ms": "the server itself",
        "bare, ms": "a bare proxy",
        "balanced, ms": "balanced prompts",
    }
    names["added to a bare proxy, ms"] = "added to a bare proxy"
    names["bare, processor ms"] = "processor time, bare"
    names["balanced, processor ms"] = "processor time, balanced"
    return door("images", names)


# ---- docs/generation.md and the audit of texts
# -----------------------------------------------------------------------

GENERATED = {  # row of the result -> what the page calls it
    "none": "none",
    "default": "`cali`, lam lowered (for sets not about persons)",
    "cali": "`cali`, lam = 500 (`paper`)",
    "difference": "`difference`",
    "fair pca": "`fair-pca` (fair PCA, without FairImagen's sampling)",
    "stated value": "a value stated for each image (as `balanced-prompts`)",
}

DEALT = ("stated value",)  # whose shares are dealt: they have no noise of draws


def sampled() -> str:
    """Write what each method leaves of the gap from even shares, and what it costs, over fits and
    professions."""
    result = read("generation")
    rows, outside = (
        rows_in(result, "generation gender", part)
        for part in ("unseen professions", "outside the fit, portraits")
    )
    costs = ["subject accuracy", "a person outside the fit stays one"]
    lines = [["method", "share of the gap from even shares left", "squared, corrected", *costs]]
    for method, name in GENERATED.items():
        shares = [rows[method, f"discrepancy{kind}, share of none"] for kind in ("", "_squared")]
        paid = (rows[method, "recognised"], outside[method, "shows what was asked for"])
        kept = [span(share, ".2f") for share in shares]
        if method in DEALT:
            kept[1] = "dealt, nothing to correct"
        lines.append([name, *kept, *(f"{one.value:.3f}" for one in paid)])
    n = rows["default", "discrepancy"].n
    note = (
        f"{n['professions']} held-out professions of the miniature world, {n['fits']} fits; 95 %"
        " intervals over both."
    )
    return table(*lines, note=f"{note} From `eval/results/generation.json`.")


AUDITED = {
    "published": "Stable Diffusion 1.5, B/32's texts",
    "retrieval": "CelebA search, B/32's texts",
    "miniature": "embedded pipeline",
}
PREDICTED = {
    "lean_r": "r",
    "lean_r2": "R2, left out",
    "side_right": "side right",
    "said_right": "side right where one is said",
    "interval_coverage": "held-out shares covered",
    "interval_width": "width",
}


def audit_lines() -> str:
    """Write tasks and directions down, how well shares are predicted across."""
    lines, result = (
        [["what is predicted from what", "concepts", *PREDICTED.values()]],
        read("audit_texts"),
    )
    for task, title in AUDITED.items():
        for part in dict.fromkeys(row.subset for row in result.rows if row.task == task):
            own = {metric: row for (_, metric), row in rows_in(result, task, part).items()}
            if "lean_r" not in own:
                continue
            plain = ("interval_width", "lean_r2")
            cells = [
                f"{own[one].value:.2f}" if one in plain else span(own.get(one), ".2f")
                for one in PREDICTED
            ]
            lines.append(
                [", ".join(filter(None, (title, part))), str(own["lean_r"].n["concepts"]), *cells]
            )
    return table(*lines, note="From `eval/results/audit_texts.json`.")


MODELS_PREDICTED = {
    "left_out_error": "mean error",
    "lean_r2": "R2, left out",
    "interval_coverage": "held-out shares covered",
    "interval_width": "width",
}


def audit_models() -> str:
    """Write for each model whose images were counted how well an occupation left out is
    predicted."""
    result = read("audit_models")
    lines = [["counts", "predicted from", "occupations", *MODELS_PREDICTED.values()]]
    keys = {(row.task, row.subset) for row in result.rows if row.metric == "left_out_error"}
    order = [(row.task, row.subset) for row in result.rows if (row.task, row.subset) in keys]
    for task, part in dict.fromkeys(order):
        row_of_metric = {m: row for (_, m), row in rows_in(result, task, part).items()}
        cells = []
        for metric in MODELS_PREDICTED:
            row = row_of_metric.get(metric)
            cell = "-"
            if row is not None and metric in ("lean_r2", "interval_width"):
                cell = f"{row.value:.2f}"
            elif row is not None:
                cell = span(row, ".2f")
            cells.append(cell)
        n = row_of_metric["left_out_error"].n["occupations"]
        lines.append([f"`{task}`", part, str(n), *cells])
    return table(*lines, note="From `eval/results/audit_models.json`.")


def models_in_terminal() -> str:
    """Write what the terminal shows of prompts on which models disagree."""
    text = (ROOT / "docs" / "terminal" / "models-80.txt").read_text(encoding="utf-8")
    return f"```text\n{text}```\n"


def same_side() -> str:
    """Write how often two models lean to the same side."""
    result = read("audit_models")
    lines = [["counts", "and", "occupations", "lean to the same side"]]
    for row in result.rows:
        if row.metric == "same_side":
            name = row.subset.removeprefix("and ")
            n = str(row.n["occupations"])
            lines.append([f"`{row.task}`", f"`{name}`", n, span(row, ".2f")])
    return table(*lines, note="From `eval/results/audit_models.json`.")


# ---- the trainings
# -------------------------------------------------------------------------------------------------

BASE = "InfoNCE"
SITUATIONS: dict[
    str, tuple[str, str, dict[str, Any]]
] = {  # what you have -> experiment, column of the share, place
    "a model that knows something; captions of other pairs": (
        "which_loss_heads",
        "share",
        {"noise": "mixture"},
    ),
    "the same; a class taken for its neighbour": (
        "which_loss_heads",
        "share",
        {"noise": "class"},
    ),
    "the same; images that show little": ("which_loss_heads", "share", {"noise": "crop"}),
    "random weights; captions of other pairs": (
        "which_loss_scratch",
        "share",
        {"noise": "mixture"},
    ),
    "images alone, random weights; classes that are wrong": ("noisy_digits", "eta", {}),
}
Arms = dict[str, dict[float, Measurement]]  # arm -> share -> row


def by_share(result: Result, column: str, where: dict[str, Any]) -> Arms:
    """Return the rows of an experiment at a place, by arm and share."""
    found: Arms = {}
    for row in result.rows:
        place = place_of(row)
        if where.items() <= place.items():
            found.setdefault(row.method, {})[float(place[column])] = row
    return found


def best(rows: Arms, shares: Sequence[float]) -> str:
    """Return the arm of the highest mean over the shares; the usual loss where it is ahead of that
    nowhere beyond an interval. An untrained model stands among the others: where it is the best,
    nothing is to be done.
    """
    arm = max(rows, key=lambda arm: sum(rows[arm][share].value for share in shares))
    own = [rows[arm][share] for share in shares]
    return arm if any(verdict(row.change, row.better) == "better" for row in own) else BASE


def verdicts() -> str:
    """Write one verdict for each situation, with what it rests on: its change to InfoNCE at each
    share."""
    lines = [["you have", "do", "InfoNCE comes to", "ahead of it by", "rests on"]]
    for have, (name, column, where) in SITUATIONS.items():
        rows = by_share(read(name), column, where)
        every = sorted(rows[BASE])
        for what, shares in {"nothing is wrong": every[:1], "": every[1:]}.items():
            if what and where.get("noise") in ("class", "crop"):
                continue  # the same cells as of the first noise
            told = f"{have.partition(';')[0]}; {what}" if what else have
            arm = best(rows, shares)
            alone = {
                BASE: "InfoNCE; nothing is ahead of it beyond its interval",
                "not trained": "do not train",
            }
            at = [f"{rows[BASE][share].value:.3f} at {share:g}" for share in shares]
            ahead = "" if arm == BASE else ", ".join(starred(rows[arm][share]) for share in shares)
            seeds = rows[BASE][every[0]].n["seeds"]
            rests = f"{seeds} seeds, {len(rows)} arms, `{name}.json`"
            lines.append([told, alone.get(arm, arm), ", ".join(at), ahead, rests])
    note = (
        "The verdict is the arm of the highest mean over the shares of wrong pairs, if it is ahead"
        " of InfoNCE beyond its interval (*) at one of them. Intervals are over seeds and held-out"
        " images, not corrected for the arms."
    )
    return table(*lines, note=note)


KINDS_OF_DATA = {
    "clean": "clean",
    "20 % wrong captions": "20 % wrong",
    "40 % wrong captions": "40 % wrong",
    "60 % wrong captions": "60 % wrong",
    "few classes": "few classes",
    "long tail": "long tail",
    "coarse captions": "coarse captions",
}


def every_loss() -> str:
    """Write a line for each loss: its change to InfoNCE on each kind of data, and its cost."""
    result = read("every_loss")
    found: dict[str, dict[tuple[str, str], Measurement]] = {}
    for row in result.rows:
        if row.task == "losses":
            place = place_of(row)["data"], row.metric
            found.setdefault(row.method, {})[place] = row
    lines = [["loss", *KINDS_OF_DATA.values(), "ms a step"]]
    for arm, rows in found.items():
        cells = []
        for data in KINDS_OF_DATA:
            metric = "species by means" if data == "coarse captions" else "zero_shot_accuracy"
            row = rows.get((data, metric))
            shown = "" if row is None else f"{row.value:.3f}" if arm == BASE else starred(row)
            cells.append(shown)
        cost = rows.get(("clean", "ms a step"))
        lines.append([arm, *cells, "" if cost is None else f"{cost.value:.1f}"])
    note = (
        "InfoNCE: accuracy; the others: change to it on the same seeds and images, \\* beyond its"
        " 95 % interval. Five seeds, 2,000 held-out renders; intervals are not corrected for the"
        " arms. From `eval/results/every_loss.json`."
    )
    return table(*lines, note=note)


def from_scratch() -> str:
    """Write a line for each loss that trained random weights: its change to InfoNCE at each share
    of wrong captions."""
    rows_of_arm = by_share(read("which_loss_scratch"), "share", {"noise": "mixture"})
    shares = sorted(rows_of_arm[BASE])
    lines = [["loss", *(f"{share:.0%} wrong" for share in shares)]]
    for arm, rows in rows_of_arm.items():
        cells = []
        for share in shares:
            row = rows[share]
            cells.append(f"{row.value:.3f}" if arm == BASE else starred(row))
        lines.append([arm, *cells])
    note = (
        "InfoNCE: accuracy; the others: change to it on the same seeds and images, \\* beyond its"
        " 95 % interval. Three seeds, 2,000 held-out renders; intervals are not corrected for the"
        " arms. From `eval/results/which_loss_scratch.json`."
    )
    return table(*lines, note=note)


def starred(row: Measurement) -> str:
    """Write a change, starred where it is beyond its interval; escaped, since several stand in a
    cell."""
    assert row.change is not None
    return f"{row.change[0]:+.3f}" + (
        r"\*" if verdict(row.change, row.better) in ("better", "worse") else ""
    )


def arms(
    name: str,
    rows: Mapping[str, str],
    metrics: Sequence[str],
    note: str,
    *,
    column: str = "",
    head: str = "{}",
    task: str = "",
) -> str:
    """Write rows of an experiment: a line for each value of some places, a column per metric or
    value of one."""
    result = read(name)
    found: dict[tuple[Any, ...], dict[str, Measurement]] = {}
    for row in result.rows:
        place = place_of(row)
        if row.metric in metrics and row.task == (task or name):
            key = head.format(place[column]) if column else row.metric
            found.setdefault(tuple(place[one] for one in rows), {})[key] = row
    columns = list(next(iter(found.values()))) if column else metrics
    lines = [[*rows.values(), *columns]]
    for at, own in found.items():
        short = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in at]
        lines.append([*short, *(half(own[one]) for one in columns)])
    return table(*lines, note=f"{note}; from `eval/results/{name}.json`.")


def speed() -> str:
    """Write what users wait for beside what they would use instead, a line for each size."""
    rows = read("bench_speed").rows
    figures: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        size = str(place_of(row).get("size", ""))
        figures.setdefault((row.method, size), {})[row.metric] = row.value
    heads = ["what / beside what", "size", "ours, ms", "the other, ms", "ours / the other"]
    lines = [[*heads, "their results differ by"]]
    for (what, size), seconds in figures.items():
        # A time without the equality of what was timed says nothing. Files of before `within`
        # have the difference alone, or whether all pixels are equal.
        if seconds.get("equal pixels") == 1:
            seconds["difference"] = 0.0
        if not seconds.get("difference", np.nan) <= seconds.get("within", np.inf):
            continue
        ours = seconds["ours"]
        plain = seconds["plain"]
        times = [
            f"{1e3 * value:,.3f}" if value < 0.1 else f"{1e3 * value:,.0f}"
            for value in (ours, plain)
        ]
        difference = f"{seconds['difference']:.1g}"
        lines.append([what, size, *times, f"{ours / plain:.2f}", difference])
    note = (
        "Processor times on one thread, of folders wall times; all rows from one run, in which both"
        " ways gave the same: of losses value and norm of the gradient, of ranks the share that"
        " float32 gets otherwise, of skew intervals the mean in standard errors, of towers the"
        " features, of pictures the pixels."
        " From `eval/results/bench_speed.json`."
    )
    return table(*lines, note=note)


STARS = (
    "mean over seeds ± 95 % interval of Student's t; * differs from {} on the same seeds beyond its"
    " interval"
)
BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"front": front, "needs": needs_of_commands},
    "docs/explanation/figures.md": {"window": window},
    "docs/methods/search.md": {
        "rivals_real": partial(rivals, ("rivals_real", "celeba professions")),
        "few": few,
    },
    "docs/methods/groups.md": {
        "rivals_groups": partial(
            rivals,
            ("rivals_real", "celeba age"),
            ("rivals_miniature", "birds"),
            ("rivals_miniature", "hair"),
        )
    },
    "docs/explanation/the-default.md": {"harm": harm, "lean": lean},
    "docs/how-to/balance-prompts.md": {
        "first_runs": first_runs,
        "service": service,
    },
    "docs/explanation/how-prompts-are-read.md": {
        "decided": decided,
        "left_alone": left_alone,
        "held_back": held_back,
    },
    "docs/how-to/images-api.md": {"service": service, "images": images},
    "docs/explanation/how-languages-are-read.md": {"languages_blind": languages_blind},
    "docs/how-to/index-queries.md": {"queries": queries},
    "docs/how-to/rerank.md": {"rerank_times": rerank_times},
    "docs/explanation/re-ranking-measured.md": {"reranked": reranked},
    "docs/explanation/over-and-under-diversification.md": {"history": history},
    "docs/generation.md": {"sampled": sampled},
    "docs/tutorials/audit-a-prompt-list.md": {"models_in_terminal": models_in_terminal},
    "docs/explanation/how-well-audits-predict.md": {
        "audit_lines": audit_lines,
        "audit_models": audit_models,
        "same_side": same_side,
    },
    "docs/how-to/miniature.md": {"wordings": wordings},
    "docs/fine-tuning.md": {
        "verdicts": verdicts,
        "every_loss": every_loss,
        "from_scratch": from_scratch,
    },
    "docs/explanation/evidence.md": {
        "covered": covered,
        "enough": enough,
        "mended": mended,
        "judged": judged_so,
        "replayed": replayed,
        "real": real.measured,
    },
    "eval/README.md": {
        "speed": speed,
        "wrong_pairs": partial(
            arms,
            "wrong_pairs",
            {"eta": "eta", "method": "loss"},
            ["auroc", "score of right pairs", "score of wrong pairs"],
            STARS.format(BASE),
        ),
    },
}
"""Page, from the root of the checkout -> block -> what makes its text."""


def render(page: str, root: Path = ROOT) -> str:
    """Return the text of a page with every block between its markers replaced by the committed
    figures."""
    text = (root / page).read_text(encoding="utf-8")
    for name, made in BLOCKS[page].items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text, found = pattern.subn((begin + made() + end).replace("\\", r"\\"), text)
        if found != 1:
            raise SystemExit(f"{page}: expected one block {begin.strip()} ... {end}, found {found}")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if a page is out of date"
    )
    check, made = parser.parse_args().check, {ROOT / page: render(page) for page in BLOCKS}
    if check:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
