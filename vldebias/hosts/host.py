"""Define the host interface, read models for fitting and identify their weights."""

from __future__ import annotations

import hashlib
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.errors import (
    InvalidInputError,
    ProjectionMismatchError,
    UnsupportedHostError,
    warn,
)
from vldebias.hosts.adapters import adapters_length
from vldebias.hosts.edits import IMAGE, SIDES, TEXT, EditableHost, except_stated
from vldebias.hosts.reading import reading
from vldebias.hosts.values import SamplingHost
from vldebias.projection.edit import Edit, Rewording
from vldebias.projection.fingerprint import Fingerprint
from vldebias.prompts import StatedWords

BATCH = 64


@dataclass(eq=False)
class Memory:
    """Cache values that were read from a model.

    Attributes:
        rows: the embedding (d,) for each (role, prompt), as returned by `Host.embed`.
        fingerprints: the fingerprint of each module group's weights, by the group's name.
    """

    rows: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    fingerprints: dict[str, Fingerprint | None] = field(default_factory=dict)


class Host(EditableHost, SamplingHost):
    """Provide access to the embeddings of a model or pipeline, each of which has a role.

    A subclass that sets `library` is called as Subclass(model, tokenizer, negative), with the
    arguments of `debias`. It raises UnsupportedHostError for unsupported model classes.

    Attributes:
        name: the model's class name, for messages.
        model_id: name or path from which the weights were loaded, if known.
        roles: the tensors that `debias` edits by default.
        generative: whether the model generates images from these tensors.
        rewrites: whether prompts can be rewritten before they are encoded.
        needs_picture: whether the model only edits existing images or videos.
        text_modules: the modules that process text, as far as they are known.
        image_tower: the modules of an image tower that shares the text space, including its head;
            otherwise empty.
        image_fingerprint: fingerprint of `image_tower`, or None.
        exclusive_modules: the objects that only one attachment may use, starting with the model or
            pipeline itself.
        shared_modules: the modules that attachments to other pipelines may also use.
        library: the package that defines the supported model classes. `register_host` uses this
            name as the key.

    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> from vldebias.hosts import resolve
    >>> host = resolve(model, tokenizer=tokenizer)
    >>> host.name, host.roles
    ('CLIP', ('text',))
    >>> host.embed(["A photo of a nurse."]).shape
    torch.Size([1, 256])
    """

    model_id: str | None = None
    rewrites: bool = False
    needs_picture: bool = False
    image_tower: Sequence[nn.Module] = ()
    image_fingerprint: Fingerprint | None = None
    library: ClassVar[str] = ""

    @property
    def memory(self) -> Memory:
        """Return the cache of values read from the model, shared with copies made by `at`."""
        return vars(self).setdefault("_memory", Memory())

    @abstractmethod
    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Embed prompts with the model, without a cache.

        Args:
            prompts: the prompts, without duplicates.
            role: the tensor to read, one of `roles`.

        Returns:
            The row (d,) for each (role, prompt), as in `embed`. May include other roles from the
            same forward pass.
        """

    @staticmethod
    def read_by(
        encode: Callable[[list[str]], Tensor], prompts: Sequence[str], role: str, *models: nn.Module
    ) -> dict[tuple[str, str], Tensor]:
        """Embed prompts with an encoder, in batches.

        Args:
            encode: function from prompts to rows (b, d).
            prompts: texts to embed, in batches of any size.
            role: the role of the rows.
            models: the modules that `encode` runs, which are put into eval mode.

        Returns:
            The row (d,) for each (role, prompt), of norm 1, as float64 on the CPU.
        """
        with reading(*models):
            # Move batches to the CPU one by one, so that a GPU holds only one at a time.
            blocks = []
            for start in range(0, len(prompts), BATCH):
                block = encode(list(prompts[start : start + BATCH]))
                blocks.append(block.detach().cpu().double())
            rows = torch.cat(blocks)
        return {
            (role, prompt): row
            for prompt, row in zip(prompts, normalize(rows, dim=-1), strict=True)
        }

    def space(self, role: str) -> str:
        """Return the name of the space that `role` belongs to, such as "diffusers.sequence".

        Roles in the same space share an edit.
        """
        return f"{self.library.partition('.')[0]}.{role}"

    def at(self, side: str) -> Self:
        """Return this host with edits applied to the text side, the image side or both (`SIDES`).

        Raises:
            UnsupportedHostError: If the host does not have this side.
        """
        if side not in SIDES:
            raise InvalidInputError(f"side: expected one of {', '.join(SIDES)}, got {side!r}")
        if self.image_tower:
            # Copy only the host, and share the model and the cached rows.
            host = copy(self)
            vars(host)["_memory"] = self.memory
            host.roles = SIDES[side]
            return host
        if side == "text":
            return self
        raise UnsupportedHostError(
            f"{self.name}: side={side!r} needs an image tower that shares a space with the text"
            " tower, but this host has none; use side='text'"
        )

    # ---- rows

    def embed(self, prompts: Sequence[str], role: str = TEXT) -> Tensor:
        """Return L2-normalised prompt embeddings from the cache, ignoring attached edits.

        Args:
            prompts: n texts.
            role: the tensor to read, one of `roles`.

        Returns:
            A float64 tensor (n, d) on the CPU.
        """
        if not prompts:
            return torch.zeros(0, self.dim(role), dtype=torch.float64)
        memory = self.memory.rows
        rows: dict[str, Tensor] = {}
        new: dict[str, None] = {}
        for prompt in prompts:
            if not isinstance(prompt, str):
                raise InvalidInputError(
                    f"{self.name}: embed got {prompt!r}; expected a list of strings. For pairs,"
                    " pass both texts of each pair one after the other, and reshape the result"
                    " with rows.unflatten(0, (-1, 2))"
                )
            # Look up the row only once, because another thread may clear the cache in the meantime.
            row = memory.get((role, prompt))
            if row is None:
                new[prompt] = None
            else:
                rows[prompt] = row
        if new:
            read = self.read(list(new), role)
            received = f"a {type(read).__name__}"
            if isinstance(read, Mapping):
                missing = [prompt for prompt in new if (role, prompt) not in read]
                received = f"no row ({role!r}, {missing[0]!r})" if missing else ""
            if received:
                raise InvalidInputError(
                    f"{self.name}: {type(self).__name__}.read returned {received}; expected a"
                    " mapping from (role, prompt) to a row (d,), as returned by read_by"
                )
            memory.update(read)
            rows.update({prompt: read[role, prompt] for prompt in new})
        return torch.stack([rows[prompt] for prompt in prompts])

    def under(
        self,
        prompts: Sequence[str],
        role: str,
        edit: Edit | None,
        *,
        strength: float = 1.0,
        keep_stated: bool = True,
    ) -> Tensor:
        """Return the rows that `embed` would return if an edit were part of the model.

        Args:
            prompts: n texts.
            role: the tensor that is edited.
            edit: the fitted edit. If None, nothing is edited.
            strength: fraction of the edit to apply, in [0, 1].
            keep_stated: whether prompts that state the attribute, according to `stated`, are left
                unchanged.
        """
        rows = self.embed(prompts, role)
        if edit is None:
            return rows
        changed = normalize(self.edit_rows(edit, role, rows, prompts, strength), dim=-1)
        return except_stated(self.stated(prompts, edit), rows, changed) if keep_stated else changed

    def edit_rows(
        self, edit: Edit, role: str, rows: Tensor, prompts: Sequence[str], strength: float
    ) -> Tensor:
        if isinstance(edit, Rewording):
            return self.reworded(edit, role, rows, prompts, strength)
        return edit(rows, strength)

    def stated(self, texts: Sequence[str], edit: Edit) -> list[bool]:
        """Return, for each text, whether it states the attribute, so that the edit ignores it.

        Args:
            texts: texts (b,) as they are embedded.
            edit: the edit, whose words state the attribute.
        """
        words = StatedWords(edit.stated_words)
        return [bool(words.find(text)) for text in texts]

    def reworded(
        self, edit: Rewording, role: str, z: Tensor, prompts: Sequence[str], strength: float
    ) -> Tensor:
        """Apply an edit that averages over several wordings of each prompt.

        Args:
            edit: the edit, which lists the wordings to average over.
            role: the tensor that is edited.
            z: embeddings (b, ..., d) of the prompts.
            prompts: the prompt of each row.
            strength: fraction of the edit to apply, in [0, 1].

        Returns:
            The edited embeddings, in the shape of `z`.
        """
        if not prompts:
            raise InvalidInputError(f"{self.name}: pass one prompt per row, which {edit!r} needs")
        wordings_of_row = [edit.wordings(prompt) for prompt in prompts]
        # Prompts may share wordings, so embed each distinct text once.
        read = self.read(list(dict.fromkeys(chain.from_iterable(wordings_of_row))), role)
        blocks = [torch.stack([read[role, text] for text in texts]) for texts in wordings_of_row]
        reworded = torch.stack(blocks)  # (b, wordings, d)
        return edit.combined(z, reworded, strength, unit=True)

    def forget(self) -> None:
        """Clear the cache shared with copies made by `at`, because the weights may have changed."""
        self.memory.rows.clear()
        self.memory.fingerprints.clear()

    def dim(self, role: str) -> int:
        """Return the width of the embeddings of `role`."""
        # Use any text that was already embedded, because a service or mapping may not know PROBE.
        for (role_of_row, _), row in list(self.memory.rows.items()):
            if role_of_row == role:
                return row.shape[-1]
        return self.embed([PROBE], role).shape[-1]

    # ---- identity of the weights

    def fingerprint(self, role: str | None = None) -> Fingerprint | None:
        """Return the fingerprint of `text_modules`, or None if no weights can be read.

        With a role, it includes numbers derived from three text embeddings: their dot products with
        fixed random directions. These reveal different layer settings (such as an epsilon or an
        activation) and a different tokenizer, which the weights do not show.
        """
        memory = self.memory.fingerprints
        # Compute the fingerprint once per host, because a large pipeline's encoders take gigabytes.
        try:
            mark = memory["text"]
        except KeyError:
            mark = weights_fingerprint(*self.text_modules)
            memory["text"] = mark
            parameters = chain.from_iterable(module.parameters() for module in self.text_modules)
            # accelerate leaves offloaded weights on the meta device.
            if mark is None and any(parameter.is_meta for parameter in parameters):
                warn(
                    f"{self.name}: the text encoders' weights are offloaded, so they have no"
                    " fingerprint and a projection cannot be checked against them. Attach before"
                    " offloading to enable the check"
                )
        if mark is None or role is None:
            return mark
        try:
            rows = self.embed(TEXTS, role)
        except InvalidInputError:  # no tokenizer, which fitted edits do not need
            return mark
        return mark.model_copy(update={"texts": numbers_of(rows)})

    @property
    def weights(self) -> dict[str, object] | None:
        """Return the fingerprint as plain values, or None if no weights can be read."""
        mark = self.fingerprint()
        return None if mark is None else mark.to_dict()

    def check(self, role: str, edit: Edit) -> None:
        """Reject an edit that was fitted for a different space, width or set of weights.

        The width alone is not enough: two spaces of one model may have the same width (ViT-L/14:
        768 before and after its text head). For image edits and for edits that were fitted on
        images, the image tower is compared too.

        Args:
            role: the tensor that the edit would change.
            edit: the fitted edit.

        Raises:
            ProjectionMismatchError: If the edit does not fit; the message gives the reason.
        """
        fitted = edit.provenance.fingerprint
        present = None if fitted is None else self.fingerprint(role)
        fitted_on = edit.model_id or "unnamed model"
        refit = "fit it again on this host with vldebias.debias(host, attribute)"
        # A text edit may be attached to a model with a different image tower.
        uses_images = role == IMAGE or edit.provenance.uses_images
        fitted_images = edit.provenance.image_fingerprint if uses_images else None
        why = ""
        if edit.space not in (None, self.space(role)):
            library = edit.space.partition(".")[0]
            why = (
                f"was fitted on a model of {library}, and belongs to space {edit.space!r}, not"
                f" {self.space(role)!r}"
            )
        elif edit.dim != self.dim(role):
            why = f"has dim {edit.dim}, but {role!r} has {self.dim(role)}"
        elif fitted is not None and not fitted.matches(present):
            why = (
                f"was fitted on different weights ({fitted_on}): the text tower or its embeddings"
                " of three texts differ"
            )
        elif fitted_images is not None and not fitted_images.matches(self.image_fingerprint):
            why = f"was fitted with a different image tower ({fitted_on})"
        if why:
            raise ProjectionMismatchError(f"{self.name}: the projection {why}; {refit}")
        if fitted is not None and not fitted.same_adapters(present):
            warn(
                f"{self.name}: the projection was fitted with different adapters (LoRA) in the"
                f" text tower, and adapters change its embeddings; {refit}, or load the adapters"
                " that it was fitted with"
            )

    def edits_by_role(self, edits: Mapping[str, Edit]) -> dict[str, Edit]:
        """Return a checked edit for every role. Roles in the same space share an edit."""
        edit_of_space = {self.space(role): edit for role, edit in edits.items()}
        missing = [role for role in self.roles if self.space(role) not in edit_of_space]
        if missing:
            raise InvalidInputError(
                f"{self.name} has the roles {list(self.roles)}; got edits for {list(edits)}, none"
                f" for {missing}; fit them on this host with vldebias.fit_projections"
            )
        by_role = {role: edits.get(role, edit_of_space[self.space(role)]) for role in self.roles}
        for role, edit in by_role.items():
            self.check(role, edit)
        return by_role


PROBE = "a photo"
"""Text whose embedding reveals a host's width."""

