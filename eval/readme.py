"""Write the tables of both READMEs from the committed results: figures are generated, never typed.

python eval/readme.py            # rewrite README.md and eval/README.md
python eval/readme.py --check    # fail if one is out of date
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vldebias.evaluation.report.pages import markdown_table
from vldebias.evaluation.result import Result

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "eval" / "results"
BLOCKS: dict[str, list[tuple[str, ...]]] = {  # (task, metric) of wholes, (task, metric, subset) of parts
    "quickstart": [
        ("birds", "worst_group"),
        ("birds", "average"),
        ("portraits gender", "max_skew@20"),
        ("portraits gender", "precision@20"),
        ("generation gender", "discrepancy", "unseen professions"),
        ("generation gender", "recognised", "unseen professions"),
        ("generation gender", "stated_right", "unseen professions"),
    ],
    "beyond": [
        ("celeba, random halves", "max_skew@50"),
        ("celeba, random halves", "query_cosine"),
        ("birds", "worst_group"),
        ("generation gender", "discrepancy"),
        ("auto", "regret"),
        ("auto", "worse_than_none"),
    ],
    "real_clip_b32": [("celeba-1000", "max_skew@100"), ("celeba-1000", "query_cosine")],
}


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


def block(name: str) -> str:
    """The table of one committed result, with where it comes from."""
    result = Result.model_validate_json((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    commit = f", commit {result.commit}" if result.commit else ""
    note = f"95 % bootstrap intervals in brackets; from `eval/results/{name}.json`{commit}."
    return f"\n{markdown_table(result, BLOCKS[name])}\n\n{note}\n\n"


def blocks() -> dict[Path, dict[str, Callable[[], str]]]:
    """File -> the name of each of its blocks and what makes it."""
    results = {name: partial(block, name) for name in BLOCKS}
    return {
        ROOT / "README.md": results | {name: partial(grid_block, grid) for name, grid in GRIDS.items()},
        ROOT / "eval" / "README.md": {name: partial(grid_block, grid) for name, grid in EVAL_GRIDS.items()},
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
