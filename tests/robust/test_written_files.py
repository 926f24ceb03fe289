"""Test commands that write a single file or page: nothing is lost after Ctrl-C or on a full
disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

from apps.shares.answers import AnnotationLog
from tests.apps.audit.records.test_figures import made
from tests.apps.audit.test_recorded import images_in, record_of, store_judgements
from tests.limits import limited_files
from vldebias import cli
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.report.result import Result


def plan_arguments(folder: Path) -> list[str]:
    return ["records", "plan", "--out", str(folder / "protocol.txt")]


def page_arguments(folder: Path) -> list[str]:
    made([(5, 5, 0), (9, 1, 0)]).write(folder / "records" / "model.json")
    return ["records", "page", str(folder / "records"), "--out", str(folder / "page.html")]


def label_arguments(folder: Path) -> list[str]:
    """Create judged images, human answers and a record without labels."""
    images = images_in(folder / "images")
    store_judgements(images)
    answers = folder / "answers.jsonl"
    for image in images:
        AnnotationLog(answers).append(image.path, "ada", "gender", "male")
    record = record_of(images)
    assert record is not None
    file = record.write(folder / "record.json")
    return [
        *("records", "label", str(file)),
        *("--image-dir", str(images.folder), "--label-file", str(answers)),
    ]


def runs_arguments(folder: Path) -> list[str]:
    part = TaskResult(TaskProvenance(task="t", description="", methods={"none": {}}))
    part.add("share", "none", 0.5, (0.4, 0.6), n={"images": 10})
    Result.from_tasks("run", [part], seconds=1.0).write(folder / "runs" / "a" / "result.json")
    return ["eval", "compare", str(folder / "runs"), "--out", str(folder / "runs.html")]


def shares_arguments(folder: Path) -> list[str]:
    rows = [f"{job},{value}" for job in ("nurse", "pilot") for value in ("female", "male") * 10]
    table = folder / "labelled.csv"
    table.write_text("\n".join(["prompt,gender", *rows]))
    return [
        *("eval", "shares", str(table), "--prompt-column", "prompt", "--value-column", "gender"),
        *("--out", str(folder / "shares")),
    ]


# Arguments of a command, and the files that it writes in a folder.
COMMANDS: dict[str, tuple[Callable[[Path], list[str]], tuple[str, ...]]] = {
    "records plan": (plan_arguments, ("protocol.txt",)),
    "records page": (page_arguments, ("page.html",)),
    "records label": (label_arguments, ("record.json",)),
    "eval compare": (runs_arguments, ("runs.html",)),
    "eval shares": (shares_arguments, ("shares/result.json", "shares/index.html")),
}
PARAMETERS = [pytest.param(*COMMANDS[name], id=name) for name in COMMANDS]


def contents(folder: Path, files: tuple[str, ...]) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files if (folder / name).exists()}


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob(".*.partial"))


def run_as_user(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> int:
    """Return the exit code of a command that is run through its entry point."""
    monkeypatch.setattr("sys.argv", ["vldebias", *arguments])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize(("arguments_in", "files"), PARAMETERS)
def test_a_full_disk_preserves_the_old_files_and_is_reported_in_one_sentence(
    arguments_in: Callable[[Path], list[str]],
    files: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = arguments_in(tmp_path)
    for name in files:
        if not (tmp_path / name).exists():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("old")
    before = contents(tmp_path, files)
    with limited_files(64):
        code = run_as_user(monkeypatch, arguments)
    errors = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in errors
    assert sum(line.startswith("error:") for line in errors.splitlines()) == 1
    assert "cannot write" in errors
    assert contents(tmp_path, files) == before
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("arguments_in", "files"), PARAMETERS)
def test_ctrl_c_while_writing_preserves_the_old_files(
    arguments_in: Callable[[Path], list[str]],
    files: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = arguments_in(tmp_path)
    before = contents(tmp_path, files)

    def interrupt(*paths: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", interrupt)
        code = run_as_user(monkeypatch, arguments)
    assert code == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
    assert contents(tmp_path, files) == before
    assert leftovers(tmp_path) == []
    assert run_as_user(monkeypatch, arguments) == 0
    assert set(contents(tmp_path, files)) == set(files)
