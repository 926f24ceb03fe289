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
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from vldebias.data.tables import read_table
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

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
LEAST = 8  # prompts that a calibration needs
SURE = 0.9  # chance of a side from which on a prompt is said to lean
NOTHING = 3  # the rank of a prompt of which no share is predicted
POOR = 0.1  # R2 below which little is predicted; at 0 or below, nothing is
# Why a prompt is left alone by balanced prompts -> why nothing is predicted of it.
UNPREDICTED = {
    "named": "names somebody",
    "context": "its facts fix the value",
    "stated": "states a value",
}
PUBLISHED = Path(__file__).parent / "calibrations" / "fair-diffusion.csv"
PUBLISHED_FOR = "stable-diffusion-v1-5"  # part of the names of the pipeline that was judged there
FORM = "A photo of a {concept}."  # how a calibration's concepts are asked for
WORDS = {
    "male": ("man", "men", "boy"),
    "female": ("woman", "women", "girl"),
}  # besides those of a prompt set
_ARTICLE = r"((an?|the)\s+)?"
_FRAME = re.compile(
    rf"^{_ARTICLE}(photo|photograph|picture|image|portrait|painting|drawing)\s+of\s+(the\s+face\s+of\s+)?{_ARTICLE}"
    rf"|^{_ARTICLE}|[\s.]+$",
    re.IGNORECASE,
)
Floats = NDArray[np.float64]


def subject(text: str) -> str:
    """Return what a prompt is about: "A photo of the face of a nurse." -> "nurse"."""
    return _FRAME.sub("", text.strip()).casefold()


def _with_words(prompts: PromptSet) -> PromptSet:
    """Return the prompt set with "man" as a word for male and "woman" for female, as tables write
    them."""
    words = {
        value: {*own, *WORDS.get(value.casefold(), ())} for value, own in prompts.attributes.items()
    }
    return replace(prompts, attributes={value: tuple(sorted(own)) for value, own in words.items()})


def read_shares(given: str | Path | pd.DataFrame | None, prompts: PromptSet) -> pd.DataFrame:
    """Return the shares of the values among the images of each prompt: a row per prompt, a column
    per value.

    given: a table or its file, with a row per image (`prompt`, `value`; other values are left out),
    or a row per prompt
        with a column of counts for each value; values by their names or words in the prompt set.
        None: the published
        counts of men and women. Columns that are missing and cells that are no counts raise
        InvalidInputError.
    """
    pandas, values = need("pandas"), list(prompts.attributes)
    if given is None and set(values) != {"male", "female"}:
        raise InvalidInputError(
            f"{prompts.name}: expected calibration= (--calibrate judged.csv) of images that you"
            " labelled, 30 prompts with 8 images each; the published counts are of male and female"
            " alone"
        )
    source: Any = pandas.read_csv(PUBLISHED, comment="#") if given is None else given
    table = source if isinstance(source, pandas.DataFrame) else read_table(Path(source)).to_pandas()
    named = {
        word.casefold(): value
        for value, own in _with_words(prompts).attributes.items()
        for word in (value, *own)
    }
    table = table.rename(columns=lambda column: named.get(str(column).casefold(), column))
    counts = pandas.DataFrame(columns=values)
    if {"prompt", "value"} <= set(table):
        said = table["value"].astype(str).str.strip().str.casefold().map(named)
        counts = pandas.crosstab(table["prompt"], said).reindex(columns=values, fill_value=0)
    elif "prompt" in table and table.columns.is_unique:
        counts = (
            table.set_index("prompt")
            .reindex(columns=values)
            .apply(pandas.to_numeric, errors="coerce")
        )
    numbers, twice = (
        (counts >= 0) & (counts < np.inf),
        counts.index.astype(str).str.casefold().has_duplicates,
    )
    if not numbers.all(axis=None) or not counts.any(axis=None) or twice:
        raise InvalidInputError(
            f"calibration{'' if isinstance(given, pandas.DataFrame) else f' {given}'}: got the"
            f" columns {list(table)}; expected `prompt` and `value`, or each `prompt` once with"
            f" counts from 0 on of each of {values}"
        )
    return counts.div(counts.sum(axis=1), axis=0).dropna()


