"""Test the command for the paper's tables with tiny images in the layouts of the real data sets."""

import os
import re
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import open_clip
import pandas as pd
import pytest
from small_paper import small
from typer.testing import CliRunner

from apps.baselines.classifiers import BASELINES
from apps.paper.tables import (
    HEAD,
    PARTS,
    PIPELINE,
    PIPELINE_PARTS,
    PUBLISHED_PIPELINE,
    UNNAMED_CLIP,
    command,
    compared,
    paper,
    plan,
)
from apps.shares.answers import AnnotationLog
from eval.real import problems
from tests.data.data_parts import AGES, RACES, fairface
from tests.refusals import refused
from vldebias import miniature
from vldebias.cli import app
from vldebias.report.result import Result
from vldebias.report.table import SWEPT, published
from vldebias.study.suite import Suite, load_suite
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")


@pytest.fixture
def many(stand_ins: Path) -> Path:
    """Return the stand-ins with more than 1,000 FairFace images, which its protocol ranks."""
    rows = [(age, gender, race) for race, gender, age in product(RACES, ("Male", "Female"), AGES)]
    fairface(
        stand_ins / "fairface",
        "val",
        rows * 9,
        stand_ins / "fairface/fairface-img-margin025-trainval",
    )
    return stand_ins


def test_the_plan_lists_available_and_missing_data(stand_ins: Path, tmp_path: Path) -> None:
    runs = {(run.suite.name, run.model): run for run in plan(stand_ins)}
    models = [
        "RN50:openai",
        "ViT-L-14:openai",
        "RN50:openai",
        "ViT-L-14:openai",
        "ViT-B-32:openai",
        "ViT-L-14:openai",
    ]
    assert [model for _, model in runs] == [*models, *[PIPELINE] * 3]
    assert [part for part, _ in runs][6:] == ["generation", "human", "backgrounds"]
    assert not any(run.missing for run in runs.values())
    (tmp_path / "fairface/fairface_label_val.csv").unlink()
    (planned,) = plan(stand_ins, ["fairface"], ["RN50:openai"])
    assert "fairface_label_val.csv" in planned.missing
    assert planned.missing == planned.state
    planned_runs = plan(None, ["waterbirds", "generation"])
    assert [bool(run.missing) for run in planned_runs] == [True, True, False]


def test_the_generation_part_matches_the_paper() -> None:
    (run,) = plan(None, ["generation"])
    professions = 100
    images = 100
    ways = 2
    attributes = 2
    sizes = [len(task.plan().all_images) for task in run.suite.tasks if task.name != "pairs"]
    assert sum(sizes) == professions * images * ways * attributes
    assert [task.name for task in run.suite.tasks] == ["pairs", "gender", "race"]


def test_people_label_as_many_images_as_in_the_papers() -> None:
    (run,) = plan(None, ["human"])
    unseen_professions = 20
    images = 25
    ways = 2
    # Images are generated once for gender and once for race.
    sizes = [len(task.plan().all_images) for task in run.suite.tasks]
    assert sizes == [unseen_professions * images * ways] * 2
    generated = load_suite("generation").tasks[1].plan()
    noise = {image.noise for image in generated.all_images}
    assert {image.noise for image in run.suite.tasks[0].plan().all_images} <= noise


@refused(
    ("RN50", "'RN50' is an open_clip architecture without weights; .* openai"),
    ("RN50:opanai", "RN50: got the weights 'opanai'; did you mean 'openai'\\?"),
    ("RN5:openai", "'RN5' is not an open_clip architecture"),
)
def test_a_model_that_open_clip_cannot_load_raises_an_error_before_anything_runs(
    model: str,
) -> None:
    plan(None, ["waterbirds"], [model])


def test_every_model_of_the_paper_is_listed_by_open_clip() -> None:
    for part, models in PARTS.items():
        for model in models:
            if part not in PIPELINE_PARTS:
                assert tuple(model.split(":")) in open_clip.list_pretrained()


ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/explanation/papers.md"
COMMANDS = [
    text.strip()
    for text in re.findall(r"vldebias (eval paper [^`#\n]+)", PAGE.read_text(encoding="utf-8"))
]
"""The arguments of every command that measures the paper, as printed on the page."""


