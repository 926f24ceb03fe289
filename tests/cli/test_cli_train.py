"""`vldebias train` and `vldebias pairs`: flags are the settings, JSON alone on stdout, errors in one line."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from tests.refusals import refused
from vldebias.cli import app
from vldebias.cli.flags import _annotation_of
from vldebias.cli.train import FIRST
from vldebias.errors import InvalidInputError
from vldebias.training.loop import InterruptedRunError
from vldebias.training.objective import build_objective
from vldebias.training.pairs import open_images
from vldebias.training.settings import GONE, PRESETS, TrainSettings, load_settings

SMALL = ["--cpu", "--data", "birds", "--items", "24", "--val-items", "12", "--steps", "1", "--batch-size", "8"]
FAST = [*SMALL, "--workers", "0", "--temperature", "0.2", "--tune", "heads"]


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def heard(*arguments: str) -> str:
    """Scores and what is said beside them, which a pipe leaves on stderr."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout + done.stderr


def test_help_has_every_setting_with_its_default() -> None:
    told = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["train", "--help-all"]).stdout
    flags = {f"--{name.replace('_', '-')}" for name in TrainSettings.model_fields}
    assert flags <= set(re.findall(r"--[a-z0-9-]+", told))
    assert "accelerate launch" in told
    assert "Default: 0.4." in told
    assert "feature-map" not in told
    described = _annotation_of("rows", FieldInfo(annotation=str, description="of [rows]"), "")
    assert described.__metadata__[0].help.startswith(r"of \[rows]"), "brackets are no markup"


def test_the_first_page_has_five_settings_and_says_where_the_others_are() -> None:
    told = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["train", "--help"]).stdout
    shown = {line.split()[1] for line in told.splitlines() if re.match(r"\W+--[a-z]", line)}
    beside = {"--config", "--out", "--cpu", "--show", "--json", "--help", "--help-all"}
    assert shown - beside == {"--preset", *(f"--{name.replace('_', '-')}" for name in FIRST)}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_where_settings_begin(name: str, tmp_path: Path) -> None:
    preset = load_settings(preset=name)
    assert {key: getattr(preset, key) for key in PRESETS[name]} == PRESETS[name]
    build_objective(preset, temperature=0.07, items=512)
    (tmp_path / "run.yaml").write_text(run("train", "--preset", name, "--lr", "0.5", "--show"))
    assert load_settings(tmp_path / "run.yaml") == load_settings(preset=name, lr=0.5)
    other = load_settings(preset=name, loss="rince", steps=7)
    assert (other.loss, other.steps, other.epochs) == ("rince", 7, None)
    with pytest.raises(InvalidInputError, match=r"preset: got 'head'; expected heads, lora, scratch; did you mean"):
        load_settings(preset="head")


@pytest.mark.parametrize(("name", "value"), [("state", "sharded"), ("feature-map", "tsne")])
def test_a_flag_that_is_gone_says_what_to_do_without_it(name: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(GONE[name.replace("-", "_")])):
        run("train", *FAST, f"--{name}", value)


def test_flags_and_a_file_mean_the_same(tmp_path: Path) -> None:
    flags = ["--loss", "hard_negative", "--beta", "0.5", "--steps", "9", "--flip", "--tune", "lora", "--lr", "1e-4"]
    shown = run("train", *flags, "--show")
    path = tmp_path / "run.yaml"
    path.write_text(shown)
    settings = load_settings(path)
    assert (settings.loss, settings.beta, settings.steps, settings.flip) == ("hard_negative", 0.5, 9, True)
    assert run("train", "--config", str(path), "--show") == shown
    over = run("train", "--config", str(path), "--no-flip", "--show")
    path.write_text(over)
    assert load_settings(path).flip is False


def test_objects_are_flags_too(tmp_path: Path) -> None:
    flags = ["--queue", "{rows: 64, momentum: 0.9}", "--optimizer", "SGD", "--layers", "{image: 2}", "--steps", "3"]
    shown = run("train", *flags, "--schedule", "{name: polynomial, power: 2}", "--show")
    path = tmp_path / "run.yaml"
    path.write_text(shown)
    settings = load_settings(path)
    assert settings.queue is not None
    assert (settings.queue.rows, settings.queue.momentum, settings.optimizer.name) == (64, 0.9, "SGD")
    assert settings.schedule.options == {"power": 2}
    assert run("train", "--config", str(path), "--show") == shown
    broken = CliRunner().invoke(app, ["train", "--queue", "{rows: ", "--show"])
    assert broken.exit_code == 2
    with pytest.raises(InvalidInputError, match=r"queue: .*dictionary.*got '4096'|queue: .*got 4096"):
        CliRunner().invoke(app, ["train", "--queue", "4096", "--show"], catch_exceptions=False)


