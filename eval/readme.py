"""Write the tables of the pages from the committed results; no figure is typed.

python -m eval.readme          # rewrite every page that has a block
python -m eval.readme --check  # fail if one is out of date

A block is declared where its figures are measured: by `fills`, `shows` or `shows_rows` of eval/tables.py, or in an
experiment's YAML.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from eval.experiments import experiment
from eval.tables import PAGES

ROOT = Path(__file__).parents[1]
PLACES = ("eval", "eval.experiments", "eval.benchmarks")
DECLARES = re.compile(r"^\s*@?(fills|shows|shows_rows)\(", re.MULTILINE)


def blocks() -> dict[Path, dict[str, Callable[[], str]]]:
    """Page -> the name of each of its blocks and what makes it."""
    for package in PLACES:
        for path in sorted(Path(next(iter(import_module(package).__path__))).glob("*.py")):
            if DECLARES.search(path.read_text(encoding="utf-8")):
                import_module(f"{package}.{path.stem}")
    found = {ROOT / page: dict(own) for page, own in PAGES.items()}
    for one, page in experiment.pages():
        found.setdefault(ROOT / page.page, {})[page.block] = partial(page.text, one.name, one.method)
    return found


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
