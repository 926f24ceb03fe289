"""Would the tests notice? Break the core in one place at a time and run the tests that are about it.

A mutant swaps an operator, negates a condition, shifts a number, drops a call, a `raise` or a method of the chain; its
places are drawn by a hash, so that an edit elsewhere in a file leaves the others as they were. First come those that
once survived, by name. A mutant survives where all tests that mutants.yaml has for its file pass: then a test is
missing, or the place makes no difference, and that file says why.

    python -m tests.robust.mutants                       # all, or what is left of them
    python -m tests.robust.mutants --only projection --each 40 --out /tmp/mutants.json
    python -m tests.robust.mutants --show 12             # what the mutant with this number changes

The libraries are imported once; every mutant runs in a fork of that process, in which its module is loaded from the
changed source. Before the mutants of a file its tests run unchanged and traced: of each line is known then which tests
reach it, and a mutant meets these first, the one that noticed it last time before all others.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from eval.experiments.records import write_records
from vldebias.evaluation.result import Result

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "eval" / "results" / "mutants.json"
KNOWN = yaml.safe_load((ROOT / "tests" / "robust" / "mutants.yaml").read_text(encoding="utf-8"))
TARGETS: dict[str, list[str]] = KNOWN["targets"]  # file -> its tests
NAMED: dict[str, tuple[str, str, str]] = KNOWN["named"]  # name -> file, before, after
EQUIVALENT: dict[str, str] = KNOWN["equivalent"]  # key -> why it changes nothing
SECONDS = 240
FIRST = 60  # tests that reach a line, the fastest, before all tests of a file

_SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.Pow: ("**", "*"), ast.FloorDiv: ("//", "/"), ast.Mod: ("%", "+"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
_NAMES = {"max": "min", "min": "max", "any": "all", "all": "any", "sorted": "list"}
_CHAINED = {"abs", "clamp", "sqrt", "square", "clone", "copy", "detach", "double", "float", "normalised", "casefold"}


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes start .. stop of a file are `after` in place of `before`."""

    file: str
    line: int
    where: str
    change: str
    before: str
    after: str
    start: int
    stop: int
    code: str  # digest of the function that it is in
    nth: int = 1  # of those that read the same

    @property
    def key(self) -> str:
        """What it is called where its verdict is kept."""
        return f"{self.file}: {self.where}: {self.before} -> {self.after}{f' ({self.nth})' if self.nth > 1 else ''}"

    def of(self, source: bytes) -> bytes:
        """The changed source."""
        return source[: self.start] + self.after.encode() + source[self.stop :]


# ---- where and how --------------------------------------------------------------------------------------------------


def places(file: str, source: bytes) -> Iterator[Mutant]:
    """Every change of a file; texts, annotations and messages of errors are left alone."""
    tree = ast.parse(source)
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def at(node: Any, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        return int(begins[line - 1] + column)

    def mutant(node: Any, change: str, start: int, stop: int, after: str) -> Mutant:
        before = source[start:stop].decode()
        line = source.count(b"\n", 0, start) + 1
        where, code = within[node]
        one = Mutant(file, line, where, change, before, after, start, stop, code)
        counts[one.key] += 1
        return replace(one, nth=counts[one.key])

    def swapped(node: Any, left: Any, right: Any, op: ast.AST, change: str) -> Iterator[Mutant]:
        old, new = _SWAPS[type(op)]
        start, stop = at(left, end=True), at(right)
        gap = source[start:stop].decode()
        token = re.search(r"\s+".join(map(re.escape, old.split())), gap)
        if token and "#" not in gap:
            yield mutant(node, change, start + token.start(), start + token.end(), new)

    within, skipped = _scopes(tree), _left_alone(tree)
    counts: dict[str, int] = defaultdict(int)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            yield mutant(node, "raise dropped", at(node), at(node, True), "pass")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield mutant(node, "call dropped", at(node), at(node, True), "None")
        if node in skipped:
            continue
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for i, op in enumerate(node.ops):
                yield from swapped(node, sides[i], sides[i + 1], op, "comparison")
        elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
            if not any(isinstance(s, ast.Constant) and isinstance(s.value, str) for s in (node.left, node.right)):
                yield from swapped(node, node.left, node.right, node.op, "operator")
        elif isinstance(node, ast.BoolOp):
            yield from swapped(node, node.values[0], node.values[1], node.op, "operator")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
            yield mutant(node, "sign", at(node), at(node) + (3 if isinstance(node.op, ast.Not) else 1), "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            value = node.value
            shifted = (
                not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 1.5 + 0.1
            )
            yield mutant(node, "number", at(node), at(node, True), repr(shifted))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NAMES:
            yield mutant(node, "function", at(node.func), at(node.func, True), _NAMES[node.func.id])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHAINED:
            name_from = at(node.func, True) - len(node.func.attr) - 1
            yield mutant(node, "method dropped", name_from, at(node, True), "")
        tests = [node.test] if isinstance(node, (ast.If, ast.IfExp, ast.While)) else getattr(node, "ifs", [])
        for test in tests:
            if b"TYPE_CHECKING" not in source[at(test) : at(test, True)]:
                text = source[at(test) : at(test, True)].decode()
                yield mutant(node, "condition", at(test), at(test, True), f"(not ({text}))")


def _scopes(tree: ast.AST) -> dict[ast.AST, tuple[str, str]]:
    """Node -> name of the function or class that it is in, and a digest of that function."""
    within: dict[ast.AST, tuple[str, str]] = {tree: ("", "")}
    for node in ast.walk(tree):  # parents first
        name, code = within[node]
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            name = f"{name}.{node.name}" if name else node.name
        if isinstance(node, ast.FunctionDef):
            code = hashlib.sha256(ast.dump(node).encode()).hexdigest()[:12]
        for child in ast.iter_child_nodes(node):
            within[child] = name, code
    return within


def _left_alone(tree: ast.AST) -> set[ast.AST]:
    """Annotations, decorators, texts, messages, and `strict` of zip, a guard that nothing should reach."""
    parts: list[ast.AST | None] = []
    for node in ast.walk(tree):
        called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            parts += node.decorator_list
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts.append(node.returns)
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            parts.append(node.annotation)
        elif (
            (isinstance(node, ast.keyword) and node.arg == "strict")
            or isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert))
            or called
            in (
                "warn",
                "fail",
                "overload",
                "TypeVar",
            )
        ):
            parts.append(node)
    return {one for part in parts if part is not None for one in ast.walk(part)}


