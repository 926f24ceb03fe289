"""Write the README's table from the committed result of the quickstart: figures are generated, never typed.

python eval/readme.py            # rewrite README.md
python eval/readme.py --check    # fail if it is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from vldebias.evaluation.report import markdown_table
from vldebias.evaluation.result import Result

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "eval" / "results" / "quickstart.json"
BLOCK = re.compile(r"(<!-- quickstart:begin -->\n).*?(<!-- quickstart:end -->)", re.DOTALL)
SHOWN = [
    ("birds", "worst_group"),
    ("birds", "average"),
    ("portraits", "max_skew"),
    ("portraits", "precision"),
    ("generation", "discrepancy"),
    ("generation", "recognised"),
    ("generation", "stated_right"),
]


def render(readme: str, result: Result) -> str:
    """`readme` with the block between the markers replaced by the figures of `result`."""
    table = markdown_table(result, SHOWN)
    commit = f", commit {result.commit}" if result.commit else ""
    note = f"95 % bootstrap intervals in brackets; from `eval/results/{RESULT.name}`{commit}."
    return BLOCK.sub(lambda match: f"{match[1]}\n{table}\n\n{note}\n\n{match[2]}", readme)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the README is out of date")
    arguments = parser.parse_args()
    path = ROOT / "README.md"
    before = path.read_text(encoding="utf-8")
    after = render(before, Result.model_validate_json(RESULT.read_text(encoding="utf-8")))
    if arguments.check:
        return int(before != after)
    path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
