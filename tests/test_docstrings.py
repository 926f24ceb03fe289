"""Test that docstrings of public functions with two or more parameters describe each of them.

A method that overrides another and has nothing to add has no docstring: readers, `help` and
`inspect.getdoc` get the one from the base class. Command parameters are described by the help text
of their options instead.
"""

import ast
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from runpy import run_path

import pytest
from typer.models import ArgumentInfo, OptionInfo

import vldebias
from vldebias.data import DATA
from vldebias.losses import LOSSES
from vldebias.study import TASKS

ROOT = Path(vldebias.__file__).parent
PACKAGES = ("losses", "data", "training", "study", "hosts", "methods", "projection", "api.py")
PACKAGES += ("measure", "judge", "cli", "report", "utils", "reranking")
PACKAGES += ("miniature", "prompts", "errors.py", "programs.py", "queries.py")
PROGRAMS = ("audit", "baselines", "captions", "edits", "inspect", "mcp", "shares")
FILES = sorted(ROOT.rglob("*.py"))
for program in PROGRAMS:
    FILES += sorted((ROOT.parent / "apps" / program).rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
PATHS = [path for path in TREES if path.relative_to(ROOT.parent).parts[1] in PACKAGES + PROGRAMS]
CLASSES = {
    node.name: node
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}
ENTRY = re.compile(r"^    (\w+):", re.MULTILINE)


def public_functions(
    body: list[ast.stmt], owner: ast.ClassDef | None = None
) -> Iterator[tuple[ast.ClassDef | None, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if isinstance(node, ast.ClassDef):
                yield from public_functions(node.body, node)
            elif not any(ast.unparse(part).endswith(".setter") for part in node.decorator_list):
                yield owner, node  # a property has the docstring of its getter


def parameters(owner: ast.ClassDef | None, function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    is_static = any(ast.unparse(node) == "staticmethod" for node in function.decorator_list)
    if owner is not None and not is_static:
        del names[0]  # self or cls
    return names + [argument.arg for argument in arguments.kwonlyargs]


def is_option_with_help(parameter: Parameter) -> bool:
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(info, OptionInfo | ArgumentInfo) and info.help for info in metadata)


def is_command(path: Path, name: str) -> bool:
    """Return whether all parameters of a function are options or arguments with a help text."""
    is_in_commands = "cli" in path.parts or path.name == "commands.py"
    if not is_in_commands or "." in name:
        return False
    module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    function = getattr(import_module(module.removesuffix(".__init__")), name)
    options = signature(function, eval_str=True).parameters.values()
    return all(map(is_option_with_help, options))


def docstring_of(owner: ast.ClassDef | None, function: ast.FunctionDef) -> str:
    """Return the docstring of a function, or of the base class for a method without one."""
    docstring = ast.get_docstring(function)
    if docstring is not None or owner is None:
        return docstring or ""
    for base in owner.bases:
        parent = CLASSES.get(ast.unparse(base).rpartition(".")[2])
        if parent is None:
            continue
        for node in parent.body:
            if isinstance(node, ast.FunctionDef) and node.name == function.name:
                return docstring_of(parent, node)
        inherited = docstring_of(parent, function)
        if inherited:
            return inherited
    return ""


def lacking(path: Path) -> dict[str, list[str]]:
    missing_of_function = {}
    for owner, function in public_functions(TREES[path].body):
        names = parameters(owner, function)
        _, _, section = docstring_of(owner, function).partition("Args:\n")
        described = set(ENTRY.findall(section))
        missing = [name for name in names if name not in described]
        if len(names) > 1 and missing and not (owner is None and is_command(path, function.name)):
            name = function.name if owner is None else f"{owner.name}.{function.name}"
            missing_of_function[name] = missing
    return missing_of_function


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.relative_to(ROOT.parent).as_posix())
def test_each_parameter_has_a_line_in_the_docstring(path: Path) -> None:
    assert not lacking(path), "add a line for each parameter to the Args of these functions"


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.relative_to(ROOT.parent).as_posix())
def test_each_public_function_has_a_docstring_or_inherits_one(path: Path) -> None:
    bare = []
    for owner, function in public_functions(TREES[path].body):
        if not docstring_of(owner, function):
            bare.append(function.name)
    assert not bare, "describe these functions; only overrides inherit a docstring"


MODULES = [
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for path in FILES
    if "\n    >>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_print_what_they_show(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(name)
    for registry in (DATA, LOSSES, TASKS):
        len(registry)  # import the modules of the built-in objects, which are only registered once
        monkeypatch.setattr(registry, "data", dict(registry.data))
    failures, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert not failures


DOCSTRINGS = []
for tree in TREES.values():
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            DOCSTRINGS.append(ast.get_docstring(node) or "")
NAMES_A_PAGE = [docstring for docstring in DOCSTRINGS if "docs/" in docstring]


def targets_of_links(text: str) -> list[str]:
    return [target for target in re.findall(r"\]\((.*?)\)", text) if "://" not in target]


@pytest.mark.parametrize("docstring", NAMES_A_PAGE, ids=lambda text: text.split(". ")[0][:50])
def test_pages_named_in_docstrings_are_links_that_resolve_on_the_site(docstring: str) -> None:
    """The site has pages for objects in `reference/`, and strict builds only accept links to
    files."""
    pytest.importorskip("griffe")  # griffe is installed with mkdocs
    linked = run_path(str(ROOT.parent / ".ci" / "examples.py"))["linked"](docstring)
    targets = targets_of_links(linked)
    assert targets
    for target in targets:
        assert (ROOT.parent / "docs" / "reference" / target).resolve().is_file(), target
    assert not re.search(r"docs/[\w/-]+\.md", linked), "a page that is not a link"


REFERENCE = re.compile(r"^::: ([\w.]+)(?:\n +options:\n +members: \[(.*)\])?", re.MULTILINE)


def objects_of_reference() -> list[str]:
    """Return the import paths of the objects that have a page on the site."""
    paths = []
    for page in ("reference.md", "reference-measuring.md"):
        text = (ROOT.parent / "docs" / page).read_text(encoding="utf-8")
        for path, members in REFERENCE.findall(text):
            paths += [f"{path}.{name}" for name in members.split(", ")] if members else [path]
    return paths


@pytest.mark.parametrize("path", objects_of_reference())
def test_the_page_of_an_object_starts_with_an_example(path: str) -> None:
    module, _, name = path.rpartition(".")
    _, mark, example = (inspect.getdoc(getattr(import_module(module), name)) or "").partition(">>>")
    assert mark, f"add an example to the end of the docstring of {path}"
    assert "Args:" not in example, "the example comes last, after the sections"


SEE_ALSO = re.compile(r"^See also docs/([\w/-]+)\.md\b", re.MULTILINE)


@pytest.mark.parametrize("name", vldebias.__all__)
def test_each_exported_docstring_links_to_a_guide(name: str) -> None:
    pages = SEE_ALSO.findall(inspect.getdoc(getattr(vldebias, name)) or "")
    assert len(pages) == 1, 'add one line "See also docs/PAGE.md." above the first section'
    assert (ROOT.parent / "docs" / f"{pages[0]}.md").is_file()


def guides() -> list[str]:
    """Return the how-to guides, the tutorials, and the other pages that docstrings link to."""
    docs = ROOT.parent / "docs"
    pages = {path for name in ("how-to", "tutorials") for path in (docs / name).glob("*.md")}
    for name in vldebias.__all__:
        linked = SEE_ALSO.findall(inspect.getdoc(getattr(vldebias, name)) or "")
        pages |= {docs / f"{page}.md" for page in linked}
    return sorted(str(path.relative_to(docs)) for path in pages)


@pytest.mark.parametrize("page", guides())
def test_each_guide_links_to_the_reference(page: str) -> None:
    text = (ROOT.parent / "docs" / page).read_text(encoding="utf-8")
    assert re.search(r"\]\((?:\.\./)?reference(?:-measuring)?\.md", text)
