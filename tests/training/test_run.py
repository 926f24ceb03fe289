"""Test complete runs: the effects of settings, the files and messages, and errors before the first
step."""

import csv
import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from rich.console import Console
from training_parts import (
    Stream,
    equal,
    image_data,
    opened,
    pairs_of,
    plain,
    take,
    tiny_towers,
    weights,
)

from tests.refusals import refused
from vldebias.data import Labels
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.hosts.clip.towers import Towers
from vldebias.methods import load_edit
from vldebias.miniature import load_clip
from vldebias.training import filtering, run
from vldebias.training.batches import Batches
from vldebias.training.changes import deciding_score
from vldebias.training.filtering import StartingScores
from vldebias.training.monitor import Monitor
from vldebias.training.objective import Objective, Trainee
from vldebias.training.pairs import open_images
from vldebias.training.run import list_pairs, steps_done, train_model
from vldebias.training.sampling import Sampler
from vldebias.training.settings import TrainSettings, load_settings
from vldebias.training.suspects import positive_scores, right_captions
from vldebias.utils.progress import Progress

SMALL: dict[str, Any] = {
    "items": 24,
    "val_items": 12,
    "batch_size": 8,
    "workers": 0,
    "score_pairs": False,
}


def small(**changes: Any) -> TrainSettings:
    return load_settings(**{**SMALL, "steps": 1, "temperature": 0.2, "seed": 4, **changes})


def own_settings(**changes: Any) -> TrainSettings:
    return load_settings(
        **{"data": "own", "steps": 1, "batch_size": 8, "workers": 0, "seed": 4, **changes}
    )


@cache
def world() -> Any:
    return open_images(small())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    logged(NOISY, path)
    return path


NOISY = small(
    seed=0,
    items=40,
    val_items=20,
    steps=2,
    lr=1e-4,
    label="label",
    caption_noise=0.5,
    score_pairs=True,
)


def test_training_writes_the_documented_files(folder: Path) -> None:
    outcome = json.loads((folder / "run.json").read_text())
    assert all((folder / path).exists() for path in outcome["files"].values())
    assert outcome["before"].keys() == outcome["after"].keys()
    assert {"zero_shot_accuracy", "recall@1 image->text"} <= outcome["after"].keys()
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in history] == [0, 1]
    assert history[-1]["recall@1 image->text"] == outcome["after"]["recall@1 image->text"]
    assert load_settings(folder / "settings.yaml") == NOISY
    assert str(Path.home()) not in (folder / "run.json").read_text()
    rows = list(csv.DictReader((folder / "pairs.csv").read_text().splitlines()))
    scores = [float(row["score"]) for row in rows]
    assert len(rows) == 40
    assert scores == sorted(scores)
    assert outcome["wrong_pairs"]["auroc"]["value"] > 0.7
    assert 0.3 < outcome["wrong_pairs"]["wrong"] < 0.7


def logged(settings: TrainSettings, folder: Path) -> str:
    text = io.StringIO()
    progress = Progress(Console(file=text, width=200))
    train_model(settings, folder, cpu=True, progress=progress)
    assert all(task.completed == task.total for task in progress.tasks), (
        "every progress bar is completed"
    )
    return text.getvalue()


