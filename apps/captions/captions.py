"""Measure which attribute values captions state about labelled images.

A captioner that always writes "person" makes no error, and one that always names a gender guesses,
so wrong values are always shown next to right values and to captions that state none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.data.label_values import is_refusal
from vldebias.errors import InvalidInputError, SuspectInputWarning, warn
from vldebias.measure.rows import NONE, Measurement, TaskProvenance, TaskResult
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.categories import category_key
from vldebias.report.result import Result
from vldebias.utils.files import digest
from vldebias.utils.phrases import lacking, listed_words, persons, quantity

from .examples import Examples, Texts
from .interrupts import until_interrupted
from .people import describe_captions
from .reading import NOT_STATED, REFUSED, SEVERAL, UNCLEAR, StatementReader
from .rows import ANSWERS, AnswerRows, Words
from .table import CAPTION_ROLES, StatedRow, read_stated, texts_of_cell, with_texts

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
    "refused": "of which refused",
    "said_several": "several, other",
    "said_gap": "wrong, {last} minus {first}",
    "said_wrong": "wrong",
}
Rows = Sequence[StatedRow]


def evaluate_captions(
    *tables: Table,
    attribute: str | Path | PromptSet = "gender",
    references: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    out: str | Path | None = None,
) -> Result:
    """Measure which values the captions of one or more models state about labelled images.

    Captions may come from any program. An image is labelled by a value of the attribute or as
    "unclear", or by what captions by people state: a value if two or more state it and none states
    another, and unclear if at most one states a value. Without labels, the result shows which
    values captions state about people, overall and by noun.

    See also docs/how-to/captions.md.

    Args:
        tables: files (.csv, .tsv, .jsonl, .json, .parquet, COCO, Flickr8k), or columns by name,
            with a row for each image and its caption. Labels, reference captions, nouns and models
            may be in further columns. The first model is the one that the
            others are compared with, on the images that all of them describe.
        attribute: prompt set of the attribute. English captions are read for any attribute, and
            those in ten other languages for gender.
        references: table with captions by people, such as COCO's captions_val2014.json, or with
            labels of the images.
        columns: role -> column ("image", "caption", "label", "references", "noun", "model"),
            for columns that are not found by their names.
        out: folder for captions.csv, which lists how each caption was read, and for images of
            wrong ones. Rows that are marked there as misread are also left out of a second set of
            figures.

    Returns:
        Rows `said_right`, `said_wrong`, `said_none` and `said_several` for all images, by label and
        by noun; `said_gap` (women called men minus men called women); if there are refusals,
        `refused` and `refused_gap`, which `said_none` includes; and, for unclear images,
        `unclear_said` and the `share` of each value among them. Images without a caption are left
        out and counted.

    Raises:
        InvalidInputError: If a table cannot be read, labels are not understood, or no image is in
            all tables.

    >>> table = {"image": [1, 2, 3], "caption": ["A man runs.", "A man.", "A person."]}
    >>> result = evaluate_captions(table | {"label": ["male", "female", "unclear"]})
    >>> result.row("captions", "said_wrong", "none").value
    0.5
    """
    prompt_set = load_prompts(attribute)
    rows, notes = with_texts(read_stated(tables, columns or {}, CAPTION_ROLES), "caption")
    about = read_references(references)
    reader = StatementReader(prompt_set)
    if not about and not any({"label", "references"} & set(row.cells) for row in rows):
        part = describe_captions(list(_texts_by_image(rows).values()), prompt_set)
        part.provenance.settings["advice"] += notes
        return Result.from_tasks("captions", [part], seconds=None)
    title = f"What captions state about {prompt_set.name}"
    provenance = stated_provenance(
        prompt_set, tables, notes, task="captions", title=title, description=_ABOUT
    )
    examples = Examples("captions", tables, references, out)
    return stated_result(rows, reader.stated_value, reader, provenance, about, examples)


def stated_provenance(
    prompt_set: PromptSet,
    tables: Sequence[Table],
    notes: Sequence[str],
    **fields: Any,
) -> TaskProvenance:
    """Return the provenance of a task about what models state.

    Args:
        prompt_set: prompt set of the attribute.
        tables: the tables with what models state.
        notes: sentences on what was left out.
        fields: the task's name, title and description, and the model that was asked.
    """
    files = [table for table in tables if isinstance(table, (str, Path))]
    return TaskProvenance(
        attribute=prompt_set.name,
        attribute_hash=prompt_set.hash,
        split="table",
        data={Path(file).name: digest(file) for file in files},
        settings={"notes": list(notes)},
        **fields,
    )


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
    about: Rows,
    examples: Examples,
) -> Result:
    """Compare what models state about images with the labels of the images.

    Args:
        rows: what each model says about each image.
        stated_value: function that returns the stated value of an image's texts, or another answer.
        reader: reader of labels and of reference captions.
        provenance: the task's name, title, attribute and data.
        about: captions by people or labels of the images, if they are in a separate table.
        examples: writer of the table of what was read.

    Raises:
        InvalidInputError: If no image is described by all models, or none of them has a label.
    """
    models = list(dict.fromkeys(row.model for row in rows))
    if NONE in models[1:]:
        raise InvalidInputError(
            f"model: got the name {NONE!r}, under which the first model ({models[0]!r}) is"
            f" reported; rename {NONE!r}, or put its rows first"
        )
    texts = {}
    for model in models:
        # The first model is called "none", because all changes are relative to "none".
        method = NONE if model == models[0] else model
        texts[method] = _texts_by_image([row for row in rows if row.model == model])
    shared_images = _shared_images(texts)
    words: dict[str, list[str]] = {method: [] for method in texts}
    images = []
    # Answers of a judge are read at once. Ctrl-C has ended the questions then.
    for image in shared_images if provenance.model else until_interrupted(shared_images):
        images.append(image)
        for method, of_image in texts.items():
            value = stated_value(of_image[image])
            is_refused = value == NOT_STATED and all(map(is_refusal, of_image[image]))
            words[method].append(REFUSED if is_refused else value)
    labels, unlabelled = _labels([*rows, *about], about, images, reader)
    notes = [*provenance.settings["notes"], *unlabelled]
    if len(images) < len(shared_images):
        notes.append(
            f"Interrupted: {len(images):,} of {quantity(len(shared_images), 'image')} were read."
        )
    shared = set(shared_images)
    left_out = [image for image in dict.fromkeys(chain(*texts.values())) if image not in shared]
    if left_out:
        notes.append(
            f"Left out: {quantity(len(left_out), 'image')} not described by every model, such as"
            f" {left_out[0]!r}."
        )
    # One paragraph, so that a page with several models begins with what they state.
    notes = [" ".join(notes)] if len(models) > 1 and notes else notes
    notes += _doubts(words, texts, images)
    answers = AnswerRows(
        TaskResult(provenance),
        {method: np.array(values) for method, values in words.items()},
        labels,
        reader.values,
    )
    files: dict[str, list[str]] = {}
    for row in (*rows, *about):
        files.setdefault(row.image, []).append(row.file)
    settings = {**provenance.settings, "models": models, "notes": notes}
    settings |= examples.write(answers, models, images, texts, files, stated_value)
    parts = []
    if answers.clear.any():
        parts.append(_clear_result(answers, settings, rows, images))
        _add_misread(parts[0], answers, images, examples)
    if (labels == UNCLEAR).any():
        parts.append(_unclear_result(answers, {**settings, "notes": [], "examples": None}))
    return Result.from_tasks(provenance.task, parts, seconds=None)


def _add_misread(
    result: TaskResult, answers: AnswerRows, images: Sequence[str], examples: Examples
) -> None:
    """Add sentences about each model without the images whose texts people marked as misread."""
    settings = result.provenance.settings
    models = settings["models"]
    misread = np.isin(images, [image for model, image in examples.misread if model in models])
    n = int((misread & answers.clear).sum())
    rest = replace(
        answers,
        result=TaskResult(result.provenance),
        labels=np.where(misread, "", answers.labels),
    )
    if not n or not rest.clear.any():
        return
    rest.add_clear(np.full(len(rest.labels), ""))
    for model, method in zip(models, answers.answers, strict=True):
        start = f"Without {quantity(n, 'image')} with a text marked as misread"
        start += f", {model}" if len(models) > 1 else ""
        sentence = f"{start}: {' '.join(_clear_sentences(rest, method))}"
        settings["advice" if len(models) == 1 else "notes"].insert(1, sentence)


def _doubts(words: Mapping[str, Sequence[str]], texts: Texts, images: Sequence[str]) -> list[str]:
    """Return sentences on images with several texts, and on texts that state several values."""
    notes = []
    several = [image for image in images if any(len(read[image]) > 1 for read in texts.values())]
    if several:
        notes.append(
            f"{quantity(len(several), 'image')} with several texts, such as {several[0]!r}: all are"
            " read, and an image counts as “several” if they state different values."
        )
    for method, answers in words.items():
        n = answers.count(SEVERAL)
        if 2 * n > len(answers):
            first = texts[method][images[answers.index(SEVERAL)]][0]
            warn(
                f"{n:,} of {quantity(len(answers), 'text')} state several values, such"
                f" as {first[:60]!r}; do they contain the question, or what a model thinks before"
                " it answers? Cut these parts off",
                SuspectInputWarning,
            )
    return notes


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
    clear = answers.with_provenance({"n": n, "settings": dict(settings)})
    nouns = _cells(rows, "noun")
    clear.add_clear(np.array([nouns.get(image, "") for image in images]))
    first, *_, last = map(persons, answers.values)
    heads = {key: head.format(first=first, last=last) for key, head in _HEADS.items()}
    return _shown(clear, "Images with a clear label", heads, _clear_sentences)


def _unclear_result(answers: AnswerRows, settings: Mapping[str, Any]) -> TaskResult:
    """Return what the models state about unclear images."""
    about = answers.result.provenance
    update = {
        "task": f"{about.task}, unclear",
        "title": "What is stated about unclear images",
        "description": _ABOUT_UNCLEAR,
        "n": {"unclear images": int((answers.labels == UNCLEAR).sum())},
        "settings": dict(settings),
    }
    unclear = answers.with_provenance(update)
    unclear.add_unclear()
    heads = {"unclear_said": f"any {about.attribute} stated", "share": "of these, this one"}
    title = "Images whose value is unclear: whatever is stated is a guess"
    return _shown(unclear, title, heads, _unclear_sentences)


def _shown(
    rows: AnswerRows,
    title: str,
    heads: Mapping[str, str],
    sentences: Callable[[AnswerRows, str], list[str]],
) -> TaskResult:
    """Return the result, with its table for the page and sentences about each model.

    Args:
        rows: the result's rows.
        title: caption of the table.
        heads: metric -> heading of its column.
        sentences: function from the rows and a method to sentences, of which the first is shown if
            there are several models. The others would repeat the table.
    """
    settings = rows.result.provenance.settings
    model_of_method = dict(zip(rows.answers, settings["models"], strict=True))
    are_several = len(model_of_method) > 1
    names = {}
    for row in rows.result.rows:
        if row.metric in heads:
            model = f", {model_of_method[row.method]}" if are_several else ""
            names[category_key(row)] = f"{row.subset or 'all'}{model}"
    measured = {row.metric for row in rows.result.rows}
    shown_heads = {metric: head for metric, head in heads.items() if metric in measured}
    settings |= {"by_category": shown_heads, "tables": {title: names}}
    if are_several:
        firsts = [f"{model}: {sentences(rows, key)[0]}" for key, model in model_of_method.items()]
        settings["notes"] = [*firsts, *settings["notes"]]
    else:
        # A terminal shows no notes next to advice.
        settings |= {"advice": [*sentences(rows, NONE), *settings["notes"]], "notes": []}
    return rows.result


def _texts_by_image(rows: Rows) -> dict[str, list[str]]:
    """Return image -> its texts."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        texts.setdefault(row.image, []).extend(row.texts)
    return texts


