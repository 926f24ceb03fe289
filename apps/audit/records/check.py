"""Recompute a record's results, and compare them with the stored and published ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .figures import UNKNOWN, figures_of
from .schema import Figure, Published, Record

# Stored results are not rounded, but the order of summation may vary between processors.
ROUNDING = 1e-9


def problems_of(record: Record) -> list[str]:
    """Return a list with a sentence for each problem in a record.

    Problems are results that do not follow from the counts, published numbers that the counts do
    not reproduce, more labels than images, and measured records with missing details about the
    model or the judge.
    """
    return [
        *_wrong_figures(record),
        *_wrong_published(record),
        *_wrong_labels(record),
        *_missing_origin(record),
    ]


def with_figures(record: Record) -> Record:
    """Return a copy of a record with results that are recomputed from its counts."""
    return record.model_copy(update={"figures": figures_of(record)})


def recomputed(record: Record, published: Published) -> float | None:
    """Recompute a published number from a record's counts.

    Args:
        record: the counts by subject and value.
        published: the published number.

    Returns:
        The recomputed number, or None if the counts do not determine it.
    """
    if published.subject is None:
        for figure in figures_of(record):
            key = (figure.metric, figure.value, figure.qualifier)
            if key == (published.metric, published.value, published.qualifier):
                return figure.estimate
        return None
    for row in record.counts:
        if (row.subject, row.qualifier) != (published.subject, published.qualifier):
            continue
        known = sum(row.counts)
        if published.metric == "share" and known:
            return row.counts[record.values.index(published.value)] / known
        if published.metric == "unknown" and row.unknown is not None:
            return row.unknown / (known + row.unknown)
    return None


def _wrong_figures(record: Record) -> Iterator[str]:
    """Yield a sentence for each stored result that differs from the recomputed one."""

    def key(figure: Figure) -> tuple[str, str, str]:
        return figure.metric, figure.value, figure.qualifier

    stored = {key(figure): figure for figure in record.figures}
    computed = {key(figure): figure for figure in figures_of(record)}
    for name, figure in computed.items():
        words = " ".join(filter(None, name))
        if name not in stored:
            yield f"figures: {words} is missing; expected {figure.estimate:.4f}"
            continue
        numbers = figure.model_dump(exclude={"metric", "value", "qualifier"})
        for field, expected in numbers.items():
            received = getattr(stored[name], field)
            # Use `not <=`, because NaN must count as wrong and `NaN > ROUNDING` is False.
            if not abs(received - expected) <= ROUNDING:
                yield (
                    f"figures: {words}: got {field} {received:.6g}; the counts give {expected:.6g}"
                )
    for name in stored.keys() - computed.keys():
        yield f"figures: {' '.join(filter(None, name))} does not follow from the counts"


def _wrong_published(record: Record) -> Iterator[str]:
    """Yield a sentence for each published number that the counts do not reproduce."""
    if not record.counts:
        return
    for published in record.published:
        value = recomputed(record, published)
        parts = (published.metric, published.value, published.subject, published.qualifier)
        words = " ".join(filter(None, parts))
        if value is None:
            yield f"published: the counts do not determine {words}"
        elif not abs(value - published.figure) <= published.tolerance + ROUNDING:
            yield (
                f"published: {words}: the source prints {published.figure:g}; the counts give"
                f" {value:.4f}"
            )


def _wrong_labels(record: Record) -> Iterator[str]:
    """Yield a sentence for each of the judge's answers that has more labels than images."""
    images: Counter[tuple[str, str]] = Counter()
    for row in record.counts:
        for value, count in zip(record.values, row.counts, strict=True):
            images[row.qualifier, value] += count
        images[row.qualifier, UNKNOWN] += row.unknown or 0
    labels: Counter[tuple[str, str]] = Counter()
    for label in record.labels:
        labels[label.qualifier, label.judged] += sum(label.counts) + label.unknown
    for key, number in labels.items():
        if number > images[key]:
            words = " ".join(filter(None, key))
            yield (
                f"labels: got {number} for {words}, but only {images[key]} images have this answer"
            )


def _missing_origin(record: Record) -> Iterator[str]:
    """Yield a sentence for each missing detail about a measured record's model and judge."""
    if record.origin != "measured" or record.judge is None:
        return
    if record.model.weights is None and record.model.pipeline is None:
        yield "model: expected the digest of the weights, or the API in `pipeline`"
    if record.judge.kind == "model" and record.judge.fingerprint is None:
        yield "judge: expected a fingerprint"
    if any(row.unknown is None for row in record.counts):
        yield "counts: expected the number of images with unknown value for each prompt"
