"""Check names of methods and architectures without importing the libraries that hold them.

The command line looks at its arguments before it imports torch, which takes seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from vldebias.errors import InvalidInputError, did_you_mean

METHOD_NAMES = (
    "none",
    "orth",
    "orth-cali",
    "cali",
    "difference",
    "equalise",
    "cali+equalise",
    "difference+equalise",
    "leace",
    "sfid",
    "spd",
    "roboshot",
    "fair-pca",
    "bend-vlm",
    "lian",
    "each-value",
    "suffix",
    "balanced-prompts",
    "paper",
    "default",
    "default+equalise",
    "target-shares",
)
"""The methods of this package, in the order of `vldebias methods`."""

METHOD_GROUP = "vldebias.methods"
"""The group of entry points by which other packages add methods."""


def check_methods(names: Iterable[str]) -> None:
    """Refuse a method that is not known.

    Where another package adds methods, a name that is not of this package passes: only importing
    that package shows what it adds.

    Args:
        names: names of methods, as --method takes them.

    Raises:
        InvalidInputError: no method of such a name.
    """
    imported = sys.modules.get("vldebias.methods")
    if imported is not None:  # their registry answers, and has what was added
        for name in names:
            imported.METHODS[name]
        return
    unknown = [name for name in names if name not in METHOD_NAMES]
    # An entry point has a name of its own, which need not be the method's.
    if not unknown or entry_points(group=METHOD_GROUP):
        return
    known = ", ".join(METHOD_NAMES)
    hint = did_you_mean(unknown[0], METHOD_NAMES)
    raise InvalidInputError(f"method: expected one of {known}, got {unknown[0]!r}; {hint}")


def architectures() -> list[str]:
    """Return the names of open_clip's architectures, [] where it is absent.

    They are read from its files, or from itself once it is imported: it may have been told of more.
    """
    imported = sys.modules.get("open_clip")
    if imported is not None:
        return list(imported.list_models())
    package = find_spec("open_clip")
    if package is None or package.submodule_search_locations is None:
        return []
    # open_clip reads the same folder; importing it would take torch and seconds.
    configs = Path(next(iter(package.submodule_search_locations)), "model_configs")
    return sorted(path.stem for path in configs.glob("*.json"))


def check_architecture(name: str) -> None:
    """Refuse a name that is no architecture of open_clip.

    Args:
        name: what stands before a tag of open_clip, such as "ViT-B-32".

    Raises:
        InvalidInputError: no architecture of such a name. Where open_clip is not installed, every
            name passes.
    """
    known = architectures()
    if not known or name in known:
        return
    raise InvalidInputError(
        f"{name!r} is not an open_clip architecture; see open_clip.list_models();"
        f" {did_you_mean(name, known)}"
    )
