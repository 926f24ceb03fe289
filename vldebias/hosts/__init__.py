"""One file per host family; the only place that knows open_clip, transformers or diffusers."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from vldebias.errors import EXTRA_OF, UnsupportedHostError, warn
from vldebias.hosts import diffusers, open_clip, transformers
from vldebias.hosts.attachment import Attachment, attachment_of, refuse_second
from vldebias.hosts.base import Host
from vldebias.hosts.custom import CustomHost, custom
from vldebias.hosts.side import roles_of
from vldebias.hosts.table import TextTable

__all__ = ["Attachment", "CustomHost", "Host", "TextTable", "attachment_of", "custom", "refuse_second", "resolve"]


LOWEST = {"open_clip": "3.3", "transformers": "5.10.1", "diffusers": "0.41"}
"""The lowest versions that all tests have run with, as in pyproject.toml; older ones may do as well."""


def resolve(host: Any, *, tokenizer: Any = None, negative: bool = False, side: str = "text") -> Host:
    """The `Host` for a model or pipeline, by the library that defines its class or a base of it.

    A mapping from prompt to embedding stands for a model that is not at hand (`TextTable`).

    Raises:
        UnsupportedHostError: no known library, a class for which the family has no seam, or one that has not `side`.
        InvalidInputError: an unknown side.
    """
    roles_of(side)
    if isinstance(host, Host):
        return host.at(side)
    if isinstance(host, Mapping):
        return TextTable(host).at(side)
    for base in type(host).__mro__:
        library = base.__module__.partition(".")[0]
        if library in LOWEST:
            _warn_of_older(library)
        if library == "open_clip":
            return open_clip.open_clip_host(host, tokenizer).at(side)
        if library == "transformers":
            return transformers.transformers_host(host, tokenizer).at(side)
        if library == "diffusers":
            return diffusers.diffusers_host(host, negative=negative).at(side)
    raise UnsupportedHostError(
        f"{type(host).__module__}.{type(host).__qualname__}: no model of open_clip, transformers or diffusers.\n"
        "A wrapper (DataParallel, torch.compile, TorchScript) is attached through the model inside it, before it is "
        "wrapped.\n"
        f"Any other: vldebias.hosts.custom(model, {_likely(host)!r}, embed=...) describes it, and debias() takes that; "
        "docs/how-to/own-model.md has examples."
    )


@cache
def _warn_of_older(library: str) -> None:
    """Once for each library: its version here is lower than any that was tried."""
    version, lowest = getattr(sys.modules.get(library), "__version__", ""), LOWEST[library]
    if version and _release(version) < _release(lowest):
        warn(
            f"{library} {version} is older than {lowest}, the lowest version that vldebias was tried with; if anything "
            f"fails: pip install --upgrade 'vldebias[{EXTRA_OF[library]}]'"
        )


def _release(version: str) -> tuple[int, ...]:
    """(5, 10, 1) of "5.10.1.dev0"."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


def _likely(model: Any) -> str:
    """The method that gives embeddings of texts, by its name."""
    names = ("encode_text", "get_text_features", "encode_prompt", "encode", "embed", "forward")
    return next((name for name in names if callable(getattr(model, name, None))), "encode_text")
