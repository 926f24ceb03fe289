"""Hold the rows of a result, one for each value with its interval and paired change, and what each
task was measured with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, Field

from vldebias.measure.metric import Metric, get_metric
from vldebias.measure.resampling import percentile_interval, resampled_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot
    from PIL.Image import Image

# the method of rows about the model without an edit, from which the changes of the others are
# counted
NONE = "none"
# the method of rows about random rankings and draws: their mean, and the middle 95 % of them
CHANCE = "random"
# the method of rows about shares that are dealt as evenly as they can be: the chance of a method
# that deals values to images
DEALT = "dealt evenly"
# the method of rows about the model without an edit, with its threshold at the median of its scores
MEDIAN = "none@median"
# how the name of a method ends whose lambda was chosen on a labelled validation split
ON_VAL = "@val"
# the methods of rows that measure no method
CHANCES = (CHANCE, DEALT)
# how a file of images ends that shows who got worse
WORSE_STRIP = "-worse-strip"
NUMBERS = ["value", "low", "high", "change", "change_low", "change_high", "lam", "strength"]
COLUMNS = (
    "task",
    "metric",
    "method",
    "subset",
    *NUMBERS[:6],
    "n",
    "better",
    *NUMBERS[6:],
    "uses_labels",
    "counts",
)
Bounds = tuple[float, float]


class Measurement(BaseModel, extra="forbid"):
    """Hold one number with the 95 % `interval` of its value; `change` is that of the paired
    difference to "none".

    task: birds, portraits, generation, ...; metric: worst_group, max_skew@10, ...; method: none,
    orth, cali, ...
    better: "higher", "lower" or "neither". n: what was resampled and how many of it.
    subset: the part that it is about, such as a group, a query or "unseen professions"; "" for the
    whole. lam, strength: of the method, where it has them. uses_labels: the method was given labels
    of images.
    """

    task: str
    metric: str
    method: str
    value: float
    interval: tuple[float, float]
    change: tuple[float, float, float] | None = None
    better: str
    n: dict[str, int]
    subset: str = ""
    lam: float | None = None
    strength: float | None = None
    uses_labels: bool = False


class TaskProvenance(BaseModel, extra="forbid"):
    """Hold what a task did, in enough detail to repeat it.

    title: what a report calls the task; settings: conventions and parameters that change the
    measurements (k, prior, thresholds, resampling). fingerprint: of the weights; data: what was
    measured on -> digest of it.
    methods: name -> its lam, strength, prompts, what the default chose, its title, its colour in
        charts, and whether it deals values to images.
    is_miniature: the images come from the miniature world, or its model made them.
    """

    task: str
    description: str
    model: str = ""
    fingerprint: dict[str, Any] | None = None
    prompts: str = ""
    prompts_hash: str = ""
    split: str = ""
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    seeds: list[int] = Field(default_factory=list)
    n: dict[str, int] = Field(default_factory=dict)
    title: str = ""
    data: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    is_miniature: bool = False


@dataclass(frozen=True, eq=False)
class Strip:
    """Hold rows of images of the same size, in columns of the same seed, which the first screen of
    a page shows.

    caption: what is seen. columns: what each column is called. rows: what a row is called, with
    its images.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Image]]]


@dataclass
class TaskResult:
    """Hold the rows of one task, in the order in which they were added, and what they were measured
    with.

    pictures: file stem -> (caption, plot): what no row can give back, such as a sheet of images.
    strips: file stem -> rows of images.
    """

    provenance: TaskProvenance
    rows: list[Measurement] = field(default_factory=list)
    pictures: dict[str, tuple[str, Plot | Image]] = field(default_factory=dict)
    strips: dict[str, Strip] = field(default_factory=dict)

    def add(
        self,
        metric: str | Metric,
        method: str,
        value: float,
        interval: Bounds | None = None,
        *,
        n: Mapping[str, int],
        change: tuple[float, float, float] | None = None,
        subset: str = "",
        **details: Any,
    ) -> None:
        """Add one row; "none", random rankings and facts have no change.

        interval: None: the value is exact. details: lam, strength, uses_labels, by default those
        that the provenance has of the method. An unknown metric raises InvalidInputError.
        """
        known_metric = get_metric(metric)
        names: Any = {
            "task": self.provenance.task,
            "metric": known_metric.name,
            "method": method,
            "subset": subset,
        }
        facts = self.provenance.methods.get(method, {})
        columns: dict[str, Any] = {"better": known_metric.better, "n": dict(n)}
        for key in ("lam", "strength", "uses_labels"):
            if facts.get(key) is not None:
                columns[key] = facts[key]
        columns |= details
        # The base of changes, chance and facts change nothing; a figure there would be read as an
        # effect.
        if method in (NONE, *CHANCES) or known_metric.kind == "fact":
            change = None
        if interval is None:
            interval = (value, value)
        self.rows.append(
            Measurement(**names, value=value, interval=interval, change=change, **columns)
        )

    def add_draws(
        self,
        metric: str | Metric,
        values: Mapping[str, float],
        draws: Mapping[str, np.ndarray] | None = None,
        *,
        n: Mapping[str, int],
        interval: Callable[[float, np.ndarray], Bounds] | None = None,
        subset: str = "",
    ) -> None:
        """Add a row per method with its paired change to "none".

        values: method -> value. draws: method -> what it takes in the same resamples (b,); None:
        values are exact.
        interval: reads one off a value and its draws, the middle 95 % by default; it is cut at the
        metric's bounds.
        """

        def ends(value: float, drawn: np.ndarray | None) -> Bounds:
            if drawn is None:
                return value, value
            if interval is not None:
                return interval(value, drawn)
            return percentile_interval(drawn[np.isfinite(drawn)])

        smallest, largest = get_metric(metric).bounds
        for method, value in values.items():
            drawn = None if draws is None else draws[method]
            low, high = ends(value, drawn)
            # A recentred interval may pass what the metric can be, such as an accuracy of 1.02.
            bounds = (max(low, smallest), min(high, largest))
            change = None
            if NONE in values and method != NONE:
                difference = value - values[NONE]
                paired = None
                if draws is not None:
                    with np.errstate(invalid="ignore"):  # a resample without a value is NaN
                        paired = draws[method] - draws[NONE]
                change = (difference, *ends(difference, paired))
            self.add(metric, method, value, bounds, n=n, change=change, subset=subset)

    def add_resampled(
        self,
        metric: str | Metric,
        values: Mapping[str, np.ndarray],
        *,
        n: Mapping[str, int],
        subset: str = "",
        statistic: Callable[..., np.ndarray] | None = None,
        resamples: int = 2000,
        seed: int = 0,
    ) -> None:
        """Add a row per method from values (n,) of the same n units: percentile intervals over
        units, changes paired.

        A width of 0 says that resampling shows no variation and not that there is none: such
        intervals cover where there are some tens of units that differ. statistic: from resampled
        values (b, n) to (b,); None is the mean.
        """
        drawn = resampled_values(values, statistic=statistic, resamples=resamples, seed=seed)
        self.add_draws(metric, *drawn, n=n, subset=subset)
