"""Define data sets of labelled images from files, tables, streams or the miniature worlds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.data.folders import existing_names, refuse_no_paths, refuse_outside
from vldebias.data.labels import Labels, indices_of
from vldebias.data.parallel import prefetch
from vldebias.errors import InvalidInputError, check_kind, did_you_mean
from vldebias.utils.pictures import decode
from vldebias.utils.progress import SILENT, Progress

if TYPE_CHECKING:
    from PIL import Image

# Metadata for reports and records, such as the data folder; values are JSON or paths.
Facts = Mapping[str, Any]

# Number of threads that check images, and number of images to read ahead.
_READERS = 8
_AHEAD = 256
# Number of bytes hashed at each end of a file.
_ENDS = 4096
# Number of files that a thread task hashes. One task per file would be slow for 200,000 files.
_FILES_AT_ONCE = 512


class Columns:
    """Base class of `ImageData` and `Embeddings`: n rows with ids, labels and captions."""

    name: str
    ids: Sequence[str]
    labels: Mapping[str, Labels]
    captions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> Labels:
        """Return the labels in a column.

        Raises:
            InvalidInputError: If the column does not exist.
        """
        if name not in self.labels:
            otherwise = "" if self.labels else "pass its values in place of its name, or labels="
            hint = did_you_mean(name, self.labels, otherwise)
            raise InvalidInputError(
                f"{self.name}: no column {name!r}; the columns are {sorted(self.labels)}"
                f"{hint and f'; {hint}'}"
            )
        return self.labels[name]

    def _check_lengths(self) -> None:
        columns: dict[str, Sized | None] = {"ids": self.ids, **self.labels}
        for name in ("captions", "more_captions"):
            texts = getattr(self, name, ())
            if texts:  # the field is empty if there are no captions
                columns[name] = texts
        check_lengths(self.name, len(self), columns)

    def _some(self, rows: ArrayLike | slice) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Return the indices of the selected rows, and their field values by field name."""
        # Convert slices, masks and negative indices to positions 0 .. n - 1.
        index = np.arange(len(self))[indices_of(rows)]
        columns = {
            "ids": tuple(self.ids[i] for i in index),
            "labels": {column: labels[index] for column, labels in self.labels.items()},
            "captions": tuple(self.captions[i] for i in index) if self.captions else (),
        }
        return index, columns


def check_lengths(name: str, n: int, columns: Mapping[str, Sized | None]) -> None:
    """Raise an error if a column does not have n rows, or is a single string.

    Args:
        name: name of the data in messages.
        n: number of rows.
        columns: column -> its values; None for missing columns.
    """
    wrong = {}
    for column, rows in columns.items():
        refuse_text(column, rows)
        if rows is not None and len(rows) != n:
            wrong[column] = len(rows)
    if wrong:
        raise InvalidInputError(f"{name}: expected {n} rows in every column, got {wrong}")


def refuse_text(column: str, rows: object) -> None:
    """Raise an error if a column is a single string, which would be read letter by letter.

    Args:
        column: column name for the message.
        rows: the column's values.
    """
    if isinstance(rows, str):
        raise InvalidInputError(
            f"{column}: expected a list with one string per row, got the string {rows[:40]!r}"
        )


