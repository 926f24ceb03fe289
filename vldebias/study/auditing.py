"""Predict what prompts will show before any image is generated: a share with an interval, from each
text alone.

The lean of a text is its cosine with the direction between the attribute's values. A line from
leans to shares is fitted, in the space of the given text encoder, on prompts whose images were
judged (the calibration).
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError, need
from vldebias.hosts import Host, resolve
from vldebias.hosts.loading import Loaded
from vldebias.measure.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.prompts import (
    PromptSet,
    StatedWords,
    balance_prompts,
    can_balance,
    fill,
    load_prompts,
)
from vldebias.study.share_line import LEVEL, ShareLine, read_shares, with_words

if TYPE_CHECKING:
    import pandas as pd

SURE = 0.9  # chance of a side from which on a prompt is said to lean
POOR = 0.1  # R2 below which little is predicted; at 0 or below, nothing is
# Ranks of advice: what to look at first comes first.
LEANS, UNCOVERED, UNDECIDED, NOTHING = range(4)
# Why a prompt is left alone by balanced prompts -> why nothing is predicted of it.
UNPREDICTED = {
    "named": "names somebody",
    "context": "its facts fix the value",
    "stated": "states a value",
}
PUBLISHED_FOR = "stable-diffusion-v1-5"  # part of the names of the pipeline that was judged there
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

    shares: Floats  # (3, k, n): share, lower and upper end
    chance: Floats  # (k, n) probability that more than an equal share shows the value
    covered: Mask  # (n,) whether a prompt is among what the calibration knows
    lines: list[ShareLine]  # (k,)
    n_judged: int  # prompts of the calibration


class Advice(NamedTuple):
    """Hold what to do about a prompt; prompts of the lowest rank come first."""

    rank: int
    text: str


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


def read_prompts(path: str | Path) -> tuple[str, ...]:
    """Read prompts from a text file, one per line; empty lines and those that begin with # are left
    out.

    Raises:
        InvalidInputError: no text file in UTF-8, or no prompt in it.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{path!s:.200}: expected a text file in UTF-8, one prompt a line: {error}"
        ) from error
    prompts: dict[str, None] = {}
    for line in lines:
        if line.strip() and not line.startswith("#"):
            prompts[line.strip()] = None
    if not prompts:
        raise InvalidInputError(f"{path}: got no prompts; expected one a line")
    return tuple(prompts)


def audit(
    prompts: Sequence[str] | str | Path,
    attribute_set: str | Path | PromptSet,
    *,
    model: Any = None,
    pipe: Any = None,
    texts: Mapping[str, Any] | None = None,
    calibration: pd.DataFrame | str | Path | None = None,
) -> Result:
    """Predict what prompts will show before any image is generated: a share with an interval, from
    each text.

    Args:
        prompts: texts, or a file with one a line.
        attribute_set: the prompt set of the attribute, "gender".
        model, pipe, texts: one of an image-text model (or what `vldebias.load_host` gives), a
            pipeline, or a mapping prompt -> embedding (d,) that has the prompts, texts of the set,
            and texts of the calibration's concepts.
        calibration: images that were judged, a row each (`prompt`, `value`) or a row of counts per
            prompt. Default: men and women among 250 images of each of 153 occupations by Stable
            Diffusion 1.5 (Friedrich et al., "Fair Diffusion", arXiv 2302.10893).

    Returns:
        Rows `predicted_share` of each prompt; the provenance says what to look at first, and has
        advice on each prompt in `settings["prompts"]`.

    Raises:
        InvalidInputError: not one of model, pipe and texts, no prompts, or a calibration that does
            not fit.

    >>> vldebias.audit(["a photo of a nurse"], "gender", pipe=pipe).to_pandas()  # doctest: +SKIP
    """
    start = time.monotonic()
    loaded = _only_source(model, pipe, texts)
    listed = read_prompts(prompts) if isinstance(prompts, (str, Path)) else prompts
    # Each prompt is predicted once.
    requested = tuple(dict.fromkeys(listed))
    if not requested:
        raise InvalidInputError("prompts: expected one or more, got none")
    attribute = load_prompts(attribute_set)
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    table = read_shares(calibration, attribute)
    prediction = _predict(host, requested, attribute, table, texts)
    frame = _advise(requested, attribute, table, prediction)

    source = "published counts of Stable Diffusion 1.5" if calibration is None else "given labels"
    name = loaded.name or host.model_id or host.name
    sentences = _summary(frame, prediction, list(table), source)
    if calibration is None and pipe is not None and PUBLISHED_FOR not in name:
        sentences.append(
            f"These counts are not of {name}: expect larger errors, or label images of it"
            " (calibration)."
        )
    sentences = _with_fit(sentences, prediction.lines[0].r2)
    provenance = TaskProvenance(
        task="audit",
        title="What the prompts will show",
        description=" ".join(sentences),
        model=name,
        fingerprint=host.weights,
        prompts=attribute.name,
        prompts_hash=attribute.hash,
        split="texts",
        seeds=[0],
        n={"prompts": len(frame), "calibration prompts": prediction.n_judged},
        settings={
            "calibration": source,
            "intervals": f"jackknife+ (leave one prompt out), {LEVEL:.0%}",
            "prompts": dict(zip(frame.prompt, frame.advice, strict=True)),
            "advice": sentences,
        },
    )
    result = TaskResult(provenance)
    _add_shares(result, frame, prediction, list(table))
    return Result.of("audit", [result], seconds=round(time.monotonic() - start, 3))


