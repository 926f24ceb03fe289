"""The labelling app's file: appended, durable, mended after a crash, shared by processes, refused with line numbers."""

import json
import os
import threading
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.evaluation.answers import CANNOT_TELL, AnnotationLog, read_log


@pytest.fixture
def log(tmp_path: Path) -> AnnotationLog:
    return AnnotationLog(tmp_path / "sub" / "answers.jsonl")


def test_a_line_is_what_the_format_says(log: AnnotationLog) -> None:
    log.append("none/doctor/7.png", "ada", "gender", "female", seconds=1.5)
    (line,) = log.path.read_text(encoding="utf-8").splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith(("Z", "+00:00"))
    assert found == {
        "version": 1,
        "image": "none/doctor/7.png",
        "annotator": "ada",
        "attribute": "gender",
        "value": "female",
        "seconds": 1.5,
    }


def test_the_last_answer_counts_and_nothing_is_rewritten(log: AnnotationLog) -> None:
    assert log.answers() == {}
    log.append("a.png", "ada", "gender", "male")
    before = log.path.read_bytes()
    log.append("a.png", "ada", "gender", CANNOT_TELL)
    log.append("a.png", "bob", "gender", "male")
    assert log.path.read_bytes().startswith(before)
    assert {key: answer.value for key, answer in log.answers().items()} == {
        ("ada", "a.png", "gender"): CANNOT_TELL,
        ("bob", "a.png", "gender"): "male",
    }


def test_an_answer_is_flushed_to_the_disk_before_append_returns(log: AnnotationLog, monkeypatch) -> None:
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_size), real(file)))
    log.append("a.png", "ada", "gender", "male")
    assert log.path.stat().st_size in synced
    assert len(synced) == 2  # the file, and the folder that has a new name


def test_an_answer_waits_for_whoever_has_the_file(log: AnnotationLog) -> None:
    """Even for who only reads it under a lock: what looks like a torn line is one that is still being written."""
    fcntl = pytest.importorskip("fcntl", reason="this system has no flock")
    log.append("a.png", "ada", "gender", "male")
    with log.path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        writing = threading.Thread(target=log.append, args=("b.png", "bob", "gender", "male"))
        writing.start()
        writing.join(0.2)
        assert writing.is_alive()
        assert len(log.answers()) == 1
        fcntl.flock(other, fcntl.LOCK_UN)
        writing.join(10)
    assert len(log.answers()) == 2


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cut=st.integers(1, 400))
def test_a_torn_last_line_is_skipped_and_no_other_is_lost(tmp_path_factory, cut: int) -> None:
    log = AnnotationLog(tmp_path_factory.mktemp("torn") / "a.jsonl")
    for i in range(3):
        log.append(f"ä{i}.png", "ada", "gender", "male")
    content = log.path.read_bytes()
    log.path.write_bytes(content[: max(len(content) - cut, 0)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = len(read_log(log.path)[0])
        log.append("new.png", "bob", "gender", "female")
    whole = content[: max(len(content) - cut, 0)].count(b"\n") + (cut == 1)
    assert kept == whole
    torn = max(len(content) - cut, 0) and not content[: len(content) - cut].endswith(b"\n") and cut > 1
    assert len(caught) == (2 if torn else 0)
    answers, tail = read_log(log.path)  # warns no more: the file is whole again
    assert tail == b""
    assert [a.image for a in answers] == [f"ä{i}.png" for i in range(whole)] + ["new.png"]


def test_a_whole_line_without_its_end_is_kept(log: AnnotationLog) -> None:
    """As an editor leaves it; also where its content does not fit: that is the user's to mend."""
    log.append("a.png", "ada", "gender", "male")
    log.path.write_bytes(log.path.read_bytes().rstrip(b"\n"))
    assert len(log.answers()) == 1
    log.append("b.png", "ada", "gender", "male")
    assert len(log.answers()) == 2
    with log.path.open("ab") as file:
        file.write(b'{"image": "c.png"}')
    log.append("d.png", "ada", "gender", "male")
    with pytest.raises(InvalidInputError, match=r"1 of 4 lines are no answers.*line 3: annotator: Field required"):
        log.answers()


def test_a_long_torn_tail_is_found(log: AnnotationLog) -> None:
    log.append("a.png", "ada", "gender", "male")
    with log.path.open("ab") as file:
        file.write(b"\0" * 200_000)
    with pytest.warns(VldebiasWarning, match="cut off"):
        log.append("b.png", "ada", "gender", "male")
    assert [a.image for a in log.answers().values()] == ["a.png", "b.png"]


def test_a_full_disk_leaves_the_file_as_it_was(log: AnnotationLog, monkeypatch) -> None:
    log.append("a.png", "ada", "gender", "male")
    before = log.path.read_bytes()
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:10]))
    with pytest.raises(OSError, match="no room for another answer; the file is as before"):
        log.append("b.png", "ada", "gender", "male")
    assert log.path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"image": "/etc/passwd"}, "image: expected a path below the folder of images.* got '/etc/passwd'"),
        ({"image": "../x.png"}, r"image: .*without '\.\.'"),
        ({"image": "a\\b.png"}, "image: .*forward slashes"),
        ({"image": ""}, "image: expected a path below the folder of images"),
        ({"annotator": " ada"}, "annotator: .*without spaces at its ends, got ' ada'"),
        ({"value": ""}, "value: .*expected a text"),
        ({"seconds": -1.0}, "seconds: .*greater than or equal to 0"),
        ({"seconds": float("nan")}, "seconds: .*finite"),
    ],
)
def test_what_the_file_may_not_hold_is_not_written(log: AnnotationLog, change: dict, text: str) -> None:
    given = {"image": "a.png", "annotator": "ada", "attribute": "gender", "value": "male"} | change
    with pytest.raises(InvalidInputError, match=f"annotation: {text}"):
        log.append(**given)
    assert not log.path.exists()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("not json", "line 2: Invalid JSON"),
        ('{"version": 2}', "line 2: version: Input should be 1, got 2"),
        ('{"version": 1, "image": "a.png"}', "line 2: annotator: Field required"),
        ("[]", "line 2: Input should be an object"),
    ],
)
def test_lines_that_do_not_fit_are_named(log: AnnotationLog, line: str, text: str) -> None:
    log.append("a.png", "ada", "gender", "male")
    with log.path.open("a") as file:
        file.write(f"{line}\n\n{line}\n")
    with pytest.raises(InvalidInputError, match=rf"answers.jsonl: 2 of 4 lines are no answers.*{text}.*; line 4: "):
        read_log(log.path)
