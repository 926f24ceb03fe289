"""What `encode_prompt` of each diffusers pipeline returns, by role: the table behind the diffusers host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vldebias.errors import InvalidInputError, UnsupportedHostError

__all__ = ["CROSS_ATTENTION", "Family", "Part", "family_of", "list_pipelines", "register_family"]

CROSS_ATTENTION = "cross-attention"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One tensor that `encode_prompt` returns, (b, tokens, d) or (b, d), or a segment of its tokens.

    Attributes:
        role: its name: "sequence", "pooled", ...
        index: its place in the returned tuple.
        negative: place of its twin for the negative prompt, None where the tuple has none.
        mask: place of the attention mask of its tokens, None where the tuple has none.
        encoders: components of the pipeline that make it; at least one has to be loaded.
        tokenizers: components that tokenize its prompts; the first that is loaded finds the end-of-text token.
        given: argument with which a caller brings the tensor along instead of a prompt; "negative_" + given
            likewise for the twin. Such tensors are the caller's and are left alone.
        start, stop: attributes of the pipeline with the first token of the segment and the one after its last.
        layered: `clip_skip` takes it from an earlier layer, which is another space with a projection of its own.
        optional: left out where its encoders are not loaded, instead of refusing the pipeline.
        read_by: where `merge()` finds the weights that read it: CROSS_ATTENTION (keys and values of all
            cross-attentions) or the last names of a linear layer; None where weights cannot hold the projection.
        leading: it is only the leading part of what that layer reads.
    """

    role: str
    index: int
    negative: int | None = None
    mask: int | None = None
    encoders: tuple[str, ...] = ("text_encoder",)
    tokenizers: tuple[str, ...] = ("tokenizer",)
    given: str = "prompt_embeds"
    start: str | None = None
    stop: str | None = None
    layered: bool = False
    optional: bool = False
    read_by: str | None = None
    leading: bool = False


@dataclass(frozen=True, kw_only=True)
class Family:
    """Pipelines whose `encode_prompt` takes and returns the same.

    Attributes:
        name: prefix of the names of its spaces; projections fit every pipeline of the family with the same encoders.
        pipelines: class names; a subclass belongs to the family of its nearest listed base.
        parts: the tensors to project.
        texts: arguments of `encode_prompt` with the prompts; "negative_" + name for the negative ones.
        twice: `__call__` calls `encode_prompt` a second time for the negative prompt, with `negative_prompt` in the
            place of `prompt` and `negative_prompt_embeds` in the place of `prompt_embeds`.
    """

    name: str
    pipelines: tuple[str, ...]
    parts: tuple[Part, ...]
    texts: tuple[str, ...] = ("prompt",)
    twice: bool = False


_CLIPS = ("text_encoder", "text_encoder_2")
_CLIP_TOKENIZERS = ("tokenizer", "tokenizer_2")