class ShareLine:
    """Fit shares y (n,) to leans x (n,) by least squares, cut at 0 and 1; all figures on it are out
    of sample.

    Intervals are those of jackknife+: of the lines that leave one prompt out, each with its error
    at that prompt (Barber, Candes, Ramdas and Tibshirani, 2021, "Predictive inference with the
    jackknife+", eq. 1.4). They cover about LEVEL of exchangeable prompts, at least 2 LEVEL - 1;
    with fewer than 1 / (1 - LEVEL) - 1 prompts they are [0, 1].
    left_out: (n,) each share as predicted from the other prompts. r2: 1 - its squared error over
    that of the mean. Fewer than LEAST prompts, and leans that are all alike, raise
    InvalidInputError.
    """

    def __init__(self, x: Floats, y: Floats) -> None:
        if len(x) < LEAST or float(np.ptp(x)) < 1e-9:
            raise InvalidInputError(
                f"calibration: got {len(x)} prompts whose shares and texts are known; expected"
                f" {LEAST} or more that lean differently, such as 30 prompts with 8 images each"
            )
        n, sx, sy = len(x) - 1, x.sum() - x, y.sum() - y
        spread = (x**2).sum() - x**2 - sx**2 / n
        rise = (x * y).sum() - x * y - sx * sy / n
        slope = np.divide(rise, spread, out=np.zeros_like(spread), where=spread > 1e-12)
        self.x, self.y, self._lines = x, y, (slope, (sy - slope * sx) / n)
        self.left_out = np.diag(self._each(x))
        self._off = y - self.left_out
        self.r2 = 1 - float((self._off**2).sum() / max(((y - y.mean()) ** 2).sum(), 1e-12))

    def _each(self, x: Floats) -> Floats:
        """(m, n) what each line that leaves a prompt out predicts at leans (m,)."""
        slope, intercept = self._lines
        return np.clip(np.outer(x, slope) + intercept, 0, 1)

    def at(self, x: Floats) -> Floats:
        """Return the predicted shares (m,) at leans (m,)."""
        return np.clip(np.polyval(np.polyfit(self.x, self.y, 1), x), 0, 1)

    def interval(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the lower and upper ends, (m,) each, of intervals around `at`."""
        n, each, off, middle = len(self.x), self._each(x), np.abs(self._off), self.at(x)
        rank = int(np.ceil(LEVEL * (n + 1)))
        if rank > n:
            return np.zeros(len(x)), np.ones(len(x))
        low, high = (
            np.sort(each - off, axis=1)[:, n - rank],
            np.sort(each + off, axis=1)[:, rank - 1],
        )
        return np.clip(np.minimum(low, middle), 0, 1), np.clip(np.maximum(high, middle), 0, 1)

    def chance(self, x: Floats, parity: float) -> Floats:
        """Return the probabilities (m,) that shares at leans (m,) exceed parity, from the lines and
        their errors."""
        moved = self._each(x) + self._off
        count: Floats = (moved > parity).sum(1) + 0.5 * (moved == parity).sum(1)
        return (count + 0.5) / (len(self.x) + 1)


def directions(
    host: Host, prompts: PromptSet, listed: Collection[str] | None = None
) -> torch.Tensor:
    """Return unit directions (k, d) of the values: the mean text of each less the mean of all;
    listed: texts to use."""
    own = [
        text
        for text in chain(prompts.spurious, *prompts.groups)
        if listed is None or text in listed
    ]
    by_value = _with_words(prompts).by_value(own)
    if empty := [value for value, texts in by_value.items() if not texts]:
        raise InvalidInputError(
            f"{prompts.name}: no text names {empty} alone; embed all texts of the prompt set"
        )
    rows = torch.stack([host.embed(texts, host.roles[0]).mean(0) for texts in by_value.values()])
    return normalize(rows - rows.mean(0), dim=-1)


def read_prompts(path: str | Path) -> tuple[str, ...]:
    """Read prompts from a text file, one per line; empty lines and those that begin with # are left
    out."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{path!s:.200}: expected a text file in UTF-8, one prompt a line: {error}"
        ) from error
    if not (
        prompts := dict.fromkeys(
            line.strip() for line in lines if line.strip() and not line.startswith("#")
        )
    ):
        raise InvalidInputError(f"{path}: got no prompts; expected one a line")
    return tuple(prompts)


