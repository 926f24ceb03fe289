"""Say so where a pipeline shares the text encoders of an attached one and draws without its edit.

`from_pipe`, `Pipeline(**pipe.components)` and `AutoPipelineForImage2Image.from_pipe` make another pipeline around the
same modules. The edit stands on the first one alone; the other draws without it, which may be meant and may be
forgotten. A hook before the forward pass of the shared encoder sees which pipeline called, and warns once for each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from copy import deepcopy
from types import FrameType
from typing import Any, Protocol
from weakref import WeakSet, finalize, ref

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from vldebias.errors import warn
from vldebias.hosts.seam import Seam, is_bare


class _Watched(Protocol):
    """What the hook asks of an attachment."""

    @property
    def acts(self) -> bool: ...

    @property
    def root(self) -> object: ...

    @property
    def line(self) -> str: ...


_CALLED = ("encode_prompt", "load_components")
# Pipelines whose own edit was taken off: they are meant to draw without.
_MEANT: WeakSet[object] = WeakSet()


def watch(attachment: _Watched, encoders: Iterable[object]) -> list[RemovableHandle]:
    """Warn of pipelines that call the encoders without the edit; the handles take that off.

    An encoder may outlive the attached pipeline, so that it must not keep it alive.
    """
    hook = _Hook(attachment)
    handles = [one.register_forward_pre_hook(hook) for one in encoders if isinstance(one, nn.Module)]
    released_with(attachment, handles)
    return handles


def released_with(attachment: _Watched, handles: Iterable[RemovableHandle]) -> None:
    """Take hooks off when the attachment is freed."""
    for handle in handles:
        finalize(attachment, handle.remove).atexit = False


def let_draw_without(pipe: object) -> None:
    """Never warn of a pipeline whose edit was taken off."""
    _MEANT.add(pipe)


def is_called(pipe: object) -> bool:
    """Is a call of this pipeline under way in this thread, such as one that calls back?"""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__call__" and frame.f_locals.get("self") is pipe:
            return True
        frame = frame.f_back
    return False


class _Hook:
    """A hook that changes nothing. A copy of the whole pipeline watches for its own attachment, others for nothing."""

    def __init__(self, attachment: _Watched | None = None) -> None:
        self._attachment: Callable[[], _Watched | None] = (lambda: None) if attachment is None else ref(attachment)
        self._warned: WeakSet[Any] = WeakSet()

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or is_bare():
            return
        attachment = self._attachment()
        if attachment is None or not attachment.acts:
            return
        caller = _pipeline_that_calls(sys._getframe(1))
        if caller is None or caller is attachment.root or caller in self._warned or caller in _MEANT:
            return
        if any(isinstance(seam, Seam) and seam.state.active for seam in vars(caller).values()):
            return
        self._warned.add(caller)
        warn(
            f"{type(caller).__name__}: shares its text encoders with a {type(attachment.root).__name__} that carries "
            f"an edit, and draws without it. To have it here too: {attachment.line}; to draw without it and without "
            "this warning: inside `with attachment.disabled():`"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        attachment = self._attachment()
        copied = attachment is not None and id(attachment.root) in memo
        twin = memo[id(self)] = _Hook()
        if copied:
            twin._attachment = ref(deepcopy(attachment, memo))
        return twin

    def __reduce__(self) -> Any:
        return _Hook, ()


def _pipeline_that_calls(frame: FrameType | None) -> Any:
    """The innermost pipeline among the objects whose methods are running; None where there is none.

    It has an `encode_prompt`, or it is a modular one; a block of that may have one too.
    """
    while frame is not None:
        one = frame.f_locals.get("self")
        block = hasattr(one, "sub_blocks")
        if not isinstance(one, nn.Module) and not block and any(callable(getattr(type(one), n, None)) for n in _CALLED):
            return one
        frame = frame.f_back
    return None
