"""Open Hugging Face `datasets`: ids on the hub, local folders, tables, tars, streams."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.data.cleaning import clean_captions, cleaned
from vldebias.data.dataset import (
    ImageData,
    LazyText,
    Record,
    fingerprint_files,
    fingerprint_of,
    refuse_outside,
)
from vldebias.data.folders import folder_of_paths
from vldebias.data.layouts import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    cannot_open,
    expanded,
    fitting_columns,
    refuse_unreachable,
)
from vldebias.data.rows import files_of, is_pattern
from vldebias.data.tables import ColumnNames, Labels, captions_in, mapped_columns, one_row_per_image
from vldebias.data.tars import open_tars, stream_of_tars
from vldebias.errors import InvalidInputError, need
from vldebias.projection.hub import offline_reason, reason
from vldebias.utils.json_tables import column_around
from vldebias.utils.pictures import decode

if TYPE_CHECKING:
    from PIL import Image

CAPTIONS = ("caption", "txt", "text", "captions", "sentences")
_IMAGES = ("image", "jpg", "jpeg", "png", "webp")
ALIASES = {"train": ("train",), "val": ("val", "validation", "valid", "dev"), "test": ("test",)}
_TARS = "__key__"  # a column that `datasets` adds to rows from tars
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
    streaming: bool = False,
    files: Sequence[str] = (),
) -> ImageData | ImageStream:
    """Open one split, or all of them joined in the order train, val, test, others.

    Tars are read in the way of webdataset: files of one name are a row, their endings are its
    columns (jpg, txt, cls).

    Args:
        root: data set to open; see `LAYOUT` of vldebias.data.layouts.
        split: "train", "val" (also finds validation, valid, dev), "test", another of the data set,
            or "all"; by default test, or the only one there is. Files and patterns of files have
            one split, train.
        image: column of images, or of paths below `images`; by default found by its name or type.
        caption: column of texts or of lists of texts; "auto" finds the first of `CAPTIONS`, the
            default for tars only.
        labels: columns that are labels, as a list or as {name here: name there}; by default those
            of type ClassLabel.
        images: folder that texts in the image column start from, by default the folder that is
            opened.
        config: configuration on the hub.
        revision: commit, branch or tag on the hub.
        streaming: read rows as they come, without a copy on the disk.
        files: of a folder these alone, such as its parquet without the statistics beside.

    Raises:
        InvalidInputError: no such data set, split or column, or several columns that fit.
        MissingPackageError: `datasets` is not installed.
    """
    place = f"huggingface: {root}"
    files_of_split = _tars_of_splits(root)
    source = source_of(str(root), config, revision, files)
    if "data_files" not in source:
        refuse_unreachable(str(root))
    datasets = need("datasets")
    if files_of_split and not streaming:
        split = _only_or_test(files_of_split, split)
        return open_tars(
            place,
            _of_split(files_of_split, split, place, lambda parts: list(chain(*parts))),
            name=_name_of(root),
            split=split,
            image=image,
            caption=caption,
            labels=labels,
            about={"root": str(root), "config": config, "revision": revision},
        )
    if files_of_split:
        splits = {name: stream_of_tars(files) for name, files in files_of_split.items()}
    else:
        splits = _load(root, source, streaming)
    split = _only_or_test(splits, split)
    dataset = _of_split(splits, split, place, datasets.concatenate_datasets)

    wanted = [image, caption, *mapped_columns(labels or ()).values()]
    if not streaming and any(_is_nested(name, dataset.features) for name in wanted):
        dataset = dataset.flatten()  # columns with dotted names for the parts of objects
    # A stream that does not say what columns it has shows them in its first row.
    features = dataset.features or dict.fromkeys(next(iter(dataset), {}), "unknown")
    classes = _classes_in(features)
    image = _image_column(image, features, place)
    caption = _caption_column(caption, features, place)
    columns = mapped_columns(tuple(classes) if labels is None else labels)
    used = [image, *columns.values()]
    if caption:
        used.insert(1, caption)
    used = list(dict.fromkeys(used))
    missing = [name for name in used if name not in features]
    if missing:
        raise InvalidInputError(f"{place}: expected columns {missing}; there are {list(features)}")

    # Paths of a column of images are found by `datasets`.
    base = None
    if not isinstance(features[image], datasets.Image):
        base = folder_of_paths(root, images)
    # Images as {"bytes", "path"}: decoding is ours, so that all sources agree.
    dataset = dataset.select_columns(used).cast_column(image, datasets.Image(decode=False))
    stream = ImageStream(
        image=image,
        caption=caption,
        labels=columns,
        classes=classes,
        base=base,
        dataset=dataset,
        name=_name_of(root),
        split=split,
        about={"root": str(root), "config": config, "revision": revision},
        fingerprint=partial(_fingerprint, split, source),
    )
    return stream if streaming else stream.images()


def _is_nested(name: str | None, features: Mapping[str, Any]) -> bool:
    """Tell whether a column is a part of another one, by its dotted name."""
    return (
        name is not None
        and name not in features
        and column_around(list(features), name) is not None
    )


def _classes_in(features: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the names of the codes of each column that the data set declares as classes."""
    class_label = need("datasets").ClassLabel
    classes = {}
    for column, feature in features.items():
        if isinstance(feature, class_label):
            classes[column] = tuple(name.strip() for name in feature.names)
    return classes


