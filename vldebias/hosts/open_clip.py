"""open_clip models: the projection acts on what `encode_text` and `encode_image` give, before it is normalised."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vldebias.errors import InvalidInputError, UnsupportedHostError, need
from vldebias.hosts.base import Apply
from vldebias.hosts.joint import JointHost, refuse_frozen_code
from vldebias.hosts.seam import Installed, MethodSeam, Seam, bare
from vldebias.hosts.side import IMAGE, TEXT

SUPPORTED = ("CLIP", "CustomTextCLIP", "CoCa")
_OTHER_TOWERS = ("visual", "text_decoder")
_ENCODE = {  # CoCa's forward goes through the private ones
    TEXT: ("encode_text", "_encode_text"),
    IMAGE: ("encode_image", "_encode_image"),
}


class OpenClipHost(JointHost):
    """CLIP, CustomTextCLIP or CoCa.

    `encode_text` or `encode_image`, `forward`, `get_logits` and `forward_intermediates` agree.
    """

    library = "open_clip"

    def __init__(self, model: nn.Module, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        self.choose("text")

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None, *, negative: bool = False) -> Self:
        """The host for CLIP, CustomTextCLIP (with any text tower) or CoCa, or a subclass.

        tokenizer: what `open_clip.get_tokenizer` returns. Default: CLIP's own, where the sizes say it is that.

        Raises:
            UnsupportedHostError: another class, or TorchScript or compiled code.
        """
        if isinstance(model, nn.Module):
            refuse_frozen_code(model)
        host = cls.reads(model, tokenizer)
        if host is None:
            raise UnsupportedHostError(
                f"{type(model).__name__}: expected one of the open_clip classes {', '.join(SUPPORTED)}; "
                "pass the whole model, as open_clip.create_model returns it"
            )
        return host

    @classmethod
    def reads(cls, model: Any, tokenizer: Any = None) -> Self | None:
        """Where its class, or a base of it, is one of `SUPPORTED`."""
        known = any(b.__module__.startswith("open_clip.") and b.__name__ in SUPPORTED for b in type(model).__mro__)
        return cls(model, tokenizer) if known else None

    @property
    def head(self) -> object:
        """`text_projection` of CLIP and of open_clip's own text towers, `proj` of a Hugging Face tower."""
        tower = getattr(self.model, "text", self.model)
        return tower.proj if hasattr(tower, "proj") else tower.text_projection

    @property
    def image_head(self) -> object:
        """`proj` of a vision transformer, the last layer of a ResNet's attention pool or of timm's projection."""
        visual: Any = self.model.visual
        if hasattr(visual, "proj"):
            return visual.proj
        if hasattr(visual, "attnpool"):
            return visual.attnpool.c_proj
        head = getattr(visual, "head", None)
        mlp = getattr(head, "mlp", None)
        return head if mlp is None else mlp.fc2

    def image_tower(self) -> list[nn.Module]:
        """`visual`."""
        return [self.model.visual]  # type: ignore[list-item]

    def wrapped_modules(self, role: str) -> tuple[object, ...]:
        """The towers that are modules: CLIP's own text tower is the model itself."""
        tower = getattr(self.model, "visual" if role == IMAGE else "text", None)
        return () if tower is None else (tower,)

    def text_modules(self) -> list[nn.Module]:
        """CLIP keeps its text tower among its own children and parameters; the others have it as `text`."""
        children = [module for name, module in self.model.named_children() if name not in _OTHER_TOWERS]
        own = [p for name, p in self.model.named_parameters(recurse=False) if not name.startswith("logit_")]
        return [*children, nn.ParameterList(own)]

    def find_tokenizer(self, given: Any) -> Any:
        """The argument, or CLIP's own where context length and vocabulary are CLIP's."""
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
        """The shorter of the tokenizer's, which pads to it, and the model's, where each has one."""
        lengths = (self.tokenizer.context_length, getattr(self.model, "context_length", None))
        return min(length for length in lengths if length)

    def token_counts(self, prompts: Sequence[str]) -> list[int]:
        """After the tokenizer's own cleaning; 2 for the start and end tokens of CLIP's own."""
        inner = getattr(self.tokenizer, "tokenizer", None)
        if inner is None:
            return [len(self.tokenizer.encode(prompt)) + 2 for prompt in prompts]
        clean = getattr(self.tokenizer, "clean_fn", str)
        return [len(inner(clean(prompt))["input_ids"]) for prompt in prompts]

    def tokens(self, prompts: Sequence[str], *, full: bool = False) -> dict[str, Tensor]:
        """Token ids as `text`; open_clip's tokenizers always pad to the context length."""
        return {"text": self.tokenizer(list(prompts), context_length=self.context_length)}

    def features(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """What `encode_text` gives."""
        return self.model.encode_text(tokens["text"], normalize=False)  # type: ignore[operator]

    def without_padding(self) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """Of open_clip's own causal text tower, pooled at the end token, and of its Hugging Face text towers."""
        model: Any = self.model
        if _is_causal(model):
            return partial(_causal, model)
        pad = getattr(getattr(getattr(model, "text", None), "config", None), "pad_token_id", None)
        return self.features if pad is None else lambda tokens: self.shortened(tokens, tokens["text"] != pad)

    def image_features(self, pixels: Mapping[str, Tensor]) -> Tensor:
        """What `encode_image` gives for "pixel_values"."""
        return self.model.encode_image(pixels["pixel_values"], normalize=False)  # type: ignore[operator]

    @property
    def device(self) -> torch.device:
        """Of the temperature, which every class has."""
        return self.model.logit_scale.device  # type: ignore[return-value]

    def decode(self, ids: tuple[int, ...]) -> str:
        """CLIP's own tokenizer pads with the id of "!": what follows the end token is no text."""
        tokenizer = self.tokenizer
        if hasattr(tokenizer, "tokenizer"):
            return tokenizer.tokenizer.decode(list(ids), skip_special_tokens=True)
        start, end, *_ = tokenizer.all_special_ids
        words = ids[: ids.index(end)] if end in ids else ids
        return tokenizer.decode([token for token in words if token != start])

    def install(self, apply: Apply) -> Callable[[], None]:
        """Stand in for the methods that give embeddings, as attributes of the instance."""
        model: Any = self.model
        kinds: dict[str, type[_Method]] = {name: _Encode for role in self.roles for name in _ENCODE[role]}
        kinds["forward_intermediates"] = _ForwardIntermediates
        Seam.refuse_copy(vars(model).values())  # whichever side the seam is on that came with the copy
        seams = [kind(self, apply, name) for name, kind in kinds.items() if hasattr(type(model), name)]
        for seam in seams:
            if seam.before is not None:
                raise UnsupportedHostError(
                    f"{self.name}: `{seam.method}` of this instance was replaced by {seam.before!r}; expected the "
                    f"method of the class. Take it off first (del model.{seam.method})"
                )
        for seam in seams:
            seam.put_on()
        return Installed(seams)


open_clip_host = OpenClipHost.of


def _is_causal(model: Any) -> bool:
    """open_clip's CLIP with its own `encode_text`: no token sees a later one, and the end token is the embedding."""
    open_clip = need("open_clip")

    return (
        isinstance(model, open_clip.CLIP)
        and type(model).encode_text is open_clip.CLIP.encode_text
        and model.attn_mask is not None
        and getattr(model, "text_pool_type", None) in ("argmax", "eos")
        and hasattr(model.transformer, "batch_first")  # before that, `encode_text` itself turned the axes
    )


def _causal(model: Any, tokens: Mapping[str, Tensor]) -> Tensor:
    """What `encode_text` computes, up to the last end token of the batch: it has no argument for a shorter text."""
    ids = tokens["text"]
    ends = ids.argmax(dim=-1) if model.text_pool_type == "argmax" else (ids == model.text_eos_id).int().argmax(dim=-1)
    length = int(ends.max()) + 1
    dtype = model.transformer.get_cast_dtype()
    x = model.token_embedding(ids[:, :length]).to(dtype) + model.positional_embedding[:length].to(dtype)
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    pooled = x[torch.arange(len(ids), device=ids.device), ends]
    head = model.text_projection
    if head is None:
        return pooled
    return head(pooled) if isinstance(head, nn.Module) else pooled @ head


class _Method(MethodSeam):
    """Where one method calls another, the outermost projects and the inner ones let pass."""

    def __init__(self, host: OpenClipHost, apply: Apply, name: str) -> None:
        super().__init__(host.name, apply, host.model, name)
        self.roles, self._texts = host.roles, host.texts

    def call(self, arguments: inspect.BoundArguments) -> Any:
        """What the model itself gives."""
        with bare():
            return self.original(*arguments.args, **arguments.kwargs)

    def change(self, role: str, features: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        """Features (b, d), projected; an image states nothing, see `vldebias.hosts.side`."""
        ids = None if role == IMAGE else arguments["text"]
        return self.project(role, features, None if ids is None else partial(self._texts, ids))


class _Encode(_Method):
    """`encode_text(text, normalize)` and `encode_image(image, normalize)` -> (b, d).

    CoCa's `_encode_text` and `_encode_image` -> ((b, d), tokens), of which the tokens stay as they are.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.bind(*args, **kwargs)
        normalize = call.arguments.get("normalize", False)
        if normalize:
            call.arguments["normalize"] = False
        output = self.call(call)
        features, *rest = output if isinstance(output, tuple) else (output,)
        features = self.change(TEXT if "text" in call.arguments else IMAGE, features, call.arguments)
        features = F.normalize(features, dim=-1) if normalize else features
        return (features, *rest) if isinstance(output, tuple) else features


class _ForwardIntermediates(_Method):
    """`forward_intermediates(...)` has paths of its own through both towers, and logits made from them."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        call = self.bind(*args, **kwargs)
        output = self.call(call)
        changed = [self._change(role, output, call.arguments) for role in self.roles]
        if any(changed) and "text_logits" in output:
            output["image_logits"] = self._logits(output["image_features"], output["text_features"])
            output["text_logits"] = output["image_logits"].T
        return output

    def _change(self, role: str, output: dict[str, Any], arguments: dict[str, Any]) -> bool:
        """Project the features of `role` in `output`, if they are there; False if they stay as they are."""
        key = "image_features" if role == IMAGE else "text_features"
        features = output.get(key)
        if features is None:
            return False
        projected = self.change(role, features, arguments)
        if projected is features:
            return False
        if arguments["normalize"] and not arguments["intermediates_only"]:
            # Stated prompts came back as they were; normalising them twice would move their last bit.
            moved = (projected != features).any(dim=-1, keepdim=True)
            projected = torch.where(moved, F.normalize(projected, dim=-1), features)
        output[key] = projected
        return True

    def _logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        model: Any = self.owner
        logits = model.logit_scale.exp() * image_features @ text_features.T
        return logits if model.logit_bias is None else logits + model.logit_bias
