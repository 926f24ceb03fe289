"""Rows of a Hugging Face dataset: its image cells decoded, its columns as labels, at random or as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from vldebias.data.decoding import decode
from vldebias.data.files import Ends, ends_of, fingerprint_ends, read_ends, refuse_outside
from vldebias.data.huggingface_columns import cell_of, flat, top
from vldebias.data.images import ImageData, Record
from vldebias.data.labels import UNKNOWN, Labels
from vldebias.data.lazy import LazyText
from vldebias.data.tables import Names, column_of, labels_of, texts_of

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = ["RowStream", "Rows", "dataset_fingerprint", "dataset_images"]


@dataclass(frozen=True)
class Rows:
    """How rows are read.

    image, caption, id: columns. labels: name here -> column. names: see vldebias.data.manifest.
    classes: column -> names of its codes, for the columns that the data set itself declares as classes.
    base: folder that paths in the image column start from; None where `datasets` resolves them.
    """

    where: str
    image: str
    caption: str | None
    id: str | None
    labels: Mapping[str, str]
    names: Mapping[str, Names]
    classes: Mapping[str, tuple[str, ...]]
    base: Path | None

    def read(self, cell: Mapping[str, Any] | None) -> Image.Image:
        """The image of a cell {"bytes", "path"}; OSError where it holds none that can be read."""
        if cell is None or (cell["bytes"] is None and cell["path"] is None):
            raise OSError("the cell is empty")
        if cell["bytes"] is not None:
            return decode(cell["bytes"])
        return decode(_fetch(cell["path"])) if "://" in cell["path"] else decode(self._path(cell["path"]))

    def ends(self, cell: pa.StructScalar) -> Ends:
        """Size and ends of a cell for the fingerprint; of a remote one the address is all that is known."""
        if not cell.is_valid:
            return -1, b""
        if cell["bytes"].is_valid:
            return ends_of(memoryview(cell["bytes"].as_buffer()))
        path = cell["path"].as_py()
        if path is None:
            return -1, b""
        return (-1, path.encode()) if "://" in path else read_ends(self._path(path))

    def known(self) -> dict[str, tuple[str, ...]]:
        """Column here -> names of its labels, where they are known before a row is read."""
        given = {here: _listed(names) for here, names in self.names.items() if names is not None}
        return {here: self.classes[there] for here, there in self.labels.items() if there in self.classes} | given

    def column(self, table: pa.Table, here: str) -> Labels:
        """The labels of a column of a table."""
        there = self.labels[here]
        column = column_of(table, there, self.where)
        if there not in self.classes:
            return labels_of(column, self.names.get(here), f"{self.where}: column {there!r}")
        codes = Labels(pc.fill_null(column.cast(pa.int64()), UNKNOWN).to_numpy(), self.classes[there])
        return codes if here not in self.names else _renamed(codes, self.names[here], f"{self.where}: column {there!r}")

    def _path(self, path: str) -> Path:
        return Path(path) if self.base is None else self.base / path


def _listed(names: Names) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names.values() if isinstance(names, Mapping) else names or ()))


def _renamed(labels: Labels, names: Names, where: str) -> Labels:
    """The same rows under other names or another order."""
    texts = pa.array([*labels.names, None], pa.string())
    return labels_of(texts.take(pa.array(labels.codes % len(texts))), names, where)


def _fetch(address: str) -> bytes:
    import fsspec

    with fsspec.open(address, "rb") as file:
        return bytes(file.read())


def dataset_images(dataset: Dataset, rows: Rows, name: str, split: str, about: Mapping[str, Any]) -> ImageData:
    """A map-style data set; labels and captions are read at once, images when asked for."""
    columns = [rows.caption, rows.id, *rows.labels.values()]
    wanted = list(dict.fromkeys(top(dataset.features, column) for column in columns if column is not None))
    table = dataset.select_columns(wanted).with_format("arrow")[:] if wanted else pa.table({})
    if not {column for column in columns if column is not None} <= set(table.column_names):
        table = flat(table)
    images = dataset.select_columns([rows.image])
    if rows.base is not None:
        paths = images.with_format("arrow")[:].column(rows.image)
        refuse_outside(name, rows.base, pc.fill_null(pc.struct_field(paths, "path"), "").to_pylist())
    ids = texts_of(column_of(table, rows.id, rows.where), rows.where) if rows.id else _numbers(len(dataset))

    def read(index: int) -> Image.Image:
        return rows.read(images[int(index)][rows.image])

    return ImageData(
        name=name,
        split=split,
        ids=tuple(ids),
        read=read,
        labels={here: rows.column(table, here) for here in rows.labels},
        fingerprint=lambda: dataset_fingerprint(dataset, rows, ids),
        captions=tuple(texts_of(column_of(table, rows.caption, rows.where), rows.where)) if rows.caption else (),
        about=about,
    )


def dataset_fingerprint(dataset: Dataset, rows: Rows, ids: list[str] | None = None) -> str:
    """The fingerprint that files of the same content and ids would have."""
    ends = []
    for table in dataset.select_columns([rows.image]).with_format("arrow").iter(batch_size=1000):
        ends += [partial(rows.ends, cell) for cell in table.column(rows.image)]
    return fingerprint_ends(_numbers(len(dataset)) if ids is None else ids, ends)


def _numbers(n: int) -> list[str]:
    return [_number(index) for index in range(n)]


def _number(index: int) -> str:
    return f"{index:08d}"


@dataclass(frozen=True, eq=False)
class RowStream:
    """Rows of an iterable data set, from any row on; see vldebias.data.ImageStream."""

    dataset: IterableDataset
    rows: Rows
    name: str
    split: str
    about: Mapping[str, Any]
    fingerprint: LazyText = LazyText()  # noqa: RUF009  (a descriptor is no default)

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Column -> names of its labels where they are known beforehand."""
        return self.rows.known()

    def records(self, start: int = 0) -> Iterator[Record]:
        """The rows from `start` on, always in the same order; images are decoded when a record is read."""
        for index, row in enumerate(self.dataset.skip(start), start):
            yield self._record(index, row)

    def _record(self, index: int, row: Mapping[str, Any]) -> Record:
        rows = self.rows
        table = pa.table({there: [cell_of(row, there)] for there in set(rows.labels.values())})
        found = {here: rows.column(table, here) for here in rows.labels}
        if rows.base is not None and row[rows.image] and row[rows.image]["path"]:
            refuse_outside(self.name, rows.base, [row[rows.image]["path"]])
        return Record(
            id=_number(index) if rows.id is None else str(cell_of(row, rows.id)),
            read=partial(rows.read, row[rows.image]),
            labels={here: one.names[one.codes[0]] if one.known[0] else None for here, one in found.items()},
            caption=None if rows.caption is None else str(cell_of(row, rows.caption) or ""),
        )
