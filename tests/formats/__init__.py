"""Provide examples of each saved file, and the fields that they may contain.

`python -m tests.formats` writes an example of each format to this folder, except for those that
exist: a file that a released version wrote never changes, and `test_formats.py` reads it from then
on. To add a new format on purpose:

1. Increment the `format_version` that is written, pass the number to `check_format` as `newest`,
   and let the reader also accept the earlier formats.
2. Increment the number in `CURRENT`, run `python -m tests.formats`, and keep the earlier example
   with a test of what is read from it.
3. Run `python -m tests.interface`, and add a line to CHANGELOG.md.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from apps.audit.records.schema import Judge, Model, PromptCounts, Record
from apps.label.sample import LabelSample
from apps.shares.answers import Answer
from vldebias.measure.rows import Measurement, TaskProvenance
from vldebias.methods import METHODS
from vldebias.projection.cross_attention_edit import CrossAttentionEdit
from vldebias.projection.edit import Edit, _Config, _settings_of
from vldebias.projection.fingerprint import Fingerprint
from vldebias.projection.projection import CalibratedProjection
from vldebias.projection.provenance import Choice, Provenance
from vldebias.prompts import PromptSet, make_prompt_set
from vldebias.prompts.prompt_set import Recipe
from vldebias.report.conclusion import Conclusion
from vldebias.report.result import Result
from vldebias.reranking.index import IndexGroups
from vldebias.reranking.nearest import NearestText
from vldebias.training.run import Outcome, train_model
from vldebias.training.settings import TrainSettings, load_settings

FOLDER = Path(__file__).parent
# The format that is written today, by the name of the example.
CURRENT = {
    "edit.safetensors": 1,
    "cross-attention.safetensors": 1,
    "result.json": 1,
    "compact-result.json": 1,  # its rows are in a Parquet file next to it
    "record.json": 1,
    "index.safetensors": 3,
    "prompt-set.yaml": 1,
    "answers.jsonl": 1,
    "run.json": 1,
}
FINGERPRINT = Fingerprint(
    structure="abc", tensors=((1.5, -0.25), (2.0, 0.125)), texts=((0.5, 0.25), (1.0, -1.0))
)
VERSIONS = {"python": "3.12.0", "vldebias": "1.0.0"}
SETTINGS: dict[str, Any] = {
    "items": 24,
    "val_items": 100,
    "steps": 2,
    "batch_size": 8,
    "workers": 0,
    "seed": 4,
    "label": "label",
    "caption_noise": 0.5,
    "keep": 0.5,
}


def example(name: str, format_version: int) -> Path:
    """Return the path of an example, such as result-1.json."""
    path = FOLDER / name
    return path.with_stem(f"{path.stem}-{format_version}")


def edit() -> CalibratedProjection:
    """Return a projection (3, 1) with a choice and a fingerprint."""
    choice = Choice(
        attribute="gender", method="cali", lam=500.0, reason="It helps.", change=(-0.5, -0.75, -0.1)
    )
    provenance = Provenance(
        method="cali",
        lam=500.0,
        space="joint",
        model_id="someone/model",
        fingerprint=FINGERPRINT,
        attribute="gender",
        attribute_hash="0123",
        stated_words=("woman", "man"),
        choice=choice,
    )
    return CalibratedProjection(
        left=torch.tensor([[0.5], [0.25], [-1.0]], dtype=torch.float64),
        right=torch.tensor([[1.0], [-0.125], [1 / 3]], dtype=torch.float64),
        provenance=provenance,
        spurious_rank=1,
    )


def cross_attention() -> CrossAttentionEdit:
    """Return an edit of one layer of width 2 at two timesteps."""
    return CrossAttentionEdit(
        times=torch.tensor([1.0, 500.0]),
        effects=torch.tensor([[[0.5, 0.0], [-0.5, 0.0]], [[0.25, 1.0], [-0.25, -1.0]]]),
        amounts=torch.tensor([[1.0, 2.0], [0.5, 1.5]]),
        gate=torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]),
        gate_offsets=torch.tensor([0.25, 0.75, 0.1]),
        auroc={"stated": {"mid": 0.99}, "person": {"mid": 0.97}},
        layers=(("mid", 2),),
        clarity={"female": 0.5, "male": 0.25},
        attribute="gender",
        words={"female": ("woman",), "male": ("man",)},
        adjectives={"female": "female", "male": "male"},
        phrase={},
        stated=("woman", "man"),
        provenance=Provenance(method="cross-attention", model_id="someone/pipeline"),
    )


def result() -> Result:
    """Return a result with one task, two methods and a paired change."""
    rows = []
    for method, value, change in (("none", 0.5, None), ("cali", 0.25, (-0.25, -0.375, -0.125))):
        rows.append(
            Measurement(
                task="birds",
                metric="gap",
                method=method,
                value=value,
                interval=(value - 0.125, value + 0.125),
                change=change,
                better="lower",
                n={"images": 120},
                lam=1000.0 if method == "cali" else None,
            )
        )
    provenance = TaskProvenance(
        task="birds",
        description="Accuracy by group.",
        model="someone/model",
        attribute="waterbirds",
        attribute_hash="0123",
        split="waterbirds test",
        methods={"none": {}, "cali": {"lam": 1000.0}},
        seeds=[0, 1],
        n={"images": 120},
        settings={"k": 10},
    )
    return Result(
        name="small",
        figures=rows,
        protocols=[provenance],
        versions=VERSIONS,
        commit="0123456789ab",
        seconds=1.5,
        date="2026-11-29T12:00:00+00:00",
        command="vldebias eval run small",
        platform="Linux x86_64, 2 processors",
    )


def record() -> Record:
    """Return a record of one prompt."""
    return Record(
        name="small",
        origin="measured",
        model=Model(name="Model", id="someone/model", weights="0123", pipeline="Pipeline"),
        attribute="gender",
        values=("female", "male"),
        judge=Judge(kind="model", name="judge", fingerprint="0123", threshold=0.75),
        counts=(
            PromptCounts(subject="nurse", prompt="A photo of a nurse.", counts=(17, 2), unknown=1),
        ),
        versions=VERSIONS,
        date="2026-11-29",
        measured_by="the tests",
        licence="CC0-1.0",
    )


def index() -> IndexGroups:
    """Return the groups of an index with vectors (3,)."""
    texts = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    return IndexGroups(
        (NearestText(("female", "male"), texts, np.array([0.25, 0.125])),),
        np.array([0.75, 0.25]),
        np.array([0.0, 0.5]),
        FINGERPRINT,
        np.array([0.5, 0.5, -0.5]),
        "too few images",
        "gender: predicted without labels",
    )


def prompt_set() -> PromptSet:
    """Return a prompt set with all fields that `make_prompt_set` takes."""
    return make_prompt_set(
        "prompt-set-1",
        {"with": ["with glasses"], "without": ["without glasses"]},
        ["doctor", "teacher"],
        ["A photo of a {concept} {attribute}."],
        ["A photo of a person {attribute}."],
        test_concepts=["nurse"],
        stated_words=["glasses"],
        phrase={"with": "with glasses", "without": "without glasses"},
    )


def answers() -> list[Answer]:
    """Return two answers, of which the second has no weight."""
    first = Answer(
        image="none/a/7.png",
        annotator="ada",
        attribute="gender",
        value="female",
        time=datetime(2026, 11, 29, 12, tzinfo=UTC),
        seconds=2.5,
        weight=4.0,
    )
    return [first, first.model_copy(update={"image": "none/b/7.png", "weight": None})]


def _write_edit(saved: Edit, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(saved.save_pretrained(folder) / "projection.safetensors", path)


def _write_answers(path: Path) -> None:
    lines = [answer.model_dump_json(exclude_none=True) for answer in answers()]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _write_run(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train_model(load_settings(**SETTINGS), Path(folder), cpu=True)
        content = json.loads(Path(folder, "run.json").read_text(encoding="utf-8"))
    # The versions depend on the environment.
    content["versions"] = VERSIONS
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


WRITERS: dict[str, Callable[[Path], object]] = {
    "edit.safetensors": lambda path: _write_edit(edit(), path),
    "cross-attention.safetensors": lambda path: _write_edit(cross_attention(), path),
    "result.json": lambda path: result().write(path),
    "compact-result.json": lambda path: result().write(path, compact=True),
    "record.json": lambda path: record().write(path),
    "index.safetensors": lambda path: index().save(path),
    "prompt-set.yaml": lambda path: prompt_set().to_yaml(path),
    "answers.jsonl": _write_answers,
    "run.json": _write_run,
}


def fields_of(kind: Any) -> list[str]:
    """Return the fields of a pydantic model or dataclass, including those of nested ones."""
    schema = TypeAdapter(kind).json_schema()
    fields = list(schema["properties"])
    for name, part in schema.get("$defs", {}).items():
        fields += [f"{name}.{field}" for field in part.get("properties", {})]
    return sorted(fields)


def fields() -> dict[str, list[str]]:
    """Return the fields of every saved file, for `tests/interface.json`."""
    list(METHODS)  # importing all methods registers their edits
    described = {"edit": fields_of(_Config)}
    for kind, edit_class in sorted(Edit.kinds.items()):
        # Leave out edits that other packages, tests and examples in docstrings define.
        module = sys.modules[edit_class.__module__]
        is_ours = module.__name__.startswith("vldebias.")
        if is_ours and getattr(module, edit_class.__name__, None) is edit_class:
            tensors = [f"{name} ({axes})" for name, axes in edit_class.axes.items()]
            described[f"edit, kind {kind}"] = tensors + fields_of(_settings_of(edit_class))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index.safetensors")
        index().save(path)
        content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    described["index"] = sorted({*header, *header["__metadata__"]} - {"__metadata__"})
    described["result"] = sorted(result().to_dict())
    described["result, figures"] = fields_of(Measurement)
    described["result, protocols"] = fields_of(TaskProvenance)
    described["result, conclusions"] = fields_of(Conclusion)
    described["record"] = fields_of(Record)
    described["prompt set"] = fields_of(Recipe)
    described["answer"] = fields_of(Answer)
    described["sample of images to label"] = fields_of(LabelSample)
    described["run.json"] = sorted(Outcome.__annotations__)
    described["run.json, settings"] = fields_of(TrainSettings)
    return described


def write_missing() -> None:
    """Write the examples of the current formats that do not exist yet."""
    for name, write in WRITERS.items():
        path = example(name, CURRENT[name])
        if not path.exists():
            write(path)
            print(f"wrote {path}")
