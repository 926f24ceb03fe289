"""Predict which shares of an attribute's values prompts will show, from their texts alone.

The lean of a text is its cosine with the direction between the attribute's values. A line from
leans to shares is fitted, in the space of the text encoder, on prompts whose images were judged
(the calibration).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from vldebias.auditing.line import (
    LEAST,
    LEVEL,
    Calibration,
    ShareLine,
    find_calibration,
    known_calibrations,
    read_counts,
    source_of,
    with_words,
)
from vldebias.errors import InvalidInputError
from vldebias.hosts import Host, resolve
from vldebias.hosts.loading import Loaded
from vldebias.measure.resampling import wilson_interval
from vldebias.prompts import PromptSet, fill

if TYPE_CHECKING:
    import pandas as pd

SURE = 0.9  # chance of a side from which on a prompt is said to lean
FORM = "A photo of a {concept}."  # how a calibration's concepts are asked for
_ARTICLE = r"((an?|the)\s+)?"
# Words around a subject that do not change what the counts are about: they are of photographs, and
# say nothing about paintings.
_FRAME = re.compile(
    rf"^{_ARTICLE}(photo|photograph|picture|image|portrait)\s+of\s+(the\s+face\s+of\s+)?{_ARTICLE}"
    rf"|^{_ARTICLE}|[\s.]+$",
    re.IGNORECASE,
)
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Prediction:
    """Hold what the counts of one model predict: k values of n prompts."""

    values: list[str]  # (k,) names
    shares: Floats  # (3, k, n): share, lower and upper end; NaN where nothing is predicted
    chance: Floats  # (k, n) probability that more than an equal share shows the value
    covered: Mask  # (n,) whether a prompt is among what the calibration knows
    lines: list[ShareLine]  # (k,); none where too few prompts were judged to fit one
    judged: list[str]  # prompts and concepts of the calibration, as its table has them
    n_judged: int  # how many of them could be embedded
    model: str  # what embedded the texts
    calibration: Calibration | None  # the counts that come with the package; None: a user's
    fingerprint: dict[str, Any] | None  # of its weights
    source: str  # what a report calls the counts
    n_images: dict[int, int]  # position of a prompt that was judged itself -> its judged images

    @property
    def r2(self) -> float:
        """Return how well the shares of the first value are predicted, out of sample; 0 without a
        line."""
        return self.lines[0].r2 if self.lines else 0.0

    @property
    def is_explained(self) -> bool:
        """Return whether texts predict better than one share for all prompts would."""
        return self.r2 > 0

    def side(self, place: int) -> int:
        """Return the position of the value that has the largest share of a prompt."""
        return int(self.shares[0, :, place].argmax())

    def is_known(self, place: int) -> bool:
        """Return whether a prompt has a share: counted, or predicted by a line that covers it."""
        return place in self.n_images or (self.is_explained and bool(self.covered[place]))

    @property
    def source_name(self) -> str:
        """Return the name of counts that come with the package, "" for the user's own."""
        return "" if self.calibration is None else self.calibration.name

    @property
    def is_of_model(self) -> bool:
        """Return whether the counts are of the audited model, or the user's own."""
        return self.calibration is None or self.calibration.is_of(self.model)

    def is_sure(self, side: int, place: int) -> bool:
        """Return whether more than an equal share of a prompt's images shows a value.

        A line fitted to few judged prompts has intervals of [0, 1], even where the chance is high:
        such a prompt is not said to lean.
        """
        equal_share = 1 / len(self.values)
        share, low, _ = self.shares[:, side, place]
        n = self.n_images.get(place)
        if n is None:
            is_likely = self.chance[side, place] >= SURE
        else:
            is_likely = is_clearly_above(equal_share, round(share * n), n)
        return bool(is_likely and low > equal_share)


def is_clearly_above(share: float, hits: int, n: int) -> bool:
    """Return whether so many hits among n images would be rare, at LEVEL, if the share were true.

    The exact two-sided test of the binomial. At an even share it asks for six images that are
    alike; Wilson's interval leaves out a half for four, which one chance in sixteen gives.
    """
    chances = [comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(hits, n + 1)]
    return sum(chances) <= (1 - LEVEL) / 2


def predict(
    loaded: Loaded,
    prompts: Sequence[str],
    attribute: PromptSet,
    calibration: pd.DataFrame | str | Path | None,
    texts: Mapping[str, Any] | None = None,
) -> list[Prediction]:
    """Return the shares of n prompts by the counts of one model, or of several where none of them
    is the user's.

    The share of a prompt whose subject was judged is that of its images; of another one it is what
    a line from texts to shares predicts.

    Args:
        loaded: the model or pipeline that embeds texts, or a mapping from prompt to embedding.
        prompts: texts, each once.
        attribute: the prompt set of the attribute.
        calibration: a name of `CALIBRATIONS`, or what `read_counts` takes. None: what comes with
            the package for this model; where there is none, that of every plain model.
        texts: the only texts that can be embedded; None: any.

    Raises:
        InvalidInputError: a calibration that does not fit, or a text that cannot be embedded.
    """
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    model = loaded.name or host.model_id or host.name
    sources: list[Any] = [calibration]
    if calibration is None:
        sources = list(known_calibrations(model))
    elif isinstance(calibration, str | Path):
        sources = [find_calibration(calibration)]
    counts_of_source = [read_counts(source, attribute) for source in sources]
    along = directions(host, attribute, texts)
    rows = host.embed(list(prompts), host.roles[0])
    predictions = []
    for source, counts in zip(sources, counts_of_source, strict=True):
        judged = _embeddable(counts, texts)
        judged_rows = rows[:0]
        if len(judged):
            judged_rows = host.embed(list(judged.index), host.roles[0])
        # A line for each value, from leans (k, prompts of the calibration) to shares.
        leans = (rows @ along.T).numpy().T
        judged_leans = (judged_rows @ along.T).numpy().T
        places = _places_of_judged(prompts, counts)
        lines = []
        shares = np.full((3, len(counts.columns), len(prompts)), np.nan)
        chance = np.full(shares.shape[1:], np.nan)
        covered = np.zeros(len(prompts), bool)
        # A pilot of few prompts has counts of each and no line.
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
                model=model,
                calibration=source if isinstance(source, Calibration) else None,
                fingerprint=host.weights,
                source=source_of(source),
                n_images=n_images,
            )
        )
    return predictions


