"""Compare every loss with its equation, written as loops in slow_losses: value, value per pair and
gradients."""

import functools
import itertools
from typing import Any

import pytest
import slow_losses as slow
import torch
from torch import Tensor

from vldebias import losses

N = 6
D = 4
LABELS = torch.tensor([0, 1, 0, 2, 1, 0])
POSITIVES = slow.unit_rows(N * 3, D, seed=9).reshape(N, 3, D).requires_grad_()

LABELLED = {
    "spread": slow.spread,
    "supcon": slow.supcon,
    "gce": slow.gce,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("info_nce", {}),
    *(
        ("cyclip", {"cross_modal": cross, "in_modal": within})
        for cross, within in ((0.25, 0.25), (0.0, 0.7), (0.4, 0.0))
    ),
    *(
        ("rince", {"q": q, "lam": lam})
        for q, lam in ((0.01, 0.01), (0.5, 0.01), (1.0, 0.3), (0.3, 1.0))
    ),
    ("debiased", {"tau_plus": 0.1}),
    ("debiased", {"tau_plus": 0.6}),
    ("debiased", {"tau_plus": 0.6, "floor": 0.3}),
    ("debiased", {"tau_plus": 0.0, "floor": 1.2}),
    ("debiased", {"tau_plus": 0.0, "floor": 1.2, "below_floor": "biased"}),
    ("hard_negative", {"tau_plus": 0.0, "beta": 0.5, "floor": 1.2}),
    ("debiased", {"tau_plus": 0.2, "positives": POSITIVES}),
    ("debiased", {"tau_plus": 0.6, "below_floor": "biased"}),
    ("hard_negative", {"tau_plus": 0.6, "beta": 0.5, "below_floor": "biased"}),
    *(
        ("hard_negative", {"beta": b, "tau_plus": p})
        for b, p in ((0.0, 0.1), (1.0, 0.1), (0.5, 0.7))
    ),
    ("hard_negative", {"beta": 0.7, "tau_plus": 0.2, "positives": POSITIVES}),
    ("hard_negative", {"beta": 0.5, "tau_plus": 0.6, "floor": 0.3}),
    *(("spread", {"alpha": alpha}) for alpha in (0.0, 0.4, 1.0)),
    ("supcon", {}),
    *(
        ("gce", {"q": q, "smoothing": smoothing})
        for q, smoothing in ((0.0, 0.0), (0.7, 0.0), (1.0, 0.0), (0.0, 0.2), (0.5, 0.3))
    ),
]


def _equation(
    name: str, settings: dict[str, Any], within: bool, x: Tensor, y: Tensor, t: Tensor, *_: Tensor
) -> Tensor:
    if name in LABELLED:
        return slow.both(LABELLED[name], x, y, LABELS.tolist(), t, *settings.values(), within)
    if name == "cyclip":
        return slow.cyclip(x, y, t, within, **settings)
    row = slow.info_nce_row
    if name == "rince":
        row = slow.rince_row(**settings)
    elif name != "info_nce":
        floor = settings.get("floor")
        least = torch.exp(-1 / t) if floor is None else torch.tensor(floor, dtype=t.dtype)
        below = settings.get("below_floor", "floor")
        row = slow.hcl_row(settings["tau_plus"], settings.get("beta", 0.0), lambda: least, below)
    return slow.both(slow.of_rows, x, y, row, t, within, settings.get("positives"))


