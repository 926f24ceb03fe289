"""Unit rows of features that are read when they are used, a block at a time: what an evaluation of millions looks at.

Features stay as they are stored, perhaps of half precision, mapped from a file or in parts. Whoever passes over them
gets float32 blocks of unit length; nothing as large as the whole is made. A pass over features in parts runs where
their `Runner` runs it, part by part, and gives what one array would give.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vldebias.data.parallel import HERE, Runner
from vldebias.errors import InvalidInputError
from vldebias.metrics.rankings import Leaders, Rows, check_top, leaders, tie_order

R = TypeVar("R")
Places = slice | NDArray[np.int64]

BLOCK = 1 << 10  # rows that are held at once: 2 MB of 512 float32, which stay in the cache of a core
_FEW = 16  # rows: below, a product is summed in another order than in a block, and its last digit may differ


@dataclass(frozen=True)
class RowNumbers(Sequence[str]):
    """The names of n rows that have none, "0", "1", ..., made when they are read.

    first: number of the first. before: what stands before each number.
    """

    n: int
    first: int = 0
    before: str = ""

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[str]: ...
    def __getitem__(self, row: int | slice) -> str | Sequence[str]:
        """The name of a row, or those of a slice."""
        if isinstance(row, slice):
            return tuple(f"{self.before}{self.first + i}" for i in range(self.n)[row])
        return f"{self.before}{self.first + range(self.n)[row]}"

    def __eq__(self, other: object) -> bool:
        """As texts, so that names that were written out are the same names."""
        return isinstance(other, Sequence) and len(other) == self.n and all(map(str.__eq__, self, other))

    def __hash__(self) -> int:
        return hash((self.n, self.first, self.before))


@dataclass(frozen=True, eq=False)
class Picked:
    """Some rows of features (m, d), by their indices (n,), copied when they are read: a million less a few takes none.

    It stands where an array of features does: it has a shape, a type and a length, and gives an array for a slice.
    """

    features: Any
    index: NDArray[np.int64]
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return len(self.index), int(self.features.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the features."""
        return np.dtype(self.features.dtype)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        return np.asarray(self.features[self.index[rows]])


