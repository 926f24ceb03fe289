"""Predict the shares of an attribute's values in images from prompts alone.

A prompt's lean is its cosine with the direction between the attribute's values. A line from leans
to shares is fitted on prompts whose images were judged (the calibration).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vldebias.errors import InvalidInputError, need
from vldebias.prompts import PromptSet, fill
from vldebias.utils.arrays import Floats, Mask

from .line import (
    LEAST,
    LEVEL,
    Calibration,
    CountsSource,
    ShareLine,
    find_calibration,
    known_calibrations,
    read_counts,
    source_of,
    with_words,
)

if TYPE_CHECKING:
    import pandas as pd

SURE = 0.9  # minimum probability for reporting that a prompt leans to one side
MOST_MORE = 100  # maximum number of additional images that the audit recommends
FEWEST_EVEN = 64  # with fewer images, shares that look even may be far from it
FORM = "A photo of a {concept}."  # template for calibrations that list concepts
_ARTICLE = r"((an?|the)\s+)?"
# Words around a subject that do not change who is shown. Paintings are not included, because the
# counts are for photographs.
_FRAME = re.compile(
    rf"^{_ARTICLE}(photo|photograph|picture|image|portrait)\s+of\s+(the\s+face\s+of\s+)?{_ARTICLE}"
    rf"|^{_ARTICLE}|(?<![\s.])[\s.]+$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TextSource:
    """A model or table from which an audit reads text embeddings.

    Attributes:
        embed: a function from n prompts to their unit embeddings (n, d).
        model: name of the model that embeds the prompts.
        fingerprint: fingerprint of the model's weights, or None.
        texts: the prompts that can be embedded. If None, all prompts.
    """

    embed: Callable[[list[str]], Floats]
    model: str
    fingerprint: dict[str, object] | None = None
    texts: Collection[str] | None = None


@dataclass(frozen=True)
class Prediction:
    """The prediction for k values and n prompts, from one model's counts.

    Attributes:
        values: names (k,) of the values.
        shares: share, lower and upper end (3, k, n); NaN if nothing is predicted.
        chance: probability (k, n) that more than an equal share of the images shows the value.
        covered: whether each prompt (n,) is close enough to the judged prompts to be predicted.
        lines: lines (k,), one per value; empty if too few prompts were judged.
        judged: prompts and concepts in the calibration table.
        n_judged: number of prompts and concepts in `judged` that could be embedded.
        model: name of the model that embeds the prompts.
        calibration: the packaged counts, or None for the user's own counts.
        fingerprint: fingerprint of the model's weights.
        source: name of the counts in reports.
        n_images: prompt position -> number of judged images, for prompts with a judged subject.
    """

    values: list[str]
    shares: Floats
    chance: Floats
    covered: Mask
    lines: list[ShareLine]
    judged: list[str]
    n_judged: int
    model: str
    calibration: Calibration | None
    fingerprint: dict[str, object] | None
    source: str
    n_images: dict[int, int]

    @property
    def r2(self) -> float:
        """Return the out-of-sample R2 for the first value's shares, or 0 if there is no line."""
        return self.lines[0].r2 if self.lines else 0.0

    @property
    def is_explained(self) -> bool:
        """Return whether text embeddings predict better than the mean share."""
        return self.r2 > 0

    def side(self, place: int) -> int:
        """Return the position of the value that has the largest share for a prompt."""
        return int(self.shares[0, :, place].argmax())

    def is_known(self, place: int) -> bool:
        """Return whether a prompt's share was counted, or is predicted by a line that covers it."""
        return place in self.n_images or (self.is_explained and bool(self.covered[place]))

    @property
    def source_name(self) -> str:
        """Return the name of the packaged counts, or "" for the user's own counts."""
        return "" if self.calibration is None else self.calibration.name

    @property
    def is_of_model(self) -> bool:
        """Return whether the counts are for the audited model, or were provided by the user."""
        return self.calibration is None or self.calibration.is_of(self.model)

    @property
    def own_images(self) -> dict[int, int]:
        """Return the number of the user's own judged images, by prompt position."""
        return self.n_images if self.calibration is None else {}

    def is_sure(self, side: int, place: int) -> bool:
        """Return whether a prompt clearly leans to a value.

        A line fitted to few judged prompts has intervals of [0, 1] even if the probability is high.
        In this case, no prompt is considered to lean.

        Args:
            side: position of the value.
            place: position of the prompt.
        """
        equal_share = 1 / len(self.values)
        low = self.shares[1, side, place]
        # The intervals of counted shares are exact.
        is_likely = place in self.n_images or self.chance[side, place] >= SURE
        return bool(is_likely and low > equal_share)


