"""How the house is built, counted in its syntax trees, and the budgets that it keeps.

    python -m tests.robust.house                       # count this checkout beside its budgets
    python -m tests.robust.house --check               # fail where a count is over its budget; CI runs this
    python -m tests.robust.house --check --junit FILE  # and the seconds of a test run, folder by folder
    python -m tests.robust.house --tighten             # write what is below its budget into .ci/budgets.yaml
    python -m tests.robust.house --against ../old --junit FILE --write  # eval/results/house.json: before and now

Nothing of the package is imported to be counted. Budgets only fall: a commit that raises one says why on a line of its
message that begins with "Budget:", and `--check` looks for it in the commits that it can see.

A private function is one of a module whose name starts with an underscore; it is used once where it is read in one
place. Public definitions are classes and functions of modules without an underscore; exported names are those that a
module lists in __all__. A circle is a group of files of the package, the apps and the experiments that import each
other. A shape is a set of keys that committed results begin with.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from eval.experiments.records import write_records
from tests.test_imports import all_circles, tree_of

ROOT = Path(__file__).parents[2]
BUDGETS = Path(".ci/budgets.yaml")
RESULT = ROOT / "eval" / "results" / "house.json"
PARTS = ("vldebias", "apps", "eval", "tests")
VAGUE = {"found", "told", "said", "wanted", "given", "asked"}
SHAPE = {"name", "figures", "protocols"}  # of `Result`
SECONDS = "seconds of tests"
REASON = re.compile(r"^Budget: \S", re.MULTILINE)
Functions = ast.FunctionDef | ast.AsyncFunctionDef
Counts = dict[str, dict[str, float]]
"""What is counted -> folder, or "" for all -> number."""


# ---- counting ------------------------------------------------------------------------------------------------------


def sources(root: Path, part: str) -> dict[str, str]:
    """Path of each Python file of a part -> its text."""
    return {p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in sorted((root / part).rglob("*.py"))}


def folder_of(path: str) -> str:
    """vldebias/hosts for its files, vldebias for files beside folders."""
    return "/".join(path.split("/")[:-1][:2])


def parameters(function: Functions) -> int:
    """How many there are, without self and cls."""
    a = function.args
    return sum(arg.arg not in ("self", "cls") for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs))


def uses_of_private(tree: ast.Module, names: Iterable[ast.Name]) -> dict[str, int]:
    """Private functions of the module -> how often its `names` read them, the function's own body left out."""
    private = {n.name: n for n in tree.body if isinstance(n, Functions) and n.name.startswith("_") and n.name[1] != "_"}
    return {
        name: sum(n.id == name and not f.lineno <= n.lineno <= (f.end_lineno or 0) for n in names)
        for name, f in private.items()
    }


def exported(tree: ast.Module) -> int:
    """Names in __all__, where it is written out."""
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return sum(len(one.elts) for one in lists if isinstance(one, ast.List | ast.Tuple))


def shapes(root: Path) -> int:
    """Sets of keys that the committed results begin with; those of `Result` are one, whatever else it carries."""
    keys = [
        frozenset(json.loads(p.read_text(encoding="utf-8"))) for p in sorted((root / "eval/results").glob("*.json"))
    ]
    return len({frozenset(SHAPE) if one >= SHAPE else one for one in keys})


def count(root: Path) -> Counts:
    """The counts of a checkout."""
    texts = {path: text for part in PARTS for path, text in sources(root, part).items()}
    package = {path: tree_of(root / path) for path in texts if path.startswith("vldebias/")}
    nodes = {path: list(ast.walk(tree)) for path, tree in package.items()}
    names = {path: [n for n in inside if isinstance(n, ast.Name)] for path, inside in nodes.items()}
    lines: Counter[str] = Counter()
    for path, text in texts.items():
        for folder in {path.split("/")[0], folder_of(path)}:
            lines[folder] += len(text.splitlines())
    defined = [n for tree in package.values() for n in tree.body if isinstance(n, (ast.ClassDef, *Functions.__args__))]
    most = [parameters(node) for inside in nodes.values() for node in inside if isinstance(node, Functions)]
    uses = [times for path, tree in package.items() for times in uses_of_private(tree, names[path]).values()]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    single = {
        "files of the package": len(package),
        "files of the package over 400 lines": sum(len(texts[path].splitlines()) > 400 for path in package),
        "private functions used once": sum(times == 1 for times in uses),
        "most parameters of a function": max(most),
        "functions with more than 8 parameters": sum(n > 8 for n in most),
        "public definitions": sum(not node.name.startswith("_") for node in defined),
        "exported names": sum(map(exported, package.values())),
        "assignments to vague names": sum(
            n.id in VAGUE and isinstance(n.ctx, ast.Store) for inside in names.values() for n in inside
        ),
        "circles": len(all_circles(root)),
        "shapes of results": shapes(root),
        "hard dependencies": len(project["dependencies"]),
    }
    counted = {name: {"": number} for name, number in single.items()}
    return {"lines": dict(sorted(lines.items())), **counted, **installed(root)}


def installed(root: Path) -> Counts:
    """What `.ci/environments sizes` found of fresh environments, torch and what it brings left out, in MB."""
    path = root / "eval" / "results" / "install_sizes.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["figures"] if path.is_file() else []
    sizes = {row["method"]: row["value"] for row in rows if row["metric"] == "MB_without_torch"}
    return {"MB installed beside torch": sizes} if sizes else {}


