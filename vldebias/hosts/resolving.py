"""Find the host for a model or pipeline by the library that defines its class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.custom import TextTable
from vldebias.hosts.host import Host
from vldebias.utils.registry import Registry, check_callable


def _library_of(kind: object) -> str:
    """Return a host class's library, after checking the class."""
    if not isinstance(kind, type) or not issubclass(kind, Host) or not kind.library:
        raise InvalidInputError(
            f"host: got {kind!r}; expected a subclass of vldebias.hosts.Host whose `library` names"
            " the package that defines its models"
        )
    undefined = sorted(kind.__abstractmethods__)
    for name in ("__init__", "install"):
        if getattr(kind, name) is getattr(Host, name):
            undefined.append(name)
    if undefined:
        raise InvalidInputError(
            f"host {kind.library!r}: {kind.__name__} does not define {', '.join(undefined)};"
            " define it as described in vldebias.hosts.Host"
        )
    where = f"host {kind.library!r}: __init__"
    check_callable(where, kind.__init__, ("self", "model", "tokenizer", "negative"))
    return kind.library


def _checked_host(host: Host) -> Host:
    """Return a host, after checking that its `__init__` set the required attributes."""
    # Do not evaluate properties, because one of them may run the pipeline.
    known = {*vars(host), *dir(type(host))}
    unset = [name for name in ("name", "roles", "exclusive_modules") if name not in known]
    if unset:
        raise InvalidInputError(
            f"host {host.library!r}: {type(host).__name__} does not set {', '.join(unset)}, which"
            " every host needs; set it in __init__ or in the class"
        )
    return host


HOSTS: Registry[type[Host]] = Registry("host", "vldebias.hosts", _library_of)
"""The host class for each package or subpackage that defines model classes."""


def register_host(host: type[Host]) -> type[Host]:
    """Register a host class, so that every function accepts the models of its `library`.

    Returns:
        The class, so that this can be used as a decorator.

    >>> from vldebias.hosts import HOSTS, Host
    >>> class AcmeHost(Host):  # see docs/how-to/extend.md for a complete one
    ...     library = "acme"
    ...     def __init__(self, model, tokenizer=None, negative=False): ...
    ...     def read(self, prompts, role): ...
    ...     def install(self, attachment): ...
    >>> kind = register_host(AcmeHost)
    >>> "acme" in HOSTS
    True
    """
    return HOSTS.register(host)


def resolve(
    host: object, *, tokenizer: object = None, negative: bool = False, side: str | None = None
) -> Host:
    """Wrap a model or pipeline in the `Host` registered for the library that defines its class.

    Args:
        host: the model or pipeline, or a `Host`. A mapping from prompt to embedding can replace a
            model that is not available (`TextTable`).
        tokenizer: the model's tokenizer, if it cannot be derived from the model.
        negative: whether to change a pipeline's negative prompt too.
        side: which embeddings to edit, "text" or "image". If None, the default side is used.

    Raises:
        UnsupportedHostError: If the library is unknown, the class is unsupported, or the host does
            not support `side`.
    """
    if isinstance(host, Mapping):
        host = TextTable(host)
    if isinstance(host, str | Path):
        raise UnsupportedHostError(
            f"host: got the name {str(host)!r}; expected the model or pipeline itself, loaded by"
            " open_clip, transformers or diffusers"
        )
    if not isinstance(host, Host):
        # Packages that define the model's class or a base class, longest name first, because
        # modular diffusers pipelines have a separate host.
        packages = list[str]()
        for base in type(host).__mro__:
            parts = base.__module__.split(".")
            packages += [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        package = next((package for package in packages if package in HOSTS), None)
        if package is None:
            libraries = [library for library in HOSTS if "." not in library]
            raise UnsupportedHostError(
                f"{type(host).__module__}.{type(host).__qualname__}: not a model from"
                f" {', '.join(libraries[:-1])} or {libraries[-1]}.\nFor a wrapper (DataParallel,"
                " torch.compile, TorchScript) pass the wrapped model, before wrapping it.\nFor"
                " any other model, use vldebias.hosts.custom(model, 'method', embed=...); see"
                " docs/how-to/own-model.md"
            )
        found = HOSTS[package](host, tokenizer, negative)  # type: ignore[call-arg]
        host = _checked_host(found)
    return host if side is None else host.at(side)
