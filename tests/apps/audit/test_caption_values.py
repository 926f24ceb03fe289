"""Test which values captions state and for which nouns. Captions are read without their images."""

import json
import os
import signal
from pathlib import Path

import pytest

from apps.audit.caption_texts import read_captions
from apps.audit.captions import audit_captions
from tests.cli.conftest import call
from tests.processes import run_python
from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import wilson_interval
from vldebias.report.result import Result

CAPTIONS = [
    *[("A female nurse in a ward.",)] * 8,
    *[("A nurse with his patient.",)] * 2,
    *[("A nurse at work.",)] * 10,
    *[("A man and a dog.",)] * 5,
    ("Ein Arzt im Krankenhaus.",),
    ("A red chair.",),
]


def figures(result: Result) -> dict[tuple[str, str], float]:
    return {(row.metric, row.subset): row.value for row in result.rows}


def test_stated_shares_are_counted_by_noun() -> None:
    result = audit_captions(CAPTIONS, "gender")
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
    once = figures(audit_captions(CAPTIONS, "gender"))
    repeated = figures(audit_captions([texts * 5 for texts in CAPTIONS], "gender"))
    assert repeated == pytest.approx(once)
    mixed = audit_captions([("A female nurse.", "A male nurse.")] * 6, "gender")
    assert figures(mixed)["stated_share", "nurse"] == 0.5


def test_values_of_other_attributes_are_read_from_the_noun_phrase_of_the_person() -> None:
    captions = [("An Asian chef and a white waiter.",)] * 6 + [("A Korean chef in a white coat.",)]
    found = figures(audit_captions(captions, "race"))
    assert found["stated_share", "chef: Asian"] == 1
    assert found["stated_share", "waiter: White"] == 1
    # The stated origin is not one of the values in the set.
    assert found["stated", "chef"] == 1


def test_captions_without_people_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="none of 2 captions describes a person"):
        audit_captions([("a dog", "a cat")], "gender")
    (tmp_path / "a.csv").write_text("image,caption\n0.jpg,\n")
    with pytest.raises(InvalidInputError, match="got no captions"):
        read_captions(tmp_path / "a.csv")


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
    assert read_captions(tmp_path / name) == [("a nurse", "a man")]


def test_lines_and_folders_of_captions_are_read(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a nurse\na man, tired\n\n")
    assert read_captions(tmp_path / "lines.txt") == [("a nurse",), ("a man, tired",)]
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "0.jpg").write_bytes(b"not opened")
    (tmp_path / "pairs" / "0.txt").write_text("a nurse")
    assert read_captions(tmp_path / "pairs") == [("a nurse",)]


# This runs a command that receives a signal instead of moving its n-th file into place.
SIGNALLED = """
import os, signal, sys
from vldebias.cli import main
# A shell's background jobs ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
number, at = int(sys.argv.pop(1)), int(sys.argv.pop(1))
replace, moved = os.replace, []
def move(*paths):
    moved.append(paths)
    if len(moved) == at:
        os.kill(os.getpid(), number)
    replace(*paths)
os.replace = move
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupted_audit_leaves_complete_files_and_can_be_rerun(
    number: int, code: int, at: int, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("prompt\n" + "a female nurse\n" * 6)
    out = tmp_path / "out"
    command = ["audit", "--captions", str(tmp_path / "a.csv"), "--attribute", "gender"]
    command += ["--out", str(out)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    numbers = (str(int(number)), str(at))
    done = run_python(SIGNALLED, *numbers, *command, check=False, env=environment)
    assert done.returncode == code, done.stderr
    interrupted = {file.name: file.read_bytes() for file in out.iterdir()}
    call(*command)
    complete = {file.name: file.read_bytes() for file in out.iterdir()}
    assert {"result.json", "index.html"} < set(complete)
    written = set(interrupted) & set(complete)
    assert len(written) == at - 1
    if "result.json" in written:
        assert len(Result.model_validate_json(interrupted["result.json"]).rows) == 4


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, bytes]]:
    """Run an audit that generates images, and return its command and the files in its result."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "a.txt").write_text("A photo of a doctor.\nA photo of a nurse.\n")
    command = ["audit", str(folder / "a.txt"), "--attribute", "gender", "--pipeline", "miniature"]
    command += ["--measure", "2", "--steps", "2", "--out"]
    call(*command, str(folder / "out"))
    return command, _images_and_counts(folder / "out")


def _images_and_counts(out: Path) -> dict[str, bytes]:
    files = [*out.glob("images/none/**/*.png"), *out.glob("*.csv")]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 10])
def test_a_killed_audit_that_generates_images_keeps_them_and_ends_with_the_same_counts(
    at: int, measured: tuple[list[str], dict[str, bytes]], tmp_path: Path
) -> None:
    command, complete = measured
    out = tmp_path / "out"
    numbers = (str(int(signal.SIGKILL)), str(at))
    done = run_python(SIGNALLED, *numbers, *command, str(out), check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    kept = {image: image.stat().st_mtime_ns for image in out.glob("images/none/**/*.png")}
    assert kept, "images were finished before the kill"
    call(*command, str(out))
    assert _images_and_counts(out) == complete
    assert {image: image.stat().st_mtime_ns for image in kept} == kept


def test_the_command_does_not_need_a_model(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt\n" + "a female nurse\n" * 6)
    command = ["audit", "--attribute", "gender", "--out", str(tmp_path / "out")]
    command += ["--captions", str(tmp_path / "a.csv")]
    assert len(json.loads(call(*command, "--json"))["figures"]) == 4
    assert '<th scope="row">nurse</th>' in (tmp_path / "out" / "index.html").read_text()
    with pytest.raises(InvalidInputError, match="--captions cannot be combined with prompts"):
        call(*command, "--model", "miniature")
