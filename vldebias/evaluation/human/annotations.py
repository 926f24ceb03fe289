"""Labels that people gave to drawn images, read from the labelling app's file or from tables exported elsewhere."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from vldebias.errors import InvalidInputError
from vldebias.evaluation.human.log import CANNOT_TELL, NO_PERSON, Answer, first_problem, read_log

__all__ = ["NOT_ANSWERED", "Annotations", "read_annotations"]

NOT_ANSWERED = -1
_FIELDS = ("image", "annotator", "attribute", "value", "time", "seconds")


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
    torn: Mapping[str, str] | None = None

    @property
    def attributes(self) -> tuple[str, ...]:
        """Attributes that someone answered, in the order of their first answer."""
        return tuple(dict.fromkeys(answer.attribute for answer in self.answers))

    def annotators(self, attribute: str) -> tuple[str, ...]:
        """Who answered for the attribute, by name."""
        return tuple(sorted({answer.annotator for answer in self.answers if answer.attribute == attribute}))

    def table(
        self, attribute: str, names: Sequence[str], images: Sequence[str]
    ) -> tuple[NDArray[np.int64], tuple[str, ...], tuple[str, ...]]:
        """Codes (annotators, images) of the answers, who the rows are, and images that were labelled but not asked for.

        A code is the index in (*names, CANNOT_TELL, NO_PERSON), or NOT_ANSWERED.

        Raises:
            InvalidInputError: nobody answered for the attribute, or values that are not among those.
        """
        asked = [answer for answer in self.answers if answer.attribute == attribute]
        if not asked:
            raise InvalidInputError(
                f"annotations: no answer for {attribute!r}; there are answers for {list(self.attributes)}"
            )
        code = {value: i for i, value in enumerate((*names, CANNOT_TELL, NO_PERSON))}
        _refuse_strangers(attribute, asked, tuple(code))
        rows = {name: i for i, name in enumerate(self.annotators(attribute))}
        columns = {image: i for i, image in enumerate(images)}
        table = np.full((len(rows), len(columns)), NOT_ANSWERED, dtype=np.int64)
        for answer in asked:
            if answer.image in columns:
                table[rows[answer.annotator], columns[answer.image]] = code[answer.value]
        others = tuple(dict.fromkeys(a.image for a in asked if a.image not in columns))
        return table, tuple(rows), others


def read_annotations(
    paths: Path | Sequence[Path],
    *,
    columns: Mapping[str, str] | None = None,
    attribute: str | None = None,
) -> Annotations:
    """Answers from one or several files: `.csv` with a header, anything else as lines of the labelling app.

    The last answer counts: the later line inside a file, the later time between files (without times the later file).

    Args:
        paths: one file per annotator, per session, or one for all.
        columns: for csv, names of its columns where they differ: {"image": "file", "value": "label"}. `image`,
            `annotator`, `attribute` and `value` are needed; `time` (ISO 8601 with time zone) and `seconds` are read
            where they are there.
        attribute: for csv without such a column, the attribute that all its values are about.

    Raises:
        InvalidInputError: files that cannot be read or rows that do not fit, with their line numbers; no answer.
    """
    files = [paths] if isinstance(paths, (str, Path)) else list(paths)
    last: dict[tuple[str, str, str], Answer] = {}
    torn: dict[str, str] = {}
    lines = 0
    for path in map(Path, files):
        if path.suffix.lower() == ".csv":
            answers = _read_csv(path, columns or {}, attribute)
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


def _refuse_strangers(attribute: str, answers: Iterable[Answer], known: Sequence[str]) -> None:
    strangers = Counter(answer.value for answer in answers if answer.value not in known)
    if strangers:
        listed = ", ".join(f"{value!r} ({count})" for value, count in strangers.most_common(8))
        raise InvalidInputError(
            f"annotations of {attribute!r}: unknown values {listed}; expected one of {list(known)}. "
            "Rename them in the file, or name the values of the attribute as the annotators did"
        )


def _read_csv(path: Path, columns: Mapping[str, str], attribute: str | None) -> list[Answer]:
    unknown = sorted(set(columns) - set(_FIELDS))
    if unknown:
        raise InvalidInputError(f"columns: expected fields among {list(_FIELDS)}, got {unknown}")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            source = _sources(path, reader.fieldnames or (), columns, attribute)
            return _rows(path, reader, source, {} if attribute is None else {"attribute": attribute})
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"{path}: cannot be read as csv in UTF-8: {error}") from error


def _sources(path: Path, header: Sequence[str], columns: Mapping[str, str], attribute: str | None) -> dict[str, str]:
    """Field -> column of the file, for the fields that it has."""
    wanted = {field: columns.get(field, field) for field in _FIELDS if field != "attribute" or attribute is None}
    optional = {"time", "seconds"} - set(columns)
    missing = [column for field, column in wanted.items() if column not in header and field not in optional]
    if missing:
        raise InvalidInputError(
            f"{path}: no columns {missing}; there are {list(header)}. Say which is which with columns=, such as "
            "{'image': 'file'}, and with attribute= where every row is about the same one"
        )
    return {field: column for field, column in wanted.items() if column in header}


def _rows(
    path: Path, reader: csv.DictReader[str], source: Mapping[str, str], constant: Mapping[str, str]
) -> list[Answer]:
    answers, problems = [], []
    for row in reader:
        given: dict[str, Any] = {field: (row[column] or "").strip() for field, column in source.items()}
        given |= constant
        try:
            answers.append(Answer.model_validate({k: v for k, v in given.items() if v or k not in ("time", "seconds")}))
        except ValidationError as error:
            problems.append(f"line {reader.line_num}: {first_problem(error)}")
    if problems:
        raise InvalidInputError(
            f"{path}: {len(problems)} of {len(answers) + len(problems)} rows do not fit: {'; '.join(problems[:5])}"
        )
    return answers
