"""Test that the programs on the page on graphs, sentences and frames run as printed: `make
test-integrations`.

Without the libraries, they are skipped with a message.
"""

import os
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from eval.experiments.other_data import PAGE, names_of, programs, work
from eval.experiments.run import Experiment

REASON = "make test-integrations installs it"
GRAPHS, SENTENCES, FRAMES = range(3)
ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def printed(program: str, capsys: pytest.CaptureFixture[str]) -> list[float]:
    """Run a program from the page, and return the figures in the last line of its output."""
    exec(compile(program, PAGE.name, "exec"), {})
    (*_, line) = capsys.readouterr().out.splitlines()
    return [float(text) for text in re.findall(r"\d\.\d+", line)]


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the folder that contains the source archive of the sentences."""
    folder = Path(os.environ.get("VLDEBIAS_SENTENCES", Path(sys.prefix) / "share"))
    if not (folder / ARCHIVE).is_file():
        pytest.skip(f"{ARCHIVE} is not in {folder}: {REASON}")
    monkeypatch.chdir(folder)


def test_the_program_for_graphs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("grakel", reason=REASON)
    (accuracy,) = printed(programs()[GRAPHS], capsys)
    assert 0.75 < accuracy < 0.95  # two out of three molecules belong to one class


@pytest.mark.usefixtures("archive")
def test_the_program_for_sentences_runs(capsys: pytest.CaptureFixture[str]) -> None:
    accuracies = printed(programs()[SENTENCES], capsys)
    assert len(accuracies) == 2
    assert all(0.55 < accuracy < 0.85 for accuracy in accuracies)


def test_the_program_for_frames_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pytest.importorskip("pygame", reason=REASON)
    pytest.importorskip("gymnasium", reason=REASON)
    (share_explained,) = printed(programs()[FRAMES], capsys)
    assert 0.3 < share_explained < 1


def test_the_page_states_the_installed_versions() -> None:
    pytest.importorskip("grakel", reason=REASON)
    page = PAGE.read_text(encoding="utf-8")
    assert f"grakel=={version('grakel')}" in page
    assert f"gymnasium[classic-control]=={version('gymnasium')}" in page
    assert ARCHIVE in page


def test_the_experiment_trains_with_the_programs_on_the_page() -> None:
    pytest.importorskip("grakel", reason=REASON)
    arms = Experiment.read("other_data").arms
    cells = [
        {"data": "graphs", "temperature": 0.2, "rate": 0.3, "seed": 0, "settings": settings}
        for settings in (arms["RINCE"], arms["RINCE"], arms["not trained"])
    ]
    first, again, untrained = (work(cell)["accuracy"] for cell in cells)
    assert first == again != untrained


def test_infograph_is_reproducible_and_accepts_hard_negatives() -> None:
    pytest.importorskip("grakel", reason=REASON)
    infograph: Any = names_of("graphs")["infograph"]
    accuracies = [infograph(beta=beta, seed=0, steps=10) for beta in (0.0, 0.0, 10.0)]
    assert accuracies[0] == accuracies[1]
    assert all(0.75 < accuracy < 0.95 for accuracy in accuracies)