class Parts:
    """Features (n, d) in parts (n_i, d), one below the other, which stand where one array does.

    Args:
        arrays: the parts, of one width and type; each gives an array for a slice or for indices.
        runner: where passes over them run.

    Raises:
        InvalidInputError: no part, or parts that do not fit together.
    """

    ndim = 2

    def __init__(self, arrays: Sequence[Any], runner: Runner = HERE) -> None:
        self.arrays, self.runner = tuple(arrays), runner
        shapes = [tuple(one.shape) for one in self.arrays]
        kinds = {(shape[1:], np.dtype(one.dtype)) for shape, one in zip(shapes, self.arrays, strict=True)}
        if len(kinds) != 1 or len(shapes[0]) != 2 or np.dtype(self.arrays[0].dtype).kind != "f":
            came = sorted({f"{np.dtype(one.dtype)} {tuple(one.shape)}" for one in self.arrays})
            raise InvalidInputError(
                f"features in parts: expected floats (n, d) of one width and type, got {came[:5] or 'no part'}"
            )
        self.starts: NDArray[np.int64] = np.cumsum([0, *(shape[0] for shape in shapes)], dtype=np.int64)
        self.shape, self.dtype = (int(self.starts[-1]), int(shapes[0][1])), np.dtype(self.arrays[0].dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """The rows at a slice, at indices or under a mask, read here."""
        index = None if isinstance(rows, slice) else np.asarray(rows)
        if isinstance(rows, slice) or (index is not None and index.dtype == bool):
            index = np.arange(len(self))[rows]
        assert index is not None
        index = np.where(index < 0, index + len(self), index)
        if index.ndim != 1 or (len(index) and not 0 <= index.min() <= index.max() < len(self)):
            raise IndexError(f"rows: expected a slice, a mask or indices below {len(self)}")
        found = np.empty((len(index), self.shape[1]), dtype=self.dtype)
        for i, local, places in self.cut(index):
            found[places] = self.arrays[i][local]
        return found

    def cut(self, index: NDArray[np.int64] | None) -> list[tuple[int, Places | None, Places]]:
        """The parts that hold some rows: number of the part, which of its rows (None: all), their places in `index`."""
        starts = self.starts
        if index is None:
            bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
            return [(i, None, slice(start, stop)) for i, (start, stop) in enumerate(bounds) if start < stop]
        order = None if (np.diff(index) >= 0).all() else np.argsort(index, kind="stable")
        rising = index if order is None else index[order]
        ends = np.searchsorted(rising, starts).tolist()
        cuts: list[tuple[int, Places | None, Places]] = []
        for i, (start, stop) in enumerate(itertools.pairwise(ends)):
            if start < stop:
                local, places = rising[start:stop] - starts[i], slice(start, stop)
                whole = len(local) == local[-1] - local[0] + 1  # a run of rows is read as a slice, without a copy
                rows = slice(int(local[0]), int(local[-1]) + 1) if whole and (np.diff(local) == 1).all() else local
                cuts.append((i, rows, places if order is None else order[places]))
        return cuts


@dataclass(frozen=True, eq=False)
class UnitRows:
    """The rows (n, d) of features, L2-normalised in float32, read when they are used.

    Attributes:
        features: (m, d) floats that give an array for a slice or for indices.
        ids: m names, for messages.
        index: (n,) which of the rows, in this order; None: all.
        change: what is done to the unit rows of a block (b, d), row by row, such as an edit of images.
    """

    features: Any
    ids: Sequence[str]
    index: NDArray[np.int64] | None = None
    change: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.features) if self.index is None else len(self.index)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return len(self), int(self.features.shape[1])

    def some(self, rows: ArrayLike) -> UnitRows:
        """Some of the rows, by indices or a mask, still to be read."""
        index = np.asarray(rows)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        return replace(self, index=index if self.index is None else self.index[index])

    def changed(self, change: Callable[[Tensor], Tensor]) -> UnitRows:
        """The same rows under a change of each, which comes after those before."""
        before = self.change
        return replace(self, change=change if before is None else lambda rows: change(before(rows)))

    def __getitem__(self, rows: Any) -> Tensor:
        """The unit rows at a slice, at indices or under a mask (numpy or torch), read now."""
        if not isinstance(rows, slice):
            return self.some(rows)[:]
        start, stop, step = rows.indices(len(self))
        if step != 1 or stop - start <= BLOCK:
            return self._read(rows if self.index is None else self.index[rows])
        found = torch.empty(stop - start, self.shape[1])
        for first in range(start, stop, BLOCK):
            found[first - start : first - start + BLOCK] = self[first : min(first + BLOCK, stop)]
        return found

    def split(self, size: int = BLOCK) -> Iterator[Tensor]:
        """Blocks (b, d) of at most `size` rows, in order, read here.

        Raises:
            InvalidInputError: a row that is not finite or zero.
        """
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def whole(self) -> Tensor:
        """All of them at once (n, d), for what cannot do with less."""
        return self[:]

    # ---- passes, which run where the features lie ------------------------------------------------------------

    @property
    def runner(self) -> Runner:
        """Where passes run: here, unless the features say otherwise."""
        return self.features.runner if isinstance(self.features, Parts) else HERE

    def parts(self) -> list[tuple[UnitRows, Places]]:
        """The rows that lie together, and their places among these; all of them where features are not in parts."""
        held = self.features
        if not isinstance(held, Parts):
            return [(self, slice(0, len(self)))]
        pieces: list[tuple[UnitRows, Places]] = []
        for i, local, places in held.cut(self.index):
            part, first = held.arrays[i], int(held.starts[i])
            if isinstance(local, slice):  # read as one piece
                local = np.arange(local.start, local.stop) if len(part) > local.stop - local.start else None
            pieces.append((UnitRows(part, RowNumbers(len(part), first, "row "), local, self.change), places))
        return pieces

    def map(self, work: Callable[[UnitRows], R]) -> Iterator[tuple[Places, R]]:
        """`work` of the rows of each part, with their places among these rows."""
        parts = self.parts()
        return zip((places for _, places in parts), self.runner.map(work, [rows for rows, _ in parts]), strict=True)

    def products(self, texts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Name -> inner products (n, k) with its texts (k, d), in float32 and in one pass for all names."""
        products = {name: torch.empty(len(self), len(rows)) for name, rows in texts.items()}
        for places, scores in self.map(partial(_products, {name: rows.float() for name, rows in texts.items()})):
            for name, of in scores.items():
                products[name][places] = of
        return products

    def top(self, queries: Tensor, k: int, *, ties: str = "stable", seed: int = 0) -> Rows:
        """`vldebias.metrics.rankings.top_rankings` of these rows: of each part its first k, merged in a tree."""
        check_top(queries, self, k)
        order, place = tie_order(len(self), ties, seed)
        parts: list[tuple[UnitRows, NDArray[np.int64] | int]] = []
        for rows, places in self.parts():
            at = places if place is None else place[places]
            parts.append((rows, at.start if isinstance(at, slice) else at))
        first = self.runner.fold(partial(_leaders, queries, k), partial(Leaders.merged, k=k), parts).places
        return first if order is None else order[first]

    def _read(self, rows: slice | NDArray[np.int64]) -> Tensor:
        came = self.features[rows]
        half = (
            came.dtype == np.float16
        )  # torch makes float32 of it with instructions for that, in a quarter of the time
        read = torch.from_numpy(np.array(came, dtype=None if half else np.float32)).float()
        lengths = read.norm(dim=1, keepdim=True)
        bad = ~(torch.isfinite(lengths) & (lengths > 0)).squeeze(1)
        if bad.any():
            places = np.arange(len(self.features))[rows][bad.numpy()]
            first = [self.ids[i] for i in places[:5].tolist()]
            raise InvalidInputError(f"features: {len(places)} rows are zero or not finite, such as {first}")
        read /= lengths
        return read if self.change is None else self.change(_filled(read))[: len(read)]


def _filled(rows: Tensor, least: int = _FEW) -> Tensor:
    """Rows (n, d), the last repeated where there are so few that products are summed in an order of their own."""
    lacking = least - len(rows)
    return rows if lacking <= 0 or not len(rows) else torch.cat([rows, rows[-1:].expand(lacking, -1)])


def _products(texts: Mapping[str, Tensor], rows: UnitRows) -> dict[str, Tensor]:
    """Name -> products (n, k) of the rows of one part, each the same whatever block or part its row is in."""
    products = {name: torch.empty(len(rows), len(one)) for name, one in texts.items()}
    wide, start = {name: _filled(one, 2) for name, one in texts.items()}, 0
    for block in rows.split():
        for name, one in wide.items():
            products[name][start : start + len(block)] = (_filled(block) @ one.T)[: len(block), : len(texts[name])]
        start += len(block)
    return products


def _leaders(queries: Tensor, k: int, part: tuple[UnitRows, NDArray[np.int64] | int]) -> Leaders:
    """The first of one part, at most k of them."""
    rows, place = part
    return leaders(queries, rows, min(k, len(rows)), place)
