"""Find the host for a model or pipeline by the library that defines its class."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isfunction
from pathlib import Path

from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.custom import TextTable
from vldebias.hosts.host import Host
from vldebias.hosts.loaded import Loaded
from vldebias.projection.edit import Edit
from vldebias.utils.files import packaged
from vldebias.utils.names import check_name_without_weights, check_path, kind_of_path
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
        host: the model or pipeline, what `vldebias.load_host` returned, or a `Host`. A mapping from
            prompt to embedding can replace a model that is not available (`TextTable`).
        tokenizer: the model's tokenizer, if it cannot be derived from the model.
        negative: whether to change a pipeline's negative prompt too.
        side: which embeddings to edit, "text" or "image". If None, the default side is used.

    Raises:
        UnsupportedHostError: If the library is unknown, the class is unsupported, or the host does
            not support `side`.
    """
    if isinstance(host, Loaded):
        tokenizer = host.tokenizer if tokenizer is None else tokenizer
        host = host.host
    if isinstance(host, Mapping):
        host = TextTable(host)
    if isinstance(host, str | Path):
        raise UnsupportedHostError(_instead_of_name(str(host)))
    if not isinstance(host, Host):
        # Packages that define the model's class or a base class, longest name first, because
        # modular diffusers pipelines have a separate host.
        packages = list[str]()
        for base in type(host).__mro__:
            parts = base.__module__.split(".")
            packages += [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        package = next((package for package in packages if package in HOSTS), None)
        if package is None:
            raise UnsupportedHostError(_instead_of_object(host))
        host = HOSTS[package](host, tokenizer, negative)  # type: ignore[call-arg]
        # Do not evaluate properties, because one of them may run the pipeline.
        known = {*vars(host), *dir(type(host))}
        unset = [name for name in ("name", "roles", "exclusive_modules") if name not in known]
        if unset:
            raise InvalidInputError(
                f"host {host.library!r}: {type(host).__name__} does not set {', '.join(unset)},"
                " which every host needs; set it in __init__ or in the class"
            )
    return host if side is None else host.at(side)


def _instead_of_name(name: str) -> str:
    """Return the error message for a name that was passed as a model or pipeline."""
    if name in packaged("prompts"):
        return (
            f"host: got the prompt set {name!r}; the order is (host, attribute), so pass the model"
            f" or pipeline first, and then {name!r}"
        )
    try:
        check_path(name, "model", "pipeline")
        check_name_without_weights(name)
    except InvalidInputError as error:
        return f"host: {error}"
    loads = {
        "pipeline": f"vldebias.load_host(pipeline={name!r}) for a diffusers pipeline",
        "model": f"vldebias.load_host({name!r}) for an image-text model",
    }
    load = loads.get(kind_of_path(name)) or ", ".join(loads.values())
    return f"host: got the name {name!r}; expected the model or pipeline itself: {load}"


def _instead_of_object(host: object) -> str:
    """Return the error message for an object that no registered library defines."""
    kind = type(host).__qualname__
    if isinstance(host, type):
        return (
            f"host: got the class {host.__qualname__}; expected an instance, such as"
            f" {host.__qualname__}.from_pretrained(NAME)"
        )
    if isinstance(host, list | tuple):
        return f"host: got a {kind}; pass the model, which is the first item if open_clip made it"
    if isinstance(host, Edit):
        return "host: got an edit; pass the model or pipeline first: vldebias.debias(model, edit)"
    if host is None or isfunction(host):
        got = "None" if host is None else f"the function {host.__name__}"
        return (
            f"host: got {got}; expected a model or pipeline, such as"
            " vldebias.load_host(pipeline='miniature')"
        )
    libraries = [library for library in HOSTS if "." not in library]
    return (
        f"{type(host).__module__}.{kind}: not a model from {', '.join(libraries[:-1])} or"
        f" {libraries[-1]}.\nFor a wrapper (DataParallel, torch.compile, TorchScript) pass the"
        " wrapped model, before wrapping it.\nFor any other model, use"
        " vldebias.hosts.custom(model, 'method', embed=...); see help(vldebias.hosts.custom)"
    )
