"""What a host puts on a model: it hands embeddings to an attachment, and can be let pass. And how models are read."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import MethodType
from typing import Any, Never, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.hooks import RemovableHandle

from vldebias.errors import VldebiasError
from vldebias.hosts.base import Apply, Texts

BATCH = 64

TOKENIZING = threading.RLock()
"""Held around every tokenizer: fast ones set how they cut and pad before they read, for all threads at once."""
if hasattr(os, "register_at_fork"):  # a worker that is forked while a thread holds the lock would wait for ever
    os.register_at_fork(after_in_child=cast("Any", TOKENIZING)._at_fork_reinit)

_BARE: ContextVar[bool] = ContextVar("vldebias_bare", default=False)
INSIDE: ContextVar[bool] = ContextVar("vldebias_inside", default=False)
"""Is this a call that an attached pipeline itself makes of its text encoders?"""


@contextmanager
def during(state: ContextVar[Any], value: Any = True) -> Iterator[None]:
    """Inside, in this thread or task, the state has that value."""
    token = state.set(value)
    try:
        yield
    finally:
        state.reset(token)


def bare() -> Any:
    """A context inside which, in this thread or task, every seam lets embeddings pass."""
    return during(_BARE)


def is_expected() -> bool:
    """Is a call of a text encoder one of an attached pipeline, or one of those that read for a fit?"""
    return _BARE.get() or INSIDE.get()


# Models that are read now, in how many places, and the modes that their modules had before the first.
_READ: WeakKeyDictionary[nn.Module, tuple[int, list[tuple[nn.Module, bool]]]] = WeakKeyDictionary()
_LOCK = threading.Lock()


@contextmanager
def reading(*models: nn.Module) -> Iterator[None]:
    """Outputs for fitting: eval mode, no gradients, in the precision of the weights, never edited.

    A model that several threads read at once gets its modes back from the last of them.
    """
    devices = {p.device.type for m in models for p in m.parameters() if torch.amp.is_autocast_available(p.device.type)}
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(_in_eval_mode(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(bare())
        for kind in devices:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    with _LOCK:
        readers, modes = _READ.get(model) or (0, [(module, module.training) for module in model.modules()])
        _READ[model] = readers + 1, modes
        model.eval()
    try:
        yield
    finally:
        with _LOCK:
            readers, modes = _READ.pop(model)
            if readers > 1:
                _READ[model] = readers - 1, modes
            else:
                for module, training in modes:  # one by one: parts of a model may have been frozen in eval mode
                    module.training = training


def read_rows(
    encode: Callable[[list[str]], Tensor], prompts: Sequence[str], role: str, *models: nn.Module
) -> dict[tuple[str, str], Tensor]:
    """(role, prompt) -> what `encode` makes of it, in batches: of length 1, float64, on the CPU."""
    with reading(*models):
        blocks = [encode(list(prompts[start : start + BATCH])) for start in range(0, len(prompts), BATCH)]
        rows = torch.cat([block.detach().cpu().double() for block in blocks])
    return {(role, prompt): row for prompt, row in zip(prompts, normalize(rows, dim=-1), strict=True)}


class Seam:
    """What a host puts on a model: hands embeddings, and the texts that they are of, to the attachment.

    It belongs to one model: a copy or a pickle of that would be edited by an attachment that does not know it.
    """

    def __init__(self, name: str, apply: Apply) -> None:
        self.name, self.apply, self._standing = name, apply, True

    @property
    def active(self) -> bool:
        """False once it is taken off, or inside `bare` in this thread."""
        return self._standing and not _BARE.get()

    def project(self, role: str, embeddings: Tensor, texts: Texts | None = None) -> Tensor:
        """What the attachment makes of embeddings (b, ..., d); themselves where the seam lets pass."""
        return self.apply(role, embeddings, texts) if self.active else embeddings

    def take_off(self) -> None:
        """Let pass from here on."""
        self._standing = False

    def __deepcopy__(self, memo: object) -> Never:
        raise VldebiasError(
            f"{self.name}: a model cannot be copied while an edit is attached; copy it before, or call .remove() on "
            "the attachment first and attach to the copy as well"
        )

    def __reduce_ex__(self, protocol: Any) -> Never:
        raise VldebiasError(
            f"{self.name}: a model cannot be pickled while an edit is attached; call .remove() or .merge() first. "
            "state_dict() and save_pretrained() work at any time"
        )


class MethodSeam(Seam):
    """Stands in for a method of one object, as an attribute of the instance."""

    def __init__(self, name: str, apply: Apply, owner: Any, method: str) -> None:
        super().__init__(name, apply)
        self.owner, self.method = owner, method
        self.before = vars(owner).get(method)
        functools.update_wrapper(cast("Any", self), self.original)

    @property
    def original(self) -> Callable[..., Any]:
        """What it stands in for: what the instance had, else the method of the class."""
        return self.before or MethodType(getattr(type(self.owner), self.method), self.owner)

    def bind(self, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        """The arguments of a call by name, defaults included."""
        call = inspect.signature(self.original).bind(*args, **kwargs)
        call.apply_defaults()
        return call

    def put_on(self) -> None:
        """Hide the method."""
        setattr(self.owner, self.method, self)

    def take_off(self) -> None:
        """Put back what was there.

        Raises:
            VldebiasError: something else stands there.
        """
        if vars(self.owner).get(self.method) is not self:
            raise VldebiasError(f"{self.name}: something else replaced {self.method}; take that off first")
        super().take_off()
        delattr(self.owner, self.method)
        if self.before is not None:
            setattr(self.owner, self.method, self.before)


def installed(seams: Sequence[Seam], hooks: Sequence[RemovableHandle] = ()) -> Callable[[], None]:
    """Put stand-ins for methods on; returns the function that takes seams and hooks off."""
    for seam in seams:
        if isinstance(seam, MethodSeam):
            seam.put_on()

    def take_off() -> None:
        for seam in seams:
            seam.take_off()
        for hook in hooks:
            hook.remove()

    return take_off
