"""ERM linear probe, WiSE-FT and DFR: their laws, and what balancing mends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from spurious_world import World, accuracy, fit

from vldebias.evaluation.baselines import DFR, ERMLinear, WiSEFT
from vldebias.evaluation.baselines.probes import balanced_counts

QUICK: dict[str, Any] = {"draws": 3, "tolerance": 1e-4}


def test_erm_linear_has_the_probabilities_of_scikit_learn(train: World, test: World) -> None:
    ours = fit(ERMLinear(c=3.0, tolerance=1e-9), train)
    theirs = LogisticRegression(C=3.0, tol=1e-9, max_iter=10000).fit(train.features.double().numpy(), train.labels)
    expected = theirs.predict_proba(test.features.double().numpy())
    np.testing.assert_allclose(torch.softmax(ours(test.features), 1).numpy(), expected, atol=1e-5)
    assert ours.chosen == {"c": 3.0}


@pytest.mark.parametrize("select", ["worst_group", "average"])
def test_the_validation_split_chooses_c(select: Any, train: World, val: World) -> None:
    candidates = (10.0, 0.01, 1000.0)
    chosen = fit(ERMLinear(candidates=candidates, select=select), train, val=val.split)
    alone = {c: fit(ERMLinear(c=c, candidates=()), train) for c in candidates}
    groups = {c: accuracy(head(val.features), val) for c, head in alone.items()}
    key = {"worst_group": lambda c: groups[c].worst, "average": lambda c: groups[c].average}[select]
    best = max(sorted(candidates), key=key)
    assert len({key(c) for c in candidates}) > 1
    assert chosen.chosen == {
        "c": best,
        "val_worst_group": groups[best].worst,
        "val_average": groups[best].average,
    }
    torch.testing.assert_close(chosen.weight, alone[best].weight, atol=0.05, rtol=0.01)


def test_selection_can_prefer_another_c_by_the_average_than_by_the_worst_group(train: World, val: World) -> None:
    """A validation split that is as biased as training: the average likes the shortcut, the worst group does not."""
    biased = np.flatnonzero((val.labels == val.place) | (np.arange(len(val.labels)) % 40 == 0))
    split = (val.features[biased], val.labels[biased], val.groups[biased])
    options: dict[str, Any] = {"candidates": (0.001, 0.01, 1.0, 300.0)}
    kinds: tuple[Any, ...] = ("worst_group", "average")
    picked = {select: fit(ERMLinear(select=select, **options), train, val=split).chosen for select in kinds}
    assert picked["worst_group"]["val_worst_group"] > picked["average"]["val_worst_group"]
    assert picked["worst_group"]["val_average"] < picked["average"]["val_average"]
    without_groups = fit(ERMLinear(select="average", **options), train, val=(*split[:2], None)).chosen
    assert without_groups == {name: picked["average"][name] for name in ("c", "val_average")}


def test_wise_ft_goes_from_zero_shot_to_the_probe(train: World, test: World) -> None:
    probe = fit(ERMLinear(), train)(test.features)
    zero_shot = 100 * test.features @ train.zero_shot.T
    for alpha, scale in ((0.0, 100.0), (0.3, 100.0), (0.3, 50.0), (1.0, 100.0)):
        logits = fit(WiSEFT(alpha=alpha, logit_scale=scale), train)(test.features)
        expected = (1 - alpha) * scale / 100 * zero_shot + alpha * probe
        torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-4)
    assert not torch.equal(zero_shot.argmax(1), probe.argmax(1))


def test_wise_ft_selects_alpha_after_c(train: World, val: World) -> None:
    alphas = (0.0, 0.4, 0.8, 1.0)
    how: dict[str, Any] = {"candidates": (10.0, 100.0), "tolerance": 1e-4}
    chosen = fit(WiSEFT(alphas=alphas, **how), train, val=val.split).chosen
    probe = fit(ERMLinear(**how), train, val=val.split).chosen
    how |= {"c": probe["c"], "candidates": (), "alphas": ()}
    alone = {a: fit(WiSEFT(alpha=a, **how), train, val=val.split).chosen for a in alphas}
    best = max(alone, key=lambda a: (alone[a]["val_worst_group"], alone[a]["val_average"]))
    assert (chosen["c"], chosen["alpha"]) == (probe["c"], best)
    assert chosen["val_worst_group"] >= probe["val_worst_group"]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 99))
def test_balanced_counts_make_all_groups_of_one_size(sizes: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    groups = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    for balance, target in (("sub", min(sizes)), ("up", max(sizes))):
        counts = balanced_counts(groups, balance, generator)  # type: ignore[arg-type]
        assert np.bincount(groups, weights=counts).tolist() == [target] * len(sizes)
        for group in range(len(sizes)):
            assert np.ptp(counts[groups == group]) <= 1  # "sub" takes no row twice, "up" leaves none out
        assert counts.max() <= 1 if balance == "sub" else counts.min() >= 1


def test_balanced_counts_draw_every_row_equally_often() -> None:
    groups = np.array([0] * 4 + [1] * 6)
    generator = np.random.default_rng(0)
    total = sum(balanced_counts(groups, "sub", generator) for _ in range(3000)) / 3000
    np.testing.assert_allclose(total, [1] * 4 + [4 / 6] * 6, atol=0.05)


@pytest.mark.parametrize("balance", ["sub", "up"])
def test_dfr_on_balanced_data_is_the_plain_probe(balance: Any, train: World) -> None:
    rows = np.flatnonzero(balanced_counts(train.groups, "sub", np.random.default_rng(0)))
    even = replace(train, features=train.features[rows], labels=train.labels[rows], place=train.place[rows])
    ours = fit(DFR(balance=balance, c=0.3, tolerance=1e-9), even, groups=even.groups)
    scaler = StandardScaler().fit(even.features.double().numpy())
    theirs = LogisticRegression(C=0.3, l1_ratio=1.0, solver="saga", tol=1e-8, max_iter=100000, random_state=0)
    theirs.fit(scaler.transform(even.features.double().numpy()), even.labels)
    expected = theirs.predict_proba(scaler.transform(train.features.double().numpy()))
    np.testing.assert_allclose(torch.softmax(ours(train.features), 1).numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("balance", ["sub", "up"])
def test_dfr_averages_the_coefficients_of_its_draws(balance: Any, train: World) -> None:
    baseline = DFR(balance=balance, draws=3, penalty="l2", c=1.0, tolerance=1e-9)
    ours = fit(baseline, train, groups=train.groups, seed=5)
    generator, heads = np.random.default_rng(5), []
    scaler = StandardScaler().fit(train.features.double().numpy())
    for _ in range(3):
        counts = balanced_counts(train.groups, balance, generator)
        x = scaler.transform(train.features.double().numpy())
        one = LogisticRegression(C=1.0, tol=1e-9, max_iter=10000).fit(x, train.labels, sample_weight=counts)
        heads.append(one.decision_function(x))
    logits = ours(train.features)
    np.testing.assert_allclose((logits[:, 1] - logits[:, 0]).numpy(), np.mean(heads, 0), atol=1e-3)
    assert np.ptp(heads, axis=0).max() > 1e-2


def test_without_groups_zero_shot_predictions_stand_for_them(train: World) -> None:
    predicted = (train.features @ train.zero_shot.T).argmax(1)
    inferred = fit(DFR(**QUICK), train)
    given_ = fit(DFR(**QUICK), train, groups=predicted)
    torch.testing.assert_close(inferred.weight, given_.weight, rtol=0, atol=0)
    sizes = np.bincount(2 * train.labels + predicted.numpy(), minlength=4)
    assert inferred.chosen["groups"] == sizes.tolist()
    assert inferred.chosen["rows_per_group"] == sizes.min()
    assert not torch.equal(inferred.weight, fit(DFR(**QUICK), train, groups=train.groups).weight)


def test_erm_leans_on_the_shortcut_and_balancing_mends_it(train: World, test: World) -> None:
    erm = accuracy(fit(ERMLinear(), train)(test.features), test)
    assert erm.worst < 0.6
    assert erm.accuracy[0] > 0.95  # landbirds on land, the shortcut at work
    for balance in ("sub", "up"):
        dfr = accuracy(fit(DFR(balance=balance, **QUICK), train, groups=train.groups)(test.features), test)
        assert dfr.worst > erm.worst + 0.15
        assert dfr.gap < erm.gap / 2
        inferred = accuracy(fit(DFR(balance=balance, **QUICK), train)(test.features), test)
        assert inferred.worst > erm.worst + 0.1


def test_three_classes(train: World) -> None:
    draw = np.random.default_rng(0)
    centres = torch.nn.functional.normalize(torch.randn(3, 32), dim=1)
    labels = draw.integers(0, 3, 300)
    features = torch.nn.functional.normalize(centres[labels] + 0.1 * torch.randn(300, 32), dim=1)
    groups = draw.integers(0, 2, 300)
    for baseline in (ERMLinear(), WiSEFT(), DFR(**QUICK), DFR(balance="up", **QUICK)):
        head = baseline.fit(features, labels, centres, groups=groups)
        assert float((head(features).argmax(1).numpy() == labels).mean()) > 0.95
