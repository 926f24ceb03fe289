"""Count lines, files, public names, words and test seconds of each room, and hold them to `.ci/budgets.yaml`.

    python -m tests.robust.budgets                    # counts beside their budgets
    python -m tests.robust.budgets --check            # fail where a count is over its budget; CI runs this
    python -m tests.robust.budgets --junit FILE       # with the seconds of a test run, from pytest's --junitxml
    python -m tests.robust.budgets --tighten          # lower the budgets to what is there

Budgets only fall. Lines are those of Python files; what is frozen counts apart. Nothing is imported to be counted.
"""

import argparse
import ast
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
BUDGETS = ".ci/budgets.yaml"
PARTS = ("vldebias", "apps", "eval", "tests")
FROZEN = "eval/miniature"
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Counts = dict[str, float]
"""Name of a count, such as "lines vldebias/hosts", -> number."""


def count(root: Path) -> Counts:
    """Return lines of each part and room; files, names and public definitions of the package; words of docs."""
    counts: Counter[str] = Counter()
    for part in PARTS:
        for file in sorted((root / part).rglob("*.py")):
            path, text = file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")
            room = "/".join(path.split("/")[:-1][:2])  # the part itself for files beside folders
            for name in {part, room} if room != FROZEN else {FROZEN}:
                counts[f"lines {name}"] += len(text.splitlines())
            if part == "vldebias":
                tree = ast.parse(text)
                counts["files vldebias"] += 1
                counts["public definitions"] += sum(
                    isinstance(node, DEFINITIONS) and not node.name.startswith("_") for node in tree.body
                )
                lists = [node.value for node in tree.body if ast.unparse(node).startswith("__all__ ")]
                counts["exported names"] += sum(len(getattr(one, "elts", ())) for one in lists)
    pages = [len(page.read_text(encoding="utf-8").split()) for page in (root / "docs").rglob("*.md")]
    words = {"pages docs": len(pages), "words docs": sum(pages), "words docs, longest page": max(pages, default=0)}
    return dict(sorted((counts | words).items()))


def seconds_of(junit: Path) -> Counts:
    """Return the seconds of the tests of each room, from pytest's --junitxml."""
    spent: Counter[str] = Counter()
    for case in ElementTree.parse(junit).iter("testcase"):
        place = (case.get("classname") or case.get("name", "")).replace(".", "/").split("/")
        room = "/".join(place[:2])
        for name in {"tests", room if (ROOT / room).is_dir() else "tests"}:
            spent[f"seconds {name}"] += float(case.get("time", 0))  # type: ignore[assignment]
    return {name: round(value, 1) for name, value in sorted(spent.items())}


def over(counts: Counts, budgets: Counts) -> list[str]:
    """Return a line for each count that is over its budget or has none."""
    wrong = []
    for name, number in counts.items():
        if name not in budgets:
            wrong.append(f"{name}: {number:,g} and no budget; write one into {BUDGETS}")
        elif number > budgets[name]:
            wrong.append(f"{name}: {number:,g}, the budget is {budgets[name]:,g}")
    return wrong


def tightened(counts: Counts, budgets: Counts) -> Counts:
    """Return the budgets, lowered to what is there; seconds stay, since machines differ."""
    return {
        name: budget if name.startswith("seconds") else min(budget, counts.get(name, 0))
        for name, budget in budgets.items()
        if name.startswith("seconds") or name in counts
    }


def main() -> int:
    """Print the counts, and check or tighten."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where a count is over its budget")
    parser.add_argument("--tighten", action="store_true", help="lower the budgets to what is there")
    parser.add_argument("--junit", type=Path, help="what pytest wrote with --junitxml")
    given = parser.parse_args()
    file = ROOT / BUDGETS
    head, _, body = file.read_text(encoding="utf-8").partition("\n\n")
    budgets = yaml.safe_load(body)
    counts = count(ROOT) | (seconds_of(given.junit) if given.junit else {})
    for name, number in counts.items():
        print(f"{name:32} {number:>9,g} {budgets.get(name, float('nan')):>9,g}")
    if given.tighten:
        budgets = tightened(counts, budgets)
        file.write_text(f"{head}\n\n{yaml.safe_dump(budgets, sort_keys=False)}", encoding="utf-8")
    wrong = over(counts, budgets)
    print(*wrong, sep="\n", file=sys.stderr)
    return int(bool(wrong) and given.check)


if __name__ == "__main__":
    raise SystemExit(main())
