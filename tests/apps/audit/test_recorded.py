"""Test records of generated images: counts, protocol subjects, human labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.audit.recorded import RECORDS, record_of_images, with_labels
from apps.audit.records.check import problems_of
from apps.audit.records.schema import Record
from apps.shares.answers import AnnotationLog
from tests.study.painted_by_hand import Reader, paint, task
from vldebias.data import Labels
from vldebias.errors import InvalidInputError
from vldebias.judge.judges import Judge
from vldebias.judge.plan import GeneratedImages, Plan

VALUES = ("male", "female")
JUDGE = Judge("reader", {"gender": VALUES}, lambda images: {}, "1")
PROMPTS = ("A photo of a nurse.", "A photo of a friendly nurse.", "A cook.")


def images_in(folder: Path) -> GeneratedImages:
    """Return sixty images in a folder, which need no pixels to be counted."""
    plan = Plan.build(
        {
            "model": {"pipeline": "P", "id": "model", "scheduler": "S", "fingerprint": None},
            "prompt_set": "gender",
            "prompt_set_hash": "0",
            "prompts": tuple((text, text, "unseen", None) for text in PROMPTS),
            "variants": {"none": {}, "cali": {}},
            "seeds": (0,),
            "images": 10,
            "stated_images": 0,
            "steps": 4,
            "guidance": 3.0,
            "batch_size": 4,
            "options": {"height": 64},
        }
    )
    plan.settle(folder)
    return GeneratedImages.open(folder)


@pytest.fixture
def made(tmp_path: Path) -> GeneratedImages:
    return images_in(tmp_path)


def codes_of(made: GeneratedImages) -> np.ndarray:
    """Return the codes for ten images per prompt. Under "none", seven show women, two show men, and
    one is unknown. Under "cali", all show men."""
    codes = []
    for image in made:
        of_none = 1 if image.seed < 7 else 0 if image.seed < 9 else -1
        codes.append(of_none if image.variant == "none" else 0)
    return np.array(codes)


def record_of(images: GeneratedImages, **options: Any) -> Record | None:
    """Return the record of the images with these codes."""
    labels = Labels(codes_of(images), VALUES)
    how = {"attribute": "gender", "judge": JUDGE, "model": "model", **options}
    return record_of_images(images, labels, **how)


def store_judgements(images: GeneratedImages) -> None:
    """Write the probabilities with which the judge gave these codes."""
    stored = images.folder / "judgements" / "reader.jsonl"
    stored.parent.mkdir()
    lines = [json.dumps({"name": "reader", "names": {"gender": VALUES}})]
    chances = {1: [0.0, 1.0], 0: [1.0, 0.0], -1: [0.3, 0.3]}
    for image, code in zip(images, codes_of(images).tolist(), strict=True):
        lines.append(json.dumps({f"{image.path} -": {"gender": chances[code]}}))
    stored.write_text("\n".join(lines), encoding="utf-8")


def test_a_record_has_the_counts_of_one_variant_and_the_subjects_of_the_protocol(
    made: GeneratedImages,
) -> None:
    record = record_of(made)
    assert record is not None
    assert problems_of(record) == []
    assert [(row.subject, row.qualifier) for row in record.counts] == [
        ("nurse", ""),
        ("nurse", "friendly"),
        ("A cook.", ""),
    ]
    assert {(row.counts, row.unknown) for row in record.counts} == {((2, 7), 1)}
    assert record.protocol is None
    assert record.generation.options == {"height": 64}
    changed = record_of(made, variant="cali")
    assert changed is not None
    assert {row.counts for row in changed.counts} == {(10, 0)}
    assert (changed.model.method, changed.model.is_plain) == ("cali", False)
    assert record_of(made, variant="absent") is None


def test_human_labels_are_counted_by_judge_answer(made: GeneratedImages) -> None:
    record = record_of(made)
    assert record is not None
    store_judgements(made)
    # People label one of the seven women as a man, and disagree about another one.
    answers = made.folder / "answers.jsonl"
    log = AnnotationLog(answers)
    for image in made.of_variant("none"):
        if image.prompt != PROMPTS[0]:
            continue
        value = "male" if image.seed in (0, 7, 8) else "female"
        log.append(image.path, "ada", "gender", value, weight=1.0)
        log.append(image.path, "ben", "gender", "male" if image.seed == 1 else value, weight=1.0)
    labelled = with_labels(record, made.folder, [answers])
    assert labelled.annotators == 2
    assert problems_of(labelled) == []
    counts = {label.judged: (label.counts, label.unknown) for label in labelled.labels}
    assert counts == {"female": ((1, 5), 1), "male": ((2, 0), 0), "unknown": ((0, 1), 0)}
    share = {f.qualifier: f for f in labelled.figures if (f.metric, f.value) == ("share", "male")}
    assert share[""].labels == 10
    assert share["friendly"].labels == 0
    other = made.folder / "other.jsonl"
    AnnotationLog(other).append("elsewhere.png", "ada", "gender", "male")
    with pytest.raises(InvalidInputError, match="none of the answers is about an image"):
        with_labels(record, made.folder, [other])


def test_a_suite_writes_a_record_for_every_method(tmp_path: Path) -> None:
    painted, _ = paint(tmp_path, np.random.default_rng(5))
    task(attributes=["gender"], noun="jobs").measure(painted.folder, Reader())
    records = {path.stem: Record.read(path) for path in (tmp_path / RECORDS).glob("*.json")}
    assert {name.split("-")[0] for name in records} == {"gender"}
    plain = records["gender-none"]
    assert problems_of(plain) == []
    opened = [
        image
        for image in painted
        if image.variant == "none" and image.stated is None and image.part in ("train", "unseen")
    ]
    counted = sum(sum(row.counts) + (row.unknown or 0) for row in plain.counts)
    assert counted == len(opened)
