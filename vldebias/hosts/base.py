"""Define the interface of every host: roles, rows of prompts, a place for edits, weights to merge."""

from __future__ import annotations

import functools
import inspect
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Never, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.edit import Edit, Fingerprint
from vldebias.errors import InvalidInputError, ProjectionMismatchError, UnsupportedHostError, VldebiasError, warn
from vldebias.hosts.fingerprint import TEXTS, weights_fingerprint
from vldebias.prompts import StatedWords

if TYPE_CHECKING:
    from vldebias.hosts.attachment import Attachment

TEXT, IMAGE = "joint", "image"
"""Roles of an image-text model: the outputs of its towers, in their joint space.

With P the projection, x an image and z a text before normalising, the model compares <x, P z> with the edit on texts,
<P x, z> = <x, P^T z> on images, <P x, P z> = <x, P^T P z> on both; each over the two lengths. It is one projection,
fitted once. Which side to take: docs/methods.md."""

SIDES = {"text": (TEXT,), "image": (IMAGE,), "both": (TEXT, IMAGE)}

Texts = Callable[[], Sequence[str]]
"""Returns the text of each prompt of a batch; called only where the text decides what is edited."""


class Host(ABC):
    """Represent one model or pipeline by its tensors, each with a role.

    A subclass with a `library` is made as Host(model, tokenizer, negative), from the arguments of `debias`; it raises
    UnsupportedHostError for a class that it cannot serve.

    Attributes:
        name: class of the model, for messages. model_id: where its weights came from, if known.
        roles: the tensors that debias() changes by default. generative: it generates images from these tensors.
        rewrites: its prompts can be rewritten before they are encoded. edits_images: it changes input images.
        exclusive_modules, shared_modules: what an attachment occupies: exclusively (the whole model or pipeline first),
            or together with attachments of other pipelines.
        image_fingerprint: that of the image tower, if it shares the space of the texts; else None.
        memory: cache of embedded prompts.
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
    image_fingerprint: Fingerprint | None = None
    memory: Mapping[tuple[str, str], Tensor] = MappingProxyType({})
    library: ClassVar[str] = ""

    @abstractmethod
    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """Return the rows (d,) by (role, prompt), as in `embed`; also of other roles that the same pass yields."""

    def install(self, attachment: Attachment) -> Callable[[], None]:
        """Hook the model so that embeddings pass through `attachment.apply`; return the function that undoes it.

        Of a host that `rewrites`, prompts pass through `attachment.rewrite` before they are encoded.
        """
        raise UnsupportedHostError(f"{self.name}: nothing can be attached; expected the model itself")

    def merge(self, edits: Mapping[str, Edit], strength: float) -> Sequence[object] | None:
        """Fold the edits into plain weights; return the models whose config should record it.

        Raises:
            UnsupportedHostError: weights cannot hold them; none was changed.
        """
        raise UnsupportedHostError(f"{self.name}: cannot merge, because no layer is known that ends in the embeddings")

    def space(self, role: str) -> str:
        """Return the name of the space of `role`, e.g. "open_clip.joint" or "diffusers.sequence"."""
        return f"{self.library.partition('.')[0]}.{self.fitted_as(role)}"

    def text_modules(self) -> Sequence[nn.Module]:
        """Return the modules that texts pass through, as far as they are known."""
        return ()

    def at(self, side: str) -> Host:
        """Return this host with its edits at `side`, one of `SIDES`.

        Raises:
            InvalidInputError: an unknown side. UnsupportedHostError: a side that this host lacks.
        """
        if side not in SIDES:
            raise InvalidInputError(f"side: expected one of {', '.join(SIDES)}, got {side!r}")
        if side == "text":
            return self
        raise UnsupportedHostError(
            f"{self.name}: side={side!r} needs an image tower that shares a space with the texts, and here is none; "
            "use side='text'"
        )

    def fitted_as(self, role: str) -> str:
        """Return the role whose edit serves `role`: another one where two roles share a space."""
        return role

    # ---- rows ----------------------------------------------------------------------------------------------------

    def embed(self, prompts: Sequence[str], role: str) -> Tensor:
        """Return L2-normalised (n, d) float64 CPU embeddings of `prompts` in the space of `role`, never edited.

        Embeddings are cached until `forget`. An empty list of prompts gives (0, d).
        """
        if not prompts:
            return torch.zeros(0, self.dim(role), dtype=torch.float64)
        memory = vars(self).setdefault("memory", {})
        rows = {prompt: memory.get((role, prompt)) for prompt in prompts}  # another thread may `forget` meanwhile
        new = [prompt for prompt, row in rows.items() if row is None]
        if new:
            read = self.read(new, role)
            memory.update(read)
            rows.update({prompt: read[role, prompt] for prompt in new})
        return torch.stack([rows[prompt] for prompt in prompts])

    def under(
        self, prompts: Sequence[str], role: str, edit: Edit | None, *, strength: float = 1.0, keep_stated: bool = True
    ) -> Tensor:
        """Return the output of `embed` as the host with `edit` attached would return it.

        keep_stated: leave prompts that name an attribute word of the edit unchanged, as `vldebias.debias` does.
        """
        rows = self.embed(prompts, role)
        if edit is None:
            return rows
        changed = normalize(self.edited(edit, role, rows, prompts, strength), dim=-1)
        gate = StatedWords(edit.stated_words if keep_stated else ())
        stated = torch.tensor([gate.match(prompt) for prompt in prompts])
        return torch.where(stated[:, None], rows, changed)

    def edited(self, edit: Any, role: str, z: Tensor, prompts: Sequence[str], strength: float) -> Tensor:
        """Return edited embeddings (b, ..., d) of prompts; a method with `wordings` reads prompts in those words."""
        if not hasattr(edit, "wordings"):
            return cast("Tensor", edit(z, strength))
        wordings = [edit.wordings(prompt) for prompt in prompts]
        read = self.read(list(dict.fromkeys(text for one in wordings for text in one)), role)
        each = torch.stack([torch.stack([read[role, text] for text in one]) for one in wordings])
        return cast("Tensor", edit.combined(z, each, strength, unit=True))

    def dim(self, role: str) -> int:
        """Return the width of the embeddings of `role`."""
        return self.embed(["a photo"], role).shape[-1]

    # ---- which weights these are -----------------------------------------------------------------------------------

    def forget(self) -> None:
        """Clear the cached embeddings and fingerprint, since weights may change."""
        for name in ("memory", "_weights"):
            vars(self).pop(name, None)

    @cached_property
    def _weights(self) -> Fingerprint | None:
        modules = self.text_modules()
        mark = weights_fingerprint(*modules)
        if mark is None and any(one.is_meta for module in modules for one in module.parameters()):
            warn(
                f"{self.name}: the weights of the text encoders are offloaded, so they have no fingerprint and a "
                "projection is not checked against them; attach before they are offloaded to have it"
            )
        return mark

    def fingerprint(self, role: str | None = None) -> Fingerprint | None:
        """Return the fingerprint of `text_modules`, with numbers of the embeddings of three texts as `role`.

        The numbers are products with fixed random directions: the difference between two texts is about as long as
        that between their numbers. Settings of layers (an epsilon, an activation) and another tokenizer show here,
        which no weight tells. Return None without weights to read.
        """
        mark = self._weights
        if mark is None or role is None:
            return mark
        try:
            rows = self.embed(TEXTS, role)
        except InvalidInputError:  # no tokenizer: a fitted edit attaches without one
            return mark
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(rows.shape[1], 16, generator=generator, dtype=torch.float64)
        numbers = rows @ directions / math.sqrt(16)
        return replace(mark, texts=tuple(tuple(round(x, 5) for x in row) for row in numbers.tolist()))

    def check(self, role: str, edit: Edit) -> None:
        """Refuse an edit that was fitted for another space, width or set of weights.

        Two spaces of one model can share a width (ViT-L/14: 768 before and after its text head). The image tower is
        compared for edits of images and for edits that were fitted on images.

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
            why = (
                f"was fitted on other weights ({edit.model_id or 'unnamed model'}): the fingerprint of the text tower "
            )
            why += "differs, or its embeddings of three texts do"
        elif beside is not None and not beside.matches(self.image_fingerprint):
            why = f"was fitted with another image tower ({edit.model_id or 'unnamed model'}): its fingerprint differs"
        if why:
            raise ProjectionMismatchError(f"{self.name}: the projection {why}; {refit}")
        if origin.fingerprint is not None and not origin.fingerprint.same_adapters(mark):
            warn(
                f"{self.name}: the projection was fitted with other adapters (LoRA) on the text tower than it has now, "
                f"and they change its embeddings; {refit}, or load the adapters that it was fitted with"
            )


