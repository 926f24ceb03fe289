"""One file per host family; the only place that knows open_clip, transformers or diffusers."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from vldebias.errors import EXTRA_OF, InvalidInputError, UnsupportedHostError, warn
from vldebias.hosts.attachment import Attachment, attachment_of, attachments, refuse_second
from vldebias.hosts.base import Host
from vldebias.hosts.custom import CustomHost, custom
from vldebias.hosts.modular import ModularHost
from vldebias.hosts.open_clip import OpenClipHost
from vldebias.hosts.probe import PipelineHost
from vldebias.hosts.side import roles_of
from vldebias.hosts.table import TextTable
from vldebias.hosts.transformers import TransformersHost
from vldebias.registry import Registry

__all__ = [
    "HOSTS",
    "Attachment",
    "CustomHost",
    "Host",
    "TextTable",
    "attachment_of",
    "attachments",
    "custom",
    "refuse_second",
    "register_host",
    "resolve",
]

LOWEST = {"open_clip": "3.3", "transformers": "5.10.1", "diffusers": "0.41"}
"""The lowest versions that all tests have run with, as in pyproject.toml; older ones may do as well."""


def _accept(given: Any) -> tuple[str, type[Host]]:
    if not (isinstance(given, type) and issubclass(given, Host) and given.library):
        raise InvalidInputError(
            "host: expected a class that derives from vldebias.hosts.Host and says as `library` which package defines "
            f"its models, got {given!r}"
        )
    return given.library, given


HOSTS: Registry[type[Host]] = Registry("host", "vldebias.hosts", _accept, instances=False)
"""Package that defines classes of models, or a package inside of it -> the host for them."""


def register_host(host: type[Host]) -> type[Host]:
    """Make the models of a package known, wherever a model goes; returns the class.

    Raises:
        InvalidInputError: no Host with a `library`, or another one has that.
    """
    return HOSTS.register(host)


for _kind in (OpenClipHost, TransformersHost, PipelineHost, ModularHost):
    register_host(_kind)


def kind_of(model: Any) -> type[Host] | None:
    """The host for the package that defines the class of a model, or else the nearest base of it; None: unknown."""
    for base in type(model).__mro__:
        package = base.__module__
        while package and package not in HOSTS:
            package = package.rpartition(".")[0]
        if package:
            return HOSTS[package]
    return None


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
    kind = kind_of(host)
    if kind is not None:
        if kind.library in LOWEST:
            _warn_of_older(kind.library)
        return kind.of(host, tokenizer, negative=negative).at(side)
    names = ("encode_text", "get_text_features", "encode_prompt", "encode", "embed", "forward")
    likely = next((name for name in names if callable(getattr(host, name, None))), "encode_text")
    *others, last = (package for package in HOSTS if "." not in package)
    raise UnsupportedHostError(
        f"{type(host).__module__}.{type(host).__qualname__}: no model of {', '.join(others)} or {last}.\n"
        "A wrapper (DataParallel, torch.compile, TorchScript) is attached through the model inside it, before it is "
        "wrapped.\n"
        f"Any other: vldebias.hosts.custom(model, {likely!r}, embed=...) describes it, and debias() takes that; "
        "docs/how-to/own-model.md has examples."
    )


Attachment.host_of = staticmethod(resolve)


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
