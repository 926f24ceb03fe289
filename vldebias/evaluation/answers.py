"""The answers of annotators, one line of JSON each, only ever appended to and safe against a crash; and their sample.

    {"version": 1, "image": "none/a-photo-of-a-doctor/7.png", "annotator": "ada", "attribute": "gender",
     "value": "female", "time": "2024-05-01T12:00:00+00:00", "seconds": 2.4}

`image` is the path below the folder of generated images. `value` is a value of the attribute, "cannot tell" or "no
person". An annotator who answers again appends another line, and the last one counts.

Which images people are asked about is uncertainty sampling with inverse-probability weights. The strata are the judge's
answers under each method, each cut at the median of its confidence. Labels are shared out by how many images a stratum
has and how unsure the judge is of them (Neyman, 1934), one after the other by the rule of Huntington and Hill, so that
a larger sample holds the smaller one. What follows from it is unbiased whatever the judge does, since every image has a
known probability to be asked about and answers count one over it; the judge only decides how wide the intervals are.
"""

from __future__ import annotations

import csv
import hashlib
import heapq
import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from vldebias.errors import InvalidInputError, warn
from vldebias.evaluation.task import Count, Strict, explain
from vldebias.files import sync, unshielded, write_atomically

CANNOT_TELL = "cannot tell"
NO_PERSON = "no person"  # nothing to label: the image is broken or shows no one
NO_MAJORITY = "no majority"  # what annotators who disagree say together
NOT_ANSWERED = -1
LEAST = 2  # labels of each stratum of a sample, where it has as many images
ERROR = 0.05  # a judge that is surer than this is asked about as if it were not
_FIELDS = ("image", "annotator", "attribute", "value", "time", "seconds", "weight")
_OPTIONAL = ("time", "seconds", "weight")


def _below_folder(image: str) -> str:
    path = PurePosixPath(image)  # a file's name may begin or end with a blank
    if not image or path.is_absolute() or ".." in path.parts or "\\" in image:
        raise ValueError("expected a path below the folder of images, with forward slashes and without '..'")
    return path.as_posix()


def _named(text: str) -> str:
    if text != text.strip() or not text:
        raise ValueError("expected a text without spaces at its ends")
    return text


_Text = Annotated[str, AfterValidator(_named)]


class Answer(BaseModel):
    """What one annotator said about one attribute of one image.

    time: when, with its time zone; None in tables that do not say. seconds: how long it took, None if unknown.
    weight: of an image that was sampled for labelling, one over the probability of that; None where all were alike.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    image: Annotated[str, AfterValidator(_below_folder)]
    annotator: _Text
    attribute: _Text
    value: _Text
    time: AwareDatetime | None = None
    seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    weight: float | None = Field(None, gt=0, allow_inf_nan=False)

    @property
    def key(self) -> tuple[str, str, str]:
        """(annotator, image, attribute): answers with the same key replace each other."""
        return self.annotator, self.image, self.attribute


def _problem(error: ValidationError) -> str:
    """The first thing that pydantic found wrong, in words."""
    first = error.errors(include_url=False)[0]
    where, what = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}, got {first['input']!r}" if where else what


# ---- the log -------------------------------------------------------------------------------------------------


class AnnotationLog:
    """Appends answers to a file; every answer is on the disk when `append` returns.

    A process that dies leaves at most one line without its end, which the next `append` cuts off with a warning:
    nobody was told that it was saved. Processes may append at the same time; on systems without flock one at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(
        self,
        image: str,
        annotator: str,
        attribute: str,
        value: str,
        *,
        seconds: float | None = None,
        weight: float | None = None,
    ) -> Answer:
        """Write one answer with the present time and return it.

        Raises:
            InvalidInputError: a field that the file may not hold; nothing is written then.
            OSError: the disk is full or gone; the file is as before.
        """
        fields = {"image": image, "annotator": annotator, "attribute": attribute, "value": value}
        try:
            answer = Answer.model_validate({**fields, "time": datetime.now(UTC), "seconds": seconds, "weight": weight})
        except ValidationError as error:
            raise InvalidInputError(f"annotation: {_problem(error)}") from error
        line = answer.model_dump_json(exclude={"weight"} if weight is None else None).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            with suppress(ImportError):  # alone with the file, where the system has flock; closing it opens the lock
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            size = self._whole_lines(file)
            if os.write(file, line) < len(line):  # the disk is full: leave no half of a line behind
                os.ftruncate(file, size)
                raise OSError(f"{self.path}: no room for another answer; the file is as before")
            os.fsync(file)
        finally:
            os.close(file)
        if new:
            sync(self.path.parent)
        return answer

    def answers(self) -> dict[tuple[str, str, str], Answer]:
        """(annotator, image, attribute) -> the last answer; empty where there is no file yet. Raises: see read_log."""
        if not self.path.exists():
            return {}
        return {answer.key: answer for answer in read_log(self.path)[0]}

    def _whole_lines(self, file: int) -> int:
        """Give the last line its end, or cut it off where it was torn; returns the size of the file."""
        size = start = os.fstat(file).st_size
        tail = b""
        while start > 0 and b"\n" not in tail:
            step = min(1 << 16, start)
            start = os.lseek(file, start - step, os.SEEK_SET)
            tail = os.read(file, step) + tail
        begin = tail.rfind(b"\n") + 1
        start, tail = start + begin, tail[begin:]
        if not tail:
            return size
        if _complete(tail):
            os.write(file, b"\n")
            return size + 1
        _warn_torn(self.path, tail)
        os.ftruncate(file, start)
        return start


