"""Open images with captions in any supported format."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain, compress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from vldebias.data.cleaning import clean_captions
from vldebias.data.dataset import ImageData, file_images
from vldebias.data.folders import (
    captions_beside,
    folder_of_images,
    is_picture,
    unread_pictures,
)
from vldebias.data.huggingface import ImageStream, open_huggingface
from vldebias.data.labels import ColumnNames
from vldebias.data.layouts import Layout, find_layout, without_number
from vldebias.data.manifest import images_of_table, labels_of
from vldebias.data.splits import ALIASES, SPLIT, no_split_column, rows_of_split, spellings
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, Lazily, shown, warn, warn_of_input
from vldebias.utils.files import read_json
from vldebias.utils.table_rows import find_column
from vldebias.utils.text_tables import decoded_text

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Lazily("pyarrow")

# Descriptions of layouts that have no columns.
_WITHOUT_COLUMNS = {"coco": "COCO's captions", "pairs": "images with text files next to them"}
_MAX_COCO = 2_000_000_000  # bytes; captions_train2017.json has 92 million


def open_captions(  # noqa: PLR0913  (each locates the data or describes their format)
    root: str | Path,
    split: str | None = None,
    *,
    image: str | None = None,
    caption: str | None = None,
    labels: ColumnNames | None = None,
    images: str | Path | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    reads_captions: bool = True,
    unknown: Collection[str] | None = None,
    allow_outside: bool = False,
    streaming: bool = False,
) -> ImageData | ImageStream:
    """Open images with captions in any supported format, as `vldebias train --data` does.

    The formats are tables (csv, tsv, txt, jsonl, json, parquet) with the column names of common
    tools; COCO's captions_*.json; folders with a text file next to each image; tars and parquet
    files from img2dataset and webdataset (a file, a folder, or a pattern such as
    "shard-{0000..0012}.tar"); and Hugging Face data sets. HTML entities, tags and URL escapes are
    removed from captions.

    Args:
        root: a file, a folder, a pattern, or an id on the hub.
        split: "train", "val", "test" or "all". Default: all rows, if the data have no splits.
        image: image column. Default: found by name, as with "auto".
        caption: caption column. Default: found by name, as with "auto".
        labels: label columns, as a list or as {name to use: name in the data}.
        images: base folder for paths in a table. Default: the table's folder, or the only nearby
            folder that contains the images.
        separator: table separator. Default: detected.
        encoding: table encoding. Default: detected.
        reads_captions: whether to read captions in addition to images and labels.
        unknown: labels that mean a missing value. Default: as for `open_manifest`.
        allow_outside: whether to allow absolute paths and paths with "..".
        streaming: whether to read rows sequentially, without copying them to disk.

    Raises:
        InvalidInputError: If files or columns are missing, the format is not supported, or the
            reader for the format rejects the data.
    """
    if caption == "auto":
        caption = None
    layout = find_layout(
        root,
        image=image,
        caption=caption,
        separator=separator,
        encoding=encoding,
        reads_captions=reads_captions,
    )
    path = Path(root).expanduser()
    folder = None if images is None else Path(images)
    if layout.kind in _WITHOUT_COLUMNS:
        # Reject column options that this layout would silently ignore.
        columns = {"image": image, "caption": caption, "labels": labels}
        named = [f"{name} {column!r}" for name, column in columns.items() if column]
        if named:
            raise InvalidInputError(
                f"{root}: got {', '.join(named)}, but {_WITHOUT_COLUMNS[layout.kind]} have no"
                " columns; omit these options, or write a table with the path, caption and labels"
                " of each image"
            )
    if layout.kind == "coco":
        return _open_coco(path, split, layout, folder, allow_outside)
    if layout.kind == "pairs":
        return _open_pairs(path, split, layout, encoding)
    if layout.kind != "table":
        return open_huggingface(
            root,
            split,
            image=image,
            caption=(caption or "auto") if reads_captions else None,
            labels=labels,
            images=images,
            unknown=unknown,
            streaming=streaming,
            files=layout.files if layout.kind == "datasets" else (),
        )
    # If a table of paths has no split column, all rows are training data.
    table = read_table(path, separator=separator, encoding=encoding)
    if layout.header:
        table = with_header(table, layout.header)
    has_splits = find_column(table.column_names, SPLIT) is not None
    if split not in (None, "all") and (split != "train" or has_splits):
        if not has_splits:
            raise no_split_column(path, str(split), table.column_names)
        table = table.take(rows_of_split(path, str(split), labels_of(table, SPLIT, None, path)))
    image = str(layout.image)
    files = [without_number(file) for file in as_texts(column_of(table, image, path), "")]
    columns = dict(zip(table.column_names, table.columns, strict=True))
    table = pa.table({**columns, image: pa.array(files)})
    if folder is None:
        folder = _folder_of_images(path, files)
    return images_of_table(
        path,
        split or "all",
        table,
        image=image,
        caption=layout.caption,
        labels=labels or (),
        folder=folder,
        unknown=unknown,
        allow_outside=allow_outside,
    )


def with_header(table: pa.Table, header: Sequence[str]) -> pa.Table:
    """Rename a table's columns and insert the old names, which are data, as the first row.

    Args:
        table: the table, loaded from a file without column names.
        header: the column names.
    """
    first = {name: [value] for name, value in zip(header, table.column_names, strict=True)}
    return pa.concat_tables([pa.table(first), table.rename_columns(list(header))])


def _folder_of_images(table: Path, files: Sequence[str]) -> Path:
    """Return the base folder for paths in a table; warn if it is not the table's folder."""
    folder = folder_of_images(table, files)
    if folder != table.parent:
        warn(f"{table}: the images were found in {folder}; use --image-root for a different folder")
    return folder


