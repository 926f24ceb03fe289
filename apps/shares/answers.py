"""Read and write annotators' answers in append-only files with one JSON object per line.

    {"format_version": 1, "image": "none/a-photo-of-a-doctor/7.png", "annotator": "ada",
     "attribute": "gender", "value": "female", "time": "2024-05-01T12:00:00+00:00", "seconds": 2.4}

`image` is the path relative to the image folder. If an annotator answers again, a line is appended,
and the last line counts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from vldebias.errors import InvalidInputError, warn
from vldebias.utils.files import explain, read_bytes, storage_errors, sync
from vldebias.utils.formats import check_json_format

CANNOT_TELL = "cannot tell"
NO_PERSON = "no person"  # nothing to label: the image is broken or shows no one
NO_MAJORITY = "no majority"  # majority answer if there is a tie
ANSWERS = "answers.jsonl"  # default answer file of `vldebias label`, in the image folder
Key = tuple[str, str, str]
_BLOCK = 4096  # bytes that are read at once from the end of a file


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
        time: time of the answer, with a time zone.
        seconds: time that the annotator took, or None if unknown.
        weight: inverse probability that the image was sampled for labelling, or None if all images
            were equally likely.
    """

    model_config = ConfigDict(extra="forbid")

    format_version: Literal[1] = 1
    image: Annotated[str, AfterValidator(_below_folder)]
    annotator: _Text
    attribute: _Text
    value: _Text
    time: AwareDatetime
    seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    weight: float | None = Field(None, gt=0, allow_inf_nan=False)

    @property
    def key(self) -> Key:
        """Return (annotator, image, attribute). The last answer with a given key counts."""
        return self.annotator, self.image, self.attribute


