"""Hugging Face `datasets`: an id on the hub, local folders, tables, tars or `save_to_disk` folders; streamed or not."""

from __future__ import annotations

import glob
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.data.captions import one_row_per_image
from vldebias.data.dataset import ImageData, ImageStream, LazyText, Record, fingerprint_of
from vldebias.data.labels import UNKNOWN, Labels
from vldebias.data.pictures import Ends, decode, ends_of, fingerprint_ends, fingerprint_files, read_ends, refuse_outside
from vldebias.data.tables import (
    ColumnNames,
    Names,
    as_labels,
    as_texts,
    captions_in,
    captions_of,
    column_of,
    mapped_columns,
)
from vldebias.errors import InvalidInputError, Lazily, need
from vldebias.hub import asked_once, reason

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset, IterableDataset
    from PIL import Image
else:
    pa = Lazily("pyarrow")
pc = Lazily("pyarrow.compute")

LAYOUT = (
    "a dataset id, a folder of parquet, arrow, tar or image files, a .parquet, .arrow or .tar file, a pattern such as "
    "shards/{000..010}.tar, or a save_to_disk folder"
)
CAPTIONS = ("caption", "txt", "text", "json.caption", "json.text", "captions", "sentences", "json.captions")
FIND = "auto"
_IMAGES = ("image", "jpg", "jpeg", "png", "webp")
_ALIASES = {"val": ("val", "validation", "valid", "dev"), "test": ("test",), "train": ("train",)}
_PARTS = 64  # of a saved data set, which could be split anywhere
_TARS = "__key__"  # a column that `datasets` adds to rows from tars
_FORMATS = {".parquet": "parquet", ".arrow": "arrow", ".tar": "webdataset"}
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_BRACES = re.compile(r"\{([^{}]*)\}")


def open_huggingface(
    root: str | Path,
    split: str | None = None,
    *,
    image: str | None = None,
    caption: str | None = None,
    id: str | None = None,
    labels: ColumnNames | None = None,
    names: Mapping[str, Names] | None = None,
    images: str | Path | None = None,
    config: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
    name: str | None = None,
) -> ImageData | ImageStream:
    """One split, or all of them joined in the order train, val, test, others.

    Tars are read in the way of webdataset: files of one name are a row, their endings are its columns (jpg, txt, json,
    cls). A field of a json file is called "json.caption"; the name itself is in column "__key__".

    Args:
        root: what to open; see LAYOUT.
        split: "train", "val" (also finds validation, valid, dev), "test", any other name that the data set has, "all";
            by default test, or the only one there is. Files and patterns of files have one split, train.
        image: column of images, or of paths below `images`; by default the one called image, jpg, jpeg, png or webp,
            or the only one of type Image.
        caption: column of texts, or of lists of texts where images have several captions; "auto" finds caption, txt,
            text, json.caption, json.text, captions, sentences or json.captions. By default none, but of tars the one
            that "auto" would find.
        id: column of names that tell the images apart, by default the number of the row. Rows of one name become one
            with several captions; so do, without `id`, rows of one path in a column of paths.
        labels: columns that are labels, as a list or as {name here: name there}; by default those of type ClassLabel.
        names: for a label, its values in their order, or {value there: name}.
        images: folder that texts in the image column start from, by default the folder that is opened. Paths in a
            column of type Image are resolved, and trusted, by `datasets`.
        config: name of the configuration.
        revision: branch, tag or commit on the hub; name a commit where figures are to be repeated.
        streaming: read rows as they come, without a copy on the disk.
        name: what reports call the data, by default the last part of `root`.

    Raises:
        InvalidInputError: nothing there that can be opened, no such split or column.
    """
    datasets = need("datasets")

    where, folder = str(root), Path(root)
    saved = (folder / "state.json").exists() or (folder / "dataset_dict.json").exists()  # by `save_to_disk`
    split, dataset = _chosen(_open(where, saved, config, revision, streaming), split, where)

    features = _features(dataset)
    classes = {c: tuple(f.names) for c, f in features.items() if isinstance(f, datasets.ClassLabel)}
    image = image_column(features, image, where)
    caption = caption_column(features, caption, where, tars=_TARS in features)
    columns, given = mapped_columns(labels if labels is not None else tuple(classes), names, f"huggingface: {root}")
    needed = [image, *(column for column in (caption, id) if column is not None), *columns.values()]
    missing = [column for column in needed if cell_of(features, column) is None]
    if missing:
        raise InvalidInputError(f"huggingface: {root}: expected columns {missing}; there are {list(features)}")
    below = Path(images) if images is not None else folder if folder.is_dir() else folder.parent
    base = None if isinstance(features[image], datasets.Image) else below
    rows = TableRows(where, image, caption, id, columns, given, classes, base)
    # Images as {"bytes", "path"}: decoding is ours, so that all sources agree.
    dataset = dataset.select_columns(_tops(features, needed)).cast_column(image, datasets.Image(decode=False))

    title = name or title_of(where)
    about = {"root": where, "config": config, "revision": revision}
    if not streaming:
        return dataset_images(dataset, rows, title, split, about)
    if saved:
        fingerprint = partial(dataset_fingerprint, dataset, rows)
        parts = max(1, min(_PARTS, len(dataset)))
        return RowStream(dataset.to_iterable_dataset(num_shards=parts), rows, title, split, about, fingerprint)
    fingerprint = partial(_stream_fingerprint, where, split, config, revision)
    return RowStream(dataset, rows, title, split, about, fingerprint)


