"""Test `vldebias eval`: suites by name, results on stdout and progress on stderr, and one clear
message for bad input."""

import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from rich.console import Console

from apps.paper import tables as paper
from tests.cli.conftest import call
from tests.refusals import refused
from tests.study.made_figures import figure, protocol, result
from vldebias.cli import common
from vldebias.data import Embeddings, save_embeddings
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.report.compare import compare
from vldebias.report.result import Result
from vldebias.study.run_files import verify
from vldebias.utils.files import packaged

IS_A_FILE = "is a file; choose a writable folder"
QUICKSTART = str(Path(__file__).parents[2] / "eval" / "results" / "quickstart.json")
TASKS = (
    "{task: shares, name: jobs, title: J, table: TABLE, resamples: 20}, {task: shares, name: more,"
    " table: TABLE}"
)
SUITE = (
    f"{{title: Small, description: A small suite., source: ours, needs: nothing, tasks: [{TASKS}]}}"
)


def run(line: str, *arguments: str, code: int = 0, with_stderr: bool = False) -> str:
    return call(f"eval {line}", *arguments, code=code, with_stderr=with_stderr)


def write_result(path: Path, value: float, model: str = "A") -> Path:
    row = figure("none", value, metric="worst_group", interval=(value - 0.01, value + 0.01))
    return result([row], protocol(model=model)).write(path)


def test_suites_are_listed() -> None:
    listed = json.loads(run("list", "--json"))
    assert [s["name"] for s in listed] == list(packaged("suites"))
    assert run("show", "miniature") == packaged("suites")["miniature"].read_text()
    assert all(name in run("list") for name in packaged("suites"))


def test_every_option_reaches_the_suite_with_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Mock(side_effect=InvalidInputError("enough"))
    monkeypatch.setattr("vldebias.study.running.run_suite", measure)
    arguments = (
        "--seed 1 --seed 2 --projection a --projection b --methods cali,orth --lam 3 --limit 9"
        " --unknown -1 --fresh --images 4 --judge j --label-file x"
    )
    with pytest.raises(InvalidInputError, match="enough"):
        run(f"miniature {arguments}")
    options = measure.call_args.args[1]
    assert (options.seeds, options.projections) == ((1, 2), (Path("a"), Path("b")))
    assert (options.methods, options.lam, options.limit) == (("cali", "orth"), 3.0, 9)
    assert (options.unknown, options.fresh, options.images) == (("-1",), True, 4)
    assert (options.judge, options.label_file) == ("j", (Path("x"),))
    assert options.out.name == "vldebias-miniature"


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
def test_a_suite_runs_by_path_and_its_report_can_be_recreated(tmp_path: Path) -> None:
    suite = tmp_path / "small.yaml"
    out = tmp_path / "out"
    (tmp_path / "table.csv").write_text(
        "prompt,value\nnurse,male\nnurse,female\npilot,male\npilot,male\n"
    )
    suite.write_text(SUITE.replace("TABLE", str(tmp_path / "table.csv")))
    report = json.loads(run(f"{suite} --out {out} --only jobs --json"))
    assert {figure["task"] for figure in report["figures"]} == {"jobs"}
    assert Result.read(out / "result.json").to_dict() == report
    text = run(f"run {suite} --out {out} --only jobs", with_stderr=True)
    assert "jobs\tdiscrepancy\t" in text
    assert "page:" in text
    first = (out / "index.html").read_text()
    run(f"report {out} --out {tmp_path / 'page.html'}")
    assert (tmp_path / "page.html").read_text() == first.replace("index.csv", "page.csv")
    verified = run(f"report {out} --verify", with_stderr=True)
    assert "all files match manifest.json, whose SHA-256 is" in verified
    (out / "index.html").unlink()
    assert run(f"report {out} --verify", code=1) == "missing: index.html\n"
    run(f"report {out}")
    assert (out / "index.html").read_text() == first
    run(f"report {out} --verify")
    (out / "tasks" / "jobs.json").write_text("{}")
    run(f"report {out}")
    assert run(f"report {out} --verify", code=1) == "changed: tasks/jobs.json\n"
    (out / "manifest.json").unlink()
    run(f"report {out / 'result.json'}")
    assert (out / "result.html").read_text() == first.replace("index.csv", "result.csv")
    run(f"report {tmp_path / 'nowhere'}", code=2)


