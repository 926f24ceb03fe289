"""Test that there are no circular imports, including imports inside functions or only for type
checkers.

import-linter enforces the order of the layers. This test checks every import, also within a layer.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import vldebias

ROOT = Path(vldebias.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}
# Types that are imported below the module that creates them. This list may only get shorter.
# `vldebias` itself provides names from all subpackages, each imported on first access.
BACK_UP = {
    ("study.task", "study.inputs"),
}


def imported(node: ast.AST, for_types: bool = False) -> Iterator[tuple[str, bool]]:
    """Return the modules that are imported anywhere below a node, and whether only for type
    checkers."""
    for child in ast.iter_child_nodes(node):
        is_for_types = for_types
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            is_for_types = True
        if isinstance(child, ast.ImportFrom):
            for alias in child.names:
                module = f"{child.module}.{alias.name}"
                yield (module if module in MODULES else child.module or ""), is_for_types
        elif isinstance(child, ast.Import):
            yield from ((alias.name, is_for_types) for alias in child.names)
        yield from imported(child, is_for_types)


def reached(graph: dict[str, set[str]], module: str) -> set[str]:
    """Return the modules that a module imports, directly or indirectly."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def back_up(imports: dict[str, list[tuple[str, bool]]]) -> set[tuple[str, str]]:
    """Return (module, imported module) if the imported module also needs the first one."""
    graph = {
        module: {name for name, for_types in names if not for_types and name in imports}
        for module, names in imports.items()
    }
    needs_of_module = {module: reached(graph, module) for module in graph}
    arrows = set()
    for module, names in imports.items():
        for name, _ in names:
            if name != module and module in needs_of_module.get(name, ()):
                arrows.add((module, name))
    return arrows


def test_there_are_no_circular_imports() -> None:
    imports = {}
    for name, path in MODULES.items():
        imports[name] = list(imported(ast.parse(path.read_text(encoding="utf-8"))))
    imports.pop("vldebias")
    arrows = {
        (first.removeprefix("vldebias."), second.removeprefix("vldebias."))
        for first, second in back_up(imports)
    }
    assert arrows == BACK_UP


def test_imports_inside_functions_and_for_type_checking_are_counted() -> None:
    lazy = ast.parse("def f():\n    from vldebias.study import task")
    assert list(imported(lazy)) == [("vldebias.study.task", False)]
    typed = ast.parse("if TYPE_CHECKING:\n    import vldebias.study.task")
    assert list(imported(typed)) == [("vldebias.study.task", True)]
    circle = {"a": [("b", False)], "b": [("a", False)], "c": [("a", False)]}
    assert back_up(circle) == {("a", "b"), ("b", "a")}
    assert back_up({"a": [("b", False)], "b": [("a", True)]}) == {("b", "a")}
