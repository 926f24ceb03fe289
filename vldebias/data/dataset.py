"""Represent images with labels, read from files, a table, a stream or the miniature world."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.data.folders import OUTSIDE, existing_names
from vldebias.data.labels import Labels, indices_of
from vldebias.data.parallel import prefetch
from vldebias.errors import InvalidInputError, Lazily
from vldebias.utils.pictures import decode
from vldebias.utils.progress import SILENT, Progress

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image
else:
    pa = Lazily("pyarrow")
pc = Lazily("pyarrow.compute")

# Threads that check images, and images that are read at once.
_READERS = 8
_AHEAD = 256
# Bytes that are read at either end of a file.
_ENDS = 4096
# Per task of a thread: 200 000 files are opened in seconds, not singly.
_FILES_AT_ONCE = 512


class Columns:
    """Define what `ImageData` and `Embeddings` share: n rows with ids, labels in columns, perhaps
    captions."""

    name: str
    ids: Sequence[str]
    labels: Mapping[str, Labels]
    captions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> Labels:
        """Return the labels of a column; an unknown name is an error that lists the columns."""
        if name not in self.labels:
            raise InvalidInputError(
                f"{self.name}: no column {name!r}; there are {sorted(self.labels)}"
            )
        return self.labels[name]

    def _check_lengths(self) -> None:
        columns: dict[str, Any] = {"ids": self.ids, **self.labels}
        for name in ("captions", "more_captions"):
            texts = getattr(self, name, ())
            if texts:  # without captions the field is empty, whatever n is
                columns[name] = texts
        check_lengths(self.name, len(self), columns)

    def _some(self, rows: ArrayLike | slice) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Return the indices of some rows, and the columns of these rows by the names of their
        fields."""
        # Slices, masks and negative numbers all become positions 0 .. n - 1.
        index = np.arange(len(self))[indices_of(rows)]
        captions: tuple[str, ...] = ()
        if self.captions:
            captions = tuple(self.captions[i] for i in index)
        columns = {
            "ids": tuple(self.ids[i] for i in index),
            "labels": {column: labels[index] for column, labels in self.labels.items()},
            "captions": captions,
        }
        return index, columns


def check_lengths(name: str, n: int, columns: Mapping[str, Any]) -> None:
    """Refuse columns that have other than n rows, and texts in place of columns; None stands for a
    column that is not there.

    Args:
        name: of the data, for messages.
        n: number of rows.
        columns: column -> its rows, or None for a column that is absent.
    """
    wrong = {}
    for column, rows in columns.items():
        refuse_text(column, rows)
        if rows is not None and len(rows) != n:
            wrong[column] = len(rows)
    if wrong:
        raise InvalidInputError(f"{name}: expected {n} rows in every column, got {wrong}")


def refuse_text(column: str, rows: object) -> None:
    """Refuse one text in place of a column, which would be read letter by letter.

    Args:
        column: name of the column, for the message.
        rows: what was passed as its rows.
    """
    if isinstance(rows, str):
        raise InvalidInputError(
            f"{column}: expected a list with a text for each row, got the text {rows[:40]!r}"
        )


