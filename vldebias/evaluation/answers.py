"""Read and write annotators' answers, one JSON object per line in an append-only file, and sample images to label.

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

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, warn
from vldebias.evaluation.task import Count, Strict, explain
from vldebias.files import sync, unshielded

CANNOT_TELL = "cannot tell"
NO_PERSON = "no person"  # nothing to label: the image is broken or shows no one
NO_MAJORITY = "no majority"  # what annotators who disagree say together
NOT_ANSWERED = -1
LEAST = 2  # labels of each stratum of a sample, where it has as many images
ERROR = 0.05  # a judge that is surer than this is asked about as if it were not


def _below_folder(image: str) -> str:
    path = PurePosixPath(image)  # a file's name may begin or end with a blank
    if not image or path.is_absolute() or ".." in path.parts or "\\" in image:
        raise ValueError("expected a path below the folder of images, with forward slashes and without '..'")
    return path.as_posix()


_Text = Annotated[str, Field(pattern=r"^\S(.*\S)?$")]  # without spaces at its ends


class Answer(BaseModel):
    """Hold what one annotator said about one attribute of one image.

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
        """Return (annotator, image, attribute); an answer replaces an earlier one with the same key."""
        return self.annotator, self.image, self.attribute


def _problem(error: ValidationError) -> str:
    """The first thing that pydantic found wrong, in words."""
    first = error.errors(include_url=False)[0]
    where, what = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}, got {first['input']!r}" if where else what


# ---- the log -------------------------------------------------------------------------------------------------


class AnnotationLog:
    """Append answers to a file; every answer is on the disk when `append` returns.

    A process that dies leaves at most one line without its end, which the next `append` cuts off with a warning:
    no caller was told that it was saved. Processes may append at the same time; on systems without flock one at a time.
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
        """Return (annotator, image, attribute) -> last answer, empty without a file. Raises: see `read_log`."""
        if not self.path.exists():
            return {}
        return {answer.key: answer for answer in read_log(self.path)}

    def _whole_lines(self, file: int) -> int:
        """Give the last line its end, or cut it off where it was torn; returns the size of the file."""
        size = os.fstat(file).st_size
        tail = self.path.read_bytes().rpartition(b"\n")[2]
        if tail and _complete(tail):
            return size + os.write(file, b"\n")
        if tail:
            _warn_torn(self.path, tail)
            os.ftruncate(file, size - len(tail))
        return size - len(tail)


def read_log(path: Path) -> list[Answer]:
    """Return all answers in the order of their lines; a torn last line is skipped with a warning.

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
    return answers


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


def read_answers(paths: Sequence[Path], attribute: str = "") -> list[Answer]:
    """Return the last answer of every annotator about every image and attribute, from one or several files.

    `.csv`, `.tsv` and `.parquet` have the columns image, annotator, attribute and value, and perhaps time (ISO 8601
    with time zone), seconds and weight; anything else are lines of the labelling app. The last answer counts: the later
    line inside a file, the later time between files (without times the later file).

    Args:
        paths: one file per annotator, per session, or one for all.
        attribute: what the values of a table without such a column are about.

    Raises:
        InvalidInputError: files that cannot be read or rows that do not fit, with their numbers; no answer.
    """
    last = dict[tuple[str, str, str], Answer]()
    for path in paths:
        answers = _of_table(path, attribute) if path.suffix in (".csv", ".tsv", ".parquet") else read_log(path)
        for key, answer in {one.key: one for one in answers}.items():
            if key not in last or _when(answer) >= _when(last[key]):
                last[key] = answer
    if not last:
        raise InvalidInputError(f"labels: no answer in {', '.join(map(str, paths)) or 'no files'}")
    return list(last.values())


def _when(answer: Answer) -> datetime:
    return answer.time or datetime.min.replace(tzinfo=UTC)


def _of_table(path: Path, attribute: str) -> list[Answer]:
    table = read_table(path)
    constant = {"attribute": attribute} if attribute and "attribute" not in table.column_names else {}
    names = [name for name in Answer.model_fields if name in table.column_names and name != "version"]
    columns = {name: as_texts(column_of(table, name, path), f"{path}: {name}") for name in names}
    answers, problems = [], []
    for number in range(table.num_rows):
        cells = {name: unshielded(texts[number].strip()) for name, texts in columns.items()}
        try:
            answers.append(Answer.model_validate({n: text for n, text in cells.items() if text} | constant))
        except ValidationError as error:
            problems.append(f"row {number + 1}: {_problem(error)}")
    if problems:
        raise InvalidInputError(f"{path}: {len(problems)} rows do not fit: {'; '.join(problems[:5])}")
    return answers


