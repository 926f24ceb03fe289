"""Predict what prompts will show before any image is generated: a share with an interval, from each text alone.

The lean of a text is its cosine with the direction between the attribute's values. A line from leans to shares is
fitted, in the space of the given text encoder, on prompts whose images were judged (the calibration).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
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
from vldebias.evaluation.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.evaluation.session import Texts
from vldebias.hosts import Host, resolve
from vldebias.loading import Loaded
from vldebias.metrics.bootstrap import percentile_interval
from vldebias.prompts import PromptSet, StatedWords, balance_prompts, can_balance, fill, load_prompts

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
LEAST = 8  # prompts that a calibration needs
SURE = 0.9  # chance of a side from which on a prompt is said to lean
POOR = 0.1  # R2 below which nothing is predicted
PUBLISHED = Path(__file__).parent / "calibrations" / "fair-diffusion.csv"
PUBLISHED_FOR = "stable-diffusion-v1-5"  # part of the names of the pipeline that was judged there
FORM = "A photo of a {concept}."  # how a calibration's concepts are asked for
WORDS = {"male": ("man", "men", "boy"), "female": ("woman", "women", "girl")}  # besides those of a prompt set
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


def with_words(prompts: PromptSet) -> PromptSet:
    """Return the prompt set with "man" as a word for male and "woman" for female, as tables write them."""
    words = {value: (*own, *WORDS.get(value.casefold(), ())) for value, own in prompts.attributes.items()}
    return replace(prompts, attributes={value: tuple(dict.fromkeys(own)) for value, own in words.items()})


def read_shares(given: str | Path | pd.DataFrame | None, prompts: PromptSet) -> pd.DataFrame:
    """Return the shares of the values among the images of each prompt: a row per prompt, a column per value.

    given: a table or its file, with a row per image (`prompt`, `value`), or a row per prompt with a column of counts or
        shares for each value. Values are called as in the prompt set or by its words; in a row per image, others are
        left out. None: the published counts, of men and women.

    Raises:
        InvalidInputError: a file that cannot be read, columns that are missing, cells that are no counts.
    """
    pandas, values = need("pandas"), list(prompts.attributes)
    where = "calibration" if given is None or isinstance(given, pandas.DataFrame) else str(given)
    if given is None and set(values) != {"male", "female"}:
        raise InvalidInputError(
            f"{prompts.name}: the published counts are of male and female. Label images of your own pipeline, 30 "
            "prompts with 8 images each, and pass them as --calibrate judged.csv (prompt, value) or calibration="
        )
    if given is None:
        given = pandas.read_csv(PUBLISHED, comment="#").rename(columns={"concept": "prompt"})
    table = given if isinstance(given, pandas.DataFrame) else read_table(Path(given)).to_pandas()
    named = {word.casefold(): value for value, own in with_words(prompts).attributes.items() for word in (value, *own)}
    table = table.rename(columns=lambda column: named.get(str(column).casefold(), column))
    if {"prompt", "value"} <= set(table):
        said = table["value"].astype(str).str.strip().str.casefold().map(named)
        table = pandas.crosstab(table["prompt"], said).reindex(columns=values, fill_value=0)
    elif {"prompt", *values} <= set(table):
        table = table.set_index("prompt")[values]
    else:
        raise InvalidInputError(
            f"{where}: got the columns {list(table)}; expected `prompt`, and `value` (a row per image) or a column for "
            f"each of {values} (a row per prompt)"
        )
    counts = table.apply(pandas.to_numeric, errors="coerce")
    if (
        counts.shape[1] != len(values)
        or not ((counts >= 0) & (counts < np.inf)).all(axis=None)
        or not counts.any(axis=None)
    ):
        raise InvalidInputError(f"{where}: expected numbers from 0 on, not all 0, in one column for each of {values}")
    if counts.index.astype(str).str.casefold().has_duplicates:
        raise InvalidInputError(f"{where}: a prompt occurs twice; add up its counts")
    counts = counts[counts.sum(axis=1) > 0]
    shares: pd.DataFrame = counts.div(counts.sum(axis=1), axis=0)
    return shares


class ShareLine:
    """Fit shares y (n,) to leans x (n,) by least squares, cut at 0 and 1; all figures on it are out of sample.

    Intervals are those of jackknife+: of the lines that leave one prompt out, each with its error at that prompt
    (Barber, Candes, Ramdas and Tibshirani, 2021, "Predictive inference with the jackknife+", eq. 1.4). They cover about
    LEVEL of exchangeable prompts, at least 2 LEVEL - 1; with fewer than 1 / (1 - LEVEL) - 1 prompts they are [0, 1].

    left_out: (n,) each share as predicted from the other prompts. r2: 1 - its squared error over that of the mean.

    Raises:
        InvalidInputError: fewer than LEAST prompts, or leans that are all alike.
    """

    def __init__(self, x: Floats, y: Floats) -> None:
        if len(x) < LEAST or float(np.ptp(x)) < 1e-9:
            raise InvalidInputError(
                f"calibration: expected {LEAST} or more prompts that lean differently, whose shares and texts are "
                f'known (a concept is asked for as "{FORM}"), got {len(x)}; 30 prompts with 8 images each will do'
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
        n, each, off = len(self.x), self._each(x), np.abs(self._off)
        rank = int(np.ceil(LEVEL * (n + 1)))
        if rank > n:
            return np.zeros(len(each)), np.ones(len(each))
        low = np.sort(each - off, axis=1)[:, n - rank]
        high = np.sort(each + off, axis=1)[:, rank - 1]
        middle = self.at(x)
        return np.clip(np.minimum(low, middle), 0, 1), np.clip(np.maximum(high, middle), 0, 1)

    def chance(self, x: Floats, parity: float) -> Floats:
        """Return the probabilities (m,) that shares at leans (m,) exceed parity, from the lines and their errors."""
        moved = self._each(x) + self._off
        count: Floats = (moved > parity).sum(1) + 0.5 * (moved == parity).sum(1)
        return (count + 0.5) / (len(self.x) + 1)

    def coverage(self, splits: int = 200, seed: int = 0) -> tuple[float, tuple[float, float], float]:
        """Return the fraction of shares that fall inside intervals of lines fitted on two thirds of the prompts.

        The mean over random splits, the middle 95 % of them, and the mean width.
        """
        rng, n, inside, width = np.random.default_rng(seed), len(self.x), [], []
        size = max(LEAST, 2 * n // 3)
        if size == n:
            return 1.0, (0.0, 1.0), 1.0
        for _ in range(splits):
            fitted, held = np.split(rng.permutation(n), [size])
            low, high = ShareLine(self.x[fitted], self.y[fitted]).interval(self.x[held])
            inside.append(float(((self.y[held] >= low - 1e-9) & (self.y[held] <= high + 1e-9)).mean()))
            width.append(float((high - low).mean()))
        return float(np.mean(inside)), percentile_interval(np.array(inside)), float(np.mean(width))


def directions(host: Host, prompts: PromptSet, listed: Sequence[str] | None = None) -> torch.Tensor:
    """Return unit directions (k, d) of the values: the mean text of each value less the mean of all.

    listed: the texts that the host has embeddings of, where it is a file.

    Raises:
        InvalidInputError: a value without a text.
    """
    own = [text for text in chain(prompts.spurious, *prompts.groups) if listed is None or text in listed]
    by_value = with_words(prompts).by_value(own)
    if empty := [value for value, texts in by_value.items() if not texts]:
        raise InvalidInputError(f"{prompts.name}: no text names {empty} alone; embed all texts of the prompt set")
    rows = torch.stack([host.embed(texts, host.roles[0]).mean(0) for texts in by_value.values()])
    return normalize(rows - rows.mean(0), dim=-1)


def nothing_to_predict(asked: Sequence[str], prompts: PromptSet, known: Sequence[str]) -> list[str]:
    """Return for each prompt why no share is predicted, "" if one is; known: concepts that are persons for certain."""
    words, named, there = StatedWords(prompts.stated_words), with_words(prompts), set(map(subject, known))
    persons = balance_prompts(asked, prompts).reasons if can_balance(prompts) else [None] * len(asked)
    reasons = []
    for text, why in zip(asked, persons, strict=True):
        stated = " and ".join(named.values_in(text)) or "the attribute" * words.match(text)
        empty = "no person found" if (why or "").startswith("no person") and subject(text) not in there else ""
        reasons.append(f"states {stated}" if stated else empty)
    return reasons


def read_prompts(path: str | Path) -> tuple[str, ...]:
    """Read prompts from a text file, one per line; empty lines and those that begin with # are left out."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path!s:.200}: expected a text file in UTF-8, one prompt a line: {error}") from error
    prompts = tuple(dict.fromkeys(line.strip() for line in lines if line.strip() and not line.startswith("#")))
    if not prompts:
        raise InvalidInputError(f"{path}: expected prompts, one a line, got none")
    return prompts


