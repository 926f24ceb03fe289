"""Measure which attribute values captions state about labelled images.

A captioner that always writes "person" makes no error, and one that always names a gender guesses,
so wrong values are always shown next to right values and to captions that state none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.measure.rows import NONE, Measurement, TaskProvenance, TaskResult
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import Result
from vldebias.utils.files import digest
from vldebias.utils.phrases import listed_words, persons, quantity

from .people import describe_captions
from .reading import UNCLEAR, StatementReader
from .rows import ANSWERS, AnswerRows, Words
from .table import CAPTION_ROLES, StatedRow, read_stated, texts_of_cell

if TYPE_CHECKING:
    from .table import Table

_ABOUT = (
    "Images with a clear label, each counted once. Right, wrong, none, and several or other values"
    " add up to all of them. Intervals of shares: Wilson; of the gap and of changes: bootstrap over"
    " images, paired for changes."
)
_ABOUT_UNCLEAR = (
    "Images whose value cannot be told according to their labels, or about which captions by people"
    " disagree or state none. Whatever is stated about them is a guess. Wilson intervals."
)
_HEADS = {
    "said_right": "right",
    "said_none": "none stated",
    "said_several": "several, other",
    "said_wrong": "wrong",
}
_UNCLEAR_HEADS = {"unclear_said": "a value stated", "share": "share of the value"}
Rows = Sequence[StatedRow]


def evaluate_captions(
    *tables: Table,
    attribute: str | Path | PromptSet = "gender",
    references: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
) -> Result:
    """Measure which values the captions of one or more models state about labelled images.

    Captions may come from any program. An image is labelled by a value of the attribute or as
    "unclear", or by what captions by people state: a value if two or more state it and none states
    another, and unclear if at most one states a value. Without labels, the result shows which
    values captions state about people, overall and by noun.

    See also docs/how-to/captions.md.

    Args:
        tables: files (.csv, .tsv, .jsonl, .json, .parquet, COCO, Flickr8k), or columns by name,
            with a row for each image and its caption. Labels, reference captions, nouns,
            confidences and models may be in further columns. The first model is the one that the
            others are compared with, on the images that all of them describe.
        attribute: prompt set of the attribute. English captions are read for any attribute, and
            those in ten other languages for gender.
        references: table with captions by people, such as COCO's captions_val2014.json, or with
            labels of the images.
        columns: role -> column ("image", "caption", "label", "references", "noun", "confidence",
            "model"), for columns that are not found by their names.

    Returns:
        Rows `said_right`, `said_wrong`, `said_none` and `said_several` for all images, by label and
        by noun; `said_gap` (women called men minus men called women); `wrong_left`, if only
        confident captions state a value; and, for unclear images, `unclear_said` and the `share` of
        each value among them.

    Raises:
        InvalidInputError: If a table cannot be read, labels are not understood, or no image is in
            all tables.

    >>> table = {"image": [1, 2, 3], "caption": ["A man runs.", "A man.", "A person."]}
    >>> result = evaluate_captions(table | {"label": ["male", "female", "unclear"]})
    >>> result.row("captions", "said_wrong", "none").value
    0.5
    """
    prompt_set = load_prompts(attribute)
    rows = read_stated(tables, columns or {}, CAPTION_ROLES)
    about = read_references(references)
    reader = StatementReader(prompt_set)
    if not about and not any({"label", "references"} & set(row.cells) for row in rows):
        part = describe_captions(list(_texts_by_image(rows).values()), prompt_set)
        return Result.from_tasks("captions", [part], seconds=None)
    data = {Path(table).name: digest(table) for table in tables if isinstance(table, (str, Path))}
    provenance = TaskProvenance(
        task="captions",
        title=f"What captions state about {prompt_set.name}",
        description=_ABOUT,
        attribute=prompt_set.name,
        attribute_hash=prompt_set.hash,
        split="table",
        data=data,
    )
    return stated_result(rows, reader.stated_value, reader, provenance, about)


def read_references(table: str | Path | None) -> Rows:
    """Return the rows of a table with captions by people or labels, or none without a table."""
    if table is None:
        return []
    roles = {role: CAPTION_ROLES[role] for role in ("image", "caption", "label")}
    return read_stated([table], {}, roles, needs_text=False)


def stated_result(
    rows: Rows,
    stated_value: Callable[[Sequence[str]], str],
    reader: StatementReader,
    provenance: TaskProvenance,
    about: Rows = (),
) -> Result:
    """Compare what models state about images with the labels of the images.

    Args:
        rows: what each model says about each image.
        stated_value: function that returns the stated value of an image's texts, or another answer.
        reader: reader of labels and of reference captions.
        provenance: the task's name, title, attribute and data.
        about: captions by people or labels of the images, if they are in a separate table.

    Raises:
        InvalidInputError: If no image is described by all models, or none of them has a label.
    """
    models = list(dict.fromkeys(row.model for row in rows))
    texts = {}
    for model in models:
        # The first model is called "none", because all changes are relative to "none".
        method = NONE if model == models[0] else model
        texts[method] = _texts_by_image([row for row in rows if row.model == model])
    images = _shared_images(texts)
    words = {}
    for method, of_image in texts.items():
        words[method] = np.array([stated_value(of_image[image]) for image in images])
    notes = []
    if len(models) > 1:
        notes.append(f"The models are compared with {models[0]} (no method).")
    left_out = max(map(len, texts.values())) - len(images)
    if left_out:
        notes.append(f"Left out: {quantity(left_out, 'image')} not described by every model.")
    settings = {**provenance.settings, "models": models, "notes": notes}
    labels = _labels([*rows, *about], about, images, reader)
    answers = AnswerRows(TaskResult(provenance), words, labels, reader.values)
    results = []
    if answers.clear.any():
        results.append(_clear_result(answers, settings, rows, images))
    if (labels == UNCLEAR).any():
        results.append(_unclear_result(answers, settings))
    return Result.from_tasks(provenance.task, results, seconds=None)


def _shared_images(texts: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return the images that each model describes."""
    first, *later = texts.values()
    images = [image for image in first if all(image in known for known in later)]
    if not images:
        names = [next(iter(known)) for known in texts.values()]
        raise InvalidInputError(
            f"expected the same images for each model, but none is in all tables; they contain"
            f" images such as {', '.join(names)}; write image names in the same way"
        )
    return images


