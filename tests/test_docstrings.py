"""Docstrings of public functions with two or more parameters describe each of them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import vldebias

ROOT = Path(vldebias.__file__).parent
PACKAGES = ("losses", "data", "training", "study", "records", "measure", "judge", "auditing")
PATHS = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
ENTRY = re.compile(r"^    (\w+):", re.MULTILINE)


def public_functions(
    body: list[ast.stmt], prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if isinstance(node, ast.ClassDef):
                yield from public_functions(node.body, f"{node.name}.")
            else:
                yield f"{prefix}{node.name}", node


def parameters(name: str, function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    is_static = any(ast.unparse(node) == "staticmethod" for node in function.decorator_list)
    if "." in name and not is_static:
        del names[0]  # self or cls
    return names + [argument.arg for argument in arguments.kwonlyargs]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_parameter_has_a_line(path: Path) -> None:
    lacking = {}
    for name, function in public_functions(ast.parse(path.read_text(encoding="utf-8")).body):
        names = parameters(name, function)
        docstring = ast.get_docstring(function) or ""
        section = docstring.partition("Args:\n")[2]
        missing = [parameter for parameter in names if parameter not in ENTRY.findall(section)]
        if len(names) > 1 and missing:
            lacking[name] = missing
    assert not lacking, "add a line for each parameter to the Args of these functions"
