"""Images with labels, whatever they are stored in: a folder of files, a table, a stream, the miniature world."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from PIL import Image


class Columns:
    """What `ImageData` and `Embeddings` share: n rows with ids, labels in named columns, and perhaps captions."""

    ids: Sequence[str]
    labels: Mapping[str, Labels]
    captions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> Labels:
        """The labels of a column.

        Raises:
            InvalidInputError: no such column; the message lists those there are.
        """
        if name not in self.labels:
            raise InvalidInputError(f"{self._called}: no column {name!r}; there are {sorted(self.labels)}")
        return self.labels[name]

    @property
    def _called(self) -> str:
        return str(getattr(self, "name", "embeddings"))

    def _check_lengths(self, **more: int) -> None:
        lengths = more | {column: len(labels) for column, labels in self.labels.items()}
        if self.captions:
            lengths["captions"] = len(self.captions)
        wrong = {column: n for column, n in lengths.items() if n != len(self)}
        if wrong:
            raise InvalidInputError(f"{self._called}: expected {len(self)} rows in every column, got {wrong}")

    def _some(self, rows: ArrayLike | slice) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """The indices of some rows, and the columns of these rows by the names of their fields."""
        index = np.arange(len(self))[rows if isinstance(rows, slice) else np.asarray(rows)]
        return index, {
            "ids": tuple(self.ids[i] for i in index),
            "labels": {column: labels[index] for column, labels in self.labels.items()},
            "captions": tuple(self.captions[i] for i in index) if self.captions else (),
        }


class LazyText:
    """The type of a dataclass field: takes a text or a function that gives one, reads as a text.

    The function is called once, at the first read, because most who hold its owner never ask.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._slot = name, f"_{name}"

    def __get__(self, holder: Any, owner: type) -> str:
        if holder is None:  # dataclasses look here for a default, and there is none
            raise AttributeError(self._name)
        value = holder.__dict__[self._slot]
        if callable(value):
            value = holder.__dict__[self._slot] = value()
        return str(value)

    def __set__(self, holder: Any, value: str | Callable[[], str]) -> None:
        holder.__dict__[self._slot] = value


@dataclass(frozen=True)
class Record:
    """One row of a data set. `read` decodes the image (RGB) and raises OSError where it cannot.

    labels: column -> value as text, None where unknown.
    more_captions: those beside `caption`, where a row of the data has a list of them.
    """

    id: str
    read: Callable[[], Image.Image]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    caption: str | None = None
    more_captions: tuple[str, ...] | None = None


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
        """The rows from `start` on, always in the same order.

        A stream that can be split has `shards`, a number, and takes `records(start, shard)` for one of them.
        """
        ...


@dataclass(frozen=True, eq=False)
class ImageData(Columns):
    """n images that can be read in any order, and what is known about each.

    Attributes:
        name, split: "waterbirds", "test".
        ids: n different names, such as the path below the root.
        read: index -> decoded RGB image; OSError where a file cannot be read.
        labels: column -> Labels of n rows.
        captions: n texts, or none; of rows with several the first of each.
        fingerprint: changes when the images or their order do (not when labels do). Give a text, or a function where
            it costs reading the images; it is called when somebody first asks.
        about: what a reader found that a report should say: root, malformed file names, ...
        path: index -> where the image lies, "" where it is no file of its own; or None.
        more_captions: of each row those beside its caption, where rows have lists of them; or none.

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
    path: Callable[[int], str] | None = None
    more_captions: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.ids)) != len(self.ids):
            raise InvalidInputError(
                f"{self.name}: {len(self.ids) - len(set(self.ids))} ids are there more than once; expected n different "
                "ones. Rows of one image with a caption each are read as one row by open_data(..., caption=...)"
            )
        self._check_lengths(**({"more_captions": len(self.more_captions)} if self.more_captions else {}))

    def __getitem__(self, rows: ArrayLike | slice) -> ImageData:
        """Some of the rows, in the given order: a slice, indices or a mask."""
        index, columns = self._some(rows)
        mark = lambda: fingerprint_of([self.fingerprint, *map(str, index)])  # noqa: E731
        whole = self.path
        path = None if whole is None else lambda i: whole(int(index[i]))
        columns["more_captions"] = tuple(self.more_captions[i] for i in index) if self.more_captions else ()
        return replace(self, read=lambda i: self.read(int(index[i])), path=path, fingerprint=mark, **columns)

    def __repr__(self) -> str:
        captions = ", captions" if self.captions else ""
        return f"ImageData({self.name} {self.split}, {len(self)} images, columns {list(self.labels)}{captions})"


def fingerprint_of(parts: Sequence[str]) -> str:
    """A short hash of texts, in their order."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode())
        state.update(b"\0")
    return state.hexdigest()[:24]
