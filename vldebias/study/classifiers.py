"""Train classifiers on labelled images: the rows of Table 7.2 to compare with methods that need no
labels.

Groups to balance are class x zero-shot prediction, as in Zhang and Ré (2022), who assume that
nobody knows the groups.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, need, warn
from vldebias.measure.classification import group_accuracy

Codes = NDArray[np.int64]
Logits = Callable[[Tensor], Tensor]  # of features (m, d): (m, k)
Predictor = tuple[
    Logits, dict[str, Any]
]  # a fitted classifier, and the settings that were selected
Head = tuple[
    Tensor, Tensor
]  # weight (k, d) and bias (k,) of a linear one in float64; logits of two classes sum to 0
CHUNK = 16384  # rows per product


@dataclass(frozen=True, eq=False)
class Examples:
    """Hold a training split, a validation split and the zero-shot classifier; they and the seed fix
    the predictor.

    val: features, labels and groups to select settings and epochs on, by the worst group, ties
    broken by the average, as Zhang and Ré (2022) do. Widths that differ and a class without rows
    are refused.
    """

    features: Tensor  # (n, d) float32, of norm 1
    labels: Codes  # (n,) classes 0 .. k - 1, all of which occur
    zero_shot: Tensor  # (k, d) of norm 1
    val: tuple[Tensor, Codes, Codes]
    seed: int = 0  # of every random draw; the global generators are neither read nor moved

    def __post_init__(self) -> None:
        widths = [x.shape[1] for x in (self.features, self.val[0], self.zero_shot)]
        if len(set(widths)) > 1:
            raise InvalidInputError(
                f"train, val and texts: got the widths {widths}; expected all from one model"
            )
        rows = np.bincount(self.labels, minlength=len(self.zero_shot))
        if not rows.all():
            raise InvalidInputError(
                f"train labels: expected rows of every class, got {rows.tolist()}"
            )

    @torch.no_grad()
    def best(self, heads: Sequence[Logits]) -> tuple[int, dict[str, float]]:
        """Return which classifier the validation split selects, the first on a tie, and its
        scores."""
        features, labels, groups = self.val
        found = [group_accuracy(head(features).argmax(1), labels, groups) for head in heads]
        i = max(range(len(heads)), key=lambda i: (found[i].worst, found[i].average))
        return i, {"val_worst_group": found[i].worst, "val_average": found[i].average}


@torch.inference_mode(False)
@torch.enable_grad()
def logistic_regression(
    features: Tensor,
    labels: Codes,
    n_classes: int,
    *,
    c: float,
    tolerance: float,
    penalty: Literal["l1", "l2"] = "l2",
    like: Tensor | None = None,
    counts: NDArray[Any] | None = None,
) -> Head:
    """Minimise R(W) + c sum_i counts_i CE(W x_i + b, y_i), the objective of scikit-learn's
    LogisticRegression.

    R is |W|_2^2 / 2 or |W|_1; the bias is not penalised. Two classes have one weight vector, the
    difference of the logits; k > 2 have a softmax. L-BFGS-B in float64; under "l1", W = U - V with
    U, V >= 0, which is smooth.

    features: (n, d), read in chunks. labels: (n,) classes 0 .. n_classes - 1. counts: (n,) how
    often each row is there.
    like: rows (m, d): the penalty is on the coefficients of features standardised by their means
    and deviations.
    tolerance: largest entry of the gradient at which it stops; a large one after 5,000 iterations
    is warned of.
    """
    rows, dim = (1 if n_classes == 2 else n_classes), features.shape[1]
    size, split = rows * dim, penalty == "l1"
    times = torch.ones(len(labels)) if counts is None else torch.from_numpy(counts)
    kept, total = torch.nonzero(times)[:, 0], float(times.sum())
    data = [
        of.detach()[kept].split(CHUNK)
        for of in (features, torch.from_numpy(labels), times.double())
    ]
    scale, shift = torch.ones(dim).double(), torch.zeros(dim).double()
    if like is not None:
        deviation, shift = (of.double() for of in torch.std_mean(like.detach(), 0, correction=0))
        scale = torch.where(deviation > 1e-8, deviation, scale)  # a constant column keeps its scale

    def unpacked(flat: Tensor) -> Head:
        """Coefficients of features that are not scaled, from W and b, or U, V and b under "l1"."""
        weight = (flat[:size] - flat[size : 2 * size] if split else flat[:size]).reshape(
            rows, dim
        ) / scale
        return weight, flat[-rows:] - weight @ shift

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Mean loss plus penalty and the gradient, a chunk of rows at a time."""
        leaf = torch.from_numpy(flat.copy()).requires_grad_()
        whole = 1 / (c * total) * (leaf[:-rows].sum() if split else leaf[:-rows].square().sum() / 2)
        whole.backward()
        for x, target, weights in zip(*data, strict=True):
            logits = F.pad(
                _logits(unpacked(leaf), x.double()), (n_classes - rows, 0)
            )  # of two classes one is 0
            loss = (F.cross_entropy(logits, target, reduction="none") * weights).sum() / total
            loss.backward()
            whole = whole.detach() + loss.detach()
        assert leaf.grad is not None
        return float(whole), leaf.grad.numpy()

    begin = np.zeros((2 * size if split else size) + rows)
    least = np.where(split & (np.arange(len(begin)) < 2 * size), 0.0, -np.inf)
    limits = {"maxiter": 5000, "maxfun": 10000, "maxcor": 20, "gtol": tolerance, "ftol": 0.0}
    solver = need("scipy.optimize")
    how = {"method": "L-BFGS-B", "bounds": solver.Bounds(least, np.inf), "options": limits}
    solved = solver.minimize(objective, begin, jac=True, **how)
    left = float(
        np.abs(solved.x - np.maximum(solved.x - solved.jac, least)).max()
    )  # of the projected gradient
    if left > 10 * tolerance:
        said = (
            f"logistic regression (c = {c:g}): did not converge in {solved.nit} iterations"
            f" (gradient {left:.1e})"
        )
        warn(f"{said}; choose a smaller c or a larger tolerance")
    weight, bias = unpacked(torch.from_numpy(solved.x))
    halves = torch.tensor([-0.5, 0.5], dtype=torch.float64)
    return (halves[:, None] * weight, halves * bias) if n_classes == 2 else (weight, bias)


