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
from vldebias.errors import InvalidInputError, check_arguments, warn_of_input
from vldebias.measure.rows import NONE, Measurement, TaskProvenance, TaskResult
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.categories import category_key
from vldebias.report.result import Result
from vldebias.utils.files import digest
from vldebias.utils.phrases import lacking, listed_words, persons, quantity

from .examples import Examples, Texts, write_measured
from .interrupts import until_interrupted
from .people import describe_captions
from .reading import NO_LABEL, NOT_STATED, OTHER, REFUSED, SEVERAL, UNCLEAR, StatementReader
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
# Warnings if over half of the texts are read as this
_DOUBTS = {
    SEVERAL: "texts state several values, such as {example}; do they contain the question, or what"
    " a model thinks before it answers? Cut these parts off",
    OTHER: "answers name no {attribute}, such as {example}; to count such replies by label, run"
    " `vldebias eval shares TABLE --prompt-column label --value-column answer`",
}
Rows = Sequence[StatedRow]


@check_arguments()
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
            with a row for each image and its caption; or a folder of images with text files, tar
            files, or a text file with one caption per line. Without labels, a single table needs no
            images. Labels, reference captions, nouns and models
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
    needs_image = len(tables) > 1 or references is not None
    read = read_stated(tables, columns or {}, CAPTION_ROLES, needs_image=needs_image)
    rows, notes = with_texts(read, "caption")
    about: Rows = []
    if references is not None:
        roles = {role: CAPTION_ROLES[role] for role in ("image", "caption", "label")}
        about = read_stated([references], {}, roles, needs_text=False)
    reader = StatementReader(prompt_set)
    if not about and not any({"label", "references"} & set(row.cells) for row in rows):
        part = describe_captions(list(_texts_by_image(rows).values()), prompt_set)
        part.provenance.settings["advice"] += notes
        return Result.from_tasks("captions", [part], seconds=None)
    sources = tables if references is None else (*tables, references)
    examples = Examples("captions", sources, out)
    value_of = reader.stated_value
    return stated_result(
        rows, notes, value_of, reader, examples, tables, about, task="captions", description=_ABOUT
    )


