"""Test small suite runs on the miniature world: what they write, reuse, measure again, and leave
behind when stopped."""

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from apps.shares.answers import AnnotationLog
from apps.shares.task import SharesTask
from tests.study import made_figures
from tests.study.painted_by_hand import paint
from vldebias.data import Embeddings, save_embeddings
from vldebias.data.parallel import Processes
from vldebias.errors import InvalidInputError, ReferenceWarning, VldebiasWarning, warn
from vldebias.measure.rows import Strip, TaskProvenance, TaskResult
from vldebias.report.result import Result
from vldebias.study import running as runner
from vldebias.study.inputs import Inputs
from vldebias.study.run_files import verify
from vldebias.study.running import key_of, run_suite
from vldebias.study.split import Data
from vldebias.study.suite import Suite, load_suite
from vldebias.study.tasks.retrieval import RetrievalTask
from vldebias.utils.options import Options
from vldebias.utils.pictures import read_png
from vldebias.utils.progress import Progress

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")

BIRDS: dict[str, Any] = {
    **made_figures.BIRDS,
    "data": {"name": "birds", "options": {"n": 80}},
    "lams": [0, 10, 1000],
    "resamples": 20,
}
PORTRAITS: dict[str, Any] = {
    "task": "retrieval",
    "name": "portraits",
    "title": "Portraits",
    "data": {"name": "portraits", "options": {"n": 80}},
    "attribute": {"gender": "fairface-gender"},
    "queries": {"of": "fairface-gender"},
    "k": 10,
    "resamples": 20,
    "classes": {"age": {"young": "the young", "old": "the old"}},
}
TEXTS = {
    "task": "texts",
    "name": "pairs",
    "title": "Pairs",
    "attribute": {"gender": "fairface-gender"},
}
PEOPLE: dict[str, Any] = {
    "task": "shares",
    "name": "by people",
    "title": "P",
    "attribute": "gender",
}
PEOPLE |= {"values": ["male", "female"]}


