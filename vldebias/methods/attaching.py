"""Attach fitted embedding edits, with the settings of `vldebias.debias`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vldebias.errors import InvalidInputError, check_kind, warn_of_input
from vldebias.hosts import CallLog, CallRecord, EditAttachment, Host
from vldebias.projection.edit import Edit

if TYPE_CHECKING:
    from vldebias.wording.marks import Find

_SAMPLING = "use method='balanced-prompts' or 'cross-attention'"


@dataclass(frozen=True)
class AttachSettings:
    """Store the settings with which a method is attached, as described in `vldebias.debias`.

    >>> import vldebias
    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> from vldebias.hosts import resolve
    >>> from vldebias.methods import METHODS, Problem
    >>> problem = Problem(resolve(model, tokenizer=tokenizer), "gender")
    >>> with METHODS["cali"].attach(problem, AttachSettings(strength=0.5)) as attachment:
    ...     attachment.strength
    0.5
    """

    strength: float = 1.0
    keep_stated: bool = True
    negative: bool = False
    side: str | None = None
    shares: Mapping[str, float] | None = None
    find: Find | None = None
    on_call: Callable[[CallRecord], object] | None = None
    follow_seeds: bool = True

    def __post_init__(self) -> None:
        for name in ("keep_stated", "negative", "follow_seeds"):
            check_kind(name, getattr(self, name), bool, "True or False")

    def log(self) -> CallLog:
        """Return a new call log, or raise InvalidInputError if `on_call` is not callable."""
        return CallLog(self.on_call, self.follow_seeds)

    def refuse_sampling(self, subject: str) -> None:
        """Raise InvalidInputError if `on_call`, `shares` or `find` is set.

        Args:
            subject: the subject of the message, such as a method's name.
        """
        self.log()
        if self.on_call is not None:
            raise InvalidInputError(
                f"on_call: {subject} does not sample values for images, so there is nothing to"
                " report; omit on_call, or use method='balanced-prompts'"
            )
        for name in ("shares", "find"):
            if getattr(self, name) is not None:
                raise InvalidInputError(f"{name}: {subject} does not sample values; {_SAMPLING}")

    def refuse_embeddings(self, name: str) -> None:
        """Raise InvalidInputError if `negative` or `keep_stated` is set.

        Args:
            name: name of the method that samples values, for the message.
        """
        if self.negative or not self.keep_stated:
            raise InvalidInputError(
                f"method {name!r} never changes negative prompts or values that a prompt states;"
                " omit negative=True and keep_stated=False, or use an edit such as method='cali'"
            )


def attach_edits(host: Host, edits: Mapping[str, Edit], settings: AttachSettings) -> EditAttachment:
    """Check that edits were fitted on this host, and attach them with an `EditAttachment`.

    Args:
        host: the host of a model or pipeline.
        edits: the edit for each role. Roles in the same space share an edit.
        settings: the settings of the attachment, of which `strength`, `keep_stated` and `side` are
            used.

    Raises:
        ProjectionMismatchError: If an edit was fitted on a different model.
        InvalidInputError: If a role has no edit, or the edits change nothing on one side.

    Warns:
        SuspectInputWarning: If an edit does not record which model it was fitted on.
    """
    stated_words: dict[str, None] = {}  # distinct words and labels, in order
    labels: dict[str, None] = {}
    for edit in edits.values():
        labels[edit.provenance.attribute or "projection"] = None
        if settings.keep_stated:
            stated_words |= dict.fromkeys(edit.provenance.stated_words)
    host = _at_side_of_edits(host, edits, settings.side)
    edits = host.edits_by_role(edits)
    for edit in edits.values():
        if not edit.provenance.space and not edit.provenance.fingerprint:
            warn_of_input(
                f"{host.name}: the projection does not record which model it was fitted on, so it"
                " cannot be checked; fit it with vldebias.fit_projections(model, attribute)",
            )
            break
    return EditAttachment(
        host,
        edits,
        strength=settings.strength,
        stated_words=tuple(stated_words),
        label="+".join(labels),
    )


def _at_side_of_edits(host: Host, edits: Mapping[str, Edit], side: str | None) -> Host:
    """Return the host with the roles for `side`, by default the side that the edits change."""
    beyond_texts = [edit for edit in edits.values() if edit.side != "text"]
    if not beyond_texts:
        return host
    edit = beyond_texts[0]
    # Reject an attachment without any effect, which could be mistaken for a mitigation.
    if side == "text" and edit.side == "image":
        raise InvalidInputError(
            f"method {edit.method!r} acts on images, so side='text' would change nothing; omit side"
        )
    return host.at(edit.side) if side is None else host
