"""Measure which attribute values models answer about images, in multiple-choice questions."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING

import numpy as np

from vldebias.errors import InvalidInputError, SuspectInputWarning, warn
from vldebias.measure.resampling import wilson_interval
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import Result
from vldebias.utils.phrases import quantity
from vldebias.utils.pictures import decode, why_unreadable

from .captions import read_references, stated_result
from .examples import Examples
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
_NO_ANSWER = re.compile(r"\bnot (?:enough|answerable)\b|\bneither\b|\bnone of\b", re.IGNORECASE)
_LETTER = re.compile(r"\(?([A-Z])(?:[).:].*)?", re.DOTALL)  # "B", "(B)" and "B. A man", not "A man"
_BATCH = 32  # images that are open at the same time
MOST_ANSWERS = 10
_ABOUT = (
    "Answers to multiple-choice questions about images with a clear label. Right, wrong, no answer"
    " (“cannot tell”), and other answers add up to all of them. A model is asked in every cyclic"
    " order of the options. Intervals of shares: Wilson; of the gap and of changes: bootstrap."
)


def evaluate_vqa(
    *tables: Table,
    attribute: str | Path | PromptSet = "gender",
    judge: Judge | None = None,
    references: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    out: str | Path | None = None,
) -> Result:
    """Measure which values models answer about labelled images, and how often they cannot tell.

    Tables like those of VisoGender (pronouns as answers) and BBQ (`ans0` to `ans2`, or columns `A`
    to `E`, with the number or letter of the answer) are read, as well as responses of chat APIs.
    Answers that name no value, such as occupations in PAIRS, are listed by label if
    `columns={"reply": NAME}` names their column.

    Args:
        tables: files or columns by name, with the columns image, answer and label; optionally
            question, options, noun and model. The first model is the one that the
            others are compared with.
        attribute: prompt set of the attribute.
        judge: model that answers, such as `VlmJudge(model="./smolvlm",
            questions={"gender": ("male", "female")}).on(model, processor)`. The tables then contain
            paths of images, relative to the first one, and no answers.
        references: table with captions by people or labels of the images.
        columns: role -> column, for columns that are not found by their names.
        out: folder for answers.csv, as in `evaluate_captions`.

    Returns:
        The rows of `evaluate_captions`, or `share` rows of each reply by label.

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
    columns = dict(columns or {})
    lists_replies = "reply" in columns
    if lists_replies:
        columns["answer"] = columns.pop("reply")
    rows = read_stated(tables, columns, ROLES, text="answer", needs_text=judge is None)
    notes: list[str] = []
    if judge is None:
        rows, notes = with_texts([_resolved(row) for row in rows], "answer")
    else:
        folders = [Path(table).parent for table in tables if isinstance(table, (str, Path))]
        rows = list(_asked(judge, prompt_set, rows, folders[0] if folders else Path()))
    provenance = TaskProvenance(
        task="vqa",
        title=f"What answers state about {prompt_set.name}",
        description=_ABOUT,
        model="" if judge is None else judge.name,
        attribute=prompt_set.name,
        attribute_hash=prompt_set.hash,
        split="table",
        settings={"notes": notes},
    )
    if lists_replies:
        return _by_label(rows, reader, provenance)
    meaning = cache(partial(_meaning, reader=reader))
    strange = [text for row in rows for text in row.texts if meaning(text) == OTHER]
    if 2 * len(strange) > len(rows):
        warn(
            f"{len(strange):,} of {quantity(len(rows), 'answer')} name no {prompt_set.name}, such"
            f" as {strange[0][:60]!r}; to list such replies by label, pass their column as"
            " --column reply=NAME",
            SuspectInputWarning,
        )

    def stated_value(texts: Sequence[str]) -> str:
        values = set(map(meaning, texts))
        return values.pop() if len(values) == 1 else SEVERAL

    examples = Examples("answers", tables, references, out)
    about = read_references(references)
    return stated_result(rows, stated_value, reader, provenance, about, examples)


def _resolved(row: StatedRow) -> StatedRow:
    """Return a row with the texts of the options in place of their letters and numbers."""
    listed = texts_of_cell(row.cells.get("options"))
    for roles in ([f"ans{n}" for n in range(3)], ascii_uppercase[:5]):
        cells = [texts_of_cell(row.cells.get(role), is_answer=True) for role in roles]
        listed = listed or [text for texts in cells for text in texts]
    options = listed
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
    # "their" states no gender.
    is_pronoun = text.strip(" .").lower() in ("they", "their", "them", "theirs")
    return NOT_STATED if meaning == OTHER and is_pronoun else meaning


def _asked(
    judge: Judge, prompt_set: PromptSet, rows: Sequence[StatedRow], folder: Path
) -> Iterator[StatedRow]:
    """Yield the rows with the answers of a model."""
    from vldebias.judge.judges import predict

    if prompt_set.name not in judge.names:
        raise InvalidInputError(
            f"judge {judge.name}: it is not asked about {prompt_set.name!r}, but about"
            f" {', '.join(judge.names)}"
        )
    values = [*judge.names[prompt_set.name], _CANNOT_TELL]
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        images = [open_picture(folder / row.file) for row in batch]
        chances = predict(judge, images)[prompt_set.name]
        # The remainder is the probability of "cannot tell".
        chances = np.column_stack([chances, 1 - chances.sum(1)])
        for row, chance in zip(batch, chances, strict=True):
            answer = values[int(chance.argmax())]
            yield StatedRow(judge.name, row.file, [answer], row.cells)


def open_picture(file: Path) -> Image:
    """Open an image that a table names, or raise InvalidInputError."""
    try:
        return decode(file)
    except OSError as error:
        reason = why_unreadable(error)
        raise InvalidInputError(
            f"{file}: expected an image, got {reason}; paths are relative to the table"
        ) from None


def _by_label(
    rows: Sequence[StatedRow], reader: StatementReader, provenance: TaskProvenance
) -> Result:
    """Return the share of each answer among the images of each label."""
    result = TaskResult(provenance)
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        written = str(row.cells.get("label") or "")
        label = reader.meanings([written]).get(written, "")
        counts[row.model, label].update(text.strip().lower() for text in row.texts)
    overall = sum(counts.values(), Counter[str]())
    for (model, label), of_label in sorted(counts.items()):
        for answer, _ in overall.most_common(MOST_ANSWERS) if label in reader.values else ():
            n = of_label.total()
            ends = wilson_interval(of_label[answer], n)
            method = NONE if model == rows[0].model else model
            subset = f"{label}: {answer}"
            share = of_label[answer] / n
            result.add("share", method, share, ends, n={"images": n}, subset=subset)
    return Result.from_tasks("vqa", [result], seconds=None)
