"""Define the errors and warnings of vldebias; a message says what was received, what was expected
and what to do."""

from __future__ import annotations

import difflib
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

# What some installations leave out: the extra of pyproject.toml -> names that are imported.
_EXTRAS = {
    "torch": "huggingface_hub numpy safetensors torch",
    "clip": "open_clip regex torchvision transformers",
    "diffusers": "diffusers",
    "eval": "PIL datasets jinja2 markupsafe matplotlib pandas pyarrow scipy sklearn torchmetrics",
    "train": "accelerate",
    "serve": "httpx2 python_multipart starlette uvicorn",
    "mcp": "mcp",
    "inspect": "inspect_ai",
    "demo": "gradio",
    "lora": "peft",
    "ray": "ray",
    "track": "tensorboard",
}
EXTRA_OF = {package: extra for extra, packages in _EXTRAS.items() for package in packages.split()}

# Every extra with models brings torch, so that a message about torch alone would name too little.
_WITH_TORCH = (
    "'.[clip]' for CLIP models, '.[diffusers]' for pipelines, '.[eval]' to measure, '.[train]' to"
    " fine-tune, or '.[torch]' for embeddings of your own, in a checkout of vldebias"
)

# Frames of this package come before the user's line, and so do those of libraries that call it
# (hooks, threads).
_PACKAGE = str(Path(__file__).resolve().parent)
_LIBRARIES = tuple(
    {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class VldebiasError(Exception):
    """Serve as the base class of all errors that this package raises on purpose."""


class InvalidInputError(VldebiasError, ValueError):
    """Report a value of the wrong shape, type or range, a file that cannot be read, or an unknown
    name."""


class ProjectionMismatchError(VldebiasError, ValueError):
    """Report a projection that was fitted for another space, dimension or set of weights."""


class UnsupportedHostError(VldebiasError, TypeError):
    """Report a model or pipeline of a kind to which no projection can be attached."""


class AlreadyAttachedError(VldebiasError, RuntimeError):
    """Report a host that already has an attachment; P* P* is not P*, so attaching twice is a
    different method."""


class StorageError(VldebiasError, OSError):
    """Report that a file cannot be written: the disk is full, the file is too large, or the file
    system is read-only. `errno` is the operating system's code."""

    def __str__(self) -> str:
        return str(self.strerror)


class MissingPackageError(VldebiasError, ModuleNotFoundError):
    """Report a package that is needed and not installed."""


class VldebiasWarning(UserWarning):
    """Serve as the base class of all warnings of this package."""


class AutoDeclinedWarning(VldebiasWarning):
    """Warn that nothing is changed, because no method is predicted to help."""


class ClassSignalWarning(VldebiasWarning):
    """Warn that a projection removes a large share of the distance between the classes."""


class ReferenceWarning(VldebiasWarning):
    """Warn that reference images determine the direction to equalise too poorly."""


class SuspectInputWarning(VldebiasWarning):
    """Warn that labels, features or an edit are valid but probably not what was meant; results are
    still computed."""


class TruncatedPromptWarning(VldebiasWarning):
    """Warn that a prompt is longer than the text encoder reads."""


class UnseenValueWarning(VldebiasWarning):
    """Warn that prompts will state a value that image models are known not to show."""


class WideEditWarning(VldebiasWarning):
    """Warn that a projection of a pipeline's text states removes so much that unrelated prompts
    change as well."""


def shortened(text: str, limit: int) -> str:
    """Return a text, shortened if it has more than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def one_line(error: Exception) -> str:
    """Return the message of an error in one line of at most 500 characters.

    Errors of other libraries are named by their class, since their messages alone often say little.
    """
    text = " ".join(str(error).split())
    if not isinstance(error, VldebiasError):
        text = f"{type(error).__name__}: {text}"
    return shortened(text, 500)


def missing(package: str) -> MissingPackageError:
    """Return the error for a package that is not installed; it says what to install.

    Args:
        package: the name that is imported, such as "sklearn".
    """
    extra = EXTRA_OF.get(package)
    if extra == "torch":
        wanted = _WITH_TORCH
    elif extra is not None:
        wanted = f"'.[{extra}]', in a checkout of vldebias"
    else:
        wanted = package
    return MissingPackageError(f"{package} is not installed: pip install {wanted}", name=package)


def missing_extra(error: ModuleNotFoundError) -> MissingPackageError | None:
    """Return the error that names the extra for a failed import, or None.

    None means that an installation is broken in another way: the module belongs to no extra, or it
    is a part of a package that is there.
    """
    package = error.name or ""
    return missing(package) if package in EXTRA_OF else None


def need(module: str) -> Any:
    """Import an optional module.

    Args:
        module: its full name, such as "matplotlib.pyplot".

    Raises:
        MissingPackageError: its package is not installed; the message has the command that
            installs it.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # "open_clip needs timm" must not read as "open_clip is missing".
        absent = (error.name or "").partition(".")[0]
        if absent != package:  # the package is installed and lacks something itself
            raise
        raise missing(package) from None


def need_extras(*extras: str) -> None:
    """Check that the packages of some extras are installed, without importing them.

    A command that needs several extras names all of them before it does anything.

    Args:
        extras: names of extras in pyproject.toml, such as "clip" and "eval".

    Raises:
        MissingPackageError: a package is not installed; the message has one command for all.
    """
    packages = [package for extra in extras for package in _EXTRAS[extra].split()]
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        names = ", ".join(absent)
        # The package is on no index, so `pip install 'vldebias[...]'` would not find it.
        wanted = f"pip install '.[{','.join(extras)}]', in a checkout of vldebias"
        raise MissingPackageError(f"not installed: {names}. For this: {wanted}", name=absent[0])


class Lazily:
    """Import a module with `need` when one of its attributes is first used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(need(self._module), name)


def lazy_names(package: str, names_of_home: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which imports a name when it is first used.

    Args:
        package: its full name.
        names_of_home: full name of a module -> the public names that it has, among them its own
            where the module itself is public.
    """
    home_of_name = {name: home for home, names in names_of_home.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = home_of_name[name]
        try:
            module = import_module(home)
        except ModuleNotFoundError as error:
            # The core is text alone: what needs torch says which extra brings it.
            named = missing_extra(error)
            if named is None:
                raise
            raise named from None
        value = module if home == f"{package}.{name}" else getattr(module, name)
        # Kept, so that the next look-up does not come here again.
        setattr(sys.modules[package], name, value)
        return value

    return get


def did_you_mean(name: object, names: Iterable[str], otherwise: str = "choose one of them.") -> str:
    """Return "did you mean 'x' or 'y'?" for up to three of `names` that are close to `name`, else
    `otherwise`.

    >>> did_you_mean("gendre", ["age", "gender", "race"])
    "did you mean 'gender'?"
    """
    name_of_lower = {known.lower(): known for known in names}
    # From .5 on: "gendre" finds "gender".
    lower = difflib.get_close_matches(str(name).lower(), name_of_lower, n=3, cutoff=0.5)
    close = [name_of_lower[match] for match in lower]
    return f"did you mean {' or '.join(map(repr, close))}?" if close else otherwise


def _is_of_library(frame: FrameType) -> bool:
    """Return whether a frame runs code of this package or of an installed library."""
    if frame.f_code.co_filename.startswith((_PACKAGE, *_LIBRARIES)):
        return True
    # The `__init__` of a dataclass has no file, but the globals of the module that defines it.
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == __package__


def warn(message: str, category: type[Warning] = VldebiasWarning) -> None:
    """Issue a warning at the user's line: the innermost frame outside of this package and of
    installed libraries."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    # As `warnings` counts them.
    frames = [f for f in frames if not f.f_code.co_filename.startswith("<frozen importlib")]
    users = (level for level, frame in enumerate(frames) if not _is_of_library(frame))
    warnings.warn(message, category, stacklevel=next(users, 0) + 2)
