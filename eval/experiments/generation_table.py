"""The table and the plot of docs/generation.md, from what `generation.py` measured.

python -m eval.experiments.generation_table   # writes eval/results/generation.png; `python -m eval.readme` the table
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vldebias.evaluation.result import Measurement, Result
from vldebias.miniature.portraits import GENDERS
from vldebias.pictures import save_png, subplots

RESULTS = Path(__file__).parents[1] / "results"
UNSEEN, FIT, STATED = "unseen professions", "professions of the fit", "stated, unseen professions"
OUTSIDE = ("outside the fit, portraits", "outside the fit, birds")
SHARES = ("", ", share of none", "_squared, share of none", "_squared, share of none by seed")


def _rows(result: Result, task: str, subset: str) -> dict[tuple[str, str], Measurement]:
    return {(row.method, row.metric): row for row in result.rows if row.task == task and row.subset == subset}


def _cell(row: Measurement | None) -> str:
    return "" if row is None else f"{row.value:.3f} [{row.interval[0]:.3f}, {row.interval[1]:.3f}]"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def block(name: str = "generation") -> str:
    """Markdown: a row per method, those of one attribute; who follows a drawn value; then two attributes."""
    result = Result.read(RESULTS / f"{name}.json")
    lines = [*_one(result), "", "Images that show the value that they were given:", "", *_followed(result)]
    lines += ["", "Share of none under each fit, over its 20 professions:", "", *_per_fit(result)]
    if any(row.task == "generation gender and tone" for row in result.rows):
        lines += ["", "Gender and skin tone solved together, under the first fit:", "", *_two(result)]
    return "\n" + "\n".join(lines) + f"\n\nFrom `eval/results/{name}.json`.\n\n"


def _one(result: Result) -> list[str]:
    columns = ["method", "needs beside prompts", "a value drawn", "keeps stated", "fits", "discrepancy, unseen"]
    columns += ["share of none", "squared and corrected, share of none", "the same, noise alone"]
    columns += ["discrepancy, professions of the fit", "recognised", "outside the fit: a person stays one", "a bird"]
    columns += ["stated right", "image cosine", "encodings, steps"]
    methods = next(p for p in result.provenance if p.task == "generation gender").methods
    parts = (UNSEEN, FIT, STATED, *OUTSIDE)
    unseen, fit, stated, *outside = (_rows(result, "generation gender", part) for part in parts)
    lines = [_line(columns), _line(["---"] * len(columns))]
    for method in dict.fromkeys(m for m, _ in unseen):
        own = methods.get(method, {})
        cells = [method, own.get("needs", "")]
        cells += ["yes" if own.get(key) else "" for key in ("draws a value", "keeps stated prompts")]
        cells += [str(own.get("fits", 1))]
        cells += [_cell(unseen[method, f"discrepancy{kind}"]) for kind in SHARES]
        cells += [_cell(fit.get((method, "discrepancy"))), _cell(unseen[method, "recognised"])]
        cells += [_cell(rows.get((method, "shows what was asked for"))) for rows in outside]
        cells += [_cell(stated.get((method, "stated_right")))]
        cells += [f"{unseen[method, 'image cosine to none'].value:.3f}"]
        lines.append(_line([*cells, f"{own.get('encodings', 1):g}, {own.get('steps', 1):g}"]))
    return lines


def _followed(result: Result) -> list[str]:
    return _across(result, "value followed", [f"{UNSEEN}, {value}" for value in GENDERS])


def _per_fit(result: Result) -> list[str]:
    return _across(result, "discrepancy, share of none", [f"{UNSEEN}, fit {fit}" for fit in (1, 2, 3)])


def _across(result: Result, metric: str, subsets: Sequence[str]) -> list[str]:
    """A row per method, a column per subset."""
    found = [_rows(result, "generation gender", subset) for subset in subsets]
    lines = [_line(["method", *(subset.removeprefix(f"{UNSEEN}, ") for subset in subsets)])]
    lines.append(_line(["---"] * (1 + len(subsets))))
    for method in dict.fromkeys(method for rows in found for method, _ in rows if method != "none"):
        lines.append(_line([method, *(_cell(rows.get((method, metric))) for rows in found)]))
    return lines


def _two(result: Result) -> list[str]:
    lines = [_line(["method", "discrepancy of gender", "discrepancy of tone", "recognised"]), _line(["---"] * 4)]
    gender, tone = (_rows(result, "generation gender and tone", f"{UNSEEN}, {k}") for k in ("gender", "tone"))
    for method in dict.fromkeys(m for m, _ in gender):
        both = (gender[method, "discrepancy"], tone[method, "discrepancy"], gender[method, "recognised"])
        lines.append(_line([method, *map(_cell, both)]))
    return lines


def plot(name: str = "generation") -> Path:
    """Discrepancy against what is recognised and against what stays of the image; wanted is below and to the right."""
    rows = _rows(Result.read(RESULTS / f"{name}.json"), "generation gender", UNSEEN)
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
