"""The file of the labelling app: one answer per line of JSON, only ever appended to, safe against a crash.

    {"version": 1, "image": "none/a-photo-of-a-doctor/7.png", "annotator": "ada", "attribute": "gender",
     "value": "female", "time": "2024-05-01T12:00:00+00:00", "seconds": 2.4}

`image` is the path below the folder of drawn images. `value` is a value of the attribute, "cannot tell" or "no person".
An annotator who answers again appends another line, and the last one counts.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from vldebias.errors import InvalidInputError, VldebiasWarning

__all__ = ["CANNOT_TELL", "NO_PERSON", "AnnotationLog", "Answer", "first_problem", "read_log"]

CANNOT_TELL = "cannot tell"
NO_PERSON = "no person"  # nothing to label: the image is broken or shows no one


def _below_folder(image: str) -> str:
    path = PurePosixPath(image)
    if path.is_absolute() or ".." in path.parts or "\\" in image:
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
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    image: Annotated[_Text, AfterValidator(_below_folder)]
    annotator: _Text
    attribute: _Text
    value: _Text
    time: AwareDatetime | None = None
    seconds: float | None = Field(None, ge=0, allow_inf_nan=False)

    @property
    def key(self) -> tuple[str, str, str]:
        """(annotator, image, attribute): answers with the same key replace each other."""
        return self.annotator, self.image, self.attribute


class AnnotationLog:
    """Appends answers to a file; every answer is on the disk when `append` returns.

    A process that dies leaves at most one line without its end, which the next `append` cuts off with a warning:
    nobody was told that it was saved. Processes may append at the same time; on systems without flock one at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, image: str, annotator: str, attribute: str, value: str, *, seconds: float | None = None) -> Answer:
        """Write one answer with the present time and return it.

        Raises:
            InvalidInputError: a field that the file may not hold; nothing is written then.
            OSError: the disk is full or gone; the file is as before.
        """
        try:
            answer = Answer(
                image=image,
                annotator=annotator,
                attribute=attribute,
                value=value,
                time=datetime.now(UTC),
                seconds=seconds,
            )
        except ValidationError as error:
            raise InvalidInputError(f"annotation: {first_problem(error)}") from error
        self._write(answer.model_dump_json().encode() + b"\n")
        return answer

    def answers(self) -> dict[tuple[str, str, str], Answer]:
        """(annotator, image, attribute) -> the last answer; empty where there is no file yet. Raises: see read_log."""
        if not self.path.exists():
            return {}
        return {answer.key: answer for answer in read_log(self.path)[0]}

    def _write(self, line: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            with _locked(file):
                size = self._mend(file)
                if os.write(file, line) < len(line):  # the disk is full: leave no half of a line behind
                    os.ftruncate(file, size)
                    raise OSError(f"{self.path}: no room for another answer; the file is as before")
                os.fsync(file)
        finally:
            os.close(file)
        if new:
            _sync_folder(self.path.parent)

    def _mend(self, file: int) -> int:
        """Give the last line its end, or cut it off where it was torn; returns the size of the file."""
        size = os.fstat(file).st_size
        start, tail = _tail(file, size)
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
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read: {error.strerror}") from error
    *lines, tail = content.split(b"\n")
    if tail and _complete(tail):
        lines, tail = [*lines, tail], b""
    answers, problems = [], []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                answers.append(Answer.model_validate_json(line))
            except ValidationError as error:
                problems.append(f"line {number}: {first_problem(error)}")
    if problems:
        raise InvalidInputError(
            f"{path}: {len(problems)} of {len(lines)} lines are no answers of the labelling app: "
            f"{'; '.join(problems[:5])}; mend or remove them"
        )
    if tail:
        _warn_torn(path, tail)
    return answers, tail


def first_problem(error: ValidationError) -> str:
    """The first thing that pydantic found wrong, in words."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    what = first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}, got {first['input']!r}" if where else what


def _complete(line: bytes) -> bool:
    """Whether a line that lacks its end is whole all the same: no part of a JSON object is JSON."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _tail(file: int, size: int) -> tuple[int, bytes]:
    """Where the last line starts, and the bytes of it if it has no end yet."""
    block = 1 << 16
    tail, start = b"", size
    while start > 0:
        step = min(block, start)
        start = os.lseek(file, start - step, os.SEEK_SET)
        tail = os.read(file, step) + tail
        end = tail.rfind(b"\n")
        if end >= 0:
            return start + end + 1, tail[end + 1 :]
    return 0, tail


def _warn_torn(path: Path, tail: bytes) -> None:
    shown = tail[:80].decode(errors="replace")
    warnings.warn(
        f"{path}: the last line was cut off, as by a crash while it was written, and is skipped: {shown!r}; "
        "the answer before it is the last that was saved",
        VldebiasWarning,
        stacklevel=4,
    )


@contextmanager
def _locked(file: int) -> Iterator[None]:
    """Alone with the file, where the system has flock; closing it opens the lock."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file as durable as its content."""
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
