"""Open data sets with Hugging Face `datasets`: hub ids, folders, files and streams."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

import numpy as np

from vldebias.data.caption_cells import captions_in, one_row_per_image
from vldebias.data.cleaning import clean_captions, cleaned
from vldebias.data.dataset import (
    Facts,
    ImageData,
    LazyText,
    Record,
    fingerprint_files,
    fingerprint_of,
)
from vldebias.data.folders import folder_of_paths, refuse_no_paths, refuse_outside
from vldebias.data.label_values import missing_labels
from vldebias.data.labels import ColumnNames, Labels, mapped_columns
from vldebias.data.layouts import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    cannot_open,
    expanded,
    find_captions,
    refuse_unreachable,
    same_column,
)
from vldebias.data.rows import files_of, is_pattern
from vldebias.data.splits import (
    ALIASES,
    SPLIT,
    files_name_split,
    no_split_column,
    rows_of_split,
    spellings,
)
from vldebias.data.tars import open_tars, stream_of_tars
from vldebias.errors import InvalidInputError, did_you_mean, need, shown
from vldebias.projection.hub import offline_reason, reason
from vldebias.utils.pictures import decode
from vldebias.utils.table_rows import find_column, fitting_columns

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset
    from PIL import Image

T = TypeVar("T")


class Cell(TypedDict):
    """An undecoded image: its bytes, or the path to its file."""

    bytes: bytes | None
    path: str | None


class Source(TypedDict, total=False):
    """Arguments of `datasets.load_dataset`."""

    path: str
    name: str | None
    revision: str | None
    data_files: dict[str, list[str]]


_TARS = "__key__"  # column that `datasets` adds to rows from tars
_FORMATS = {".parquet": "parquet", ".arrow": "arrow", ".tar": "webdataset"}


def open_huggingface(
    root: str | Path,
    split: str | None = None,
    *,
    image: str | None = None,
    caption: str | None = None,
    labels: ColumnNames | None = None,
    images: str | Path | None = None,
    config: str | None = None,
    revision: str | None = None,
    unknown: Collection[str] | None = None,
    streaming: bool = False,
    files: Sequence[str] = (),
) -> ImageData | ImageStream:
    """Open one split, or all splits concatenated in the order train, val, test, others.

    Tars are read as webdataset does: files with the same name form a row, and their extensions are
    the column names (jpg, txt, cls).

    Args:
        root: a hub id, a folder, a file, or a pattern such as shards/*.tar.
        split: "train", "val" (also matches validation, valid and dev), "test", any other split of
            the data set, or "all". Default: the only split, or test if there are several. Files
            and patterns only have the split "train".
        image: column of images, or of paths below `images`. Default: found by name or type.
        caption: column of strings or of lists of strings; "auto", the default for tars, finds it by
            name.
        labels: label columns, as a list or as {name to use: name in the data set}. Default: columns
            of type ClassLabel.
        images: base folder for paths in the image column. Default: the opened folder.
        config: name of the data set's configuration on the hub.
        revision: hub commit, branch or tag.
        unknown: labels that mean a missing value, unless they stream. Default: as described in
            `vldebias.data.label_values.missing_labels`, and negative codes of ClassLabel columns.
        streaming: whether to read rows sequentially, without copying them to disk.
        files: files to read from a folder, for example to skip img2dataset's statistics. Default:
            all files.

    Raises:
        InvalidInputError: If the data set, split or column does not exist, or several columns are
            possible.
        MissingPackageError: If `datasets` is not installed.
    """
    place = str(root)
    about = {"root": str(root), "config": config, "revision": revision}
    source = source_of(str(root), config, revision, files)
    if "data_files" not in source:
        refuse_unreachable(str(root))
    tars_of_split = _tars_of_splits(root)
    datasets = need("datasets")
    if tars_of_split and not streaming:
        # A file or pattern has no splits of its own.
        own_split = split if "data_files" in source and split != "all" else None
        split = _only_or_test(tars_of_split, split)
        tars = tars_of_split["train"] if own_split else None
        return open_tars(
            place,
            tars or _of_split(tars_of_split, split, place, lambda parts: list(chain(*parts))),
            name=_name_of(root),
            split=split,
            own_split=own_split,
            image=image,
            caption=caption,
            labels=labels,
            unknown=unknown,
            about=about,
        )
    if tars_of_split:
        splits = {name: stream_of_tars(tars) for name, tars in tars_of_split.items()}
    else:
        splits = _load(root, source, streaming)
    rows = None if split in (None, "all") else _rows_of_split(splits, str(split), source, place)
    split = _only_or_test(splits, split)
    dataset = rows or _of_split(splits, split, place, datasets.concatenate_datasets)

    named = filter(None, [image, caption, *mapped_columns(labels or ()).values()])
    if not streaming:
        names = list(dataset.features)
        if any(find_column(names, name) not in (None, *names) for name in named):
            dataset = dataset.flatten()  # a column with a dotted name per object field
    # The columns of some streams are unknown until the first row is read.
    features = dataset.features or dict.fromkeys(next(iter(dataset), {}), "unknown")
    image, caption, columns = _resolved_columns(image, caption, labels, features, place)
    used = list(dict.fromkeys(filter(None, [image, caption, *columns.values()])))

    # `datasets` itself resolves paths in an image column.
    base = None
    if not isinstance(features[image], datasets.Image):
        base = folder_of_paths(root, images)
    # vldebias decodes the images itself, so that all sources behave the same.
    try:
        dataset = dataset.select_columns(used).cast_column(image, datasets.Image(decode=False))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{place}: column {image!r}: expected images or paths, got {features[image]}"
        ) from error
    stream = ImageStream(
        image=image,
        caption=caption,
        labels=columns,
        classes=_classes_in(features),
        base=base,
        dataset=dataset,
        name=_name_of(root),
        split=split,
        about=about,
        unknown=unknown,
        fingerprint=partial(_fingerprint, split, source, is_column=rows is not None),
    )
    if streaming:
        return stream
    try:
        return stream.images()
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{place}: expected text in UTF-8, got {shown(error.object)}: {error.reason}; the file"
            " may be damaged"
        ) from None


def _resolved_columns(
    image: str | None,
    caption: str | None,
    labels: ColumnNames | None,
    features: Mapping[str, object],
    place: str,
) -> tuple[str, str | None, dict[str, str]]:
    """Return the image and caption columns, and the column of each label by the name to use.

    Raises:
        InvalidInputError: If a column does not exist, or several columns are possible.
    """
    image = _image_column(image, features, place)
    caption = _caption_column(caption, features, place)
    if labels is None:
        labels = tuple(_classes_in(features))
    columns = mapped_columns(labels)
    used = dict.fromkeys(filter(None, [image, caption, *columns.values()]))
    found: dict[str, str] = {}
    missing = []
    for name in used:
        column = find_column(list(features), name)
        if column in features:
            found[name] = str(column)
        else:
            missing.append(name)
    if missing:
        hint = did_you_mean(missing[0], features, "choose from these")
        raise InvalidInputError(
            f"{place}: no column {missing[0]!r}; the columns are {shown(list(features))}; {hint}"
        )
    if image == caption:
        raise InvalidInputError(same_column(place, image, list(features)))
    columns = {label: found[column] for label, column in columns.items()}
    return found[image], caption and found[caption], columns


def _classes_in(features: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Return the class names of each ClassLabel column."""
    class_label = need("datasets").ClassLabel
    classes = {}
    for column, feature in features.items():
        if isinstance(feature, class_label):
            classes[column] = tuple(name.strip() for name in feature.names)
    return classes


def _load(
    root: str | Path, source: Source, streaming: bool
) -> dict[str, Dataset | IterableDataset]:
    """Load a data set and return its splits by name.

    Raises:
        InvalidInputError: If it cannot be opened.
    """
    datasets = need("datasets")
    library_errors = (need("datasets.exceptions").DatasetsError, tarfile.TarError)
    why_offline = ""
    try:
        # Do not contact the hub if the files are local.
        folder = "." if "data_files" in source else root
        with offline_reason(folder) as why_offline, hidden_bars(source):
            loaded = datasets.load_dataset(**source, streaming=streaming)
    except (OSError, ValueError, *library_errors) as error:
        trouble = reason(error)
        if why_offline:
            trouble = f"there is no such file or folder, and {why_offline}"
        raise cannot_open(root, trouble) from error
    if isinstance(loaded, dict):
        return dict(loaded)
    return {str(loaded.split or "all"): loaded}


@contextmanager
def hidden_bars(source: Source) -> Iterator[None]:
    """Hide the library's progress bars for local files, where they flash by and fill the screen.

    Args:
        source: the arguments for `load_dataset`.
    """
    datasets = need("datasets")
    is_local = "data_files" in source or Path(source["path"]).exists()
    if not is_local or datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


def _only_or_test(splits: Mapping[str, object], split: str | None) -> str:
    """Return the given split, defaulting to the only split or "test"."""
    if split is not None:
        return split
    return next(iter(splits)) if len(splits) == 1 else "test"


def _of_split(splits: Mapping[str, T], split: str, place: str, join: Callable[[list[T]], T]) -> T:
    """Return the split with a name or alias, or all splits in the order train, val, test, others.

    Raises:
        InvalidInputError: If the split does not exist.
    """
    if split == "all":
        ordered = [name for name in chain.from_iterable(ALIASES.values()) if name in splits]
        parts = [splits[name] for name in dict.fromkeys((*ordered, *splits))]
        return join(parts) if len(parts) > 1 else parts[0]
    for name in (split, *spellings(split)):
        if name in splits:
            return splits[name]
    raise InvalidInputError(
        f"{place}: expected split {' or '.join((*splits, 'all'))}, got {split!r}"
    )


def _rows_of_split(
    splits: Mapping[str, Dataset | IterableDataset], split: str, source: Source, place: str
) -> Dataset | IterableDataset | None:
    """Return the rows that a column "split" assigns to a split, or None if the files name it.

    Raises:
        InvalidInputError: If files that were passed by name or pattern have no such split.
    """
    files = source.get("data_files", {}).get("train", [])
    if len(splits) > 1 or (not files and not set(spellings(split)).isdisjoint(splits)):
        return None
    (rows,) = splits.values()
    names = list(rows.features or next(iter(rows), {}))
    column = next(
        (name for name in (find_column(names, SPLIT), f"json.{SPLIT}") if name in names), ""
    )
    if not column:
        if not files or split == "train":
            return None
        if files_name_split(files, split):
            return rows
        raise no_split_column(place, split, names)
    if not isinstance(rows, need("datasets").Dataset):
        return rows.filter(lambda name: name in (split, *spellings(split)), input_columns=[column])
    names_of_rows = rows.with_format("arrow")[:][column].combine_chunks()
    classes = _classes_in(rows.features).get(column)
    codes = {str(code): name for code, name in enumerate(classes)} if classes else None
    labels = Labels.from_column(names_of_rows, codes, f"{place}: column {column!r}")
    return rows.select(rows_of_split(place, split, labels))


def _tars_of_splits(root: str | Path) -> dict[str, list[str]]:
    """Return split -> tars for a file, pattern or folder; empty if there are no tars.

    The parquet and statistics files that img2dataset writes next to tars are ignored.
    """
    path = Path(root)
    if is_pattern(root) or len(expanded(root)) > 1 or path.is_file():
        files = files_of_patterns(root)
        return {"train": files} if all(file.lower().endswith(".tar") for file in files) else {}
    if not path.is_dir() or not any(path.rglob("*.tar")):
        return {}
    data_files = need("datasets.data_files")
    patterns = data_files.sanitize_patterns(data_files.get_data_patterns(str(path.resolve())))
    found = data_files.DataFilesDict.from_patterns(
        patterns, base_path=str(path.resolve()), allowed_extensions=[".tar"]
    )
    return {str(name): list(map(str, files)) for name, files in found.items() if files}


def _name_of(root: str | Path) -> str:
    """Return a data set name: the name of a file or folder, or of a pattern's folder."""
    path = Path(root)
    if is_pattern(root) or len(expanded(root)) > 1:
        return path.parent.name or "files"
    return path.stem


def _image_column(image: str | None, features: Mapping[str, object], place: str) -> str:
    """Return the given image column. By default, find it by name, then by type.

    Raises:
        InvalidInputError: If no column qualifies, or several do.
    """
    if image is not None:
        return image
    # This name takes precedence over all others.
    if "image" in features:
        return "image"
    kind = need("datasets").Image
    image_columns = []
    byte_columns = []
    for name, feature in features.items():
        if isinstance(feature, kind):
            image_columns.append(name)
        # A column of bytes contains images, whatever its name.
        elif getattr(feature, "dtype", "") in ("binary", "large_binary"):
            byte_columns.append(name)
    candidates = (
        fitting_columns(image_columns, IMAGE_COLUMNS)
        or image_columns
        or fitting_columns(byte_columns, IMAGE_COLUMNS)
        or fitting_columns(list(features), IMAGE_COLUMNS)
        or byte_columns
    )
    if len(candidates) == 1:
        return candidates[0]
    problem = f"images may be in any of {candidates}" if candidates else "no image column"
    raise InvalidInputError(
        f"{place}: {problem}; choose one of {shown(list(features))} with --image-column (in Python"
        " image=...)"
    )


def _caption_column(caption: str | None, features: Mapping[str, object], place: str) -> str | None:
    """Return the given caption column. For "auto" and for tars, find it by name.

    Raises:
        InvalidInputError: If "auto" finds no such column.
    """
    # "auto" may also be an actual column name.
    is_auto = caption == "auto" and caption not in features
    is_tar = caption is None and _TARS in features
    if not is_auto and not is_tar:
        return caption
    found = find_captions(list(features), place)
    if found is not None or is_tar:
        return found
    raise InvalidInputError(
        f"{place}: expected captions in a column {', '.join(CAPTION_COLUMNS[:5])}, got the columns"
        f" {shown(list(features))}; choose one with --caption-column (in Python caption=...), or"
        " create captions from a label with label=... and caption_template='a photo of a {}.'"
    )


def source_of(
    root: str, config: str | None, revision: str | None, files: Sequence[str] = ()
) -> Source:
    """Return the arguments for `load_dataset`: a format and files as split "train", or a name.

    Args:
        root: a hub id, a folder, a file or a pattern.
        config: name of the data set's configuration on the hub.
        revision: commit, branch or tag on the hub.
        files: files in the folder to read. Default: all.
    """
    is_name = not is_pattern(root) and len(expanded(root)) == 1 and not Path(root).is_file()
    if is_name and not files:
        return {"path": root, "name": config, "revision": revision}
    files = files or files_of_patterns(root)
    formats = {Path(file).suffix for file in files}
    if len(formats) > 1 or formats - set(_FORMATS):
        raise InvalidInputError(
            f"{root}: expected files ending in {' or '.join(_FORMATS)}, got"
            f" {sorted(formats)}; open tables of paths as 'manifest'"
        )
    return {"path": _FORMATS[formats.pop()], "data_files": {"train": list(files)}}


def files_of_patterns(root: str | Path) -> list[str]:
    """Return the files matching a name or pattern, in order; patterns may contain braces."""
    return list(chain.from_iterable(map(str, files_of(pattern)) for pattern in expanded(root)))


def _fingerprint(split: str, source: Source, *, is_column: bool = False) -> str:
    """Return a fingerprint of local files, or of the hub revision if there are none.

    Args:
        split: name of the split.
        source: the arguments for `load_dataset`.
        is_column: whether a column names the split of each row, rather than the files.
    """
    with hidden_bars(source):
        builder = need("datasets").load_dataset_builder(**source)
    # Hash only this split's files, so that changes to other splits do not affect the fingerprint.
    names = (split, *spellings(split))
    files: list[str] = []
    for part, paths in (builder.config.data_files or {}).items():
        if is_column or split == "all" or str(part) in names:
            files += map(str, paths)
    if is_column:
        return fingerprint_of(
            [split, fingerprint_files([Path(file).name for file in files], files)]
        )
    if files and all(Path(path).is_file() for path in files):
        return fingerprint_files([Path(path).name for path in files], files)
    return fingerprint_of([split, *map(str, source.values()), str(builder.hash), *files])


@dataclass(frozen=True, eq=False)
class ImageStream:
    """Stream the rows of a data set sequentially, for training.

    Attributes:
        image: name of the image column.
        caption: name of the caption column, or None.
        labels: name to use -> column name, for each label column.
        classes: column name -> class names, for each ClassLabel column.
        base: base folder for paths in the image column; None if `datasets` resolves them.
        dataset: the opened data set or stream.
        name, split, about, fingerprint: the data set, its split, metadata for reports, and a
            string that changes whenever the images change, as in `ImageData`.
        unknown: labels that mean a missing value in `images`, as chosen by the user.
    """

    image: str
    caption: str | None
    labels: Mapping[str, str]
    classes: Mapping[str, tuple[str, ...]]
    base: Path | None
    dataset: Dataset | IterableDataset
    name: str
    split: str
    about: Facts
    fingerprint: LazyText = LazyText()  # noqa: RUF009  (a descriptor, not a default)
    unknown: Collection[str] | None = None

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the class names of the label columns whose classes are known in advance."""
        names = {}
        for label, column in self.labels.items():
            if column in self.classes:
                names[label] = self.classes[column]
        return names

    @property
    def shards(self) -> int:
        """Return the number of independently readable parts, usually files."""
        return int(self.dataset.num_shards)

    def records(self, start: int = 0, shard: int | None = None) -> Iterator[Record]:
        """Yield rows in a fixed order; images are decoded only when a record is read.

        Args:
            start: number of rows to skip.
            shard: read only this part; `start` then counts rows within it. Default: all parts.
        """
        dataset = self.dataset
        prefix = ""
        if shard is not None and self.shards > 1:
            dataset = dataset.shard(num_shards=self.shards, index=shard)
            prefix = f"{shard}-"
        # Rows are identified by number, so that ids stay the same when a run resumes.
        for index, row in enumerate(dataset.skip(start), start):
            cell = row[self.image]
            # Filtered streams yield the paths or bytes themselves.
            if isinstance(cell, str):
                cell = Cell(bytes=None, path=cell)
            elif isinstance(cell, bytes):
                cell = Cell(bytes=cell, path=None)
            if self.base is not None and cell and cell["path"]:
                # Check before opening the file: an untrusted table must not access other files.
                refuse_outside(self.name, self.base, [cell["path"]])
            record = self._record(row, f"{prefix}{index:08d}", partial(self._read, cell))
            further = record.more_captions
            yield replace(
                record,
                caption=None if record.caption is None else cleaned(record.caption),
                more_captions=None if further is None else tuple(map(cleaned, further)),
            )

    def images(self) -> ImageData:
        """Return the images in a map-style data set.

        Labels and captions are loaded immediately, images on demand.
        """
        images = self.dataset.select_columns([self.image])
        paths = self._paths_of_images(images)
        records = self._records_without_images(len(images))
        labels = {}
        for label in self.labels:
            values = [record.labels[label] for record in records]
            names = self.names.get(label)
            column = Labels.from_values(values, names)
            place = f"{self.name}: column {self.labels[label]!r}"
            is_missing = missing_labels(
                column.counts, place, values=names or (), unknown=self.unknown
            )
            labels[label] = column.without(is_missing) if is_missing else column
        captions = [record.caption or "" for record in records] if self.caption else []
        more_captions = [record.more_captions or () for record in records]
        captions, more_captions = clean_captions(self.name, captions, more_captions)
        ids = [record.id for record in records]

        # Rows that share a file are captions of the same image.
        rows = np.arange(len(records))
        if captions and paths and all(paths):
            rows, captions, more_captions = one_row_per_image(
                self.name, paths, captions, more_captions, labels
            )

        def cell(index: int) -> Cell | None:
            return images[int(rows[index])][self.image]

        return ImageData(
            name=self.name,
            split=self.split,
            ids=tuple(ids[row] for row in rows),
            read=lambda index: self._read(cell(index)),
            labels={label: column[rows] for label, column in labels.items()},
            # Lazy, because hashing a large data set is slow.
            fingerprint=partial(self._fingerprint_of_files, paths, ids),
            captions=tuple(captions),
            more_captions=tuple(more_captions),
            about=self.about,
            path=lambda index: self._path(cell(index)),
        )

    def _fingerprint_of_files(self, paths: Sequence[str], ids: Sequence[str]) -> str:
        """Return a fingerprint of the data set and of the files its rows refer to."""
        base = self.base or Path()
        files = fingerprint_files(paths, [base / path for path in paths])
        return fingerprint_of([self.fingerprint, files, *ids])

    def _paths_of_images(self, images: Dataset) -> list[str]:
        """Return the path in each row, or "" if the row contains the image itself.

        The result is empty if `datasets` resolves paths.

        Raises:
            InvalidInputError: If a path leads outside the base folder.
        """
        if self.base is None:
            return []
        paths = []
        for cell in images.with_format("arrow")[:][self.image].to_pylist():
            path = cell["path"] if cell else None
            paths.append(path or "")
        refuse_no_paths(self.name, paths)
        refuse_outside(self.name, self.base, paths)
        return paths

    def _records_without_images(self, number: int) -> list[Record]:
        """Return the labels and captions of all rows, read in batches to limit memory use."""
        columns = list(dict.fromkeys(self.labels.values()))
        if self.caption:
            columns = list(dict.fromkeys([self.caption, *columns]))
        rows: list[dict[str, object]] = []
        if columns:
            # The arrow format avoids decoding unused columns.
            for batch in self.dataset.select_columns(columns).with_format("arrow").iter(1000):
                rows += batch.to_pylist()
        if not rows:
            rows = [{}] * number
        unreadable = partial(self._read, None)
        return [self._record(row, f"{i:08d}", unreadable) for i, row in enumerate(rows)]

    def _record(
        self, row: Mapping[str, object], number: str, read: Callable[[], Image.Image]
    ) -> Record:
        """Return the record for a row.

        Args:
            row: the cells of the row by column.
            number: position of the row, used as the record's id.
            read: function that loads the image in the row.
        """
        caption = None
        further_captions = None
        if self.caption is not None:
            column = f"{self.name}: column {self.caption!r}"
            caption, further_captions = captions_in(row[self.caption], column)
        labels: dict[str, str | None] = {}
        for label, column in self.labels.items():
            value = row[column]
            names = self.classes.get(column)
            if names is not None and isinstance(value, int):
                # Negative codes on the hub mean that labels are not public.
                value = None if value < 0 else names[value]
            # Spell booleans as in text tables: true, false.
            if isinstance(value, bool):
                value = str(value).lower()
            labels[label] = Labels.text_of(value).strip() or None
        return Record(number, read, labels, caption, further_captions)

    def _read(self, cell: Cell | None) -> Image.Image:
        """Return the image in a cell.

        Raises:
            OSError: If the cell is empty, or the image cannot be read.
        """
        if cell is not None and cell["bytes"] is not None:
            return decode(cell["bytes"])
        path = self._path(cell)
        if not path:
            raise OSError("the cell is empty")
        return decode(Path(path))

    def _path(self, cell: Cell | None) -> str:
        """Return the image path in a cell, or "" if the cell contains the image itself."""
        if cell is None or cell["bytes"] is not None or cell["path"] is None:
            return ""
        return os.path.abspath((self.base or Path()) / cell["path"])
