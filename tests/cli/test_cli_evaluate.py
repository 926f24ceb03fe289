"""`vldebias eval`: a suite by its name, results on stdout and progress on stderr, one clear message on bad input."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.cli.conftest import call
from tests.refusals import refused
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.evaluation.result import Measurement, Result, TaskProvenance
from vldebias.files import packaged

SUITE = """
title: Small
description: A small suite.
source: ours
needs: nothing
tasks:
  - {task: shares, name: jobs, title: Jobs, table: TABLE, resamples: 20}
  - {task: shares, name: more, title: More, table: TABLE, resamples: 20}
"""


def run(*arguments: str, code: int = 0, heard: bool = False) -> str:
    return call("eval", *arguments, code=code, heard=heard)


def write_result(path: Path, value: float, model: str = "A") -> Path:
    names = {"task": "birds", "metric": "worst_group", "method": "none", "better": "higher"}
    interval = (value - 0.01, value + 0.01)
    figure = Measurement(**names, value=value, interval=interval, change=None, n={"images": 9})
    said = {"description": "d", "prompts": "p", "prompts_hash": "0", "split": "test"}
    protocol = TaskProvenance(task="birds", model=model, fingerprint=None, methods={}, seeds=[0], n={}, **said)
    return Result(name="r", rows=[figure], provenance=[protocol], versions={}, commit=None, seconds=1.0).write(path)


def test_list() -> None:
    listed = json.loads(run("list", "--json"))
    assert [s["name"] for s in listed] == list(packaged("suites"))
    assert run("show", "miniature") == packaged("suites")["miniature"].read_text()
    assert all(name in run("list") for name in packaged("suites"))


def test_every_option_reaches_the_suite_in_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Mock(side_effect=InvalidInputError("enough"))
    monkeypatch.setattr("vldebias.evaluation.run.run_suite", measure)
    given = "--seed 1 --seed 2 --projection a --projection b --methods cali,orth --lam 3 --limit 9 --unknown -1 --fresh"
    with pytest.raises(InvalidInputError, match="enough"):
        run("miniature", *given.split(), "--resamples", "20", "--images", "4", "--judge", "j", "--labels", "x")
    options = measure.call_args.args[1]
    assert (options.seeds, options.projections) == ((1, 2), (Path("a"), Path("b")))
    assert (options.methods, options.lam, options.limit, options.unknown) == (("cali", "orth"), 3.0, 9, ("-1",))
    assert (options.fresh, options.resamples, options.images, options.judge) == (True, 20, 4, "j")
    assert (options.labels, options.out.name) == ((Path("x"),), "vldebias-miniature")


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
def test_a_suite_runs_by_path_and_is_reported_again(tmp_path: Path) -> None:
    suite, out = tmp_path / "small.yaml", tmp_path / "out"
    (tmp_path / "table.csv").write_text("prompt,value\nnurse,male\nnurse,female\npilot,male\npilot,male\n")
    suite.write_text(SUITE.replace("TABLE", str(tmp_path / "table.csv")))
    told = json.loads(run(str(suite), "--out", str(out), "--only", "jobs", "--json"))
    assert {figure["task"] for figure in told["figures"]} == {"jobs"}
    assert Result.read(out / "result.json").model_dump(mode="json", by_alias=True) == told
    text = run("run", str(suite), "--out", str(out), "--only", "jobs", heard=True)
    assert "jobs\tdiscrepancy\t" in text
    assert "page:" in text
    first = (out / "index.html").read_text()
    run("report", str(out), "--out", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text() == first.replace("index.csv", "page.csv")
    run("report", str(out / "result.json"))
    assert (out / "result.html").read_text() == first.replace("index.csv", "result.csv")


@refused(
    (("watrbirds",), r"got the suite 'watrbirds'; expected one of .*'waterbirds'"),
    (("miniature", "--only", "nests"), "got task 'nests'; expected one of birds"),
    (("waterbirds",), "this suite needs --data-root"),
    (("waterbirds", "--data-root", "nowhere"), "--data-root nowhere: no such folder"),
    (("show", "nothing"), "got the suite 'nothing'"),
    (("data", "cats"), "unknown data set 'cats'"),
    (("data", "waterbirds"), "waterbirds: got no root"),
    (("data", "birds", "--option", "n"), "expected name=value"),
    error=VldebiasError,
)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        run(*arguments)
    finally:
        assert list(tmp_path.iterdir()) == []


def test_compare(tmp_path: Path) -> None:
    a = write_result(tmp_path / "a" / "result.json", 0.2)
    b = write_result(tmp_path / "b" / "result.json", 0.6, model="B")
    head, figure = run("compare", str(a), str(b)).splitlines()
    assert dict(zip(head.split("\t"), figure.split("\t"), strict=True))["verdict"] == "better"
    assert "model differs" in run("compare", str(tmp_path / "a"), str(tmp_path / "b"), heard=True)
    assert [one["verdict"] for one in json.loads(run("compare", str(a), str(b), "--json"))["figures"]] == ["better"]


def test_data_says_what_is_there() -> None:
    told = json.loads(run("data", "birds", "--option", "n=50", "--option", "start=100", "--json"))
    assert told["images"] == 50
    assert sum(told["columns"]["label"]["counts"].values()) == 50
    text = run("data", "birds", "--option", "n=50", "--check", heard=True)
    assert all(said in text for said in ("landbird", "0 images cannot be read"))


def test_data_counts_unreadable_images_and_exits_with_one(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    (tmp_path / "table.csv").write_text("path,gender\ngood.png,male\nbad.png,female\n")
    given = ("manifest", "--root", str(tmp_path / "table.csv"), "--option", "image=path", "--option", "labels=gender")
    told = json.loads(run("data", *given, "--check", "--json", code=1))
    assert [one["id"] for one in told["unreadable"]] == ["bad.png"]
    text = run("data", *given, "--check", code=1, heard=True)
    assert "1 images cannot be read" in text
    assert "bad.png" in text
