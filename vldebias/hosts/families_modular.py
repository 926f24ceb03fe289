"""The blocks of Modular Diffusers that encode text, by the names of their classes, and what they put into the state.

A modular pipeline is known by that one block, whatever else it is made of: blocks of your own around a known one are
served as the pipelines of diffusers are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vldebias.hosts.diffusers_families import list_families
from vldebias.hosts.families_image import NORM
from vldebias.hosts.family import Family, Part


@dataclass(frozen=True, kw_only=True)
class TextBlock:
    """A block that encodes text.

    Attributes:
        classes: names of block classes with the same outputs; edits are fitted with the first that is there.
        family: its `Part.index`, `mask` and `negative` are places in `outputs`.
        outputs: names in the state of what it gives.
        single: it takes one prompt, not a list.
        shown: the output (b, tokens) that is true for the tokens of an image; those up to the last are left alone.
    """

    classes: tuple[str, ...]
    family: Family
    outputs: tuple[str, ...]
    single: bool = False
    shown: str | None = None


_POOLED = "prompt_embeds negative_prompt_embeds pooled_prompt_embeds negative_pooled_prompt_embeds"
_MASKED = "prompt_embeds prompt_embeds_mask negative_prompt_embeds"
_GUIDED = "prompt_embeds negative_prompt_embeds"
_LTX = "prompt_embeds prompt_attention_mask negative_prompt_embeds"


def _block(
    classes: str, family: str | Family, outputs: str, *, single: bool = False, shown: str | None = None
) -> TextBlock:
    """Classes without "TextEncoderStep" at their ends; a family that reads the same, or one of its own."""
    whole = family if isinstance(family, Family) else next(one for one in list_families() if one.name == family)
    names = tuple(outputs.split())

    def beside(part: Part) -> Part:
        """Both prompts have outputs of their own, so that no call is a second one."""
        negative = f"negative_{names[part.index]}"
        return replace(part, negative=names.index(negative) if negative in names else None)

    return TextBlock(
        classes=tuple(f"{name}TextEncoderStep" for name in classes.split()),
        family=replace(whole, parts=tuple(map(beside, whole.parts)), twice=False),
        outputs=names,
        single=single,
        shown=shown,
    )


def _own(name: str, part: Part) -> Family:
    return Family(name=name, pipelines=(), parts=(part,))


BLOCKS: tuple[TextBlock, ...] = (
    _block("StableDiffusionXL", "StableDiffusionXL", _POOLED),
    _block("StableDiffusion3", "StableDiffusion3", _POOLED),
    _block("Flux", "Flux", "prompt_embeds pooled_prompt_embeds"),
    _block("Flux2", "Flux2", "prompt_embeds"),
    _block("Flux2Klein", "Flux2Klein", "prompt_embeds"),
    _block("Flux2KleinBase", "Flux2Klein", _GUIDED),
    _block("Flux3", _own("Flux3", Part(template=True)), _GUIDED, single=True),
    _block("Flux3Distilled", _own("Flux3", Part(template=True)), "prompt_embeds", single=True),
    _block("QwenImage", "QwenImage", _MASKED),
    _block(
        "QwenImage21 QwenImage21VL",
        _own("QwenImage21", Part(mask=1, template=True, unmerged=NORM)),
        f"{_MASKED} image_pad_mask",
        shown="image_pad_mask",
    ),
    _block(
        "QwenImage21Turbo QwenImage21TurboVL",
        _own("QwenImage21", Part(mask=1, template=True, unmerged=NORM)),
        "prompt_embeds prompt_embeds_mask image_pad_mask",
        shown="image_pad_mask",
    ),
    _block("Krea2", "Krea2", _MASKED),
    _block("Krea2Turbo", "Krea2", "prompt_embeds prompt_embeds_mask"),
    _block("ZImage", "ZImage", _GUIDED),
    _block("Wan Helios", "Wan", _GUIDED),
    _block("WanAnimate2", "Wan", _GUIDED, single=True),
    _block("HunyuanVideo15", "HunyuanVideo15", _MASKED),
    _block("LTX", "LTX", _LTX),
    _block("LTX2", "LTX2", _LTX),
    _block("Echo", _own("Echo", Part(mask=1, unmerged=NORM)), "prompt_embeds prompt_attention_mask"),
    _block("ErnieImage", _own("ErnieImage", Part(template=True)), _GUIDED),
)

_REASONS = {  # why: names of classes without "Step" at their ends
    "its denoiser reads the ids of the prompt beside its embeddings, so that an edit of one reaches half": "AnimaText"
    "Encoder",
    "its denoiser reads the ids of the prompt itself; no block gives embeddings": "Cosmos3TextEncoder "
    "Cosmos3DistilledTextEncoder",
    "it calls the layers of its encoder one by one, so that nothing tells where a prompt ends": "Ideogram4TextEncoder",
    "it makes sound with the video, from the same prompt": "MiniMaxH3TextEncoder",
    "it makes sound": "MiniMaxMusic3Tokenize",
    "the block that encodes its text needs an image, and a projection is fitted on prompts alone": "QwenImageEditText"
    "Encoder QwenImageEditPlusTextEncoder",
}
REFUSED_BLOCKS = {f"{name}Step": reason for reason, names in _REASONS.items() for name in names.split()}
"""Blocks that were looked at and cannot be served, and why."""