def _only_source(model: Any, pipe: Any, texts: Any) -> Loaded:
    """Return what embeds texts: the only one of model, pipe and texts."""
    sources = [source for source in (model, pipe, texts) if source is not None]
    if len(sources) != 1:
        raise InvalidInputError(
            "expected one of model=, pipe= and texts=, whose text embeddings are read"
        )
    source = sources[0]
    return source if isinstance(source, Loaded) else Loaded(source, "")


def _predict(
    host: Host,
    requested: Sequence[str],
    attribute: PromptSet,
    table: pd.DataFrame,
    texts: Mapping[str, Any] | None,
) -> Prediction:
    """Return the shares that texts predict.

    table: shares of judged images, a row per prompt or concept. texts: the only texts that can be
    embedded; None: any.
    """
    judged = _embeddable(table, texts)
    # (k, d), unit length
    along = directions(host, attribute, texts)
    rows = host.embed(list(requested), host.roles[0])
    judged_rows = host.embed(list(judged.index), host.roles[0])
    # A line for each value, from leans (k, prompts of the calibration) to shares.
    leans = (rows @ along.T).numpy().T
    judged_leans = (judged_rows @ along.T).numpy().T
    pairs = zip(judged_leans, judged.to_numpy().T, strict=True)
    lines = [ShareLine(x, y) for x, y in pairs]

    share = np.stack([line.at(x) for line, x in zip(lines, leans, strict=True)])
    # The lines of k values are fitted one by one; their shares of a prompt are made to add up to 1.
    share = share / np.maximum(share.sum(0), 1e-12)
    # (k, 2, n)
    ends = np.stack([line.interval(x) for line, x in zip(lines, leans, strict=True)])
    # Dividing may move a share out of its interval, which is widened to hold it.
    shares = np.stack([share, np.minimum(ends[:, 0], share), np.maximum(ends[:, 1], share)])
    parity = 1 / len(lines)
    chance = np.stack([line.chance(x, parity) for line, x in zip(lines, leans, strict=True)])
    covered = _covered(rows, judged_rows) & _within(leans, judged_leans)
    return Prediction(shares, chance, covered, lines, len(judged))


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


def _advise(
    requested: Sequence[str], attribute: PromptSet, table: pd.DataFrame, prediction: Prediction
) -> pd.DataFrame:
    """Return prompt, rank, advice and largest share of each prompt, what to look at first on top;
    the index is the position of the prompt."""
    judged_subjects = set(map(subject, table.index))
    reasons = _reasons_to_leave(requested, attribute)
    named = with_words(attribute)
    words = StatedWords(attribute.stated_words)
    largest = prediction.shares[0].argmax(0)
    rows = []
    for i, (text, reason) in enumerate(zip(requested, reasons, strict=True)):
        side = largest[i]
        if subject(text) in judged_subjects:
            # A judged concept is about a person, whatever the words look like.
            reason = None
        stated = " and ".join(named.values_in(text))
        if not stated and words.find(text):
            stated = "the attribute"
        advice = _advice_on(
            stated=stated,
            reason=reason,
            is_explained=prediction.lines[0].r2 > 0,
            is_covered=bool(prediction.covered[i]),
            chance=float(prediction.chance[side, i]),
            value=table.columns[side],
        )
        rows.append((text, advice.rank, advice.text, prediction.shares[0, side, i]))
    frame = need("pandas").DataFrame(rows, columns=["prompt", "rank", "advice", "most"])
    return frame.sort_values(["rank", "most"], ascending=[True, False], kind="stable")