def _places_of_judged(prompts: Sequence[str], counts: pd.DataFrame) -> dict[int, int]:
    """Return position among the prompts -> row of the counts, of prompts whose subject was
    judged."""
    row_of_text = {text.casefold(): row for row, text in enumerate(counts.index)}
    row_of_subject = {subject(text): row for row, text in enumerate(counts.index)}
    places = {}
    for place, prompt in enumerate(prompts):
        # A row of the prompt itself is preferred to one about the same subject.
        row = row_of_text.get(prompt.casefold(), row_of_subject.get(subject(prompt)))
        if row is not None:
            places[place] = row
    return places


def _counted(counts: Sequence[float]) -> Floats:
    """Return shares with Wilson's ends (3, k) of a prompt of which so many images show each
    value."""
    total = sum(counts)
    # Tables may weight images, so that counts are no whole numbers.
    n = max(round(total), 1)
    columns = []
    for count in counts:
        share = count / total
        low, high = wilson_interval(round(share * n), n)
        columns.append((share, min(low, share), max(high, share)))
    return np.array(columns).T


def _on_lines(lines: Sequence[ShareLine], leans: Floats) -> tuple[Floats, Floats]:
    """Return the shares (3, k, n), with their ends, and chances (k, n) that k lines give at leans
    (k, n)."""
    parity = 1 / len(lines)
    shares_of_value = []
    ends_of_value = []
    chances_of_value = []
    for line, leans_to_value in zip(lines, leans, strict=True):
        shares_of_value.append(line.at(leans_to_value))
        ends_of_value.append(line.interval(leans_to_value))
        chances_of_value.append(line.chance(leans_to_value, parity))
    share = np.stack(shares_of_value)
    # The lines of k values are fitted one by one; their shares of a prompt are made to add up to 1.
    share = share / np.maximum(share.sum(0), 1e-12)
    # Dividing may move a share out of its interval, which is widened to hold it. ends: (k, 2, n)
    ends = np.stack(ends_of_value)
    low = np.minimum(ends[:, 0], share)
    high = np.maximum(ends[:, 1], share)
    return np.stack([share, low, high]), np.stack(chances_of_value)


def subject(text: str) -> str:
    """Return what a prompt is about: "A photo of the face of a nurse." -> "nurse"."""
    return _FRAME.sub("", text.strip()).casefold()


def directions(
    host: Host, prompts: PromptSet, listed: Collection[str] | None = None
) -> torch.Tensor:
    """Return unit directions (k, d) of the values: the mean text of each less the mean of all.

    listed: texts to use; None: all of the prompt set.

    Raises:
        InvalidInputError: no text names one of the values alone.
    """
    texts = list(chain(prompts.spurious, *prompts.groups))
    if listed is not None:
        texts = [text for text in texts if text in listed]
    # Texts that name one value alone: "a man and a woman" says nothing of the direction between
    # them.
    texts_of_value = with_words(prompts).by_value(texts)
    missing = [value for value, group in texts_of_value.items() if not group]
    if missing:
        raise InvalidInputError(
            f"{prompts.name}: no text names {missing} alone; embed all texts of the prompt set"
        )
    role = host.roles[0]
    rows = torch.stack([host.embed(group, role).mean(0) for group in texts_of_value.values()])
    # Less the mean of all values, so that what they share ("a photo of a person") is in no
    # direction.
    return normalize(rows - rows.mean(0), dim=-1)


def _embeddable(table: pd.DataFrame, texts: Mapping[str, Any] | None) -> pd.DataFrame:
    """Return the rows of judged prompts that can be embedded, by the prompt that asks for them."""
    # Prompts of a calibration are taken as they are, concepts as `FORM` asks for them.
    forms = []
    for text in table.index:
        is_prompt = subject(text) != text.casefold() or len(text.split()) > 3
        forms.append(text if is_prompt else fill(FORM, concept=text))
    can_embed = [texts is None or text in texts for text in forms]
    return table.set_axis(forms)[can_embed]


def _covered(
    rows: torch.Tensor, judged_rows: torch.Tensor, leans: Floats, judged_leans: Floats
) -> Mask:
    """Return whether each of n prompts is as near to a judged one as judged ones are to another,
    and leans no further than they do.

    rows: (n, d). leans: (k, n) to each value.
    """
    nearest_of_judged = (judged_rows @ judged_rows.T).fill_diagonal_(-1).amax(1)
    # The loneliest judged prompt sets the limit: whoever is further from all of them is
    # extrapolated.
    least = float(nearest_of_judged.min())
    is_near = ((rows @ judged_rows.T).amax(1) >= least - 1e-9).numpy()
    is_above = judged_leans.min(1, keepdims=True) <= leans
    is_below = judged_leans.max(1, keepdims=True) >= leans
    return is_near & (is_above & is_below).all(0)