def drawn(file: str, each: int) -> list[tuple[Mutant, str]]:
    """(mutant, its name or ""): those of a file with a name, then `each` others, the same whatever runs them."""
    source = (ROOT / file).read_bytes()
    chosen = sorted(places(file, source), key=_order)[:each]
    named = [(_named(file, name, source), name) for name, (of, *_) in NAMED.items() if of == file]
    return named + [(one, "") for one in sorted(chosen, key=lambda one: one.start)]


def _order(one: Mutant) -> str:
    return hashlib.sha256(f"{replace(one, nth=1).key} {one.nth}".encode()).hexdigest()


def _named(file: str, name: str, source: bytes) -> Mutant:
    before, after = NAMED[name][1:]
    if source.count(before.encode()) != 1:
        raise SystemExit(f"{name}: expected {before!r} once in {file}; write it as the source is now")
    start = source.index(before.encode())
    line = source.count(b"\n", 0, start) + 1
    code = next((one.code for one in places(file, source) if one.line == line), "")
    return Mutant(file, line, name, "by name", before, after, start, start + len(before.encode()), code)


# ---- one fork --------------------------------------------------------------------------------------------------------


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from changed source."""

    def __init__(self, name: str, source: bytes, path: Path) -> None:
        self._name, self._source, self._path = name, source, path

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=str(self._path))

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(self._path)
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)


@dataclass(eq=False)
class _Watch:
    """Plugin of pytest: which test failed, and which tests reach which lines of the files that are traced."""

    trace: Mapping[str, str]  # path -> name of the file
    failed: str = ""
    now: str = ""
    lines: dict[str, dict[str, set[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def pytest_sessionstart(self) -> None:
        if self.trace:
            sys.settrace(self._call)
            threading.settrace(self._call)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.now = nodeid
        if self.trace:
            sys.settrace(self._call)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or f"import by {report.nodeid}"

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in self.trace else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.lines[self.trace[frame.f_code.co_filename]][self.now].add(frame.f_lineno)
        return self._line


def run(source: bytes, file: str, tests: Sequence[str], *, trace: Sequence[str] = ()) -> dict[str, Any]:
    """{"verdict": "noticed", "survived" or "never ended" (noticed too), "by": test, ...} of a source, in a fork."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "out.json"
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
            name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            for known in [one for one in sys.modules if one.partition(".")[0] in ("vldebias", "eval", "apps")]:
                del sys.modules[known]  # this process imported them unchanged
            sys.meta_path.insert(0, _Loader(name, source, ROOT / file))
            watch = _Watch({str(ROOT / one): one for one in trace})
            code = 1
            try:
                import pytest

                options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--assert=plain", "--durations=0"]
                options += [] if trace else ["-x"]
                code = int(pytest.main([*options, f"--basetemp={temporary}/tests", *tests], [watch]))
            except BaseException as error:
                watch.failed = watch.failed or f"{type(error).__name__} outside of the tests"
            sys.settrace(None)
            if name not in sys.modules or not isinstance(getattr(sys.modules[name], "__loader__", None), _Loader):
                code, watch.failed = 3, watch.failed or "the changed module was never loaded"
            if code > 2:  # no error of a test: the names of the tests have changed, or a conftest is not imported
                watch.failed = watch.failed or f"exit code {code} of pytest"
            told = {
                "by": watch.failed,
                "seconds": watch.seconds,
                "lines": {f: {t: sorted(x) for t, x in of.items()} for f, of in watch.lines.items()},
            }
            out.write_text(json.dumps(told | {"verdict": "survived" if code == 0 else "noticed"}))
            os._exit(0)
        deadline = time.monotonic() + SECONDS * (5 if trace else 1)
        while time.monotonic() < deadline:
            if os.waitpid(child, os.WNOHANG)[0]:
                if not out.exists():
                    return {"verdict": "noticed", "by": "the process died"}
                return dict(json.loads(out.read_text()))
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return {"verdict": "never ended", "by": f"no end within {SECONDS} seconds"}


