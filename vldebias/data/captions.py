"""Open images with captions, whatever their format."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from vldebias.data.cleaning import clean_captions
from vldebias.data.dataset import ImageData, file_images
from vldebias.data.folders import captions_beside, folder_of_images, is_picture
from vldebias.data.huggingface import ALIASES, ImageStream, open_huggingface
from vldebias.data.labels import ColumnNames
from vldebias.data.layouts import Layout, find_layout, without_number
from vldebias.data.manifest import images_of_table, labels_of, rows_of_split
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, Lazily, SuspectInputWarning, warn
from vldebias.utils.files import read_json
from vldebias.utils.text_tables import decoded_texts

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Lazily("pyarrow")

SPLIT = "split"  # column of a table of captions that names the splits
# Layouts that have no columns, in words.
_WITHOUT_COLUMNS = {"coco": "COCO's captions", "pairs": "images with a text beside each"}
_MAX_COCO = 2_000_000_000  # bytes: captions_train2017.json has 92 million


def open_captions(  # noqa: PLR0913  (each says where something is, or how it is written)
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
    allow_outside: bool = False,
    streaming: bool = False,
) -> ImageData | ImageStream:
    """Open images with captions, whatever their format; `vldebias train --data` does this.

    Tables (csv, tsv, txt, jsonl, json, parquet) by the names that tools give their columns, COCO's
    captions_*.json, folders with a text beside each image, tars and parquet of img2dataset and
    webdataset (a file, a folder, a pattern such as "shard-{0000..0012}.tar"), and data sets of
    Hugging Face. Captions are cleaned of HTML entities, tags and URL escapes.

    Args:
        root: a file, a folder, a pattern, or an id of the hub.
        split: "train", "val", "test" or "all"; by default all rows of what has no splits.
        image: column of the images. None or "auto": found by its name.
        caption: column of the captions. None or "auto": found by its name.
        labels: columns that are labels, as a list or as {name here: name there}.
        images: folder that paths of a table start from; by default that of the table, or the only
            folder beside it that has them.
        separator: between the cells of a table. None: what fits.
        encoding: of a table. None: what fits.
        reads_captions: False opens images and labels alone.
        allow_outside: take absolute paths and paths with "..", which are refused otherwise.
        streaming: read rows as they come, without a copy on the disk.

    Raises:
        InvalidInputError: what `find_layout` refuses, and what the reader of that layout does.
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
        # A column that is named would be ignored.
        columns = {"image": image, "caption": caption, "labels": labels}
        named = [f"{name} {column!r}" for name, column in columns.items() if column]
        if named:
            raise InvalidInputError(
                f"{root}: got {', '.join(named)}; {_WITHOUT_COLUMNS[layout.kind]} have no columns:"
                " leave this out, or write a table with a row for each image, its path, its"
                " caption and its labels"
            )
    if layout.kind == "table":
        return _open_table(
            path,
            split,
            layout,
            labels=labels or (),
            folder=folder,
            allow_outside=allow_outside,
            separator=separator,
            encoding=encoding,
        )
    if layout.kind == "coco":
        return _open_coco(path, split, layout, folder, allow_outside)
    if layout.kind == "pairs":
        return _open_pairs(path, split, layout, encoding)
    wanted_caption = (caption or "auto") if reads_captions else None
    return open_huggingface(
        root,
        split,
        image=image,
        caption=wanted_caption,
        labels=labels,
        images=images,
        streaming=streaming,
        files=layout.files if layout.kind == "datasets" else (),
    )


def _open_table(
    path: Path,
    split: str | None,
    layout: Layout,
    *,
    labels: ColumnNames,
    folder: Path | None,
    allow_outside: bool,
    separator: str | None,
    encoding: str | None,
) -> ImageData:
    """Open a table of paths; without a column of splits all rows are for training."""
    table = read_table(path, separator=separator, encoding=encoding)
    if layout.header:
        # The first row was taken for the names of the columns.
        first = pa.table(
            {name: [value] for name, value in zip(layout.header, table.column_names, strict=True)}
        )
        table = pa.concat_tables([first, table.rename_columns(list(layout.header))])
    if split not in (None, "all") and (split != "train" or SPLIT in table.column_names):
        table = table.take(rows_of_split(path, str(split), labels_of(table, SPLIT, None, path)))
    image = str(layout.image)
    place = table.column_names.index(image)
    files = [without_number(file) for file in as_texts(column_of(table, image, path), "")]
    table = table.set_column(place, image, pa.array(files))
    if folder is None:
        folder = _folder_of_images(path, files)
    return images_of_table(
        path,
        split or "all",
        table,
        image=image,
        caption=layout.caption,
        labels=labels,
        folder=folder,
        allow_outside=allow_outside,
    )