class LazyText:
    """Dataclass field for a string, or for a function called when the field is first accessed."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_{name}"

    def __get__(self, holder: object, owner: type) -> str:
        # Dataclasses look up a field's default on the class; AttributeError means that it has none.
        if holder is None:
            raise AttributeError(self._slot)
        text = vars(holder)[self._slot]
        if callable(text):
            text = text()
            vars(holder)[self._slot] = text
        return str(text)

    def __set__(self, holder: object, value: str | Callable[[], str]) -> None:
        vars(holder)[self._slot] = value


@dataclass(frozen=True)
class Record:
    """Describe one row of a stream of images. Labels are strings, or None if unknown."""

    id: str
    read: Callable[[], Image.Image]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    caption: str | None = None
    more_captions: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class ImageData(Columns):
    """Store n images with random access, labels and captions.

    Attributes:
        name: data set name, such as "waterbirds".
        split: split name, such as "test".
        ids: n unique names, such as paths relative to the root.
        read: index -> decoded RGB image. Raises OSError if the image cannot be read.
        labels: column -> labels of the n rows.
        fingerprint: string that changes whenever the images or their order change, or a function
            that returns it, called on first use.
        captions: n captions, or empty.
        about: metadata for reports, such as the data folder.
        path: index -> image path, or "" if the image is not a separate file.
        more_captions: n tuples of further captions, or empty.

    Raises:
        InvalidInputError: If ids are not unique, or columns or captions have the wrong length.

    >>> from vldebias.miniature import open_world
    >>> data = open_world("portraits", n=60)
    >>> len(data), sorted(data.labels)
    (60, ['age', 'duty', 'gender', 'hair', 'label', 'profession', 'tone'])
    """

    name: str
    split: str
    ids: tuple[str, ...]
    read: Callable[[int], Image.Image]
    labels: Mapping[str, Labels]
    fingerprint: LazyText = LazyText()
    captions: tuple[str, ...] = ()
    about: Facts = field(default_factory=dict)
    path: Callable[[int], str] = lambda _: ""
    more_captions: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        # Ids must be unique, because answers, caches and exclusions use them to refer to images.
        repeated = len(self.ids) - len(set(self.ids))
        if repeated:
            raise InvalidInputError(
                f"{self.name}: expected distinct ids, but {repeated} are repeated"
                " (open_data(..., caption=...) merges rows with the same image)"
            )
        for column, labels in self.labels.items():
            where = f"{self.name}: column {column!r}"
            check_kind(where, labels, Labels, "vldebias.data.Labels.from_values(values)")
        self._check_lengths()

    def __getitem__(self, rows: ArrayLike | slice) -> ImageData:
        """Return the rows selected by a slice, an index array or a mask, in that order."""
        index, columns = self._some(rows)
        if self.more_captions:
            columns["more_captions"] = tuple(self.more_captions[i] for i in index)

        return replace(
            self,
            # Lazy, because subsets of large data sets usually do not need to be hashed.
            fingerprint=lambda: fingerprint_of([self.fingerprint, *map(str, index)]),
            read=lambda row: self.read(int(index[row])),
            path=lambda row: self.path(int(index[row])),
            **columns,
        )

    def __repr__(self) -> str:
        captions = ", captions" if self.captions else ""
        return (
            f"ImageData({self.name} {self.split}, {len(self)} images, columns"
            f" {list(self.labels)}{captions})"
        )


class Captions(TypedDict, total=False):
    """Keyword arguments for the caption fields of `ImageData`."""

    captions: tuple[str, ...]
    more_captions: tuple[tuple[str, ...], ...]


class NoImagesError(InvalidInputError):
    """Raised if a split has no images. `open_data` adds a description of the expected files."""


def file_images(
    name: str,
    split: str,
    root: str | Path,
    files: Sequence[str],
    labels: Mapping[str, Labels],
    *,
    about: Facts | None = None,
    allow_outside: bool = False,
    **captions: Unpack[Captions],
) -> ImageData:
    """Create a data set from image files, which are opened on demand.

    Paths may use Windows separators, or differ from file names in case.

    Args:
        name: data set name.
        split: split name.
        root: base folder for the paths.
        files: paths relative to `root`, which are also the ids.
        labels: column -> labels of the n rows.
        about: additional metadata for reports.
        allow_outside: whether to allow paths outside `root`.
        captions: `captions` and `more_captions` of `ImageData`.

    Raises:
        InvalidInputError: If there are no files, or a path leads outside `root`.

    >>> labels = {"gender": Labels.from_values(["female", "male"])}
    >>> data = file_images("faces", "test", Path("faces"), ["a.jpg", "b.jpg"], labels)
    >>> data.ids, data.labels["gender"].counts
    (('a.jpg', 'b.jpg'), {'female': 1, 'male': 1})
    """
    root = Path(root)
    if not files:
        raise NoImagesError(f"{name}: expected images in split {split!r} of {root}, got none")
    refuse_no_paths(name, files)
    if not allow_outside:
        refuse_outside(name, root, files)
    # The ids are the paths as passed, even if the file names differ in case.
    paths = existing_names(root, files)
    return ImageData(
        name=name,
        split=split,
        ids=tuple(files),
        read=lambda index: decode(root / paths[index]),
        labels=dict(labels),
        fingerprint=lambda: fingerprint_files(files, [root / file for file in paths]),
        about={"root": str(root), **(about or {})},
        path=lambda index: os.path.abspath(root / paths[index]),
        **captions,
    )


def fingerprint_of(parts: Sequence[str]) -> str:
    """Return a short hash of a sequence of strings."""
    # The separator distinguishes "ab", "c" from "a", "bc".
    return hashlib.sha256(b"".join(part.encode() + b"\0" for part in parts)).hexdigest()[:24]


def fingerprint_files(ids: Sequence[str], paths: Sequence[str | os.PathLike[str]]) -> str:
    """Hash ids, file sizes, and the first and last 4 KiB of every file.

    Copying files does not change the hash. Changes in the middle of a large file that preserve its
    size are not detected.

    Args:
        ids: names of the files, which are part of the hash.
        paths: paths of the files, in the same order.
    """

    def ends(path: str | os.PathLike[str]) -> bytes:
        if not os.path.isfile(path):  # a pipe would wait for a writer
            return b"-1 "  # cannot be a real file size
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(_ENDS)
                # Avoid reading the same bytes of a short file twice.
                file.seek(max(_ENDS, size - _ENDS))
                return f"{size} ".encode() + head + file.read(_ENDS)
        except OSError:
            return b"-1 "

    def digest(start: int) -> bytes:
        rows = slice(start, start + _FILES_AT_ONCE)
        state = hashlib.sha256()
        for name, path in zip(ids[rows], paths[rows], strict=True):
            # Include the length of the name, because names may contain spaces.
            state.update(f"{len(name.encode())} {name} ".encode())
            state.update(ends(path))
        return state.digest()

    starts = range(0, len(ids), _FILES_AT_ONCE)
    with ThreadPoolExecutor() as pool:
        return hashlib.sha256(b"".join(pool.map(digest, starts))).hexdigest()[:24]


def describe(data: ImageData) -> dict[str, Any]:
    """Summarise the numbers of images, labels and captions as JSON values.

    The value of "columns" is {column: {"counts": {name: rows}, "unknown": rows}}.

    >>> from vldebias.miniature import open_world
    >>> describe(open_world("portraits", n=60))["columns"]["gender"]["counts"]
    {'male': 26, 'female': 34}
    """
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
    """Read every image, and return the id of each unreadable image with the reason, in order.

    Args:
        data: the data set whose images are read.
        progress: whether to show a progress bar.

    >>> from vldebias.miniature import open_world
    >>> check_images(open_world("portraits", n=4), progress=False)  # all can be read
    []
    """

    def reason(row: int) -> str:
        try:
            data.read(row)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    display = Progress() if progress else SILENT
    bad = list[tuple[str, str]]()
    with display, display.bar("checking images", len(data)) as advance:
        # Pillow's decoders release the GIL, so threads decode in parallel.
        for row, problem in enumerate(prefetch(range(len(data)), reason, _READERS, _AHEAD)):
            if problem:
                bad.append((data.ids[row], problem))
            advance()
    return bad
