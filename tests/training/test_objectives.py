"""Losses by name: each is the function of its name, moves along its schedule, and refuses what it does not read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.losses import (
    GlobalContrastiveLoss,
    debiased_contrastive,
    hard_negative_contrastive,
    info_nce,
    rince,
    sigmoid,
    spread,
)
from vldebias.training.batch import Batch
from vldebias.training.objectives import build_objective
from vldebias.training.settings import LossSettings

N, T = 8, 0.2


def features(seed: int) -> Tensor:
    return F.normalize(torch.randn(N, 5, generator=torch.Generator().manual_seed(seed)), dim=1)


X, Y = features(0), features(1)
BATCH = Batch(images=torch.zeros(N, 3, 1, 1), index=torch.arange(N), labels=torch.arange(N) % 3)
FUNCTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "info_nce": ({}, lambda: info_nce(X, Y, temperature=T)),
    "rince": ({"q": 0.3, "lam": 0.1}, lambda: rince(X, Y, temperature=T, q=0.3, lam=0.1)),
    "debiased": ({"tau_plus": 0.2}, lambda: debiased_contrastive(X, Y, temperature=T, tau_plus=0.2)),
    "hard_negative": (
        {"tau_plus": 0.2, "beta": 0.5, "form": "jsd"},
        lambda: hard_negative_contrastive(X, Y, temperature=T, tau_plus=0.2, beta=0.5, form="jsd"),
    ),
    "sigmoid": ({}, lambda: sigmoid(X, Y, temperature=T, bias=-10.0)),
    "spread": ({"spread_alpha": 0.3}, lambda: spread(X, Y, BATCH.labels, temperature=T, alpha=0.3, within_view=False)),
    "sogclr": ({}, lambda: GlobalContrastiveLoss(N, temperature=T)(X, Y, BATCH.index)),
    "nuclr": ({"zeta_init": 0.1}, lambda: GlobalContrastiveLoss(N, temperature=T, zeta_init=0.1)(X, Y, BATCH.index)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_is_the_function_of_its_name(name: str) -> None:
    given, function = FUNCTIONS[name]
    objective = build_objective(LossSettings(loss=name, temperature=T, **given), temperature=9.0, items=N)
    torch.testing.assert_close(objective(X, Y, BATCH), function())
    assert objective.temperature == pytest.approx(T)


def test_two_views_count_the_own_view_among_the_negatives() -> None:
    objective = build_objective(LossSettings(loss="info_nce"), temperature=T, items=N, two_views=True)
    torch.testing.assert_close(objective(X, Y, BATCH), info_nce(X, Y, temperature=T, within_view=True))


def test_the_model_s_temperature_is_taken_where_none_is_given_and_may_be_learned() -> None:
    objective = build_objective(LossSettings(loss="info_nce", learn_temperature=True), temperature=T, items=N)
    objective(X, Y, BATCH).backward()
    (parameter,) = objective.parameters()
    assert parameter.grad is not None
    assert parameter.grad != 0
    assert objective.temperature == pytest.approx(T)


def test_schedules_move_the_loss() -> None:
    warmed = build_objective(LossSettings(loss="rince", q=0.4, q_start=0.01), temperature=T, items=N)
    seen = []
    for step in range(4):
        warmed.at(step, 4)
        seen.append(warmed.loss.q)
    assert seen == pytest.approx([0.01, 0.14, 0.27, 0.4])
    annealed = build_objective(LossSettings(loss="hard_negative", beta=2.0, beta_changes=2), temperature=T, items=N)
    annealed.at(3, 4)
    assert annealed.loss.beta == 1.0
    popular = build_objective(LossSettings(loss="nuclr", popularity_lr=0.5), temperature=T, items=N)
    popular.at(0, 10)
    assert popular.loss.popularity_lr == 0.0
    popular.at(2, 10)
    assert popular.loss.popularity_lr == 0.5


def test_sogclr_never_moves_its_popularity() -> None:
    objective = build_objective(LossSettings(loss="sogclr"), temperature=T, items=N)
    objective.at(9, 10)
    objective(X.clone().requires_grad_(), Y, BATCH)
    assert not objective.loss.zeta.any()


def test_settings_that_a_loss_does_not_read_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"info_nce does not read lam, q; it reads .*temperature"):
        build_objective(LossSettings(loss="info_nce", q=0.3, lam=0.1), temperature=T, items=N)


def test_a_state_per_item_needs_to_know_the_items() -> None:
    with pytest.raises(InvalidInputError, match="which a stream does not say"):
        build_objective(LossSettings(loss="sogclr"), temperature=T, items=None)


def test_a_loss_that_reads_labels_says_so() -> None:
    objective = build_objective(LossSettings(loss="spread"), temperature=T, items=N)
    with pytest.raises(InvalidInputError, match="spread: reads the labels of every pair"):
        objective(X, Y, Batch(images=BATCH.images))


def test_the_other_settings_reach_the_loss() -> None:
    """Those that no value at one step shows: memory of the state, rows held at once, processes."""
    for loss in ("sogclr", "nuclr"):
        made = build_objective(LossSettings(loss=loss, gamma=0.3), temperature=T, items=N)
        assert made.loss.gamma == 0.3
    split = build_objective(LossSettings(loss="info_nce", chunk_size=3), temperature=T, items=N, gather=True)
    assert (split.loss.chunk_size, split.loss.gather) == (3, True)
    assert not build_objective(LossSettings(loss="info_nce"), temperature=T, items=N).loss.gather
    popular = build_objective(
        LossSettings(loss="nuclr", popularity_lr=0.25, popularity_start=0.6), temperature=T, items=N
    )
    seen = []
    for step in range(5):
        popular.at(step, 5)
        seen.append(popular.loss.popularity_lr)
    assert seen == [0.0, 0.0, 0.0, 0.25, 0.25]


def test_the_state_of_a_global_loss_has_the_memory_that_was_asked_for() -> None:
    slow, fast = (build_objective(LossSettings(loss="sogclr", gamma=g), temperature=T, items=N) for g in (0.1, 1.0))
    for made in (slow, fast):
        made(X.clone().requires_grad_(), Y, BATCH)
        made(Y.clone().requires_grad_(), Y, BATCH)  # the second estimate, which gamma weighs
    assert not torch.allclose(slow.loss.log_u, fast.loss.log_u)
