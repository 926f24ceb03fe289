"""Test supervised classifiers: the properties they share, the properties of each, and the effect of
balancing."""

from collections import namedtuple
from typing import Any, NamedTuple

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

from apps.baselines import adapters, classifiers
from apps.baselines.classifiers import BASELINES, balanced_counts, logistic_regression
from tests.refusals import refused
from vldebias.errors import VldebiasWarning
from vldebias.measure.classification import GroupAccuracy, group_accuracy
from vldebias.study.tasks.examples import Examples

Fitted = namedtuple("Fitted", "logits chosen")
Head = namedtuple("Head", "weight bias logits")


class World(NamedTuple):
    """Generate a split of n rows like Waterbirds: a class direction, and a stronger spurious one
    that mostly agrees with it."""

    features: Tensor
    labels: NDArray[np.int64]
    place: NDArray[np.int64]
    zero_shot: Tensor

    @property
    def found(self) -> NDArray[np.int64]:
        """Return label x zero-shot prediction, which are the groups that the baselines balance."""
        return 2 * self.labels + (self.features @ self.zero_shot.T).argmax(1).numpy()

    @property
    def split(self) -> tuple[Tensor, NDArray[np.int64], NDArray[np.int64]]:
        return self.features, self.labels, 2 * self.labels + self.place

    def accuracy(self, logits: Tensor) -> GroupAccuracy:
        return group_accuracy(logits.argmax(1), self.labels, 2 * self.labels + self.place)


def world(n: int, *, seed: int, agree: float = 0.95, dim: int = 32) -> World:
    """Return a world in which zero-shot text mixes both directions, and text and images have
    separate offsets, as in CLIP."""
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


def fit(name: str, train: World, *seed: int, **settings: Any) -> Fitted:
    examples = Examples(train.features, train.labels, train.zero_shot, VAL.split, *seed)
    return Fitted(*BASELINES[name][0](examples, **settings))


QUICK: dict[str, dict[str, Any]] = {
    "erm-linear": {"candidates": (1.0, 10.0), "tolerance": 1e-4},
    "wise-ft": {"candidates": (1.0, 10.0), "tolerance": 1e-4},
    "dfr-sub": {"draws": 2, "candidates": (0.1,), "tolerance": 1e-4},
    "dfr-up": {"draws": 2, "candidates": (0.1,), "tolerance": 1e-4},
    "erm-adapter": {"epochs": 4},
    "contrastive-adapter": {"epochs": 4, "anchors": 64},
}
over_baselines = pytest.mark.parametrize("name", list(BASELINES))
TRAIN = world(1200, seed=1)
VAL = world(600, seed=2, agree=0.5)
TEST = world(4000, seed=3, agree=0.5)


@over_baselines
def test_a_seed_determines_the_predictor_and_does_not_affect_global_generators(name: str) -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = fit(name, TRAIN, **QUICK[name]).logits(TRAIN.features)
    with torch.inference_mode():  # training also works in a context without gradients
        copied = TRAIN._replace(features=TRAIN.features + 0, zero_shot=TRAIN.zero_shot + 0)
        again = fit(name, copied, 0, **QUICK[name]).logits(TRAIN.features)
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    reseeded = fit(name, TRAIN, 1, **QUICK[name]).logits(TRAIN.features)
    # These methods do not draw random numbers.
    assert torch.equal(reseeded, again) == (name in ("erm-linear", "wise-ft"))


@over_baselines
def test_permuted_labels_give_chance_accuracy_and_true_labels_improve_it(
    name: str,
) -> None:
    unseen = world(1200, seed=7)
    alone = {"alphas": [0.5]} if name == "wise-ft" else {}
    shuffled = unseen._replace(labels=np.random.default_rng(0).permutation(unseen.labels))
    head = fit(name, shuffled, **QUICK[name] | alone)
    zero_shot = TEST.accuracy(TEST.features @ TRAIN.zero_shot.T).average
    # WiSE-FT interpolates halfway, so half of it does not use labels.
    expected, within = (zero_shot, 0.06) if alone else (0.5, 0.12)
    assert TEST.accuracy(head.logits(TEST.features)).average == pytest.approx(expected, abs=within)
    head = fit(name, TRAIN, **QUICK[name])
    accuracy = VAL.accuracy(head.logits(VAL.features))
    assert (head.chosen["val_worst_group"], head.chosen["val_average"]) == (
        accuracy.worst,
        accuracy.average,
    )
    longer = {"epochs": 30} if "adapter" in name else {}
    accuracy = TEST.accuracy(fit(name, TRAIN, **QUICK[name] | longer).logits(TEST.features))
    assert accuracy.average > (0.65 if name == "wise-ft" else 0.72)


