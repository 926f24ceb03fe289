"""Tiny modular pipelines of every class that is known: their text sides, and whole ones where the parts are there."""

import warnings
from importlib import import_module

import diffusers_text
import diffusers_tiny
import torch
from diffusers_drawing import DRAWINGS
from diffusers_text import CASES, Processor, chat_tokenizer

PLAIN, STATED = "a photo of a doctor", "a photo of a female nurse"


def classes():
    """Every modular pipeline class of the installed diffusers that has blocks of its own, by name."""
    import diffusers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # diffusers warns of its own imports
        found = {name: getattr(diffusers, name) for name in dir(diffusers) if name.endswith("ModularPipeline")}
    return {name: cls for name, cls in sorted(found.items()) if getattr(cls, "default_blocks_name", None)}


def _of(name):
    """The components of a pipeline with `encode_prompt`, or of the text side of one."""
    if name in diffusers_tiny.FAMILIES:
        return lambda: diffusers_tiny.FAMILIES[name][0]().components
    made = {key: make for key, make in DRAWINGS[name].components.items() if key not in ("guider", "scheduler")}
    return lambda: (
        {key: part for key, part in CASES[name].components().items() if key != "guider"}
        | {key: make() for key, make in made.items()}
    )


class _Spelled(Processor):
    """Lists of ids, one for each chat, as processors of images give them."""

    def apply_chat_template(self, chat, tokenize=False, **settings):
        text = self.tokenizer.apply_chat_template(chat, tokenize=False)
        return [self.tokenizer(text).input_ids] if tokenize else self.tokenizer.apply_chat_template(chat, **settings)


def _qwen21():
    return {"text_encoder": diffusers_text.qwen_vl(), "processor": _Spelled(chat_tokenizer())}


def _flux3():
    return {"text_encoder": diffusers_text.deeper(), "tokenizer": Processor(chat_tokenizer())}


def _krea2():
    return {"text_encoder": diffusers_text.deeper(), "tokenizer": chat_tokenizer()}


def _ernie():
    return {"text_encoder": diffusers_text.qwen(), "tokenizer": chat_tokenizer()}


COMPONENTS = {
    "StableDiffusionXL": _of("StableDiffusionXL"),
    "StableDiffusion3": _of("StableDiffusion3"),
    **dict.fromkeys(("Flux", "FluxKontext"), _of("Flux")),
    "Flux2": _of("Flux2"),
    **dict.fromkeys(("Flux2Klein", "Flux2KleinBase"), _of("Flux2Klein")),
    **dict.fromkeys(("Flux3", "Flux3Distilled"), _flux3),
    **dict.fromkeys(("QwenImage", "QwenImageLayered"), _of("QwenImage")),
    **dict.fromkeys(("QwenImage21", "QwenImage21Turbo"), _qwen21),
    **dict.fromkeys(("Krea2", "Krea2Turbo"), _krea2),
    "ZImage": _of("ZImage"),
    **dict.fromkeys(("Wan", "WanImage2Video", "Wan22", "Wan22Image2Video", "Wan22Vace"), _of("Wan")),
    **dict.fromkeys(("WanAnimate2", "WanAnimate2Distilled"), _of("Wan")),
    **dict.fromkeys(("Helios", "HeliosPyramid", "HeliosPyramidDistilled"), _of("Wan")),
    "HunyuanVideo15": _of("HunyuanVideo15"),
    "LTX": _of("LTX"),
    **dict.fromkeys(("LTX2", "LTX25", "Echo"), _of("LTX2")),
    "ErnieImage": _ernie,
}
COMPONENTS = {name: made for name, made in COMPONENTS.items() if f"{name}ModularPipeline" in classes()}
"""Class names without "ModularPipeline" at their ends -> what makes their components; those of this release."""


def make(name, blocks=None):
    """A new modular pipeline of a class with its own blocks, or of given ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = classes()[f"{name}ModularPipeline"]() if blocks is None else blocks.init_pipeline()
    given = {key: part for key, part in COMPONENTS[name]().items() if key in pipe.component_names and part is not None}
    import_module("diffusers").utils.logging.set_verbosity_error()
    pipe.update_components(**given)
    return pipe


def read(pipe, prompts=(PLAIN, STATED), **call):
    """The state after the block that encodes text and what stands behind it, before anything is drawn."""
    from diffusers.modular_pipelines import PipelineState

    if "WanAnimate2" in type(pipe).__name__ or "Flux3" in type(pipe).__name__:
        states = [read_once(pipe, prompt, PipelineState(), call) for prompt in prompts]
        return {key: [state[key] for state in states] for key in states[0]}
    return read_once(pipe, list(prompts), PipelineState(), call)


def read_once(pipe, prompt, state, call):
    defaults = {given.name: given.default for given in pipe._blocks.inputs if given.name}
    for name, value in (defaults | {"prompt": prompt} | call).items():
        state.set(name, value)
    for name, block in pipe._blocks.sub_blocks.items():
        if name == "text_encoder":
            for step in _without_images(block):
                step(pipe, state)
    return {name: value for name, value in state.values.items() if "embeds" in name and value is not None}


def _without_images(block):
    """The steps of a block, but for those that look at an image that an image pipeline reads beside its text."""
    steps = list(block.sub_blocks.items())
    images = [name for name, _ in steps if name in ("resize", "get_image_prompt")]
    return [step for name, step in steps if name not in images] if images else [block]


def rows(value):
    """The tensors of an output, prompt by prompt."""
    if isinstance(value, torch.Tensor):
        return list(value)
    return (
        [row for one in value for row in rows(one)]
        if isinstance(value[0], torch.Tensor) and value[0].ndim == 3
        else value
    )
