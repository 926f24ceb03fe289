"""Find the host of a model, attach edits to it, and pause, scale, merge or remove them."""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakSet, finalize

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    UnsupportedHostError,
    VldebiasError,
    warn,
)
from vldebias.hosts.adapters import Adapters
from vldebias.hosts.custom import TextTable
from vldebias.hosts.host import BARE, IMAGE, TOKENIZING, Host, during
from vldebias.hosts.records import KEPT, CallLog, CallRecord, raise_failures
from vldebias.hosts.seeds import Seeds, indices_of
from vldebias.projection.edit import Edit
from vldebias.projection.projection import CalibratedProjection
from vldebias.prompts import StatedWords
from vldebias.utils.markup import html_table
from vldebias.utils.registry import Registry
from vldebias.wording.prompt_file import checked_texts

# Weak: an attachment knows its host, so a strong reference from here would keep the host forever.
# What keeps an attachment alive is the host itself, whose hook calls it.
_STANDING: WeakSet[Attachment] = WeakSet()
# Weights do not show that they were merged.
_MERGED: WeakSet[object] = WeakSet()
# By id, and for one thread or task: a server may draw with and without at once.
_PAUSED: ContextVar[frozenset[int]] = ContextVar("vldebias_paused", default=frozenset())
_MARKER = "_vldebias_merged"  # in the config of a model, which is saved with it
NEXT = " | "  # between the texts of an image in a record
INSIDE: ContextVar[bool] = ContextVar("vldebias_inside", default=False)
"""True while an attached pipeline calls its own text encoders."""
GIVEN: ContextVar[tuple[Attachment, list[Any]] | None] = ContextVar("vldebias_given", default=None)
"""An attachment whose images get given values in this thread or task, and these values."""
_ORIGINALS: ContextVar[Mapping[int, list[str]]] = ContextVar(
    "vldebias_originals", default=MappingProxyType({})
)
"""Attachment, by id -> what users wrote, where the calls in this thread or task get texts that were
rewritten."""


# ---- from a model to its host


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
    host: Any, *, tokenizer: Any = None, negative: bool = False, side: str | None = None
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


def attachment_of(host: object) -> Attachment | None:
    """Return the attachment that a model or pipeline carries now, or None."""
    for attachment in list(_STANDING):
        if any(module is host for module in attachment.host.exclusive_modules):
            return attachment
    return None