# ---- how models are read -------------------------------------------------------------------------------------------

BATCH = 64

TOKENIZING = threading.RLock()
"""Lock around every tokenizer: fast ones change truncation and padding in a call, for all threads at once."""
if hasattr(os, "register_at_fork"):  # a worker that is forked while a thread holds the lock would wait for ever
    os.register_at_fork(after_in_child=cast("Any", TOKENIZING)._at_fork_reinit)

BARE: ContextVar[bool] = ContextVar("vldebias_bare", default=False)
"""True while hooks return embeddings unedited, in this thread or task."""


@contextmanager
def during(state: ContextVar[Any], value: Any = True) -> Iterator[None]:
    """Set the state to a value inside the block, in this thread or task."""
    token = state.set(value)
    try:
        yield
    finally:
        state.reset(token)


# Models that are read now, in how many places, and the modes that their modules had before the first.
_READ: WeakKeyDictionary[nn.Module, tuple[int, list[tuple[nn.Module, bool]]]] = WeakKeyDictionary()
_LOCK = threading.Lock()


@contextmanager
def reading(*models: nn.Module) -> Iterator[None]:
    """Read outputs for fitting: eval mode, no gradients, in the precision of the weights, never edited.

    A model that several threads read at once gets its modes back from the last of them.
    """
    devices = {p.device.type for m in models for p in m.parameters() if torch.amp.is_autocast_available(p.device.type)}
    with _LOCK:
        for model in models:
            readers, modes = _READ.get(model) or (0, [(module, module.training) for module in model.modules()])
            _READ[model] = readers + 1, modes
            model.eval()
    try:
        with ExitStack() as stack, during(BARE), torch.no_grad():
            for kind in devices:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        with _LOCK:
            for model in models:
                readers, modes = _READ.pop(model)
                if readers > 1:
                    _READ[model] = readers - 1, modes
                    continue
                for module, training in modes:  # one by one: parts of a model may have been frozen in eval mode
                    module.training = training


