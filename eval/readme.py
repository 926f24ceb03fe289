"""Write the tables of the READMEs and of docs/results.md from the committed results; no figure is typed.

python -m eval.readme          # rewrite README.md, eval/README.md and docs/results.md
python -m eval.readme --check  # fail if one is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eval import first_hours, tables
from eval.experiments import default_choice, experiment, fine_tuning_tables, generation_table, rivals_table, validity
from eval.experiments.auto_worlds import GENUINE
from eval.experiments.experiment import Page, place_of
from eval.experiments.fine_tuning_tables import paragraph
from eval.experiments.records import rows_of
from eval.metrics import register_metrics
from eval.tables import RESULTS, read, rows_in, span, table
from vldebias.evaluation.report.pages import markdown_table
from vldebias.evaluation.report.words import number, verdict
from vldebias.evaluation.result import Measurement, Result
from vldebias.metrics.metric import metric_of
from vldebias.pictures import picture_metadata

ROOT = Path(__file__).parents[1]
BLOCKS: dict[str, list[tuple[str, ...]]] = {  # (task, metric) of wholes, (task, metric, subset) of parts
    "quickstart": [
        ("birds", "worst_group"),
        ("birds", "average"),
        ("birds", "average_reweighted"),
        ("birds", "accuracy", "landbird/land"),
        ("birds", "accuracy", "waterbird/water"),
        ("portraits gender", "max_skew@100"),
        ("portraits gender", "query_cosine"),
        ("generation gender", "discrepancy", "unseen professions"),
        ("generation gender", "recognised", "unseen professions"),
    ],
    "beyond": [
        ("celeba, random halves", "max_skew@50"),
        ("celeba, random halves", "query_cosine"),
        ("birds", "worst_group"),
        ("generation gender", "discrepancy"),
        ("auto", "regret"),
        ("auto", "worse_than_none"),
    ],
    "pareto": [("auto", "missed"), ("auto", "worse_than_none")],
    "real_clip_b32": [("celeba-1000", "max_skew@100"), ("celeba-1000", "query_cosine")],
}
GROUNDS = [  # of birds_drawn
    (f"{part} background", metric, "unseen birds")
    for part in ("waterbirds", "landbirds", "waterbird")
    for metric in ("other_background", "class_recognised", "recognised")
]


def page_block(name: str, page: Page, method: str) -> str:
    """The table of an experiment in a page, as its YAML says; method: the column that the rows' methods are."""
    if not (tables.RESULTS / f"{name}.json").is_file():
        return f"Not measured yet: `python -m eval.experiments.run {name}` makes this table.\n"
    rows = [{**(place := place_of(row)), method: place["method"], "row": row} for row in read(name).rows]
    rows = [row for row in rows if row["metric"] in page.metrics and page.where.items() <= row.items()]
    columns = page.metrics if page.column == "metric" else list(dict.fromkeys(row[page.column] for row in rows))
    lines = [[*page.rows, *(one if isinstance(one, str) else f"{page.column} {one}" for one in columns)]]
    for place in dict.fromkeys(tuple(row[one] for one in page.rows) for row in rows):
        own = {row[page.column]: row["row"] for row in rows if tuple(row[one] for one in page.rows) == place}
        short = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in place]
        lines.append([*short, *(_mean(own[column]) for column in columns)])
    return table(*lines, note=f"{page.note}; from `eval/results/{name}.json`.")


def _mean(row: Measurement) -> str:
    beyond = row.change is not None and not row.change[1] <= 0 <= row.change[2]
    return f"{row.value:.3f} ± {row.value - row.interval[0]:.3f}{'*' if beyond else ''}"


def _rows(name: str, task: str, subset: str = "") -> dict[tuple[str, str], Measurement]:
    return rows_in(read(name), task, subset)


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


DRAWN = ("generation", "generation gender", ("discrepancy", "parity gap"), ("recognised", "subject accuracy"))
SEARCH = ("rivals_real", "celeba professions", ("max_skew@50", "MaxSkew@50"), ("query_cosine", "self-similarity"))
BIRDS = ("quickstart", "birds", ("worst_group", "worst group"), ("average_reweighted", "average accuracy"))
AGES = ("rivals_real", "celeba age", ("worst_group", "worst group"), ("average", "average accuracy"))
WINDOW = (
    Line("drawing people", "by sampling, `stated-value`", *DRAWN, "stated value", "unseen professions"),
    Line("drawing people", "by the embedding alone, default", *DRAWN, "default", "unseen professions"),
    Line("searching photographs", "texts alone, default", *SEARCH, "difference of the values"),
    Line("searching photographs", "unlabelled photographs, `reference=`", *SEARCH,
         "calibration and equalised image means, lam 100"),
    Line("classifying photographs by age", "texts alone, default", *AGES, "difference of the values"),
    Line("classifying birds", "texts alone, default", *BIRDS, "default"),
    Line("classifying birds", "unlabelled pictures, `reference=`", *BIRDS, "cali+equalise"),
)  # fmt: skip