def advised(
    asked: Sequence[str], prompts: PromptSet, table: pd.DataFrame, host: Host, listed: Sequence[str] | None
) -> tuple[pd.DataFrame, list[ShareLine]]:
    """Return prompts with advice and, for each value, share, low and high, the most urgent first; and a line per value.

    table: the calibration. listed: the texts that the host has embeddings of, where it is a file.
    """
    role, values = host.roles[0], table.columns
    whole = [subject(one) != one.casefold() or len(one.split()) > 3 for one in table.index]
    texts = [one if prompt else fill(FORM, concept=one) for one, prompt in zip(table.index, whole, strict=True)]
    kept = [i for i, text in enumerate(texts) if listed is None or text in listed]
    along, rows = directions(host, prompts, listed), host.embed(asked, role)
    own = host.embed([texts[i] for i in kept], role)
    leans, known = (rows @ along.T).numpy().T, (own @ along.T).numpy().T
    lines = [ShareLine(x, shares) for x, shares in zip(known, table.to_numpy()[kept].T, strict=True)]
    near = float((own @ own.T).fill_diagonal_(-1).amax(1).min())  # a calibration text to the nearest other one
    covered = ((rows @ own.T).amax(1) >= near - 1e-9).numpy()
    share = np.stack([line.at(lean) for line, lean in zip(lines, leans, strict=True)])
    share = share / np.maximum(share.sum(0), 1e-12)
    columns: dict[str, Floats] = {}
    for value, line, lean, middle in zip(values, lines, leans, share, strict=True):
        covered &= (line.x.min() <= lean) & (lean <= line.x.max())
        low, high = line.interval(lean)
        columns |= {value: middle, f"{value} low": np.minimum(low, middle), f"{value} high": np.maximum(high, middle)}
    chances = np.stack([line.chance(lean, 1 / len(lines)) for line, lean in zip(lines, leans, strict=True)])
    side, reason = share.argmax(0), np.array(nothing_to_predict(asked, prompts, table.index))
    cases = [reason != "", ~covered, chances[side, np.arange(len(asked))] >= SURE]
    said = [
        [f"{one}: nothing to predict" for one in reason],
        ["not covered: generate and judge some images"] * len(asked),
        [f"leans {value}: rewrite it or use a method" for value in values[side]],
    ]
    advice = np.select(cases, said, [f"perhaps leans {value}: generate some images" for value in values[side]])
    shares = need("pandas").DataFrame(columns)
    shares[reason != ""] = np.nan
    order = np.lexsort((-share.max(0), np.select(cases, [3, 1, 0], 2)))
    frame = need("pandas").DataFrame({"prompt": asked, "advice": advice}).join(shares)
    return frame.iloc[order].reset_index(drop=True), lines


