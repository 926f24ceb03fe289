"""Put projections on a host, take them off without a trace, pause them; knows no host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor

from vldebias.errors import AlreadyAttachedError, InvalidInputError, VldebiasError
from vldebias.projection import CalibratedProjection

if TYPE_CHECKING:
    from vldebias.choice import Choice

__all__ = ["Apply", "Attachment", "Claims", "Gate", "Installable", "attachment_of", "refuse_second"]

Texts = Callable[[], Sequence[str]]
"""Gives the text of each prompt of a batch; called only where a gate has to read it."""


class Apply(Protocol):
    """What a host calls at its seam."""

    def __call__(self, role: str, embeddings: Tensor, texts: Texts | None) -> Tensor:
        """`embeddings` (b, ..., d) of `role`, projected; (b) is a multiple of the number of texts."""


class Claims(Protocol):
    """Objects that an attachment occupies: `owned` by it alone, `shared` with attachments on other seams."""

    owned: Sequence[object]
    shared: Sequence[object]


class Installable(Claims, Protocol):
    """The part of a host that an attachment needs (see vldebias.hosts.base.Host)."""

    name: str

    def install(self, apply: Apply) -> Callable[[], None]:
        """Put `apply` at the seam; returns the function that takes it off."""

    def merge(self, projections: Mapping[str, CalibratedProjection], strength: float) -> None:
        """Fold the projections into the weights."""


class Gate(Protocol):
    """Tells which texts state their attribute (vldebias.stated.StatedWords)."""

    def match(self, text: str) -> bool:
        """True if `text` states the attribute."""


# Weak on both sides: an attachment knows its host, so a strong reference from here would keep the host forever.
# What keeps an attachment alive is the host itself, whose hook calls it.
_OWNED: WeakKeyDictionary[object, ref[Attachment]] = WeakKeyDictionary()
_SHARED: WeakKeyDictionary[object, list[ref[Attachment]]] = WeakKeyDictionary()

_MERGED: WeakSet[object] = WeakSet()


def attachment_of(host: object) -> Attachment | None:
    """The attachment that a model or pipeline carries now, or None."""
    found = _OWNED.get(host)
    return found() if found else None


class Attachment:
    """Projections on a host. `remove()` restores it without a trace; `with` does so at the end of the block.

    Three states: attached, disabled (inside `with attachment.disabled():`, outputs as without), removed.
    `strength` in [0, 1] can be set at any time; 0 is bit-identical to no attachment.
    `projections` maps the role of each projected tensor ("joint", "sequence", "pooled", ...) to its projection.
    `choices` maps a role to what "auto" chose for it and why; it is empty where nothing was to be chosen.
    """

    def __init__(
        self,
        host: Installable,
        projections: Mapping[str, CalibratedProjection],
        *,
        strength: float = 1.0,
        gate: Gate | None = None,
        fit_role: Callable[[str], CalibratedProjection] | None = None,
        label: str = "",
        choices: Mapping[str, Choice] | None = None,
    ) -> None:
        refuse_second(host)
        self.projections = dict(projections)
        self.choices: Mapping[str, Choice] = {} if choices is None else choices
        self.strength = strength
        self._host = host
        self._gate = gate
        self._fit_role = fit_role
        self._label = label
        self._paused = 0
        self._state = "attached"
        self._uninstall = host.install(self.apply)
        _claim(host, self)

    @property
    def strength(self) -> float:
        """Share of the projection that is applied, in [0, 1]."""
        return self._strength

    @strength.setter
    def strength(self, value: float) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise InvalidInputError(f"strength: expected a number in [0, 1], got {value!r}")
        self._strength = float(value)

    @property
    def choice(self) -> Choice | None:
        """What "auto" chose for the host's first role and why; None where nothing was to be chosen."""
        return next(iter(self.choices.values()), None)

    @property
    def state(self) -> str:
        """ "attached", "disabled", "removed" or "merged"."""
        return "disabled" if self._state == "attached" and self._paused else self._state

    def apply(self, role: str, embeddings: Tensor, texts: Texts | None = None) -> Tensor:
        """`embeddings` (b, ..., d) projected as `role`, except for the rows whose text states its attribute.

        Public for embeddings made elsewhere (a prompt-weighting library, a pipeline that is not listed).
        """
        if self.state != "attached" or self._strength == 0:
            return embeddings
        stated = self._stated(texts, len(embeddings))
        if all(stated):
            return embeddings
        projected = self._projection(role)(embeddings, self._strength)
        if not any(stated):
            return projected
        keep = torch.tensor(stated, device=embeddings.device)
        return torch.where(keep.view(-1, *[1] * (embeddings.ndim - 1)), embeddings, projected)

    def stated(self, texts: Sequence[str]) -> list[bool]:
        """For each prompt: does it state its attribute, so that it is left alone?"""
        return [self._gate is not None and self._gate.match(text) for text in texts]

    def _stated(self, texts: Texts | None, rows: int) -> list[bool]:
        if self._gate is None or texts is None:
            return [False] * rows
        stated = self.stated(texts())
        if not stated or rows % len(stated):
            raise InvalidInputError(
                f"{self._host.name}: {rows} embeddings for {len(stated)} prompts; expected a multiple"
            )
        return [s for s in stated for _ in range(rows // len(stated))]

    def _projection(self, role: str) -> CalibratedProjection:
        if role not in self.projections:
            if self._fit_role is None:
                raise InvalidInputError(
                    f"{self._host.name}: no projection for {role!r}, only for {sorted(self.projections)}; "
                    "refit with vldebias.debias(host, prompt_set), which solves what a call needs"
                )
            self.projections[role] = self._fit_role(role)
        return self.projections[role]

    @contextmanager
    def disabled(self) -> Iterator[Attachment]:
        """Pause inside the block; outputs are those of the bare host."""
        self._paused += 1
        try:
            yield self
        finally:
            self._paused -= 1

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
        """
        if self._state != "attached":
            raise VldebiasError(f"{self._host.name}: cannot merge an attachment that is {self._state}")
        self._host.merge(self.projections, self._strength)
        self._release("merged")
        for owned in self._host.owned:
            _MERGED.add(owned)

    def _release(self, state: str) -> None:
        self._uninstall()
        self._state = state
        _unclaim(self._host, self)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state == "attached":
            self.remove()

    def __repr__(self) -> str:
        roles = ", ".join(
            f"{role}: {self._named(role)} lam={p.lam} rank {p.rank}/{p.dim}" for role, p in self.projections.items()
        )
        gate = "stated kept" if self._gate is not None else "stated not kept"
        parts = (self._host.name, self._label or "projection", roles, f"strength={self._strength}", gate, self.state)
        return f"Attachment({', '.join(parts)})"

    def _named(self, role: str) -> str:
        method = self.projections[role].method
        return f"auto: {method}" if role in self.choices and not method.startswith("auto") else method


def refuse_second(host: Installable) -> None:
    """Raise AlreadyAttachedError where a projection acts on the host already: two would be another method.

    `debias` asks before it fits, which takes long on a large pipeline; `Attachment` asks for itself.
    """
    if any(owned in _MERGED for owned in host.owned):
        raise AlreadyAttachedError(
            f"{host.name}: its weights hold a projection since merge(). Projecting twice is another method: reload the "
            "checkpoint, and pass a list of prompt sets to debias() to solve several attributes jointly"
        )
    claims = [_OWNED[o] for o in (*host.owned, *host.shared) if o in _OWNED]
    claims += [a for o in host.owned for a in _SHARED.get(o, [])]
    standing = [attachment for attachment in (claim() for claim in claims) if attachment is not None]
    if standing:
        raise AlreadyAttachedError(
            f"{host.name} already carries {standing[0]!r}. Projecting twice is another method (P P is not P): call "
            ".remove() on it first, or pass a list of prompt sets to debias() to solve several attributes jointly"
        )


def _claim(host: Claims, attachment: Attachment) -> None:
    for owned in host.owned:
        _OWNED[owned] = ref(attachment)
    for shared in host.shared:
        _SHARED.setdefault(shared, []).append(ref(attachment))


def _unclaim(host: Claims, attachment: Attachment) -> None:
    for owned in host.owned:
        _OWNED.pop(owned, None)
    for shared in host.shared:
        _SHARED[shared] = [a for a in _SHARED[shared] if a() is not attachment]