def _open_coco(
    path: Path, split: str | None, layout: Layout, folder: Path | None, allow_outside: bool
) -> ImageData:
    """Open COCO captions: a list of images, and a list of captions with image ids.

    Raises:
        InvalidInputError: If the lists are missing, or the split does not have exactly one file.
    """
    files = [Path(file) for file in layout.files]
    if path.is_dir() and split not in (None, "all"):
        files = [file for file in files if file.name.startswith(f"captions_{split}")]
    if len(files) != 1:
        names = [Path(file).name for file in layout.files]
        raise InvalidInputError(
            f"{path}: expected one file for split {split!r}, got {names}; pass the file itself"
        )
    file = files[0]
    pairs = read_coco(file)
    table = pa.table({"image": [name for name, _ in pairs], "caption": [text for _, text in pairs]})
    if folder is None:
        folder = _folder_of_images(file, table.column("image").to_pylist())
    return images_of_table(
        file,
        split or "all",
        table,
        image="image",
        caption="caption",
        labels=(),
        folder=folder,
        allow_outside=allow_outside,
    )


def read_coco(file: Path) -> list[tuple[str, str]]:
    """Return the image path and text of each caption in a COCO file.

    Raises:
        InvalidInputError: If the file does not have this format, or no listed image has a caption.
    """
    content = read_json(file, max_bytes=_MAX_COCO)
    if not isinstance(content, dict):
        raise InvalidInputError(f"{file}: expected COCO's captions, got a {type(content).__name__}")
    try:
        name_of_image = {entry["id"]: str(entry["file_name"]) for entry in content["images"]}
        captions = [(entry["image_id"], entry["caption"]) for entry in content["annotations"]]
        is_listed = [image in name_of_image for image, _ in captions]
    except (KeyError, TypeError):
        raise InvalidInputError(
            f"{file}: expected COCO's captions (images with id and file_name, annotations with"
            f" image_id and caption), got the keys {sorted(content)[:8]}"
        ) from None
    for number, (_, text) in enumerate(captions, 1):
        if not isinstance(text, str):
            raise InvalidInputError(
                f"{file}: annotation {number}: expected a caption in text, got {shown(text)}"
            )
    pairs = [(name_of_image[image], text) for image, text in compress(captions, is_listed)]
    unknown = [image for (image, _), known in zip(captions, is_listed, strict=True) if not known]
    if unknown:
        warn_of_input(
            f"{file}: {len(unknown)} of {len(captions)} captions refer to images that are not"
            f" listed, such as {shown(unknown[0])}, and are left out",
        )
    if not pairs:
        raise InvalidInputError(f"{file}: expected captions for the listed images, got none")
    return pairs


def _open_pairs(path: Path, split: str | None, layout: Layout, encoding: str | None) -> ImageData:
    """Open a folder of images with a text file next to each image.

    Raises:
        InvalidInputError: If the split does not exist.
    """
    wanted = split or "all"
    text_of_image = captions_beside(layout.files)
    # Top-level folders named after a split are treated as splits.
    top_folders = {PurePosixPath(image).parts[0] for image in text_of_image}
    splits = top_folders & set(chain.from_iterable(ALIASES.values()))
    if splits and wanted != "all":
        names = spellings(wanted)
        if splits.isdisjoint(names):
            raise InvalidInputError(
                f"{path}: expected split {' or '.join(sorted(splits))} or all, got {wanted!r}"
            )
        for image in list(text_of_image):
            if PurePosixPath(image).parts[0] not in names:
                del text_of_image[image]
    if not splits and wanted not in ("all", "train"):
        raise InvalidInputError(
            f"{path}: expected a folder for split {split!r}; without such a folder, all images are"
            " training data. Use split 'all', or pass another folder as val_data"
        )
    pictures = list(filter(is_picture, layout.files))
    without_text = [file for file in pictures if file not in text_of_image]
    if without_text and not splits:
        warn_of_input(
            f"{path}: {len(without_text)} of {len(pictures)} images have no text file next to them"
            f" and are left out, such as {', '.join(without_text[:3])}",
        )
    unread = unread_pictures(layout.files)
    if unread:
        warn_of_input(
            f"{path}: skipped {len(unread)} images with captions, because their format is not read,"
            f" such as {', '.join(unread[:3])}; convert them to .jpg or .png",
        )
    captions, further = _captions_in(path, list(text_of_image.values()), encoding)
    captions, further = clean_captions(str(path), captions, further)
    return file_images(
        path.name,
        wanted,
        path,
        list(text_of_image),
        {},
        captions=tuple(captions),
        more_captions=tuple(further),
    )


def _captions_in(
    path: Path, files: Sequence[str], encoding: str | None
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the caption and any further captions from each text file in a folder."""
    texts = []
    for file in files:
        texts.append(decoded_text((path / file).read_bytes(), str(path / file), encoding).strip())
    captions: list[str] = []
    further: list[tuple[str, ...]] = []
    for text in texts:
        # Each line is a caption, as in sd-scripts with --enable_wildcard.
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        captions.append(lines[0] if lines else "")
        further.append(tuple(lines[1:]))
    several = [file for file, more in zip(files, further, strict=True) if more]
    if several:
        warn_of_input(
            f"{path}: {len(several)} of {len(texts)} text files have several lines, such as"
            f" {several[0]}; each line is read as a caption of the image",
        )
    return captions, further
