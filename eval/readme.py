"""Write the README's tables from the committed results: figures are generated, never typed.

python eval/readme.py            # rewrite README.md
python eval/readme.py --check    # fail if it is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

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


def block(name: str) -> str:
    """The table of one committed result, with where it comes from."""
    result = Result.model_validate_json((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    commit = f", commit {result.commit}" if result.commit else ""
    note = f"95 % bootstrap intervals in brackets; from `eval/results/{name}.json`{commit}."
    return f"\n{markdown_table(result, BLOCKS[name])}\n\n{note}\n\n"


def render(readme: str) -> str:
    """`readme` with every block between its markers replaced by the committed figures."""
    for name in BLOCKS:
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
