"""Test the valid contents of a record, and the schema that others can use to check one."""

import json
import math
from pathlib import Path

import pytest

from apps.audit.records.schema import PromptCounts, Published, Record
from tests.apps.audit.records.test_figures import made
from vldebias.errors import InvalidInputError

ROOT = Path(__file__).parents[4]


def test_a_record_round_trips_unchanged(tmp_path: Path) -> None:
    record = made([(5, 5, 0), (9, 1, 0)])
    assert Record.read(record.write(tmp_path / "r.json")) == record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": ["female", "male", "other"]}, "got 2 numbers; expected one for each"),
        ({"judge": None}, "must name who or what judged"),
        ({"versions": {}}, "a record with origin 'measured' needs counts and versions"),
        ({"origin": "published"}, "must name the source of its counts"),
        ({"colour": "red"}, "unknown key"),
        ({"annotators": -3}, "annotators: .*greater than or equal to 1"),
        ({"generation": {"steps": -5}}, "generation.steps: .*greater than or equal to 1"),
        ({"date": "yesterday"}, "date: .*pattern"),
        ({"labels": [{"judged": "woman", "counts": [1, 2]}]}, "got 'woman' with 2 numbers"),
        ({"counts": [{"subject": "a", "prompt": "a", "counts": [-1, 2]}]}, "greater than or equal"),
        ({"counts": [{"subject": "a", "prompt": "a", "counts": [10**400, 2]}]}, "less than or"),
        ({"values": ["male", "Male "]}, "expected different names other than 'unknown'"),
        ({"values": ["male", "unknown"]}, "expected different names other than 'unknown'"),
        ({"labels": [{"judged": "male", "counts": [1, 2], "weight": math.inf}]}, "finite number"),
        ({"labels": [{"judged": "male", "counts": [1, 2], "weight": 1e308}]}, "less than or"),
    ],
)
def test_a_contradictory_record_is_rejected(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    content = made([(5, 5, 0)]).model_dump(mode="json") | change
    (tmp_path / "r.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InvalidInputError, match=message):
        Record.read(tmp_path / "r.json")


@pytest.mark.parametrize("number", [math.nan, math.inf, -0.1, 1.1])
@pytest.mark.parametrize(
    ("part", "field"),
    [
        ("figures", "estimate"),
        ("figures", "low"),
        ("figures", "high"),
        ("published", "figure"),
        ("published", "tolerance"),
    ],
)
def test_figures_and_tolerances_must_be_finite_and_in_range(
    part: str, field: str, number: float, tmp_path: Path
) -> None:
    printed = Published(metric="share", value="female", figure=0.5, where="Table 1")
    content = made([(5, 5, 0)], published=(printed,)).model_dump(mode="json")
    content[part][0][field] = number
    (tmp_path / "r.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InvalidInputError, match=rf"{part}.0.{field}: Input should be"):
        Record.read(tmp_path / "r.json")


def test_a_name_may_occur_only_once_in_an_object(tmp_path: Path) -> None:
    text = json.dumps(made([(5, 5, 0)]).model_dump(mode="json"))
    repeated = text.replace('"attribute":', '"attribute": "age", "attribute":', 1)
    (tmp_path / "r.json").write_text(repeated, encoding="utf-8")
    with pytest.raises(InvalidInputError, match="the name 'attribute' twice in one object"):
        Record.read(tmp_path / "r.json")


def test_a_prompt_may_only_be_listed_once() -> None:
    row = PromptCounts(subject="Nurse", prompt="a", counts=(1, 2))
    with pytest.raises(ValueError, match="listed twice"):
        made([], counts=(row, row.model_copy(update={"subject": "nurse"})))


def test_the_committed_schema_equals_the_schema_of_the_package() -> None:
    committed = json.loads((ROOT / "docs" / "record.schema.json").read_text(encoding="utf-8"))
    assert committed == Record.model_json_schema()
