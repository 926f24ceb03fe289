"""Write the tables of the READMEs and of docs/results.md from the committed results; no figure is typed.

python -m eval.readme          # rewrite README.md, eval/README.md and docs/results.md
python -m eval.readme --check  # fail if one is out of date
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from eval.experiments import generation_table, rivals_table
from eval.experiments.auto_worlds import GENUINE
from eval.metrics import register_metrics
from vldebias.evaluation.report.pages import markdown_table
from vldebias.evaluation.report.words import verdict
from vldebias.evaluation.result import Measurement, Result
from vldebias.pictures import picture_metadata

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "eval" / "results"
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
RIVALS = ("rivals_real", "rivals_miniature")
GENERATION = [name for name in ("generation",) if (RESULTS / f"{name}.json").is_file()]


@dataclass(frozen=True)
class Grid:
    """A table of a training experiment: a row per value of some settings, a column per value of one, or per metric."""

    result: str
    rows: tuple[str, ...]
    column: str
    metrics: tuple[str, ...]
    note: str
    where: Mapping[str, Any] = field(default_factory=dict)


T_SEEDS = "mean over seeds ± 95 % interval of Student's t; * differs from {base} on the same seeds beyond its interval"
ACCURACY = ("zero_shot_accuracy",)
GRIDS = {
    "noisy_captions": Grid(
        "noisy_captions",
        ("eta",),
        "loss",
        ACCURACY,
        "Zero-shot accuracy, " + T_SEEDS.format(base="InfoNCE"),
        {"table": "noise"},
    ),
}
EVAL_GRIDS = {
    "noisy_captions_recall": Grid(
        "noisy_captions",
        ("eta",),
        "loss",
        ("recall@1 text->image",),
        "Recall@1, " + T_SEEDS.format(base="InfoNCE"),
        {"table": "noise"},
    ),
    "noisy_captions_lam": Grid(
        "noisy_captions",
        ("lam",),
        "eta",
        ACCURACY,
        "RINCE q=0.5, zero-shot accuracy by eta, mean ± interval",
        {"table": "lam"},
    ),
    "wrong_pairs": Grid(
        "wrong_pairs",
        ("eta", "loss"),
        "metric",
        ("auroc", "score of right pairs", "score of wrong pairs"),
        T_SEEDS.format(base="InfoNCE"),
    ),
    "debiased": Grid(
        "false_negatives", ("tau_plus",), "metric", ACCURACY, T_SEEDS.format(base="tau_plus = 0"), {"loss": "debiased"}
    ),
    "hard_negative": Grid(
        "false_negatives", ("beta",), "metric", ACCURACY, T_SEEDS.format(base="beta = 0"), {"loss": "hard_negative"}
    ),
    "skewed_captions": Grid(
        "skewed_captions",
        ("loss",),
        "metric",
        (*ACCURACY, "accuracy on common species", "accuracy on rare species"),
        T_SEEDS.format(base="info_nce"),
    ),
    "ssa": Grid(
        "ssa",
        ("arm",),
        "metric",
        ("accuracy", "robust_accuracy@2/255", "robust_accuracy@8/255", "gap, original", "gap, mixed"),
        T_SEEDS.format(base="none"),
    ),
    "ssa_longer": Grid(
        "ssa_longer",
        ("steps", "arm"),
        "metric",
        ("accuracy", "robust_accuracy@1/255", "robust_accuracy@2/255", "gap, original", "gap, mixed"),
        T_SEEDS.format(base="none of as many steps"),
    ),
    "finetune_and_debias": Grid(
        "finetune_and_debias",
        ("captions", "model"),
        "metric",
        (
            "species_accuracy",
            "worst_group, none",
            "worst_group, orth-cali",
            "worst_group, cali",
            "average, none",
            "average, cali",
        ),
        T_SEEDS.format(base="the model as shipped"),
    ),
}


def pay(start: str, metric: str = ACCURACY[0]) -> Grid:
    """One start of does_it_pay.py."""
    note = f"{metric.replace('_', '-')}, " + T_SEEDS.format(base="InfoNCE")
    return Grid("does_it_pay", ("noise", "share"), "arm", (metric,), note, {"start": start})


PAY_GRIDS = {
    "pay_heads": pay("heads"),
    "pay_all": pay("all"),
    "pay_scratch": pay("scratch"),
    "pay_linear": pay("heads", "linear evaluation"),
    "out_of_fold": Grid(
        "out_of_fold",
        ("scores",),
        "metric",
        ("auroc after 60", "auroc after 120", "auroc after 240"),
        T_SEEDS.format(base="scores of pairs that it learns"),
    ),
    "finetune_tutorial": Grid(
        "finetune_tutorial",
        ("model",),
        "metric",
        (
            "zero-shot",
            "species",
            "worst group",
            "worst group, projection",
            "zero-shot, projection",
            "recall@1 image->text",
            "recall@10 text->image",
        ),
        T_SEEDS.format(base="the model as shipped"),
    ),
}


def grid_block(grid: Grid) -> str:
    """The table of one committed experiment."""
    told = json.loads((RESULTS / f"{grid.result}.json").read_text(encoding="utf-8"))
    rows = [row for row in told["rows"] if row["metric"] in grid.metrics and _is(row, grid.where)]
    columns = grid.metrics if grid.column == "metric" else tuple(dict.fromkeys(row[grid.column] for row in rows))
    head = [*grid.rows, *(column if isinstance(column, str) else f"{grid.column} {column}" for column in columns)]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for place in dict.fromkeys(tuple(row[name] for name in grid.rows) for row in rows):
        own = {row[grid.column]: _cell(row) for row in rows if tuple(row[name] for name in grid.rows) == place}
        lines.append(f"| {' | '.join([*(_short(value) for value in place), *(own[column] for column in columns)])} |")
    return "\n" + "\n".join(lines) + f"\n\n{grid.note}; from `eval/results/{grid.result}.json`.\n\n"


def _is(row: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    return all(row.get(name) == value for name, value in where.items())


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cell(row: Mapping[str, Any]) -> str:
    change = row.get("change")
    beyond = change is not None and not change["low"] <= 0 <= change["high"]
    return f"{row['value']:.3f} ± {row['value'] - row['low']:.3f}{'*' if beyond else ''}"


def _rows(name: str, task: str, subset: str = "") -> dict[tuple[str, str], Measurement]:
    """(method, metric) -> the row of one task of a committed result."""
    result = Result.read(RESULTS / f"{name}.json")
    return {(row.method, row.metric): row for row in result.rows if (row.task, row.subset) == (task, subset)}


@dataclass(frozen=True)
class Line:
    """A line of the README's table: what is done, with which method, its measure of bias, and what that cost."""

    task: str
    method: str  # as a user calls it
    result: str
    block: str
    measure: tuple[str, str]  # metric, and what the table calls it
    cost: tuple[str, str]
    row: str  # the method of the result
    subset: str = ""


