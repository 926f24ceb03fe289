"""Attach to a host, and pause, scale, merge or remove an attachment.

`vldebias.hosts.edits` defines attachments that edit embeddings; `vldebias.hosts.values` defines
attachments that sample a value for each image.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from typing import TYPE_CHECKING, ClassVar, Never, Self, SupportsIndex
from weakref import WeakSet, finalize

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from vldebias.errors import (
    REMOVED,
    AlreadyAttachedError,
    InvalidInputError,
    UnsupportedHostError,
    VldebiasError,
    warn,
)
from vldebias.hosts.loaded import Loaded
from vldebias.hosts.reading import BARE, during
from vldebias.utils.markup import html_table

# Weak references, because an attachment references its host, which would otherwise never be freed.
# The host's hooks keep the attachment alive.
_ATTACHED: WeakSet[Attachment] = WeakSet()
# Models with merged edits, recorded because the weights alone do not show that they were merged.
_MERGED: WeakSet[object] = WeakSet()
# Ids of the attachments that are disabled in this thread or task. A server may generate with and
# without an attachment at the same time.
_PAUSED: ContextVar[frozenset[int]] = ContextVar("vldebias_paused", default=frozenset())
_MARKER = "_vldebias_merged"  # key in the model's config, which is saved with the model
INSIDE: ContextVar[bool] = ContextVar("vldebias_inside", default=False)
"""True while an attached pipeline calls its own text encoders."""


class Attachable(ABC):
    """A model or pipeline that something can be attached to; `vldebias.hosts.Host` implements it.

    Attributes:
        name: the model's class name, for messages.
        exclusive_modules: the objects that only one attachment may use, starting with the model or
            pipeline itself.
        shared_modules: the modules that attachments to other pipelines may also use.
    """

    name: str
    exclusive_modules: Sequence[object]
    shared_modules: Sequence[object] = ()

    @abstractmethod
    def forget(self) -> None:
        """Discard everything read from the model, because its weights may have changed."""


class Attachment(ABC):
    """Control what `vldebias.debias` attached to a host; `remove()` fully restores the host.

    Its state is "attached", "disabled" (inside `with attachment.disabled():`, where the host
    behaves as if nothing were attached), "removed", "merged", or "declined" if the default method
    attached nothing. When used as a context manager, it is removed at the end of the block.

    Attributes:
        host: the model or pipeline that this object is attached to, as a `Host`.
        label: names of the prompt sets, for messages.

    >>> import vldebias
    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> attachment = vldebias.debias(model, "gender", method="cali", tokenizer=tokenizer)
    >>> attachment.strength = 0.5
    >>> with attachment.disabled():
    ...     attachment.state
    'disabled'
    >>> attachment.remove()
    """

    reattach: ClassVar[str]
    """Code of the `debias` argument that reuses this attachment for another pipeline."""

    _strength: float

    def __init__(self, host: Attachable, *, strength: float = 1.0, label: str = "") -> None:
        """Hook the host with `_install`, unless something else is attached.

        Args:
            host: model or pipeline to hook.
            strength: fraction of the change to apply, in [0, 1].
            label: names of the prompt sets, for messages.
        """
        # Reject an occupied host before anything is hooked, so that an error leaves it unchanged.
        refuse_second(host)
        self.host = host
        self.label = label
        self._state = "attached"
        # Attachments for later passes over the same images.
        self._followers: WeakSet[Attachment] = WeakSet()
        self._warned: set[str] = set()
        self.strength = strength
        host.forget()  # weights may have changed since the host was created
        self._uninstall = self._install()
        if not callable(self._uninstall):
            self._state = "removed"  # the hooks remain but do nothing
            raise InvalidInputError(
                f"{host.name}: {type(host).__name__} installed hooks and returned"
                f" {self._uninstall!r}; expected a function that removes the hooks. End the host's"
                " install method with `return remove`"
            )
        self._watch_hooks: list[RemovableHandle] = []
        for encoder in host.shared_modules:
            if isinstance(encoder, nn.Module):
                hook = encoder.register_forward_pre_hook(_watch)
                self._watch_hooks.append(hook)
                # The encoder may outlive an attachment that is discarded without remove().
                finalize(self, hook.remove).atexit = False
        _ATTACHED.add(self)

    if not TYPE_CHECKING:  # otherwise, type checkers would accept any attribute

        def __getattr__(self, name: str) -> object:
            """Explain what to do instead of a removed attribute."""
            if name in REMOVED:
                kind = type(self).__name__
                raise AttributeError(f"{kind!r} object has no attribute {name!r}; {REMOVED[name]}")
            return object.__getattribute__(self, name)  # raises the usual error

    @abstractmethod
    def _install(self) -> Callable[[], None]:
        """Hook the host, and return the function that removes the hooks."""

    @abstractmethod
    def _merge(self) -> None:
        """Fold the edits into the weights and record the merge in the models' configs."""

    @property
    @abstractmethod
    def keeps_stated(self) -> bool:
        """Return whether prompts that state the attribute are left unchanged."""

    @abstractmethod
    def _changes(self) -> list[str]:
        """Return descriptions of the changes, for `repr`."""

    @abstractmethod
    def _facts(self) -> list[tuple[str, object]]:
        """Return additional (name, value) rows for the notebook table."""

    @property
    def strength(self) -> float:
        """Return the strength in [0, 1]. At 0, outputs are bit-identical to the unedited ones."""
        return self._strength

    @strength.setter
    def strength(self, value: float) -> None:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not 0 <= float(value) <= 1:
            raise InvalidInputError(f"strength: expected a number in [0, 1], got {value!r}")
        if self._state in ("removed", "merged"):
            raise InvalidInputError(f"strength: this attachment was {self._state}; attach again")
        self._strength = float(value)
        for follower in self._followers:
            follower.strength = value

    @property
    def state(self) -> str:
        """Return "attached", "disabled", "removed", "merged" or "declined"."""
        if self._state == "attached" and id(self) in _PAUSED.get():
            return "disabled"
        return self._state

    @property
    def acts(self) -> bool:
        """Return whether the attachment currently changes anything in this thread or task."""
        return self.state == "attached" and self._strength > 0 and not BARE.get()

    @contextmanager
    def disabled(self) -> Iterator[Self]:
        """Disable the attachment inside the block, in this thread or task only.

        Outputs are the same as without an attachment.
        """
        paused = {id(self), *map(id, self._followers)}
        with during(_PAUSED, _PAUSED.get() | paused):
            yield self

    def remove(self) -> None:
        """Remove all hooks; a second call does nothing.

        Raises:
            VldebiasError: If the attachment was merged, which leaves nothing to remove.
        """
        if self._state == "merged":
            raise VldebiasError(
                f"{self.host.name}: merge() made the projection part of the weights, so it cannot"
                " be removed; reload the checkpoint"
            )
        self._release("removed")

    def merge(self) -> None:
        """Fold the edits into the host's weights at the current strength and remove the hooks.

        A checkpoint saved afterwards works without this package. Weights apply to all prompts,
        including negative prompts and prompts that state the attribute, as with `debias(pipe, ...,
        negative=True, keep_stated=False)`.

        Raises:
            VldebiasError: If the attachment is not attached, or an edit is not a single linear map.
            UnsupportedHostError: If the weights cannot express the edits, or the host cannot merge.
        """
        if self._state != "attached":
            raise VldebiasError(
                f"{self.host.name}: cannot merge an attachment that is {self._state}; call"
                " vldebias.debias again, and merge the attachment that it returns"
            )
        self._merge()
        self.host.forget()
        self._release("merged")
        _MERGED.update(self.host.exclusive_modules)

    def warn_once(self, message: str) -> None:
        """Issue a warning, unless this attachment has already issued it."""
        if message not in self._warned:
            self._warned.add(message)
            warn(f"{self.host.name}: {message}")

    def _release(self, state: str) -> None:
        # At the end of a `with` block, remove() or merge() may already have been called.
        if self._state == "attached":
            self._uninstall()
            for hook in self._watch_hooks:
                hook.remove()
            self._state = state
            _ATTACHED.discard(self)
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
        """Return an HTML table for notebooks, with the state and the last sampled values."""
        facts: list[tuple[str, object]] = [
            ("attached to", self.host.name),
            ("attribute", self.label or "projection"),
            ("state", self.state),
            ("strength", self._strength),
        ]
        return html_table(repr(self), ("what", "value"), facts + self._facts())