def audit(
    prompts: Sequence[str] | str | Path,
    attribute_set: str | Path | PromptSet,
    *,
    model: Any = None,
    pipe: Any = None,
    texts: Mapping[str, Any] | None = None,
    calibration: pd.DataFrame | str | Path | None = None,
) -> Result:
    """Predict what prompts will show before any image is generated: a share with an interval, from each text.

    Args:
        prompts: texts, or a file with one a line.
        attribute_set: the prompt set of the attribute, "gender".
        model, pipe, texts: one of an image-text model (or what `vldebias.load_host` gives), a pipeline, or a mapping
            prompt -> embedding (d,) that has the prompts, texts of the set, and texts of the calibration's concepts.
        calibration: images that were judged, as a table or its file: a row per image (`prompt`, `value`), or per prompt
            with a column of counts for each value. Default: men and women among images of 153 occupations that Stable
            Diffusion 1.5 generated, 250 each, as the FairFace classifier counted them (Friedrich et al., "Fair
            Diffusion", arXiv 2302.10893).

    Returns:
        A `Result`; its provenance says what to look at first, and has advice on each prompt in `settings["prompts"]`.

    Raises:
        InvalidInputError: not one of model, pipe and texts; a calibration that does not fit.

    >>> vldebias.audit(["a photo of a nurse"], "gender", pipe=pipe).to_pandas()  # doctest: +SKIP
    """
    if sum(one is not None for one in (model, pipe, texts)) != 1:
        raise InvalidInputError("expected one of model=, pipe= and texts=, whose text embeddings are read")
    asked = read_prompts(prompts) if isinstance(prompts, (str, Path)) else tuple(dict.fromkeys(prompts))
    if not asked:
        raise InvalidInputError("prompts: expected one or more, got none")
    own, given, began = load_prompts(attribute_set), model if pipe is None else pipe, time.monotonic()
    if isinstance(given, Loaded):
        host, name = resolve(given.host, tokenizer=given.tokenizer), given.name
    else:
        host = resolve(given) if texts is None else Texts(texts).host
        name = host.model_id or host.name
    table, weights = read_shares(calibration, own), host.fingerprint()
    frame, lines = advised(asked, own, table, host, None if texts is None else tuple(texts))
    values, predicted, r2 = list(table), frame.dropna(), lines[0].r2
    counts, n = Counter(one.partition(":")[0] for one in frame.advice), {"calibration prompts": len(lines[0].x)}
    source = "published counts of Stable Diffusion 1.5" if calibration is None else "given labels"
    said = [
        f"Predicted from texts alone, before any image was generated, by {len(lines[0].x)} judged prompts ({source}). "
        f"Of {len(frame)} prompts: {', '.join(f'{what} {many}' for what, many in counts.most_common())}."
    ]
    for _, first in predicted.head(1).iterrows():
        side = max(values, key=lambda value: first[value])
        ends = f"[{first[f'{side} low']:.0%}, {first[f'{side} high']:.0%}]"
        said.append(f"Look first at “{first.prompt}”: {first[side]:.0%} {side} {ends}.")
    if calibration is None and pipe is not None and PUBLISHED_FOR not in name:
        said.append(f"These counts are not of {name}: expect larger errors, or label images of it (calibration).")
    said.append(f"Each calibration prompt, left out of the line, is predicted with R2 {r2:.2f}.")
    if r2 < POOR:
        said.append("That is hardly better than one share for all prompts: generate and judge images instead.")
    provenance = TaskProvenance(
        task="audit",
        title="What the prompts will show",
        description=" ".join(said),
        model=name,
        fingerprint=None if weights is None else weights.to_dict(),
        prompts=own.name,
        prompts_hash=own.hash,
        split="texts",
        seeds=[0],
        n={"prompts": len(frame), **n},
        settings={
            "calibration": source,
            "intervals": f"jackknife+ (leave one prompt out), {LEVEL:.0%}",
            "prompts": dict(zip(frame.prompt, frame.advice, strict=True)),
        },
    )
    out, shown = TaskResult(provenance), values[: 1 if len(values) == 2 else None]
    for _, row in predicted.iterrows():
        for value in shown:
            bounds = (float(row[f"{value} low"]), float(row[f"{value} high"]))
            out.add("predicted_share", NONE, float(row[value]), bounds, n=n, subset=f"{row.prompt}: {value}")
    for value, line in zip(shown, lines, strict=False):
        of, (inside, between, _) = "" if len(values) == 2 else value, line.coverage()
        out.add("lean_r2", NONE, line.r2, n=n, subset=of)
        out.add("interval_coverage", NONE, inside, between, n=n, subset=of)
    return Result.of("audit", [out], seconds=round(time.monotonic() - began, 3))
