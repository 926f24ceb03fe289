"""The table and the plot of docs/generation/figures.md, from what `generation.py` measured.

python -m eval.experiments.generation_table   # writes eval/results/generation.png; `python -m eval.readme` the table
"""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from pathlib import Path

from eval.tables import RESULTS, fills, paragraph, read, rows_in, span, table
from vldebias.evaluation.result import Measurement, Result
from vldebias.miniature.portraits import GENDERS
from vldebias.pictures import save_png, subplots

UNSEEN, FIT, STATED = "unseen professions", "professions of the fit", "stated, unseen professions"
OUTSIDE = ("outside the fit, portraits", "outside the fit, birds")
# What others report, as they report it: other models, professions and judges, so for orientation alone. Fair Diffusion:
# its published counts, 153 occupations, mean |m - w| / (m + w) on Stable Diffusion 1.5. The paper: discrepancy on 2.1,
# unseen professions, by CLIP and by people. FairImagen: its fairness score of gender on Stable Diffusion
# 3, higher is better. UCE: deviation ratio over the 36 professions of WinoBias on 1.5, as later papers measured it.
# Suffix: the share of men by people's labels, 5 occupations, under a suffix that asks for diversity.
REPORTED = {
    "none": "SD 1.5 .623 (Fair Diffusion); SD 2.1 .412, by people .472 (the paper); SD 3 .167 (FairImagen)",
    "cali": "SD 2.1 .354, by people .372 (the paper)",
    "fair diffusion": "SD 1.5 .210 of .623 (its counts)",
    "fair pca": "SD 3 .560 of .167, higher is better; stated prompts right .732 (FairImagen)",
    "uce": "SD 1.5 .34 of .71, deviation ratio",
    "suffix": "overcorrects, share of men: Grok-2 .60 to .18, SDXL-Turbo .60 to .22, Imagen 4 .42 to .16",
}
SHARES = ("", ", share of none", "_squared, share of none", "_squared, share of none by seed")


@fills("docs/generation/figures.md", "generation")
def block(name: str = "generation") -> str:
    """Markdown: a row per method, those of one attribute; who follows a drawn value; then two attributes."""
    result = read(name)
    values, fits = [f"{UNSEEN}, {value}" for value in GENDERS], [f"{UNSEEN}, fit {fit}" for fit in (1, 2, 3)]
    return (
        table(*_one(result))
        + "Images that show the value that they were given:\n"
        + table(*_across(result, "value followed", values))
        + "Share of none under each fit, over its 20 professions:\n"
        + table(*_across(result, "discrepancy, share of none", fits))
        + "Gender and skin tone solved together, under the first fit:\n"
        + table(*_two(result), note=f"From `eval/results/{name}.json`.")
    )


def called(method: str, methods: Container[str]) -> str:
    """The name of a row's method now: "uce" was drawn at all places as long as a result has no "uce all"."""
    return "uce all" if method == "uce" and "uce all" not in methods else method


def _one(result: Result) -> list[list[str]]:
    columns = ["method", "needs beside prompts", "a value drawn", "keeps stated", "fits", "discrepancy, unseen"]
    columns += ["share of none", "squared and corrected, share of none", "the same, noise alone"]
    columns += ["discrepancy, professions of the fit", "recognised", "outside the fit: a person stays one", "a bird"]
    columns += ["stated right", "image cosine", "encodings, steps", "reported by others"]
    methods = next(p for p in result.provenance if p.task == "generation gender").methods
    parts = (UNSEEN, FIT, STATED, *OUTSIDE)
    unseen, fit, stated, *outside = (rows_in(result, "generation gender", part) for part in parts)
    lines = [columns]
    for method in dict.fromkeys(m for m, _ in unseen):
        own = methods.get(method, {})
        name = called(method, methods)
        cells = [name, own.get("needs", "")]
        cells += ["yes" if own.get(key) else "" for key in ("draws a value", "keeps stated prompts")]
        cells += [str(own.get("fits", 1))]
        cells += [span(unseen[method, f"discrepancy{kind}"]) for kind in SHARES]
        cells += [span(fit.get((method, "discrepancy"))), span(unseen[method, "recognised"])]
        cells += [span(rows.get((method, "shows what was asked for"))) for rows in outside]
        cells += [span(stated.get((method, "stated_right")))]
        cells += [f"{unseen[method, 'image cosine to none'].value:.3f}"]
        cost = f"{own.get('encodings', 1):g}, {own.get('steps', 1):g}"
        lines.append([*cells, cost, REPORTED.get(name, "")])
    return lines


def _across(result: Result, metric: str, subsets: Sequence[str]) -> list[list[str]]:
    """A row per method, a column per subset."""
    found = [rows_in(result, "generation gender", subset) for subset in subsets]
    lines = [["method", *(subset.removeprefix(f"{UNSEEN}, ") for subset in subsets)]]
    for method in dict.fromkeys(method for rows in found for method, _ in rows if method != "none"):
        lines.append([method, *(span(rows.get((method, metric))) for rows in found)])
    return lines