def is_clearly_above(share: float, hits: int, n: int) -> bool:
    """Return whether the exact interval of the number of hits lies above a share.

    For a share of one half, this requires at least six images that all show the value.

    Args:
        share: the share under the null hypothesis.
        hits: number of images that show the value.
        n: number of images.
    """
    return exact_interval(hits, n)[0] > share


def exact_interval(hits: int, n: int) -> tuple[float, float]:
    """Return the interval of a share by Clopper and Pearson (1934), at LEVEL.

    Wilson's interval already excludes one half after four images that all show the same value,
    which happens by chance in one of eight cases.

    Args:
        hits: number of images that show the value.
        n: number of images.
    """
    quantile = need("scipy.special").betaincinv
    tail = (1 - LEVEL) / 2
    low = quantile(hits, n - hits + 1, tail) if hits else 0.0
    high = quantile(hits + 1, n - hits, 1 - tail) if hits < n else 1.0
    return float(low), float(high)


def images_to_settle(share: float, n: int, equal_share: float) -> int | None:
    """Return how many more images make a lean clear, if the value's share stays the same.

    Args:
        share: share of the images that show the value.
        n: number of images so far.
        equal_share: the share of each value if all are equally frequent.

    Returns:
        The number of additional images, or None if MOST_MORE are not enough.
    """
    for more in range(1, MOST_MORE + 1):
        # Tolerate rounding, since 7/8 of 16 images must be 14.
        hits = int(share * (n + more) + 1e-9)
        if is_clearly_above(equal_share, hits, n + more):
            return more
    return None


def predict(
    source: TextSource,
    prompts: Sequence[str],
    attribute: PromptSet,
    calibration: CountsSource | None,
) -> list[Prediction]:
    """Predict the shares for n prompts from the counts for one or several models.

    If images of a prompt's subject were judged, its share is counted. Otherwise, it is predicted by
    a line from leans to shares.

    Args:
        source: the model or table that embeds prompts.
        prompts: n distinct prompts.
        attribute: the attribute's prompt set.
        calibration: a name in `CALIBRATIONS`, or a source for `read_counts`. If None, the packaged
            counts for this model are used or, if there are none, the counts for every plain model.

    Returns:
        One prediction per source of counts.

    Raises:
        InvalidInputError: If the calibration is invalid, or a prompt cannot be embedded.
    """
    calibrations: list[CountsSource]
    if calibration is None:
        calibrations = [*known_calibrations(source.model)]
    elif isinstance(calibration, str | Path):
        calibrations = [find_calibration(calibration)]
    else:
        calibrations = [calibration]
    counts_of_calibration = [read_counts(item, attribute) for item in calibrations]
    value_directions = directions(source, attribute)
    rows = source.embed(list(prompts))
    predictions = []
    for counted, counts in zip(calibrations, counts_of_calibration, strict=True):
        judged = _embeddable(counts, source.texts)
        judged_rows = rows[:0]
        if len(judged):
            judged_rows = source.embed(list(judged.index))
        # Compute the leans to each value: (k, n) for the prompts, and (k, m) for judged ones.
        leans = (rows @ value_directions.T).T
        judged_leans = (judged_rows @ value_directions.T).T
        places = _places_of_judged(prompts, counts)
        lines = []
        shares = np.full((3, len(counts.columns), len(prompts)), np.nan)
        chance = np.full(shares.shape[1:], np.nan)
        covered = np.zeros(len(prompts), bool)
        # A pilot with few prompts has counts, but they are not enough to fit lines.
        if len(judged) >= LEAST or not places:
            judged_shares = judged.div(judged.sum(axis=1), axis=0).to_numpy().T
            lines = list(map(ShareLine, judged_leans, judged_shares))
            shares, chance = _on_lines(lines, leans)
            covered = _covered(rows, judged_rows, leans, judged_leans)
        n_images = {}
        for place, row in places.items():
            shares[:, :, place] = _counted(counts.iloc[row].tolist())
            covered[place] = True
            n_images[place] = int(counts.iloc[row].sum())
        predictions.append(
            Prediction(
                values=list(counts),
                shares=shares,
                chance=chance,
                covered=covered,
                lines=lines,
                judged=list(counts.index),
                n_judged=len(judged),
                model=source.model,
                calibration=counted if isinstance(counted, Calibration) else None,
                fingerprint=source.fingerprint,
                source=source_of(counted),
                n_images=n_images,
            )
        )
    return predictions