TEXTS = (
    "a photo of a tree",
    "two small dogs are playing in the park",
    "The old town hall, in winter.",
)
"""Texts whose embeddings are part of a fingerprint. None of them mentions people."""


def numbers_of(rows: Tensor) -> tuple[tuple[float, ...], ...]:
    """Return dot products of rows (n, d) with 16 fixed random directions, for a fingerprint."""
    # Saved edits contain these numbers, so the seed must never change.
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(rows.shape[1], 16, generator=generator, dtype=torch.float64)
    numbers = rows @ directions / math.sqrt(16)
    return tuple(tuple(round(number, 5) for number in row) for row in numbers.tolist())


_ADAPTER = re.compile(r"lora_|\.to_[kv]_ip\.|image_projection_layers\.")
"""Matches parameter names that a LoRA or IP-Adapter adds to a model."""
# Number of values read from a large tensor; the limit keeps T5-XXL almost as fast as a small CLIP.
_VALUES = 65536
# Tensors up to this size are read in full, which covers every projection head.
_WHOLE = 1 << 21
# A vector with mean square 1 that resembles no pattern in weights. Longer tensors repeat it.
_WAVE = math.sqrt(2) * torch.sin(
    torch.arange(1, _VALUES + 1, dtype=torch.float64, device="cpu").square()
)


