"""Where a drawing is going after its first step: nearer to one prompt, or nearer to another.

From pure noise a denoiser predicts the mean of what it might draw. Where a prompt leaves a value open, that is the
mixture of the means of its values, in the shares in which it is going to draw them; so with x, x1 and x2 what the same
noise becomes in one step under the prompt and under two that state the values,

    (x - x2) . (x1 - x2) / |x1 - x2|^2

estimates the share of the first. Guidance cancels out of it. No picture is finished and nobody judges any: it costs one
step, for a few noises. A trained denoiser is not that ideal one, so what is read here follows the shares of finished
pictures without being equal to them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vldebias.errors import UnsupportedHostError
from vldebias.hosts.seam import MethodSeam

NOISES, STEPS = 8, 10  # noises that are begun; steps of the schedule whose first is taken
_NEEDED = ("prompt", "generator", "num_inference_steps", "output_type", "callback_on_step_end")
_IMAGES = ("image", "images", "mask_image", "control_image", "video")


class _Begun(Exception):  # noqa: N818 - nothing went wrong
    """One step is done."""


def check_begins(pipe: Any) -> None:
    """Refuse pipelines that do not go from noise and prompts alone, or cannot be stopped after a step.

    Raises:
        UnsupportedHostError: with the arguments that are missing or too many.
    """
    parameters = inspect.signature(type(pipe).__call__).parameters
    missing, beside = [n for n in _NEEDED if n not in parameters], [n for n in _IMAGES if n in parameters]
    if missing or beside or getattr(pipe, "scheduler", None) is None:
        why = f"lacks {', '.join(missing)}" if missing else f"takes {', '.join(beside) or 'no scheduler'}"
        raise UnsupportedHostError(
            f"{type(pipe).__name__}: expected a text-to-image pipeline whose first step can be looked at, but its call "
            f"{why}; fit and attach on one that draws from prompts alone"
        )


def twin_of(pipe: Any) -> Any:
    """A pipeline of the same modules that can be called inside a call of the other; nothing is attached to it."""
    twin = copy(pipe)
    seam = vars(twin).pop("encode_prompt", None)
    before = seam.before if isinstance(seam, MethodSeam) else seam
    if before is not None:
        twin.encode_prompt = before
    if hasattr(pipe, "scheduler"):
        twin.scheduler = deepcopy(pipe.scheduler)
    twin.set_progress_bar_config(disable=True)
    return twin


def begin(pipe: Any, prompt: str) -> Tensor:
    """(noises, d) float64, what fixed noises become in the first step under a prompt.

    Raises:
        UnsupportedHostError: the pipeline ended without telling its callback of a step.
    """
    latents: list[Tensor] = []

    def stop(_: Any, step: int, time: Any, given: dict[str, Any]) -> dict[str, Any]:
        latents.append(given["latents"])
        raise _Begun

    generators = [torch.Generator().manual_seed(noise) for noise in range(NOISES)]
    how = {"num_inference_steps": STEPS, "output_type": "latent", "callback_on_step_end": stop}
    with suppress(_Begun):
        pipe(prompt=[prompt] * NOISES, generator=generators, **how)
    if not latents:
        raise UnsupportedHostError(
            f"{type(pipe).__name__}: expected a call of callback_on_step_end after the first step"
        )
    return latents[0].flatten(1).double().cpu()


def first_step_similarity(pairs: Sequence[tuple[str, str]], begun: Callable[[str, str], Tensor]) -> Tensor:
    """(n,) float64 from 0 to 1: how near to the first of two prompts the mean of their states begins.

    begun: two prompts -> what noises become under the mean of their states; of a prompt twice, under its own.
    """

    @cache
    def share(first: str, second: str) -> float:
        one, other = begun(first, first), begun(second, second)
        between = one - other
        along = ((begun(first, second) - other) * between).sum(1) / between.square().sum(1)
        return float(along.clamp(0, 1).mean())

    return torch.tensor([share(*pair) for pair in pairs], dtype=torch.float64)
