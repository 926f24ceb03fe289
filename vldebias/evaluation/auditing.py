"""Predict what prompts will show before anything is generated: a share from each text alone, with an interval.

The lean of a text is its cosine with the direction between the attribute's values. A line from leans to shares is
fitted on prompts whose images were judged (a `ShareTable`), in the space of the given text encoder, and evaluated at
the prompts in question.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import InstanceOf, PlainSerializer
from torch.nn.functional import normalize

from vldebias.data.tables import check_csv
from vldebias.errors import InvalidInputError, need
from vldebias.evaluation.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.evaluation.session import Session, Texts
from vldebias.evaluation.task import Prompts, Task, register_task
from vldebias.hosts import Host, resolve
from vldebias.loading import Loaded
from vldebias.metrics.bootstrap import percentile_interval
from vldebias.prompts import PromptSet, StatedWords, fill, load_prompts

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
LEAST = 8  # prompts that a calibration needs
SURE = 0.9  # chance of a side from which on a prompt is said to lean
POOR = 0.1  # R2 below which nothing is predicted
FOREIGN = 1.5  # factor of the residuals on a pipeline that the calibration was not made for
PUBLISHED = Path(__file__).parent / "calibrations" / "fair-diffusion.csv"
FORM = "A photo of a {concept}."  # how a calibration's concepts are asked for
WORDS = {"male": ("man", "men", "boy"), "female": ("woman", "women", "girl")}  # besides those of a prompt set
_ARTICLE = r"((an?|the)\s+)?"
_FRAME = re.compile(
    rf"^{_ARTICLE}(photo|photograph|picture|image|portrait|painting|drawing)\s+of\s+(the\s+face\s+of\s+)?{_ARTICLE}"
    rf"|^{_ARTICLE}|[\s.]+$",
    re.IGNORECASE,
)
Floats = NDArray[np.float64]


# ---- shares that somebody judged -----------------------------------------------------------------------------


def subject(text: str) -> str:
    """Return what a prompt is about: "A photo of the face of a nurse." -> "nurse"."""
    return _FRAME.sub("", text.strip()).casefold()


def with_words(prompts: PromptSet) -> PromptSet:
    """Return a prompt set that knows a man for male and a woman for female, as tables call them."""
    words = {value: (*own, *WORDS.get(value.casefold(), ())) for value, own in prompts.attributes.items()}
    return replace(prompts, attributes={value: tuple(dict.fromkeys(own)) for value, own in words.items()})


@dataclass(frozen=True, eq=False)
class ShareTable:
    """Hold the shares (n, k) of k values among images of n concepts ("nurse" or a whole prompt); rows sum to 1.

    about: model (who generated the images), ids (parts of the names of that pipeline), judge, source, licence.
    """

    concepts: tuple[str, ...]
    values: tuple[str, ...]
    shares: Floats
    about: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_counts(
        cls, counts: Mapping[str, Any], values: Sequence[str], about: Mapping[str, str] | None = None
    ) -> ShareTable:
        """Return the table of concept -> number of images per value; concepts without images are left out.

        Raises:
            InvalidInputError: a concept twice, counts that are not one number from 0 on for each value, or all are 0.
        """
        if len(set(map(str.casefold, counts))) < len(counts):
            raise InvalidInputError("shares: a concept stands there twice; add its images up")
        table = np.array([np.asarray(row, dtype=float) for row in counts.values()]).reshape(len(counts), -1)
        if table.shape[1] != len(values) or not (np.isfinite(table).all() and (table >= 0).all() and table.any()):
            raise InvalidInputError(f"shares: expected numbers from 0 on, not all 0, one for each of {list(values)}")
        some = table.sum(1) > 0
        concepts = tuple(concept for concept, held in zip(counts, some, strict=True) if held)
        return cls(concepts, tuple(values), table[some] / table[some].sum(1, keepdims=True), dict(about or {}))

    @classmethod
    def read(cls, path: str | Path, prompts: PromptSet) -> ShareTable:
        """Read a CSV: a row per image (prompt, value), or a row per prompt with a column of counts or shares per value.

        Values are called as in the prompt set or by its words; of a row per image, others are left out. Lines
        "# name: text" before the header say where the table is from.

        Raises:
            InvalidInputError: a file or a cell that cannot be read, columns that are missing.
        """
        pd, values = need("pandas"), tuple(prompts.attributes)
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
            first = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
            check_csv(Path(path), skip=first)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{path}: cannot be read as csv in UTF-8: {error}") from error
        named = {w.casefold(): v for v, own in with_words(prompts).attributes.items() for w in (v, *own)}
        table = pd.read_csv(path, skiprows=first, keep_default_na=False)
        table = table.rename(columns=lambda name: {"concept": "prompt"}.get(name, named.get(name.casefold(), name)))
        per_image = "value" in table.columns
        if not {"prompt", *(["value"] if per_image else values)} <= set(table.columns):
            raise InvalidInputError(
                f"{path}: columns {list(table.columns)}; expected `prompt`, and `value` (a row per image) or a column "
                f"for each of {list(values)} (a row per prompt)"
            )
        if per_image:
            said = pd.get_dummies(table["value"].astype(str).str.strip().str.casefold().map(named), dtype=float)
            table = said.reindex(columns=list(values), fill_value=0.0).groupby(table["prompt"], sort=False).sum()
            table = table.reset_index()
        try:
            counts = table[list(values)].astype(float).to_numpy()
        except ValueError as error:
            raise InvalidInputError(f"{path}: expected numbers from 0 on: {error}") from error
        if table["prompt"].duplicated().any():
            raise InvalidInputError(f"{path}: a prompt stands there twice; add its images up")
        about = {name.strip("# "): text.strip() for name, _, text in (line.partition(":") for line in lines[:first])}
        own = dict(zip(table["prompt"], counts, strict=True))
        return cls.of_counts(own, values, {"source": Path(path).name, **about})


# ---- a line from leans to shares ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ShareLine:
    """Fit shares y (n,) to leans x (n,) by least squares, cut at 0 and 1; all figures on it are out of sample.

    Intervals are those of jackknife+: of the lines that leave one prompt out, each with its error at the prompt that
    it left out (Barber, Candes, Ramdas and Tibshirani, 2021, "Predictive inference with the jackknife+",
    eq. 1.4). For prompts that are exchangeable with those of the calibration they cover in at least 2 LEVEL - 1 of
    cases, and about LEVEL in practice. With fewer than 1 / (1 - LEVEL) - 1 prompts they are all of [0, 1].

    Raises:
        InvalidInputError: fewer than LEAST prompts, or leans that are all alike.
    """

    x: Floats
    y: Floats

    def __post_init__(self) -> None:
        if len(self.x) < LEAST:
            raise InvalidInputError(
                f"calibration: expected {LEAST} prompts or more whose texts and shares are known, got {len(self.x)}; "
                "30 prompts with 8 images each will do"
            )
        if float(np.ptp(self.x)) < 1e-9:
            raise InvalidInputError("calibration: all its texts lean alike, so there is nothing to predict from")

    @cached_property
    def lines(self) -> tuple[Floats, Floats]:
        """Return the slopes and intercepts (n,) of the lines that each leave one prompt out."""
        n = len(self.x) - 1
        sx, sy = self.x.sum() - self.x, self.y.sum() - self.y
        sxx, sxy = (self.x**2).sum() - self.x**2, (self.x * self.y).sum() - self.x * self.y
        spread = sxx - sx**2 / n
        slope = np.divide(sxy - sx * sy / n, spread, out=np.zeros_like(spread), where=spread > 1e-12)
        return slope, (sy - slope * sx) / n

    @cached_property
    def left_out(self) -> Floats:
        """Return each share (n,) as predicted from the other prompts."""
        slope, intercept = self.lines
        return np.clip(slope * self.x + intercept, 0, 1)

    def at(self, x: Floats) -> Floats:
        """Return the predicted shares (m,) at leans (m,)."""
        slope, intercept = np.polyfit(self.x, self.y, 1)
        return np.clip(slope * np.asarray(x) + intercept, 0, 1)

    def _each(self, x: Floats) -> Floats:
        """(m, n) what each line that leaves a prompt out predicts at leans (m,)."""
        slope, intercept = self.lines
        return np.clip(np.outer(np.asarray(x), slope) + intercept, 0, 1)

    def interval(self, x: Floats, wider: float = 1.0) -> tuple[Floats, Floats]:
        """Return the lower and upper ends, (m,) each, of intervals around `at`; `wider` multiplies the residuals."""
        n, each, off = len(self.x), self._each(x), wider * np.abs(self.y - self.left_out)
        rank = int(np.ceil(LEVEL * (n + 1)))
        if rank > n:
            return np.zeros(len(each)), np.ones(len(each))
        low = np.sort(each - off, axis=1)[:, n - rank]
        high = np.sort(each + off, axis=1)[:, rank - 1]
        middle = self.at(x)
        return np.clip(np.minimum(low, middle), 0, 1), np.clip(np.maximum(high, middle), 0, 1)

    def chance(self, x: Floats, parity: float, wider: float = 1.0) -> Floats:
        """Return the probabilities (m,) that shares at leans (m,) exceed parity, from the lines and their errors."""
        moved = self._each(x) + wider * (self.y - self.left_out)
        count: Floats = (moved > parity).sum(1) + 0.5 * (moved == parity).sum(1)
        return (count + 0.5) / (len(self.x) + 1)

    @property
    def r2(self) -> float:
        """Return 1 - squared error of `left_out` over that of the mean; below 0 the mean predicts better."""
        return 1 - float(((self.left_out - self.y) ** 2).sum() / max(((self.y - self.y.mean()) ** 2).sum(), 1e-12))

    def coverage(self, splits: int = 200, seed: int = 0) -> tuple[float, tuple[float, float], float]:
        """Return the fraction of shares that fall inside intervals of lines fitted on two thirds of the prompts.

        The mean over random splits, the middle 95 % of them, and the mean width.
        """
        rng, n = np.random.default_rng(seed), len(self.x)
        inside, width = [], []
        for _ in range(splits):
            order = rng.permutation(n)
            fitted, held = order[: max(LEAST, 2 * n // 3)], order[max(LEAST, 2 * n // 3) :]
            if not len(held) or float(np.ptp(self.x[fitted])) < 1e-9:
                continue
            low, high = ShareLine(self.x[fitted], self.y[fitted]).interval(self.x[held])
            inside.append(float(((self.y[held] >= low - 1e-9) & (self.y[held] <= high + 1e-9)).mean()))
            width.append(float((high - low).mean()))
        if not inside:
            return 1.0, (0.0, 1.0), 1.0
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
        raise InvalidInputError(
            f"{prompts.name}: no text names {empty} alone, so there is no direction to read leans along; embed "
            f"the texts of the set too (`vldebias audit FILE --prompts {prompts.name} --list-texts`)"
        )
    rows = torch.stack([host.embed(texts, host.roles[0]).mean(0) for texts in by_value.values()])
    return normalize(rows - rows.mean(0), dim=-1)


# ---- the task -------------------------------------------------------------------------------------------------

Table = Annotated[
    InstanceOf[ShareTable], PlainSerializer(lambda of: [of.concepts, of.values, of.shares.tolist(), dict(of.about)])
]


@register_task
class AuditTask(Task):
    """Predict shares for prompts from their texts, and measure the calibration's quality out of sample.

    asked: the prompts. prompts: the set of the attribute. calibration: judged shares; None: the published ones of
        Stable Diffusion 1.5, for gender.

    Rows: `predicted_share` of every prompt that does not state the attribute (of two values the first), and of the
    calibration, out of sample, `lean_r2` and `interval_coverage`.
    """

    task: Literal["audit"] = "audit"
    asked: tuple[str, ...]
    prompts: Prompts
    calibration: Table | None = None

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return the text encoder: that of a pipeline, of a model, or a file of embeddings."""
        if session.options.pipeline is not None:
            return {"host": resolve(session.pipeline.host), "name": session.options.pipeline}
        rows = session.text_rows
        return {"host": session.texts.host, "listed": None if rows is None else tuple(rows)}

    def fingerprints(self, session: Session) -> dict[str, Any]:
        """Return the fingerprint of the weights, or of the file of text embeddings."""
        if session.options.pipeline is not None:
            weights = resolve(session.pipeline.host).fingerprint()
            return {"pipeline": weights and weights.to_dict()}
        return {"texts": session.texts.fingerprint, **session.texts.about}

    def _table(self) -> tuple[ShareTable, tuple[str, ...]]:
        """The calibration, and how its concepts are asked for; concepts that are prompts stay as they are."""
        prompts, table = load_prompts(self.prompts), self.calibration
        if table is None and set(prompts.attributes) != {"male", "female"}:
            raise InvalidInputError(
                f"{prompts.name}: the published counts are of male and female alone; calibrate on some images of your "
                "own pipeline, 30 prompts with 8 images each will do: --calibrate judged.csv (columns prompt, value), "
                "calibration= in Python"
            )
        table = table or ShareTable.read(PUBLISHED, prompts)
        if table.values != tuple(prompts.attributes):
            raise InvalidInputError(f"calibration: {prompts.name} has {list(prompts.attributes)}, got {table.values}")
        short = [subject(one) == one.casefold() and len(one.split()) <= 3 for one in table.concepts]
        asked = zip(table.concepts, short, strict=True)
        return table, tuple(fill(FORM, concept=one) if alone else one for one, alone in asked)

    def needed(self) -> tuple[str, ...]:
        """Return every text that is embedded, for users who compute the embeddings elsewhere."""
        prompts = load_prompts(self.prompts)
        return tuple(dict.fromkeys((*self.asked, *self._table()[1], *chain(prompts.spurious, *prompts.groups))))

    def predict(
        self, host: Host, listed: Sequence[str] | None = None, name: str = ""
    ) -> tuple[pd.DataFrame, list[ShareLine], float]:
        """Return a table of prompts, the most urgent first, a line per value, and the factor that widens the residuals.

        Prompts with a clear lean come first, then those outside the calibration, the rest, and stated ones; each by
        share. Columns: prompt, advice; of every value v: v (its share), "v low", "v high", "v above parity" (a chance);
        stated, covered, distance (1 - cosine with the nearest text of the calibration).

        Args:
            host: the text encoder. listed: the texts that it knows, where it is a file. name: of the pipeline that
                will generate, where it is known: one that the calibration was not made for has wider intervals.

        Raises:
            InvalidInputError: no prompts, texts that are missing, a calibration of another attribute or too small.
        """
        if not self.asked:
            raise InvalidInputError("prompts: expected one or more, got none")
        (table, texts), prompts, role = self._table(), load_prompts(self.prompts), host.roles[0]
        if listed is not None:  # a file may ask for a concept in another form
            there = {subject(text): text for text in reversed(listed)}
            texts = tuple(text if text in listed else there.get(subject(text), "") for text in texts)
        kept = [i for i, text in enumerate(texts) if text]
        along, rows = directions(host, prompts, listed), host.embed(self.asked, role)
        own = host.embed([texts[i] for i in kept], role) if kept else rows[:0]
        leans, known = (rows @ along.T).numpy(), (own @ along.T).numpy()
        lines = [ShareLine(known[:, i], shares) for i, shares in enumerate(table.shares[kept].T)]
        foreign = bool(name) and not any(one.strip() in name for one in table.about.get("ids", name).split(","))
        wider = FOREIGN if foreign else 1.0
        distance: Floats = (1 - (rows @ own.T).amax(1)).numpy()
        reach = float(1 - (own @ own.T).fill_diagonal_(-1).amax(1).min())  # of a known text to the nearest other one
        inside = [(line.x.min() <= leans[:, i]) & (leans[:, i] <= line.x.max()) for i, line in enumerate(lines)]
        covered = (distance <= reach + 1e-9) & np.all(inside, 0)
        words, named = StatedWords(prompts.stated_words), with_words(prompts)
        stated = [" and ".join(named.values_in(one)) or "the attribute" * words.match(one) for one in self.asked]
        share = np.stack([line.at(leans[:, i]) for i, line in enumerate(lines)], axis=1)
        share = share / np.maximum(share.sum(1, keepdims=True), 1e-12)
        chances = np.stack([line.chance(leans[:, i], 1 / len(lines), wider) for i, line in enumerate(lines)], 1)
        side, values = share.argmax(1), table.values
        sure = chances[np.arange(len(side)), side] >= SURE
        hidden = np.array(stated) != ""  # nothing is predicted of what is stated
        advice = np.select(
            [hidden, ~covered, sure],
            [
                [f"states {one}: nothing to predict" for one in stated],
                ["not covered: generate and judge some images"] * len(side),
                [f"leans {values[i]}: rewrite it or use a method" for i in side],
            ],
            [f"perhaps leans {values[i]}: generate some images" for i in side],
        )
        columns: dict[str, Any] = {"prompt": list(self.asked), "advice": advice}
        for i, value in enumerate(values):
            low, high = lines[i].interval(leans[:, i], wider)
            ends = {f"{value} low": np.minimum(low, share[:, i]), f"{value} high": np.maximum(high, share[:, i])}
            told = {value: share[:, i], **ends, f"{value} above parity": chances[:, i]}
            columns |= {column: np.where(hidden, np.nan, of) for column, of in told.items()}
        columns |= {"stated": stated, "covered": covered, "distance": distance}
        order = np.lexsort((-share.max(1), np.select([hidden, ~covered, sure], [3, 1, 0], 2)))
        return need("pandas").DataFrame(columns).iloc[order].reset_index(drop=True), lines, wider

    def measure(self, host: Host, listed: Sequence[str] | None = None, name: str = "") -> list[TaskResult]:
        """Measure the predicted share of every prompt; arguments and Raises: see `predict`."""
        asked, lines, wider = self.predict(host, listed, name)
        (table, _), prompts, weights = self._table(), load_prompts(self.prompts), host.fingerprint()
        values, n = table.values, {"calibration prompts": len(lines[0].x)}
        hidden, counts = asked.stated != "", Counter(one.partition(":")[0] for one in asked.advice)
        said = [
            f"Predicted from texts alone, before anything was generated: what "
            f"{table.about.get('model', 'the pipeline whose images were judged')} shows, by {len(lines[0].x)} judged "
            f"prompts ({table.about.get('source', 'given')}). Of {len(asked)} prompts: "
            f"{', '.join(f'{what} {many}' for what, many in counts.most_common())}."
        ]
        for _, first in asked[~hidden].head(1).iterrows():
            side = max(values, key=lambda value: first[value])
            ends = f"[{first[f'{side} low']:.0%}, {first[f'{side} high']:.0%}]"
            said.append(f"Look first at “{first.prompt}”: {first[side]:.0%} {side} {ends}.")
        if wider > 1:
            said.append(f"The calibration was not made for {name}: its intervals are {wider:g} times as wide.")
        said.append(f"Each calibrated prompt, left out of the line, is predicted with R2 {lines[0].r2:.2f}.")
        if lines[0].r2 < POOR:
            said.append("That is hardly better than one share for all prompts: these texts do not tell; generate.")
        provenance = TaskProvenance(
            task=self.name,
            description=" ".join(said),
            model=name or str(host.model_id or host.name),
            fingerprint=None if weights is None else weights.to_dict(),
            prompts=prompts.name,
            prompts_hash=prompts.hash,
            split="texts",
            seeds=[self.seed],
            n={"prompts": len(asked), **n},
            settings={
                "calibration": dict(table.about),
                "intervals": f"jackknife+ (leave one prompt out), {LEVEL:.0%}, residuals times {wider:g}",
                "coverage": "of lines fitted on two thirds of the calibration's prompts, over 200 splits",
                "stated": asked.prompt[hidden].tolist(),
                "not covered": asked.prompt[~asked.covered & ~hidden].tolist(),
            },
        )
        out, shown = TaskResult(provenance), values[: 1 if len(values) == 2 else None]
        for _, one in asked[~hidden].iterrows():
            for value in shown:
                bounds = (float(one[f"{value} low"]), float(one[f"{value} high"]))
                out.add("predicted_share", NONE, float(one[value]), bounds, n=n, subset=f"{one.prompt}: {value}")
        for value, line in zip(shown, lines, strict=False):
            of, (inside, between, _) = "" if len(values) == 2 else value, line.coverage(seed=self.seed)
            out.add("lean_r2", NONE, line.r2, n=n, subset=of)
            out.add("interval_coverage", NONE, inside, between, n=n, subset=of)
        return [out]