def rows_of_line(line: Line) -> tuple[Measurement, Measurement, tuple[float, float]]:
    """The measure of bias before and after, and the cost before and after."""
    rows = _rows(line.result, line.block, line.subset)
    (metric, _), (use, _) = line.measure, line.cost
    return rows["none", metric], rows[line.row, metric], (rows["none", use].value, rows[line.row, use].value)


def window_block() -> str:
    """What is gained and what it costs, a line each; the intervals are those of the values."""
    lines = [["task", "before", "after", "cost"]]
    for line in WINDOW:
        none, bias, (before, after) = rows_of_line(line)
        values = [f"{line.measure[1]} {span(none, '.2f')}", span(bias, ".2f")]
        values[1] += {"better": "", "worse": ", **worse**"}.get(verdict(bias), ", no clear change")
        lines.append([f"{line.task}: {line.how}", *values, f"{line.cost[1]} {before:.2f} to {after:.2f}"])
    return table(*lines)


def needs_block() -> str:
    """What the two commands need, by the committed sizes."""
    (size,) = [row.value for row in read("install_sizes").rows if (row.metric, row.method) == ("MB", "all")]
    return paragraph(
        "Both need make, python 3.11 or newer, and once a network, from which they fetch packages that fill",
        f"{size / 1000:.0f} GB, most of it torch (`eval/results/install_sizes.json`). Nothing else is fetched.",
    )


def picture_block() -> str:
    """The picture of the page and what is on it, in the words of its file."""
    about = picture_metadata(RESULTS / "median.png")
    who, women = about["profession"], about["women"]
    rows = {"none": "as the pipeline draws it", "default": "with the default", "stated value": "with `stated-value`"}
    told = ", ".join(f"{words} ({100 * women[name]:.0f} % women)" for name, words in rows.items())
    return (
        f"![A {who} from the same noise, row by row: {told.replace('`', '')}](eval/results/median.png)\n\n"
        + paragraph(
            f"“A photo of a {who}.”, from the same noise in each column, drawn by a small pipeline that comes along",
            "and runs offline. The default changes the text embedding alone; `stated-value` gives each image a value.",
            "Not the best case: a rule picks the median change of the professions that are drawn as one gender",
            "(`python -m eval.experiments.generation_picture`).",
        )
    )


PAPER_DRAWN = (0.412, 0.354)  # Chuang et al., 2023: discrepancy on Stable Diffusion 2.1, before and after


def sampled_block() -> str:
    """How far a deterministic form and sampling go in drawing, and what it costs prompts that no fit knows."""
    rows = _rows("generation", "generation gender", "unseen professions")
    people = _rows("generation", "generation gender", "outside the fit, portraits")
    default, (before, after) = rows["default", "discrepancy"], PAPER_DRAWN

    def left(method: str, kind: str = "") -> str:
        share = rows[method, f"discrepancy{kind}, share of none"]
        return "{:.0%} [{:.0%}, {:.0%}]".format(share.value, *share.interval)

    kept = {m: row.value for (m, metric), row in people.items() if metric == "shows what was asked for"}
    recognised = {m: row.value for (m, metric), row in rows.items() if metric == "recognised"}
    return paragraph(
        f"On {default.n['professions']} professions of the miniature world, each outside the fit that it is drawn",
        f"under ({default.n['fits']} fits), the default {_verdict(default)} the parity gap between women and men:",
        f"{left('default')} are left, of its square, corrected for the number of images, {left('default', '_squared')}",
        f"(intervals over fits and professions). The paper's authors report {after / before:.0%} left on Stable",
        f'Diffusion 2.1; here their weight, `method="paper"`, leaves {left("cali")}, and draws',
        f"{1 - kept['cali']:.0%} of the people in prompts that name no profession as something else, the default",
        f'{1 - kept["default"]:.0%}. One argument changes it: `method="stated-value"` draws a value for each image,',
        f"states it in the prompt and leaves {left('stated value')}, with {recognised['stated value']:.3f} of the",
        f"subjects recognised ({recognised['none']:.3f} without).",
    )


LEFT = ("none", "default", "cali", "leading", "difference", "midpoint", "stated mean", "balanced", "weighted values",
        "uce", "uce all", "fair pca", "steer", "fair diffusion", "stated value")  # fmt: skip


def left_block() -> str:
    """What each method of the page's first table leaves, and what it costs, over fits and professions."""
    rows = _rows("generation", "generation gender", "unseen professions")
    outside = _rows("generation", "generation gender", "outside the fit, portraits")
    costs = ["subject accuracy", "a person outside the fit stays one"]
    lines = [["method", "parity gap left", "squared, corrected", *costs]]
    measured = {method for method, _ in rows}
    for method in (one for one in LEFT if one in measured):
        shares = [rows[method, f"discrepancy{kind}, share of none"] for kind in ("", "_squared")]
        paid = (rows[method, "recognised"], outside[method, "shows what was asked for"])
        name = generation_table.called(method, measured)
        lines.append([name, *(span(one, ".2f") for one in shares), *(f"{one.value:.3f}" for one in paid)])
    return table(*lines)