@pytest.fixture
def hub(many: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the data sets as "DIR".

    The miniature models replace the weights with open_clip names, and one image per profession is
    generated in two steps.
    """
    monkeypatch.chdir(many)
    # The releases are unpacked next to each other in this parent folder.
    (many / "DIR").mkdir()
    for path in list(many.iterdir()):
        if path.name in ("waterbirds", "celeba", "fairface"):
            path.rename(many / "DIR" / path.name)

    def clip(name: str, pretrained: str | None = None, **_: Any) -> tuple[Any, Any]:
        assert (name, pretrained) in open_clip.list_pretrained()
        return miniature.load_clip()[:2]

    def pipeline(name: str, **_: Any) -> Any:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", name)
        return miniature.load_pipeline()

    monkeypatch.setattr(open_clip, "create_model_from_pretrained", clip)
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda name: miniature.load_clip()[2])
    monkeypatch.setattr("diffusers.DiffusionPipeline.from_pretrained", pipeline)
    monkeypatch.setattr("apps.paper.tables.load_suite", small)
    return many


def test_the_page_prints_the_list_of_parts() -> None:
    listed = [command(part, model) for part, models in PARTS.items() for model in models]
    assert [f"vldebias {text}" for text in COMMANDS if "--only" in text] == listed
    assert {text for text in COMMANDS if "--only" not in text} == {
        "eval paper --data-root DIR --out paper",
    }


def label_everything(out: Path) -> None:
    """Label all images that a run needs labelled, for two annotators."""
    for attribute, values in (("gender", ("male", "female")), ("race", ("White", "Black"))):
        (folder,) = out.glob(f"human-*/images/{attribute}-by-people")
        log = AnnotationLog(folder / "answers.jsonl")
        for number, path in enumerate(sorted(folder.glob("*/*/*.png"))):
            for annotator in ("ada", "ben"):
                image = path.relative_to(folder).as_posix()
                log.append(image, annotator, attribute, values[number % 2])


def one_of_each_part() -> list[str]:
    """Run the printed commands, except those for the second model of a part, which the command for
    all parts covers."""
    commands = []
    for part, models in PARTS.items():
        commands.append(command(part, models[0]).removeprefix("vldebias "))
    assert set(commands) < set(COMMANDS)
    return commands


@pytest.mark.slow
@pytest.mark.usefixtures("hub", "no_charts")
@pytest.mark.parametrize("printed", one_of_each_part())
def test_the_printed_command_of_a_part_runs_to_the_end(printed: str) -> None:
    ran = CliRunner().invoke(app, printed.split())
    assert ran.exit_code == 0, (ran.output, ran.exception)
    if "human" in printed:
        assert ran.stderr.count("vldebias label") >= 2
        label_everything(Path("paper"))
        ran = CliRunner().invoke(app, printed.split())
        assert ran.exit_code == 0, (ran.output, ran.exception)
        assert "vldebias label" not in ran.stderr
    frame = pd.read_csv("paper/paper.csv")
    assert not frame.empty
    known = frame.measured.notna() & frame.low.notna()
    assert known.mean() > 0.5  # the tiny stand-ins lack some of the groups
    assert set(frame[known].suite) == set(frame.suite)
    assert Path("paper/index.html").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("hub", "no_charts")
def test_a_failing_part_is_reported_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run the command for all parts with all models. Other tests check that commands print no
    errors."""
    load = open_clip.create_model_from_pretrained

    def broken(name: str, pretrained: str | None = None, **options: Any) -> Any:
        if name == "ViT-B-32":
            raise RuntimeError("file in archive is not in a subdirectory")
        return load(name, pretrained, **options)

    monkeypatch.setattr(open_clip, "create_model_from_pretrained", broken)
    Path("DIR/celeba/Eval/list_eval_partition.txt").unlink()
    ran = CliRunner().invoke(app, ["eval", "paper", "--data-root", "DIR", "--out", "paper"])
    assert ran.exit_code == 1, (ran.output, ran.exception)
    page = Path("paper/index.html").read_text()
    for text in (page, ran.output):
        assert "file in archive is not in a subdirectory" in text
        assert "list_eval_partition" in text
    frame = pd.read_csv("paper/paper.csv")
    measured = frame[frame.measured.notna()]
    runs = set(zip(measured.suite, measured.model, strict=True))
    expected = {(part, model) for part, models in PARTS.items() for model in models}
    broken_runs = {("fairface", "ViT-B-32:openai"), *((n, m) for n, m in expected if n == "celeba")}
    waiting = {(part, model) for part, model in expected if part == "human"}  # waits for answers
    assert runs == expected - broken_runs - waiting
    pipelines = frame[frame.suite == "generation"]
    assert set(pipelines["published of"]) == {PUBLISHED_PIPELINE}
    assert f"published values are for {PUBLISHED_PIPELINE}" in page


def send_back(out: Path) -> None:
    """Run the command that users are asked to copy their results with, and check the files like
    CI."""
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith("for run in "))
    subprocess.run(
        ["bash", "-c", line.replace("paper/", f"{out.name}/")], cwd=out.parent, check=True
    )
    (folder,) = (out.parent / "eval/results/real").iterdir()
    assert folder.name == "waterbirds-miniature"
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "result.json"]
    # A checkout with uncommitted changes is not clean, but a contributor's is.
    assert [text for text in problems(folder) if "changed files" not in text] == []


