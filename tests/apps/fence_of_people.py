"""Evaluate twelve small inputs about people, and describe the results.

`python -m tests.apps.fence_of_people` writes the rows, to nine digits, and the sentences to
`fence_of_people.json`, with which `test_fence_of_people.py` compares the package.
"""

import json
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from apps.captions.answers import evaluate_vqa
from apps.captions.captions import evaluate_captions
from apps.edits.edits import evaluate_edits
from apps.shares.answers import AnnotationLog
from apps.shares.task import SharesTask
from tests.apps.edits.test_edits import POINTS, content, face
from tests.study.painted_by_hand import GENDERS, Reader, paint, task
from vldebias.report.result import Result
from vldebias.study.inputs import Inputs
from vldebias.utils.options import Options

FILE = Path(__file__).with_suffix(".json")
KINDS = ("advice", "findings", "notes")
TEXTS = ("A man.", "A woman.", "A person.", "A man and a woman.", "I cannot help with that.")
TELL = "Can't be determined"


def captions(n: int = 30) -> dict[str, Any]:
    """Return captions of images without labels."""
    return {
        "image": [f"{number}.jpg" for number in range(n)],
        "caption": [TEXTS[number * number % 4] for number in range(n)],
        "noun": ["doctor" if number % 3 else "nurse" for number in range(n)],
    }


def labelled(n: int = 30) -> dict[str, Any]:
    """Return captions of images with the labels male, female and unclear."""
    values = ("male", "female", "female", "unclear", "male", "")
    return captions(n) | {"label": [values[number % 6] for number in range(n)]}


def questions() -> dict[str, Any]:
    """Return labels of images about which a model is asked."""
    return {"image": range(12), "label": ["male", "female", "female", "unclear"] * 3}


def edits(**columns: Any) -> dict[str, Any]:
    """Return edits of people in two groups with two instructions."""
    return {
        "before": [f"{number // 2}.png" for number in range(60)],
        "after": [f"after-{number}.png" for number in range(60)],
        "group": ["dark" if number // 2 % 2 else "light" for number in range(60)],
        "instruction": ["a CEO", "a nurse"] * 30,
        "before_label": ["woman" if number // 2 % 3 else "man" for number in range(60)],
        "after_label": [("F", "male", "unclear", "man")[number % 4] for number in range(60)],
    } | columns


def skin_edits() -> dict[str, Any]:
    """Return labelled faces before and after an edit, with points and images in the table."""
    before = [face((170 - 3 * n, 125 - 3 * n, 100 - 3 * n)) for n in range(20)]
    after = [face((176 - 2 * n, 131 - 2 * n, 106 - 2 * n)) for n in range(20)]
    return {
        "before.bytes": list(map(content, before)),
        "after.bytes": list(map(content, after)),
        "group": ["light", "dark"] * 10,
        "before_points": [POINTS] * 20,
        "after_points": [POINTS] * 20,
    }


def shares(columns: dict[str, Any], **fields: Any) -> Result:
    """Evaluate a table of labels."""
    settings = {"prompt": "text", "value": "judge", "resamples": 200} | fields
    parts = SharesTask.build(settings).measure(columns)
    return Result.from_tasks("shares", parts, seconds=None)


def judged(prompts: int = 6, images: int = 20) -> dict[str, Any]:
    """Return a judge's labels of two models' images, with weights and labels by people."""
    numbers = range(prompts * images * 2)
    values = ("female", "male", "male", "cannot tell", "female", "male", "")
    return {
        "text": [f"prompt {number // (2 * images)}" for number in numbers],
        "model": ["sd" if number % 2 else "mended" for number in numbers],
        "judge": [values[(number * number + number // 40) % 7] for number in numbers],
        "weight": [1.0 + number % 3 for number in numbers],
        "people": [values[number % 5] if number % 3 else "" for number in numbers],
    }


def by_hand(folder: Path) -> Result:
    """Label images that a judge has judged: with majorities, ties and unclear images."""
    made, shows = paint(folder / "drawn", np.random.default_rng(3), images=6)
    task().measure(made.folder, Reader())
    log = AnnotationLog(folder / "answers.jsonl")
    words = (*GENDERS, "cannot tell")
    for number, image in enumerate(made):
        shown = words[shows[image.path][0]]
        for annotator in ("ada", "ben", "eve", "dan")[: 1 + number % 4]:
            value = words[number % 3] if annotator == "ben" else shown
            log.append(image.path, annotator, "gender", value)
    human = SharesTask(name="gender", title="t", attribute="gender", values=GENDERS, resamples=50)
    options = Options(out=folder, label_file=(log.path,), image_dir=made.folder)
    parts = human.measured(human.prepare(Inputs(options)))
    return Result.from_tasks("by hand", parts, seconds=None)


def results(folder: Path) -> dict[str, Result]:
    """Evaluate all inputs."""
    letters = {"A": ["a man"] * 12, "B": ["a woman"] * 12, "C": [TELL] * 12}
    texts = {"ans0": ["a boy"] * 12, "ans1": ["a girl"] * 12, "ans2": [TELL] * 12}
    said = ["his", "her", "their", "a man", "a woman", "both"] * 2
    refusing = labelled() | {"caption": [TEXTS[n % 5] for n in range(30)]}
    other = labelled() | {"caption": [TEXTS[n % 3] for n in range(30)]}
    people = {"before_people": ["woman", "man", ""] * 20, "after_people": ["man", "", "woman"] * 20}
    table = judged()
    method = {"method": "model", "baseline": "sd"}
    return {
        "captions": evaluate_captions(labelled()),
        "captions without labels": evaluate_captions(captions()),
        "captions of two models": evaluate_captions(labelled(), other),
        "captions with refusals": evaluate_captions(refusing),
        "answers in words": evaluate_vqa(questions() | {"answer": said}),
        "answers by letter": evaluate_vqa(questions() | letters | {"answer": list("ABCABB") * 2}),
        "answers by number": evaluate_vqa(questions() | texts | {"answer": list("012011") * 2}),
        "edits": evaluate_edits(edits()),
        "edits labelled by people": evaluate_edits(edits(**people)),
        "edits of skin": evaluate_edits(skin_edits()),
        "shares": shares(table, weight="weight", people="people", **method),
        "labels by hand": by_hand(folder),
    }


def described() -> dict[str, dict[str, list[Any]]]:
    """Return the rows and sentences of each result."""
    found = {}
    with warnings.catch_warnings(), TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        for name, result in results(Path(folder)).items():
            rows = []
            for row in result.rows:
                figures = [row.value, *row.interval, *(row.change or ())]
                names = [row.task, row.metric, row.method, row.subset]
                rows.append([*names, " ".join(f"{figure:.9g}" for figure in figures), row.n])
            parts = [part.settings for part in result.provenance]
            texts = [text for part in parts for kind in KINDS for text in part.get(kind) or ()]
            found[name] = {"rows": rows, "sentences": texts}
    return found


if __name__ == "__main__":
    lines = []
    for name, parts in described().items():
        kinds = []
        for kind, items in parts.items():
            listed = ",\n".join(f"   {json.dumps(item, ensure_ascii=False)}" for item in items)
            kinds.append(f'  "{kind}": [\n{listed}\n  ]')
        lines.append(f" {json.dumps(name)}: {{\n" + ",\n".join(kinds) + "\n }")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
