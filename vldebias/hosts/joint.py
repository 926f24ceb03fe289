"""Define what image-text models share: one joint space with two towers, a tokenizer, heads to fold edits into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from textwrap import shorten
from typing import Any

from torch import Tensor, nn

from vldebias.edit import Edit, Fingerprint
from vldebias.errors import InvalidInputError, TruncatedPromptWarning, warn
from vldebias.hosts.base import IMAGE, SIDES, TEXT, TOKENIZING, Host, read_rows
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hosts.merge import fold, foldable, last_layer


class JointHost(Host):
    """Serve a model whose text tower ends in the space that it shares with images.

    Roles are "joint" for texts and "image" for images, one or both (`at`); both lie in one space, so that one
    projection, fitted on texts, serves both. The tokenizer is looked for when a text has to be read, so that a fitted
    projection attaches without one.

    Attributes:
        head, image_head: the last layer of each tower: a parameter (width, d), a module, or None.
        text_modules, image_tower: the modules of a tower with its head; empty if images do not reach the joint space.
        wrapped_modules: role -> modules through which another model may be given the same embeddings.
        context_length: number of tokens that the text tower reads, special tokens included.
        find_tokenizer: the argument of `debias` -> a tokenizer. count_tokens: of prompts, uncut. decode: ids -> text.
        tokenize: prompts -> arguments of the text tower, (n, length) each on the CPU; padded as in the training.
        features, image_features: inputs of a tower -> (n, d) on the model's device, before normalising.
    """

    roles: tuple[str, ...] = (TEXT,)
    head: Any
    image_head: Any
    context_length: Any
    text_modules: Callable[[], list[nn.Module]]
    image_tower: Callable[[], list[nn.Module]]
    wrapped_modules: Callable[[str], tuple[object, ...]]
    find_tokenizer: Callable[[Any], Any]
    count_tokens: Callable[[list[str]], list[int]]
    tokenize: Callable[[list[str]], dict[str, Tensor]]
    decode: Callable[[tuple[int, ...]], str]
    features: Callable[[Mapping[str, Tensor]], Tensor]
    image_features: Callable[[Mapping[str, Tensor]], Tensor]

    def __init__(self, model: nn.Module, tokenizer: Any = None) -> None:
        self.model: Any = model
        self.name, self.model_id = type(model).__name__, getattr(model, "name_or_path", None) or None
        self._given_tokenizer = tokenizer

    @property
    def exclusive_modules(self) -> tuple[object, ...]:  # type: ignore[override]
        """Return the model, and the modules that may give its embeddings to other models."""
        return (self.model, *(module for role in self.roles for module in self.wrapped_modules(role)))

    # ---- texts -------------------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Any:
        """Return the tokenizer; raise InvalidInputError where there is none."""
        return self.find_tokenizer(self._given_tokenizer)

    def texts(self, ids: Tensor) -> list[str]:
        """Return the text of each row of token ids (b, length)."""
        return [self.decode(tuple(row)) for row in ids.reshape(-1, ids.shape[-1]).tolist()]

    def trained_features(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """Return `features` for training, where a host may skip padding that has no effect on them."""
        return self.features(tokens)

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Return (n, d) embeddings of prompts before normalising; raise InvalidInputError for unknown token ids."""
        with TOKENIZING:
            tokens = self.tokenize(list(prompts))
        tables = (m for part in self.text_modules() for m in part.modules() if isinstance(m, nn.Embedding))
        rows = max((table.num_embeddings for table in tables), default=0)  # the largest table is that of the tokens
        highest = max((int(ids.max()) for ids in tokens.values() if not ids.is_floating_point()), default=0)
        if rows and highest >= rows:
            raise InvalidInputError(
                f"tokenizer: got token ids up to {highest}; expected ids below {rows}, the vocabulary of {self.name}. "
                "Pass the model's own tokenizer"
            )
        device = next(self.model.parameters()).device
        device = "cpu" if device.type == "meta" else device  # weights that are fetched from there as they are needed
        return self.features({name: tensor.to(device) for name, tensor in tokens.items()})

    def read(self, prompts: Sequence[str], role: str = TEXT) -> dict[tuple[str, str], Tensor]:
        """Return rows of `prompts`; warn (TruncatedPromptWarning) of prompts that exceed the context length."""
        limit = self.context_length
        with TOKENIZING:
            counts = dict(zip(prompts, self.count_tokens(list(prompts)), strict=True))
        long = [f"{shorten(p, 60, placeholder=' ...')!r} ({n} tokens)" for p, n in counts.items() if n > limit]
        if long:
            shown = "; ".join(long[:3]) + (f"; and {len(long) - 3} more" if len(long) > 3 else "")
            warn(
                f"{self.name}: the context length is {limit} tokens; truncated prompts, to be shortened: {shown}",
                TruncatedPromptWarning,
            )
        return read_rows(self.encode, prompts, role, self.model)

    def embed(self, prompts: Sequence[str], role: str = TEXT) -> Tensor:
        """Return L2-normalised (n, d) float64 CPU embeddings of `prompts`, never edited, the same for both sides."""
        return super().embed(list(prompts), TEXT)

    # ---- the two sides -------------------------------------------------------------------------------------------

    def at(self, side: str) -> Host:
        """Return a host for the same model with its edits at `side`."""
        if SIDES.get(side) == self.roles:
            return self
        if side not in SIDES or (side != "text" and not self.image_tower()):
            return super().at(side)
        other = copy(self)
        other.roles = SIDES[side]
        return other

    def fitted_as(self, role: str) -> str:
        """Return "joint": the two sides share their space."""
        return TEXT

    def dim(self, role: str) -> int:
        """Return the width d of the joint space, from the head where it has one."""
        last = last_layer(self.head)
        width = last.shape[1] if isinstance(last, nn.Parameter) else getattr(last, "out_features", None)
        return width if isinstance(width, int) else super().dim(role)

    @cached_property
    def image_fingerprint(self) -> Fingerprint | None:  # type: ignore[override]
        """Return the fingerprint of the image tower with its head."""
        return weights_fingerprint(*self.image_tower())

    def merge(self, edits: Mapping[str, Edit], strength: float) -> Sequence[object]:
        """Fold the projection into the heads, in place and in the dtype of their weights; all of them or none."""
        heads = {TEXT: ("text", self.head), IMAGE: ("image", self.image_head)}
        last = {
            role: (f"{self.name}: the last layer of the {kind} tower", head) for role, (kind, head) in heads.items()
        }
        weights = {role: foldable(*last[role]) for role in self.roles}
        for role, axes in weights.items():
            fold(axes, edits[role].folded(), strength)
        return [self.model]
