"""Test contrastive adapters: the loss against loops, the contrasted rows, and which groups
improve."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from apps.baselines import adapters
from apps.baselines.adapters import Contrasts, anchored_contrastive, rows_of_groups
from tests.apps.baselines.test_classifiers import TEST, TRAIN, VAL, World, fit
from vldebias.errors import InvalidInputError
from vldebias.study.tasks.examples import Examples


def unit(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1)


def examples(train: World) -> Examples:
    return Examples(train.features, train.labels, train.zero_shot, VAL.split)


def test_the_contrastive_loss_matches_loops() -> None:
    anchors = unit(3, 5, seed=0)
    positives = unit(3, 4, 5, seed=1)
    negatives = unit(3, 7, 5, seed=2)
    expected = []
    for a in range(3):
        of_negatives = 0.0
        for negative in negatives[a]:
            of_negatives += math.exp(float(anchors[a] @ negative) / 0.2)
        terms = []
        for positive in positives[a]:
            similarity = math.exp(float(anchors[a] @ positive) / 0.2)
            terms.append(-math.log(similarity / (similarity + of_negatives)))
        expected.append(sum(terms) / len(terms))
    measured = anchored_contrastive(anchors, positives, negatives, temperature=0.2)
    np.testing.assert_allclose(measured.numpy(), expected, rtol=1e-12)


def test_anchors_are_zero_shot_errors_and_positives_are_zero_shot_successes() -> None:
    contrasts = Contrasts.find(examples(TRAIN))
    predicted = (TRAIN.features @ TRAIN.zero_shot.T).argmax(1).numpy()
    assert contrasts.anchors.tolist() == np.flatnonzero(predicted != TRAIN.labels).tolist()
    chosen = torch.tensor([0, 4, 2])
    torch.manual_seed(0)
    sampled = contrasts.sample(chosen, 6, 9)
    for position, row in zip(chosen.tolist(), sampled.tolist(), strict=True):
        anchor = int(contrasts.anchors[position])
        label = TRAIN.labels[anchor]
        right = np.flatnonzero((predicted == label) & (TRAIN.labels == label)).tolist()
        assert contrasts.positives[label].tolist() == right
        assert row[0] == anchor
        assert set(row[1:7]) <= set(right)
        assert set(row[7:]) <= set(contrasts.nearest[position].tolist())


@pytest.mark.parametrize("count", [5, 10_000])
@pytest.mark.parametrize("chunk", [3, 64])
def test_nearest_rows_match_brute_force(
    count: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "NEAREST_CHUNK", chunk)
    contrasts = Contrasts.find(examples(TRAIN), count)
    size = min(count, *np.bincount(TRAIN.labels))
    assert contrasts.nearest.shape == (len(contrasts.anchors), size)
    for anchor, nearest in zip(contrasts.anchors[:9].tolist(), contrasts.nearest, strict=False):
        rivals = np.flatnonzero(TRAIN.labels != TRAIN.labels[anchor])
        cosines = (TRAIN.features[rivals] @ TRAIN.features[anchor]).numpy()
        assert sorted(nearest.tolist()) == sorted(rivals[np.argsort(-cosines)[:size]].tolist())


@pytest.mark.parametrize("limit", [7, 10_000])
def test_an_epoch_has_equally_many_anchors_of_each_class(limit: int) -> None:
    contrasts = Contrasts.find(examples(TRAIN))
    chosen = contrasts.balanced_anchors(limit)
    size = min(limit, int(torch.bincount(contrasts.classes).min()))
    assert torch.bincount(contrasts.classes[chosen]).tolist() == [size, size]
    assert len(chosen.unique()) == len(chosen)


@pytest.mark.parametrize("size", [10, 500])
def test_rows_of_groups_include_equally_many_of_every_group(size: int) -> None:
    groups = examples(TRAIN).groups
    rows = rows_of_groups(groups, size)
    assert np.bincount(groups[rows]).tolist() == [size] * 4
    smallest = rows[groups[rows] == np.bincount(groups).argmin()]
    assert (len(smallest.unique()) == len(smallest)) == (size == 10)


def test_contrast_and_classification_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list[str]()
    contrastive = adapters.anchored_contrastive
    entropy = adapters.F.cross_entropy

    def contrast(*rows: Tensor, temperature: float) -> Tensor:
        assert temperature == 0.1
        assert [len(part) for part in rows] == [len(rows[0])] * 3
        steps.append("contrast")
        return contrastive(*rows, temperature=temperature)

    def classification(logits: Tensor, labels: Tensor) -> Tensor:
        steps.append(f"classification of {len(labels)}")
        return entropy(logits, labels)

    monkeypatch.setattr(adapters, "anchored_contrastive", contrast)
    monkeypatch.setattr(adapters.F, "cross_entropy", classification)
    fit("contrastive-adapter", TRAIN, epochs=3, anchors=10, group_size=40)
    balanced = ["classification of 128", "classification of 32"]  # four groups of 40
    assert steps == ["contrast", *balanced, "contrast"]


def test_contrast_corrects_errors_of_erm() -> None:
    worst = {}
    for name in ("erm-linear", "erm-adapter", "contrastive-adapter"):
        worst[name] = TEST.accuracy(fit(name, TRAIN).logits(TEST.features)).worst
    without_contrast = max(worst["erm-linear"], worst["erm-adapter"])
    assert without_contrast < 0.7
    assert worst["contrastive-adapter"] > without_contrast + 0.1


def test_a_class_without_zero_shot_errors_has_no_anchors() -> None:
    predicted = (TRAIN.features @ TRAIN.zero_shot.T).argmax(1).numpy()
    kept = np.flatnonzero((TRAIN.labels == 0) | (predicted == 1))
    part = TRAIN._replace(features=TRAIN.features[kept], labels=TRAIN.labels[kept])
    contrasts = Contrasts.find(examples(part))
    assert set(contrasts.classes.tolist()) == set(contrasts.positives) == {0}
    assert fit("contrastive-adapter", part, epochs=2).chosen["epoch"] in (1, 2)
    with pytest.raises(InvalidInputError, match="contrastive-adapter"):
        fit("contrastive-adapter", TRAIN._replace(labels=predicted))