def _logits(head: Head, x: Tensor) -> Tensor:
    """Return the logits (m, k) of features (m, d)."""
    weight, bias = head
    return x @ weight.to(x).T + bias.to(x)


def _probe(
    examples: Examples, candidates: Iterable[float], counts: Codes | None = None, **how: Any
) -> tuple[Head, dict[str, float]]:
    """Fit a logistic regression whose strength c the validation split selects; return it, c and its
    scores."""
    given = examples.features, examples.labels, len(examples.zero_shot)
    values = sorted(candidates)  # from the strongest penalty on
    solved = [logistic_regression(*given, c=value, counts=counts, **how) for value in values]
    best, scores = examples.best([partial(_logits, head) for head in solved])
    return solved[best], {"c": values[best], **scores}


def linear_probe(
    examples: Examples,
    *,
    alphas: Sequence[float] = (1.0,),
    candidates: Sequence[float] = (1.0, 10.0, 30.0, 100.0, 1000.0, 10000.0),
    tolerance: float = 1e-6,
) -> Predictor:
    """Interpolate weights: (1 - alpha) zero-shot + alpha linear probe, whose L2 penalty the
    validation split selects.

    With alpha 1 it is the probe of Radford et al. (2021), on normalised features: Zhang and Ré
    (2022) fit theirs with SGD, ours is the optimum. With other alphas it is WiSE-FT (Wortsman et
    al., 2022), which fine-tunes from the zero-shot weights; how the two logits of ours weigh
    against each other rests on c and on the 100 that cosines are multiplied by. Alpha is selected
    after c.
    """
    (weight, bias), chosen = _probe(examples, candidates, tolerance=tolerance)
    zero_shot = 100 * examples.zero_shot.detach().double().cpu()
    heads = [partial(_logits, ((1 - a) * zero_shot + a * weight, a * bias)) for a in alphas]
    best, scores = examples.best(heads)
    return heads[best], {**chosen, "alpha": alphas[best], **scores}


