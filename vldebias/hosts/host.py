"""Define the interface of every host, read models for fitting, identify their weights, and replace
their methods."""

from __future__ import annotations

import hashlib
import math
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast
from weakref import WeakKeyDictionary

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
from vldebias.projection.edit import Edit, Fingerprint
from vldebias.prompts import StatedWords

if TYPE_CHECKING:
    from vldebias.hosts.edits import EditAttachment
    from vldebias.hosts.values import DenoiserAttachment, PromptAttachment
    from vldebias.projection.projection import CalibratedProjection

TEXT, IMAGE = "joint", "image"
"""Roles of an image-text model: the outputs of its towers, in their joint space.

With P the projection, x an image and z a text before normalising, the model compares <x, P z> with
the edit on texts, <P x, z> = <x, P^T z> on images, <P x, P z> = <x, P^T P z> on both; each over the
two lengths. It is one projection, fitted once. Which side to take: docs/methods.md."""

SIDES = {"text": (TEXT,), "image": (IMAGE,), "both": (TEXT, IMAGE)}

BATCH = 64

TOKENIZING = threading.RLock()
"""Lock around every tokenizer: fast ones change truncation and padding in a call, for all threads
at once."""
# A worker that is forked while a thread holds the lock would wait for ever; Windows does not fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=cast("Any", TOKENIZING)._at_fork_reinit)

BARE: ContextVar[bool] = ContextVar("vldebias_bare", default=False)
"""True while hooks return embeddings unedited, in this thread or task."""


