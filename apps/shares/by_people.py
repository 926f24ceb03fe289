"""Summarise human labels in sentences.

The sentences describe who appears in the images, the judge's errors, annotator agreement, and how
many more labels would halve the interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vldebias.report.strip import row_title
from vldebias.utils.phrases import counted, listed_words, persons

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.measure.classification import Agreement

MOST_ERRORS = 3  # maximum number of confusions listed


def who_appears(images: pd.DataFrame, values: Sequence[str]) -> list[str]:
    """Return a sentence for each method on the share of each value among labelled images.

    Args:
        images: one row per labelled image, with its method, the majority label (`people`) and the
            inverse probability of being labelled (`weight`).
        values: attribute values.
    """
    sentences = []
    for method, rows in images.groupby("method", sort=False):
        known = rows[rows.people.isin(values)]
        # Use inverse probability weights, so that images that were more likely to be labelled do
        # not count more.
        total = known.weight.sum()
        shares = {value: known.weight[known.people == value].sum() for value in values}
        largest = sorted(shares.items(), key=lambda pair: -pair[1])
        words = [f"{share / total:.0%} {persons(value)}" for value, share in largest if share]
        unclear = len(rows) - len(known)
        of_images = f"{len(rows)} labelled images" + (f", {unclear} unclear" if unclear else "")
        seen = listed_words(words) or "nobody"
        sentences.append(f"{row_title(str(method)).capitalize()}: people see {seen} ({of_images}).")
    return sentences


def how_the_judge_errs(images: pd.DataFrame, values: Sequence[str], judge: str) -> str:
    """Return a sentence on how often a judge agrees with people, and its most common confusions.

    Args:
        images: one row per labelled image, with the majority label (`people`) and the judge's
            label (`value`).
        values: attribute values.
        judge: name of the judge, as shown in the sentence.
    """
    known = images[images.people.isin(values)]
    right = int((known.people == known.value).sum())
    start = f"The judge ({judge}) agrees with people on {right} of {len(known)} images"
    # Count images by human and judge label, and list the most common confusions.
    pairs = known.groupby(["people", "value"]).size().sort_values(ascending=False, kind="stable")
    confused: list[str] = []
    unclear: list[str] = []
    for (person, answer), count in pairs.items():
        if person == answer or len(confused) + len(unclear) == MOST_ERRORS:
            continue
        size = int((known.people == person).sum())
        shown = f"{count} of {counted(size, person)}"
        if answer in values:
            confused.append(f"{shown} for {persons(answer)}")
        else:
            unclear.append(shown)
    clauses = []
    if confused:
        clauses.append(f"it mistakes {listed_words(confused)}")
    if unclear:
        clauses.append(f"it cannot label {listed_words(unclear)}")
    return f"{'; '.join([start, *clauses])}."


def how_people_agree(agreed: Agreement, annotators: int) -> str:
    """Return a sentence on how well annotators agree about images that several of them labelled.

    Args:
        agreed: annotator agreement.
        annotators: number of annotators.
    """
    percent = agreed.percent
    alpha = agreed.alpha
    return (
        f"{annotators} annotators give the same answer in {percent.value:.0%}"
        f" [{percent.low:.0%}, {percent.high:.0%}] of pairs about {agreed.units} images"
        f" (Krippendorff's alpha {alpha.value:.2f} [{alpha.low:.2f}, {alpha.high:.2f}])."
    )


def more_labels(labels: Mapping[str, int | str]) -> str:
    """Return a sentence on how many more labels would halve the interval.

    `labels` maps each method to a number of labels, or to a message if no number is sufficient.
    """
    # Strings are messages that no number of labels is sufficient.
    numbers = {method: count for method, count in labels.items() if isinstance(count, int)}
    if len(numbers) < len(labels):
        return "To halve the interval, generate more images: labelling all of these is not enough."
    parts = [f"{count} {row_title(method)}" for method, count in numbers.items()]
    total = sum(numbers.values())
    return f"Label {total} more images to halve the interval: {listed_words(parts)}."