def _labels(
    rows: Rows, about: Rows, images: Sequence[str], reader: StatementReader
) -> tuple[Words, list[str]]:
    """Return the label of each image, from a table or else from captions by people.

    Returns:
        The labels (n,), and a sentence about images without any, if there are some.
    """
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
    missing = [image for image, label in zip(images, labels, strict=True) if not label]
    if not set(labels) & {*reader.values, UNCLEAR}:
        known = [row.file for row in about if row.image not in images]
        theirs = f"; the references are of images such as {known[0]!r}" if known else ""
        raise InvalidInputError(
            f"none of {quantity(len(images), 'image')} has a label, such as {images[0]!r}{theirs};"
            f" expected labels ({', '.join(reader.values)}, unclear) or reference captions of these"
            " images, with the same names"
        )
    notes = []
    if missing:
        notes.append(lacking(missing, len(images), "label", written.get(missing[0], "")))
    return np.array(labels), notes


def _cells(rows: Rows, role: str) -> dict[str, str]:
    """Return the non-empty cell of each image in the column with a role.

    Raises:
        InvalidInputError: If an image has two different labels or nouns.
    """
    cells: dict[str, str] = {}
    for row in rows:
        cell = row.cells.get(role)
        text = "" if cell is None else str(cell).strip()
        if text and cells.setdefault(row.image, text) != text:
            raise InvalidInputError(
                f"image {row.image!r} has the {role}s {cells[row.image]!r} and {text!r}; expected"
                f" one {role} for each image"
            )
    return cells


