"""What stands at a seam: it hands embeddings to an attachment, follows copies of its host, and can be let pass."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from copy import deepcopy
from types import MethodType, SimpleNamespace
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vldebias.errors import AlreadyAttachedError, VldebiasError
from vldebias.hosts.base import Apply, Host, Texts

_BARE: ContextVar[bool] = ContextVar("vldebias_bare", default=False)


@contextmanager
def bare() -> Iterator[None]:
    """Inside, in this thread, every seam lets embeddings pass."""
    token = _BARE.set(True)
    try:
        yield
    finally:
        _BARE.reset(token)


def is_bare() -> bool:
    """Whether this thread is inside `bare`, as all reading for a fit is."""
    return _BARE.get()


# Models that are read now, in how many places, and the modes that their modules had before the first.
_READ: WeakKeyDictionary[nn.Module, tuple[int, list[tuple[nn.Module, bool]]]] = WeakKeyDictionary()
_LOCK = threading.Lock()


@contextmanager
def reading(*models: nn.Module) -> Iterator[None]:
    """Outputs for fitting: eval mode, no gradients, in the precision of the weights, never projected.

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


class Seam:
    """What a host puts on a model: hands embeddings, and the texts that they are of, to the attachment.

    A deep copy of the whole model gets one for itself, which hands them to the attachment of the copy
    (`Attachment.__deepcopy__`). Of a part that is copied alone it follows the original: projected while that is
    attached, bare afterwards. A pickle would lose that tie and is refused.
    """

    def __init__(self, name: str, apply: Apply) -> None:
        self.name = name
        self.state = SimpleNamespace(active=True)  # one for all that follow this attachment
        self.apply = apply

    @property
    def active(self) -> bool:
        """False once it is taken off, or inside `bare` in this thread."""
        return self.state.active and not _BARE.get()

    def project(self, role: str, embeddings: Tensor, texts: Texts | None = None) -> Tensor:
        """What the attachment makes of embeddings (b, ..., d); themselves where the seam lets pass."""
        return self.apply(role, embeddings, texts) if self.active else embeddings

    def take_off(self) -> None:
        """Let pass from here on."""
        self.state.active = False

    @classmethod
    def refuse_copy(cls, standing: Iterable[object]) -> None:
        """For a model with a part that was copied from one that carries an attachment.

        Raises:
            AlreadyAttachedError: one of them still projects.
        """
        for seam in standing:
            if isinstance(seam, cls) and seam.state.active:
                raise AlreadyAttachedError(
                    f"{seam.name}: a part of this model is a copy from one that carries an attachment, and is "
                    "projected with it. Call .remove() on that attachment first, or copy the part before attaching"
                )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        apply = deepcopy(self.apply, memo)
        if id(self) in memo:  # the attachment, which knows its seams, came back here
            return memo[id(self)]
        twin = memo[id(self)] = object.__new__(type(self))
        vars(twin).update(vars(self), apply=apply)
        if apply != self.apply:
            twin.state = SimpleNamespace(active=self.state.active)
            of_host = {n: v for n, v in vars(self).items() if isinstance(getattr(v, "__self__", v), Host)}
            vars(twin).update(deepcopy(of_host, memo))
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise VldebiasError(
            f"{self.name}: a model cannot be pickled while a projection is attached. Call .remove() or .merge() "
            "first; state_dict() and save_pretrained() work at any time"
        )


class MethodSeam(Seam):
    """Stands in for a method of one object, as an attribute of the instance; a deep copy gets one for itself."""

    def __init__(self, name: str, apply: Apply, owner: Any, method: str) -> None:
        super().__init__(name, apply)
        self.owner, self.method = owner, method
        standing = vars(owner).get(method)
        self.before = None if isinstance(standing, Seam) else standing  # a seam that was taken off came with a copy
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
        """Put back what was there."""
        super().take_off()
        if vars(self.owner).get(self.method) is self:
            delattr(self.owner, self.method)
            if self.before is not None:
                setattr(self.owner, self.method, self.before)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = super().__deepcopy__(memo)
        twin.owner, twin.before = memo.get(id(self.owner), self.owner), deepcopy(self.before, memo)
        functools.update_wrapper(cast("Any", twin), twin.original)
        return twin


class Installed:
    """What was put on a host; a call takes all of it off. A deep copy belongs to the copy of the host."""

    def __init__(self, seams: Sequence[Seam], hooks: Sequence[RemovableHandle] = ()) -> None:
        self._seams, self._hooks = list(seams), list(hooks)

    def __call__(self) -> None:
        """Once."""
        for seam in self._seams:
            seam.take_off()
        for hook in self._hooks:
            hook.remove()
