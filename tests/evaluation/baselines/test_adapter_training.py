"""The adapter and its training: formula, early stopping, and that it learns what it is shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from spurious_world import World, accuracy, fit

from vldebias.evaluation.baselines import ERMAdapter
from vldebias.evaluation.baselines.adapters import Adapter, AdapterHead, batches

QUICK = ERMAdapter(epochs=12, learning_rate=0.01, hidden=16)


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
    """Training stopped at the chosen epoch gives the same adapter, and the epochs around it do worse."""
    best = fit(QUICK, train, val=val.split)
    epoch = best.chosen["epoch"]
    around = [fit(ERMAdapter(epochs=epoch + by, learning_rate=0.01, hidden=16), train) for by in (-1, 0, 1)]
    for ours, theirs in zip(best.adapter.parameters(), around[1].adapter.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    found = [accuracy(head(val.features), val) for head in around]
    scores = [(one.worst, one.average) for one in found]
    assert scores[0] < scores[1] >= scores[2]
    assert (best.chosen["val_worst_group"], best.chosen["val_average"]) == scores[1]
    assert 1 < epoch < 12
    assert around[2].chosen == {"epoch": epoch + 1}  # the last, where there is no validation split
    assert not best(train.features[:3]).requires_grad


def test_patience_ends_training(train: World, val: World) -> None:
    steps: list[str] = []
    head = fit(ERMAdapter(epochs=50, patience=2, learning_rate=0.03), train, val=val.split, on_step=steps.append)
    assert len(steps) == head.chosen["epoch"] + 2 < 50
    assert steps[-1] == f"epoch {len(steps)} of 50"
