"""Names that the shell completes, once `vldebias --install-completion` has been called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points

# As `vldebias.methods.METHODS` has them, which takes torch to open; a test compares them.
METHOD_NAMES = [
    "none", "orth", "orth-cali", "cali", "difference", "equalise", "cali+equalise", "difference+equalise", "auto",
    "balanced-prompts", "bend-vlm", "leace", "sfid", "spd", "roboshot", "fair-pca", "lian", "each-value", "suffix",
    "paper", "default", "target-shares",
]  # fmt: skip


def _beginning(names: Iterable[str], typed: str) -> list[str]:
    """Return the names that complete what is typed; of a list with commas, its last name."""
    before, comma, last = typed.rpartition(",")
    return [before + comma + name for name in sorted(names) if name.startswith(last)]


def own_methods() -> bool:
    """Return whether `METHOD_NAMES` are all: no package brings more, and nobody has registered one."""
    return "vldebias.methods" not in sys.modules and not entry_points(group="vldebias.methods")


def complete_methods(incomplete: str) -> list[str]:
    """Complete a name of `vldebias methods`."""
    if own_methods():
        return _beginning(METHOD_NAMES, incomplete)
    from vldebias.methods import METHODS

    return _beginning(METHODS, incomplete)


def complete_prompt_sets(incomplete: str) -> list[str]:
    """Complete a name of `vldebias prompts list`."""
    from vldebias.files import prompt_names

    return _beginning(prompt_names(), incomplete)


def complete_suites(incomplete: str) -> list[str]:
    """Complete a name of `vldebias eval list`."""
    from vldebias.files import suite_names

    return _beginning(suite_names(), incomplete)


def complete_data_sets(incomplete: str) -> list[str]:
    """Complete a name of `vldebias eval data`."""
    from vldebias.data import list_data

    return _beginning(list_data(), incomplete)


OF_FIELDS: dict[str, Callable[[str], list[str]]] = {"methods": complete_methods, "debias": complete_prompt_sets}
"""Field of `Options`, or of the settings of a training -> what completes its flag."""
