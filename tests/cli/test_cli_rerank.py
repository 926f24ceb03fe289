"""Test `vldebias rerank`, which takes ids with scores and returns ids."""

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vldebias.cli import app
from vldebias.errors import InvalidInputError

RESULTS = [
    {"id": f"doc-{place}", "score": 1 - place / 10, "gender": gender}
    for place, gender in enumerate(["m", "m", "m", "f", "unknown", "f", "f", "m", "f"])
]
EXPECTED = ["doc-0", "doc-3", "doc-1", "doc-5"]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    file = tmp_path / "results.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in RESULTS))
    return file


def run(*arguments: object, text: str | None = None):  # type: ignore[no-untyped-def]
    done = CliRunner().invoke(app, ["rerank", *map(str, arguments)], input=text)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def ids(table: str) -> list[str]:
    return [row["id"] for row in csv.DictReader(io.StringIO(table), delimiter="\t")]


def test_stdout_gets_a_table_and_stderr_a_summary(results: Path) -> None:
    done = run(results, "--k", 4, "--attribute", "gender")
    assert ids(done.stdout) == EXPECTED
    assert "first 4 by quota, pool shares, given labels: 1 f, 3 m -> 2 f, 2 m" in done.stderr


def test_json_is_the_only_output_on_request(results: Path) -> None:
    done = run(results, "--k", 4, "--attribute", "gender", "--json")
    (query,) = json.loads(done.stdout)["queries"]
    assert [row["id"] for row in query["results"]] == EXPECTED
    assert query["results"][1] == {
        "place": 2,
        "id": "doc-3",
        "score": 0.7,
        "was at": 4,
    }
    assert query["expected"] is None
    assert sorted(query["to check"]) == sorted(EXPECTED)
    assert query["counts"] == {"f": 2, "m": 2}


def test_no_output_lists_the_group_of_a_result(results: Path) -> None:
    done = run(results, "--attribute", "gender")
    assert "pass the column as --checked" in done.stderr
    table = done.stdout
    assert set(table.splitlines()[0].split("\t")) == {"place", "id", "score", "was at"}
    (query,) = json.loads(run(results, "--attribute", "gender", "--json").stdout)["queries"]
    assert all(set(row) == {"place", "id", "score", "was at"} for row in query["results"])


def test_a_column_of_verified_groups_yields_true_shares(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    rows = [{**row, "seen": row["gender"]} for row in RESULTS]
    rows[3]["seen"] = "m"  # doc-3 is labelled "f"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = run(file, "--k", 4, "--attribute", "gender", "--checked", "seen", "--json")
    (query,) = json.loads(done.stdout)["queries"]
    assert query["expected"] == {"f": [0.25] * 3, "m": [0.75] * 3}
    assert query["checked"] == 8
    assert query["to check"] == []
    assert "true shares, 95% intervals: f 25% [25%, 25%]" in done.stderr
    with pytest.raises(InvalidInputError, match="name it with --checked COLUMN"):
        run(file, "--k", 4, "--attribute", "gender", "--checked", "zzzz")


def test_checked_results_that_name_no_group_are_counted_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    rows = [{**row, "seen": row["gender"]} for row in RESULTS]
    rows[3]["seen"] = "cannot tell"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = run(file, "--k", 4, "--attribute", "gender", "--checked", "seen", "--json")
    assert json.loads(done.stdout)["queries"][0]["checked"] == 7
    assert "2 of 9 checked results name no group, such as 'cannot tell'" in done.stderr


def test_standard_input_may_contain_several_queries() -> None:
    lines = []
    for query in ("a nurse", "a pilot"):
        lines += [json.dumps({**row, "query": query}) for row in RESULTS]
    done = run("-", "--k", 4, "--attribute", "gender", text="\n".join(lines))
    assert ids(done.stdout) == EXPECTED * 2
    assert done.stdout.splitlines()[0].startswith("query\tplace\tid")
    assert "a pilot: first 4" in done.stderr


def test_a_table_may_have_other_columns_and_distances(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    rows = [f"{row['id']},{1 - float(str(row['score']))},{row['gender']}" for row in RESULTS]
    file.write_text("\n".join(["doc,d,sex", *rows]))
    done = run(file, "--k", 4, "--attribute", "sex", "--columns", "id=doc,distance=d")
    assert ids(done.stdout) == EXPECTED


@pytest.mark.parametrize(("shares", "females"), [("f=0.25,m=0.75", 1), ("pool", 2), ("even", 2)])
def test_shares_are_applied(results: Path, shares: str, females: int) -> None:
    done = run(results, "--k", 4, "--attribute", "gender", "--shares", shares, "--json")
    assert json.loads(done.stdout)["queries"][0]["counts"]["f"] == females


@pytest.mark.parametrize(
    ("line", "arguments", "words"),
    [
        ('{"id": 1, "score": "x", "gender": "m"}', (), "expected a number in 'score'"),
        ('{"id": 1, "gender": "m"}', (), "no column 'score'"),
        ('{"id": 1, "score": 1, "gendre": "m"}', (), "did you mean 'gendre'"),
        ("[1]", (), "expected a list of objects"),
        ("{", (), "expected JSON"),
        ("", (), "expected results, got none"),
        ("", ("--columns", "ids=doc"), "did you mean 'id'"),
        ('{"id": 1, "score": 1, "gender": "m"}', ("--shares", "census"), "expected 'pool', 'even'"),
    ],
)
def test_invalid_input_is_rejected_by_name(
    tmp_path: Path, line: str, arguments: tuple[str, ...], words: str
) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text(line)
    with pytest.raises(InvalidInputError, match=words):
        run(file, "--attribute", "gender", *arguments)


def test_unsupported_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no such file"):
        run(tmp_path / "none.jsonl", "--attribute", "gender")
    file = tmp_path / "results.xlsx"
    file.write_bytes(b"PK")
    with pytest.raises(InvalidInputError, match=r"expected results as \.jsonl"):
        run(file, "--attribute", "gender")


def test_qdrant_responses_are_accepted_as_they_are(tmp_path: Path) -> None:
    points = [
        {"id": row["id"], "score": row["score"], "payload": {"gender": row["gender"]}}
        for row in RESULTS
    ]
    file = tmp_path / "points.json"
    for answer in ({"result": points, "status": "ok"}, {"result": {"points": points}}, points):
        file.write_text(json.dumps(answer))
        assert ids(run(file, "--k", 4, "--attribute", "payload.gender").stdout) == EXPECTED


@pytest.mark.parametrize("left", [{}, {"gender": ""}, {"gender": None}])
def test_incomplete_labels_are_refused_with_the_call_that_predicts_them(
    tmp_path: Path, left: dict[str, str | None]
) -> None:
    points = [{"id": row["id"], "score": row["score"], "payload": row} for row in RESULTS]
    points[4]["payload"] = left
    file = tmp_path / "points.json"
    file.write_text(json.dumps(points))
    call = r"rerank\(scores, k, features=features, attribute='payload.gender', model=model, labels="
    with pytest.raises(InvalidInputError, match=f"no label .* in 1 of 9 results.*{call}"):
        run(file, "--k", 4, "--attribute", "payload.gender")
