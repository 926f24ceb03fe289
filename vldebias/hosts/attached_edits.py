"""Edits in their places on a host, with the gate that keeps stated prompts as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from vldebias.edit import Edit, Rows
from vldebias.errors import InvalidInputError
from vldebias.hosts.base import Host
from vldebias.hosts.side import IMAGE
from vldebias.prompts import StatedWords


class Gate(Protocol):
    """Tells which texts state their attribute (vldebias.prompts.StatedWords)."""

    def match(self, text: str) -> bool:
        """True if `text` states the attribute."""


@dataclass(eq=False)
class AttachedEdits:
    """One edit per role of a host.

    fit_role: fits what a call needs beyond them (an earlier layer under clip_skip). label: of its prompt sets.
    """

    edits: dict[str, Edit]
    gate: Gate | None = None
    fit_role: Callable[[str], Edit] | None = None
    label: str = ""

    @classmethod
    def on(cls, host: Host, given: Edit | Mapping[str, Edit], keep_stated: bool) -> AttachedEdits:
        """Fitted edits, after checking that they belong to this host.

        Seams that lie in one space share what was given for one of them.

        Raises:
            InvalidInputError: none for a role. ProjectionMismatchError: fitted on another host.
        """
        edits = given if isinstance(given, Mapping) else {host.roles[0]: given}
        by_space = {host.fitted_as(role): edit for role, edit in edits.items()}
        placed = {r: edits.get(r, by_space[host.fitted_as(r)]) for r in host.roles if host.fitted_as(r) in by_space}
        served = {host.fitted_as(role) for role in placed}
        placed |= {role: edit for role, edit in edits.items() if host.fitted_as(role) not in served}
        missing = [role for role in host.roles if role not in placed]
        if missing:
            raise InvalidInputError(
                f"{host.name} projects the roles {list(host.roles)}; missing {missing}: "
                "pass a mapping from role to projection"
            )
        for role, edit in placed.items():
            host.check(role, edit)
        words = tuple(dict.fromkeys(word for edit in placed.values() for word in edit.stated_words))
        label = "+".join(dict.fromkeys(edit.provenance.prompts or "projection" for edit in placed.values()))
        return cls(placed, cls.gate_of(host, words if keep_stated else ()), label=label)

    @staticmethod
    def gate_of(host: Host, words: Sequence[str]) -> StatedWords | None:
        """What keeps stated prompts as they are; images state nothing."""
        return StatedWords(words) if words and host.roles != (IMAGE,) else None

    @property
    def reader(self) -> Edit | None:
        """An edit that needs the prompt of every row, if there is one."""
        return next((e for e in self.edits.values() if e.reads_text or e.sampled), None)

    @property
    def sampler(self) -> Edit | None:
        """One that draws a value for each image, if there is one."""
        return next((edit for edit in self.edits.values() if edit.sampled), None)

    def stated(self, texts: Sequence[str]) -> list[bool]:
        """For each prompt: does it state its attribute, so that it is left alone?"""
        if self.gate is None:
            return [False] * len(texts)
        return [self.gate.match(text) and all(edit.leaves(text) for edit in self.edits.values()) for text in texts]

    def draw(self, rows: Rows) -> list[str]:
        """What `sampler` draws for each row; nothing where there is none."""
        return [] if self.sampler is None else self.sampler.draw(self._with_gate(rows))

    def _with_gate(self, rows: Rows) -> Rows:
        """With whether prompts keep what they state."""
        return replace(rows, kept=self.gate is not None)

    def edit(self, host: Host, role: str) -> Edit:
        """That of a role, fitted now where it can be.

        Raises:
            InvalidInputError: there is none.
        """
        if role not in self.edits:
            if self.fit_role is None:
                raise InvalidInputError(
                    f"{host.name}: no projection for {role!r}, only for {sorted(self.edits)}; "
                    "refit with vldebias.debias(host, prompt_set), which solves what a call needs"
                )
            self.edits[role] = self.fit_role(role)
        return self.edits[role]

    def __call__(self, host: Host, role: str, embeddings: Tensor, strength: float, rows: Rows | None) -> Tensor:
        """`embeddings` (b, ..., d) changed as `role`, but for the rows whose text states its attribute."""
        if role == IMAGE:  # which states nothing
            return self.edit(host, role).image(embeddings, strength)
        reader = self.reader
        if reader is not None and rows is None:
            raise InvalidInputError(f"{host.name}: {reader!r} needs the prompt of each row")
        stated = [] if rows is None else self.stated(rows.texts)
        if stated and all(stated):
            return embeddings
        changed = self.edit(host, role)(embeddings, strength, None if rows is None else self._with_gate(rows))
        if not any(stated):
            return changed
        keep = torch.tensor(stated, device=embeddings.device)
        return torch.where(keep.view(-1, *[1] * (embeddings.ndim - 1)), embeddings, changed)
