"""Which questions a study asks of everyone, and its answers as a table and as tasks of Label Studio."""

import csv
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_parts import AGE, GENDER, draw, studies, study
from pydantic import BaseModel, ConfigDict, TypeAdapter

from vldebias.cli.apps import page
from vldebias.errors import InvalidInputError
from vldebias.evaluation.answers import Answer, read_annotations

exports = page("label.export")
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
MANY = [1, 3, 4, 8, 9, 12, 200]


class Documented(BaseModel):
    """Fields that https://labelstud.io/guide/task_format.html describes, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Choices(Documented):
    choices: list[str]


class Meta(Documented):
    text: list[str]


class Region(Documented):
    id: str
    from_name: str
    to_name: str
    type: Literal["choices"]
    value: Choices
    meta: Meta | None = None


class Annotation(Documented):
    model_config = ConfigDict(extra="forbid")  # times are texts in JSON

    result: list[Region]
    was_cancelled: bool
    ground_truth: bool
    created_at: datetime | None = None
    lead_time: float | None = None


class Task(Documented):
    data: dict[str, str]
    annotations: list[Annotation]


@pytest.fixture
def answered(tmp_path: Path) -> Any:
    """Two people, two questions; one of them changed her mind, and saw nobody in one image."""
    draw(tmp_path)
    engine = study(tmp_path, GENDER, AGE)
    for name, first in (("ada", 0), ("ben jr.", 1)):
        place = engine.start(name)
        for choice in (first, 1, first, 0):
            place = engine.answer(place, choice)
    engine.answer(engine.at("ada", 0), 1)
    engine.answer(engine.at("ada", 4), 3)
    return engine


def test_the_table_can_be_read_again(answered: Any, tmp_path: Path) -> None:
    (path,) = exports.export(answered, tmp_path / "out" / "answers.csv")
    again, kept = read_annotations(path), read_annotations(answered.log.path)
    assert again.answers == kept.answers
    assert kept.replaced == 1
    assert path.read_text().splitlines()[0] == "image,annotator,attribute,value,time,seconds"


@given(st.lists(st.text("=+-@'\t\r\n,\";\uff1d\xe9 ab", min_size=1, max_size=6), min_size=3, max_size=3))
def test_no_cell_is_a_formula_and_the_reader_gives_every_answer_back(texts: list[str]) -> None:
    """Names of files and choices are of the user's own, and a spreadsheet runs what begins like a formula."""
    image, attribute, value = (text.strip() or "-" for text in texts)
    answer = Answer(image=image, annotator="=ada", attribute=attribute, value=value, time=NOON, seconds=0.5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers.csv"
        path.write_bytes(exports.table([answer]).encode())
        with path.open(newline="") as file:
            (cells,) = list(csv.reader(file))[1:]
        assert read_annotations(path).answers == (answer,)
    assert not [cell for cell in cells if cell[0] in "=+-@\t\r\n\uff1d"]
    assert cells[1] == "'=ada"


def test_label_studio_gets_what_its_format_describes(answered: Any, tmp_path: Path) -> None:
    path, interface = exports.export(answered, tmp_path / "tasks.json")
    tasks = TypeAdapter(list[Task]).validate_json(path.read_bytes())
    view = ElementTree.parse(interface).getroot()
    (image,) = view.findall("Image")
    offered = {one.get("name"): [c.get("value") for c in one] for one in view.findall("Choices")}
    answers = read_annotations(answered.log.path).answers
    told = {
        (task.data["image"].removeprefix(exports.LOCAL), *region.meta.text, region.from_name, *region.value.choices)
        for task in tasks
        for one in task.annotations
        for region in one.result
        if region.meta
    }
    assert told == {(a.image, a.annotator, a.attribute, a.value) for a in answers}
    assert len({task.data["image"] for task in tasks}) == len(tasks)
    for task in tasks:
        assert f"${next(iter(task.data))}" == image.get("value")
        for one in task.annotations:
            assert {region.to_name for region in one.result} == {image.get("name")}
            assert all(region.value.choices[0] in offered[region.from_name] for region in one.result)
            assert len({region.from_name for region in one.result}) == len(one.result)


def test_other_endings_and_no_answers_are_refused(answered: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"--export .*x: expected a name that ends in .csv or in .json"):
        exports.export(answered, tmp_path / "x")
    draw(tmp_path / "new")
    with pytest.raises(InvalidInputError, match=r"answers\.jsonl: cannot be read"):
        exports.export(study(tmp_path / "new"), tmp_path / "x.csv")


# ---- which questions ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 prompts x 4 seeds x 2 variants."""
    return draw(tmp_path_factory.mktemp("sixteen"), images=4).folder


@pytest.mark.parametrize("most", MANY)
def test_a_study_keeps_twins_together_and_takes_prompts_in_turn(sixteen: Path, most: int) -> None:
    kept = studies.ImageFolder.open(sixteen, most=most).records
    assert len(kept) == max(2, min(16, most - most % 2))
    twins = Counter((image.prompt, image.seed) for image in kept)
    assert set(twins.values()) == {2}
    each = Counter(prompt for prompt, _ in twins)
    assert max(each.values()) - min(each.values() if len(each) == 2 else [0]) <= 1
    more = studies.ImageFolder.open(sixteen, most=most + 2).records
    assert set(kept) <= set(more)  # a larger study goes on with the same images


def test_two_hundred_questions_by_default(tmp_path: Path) -> None:
    for i in range(230):
        (tmp_path / f"{i}.png").write_bytes(b"")
    opened = page("label").open_study(tmp_path, ["gender"])
    assert len(opened.folder.records) == 200
    assert len(opened.folder.everything) == 230
    assert len(page("label").open_study(tmp_path, ["gender", "age"]).folder.records) == 100
    assert len(page("label").open_study(tmp_path, ["gender"], most=None).folder.records) == 230
