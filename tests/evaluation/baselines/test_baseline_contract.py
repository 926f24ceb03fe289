"""What holds for every baseline: determinism, chance where there is nothing to learn, dtypes, errors by their text."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
import torch
from spurious_world import World, accuracy, fit, world

from vldebias.errors import InvalidInputError
from vldebias.evaluation.baselines import (
    BASELINES,
    DFR,
    Baseline,
    ContrastiveAdapter,
    ERMAdapter,
    ERMLinear,
    GroupDRO,
    WiSEFT,
    get_baseline,
)


def quick(baseline: Baseline) -> Baseline:
    """The same with fewer epochs or draws, of fewer candidates and solved less exactly."""
    if isinstance(baseline, ERMAdapter | ContrastiveAdapter):
        return replace(baseline, epochs=4)
    fewer = {"rounds": 2} if isinstance(baseline, GroupDRO) else {"draws": 2} if isinstance(baseline, DFR) else {}
    return replace(baseline, candidates=baseline.candidates[:2], tolerance=1e-4, **fewer)  # type: ignore[attr-defined]


every = pytest.mark.parametrize("baseline", [quick(b) for b in BASELINES.values()], ids=list(BASELINES))


def test_the_rows_of_the_table_are_there() -> None:
    titles = {name: baseline.title for name, baseline in BASELINES.items()}
    assert titles == {
        "erm-linear": "ERM Linear",
        "erm-adapter": "ERM Adapter",
        "wise-ft": "WiSE-FT",
        "dfr-sub": "DFR (Sub)",
        "dfr-up": "DFR (Up)",
        "group-dro": "Group DRO",
        "contrastive-adapter": "CA",
    }
    assert all(baseline.name == name and baseline.uses_labels for name, baseline in BASELINES.items())
    assert get_baseline("dfr-up") is BASELINES["dfr-up"]
    with pytest.raises(InvalidInputError, match=r"expected one of erm-linear, .*contrastive-adapter, got 'erm'"):
        get_baseline("erm")


@pytest.fixture(scope="module")
def fitted(train: World, val: World) -> dict[str, tuple[Any, Any, list[str]]]:
    """Of each baseline the predictor without a validation split, the one with it, and what was told on its way."""
    found: dict[str, tuple[Any, Any, list[str]]] = {}
    for one in map(quick, BASELINES.values()):
        told: list[str] = []
        found[one.name] = fit(one, train), fit(one, train, val=val.split, on_step=told.append), told
    return found


@every
def test_a_seed_gives_one_predictor_and_leaves_the_global_generators_alone(
    baseline: Baseline, train: World, fitted: Any
) -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    with torch.inference_mode():  # it trains in a context without gradients too
        own = World(train.features + 0, train.labels, train.place, train.zero_shot + 0)
        again = fit(baseline, own)(train.features)
    assert torch.equal(fitted[baseline.name][0](train.features), again)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    other = fit(baseline, train, seed=1)(train.features)
    assert torch.equal(other, again) == isinstance(baseline, ERMLinear | GroupDRO)  # which draw nothing


@every
def test_permuted_labels_are_chance(baseline: Baseline, test: World) -> None:
    """Nothing but noise can be learnt, and a validation split of the same kind does not let it leak either."""
    train = world(1200, seed=7)
    labels = np.random.default_rng(0).permutation(train.labels)
    head = baseline.fit(train.features, labels, train.zero_shot)
    right = float((head(test.features).argmax(1).numpy() == test.labels).mean())
    zero_shot = float(((test.features @ train.zero_shot.T).argmax(1).numpy() == test.labels).mean())
    if isinstance(baseline, WiSEFT):
        assert right == pytest.approx(zero_shot, abs=0.06)  # half of it is zero-shot, which read no label
    else:
        assert right == pytest.approx(0.5, abs=0.12)
        assert zero_shot > 0.62


@every
def test_labels_help(baseline: Baseline, train: World, test: World) -> None:
    """Before it is asked about the worst group, each is asked whether it learns the classes."""
    longer = replace(baseline, epochs=30) if isinstance(baseline, ERMAdapter | ContrastiveAdapter) else baseline
    found = accuracy(fit(longer, train)(test.features), test)
    assert found.average > 0.72 if not isinstance(baseline, WiSEFT) else found.average > 0.65


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_every_precision(baseline: Baseline, dtype: torch.dtype, train: World, val: World, fitted: Any) -> None:
    split = (val.features.to(dtype), val.labels, val.groups)
    head = baseline.fit(train.features.to(dtype), train.labels, train.zero_shot.to(dtype), val=split)
    logits = head(val.features.to(dtype))
    assert logits.shape == (len(val.labels), 2)
    assert logits.dtype in (torch.float32, torch.float64)
    expected = fitted[baseline.name][1](val.features).argmax(1)
    assert float((logits.argmax(1) == expected).float().mean()) > 0.85


@every
def test_tensors_are_read_as_arrays_and_attributes_as_groups_and_none_is_changed(
    baseline: Baseline, train: World, val: World
) -> None:
    features, labels, groups = val.split
    given = [train.features, torch.from_numpy(train.labels), train.zero_shot, features]
    before = [one.clone() for one in given]
    split = (features, torch.from_numpy(labels), torch.from_numpy(groups))
    tensors = baseline.fit(*given[:3], groups=torch.from_numpy(train.place), val=split)
    assert all(map(torch.equal, given, before))
    arrays = fit(baseline, train, groups=train.groups, val=val.split)
    assert torch.equal(arrays(train.features), tensors(train.features))


@every
def test_choices_fit_into_json(baseline: Baseline, val: World, fitted: Any) -> None:
    plain, head, told = fitted[baseline.name]
    assert json.loads(json.dumps(head.chosen)) == head.chosen
    assert told
    assert {"val_worst_group", "val_average"} <= set(head.chosen)
    found = accuracy(head(val.features), val)
    assert (head.chosen["val_worst_group"], head.chosen["val_average"]) == (found.worst, found.average)
    assert plain(val.features[:0]).shape == (0, 2)


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        ERMLinear().c = 2.0  # type: ignore[misc]


BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"train_features": np.eye(3)}, "train features: expected a floating point tensor .*got ndarray"),
    ({"train_features": torch.ones(6, dtype=torch.int64)}, "train features: expected a floating point.*int64"),
    ({"train_features": torch.ones(0, 4)}, r"train features: expected \(n, 4\) with n > 0, got \(0, 4\)"),
    ({"train_features": torch.eye(6)}, r"train features: expected \(n, 4\) with n > 0, got \(6, 6\)"),
    ({"train_features": 3 * torch.eye(4)[[0, 1, 2, 3, 0, 1]]}, "train features: expected rows of norm 1, got norms"),
    ({"train_features": torch.full((6, 4), torch.nan)}, "train features: expected rows of norm 1.*nan"),
    ({"zero_shot": torch.ones(2, 4)}, "zero_shot: expected rows of norm 1"),
    ({"labels": [0, 1, 2, 0, 1, 0]}, r"train labels: expected classes 0 .. 1, one per row of zero_shot, got \[2\]"),
    ({"labels": [0, 1, -1, 0, 1, 0]}, r"train labels: .* got \[-1\]; leave out the rows whose class is unknown"),
    ({"labels": [0, 1, 1]}, r"train labels: expected 6 integers, one per row, got \(3,\)"),
    ({"labels": [0.5] * 6}, "train labels: expected 6 integers.*float64"),
    ({"labels": [1] * 6}, r"train labels: expected rows of every class .* got \[0, 6\] rows"),
    ({"zero_shot": torch.eye(4)[:1], "labels": [0] * 6}, r"at least two classes, got \[6\] rows"),
    ({"groups": [0, 1, -1, 0, 1, 0]}, r"train groups: expected integers >= 0, got \[-1\]; leave out"),
    ({"groups": [0, 1]}, r"train groups: expected 6 integers, one per row, got \(2,\)"),
    ({"val": torch.eye(4)}, "val: expected \\(features, labels, groups\\), with None for groups"),
    ({"val": (torch.eye(4), [0, 1, 1, 0], None)}, 'val groups: expected groups.*select="average"'),
    ({"val": (torch.eye(4), [0, 1, 1, 5], [0] * 4)}, r"val labels: expected classes 0 .. 1.*got \[5\]"),
    ({"val": (torch.eye(3), [0, 1, 1], [0] * 3)}, r"val features: expected \(n, 4\)"),
]


@pytest.mark.parametrize(("changed", "text"), BAD_ARGUMENTS)
def test_bad_arguments(changed: dict[str, Any], text: str) -> None:
    arguments: dict[str, Any] = {
        "train_features": torch.eye(4)[[0, 1, 2, 3, 0, 1]],
        "labels": [0, 1, 0, 1, 0, 1],
        "zero_shot": torch.eye(4)[:2],
    }
    ERMLinear().fit(**arguments)
    with pytest.raises(InvalidInputError, match=text):
        ERMLinear().fit(**(arguments | changed))


@pytest.mark.parametrize("name", ["dfr-sub", "dfr-up", "contrastive-adapter"])
def test_groups_that_cannot_be_balanced(name: str, train: World) -> None:
    baseline = quick(BASELINES[name])
    with pytest.raises(InvalidInputError, match=r"every class in the same number of groups.*occur in \[1, 1\] groups"):
        fit(baseline, train, groups=train.labels)
    no_land = np.flatnonzero(train.groups != 2)  # no waterbird on land is left
    some = replace(train, features=train.features[no_land], labels=train.labels[no_land], place=train.place[no_land])
    with pytest.raises(InvalidInputError, match=r"occur in \[2, 1\] groups. A group without a row\?"):
        fit(baseline, some, groups=some.place)
    fit(ERMLinear(), some, groups=some.place)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: ERMLinear(select="worst"), "select: expected one of 'worst_group', 'average', got 'worst'"),
        (lambda: ERMLinear(c=0.0), r"c: expected a number in \(0, inf\), got 0.0"),
        (lambda: ERMLinear(candidates=(1.0, -1.0)), r"candidates: expected a number in \(0, inf\), got -1.0"),
        (lambda: ERMLinear(penalty="l3"), "penalty: expected one of 'l1', 'l2', got 'l3'"),
        (lambda: ERMLinear(tolerance=0.0), r"tolerance: expected a number in \(0, 1\)"),
        (lambda: WiSEFT(alpha=1.5), r"alpha: expected a number in \[0, 1\], got 1.5"),
        (lambda: WiSEFT(alphas=(0.0, -0.1)), r"alphas: expected a number in \[0, 1\], got -0.1"),
        (lambda: WiSEFT(logit_scale=0.0), "logit_scale: expected a number"),
        (lambda: DFR(balance="both"), "balance: expected one of 'sub', 'up', got 'both'"),
        (lambda: DFR(draws=0), r"draws: expected a number in \[1, inf\), got 0"),
        (lambda: ERMAdapter(hidden=0), r"hidden: expected a number in \[1, inf\), got 0"),
        (lambda: ERMAdapter(share=0.0), r"share: expected a number in \(0, 1\], got 0.0"),
        (lambda: ERMAdapter(momentum=1.0), r"momentum: expected a number in \[0, 1\)"),
        (lambda: ERMAdapter(weight_decay=-1.0), r"weight_decay: expected a number in \[0, inf\)"),
        (lambda: ContrastiveAdapter(temperature=0.0), r"temperature: expected a number in \(0, inf\), got 0.0"),
        (lambda: ContrastiveAdapter(negatives=0), r"negatives: expected a number in \[1, inf\), got 0"),
    ],
)
def test_bad_settings(build: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        build()
