"""eval/experiments/ssa.py: what it computes, on next to nothing, and what its committed result holds."""

import json
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch.nn import functional as F

from eval.experiments import ssa
from eval.experiments.ssa import draw
from eval.experiments.ssa_measures import READINGS, LinearClassifier, PerImage, embed, measure, view_pairs
from eval.experiments.ssa_training import ARMS, MORE_ARMS, Arm, Recipe, Views, fresh_towers, train, world
from eval.experiments.tensor_batches import TensorBatches
from vldebias.hosts.towers import Towers
from vldebias.losses import info_nce
from vldebias.metrics.robustness import shift_distances
from vldebias.miniature.birds import sample
from vldebias.training.sampling import torch_generator

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "eval" / "results" / "ssa.json"

TINY = Recipe(items=96, test_items=64, batch_size=24, steps=2, views=4)
BOTH = Arm("asam", 2.0, 0.2)


@pytest.fixture(scope="module")
def trained() -> Towers:
    return train(Arm(), 0, TINY, world(0, TINY)[0].images)[0]


@pytest.fixture(scope="module")
def done(trained: Towers) -> PerImage:
    return measure(trained, *world(0, TINY), TINY, 0)


class TestViews:
    images = sample(20, seed=1, balanced=True).images

    def drawn(self, seed: int, **changed: float) -> torch.Tensor:
        given = {"smallest_crop": 0.5, "brightness": 0.2, **changed}
        return Views(**given)(self.images, torch.Generator().manual_seed(seed))

    def test_follow_from_the_generator_alone(self) -> None:
        assert torch.equal(self.drawn(1), self.drawn(1))
        assert not torch.equal(self.drawn(1), self.drawn(2))
        assert self.drawn(1).min() >= 0
        assert self.drawn(1).max() <= 1

    def test_the_whole_image_or_its_mirror_image_where_nothing_is_cut(self) -> None:
        seen = self.drawn(3, smallest_crop=1.0, brightness=0.0)
        mirrored = torch.tensor([not torch.allclose(a, b, atol=1e-5) for a, b in zip(seen, self.images, strict=True)])
        assert 0 < mirrored.sum() < len(mirrored)
        assert torch.allclose(seen[mirrored], self.images[mirrored].flip(3), atol=1e-5)

    def test_a_crop_shows_nothing_from_outside_the_image(self) -> None:
        """Of an image whose value is its column, a crop spans the share of columns that was kept, and no reflection."""
        ramp = torch.linspace(0, 1, 32).expand(200, 3, 32, 32).clone()
        seen = Views(0.25, 0.0)(ramp, torch.Generator().manual_seed(0))[:, 0, 0]
        steps = seen.diff(dim=1)
        assert bool(((steps > 0).all(1) | (steps < 0).all(1)).all())
        kept = (steps.abs().mean(1) * 31) ** 2  # side squared: the area
        assert 0.24 < float(kept.min()) < 0.3
        assert 0.9 < float(kept.max()) < 1.01
        assert float(kept.mean()) == pytest.approx(0.625, abs=0.05)

    def test_colours_keep_their_proportions(self) -> None:
        flat = torch.tensor([0.2, 0.5, 0.8])[None, :, None, None].expand(50, 3, 32, 32)
        seen = Views(0.5, 0.2)(flat, torch.Generator().manual_seed(0))
        assert torch.allclose(seen / seen[:, :1], flat / flat[:, :1], atol=1e-4)
        light = seen[:, 0, 0, 0] / 0.2
        assert 0.79 < float(light.min()) < 0.85
        assert 1.15 < float(light.max()) < 1.21


def test_every_arm_starts_from_the_same_weights_and_views() -> None:
    images = world(0, TINY)[0].images
    short = replace(TINY, steps=1)
    first = {name: train(arm, 0, short, images)[1][0]["loss"] for name, arm in ARMS.items() if not arm.fourier}
    assert len(first) == 3
    assert len(set(first.values())) == 1
    assert train(Arm(), 1, short, images)[1][0]["loss"] != first["none"]
    assert train(Arm(fourier=0.5), 0, short, images)[1][0]["loss"] != first["none"]