def _open(root: str, saved: bool, config: str | None, revision: str | None, streaming: bool) -> dict[str, Any]:
    """Split -> data set."""
    datasets = need("datasets")
    DatasetsError = need("datasets.exceptions").DatasetsError

    source, why = source_of(root, config, revision), ""
    try:
        if saved:
            opened = datasets.load_from_disk(root)
        else:
            with asked_once("." if "data_files" in source else root) as why:
                opened = datasets.load_dataset(**source, streaming=streaming)
    except (OSError, ValueError, DatasetsError, tarfile.TarError) as error:
        trouble = f"there is no such file or folder, and {why}" if why else reason(error)
        raise InvalidInputError(f"huggingface: cannot open {root!r}: {trouble}. Expected {LAYOUT}") from error
    return dict(opened) if isinstance(opened, dict) else {str(opened.split or "all"): opened}


def _chosen(opened: Mapping[str, Any], split: str | None, root: str) -> tuple[str, Any]:
    """The name of the split as it was asked for, and its rows."""
    datasets = need("datasets")

    if split is None:
        split = next(iter(opened)) if len(opened) == 1 else "test"
    if split == "all":
        order = [there for here in ("train", "val", "test") for there in _ALIASES[here] if there in opened]
        parts = [opened[there] for there in dict.fromkeys((*order, *opened))]
        return split, parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    for there in _ALIASES.get(split, (split,)):
        if there in opened:
            return split, opened[there]
    there = " or ".join(dict.fromkeys((*opened, "all")))
    raise InvalidInputError(f"huggingface: {root}: expected split {there}, got {split!r}")


# ---- the files behind a data set: one table, one tar, or many tars named by a pattern ----------------------


def source_of(root: str, config: str | None, revision: str | None) -> dict[str, Any]:
    """Arguments of load_dataset: files are opened by their format (and are called train), anything else by its name."""
    files: list[str] = []
    if _is_pattern(root):
        for name in expand_braces(root):
            matching = [name] if "://" in name else sorted(glob.glob(name, recursive=True))
            if not matching:
                raise InvalidInputError(f"huggingface: {root}: there is no file {name}")
            files += matching
    elif Path(root).is_file() or _ending(root) in _FORMATS:
        files = [root]
    else:
        return {"path": root, "name": config, "revision": revision}
    formats = {_ending(file) for file in files}
    if len(formats) > 1 or not formats <= set(_FORMATS):
        raise InvalidInputError(
            f"huggingface: {root}: expected files ending in {' or '.join(_FORMATS)}, got {sorted(formats)}; open "
            "tables of paths as 'manifest'"
        )
    return {"path": _FORMATS[formats.pop()], "data_files": {"train": files}}


def title_of(root: str) -> str:
    """What reports call the data: the last part of the name, of a pattern the folder."""
    return Path(root).parent.name or "files" if _is_pattern(root) else Path(root).stem


def _is_pattern(root: str) -> bool:
    """Whether a name stands for several files: "shards/{000..010}.tar", "shards/*.tar"."""
    return not Path(root).exists() and any(sign in root for sign in "{*")


def _ending(file: str) -> str:
    """Of a path or address, whose query does not count."""
    return Path(file.partition("?")[0] if "://" in file else file).suffix


def expand_braces(pattern: str) -> list[str]:
    """Every name that a pattern stands for: {000..010} counts, with as many digits; {a,b} lists."""
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    text = braces.group(1)
    numbers = _RANGE.fullmatch(text)
    if numbers is None and "," not in text:
        raise InvalidInputError(f"huggingface: {pattern}: expected {{000..010}} or {{a,b}}, got {{{text}}}")
    choices = text.split(",")
    if numbers is not None:
        first, last = numbers.groups()
        if int(first) > int(last):
            raise InvalidInputError(f"huggingface: {pattern}: the range {{{text}}} runs backwards")
        choices = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [name for choice in choices for name in expand_braces(before + choice + after)]