def seconds_of(junit: Path) -> dict[str, float]:
    """Folder of tests -> seconds of its tests, each with what was set up for it, from pytest's --junitxml."""
    spent: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(junit).iter("testcase"):
        # A file that is skipped whole has no class name; its own stands in the place of a test's.
        place = (case.get("classname") or case.get("name", "")).replace(".", "/").split("/")
        folder = "/".join(place[:2]) if (ROOT / "/".join(place[:2])).is_dir() else "tests"
        for name in {"tests", folder}:
            spent[name] += float(case.get("time", 0))
    return {name: round(value, 1) for name, value in sorted(spent.items())}


# ---- budgets -------------------------------------------------------------------------------------------------------


def read_budgets(text: str) -> Counts:
    """The budgets, every number under a folder; one that stands alone is of all."""
    given = yaml.safe_load(text)
    return {name: one if isinstance(one, dict) else {"": one} for name, one in given.items()}


def over(counts: Mapping[str, Mapping[str, float]], budgets: Counts) -> list[str]:
    """What is wrong, in words: counts over their budgets, folders without one."""
    found = []
    for name, parts in counts.items():
        for folder, number in parts.items():
            budget = budgets.get(name, {}).get(folder)
            where = f"{name} of {folder}" if folder else name
            if budget is None:
                found.append(f"{where}: {number:,} and no budget; write one into {BUDGETS}")
            elif number > budget:
                found.append(f"{where}: {number:,}, the budget is {budget:,}")
    return found


def raised(before: Counts, after: Counts) -> list[str]:
    """Budgets that `after` raises; a new one is no raise."""
    return [
        f"{name} {folder}".strip()
        for name, parts in after.items()
        for folder, number in parts.items()
        if number > before.get(name, {}).get(folder, number)
    ]


def raised_in_silence(root: Path) -> list[str]:
    """Commits that raise a budget and do not say why; those of a shallow clone that are not here are not looked at."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else ""

    found = []
    for commit in git("log", "--format=%H", "--", str(BUDGETS)).split():
        before, after = (git("show", f"{at}:{BUDGETS.as_posix()}") for at in (f"{commit}^", commit))
        up = raised(read_budgets(before), read_budgets(after)) if before and after else []
        if up and not REASON.search(git("log", "-1", "--format=%B", commit)):
            found.append(f"{commit[:12]} raises {', '.join(up)}; say why on a line that begins with 'Budget: '")
    return found


def tightened(counts: Counts, budgets: Counts) -> Counts:
    """The budgets, those that are too wide brought down to what is there; seconds keep room for a slower machine."""
    counts = {name: parts for name, parts in counts.items() if name != SECONDS}
    lower = {n: {f: min(v, budgets.get(n, {}).get(f, v)) for f, v in parts.items()} for n, parts in counts.items()}
    return {**budgets, **lower}


def written(budgets: Counts) -> str:
    """The file of budgets."""
    head = (ROOT / BUDGETS).read_text(encoding="utf-8").partition("\n\n")[0]
    plain = {name: parts[""] if set(parts) == {""} else parts for name, parts in budgets.items()}
    return f"{head}\n\n{yaml.safe_dump(plain, sort_keys=False)}"


# ---- the command ---------------------------------------------------------------------------------------------------


def rows_of(columns: Mapping[str, Counts]) -> list[dict[str, Any]]:
    """A row for each checkout and folder, with all that is counted there."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for when, counts in columns.items():
        for name, parts in counts.items():
            for folder, number in parts.items():
                rows.setdefault((when, folder), {"checkout": when, "folder": folder or "all"})[name] = number
    return list(rows.values())


def show(columns: Mapping[str, Counts]) -> None:
    """A row for each count and folder, a column for each checkout and the budgets."""
    table = Table("", *columns)
    places = dict.fromkeys((name, folder) for one in columns.values() for name, part in one.items() for folder in part)
    for name, folder in places:
        cells = (one.get(name, {}).get(folder) for one in columns.values())
        table.add_row(f"{name} {folder}".strip(), *("" if cell is None else f"{cell:,}" for cell in cells))
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout, to stand before this one")
    parser.add_argument("--junit", type=Path, help="what pytest wrote with --junitxml")
    parser.add_argument("--check", action="store_true", help="fail where a count is over its budget")
    parser.add_argument("--tighten", action="store_true", help="bring budgets down to what is counted")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(ROOT)}")
    arguments = parser.parse_args()
    budgets = read_budgets((ROOT / BUDGETS).read_text(encoding="utf-8"))
    columns = {"before": count(arguments.against)} if arguments.against else {}
    columns["now"] = count(ROOT)
    if arguments.junit:
        columns["now"][SECONDS] = seconds_of(arguments.junit)
    show({**columns, "budget": budgets})
    if arguments.write:
        write_records(RESULT, "Lines, names and shapes of two checkouts.", rows_of(columns), "checkout", ("folder",))
    if arguments.tighten:
        (ROOT / BUDGETS).write_text(written(tightened(columns["now"], budgets)), encoding="utf-8")
    wrong = over(columns["now"], budgets) + raised_in_silence(ROOT)
    print(*wrong, sep="\n", file=sys.stderr)
    sys.exit(bool(wrong) and arguments.check)


if __name__ == "__main__":
    main()
