"""Predict what prompts will show before anything is generated: a share from each text alone, with an interval.

The lean of a text is its cosine with the direction between the attribute's values. A line from leans to shares is
fitted on prompts whose images somebody has judged (a `ShareTable`), in the space of whatever text encoder is at hand,
and read at the prompts in question. `vldebias.audit` asks it in Python, `vldebias audit` of a file.
"""

from __future__ import annotations

import csv
import hashlib
import json
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
from vldebias.evaluation.images import names_of
from vldebias.evaluation.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.evaluation.task import Prompts, Session, Task, Texts, register_task
from vldebias.files import unshielded
from vldebias.hosts import Host, resolve
from vldebias.loading import Loaded
from vldebias.metrics.bootstrap import percentile_interval, wilson_interval
from vldebias.prompts import PromptSet, StatedWords, fill, load_prompts

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
LEAST = 8  # prompts that a calibration needs
SURE = 0.9  # chance of a side from which on a prompt is said to lean
POOR = 0.1  # R2 below which nothing is predicted
FOREIGN = 1.5  # residuals count so often on a pipeline that the calibration was not made for
PUBLISHED = Path(__file__).parent / "calibrations" / "fair-diffusion.csv"
WORDS = {"male": ("man", "men", "boy"), "female": ("woman", "women", "girl")}  # beside those of a prompt set
WORDS_OF_CONCEPT = 3  # at most, beside a photo of a
PROMPT, VALUE, COUNT = ("prompt", "concept", "occupation", "query"), ("value", "label"), ("images", "count", "n")
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


def form_of(prompt: str) -> str | None:
    """Return how a prompt asks: "A photo of an actor." -> "A photo of a {concept}."; None if it says more."""
    about = subject(prompt)
    if not about or len(about.split()) > WORDS_OF_CONCEPT:
        return None
    start = prompt.casefold().rindex(about)
    before = re.sub(r"\b([Aa])n $", r"\1 ", prompt[:start])  # `fill` makes it fit
    return f"{before}{{concept}}{prompt[start + len(about) :]}"


def with_words(prompts: PromptSet) -> PromptSet:
    """Return a prompt set that knows a man for male and a woman for female, as tables and older prompts call them."""
    words = {value: (*own, *WORDS.get(value.casefold(), ())) for value, own in prompts.attributes.items()}
    return replace(prompts, attributes={value: tuple(dict.fromkeys(own)) for value, own in words.items()})


