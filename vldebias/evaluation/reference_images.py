"""A reference beside what is measured: other images, and like them; both told in blocks, whatever their number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.data import Embeddings, UnitRows
from vldebias.data.unit_rows import BLOCK
from vldebias.errors import InvalidInputError, ReferenceWarning, warn
from vldebias.methods import Method, Need, get_method
from vldebias.metrics.rankings import Items
from vldebias.progress import SILENT, Progress

UNLIKE = 0.05  # of the variance: how far apart means may be before it is said


def disjoint(
    reference: Embeddings | None,
    images: Embeddings,
    progress: Progress = SILENT,
    methods: Iterable[str | Method] | None = None,
) -> tuple[Embeddings | None, dict[str, int]]:
    """The reference without the images that are measured, and how many of both: evidence is not to be what it judges.

    A reference that lies in the gallery as a whole is another matter: whoever searches a gallery has its images, and a
    method without labels learns nothing from them that it would not have when it is used. It is kept, without its
    labels, and the counts say so.

    progress: where the counts are said. methods: those that are fitted to it; None: a reference that is measured
    itself is refused whatever it is for.

    Raises:
        InvalidInputError: another width; or nothing is left, and a method would learn from labels of what is measured.

    Warns:
        ReferenceWarning: they are unlike those that are measured (`apart`).
    """
    if reference is None:
        return None, {}
    if reference.dim != images.dim:
        raise InvalidInputError(
            f"reference: features have width {reference.dim}, those that are measured {images.dim}; "
            "expected both from one model"
        )
    new = ~_among(reference.unit, images.unit)
    counts = {"reference images": int(new.sum()), "left out of the reference, measured too": int((~new).sum())}
    if not new.any():
        fitted = None if methods is None else [get_method(one) for one in methods]
        learning = [one.name for one in fitted or () if Need.LABELS in one.needs and reference.labels]
        if fitted is not None and not learning:
            progress.say(f"reference: {len(reference)} images of the gallery itself, without labels")
            own = replace(reference, labels={})
            return own, {"reference images": len(own), "of the reference, measured too": len(own)}
        raise InvalidInputError(
            f"reference: all {len(reference)} images are among those that are measured"
            + (f", and {', '.join(learning)} would learn from their labels" if learning else "")
            + "; expected others, such as "
            "those of another split; of one set of images measure the odd rows and give the even ones: "
            "evaluate(model, features[1::2], reference=features[::2], ...)"
        )
    progress.say(f"reference: {int(new.sum())} images; {int((~new).sum())} left out, since they are measured too")
    kept = reference if new.all() else reference.picked(new)
    by = apart(kept.unit, images.unit)
    if by > UNLIKE + 1 / len(kept):
        warn(
            "reference: its images are unlike those that are measured: the squared distance of the means is "
            f"{by:.2f} of the variance, within one collection hardly above 0.02; what is fitted may not carry over",
            ReferenceWarning,
        )
    return kept, counts


def apart(reference: Items, images: Items) -> float:
    """Squared distance of the means of two sets of features (n, d), in units of the variance of `images`.

    What sampling explains is taken off: around 0 for parts of one collection, above 0.6 where all images were moved by
    as much as they vary ("apart" in eval/results/auto.json). That another attribute goes along it does not see.
    """
    (ours, _), (theirs, variance) = _mean_and_variance(reference), _mean_and_variance(images)
    distance = float((ours - theirs).square().sum())
    return distance / max(variance, 1e-12) - 1 / reference.shape[0] - 1 / images.shape[0]


def _mean_and_variance(rows: Items) -> tuple[Tensor, float]:
    """The mean (d,) and the mean squared distance from it.

    Blocks are summed as they come, about the mean of the first, which loses no digits in a narrow cone; their sums are
    added in float64.
    """
    n, d = rows.shape
    about, total, squares = torch.empty(0), torch.zeros(d, dtype=torch.float64), 0.0
    for block in rows.split(BLOCK):
        about = about if len(about) else block.mean(0)
        off = block - about
        total += off.sum(0)
        squares += float(off.square_().sum())
    return about + total / n, squares / n - float((total / n).square().sum())


def _among(rows: UnitRows, others: UnitRows) -> NDArray[np.bool_]:
    """(n,) whether a row is one of the others, bit for bit: found by 64-bit hashes, confirmed by the rows."""
    hashes, theirs = _hashes(rows), _hashes(others)
    order = np.argsort(theirs, kind="stable")
    low, high = (np.searchsorted(theirs, hashes, side, sorter=order) for side in ("left", "right"))
    shared = np.zeros(len(rows), dtype=bool)
    undecided = np.flatnonzero(low < high)
    while len(undecided):
        for start in range(0, len(undecided), BLOCK):
            some = undecided[start : start + BLOCK]
            pair = (one.numpy().view(np.uint32) for one in (rows[some], others[order[low[some]]]))
            shared[some] = np.equal(*pair).all(axis=1)
        low[undecided] += 1
        undecided = undecided[~shared[undecided] & (low[undecided] < high[undecided])]
    return shared


def _hashes(rows: UnitRows) -> NDArray[np.uint64]:
    """(n,) the bits of each row times random odd numbers, summed: two different rows hardly ever have one sum."""
    width = rows.shape[1]
    words, size = ("u4", width) if width % 2 else ("u8", width // 2)  # two numbers at once: a fifth of the time
    by = np.random.default_rng(0).integers(1 << 63, size=size, dtype=np.uint64) * 2 + 1
    parts: list[NDArray[np.uint64]] = [np.dot(block.numpy().view(words), by) for block in rows.split()]
    return np.concatenate(parts)