def weights_fingerprint(*modules: nn.Module) -> Fingerprint | None:
    """Return the structure and two numbers per tensor, or None if no weights can be read.

    No weights can be read if there are no modules, or if the weights are on the meta device. For
    tensors with more than two million values, an evenly spaced sample is used. Numbers are compared
    instead of a hash, because the same checkpoint may be loaded in float32, float16 or bfloat16.
    The second number, a product with a fixed vector, is needed because fine-tuning rotates a tensor
    much more than it scales it.
    """
    named: list[tuple[str, Tensor]] = []
    for place, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            # Loading a LoRA or IP-Adapter does not change the base weights.
            if not _ADAPTER.search(name):
                plain_name = name.replace(".base_layer", "")
                named.append((f"{place}.{plain_name}", parameter))
    named.sort(key=lambda pair: pair[0])
    if not named or any(tensor.is_meta for _, tensor in named):
        return None
    structure = "".join(f"{name}{tuple(tensor.shape)}" for name, tensor in named)
    return Fingerprint(
        structure=hashlib.sha256(structure.encode()).hexdigest()[:16],
        tensors=tuple(_numbers(tensor) for _, tensor in named),
        adapters=round(adapters_length(modules), 6),
    )


def _numbers(parameter: Tensor) -> tuple[float, float]:
    """Return a parameter's norm and its dot product with a fixed vector (`_WAVE`, repeated).

    Both are float64 sums, rounded so that the order of summation does not matter. Only a sample of
    a large parameter's values is read.
    """
    values = parameter.detach()
    kind = type(values)
    # torchao stores quantised values in its own tensor class.
    if kind is not Tensor and hasattr(kind, "dequantize"):
        values = values.dequantize()
    flat = values.flatten()
    if len(flat) > _WHOLE:
        # Widths are even, so an odd step visits different columns in each row.
        step = (len(flat) // _VALUES) | 1
        flat = flat[::step]
    wide = flat.to("cpu", torch.float64)
    product = sum(float(part @ _WAVE[: len(part)]) for part in wide.split(_VALUES))
    return round(float(wide.norm()), 6), round(product, 6)
