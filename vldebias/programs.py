"""Find the programs that come with the package, and read what each of them declares.

A program is a folder with a file `program.py` that contains a constant `PROGRAM`. Programs are in
`apps/` in a checkout, and in the package `vldebias_apps` in a wheel. They import this package. This
package looks up their commands, names and hooks here, and imports their modules on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parents[1]  # contains this package
PACKAGES = ("vldebias_apps", "apps")  # in a wheel, in a checkout


@dataclass(frozen=True)
class Entry:
    """Location of a command, and its summary in the list of commands.

    Attributes:
        module: name of the command's module. In `Program.commands`, it is relative to the program.
        attribute: name of a function or of an `App` with subcommands in the module.
        summary: first paragraph of the command's help.
        extras: the extras in pyproject.toml that the command needs, separated by commas.
    """

    module: str
    attribute: str
    summary: str
    extras: str = ""


@dataclass(frozen=True)
class Program:
    """What a program adds to the package. The names of modules are relative to the program.

    Attributes:
        commands: the commands of `vldebias`, by name. "eval edits" is a command of the group
            `eval`, whose summary is its own help.
        names: the public names, each with the module that defines it. Users import them from
            `vldebias`, and "study.NAME" from `vldebias.study`.
        tasks: the kinds of tasks for suites and `vldebias.evaluate`, each with the module that
            registers it.
        hooks: for each hook, the function that handles it, as "module:function". See `hooks`.
        extras: the extras in pyproject.toml that only this program needs, each with the import
            names of its packages.
    """

    commands: Mapping[str, Entry] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    hooks: Mapping[str, str] = field(default_factory=dict)
    extras: Mapping[str, str] = field(default_factory=dict)


@cache
def programs() -> dict[str, Program]:
    """Return the programs by the full names of their packages, or an empty dict without programs.

    A package of the same name that is installed elsewhere is ignored.
    """
    for package in PACKAGES:
        spec = find_spec(package)
        folder = _FOLDER / package
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parent != folder:
            continue
        found = {}
        for file in sorted(folder.glob("*/program.py")):
            name = f"{package}.{file.parent.name}"
            found[name] = import_module(f"{name}.program").PROGRAM
        return found
    return {}


def commands(group: str = "") -> dict[str, Entry]:
    """Return the commands that all programs add to a group of commands, by name.

    Args:
        group: "eval", or "" for the commands of `vldebias` itself.
    """
    entries = {}
    for package, program in programs().items():
        for full_name, entry in program.commands.items():
            parent, _, name = full_name.rpartition(" ")
            if parent == group:
                entries[name] = replace(entry, module=f"{package}.{entry.module}")
    return entries


def home_of_name(group: str = "") -> dict[str, str]:
    """Return the public names of all programs, each with the full name of its module.

    Args:
        group: "study" for the names in `vldebias.study`, or "" for those in `vldebias` itself.
    """
    names = {}
    for package, program in programs().items():
        for name, module in _names_in(program, group).items():
            names[name] = f"{package}.{module}"
    return names


def names_without_extra(group: str = "") -> list[str]:
    """Return the public names of the programs that need no extra of their own.

    `from vldebias import *` imports these.

    Args:
        group: as for `home_of_name`.
    """
    without_extra = [program for program in programs().values() if not program.extras]
    return [name for program in without_extra for name in _names_in(program, group)]


def _names_in(program: Program, group: str) -> dict[str, str]:
    """Return a program's names in `vldebias` or in one of its packages, each with its module."""
    names = {}
    for full_name, module in program.names.items():
        parent, _, name = full_name.rpartition(".")
        if parent == group:
            names[name] = module
    return names


def tasks() -> dict[str, str]:
    """Return the kinds of tasks of all programs, each with the full name of its module."""
    modules = {}
    for package, program in programs().items():
        for kind, module in program.tasks.items():
            modules[kind] = f"{package}.{module}"
    return modules


def extras() -> dict[str, str]:
    """Return the extras of all programs, each with the import names of its packages."""
    packages_of_extra: dict[str, str] = {}
    for program in programs().values():
        packages_of_extra |= program.extras
    return packages_of_extra


def hooks(name: str) -> Iterator[Callable[..., Any]]:
    """Import and yield the functions of all programs that handle a hook.

    The hooks are:

    - "answers": called with a folder of images and the paths of its images. Returns label columns
      from people's answers about the images, and for each file of answers, a sentence about it.
    - "baselines": called without arguments. Returns the supervised baselines of a task on groups,
      by name: the function that trains the baseline on `Examples`, and its source.
    - "images judged": called with the images, the judge, the attribute, the judge's answers and the
      smallest probability that counts as an answer, after a generation task judged its images.
    - "section": called with a result and its readable rows, before it is printed or rendered.
      Returns a `vldebias.report.section.Section`, or None.

    Args:
        name: the name of the hook.
    """
    for package, program in programs().items():
        if name in program.hooks:
            module, _, function = program.hooks[name].partition(":")
            yield getattr(import_module(f"{package}.{module}"), function)