def test_the_loss_is_simclr_s_of_two_views() -> None:
    images = world(0, TINY)[0].images
    augment = Views(TINY.smallest_crop, TINY.brightness)
    batch = TensorBatches(images, batch_size=TINY.batch_size, augment=augment, two_views=True, seed=0).batch(0)
    assert batch.views is not None
    read = fresh_towers(0)
    with torch.no_grad():
        first, second = (F.normalize(read.image(views), dim=1) for views in (batch.images, batch.views))
    expected = info_nce(first, second, temperature=TINY.temperature, within_view=True)
    assert train(Arm(), 0, TINY, images)[1][0]["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_the_tower_reads_pixels() -> None:
    read, images = fresh_towers(3), sample(4, seed=2).images
    expected = read.model.encode_image((images - 0.5) / 0.5)
    assert torch.allclose(read.image(images), expected, atol=1e-5)


def test_the_classifier_is_the_regression_on_unit_features(trained: Towers) -> None:
    from sklearn.linear_model import LogisticRegression

    learn, test = world(0, TINY)
    features, labels = embed(trained, learn.images), learn.species % 3
    assert torch.allclose(features.norm(dim=1), torch.ones(len(features)))
    found = LinearClassifier(trained, features, labels, 3)(test.images).detach()
    mean, std = features.mean(0), features.std(0, correction=0)
    oracle = LogisticRegression(C=1.0, tol=1e-8, max_iter=5000).fit(((features - mean) / std).numpy(), labels.numpy())
    logits = oracle.decision_function(((embed(trained, test.images) - mean) / std).numpy())
    assert np.allclose(found - found.mean(1, keepdim=True), logits - logits.mean(1, keepdims=True), atol=0.02)


def test_accuracies_are_those_of_the_classifier(trained: Towers, done: PerImage) -> None:
    learn, test = world(0, TINY)
    classifier = LinearClassifier(trained, embed(trained, learn.images), learn.species, 48)
    right = classifier(test.images).argmax(1) == test.species
    assert done["accuracy"].tolist() == right.double().tolist()
    assert right.sum() > 3
    robust = [done[name].mean() for name in ("accuracy", *(f"robust_accuracy@{by}/255" for by in (1, 2, 8)))]
    assert robust == sorted(robust, reverse=True)
    assert robust[-1] < robust[0]


def test_the_gap_is_that_of_the_views_image_by_image(trained: Towers, done: PerImage) -> None:
    test = world(0, TINY)[1]
    seen: list[list[torch.Tensor]] = [[] for _ in range(len(test))]
    for index, two in view_pairs(test, TINY, 0):
        for i, feature in zip(index.repeat(2).tolist(), embed(trained, two), strict=True):
            seen[i].append(feature)
    assert {len(views) for views in seen} == {TINY.views}
    views = torch.stack([torch.stack(one) for one in seen])
    for name, reading in READINGS.items():
        expected = shift_distances(views, test.species, images=embed(trained, test.images), **reading).mean()
        assert done[f"gap{name}, original"].mean() == pytest.approx(expected, rel=1e-4)
        assert np.array_equal(done[f"gap{name}, change"], done[f"gap{name}, mixed"] - done[f"gap{name}, original"])
        assert done[f"gap{name}, change"].any()


def test_view_pairs_are_two_different_views_of_each_image() -> None:
    test = world(0, TINY)[1]
    pairs = list(view_pairs(test, TINY, 0))
    assert torch.cat([index for index, _ in pairs]).bincount().tolist() == [TINY.views // 2] * len(test)
    for index, two in pairs:
        assert len(two) == 2 * len(index)
        assert not torch.equal(*two.chunk(2))
    generator = torch_generator("gap views", 0, 0, 0)
    index, two = pairs[0]
    both = Views(TINY.smallest_crop, TINY.brightness)(test.images[index].repeat(2, 1, 1, 1), generator)
    assert torch.equal(two, both)


def test_partners_are_counted(done: PerImage) -> None:
    own, same = (done[f"partner is {what}"] for what in ("the other view", "of the species"))
    assert (own <= same).all()
    assert 0 < own.mean() < 1


@pytest.mark.slow
def test_cells_are_done_once_and_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssa, "RECIPE", TINY)
    monkeypatch.setattr(ssa, "ARMS", {"none": Arm(), "ssa-clr 0.2": BOTH})
    monkeypatch.setattr(ssa, "MORE_ARMS", {"fft 1": Arm(fourier=1.0)})
    monkeypatch.setattr(ssa, "MORE_SEEDS", 2)
    given = ["--seeds", "2", "--steps", "1", "--processes", "1", "--work", str(tmp_path / "cells")]
    ssa.main([*given, "--out", str(tmp_path)])
    first = json.loads((tmp_path / "ssa.json").read_text())
    assert [(cell["arm"], cell["seed"]) for cell in first["cells"]] == [
        *(("none", 0), ("ssa-clr 0.2", 0), ("none", 1), ("ssa-clr 0.2", 1)),
        *(("fft 1", 0), ("fft 1", 1)),
    ]
    assert first["cells"][1]["adds"] == asdict(BOTH)
    assert first["cells"][0]["recipe"] == asdict(replace(TINY, steps=1)) == first["protocol"]["recipe"]
    short = replace(TINY, steps=1)
    learned = train(BOTH, 1, short, world(1, short)[0].images)[0]
    expected = {name: values.mean() for name, values in measure(learned, *world(1, short), short, 1).items()}
    assert first["cells"][3]["figures"] == pytest.approx(expected)
    monkeypatch.setattr(ssa, "measure", None)  # whoever calls it fails
    ssa.main([*given, "--out", str(tmp_path / "again")])
    assert json.loads((tmp_path / "again" / "ssa.json").read_text())["rows"] == first["rows"]
    with pytest.raises(TypeError, match="not callable"):
        ssa.main([*given, "--out", str(tmp_path), "--steps", "2"])


@pytest.fixture(scope="module")
def committed() -> Any:
    return json.loads(COMMITTED.read_text())


def of(committed: Any, arm: str, metric: str) -> dict[str, Any]:
    return next(row for row in committed["rows"] if (row["arm"], row["metric"]) == (arm, metric))


@pytest.mark.slow
def test_longer_runs_are_compared_with_those_of_as_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssa, "RECIPE", TINY)
    monkeypatch.setattr(ssa, "ARMS", {"none": Arm(), "ssa-clr 0.2": BOTH})
    monkeypatch.setattr(ssa, "LONGER", 3)
    given = ["--longer", "--seeds", "2", "--steps", "1", "--processes", "1", "--work", str(tmp_path / "cells")]
    ssa.main([*given, "--out", str(tmp_path)])
    told = json.loads((tmp_path / "ssa_longer.json").read_text())
    assert [(cell["arm"], cell["steps"], cell["seed"]) for cell in told["cells"]] == [
        (arm, steps, seed) for seed in (0, 1) for steps in (1, 3) for arm in ("none", "ssa-clr 0.2")
    ]
    assert all(cell["recipe"]["steps"] == cell["steps"] for cell in told["cells"])
    figures = {(c["arm"], c["steps"], c["seed"]): c["figures"]["accuracy"] for c in told["cells"]}
    (row,) = (r for r in told["rows"] if (r["arm"], r["steps"], r["metric"]) == ("ssa-clr 0.2", 3, "accuracy"))
    apart = [figures["ssa-clr 0.2", 3, seed] - figures["none", 3, seed] for seed in (0, 1)]
    assert row["change"]["value"] == pytest.approx(np.mean(apart))
    assert not (tmp_path / "ssa.json").exists()


