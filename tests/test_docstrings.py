"""Docstrings of public functions with two or more parameters describe each of them.

The parameters of commands are described by the help of their options instead.
"""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path

import pytest
from typer.models import ArgumentInfo, OptionInfo

import vldebias

ROOT = Path(vldebias.__file__).parent
PACKAGES = (
    *("losses", "data", "training", "study"),
    *("cli", "report", "utils", "reranking", "serving", "miniature", "prompts"),
)
PATHS = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
PATHS += [ROOT / name for name in ("errors.py", "queries.py")]
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


def is_option_with_help(parameter: Parameter) -> bool:
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(info, OptionInfo | ArgumentInfo) and info.help for info in metadata)


def is_command(path: Path, name: str) -> bool:
    """Return whether all parameters of a function are options or arguments with a help text."""
    if path.relative_to(ROOT).parts[0] != "cli" or "." in name:
        return False
    module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    function = getattr(import_module(module.removesuffix(".__init__")), name)
    options = signature(function, eval_str=True).parameters.values()
    return all(map(is_option_with_help, options))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_parameter_has_a_line(path: Path) -> None:
    lacking = {}
    for name, function in public_functions(ast.parse(path.read_text(encoding="utf-8")).body):
        names = parameters(name, function)
        docstring = ast.get_docstring(function) or ""
        section = docstring.partition("Args:\n")[2]
        missing = [parameter for parameter in names if parameter not in ENTRY.findall(section)]
        if len(names) > 1 and missing and not is_command(path, name):
            lacking[name] = missing
    assert not lacking, "add a line for each parameter to the Args of these functions"
