"""One file per host family; the only place that knows open_clip, transformers or diffusers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vldebias.errors import UnsupportedHostError
from vldebias.hosts.base import Host
from vldebias.hosts.sides import roles_of

__all__ = ["Host", "resolve"]


def _open_clip(host: Any, tokenizer: Any, negative: bool) -> Host:
    from vldebias.hosts.open_clip import wrap

    return wrap(host, tokenizer)


def _transformers(host: Any, tokenizer: Any, negative: bool) -> Host:
    from vldebias.hosts.transformers import wrap

    return wrap(host, tokenizer)


def _diffusers(host: Any, tokenizer: Any, negative: bool) -> Host:
    from vldebias.hosts.diffusers import wrap

    return wrap(host, negative=negative)


_FAMILIES: dict[str, Callable[[Any, Any, bool], Host]] = {
    "open_clip": _open_clip,
    "transformers": _transformers,
    "diffusers": _diffusers,
}


def resolve(host: Any, *, tokenizer: Any = None, negative: bool = False, side: str = "text") -> Host:
    """The `Host` for a model or pipeline, found by the library that defines its class or a base of it.

    Raises:
        UnsupportedHostError: no known library, a class for which the family has no seam, or one that has not `side`.
        InvalidInputError: an unknown side.
    """
    roles_of(side)
    return _find(host, tokenizer, negative).at(side)


def _find(host: Any, tokenizer: Any, negative: bool) -> Host:
    if isinstance(host, Host):
        return host
    for base in type(host).__mro__:
        family = _FAMILIES.get(base.__module__.partition(".")[0])
        if family is not None:
            return family(host, tokenizer, negative)
    raise UnsupportedHostError(
        f"{type(host).__module__}.{type(host).__qualname__}: expected a model of {', '.join(_FAMILIES)}. "
        "A wrapper (DataParallel, DistributedDataParallel, torch.compile) is attached through the model inside it, "
        "a TorchScript model is built without jit (jit=False in open_clip); "
        "for your own model use vldebias.fit_projection on its text tower and call the projection on its embeddings"
    )