@pytest.mark.slow
def test_every_arm_has_every_seed(committed: Any) -> None:
    seeds = committed["protocol"]["seeds"]
    assert seeds >= 5
    found: dict[str, list[int]] = {}
    for cell in committed["cells"]:
        found.setdefault(cell["arm"], []).append(cell["seed"])
        assert Arm(**cell["adds"]) == (ARMS | MORE_ARMS)[cell["arm"]]
        assert cell["recipe"] == asdict(Recipe()) == committed["protocol"]["recipe"]
    assert found == {name: list(range(seeds)) for name in ARMS} | {name: [0, 1, 2] for name in MORE_ARMS}


@pytest.mark.slow
def test_the_rows_are_those_of_the_cells(committed: Any) -> None:
    values = {(c["arm"], c["seed"], metric): v for c in committed["cells"] for metric, v in c["figures"].items()}
    metrics = {metric for _, _, metric in values}
    assert {(row["arm"], row["metric"]) for row in committed["rows"]} == set(product(ARMS | MORE_ARMS, metrics))
    for row in committed["rows"]:
        each = np.array([values[row["arm"], seed, row["metric"]] for seed in row["seeds"]])
        assert interval_of(row) == pytest.approx(t_interval(each))
        if row["arm"] != "none":
            base = [values["none", seed, row["metric"]] for seed in row["seeds"]]
            assert interval_of(row["change"]) == pytest.approx(t_interval(each - base))


def interval_of(row: dict[str, float]) -> tuple[float, float, float]:
    return row["value"], row["low"], row["high"]


def t_interval(values: np.ndarray) -> tuple[float, float, float]:
    if np.ptp(values) == 0:
        return values[0], values[0], values[0]
    found = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    return float(values.mean()), found.low, found.high


@pytest.mark.slow
def test_the_learner_learns(committed: Any) -> None:
    """Far from chance, 1 of 48, and far enough from 1 for an arm to be better."""
    assert 0.5 < of(committed, "none", "accuracy")["value"] < 0.95
    assert 0.1 < of(committed, "none", "robust_accuracy@2/255")["value"] < 0.9


def test_the_picture_is_drawn_from_the_result(tmp_path: Path) -> None:
    draw(COMMITTED, tmp_path / "ssa.png")
    with Image.open(tmp_path / "ssa.png") as drawn, Image.open(COMMITTED.with_suffix(".png")) as kept:
        assert drawn.size == kept.size
        assert (
            np.abs(np.asarray(drawn, int) - np.asarray(kept, int)).mean() < 5
        )  # versions of matplotlib; a blank one: 6.3
