"""What image-text models have in common: one joint space with a seam on each side, a tokenizer, heads to fold into."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property, lru_cache
from textwrap import shorten
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vldebias.edit import Edit, Fingerprint
from vldebias.errors import InvalidInputError, TruncatedPromptWarning, UnsupportedHostError, warn
from vldebias.hosts.base import Host
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hosts.merge import fold, foldable, last_layer
from vldebias.hosts.seam import reading
from vldebias.hosts.side import IMAGE, TEXT, roles_of

_BATCH = 64


class JointHost(Host):
    """A model whose text tower ends in the space that it shares with images.

    Roles are "joint" for texts and "image" for images, one or both (`at`); both lie in one space, so that one
    projection, fitted on texts, serves both. The tokenizer is looked for when a text has to be read, so that a fitted
    projection attaches without one.
    """

    held: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(self, model: nn.Module, tokenizer: Any = None) -> None:
        self.model = model
        self.name = type(model).__name__
        self._given_tokenizer = tokenizer

    @cached_property
    def _read_ids(self) -> Callable[[tuple[int, ...]], str]:
        return lru_cache(maxsize=1024)(self.decode)

    def __getstate__(self) -> dict[str, Any]:
        """Without the texts that were read: they are of this host's decoder, and a worker could not unpickle them."""
        return {name: value for name, value in vars(self).items() if name != "_read_ids"}

    @classmethod
    @abstractmethod
    def reads(cls, model: Any, tokenizer: Any = None) -> Self | None:
        """The host for a model that may be read, though nothing be attached to it, as to compiled code; else None."""

    @property
    @abstractmethod
    def head(self) -> object:
        """What makes the joint embedding: a parameter (width, d), a module, or None."""

    @property
    @abstractmethod
    def image_head(self) -> object:
        """The same of the image tower; None where nothing can be folded or there is no image tower."""

    @abstractmethod
    def text_modules(self) -> list[nn.Module]:
        """The modules of the text tower with its head."""

    @abstractmethod
    def image_tower(self) -> list[nn.Module]:
        """The modules of the image tower with its head; empty where its images do not reach the joint space."""

    @abstractmethod
    def wrapped_modules(self, role: str) -> tuple[object, ...]:
        """Modules behind the seam of `role` through which another model may be given the same embeddings."""

    @abstractmethod
    def find_tokenizer(self, given: Any) -> Any:
        """A tokenizer that can encode and decode, from the argument or from the model."""

    @property
    @abstractmethod
    def context_length(self) -> int:
        """Number of tokens that the text tower reads, special tokens included."""

    @abstractmethod
    def token_counts(self, prompts: Sequence[str]) -> list[int]:
        """Number of tokens of each prompt, special tokens included, before it is cut."""

    @abstractmethod
    def tokens(self, prompts: Sequence[str], *, full: bool = False) -> dict[str, Tensor]:
        """What the text tower is called with: names of arguments -> tensors (n, length) on the CPU.

        Cut to the context length; padded as the model was trained, with `full` to the context length.
        """

    @abstractmethod
    def features(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """(n, d) embeddings of what `tokens` gave, on the model's device, before normalising."""

    @abstractmethod
    def image_features(self, pixels: Mapping[str, Tensor]) -> Tensor:
        """(n, d) embeddings of images as their tower reads them, on the model's device, before normalising."""

    def without_padding(self) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """Tokens, (b, length) each -> features (b, d) as `features` gives them, differentiable.

        A host whose padding cannot reach the embedding reads only as many columns as the longest text of a batch has.
        """
        return self.features

    def shortened(self, tokens: Mapping[str, Tensor], kept: Tensor | None) -> Tensor:
        """Features without the columns after the last one of `kept` (b, length) that is not zero in any row."""
        columns = torch.zeros(0) if kept is None else (kept != 0).any(dim=0).nonzero()
        length = int(columns.max()) + 1 if len(columns) else None
        return self.features({name: tensor[:, :length] for name, tensor in tokens.items()})

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """(n, d) embeddings of at most a batch of prompts, as the model gives them before normalising.

        Raises:
            InvalidInputError: token ids that the text tower has no row for, as those of another tokenizer.
        """
        tokens = self.tokens(prompts)
        highest = max((int(ids.max()) for ids in tokens.values() if not ids.is_floating_point()), default=0)
        if self._vocabulary and highest >= self._vocabulary:
            raise InvalidInputError(
                f"tokenizer: its ids go up to {highest}, and the text tower of {self.name} has rows for 0 .. "
                f"{self._vocabulary - 1}; give the model's own tokenizer"
            )
        return self.features({name: tensor.to(self.device) for name, tensor in tokens.items()})

    @cached_property
    def _vocabulary(self) -> int:
        """Rows of the text tower's largest table, which is that of its tokens; 0 where it has none."""
        tables = (m for part in self.text_modules() for m in part.modules() if isinstance(m, nn.Embedding))
        return max((table.num_embeddings for table in tables), default=0)

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the text tower reads its tokens."""

    @abstractmethod
    def decode(self, ids: tuple[int, ...]) -> str:
        """The text of one row of token ids without special tokens."""

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer; raises InvalidInputError where there is none."""
        return self.find_tokenizer(self._given_tokenizer)

    def at(self, side: str) -> Host:
        """A host for the same model with its seams at `side`."""
        if roles_of(side) == self.roles:
            return self
        if side != "text" and not self.image_tower():
            return super().at(side)
        other = copy(self)
        other.choose(side)
        return other

    def choose(self, side: str) -> None:
        """Set roles and claims for `side`."""
        self.roles = roles_of(side)
        self.exclusive_modules = (self.model, *(module for role in self.roles for module in self.wrapped_modules(role)))

    def fitted_as(self, role: str) -> str:
        """ "joint": the two sides share their space."""
        return TEXT

    def space(self, role: str) -> str:
        """ "open_clip.joint" or "transformers.joint"; the fingerprint tells models apart."""
        return f"{self.library}.{self.fitted_as(role)}"

    def dim(self, role: str) -> int:
        """Width d of the joint space, from the head where it has one."""
        last = last_layer(self.head)
        width = last.shape[1] if isinstance(last, nn.Parameter) else getattr(last, "out_features", None)
        return width if isinstance(width, int) else super().dim(role)

    @cached_property
    def _fingerprints(self) -> tuple[Fingerprint | None, Fingerprint | None]:
        return weights_fingerprint(*self.text_modules()), weights_fingerprint(*self.image_tower())

    def fingerprint(self) -> Fingerprint | None:
        """Of the text tower with its head, computed once."""
        return self._fingerprints[0]

    def image_fingerprint(self) -> Fingerprint | None:
        """Of the image tower with its head, computed once."""
        return self._fingerprints[1]

    def embed(self, prompts: Sequence[str], role: str = TEXT) -> Tensor:
        """L2-normalised (n, d) float64 CPU embeddings of `prompts`, never projected; of both sides alike."""
        return super().embed(list(prompts), TEXT)

    def read(self, prompts: Sequence[str], role: str = TEXT) -> dict[tuple[str, str], Tensor]:
        """Rows of `prompts`, in batches.

        Warns:
            TruncatedPromptWarning: a prompt has more tokens than the text tower reads.
        """
        self._warn_of_cuts(prompts)
        batches = [prompts[i : i + _BATCH] for i in range(0, len(prompts), _BATCH)]
        with reading(self.model):
            rows = [self.encode(batch).cpu().double() for batch in batches]
        return {(role, p): row for p, row in zip(prompts, F.normalize(torch.cat(rows), dim=-1), strict=True)}

    def texts(self, ids: Tensor) -> list[str]:
        """The text of each row of token ids (b, length)."""
        return [self._read_ids(tuple(row)) for row in ids.reshape(-1, ids.shape[-1]).tolist()]

    def merge(self, edits: Mapping[str, Edit], strength: float) -> None:
        """Fold the projection into the heads, in place and in the dtype of their weights; all of them or none."""
        heads = {TEXT: ("text", self.head), IMAGE: ("image", self.image_head)}
        weights = {role: foldable(self.name, *heads[role]) for role in self.roles}
        for role, axes in weights.items():
            fold(axes, edits[role].folded(), strength)

    def _warn_of_cuts(self, prompts: Sequence[str]) -> None:
        limit = self.context_length
        counts = dict(zip(prompts, self.token_counts(prompts), strict=True))
        long = [
            f"{shorten(prompt, 60, placeholder=' ...')!r} ({count} tokens)"
            for prompt, count in counts.items()
            if count > limit
        ]
        if long:
            shown = "; ".join(long[:3]) + (f"; and {len(long) - 3} more" if len(long) > 3 else "")
            message = f"{self.name} reads {limit} tokens; the rest of {shown} is cut off: shorten it"
            warn(message, TruncatedPromptWarning)


def forget_compiled() -> None:
    """For what is attached as a hook, which code that was compiled before does not look for again."""
    if "torch._dynamo" in sys.modules:  # else nothing was compiled
        torch.compiler.reset()


def refuse_frozen_code(model: nn.Module) -> None:
    """TorchScript and compiled code has its calls fixed: what is put on it or taken off may not be noticed."""
    name = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedHostError(
            f"{name}: a TorchScript model has its calls fixed. Build it without jit (jit=False in open_clip)"
        )
    if any(module._compiled_call_impl is not None for module in model.modules()):
        raise UnsupportedHostError(
            f"{name}: the model was compiled in place, and compiled code may not notice an attachment. Attach to "
            "a fresh model, or attach, .merge() and compile then"
        )
