"""A run from its settings: what they change, what it leaves and says, and what it refuses beforehand."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from tiny_towers import tiny_towers
from torch import Tensor, nn
from training_parts import Stream, image_data

from vldebias.api import fit_projections
from vldebias.data.dataset import ImageData
from vldebias.errors import InvalidInputError, PromptSetError, VldebiasWarning
from vldebias.files import only_writer
from vldebias.hosts.towers import towers
from vldebias.loading import load_host
from vldebias.methods import load_edits
from vldebias.miniature import load_clip
from vldebias.progress import Progress
from vldebias.training.batches import Batch, MapBatches
from vldebias.training.callbacks import Trackers, Watching
from vldebias.training.loop import fit
from vldebias.training.monitor import SHAPE
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.pairs import make_pairs, open_images
from vldebias.training.run import make_batches, make_monitor, steps_done, train_model, warn_of_steepness
from vldebias.training.settings import TrainSettings, load_settings
from vldebias.training.stream import StreamBatches


def settings(**given: Any) -> TrainSettings:
    small: dict[str, Any] = {"data": "birds", "items": 40, "val_items": 20, "steps": 2, "batch_size": 8, "workers": 0}
    return load_settings(**{**small, "temperature": 0.2, "lr": 1e-4, **given})


pytestmark = pytest.mark.usefixtures("no_pictures")  # but in the run that `folder` shares


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    train_model(settings(label="label", caption_noise=0.5), path, cpu=True)
    return path


def test_it_leaves_what_it_says(folder: Path) -> None:
    outcome = json.loads((folder / "run.json").read_text())
    assert all((folder / path).exists() for path in outcome["files"].values())
    assert {"curves.png", "cosines.png", "hardest.png"} <= set(outcome["files"].values())
    assert outcome["before"].keys() == outcome["after"].keys()
    assert {"zero_shot_accuracy", "recall@1 image->text"} <= outcome["after"].keys()
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in history] == [0, 1]
    assert history[-1]["recall@1 image->text"] == outcome["after"]["recall@1 image->text"]
    assert load_settings(folder / "settings.yaml") == settings(label="label", caption_noise=0.5)
    assert str(Path.home()) not in (folder / "run.json").read_text()


def test_wrong_pairs_have_the_lowest_scores(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "pairs.csv").read_text().splitlines()))
    assert len(rows) == 40
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores)
    outcome = json.loads((folder / "run.json").read_text())
    assert outcome["wrong_pairs"]["auroc"]["value"] > 0.7
    assert 0.3 < outcome["wrong_pairs"]["wrong"] < 0.7


def test_every_command_reads_the_model(folder: Path) -> None:
    loaded = load_host(str(folder / "model"))
    ids = loaded.tokenizer(["a photo of a landbird"])
    shipped, _, _ = load_clip()
    with torch.no_grad():
        trained, before = loaded.host.encode_text(ids), shipped.encode_text(ids)
    assert not torch.allclose(trained, before)
    assert torch.allclose(trained, before, atol=0.2)
    assert float(loaded.host.logit_scale.detach().exp()) == pytest.approx(1 / 0.2)


def test_a_second_run_in_the_same_folder_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with only_writer(tmp_path), ThreadPoolExecutor(1) as pool:
        with pytest.raises(InvalidInputError, match=rf"{tmp_path}: got a second run; .* process {os.getpid()} on "):
            pool.submit(train_model, settings(), tmp_path, cpu=True).result()
        assert [path.name for path in tmp_path.iterdir()] == [".vldebias.lock"]


def test_two_views_need_no_caption_and_score_no_pair(tmp_path: Path) -> None:
    outcome = train_model(settings(views="two", jitter=0.2, flip=True, crop_scale=0.5, fourier=0.2), tmp_path, cpu=True)
    assert outcome is not None
    assert outcome["wrong_pairs"] is None
    assert not (tmp_path / "pairs.csv").exists()
    shipped, _, _ = load_clip()
    trained = load_host(str(tmp_path / "model")).host
    assert torch.equal(trained.token_embedding.weight, shipped.token_embedding.weight), "no text was read"
    assert not torch.equal(trained.visual.proj, shipped.visual.proj)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": "nowhere/at/all", "items": 4000}, "nowhere/at/all"),
        ({"views": "two", "tune": "text", "flip": True}, "not read by the text tower"),
        ({"loss": "spread"}, "reads the labels of every pair"),
        ({"split": "holdout"}, "expected split train, val, test, got 'holdout'"),
        ({"model": "no-such-model"}, "no-such-model"),
    ],
)
def test_what_cannot_go_is_said_before_the_first_step(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=said):
        train_model(settings(**given), tmp_path / "run", cpu=True)
    assert not (tmp_path / "run" / "state.safetensors").exists()


N, B = 24, 8


def briefly(**given: Any) -> TrainSettings:
    return load_settings(**{"steps": 1, "batch_size": B, "workers": 0, "seed": 4, **given})


@cache
def world() -> ImageData:
    found = open_images(briefly(data="birds", items=N))
    assert isinstance(found, ImageData)
    return found


def first(data: Any = None, **given: Any) -> Batch:
    chosen = briefly(**given)
    batches = make_batches(make_pairs(data or world(), chosen), chosen, tiny_towers())
    assert isinstance(batches, MapBatches)
    with closing(batches.starting(0)) as coming:  # type: ignore[type-var]
        found: Batch = next(coming)
    return found


@pytest.mark.parametrize(
    "given", [{"crop_scale": 0.3}, {"flip": True}, {"jitter": 0.5}, {"grayscale": 1.0}, {"crop_noise": 1.0}]
)
def test_augmentation_changes_the_images_and_nothing_else(given: dict[str, Any]) -> None:
    plain, changed = first(), first(**given)
    assert plain.index is not None
    assert changed.index is not None
    assert torch.equal(changed.index, plain.index)
    assert torch.equal(changed.texts["ids"], plain.texts["ids"])
    assert not torch.allclose(changed.images, plain.images)
    assert torch.equal(first(**given).images, changed.images), "the same again"


def test_the_seed_chooses_which_captions_are_wrong() -> None:
    one, again, other = (make_pairs(world(), briefly(caption_noise=0.5, seed=seed)) for seed in (1, 1, 2))
    assert (one.wrong == again.wrong).all()
    assert one.captions == again.captions
    assert one.captions != other.captions
    assert not make_pairs(world(), briefly()).wrong.any()


def test_class_noise_comes_before_caption_noise() -> None:
    chosen = briefly(label="label", caption_template="a photo of a {}", class_noise=1.0, caption_noise=0.5)
    pairs = make_pairs(world(), chosen)
    assert pairs.labels is not None
    assert (pairs.labels.codes != world().column("label").codes).any()
    assert 0.1 < pairs.wrong.mean() < 0.9


def test_on_error_is_obeyed() -> None:
    broken = image_data(N, broken=range(0, N, 2))
    with pytest.warns(match="be read"):
        found = first(broken)
    assert found.index is not None
    assert not any(int(index) % 2 == 0 for index in found.index)
    with pytest.raises(InvalidInputError, match="on_error='skip'"):
        first(broken, on_error="raise")


def streamed(**given: Any) -> tuple[Tensor, Tensor]:
    batches = make_batches(Stream(N), briefly(data="stream", streaming=True, **given), tiny_towers())  # type: ignore[arg-type]
    assert isinstance(batches, StreamBatches)
    with closing(batches.starting(0)) as coming:  # type: ignore[type-var]
        batch = next(coming)
    assert batch.index is not None
    return batch.index, batch.texts["ids"]


def test_a_stream_is_shuffled_within_its_buffer_and_made_noisy() -> None:
    index, texts = streamed(shuffle_buffer=1)
    assert index.tolist() == list(range(B))
    assert streamed(shuffle_buffer=N)[0].tolist() != index.tolist()
    noisy, changed = streamed(shuffle_buffer=1, caption_noise=1.0)
    assert torch.equal(noisy, index)
    assert torch.equal(changed, texts), "a block of one row has no other caption"
    assert not torch.equal(streamed(shuffle_buffer=N, caption_noise=1.0)[1], streamed(shuffle_buffer=N)[1])


def test_a_killed_run_goes_on_in_the_middle_of_its_stream(tmp_path: Path) -> None:
    stop = 5
    chosen = briefly(
        data="stream", streaming=True, steps=8, shuffle_buffer=4, accumulation=2, caption_noise=0.3, save_every=0
    )

    def run(stream: Stream, folder: Path | None, until: int | None = None) -> tuple[list[float], dict[str, Tensor]]:
        def interrupt(entry: dict[str, float], steps: int) -> None:
            if entry["step"] == until:
                raise KeyboardInterrupt

        towers = tiny_towers()
        objective = build_objective(chosen, temperature=0.3, items=None)
        batches = make_batches(stream, chosen, towers)  # type: ignore[arg-type]
        history = fit(Trainee(towers, objective), batches, chosen, folder=folder, on_step=interrupt)
        return [entry["loss"] for entry in history], towers.model.state_dict()

    losses, whole = run(Stream(150, shards=5), None)
    with pytest.raises(KeyboardInterrupt):
        run(Stream(150, shards=5), tmp_path, stop)
    stream = Stream(150, shards=5)
    again, weights = run(stream, tmp_path)
    assert again == losses
    assert all(torch.equal(weights[name], tensor) for name, tensor in whole.items())
    rows = (8 - stop) * 2 * chosen.batch_size
    assert stream.passed <= rows + 4 * 4, "the rest of the rows, and what a block or two hold beside it"


def test_a_stream_has_no_class_noise() -> None:
    with pytest.raises(InvalidInputError, match="class_noise: a stream cannot have it; read the data without"):
        streamed(class_noise=0.2)


def test_held_out_data_are_at_most_as_many_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vldebias.training.run.open_images", lambda _, held_out: image_data(30))
    monitor = make_monitor(briefly(val_items=7))
    assert monitor is not None
    assert len(monitor.data) == 7
    classes = make_monitor(briefly(label="kind", caption_template="one {} alone"))
    assert classes is not None
    assert classes.class_texts == (("one cat alone",), ("one dog alone",), ("one owl alone",))


def test_nothing_to_ask_is_no_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vldebias.training.run.open_images", lambda _, held_out: image_data(30, captions=False))
    assert make_monitor(briefly()) is None
    assert make_monitor(briefly(data="mine")) is None, "no held-out data are named"
    monkeypatch.setattr("vldebias.training.run.open_images", lambda _, held_out: Stream(9))
    with pytest.raises(InvalidInputError, match="val_data: stream: expected data that can be read in any order"):
        make_monitor(briefly())


SMALL: dict[str, Any] = {"items": 24, "val_items": 12, "batch_size": 8, "workers": 0, "score_pairs": False}


def small(**given: Any) -> TrainSettings:
    return load_settings(**{**SMALL, "steps": 1, "temperature": 0.2, **given})


def opened(**given: Any) -> ImageData:
    data = open_images(load_settings(**given))
    assert isinstance(data, ImageData)
    return data


def logged(settings: TrainSettings, folder: Path) -> str:
    text = io.StringIO()
    train_model(settings, folder, cpu=True, progress=Progress.on(Console(file=text, width=200)))
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
    held_out = open_images(load_settings(data=path, val_split="val"), held_out=True)
    assert isinstance(held_out, ImageData)
    assert held_out.captions == ("number 0",)
    assert not load_settings(data=path).has_held_out


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
    chosen: dict[str, Any] = {"accumulation": 2, "negatives": "step", "precision": "bf16"}
    first = logged(small(**chosen), tmp_path)
    assert "on cpu, 1 process, precision bf16; a step has 16 pairs, a loss 16; loss rince, temperature 0.2" in first
    assert "scored on 12 held-out images: birds val" in first
    assert "were done before" not in first
    assert steps_done(tmp_path) == (1, 1)
    then = json.loads((tmp_path / "run.json").read_text())["after"]
    state = (tmp_path / "state.safetensors").read_bytes()
    again = logged(small(val_split="test", **chosen), tmp_path)
    assert (tmp_path / "state.safetensors").read_bytes() == state
    assert "all 1 steps were done before" in again
    now = json.loads((tmp_path / "run.json").read_text())["after"]
    monitor, loaded = make_monitor(small(val_split="test")), load_host(str(tmp_path / "model"))
    assert monitor is not None
    assert now == pytest.approx(monitor(towers(loaded.host, loaded.tokenizer, loaded.preprocess)))
    assert now["positive_score"] != then["positive_score"]
    with pytest.raises(InvalidInputError, match=r"lr 1e-05 there and 0\.001 here"):
        train_model(small(lr=1e-3, **chosen), tmp_path, cpu=True)


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_bias_is_watched_and_the_projection_fitted_at_the_end(tmp_path: Path) -> None:
    chosen = small(data="portraits", label="label", group="gender", debias="gender", val_items=30, tune="heads")
    outcome = train_model(chosen, tmp_path, cpu=True)
    assert outcome is not None
    assert {"zero_shot_worst_group", "max_skew@3"} <= outcome["after"].keys()
    assert outcome["after"].keys() - set(SHAPE) == outcome["debiased"].keys()  # it leaves the images as they are
    assert outcome["debiased"] != outcome["after"]
    shipped, started = load_clip(), make_monitor(chosen)
    assert started is not None
    start = towers(shipped[0], shipped[2], shipped[1])
    edit = fit_projections(shipped[0], "gender", tokenizer=shipped[2])["joint"]
    assert outcome["debiased_before"] == pytest.approx(started(start, edit))
    assert {name.removesuffix(", debiased") for name in outcome["worse"]} <= outcome["after"].keys()
    loaded = load_host(str(tmp_path / "model"))
    edits = load_edits(tmp_path / "projection")
    assert edits.keys() == {"joint"}
    trained = towers(loaded.host, loaded.tokenizer, loaded.preprocess)
    assert outcome["debiased"] == pytest.approx(started(trained, edits["joint"]))


def test_a_prompt_set_that_there_is_not_stops_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(PromptSetError, match="got the prompt set 'gendre'"):
        train_model(small(debias="gendre"), tmp_path, cpu=True)
    assert not (tmp_path / "history.jsonl").exists()


def test_models_of_the_way_there_are_kept(tmp_path: Path) -> None:
    chosen = small(steps=4, eval_every=1, keep_every=2, keep_best=True, label="species", lr=1e-3, tune="heads")
    outcome = train_model(chosen, tmp_path, cpu=True)
    assert outcome is not None
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["best", "step-000002", "step-000004"]
    kept = {name: load_file(tmp_path / "models" / name / "clip.safetensors") for name in ("step-000002", "step-000004")}
    last = load_file(tmp_path / "model" / "clip.safetensors")
    assert all(torch.equal(kept["step-000004"][name], tensor) for name, tensor in last.items())
    assert not all(torch.equal(kept["step-000002"][name], tensor) for name, tensor in last.items())
    history = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    monitor, loaded = make_monitor(chosen), load_host(str(tmp_path / "models" / "best"))
    assert monitor is not None
    found = monitor(towers(loaded.host, loaded.tokenizer, loaded.preprocess))["zero_shot_accuracy"]
    assert found == pytest.approx(max(entry["zero_shot_accuracy"] for entry in history))
    assert float(loaded.host.logit_scale.detach().exp()) == pytest.approx(1 / 0.2)


class Seen:
    """A callback that notes what it is told."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.told: list[Any] = []
        self.fails_at = fails_at

    def begin(self, settings: TrainSettings, steps: int) -> None:
        self.told.append(("begin", settings.seed, steps))

    def step(self, entry: dict[str, float]) -> None:
        self.told.append(("step", int(entry["step"])))
        if entry["step"] == self.fails_at:
            raise KeyboardInterrupt

    def end(self, outcome: Any) -> None:
        self.told.append(("end", None if outcome is None else outcome["settings"]["steps"]))


