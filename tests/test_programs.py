"""Test that programs are found in a wheel and in a checkout, that their declarations are true, and
that the library does not import them."""

import ast
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import vldebias
from tests.processes import run_python
from vldebias import programs
from vldebias.cli import Commands
from vldebias.study import TASKS

ROOT = Path(vldebias.__file__).parent
NAMES = {path.parent.name for path in (ROOT.parent / "apps").glob("*/program.py")}
DECLARATION = """
from vldebias.programs import Entry, Program
PROGRAM = Program(
    commands={"greet": Entry("commands", "greet", "Greet.")},
    names={"WHERE": "commands", "study.greet": "commands"},
    tasks={"greeting": "commands"},
    hooks={"section": "commands:greet"},
    extras={"greeting": "no_such_package"},
)
"""
SCRIPT = """
import vldebias, vldebias.cli, vldebias.errors, vldebias.programs, vldebias.study
print("greet" in vldebias.cli.Commands.entries, hasattr(vldebias, "WHERE"))
if hasattr(vldebias, "WHERE"):
    (hook,) = vldebias.programs.hooks("section")
    print(vldebias.WHERE, hook(), vldebias.errors.EXTRA_OF["no_such_package"])
    print(vldebias.study.greet is hook, vldebias.programs.tasks()["greeting"])
"""


def write_program(package: Path) -> None:
    """Write a package with one program, which exports the name of its package."""
    (package / "greeting").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "greeting" / "__init__.py").touch()
    (package / "greeting" / "program.py").write_text(DECLARATION)
    (package / "greeting" / "commands.py").write_text(
        f"WHERE = {package.name!r}\ndef greet():\n    return 'hello'\n"
    )


def answer(*folders: Path) -> list[str]:
    """Run SCRIPT in a process that finds packages in these folders first."""
    script = f"import sys\nsys.path[:0] = {[str(folder) for folder in folders]}\n{SCRIPT}"
    return run_python(script, cwd=folders[0]).stdout.splitlines()


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder that contains a copy of the package without its programs."""
    folder = tmp_path / "site"
    ignored = shutil.ignore_patterns("miniature", "__pycache__")
    shutil.copytree(ROOT, folder / "vldebias", ignore=ignored)
    return folder


def test_a_wheel_and_a_checkout_have_their_programs(installed: Path) -> None:
    """If there are both packages, `apps` belongs to something else that is installed."""
    assert answer(installed) == ["False False"]
    for package in ("apps", "vldebias_apps"):
        write_program(installed / package)
        expected = [f"{package} hello greeting", f"True {package}.greeting.commands"]
        assert answer(installed) == ["True True", *expected]


def test_packages_of_the_same_name_that_are_elsewhere_are_ignored(
    installed: Path, tmp_path: Path
) -> None:
    """Django projects often have a package `apps` in the working directory."""
    write_program(installed / "apps")
    write_program(tmp_path / "project" / "apps")
    assert answer(installed, tmp_path / "project")[0] == "True True"
    assert answer(tmp_path / "project", installed) == ["False False"]


def test_what_programs_declare_exists() -> None:
    assert {name.partition(".")[2] for name in programs.programs()} == NAMES
    assert {"audit", "captions", "demo", "edits", "images_api", "label", "shares"} <= NAMES
    for package, program in programs.programs().items():
        modules = [entry.module for entry in program.commands.values()]
        modules += [*program.names.values(), *program.tasks.values()]
        modules += [target.partition(":")[0] for target in program.hooks.values()]
        for module in modules:
            assert find_spec(f"{package}.{module}") is not None, f"{package}.{module}"
        for full_name in () if program.extras else program.names:
            home, _, name = f"vldebias.{full_name}".rpartition(".")
            assert name in import_module(home).__all__
            assert getattr(import_module(home), name) is not None
        assert {*program.tasks} <= {*TASKS}
    assert {*programs.commands()} < {*Commands.entries}
    assert len(list(programs.hooks("section"))) == 1
    assert list(programs.hooks("nosuch")) == []


def test_reading_declarations_imports_nothing_else() -> None:
    """Otherwise, `vldebias --help` would take longer with every program."""
    script = (
        "import vldebias, sys\n"
        "print(*(name for name in sys.modules if name.startswith(('vldebias', 'apps'))))\n"
        "print('typer' in sys.modules, 'numpy' in sys.modules)"
    )
    ours, others = run_python(script).stdout.splitlines()
    expected = {"vldebias"} | {f"vldebias.{name}" for name in ("errors", "programs", "version")}
    expected |= {"apps"} | {f"apps.{name}" for name in NAMES}
    assert set(ours.split()) == expected | {f"apps.{name}.program" for name in NAMES}
    assert others == "False False"


def test_the_library_never_imports_a_program() -> None:
    """This includes imports for type checkers, which import-linter ignores."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            tops = {module.partition(".")[0] for module in modules}
            assert not tops & set(programs.PACKAGES), path
