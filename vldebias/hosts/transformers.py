"""transformers models: the projection acts on the output of a tower's head, before it is normalised."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vldebias.attachment import Apply
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.sides import IMAGE, TEXT
from vldebias.hosts.text import JointHost, Seam, refuse_frozen_code

__all__ = ["SUPPORTED", "TransformersHost", "wrap"]


@dataclass(frozen=True)
class _Family:
    """How a family of models makes embeddings.

    head: name of the Linear that makes that of a text, on the model or, for "head", on its text tower.
    image_head: name of the module that makes that of an image, on the model or on its vision tower.
    padding, lower: what the model was trained with; SigLIP pools the last position, padding included.
    offset: the tower counts positions from the padding id on, as RoBERTa does, and so reads fewer tokens.
    """

    head: str = "text_projection"
    image_head: str = "visual_projection"
    padding: bool | str = True
    lower: bool = False
    offset: bool = False


_CLIP = _Family()
_SIGLIP = _Family(head="head", image_head="head", padding="max_length", lower=True)

_FAMILIES = {
    "CLIPModel": _CLIP,
    "CLIPTextModelWithProjection": _CLIP,
    "MetaClip2Model": _CLIP,
    "MetaClip2TextModelWithProjection": _CLIP,
    "CLIPSegModel": _CLIP,
    "ChineseCLIPModel": _CLIP,
    "AlignModel": _Family(image_head="pooler"),
    "AltCLIPModel": _Family(offset=True),
    "SiglipModel": _SIGLIP,
    "SiglipTextModel": _SIGLIP,
    "Siglip2Model": _SIGLIP,
    "Siglip2TextModel": _SIGLIP,
}

SUPPORTED = tuple(_FAMILIES)

_INSTEAD = {
    "CLIPTextModel": "it ends before the joint space: load CLIPTextModelWithProjection or CLIPModel from the same "
    "checkpoint, and for a diffusers pipeline pass the pipeline",
    "MetaClip2TextModel": "it ends before the joint space: load MetaClip2TextModelWithProjection instead",
    "PeftModel": "pass the model inside, model.get_base_model()",
}


def wrap(model: Any, tokenizer: Any = None) -> TransformersHost:
    """The host for a transformers model.

    Args:
        model: one of `SUPPORTED`, or a subclass.
        tokenizer: its tokenizer or processor. Default: the one in the checkpoint that the model came from.

    Raises:
        UnsupportedHostError: another class, or compiled code.
    """
    libraries = ("transformers", "peft")
    names = [b.__name__ for b in type(model).__mro__ if b.__module__.partition(".")[0] in libraries]
    family = next((_FAMILIES[name] for name in names if name in _FAMILIES), None)
    if family is None:
        instead = next((f": {_INSTEAD[name]}" for name in names if name in _INSTEAD), "")
        raise UnsupportedHostError(
            f"{type(model).__name__}{instead}. Supported transformers models are {', '.join(SUPPORTED)}"
        )
    refuse_frozen_code(model)
    return TransformersHost(model, family, tokenizer)


class TransformersHost(JointHost):
    """CLIP, SigLIP and their kin.

    `get_text_features` or `get_image_features` and `forward` (embeddings, logits, loss) agree.

    The gate of `keep_stated` reads the token ids with which the text tower was called. A prompt given as
    `inputs_embeds` has none and counts as not stated. An adapter that wraps the head (LoRA on `text_projection`)
    has to be loaded before attaching.
    """

    library = "transformers"

    def __init__(self, model: Any, family: _Family, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        self.model_id = getattr(model, "name_or_path", None) or None
        self._family = family
        self._text: nn.Module = getattr(model, "text_model", model)
        self.choose("text")

    @property
    def head(self) -> nn.Module:
        """The Linear that makes the joint embedding."""
        return getattr(self._text if self._family.head == "head" else self.model, self._family.head)

    @property
    def image_head(self) -> nn.Module | None:
        """What makes the joint embedding of an image: a Linear, the pooling head of SigLIP, the pooling of ALIGN."""
        vision = getattr(self.model, "vision_model", None)
        if vision is None:
            return None
        name = self._family.image_head
        return getattr(self.model, name, None) or getattr(vision, name, None)

    def image_tower(self) -> list[nn.Module]:
        """The vision model, and the head where it is not part of it."""
        head, vision = self.image_head, getattr(self.model, "vision_model", None)
        if head is None or vision is None:
            return []
        return [vision] if hasattr(vision, self._family.image_head) else [vision, head]

    def doors(self, role: str) -> tuple[object, ...]:
        """The head, which the seam is on."""
        return (self._head(role),)

    def _head(self, role: str) -> nn.Module:
        head = self.image_head if role == IMAGE else self.head
        assert head is not None  # `at` has refused a model without one
        return head

    def tower(self) -> list[nn.Module]:
        """The same modules for CLIPModel and CLIPTextModelWithProjection, so that they share projections."""
        return [self._text] if self._family.head == "head" else [self._text, self.head]

    def find_tokenizer(self, given: Any) -> Any:
        """The argument, or the tokenizer of a processor, or that of the checkpoint."""
        tokenizer = self._from_checkpoint() if given is None else getattr(given, "tokenizer", given)
        if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
            raise InvalidInputError(
                f"tokenizer: expected a transformers tokenizer or processor, got {type(given).__name__}"
            )
        if getattr(tokenizer, "pad_token", None) is None:
            raise InvalidInputError(
                f"tokenizer: {type(tokenizer).__name__} has no padding token, so it cannot make batches; "
                "set tokenizer.pad_token as the model was trained"
            )
        return tokenizer

    def _from_checkpoint(self) -> Any:
        from transformers import AutoTokenizer

        if self.model_id is None:
            raise InvalidInputError(
                f"{self.name}: the model does not say which checkpoint it came from; pass tokenizer="
            )
        missing = f"{self.name}: found no tokenizer in {self.model_id!r}"
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.model_id)
        except Exception as error:
            raise InvalidInputError(f"{missing} ({type(error).__name__}: {error}); pass tokenizer=") from error
        if 2 * len(tokenizer) < self._text_config.vocab_size:  # transformers 5 makes an empty one without its files
            sizes = f"one with {len(tokenizer)} tokens came, the model has {self._text_config.vocab_size}"
            raise InvalidInputError(f"{missing} ({sizes}); pass tokenizer=")
        return tokenizer

    @property
    def _text_config(self) -> Any:
        config: Any = self.model.config
        return getattr(config, "text_config", config)

    @property
    def context_length(self) -> int:
        """Positions of the text tower, or what the tokenizer allows where that is less."""
        config = self._text_config
        lost = config.pad_token_id + 1 if self._family.offset else 0
        return int(min(config.max_position_embeddings - lost, self.tokenizer.model_max_length))

    def token_counts(self, prompts: Sequence[str]) -> list[int]:
        """Without padding."""
        return [len(row) for row in self.tokenizer(self._cleaned(prompts), truncation=False)["input_ids"]]

    def _cleaned(self, prompts: Sequence[str]) -> list[str]:
        return [prompt.lower() if self._family.lower else prompt for prompt in prompts]

    def tokens(self, prompts: Sequence[str], *, full: bool = False) -> dict[str, Tensor]:
        """What the tokenizer gives and the text tower reads: ids, and a mask where padding is masked."""
        batch = self.tokenizer(
            self._cleaned(prompts),
            padding="max_length" if full else self._family.padding,
            truncation=True,
            max_length=self.context_length,
            return_tensors="pt",
        )
        call = self._call
        known = inspect.signature(getattr(call, "forward", call)).parameters
        return {name: tensor for name, tensor in batch.items() if name in known}

    def features(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """What `get_text_features`, or the text model itself, gives."""
        return self._features(self._call(**tokens))

    @property
    def _call(self) -> Callable[..., Any]:
        return getattr(self.model, "get_text_features", self.model)

    @property
    def device(self) -> torch.device:
        """Of the model; the CPU where its weights are fetched from there as they are needed."""
        device: Any = self.model.device
        return device if device.type != "meta" else torch.device("cpu")

    @property
    def reads_padding(self) -> bool:
        """True where the model was trained with padding that it attends to, so that none may be left out."""
        return self._family.padding == "max_length"

    def _features(self, output: Any) -> Tensor:
        """The embedding in what the model returned: a tensor from transformers 4, an output object from 5."""
        if isinstance(output, Tensor):
            return output
        if isinstance(output, tuple):
            raise InvalidInputError(
                f"{self.name}: expected a named output to fit on, got a tuple; set model.config.return_dict = True"
            )
        return output.text_embeds if hasattr(output, "text_embeds") else output.pooler_output

    def decode(self, ids: tuple[int, ...]) -> str:
        """Padding may have the id of the end token: both are special and left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def install(self, apply: Apply) -> Callable[[], None]:
        """One hook where an embedding comes out, and for texts one where the token ids come in."""
        heads = {role: self._head(role) for role in self.roles}
        for head in (self.head, self.image_head):  # whichever side the seam is on that came with a copy
            if head is not None:
                _refuse_copy(head)
        seams = [(_HOOKS[role](self.name, apply, self.texts), head) for role, head in heads.items()]
        handles = [head.register_forward_hook(seam.read_features) for seam, head in seams]
        handles += [
            self._text.register_forward_pre_hook(seam.read_ids, with_kwargs=True)
            for seam, _ in seams
            if isinstance(seam, _TextHooks)
        ]
        return partial(_uninstall, [seam for seam, _ in seams], handles)


def _refuse_copy(head: nn.Module) -> None:
    for hook in head._forward_hooks.values():
        present = getattr(hook, "__self__", None)
        if isinstance(present, Seam):
            present.refuse_copy()


def _uninstall(seams: Sequence[Seam], handles: Sequence[Any]) -> None:
    for seam in seams:
        seam.state.active = False
    for handle in handles:
        handle.remove()


class _TextHooks(Seam):
    """Remembers the token ids from the start of the text tower to its head, per thread, and forgets them there."""

    def __init__(self, name: str, apply: Apply, texts: Callable[[Tensor], Sequence[str]]) -> None:
        super().__init__(name, apply, texts)
        self._thread = threading.local()

    def read_ids(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._thread.ids = kwargs.get("input_ids", args[0] if args else None)

    def read_features(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return self.project(TEXT, output, vars(self._thread).pop("ids", None))


class _ImageHook(Seam):
    """Where the embedding of an image comes out: (b, d), or (b, d, 1, 1) of the pooling of ALIGN."""

    def read_features(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return self.project(IMAGE, output.flatten(1)).reshape(output.shape)


_HOOKS: dict[str, type[_TextHooks] | type[_ImageHook]] = {TEXT: _TextHooks, IMAGE: _ImageHook}
