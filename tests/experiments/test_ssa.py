"""eval/experiments/ssa.py: what it computes, on next to nothing, and what its committed result
shows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from eval.experiments import ssa
from eval.experiments.run import Experiment
from eval.experiments.ssa import (
    LinearClassifier,
    PerImage,
    Recipe,
    Views,
    embed,
    fgsm,
    fresh_towers,
    measure,
    robust_correct,
    shift_distances,
    train,
    view_pairs,
    world,
)
from eval.experiments.tensor_batches import TensorBatches
from vldebias.hosts.clip.towers import Towers
from vldebias.losses import info_nce

GIVEN = Experiment.read("ssa").given["recipe"]
TINY = Recipe(**{**GIVEN, "items": 96, "test_items": 64, "batch_size": 24, "views": 4}, steps=2)
LOOSE = 1e-3  # of the regression on 48 species


@pytest.fixture(scope="module")
def trained() -> Towers:
    return train({}, 0, TINY, world(0, TINY)[0].images)[0]


@pytest.fixture(scope="module")
def done(trained: Towers) -> PerImage:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssa, "TOLERANCE", LOOSE)
        return measure(trained, *world(0, TINY), TINY, 0)


def test_a_crop_shows_nothing_from_outside_the_image() -> None:
    """Of an image whose value is its column, a crop spans the share of columns that was kept, and
    no reflection."""
    ramp = torch.linspace(0, 1, 32).expand(200, 3, 32, 32).clone()
    seen = Views(0.25, 0.0)(ramp, torch.Generator().manual_seed(0))[:, 0, 0]
    steps = seen.diff(dim=1)
    assert bool(((steps > 0).all(1) | (steps < 0).all(1)).all())
    kept = (steps.abs().mean(1) * 31) ** 2  # side squared: the area
    assert 0.24 < float(kept.min()) < 0.3
    assert 0.9 < float(kept.max()) < 1.01
    assert float(kept.mean()) == pytest.approx(0.625, abs=0.05)


def test_every_arm_starts_from_the_same_weights_and_views() -> None:
    images = world(0, TINY)[0].images
    short = replace(TINY, steps=1)
    arms = {
        name: arm for name, arm in Experiment.read("ssa").arms.items() if not arm.get("fourier")
    }
    first = {name: train(arm, 0, short, images)[1][0]["loss"] for name, arm in arms.items()}
    assert len(first) == 4
    assert len(set(first.values())) == 1
    assert train({}, 1, short, images)[1][0]["loss"] != first["none"]
    assert train({"fourier": 0.5}, 0, short, images)[1][0]["loss"] != first["none"]


def test_the_loss_is_simclr_s_of_two_views() -> None:
    images = world(0, TINY)[0].images
    augment = Views(TINY.smallest_crop, TINY.brightness)
    batch = TensorBatches(
        images, batch_size=TINY.batch_size, augment=augment, two_views=True, seed=0
    ).batch(0)
    assert batch.views is not None
    read = fresh_towers(0)
    with torch.no_grad():
        first, second = (
            F.normalize(read.image(views), dim=1) for views in (batch.images, batch.views)
        )
    expected = info_nce(first, second, temperature=TINY.temperature, within_view=True)
    assert train({}, 0, TINY, images)[1][0]["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_the_classifier_is_the_regression_on_unit_features(trained: Towers) -> None:
    from sklearn.linear_model import LogisticRegression

    learn, test = world(0, TINY)
    features = embed(trained, learn.images)
    labels = learn.species % 3
    assert torch.allclose(features.norm(dim=1), torch.ones(len(features)))
    logits_of_classifier = LinearClassifier(trained, features, labels, 3)(test.images).detach()
    mean = features.mean(0)
    std = features.std(0, correction=0)
    oracle = LogisticRegression(C=1.0, tol=1e-8, max_iter=5000).fit(
        ((features - mean) / std).numpy(), labels.numpy()
    )
    logits = oracle.decision_function(((embed(trained, test.images) - mean) / std).numpy())
    assert np.allclose(
        logits_of_classifier - logits_of_classifier.mean(1, keepdim=True),
        logits - logits.mean(1, keepdims=True),
        atol=0.02,
    )


def test_accuracies_are_those_of_the_classifier(
    trained: Towers, done: PerImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssa, "TOLERANCE", LOOSE)
    learn, test = world(0, TINY)
    classifier = LinearClassifier(trained, embed(trained, learn.images), learn.species, 48)
    right = classifier(test.images).argmax(1) == test.species
    assert done["accuracy"].tolist() == right.double().tolist()
    assert right.sum() > 3
    robust = [
        done[name].mean()
        for name in ("accuracy", *(f"robust_accuracy@{radius}/255" for radius in (1, 2, 8)))
    ]
    assert robust == sorted(robust, reverse=True)
    assert robust[-1] < robust[0]


def test_the_gap_is_that_of_the_views_image_by_image(trained: Towers, done: PerImage) -> None:
    test = world(0, TINY)[1]
    seen: list[list[torch.Tensor]] = [[] for _ in range(len(test))]
    for index, two in view_pairs(test, TINY, 0):
        for i, feature in zip(index.repeat(2).tolist(), embed(trained, two), strict=True):
            seen[i].append(feature)
    assert {len(views) for views in seen} == {TINY.views}
    views = torch.stack([torch.stack(images_of_view) for images_of_view in seen]).numpy()
    images = embed(trained, test.images).numpy()
    expected = shift_distances(views, test.species.numpy(), images).mean()
    assert done["gap, original"].mean() == pytest.approx(expected, rel=1e-4)
    assert not np.array_equal(done["gap, mixed"], done["gap, original"])
    assert 0 < done["partner is the other view"].mean() < 1


# ---- attacks and gaps by definition
# ------------------------------------------------------------------------------


class Linear(torch.nn.Module):
    """logits = scale (W (x - 1/2) + b) in float64."""

    def __init__(self, classes: int, scale: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = torch.nn.Parameter(
            torch.randn(classes, 48, generator=generator, dtype=torch.float64)
        )
        self.bias = torch.nn.Parameter(
            torch.randn(classes, generator=generator, dtype=torch.float64)
        )
        self.scale = scale

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.scale * ((images.flatten(1).double() - 0.5) @ self.weight.T + self.bias)


def noise(seed: int, n: int = 300) -> torch.Tensor:
    """Images with a distance of .2 to black and white, so that clipping does not bite."""
    return 0.2 + 0.6 * torch.rand(
        n, 3, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.1])
def test_of_two_classes_and_a_linear_classifier_the_attack_is_the_worst_there_is(
    epsilon: float,
) -> None:
    images = noise(0)
    labels = torch.arange(300) % 2
    classifier = Linear(2)
    with torch.no_grad():
        logits = classifier(images)
        across = classifier.weight[1] - classifier.weight[0]
    margin = (logits[:, 1] - logits[:, 0]) * (2 * labels - 1)
    assert torch.equal(
        robust_correct(classifier, images, labels, epsilon), margin > epsilon * across.abs().sum()
    )


@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_a_sure_classifier_is_attacked_as_well_and_the_budget_is_spent(scale: float) -> None:
    images = noise(1)
    sure = Linear(5, scale)
    labels = sure(images).argmax(1)
    pixels = images.float().requires_grad_()
    F.cross_entropy(sure(pixels), labels).backward()
    attacked = fgsm(sure, images.float(), labels, 0.1)
    if scale == 1:
        assert torch.equal(attacked, (images.float() + 0.1 * pixels.grad.sign()).clamp(0, 1))
    else:
        assert (
            pixels.grad.flatten(1).any(1).float().mean() < 0.1
        )  # the gradient that is not taken is 0
    assert torch.allclose((attacked - images).abs(), torch.tensor(0.1).double(), atol=1e-6)
    assert robust_correct(sure, images.float(), labels, 0.1).sum() < 150


def test_shift_distances_agree_with_the_definition() -> None:
    rng = np.random.default_rng(0)
    views = rng.normal(size=(12, 3, 5))
    labels = rng.integers(3, size=12)
    images = rng.normal(size=(12, 5))
    for i, distance in enumerate(shift_distances(views, labels, images)):
        centre = np.mean([images[j] for j in range(12) if labels[j] == labels[i]], axis=0)
        assert distance == pytest.approx(
            sum((a - b) ** 2 for a, b in zip(centre, views[i].mean(0), strict=True)) ** 0.5
        )
