"""Measure the remaining gap and the cost of a method on images from a model.

Images are generated for two kinds of prompts about the held-out jobs in a split, from the same
noise for every method:

- For open prompts, "A photo of a {job}.", the results are the gap from even shares and how often
  the job is recognised.
- For prompts that state a different attribute, "A photo of a {value} {job}.", the result is how
  often images show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.small_models.benches import Bench, open_prompts
from vldebias.prompts import fill

Attach = Callable[[], Any]
"""A function that attaches a method to the pipeline of a bench and returns the attachment."""


@dataclass(frozen=True)
class Outcome:
    """The results for each job (jobs,), as described in `measure`."""

    gap: NDArray[np.float64]
    job: NDArray[np.float64]
    other: NDArray[np.float64]


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
    """Measure a method on the held-out jobs in a split.

    Args:
        bench: The model.
        attribute: The attribute that the method balances.
        split: The index of the split.
        attach: A function that attaches the method, or None for the bare pipeline.
        images: The number of images per open prompt.
        other_images: The number of images per prompt that states a value of the other attribute.
        seed: The seed for the noise.
        options: Options for calls of the pipeline.

    Returns:
        The gap from even shares (L2, known images) for each job, and the shares of images that show
        the job, and the stated value of the other attribute.
    """
    _, jobs = bench.jobs_of_split[split]
    other = bench.other[attribute]
    other_values = list(bench.values[other])
    with nullcontext() if attach is None else attach():
        prompts = [prompt for prompt in open_prompts(jobs) for _ in range(images)]
        seeds = [100_000 * (seed + 1) + number for number in range(len(prompts))]
        shown = bench.judge(bench.generate(prompts, seeds, **options))
        prompts = []
        for job in jobs:
            for value in other_values:
                word = bench.values[other][value]
                prompts += [fill("A photo of a {v} {c}.", v=word, c=job)] * other_images
        seeds = [100_000 * (seed + 1) + 50_000 + number for number in range(len(prompts))]
        shown_other = bench.judge(bench.generate(prompts, seeds, **options))
    # Arrays (jobs, images)
    values = np.array(shown[attribute], dtype=object).reshape(-1, images)
    shown_jobs = np.array(shown["job"], dtype=object).reshape(-1, images)
    expected_other = np.tile(np.repeat(other_values, other_images), len(jobs))
    of_each = other_images * len(other_values)
    return Outcome(
        gap=np.array([gap_of(row, list(bench.values[attribute])) for row in values]),
        job=(shown_jobs == np.array(jobs, dtype=object)[:, None]).mean(1),
        other=(np.array(shown_other[other]) == expected_other).reshape(-1, of_each).mean(1),
    )


def gap_of(shown: Sequence[str | None], values: Sequence[str]) -> float:
    """Return the L2 distance of the values' shares from even shares, among known images."""
    known = [value for value in shown if value in values]
    if not known:
        return float("nan")
    shares = np.array([known.count(value) for value in values]) / len(known)
    return float(np.linalg.norm(shares - 1 / len(values)))
