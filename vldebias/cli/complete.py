"""Names that the shell completes, once `vldebias --install-completion` has been called."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def _beginning(names: Iterable[str], typed: str) -> list[str]:
    """The names that go on from what is typed; of a list with commas, from its last name."""
    before, comma, last = typed.rpartition(",")
    return [before + comma + name for name in sorted(names) if name.startswith(last)]


def complete_methods(incomplete: str) -> list[str]:
    """Of `vldebias methods`."""
    from vldebias.methods import METHODS

    return _beginning(METHODS, incomplete)


def complete_prompt_sets(incomplete: str) -> list[str]:
    """Of `vldebias prompts list`."""
    from vldebias.files import prompt_names

    return _beginning(prompt_names(), incomplete)


def complete_suites(incomplete: str) -> list[str]:
    """Of `vldebias eval list`."""
    from vldebias.files import suite_names

    return _beginning(suite_names(), incomplete)


def complete_data_sets(incomplete: str) -> list[str]:
    """Of `vldebias eval data`."""
    from vldebias.data import list_data

    return _beginning(list_data(), incomplete)


OF_FIELDS: dict[str, Callable[[str], list[str]]] = {"methods": complete_methods}
"""Field of `Options` -> what completes its flag."""