class Host(ABC):
    """Represent one model or pipeline by its tensors, each with a role.

    A subclass with a `library` is made as Host(model, tokenizer, negative), from the arguments of
    `debias`; it raises UnsupportedHostError for a class that it cannot serve.

    Attributes:
        name: class of the model, for messages. model_id: where its weights came from, if known.
        roles: the tensors that debias() changes by default. generative: it generates images from
            these tensors.
        rewrites: its prompts can be rewritten before they are encoded. edits_images: it changes
            input images.
        text_modules: the modules that texts pass through, as far as they are known.
        image_tower: the modules of an image tower that shares the space of the texts, with its
            head; else empty.
        image_fingerprint: that of `image_tower`, or None.
        exclusive_modules, shared_modules: what an attachment occupies: exclusively (the whole model
            or pipeline first), or together with attachments of other pipelines.
        memory: cache of embedded prompts and of the fingerprint, see `forget`.
        library: the package that defines the classes of its models, by which `register_host` makes
            it known.
    """

    name: str
    model_id: str | None = None
    roles: tuple[str, ...]
    generative: bool = False
    rewrites: bool = False
    edits_images: bool = False
    text_modules: Sequence[nn.Module] = ()
    image_tower: Sequence[nn.Module] = ()
    image_fingerprint: Fingerprint | None = None
    exclusive_modules: Sequence[object]
    shared_modules: Sequence[object] = ()
    memory: dict[Any, Any]
    library: ClassVar[str] = ""

    @abstractmethod
    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Return the rows (d,) by (role, prompt), as in `embed`; also of other roles that the same
        pass yields."""

    @staticmethod
    def read_by(
        encode: Callable[[list[str]], Tensor], prompts: Sequence[str], role: str, *models: nn.Module
    ) -> dict[tuple[str, str], Tensor]:
        """Return (role, prompt) -> row of `encode`, computed in batches: of length 1, float64, on
        the CPU."""
        with reading(*models):
            # Batches go to the CPU one by one, so that a GPU holds one at a time.
            blocks = []
            for start in range(0, len(prompts), BATCH):
                block = encode(list(prompts[start : start + BATCH]))
                blocks.append(block.detach().cpu().double())
            rows = torch.cat(blocks)
        return {
            (role, prompt): row
            for prompt, row in zip(prompts, normalize(rows, dim=-1), strict=True)
        }

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        """Hook the model so that embeddings pass through `attachment.apply`; return the function
        that takes the hooks off."""
        raise UnsupportedHostError(
            f"{self.name}: nothing can be attached; expected the model itself"
        )

    def install_prompts(self, attachment: PromptAttachment) -> Callable[[], None]:
        """Hook the pipeline so that prompts pass through `attachment.rewrite_texts` before they are
        encoded; return the function that takes the hooks off."""
        raise UnsupportedHostError(
            f"{self.name}: balanced prompts are for pipelines of diffusers; use another method,"
            " as 'difference'"
        )

    def install_values(self, attachment: DenoiserAttachment) -> Callable[[], None]:
        """Hook the denoiser so that each image gets its value in cross-attention; return the
        function that takes the hooks off."""
        raise UnsupportedHostError(
            f"{self.name}: values are set in the denoiser of a pipeline of diffusers"
        )

    def merge(self, edits: Mapping[str, CalibratedProjection], strength: float) -> Sequence[object]:
        """Fold the edits into plain weights, all or none; return the models whose config should
        record it."""
        raise UnsupportedHostError(
            f"{self.name}: cannot merge, because no layer is known that ends in the embeddings"
        )

    def space(self, role: str) -> str:
        """Return the name of the space of `role`, e.g. "diffusers.sequence"; roles of one space
        share their edit."""
        return f"{self.library.partition('.')[0]}.{role}"

    def at(self, side: str) -> Self:
        """Return this host with its edits at `side`, one of `SIDES`; raise UnsupportedHostError if
        it has no such."""
        if side not in SIDES:
            raise InvalidInputError(f"side: expected one of {', '.join(SIDES)}, got {side!r}")
        if self.image_tower:
            # The host alone is copied. The model is the same, and so is the memory of its rows.
            vars(self).setdefault("memory", {})
            host = copy(self)
            host.roles = SIDES[side]
            return host
        if side == "text":
            return self
        raise UnsupportedHostError(
            f"{self.name}: side={side!r} needs an image tower that shares a space with the texts,"
            " and here is none; use side='text'"
        )

    # ---- rows

    def embed(self, prompts: Sequence[str], role: str = TEXT) -> Tensor:
        """Return L2-normalised (n, d) float64 CPU embeddings of `prompts` as `role`, never edited;
        they are cached."""
        if not prompts:
            return torch.zeros(0, self.dim(role), dtype=torch.float64)
        memory = vars(self).setdefault("memory", {})
        # Looked up once: another thread may clear the memory meanwhile.
        rows = {prompt: memory.get((role, prompt)) for prompt in prompts}
        new = [prompt for prompt, row in rows.items() if row is None]
        if new:
            read = self.read(new, role)
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
        """Return the output of `embed` as the host with `edit` attached would return it.

        keep_stated: leave prompts that name an attribute word of the edit unchanged, as
        `vldebias.debias` does.
        """
        rows = self.embed(prompts, role)
        if edit is None:
            return rows
        if hasattr(edit, "wordings"):
            changed = self.reworded(edit, role, rows, prompts, strength)
        else:
            changed = edit(rows, strength)
        changed = normalize(changed, dim=-1)
        gate = StatedWords(edit.stated_words if keep_stated else ())
        stated = torch.tensor([bool(gate.find(prompt)) for prompt in prompts])
        return torch.where(stated[:, None], rows, changed)

    def reworded(
        self, edit: Any, role: str, z: Tensor, prompts: Sequence[str], strength: float
    ) -> Tensor:
        """Return embeddings (b, ..., d) of prompts by an edit with `wordings`, which averages over
        each prompt in other words."""
        if not prompts:
            raise InvalidInputError(f"{self.name}: {edit!r} needs the prompt of each row")
        wordings_of_row = [edit.wordings(prompt) for prompt in prompts]
        # Many prompts share wordings: each text is read once.
        different: dict[str, None] = {}
        for wordings in wordings_of_row:
            different |= dict.fromkeys(wordings)
        read = self.read(list(different), role)
        blocks = []
        for wordings in wordings_of_row:
            blocks.append(torch.stack([read[role, text] for text in wordings]))
        reworded = torch.stack(blocks)  # (b, wordings, d)
        return cast("Tensor", edit.combined(z, reworded, strength, unit=True))

    def forget(self) -> None:
        """Clear the memory, because the weights may have changed; so that of all copies by `at`."""
        vars(self).setdefault("memory", {}).clear()

    def dim(self, role: str) -> int:
        """Return the width of the embeddings of `role`."""
        # A text that was read before tells it too, and a service or a mapping need not have PROBE.
        for key, row in list(vars(self).setdefault("memory", {}).items()):
            if isinstance(key, tuple) and key[0] == role:
                return int(row.shape[-1])
        return self.embed([PROBE], role).shape[-1]

    # ---- which weights these are

    def fingerprint(self, role: str | None = None) -> Fingerprint | None:
        """Return the fingerprint of `text_modules`, with numbers of the embeddings of three texts
        as `role`.

        The numbers are products with fixed random directions. Settings of layers (an epsilon, an
        activation) and another tokenizer show in them, and in no weight. Return None without
        weights to read.
        """
        memory = vars(self).setdefault("memory", {})
        mark: Fingerprint | None
        # Once per host: the encoders of a large pipeline have gigabytes to read.
        try:
            mark = memory["weights"]
        except KeyError:
            mark = weights_fingerprint(*self.text_modules)
            memory["weights"] = mark
            is_offloaded = False  # accelerate keeps offloaded weights on the meta device
            for module in self.text_modules:
                if any(parameter.is_meta for parameter in module.parameters()):
                    is_offloaded = True
            if mark is None and is_offloaded:
                warn(
                    f"{self.name}: the weights of the text encoders are offloaded, so they have no"
                    " fingerprint and a projection is not checked against them; attach before they"
                    " are offloaded to have it"
                )
        if mark is None or role is None:
            return mark
        try:
            rows = self.embed(TEXTS, role)
        except InvalidInputError:  # no tokenizer: a fitted edit attaches without one
            return mark
        return mark.model_copy(update={"texts": numbers_of(rows)})

    @property
    def weights(self) -> dict[str, Any] | None:
        """Return the fingerprint of the weights as plain values; None for embeddings that were
        computed elsewhere."""
        mark = self.fingerprint()
        return None if mark is None else mark.to_dict()

    def check(self, role: str, edit: Edit) -> None:
        """Raise ProjectionMismatchError for an edit that was fitted for another space, width or set
        of weights.

        Two spaces of one model can share a width (ViT-L/14: 768 before and after its text head).
        The image tower is compared for edits of images and for edits that were fitted on images.
        """
        fitted = edit.provenance.fingerprint
        present = None if fitted is None else self.fingerprint(role)
        refit = "fit again on this host with vldebias.debias(host, prompts)"
        why = self._mismatch(role, edit, present)
        if why:
            raise ProjectionMismatchError(f"{self.name}: the projection {why}; {refit}")
        if fitted is not None and not fitted.same_adapters(present):
            warn(
                f"{self.name}: the projection was fitted with other adapters (LoRA) on the text"
                f" tower than it has now, and they change its embeddings; {refit}, or load the"
                " adapters that it was fitted with"
            )

    def edits_by_role(self, edits: Mapping[str, Edit]) -> dict[str, Edit]:
        """Return fitted edits for all roles, each checked by `check`; roles of one space share
        theirs."""
        edit_of_space = {self.space(role): edit for role, edit in edits.items()}
        missing = [role for role in self.roles if self.space(role) not in edit_of_space]
        if missing:
            raise InvalidInputError(
                f"{self.name} has the roles {list(self.roles)}; got no edit for {missing}: pass a"
                " mapping from role to edit"
            )
        by_role = {role: edits.get(role, edit_of_space[self.space(role)]) for role in self.roles}
        for role, edit in by_role.items():
            self.check(role, edit)
        return by_role

    def _mismatch(self, role: str, edit: Edit, present: Fingerprint | None) -> str:
        """Return why an edit is not for this host; "" where it is."""
        origin = edit.provenance
        fitted = origin.fingerprint
        fitted_on = edit.model_id or "unnamed model"
        if edit.space not in (None, self.space(role)):
            return f"belongs to space {edit.space!r}, here it is {self.space(role)!r}"
        if edit.dim != self.dim(role):
            return f"has dim {edit.dim}, {role!r} has {self.dim(role)}"
        if fitted is not None and not fitted.matches(present):
            return (
                f"was fitted on other weights ({fitted_on}): the text tower or its embeddings of"
                " three texts differ"
            )
        # An edit of texts may be attached beside a new image tower.
        uses_images = role == IMAGE or origin.uses_images
        fitted_images = origin.image_fingerprint if uses_images else None
        if fitted_images is not None and not fitted_images.matches(self.image_fingerprint):
            return f"was fitted with another image tower ({fitted_on}): its fingerprint differs"
        return ""


PROBE = "a photo"
"""The text whose embedding tells the width of a host."""

TEXTS = (
    "a photo of a tree",
    "two small dogs are playing in the park",
    "The old town hall, in winter.",
)
"""Texts whose embeddings are part of a fingerprint; none of them is about people."""


def numbers_of(rows: Tensor) -> tuple[tuple[float, ...], ...]:
    """Return products of rows (n, d) float64 with 16 fixed random directions, for a fingerprint."""
    # Saved edits hold such numbers: the seed can never change.
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(rows.shape[1], 16, generator=generator, dtype=torch.float64)
    numbers = rows @ directions / math.sqrt(16)
    rounded = []
    for row in numbers.tolist():
        rounded.append(tuple(round(number, 5) for number in row))
    return tuple(rounded)


_ADAPTER = re.compile(r"lora_|\.to_[kv]_ip\.|image_projection_layers\.")
"""Matches the names of parameters that a LoRA or an IP-Adapter adds to a model."""
# read of a tensor that is not read whole, so that a T5-XXL costs little more than a small CLIP
_VALUES = 65536
_WHOLE = 1 << 21  # values: every head that ends in a space of images and texts is smaller
# Of mean square 1, following no pattern of the weights; longer tensors repeat it.
_WAVE = math.sqrt(2) * torch.sin(
    torch.arange(1, _VALUES + 1, dtype=torch.float64, device="cpu").square()
)


def weights_fingerprint(*modules: nn.Module) -> Fingerprint | None:
    """Return the structure and two numbers per tensor; of tensors above two million values a spread
    sample is read.

    Return None where there are no weights to read (none at all, or on the meta device). Numbers
    rather than a hash of bytes, because the same checkpoint is loaded in float32, float16 and
    bfloat16. The wave, a product with a fixed vector of norm 1 per value, is there because
    fine-tuning turns a tensor much more than it stretches it.
    """
    named: list[tuple[str, Tensor]] = []
    for place, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            # Loading a LoRA or an IP-Adapter does not change which base weights these are.
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
    """Return the norm of a parameter and its product with a fixed vector (`_WAVE`, repeated), which
    tell weights apart; of a large parameter only a part of its values is read.

    Both are sums in float64, rounded, so that sums in another order give the same.
    """
    values = parameter.detach()
    kind = type(values)
    # torchao holds quantised values in a tensor class of its own.
    if kind is not Tensor and hasattr(kind, "dequantize"):
        values = values.dequantize()
    flat = values.flatten()
    if len(flat) > _WHOLE:
        # An odd step reads other columns in each row, since widths are even.
        step = (len(flat) // _VALUES) | 1
        flat = flat[::step]
    wide = flat.to("cpu", torch.float64)
    product = sum(float(part @ _WAVE[: len(part)]) for part in wide.split(_VALUES))
    return round(float(wide.norm()), 6), round(product, 6)


# ---- how models are read


@contextmanager
def during(state: ContextVar[Any], value: object = True) -> Iterator[None]:
    """Set the state to a value inside the block, in this thread or task."""
    token = state.set(value)
    try:
        yield
    finally:
        state.reset(token)


# Models that are read now, in how many places, and the modes that their modules had before the
# first.
_READ: WeakKeyDictionary[nn.Module, tuple[int, list[tuple[nn.Module, bool]]]] = WeakKeyDictionary()
_LOCK = threading.Lock()


@contextmanager
def reading(*models: nn.Module) -> Iterator[None]:
    """Read outputs for fitting: eval mode, no gradients, in the precision of the weights, never
    edited.

    A model that several threads read at once gets its modes back from the last of them.
    """
    devices = set[str]()
    for model in models:
        devices.update(parameter.device.type for parameter in model.parameters())
    with _LOCK:
        for model in models:
            readers, modes = _READ.get(model, (0, []))
            if not readers:
                modes = [(module, module.training) for module in model.modules()]
            _READ[model] = readers + 1, modes
            model.eval()
    try:
        # Autocast would round what an edit is fitted on.
        with ExitStack() as stack, torch.no_grad(), during(BARE):
            for device in devices:
                # The meta device has no autocast, and entering it raises.
                if torch.amp.is_autocast_available(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        with _LOCK:
            for model in models:
                readers, modes = _READ.pop(model)
                if readers > 1:
                    _READ[model] = readers - 1, modes
                    continue
                # One by one: parts of a model may have been frozen in eval mode.
                for module, training in modes:
                    module.training = training
