"""Attach to a host, pause, scale, merge and remove: what all attachments share.

`vldebias.hosts.edits` has the attachment of edits of embeddings, `vldebias.hosts.values` those that
sample a value for each image.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from typing import ClassVar, Never, Self, SupportsIndex
from weakref import WeakSet, finalize

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    UnsupportedHostError,
    VldebiasError,
    warn,
)
from vldebias.hosts.host import BARE, Host, during
from vldebias.utils.markup import html_table

# Weak: an attachment knows its host, so a strong reference from here would keep the host forever.
# What keeps an attachment alive is the host itself, whose hook calls it.
_STANDING: WeakSet[Attachment] = WeakSet()
# Weights do not show that they were merged.
_MERGED: WeakSet[object] = WeakSet()
# By id, and for one thread or task: a server may generate with and without at once.
_PAUSED: ContextVar[frozenset[int]] = ContextVar("vldebias_paused", default=frozenset())
_MARKER = "_vldebias_merged"  # in the config of a model, which is saved with it
INSIDE: ContextVar[bool] = ContextVar("vldebias_inside", default=False)
"""True while an attached pipeline calls its own text encoders."""


class Attachment(ABC):
    """Control what `vldebias.debias` attached to a host; `remove()` restores it without a trace.

    An attachment is attached, disabled (inside `with attachment.disabled():`, where outputs are
    those of the bare host), removed or merged. Used in a with-statement, it is removed at the end
    of the block.

    Attributes:
        host: the host that it acts on.
        label: names of the prompt sets, for messages.
    """

    reattach: ClassVar[str]
    """The argument of `debias` that attaches the same to another pipeline, for messages."""

    _strength: float

    def __init__(self, host: Host, *, strength: float = 1.0, label: str = "") -> None:
        # First of all: a refusal leaves the host as it was.
        refuse_second(host)
        self.host = host
        self.label = label
        self._state = "attached"
        # Attachments of later passes over the same pictures, which follow this one.
        self._followers: WeakSet[Attachment] = WeakSet()
        self._warned: set[str] = set()
        self.strength = strength
        host.forget()  # weights may have changed since it was made
        self._uninstall = self._install()
        self._watches: list[RemovableHandle] = []
        for encoder in host.shared_modules:
            if isinstance(encoder, nn.Module):
                hook = encoder.register_forward_pre_hook(_watch)
                self._watches.append(hook)
                # The encoder may outlive an attachment that is dropped without remove().
                finalize(self, hook.remove).atexit = False
        _STANDING.add(self)

    @abstractmethod
    def _install(self) -> Callable[[], None]:
        """Hook the host; return the function that takes the hooks off."""

    @abstractmethod
    def _merge(self) -> None:
        """Fold what is attached into the weights, and record it in the config of the models."""

    @property
    @abstractmethod
    def keeps_stated(self) -> bool:
        """Return whether prompts that state the attribute are left unchanged."""

    @abstractmethod
    def _changes(self) -> list[str]:
        """Return what is changed, in words, for `repr`."""

    @abstractmethod
    def _facts(self) -> list[tuple[str, object]]:
        """Return further rows (what, value) for a notebook."""

    @property
    def strength(self) -> float:
        """Return the strength in [0, 1]; 0 leaves outputs bit-identical."""
        return self._strength

    @strength.setter
    def strength(self, value: float) -> None:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not 0 <= float(value) <= 1:
            raise InvalidInputError(f"strength: expected a number in [0, 1], got {value!r}")
        self._strength = float(value)
        for follower in self._followers:
            follower.strength = value

    @property
    def state(self) -> str:
        """Return "attached", "disabled", "removed" or "merged"."""
        if self._state == "attached" and id(self) in _PAUSED.get():
            return "disabled"
        return self._state

    @property
    def acts(self) -> bool:
        """Return whether the attachment changes anything now, in this thread or task."""
        return self.state == "attached" and self._strength > 0 and not BARE.get()

    @contextmanager
    def disabled(self) -> Iterator[Self]:
        """Pause inside the block, only in this thread or task; outputs are those of the bare
        host."""
        paused = {id(self), *map(id, self._followers)}
        with during(_PAUSED, _PAUSED.get() | paused):
            yield self

    def remove(self) -> None:
        """Remove all hooks. Calling it again is harmless.

        Raises:
            VldebiasError: the attachment was merged, so there is nothing left to remove.
        """
        if self._state == "merged":
            raise VldebiasError(
                f"{self.host.name}: the projection is part of the weights since merge(); reload the"
                " checkpoint"
            )
        self._release("removed")

    def merge(self) -> None:
        """Fold the edits into the host's weights at the current strength and remove the hooks.

        A checkpoint saved afterwards works without this package. Weights cannot tell stated and
        negative prompts apart: all are edited, as by `debias(pipe, ..., negative=True,
        keep_stated=False)`.

        Raises:
            VldebiasError: the attachment is not attached, or an edit is not one linear map.
            UnsupportedHostError: what is attached, or the host, cannot be expressed by weights.
        """
        if self._state != "attached":
            raise VldebiasError(
                f"{self.host.name}: cannot merge an attachment that is {self._state}"
            )
        self._merge()
        self.host.forget()
        self._release("merged")
        _MERGED.update(self.host.exclusive_modules)

    def warn_once(self, message: str) -> None:
        """Issue a warning the first time that it applies."""
        if message not in self._warned:
            self._warned.add(message)
            warn(f"{self.host.name}: {message}")

    def _release(self, state: str) -> None:
        # Called again at the end of a with-block that contains remove() or merge().
        if self._state == "attached":
            self._uninstall()
            for hook in self._watches:
                hook.remove()
            self._state = state
            _STANDING.discard(self)
            for follower in self._followers:
                follower._release(state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._release("removed")

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        raise VldebiasError(
            f"{self.host.name}: a model cannot be copied or pickled while an edit is attached; call"
            " .remove() or .merge() first. state_dict() and save_pretrained() work at any time"
        )

    def __repr__(self) -> str:
        parts = [
            self.host.name,
            self.label or "projection",
            *self._changes(),
            f"strength={self._strength}",
            "stated kept" if self.keeps_stated else "stated not kept",
            self.state,
        ]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what is attached, and what the last call was given."""
        facts: list[tuple[str, object]] = [
            ("attached to", self.host.name),
            ("prompts", self.label or "projection"),
            ("state", self.state),
            ("strength", self._strength),
        ]
        return html_table(repr(self), ("what", "value"), facts + self._facts())


