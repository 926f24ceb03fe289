"""The adapter and its training: formula, early stopping, and that it learns what it is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from spurious_world import World, accuracy

from vldebias.evaluation.baselines import ERMAdapter
from vldebias.evaluation.baselines.adapters import Adapter, AdapterHead, batches

QUICK = ERMAdapter(epochs=12, learning_rate=0.01, hidden=16)


def fit(baseline: Any, train: World, **options: Any) -> Any:
    return baseline.fit(train.features, train.labels, train.zero_shot, **options)


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_the_formula(share: float, test: World) -> None:
    adapter = Adapter(32, 8, share, torch.Generator().manual_seed(0)).requires_grad_(False)
    x = test.features[:50].numpy()
    w1, b1, w2, b2 = (p.numpy() for p in adapter.parameters())
    summed = (1 - share) * x + share * (np.maximum(x @ w1.T + b1, 0) @ w2.T + b2)
    unit = summed / np.linalg.norm(summed, axis=1, keepdims=True)
    np.testing.assert_allclose(adapter(test.features[:50]).numpy(), unit, atol=1e-6)
    head = AdapterHead(adapter, test.zero_shot, 30.0)
    np.testing.assert_allclose(head(test.features[:50]).numpy(), 30 * unit @ test.zero_shot.numpy().T, atol=1e-4)


def test_a_small_share_starts_near_zero_shot(train: World) -> None:
    start = AdapterHead(Adapter(32, 8, 1e-6, torch.Generator()), train.zero_shot, 100.0)
    torch.testing.assert_close(start(train.features), 100 * train.features @ train.zero_shot.T, atol=1e-2, rtol=1e-3)


def test_weights_are_drawn_as_those_of_torch() -> None:
    ours = Adapter(64, 200, 1.0, torch.Generator().manual_seed(0))
    theirs = torch.nn.Linear(64, 200)
    for name in ("weight", "bias"):
        one, other = getattr(ours.down, name).detach(), getattr(theirs, name).detach()
        assert float(one.abs().max()) == pytest.approx(float(other.abs().max()), rel=0.05)
        assert float(one.std()) == pytest.approx(float(other.std()), rel=0.1)


def test_batches_hold_every_row_once() -> None:
    rows = torch.arange(100, 123)
    parts = list(batches(rows, 5, torch.Generator().manual_seed(0)))
    assert [len(part) for part in parts] == [5, 5, 5, 5, 3]
    assert sorted(torch.cat(parts).tolist()) == rows.tolist()
    assert torch.cat(parts).tolist() != rows.tolist()


def test_the_best_epoch_is_kept(train: World, val: World) -> None:
    """Training stopped at the chosen epoch gives the same adapter, and no other epoch does better."""
    best = fit(QUICK, train, val=val.split)
    epoch = best.chosen["epoch"]
    stopped = [fit(ERMAdapter(epochs=e, learning_rate=0.01, hidden=16), train) for e in range(1, 13)]
    for ours, theirs in zip(best.adapter.parameters(), stopped[epoch - 1].adapter.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    found = [accuracy(head(val.features), val) for head in stopped]
    scores = [(one.worst, one.average) for one in found]
    assert epoch == 1 + max(range(12), key=lambda i: scores[i])
    assert (best.chosen["val_worst_group"], best.chosen["val_average"]) == scores[epoch - 1]
    assert 1 < epoch < 12


def test_patience_ends_training(train: World, val: World) -> None:
    steps: list[str] = []
    head = fit(ERMAdapter(epochs=50, patience=2, learning_rate=0.03), train, val=val.split, on_step=steps.append)
    assert len(steps) == head.chosen["epoch"] + 2 < 50
    assert steps[-1] == f"epoch {len(steps)} of 50"


def test_without_validation_the_last_epoch_is_kept(train: World) -> None:
    steps: list[str] = []
    assert fit(QUICK, train, on_step=steps.append).chosen == {"epoch": 12}
    assert len(steps) == 12


def test_it_learns_the_training_rows(train: World) -> None:
    before = fit(ERMAdapter(epochs=1, learning_rate=1e-12), train)
    after = fit(ERMAdapter(epochs=30, learning_rate=3e-3), train)
    losses = [
        float(torch.nn.functional.cross_entropy(head(train.features), torch.from_numpy(train.labels)))
        for head in (before, after)
    ]
    assert losses[1] < 0.3 * losses[0]
    assert accuracy(after(train.features), train).average > 0.95


def test_the_erm_adapter_leans_on_the_shortcut(train: World, test: World) -> None:
    found = accuracy(fit(ERMAdapter(epochs=40), train)(test.features), test)
    assert found.worst < 0.65
    assert found.accuracy[0] > 0.95


def test_the_predictor_carries_no_gradients(train: World) -> None:
    head = fit(QUICK, train)
    assert not head(train.features[:3]).requires_grad
    assert not any(p.requires_grad for p in head.adapter.parameters())