def _clear_result(
    answers: AnswerRows, settings: Mapping[str, Any], rows: Rows, images: Sequence[str]
) -> TaskResult:
    """Return what the models state about images with a clear label."""
    n = {value: int((answers.labels == value).sum()) for value in answers.values}
    update = {"n": n, "settings": {**settings, "by_category": _HEADS}}
    clear = answers.with_provenance(update)
    nouns = _cells(rows, "noun")
    clear.add_clear(np.array([nouns.get(image, "") for image in images]))
    for model, method in zip(settings["models"], answers.answers, strict=True):
        cells = _cells([row for row in rows if row.model == model], "confidence")
        clear.add_kept(method, np.array([_number(cells.get(image)) for image in images]))
    return _with_sentences(clear, _clear_sentence)


def _unclear_result(answers: AnswerRows, settings: Mapping[str, Any]) -> TaskResult:
    """Return what the models state about unclear images."""
    update = {
        "task": f"{answers.result.provenance.task}, unclear",
        "title": "What is stated about unclear images",
        "description": _ABOUT_UNCLEAR,
        "n": {"unclear images": int((answers.labels == UNCLEAR).sum())},
        "settings": {**settings, "by_category": _UNCLEAR_HEADS},
    }
    unclear = answers.with_provenance(update)
    unclear.add_unclear()
    return _with_sentences(unclear, _unclear_sentence)