def sparing_block() -> str:
    """How much of the space a fit may remove before prompts outside of it change, a row per bound."""
    measures = {
        ("portraits", "shows what was asked for"): "a person stays one",
        ("birds", "shows what was asked for"): "a bird stays one",
        ("unseen professions", "discrepancy"): "parity gap, 20 unseen professions",
        ("unseen professions", "recognised"): "subject accuracy",
    }
    found = {(row.method, row.subset, row.metric): row for row in read("generation_sparing").rows}
    methods = dict.fromkeys(method for method, _, _ in found)
    lines = [[method, *(span(found[method, *measure]) for measure in measures)] for method in methods]
    return table(["removed at most", *measures.values()], *lines, note="From `eval/results/generation_sparing.json`.")


def _verdict(row: Measurement) -> str:
    """What a change says of something that is better lower."""
    assert row.change is not None
    _, low, high = row.change
    return "lowers" if high < 0 else "raises" if low > 0 else "does not clearly change"


def joint_block() -> str:
    """What each form leaves of two attributes at once, and of the subject; beside it the subject under gender alone."""
    task, alone = "generation gender and tone", _rows("generation", "generation gender", "unseen professions")
    gender, tone = (_rows("generation", task, f"unseen professions, {kind}") for kind in ("gender", "tone"))
    share, told = "discrepancy, share of none", "{:.0%} [{:.0%}, {:.0%}]"
    plain = alone["none", "recognised"].value
    lines = [f"Gender and skin tone at once, on unseen professions ({plain:.3f} recognised without):", ""]
    for method in dict.fromkeys(method for method, _ in gender if method != "none"):
        left = [told.format(rows[method, share].value, *rows[method, share].interval) for rows in (gender, tone)]
        name, both = method.removesuffix(" jointly"), gender[method, "recognised"]
        lines.append(
            f"- {name} leaves {left[0]} of gender's parity gap and {left[1]} of the tone's, with {both.value:.3f} "
            f"[{both.interval[0]:.3f}, {both.interval[1]:.3f}] recognised; for gender alone "
            f"{alone[name, 'recognised'].value:.3f}"
        )
    return "\n".join(lines) + "\n"


def block(name: str) -> str:
    """The table of one committed result, with where it comes from."""
    result = read(name)
    commit = f", commit {result.commit}" if result.commit else ""
    note = f"95 % bootstrap intervals in brackets; from `eval/results/{name}.json`{commit}."
    register_metrics()
    return f"\n{markdown_table(result, BLOCKS.get(name, GROUNDS))}\n\n{note}\n\n"


Cells = list[list[str]]


def record(name: str, cells: Callable[[Result], Cells]) -> str:
    """A table of a committed result whose cells are its own; the first row of them is the head."""
    return table(*cells(read(name)), note=f"From `eval/results/{name}.json`.")


def counted(what: str, keys: Sequence[str], result: Result) -> Cells:
    """Counts by method, and of all."""
    rows = rows_of(result)
    rows.append({"method": "all", **{key: sum(row.get(key, 0) for row in rows) for key in keys}})
    return [[what, *keys], *([row["method"], *(f"{row.get(key, 0):,.0f}" for key in keys)] for row in rows)]


def _mutated(result: Result) -> Cells:
    every, parts = result.provenance[0].settings["mutants"], dict[str, list[Any]]()
    for row in every:
        parts.setdefault(row["file"].removeprefix("vldebias/").partition("/")[0].removesuffix(".py"), []).append(row)
    parts |= {"those with a name": [row for row in every if "named" in row], "all": every}
    lines = [["part", "mutants", "noticed", "change nothing", "survived"]]
    for part, rows in parts.items():
        left = [row for row in rows if row["verdict"] == "survived"]
        nothing = sum("why" in row for row in left)
        lines.append([part, *map(str, (len(rows), len(rows) - len(left), nothing, len(left) - nothing))])
    return lines


def _repeated(result: Result) -> Cells:
    lines = [["work", "what", "threads", "processes", "batch", "values that differ", "largest difference"]]
    base = result.provenance[0].settings["base"]
    for row in rows_of(result):
        changed = [f"**{row[key]}**" if row[key] != base[key] else str(row[key]) for key in base]
        differ, by = "none", "0"
        if not row["identical"]:
            differ = f"{row['differ']:,.0f} of {row['values']:,.0f}"
            by = f"{row['largest_difference']:.1e} (values up to {row['largest_value']:.3g})"
        lines.append([row["method"], row["what"], *changed, differ, by])
    return lines


