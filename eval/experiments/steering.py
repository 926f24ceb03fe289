"""What does steering do to generated images? Miniature portraits, against plain projection, from the same noise.

python -m eval.experiments.steering --json eval/results/steering.json  # some 2000 images: minutes on two free cores
python -m eval.experiments.steering --images 4                         # a quick look

"A photo of a {unseen profession}.", judged by the classifier of the miniature world:

none               the pipeline as it is
cali               vldebias.debias(pipe, "professions-gender", method="cali"), lam = 500
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

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eval.experiments.drawing import GUIDANCE, STEPS, SURE, Easel, Portraits, codes_of, noise
from eval.experiments.run import parser, run
from vldebias import debias, steer
from vldebias.data import UNKNOWN
from vldebias.evaluation.result import Provenance, TaskResult
from vldebias.metrics.discrepancy import discrepancies, squared_discrepancies
from vldebias.miniature.portraits import GENDERS, TONES
from vldebias.prompts import load_prompts

SET, TONE = "professions-gender", "skin-tone"
UNSEEN = "unseen professions"
Methods = Mapping[str, Callable[[], Any]]


def drawn(easel: Easel, prompts: Sequence[str], images: int, methods: Methods) -> dict[str, Portraits]:
    """So many images of each prompt under every method; seeds 0, 1, ... and noise of its own for every prompt."""
    seeds = np.tile(np.arange(images), (len(prompts), 1))
    noises = np.array([[noise(prompt, seed) for seed in range(images)] for prompt in prompts])
    return {name: easel(prompts, seeds, noises, method) for name, method in methods.items()}


def shown(codes: NDArray[np.int64], values: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Counts (p, values) of what the images of each prompt show, and shares (p,) of those that cannot be told."""
    return np.stack([(codes == value).sum(1) for value in range(values)], axis=1), (codes == UNKNOWN).mean(1)


def gender(easel: Easel, images: int) -> TaskResult:
    """Uniform and other shares, on professions that nothing was fitted on; and prompts that state their gender."""
    prompts = load_prompts(SET)
    methods: Methods = {
        "none": nullcontext,
        "cali": partial(debias, easel.pipe, SET, method="cali"),
        "steer": partial(steer, easel.pipe, SET),
        "steer, stratified": partial(steer, easel.pipe, SET, stratify=images),
        "steer 0.30 male": partial(steer, easel.pipe, SET, {"male": 0.3, "female": 0.7}, stratify=images),
    }
    result = TaskResult(_provenance(easel, "steering gender", [SET], images))
    of = drawn(easel, prompts.held_out_classes, images, methods)
    wanted, names = codes_of(prompts.held_out_class_names), np.array([*GENDERS, "unknown"], dtype=object)
    counts = {name: shown(one.gender, len(GENDERS)) for name, one in of.items()}
    show = partial(result.add_resampled, n={"professions": len(wanted), "images each": images}, subset=UNSEEN)
    uniform = {name: discrepancies(told) for name, (told, _) in counts.items() if name != "steer 0.30 male"}
    show("discrepancy", uniform, better="lower")
    show("share of male", {name: (one.gender == 0).mean(1) for name, one in of.items()}, better="neither")
    show("unknown", {name: unknown for name, (_, unknown) in counts.items()}, better="lower")
    show("recognised", {name: (one.profession == wanted).mean(1) for name, one in of.items()}, better="higher")
    show("clip_score", {name: one.clip.mean(1) for name, one in of.items()}, better="higher")
    steered = {name: one for name, one in of.items() if name.startswith("steer")}
    follows = {name: (names[one.gender] == one.given).mean(1) for name, one in steered.items()}
    show("follows", follows, better="higher")

    texts, some = [prompt for group in prompts.held_out_groups for prompt in group], max(images // 4, 1)
    methods = {
        "none": nullcontext,
        "cali, stated not kept": partial(debias, easel.pipe, SET, method="cali", keep_stated=False),
        "steer": partial(steer, easel.pipe, SET),
        "steer, stated not kept": partial(steer, easel.pipe, SET, keep_stated=False),
    }
    asked = np.array([0 if " male " in text else 1 for text in texts])[:, None]
    right = {name: (one.gender == asked).mean(1) for name, one in drawn(easel, texts, some, methods).items()}
    n = {"professions": len(wanted), "images each": 2 * some}
    by_profession = {name: values.reshape(-1, 2).mean(1) for name, values in right.items()}
    result.add_resampled("stated_right", by_profession, better="higher", n=n, subset=f"stated, {UNSEEN}")
    return result


def crossed(easel: Easel, images: int) -> TaskResult:
    """Gender and skin tone together: ten combinations, uniform, stratified over the images of a prompt."""
    prompts = load_prompts(SET)
    methods: Methods = {
        "none": nullcontext,
        "cali": partial(debias, easel.pipe, [SET, TONE], method="cali"),
        "steer, stratified": partial(steer, easel.pipe, [SET, TONE], stratify=images),
    }
    result = TaskResult(_provenance(easel, "steering gender x tone", [SET, TONE], images))
    of = drawn(easel, prompts.held_out_classes, images, methods)
    wanted = codes_of(prompts.held_out_class_names)
    counts = {name: shown(combinations(one), len(GENDERS) * len(TONES)) for name, one in of.items()}
    show = partial(result.add_resampled, n={"professions": len(wanted), "images each": images}, subset=UNSEEN)
    show("discrepancy_squared", {m: squared_discrepancies(told) for m, (told, _) in counts.items()}, better="lower")
    show("unknown", {name: unknown for name, (_, unknown) in counts.items()}, better="lower")
    show("recognised", {name: (one.profession == wanted).mean(1) for name, one in of.items()}, better="higher")
    show("clip_score", {name: one.clip.mean(1) for name, one in of.items()}, better="higher")
    return result


def combinations(images: Portraits) -> NDArray[np.int64]:
    """Codes of gender x tone, UNKNOWN where one of them is."""
    known = (images.gender != UNKNOWN) & (images.tone != UNKNOWN)
    return np.where(known, images.gender * len(TONES) + images.tone, UNKNOWN)


def _provenance(easel: Easel, task: str, sets: Sequence[str], images: int) -> Provenance:
    return Provenance(
        task=task,
        title="Steering: each image is given a value by its seed",
        description=f"'A photo of a [unseen profession].', {STEPS} steps, guidance {GUIDANCE}, the same noise for all "
        f"methods; judged by the world's own classifier, unknown below {SURE}; resampled over professions.",
        model="miniature StableDiffusionPipeline",
        fingerprint=easel.fingerprint,
        prompts="+".join(sets),
        prompts_hash="+".join(load_prompts(name).hash for name in sets),
        split="generated",
        methods={"none": {}, "cali": {"lam": 500.0}, "steer": {"lam": 500.0, "push": 1.0, "strength": 1.0}},
        seeds=list(range(images)),
        n={"images each": images},
        settings={
            "steps": STEPS,
            "guidance": GUIDANCE,
            "batch size": easel.batch,
            "sure": SURE,
            "resamples": 2000,
        },
    )


def measure(images: int) -> Iterator[TaskResult]:
    """Both tasks."""
    easel = Easel()
    yield gender(easel, images)
    yield crossed(easel, images)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--images", type=int, default=10, help="of each prompt (default: %(default)s)")
    given = options.parse_args()
    torch.set_num_threads(1)
    run("steering", lambda: measure(given.images), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
