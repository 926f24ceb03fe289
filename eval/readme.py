"""Write the README's tables from the committed results: figures are generated, never typed.

python eval/readme.py            # rewrite README.md
python eval/readme.py --check    # fail if it is out of date
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
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
    """A table of a training experiment: one metric, a row and a column per value of two settings."""

    metric: str
    row: str
    column: str
    where: Mapping[str, Any]
    note: str


GRIDS = {
    "noisy_captions": Grid(
        metric="zero_shot_accuracy",
        row="eta",
        column="loss",
        where={"table": "noise"},
        note="Zero-shot accuracy, 48 species, mean of 5 seeds and 95 % interval of Student's t; * differs from InfoNCE "
        "on the same seeds beyond the interval of the difference",
    )
}


def grid_block(name: str, grid: Grid) -> str:
    """The table of one committed experiment."""
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    wanted = {**grid.where, "metric": grid.metric}
    rows = [row for row in result["rows"] if all(row.get(key) == value for key, value in wanted.items())]
    columns = list(dict.fromkeys(row[grid.column] for row in rows))
    lines = [f"| {grid.row} | {' | '.join(columns)} |", f"| --- {'| --- ' * len(columns)}|"]
    for place in dict.fromkeys(row[grid.row] for row in rows):
        cells = {row[grid.column]: _cell(row) for row in rows if row[grid.row] == place}
        lines.append(f"| {place} | {' | '.join(cells[column] for column in columns)} |")
    return "\n" + "\n".join(lines) + f"\n\n{grid.note}; from `eval/results/{name}.json`.\n\n"


def _cell(row: Mapping[str, Any]) -> str:
    change = row.get("change")
    beyond = change is not None and not change["low"] <= 0 <= change["high"]
    return f"{row['value']:.3f} ± {row['value'] - row['low']:.3f}{'*' if beyond else ''}"


def block(name: str) -> str:
    """The table of one committed result, with where it comes from."""
    if name in GRIDS:
        return grid_block(name, GRIDS[name])
    result = Result.model_validate_json((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    commit = f", commit {result.commit}" if result.commit else ""
    note = f"95 % bootstrap intervals in brackets; from `eval/results/{name}.json`{commit}."
    return f"\n{markdown_table(result, BLOCKS[name])}\n\n{note}\n\n"


def render(readme: str) -> str:
    """`readme` with every block between its markers replaced by the committed figures."""
    for name in (*BLOCKS, *GRIDS):
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text = begin + block(name) + end
        readme, found = pattern.subn(text.replace("\\", r"\\"), readme)
        if found != 1:
            raise SystemExit(f"README.md: expected one block {begin.strip()} ... {end}, found {found}")
    return readme


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the README is out of date")
    arguments = parser.parse_args()
    path = ROOT / "README.md"
    before = path.read_text(encoding="utf-8")
    after = render(before)
    if arguments.check:
        return int(before != after)
    path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
