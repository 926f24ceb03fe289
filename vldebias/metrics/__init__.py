"""Measures of bias and utility: numbers in, floats out, with intervals; every convention is a named parameter."""

from vldebias.metrics.agreement import Agreement, agreement, krippendorff_alpha
from vldebias.metrics.bootstrap import Interval, bootstrap_interval, paired_difference_interval
from vldebias.metrics.corrected import CorrectedShares, corrected_shares
from vldebias.metrics.detection import auroc, precision_among_lowest
from vldebias.metrics.discrepancy import (
    AttributeShares,
    attribute_shares,
    deviation_ratio,
    discrepancy,
    kl_from_uniform,
)
from vldebias.metrics.groups import (
    GroupAccuracy,
    average_accuracy,
    gap,
    group_accuracy,
    worst_group_accuracy,
    worst_group_auc,
)
from vldebias.metrics.metric import METRICS, Metric, register_metric
from vldebias.metrics.paired import mcnemar
from vldebias.metrics.robustness import k_variance, robust_correct, shift_distances
from vldebias.metrics.skew import max_skew, min_skew, ndkl

__all__ = [
    "METRICS",
    "Agreement",
    "AttributeShares",
    "CorrectedShares",
    "GroupAccuracy",
    "Interval",
    "Metric",
    "agreement",
    "attribute_shares",
    "auroc",
    "average_accuracy",
    "bootstrap_interval",
    "corrected_shares",
    "deviation_ratio",
    "discrepancy",
    "gap",
    "group_accuracy",
    "k_variance",
    "kl_from_uniform",
    "krippendorff_alpha",
    "max_skew",
    "mcnemar",
    "min_skew",
    "ndkl",
    "paired_difference_interval",
    "precision_among_lowest",
    "register_metric",
    "robust_correct",
    "shift_distances",
    "worst_group_accuracy",
    "worst_group_auc",
]
