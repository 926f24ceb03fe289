"""Test `vldebias train`: flags and --set change the settings, stdout is only JSON, and errors fit
on one line."""

import json
import re
import shlex
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from typer.testing import CliRunner

from tests.cli.conftest import call
from tests.refusals import refused
from vldebias.cli import app
from vldebias.cli.train import FLAGS, NAMES_OF_FLAGS
from vldebias.errors import VldebiasWarning
from vldebias.training.changes import conclusions_of_training, fall_below_start
from vldebias.training.objective import Objective
from vldebias.training.pairs import open_images
from vldebias.training.settings import TrainSettings, load_settings
from vldebias.utils.progress import SILENT

FAST = (
    "train --cpu --data birds --steps 1 --batch-size 8 --set temperature=0.2 --tune heads"
    " --set items=24 --set val_items=12 --set workers=0"
)


def test_only_a_few_settings_have_a_flag_and_all_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("vldebias.training.run.train_model")
    wide = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    help_text = wide.invoke(app, ["train", "--help"]).stdout
    flags = {NAMES_OF_FLAGS.get(name, f"--{name.replace('_', '-')}") for name in FLAGS}
    assert flags <= set(re.findall(r"--[a-z0-9-]+", help_text))
    assert all(
        text in help_text
        for text in ("accelerate launch", f"Default: {load_settings(data='birds').batch_size}.")
    )
    listed = wide.invoke(app, ["train", "--settings"], catch_exceptions=False).stdout
    assert set(TrainSettings.model_fields) <= set(re.findall(r"[a-z_]+", listed))
    assert "steps\tnot set\t" in listed
    assert "workers\t" + str(load_settings(data="birds").workers) in listed


def test_flags_set_options_and_a_file_are_equivalent(tmp_path: Path) -> None:
    options = "--loss hard_negative --set beta=0.5 --steps 9 --set flip=true --tune lora"
    settings_text = call(f"train {options} --set clip-norm=null --show")
    path = tmp_path / "run.yaml"
    path.write_text(settings_text)
    settings = load_settings(path)
    assert (settings.loss, settings.beta, settings.steps) == ("hard_negative", 0.5, 9)
    assert settings.flip is True
    assert settings.clip_norm is None
    assert call(f"train --config {path} --show") == settings_text == settings.as_yaml()
    path.write_text(call("train --preset scratch --lr 0.5 --show"))
    assert load_settings(path) == load_settings(preset="scratch", lr=0.5)
    path.write_text(call(f"train --config {path} --set flip=false --show"))
    assert load_settings(path).flip is False


def test_pairs_are_listed_without_training(tmp_path: Path) -> None:
    settings = "--set items=60 --set caption_noise=0.5 --set workers=0 --set keep=0.5"
    command = f"train --pairs --data birds --cpu {settings} --out {tmp_path} --json"
    report = json.loads(call(command))
    assert report["pairs"] == 60
    assert report["wrong_pairs"]["auroc"]["value"] > 0.8
    assert len(open_images(load_settings(data=str(tmp_path / "kept.parquet")))) == 30  # type: ignore[arg-type]
    assert not (tmp_path / "model").exists()


SOURCES = {
    "nuclr": ["gamma=0.5", "zeta_init=-0.05", "popularity_wait=0.5", "popularity_lr=0.2"],
    "hard_negative": ["beta=0.5", "beta_changes=2", "positives=2", "floor=0"],
    "debiased": ["positives=3", "below_floor=biased", "views=two", "crop_scale=0.2"],
    "spread": ["spread_alpha=0.3", "views=two", "grayscale=0.2", "blur=0.5", "label=label"],
}


@pytest.mark.slow
@pytest.mark.parametrize("loss", SOURCES)
def test_source_settings_can_be_passed_as_set_options(loss: str, tmp_path: Path) -> None:
    settings = " --set ".join(["score_pairs=false", *SOURCES[loss]])
    call(f"{FAST} --loss {loss} --out {tmp_path} --set {settings} --json")
    settings_of_run = load_settings(tmp_path / "settings.yaml")
    for line in SOURCES[loss]:
        name, _, value = line.partition("=")
        assert str(getattr(settings_of_run, name)) in (value, f"{value}.0")


def test_the_outcome_of_a_run_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = {
        "before": {"recall": 0.25, "area": 0.5},
        "after": {"recall": 0.125},
        "files": {"model": "in/model"},
    }
    outcome |= {"wrong_pairs": {"auroc": {"value": 0.75, "low": 0.5, "high": 1.0}}}
    fit = Mock(side_effect=[outcome, {"wrong_pairs": None, "files": {}}, None])
    monkeypatch.setattr("vldebias.training.run.train_model", fit)
    output = call("train --data birds", with_stderr=True)
    head = "score on held-out data\tbefore\tafter\tchange, 95%\tverdict\n"
    assert output.startswith(f"{head}recall\t0.250\t0.125\t\t\n")
    assert output.endswith("scores: AUROC 0.75 [0.50, 1.00]\nmodel: vldebias-train/in/model\n")
    assert not fit.call_args.kwargs["cpu"]
    assert fit.call_args.kwargs["progress"] is not SILENT
    for command in ("train --data birds", "train --data birds --json"):
        assert call(command, with_stderr=True) == ""


