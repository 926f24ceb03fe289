"""Tiny pipelines of every class of diffusers for which the parts are at hand, attached to and drawn with.

A class of a known family is made of the components of that family's tiny pipeline, and is called with whatever it
asks for beside the prompt: an image, a mask, a video. What needs a component that none of them has is left out, with
its name.
"""

from __future__ import annotations

import copy
import inspect
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vldebias.api import debias, fit_projections
from vldebias.errors import UnsupportedHostError
from vldebias.hosts.diffusers_families import family_of

TINY = Path(__file__).parents[2] / "tests/hosts"  # pipelines of a few channels, made from configs
if str(TINY) not in sys.path:
    sys.path.insert(0, str(TINY))

LIMIT = 5
DRAWN, SILENT, TEXT, UNTRIED = "drawn", "silent", "text side", "not tried"
SPARE = ("safety_checker", "feature_extractor", "image_encoder", "prompt_enhancer", "processor")  # None will do
Draw = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Tried:
    """What became of a class: one of the words above, or "refused", and why."""

    how: str
    why: str = ""


class NoTinyError(Exception):
    """No tiny pipeline of a class can be made, or it does not draw; the reason."""


def families() -> dict[str, tuple[Callable[[], Any], Draw]]:
    """Family -> what makes a tiny pipeline of it, and what draws with that."""
    import diffusers_drawing
    import diffusers_tiny

    found: dict[str, Any] = {
        name: (make, lambda pipe, call=call: diffusers_tiny.draw(pipe, **call))
        for name, (make, call) in diffusers_tiny.FAMILIES.items()
    }
    for name, drawing in diffusers_drawing.DRAWINGS.items():
        found[name] = (
            lambda name=name, drawing=drawing: drawing.make(name),
            lambda pipe, drawing=drawing: drawing.draw(pipe, [diffusers_drawing.PLAIN]),
        )
    return found


def three_states(pipe: Any, draw: Draw, bare: Tensor) -> str:
    """DRAWN where an edit changes what is drawn, and strength 0 and removal give `bare` bit by bit; or what is wrong.

    Raises:
        UnsupportedHostError: it is refused.
    """
    from diffusers_tiny import gender

    edits = fit_projections(pipe, gender(), lam=1e6)
    with debias(pipe, edits) as attachment:
        with_edit = draw(pipe)
        attachment.strength = 0.0
        at_zero = draw(pipe)
    if torch.equal(with_edit, bare):
        return SILENT
    return DRAWN if torch.equal(at_zero, bare) and torch.equal(draw(pipe), bare) else "does not come back"


def classic(cls: Any) -> Tried:
    """A pipeline class with an `encode_prompt`: one of a family, or one that nobody looked into."""
    try:
        make, draw = _maker(cls)
        pipe = make()
        with _limited():
            bare = draw(pipe)
        if not bare.isfinite().all():
            raise NoTinyError("what untrained weights draw is not finite")
        if not torch.equal(draw(pipe), bare):
            raise NoTinyError("two calls from one seed differ")
    except NoTinyError as error:
        return Tried(UNTRIED, str(error))
    try:
        return Tried(three_states(pipe, draw, bare))
    except UnsupportedHostError as error:
        return Tried("refused", reason(error))


def reason(error: UnsupportedHostError) -> str:
    """Why a pipeline that nobody listed is refused."""
    return str(error).partition("Asked what it returns: ")[2].partition(".\n")[0] or str(error)


def modular(name: str) -> Tried:
    """A modular class: whole where its parts are at hand, else what its blocks make of the prompt."""
    import modular_tiny

    short = name.removesuffix("ModularPipeline")
    if short not in modular_tiny.COMPONENTS:
        return Tried(UNTRIED, "no tiny components of its text side")
    pipe = modular_tiny.make(short)
    if getattr(pipe, "scheduler", pipe) is None:
        import diffusers

        pipe.update_components(scheduler=diffusers.FlowMatchEulerDiscreteScheduler())

    kind = "latent"

    def draw(pipe: Any) -> Tensor:
        size = {"num_inference_steps": 2, "height": 32, "width": 32, "num_frames": 5, "output_type": kind}
        takes = {one.name for one in pipe.blocks.inputs}
        pictures = {one.name: _asked()[one.name] for one in pipe.blocks.inputs if one.required and one.name in _asked()}
        given = {name: value for name, value in size.items() if name in takes} | pictures
        with torch.no_grad():
            return pipe(prompt=[modular_tiny.PLAIN], generator=torch.manual_seed(0), output="latents", **given)

    def text(pipe: Any) -> Tensor:
        read = modular_tiny.read(pipe, [modular_tiny.PLAIN])
        return torch.cat([row.flatten().double() for key in sorted(read) for row in modular_tiny.rows(read[key])])

    try:
        with _limited():
            try:
                bare = draw(pipe)
            except ValueError:  # some know pictures alone
                kind = "pt"
                bare = draw(pipe)
        how, shown, why = DRAWN, draw, ""
    except Exception as error:  # of a pipeline that lacks parts
        pipe, how, shown, why = modular_tiny.make(short), TEXT, text, _first_line(error)
        bare = text(pipe)
    found = three_states(pipe, shown, bare)
    return Tried(how if found == DRAWN else found, why)


