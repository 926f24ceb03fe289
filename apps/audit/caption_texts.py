"""Load a data set's captions without its images."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vldebias.data.caption_cells import captions_in, says_something, texts_of_list
from vldebias.data.captions import open_captions, read_coco, with_header
from vldebias.data.dataset import ImageData
from vldebias.data.layouts import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    TABLES,
    Layout,
    find_layout,
    is_coco,
    without_number,
)
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError
from vldebias.utils.table_rows import fitting_columns
from vldebias.utils.text_tables import read_text

Captions = list[tuple[str, ...]]


def read_captions(path: Path, column: str | None = None) -> Captions:
    """Return the captions for each image in a data set, without loading the images.

    Args:
        path: a table, COCO's captions_*.json, a text file with one caption per line, a folder with
            a text file next to each image, or tars.
        column: caption column. Default: the only column with a common caption name.

    Returns:
        A tuple of captions for each image, or for each row of a table without images. The tuple is
        empty for images without captions.

    Raises:
        InvalidInputError: If the column does not exist, several columns are possible, or there are
            no captions.
    """
    ending = path.suffix.lower()
    if not path.is_file() or ending not in (*TABLES, ".parquet"):
        captions = _of_images(path, column)
    elif ending == ".json" and is_coco(path, None):
        captions = _grouped(read_coco(path))
    else:
        captions = _of_table(path, column)
    captions = [tuple(filter(says_something, texts)) for texts in captions]
    if not any(captions):
        raise InvalidInputError(f"{path}: got no captions; expected at least one per image")
    return captions


def _of_images(path: Path, column: str | None) -> Captions:
    """Return the captions from a data set that can only be opened together with its images."""
    data = open_captions(path, caption=column)
    if not isinstance(data, ImageData) or not data.captions:
        raise InvalidInputError(f"{path}: got no captions; expected at least one per image")
    further = data.more_captions or [()] * len(data)
    pairs = zip(data.captions, further, strict=True)
    return [(first, *further_texts) for first, further_texts in pairs]


def _of_table(path: Path, column: str | None) -> Captions:
    """Return the captions from a table, or from a text file with one caption per line."""
    layout = _layout_for_training(path, column)
    if layout is None:
        layout = Layout("table")
        if path.suffix.lower() == ".txt" and column is None:
            lines = read_text(path).split("\n")
            return [(line,) for line in lines if line.strip()]
    table = read_table(path)
    if layout.header:
        table = with_header(table, layout.header)
    name = column or layout.caption or _caption_column(path, table.column_names)
    captions = []
    for cell in column_of(table, name, path).to_pylist():
        first, further = captions_in(texts_of_list(cell) or cell, f"{path}: column {name!r}")
        captions.append((first, *(further or ())))
    images = fitting_columns(table.column_names, IMAGE_COLUMNS)
    if layout.image:
        images = [layout.image]
    if len(images) != 1:
        return captions
    files = as_texts(column_of(table, images[0], path), str(path))
    pairs = []
    for row, texts in enumerate(captions):
        # Give each row without an image its own name, so that it is not grouped with others.
        image = without_number(files[row]) or f"row {row}"
        pairs += [(image, text) for text in texts]
    return _grouped(pairs)


def _layout_for_training(path: Path, column: str | None) -> Layout | None:
    """Return the layout of a table of images and captions, or None for parquet and other tables.

    Tables for which this function returns None contain captions without images, or image URLs.
    """
    if path.suffix.lower() == ".parquet":
        return None
    try:
        return find_layout(path, caption=column)
    except InvalidInputError:
        return None


def _grouped(pairs: Iterable[tuple[str, str]]) -> Captions:
    """Group (image, caption) pairs into the captions for each image."""
    captions_of_image: dict[str, list[str]] = {}
    for image, caption in pairs:
        captions_of_image.setdefault(image, []).append(caption)
    return [tuple(texts) for texts in captions_of_image.values()]


def _caption_column(path: Path, names: list[str]) -> str:
    """Return the only column with a common name for captions or prompts.

    Raises:
        InvalidInputError: If there is no such column, or several.
    """
    fitting = fitting_columns(names, CAPTION_COLUMNS) or fitting_columns(names, ("prompt",))
    if len(fitting) != 1:
        problem = f"captions may be in any of {fitting}" if fitting else "no caption column"
        raise InvalidInputError(f"{path}: {problem} in {names}; choose one with --column")
    return fitting[0]