def test_worse_scores_are_listed_at_the_end(tmp_path: Path) -> None:
    options = "--set score_pairs=false --label label --lr 1 --loss rince --set q_start=null"
    with pytest.warns(VldebiasWarning, match="training made the model worse: zero-shot accuracy"):
        output = call(f"{FAST} {options} --out {tmp_path}", with_stderr=True)
    record = json.loads((tmp_path / "run.json").read_text())
    conclusions = {conclusion["metric"]: conclusion for conclusion in record["conclusions"]}
    accuracy = conclusions["zero_shot_accuracy"]
    assert accuracy["before"] == pytest.approx(record["before"]["zero_shot_accuracy"])
    assert accuracy["after"] == pytest.approx(record["after"]["zero_shot_accuracy"])
    assert f"# {accuracy['sentence']}" in output
    assert "worse" in {conclusion["verdict"] for conclusion in conclusions.values()}
    assert record["below_start"]["score"] == "zero_shot_accuracy"
    assert "if a score that got worse matters" not in output, "the warning already said so"


def test_worse_secondary_scores_give_advice_and_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = torch.tensor([1.0] * 50 + [0.0] * 50)
    before = {"zero_shot_accuracy": right, "recall@10 text->image": right}
    after = {"zero_shot_accuracy": right, "recall@10 text->image": torch.zeros(100)}
    conclusions = conclusions_of_training(before, after, {})
    outcome = {
        "conclusions": [found.model_dump(mode="json") for found in conclusions],
        "below_start": fall_below_start(conclusions, []),
        "wrong_pairs": None,
        "files": {},
    }
    monkeypatch.setattr("vldebias.training.run.train_model", Mock(return_value=outcome))
    output = call(f"{FAST} --out {tmp_path}", with_stderr=True)
    assert "if a score that got worse matters" in output


@refused(
    ("--set q=2", "q: .*less than or equal to 1.* got 2"),
    ("--set ema=[0.9", "--set ema"),
    ("--set momentum=0.9", "momentum: unknown"),
    ("--loss info_nce --set q=0.2", "info_nce does not read q"),
    ("--config none.yaml", "none.yaml: .*no such file"),
    ("--steps 3 --epochs 1", "either epochs or steps"),
)
def test_errors_explain_what_to_do(tmp_path: Path, arguments: str) -> None:
    call(f"{FAST} {arguments} --out {tmp_path}")


def test_an_interrupt_explains_what_rerunning_the_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops = [KeyboardInterrupt(), KeyboardInterrupt(), KeyboardInterrupt(signal.SIGTERM)]
    monkeypatch.setattr("vldebias.training.run.train_model", Mock(side_effect=stops))
    command = f"{FAST} --out {tmp_path}"
    answer = call(command, code=130, with_stderr=True)
    assert "run the same command to start over, since nothing was saved" in answer
    monkeypatch.setattr("vldebias.training.run.steps_done", lambda folder: (7, 9))
    answer = call(command, code=130, with_stderr=True)
    assert "run the same command to continue after step 7 of 9" in answer
    call(command, code=143)


def test_the_tutorial_and_the_help_print_the_same_commands(tmp_path: Path) -> None:
    tutorial = (Path(__file__).parents[2] / "docs" / "tutorials" / "fine-tune.md").read_text(
        encoding="utf-8"
    )
    help_text = (
        CliRunner(env={"COLUMNS": "400", "TERM": "dumb"}).invoke(app, ["train", "--help"]).stdout
    )
    text = re.sub(r"\\\s*\n\s*", " ", tutorial + help_text)
    lines = [re.split("#| > ", line)[0].strip() for line in text.splitlines()]
    commands = [shlex.split(line)[2:] for line in lines if line.startswith("vldebias train --")]
    assert len(commands) >= 8
    (training,) = (command for command in commands if command[-2:] == ["--out", "run"])
    (tmp_path / "run").mkdir()
    for name in ("run/settings.yaml", "run.yaml"):
        (tmp_path / name).write_text(call("train", *training, "--show"))
    for command in commands:
        here = [
            str(tmp_path / word) if word.endswith(".yaml") else word
            for word in command
            if word != "--show"
        ]
        settings_file = tmp_path / "shown.yaml"
        settings_file.write_text(call("train", *here, "--show"))
        shown = load_settings(settings_file)
        groups = None if shown.group_dro is None else 4
        Objective(shown, temperature=0.07, items=100, groups=groups)
