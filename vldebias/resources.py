"""Where the files that come with the package lie, in an installed wheel or in a checkout."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from vldebias.errors import InvalidInputError, PromptSetError

__all__ = [
    "apps_dir",
    "likely",
    "load_app",
    "prompt_file",
    "prompt_names",
    "prompts_dir",
    "suite_file",
    "suite_names",
    "suites_dir",
]

_PACKAGE = Path(__file__).resolve().parent
_APPS = "vldebias_apps"  # what the folder of pages is called among the modules, wherever it lies


def prompts_dir() -> Path:
    """The folder with the prompt sets, one YAML file each.

    An installed wheel has it inside the package; a checkout, or an editable install of one, beside it.

    Raises:
        PromptSetError: neither place has prompt sets.
    """
    return _dir("prompt sets", "prompts", "prompts", PromptSetError)


def prompt_names() -> list[str]:
    """Names of the prompt sets that come with the package, sorted: the stems of their files."""
    return _names(prompts_dir())


def prompt_file(name: str) -> Path:
    """The file of the prompt set `name`.

    Raises:
        PromptSetError: there is none; the message lists the names, the likely ones first.
    """
    return _file("prompt set", name, prompts_dir(), PromptSetError)


def suites_dir() -> Path:
    """The folder with the suites of `vldebias eval`, one YAML file each: inside a wheel, or eval/ in a checkout.

    Raises:
        InvalidInputError: neither place has suites.
    """
    return _dir("suites", "suites", "eval", InvalidInputError)


def suite_names() -> list[str]:
    """Names of the suites that come with the package, sorted: the stems of their files."""
    return _names(suites_dir())


def suite_file(name: str) -> Path:
    """The file of the suite `name`.

    Raises:
        InvalidInputError: there is none; the message lists the names, the likely ones first.
    """
    return _file("suite", name, suites_dir(), InvalidInputError)


def apps_dir() -> Path:
    """The folder with the pages of `vldebias demo` and `vldebias label`: inside a wheel, or apps/ in a checkout.

    Raises:
        InvalidInputError: neither place has them.
    """
    return _dir("pages", "apps", "apps", InvalidInputError, "*.py")


def load_app(name: str) -> ModuleType:
    """The module apps/<name>.py, imported from where it lies; the search path stays as it is.

    Raises:
        InvalidInputError: there is no such page.
        ModuleNotFoundError: it needs a library that is not installed.
    """
    folder = apps_dir()
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    if name not in names:
        raise InvalidInputError(f"got the page {name!r}; expected one of {', '.join(names)}; {likely(name, names)}")
    if _APPS not in sys.modules:
        package = ModuleType(_APPS, "The pages in apps/.")
        package.__path__ = [str(folder)]
        sys.modules[_APPS] = package
    return importlib.import_module(f"{_APPS}.{name}")


def likely(name: str, names: Sequence[str]) -> str:
    """ "did you mean 'x'?", or the advice to choose one where none is close."""
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else "choose one of them."


def _dir(kind: str, packed: str, beside: str, error: type[Exception], files: str = "*.yaml") -> Path:
    places = (_PACKAGE / "_resources" / packed, _PACKAGE.parent / beside)
    for place in places:
        if any(place.glob(files)):
            return place
    raise error(
        f"got no {kind} ({files}) in {places[0]} or {places[1]}; expected them in one of the two; reinstall vldebias."
    )


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _file(kind: str, name: str, folder: Path, error: type[Exception]) -> Path:
    names = _names(folder)
    if name in names:
        return folder / f"{name}.yaml"
    listed, hint = ", ".join(names), likely(name, names)
    raise error(f"got the {kind} {name!r}; expected one of {listed}, or the path of a .yaml file; {hint}")