def _load(root: str | Path, source: dict[str, Any], streaming: bool) -> dict[str, Any]:
    """Return the splits of a data set by name.

    Raises:
        InvalidInputError: it cannot be opened; the message says why.
    """
    datasets = need("datasets")
    library_errors = (need("datasets.exceptions").DatasetsError, tarfile.TarError)
    why_offline = ""
    try:
        # Local files need no hub, so that its answer is not waited for.
        with offline_reason("." if "data_files" in source else root) as why_offline:
            loaded = datasets.load_dataset(**source, streaming=streaming)
    except (OSError, ValueError, *library_errors) as error:
        trouble = reason(error)
        if why_offline:
            trouble = f"there is no such file or folder, and {why_offline}"
        raise cannot_open(root, trouble) from error
    if isinstance(loaded, dict):
        return dict(loaded)
    return {str(loaded.split or "all"): loaded}


def _only_or_test(splits: Mapping[str, Any], split: str | None) -> str:
    """Return the split that is named, else the only one there is, else test."""
    if split is not None:
        return split
    return next(iter(splits)) if len(splits) == 1 else "test"


def _of_split(
    splits: Mapping[str, Any], split: str, place: str, join: Callable[[list[Any]], Any]
) -> Any:
    """Return one split by any of its names, or all of them joined in the order train, val, test,
    others.

    Raises:
        InvalidInputError: there is no such split.
    """
    if split == "all":
        names: list[str] = []
        for aliases in ALIASES.values():
            names += aliases
        ordered = [name for name in names if name in splits]
        parts = [splits[name] for name in dict.fromkeys((*ordered, *splits))]
        return join(parts) if len(parts) > 1 else parts[0]
    for name in ALIASES.get(split, (split,)):
        if name in splits:
            return splits[name]
    raise InvalidInputError(
        f"{place}: expected split {' or '.join((*splits, 'all'))}, got {split!r}"
    )