@dataclass
class AnnotationLog:
    """Append-only file of answers. Every answer is on disk when `append` returns.

    If a process is killed, at most one incomplete line is left, which the next `append` removes
    with a warning. Several processes can append at the same time on systems that support flock.
    """

    path: Path

    def append(
        self, image: str, annotator: str, attribute: str, value: str, **numbers: float | None
    ) -> None:
        """Append an answer with the current time.

        Args:
            image: path relative to the image folder.
            annotator: the annotator's name.
            attribute: what was asked about, such as "gender".
            value: the answer.
            numbers: `seconds` taken, and sampling `weight`, as in `Answer`.

        Raises:
            InvalidInputError: If a field is invalid.
            OSError: If the disk is full. The file is then unchanged.
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
            tail = _after_last_break(file)
            torn = _torn(self.path, tail)
            size = file.seek(0, os.SEEK_END) - len(torn)
            file.truncate(size)
            # An editor may have removed the last line break.
            if tail and not torn:
                line = b"\n" + line
            written = os.write(file.fileno(), line)
            if written < len(line):  # the disk is full: remove the incomplete line
                file.truncate(size)
                raise OSError(
                    f"{self.path}: the answer was not saved, because the disk is full;"
                    " free some space and answer again"
                )
            # Sync the file before the next image is shown, because a human answer cannot be
            # recomputed.
            os.fsync(file.fileno())
        if is_new:
            # Sync the folder of a new file. Otherwise, its name may be lost in a power failure.
            sync(self.path.parent)

    def answers(self) -> dict[Key, Answer]:
        """Return the last answer for each key, or an empty mapping if the file does not exist.

        Raises:
            InvalidInputError: If some lines are not answers.
        """
        if not self.path.exists():
            return {}
        return {answer.key: answer for answer in self.read()}

    def read(self) -> list[Answer]:
        """Return all answers in file order, and skip an incomplete last line with a warning.

        Raises:
            InvalidInputError: If some lines are not answers or have a newer format. The message
                lists the first few.
        """
        content = read_bytes(self.path)
        answers = []
        problems = []
        complete = content.removesuffix(_torn(self.path, content))
        for number, line in enumerate(complete.split(b"\n"), start=1):
            if not line.strip():
                continue
            check_json_format(line, f"{self.path}, line {number}", missing=1)
            try:
                answers.append(Answer.model_validate_json(line))
            except ValidationError as error:
                problems.append(f"line {number}: {explain(error)}")
        if problems:
            raise InvalidInputError(
                f"{self.path}: {len(problems)} lines are not answers from the labelling app:"
                f" {'; '.join(problems[:5])}; correct or remove them"
            )
        return answers


def _after_last_break(file: BinaryIO) -> bytes:
    """Return the content after the last line break, without reading the whole file."""
    tail = b""
    place = file.seek(0, os.SEEK_END)
    while place and b"\n" not in tail:
        start = max(place - _BLOCK, 0)
        file.seek(start)
        tail = file.read(place - start) + tail
        place = start
    return tail.rpartition(b"\n")[2]


def _torn(path: Path, content: bytes) -> bytes:
    """Return the last line and warn about it if it is incomplete, otherwise return b""."""
    tail = content.rpartition(b"\n")[2]
    try:
        json.loads(tail or b"0")
        return b""
    except (ValueError, RecursionError):
        warn(
            f"{path}: skipping the last line, which is incomplete (interrupted while writing):"
            f" {tail[:80].decode(errors='replace')!r}; all earlier answers are intact"
        )
        return tail


def table_of_answers(path: Path, attribute: str) -> dict[str, list[str]]:
    """Return a table of people's answers, with one row per image labelled with an attribute.

    Args:
        path: file of answers.
        attribute: the attribute whose images are listed.

    Returns:
        The columns "image", "prompt" (the same for all images) and "weight" (inverse probability
        that the image was sampled), and one per attribute with the majority's answers, as from
        `labels_of_folder`.
    """
    answers = [answer for answer in read_answers([path]) if answer.attribute == attribute]
    weight_of_image = {answer.image: str(answer.weight or 1.0) for answer in answers}
    images = list(weight_of_image)
    columns, _ = labels_of_folder(path.parent, images, path.name)
    weights = list(weight_of_image.values())
    return {**columns, "image": images, "prompt": ["all"] * len(images), "weight": weights}


def labels_of_folder(
    folder: Path, images: Sequence[str], file: str = ANSWERS
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the label columns that people's answers about a folder's images give.

    Args:
        folder: the folder, which contains the answers if its images were labelled.
        images: paths of the images, relative to the folder.
        file: name of the file of answers in the folder.

    Returns:
        For each attribute, the majority's answer about each image, or "" if the image is not
        labelled, people could not tell, or there is a tie; and a sentence about the file of
        answers, by its name.
    """
    votes: dict[str, dict[str, Counter[str]]] = {}
    for answer in AnnotationLog(folder / file).answers().values():
        of_image = votes.setdefault(answer.attribute, {})
        of_image.setdefault(answer.image, Counter())[answer.value] += 1
    columns = {}
    sentences = []
    for attribute, votes_of_image in votes.items():
        label_of_image = {}
        for image, counts in votes_of_image.items():
            (value, most), *rest = [*counts.most_common(2), ("", 0)]
            is_label = value not in (CANNOT_TELL, NO_PERSON) and most > rest[0][1]
            label_of_image[image] = value if is_label else ""
        columns[attribute] = [label_of_image.get(image, "") for image in images]
        labelled = len(images) - columns[attribute].count("")
        sentences.append(f"{labelled} of {len(images)} images have a label of {attribute}.")
        absent = sorted(votes_of_image.keys() - {*images})
        if absent:
            sentences.append(
                f"Not in the folder: {len(absent)} of the images labelled with {attribute}, such as"
                f" {absent[0]!r}."
            )
    return columns, {ANSWERS: " ".join(sentences)} if sentences else {}


def read_answers(paths: Sequence[Path]) -> list[Answer]:
    """Return each annotator's last answer about each image and attribute.

    Within a file, the last line counts. Between files, the answer with the latest time counts.

    Args:
        paths: answer files.

    Raises:
        InvalidInputError: If the files contain no answers, or invalid ones (see
            `AnnotationLog.read`).
    """
    last = dict[Key, Answer]()
    for path in paths:
        # Within a file, the last line counts, because lines are in order even if the clock was set
        # back.
        answer_of_key = {answer.key: answer for answer in AnnotationLog(path).read()}
        for key, answer in answer_of_key.items():
            if key not in last or answer.time > last[key].time:
                last[key] = answer
    if not last:
        names = ", ".join(map(str, paths)) or "no files"
        raise InvalidInputError(f"labels: expected answers, found none in {names}")
    return list(last.values())
