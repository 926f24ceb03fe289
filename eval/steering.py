"""What does steering do to generated images? Miniature portraits, against plain projection, from the same noise.

python eval/steering.py --json eval/results/steering.json   # some 2000 images: minutes on two free cores
python eval/steering.py --images 4                          # a quick look

"A photo of a {unseen profession}.", judged by the classifier of the miniature world:

none               the pipeline as it is
cali               vldebias.debias(pipe, "professions-gender"), lam = 500
steer              vldebias.steer(pipe, "professions-gender"), uniform, every image drawn by itself
steer, stratified  the same with stratify= the number of images of a prompt
steer 0.30 male    toward other shares, stratified

Discrepancy counts every image that cannot be told as unknown; `follows` is the share of images that show the value they
were given; clip_score is that of the miniature CLIP. Prompts that state their gender are drawn too, with and without
being left alone. A second task steers gender and skin tone together, against their ten combinations.

n images of a fair prompt drawn one by one have a discrepancy of about sqrt(0.5 / n), 0.22 for ten. discrepancy_squared
is corrected for that, and too much so where images are stratified: it can then lie below 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from features import image_features, text_features
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from targets import print_result
from torch import Tensor

from vldebias import debias, steer
from vldebias.data import UNKNOWN
from vldebias.evaluation.drawing.plan import DrawnImage
from vldebias.evaluation.generation.discrepancies import Counts
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.result import Figure, Protocol, Result, commit, versions
from vldebias.evaluation.scores.clip_score import clip_score
from vldebias.fingerprint import weights_fingerprint
from vldebias.miniature import load_clip, load_judge, load_pipeline
from vldebias.miniature.portraits import GENDERS, PROFESSIONS, TONES
from vldebias.prompts import load_prompts
from vldebias.steering import Steering

SET, TONE = "professions-gender", "skin-tone"
STEPS, GUIDANCE, BATCH, SURE = 20, 3.0, 40, 0.8
GENDER_TASK, CROSSED_TASK = "steering gender", "steering gender x tone"
Floats = NDArray[np.float64]
Attached = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, eq=False)
class Images:
    """What the judge and CLIP say about the images of some prompts, each array (prompts, images)."""

    gender: NDArray[np.int64]
    tone: NDArray[np.int64]
    profession: NDArray[np.int64]
    clip: Floats
    given: NDArray[np.object_]


@dataclass(frozen=True)
class Studio:
    """Draws and judges. Every prompt has noise of its own, the same under every method."""

    pipe: Any = field(default_factory=lambda: _faster(load_pipeline()))
    judge: Any = field(default_factory=load_judge)
    clip: Any = field(default_factory=load_clip)

    def __call__(self, prompts: Sequence[str], images: int, attached: Attached) -> Images:
        wanted = [(prompt, seed) for prompt in prompts for seed in range(images)]
        shown = track(range(0, len(wanted), BATCH), f"{len(wanted)} images", console=Console(stderr=True))
        with attached() as attachment:
            drawn = [self._batch(wanted[i : i + BATCH], attachment) for i in shown]
        pixels = torch.cat([one for one, _ in drawn])
        given = np.array([value for _, values in drawn for value in values], dtype=object)
        shape = (len(prompts), images)
        read = self.judge.predict(pixels)
        codes = {name: _told(read, name).reshape(shape) for name in ("gender", "tone")}
        shown = read["profession"].numpy().reshape(shape)
        return Images(**codes, profession=shown, clip=self._clip(pixels, prompts, images), given=given.reshape(shape))

    def _batch(self, wanted: Sequence[tuple[str, int]], attachment: Any) -> tuple[Tensor, list[str | None]]:
        prompts, seeds = [prompt for prompt, _ in wanted], [seed for _, seed in wanted]
        values: list[str | None] = [None] * len(wanted)
        if isinstance(attachment, Steering):
            values, attachment.seeds = attachment.values(prompts, seeds), seeds  # type: ignore[assignment]
        noise = [DrawnImage("", prompt, "", "unseen", None, seed, "").noise for prompt, seed in wanted]
        done = self.pipe(
            prompts,
            generator=[torch.Generator().manual_seed(seed) for seed in noise],
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
            output_type="pt",
        )
        return done.images.float().clamp(0, 1), values

    def _clip(self, pixels: Tensor, prompts: Sequence[str], images: int) -> Floats:
        model, preprocess, tokenizer = self.clip
        texts = text_features(model, tokenizer, prompts).repeat_interleave(images, 0)
        return clip_score(image_features(model, pixels, preprocess), texts).reshape(len(prompts), images).numpy()


def _faster(pipe: Any) -> Any:
    pipe.unet.to(memory_format=torch.channels_last)  # convolutions run faster so on a CPU
    return pipe


def _told(read: dict[str, Tensor], name: str) -> NDArray[np.int64]:
    """Codes, UNKNOWN where the judge is not sure."""
    sure = read[f"{name}_probabilities"].amax(1) >= SURE
    return torch.where(sure, read[name], UNKNOWN).numpy()


def measured(task: str, metric: str, better: str, images: int, values: dict[str, Floats], subset: str) -> list[Figure]:
    n = {"professions": len(next(iter(values.values()))), "images each": images}
    return figures(Measured(task, metric, better, n, values, subset=subset))


def concepts(names: Sequence[str]) -> NDArray[np.int64]:
    return np.array([PROFESSIONS.index(name.lower()) for name in names])[:, None]


def gender_figures(studio: Studio, images: int) -> list[Figure]:
    prompts = load_prompts(SET)
    attached: dict[str, Attached] = {
        "none": nullcontext,
        "cali": partial(debias, studio.pipe, SET),
        "steer": partial(steer, studio.pipe, SET),
        "steer, stratified": partial(steer, studio.pipe, SET, stratify=images),
        "steer 0.30 male": partial(steer, studio.pipe, SET, {"male": 0.3, "female": 0.7}, stratify=images),
    }
    drawn = {name: studio(prompts.held_out_classes, images, each) for name, each in attached.items()}
    wanted = concepts(prompts.held_out_class_names)
    show = partial(measured, GENDER_TASK, images=images, subset="unseen professions")
    uniform = {name: one for name, one in drawn.items() if name != "steer 0.30 male"}
    counts = {name: Counts.of(one.gender, len(GENDERS)) for name, one in drawn.items()}
    steered = {name: _follows(one) for name, one in drawn.items() if name.startswith("steer")}
    return [
        *show("discrepancy", "lower", values={name: counts[name].discrepancy for name in uniform}),
        *show("share of male", "neither", values={name: (one.gender == 0).mean(1) for name, one in drawn.items()}),
        *show("unknown", "lower", values={name: each.unknown_rate for name, each in counts.items()}),
        *show("recognised", "higher", values={name: (one.profession == wanted).mean(1) for name, one in drawn.items()}),
        *show("clip_score", "higher", values={name: one.clip.mean(1) for name, one in drawn.items()}),
        *show("follows", "higher", values=steered),
    ]


def _follows(images: Images) -> Floats:
    """Share of the images of each prompt that show the gender they were given; unknown counts as not."""
    names = np.array([*GENDERS, "unknown"], dtype=object)
    return (names[images.gender] == images.given).mean(1)


def stated_figures(studio: Studio, images: int) -> list[Figure]:
    """Prompts that state their gender, a man and a woman of each unseen profession."""
    prompts = load_prompts(SET)
    texts = [prompt for group in prompts.held_out_groups for prompt in group]
    attached: dict[str, Attached] = {
        "none": nullcontext,
        "cali, stated not kept": partial(debias, studio.pipe, SET, keep_stated=False),
        "steer": partial(steer, studio.pipe, SET),
        "steer, stated not kept": partial(steer, studio.pipe, SET, keep_stated=False),
    }
    wanted = np.array([0 if " male " in text else 1 for text in texts])[:, None]
    right = {name: (studio(texts, images, each).gender == wanted).mean(1) for name, each in attached.items()}
    by_profession = {name: values.reshape(-1, 2).mean(1) for name, values in right.items()}
    return measured(GENDER_TASK, "stated_right", "higher", 2 * images, by_profession, "stated, unseen professions")


def crossed_figures(studio: Studio, images: int) -> list[Figure]:
    """Gender and skin tone together: ten combinations, uniform, stratified over the images of a prompt."""
    prompts = load_prompts(SET)
    attached: dict[str, Attached] = {
        "none": nullcontext,
        "cali": partial(debias, studio.pipe, [SET, TONE]),
        "steer, stratified": partial(steer, studio.pipe, [SET, TONE], stratify=images),
    }
    drawn = {name: studio(prompts.held_out_classes, images, each) for name, each in attached.items()}
    cells = {name: _crossed(one) for name, one in drawn.items()}
    wanted = concepts(prompts.held_out_class_names)
    show = partial(measured, CROSSED_TASK, images=images, subset="unseen professions")
    counts = {name: Counts.of(cell, len(GENDERS) * len(TONES)) for name, cell in cells.items()}
    recognised = {name: (one.profession == wanted).mean(1) for name, one in drawn.items()}
    return [
        *show("discrepancy_squared", "lower", values={name: each.squared for name, each in counts.items()}),
        *show("unknown", "lower", values={name: each.unknown_rate for name, each in counts.items()}),
        *show("recognised", "higher", values=recognised),
        *show("clip_score", "higher", values={name: one.clip.mean(1) for name, one in drawn.items()}),
    ]


def _crossed(images: Images) -> NDArray[np.int64]:
    known = (images.gender != UNKNOWN) & (images.tone != UNKNOWN)
    return np.where(known, images.gender * len(TONES) + images.tone, UNKNOWN)


def protocol(studio: Studio, task: str, sets: Sequence[str], images: int) -> Protocol:
    loaded = [load_prompts(name) for name in sets]
    return Protocol(
        task=task,
        title="Steering: each image is given a value by its seed",
        description=(
            f"'A photo of a [unseen profession].', {STEPS} steps, guidance {GUIDANCE}, the same noise for all methods; "
            f"judged by the world's own classifier, unknown below {SURE}; resampled over professions."
        ),
        model="miniature StableDiffusionPipeline",
        fingerprint=weights_fingerprint(studio.pipe.unet),
        prompts="+".join(sets),
        prompts_hash="+".join(one.hash for one in loaded),
        split="generated",
        methods={"none": {}, "cali": {"lam": 500.0}, "steer": {"lam": 500.0, "push": 1.0, "strength": 1.0}},
        seeds=list(range(images)),
        n={"images each": images},
        settings={"steps": STEPS, "guidance": GUIDANCE, "batch size": BATCH, "sure": SURE, "resamples": 2000},
    )


def measure(images: int) -> Result:
    started, studio = time.monotonic(), Studio()
    stated = max(images // 4, 1)
    found = [
        *gender_figures(studio, images),
        *stated_figures(studio, stated),
        *crossed_figures(studio, images),
    ]
    return Result(
        name="steering",
        figures=found,
        protocols=[
            protocol(studio, GENDER_TASK, [SET], images),
            protocol(studio, CROSSED_TASK, [SET, TONE], images),
        ],
        versions=versions(),
        commit=commit(),
        seconds=round(time.monotonic() - started, 1),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10, help="of each prompt (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(arguments.images)
    print_result(result)
    if arguments.json:
        result.write(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
