"""Features in shards: arrays in memory, files that are mapped, blocks of a Ray data set; one class for all of them.

`Shards` stands where an array of features does, in `vldebias.evaluate(images=)` and everywhere else. Passes over all
rows (scores of texts, rankings) run shard by shard where its runner runs them, here or on Ray; labels, resampling and
every other figure stay in this process. The results are those of one array, to the digit.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.data.parallel import Runner
from vldebias.data.unit_rows import BLOCK, Parts, RowNumbers, UnitRows
from vldebias.errors import InvalidInputError, need
from vldebias.metrics.rankings import Rows

R = TypeVar("R")
PART = 1 << 18  # rows: a larger file is several shards, so that several workers can read it
KINDS = (".npy", ".safetensors", ".parquet")


class Shards(Parts):
    """Features (n, d) in shards, and where passes over them run: see `open`, `of_arrays` and `of_ray`."""

    @classmethod
    def open(cls, paths: str | Path | Iterable[str | Path], *, features: str = "features") -> Shards:
        """Shards in files, which are opened when they are read: a pattern such as "shards/*.npy", or files in order.

        Args:
            paths: .npy, .safetensors or .parquet files, of one width and type. A pattern finds them in the order of
                their names, numbers by their value: 9.npy before 10.npy.
            features: the name of the array, or of the column of lists.

        Raises:
            InvalidInputError: no such file, another format, or shapes that do not fit together.
        """
        arrays = [part for path in files_of(paths) for part in _parts_of(path.absolute(), features)]
        try:
            return cls(arrays)
        except InvalidInputError as error:
            raise InvalidInputError(f"{paths}: {error}") from None

    @classmethod
    def of_arrays(cls, arrays: Iterable[Any]) -> Shards:
        """Shards in memory: arrays or tensors (n_i, d)."""
        return cls([one.detach().cpu().numpy() if isinstance(one, Tensor) else np.asarray(one) for one in arrays])

    @classmethod
    def of_ray(cls, dataset: Any, column: str = "features") -> Shards:
        """The blocks of a `ray.data.Dataset`, made once and kept in the memory of the cluster; its order is kept.

        Raises:
            MissingPackageError: Ray is not installed.
            InvalidInputError: no such column, or no rows.
        """
        from vldebias.data.on_ray import OnRay, blocks_of

        return cls(blocks_of(dataset, column), OnRay())

    def on(self, runner: Runner) -> Shards:
        """The same shards, over which passes run elsewhere, such as `vldebias.data.OnRay()`."""
        return Shards(self.arrays, runner)

    @property
    def unit(self) -> UnitRows:
        """The rows, L2-normalised a block at a time."""
        return UnitRows(self, RowNumbers(len(self)))

    def map(self, work: Callable[[Any], R]) -> Iterator[R]:
        """`work` of each shard, an array (n_i, d) or what gives one for a slice, in their order."""
        return self.runner.map(work, self.arrays)

    def __matmul__(self, texts: Any) -> Tensor:
        """Cosines (n, k), of rows that are normalised, with unit texts as columns (d, k), as `unit_rows @ texts`."""
        columns = torch.as_tensor(texts)
        if columns.ndim != 2 or len(columns) != self.shape[1]:
            raise InvalidInputError(f"shards @ texts: expected texts ({self.shape[1]}, k), got {tuple(columns.shape)}")
        return self.unit.products({"": columns.T})[""]

    def top(self, queries: Any, k: int) -> Rows:
        """The first k rows (q, k) for queries (q, d), by cosine; see `vldebias.metrics.rankings.top_rankings`."""
        return self.unit.top(torch.as_tensor(queries), k)

    def digest(self) -> str:
        """SHA-256 over the SHA-256 of every shard: other for other numbers, another order or other cuts."""
        return hashlib.sha256(" ".join(self.map(_digest)).encode()).hexdigest()

    def __repr__(self) -> str:
        return f"Shards({len(self.arrays)} shards, {self.shape} of {self.dtype}, {type(self.runner).__name__})"


def files_of(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """The files of a pattern, sorted, or those that are listed.

    Raises:
        InvalidInputError: there is none.
    """
    if not isinstance(paths, (str, Path)):
        return [Path(path) for path in paths]
    if Path(paths).is_file():
        return [Path(paths)]
    files = glob.glob(str(paths), recursive=True)
    if not files:
        raise InvalidInputError(f"{paths}: there is no such file; expected a file or a pattern such as 'shards/*.npy'")
    # By texts and numbers in turn: 9 before 10, as well as 009 before 010.
    files.sort(key=lambda path: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)])
    return [Path(path) for path in files]


def is_pattern(path: str | Path) -> bool:
    """Whether a name stands for several files."""
    return not Path(path).exists() and glob.has_magic(str(path))


# ---- files: opened when they are read, so that a shard costs its path ---------------------------------------


@dataclass(frozen=True)
class FileRows:
    """Rows start ... start + n - 1 of the array (or, of parquet, the row group `group`) of a file.

    It stands where an array (n, d) does. The file is opened anew whenever it is read: nothing stays mapped.
    """

    path: Path
    name: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    start: int = 0
    group: int | None = None
    ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """The rows at a slice or at indices, as stored.

        Raises:
            InvalidInputError: the file is not what it was when it was first opened.
        """
        if self.group is not None:
            whole = _row_group(self.path, self.path.stat().st_mtime_ns, self.name, self.group)
            return whole[rows]
        with _mapped(self.path, self.name) as array:
            if array.shape[1:] != self.shape[1:] or len(array) < self.start + len(self) or array.dtype != self.dtype:
                raise InvalidInputError(
                    f"{self.path}: expected {self.shape} of {self.dtype} from row {self.start} on, as it was, got "
                    f"{array.shape} of {array.dtype}: it was changed"
                )
            return np.array(array[self.start : self.start + len(self)][rows])


class _mapped:  # noqa: N801  (a context, used as a function)
    """The array of a .npy or .safetensors file, mapped for as long as the block runs."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name

    def __enter__(self) -> NDArray[Any]:
        from safetensors import SafetensorError, safe_open

        try:
            if self.path.suffix == ".npy":
                return np.load(self.path, mmap_mode="r", allow_pickle=False)
            with safe_open(self.path, framework="pt") as file:
                names = file.keys()
                if self.name not in names:
                    raise InvalidInputError(f"{self.path}: expected an array {self.name!r}, found {sorted(names)}")
                tensor = file.get_tensor(self.name)
            return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        except (OSError, ValueError, SafetensorError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise InvalidInputError(f"{self.path}: cannot be read ({error}); expected an array of floats") from None

    def __exit__(self, *of: object) -> None:
        """The map ends with the last array that looks at it."""


def _parts_of(path: Path, name: str) -> list[FileRows]:
    if path.suffix not in KINDS:
        raise InvalidInputError(f"{path}: expected shards that end in {', '.join(KINDS)}")
    if not path.is_file():
        raise InvalidInputError(f"{path}: there is no such file")
    if path.suffix == ".parquet":
        return _row_groups(path, name)
    with _mapped(path, name) as array:
        if array.ndim != 2:
            raise InvalidInputError(f"{path}: expected features (n, d), got {array.shape} of {array.dtype}")
        n, d = array.shape
        starts = range(0, max(n, 1), PART)
        return [FileRows(path, name, (min(PART, n - start), d), array.dtype, start) for start in starts]


def _row_groups(path: Path, name: str) -> list[FileRows]:
    pq, pa = need("pyarrow.parquet"), need("pyarrow")
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError(f"{path}: cannot be read as parquet: {error}") from None
    with file:
        if name not in file.schema_arrow.names:
            raise InvalidInputError(f"{path}: expected a column {name!r}, found {file.schema_arrow.names}")
        kind = file.schema_arrow.field(name).type
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    inner = getattr(kind, "value_type", None)
    if inner is None or not pa.types.is_floating(inner):
        raise InvalidInputError(f"{path}: column {name!r}: expected lists of floats, got {kind}")
    stamp, filled = path.stat().st_mtime_ns, [i for i, size in enumerate(sizes) if size]
    if not filled:
        raise InvalidInputError(f"{path}: has no rows")
    d = getattr(kind, "list_size", None) or _row_group(path, stamp, name, filled[0]).shape[1]
    return [FileRows(path, name, (sizes[i], d), np.dtype(inner.to_pandas_dtype()), group=i) for i in filled]


@lru_cache(maxsize=1)  # blocks of a row group follow one another, and none can be read without the rest of it
def _row_group(path: Path, stamp: int, name: str, group: int) -> NDArray[Any]:
    """The features (n, d) of a row group, whole; stamp: of the file, so that another one is read again."""
    pq, pc = need("pyarrow.parquet"), need("pyarrow.compute")
    with pq.ParquetFile(path) as file:
        column = file.read_row_group(group, columns=[name]).column(name).combine_chunks()
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or lengths[0] is None or column.null_count:
        raise InvalidInputError(f"{path}: column {name!r}: expected lists of one length, got lengths {lengths[:5]}")
    flat = column.flatten()
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), lengths[0])


def _digest(array: Any) -> str:
    state = hashlib.sha256(f"{np.dtype(array.dtype)} {tuple(array.shape)}".encode())
    for start in range(0, len(array), BLOCK):
        state.update(np.ascontiguousarray(array[start : start + BLOCK]).data)
    return state.hexdigest()