def _soaked(result: Result) -> Cells:
    head = ["server", "clients", "minutes", "requests", "errors", "MiB at a third", "MiB at the end", "MiB a minute"]
    lines = [head]
    for row in rows_of(result):
        memory = [f"{row[key]:,.0f}" for key in ("mib_at_a_third", "mib_at_the_end")]
        counts = [f"{row['clients']:.0f}", f"{row['minutes']:.0f}", f"{row['requests']:,.0f}"]
        counts.append(str(len(row.get("errors", ()))))
        lines.append([f"`vldebias {row['method']}`", *counts, *memory, f"{row['mib_per_minute']:.2f}"])
    return lines


def _auto(result: Result, kinds: Sequence[str] = ()) -> Cells:
    head = ["reference", "settings", "worse than none", "most behind no reference", "more than .02 behind"]
    lines = [[*head, "gain missed", "unguarded: behind, missed", "a warning", "left out", "told unlike"]]
    found = {row["method"]: row for row in rows_of(result)}
    for kind in kinds or found:
        row, (low, high) = found[kind], found[kind]["missed_interval"]
        counts = [f"{row['settings']:.0f}", f"{row['worse']:.0f}", f"{row['behind, largest']:+.3f}"]
        counts.append(f"{row['behind, above 0.02']:.0f}")
        other = f"{row['unguarded, behind, above 0.02']:.0f}, {row.get('unguarded, missed', 0):.0%}"
        warned = [f"{row[key]:.0f}" for key in ("told", "left_out", "unlike")]
        name = f"**{kind}**" if kind in ("genuine", "all") else kind
        lines.append([name, *counts, f"{row['missed']:.0%} [{low:.0%}, {high:.0%}]", other, *warned])
    return lines


def _worlds(result: Result) -> Cells:
    builds = len(result.provenance[0].settings["builds"])
    lines = [["what", "figure", f"mean of {builds} builds [95 %]", "aim", "met"]]
    aims = {(p.task, r["part"], r["metric"]): r for p in result.provenance for r in p.settings["beside"]}
    for row in result.rows:
        aimed = aims[row.task, row.method, row.metric]
        value = f"{row.value:.3f} (one build)" if row.n["builds"] == 1 else span(row)
        aim = "" if aimed["target"] is None else "{:.2f} to {:.2f}".format(*aimed["target"])
        met = {None: "", True: "yes", False: "**no**"}[aimed["met"]]
        lines.append([f"{row.task}, {row.method}", row.metric, value, aim, met])
    return lines


def _timed(result: Result) -> Cells:
    """A row for each side of the benchmark of `diagnose`."""
    head = ["", "rows", "processor seconds", "seconds", "peak MB"]
    return [head, *([row["what"], *(f"{row[name]:,.0f}" for name in head[1:])] for row in rows_of(result, "what"))]


def measured_by(command: str, name: str, cells: Callable[[Result], Cells]) -> str:
    """The table of a result, or the command that makes it."""
    if not (RESULTS / f"{name}.json").is_file():
        return f"Not measured yet: `{command}` makes this table.\n"
    return record(name, cells)


def _attached(result: Result) -> Cells:
    """A row for each way to be attached: the seconds that it adds to a call, and as a part of that."""
    head = ["what", "a call of", "which takes (s)", "its own (ms)", "part of the call"]

    def part(row: Mapping[str, Any]) -> str:
        return f"{row['share']:.0f} times" if row["share"] > 1 else f"{100 * row['share']:.2f} %"

    rows = rows_of(result, "what")
    own = [f"{1e3 * row['share'] * row['plain']:.1f}" for row in rows]
    return [head, *([r["what"], r["size"], f"{r['plain']:.2f}", ms, part(r)] for r, ms in zip(rows, own, strict=True))]


def _windows(result: Result) -> Cells:
    """A row for each method: discrepancy and subjects recognised at full strength, and what windows gain."""
    found = {(row.method, row.subset, row.metric): row for row in result.rows}
    windows = [row.subset for row in result.rows if row.metric == "subjects_gained"]
    lines = [["method", "all steps", *(one.removeprefix("steps ") for one in dict.fromkeys(windows))]]

    def both(method: str, setting: str) -> str:
        return " / ".join(f"{found[method, setting, metric].value:.2f}" for metric in ("discrepancy", "recognised"))

    full = "strength 1"
    lines.append(["none", both("none", full), *[""] * (len(lines[0]) - 2)])
    for method in dict.fromkeys(row.method for row in result.rows if row.metric == "subjects_gained"):
        gained = {one: found[method, one, "subjects_gained"] for one in dict.fromkeys(windows)}
        cells = [
            f"{both(method, one)}; {row.value:+.2f} [{row.interval[0]:+.2f}, {row.interval[1]:+.2f}]"
            for one, row in gained.items()
        ]
        lines.append([method, both(method, full), *cells])
    return lines