def _advice_on(
    stated: str, reason: str | None, is_explained: bool, is_covered: bool, chance: float, value: str
) -> Advice:
    """Return the advice on one prompt: the first of these cases that is true.

    stated: the value that its text names, or "". reason: why balanced prompts leave it alone.
    chance: that more than an equal share shows `value`.
    """
    if stated:
        return Advice(NOTHING, f"states {stated}: nothing to predict")
    if reason is not None:
        return Advice(NOTHING, _unpredicted(reason))
    if not is_explained:
        return Advice(UNCOVERED, "cannot be told from its text: generate and judge some images")
    if not is_covered:
        return Advice(UNCOVERED, "not covered: generate and judge some images")
    if chance >= SURE:
        return Advice(LEANS, f"leans {value}: rewrite it or use a method")
    return Advice(UNDECIDED, "no lean beyond its interval: generate some images")


def _reasons_to_leave(texts: Sequence[str], prompts: PromptSet) -> list[str | None]:
    """Return why balanced prompts would leave each text alone; None where they would not."""
    if not can_balance(prompts):
        return [None] * len(texts)
    # groups="same": a prompt about several persons is predicted too; "leave" would name it as left
    # alone.
    return balance_prompts(texts, prompts, seed=0, groups="same").reasons


def _unpredicted(reason: str) -> str:
    """Write why nothing is predicted of a prompt that balanced prompts leave alone."""
    is_about_nobody = reason.startswith("no person")
    words = "no person found" if is_about_nobody else UNPREDICTED.get(reason, reason)
    return f"{words}: nothing to predict"


def _predicted(frame: pd.DataFrame, prediction: Prediction) -> pd.DataFrame:
    """Return the rows of prompts of which a share is predicted."""
    is_explained = prediction.lines[0].r2 > 0
    return frame[(frame["rank"] < NOTHING) & is_explained]


def _summary(
    frame: pd.DataFrame, prediction: Prediction, values: Sequence[str], source: str
) -> list[str]:
    """Return sentences on all prompts, and on the one to look at first."""
    counts = frame.advice.str.partition(":")[0].value_counts()
    # "leans female 12, no lean beyond its interval 30, states a value 3": the words before the
    # colon of an advice.
    kinds = ", ".join(f"{kind} {count}" for kind, count in counts.items())
    sentences = [
        "Predicted from texts alone, before any image was generated, by"
        f" {prediction.n_judged} judged prompts ({source}). Of {len(frame)} prompts: {kinds}."
    ]
    for i, text in _predicted(frame, prediction).prompt.head(1).items():
        side = int(prediction.shares[0, :, i].argmax())
        share, low, high = prediction.shares[:, side, i]
        sentences.append(
            f"Look first at “{text}”: {share:.0%} {values[side]} [{low:.0%}, {high:.0%}]."
        )
    return sentences


def _with_fit(sentences: list[str], r2: float) -> list[str]:
    """Return sentences on prompts with what the texts explain of the judged images, which comes
    first where that is nothing.

    r2: of each calibration prompt, left out of the line.
    """
    fit = f"Each calibration prompt, left out of the line, is predicted with R2 {r2:.2f}."
    if r2 <= 0:
        nothing = (
            "What these prompts will show cannot be told from their texts, which explain nothing"
            " of the judged images: generate and judge images instead."
        )
        return [nothing, *sentences, fit]
    if r2 < POOR:
        hardly = (
            "That is hardly better than one share for all prompts: generate and judge images"
            " instead."
        )
        return [*sentences, fit, hardly]
    return [*sentences, fit]


def _add_shares(
    result: TaskResult, frame: pd.DataFrame, prediction: Prediction, values: Sequence[str]
) -> None:
    """Add the predicted shares of each prompt, and how well each value is predicted."""
    n = {"calibration prompts": prediction.n_judged}
    # Of two values the first share says all.
    is_pair = len(values) == 2
    shown = values[:1] if is_pair else values
    for i, text in _predicted(frame, prediction).prompt.items():
        for side, value in enumerate(shown):
            share, low, high = prediction.shares[:, side, i].tolist()
            subset = f"{text}: {value}"
            result.add("predicted_share", NONE, share, (low, high), n=n, subset=subset)
    for side, value in enumerate(shown):
        r2 = prediction.lines[side].r2
        result.add("lean_r2", NONE, r2, n=n, subset="" if is_pair else value)