class LazyText:
    """Declare a dataclass field that takes a text, or a function that returns one when it is first
    read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_{name}"

    def __get__(self, holder: Any, owner: type) -> str:
        # Of the class, where dataclasses look for a default, this raises AttributeError: none.
        text = holder.__dict__[self._slot]
        if callable(text):
            text = text()
            holder.__dict__[self._slot] = text
        return str(text)

    def __set__(self, holder: Any, value: str | Callable[[], str]) -> None:
        holder.__dict__[self._slot] = value


@dataclass(frozen=True)
class Record:
    """Hold one row of a stream; fields are as in ImageData, labels are texts, None where
    unknown."""

    id: str
    read: Callable[[], Image.Image]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    caption: str | None = None
    more_captions: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class ImageData(Columns):
    """Hold n images that can be read in any order, with their labels and captions.

    Attributes:
        name, split: "waterbirds", "test".
        ids: n different names, such as the path below the root.
        read: index -> decoded RGB image; OSError where a file cannot be read.
        labels: column -> Labels of n rows.
        captions, more_captions: n texts, and n tuples of further ones; or none.
        fingerprint: changes when the images or their order do; a text, or a function that is called
            when first asked.
        about: facts for a report, such as the root.
        path: index -> path of the image, "" where it is not a separate file.

    Raises:
        InvalidInputError: ids that repeat, columns or captions of another length.
    """

    name: str
    split: str
    ids: tuple[str, ...]
    read: Callable[[int], Image.Image]
    labels: Mapping[str, Labels]
    fingerprint: LazyText = LazyText()
    captions: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    path: Callable[[int], str] = lambda _: ""
    more_captions: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        # Answers, caches and exclusions name images by their ids.
        repeated = len(self.ids) - len(set(self.ids))
        if repeated:
            raise InvalidInputError(
                f"{self.name}: {repeated} ids are there more than once; expected n different ones "
                "(open_data(..., caption=...) joins rows of one image)"
            )
        self._check_lengths()

    def __getitem__(self, rows: ArrayLike | slice) -> ImageData:
        """Return some of the rows, in the given order: a slice, indices or a mask."""
        index, columns = self._some(rows)
        if self.more_captions:
            columns["more_captions"] = tuple(self.more_captions[i] for i in index)

        # Lazily: a part of a large data set is usually read without being hashed.
        def fingerprint() -> str:
            return fingerprint_of([self.fingerprint, *map(str, index)])

        def read(row: int) -> Image.Image:
            return self.read(int(index[row]))

        def path(row: int) -> str:
            return self.path(int(index[row]))

        return replace(self, fingerprint=fingerprint, read=read, path=path, **columns)

    def __repr__(self) -> str:
        captions = ", captions" if self.captions else ""
        return (
            f"ImageData({self.name} {self.split}, {len(self)} images, columns"
            f" {list(self.labels)}{captions})"
        )


def file_images(
    name: str,
    split: str,
    root: Path,
    files: Sequence[str],
    labels: Mapping[str, Labels],
    *,
    about: Mapping[str, Any] | None = None,
    allow_outside: bool = False,
    **captions: Any,
) -> ImageData:
    """Return the images of `files` (paths below `root`, and their ids); none is opened before it is
    read. Paths of Windows, and endings in another case, are found.

    Args:
        name: of the data set.
        split: of the data set.
        root: folder that the paths start from.
        files: paths below `root`, which are the ids as well.
        labels: column -> labels of n rows.
        about: further facts for a report.
        allow_outside: allow paths that lead out of `root`, which are refused otherwise.
        captions: `captions` and `more_captions` of `ImageData`.
    """
    if not files:
        raise InvalidInputError(f"{name}: no images in split {split!r} of {root}")
    if not allow_outside:
        refuse_outside(name, root, files)
    # The ids stay as the table writes them.
    paths = existing_names(root, files)

    def read(index: int) -> Image.Image:
        return decode(root / paths[index])

    def path(index: int) -> str:
        return os.path.abspath(root / paths[index])

    def fingerprint() -> str:
        return fingerprint_files(files, [root / file for file in paths])

    return ImageData(
        name=name,
        split=split,
        ids=tuple(files),
        read=read,
        labels=dict(labels),
        fingerprint=fingerprint,
        about={"root": str(root), **(about or {})},
        path=path,
        **captions,
    )


def refuse_outside(name: str, root: Path, files: Sequence[str]) -> None:
    """Refuse paths that leave the root, so that a table from elsewhere cannot read any file.

    Args:
        name: of the data, for the message.
        root: the folder that paths have to stay in.
        files: the paths.
    """
    paths = pa.array(files, pa.string())
    outside = pc.filter(paths, pc.match_substring_regex(paths, OUTSIDE))
    if len(outside):
        raise InvalidInputError(
            f"{name}: {len(outside)} paths lead out of {root} or are no local files, such as"
            f" {outside[0].as_py()!r}; expected paths below it, or allow_outside=True"
            " where the table is trusted (--set allow_outside=true)"
        )


def fingerprint_of(parts: Sequence[str]) -> str:
    """Return a short hash of texts, in their order."""
    # Separated by NUL, or "ab", "c" would have the hash of "a", "bc".
    return hashlib.sha256(b"".join(part.encode() + b"\0" for part in parts)).hexdigest()[:24]


def fingerprint_files(ids: Sequence[str], paths: Sequence[str | os.PathLike[str]]) -> str:
    """Return a hash of ids, file sizes, and the first and last 4 KiB of every file; read in
    threads, hashed in order.

    It survives copying; a change of the same length in the middle of a large file goes unnoticed.

    Args:
        ids: names of the files, which are hashed too.
        paths: where the files are, in the same order.
    """

    def ends(path: str | os.PathLike[str]) -> bytes:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(_ENDS)
                # Of a file shorter than both ends nothing is read twice.
                file.seek(max(_ENDS, size - _ENDS))
                return f"{size} ".encode() + head + file.read(_ENDS)
        except OSError:
            return b"-1 "  # no file has this size

    def digest(start: int) -> bytes:
        rows = slice(start, start + _FILES_AT_ONCE)
        state = hashlib.sha256()
        for name, path in zip(ids[rows], paths[rows], strict=True):
            # With its length, since a name may hold a space.
            state.update(f"{len(name.encode())} {name} ".encode())
            state.update(ends(path))
        return state.digest()

    starts = range(0, len(ids), _FILES_AT_ONCE)
    with ThreadPoolExecutor() as pool:
        return hashlib.sha256(b"".join(pool.map(digest, starts))).hexdigest()[:24]


def describe(data: ImageData) -> dict[str, Any]:
    """Count images, labels ({column: {"counts": {name: rows}, "unknown": rows}}) and captions, for
    JSON."""
    columns = {}
    for name, labels in data.labels.items():
        columns[name] = {"counts": labels.counts, "unknown": int((~labels.known).sum())}
    return {
        "name": data.name,
        "split": data.split,
        "images": len(data),
        "columns": columns,
        "captions": sum(map(bool, data.captions)),
        "about": dict(data.about),
    }


def check_images(data: ImageData, *, progress: bool = True) -> list[tuple[str, str]]:
    """Read every image; list those that cannot be read, with the reason, in order.

    Args:
        data: the images.
        progress: show a progress bar.
    """

    def reason(row: int) -> str:
        try:
            data.read(row)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    display = SILENT
    if progress:
        display = Progress()
    bad = list[tuple[str, str]]()
    with display, display.bar("checking images", len(data)) as advance:
        # Pillow's decoders release the GIL, so threads decode at the same time.
        for row, why in enumerate(prefetch(range(len(data)), reason, _READERS, _AHEAD)):
            if why:
                bad.append((data.ids[row], why))
            advance()
    return bad