# ---- columns -----------------------------------------------------------------------------------------------


def _features(dataset: Any) -> Mapping[str, Any]:
    """Column -> type; of a stream that does not say, from its first row."""
    return dataset.features if dataset.features is not None else dict.fromkeys(next(iter(dataset), {}), "unknown")


def image_column(features: Mapping[str, Any], given: str | None, where: str) -> str:
    """The given column, or the one called image or by the ending of a picture, or the only one of images."""
    if given is not None:
        return given
    named = [name for name in _IMAGES if name in features]
    candidates = named or [name for name, kind in features.items() if type(kind).__name__ == "Image"]
    if len(candidates) == 1 or named[:1] == ["image"]:
        return candidates[0]
    trouble = f"images may be in any of {candidates}" if candidates else "no column holds images"
    raise InvalidInputError(f"huggingface: {where}: {trouble}; name it with image=... There are {list(features)}")


def caption_column(features: Mapping[str, Any], given: str | None, where: str, *, tars: bool) -> str | None:
    """The given column; with "auto" the first of `CAPTIONS` that is there; in tars that too without being asked."""
    if given is not None and (given != FIND or given in features):
        return given
    if given is None and not tars:
        return None
    column = next((name for name in CAPTIONS if cell_of(features, name) is not None), None)
    if column is None and given == FIND:
        raise InvalidInputError(
            f"huggingface: {where}: no captions in a column {', '.join(CAPTIONS)}; name it with caption=..., or make "
            f"them from a label with label=... and caption_template='a photo of a {{}}.' There are {list(features)}"
        )
    return column