def read_prompts(path: str | Path) -> tuple[str, ...]:
    """Read prompts from a text file, one per line; empty lines and those that begin with # are left out."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{path!s:.200}: cannot be read as text in UTF-8: {error}; expected a file with one prompt a line (in "
            "Python a list of prompts will do)"
        ) from error
    prompts = tuple(dict.fromkeys(line.strip() for line in lines if line.strip() and not line.startswith("#")))
    if not prompts:
        raise InvalidInputError(f"{path}: expected prompts, one a line, got none")
    return prompts


def audit(
    prompts: Sequence[str] | str | Path,
    attribute_set: str | Path | PromptSet,
    *,
    model: Any = None,
    pipe: Any = None,
    texts: Mapping[str, Any] | None = None,
    calibration: ShareTable | str | Path | None = None,
) -> Result:
    """Predict what prompts will show before anything is generated: a share and its interval from each text.

    Args:
        prompts: texts, or a file with one a line.
        attribute_set: the prompt set of the attribute, "gender".
        model, pipe, texts: one of an image-text model (or what `vldebias.load_host` gives), a pipeline, or a mapping
            prompt -> embedding (d,) that has the prompts, texts of the set, and texts of the calibration's concepts.
        calibration: shares that were judged, or a CSV of them (see `ShareTable.read`). Default: men and women among
            images of 153 occupations that Stable Diffusion 1.5 generated, 250 each, as the FairFace classifier counted
            them (Friedrich et al., "Fair Diffusion", arXiv 2302.10893).

    Returns:
        A `Result` of one task, "audit"; the description of its provenance says what to look at first.

    Raises:
        InvalidInputError: not one of model, pipe and texts; a calibration that does not fit.

    >>> vldebias.audit(["a photo of a nurse"], "gender", pipe=pipe).to_pandas()  # doctest: +SKIP
    """
    if sum(one is not None for one in (model, pipe, texts)) != 1:
        raise InvalidInputError("expected one of model=, pipe= and texts=, whose texts are read")
    own, began = load_prompts(attribute_set), time.monotonic()
    if calibration is not None and not isinstance(calibration, ShareTable):
        calibration = ShareTable.read(calibration, own)
    asked = read_prompts(prompts) if isinstance(prompts, (str, Path)) else tuple(dict.fromkeys(prompts))
    task, given = build_task(asked, own, calibration), model if pipe is None else pipe
    if texts is not None:
        parts = task.measure(Texts(texts).host, tuple(texts))
    else:
        loaded = given if isinstance(given, Loaded) else None
        host = resolve(loaded.host, tokenizer=loaded.tokenizer) if loaded else resolve(given)
        name = loaded.name if loaded else host.model_id or host.name
        parts = task.measure(host, name=name if pipe is not None else "")
    return Result.of("audit", parts, seconds=round(time.monotonic() - began, 3))


def build_task(
    asked: Sequence[str], prompts: str | Path | PromptSet, calibration: ShareTable | None = None, seed: int = 0
) -> AuditTask:
    """Return the task that `audit` and the command run."""
    fields = {"name": "audit", "title": "What the prompts will show", "asked": tuple(asked), "prompts": prompts}
    return AuditTask.build({**fields, "calibration": calibration, "seed": seed})
