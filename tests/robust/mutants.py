r"""Break the code in one place at a time and run the tests of its folder to see whether they fail.

    python -m tests.robust.mutants --seed 4 --number 60        # this many random places
    python -m tests.robust.mutants --seed 4 \
        --only vldebias/methods apps/images_api                # of two folders; \
        --list: what would be changed

Places are sampled from all files of the package and its programs with equal probability per line,
and changed in a copy of the checkout. A survivor indicates a missing test, or a change that makes
no difference. `--out` stores results; these mutants are not run again.
"""

import argparse
import ast
import copy
import importlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{
        ast.Lt: ast.LtE,
        ast.LtE: ast.Lt,
        ast.Gt: ast.GtE,
        ast.GtE: ast.Gt,
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
    },
    **{
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.In: ast.NotIn,
        ast.NotIn: ast.In,
        ast.And: ast.Or,
        ast.Or: ast.And,
    },
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult},
}
LEFT_UNCHANGED = (ast.Raise, ast.JoinedStr, ast.Assert)
# Imported once, because importing them takes longer than most tests. Code under test must not be
# among them. pytest would refuse those that have a plugin, so plugins are not loaded.
LIBRARIES = (
    "torch numpy pandas scipy.stats sklearn PIL.Image pydantic starlette httpx2 uvicorn pytest"
    " hypothesis open_clip diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion"
)


@dataclass(frozen=True)
class Mutant:
    """Describe a change to one node, identified by its index in `ast.walk` of its file."""

    file: str
    line: int
    node: int
    before: str
    after: str


def changed(node: ast.AST) -> ast.AST | None:
    """Return the replacement for this node, or None if nothing changes."""
    mutated = copy.deepcopy(node)
    match mutated:
        case ast.Compare(ops=[op, *_]) if type(op) in SWAPS:
            mutated.ops[0] = SWAPS[type(op)]()  # type: ignore[assignment,unused-ignore]
        case ast.BinOp() | ast.BoolOp() if type(mutated.op) in SWAPS:
            sides = (
                [mutated.left, mutated.right] if isinstance(mutated, ast.BinOp) else mutated.values
            )
            if any(
                isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str)
                for side in sides
            ):
                return None
            mutated.op = SWAPS[type(mutated.op)]()  # type: ignore[assignment,unused-ignore]
        case ast.If() | ast.IfExp() | ast.While():
            mutated.test = ast.UnaryOp(ast.Not(), mutated.test)
        case ast.Constant(value=bool()):
            mutated.value = not mutated.value
        case ast.Constant(value=int() | float()):
            mutated.value = (
                mutated.value + 1 if isinstance(mutated.value, int) else mutated.value * 1.5 + 0.1
            )
        case ast.Raise() | ast.Expr(value=ast.Call()):
            return ast.Pass()
        case _:
            return None
    return ast.fix_missing_locations(mutated)


