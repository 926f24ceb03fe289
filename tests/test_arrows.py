"""Test that no modules of the package or its programs import each other in a circle.

import-linter enforces the order of the layers. This test checks every import, also within a layer,
inside functions, for type checkers, and by name at run time. Two kinds of names are not imports:
the modules declared to a registry, which import it to register their objects, and the public names
that a package imports on first access.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATH_OF_MODULE = {}
for path in [*ROOT.glob("vldebias/**/*.py"), *ROOT.glob("apps/**/*.py")]:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    PATH_OF_MODULE[name.removesuffix(".__init__")] = path


def imported(code: str, package: str = "") -> Iterator[str]:
    """Yield the modules that are imported anywhere in the code of a module in a package."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parents = package.split(".")
                origin = ".".join([*parents[: len(parents) - node.level + 1], origin]).strip(".")
            for alias in node.names:
                module = f"{origin}.{alias.name}"
                yield module if module in PATH_OF_MODULE else origin


IMPORTERS = {"import_module", "importlib.import_module", "__import__", "sys.modules"}


def imported_by_name(code: str) -> set[str]:
    """Return the modules that are named by strings, if the code imports modules by name."""
    nodes = list(ast.walk(ast.parse(code)))
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
    if not used & IMPORTERS:
        return set()
    strings = {
        node.value.partition(":")[0]
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return strings & PATH_OF_MODULE.keys()


def test_no_modules_import_each_other() -> None:
    graph = {}
    for module, path in PATH_OF_MODULE.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        code = path.read_text(encoding="utf-8")
        names = {*imported(code, package), *imported_by_name(code)}
        graph[module] = {name for name in names if name in PATH_OF_MODULE and name != module}
    # `vldebias` provides names from all subpackages, each imported on first access.
    graph.pop("vldebias")
    assert len(graph) > 350
    TopologicalSorter(graph).prepare()  # raises CycleError with the modules of a circle