@refused(
    ("miniature --only nests", "got task 'nests'; expected one of birds"),
    ("show nothing", "got the suite 'nothing'"),
    (f"miniature --out {__file__}", IS_A_FILE),
    (f"paper --only generation --out {__file__}", IS_A_FILE),
    ("paper --only waterbirds", "nothing can be measured"),
    (f"shares {__file__} --prompt-column p --value-column v --out {__file__}", IS_A_FILE),
    *(
        (f"{command} --out {QUICKSTART}", "expected a file with the ending .html")
        for command in (
            f"compare {QUICKSTART} {QUICKSTART}",
            f"report {QUICKSTART}",
        )
    ),
    ("data cats", "unknown data set 'cats'"),
    ("data waterbirds", "waterbirds: no data folder found"),
    ("data birds --option n", "expected name=value"),
    error=VldebiasError,
)
def test_invalid_input_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        run(command)
    finally:
        assert list(tmp_path.iterdir()) == []


def test_results_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = write_result(tmp_path / "a" / "result.json", 0.2)
    b = write_result(tmp_path / "b" / "result.json", 0.6, model="B")
    *lines, head, figure = run(f"compare {tmp_path / 'a'} {tmp_path / 'b'}").splitlines()
    assert all(line.startswith("# ") for line in lines)
    assert lines[0].startswith("# better: ")
    assert any("model: " in line for line in lines)
    assert dict(zip(head.split("\t"), figure.split("\t"), strict=True))["verdict"] == "better"
    (row,) = json.loads(run(f"compare {a} {b} --json"))["figures"]
    assert row["verdict"] == "better"
    page = tmp_path / "compare.html"
    run(f"compare {a} {b} --out {page}")
    assert "A: a/result.json<br>B: b/result.json" in page.read_text(encoding="utf-8")
    console = Console(width=20, force_terminal=True, color_system=None)
    monkeypatch.setattr(common, "out", lambda: console)
    compared = compare(Result.read(a), Result.read(b), ("a/result.json", "b/result.json"))
    assert run(f"compare {a} {b}") == f"{compared}\n"


def test_a_training_run_is_not_a_result(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InvalidInputError, match=r"training run.*eval SUITE --model .*model"):
        run(f"compare {tmp_path} {tmp_path}")


def test_data_describes_a_data_set() -> None:
    report = json.loads(run("data birds --option n=50 --option start=100 --json"))
    assert report["images"] == 50
    assert sum(report["columns"]["label"]["counts"].values()) == 50
    text = run("data birds --option n=50 --check", with_stderr=True)
    for sentence in ("landbird", "50 images, ", "0 images cannot be read"):
        assert sentence in text
    assert f"\n{next(iter(report['about']))}: " in text
    assert "cannot be read" not in run("data birds --option n=50", with_stderr=True)


def test_data_counts_unreadable_images_and_exits_with_one(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    (tmp_path / "table.csv").write_text("path,gender,age\ngood.png,male,9\nbad.png,female,8\n")
    command = f"data manifest --root {tmp_path / 'table.csv'} --option image=path --check"
    report = json.loads(run(f"{command} --option labels=gender,age --json", code=1))
    assert set(report["columns"]) == {"gender", "age"}
    assert [image["id"] for image in report["unreadable"]] == ["bad.png"]
    text = run(f"{command} --option labels=[gender]", code=1, with_stderr=True)
    assert "1 images cannot be read" in text
    assert "bad.png" in text


def test_shares_of_a_table_are_compared_and_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        f"job{i // 2 % 4},{'ab'[i % 2]},{'FM'[i % 3 > 1]},{('female', 'male', '?')[i % 3]}"
        for i in range(80)
    ]
    Path("mine.csv").write_text(
        "\n".join(["text,model,judge,people", *rows, "job0,a,both,male", "job0,b,both,male"])
    )
    command = (
        "shares mine.csv --prompt-column text --value-column judge --rename F=female"
        " --rename M=male --unknown both"
    )
    plain = run(command, with_stderr=True)
    assert "page: vldebias-shares/index.html" in plain
    assert "both" not in plain
    assert Path("vldebias-shares", "index.html").is_file()
    command += " --method-column model --baseline a --people-column people --unknown ?"
    figures = json.loads(run(f"{command} --json"))["figures"]
    changed = {(row["task"], row["method"]) for row in figures if row["change"]}
    assert ("shares corrected", "b") in changed
    for column, other in (("prompt", "value"), ("value", "prompt")):
        with pytest.raises(InvalidInputError, match=f"expected --{other}-column COLUMN"):
            run(f"shares mine.csv --{column}-column judge")


def test_the_papers_runs_are_listed_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = dict.fromkeys(paper.HEAD, "x")
    row |= {"published": 0.25, "measured": 0.5, "low": 0.2, "high": 0.6, "difference": np.nan}
    measure = Mock(return_value=pd.DataFrame([row]))
    monkeypatch.setattr(paper, "paper", measure)
    command = f"paper --only generation --pipeline miniature --out {tmp_path}"
    output = run(command, with_stderr=True)
    assert "\ngeneration\tminiature\tdata are available\t" in output
    assert "x\t0.250\tx\t0.500\t\n" in output
    assert "1 of 1 published values was measured again; 1 of them is inside" in output
    assert f"page: {tmp_path / 'index.html'}\n" in output
    assert json.loads(run(command, "--json")) == [row | {"difference": None}]