def test_a_finished_run_is_scored_again_with_the_current_settings(tmp_path: Path) -> None:
    assert steps_done(tmp_path) == (0, -1)
    chosen: dict[str, Any] = {"accumulation": 2, "negatives": "step", "precision": "bf16"}
    first = logged(small(**chosen), tmp_path)
    assert "24 images; processes: 1; precision: bf16; loss: info_nce at temperature 0.2" in first
    assert "with batches of 16" in first
    assert "resuming after" not in first
    assert steps_done(tmp_path) == (1, 1)
    then = json.loads((tmp_path / "run.json").read_text())["after"]
    state = (tmp_path / "state.pt").read_bytes()
    assert "resuming after step 1 of 1" in logged(small(val_items=9, **chosen), tmp_path)
    assert (tmp_path / "state.pt").read_bytes() == state
    now = json.loads((tmp_path / "run.json").read_text())["after"]
    monitor, _ = Monitor.held_out(small(val_items=9), world(), opened(tmp_path / "model"))
    assert now == pytest.approx(monitor(opened(tmp_path / "model")))
    assert now["positive_score"] != then["positive_score"]
    with pytest.raises(InvalidInputError, match=r"lr 0\.001 instead of 1e-05"):
        train_model(small(lr=1e-3, **chosen), tmp_path, cpu=True)


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_group_scores_are_recorded_and_the_projection_is_fitted_at_the_end(tmp_path: Path) -> None:
    chosen = small(
        data="portraits", label="label", group="gender", debias="celeba", val_items=30, tune="heads"
    )
    outcome = train_model(chosen, tmp_path, cpu=True)
    monitor, _ = Monitor.held_out(chosen, world(), opened(tmp_path / "model"))
    assert "zero_shot_worst_group" in outcome["after"]
    assert outcome["after"].keys() == outcome["debiased"].keys()
    assert outcome["debiased"] != outcome["after"]
    edits = load_edit(tmp_path / "projection")
    assert edits.keys() == {"text"}
    assert outcome["debiased"] == pytest.approx(monitor(opened(tmp_path / "model"), edits["text"]))


def test_pairs_are_listed_without_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = list_pairs(small(items=40, caption_noise=0.5, score_pairs=True, keep=0.5), tmp_path)
    assert outcome["pairs"] == 40
    assert outcome["wrong_pairs"]["auroc"]["value"] > 0.7
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kept.parquet",
        "pairs.csv",
        "pairs.html",
    ]
    monkeypatch.setattr("vldebias.training.run.open_images", lambda _: Stream(9))
    with pytest.raises(InvalidInputError, match="got a stream"):
        list_pairs(small(), tmp_path)


def test_training_filters_by_the_starting_model_and_resumes_with_the_same_pairs(
    tmp_path: Path,
) -> None:
    chosen = {"items": 60, "keep": 0.5, "caption_noise": 0.4, "tune": "heads", "steps": 4}
    text = logged(small(**chosen, save_every=0), tmp_path / "run")
    assert "keep 0.5: training on the 30 of 60 pairs" in text
    assert "30 images" in text
    kept = datasets.Dataset.from_parquet(str(tmp_path / "run" / "kept.parquet"))
    rows = list(csv.DictReader((tmp_path / "run" / "pairs.csv").read_text().splitlines()))
    assert len(rows) == 60
    assert set(kept["id"]) == {row["id"] for row in rows[30:]}
    # The starting model scores wrong captions lowest, so most of the kept ones are correct.
    assert sum(row["wrong"] == "yes" for row in rows[:30]) > 15
    assert sum(row["wrong"] == "yes" for row in rows[30:]) <= 3
    assert "in the starting model" in (tmp_path / "run" / "pairs.html").read_text()

    # An interrupted run continues with the stored scores, not with those of the trained model.
    resumed = tmp_path / "resumed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run._StepReport, "__call__", interrupt_after_two_steps)
        with pytest.raises(KeyboardInterrupt):
            train_model(small(**chosen, save_every=0), resumed, cpu=True)
    assert steps_done(resumed)[0] == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filtering, "positive_scores", None)
        assert "resuming after step 1 of 4" in logged(small(**chosen, save_every=0), resumed)
    assert equal(weights(resumed), weights(tmp_path / "run"))
    with pytest.raises(InvalidInputError, match=r"keep 0\.6 instead of 0\.5"):
        train_model(small(**{**chosen, "keep": 0.6}), resumed, cpu=True)
    (resumed / "scores.npz").unlink()
    with pytest.raises(InvalidInputError, match="cannot read which pairs this run left out"):
        train_model(small(**chosen), resumed, cpu=True)


def interrupt_after_two_steps(self: Any, entry: dict[str, float], steps: int) -> None:
    if entry["step"] == 1:
        raise KeyboardInterrupt