@refused(
    ({"features": torch.eye(6)}, r"\[6, 4, 4\]"),
    ({"val": (torch.eye(3), np.array([0, 1, 1]), np.zeros(3, int))}, r"\[4, 3, 4\]"),
    ({"labels": [1] * 6}, "train labels"),
)
def test_invalid_examples_are_rejected(changed: dict[str, Any]) -> None:
    given_ = {
        "features": torch.eye(4)[[0, 1, 2, 3, 0, 1]],
        "labels": [0, 1] * 3,
        "zero_shot": torch.eye(4)[:2],
    }
    given_["val"] = torch.eye(4)[:3], np.array([0, 1, 1]), np.zeros(3, int)
    Examples(
        **{
            name: np.array(value) if name == "labels" else value
            for name, value in (given_ | changed).items()
        }
    )


def test_c_is_selected_on_the_validation_split_by_the_worst_group() -> None:
    candidates = (10.0, 0.01, 1000.0)
    chosen = fit("erm-linear", TRAIN, candidates=candidates).chosen
    trial_of_c = {
        c: VAL.accuracy(fit("erm-linear", TRAIN, candidates=[c]).logits(VAL.features))
        for c in candidates
    }
    best = max(sorted(candidates), key=lambda c: (trial_of_c[c].worst, trial_of_c[c].average))
    assert len({trial.worst for trial in trial_of_c.values()}) > 1
    assert (chosen["c"], chosen["val_worst_group"], chosen["alpha"]) == (
        best,
        trial_of_c[best].worst,
        1,
    )


def test_wise_ft_goes_from_zero_shot_to_the_probe() -> None:
    probe = fit("erm-linear", TRAIN).logits(TEST.features)
    zero_shot = 100 * TEST.features @ TRAIN.zero_shot.T
    for alpha in (0.0, 0.3, 1.0):
        logits = fit("wise-ft", TRAIN, alphas=[alpha]).logits(TEST.features)
        expected = (1 - alpha) * zero_shot + alpha * probe
        torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-4)
    how: dict[str, Any] = {"candidates": (10.0, 100.0), "tolerance": 1e-4}
    chosen = fit("wise-ft", TRAIN, **how).chosen
    how["candidates"] = [chosen["c"]]
    scored = {a / 10: fit("wise-ft", TRAIN, alphas=[a / 10], **how) for a in range(11)}
    worst = {a: VAL.accuracy(head.logits(VAL.features)).worst for a, head in scored.items()}
    assert worst[chosen["alpha"]] == max(worst.values())