@dataclass(frozen=True, eq=False)
class Votes:
    """Hold the answers of all annotators about all images as an array of codes.

    codes: (annotators, images) of (*names, CANNOT_TELL, NO_PERSON), or NOT_ANSWERED. weights: (images,) one over the
    probability of being asked about; 1 where an answer says none.
    """

    names: tuple[str, ...]
    annotators: tuple[str, ...]
    codes: NDArray[np.int64]
    weights: NDArray[np.float64]

    @classmethod
    def of(cls, answers: Sequence[Answer], names: Sequence[str], images: Sequence[str]) -> Self:
        """Return the votes on one attribute; answers about images that are not listed are left out.

        Raises:
            InvalidInputError: values that are not among the names.
        """
        code = {value: i for i, value in enumerate((*names, CANNOT_TELL, NO_PERSON))}
        if strangers := Counter(answer.value for answer in answers if answer.value not in code):
            listed = ", ".join(f"{value!r} ({count})" for value, count in strangers.most_common(8))
            raise InvalidInputError(
                f"labels of {answers[0].attribute!r}: unknown values {listed}; expected one of {list(code)}. Rename "
                "them in the file, or name the values of the attribute as the annotators did"
            )
        annotators = tuple(sorted({answer.annotator for answer in answers}))
        rows, columns = ({one: i for i, one in enumerate(several)} for several in (annotators, images))
        codes, weights = np.full((len(rows), len(images)), NOT_ANSWERED), np.ones(len(images))
        for answer in answers:
            if answer.image in columns:
                codes[rows[answer.annotator], columns[answer.image]] = code[answer.value]
                weights[columns[answer.image]] = answer.weight or 1.0
        return cls(tuple(names), annotators, codes, weights)

    @property
    def majority(self) -> list[str]:
        """Return the most frequent answer for each image, NO_MAJORITY on a tie and "" for an image without labels."""
        said = (*self.names, CANNOT_TELL, NO_PERSON)
        counts = (self.codes[:, :, None] == np.arange(len(said))).sum(0)
        most = counts.max(1)
        ties = (counts == most[:, None]).sum(1) > 1
        named = [NO_MAJORITY if tie else said[row.argmax()] for row, tie in zip(counts, ties, strict=True)]
        return [one if n else "" for one, n in zip(named, most, strict=True)]


# ---- which images people are asked about ---------------------------------------------------------------------


class Stratum(Strict):
    """Hold images with the same sampling probability; the first `labels` of them are sampled.

    spread: standard deviation that is expected of what people say within it.
    """

    name: str
    images: Annotated[tuple[str, ...], Field(min_length=1)]
    spread: float
    labels: Count


class LabelSample(Strict):
    """Hold a sample of images to label, as it is stored next to the answers.

    attribute: the one whose answers set the strata. judge: the name of its judge. seed: of the random order.
    """

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
            paths: (n,) of all images, each once. within: (n,) the part with figures of its own, such as a method.
            said: (n,) answers of the judge, "unknown" among them. confidence: (n,) its probability of that.
            labels: how many images; LEAST of each stratum are sampled in any case, and all of them at most.
        """
        sure = np.asarray(confidence, dtype=np.float64)
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
        """Return the sample with this number of labels; it contains every smaller one."""
        counts = [min(LEAST, len(one.images)) for one in self.strata]

        def turn(i: int) -> tuple[float, int]:  # the largest first
            one, n = self.strata[i], counts[i]
            return -len(one.images) * one.spread / (n * (n + 1)) ** 0.5, i

        for _ in range(labels - sum(counts)):
            if waiting := [turn(i) for i, one in enumerate(self.strata) if counts[i] < len(one.images)]:
                counts[min(waiting)[1]] += 1
        strata = tuple(one.model_copy(update={"labels": n}) for one, n in zip(self.strata, counts, strict=True))
        return self.model_copy(update={"strata": strata})

    @property
    def weights(self) -> Mapping[str, float]:
        """Return path -> weight for each sampled image: one over its sampling probability."""
        return {path: len(one.images) / one.labels for one in self.strata for path in one.images[: one.labels]}

    @property
    def population(self) -> frozenset[str]:
        """Return all images that the sample is taken from."""
        return frozenset(path for one in self.strata for path in one.images)

    @classmethod
    def read(cls, path: Path) -> LabelSample:
        """Read a sample from a file.

        Raises:
            InvalidInputError: a file that holds something else.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise InvalidInputError(f"{path}: is no sample for labelling: {explain(error)}") from error
