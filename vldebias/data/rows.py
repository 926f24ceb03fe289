"""Read feature rows lazily, block by block, from memory or from files.

`Shards` behaves like a feature array; `UnitRows` normalises its rows to length 1, in float32
blocks. Passes over the rows run part by part in the shards' runner, and give exactly the same
result as for a single array.
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
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.data.parallel import OnRay
from vldebias.errors import InvalidInputError, Lazily
from vldebias.measure.rankings import Leaders, leaders, merged
from vldebias.utils.arrays import Rows
from vldebias.utils.files import digest, refuse_special

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazily("torch")

Index = NDArray[np.int64]
Array = NDArray[Any]
# Features (n, d) in memory or in a file.
Part: TypeAlias = "Array | FileRows"
T = TypeVar("T")
R = TypeVar("R")

# Rows per block: 2 MB at 512 float32 values per row, which fits in a core's cache.
BLOCK = 1 << 10
# Maximum rows per part: larger files are split, so that several workers can read them.
PART = 1 << 18
# With fewer rows, matrix products are summed in a different order and may differ in the last
# digit.
_FEW = 16
_COUNTED_AT_ONCE = 4096  # rows per block for counting invalid rows


@dataclass(frozen=True)
class RowNumbers(Sequence[str]):
    """Generate names for n unnamed rows on demand: `before` plus a number, starting at `first`."""

    n: int
    first: int = 0
    before: str = ""

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, row: int | slice) -> Any:
        """Return the name of a row, or the names in a slice."""
        numbers = range(self.first, self.first + self.n)
        if isinstance(row, slice):
            return tuple(f"{self.before}{number}" for number in numbers[row])
        return f"{self.before}{numbers[row]}"


class Shards:
    """Represent features (n, d) stored in parts (n_i, d), in memory or in files (`Shards.open`).

    Args:
        arrays: the parts, with the same d and dtype.
        runner: runner for passes over the parts, such as `vldebias.data.OnRay()`. Default: this
            process.
        index: indices (n,) of the rows to select, copied lazily. Default: all rows.

    Raises:
        InvalidInputError: If there are no parts, or their shapes or dtypes are inconsistent.

    >>> parts = [np.eye(2), np.ones((3, 2))]
    >>> shards = Shards(parts)
    >>> shards.shape, shards[1:3].tolist()
    ((5, 2), [[0.0, 1.0], [1.0, 1.0]])
    """

    ndim = 2

    def __init__(
        self, arrays: Sequence[Part], runner: OnRay | None = None, index: Index | None = None
    ) -> None:
        self.arrays = tuple(arrays)
        self.runner = runner
        self.index = index
        kinds: set[str] = set()
        for part in self.arrays:
            width = ", ".join(map(str, part.shape[1:]))
            kinds.add(f"{np.dtype(part.dtype)} (n, {width})")
        are_floats = all(
            part.ndim == 2 and np.dtype(part.dtype).kind == "f" for part in self.arrays
        )
        if len(kinds) != 1 or not are_floats:
            raise InvalidInputError(
                "features: expected float arrays of shape (n, d), all with one d and dtype; got"
                f" {sorted(kinds)[:5]}"
            )
        lengths = [len(part) for part in self.arrays]
        # (parts + 1,): the first row of each part, then the total number of rows.
        self.starts: Index = np.cumsum([0, *lengths], dtype=np.int64)
        rows = int(self.starts[-1]) if index is None else len(index)
        self.shape = (rows, int(self.arrays[0].shape[1]))
        self.dtype = np.dtype(self.arrays[0].dtype)

    @classmethod
    def open(cls, paths: str | Path | Iterable[str | Path]) -> Shards:
        """Open features in files, which are read lazily.

        Args:
            paths: a list, or a pattern such as "shards/*.npy". Files matching a pattern are sorted
                naturally: 9.npy comes before 10.npy.

        Raises:
            InvalidInputError: If a file does not exist or shapes are inconsistent, or, on later
                reads, if a file has changed.
        """
        arrays = [part for path in files_of(paths) for part in FileRows.parts(path.absolute())]
        try:
            return cls(arrays)
        except InvalidInputError as error:
            raise InvalidInputError(f"{paths}: {error}") from None

    def on(self, runner: OnRay) -> Shards:
        """Return the same rows with a different runner, such as `vldebias.data.OnRay()`."""
        return Shards(self.arrays, runner, self.index)

    def select(self, rows: ArrayLike | slice) -> Shards:
        """Select rows without copying the features."""
        return Shards(self.arrays, self.runner, self.numbers(rows))

    @property
    def unit(self) -> UnitRows:
        """Return the rows L2-normalised, block by block."""
        return UnitRows(self, RowNumbers(int(self.starts[-1]), before="row "))

    def map(self, work: Callable[[T], R], parts: Sequence[T]) -> Iterator[R]:
        """Return `work(part)` for each part in order, computed by the runner if there is one.

        Args:
            work: function to apply to each part.
            parts: arguments of `work`, one per call.
        """
        return map(work, parts) if self.runner is None else self.runner.map(work, parts)

    def digest(self) -> str:
        """Return the SHA-256 of the hashes of all parts."""
        digests = list(self.map(_digest, self.arrays))
        if self.index is not None:
            digests.append(hashlib.sha256(self.index.tobytes()).hexdigest())
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def __len__(self) -> int:
        return self.shape[0]

    def numbers(self, rows: object) -> Index:
        """Convert a slice, an index array or a mask to row positions across all parts."""
        if isinstance(rows, slice):
            index = np.arange(*rows.indices(len(self)))
        else:
            index = np.asarray(rows)
            if index.dtype == bool:
                index = np.flatnonzero(index)
            index = index.astype(np.int64)
            index = np.where(index < 0, index + len(self), index)
        is_inside = (index >= 0) & (index < len(self))
        if index.ndim != 1 or not is_inside.all():
            raise IndexError(f"rows: expected a slice, a mask or indices below {len(self)}")
        return index if self.index is None else self.index[index]

    def __getitem__(self, rows: ArrayLike | slice) -> Array:
        """Return the stored rows selected by a slice, an index array or a mask."""
        if self.index is None and len(self.arrays) == 1 and isinstance(rows, slice):
            return np.asarray(self.arrays[0][rows])
        index = self.numbers(rows)
        features = np.empty((len(index), self.shape[1]), dtype=self.dtype)
        for number, local, places in self.cut(index):
            features[places] = self.arrays[number][local]
        return features

    def cut(self, index: Index) -> list[tuple[int, slice | Index, Index]]:
        """Group row indices by the part that contains each row.

        Returns:
            For each part: its number, the rows to read from it, and their positions in `index`.
        """
        order = np.argsort(index, kind="stable")
        cuts = list[tuple[int, slice | Index, Index]]()
        # In sorted order, a part's rows are contiguous, between two bounds.
        rising = index[order]
        bounds = np.searchsorted(rising, self.starts).tolist()
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            if start == stop:
                continue
            numbers = rising[start:stop] - self.starts[number]
            local: slice | Index = numbers
            if (np.diff(numbers) == 1).all():  # a slice avoids a copy
                local = slice(int(numbers[0]), int(numbers[-1]) + 1)
            cuts.append((number, local, order[start:stop]))
        return cuts


def _digest(array: Part) -> str:
    """Return the SHA-256 of dtype, shape and values, reading block by block."""
    state = hashlib.sha256(f"{np.dtype(array.dtype)} {tuple(array.shape)}".encode())
    for start in range(0, len(array), BLOCK):
        state.update(np.ascontiguousarray(array[start : start + BLOCK]).data)
    return state.hexdigest()


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Represent feature rows (n, d), L2-normalised in float32 and read lazily.

    Attributes:
        features: (n, d) floats.
        ids: names of all stored rows, including unselected ones; used in messages.
        change: function applied to blocks (b, d) of unit rows, such as an image edit. It must treat
            each row separately.
    """

    features: Shards
    ids: Sequence[str]
    change: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape (n, d)."""
        return self.features.shape

    def select(self, rows: ArrayLike) -> UnitRows:
        """Select rows by indices or a mask, without reading them."""
        return replace(self, features=self.features.select(rows))

    def changed(self, change: Callable[[Tensor], Tensor]) -> UnitRows:
        """Return the same rows with an additional change, applied after earlier ones."""
        before = self.change
        if before is None:
            return replace(self, change=change)
        return replace(self, change=lambda rows: change(before(rows)))

    def __getitem__(self, rows: ArrayLike | slice) -> Tensor:
        """Read the unit rows selected by a slice, an index array or a mask (numpy or torch)."""
        if not isinstance(rows, slice):
            return self.select(rows)[:]
        start, stop, step = rows.indices(len(self))
        if step != 1 or stop - start <= BLOCK:
            return self._read(rows)
        # Normalise block by block, while each block is in the cache.
        unit_rows = torch.empty(stop - start, self.shape[1])
        for block in unit_rows.split(BLOCK):
            block[:] = self._read(slice(start, start + len(block)))
            start += len(block)
        return unit_rows

    def split(self, size: int = BLOCK) -> Iterator[Tensor]:
        """Yield blocks (b, d) of at most `size` rows in order.

        Raises:
            InvalidInputError: If a row is zero or not finite.
        """
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def products(self, texts: Mapping[T, Tensor]) -> dict[T, Tensor]:
        """Return inner products (n, k) with several sets of text embeddings (k, d), in one pass.

        Args:
            texts: name -> text embeddings (k, d).
        """
        products = {name: torch.empty(len(self), len(rows)) for name, rows in texts.items()}
        parts = self._parts()
        work = partial(_products, {name: rows.float() for name, rows in texts.items()})
        products_of_parts = self.features.map(work, [rows for rows, _ in parts])
        for (_, places), products_of_part in zip(parts, products_of_parts, strict=True):
            for name, scores in products_of_part.items():
                products[name][places] = scores
        return products

    def top(self, queries: Tensor, k: int) -> Rows:
        """Return the indices (q, k) of the k rows with the largest inner products with each query.

        Ties keep row order.

        Args:
            queries: query embeddings (q, d).
            k: number of rows per query.
        """
        if queries.ndim != 2 or queries.shape[1] != self.shape[1] or not 1 <= k <= len(self):
            raise InvalidInputError(
                f"queries, k: got {tuple(queries.shape)} and {k}; expected queries"
                f" (q, {self.shape[1]}) and k from 1 to {len(self)}"
            )
        # Merging preserves the order of ties, so the result does not depend on the parts.
        leaders_of_parts = self.features.map(partial(_leaders, queries, k), self._parts())
        _, places = reduce(partial(merged, k=k), leaders_of_parts)
        return places

    def _parts(self) -> list[tuple[UnitRows, Index]]:
        """Return the rows in each part, with their positions among all rows."""
        shards = self.features
        parts = []
        for number, local, places in shards.cut(shards.numbers(slice(None))):
            array = shards.arrays[number]
            index = None
            if not isinstance(local, slice) or local != slice(0, len(array)):
                index = np.arange(len(array))[local]
            ids = self.ids
            # Use row numbers, to avoid sending all row names to every worker.
            if len(shards.arrays) > 1:
                ids = RowNumbers(len(array), int(shards.starts[number]), "row ")
            parts.append((UnitRows(Shards([array], index=index), ids, self.change), places))
        return parts

    def _read(self, rows: slice) -> Tensor:
        """Return the unit rows of a slice, with the change applied."""
        stored = self.features[rows]
        # torch converts float16 to float32 four times faster than numpy.
        dtype = None if stored.dtype == np.float16 else np.float32
        unit_rows = torch.from_numpy(np.array(stored, dtype=dtype)).float()
        lengths = unit_rows.norm(dim=1, keepdim=True)
        is_bad = ~(torch.isfinite(lengths) & (lengths > 0)).squeeze(1)
        if is_bad.any():
            numbers = self.features.numbers(rows)[is_bad.numpy()][:5]
            examples = [self.ids[number] for number in numbers.tolist()]
            # Count invalid rows in all features, not only in this slice.
            count = 0
            for start in range(0, len(self), _COUNTED_AT_ONCE):
                block = np.asarray(self.features[start : start + _COUNTED_AT_ONCE])
                norms = np.linalg.norm(block.astype(np.float32), axis=1)
                count += int((~np.isfinite(norms) | (norms == 0)).sum())
            raise InvalidInputError(
                f"features: {count} of {len(self)} rows are zero or not finite, such as {examples};"
                " remove them"
            )
        unit_rows /= lengths
        if self.change is None:
            return unit_rows
        return self.change(_filled(unit_rows))[: len(unit_rows)]


def _filled(rows: Tensor, least: int = _FEW) -> Tensor:
    """Repeat the last row if there are so few rows that the order of summation would change."""
    lacking = least - len(rows)
    if lacking <= 0 or not len(rows):
        return rows
    return torch.cat([rows, rows[-1:].expand(lacking, -1)])


def _products(texts: Mapping[T, Tensor], rows: UnitRows) -> dict[T, Tensor]:
    """Return a part's inner products (n, k), which do not depend on the block and part sizes."""
    products = {name: torch.empty(len(rows), len(text_rows)) for name, text_rows in texts.items()}
    for start, block in zip(range(0, len(rows), BLOCK), rows.split(), strict=True):
        for name, text_rows in texts.items():
            # Use at least two texts, because a product with one is summed in a different order.
            scores = _filled(block) @ _filled(text_rows, 2).T
            kept = scores[: len(block), : len(text_rows)]
            products[name][start : start + len(block)] = kept
    return products


