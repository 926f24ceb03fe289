import csv
import errno
import hashlib
import io
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ValidationError
from safetensors.torch import save_file

from tests.limits import limited_files
from tests.refusals import refused
from vldebias.data.tables import read_table
from vldebias.errors import InvalidInputError, StorageError
from vldebias.report.result import Result
from vldebias.utils import files
from vldebias.utils.files import (
    commit,
    digest,
    only_writer,
    packaged,
    read_json,
    read_yaml,
    shielded,
    spreadsheet_csv,
    storage_errors,
    write_atomically,
)


def test_a_wheel_contains_prompts_and_a_checkout_has_them_next_to_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PACKAGE", tmp_path / "vldebias")
    with pytest.raises(InvalidInputError, match="/prompts"):
        packaged("prompts")
    for file in ("b.yaml", "b-a.yaml", "README.md"):
        write_atomically(tmp_path / "prompts" / file, "")
    assert list(packaged("prompts")) == ["b", "b-a"]
    write_atomically(tmp_path / "vldebias/_resources/prompts/x.yaml", "")
    assert list(packaged("prompts")) == ["x"]


def test_text_bytes_and_functions_are_written_completely(tmp_path: Path) -> None:
    contents: list[Any] = [
        "ä\n",
        "ä\n".encode(),
        lambda path: path.write_text("ä\n", encoding="utf-8"),
    ]
    for content in contents:
        path = write_atomically(tmp_path / "new" / "a.txt", content)
        assert digest(path) == hashlib.sha256("ä\n".encode()).hexdigest()
        assert os.listdir(path.parent) == ["a.txt"]


def fails(path: Path) -> None:
    path.write_text("half")
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("place", ["content", "gone", "fsync", "replace"])
def test_an_error_preserves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = write_atomically(tmp_path / "a.txt", "old")
    contents: dict[str, Any] = {
        "content": fails,
        "gone": lambda new: new.unlink() or fails(tmp_path / "b.txt"),
    }
    if place not in contents:
        monkeypatch.setattr(os, place, lambda *_: fails(tmp_path / "b.txt"))
    with pytest.raises(StorageError, match=r"a\.txt: no space is left on the disk"):
        write_atomically(path, contents.get(place, "new"))
    assert path.read_text() == "old"
    assert set(os.listdir(tmp_path)) <= {"a.txt", "b.txt"}


def test_file_and_folder_are_synced_and_descriptors_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    fsync = os.fsync
    replace = os.replace
    close = os.close
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append("fsync") or fsync(handle))
    monkeypatch.setattr(os, "replace", lambda a, b: calls.append("replace") or replace(a, b))
    monkeypatch.setattr(os, "close", lambda handle: calls.append("close") or close(handle))
    write_atomically(tmp_path / "a", "x")
    # The third "close" releases the lock on the temporary file.
    assert calls[-6:] == ["fsync", "close", "replace", "close", "fsync", "close"]


@pytest.mark.parametrize("limit", [0, 1000, 57_400])
def test_every_writer_reports_an_unwritable_file(tmp_path: Path, limit: int) -> None:
    tensors = {"weight": torch.zeros(100_000)}
    writers: dict[str, Any] = {
        "text": "x" * 100_000,
        "bytes": b"x" * 100_000,
        "safetensors": lambda path: save_file(tensors, path),
        "torch": lambda path: torch.save(tensors, path),
        "python": lambda path: path.write_bytes(bytes(100_000)),
    }
    for name, content in writers.items():
        path = write_atomically(tmp_path / name, "old")
        with limited_files(limit), pytest.raises(StorageError) as caught:
            write_atomically(path, content)
        assert caught.value.errno == errno.EFBIG
        assert str(caught.value).startswith(f"cannot write {path}: the file is larger than")
        assert path.read_text() == "old"
        write_atomically(path, content)
        assert path.stat().st_size >= 100_000
    assert sorted(os.listdir(tmp_path)) == sorted(writers)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS])
def test_storage_problems_are_recognised_by_cause_and_by_message(code: int) -> None:
    reason = OSError(code, os.strerror(code))
    errors = [
        reason,
        RuntimeError(f"I/O error: {os.strerror(code)} (os error {code})"),
        RuntimeError(f"IoError(Os {{ code: {code}, kind: Other }})"),  # safetensors before 0.6
        caused_by(ValueError("cannot save"), reason),
    ]
    for error in errors:
        expected = pytest.raises(StorageError, match="cannot write folder: ")
        with expected as caught, storage_errors("folder"):
            raise error
        assert caught.value.errno == code


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_other_errors_in_writers_are_raised_unchanged(tmp_path: Path) -> None:
    for error in (RuntimeError("a bug"), PermissionError(errno.EACCES, "no"), ValueError("28")):
        with pytest.raises(type(error)) as caught:
            write_atomically(tmp_path / "a", Mock(side_effect=error))
        assert caught.value is error


