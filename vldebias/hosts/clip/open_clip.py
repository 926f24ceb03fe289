"""Apply edits to the outputs of `encode_text` and `encode_image` in open_clip models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import BoundArguments
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vldebias.errors import InvalidInputError, UnsupportedHostError, need
from vldebias.hosts.clip.images import JointHost, Layer
from vldebias.hosts.edits import IMAGE, TEXT, EditAttachment
from vldebias.hosts.hooks import Around, Original, hook_methods

if TYPE_CHECKING:
    from open_clip import CLIP, CoCa, CustomTextCLIP
    from open_clip.tokenizer import HFTokenizer, SimpleTokenizer

SUPPORTED = ("CLIP", "CustomTextCLIP", "CoCa")
# Include the private methods, because CoCa's `forward` calls them directly.
_ENCODE = {TEXT: ("encode_text", "_encode_text"), IMAGE: ("encode_image", "_encode_image")}


def folder_address(folder: str | Path) -> str:
    """Return the name under which open_clip loads a folder.

    Args:
        folder: a folder with open_clip_config.json and the weights, as written by training.

    Raises:
        UnsupportedHostError: If the installed open_clip cannot load folders.
    """
    release = need("open_clip").__version__
    if release.startswith("2."):
        raise UnsupportedHostError(
            f"open_clip {release} cannot load a model from a folder saved by training; install"
            " open_clip_torch 3 or newer"
        )
    return f"local-dir:{folder}"


class OpenClipHost(JointHost):
    """Support CLIP, CustomTextCLIP (with any text tower), CoCa and their subclasses.

    Edits apply to `encode_text` or `encode_image`, `forward` and `get_logits`.
    """

    library = "open_clip"
    model: CLIP | CustomTextCLIP | CoCa
    tokenizer: HFTokenizer | SimpleTokenizer

    def __init__(
        self, model: CLIP | CustomTextCLIP | CoCa, tokenizer: object = None, *_: object
    ) -> None:
        super().__init__(model, tokenizer)
        # Subclasses are also supported, such as those in a user's project.
        bases = type(model).__mro__
        names = [base.__name__ for base in bases if base.__module__.startswith("open_clip.")]
        if not set(SUPPORTED).intersection(names):
            raise UnsupportedHostError(
                f"{self.name}: expected one of the open_clip classes {', '.join(SUPPORTED)}; pass"
                " the complete model returned by open_clip.create_model, without TorchScript"
            )
        self.image_tower = [model.visual]

    @property
    def head(self) -> Layer | None:
        """Return the last layer of the text tower.

        This is `text_projection` in CLIP and open_clip's own text towers, and `proj` in Hugging
        Face towers.
        """
        tower = getattr(self.model, "text", self.model)
        return tower.proj if hasattr(tower, "proj") else tower.text_projection

    @property
    def image_head(self) -> Layer | None:
        """Return the last layer of the image tower.

        This is `proj` in a vision transformer, otherwise the last layer of a ResNet's attention
        pool or of a timm head.
        """
        visual = self.model.visual
        if hasattr(visual, "proj"):
            return visual.proj
        if hasattr(visual, "attnpool"):
            return visual.attnpool.c_proj
        # timm towers end in one or two layers.
        head = getattr(visual, "head", None)
        mlp = getattr(head, "mlp", None)
        return head if mlp is None else mlp.fc2

    def wrapped_modules(self, role: str) -> tuple[object, ...]:
        """Return the tower if it is a separate module; CLIP's text tower is part of the model."""
        name = "visual" if role == IMAGE else "text"
        return (getattr(self.model, name),) if hasattr(self.model, name) else ()

    @property
    def text_modules(self) -> list[nn.Module]:  # type: ignore[override]
        """Return the modules of the text tower.

        In CLIP, they are direct children. The other classes store the tower as `text`.
        """
        children = dict(self.model.named_children())
        for name in ("visual", "text_decoder"):
            children.pop(name, None)
        # Exclude the logit scale and bias, which belong to neither tower.
        named = self.model.named_parameters(recurse=False)
        weights = [weight for name, weight in named if not name.startswith("logit_")]
        return [*children.values(), nn.ParameterList(weights)]

    def find_tokenizer(self, tokenizer: object) -> HFTokenizer | SimpleTokenizer:
        """Return the given tokenizer, or CLIP's own if the context length and vocabulary match.

        Raises:
            InvalidInputError: If they do not match, or the argument is not an open_clip tokenizer.
        """
        if tokenizer is None:
            # With a different vocabulary, the token ids would stand for different words.
            length = getattr(self.model, "context_length", None)
            vocabulary = getattr(self.model, "vocab_size", None)
            if (length, vocabulary) != (77, 49408):
                raise InvalidInputError(
                    f"{self.name}: context length {length} and vocabulary {vocabulary} do not match"
                    " CLIP's own tokenizer (77, 49408); pass tokenizer=, the one that was loaded"
                    " with the model, or in place of the model what vldebias.load_host returns"
                )
            return need("open_clip").SimpleTokenizer()
        has_ids = hasattr(tokenizer, "tokenizer") or hasattr(tokenizer, "all_special_ids")
        has_length = hasattr(tokenizer, "context_length")
        if not callable(tokenizer) or not has_ids or not has_length:
            raise InvalidInputError(
                "tokenizer: expected a tokenizer from open_clip.get_tokenizer(model_name), got"
                f" {type(tokenizer).__name__}"
            )
        return tokenizer

    @property
    def context_length(self) -> int:
        """Return the smaller of the tokenizer's padding length and the model's context length.

        If one of the two is not defined, the other is used.
        """
        lengths = (self.tokenizer.context_length, getattr(self.model, "context_length", None))
        return min(length for length in lengths if length)

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Count the tokens of each prompt, after cleaning it as the tokenizer does."""
        inner = getattr(self.tokenizer, "tokenizer", None)
        if inner is None:
            # `encode` omits the start and end tokens.
            return [len(self.tokenizer.encode(prompt)) + 2 for prompt in prompts]
        clean = getattr(self.tokenizer, "clean_fn", str)
        return [len(inner(clean(prompt))["input_ids"]) for prompt in prompts]

    def tokenize(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        """Return {"text": token ids}, which open_clip pads to the context length."""
        return {"text": self.tokenizer(prompts, context_length=self.context_length)}

    def features(self, tokens: Mapping[str, Tensor]) -> Tensor:
        return self.model.encode_text(tokens["text"], normalize=False)

    def trained_features(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """Return `features`, computed without trailing padding if the tower is CLIP's own."""
        if not self._ignores_padding():
            return self.features(tokens)
        model = self.model
        ids = tokens["text"]
        # CLIP's end token has the highest id; models with a different vocabulary specify their own.
        if model.text_pool_type == "argmax":
            last = ids.argmax(-1)
        else:
            last = (ids == model.text_eos_id).int().argmax(-1)
        length = int(last.max()) + 1
        dtype = model.transformer.get_cast_dtype()
        positions = model.positional_embedding[:length].to(dtype)
        x = model.token_embedding(ids[:, :length]).to(dtype) + positions
        x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
        pooled: Tensor = x[torch.arange(len(ids), device=ids.device), last]
        head = model.text_projection
        if head is not None:
            pooled = head(pooled) if isinstance(head, nn.Module) else pooled @ head
        return pooled

    def _ignores_padding(self) -> bool:
        """Return whether the text tower is CLIP's own and causal, so that padding has no effect."""
        model = self.model
        clip = need("open_clip").CLIP
        # A subclass may override the encoding.
        if not isinstance(model, clip) or type(model).encode_text is not clip.encode_text:
            return False
        pools_end = model.text_pool_type in ("argmax", "eos")
        return (
            pools_end and model.attn_mask is not None and hasattr(model.transformer, "batch_first")
        )

    def image_features(self, pixels: Mapping[str, Tensor]) -> Tensor:
        return self.model.encode_image(pixels["pixel_values"], normalize=False)

    def decode(self, ids: tuple[int, ...]) -> str:
        """Decode up to the end token, because CLIP's tokenizer pads with the id of "!"."""
        tokenizer = self.tokenizer
        if hasattr(tokenizer, "tokenizer"):
            return str(tokenizer.tokenizer.decode(list(ids), skip_special_tokens=True))
        start, end, *_ = tokenizer.all_special_ids
        words = ids[: ids.index(end)] if end in ids else ids
        return str(tokenizer.decode([token for token in words if token != start]))

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        """Replace the instance's `encode_text` and `encode_image`.

        The features are edited before they are normalised.
        """
        stated_rows = self.stated_rows(attachment)
        calls = threading.local()  # records whether a thread is inside an edited method

        def encode(role: str, original: Original, call: BoundArguments) -> object:
            # If one edited method calls another, only the outermost call is edited.
            if not attachment.acts or getattr(calls, "inside", False):
                return original(*call.args, **call.kwargs)
            # The edit must be applied before normalisation, so do not let the method normalise.
            normalizes = bool(call.arguments.get("normalize", False))
            if normalizes:
                call.arguments["normalize"] = False
            calls.inside = True
            try:
                output = original(*call.args, **call.kwargs)
            finally:
                calls.inside = False
            # CoCa's private methods return ((b, d), tokens) instead of features (b, d). The tokens
            # stay unchanged.
            features = output[0] if isinstance(output, tuple) else output
            if role == IMAGE:
                features = attachment.apply(role, features)
            else:
                ids = next(iter(call.arguments.values()))
                features = attachment.apply_by_ids(role, features, ids, stated_rows, self.texts)
            if normalizes:
                features = F.normalize(features, dim=-1)
            return (features, *output[1:]) if isinstance(output, tuple) else features

        around: dict[str, Around] = {}
        for role in self.roles:
            for name in _ENCODE[role]:
                if hasattr(self.model, name):  # only CoCa has the private methods
                    around[name] = partial(encode, role)
        if hasattr(self.model, "forward_intermediates"):
            around["forward_intermediates"] = partial(self._refuse_intermediates, attachment)
        return hook_methods(attachment, self.model, around)

    def _refuse_intermediates(
        self, attachment: EditAttachment, original: Original, call: BoundArguments
    ) -> object:
        """Reject `forward_intermediates`, which does not call the edited methods."""
        if not attachment.acts:
            return original(*call.args, **call.kwargs)
        raise UnsupportedHostError(
            f"{self.name}: the edit does not apply to forward_intermediates. Call encode_text or"
            " encode_image for edited features, or forward_intermediates inside `with"
            " attachment.disabled():`"
        )
