"""Group DRO: the value of the game, what it mends, what it leaves alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from spurious_world import World, accuracy

from vldebias.diagnostics import hidden_groups
from vldebias.errors import InvalidInputError
from vldebias.evaluation.baselines import DFR, ERMLinear
from vldebias.evaluation.baselines.group_dro import GroupDRO


def group_losses(head: Any, train: World) -> np.ndarray:
    each = F.cross_entropy(head(train.features).double(), torch.from_numpy(train.labels), reduction="none").numpy()
    return np.array([each[train.groups == g].mean() for g in range(4)])


def test_the_worst_training_loss_falls_and_losses_are_evened(train: World, test: World) -> None:
    options: dict[str, Any] = {"groups": train.place}
    plain = ERMLinear(c=0.01, standardise=True, candidates=()).fit(
        train.features, train.labels, train.zero_shot, **options
    )
    robust = GroupDRO(c=0.01, rounds=30).fit(train.features, train.labels, train.zero_shot, **options)
    before, after = group_losses(plain, train), group_losses(robust, train)
    assert after.max() < 0.8 * before.max()
    assert after.max() - after.mean() < (before.max() - before.mean()) / 4
    assert robust.chosen["worst training loss"] == pytest.approx(after.max(), rel=1e-4)
    assert accuracy(robust(test.features), test).worst > accuracy(plain(test.features), test).worst + 0.1


def test_no_other_weights_give_a_lower_worst_loss(train: World) -> None:
    """The least worst loss is the value of the game: heads that climb from it in any direction are worse."""
    robust = GroupDRO(c=0.01, rounds=30).fit(train.features, train.labels, train.zero_shot, groups=train.place)
    scale, labels = train.features.double().std(0), torch.from_numpy(train.labels)

    def objective(weight: torch.Tensor, bias: torch.Tensor) -> float:
        each = F.cross_entropy(train.features.double() @ weight.T + bias, labels, reduction="none")
        worst = max(float(each[torch.from_numpy(train.groups == g)].mean()) for g in range(4))
        penalty = float(((weight[1] - weight[0]) * scale).square().sum()) / (2 * 0.01 * len(train.labels))
        return worst + penalty

    here = objective(robust.weight, robust.bias)
    generator = torch.Generator().manual_seed(0)
    for size in (0.03, 0.3):
        for _ in range(20):
            moved = robust.weight + size * torch.randn(robust.weight.shape, generator=generator, dtype=torch.float64)
            assert objective(moved, robust.bias) > here - 0.01


def test_the_validation_split_chooses_c(train: World, val: World) -> None:
    found = GroupDRO(rounds=2).fit(train.features, train.labels, train.zero_shot, groups=train.place, val=val.split)
    assert found.chosen["c"] in GroupDRO().candidates
    assert found.chosen["val_worst_group"] == pytest.approx(accuracy(found(val.features), val).worst)


@pytest.mark.parametrize(
    ("option", "message"), [({"rounds": 0}, r"rounds: expected a number in \[1, inf\)"), ({"step": 0.0}, "step")]
)
def test_settings_that_mean_nothing_are_refused(option: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        GroupDRO(**option)


@pytest.mark.parametrize("baseline", [GroupDRO(c=0.01, rounds=15), DFR(draws=3)], ids=["group-dro", "dfr-sub"])
def test_hidden_groups_stand_in_for_groups_that_nobody_labelled(baseline: Any, train: World, test: World) -> None:
    """Where the hidden attribute is the main direction of a class, its clusters do nearly what the truth does."""
    found = hidden_groups(train.features, train.labels, "clusters")
    assert found.f1(train.place)["mean"] > 0.9
    worst = {}
    for name, groups in {"found": found.groups.codes, "true": train.place}.items():
        head = baseline.fit(train.features, train.labels, train.zero_shot, groups=groups)
        worst[name] = accuracy(head(test.features), test).worst
    plain = ERMLinear(c=30.0, candidates=()).fit(train.features, train.labels, train.zero_shot)
    assert worst["found"] > accuracy(plain(test.features), test).worst + 0.1
    assert worst["found"] == pytest.approx(worst["true"], abs=0.05)