def try_out(mutant: Mutant, source: bytes, tests: Sequence[str], sound: Any, last: str) -> dict[str, Any]:
    """The tests that reach the place, the fastest first; where they all pass, all tests of the file."""
    lines = set(range(mutant.line, mutant.line + mutant.before.count("\n") + 1))
    reach = [test for test, seen in sound["lines"].get(mutant.file, {}).items() if test and lines & set(seen)]
    reach.sort(key=lambda test: (test != last, sound["seconds"].get(test, 0.0)))
    changed = mutant.of(source)
    found = run(changed, mutant.file, reach[:FIRST]) if reach else {"verdict": "survived"}
    unclear = found["verdict"] == "survived" or found["by"].startswith("exit code")
    return run(changed, mutant.file, tests) if unclear else found


# ---- all of them -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=5, help="mutants a file, besides those with a name")
    parser.add_argument("--only", default="", help="files whose path has this in it")
    parser.add_argument("--show", type=int, help="print what one mutant changes")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    chosen = [file for file in TARGETS if options.only in file]
    if options.show is not None:
        one = [mutant for file in chosen for mutant, _ in drawn(file, options.each)][options.show]
        source = (ROOT / one.file).read_bytes()
        texts = [text.decode().splitlines() for text in (source, one.of(source))]
        print(*difflib.unified_diff(*texts, one.file, one.key, lineterm=""), sep="\n")
        return
    os.chdir(ROOT)
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
    import diffusers  # noqa: F401  (imported once, for all forks)
    import open_clip  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch
    import transformers  # noqa: F401

    torch.set_num_threads(1)
    before = {(row["key"], row["code"]): row for row in read(options.out)}
    rows: list[dict[str, Any]] = []
    traced: dict[tuple[str, ...], dict[str, Any]] = {}
    started = time.monotonic()
    for file in chosen:
        source, tests = (ROOT / file).read_bytes(), tuple(TARGETS[file])
        found = []
        for mutant, name in drawn(file, options.each):
            row = before.get((mutant.key, mutant.code), {"verdict": "", "by": ""})
            explained = {"why": EQUIVALENT[mutant.key]} if mutant.key in EQUIVALENT else {}
            if row["verdict"] == "" or (row["verdict"] == "survived" and not explained):
                if tests not in traced:
                    alike = [other for other in TARGETS if tuple(TARGETS[other]) == tests]
                    traced[tests] = run(source, file, tests, trace=alike)
                if traced[tests]["verdict"] != "survived":
                    print(
                        f"{file}: left out, its tests fail without any change: {traced[tests]['by']}", file=sys.stderr
                    )
                    break
                row = try_out(mutant, source, tests, traced[tests], row["by"])
                clock = f"{time.monotonic() - started:5.0f} s"
                print(f"{clock} {mutant.key[:110]!r}: {row['verdict']} {row['by']}", file=sys.stderr, flush=True)
            about = {"key": mutant.key, "file": file, "line": mutant.line, "change": mutant.change, "code": mutant.code}
            told = about | {"verdict": row["verdict"], "by": row["by"]} | ({"named": True} if name else {})
            found.append(told | (explained if row["verdict"] == "survived" else {}))
        else:
            rows += found
            write(
                options.out, rows + [row for row in read(options.out) if row["file"] not in {r["file"] for r in rows}]
            )
    noticed = sum(row["verdict"] != "survived" for row in rows)
    print(f"{noticed} of {len(rows)} noticed; {sum('why' in row for row in rows)} survivors change nothing")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows that are there."""
    return list(Result.read(path).provenance[0].settings["mutants"]) if path.exists() else []


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """After every file, so that a run that was stopped goes on there."""
    survived = [row for row in rows if row["verdict"] == "survived"]
    told = {
        "what": "all",
        "mutants": len(rows),
        "noticed": len(rows) - len(survived),
        "equivalent": sum("why" in row for row in survived),
        "survived": sum("why" not in row for row in survived),
    }
    ordered = sorted((row for row in rows if row["file"] in TARGETS), key=lambda row: [*TARGETS].index(row["file"]))
    write_records(path, "Mutants of the core that the tests notice", [told], "what", mutants=ordered)


if __name__ == "__main__":
    main()
