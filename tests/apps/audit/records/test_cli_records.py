"""Test `vldebias records` and the record written by an audit."""

import json
import re
from pathlib import Path

import pytest

from apps.audit.records.protocol import load_protocol
from apps.audit.records.schema import Record
from tests.apps.audit.records.test_figures import made
from tests.cli.conftest import call as run
from vldebias.errors import InvalidInputError

RECORDS = str(Path(__file__).parents[4] / "eval" / "records")


def test_the_plan_contains_all_prompts_and_enough_images_for_the_interval_width(
    tmp_path: Path,
) -> None:
    out = tmp_path / "protocol.txt"
    facts = json.loads(run("records", "plan", "--width", "0.1", "--out", str(out), "--json"))
    assert facts["images per prompt"] == 8
    assert facts["images"] == 8 * 700
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines == [prompt.text for prompt in load_protocol().prompts()]
    neutral = json.loads(run("records", "plan", "--neutral", "--json"))
    assert (neutral["prompts"], neutral["images per prompt"]) == (100, 8)


def test_check_passes_the_committed_records_and_finds_a_changed_count(tmp_path: Path) -> None:
    run("records", "check", RECORDS)
    record = made([(5, 5, 0), (9, 1, 0)])
    record.write(tmp_path / "good.json")
    row = record.counts[0].model_copy(update={"counts": (6, 4)})
    forged = record.model_copy(update={"counts": (row, record.counts[1]), "name": "forged"})
    forged.write(tmp_path / "forged.json")
    output = json.loads(run("records", "check", str(tmp_path), "--json", code=1))
    problems = {entry["name"]: entry["problems"] for entry in output["records"]}
    assert problems["model"] == []
    assert "the counts give" in problems["forged"][0]
    with pytest.raises(InvalidInputError, match="forged: figures"):
        run("records", "page", str(tmp_path), "--out", str(tmp_path / "page.html"))


@pytest.mark.parametrize("name", ["record.json", "folder.html", ""])
def test_the_page_replaces_no_record_and_no_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.html").mkdir()
    record = made([(5, 5, 0)]).write(tmp_path / "record.json")
    before = record.read_bytes()
    with pytest.raises(InvalidInputError, match=r"expected a file with the ending \.html"):
        run("records", "page", str(record), "--out", str(tmp_path / name) if name else "")
    assert record.read_bytes() == before
    with pytest.raises(InvalidInputError, match=r"folder.html: is a folder; expected the path"):
        run("records", "plan", "--out", str(tmp_path / "folder.html"))


def test_two_records_with_the_same_name_are_rejected(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        made([(5, 5, 0)]).write(tmp_path / name)
    with pytest.raises(InvalidInputError, match="expected one file for each name"):
        run("records", "check", str(tmp_path))


def test_the_page_works_offline_and_escapes_names(tmp_path: Path) -> None:
    record = made([(5, 5, 0)])
    named = record.model.model_copy(update={"name": "<script>alert(1)</script>"})
    record.model_copy(update={"model": named}).write(tmp_path / "r.json")
    out = tmp_path / "page.html"
    run("records", "page", str(tmp_path / "r.json"), "--out", str(out))
    page = out.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "http" not in page
    assert "src=" not in page


def test_the_schema_is_printed_as_json(tmp_path: Path) -> None:
    assert json.loads(run("records", "schema"))["title"] == "Record"


def test_an_audit_that_measures_writes_its_record_to_out(tmp_path: Path) -> None:
    prompts = tmp_path / "p.txt"
    # A chair has no gender to judge.
    prompts.write_text("A photo of a nurse.\nA red chair\nA photo of a mechanic.\n", "utf-8")
    out = tmp_path / "record.json"
    audit = ("audit", str(prompts), "--attribute", "gender", "--pipeline", "miniature")
    arguments = ("--measure", "2", "--steps", "2", "--out", str(out))
    log = run(*audit, *arguments, "--width", "0.2", with_stderr=True)
    # By Wilson's interval, z^2 (1 / w - 1) = 15.4 and z^2 (1 / w^2 - 1) = 92.2 images.
    numbers = "16 images per prompt if all of them show the same value, and 93 if half of them do"
    assert numbers in " ".join(log.split())
    record = Record.read(out)
    assert [row.subject for row in record.counts] == ["nurse", "mechanic"]
    assert sum(sum(row.counts) + (row.unknown or 0) for row in record.counts) == 4
    page = (tmp_path / "record" / "index.html").read_text(encoding="utf-8")
    assert "responds to the words for each value (clarity: " in page
    assert "expected at least 0.13)" in page
    assert "To sign, run the command again" in page
    assert (record.measured_by, record.licence) == ("not stated", "not stated")
    run("records", "check", str(out))
    # The same command signs the images that exist, with a comma in the name.
    images = sorted((tmp_path / "record" / "images").rglob("*.png"))
    times = [image.stat().st_mtime_ns for image in images]
    run(*audit, *arguments, "--sign", "Jane Doe, ACME, CC0-1.0")
    assert [image.stat().st_mtime_ns for image in images] == times
    record = Record.read(out)
    assert (record.measured_by, record.licence) == ("Jane Doe, ACME", "CC0-1.0")
    page = (tmp_path / "record" / "index.html").read_text(encoding="utf-8")
    for cell in ("Jane Doe, ACME", "CC0-1.0", record.date):
        assert f"<td>{cell}</td>" in page
    # The page needs no other file: thumbnails are embedded, and only links point to the images.
    assert page.count('<img src="data:image/png;base64,') == len(images) == 4
    assert re.findall(r'<img src="(?!data:)', page) == []
    assert page.count(">seed 0</a>") == page.count(">seed 1</a>") == 2
    assert all(f'<a href="images/{image.parent.parent.name}/' in page for image in images)
    for sign, message in (("Jane Doe", "expected a name and the licence"), (", CC0", "expected")):
        with pytest.raises(InvalidInputError, match=message):
            run(*audit, *arguments, "--sign", sign)
    with pytest.raises(InvalidInputError, match="add --measure N"):
        run(*audit, "--sign", "Jane Doe, CC0-1.0")
    with pytest.raises(InvalidInputError, match="only --measure N writes a record"):
        run(*audit, "--out", str(out))
