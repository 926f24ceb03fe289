"""Which labels do not fit their features: a ridge classifier that did not see them, or the spread paper's centres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from vldebias.data import Labels
from vldebias.diagnostics.folds import BLOCK, Codes, Folds, fold_numbers
from vldebias.diagnostics.probes import known_rows
from vldebias.errors import InvalidInputError, need

if TYPE_CHECKING:
    import pandas as pd


PENALTY = 1.0  # relative to a column's variance; chosen on labels that may be wrong, it would learn them


def wrong_labels(
    features: Any, labels: Any, folds: int = 5, *, by: Literal["ridge", "centres"] = "ridge", seed: int = 0
) -> pd.DataFrame:
    """Every labelled row, the least credible label first: columns row, given, proposed, confidence.

    by "ridge": one-hot ridge regression on centred unit features, each row scored by a classifier of the other folds;
    confidence is the score of the given label less the best other one, so below 0 another label fits better.
    by "centres": the rule of Chen et al., "Perfectly balanced" (2022), section 5.3 and appendix E: the cosine to the
    mean of the other rows of its class less the mean similarity to rows of other classes; the proposal is the nearest
    centre of the classes without the row. By `eval/results/features_labels.json` it finds fewer of the wrong labels of
    an attribute that real images hardly show, and more where many classes are tight clusters.

    Args:
        features: (n, d). labels: (n,), unknown ones are left out. folds: of "ridge".

    Raises:
        InvalidInputError: shapes that do not fit, fewer than two classes, a class with fewer rows than folds (for
            "centres" than 2), or another rule.
    """
    rows, codes, classes = known_rows(features, labels)
    column = Labels.of_array(labels)
    names = [column.names[code] for code in np.unique(column.codes[column.known])]
    if by == "ridge":
        parts = Folds.of(rows, fold_numbers(codes, folds, seed))
        scores = parts.scores(codes, classes, balanced=False, penalty=PENALTY)
    elif by == "centres":
        scores = _centre_scores(rows, codes, classes)
    else:
        raise InvalidInputError(f"by: expected ridge or centres, got {by!r}")
    own = scores.gather(1, torch.from_numpy(codes)[:, None])[:, 0]
    best = scores.argmax(1).numpy()
    if by == "ridge":
        others = scores.scatter(1, torch.from_numpy(codes)[:, None], -torch.inf)
        confidence = (own - others.max(1).values).numpy()
    else:
        confidence = centre_rule(rows, codes, classes)
    pd = need("pandas")
    frame = pd.DataFrame(
        {
            "row": np.flatnonzero(column.known),
            "given": [names[code] for code in codes],
            "proposed": [names[code] for code in best],
            "confidence": confidence,
        }
    )
    return frame.sort_values("confidence", kind="stable", ignore_index=True)


def class_sums(rows: Tensor, codes: Codes, classes: int) -> tuple[Tensor, Tensor]:
    """Sums (classes, d) float64 of the rows of each class, and their numbers (classes,).

    Raises:
        InvalidInputError: a class of fewer than two rows.
    """
    sizes = torch.from_numpy(np.bincount(codes, minlength=classes))
    if int(sizes.min()) < 2:
        raise InvalidInputError(
            "labels: expected two or more rows of every class; leave the others out (None is unknown)"
        )
    sums = torch.zeros(classes, rows.shape[1], dtype=torch.float64)
    for start in range(0, len(rows), BLOCK):
        sums.index_add_(0, torch.from_numpy(codes[start : start + BLOCK]), rows[start : start + BLOCK].double())
    return sums, sizes


def _centre_scores(rows: Tensor, codes: Codes, classes: int) -> Tensor:
    """Cosines (n, classes) to the centres, each row left out of its own."""
    sums, _ = class_sums(rows, codes, classes)
    scores = rows.double() @ torch.nn.functional.normalize(sums, dim=1).T
    own = sums[torch.from_numpy(codes)] - rows.double()
    scores[np.arange(len(rows)), codes] = (rows * torch.nn.functional.normalize(own, dim=1)).sum(1)
    return scores


def centre_rule(rows: Tensor, codes: Codes, classes: int) -> np.ndarray:
    """Credibility (n,): cosine with the mean of the others of a row's class, less the mean product with other classes.

    rows (n, d) of length 1. Linear in n: sums of classes stand for all pairs.
    """
    sums, sizes = class_sums(rows, codes, classes)
    mine, which = rows.double(), torch.from_numpy(codes)
    own = sums[which] - mine
    within = (mine * torch.nn.functional.normalize(own, dim=1)).sum(1)
    others = mine @ sums.sum(0) - (mine * sums[which]).sum(1)
    return np.asarray((within - others / (len(rows) - sizes[which])).numpy())
