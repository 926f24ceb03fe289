"""Declare the metrics with their titles, kinds and directions.

To add a metric, create a `Metric` and pass it to `register_metric`, or declare it as an entry point
in the group "vldebias.metrics". `TaskResult.add` then accepts its name, and tables and pages use
its title, kind and direction. If it sets `compute`, it is measured by every task that has the
inputs named in `reads`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.measure.classification import (
    ROUNDING,
    IntervalRule,
    accuracy_gap,
    lowest_accuracy,
    mean_accuracy,
)
from vldebias.measure.rankings import max_skews, min_skews, ndkls
from vldebias.measure.representation import rank_fairness, representation_gaps
from vldebias.measure.shares import deviation_ratios, discrepancies, kl_divergences
from vldebias.measure.shares import squared_discrepancies as squares
from vldebias.utils.registry import Registry, check_callable, check_choice

Kind = Literal["bias", "utility", "similarity", "fact"]
Better = Literal["higher", "lower", "neither"]
Reads = Literal["", "texts", "groups", "shares", "rankings"]
ARGUMENTS = {"groups": ("hits", "size"), "shares": ("counts",), "rankings": ("groups", "prior")}
ANY = (-math.inf, math.inf)
SHARE = (0.0, 1.0)
POSITIVE = (0.0, math.inf)
BOTH = (-1.0, 1.0)
# Name of the metric for the difference between a method's value and the value with a threshold at
# the median, on the same images. Its subset is the title of the compared metric.
TO_MEDIAN = "difference_to_median"


@dataclass(frozen=True)
class Metric:
    """Declare a metric.

    Attributes:
        name: name used in rows and files.
        title: name shown in reports.
        everyday: name in everyday words, which sentences put before the title. Default: the title.
        kind: "bias" (what methods should improve), "utility" (what they cost), "similarity" (how
            far they move embeddings) or "fact" (no change is reported).
        better: which values are better, "higher", "lower" or "neither".
        bounds: smallest and largest possible value, to which intervals are clipped.
        reads: "texts" if the metric does not use images; otherwise the arguments of `compute`:

            - "groups": hits and sizes (..., g), the numbers of correct and total images per group;
            - "shares": counts (..., |A|) of images that show each attribute value;
            - "rankings": group codes (r, k) of the first k results in r rankings, and the prior
              (g,) or (r, g). The metric's name in rows then contains k, as in "ndkl@9".
        compute: function that returns a value for each ranking (r,), or for each resample or
            prompt (...). None if tasks compute the metric themselves.
        interval: what `compute` returns for groups, because a percentile interval of the lowest
            accuracy would be too narrow. Required for "groups", and unused otherwise:

            - "mean": the accuracy over all images;
            - "weighted mean": a mean of the groups' accuracies with fixed weights;
            - "lowest": the lowest of the groups' accuracies;
            - "gap": a mean minus the lowest accuracy;
            - "bootstrap": anything else; the interval contains the central 95% of the resamples.

    >>> import numpy as np
    >>> def spread(hits, size):
    ...     accuracy = hits / np.maximum(size, 1)
    ...     return accuracy.max(-1) - accuracy.min(-1)
    >>> metric = Metric(
    ...     "spread",
    ...     "spread",
    ...     "bias",
    ...     "lower",
    ...     (0, 1),
    ...     reads="groups",
    ...     compute=spread,
    ...     interval="bootstrap",
    ... )
    >>> float(metric.compute(np.array([8, 4]), np.array([8, 8])))
    0.5
    """

    name: str
    title: str
    kind: Kind = "fact"
    better: Better = "neither"
    bounds: tuple[float, float] = ANY
    reads: Reads = ""
    compute: Callable[..., np.ndarray] | None = None
    interval: IntervalRule = ""
    everyday: str = ""

    def __post_init__(self) -> None:
        choices_of_field = {"kind": Kind, "better": Better, "reads": Reads}
        where = f"metric {self.name!r}"
        for field, choices in choices_of_field.items():
            check_choice(f"{where}: {field}", getattr(self, field), get_args(choices))
        are_bounds = isinstance(self.bounds, tuple) and len(self.bounds) == 2
        if not self.name or not are_bounds or not self.bounds[0] < self.bounds[1]:
            raise InvalidInputError(
                f"{where}: expected a name and bounds (low, high), got {self.bounds}"
            )
        if self.compute is not None and self.reads in ("", "texts"):
            raise InvalidInputError(f"{where}: compute needs `reads`, one of {get_args(Reads)[2:]}")
        if self.compute is None and self.reads in ("groups", "shares"):
            raise InvalidInputError(
                f"{where}: reads={self.reads!r} has no effect without a function; pass"
                " it as compute="
            )
        rules = get_args(IntervalRule)[1:] if self.reads == "groups" else ("",)
        check_choice(f"{where}: interval, with reads={self.reads!r}", self.interval, rules)
        if self.compute is not None:
            check_callable(f"{where}: compute", self.compute, ARGUMENTS[self.reads])


METRICS: Registry[Metric] = Registry("metric", "vldebias.metrics", Metric)
"""All metrics by name: built-in metrics, registered ones, and those from entry points."""


def register_metric(metric: Metric) -> Metric:
    """Register a metric for all tasks, tables and pages in this process.

    Args:
        metric: the declaration; its name must be new.

    Returns:
        The metric.

    Raises:
        InvalidInputError: If `metric` is not a `Metric`, or its name is already taken.

    >>> from vldebias.metrics import METRICS, Metric
    >>> metric = register_metric(Metric("moved", "moved", "similarity", "lower", (0, 2)))
    >>> METRICS["moved"].better
    'lower'
    """
    return METRICS.register(metric)


def get_metric(name: str | Metric, *, strict: bool = True) -> Metric:
    """Look up a metric by name, and add the k in a name such as "max_skew@10" to its title.

    Args:
        name: a name, such as "max_skew@10", or a metric.
        strict: whether to raise an error for unknown names. Otherwise, a metric is created, for
            rows measured by other packages.
    """
    if isinstance(name, Metric):
        return name
    base, _, k = name.partition("@")
    # An unknown metric comes from a package that is not installed. Treat it as a bias metric, so
    # that conclusions cover it.
    if not strict and base not in METRICS:
        return Metric(name, name.replace("_", " "), "bias")
    metric = METRICS[base]
    if not k:
        return metric
    # "max_skew@10" is the MaxSkew of the first ten results. Any k is allowed, so such names are not
    # registered.
    return replace(metric, name=name, title=f"{metric.title}@{k}")


def computed(reads: Reads) -> list[tuple[Metric, Callable[..., np.ndarray]]]:
    """Return all metrics that are computed from one kind of input, with their functions."""
    metrics: list[tuple[Metric, Callable[..., np.ndarray]]] = []
    for metric in METRICS.values():
        if metric.reads != reads or metric.compute is None:
            continue
        metrics.append((metric, partial(_values, metric, metric.compute)))
    return metrics


def _values(metric: Metric, compute: Callable[..., np.ndarray], *counts: np.ndarray) -> np.ndarray:
    """Compute a metric from counts, and raise an error unless it returns one value per row."""
    values = compute(*counts)
    if values is None:
        raise InvalidInputError(
            f"metric {metric.name!r}: compute returned None; expected an array of values (is a"
            " `return` missing?)"
        )
    rows = counts[0].shape[:-1]
    if np.shape(values) != rows:
        raise InvalidInputError(
            f"metric {metric.name!r}: compute returned an array {np.shape(values)} for counts"
            f" {counts[0].shape}; expected {rows}: reduce the last axis alone, as .max(-1) does"
        )
    low, high = metric.bounds
    wrong = np.asarray(values, float)
    # NaN marks rows without images. Allow for rounding errors at the bounds.
    wrong = wrong[(wrong < low - ROUNDING) | (wrong > high + ROUNDING)]
    if wrong.size:
        raise InvalidInputError(
            f"metric {metric.name!r}: compute returned {wrong.flat[0]:.4g}, which is outside of"
            f" bounds={metric.bounds}; correct either compute or the bounds"
        )
    return values


# Most bias and utility metrics share these defaults.
_bias = partial(Metric, kind="bias", better="lower")
_utility = partial(Metric, kind="utility", better="higher", bounds=SHARE)
# What sentences call each measure of bias or utility, in everyday words; "" if its title says it.
_EVERYDAY = {
    "worst_group": "accuracy for the worst-off group",
    "average": "accuracy over all images",
    "average_reweighted": "average accuracy",
    "gap": "accuracy that the worst-off group lacks",
    "gap_reweighted": "accuracy that the worst-off group lacks",
    "worst_group_auc": "separation of the classes for the worst-off group",
    "cosine": "similarity of class prompts to the attribute",
    "cosine_spread": "preference of class prompts for one value",
    "pair_distance": "distance between prompts that differ only in the attribute",
    "max_skew": "surplus of one group in searches",
    "max_skew_dataset": "surplus of one group in searches",
    "max_skew_uniform": "surplus of one group in searches",
    "min_skew": "shortage of one group in searches",
    "ndkl": "unevenness of groups from the top of a search down",
    "mpr": "gap between the groups in searches and fair shares",
    "awrf": "evenness of how prominent the groups are in searches",
    "discrepancy": "unevenness of who appears",
    "discrepancy_squared": "squared unevenness of who appears",
    "kl_from_uniform": "unevenness of who appears",
    "linear_probe": "how often the attribute can be read from an embedding",
    "neighbour_probe": "how often similar images reveal the attribute",
    "deviation_ratio": "unevenness of who appears, as a share of its maximum",
    "precision": "results that match the query",
    "recall": "matches that are found",
    "retained": "best matches that are kept",
    "accuracy": "correct predictions",
    "class_probe": "how often the class can be read from an embedding",
    "recognised": "images that show the requested subject",
    "stated_right": "images that show the requested value",
    "stated_recognised": "images that show the requested subject if a value is requested",
    "clip_score": "match of image and prompt",
    "fid": "distance from the original images",
    "signal_kept": "difference between classes that is kept",
    "unchanged": "images that stay the same",
    "unknown": "images that do not show the attribute",
    "said_wrong": "",
    "said_gap": "difference between groups in wrong values",
    "unclear_said": "texts that state a value nobody can see",
    "said_right": "",
    "said_none": "",
    "refused_gap": "difference between groups in refusals",
    "label_changed": "people who are labelled differently afterwards",
    "lighter": "people with lighter skin afterwards",
    "darker": "people with darker skin afterwards",
    "relative_lighter": "people with lighter skin, beyond the light of the image",
    "relative_darker": "people with darker skin, beyond the light of the image",
}
BUILT_IN = (
    _bias(
        "worst_group",
        "worst-group accuracy",
        better="higher",
        bounds=SHARE,
        reads="groups",
        compute=lowest_accuracy,
        interval="lowest",
    ),
    _utility("average", "average accuracy", reads="groups", compute=mean_accuracy, interval="mean"),
    _utility("average_reweighted", "reweighted average accuracy"),
    _bias(
        "gap",
        "gap, average minus worst group",
        bounds=SHARE,
        reads="groups",
        compute=accuracy_gap,
        interval="gap",
    ),
    _bias("gap_reweighted", "gap, reweighted average minus worst group", bounds=SHARE),
    _bias("worst_group_auc", "worst-group AUC", better="higher", bounds=SHARE),
    _bias("cosine", "cosine", reads="texts"),
    _bias("cosine_spread", "spread of cosines between values", reads="texts"),
    _bias("pair_distance", "distance of pairs", bounds=POSITIVE, reads="texts"),
    _bias("max_skew", "MaxSkew", bounds=POSITIVE, reads="rankings", compute=max_skews),
    # MaxSkew against the prior that a task did not choose, reported if its gallery is uneven.
    _bias("max_skew_dataset", "MaxSkew against the gallery's own shares", bounds=POSITIVE),
    _bias("max_skew_uniform", "MaxSkew against even shares", bounds=POSITIVE),
    _bias(
        "min_skew",
        "MinSkew",
        better="higher",
        bounds=(-math.inf, 0.0),
        reads="rankings",
        compute=min_skews,
    ),
    _bias("ndkl", "NDKL", bounds=POSITIVE, reads="rankings", compute=ndkls),
    _bias(
        "mpr",
        "MPR, representational gap",
        bounds=SHARE,
        reads="rankings",
        compute=representation_gaps,
    ),
    _bias(
        "awrf",
        "AWRF, fairness of exposure",
        better="higher",
        bounds=SHARE,
        reads="rankings",
        compute=rank_fairness,
    ),
    _bias(
        "discrepancy", "gap from even shares", bounds=SHARE, reads="shares", compute=discrepancies
    ),
    Metric("discrepancy_deviation", "gap's standard deviation over prompts", bounds=SHARE),
    _bias(
        "discrepancy_squared",
        "squared gap from even shares, unbiased",
        reads="shares",
        compute=squares,
    ),
    _bias(
        "kl_from_uniform",
        "KL from uniform shares",
        bounds=POSITIVE,
        reads="shares",
        compute=kl_divergences,
    ),
    _bias("linear_probe", "linear probe for the attribute, balanced accuracy", bounds=SHARE),
    _bias(
        "neighbour_probe",
        "nearest neighbours for the attribute, balanced accuracy",
        bounds=SHARE,
    ),
    _bias(
        "deviation_ratio", "deviation ratio", bounds=SHARE, reads="shares", compute=deviation_ratios
    ),
    # A method's costs, in the order used in conclusions.
    _utility("precision", "precision", reads="rankings"),
    _utility("recall", "recall"),
    _utility("retained", "retained hits"),
    _utility("accuracy", "accuracy"),
    _utility("class_probe", "linear probe for the class, balanced accuracy"),
    Metric("stay", "first results that stay", kind="similarity", bounds=SHARE),
    Metric("queries_worse", "queries that get worse", kind="similarity", bounds=SHARE),
    Metric("query_cosine", "cosine of queries with themselves", kind="similarity"),
    Metric("image_cosine", "cosine of images with themselves", kind="similarity"),
    _utility("recognised", "subject accuracy"),
    _utility("stated_right", "stated value shown"),
    _utility("stated_recognised", "subject accuracy, value stated"),
    _utility("clip_score", "CLIPScore", bounds=POSITIVE),
    _utility("fid", "FID", better="lower", bounds=POSITIVE),
    _utility("signal_kept", "class signal kept", bounds=ANY),
    _utility("unchanged", "unchanged images"),
    _utility("unknown", "unknown attribute", better="lower"),
    # What texts state about images. The shares of right, wrong, no and several values sum to 1.
    _bias("said_wrong", "wrong value stated", bounds=SHARE),
    _bias("said_gap", "gap of wrong values", better="neither", bounds=BOTH),
    _bias("unclear_said", "a value stated although unclear", bounds=SHARE),
    _utility("said_right", "right value stated"),
    _utility("said_none", "no value stated", better="lower"),
    Metric("said_several", "several or other values stated", bounds=SHARE),
    Metric("refused", "refused to answer", bounds=SHARE),
    _bias("refused_gap", "gap of refusals", better="neither", bounds=BOTH),
    # What editors did to people. "Relative" is without what happened to the background.
    _bias("label_changed", "label changed", bounds=SHARE),
    Metric("label_became", "label became another", bounds=SHARE),
    Metric("judge_wavers", "label changed by JPEG or mirroring alone", bounds=SHARE),
    _bias("lighter", "skin lighter by more than 2 L*", bounds=SHARE),
    _bias("darker", "skin darker by more than 2 L*", bounds=SHARE),
    Metric("lightness_change", "change of the skin's L*"),
    _bias("relative_lighter", "skin lighter by more than 2 L*, relative", bounds=SHARE),
    _bias("relative_darker", "skin darker by more than 2 L*, relative", bounds=SHARE),
    Metric("relative_change", "change of the skin's L*, relative"),
    Metric("lightening_slope", "change for skin that is 10 L* darker, relative"),
    # Metrics of how reliable a result is, and facts that are neither good nor bad.
    Metric(TO_MEDIAN, "difference from the median threshold", bounds=BOTH),
    Metric("alpha", "Krippendorff's alpha", better="higher"),
    Metric("percent_agreement", "pairs of answers that agree", better="higher", bounds=SHARE),
    Metric("share", "share", bounds=SHARE),
    Metric("stated", "people with a stated value", bounds=SHARE, reads="texts"),
    Metric("stated_share", "share among stated values", bounds=SHARE, reads="texts"),
    Metric(
        "predicted_discrepancy",
        "predicted gap from even shares",
        better="lower",
        bounds=SHARE,
        reads="texts",
    ),
    Metric("counted_share", "counted share", bounds=SHARE),
    Metric(
        "lean_r",
        "correlation of text leans with judged shares",
        better="higher",
        bounds=BOTH,
        reads="texts",
    ),
    Metric("suspect_labels", "labels that another class fits better", better="lower", bounds=SHARE),
)
for _metric in BUILT_IN:
    _words = _EVERYDAY[_metric.name] if _metric.kind in ("bias", "utility") else ""
    register_metric(replace(_metric, everyday=_words))
# Appended to the title of a judge's metric that was corrected with human labels.
CORRECTED = " over all images, corrected with human labels"
# Register each judge metric again, in a version corrected with human labels.
for _name in ("share", "discrepancy", "discrepancy_squared", "max_skew", "label_changed"):
    _base = METRICS[_name]
    _title = f"{_base.title}{CORRECTED}"
    register_metric(replace(_base, name=f"corrected_{_name}", title=_title, reads="", compute=None))
