"""Define result rows, each a value with its interval and paired change, and their provenance."""

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

# Method name in rows for the unedited model, the baseline of all changes.
NONE = "none"
# Method name in rows for random rankings and draws: their mean, with their central 95% range.
CHANCE = "random"
# Method name in rows for shares that are as equal as possible, which is the chance level for
# methods that assign values to images.
EVEN_ASSIGNMENT = "even assignment"
# Method name in rows for the unedited model with a threshold at its median score.
MEDIAN = "none@median"
# Suffix for methods whose lambda was chosen on a labelled validation split.
ON_VAL = "@val"
# Method names in rows that do not measure a method.
CHANCES = (CHANCE, EVEN_ASSIGNMENT)
# File suffixes for image strips about groups that got worse, and about edited images. The page
# shows all of them.
WORSE_STRIP, EDIT_STRIP = ALWAYS_SHOWN = ("-worse-strip", "-edit-strip")
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
    """Store one measured value with its 95% interval and its change.

    Attributes:
        task: name of the task, such as "birds" or "portraits".
        metric: name of the metric, such as "worst_group" or "max_skew@10".
        method: name of the method, such as "none" or "cali".
        value: the measured value.
        interval: its 95% interval.
        change: paired difference from "none", with its 95% interval.
        better: which values are better, "higher", "lower" or "neither".
        n: sample size by unit. The first unit is the one that was resampled.
        subset: part of the data, such as a group, a query or "unseen professions". "" means all.
        lam, strength: parameters of the method, if it takes them.
        uses_labels: whether the method uses image labels.
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
    """Record what a task did, in enough detail to reproduce it.

    Attributes:
        task: name of the task.
        description: what was measured, and how.
        model: name of the model.
        fingerprint: fingerprint of the model's weights.
        attribute, attribute_hash: the prompt set and its hash.
        split: name of the data set and split.
        methods: for each method name, lam, strength, prompt set, how the default method was chosen,
            the title, the colour in charts, and whether the method assigns values to images.
        seeds: random seeds.
        n: sample size by unit.
        title: title in reports.
        data: digest by data set name.
        settings: conventions and parameters that change the measurements, such as k, the prior,
            thresholds and resampling.
        is_miniature: whether the images come from the miniature world or its model.
    """

    task: str
    description: str
    model: str = ""
    fingerprint: dict[str, Any] | None = None
    attribute: str = ""
    attribute_hash: str = ""
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
    """Store rows of images for the top of a page; images in a column share a seed.

    Attributes:
        caption: caption of the strip.
        columns: titles of the columns.
        rows: title and images of each row. All images have the same size.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Image]]]


@dataclass
class TaskResult:
    """Store one task's result rows in insertion order, with their provenance.

    Attributes:
        provenance: what the task did.
        rows: one measurement per metric, method and subset.
        pictures: caption and plot or image by file stem, for results that rows cannot show.
        strips: rows of images by file stem.
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
        **details: float | None,
    ) -> None:
        """Add one row.

        Args:
            metric: metric or its name.
            method: name of the method.
            value: the metric's estimate from the whole sample.
            interval: its 95% interval. If None, the value is exact.
            n: sample size by unit. The first unit is the one that was resampled.
            change: paired difference from "none", with its interval. It is ignored for "none",
                random rankings and facts.
            subset: part of the data. "" means all.
            details: lam, strength and uses_labels. Default: the values in the provenance.

        Raises:
            InvalidInputError: If the metric is unknown.
        """
        known_metric = get_metric(metric)
        columns: dict[str, object] = {}
        facts = self.provenance.methods.get(method, {})
        for key in ("lam", "strength", "uses_labels"):
            if facts.get(key) is not None:
                columns[key] = facts[key]
        columns |= details
        # A change shown for the baseline, for chance or for a fact would be mistaken for an effect.
        if method in (NONE, *CHANCES) or known_metric.kind == "fact":
            change = None
        if interval is None:
            interval = (value, value)
        columns |= {
            "task": self.provenance.task,
            "metric": known_metric.name,
            "method": method,
            "subset": subset,
            "better": known_metric.better,
            "n": dict(n),
            "value": value,
            "interval": interval,
            "change": change,
        }
        self.rows.append(Measurement.model_validate(columns))

    def add_draws(
        self,
        metric: str | Metric,
        values: Mapping[str, float],
        draws: Mapping[str, np.ndarray] | None = None,
        *,
        n: Mapping[str, int],
        interval: Callable[[float, np.ndarray], Bounds] | None = None,
        intervals: Mapping[str, Bounds] | None = None,
        subset: str = "",
    ) -> None:
        """Add a row for each method, with its paired change from "none".

        Args:
            metric: metric or its name.
            values: value of each method.
            draws: values (b,) of each method in shared resamples. If None, the values are exact.
            n: sample size by unit.
            interval: function that returns an interval for a value and its draws. Default: the
                central 95% of the draws. Intervals are clipped to the bounds of the metric.
            intervals: interval of the value of some methods, in place of the one from the draws.
            subset: part of the data. "" means all.
        """

        def ends(value: float, draws_of_value: np.ndarray | None) -> Bounds:
            if draws_of_value is None:
                return value, value
            if interval is not None:
                return interval(value, draws_of_value)
            return percentile_interval(draws_of_value[np.isfinite(draws_of_value)])

        smallest, largest = get_metric(metric).bounds
        for method, value in values.items():
            low, high = (intervals or {}).get(method) or ends(
                value, None if draws is None else draws[method]
            )
            # A recentred interval may exceed the metric's bounds, such as an accuracy above 1.
            bounds = (max(low, smallest), min(high, largest))
            change = None
            if NONE in values and method != NONE:
                difference = value - values[NONE]
                paired = None
                if draws is not None:
                    with np.errstate(invalid="ignore"):  # NaN marks resamples without a value.
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
        """Add a row for each method, with a percentile interval over units and its paired change.

        These intervals reach their nominal coverage with a few dozen distinct units. A width of 0
        only means that resamples do not vary.

        Args:
            metric: metric or its name.
            values: values (n,) of each method for the same n units.
            n: sample size by unit.
            subset: part of the data. "" means all.
            statistic: function that maps resampled values (b, n) to (b,). If None, the mean.
            resamples: number of resamples.
            seed: random seed.
        """
        value_of_method, draws = resampled_values(
            values, statistic=statistic, resamples=resamples, seed=seed
        )
        self.add_draws(metric, value_of_method, draws, n=n, subset=subset)