def test_callbacks_see_a_run_from_its_begin_to_its_end(tmp_path: Path) -> None:
    whole, stopped = Seen(), Seen(fails_at=0)
    chosen = settings(score_pairs=False, tune="heads", val_items=4)
    train_model(chosen, tmp_path / "whole", cpu=True, callbacks=[whole])
    assert whole.told == [("begin", 0, 2), ("step", 0), ("step", 1), ("end", 2)]
    with pytest.raises(KeyboardInterrupt):
        train_model(chosen, tmp_path / "stopped", cpu=True, callbacks=[stopped])
    assert stopped.told == [("begin", 0, 2), ("step", 0), ("end", None)]


def test_a_run_that_stops_halfway_closes_its_trackers() -> None:
    closed: list[str] = []

    class Tracker:
        def finish(self) -> None:
            closed.append("finished")

    class Accelerator:
        trackers = (Tracker(), Tracker())

        def init_trackers(self, project: str, config: dict[str, Any]) -> None:
            assert (project, config["steps"]) == ("vldebias", 1)

    tracked = small(track="tensorboard, wandb")
    assert tracked.trackers == ("tensorboard", "wandb")
    with pytest.raises(KeyboardInterrupt), Watching([Trackers(Accelerator())], tracked, 1):  # type: ignore[arg-type]
        raise KeyboardInterrupt
    assert closed == ["finished", "finished"]


