"""Describe the public interface: names with signatures, commands with options, and saved files.

`python -m tests.interface` writes the description to `tests/interface.json`, with which
`test_interface.py` compares the package. Run it after a deliberate change, and mention the change
in CHANGELOG.md.
"""

import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from tests.formats import fields

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "interface.json"
PAGES = ("docs/reference.md", "docs/reference-measuring.md")
_OBJECT = re.compile(r"^::: ([\w.]+)$(?:\n +options:\n +members: \[(.+)\])?", re.MULTILINE)


def public_objects() -> Iterator[str]:
    """Yield the path of every object in the reference, which lists what is public."""
    for page in PAGES:
        for path, members in _OBJECT.findall((ROOT / page).read_text(encoding="utf-8")):
            if not members:
                yield path
            for member in filter(None, members.split(", ")):
                yield f"{path}.{member}"


def resolved(path: str) -> Any:
    """Return the object at a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def signature_of(public: object) -> str:
    """Return the parameters of a function or class, with their kinds and defaults.

    Annotations are left out, because Python versions print them differently.
    """
    if not callable(public):
        return type(public).__name__
    if inspect.isclass(public) and public.__init__ is dict.__init__:
        return "(*args, **kwargs)"  # Python has no signature for the constructor of a dict
    parameters = []
    for parameter in inspect.signature(public).parameters.values():
        default = parameter.default
        if default is not inspect.Parameter.empty and "0x" in repr(default):
            default = "<default>"  # the address of an object differs between runs
        parameters.append(parameter.replace(annotation=inspect.Parameter.empty, default=default))
    return str(inspect.Signature(parameters))


def members_of(public: object) -> list[str]:
    """Return the public methods and properties that a class of this package defines."""
    if not inspect.isclass(public):
        return []
    names: set[str] = set()
    for base in public.__mro__:
        if base.__module__.startswith("vldebias"):
            names |= {name for name in vars(base) if not name.startswith(("_", "model_"))}
    return sorted(names)


def names() -> dict[str, dict[str, Any]]:
    """Return the signature and members of every public object."""
    described: dict[str, dict[str, Any]] = {}
    for path in public_objects():
        public = resolved(path)
        described[path] = {"signature": signature_of(public)}
        members = members_of(public)
        if members:
            described[path]["members"] = members
    return described


def parameters() -> dict[str, list[Any]]:
    """Return the parameters of every command that its help shows."""
    from vldebias.cli import app

    parameters_of_command: dict[str, list[Any]] = {}
    waiting = [("vldebias", typer.main.get_command(app))]
    while waiting:
        words, command = waiting.pop()
        children = getattr(command, "commands", {})
        waiting += [(f"{words} {name}", children[name]) for name in children]
        parameters_of_command[words] = [
            parameter for parameter in command.params if not getattr(parameter, "hidden", False)
        ]
    return dict(sorted(parameters_of_command.items()))


def commands() -> dict[str, list[str]]:
    """Return the arguments and options of every command."""
    described: dict[str, list[str]] = {}
    for words, shown in parameters().items():
        names: list[str] = []
        for parameter in shown:
            names += [*parameter.opts, *parameter.secondary_opts]
        described[words] = sorted(names)
    return described


def interface() -> dict[str, Any]:
    """Return the whole description."""
    import vldebias

    return {
        "top": list(vldebias.__all__),
        "names": names(),
        "commands": commands(),
        "files": fields(),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(interface(), indent=1) + "\n", encoding="utf-8")
