"""List all methods by name and check names, without importing torch if it can be avoided."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import entry_points

from vldebias.errors import InvalidInputError, expected_one_of
from vldebias.methods.declared import DECLARED, GROUP, Declaration


def declarations() -> dict[str, Declaration]:
    """Return every method's declaration by name, including those from other packages.

    The registry, which imports torch, is used only if there may be more than this package's
    methods, because another package adds methods or this process has registered one.
    """
    found = dict(DECLARED)
    if "vldebias.methods.method" in sys.modules or entry_points(group=GROUP):
        from vldebias.methods.method import METHODS

        for name, method in METHODS.items():
            found[name] = method.declaration
    return found


def check_methods(names: Iterable[str]) -> None:
    """Check that methods with these names exist.

    Args:
        names: method names, as passed to --method.

    Raises:
        InvalidInputError: If no method has this name.
    """
    for name in names:
        if name not in DECLARED and name not in (found := declarations()):
            raise InvalidInputError(f"method: got {name!r}; {expected_one_of(name, found)}")
