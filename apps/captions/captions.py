"""Measure which attribute values captions state about labelled images.

A captioner that always writes "person" makes no error, and one that always names a gender guesses,
so wrong values are always shown next to right values and to captions that state none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.data.label_values import is_refusal
from vldebias.errors import InvalidInputError, SuspectInputWarning, warn
from vldebias.measure.rows import NONE, Measurement, TaskProvenance, TaskResult
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import Result
from vldebias.utils.files import digest
from vldebias.utils.phrases import lacking, listed_words, persons, quantity

from .examples import Examples, Texts
from .people import describe_captions
from .reading import NOT_STATED, SEVERAL, UNCLEAR, StatementReader
from .rows import ANSWERS, AnswerRows, Mask, Words
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
_UNCLEAR_HEADS = {"unclear_said": "any {attribute} stated", "share": "of these, this one"}
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
    data = {Path(table).name: digest(table) for table in tables if isinstance(table, (str, Path))}
    provenance = TaskProvenance(
        task="captions",
        title=f"What captions state about {prompt_set.name}",
        description=_ABOUT,
        attribute=prompt_set.name,
        attribute_hash=prompt_set.hash,
        split="table",
        data=data,
        settings={"notes": notes},
    )
    examples = Examples("captions", tables, references, out)
    return stated_result(rows, reader.stated_value, reader, provenance, about, examples)


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
    words, refused = _read(texts, shared_images, stated_value)
    images = shared_images[: len(words[NONE])]
    labels, unlabelled = _labels([*rows, *about], about, images, reader)
    notes = [*provenance.settings["notes"], *unlabelled]
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
    settings = {**provenance.settings, "models": models, "notes": notes}
    settings["interrupted"] = len(images) < len(shared_images)
    answers = AnswerRows(TaskResult(provenance), words, refused, labels, reader.values)
    files: dict[str, list[str]] = {}
    for row in (*rows, *about):
        files.setdefault(row.image, []).append(row.file)

    def results() -> list[TaskResult]:
        written = examples.write(answers, models, images, texts, files, stated_value)
        shown = settings | written
        parts = []
        if answers.clear.any():
            parts.append(_clear_result(answers, shown, rows, images))
            _add_misread(parts[0], answers, images, examples)
        if (labels == UNCLEAR).any():
            parts.append(_unclear_result(answers, {**shown, "notes": [], "examples": None}))
        return parts

    try:
        parts = results()
    except KeyboardInterrupt:
        warn("interrupted: finishing the page of what was read; press Ctrl-C again to stop")
        settings["interrupted"] = True
        parts = results()
    return Result.from_tasks(provenance.task, parts, seconds=None)


def _read(
    texts: Texts, images: Sequence[str], stated_value: Callable[[Sequence[str]], str]
) -> tuple[dict[str, Words], dict[str, Mask]]:
    """Return what each model states about the images, and whether it declines to.

    After Ctrl-C, this is what was read until then, with a warning.
    """
    values_of: dict[str, list[str]] = {method: [] for method in texts}
    try:
        for image in images:
            for method, of_image in texts.items():
                values_of[method].append(stated_value(of_image[image]))
    except KeyboardInterrupt:
        images = images[: min(map(len, values_of.values()))]
        if not images:
            raise
        warn(f"interrupted: only {quantity(len(images), 'image')} were read")
    words = {method: np.array(values[: len(images)]) for method, values in values_of.items()}
    refused = {}
    for method, values in words.items():
        declines = [all(map(is_refusal, texts[method][image])) for image in images]
        refused[method] = np.array(declines) & (values == NOT_STATED)
    return words, refused


def _add_misread(
    result: TaskResult, answers: AnswerRows, images: Sequence[str], examples: Examples
) -> None:
    """Add sentences about each model without the images whose texts people marked as misread."""
    settings = result.provenance.settings
    models = settings["models"]
    misread = np.isin(images, [image for model, image in examples.misread if model in models])
    n = int((misread & answers.clear).sum())
    rest = answers.without(misread)
    if not n or not rest.clear.any():
        return
    rest.add_clear(np.full(len(rest.labels), ""))
    for model, method in zip(models, answers.answers, strict=True):
        start = f"Without {quantity(n, 'image')} with a text marked as misread"
        start += f", {model}" if len(models) > 1 else ""
        sentence = f"{start}: {' '.join(_clear_sentences(rest, method))}"
        settings["advice" if len(models) == 1 else "notes"].insert(1, sentence)


def _doubts(
    words: Mapping[str, Words],
    texts: Mapping[str, Mapping[str, Sequence[str]]],
    images: Sequence[str],
) -> list[str]:
    """Return sentences on images with several texts, and on texts that state several values."""
    notes = []
    several = [image for image in images if any(len(read[image]) > 1 for read in texts.values())]
    if several:
        notes.append(
            f"{quantity(len(several), 'image')} with several texts, such as {several[0]!r}: all are"
            " read, and an image counts as “several” if they state different values."
        )
    for method, answers in words.items():
        strange = np.flatnonzero(answers == SEVERAL)
        if 2 * len(strange) > len(answers):
            first = texts[method][images[strange[0]]][0]
            warn(
                f"{len(strange):,} of {quantity(len(answers), 'text')} state several values, such"
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
    measured = {row.metric for row in clear.result.rows}
    first, *_, last = map(persons, answers.values)
    heads = {key: head.format(first=first, last=last) for key, head in _HEADS.items()}
    nouns_shown = {
        row.subset: row.subset for row in clear.result.rows if row.subset and row.metric in heads
    }
    clear.result.provenance.settings |= {
        "by_category": {key: head for key, head in heads.items() if key in measured},
        "tables": {"Images with a clear label": {"": "all"} | nouns_shown},
    }
    return _with_sentences(clear, _clear_sentences)


def _unclear_result(answers: AnswerRows, settings: Mapping[str, Any]) -> TaskResult:
    """Return what the models state about unclear images."""
    update = {
        "task": f"{answers.result.provenance.task}, unclear",
        "title": "What is stated about unclear images",
        "description": _ABOUT_UNCLEAR,
        "n": {"unclear images": int((answers.labels == UNCLEAR).sum())},
        "settings": {
            **settings,
            "by_category": {
                key: head.format(attribute=answers.result.provenance.attribute)
                for key, head in _UNCLEAR_HEADS.items()
            },
        },
    }
    unclear = answers.with_provenance(update)
    unclear.add_unclear()
    names = {row.subset: row.subset or "all" for row in unclear.result.rows}
    title = "Images whose value is unclear: whatever is stated is a guess"
    unclear.result.provenance.settings["tables"] = {title: names}
    return _with_sentences(unclear, _unclear_sentences)


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


def _with_sentences(
    rows: AnswerRows, sentences: Callable[[AnswerRows, str], list[str]]
) -> TaskResult:
    """Return the result, with sentences about each model in its settings."""
    settings = rows.result.provenance.settings
    if len(rows.answers) == 1:
        # A terminal shows no notes next to advice.
        settings["advice"] = [*sentences(rows, NONE), *settings["notes"]]
        settings["notes"] = []
    else:
        texts = []
        for model, method in zip(settings["models"], rows.answers, strict=True):
            first, *rest = sentences(rows, method)
            name = f"{model} (“no method” in tables and plots)" if method == NONE else model
            # The table compares the models by the shares in the first sentence.
            texts.append(f"{name}: {' '.join(rest) or first}")
        settings["notes"] = [*texts, *settings["notes"]]
        settings["by_category"] = None  # the table by category shows a single model
    return rows.result


def _clear_sentences(rows: AnswerRows, method: str) -> list[str]:
    """Return sentences on what a model states about images with a clear label."""
    shares: dict[tuple[str, str], str] = {}
    for row in rows.result.rows:
        if row.method == method:
            shares[row.metric, row.subset] = _percent(row)
    wrong, right, none, several = (shares[f"said_{answer}", ""] for answer in ANSWERS)
    sentences = [
        f"Of {quantity(int(rows.clear.sum()), 'image')} with a clear label, {right} get the right"
        f" {rows.result.provenance.attribute}, {wrong} a wrong one, {none} none and {several}"
        " several or another one."
    ]
    for head, metric, gap in (
        ("Wrong", "said_wrong", "said_gap"),
        ("Refused", "refused", "refused_gap"),
    ):
        groups = [
            f"{shares[metric, value]} of {persons(value)}"
            for value in rows.values
            if (metric, value) in shares
        ]
        if groups:
            sentences.append(f"{head}: {listed_words(groups)}{_gap_in_words(rows, method, gap)}.")
    return sentences


def _gap_in_words(rows: AnswerRows, method: str, metric: str) -> str:
    """Return the difference of a share between two groups, or "" if there are not two."""
    for row in rows.result.rows:
        if (row.method, row.metric) == (method, metric):
            first, last = map(persons, rows.values)
            low, high = (100 * end for end in row.interval)
            return (
                f" ({last} minus {first}: {100 * row.value:+.1f} points [{low:+.1f}, {high:+.1f}])"
            )
    return ""


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
