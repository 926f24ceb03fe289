"""Apply edits in open_clip models, to the outputs of `encode_text` and `encode_image` before normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vldebias.errors import InvalidInputError, UnsupportedHostError, need
from vldebias.hosts.base import BARE, IMAGE, TEXT, Apply, MethodSeam, during, installed
from vldebias.hosts.joint import JointHost

SUPPORTED = ("CLIP", "CustomTextCLIP", "CoCa")
# CoCa's forward goes through the private ones
_ENCODE = {TEXT: ("encode_text", "_encode_text"), IMAGE: ("encode_image", "_encode_image")}


class OpenClipHost(JointHost):
    """Serve CLIP, CustomTextCLIP (with any text tower), CoCa and their subclasses.

    An edit shows in `encode_text` or `encode_image`, `forward` and `get_logits` alike.
    """

    library = "open_clip"

    def __init__(self, model: Any, tokenizer: Any = None, negative: bool = False) -> None:
        super().__init__(model, tokenizer)
        if not any(b.__module__.startswith("open_clip.") and b.__name__ in SUPPORTED for b in type(model).__mro__):
            raise UnsupportedHostError(
                f"{self.name}: expected one of the open_clip classes {', '.join(SUPPORTED)}; "
                "pass the whole model, as open_clip.create_model returns it, built without TorchScript"
            )

    @property
    def head(self) -> object:
        """Return `text_projection` of CLIP and of open_clip's own text towers, `proj` of a Hugging Face tower."""
        tower = getattr(self.model, "text", self.model)
        return tower.proj if hasattr(tower, "proj") else tower.text_projection

    @property
    def image_head(self) -> object:
        """Return `proj` of a vision transformer, else the last layer of a ResNet's attention pool or of timm's head."""
        visual = self.model.visual
        if hasattr(visual, "proj"):
            return visual.proj
        if hasattr(visual, "attnpool"):
            return visual.attnpool.c_proj
        head = getattr(visual, "head", None)
        mlp = getattr(head, "mlp", None)
        return head if mlp is None else mlp.fc2

    def image_tower(self) -> list[nn.Module]:
        """Return `visual`."""
        return [self.model.visual]

    def wrapped_modules(self, role: str) -> tuple[object, ...]:
        """Return the towers that are modules: CLIP's own text tower is the model itself."""
        tower = getattr(self.model, "visual" if role == IMAGE else "text", None)
        return () if tower is None else (tower,)

    def text_modules(self) -> list[nn.Module]:
        """Return the text tower: CLIP has its parts as its own children, the other classes have it as `text`."""
        children = [one for name, one in self.model.named_children() if name not in ("visual", "text_decoder")]
        own = [p for name, p in self.model.named_parameters(recurse=False) if not name.startswith("logit_")]
        return [*children, nn.ParameterList(own)]

    def find_tokenizer(self, given: Any) -> Any:
        """Return the argument, or CLIP's own tokenizer where context length and vocabulary are CLIP's."""
        if given is None:
            sizes = (getattr(self.model, "context_length", None), getattr(self.model, "vocab_size", None))
            if sizes != (77, 49408):
                raise InvalidInputError(
                    f"{self.name}: context length {sizes[0]} and vocabulary {sizes[1]} are not those of CLIP's own "
                    "tokenizer (77, 49408); pass tokenizer=open_clip.get_tokenizer(model_name)"
                )
            return need("open_clip").SimpleTokenizer()
        has_ids = hasattr(given, "tokenizer") or hasattr(given, "all_special_ids")
        if not callable(given) or not has_ids or not hasattr(given, "context_length"):
            raise InvalidInputError(
                f"tokenizer: expected what open_clip.get_tokenizer(model_name) returns, got {type(given).__name__}"
            )
        return given

    @property
    def context_length(self) -> int:
        """Return the smaller of the tokenizer's length, which it pads to, and the model's, where each has one."""
        lengths = (self.tokenizer.context_length, getattr(self.model, "context_length", None))
        return min(length for length in lengths if length)

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Count tokens after the tokenizer's own cleaning, start and end tokens of CLIP's tokenizer included."""
        inner = getattr(self.tokenizer, "tokenizer", None)
        if inner is None:
            return [len(self.tokenizer.encode(prompt)) + 2 for prompt in prompts]
        clean = getattr(self.tokenizer, "clean_fn", str)
        return [len(inner(clean(prompt))["input_ids"]) for prompt in prompts]

    def tokenize(self, prompts: Sequence[str], full: bool) -> dict[str, Tensor]:
        """Return token ids as `text`; open_clip's tokenizers always pad to the context length."""
        return {"text": self.tokenizer(prompts, context_length=self.context_length)}

    def features(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """Return the output of `encode_text`."""
        return cast("Tensor", self.model.encode_text(tokens["text"], normalize=False))

    def image_features(self, pixels: Mapping[str, Tensor]) -> Tensor:
        """Return the output of `encode_image` for "pixel_values"."""
        return cast("Tensor", self.model.encode_image(pixels["pixel_values"], normalize=False))

    def without_padding(self) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """Return a function that encodes without padding, for open_clip's own causal towers and Hugging Face towers."""
        model, clip = self.model, need("open_clip").CLIP
        if (
            isinstance(model, clip)
            and type(model).encode_text is clip.encode_text
            and model.attn_mask is not None  # no token sees a later one
            and getattr(model, "text_pool_type", None) in ("argmax", "eos")
            and hasattr(model.transformer, "batch_first")  # before that, `encode_text` itself turned the axes
        ):
            return partial(_causal, model)
        pad = getattr(getattr(getattr(model, "text", None), "config", None), "pad_token_id", None)
        return self.features if pad is None else lambda tokens: self.shortened(tokens, tokens["text"] != pad)

    def decode(self, ids: tuple[int, ...]) -> str:
        """Decode ids to text up to the end token, since CLIP's tokenizer pads with the id of "!"."""
        tokenizer = self.tokenizer
        if hasattr(tokenizer, "tokenizer"):
            return str(tokenizer.tokenizer.decode(list(ids), skip_special_tokens=True))
        start, end, *_ = tokenizer.all_special_ids
        words = ids[: ids.index(end)] if end in ids else ids
        return str(tokenizer.decode([token for token in words if token != start]))

    def install(self, apply: Apply) -> Callable[[], None]:
        """Replace the methods that return embeddings, as attributes of the instance."""
        names = [*(name for role in self.roles for name in _ENCODE[role]), "forward_intermediates"]
        names = [name for name in names if hasattr(type(self.model), name)]
        for name in vars(self.model).keys() & set(names):
            raise UnsupportedHostError(
                f"{self.name}: `{name}` of this instance was replaced by {vars(self.model)[name]!r}; expected the "
                f"method of the class. Take it off first (del model.{name})"
            )
        return installed([_Method(self.name, apply, self.model, name, self.texts) for name in names])


def _causal(model: Any, tokens: Mapping[str, Tensor]) -> Tensor:
    """Return the output of `encode_text`, computed up to the last end token of the batch."""
    ids = tokens["text"]
    ends = ids.argmax(dim=-1) if model.text_pool_type == "argmax" else (ids == model.text_eos_id).int().argmax(dim=-1)
    length = int(ends.max()) + 1
    dtype = model.transformer.get_cast_dtype()
    x = model.token_embedding(ids[:, :length]).to(dtype) + model.positional_embedding[:length].to(dtype)
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    pooled: Tensor = x[torch.arange(len(ids), device=ids.device), ends]
    head = model.text_projection
    if head is None:
        return pooled
    return head(pooled) if isinstance(head, nn.Module) else pooled @ head


@dataclass(eq=False, repr=False)
class _Method(MethodSeam):
    """`encode_text(text, normalize)` and `encode_image(image, normalize)` -> (b, d), changed before it is normalised.

    CoCa's `_encode_text` and `_encode_image` -> ((b, d), tokens), of which the tokens stay unchanged. Where one
    method calls another, only the outermost edits. `forward_intermediates`, which has
    separate paths through both towers, is refused.
    """

    texts: Callable[[Tensor], Sequence[str]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        attachment: Any = getattr(self.apply, "__self__", None)
        if self.method == "forward_intermediates":
            if self.active and attachment is not None and attachment.acts:
                raise UnsupportedHostError(
                    f"{self.name}: forward_intermediates has paths of its own that no edit reaches; call it inside "
                    "`with attachment.disabled():`, and encode_text and encode_image for edited features"
                )
            return self.original(*args, **kwargs)
        call = self.bind(*args, **kwargs)
        normalize = call.arguments.get("normalize", False)
        if normalize:
            call.arguments["normalize"] = False
        with during(BARE):
            output = self.original(*call.args, **call.kwargs)
        features, *rest = output if isinstance(output, tuple) else (output,)
        if "text" in call.arguments:
            features = self.project(TEXT, features, partial(self.texts, call.arguments["text"]))
        else:
            features = self.project(IMAGE, features)
        features = F.normalize(features, dim=-1) if normalize else features
        return (features, *rest) if isinstance(output, tuple) else features
