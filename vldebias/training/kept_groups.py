"""Measure whether `keep` leaves out more pairs of some groups than of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import warn
from vldebias.measure.resampling import LEVEL, wilson_interval
from vldebias.training.pairs import Pairs
from vldebias.training.settings import TrainSettings


class KeptShare(TypedDict):
    """How many pairs of a group are kept.

    Attributes:
        column: label column.
        value: value of the column that defines the group.
        n: number of pairs in the group.
        share: share of them that is kept, or their mean weight with keep="auto".
        interval: 95% interval of the share.
        change: difference from the share of all other pairs with a known value, with an interval
            that is corrected for the number of groups in the column.
    """

    column: str
    value: str
    n: int
    share: float
    interval: tuple[float, float]
    change: tuple[float, float, float]


def kept_by_group(
    pairs: Pairs, settings: TrainSettings, weights: NDArray[np.float32]
) -> list[KeptShare]:
    """Return the kept share of each group in the columns of classes and groups.

    The same scores decide for all groups, so a group's share is compared with that of all other
    pairs. The interval of the difference combines Wilson's intervals of both shares (Newcombe,
    1998, "Interval estimation for the difference between independent proportions", method 10).

    Args:
        pairs: all scored pairs.
        settings: training settings, which name the columns.
        weights: (n,), how much each pair counts in training, from 0 to 1.
    """
    names = [settings.label, settings.group, *(settings.group_dro or "").split(",")]
    columns = dict.fromkeys(name.strip() for name in names if name)
    kept: list[KeptShare] = []
    for column in columns:
        labels = pairs.columns.get(column)
        if labels is None:  # a column of the held-out data alone
            continue
        counts = np.bincount(labels.codes[labels.known], minlength=len(labels.names))
        if (counts > 0).sum() < 2:
            continue
        level = 1 - (1 - LEVEL) / int((counts > 0).sum())
        for code in np.flatnonzero(counts).tolist():
            in_group = labels.codes == code
            share = float(weights[in_group].mean())
            outside = weights[labels.known & ~in_group]
            kept.append(
                {
                    "column": column,
                    "value": labels.names[code],
                    "n": int(counts[code]),
                    "share": share,
                    "interval": wilson_interval(share * counts[code], counts[code]),
                    "change": _difference(weights[in_group], outside, level),
                }
            )
    return kept


def _difference(
    weights: NDArray[np.float32], outside: NDArray[np.float32], level: float
) -> tuple[float, float, float]:
    """Return the difference between two mean weights, with Newcombe's interval."""
    share = float(weights.mean())
    other_share = float(outside.mean())
    low, high = wilson_interval(share * len(weights), len(weights), level)
    other_low, other_high = wilson_interval(other_share * len(outside), len(outside), level)
    difference = share - other_share
    below = float(np.hypot(share - low, other_high - other_share))
    above = float(np.hypot(high - share, other_share - other_low))
    return difference, difference - below, difference + above


def warn_of_lost_groups(kept: Sequence[KeptShare]) -> None:
    """Warn about groups that clearly lose more pairs than the others."""
    lost = [group for group in kept if group["change"][2] < 0]
    if not lost:
        return
    worst = min(lost, key=lambda group: group["change"][0])
    change, low, high = (100 * end for end in worst["change"])
    further = ""
    if len(lost) > 1:
        names = [f"{group['column']} = {group['value']}" for group in lost if group is not worst]
        further = f" The same is true of {', '.join(names)}."
    warn(
        f"keep leaves out more pairs of some groups: of {worst['n']:,} pairs with"
        f" {worst['column']} = {worst['value']}, {worst['share']:.0%} count in training,"
        f" {-change:.0f} points fewer than of the others [{low:+.0f}, {high:+.0f}].{further} The"
        " starting model may match these images badly even if their captions are right. Look at"
        " them in pairs.html; if they are right, train without keep, or use group_dro"
    )