def test_a_stream_is_filtered_by_the_same_scores_as_other_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The tiny towers have random weights.
    monkeypatch.setattr(filtering, "_refuse_uninformed", lambda *_: None)
    towers = tiny_towers()
    chosen = own_settings(keep=0.5, shuffle_buffer=4, streaming=True)
    streamed = Stream(40, shards=3)
    batches = Batches.from_data(streamed, chosen, towers)
    scores = StartingScores.measure(towers, batches)
    assert len(streamed.decoded) >= 40
    expected = positive_scores(towers, pairs_of(image_data(40)))
    assert sorted(scores.scores.tolist()) == pytest.approx(sorted(expected.tolist()))
    kept = scores.best(0.5)
    assert len(kept) == 20
    filtered = Batches.from_data(streamed, chosen, towers, kept)
    seen = torch.cat([batch.index for batch in take(filtered, 0, 20)])
    assert set(seen.tolist()) <= set(kept.tolist())
    # The last incomplete batch of an epoch is dropped, but different rows are in it.
    assert len(set(seen.tolist())) == 20


def test_filtering_by_random_weights_is_refused_and_explains_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_towers = run.make_towers

    def random_towers(settings: TrainSettings) -> Towers:
        towers = make_towers(settings)
        torch.manual_seed(0)
        for parameter in towers.model.parameters():
            torch.nn.init.normal_(parameter.data, std=0.05)
        return towers

    monkeypatch.setattr(run, "make_towers", random_towers)
    with pytest.raises(InvalidInputError, match=r"cannot tell the captions .* Train in two runs"):
        train_model(small(keep=0.8, items=60), tmp_path, cpu=True)


def test_a_run_names_keep_if_a_clear_group_of_captions_scores_low(tmp_path: Path) -> None:
    chosen = {"items": 200, "score_pairs": True, "tune": "heads", "lr": 1e-6}
    noisy = logged(small(**chosen, caption_noise=0.4), tmp_path / "noisy")
    (line,) = [line for line in noisy.splitlines() if "no better than captions of" in line]
    share = int(re.search(r"about (\d+)%", line)[1])
    assert 25 <= share <= 55
    assert line.endswith("again with --set keep=auto, which makes them count less")
    assert "no better than" not in logged(small(**chosen), tmp_path / "clean")


LONG = "a photo of " + "very " * 90


@pytest.mark.filterwarnings("ignore:.* captions were truncated")
@pytest.mark.parametrize(
    ("captions", "advice"),
    [
        (("a crow", "a gull", "a duck"), r"of an image's 7 negatives .* --loss gce, which"),
        (tuple(f"{LONG}{i}" for i in range(3)), r"--loss gce"),
        (tuple(f"{LONG}{i}" for i in range(48)), r"only the start .* 7\.0 of an image's 7 nega"),
    ],
    ids=["class names", "long class names", "cut"],
)
def test_a_run_names_equal_captions_before_it_doubts_them(
    captions: tuple[str, ...], advice: str, tmp_path: Path
) -> None:
    birds = world()
    rows = ["image,caption"]
    for row in range(48):
        birds.read(row % len(birds)).save(tmp_path / f"{row}.png")
        rows.append(f"{row}.png,{captions[row % len(captions)]}")
    (tmp_path / "captions.csv").write_text("\n".join(rows))
    chosen = {
        "data": str(tmp_path / "captions.csv"),
        "score_pairs": True,
        "tune": "heads",
        "lr": 1e-6,
    }
    text = logged(own_settings(**chosen), tmp_path / "run")
    (line,) = [line for line in text.splitlines() if "no better than captions of" in line]
    assert re.search(advice, line)
    assert "keep=auto" not in line
    assert "the end of training will be saved" in text  # there is no held-out data
    if "gce" in advice:
        again = logged(own_settings(**chosen, loss="gce"), tmp_path / "again")
        assert "gce" not in "".join(x for x in again.splitlines() if "no better than" in x)


