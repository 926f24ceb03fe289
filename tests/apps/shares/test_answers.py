"""Test the labelling app's answers file: what is always kept, and which answer counts."""

import json
import os
import threading
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.shares.answers import (
    ANSWERS,
    CANNOT_TELL,
    AnnotationLog,
    labels_of_folder,
    read_answers,
)
from vldebias.errors import InvalidInputError, VldebiasWarning


@pytest.fixture
def log(tmp_path: Path) -> AnnotationLog:
    return AnnotationLog(tmp_path / "sub" / "answers.jsonl")


def test_the_last_answer_counts_and_the_file_is_only_appended_to(
    log: AnnotationLog, monkeypatch
) -> None:
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(os.fstat(file).st_size), real(file))
    )
    assert log.answers() == {}
    log.append("a.png", "ada", "gender", "male")
    before = log.path.read_bytes()
    assert len(before) in synced, "it is on disk before append returns"
    assert len(synced) == 2  # the file, and the folder in which it was renamed
    log.append("a.png", "ada", "gender", CANNOT_TELL)
    log.append("a.png", "bob", "gender", "male")
    assert (log.path.read_bytes().startswith(before), log.path.read_bytes().count(b"\n")) == (
        True,
        3,
    )
    assert b"null" not in before
    assert {key: answer.value for key, answer in log.answers().items()} == {
        ("ada", "a.png", "gender"): CANNOT_TELL,
        ("bob", "a.png", "gender"): "male",
    }


def test_an_answer_waits_for_the_lock_of_the_file(log: AnnotationLog) -> None:
    """Even under a read lock, an apparently incomplete line may still be in the process of being
    written."""
    fcntl = pytest.importorskip("fcntl", reason="this system has no flock")
    log.append("a.png", "ada", "gender", "male")
    with log.path.open("ab") as holder:
        fcntl.flock(holder, fcntl.LOCK_SH)
        writing = threading.Thread(target=log.append, args=("b.png", "bob", "gender", "male"))
        writing.start()
        writing.join(0.2)
        assert writing.is_alive()
        fcntl.flock(holder, fcntl.LOCK_UN)
        writing.join(10)
    assert len(log.answers()) == 2


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cut=st.integers(1, 400))
def test_only_an_incomplete_last_line_is_skipped(tmp_path_factory, cut: int) -> None:
    log = AnnotationLog(tmp_path_factory.mktemp("torn") / "a.jsonl")
    for i in range(3):
        log.append(f"ä{i}.png", "ada", "gender", "male")
    content = log.path.read_bytes()
    remaining = content[: max(len(content) - cut, 0)]
    log.path.write_bytes(remaining)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = len(log.read())
        log.append("new.png", "bob", "gender", "female")
    only_its_end = (
        bool(remaining)
        and not remaining.endswith(b"\n")
        and content[len(remaining) :].startswith(b"\n")
    )
    complete_lines = remaining.count(b"\n") + only_its_end
    assert kept == complete_lines
    torn = remaining and not remaining.endswith(b"\n") and not only_its_end
    assert len(caught) == (2 if torn else 0)
    # There is no further warning, since the file is complete again.
    assert [a.image for a in log.read()] == [f"ä{i}.png" for i in range(complete_lines)] + [
        "new.png"
    ]


def test_a_complete_last_line_without_a_line_break_is_kept(log: AnnotationLog) -> None:
    """Files edited by hand are kept even if their content is invalid, so that users can fix
    them."""
    log.append("a.png", "ada", "gender", "male")
    log.path.write_bytes(log.path.read_bytes().rstrip(b"\n"))
    log.append("b.png", "ada", "gender", "male")
    assert len(log.answers()) == 2
    with log.path.open("ab") as file:
        file.write(b'{"image": "c.png"}')
    log.append("d.png", "ada", "gender", "male")
    with pytest.raises(InvalidInputError, match="line 3"):
        log.answers()


