"""Generated portraits for eval/beyond.py: the methods that need prompts alone, on the same seeds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from beyond_methods import LOSS

import vldebias
from vldebias.attachment import Attachment
from vldebias.bounded import Bound
from vldebias.errors import VldebiasWarning
from vldebias.evaluation.generation.evaluator import generate
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Protocol
from vldebias.fingerprint import weights_fingerprint
from vldebias.metrics import attribute_shares
from vldebias.prompts import load_prompts
from vldebias.steering import Steering, steer

__all__ = ["generation"]

TASK, PROMPTS = "generation gender", "professions-gender"
STEPS, GUIDANCE, SURE, BATCH = 20, 3.0, 0.8, 64
LARGEST = 0.5**0.5  # discrepancy of images that are all of one gender, or that cannot be told


def generation(images: int) -> Part:
    """Discrepancy and recognised subjects of unseen professions, so many images each. Intervals over professions."""
    from vldebias.miniature import load_judge, load_pipeline
    from vldebias.miniature.portraits import PROFESSIONS

    pipe, judge, prompts = load_pipeline(), load_judge(), load_prompts(PROMPTS)
    pipe.unet.to(memory_format=torch.channels_last)
    wanted = np.array([PROFESSIONS.index(name.lower()) for name in prompts.held_out_class_names])
    discrepancy, recognised, chosen = {}, {}, {}
    for name, attached in _methods(pipe):
        with attached as attachment:
            drawn = _draw(pipe, attachment, prompts.held_out_classes, images)
            chosen[name] = {} if attachment is None else _facts(attachment)
        found = judge.predict(drawn)
        sure = found["gender_probabilities"].amax(1) >= SURE
        gender = found["gender"].masked_fill(~sure, -1).view(-1, images).numpy()
        discrepancy[name] = np.array([_discrepancy(row) for row in gender])
        recognised[name] = (found["profession"].view(-1, images).numpy() == wanted[:, None]).mean(1)
    n = {"professions": len(wanted), "images each": images}
    found_figures = [
        *figures(Measured(TASK, "discrepancy", "lower", n, discrepancy)),
        *figures(Measured(TASK, "recognised", "higher", n, recognised)),
    ]
    return Part(found_figures, _protocol(pipe, chosen, n))


def _methods(pipe: Any) -> Iterator[tuple[str, AbstractContextManager[Attachment | None]]]:
    """(name, context in which it is attached); equalising needs a space that texts share with images."""
    yield "none", nullcontext()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VldebiasWarning)
        for method in ("cali", "difference", "auto"):
            yield method, vldebias.debias(pipe, PROMPTS, method=method)
        yield "bounded", vldebias.debias(pipe, PROMPTS, method="cali", max_loss=Bound(LOSS))
        yield "target, uniform", steer(pipe, PROMPTS)


def _draw(pipe: Any, attachment: Attachment | None, prompts: Sequence[str], images: int) -> torch.Tensor:
    """(prompts * images, 3, h, w): every image has noise of its own, the same for every method."""
    wanted = [(prompt, 100 * i + k) for i, prompt in enumerate(prompts) for k in range(images)]
    drawn = []
    for start in range(0, len(wanted), BATCH):
        texts, seeds = zip(*wanted[start : start + BATCH], strict=True)
        if isinstance(attachment, Steering):
            attachment.seeds = seeds
        drawn.append(generate(pipe, texts, seeds, steps=STEPS, guidance=GUIDANCE, batch_size=BATCH))
    return torch.cat(drawn)


def _discrepancy(gender: np.ndarray) -> float:
    """Eq. 7.2; images that cannot be told at all have the largest there is."""
    return attribute_shares(gender, 2, unknown=-1).discrepancy if (gender >= 0).any() else LARGEST


def _facts(attachment: Attachment) -> dict[str, Any]:
    return {role: {"method": p.method, "lam": p.lam, "rank": p.rank} for role, p in attachment.projections.items()}


def _protocol(pipe: Any, chosen: dict[str, dict[str, Any]], n: dict[str, int]) -> Protocol:
    return Protocol(
        task=TASK,
        title="Generated portraits of unseen professions",
        description=(
            "Discrepancy of the genders of generated images, and how many show the profession asked for; read by the "
            "miniature's judge. 'target, uniform' draws each image's gender by its seed: it samples the attribute."
        ),
        model="miniature diffusion",
        fingerprint=weights_fingerprint(pipe.unet),
        prompts=PROMPTS,
        prompts_hash=load_prompts(PROMPTS).hash,
        split="unseen professions",
        methods=chosen,
        seeds=[0],
        n=n,
        settings={"steps": STEPS, "guidance": GUIDANCE, "sure": SURE, "loss of bounded": LOSS, "resamples": 2000},
    )
