"""`vldebias label` and the loader of pages: what the commands say before any page is served."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from browsing import free_port
from label_parts import GENDER, asking, draw, study
from typer.testing import CliRunner

from vldebias import resources
from vldebias.cli import app
from vldebias.errors import InvalidInputError
from vldebias.evaluation.human.log import AnnotationLog
from vldebias.evaluation.result import Result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "images"
    draw(path)
    return path


def said(*arguments: Any, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if code:
        assert result.exit_code != 0
        return f"{result.exception} {result.output}"
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_help_has_the_options_and_examples() -> None:
    text = said("label", "--help")
    for part in ("--attribute", "--choices", "--annotator", "--results", "--public", "eval human", "Examples"):
        assert part in text
    root = said("--help")
    assert "label" in root
    assert "demo" in root


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "say what is judged: --attribute gender"),
        (["--attribute", "glasses"], "its values are not known; list them"),
        (["--attribute", "gender", "--choices", "male"], "two or more different values"),
        (["--attribute", "gender", "--annotator", "a/b"], "leave out /"),
        (["--attribute", "gender", "--part", "half"], "expected one of unseen, train, both, got 'half'"),
        (["--attribute", "gender", "--limit", "0"], "limit"),
        (["--attribute", "gender", "--port", "99999"], "port"),
        (["--attribute", "gender", "--nonsense"], "nonsense"),
        (["--attribute", "gender", "--public"], "--public opens the page to the network and needs a password"),
        (["--attribute", "gender", "--auth", "ada"], "--auth: expected user:password"),
        (
            ["--attribute", "gender", "--results", "--votes", "all"],
            "--votes: expected one of majority, each, got 'all'",
        ),
    ],
)
def test_what_a_user_gets_wrong_is_said(
    folder: Path, tmp_path: Path, options: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLDEBIAS_AUTH", raising=False)
    assert text in said("label", folder, "--out", tmp_path / "x.jsonl", *options, code=2)


def test_a_folder_that_is_none_is_said(tmp_path: Path) -> None:
    assert "no such folder; expected one with images to label" in said("label", tmp_path / "no", code=2)


def test_a_file_of_answers_that_cannot_be_written_is_said_at_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "File exists" in said(
        "label", folder, "--attribute", "gender", "--out", tmp_path / "file" / "x.jsonl", code=2
    )


def test_results_as_json(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    engine = study(folder, GENDER, out=out)
    place = engine.start("Ada")
    while place.step is not None:
        place = engine.answer(place, place.step % 2)
    text = said("label", folder, "--attribute", "gender", "--out", out, "--results", "--json", "--resamples", "50")
    result = Result.model_validate(json.loads(text))
    assert 0 <= result.figure("gender by people", "discrepancy", "cali").value <= 0.5**0.5
    assert result.protocols[0].settings["resamples"] == 50


def test_results_of_an_empty_file_are_none(folder: Path, tmp_path: Path) -> None:
    text = said("label", folder, "--attribute", "gender", "--out", tmp_path / "x", "--results", "--json")
    assert json.loads(text)["figures"] == []
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("command", ["label", "demo"])
def test_without_gradio_the_remedy_is_named(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def page(name: str) -> ModuleType:
        found = ModuleType(name)

        def main(argv: list[str]) -> None:
            raise ModuleNotFoundError("No module named 'gradio'", name="gradio")

        found.main = main  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr("vldebias.cli.apps.load_app", page)
    with pytest.raises(InvalidInputError, match=r"needs Gradio.*pip install 'vldebias\[demo\]'"):
        CliRunner().invoke(app, [command], catch_exceptions=False)


def test_another_missing_library_is_not_blamed_on_gradio(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'vldebias_other'", name="vldebias_other")

    monkeypatch.setattr("vldebias.cli.apps.load_app", missing)
    with pytest.raises(ModuleNotFoundError, match="vldebias_other"):
        CliRunner().invoke(app, ["label"], catch_exceptions=False)


def test_options_are_passed_on_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []
    page = ModuleType("page")
    page.main = got.append  # type: ignore[attr-defined]
    monkeypatch.setattr("vldebias.cli.apps.load_app", lambda name: got.append(name) or page)
    said("label", "folder", "--attribute", "x", "--port", 1, "--help")
    said("demo", "--model", "m", "-h")
    assert got == ["label", ["folder", "--attribute", "x", "--port", "1", "--help"], "compare", ["--model", "m", "-h"]]


# ---- where the pages lie -------------------------------------------------------------------------------------


def test_this_installation_has_its_pages() -> None:
    assert {"label", "compare"} <= {path.stem for path in resources.apps_dir().glob("*.py")}
    before = list(sys.path)
    page = resources.load_app("label")
    assert page is resources.load_app("label")
    assert callable(page.main)
    assert callable(page.build_demo)
    assert sys.path == before
    assert asking.__name__ == "vldebias_apps.label_questions"
    assert "apps" not in sys.modules or not hasattr(sys.modules["apps"], "label")


@pytest.mark.slow
def test_a_wheel_has_its_pages_inside(tmp_path: Path) -> None:
    inside, beside = tmp_path / "vldebias/_resources/apps", tmp_path / "apps"
    for folder, where in ((inside, "wheel"), (beside, "checkout")):
        folder.mkdir(parents=True)
        (folder / "part.py").write_text(f"where = {where!r}\n")
        (folder / "page.py").write_text("from .part import where\n")
    script = (
        "import sys\nfrom pathlib import Path\nfrom vldebias import resources\n"
        "resources._PACKAGE = Path(sys.argv[1])\nbefore = list(sys.path)\n"
        "print(resources.load_app('page').where, sys.path == before)\n"
    )
    for where in ("wheel", "checkout"):
        done = subprocess.run(
            [sys.executable, "-c", script, tmp_path / "vldebias"], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [where, "True"]
        shutil.rmtree(inside, ignore_errors=True)


def test_a_page_that_is_none_is_refused() -> None:
    with pytest.raises(
        InvalidInputError, match=r"got the page 'lable'; expected one of .*label.*; did you mean 'label'"
    ):
        resources.load_app("lable")
    with pytest.raises(InvalidInputError, match=r"got the page '\.\./label'"):
        resources.load_app("../label")


def test_pages_that_are_nowhere_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "vldebias")
    with pytest.raises(InvalidInputError, match=r"got no pages \(\*\.py\) in .*_resources/apps or .*apps; .*reinstall"):
        resources.apps_dir()


# ---- a server ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_port_that_is_taken_is_said(folder: Path, tmp_path: Path) -> None:
    import socket

    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        command = [sys.executable, "-m", "vldebias", "label", str(folder), "--attribute", "gender", "--port", str(port)]
        done = subprocess.run(
            [*command, "--out", str(tmp_path / "x")], capture_output=True, text=True, check=False, env=os.environ
        )
    assert done.returncode == 2
    assert f"port {port}: cannot be opened" in done.stderr
    assert "choose another --port" in " ".join(done.stderr.split())
    assert AnnotationLog(tmp_path / "x").answers() == {}