def test_a_full_disk_leaves_the_file_unchanged(log: AnnotationLog, monkeypatch) -> None:
    log.append("a.png", "ada", "gender", "male")
    before = log.path.read_bytes()
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:10]))
    with pytest.raises(OSError, match="the disk is full"):
        log.append("b.png", "ada", "gender", "male")
    assert log.path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        {"image": "/etc/passwd"},
        {"image": "../x"},
        {"image": "a\\b"},
        {"value": " a"},
        {"seconds": -1.0},
    ]
    + [{name: float("inf")} for name in ("weight", "seconds")],
)
def test_invalid_answers_are_not_written(log: AnnotationLog, change: dict) -> None:
    answer = {"image": "a.png", "annotator": "ada", "attribute": "gender", "value": "male"} | change
    with pytest.raises(InvalidInputError, match=next(iter(change))):
        log.append(**answer)
    assert not log.path.exists()


def line(image: str, annotator: str, value: str, time: str = "2024-01-01T00:00:00Z") -> str:
    fields = {
        "format_version": 1,
        "image": image,
        "annotator": annotator,
        "attribute": "gender",
        "value": value,
    }
    return json.dumps(fields | {"time": time, "seconds": None})


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{row}\n" for row in lines), encoding="utf-8")
    return path


def values(answers) -> dict:
    return {(a.annotator, a.image): a.value for a in answers}


def test_within_a_file_the_last_line_counts_and_between_files_the_latest_time(
    tmp_path: Path,
) -> None:
    """The clock may have been set back within a file. Between files, times are compared across time
    zones."""
    lines = line("1.png", "ada", "male", "2024-01-02T00:00:00Z"), line("1.png", "ada", "female")
    first_file = write(tmp_path / "a.jsonl", *lines, line("1.png", "bob", "male"))
    assert values(read_answers([first_file])) == {
        ("ada", "1.png"): "female",
        ("bob", "1.png"): "male",
    }
    early = write(
        tmp_path / "early.jsonl", line("1.png", "ada", "male", "2024-01-01T10:00:00+05:00")
    )
    late = write(tmp_path / "late.jsonl", line("1.png", "ada", "female", "2024-01-01T06:00:00Z"))
    for files in ([early, late], [late, early]):
        assert values(read_answers(files)) == {("ada", "1.png"): "female"}
    for files in ([write(tmp_path / "b.jsonl")], [early, tmp_path / "none.jsonl"]):
        with pytest.raises(InvalidInputError, match=files[-1].name):
            read_answers(files)


def test_an_incomplete_last_line_of_any_length_is_removed(log: AnnotationLog) -> None:
    """Only the end of the file is read, block by block."""
    log.append("a.png", "ada", "gender", "male")
    with log.path.open("ab") as file:
        file.write(b'{"image": "' + b"x" * 10_000)
    with pytest.warns(VldebiasWarning, match="incomplete"):
        log.append("b.png", "ada", "gender", "male")
    assert [answer.image for answer in log.read()] == ["a.png", "b.png"]


def test_answers_become_label_columns_by_file_name(tmp_path: Path) -> None:
    log = AnnotationLog(tmp_path / ANSWERS)
    images = ["a.png", "b.png", "c/d.png", "e.png"]
    assert labels_of_folder(tmp_path, images) == ({}, {})
    for annotator, image, attribute, value in (
        ("ada", "c/d.png", "class", "oak"),
        ("ben", "c/d.png", "class", "oak"),
        ("eve", "c/d.png", "class", "elm"),
        ("ada", "a.png", "class", "elm"),
        ("ben", "a.png", "class", "oak"),  # a tie
        ("ada", "e.png", "class", CANNOT_TELL),
        ("ada", "gone.png", "class", "oak"),
        ("ada", "b.png", "size", "small"),
    ):
        log.append(image, annotator, attribute, value)
    columns, notes = labels_of_folder(tmp_path, images)
    assert columns == {"class": ["", "", "oak", ""], "size": ["", "small", "", ""]}
    assert notes == {
        ANSWERS: (
            "1 of 4 images have a label of class. Not in the folder: 1 of the images labelled with"
            " class, such as 'gone.png'. 1 of 4 images have a label of size."
        )
    }