def test_strengths_and_numbers_of_samples_match_the_papers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The strength is selected from candidates, not by users. DFR selects it on one sample and
    reuses it for nine more."""
    tried = list[float]()
    head = (torch.ones(2, 32).double(), torch.ones(2).double())
    monkeypatch.setattr(
        classifiers, "logistic_regression", lambda *_, c, **how: tried.append(c) or head
    )
    for name in ("erm-linear", "dfr-sub"):
        fit(name, TRAIN)
    assert tried == [1, 10, 30, 100, 1000, 10000, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, *[0.003] * 9]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 99))
def test_balanced_counts_give_all_groups_the_same_size(sizes: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    groups = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    for balance, target in (("sub", min(sizes)), ("up", max(sizes))):
        counts = balanced_counts(groups, balance, generator)
        assert np.bincount(groups, weights=counts).tolist() == [target] * len(sizes)
        for group in range(len(sizes)):
            # "sub" never repeats a row, and "up" never omits one.
            assert np.ptp(counts[groups == group]) <= 1
        assert counts.max() <= 1 if balance == "sub" else counts.min() >= 1


@pytest.mark.parametrize(("balance", "c"), [("sub", 0.3), ("up", 0.01)])
def test_dfr_averages_the_coefficients_of_its_samples(balance: str, c: float) -> None:
    ours = fit(f"dfr-{balance}", TRAIN, 5, draws=3, candidates=[c], tolerance=1e-9)
    generator = np.random.default_rng(5)
    heads = []
    x = StandardScaler().fit_transform(TRAIN.features.double().numpy())
    regression = LogisticRegression(
        C=c, tol=1e-7, max_iter=10000, l1_ratio=1.0, solver="saga", random_state=0
    )
    for _ in range(3):
        counts = balanced_counts(TRAIN.found, balance, generator)
        regression.fit(*(np.repeat(values, counts, 0) for values in (x, TRAIN.labels)))
        heads.append(regression.decision_function(x))
    logits = ours.logits(TRAIN.features)
    np.testing.assert_allclose((logits[:, 1] - logits[:, 0]).numpy(), np.mean(heads, 0), atol=1e-3)
    assert np.ptp(heads, axis=0).max() > 1e-2
    sizes = np.bincount(TRAIN.found)
    of_group = sizes.min() if balance == "sub" else sizes.max()
    assert (ours.chosen["groups"], ours.chosen["rows_per_group"]) == (sizes.tolist(), of_group)


def test_the_adapter_uses_the_authors_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = dict[str, Any]()
    sizes = list[int]()
    sgd = torch.optim.SGD
    entropy = adapters.F.cross_entropy
    monkeypatch.setattr(
        torch.optim,
        "SGD",
        lambda parameters, **how: arguments.update(how) or sgd(parameters, **how),
    )
    monkeypatch.setattr(
        adapters.F, "cross_entropy", lambda x, y: sizes.append(len(y)) or entropy(x, y)
    )
    fit(
        "erm-adapter",
        TRAIN._replace(features=TRAIN.features[:129], labels=TRAIN.labels[:129]),
        epochs=1,
    )
    assert (arguments, sizes) == ({"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-5}, [128, 1])


def test_the_best_epoch_is_kept_and_training_stops_after_patience_runs_out() -> None:
    how: dict[str, Any] = {"rate": 0.01, "hidden": 16}
    best = fit("erm-adapter", TRAIN, epochs=12, **how)
    epoch = best.chosen["epoch"]
    shorter, repeated = (fit("erm-adapter", TRAIN, epochs=epoch - fewer, **how) for fewer in (1, 0))
    assert torch.equal(best.logits(VAL.features), repeated.logits(VAL.features))
    before, after = (VAL.accuracy(predictor.logits(VAL.features)) for predictor in (shorter, best))
    assert (before.worst, before.average) < (after.worst, after.average)
    assert 1 < epoch < 12
    assert fit("erm-adapter", TRAIN, epochs=12, patience=1, **how).chosen["epoch"] <= epoch
    assert fit("erm-adapter", TRAIN, epochs=12, patience=epoch, **how).chosen["epoch"] == epoch
    still = [
        fit("erm-adapter", TRAIN, epochs=n, rate=0.0, hidden=16).chosen["epoch"] for n in (0, 3)
    ]
    assert still == [0, 1], "the earliest epoch on a tie"
    logits = best.logits(VAL.features)
    assert not logits.requires_grad
    torch.testing.assert_close(best.logits(VAL.features[:1]), logits[:1])  # a single row


def data(classes: int, n: int = 90, dim: int = 6) -> tuple[Tensor, NDArray[np.int64]]:
    """Return overlapping classes, in columns with different scales and nonzero means."""
    draw = np.random.default_rng(classes)
    labels = draw.integers(0, classes, n)
    centres = draw.normal(size=(classes, dim))
    scales = np.array([0.02, 0.5, 1, 2, 3, 1.0])
    return torch.from_numpy(
        (centres[labels] + 1.5 * draw.normal(size=(n, dim)) + 1) * scales
    ), labels


def solve(features: Tensor, labels: NDArray[np.int64], classes: int, **options: Any) -> Head:
    weight, bias = logistic_regression(
        features, labels, classes, **({"c": 0.7, "tolerance": 1e-8} | options)
    )
    return Head(weight, bias, lambda x: x @ weight.T + bias)


def assert_same(ours: Head, weight: Any, bias: Any) -> None:
    """Compare up to a bias that all classes share, which has no effect and is not penalised."""
    if len(weight) == 1:  # for two classes, scikit-learn stores the difference
        weight = np.r_[-weight, weight] / 2
        bias = np.r_[-bias, bias] / 2
    shared = (np.asarray(bias) - np.asarray(ours.bias)).mean()
    np.testing.assert_allclose(ours.weight.numpy(), weight, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(ours.bias.numpy() + shared, bias, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("classes", "c"), [(2, 0.01), (2, 50.0), (3, 1.0)])
def test_l2_matches_scikit_learn(classes: int, c: float) -> None:
    x, y = data(classes)
    counts = np.random.default_rng(0).integers(1, 5, len(y))
    theirs = LogisticRegression(C=c, tol=1e-10, max_iter=20000, solver="newton-cg")
    theirs.fit(x.numpy(), y, sample_weight=counts)
    ours = solve(x, y, classes, c=c, counts=counts)
    assert_same(ours, theirs.coef_, theirs.intercept_)
    assert classes > 2 or torch.allclose(ours.logits(x).sum(1), torch.zeros(90).double())


@pytest.mark.parametrize("classes", [2, 3])
def test_the_l1_solution_is_a_minimum(classes: int) -> None:
    """At the optimum, |gradient| = 1 / c for nonzero weights, and at most that for zero weights."""
    x, y = data(classes)
    ours = solve(x, y, classes, c=0.05, penalty="l1")
    p = torch.softmax(x @ ours.weight.T + ours.bias, 1) - torch.nn.functional.one_hot(
        torch.from_numpy(y), classes
    )
    gradient = p.T @ x
    active = ours.weight != 0
    assert 0 < int(active.sum()) < active.numel()
    torch.testing.assert_close(
        gradient[active], -torch.sign(ours.weight[active]) / 0.05, atol=1e-5, rtol=0
    )
    assert bool((gradient[~active].abs() <= 20 + 1e-5).all())
    assert float(p.sum(0).abs().max()) < 1e-6


@pytest.mark.parametrize("penalty", ["l1", "l2"])
@pytest.mark.parametrize("classes", [2, 3])
def test_copies_chunks_and_scaling_do_not_matter(
    classes: int, penalty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data(classes)
    how = {"penalty": penalty}
    counts = np.random.default_rng(1).integers(1, 4, len(y))
    far_x = torch.cat([x, x.flip(1) + 2])
    copies = solve(
        x.repeat_interleave(torch.from_numpy(counts), 0), np.repeat(y, counts), classes, **how
    )
    assert_same(solve(x, y, classes, counts=counts, **how), copies.weight, copies.bias)
    standard = torch.from_numpy(StandardScaler().fit(far_x.numpy()).transform(x.numpy()))
    scaled = solve(standard, y, classes, **how)
    monkeypatch.setattr(classifiers, "CHUNK", 7)
    folded = solve(x, y, classes, like=far_x, **how)
    torch.testing.assert_close(folded.logits(x), scaled.logits(standard), atol=1e-5, rtol=1e-5)
    wide, wide_like = (
        torch.cat([rows, torch.full((len(rows), 1), 3.0).double()], 1) for rows in (x, far_x)
    )
    constant = solve(wide, y, classes, like=wide_like, **how)  # a constant column is not scaled
    torch.testing.assert_close(constant.logits(wide), folded.logits(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("penalty", ["l1", "l2"])
def test_a_lack_of_convergence_is_reported(penalty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(2)
    with pytest.warns(VldebiasWarning, match="did not converge"):
        solve(x, y, 2, tolerance=0.0, penalty=penalty)