def dfr(
    examples: Examples,
    *,
    balance: str = "sub",
    draws: int = 10,
    candidates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    tolerance: float = 1e-5,
) -> Predictor:
    """Reweight deep features: logistic regression on group-balanced data (Kirichenko et al., 2023).

    As in the authors' code: features standardised over the training split, L1 penalty, c selected
    on one balanced sample, coefficients averaged over ten; the candidates span those used there.
    balance "sub" takes from every group as many rows as the smallest one has; "up" takes every row
    as often as it fits into the largest group and samples the remainder without replacement.
    """
    predicted, rng = (
        (examples.features @ examples.zero_shot.T).argmax(1).numpy(),
        np.random.default_rng(examples.seed),
    )
    groups = np.unique(examples.labels * len(examples.zero_shot) + predicted, return_inverse=True)[
        1
    ]
    samples = [balanced_counts(groups, balance, rng) for _ in range(draws)]
    how: dict[str, Any] = {"like": examples.features, "penalty": "l1", "tolerance": tolerance}
    fitted, chosen = _probe(examples, candidates, samples[0], **how)
    others = [_probe(examples, [chosen["c"]], counts, **how)[0] for counts in samples[1:]]
    weight, bias = (torch.stack(parts).mean(0) for parts in zip(fitted, *others, strict=True))
    logits = partial(_logits, (weight, bias))
    sizes, each = np.bincount(groups), int(samples[0][groups == 0].sum())
    return logits, {
        **chosen,
        "groups": sizes.tolist(),
        "rows_per_group": each,
        **examples.best([logits])[1],
    }


def balanced_counts(groups: Codes, balance: str, rng: np.random.Generator) -> Codes:
    """Return how often each row (n,) is taken so that all groups have one size: the smallest
    ("sub") or the largest."""
    sizes = np.bincount(groups)
    target = sizes.min() if balance == "sub" else sizes.max()
    counts = (target // sizes)[groups]
    for group, size in enumerate(sizes):
        counts[rng.choice(np.flatnonzero(groups == group), target % size, replace=False)] += 1
    return counts


@torch.random.fork_rng([])
@torch.inference_mode(False)
@torch.enable_grad()
def erm_adapter(
    examples: Examples,
    *,
    hidden: int = 128,
    epochs: int = 100,
    patience: int = 20,
    rate: float = 1e-3,
) -> Predictor:
    """Train an adapter to minimise cross-entropy over the training rows, as Zhang and Ré (2022) do
    for Table 7.2.

    It maps x to the normalised W2 relu(W1 x + b1) + b2, with W1 (hidden, d) (Gao et al., 2021);
    logits are 100 cosines with the class texts. SGD without a residual connection, as in the
    authors' code. The best epoch on the validation split is kept, the earliest on a tie; after
    `patience` epochs without a better one training stops.
    """
    texts, labels = examples.zero_shot.detach().clone().float(), torch.from_numpy(examples.labels)
    torch.default_generator.manual_seed(examples.seed)
    adapter = nn.Sequential(
        nn.Linear(texts.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, texts.shape[1])
    )

    def logits(x: Tensor) -> Tensor:
        return 100.0 * F.normalize(adapter(x), dim=-1) @ texts.T

    sgd = torch.optim.SGD(adapter.parameters(), lr=rate, momentum=0.9, weight_decay=5e-5)
    best, highest, kept = -1, tuple[float, ...](), adapter.state_dict()
    for epoch in range(epochs):
        for rows in torch.randperm(len(labels)).split(128):
            loss = F.cross_entropy(logits(examples.features[rows]), labels[rows])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        scores = tuple(examples.best([logits])[1].values())
        if scores > highest:
            best, highest, kept = epoch, scores, copy.deepcopy(adapter.state_dict())
        if epoch - best >= patience:
            break
    adapter.load_state_dict(kept)
    adapter.requires_grad_(False)
    return logits, {"epoch": best + 1, **examples.best([logits])[1]}


# name -> function of examples, and its source
BASELINES: dict[str, tuple[Callable[..., Predictor], str]] = {
    "erm-linear": (linear_probe, "Radford et al. 2021; Kumar et al. 2022"),
    "erm-adapter": (erm_adapter, "Gao et al. 2021"),
    "wise-ft": (partial(linear_probe, alphas=[i / 10 for i in range(11)]), "Wortsman et al. 2022"),
    "dfr-sub": (dfr, "Kirichenko et al. 2023"),
    "dfr-up": (partial(dfr, balance="up"), "Kirichenko et al. 2023"),
}