def read_rows(
    encode: Callable[[list[str]], Tensor], prompts: Sequence[str], role: str, *models: nn.Module
) -> dict[tuple[str, str], Tensor]:
    """Return (role, prompt) -> row of `encode`, computed in batches: of length 1, float64, on the CPU."""
    with reading(*models):
        blocks = [encode(list(prompts[start : start + BATCH])) for start in range(0, len(prompts), BATCH)]
        rows = torch.cat([block.detach().cpu().double() for block in blocks])
    return {(role, prompt): row for prompt, row in zip(prompts, normalize(rows, dim=-1), strict=True)}


@contextmanager
def replaced(owner: Any, method: str, function: Any) -> Iterator[None]:
    """Replace a method inside the block, as an attribute of the instance."""
    before = vars(owner).get(method)
    setattr(owner, method, function)
    try:
        yield
    finally:
        delattr(owner, method)
        if before is not None:
            setattr(owner, method, before)


# ---- hooks on a model ----------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Hook:
    """Hook a model for one attachment; refuse copies and pickles of the model, which would be edited as well."""

    attachment: Attachment

    def __reduce_ex__(self, protocol: Any) -> Never:
        raise VldebiasError(
            f"{self.attachment.host.name}: a model cannot be copied or pickled while an edit is attached; call "
            ".remove() or .merge() first. state_dict() and save_pretrained() work at any time"
        )


@dataclass(eq=False, repr=False)
class MethodHook(Hook):
    """Replace a method of one object, as an attribute of the instance.

    around: original method, arguments of a call -> what the call returns. before: the attribute that it replaced.
    """

    owner: Any
    method: str
    around: Callable[[Callable[..., Any], inspect.BoundArguments], Any]
    before: Any = None

    @property
    def original(self) -> Callable[..., Any]:
        """Return the method that is replaced: the attribute of the instance, else the method of the class."""
        return self.before or MethodType(getattr(type(self.owner), self.method), self.owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `around` while the attachment is attached, else the original method."""
        if self.attachment.state != "attached" or BARE.get():
            return self.original(*args, **kwargs)
        call = inspect.signature(self.original).bind(*args, **kwargs)
        call.apply_defaults()
        return self.around(self.original, call)


def installed(hooks: Sequence[MethodHook]) -> Callable[[], None]:
    """Replace methods by their hooks; return the function that restores them, unless they were replaced again."""
    for hook in hooks:
        hook.before = vars(hook.owner).get(hook.method)
        functools.update_wrapper(cast("Any", hook), hook.original)
        setattr(hook.owner, hook.method, hook)

    def take_off() -> None:
        for hook in hooks:
            if vars(hook.owner).get(hook.method) is not hook:
                raise VldebiasError(
                    f"{hook.attachment.host.name}: {hook.method} was replaced again after attaching; undo that first"
                )
            delattr(hook.owner, hook.method)
            if hook.before is not None:
                setattr(hook.owner, hook.method, hook.before)

    return take_off
