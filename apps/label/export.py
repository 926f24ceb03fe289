"""Takes the answers elsewhere: a table, or the tasks of Label Studio with the labelling interface that they need.

The format of the tasks is that of https://labelstud.io/guide/task_format.html: an image each, an annotation per person.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from vldebias.errors import InvalidInputError
from vldebias.evaluation.answers import Answer, read_annotations
from vldebias.files import shielded, write_atomically

from .engine import Labelling

FIELDS = ("image", "annotator", "attribute", "value", "time", "seconds")
LOCAL = "/data/local-files/?d="  # how Label Studio serves files below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT


def export(engine: Labelling, path: Path) -> list[Path]:
    """Write the last answers of everyone to a .csv, or to a .json for Label Studio with its interface beside, as .xml.

    Raises:
        InvalidInputError: another ending, or no answers yet.
    """
    answers = read_annotations(engine.log.path).answers
    if path.suffix == ".csv":
        return [write_atomically(path, table(answers))]
    if path.suffix == ".json":
        tasks = json.dumps(label_studio(answers), indent=1, ensure_ascii=False) + "\n"
        return [write_atomically(path, tasks), write_atomically(path.with_suffix(".xml"), interface(engine))]
    raise InvalidInputError(f"--export {path}: expected a name that ends in .csv or in .json (for Label Studio)")


def table(answers: Iterable[Answer]) -> str:
    """CSV with a header, which `vldebias eval human --labels` reads too; with weights where an answer has one.

    No text is a formula to a spreadsheet (`files.shielded`); `read_annotations` gives back what was answered.
    """
    text, listed = io.StringIO(), list(answers)
    fields = (*FIELDS, "weight") if any(answer.weight is not None for answer in listed) else FIELDS
    writer = csv.DictWriter(text, fields, extrasaction="ignore")
    writer.writeheader()
    for answer in listed:
        told = answer.model_dump(mode="json", exclude={"version"})
        cells = {name: shielded(value) if isinstance(value, str) else value for name, value in told.items()}
        writer.writerow(cells)
    return text.getvalue()


def label_studio(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """A task for each image, with an annotation for each person who answered about it.

    Who that is stands in the notes of each answer: `completed_by` would have to name a user of the server.
    """

    def image(answer: Answer) -> str:
        return answer.image

    def person(answer: Answer) -> str:
        return answer.annotator

    return [
        {
            "data": {"image": LOCAL + name},
            "annotations": [_annotation(list(theirs)) for _, theirs in groupby(sorted(about, key=person), key=person)],
        }
        for name, about in groupby(sorted(answers, key=image), key=image)
    ]


def _annotation(answers: list[Answer]) -> dict[str, Any]:
    times = [answer.time.isoformat() for answer in answers if answer.time]
    told: dict[str, Any] = {"created_at": min(times)} if times else {}
    if all(answer.seconds is not None for answer in answers):
        told["lead_time"] = round(sum(answer.seconds or 0.0 for answer in answers), 3)
    result = [
        {
            "id": f"a{i}",
            "from_name": answer.attribute,
            "to_name": "image",
            "type": "choices",
            "value": {"choices": [answer.value]},
            "meta": {"text": [answer.annotator]},
        }
        for i, answer in enumerate(answers)
    ]
    return told | {"was_cancelled": False, "ground_truth": False, "result": result}


def interface(engine: Labelling) -> str:
    """The labelling interface of the same questions, to paste into the settings of a project before the import."""
    lines = ["<View>", '  <Image name="image" value="$image"/>']
    for question in engine.questions:
        lines.append(f'  <Choices name={quoteattr(question.attribute)} toName="image" choice="single">')
        lines += [f"    <Choice value={quoteattr(choice)}/>" for choice in question.choices]
        lines.append("  </Choices>")
    return "\n".join([*lines, "</View>"]) + "\n"