def test_a_training_that_ruins_the_model_is_reported_in_the_history_and_at_the_end(
    tmp_path: Path,
) -> None:
    chosen = small(steps=2, lr=1.0, tune="heads", label="label", val_items=60, eval_every=1)
    text = io.StringIO()
    progress = Progress(Console(file=text, width=200))
    with pytest.warns(VldebiasWarning, match=r"zero-shot accuracy .* first seen after step 1 of 2"):
        outcome = train_model(chosen, tmp_path, cpu=True, progress=progress)
    assert outcome is not None
    fall = outcome["below_start"]
    assert fall["before"] == pytest.approx(outcome["before"]["zero_shot_accuracy"])
    assert fall["after"] == pytest.approx(outcome["after"]["zero_shot_accuracy"])
    history = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [entry["below_start"] for entry in history] == [True, True]
    assert history[-1]["zero_shot_accuracy change"] == pytest.approx(fall["change"][0])
    # A log file gets a line when the score first drops.
    lines = [line for line in text.getvalue().splitlines() if line.startswith("step ")]
    assert len(lines) == 1
    assert lines[0].endswith(", clearly below its start")
    # Training without any effect does not end below its start.
    unharmed = train_model(small(lr=1e-9, label="label"), tmp_path / "unharmed", cpu=True)
    assert unharmed is not None
    assert unharmed["below_start"] is None
    (entry,) = (tmp_path / "unharmed" / "history.jsonl").read_text().splitlines()
    assert json.loads(entry)["below_start"] is False


def test_two_views_do_not_need_captions_and_do_not_score_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Trainee] = []
    monkeypatch.setattr(
        run,
        "Trainee",
        lambda *arguments, **options: made.append(Trainee(*arguments, **options)) or made[-1],
    )
    views = {"views": "two", "jitter": 0.2, "flip": True, "crop_scale": 0.5, "fourier": 0.2}
    outcome = train_model(small(**views, score_pairs=True, lr=1e-4), tmp_path, cpu=True)
    assert outcome["wrong_pairs"] is None
    assert not (tmp_path / "pairs.csv").exists()
    assert made[0].objective.loss.within_view
    assert not made[0].model.token_embedding.weight.requires_grad
    shipped = load_clip()[0].state_dict()
    trained = weights(tmp_path)
    assert torch.equal(trained["token_embedding.weight"], shipped["token_embedding.weight"]), (
        "no text was read"
    )
    assert not torch.equal(trained["visual.proj"], shipped["visual.proj"])


# With 100 held-out pairs, a run chooses on 50 of them and reports the scores of the others.
CHOOSING: dict[str, Any] = {"tune": "heads", "items": 200, "val_items": 100}


