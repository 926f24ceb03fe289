"""Imports point down only, and `import vldebias` costs little more than torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

import vldebias

ROOT = Path(vldebias.__file__).parent
CHECKOUT = ROOT.parent

# Floors, lowest first: a module imports from its own folder and from lower floors, never from its own floor's neighbour
# nor upward, lazily neither. "" is the package itself, which names what people use on any floor below the commands.
FLOORS = [
    {"errors", "gone"},
    {"files", "hub", "options", "progress", "registry"},
    {"pictures", "axes", "provenance"},
    {"edit_folder"},
    {"edit"},
    {"projection", "prompts", "losses", "metrics"},
    {"hosts"},
    {"methods", "data"},
    {"miniature", "diagnostics", "shelf"},
    {"api", "loading"},
    {"evaluation", "training"},
    {""},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
API = LEVEL["api"]
HEAVY = {"open_clip", "transformers", "diffusers", "datasets", "gradio", "scipy", "matplotlib", "rich", "typer"}
HEAVY |= {"huggingface_hub", "pandas", "pyarrow"}
CORE = {"torch", "numpy", "safetensors", "pydantic", "yaml", "typer", "rich", "huggingface_hub"}
ALWAYS_THERE = CORE | {"fsspec", "vldebias"} | set(sys.stdlib_module_names)  # torch needs fsspec itself
NEEDS_NO_SENTENCE = {  # a subclass needs its base, which `need` has found; a notebook is running
    ("vldebias.miniature.autoencoder", "diffusers"),
    ("vldebias.pictures", "IPython"),
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
ON_A_HEAVY_BASE = {"vldebias.miniature.autoencoder"}  # a subclass needs its base; itself, it is imported in functions
LIGHT_ENOUGH_ONLY_ABOVE_API = {"miniature"}  # above `api`, but opened by people who only want its data


# Beside the package: apps stand on it and on nothing of eval; eval may use apps; neither is imported by the package.
BESIDE = {"apps": {"apps", "vldebias"}, "eval": {"eval", "apps", "vldebias", "tests"}}


def modules(*folders: str, root: Path = CHECKOUT) -> list[Path]:
    return sorted(path for folder in folders or ["vldebias"] for path in (root / folder).rglob("*.py"))


def name_of(path: Path, root: Path = CHECKOUT) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = frozenset(map(name_of, modules("vldebias", *BESIDE)))


def part(module: str) -> str:
    """The layer that a module belongs to: hosts for vldebias.hosts.base, "" for vldebias."""
    return [*module.split("."), ""][1]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


Found = tuple[ast.Import | ast.ImportFrom, bool, bool]


def _walk(tree: ast.AST, deferred: bool = False, typing_only: bool = False) -> Iterator[Found]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, deferred or typing_only, typing_only
        elif not isinstance(node, ast.expr):
            checked = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            yield from _walk(node, deferred or isinstance(node, _FUNCTIONS), typing_only or checked)


@cache
def walk(tree: ast.Module) -> tuple[Found, ...]:
    """Every import, whether it waits for a call or for the type checker, and whether the latter alone reads it."""
    return tuple(_walk(tree))


def targets(node: ast.Import | ast.ImportFrom, module: str, is_package: bool, known: Set[str] = MODULES) -> list[str]:
    """Full names of what an import statement reads; those of `known` modules by their files."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        package = module.split(".")[: None if is_package else -1]
        package = package[: len(package) - node.level + 1]
        base = ".".join([*package, base]).rstrip(".")
    if base == "vldebias":  # whose version is a constant that needs nothing
        names = [a.name for a in node.names if a.name != "__version__"]
        return [f"vldebias.{name}" if name in LEVEL else "vldebias" for name in names]
    inside = [f"{base}.{a.name}" for a in node.names]
    return [name if name in known else base for name in inside] if base in known else [base]


def problems(tree: ast.Module, module: str, is_package: bool = False) -> list[str]:
    """What is wrong with the imports of one module, in words."""
    own = part(module)
    if own not in LEVEL:
        return [f"{module}: say in FLOORS of {Path(__file__).name} where {own!r} stands"]
    heavy_allowed = (LEVEL[own] > API and own not in LIGHT_ENOUGH_ONLY_ABOVE_API) or module in ON_A_HEAVY_BASE
    found = []
    for node, deferred, _ in walk(tree):
        for target in targets(node, module, is_package):
            top = target.split(".")[0]
            other = part(target)
            if top == "vldebias" and other != own and LEVEL.get(other, -1) >= LEVEL[own]:
                found.append(f"{module}:{node.lineno}: imports upward or from its own floor, from {target}")
            if (top in HEAVY or target in ON_A_HEAVY_BASE) and not deferred and not heavy_allowed:
                what = top if top in HEAVY else target
                found.append(f"{module}:{node.lineno}: imports {what} at module level; do so inside a function")
            if top in ("apps", "eval", "tests"):
                found.append(f"{module}:{node.lineno}: imports {top}, which an installed package does not have")
    return found


