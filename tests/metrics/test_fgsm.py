"""The fast gradient sign method: where the worst perturbation is known, and what the attack may not touch."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.refusals import refused
from vldebias.metrics.robustness import EPSILON, fgsm, robust_correct

laws = settings(max_examples=40, deadline=None, derandomize=True)
SHAPE = (3, 4, 4)
DIM = math.prod(SHAPE)


class Linear(nn.Module):
    """logits = scale (W (x - 1/2) + b) in float64: linear, and no class that always wins."""

    def __init__(self, classes: int, seed: int, scale: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, DIM, generator=generator, dtype=torch.float64))
        self.bias = nn.Parameter(torch.randn(classes, generator=generator, dtype=torch.float64))
        self.scale = scale

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * ((images.flatten(1).double() - 0.5) @ self.weight.T + self.bias)


def problem(seed: int, n: int = 40, classes: int = 2, inside: float = 0.2) -> tuple[Tensor, Tensor]:
    """Images with a distance of `inside` to black and white, so that clipping does not bite below it."""
    generator = torch.Generator().manual_seed(seed)
    images = inside + (1 - 2 * inside) * torch.rand(n, *SHAPE, generator=generator, dtype=torch.float64)
    return images, torch.randint(classes, (n,), generator=generator)


def small_net(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    layers = (nn.Flatten(), nn.Linear(DIM, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 5))
    return nn.Sequential(*layers).double()


@laws
@given(st.integers(0, 10_000), st.floats(0.001, 0.2))
def test_of_two_classes_and_a_linear_classifier_it_is_the_worst_there_is(seed: int, epsilon: float) -> None:
    images, labels = problem(seed)
    classifier = Linear(2, seed + 1)
    with torch.no_grad():
        logits = classifier(images)
        across = classifier.weight[1] - classifier.weight[0]
    margin = (logits[:, 1] - logits[:, 0]) * (2 * labels - 1)
    assert torch.equal(
        robust_correct(classifier, images, labels, epsilon=epsilon), margin > epsilon * across.abs().sum()
    )


@laws
@given(st.integers(0, 10_000), st.integers(3, 6))
def test_what_no_perturbation_can_break_survives(seed: int, classes: int) -> None:
    images, labels = problem(seed, classes=classes)
    classifier = Linear(classes, seed + 1)
    with torch.no_grad():
        labels = classifier(images).argmax(1)
        own = classifier.weight[labels]
        reach = (own[:, None] - classifier.weight).abs().sum(2)  # (n, k): the most a pixel budget of 1 can move
        logits = classifier(images)
        margins = logits.gather(1, labels[:, None]) - logits
    epsilon = 0.05
    safe = (margins >= epsilon * reach).all(1)
    survived = robust_correct(classifier, images, labels, epsilon=epsilon)
    assert bool(survived[safe].all())
    assert survived.sum() < len(survived)  # else the law above says nothing


@laws
@given(st.integers(0, 10_000), st.floats(0, 1))
def test_the_budget_is_kept_and_spent(seed: int, epsilon: float) -> None:
    images, labels = problem(seed, n=6, classes=5, inside=0.0)
    images[0] = epsilon  # of one colour
    attacked = fgsm(small_net(), images, labels, epsilon=epsilon)
    moved = (attacked - images).abs()
    assert attacked.min() >= 0
    assert attacked.max() <= 1
    assert moved.max() <= epsilon + 1e-12
    free = (attacked > 0) & (attacked < 1)
    assert torch.allclose(moved[free], torch.full_like(moved[free], epsilon))


def test_it_agrees_with_the_gradient_of_the_cross_entropy() -> None:
    images, labels = problem(3, classes=5)
    classifier = small_net().eval()
    pixels = images.clone().requires_grad_()
    nn.functional.cross_entropy(classifier(pixels), labels).backward()
    expected = (images + EPSILON * pixels.grad.sign()).clamp(0, 1)
    assert torch.equal(fgsm(classifier, images, labels), expected)


@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_a_sure_classifier_is_attacked_as_well(scale: float) -> None:
    images, labels = problem(4, classes=5)
    classifier, sure = Linear(5, 1), Linear(5, 1, scale)
    labels = classifier(images).argmax(1)
    if scale > 1:
        pixels = images.float().requires_grad_()
        nn.functional.cross_entropy(sure(pixels), labels).backward()
        assert not pixels.grad.any()  # the gradient that is not taken
    found = robust_correct(sure, images.float(), labels, epsilon=0.1)
    assert found.sum() < len(labels) / 2


def test_no_budget_is_the_accuracy_and_more_of_it_hurts() -> None:
    images, labels = problem(5, n=200, classes=5)
    classifier = small_net().eval()
    clean = classifier(images).argmax(1) == labels
    assert torch.equal(robust_correct(classifier, images, labels, epsilon=0), clean)
    shares = [float(robust_correct(classifier, images, labels, epsilon=e).double().mean()) for e in (0, 0.02, 0.1)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < shares[0]


@pytest.mark.parametrize("batch_size", [1, 7, 40, 100])
def test_batches_change_nothing(batch_size: int) -> None:
    images, labels = problem(6, classes=5)
    classifier = small_net(dropout=0.5)  # in training mode: of this the attack must not notice anything
    one_by_one = [robust_correct(classifier, images[i : i + 1], labels[i : i + 1]) for i in range(40)]
    assert torch.equal(robust_correct(classifier, images, labels, batch_size=batch_size), torch.cat(one_by_one))


@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_model_is_as_before(around: Callable[[], Any]) -> None:
    classifier = small_net(dropout=0.3).train()
    classifier[2].eval()  # frozen in eval mode, and must stay so
    classifier[1].weight.requires_grad_(False)
    classifier[5].weight.grad = torch.ones_like(classifier[5].weight)
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    images, labels = problem(7, classes=5)
    kept = images.clone()
    with around():
        images, labels = images.clone(), labels.clone()  # made where gradients are off, as images of a loader may be
        found = robust_correct(classifier, images, labels)
    assert not found.all()
    assert torch.equal(images, kept)
    assert not images.requires_grad
    assert [m.training for m in classifier.modules()] == [True, True, True, False, True, True, True]
    assert all(torch.equal(value, before[name]) for name, value in classifier.state_dict().items())
    assert [p.grad is None for p in classifier.parameters()] == [True, True, True, True, False, True]
    assert torch.equal(classifier[5].weight.grad, torch.ones_like(classifier[5].weight))
    assert [p.requires_grad for p in classifier.parameters()] == [False, True, True, True, True, True]


def test_a_classifier_that_fails_leaves_the_modes() -> None:
    classifier = small_net().train()
    with pytest.raises(RuntimeError):
        robust_correct(classifier, torch.rand(2, 3, 5, 5, dtype=torch.float64), torch.zeros(2, dtype=torch.int64))
    assert all(module.training for module in classifier.modules())


IMAGES, LABELS = torch.rand(4, *SHAPE), torch.zeros(4, dtype=torch.int64)


@refused(
    ({"images": (IMAGES * 255).to(torch.uint8)}, r"expected floating point \(n, c, h, w\) .* torch.uint8"),
    ({"images": IMAGES[0]}, r"images: expected floating point \(n, c, h, w\)"),
    ({"images": IMAGES[:0]}, r"images: expected floating point \(n, c, h, w\)"),
    ({"images": IMAGES * 2 - 1}, r"expected pixels in \[0, 1\], got -.*; let the classifier normalise them"),
    ({"images": IMAGES * torch.nan}, r"expected pixels in \[0, 1\], got nan"),
    ({"labels": LABELS[:3]}, r"expected \(4,\) int64 >= 0, got \(3,\)"),
    ({"labels": LABELS.float()}, r"labels: expected \(4,\) int64 >= 0, got \(4,\) of torch.float32"),
    ({"labels": LABELS - 1}, r"labels: expected \(4,\) int64 >= 0"),
    ({"labels": LABELS + 3}, "labels: the classifier has 3 classes, got 3"),
    ({"epsilon": -0.1}, "epsilon: expected a number >= 0, got -0.1"),
    ({"epsilon": math.nan}, "epsilon: expected a number >= 0, got nan"),
    ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
    ({"classifier": lambda x: x.flatten(1)[:, :1]}, r"logits \(4, k\) with k >= 2, got \(4, 1\)"),
    ({"classifier": lambda x: x}, r"logits \(4, k\) with k >= 2, got \(4, 3, 4, 4\)"),
    ({"classifier": lambda x: torch.ones(4, 3, requires_grad=True)}, "no gradient reaches the images"),
    ({"classifier": lambda x: x.detach().flatten(1)}, "no gradient reaches the images; expected differentiable"),
)
def test_errors(changed: dict[str, Any]) -> None:
    given = {"classifier": Linear(3, 0), "images": IMAGES, "labels": LABELS, **changed}
    robust_correct(given.pop("classifier"), given.pop("images"), given.pop("labels"), **given)
