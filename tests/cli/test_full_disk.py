"""Test that commands whose files cannot be written end with a one-sentence message and exit code 2,
and do not leave partial files."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.limits import limited_files
from vldebias.cli import main
from vldebias.cli.common import check_out
from vldebias.errors import InvalidInputError

CALI = ["--method", "cali"]
TRAIN = ["train", "--data", "pairs.csv", "--image-column", "file", "--caption-column", "text"]
TRAIN += ["--steps", "2", "--batch-size", "4", "--set", "save_every=0.00001", "--cpu"]
TRAIN += ["--set", "workers=0", "--set", "score_pairs=false", "--out", "out"]
AUDIT = ["audit", "prompts.txt", "--attribute", "gender", "--pipeline", "miniature", "--out", "out"]
CAPTIONS = ["eval", "captions", "captions.csv", "--out", "out"]
GENERATE = ["generate", "A photo of a doctor", "--attribute", "gender", "--images", "2"]
GENERATE += ["--steps", "2", "--out", "out"]
DEBIAS = ["debias", "gender", "--model", "miniature"]
QUICKSTART = ["eval", "quickstart", "--images", "1", "--seed", "0", "--out", "out"]
PAPER = ["eval", "paper", "--only", "generation", "--pipeline", "miniature", "--out", "out"]

# Arguments, and a size in bytes that is exceeded by one of the command's files.
COMMANDS = [
    pytest.param([*DEBIAS, *CALI, "--out", "out"], 2000, id="debias"),
    pytest.param([*DEBIAS, *CALI, "--merge", "out"], 60_000, id="merge-model"),
    pytest.param(
        ["debias", "gender", "--pipeline", "miniature", *CALI, "--merge", "out"],
        60_000,
        id="merge-pipeline",
        marks=pytest.mark.slow,
    ),
    pytest.param(AUDIT, 0, id="audit-list"),
    pytest.param(AUDIT, 2000, id="audit-page"),
    pytest.param(CAPTIONS, 0, id="captions-result"),
    pytest.param(CAPTIONS, 4000, id="captions-page"),
    pytest.param(GENERATE, 2000, id="generate"),
    pytest.param(TRAIN, 0, id="train-lock"),
    pytest.param(TRAIN, 60_000, id="train-checkpoint"),
    pytest.param(QUICKSTART, 0, id="quickstart-lock"),
    pytest.param(QUICKSTART, 60_000, id="quickstart-cache", marks=pytest.mark.slow),
    pytest.param(["eval", "run", "miniature", "--out", "out"], 0, id="eval"),
    pytest.param(PAPER, 0, id="eval-paper", marks=pytest.mark.slow),
]
COMPLETED_WITH_ROOM = ["debias", "merge-model", "merge-pipeline", "audit-page", "generate"]
COMPLETED_WITH_ROOM += ["captions-result", "captions-page", "train-checkpoint"]


@pytest.fixture(autouse=True)
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with prompts and pairs."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("A photo of a doctor\nA photo of a nurse\n")
    lines = ["file,text"]
    for number in range(8):
        pixels = np.full((24, 24, 3), 30 * number, np.uint8)
        Image.fromarray(pixels).save(f"{number}.png")
        lines.append(f"{number}.png,shade {number}")
    Path("pairs.csv").write_text("\n".join(lines) + "\n")
    Path("captions.csv").write_text("caption\n" + "a female nurse\n" * 6)


@pytest.mark.parametrize(("arguments", "size"), COMMANDS)
def test_a_command_reports_a_full_disk(
    arguments: list[str],
    size: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr(sys, "argv", ["vldebias", *arguments])
    monkeypatch.setenv("VLDEBIAS_CACHE", "cache")
    with limited_files(size), pytest.raises(SystemExit) as end:
        main()
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert end.value.code == 2
    assert last_line.startswith("error: cannot write ")
    assert "the file is larger than the file system or `ulimit -f` allows" in last_line
    assert list(Path().rglob("*.partial")) == []

    if request.node.callspec.id in COMPLETED_WITH_ROOM:
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        assert any(Path("out").iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["tabs", "json"])
def test_reranking_on_a_full_disk_ends_with_one_sentence(form: tuple[str, ...]) -> None:
    lines = ["id,score,gender"]
    lines += [f"{row},{row / 100},{['female', 'male'][row % 2]}" for row in range(100)]
    Path("results.csv").write_text("\n".join(lines) + "\n")
    command = ["rerank", "results.csv", "--attribute", "gender", *form]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "vldebias", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "No space left on device; free some space" in done.stderr.splitlines()[-1]


def test_a_folder_with_a_file_of_another_program_is_kept(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("[]")
    with pytest.raises(InvalidInputError, match="not a valid result"):
        check_out(tmp_path, "captions")
    assert (tmp_path / "result.json").read_text() == "[]"