def page_of(folder: Path) -> str:
    """Render the page that compares published and measured figures."""
    return (folder / "index.html").read_text(encoding="utf-8")


def test_every_published_figure_has_a_row_and_its_difference(
    stand_ins: Path, tmp_path: Path
) -> None:
    runs = plan(stand_ins, ["waterbirds"], ["miniature"])
    frame = paper(tmp_path / "out", runs, Options(out=tmp_path, resamples=20), SILENT)
    # The paper has no figures for this model, so all figures in its tables are measured.
    assert frame.published.isna().all()
    assert frame.measured.notna().all()
    assert frame["published of"].eq("").all()
    page = (tmp_path / "out/index.html").read_text()
    assert f"{len(frame)} more values were measured that the paper does not report" in page
    assert "the paper contains no values for it" in page
    assert (tmp_path / "out/waterbirds-miniature/result.json").is_file()
    send_back(tmp_path / "out")
    (run,) = runs
    run.model = "RN50:openai"  # the same measurements next to the figures for a different model
    measured = Result.read(tmp_path / "out/waterbirds-miniature/result.json")
    frame = compared([run], {run.name: measured}, tmp_path)
    assert tuple(frame) == HEAD
    expected = published("waterbirds", "RN50:openai")
    swept = {lam: published("waterbirds", "RN50:openai", lam=lam) for lam in SWEPT}
    cosines = frame[frame["published of"] == UNNAMED_CLIP]
    assert sorted(cosines.published) == [0.65, 0.66, 0.70, 0.75]
    assert cosines.measured.notna().all()
    assert len(frame) == len(expected) + len(cosines) + sum(map(len, swept.values())) > 20
    # Published averages and gaps of methods that use labels are not compared with methods that do
    # not.
    has_labels = frame.method.isin(["erm-linear", "wise-ft", "dfr-sub", "contrastive-adapter"])
    assert set(frame[has_labels].metric) == {"worst_group", "average_reweighted", "gap_reweighted"}
    assert "weight each group by its frequency in the training data" in page_of(tmp_path)
    for lam, figures in swept.items():
        row = frame[(frame.metric == "gap") & (frame.method == f"orth-cali at lambda {lam:g}")]
        assert row.published.item() == figures["waterbirds", "gap", "orth-cali", ""]
        gap = measured.row("waterbirds", "gap", "orth-cali", lam=lam)
        assert row.measured.item() == gap.value
    row = frame[(frame.metric == "worst_group") & (frame.method == "orth-cali")].iloc[0]
    assert row.published == expected["waterbirds", "worst_group", "orth-cali", ""]
    assert row.measured == measured.row("waterbirds", "worst_group", "orth-cali", lam=1000.0).value
    assert row.low <= row.measured <= row.high
    assert row.difference == pytest.approx(row.measured - row.published)
    assert all(text in page_of(tmp_path) for text in ("0.740", f"{row.measured:.3f}"))
    # The same measurements are compared with the paper's other model, which some tables omit.
    run.model = "ViT-L-14:openai"
    frame = compared([run], {run.name: measured}, tmp_path)
    lacking = frame[frame.published.isna()]
    assert set(lacking.method) == {"cali", *(f"orth-cali at lambda {lam:g}" for lam in SWEPT)} | {
        "orth-cali"  # pairs without the class
    }
    assert lacking.measured.notna().all()