def _leaders(queries: Tensor, k: int, part: tuple[UnitRows, Index]) -> Leaders:
    """Return the top rows of one part for each query, at most k."""
    rows, place = part
    return leaders(queries, rows, min(k, len(rows)), place)


def files_of(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """Return the files in a list, a pattern, or a clip-retrieval folder (img_emb/*.npy).

    Files matching a pattern are in natural order.

    Raises:
        InvalidInputError: If a pattern matches no files.
    """
    if not isinstance(paths, (str, Path)):
        return [Path(path) for path in paths]
    if Path(paths).is_file():
        return [Path(paths)]
    if is_clip_retrieval(paths):
        paths = f"{glob.escape(str(paths))}/img_emb/*.npy"
    files = glob.glob(str(paths), recursive=True)
    if not files:
        raise InvalidInputError(
            f"{paths}: there is no such file; expected a file, or a pattern that matches some"
        )
    # The order matters, because it determines which labels belong to which rows.
    files.sort(key=_texts_and_numbers)
    return [Path(path) for path in files]


def _texts_and_numbers(path: str) -> list[str | int]:
    """Split a name into text and numbers, so that 9 sorts before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)]


def is_clip_retrieval(path: str | Path) -> bool:
    """Return True if a folder contains image embeddings from clip-retrieval."""
    return Path(path, "img_emb").is_dir()


def metadata_beside(path: str | Path) -> str | None:
    """Return the pattern for a clip-retrieval folder's metadata tables, or None if it has none."""
    metadata = Path(path, "metadata")
    if not is_clip_retrieval(path) or not metadata.is_dir():
        return None
    return f"{glob.escape(str(metadata))}/*.parquet"


def is_pattern(path: str | Path) -> bool:
    """Return True if a name is a file pattern rather than an existing file."""
    return not Path(path).exists() and glob.has_magic(str(path))


def digest_of(paths: str | Path) -> str:
    """Return the SHA-256 of a file, or of the hashes of several files and their metadata."""
    files = files_of(paths)
    metadata = metadata_beside(paths)
    if metadata is not None:
        files += files_of(metadata)
    if len(files) == 1:
        return digest(files[0])
    return hashlib.sha256(" ".join(map(digest, files)).encode()).hexdigest()


@dataclass(frozen=True)
class FileRows:
    """Represent rows of an array (n, d) in a .npy file, which is opened for each read.

    Attributes:
        path: path of the .npy file.
        shape: shape (n, d) of these rows.
        dtype: dtype of the array.
        stamp: size and modification time of the file when it was first opened.
        start: index of the first row in the file.
    """

    path: Path
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    stamp: tuple[int, int]
    start: int = 0
    ndim = 2

    @classmethod
    def parts(cls, path: Path) -> list[FileRows]:
        """Split a file's rows into parts of at most PART rows.

        Raises:
            InvalidInputError: If the file does not contain an array (n, d).
        """
        array, stamp = _mapped(path)
        if array.ndim != 2:
            raise InvalidInputError(
                f"{path}: expected features (n, d), got shape {array.shape}, dtype {array.dtype}"
            )
        n, d = array.shape
        starts = range(0, max(n, 1), PART)
        return [cls(path, (min(PART, n - start), d), array.dtype, stamp, start) for start in starts]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Index, /) -> Array:
        """Return the stored rows selected by a slice or indices.

        Raises:
            InvalidInputError: If the file has changed.
        """
        array, stamp = _mapped(self.path)
        # Refuse a changed file, so that values from two versions of it are not mixed.
        if stamp != self.stamp:
            raise InvalidInputError(
                f"{self.path}: the file has changed since it was first read; run again"
            )
        # Copy the rows, so that the file does not stay open.
        return np.array(array[self.start : self.start + len(self)][rows])


def _mapped(path: Path) -> tuple[Array, tuple[int, int]]:
    """Return the memory-mapped array of a .npy file, and its size and modification time."""
    try:
        if path.suffix != ".npy":
            raise ValueError("its name does not end in .npy")
        refuse_special(path)
        status = path.stat()
        # Loading a pickled array could execute code.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, TokenError) as error:  # TokenError: a damaged header
        raise InvalidInputError(
            f"{path}: cannot be read ({error}); expected a .npy file of floats (n, d)"
        ) from None
    return array, (status.st_size, status.st_mtime_ns)
