"""Warn of valid inputs that look mistaken: do images, texts and labels belong together?

The warnings look at a thousand rows and at texts that are embedded already, and change no figure.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import chain
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from vldebias.data import Embeddings, Labels, UnitRows, cross, odd_values
from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn
from vldebias.hosts import Host
from vldebias.hosts.host import TEXT
from vldebias.methods.diagnostics import spread_along
from vldebias.methods.reference import place_of
from vldebias.prompts import PromptSet

FOREIGN = 3.0  # deviations from images of another space, of their spread and of their mean
ENOUGH = 10  # images of a value, to say how well texts tell it
CLOSE = 0.8  # similarity of two spellings from which one may be meant for the other


def spaced(n: int) -> NDArray[np.int64]:
    """Return at most a thousand indices of n rows, evenly spaced."""
    return np.unique(np.linspace(0, max(n - 1, 0), min(n, 1000)).astype(np.int64))


def check_images(images: Embeddings, texts: Host, prompt: str) -> None:
    """Warn of few different rows, and of no negative entry.

    Args:
        images: features of images.
        texts: the model, which embeds texts.
        prompt: any prompt, to learn the width of its embedding.

    Raises:
        InvalidInputError: texts have another width than images.
    """
    width = texts.embed([prompt]).shape[1]
    if width != images.dim:
        raise InvalidInputError(
            f"images: got features of width {images.dim}, and texts of width {width}; expected"
            " both from one model"
        )
    # Evenly spaced, since the first thousand images of a sorted data set show one class.
    sample = images.features[spaced(len(images))]
    different = len({row.tobytes() for row in sample})
    # Nine of ten rows repeat others: a constant, or an array that was tiled by mistake. A few
    # duplicates are usual in scraped data.
    if different <= max(1, len(sample) // 10) < len(sample):
        warn(
            f"features: got {different} different rows among {len(sample)}, so that scores are tied"
            " and ranked by row number; expected a row of its own for each image",
            SuspectInputWarning,
        )
    # Features of CLIP have both signs in every row; a thousand rows without one are something else.
    if not (sample < 0).any():
        warn(
            "features: got no number below 0, as in pixels or after a ReLU; expected what the"
            " image tower of a model gives, numbers of both signs",
            SuspectInputWarning,
        )


def doubt_labels(images: Embeddings, columns: Sequence[str], sets: Sequence[PromptSet]) -> None:
    """Warn of columns that look mistyped, of values spelled unlike those of a prompt set, of small
    intersections.

    Args:
        images: rows with labels.
        columns: columns to look at.
        sets: prompt sets of the attributes.
    """
    problems_of_column: dict[str, list[str]] = {}
    for column in columns:
        labels = images.column(column)
        problems = list(odd_values(labels))
        for prompts in sets:
            problems += _misspelt(labels, prompts)
        problems_of_column[repr(column)] = problems
    # Small intersections are looked at only where the columns themselves look right: a misspelt
    # value makes small intersections too, and one warning names the cause.
    if len(columns) > 1 and not any(problems_of_column.values()):
        intersection = cross(*map(images.column, columns))
        problems_of_column[" x ".join(columns)] = list(odd_values(intersection))
    for column, problems in problems_of_column.items():
        if problems:
            warn(f"labels {column}: " + "; also ".join(problems), SuspectInputWarning)


def _misspelt(labels: Labels, prompts: PromptSet) -> list[str]:
    """Write which labels are nearly values of a prompt set: "'femal' is no value of gender"."""
    names = [name for name, n in labels.counts.items() if n]
    strangers = [name for name in names if place_of(name, prompts) is None]
    if len(strangers) == len(names):
        # The column is about something else.
        return []
    value_of_spelling = {value.casefold(): value for value in prompts.attributes}
    problems = []
    for name in strangers:
        spellings = list(value_of_spelling)
        # "femal" is near to "female"; "nonbinary" is near to neither value, and is no mistake.
        for match in difflib.get_close_matches(name.casefold(), spellings, n=1, cutoff=CLOSE):
            value = value_of_spelling[match]
            problems.append(f"{name!r} is no value of {prompts.name}; did you mean {value!r}?")
    return problems


def _embedded(prompts: Sequence[str], texts: Host) -> list[str]:
    """Return the prompts that are embedded already, in their order."""
    return [prompt for prompt in prompts if (TEXT, prompt) in texts.memory.rows]


def doubt_space(images: UnitRows, texts: Host, prompts: Sequence[str]) -> None:
    """Warn where images and texts look unaligned, as those of different models do.

    Two signs have to agree: images vary along the differences of the texts no more than along any
    direction, and their mean is no nearer to the mean of the texts than a random direction is. A
    few queries may differ in directions that images do not vary in; the means of one model still
    share a direction (cosines around .3 in CLIP).

    Args:
        images: unit rows (n, d).
        texts: the model, which embeds texts.
        prompts: texts to compare with the images.
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
        warn(
            f"image and text features look unaligned (variance ratio {spread:.2g}, cosine of means"
            f" {cosine:.2f}); are both of the same model? Embed both with one",
            SuspectInputWarning,
        )


