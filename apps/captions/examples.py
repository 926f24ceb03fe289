"""Write how each text was read as a table, and show wrong values with their images on the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import need
from vldebias.measure.rows import Strip
from vldebias.report.strip import write_strip
from vldebias.study.run_files import RESULT
from vldebias.utils.files import spreadsheet_csv, write_atomically
from vldebias.utils.pictures import decode

from .rows import AnswerRows

if TYPE_CHECKING:
    from PIL.Image import Image

    from vldebias.report.result import Result

    from .table import Table

MOST = 20  # maximum number of wrong values on the page
MARKS = "marks.csv"  # what the page saves
CELL = (192, 192)  # pixels of a picture on the page
SURROUND = "#888888"
Texts = Mapping[str, Mapping[str, Sequence[str]]]  # model -> image -> its texts


class Examples:
    """Write the table of what was read, and read which of its rows people marked as misread.

    Args:
        kind: what is read, "captions" or "answers", after which the files are named.
        tables: the tables, whose folders contain the images.
        out: folder for the files, or None to write nothing.

    Attributes:
        misread: images with a text that people marked as misread, and the model of that text.
        stem: name of the file with images of wrong values, without its ending.
        strips: stem -> these images, once `write` has found them.
    """

    def __init__(self, kind: str, tables: Sequence[Table], out: str | Path | None) -> None:
        self.kind = kind
        self.stem = f"{kind}-examples"
        self.out = None if out is None else Path(out)
        folders = [Path(table).parent for table in tables if isinstance(table, (str, Path))]
        self.folders = list(dict.fromkeys([*folders, Path()]))
        self.misread: set[tuple[str, str]] = set()
        self.strips: dict[str, Strip] = {}
        for name in (f"{kind}.csv", MARKS) if self.out is not None else ():
            file = Path(out or ".") / name
            if file.is_file():
                self.misread |= _marked_rows(file)

    def write(
        self,
        answers: AnswerRows,
        models: Sequence[str],
        images: Sequence[str],
        texts: Texts,
        files: Mapping[str, Sequence[str]],
        stated_value: Callable[[Sequence[str]], str],
    ) -> dict[str, Any]:
        """Write the table, find the images, and return the setting with the wrong values.

        Args:
            answers: what the models state.
            models: name of each model, in the order of `answers`.
            images: the images (n,).
            texts: what the models say about each image.
            files: image -> paths under which it may be found.
            stated_value: function that returns the stated value of texts.
        """
        if self.out is None:
            return {}
        rows = []
        for method, model in zip(answers.answers, models, strict=True):
            outcomes = np.where(answers.clear, answers.outcomes(method), "")
            read = np.stack([answers.answers[method], answers.labels, outcomes], axis=1).tolist()
            for image, stated in zip(images, read, strict=True):
                mark = "x" if (model, image) in self.misread else ""
                rows.append((image, " | ".join(texts[method][image]), *stated, mark, model))
        listed = {(row[-1], row[0]) for row in rows}
        # Marks of other images stay, for example if the table was shortened.
        for model, image in sorted(self.misread - listed):
            rows.append((image, "", "", "", "", "x", model))
        place = {image: number for number, image in enumerate(images)}
        rows.sort(key=lambda row: (row[4] != "wrong", place.get(row[0], len(place))))
        column = {"captions": "caption", "answers": "reply"}[self.kind]
        heads = ("image", column, "read as", "label", "answer", "misread", "model")
        frame = need("pandas").DataFrame(rows, columns=list(heads))
        write_atomically(self.out / f"{self.kind}.csv", spreadsheet_csv(frame))
        wrong = [row for row in rows if row[4] == "wrong"]
        shown: list[dict[str, Any]] = [dict(zip(heads, row, strict=True)) for row in wrong[:MOST]]
        for row in shown:
            row["parts"] = _marked_words(row[column], row["read as"], stated_value)
        pictures = [self._picture(files.get(row["image"], [])) for row in shown]
        if any(picture is not None for picture in pictures):
            blank = need("PIL.Image").new("RGB", CELL, SURROUND)
            squares = [picture or blank for picture in pictures]
            strip = Strip("", [row["image"] for row in shown], [("", squares)])
            self.strips[self.stem] = strip
        about = {"kind": self.kind, "wrong": len(wrong), "several": len(models) > 1}
        return {"examples": {**about, "rows": shown}}

    def _picture(self, names: Sequence[str]) -> Image | None:
        """Return an image that fits into a cell, or None if there is no such file."""
        for folder, name in product(self.folders, names):
            # A name that is no image, or too long for a path, is just a name.
            with suppress(OSError, ValueError):
                return in_cell(decode(folder / name))
        return None


def write_measured(
    result: Result, task: str, strips: Mapping[str, Strip], out: Path, suffix: str
) -> None:
    """Write a result and then its strips, which a full disk may have no space for.

    Strips of an earlier run are removed, since they may show images that are no longer among these.

    Args:
        result: the result.
        task: the task that the strips belong to.
        strips: file stem -> strip.
        out: folder for the files.
        suffix: end of the file stem of all such strips.
    """
    result.write(out / RESULT)
    for file in out.glob(f"*{suffix}.png"):
        if file.stem not in strips:
            file.unlink()
    for stem, strip in strips.items():
        write_strip(strip, out / f"{stem}.png", {"run": result.name, "task": task})


def in_cell(image: Image) -> Image:
    """Return an image that fits into a cell, with a surround that suits light and dark pages."""
    padded: Image = need("PIL.ImageOps").pad(image, CELL, color=SURROUND)
    return padded


def _marked_rows(file: Path) -> set[tuple[str, str]]:
    """Return the model and image of each row that is marked as misread."""
    table = read_table(file)
    names = ("model", "image", "misread")
    columns = [as_texts(column_of(table, name, file), str(file)) for name in names]
    return {(model, image) for model, image, mark in zip(*columns, strict=True) if mark.strip()}


def _marked_words(
    text: str, value: str, stated_value: Callable[[Sequence[str]], str]
) -> list[tuple[str, bool]]:
    """Return the parts of a text, and whether each is a word from which a value was read."""
    parts = re.split(r"(\W+)", text)
    is_read = [bool(part) and stated_value([part]) == value for part in parts]
    if not any(is_read):
        # No word states the value alone: mark those without which it is not stated.
        for n, part in enumerate(parts):
            rest = "".join([*parts[:n], *parts[n + 1 :]])
            is_read[n] = part.isalnum() and stated_value([rest]) != value
    return list(zip(parts, is_read, strict=True))