_FAMILIES: list[Family] = [
    Family(
        name="StableDiffusion",
        pipelines=(
            *("StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline", "StableDiffusionInpaintPipeline"),
            *("StableDiffusionDepth2ImgPipeline", "StableDiffusionUpscalePipeline", "StableDiffusionAdapterPipeline"),
            *("StableDiffusionControlNetPipeline", "StableDiffusionControlNetImg2ImgPipeline"),
            *("StableDiffusionControlNetInpaintPipeline", "StableUnCLIPImg2ImgPipeline"),
            *("StableDiffusionPAGPipeline", "StableDiffusionPAGImg2ImgPipeline", "StableDiffusionPAGInpaintPipeline"),
            *("StableDiffusionControlNetPAGPipeline", "StableDiffusionControlNetPAGInpaintPipeline"),
            *("LatentConsistencyModelPipeline", "LatentConsistencyModelImg2ImgPipeline", "AnimateDiffPipeline"),
        ),
        parts=(Part(role="sequence", index=0, negative=1, layered=True, read_by=CROSS_ATTENTION),),
    ),
    Family(
        name="StableDiffusionXL",
        pipelines=(
            *("StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline"),
            *("StableDiffusionXLInstructPix2PixPipeline", "StableDiffusionXLAdapterPipeline"),
            *("StableDiffusionXLControlNetPipeline", "StableDiffusionXLControlNetImg2ImgPipeline"),
            *("StableDiffusionXLControlNetInpaintPipeline", "StableDiffusionXLControlNetUnionPipeline"),
            *("StableDiffusionXLControlNetUnionImg2ImgPipeline", "StableDiffusionXLControlNetUnionInpaintPipeline"),
            *("StableDiffusionXLPAGPipeline", "StableDiffusionXLPAGImg2ImgPipeline"),
            *("StableDiffusionXLPAGInpaintPipeline", "StableDiffusionXLControlNetPAGPipeline"),
            "StableDiffusionXLControlNetPAGImg2ImgPipeline",
        ),
        parts=(
            Part(
                role="sequence",
                index=0,
                negative=1,
                encoders=_CLIPS,
                tokenizers=_CLIP_TOKENIZERS,
                layered=True,
                read_by=CROSS_ATTENTION,
            ),
            Part(
                role="pooled",
                index=2,
                negative=3,
                encoders=("text_encoder_2",),
                given="pooled_prompt_embeds",
                read_by="add_embedding.linear_1",
                leading=True,
            ),
        ),
        texts=("prompt", "prompt_2"),
    ),
    Family(
        name="StableDiffusion3",
        pipelines=(
            *("StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline", "StableDiffusion3InpaintPipeline"),
            *("StableDiffusion3ControlNetPipeline", "StableDiffusion3ControlNetInpaintingPipeline"),
            *("StableDiffusion3PAGPipeline", "StableDiffusion3PAGImg2ImgPipeline"),
        ),
        # The CLIP tokens, padded with zeros to the width of T5, stand before the T5 tokens. One layer
        # (context_embedder) reads both, so that its weights cannot hold the two projections.
        parts=(
            Part(role="sequence.clip", index=0, negative=1, encoders=_CLIPS, stop="tokenizer_max_length", layered=True),
            Part(
                role="sequence.t5",
                index=0,
                negative=1,
                encoders=("text_encoder_3",),
                tokenizers=("tokenizer_3",),
                start="tokenizer_max_length",
                optional=True,
            ),
            Part(
                role="pooled",
                index=2,
                negative=3,
                encoders=_CLIPS,
                read_by="time_text_embed.text_embedder.linear_1",
            ),
        ),
        texts=("prompt", "prompt_2", "prompt_3"),
    ),
    Family(
        name="Flux",
        pipelines=(
            *("FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline", "FluxFillPipeline"),
            *("FluxControlPipeline", "FluxControlImg2ImgPipeline", "FluxControlInpaintPipeline"),
            *("FluxControlNetPipeline", "FluxControlNetImg2ImgPipeline", "FluxControlNetInpaintPipeline"),
            *("FluxKontextPipeline", "FluxKontextInpaintPipeline", "FluxPriorReduxPipeline"),
        ),
        parts=(
            Part(
                role="sequence",
                index=0,
                encoders=("text_encoder_2",),
                tokenizers=("tokenizer_2",),
                read_by="context_embedder",
            ),
            Part(role="pooled", index=1, read_by="time_text_embed.text_embedder.linear_1"),
        ),
        texts=("prompt", "prompt_2"),
        twice=True,
    ),
    Family(
        name="Chroma",
        pipelines=("ChromaPipeline", "ChromaImg2ImgPipeline", "ChromaInpaintPipeline"),
        parts=(Part(role="sequence", index=0, negative=3, read_by="context_embedder"),),
    ),
    Family(
        name="PixArt",
        pipelines=("PixArtAlphaPipeline", "PixArtSigmaPipeline", "PixArtSigmaPAGPipeline"),
        parts=(Part(role="sequence", index=0, mask=1, negative=2, read_by="caption_projection.linear_1"),),
    ),
    Family(
        name="Sana",
        pipelines=("SanaPipeline", "SanaControlNetPipeline", "SanaPAGPipeline"),
        parts=(Part(role="sequence", index=0, mask=1, negative=2, read_by="caption_projection.linear_1"),),
    ),
    Family(
        name="SanaSprint",
        pipelines=("SanaSprintPipeline", "SanaSprintImg2ImgPipeline"),
        parts=(Part(role="sequence", index=0, mask=1, read_by="caption_projection.linear_1"),),
    ),
    Family(
        name="AuraFlow",
        pipelines=("AuraFlowPipeline",),
        parts=(Part(role="sequence", index=0, negative=2, read_by="context_embedder"),),
    ),
]


def list_pipelines() -> list[str]:
    """Class names of all pipelines of the table, sorted."""
    return sorted(name for family in _FAMILIES for name in family.pipelines)


def register_family(family: Family) -> None:
    """Make a pipeline class known that is not listed, so that `vldebias.debias(pipe, ...)` accepts it.

    Look up what `encode_prompt` of the class returns and name each tensor by its role::

        sequence = Part(role="sequence", index=0, negative=1, read_by="context_embedder")
        register_family(Family(name="Acme", pipelines=("AcmePipeline",), parts=(sequence,)))

    `encode_prompt` has to be public, take `prompt`, and be what the class itself calls. A subclass of a listed class
    needs no entry unless its `encode_prompt` returns something else.

    Raises:
        InvalidInputError: the name or one of the classes is taken, or two parts share a role.
    """
    roles = [part.role for part in family.parts]
    if not roles or len(set(roles)) < len(roles):
        raise InvalidInputError(f"family {family.name!r}: expected parts with different roles, got {roles}")
    taken = {family.name} & {f.name for f in _FAMILIES} | set(family.pipelines) & set(list_pipelines())
    if taken:
        raise InvalidInputError(f"family {family.name!r}: {sorted(taken)} is in the table already; choose other names")
    _FAMILIES.append(family)


def family_of(pipe: Any) -> Family:
    """The family of the nearest listed base of a pipeline's class.

    Raises:
        UnsupportedHostError: no base is listed; the message names the class, the list and `register_family`.
    """
    by_class = {name: family for family in _FAMILIES for name in family.pipelines}
    for base in type(pipe).__mro__:
        if base.__name__ in by_class:
            return by_class[base.__name__]
    known = ", ".join(list_pipelines())
    raise UnsupportedHostError(
        f"{type(pipe).__name__} is not among the pipelines whose encode_prompt is known: {known}. "
        "Describe what its encode_prompt returns with vldebias.hosts.diffusers.register_family(Family(...)), or call "
        "fit_projection on its text tower and apply the projection to the prompt_embeds that you pass to the pipeline"
    )
