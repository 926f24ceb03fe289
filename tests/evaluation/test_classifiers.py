"""Classifiers that learn from labels: what holds for all of them, the laws of each, and what balancing mends.

The features are as those of Waterbirds: a class direction, and a stronger spurious one that agrees with it in 95 % of
the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn.functional import normalize

from tests.refusals import refused
from vldebias.errors import VldebiasWarning
from vldebias.evaluation import classifiers
from vldebias.evaluation.classifiers import (
    BASELINES,
    Examples,
    Linear,
    Predictor,
    balanced_counts,
    logistic_regression,
    standard,
)
from vldebias.metrics.classification import GroupAccuracy, group_accuracy


@dataclass(frozen=True)
class World:
    """Split of n rows: features (n, d), labels (n,), place (n,), class texts (2, d).

    groups: label x place; found: label x zero-shot prediction, which baselines balance.
    """

    features: Tensor
    labels: NDArray[np.int64]
    place: NDArray[np.int64]
    zero_shot: Tensor

    @property
    def groups(self) -> NDArray[np.int64]:
        return 2 * self.labels + self.place

    @property
    def predicted(self) -> NDArray[np.int64]:
        return (self.features @ self.zero_shot.T).argmax(1).numpy()

    @property
    def found(self) -> NDArray[np.int64]:
        return 2 * self.labels + self.predicted

    @property
    def split(self) -> tuple[Tensor, NDArray[np.int64], NDArray[np.int64]]:
        return self.features, self.labels, self.groups

    def of(self, rows: NDArray[np.int64]) -> World:
        return World(self.features[rows], self.labels[rows], self.place[rows], self.zero_shot)

    def accuracy(self, logits: Tensor) -> GroupAccuracy:
        return group_accuracy(logits.argmax(1), self.labels, self.groups)


def world(n: int, *, seed: int, agree: float = 0.95, dim: int = 32) -> World:
    """Zero-shot texts mix both directions, and both kinds of features have an offset of their own, as CLIP's have."""
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, 4)))[0].T
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, n)
    place = np.where(draw.random(n) < agree, labels, 1 - labels)
    bird = 2 * labels - 1 + 0.7 * draw.normal(size=n)
    scene = 2 * (2 * place - 1 + 0.3 * draw.normal(size=n))
    features = np.outer(bird, axes[0]) + np.outer(scene, axes[1]) + 4 * axes[2]
    features += 3 / np.sqrt(dim) * draw.normal(size=(n, dim))
    texts = np.outer([-1, 1], axes[0] + 0.6 * axes[1]) + 4 * axes[3]
    unit = [normalize(torch.from_numpy(rows).float(), dim=1) for rows in (features, texts)]
    return World(unit[0], labels, place, unit[1])


def fit(name: str, train: World, *, val: Any = None, seed: int = 0, **settings: Any) -> Predictor:
    return BASELINES[name](Examples(train.features, train.labels, train.zero_shot, val, seed), **settings)


QUICK: dict[str, dict[str, Any]] = {
    "erm-linear": {"candidates": (1.0, 10.0), "tolerance": 1e-4},
    "wise-ft": {"candidates": (1.0, 10.0), "tolerance": 1e-4},
    "dfr-sub": {"draws": 2, "candidates": (0.003, 0.01), "tolerance": 1e-4},
    "dfr-up": {"draws": 2, "candidates": (0.003, 0.01), "tolerance": 1e-4},
    "erm-adapter": {"epochs": 4},
}
every = pytest.mark.parametrize("name", list(BASELINES))


@pytest.fixture(scope="session")
def train() -> World:
    return world(1200, seed=1)


@pytest.fixture(scope="session")
def val() -> World:
    return world(600, seed=2, agree=0.5)


@pytest.fixture(scope="session")
def test() -> World:
    return world(4000, seed=3, agree=0.5)


# ---- all of them ----------------------------------------------------------------------------------------------


@every
def test_a_seed_gives_one_predictor_and_leaves_the_global_generators_alone(name: str, train: World) -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = fit(name, train, **QUICK[name]).logits(train.features)
    with torch.inference_mode():  # it trains in a context without gradients too
        own = World(train.features + 0, train.labels, train.place, train.zero_shot + 0)
        again = fit(name, own, **QUICK[name]).logits(train.features)
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    other = fit(name, train, seed=1, **QUICK[name]).logits(train.features)
    assert torch.equal(other, again) == (name in ("erm-linear", "wise-ft"))  # which draw nothing


