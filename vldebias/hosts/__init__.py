"""Support each model family in one file; only this package knows open_clip, transformers or diffusers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.attachment import Attachment, attachment_of, placed, refuse_second
from vldebias.hosts.base import Host
from vldebias.hosts.custom import CustomHost, TextTable, custom
from vldebias.hosts.diffusers import DiffusersHost
from vldebias.hosts.modular import ModularHost
from vldebias.hosts.open_clip import OpenClipHost
from vldebias.hosts.transformers import TransformersHost
from vldebias.registry import Registry

__all__ = [
    "HOSTS",
    "Attachment",
    "CustomHost",
    "Host",
    "TextTable",
    "attachment_of",
    "custom",
    "placed",
    "refuse_second",
    "register_host",
    "resolve",
]


def _accept(given: Any) -> tuple[str, type[Host]]:
    if not (isinstance(given, type) and issubclass(given, Host) and given.library):
        raise InvalidInputError(
            f"host: got {given!r}; expected a class that derives from vldebias.hosts.Host and says as `library` which "
            "package defines its models"
        )
    return given.library, given


HOSTS: Registry[type[Host]] = Registry("host", "vldebias.hosts", _accept, instances=False)
"""Package that defines classes of models, or a package inside of it -> the host for them."""


def register_host(host: type[Host]) -> type[Host]:
    """Register a host for the models of a package, so that every function accepts them; return the class.

    Raises:
        InvalidInputError: not a Host with a `library`, or a `library` that another host has.
    """
    return HOSTS.register(host)


for _kind in (OpenClipHost, TransformersHost, DiffusersHost, ModularHost):
    register_host(_kind)


def resolve(host: Any, *, tokenizer: Any = None, negative: bool = False, side: str = "text") -> Host:
    """Return the `Host` for a model or pipeline, by the library that defines its class or a base of it.

    A mapping from prompt to embedding stands for a model that is not at hand (`TextTable`).

    Raises:
        UnsupportedHostError: no known library, a class that its host cannot serve, or a host without `side`.
        InvalidInputError: an unknown side.
    """
    if isinstance(host, (Host, Mapping)):
        return (host if isinstance(host, Host) else TextTable(host)).at(side)
    for base in type(host).__mro__:
        parts = base.__module__.split(".")
        for package in (".".join(parts[:count]) for count in range(len(parts), 0, -1)):
            if package in HOSTS:
                found = HOSTS[package](host, tokenizer, negative)  # type: ignore[call-arg]
                return found if side == "text" else found.at(side)
    *others, last = (package for package in HOSTS if "." not in package)
    raise UnsupportedHostError(
        f"{type(host).__module__}.{type(host).__qualname__}: no model of {', '.join(others)} or {last}.\n"
        "A wrapper (DataParallel, torch.compile, TorchScript) is attached through the model inside it, before it is "
        "wrapped.\n"
        "Any other: vldebias.hosts.custom(model, 'method', embed=...) describes it, and debias() takes that; "
        "docs/how-to/own-model.md has examples."
    )
