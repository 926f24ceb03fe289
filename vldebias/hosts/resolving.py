"""Find the host of a model or pipeline by the library that defines its class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.custom import TextTable
from vldebias.hosts.host import Host
from vldebias.utils.registry import Registry


def _accept(kind: Any) -> str:
    is_host = isinstance(kind, type) and issubclass(kind, Host)
    if not is_host or not kind.library:
        raise InvalidInputError(
            f"host: got {kind!r}; expected a class that derives from vldebias.hosts.Host and says"
            " as `library` which package defines its models"
        )
    return str(kind.library)


HOSTS: Registry[type[Host]] = Registry("host", "vldebias.hosts", _accept)
"""Package that defines classes of models, or a package inside of it -> the host for them."""


def register_host(host: type[Host]) -> type[Host]:
    """Register a host for the models of its `library`, so that every function accepts them; return
    the class."""
    return HOSTS.register(host)


def resolve(
    host: object, *, tokenizer: object = None, negative: bool = False, side: str | None = None
) -> Host:
    """Return the `Host` for a model or pipeline, by the library that defines its class or a base of
    it.

    A mapping from prompt to embedding stands for a model that is not at hand (`TextTable`). side:
    see `Host.at`.

    Raises:
        UnsupportedHostError: no known library, a class that its host cannot serve, or a host
            without `side`.
    """
    if isinstance(host, Mapping):
        host = TextTable(host)
    if isinstance(host, str | Path):
        raise UnsupportedHostError(
            f"host: got the name {str(host)!r}; expected the model or pipeline itself, loaded by"
            " open_clip, transformers or diffusers"
        )
    if not isinstance(host, Host):
        # Packages that define the class of the model, or a base of it, the longest first: modular
        # pipelines have a host of their own inside of diffusers.
        packages = list[str]()
        for base in type(host).__mro__:
            parts = base.__module__.split(".")
            packages += [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        package = next((package for package in packages if package in HOSTS), None)
        if package is None:
            libraries = [library for library in HOSTS if "." not in library]
            raise UnsupportedHostError(
                f"{type(host).__module__}.{type(host).__qualname__}: no model of"
                f" {', '.join(libraries[:-1])} or {libraries[-1]}.\nFor a wrapper"
                " (DataParallel, torch.compile, TorchScript) pass the model inside, before you"
                " wrap it.\nDescribe any other by vldebias.hosts.custom(model, 'method',"
                " embed=...); docs/how-to/own-model.md"
            )
        host = HOSTS[package](host, tokenizer, negative)  # type: ignore[call-arg]
    return host if side is None else host.at(side)