def _clear_sentences(rows: AnswerRows, method: str) -> list[str]:
    """Return sentences on what a model states about images with a clear label."""
    figures = {(row.metric, row.subset): row for row in rows.result.rows if row.method == method}
    wrong, right, none, several = (_percent(figures[f"said_{answer}", ""]) for answer in ANSWERS)
    sentences = [
        f"Of {quantity(int(rows.clear.sum()), 'image')} with a clear label, {right} get the right"
        f" {rows.result.provenance.attribute}, {wrong} a wrong one, {none} none and {several}"
        " several or another one."
    ]
    for head, metric, gap in (
        ("Wrong", "said_wrong", "said_gap"),
        ("Refused", "refused", "refused_gap"),
    ):
        values = [value for value in rows.values if (metric, value) in figures]
        if not any(figures[metric, value].value for value in values):
            continue
        groups = [f"{_percent(figures[metric, value])} of {persons(value)}" for value in values]
        difference = ""
        if (gap, "") in figures:
            first, last = map(persons, values)
            row = figures[gap, ""]
            points, low, high = (100 * figure for figure in (row.value, *row.interval))
            difference = f" ({last} minus {first}: {points:+.1f} points [{low:+.1f}, {high:+.1f}])"
        sentences.append(f"{head}: {listed_words(groups)}{difference}.")
    return sentences


def _unclear_sentences(rows: AnswerRows, method: str) -> list[str]:
    """Return a sentence on what a model states about unclear images."""
    stated, *shares = (row for row in rows.result.rows if row.method == method)
    which = [f"{_percent(row)} {row.subset}" for row in shares]
    return [
        f"Of {quantity(stated.n['unclear images'], 'unclear image')}, {_percent(stated)} get a"
        f" {rows.result.provenance.attribute}{': ' if which else ''}{listed_words(which)}."
    ]


def _percent(row: Measurement) -> str:
    """Format a share with its interval, such as "1.4% [1.2%, 1.7%]"."""
    return f"{row.value:.1%} [{row.interval[0]:.1%}, {row.interval[1]:.1%}]"
