"""Images with labels, whatever they are stored in: a folder of files, a table, a stream, the miniature world."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from vldebias.data.labels import Labels
from vldebias.data.lazy import LazyText
from vldebias.errors import InvalidInputError

__all__ = ["ImageData", "ImageStream", "Record", "fingerprint_of"]


@dataclass(frozen=True)
class Record:
    """One row of a data set. `read` decodes the image (RGB) and raises OSError where it cannot.

    labels: column -> value as text, None where unknown.
    """

    id: str
    read: Callable[[], Image.Image]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    caption: str | None = None


@runtime_checkable
class ImageStream(Protocol):
    """Rows that come one after another; how many is not known before the end.

    name, split, fingerprint, about: as in ImageData.
    names: column -> names of its labels where they are known beforehand; other columns may come with the rows.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def split(self) -> str: ...  # noqa: D102
    @property
    def fingerprint(self) -> str: ...  # noqa: D102
    @property
    def about(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def names(self) -> Mapping[str, tuple[str, ...]]: ...  # noqa: D102

    def records(self, start: int = 0) -> Iterator[Record]:
        """The rows from `start` on, always in the same order."""
        ...


@dataclass(frozen=True, eq=False)
class ImageData:
    """n images that can be read in any order, and what is known about each.

    Attributes:
        name, split: "waterbirds", "test".
        ids: n different names, such as the path below the root.
        read: index -> decoded RGB image; OSError where a file cannot be read.
        labels: column -> Labels of n rows.
        captions: n texts, or none.
        fingerprint: changes when the images or their order do (not when labels do). Give a text, or a function where
            it costs reading the images; it is called when somebody first asks.
        about: what a reader found that a report should say: root, malformed file names, ...

    Raises:
        InvalidInputError: ids that repeat, columns or captions of another length.
    """

    name: str
    split: str
    ids: tuple[str, ...]
    read: Callable[[int], Image.Image]
    labels: Mapping[str, Labels]
    fingerprint: LazyText = LazyText()  # noqa: RUF009  (a descriptor is no default)
    captions: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(set(self.ids)) != len(self.ids):
            raise InvalidInputError(f"{self.name}: {len(self.ids) - len(set(self.ids))} ids are there more than once")
        lengths = {column: len(labels) for column, labels in self.labels.items()}
        if self.captions:
            lengths["captions"] = len(self.captions)
        wrong = {column: n for column, n in lengths.items() if n != len(self)}
        if wrong:
            raise InvalidInputError(f"{self.name}: expected {len(self)} rows in every column, got {wrong}")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: ArrayLike | slice) -> ImageData:
        """Some of the rows, in the given order: a slice, indices or a mask."""
        index = np.arange(len(self))[rows if isinstance(rows, slice) else np.asarray(rows)]
        return replace(
            self,
            ids=tuple(self.ids[i] for i in index),
            read=lambda i: self.read(int(index[i])),
            labels={column: labels[index] for column, labels in self.labels.items()},
            captions=tuple(self.captions[i] for i in index) if self.captions else (),
            fingerprint=lambda: fingerprint_of([self.fingerprint, *map(str, index)]),
        )

    def __repr__(self) -> str:
        captions = ", captions" if self.captions else ""
        return f"ImageData({self.name} {self.split}, {len(self)} images, columns {list(self.labels)}{captions})"

    def column(self, name: str) -> Labels:
        """The labels of a column.

        Raises:
            InvalidInputError: no such column; the message lists those there are.
        """
        if name not in self.labels:
            raise InvalidInputError(f"{self.name}: no column {name!r}; there are {sorted(self.labels)}")
        return self.labels[name]


def fingerprint_of(parts: Sequence[str]) -> str:
    """A short hash of texts, in their order."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode())
        state.update(b"\0")
    return state.hexdigest()[:24]