def mark_merged(models: Iterable[object], note: str) -> None:
    """Record in the configs of models that their weights contain an edit."""
    for model in models:
        # diffusers saves what is registered, transformers every attribute of its config.
        register = getattr(model, "register_to_config", None)
        if register is not None:
            register(**{_MARKER: note})
        elif hasattr(model, "config"):
            setattr(model.config, _MARKER, note)


# ---- which attachments a host carries


def attachment_of(host: object) -> Attachment | None:
    """Return the attachment that a model or pipeline carries now, or None."""
    for attachment in list(_STANDING):
        if any(module is host for module in attachment.host.exclusive_modules):
            return attachment
    return None


def refuse_second(host: Host) -> None:
    """Raise AlreadyAttachedError if something is attached already, UnsupportedHostError for
    compiled models."""
    for model in host.exclusive_modules:
        parts = model.modules() if isinstance(model, nn.Module) else ()
        if any(part._compiled_call_impl is not None for part in parts):
            raise UnsupportedHostError(
                f"{host.name}: the model was compiled in place, and compiled code may not notice an"
                " attachment. Attach to a fresh model, or attach, .merge() and compile then"
            )
    _refuse_merged(host)
    if not _standing_on(host):
        return
    # A pipeline and its attachment reference each other: if both are dropped, they stay until
    # collected.
    gc.collect()
    standing = _standing_on(host)
    if standing:
        raise AlreadyAttachedError(
            f"{host.name} already carries {standing[0]!r}: call .remove() on it first, or pass a"
            " list of prompt sets to debias() to handle several attributes jointly"
        )


def _refuse_merged(host: Host) -> None:
    """Raise AlreadyAttachedError if the weights contain a projection, in this process or since the
    checkpoint was saved."""
    models = list(host.exclusive_modules)
    for model in host.exclusive_modules:
        # In a pipeline the denoiser is changed, and the note is in the denoiser's config.
        components = getattr(model, "components", None)
        if isinstance(components, Mapping):
            models += components.values()
    configs = [getattr(model, "config", None) for model in models]
    notes = [getattr(config, _MARKER, None) for config in configs]
    saved_notes = [note for note in notes if isinstance(note, str)]
    is_merged = any(model in _MERGED for model in host.exclusive_modules)
    if saved_notes or is_merged:
        note = f": {saved_notes[0]}" if saved_notes else ""
        raise AlreadyAttachedError(
            f"{host.name}: its weights hold a projection since merge(){note}. Load"
            " the checkpoint as it was before, and pass a list of prompt sets to debias() to"
            " handle several attributes jointly"
        )


def _standing_on(host: Host) -> list[Attachment]:
    """Return the attachments in conflict with one on this host: one of the two occupies exclusively
    a module that the other needs. Two that only share a module do not conflict."""
    exclusive = {id(module) for module in host.exclusive_modules}
    occupied = exclusive.union(id(module) for module in host.shared_modules)
    standing = []
    for attachment in list(_STANDING):
        their_exclusive = [id(module) for module in attachment.host.exclusive_modules]
        their_shared = [id(module) for module in attachment.host.shared_modules]
        if occupied.intersection(their_exclusive) or exclusive.intersection(their_shared):
            standing.append(attachment)
    return standing


def _watch(module: nn.Module, _: object) -> None:
    """Warn when a shared text encoder is called from outside its attached pipeline, unless it is to
    fit an edit."""
    if torch.compiler.is_compiling() or INSIDE.get():
        return
    for attachment in list(_STANDING):
        is_shared = any(module is part for part in attachment.host.shared_modules)
        if is_shared and attachment.acts:
            attachment.warn_once(
                "its text encoder was called outside of this pipeline's encode_prompt, by another"
                " pipeline that shares it or by your own code, so the edit does not apply there."
                f" To apply it there too: vldebias.debias(other, {attachment.reattach}); to leave"
                " it out on purpose: inside `with attachment.disabled():`"
            )