@every
def test_permuted_labels_are_chance_and_labels_help(name: str, train: World, test: World) -> None:
    other = world(1200, seed=7)
    labels = np.random.default_rng(0).permutation(other.labels)
    head = fit(name, World(other.features, labels, other.place, other.zero_shot), **QUICK[name])
    right = float((head.logits(test.features).argmax(1).numpy() == test.labels).mean())
    zero_shot = float(((test.features @ train.zero_shot.T).argmax(1).numpy() == test.labels).mean())
    expected, within = (zero_shot, 0.06) if name == "wise-ft" else (0.5, 0.12)  # half of WiSE-FT read no label
    assert right == pytest.approx(expected, abs=within)
    assert zero_shot > 0.62
    longer = {"epochs": 30} if "adapter" in name else {}
    found = test.accuracy(fit(name, train, **QUICK[name] | longer).logits(test.features))
    assert found.average > (0.65 if name == "wise-ft" else 0.72)


@every
def test_what_was_chosen_comes_with_its_accuracy_on_the_validation_split(name: str, train: World, val: World) -> None:
    head = fit(name, train, val=val.split, **QUICK[name])
    assert head.logits(val.features[:0]).shape == (0, 2)
    found = val.accuracy(head.logits(val.features))
    assert (head.chosen["val_worst_group"], head.chosen["val_average"]) == (found.worst, found.average)


@refused(
    ({"features": torch.eye(6)}, "baseline"),
    ({"val": (torch.eye(3), np.array([0, 1, 1]), np.zeros(3, int))}, "baseline"),
    ({"labels": [0, 1, 2, 0, 1, 0]}, "train labels"),
    ({"labels": [1] * 6}, "train labels"),
)
def test_what_does_not_fit(changed: dict[str, Any]) -> None:
    given_ = {"features": torch.eye(4)[[0, 1, 2, 3, 0, 1]], "labels": [0, 1] * 3, "zero_shot": torch.eye(4)[:2]}
    Examples(**{name: np.array(of) if name == "labels" else of for name, of in (given_ | changed).items()})


# ---- linear ---------------------------------------------------------------------------------------------------


def test_erm_linear_has_the_probabilities_of_scikit_learn(train: World, test: World) -> None:
    ours = fit("erm-linear", train, c=3.0, tolerance=1e-9)
    theirs = LogisticRegression(C=3.0, tol=1e-9, max_iter=10000).fit(train.features.double().numpy(), train.labels)
    expected = theirs.predict_proba(test.features.double().numpy())
    np.testing.assert_allclose(torch.softmax(ours.logits(test.features), 1).numpy(), expected, atol=1e-5)
    assert ours.chosen == {"c": 3.0}


def test_the_validation_split_chooses_c_by_the_worst_group(train: World, val: World) -> None:
    candidates = (10.0, 0.01, 1000.0)
    chosen = fit("erm-linear", train, val=val.split, candidates=candidates).chosen
    found = {c: val.accuracy(fit("erm-linear", train, c=c).logits(val.features)) for c in candidates}
    best = max(sorted(candidates), key=lambda c: (found[c].worst, found[c].average))
    assert len({one.worst for one in found.values()}) > 1
    assert chosen == {"c": best, "val_worst_group": found[best].worst, "val_average": found[best].average}


