"""Test which values captions state and for which nouns. Captions are read without their images."""

import json
from pathlib import Path

import pytest

from apps.captions.captions import evaluate_captions
from tests.cli.conftest import call
from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import wilson_interval
from vldebias.report.result import Result

Captions = list[tuple[str, ...]]
CAPTIONS: Captions = [
    *[("A female nurse in a ward.",)] * 8,
    *[("A nurse with his patient.",)] * 2,
    *[("A nurse at work.",)] * 10,
    *[("A man and a dog.",)] * 5,
    ("Ein Arzt im Krankenhaus.",),
    ("A red chair.",),
]


def figures(result: Result) -> dict[tuple[str, str], float]:
    return {(row.metric, row.subset): row.value for row in result.rows}


def described(captions: Captions, attribute: str = "gender") -> Result:
    """Evaluate the captions of images without labels."""
    return evaluate_captions({"caption": list(map(list, captions))}, attribute=attribute)


def test_stated_shares_are_counted_by_noun() -> None:
    result = described(CAPTIONS)
    found = figures(result)
    assert found["stated", "nurse"] == 0.5
    assert found["stated_share", "nurse"] == pytest.approx(0.2)  # male
    # "man" states a value itself, so it is not listed as a noun, but it counts among all people.
    assert ("stated", "man") not in found
    row = result.row("captions", "stated_share", "none", subset="nurse")
    assert row.interval == pytest.approx(wilson_interval(2, 10))
    sentences = result.provenance[0].settings["advice"]
    assert "25 images describe people" in sentences[0]
    assert "1 caption of 27 are not in English" in sentences[-1]


def test_captions_of_the_same_image_count_once() -> None:
    once = figures(described(CAPTIONS))
    repeated = figures(described([texts * 5 for texts in CAPTIONS]))
    assert repeated == pytest.approx(once)
    mixed = described([("A female nurse.", "A male nurse.")] * 6)
    assert figures(mixed)["stated_share", "nurse"] == 0.5


def test_values_of_other_attributes_are_read_from_the_noun_phrase_of_the_person() -> None:
    captions = [("An Asian chef and a white waiter.",)] * 6 + [("A Korean chef in a white coat.",)]
    found = figures(described(captions, "race"))
    assert found["stated_share", "chef: Asian"] == 1
    assert found["stated_share", "waiter: White"] == 1
    # The stated origin is not one of the values in the set.
    assert found["stated", "chef"] == 1


def test_captions_without_people_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="none of 2 captions describes a person"):
        described([("a dog", "a cat")])
    (tmp_path / "a.csv").write_text("image,caption\n0.jpg,\n")
    with pytest.raises(InvalidInputError, match="none of 1 image has a caption"):
        evaluate_captions(tmp_path / "a.csv")


COCO = {
    "images": [{"id": 1, "file_name": "0.jpg"}],
    "annotations": [{"image_id": 1, "caption": "a nurse"}, {"image_id": 1, "caption": "a man"}],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "image,caption\n0.jpg,a nurse\n0.jpg,a man\n"),
        ("a.csv", 'url,caption\nhttps://x.y/0.jpg,"[""a nurse"", ""a man""]"\n'),
        ("a.tsv", "caption\timage\na nurse\t0.jpg\na man\t0.jpg\n"),
        ("a.txt", "0.jpg#0\ta nurse\n0.jpg#1\ta man\n"),
        ("a.jsonl", '{"image": "0.jpg", "caption": ["a nurse", "a man"]}'),
        ("a.json", json.dumps({"0.png": ["a nurse", "a man"]})),
        ("a.json", json.dumps(COCO)),
    ],
)
def test_captions_are_found_without_their_images(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    found = evaluate_captions(tmp_path / name).provenance[0].n
    assert found == {"images": 1, "captions": 2, "not in English": 0}


def test_lines_and_folders_of_captions_are_read(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a nurse\na man, tired\n\n")
    found = evaluate_captions(tmp_path / "lines.txt").provenance[0].n
    assert found == {"images": 2, "captions": 2, "not in English": 0}
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "0.jpg").write_bytes(b"not opened")
    (tmp_path / "pairs" / "0.txt").write_text("a nurse")
    assert evaluate_captions(tmp_path / "pairs").provenance[0].n["captions"] == 1


def test_the_command_needs_no_labels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("caption\n" + "a female nurse\n" * 6)
    command = ["eval", "captions", str(tmp_path / "a.csv"), "--out", str(tmp_path / "out")]
    assert len(json.loads(call(*command, "--json"))["figures"]) == 4
    assert '<th scope="row">nurse</th>' in (tmp_path / "out" / "index.html").read_text()
    removed = call("audit --captions", str(tmp_path / "a.csv"), code=2, with_stderr=True)
    assert "No such option: --captions; use vldebias eval captions TABLE" in removed