def _reached(result: Result) -> Cells:
    """Kinds of classes and what became of their tiny pipelines, the last row families with the table hidden."""
    rows = [row for row in result.rows if row.task in ("hosts drawn", "hosts asked")]
    hows = list(dict.fromkeys(row.method for row in rows if row.task == "hosts drawn"))
    lines = [["classes", *hows]]
    for kind in dict.fromkeys(row.subset for row in rows if row.task == "hosts drawn"):
        of = {row.method: row.value for row in rows if row.subset == kind}
        lines.append([kind.removeprefix("kind = "), *(f"{of[how]:.0f}" for how in hows)])
    return lines


def left_undrawn(result: Result) -> str:
    """Classes that were not drawn, each with its reason."""
    part = next(one for one in result.provenance if one.task == "hosts drawn")
    by_reason: dict[str, list[str]] = {}
    for name, why in part.settings["others"].items():
        by_reason.setdefault(why.replace("<", "&lt;"), []).append(f"`{name.removesuffix('Pipeline')}`")
    return "\n" + "\n".join(f"- {', '.join(names)}: {why}" for why, names in by_reason.items()) + "\n\n"


def _speed(result: Result) -> Cells:
    """A row for each benchmark: both times, ours as a part of the other, and peak memory where it was measured."""
    head = ["what / against what", "size", "ours (s)", "against (s)", "ours / against", "peak MB", "against"]

    def peaks(row: Mapping[str, Any]) -> list[str]:
        in_mb = [row.get(f"peak MB, {side}", row.get(f"memory, {side}", np.nan) / 2**20) for side in ("ours", "plain")]
        return ["" if np.isnan(one) else f"{one:,.0f}" for one in in_mb]

    rows = rows_of(result, "what")
    times = [[f"{row['ours']:.3g}", f"{row['plain']:.3g}", f"{row['ours'] / row['plain']:.2g}"] for row in rows]
    both = zip(rows, times, strict=True)
    return [head, *([row["what"], str(row.get("size", "")), *seconds, *peaks(row)] for row, seconds in both)]


def _whole(result: Result) -> Cells:
    """A row for each task."""
    head = ["task", "images", "processor seconds", "peak MB of the process", "of which features"]
    names = ("rows", "seconds", "peak MB", "features MB")
    return [head, *([row["what"], *(f"{float(row[name]):,.0f}" for name in names)] for row in rows_of(result, "what"))]


def _growth(result: Result) -> Cells:
    return [
        ["what", "over", "slope"],
        *([row["what"], str(row["over"]), f"{row['slope']:.2f}"] for row in rows_of(result, "what")),
    ]


def _sharded(result: Result) -> Cells:
    """A row for each measurement of features in shards."""
    figures = ["GB of features", "seconds", "processor seconds", "own peak MB"]
    lines = [["", "of", *figures, "equal to the digit, or byte"]]
    for row in rows_of(result, "what"):
        told = ("" if (one := row.get(name)) is None else f"{one:,.0f}" for name in figures)
        of = row.get("rows") or row.get("shards")
        lines.append([row["what"], row["size"], *told, f"{row['equal']:.0f} of {of:.0f}" if of else ""])
    return lines


RECORDS: dict[str, Callable[[Result], Cells]] = {
    "attack": partial(counted, "what", ("tries", "refused", "same", "failures")),
    "mutants": _mutated,
    "determinism": _repeated,
    "soak": _soaked,
}


DEFAULT = {  # (method, lam) of pareto -> what the page calls it
    ("none", None): "none",
    ("difference", None): "default (`difference`)",
    ("cali", 100.0): "`cali`, lam 100",
    ("cali", 1000.0): "`cali`, lam 1000",
    ("orth-cali", 1000.0): "`orth-cali`, the paper's",
}


def default_block() -> str:
    """The default beside other closed forms on the miniature world: birds, queries that lean and that do not."""
    columns = {
        ("birds", "worst_group"): "birds, worst group",
        ("birds", "average"): "birds, average",
        ("portraits gender", "max_skew@100"): "unseen professions by gender, MaxSkew@100",
        ("portraits gender, concepts", "max_skew@100"): "concepts by gender, MaxSkew@100",
        ("portraits gender, concepts", "query_cosine"): "their cosine with themselves",
    }
    found = {(row.task, row.metric, row.method, row.lam): row for row in read("pareto").rows if not row.subset}
    lines = [["method", *columns.values()]]
    lines += [[called, *(span(found[*column, *method]) for column in columns)] for method, called in DEFAULT.items()]
    return table(*lines, note="From `eval/results/pareto.json`.")