def test_wise_ft_goes_from_zero_shot_to_the_probe(train: World, val: World, test: World) -> None:
    probe = fit("erm-linear", train).logits(test.features)
    zero_shot = 100 * test.features @ train.zero_shot.T
    for alpha, scale in ((0.0, 100.0), (0.3, 100.0), (0.3, 50.0), (1.0, 100.0)):
        logits = fit("wise-ft", train, alpha=alpha, logit_scale=scale).logits(test.features)
        expected = (1 - alpha) * scale / 100 * zero_shot + alpha * probe
        torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-4)
    assert not torch.equal(zero_shot.argmax(1), probe.argmax(1))
    how: dict[str, Any] = {"candidates": (10.0, 100.0), "tolerance": 1e-4}
    chosen = fit("wise-ft", train, val=val.split, **how).chosen
    linear = fit("erm-linear", train, val=val.split, **how).chosen
    assert chosen["c"] == linear["c"]
    scored = {a / 10: fit("wise-ft", train, alpha=a / 10, c=chosen["c"], tolerance=1e-4) for a in range(11)}
    worst = {a: val.accuracy(head.logits(val.features)).worst for a, head in scored.items()}
    assert worst[chosen["alpha"]] == max(worst.values())


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 99))
def test_balanced_counts_make_all_groups_of_one_size(sizes: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    groups = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    for balance, target in (("sub", min(sizes)), ("up", max(sizes))):
        counts = balanced_counts(groups, balance, generator)
        assert np.bincount(groups, weights=counts).tolist() == [target] * len(sizes)
        for group in range(len(sizes)):
            assert np.ptp(counts[groups == group]) <= 1  # "sub" takes no row twice, "up" leaves none out
        assert counts.max() <= 1 if balance == "sub" else counts.min() >= 1


@pytest.mark.parametrize("balance", ["sub", "up"])
def test_dfr_on_balanced_data_is_the_plain_probe(balance: str, train: World) -> None:
    even = train.of(np.flatnonzero(balanced_counts(train.found, "sub", np.random.default_rng(0))))
    ours = fit(f"dfr-{balance}", even, c=0.3, tolerance=1e-9, draws=3)
    scaler = StandardScaler().fit(even.features.double().numpy())
    theirs = LogisticRegression(C=0.3, l1_ratio=1.0, solver="saga", tol=1e-8, max_iter=100000, random_state=0)
    theirs.fit(scaler.transform(even.features.double().numpy()), even.labels)
    expected = theirs.predict_proba(scaler.transform(train.features.double().numpy()))
    np.testing.assert_allclose(torch.softmax(ours.logits(train.features), 1).numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("balance", ["sub", "up"])
def test_dfr_averages_the_coefficients_of_its_samples(balance: str, train: World) -> None:
    ours = fit(f"dfr-{balance}", train, seed=5, draws=3, penalty="l2", c=1.0, tolerance=1e-9)
    generator, heads = np.random.default_rng(5), []
    x = StandardScaler().fit_transform(train.features.double().numpy())
    for _ in range(3):
        counts = balanced_counts(train.found, balance, generator)
        one = LogisticRegression(C=1.0, tol=1e-9, max_iter=10000).fit(x, train.labels, sample_weight=counts)
        heads.append(one.decision_function(x))
    logits = ours.logits(train.features)
    np.testing.assert_allclose((logits[:, 1] - logits[:, 0]).numpy(), np.mean(heads, 0), atol=1e-3)
    assert np.ptp(heads, axis=0).max() > 1e-2
    sizes = np.bincount(train.found)
    of_group = sizes.min() if balance == "sub" else sizes.max()
    assert (ours.chosen["groups"], ours.chosen["rows_per_group"]) == (sizes.tolist(), of_group)


def test_erm_leans_on_the_shortcut_and_balancing_mends_it(train: World, test: World) -> None:
    erm = test.accuracy(fit("erm-linear", train).logits(test.features))
    assert erm.worst < 0.6
    assert erm.accuracy[0] > 0.95  # landbirds on land, the shortcut at work
    for name in ("dfr-sub", "dfr-up"):
        mended = test.accuracy(fit(name, train, draws=3, tolerance=1e-4).logits(test.features))
        assert mended.worst > erm.worst + 0.1


# ---- adapters -------------------------------------------------------------------------------------------------


def test_the_best_epoch_is_kept_and_patience_ends_training(train: World, val: World) -> None:
    how: dict[str, Any] = {"rate": 0.01, "hidden": 16}
    best = fit("erm-adapter", train, val=val.split, epochs=12, **how)
    epoch = best.chosen["epoch"]
    around = [fit("erm-adapter", train, epochs=epoch + by, **how) for by in (-1, 0, 1)]
    assert torch.equal(best.logits(val.features), around[1].logits(val.features))
    found = [val.accuracy(head.logits(val.features)) for head in around]
    scores = [(one.worst, one.average) for one in found]
    assert scores[0] < scores[1] >= scores[2]
    assert 1 < epoch < 12
    assert around[2].chosen == {"epoch": epoch + 1}  # the last, where there is no validation split
    short = fit("erm-adapter", train, val=val.split, epochs=12, patience=1, **how)
    assert short.chosen["epoch"] <= epoch


# ---- logistic regression ---------------------------------------------------------------------------------------


def data(classes: int, n: int = 90, dim: int = 6) -> tuple[Tensor, NDArray[np.int64]]:
    """Classes that overlap, in columns of unequal scale and with a mean that is not 0."""
    draw = np.random.default_rng(classes)
    labels = draw.integers(0, classes, n)
    centres = draw.normal(size=(classes, dim))
    scales = np.array([0.1, 0.5, 1, 2, 3, 1.0])
    return torch.from_numpy((centres[labels] + 1.5 * draw.normal(size=(n, dim)) + 1) * scales), labels


def solve(features: Tensor, labels: NDArray[np.int64], classes: int, **options: Any) -> Linear:
    return logistic_regression(features, labels, classes, **({"c": 0.7, "tolerance": 1e-8} | options))


def assert_same(ours: Linear, weight: Any, bias: Any, tolerance: float = 1e-6) -> None:
    """A bias that all of several classes share says nothing, and nothing penalises it."""
    if len(weight) == 1:  # of two classes scikit-learn has the difference
        weight, bias = np.r_[-weight, weight] / 2, np.r_[-bias, bias] / 2
    shared = (np.asarray(bias) - np.asarray(ours.bias)).mean()
    np.testing.assert_allclose(ours.weight.numpy(), weight, atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(ours.bias.numpy() + shared, bias, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("c", "counted"), [(0.01, True), (1.0, False), (50.0, True)])
@pytest.mark.parametrize("classes", [2, 3])
def test_l2_is_that_of_scikit_learn(classes: int, c: float, counted: bool) -> None:
    x, y = data(classes)
    counts = np.random.default_rng(0).integers(1, 5, len(y)) if counted else None
    theirs = LogisticRegression(C=c, tol=1e-10, max_iter=20000, solver="newton-cg")
    theirs.fit(x.numpy(), y, sample_weight=counts)
    assert_same(solve(x, y, classes, c=c, counts=counts), theirs.coef_, theirs.intercept_)


@pytest.mark.parametrize("c", [0.02, 1.0])
def test_l1_is_that_of_scikit_learn(c: float) -> None:
    x, y = data(2)
    theirs = LogisticRegression(C=c, l1_ratio=1.0, tol=1e-9, max_iter=100000, solver="saga", random_state=0)
    theirs.fit(x.numpy(), y)
    ours = solve(x, y, 2, c=c, penalty="l1")
    assert_same(ours, theirs.coef_, theirs.intercept_, 1e-4)
    assert (theirs.coef_ == 0).any() == (c == 0.02)
    np.testing.assert_array_equal(ours.weight[:1].numpy() == 0, theirs.coef_ == 0)


def test_l1_of_three_classes_is_at_a_minimum() -> None:
    """Optimality: |gradient| = 1 / c where a weight is not 0, at most that where it is."""
    x, y = data(3)
    ours = solve(x, y, 3, c=0.05, penalty="l1")
    p = torch.softmax(x @ ours.weight.T + ours.bias, 1) - torch.nn.functional.one_hot(torch.from_numpy(y), 3)
    gradient, active = p.T @ x, ours.weight != 0
    assert 0 < int(active.sum()) < active.numel()
    torch.testing.assert_close(gradient[active], -torch.sign(ours.weight[active]) / 0.05, atol=1e-5, rtol=0)
    assert bool((gradient[~active].abs() <= 20 + 1e-5).all())
    assert float(p.sum(0).abs().max()) < 1e-6


@pytest.mark.parametrize("penalty", ["l1", "l2"])
@pytest.mark.parametrize("classes", [2, 3])
def test_copies_start_chunks_and_scaling_do_not_matter(
    classes: int, penalty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (x, y), how = data(classes), {"penalty": penalty}
    counts, scaling = np.random.default_rng(1).integers(1, 4, len(y)), standard(x)
    copies = solve(x.repeat_interleave(torch.from_numpy(counts), 0), np.repeat(y, counts), classes, **how)
    assert_same(solve(x, y, classes, counts=counts, **how), copies.weight, copies.bias)
    cold = solve(x, y, classes, **how)
    far = Linear(torch.randn(cold.weight.shape).double(), torch.zeros(cold.bias.shape).double())
    assert_same(solve(x, y, classes, start=far, **how), cold.weight, cold.bias)
    shift, scale = scaling
    scaled = solve((x - shift) / scale, y, classes, **how)
    monkeypatch.setattr(classifiers, "CHUNK", 7)
    folded = solve(x, y, classes, scaling=scaling, **how)
    torch.testing.assert_close(folded.logits(x), scaled.logits((x - shift) / scale), atol=1e-5, rtol=1e-5)
    again = solve(x, y, classes, scaling=scaling, start=folded, max_iterations=2, **how)
    torch.testing.assert_close(again.logits(x), folded.logits(x), atol=1e-5, rtol=1e-5)


def test_standard_scaling_is_that_of_numpy_and_keeps_constant_columns() -> None:
    x = torch.cat([data(2)[0], torch.full((90, 1), 3.0).double()], 1)
    shift, scale = standard(x)
    np.testing.assert_allclose(shift.numpy(), x.numpy().mean(0))
    np.testing.assert_allclose(scale.numpy(), [*x.numpy()[:, :-1].std(0), 1.0])


def test_stopping_too_early_warns() -> None:
    x, y = data(2)
    torch.testing.assert_close(solve(x, y, 2).logits(x).sum(1), torch.zeros(90).double())
    with pytest.warns(VldebiasWarning, match="3 iterations"):
        solve(x, y, 2, c=100.0, max_iterations=3)
