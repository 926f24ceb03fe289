"""Predict what prompts will show on a model that was not measured on them, from records of others.

Two questions have different answers. Other *subjects* of a model that has counts: a line from the
mean share of the other models to the share of this one, with jackknife+ intervals over subjects.
Another *model*: the mean of the others, with an interval from how far each model lies from the mean
of the rest. Both are tried on what is known, leaving one subject or one model out. Where this
does not show that the intervals hold, nothing is predicted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import NormalDist

import numpy as np

from vldebias.auditing.line import LEAST, LEVEL, ShareLine
from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import wilson_interval
from vldebias.records.schema import NEUTRAL, Record

# Coverage is shown if the lower end of its own 95 % interval is this high.
SHOWN = 0.8
# Models that a subject needs, besides the one that is predicted, for a mean.
OTHERS = 2
TOY = "miniature"
HALF = 0.5
NARROW = 0.05  # distance from one half below which a prompt counts as even
Shares = Mapping[str, float]


@dataclass(frozen=True)
class Coverage:
    """Hold how often intervals contained shares that were left out.

    Attributes:
        inside, tried: number of held-out units inside their intervals, and of all.
        unit: what was left out one at a time, "subjects" or "models".
        width: mean width of the intervals.
    """

    inside: float
    tried: int
    unit: str
    width: float

    @property
    def interval(self) -> tuple[float, float]:
        """Return Wilson's interval of the coverage; all of [0, 1] if nothing could be tried."""
        if not self.tried:
            return 0.0, 1.0
        return wilson_interval(self.inside, self.tried)

    @property
    def is_shown(self) -> bool:
        """Return whether the coverage is known to be high enough to print intervals."""
        return self.interval[0] >= SHOWN


@dataclass(frozen=True)
class Forecast:
    """Hold what is known about one prompt.

    Attributes:
        subject: what the prompt asks for.
        kind: "counted", "predicted", or "abstains".
        share, low, high: share of the value with its 95 % interval; None if nothing is predicted.
        other_models: mean share of the other models; None if fewer than OTHERS counted the subject.
        images: number of images that would settle whether more or less than half show the value,
            if the best guess is right; 0 if the interval settles it, None without a guess.
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
    records: Sequence[Record], attribute: str, value: str, qualifier: str = NEUTRAL
) -> dict[str, dict[str, tuple[int, int]]]:
    """Return model -> subject -> images that show a value, and images of known value.

    Only models as released are used, and not the embedded one, whose pictures are drawings. If
    several records of a model counted a subject, the record with more subjects is used.
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
            if row.qualifier == qualifier and known:
                subjects = counts.setdefault(record.model.name, {})
                subjects.setdefault(row.subject.casefold(), (row.counts[place], known))
    return counts