def _maker(cls: Any) -> tuple[Callable[[], Any], Draw]:
    """Of the components of a family's tiny pipeline, those of "StableDiffusion" for a class without a family."""
    from diffusers_drawing import CASES, DRAWINGS, PLAIN, VARIANTS, Drawing
    from diffusers_tiny import FAMILIES

    name = family_named(cls) or "StableDiffusion"
    if name not in families():
        raise NoTinyError(f"no tiny pipeline of the family {name}")
    first = families()[name][0]()
    takes, known = inspect.signature(cls.__init__).parameters, inspect.signature(type(first).__init__).parameters
    given = {key: first.components[key] for key in takes if first.components.get(key) is not None}
    # some change the models that they are made of
    given |= {key: copy.deepcopy(given[key]) for key in ("unet", "transformer", "scheduler") if key in given}
    given |= {key: part for key in takes if (part := _more(cls, key, given)) is not None}
    required = (key for key, one in takes.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD)
    empty = [key for key in required if key not in (*given, "self")]
    if missing := [key for key in empty if key not in known and key not in SPARE]:
        raise NoTinyError(f"needs {', '.join(missing)}")
    flags = {"requires_safety_checker": False} if "requires_safety_checker" in takes else {}

    def made() -> Any:
        pipe = _quietly(lambda: cls(**dict.fromkeys(empty), **given, **flags))
        for key, value in (CASES[name].settings if name in CASES else {}).items():
            setattr(pipe, key, value)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    called = inspect.signature(cls.__call__).parameters
    call = {key: value for key, value in _asked().items() if key in called} if cls is not type(first) else {}
    call |= VARIANTS.get(cls.__name__, (name, {}))[1]
    drawing = DRAWINGS[name] if name in DRAWINGS else Drawing({}, dict(FAMILIES[name][1]))
    return made, lambda pipe: _quietly(lambda: drawing.draw(pipe, [PLAIN], **call))


def _asked() -> dict[str, Any]:
    """What classes ask for beside the prompt."""
    from diffusers_drawing import _image

    image = _image()
    pictures = {"image": image, "control_image": image, "mask_image": _image("white"), "video": [image] * 5}
    pictures |= {"conditioning_frames": [image] * 5, "control_video": [image] * 5}
    small = {"max_area": 32 * 32, "_auto_resize": False, "image_crf": 0}
    return pictures | small | {"strength": 1.0, "controlnet_conditioning_scale": 1.0, "control_mode": 0}


def _more(cls: Any, key: str, given: Mapping[str, Any]) -> Any:
    """A component that the family's own pipeline has not: made from its denoiser; None where there is none."""
    import diffusers

    if key == "scheduler" and "LatentConsistency" in cls.__name__:
        return diffusers.LCMScheduler()
    if key == "motion_adapter":
        return diffusers.MotionAdapter(block_out_channels=(8, 16), motion_layers_per_block=1,
                                       motion_num_attention_heads=2, motion_norm_num_groups=2)  # fmt: skip
    if key != "controlnet" or "unet" not in given or "XS" in cls.__name__:
        return None
    model = diffusers.ControlNetUnionModel if "Union" in cls.__name__ else diffusers.ControlNetModel
    net = _quietly(lambda: model.from_unet(given["unet"], conditioning_embedding_out_channels=(8, 16)))
    for parameter in net.parameters():  # they start at zero
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    return net.eval()


def _quietly(make: Callable[[], Any]) -> Any:
    """What is made, or NoTinyError with what a class raises that asks for other parts or arguments."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()
    except (UnsupportedHostError, NoTinyError):
        raise
    except Exception as error:
        raise NoTinyError(_first_line(error)) from error


@contextmanager
def _limited() -> Iterator[None]:
    """Stop what takes long: some bring every image to a million pixels."""

    def stop(*_: Any) -> None:
        raise NoTinyError(f"takes more than {LIMIT} seconds of a processor for a tiny image")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def family_named(cls: Any) -> str | None:
    """The family of a class."""
    try:
        return family_of(object.__new__(cls)).name
    except UnsupportedHostError:
        return None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}"
