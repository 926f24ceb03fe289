"""Measure the effect of a method on the pictures of one model: the remaining gap, and the cost.

Two kinds of prompts are generated for the held-out jobs of a split, from the same noise for every
method:

- open prompts, "A photo of a {job}.": gap from even shares, how often a picture shows the value
  that it was assigned, and how often the job is recognised;
- prompts that state another attribute, "A photo of a {value} {job}.": how often it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.small_models.benches import Bench, open_prompts
from vldebias.prompts import fill

Attach = Callable[[], Any]
"""Attaches a method to the pipeline of a bench and returns the attachment."""


@dataclass(frozen=True)
class Outcome:
    """Store shares for each job, (jobs,), see `measure`. `gap`: L2 distance from even shares."""

    gap: NDArray[np.float64]
    agrees: NDArray[np.float64]
    job: NDArray[np.float64]
    unknown: NDArray[np.float64]
    other: NDArray[np.float64]
    other_job: NDArray[np.float64]


def measure(
    bench: Bench,
    attribute: str,
    split: int,
    attach: Attach | None,
    images: int,
    other_images: int,
    seed: int = 0,
    **options: Any,
) -> Outcome:
    """Measure one method on the held-out jobs of a split.

    Args:
        bench: the model.
        attribute: the attribute that the method balances.
        split: index of the split.
        attach: attaches the method; None: the bare pipeline.
        images: number of images per open prompt.
        other_images: number of images per prompt that states a value of the other attribute.
        seed: seed of the noise.
        options: options of the calls.

    Returns:
        For each job the gap from even shares (L2, known images), and the shares of images that show
        the assigned value, the job, no recognisable value, the stated value of the other attribute,
        and the job in pictures of those prompts.
    """
    _, jobs = bench.jobs_of_split[split]
    other = bench.other[attribute]
    other_values = list(bench.values[other])
    attachment = None if attach is None else attach()
    try:
        prompts = [prompt for prompt in open_prompts(jobs) for _ in range(images)]
        seeds = [100_000 * (seed + 1) + number for number in range(len(prompts))]
        pictures, assigned = bench.generate(prompts, seeds, attachment, **options)
        shown = bench.judge(pictures)
        prompts = []
        for job in jobs:
            for value in other_values:
                word = bench.values[other][value]
                prompts += [fill("A photo of a {v} {c}.", v=word, c=job)] * other_images
        seeds = [100_000 * (seed + 1) + 50_000 + number for number in range(len(prompts))]
        pictures, _ = bench.generate(prompts, seeds, attachment, **options)
        shown_other = bench.judge(pictures)
    finally:
        if attachment is not None:
            attachment.remove()
    values = _by_job(shown[attribute], images)
    expected_other = np.tile(np.repeat(other_values, other_images), len(jobs))
    of_each = other_images * len(other_values)
    return Outcome(
        gap=np.array([gap_of(row, list(bench.values[attribute])) for row in values]),
        agrees=(values == _by_job(assigned, images)).mean(1),
        job=_is_job(shown["job"], jobs, images),
        unknown=np.array([[value is None for value in row] for row in values]).mean(1),
        other=(np.array(shown_other[other]) == expected_other).reshape(-1, of_each).mean(1),
        other_job=_is_job(shown_other["job"], jobs, of_each),
    )


def gap_of(shown: Sequence[str | None], values: Sequence[str]) -> float:
    """Return the L2 distance of the shares of the values from even ones, among known images."""
    known = [value for value in shown if value in values]
    if not known:
        return float("nan")
    shares = np.array([known.count(value) for value in values]) / len(known)
    return float(np.linalg.norm(shares - 1 / len(values)))


def _by_job(values: Sequence[str | None], images: int) -> NDArray[np.object_]:
    """Return values as (jobs, images)."""
    return np.array(values, dtype=object).reshape(-1, images)


def _is_job(shown: Sequence[str | None], jobs: Sequence[str], images: int) -> NDArray[np.float64]:
    """Return how often each job is recognised."""
    return (_by_job(shown, images) == np.array(jobs, dtype=object)[:, None]).mean(1)