KILLED = """
import os, signal, sys
from vldebias.utils.files import write_atomically

def die(path):
    path.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(sys.argv[1], die)
"""


def test_the_next_run_only_removes_files_left_by_a_killed_run(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "a")], check=False)
    # A run removes the leftovers of earlier runs before it creates its own.
    (leftover,) = tmp_path.iterdir()
    assert re.fullmatch(r"\.a\.[0-9a-f]{12}\.partial", leftover.name)
    kept = ["a.partial", ".a.partial", ".a.0123456789AB.partial", ".state.pt"]
    for name in kept:
        (tmp_path / name).touch()
    write_atomically(tmp_path / "b", "new")
    assert {path.name for path in tmp_path.iterdir()} == {"b", *kept}


LIVE = """
import sys
from vldebias.utils.files import write_atomically

def wait(path):
    path.write_text("slow")
    print("writing", flush=True)
    sys.stdin.read()

write_atomically(sys.argv[1], wait)
"""


def test_files_that_a_live_process_writes_are_not_removed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LIVE, str(tmp_path / "a")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as writer:
        writer.stdout.readline()
        write_atomically(tmp_path / "b", "new")
        assert len(list(tmp_path.glob(".a.*.partial"))) == 1
        writer.communicate()
    assert writer.returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert (tmp_path / "a").read_text() == "slow"


def remade(path: Path) -> None:
    path.unlink()
    path.write_text("as a library does it that writes and moves itself")
    path.chmod(0o600)


def test_the_umask_determines_the_mode_of_a_new_file_and_an_existing_mode_is_preserved(
    tmp_path: Path,
) -> None:
    before = os.umask(0o027)
    try:
        path = write_atomically(tmp_path / "a", remade)
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o604)
        write_atomically(path, "again")
        assert path.stat().st_mode & 0o777 == 0o604
    finally:
        os.umask(before)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
PLAIN |= st.text(st.characters(codec="utf-8", exclude_categories=["C"]))


