"""Test commands that write a single file or page: nothing is lost after Ctrl-C or on a full
disk."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from apps.audit.recorded import record_of_images
from tests.apps.audit.records.test_figures import made
from tests.apps.audit.test_recorded import JUDGE, VALUES, answer
from tests.limits import limited_files
from vldebias import cli
from vldebias.data import Labels
from vldebias.judge.plan import GeneratedImages, Plan
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.report.result import Result

IMAGES = 20


def plan_arguments(folder: Path) -> list[str]:
    return ["records", "plan", "--out", str(folder / "protocol.txt")]


def page_arguments(folder: Path) -> list[str]:
    made([(5, 5, 0), (9, 1, 0)]).write(folder / "records" / "model.json")
    return ["records", "page", str(folder / "records"), "--out", str(folder / "page.html")]


def label_arguments(folder: Path) -> list[str]:
    """Create judged images, human answers and a record without labels."""
    plan = Plan.build(
        {
            "model": {"pipeline": "P", "id": "model"},
            "prompt_set": "gender",
            "prompt_set_hash": "0",
            "prompts": (("A nurse.", "nurse", "unseen", None),),
            "variants": {"none": {}},
            "seeds": (0,),
            "images": IMAGES,
            "stated_images": 0,
            "steps": 1,
            "guidance": 1.0,
            "batch_size": 4,
            "options": {},
        }
    )
    images = plan.settle(folder / "images")
    assert isinstance(images, GeneratedImages)
    lines = [json.dumps({"name": "reader", "names": {"gender": VALUES}})]
    lines += [json.dumps({f"{image.path} -": {"gender": [0.0, 1.0]}}) for image in images]
    judgements = images.folder / "judgements" / "reader.jsonl"
    judgements.parent.mkdir(exist_ok=True)
    judgements.write_text("\n".join(lines), encoding="utf-8")
    answers = folder / "answers.jsonl"
    answers.write_text("".join(answer(image.path, "ada", "male") for image in images))
    labels = Labels(np.ones(IMAGES, dtype=np.int64), VALUES)
    record = record_of_images(images, labels, attribute="gender", judge=JUDGE, model="model")
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
    return ["eval", "runs", str(folder / "runs"), "--out", str(folder / "runs.html")]


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
    "eval runs": (runs_arguments, ("runs.html",)),
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
