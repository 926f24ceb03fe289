"""The contrastive adapter: its loss against a naive twin and the spread loss, its sampling, and what it mends."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from spurious_world import World, accuracy, fit
from torch import Tensor

from vldebias import losses
from vldebias.evaluation.baselines import ContrastiveAdapter, ERMAdapter, ERMLinear, contrastive
from vldebias.evaluation.baselines.contrastive import _balanced_rows, _nearest_of_other_classes, anchored_contrastive
from vldebias.evaluation.baselines.problem import RobustnessProblem

BRIEF = ContrastiveAdapter(epochs=20)


def problem(train: World, **options: Any) -> RobustnessProblem:
    return RobustnessProblem.of(train.features, train.labels, train.zero_shot, select="worst_group", **options)


def unit(*shape: int, seed: int) -> Tensor:
    draw = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(draw, dim=-1)


def test_the_loss_against_loops() -> None:
    anchors, positives, negatives = unit(3, 5, seed=0), unit(3, 4, 5, seed=1), unit(3, 7, 5, seed=2)
    expected = []
    for a, ps, ns in zip(anchors, positives, negatives, strict=True):
        rest = sum(math.exp(float(a @ n) / 0.2) for n in ns)
        terms = [math.exp(float(a @ p) / 0.2) for p in ps]
        expected.append(-sum(math.log(s / (s + rest)) for s in terms) / len(terms))
    found = anchored_contrastive(anchors, positives, negatives, temperature=0.2)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_the_loss_is_what_attracts_in_the_spread_loss() -> None:
    """Of a labelled batch: positives are the row itself and its classmates, negatives the other class."""
    rows = unit(8, 5, seed=3)
    labels = torch.arange(8) % 2
    expected = losses.spread(rows, rows, labels, temperature=0.3, alpha=1.0, within_view=False, reduction="none")
    positives = torch.stack([rows[labels == label] for label in labels])
    negatives = torch.stack([rows[labels != label] for label in labels])
    found = anchored_contrastive(rows, positives, negatives, temperature=0.3)
    torch.testing.assert_close(found, expected)


def test_the_loss_stays_finite_at_small_temperatures() -> None:
    anchors = unit(3, 5, seed=0).float().requires_grad_()
    loss = anchored_contrastive(anchors, unit(3, 4, 5, seed=1).float(), unit(3, 7, 5, seed=2).float(), temperature=1e-3)
    loss.sum().backward()
    assert bool(torch.isfinite(loss).all())
    assert bool(torch.isfinite(anchors.grad).all())


def test_parts_are_what_zero_shot_gets_wrong_and_right(train: World) -> None:
    given = problem(train)
    found = BRIEF._prepare(given, lambda _: None)
    predicted = (train.features @ train.zero_shot.T).argmax(1).numpy()
    assert found.anchors.tolist() == np.flatnonzero(predicted != train.labels).tolist()
    for label in (0, 1):
        right = np.flatnonzero((predicted == label) & (train.labels == label))
        assert found.positives[label].tolist() == right.tolist()


@pytest.mark.parametrize("count", [5, 10_000])
@pytest.mark.parametrize("chunk", [3, 64])
def test_nearest_rows_against_brute_force(
    count: int, chunk: int, train: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contrastive, "_CHUNK", chunk)
    anchors = np.array([3, 0, 17, 5])
    found = _nearest_of_other_classes(problem(train), anchors, count)
    size = min(count, *(np.sum(train.labels != label) for label in np.unique(train.labels[anchors])))
    assert found.shape == (4, size)
    for anchor, nearest in zip(anchors, found, strict=True):
        others = np.flatnonzero(train.labels != train.labels[anchor])
        cosines = (train.features[others] @ train.features[anchor]).numpy()
        best = others[np.argsort(-cosines)[:size]]
        assert set(nearest.tolist()) == set(best.tolist())


def test_samples_are_an_anchor_its_positives_and_its_negatives(train: World) -> None:
    data = BRIEF._prepare(problem(train), lambda _: None)
    which = torch.tensor([0, 4, 2])
    rows = data.sample(which, 6, 9, torch.Generator().manual_seed(0))
    assert rows.shape == (3, 16)
    for i, anchor in zip(which.tolist(), rows, strict=True):
        label = train.labels[data.anchors[i]]
        assert anchor[0] == data.anchors[i]
        assert set(anchor[1:7].tolist()) <= set(data.positives[label].tolist())
        assert set(anchor[7:].tolist()) <= set(data.nearest[i].tolist())


def test_an_epoch_takes_as_many_anchors_of_every_class(train: World) -> None:
    data = BRIEF._prepare(problem(train), lambda _: None)
    sizes = torch.bincount(data.classes)
    for most in (7, 10_000):
        which = data.epoch(most, torch.Generator().manual_seed(0))
        taken = min(most, int(sizes.min()))
        assert torch.bincount(data.classes[which]).tolist() == [taken, taken]
        assert len(which.unique()) == len(which)


@pytest.mark.parametrize("size", [10, 500])
def test_balanced_rows_take_as_many_of_every_group(size: int, train: World) -> None:
    given = problem(train, groups=train.groups)
    rows = _balanced_rows(given, size, torch.Generator().manual_seed(0))
    assert np.bincount(given.groups[rows]).tolist() == [size] * 4
    smallest = np.bincount(given.groups).argmin()
    own = rows[given.groups[rows] == smallest]
    assert (len(own.unique()) == len(own)) == (size == 10)


def test_contrast_and_classification_take_turns(train: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for name in ("anchored_contrastive", "classification_loss"):
        original = getattr(contrastive, name)
        monkeypatch.setattr(contrastive, name, lambda *a, _f=original, _n=name, **k: (seen.append(_n), _f(*a, **k))[1])
    fit(ContrastiveAdapter(epochs=4), train, on_step=seen.append)
    turns = [name for name, last in zip(seen, ["", *seen], strict=False) if name != last]
    assert turns[1:] == [
        *("anchored_contrastive", "epoch 1 of 4", "classification_loss", "epoch 2 of 4"),
        *("anchored_contrastive", "epoch 3 of 4", "classification_loss", "epoch 4 of 4"),
    ]


def test_it_mends_what_erm_gets_wrong(train: World, val: World, test: World) -> None:
    erm = accuracy(fit(ERMLinear(), train, val=val.split)(test.features), test)
    adapter = accuracy(fit(ERMAdapter(), train, val=val.split)(test.features), test)
    ours = accuracy(fit(ContrastiveAdapter(), train, val=val.split)(test.features), test)
    assert max(erm.worst, adapter.worst) < 0.7
    assert ours.worst > max(erm.worst, adapter.worst) + 0.1


def test_a_class_without_a_wrong_row_has_no_anchors(train: World) -> None:
    predicted = (train.features @ train.zero_shot.T).argmax(1).numpy()
    keep = np.flatnonzero((train.labels == 0) | (predicted == 1))
    some = replace(train, features=train.features[keep], labels=train.labels[keep], place=train.place[keep])
    data = BRIEF._prepare(problem(some), lambda _: None)
    assert set(data.classes.tolist()) == set(data.positives) == {0}
    assert fit(ContrastiveAdapter(epochs=2), some).chosen == {"epoch": 2}


def test_without_any_anchor_it_says_so(train: World) -> None:
    predicted = (train.features @ train.zero_shot.T).argmax(1).numpy()
    with pytest.raises(ValueError, match=r"right in some training rows and wrong in others; of \[\d+, \d+\] rows"):
        BRIEF.fit(train.features, predicted, train.zero_shot)