@dataclass(frozen=True, eq=False)
class ShareTable:
    """Shares (n, k) of k values among the images of each of n concepts.

    Attributes:
        concepts: what a row is about, "nurse" or a whole prompt, each once.
        values: names of the columns.
        shares: (n, k); rows sum to 1.
        about: model (who generated them), ids (parts of the names by which a pipeline is known for it), prompt (with
            {concept}), judge, source, licence.

    Raises:
        InvalidInputError: shapes that do not fit, a concept twice, shares that are none.
    """

    concepts: tuple[str, ...]
    values: tuple[str, ...]
    shares: Floats
    about: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, k = len(self.concepts), len(self.values)
        if self.shares.shape != (n, k) or k < 2 or not n:
            raise InvalidInputError(
                f"shares: expected a row for each of {n} concepts and a column for each of {k} values, two or more, "
                f"got {self.shares.shape}"
            )
        if len(set(map(str.casefold, self.concepts))) < n:
            raise InvalidInputError("shares: a concept stands there twice; add its images up")
        if not (np.isfinite(self.shares).all() and (self.shares >= 0).all() and np.allclose(self.shares.sum(1), 1)):
            raise InvalidInputError("shares: expected numbers from 0 on that sum to 1 in every row")

    def __len__(self) -> int:
        return len(self.concepts)

    @classmethod
    def of_counts(
        cls, counts: Mapping[str, Any], values: Sequence[str], about: Mapping[str, str] | None = None
    ) -> ShareTable:
        """Make one from concept -> how many images showed each value; concepts without any are left out."""
        kept = {concept: np.asarray(row, dtype=float) for concept, row in counts.items() if sum(row) > 0}
        if not kept:
            raise InvalidInputError(f"shares: no image shows one of {list(values)}")
        table = np.stack(list(kept.values()))
        return cls(tuple(kept), tuple(values), table / table.sum(1, keepdims=True), dict(about or {}))

    @classmethod
    def published(cls, prompts: PromptSet) -> ShareTable:
        """Read men and women among images of 153 occupations, 250 each, that Stable Diffusion 1.5 generated.

        Source: Friedrich et al., "Fair Diffusion" (arXiv 2302.10893), the counts of its repository (Apache-2.0). The
        labels are those of the FairFace classifier.

        Raises:
            InvalidInputError: a prompt set of another attribute.
        """
        if {value.casefold() for value in prompts.attributes} != {"male", "female"}:
            raise InvalidInputError(
                f"{prompts.name}: published counts are of the values male and female alone, got "
                f"{list(prompts.attributes)}; calibrate on some images of your own pipeline, 30 prompts with 8 "
                "images each will do: --calibrate judged.csv (columns prompt, value), calibration= in Python"
            )
        return cls.read(PUBLISHED, prompts)

    @classmethod
    def read(cls, path: str | Path, prompts: PromptSet) -> ShareTable:
        """Read a CSV: a row per image (prompt, value, perhaps a count), or a row per prompt and a column per value.

        The first is what a judge or people said of images; values that the prompt set does not know are left out. The
        second has counts, shares or percentages; of two values one column is enough. Columns are called as in the set,
        or by its words; lines "# name: text" before the header say where it is from.

        Raises:
            InvalidInputError: a file or a cell that cannot be read, columns that are missing.
        """
        path, words, values = Path(path), with_words(prompts).attributes, tuple(prompts.attributes)
        named = {word.casefold(): value for value, own in words.items() for word in (*own, value)}
        about, header, rows = _cells(path)
        columns = {name: named[name.casefold()] for name in header if name.casefold() in named}
        text, value, many = (
            next((name for name in header if name.casefold() in names), None) for names in (PROMPT, VALUE, COUNT)
        )
        lacking = [one for one in values if one not in columns.values()]
        alone = len(lacking) == 1 and len(values) == 2  # one column of two values: the other one is the rest
        if text is None or (value is None and lacking and not alone):
            raise InvalidInputError(
                f"{path}: columns {header}; expected one of {list(PROMPT)}, and beside it `value` (a row per image) or "
                f"a column for each of {list(values)} (a row per prompt)"
            )
        counts = dict[str, Floats]()
        for line, row in rows:
            if value is not None:
                if (known := named.get(row[value].casefold())) is not None:
                    own = counts.setdefault(row[text], np.zeros(len(values)))
                    own[values.index(known)] += 1 if many is None else _number(row[many], path, line)
            elif any(row[name] for name in columns):
                if row[text] in counts:
                    raise InvalidInputError(f"{path}: {row[text]} stands there twice; add its images up")
                numbers = {columns[name]: _number(row[name], path, line) for name in columns}
                counts[row[text]] = np.array([numbers.get(one, -1) for one in values])
        if value is None and alone:
            most = max((own.max() for own in counts.values()), default=0)
            whole = 1.0 if most <= 1 else 100.0
            if most > whole:
                raise InvalidInputError(f"{path}: one column of two values has shares, got {most:g}")
            counts = {name: np.where(own < 0, whole - own.max(), own) / whole for name, own in counts.items()}
        return cls.of_counts(counts, values, {"source": path.name, **about})

    def find(self, text: str) -> Floats | None:
        """Return the shares (k,) of what a prompt is about, or None."""
        about = subject(text)
        return next((self.shares[i] for i, one in enumerate(self.concepts) if subject(one) == about), None)

    def digest(self) -> str:
        """Return the SHA-256 of all of it."""
        content: list[Any] = [self.concepts, self.values, self.shares.tolist(), dict(self.about)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _cells(path: Path) -> tuple[dict[str, str], list[str], list[tuple[int, dict[str, str]]]]:
    """Return what the comments say, the header, and every row with its line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        first = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
        header = check_csv(path, skip=first)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path}: cannot be read as csv in UTF-8: {error}") from error
    comments = (line.lstrip("# ").partition(":") for line in lines[:first])
    about = {name.strip(): text.strip() for name, colon, text in comments if colon}
    reader, rows = csv.DictReader(lines[first:], strict=True), []
    for row in reader:
        cells = {key: unshielded((cell or "").strip()) for key, cell in row.items() if key}
        rows.append((first + reader.line_num, cells))
    return about, header, rows


def _number(cell: str, path: Path, line: int) -> float:
    try:
        number = float(cell.removesuffix("%").replace(",", ""))
    except ValueError:
        number = -1.0
    if not 0 <= number < np.inf:
        raise InvalidInputError(f"{path}: line {line}: expected a number from 0 on, got {cell!r}")
    return number


# ---- a line from leans to shares ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ShareLine:
    """Least squares of shares y (n,) on leans x (n,), cut at 0 and 1; every statement on it is out of sample.

    Intervals are those of jackknife+: of the lines that leave one prompt out, each with how far it was off at the
    prompt that it left out (Barber, Candes, Ramdas and Tibshirani, 2021, "Predictive inference with the jackknife+",
    eq. 1.4). For prompts that are exchangeable with those of the calibration they cover in at least 2 LEVEL - 1 of
    cases, and about LEVEL in practice. With fewer than 1 / (1 - LEVEL) - 1 prompts they are all of [0, 1].

    Raises:
        InvalidInputError: fewer than LEAST prompts, or leans that are all alike.
    """

    x: Floats
    y: Floats

    def __post_init__(self) -> None:
        if len(self.x) < LEAST or len(self.x) != len(self.y):
            raise InvalidInputError(
                f"calibration: expected {LEAST} prompts or more whose texts and shares are known, got {len(self.x)}; "
                "30 prompts with 8 images each will do"
            )
        if float(np.ptp(self.x)) < 1e-9:
            raise InvalidInputError("calibration: all its texts lean alike, so there is nothing to predict from")

    @cached_property
    def lines(self) -> tuple[Floats, Floats]:
        """Slopes and intercepts (n,) of the lines that leave each prompt out."""
        n = len(self.x) - 1
        sx, sy = self.x.sum() - self.x, self.y.sum() - self.y
        sxx, sxy = (self.x**2).sum() - self.x**2, (self.x * self.y).sum() - self.x * self.y
        spread = sxx - sx**2 / n
        slope = np.divide(sxy - sx * sy / n, spread, out=np.zeros_like(spread), where=spread > 1e-12)
        return slope, (sy - slope * sx) / n

    @cached_property
    def left_out(self) -> Floats:
        """(n,) each share as predicted from the other prompts."""
        slope, intercept = self.lines
        return np.clip(slope * self.x + intercept, 0, 1)

    def at(self, x: Floats) -> Floats:
        """Return predicted shares (m,) at leans (m,)."""
        slope, intercept = np.polyfit(self.x, self.y, 1)
        return np.clip(slope * np.asarray(x) + intercept, 0, 1)

    def _each(self, x: Floats) -> Floats:
        """(m, n) what each line that leaves a prompt out predicts at leans (m,)."""
        slope, intercept = self.lines
        return np.clip(np.outer(np.asarray(x), slope) + intercept, 0, 1)

    def interval(self, x: Floats, wider: float = 1.0) -> tuple[Floats, Floats]:
        """Return ends (m,), (m,) around `at`; residuals are multiplied by `wider`."""
        n, each, off = len(self.x), self._each(x), wider * np.abs(self.y - self.left_out)
        rank = int(np.ceil(LEVEL * (n + 1)))
        if rank > n:
            return np.zeros(len(each)), np.ones(len(each))
        low = np.sort(each - off, axis=1)[:, n - rank]
        high = np.sort(each + off, axis=1)[:, rank - 1]
        middle = self.at(x)
        return np.clip(np.minimum(low, middle), 0, 1), np.clip(np.maximum(high, middle), 0, 1)

    def chance(self, x: Floats, parity: float, wider: float = 1.0) -> Floats:
        """Return the chances (m,) that the shares at leans (m,) are above parity.

        They are those of the same lines, each moved by how far it was off, in the direction in which it was.
        """
        moved = self._each(x) + wider * (self.y - self.left_out)
        count: Floats = (moved > parity).sum(1) + 0.5 * (moved == parity).sum(1)
        return (count + 0.5) / (len(self.x) + 1)

    @property
    def r2(self) -> float:
        """1 - squared error of `left_out` over that of the mean; below 0 where the mean predicts better."""
        return 1 - float(((self.left_out - self.y) ** 2).sum() / max(((self.y - self.y.mean()) ** 2).sum(), 1e-12))

    def right_side(self, parity: float) -> tuple[int, int]:
        """Return how many prompts are predicted on their side of parity, and how many have a side."""
        sided = self.y != parity
        return int(((self.left_out > parity) == (self.y > parity))[sided].sum()), int(sided.sum())

    def correlation(self, resamples: int = 2000, seed: int = 0) -> tuple[float, tuple[float, float]]:
        """Return Pearson's r of leans and shares with its percentile interval over prompts."""
        rng, n = np.random.default_rng(seed), len(self.x)
        rows = np.vstack([np.arange(n), rng.integers(n, size=(resamples, n))])
        x, y = self.x[rows], self.y[rows]
        x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
        size = np.sqrt((x**2).sum(1) * (y**2).sum(1))
        r = np.divide((x * y).sum(1), size, out=np.zeros(len(rows)), where=size > 1e-12)
        return float(r[0]), percentile_interval(r[1:])

    def coverage(self, splits: int = 200, seed: int = 0) -> tuple[float, tuple[float, float], float]:
        """Return how many shares are inside of the intervals of lines that were fitted on two thirds of the prompts.

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


# ---- a calibration in the space of an encoder -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Leans:
    """Directions (k, d) of the values of an attribute: the mean text of each less the mean of all, of length 1."""

    host: Host
    rows: torch.Tensor

    @classmethod
    def of(cls, host: Host, prompts: PromptSet, listed: Sequence[str] | None) -> Leans:
        """Read them off the texts of the set, or, of a file that lacks some of them, off its texts that name one value.

        Raises:
            InvalidInputError: a value without a text.
        """
        own = tuple(chain(prompts.spurious, *prompts.groups))
        if listed is not None and not set(own) <= set(listed):
            own = tuple(listed)
        by_value = with_words(prompts).by_value(own)
        empty = [value for value, texts in by_value.items() if not texts]
        if empty:
            raise InvalidInputError(
                f"{prompts.name}: no text names {empty} alone, so there is no direction to read leans along; embed "
                f"the texts of the set too (`vldebias audit FILE --prompts {prompts.name} --list-texts`)"
            )
        rows = torch.stack([host.embed(texts, host.roles[0]).mean(0) for texts in by_value.values()])
        return cls(host, normalize(rows - rows.mean(0), dim=-1))

    def at(self, rows: torch.Tensor) -> Floats:
        """Return the leans (m, k) of embedded texts (m, d)."""
        products: Floats = (rows @ self.rows.T).numpy()
        return products


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibration in the space of one encoder: its texts, their leans, and a line for each value.

    wider: what residuals are multiplied by.
    """

    leans: Leans
    table: ShareTable
    texts: tuple[str, ...]
    wider: float

    @cached_property
    def rows(self) -> torch.Tensor:
        """(n, d) texts of the calibration."""
        return self.leans.host.embed(self.texts, self.leans.host.roles[0])

    @cached_property
    def lines(self) -> tuple[ShareLine, ...]:
        """A line for each value."""
        leans = self.leans.at(self.rows)
        return tuple(ShareLine(leans[:, i], self.table.shares[:, i]) for i in range(len(self.table.values)))

    @cached_property
    def reach(self) -> float:
        """How far a text of the calibration is from its nearest neighbour there, at most: 1 - cosine."""
        cosines = self.rows @ self.rows.T
        return float(1 - cosines.fill_diagonal_(-1).amax(1).min())

    def ask(self, prompts: Sequence[str], about: PromptSet) -> pd.DataFrame:
        """Predict every prompt: a row each, what to look at first on top.

        Sure leans come first, then what the calibration does not cover, then the rest, what was judged and what is
        stated; each by its share. Columns: prompt, advice; of every value v: v (its share), "v low", "v high", "v above
        parity" (a chance), "v lean", "v judged" (what the calibration itself has of it, by the same pipeline); stated,
        covered, distance (1 - cosine with the nearest text of the calibration).
        """
        values, even = self.table.values, 1 / len(self.table.values)
        rows = self.leans.host.embed(prompts, self.leans.host.roles[0])
        leans = self.leans.at(rows)
        distance: Floats = (1 - (rows @ self.rows.T).amax(1)).numpy()
        share = np.stack([line.at(leans[:, i]) for i, line in enumerate(self.lines)], axis=1)
        share = share / np.maximum(share.sum(1, keepdims=True), 1e-12)
        inside = [(line.x.min() <= leans[:, i]) & (leans[:, i] <= line.x.max()) for i, line in enumerate(self.lines)]
        covered = (distance <= self.reach + 1e-9) & np.all(inside, 0)
        words, named = StatedWords(about.stated_words), with_words(about)
        stated = [
            " and ".join(named.values_in(one)) or ("the attribute" if words.match(one) else "") for one in prompts
        ]
        found = [self.table.find(one) if self.wider == 1 else None for one in prompts]
        judged = np.array([np.full(len(values), np.nan) if one is None else one for one in found])
        columns: dict[str, Any] = {"prompt": list(prompts), "advice": ""}
        hidden = np.array([bool(one) for one in stated])  # nothing is predicted of what is stated
        for i, (value, line) in enumerate(zip(values, self.lines, strict=True)):
            low, high = line.interval(leans[:, i], self.wider)
            own = {
                value: share[:, i],
                f"{value} low": np.minimum(low, share[:, i]),
                f"{value} high": np.maximum(high, share[:, i]),
                f"{value} above parity": line.chance(leans[:, i], even, self.wider),
            }
            columns |= {name: np.where(hidden, np.nan, column) for name, column in own.items()}
            columns |= {f"{value} lean": leans[:, i], f"{value} judged": judged[:, i]}
        side = share.argmax(1)
        chances = np.stack([columns[f"{value} above parity"] for value in values], 1)
        sure = chances[np.arange(len(side)), side] >= SURE
        known = ~np.isnan(judged[:, 0])
        for i in range(len(side)):
            first = values[int(judged[i].argmax() if known[i] else side[i])]
            if hidden[i]:
                advice = f"states {stated[i]}: nothing to predict"
            elif known[i]:
                advice = f"judged before: {judged[i].max():.0%} {first}"
            elif not covered[i]:
                advice = "not covered: generate and judge some images"
            elif sure[i]:
                advice = f"leans {first}: rewrite it or use a method"
            else:
                advice = f"perhaps leans {first}: generate some images"
            columns["advice"] = [*columns["advice"], advice]
        columns |= {"stated": stated, "covered": covered, "distance": distance}
        place = np.select([hidden, known, ~covered, sure], [4, 3, 1, 0], 2)
        order = np.lexsort((-share.max(1), place))
        return need("pandas").DataFrame(columns).iloc[order].reset_index(drop=True)


# ---- the task -------------------------------------------------------------------------------------------------

Table = Annotated[InstanceOf[ShareTable], PlainSerializer(ShareTable.digest)]


@register_task
class AuditTask(Task):
    """Predicted shares of prompts from their texts, and the calibration's quality out of sample.

    asked: the prompts. prompts: the set of the attribute. calibration: judged shares; None: the published ones of
        Stable Diffusion 1.5, for gender.
    form: how the calibration's concepts are asked for, with {concept}; by default as most prompts ask for theirs,
        "A photo of a {concept}.", else as its images were.

    Rows: `predicted_share` of every prompt that does not state the attribute (of two values the first), and of the
    calibration, out of sample, `lean_r`, `lean_r2`, `side_right` and `interval_coverage`.
    """

    task: Literal["audit"] = "audit"
    asked: tuple[str, ...]
    prompts: Prompts
    calibration: Table | None = None
    form: str | None = None

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """The one set."""
        return names_of([self.prompts])

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return the text side of a pipeline, a model or a file."""
        if session.options.pipeline is not None:
            return {"host": resolve(session.pipeline.host), "name": session.options.pipeline}
        rows = session.text_rows
        return {"host": session.texts.host, "listed": None if rows is None else tuple(rows)}

    def fingerprints(self, session: Session) -> dict[str, Any]:
        """Return the weights, or the file of texts."""
        if session.options.pipeline is not None:
            weights = resolve(session.pipeline.host).fingerprint()
            return {"pipeline": weights and weights.to_dict()}
        return {"texts": session.texts.fingerprint, **session.texts.about}

    def table(self) -> ShareTable:
        """Return what is calibrated on."""
        return self.calibration or ShareTable.published(load_prompts(self.prompts))

    def needed(self) -> tuple[str, ...]:
        """Return every text that is embedded, for those who embed elsewhere."""
        prompts = load_prompts(self.prompts)
        own = (*self.asked, *self._forms(self.table()), *chain(prompts.spurious, *prompts.groups))
        return tuple(dict.fromkeys(own))

    def _forms(self, table: ShareTable) -> tuple[str, ...]:
        """Return the calibration's concepts as most prompts ask for theirs; concepts that are prompts as they are."""
        forms = Counter(form for form in map(form_of, self.asked) if form is not None)
        form = self.form or (forms.most_common(1)[0][0] if forms else table.about.get("prompt", "{concept}"))
        return tuple(
            fill(form, concept=one) if subject(one) == one.casefold() and len(one.split()) <= WORDS_OF_CONCEPT else one
            for one in table.concepts
        )

    def calibrated(self, host: Host, listed: Sequence[str] | None = None, name: str = "") -> Calibrated:
        """Return the calibration under an encoder; of a file, its concepts that the file has in one form or another.

        Raises:
            InvalidInputError: fewer concepts than a calibration needs; prompts that the file lacks.
        """
        table, prompts = self.table(), load_prompts(self.prompts)
        if set(table.values) != set(prompts.attributes):
            raise InvalidInputError(
                f"calibration: is of {list(table.values)}; {prompts.name} has {list(prompts.attributes)}"
            )
        texts, kept = self._forms(table), list(range(len(table)))
        if listed is not None:
            there = {subject(text): text for text in reversed(listed)}
            texts = tuple(text if text in set(listed) else there.get(subject(text), "") for text in texts)
            kept = [i for i in kept if texts[i]]
            listed = [text for text in listed if text not in set(self.asked) - set(prompts.texts)]
        if len(kept) < LEAST:
            raise InvalidInputError(
                f"calibration: expected {LEAST} prompts or more whose texts and shares are known, got {len(kept)}"
            )
        order = [list(table.values).index(value) for value in prompts.attributes]
        concepts = tuple(table.concepts[i] for i in kept)
        table = replace(table, concepts=concepts, values=tuple(prompts.attributes), shares=table.shares[kept][:, order])
        foreign = bool(name) and not any(one.strip() in name for one in table.about.get("ids", name).split(","))
        leans = Leans.of(host, prompts, listed)
        return Calibrated(leans, table, tuple(texts[i] for i in kept), FOREIGN if foreign else 1.0)

    def measure(self, host: Host, listed: Sequence[str] | None = None, name: str = "") -> list[TaskResult]:
        """Predict every prompt.

        Args:
            host: the text encoder. listed: the texts that it knows, where it is a file. name: of the pipeline that
                will generate, where it is known: one that the calibration was not made for has wider intervals.

        Raises:
            InvalidInputError: no prompts, texts that are missing, a calibration of another attribute or too small.
        """
        if not self.asked:
            raise InvalidInputError("prompts: expected one or more, got none")
        prompts = load_prompts(self.prompts)
        known = self.calibrated(host, listed, name)
        asked = known.ask(self.asked, prompts)
        out = TaskResult(self._provenance(host, known, prompts, asked, name))
        values, n = known.table.values, {"calibration prompts": len(known.texts)}
        shown = values[: 1 if len(values) == 2 else None]
        for _, one in asked[asked.stated == ""].iterrows():
            for value in shown:
                ends = (float(one[f"{value} low"]), float(one[f"{value} high"]))
                out.add("predicted_share", NONE, float(one[value]), ends, n=n, subset=f"{one.prompt}: {value}")
        for value, line in zip(shown, known.lines, strict=False):
            of = "" if len(values) == 2 else value
            r, ends = line.correlation(self.resamples, self.seed)
            out.add("lean_r", NONE, r, ends, n=n, subset=of)
            out.add("lean_r2", NONE, line.r2, n=n, subset=of)
            right, sided = line.right_side(1 / len(values))
            if sided:
                out.add("side_right", NONE, right / sided, wilson_interval(right, sided), n=n, subset=of)
            inside, between, _ = line.coverage(seed=self.seed)
            out.add("interval_coverage", NONE, inside, between, n=n, subset=of)
        out.provenance.description = _sentences(asked, known, name)
        return [out]

    def _provenance(
        self, host: Host, known: Calibrated, prompts: PromptSet, asked: pd.DataFrame, name: str
    ) -> TaskProvenance:
        weights = host.fingerprint()
        wider = f", residuals times {known.wider:g}" if known.wider > 1 else ""
        return TaskProvenance(
            task=self.name,
            description="",
            model=name or str(host.model_id or host.name),
            fingerprint=None if weights is None else weights.to_dict(),
            prompts=prompts.name,
            prompts_hash=prompts.hash,
            split="texts",
            seeds=[self.seed],
            n={"prompts": len(asked), "calibration prompts": len(known.texts)},
            settings={
                "calibration": dict(known.table.about),
                "calibration texts": f"{known.texts[0]!r} and {len(known.texts) - 1} more",
                "intervals": f"jackknife+ (leave one prompt out), {LEVEL:.0%}{wider}",
                "coverage": "of lines fitted on two thirds of the calibration's prompts, over 200 splits",
                "covered": f"nearest calibration text within 1 - cosine {known.reach:.3f}, lean inside of their range",
                "stated": asked.prompt[asked.stated != ""].tolist(),
                "not covered": asked.prompt[~asked.covered & (asked.stated == "")].tolist(),
            },
        )


def _sentences(asked: pd.DataFrame, known: Calibrated, name: str) -> str:
    """Return what the page says first."""
    table, line, values = known.table, known.lines[0], known.table.values
    who = table.about.get("model", "the pipeline whose images were judged")
    counts = Counter(one.partition(":")[0] for one in asked.advice)
    sentences = [
        f"Predicted from texts alone, before anything was generated: what {who} shows, by {len(line.x)} judged prompts "
        f"({table.about.get('source', 'given')}). Of {len(asked)} prompts: "
        f"{', '.join(f'{what} {n}' for what, n in counts.most_common())}."
    ]
    open_ = asked[asked.stated == ""]
    if len(open_):
        first = open_.iloc[0]
        side = max(values, key=lambda value: first[value])
        sentences.append(
            f"Look first at “{first.prompt}”: {first[side]:.0%} {side} [{first[f'{side} low']:.0%}, "
            f"{first[f'{side} high']:.0%}], above parity with a chance of {first[f'{side} above parity']:.0%}."
        )
    if known.wider > 1:
        sentences.append(
            f"The calibration was not made for {name}: its intervals are {known.wider:g} times as wide, and still "
            "only as good as the two lean alike; calibrate on some images of your own."
        )
    sentences.append(f"Each calibrated prompt, left out of the line, is predicted with R2 {line.r2:.2f}.")
    if line.r2 < POOR:
        sentences.append("That is hardly better than one share for all prompts: these texts do not tell; generate.")
    return " ".join(sentences)


def read_prompts(path: str | Path) -> tuple[str, ...]:
    """Read prompts of a text file, one a line; empty lines and those that begin with # are left out."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{path!s:.200}: cannot be read as text in UTF-8: {error}; expected a file with one prompt a line (in "
            "Python a list of prompts will do)"
        ) from error
    if "\0" in text:
        raise InvalidInputError(f"{path}: holds zero bytes, as no text does; expected a file with one prompt a line")
    lines = text.splitlines()
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
        calibration: shares that were judged, or a CSV of them (see `ShareTable.read`). Default: the published counts
            of Stable Diffusion 1.5, men and women.

    Returns:
        A `Result` of one task, "audit"; the description of its provenance says what to look at first.

    Raises:
        InvalidInputError: not one of model, pipe and texts; a calibration that does not fit.

    >>> vldebias.audit(["a photo of a nurse"], "gender", pipe=pipe).to_pandas()  # doctest: +SKIP
    """
    if sum(one is not None for one in (model, pipe, texts)) != 1:
        raise InvalidInputError("expected one of model=, pipe= and texts=, whose texts are read")
    own = load_prompts(attribute_set)
    if calibration is not None and not isinstance(calibration, ShareTable):
        calibration = ShareTable.read(calibration, own)
    asked = read_prompts(prompts) if isinstance(prompts, (str, Path)) else tuple(dict.fromkeys(prompts))
    task = build_task(asked, own, calibration)
    given: dict[str, Any] = {}
    if texts is not None:
        given = {"host": Texts(texts).host, "listed": tuple(texts)}
    else:
        loaded = model if isinstance(model, Loaded) else pipe if isinstance(pipe, Loaded) else None
        host = resolve(loaded.host, tokenizer=loaded.tokenizer) if loaded else resolve(model if pipe is None else pipe)
        name = loaded.name if loaded else host.model_id or host.name
        given = {"host": host, "name": name if pipe is not None else ""}
    began = time.monotonic()
    parts = task.measure(**given)
    return Result.of("audit", parts, seconds=round(time.monotonic() - began, 3))


def build_task(
    asked: Sequence[str], prompts: str | Path | PromptSet, calibration: ShareTable | None = None, seed: int = 0
) -> AuditTask:
    """Return the task as `audit` and the command ask it."""
    fields = {"name": "audit", "title": "What the prompts will show", "asked": tuple(asked), "prompts": prompts}
    return AuditTask.build({**fields, "calibration": calibration, "seed": seed})
