"""Warn about valid but suspicious inputs, such as text and images from different models.

The checks use at most a thousand rows, and only prompts that are already embedded. They do not
affect results.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from vldebias.data import Embeddings, cross
from vldebias.data.label_values import odd_values
from vldebias.data.rows import UnitRows
from vldebias.errors import InvalidInputError, need, warn_of_input
from vldebias.hosts import Host
from vldebias.hosts.edits import TEXT
from vldebias.methods.diagnostics import spread_along
from vldebias.methods.reference import place_of
from vldebias.prompts import PromptSet

FOREIGN = 3.0  # number of standard deviations below which text and images look unaligned
ENOUGH = 10  # minimum number of images per value for checking how well prompts predict it


def spaced(n: int) -> NDArray[np.int64]:
    """Return at most a thousand evenly spaced indices into n rows."""
    return np.unique(np.linspace(0, max(n - 1, 0), min(n, 1000)).astype(np.int64))


def check_images(images: Embeddings, texts: Host, prompt: str) -> None:
    """Check the width of image features, and warn if they do not look like a model's output.

    Warnings are issued if few rows are distinct, or if no entry is negative.

    Args:
        images: image features to check.
        texts: the model, used to embed text.
        prompt: any prompt; its embedding determines the expected width.

    Raises:
        InvalidInputError: If text and image features have different widths.
    """
    width = texts.embed([prompt]).shape[1]
    if width != images.dim:
        raise InvalidInputError(
            f"images: got image features of width {images.dim} and text features of width {width};"
            " expected both from the same model"
        )
    # Sample evenly, because the first thousand images of a sorted data set may all belong to one
    # class.
    sample = images.features[spaced(len(images))]
    different = len({row.tobytes() for row in sample})
    # If nine in ten rows are duplicates, the array is constant or was tiled by mistake. Some
    # duplicates are normal in scraped data.
    if different <= max(1, len(sample) // 10) < len(sample):
        warn_of_input(
            f"features: got only {different} different rows among {len(sample)}, so many scores are"
            " tied and ranked by row number; expected a separate row for each image",
        )
    # Every row of CLIP features contains positive and negative entries, so rows without a negative
    # entry do not come from such a model.
    if not (sample < 0).any():
        warn_of_input(
            "features: got no negative numbers, as in pixels or after a ReLU; expected the output"
            " of a model's image tower, which contains positive and negative numbers",
        )


def doubt_labels(images: Embeddings, columns: Sequence[str], sets: Sequence[PromptSet]) -> None:
    """Warn about labels that may be misspelt, and about small intersections.

    Args:
        images: image features with label columns.
        columns: names of the label columns to check.
        sets: prompt sets whose values are compared with the labels.
    """
    values_of = {prompt_set.name: prompt_set.attributes for prompt_set in sets}
    problems_of_column: dict[str, list[str]] = {}
    for column in columns:
        problems_of_column[repr(column)] = odd_values(images.column(column), values_of)
    # Only check for small intersections if the columns themselves look right. A misspelt value also
    # creates small intersections, and the warning about it already explains the cause.
    if len(columns) > 1 and not any(problems_of_column.values()):
        intersection = cross(*map(images.column, columns))
        problems_of_column[" x ".join(columns)] = odd_values(intersection, {})
    for column, problems in problems_of_column.items():
        if problems:
            warn_of_input(f"labels {column}: " + "; also ".join(problems))


def _embedded(prompts: Sequence[str], texts: Host) -> list[str]:
    """Return the prompts that are already embedded, in their original order."""
    return [prompt for prompt in prompts if (TEXT, prompt) in texts.memory.rows]


def doubt_space(images: UnitRows, texts: Host, prompts: Sequence[str]) -> None:
    """Warn if images and text look unaligned, as if they came from different models.

    The warning requires two conditions. First, images vary no more along the differences between
    text embeddings than along other directions. Second, the mean image is no closer to the mean
    text than a random direction would be. The second condition is needed because a few queries may
    differ in directions along which images do not vary. Within one model, the means are still
    similar (their cosine is around 0.3 in CLIP).

    Args:
        images: unit rows (n, d).
        texts: the model, used to embed text.
        prompts: prompts to compare with the images.
    """
    embedded = _embedded(list(dict.fromkeys(prompts)), texts)
    if len(embedded) < 2 or len(images) < 2 * ENOUGH:
        return
    sample = images[spaced(len(images))].double()
    rows = texts.embed(embedded)
    spread, deviations = spread_along(sample, rows)
    mean_of_images = normalize(sample.mean(0), dim=0)
    mean_of_texts = normalize(rows.mean(0), dim=0)
    cosine = abs(float(mean_of_images @ mean_of_texts))
    # A random direction in d dimensions has a cosine of about 1 / sqrt(d) with any other.
    has_own_mean = cosine < FOREIGN / sqrt(sample.shape[1])
    if spread and deviations < FOREIGN and has_own_mean:
        warn_of_input(
            f"image and text features look unaligned (variance ratio {spread:.2g}, cosine of means"
            f" {cosine:.2f}), as if from different models; embed both with the same model",
        )


def doubt_chance(
    nearest: NDArray[np.integer],
    labels: NDArray[np.integer],
    values: Sequence[str],
    description: str,
) -> None:
    """Warn if prompts predict values no better than chance, on average over values.

    If a different order of the values is clearly better, the warning suggests it.

    Args:
        nearest: (n,) position in `values` of the prompt nearest to each image.
        labels: (n,) position in `values` of each image's label.
        values: names of the values.
        description: description of the prompts for the message.
    """
    k = len(values)
    # (k, k): labels in rows, nearest prompts in columns
    counts = np.bincount(labels * k + nearest, minlength=k * k).reshape(k, k)
    frequent = np.flatnonzero(counts.sum(1) >= ENOUGH)  # values with enough images
    if len(frequent) < 2:
        return
    n = counts.sum(1)[frequent]
    recall = counts[frequent] / n[:, None]  # (values with enough images, k)
    right = float(recall[np.arange(len(frequent)), frequent].mean())
    # This is the standard error of the mean recall if every prediction were random (1 / k).
    error = sqrt((1 - 1 / k) / k * float((1 / n).sum())) / len(frequent)
    if right > 1 / k + 2 * error:
        return
    # The best order exceeds chance even for random labels, so require four standard errors.
    rows, columns = need("scipy.optimize").linear_sum_assignment(-recall)
    best = float(recall[rows, columns].mean())
    if best > max(right, 1 / k) + 4 * error:
        swaps = zip(frequent[rows], columns, strict=True)
        order = ", ".join(f"{values[a]!r} as {values[b]!r}" for a, b in swaps)
        reason = (
            f"and about {best:.0%} with {order}; pass labels as names, or in the same order as the"
            " prompts"
        )
    else:
        reason = (
            "no more than chance; check that images, text and labels match and have the same order"
        )
    warn_of_input(
        f"{description} predict {right:.0%} of {int(n.sum())} images correctly on average over"
        f" values, {reason}",
    )


def doubt_values(images: Embeddings, column: str, texts: Host, prompt_set: PromptSet) -> None:
    """Apply `doubt_chance` to an attribute's prompts, if the column's values match the attribute's.

    Args:
        images: image features with label columns.
        column: name of the attribute's label column.
        texts: the model, used to embed text.
        prompt_set: the attribute's prompt set.
    """
    labels = images.column(column)
    places = [place_of(name, prompt_set) for name in labels.names]
    if not places or None in places or prompt_set.parts or len(prompt_set.attributes) < 2:
        return
    # Prompts that only state the value ("a photo of a woman") predict it best. If they were not
    # embedded, fall back to the pairs, because a check should not embed any text.
    for candidates in (prompt_set.spurious, chain(*prompt_set.variants)):
        texts_of_value = prompt_set.by_value(_embedded(list(candidates), texts))
        if all(texts_of_value.values()):
            break
    else:
        return
    known = np.flatnonzero(labels.known)
    known = known[spaced(len(known))]
    means = torch.stack([texts.embed(group).mean(0) for group in texts_of_value.values()])
    scores = images[known].unit[:].double() @ normalize(means, dim=1).T
    doubt_chance(
        scores.argmax(1).numpy(),
        np.array(places)[labels.codes[known]],
        list(texts_of_value),
        f"{prompt_set.name}: the prompts for the values of {column!r}",
    )
