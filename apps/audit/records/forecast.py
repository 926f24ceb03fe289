"""Predict what a model's images will show for prompts that were not measured, based on records.

If the model has counts for other subjects, a line is fitted from the mean share in the other models
to the share in this model, with jackknife+ intervals over subjects. For a new model, the prediction
is the mean of the other models, with an interval based on how far each model is from the mean of
the rest. The coverage of the intervals is checked on known shares by leaving out one subject or one
model at a time. Nothing is predicted unless this check shows that the intervals are wide enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import NormalDist

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import Interval, wilson_interval

from ..line import LEAST, LEVEL, ShareLine
from .schema import NEUTRAL, Record

# Coverage is considered sufficient if the lower end of its own 95% interval is at least this high.
SHOWN = 0.8
# Minimum number of other models that must have counts for a subject before their mean is used.
OTHERS = 2
TOY = "miniature"
HALF = 0.5
NARROW = 0.05  # shares that are closer to one half are treated as if they were this far away
Shares = Mapping[str, float]


@dataclass(frozen=True)
class Coverage:
    """How often intervals contained held-out shares.

    Attributes:
        covered, tried: number of held-out units that their intervals covered, and number of
            held-out units in total.
        unit: what was left out one at a time, "subjects" or "models".
        width: mean width of the intervals.
    """

    covered: float
    tried: int
    unit: str
    width: float

    @property
    def interval(self) -> tuple[float, float]:
        """Return the Wilson interval of the coverage, or [0, 1] if nothing could be held out."""
        if not self.tried:
            return 0.0, 1.0
        return wilson_interval(self.covered, self.tried)

    @property
    def is_shown(self) -> bool:
        """Return whether the coverage is known to be high enough to report intervals."""
        return self.interval[0] >= SHOWN


@dataclass(frozen=True)
class Forecast:
    """The counted or predicted share for one prompt.

    Attributes:
        subject: subject of the prompt.
        kind: "counted", "predicted", or "abstains" if nothing is predicted.
        share, low, high: share of the value with its 95% interval, or None if nothing is predicted.
        other_models: mean share over the other models, or None if fewer than OTHERS of them have
            counts for the subject.
        images: number of images needed to decide whether more than half show the value, assuming
            that the estimated share is correct. It is 0 if the interval is already sufficient, and
            None if there is no estimate.
        reason: why nothing is predicted.
    """

    subject: str
    kind: str
    share: float | None
    low: float | None
    high: float | None
    other_models: float | None
    images: int | None
    reason: str = ""


def known_models(
    records: Sequence[Record], attribute: str, value: str
) -> dict[str, dict[str, tuple[int, int]]]:
    """Return counts by model and subject: images that show a value, and images with a known value.

    Only the neutral wording is counted. Debiased models are excluded, as is the miniature, because
    its images are drawings. If several records of a model contain a subject, the record with the
    most subjects is used.

    Args:
        records: records of any models, as read from files.
        attribute: the attribute, such as "gender".
        value: the value, such as "female".
    """
    fitting = []
    for record in records:
        is_of_attribute = record.attribute == attribute and value in record.values
        is_toy = TOY in (record.model.id, record.model.name)
        if is_of_attribute and record.model.is_plain and not is_toy:
            fitting.append(record)
    fitting.sort(key=lambda record: -len(record.counts))
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    for record in fitting:
        place = record.values.index(value)
        for row in record.counts:
            known = sum(row.counts)
            if row.qualifier == NEUTRAL and known:
                subjects = counts.setdefault(record.model.name, {})
                subjects.setdefault(row.subject.casefold(), (row.counts[place], known))
    return counts


def shares_of(counts: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Return the share for each subject."""
    return {subject: hits / known for subject, (hits, known) in counts.items()}


def mean_of_others(models: Mapping[str, Shares], left_out: str | None) -> dict[str, float]:
    """Return each subject's mean share over the other models.

    Subjects with counts for fewer than OTHERS of these models are omitted.

    Args:
        models: model -> subject -> share.
        left_out: model to leave out. If None, all models are used.
    """
    shares_of_subject: dict[str, list[float]] = defaultdict(list)
    for model, share_of_subject in models.items():
        if model != left_out:
            for subject, share in share_of_subject.items():
                shares_of_subject[subject].append(share)
    means = {}
    for subject, shares in shares_of_subject.items():
        if len(shares) >= OTHERS:
            means[subject] = float(np.mean(shares))
    return means


def line_of_model(models: Mapping[str, Shares], model: str) -> ShareLine | None:
    """Fit a line from the mean shares in the other models to the shares in a model.

    Args:
        models: model -> subject -> share.
        model: name of the model whose shares are fitted.

    Returns:
        The line, or None if fewer than LEAST subjects have both shares or all means are equal.
    """
    means = mean_of_others(models, model)
    shared = [subject for subject in models[model] if subject in means]
    x = np.array([means[subject] for subject in shared])
    y = np.array([models[model][subject] for subject in shared])
    if len(x) < LEAST or np.ptp(x) < 1e-9:
        return None
    return ShareLine(x, y)


def coverage_over_subjects(line: ShareLine | None) -> Coverage:
    """Return how often a line fitted without a subject gives an interval that covers its share."""
    if line is None or len(line.x) <= LEAST:
        return Coverage(0, 0, "subjects", 1.0)
    covered = 0
    widths = []
    for place in range(len(line.x)):
        is_rest = np.arange(len(line.x)) != place
        if np.ptp(line.x[is_rest]) < 1e-9:
            continue
        line_of_rest = ShareLine(line.x[is_rest], line.y[is_rest])
        low, high = line_of_rest.interval(line.x[[place]])
        covered += int(low[0] - 1e-9 <= line.y[place] <= high[0] + 1e-9)
        widths.append(float(high[0] - low[0]))
    width = float(np.mean(widths)) if widths else 1.0
    return Coverage(covered, len(widths), "subjects", width)


