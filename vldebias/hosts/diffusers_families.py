"""The diffusers pipelines that are known by name, and how to make more of them known."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.families_image import IMAGE_FAMILIES
from vldebias.hosts.families_video import VIDEO_FAMILIES
from vldebias.hosts.family import Family

_FAMILIES: list[Family] = [*IMAGE_FAMILIES, *VIDEO_FAMILIES]


_REASONS = {  # why: names of classes without "Pipeline" at their ends
    "a language model writes its images as tokens; encode_prompt reads only what the prompt quotes": "GlmImage",
    "it makes sound": "AceStep AudioLDM2 LongCatAudioDiT StableAudio StableAudio3 StableAudio3AudioToAudio "
    "StableAudio3Inpaint",
    "it makes sound with the video, from the same prompt": "Kandinsky6TI2VA",
    "a prior reads the prompt beside encode_prompt, so that an edit of one reaches half": "StableUnCLIP",
    "its boxes read their phrases beside encode_prompt, so that an edit of one reaches half": "StableDiffusionGLIGEN "
    "StableDiffusionGLIGENTextImage",
    "encode_prompt reads the source prompt too, which has to stay as it is": "CycleDiffusion StableDiffusionDiffEdit",
    "its encode_prompt needs an image, and a projection is fitted on prompts alone": "Kandinsky5I2I "
    "HunyuanVideoImageToVideo BlipDiffusion BlipDiffusionControlNet",
    "its encode_prompt needs the size of the image": "Ideogram4",
    "encode_prompt takes several prompts and makes one text of them": "VisualClozeGeneration",
    "encode_prompt reads the prompt and the negative prompt in one list": "DreamLite DreamLiteMobile",
    "it calls encode_prompt three times, with prompts that cannot be told apart": "BriaFibo2",
    "it calls encode_prompt for both prompts with nothing that tells the calls apart": "ErnieImage",
    "prompts beside images are read by another method than encode_prompt": "JoyImageEdit",
    "a mask of its own says which tokens show an image": "QwenImage21",
    "it pads without a mask, so that the end of a prompt cannot be told from padding": "Cosmos2_5_PredictBase "
    "Cosmos2_5_Transfer",
    "it cuts the end of the template off behind the padding, so that prompts have no end token": "LongCatImage "
    "LongCatImageEdit",
    "a call may ask encode_prompt for another layer (return_index), which is another space": "NucleusMoEImage",
    "the instruction before the prompt is chosen by the call, and a projection is fitted before it": "SanaWM",
}
REFUSED = {f"{name}Pipeline": reason for reason, names in _REASONS.items() for name in names.split()}
REFUSED |= dict.fromkeys(
    ("LEditsPPPipelineStableDiffusion", "LEditsPPPipelineStableDiffusionXL"),
    "encode_prompt takes edits of an image, not a prompt",
)
"""Pipelines that were looked at and cannot be served as the others are, and why."""


def list_families() -> list[Family]:
    """The families of the table."""
    return list(_FAMILIES)


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


def is_new(pipe: Any) -> bool:
    """Has nobody looked into the class of a pipeline, nor into a base of it?"""
    known = {*list_pipelines(), *REFUSED}
    return not any(base.__name__ in known for base in type(pipe).__mro__)


def family_of(pipe: Any) -> Family:
    """The family of the nearest listed base of a pipeline's class.

    Raises:
        UnsupportedHostError: no base is listed; the message has the nearest name and what to do.
    """
    by_class = {name: family for family in _FAMILIES for name in family.pipelines}
    for base in type(pipe).__mro__:
        if base.__name__ in by_class:
            return by_class[base.__name__]
    name = type(pipe).__name__
    nearest = get_close_matches(name, by_class, n=1, cutoff=0)[0]
    reason = REFUSED.get(name, f"not among the {len(by_class)} pipelines that are known; the nearest is {nearest}")
    raise UnsupportedHostError(
        f"{name}: {reason}.\n"
        "If its encode_prompt returns what its denoiser reads, describe that: "
        "vldebias.hosts.diffusers.register_family(Family(...)); vldebias.hosts.probe.propose_family(pipe) asks it.\n"
        "If not, attach at a function of your own with vldebias.hosts.custom(...). All known names: "
        "vldebias.hosts.diffusers.list_pipelines()."
    )
