"""Bias and utility metrics: arrays in, floats and intervals out."""

from vldebias.measure.classification import (
    agreement,
    auroc,
    group_accuracy,
    k_variance,
    worst_group_accuracy,
)
from vldebias.measure.metric import METRICS, Metric, register_metric
from vldebias.measure.rankings import max_skew, min_skew, ndkl
from vldebias.measure.representation import representation_gap
from vldebias.measure.resampling import Interval, bootstrap_interval
from vldebias.measure.shares import corrected_shares, discrepancy

__all__ = [
    "METRICS",
    "Interval",
    "Metric",
    "agreement",
    "auroc",
    "bootstrap_interval",
    "corrected_shares",
    "discrepancy",
    "group_accuracy",
    "k_variance",
    "max_skew",
    "min_skew",
    "ndkl",
    "register_metric",
    "representation_gap",
    "worst_group_accuracy",
]