def default_real_block() -> str:
    """The default beside other closed forms on photographs: search, what it costs, and ages that gender goes along."""
    names = {"none": "none", "difference": "default (`difference`)", "cali, lam 100": "`cali`, lam 100"}
    names |= {"cali": "`cali`, lam 1000", "orth-cali": "`orth-cali`, the paper's"}
    result = read("rivals_real")
    searched, ages = (rows_in(result, task) for task in ("celeba professions", "celeba age"))
    titles = {told["name"]: title for title, told in result.provenance[0].methods.items()}
    lines = [["method", "MaxSkew of 51 professions", "change", "splits", "query cosine", "worst group", "average"]]
    for name, called in names.items():
        skew, splits, kept = (searched[titles[name], m] for m in ("max_skew@50", "max_skew@50, splits", "query_cosine"))
        change = f"{skew.change[0]:+.3f} [{skew.change[1]:+.3f}, {skew.change[2]:+.3f}]" if skew.change else ""
        low, high = splits.interval or (splits.value, splits.value)
        cells = [span(skew), change, f"{low:.3f} to {high:.3f}", f"{kept.value:.3f}"]
        lines.append([called, *cells, *(span(ages[titles[name], m]) for m in ("worst_group", "average"))])
    return table(*lines, note="From `eval/results/rivals_real.json`.")


def offsets_block() -> str:
    """Change of worst group and averages by each offset: in each world, mean over methods, and over all."""
    result = read("offsets")
    worlds = [p.task for p in result.provenance]
    metrics = {"worst_group": "worst group", "average": "average", "average_reweighted": "reweighted"}
    head = ["offset", *(f"{world}: worst group" for world in worlds[:-1])]
    lines = [[*head, *(f"all: {name}" for name in metrics.values()), "helps", "hurts"]]
    for offset in dict.fromkeys(row.subset for row in result.rows if row.task == "all"):
        own = [row for row in result.rows if row.subset == offset]
        cells = []
        for world in worlds[:-1]:
            moved = [row.change[0] for row in own if (row.task, row.metric) == (world, "worst_group") and row.change]
            cells.append(f"{sum(moved) / len(moved):+.3f} ({min(moved):+.3f} to {max(moved):+.3f})")
        whole = {row.metric: row for row in own if row.task == "all"}
        means = [whole[f"change of {metric}"] for metric in metrics]
        cells += [f"{row.value:+.3f} [{row.interval[0]:+.3f}, {row.interval[1]:+.3f}]" for row in means]
        counts = [f"{whole[f'{word}, worst_group'].value:.0f}" for word in ("helped", "hurt")]
        lines.append([offset, *cells, *counts])
    n = next(iter(whole["helped, worst_group"].n.values()))
    note = f"helps, hurts: of {n} pairs of world and method, beyond the interval of the worst group's change"
    return table(*lines, note=f"{note}; from `eval/results/offsets.json`.")


FEATURES = {
    "probes": ("linear_probe", "neighbour_probe"),
    "groups": ("worst_group", "hidden_f1"),
    "labels": ("auroc",),
    "margins": ("margin", "gn_margin", "kv_margin", "kv_gn_margin", "true_over_random", "least_bound"),
}


def features_block(part: str) -> str:
    """Methods (and subsets) down, tasks and metrics across, of one part of the experiment on features."""
    rows = [row for row in read(f"features_{part}").rows if row.metric in FEATURES[part]]
    found = {(row.method, row.subset, row.task, row.metric): row for row in rows}
    columns = list(dict.fromkeys((row.task, row.metric) for row in rows))
    names = [f"{task.removeprefix(part).strip()}: {metric_of(metric).title}" for task, metric in columns]
    lines = [["", *names]]
    for method, subset in dict.fromkeys((row.method, row.subset) for row in rows):
        own = [found.get((method, subset, *column)) for column in columns]
        lines.append([", ".join(filter(None, (method, subset))), *("" if row is None else _mean(row) for row in own)])
    note = "mean over five seeds ± 95 % interval of Student's t; * differs from none beyond it"
    return table(*lines, note=f"{note}; from `eval/results/features_{part}.json`.")


LINES = {
    "lean_r": "r",
    "lean_r2": "R2, left out",
    "side_right": "side right",
    "said_right": "side right where one is said",
    "interval_coverage": "held-out shares covered",
    "interval_width": "width",
}
SOURCES = {
    "published": "Stable Diffusion 1.5, B/32's texts",
    "retrieval": "CelebA search, B/32's texts",
    "miniature": "embedded pipeline",
}


def lines_block() -> str:
    """Tasks and directions down, how well shares are predicted across."""
    lines = [["what is predicted from what", "concepts", *LINES.values()]]
    for task, title in SOURCES.items():
        for subset in dict.fromkeys(row.subset for row in read("audit_texts").rows if row.task == task):
            own = {metric: row for (_, metric), row in rows_in(read("audit_texts"), task, subset).items()}
            if "lean_r" not in own:
                continue
            cells = [
                f"{own[one].value:.2f}" if one in ("interval_width", "lean_r2") else span(own.get(one), ".2f")
                for one in LINES
            ]
            lines.append([", ".join(filter(None, (title, subset))), str(own["lean_r"].n["concepts"]), *cells])
    return table(*lines, note="From `eval/results/audit_texts.json`.")


