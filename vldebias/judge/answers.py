"""Read and write the answers of annotators, one JSON object per line in an append-only file.

    {"version": 1, "image": "none/a-photo-of-a-doctor/7.png", "annotator": "ada",
     "attribute": "gender", "value": "female", "time": "2024-05-01T12:00:00+00:00", "seconds": 2.4}

`image` is the path relative to the image folder. An annotator who answers again appends a line; the
last line counts.
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
NO_MAJORITY = "no majority"  # joint answer if annotators disagree
Key = tuple[str, str, str]


def _below_folder(image: str) -> str:
    path = PurePosixPath(image)  # file names may start or end with a space
    if not image or path.is_absolute() or ".." in path.parts or "\\" in image:
        raise ValueError(
            "expected a path relative to the image folder, with forward slashes and without '..'"
        )
    return path.as_posix()


_Text = Annotated[str, Field(pattern=r"^\S(.*\S)?$")]  # no leading or trailing spaces


class Answer(BaseModel):
    """An annotator's answer about one attribute of one image.

    Attributes:
        time: time of the answer, with time zone.
        seconds: duration; None if unknown.
        weight: the reciprocal of the probability that the image was sampled for labelling; None if
            all were equally likely.
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
        """Return (annotator, image, attribute); the last answer with a given key counts."""
        return self.annotator, self.image, self.attribute


@dataclass
class AnnotationLog:
    """Append-only file of answers; every answer is on disk when `append` returns.

    A killed process leaves at most one incomplete line, which the next `append` removes with a
    warning. Several processes may append concurrently, except on systems without flock.
    """

    path: Path

    def append(
        self, image: str, annotator: str, attribute: str, value: str, **numbers: float | None
    ) -> None:
        """Append an answer with the current time.

        Args:
            image: path relative to the image folder.
            annotator: the annotator's name.
            attribute: the attribute.
            value: the answer.
            numbers: `seconds` and `weight`; see `Answer`.

        Raises:
            InvalidInputError: If a field is invalid.
            OSError: If the disk is full. The file is unchanged.
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
        is_new = not self.path.exists()
        with storage_errors(self.path), self.path.open("ab+", buffering=0) as file:
            # Lock the file if the system has flock; closing the file releases the lock.
            with suppress(ImportError):
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            content = self.path.read_bytes()
            size = len(content) - len(_torn(self.path, content))
            file.truncate(size)
            # An editor may have removed the last line break.
            if size and content[size - 1 : size] != b"\n":
                line = b"\n" + line
            written = os.write(file.fileno(), line)
            if written < len(line):  # the disk is full: remove the incomplete line
                file.truncate(size)
                raise OSError(
                    f"{self.path}: the answer was not saved, because the disk is full;"
                    " free some space and answer again"
                )
            # Sync before the next image is shown: a human answer cannot be recomputed.
            os.fsync(file.fileno())
        if is_new:
            # Sync the folder of a new file, or its name may be lost in a power failure.
            sync(self.path.parent)

    def answers(self) -> dict[Key, Answer]:
        """Return (annotator, image, attribute) -> last answer; see `read` for errors.

        Empty if the file does not exist.
        """
        if not self.path.exists():
            return {}
        return {answer.key: answer for answer in self.read()}

    def read(self) -> list[Answer]:
        """Return all answers in file order; skip an incomplete last line with a warning.

        Raises:
            InvalidInputError: If some lines are not answers; the message lists the first few.
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
                f"{self.path}: {len(problems)} lines are not answers of the labelling app:"
                f" {'; '.join(problems[:5])}; correct or remove them"
            )
        return answers


def _torn(path: Path, content: bytes) -> bytes:
    """Return the last line if it is incomplete, and issue a warning."""
    tail = content.rpartition(b"\n")[2]
    try:
        json.loads(tail or b"0")
        return b""
    except (ValueError, RecursionError):
        warn(
            f"{path}: skipping the last line, which is incomplete (interrupted while writing):"
            f" {tail[:80].decode(errors='replace')!r}; the answer before it was saved"
        )
        return tail


def read_answers(paths: Sequence[Path]) -> list[Answer]:
    """Return every annotator's last answer about every image and attribute.

    Within a file, the later line counts; between files, the later time.

    Args:
        paths: answer files.

    Raises:
        InvalidInputError: If the files contain no answers, or invalid ones (see
            `AnnotationLog.read`).
    """
    last = dict[Key, Answer]()
    for path in paths:
        # Within a file, the later line wins: clocks may be set back, but lines are in order.
        answer_of_key = {answer.key: answer for answer in AnnotationLog(path).read()}
        for key, answer in answer_of_key.items():
            if key not in last or answer.time > last[key].time:
                last[key] = answer
    if not last:
        names = ", ".join(map(str, paths)) or "no files"
        raise InvalidInputError(f"labels: expected answers, found none in {names}")
    return list(last.values())
