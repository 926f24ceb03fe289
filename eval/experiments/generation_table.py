"""The table and the plot of docs/generation.md, from what `generation.py` measured.

python -m eval.experiments.generation_table   # writes eval/results/generation.png; `python -m eval.readme` the table
"""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from pathlib import Path

from eval.tables import RESULTS, fills, read, rows_in, span, table
from vldebias.evaluation.result import Measurement, Result
from vldebias.miniature.words import GENDERS
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
    "fair pca": "SD 3 .560 of .167, higher is better; stated prompts right .732 (FairImagen)",
    "suffix": "overcorrects, share of men: Grok-2 .60 to .18, SDXL-Turbo .60 to .22, Imagen 4 .42 to .16",
}
SHARES = ("", ", share of none", "_squared, share of none", "_squared, share of none by seed")


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


DRAWN = {  # row of the result -> what the page calls it
    "none": "none",
    "default": "`cali`, lam lowered (for sets not about persons)",
    "cali": "`cali`, lam = 500 (`paper`)",
    "difference": "`difference`",
    "fair pca": "`fair-pca`",
    "stated value": "a value stated for each image (as `balanced-prompts`)",
}


@fills("docs/generation.md", "sampled")
def sampled_block() -> str:
    """Write what each method leaves of the parity gap, and what it costs, over fits and professions."""
    rows, outside = _rows(UNSEEN), _rows(OUTSIDE[0])
    costs = ["subject accuracy", "a person outside the fit stays one"]
    lines = [["method", "share of the parity gap left", "squared, corrected", *costs]]
    for method, name in DRAWN.items():
        shares = [rows[method, f"discrepancy{kind}, share of none"] for kind in ("", "_squared")]
        paid = (rows[method, "recognised"], outside[method, "shows what was asked for"])
        lines.append([name, *(span(one, ".2f") for one in shares), *(f"{one.value:.3f}" for one in paid)])
    n = rows["default", "discrepancy"].n
    note = (
        f"{n['professions']} held-out professions of the miniature world, {n['fits']} fits; 95 % intervals over both."
    )
    return table(*lines, note=f"{note} From `eval/results/generation.json`.")


if __name__ == "__main__":
    plot()
    sys.stdout.write(block())