def mark_merged(models: Iterable[object], note: str) -> None:
    """Record in the models' configs that their weights contain an edit.

    Args:
        models: the changed models.
        note: a description of the edit.
    """
    for model in models:
        # diffusers saves only registered entries; transformers saves all attributes of its config.
        register = getattr(model, "register_to_config", None)
        if register is not None:
            register(**{_MARKER: note})
        elif hasattr(model, "config"):
            setattr(model.config, _MARKER, note)


# ---- a host's attachments


def attachment_of(host: object) -> Attachment | None:
    """Return the current attachment of a model or pipeline, or None.

    See also docs/how-to/serve-a-pipeline.md.

    Args:
        host: the model or pipeline, of any class, because custom hosts wrap any object.

    >>> import vldebias
    >>> loaded = vldebias.load_host("miniature")
    >>> attachment = vldebias.debias(
    ...     loaded.host, "gender", method="cali", tokenizer=loaded.tokenizer
    ... )
    >>> attachment_of(loaded.host) is attachment
    True
    >>> attachment.remove()
    >>> attachment_of(loaded.host) is None
    True
    """
    if isinstance(host, str):
        raise InvalidInputError(
            f"host: got the name {host!r}; expected the model or pipeline that has an attachment"
        )
    if isinstance(host, Loaded):
        host = host.host
    for attachment in list(_ATTACHED):
        if any(module is host for module in attachment.host.exclusive_modules):
            return attachment
    return None


