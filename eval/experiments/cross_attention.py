"""What does a value set in cross-attention do to generated images, beside words and EquiSteer?

    python -m eval.experiments.cross_attention choice --json eval/results/steer_choice.json
    python -m eval.experiments.cross_attention evidence --json eval/results/steer.json
    python -m eval.experiments.cross_attention evidence --guidance 3 ...

"A photo of a {profession}." on the miniature pipeline, from the same noise for all methods, judged
by the world's own classifier; unknown below .8. `choice` compares forms, amounts, concepts of the
fit, ranks, layers and times on professions of the training split that no fit has seen; `evidence`
measures what was chosen on the 20 professions that the world's sets hold out, 24 images each, in
three draws. Values are dealt by the balancer, as in `vldebias.debias`. What was generated is kept
below --work, so that a run that was stopped goes on. Intervals are over professions.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from eval.tables import parser, run
from vldebias.api import debias, fit_projections
from vldebias.edits.cross_attention import CrossAttentionEdit
from vldebias.errors import VldebiasWarning
from vldebias.hosts.host import weights_fingerprint
from vldebias.judge.judges import MiniatureJudge, decide, predict
from vldebias.methods import Balanced, CrossAttention
from vldebias.metrics import Metric
from vldebias.miniature import load_pipeline
from vldebias.miniature.words import (
    AGES,
    GENDERS,
    TEST_PROFESSIONS,
    TONES,
    TRAIN_PROFESSIONS,
)
from vldebias.prompts import PromptSet, fill, make_prompt_set
from vldebias.report.result import NONE, TaskProvenance, TaskResult
from vldebias.study.tasks.variants import prepared

STEPS, BATCH, SURE = 8, 48, 0.8
VALUES = {"gender": GENDERS, "age": AGES, "tone": TONES}
# What a choice is made on: in no fit, and not what is measured in the end.
CHOICE = TRAIN_PROFESSIONS[3::7][:10]
FIT = tuple(name for name in TRAIN_PROFESSIONS if name not in CHOICE)
RESAMPLES = 2000
GAP = Metric("discrepancy", "gap from even shares", "fact", "lower")
LEFT = Metric(
    "discrepancy, share of none", "gap from even shares, remaining share", "fact", "lower"
)
AGREES = Metric("agreement", "shows the value that was dealt", "utility", "higher")
RIGHT = Metric("recognised", "subject accuracy", "utility", "higher")
KNOWN = Metric("unknown", "images whose value the judge cannot tell", "fact", "lower")
MOVED = Metric("distance", "distance to the picture of the same noise", "fact", "lower")
Labels = dict[str, NDArray[Any]]


def set_of(attribute: str) -> PromptSet:
    """Return the prompt set of an attribute over the professions of the fit."""
    name = "skin-tone" if attribute == "tone" else attribute
    return make_prompt_set(name, {value: [value] for value in VALUES[attribute]}, FIT)


class Deal(NamedTuple):
    """What is generated: a name, how it is attached (None: as it is), how prompts are written."""

    name: str
    attach: Callable[[], Any] | None = None


class Studio:
    """The pipeline, and what its pictures show, kept in a folder."""

    def __init__(self, work: Path, guidance: float) -> None:
        self.guidance = guidance
        self.work = work / f"{STEPS}-steps-{guidance:g}"
        self.pipe = load_pipeline()
        self.pipe.unet.to(memory_format=torch.channels_last)
        self.judge = MiniatureJudge().ready()

    def labels(
        self, deal: Deal, attribute: str, subjects: Sequence[str], images: int, seed: int
    ) -> Labels:
        """Return what the pictures of every subject show: attribute -> (subjects, images) codes, -1
        where the judge is unsure; the values that were dealt, and the mean pixel distance to the
        pictures of "none"."""
        name = f"{deal.name} {attribute if deal.attach else ''} {len(subjects)}x{images} {seed}"
        path = self.work / f"{name.replace(' ', '-').replace('/', '-')}.npz"
        if path.is_file():
            return dict(np.load(path))
        prompts = [fill("A photo of a {c}.", c=name) for name in subjects for _ in range(images)]
        noise = [100_000 * seed + number for number in range(len(prompts))]
        options = {"num_inference_steps": STEPS, "guidance_scale": self.guidance}
        pictures = []
        started = time.perf_counter()
        with prepared(self.pipe, deal.attach, prompts, noise, **options) as (rows, generator):
            for start in range(0, len(prompts), BATCH):
                batch = range(start, min(start + BATCH, len(prompts)))
                pictures += [picture for picture, _ in generator(batch)]
        seconds = time.perf_counter() - started
        answers = predict(self.judge, pictures)
        labels = {}
        for field in (*VALUES, "profession"):
            codes = decide(answers[field], self.judge.names[field], SURE).codes
            labels[field] = codes.reshape(len(subjects), images)
        labels["profession"] = answers["profession"].argmax(1).reshape(len(subjects), images)
        pixels = np.stack([np.asarray(picture.convert("RGB")) for picture in pictures])
        dealt = [-1] * len(rows)
        if deal.attach is not None:
            values = list(VALUES[attribute])
            dealt = [values.index(row.value) if row.value in values else -1 for row in rows]
        labels["dealt"] = np.array(dealt).reshape(len(subjects), images)
        distance = np.zeros(len(pictures))
        if deal.attach is not None:
            bare = self.pixels(subjects, images, seed).astype(float)
            distance = np.abs(pixels - bare).mean((1, 2, 3)) / 255
        labels["distance"] = distance.reshape(len(subjects), images)
        labels["seconds"] = np.array(seconds)
        path.parent.mkdir(parents=True, exist_ok=True)
        if deal.attach is None:
            np.save(path.with_suffix(".pixels.npy"), pixels)
        np.savez(path.with_suffix(".part.npz"), **labels)
        path.with_suffix(".part.npz").replace(path)
        print(f"{path.stem}: {seconds:.0f} s", flush=True)
        return labels

    def pixels(self, subjects: Sequence[str], images: int, seed: int) -> NDArray[np.uint8]:
        """Return the pictures of the pipeline as it is."""
        self.labels(Deal(NONE), "", subjects, images, seed)
        name = f"{NONE}--{len(subjects)}x{images}-{seed}"
        return np.load(self.work / f"{name}.pixels.npy")


class Figures(NamedTuple):
    """Hold one number for each subject."""

    gap: NDArray[Any]
    agreement: NDArray[Any]
    recognised: NDArray[Any]
    unknown: NDArray[Any]
    distance: NDArray[Any]


def figures(draws: Sequence[Labels], attribute: str, wanted: Sequence[int]) -> Figures:
    """Return the figures of each subject, means over draws; a gap is of the images of one draw.

    Shares are of the images that the judge can tell; one that it cannot tell agrees with nothing.
    """
    values = VALUES[attribute]
    gaps = []
    agreements = []
    for labels in draws:
        codes = labels[attribute]
        counts = np.stack([(codes == value).sum(1) for value in range(len(values))], axis=1)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        gaps.append(np.sqrt(np.square(shares - 1 / len(values)).sum(1)))
        is_dealt = labels["dealt"] >= 0
        agrees = (codes == labels["dealt"]) & is_dealt
        agreements.append(agrees.sum(1) / np.maximum(is_dealt.sum(1), 1))
    profession = np.concatenate([labels["profession"] for labels in draws], axis=1)
    codes = np.concatenate([labels[attribute] for labels in draws], axis=1)
    return Figures(
        np.mean(gaps, axis=0),
        np.mean(agreements, axis=0),
        (profession == np.array(wanted)[:, None]).mean(1),
        (codes < 0).mean(1),
        np.mean([labels["distance"].mean(1) for labels in draws], axis=0),
    )


def add_rows(
    result: TaskResult, of_method: Mapping[str, Figures], attribute: str, n: Mapping[str, int]
) -> None:
    """Add the rows of an attribute, with intervals over subjects."""
    rng = np.random.default_rng(0)
    subjects = len(of_method[NONE].gap)
    places = rng.integers(subjects, size=(RESAMPLES, subjects))
    for metric, field in ((GAP, 0), (AGREES, 1), (RIGHT, 2), (KNOWN, 3), (MOVED, 4)):
        rows = {name: found[field] for name, found in of_method.items()}
        if metric is AGREES:
            rows.pop(NONE)
        means = {name: float(row.mean()) for name, row in rows.items()}
        draws = {name: row[places].mean(1) for name, row in rows.items()}
        result.add_draws(metric, means, draws, n=n, subset=attribute)
    gaps = {name: found.gap for name, found in of_method.items()}
    left = {name: float(gap.mean() / gaps[NONE].mean()) for name, gap in gaps.items()}
    bare = gaps[NONE][places].mean(1)
    draws = {name: gap[places].mean(1) / bare for name, gap in gaps.items()}
    result.add_draws(LEFT, left, draws, n=n, subset=attribute)


def provenance(studio: Studio, about: str, **settings: Any) -> TaskProvenance:
    """Return the protocol of a result."""
    return TaskProvenance(
        task="cross-attention",
        title="Values set in cross-attention",
        description=about,
        model="miniature StableDiffusionPipeline",
        fingerprint=weights_fingerprint(studio.pipe.unet).to_dict(),
        prompts="professions",
        split="generated",
        settings={"steps": STEPS, "guidance": studio.guidance, "sure": SURE, **settings},
    )


# ---- the choice
# -------------------------------------------------------------------------------------------------


def variants(edit: CrossAttentionEdit, all_concepts: Mapping[int, CrossAttentionEdit]) -> Any:
    """Return name -> edit of the ablation, one thing changed at a time."""
    made: dict[str, CrossAttentionEdit] = {}
    for form in ("set", "shift"):
        for amount in (0.7, 1.0, 1.2, 1.35, 1.5):
            amounts = torch.full_like(edit.amounts, amount)
            made[f"{form}, amount {amount}"] = replace(edit, form=form, amounts=amounts)
    for concepts, fitted in all_concepts.items():
        made[f"{concepts} concepts"] = fitted
    if len(edit.values) > 2:
        for rank in range(1, len(edit.values) - 1):
            made[f"rank {rank}"] = replace(edit, rank=rank)
    numbers = range(len(edit.layers))
    half = len(numbers) // 2
    for name, kept in {"first layers": numbers[:half], "last layers": numbers[half:]}.items():
        made[name] = with_layers(edit, kept)
    number = len(edit.times)
    for name, kept in {
        "noisy half of the times": range(number // 2, number),
        "clean half of the times": range(number // 2),
        "every other time": range(0, number, 2),
    }.items():
        made[name] = with_times(edit, list(kept), stays="half" in name)
    return made


def with_layers(edit: CrossAttentionEdit, kept: Sequence[int]) -> CrossAttentionEdit:
    """Return an edit of some of the layers."""
    ends = np.cumsum([width for _, width in edit.layers])
    places = np.concatenate([np.arange(ends[i] - edit.layers[i][1], ends[i]) for i in kept])
    columns = torch.from_numpy(places)
    return replace(
        edit,
        center=edit.center[:, columns],
        effects=edit.effects[:, :, columns],
        amounts=edit.amounts[:, :, list(kept)],
        gate=edit.gate[:, columns],
        layers=tuple(edit.layers[i] for i in kept),
    )


def with_times(edit: CrossAttentionEdit, kept: Sequence[int], *, stays: bool) -> CrossAttentionEdit:
    """Return an edit fitted at some of the times; stays: nothing is edited at the others."""
    if stays:
        effects = edit.effects.clone()
        effects[[i for i in range(len(edit.times)) if i not in kept]] = 0
        return replace(edit, effects=effects)
    return replace(
        edit,
        times=edit.times[kept],
        center=edit.center[kept],
        effects=edit.effects[kept],
        amounts=edit.amounts[kept],
    )


def choice(
    studio: Studio, images: int, attributes: Sequence[str], only: Sequence[str] | None
) -> Iterator[TaskResult]:
    """Measure the ablation on professions that no fit has seen."""
    about = provenance(
        studio,
        f"{len(CHOICE)} professions of the training split, in no fit, {images} images each.",
    )
    result = TaskResult(about)
    wanted = [studio.judge.names["profession"].index(name) for name in CHOICE]
    for attribute in attributes:
        fitted = {
            concepts: fit(studio, attribute, CrossAttention(concepts=concepts))
            for concepts in (20, 5, 10, 40)
        }
        deals = [Deal(NONE), Deal("words", stated(studio, attribute))]
        for name, edit in variants(fitted.pop(20), fitted).items():
            if not only or name in only:
                deals.append(Deal(name, attached(studio, edit)))
        found = {}
        for deal in deals:
            labels = studio.labels(deal, attribute, CHOICE, images, 7)
            found[deal.name] = figures([labels], attribute, wanted)
            print(
                attribute,
                deal.name,
                [round(float(row.mean()), 3) for row in found[deal.name]],
                flush=True,
            )
        add_rows(result, found, attribute, {"professions": len(CHOICE), "images each": images})
    yield result


def fit(studio: Studio, attribute: str, method: Any) -> CrossAttentionEdit:
    """Return the edit of an attribute, fitted once and kept."""
    folder = studio.work / f"edit-{attribute}-{method.name}-{method.concepts}"
    if not folder.is_dir():
        edits = fit_projections(studio.pipe, set_of(attribute), method=method)
        next(iter(edits.values())).save_pretrained(folder)
    loaded = CrossAttentionEdit.from_pretrained(folder)
    return loaded


def stated(studio: Studio, attribute: str, seed: int = 0) -> Callable[[], Any]:
    """Return what attaches balanced prompts, with the seed of their values."""
    return lambda: debias(studio.pipe, set_of(attribute), method=Balanced(seed=seed))


def attached(studio: Studio, edit: CrossAttentionEdit, seed: int = 0) -> Callable[[], Any]:
    """Return what attaches an edit, with the seed of its values."""

    def attach() -> Any:
        attachment = debias(studio.pipe, edit)
        attachment.seed = seed
        return attachment

    return attach


# ---- the evidence
# -------------------------------------------------------------------------------------------------


def evidence(
    studio: Studio, images: int, attributes: Sequence[str], draws: Sequence[int]
) -> Iterator[TaskResult]:
    """Measure what was chosen on held-out professions, beside words."""
    about = provenance(
        studio,
        f"{len(TEST_PROFESSIONS)} held-out professions, {images} images each, draws"
        f" {list(draws)}: other noise and other deals.",
    )
    result = TaskResult(about)
    wanted = [studio.judge.names["profession"].index(name) for name in TEST_PROFESSIONS]
    found: dict[tuple[str, str], list[Labels]] = {}
    for draw in draws:  # so that a run that is stopped has whole draws
        for name in (NONE, "cross-attention", "balanced-prompts"):
            for attribute in attributes:
                deal = Deal(name)
                if name == "cross-attention":
                    edit = fit(studio, attribute, CrossAttention())
                    deal = Deal(name, attached(studio, edit, draw))
                elif name == "balanced-prompts":
                    deal = Deal(name, stated(studio, attribute, draw))
                labels = studio.labels(deal, attribute, TEST_PROFESSIONS, images, draw)
                found.setdefault((attribute, name), []).append(labels)
                shown = figures([labels], attribute, wanted)
                means = [round(float(row.mean()), 3) for row in shown]
                print(attribute, name, draw, means, flush=True)
    n = {"professions": len(TEST_PROFESSIONS), "images each": images, "draws": len(draws)}
    for attribute in attributes:
        of_method = {
            name: figures(labels, attribute, wanted)
            for (field, name), labels in found.items()
            if field == attribute
        }
        add_rows(result, of_method, attribute, n)
    yield result


def main() -> None:
    options = parser(__doc__)
    options.add_argument("part", choices=["choice", "evidence"])
    options.add_argument("--images", type=int, default=None, help="of each profession")
    options.add_argument("--draws", nargs="*", type=int, default=[0, 1, 2])
    options.add_argument("--only", nargs="*", help="variants of the choice")
    options.add_argument("--guidance", type=float, default=7.5)
    options.add_argument("--attributes", nargs="*", default=list(VALUES))
    options.add_argument("--work", type=Path, default=Path("results/cross_attention"))
    given = options.parse_args()
    warnings.simplefilter("ignore", VldebiasWarning)
    torch.set_num_threads(1)
    studio = Studio(given.work, given.guidance)
    if given.part == "choice":
        measured = choice(studio, given.images or 10, given.attributes, given.only)
    else:
        measured = evidence(studio, given.images or 24, given.attributes, given.draws)
    names = {"choice": "steer_choice", "evidence": "steer"}
    run(names[given.part], lambda: measured, given.json)


if __name__ == "__main__":
    main()