def doubt_chance(
    nearest: NDArray[np.integer],
    labels: NDArray[np.integer],
    values: Sequence[str],
    description: str,
) -> None:
    """Warn where texts predict values no better than chance, in the mean over values; the warning
    names another order of the values if that is predicted clearly better.

    Args:
        nearest: (n,) position in `values` of the text that is nearest to each image.
        labels: (n,) position in `values` of the label of each image.
        values: their names.
        description: which texts these are, for the message.
    """
    k = len(values)
    # (k, k): labels in rows, nearest texts in columns
    counts = np.bincount(labels * k + nearest, minlength=k * k).reshape(k, k)
    frequent = np.flatnonzero(counts.sum(1) >= ENOUGH)  # values with enough images
    if len(frequent) < 2:
        return
    n = counts.sum(1)[frequent]
    recall = counts[frequent] / n[:, None]  # (values with enough images, k)
    right = float(recall[np.arange(len(frequent)), frequent].mean())
    # The standard error of the mean recall if every prediction were by chance, 1 / k.
    error = sqrt((1 - 1 / k) / k * float((1 / n).sum())) / len(frequent)
    if right > 1 / k + 2 * error:
        return
    # The best of all orders is above chance by chance too, hence 4 errors.
    rows, columns = need("scipy.optimize").linear_sum_assignment(-recall)
    best = float(recall[rows, columns].mean())
    if best > max(right, 1 / k) + 4 * error:
        swaps = zip(frequent[rows], columns, strict=True)
        order = ", ".join(f"{values[a]!r} as {values[b]!r}" for a, b in swaps)
        reason = (
            f"and about {best:.0%} with {order}: give the labels by name, or in the order of the"
            " texts"
        )
    else:
        reason = "no more than chance: are images, texts and labels of one model, and in one order?"
    warn(
        f"{description} are right about {right:.0%} of {int(n.sum())} images in the mean over"
        f" values, {reason}",
        SuspectInputWarning,
    )


def doubt_values(images: Embeddings, column: str, texts: Host, prompts: PromptSet) -> None:
    """Apply `doubt_chance` to the texts that name an attribute's values, where a column has these
    values.

    Args:
        images: rows with labels.
        column: column of the attribute.
        texts: the model, which embeds texts.
        prompts: prompt set with the texts of its values.
    """
    labels = images.column(column)
    places = [place_of(name, prompts) for name in labels.names]
    if not places or None in places or prompts.parts or len(prompts.attributes) < 2:
        return
    # Texts about the value alone ("a photo of a woman") tell it best; the pairs are asked where
    # those were not embedded, as nothing is embedded for a warning.
    for candidates in (prompts.spurious, chain(*prompts.groups)):
        texts_of_value = prompts.by_value(_embedded(list(candidates), texts))
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
        f"{prompts.name}: the texts of the values of {column!r}",
    )
