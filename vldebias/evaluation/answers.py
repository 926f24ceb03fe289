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
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from vldebias.errors import InvalidInputError, warn
from vldebias.evaluation.task import Count, Strict, explain
from vldebias.files import sync

CANNOT_TELL = "cannot tell"
NO_PERSON = "no person"  # nothing to label: the image is broken or shows no one
NO_MAJORITY = "no majority"  # what annotators who disagree say together
NOT_ANSWERED = -1
LEAST = 2  # labels of each stratum of a sample, where it has as many images
ERROR = 0.05  # a judge that is surer than this is asked about as if it were not
Key = tuple[str, str, str]


def _below_folder(image: str) -> str:
    path = PurePosixPath(image)  # a file's name may begin or end with a blank
    if not image or path.is_absolute() or ".." in path.parts or "\\" in image:
        raise ValueError("expected a path below the folder of images, with forward slashes and without '..'")
    return path.as_posix()


_Text = Annotated[str, Field(pattern=r"^\S(.*\S)?$")]  # without spaces at its ends


class Answer(BaseModel):
    """Hold what one annotator said about one attribute of one image.

    time: when, with its time zone. seconds: how long it took, None if unknown. weight: of an image that was sampled for
    labelling, one over the probability of that; None where all were alike.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    image: Annotated[str, AfterValidator(_below_folder)]
    annotator: _Text
    attribute: _Text
    value: _Text
    time: AwareDatetime
    seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    weight: float | None = Field(None, gt=0, allow_inf_nan=False)

    @property
    def key(self) -> Key:
        """Return (annotator, image, attribute); an answer replaces an earlier one with the same key."""
        return self.annotator, self.image, self.attribute


# ---- the log -------------------------------------------------------------------------------------------------


@dataclass
class AnnotationLog:
    """Append answers to a file; every answer is on the disk when `append` returns.

    A process that dies leaves at most one line without its end, which the next `append` cuts off with a warning:
    no caller was told that it was saved. Processes may append at the same time; on systems without flock one at a time.
    """

    path: Path

    def append(self, image: str, annotator: str, attribute: str, value: str, **about: float | None) -> Answer:
        """Write one answer with the present time and return it; about: its seconds and weight.

        Raises:
            InvalidInputError: a field that the file may not hold; nothing is written then.
            OSError: the disk is full or gone; the file is as before.
        """
        fields = {"image": image, "annotator": annotator, "attribute": attribute, "value": value, **about}
        try:
            answer = Answer.model_validate({**fields, "time": datetime.now(UTC)})
        except ValidationError as error:
            raise InvalidInputError(f"annotation: {explain(error)}") from error
        line = answer.model_dump_json(exclude={"weight"} if answer.weight is None else None).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            with suppress(ImportError):  # alone with the file, where the system has flock; closing it opens the lock
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            content = self.path.read_bytes()
            size = len(content) - len(_torn(self.path, content))
            os.ftruncate(file, size)
            if size and content[size - 1 : size] != b"\n":  # as an editor leaves it
                line = b"\n" + line
            if os.write(file, line) < len(line):  # the disk is full: leave no half of a line behind
                os.ftruncate(file, size)
                raise OSError(f"{self.path}: no room for another answer; the file is as before")
            os.fsync(file)
        finally:
            os.close(file)
        if new:
            sync(self.path.parent)
        return answer

    def answers(self) -> dict[Key, Answer]:
        """Return (annotator, image, attribute) -> last answer, empty without a file. Raises: see `read_log`."""
        return {answer.key: answer for answer in read_log(self.path)} if self.path.exists() else {}


def read_log(path: Path) -> list[Answer]:
    """Return all answers in the order of their lines; a torn last line is skipped with a warning.

    Raises:
        InvalidInputError: no such file, or lines that do not fit; the message has the number of each of the first few.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read: {error.strerror}") from error
    answers, problems = [], []
    for number, line in enumerate(content.removesuffix(_torn(path, content)).split(b"\n"), start=1):
        if line.strip():
            try:
                answers.append(Answer.model_validate_json(line))
            except ValidationError as error:
                problems.append(f"line {number}: {explain(error)}")
    if problems:
        raise InvalidInputError(
            f"{path}: {len(problems)} lines are no answers of the labelling app: {'; '.join(problems[:5])}; correct or "
            "remove them"
        )
    return answers


