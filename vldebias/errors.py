"""Every error and warning that vldebias raises on purpose: what came, what was expected, what to do."""

from __future__ import annotations

import difflib
import sys
import sysconfig
import warnings
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

# What some installations leave out: the extra of pyproject.toml -> names that are imported.
_EXTRAS = {
    "clip": "open_clip regex torchvision transformers",
    "diffusers": "diffusers",
    "eval": "PIL datasets jinja2 markupsafe matplotlib pandas pyarrow scipy sklearn torchmetrics",
    **{"train": "accelerate", "demo": "gradio", "lora": "peft", "ray": "ray"},
    "track": "tensorboard",
}
EXTRA_OF = {package: extra for extra, packages in _EXTRAS.items() for package in packages.split()}

# Frames of this package come before the user's line, and so do those of libraries that call it (hooks, threads).
_PACKAGE = str(Path(__file__).resolve().parent)
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})


class VldebiasError(Exception):
    """Base class: `except VldebiasError` catches whatever this package raises on purpose."""


class InvalidInputError(VldebiasError, ValueError):
    """A value has the wrong shape, type or range."""


class PromptSetError(VldebiasError, ValueError):
    """A prompt set is unknown, unreadable or does not follow the schema."""


class ProjectionMismatchError(VldebiasError, ValueError):
    """A projection was fitted for another space, dimension or set of weights."""


class UnsupportedHostError(VldebiasError, TypeError):
    """The model or pipeline has no known seam for a projection."""


class AlreadyAttachedError(VldebiasError, RuntimeError):
    """The host already carries an attachment: P* P* is not P*, so attaching twice is another method."""


class MissingPackageError(VldebiasError, ModuleNotFoundError):
    """A package is needed that this installation left out."""


class VldebiasWarning(UserWarning):
    """Base class of the warnings."""


class AutoDeclinedWarning(VldebiasWarning):
    """method="auto" expects no method to help beyond its interval, and changes nothing."""


class ClassSignalWarning(VldebiasWarning):
    """A projection removes a large share of what tells the classes apart."""


class ReferenceWarning(VldebiasWarning):
    """Reference images do not settle the direction that is equalised."""


class SuspectInputWarning(VldebiasWarning):
    """Labels, features or an edit are plausible and probably not what was meant; figures are computed all the same."""


class TruncatedPromptWarning(VldebiasWarning):
    """A prompt is longer than the text tower reads."""


class WideEditWarning(VldebiasWarning):
    """A projection of a pipeline's text states removes so much of the space that other prompts change as well."""


def shortened(text: str, most: int) -> str:
    """Return a text, cut where it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def need(module: str) -> Any:
    """Import and return `module` of a package that only some installations have.

    Raises:
        MissingPackageError: its package is not installed; the message is the command that installs it.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:  # it is there, and lacks something itself
            raise
        extra = f"'vldebias[{EXTRA_OF[package]}]'" if package in EXTRA_OF else package
        raise MissingPackageError(
            f"{package} is needed for this and not installed: pip install {extra}", name=package
        ) from None


class Lazily:
    """A module that `need` imports when something of it is first used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(need(self._module), name)


def did_you_mean(name: object, names: Iterable[str], otherwise: str = "choose one of them.") -> str:
    """Return "did you mean 'x' or 'y'?" for up to three of `names` that are close to `name`, else `otherwise`.

    >>> did_you_mean("gendre", ["age", "gender", "race"])
    "did you mean 'gender'?"
    """
    close = difflib.get_close_matches(str(name).lower(), list(names), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else otherwise


def warn(message: str, category: type[Warning] = VldebiasWarning) -> None:
    """Warn at the line of the user that led here: the innermost frame outside of this package and of libraries.

    Where there is none (a library that uses this one), it is the innermost outside of this package.
    """
    frames = [sys._getframe(1)]
    while (outer := frames[-1].f_back) is not None:
        frames.append(outer)
    outside = [one for one in frames if not one.f_code.co_filename.startswith((_PACKAGE, "<frozen"))]
    users = (one for one in outside if not one.f_code.co_filename.startswith(_LIBRARIES))
    at = next(users, (outside or frames)[0])
    registry = at.f_globals.setdefault("__warningregistry__", {})
    module = at.f_globals.get("__name__", "unknown")
    warnings.warn_explicit(message, category, at.f_code.co_filename, at.f_lineno, module, registry)
