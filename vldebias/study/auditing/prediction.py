"""Predict which shares of an attribute's values prompts will show, from their texts alone.

The lean of a text is its cosine with the direction between the attribute's values. A line from
leans to shares is fitted, in the space of the text encoder, on prompts whose images were judged
(the calibration).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.hosts import Host, resolve
from vldebias.hosts.loading import Loaded
from vldebias.prompts import PromptSet, fill
from vldebias.study.auditing.line import (
    Calibration,
    ShareLine,
    read_shares,
    shipped_calibration,
    with_words,
)

if TYPE_CHECKING:
    import pandas as pd

FORM = "A photo of a {concept}."  # how a calibration's concepts are asked for
_ARTICLE = r"((an?|the)\s+)?"
_FRAME = re.compile(
    rf"^{_ARTICLE}(photo|photograph|picture|image|portrait|painting|drawing)\s+of\s+(the\s+face\s+of\s+)?{_ARTICLE}"
    rf"|^{_ARTICLE}|[\s.]+$",
    re.IGNORECASE,
)
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Prediction(NamedTuple):
    """Hold what texts predict: k values of n prompts."""

    values: list[str]  # (k,) names
    shares: Floats  # (3, k, n): share, lower and upper end
    chance: Floats  # (k, n) probability that more than an equal share shows the value
    covered: Mask  # (n,) whether a prompt is among what the calibration knows
    lines: list[ShareLine]  # (k,)
    judged: list[str]  # prompts and concepts of the calibration, as its table has them
    n_judged: int  # how many of them could be embedded
    model: str  # what embedded the texts
    calibration: Calibration | None  # the counts that come with the package; None: a user's
    fingerprint: dict[str, Any] | None  # of its weights

    @property
    def r2(self) -> float:
        """Return how well the shares of the first value are predicted, out of sample."""
        return self.lines[0].r2

    @property
    def is_explained(self) -> bool:
        """Return whether texts predict better than one share for all prompts would."""
        return self.r2 > 0

    def side(self, place: int) -> int:
        """Return the position of the value that has the largest share of a prompt."""
        return int(self.shares[0, :, place].argmax())


def predict(
    loaded: Loaded,
    prompts: Sequence[str],
    attribute: PromptSet,
    calibration: pd.DataFrame | str | Path | None,
    texts: Mapping[str, Any] | None = None,
) -> Prediction:
    """Return the shares that the texts of n prompts predict.

    Args:
        loaded: the model or pipeline that embeds texts, or a mapping from prompt to embedding.
        prompts: texts, each once.
        attribute: the prompt set of the attribute.
        calibration: what `read_shares` takes. None: what comes with the package for this model.
        texts: the only texts that can be embedded; None: any.

    Raises:
        InvalidInputError: a calibration that does not fit, or a text that cannot be embedded.
    """
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    model = loaded.name or host.model_id or host.name
    shipped = shipped_calibration(model) if calibration is None else None
    table = read_shares(calibration if shipped is None else shipped, attribute)
    judged = _embeddable(table, texts)
    along = directions(host, attribute, texts)
    role = host.roles[0]
    rows = host.embed(list(prompts), role)
    judged_rows = host.embed(list(judged.index), role)
    # A line for each value, from leans (k, prompts of the calibration) to shares.
    leans = (rows @ along.T).numpy().T
    judged_leans = (judged_rows @ along.T).numpy().T
    pairs = zip(judged_leans, judged.to_numpy().T, strict=True)
    lines = [ShareLine(x, y) for x, y in pairs]

    shares, chance = _on_lines(lines, leans)
    return Prediction(
        values=list(table),
        shares=shares,
        chance=chance,
        covered=_covered(rows, judged_rows) & _within(leans, judged_leans),
        lines=lines,
        judged=list(table.index),
        n_judged=len(judged),
        model=model,
        calibration=shipped,
        fingerprint=host.weights,
    )


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


def _covered(rows: torch.Tensor, judged_rows: torch.Tensor) -> Mask:
    """Return whether each of n prompts is as near to a judged one as judged ones are to another."""
    nearest_of_judged = (judged_rows @ judged_rows.T).fill_diagonal_(-1).amax(1)
    # The loneliest judged prompt sets the limit: whoever is further from all of them is
    # extrapolated.
    least = float(nearest_of_judged.min())
    return ((rows @ judged_rows.T).amax(1) >= least - 1e-9).numpy()


def _within(leans: Floats, judged_leans: Floats) -> Mask:
    """Return whether each of n prompts leans no further than judged ones do; leans: (k, n)."""
    is_above = judged_leans.min(1, keepdims=True) <= leans
    is_below = judged_leans.max(1, keepdims=True) >= leans
    return (is_above & is_below).all(0)