def _two(result: Result) -> list[list[str]]:
    lines = [["method", "discrepancy of gender", "discrepancy of tone", "recognised"]]
    gender, tone = (rows_in(result, "generation gender and tone", f"{UNSEEN}, {k}") for k in ("gender", "tone"))
    for method in dict.fromkeys(m for m, _ in gender):
        both = (gender[method, "discrepancy"], tone[method, "discrepancy"], gender[method, "recognised"])
        lines.append([method, *map(span, both)])
    return lines


def plot(name: str = "generation") -> Path:
    """Discrepancy against what is recognised and against what stays of the image; wanted is below and to the right."""
    rows = rows_in(read(name), "generation gender", UNSEEN)
    picture, axes = subplots(1, 2, (11, 4.5))
    for axis, metric in zip(axes, ("recognised", "image cosine to none"), strict=True):
        for method in dict.fromkeys(m for m, _ in rows):
            gain, cost = rows[method, "discrepancy"], rows[method, metric]
            low, high = gain.interval
            axis.errorbar(cost.value, gain.value, [[gain.value - low], [high - gain.value]], fmt="o", capsize=2)
            axis.annotate(method, (cost.value, gain.value), xytext=(4, 3), textcoords="offset points", fontsize=7)
        axis.set_xlabel(f"{metric}, {UNSEEN}")
        axis.set_ylabel("discrepancy")
        axis.grid(alpha=0.3)
    picture.tight_layout()
    return save_png(picture, RESULTS / f"{name}.png", {"from": f"{name}.json"})


def _rows(subset: str, task: str = "generation gender") -> dict[tuple[str, str], Measurement]:
    return rows_in(read("generation"), task, subset)


PAPER_DRAWN = (0.412, 0.354)  # Chuang et al., 2023: discrepancy on Stable Diffusion 2.1, before and after


@fills("docs/generation.md", "sampled")
def sampled_block() -> str:
    """How far a deterministic form and sampling go in drawing, and what it costs prompts that no fit knows."""
    rows = _rows(UNSEEN)
    people = _rows(OUTSIDE[0])
    default, (before, after) = rows["default", "discrepancy"], PAPER_DRAWN

    def left(method: str, kind: str = "") -> str:
        return span(rows[method, f"discrepancy{kind}, share of none"], ".0%")

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


def _verdict(row: Measurement) -> str:
    """What a change says of something that is better lower."""
    assert row.change is not None
    _, low, high = row.change
    return "lowers" if high < 0 else "raises" if low > 0 else "does not clearly change"


LEFT = ("none", "default", "cali", "leading", "difference", "midpoint", "stated mean", "balanced", "weighted values",
        "uce", "uce all", "fair pca", "steer", "fair diffusion", "stated value")  # fmt: skip


@fills("docs/generation.md", "left")
def left_block() -> str:
    """What each method of the page's first table leaves, and what it costs, over fits and professions."""
    rows = _rows(UNSEEN)
    outside = _rows(OUTSIDE[0])
    costs = ["subject accuracy", "a person outside the fit stays one"]
    lines = [["method", "parity gap left", "squared, corrected", *costs]]
    measured = {method for method, _ in rows}
    for method in (one for one in LEFT if one in measured):
        shares = [rows[method, f"discrepancy{kind}, share of none"] for kind in ("", "_squared")]
        paid = (rows[method, "recognised"], outside[method, "shows what was asked for"])
        name = called(method, measured)
        lines.append([name, *(span(one, ".2f") for one in shares), *(f"{one.value:.3f}" for one in paid)])
    return table(*lines)


@fills("docs/generation/figures.md", "joint")
def joint_block() -> str:
    """What each form leaves of two attributes at once, and of the subject; beside it the subject under gender alone."""
    alone = _rows(UNSEEN)
    gender, tone = (_rows(f"{UNSEEN}, {kind}", "generation gender and tone") for kind in ("gender", "tone"))
    plain = alone["none", "recognised"].value
    lines = [f"Gender and skin tone at once, on unseen professions ({plain:.3f} recognised without):", ""]
    for method in dict.fromkeys(method for method, _ in gender if method != "none"):
        left = [span(rows[method, "discrepancy, share of none"], ".0%") for rows in (gender, tone)]
        name, both = method.removesuffix(" jointly"), gender[method, "recognised"]
        lines.append(
            f"- {name} leaves {left[0]} of gender's parity gap and {left[1]} of the tone's, with {span(both)} "
            f"recognised; for gender alone {alone[name, 'recognised'].value:.3f}"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    plot()
    sys.stdout.write(block())