REAL_SEARCH = ("searching photographs (CelebA)", "rivals_real", "celeba professions", ("max_skew@50", "MaxSkew@50"))
WINDOW = (
    Line("drawing portraits", "`stated-value`", "generation", "generation gender",
         ("discrepancy", "discrepancy"), ("recognised", "profession recognised"), "stated value", "unseen professions"),
    Line("drawing portraits", "default", "generation", "generation gender",
         ("discrepancy", "discrepancy"), ("recognised", "profession recognised"), "default", "unseen professions"),
    Line("searching portraits", "default", "quickstart", "portraits gender",
         ("max_skew@100", "MaxSkew@100"), ("query_cosine", "self-similarity"), "default"),
    Line("searching portraits", "default, `reference=`", "quickstart", "portraits gender",
         ("max_skew@100", "MaxSkew@100"), ("query_cosine", "self-similarity"), "cali+equalise"),
    Line("classifying birds", "default", "quickstart", "birds",
         ("worst_group", "worst group"), ("average_reweighted", "average accuracy"), "default"),
    Line("classifying birds", "default, `reference=`", "quickstart", "birds",
         ("worst_group", "worst group"), ("average_reweighted", "average accuracy"), "cali+equalise"),
    Line(REAL_SEARCH[0], "default", *REAL_SEARCH[1:], ("query_cosine", "self-similarity"),
         "the best label-free closed form"),
    Line(REAL_SEARCH[0], "`cali+equalise`, `reference=`", *REAL_SEARCH[1:], ("query_cosine", "self-similarity"),
         "calibration and equalised image means"),
    Line("classifying photographs by age", "default", "rivals_real", "celeba age",
         ("worst_group", "worst group"), ("average", "average accuracy"), "the best label-free closed form"),
)  # fmt: skip


