"""The table and the plot of docs/generation.md, from what `generation.py` measured.

python -m eval.experiments.generation_table   # writes eval/results/generation.png; `python -m eval.readme` the table
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vldebias.evaluation.result import Measurement, Result
from vldebias.pictures import save_png, subplots

__all__ = ["block", "plot"]

RESULTS = Path(__file__).parents[1] / "results"
UNSEEN, FIT, STATED = "unseen professions", "professions of the fit", "stated, unseen professions"


def _rows(result: Result, task: str, subset: str) -> dict[tuple[str, str], Measurement]:
    return {(row.method, row.metric): row for row in result.rows if row.task == task and row.subset == subset}


def _cell(row: Measurement | None) -> str:
    return "" if row is None else f"{row.value:.3f} [{row.interval[0]:.3f}, {row.interval[1]:.3f}]"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def block(name: str = "generation") -> str:
    """Markdown: a row per method, those of one attribute, then those of two."""
    result = Result.read(RESULTS / f"{name}.json")
    columns = ["method", "needs beside prompts", "a value drawn", "keeps stated", "discrepancy, unseen"]
    columns += ["share of none, 3 seeds", "worst seed", "discrepancy, professions of the fit", "recognised"]
    columns += ["stated right", "image cosine", "encodings, steps"]
    lines = [_line(columns), _line(["---"] * len(columns))]
    methods = next(p for p in result.provenance if p.task == "generation gender").methods
    unseen, fit, stated = (_rows(result, "generation gender", s) for s in (UNSEEN, FIT, STATED))
    ratio = "discrepancy, share of none"
    seeds = {
        (row.method, row.subset): row.value
        for row in result.rows
        if row.metric == "discrepancy of a seed" and row.subset.startswith(UNSEEN) and row.task == "generation gender"
    }
    worst = {
        method: max(value / seeds["none", subset] for (m, subset), value in seeds.items() if m == method)
        for method, _ in seeds
    }
    for method in dict.fromkeys(m for m, _ in unseen):
        own = methods.get(method, {})
        cells = [method, own.get("needs", "")]
        cells += ["yes" if own.get(key) else "" for key in ("draws a value", "keeps stated prompts")]
        cells += [_cell(unseen[method, "discrepancy"]), _cell(unseen[method, ratio]), f"{worst[method]:.3f}"]
        cells += [_cell(fit.get((method, "discrepancy")))]
        cells += [_cell(unseen[method, "recognised"]), _cell(stated.get((method, "stated_right")))]
        cells += [f"{unseen[method, 'image cosine to none'].value:.3f}"]
        cells += [f"{own.get('encodings', 1):g}, {own.get('steps', 1):g}"]
        lines.append(_line(cells))
    note = f"\n\nFrom `eval/results/{name}.json`.\n\n"
    if not any(row.task == "generation gender and tone" for row in result.rows):
        return "\n" + "\n".join(lines) + note
    lines += ["", "Gender and skin tone solved together:", ""]
    lines += ["| method | discrepancy of gender | discrepancy of tone | recognised |", "|---|---|---|---|"]
    gender, tone = (_rows(result, "generation gender and tone", f"{UNSEEN}, {k}") for k in ("gender", "tone"))
    for method in dict.fromkeys(m for m, _ in gender):
        lines.append(
            f"| {method} | {_cell(gender[method, 'discrepancy'])} | {_cell(tone[method, 'discrepancy'])} | "
            f"{_cell(gender[method, 'recognised'])} |"
        )
    return "\n" + "\n".join(lines) + note


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
