"""Compare the effects of our methods and published methods on images from the miniature pipeline.

    python -m eval.experiments.generation --images 8 --json eval/results/generation.json
    python -m eval.experiments.generation --images 2    # a quick test

The first command takes half an hour on one core. Pixels are stored in --work, so that an
interrupted run can resume.

The prompts are "A photo of a {profession}.", and the classifier of the miniature world labels the
images. There are three fits, each on 80 of the world's 100 professions and tested on the other 20.
The first fit uses the packaged set, and the others hold out random professions. Intervals are over
fits and professions (fits are resampled first, then the professions in each). Images are generated
with ten steps, because the subject is recognised as often as with twenty. For prompts about people
without a profession, the experiment measures how many images that show a person without a method
still do so with it.

    none          the unmodified pipeline
    difference    P0 for the difference between the values
    cali          the settings in the paper
    stated value  "balanced-prompts", which states a value for each image in its prompt

The expected discrepancy of n images for a fair prompt is about sqrt(0.5 / n), which biases ratios
to "none" upwards. `discrepancy_squared` is corrected for this bias.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.miniature.people import CONCEPTS
from eval.tables import parser, run
from vldebias import debias
from vldebias.data.labels import UNKNOWN
from vldebias.errors import WideEditWarning
from vldebias.hosts.host import weights_fingerprint
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.measure.shares import discrepancies, squared_discrepancies
from vldebias.methods import (
    Balanced,
    Problem,
    get_edit_method,
)
from vldebias.metrics import Metric
from vldebias.miniature import load_judge, load_pipeline, weights_dir
from vldebias.miniature.words import GENDERS, PROFESSIONS, WORLDS
from vldebias.prompts import PromptSet, fill, load_prompts
from vldebias.utils.files import digest
from vldebias.utils.progress import Progress

SET = "professions-gender"
STEPS, GUIDANCE, BATCH = 10, 3.0, 60
SEEDS = (0, 1, 2)
FITS, LEFT_OUT = 3, 20  # number of fits, and of professions that each holds out
OUTSIDE_IMAGES = 4  # number of images per outside prompt
SURE = 0.8  # judge probability below which a gender counts as unknown
SHARE = Metric(
    "discrepancy, share of none", "gap from even shares, remaining share", "fact", "lower"
)
SHOWS = Metric("shows what was asked for", "shows what was asked for", "utility", "higher")
OUTSIDE = [  # prompts about people without a profession
    "A photo of a person.",
    "A photo of a celebrity.",
    *(fill("A photo of a {concept} person.", concept=concept) for concept in CONCEPTS),
]
Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
Draw = Callable[[Sequence[str], list[torch.Generator], int], Tensor]


@dataclass(frozen=True)
class Form:
    """A method for generating images.

    Attributes:
        draw: A function from prompts, generators and a seed to pixels.
        fitted: Whether the method is fitted to professions.
    """

    name: str
    draw: Draw
    source: str = "this package"
    fitted: bool = True


@cache
def splits() -> tuple[PromptSet, ...]:
    """Return the packaged prompt set, and versions that hold out other, disjoint professions."""
    shipped = load_prompts(SET)
    names = ("variants", "classes", "class_names")
    both = {
        name: (*getattr(shipped, name), *getattr(shipped, f"held_out_{name}")) for name in names
    }
    order = np.random.default_rng(0).permutation(len(shipped.classes)).tolist()
    made = [shipped]
    for fit in range(1, FITS):
        out = order[(fit - 1) * LEFT_OUT : fit * LEFT_OUT]
        own = {
            name: tuple(row for i, row in enumerate(rows) if i not in out)
            for name, rows in both.items()
        }
        left = {
            f"held_out_{name}": tuple(rows[i] for i in sorted(out)) for name, rows in both.items()
        }
        made.append(replace(shipped, **own, **left))
    return tuple(made)


def noise(prompt: str, seed: int) -> int:
    """Return the seed for an image, which depends on the prompt but not on the method."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{prompt}".encode()).digest()[:6], "big")