def window_block() -> str:
    """What is gained and what it costs, a line each; the intervals are those of the values."""
    head = ["task", "method", "measure of bias", "before", "after", "cost"]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for line in WINDOW:
        rows = _rows(line.result, line.block, line.subset)
        (metric, called), (use, cost) = line.measure, line.cost
        none, bias = rows["none", metric], rows[line.row, metric]
        before, after = rows["none", use].value, rows[line.row, use].value
        chance = rows.get(("random", metric))
        values = [f"{row.value:.2f} [{row.interval[0]:.2f}, {row.interval[1]:.2f}]" for row in (none, bias)]
        values[0] += "" if chance is None else f", chance {chance.value:.2f}"
        values[1] += {"better": "", "worse": ", **worse**"}.get(verdict(bias), ", no clear change")
        cells = [line.task, line.method, called, *values, f"{cost} {before:.2f} to {after:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n" + "\n".join(lines) + "\n\n"


def picture_block() -> str:
    """The picture of the page and what is on it, in the words of its file."""
    about = picture_metadata(RESULTS / "median.png")
    who, women = about["profession"], about["women"]
    rows = {"none": "as the pipeline draws it", "default": "with the default", "stated value": "with `stated-value`"}
    told = [f"{words} ({100 * women[name]:.0f} % women)" for name, words in rows.items()]
    return (
        f"![A {who} from the same noise, row by row: {', '.join(told).replace('`', '')}](eval/results/median.png)\n\n"
        + _paragraph(
            f"“A photo of a {who}.”, the same noise in each column: {', '.join(told[:-1])}, and {told[-1]}.",
            "Picked by a rule: of the unseen professions that the pipeline draws as one gender nine times in ten, the",
            "one with the median change (`python -m eval.experiments.generation_picture`); those drawn evenly",
            "were left out after the median of all of them had shown no change to see. The people are",
            "cartoons of a [miniature world](docs/how-to/miniature.md) that comes along, so it all runs offline.",
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
    return _paragraph(
        f"On {default.n['professions']} professions of the miniature world, each outside the fit that it is drawn",
        f"under ({default.n['fits']} fits), the default {_verdict(default)} the discrepancy between women and men:",
        f"{left('default')} are left, of its square, corrected for the number of images, {left('default', '_squared')}",
        f"(intervals over fits and professions). The paper's authors report {after / before:.0%} left on Stable",
        f'Diffusion 2.1; here their weight, `method="paper"`, leaves {left("cali")}, and draws',
        f"{1 - kept['cali']:.0%} of the people in prompts that name no profession as something else, the default",
        f'{1 - kept["default"]:.0%}. One argument changes it: `method="stated-value"` draws a value for each image,',
        f"states it in the prompt and leaves {left('stated value')}, with {recognised['stated value']:.3f} of the",
        f"subjects recognised ({recognised['none']:.3f} without).",
    )


def left_block() -> str:
    """What each method of the page's first table leaves, and what it costs, over fits and professions."""
    rows = _rows("generation", "generation gender", "unseen professions")
    outside = _rows("generation", "generation gender", "outside the fit, portraits")
    lines = [
        "| method | discrepancy left | squared, corrected | subjects recognised | a person outside the fit stays one |"
    ]
    lines += ["|" + " --- |" * 5]
    for method in ("none", "default", "cali", "difference", "midpoint", "stated mean", "balanced", "weighted values",
                   "uce", "steer", "fair diffusion", "stated value"):  # fmt: skip
        shares = [rows[method, f"discrepancy{kind}, share of none"] for kind in ("", "_squared")]
        told = ["{:.2f} [{:.2f}, {:.2f}]".format(one.value, *one.interval) for one in shares]
        costs = (rows[method, "recognised"], outside[method, "shows what was asked for"])
        lines.append(f"| {' | '.join([method, *told, *(f'{one.value:.3f}' for one in costs)])} |")
    return "\n" + "\n".join(lines) + "\n\n"


def sparing_block() -> str:
    """How much of the space a fit may remove before prompts outside of it change, a row per bound."""
    measures = {
        ("portraits", "shows what was asked for"): "a person stays one",
        ("birds", "shows what was asked for"): "a bird stays one",
        ("unseen professions", "discrepancy"): "discrepancy, 20 unseen professions",
        ("unseen professions", "recognised"): "recognised",
    }
    found = {(row.method, row.subset, row.metric): row for row in Result.read(RESULTS / "generation_sparing.json").rows}
    lines = [f"| removed at most | {' | '.join(measures.values())} |", "|" + " --- |" * (1 + len(measures))]
    for method in dict.fromkeys(method for method, _, _ in found):
        rows = [found[method, *measure] for measure in measures]
        cells = [f"{row.value:.3f} [{row.interval[0]:.3f}, {row.interval[1]:.3f}]" for row in rows]
        lines.append(f"| {' | '.join([method, *cells])} |")
    return "\n" + "\n".join(lines) + "\n\nFrom `eval/results/generation_sparing.json`.\n\n"


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
            f"- {name} leaves {left[0]} of gender's discrepancy and {left[1]} of the tone's, with {both.value:.3f} "
            f"[{both.interval[0]:.3f}, {both.interval[1]:.3f}] recognised; for gender alone "
            f"{alone[name, 'recognised'].value:.3f}"
        )
    return "\n".join(lines) + "\n"


def losses_block() -> str:
    """Which loss when, at the share of wrong captions that the losses were tuned for, worse ones included."""
    rows, _ = _training("does_it_pay", noise="mixture", share=0.4)
    found = {(row["start"], row["arm"]): row for row in rows}

    def told(start: str, arm: str) -> str:
        return f"{found[start, arm]['value']:.3f} ({_moved(found[start, arm])})"

    longer, protocol = _training("noisy_captions", table="noise", loss="RINCE q=1.0")
    moved = {row["eta"]: _moved(row) for row in longer}
    return _paragraph(
        "Where two fifths of the captions belong to other pictures, the projections of a CLIP that was trained before",
        "come to",
        f"{found['heads', 'InfoNCE']['value']:.3f} with InfoNCE, {told('heads', 'RINCE')} with RINCE and",
        f"{told('heads', 'InfoNCE, filtered')} with InfoNCE on the pairs that its own early scores leave, which takes",
        "two to three trainings; from random",
        f"weights to {found['scratch', 'InfoNCE']['value']:.3f}, {told('scratch', 'RINCE')} and",
        f"{told('scratch', 'InfoNCE, filtered')} (zero-shot accuracy, renders of the miniature world, five seeds). A",
        f"longer training from random weights ({protocol['loop']['steps']} steps, q = 1) has RINCE ahead of InfoNCE by",
        f"{moved[0.4]} there, and by {moved[0.6]} at three fifths. So: RINCE to go on with a model; to begin one the",
        "two experiments disagree: [which loss when](docs/fine-tuning.md).",
    )


def scratch_block() -> str:
    """Two experiments on RINCE from random weights, which disagree: InfoNCE, and RINCE's change, at each share."""
    short, about = _training("does_it_pay", noise="mixture", start="scratch")
    longer, its = _training("noisy_captions", table="noise")
    arms = {
        f"{about['steps']['scratch']} steps, q = {about['arms']['RINCE']['q']}": (short, "share", "arm", "RINCE"),
        f"{its['loop']['steps']} steps of {its['loop']['batch_size']}, q = 0.5": (longer, "eta", "loss", "RINCE q=0.5"),
        f"{its['loop']['steps']} steps of {its['loop']['batch_size']}, q = 1": (longer, "eta", "loss", "RINCE q=1.0"),
    }
    shares = (0.0, 0.2, 0.4, 0.6)
    head = ["from random weights", "", *(f"share {share:g}" for share in shares)]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for name, (rows, share, arm, rince) in arms.items():
        found = {(row[share], row[arm]): row for row in rows}
        base = [f"{found[at, 'InfoNCE']['value']:.3f}" for at in shares]
        lines.append(f"| {' | '.join([name, 'InfoNCE', *base])} |")
        lines.append(f"| {' | '.join(['', 'RINCE', *(_moved(found[at, rince]) for at in shares)])} |")
    note = "Zero-shot accuracy of InfoNCE and the change by RINCE on the same seeds; from"
    source = "`eval/results/does_it_pay.json` and `noisy_captions.json`"
    return "\n" + "\n".join(lines) + f"\n\n{note} {source}.\n\n"


def _training(name: str, **where: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of zero-shot accuracy of one training experiment, and its protocol."""
    told = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return [row for row in told["rows"] if row["metric"] == ACCURACY[0] and _is(row, where)], told["protocol"]


def _moved(row: Mapping[str, Any]) -> str:
    return "{value:+.3f} [{low:+.3f}, {high:+.3f}]".format(**row["change"])


def _paragraph(*parts: str) -> str:
    return textwrap.fill(" ".join(parts), 130, break_long_words=False, break_on_hyphens=False) + "\n"


def block(name: str) -> str:
    """The table of one committed result, with where it comes from."""
    result = Result.read(RESULTS / f"{name}.json")
    commit = f", commit {result.commit}" if result.commit else ""
    note = f"95 % bootstrap intervals in brackets; from `eval/results/{name}.json`{commit}."
    register_metrics()
    return f"\n{markdown_table(result, BLOCKS.get(name, GROUNDS))}\n\n{note}\n\n"


Cells = list[list[str]]


def record(name: str, cells: Callable[[Any], Cells]) -> str:
    """A table of one committed record that is no `Result`; the first row of its cells is the head."""
    head, *rows = cells(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"\n{table}\n\nFrom `eval/results/{name}.json`.\n\n"


def _attacked(told: Any) -> Cells:
    keys = ("tries", "refused", "same", "failures")
    rows = [*told["rows"], {"attack": "all", **{key: sum(row.get(key, 0) for row in told["rows"]) for key in keys}}]
    return [["what", *keys], *([row["attack"], *(f"{row.get(key, 0):,}" for key in keys)] for row in rows)]


def _mutated(told: Any) -> Cells:
    parts: dict[str, list[Any]] = {}
    for row in told["rows"]:
        parts.setdefault(row["file"].removeprefix("vldebias/").partition("/")[0].removesuffix(".py"), []).append(row)
    parts["those with a name"] = [row for row in told["rows"] if "named" in row]
    parts["all"] = told["rows"]
    table = [["part", "mutants", "noticed", "change nothing", "survived"]]
    for part, rows in parts.items():
        left = [row for row in rows if row["verdict"] == "survived"]
        nothing = sum("why" in row for row in left)
        table.append([part, *map(str, (len(rows), len(rows) - len(left), nothing, len(left) - nothing))])
    return table


def _repeated(told: Any) -> Cells:
    table = [["work", "what", "threads", "processes", "batch", "values that differ", "largest difference"]]
    for row in told["rows"]:
        changed = [f"**{row[key]}**" if row[key] != told["base"][key] else str(row[key]) for key in told["base"]]
        differ = "none" if row["identical"] else f"{row['differ']:,} of {row['values']:,}"
        apart = (
            "0" if row["identical"] else f"{row['largest_difference']:.1e} (values up to {row['largest_value']:.3g})"
        )
        table.append([row["work"], row["what"], *changed, differ, apart])
    return table


def _soaked(told: Any) -> Cells:
    head = ["server", "clients", "minutes", "requests", "errors", "MiB at a third", "MiB at the end", "MiB a minute"]
    table = [head]
    for name, row in told["servers"].items():
        memory = [f"{row[key]:,.0f}" for key in ("mib_at_a_third", "mib_at_the_end")]
        counts = [str(row["clients"]), f"{row['minutes']:.0f}", f"{row['requests']:,}", str(len(row["errors"]))]
        table.append([f"`vldebias {name}`", *counts, *memory, f"{row['mib_per_minute']:.2f}"])
    return table


def _auto(told: Any, kinds: Sequence[str] = ()) -> Cells:
    head = ["reference", "settings", "worse than none", "most behind no reference", "more than .02 behind"]
    table = [[*head, "gain missed", "unguarded: behind, missed", "a warning", "left out", "told unlike"]]
    for kind in kinds or told["summary"]:
        row = told["summary"][kind]
        behind, missed = row["behind"], row["missed"]
        name = f"**{kind}**" if kind in ("genuine", "all") else kind
        counts = [str(row["settings"]), str(row["worse"]), f"{behind['largest']:+.3f}", str(behind["above 0.02"])]
        other = f"{row['unguarded']['behind']['above 0.02']}, {row['unguarded']['missed'] or 0:.0%}"
        warned = [str(row["told"]), str(row["left_out"]), str(row["unlike"])]
        low, high = row["missed_interval"]
        table.append([name, *counts, f"{missed:.0%} [{low:.0%}, {high:.0%}]", other, *warned])
    return table


def _tried(told: Any) -> Cells:
    table = [["you", "try", "first output", "all"]]
    for row in told["rows"]:
        page = row["source"].partition(".md: ")[0] + ".md" if ".md: " in row["source"] else ""
        source = f"[{row['does']}]({page})" if page else f"`{row['source']}`"
        table.append([row["user"], source, f"{row['first']:.1f} s", f"{row['done']:.1f} s"])
    return table


def _worlds(told: Any) -> Cells:
    builds = len(told["protocol"]["builds"])
    table = [["what", "figure", f"mean of {builds} builds [95 %]", "aim", "met"]]
    for row in told["rows"]:
        if row["value"] is None:
            continue
        alone = sum(value is not None for value in row["builds"]) == 1
        value = f"{row['value']:.3f}" + (" (one build)" if alone else f" [{row['low']:.3f}, {row['high']:.3f}]")
        aim = "" if row["target"] is None else "{:.2f} to {:.2f}".format(*row["target"])
        met = {None: "", True: "yes", False: "**no**"}[row["met"]]
        table.append([f"{row['section']}, {row['part']}", row["metric"], value, aim, met])
    return table


def _killed(told: Any) -> Cells:
    keys = ("kills", "runs", "lost", "other")
    rows = [*told["rows"], {"work": "all", **{key: sum(row[key] for row in told["rows"]) for key in keys}}]
    return [["work", *keys], *([row["work"], *(str(row[key]) for key in keys)] for row in rows)]


RECORDS = {"attack": _attacked, "mutants": _mutated, "determinism": _repeated, "soak": _soaked}


DEFAULT = {  # (method, lam) of pareto -> what the page calls it
    ("none", None): "none",
    ("cali", 100.0): "default (`cali`, lam 100)",
    ("cali", 1000.0): "`cali`, lam 1000",
    ("difference", None): "`difference`",
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
    rows = Result.read(RESULTS / "pareto.json").rows
    found = {(row.task, row.metric, row.method, row.lam): row for row in rows if not row.subset}
    lines = [f"| method | {' | '.join(columns.values())} |", f"|{' --- |' * (1 + len(columns))}"]
    for (method, lam), called in DEFAULT.items():
        own = [found[*column, method, lam] for column in columns]
        cells = [f"{row.value:.3f} [{row.interval[0]:.3f}, {row.interval[1]:.3f}]" for row in own]
        lines.append(f"| {called} | {' | '.join(cells)} |")
    return "\n" + "\n".join(lines) + "\n\nFrom `eval/results/pareto.json`.\n\n"


def offsets_block() -> str:
    """Change of worst group and averages by each offset: in each world, mean over methods, and over all."""
    result = Result.read(RESULTS / "offsets.json")
    worlds = [p.task for p in result.provenance]
    metrics = {"worst_group": "worst group", "average": "average", "average_reweighted": "reweighted"}
    head = [
        "offset",
        *(f"{world}: worst group" for world in worlds[:-1]),
        *(f"all: {name}" for name in metrics.values()),
    ]
    lines = [f"| {' | '.join([*head, 'helps', 'hurts'])} |", f"|{' --- |' * (len(head) + 2)}"]
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
        lines.append(f"| {' | '.join([offset, *cells, *counts])} |")
    n = next(iter(whole["helped, worst_group"].n.values()))
    note = f"helps, hurts: of {n} pairs of world and method, beyond the interval of the worst group's change"
    return "\n" + "\n".join(lines) + f"\n\n{note}; from `eval/results/offsets.json`.\n\n"


def inside(made: Callable[[], str]) -> str:
    """A block whose links are those of the README, for a page in docs/."""
    return made().replace("](docs/", "](")


def blocks() -> dict[Path, dict[str, Callable[[], str]]]:
    """File -> the name of each of its blocks and what makes it."""
    results = {name: partial(block, name) for name in BLOCKS}
    return {
        ROOT / "README.md": {"picture": picture_block, "window": window_block},
        ROOT / "docs" / "results.md": results | {name: partial(grid_block, grid) for name, grid in GRIDS.items()},
        ROOT / "docs" / "methods.md": {name: partial(rivals_table.block, name) for name in RIVALS},
        ROOT / "docs" / "explanation" / "which-method.md": {
            "auto": partial(record, "auto", _auto),
            "auto_again": partial(record, "auto_again", partial(_auto, kinds=("none", *GENUINE, "genuine", "all"))),
            "default": default_block,
            "offsets": offsets_block,
        },
        ROOT / "docs" / "fine-tuning.md": {name: partial(grid_block, grid) for name, grid in PAY_GRIDS.items()}
        | {
            "losses": partial(inside, losses_block),
            "scratch": scratch_block,
            "finetune_and_debias": partial(grid_block, EVAL_GRIDS["finetune_and_debias"]),
            "killed": partial(record, "killed", _killed),
        },
        ROOT / "docs" / "generation.md": {name: partial(generation_table.block, name) for name in GENERATION}
        | {
            "sampled": sampled_block,
            "left": left_block,
            "sparing": sparing_block,
            "joint": joint_block,
            "birds_drawn": partial(block, "birds_drawn"),
        },
        ROOT / "docs" / "how-to" / "miniature.md": {"worlds": partial(record, "worlds", _worlds)},
        ROOT / "docs" / "index.md": {"first_minutes": partial(record, "first_minutes", _tried)},
        ROOT / "eval" / "README.md": {name: partial(grid_block, grid) for name, grid in EVAL_GRIDS.items()}
        | {name: partial(record, name, cells) for name, cells in RECORDS.items()},
    }


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
