"""Read and write annotators' answers, one JSON object per line in an append-only file.

    {"version": 1, "image": "none/a-photo-of-a-doctor/7.png", "annotator": "ada", "attribute":
    "gender",
     "value": "female", "time": "2024-05-01T12:00:00+00:00", "seconds": 2.4}

`image` is the path below the folder of images. An annotator who answers again appends a line, and
the last one counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from vldebias.errors import InvalidInputError, warn
from vldebias.utils.files import explain, read_bytes, storage_errors, sync

CANNOT_TELL = "cannot tell"
NO_PERSON = "no person"  # nothing to label: the image is broken or shows no one
NO_MAJORITY = "no majority"  # what annotators who disagree say together
Key = tuple[str, str, str]


def _below_folder(image: str) -> str:
    path = PurePosixPath(image)  # a file's name may begin or end with a blank
    if not image or path.is_absolute() or ".." in path.parts or "\\" in image:
        raise ValueError(
            "expected a path below the folder of images, with forward slashes and without '..'"
        )
    return path.as_posix()


_Text = Annotated[str, Field(pattern=r"^\S(.*\S)?$")]  # without spaces at its ends


class Answer(BaseModel):
    """Hold the answer of one annotator about one attribute of one image.

    time: when, with its time zone. seconds: how long it took, None if unknown. weight: of an image
    that was sampled for labelling, one over the probability of that; None where all were alike.
    """

    model_config = ConfigDict(extra="forbid")

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
        """Return (annotator, image, attribute); an answer replaces an earlier one with the same
        key."""
        return self.annotator, self.image, self.attribute


@dataclass
class AnnotationLog:
    """Append answers to a file; every answer is on the disk when `append` returns.

    A process that dies leaves at most one line without its end, which the next `append` cuts off
    with a warning: no caller was told that it was saved. Processes may append at the same time; on
    systems without flock one at a time.
    """

    path: Path

    def append(
        self, image: str, annotator: str, attribute: str, value: str, **numbers: float | None
    ) -> None:
        """Write one answer with the present time; numbers: its seconds and weight.

        InvalidInputError: a field that the file may not hold. OSError: no room on the disk. The
        file is then as before.
        """
        fields = {
            "image": image,
            "annotator": annotator,
            "attribute": attribute,
            "value": value,
            **numbers,
        }
        try:
            answer = Answer.model_validate({**fields, "time": datetime.now(UTC)})
        except ValidationError as error:
            raise InvalidInputError(f"annotation: {explain(error)}") from error
        line = answer.model_dump_json(exclude_none=True).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        with storage_errors(self.path), self.path.open("ab+", buffering=0) as file:
            # Alone with the file, where the system has flock; closing it opens the lock.
            with suppress(ImportError):
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            content = self.path.read_bytes()
            size = len(content) - len(_torn(self.path, content))
            file.truncate(size)
            if size and content[size - 1 : size] != b"\n":  # as an editor leaves it
                line = b"\n" + line
            written = os.write(file.fileno(), line)
            if written < len(line):  # the disk is full: leave no half of a line behind
                file.truncate(size)
                raise OSError(f"{self.path}: no room for another answer; the file is as before")
            # On the disk before the page shows the next image: a person's answer cannot be computed
            # again.
            os.fsync(file.fileno())
        if new:
            # A new file needs its folder synced too, or its name may be gone after a power cut.
            sync(self.path.parent)

    def answers(self) -> dict[Key, Answer]:
        """Return (annotator, image, attribute) -> last answer, empty without a file. Raises: see
        `read`."""
        if not self.path.exists():
            return {}
        return {answer.key: answer for answer in self.read()}

    def read(self) -> list[Answer]:
        """Return all answers in the order of their lines; a torn last line is skipped with a
        warning.

        InvalidInputError: lines that are no answers; the message has the number of each of the
        first few.
        """
        content = read_bytes(self.path)
        answers = []
        problems = []
        complete = content.removesuffix(_torn(self.path, content))
        for number, line in enumerate(complete.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                answers.append(Answer.model_validate_json(line))
            except ValidationError as error:
                problems.append(f"line {number}: {explain(error)}")
        if problems:
            raise InvalidInputError(
                f"{self.path}: {len(problems)} lines are no answers of the labelling app:"
                f" {'; '.join(problems[:5])}; correct or remove them"
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
            f"{path}: the last line was cut off, as by a crash while it was written, and is"
            f" skipped: {tail[:80].decode(errors='replace')!r}; the answer before it is the last"
            " that was saved"
        )
        return tail


def read_answers(paths: Sequence[Path]) -> list[Answer]:
    """Return the last answer of every annotator about every image and attribute, from one or
    several logs.

    The last answer counts: the later line inside a file, the later time between files.
    InvalidInputError: see `AnnotationLog.read`; also no answer at all.
    """
    last = dict[Key, Answer]()
    for path in paths:
        # Inside a file the later line wins: clocks of one machine may be set back, lines are in
        # order.
        answer_of_key = {answer.key: answer for answer in AnnotationLog(path).read()}
        for key, answer in answer_of_key.items():
            if key not in last or answer.time > last[key].time:
                last[key] = answer
    if not last:
        names = ", ".join(map(str, paths)) or "no files"
        raise InvalidInputError(f"labels: no answer in {names}")
    return list(last.values())
