"""What every host offers: its roles, rows of prompts, a place for edits, and weights to merge them into."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.edit import Edit, Fingerprint
from vldebias.errors import InvalidInputError, ProjectionMismatchError, UnsupportedHostError, warn
from vldebias.hosts.fingerprint import TEXTS, text_numbers, weights_fingerprint
from vldebias.prompts import StatedWords

TEXT, IMAGE = "joint", "image"
"""Roles of an image-text model: the outputs of its towers, in their joint space.

With P the projection, x an image and z a text before normalising, the model compares <x, P z> with the edit on texts,
<P x, z> = <x, P^T z> on images, <P x, P z> = <x, P^T P z> on both; each over the two lengths. It is one projection,
fitted once. Which side to take: docs/methods.md."""

SIDES = {"text": (TEXT,), "image": (IMAGE,), "both": (TEXT, IMAGE)}

Texts = Callable[[], Sequence[str]]
"""Gives the text of each prompt of a batch; called only where a gate has to read it."""


def roles_of(side: str) -> tuple[str, ...]:
    """The roles of a side.

    Raises:
        InvalidInputError: an unknown side.
    """
    if side not in SIDES:
        raise InvalidInputError(f"side: expected one of {', '.join(SIDES)}, got {side!r}")
    return SIDES[side]


class Apply(Protocol):
    """What a host calls with the embeddings that it hands over."""

    def __call__(self, role: str, embeddings: Tensor, texts: Texts | None) -> Tensor:
        """`embeddings` (b, ..., d) of `role`, changed; (b) is a multiple of the number of texts."""


class Host(ABC):
    """One model or pipeline, seen as tensors with a role.

    Attributes:
        name: class of the model, for messages. model_id: where its weights came from, if it says so.
        roles: the tensors that debias() changes by default. generative: it generates images from them.
        rewrites: its prompts can be rewritten before they are encoded. edits_images: it changes images that are given.
        exclusive_modules, shared_modules: what an attachment occupies: alone, the whole model or pipeline first, or
            together with attachments of other pipelines.
        library: the package that defines the classes of its models, by which `register_host` makes it known.
    """

    name: str
    model_id: str | None = None
    roles: tuple[str, ...]
    generative: bool = False
    rewrites: bool = False
    edits_images: bool = False
    exclusive_modules: Sequence[object]
    shared_modules: Sequence[object] = ()
    library: ClassVar[str] = ""

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None, *, negative: bool = False) -> Self:
        """Make the host for a model of `library`, with what `debias` was given beside it.

        Raises:
            UnsupportedHostError: a class of the library that cannot be served.
        """
        return cls(model)  # type: ignore[call-arg]

    @abstractmethod
    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """(role, prompt) -> its row (d,), as `embed` gives it; perhaps of more roles, where one pass yields them."""

    @abstractmethod
    def install(self, apply: Apply) -> Callable[[], None]:
        """Put `apply` where the embeddings come out; returns the function that takes it off without a trace."""

    @abstractmethod
    def merge(self, edits: Mapping[str, Edit], strength: float) -> None:
        """Fold the edits into plain weights; raises UnsupportedHostError where weights cannot hold them."""

    @abstractmethod
    def space(self, role: str) -> str:
        """Name of the space of `role`, e.g. "open_clip.joint" or "diffusers.sequence"."""

    def text_modules(self) -> Sequence[nn.Module]:
        """The modules that texts pass through, as far as they are known."""
        return ()

    def embed(self, prompts: Sequence[str], role: str) -> Tensor:
        """L2-normalised (n, d) float64 CPU embeddings of `prompts` in the space of `role`, never edited.

        Every prompt goes through the towers once, until `forget`. No prompts give (0, d).
        """
        if not prompts:
            return torch.zeros(0, self.dim(role), dtype=torch.float64)
        known = {prompt: self.memory.get((role, prompt)) for prompt in prompts}  # another thread may `forget` meanwhile
        rows = {prompt: row for prompt, row in known.items() if row is not None}
        new = [prompt for prompt in known if prompt not in rows]
        if new:
            read = self.read(new, role)
            self.memory.update(read)
            rows.update({prompt: read[role, prompt] for prompt in new})
        return torch.stack([rows[prompt] for prompt in prompts])

    def under(
        self, prompts: Sequence[str], role: str, edit: Edit | None, *, strength: float = 1.0, keep_stated: bool = True
    ) -> Tensor:
        """What `embed` gives, as the host with `edit` attached would give it.

        keep_stated: leave prompts alone that name an attribute word of the edit, as `vldebias.debias` does.
        """
        rows = self.embed(prompts, role)
        if edit is None:
            return rows
        changed = normalize(self.edited(edit, role, rows, prompts, strength), dim=-1)
        if not keep_stated or not edit.stated_words:
            return changed
        gate = StatedWords(edit.stated_words)
        stated = torch.tensor([gate.match(prompt) for prompt in prompts])
        return torch.where(stated[:, None], rows, changed)

    def edited(self, edit: Any, role: str, z: Tensor, prompts: Sequence[str], strength: float) -> Tensor:
        """Embeddings (b, ..., d) of prompts, edited; of a method that reads a prompt in other words, from those."""
        if not hasattr(edit, "wordings"):
            changed: Tensor = edit(z, strength)
            return changed
        wordings = [edit.wordings(prompt) for prompt in prompts]
        read = self.read(list(dict.fromkeys(text for one in wordings for text in one)), role)
        each = torch.stack([torch.stack([read[role, text] for text in one]) for one in wordings])
        combined: Tensor = edit.combined(z, each, strength, unit=True)
        return combined

    @cached_property
    def memory(self) -> dict[tuple[str, str], Tensor]:
        """What was embedded so far."""
        return {}

    def forget(self) -> None:
        """Embed again from here on, since weights may change."""
        for name in ("memory", "weights_fingerprint"):
            vars(self).pop(name, None)

    @cached_property
    def weights_fingerprint(self) -> Fingerprint | None:
        """Of `text_modules`, see `vldebias.hosts.fingerprint`; None where there are no weights to read."""
        return weights_fingerprint(*self.text_modules())

    def fingerprint(self, role: str | None = None) -> Fingerprint | None:
        """`weights_fingerprint` with what the weights make of three texts as `role`."""
        mark = self.weights_fingerprint
        if mark is None or role is None:
            return mark
        try:
            return text_numbers(mark, self.embed(TEXTS, role))
        except InvalidInputError:  # no tokenizer: a fitted edit attaches without one
            return mark

    def image_fingerprint(self) -> Fingerprint | None:
        """Of the image tower in the space of the texts; None where there is none."""
        return None

    def at(self, side: str) -> Host:
        """This host with its edits at `side`, one of `SIDES`.

        Raises:
            UnsupportedHostError: a side that it has not.
        """
        if side == "text":
            return self
        raise UnsupportedHostError(
            f"{self.name}: side={side!r} needs an image tower that shares a space with the texts, and here is none; "
            "use side='text'"
        )

    def fitted_as(self, role: str) -> str:
        """The role whose edit serves `role`: another one where two lie in one space."""
        return role

    def mark(self, note: str) -> None:  # noqa: B027 - not every host has a place for it
        """Leave in merged weights that they are, where that survives saving and loading: in a config."""

    def marked(self) -> str | None:
        """What was merged into these weights, now or before they were saved; None where nothing says so."""
        return None

    def dim(self, role: str) -> int:
        """Width of the embeddings of `role`."""
        return self.embed(["a photo"], role).shape[-1]

    def check(self, role: str, edit: Edit) -> None:
        """Refuse an edit that was fitted for another space, width or set of weights.

        All three, because two spaces of one model can share a width (ViT-L/14: 768 before and after its text head).
        The text tower is compared in every case: its texts are what the edit was fitted on. The image tower is
        compared where images have a part in it: at their own role, and for what was fitted on them.

        Raises:
            ProjectionMismatchError: the message says what differs.
        """
        space, origin, why = self.space(role), edit.provenance, ""
        refit = "fit again on this host with vldebias.debias(host, prompts)"
        mark = None if origin.fingerprint is None else self.fingerprint(role)
        beside = origin.image_fingerprint if role == IMAGE or origin.uses_images else None
        if edit.space not in (None, space):
            why = f"belongs to space {edit.space!r}, here it is {space!r}"
        elif edit.dim != self.dim(role):
            why = f"has dim {edit.dim}, {role!r} has {self.dim(role)}"
        elif origin.fingerprint is not None and not origin.fingerprint.matches(mark):
            why = f"was fitted on other weights ({edit.model_id or 'unnamed model'}); the fingerprint of this text "
            why += "tower differs, or what it makes of three texts"
        elif beside is not None and not beside.matches(self.image_fingerprint()):
            why = f"was fitted beside another image tower ({edit.model_id or 'unnamed model'}); the fingerprint of "
            why += "this one differs"
        if why:
            raise ProjectionMismatchError(f"{self.name}: the projection {why}; {refit}")
        if origin.fingerprint is not None and not origin.fingerprint.same_adapters(mark):
            warn(
                f"{self.name}: the projection was fitted with other adapters (LoRA) on the text tower than it has now, "
                f"and they change what it reads; {refit}, or load the adapters that it was fitted with"
            )
