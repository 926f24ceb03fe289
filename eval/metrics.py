"""The metrics of the experiments, beside those of the package: what their rows are called and which way is better."""

from __future__ import annotations

from vldebias.metrics import Metric, register_metric

ABOVE_FLOOR = Metric("above_floor", "MaxSkew above a random ranking", "bias", "lower")
OTHER_BACKGROUND = Metric("other_background", "other background", "bias")
KL = Metric("kl", "KL from uniform shares", "bias", "lower")
CLASS_RECOGNISED = Metric("class_recognised", "class accuracy", "utility", "higher")
IMAGE_COSINE = Metric("image cosine to none", "image cosine to none", "utility", "higher")
PIXEL_DISTANCE = Metric("pixel distance to none", "pixel distance to none", "utility", "lower")
SHOWS = Metric("shows what was asked for", "shows what was asked for", "utility", "higher")
FOLLOWED = Metric("value followed", "value followed", "utility", "higher")
ORDER_KEPT = Metric("order_kept", "rank correlation", "utility", "higher")
SECONDS = Metric("seconds", "seconds", "fact", "lower")
SHARE = Metric("discrepancy, share of none", "parity gap, remaining share", "fact", "lower")
SHARE_OF_SQUARES = Metric("discrepancy_squared, share of none", "squared parity gap, remaining share", "fact", "lower")
SHARE_BY_SEED = Metric(f"{SHARE_OF_SQUARES.name} by seed", f"{SHARE_OF_SQUARES.title} by seed", "fact", "lower")
REGRET = Metric("regret", "share of the best gain missed", "bias", "lower")
MISSED = Metric("missed", "share of the best gain in hindsight that is missed", "bias", "lower")
WORSE = Metric("worse_than_none", "settings worse than none beyond the interval", "bias", "lower")
LABEL_ERROR = Metric("label_error", "wrong zero-shot labels", "fact", "lower")
SUBJECTS_GAINED = Metric("subjects_gained", "subjects gained at equal discrepancy", "utility", "higher")
DIFFERENCE_LEFT = Metric("difference_left", "remaining share of the difference", "fact")
DIRECTION = Metric("direction", "cosine of the directions", "fact", "higher")

AUROC = Metric("auroc", "AUROC for changed labels", "utility", "higher", (0.0, 1.0))
RATIO = Metric("true_over_random", "median with true labels over that with random ones", "fact", "higher")
BOUND = Metric("least_bound", "Theorem 8.2, least over margins (an error is at most 1)", "fact", "lower")


def register_metrics() -> None:
    """Make them known by name, for tables and pages of results that were read."""
    for metric in [one for one in globals().values() if isinstance(one, Metric)]:
        register_metric(metric)