def effects_block() -> str:
    """Methods down; parity gaps, predicted from texts and true, across."""
    titles = {"retrieval": "search (CelebA, B/32)", "methods": "drawing (embedded pipeline)"}
    lines = [["", "predicted parity gap", "true parity gap", "mean error of a share"]]
    for task, title in titles.items():
        rows = [row for row in read("audit_texts").rows if row.task == task]
        for subset in dict.fromkeys(row.subset for row in rows if row.metric == "predicted_discrepancy"):
            own = {row.metric: row for row in rows if row.subset == subset}
            metrics = ("predicted_discrepancy", "discrepancy", "share_error")
            lines.append([f"{title}, {subset}", *(span(own[metric], ".2f") for metric in metrics)])
    return table(
        *lines,
        note="Concepts that no line was fitted on, or the same queries after a method; "
        "from `eval/results/audit_texts.json`.",
    )


def judged_example() -> str:
    """What a judge says, what people make of it, and the difference."""
    rows = {(r.metric, r.subset): r for r in read("judged_shares").rows if r.task == "example corrected"}
    figures = (
        ("share", "male"),
        ("share", "female"),
        ("discrepancy", ""),
        ("max_skew", ""),
        ("discrepancy_squared", ""),
    )
    lines = [["figure", "by the judge", "corrected by people", "the judge moves it by"]]
    for metric, subset in figures:
        name = ", ".join(filter(None, (metric_of(metric).title, subset)))
        lines.append([name, *(number(rows[start + metric, subset]) for start in ("", "corrected_", "judge_moves_"))])
    return table(*lines, note="value [95 % interval]; from `eval/results/judged_shares.json`.")


def judged_coverage() -> str:
    """Coverage of every kind of interval by the number of labels."""
    rows = [row for row in read("judged_shares").rows if row.metric in ("coverage", "width")]
    found = {(r.task, r.method, r.subset, r.metric): r for r in rows}
    labels = list(dict.fromkeys(row.subset for row in rows))
    lines = [["judge", "interval", *labels]]
    for task, method in dict.fromkeys((row.task, row.method) for row in rows):
        pairs = ([found[task, method, one, metric].value for metric in ("coverage", "width")] for one in labels)
        lines.append([task, method, *(f"{covered:.3f} ({width:.3f})" for covered, width in pairs)])
    sets = next(iter(rows[0].n.values()))
    note = f"share of {sets} data sets whose 95 % interval holds the truth (mean width)"
    return table(*lines, note=f"{note}; from `eval/results/judged_shares.json`.")


def few_block() -> str:
    """MaxSkew by the number of reference images, a row for each method."""
    result = read("rivals_few")
    about = {p.task: p for p in result.provenance}
    found = {
        name: {m: row for (m, metric), row in rows_in(result, name).items() if metric == "max_skew@50"}
        for name in about
    }
    names = {method: told["name"] for p in about.values() for method, told in p.methods.items()}
    lines = [["MaxSkew@50 of 51 professions", *found]]
    for method in next(iter(found.values())):
        if method in names:
            lines.append([f"`{names[method]}`", *(span(rows[method]) for rows in found.values())])
    return table(*lines, note="From `eval/results/rivals_few.json`, halves of the photographs.")


def gallery_block() -> str:
    """The gallery of a real pipeline with what it took; or that nobody has drawn it yet."""
    command = "python -m eval.experiments.real_gallery --pipeline ID_OR_FOLDER --device cuda --json"
    if not (RESULTS / "real_gallery.json").is_file():
        return paragraph(
            "**This place is empty.** No GPU and no weights of a real pipeline were at hand where this repository was",
            f"made. `{command} eval/results/real_gallery.json` fills it, and says first what that takes.",
        )
    result = read("real_gallery")
    told = result.provenance[0].settings
    lines = [["method", "images", "seconds of an image", "change of a pixel"]]
    lines += [[row["method"], *(f"{row[name]:g}" for name in lines[0][1:])] for row in rows_of(result)]
    where = f"{told['model']['id']}, {told['steps']} steps, on {told['device']}, {told['peak MB']:,} MB at most"
    picture = "![Prompts outside the fit, as a real pipeline draws them and under each method]"
    return f"{picture}(../eval/results/real_gallery.png)\n\n" + table(*lines, note=f"{where}; by `{command}`.")


