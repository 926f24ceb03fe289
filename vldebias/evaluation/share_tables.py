"""Shares of an attribute's values by what was asked for: published counts, judged images, a table of labour statistics.

`vldebias.evaluation.auditing` calibrates predictions on one such table and compares them with another.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vldebias.data import UNKNOWN
from vldebias.errors import InvalidInputError
from vldebias.files import unshielded
from vldebias.prompts import PromptSet

if TYPE_CHECKING:
    from vldebias.evaluation.drawing import DrawnSet
    from vldebias.evaluation.judges import Judge
    from vldebias.progress import Progress

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


def subject(text: str) -> str:
    """What a prompt is about: "A photo of the face of a nurse." -> "nurse"."""
    return _FRAME.sub("", text.strip()).casefold()


def is_concept(text: str) -> bool:
    """Whether a text is a concept, "security guard", and no prompt."""
    return subject(text) == text.casefold() and len(text.split()) <= WORDS_OF_CONCEPT


def form_of(prompt: str) -> str | None:
    """How a prompt asks: "A photo of an actor." -> "A photo of a {concept}."; None of one with more to say."""
    about = subject(prompt)
    if not about or len(about.split()) > WORDS_OF_CONCEPT:
        return None
    start = prompt.casefold().rindex(about)
    before = re.sub(r"\b([Aa])n $", r"\1 ", prompt[:start])  # `fill` makes it fit
    return f"{before}{{concept}}{prompt[start + len(about) :]}"


def with_words(prompts: PromptSet) -> PromptSet:
    """A prompt set that knows a man for male and a woman for female, as tables and older prompts call them."""
    words = {value: (*own, *WORDS.get(value.casefold(), ())) for value, own in prompts.attributes.items()}
    return replace(prompts, attributes={value: tuple(dict.fromkeys(own)) for value, own in words.items()})


@dataclass(frozen=True, eq=False)
class ShareTable:
    """Shares (n, k) of k values among the images of each of n concepts.

    Attributes:
        concepts: what a row is about, "nurse" or a whole prompt, each once.
        values: names of the columns.
        shares: (n, k); rows sum to 1.
        images: (n,) how many images each row is from; 0 where the table has shares alone.
        about: model (who drew them), ids (parts of the names by which a pipeline is known for it), prompt (with
            {concept}), judge, source, licence.
        data: the shares of what the model learned from, where the source has them.

    Raises:
        InvalidInputError: shapes that do not fit, a concept twice, shares that are none.
    """

    concepts: tuple[str, ...]
    values: tuple[str, ...]
    shares: Floats
    images: NDArray[np.int64]
    about: Mapping[str, str] = field(default_factory=dict)
    data: ShareTable | None = None

    def __post_init__(self) -> None:
        n, k = len(self.concepts), len(self.values)
        if self.shares.shape != (n, k) or self.images.shape != (n,) or k < 2 or not n:
            raise InvalidInputError(
                f"shares: expected a row for each of {n} concepts and a column for each of {k} values, two or more, "
                f"got {self.shares.shape} and {self.images.shape}"
            )
        if len(set(map(str.casefold, self.concepts))) < n:
            raise InvalidInputError("shares: a concept stands there twice; add its images up")
        if not (np.isfinite(self.shares).all() and (self.shares >= 0).all() and np.allclose(self.shares.sum(1), 1)):
            raise InvalidInputError("shares: expected numbers from 0 on that sum to 1 in every row")

    def __len__(self) -> int:
        return len(self.concepts)

    @classmethod
    def of_counts(
        cls,
        counts: Mapping[str, Sequence[float] | Floats],
        values: Sequence[str],
        about: Mapping[str, str] | None = None,
    ) -> ShareTable:
        """From concept -> how many images showed each value; concepts without any are left out."""
        kept = {concept: np.asarray(row, dtype=float) for concept, row in counts.items() if sum(row) > 0}
        if not kept:
            raise InvalidInputError(f"shares: no image shows one of {list(values)}")
        table = np.stack(list(kept.values()))
        images = np.rint(table.sum(1)).astype(np.int64) if (table.sum(1) > 1.5).all() else np.zeros(len(kept), int)
        return cls(tuple(kept), tuple(values), table / table.sum(1, keepdims=True), images, dict(about or {}))

    @classmethod
    def published(cls, prompts: PromptSet) -> ShareTable:
        """Men and women among images of 153 occupations, 250 each, that Stable Diffusion 1.5 drew, and LAION's shares.

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
        """From a CSV: a row per image (prompt, value, perhaps a count), or a row per prompt and a column per value.

        The first is what a judge or people said of images; values that the prompt set does not know are unknown and
        left out. The second has counts, shares or percentages; of two values one column is enough. Columns are
        called as in the set, or by its words; lines "# name: text" before the header say where it is from.

        Raises:
            InvalidInputError: a file or a cell that cannot be read, columns that are missing.
        """
        path, words = Path(path), with_words(prompts).attributes
        named = {word.casefold(): value for value, own in words.items() for word in (*own, value)}
        about, header, rows = _cells(path)
        columns = {name: named.get(name.casefold()) for name in header}
        text = next((name for name in header if name.casefold() in PROMPT), None)
        value = next((name for name in header if name.casefold() in VALUE), None)
        if text is None or (value is None and not any(columns.values())):
            raise InvalidInputError(
                f"{path}: columns {header}; expected one of {list(PROMPT)}, and beside it `value` (a row per image) or "
                f"a column for each of {list(prompts.attributes)} (a row per prompt)"
            )
        values, counts = tuple(prompts.attributes), dict[str, Floats]()
        if value is not None:
            many = next((name for name in header if name.casefold() in COUNT), None)
            for line, row in rows:
                known = named.get(row[value].casefold())
                if known is not None:
                    own = counts.setdefault(row[text], np.zeros(len(values)))
                    own[values.index(known)] += 1 if many is None else _number(row[many], path, line)
            return cls.of_counts(counts, values, {"source": path.name, **about})
        data = {name: named.get(name.casefold().removeprefix("data ")) for name in header}
        tables = [
            _wide(rows, text, own, values, path) for own in (columns, {n: data[n] for n in data if n[:5] == "data "})
        ]
        made = cls.of_counts(tables[0], values, {"source": path.name, **about})
        if not tables[1]:
            return made
        beside = {"source": f"{about.get('data', 'data')}, {about.get('source', path.name)}"}
        return replace(made, data=cls.of_counts(tables[1], values, beside))

    @classmethod
    def judged(cls, drawn: DrawnSet, judge: Judge, prompts: PromptSet, progress: Progress) -> ShareTable:
        """From images that were drawn without a method and do not state the attribute, as a judge reads them."""
        from vldebias.evaluation.judges import judge_images, labels_of, stated_attribute

        own = drawn.select(variant="none")
        attribute, code_of = stated_attribute(prompts, judge)
        labels = labels_of(judge, judge_images(judge, own, progress=progress), [attribute], 0.8)[attribute]
        counts: dict[str, Floats] = {}
        for image, code in zip(own, labels.codes, strict=True):
            row = counts.setdefault(image.prompt, np.zeros(len(code_of)))
            if code != UNKNOWN:
                row[list(code_of.values()).index(int(code))] += 1
        model = str(own.plan.model.get("id") or own.plan.model["pipeline"])
        about = {"model": model, "ids": model, "judge": judge.name, "source": f"{len(own)} images of {own.folder.name}"}
        return cls.of_counts(counts, tuple(code_of), about)

    def place(self, text: str) -> int | None:
        """The row of what a prompt is about; None where none is."""
        return self._places.get(subject(text))

    def find(self, text: str) -> Floats | None:
        """Shares (k,) of what a prompt is about; None where no row is."""
        place = self.place(text)
        return None if place is None else self.shares[place]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {subject(concept): i for i, concept in reversed(list(enumerate(self.concepts)))}

    def digest(self) -> str:
        """SHA-256 of all of it."""
        content: list[Any] = [self.concepts, self.values, self.shares.tolist(), self.images.tolist(), dict(self.about)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _cells(path: Path) -> tuple[dict[str, str], list[str], list[tuple[int, dict[str, str]]]]:
    """What the comments say, the header, and every row with its line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path}: cannot be read as csv in UTF-8: {error}") from error
    first = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comments = (line.lstrip("# ").partition(":") for line in lines[:first])
    about = {name.strip(): text.strip() for name, colon, text in comments if colon}
    reader = csv.DictReader(lines[first:], strict=True)
    try:
        rows = [
            (first + reader.line_num, {key: unshielded((cell or "").strip()) for key, cell in row.items() if key})
            for row in reader
        ]
    except csv.Error as error:
        raise InvalidInputError(f"{path}: line {first + reader.line_num}: {error}") from error
    return about, list(reader.fieldnames or ()), rows


def _number(cell: str, path: Path, line: int) -> float:
    try:
        number = float(cell.removesuffix("%").replace(",", ""))
    except ValueError:
        number = -1.0
    if not 0 <= number < np.inf:
        raise InvalidInputError(f"{path}: line {line}: expected a number from 0 on, got {cell!r}")
    return number


def _wide(
    rows: Iterable[tuple[int, Mapping[str, str]]],
    text: str,
    columns: Mapping[str, str | None],
    values: Sequence[str],
    path: Path,
) -> dict[str, Floats]:
    """Concept -> numbers (k,), from the columns of the values; of two values the other one is the rest."""
    known = {name: value for name, value in columns.items() if value is not None}
    if not known:
        return {}
    lacking = [value for value in values if value not in known.values()]
    if lacking and (len(values) > 2 or len(lacking) > 1):
        raise InvalidInputError(f"{path}: no column for {lacking}; there are {list(known)}")
    read = [
        (row[text], {value: _number(row[name], path, line) for name, value in known.items()})
        for line, row in rows
        if any(row[name] for name in known)
    ]
    whole = 1.0 if max((max(own.values()) for _, own in read), default=0) <= 1 else 100.0
    table: dict[str, Floats] = {}
    for concept, own in read:
        if lacking:
            (share,) = own.values()
            if share > whole:
                raise InvalidInputError(f"{path}: {concept}: one column of two values has shares, got {share:g}")
            own[lacking[0]] = whole - share
        numbers = np.array([own[value] for value in values])
        table[concept] = numbers / whole if lacking else numbers
    return table
