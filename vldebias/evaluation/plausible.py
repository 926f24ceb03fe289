"""Do images, texts and labels belong together? What is plausible and probably not meant gets a warning, once each.

All of it looks at no more than a thousand rows and at texts that were embedded already, so it costs nothing to speak of
and decides nothing: the figures are those of what was given.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import chain
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import Embeddings, Labels, cross, odd_values
from vldebias.errors import SuspectInputWarning, need, warn
from vldebias.evaluation.texts import Texts
from vldebias.methods.diagnostics import spread_along
from vldebias.methods.labelled import place_of
from vldebias.prompts import PromptSet

_ROWS = 1000  # of the images that are looked at
_FOREIGN = 3.0  # deviations from images of another space, of their spread and of their mean
_ENOUGH = 10  # images of a value, to say how well texts tell it


def doubt_features(images: Embeddings) -> None:
    """Warn of one image, or a few, over and over, and of features without a sign."""
    sample = images.features[spaced(len(images))]
    different = len({row.tobytes() for row in sample})
    if different <= max(1, len(sample) // 10) < len(sample):
        warn(
            f"features: {different} different rows among {len(sample)}, so most scores are tied and ranked by the "
            "order of the rows: no figure says anything of the model; expected a row of its own for each image",
            SuspectInputWarning,
        )
    if not (sample < 0).any():
        warn(
            "features: not one number is below 0, as in pixels, shares or what leaves a ReLU; the image tower of an "
            "image-text model gives numbers of both signs: embed the images with it",
            SuspectInputWarning,
        )


def doubt_labels(images: Embeddings, columns: Sequence[str], sets: Sequence[PromptSet]) -> None:
    """Warn of columns that look like a slip, of values that a prompt set writes otherwise, of small intersections."""
    warned = False
    for column in columns:
        labels = images.column(column)
        problems = [*_misspelt(labels, sets), *odd_values(labels)]
        _say(repr(column), problems)
        warned = warned or bool(problems)
    if not warned and len(columns) > 1:
        _say(" x ".join(columns), odd_values(cross(*map(images.column, columns))))


def _say(what: str, problems: Sequence[str]) -> None:
    if problems:
        warn(f"labels {what}: " + "; also ".join(problems), SuspectInputWarning)


def _misspelt(labels: Labels, sets: Sequence[PromptSet]) -> list[str]:
    """Values that are nearly a value of an attribute of which the column has others."""
    problems = []
    for prompts in sets:
        values = {value.casefold(): value for value in prompts.attributes}
        places = {name: place_of(name, prompts) for name, n in labels.counts.items() if n}
        strangers = [name for name, place in places.items() if place is None]
        for name in strangers if len(strangers) < len(places) else ():
            near = difflib.get_close_matches(name.casefold(), values, n=1, cutoff=0.8)
            if near:
                problems.append(f"{name!r} is no value of {prompts.name}; did you mean {values[near[0]]!r}?")
    return problems


def doubt_space(images: Tensor, texts: Texts, prompts: Sequence[str]) -> None:
    """Warn of unit rows (n, d) that have nothing in common with the texts, as those of another model have.

    Two signs have to agree: images vary along what texts differ in no more than along any direction, and their mean is
    no nearer to the mean of the texts than a random direction is. A few queries alone may differ in what images do not
    vary in; the means of one model still share a direction (cosines around .3 in CLIP).
    """
    role = texts.host.roles[0]
    read = [prompt for prompt in dict.fromkeys(prompts) if (role, prompt) in texts.host.memory]
    if len(read) < 2 or len(images) < 2 * _ENOUGH:
        return
    seen, rows = images[spaced(len(images))].double(), texts.embed(read)
    spread, deviations = spread_along(seen, rows)
    shared = abs(float(normalize(seen.mean(0), dim=0) @ normalize(rows.mean(0), dim=0)))
    if spread and deviations < _FOREIGN and shared < _FOREIGN / sqrt(seen.shape[1]):
        warn(
            f"image and text features look unaligned (variance ratio {spread:.2g}, cosine of means {shared:.2f}); "
            "are both of the same model? Embed both with one",
            SuspectInputWarning,
        )


def doubt_chance(nearest: NDArray[np.integer], own: NDArray[np.integer], values: Sequence[str], what: str) -> None:
    """Warn where texts tell values no better than chance, or better in another order, in the mean over values.

    Args:
        nearest, own: (n,) places in `values`: of the text that is nearest to an image, and of its own label.
        what: which texts, for the message.
    """
    linear_sum_assignment = need("scipy.optimize").linear_sum_assignment

    of = len(values)
    counts = np.zeros((of, of))
    np.add.at(counts, (own, nearest), 1)
    n = counts.sum(1)
    if (n >= _ENOUGH).sum() < 2:
        return
    shown = np.flatnonzero(n >= _ENOUGH)
    recall = counts[shown] / n[shown, None]
    right = float(recall[np.arange(len(shown)), shown].mean())
    error = sqrt((1 - 1 / of) / of * float((1 / n[shown]).sum())) / len(shown)
    if right > 1 / of + 2 * error:
        return
    places, others = linear_sum_assignment(-recall)
    best = float(recall[places, others].mean())
    reason = "no more than chance: are images, texts and labels of one model, and in one order?"
    if best > max(right, 1 / of) + 4 * error:
        pairs = zip(shown.tolist(), others.tolist(), strict=True)
        order = ", ".join(f"{values[value]!r} as {values[other]!r}" for value, other in pairs)
        reason = f"and about {best:.0%} with {order}: give the labels by name, or in the order of the texts"
    warn(f"{what} are right about {right:.0%} of {int(n.sum())} images, {reason}", SuspectInputWarning)


def doubt_values(images: Embeddings, column: str, texts: Texts, prompts: PromptSet) -> None:
    """`doubt_chance` of the texts that name a value of an attribute, where a column has its values."""
    labels, role = images.column(column), texts.host.roles[0]
    places = [place_of(name, prompts) for name in labels.names]
    if not labels.names or None in places or prompts.parts or len(prompts.attributes) < 2:
        return
    for some in (prompts.spurious, chain(*prompts.groups)):
        by_value = prompts.by_value(text for text in some if (role, text) in texts.host.memory)
        if all(by_value.values()):
            break
    else:
        return
    rows = np.flatnonzero(labels.known)
    rows = rows[spaced(len(rows))]
    means = torch.stack([texts.embed(own).mean(0) for own in by_value.values()])
    nearest = (images[rows].normalised().double() @ normalize(means, dim=1).T).argmax(1).numpy()
    own = np.array(places)[labels.codes[rows]]
    doubt_chance(nearest, own, list(by_value), f"{prompts.name}: the texts of the values of {column!r}")


def spaced(n: int) -> NDArray[np.int64]:
    """Indices of at most a thousand of n rows, evenly over all of them."""
    return np.unique(np.linspace(0, max(n - 1, 0), min(n, _ROWS)).astype(np.int64)) if n else np.empty(0, np.int64)