def test_a_tracker_that_is_not_installed_is_named(tmp_path: Path) -> None:
    missing = [name for name in ("trackio", "wandb") if importlib.util.find_spec(name) is None]
    for name in missing:
        with pytest.raises(InvalidInputError, match=f"track: {name} is not installed; pip install {name}"):
            train_model(small(track=name), tmp_path, cpu=True)
    assert not any(tmp_path.iterdir())


def test_a_temperature_too_low_for_rince_is_told_to_who_chose_it() -> None:
    for own, mild in ((0.01, 0.1), (0.5, 0.5)):  # CLIP's own, and a milder one
        assert build_objective(load_settings(steps=1), temperature=own, items=None).temperature == pytest.approx(mild)
    assert build_objective(load_settings(steps=1, loss="info_nce"), temperature=0.01, items=None).temperature == 0.01
    assert build_objective(load_settings(steps=1, temperature=0.02), temperature=0.5, items=None).temperature == 0.02
    for temperature, warned in ((0.01, True), (0.1, False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_steepness(small(), temperature)
        assert [w.category for w in caught] == [VldebiasWarning] * warned
        assert all("temperature 0.1 spreads the weight" in str(w.message) for w in caught)


def test_blocks_queue_positives_and_distillation_go_together(tmp_path: Path) -> None:
    """A run with all of them: what is locked stays, what learns moves, and the queue is part of the checkpoint."""
    chosen = small(
        loss="hard_negative",
        positives=2,
        queue={"rows": 12, "momentum": 0.9},
        distill=0.5,
        layers={"image": 1, "text": 0, "decay": 0.5},
        optimizer={"name": "SGD", "momentum": 0.9},
        schedule="OneCycleLR",
        steps=2,
        lr=0.05,
        warmup=0.0,
    )
    train_model(chosen, tmp_path, cpu=True)
    start, after = load_clip()[0].state_dict(), load_file(tmp_path / "model" / "clip.safetensors")
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, start[name])}
    assert {"visual.proj", "text_projection", "logit_scale"} <= moved | {"logit_scale"}
    assert not {name for name in moved if name.startswith(("visual.conv1", "transformer.resblocks", "token_embedding"))}
    blocks = {
        number: [name for name in after if f"visual.transformer.resblocks.{number}." in name] for number in range(9)
    }
    last = max(number for number, names in blocks.items() if names)
    assert last > 0
    assert {number for number, names in blocks.items() if moved & set(names)} == {last}
    held = load_file(tmp_path / "state.safetensors")
    assert int(held["buffers/objective.queue.pushed"]) == 16
    assert held["buffers/objective.queue.images"].norm(dim=1).min() > 0.99, "it is full"
    assert any(name.startswith("momentum/model.visual") for name in held)
    assert not any("frozen" in name for name in held)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # of torch's own
def test_compiled_towers_learn_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Graphs forward and backward are captured as by default, and run as they are: compiling C++ takes minutes."""
    seen: list[str] = []
    compile_module = nn.Module.compile

    def noting(self: nn.Module) -> None:
        seen.append(type(self).__name__)
        compile_module(self, backend="aot_eager")

    monkeypatch.setattr(nn.Module, "compile", noting)
    found = []
    for chosen in (False, True):
        train_model(small(steps=2, compile=chosen), tmp_path / str(chosen), cpu=True)
        found.append(load_file(tmp_path / str(chosen) / "model" / "clip.safetensors"))
    assert {"VisionTransformer", "Transformer"} <= set(seen), "both towers"
    train_model(small(steps=2), tmp_path / "True", cpu=True)  # its checkpoint is read without
    plain, other = found
    assert plain.keys() == other.keys(), "it does not show in the names of what is saved"
    start = load_clip()[0].state_dict()
    for name, tensor in plain.items():
        torch.testing.assert_close(other[name], tensor, atol=2e-5, rtol=1e-3)
    assert any(not torch.equal(tensor, start[name]) for name, tensor in plain.items())
