"""How the house is built: lines, files, functions, and how far things are passed on, counted in the syntax trees.

python -m eval.house                                                 # count this checkout
python -m eval.house --against ../old --json eval/results/house.json # beside another checkout, written down

Nothing is imported. "Private" are functions of a module whose name starts with an underscore; "used once" are those
that are read in one place. A parameter "copied" is a keyword argument that is passed on under its own name (`k=k`,
`k=settings.k`). "Files that a type passes" are the files with a parameter of that type.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vldebias.files import write_atomically

ROOT = Path(__file__).parents[1]
VAGUE = {"found", "told", "said", "wanted", "given", "asked"}
Functions = ast.FunctionDef | ast.AsyncFunctionDef


def trees(folder: Path) -> dict[str, tuple[ast.Module, int]]:
    """Path below `folder` -> its syntax tree and how many lines it has."""
    read = {}
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        read[path.relative_to(folder).as_posix()] = ast.parse(text), len(text.splitlines())
    return read


def functions(tree: ast.Module) -> Iterator[Functions]:
    """All functions and methods."""
    return (node for node in ast.walk(tree) if isinstance(node, Functions))


def parameters(function: Functions) -> list[ast.arg]:
    """All but self and cls."""
    a = function.args
    return [arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs) if arg.arg not in ("self", "cls")]


def uses_of_private(tree: ast.Module) -> dict[str, int]:
    """Private functions of the module -> how often they are read in it, the function's own body left out."""
    private = {n.name: n for n in tree.body if isinstance(n, Functions) and n.name.startswith("_") and n.name[1] != "_"}
    reads = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    own = {name: sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(f)) for name, f in private.items()}
    return {name: reads[name] - own[name] for name in private}


def names_in(annotation: ast.expr | None) -> set[str]:
    """Names in an annotation, quoted or not."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if annotation is None:
        return set()
    return {n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)}


def copied(tree: ast.Module) -> int:
    """Keyword arguments that are passed on under their own name."""
    calls = (keyword for n in ast.walk(tree) if isinstance(n, ast.Call) for keyword in n.keywords if keyword.arg)
    own = {ast.Name: "id", ast.Attribute: "attr"}
    return sum(getattr(keyword.value, own.get(type(keyword.value), ""), None) == keyword.arg for keyword in calls)


def count(root: Path) -> dict[str, Any]:
    """The counts of a checkout."""
    package = trees(root / "vldebias")
    every = [function for tree, _ in package.values() for function in functions(tree)]
    modules = [n for tree, _ in package.values() for n in tree.body if isinstance(n, Functions)]
    uses = [times for tree, _ in package.values() for times in uses_of_private(tree).values()]
    sizes = [lines for _, lines in package.values()]
    lines_of: Counter[str] = Counter()
    for path, (_, lines) in package.items():
        lines_of[path.split("/")[0].removesuffix(".py")] += lines
    classes = {n.name for tree, _ in package.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    passes: Counter[str] = Counter()
    for tree, _ in package.values():
        passes.update(classes & {x for f in functions(tree) for arg in parameters(f) for x in names_in(arg.annotation)})
    names = [n for tree, _ in package.values() for n in ast.walk(tree) if isinstance(n, ast.Name)]
    beside = {part: sum(lines for _, lines in trees(root / part).values()) for part in ("apps", "eval", "tests")}
    return {
        "commit": _commit(root),
        "lines": {"vldebias": sum(sizes), **beside},
        "lines per part": dict(sorted(lines_of.items(), key=lambda item: -item[1])),
        "files": len(sizes),
        "files under 80 lines": sum(size < 80 for size in sizes),
        "files over 400 lines": sum(size > 400 for size in sizes),
        "functions of modules": len(modules),
        "private functions": len(uses),
        "private functions used once": sum(times == 1 for times in uses),
        "functions with more than 8 parameters": sum(len(parameters(function)) > 8 for function in every),
        "most parameters": max(len(parameters(function)) for function in every),
        "parameters copied under their own name": sum(copied(tree) for tree, _ in package.values()),
        "Any per 1,000 lines": round(1000 * sum(n.id == "Any" for n in names) / sum(sizes), 1),
        "assignments to vague names": sum(n.id in VAGUE and isinstance(n.ctx, ast.Store) for n in names),
        "files that a type passes": dict(passes.most_common(8)),
    }


def _commit(root: Path) -> str:
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip()


def show(columns: dict[str, dict[str, Any]]) -> None:
    """A row per count, a column per checkout."""
    table = Table("", *columns)
    for name in next(iter(columns.values())):
        cells = [one[name] for one in columns.values()]
        if isinstance(cells[0], dict):
            cells = ["\n".join(f"{key} {value:,}" for key, value in cell.items()) for cell in cells]
        table.add_row(name, *map(str, cells), end_section=True)
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout, to stand before this one")
    parser.add_argument("--json", type=Path, help="write the counts here")
    arguments = parser.parse_args()
    columns = {"before": count(arguments.against)} if arguments.against else {}
    columns["now"] = count(ROOT)
    show(columns)
    if arguments.json:
        write_atomically(arguments.json, json.dumps(columns, indent=1) + "\n")


if __name__ == "__main__":
    main()