def refuse_second(host: Host) -> None:
    """Raise AlreadyAttachedError where an edit is attached already, UnsupportedHostError for
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
    # A pipeline and its attachment hold each other: dropped together, they stay until collected.
    gc.collect()
    standing = _standing_on(host)
    if standing:
        raise AlreadyAttachedError(
            f"{host.name} already carries {standing[0]!r}: call .remove() on it first, or pass a"
            " list of prompt sets to debias() to handle several attributes jointly"
        )


def _refuse_merged(host: Host) -> None:
    """Raise AlreadyAttachedError where the weights hold a projection, in this process or since the
    checkpoint was saved."""
    models = list(host.exclusive_modules)
    if host.rewrites:
        # Of a pipeline the denoiser is changed, and its config has the note.
        models += getattr(models[0], "components", {}).values()
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
        theirs_alone = [id(module) for module in attachment.host.exclusive_modules]
        theirs_shared = [id(module) for module in attachment.host.shared_modules]
        if occupied.intersection(theirs_alone) or exclusive.intersection(theirs_shared):
            standing.append(attachment)
    return standing


# ---- the attachment


class Attachment:
    """Control the edits, or the rewriting of prompts, on a host. `remove()` restores it without a
    trace.

    Three states: attached, disabled (inside `with attachment.disabled():`, outputs as without),
    removed. In a with-statement it is removed at the end of the block.

    Attributes:
        host: the host that it acts on.
        projections: role of each changed tensor ("joint", "sequence", "pooled", ...) -> its edit;
            empty where prompts are rewritten.
        label: the prompt sets, for messages.
        balancer: what rewrites prompts in place of edits, or None.
        log: records of the calls, where values are dealt to images; `last_call`, `calls`,
            `sampled`, `reasons` and `people` read it.
    """

    _strength: float

    def __init__(
        self,
        host: Host,
        projections: Mapping[str, Edit],
        *,
        strength: float = 1.0,
        stated_words: Sequence[str] = (),
        label: str = "",
        balancer: Any = None,
        log: CallLog | None = None,
    ) -> None:
        # First of all: a refusal leaves the host as it was.
        refuse_second(host)
        if balancer is not None and not host.rewrites:
            raise UnsupportedHostError(
                f"{host.name}: balanced prompts are for pipelines of diffusers; use another method,"
                " as 'difference'"
            )
        self.host = host
        self.projections = dict(projections)
        self.balancer = balancer
        reads_texts = host.generative or host.roles != (IMAGE,)  # an image states nothing
        self._gate = None
        if stated_words and reads_texts:
            self._gate = StatedWords(stated_words)
        self.label = label
        self._state = "attached"
        self._passes: WeakSet[Attachment] = WeakSet()
        self._follows = False
        self._dealt = deque[str](maxlen=KEPT)  # of its records, the ids
        self.strength = strength
        self.log = log or CallLog()
        host.forget()  # weights may have changed since it was made
        self._warned = set[str]()
        self._adapters = Adapters(host.text_modules)
        self._uninstall = host.install(self)
        self._watches = list[RemovableHandle]()
        for encoder in host.shared_modules:
            if isinstance(encoder, nn.Module):
                hook = encoder.register_forward_pre_hook(_watch)
                self._watches.append(hook)
                # The encoder may outlive an attachment that is dropped without remove().
                finalize(self, hook.remove).atexit = False
        _STANDING.add(self)

    @property
    def strength(self) -> float:
        """Return the share of the edit that is applied, in [0, 1]; where prompts are rewritten, of
        the images."""
        return self._strength

    @strength.setter
    def strength(self, value: float) -> None:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not 0 <= float(value) <= 1:
            raise InvalidInputError(f"strength: expected a number in [0, 1], got {value!r}")
        self._strength = float(value)
        for follower in self._passes:
            follower.strength = value

    @property
    def seed(self) -> int | None:
        """Return the seed by which values are sampled, drawn at random or set; None for edits.

        With the same seed the same calls give the same values. Setting it forgets all calls.
        """
        return None if self.balancer is None else self.balancer.seed

    @seed.setter
    def seed(self, value: int) -> None:
        if self.balancer is None:
            raise InvalidInputError(f"{self.host.name}: an edit samples nothing, so it has no seed")
        self.balancer.restart(value)

    @property
    def follow_seeds(self) -> bool:
        """Tell whether the values of a call that passes generators follow from their seeds, and not
        from the calls before; see `debias`."""
        return self.log.follow_seeds

    @follow_seeds.setter
    def follow_seeds(self, value: bool) -> None:
        self.log.follow_seeds = value

    @property
    def last_call(self) -> CallRecord | None:
        """Return what the last call in this thread or task was given; None without one.

        A call in a thread of its own, as by `asyncio.to_thread`, is read in that thread.
        """
        record = self.log.last
        if record is None and not self.log.is_known:
            self.warn_once(
                "no call was made in this thread or task, but others made some. Read what a call"
                " was given in the function that calls the pipeline, or take it from"
                " attachment.calls or debias(..., on_call=function)"
            )
        return record

    @property
    def calls(self) -> list[CallRecord]:
        """Return the records of the last 1,000 calls of all threads and tasks, the latest at the
        end."""
        return self.log.records

    @property
    def sampled(self) -> list[Any]:
        """Return the value of each image of the last call in this thread or task, None where it
        was left alone; empty without a call."""
        record = self.last_call
        return [] if record is None else list(record.values)

    @property
    def reasons(self) -> list[Any]:
        """Return why each image of the last call in this thread or task was left alone
        (`vldebias.balance_prompts`), None where it was not."""
        record = self.last_call
        return [] if record is None else list(record.reasons)

    @property
    def people(self) -> list[Any]:
        """Return for each image of the last call in this thread or task its persons who were given
        a value, as (noun, value)."""
        record = self.last_call
        return [] if record is None else list(record.people)

    @property
    def state(self) -> str:
        """Return "attached", "disabled", "removed" or "merged"."""
        if self._state == "attached" and id(self) in _PAUSED.get():
            return "disabled"
        return self._state

    @property
    def acts(self) -> bool:
        """Tell whether the attachment changes anything now, in this thread or task."""
        return self.state == "attached" and self._strength > 0 and not BARE.get()

    @contextmanager
    def disabled(self) -> Iterator[Attachment]:
        """Pause inside the block, in this thread or task alone; outputs are those of the bare
        host."""
        paused = {id(self), *map(id, self._passes)}
        with during(_PAUSED, _PAUSED.get() | paused):
            yield self

    def follow(self, first: Attachment) -> None:
        """Follow another attachment as a later pass over its pictures, such as a refiner: the
        same prompts get the same values. It is removed, paused and scaled with it."""
        self._follows = True
        first._passes.add(self)

    @contextmanager
    def giving(self, values: Sequence[Any]) -> Iterator[Attachment]:
        """Give the images of the calls inside the block these values, in place of dealt ones; for
        attachments in cross-attention.

        values: one for each image of a call, None to leave it alone; of several sets tuples.

        Raises:
            InvalidInputError: prompts are rewritten, or nothing is dealt.
        """
        if self.balancer is None or not self.projections:
            raise InvalidInputError(
                f"{self.host.name}: values are given to images in cross-attention alone; write them"
                ' into the prompt, or attach method="cross-attention"'
            )
        with during(GIVEN, (self, list(values))):
            yield self

    @contextmanager
    def originals(self, prompts: str | Sequence[str]) -> Iterator[Attachment]:
        """Name the users' original texts, where a language model rewrote them into the prompts of
        the calls inside the block, in this thread or task alone.

        The original decides what is open, and what the rewriter added about the attribute becomes
        the value that is dealt; see `vldebias.balance_prompts`.

        prompts: the originals, one for each prompt of a call. A call with another number of prompts
        raises InvalidInputError.

        Raises:
            InvalidInputError: the attachment writes no values into prompts.
        """
        if self.balancer is None or self.projections:
            raise InvalidInputError(
                f"{self.host.name}: originals are read where values are written into prompts alone;"
                ' attach method="balanced-prompts"'
            )
        texts = list(checked_texts([prompts] if isinstance(prompts, str) else prompts))
        with during(_ORIGINALS, {**_ORIGINALS.get(), id(self): texts}):
            yield self

    def remove(self) -> None:
        """Remove all hooks. A second call is harmless; after `merge()` there is nothing left to
        remove."""
        if self._state == "merged":
            raise VldebiasError(
                f"{self.host.name}: the projection is part of the weights since merge(); reload the"
                " checkpoint"
            )
        self._release("removed")

    def merge(self) -> None:
        """Fold the edits into the host's weights at the present strength and remove the hooks.

        A checkpoint saved afterwards works without this package. Weights cannot tell stated and
        negative prompts apart: all are edited, as by `debias(pipe, ..., negative=True,
        keep_stated=False)`.
        """
        if self._state != "attached":
            raise VldebiasError(
                f"{self.host.name}: cannot merge an attachment that is {self._state}"
            )
        if self.balancer is not None and self.projections:
            raise UnsupportedHostError(
                f"{self.host.name}: every image gets its own value in cross-attention, so weights"
                ' cannot hold it; attach method="cali" and merge that'
            )
        if self.balancer is not None:
            raise UnsupportedHostError(
                f"{self.host.name}: balanced prompts are written before the model reads them, so"
                ' weights cannot hold them; attach method="cali" and merge that'
            )
        # All are looked at before any weight is changed.
        for edit in self.projections.values():
            if not isinstance(edit, CalibratedProjection):
                raise VldebiasError(
                    f"{type(edit).__name__} ({edit.method}) is not one linear map of an embedding,"
                    " so it cannot be merged into weights; keep it attached, or save it and attach"
                    " it after loading"
                )
        changed = self.host.merge(self.projections, self._strength)
        self.host.forget()
        methods = ", ".join(dict.fromkeys(edit.method for edit in self.projections.values()))
        note = f"{self.label or 'a projection'} ({methods}) at strength {self._strength:g}"
        for model in changed or ():
            # diffusers saves what is registered, transformers every attribute of its config.
            if hasattr(model, "register_to_config"):
                model.register_to_config(**{_MARKER: note})
            elif hasattr(model, "config"):
                setattr(model.config, _MARKER, note)
        self._release("merged")
        _MERGED.update(self.host.exclusive_modules)

    def _release(self, state: str) -> None:
        # Called again at the end of a with-block that holds remove() or merge().
        if self._state == "attached":
            self._uninstall()
            for hook in self._watches:
                hook.remove()
            self._state = state
            _STANDING.discard(self)
            for follower in self._passes:
                follower._release(state)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self._release("removed")

    def __repr__(self) -> str:
        changes = [f"{role}: {_described(edit)}" for role, edit in self.projections.items()]
        if self.balancer is not None and not self.projections:
            changes.insert(0, "balanced-prompts")
        # A balancer always keeps what a prompt states.
        keeps_stated = self._gate is not None or self.balancer is not None
        kept = "stated kept" if keeps_stated else "stated not kept"
        parts = [
            self.host.name,
            self.label or "projection",
            *changes,
            f"strength={self._strength}",
            kept,
            self.state,
        ]
        return f"Attachment({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what is attached, and what the last call was given."""
        facts: list[tuple[str, object]] = [
            ("attached to", self.host.name),
            ("prompts", self.label or "projection"),
            ("state", self.state),
            ("strength", self._strength),
        ]
        facts += [(f"edit of {role}", edit.method) for role, edit in self.projections.items()]
        if self.balancer is not None:
            facts.append(("seed", self.seed))
        counts = Counter(str(value) for value in self.sampled if value is not None)
        facts += [(f"last call, {value}", count) for value, count in counts.items()]
        unchanged = self.sampled.count(None)
        if unchanged:
            facts.append(("last call, left alone", unchanged))
        return html_table(repr(self), ("what", "value"), facts)

    def apply(
        self,
        role: str,
        embeddings: Tensor,
        texts: Callable[[], Sequence[str]] | Sequence[str] | None = None,
    ) -> Tensor:
        """Return `embeddings` (b, ..., d) edited as `role`, except the rows whose text states the
        attribute.

        texts: one prompt for each row, or for each group of adjacent rows of equal length; or a
        function that returns them, which is called where an edit or `keep_stated` reads prompts.
        """
        if not self.acts or embeddings.shape[0] == 0:  # `len` would fix the size of a batch
            return embeddings
        edit = self._edit_of(role)
        self._check_adapters()
        if role == IMAGE:
            return edit.image(embeddings, self._strength)
        is_rewording = hasattr(edit, "wordings")
        prompts = list[str]()
        if self._gate is not None or is_rewording:
            prompts = self._prompts_of_rows(texts, len(embeddings))
        stated = self.stated(prompts)
        if stated and all(stated):
            return embeddings
        if is_rewording:
            changed = self.host.reworded(edit, role, embeddings, prompts, self._strength)
        else:
            changed = edit(embeddings, self._strength)
        if not any(stated):
            return changed
        return _where(torch.tensor(stated, device=embeddings.device), embeddings, changed)

    def _prompts_of_rows(
        self, texts: Callable[[], Sequence[str]] | Sequence[str] | None, rows: int
    ) -> list[str]:
        """Return one prompt for each row, none without texts; texts: see `apply`."""
        if texts is None:
            return []
        if callable(texts):
            with TOKENIZING:  # texts may be read from token ids
                received = texts()
                prompts = [received] if isinstance(received, str) else list(received)
        else:
            prompts = list(checked_texts([texts] if isinstance(texts, str) else texts))
        if not prompts or rows % len(prompts):
            raise InvalidInputError(
                f"{self.host.name}: {rows} embeddings for {len(prompts)} prompts;"
                " expected a multiple"
            )
        repeats = rows // len(prompts)
        return [prompts[row // repeats] for row in range(rows)]

    def apply_by_ids(
        self,
        role: str,
        embeddings: Tensor,
        ids: Tensor | None,
        stated_rows: Callable[[Tensor], Tensor] | None,
        texts: Callable[[Tensor], Sequence[str]],
    ) -> Tensor:
        """Return `embeddings` (b, d) edited as `role`, as `apply` does, by the token ids of each
        row.

        Args:
            ids: (b, length), or None where the tower was called without any.
            stated_rows: ids -> (b,) whether a row states the attribute, on the device of the ids;
                None where nothing is kept.
            texts: ids -> prompts, for an edit that reads them.
        """
        if not self.acts or embeddings.shape[0] == 0:  # `len` would fix the size of a batch
            return embeddings
        edit = self._edit_of(role)
        if hasattr(edit, "wordings"):
            if ids is None:
                return self.apply(role, embeddings)
            return self.apply(role, embeddings, lambda: texts(ids))
        self._check_adapters()
        changed = edit(embeddings, self._strength)
        if ids is None or stated_rows is None:
            return changed
        stated = stated_rows(ids)
        # The most common case. On a GPU the test would wait, and compiled code cannot branch on it.
        is_at_hand = stated.device.type == "cpu" and not torch.compiler.is_compiling()
        if is_at_hand and not stated.any():
            return changed
        return _where(stated.to(embeddings.device), embeddings, changed)

    @property
    def gate(self) -> StatedWords | None:
        """Return the words whose prompts are left unchanged; None where all are edited."""
        return self._gate

    def _edit_of(self, role: str) -> Edit:
        edit = self.projections.get(role)
        if edit is None:
            raise InvalidInputError(
                f"{self.host.name}: expected a role of {sorted(self.projections)}, got {role!r}"
            )
        return edit

    def _check_adapters(self) -> None:
        """Warn once where the adapters of the text encoders are others than when it was attached.

        Compiled code is compiled again by torch where modules change, and checks nothing itself.
        """
        if torch.compiler.is_compiling() or not self._adapters.changed():
            return
        self.warn_once(
            "the adapters (LoRA) of the text encoder have changed since the edit was attached,"
            " and they change its embeddings. Fit again with them: attachment.remove(), then"
            " vldebias.debias(host, prompts)"
        )

    def stated(self, texts: str | Sequence[str]) -> list[bool]:
        """Tell for each prompt whether it states its attribute, so that it is left unchanged."""
        if isinstance(texts, str):
            texts = [texts]
        if self._gate is None:
            return [False] * len(texts)
        return [bool(self._gate.find(text)) for text in texts]

    def rewrite(
        self, prompts: str | Sequence[str], again: bool = False, seeds: Seeds | None = None
    ) -> list[str]:
        """Return one rewritten prompt per image, as in a call of the pipeline; `sampled` then has
        their values, and `reasons` why some were left alone.

        Use it to balance many calls at once. An attachment of edits returns the prompts unchanged.
        again: `prompts` are other texts of the images of the last call, and get the same values.
        seeds: generators or seeds, one for all images or one for each, which decide the values; see
        `follow_seeds`.
        """
        if isinstance(prompts, str):
            prompts = [prompts]
        written = self.rewrite_texts({"prompt": prompts}, again=again, seeds=seeds)["prompt"]
        raise_failures()
        return written

    def rewrite_texts(
        self,
        texts: Mapping[str, Sequence[str]],
        images_per_prompt: int = 1,
        *,
        again: bool = False,
        read: Mapping[str, Callable[[str], int]] | None = None,
        seeds: Any = None,
        is_encoding: bool = False,
    ) -> dict[str, list[str]]:
        """Return the rewritten texts of a call whose images have several: `prompt`, `prompt_2`.

        All texts of an image get the same value, and any of them may state it.

        Args:
            texts: name -> one text per image. images_per_prompt: how many images in a row are of
                one prompt of the call. again: they are of the images of the last call, and get the
                same values. read: name -> how many characters of a text the encoder reads; a
                subject after them is left alone, as "truncated", and not counted. seeds: see
                `rewrite`; anything else that a pipeline takes as its generator is not read.
                is_encoding: the call generates no images, see `CallRecord`.
        """
        columns = {name: list(column) for name, column in texts.items()}
        if self.state != "attached" or self.balancer is None:
            return columns
        if again or self._follows:
            with_last_values = self._with_last_values(columns, again)
            if with_last_values is not None:
                return with_last_values
        # A call that fails shows no values of the one before it.
        self.log.begin()
        prompts = _joined(columns)
        # At strength 0 nothing is written, and nothing is counted.
        record = CallRecord(
            prompts,
            prompts,
            values=(None,) * len(prompts),
            reasons=("strength",) * len(prompts),
            people=((),) * len(prompts),
            seed=self.seed,
            is_encoding=is_encoding,
            originals=self._originals_of(len(prompts), images_per_prompt),
        )
        if self._strength:
            indices = None
            if self.follow_seeds:
                indices = indices_of(seeds, record.originals or prompts)
            columns, balanced = self._balance(columns, read or {}, indices, record.originals)
            record = replace(
                record,
                written=_joined(columns),
                values=tuple(balanced.values),
                reasons=tuple(balanced.reasons),
                people=tuple(map(tuple, balanced.people)),
                seed=balanced.seed,
                index=None if indices is None else tuple(indices),
            )
            self._dealt.append(record.id)
        self.log.add(record)
        return columns

    def _balance(
        self,
        columns: Mapping[str, list[str]],
        read: Mapping[str, Callable[[str], int]],
        indices: Sequence[int] | None,
        originals: Sequence[str] | None,
    ) -> tuple[dict[str, list[str]], Any]:
        """Write values into what the encoders read of texts; return all texts, and the values and
        reasons of `Balancer.next_texts`. For the arguments see `rewrite_texts`."""
        if not self.projections:  # else the strength is that of the edit
            self.balancer.strength = self._strength
        heads: dict[str, list[str]] = {name: [] for name in columns}
        tails: dict[str, list[str]] = {name: [] for name in columns}
        for name, column in columns.items():
            for text in column:
                end = read[name](text) if name in read else len(text)
                heads[name].append(text[:end])
                tails[name].append(text[end:])
        # Texts of one image that are equal are one text with one subject.
        different = [list(dict.fromkeys(row)) for row in zip(*heads.values(), strict=True)]
        written, balanced = self.balancer.next_texts(different, indices, originals)
        balanced_columns: dict[str, list[str]] = {name: [] for name in columns}
        reasons = []
        for image, reason in enumerate(balanced.reasons):
            new_of_head = dict(zip(different[image], written[image], strict=True))
            for name, column in balanced_columns.items():
                column.append(new_of_head[heads[name][image]] + tails[name][image])
            is_cut = any(column[image] for column in tails.values())
            reasons.append(_reason_of_cut_text(reason) if is_cut else reason)
        if self.projections:  # values are set in cross-attention, and texts stay
            balanced_columns = dict(columns)
        return balanced_columns, replace(balanced, reasons=reasons)

    def _originals_of(self, images: int, images_per_prompt: int) -> tuple[str, ...] | None:
        """Return what the user wrote for each image of a call; None outside of `originals`."""
        texts = _ORIGINALS.get().get(id(self))
        if texts is None:
            return None
        prompts = images // images_per_prompt
        if len(texts) != prompts:
            raise InvalidInputError(
                f"{self.host.name}: got {len(texts)} originals for {prompts} prompts; expected one"
                " for each prompt of the call, in their order"
            )
        originals = list[str]()
        for text in texts:
            originals += [text] * images_per_prompt
        return tuple(originals)

    def _with_last_values(
        self, columns: Mapping[str, list[str]], again: bool
    ) -> dict[str, list[str]] | None:
        """Return further texts of the images of the last call in this thread or task, with its
        values; None where that was not the pass before this one.

        again: they are of these images. Else the prompts tell.
        """
        record = self.log.last
        if not again:
            last_prompts = None
            if record is not None and record.id not in self._dealt:
                # Passes may take different numbers of texts.
                last_prompts = [text.split(NEXT)[0] for text in record.prompts]
            if last_prompts != columns["prompt"]:
                self.warn_once(
                    "no pass before this one was called with the same prompts in this thread or"
                    " task, so new values are dealt. Call all passes of a picture one after the"
                    " other in one function, with the same prompts, one for each image"
                )
                return None
        rewritten = dict(columns)
        if record is None:
            return rewritten
        values_of_images = list[list[Any]]()
        for people in record.people:
            values_of_images.append([value for _, value in people])
        for name, texts in columns.items():
            # Texts of other images than in the last call: no value is known for them.
            if len(texts) == len(record.values):
                written = self.balancer.write(texts, values_of_images, record.originals)
                rewritten[name] = list(written)
        return rewritten

    def warn_once(self, message: str) -> None:
        """Issue a warning the first time that it applies."""
        if message not in self._warned:
            self._warned.add(message)
            warn(f"{self.host.name}: {message}")


def _where(stated: Tensor, embeddings: Tensor, changed: Tensor) -> Tensor:
    """Return changed embeddings (b, ..., d), the original ones in the rows that state the attribute
    (b,)."""
    keep = stated.view(-1, *[1] * (embeddings.ndim - 1))
    return torch.where(keep, embeddings, changed)


def _watch(module: nn.Module, _: Any) -> None:
    """Warn when a shared text encoder is called from outside its attached pipeline, unless it is to
    fit an edit."""
    if torch.compiler.is_compiling() or INSIDE.get():
        return
    for attachment in list(_STANDING):
        is_shared = any(module is part for part in attachment.host.shared_modules)
        if is_shared and attachment.acts:
            edits = "attachment.projections" if attachment.balancer is None else "prompts"
            attachment.warn_once(
                "its text encoder was called outside of this pipeline's encode_prompt, by another"
                " pipeline that shares it or by your own code, so the edit does not apply there."
                f" To apply it there too: vldebias.debias(other, {edits}); to leave it out on"
                " purpose: inside `with attachment.disabled():`"
            )


def _joined(columns: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Return one text for each image, its different texts joined."""
    return tuple(NEXT.join(dict.fromkeys(row)) for row in zip(*columns.values(), strict=True))


def _reason_of_cut_text(reason: Any) -> Any:
    """Return "truncated" where nobody was found in what the encoder reads of a text: the person may
    stand after it."""
    if isinstance(reason, tuple):
        return tuple(map(_reason_of_cut_text, reason))
    if isinstance(reason, str) and reason.startswith("no person"):
        return "truncated"
    return reason


def _described(edit: Edit) -> str:
    """Return an edit in words: its method and rank, or why the default attached none."""
    if edit.side == "denoiser":  # it has neither a lam nor one rank
        return repr(edit)
    choice = edit.provenance.choice
    if choice is not None and edit.method.startswith("default"):
        return f"{edit.method}. {choice.reason}"
    rank = f" rank {edit.rank}/{edit.dim}" if hasattr(edit, "rank") else ""
    decided = "" if choice is None else "default: "
    return f"{decided}{edit.method} lam={edit.lam}{rank}"