@given(
    content=st.dictionaries(
        st.text("abc<= -", min_size=1), st.lists(PLAIN, max_size=3) | PLAIN, max_size=4
    )
)
def test_yaml_round_trips_unchanged(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "x.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    assert read_yaml(path) == content


def bomb(lines: int) -> str:
    return "a0: &a0 [x, x]\n" + "".join(
        f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]\n" for i in range(lines)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb(40), r"x\.yaml: .*line 2.*alias \*a0"),
        ("a: &a [*a]", r"line 1.*alias \*a"),
        ("a: !!python/object:os.system x", r"os\.system.*line 1"),
        ("a: " + "[" * 900_000, "recursion"),
        ("a: 1\nb: 2\na: 3", "'a' "),
        ("? [a, b]\n: 1", "line 1"),
        ("a: " + "9" * 5000, "5,000 characters.*digits"),
        ("a: 1" + ":1" * 5000, "line 1: a number of 10,001 characters.*digits"),
        ("a: 1" + ":1" * 5000 + ".5", "line 1: a number of 10,003 characters.*digits"),
        ("a: 0x" + "f" * 5000, "digits"),
        ("1" + ":1" * 5000, "digits"),
        ("1" + ":1" * 5000 + ": a", "digits"),
        ("a: [", r"x\.yaml: .*YAML"),
        ("a: \x00", "special characters"),
        ("- a", r"x\.yaml: .*\['a'\].*mapping"),
        ("a: " + "x" * 1_000_000, "1,000,000 bytes"),
        (b"a: \xff", r"x\.yaml: not valid YAML .*0xff"),
    ],
)
def test_untrusted_yaml_is_rejected_with_a_message(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidInputError, match=message):
        read_yaml(path)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none", "none: no such file"),
        (tmp_path, "directory"),
        ("a\0b", "null"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            read_json(path)
    (tmp_path / "six").write_text("[1, 2]")
    assert files.read_bytes(tmp_path / "six", max_bytes=6) == b"[1, 2]"


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"a": ' + "1" * 5000 + "}"])
def test_json_that_cannot_be_written_again_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InvalidInputError, match=r"a\.json: got .*; expected JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"a": "\\ud83d\\ude00"}')
    assert read_json(tmp_path / "a.json") == {"a": "\N{GRINNING FACE}"}


@pytest.mark.parametrize("load", [read_json, Result.read])
def test_an_oversized_json_file_is_rejected_before_it_is_read(tmp_path: Path, load: Any) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(3 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match=r"\.json: expected at most 50,000,000 bytes"):
            load(tmp_path / "config.json")
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


@refused(
    (b"[" * 100_000, r"a\.json: .*recursion"),
    (b"9" * 5000, "digits"),
    (b'{"a": 1e999}', "1e999"),
    (b'{"a": NaN}', "NaN"),
    (b"{", "line 1 column 2.*JSON"),
    (b"\xff", "0xff"),
)
def test_untrusted_json_is_rejected_with_a_message(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.json").write_bytes(text)
    read_json(tmp_path / "a.json")


class Part(BaseModel, extra="forbid"):
    number: int = 1
    text: str = ""


class Whole(BaseModel):
    part: Annotated[Any, AfterValidator(Part.model_validate)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "part: missing; expected a value"),
        ({"part": {"number": "x"}}, "part.number: Input should be a valid integer, .*; got 'x'"),
        ({"part": {"text": 3, "number": "x"}}, "part.number: .*; got 'x'"),
        ({"part": {"numer": 3}}, "part.numer: unknown key; did you mean 'number'[?]; got 3"),
        (3, "Input should be a valid dictionary or instance of Whole"),
    ],
)
def test_the_first_problem_is_reported_with_its_location(content: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate(content)
    assert re.fullmatch(message, files.explain(caught.value, known=Part.model_fields))


def test_the_commit_is_marked_if_the_working_tree_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        named = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *named, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    assert {"python", "torch", "numpy"} <= set(files.versions())
    monkeypatch.setattr(files, "_PACKAGE", tmp_path / "vldebias")
    assert commit() is None
    git("init", "-q")
    assert commit() is None
    (tmp_path / "eval" / "results").mkdir(parents=True)
    result = tmp_path / "eval" / "results" / "one.json"
    for path in (tmp_path / "a", result):
        path.write_text("1")
    git("add", "a", "eval")
    git("commit", "-qm", "a")
    git("tag", "v1")
    clean = git("rev-parse", "--short=12", "HEAD").strip()
    assert commit() == clean
    (tmp_path / "untracked").write_text("1")
    result.write_text("2")
    assert commit() == clean
    (tmp_path / "a").write_text("2")
    assert commit() == f"{clean}-dirty"


def test_only_text_that_a_spreadsheet_would_execute_gets_an_apostrophe() -> None:
    for text in (
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "\uff1d1+1",
        "'=1",
        "''@x",
    ):
        assert shielded(text) == f"'{text}"
    for text in ("", "'", "'tis so", "a=b", " a", "cali+equalise", "1-2"):
        assert shielded(text) == text


HOLDS = """
import sys
from vldebias.utils.files import only_writer
with only_writer(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a second process that writes in `tmp_path / "out"` until it receives a line."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "out")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_writer_is_rejected_with_the_name_of_the_first(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    expected = rf"process {holder.pid} on .*--out"
    with pytest.raises(InvalidInputError, match=expected), only_writer(tmp_path / "out"):
        pass
    holder.communicate("\n")
    with only_writer(tmp_path / "out"):
        pass


def test_a_run_may_lock_again_but_another_thread_may_not(tmp_path: Path) -> None:
    def write_there() -> None:
        with only_writer(tmp_path):
            pass

    with ThreadPoolExecutor(1) as pool, only_writer(tmp_path):
        with only_writer(tmp_path):
            pass
        with pytest.raises(InvalidInputError, match="process"):
            pool.submit(write_there).result()
    write_there()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_that_outlives_its_run_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Data workers keep files open for seconds after their run was killed."""
    script = """
import os, signal, sys
from vldebias.utils.files import only_writer
with only_writer(sys.argv[1]):
    if os.fork() == 0:
        print("forked", flush=True)
        sys.stdin.readline()
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "forked\n"
        process.wait()
        with only_writer(tmp_path):
            pass
        process.communicate("\n")


def test_a_file_system_without_lock_support_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    error = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(fcntl, "lockf", Mock(side_effect=error))
    messages: list[str] = []
    with only_writer(tmp_path, messages.append):
        pass
    assert "No locks available" in messages[0]


@given(
    cells=st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C"])), min_size=1),
    name=st.sampled_from(["prompt", "=1+1", "@x", "-2"]),
)
def test_csv_cells_are_never_formulas_and_every_text_can_be_restored(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], name: str
) -> None:
    cells = [*cells, "=1+1", "+1", "-2+3", "@SUM(A1)", "\t=1", "'=1"]
    frame = pd.DataFrame({name: cells, "share": -0.5}).set_index(name)
    text = spreadsheet_csv(frame, index=True)
    for row in csv.reader(io.StringIO(text)):
        assert not row[0].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert "-0.5" in text
    path = tmp_path_factory.getbasetemp() / "x.csv"
    path.write_text(text, encoding="utf-8")
    assert read_table(path).column(name).to_pylist() == cells
