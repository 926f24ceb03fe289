"""Read tables of captions or answers, with what they say about each image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from vldebias.data.caption_cells import says_something, texts_of_list
from vldebias.data.captions import open_captions, read_coco, with_header
from vldebias.data.dataset import ImageData
from vldebias.data.layouts import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    PARQUET,
    TABLES,
    find_layout,
    is_coco,
    without_number,
)
from vldebias.data.tables import as_texts, column_of, read_table, table_in_memory
from vldebias.errors import InvalidInputError, expected_one_of, need, shown
from vldebias.utils.phrases import lacking, quantity
from vldebias.utils.table_rows import (
    find_column,
    fitting_columns,
    hint_of_header,
    parsed_cell,
    plain_name,
)
from vldebias.utils.text_tables import read_text

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Table: TypeAlias = "str | Path | Mapping[str, Iterable[object]] | pd.DataFrame | pa.Table"
# Role of a column -> its usual names, most common first. The names of captions and answers include
# those in the responses of chat APIs.
RESPONSES = (
    *("pred", "prediction", "generated_text", "output", "answer", "response"),
    *("response.body.choices", "choices", "messages", "conversations", "result.message.content"),
    "content",
)
# Names of a model's texts. Next to one of them, "answer" or "caption" may be the reference.
_OF_MODELS = ("pred", "prediction", "response", "model_answer", "generated_caption")
CAPTION_ROLES: Mapping[str, tuple[str, ...]] = {
    "image": (*IMAGE_COLUMNS, "image_id", "img_id", "custom_id", "key", "id"),
    "caption": (*CAPTION_COLUMNS, "generated_caption", *RESPONSES),
    "label": ("label", "gender", "age", "race"),
    "references": ("references", "reference", "refs"),
    "noun": ("noun", "activity", "occupation", "object"),
    "model": ("model", "method", "captioner"),
}
# Keys of the text in a chat message, a choice, or one of several captions.
_TEXT_KEYS = ("message", "content", "value", "text", "raw", "refusal")
# What programs write in place of a text if a call failed, such as "Error code: 429 - ...".
_FAILED = re.compile(
    r"\W*(?:(?:\w+\.)*\w*(?:error|exception)\W*(?::|\bcode\b|\b\d{3}\b|\()|http\W*\d{3}\b"
    r"|traceback \(most)",
    re.IGNORECASE,
)
# Reasoning before a reply (the first tag may be part of the prompt), the name that a chat template
# writes before it, and a fence around JSON.
_REASONING = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL)
_ROLE = re.compile(r"\bASSISTANT:|\bAssistant:|^assistant$|\[/INST\]|<\|im_start\|>assistant", re.M)
_FENCE = re.compile(r"\A```\w*|```\Z")
_REPLY_KEYS = ("answer", "caption", "label", "gender", "text", "response")
_NO_LETTERS = ("", "nan", "null", "<na>", "#n/a")
_TURN_KEYS = {"role", "from", "message", "content"}  # keys of a message in a chat
_COCO_NAME = re.compile(r"(?:COCO_\w+_)?(\d+)(?:\.\w+)?")


class StatedRow(NamedTuple):
    """A row of a table: what a model says about an image.

    Attributes:
        model: name of the model.
        file: name or path of the image, as written in the table.
        texts: its captions, or its answer.
        cells: role -> cell, for the other columns.
    """

    model: str
    file: str
    texts: list[str]
    cells: Mapping[str, object]

    @property
    def image(self) -> str:
        """Return the name by which the image is found in several tables."""
        return image_key(self.file)


def read_stated(
    tables: Sequence[Table],
    columns: Mapping[str, str],
    roles: Mapping[str, tuple[str, ...]],
    *,
    text: str = "caption",
    needs_text: bool = True,
    needs_image: bool = True,
) -> list[StatedRow]:
    """Return the rows of all tables.

    Args:
        tables: files, or columns by name. A model is named after its file, unless there is a
            column with models.
        columns: role -> column, for columns that are not found by their names.
        roles: role -> usual names of its column.
        text: the role of the captions or answers.
        needs_text: whether a table without them is an error.
        needs_image: whether a table without images is an error. If not, each row without an image
            is an image of its own.

    Raises:
        InvalidInputError: If a table cannot be read, the column with the images or with the texts
            is missing, several columns may be the one with the texts, no table has a column in
            `columns`, or there are no rows.
    """
    sources = []
    for number, table in enumerate(tables, 1):
        sources.append(str(table) if isinstance(table, (str, Path)) else f"table {number}")
    names = [Path(source).stem for source in sources]
    if len(set(names)) < len(names):
        names = sources
    read: list[StatedRow] = []
    found: set[str] = set()
    for table, source, name in zip(tables, sources, names, strict=True):
        rows = opened_table(table)
        needs = {"image": needs_image or "image" in columns, text: needs_text}
        required = [role for role, is_needed in needs.items() if is_needed]
        column_of_role = columns_of_roles(
            rows, columns, roles, source, text=text, required=required
        )
        found |= column_of_role.keys()
        images = [f"row {row}" for row in range(1, rows.num_rows + 1)]
        if "image" in column_of_role:
            names_of_images = as_texts(column_of(rows, column_of_role.pop("image"), source), source)
            if needs_image:
                images = names_of_images
            else:
                images = [name or row for name, row in zip(names_of_images, images, strict=True)]
        cells = {}
        for role, column in column_of_role.items():
            cells[role] = column_of(rows, column, source).to_pylist()
        answers = cells.pop(text, [None] * len(images))
        texts = [texts_of_cell(cell, is_answer=text == "answer") for cell in answers]
        models = [str(model or name) for model in cells.pop("model", [name] * len(images))]
        facts = [{role: cells[role][row] for role in cells} for row in range(len(images))]
        read += map(StatedRow, models, images, texts, facts)
    for role, column in columns.items():
        if role not in found:
            raise InvalidInputError(
                f"columns: no table has the column {column!r} for {role!r}; the columns are"
                f" {shown(rows.column_names)}"
            )
    if not read:
        raise InvalidInputError(f"{', '.join(sources)}: no rows; expected one row per image")
    return read


def with_texts(rows: Sequence[StatedRow], kind: str) -> tuple[list[StatedRow], list[str]]:
    """Return the rows that have a text, and a sentence about images without one.

    A caption that was never written, because a call failed, is not one that names nobody.

    Args:
        rows: what each model says about each image.
        kind: what is read, "caption" or "answer".

    Raises:
        InvalidInputError: If a model says nothing about any image.
    """
    models = list(dict.fromkeys(row.model for row in rows))
    images = list(dict.fromkeys(row.image for row in rows))
    missing: dict[str, list[str]] = {}
    for model in models:
        described = {row.image for row in rows if row.model == model and row.texts}
        missing[model] = [image for image in images if image not in described]
        if not described:
            raise InvalidInputError(
                f"none of {quantity(len(images), 'image')} has a {kind}"
                f"{f' by {model}' if len(models) > 1 else ''}, such as"
                f" {images[0]!r}: all are empty, or calls that failed"
            )
    left_out = set(chain(*missing.values()))
    notes = []
    if left_out and len(models) == 1:
        notes.append(lacking(missing[models[0]], len(images), kind))
    elif left_out:
        counts = ", ".join(f"{model} {len(of_model):,}" for model, of_model in missing.items())
        notes.append(
            f"Left out: {len(left_out):,} of {quantity(len(images), 'image')}"
            f" {'lacks' if len(left_out) == 1 else 'lack'} a{'n' * (kind[0] == 'a')} {kind}"
            f" ({counts})."
        )
    return [row for row in rows if row.texts], notes


def opened_table(table: Table) -> pa.Table:
    """Load a table, which may be COCO's captions or have no column names, like Flickr8k's.

    Captions may also be in a folder of images with text files, in tar files, or in a text file with
    one caption per line.

    Raises:
        InvalidInputError: If a file cannot be read, or columns have different lengths.
    """
    if not isinstance(table, (str, Path)):
        return table_in_memory(table)
    path = Path(table)
    if path.is_file() and is_coco(path, None):
        images, captions = zip(*read_coco(path), strict=True)
        return need("pyarrow").table({"image": images, "caption": captions})
    if path.suffix.lower() not in (*TABLES, *PARQUET):
        data = open_captions(path)
        if not isinstance(data, ImageData) or not data.captions:
            raise InvalidInputError(f"{path}: got no captions; expected at least one per image")
        further = data.more_captions or [()] * len(data)
        texts = [[first, *rest] for first, rest in zip(data.captions, further, strict=True)]
        return need("pyarrow").table({"image": list(data.ids), "caption": texts})
    header: tuple[str, ...] = ()
    if path.suffix.lower() in TABLES[:3]:
        try:
            header = find_layout(path).header
        except InvalidInputError:
            # Other columns than those for training, or none
            if path.suffix.lower() == ".txt" and "\t" not in (text := read_text(path)):
                lines = [line for line in text.split("\n") if line.strip()]
                return need("pyarrow").table({"caption": lines})
    rows = read_table(path)
    return with_header(rows, header) if header else rows


def columns_of_roles(
    rows: pa.Table,
    columns: Mapping[str, str],
    roles: Mapping[str, tuple[str, ...]],
    source: str,
    *,
    text: str = "",
    required: Sequence[str] = (),
) -> dict[str, str]:
    """Return the column of each role that the table has.

    Args:
        rows: the table.
        columns: role -> column, as named by the user.
        roles: role -> usual names of its column.
        source: name of the table in messages.
        text: the role whose column must be unambiguous, or "".
        required: roles that must have a column.

    Raises:
        InvalidInputError: If a role is unknown, a required one has no column, or several columns
            may contain the texts.
    """
    for role in columns:
        if role not in roles:
            raise InvalidInputError(f"columns: {role!r} is no role; {expected_one_of(role, roles)}")
    names = rows.column_names
    # A user may name columns that only one of several tables has.
    chosen = {role: name for role, name in columns.items() if find_column(names, name) is not None}
    for role, known in roles.items():
        if role in columns:
            continue
        fitting = fitting_columns(names, known)
        usual = known
        if role == text:
            fitting += [name for name in names if plain_name(name) in _OF_MODELS]
            usual = (*known, *_OF_MODELS)
        fitting = [name for name in dict.fromkeys(fitting) if name not in chosen.values()]
        if role == text and len(fitting) > 1:
            raise InvalidInputError(
                f"{source}: the {role}s may be in any of {fitting}; choose the model's: --column"
                f" {role}={fitting[-1]}"
            )
        if fitting:
            chosen[role] = min(fitting, key=lambda name: usual.index(plain_name(name)))
    for role in required:
        if role not in chosen:
            name = columns.get(role, roles[role][0])
            raise InvalidInputError(
                f"{source}: expected a column {name!r}; the columns are"
                f" {shown(names)}; if it has another name: --column {role}=NAME"
                f"{hint_of_header(names)}"
            )
    return chosen


def image_key(file: str) -> str:
    """Return an image's name without a caption number, or its number in COCO.

    >>> image_key("COCO_val2014_000000000042.jpg"), image_key("42"), image_key("a/1.jpg#0")
    ('42', '42', 'a/1.jpg')
    """
    name = without_number(file.strip())
    coco = _COCO_NAME.fullmatch(name)
    return coco[1].lstrip("0") or "0" if coco else name


def texts_of_cell(cell: object, *, is_answer: bool = False) -> list[str]:
    """Return the texts in a cell: a string, a list of strings, or the last message of a chat.

    Nothing is returned for missing cells and for messages about failed calls.

    Args:
        cell: the cell.
        is_answer: whether "none" and "N/A" are answers, rather than missing.

    Raises:
        InvalidInputError: If the cell contains bytes that are not UTF-8.

    >>> texts_of_cell([{"message": {"role": "assistant", "content": "A man."}}])
    ['A man.']
    """
    if isinstance(cell, bytes):
        try:
            cell = cell.decode()
        except UnicodeDecodeError:
            raise InvalidInputError(
                f"expected text in UTF-8, got the bytes {cell[:20]!r}"
            ) from None
    if isinstance(cell, Mapping):
        keys = [key for key in _TEXT_KEYS if cell.get(key) is not None]
        return texts_of_cell(cell[keys[0]], is_answer=is_answer) if keys else []
    if isinstance(cell, list):
        is_chat = any(isinstance(part, Mapping) and _TURN_KEYS & set(part) for part in cell)
        texts: list[str] = []
        for part in cell[-1:] if is_chat else cell:
            texts += texts_of_cell(part, is_answer=is_answer)
        return texts
    text = "" if cell is None else str(cell).strip()
    is_missing = text.lower() in _NO_LETTERS if is_answer else not says_something(text)
    if is_missing or _FAILED.match(text):
        return []
    return texts_of_list(cell) or [reply_of(str(cell))]


def reply_of(text: str) -> str:
    """Return the reply alone, without a repeated prompt, reasoning, or JSON around it.

    >>> reply_of("USER: A man or a woman? ASSISTANT: A man"), reply_of('{"gender": "a man"}')
    ('A man', 'a man')
    """
    reply = _ROLE.split(_REASONING.sub("", text))[-1].strip()
    fields = parsed_cell(_FENCE.sub("", reply))
    if isinstance(fields, Mapping):
        named = [fields[key] for key in _REPLY_KEYS if isinstance(fields.get(key), str)]
        texts = named[:1] or list(fields.values())
        if len(texts) == 1 and isinstance(texts[0], str):
            reply = texts[0]
    return reply or text