def first_line(node: ast.AST) -> str:
    """Return the first line of a node's code."""
    return ast.unparse(node).partition("\n")[0][:90]


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Yield every change to a file."""
    tree = ast.parse(source)
    alone: set[ast.AST] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = [
            *getattr(node, "decorator_list", ()),
            getattr(node, "returns", None),
        ]
        # This makes no difference for lists of equal length.
        of_zip = isinstance(node, ast.keyword) and node.arg == "strict"
        parts.append(getattr(node, "value" if of_zip else "annotation", None))
        if isinstance(node, LEFT_UNCHANGED) or (
            isinstance(node, ast.Call) and getattr(node.func, "id", "") == "warn"
        ):
            parts += ast.iter_child_nodes(node)
        alone.update(
            descendant for part in parts if part is not None for descendant in ast.walk(part)
        )
    for number, node in enumerate(ast.walk(tree)):
        condition = ast.unparse(getattr(node, "test", ast.Pass()))
        if node in alone or "TYPE_CHECKING" in condition:
            continue
        mutated = changed(node)
        if mutated is not None:
            line = node.lineno  # type: ignore[attr-defined,unused-ignore]
            yield Mutant(file, line, number, first_line(node), first_line(mutated))


def sampled(seed: int, number: int, only: Sequence[str]) -> list[Mutant]:
    """Return `number` random mutants of these files, with at most one change per line."""
    mutant_of_line = {}
    for path in sorted([*(ROOT / "vldebias").rglob("*.py"), *(ROOT / "apps").rglob("*.py")]):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(tuple(only)):
            for mutant in mutants_of(name, path.read_text(encoding="utf-8")):
                mutant_of_line[mutant.file, mutant.line] = mutant
    mutants = list(mutant_of_line.values())
    return random.Random(seed).sample(mutants, min(number, len(mutants)))


def tests_of(file: str) -> list[str]:
    """Return the tests in the folder that is named after the file's folder, or those that import
    it or begin with its name. Tests that name the file come first."""
    path = Path(file)
    tests = ROOT / "tests" / "apps" if path.parts[0] == "apps" else ROOT / "tests"
    room = Path(path.parts[1]).stem
    # A program's tests may only start it by its command, without importing it.
    commands = {"images_api": "serve_"}
    names = (f"test_{room}", f"test_{commands.get(room, room)}")
    paths = sorted((tests / room).rglob("test_*.py")) or sorted(
        test
        for test in tests.glob("test_*.py")
        if test.stem.startswith(names) or f"{path.parts[0]}.{room}" in test.read_text("utf-8")
    )
    paths.sort(key=lambda test: path.stem not in test.stem)
    return [test.relative_to(ROOT).as_posix() for test in paths]


def run_tests(checkout: Path, paths: Sequence[str]) -> None:
    """Run tests in this process and exit with ten times their status, which is never 1."""
    import pytest

    os.chdir(checkout)
    # The checkout of this script may be on the path, and its code must not be tested.
    sys.path[:] = [str(checkout), *(place for place in sys.path if Path(place) != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "apps")]:
        del sys.modules[name]
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *paths])
    os._exit(10 * status)


def verdict(mutant: Mutant, checkout: Path, seconds: float) -> str:
    """Return "killed", "survived" or "never ended" for a change in a copy of the checkout."""
    path = checkout / mutant.file
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    target = list(ast.walk(tree))[mutant.node]
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, changed(target))
            elif isinstance(value, list) and target in value:
                value[value.index(target)] = changed(target)
    path.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=run_tests, args=(checkout, tests_of(mutant.file)))
    try:
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            return "never ended"
        assert process.exitcode != 1, "an exception in `run_tests`, not in a test"
        return "killed" if process.exitcode else "survived"
    finally:
        process.kill()
        process.join()
        path.write_text(source, encoding="utf-8")


def main() -> None:
    """Test one mutant after another, and print those that survive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True, help="of the sample")
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument(
        "--only", nargs="+", default=["vldebias/"], help="files whose path begins like one of these"
    )
    parser.add_argument(
        "--seconds", type=float, default=600, help="most for the tests of one mutant"
    )
    parser.add_argument("--list", action="store_true", help="print the changes and try none")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    options = parser.parse_args()
    chosen = sampled(options.seed, options.number, options.only)
    if options.list:
        for mutant in chosen:
            print(f"{mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}")
        return
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    rows = map(json.loads, lines)
    tried = {(row["file"], row["node"], row["after"]): row["verdict"] for row in rows}
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in LIBRARIES.split():
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["PYTHONPATH"] = temporary + "/checkout"
        checkout = Path(temporary) / "checkout"
        shutil.copytree(
            ROOT,
            checkout,
            ignore=shutil.ignore_patterns(".git", ".venv", "site", "dist", ".*_cache"),
        )
        for mutant in chosen:
            if (mutant.file, mutant.node, mutant.after) not in tried:
                tried[mutant.file, mutant.node, mutant.after] = outcome = verdict(
                    mutant, checkout, options.seconds
                )
                with options.out.open("a") as file:
                    file.write(json.dumps(asdict(mutant) | {"verdict": outcome}) + "\n")
                print(
                    f"{outcome}: {mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}",
                    file=sys.stderr,
                    flush=True,
                )
    ends = [tried[mutant.file, mutant.node, mutant.after] for mutant in chosen]
    print(f"seed {options.seed}, {len(ends)} mutants: {dict(Counter(ends))}")


if __name__ == "__main__":
    main()