def read_log(path: Path) -> tuple[list[Answer], bytes]:
    """All answers in the order of their lines, and what is left of a torn last line (b"" if there is none).

    Raises:
        InvalidInputError: no such file, or lines that do not fit; the message has the number of each of the first few.
    """
    try:
        *lines, tail = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read: {error.strerror}") from error
    if tail and _complete(tail):
        lines, tail = [*lines, tail], b""
    answers, problems = [], []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                answers.append(Answer.model_validate_json(line))
            except ValidationError as error:
                problems.append(f"line {number}: {_problem(error)}")
    if problems:
        raise InvalidInputError(
            f"{path}: {len(problems)} of {len(lines)} lines are no answers of the labelling app: "
            f"{'; '.join(problems[:5])}; mend or remove them"
        )
    if tail:
        _warn_torn(path, tail)
    return answers, tail


def _complete(line: bytes) -> bool:
    """Whether a line that lacks its end is whole all the same: no part of a JSON object is JSON."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _warn_torn(path: Path, tail: bytes) -> None:
    warn(
        f"{path}: the last line was cut off, as by a crash while it was written, and is skipped: "
        f"{tail[:80].decode(errors='replace')!r}; the answer before it is the last that was saved"
    )


# ---- all that was answered -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Annotations:
    """The last answer of every annotator for every image and attribute.

    Attributes:
        answers: in the order in which their images and annotators first occur.
        replaced: answers that a later one of the same annotator took the place of.
        torn: file -> what is left of a last line that a crash cut off.
    """

    answers: tuple[Answer, ...]
    replaced: int = 0
    torn: Mapping[str, str] = field(default_factory=dict)

    @property
    def attributes(self) -> tuple[str, ...]:
        """Attributes that someone answered, in the order of their first answer."""
        return tuple(dict.fromkeys(answer.attribute for answer in self.answers))

    def table(
        self, attribute: str, names: Sequence[str], images: Sequence[str]
    ) -> tuple[NDArray[np.int64], tuple[str, ...], tuple[str, ...]]:
        """Codes (annotators, images) of the answers, who the rows are, and images that were labelled but not asked for.

        A code is the index in (*names, CANNOT_TELL, NO_PERSON), or NOT_ANSWERED.

        Raises:
            InvalidInputError: nobody answered for the attribute, or values that are not among those.
        """
        answers = [answer for answer in self.answers if answer.attribute == attribute]
        if not answers:
            raise InvalidInputError(
                f"annotations: no answer for {attribute!r}; there are answers for {list(self.attributes)}"
            )
        code = {value: i for i, value in enumerate((*names, CANNOT_TELL, NO_PERSON))}
        strangers = Counter(answer.value for answer in answers if answer.value not in code)
        if strangers:
            listed = ", ".join(f"{value!r} ({count})" for value, count in strangers.most_common(8))
            raise InvalidInputError(
                f"annotations of {attribute!r}: unknown values {listed}; expected one of {list(code)}. "
                "Rename them in the file, or name the values of the attribute as the annotators did"
            )
        rows = {name: i for i, name in enumerate(sorted({answer.annotator for answer in answers}))}
        columns = {image: i for i, image in enumerate(images)}
        table = np.full((len(rows), len(columns)), NOT_ANSWERED, dtype=np.int64)
        for answer in answers:
            if answer.image in columns:
                table[rows[answer.annotator], columns[answer.image]] = code[answer.value]
        others = tuple(dict.fromkeys(a.image for a in answers if a.image not in columns))
        return table, tuple(rows), others

    def weights(self, attribute: str, images: Sequence[str]) -> NDArray[np.float64]:
        """(images,) weights of the answers about an attribute; 1 where an answer says none."""
        weight = {one.image: one.weight for one in self.answers if one.attribute == attribute and one.weight}
        return np.array([weight.get(image, 1.0) for image in images])


def read_annotations(paths: Path | Sequence[Path], *, attribute: str | None = None) -> Annotations:
    """Answers from one or several files: `.csv` with a header, anything else as lines of the labelling app.

    A csv has the columns image, annotator, attribute and value, and perhaps time (ISO 8601 with time zone), seconds and
    weight; a cell is its text, but for the apostrophe that keeps a spreadsheet from running it (`files.shielded`).
    The last answer counts: the later line inside a file, the later time between files (without times the later file).

    Args:
        paths: one file per annotator, per session, or one for all.
        attribute: what the values of a csv without such a column are about.

    Raises:
        InvalidInputError: files that cannot be read or rows that do not fit, with their line numbers; no answer.
    """
    files = [paths] if isinstance(paths, (str, Path)) else list(paths)
    last, torn, lines = dict[tuple[str, str, str], Answer](), dict[str, str](), 0
    for path in map(Path, files):
        if path.suffix.lower() == ".csv":
            answers = _read_csv(path, attribute)
        else:
            answers, tail = read_log(path)
            torn |= {str(path): tail.decode(errors="replace")} if tail else {}
        lines += len(answers)
        for key, answer in {one.key: one for one in answers}.items():
            if key not in last or _when(answer) >= _when(last[key]):
                last[key] = answer
    if not last:
        raise InvalidInputError(f"annotations: no answer in {', '.join(map(str, files)) or 'no files'}")
    return Annotations(tuple(last.values()), replaced=lines - len(last), torn=torn)


def _when(answer: Answer) -> datetime:
    return answer.time or datetime.min.replace(tzinfo=UTC)


def _read_csv(path: Path, attribute: str | None) -> list[Answer]:
    answers, problems = [], []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            header = reader.fieldnames or ()
            constant = {} if attribute is None or "attribute" in header else {"attribute": attribute}
            missing = [name for name in _FIELDS if name not in (*header, *constant, *_OPTIONAL)]
            if missing:
                raise InvalidInputError(f"{path}: no columns {missing}; there are {list(header)}. Rename them")
            for row in reader:
                cells = {name: unshielded((row.get(name) or "").strip()) for name in _FIELDS if name not in constant}
                fields = {name: text for name, text in cells.items() if text or name not in _OPTIONAL}
                try:
                    answers.append(Answer.model_validate(fields | constant))
                except ValidationError as error:
                    problems.append(f"line {reader.line_num}: {_problem(error)}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"{path}: cannot be read as csv in UTF-8: {error}") from error
    if problems:
        raise InvalidInputError(
            f"{path}: {len(problems)} of {len(answers) + len(problems)} rows do not fit: {'; '.join(problems[:5])}"
        )
    return answers


# ---- which images people are asked about ---------------------------------------------------------------------


class Stratum(Strict):
    """Images that have one probability of being sampled.

    name: what they have in common. images: paths in the order in which they are sampled. spread: standard deviation
    that is expected of what people say within it. labels: how many of the first are sampled.
    """

    name: str
    images: Annotated[tuple[str, ...], Field(min_length=1)]
    spread: Annotated[float, Field(gt=0, le=0.5)]
    labels: Count


class LabelSample(Strict):
    """A sample of images for labelling, as it is kept beside the answers.

    attribute: by whose answers it is sampled. judge: who gave them. seed: of the random order.
    """

    version: Literal[1] = 1
    attribute: str
    judge: str
    seed: int
    strata: Annotated[tuple[Stratum, ...], Field(min_length=1)]

    @classmethod
    def draw(
        cls,
        paths: Sequence[str],
        within: Sequence[str],
        said: Sequence[str],
        confidence: NDArray[np.float64],
        labels: int,
        *,
        attribute: str,
        judge: str,
        seed: int = 0,
    ) -> LabelSample:
        """Sample images for labelling.

        Args:
            paths: (n,) of all images, each once. within: (n,) what figures are made of apart, such as methods.
            said: (n,) answers of the judge, "unknown" among them. confidence: (n,) its probability of that.
            labels: how many images; LEAST of each stratum are sampled in any case, and all of them at most.

        Raises:
            InvalidInputError: no images, a path twice, unequal lengths, probabilities outside [0, 1].
        """
        sure = np.asarray(confidence, dtype=np.float64)
        if not paths or not len(paths) == len(within) == len(said) == len(sure) == len(set(paths)):
            raise InvalidInputError(
                f"sample: expected an answer, a confidence and what it belongs to for each of some different images, "
                f"got {len(set(paths))} different images of {len(paths)}, {len(within)}, {len(said)}, {len(sure)}"
            )
        if not ((sure >= 0) & (sure <= 1)).all():
            raise InvalidInputError(f"confidence: expected probabilities, got {sure.min():.3g} .. {sure.max():.3g}")
        answers: dict[tuple[str, str], list[int]] = defaultdict(list)
        for i, key in enumerate(zip(within, said, strict=True)):
            answers[key].append(i)
        strata = []
        for (part, answer), rows in sorted(answers.items()):
            middle = np.median(sure[rows])
            above = sure[rows] > middle if sure[rows].max() > middle else sure[rows] >= middle  # many may be alike
            surer = [i for i, more in zip(rows, above, strict=True) if more]
            for name, own in (("surer", surer), ("less sure", sorted({*rows} - {*surer}))):
                if own:
                    wrong = min(max(1 - float(sure[own].mean()), ERROR), 0.5)
                    order = sorted(own, key=lambda i: hashlib.sha256(f"{seed}\0{paths[i]}".encode()).digest())
                    fields = {"images": tuple(paths[i] for i in order), "spread": (wrong * (1 - wrong)) ** 0.5}
                    strata.append(Stratum(name=f"{part}: {answer}, {name}", labels=1, **fields))
        return cls(attribute=attribute, judge=judge, seed=seed, strata=tuple(strata)).of_size(labels)

    def of_size(self, labels: int) -> LabelSample:
        """The same with so many labels: it holds every smaller one."""
        counts = [min(LEAST, len(one.images)) for one in self.strata]

        def turn(i: int) -> tuple[float, int]:  # the largest first
            one, n = self.strata[i], counts[i]
            return -len(one.images) * one.spread / (n * (n + 1)) ** 0.5, i

        waiting = [turn(i) for i, one in enumerate(self.strata) if counts[i] < len(one.images)]
        heapq.heapify(waiting)
        for _ in range(labels - sum(counts)):
            if not waiting:
                break
            _, i = heapq.heappop(waiting)
            counts[i] += 1
            if counts[i] < len(self.strata[i].images):
                heapq.heappush(waiting, turn(i))
        strata = tuple(one.model_copy(update={"labels": n}) for one, n in zip(self.strata, counts, strict=True))
        return self.model_copy(update={"strata": strata})

    @property
    def weights(self) -> Mapping[str, float]:
        """Path of each image that is sampled -> one over the probability of that."""
        return {path: len(one.images) / one.labels for one in self.strata for path in one.images[: one.labels]}

    @property
    def population(self) -> frozenset[str]:
        """All images that it is sampled from."""
        return frozenset(path for one in self.strata for path in one.images)

    def write(self, path: Path) -> None:
        """Keep it, as JSON."""
        write_atomically(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> LabelSample:
        """The sample that `write` kept.

        Raises:
            InvalidInputError: a file that cannot be read, or holds something else.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise InvalidInputError(f"{path}: is no sample for labelling: {explain(error)}") from error
        except OSError as error:
            raise InvalidInputError(f"{path}: cannot be read: {error.strerror}") from error
