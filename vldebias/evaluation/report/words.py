"""Measurements in words: names of measures and methods, numbers with intervals, and the verdict on a change."""

from __future__ import annotations

from vldebias.evaluation.result import Measurement

DAGGER = "†"
CHANCE = "random"  # the method of rows about random rankings: the mean, and the middle 95 % of them
TITLES = {
    "worst_group": "worst-group accuracy",
    "worst_group_auc": "worst-group AUC",
    "average": "average accuracy",
    "average_reweighted": "average accuracy, reweighted to training groups",
    "gap": "gap, average less worst group",
    "accuracy": "accuracy",
    "cosine": "cosine",
    "pair_distance": "distance of pairs",
    "max_skew": "MaxSkew of retrieval",
    "min_skew": "MinSkew of retrieval",
    "ndkl": "NDKL of retrieval",
    "precision": "profession precision",
    "query_cosine": "query cosine",
    "discrepancy": "discrepancy of generated images",
    "discrepancy_squared": "squared discrepancy, bias-corrected",
    "kl_from_uniform": "KL from uniform shares",
    "deviation_ratio": "deviation ratio",
    "recognised": "subject recognised",
    "stated_right": "stated attribute right",
    "stated_recognised": "subject recognised, attribute stated",
    "unknown": "not readable",
    "clip_score": "CLIPScore",
    "fid": "FID",
    "lpips": "LPIPS to the images of none",
    "dino": "DINO cosine to the images of none",
    "alpha": "Krippendorff's alpha",
    "percent_agreement": "pairs of answers that agree",
    "judge_agreement": "agreement with the automatic judge",
    "cannot_tell": "answered: cannot tell",
    "no_person": "answered: no person",
    "no_majority": "without a majority",
    "cosine_spread": "spread of cosines over the attribute",
    "regret": "share of the best gain missed",
    "missed": "share of the best gain in hindsight that is missed",
    "worse_than_none": "settings worse than none beyond the interval",
    "label_error": "wrong zero-shot labels",
    "signal_kept": "class signal kept",
}
AT_K = {
    "above_floor": "MaxSkew above a random ranking",
    "max_skew": "MaxSkew",
    "min_skew": "MinSkew",
    "ndkl": "NDKL",
    "recall": "recall",
    "precision": "precision",
}
UTILITY = (  # in the order in which a conclusion names them
    "average",
    "average_reweighted",
    "precision",
    "recall",
    "accuracy",
    "query_cosine",
    "image_cosine",
    "recognised",
    "stated_right",
    "stated_recognised",
    "clip_score",
    "fid",
    "lpips",
    "dino",
    "signal_kept",
    "unknown",
)


def label(row: Measurement, lam: bool = True, strength: bool = True) -> str:
    """The name of a row's method: "orth-cali, λ = 200", a dagger where it was given labels; "chance" of rankings."""
    words = ["chance" if row.method == CHANCE else row.method + (DAGGER if row.uses_labels else "")]
    if lam and row.lam is not None:
        words.append(f"λ = {row.lam:g}")
    if strength and row.strength is not None:
        words.append(f"strength {row.strength:g}")
    return ", ".join(words)


def metric_title(metric: str) -> str:
    """ "max_skew@1000" -> "MaxSkew@1000"; a name that is not known stays, with spaces."""
    name, at, k = metric.partition("@")
    if at:
        return f"{AT_K.get(name, name.replace('_', ' '))}@{k}"
    return TITLES.get(metric, metric.replace("_", " "))


def sentence(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]


def direction(row: Measurement) -> str:
    """ "higher is better", or nothing where neither is."""
    return f"{row.better} is better" if row.better in ("higher", "lower") else ""


def is_utility(metric: str) -> bool:
    """Whether a measure says what a method costs rather than how biased it is."""
    return metric.partition("@")[0] in UTILITY


def number(row: Measurement) -> str:
    """ "0.474 [0.444, 0.506]"."""
    value, low, high = row.value, *row.interval
    digits = _digits(value)
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def change(row: Measurement) -> str:
    """ "+0.443 [+0.410, +0.475]", the paired difference to none; "" where there is none."""
    if row.change is None:
        return ""
    value, low, high = row.change
    digits = _digits(row.value)
    return f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def _digits(value: float) -> int:
    return 3 if abs(value) < 10 else 1


def verdict(row: Measurement) -> str:
    """better or worse where the interval of the paired difference excludes zero, else unclear; same if none moved."""
    return "" if row.change is None else verdict_on(row.change, row.better)


def verdict_on(difference: tuple[float, float, float], better: str) -> str:
    """The verdict on a difference (value, low, high); "changed" where neither "higher" nor "lower" is better."""
    _, low, high = difference
    if low <= 0 <= high:
        return "same" if low == high else "unclear"
    if better not in ("higher", "lower"):
        return "changed"
    return "better" if (low > 0) == (better == "higher") else "worse"
