"""Read the captions of a data set without its images."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vldebias.data.caption_cells import captions_in, says_something, texts_of_list
from vldebias.data.captions import open_captions, read_coco
from vldebias.data.dataset import ImageData
from vldebias.data.layouts import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    TABLES,
    Layout,
    find_layout,
    fitting_columns,
    is_coco,
    without_number,
)
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError
from vldebias.utils.text_tables import read_text

Captions = list[tuple[str, ...]]


def read_captions(path: Path, column: str | None = None) -> Captions:
    """Return the captions of each image of a data set; the images need not be there.

    Args:
        path: a table, COCO's captions_*.json, a text file with a caption a line, a folder with a
            text beside each image, or tars.
        column: of the captions; None: the only one with a usual name.

    Returns:
        The captions of each image, or of each row if the table names no images; () for an image
        without a caption.

    Raises:
        InvalidInputError: no such column, several that may be meant, or no caption at all.
    """
    ending = path.suffix.lower()
    if path.is_file() and ending in (*TABLES, ".parquet"):
        captions = _of_file(path, ending, column)
    else:
        data = open_captions(path, caption=column)
        if not isinstance(data, ImageData) or not data.captions:
            raise InvalidInputError(f"{path}: got no captions; expected a text for each image")
        further = data.more_captions or [()] * len(data)
        captions = [(first, *more) for first, more in zip(data.captions, further, strict=True)]
    captions = [tuple(filter(says_something, texts)) for texts in captions]
    if not any(captions):
        raise InvalidInputError(f"{path}: got no captions; expected a text for each image")
    return captions


def _of_file(path: Path, ending: str, column: str | None) -> Captions:
    """Return the captions of a table, of COCO's JSON, or of lines."""
    if ending == ".json" and is_coco(path, None):
        return _grouped(read_coco(path))
    layout = Layout("table")
    if ending != ".parquet":
        try:
            layout = find_layout(path, caption=column)
        except InvalidInputError:
            # A list of captions alone, or with addresses of images: neither can be trained on.
            if ending == ".txt" and column is None:
                return [(line,) for line in read_text(path).split("\n") if line.strip()]
    table = read_table(path)
    if layout.header:  # the first row was taken for the names of the columns
        first = [(table.column_names[list(layout.header).index(str(layout.caption))],)]
        place = list(layout.header).index(str(layout.caption))
        return [*first, *((text,) for text in as_texts(table.column(place), str(path)))]
    name = column or layout.caption or _caption_column(path, table.column_names)
    captions = []
    for cell in column_of(table, name, path).to_pylist():
        first_text, further = captions_in(texts_of_list(cell) or cell, f"{path}: column {name!r}")
        captions.append((first_text, *(further or ())))
    images = [layout.image] if layout.image else fitting_columns(table.column_names, IMAGE_COLUMNS)
    if len(images) != 1:
        return captions
    files = as_texts(column_of(table, images[0], path), str(path))
    # A row without an image has no other rows to share it with.
    keys = [without_number(file) or f"row {row}" for row, file in enumerate(files)]
    pairs = zip(keys, captions, strict=True)
    return _grouped([(key, text) for key, texts in pairs for text in texts or ("",)])


def _grouped(pairs: Iterable[tuple[str, str]]) -> Captions:
    """Return the captions of each image, of pairs of an image and a caption."""
    captions_of_image: dict[str, list[str]] = {}
    for image, caption in pairs:
        captions_of_image.setdefault(image, []).append(caption)
    return [tuple(texts) for texts in captions_of_image.values()]


def _caption_column(path: Path, names: list[str]) -> str:
    """Return the only column that is called as captions or prompts are.

    Raises:
        InvalidInputError: none, or several.
    """
    fitting = fitting_columns(names, CAPTION_COLUMNS) or fitting_columns(names, ("prompt",))
    if len(fitting) != 1:
        problem = f"captions may be in any of {fitting}" if fitting else "no column of captions"
        raise InvalidInputError(f"{path}: {problem} in {names}; name it with --column")
    return fitting[0]
