"""Negatives of a queue: those of a larger batch, as constants; and what the queue holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slow_losses import unit_rows
from torch import Tensor

from tests.refusals import refused
from vldebias import losses

N, Q, D = 5, 4, 3
X, Y = unit_rows(N, D, seed=1), unit_rows(N, D, seed=2)
QUEUE = unit_rows(Q, D, seed=3), unit_rows(Q, D, seed=4)
QUEUED: dict[str, tuple[Any, dict[str, Any]]] = {
    "info_nce": (losses.info_nce, {}),
    "rince": (losses.rince, {"q": 0.4, "lam": 0.05}),
    "rince-symmetric": (losses.rince, {"q": 1.0}),
    "dcl": (losses.debiased_contrastive, {"tau_plus": 0.1}),
    "dcl-uncorrected": (losses.debiased_contrastive, {"tau_plus": 0.5, "below_floor": "uncorrected"}),
    "hcl": (losses.hard_negative_contrastive, {"beta": 2.0}),
    "hcl-jsd": (losses.hard_negative_contrastive, {"beta": 1.0, "form": "jsd"}),
    "sigmoid": (losses.sigmoid, {"bias": -2.0}),
}
cases = pytest.mark.parametrize("name", QUEUED)
within = pytest.mark.parametrize("within_view", [False, True])


def value(name: str, x: Tensor, y: Tensor, **options: Any) -> Tensor:
    function, settings = QUEUED[name]
    found: Tensor = function(x, y, temperature=0.2, reduction="none", **settings, **options)
    return found


@cases
@within
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_queue_is_the_loss_over_the_joined_negatives(name: str, within_view: bool, chunk_size: int | None) -> None:
    """The own rows of the joint batch have the same positives, and the other rows and the queue as negatives."""
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    queued = value(name, x, y, queue=QUEUE, within_view=within_view, chunk_size=chunk_size)
    joint = value(name, torch.cat([x, QUEUE[0]]), torch.cat([y, QUEUE[1]]), within_view=within_view)[:N]
    torch.testing.assert_close(queued, joint)
    weights = torch.linspace(0, 1, N, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((each * weights).sum(), (x, y)) for each in (queued, joint))
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(queued, value(name, x, y, within_view=within_view)), "it does something"


@cases
def test_an_empty_queue_is_the_plain_loss(name: str) -> None:
    queue = losses.NegativeQueue(Q, D).negatives()
    assert torch.equal(value(name, X, Y, queue=queue), value(name, X, Y))
    assert torch.equal(value(name, X, Y, queue=None), value(name, X, Y))


def test_further_positives_go_with_a_queue() -> None:
    positives = torch.nn.functional.normalize(torch.randn(N + Q, 2, D, dtype=torch.float64), dim=2)
    joint = losses.debiased_contrastive(
        torch.cat([X, QUEUE[0]]), torch.cat([Y, QUEUE[1]]), positives, temperature=0.2, reduction="none"
    )
    queued = losses.debiased_contrastive(X, Y, positives[:N], temperature=0.2, reduction="none", queue=QUEUE)
    torch.testing.assert_close(queued, joint[:N])


def test_a_queue_gets_no_gradient() -> None:
    queue = tuple(rows.clone().requires_grad_() for rows in QUEUE)
    x = X.clone().requires_grad_()
    losses.rince(x, Y, temperature=0.2, queue=queue).backward()  # type: ignore[arg-type]
    assert x.grad is not None
    assert [rows.grad for rows in queue] == [None, None]


@refused(
    (
        lambda: losses.info_nce(X, Y, temperature=0.2, queue=(QUEUE[0][:, :2], QUEUE[1])),
        r"queue: expected images and texts \(Q, 3\), got \(4, 2\)",
    ),
    (
        lambda: losses.spread(X, Y, torch.arange(N), temperature=0.2, queue=QUEUE),
        "queue: this loss asks for the labels of its rows",
    ),
    (
        lambda: losses.NegativeQueue(Q, D).push(X, QUEUE[0]),
        r"queue: expected images and texts \(n, 3\), got \(5, 3\) and \(4, 3\)",
    ),
    (lambda: losses.NegativeQueue(0, D), "rows: expected"),
)
def test_queues_that_do_not_fit(call: Callable[[], object]) -> None:
    call()


@given(st.integers(1, 9), st.lists(st.integers(1, 12), max_size=6))
def test_it_holds_the_newest(rows: int, sizes: list[int]) -> None:
    queue = losses.NegativeQueue(rows, 1)
    numbers = iter(range(1000))
    pushed: list[float] = []
    for size in sizes:
        batch = torch.tensor([[float(next(numbers))] for _ in range(size)])
        queue.push(batch, -batch)
        pushed += batch.flatten().tolist()
        images, texts = queue.negatives()
        assert sorted(images.flatten().tolist()) == pushed[-rows:]
        assert torch.equal(texts, -images), "pairs stay together"
    again = losses.NegativeQueue(rows, 1)
    again.load_state_dict(queue.state_dict())
    assert torch.equal(again.negatives()[0], queue.negatives()[0])


def test_distillation_is_the_divergence_and_none_of_a_model_from_itself() -> None:
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    frozen = unit_rows(N, 7, seed=8), unit_rows(N, 7, seed=9)
    found = losses.distillation(x, y, *frozen, temperature=0.3)
    by_hand = 0.0
    for a, b, u, v in ((X, Y, *frozen), (Y, X, *frozen[::-1])):
        for i in range(N):
            q, p = ((rows[0][i] @ rows[1].T / 0.3).exp() for rows in ((a, b), (u, v)))
            q, p = q / q.sum(), p / p.sum()
            by_hand += float((p * (p / q).log()).sum()) / (2 * N)
    assert float(found.detach()) == pytest.approx(by_hand)
    still = losses.distillation(x, y, X, Y, temperature=0.3)
    assert float(still.detach()) == pytest.approx(0, abs=1e-12)
    for gradient in torch.autograd.grad(still, (x, y)):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)
