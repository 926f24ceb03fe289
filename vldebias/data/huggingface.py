"""Open Hugging Face `datasets`: ids on the hub, local folders, tables, tars, streams."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.data.dataset import (
    ImageData,
    LazyText,
    Record,
    fingerprint_files,
    fingerprint_of,
    refuse_outside,
)
from vldebias.data.rows import files_of, is_pattern
from vldebias.data.tables import ColumnNames, Labels, captions_in, mapped_columns, one_row_per_image
from vldebias.edits.hub import offline_reason, reason
from vldebias.errors import InvalidInputError, need
from vldebias.pictures import decode

if TYPE_CHECKING:
    from PIL import Image

LAYOUT = (
    "a dataset id, a folder of parquet, arrow, tar or image files, a .parquet, .arrow or .tar file,"
    " or a pattern such as shards/*.tar"
)
CAPTIONS = ("caption", "txt", "text", "captions", "sentences")
_IMAGES = ("image", "jpg", "jpeg", "png", "webp")
_ALIASES = {"train": ("train",), "val": ("val", "validation", "valid", "dev"), "test": ("test",)}
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
) -> ImageData | ImageStream:
    """Open one split, or all of them joined in the order train, val, test, others.

    Tars are read in the way of webdataset: files of one name are a row, their endings are its
    columns (jpg, txt, cls).

    Args:
        root: data set to open; see LAYOUT.
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
        config, revision: configuration and commit (branch, tag) on the hub.
        streaming: read rows as they come, without a copy on the disk.
    """
    datasets, folder, where = need("datasets"), Path(root), f"huggingface: {root}"
    source, why = source_of(str(root), config, revision), ""
    try:
        with offline_reason("." if "data_files" in source else root) as why:
            loaded = datasets.load_dataset(**source, streaming=streaming)
    except (
        OSError,
        ValueError,
        need("datasets.exceptions").DatasetsError,
        tarfile.TarError,
    ) as error:
        trouble = f"there is no such file or folder, and {why}" if why else reason(error)
        raise InvalidInputError(
            f"{where}: cannot be opened: {trouble}. Expected {LAYOUT}"
        ) from error
    opened = dict(loaded) if isinstance(loaded, dict) else {str(loaded.split or "all"): loaded}
    split = split or (next(iter(opened)) if len(opened) == 1 else "test")
    order = [there for aliases in _ALIASES.values() for there in aliases if there in opened]
    parts = dict.fromkeys((*order, *opened)) if split == "all" else _ALIASES.get(split, (split,))
    found = [opened[there] for there in parts if there in opened]
    if not found:
        raise InvalidInputError(
            f"{where}: expected split {' or '.join((*opened, 'all'))}, got {split!r}"
        )
    dataset = (
        datasets.concatenate_datasets(found) if split == "all" and len(found) > 1 else found[0]
    )
    # A stream that does not say what columns it has shows them in its first row.
    features = dataset.features or dict.fromkeys(next(iter(dataset), {}), "unknown")
    classes = {
        c: tuple(map(str.strip, f.names))
        for c, f in features.items()
        if isinstance(f, datasets.ClassLabel)
    }
    if image is None:
        named = [name for name in _IMAGES if name in features]
        candidates = named or [
            name for name, kind in features.items() if isinstance(kind, datasets.Image)
        ]
        if len(candidates) != 1 and named[:1] != ["image"]:
            came = f"images may be in any of {candidates}" if candidates else "no column of images"
            raise InvalidInputError(
                f"{where}: {came}; name it with image=... There are {list(features)}"
            )
        image = candidates[0]
    if (caption == "auto" and caption not in features) or (caption is None and _TARS in features):
        among = [name for name in CAPTIONS if name in features]
        if caption == "auto" and not among:
            raise InvalidInputError(
                f"{where}: no captions in a column {', '.join(CAPTIONS)}; name it with caption=...,"
                " or make them from a label with label=... and caption_template='a photo of a"
                f" {{}}.' There are {list(features)}"
            )
        caption = among[0] if among else None
    columns = mapped_columns(labels if labels is not None else tuple(classes))
    needed = list(dict.fromkeys([image, *filter(None, [caption]), *columns.values()]))
    if missing := [column for column in needed if column not in features]:
        raise InvalidInputError(f"{where}: expected columns {missing}; there are {list(features)}")
    below = Path(images) if images is not None else folder if folder.is_dir() else folder.parent
    base = None if isinstance(features[image], datasets.Image) else below
    # Images as {"bytes", "path"}: decoding is ours, so that all sources agree.
    dataset = dataset.select_columns(needed).cast_column(image, datasets.Image(decode=False))
    name = folder.parent.name or "files" if is_pattern(root) else folder.stem
    about = {"root": str(root), "config": config, "revision": revision}
    mark = partial(_fingerprint, split, source)
    rows = ImageStream(image, caption, columns, classes, base, dataset, name, split, about, mark)
    return rows if streaming else rows.images()


def source_of(root: str, config: str | None, revision: str | None) -> dict[str, Any]:
    """Return arguments of load_dataset: files are opened by format (as split train), others by
    name."""
    if not is_pattern(root) and not Path(root).is_file():
        return {"path": root, "name": config, "revision": revision}
    files = list(map(str, files_of(root)))
    formats = {Path(file).suffix for file in files}
    if len(formats) > 1 or formats - set(_FORMATS):
        raise InvalidInputError(
            f"huggingface: {root}: expected files ending in {' or '.join(_FORMATS)}, got"
            f" {sorted(formats)}; open tables of paths as 'manifest'"
        )
    return {"path": _FORMATS[formats.pop()], "data_files": {"train": files}}


def _fingerprint(split: str, source: dict[str, Any]) -> str:
    """Return a fingerprint of the files if they are local; else of their identity on the hub (the
    commit)."""
    builder = need("datasets").load_dataset_builder(**source)
    parts, there = _ALIASES.get(split, (split,)), builder.config.data_files or {}
    files = [
        str(path)
        for part, names in there.items()
        if split == "all" or str(part) in parts
        for path in names
    ]
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
        return {
            here: self.classes[there]
            for here, there in self.labels.items()
            if there in self.classes
        }

    @property
    def shards(self) -> int:
        """Return the number of parts that can be read separately, mostly files."""
        return int(self.dataset.num_shards)

    def records(self, start: int = 0, shard: int | None = None) -> Iterator[Record]:
        """Yield the rows from `start` on, always in the same order; images are decoded when a
        record is read.

        shard: of this part alone, `start` counted within it; others are not opened.
        """
        dataset, prefix = self.dataset, ""
        if shard is not None and self.shards > 1:
            dataset, prefix = dataset.shard(num_shards=self.shards, index=shard), f"{shard}-"
        for index, row in enumerate(dataset.skip(start), start):
            cell = row[self.image]
            if self.base is not None and cell and cell["path"]:
                refuse_outside(self.name, self.base, [cell["path"]])
            yield self._record(row, f"{prefix}{index:08d}", partial(self._read, cell))

    def images(self) -> ImageData:
        """Return the images of a map-style data set: labels and captions are read at once, images
        on demand."""
        images, base, paths = (
            self.dataset.select_columns([self.image]),
            self.base or Path(),
            list[str](),
        )
        if self.base is not None:
            paths = [
                (cell or {}).get("path") or ""
                for cell in images.with_format("arrow")[:][self.image].to_pylist()
            ]
            refuse_outside(self.name, base, paths)
        columns = list(dict.fromkeys([*filter(None, [self.caption]), *self.labels.values()]))
        batches = (
            self.dataset.select_columns(columns).with_format("arrow").iter(1000) if columns else ()
        )
        cells = [row for batch in batches for row in batch.to_pylist()] or [{}] * len(images)
        rows = [self._record(row, f"{i:08d}", lambda: None) for i, row in enumerate(cells)]
        labels = {
            here: Labels.of([row.labels[here] for row in rows], self.names.get(here))
            for here in self.labels
        }
        captions = [row.caption or "" for row in rows] if self.caption else []
        more = (
            [row.more_captions or () for row in rows]
            if any(row.more_captions for row in rows)
            else []
        )
        ids, first = [row.id for row in rows], np.arange(len(rows))
        if captions and paths and all(paths):
            first, captions, more = one_row_per_image(self.name, paths, captions, more, labels)
        return ImageData(
            name=self.name,
            split=self.split,
            ids=tuple(ids[row] for row in first),
            read=lambda index: self._read(images[int(first[index])][self.image]),
            labels={here: column[first] for here, column in labels.items()},
            # Of the data set, and of the files that its rows name.
            fingerprint=lambda: fingerprint_of(
                [self.fingerprint, fingerprint_files(paths, [base / path for path in paths]), *ids]
            ),
            captions=tuple(captions),
            more_captions=tuple(more),
            about=self.about,
            path=lambda index: self._path(images[int(first[index])][self.image]),
        )

    def _record(self, row: Mapping[str, Any], number: str, read: Callable[[], Any]) -> Record:
        """Return the record of a row, whose image `read` reads."""
        caption, more = None, None
        if self.caption is not None:
            caption, more = captions_in(row[self.caption], f"{self.name}: column {self.caption!r}")
        labels: dict[str, str | None] = {}
        for here, there in self.labels.items():
            value, names = row[there], self.classes.get(there)
            if names is not None:
                value = None if value is None or value < 0 else names[value]
            labels[here] = (
                Labels.text_of(str(value).lower() if isinstance(value, bool) else value).strip()
                or None
            )
        return Record(number, read, labels, caption, more)

    def _read(self, cell: Mapping[str, Any] | None) -> Image.Image:
        """Return the image of a cell {"bytes", "path"}; OSError where it holds none that can be
        read."""
        if cell is not None and cell["bytes"] is not None:
            return decode(cell["bytes"])
        if not (path := self._path(cell)):
            raise OSError("the cell is empty")
        return decode(Path(path))

    def _path(self, cell: Mapping[str, Any] | None) -> str:
        """Return the path of the image of a cell; "" where the cell holds the image."""
        if cell is None or cell["bytes"] is not None or cell["path"] is None:
            return ""
        return os.path.abspath((self.base or Path()) / cell["path"])