def test_json_is_alone_on_stdout_and_the_files_are_there(tmp_path: Path) -> None:
    told = json.loads(run("train", *FAST, "--caption-noise", "0.5", "--out", str(tmp_path), "--json"))
    assert told["after"].keys() == told["before"].keys()
    assert all((tmp_path / path).exists() for path in told["files"].values())
    assert told["processes"] == {"number": 1, "kind": "NO"}


def test_a_run_that_made_scores_worse_says_which_at_its_end(tmp_path: Path, no_pictures: None) -> None:
    command = ["train", *FAST, "--no-score-pairs", "--label", "label", "--out", str(tmp_path)]
    worse = heard(*command, "--lr", "1")
    said = json.loads((tmp_path / "run.json").read_text())
    name, (before, after) = next(iter(said["worse"].items()))
    assert before == said["before"][name] > said["after"][name] == after
    assert f"worse than before training: {name} {before:.3f} -> {after:.3f}" in worse
    assert "keep the model that it started from" in worse


def test_a_run_that_made_nothing_worse_says_nothing_of_it(tmp_path: Path, no_pictures: None) -> None:
    same = heard("train", *FAST, "--no-score-pairs", "--label", "label", "--lr", "1e-12", "--out", str(tmp_path))
    assert json.loads((tmp_path / "run.json").read_text())["worse"] == {}
    assert "worse" not in same
    assert "zero_shot_accuracy" in same  # the table
    assert "curves.png" in same


@refused(
    (["--q", "2"], "q: .*less than or equal to 1, got 2.0"),
    (["--loss", "info_nce", "--q", "0.2"], "info_nce does not read q"),
    (["--config", "none.yaml"], "none.yaml: file: got no such file"),
    (["--steps", "3", "--epochs", "1"], "either epochs or steps"),
)
def test_errors_say_what_to_do(tmp_path: Path, arguments: list[str]) -> None:
    CliRunner().invoke(app, ["train", *FAST, *arguments, "--out", str(tmp_path)], catch_exceptions=False)


def test_pairs_lists_the_most_suspicious_first_and_keeps_the_best_for_another_training(tmp_path: Path) -> None:
    kept = tmp_path / "clean.parquet"
    arguments = ["pairs", "birds", "--items", "60", "--caption-noise", "0.5", "--workers", "0", "--out", str(tmp_path)]
    told = json.loads(run(*arguments, "--keep", "0.5", "--write", str(kept), "--json"))
    assert told["pairs"] == 60
    assert told["kept"] == {"pairs": 30, "file": str(kept)}
    assert len(open_images(load_settings(data=str(kept)))) == 30  # type: ignore[arg-type]
    assert told["wrong_pairs"]["auroc"]["value"] > 0.8
    scores = [float(line.split(",")[2]) for line in (tmp_path / "pairs.csv").read_text().splitlines()[1:]]
    assert scores == sorted(scores)
    assert str(tmp_path / "pairs.html") in run(*arguments, "--score", "softmax")
    with pytest.raises(InvalidInputError, match="--keep and --write go together"):
        run(*arguments, "--keep", "0.5")


def test_an_interrupt_says_what_the_same_command_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vldebias.training.run.train_model", interrupted)
    arguments = ["train", *FAST, "--out", str(tmp_path)]
    assert "begins anew, for nothing was saved yet" in " ".join(CliRunner().invoke(app, arguments).stderr.split())
    monkeypatch.setattr("vldebias.training.run.steps_done", lambda folder: (7, 9))
    stopped = CliRunner().invoke(app, arguments)
    assert "the same command goes on after step 7 of 9" in " ".join(stopped.stderr.split())
    assert stopped.exit_code == 130

    def terminated(*_: object, **__: object) -> None:
        raise InterruptedRunError(signal.SIGTERM)

    monkeypatch.setattr("vldebias.training.run.train_model", terminated)
    assert CliRunner().invoke(app, arguments).exit_code == 143


def test_the_commands_of_the_tutorial_and_the_help_go_together(tmp_path: Path) -> None:
    tutorial = (Path(__file__).parents[2] / "docs" / "tutorials" / "fine-tune.md").read_text(encoding="utf-8")
    told = CliRunner(env={"COLUMNS": "400", "TERM": "dumb"}).invoke(app, ["train", "--help"]).stdout
    lines = [line.split("#")[0].strip() for line in (tutorial + told).splitlines()]
    commands = [shlex.split(line)[2:] for line in lines if line.startswith("vldebias train --")]
    assert len(commands) >= 8
    (kept,) = (command for command in commands if command[-2:] == ["--out", "run"])
    for name in ("run/settings.yaml", "run.yaml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(run("train", *kept, "--show"))
    for command in commands:
        here = [str(tmp_path / word) if word.endswith(".yaml") else word for word in command if word != "--show"]
        shown = tmp_path / "shown.yaml"
        shown.write_text(run("train", *here, "--show"))
        build_objective(load_settings(shown), temperature=0.07, items=100)
