"""Hugging Face `datasets`: an id on the hub, local folders, tables, tars or `save_to_disk` folders; streamed or not."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vldebias.data.files import fingerprint_files
from vldebias.data.huggingface_columns import caption_column, image_column, missing_columns, top
from vldebias.data.huggingface_files import source_of, title_of
from vldebias.data.huggingface_rows import Rows, RowStream, dataset_fingerprint, dataset_images
from vldebias.data.images import ImageData, ImageStream, fingerprint_of
from vldebias.data.manifest import Columns, columns_of
from vldebias.data.tables import Names
from vldebias.errors import InvalidInputError

__all__ = ["LAYOUT", "SOURCE", "open_huggingface"]

LAYOUT = (
    "a dataset id, a folder of parquet, arrow, tar or image files, a .parquet, .arrow or .tar file, a pattern such as "
    "shards/{000..010}.tar, or a save_to_disk folder"
)
SOURCE = "huggingface.co/datasets"
_ALIASES = {"val": ("val", "validation", "valid", "dev"), "test": ("test",), "train": ("train",)}
_TARS = "__key__"  # a column that `datasets` adds to rows from tars


def open_huggingface(
    root: str | Path,
    split: str | None = None,
    *,
    image: str | None = None,
    caption: str | None = None,
    id: str | None = None,
    labels: Columns | None = None,
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
        caption: column of texts; "auto" finds caption, txt, text, json.caption or json.text. By default none, but of
            tars the one that "auto" would find.
        id: column of names that tell the rows apart, by default the number of the row.
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
    opened = _open(str(root), config, revision, streaming)
    split, dataset = _chosen(opened, split, str(root))
    rows = _rows(dataset, Path(root), image, caption, id, labels, names or {}, images)
    dataset = _undecoded(dataset, rows)
    title = name or title_of(str(root))
    about = {"root": str(root), "config": config, "revision": revision}
    if not streaming:
        return dataset_images(dataset, rows, title, split, about)
    if _saved(Path(root)):
        return RowStream(
            dataset.to_iterable_dataset(), rows, title, split, about, lambda: dataset_fingerprint(dataset, rows)
        )
    return RowStream(
        dataset, rows, title, split, about, lambda: _stream_fingerprint(str(root), split, config, revision)
    )


def _saved(root: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return (root / "state.json").exists() or (root / "dataset_dict.json").exists()


def _open(root: str, config: str | None, revision: str | None, streaming: bool) -> dict[str, Any]:
    """Split -> data set."""
    import datasets
    from datasets.exceptions import DatasetsError

    source = source_of(root, config, revision)
    try:
        if _saved(Path(root)):
            found = datasets.load_from_disk(root)
            return dict(found) if isinstance(found, dict) else {str(found.split or "all"): found}
        return dict(datasets.load_dataset(**source, streaming=streaming))
    except (OSError, ValueError, DatasetsError, tarfile.TarError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidInputError(f"huggingface: cannot open {root!r}: {reason}. Expected {LAYOUT}") from error


def _chosen(opened: Mapping[str, Any], split: str | None, root: str) -> tuple[str, Any]:
    """The name of the split as it was asked for, and its rows."""
    import datasets

    if split is None:
        split = next(iter(opened)) if len(opened) == 1 else "test"
    if split == "all":
        order = [there for here in ("train", "val", "test") for there in _ALIASES[here] if there in opened]
        parts = [opened[there] for there in (*order, *(there for there in opened if there not in order))]
        return split, parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    for there in _ALIASES.get(split, (split,)):
        if there in opened:
            return split, opened[there]
    there = " or ".join(dict.fromkeys((*opened, "all")))
    raise InvalidInputError(f"huggingface: {root}: expected split {there}, got {split!r}")


def _rows(
    dataset: Any,
    root: Path,
    image: str | None,
    caption: str | None,
    id: str | None,
    labels: Columns | None,
    names: Mapping[str, Names],
    images: str | Path | None,
) -> Rows:
    import datasets

    features = _features(dataset)
    classes = {c: tuple(f.names) for c, f in features.items() if isinstance(f, datasets.ClassLabel)}
    mapped = columns_of(labels if labels is not None else tuple(classes))
    image = image_column(features, image, str(root))
    caption = caption_column(features, caption, str(root), tars=_TARS in features)
    wanted = [image, *(column for column in (caption, id) if column is not None), *mapped.values()]
    missing = missing_columns(features, wanted)
    if missing:
        raise InvalidInputError(f"huggingface: {root}: expected columns {missing}; there are {list(features)}")
    strangers = sorted(set(names) - set(mapped))
    if strangers:
        raise InvalidInputError(
            f"huggingface: {root}: names are given for {strangers}, which are not among labels {list(mapped)}"
        )
    folder = Path(images) if images is not None else root if root.is_dir() else root.parent
    base = None if isinstance(features[image], datasets.Image) else folder
    return Rows(str(root), image, caption, id, mapped, names, classes, base)


def _features(dataset: Any) -> Mapping[str, Any]:
    """Column -> type; of a stream that does not say, from its first row."""
    if dataset.features is not None:
        return dataset.features
    return dict.fromkeys(next(iter(dataset), {}))


def _undecoded(dataset: Any, rows: Rows) -> Any:
    """The columns that are read, the images as {"bytes", "path"}: decoding is ours, so that all sources agree."""
    import datasets

    names = [name for name in (rows.image, rows.caption, rows.id, *rows.labels.values()) if name is not None]
    columns = dict.fromkeys(top(_features(dataset), name) for name in names)
    return dataset.select_columns(list(columns)).cast_column(rows.image, datasets.Image(decode=False))


def _stream_fingerprint(root: str, split: str, config: str | None, revision: str | None) -> str:
    """Of the files where they are local; else of what the hub says identifies them (the commit)."""
    import datasets

    builder = datasets.load_dataset_builder(**source_of(root, config, revision))
    wanted = None if split == "all" else _ALIASES.get(split, (split,))
    files = builder.config.data_files or {}
    paths = [str(path) for part, found in files.items() if wanted is None or str(part) in wanted for path in found]
    if paths and all(Path(path).is_file() for path in paths):
        return fingerprint_files([_below(root, path) for path in paths], paths)
    return fingerprint_of(["stream", root, split, str(config), str(revision), str(builder.hash), *paths])


def _below(root: str, path: str) -> str:
    """The path from the root, so that a copy of the folder has the same fingerprint."""
    folder = Path(root).resolve()
    folder = folder if folder.is_dir() else folder.parent
    resolved = Path(path).resolve()
    return resolved.relative_to(folder).as_posix() if resolved.is_relative_to(folder) else resolved.name
