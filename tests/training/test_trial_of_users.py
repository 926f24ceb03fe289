"""What somebody meets who tries it: data as it lies around, folders of earlier runs, logs, trackers, slips."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

import vldebias.training.run as run
from vldebias.data.images import ImageData
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.hosts.towers import towers
from vldebias.loading import load_host
from vldebias.training import display
from vldebias.training.assembly import make_monitor, open_held_out, open_training_data
from vldebias.training.display import Display
from vldebias.training.objectives import build_objective
from vldebias.training.run import steps_done, train_model
from vldebias.training.settings import TrainSettings, load_settings
from vldebias.training.tracking import tracked

SMALL: dict[str, Any] = {"items": 24, "val_items": 12, "batch_size": 8, "workers": 0, "score_pairs": False}


def small(**given: Any) -> TrainSettings:
    return load_settings(**{**SMALL, "steps": 1, "temperature": 0.2, **given})


def opened(**given: Any) -> ImageData:
    data = open_training_data(load_settings(**given))
    assert isinstance(data, ImageData)
    return data


def logged(settings: TrainSettings, folder: Path) -> str:
    text = io.StringIO()
    with Display(Console(file=text, width=200)) as shown:
        train_model(settings, folder, cpu=True, display=shown)
    return text.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(4):
        Image.new("RGB", (8, 8), (number * 60, 0, 0)).save(folder / f"{number}.png")
    return folder


def table(path: Path, names: list[str], rows: list[list[str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def test_a_table_without_splits_is_one_split(images: Path, tmp_path: Path) -> None:
    rows = [[f"images/{number}.png", f"number {number}"] for number in range(4)]
    path = table(tmp_path / "pairs.csv", ["image", "caption"], rows)
    assert opened(data=str(path)).captions == tuple(f"number {number}" for number in range(4))
    with pytest.raises(InvalidInputError, match="expected a column 'split'"):
        opened(data=str(path), split="test")


def test_a_table_with_splits_keeps_them_apart(images: Path, tmp_path: Path) -> None:
    rows = [[f"images/{number}.png", f"number {number}", "train" if number else "val"] for number in range(4)]
    path = str(table(tmp_path / "pairs.csv", ["image", "caption", "split"], rows))
    assert len(opened(data=path)) == 3
    assert len(opened(data=path, split="all")) == 4
    held_out = open_held_out(load_settings(data=path, val_split="val"))
    assert isinstance(held_out, ImageData)
    assert held_out.captions == ("number 0",)
    assert open_held_out(load_settings(data=path)) is None


def test_paths_start_where_they_are_told_to(images: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "tables"
    elsewhere.mkdir()
    path = table(elsewhere / "below.csv", ["image", "caption"], [["3.png", "three"]])
    data = opened(data=str(path), image_root=str(images))
    assert data.read(0).getpixel((0, 0)) == (180, 0, 0)
    whole = table(elsewhere / "absolute.csv", ["image", "caption"], [[str(images / "2.png"), "two"]])
    with pytest.raises(InvalidInputError, match="lead out of"):
        opened(data=str(whole))
    assert opened(data=str(whole), allow_outside=True).read(0).getpixel((0, 0)) == (120, 0, 0)


def test_a_saved_data_set_is_one_split(images: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"image": [str(path) for path in sorted(images.iterdir())], "caption": list("abcd")}
    saved = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    saved.save_to_disk(tmp_path / "one")
    assert opened(data=str(tmp_path / "one")).captions == tuple("abcd")
    datasets.DatasetDict({"train": saved.select([0]), "test": saved}).save_to_disk(tmp_path / "several")
    assert opened(data=str(tmp_path / "several")).captions == ("a",)


def test_a_finished_run_says_so_and_is_scored_on_what_is_asked_now(tmp_path: Path) -> None:
    assert steps_done(tmp_path) == (0, -1)
    first = logged(small(), tmp_path)
    assert "scored on 12 held-out images: birds val" in first
    assert "were done before" not in first
    assert steps_done(tmp_path) == (1, 1)
    then = json.loads((tmp_path / "run.json").read_text())["after"]
    again = logged(small(val_split="test"), tmp_path)
    assert "all 1 steps were done before" in again
    now = json.loads((tmp_path / "run.json").read_text())["after"]
    monitor, loaded = make_monitor(small(val_split="test")), load_host(str(tmp_path / "model"))
    assert monitor is not None
    assert now == pytest.approx(monitor(towers(loaded.host, loaded.tokenizer, loaded.preprocess)))
    assert now["positive_score"] != then["positive_score"]


def test_a_run_that_stops_halfway_closes_its_tracker() -> None:
    closed: list[bool] = []

    class Tracker:
        def finish(self) -> None:
            closed.append(True)

    class Accelerator:
        trackers = (Tracker(),)

        def init_trackers(self, project: str, config: dict[str, Any]) -> None:
            assert (project, config["steps"]) == ("vldebias", 1)

    with pytest.raises(KeyboardInterrupt), tracked(Accelerator(), small(track="tensorboard")):  # type: ignore[arg-type]
        raise KeyboardInterrupt
    assert closed == [True]


def test_a_tracker_that_is_not_installed_is_named(tmp_path: Path) -> None:
    missing = [name for name in ("trackio", "wandb") if importlib.util.find_spec(name) is None]
    for name in missing:
        with pytest.raises(InvalidInputError, match=f"track: {name} is not installed; pip install {name}"):
            train_model(small(track=name), tmp_path, cpu=True)
    assert not any(tmp_path.iterdir())


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"step": 4, "loss": 1.5, "lr": 0.1, "temperature": 0.2, "seconds": 1.0}
    told = {}
    for every in (60.0, 0.0):
        monkeypatch.setattr(display, "_LINE_EVERY", every)
        for terminal in (False, True):
            text = io.StringIO()
            Display(Console(file=text, force_terminal=terminal, width=100)).step(entry, 9)
            told[every, terminal] = "step 5 of 9: loss 1.5" in text.getvalue()
    assert told == {(60.0, False): False, (60.0, True): False, (0.0, False): True, (0.0, True): False}


def test_a_temperature_too_low_for_rince_is_told() -> None:
    for temperature, warned in ((0.01, True), (0.1, False)):
        settings = small(temperature=temperature)
        objective = build_objective(settings, temperature=1.0, items=None)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            run._warn_of_steepness(settings, objective)
        assert [w.category for w in told] == [VldebiasWarning] * warned
        assert all("temperature 0.1 spreads the weight" in str(w.message) for w in told)


def test_a_slip_of_the_pen_is_guessed(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("temprature: 0.2\n")
    with pytest.raises(InvalidInputError, match=r"temprature: unknown setting; did you mean temperature\?"):
        load_settings(path)
    path.write_text("q: 0.2\ndata: [birds\n")
    with pytest.raises(InvalidInputError, match=r"not a YAML file: .*line 2"):
        load_settings(path)