def _unpredicted(reason: str | None) -> str:
    """Write why nothing is predicted of a prompt that balanced prompts leave alone."""
    name = str(reason)
    words = "no person found" if name.startswith("no person") else UNPREDICTED.get(name, name)
    return f"{words}: nothing to predict"


def _reasons_to_leave(texts: Sequence[str], prompts: PromptSet) -> list[str | None]:
    """Return why balanced prompts would leave each text alone; None where they would not."""
    if not can_balance(prompts):
        return [None] * len(texts)
    return balance_prompts(texts, prompts, seed=0, groups="same").reasons


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

    prompts: texts, or a file with one a line. attribute_set: the prompt set of the attribute,
    "gender". model, pipe, texts: one of an image-text model (or what `vldebias.load_host` gives), a
    pipeline, or a mapping
        prompt -> embedding (d,) that has the prompts, texts of the set, and texts of the
        calibration's concepts.
    calibration: images that were judged, a row each (`prompt`, `value`) or a row of counts per
    prompt. Default: men and
        women among 250 images of each of 153 occupations by Stable Diffusion 1.5 (Friedrich et
        al., "Fair Diffusion", arXiv 2302.10893).

    The provenance says what to look at first, and has advice on each prompt in
    `settings["prompts"]`. Not one of model, pipe and texts, and a calibration that does not fit,
    raise InvalidInputError.

    >>> vldebias.audit(["a photo of a nurse"], "gender", pipe=pipe).to_pandas()  # doctest: +SKIP
    """
    given, began = [one for one in (model, pipe, texts) if one is not None], time.monotonic()
    if len(given) != 1:
        raise InvalidInputError(
            "expected one of model=, pipe= and texts=, whose text embeddings are read"
        )
    asked = (
        read_prompts(prompts) if isinstance(prompts, (str, Path)) else tuple(dict.fromkeys(prompts))
    )
    if not asked:
        raise InvalidInputError("prompts: expected one or more, got none")
    own, loaded = (
        load_prompts(attribute_set),
        given[0] if isinstance(given[0], Loaded) else Loaded(given[0], ""),
    )
    host = resolve(loaded.host, tokenizer=loaded.tokenizer)
    table, name = read_shares(calibration, own), loaded.name or host.model_id or host.name
    # Prompts of a calibration are taken as they are, concepts as `FORM` asks for them.
    whole = [subject(one) != one.casefold() or len(one.split()) > 3 for one in table.index]
    forms = [
        one if prompt else fill(FORM, concept=one)
        for one, prompt in zip(table.index, whole, strict=True)
    ]
    judged = table.set_axis(forms)[[texts is None or text in texts for text in forms]]
    along = directions(host, own, texts)
    rows, mine = (host.embed(list(some), host.roles[0]) for some in (asked, judged.index))
    leans, known = (rows @ along.T).numpy().T, (mine @ along.T).numpy().T
    lines = [ShareLine(x, y) for x, y in zip(known, judged.to_numpy().T, strict=True)]
    near = float(
        (mine @ mine.T).fill_diagonal_(-1).amax(1).min()
    )  # a calibration text to the nearest other one
    inside = (known.min(1, keepdims=True) <= leans) & (known.max(1, keepdims=True) >= leans)
    covered = ((rows @ mine.T).amax(1) >= near - 1e-9).numpy() & inside.all(0)
    each = [
        (one.at(x), *one.interval(x), one.chance(x, 1 / len(lines)))
        for one, x in zip(lines, leans, strict=True)
    ]
    share, low, high, chance = np.stack(each, axis=1)
    share = share / np.maximum(share.sum(0), 1e-12)
    shares, top = (
        np.stack([share, np.minimum(low, share), np.maximum(high, share)]),
        share.argmax(0),
    )
    words, named, there = (
        StatedWords(own.stated_words),
        _with_words(own),
        set(map(subject, table.index)),
    )
    persons = _reasons_to_leave(asked, own)
    r2 = lines[0].r2
    is_explained = r2 > 0
    advised = []
    for i, (text, why) in enumerate(zip(asked, persons, strict=True)):
        side, states = table.columns[top[i]], bool(words.find(text))
        stated = " and ".join(named.values_in(text)) or "the attribute" * states
        unneeded = why is not None and subject(text) not in there
        cases = (
            (stated, NOTHING, f"states {stated}: nothing to predict"),
            (unneeded, NOTHING, _unpredicted(why)),
            (not is_explained, 1, "cannot be told from its text: generate and judge some images"),
            (not covered[i], 1, "not covered: generate and judge some images"),
            (chance[top[i], i] >= SURE, 0, f"leans {side}: rewrite it or use a method"),
            (True, 2, "no lean beyond its interval: generate some images"),
        )
        advised.append((text, *next(case[1:] for case in cases if case[0]), share[top[i], i]))
    frame = need("pandas").DataFrame(advised, columns=["prompt", "rank", "advice", "most"])
    frame = frame.sort_values(["rank", "most"], ascending=[True, False], kind="stable")
    values, predicted = list(table), frame[(frame["rank"] < NOTHING) & is_explained]
    kinds, n = (
        frame.advice.str.partition(":")[0].value_counts(),
        {"calibration prompts": len(judged)},
    )
    source = "published counts of Stable Diffusion 1.5" if calibration is None else "given labels"
    said = [
        f"Predicted from texts alone, before any image was generated, by {len(judged)} judged"
        f" prompts ({source}). Of {len(frame)} prompts:"
        f" {', '.join(f'{what} {many}' for what, many in kinds.items())}."
    ]
    for i, text in predicted.prompt.head(1).items():
        share, low, high = shares[:, side := shares[0, :, i].argmax(), i]
        said.append(f"Look first at “{text}”: {share:.0%} {values[side]} [{low:.0%}, {high:.0%}].")
    if calibration is None and pipe is not None and PUBLISHED_FOR not in name:
        said.append(
            f"These counts are not of {name}: expect larger errors, or label images of it"
            " (calibration)."
        )
    said = _with_fit(said, r2)
    settings: dict[str, Any] = {
        "calibration": source,
        "intervals": f"jackknife+ (leave one prompt out), {LEVEL:.0%}",
    }
    settings |= {"prompts": dict(zip(frame.prompt, frame.advice, strict=True)), "advice": said}
    about: dict[str, Any] = {
        "description": " ".join(said),
        "n": {"prompts": len(frame), **n},
        "settings": settings,
    }
    about |= {"model": name, "fingerprint": host.weights, "seeds": [0]}
    about |= {"prompts": own.name, "prompts_hash": own.hash, "split": "texts"}
    out = TaskResult(TaskProvenance(task="audit", title="What the prompts will show", **about))
    shown = values[: 1 if len(values) == 2 else None]
    for i, text in predicted.prompt.items():
        for (share, *ends), value in zip(shares[:, :, i].T.tolist(), shown, strict=False):
            out.add("predicted_share", NONE, share, tuple(ends), n=n, subset=f"{text}: {value}")
    for value, line in zip(shown, lines, strict=False):
        out.add("lean_r2", NONE, line.r2, n=n, subset="" if len(values) == 2 else value)
    return Result.of("audit", [out], seconds=round(time.monotonic() - began, 3))


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
