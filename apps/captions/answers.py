"""Measure which attribute values models answer about images, in multiple-choice questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import Result
from vldebias.utils.pictures import decode, why_unreadable

from .captions import stated_result
from .examples import Examples
from .interrupts import until_interrupted
from .reading import NO_LABEL, NOT_STATED, OTHER, SEVERAL, UNCLEAR, StatementReader, cannot_tell
from .table import (
    CAPTION_ROLES,
    RESPONSES,
    StatedRow,
    read_stated,
    texts_of_cell,
    with_texts,
)

if TYPE_CHECKING:
    from PIL.Image import Image

    from vldebias.judge.judges import Judge
    from vldebias.utils.arrays import Floats

    from .table import Table

ROLES: Mapping[str, tuple[str, ...]] = {
    **{
        role: names
        for role, names in CAPTION_ROLES.items()
        if role not in ("caption", "references")
    },
    "answer": ("answer", "model_answer", *RESPONSES),
    "question": ("question", "prompt"),
    "options": ("options", "choices", "answers"),
    "condition": ("context_condition",),
    **{f"ans{n}": (f"ans{n}",) for n in range(3)},
    **{letter: (letter, letter.lower()) for letter in ascii_uppercase[:5]},
}
_CANNOT_TELL = "cannot tell"
# "their" states no gender.
_NO_ANSWER = re.compile(
    r"\bnot (?:enough|answerable)\b|\bneither\b|\bnone of\b|^\W*(?:they|them|theirs?)\W*$",
    re.IGNORECASE,
)
_LETTER = re.compile(r"\(?([A-Z])(?:[).:].*)?", re.DOTALL)  # "B", "(B)" and "B. A man", not "A man"
_BATCH = 32  # images that are open at the same time
_ABOUT = (
    "Answers to multiple-choice questions about images with a clear label. Right, wrong, no answer"
    " (“cannot tell”), and other answers add up to all of them. A model is asked in every cyclic"
    " order of the options. Intervals of shares: Wilson; of the gap and of changes: bootstrap."
)


def evaluate_vqa(
    *tables: Table,
    attribute: str | Path | PromptSet = "gender",
    judge: Judge | None = None,
    columns: Mapping[str, str] | None = None,
    out: str | Path | None = None,
) -> Result:
    """Measure which values models answer about labelled images, and how often they cannot tell.

    Tables like those of VisoGender (pronouns as answers) and BBQ (`ans0` to `ans2`, or columns `A`
    to `E`, with the number or letter of the answer) are read, as well as responses of chat APIs.
    For answers that name no value, such as occupations in PAIRS, `vldebias eval shares` counts each
    answer by label.

    Args:
        tables: files or columns by name, with the columns image, answer and label; optionally
            question, options, noun and model. The first model is the one that the
            others are compared with.
        attribute: prompt set of the attribute.
        judge: model that answers, such as `VlmJudge(model="./smolvlm",
            questions={"gender": ("male", "female")}).on(model, processor)`. The tables then contain
            paths of images, relative to the first one, and no answers.
        columns: role -> column, for columns that are not found by their names.
        out: folder for answers.csv, as in `evaluate_captions`.

    Returns:
        The rows of `evaluate_captions`.

    Raises:
        InvalidInputError: If a table cannot be read, an image does not exist, or labels are not
            understood.

    >>> table = {"image": [1, 2, 3], "answer": ["B", "A", "C"]}
    >>> table |= {"options": [["man", "woman", "cannot tell"]] * 3}
    >>> result = evaluate_vqa(table | {"label": ["female", "female", "unclear"]})
    >>> result.row("vqa", "said_right", "none").value
    0.5
    """
    prompt_set = load_prompts(attribute)
    reader = StatementReader(prompt_set)
    rows = read_stated(tables, columns or {}, ROLES, text="answer", needs_text=judge is None)
    if judge is None:
        rows = [_resolved(row) for row in rows]
    else:
        folders = [Path(table).parent for table in tables if isinstance(table, (str, Path))]
        rows = _asked(judge, prompt_set.name, rows, folders[0] if folders else Path())
    rows, notes = with_texts(rows, "answer")
    meaning = cache(partial(_meaning, reader=reader))

    def stated_value(texts: Sequence[str]) -> str:
        values = set(map(meaning, texts))
        return values.pop() if len(values) == 1 else SEVERAL

    examples = Examples("answers", tables, out)
    fields: dict[str, Any] = {"task": "vqa", "description": _ABOUT}
    fields["model"] = "" if judge is None else judge.name
    return stated_result(rows, notes, stated_value, reader, examples, tables, **fields)


def _resolved(row: StatedRow) -> StatedRow:
    """Return a row with the texts of the options in place of their letters and numbers."""
    options: list[str] = []
    for roles in (["options"], [f"ans{n}" for n in range(3)], ascii_uppercase[:5]):
        for role in roles if not options else ():
            options += texts_of_cell(row.cells.get(role), is_answer=True)
    label = row.cells.get("label")
    if row.cells.get("condition") == "ambig":
        label = UNCLEAR
    elif label is not None:
        label = _option(str(label), options)
    texts = [_option(text, options) for text in row.texts]
    file = f"{row.file} {row.cells['question']}" if row.cells.get("question") else row.file
    return row._replace(file=file, texts=texts, cells={**row.cells, "label": label})


def _option(text: str, options: Sequence[str]) -> str:
    """Return the option that an answer selects by number or letter, or else the answer itself."""
    number = int(text) if text.isdecimal() and len(text) < 3 else -1
    letter = _LETTER.fullmatch(text.strip())
    if letter and text.strip() not in options:
        number = ord(letter[1]) - ord("A")
    return options[number] if 0 <= number < len(options) else text


def _meaning(text: str, reader: StatementReader) -> str:
    """Return the value that an answer names, or another answer."""
    meaning = reader.meanings([text]).get(text, OTHER)
    if meaning in (UNCLEAR, NO_LABEL) or _NO_ANSWER.search(text) or cannot_tell(text):
        return NOT_STATED
    return meaning


def _asked(
    judge: Judge, attribute: str, rows: Sequence[StatedRow], folder: Path
) -> list[StatedRow]:
    """Return the rows with the answers of a model, and without one for images after Ctrl-C."""
    files = [row.file for row in rows]
    chances = chances_of(judge, attribute, files, lambda file: open_picture(folder / file))
    # The remainder is the probability of "cannot tell".
    chances = np.column_stack([chances, 1 - chances.sum(1)])
    values = [*judge.names[attribute], _CANNOT_TELL]
    answers = [[values[number]] for number in chances.argmax(1)]
    answers += [[] for _ in rows[len(answers) :]]
    return [
        StatedRow(judge.name, row.file, answer, row.cells)
        for row, answer in zip(rows, answers, strict=True)
    ]


def chances_of(
    judge: Judge, attribute: str, files: Sequence[str], opened: Callable[[str], Image]
) -> Floats:
    """Return a judge's probabilities (n, values), of fewer than n images after Ctrl-C.

    Args:
        judge: the judge.
        attribute: the attribute that it is asked about.
        files: names of n images.
        opened: function that opens an image.

    Raises:
        InvalidInputError: If the judge is not asked about the attribute.
    """
    from vldebias.judge.judges import predict

    if attribute not in judge.names:
        raise InvalidInputError(
            f"judge {judge.name}: expected {attribute!r}, got {', '.join(judge.names)}"
        )
    chances = []
    for start in until_interrupted(range(0, len(files), _BATCH)):
        batch = [opened(file) for file in files[start : start + _BATCH]]
        chances.append(predict(judge, batch)[attribute])
    return np.concatenate(chances)


def open_picture(file: Path | bytes) -> Image:
    """Open an image that a table names or contains, or raise InvalidInputError."""
    try:
        return decode(file)
    except OSError as error:
        reason = why_unreadable(error)
        place = "an image in the table" if isinstance(file, bytes) else file
        raise InvalidInputError(
            f"{place}: expected an image, got {reason}; paths are relative to the table"
        ) from None