def _tops(features: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The columns that fields are in, each once."""
    return list(dict.fromkeys(name if name in features else name.partition(".")[0] for name in names))


def cell_of(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or of a field of one ("json.caption"), in a row; None where the row has none."""
    if name in row:
        return row[name]
    column, _, field = name.partition(".")
    inner = row.get(column)
    return cell_of(inner, field) if field and isinstance(inner, Mapping) else None


# ---- rows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableRows:
    """How rows are read.

    image, caption, id: columns. labels: name here -> column. names: see vldebias.data.sources.open_manifest.
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
        if "://" not in cell["path"]:
            return decode((self.base or Path()) / cell["path"])
        import fsspec

        with fsspec.open(cell["path"], "rb") as file:
            return decode(bytes(file.read()))

    def path(self, cell: Mapping[str, Any] | None) -> str:
        """Where the image of a cell lies; "" where the cell holds it."""
        if cell is None or cell["bytes"] is not None or cell["path"] is None:
            return ""
        return str(cell["path"]) if "://" in cell["path"] else os.path.abspath((self.base or Path()) / cell["path"])

    def ends(self, cell: pa.StructScalar) -> Ends:
        """Size and ends of a cell for the fingerprint; of a remote one the address is all that is known."""
        if not cell.is_valid:
            return -1, b""
        if cell["bytes"].is_valid:
            return ends_of(memoryview(cell["bytes"].as_buffer()))
        path = cell["path"].as_py() or ""
        return (-1, path.encode()) if not path or "://" in path else read_ends((self.base or Path()) / path)

    def column(self, table: pa.Table, here: str) -> Labels:
        """The labels of a column of a table."""
        there = self.labels[here]
        column, where = column_of(table, there, self.where), f"{self.where}: column {there!r}"
        if there not in self.classes:
            return as_labels(column, self.names.get(here), where)
        codes = Labels(column.cast(pa.int64()).fill_null(UNKNOWN).to_numpy(), self.classes[there])
        if here not in self.names:
            return codes
        texts = pa.array([*codes.names, None], pa.string())  # the same rows under other names or another order
        return as_labels(texts.take(pa.array(codes.codes % len(texts))), self.names[here], where)


def dataset_images(dataset: Dataset, rows: TableRows, name: str, split: str, about: Mapping[str, Any]) -> ImageData:
    """A map-style data set; labels and captions are read at once, images when asked for."""
    columns = [column for column in (rows.caption, rows.id, *rows.labels.values()) if column is not None]
    tops = _tops(dataset.features, columns)
    table = dataset.select_columns(tops).with_format("arrow")[:] if tops else pa.table({})
    while not set(columns) <= set(table.column_names) and any(pa.types.is_struct(c.type) for c in table.schema):
        table = table.flatten()  # fields of columns as columns of their own: "json.caption"
    images = dataset.select_columns([rows.image])
    paths: list[str] = []
    if rows.base is not None:
        paths = pc.struct_field(images.with_format("arrow")[:].column(rows.image), "path").fill_null("").to_pylist()
        refuse_outside(name, rows.base, paths)
    ids = as_texts(column_of(table, rows.id, rows.where), rows.where) if rows.id else _numbers(len(dataset))
    where = f"{rows.where}: column {rows.caption!r}"
    captions, more = captions_of(column_of(table, rows.caption, rows.where), where) if rows.caption else ([], [])
    labels, first = {here: rows.column(table, here) for here in rows.labels}, np.arange(len(dataset))
    named = ids if rows.id else paths if all(paths) else []
    if captions and named:
        first, captions, more = one_row_per_image(rows.where, named, captions, more, labels)
    return ImageData(
        name=name,
        split=split,
        ids=tuple(ids[row] for row in first),
        read=lambda index: rows.read(images[int(first[index])][rows.image]),
        labels={here: column[first] for here, column in labels.items()},
        fingerprint=lambda: dataset_fingerprint(dataset, rows, ids),
        captions=tuple(captions),
        more_captions=tuple(more),
        about=about,
        path=lambda index: rows.path(images[int(first[index])][rows.image]),
    )


def dataset_fingerprint(dataset: Dataset, rows: TableRows, ids: list[str] | None = None) -> str:
    """The fingerprint that files of the same content and ids would have."""
    ends = []
    for table in dataset.select_columns([rows.image]).with_format("arrow").iter(batch_size=1000):
        ends += [partial(rows.ends, cell) for cell in table.column(rows.image)]
    return fingerprint_ends(_numbers(len(dataset)) if ids is None else ids, ends)


def _numbers(n: int) -> list[str]:
    return [f"{index:08d}" for index in range(n)]


@dataclass(frozen=True, eq=False)
class RowStream:
    """Rows of an iterable data set, from any row on; see vldebias.data.ImageStream."""

    dataset: IterableDataset
    rows: TableRows
    name: str
    split: str
    about: Mapping[str, Any]
    fingerprint: LazyText = LazyText()  # noqa: RUF009  (a descriptor is no default)

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Column -> names of its labels where they are known beforehand."""
        rows = self.rows
        known = {here: rows.classes[there] for here, there in rows.labels.items() if there in rows.classes}
        for here, names in rows.names.items():
            if names is not None:
                known[here] = tuple(dict.fromkeys(names.values() if isinstance(names, Mapping) else names))
        return known

    @property
    def shards(self) -> int:
        """Parts that can be read apart, mostly files."""
        return self.dataset.num_shards

    def records(self, start: int = 0, shard: int | None = None) -> Iterator[Record]:
        """The rows from `start` on, always in the same order; images are decoded when a record is read.

        shard: of this part alone, `start` counted within it; others are not opened.
        """
        rows, dataset, prefix = self.rows, self.dataset, ""
        if shard is not None and self.shards > 1:
            dataset, prefix = dataset.shard(num_shards=self.shards, index=shard), f"{shard}-"
        for index, row in enumerate(dataset.skip(start), start):
            table = pa.table({there: [cell_of(row, there)] for there in set(rows.labels.values())})
            labels = {here: rows.column(table, here) for here in rows.labels}
            if rows.base is not None and row[rows.image] and row[rows.image]["path"]:
                refuse_outside(self.name, rows.base, [row[rows.image]["path"]])
            where = f"{rows.where}: column {rows.caption!r}"
            caption, more = (None, None) if rows.caption is None else captions_in(cell_of(row, rows.caption), where)
            yield Record(
                id=f"{prefix}{index:08d}" if rows.id is None else str(cell_of(row, rows.id)),
                read=partial(rows.read, row[rows.image]),
                labels={here: one.names[one.codes[0]] if one.known[0] else None for here, one in labels.items()},
                caption=caption,
                more_captions=more,
            )


def _stream_fingerprint(root: str, split: str, config: str | None, revision: str | None) -> str:
    """Of the files where they are local; else of what the hub says identifies them (the commit)."""
    datasets = need("datasets")

    builder = datasets.load_dataset_builder(**source_of(root, config, revision))
    parts = None if split == "all" else _ALIASES.get(split, (split,))
    files = builder.config.data_files or {}
    paths = [str(path) for part, names in files.items() if parts is None or str(part) in parts for path in names]
    if not paths or not all(Path(path).is_file() for path in paths):
        return fingerprint_of(["stream", root, split, str(config), str(revision), str(builder.hash), *paths])
    folder = Path(root).resolve()
    folder = folder if folder.is_dir() else folder.parent
    below = []  # paths from the root, so that a copy of the folder has the same fingerprint
    for path in paths:
        resolved = Path(path).resolve()
        below.append(resolved.relative_to(folder).as_posix() if resolved.is_relative_to(folder) else resolved.name)
    return fingerprint_files(below, paths)