def _folder_of_images(table: Path, files: Sequence[str]) -> Path:
    """Return the folder that the paths of a table start from; say which, where it is not its
    own."""
    folder = folder_of_images(table, files)
    if folder != table.parent:
        warn(f"{table}: its images were found in {folder}; --image-root names another folder")
    return folder


def _open_coco(
    path: Path, split: str | None, layout: Layout, folder: Path | None, allow_outside: bool
) -> ImageData:
    """Open COCO's captions: a list of images, and a list of captions that name them by number.

    Raises:
        InvalidInputError: no such lists, or several files of which none is of the split.
    """
    files = [Path(file) for file in layout.files]
    if path.is_dir() and split not in (None, "all"):
        files = [file for file in files if file.name.startswith(f"captions_{split}")]
    if len(files) != 1:
        names = [Path(file).name for file in layout.files]
        raise InvalidInputError(
            f"{path}: there are {names}; expected one of split {split!r}; name the file itself"
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
    """Return the path of the image and the text of each caption in a file of COCO.

    Raises:
        InvalidInputError: another content, or no captions.
    """
    content = read_json(file, max_bytes=_MAX_COCO)
    if not isinstance(content, dict):
        raise InvalidInputError(f"{file}: expected COCO's captions, got a {type(content).__name__}")
    try:
        name_of_image = {entry["id"]: str(entry["file_name"]) for entry in content["images"]}
        captions = [(entry["image_id"], entry["caption"]) for entry in content["annotations"]]
    except (KeyError, TypeError):
        raise InvalidInputError(
            f"{file}: expected COCO's captions: images with id and file_name, annotations with"
            f" image_id and caption; got the keys {sorted(content)[:8]}"
        ) from None
    pairs = []
    unknown = []
    for number, text in captions:
        if number in name_of_image:
            pairs.append((name_of_image[number], text))
        else:
            unknown.append(number)
    if unknown:
        warn(
            f"{file}: {len(unknown)} of {len(captions)} captions are of images that are not listed,"
            f" such as {unknown[0]}; they are left out",
            SuspectInputWarning,
        )
    if not pairs:
        raise InvalidInputError(f"{file}: has no captions of its images")
    return pairs


def _open_pairs(path: Path, split: str | None, layout: Layout, encoding: str | None) -> ImageData:
    """Open a folder of images with a text file beside each; folders train, val and test in it are
    splits.

    Raises:
        InvalidInputError: no such split.
    """
    text_of_image = captions_beside(layout.files)
    # The first folder of each path, which may be called as a split; a file has none.
    folder_of_image = {image: PurePosixPath(image).parts[0] for image in text_of_image}
    splits = set(folder_of_image.values()) & set(chain.from_iterable(ALIASES.values()))
    wanted = split or "all"
    if splits and wanted != "all":
        names = ALIASES.get(wanted, (wanted,))
        if splits.isdisjoint(names):
            raise InvalidInputError(
                f"{path}: expected split {' or '.join(sorted(splits))} or all, got {split!r}"
            )
        for image, folder in folder_of_image.items():
            if folder not in names:
                del text_of_image[image]
    elif wanted not in ("all", "train"):
        raise InvalidInputError(
            f"{path}: has no folder of a split {split!r}; without splits all images are for"
            " training: take split 'all', or name another folder (val_data)"
        )
    images_alone = [file for file in filter(is_picture, layout.files) if file not in text_of_image]
    if images_alone and not splits:
        warn(
            f"{path}: {len(images_alone)} of {len(images_alone) + len(text_of_image)} images have"
            f" no text beside them and are left out, such as {', '.join(images_alone[:3])}",
            SuspectInputWarning,
        )
    contents = [(path / text).read_bytes() for text in text_of_image.values()]
    texts = decoded_texts(contents, str(path), encoding)
    # Captions on lines of their own, as sd-scripts writes them (--enable_wildcard).
    captions: list[str] = []
    further: list[tuple[str, ...]] = []
    for text in texts:
        lines = [line.strip() for line in text.split("\n") if line.strip()] or [""]
        captions.append(lines[0])
        further.append(tuple(lines[1:]))
    several = [file for file, more in zip(text_of_image.values(), further, strict=True) if more]
    if several:
        warn(
            f"{path}: {len(several)} of {len(texts)} texts have several lines, such as"
            f" {several[0]}; each line is read as a caption of the image",
            SuspectInputWarning,
        )
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
