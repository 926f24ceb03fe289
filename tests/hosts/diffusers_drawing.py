"""Denoisers, autoencoders and schedulers for the text sides of `diffusers_text`: whole pipelines that draw."""

import inspect
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import diffusers_parts as parts
import torch
from diffusers_text import CASES, Stub

PLAIN, STATED, NEGATIVE = "a photo of a doctor", "a photo of a female nurse", "old smiling person"


@dataclass
class Drawing:
    """What a family needs beside its text side, and how it is called.

    components: beside the text encoders. call: arguments in the place of the usual ones; None leaves one out.
    one_by_one: it takes a single prompt. small: functions of its module that would make an image too large to draw.
    """

    components: dict[str, Any]
    call: dict[str, Any] = field(default_factory=dict)
    one_by_one: bool = False
    small: dict[str, Any] = field(default_factory=dict)

    def make(self, name, pipeline=None):
        """A new pipeline around shared modules; pipeline: another class of the family."""
        import diffusers

        case = CASES[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # diffusers warns of its own imports
            cls = getattr(diffusers, pipeline or case.pipeline)
            takes = inspect.signature(cls.__init__).parameters
            empty = {n: None for n, p in takes.items() if p.default is p.empty and n != "self"}
            made = {name: make() for name, make in self.components.items()}
            pipe = cls(**empty | case.components() | made)
        for key, value in case.settings.items():
            setattr(pipe, key, value)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def draw(self, pipe, prompts=(PLAIN, STATED), negative=NEGATIVE, **more):
        """Latents of two images of each prompt: (4, ...), guided, from one seed; more: arguments of the call."""
        if self.one_by_one and len(prompts) > 1:
            return torch.cat([self.draw(pipe, [prompt], negative, **more) for prompt in prompts])
        usual = {"num_inference_steps": 2, "height": 32, "width": 32, "num_frames": 5, "frames": 5}
        usual |= {"guidance_scale": 3.0, "true_cfg_scale": 3.0, "output_type": "latent", "return_dict": False}
        usual |= {"num_images_per_prompt": 2, "num_videos_per_prompt": 2, "max_sequence_length": 40}
        usual |= {"use_resolution_binning": False, "clean_caption": False, "generator": torch.manual_seed(0)}
        usual |= {"negative_prompt": [negative] * len(prompts)}
        takes = inspect.signature(type(pipe).__call__).parameters
        call = {name: value for name, value in usual.items() if name in takes} | self.call | more
        with torch.no_grad(), mock.patch.dict(vars(sys.modules[type(pipe).__module__]), self.small):
            drawn = pipe(prompt=list(prompts), **{n: v for n, v in call.items() if v is not None})[0]
        return torch.stack(list(drawn)) if isinstance(drawn, list) else drawn


class Safe(Stub):
    """In the place of a model that refuses prompts and videos."""

    def check_text_safety(self, prompt):
        return True

    def check_video_safety(self, video):
        return video


def _image(color=(90, 120, 30)):
    from PIL import Image

    return Image.new("RGB", (32, 32), color)


def _drawing(call=None, one_by_one=False, small=None, **components):
    call = {
        key: {"IMAGE": _image(), "IMAGES": [_image()]}.get(str(value), value) for key, value in (call or {}).items()
    }
    small = {name: lambda *_, value=tuple(value): value for name, value in (small or {}).items()}
    components = {"scheduler": "FlowMatchEulerDiscreteScheduler"} | components
    made = {key: parts.builder(entry, key in ("scheduler", "guider")) for key, entry in components.items()}
    return Drawing(made, call, one_by_one, small)


DRAWINGS = {name: _drawing(**entry) for name, entry in parts.TABLE["drawings"].items()}
DRAWINGS["Cosmos"].components["safety_checker"] = Safe

_EDIT = {"image": _image(), "strength": 1.0}
_MASKED = _EDIT | {"mask_image": _image("white")}
_FRAMES = {"video": [_image()] * 5}

VARIANTS = {
    "QwenImageImg2ImgPipeline": ("QwenImage", _EDIT),
    "QwenImageInpaintPipeline": ("QwenImage", _MASKED),
    "QwenImageEditInpaintPipeline": ("QwenImageEdit", _MASKED),
    "ZImageImg2ImgPipeline": ("ZImage", _EDIT),
    "Flux2KleinInpaintPipeline": ("Flux2Klein", _MASKED),
    "KolorsImg2ImgPipeline": ("Kolors", _EDIT),
    "KolorsPAGPipeline": ("Kolors", {}),
    "Kandinsky3Img2ImgPipeline": ("Kandinsky3", _EDIT | {"num_images_per_prompt": 1}),
    "LTXImageToVideoPipeline": ("LTX", {"image": _image()}),
    "LTX2ImageToVideoPipeline": ("LTX2", {"image": _image(), "image_crf": 0}),
    "WanVideoToVideoPipeline": ("Wan", _FRAMES),
    "CogVideoXVideoToVideoPipeline": ("CogVideoX", _FRAMES),
}
"""Other classes of a family that need no further modules, and what they are called with."""