def _places_of_judged(prompts: Sequence[str], counts: pd.DataFrame) -> dict[int, int]:
    """Map the position of each prompt whose subject was judged to its row in `counts`."""
    row_of_text = {text.casefold(): row for row, text in enumerate(counts.index)}
    row_of_subject = {subject(text): row for row, text in enumerate(counts.index)}
    places = {}
    for place, prompt in enumerate(prompts):
        # A row for the prompt itself takes precedence over a row with the same subject.
        row = row_of_text.get(prompt.casefold(), row_of_subject.get(subject(prompt)))
        if row is not None:
            places[place] = row
    return places


def _counted(counts: Sequence[float]) -> Floats:
    """Return shares and their exact intervals (3, k) for the number of images per value."""
    total = sum(counts)
    # Counts may be fractional, because tables may weight images.
    n = max(round(total), 1)
    columns = []
    for count in counts:
        share = count / total
        low, high = exact_interval(round(share * n), n)
        columns.append((share, min(low, share), max(high, share)))
    return np.array(columns).T


def _on_lines(lines: Sequence[ShareLine], leans: Floats) -> tuple[Floats, Floats]:
    """Return the shares and intervals (3, k, n) and probabilities (k, n) predicted by k lines."""
    parity = 1 / len(lines)
    shares_of_value = []
    ends_of_value = []
    chances_of_value = []
    for line, leans_to_value in zip(lines, leans, strict=True):
        shares_of_value.append(line.at(leans_to_value))
        ends_of_value.append(line.interval(leans_to_value))
        chances_of_value.append(line.chance(leans_to_value, parity))
    share = np.stack(shares_of_value)
    # The lines are fitted separately for each value, so normalise the shares for each prompt.
    share = share / np.maximum(share.sum(0), 1e-12)
    # Normalisation may move a share out of its interval, so widen the interval if necessary.
    ends = np.stack(ends_of_value)  # (k, 2, n)
    low = np.minimum(ends[:, 0], share)
    high = np.maximum(ends[:, 1], share)
    return np.stack([share, low, high]), np.stack(chances_of_value)


def subject(text: str) -> str:
    """Return a prompt's subject, such as "nurse" for "A photo of the face of a nurse."."""
    return _FRAME.sub("", text.strip()).casefold()


def directions(source: TextSource, prompt_set: PromptSet) -> Floats:
    """Return a unit direction for each value (k, d).

    Each direction is the mean embedding of the prompts that state the value, minus the mean over
    values.

    Args:
        source: the model or table that embeds text.
        prompt_set: the attribute's prompt set.

    Raises:
        InvalidInputError: If, for some value, no prompt states this value alone.
    """
    texts = list(chain(prompt_set.spurious, *prompt_set.variants))
    if source.texts is not None:
        texts = [text for text in texts if text in source.texts]
    # Only use prompts that state a single value, because "a man and a woman" does not point to
    # either of them.
    texts_of_value = with_words(prompt_set).by_value(texts)
    missing = [value for value, group in texts_of_value.items() if not group]
    if missing:
        raise InvalidInputError(
            f"{prompt_set.name}: no embedded prompt states only {' or '.join(missing)}; embed all"
            " prompts in the prompt set"
        )
    rows = np.stack([source.embed(list(group)).mean(0) for group in texts_of_value.values()])
    # Subtract the mean over values, to remove what all prompts share ("a photo of a person").
    rows -= rows.mean(0)
    # If all values have the same embedding, the directions are zero.
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _embeddable(table: pd.DataFrame, texts: Collection[str] | None) -> pd.DataFrame:
    """Return the calibration rows that can be embedded, indexed by prompt."""
    # Calibration prompts are used unchanged; concepts are inserted into `FORM`.
    forms = []
    for text in table.index:
        is_prompt = subject(text) != text.casefold() or len(text.split()) > 3
        forms.append(text if is_prompt else fill(FORM, concept=text))
    can_embed = [texts is None or text in texts for text in forms]
    return table.set_axis(forms)[can_embed]


def _covered(rows: Floats, judged_rows: Floats, leans: Floats, judged_leans: Floats) -> Mask:
    """Return whether the judged prompts cover each prompt (n,).

    A prompt is covered if it is as close to a judged prompt as judged prompts are to each other,
    and its leans are within their range.

    Args:
        rows: embeddings (n, d).
        judged_rows: embeddings (m, d) of the judged prompts.
        leans: leans (k, n) to each value.
        judged_leans: leans (k, m) of the judged prompts.
    """
    cosines = judged_rows @ judged_rows.T
    np.fill_diagonal(cosines, -1)
    # Use the most isolated judged prompt as the limit. For prompts that are further away, the line
    # would be extrapolated.
    least = cosines.max(1).min()
    is_near = (rows @ judged_rows.T).max(1) >= least - 1e-9
    is_above = judged_leans.min(1, keepdims=True) <= leans
    is_below = judged_leans.max(1, keepdims=True) >= leans
    return is_near & (is_above & is_below).all(0)