def _torn(path: Path, content: bytes) -> bytes:
    """Return the last line if it was cut off, with a warning; no part of a JSON object is JSON."""
    tail = content.rpartition(b"\n")[2]
    try:
        json.loads(tail or b"0")
        return b""
    except (ValueError, RecursionError):
        warn(
            f"{path}: the last line was cut off, as by a crash while it was written, and is skipped: "
            f"{tail[:80].decode(errors='replace')!r}; the answer before it is the last that was saved"
        )
        return tail


def read_answers(paths: Sequence[Path]) -> list[Answer]:
    """Return the last answer of every annotator about every image and attribute, from one or several logs.

    The last answer counts: the later line inside a file, the later time between files.

    Raises:
        InvalidInputError: files that cannot be read or lines that do not fit, with their numbers; no answer.
    """
    last = dict[Key, Answer]()
    for path in paths:
        for key, answer in {one.key: one for one in read_log(path)}.items():
            last[key] = max(last.get(key, answer), answer, key=lambda one: one.time)
    if not last:
        raise InvalidInputError(f"labels: no answer in {', '.join(map(str, paths)) or 'no files'}")
    return list(last.values())


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
        column = {image: i for i, image in enumerate(images)}
        codes, weights = np.full((len(annotators), len(images)), NOT_ANSWERED), np.ones(len(images))
        for answer in answers:
            if (at := column.get(answer.image)) is not None:
                codes[annotators.index(answer.annotator), at] = code[answer.value]
                weights[at] = answer.weight or 1.0
        return cls(tuple(names), annotators, codes, weights)

    @property
    def majority(self) -> list[str]:
        """Return the most frequent answer for each image, NO_MAJORITY on a tie and "" for an image without labels."""
        said, majority = (*self.names, CANNOT_TELL, NO_PERSON), []
        for codes in self.codes.T:
            counts = Counter(codes[codes >= 0].tolist()).most_common(2)
            tie = len(counts) == 2 and counts[0][1] == counts[1][1]
            majority.append(NO_MAJORITY if tie else said[counts[0][0]] if counts else "")
        return majority


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
        seed: int = 0,
        **about: str,
    ) -> LabelSample:
        """Sample images for labelling.

        Args:
            paths: (n,) of all images, each once. within: (n,) the part with figures of its own, such as a method.
            said: (n,) answers of the judge, "unknown" among them. confidence: (n,) its probability of that.
            labels: how many images; LEAST of each stratum are sampled in any case, and all of them at most.
            about: attribute and judge.
        """
        order = sorted(range(len(paths)), key=lambda i: hashlib.sha256(f"{seed}\0{paths[i]}".encode()).digest())
        strata = []
        for part, answer in sorted(set(zip(within, said, strict=True))):
            rows = [i for i in order if (within[i], said[i]) == (part, answer)]
            sure = np.asarray(confidence, dtype=np.float64)[rows]
            middle = np.median(sure)
            above = sure > middle if sure.max() > middle else sure >= middle  # many may be alike
            for name, chosen in (("surer", above), ("less sure", ~above)):
                if chosen.any():
                    wrong = min(max(1 - float(sure[chosen].mean()), ERROR), 0.5)
                    images = tuple(paths[i] for i, one in zip(rows, chosen, strict=True) if one)
                    fields = {"images": images, "spread": (wrong * (1 - wrong)) ** 0.5, "labels": 1}
                    strata.append(Stratum(name=f"{part}: {answer}, {name}", **fields))
        return cls(seed=seed, strata=tuple(strata), **about).of_size(labels)

    def of_size(self, labels: int) -> LabelSample:
        """Return the sample with this number of labels; it contains every smaller one."""
        counts = [min(LEAST, len(one.images)) for one in self.strata]
        for _ in range(labels - sum(counts)):
            need = [  # of one more label; a stratum that is used up needs none
                len(one.images) * one.spread / (n * (n + 1)) ** 0.5 if n < len(one.images) else 0.0
                for one, n in zip(self.strata, counts, strict=True)
            ]
            if max(need):
                counts[need.index(max(need))] += 1
        strata = tuple(one.model_copy(update={"labels": n}) for one, n in zip(self.strata, counts, strict=True))
        return self.model_copy(update={"strata": strata})

    @property
    def weights(self) -> Mapping[str, float]:
        """Return path -> weight for each sampled image: one over its sampling probability."""
        return {path: len(one.images) / one.labels for one in self.strata for path in one.images[: one.labels]}

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