def _tars_of_splits(root: str | Path) -> dict[str, list[str]]:
    """Return the tars of each split, where a file, a pattern or a folder is of tars; else nothing.

    img2dataset writes parquet and statistics beside its tars, which are no samples.
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
    """Return what a data set is called: the name of its file or folder, of a pattern the folder."""
    path = Path(root)
    if is_pattern(root) or len(expanded(root)) > 1:
        return path.parent.name or "files"
    return path.stem


def _image_column(image: str | None, features: Mapping[str, Any], place: str) -> str:
    """Return the column of images that the user names, or the one of a usual name, else of a type.

    Raises:
        InvalidInputError: none, or several.
    """
    if image is not None:
        return image
    # A column of this name is meant, whatever else there is.
    if "image" in features:
        return "image"
    kind = need("datasets").Image
    image_columns = []
    byte_columns = []
    for name, feature in features.items():
        if isinstance(feature, kind):
            image_columns.append(name)
        # Bytes in a table of captions are those of images, whatever their column is called.
        elif getattr(feature, "dtype", "") in ("binary", "large_binary"):
            byte_columns.append(name)
    candidates = (
        [name for name in _IMAGES if name in features]
        or image_columns
        or fitting_columns(list(features), IMAGE_COLUMNS)
        or byte_columns
    )
    if len(candidates) == 1:
        return candidates[0]
    problem = "no column of images"
    if candidates:
        problem = f"images may be in any of {candidates}"
    raise InvalidInputError(
        f"{place}: {problem}; name it with --image-column (in Python image=...). There are"
        f" {list(features)}"
    )


def _caption_column(caption: str | None, features: Mapping[str, Any], place: str) -> str | None:
    """Return the column of captions; with "auto", and of tars, the first that is called as captions
    are.

    Raises:
        InvalidInputError: "auto", and no column is called so.
    """
    # A column may itself be called "auto".
    is_auto = caption == "auto" and caption not in features
    is_tar = caption is None and _TARS in features
    if not is_auto and not is_tar:
        return caption
    for name in CAPTIONS:
        if name in features:
            return name
    fitting = fitting_columns(list(features), CAPTION_COLUMNS)
    if len(fitting) == 1:
        return fitting[0]
    if len(fitting) > 1:
        raise InvalidInputError(
            f"{place}: captions may be in any of {fitting}; name it with --caption-column"
            " (in Python caption=...)"
        )
    for name in features:
        if name in ("json.caption", "json.text"):
            return name
    if is_tar:
        return None
    raise InvalidInputError(
        f"{place}: no captions in a column {', '.join(CAPTIONS)}; name it with --caption-column"
        " (in Python caption=...), or make them from a label with label=... and"
        f" caption_template='a photo of a {{}}.' There are {list(features)}"
    )


def source_of(
    root: str, config: str | None, revision: str | None, files: Sequence[str] = ()
) -> dict[str, Any]:
    """Return arguments of load_dataset: files are opened by format (as split train), others by
    name.

    Args:
        root: an id of the hub, a folder, a file or a pattern.
        config: configuration of a data set of the hub.
        revision: version of a data set of the hub.
        files: of a folder, only these.
    """
    is_name = not is_pattern(root) and len(expanded(root)) == 1 and not Path(root).is_file()
    if is_name and not files:
        return {"path": root, "name": config, "revision": revision}
    files = files or files_of_patterns(root)
    formats = {Path(file).suffix for file in files}
    if len(formats) > 1 or formats - set(_FORMATS):
        raise InvalidInputError(
            f"huggingface: {root}: expected files ending in {' or '.join(_FORMATS)}, got"
            f" {sorted(formats)}; open tables of paths as 'manifest'"
        )
    return {"path": _FORMATS[formats.pop()], "data_files": {"train": list(files)}}


def files_of_patterns(root: str | Path) -> list[str]:
    """Return the files of a name or pattern, also one with braces, in their order."""
    return list(chain.from_iterable(map(str, files_of(pattern)) for pattern in expanded(root)))


def _fingerprint(split: str, source: dict[str, Any]) -> str:
    """Return a fingerprint of the files if they are local; else of their identity on the hub (the
    commit)."""
    builder = need("datasets").load_dataset_builder(**source)
    # The files of the split alone: another split may grow without changing this one.
    names = ALIASES.get(split, (split,))
    files: list[str] = []
    for part, paths in (builder.config.data_files or {}).items():
        if split == "all" or str(part) in names:
            files += map(str, paths)
    if files and all(Path(path).is_file() for path in files):
        return fingerprint_files([Path(path).name for path in files], files)
    return fingerprint_of([split, *map(str, source.values()), str(builder.hash), *files])


@dataclass(frozen=True, eq=False)
class ImageStream:
    """Yield the rows of a data set one after another, for training; fields are as in ImageData.

    image, caption: columns. labels: name here -> column.
    classes: column -> names of its codes, for the columns that the data set itself declares as
    classes.
    base: folder that paths in the image column start from; None where `datasets` resolves them.
    """

    image: str
    caption: str | None
    labels: Mapping[str, str]
    classes: Mapping[str, tuple[str, ...]]
    base: Path | None
    dataset: Any
    name: str
    split: str
    about: Mapping[str, Any]
    fingerprint: LazyText = LazyText()  # noqa: RUF009  (a descriptor is no default)

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Return column -> names of its labels where they are known beforehand."""
        names = {}
        for label, column in self.labels.items():
            if column in self.classes:
                names[label] = self.classes[column]
        return names

    @property
    def shards(self) -> int:
        """Return the number of parts that can be read separately, mostly files."""
        return int(self.dataset.num_shards)

    def records(self, start: int = 0, shard: int | None = None) -> Iterator[Record]:
        """Yield the rows from `start` on, always in the same order; images are decoded when a
        record is read.

        Args:
            start: number of rows to skip.
            shard: only this part, with `start` counted within it; no other part is opened.
        """
        dataset = self.dataset
        prefix = ""
        if shard is not None and self.shards > 1:
            dataset = dataset.shard(num_shards=self.shards, index=shard)
            prefix = f"{shard}-"
        # The number of a row is its name, so that a run that goes on names rows as before.
        for index, row in enumerate(dataset.skip(start), start):
            cell = row[self.image]
            if self.base is not None and cell and cell["path"]:
                # Before the file is opened: a table from elsewhere
                # must not read other files of this machine.
                refuse_outside(self.name, self.base, [cell["path"]])
            record = self._record(row, f"{prefix}{index:08d}", partial(self._read, cell))
            further = record.more_captions
            yield replace(
                record,
                caption=None if record.caption is None else cleaned(record.caption),
                more_captions=None if further is None else tuple(map(cleaned, further)),
            )

    def images(self) -> ImageData:
        """Return the images of a map-style data set: labels and captions are read at once, images
        on demand."""
        images = self.dataset.select_columns([self.image])
        paths = self._paths_of_images(images)
        records = self._records_without_images(len(images))
        labels = {}
        for label in self.labels:
            values = [record.labels[label] for record in records]
            labels[label] = Labels.from_values(values, self.names.get(label))
        captions = [record.caption or "" for record in records] if self.caption else []
        more_captions = [record.more_captions or () for record in records]
        captions, more_captions = clean_captions(self.name, captions, more_captions)
        ids = [record.id for record in records]

        # Rows that name one file are captions of one image.
        rows = np.arange(len(records))
        if captions and paths and all(paths):
            rows, captions, more_captions = one_row_per_image(
                self.name, paths, captions, more_captions, labels
            )

        def cell(index: int) -> Any:
            return images[int(rows[index])][self.image]

        def read(index: int) -> Image.Image:
            return self._read(cell(index))

        def path(index: int) -> str:
            return self._path(cell(index))

        return ImageData(
            name=self.name,
            split=self.split,
            ids=tuple(ids[row] for row in rows),
            read=read,
            labels={label: column[rows] for label, column in labels.items()},
            # A large data set is not hashed before somebody asks.
            fingerprint=partial(self._fingerprint_of_files, paths, ids),
            captions=tuple(captions),
            more_captions=tuple(more_captions),
            about=self.about,
            path=path,
        )

    def _fingerprint_of_files(self, paths: Sequence[str], ids: Sequence[str]) -> str:
        """Return a fingerprint of the data set, and of the files that its rows name."""
        base = self.base or Path()
        files = fingerprint_files(paths, [base / path for path in paths])
        return fingerprint_of([self.fingerprint, files, *ids])

    def _paths_of_images(self, images: Any) -> list[str]:
        """Return the path that each row names, "" where it holds the image; none where `datasets`
        resolves paths. Paths outside of the folder are refused."""
        if self.base is None:
            return []
        paths = []
        for cell in images.with_format("arrow")[:][self.image].to_pylist():
            path = cell["path"] if cell else None
            paths.append(path or "")
        refuse_outside(self.name, self.base, paths)
        return paths

    def _records_without_images(self, number: int) -> list[Record]:
        """Return labels and captions of all rows; read in batches, since a column of texts may be
        large."""
        columns = list(dict.fromkeys(self.labels.values()))
        if self.caption:
            columns = list(dict.fromkeys([self.caption, *columns]))
        rows: list[dict[str, Any]] = []
        if columns:
            # As arrow: rows of Python objects would decode what nobody asks for.
            for batch in self.dataset.select_columns(columns).with_format("arrow").iter(1000):
                rows += batch.to_pylist()
        if not rows:
            rows = [{}] * number
        return [self._record(row, f"{i:08d}", lambda: None) for i, row in enumerate(rows)]

    def _record(self, row: Mapping[str, Any], number: str, read: Callable[[], Any]) -> Record:
        """Return the record of a row, whose image `read` reads."""
        caption = None
        further_captions = None
        if self.caption is not None:
            column = f"{self.name}: column {self.caption!r}"
            caption, further_captions = captions_in(row[self.caption], column)
        labels: dict[str, str | None] = {}
        for label, column in self.labels.items():
            value = row[column]
            names = self.classes.get(column)
            if names is not None and value is not None:
                # A negative code is the hub's convention for labels that are kept back.
                if value < 0:
                    value = None
                else:
                    value = names[value]
            # As tables of text write it: true, false.
            if isinstance(value, bool):
                value = str(value).lower()
            labels[label] = Labels.text_of(value).strip() or None
        return Record(number, read, labels, caption, further_captions)

    def _read(self, cell: Mapping[str, Any] | None) -> Image.Image:
        """Return the image of a cell {"bytes", "path"}; OSError where it holds none that can be
        read."""
        if cell is not None and cell["bytes"] is not None:
            return decode(cell["bytes"])
        path = self._path(cell)
        if not path:
            raise OSError("the cell is empty")
        return decode(Path(path))

    def _path(self, cell: Mapping[str, Any] | None) -> str:
        """Return the path of the image of a cell; "" where the cell holds the image."""
        if cell is None or cell["bytes"] is not None or cell["path"] is None:
            return ""
        return os.path.abspath((self.base or Path()) / cell["path"])
