"""Apply edits in transformers models, to the output of a tower's head before normalisation."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, UnsupportedHostError, need
from vldebias.hosts.clip.images import JointHost
from vldebias.hosts.edits import EditAttachment
from vldebias.hosts.hooks import Hook
from vldebias.hosts.host import IMAGE, TEXT
from vldebias.projection.hub import NO_CODE, offline_reason


@dataclass(frozen=True)
class ModelFamily:
    """Describe how a family of models makes embeddings.

    head: name of the Linear that makes the embedding of a text, on the model or, for "head", on its
    text tower.
    image_head: name of the module that makes the embedding of an image, on the model or on its
    vision tower. padding, lower: tokenization in the model's training; SigLIP pools the last
    position, padding included.
    offset: the tower counts positions from the padding id on, as RoBERTa does, and so reads fewer
    tokens.
    images: images reach the joint space as pixels (b, 3, h, w), one embedding each.
    """

    head: str = "text_projection"
    image_head: str = "visual_projection"
    padding: bool | str = True
    lower: bool = False
    offset: bool = False
    images: bool = True


_CLIP = ModelFamily()
_SIGLIP = ModelFamily(head="head", image_head="head", padding="max_length", lower=True)
# Class -> family; a subclass has that of its base.
_FAMILIES = {
    **dict.fromkeys(("CLIPModel", "CLIPTextModelWithProjection", "MetaClip2Model"), _CLIP),
    **dict.fromkeys(
        ("MetaClip2TextModelWithProjection", "CLIPSegModel", "ChineseCLIPModel"), _CLIP
    ),
    "AlignModel": ModelFamily(image_head="pooler"),
    "AltCLIPModel": ModelFamily(offset=True),
    **dict.fromkeys(
        ("SiglipModel", "SiglipTextModel", "Siglip2Model", "Siglip2TextModel"), _SIGLIP
    ),
    **dict.fromkeys(
        ("Aimv2Model", "VisionTextDualEncoderModel", "XCLIPModel"), ModelFamily(images=False)
    ),
}

WITH_IMAGES = tuple(
    name for name, family in _FAMILIES.items() if "Text" not in name and family.images
)

_INSTEAD = {
    "CLIPTextModel": (
        "it ends before the joint space: load CLIPTextModelWithProjection or CLIPModel from the"
        " same checkpoint, and for a diffusers pipeline pass the pipeline"
    ),
    "MetaClip2TextModel": (
        "it ends before the joint space: load MetaClip2TextModelWithProjection instead"
    ),
    "PeftModel": "pass the model inside, model.get_base_model()",
    "SiglipTextTransformer": (
        "transformers 4 nests it in the text tower: pass the SiglipModel, or a SiglipTextModel"
    ),
    "Siglip2TextTransformer": (
        "transformers 4 nests it in the text tower: pass the Siglip2Model, or a Siglip2TextModel"
    ),
}

_NEEDS_RELEASE_5 = {
    "ChineseCLIPModel": "get_text_features of transformers 4 fails, since it pools no text state"
}
"""Classes that transformers 4 has and cannot embed texts with -> why."""


class TransformersHost(JointHost):
    """Serve CLIP, SigLIP and related models of transformers.

    An edit shows in `get_text_features` or `get_image_features` and in `forward` (embeddings,
    logits, loss) alike.

    The gate of `keep_stated` reads the token ids with which the text tower was called. A prompt
    given as `inputs_embeds` has none and counts as not stated. An adapter that wraps the head (LoRA
    on `text_projection`) has to be loaded before attaching.
    """

    library = "transformers"

    def __init__(self, model: Any, tokenizer: Any = None, *_: Any) -> None:
        super().__init__(model, tokenizer)
        names = []
        for base in type(model).__mro__:
            if base.__module__.partition(".")[0] in ("transformers", "peft"):
                names.append(base.__name__)
        # In order of the bases, so that a subclass with a family of its own has that.
        known = next((name for name in names if name in _FAMILIES), None)
        if known is None:
            remedies = [f"; {_INSTEAD[name]}" for name in names if name in _INSTEAD]
            instead = remedies[0] if remedies else ""
            raise UnsupportedHostError(
                f"{self.name}: this class is not supported{instead}\nExpected one of"
                f" {', '.join(_FAMILIES)}\nDescribe any other by vldebias.hosts.custom(model,"
                " 'method', embed=...); docs/how-to/own-model.md"
            )
        release = need("transformers").__version__
        if known in _NEEDS_RELEASE_5 and release.startswith("4."):
            raise UnsupportedHostError(
                f"{known}: {_NEEDS_RELEASE_5[known]} (transformers {release} is installed). Install"
                " transformers 5 or newer"
            )
        self._family = _FAMILIES[known]
        # Of a text tower alone the model is all there is.
        self._text = getattr(model, "text_model", model)
        self._config = getattr(model.config, "text_config", model.config)
        self._call = getattr(model, "get_text_features", model)

    @property
    def head(self) -> nn.Module:
        """Return the Linear that makes the joint embedding."""
        owner = self._text if self._family.head == "head" else self.model
        return cast("nn.Module", getattr(owner, self._family.head))

    @property
    def image_head(self) -> nn.Module | None:
        """Return the last module of the image side: a Linear, the pooling head of SigLIP, the
        pooling of ALIGN."""
        vision = getattr(self.model, "vision_model", None)
        if vision is None or not self._family.images:
            return None
        name = self._family.image_head
        return getattr(self.model, name, None) or getattr(vision, name, None)

    @property
    def image_tower(self) -> list[nn.Module]:  # type: ignore[override]
        """Return the vision model, and the head where it is not part of it."""
        head = self.image_head
        vision = getattr(self.model, "vision_model", None)
        if head is None or vision is None:
            return []
        # SigLIP's vision model has its head inside.
        return [vision] if hasattr(vision, self._family.image_head) else [vision, head]

    def wrapped_modules(self, role: str) -> tuple[Any, ...]:
        """Return the head, which is hooked."""
        return (self.image_head if role == IMAGE else self.head,)

    @property
    def text_modules(self) -> list[nn.Module]:  # type: ignore[override]
        """Return the same modules for CLIPModel and CLIPTextModelWithProjection, so that they share
        projections."""
        return [self._text] if self._family.head == "head" else [self._text, self.head]

    def find_tokenizer(self, tokenizer: Any) -> Any:
        """Return the argument, or the tokenizer of a processor, or that of the checkpoint."""
        if tokenizer is None:
            missing = f"{self.name}: found no tokenizer in {self.model_id!r}"
            try:
                with offline_reason(self.model_id):
                    load = need("transformers").AutoTokenizer.from_pretrained
                    tokenizer = load(self.model_id, **NO_CODE)
            except Exception as error:
                raise InvalidInputError(
                    f"{missing}; pass tokenizer= ({type(error).__name__}: {error})"
                ) from error
            # transformers 5 makes an empty one without its files.
            if 2 * len(tokenizer) < self._config.vocab_size:
                raise InvalidInputError(
                    f"{missing} but one of {len(tokenizer)} tokens; pass tokenizer="
                )
        inner = getattr(tokenizer, "tokenizer", tokenizer)
        if not callable(inner) or getattr(inner, "pad_token", None) is None:
            raise InvalidInputError(
                "tokenizer: expected a transformers tokenizer or processor with a padding token"
                f" (tokenizer.pad_token), got {type(tokenizer).__name__}"
            )
        return inner

    @property
    def context_length(self) -> int:
        """Return the number of positions of the text tower, or the tokenizer's limit where that is
        smaller."""
        positions = self._config.max_position_embeddings
        if self._family.offset:
            positions -= self._config.pad_token_id + 1
        return int(min(positions, self.tokenizer.model_max_length))

    def _cleaned(self, prompts: Sequence[str]) -> list[str]:
        # SigLIP was trained on lower case, which not every edition of its tokenizer makes.
        if self._family.lower:
            return [prompt.lower() for prompt in prompts]
        return list(prompts)

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Count the tokens of each prompt, without padding."""
        rows = self.tokenizer(self._cleaned(prompts), truncation=False)["input_ids"]
        return [len(row) for row in rows]

    def tokenize(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        """Return the inputs of the text tower: ids, and a mask where padding is masked."""
        tokens = self.tokenizer(
            self._cleaned(prompts),
            return_tensors="pt",
            padding=self._family.padding,
            truncation=True,
            max_length=self.context_length,
        )
        return dict(tokens)

    def decode(self, ids: tuple[int, ...]) -> str:
        """Decode ids to text without special tokens, since padding may have the id of the end
        token."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def features(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """Return the output of `get_text_features`, or of the text model itself."""
        return self._embedding(self._call, tokens)

    def image_features(self, pixels: Mapping[str, Tensor]) -> Tensor:
        """Return the output of `get_image_features` for those of `pixels` that it accepts."""
        return self._embedding(self.model.get_image_features, pixels)

    def _embedding(self, call: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the embedding in the output of a call: a tensor in transformers 4, an output
        object in 5."""
        # Tokenizers and processors also give what a tower does not take.
        accepted = inspect.signature(getattr(call, "forward", call)).parameters
        output = call(**{name: tensor for name, tensor in inputs.items() if name in accepted})
        if isinstance(output, Tensor):
            return output
        if hasattr(output, "text_embeds"):
            return cast("Tensor", output.text_embeds)
        return cast("Tensor", output.pooler_output)

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        """Add a hook where an embedding comes out, and for texts one where the token ids come
        in."""
        hooks = _Hooks(attachment, self)
        handles = []
        if TEXT in self.roles:
            handles.append(self.head.register_forward_hook(hooks.change_text))
            handles.append(self._text.register_forward_pre_hook(hooks.keep_ids, with_kwargs=True))
        if IMAGE in self.roles and self.image_head is not None:
            handles.append(self.image_head.register_forward_hook(hooks.change_image))
        # Code that was compiled before does not look for hooks again.
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()

        def take_off() -> None:
            for handle in handles:
                handle.remove()

        return take_off


class _Hooks(Hook):
    """Remember the token ids from the start of the text tower to its head, per thread, and forget
    them there."""

    attachment: EditAttachment

    def __init__(self, attachment: EditAttachment, host: TransformersHost) -> None:
        super().__init__(attachment)
        self.host = host
        self.stated_rows = host.stated_rows(attachment)
        self.thread = threading.local()

    def keep_ids(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        self.thread.ids = kwargs.get("input_ids", args[0] if args else None)

    def change_text(self, module: nn.Module, args: tuple[object, ...], output: Tensor) -> Tensor:
        ids = getattr(self.thread, "ids", None)
        # Forgotten at once: a call with `inputs_embeds` has no ids, and must not get these.
        self.thread.ids = None
        return self.attachment.apply_by_ids(TEXT, output, ids, self.stated_rows, self.host.texts)

    def change_image(self, module: nn.Module, args: tuple[object, ...], output: Tensor) -> Tensor:
        """(b, d), or (b, d, 1, 1) of the pooling of ALIGN."""
        return self.attachment.apply(IMAGE, output.flatten(1)).reshape(output.shape)