def _texts_by_image(rows: Rows) -> dict[str, list[str]]:
    """Return image -> its texts."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        texts.setdefault(row.image, []).extend(row.texts)
    return texts


def _labels(rows: Rows, about: Rows, images: Sequence[str], reader: StatementReader) -> Words:
    """Return the label of each image, from a table or else from captions by people."""
    written = _cells(rows, "label")
    meanings = reader.meanings(set(written.values()))
    unknown = [text for text in written.values() if text not in meanings]
    if unknown:
        raise InvalidInputError(
            f"label: not understood: {quantity(len(unknown), 'label')} of {len(written):,}, such as"
            f" {unknown[0][:60]!r}; expected {', '.join(reader.values)}, unclear, both, or an"
            " empty cell for images without a label"
        )
    captions = _texts_by_image(about)
    for row in rows:
        captions.setdefault(row.image, texts_of_cell(row.cells.get("references")))
    labels = []
    for image in images:
        label = meanings.get(written.get(image, ""), "")
        labels.append(label or reader.label_of_references(captions[image]))
    if not set(labels) & {*reader.values, UNCLEAR}:
        raise InvalidInputError(
            f"none of {quantity(len(images), 'image')} has a label, such as {images[0]!r}; expected"
            f" labels ({', '.join(reader.values)}, unclear) or reference captions of these images"
        )
    return np.array(labels)


def _cells(rows: Rows, role: str) -> dict[str, str]:
    """Return the non-empty cell of each image in the column with a role.

    Raises:
        InvalidInputError: If an image has two different labels or nouns.
    """
    cells: dict[str, str] = {}
    for row in rows:
        cell = row.cells.get(role)
        text = "" if cell is None else str(cell).strip()
        if text and cells.setdefault(row.image, text) != text and role != "confidence":
            raise InvalidInputError(
                f"image {row.image!r} has the {role}s {cells[row.image]!r} and {text!r}; expected"
                f" one {role} for each image"
            )
    return cells


def _number(cell: str | None) -> float:
    """Return the number in a cell, or NaN if it is empty."""
    try:
        number = float(cell or "nan")
    except ValueError:
        number = math.inf
    # Confidences are only ranked, so log-probabilities are fine. Infinite ones would be left out.
    if math.isinf(number):
        raise InvalidInputError(
            f"confidence: expected finite numbers, or empty cells if unknown, got {cell!r}"
        )
    return number


def _with_sentences(rows: AnswerRows, sentence: Callable[[AnswerRows, str], str]) -> TaskResult:
    """Return the result, with a sentence about each model in its settings."""
    settings = rows.result.provenance.settings
    sentences = [sentence(rows, method) for method in rows.answers]
    if len(sentences) == 1:
        settings["advice"] = sentences
    else:
        pairs = zip(settings["models"], sentences, strict=True)
        settings["notes"] = [*settings["notes"], *(f"{model}: {text}" for model, text in pairs)]
        settings["by_category"] = None  # the table by category shows a single model
    return rows.result


def _clear_sentence(rows: AnswerRows, method: str) -> str:
    """Return a sentence on what a model states about images with a clear label."""
    shares: dict[tuple[str, str], str] = {}
    for row in rows.result.rows:
        if row.method == method:
            shares[row.metric, row.subset] = _percent(row)
    wrong, right, none, several = (shares[f"said_{answer}", ""] for answer in ANSWERS)
    groups = [
        f"{shares['said_wrong', value]} of {persons(value)}"
        for value in rows.values
        if ("said_wrong", value) in shares
    ]
    return (
        f"Of {quantity(int(rows.clear.sum()), 'image')} with a clear label, {right} get the right"
        f" {rows.result.provenance.attribute}, {wrong} a wrong one, {none} none and {several}"
        f" several or another one. Wrong: {listed_words(groups)}."
    )


def _unclear_sentence(rows: AnswerRows, method: str) -> str:
    """Return a sentence on what a model states about unclear images."""
    stated, *shares = (row for row in rows.result.rows if row.method == method)
    which = [f"{_percent(row)} {row.subset}" for row in shares]
    return (
        f"Of {quantity(stated.n['unclear images'], 'unclear image')}, {_percent(stated)} get a"
        f" {rows.result.provenance.attribute}{': ' if which else ''}{listed_words(which)}."
    )


def lean_of_judge(judge: str, attribute: str, folder: Path) -> list[str]:
    """Return what a judge states about unclear images, according to results of `eval vqa`.

    Args:
        judge: name of the judge, such as its model.
        attribute: what the judge was asked about.
        folder: folder that contains the results' folders.
    """
    sentences = []
    measured = ("vqa, unclear", judge, attribute)
    for file in sorted(folder.glob("*/result.json")):
        # Other results may be large, or of another version.
        is_of_answers = measured[0] in file.read_text(encoding="utf-8")
        for part in Result.read(file).provenance if is_of_answers else ():
            if (part.task, part.model, part.attribute) == measured:
                advice = part.settings.get("advice", [])
                sentences += [f"The judge {judge} by itself ({file}): {text}" for text in advice]
    return sentences


def _percent(row: Measurement) -> str:
    """Format a share with its interval, such as "1.4% [1.2%, 1.7%]"."""
    return f"{row.value:.1%} [{row.interval[0]:.1%}, {row.interval[1]:.1%}]"
