"""Test that every command printed on a page for users' own data or weights runs with its printed
arguments.

Stand-ins replace what this machine lacks (tests/experiments/stand_ins.py). Other tests cover the
`bash` and `python` blocks that run offline unchanged (tests/experiments/test_readme.py), those for
`eval paper` (tests/apps/paper/test_paper.py), and `vldebias quickstart`
(tests/study/test_quickstart.py).
"""

import re
import shutil
from pathlib import Path

import pytest
from stand_ins import (
    answers,
    captions,
    collect_pages,
    data_sets,
    edited,
    features,
    pictures,
    shorten_runs,
    tables,
    use_cpu,
    use_embedded_models,
    use_two_steps,
)
from test_readme import ROOT, commands, known, with_output
from typer.testing import CliRunner

from vldebias.cli import app

# These two folders are the largest of the user's files, and no command writes to them.
READ_ONLY = ("DIR", "captions")
# Commands with separate tests: tests/apps/audit/records/test_cli_records.py, test_tutorials.py and
# tests/report/test_gate.py.
ELSEWHERE = (
    "eval paper",
    "vldebias quickstart",
    "records label",
    "records check",
    "quick/images/generation",
    "eval gate eval/results",
)
# Output of earlier commands, which is only read by the blocks that name it.
MADE = ("sd15",)


def printed() -> list[object]:
    """Return the `console` blocks with commands from this package."""
    blocks = []
    for case in with_output("console"):
        block = str(case.values[0])
        if "vldebias " in block and not any(words in block for words in ELSEWHERE):
            blocks.append(pytest.param(block, id=case.id))
    return blocks


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create every file and folder that a page treats as the user's own."""
    folder = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        data_sets(folder / "DIR")
        (folder / "DIR" / "model_index.json").write_text("{}", encoding="utf-8")
        features()
        tables()
        captions()
        edited()
        pictures()
        answers()
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("no_charts")
@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
@pytest.mark.parametrize("block", printed())
def test_a_printed_block_runs(
    block: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for entry in files.iterdir():
        if entry.name in READ_ONLY:
            (here / entry.name).symlink_to(entry)
        elif entry.is_file():
            shutil.copy(entry, here)
        elif entry.name in block or entry.name not in MADE:
            shutil.copytree(entry, here / entry.name, symlinks=True)
    monkeypatch.chdir(here)
    use_embedded_models(monkeypatch)
    use_cpu(monkeypatch)
    shorten_runs(monkeypatch)
    use_two_steps(monkeypatch)
    with collect_pages(monkeypatch) as served:
        for words in commands(block):
            if "a/result.json" in words:  # from two of the user's own runs
                for name in ("a", "b"):
                    shutil.copytree("audit", name)
            if words[:2] == ["eval", "generation"]:  # it writes the stand-in that other blocks read
                shutil.rmtree("sd15", ignore_errors=True)
            if words[:2] == ["eval", "report"] and not Path(words[2]).exists():
                pytest.fail(f"{words[2]}: no command before it has written this")
            ran = CliRunner().invoke(app, words)
            assert ran.exit_code == 0, f"{words}: {ran.exception!r}\n{ran.output}"
            if known(words).name in ("demo", "label", "serve"):
                assert served.pop()


def test_every_printed_command_is_run_by_a_test() -> None:
    """Look for commands in fences other than `console` and `bash`, which no test would find."""
    fences = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for kind, block in fences.findall(path.read_text(encoding="utf-8")):
            started = re.search(r"^(?:\$ )?vldebias ", block, re.MULTILINE)
            assert not started or kind in ("console", "bash"), (path.name, block)