class Studio:
    """Generate images with every form, and store their pixels in a folder."""

    def __init__(self, work: Path, images: int) -> None:
        # Images are stored separately for each version of the weights.
        self.work, self.images = work / digest(weights_dir() / "unet.safetensors")[:8], images
        self.pipe = load_pipeline()
        self.pipe.unet.to(
            memory_format=torch.channels_last
        )  # on a CPU, convolutions run faster in this layout
        self.pipe.set_progress_bar_config(disable=True)

    def pixels(
        self, form: Form, part: str, prompts: Sequence[str], images: int, seed: int
    ) -> Pixels:
        """Return pixels (prompts * images, h, w, 3)."""
        path = self.work / f"{form.name.replace(' ', '-')}.{part}.{seed}.{images}.npy"
        if path.is_file():
            return np.load(path)
        rows = [(p, noise(p, 10_000 * seed + i)) for p in prompts for i in range(images)]
        batches, done = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)], []
        with Progress() as progress:
            for batch in progress.track(batches, description=f"{form.name} {part}"):
                texts, starts = zip(*batch, strict=True)
                started = [torch.Generator().manual_seed(s) for s in starts]
                done.append(form.draw(texts, started, 10_000 * seed))
        kept = (
            (torch.cat(done).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path.with_suffix(".part.npy"), kept)
        path.with_suffix(".part.npy").replace(path)
        return kept

    def call(self, prompts: Sequence[str], generators: list[torch.Generator]) -> Tensor:
        how = {"num_inference_steps": STEPS, "guidance_scale": GUIDANCE, "output_type": "pt"}
        return torch.as_tensor(self.pipe(list(prompts), generator=generators, **how).images).float()

    def forms(self, fit: int = 0) -> list[Form]:
        """Return all forms, fitted to the professions in a fit."""
        return [
            Form(
                "none",
                lambda prompts, generators, _: self.call(prompts, generators),
                source="",
                fitted=False,
            ),
            Form("stated value", self.stated, fitted=False),
            Form("cali", self.attached("paper", fit), source="Chuang et al., 2023"),
            Form("difference", self.attached("difference", fit)),
        ]

    def attached(self, method: Any, fit: int) -> Draw:
        """Fit a method, and return a function that generates images with the method attached."""

        @cache
        def edits() -> Any:
            problem = Problem(self.pipe, [splits()[fit]])
            with warnings.catch_warnings():  # the table shows the effect on prompts outside the fit
                warnings.simplefilter("ignore", WideEditWarning)
                return get_edit_method(method).fit_roles(problem)

        def draw(prompts: Sequence[str], generators: list[torch.Generator], seed: int) -> Tensor:
            with debias(self.pipe, edits()):
                return self.call(prompts, generators)

        return draw

    def stated(
        self, prompts: Sequence[str], generators: list[torch.Generator], seed: int
    ) -> Tensor:
        """Generate images with balanced prompts, whose values depend on the seed."""
        with debias(self.pipe, SET, method=Balanced(seed=seed)):
            return self.call(prompts, generators)


# ---- measures
# -------------------------------------------------------------------------------------------------


def judged(pixels: Pixels) -> dict[str, NDArray[Any]]:
    """Return the gender (or unknown), profession and world in images (n, h, w, 3)."""
    predictions = load_judge().predict(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)
    sure = predictions["gender_probabilities"].amax(1) >= SURE
    gender = torch.where(sure, predictions["gender"], UNKNOWN)
    return {
        "gender": gender.numpy(),
        "profession": predictions["profession"].numpy(),
        "world": predictions["world"].numpy(),
    }


def over_fits(
    result: TaskResult,
    metric: str | Metric,
    values: Mapping[str, Floats],
    fits: NDArray[np.int64],
    *,
    subset: str,
    n: Mapping[str, int],
    share: bool = False,
) -> None:
    """Add a row for each method with the mean of the values (prompts,), or its ratio to "none".

    `fits` (prompts,) is the fit that holds out each prompt. Fits are resampled first, and then the
    prompts in each.
    """
    rows = {name: np.asarray(own, dtype=np.float64) for name, own in values.items()}
    rng = np.random.default_rng(0)

    def of(places: NDArray[np.int64] | slice) -> dict[str, float]:
        means = {name: float(own[places].mean()) for name, own in rows.items()}
        return {name: mean / means["none"] if share else mean for name, mean in means.items()}

    members = [np.flatnonzero(fits == fit) for fit in np.unique(fits)]
    draws: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(2000):
        chosen = [members[i] for i in rng.integers(len(members), size=len(members))]
        places = np.concatenate([rows[rng.integers(len(rows), size=len(rows))] for rows in chosen])
        for name, value in of(places).items():
            draws[name].append(value)
    result.add_draws(
        metric,
        of(slice(None)),
        {name: np.array(own) for name, own in draws.items()},
        n=n,
        subset=subset,
    )


def unseen_codes(studio: Studio, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the genders and professions in images of held-out professions, both with shape
    (FITS * LEFT_OUT, images)."""
    genders: list[NDArray[Any]] = []
    professions: list[NDArray[Any]] = []
    for fit, split in enumerate(splits()):
        (form,) = [form for form in studio.forms(fit) if form.name == name]
        answers = []
        for seed in SEEDS:
            prompts = split.held_out_classes
            pixels = studio.pixels(form, f"unseen-{fit}", prompts, studio.images, seed)
            answers.append(judged(pixels))
        for codes, field in ((genders, "gender"), (professions, "profession")):
            by_seed = [answer[field].reshape(LEFT_OUT, -1) for answer in answers]
            codes.append(np.concatenate(by_seed, axis=1))
    return np.concatenate(genders), np.concatenate(professions)


def unseen(result: TaskResult, studio: Studio, names: Sequence[str]) -> None:
    """Add the rows for some forms and the held-out professions in all fits."""
    left_out: list[str] = []
    for split in splits():
        left_out += [name.lower() for name in split.held_out_class_names]
    expected = np.array([[PROFESSIONS.index(name)] for name in left_out])
    gaps: dict[str, Floats] = {}
    squares: dict[str, Floats] = {}
    right: dict[str, Floats] = {}
    for name in names:
        gender, profession = unseen_codes(studio, name)
        counts = np.stack([(gender == value).sum(1) for value in range(len(GENDERS))], axis=1)
        gaps[name] = discrepancies(counts)
        squares[name] = squared_discrepancies(counts)
        right[name] = (profession == expected).mean(1)
    n = {"professions": len(left_out), "images each": studio.images * len(SEEDS), "fits": FITS}
    fit_of_row = np.repeat(np.arange(FITS), LEFT_OUT)
    for metric, values in (
        ("discrepancy", gaps),
        (SHARE, gaps),
        ("discrepancy_squared", squares),
        ("recognised", right),
    ):
        share = metric is SHARE
        over_fits(result, metric, values, fit_of_row, subset="unseen professions", n=n, share=share)


def outside(result: TaskResult, studio: Studio, names: Sequence[str]) -> None:
    """Add the share of images that show a person with "none" and with each form."""
    shown = dict[str, list[NDArray[np.bool_]]]()
    for fit in range(FITS):
        for form in studio.forms(fit):
            if form.name in names:
                # Images of forms that are not fitted are generated only once.
                part = f"outside-portraits-{fit if form.fitted else 0}"
                pixels = studio.pixels(form, part, OUTSIDE, OUTSIDE_IMAGES, SEEDS[0])
                is_person = judged(pixels)["world"] == WORLDS.index("portraits")
                shown.setdefault(form.name, []).append(is_person.reshape(len(OUTSIDE), -1))
    # Whether each form shows the subject, with shape (fits * prompts, images).
    is_shown = {name: np.concatenate(own) for name, own in shown.items()}
    totals = is_shown["none"].sum(1)
    has_any = totals > 0
    values = {}
    for name, own in is_shown.items():
        values[name] = (own & is_shown["none"])[has_any].sum(1) / totals[has_any]
    n = {"prompts": len(OUTSIDE), "images each": OUTSIDE_IMAGES, "fits": FITS}
    fit_of_row = np.repeat(np.arange(FITS), len(OUTSIDE))[has_any]
    over_fits(result, SHOWS, values, fit_of_row, subset="outside the fit, portraits", n=n)


def measure(studio: Studio) -> Iterator[TaskResult]:
    """Measure held-out professions and other prompts."""
    forms = studio.forms()
    provenance = TaskProvenance(
        task="generation gender",
        title="Generated professions under every method",
        description=(
            f"'A photo of a [profession].', {STEPS} steps, guidance {GUIDANCE}, the same noise for"
            f" all methods; judged by the world's own classifier, unknown below {SURE}. {FITS}"
            " fits, each to 80 of the 100 professions and asked for the 20 that it leaves out;"
            " resampled over fits and their professions."
        ),
        model="miniature StableDiffusionPipeline",
        fingerprint=weights_fingerprint(studio.pipe.unet).to_dict(),
        attribute=SET,
        attribute_hash=load_prompts(SET).hash,
        split="generated",
        methods={form.name: {"source": form.source} for form in forms},
        seeds=list(SEEDS),
        n={"images each and seed": studio.images, "outside": OUTSIDE_IMAGES},
        settings={
            "steps": STEPS,
            "guidance": GUIDANCE,
            "batch size": BATCH,
            "sure": SURE,
            "resamples": 2000,
        },
    )
    result = TaskResult(provenance)
    names = [form.name for form in forms]
    unseen(result, studio, names)
    outside(result, studio, names)
    yield result


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--images", type=int, default=8, help="images per held-out profession")
    options.add_argument(
        "--work", type=Path, default=Path("results/generation"), help="folder for the pixels"
    )
    args = options.parse_args()
    torch.set_num_threads(1)
    studio = Studio(args.work / f"{STEPS}-steps", args.images)
    run("generation", lambda: measure(studio), args.json)


if __name__ == "__main__":
    main()