def stated_result(
    rows: Rows,
    notes: Sequence[str],
    stated_value: Callable[[Sequence[str]], str],
    reader: StatementReader,
    examples: Examples,
    tables: Sequence[Table],
    about: Rows = (),
    **fields: Any,
) -> Result:
    """Compare what models state about images with the labels of the images.

    Args:
        rows: what each model says about each image.
        notes: sentences on what was left out.
        stated_value: function that returns the stated value of an image's texts, or another answer.
        reader: reader of labels and of reference captions.
        examples: writer of the table of what was read.
        tables: the tables with what models state.
        about: captions by people or labels of the images, if they are in a separate table.
        fields: the task's name and description, and the model that was asked.

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
    for image in shared_images if fields.get("model") else until_interrupted(shared_images):
        images.append(image)
        for method, of_image in texts.items():
            value = stated_value(of_image[image])
            is_refused = value == NOT_STATED and all(map(is_refusal, of_image[image]))
            words[method].append(REFUSED if is_refused else value)
    labels, unlabelled = _labels([*rows, *about], about, images, reader)
    notes = _left_out(notes, unlabelled, labels, n_models=len(models))
    if len(images) < len(shared_images):
        notes.append(
            f"Interrupted: {len(images):,} of {quantity(len(shared_images), 'image')} were read."
        )
    # One paragraph, so that a page with several models begins with what they state.
    notes = [" ".join(notes)] if len(models) > 1 and notes else notes
    notes += _doubts(words, texts, images, reader.attribute.set.name)
    provenance = TaskProvenance(
        title=f"What {examples.kind} state about {reader.attribute.set.name}",
        attribute=reader.attribute.set.name,
        attribute_hash=reader.attribute.set.hash,
        split="table",
        data={Path(file).name: digest(file) for file in tables if isinstance(file, (str, Path))},
        **fields,
    )
    answers = AnswerRows(
        TaskResult(provenance),
        {method: np.array(values) for method, values in words.items()},
        labels,
        reader.values,
    )
    files: dict[str, list[str]] = {}
    for row in (*rows, *about):
        files.setdefault(row.image, []).append(row.file)
    settings = {"models": models, "notes": notes}
    settings |= examples.write(answers, models, images, texts, files, stated_value)
    noun_of_image = _cells(rows, "noun")
    nouns = np.array([noun_of_image.get(image, "") for image in images])
    misread = np.isin(images, [image for model, image in examples.misread if model in models])
    parts = _parts(answers, settings, nouns, misread)
    result = Result.from_tasks(provenance.task, parts, seconds=None)
    if examples.out is not None:
        write_measured(result, provenance.task, examples.strips, examples.out, examples.stem)
    return result


def _left_out(
    notes: Sequence[str], unlabelled: Sequence[str], labels: Words, *, n_models: int
) -> list[str]:
    """Return the sentences on images that are left out, or a single one for several models.

    Args:
        notes: sentences on images without a text.
        unlabelled: sentences on images without a label.
        labels: label of each image (n,), or NO_LABEL.
        n_models: number of models.
    """
    n = int((labels == NO_LABEL).sum())
    if n_models == 1 or not (n and notes):
        return [*notes, *unlabelled]
    return [f"{notes[0].removesuffix('.')}, and {n:,} of the other {len(labels):,} a label."]


def _parts(
    answers: AnswerRows, settings: Mapping[str, Any], nouns: Words, misread: Mask
) -> list[TaskResult]:
    """Return the results for images with a clear label, and for unclear images, if there are any.

    Args:
        answers: what the models state.
        settings: settings of the tasks, with the notes.
        nouns: the noun of each image (n,), or "".
        misread: which images have a text that people marked as misread (n,).
    """
    has_unclear = bool((answers.labels == UNCLEAR).any())
    # With several models, the notes follow the sentences about each of them.
    is_first = not has_unclear or len(answers.answers) == 1
    parts = []
    if answers.clear.any():
        notes = settings["notes"] if is_first else []
        parts.append(_clear_result(answers, {**settings, "notes": notes}, nouns, misread))
    if has_unclear:
        notes = [] if parts and is_first else settings["notes"]
        parts.append(_unclear_result(answers, {**settings, "notes": notes, "examples": None}))
    return parts


def _shared_images(texts: Texts) -> list[str]:
    """Return the images that each model describes."""
    images = dict.fromkeys(chain(*texts.values()))
    shared = [image for image in images if all(image in known for known in texts.values())]
    if not shared:
        names = [next(iter(known)) for known in texts.values()]
        raise InvalidInputError(
            f"expected the same images for each model, but none is in all tables; they contain"
            f" images such as {', '.join(names)}; write image names in the same way"
        )
    return shared


def _doubts(
    words: Mapping[str, Sequence[str]], texts: Texts, images: Sequence[str], attribute: str
) -> list[str]:
    """Return a sentence on images with several texts, and warn if few texts state one value."""
    for method, answers in words.items():
        for value, doubt in _DOUBTS.items():
            n = answers.count(value)
            if 2 * n > len(answers):
                first = texts[method][images[answers.index(value)]][0]
                message = doubt.format(attribute=attribute, example=repr(first[:60]))
                warn_of_input(f"{n:,} of {len(answers):,} {message}")
    several = [image for image in images if any(len(read[image]) > 1 for read in texts.values())]
    if not several:
        return []
    return [
        f"{quantity(len(several), 'image')} with several texts, such as {several[0]!r}: all are"
        " read, and an image counts as “several” if they state different values."
    ]


def _clear_result(
    answers: AnswerRows, settings: Mapping[str, Any], nouns: Words, misread: Mask
) -> TaskResult:
    """Return what the models state about images with a clear label.

    Args:
        answers: what the models state.
        settings: settings of the task.
        nouns: the noun of each image (n,), or "".
        misread: which images have a text that people marked as misread (n,).
    """
    n = {value: int((answers.labels == value).sum()) for value in answers.values}
    clear = answers.with_provenance({"n": n, "settings": dict(settings)})
    clear.add_clear(nouns)
    sentences = {method: [_clear_sentence(clear, method)] for method in answers.answers}
    n_misread = int((misread & answers.clear).sum())
    rest = replace(answers.with_provenance({}), labels=np.where(misread, "", answers.labels))
    if n_misread and rest.clear.any():
        rest.add_clear(np.full(len(misread), ""))
        for method, about_model in sentences.items():
            marked = f"Without {quantity(n_misread, 'image')} marked as misread or wrongly labelled"
            about_model.append(f"{marked}: {_clear_sentence(rest, method)}")
    first, *_, last = map(persons, answers.values)
    heads = {key: head.format(first=first, last=last) for key, head in _HEADS.items()}
    return _shown(clear, "Images with a clear label", heads, sentences)


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
    sentences = {}
    for method in answers.answers:
        stated, *shares = (row for row in unclear.result.rows if row.method == method)
        n_unclear = quantity(stated.n["unclear images"], "unclear image")
        sentence = f"Of {n_unclear}, {_percent(answers, stated)}"
        sentence += f" get a {about.attribute}"
        if shares:
            most = max(shares, key=lambda row: row.value)
            sentence += f"; of these, {_percent(answers, most)} are called {most.subset}"
        sentences[method] = [f"{sentence}."]
    title = "Images whose value is unclear: whatever is stated is a guess"
    return _shown(unclear, title, heads, sentences)


def _shown(
    rows: AnswerRows,
    title: str,
    heads: Mapping[str, str],
    sentences: Mapping[str, Sequence[str]],
) -> TaskResult:
    """Return the result, with its table for the page and sentences about each model.

    Args:
        rows: the result's rows.
        title: caption of the table.
        heads: metric -> heading of its column.
        sentences: method -> sentences about its model.
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
        of_models = [
            f"{model}: {' '.join(sentences[key])}" for key, model in model_of_method.items()
        ]
        settings["notes"] = [*of_models, *settings["notes"]]
    else:
        # A terminal shows no notes next to advice.
        settings |= {"advice": [*sentences[NONE], *settings["notes"]], "notes": []}
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


def _clear_sentence(rows: AnswerRows, method: str) -> str:
    """Return a sentence on what a model states about images with a clear label."""
    row_of_metric = {
        row.metric: row for row in rows.result.rows if row.method == method and not row.subset
    }
    shares = [_percent(rows, row_of_metric[f"said_{answer}"]) for answer in ANSWERS]
    wrong, right, none, several = shares
    outcomes = [f"{right} get the right {rows.result.provenance.attribute}", f"{wrong} a wrong one"]
    outcomes.append(f"{none} none")
    if row_of_metric["said_several"].value:
        outcomes.append(f"{several} several or another one")
    n_clear = quantity(int(rows.clear.sum()), "image")
    return f"Of {n_clear} with a clear label, {listed_words(outcomes)}."


def _percent(rows: AnswerRows, row: Measurement) -> str:
    """Format a share, such as "1.4% [1.2%, 1.7%]", or "1.4%" if a table compares several models."""
    interval = f" [{row.interval[0]:.1%}, {row.interval[1]:.1%}]" if len(rows.answers) == 1 else ""
    return f"{row.value:.1%}{interval}"
