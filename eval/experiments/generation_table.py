"""The table and the plot of docs/generation.md, from what `generation.py` measured.

python -m eval.experiments.generation_table   # writes eval/results/generation.png; `python -m eval.readme` the table
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from eval.tables import RESULTS, read, rows_in, span, table
from vldebias.evaluation.result import Result
from vldebias.miniature.portraits import GENDERS
from vldebias.pictures import save_png, subplots

UNSEEN, FIT, STATED = "unseen professions", "professions of the fit", "stated, unseen professions"
OUTSIDE = ("outside the fit, portraits", "outside the fit, birds")
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


def _one(result: Result) -> list[list[str]]:
    columns = ["method", "needs beside prompts", "a value drawn", "keeps stated", "fits", "discrepancy, unseen"]
    columns += ["share of none", "squared and corrected, share of none", "the same, noise alone"]
    columns += ["discrepancy, professions of the fit", "recognised", "outside the fit: a person stays one", "a bird"]
    columns += ["stated right", "image cosine", "encodings, steps"]
    methods = next(p for p in result.provenance if p.task == "generation gender").methods
    parts = (UNSEEN, FIT, STATED, *OUTSIDE)
    unseen, fit, stated, *outside = (rows_in(result, "generation gender", part) for part in parts)
    lines = [columns]
    for method in dict.fromkeys(m for m, _ in unseen):
        own = methods.get(method, {})
        cells = [method, own.get("needs", "")]
        cells += ["yes" if own.get(key) else "" for key in ("draws a value", "keeps stated prompts")]
        cells += [str(own.get("fits", 1))]
        cells += [span(unseen[method, f"discrepancy{kind}"]) for kind in SHARES]
        cells += [span(fit.get((method, "discrepancy"))), span(unseen[method, "recognised"])]
        cells += [span(rows.get((method, "shows what was asked for"))) for rows in outside]
        cells += [span(stated.get((method, "stated_right")))]
        cells += [f"{unseen[method, 'image cosine to none'].value:.3f}"]
        lines.append([*cells, f"{own.get('encodings', 1):g}, {own.get('steps', 1):g}"])
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


if __name__ == "__main__":
    plot()
    sys.stdout.write(block())
