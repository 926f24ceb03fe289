"""Read models without edits, in eval mode, and call tokenizers from several threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

T = TypeVar("T")

TOKENIZING = threading.RLock()
"""Lock for tokenizer calls, because fast tokenizers set truncation and padding for all threads."""
# A worker forked while a thread holds the lock would wait forever. Windows does not fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TOKENIZING._at_fork_reinit)  # type: ignore[attr-defined]

BARE: ContextVar[bool] = ContextVar("vldebias_bare", default=False)
"""True while hooks return unedited embeddings in this thread or task."""


@contextmanager
def during(state: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable inside the block, in this thread or task.

    Args:
        state: the context variable to set.
        value: the value of the variable inside the block.
    """
    token = state.set(value)
    try:
        yield
    finally:
        state.reset(token)


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Set an attribute of an object inside the block.

    Args:
        owner: the object, such as a pipeline.
        name: the name of the attribute. Afterwards, a method of the class is used again.
        value: the value of the attribute inside the block.
    """
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)
        if before is not None:
            setattr(owner, name, before)


# For each model being read: the number of readers, and its modules' modes before the first reader
# started.
_READ: WeakKeyDictionary[nn.Module, tuple[int, list[tuple[nn.Module, bool]]]] = WeakKeyDictionary()
_LOCK = threading.Lock()


@contextmanager
def reading(*models: nn.Module) -> Iterator[None]:
    """Prepare models for reading, in eval mode and without gradients, autocast or edits.

    If several threads read a model at once, the last one restores its modules' modes.
    """
    devices = {weight.device.type for model in models for weight in model.parameters()}
    with _LOCK:
        for model in models:
            readers, modes = _READ.get(model, (0, []))
            if not readers:
                modes = [(module, module.training) for module in model.modules()]
            _READ[model] = readers + 1, modes
            model.eval()
    try:
        # Autocast would round the embeddings that an edit is fitted on.
        with ExitStack() as stack, torch.no_grad(), during(BARE, True):
            for device in devices:
                # The meta device has no autocast, and entering it raises an error.
                if torch.amp.is_autocast_available(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        with _LOCK:
            for model in models:
                readers, modes = _READ.pop(model)
                if readers > 1:
                    _READ[model] = readers - 1, modes
                    continue
                # Restore each module's own mode, because parts of a model may have been in eval
                # mode.
                for module, training in modes:
                    module.training = training
