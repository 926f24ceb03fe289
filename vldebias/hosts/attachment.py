"""Put edits on a host, take them off without a trace, pause them, choose among them call by call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from copy import deepcopy
from dataclasses import replace
from functools import partial, wraps
from types import TracebackType
from typing import Any, ClassVar, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from vldebias.edit import Choice, Edit, Rows
from vldebias.errors import AlreadyAttachedError, InvalidInputError, UnsupportedHostError, VldebiasError, warn
from vldebias.hosts.attached_edits import AttachedEdits, Gate
from vldebias.hosts.base import Host, Texts
from vldebias.hosts.draws import Call, Calls
from vldebias.hosts.fingerprint import Adapters
from vldebias.hosts.following import is_followed, unfollow
from vldebias.hosts.neighbours import is_called, let_draw_without, released_with, watch
from vldebias.hosts.seam import Installed
from vldebias.hosts.side import IMAGE
from vldebias.hosts.using import DEFAULT, NONE, checked_method, checked_strength, use_of

# Object -> attachments that occupy it alone, and attachments that share it. Weak on both sides: an attachment knows its
# host, so a strong reference from here would keep the host forever. What keeps an attachment alive is the host itself,
# whose hook calls it.
_EXCLUSIVE: WeakKeyDictionary[object, WeakSet[Attachment]] = WeakKeyDictionary()
_SHARED: WeakKeyDictionary[object, WeakSet[Attachment]] = WeakKeyDictionary()

_MERGED: WeakSet[object] = WeakSet()

P = ParamSpec("P")
R = TypeVar("R")


def attachment_of(host: object) -> Attachment | None:
    """The attachment that a model or pipeline carries now, or None."""
    return next(iter(_EXCLUSIVE.get(host, ())), None)


def attachments() -> list[Attachment]:
    """All attachments that stand now, on any model or pipeline that is still in use."""
    return list(dict.fromkeys(one for held in list(_EXCLUSIVE.values()) for one in held))


class Attachment:
    """Edits on a host. `remove()` restores it without a trace; `with` does so at the end of the block.

    Three states: attached, disabled (inside `with attachment.disabled():`, outputs as without), removed.
    `strength` in [0, 1] can be set at any time; 0 is bit-identical to no attachment.
    `projections` maps the role of each changed tensor ("joint", "sequence", "pooled", ...) to its edit.

    One attachment serves many: `add` gives it further edits by name, and `using` says for the calls of one thread or
    task which of them acts, and how strongly, for a whole call or prompt by prompt.
    """

    host_of: ClassVar[Callable[..., Host]]
    """`vldebias.hosts.resolve`, which stands above this module."""

    def __init__(
        self,
        host: Host,
        projections: Mapping[str, Edit],
        *,
        strength: float = 1.0,
        gate: Gate | None = None,
        fit_role: Callable[[str], Edit] | None = None,
        label: str = "",
    ) -> None:
        refuse_second(host)
        self._methods = {DEFAULT: AttachedEdits(dict(projections), gate, fit_role, label)}
        self._strength = checked_strength(strength)
        self._host = host
        self._key = object()
        self._calls = Calls()
        self._state = "attached"
        host.forget()  # weights may change from here on
        self._adapters = Adapters(host.text_modules(), self.root)
        self._adapters.changed()  # from those of now on
        self._uninstall = host.install(self.apply)
        self._watches = watch(self, host.shared_modules)
        self._claim()

    def _claim(self) -> None:
        for registry, objects in ((_EXCLUSIVE, self._host.exclusive_modules), (_SHARED, self._host.shared_modules)):
            for occupied in objects:
                registry.setdefault(occupied, WeakSet()).add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Attachment:
        """A deep copy of the whole host has an attachment of its own, with the settings of this one.

        What is copied without it, a part of the host or the attachment itself, goes on with this one.
        """
        if id(self.root) not in memo or not isinstance(self._uninstall, Installed):
            return self
        twin = memo[id(self)] = object.__new__(type(self))
        vars(twin).update(vars(self), _key=object(), _calls=Calls(self.seed))
        twin._methods = {name: replace(placed, edits=dict(placed.edits)) for name, placed in self._methods.items()}
        twin._host = deepcopy(self._host, memo)
        twin._adapters = Adapters(deepcopy(self._adapters.modules, memo), twin.root)
        twin._uninstall, twin._watches = deepcopy(self._uninstall, memo), deepcopy(self._watches, memo)
        released_with(twin, twin._watches)
        twin._claim()
        return twin

    @property
    def root(self) -> object:
        """The model or pipeline."""
        return next(iter(self._host.exclusive_modules), None)

    @property
    def acts(self) -> bool:
        """False where the calls of this thread or task are given nothing: removed, paused, at strength 0."""
        use = use_of(self._key)
        strength = self._strength if use.strength is None else use.strength
        return self.state == "attached" and use.method != NONE and bool(strength)

    @property
    def line(self) -> str:
        """What attaches the same to another pipeline that shares the modules."""
        usual = {"keep_stated": True, "negative": False, "strength": 1.0, "steps": None}
        others = [f", {name}={self.settings[name]!r}" for name in usual if self.settings[name] != usual[name]]
        return f"vldebias.debias(other, attachment.projections{''.join(others)})"

    @property
    def settings(self) -> dict[str, Any]:
        """What `debias` takes beside the edits to attach the same: strength, keep_stated, negative, steps."""
        negative = bool(getattr(self._host, "negative", False))
        kept = self._methods[DEFAULT].gate is not None
        steps = self._host.window
        return {"strength": self._strength, "keep_stated": kept, "negative": negative, "steps": steps}

    @property
    def projections(self) -> dict[str, Edit]:
        """Role -> edit, of what was attached first."""
        return self._methods[DEFAULT].edits

    @property
    def strength(self) -> float:
        """Share of the edit that is applied, in [0, 1], where `using` does not say otherwise.

        Set between two steps of a pipeline, in a callback, it counts from the next step if attached with `steps`.

        Warns:
            VldebiasWarning: set so without `steps`: it counts from the next call.
        """
        return self._strength

    @strength.setter
    def strength(self, value: float) -> None:
        self._strength = checked_strength(value)
        if self.state == "attached" and self._host.window is None and is_called(self.root):
            warn(
                f"{self._host.name}: strength was set while it draws, and counts from its next call; to change it from "
                "step to step attach with steps=(0, 1)"
            )

    # ---- other pipelines around the same encoders --------------------------------------------------------------

    def carry_to(self, other: Any) -> Attachment:
        """Attach the same to another model or pipeline, with all methods and settings; it has a life of its own.

        For what is made around the same modules: `from_pipe`, `Pipeline(**pipe.components)`. Those of
        `vldebias.debias(..., follow=True)` are carried over when they are made.

        Raises:
            AlreadyAttachedError: it carries one. ProjectionMismatchError: its encoders are others.
            UnsupportedHostError: it is not known. VldebiasError: this attachment is removed or merged.
        """
        if self._state != "attached":
            raise VldebiasError(f"{self._host.name}: cannot carry over an attachment that is {self._state}")
        tokenizer = getattr(self._host, "tokenizer", None)
        host = Attachment.host_of(other, tokenizer=tokenizer, negative=self.settings["negative"])
        host = host if self._host.window is None else host.within(self._host.window)
        if not self._same_spaces(host):
            for role, edit in self.projections.items():
                host.check(role, edit)
        first = self._methods[DEFAULT]
        edits = {role: edit for role, edit in self.projections.items() if role in host.roles}
        fit_role = first.fit_role if self._same_spaces(host) else None
        twin = Attachment(host, edits, strength=self._strength, gate=first.gate, fit_role=fit_role, label=first.label)
        twin._methods |= {
            name: replace(one, edits=dict(one.edits)) for name, one in self._methods.items() if name != DEFAULT
        }
        twin.seed = self.seed
        return twin

    def shares_with(self, other: Any) -> bool:
        """Is one of the shared modules a part of that pipeline, which carries nothing yet?"""
        parts = list(vars(other).values())
        return attachment_of(other) is None and any(one is part for one in self._host.shared_modules for part in parts)

    def _same_spaces(self, host: Host) -> bool:
        """The same modules, read in the same way: no need to compare weights, which takes a call of the encoders."""
        mine, theirs = self._host.shared_modules, host.shared_modules
        same = len(mine) == len(theirs) > 0 and all(a is b for a, b in zip(mine, theirs, strict=True))
        return (
            same
            and host.roles == self._host.roles
            and all(host.space(role) == self._host.space(role) for role in host.roles)
        )

    # ---- several methods, call by call -----------------------------------------------------------------------

    @property
    def methods(self) -> tuple[str, ...]:
        """Names that `using` takes: "default", those of `add`, and "none"."""
        return (*self._methods, NONE)

    def add(self, name: str, edits: Edit | Mapping[str, Edit], *, keep_stated: bool = True) -> None:
        """Attach further edits under a name; they act where `using(method=name)` asks for them.

        Args:
            name: not taken yet.
            edits: as `debias` takes fitted ones: `vldebias.fit_projections(host, "race")`, or what `load_edit` gives.
            keep_stated: leave prompts alone that name an attribute word of theirs.

        Raises:
            InvalidInputError: the name is taken or none. ProjectionMismatchError: they belong to another host.
            VldebiasError: the attachment is removed or merged.
        """
        if self._state != "attached":
            raise VldebiasError(f"{self._host.name}: cannot add to an attachment that is {self._state}")
        if not isinstance(name, str) or not name or name in self.methods:
            raise InvalidInputError(f"add: got the name {name!r}; expected one beside {', '.join(self.methods)}")
        self._methods[name] = AttachedEdits.on(self._host, edits, keep_stated)

    @contextmanager
    def using(
        self,
        *,
        strength: float | Sequence[float] | None = None,
        method: str | Sequence[str] | None = None,
    ) -> Iterator[Attachment]:
        """Inside the block, in this thread or task of asyncio alone, by another method or strength::

            attachment.add("race", vldebias.fit_projections(pipe, "race"))
            with attachment.using(method="race", strength=0.5):
                pipe("A photo of a nurse.")
            with attachment.using(method=["default", "race", "none"]):
                pipe(["A photo of a nurse.", "A photo of a chef.", "A photo of a dog."])

        Args:
            strength: in [0, 1]; one, or one per prompt of every call inside. Default: as it is outside.
            method: of `methods`; one, or one per prompt of every call inside. Default: as it is outside.

        Raises:
            InvalidInputError: an unknown method, a strength outside [0, 1]; in a call, another number of prompts.
        """
        known = tuple(self._methods)
        if method is not None:
            one = isinstance(method, str)
            method = checked_method(method, known) if one else tuple(checked_method(m, known) for m in method)
        if strength is not None:
            each: Any = strength.tolist() if isinstance(strength, Tensor) else strength
            many = isinstance(each, Sequence) and not isinstance(each, str)
            strength = tuple(map(checked_strength, each)) if many else checked_strength(each)
        with use_of(self._key).changed(strength=strength, method=method).hold(self._key):
            yield self

    def bind(self, function: Callable[P, R]) -> Callable[P, R]:
        """`function`, with what this thread or task asks for now, wherever it is called.

        Bare threads and executors begin without what `using`, `disabled` and `seeds` have set::

            with attachment.using(strength=0.5):
                images = executor.submit(attachment.bind(pipe), "A photo of a nurse.")

        It may be called many times, by many threads at once; what it sets stays its own.
        """
        context = copy_context()

        @wraps(function, updated=())
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            return context.copy().run(function, *args, **kwargs)

        return bound

    @property
    def choices(self) -> dict[str, Choice]:
        """Role -> what "auto" chose for it and why; empty where nothing was to be chosen."""
        return {role: e.provenance.choice for role, e in self.projections.items() if e.provenance.choice is not None}

    @property
    def choice(self) -> Choice | None:
        """What "auto" chose for the host's first role and why; None where nothing was to be chosen."""
        return next(iter(self.choices.values()), None)

    @property
    def state(self) -> str:
        """ "attached", "disabled", "removed" or "merged"."""
        return "disabled" if self._state == "attached" and use_of(self._key).paused else self._state

    def apply(self, role: str, embeddings: Tensor, texts: Texts | None = None) -> Tensor:
        """`embeddings` (b, ..., d) changed as `role`, except for the rows whose text states its attribute.

        Public for embeddings made elsewhere (a prompt-weighting library, a pipeline that is not listed).

        Raises:
            InvalidInputError: no edit for the role, texts that do not fit the rows, seeds of another number of images,
                or an edit that samples and was not given the texts of these rows.
        """
        use = use_of(self._key)
        if self._state != "attached" or use.paused or not len(embeddings):
            return embeddings
        # Step by step, strength is that of the step: what is edited at 0 can then be made stronger at another.
        strength = self._strength or (1.0 if self._host.window else 0.0)
        groups = use.groups(strength, len(embeddings), texts)
        if not groups:
            return embeddings
        if self._adapters.changed():
            warn(
                f"{self._host.name}: the adapters (LoRA) of the text encoder are others than when the edit was "
                "attached, and they change what it reads. Fit again with them: attachment.remove(), then "
                "vldebias.debias(host, prompts)"
            )
        acting = [(self._methods[name], strength, at) for name, strength, at in groups]
        read = role != IMAGE and any(one.gate is not None or one.reader is not None for one, _, _ in acting)
        rows = self._known(role, self._by_row(texts(), embeddings), acting) if read and texts is not None else None
        changed = embeddings
        for one, strength, at in acting:
            if at is None:
                return one(self._host, role, embeddings, strength, rows)
            index = torch.tensor(at, device=embeddings.device)
            some = None if rows is None else rows.at(at)
            changed = changed.index_copy(
                0, index, one(self._host, role, embeddings.index_select(0, index), strength, some)
            )
        return changed

    def stated(self, texts: Sequence[str]) -> list[bool]:
        """For each prompt: does it state its attribute, so that it is left alone?"""
        return self._methods[DEFAULT].stated(texts)

    def _by_row(self, prompts: Sequence[str], embeddings: Tensor) -> list[str]:
        """The prompt of each row: images of one prompt stand together."""
        if not prompts or len(embeddings) % len(prompts):
            raise InvalidInputError(
                f"{self._host.name}: {len(embeddings)} embeddings for {len(prompts)} prompts; expected a multiple"
            )
        return [prompt for prompt in prompts for _ in range(len(embeddings) // len(prompts))]

    def _read(self, role: str, prompts: Sequence[str]) -> Tensor:
        """Rows of other prompts, read anew: what is attached stays while weights may change."""
        read = self._host.read(list(dict.fromkeys(prompts)), role)
        return torch.stack([read[role, prompt] for prompt in prompts])

    def _states(self, role: str, prompts: Sequence[str]) -> Tensor:
        """All states of other prompts, (n, tokens, d)."""
        each = list(dict.fromkeys(prompts))
        states, _ = self._host.sequences(each, role)
        return states[[each.index(prompt) for prompt in prompts]]

    # ---- edits that sample -----------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """What edits that sample draw is decided by this seed, call by call; setting it begins anew."""
        return self._calls.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._calls.seed = seed

    @property
    def drawn(self) -> list[str | None]:
        """The value that each image of the last call was given, such as "female"; None where its prompt states one.

        Of several attributes a combination, such as "female/dark"; "dark" where the prompt keeps the gender it states.

        Of this thread or task where it has called, else of any.
        """
        return list(self._calls.last.drawn)

    @property
    def seeds(self) -> tuple[int, ...] | None:
        """Seeds of the images of the next call in this thread or task, one per image; a call uses them up.

        An edit that samples then gives an image its value by seed and prompt, whatever else the call holds. Without
        them the values are drawn evenly over the images of the call, by `seed`.
        """
        return self._calls.now.seeds

    @seeds.setter
    def seeds(self, seeds: Sequence[int]) -> None:
        self._calls.tell(seeds)

    def generators(self, seeds: Sequence[int], device: str | torch.device = "cpu") -> list[torch.Generator]:
        """Generators with these seeds, one per image, for the call's `generator=`; it sets `seeds` as well."""
        self.seeds = seeds
        return [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def values(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str | None]:
        """The attribute value that each image is given, such as "female"; None where the prompt states its own.

        prompts, seeds: one of each per image.

        Raises:
            InvalidInputError: what is attached does not sample.
        """
        placed = self._methods[DEFAULT]
        if placed.sampler is None:
            raise InvalidInputError(f"{self._host.name}: nothing that samples is attached; attach vldebias.steer(...)")
        drawn = placed.draw(Rows(tuple(prompts), tuple(seeds)))
        return [None if kept else value for kept, value in zip(self.stated(prompts), drawn, strict=True)]

    def _known(
        self, role: str, prompts: Sequence[str], acting: Sequence[tuple[AttachedEdits, float, list[int] | None]]
    ) -> Rows:
        """What the edits that act may look at, row by row; where some sample, with what decides about each draw."""
        states = partial(self._states, role) if self._host.generative else None
        begun = self._host.first_step_similarity if self._host.generative else None
        guide = self._host.guide if self._host.guides else None
        rows = Rows(tuple(prompts), embed=partial(self._read, role), states=states, begun=begun, guide=guide)
        drawing = [(one, range(len(prompts)) if at is None else at) for one, _, at in acting if one.sampler]
        if not drawing:
            return rows
        kept = [True] * len(prompts)
        for one, places in drawing:
            for i, stated in zip(places, one.stated(rows.at(places).texts), strict=True):
                kept[i] = stated

        def given(call: Call) -> Rows:
            return replace(rows, seeds=call.seeds, numbers=call.numbers)

        def values(call: Call) -> list[str]:
            drawn = [""] * len(prompts)
            for one, places in drawing:
                for i, value in zip(places, one.draw(given(call).at(places)), strict=True):
                    drawn[i] = value
            return drawn

        try:
            return given(self._calls.take(role, rows.texts, kept, values))
        except InvalidInputError as error:
            raise InvalidInputError(f"{self._host.name}: {error}") from None

    # ---- states ----------------------------------------------------------------------------------------------

    @contextmanager
    def disabled(self) -> Iterator[Attachment]:
        """Pause inside the block, in this thread alone; outputs are those of the bare host."""
        with use_of(self._key).changed(paused=True).hold(self._key):
            yield self

    def remove(self) -> None:
        """Take everything off. Removing twice is harmless; after `merge()` there is nothing left to remove."""
        if self._state == "merged":
            raise VldebiasError(
                f"{self._host.name}: the projection is part of the weights since merge(); reload the checkpoint"
            )
        if self._state == "attached":
            self._release("removed")

    def merge(self) -> None:
        """Fold the projections into the host's weights at the present strength and take the hooks off.

        A checkpoint saved afterwards works without this package. What weights cannot hold is lost: `keep_stated`
        (stated prompts are projected too), the negative prompt's exemption, `strength`, and removal.

        Under guidance the unconditional branch is edited too, so that pictures differ from those that were drawn with
        the attachment: they are those of `debias(pipe, ..., negative=True)`.

        Warns:
            VldebiasWarning: of a pipeline with guidance, attached with negative=False: how far its empty prompt moves.
        """
        if self._state != "attached":
            raise VldebiasError(f"{self._host.name}: cannot merge an attachment that is {self._state}")
        if self._host.window is not None:
            raise UnsupportedHostError(
                f"{self._host.name}: weights are the same at every step, and this edit is for steps="
                f"{self._host.window}; keep it attached, or attach it without steps= and merge that"
            )
        self._host.merge({role: edit.folded() for role, edit in self.projections.items()}, self._strength)
        methods = ", ".join(dict.fromkeys(edit.method for edit in self.projections.values()))
        self._host.mark(f"{self._methods[DEFAULT].label or 'a projection'} ({methods}) at strength {self._strength:g}")
        self._release("merged")
        for occupied in self._host.exclusive_modules:
            _MERGED.add(occupied)

    def _release(self, state: str) -> None:
        self._uninstall()
        for hook in self._watches:
            hook.remove()
        if self._watches:
            let_draw_without(self.root)
        if is_followed(self):
            unfollow(self)
        self._state = state
        for registry, objects in ((_EXCLUSIVE, self._host.exclusive_modules), (_SHARED, self._host.shared_modules)):
            for occupied in objects:
                registry[occupied].discard(self)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state == "attached":
            self.remove()

    def __repr__(self) -> str:
        roles = ", ".join(f"{role}: {self._described(role)}" for role in self.projections)
        first = self._methods[DEFAULT]
        gate = "stated kept" if first.gate is not None else "stated not kept"
        parts = [self._host.name, first.label or "projection", roles, f"strength={self._strength}", gate, self.state]
        if self._host.window is not None:
            parts.insert(-1, f"steps={self._host.window}")
        if len(self._methods) > 1:
            parts.insert(-1, f"methods {' '.join(self._methods)}")
        return f"Attachment({', '.join(parts)})"

    def _described(self, role: str) -> str:
        edit = self.projections[role]
        chosen = "auto: " if edit.provenance.choice is not None and not edit.method.startswith("auto") else ""
        rank = f" rank {edit.rank}/{edit.dim}" if hasattr(edit, "rank") else ""
        return f"{chosen}{edit.method} lam={edit.lam}{rank}"


def refuse_second(host: Host) -> None:
    """Raise AlreadyAttachedError where a projection acts on the host already: two would be another method.

    `debias` asks before it fits, which takes long on a large pipeline; `Attachment` asks for itself.
    """
    note = host.marked()
    if note is not None or any(occupied in _MERGED for occupied in host.exclusive_modules):
        raise AlreadyAttachedError(
            f"{host.name}: its weights hold a projection since merge(){f': {note}' if note else ''}. Projecting twice "
            "is another method: load the checkpoint as it was before, and pass a list of prompt sets to debias() to "
            "solve several attributes jointly"
        )
    if _standing(host):
        gc.collect()  # a pipeline and its attachment hold each other: dropped together, they stay until then
    standing = _standing(host)
    if standing:
        raise AlreadyAttachedError(
            f"{host.name} already carries {standing[0]!r}. Projecting twice is another method (P P is not P): call "
            ".remove() on it first, or pass a list of prompt sets to debias() to solve several attributes jointly"
        )


def _standing(host: Host) -> list[Attachment]:
    """Attachments that exclude another one on this host."""
    standing = [a for o in (*host.exclusive_modules, *host.shared_modules) for a in _EXCLUSIVE.get(o, ())]
    return standing + [a for o in host.exclusive_modules for a in _SHARED.get(o, ())]