def circles(arrows: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other, directly or around corners."""
    reach = {name: {target for target in targets if target in arrows} for name, targets in arrows.items()}
    while ends := {name for name, targets in reach.items() if not targets}:  # no circle goes through them
        reach = {name: targets - ends for name, targets in reach.items() if name not in ends}
    for middle in reach:
        for targets in reach.values():
            if middle in targets:
                targets |= reach[middle]
    return [
        group
        for name in reach
        if name in reach[name]
        and name == min(group := {other for other in reach[name] if name in reach.get(other, ())})
    ]


def left_out(tree: ast.Module, module: str) -> list[str]:
    """Packages of the extras that a module imports without `need`, or with it before anything is called."""
    found = []
    for node, _, typing_only in walk(tree):
        tops = {target.partition(".")[0] for target in targets(node, module, is_package=False)}
        if not typing_only and (module, *tops) not in NEEDS_NO_SENTENCE:
            missing = sorted(tops - ALWAYS_THERE)
            found += [f"{module}:{node.lineno}: imports {top}; write need({top!r})" for top in missing]
    return found + [f"{module}:{one.lineno}: needs it at module level" for one in at_module_level(tree)]


def at_module_level(node: ast.AST) -> Iterator[ast.Call]:
    """Calls of `need` outside of functions."""
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "need":
            yield one
        if not isinstance(one, _FUNCTIONS):
            yield from at_module_level(one)


def test_what_an_installation_may_leave_out_is_asked_for() -> None:
    assert [one for path in modules() for one in left_out(tree_of(path), name_of(path))] == []


@pytest.mark.parametrize(
    "source",
    [
        "import pandas",
        "def f():\n    from PIL import Image",
        'Image = need("PIL.Image")',
        "try:\n    import scipy.stats\nexcept ImportError:\n    pass",
    ],
)
def test_what_is_not_asked_for_is_found(source: str) -> None:
    assert len(left_out(ast.parse(source), "vldebias.data.tables")) == 1
    fine = 'import torch\nif TYPE_CHECKING:\n    import pandas\ndef f():\n    pd = need("pandas")'
    assert left_out(ast.parse(fine), "vldebias.data.tables") == []


def test_imports_point_down() -> None:
    found = [problems(tree_of(path), name_of(path), path.name == "__init__.py") for path in modules()]
    assert [one for several in found for one in several] == []


def arrows_of(*folders: str, typing: bool = False, root: Path = CHECKOUT) -> dict[str, set[str]]:
    """module -> the modules that it imports, at the top, inside functions and, with `typing`, for the type checker."""
    paths = modules(*folders, root=root)
    known = {name_of(path, root) for path in paths}
    arrows = {}
    for path in paths:
        name = name_of(path, root)
        nodes = [node for node, _, typing_only in walk(tree_of(path)) if typing or not typing_only]
        arrows[name] = {t for node in nodes for t in targets(node, name, path.name == "__init__.py", known)} - {name}
    return arrows


def all_circles(root: Path = CHECKOUT) -> list[set[str]]:
    """Of the package, the apps and the experiments, file by file; what the type checker alone reads counts too, but in
    files that stand for their folder, where it reads what comes lazily."""
    arrows = arrows_of("vldebias", *BESIDE, typing=True, root=root)
    faces = {name_of(p, root) for p in modules("vldebias", *BESIDE, root=root) if p.name == "__init__.py"}
    at_run_time = circles(arrows_of("vldebias", *BESIDE, root=root))
    typed = circles({name: to - faces for name, to in arrows.items()})
    return at_run_time + [one for one in typed if one not in at_run_time]


def test_no_modules_import_each_other() -> None:
    """Nor around corners."""
    assert all_circles() == []
    arrows = arrows_of("vldebias", *BESIDE)
    assert "vldebias.hosts" in arrows["vldebias.api"]
    assert "apps.compare.engine" in arrows["apps.compare.drawing"]


@pytest.mark.parametrize("folder", BESIDE)
def test_what_stands_beside_the_package(folder: str) -> None:
    """Apps know nothing of the experiments, and both use the package, which knows neither."""
    ours = {"vldebias", "tests", *BESIDE}
    wrong = {
        name: {t for t in to if t.split(".")[0] in ours - BESIDE[folder]}
        for name, to in arrows_of(folder, typing=True).items()
    }
    assert {name: to for name, to in wrong.items() if to} == {}


UPWARD = "imports upward or from its own floor, from"


def test_circles_are_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"torch"}}) == [{"b", "c"}]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == [{"a", "b", "c"}]


@pytest.mark.parametrize(
    ("module", "source", "text"),
    [
        ("vldebias.errors", "import vldebias.projection", f"errors:1: {UPWARD} vldebias.projection"),
        ("vldebias.projection", "from vldebias.api import debias", f"{UPWARD} vldebias.api"),
        ("vldebias.projection", "from vldebias import api", f"{UPWARD} vldebias.api"),
        ("vldebias.projection", "import vldebias", f"{UPWARD} vldebias"),
        ("vldebias.projection", "def f():\n    from vldebias.hosts import x", f"projection:2: {UPWARD}"),
        ("vldebias.metrics.skew", "from ..hosts import x", f"{UPWARD} vldebias.hosts"),
        ("vldebias.api", "from vldebias.cli import main", f"{UPWARD} vldebias.cli"),
        ("vldebias.hosts.open_clip", "import open_clip", "imports open_clip at module level"),
        ("vldebias.hosts.open_clip", "class A:\n    from diffusers.utils import x", "imports diffusers at module"),
        ("vldebias.miniature.models", "from vldebias.miniature import autoencoder", "imports vldebias.miniature.auto"),
        ("vldebias.data.folders", "try:\n    import datasets\nexcept ImportError:\n    pass", "imports datasets at"),
        ("vldebias.evaluation.report.pages", "from apps.label import x", "imports apps, which an installed package"),
        ("vldebias.brand_new", "", "say in FLOORS of test_imports.py where 'brand_new' stands"),
    ],
)
def test_the_checker_can_fail(module: str, source: str, text: str) -> None:
    found = problems(ast.parse(source), module)
    assert len(found) == 1
    assert text in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("vldebias.hosts.open_clip", "def wrap():\n    import open_clip"),
        ("vldebias.hosts.open_clip", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import open_clip"),
        ("vldebias.hosts.base", "from vldebias.projection import x\nfrom .text import y\nfrom .. import errors"),
        ("vldebias.edit", "from vldebias import __version__"),
        ("vldebias.cli", "import vldebias\nimport gradio\nfrom vldebias.evaluation import x"),
        ("vldebias.projection", "def f():\n    from vldebias.edit import save"),
    ],
)
def test_the_checker_passes_what_is_right(module: str, source: str) -> None:
    assert problems(ast.parse(source), module) == []


def test_importing_the_package_is_cheap() -> None:
    """And a module of it is not, so that this can fail."""
    loaded = [f"import {name}; print(*(set(sys.modules) - before))" for name in ("vldebias", "vldebias.data.store")]
    script = "\n".join(["import torch, sys", "before = set(sys.modules)", *loaded])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    package, store = ({name.split(".")[0] for name in line.split()} for line in done.stdout.splitlines())
    assert "vldebias" in package
    expensive = HEAVY | {"accelerate", "PIL", "safetensors", "sklearn", "tokenizers", "torchvision"}
    assert package & expensive == set()
    assert "safetensors" in store


def test_every_public_name_is_there() -> None:
    for name in vldebias.__all__:
        assert getattr(vldebias, name) is not None


# The worlds of the miniature are modules of one shape.
SAME_SHAPE = {"captions", "sample"}


def defined_twice(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Public classes and functions of modules -> the modules that define them, where these are several."""
    homes: dict[str, list[str]] = {}
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for module, tree in trees.items():
        for name in {n.name for n in tree.body if isinstance(n, kinds)}:
            homes.setdefault(name, []).append(module)
    return {name: at for name, at in homes.items() if len(at) > 1 and not name.startswith("_")}


def test_one_name_is_one_thing() -> None:
    twice = defined_twice({name_of(path): tree_of(path) for path in modules()})
    assert {name: at for name, at in twice.items() if name not in SAME_SHAPE} == {}


def test_a_name_that_is_two_things_is_seen() -> None:
    sources = {"a": "class Pair: ...\ndef _own(): ...", "b": "def Pair(): ...\ndef _own(): ...", "c": "x = Pair = 1"}
    assert defined_twice({name: ast.parse(source) for name, source in sources.items()}) == {"Pair": ["a", "b"]}