def error_of_models(models: Mapping[str, Shares]) -> float | None:
    """Return the LEVEL quantile of the distances between shares and the means of the other models.

    The result is None if no models can be compared.
    """
    distances: list[float] = []
    for model, shares in models.items():
        means = mean_of_others(models, model)
        distances += [abs(shares[subject] - means[subject]) for subject in shares.keys() & means]
    if not distances:
        return None
    return float(np.quantile(distances, LEVEL, method="higher"))


def coverage_over_models(models: Mapping[str, Shares]) -> Coverage:
    """Return how often intervals from other models contain a held-out model's shares.

    The unit is the model, since errors for subjects of the same model are correlated. `covered` is
    the sum over models of the proportion of subjects inside the interval.
    """
    covered = 0.0
    tried = 0
    widths = []
    for model, shares in models.items():
        rest = {name: models[name] for name in models if name != model}
        error = error_of_models(rest)
        means = mean_of_others(rest, None)
        subjects = shares.keys() & means
        if error is None or not subjects:
            continue
        near = [abs(shares[subject] - means[subject]) <= error + 1e-9 for subject in subjects]
        covered += float(np.mean(near))
        tried += 1
        for subject in subjects:
            widths.append(min(1.0, means[subject] + error) - max(0.0, means[subject] - error))
    return Coverage(covered, tried, "models", float(np.mean(widths)) if widths else 1.0)


def images_to_settle(share: float) -> int:
    """Return the number of images needed to decide whether more than half of them show a value.

    If the observed share equals `share`, the 95% Wilson interval for this number of images excludes
    one half. Shares closer than NARROW to one half are treated as if they were NARROW away.

    >>> images_to_settle(1.0), images_to_settle(0.6), images_to_settle(0.5)
    (4, 97, 385)
    """
    distance = max(abs(share - HALF), NARROW)
    z = NormalDist().inv_cdf(0.975)
    return ceil(HALF * (1 - HALF) * (z / distance) ** 2)


def forecast(
    records: Sequence[Record],
    subjects: Sequence[str],
    *,
    attribute: str,
    value: str,
    model: str,
) -> tuple[list[Forecast], Coverage]:
    """Predict the share of images that show a value, for some prompts.

    Args:
        records: the records to predict from.
        subjects: prompt subjects, such as "nurse".
        attribute: the attribute, such as "gender".
        value: the value, such as "female".
        model: name of a model in the records, or of an unmeasured model.

    Returns:
        One forecast per subject, and the coverage of the intervals if one subject (for a model with
        counts) or one model (for a new model) is left out at a time.

    Raises:
        InvalidInputError: If no record has this attribute and value.
    """
    known = {(record.attribute, name) for record in records for name in record.values}
    if (attribute, value) not in known:
        expected = sorted({f"{record.attribute}: {list(record.values)}" for record in records})
        raise InvalidInputError(
            f"got {attribute} {value!r}; expected an attribute and a value from the records:"
            f" {expected}"
        )
    counts = known_models(records, attribute, value)
    models = {name: shares_of(counts_of_subject) for name, counts_of_subject in counts.items()}
    means = mean_of_others(models, model)
    line = None
    if model in models:
        line = line_of_model(models, model)
        coverage = coverage_over_subjects(line)
    else:
        coverage = coverage_over_models(models)
    error = error_of_models(models)
    forecasts = []
    for subject in subjects:
        key = subject.casefold()
        mean = means.get(key)
        interval = None
        kind = "predicted"
        reason = ""
        if key in counts.get(model, {}):
            kind = "counted"
            hits, n = counts[model][key]
            interval = Interval(hits / n, *wilson_interval(hits, n))
        elif mean is None:
            reason = f"fewer than {OTHERS} other models have counts for this subject"
        elif not coverage.is_shown:
            reason = _why_not(coverage)
        else:
            interval = _predicted(mean, line, error)
        if interval is None:
            kind = "abstains"
        share, low, high = interval or (None, None, None)
        images = _images_to_decide(interval, mean)
        forecasts.append(Forecast(subject, kind, share, low, high, mean, images, reason))
    return forecasts, coverage


def _predicted(mean: float, line: ShareLine | None, error: float | None) -> Interval | None:
    """Predict a share from the mean of the other models, with a line if there is one."""
    if line is not None:
        x = np.array([mean])
        low, high = line.interval(x)
        return Interval(float(line.at(x)[0]), float(low[0]), float(high[0]))
    if error is not None:
        return Interval(mean, max(0.0, mean - error), min(1.0, mean + error))
    return None


def _images_to_decide(interval: Interval | None, mean: float | None) -> int | None:
    """Return `Forecast.images`, based on the interval or the mean of the other models."""
    if interval is None:
        return None if mean is None else images_to_settle(mean)
    if interval.low <= HALF <= interval.high:
        return images_to_settle(interval.value)
    return 0


def _why_not(coverage: Coverage) -> str:
    """Return the reason why intervals are not reported."""
    if not coverage.tried:
        return "too few counts to check the coverage of intervals"
    low, high = coverage.interval
    return (
        f"intervals covered {coverage.covered / coverage.tried:.0%} [{low:.0%}, {high:.0%}] of"
        f" {coverage.tried} held-out {coverage.unit}, so their coverage may be below {SHOWN:.0%}"
    )
