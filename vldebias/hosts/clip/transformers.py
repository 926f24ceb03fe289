"""Apply edits to the output of a tower's head in transformers models, before normalisation."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, UnsupportedHostError, need
from vldebias.hosts.clip.images import JointHost
from vldebias.hosts.edits import IMAGE, TEXT, EditAttachment
from vldebias.hosts.hooks import Hook
from vldebias.projection.hub import NO_CODE, offline_reason

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput


@dataclass(frozen=True)
class ModelFamily:
    """Describe how a model family computes embeddings.

    Attributes:
        head: name of the Linear that produces the text embedding, in the model or, for "head", in
            its text tower.
        image_head: name of the module that produces the image embedding, in the model or in its
            vision tower.
        padding: text padding used in training. SigLIP pools the last position, even if it is
            padding.
        lower: whether text was lowercased in training.
        offset: whether position numbers start after the padding id, as in RoBERTa, which reduces
            the maximum number of tokens.
        images: whether images are passed as pixels (b, 3, h, w), with one embedding per image.
    """

    head: str = "text_projection"
    image_head: str = "visual_projection"
    padding: bool | str = True
    lower: bool = False
    offset: bool = False
    images: bool = True


_CLIP = ModelFamily()
_SIGLIP = ModelFamily(head="head", image_head="head", padding="max_length", lower=True)
# The family of each class, which subclasses inherit.
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

_GENERATIVE = (
    "projections made wrong genders in captions more frequent, because a model that writes must"
    " still write a word; measure what it states with `vldebias"
    " eval captions` or `vldebias eval vqa`"
)
_INSTEAD = {
    "CLIPTextModel": (
        "it has no head that maps to the joint space: load CLIPTextModelWithProjection or CLIPModel"
        " from the same checkpoint; for a diffusers pipeline, pass the pipeline"
    ),
    "MetaClip2TextModel": (
        "it has no head that maps to the joint space: load MetaClip2TextModelWithProjection instead"
    ),
    "PeftModel": "pass the wrapped model, model.get_base_model()",
    "SiglipTextTransformer": (
        "transformers 4 nests it in the text tower: pass the SiglipModel, or a SiglipTextModel"
    ),
    "Siglip2TextTransformer": (
        "transformers 4 nests it in the text tower: pass the Siglip2Model, or a Siglip2TextModel"
    ),
}

_NEEDS_RELEASE_5 = {
    "ChineseCLIPModel": "get_text_features fails in transformers 4, because it pools no text state"
}
"""The reason why a class cannot embed text in transformers 4, by class name."""


class TransformersHost(JointHost):
    """Support CLIP, SigLIP and related transformers models.

    An edit applies to `get_text_features` or `get_image_features` and to `forward` (embeddings,
    logits, loss).

    `keep_stated` examines the token ids passed to the text tower. A prompt passed as
    `inputs_embeds` has no token ids and is treated as not stating the attribute. An adapter that
    wraps the head (LoRA on `text_projection`) must be loaded before attaching.
    """

    library = "transformers"

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def __init__(self, model: PreTrainedModel, tokenizer: object = None, *_: object) -> None:
        super().__init__(model, tokenizer)
        names = []
        for base in type(model).__mro__:
            if base.__module__.partition(".")[0] in ("transformers", "peft"):
                names.append(base.__name__)
        # Follow the method resolution order, so that a subclass may have its own family.
        known = next((name for name in names if name in _FAMILIES), None)
        if known is None:
            remedies = [f"; {_INSTEAD[name]}" for name in names if name in _INSTEAD]
            if "GenerationMixin" in names:
                remedies.append(f"; {_GENERATIVE}")
            instead = remedies[0] if remedies else ""
            raise UnsupportedHostError(
                f"{self.name}: this class is not supported{instead}\nExpected one of"
                f" {', '.join(_FAMILIES)}\nFor any other model, use vldebias.hosts.custom(model,"
                " 'method', embed=...); see help(vldebias.hosts.custom)"
            )
        release = need("transformers").__version__
        if known in _NEEDS_RELEASE_5 and release.startswith("4."):
            raise UnsupportedHostError(
                f"{known}: {_NEEDS_RELEASE_5[known]} (transformers {release} is installed). Install"
                " transformers 5 or newer"
            )
        self._family = _FAMILIES[known]
        # A model without `text_model` is itself the text tower.
        self._text = getattr(model, "text_model", model)
        self._config = getattr(model.config, "text_config", model.config)
        self._call = getattr(model, "get_text_features", model)

    @property
    def head(self) -> nn.Module:
        """Return the Linear that produces the joint embedding."""
        owner = self._text if self._family.head == "head" else self.model
        return getattr(owner, self._family.head)

    @property
    def image_head(self) -> nn.Module | None:
        """Return the last module of the image tower.

        This is a Linear, SigLIP's pooling head, or ALIGN's pooling.
        """
        vision = getattr(self.model, "vision_model", None)
        if vision is None or not self._family.images:
            return None
        name = self._family.image_head
        return getattr(self.model, name, None) or getattr(vision, name, None)

    @property
    def image_tower(self) -> list[nn.Module]:  # type: ignore[override]
        """Return the vision model, and the head if it is separate."""
        head = self.image_head
        vision = getattr(self.model, "vision_model", None)
        if head is None or vision is None:
            return []
        # SigLIP's vision model contains its head.
        return [vision] if hasattr(vision, self._family.image_head) else [vision, head]

    def wrapped_modules(self, role: str) -> tuple[object, ...]:
        """Return the head, the module to which the hook is attached."""
        return (self.image_head if role == IMAGE else self.head,)

    @property
    def text_modules(self) -> list[nn.Module]:  # type: ignore[override]
        """Return the text tower and its head.

        CLIPModel and CLIPTextModelWithProjection have the same modules, so they can share
        projections.
        """
        return [self._text] if self._family.head == "head" else [self._text, self.head]

    def find_tokenizer(self, tokenizer: object) -> PreTrainedTokenizerBase:
        """Return the given tokenizer, a processor's tokenizer, or the checkpoint's tokenizer.

        Raises:
            InvalidInputError: If the argument is not a tokenizer, or the checkpoint has none.
        """
        if tokenizer is None:
            missing = f"{self.name}: found no tokenizer in {self.model_id!r}"
            try:
                with offline_reason(self.model_id):
                    load = need("transformers").AutoTokenizer.from_pretrained
                    loaded = load(self.model_id, **NO_CODE)
            except Exception as error:
                raise InvalidInputError(
                    f"{missing}; pass tokenizer= ({type(error).__name__}: {error})"
                ) from error
            # If a tokenizer's files are missing, transformers 5 creates an empty tokenizer.
            if 2 * len(loaded) < self._config.vocab_size:
                raise InvalidInputError(
                    f"{missing} except one with only {len(loaded)} tokens; pass tokenizer="
                )
            tokenizer = loaded
        inner = getattr(tokenizer, "tokenizer", tokenizer)
        if not callable(inner) or getattr(inner, "pad_token", None) is None:
            raise InvalidInputError(
                "tokenizer: expected a transformers tokenizer or processor with a padding token"
                f" (tokenizer.pad_token), got {type(tokenizer).__name__}"
            )
        return inner

    @property
    def context_length(self) -> int:
        """Return the text tower's number of positions, or the tokenizer's limit if smaller."""
        positions = self._config.max_position_embeddings
        if self._family.offset:
            positions -= self._config.pad_token_id + 1
        return int(min(positions, self.tokenizer.model_max_length))

    def _cleaned(self, prompts: Sequence[str]) -> list[str]:
        # SigLIP was trained on lowercase text, but some versions of its tokenizer do not lowercase.
        if self._family.lower:
            return [prompt.lower() for prompt in prompts]
        return list(prompts)

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Count the tokens of each prompt, without padding."""
        rows = self.tokenizer(self._cleaned(prompts), truncation=False)["input_ids"]
        return [len(row) for row in rows]

    def tokenize(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        """Return the inputs of the text tower: ids, and a mask if padding is masked."""
        tokens = self.tokenizer(
            self._cleaned(prompts),
            return_tensors="pt",
            padding=self._family.padding,
            truncation=True,
            max_length=self.context_length,
        )
        return dict(tokens)

    def decode(self, ids: tuple[int, ...]) -> str:
        """Decode without special tokens, because padding may use the end token's id."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def features(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """Return the output of `get_text_features`, or of the text model itself."""
        return self._embedding(self._call, tokens)

    def image_features(self, pixels: Mapping[str, Tensor]) -> Tensor:
        """Return the output of `get_image_features`, which gets only the inputs that it accepts."""
        return self._embedding(self.model.get_image_features, pixels)

    def _embedding(
        self, call: Callable[..., Tensor | ModelOutput], inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """Extract the embedding from the output of a call.

        The output is a tensor in transformers 4, and an output object in transformers 5.
        """
        # Tokenizers and processors may return inputs that a tower does not accept.
        accepted = inspect.signature(getattr(call, "forward", call)).parameters
        output = call(**{name: tensor for name, tensor in inputs.items() if name in accepted})
        if isinstance(output, Tensor):
            return output
        return getattr(output, "text_embeds" if hasattr(output, "text_embeds") else "pooler_output")

    def install(self, attachment: EditAttachment) -> Callable[[], None]:
        """Hook the heads and, for text, the input of the tower, which contains the token ids."""
        hooks = _Hooks(attachment, self)
        handles = ExitStack()
        if TEXT in self.roles:
            handles.enter_context(self.head.register_forward_hook(hooks.change_text))
            keep = self._text.register_forward_pre_hook(hooks.keep_ids, with_kwargs=True)
            handles.enter_context(keep)
        if IMAGE in self.roles and self.image_head is not None:
            handles.enter_context(self.image_head.register_forward_hook(hooks.change_image))
        # Compiled code ignores new hooks.
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
        return handles.close


class _Hooks(Hook):
    """Store each thread's token ids from the start of the text tower to its head."""

    attachment: EditAttachment

    def __init__(self, attachment: EditAttachment, host: TransformersHost) -> None:
        super().__init__(attachment)
        self.host = host
        self.stated_rows = host.stated_rows(attachment)
        self.thread = threading.local()

    def keep_ids(
        self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        self.thread.ids = kwargs.get("input_ids", args[0] if args else None)

    def change_text(self, module: nn.Module, args: tuple[object, ...], output: Tensor) -> Tensor:
        ids = getattr(self.thread, "ids", None)
        # Discard the ids immediately, because a later call with `inputs_embeds` has none.
        self.thread.ids = None
        return self.attachment.apply_by_ids(TEXT, output, ids, self.stated_rows, self.host.texts)

    def change_image(self, module: nn.Module, args: tuple[object, ...], output: Tensor) -> Tensor:
        """Edit image features (b, d), or (b, d, 1, 1) from ALIGN's pooling."""
        return self.attachment.apply(IMAGE, output.flatten(1)).reshape(output.shape)
