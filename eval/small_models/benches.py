"""Provide a common interface to each model, with a pipeline, prompt sets and a judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image

from eval.small_models import models, world
from vldebias.judge.judges import MiniatureJudge, predict
from vldebias.judge.stored import decide
from vldebias.miniature import load_pipeline as load_miniature
from vldebias.miniature.words import AGES, GENDERS, TEST_PROFESSIONS, TRAIN_PROFESSIONS
from vldebias.prompts import PromptSet, fill, make_prompt_set

SURE = 0.8  # judge probability below which a value counts as unknown
Verdicts = dict[str, list[str | None]]
"""What each image shows, by attribute or "job". None means unknown."""


@dataclass
class Bench:
    """A model with everything that is needed to measure it.

    Attributes:
        name: The name of the model.
        pipe: The pipeline.
        options: The arguments for calls, other than prompts and generators.
        batch: The number of images at once.
        values: The words that state each value, by attribute.
        jobs_of_split: The jobs for fitting and for measuring in each split.
        other: The attribute that prompts state to test for side effects, by attribute.
        judge: A function that returns what images show.
        stated_words: Further words that state an attribute.
    """

    name: str
    pipe: Any
    options: Mapping[str, Any]
    batch: int
    values: Mapping[str, Mapping[str, str]]
    jobs_of_split: Sequence[tuple[Sequence[str], Sequence[str]]]
    other: Mapping[str, str]
    judge: Callable[[Sequence[Image]], Verdicts]
    stated_words: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def fit_options(self) -> dict[str, Any]:
        """Return the arguments for calls when fitting, which has its own number of steps."""
        return {name: value for name, value in self.options.items() if "steps" not in name}

    def prompt_set(self, attribute: str, split: int) -> PromptSet:
        """Return an attribute's prompt set for the jobs that are used for fitting."""
        jobs, _ = self.jobs_of_split[split]
        words = {value: [word] for value, word in self.values[attribute].items()}
        adjectives = dict(self.values[attribute])
        stated = list(self.stated_words.get(attribute, ()))
        return make_prompt_set(
            attribute, words, list(jobs), adjectives=adjectives, stated_words=stated
        )

    def generate(self, prompts: Sequence[str], seeds: Sequence[int], **options: Any) -> list[Image]:
        """Return an image for each prompt."""
        call = {**self.options, **options}
        pictures: list[Image] = []
        for start in range(0, len(prompts), self.batch):
            batch = slice(start, start + self.batch)
            noise = [torch.Generator().manual_seed(seed) for seed in seeds[batch]]
            output = self.pipe(list(prompts[batch]), generator=noise, **call)
            pictures += output.images
        return pictures


def judge_small(pictures: Sequence[Image]) -> Verdicts:
    """Return the judge's attribute value and job for each image of the small world."""
    verdicts = [world.judge(np.asarray(picture.convert("RGB"))) for picture in pictures]
    return {
        name: [getattr(verdict, name) for verdict in verdicts] for name in ("sex", "hair", "job")
    }


def small(kind: str, folder: Path) -> Bench:
    """Return one of the two small models, with even and odd jobs as the two splits."""
    even, odd = world.JOBS[::2], world.JOBS[1::2]
    return Bench(
        name=kind,
        pipe=models.load_pipeline(kind, folder),
        options={
            "num_inference_steps": models.STEPS,
            "guidance_scale": models.GUIDANCE,
            **models.CALL_OPTIONS[kind],
        },
        batch=32,
        values={"sex": {sex: sex for sex in world.SEXES}, "hair": world.HAIR_WORDS},
        jobs_of_split=((even, odd), (odd, even)),
        other={"sex": "hair", "hair": "sex"},
        judge=judge_small,
        stated_words={"sex": ("woman", "man")},
    )


class MiniatureVerdicts:
    """Judge images of the miniature with its own classifier."""

    def __init__(self) -> None:
        self.judge = MiniatureJudge().ready()

    def __call__(self, pictures: Sequence[Image]) -> Verdicts:
        """Return the gender, age and profession in each image."""
        answers = predict(self.judge, list(pictures))
        verdicts: Verdicts = {}
        for attribute in ("gender", "age"):
            labels = decide(answers[attribute], self.judge.names[attribute], SURE)
            names = [*labels.names, None]  # code -1 means unknown
            verdicts[attribute] = [names[code] for code in labels.codes]
        jobs = self.judge.names["profession"]
        verdicts["job"] = [jobs[code] for code in answers["profession"].argmax(1)]
        return verdicts


def miniature() -> Bench:
    """Return the packaged miniature pipeline."""
    pipe = load_miniature()
    pipe.unet.to(memory_format=torch.channels_last)
    pipe.set_progress_bar_config(disable=True)
    held_back = TRAIN_PROFESSIONS[3::7][:10]
    fitted = tuple(name for name in TRAIN_PROFESSIONS if name not in held_back)
    return Bench(
        name="miniature",
        pipe=pipe,
        options={"num_inference_steps": 8, "guidance_scale": 7.5},
        batch=48,
        values={
            "gender": {value: value for value in GENDERS},
            "age": {value: value for value in AGES},
        },
        jobs_of_split=((fitted, TEST_PROFESSIONS[::2]), (fitted, held_back)),
        other={"gender": "age", "age": "gender"},
        judge=MiniatureVerdicts(),
    )


def open_prompts(jobs: Sequence[str]) -> list[str]:
    """Return a prompt for each job that does not state a value."""
    return [fill("A photo of a {c}.", c=job) for job in jobs]