def blocks() -> dict[Path, dict[str, Callable[[], str]]]:
    """File -> the name of each of its blocks and what makes it."""
    docs, explanation, rivals = ROOT / "docs", ROOT / "docs" / "explanation", "rivals_miniature"
    found: dict[Path, dict[str, Callable[[], str]]] = {
        ROOT / "README.md": {"picture": picture_block, "window": window_block, "needs": needs_block},
        docs / "results.md": {name: partial(block, name) for name in ("quickstart", "real_clip_b32")},
        docs / "results" / "beyond.md": {name: partial(block, name) for name in ("beyond", "pareto")},
        docs / "methods" / "photographs.md": {"rivals_real": partial(rivals_table.block, "rivals_real")},
        docs / "methods" / "miniature-search.md": {"rivals_search": partial(rivals_table.block, rivals, "max_skew")},
        docs / "methods" / "miniature-groups.md": {"rivals_groups": partial(rivals_table.block, rivals, "worst_group")},
        explanation / "auto.md": {
            "auto": partial(record, "auto", _auto),
            "auto_again": partial(record, "auto_again", partial(_auto, kinds=("none", *GENUINE, "genuine", "all"))),
        },
        explanation / "boundary.md": {"offsets": offsets_block},
        explanation / "the-default.md": {
            "default": default_block,
            "default_real": default_real_block,
            "default_choice": default_choice.block,
            "few": few_block,
        },
        docs / "fine-tuning.md": {
            "losses": fine_tuning_tables.losses_words,
            "verdicts": fine_tuning_tables.verdicts_block,
        },
        docs / "fine-tuning" / "measured.md": {
            "scratch": fine_tuning_tables.scratch_block,
            "scratch_words": fine_tuning_tables.scratch_words,
        },
        docs / "fine-tuning" / "bias.md": {
            "tutorial_words": fine_tuning_tables.tutorial_words,
            "projection_words": fine_tuning_tables.projection_words,
        },
        docs / "fine-tuning" / "running.md": {
            "killed": partial(record, "killed", partial(counted, "work", ("kills", "runs", "lost", "other"))),
        },
        docs / "generation.md": {"sampled": sampled_block, "left": left_block},
        docs / "generation" / "forms.md": {"sparing": sparing_block},
        docs / "generation" / "figures.md": {"generation": generation_table.block, "joint": joint_block},
        docs / "generation" / "birds.md": {"birds_drawn": partial(block, "birds_drawn")},
        docs / "how-to" / "correct-the-judge.md": {
            "judged_example": judged_example,
            "judged_coverage": judged_coverage,
        },
        docs / "how-to" / "diagnose.md": {
            **{f"features_{part}": partial(features_block, part) for part in FEATURES},
            "bench_diagnose": partial(record, "bench_diagnose", _timed),
        },
        explanation / "pipelines-not-drawn.md": {"hosts_left": lambda: left_undrawn(read("hosts_coverage"))},
        explanation / "pipelines.md": {
            "hosts_coverage": partial(record, "hosts_coverage", _reached),
            "step_window": partial(measured_by, "python -m eval.experiments.step_window", "step_window", _windows),
        },
        docs / "how-to" / "serving.md": {"bench_attachment": partial(record, "bench_attachment", _attached)},
        docs / "explanation" / "speed.md": {
            "bench_speed": partial(measured_by, "make bench", "bench_speed", _speed),
            "bench_growth": partial(measured_by, "make bench", "bench_growth", _growth),
            "bench_whole": partial(measured_by, "make bench", "bench_whole", _whole),
        },
        docs / "how-to" / "past-one-machine.md": {"bench_shards": partial(record, "bench_shards", _sharded)},
        docs / "explanation" / "validity.md": {
            "geometry": partial(record, "validity", validity.geometry_cells),
            "skews": partial(record, "validity", validity.skew_cells),
        },
        docs / "tutorials" / "audit-a-prompt-list.md": {"audit_lines": lines_block, "audit_effects": effects_block},
        docs / "how-to" / "miniature.md": {"worlds": partial(record, "worlds", _worlds)},
        docs / "gallery.md": {"real_gallery": gallery_block},
        docs / "index.md": {"first_hours": first_hours.overview},
        docs / "explanation" / "first-hours.md": {
            **{f"hour_{user}": partial(first_hours.hour, user) for user in first_hours.USERS},
            "commands": first_hours.asked,
            "cold_start": first_hours.cold,
        },
        ROOT / "eval" / "README.md": {name: partial(record, name, cells) for name, cells in RECORDS.items()},
    }
    for one, page in experiment.pages():
        found.setdefault(ROOT / page.page, {})[page.block] = partial(page_block, one.name, page, one.method)
    return found


def render(path: Path) -> str:
    """The text of a file with every block between its markers replaced by the committed figures."""
    text = path.read_text(encoding="utf-8")
    for name, made in blocks()[path].items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text, found = pattern.subn((begin + made() + end).replace("\\", r"\\"), text)
        if found != 1:
            raise SystemExit(f"{path.name}: expected one block {begin.strip()} ... {end}, found {found}")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a README is out of date")
    arguments = parser.parse_args()
    made = {path: render(path) for path in blocks()}
    if arguments.check:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