def refuse_second(host: Attachable) -> None:
    """Reject a host to which nothing can currently be attached.

    Raises:
        AlreadyAttachedError: If something is already attached, or was merged into the weights.
        UnsupportedHostError: If the model is compiled.
    """
    for model in host.exclusive_modules:
        parts = model.modules() if isinstance(model, nn.Module) else ()
        if any(part._compiled_call_impl is not None for part in parts):
            raise UnsupportedHostError(
                f"{host.name}: the model was compiled in place, and compiled code may ignore an"
                " attachment. Attach to an uncompiled model, or attach, call .merge() and then"
                " compile"
            )
    # The weights may contain a projection that was merged in this process or into the checkpoint.
    models = list(host.exclusive_modules)
    for model in host.exclusive_modules:
        # For pipelines, the note is stored in the denoiser's config.
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
            f"{host.name}: its weights already contain a merged projection{note}. Load the"
            " original checkpoint, and pass a list of prompt sets to debias() to handle several"
            " attributes jointly"
        )
    if not _conflicting(host):
        return
    # A pipeline and its attachment reference each other, so discarded pipelines survive until
    # garbage collection.
    gc.collect()
    conflicting = _conflicting(host)
    if conflicting:
        raise AlreadyAttachedError(
            f"{host.name} already has {conflicting[0]!r} attached; call .remove() on it first"
            " (vldebias.attachment_of(model) returns it), or pass a list of prompt sets to debias()"
            " to handle several attributes jointly"
        )


def _conflicting(host: Attachable) -> list[Attachment]:
    """Return the attachments that would conflict with a new attachment to this host.

    Two attachments conflict if one needs exclusive use of a module that the other also needs.
    Sharing a module is not in itself a conflict.
    """
    exclusive = {id(module) for module in host.exclusive_modules}
    occupied = exclusive.union(id(module) for module in host.shared_modules)
    conflicting = []
    for attachment in list(_ATTACHED):
        their_exclusive = [id(module) for module in attachment.host.exclusive_modules]
        their_shared = [id(module) for module in attachment.host.shared_modules]
        if occupied.intersection(their_exclusive) or exclusive.intersection(their_shared):
            conflicting.append(attachment)
    return conflicting


def _watch(module: nn.Module, _: object) -> None:
    """Warn if anything but the attached pipeline or a fit calls a shared text encoder."""
    if torch.compiler.is_compiling() or INSIDE.get():
        return
    for attachment in list(_ATTACHED):
        is_shared = any(module is part for part in attachment.host.shared_modules)
        if is_shared and attachment.acts:
            attachment.warn_once(
                "its text encoder was called outside this pipeline's encode_prompt, by another"
                " pipeline that shares it or by your own code, so the edit does not apply there."
                f" To edit the other pipeline, call vldebias.debias(other, {attachment.reattach});"
                " to silence this, call the encoder inside `with attachment.disabled():`"
            )