def suite(*tasks: Any, host: str | None = "miniature") -> Suite:
    settings = made_figures.SUITE | {"name": "small", "needs": "a brave heart"}
    return Suite.model_validate({**settings, "host": host, "tasks": tasks})


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Measure the shares in a table, which does not need a model."""
    path = tmp_path_factory.mktemp("table") / "table.csv"
    rows = [
        f"{job},{('male', 'female')[i % 2]}" for job, i in product(("nurse", "pilot"), range(9))
    ]
    path.write_text("\n".join(["prompt,value", *rows]))
    return {
        "task": "shares",
        "name": "table",
        "title": "Table",
        "resamples": 20,
        "table": str(path),
    }


@pytest.fixture
def run(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Result, str]]:
    """Run tasks in tmp_path, and return the result and the messages. Charts take time, so they are
    only drawn on request."""

    def go(
        *tasks: Any, only: Any = (), host: Any = "miniature", charts: bool = False, **options: Any
    ) -> Any:
        text = StringIO()
        if not charts:
            monkeypatch.setattr(
                runner, "render", lambda result, path, run_folder: path.write_text("page")
            )
        usual = Options(**{"out": tmp_path, "cache": cache, **options})
        measured = run_suite(
            suite(*tasks, host=host), usual, console=Console(file=text, width=200), only=only
        )
        return measured, text.getvalue()

    return go


def test_a_run_writes_result_page_and_charts(run: Any, table: Any, tmp_path: Path) -> None:
    measured, log = run(BIRDS, table, charts=True)
    assert Result.read(tmp_path / "result.json") == measured
    tasks = {protocol.task: protocol.title.split(": ")[:-1] for protocol in measured.provenance}
    assert tasks == {"birds": ["Birds"], "birds: cosines": ["Birds"], "table": ["Table"]}
    assert list(tasks) == [*dict.fromkeys(figure.task for figure in measured.rows)]
    page = (tmp_path / "index.html").read_text()
    assert page.count('class="task"') == len(tasks)
    # bias against cost, the results, and the accuracy of each of the four groups
    assert page.count("<svg") == 6
    assert "birds: done" in log


def test_run_files_are_distinguished_from_other_files(run: Any, table: Any, tmp_path: Path) -> None:
    run(table)
    assert verify(tmp_path) == {"changed": [], "missing": [], "added": []}
    page = tmp_path / "index.html"
    page.write_text(page.read_text() + " ")
    (tmp_path / "tasks" / "table.json").unlink()
    (tmp_path / "more.csv").write_text("")
    differences = {
        "changed": ["index.html"],
        "missing": ["tasks/table.json"],
        "added": ["more.csv"],
    }
    assert verify(tmp_path / "result.json") == differences
    for stranger in ("tasks", "nowhere"):
        with pytest.raises(InvalidInputError, match=f"{stranger}: found no manifest"):
            verify(tmp_path / stranger)


def test_finished_tasks_are_reused_unless_damaged_forced_or_changed(
    run: Any, table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    measure = SharesTask.measured
    monkeypatch.setattr(SharesTask, "measured", lambda *a: calls.append(1) or measure(*a))
    first, _ = run(table)
    again, log = run(table)
    assert (calls, again.rows) == ([1], first.rows)
    assert (again.provenance, again.seconds) == (first.provenance, first.seconds)
    assert "table: reused from an earlier run" in log
    (tmp_path / "tasks" / "table.json").write_text('{"key": "half a fi')
    again, log = run(table)
    assert ("reused" in log, again.rows) == (False, first.rows)
    run(table, fresh=True)
    run(table, resamples=21)
    assert calls == [1] * 4


def test_a_task_issues_one_warning_of_each_kind(
    run: Any, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = SharesTask.measured
    monkeypatch.setattr(
        SharesTask, "measured", lambda *a: [warn("one"), warn("two"), measure(*a)][2]
    )
    with pytest.warns(VldebiasWarning) as caught:
        run(table)
    assert [str(warning.message) for warning in caught] == ["one"]


def test_pictures_and_the_pipeline_name_are_stored(
    run: Any, table: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def measured(task: SharesTask, inputs: Any) -> Any:
        (part,) = task.measure(inputs["table"])
        part.provenance = part.provenance.model_copy(
            update={"split": "generated", "model": "Tiny", "title": "T"}
        )
        part.pictures["Side by side"] = "seeds", Image.new("RGB", (4, 4))
        return [part]

    monkeypatch.setattr(SharesTask, "measured", measured)
    (protocol,) = run(table, pipeline="own/pipe")[0].provenance
    assert (protocol.model, protocol.title) == ("own/pipe (Tiny)", "Table: T"), (
        "as named by the user"
    )
    picture = tmp_path / "side-by-side.png"
    assert read_png(picture)[1] == {"run": "small", "task": "table", "caption": "seeds"}
    assert b"PLTE" in picture.read_bytes(), "a palette makes it small"


def test_pictures_of_regressions_are_removed_if_a_new_measurement_finds_none(
    tmp_path: Path,
) -> None:
    part = TaskResult(TaskProvenance(task="people", description=""))
    suite = Mock()
    suite.name = "s"
    strip = Strip("Who got worse", ["seed 0"], [("as generated", [Image.new("RGB", (8, 8))])])
    part.strips["people-worse-strip"] = strip
    runner._write_pictures(part, suite, tmp_path)
    assert (tmp_path / "people-worse-strip.png").is_file()
    another = TaskResult(TaskProvenance(task="animals", description=""))
    runner._write_pictures(another, suite, tmp_path)
    assert (tmp_path / "people-worse-strip.png").is_file(), "it belongs to another task"
    part.strips.clear()
    runner._write_pictures(part, suite, tmp_path)
    assert not (tmp_path / "people-worse-strip.png").exists()


def test_an_attribute_without_labels_is_skipped_and_reported(run: Any, tmp_path: Path) -> None:
    drawn, _ = paint(tmp_path / "drawn", np.random.default_rng(0), images=1, stated=False)
    log = AnnotationLog(tmp_path / "labels.jsonl")
    log.append(drawn.images[0].path, "anna", "gender", "male")
    measured, output = run(
        {**PEOPLE, "attribute": "race"}, label_file=(log.path,), image_dir=drawn.folder
    )
    assert measured.rows == []
    assert "skipped, because nobody labelled race" in output


def test_the_key_changes_with_everything_that_may_change_figures(
    tmp_path: Path, cache: Path
) -> None:
    def session(**options: Any) -> Inputs:
        return Inputs(Options(**{"out": tmp_path, "cache": cache, "model": "miniature", **options}))

    def key(session: Inputs, **changes: Any) -> str:
        task = suite({**BIRDS, **changes}).tasks[0].with_options(session.options)
        return key_of(task, session.options, task.open_inputs(session))

    usual = session()
    another = session()
    texts = session()
    with torch.no_grad():
        next(another.model.host.visual.parameters()).add_(1e-3)
        texts.model.host.text_projection.add_(1e-3)
    changes: list[dict[str, Any]] = [{"lam": 5.0}, {"attribute": "celeba"}]
    changes += [{"data": {"name": "birds", "options": {"n": 81}}}]
    options: list[dict[str, Any]] = [{"resamples": 21}, {"limit": 70}, {"unknown": ("-1",)}]
    keys = [
        *map(key, (usual, another, texts)),
        *(key(usual, **change) for change in changes),
        *(key(session(**change)) for change in options),
    ]
    assert (len(set(keys)), key(session())) == (len(keys), keys[0])


def test_finished_tasks_survive_an_interrupt(
    run: Any, table: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    printed: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(RetrievalTask, "measured", Mock(side_effect=KeyboardInterrupt))
        patched.setattr(Progress, "print_line", lambda _, text: printed.append(text))
        with pytest.raises(KeyboardInterrupt):
            run(table, PORTRAITS)
    assert printed[-1] == "1 of 2 tasks are finished; run the same command to continue"
    assert [p.task for p in Result.read(tmp_path / "result.json").provenance] == ["table"]
    assert (tmp_path / "index.html").is_file()
    measured, log = run(table, PORTRAITS)
    assert "table: reused" in log
    assert [p.task for p in measured.provenance] == ["table", "portraits gender"]


@pytest.mark.parametrize(("host", "warnings"), [("miniature", 0), (None, 1)])
def test_advice_to_add_images_is_not_given_for_packaged_images(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    host: str | None,
    warnings: int,
) -> None:
    def finish(*_: object) -> None:
        warn("Pass more images", ReferenceWarning)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_finish", finish)
    suite = load_suite("quickstart").model_copy(update={"host": host})
    with pytest.raises(KeyboardInterrupt):
        run_suite(suite, Options(out=tmp_path, model="miniature"))
    assert len(recwarn) == warnings


def test_a_limit_always_selects_the_same_images(tmp_path: Path, cache: Path) -> None:
    data = Data.model_validate(BIRDS["data"])
    usual = Options(out=tmp_path, model="miniature", cache=cache)
    limited = replace(usual, limit=60)
    first, second, unlimited = (
        Inputs(options).open("images", data).ids for options in (limited, limited, usual)
    )
    assert first == second == tuple(sorted(first)) != unlimited[:60]
    assert len(first) == 60


def test_requirements_of_a_suite_are_reported(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {**BIRDS, "data": {"name": "waterbirds"}}
    sized = {**BIRDS, "data": {"name": "birds", "options": {"m": 3}}}
    model = (BIRDS, None, "model: .* a brave heart")
    people = (PEOPLE, "miniature", "this suite needs")
    files = (elsewhere, "miniature", "waterbirds: .*mine")
    options = (sized, "miniature", "options m;")
    for task, host, named in (model, people, (TEXTS, None, "pipeline"), files, options):
        with pytest.raises(InvalidInputError, match=named):
            run(task, host=host, data_root=tmp_path / "mine")
    monkeypatch.setattr("vldebias.study.inputs.open_data", lambda *_: iter(()))
    with pytest.raises(InvalidInputError, match="got a stream"):
        run(elsewhere)
    assert not (tmp_path / "index.html").exists(), "nothing was measured"


def test_embeddings_do_not_need_a_model(run: Any, tmp_path: Path, cache: Path) -> None:
    session = Inputs(Options(out=tmp_path, model="miniature", cache=cache))
    task = suite({**BIRDS, "lams": []}).tasks[0]
    wanted = task.texts()
    rows = dict(zip(wanted, session.texts.embed(wanted), strict=True))
    path = save_embeddings(tmp_path / "mine.npz", session.open("images", task.data), rows)
    alone, _ = run({**BIRDS, "lams": []}, host=None, embeddings=path, out=tmp_path / "alone")
    with_model, _ = run({**BIRDS, "lams": []}, out=tmp_path / "model")
    for figure in with_model.rows:
        expected = alone.row(figure.task, figure.metric, figure.method, subset=figure.subset)
        assert expected.value == pytest.approx(figure.value, abs=1e-6)


def test_splits_of_an_embeddings_file_are_separated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Embeddings.from_arrays(np.eye(3), {"split": ["train", "test", "test"]}, ids=list("abc"))
    path = save_embeddings(tmp_path / "e.npz", rows)
    session = Inputs(Options(out=tmp_path, embeddings=path))
    train, val, test = (Data(name="x", split=name) for name in ("train", "val", "test"))
    assert [session.open(*split).ids for split in (("images", test), ("train", train))] == [
        ("b", "c"),
        ("a",),
    ]
    assert session.open("val", val) is session.open("reference") is None
    assert len(Inputs(Options(out=tmp_path, embeddings=path, limit=1)).open("images", test)) == 1
    with pytest.raises(InvalidInputError, match=r"\['test', 'train'\].*'val'"):
        session.open("images", val)
    inputs = Inputs(
        Options(
            out=tmp_path,
            embeddings=save_embeddings(tmp_path / "w.npz", Embeddings.from_arrays(np.eye(3))),
        )
    )
    # Only what is measured is loaded, without the training split.
    assert len(inputs.open("images", test)) == 3
    assert inputs.open("train", train) is None
    named = Inputs(
        Options(out=tmp_path), sources=dict.fromkeys(("images", "train"), "birds"), split="val"
    )
    opened = []
    monkeypatch.setattr(
        "vldebias.study.inputs.open_split", lambda *split: opened.append(split[2]) or rows
    )
    assert [len(named.open(name)) for name in ("images", "train")] == [3, 3]
    assert opened == ["val", "train"]


def test_only_the_first_of_several_processes_writes(
    run: Any, table: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    alone, _ = run(table, out=tmp_path / "alone")
    monkeypatch.setattr(runner, "processes", lambda: Processes(1, 2))
    second, log = run(table, out=tmp_path / "second")
    assert (second.rows, log, (tmp_path / "second").exists()) == (alone.rows, "", False)
    used = []
    measure = runner._finish
    monkeypatch.setattr(
        runner, "_finish", lambda s, *a: [used.append(s.options), measure(s, *a)][1]
    )
    run(table, device="cuda")
    monkeypatch.setenv("LOCAL_RANK", "3")
    run(table, device="cuda", pipeline="own/pipe")
    assert [(options.device, options.pipeline) for options in used] == [
        ("cuda", "miniature"),
        ("cuda:3", "own/pipe"),
    ]


def test_only_selected_tasks_are_measured(run: Any, table: Any) -> None:
    second = {**table, "name": "other"}
    measured, _ = run(table, second, only=["other"])
    assert [part.task for part in measured.provenance] == ["other"]
    with pytest.raises(InvalidInputError, match="no such file"):
        load_suite("mine/waterbirds")  # given as a path, relative to its folder
    with pytest.raises(InvalidInputError, match=r"'tabel'"):
        run(table, second, only=["other", "tabel"])
