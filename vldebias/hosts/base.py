"""What every host family offers: embed prompts, name its spaces, carry a projection at its seam, merge it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.edit import Edit, Fingerprint, Guidance, Rows
from vldebias.errors import ProjectionMismatchError, UnsupportedHostError, warn
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hosts.side import IMAGE
from vldebias.prompts import StatedWords

Texts = Callable[[], Sequence[str]]
"""Gives the text of each prompt of a batch; called only where an edit or a gate has to read it."""


class Apply(Protocol):
    """What a host calls at its seam."""

    def __call__(self, role: str, embeddings: Tensor, texts: Texts | None) -> Tensor:
        """`embeddings` (b, ..., d) of `role`, changed; (b) is a multiple of the number of texts."""


class Host(ABC):
    """One model or pipeline, seen as tensors with a role.

    Attributes:
        name: class of the model, for messages. model_id: where its weights came from, if it says so.
        roles: the tensors that debias() changes by default. generative: it draws images from them.
        masked: its states come with a mask of the prompt, so that those of another prompt cannot take their place.
        exclusive_modules, shared_modules: what an attachment occupies: alone, the whole model or pipeline first, or
            together with attachments on other seams.
        held: names of the attributes that hold the model or parts of it.
        library: the package that defines the classes of its models, by which `register_host` makes it known.
        window: the share of the denoising steps in which an attachment acts; None for all of them.
        guides: of a pipeline, whether `guide` can add to what its denoiser predicts.
    """

    name: str
    model_id: str | None = None
    roles: tuple[str, ...]
    generative: bool = False
    masked: bool = False
    exclusive_modules: Sequence[object]
    shared_modules: Sequence[object] = ()
    held: ClassVar[tuple[str, ...]] = ()
    library: ClassVar[str] = ""
    window: tuple[float, float] | None = None
    guides: bool = False

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None, *, negative: bool = False) -> Self:
        """The host for a model of `library`, with what `debias` was given beside it. Default: of the model alone.

        Raises:
            UnsupportedHostError: a class of the library that has no seam.
        """
        return cls(model)  # type: ignore[call-arg]

    def __deepcopy__(self, memo: dict[int, Any]) -> Host:
        """For a deep copy of the model: the same around that; what is no part of it, as a tokenizer, is shared."""
        twin = memo[id(self)] = copy(self)
        vars(twin).pop("memory", None)
        for name in (*self.held, "exclusive_modules", "shared_modules"):
            setattr(twin, name, deepcopy(getattr(self, name), memo))
        return twin

    # Their names up to 0.2.
    owned, shared = property(attrgetter("exclusive_modules")), property(attrgetter("shared_modules"))
    begun = property(attrgetter("first_step_similarity"))

    def text_modules(self) -> Sequence[nn.Module]:
        """The modules that texts pass through, as far as they are known."""
        return ()

    def embed(self, prompts: Sequence[str], role: str) -> Tensor:
        """L2-normalised (n, d) float64 CPU embeddings of `prompts` in the space of `role`, never projected.

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

    def sequences(self, prompts: Sequence[str], role: str) -> tuple[Tensor, Tensor]:
        """(n, tokens, d) states of `role` as the host reads them, float64, and (n,) where each prompt ends.

        Here the one state that there is, of length 1.
        """
        return self.embed(prompts, role)[:, None], torch.zeros(len(prompts), dtype=torch.int64)

    def first_step_similarity(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        """Of a pipeline: how near to the first of two prompts it begins to draw the mean of both, (n,) in [0, 1].

        Raises:
            UnsupportedHostError: it draws nothing, or not from prompts alone.
        """
        raise UnsupportedHostError(f"{self.name}: draws no images, so there is no first step of one to look at")

    def under(
        self, prompts: Sequence[str], role: str, edit: Edit | None, *, strength: float = 1.0, keep_stated: bool = True
    ) -> Tensor:
        """What `embed` gives, as the host with `edit` attached would give it.

        keep_stated: leave prompts alone that name an attribute word of the edit, as `vldebias.debias` does.
        """
        rows = self.embed(prompts, role)
        if edit is None:
            return rows

        def embed(others: Sequence[str]) -> Tensor:
            return self.embed(others, role)

        changed = normalize(edit(rows, strength, Rows(tuple(prompts), embed=embed)), dim=-1)
        if not keep_stated or not edit.stated_words:
            return changed
        gate = StatedWords(edit.stated_words)
        stated = torch.tensor([gate.match(prompt) for prompt in prompts])
        return torch.where(stated[:, None], rows, changed)

    def guide(self, states: Tensor, images: int, added: Guidance) -> None:
        """Add to what the denoiser of a pipeline predicts for the images of this thread's next call.

        states: (k, tokens, d) of texts. images: rows of the call. added: the number of the pass, what is predicted
        for the images with each text (k, images, ...), what without any prompt (images, ...) -> what is added.

        Raises:
            UnsupportedHostError: `guides` is false. InvalidInputError: attached for a part of the steps.
        """
        raise UnsupportedHostError(f"{self.name}: has no UNet of Stable Diffusion 1 or 2 that could be guided")

    @abstractmethod
    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """(role, prompt) -> its row (d,), as `embed` gives it; perhaps of more roles, where one pass yields them."""

    @cached_property
    def memory(self) -> dict[tuple[str, str], Tensor]:
        """What was embedded so far."""
        return {}

    def forget(self) -> None:
        """Embed again from here on, since weights may change."""
        self.memory.clear()

    @abstractmethod
    def space(self, role: str) -> str:
        """Name of the space of `role`, e.g. "open_clip.joint" or "StableDiffusionXLPipeline.sequence"."""

    def fingerprint(self) -> Fingerprint | None:
        """Of `text_modules`, see `vldebias.hosts.fingerprint`; None where there are no weights to read."""
        return weights_fingerprint(*self.text_modules())

    def image_fingerprint(self) -> Fingerprint | None:
        """The same of the image tower in the space of the texts; None where there is none."""
        return None

    def at(self, side: str) -> Host:
        """This host with its seams at `side` (see `vldebias.hosts.side`).

        Raises:
            UnsupportedHostError: a side that it has not.
        """
        if side == "text":
            return self
        raise UnsupportedHostError(
            f"{self.name}: side={side!r} needs an image tower that shares a space with the texts, and here is none; "
            "use side='text'"
        )

    def within(self, steps: Any) -> Self:
        """This host, on which an attachment acts in a part of the denoising steps (`vldebias.hosts.steps`).

        Raises:
            UnsupportedHostError: it has none.
        """
        raise UnsupportedHostError(f"{self.name}: steps= is for pipelines of diffusers, which draw step by step")

    def fitted_as(self, role: str) -> str:
        """The role whose projection serves `role`: another one where two seams lie in one space."""
        return role

    @abstractmethod
    def install(self, apply: Apply) -> Callable[[], None]:
        """Put `apply` at the seam; returns the function that takes it off and leaves no trace."""

    @abstractmethod
    def merge(self, edits: Mapping[str, Edit], strength: float) -> None:
        """Fold the edits into plain weights; raises UnsupportedHostError where weights cannot hold them."""

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
        compared where images have a part in it: at their own seam, and for what was fitted on them.
        """
        space, origin = self.space(role), edit.provenance
        refit = "fit again on this host with vldebias.debias(host, prompts)"
        if edit.space is not None and edit.space != space:
            raise ProjectionMismatchError(
                f"{self.name}: the projection belongs to space {edit.space!r}, here it is {space!r}; {refit}"
            )
        if edit.dim != self.dim(role):
            raise ProjectionMismatchError(
                f"{self.name}: the projection has dim {edit.dim}, {role!r} has {self.dim(role)}; {refit}"
            )
        if origin.fingerprint is not None and not origin.fingerprint.matches(self.fingerprint()):
            raise ProjectionMismatchError(
                f"{self.name}: the projection was fitted on other weights ({edit.model_id or 'unnamed model'}); "
                f"the fingerprint of this text tower differs; {refit}"
            )
        if origin.fingerprint is not None and not origin.fingerprint.same_adapters(self.fingerprint()):
            warn(
                f"{self.name}: the projection was fitted with other adapters (LoRA) on the text tower than it has now, "
                f"and they change what it reads; {refit}, or load the adapters that it was fitted with"
            )
        images = role == IMAGE or origin.uses_images
        beside = origin.image_fingerprint
        if images and beside is not None and not beside.matches(self.image_fingerprint()):
            raise ProjectionMismatchError(
                f"{self.name}: the projection was fitted beside another image tower "
                f"({edit.model_id or 'unnamed model'}); the fingerprint of this one differs; {refit}"
            )
