"""Read rows of features when they are used, a block at a time, in memory or mapped from files.

`Shards` replaces an array of features; `UnitRows` normalises its rows to length 1, in float32
blocks. A pass over the rows runs part by part where the runner of the shards says, and gives
exactly the result for one array.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from tokenize import TokenError
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vldebias.data.parallel import OnRay
from vldebias.errors import InvalidInputError
from vldebias.files import digest
from vldebias.measure.rankings import Leaders, Rows, leaders, merged

Index = NDArray[np.int64]
T = TypeVar("T")
R = TypeVar("R")

BLOCK = (
    1 << 10
)  # rows that are held at once: 2 MB of 512 float32, which stay in the cache of a core
PART = 1 << 18  # rows: a larger file is several parts, so that several workers can read it
# rows: below, a product is summed in another order than in a block, and its last digit may differ
_FEW = 16
_COUNTED_AT_ONCE = 4096  # rows


@dataclass(frozen=True)
class RowNumbers(Sequence[str]):
    """Name n rows without names by `before` and a number from `first` on, made when they are
    read."""

    n: int
    first: int = 0
    before: str = ""

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, row: Any) -> Any:
        """Return the name of a row, or those of a slice."""
        numbers = range(self.first, self.first + self.n)[row]
        return (
            tuple(f"{self.before}{i}" for i in numbers)
            if isinstance(row, slice)
            else f"{self.before}{numbers}"
        )


class Shards:
    """Hold features (n, d) in parts (n_i, d), one below the other; also from files (`open`).

    Args:
        arrays: the parts, of one width and type; each gives an array for a slice or for indices.
        runner: where passes over them run, such as `vldebias.data.OnRay()`; None: here.
        index: which of the rows (n,), in this order; None: all. They are copied when they are read.

    Raises:
        InvalidInputError: no part, or parts that do not fit together.
    """

    ndim = 2

    def __init__(
        self, arrays: Sequence[Any], runner: OnRay | None = None, index: Index | None = None
    ) -> None:
        self.arrays, self.runner, self.index = tuple(arrays), runner, index
        came = sorted(
            {
                f"{np.dtype(one.dtype)} (n, {', '.join(map(str, one.shape[1:]))})"
                for one in self.arrays
            }
        )
        if len(came) != 1 or self.arrays[0].ndim != 2 or np.dtype(self.arrays[0].dtype).kind != "f":
            raise InvalidInputError(
                f"features in parts: expected floats (n, d) of one width and type, got {came[:5]}"
            )
        self.starts: Index = np.cumsum([0, *(len(one) for one in self.arrays)], dtype=np.int64)
        self.shape = (
            int(self.starts[-1]) if index is None else len(index),
            int(self.arrays[0].shape[1]),
        )
        self.dtype = np.dtype(self.arrays[0].dtype)

    @classmethod
    def open(cls, paths: str | Path | Iterable[str | Path]) -> Shards:
        """Return features from files, read when used: a pattern such as "shards/*.npy", or a list.

        A pattern finds files in the order of their names, numbers by their value: 9.npy before
        10.npy.

        Raises:
            InvalidInputError: no such file, or shapes that do not fit together; later a file that
                changed.
        """
        arrays = [part for path in files_of(paths) for part in FileRows.parts(path.absolute())]
        try:
            return cls(arrays)
        except InvalidInputError as error:
            raise InvalidInputError(f"{paths}: {error}") from None

    def on(self, runner: OnRay) -> Shards:
        """Return the same rows with another runner for passes over them, such as
        `vldebias.data.OnRay()`."""
        return Shards(self.arrays, runner, self.index)

    def picked(self, rows: ArrayLike | slice) -> Shards:
        """Return some of the rows without copying the features."""
        return Shards(self.arrays, self.runner, self.numbers(rows))

    @property
    def unit(self) -> UnitRows:
        """Return the rows, L2-normalised a block at a time."""
        return UnitRows(self, RowNumbers(int(self.starts[-1]), before="row "))

    def map(self, work: Callable[[T], R], parts: Sequence[T]) -> Iterator[R]:
        """Return the results of `work` on each part, in their order, computed here or by the
        runner."""
        return map(work, parts) if self.runner is None else self.runner.map(work, parts)

    def digest(self) -> str:
        """Return a SHA-256 over that of every part; it depends on the numbers, their order and the
        cuts."""
        chosen = [] if self.index is None else [hashlib.sha256(self.index.tobytes()).hexdigest()]
        return hashlib.sha256(
            " ".join([*self.map(_digest, self.arrays), *chosen]).encode()
        ).hexdigest()

    def __len__(self) -> int:
        return self.shape[0]

    def numbers(self, rows: Any) -> Index:
        """Return the positions, among the rows of all parts, of a slice, indices or a mask."""
        if isinstance(rows, slice):
            index = np.arange(*rows.indices(len(self)))
        else:
            index = np.asarray(rows)
            index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
            index = np.where(index < 0, index + len(self), index)
        if index.ndim != 1 or (len(index) and not 0 <= index.min() <= index.max() < len(self)):
            raise IndexError(f"rows: expected a slice, a mask or indices below {len(self)}")
        return index if self.index is None else self.index[index]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """Return the rows at a slice, at indices or under a mask, as stored, read here."""
        if self.index is None and len(self.arrays) == 1 and isinstance(rows, slice):
            return np.asarray(self.arrays[0][rows])
        index = self.numbers(rows)
        found = np.empty((len(index), self.shape[1]), dtype=self.dtype)
        for i, local, places in self.cut(index):
            found[places] = self.arrays[i][local]
        return found

    def cut(self, index: Index) -> list[tuple[int, slice | Index, Index]]:
        """Return the parts that hold some rows: number, which of its rows, and their places in
        `index`."""
        order, cuts = np.argsort(index, kind="stable"), list[tuple[int, slice | Index, Index]]()
        rising = index[order]
        for i, (start, stop) in enumerate(
            itertools.pairwise(np.searchsorted(rising, self.starts).tolist())
        ):
            if start < stop:
                local = rising[start:stop] - self.starts[i]
                run = (np.diff(local) == 1).all()  # read as a slice, without a copy
                cuts.append(
                    (
                        i,
                        slice(int(local[0]), int(local[-1]) + 1) if run else local,
                        order[start:stop],
                    )
                )
        return cuts


def _digest(array: Any) -> str:
    """Return the SHA-256 of type, shape and numbers (n, d), read a block at a time."""
    state = hashlib.sha256(f"{np.dtype(array.dtype)} {tuple(array.shape)}".encode())
    for start in range(0, len(array), BLOCK):
        state.update(np.ascontiguousarray(array[start : start + BLOCK]).data)
    return state.hexdigest()


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Hold rows (n, d) of features, L2-normalised in float32, read when they are used.

    Attributes:
        features: (n, d) floats.
        ids: names of the rows of all its parts, for messages.
        change: function of the unit rows of a block (b, d), row by row, such as an edit of images.
    """

    features: Shards
    ids: Sequence[str]
    change: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def shape(self) -> tuple[int, int]:
        """Return (n, d)."""
        return self.features.shape

    def some(self, rows: ArrayLike) -> UnitRows:
        """Return some of the rows, by indices or a mask, without reading them."""
        return replace(self, features=self.features.picked(rows))

    def changed(self, change: Callable[[Tensor], Tensor]) -> UnitRows:
        """Return the same rows with a further change of each, applied after earlier ones."""
        before = self.change
        return replace(self, change=change if before is None else lambda rows: change(before(rows)))

    def __getitem__(self, rows: Any) -> Tensor:
        """Return the unit rows at a slice, at indices or under a mask (numpy or torch), read
        now."""
        if not isinstance(rows, slice):
            return self.some(rows)[:]
        start, stop, step = rows.indices(len(self))
        if step != 1 or stop - start <= BLOCK:
            return self._read(rows)
        found = torch.empty(stop - start, self.shape[1])
        for part in found.split(BLOCK):
            part[:] = self._read(slice(start, start + len(part)))
            start += len(part)
        return found

    def split(self, size: int = BLOCK) -> Iterator[Tensor]:
        """Yield blocks (b, d) of at most `size` rows, in order; a row that is zero or not finite is
        refused."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def products(self, texts: Mapping[T, Tensor]) -> dict[T, Tensor]:
        """Return name -> inner products (n, k) with its texts (k, d), in float32 and in one pass
        for all names."""
        products = {name: torch.empty(len(self), len(rows)) for name, rows in texts.items()}
        parts = self._parts()
        work = partial(_products, {name: rows.float() for name, rows in texts.items()})
        found = self.features.map(work, [rows for rows, _ in parts])
        for (_, places), scores in zip(parts, found, strict=True):
            for name, of in scores.items():
                products[name][places] = of
        return products

    def top(self, queries: Tensor, k: int) -> Rows:
        """Return the first k rows (q, k) by inner product with queries (q, d); ties keep the order
        of the rows."""
        if queries.ndim != 2 or queries.shape[1] != self.shape[1] or not 1 <= k <= len(self):
            raise InvalidInputError(
                f"queries, k: {tuple(queries.shape)} and {k} do not fit images {self.shape}"
            )
        found = self.features.map(partial(_leaders, queries, k), self._parts())
        return reduce(partial(merged, k=k), found)[1]

    def _parts(self) -> list[tuple[UnitRows, Index]]:
        """Return the rows of each part, and their places among these."""
        held, pieces = self.features, []
        for i, local, places in held.cut(held.numbers(slice(None))):
            part = held.arrays[i]
            every = isinstance(local, slice) and local == slice(0, len(part))
            index = None if every else np.arange(len(part))[local]
            ids = (
                self.ids
                if len(held.arrays) == 1
                else RowNumbers(len(part), int(held.starts[i]), "row ")
            )
            pieces.append((UnitRows(Shards([part], index=index), ids, self.change), places))
        return pieces

    def _count_unusable(self) -> int:
        """Return how many of all rows are zero or not finite."""
        starts = range(0, len(self), _COUNTED_AT_ONCE)
        blocks = (self.features[start : start + _COUNTED_AT_ONCE] for start in starts)
        return sum(_count_rows_without_length(np.asarray(block)) for block in blocks)

    def _read(self, rows: slice) -> Tensor:
        came = self.features[rows]
        # torch makes float32 of float16 with instructions for that, in a quarter of the time
        read = torch.from_numpy(
            np.array(came, dtype=None if came.dtype == np.float16 else np.float32)
        ).float()
        lengths = read.norm(dim=1, keepdim=True)
        bad = ~(torch.isfinite(lengths) & (lengths > 0)).squeeze(1)
        if bad.any():
            first = [self.ids[i] for i in self.features.numbers(rows)[bad.numpy()][:5].tolist()]
            raise InvalidInputError(
                f"features: {self._count_unusable()} of {len(self)} rows are zero or not finite,"
                f" such as {first}"
            )
        read /= lengths
        return read if self.change is None else self.change(_filled(read))[: len(read)]


def _count_rows_without_length(rows: NDArray[Any]) -> int:
    """Return how many rows are zero or not finite."""
    lengths = np.linalg.norm(rows.astype(np.float32), axis=1)
    return int((~np.isfinite(lengths) | (lengths == 0)).sum())


def _filled(rows: Tensor, least: int = _FEW) -> Tensor:
    """Repeat the last of rows (n, d) where there are so few that products are summed in an order of
    their own."""
    lacking = least - len(rows)
    return (
        rows if lacking <= 0 or not len(rows) else torch.cat([rows, rows[-1:].expand(lacking, -1)])
    )


def _products(texts: Mapping[T, Tensor], rows: UnitRows) -> dict[T, Tensor]:
    """Name -> products (n, k) of the rows of one part, each the same whatever block or part its row
    is in."""
    products = {name: torch.empty(len(rows), len(one)) for name, one in texts.items()}
    for start, block in zip(range(0, len(rows), BLOCK), rows.split(), strict=True):
        for name, one in texts.items():
            found = _filled(block) @ _filled(one, 2).T
            products[name][start : start + len(block)] = found[: len(block), : len(one)]
    return products


def _leaders(queries: Tensor, k: int, part: tuple[UnitRows, Index]) -> Leaders:
    """Return the first of one part, at most k of them."""
    rows, place = part
    return leaders(queries, rows, min(k, len(rows)), place)


def files_of(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """Return the files of a pattern, sorted, or those that are listed; refuse a pattern without
    files."""
    if not isinstance(paths, (str, Path)):
        return [Path(path) for path in paths]
    if Path(paths).is_file():
        return [Path(paths)]
    files = glob.glob(str(paths), recursive=True)
    if not files:
        raise InvalidInputError(
            f"{paths}: there is no such file; expected a file or a pattern such as 'shards/*.npy'"
        )
    # By texts and numbers in turn: 9 before 10, as well as 009 before 010.
    files.sort(
        key=lambda path: [
            int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)
        ]
    )
    return [Path(path) for path in files]


def is_pattern(path: str | Path) -> bool:
    """Tell whether a name is a pattern for several files."""
    return not Path(path).exists() and glob.has_magic(str(path))


def digest_of(paths: str | Path) -> str:
    """Return the SHA-256 of a file; of several over those of all, in order."""
    files = files_of(paths)
    return (
        digest(files[0])
        if len(files) == 1
        else hashlib.sha256(" ".join(map(digest, files)).encode()).hexdigest()
    )


@dataclass(frozen=True)
class FileRows:
    """Read rows from `start` on of the array in a .npy file, in place of an array (n, d).

    The file is opened whenever it is read: nothing stays mapped. stamp: its size and time when it
    was first opened.
    """

    path: Path
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    stamp: tuple[int, int]
    start: int = 0
    ndim = 2

    @classmethod
    def parts(cls, path: Path) -> list[FileRows]:
        """Return the rows of a file, in parts of at most PART; refuse what is no array (n, d)."""
        array, stamp = _mapped(path)
        if array.ndim != 2:
            raise InvalidInputError(
                f"{path}: expected features (n, d), got {array.shape} of {array.dtype}"
            )
        n, d = array.shape
        starts = range(0, max(n, 1), PART)
        return [cls(path, (min(PART, n - start), d), array.dtype, stamp, start) for start in starts]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """Return the rows at a slice or at indices, as stored; refuse a file that has changed."""
        array, stamp = _mapped(self.path)
        if stamp != self.stamp:
            raise InvalidInputError(
                f"{self.path}: the file has changed since it was first read; run again"
            )
        return np.array(array[self.start : self.start + len(self)][rows])


def _mapped(path: Path) -> tuple[NDArray[Any], tuple[int, int]]:
    """Return the array of a .npy file, mapped for as long as it is in use, and the file's size and
    time of change."""
    try:
        if path.suffix != ".npy":
            raise ValueError("its name does not end in .npy")
        status = path.stat()
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, TokenError) as error:  # TokenError: a damaged header
        raise InvalidInputError(
            f"{path}: cannot be read ({error}); expected a .npy file of floats (n, d)"
        ) from None
    return array, (status.st_size, status.st_mtime_ns)