def test_a_baseline_that_cannot_be_fitted_has_rows_with_the_reason(
    stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(examples: Any) -> Any:
        raise RuntimeError("the solver diverged")

    def quick(name: str) -> Suite:
        suite = load_suite(name)
        changes = {"baselines": ("erm-linear", "wise-ft"), "lams": (), "methods": ("orth-cali",)}
        return suite.model_copy(update={"tasks": (suite.tasks[0].model_copy(update=changes),)})

    monkeypatch.setitem(BASELINES, "wise-ft", (broken, "a source"))
    monkeypatch.setattr("apps.paper.tables.load_suite", quick)
    runs = plan(stand_ins, ["waterbirds", "celeba"], ["miniature"])
    paper(tmp_path / "out", runs, Options(out=tmp_path, resamples=20), SILENT)
    assert [(run.failure, run.missing) for run in runs] == [("", "")] * 2
    results = {}
    for run in runs:
        measured = Result.read(tmp_path / f"out/{run.name}/result.json")
        run.model = "RN50:openai"  # a model with published figures
        results[run.name] = measured
    frame = compared(runs, results, tmp_path)
    is_broken = frame.method == "wise-ft"
    assert set(frame[is_broken].suite) == {"waterbirds", "celeba"}
    assert frame[is_broken].measured.isna().all()
    reason = "could not be fitted: RuntimeError: the solver diverged"
    assert set(frame[is_broken].note) == {reason}
    assert set(frame[~is_broken].note) == {""}
    assert f"not measured: {reason}" in page_of(tmp_path)


# All parts run the same way, except the one that waits for annotators.
@pytest.mark.slow
@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize(("part", "made"), [("fairface", "shard-*"), ("human", "*.png")])
def test_a_killed_part_resumes_to_the_same_result(
    part: str, made: str, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.paper.tables.load_suite", small)

    def words(out: Path) -> list[str]:
        model = ["--data-root", str(many), "--model", "miniature"]
        if part in PIPELINE_PARTS:
            model = ["--pipeline", "miniature"]
        return ["eval", "paper", "--only", part, *model, "--device", "cpu", "--out", str(out)]

    def run(out: Path) -> None:
        ran = CliRunner().invoke(app, words(out))
        assert ran.exit_code == 0, (ran.output, ran.exception)

    uninterrupted = tmp_path / "whole"
    killed = tmp_path / "killed"
    run(uninterrupted)
    half = len(list(uninterrupted.rglob(made))) // 2
    assert half > 0
    script = str(Path(__file__).parent / "small_paper.py")
    process = subprocess.Popen(
        [sys.executable, script, *words(killed)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    while len(list(killed.rglob(made))) < half:
        assert process.poll() is None, "the run ended before it was killed"
        time.sleep(0.05)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    run(killed)
    if part == "human":  # generating the images takes most of the time
        for out in (uninterrupted, killed):
            label_everything(out)
            run(out)
    ends = [
        Result.read(out / f"{part}-miniature/result.json").to_pandas()
        for out in (uninterrupted, killed)
    ]
    pd.testing.assert_frame_equal(*ends)
    assert not ends[0].empty
    pictures = [sorted(out.rglob("images/**/*.png")) for out in (uninterrupted, killed)]
    assert [path.read_bytes() for path in pictures[0]] == [
        path.read_bytes() for path in pictures[1]
    ]
