"""Attach embedding edits to a host."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError
from vldebias.hosts.adapters import Adapters
from vldebias.hosts.attachment import Attachable, Attachment, mark_merged
from vldebias.hosts.reading import TOKENIZING
from vldebias.projection.edit import Edit, Rewording
from vldebias.projection.projection import CalibratedProjection
from vldebias.projection.provenance import Choice
from vldebias.prompts import StatedWords
from vldebias.utils.texts import checked_texts

Texts = Callable[[], Sequence[str]] | Sequence[str]
"""Prompts, or a function that returns them."""


TEXT, IMAGE = "text", "image"
"""Roles of an image-text model: the outputs of its two towers in the joint space.

Let P be the projection, x the features of an image and z those of a text, before normalisation. The
model then compares <x, P z> if texts are edited, <P x, z> = <x, P^T z> if images are edited, and
<P x, P z> = <x, P^T P z> if both are, each divided by the two norms. The same fitted projection is
used in all three cases. docs/methods.md explains which side to choose."""

SIDES = {"text": (TEXT,), "image": (IMAGE,), "both": (TEXT, IMAGE)}


class EditableHost(Attachable):
    """A host whose embeddings can be edited.

    Attributes:
        roles: the tensors that `debias` edits by default.
        generative: whether the model generates images from these tensors.
        text_modules: the modules that process text, as far as they are known.
    """

    roles: tuple[str, ...]
    generative: bool = False
    text_modules: Sequence[nn.Module] = ()

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        """Hook the model so that embeddings pass through `attachment.apply`.

        Returns:
            The function that removes the hooks.
        """
        raise UnsupportedHostError(
            f"{self.name}: nothing can be attached to this host; pass the model itself"
        )

    def merge(self, edits: Mapping[str, CalibratedProjection], strength: float) -> Sequence[object]:
        """Fold the edits into the model's weights.

        Args:
            edits: the projection for each role.
            strength: fraction of the projection to apply, in [0, 1].

        Returns:
            The models whose config should record the merge.

        Raises:
            UnsupportedHostError: If the weights cannot express the edits. No weight is changed.
        """
        raise UnsupportedHostError(
            f"{self.name}: cannot merge, because the layer that produces embeddings is unknown;"
            " keep the edit attached"
        )

    @abstractmethod
    def edit_rows(
        self, edit: Edit, role: str, rows: Tensor, prompts: Sequence[str], strength: float
    ) -> Tensor:
        """Apply an edit to the embeddings of prompts.

        Args:
            edit: the edit to apply.
            role: the tensor that is edited.
            rows: embeddings (b, ..., d) of the prompts.
            prompts: the prompt of each row, which only an edit that rewords them needs.
            strength: fraction of the edit to apply, in [0, 1].
        """


class EditAttachment(Attachment):
    """Apply fitted edits to a host's embeddings with the hooks from `Host.install`.

    Attributes:
        projections: the edit for each role ("text", "sequence", "pooled", ...).
        gate: the matcher for attribute words that exempt a prompt from editing, or None if all
            prompts are edited.

    >>> import vldebias
    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> attachment = vldebias.debias(model, "gender", method="cali", tokenizer=tokenizer)
    >>> list(attachment.projections)
    ['text']
    >>> folder = attachment.projections["text"].save_pretrained("edit")  # doctest: +SKIP
    >>> attachment.remove()
    """

    reattach = "attachment.projections"
    host: EditableHost

    def __init__(
        self,
        host: EditableHost,
        projections: Mapping[str, Edit],
        *,
        strength: float = 1.0,
        stated_words: Sequence[str] = (),
        label: str = "",
    ) -> None:
        self.projections = dict(projections)
        reads_texts = host.generative or host.roles != (IMAGE,)  # images do not state attributes
        self.gate = StatedWords(stated_words) if stated_words and reads_texts else None
        self._adapters = Adapters(host.text_modules, vars(getattr(host, "pipe", host)))
        super().__init__(host, strength=strength, label=label)

    def _install(self) -> Callable[[], None]:
        return self.host.install(self)

    def _merge(self) -> None:
        # Check every edit before changing any weight.
        projections: dict[str, CalibratedProjection] = {}
        for role, edit in self.projections.items():
            if not isinstance(edit, CalibratedProjection):
                raise VldebiasError(
                    f"{type(edit).__name__} ({edit.method}) is not a single linear map of an"
                    " embedding, so it cannot be merged into the weights. Keep it attached, or"
                    " save it and attach it again after loading the model"
                )
            projections[role] = edit
        changed = self.host.merge(projections, self._strength)
        methods = ", ".join(dict.fromkeys(edit.method for edit in self.projections.values()))
        note = f"{self.label or 'a projection'} ({methods}) at strength {self._strength:g}"
        mark_merged(changed, note)

    @property
    def keeps_stated(self) -> bool:
        """Return whether prompts that state the attribute are left unchanged."""
        return self.gate is not None

    def _changes(self) -> list[str]:
        return [f"{role}: {described(edit)}" for role, edit in self.projections.items()]

    def _facts(self) -> list[tuple[str, object]]:
        return [(f"edit of {role}", edit.method) for role, edit in self.projections.items()]

    def apply(self, role: str, embeddings: Tensor, texts: Texts | None = None) -> Tensor:
        """Return edited embeddings, in which rows whose text states the attribute are unchanged.

        Args:
            role: the role of the embeddings, a key of `projections`.
            embeddings: the host's embeddings (b, ..., d).
            texts: one prompt per row, or one per equal-sized group of adjacent rows. A function
                that returns the prompts is only called if an edit or `keep_stated` needs them.
        """
        # Do not use `len`, because compiled code would then be specialised to one batch size.
        if not self.acts or embeddings.shape[0] == 0:
            return embeddings
        if role not in self.projections:
            raise InvalidInputError(
                f"{self.host.name}: expected one of the roles {sorted(self.projections)}, got"
                f" {role!r}"
            )
        edit = self.projections[role]
        self._adapters.check(self.warn_once)
        if role == IMAGE:
            return edit.image(embeddings, self._strength)
        prompts: list[str] = []
        if self.gate is not None or isinstance(edit, Rewording):
            prompts = self._prompts_of_rows(texts, len(embeddings))
        stated = self.stated(prompts)
        if stated and all(stated):
            return embeddings
        changed = self.host.edit_rows(edit, role, embeddings, prompts, self._strength)
        return except_stated(stated, embeddings, changed)

    def _prompts_of_rows(self, texts: Texts | None, rows: int) -> list[str]:
        """Return one prompt per row, or an empty list if `texts` is None or empty."""
        if texts is None:
            return []
        if callable(texts):
            with TOKENIZING:  # the function may decode token ids
                received = texts()
                prompts = [received] if isinstance(received, str) else list(received)
        else:
            prompts = list(checked_texts([texts] if isinstance(texts, str) else texts))
        if not prompts or rows % len(prompts):
            raise InvalidInputError(
                f"{self.host.name}: got {rows} embeddings for {len(prompts)} prompts; the number"
                " of embeddings must be a multiple of the number of prompts"
            )
        return [prompt for prompt in prompts for _ in range(rows // len(prompts))]

    def apply_by_ids(
        self,
        role: str,
        embeddings: Tensor,
        ids: Tensor | None,
        stated_rows: Callable[[Tensor], Tensor] | None,
        texts: Callable[[Tensor], Sequence[str]],
    ) -> Tensor:
        """Edit each row of embeddings, except rows whose token ids state the attribute.

        Args:
            role: the role of the embeddings, a key of `projections`.
            embeddings: the host's embeddings (b, d).
            ids: (b, length), or None if the tower was called without any.
            stated_rows: function from ids to a mask (b,), true if a row states the attribute, on
                the ids' device, or None if all rows are edited.
            texts: function from ids to prompts, for edits that depend on them.
        """
        # Do not use `len`, because compiled code would then be specialised to one batch size.
        if not self.acts or embeddings.shape[0] == 0:
            return embeddings
        edit = self.projections[role]
        if isinstance(edit, Rewording):
            if ids is None:
                return self.apply(role, embeddings)
            return self.apply(role, embeddings, lambda: texts(ids))
        self._adapters.check(self.warn_once)
        changed = edit(embeddings, self._strength)
        if ids is None or stated_rows is None:
            return changed
        stated = stated_rows(ids)
        # Skip the copy in the most common case. On a GPU the check would block, and compiled code
        # cannot branch on tensor values.
        can_read_mask = stated.device.type == "cpu" and not torch.compiler.is_compiling()
        if can_read_mask and not stated.any():
            return changed
        return except_stated(stated, embeddings, changed)

    def stated(self, texts: str | Sequence[str]) -> list[bool]:
        """Return, for each prompt, whether it states the attribute and is left unchanged."""
        if isinstance(texts, str):
            texts = [texts]
        if self.gate is None:
            return [False] * len(texts)
        return [bool(self.gate.find(text)) for text in texts]


class DeclinedAttachment(EditAttachment):
    """Explain why the default method attached nothing to a host.

    There are no edits, so `remove()` and `disabled()` do nothing, and the host is free for a
    different attachment. The state is "declined".

    Args:
        host: the host, which is left unchanged.
        choice: the default's decision and its reason.
        strength: the strength that was requested.

    >>> import pytest
    >>> import vldebias
    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> with pytest.warns(vldebias.errors.AutoDeclinedWarning):
    ...     attachment = vldebias.debias(model, "gender", tokenizer=tokenizer)
    >>> attachment.state, attachment.projections
    ('declined', {})
    """

    def __init__(self, host: EditableHost, choice: Choice, *, strength: float = 1.0) -> None:
        self.choice = choice
        super().__init__(host, {}, strength=strength, label=choice.attribute)
        self._release("declined")

    def _install(self) -> Callable[[], None]:
        return lambda: None

    def _facts(self) -> list[tuple[str, object]]:
        return [("reason", self.choice.reason)]

    def __repr__(self) -> str:
        return f"DeclinedAttachment({self.host.name}, {self.choice})"


def described(edit: Edit) -> str:
    """Describe an edit by its method and rank."""
    rank = f" rank {edit.rank}/{edit.dim}" if isinstance(edit, CalibratedProjection) else ""
    decided = "" if edit.provenance.choice is None else "default: "
    return f"{decided}{edit.method} lam={edit.lam}{rank}"


def except_stated(stated: Sequence[bool] | Tensor, rows: Tensor, changed: Tensor) -> Tensor:
    """Return changed embeddings, with the original rows where the attribute is stated.

    Args:
        stated: (b,), true for the rows whose text states the attribute. Empty means none.
        rows: the original embeddings (b, ..., d).
        changed: the changed embeddings (b, ..., d).
    """
    if not isinstance(stated, Tensor):
        if not any(stated):
            return changed
        stated = torch.tensor(stated)
    keep = stated.to(rows.device).view(-1, *[1] * (rows.ndim - 1))
    return torch.where(keep, rows, changed)