def _inputs(t: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return features in which half of the pairs match, so that g is below its floor for some rows
    and above it for others."""
    x = slow.unit_rows(N, D, seed=1)
    y = slow.unit_rows(N, D, seed=2)
    y[::2] = torch.nn.functional.normalize(3 * x[::2] + y[::2], dim=1)
    return (
        x.requires_grad_(),
        y.requires_grad_(),
        torch.tensor(t, dtype=torch.float64, requires_grad=True),
    )


# The equation is also valid for the largest lam, although it is unsuitable for training.
@pytest.mark.filterwarnings("ignore:rince. lam 1 times")
@pytest.mark.parametrize("t", [0.07, 0.5])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_loss_matches_its_equation(
    name: str, settings: dict[str, Any], within: bool, t: float
) -> None:
    inputs = (*_inputs(t), *(value for value in settings.values() if isinstance(value, Tensor)))
    expected = slow.derived(functools.partial(_equation, name, settings, within), *inputs)
    labels = (LABELS,) if name in LABELLED else ()
    for chunk_size in (None, 4):
        how = {"reduction": "none", "chunk_size": chunk_size, "within_view": within, **settings}
        ours = slow.derived(
            lambda x, y, t, *_, how=how: getattr(losses, name)(x, y, *labels, temperature=t, **how),
            *inputs,
        )
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("bias", [-10.0, 0.5])
def test_the_sigmoid_loss_matches_its_equation(bias: float, within: bool) -> None:
    """The per-pair losses and their mean are computed differently."""

    def rows(x: Tensor, y: Tensor, t: Tensor, b: Tensor) -> Tensor:
        return slow.both(slow.of_rows, x, y, slow.sigmoid_row(b), t, within)

    inputs = (*_inputs(0.3), torch.tensor(bias, dtype=torch.float64, requires_grad=True))
    equations = {"none": rows, "mean": lambda *tensors: rows(*tensors).mean()}
    for reduction, chunk_size in itertools.product(equations, (None, 4)):
        how: dict[str, Any] = {
            "reduction": reduction,
            "chunk_size": chunk_size,
            "within_view": within,
        }
        ours = slow.derived(
            lambda x, y, t, b, how=how: losses.sigmoid(x, y, temperature=t, bias=b, **how), *inputs
        )
        torch.testing.assert_close(
            ours, slow.derived(equations[reduction], *inputs), rtol=1e-8, atol=1e-9
        )


def _spread_on_whole_matrices(x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
    """Return the spread loss with alpha 0.5 and temperature 0.1, from masks of n x 2n scores."""
    same = labels[:, None] == labels
    itself = torch.eye(len(labels), dtype=torch.bool)
    is_positive = torch.cat([same, same & ~itself], dim=1)
    is_negative = torch.cat([~same, ~same], dim=1)
    losses_of_rows = []
    for anchors, others in ((x, y), (y, x)):
        scores = anchors @ torch.cat([others, anchors]).T / 0.1
        pair = scores.diagonal()
        rest = scores.masked_fill(~is_negative, -torch.inf).logsumexp(1)
        terms = torch.log1p(torch.exp(rest[:, None] - scores))
        attract = torch.where(is_positive, terms, 0.0).sum(1) / is_positive.sum(1)
        repel = scores.masked_fill(~is_positive, -torch.inf).logsumexp(1) - pair
        losses_of_rows.append((attract + repel) / 2)
    return torch.stack(losses_of_rows).mean()


@pytest.mark.parametrize(
    "sizes",
    [[400], [1] * 12, [300, 40, 25, 20, 3, 3, 2, 1, 1]],
    ids=["one class", "no class twice", "uneven"],
)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str
)
def test_spread_by_classes_equals_its_formula_on_whole_matrices(
    sizes: list[int], dtype: torch.dtype, tolerance: float
) -> None:
    """Classes are computed in tiles, which end with a class or, if it is large, with a block."""
    n = sum(sizes)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    labels = labels[torch.randperm(n, generator=torch.Generator().manual_seed(0))]
    x, y = (slow.unit_rows(n, 8, seed=seed).to(dtype).requires_grad_() for seed in (1, 2))
    expected = _spread_on_whole_matrices(x, y, labels)
    value = losses.spread(x, y, labels, temperature=0.1)
    torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance)
    gradients = [torch.autograd.grad(one, (x, y)) for one in (value, expected)]
    torch.testing.assert_close(*gradients, rtol=10 * tolerance, atol=tolerance)
