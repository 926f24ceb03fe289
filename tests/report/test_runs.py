"""Test the list of runs that `vldebias eval compare` writes for folders."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import call
from vldebias import evaluate_captions
from vldebias.errors import InvalidInputError
from vldebias.report.result import Result
from vldebias.report.runs import read_runs
from vldebias.report.text import sentences

RESULTS = Path(__file__).parents[2] / "eval" / "results"
CAPTIONS = {"image": range(40), "caption": ["A man.", "A woman."] * 20, "label": ["male"] * 40}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a suite, captions, an edit of faces, images and a damaged file."""
    for name in ("quickstart", "skin"):
        for file in RESULTS.glob(f"{name}.*"):
            shutil.copy(file, tmp_path / file.name)
    evaluate_captions(CAPTIONS).write(tmp_path / "captions" / "result.json")
    (tmp_path / "captions" / "index.html").write_text("page")
    (tmp_path / "generated").mkdir()
    facts = {"prompt": "A nurse", "sentences": ["4 of 8 women were requested."]}
    (tmp_path / "generated" / "generate.json").write_text(json.dumps(facts))
    (tmp_path / "generated" / "plan.json").write_text("{}")
    return tmp_path


def test_every_run_shows_the_first_sentence_of_its_own_page(folder: Path) -> None:
    runs, unreadable = read_runs([folder])
    assert not unreadable
    said = {run.name: run.sentence for run in runs}
    assert said.keys() == {"quickstart", "skin", "captions", "generated"}
    for name, file in (("quickstart", "quickstart.json"), ("captions", "captions/result.json")):
        assert said[name] == sentences(Result.read(folder / file))[0]
    assert said["generated"] == "4 of 8 women were requested."
    dates = [run.date for run in runs]
    assert dates == sorted(dates, reverse=True)


def test_one_folder_or_several_results_are_listed_and_two_are_compared(folder: Path) -> None:
    page = folder / "runs.html"
    printed = call("eval compare", str(folder), "--out", str(page))
    assert "4 of 8 women were requested." in printed
    text = page.read_text(encoding="utf-8")
    assert '<a href="captions/index.html">captions</a>' in text
    assert text.count('type="checkbox"') == 4
    rows = json.loads(call("eval compare --json", str(folder)))["runs"]
    assert [row["name"] for row in rows] == [run.name for run in read_runs([folder])[0]]
    files = [str(folder / name) for name in ("quickstart.json", "skin.json", "captions")]
    assert len(json.loads(call("eval compare --json", *files))["runs"]) == 3
    assert "equal" in call("eval compare", files[0], files[0])


def test_files_that_cannot_be_read_are_listed(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "result.json").write_text("{")
    page = folder / "runs.html"
    printed = call(f"eval compare {folder} --out {page}", code=1, with_stderr=True)
    assert "broken/result.json" in printed
    assert "broken/result.json: " in page.read_text(encoding="utf-8")


def test_a_folder_without_results_and_the_removed_command_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="contains no results; expected files written by"):
        read_runs([tmp_path])
    removed = call("eval runs", str(tmp_path), code=2, with_stderr=True)
    assert "No such command 'runs'; use vldebias eval compare FOLDER..." in removed