@pytest.mark.filterwarnings("ignore:training made the model worse")
@pytest.mark.parametrize(
    ("lr", "saved"),
    [(0.3, "half way"), (1e-9, "half way"), (1e-3, "end")],
    ids=["the end is worse", "both are equal", "the end is better"],
)
def test_the_better_of_the_end_and_half_way_is_saved(
    lr: float, saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(**CHOOSING, lr=lr)
    start = load_clip()[0].state_dict()["visual.proj"]
    if saved == "end":
        # A random head knows nothing, so each step towards the end helps.
        settings = small(**CHOOSING, lr=lr, steps=10, batch_size=64)
        make_towers = run.make_towers

        def random_heads(settings: TrainSettings) -> Towers:
            towers = make_towers(settings)
            with torch.no_grad():
                towers.model.visual.proj.copy_(random)
            return towers

        start = random = torch.randn(start.shape, generator=torch.Generator().manual_seed(0)) * 0.05
        monkeypatch.setattr(run, "make_towers", random_heads)
    text = logged(settings, tmp_path)
    outcome = json.loads((tmp_path / "run.json").read_text())
    checkpoints = outcome["checkpoints"]
    choice = checkpoints["choice"]
    assert checkpoints["saved"] == saved
    assert (choice["half way"] >= choice["end"]) == (saved == "half way")
    # The scores after training are those of the saved weights, on the other half of the images.
    assert outcome["after"] == pytest.approx(checkpoints[saved.replace(" ", "")])
    model = opened(tmp_path / "model")
    monitor, choosing = Monitor.held_out(settings, world(), model)
    assert len(monitor.images) == len(choosing.images) == checkpoints["images"] == 50
    assert monitor(model) == pytest.approx(outcome["after"])
    assert deciding_score(choosing(model)) == (checkpoints["score"], pytest.approx(choice[saved]))
    # The checkpoint says which weights it has, and they are half way or at the end.
    manifest = json.loads((tmp_path / "model" / "vldebias.json").read_text())
    assert manifest["weights"] == saved
    end = torch.load(tmp_path / "state.pt", weights_only=True)["tensors"]["model.visual.proj"]
    expected = end if saved == "end" else (start + end) / 2
    torch.testing.assert_close(weights(tmp_path)["visual.proj"], expected)
    # The log names both with their scores.
    scores = f"{choice['end']:.3f} at the end of training and {choice['half way']:.3f} half way"
    assert scores in text


@pytest.mark.parametrize(
    "changes", [{"val_items": 99}, {"tune": "lora", "lora_rank": 1}, {"learn_temperature": True}]
)
def test_few_held_out_pairs_adapters_and_a_learned_temperature_save_the_end(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    text = logged(small(**CHOOSING | changes, lr=1e-9), tmp_path)
    outcome = json.loads((tmp_path / "run.json").read_text())
    assert outcome["checkpoints"] is None
    assert f"held out: {changes.get('val_items', 100)} images" in text
    assert json.loads((tmp_path / "model" / "vldebias.json").read_text())["weights"] == "end"
    assert "the end of training will be saved; comparing it" in text


@pytest.mark.filterwarnings("ignore:training made the model worse")
def test_a_resumed_run_goes_half_way_to_the_same_start(tmp_path: Path) -> None:
    settings = small(**CHOOSING, lr=0.3, steps=3, save_every=0)
    train_model(settings, tmp_path / "whole", cpu=True)
    resumed = tmp_path / "resumed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run._StepReport, "__call__", interrupt_after_two_steps)
        with pytest.raises(KeyboardInterrupt):
            train_model(settings, resumed, cpu=True)
    # A finished run that is repeated chooses again, between the same two checkpoints.
    for _ in range(2):
        outcome = train_model(settings, resumed, cpu=True)
        assert outcome is not None
        assert outcome["checkpoints"]["saved"] == "half way"
        assert equal(weights(resumed), weights(tmp_path / "whole"))


def test_keep_auto_weights_pairs_and_resumes_with_the_same_weights(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"items": 60, "keep": "auto", "caption_noise": 0.4, "steps": 3}
    chosen |= {"tune": "heads", "label": "label", "save_every": 0, "lr": 1e-3}
    with pytest.MonkeyPatch.context() as patch:
        seen = []
        patch.setattr(Objective, "forward", noting(seen, Objective.forward))
        text = logged(small(**chosen), tmp_path / "run")
    assert re.search(r"keep auto: about \d\d% of the 60 captions are right", text)
    with np.load(tmp_path / "run" / "scores.npz") as stored:
        right = right_captions(stored["scores"], stored["exchanged"])
    for batch in seen:
        assert batch.weights.tolist() == pytest.approx(right.weights[batch.index].tolist())
    outcome = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {group["column"] for group in outcome["kept"]} == {"label"}
    mean = sum(group["n"] * group["share"] for group in outcome["kept"]) / 60
    assert mean == pytest.approx(right.weights.mean(), abs=1e-6)
    kept = datasets.Dataset.from_parquet(str(tmp_path / "run" / "kept.parquet"))
    assert len(kept) == (right.weights >= 0.5).sum()
    assert "put the share of right captions at" in (tmp_path / "run" / "pairs.html").read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run._StepReport, "__call__", interrupt_after_two_steps)
        with pytest.raises(KeyboardInterrupt):
            train_model(small(**chosen), tmp_path / "resumed", cpu=True)
    logged(small(**chosen), tmp_path / "resumed")
    assert equal(weights(tmp_path / "resumed"), weights(tmp_path / "run"))


def noting(seen: list[Any], forward: Any) -> Any:
    def noted(self: Any, first: Any, second: Any, batch: Any, **more: Any) -> Any:
        seen.append(batch)
        return forward(self, first, second, batch, **more)

    return noted


def test_groups_of_columns_are_weighted_and_steps_are_tracked(tmp_path: Path) -> None:
    """Group DRO is applied as configured, and its weights are part of the checkpoint."""
    pytest.importorskip("tensorboard")
    changes = {"group_dro": "label, place", "group_dro_step": 1.0, "track": "tensorboard"}
    assert "with batches of 8\n" in logged(small(steps=2, tune="heads", **changes), tmp_path)
    groups = torch.load(tmp_path / "state.pt", weights_only=True)["tensors"][
        "objective.groups.log_weights"
    ].exp()
    assert len(groups) == len(world().column("label").names) * len(world().column("place").names)
    assert float(groups.sum()) == pytest.approx(1)
    assert float(groups.std()) > 0
    assert any(
        b"recall_at_1 image to text" in path.read_bytes()
        for path in tmp_path.rglob("events.out.tfevents*")
    )


@refused(
    ({"data": "nowhere/at/all", "items": None}, "nowhere/at/all"),
    ({"views": "two", "tune": "text", "flip": True}, "the text tower is not used with two views"),
    ({"loss": "spread"}, "spread: expected data with labels for every pair"),
    ({"split": "holdout"}, "expected split train, val, test, got 'holdout'"),
    ({"model": "no-such-model"}, "no-such-model"),
    ({"debias": "no-such-set"}, "no-such-set"),
)
def test_invalid_combinations_raise_errors_before_the_first_step(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    try:
        train_model(small(**changes), tmp_path, cpu=True)
    finally:
        assert not (tmp_path / "state.pt").exists()


def diverged() -> Towers:
    towers = tiny_towers()
    torch.nn.init.constant_(next(towers.model.parameters()), torch.nan)
    return towers


TWO = torch.rand(2, 3, 4, 4)
BROKEN = image_data(23, broken=range(23))
NUMBERS = {"kind": Labels.from_values("123")}


def held_out_monitor(settings: TrainSettings) -> Any:
    return Monitor.held_out(settings, open_images(settings), tiny_towers())


@refused(
    (lambda: Monitor(TWO), "expected captions, or labels with class_texts"),
    (
        lambda: Monitor(TWO, captions=list("ab"), groups=torch.tensor([-1, -1])),
        "no image has a known group",
    ),
    (lambda: Monitor.from_data(BROKEN, plain), "own train: 23 of 23 .* such as id0 "),
    (lambda: pairs_of(image_data(3, captions=())), "own: expected captions"),
    (lambda: pairs_of(image_data(3, captions=("", " ", "nan"))), "got none in 3 rows"),
    (
        lambda: pairs_of(image_data(3, labels=NUMBERS), label="kind", caption_template="{}"),
        "Set names to the names of the classes",
    ),
    (lambda: positive_scores(tiny_towers(), pairs_of(BROKEN, views="two")), "expected pairs"),
    (lambda: positive_scores(tiny_towers(), pairs_of(BROKEN)), "none of the 23 images can be read"),
    (lambda: positive_scores(diverged(), pairs_of(image_data(3))), "some features are not finite"),
    (
        lambda: Batches.from_data(pairs_of(BROKEN, views="two"), own_settings(), tiny_towers()),
        "own: expected captions",
    ),
    (lambda: held_out_monitor(own_settings(data="birds", split="test")), "training data"),
    (
        lambda: Objective(own_settings(loss="info_nce", q=0.3), temperature=1.0, items=3),
        "info_nce does not read q; it reads",
    ),
    (
        lambda: Objective(own_settings(loss="nuclr"), temperature=1.0, items=None),
        "nuclr: expected data with a known number of pairs",
    ),
    (
        lambda: Objective(own_settings(group_dro="kind"), temperature=1.0, items=3),
        "group_dro: expected the number of groups",
    ),
    (lambda: Sampler(3, 4), "the data has 3 rows, fewer than the 4 of one batch"),
    (
        lambda: Batches.from_data(
            Stream(9, names={}), own_settings(streaming=True, label="kind"), tiny_towers()
        ),
        "are unknown before the stream is read",
    ),
    (
        lambda: take(Batches.from_data(pairs_of(BROKEN), own_settings(), tiny_towers()), 0, 1),
        "nor can 10 replacements",
    ),
)
def test_data_that_cannot_be_trained_on_or_scored_is_rejected(call: Any) -> None:
    call()