def shares_of(counts: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Return subject -> share."""
    return {subject: hits / known for subject, (hits, known) in counts.items()}


def mean_of_others(models: Mapping[str, Shares], left_out: str | None) -> dict[str, float]:
    """Return subject -> mean share over the models but one, for subjects that OTHERS of them
    counted."""
    shares: dict[str, list[float]] = defaultdict(list)
    for model, share_of_subject in models.items():
        if model != left_out:
            for subject, share in share_of_subject.items():
                shares[subject].append(share)
    return {s: float(np.mean(found)) for s, found in shares.items() if len(found) >= OTHERS}


def line_of_model(models: Mapping[str, Shares], model: str) -> ShareLine | None:
    """Return the line from the mean of the other models to a model's shares; None if too few
    subjects are known of both."""
    means = mean_of_others(models, model)
    shared = [subject for subject in models[model] if subject in means]
    x = np.array([means[subject] for subject in shared])
    y = np.array([models[model][subject] for subject in shared])
    if len(x) < LEAST or np.ptp(x) < 1e-9:
        return None
    return ShareLine(x, y)


def coverage_over_subjects(line: ShareLine | None) -> Coverage:
    """Return how often a line that leaves one subject out predicts an interval with its share."""
    if line is None or len(line.x) <= LEAST:
        return Coverage(0, 0, "subjects", 1.0)
    inside = 0
    widths = []
    for place in range(len(line.x)):
        kept = np.arange(len(line.x)) != place
        if np.ptp(line.x[kept]) < 1e-9:
            continue
        without = ShareLine(line.x[kept], line.y[kept])
        low, high = without.interval(line.x[[place]])
        inside += int(low[0] - 1e-9 <= line.y[place] <= high[0] + 1e-9)
        widths.append(float(high[0] - low[0]))
    width = float(np.mean(widths)) if widths else 1.0
    return Coverage(inside, len(widths), "subjects", width)


def error_of_models(models: Mapping[str, Shares]) -> float | None:
    """Return the distance from the mean of the others that LEVEL of the shares stay within; None
    if no two models can be compared."""
    distances: list[float] = []
    for model, shares in models.items():
        means = mean_of_others(models, model)
        distances += [abs(shares[subject] - means[subject]) for subject in shares.keys() & means]
    if not distances:
        return None
    return float(np.quantile(distances, LEVEL, method="higher"))


def coverage_over_models(models: Mapping[str, Shares]) -> Coverage:
    """Return how often the interval from the other models contains the shares of a model that was
    left out.

    The unit is the model, since the subjects of one model err together: `inside` is the sum over
    models of the part of their subjects inside.
    """
    inside = 0.0
    tried = 0
    widths = []
    for model, shares in models.items():
        rest = {name: known for name, known in models.items() if name != model}
        error = error_of_models(rest)
        means = mean_of_others(rest, None)
        subjects = shares.keys() & means
        if error is None or not subjects:
            continue
        near = [abs(shares[subject] - means[subject]) <= error + 1e-9 for subject in subjects]
        inside += float(np.mean(near))
        tried += 1
        for subject in subjects:
            widths.append(min(1.0, means[subject] + error) - max(0.0, means[subject] - error))
    return Coverage(inside, tried, "models", float(np.mean(widths)) if widths else 1.0)


def models_needed() -> int:
    """Return how many models could show the coverage of intervals that hold as often as LEVEL."""
    models = 1
    while wilson_interval(LEVEL * models, models)[0] < SHOWN:
        models += 1
    return models


def images_to_settle(share: float) -> int:
    """Return how many images of a prompt show whether more or less than half of them have a value.

    So many images give Wilson's 95 % interval that leaves one half out, if the share among them is
    as guessed. Shares within NARROW of one half count as NARROW away.

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
    qualifier: str = NEUTRAL,
) -> tuple[list[Forecast], Coverage]:
    """Predict the share of a value in the images of prompts.

    Args:
        records: what is known.
        subjects: what the prompts ask for, such as "nurse".
        attribute, value: what is predicted, such as "gender" and "female".
        model: as the records name it; another name is a model that was not measured.
        qualifier: wording of the prompts.

    Returns:
        One forecast per subject, and how often such intervals held when one subject (for a model
        with counts) or one model (for another one) was left out.

    Raises:
        InvalidInputError: no record has this attribute and value.
    """
    counts = known_models(records, attribute, value, qualifier)
    if not any(r.attribute == attribute and value in r.values for r in records):
        known = sorted({f"{record.attribute}: {list(record.values)}" for record in records})
        raise InvalidInputError(
            f"got {attribute} {value!r}; expected an attribute and value of the records: {known}"
        )
    models = {name: shares_of(subject_counts) for name, subject_counts in counts.items()}
    means = mean_of_others(models, model)
    if model in models:
        line = line_of_model(models, model)
        coverage = coverage_over_subjects(line)
    else:
        line = None
        coverage = coverage_over_models(models)
    error = error_of_models(models)
    forecasts = []
    for subject in subjects:
        key = subject.casefold()
        guess = means.get(key)
        share = low = high = None
        kind = "abstains"
        reason = ""
        if key in counts.get(model, {}):
            hits, known_images = counts[model][key]
            kind = "counted"
            share = hits / known_images
            low, high = wilson_interval(hits, known_images)
        elif guess is None:
            reason = f"fewer than {OTHERS} other models counted it"
        elif not coverage.is_shown:
            reason = _why_not(coverage)
        elif line is not None:
            kind = "predicted"
            x = np.array([guess])
            share = float(line.at(x)[0])
            low, high = (float(ends[0]) for ends in line.interval(x))
        elif error is not None:
            kind = "predicted"
            share = guess
            low, high = max(0.0, guess - error), min(1.0, guess + error)
        best = guess if share is None else share
        images = None if best is None else images_to_settle(best)
        if low is not None and high is not None and not low <= HALF <= high:
            images = 0
        forecasts.append(Forecast(subject, kind, share, low, high, guess, images, reason))
    return forecasts, coverage


def _why_not(coverage: Coverage) -> str:
    """Return why intervals are not printed."""
    if not coverage.tried:
        return "too few counts to try intervals on"
    low, high = coverage.interval
    held = coverage.inside / coverage.tried
    return (
        f"intervals held for {held:.0%} [{low:.0%}, {high:.0%}] of {coverage.tried} left-out"
        f" {coverage.unit}, which does not show {SHOWN:.0%} or more"
    )