def test_the_paper_help_lists_all_parts() -> None:
    shown = run("paper", "--help")
    for part in paper.PARTS:
        assert part in shown


def test_the_quickstart_runs_its_suite_in_a_single_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Mock(return_value=Result.read(write_result(tmp_path / "result.json", 0.2)))
    monkeypatch.setattr("vldebias.study.running.run_suite", measure)
    log = call(f"quickstart --out {tmp_path}", with_stderr=True)
    suite, options = measure.call_args.args
    assert (suite.name, options.cache) == ("quickstart", tmp_path / "cache")
    page = tmp_path / "index.html"
    for text in ("are written to", "Next, on your own model", f"page: {page}"):
        assert text in log
    assert "Next, " not in call(f"quickstart --out {tmp_path} --json", with_stderr=True)


AUDIT = "audit prompts.txt --attribute gender"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a folder with prompts and 80 rows. Row 9 has the wrong label."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("A photo of a nurse.\nA red chair\nA photo of a mechanic.\n")
    smile = np.arange(80) % 2
    gender = np.arange(80) // 2 % 2
    rows = np.stack([3 * smile - 1.5, 2 * gender - 1, np.ones(80), np.arange(80) % 7 / 7], 1)
    smile[9] = 0
    gender[:2] = 2
    columns = {
        "smile": np.array(["no", "yes"])[smile],
        "gender": np.array(["female", "male", "?"])[gender],
    }
    save_embeddings(Path("rows.npz"), Embeddings.from_arrays(rows, columns))


@pytest.mark.usefixtures("here", "no_charts")
def test_rewritten_prompts_are_read_like_other_prompts() -> None:
    # str.splitlines would split the second line.
    Path("users.txt").write_text("# asked\na photo of a nurse\na photo of a pilot\n")
    enhanced = ["a photo of a female nurse", "a photo of a pilot\u2028in a hangar"]
    Path("enhanced.txt").write_text("\n".join(enhanced), encoding="utf-16")
    named = "--original users.txt --rewritten enhanced.txt --out rewriter"
    log = call(f"audit --attribute gender {named}", with_stderr=True)
    assert "users.txt: read 2 prompts; 1 skipped as comments" in " ".join(log.split())
    assert "1 of 2 people" in Path("rewriter/result.json").read_text()


@pytest.mark.usefixtures("here", "no_charts")
def test_an_audit_writes_a_page_a_result_and_a_list_of_prompts() -> None:
    log = call(f"{AUDIT} --pipeline miniature", with_stderr=True)
    out = Path("vldebias-audit")
    assert log.startswith("# 3 prompts: ")
    assert "\ntask\tmetric\t" in log
    assert all(text in log for text in (f"page: {out / 'index.html'}", f"prompts: {out}"))
    assert not any(verify(out).values())
    listed = pd.read_csv(out / "prompts.csv", index_col="prompt")
    assert listed.index[-1] == "A red chair"
    assert listed["share"].notna().tolist() == [True, True, False]
    printed = call(f"{AUDIT} --pipeline miniature --json")
    assert set(json.loads(printed)["files"]) == {"page", "prompts"}


@pytest.mark.usefixtures("here")
@refused(
    (f"{AUDIT} --out rows.npz", IS_A_FILE),
    ("diagnose rows.npz --group-column gender --out rows.npz", IS_A_FILE),
)
def test_invalid_requests_are_rejected(command: str) -> None:
    call(command)


@pytest.mark.usefixtures("here", "no_charts")
def test_a_diagnosis_lists_the_least_credible_labels_first_and_shows_their_pictures(
    tmp_path: Path,
) -> None:
    Image.new("RGB", (8, 8)).save("9.png")
    command = "diagnose rows.npz --unknown ? --group-column gender"
    log = call(f"{command} --label-column smile --image-dir .", with_stderr=True)
    for name in ("page: ", "suspect labels: ", "their pictures: "):
        assert name in log
    out = Path("vldebias-diagnose", "wrong-labels.csv")
    listed = pd.read_csv(out, dtype=str)
    assert listed.loc[0].tolist()[3:] == ["9", "9", "no", "yes", str(tmp_path / "9.png")]
    assert "given no, fits yes" in out.with_suffix(".html").read_text()
    assert "no/female" in out.with_name("index.html").read_text()
    assert not any(verify(out.parent).values())
    assert "files" not in json.loads(call(f"{command} --json"))
