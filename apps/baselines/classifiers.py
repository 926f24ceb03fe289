"""Train classifiers on labelled images: the supervised baselines in Table 7.2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vldebias.errors import need, warn
from vldebias.study.tasks.examples import Examples, Logits, Predictor
from vldebias.utils.arrays import Codes, Floats

from .adapters import contrastive_adapter, erm_adapter

# Weight (k, d) and bias (k,) of a linear classifier in float64. With two classes, the logits sum to
# 0.
Head = tuple[Tensor, Tensor]
CHUNK = 16384  # rows per matrix product
MAX_ITERATIONS = 5000


@dataclass(frozen=True, eq=False)
class Regression:
    """Logistic regression problem, with its data, penalty and parametrisation.

    With two classes, a single weight vector gives the difference between their logits; with k > 2
    classes, there are k weight vectors. With "l1", the weights are U - V with U, V >= 0, which
    makes the penalty smooth. The solver's vector contains W and the bias, or U, V and the bias.

    Attributes:
        chunks: rows (m, d), labels (m,) and counts (m,) float64, at most `CHUNK` rows each.
        total: sum of the counts.
        n_classes: number of classes k.
        dim: number of features d.
        c: weight of the losses relative to the penalty.
        penalty: "l1" or "l2".
        scale: (d,) values that the features are divided by, after `shift` is subtracted.
        shift: (d,) values that are subtracted from the features.
    """

    chunks: Sequence[tuple[Tensor, Tensor, Tensor]]
    total: float
    n_classes: int
    dim: int
    c: float
    penalty: Literal["l1", "l2"]
    scale: Tensor
    shift: Tensor

    @property
    def weight_rows(self) -> int:
        """Return the number of weight vectors."""
        return 1 if self.n_classes == 2 else self.n_classes

    @property
    def size(self) -> int:
        """Return the total number of weights, without the bias."""
        return self.weight_rows * self.dim

    @property
    def bounded(self) -> int:
        """Return the number of entries in the solver's vector that must be >= 0 (U and V)."""
        return 2 * self.size if self.penalty == "l1" else 0

    def start(self) -> Floats:
        """Return the solver's starting point, all zeros."""
        weights = self.bounded or self.size
        return np.zeros(weights + self.weight_rows)

    def lower_bounds(self) -> Floats:
        """Return the lower bound of each entry of the solver's vector."""
        least = np.full(len(self.start()), -np.inf)
        least[: self.bounded] = 0.0
        return least

    def head(self, vector: Tensor) -> Head:
        """Convert the solver's vector to weight and bias for unscaled features."""
        flat = vector[: self.size]
        if self.penalty == "l1":
            flat = flat - vector[self.size : 2 * self.size]
        weight = flat.reshape(self.weight_rows, self.dim) / self.scale
        bias = vector[-self.weight_rows :] - weight @ self.shift
        return weight, bias

    def objective(self, vector: Floats) -> tuple[float, Floats]:
        """Return the mean loss plus the penalty, and its gradient."""
        leaf = torch.from_numpy(vector.copy()).requires_grad_()
        weights = leaf[: -self.weight_rows]
        if self.penalty == "l1":
            size_of_weights = weights.sum()
        else:
            size_of_weights = weights.square().sum() / 2
        # scikit-learn minimises penalty + c * sum of losses. Dividing by c * n gives the gradient
        # the scale of a mean, so one tolerance works for every c and n.
        value = 1 / (self.c * self.total) * size_of_weights
        # Backpropagate through the penalty and then through each chunk. Gradients accumulate in the
        # leaf, so only one float64 chunk is in memory at a time.
        value.backward()
        value = value.detach()
        for features, labels, counts in self.chunks:
            logits = linear_logits(self.head(leaf), features.double())
            if self.n_classes == 2:
                logits = F.pad(logits, (1, 0))  # fixes the first logit at 0
            losses = F.cross_entropy(logits, labels, reduction="none")
            loss = (losses * counts).sum() / self.total
            loss.backward()
            value = value + loss.detach()
        assert leaf.grad is not None
        return float(value), leaf.grad.numpy()

    def solve(self, tolerance: float) -> Floats:
        """Return the solver's vector at the optimum, and warn if the solver did not converge."""
        solver = need("scipy.optimize")
        least = self.lower_bounds()
        solution = solver.minimize(
            self.objective,
            self.start(),
            jac=True,
            method="L-BFGS-B",
            bounds=solver.Bounds(least, np.inf),
            options={
                "maxiter": MAX_ITERATIONS,
                "maxfun": 2 * MAX_ITERATIONS,
                "maxcor": 20,
                "gtol": tolerance,
                # Use only the gradient as the stopping criterion. For large c, a small change in
                # the loss does not mean that the optimum has been reached.
                "ftol": 0.0,
            },
        )
        # At a bound, ignore gradients that would move the entry across it.
        projected = solution.x - np.maximum(solution.x - solution.jac, least)
        gradient = float(np.abs(projected).max())
        if gradient > 10 * tolerance:
            warn(
                f"logistic regression (c = {self.c:g}) did not converge in {solution.nit}"
                f" iterations (gradient {gradient:.1e}); choose a smaller c or a larger tolerance"
            )
        return solution.x


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
    counts: NDArray[np.integer] | None = None,
) -> Head:
    """Minimise R(W) + c sum_i counts_i CE(W x_i + b, y_i).

    This is the objective of scikit-learn's LogisticRegression.

    R is |W|_2^2 / 2 or |W|_1; the bias is not penalised. Solved by L-BFGS-B in float64.

    Args:
        features: (n, d), processed in chunks.
        labels: (n,) classes 0 .. n_classes - 1.
        n_classes: number of classes k.
        c: weight of the losses relative to the penalty.
        tolerance: the solver stops when no entry of the gradient exceeds this value.
        penalty: "l1" or "l2".
        like: rows (m, d) whose means and standard deviations are used to standardise the features;
            the penalty applies to the standardised coefficients.
        counts: (n,) number of times that each row counts. If None, each row counts once.

    Returns:
        The weight (k, d) and the bias (k,) for features that are not standardised.

    Warns:
        VldebiasWarning: If the gradient is still large when the solver stops, after at most 5,000
            iterations.
    """
    times = torch.ones(len(labels)) if counts is None else torch.from_numpy(counts)
    # Drop rows with a count of 0, since a balanced sample leaves out most rows.
    rows = torch.nonzero(times)[:, 0]
    columns = (features, torch.from_numpy(labels), times.double())
    parts = [column.detach()[rows].split(CHUNK) for column in columns]
    dim = features.shape[1]
    scale = torch.ones(dim).double()
    shift = torch.zeros(dim).double()
    if like is not None:
        deviation, mean = torch.std_mean(like.detach(), 0, correction=0)
        shift = mean.double()
        # Leave constant columns unscaled.
        scale = torch.where(deviation > 1e-8, deviation.double(), scale)
    problem = Regression(
        chunks=list(zip(*parts, strict=True)),
        total=float(times.sum()),
        n_classes=n_classes,
        dim=dim,
        c=c,
        penalty=penalty,
        scale=scale,
        shift=shift,
    )
    weight, bias = problem.head(torch.from_numpy(problem.solve(tolerance)))
    if n_classes == 2:
        # The weight vector w gives the difference between the logits. Split it into -w/2 and w/2,
        # because callers expect one logit per class.
        halves = torch.tensor([-0.5, 0.5], dtype=torch.float64)
        return halves[:, None] * weight, halves * bias
    return weight, bias


def linear_logits(head: Head, features: Tensor) -> Tensor:
    """Return the logits (m, k) for features (m, d).

    Args:
        head: weight (k, d) and bias (k,).
        features: one row per image (m, d).
    """
    weight, bias = head
    return features @ weight.to(features).T + bias.to(features)


def _probe(
    examples: Examples,
    candidates: Iterable[float],
    counts: Codes | None = None,
    **settings: Any,
) -> tuple[Head, dict[str, float]]:
    """Fit a logistic regression, and select c on the validation split.

    Args:
        examples: training and validation data.
        candidates: values of c to choose from.
        counts: (n,) number of times that each training row counts.
        settings: further arguments of `logistic_regression`.

    Returns:
        The head, and a dict with the selected c and its validation scores.
    """
    strengths = sorted(candidates)  # on a tie, the strongest penalty is selected
    heads = list[Head]()
    for c in strengths:
        head = logistic_regression(
            examples.features,
            examples.labels,
            len(examples.zero_shot),
            c=c,
            counts=counts,
            **settings,
        )
        heads.append(head)
    best, scores = examples.best([partial(linear_logits, head) for head in heads])
    return heads[best], {"c": strengths[best], **scores}


def linear_probe(
    examples: Examples,
    *,
    alphas: Sequence[float] = (1.0,),
    candidates: Sequence[float] = (1.0, 10.0, 30.0, 100.0, 1000.0, 10000.0),
    tolerance: float = 1e-6,
) -> Predictor:
    """Fit a linear probe and interpolate its weights with the zero-shot weights.

    The weights are (1 - alpha) zero-shot + alpha probe. The L2 penalty is selected on the
    validation split first, and then alpha. With alpha = 1, this is the probe of Radford et al.
    (2021) on normalised features; Zhang and Ré (2022) train theirs with SGD, whereas this one is
    fitted to convergence. With other alphas, it is WiSE-FT (Wortsman et al., 2022), except that
    WiSE-FT fine-tunes from the zero-shot weights. The relative weight of the two sets of logits
    depends on c and on the logit scale (100).

    Args:
        examples: training and validation data.
        alphas: values of alpha to choose from.
        candidates: values of c to choose from.
        tolerance: solver tolerance.

    Returns:
        The function that returns the logits, and a dict with the selected c and alpha and their
        validation scores.
    """
    (weight, bias), selection = _probe(examples, candidates, tolerance=tolerance)
    # Use CLIP's logit scale; unscaled cosines would be negligible next to the probe's logits.
    zero_shot = 100 * examples.zero_shot.detach().double().cpu()
    classifiers = list[Logits]()
    for alpha in alphas:
        # The zero-shot classifier has no bias, so only the probe's bias is scaled.
        mixed = (1 - alpha) * zero_shot + alpha * weight
        classifiers.append(partial(linear_logits, (mixed, alpha * bias)))
    best, scores = examples.best(classifiers)
    return classifiers[best], {**selection, "alpha": alphas[best], **scores}


def dfr(
    examples: Examples,
    *,
    balance: str = "sub",
    draws: int = 10,
    candidates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    tolerance: float = 1e-5,
) -> Predictor:
    """Fit deep feature reweighting (DFR): logistic regression on group-balanced data.

    As in the code of Kirichenko et al. (2023), features are standardised over the training split,
    the penalty is L1, c is selected on one balanced sample, and the coefficients are averaged over
    ten samples. The default candidates cover the range that the authors use.

    Args:
        examples: training and validation data.
        balance: "sub" subsamples every group to the size of the smallest; "up" repeats rows up to
            the size of the largest group, and samples the remainder without replacement.
        draws: number of balanced samples.
        candidates: values of c to choose from.
        tolerance: solver tolerance.

    Returns:
        The function that returns the logits, and a mapping with the selected c, the group sizes,
        the number of rows per group and the validation scores.
    """
    rng = np.random.default_rng(examples.seed)
    groups = examples.groups
    # Average over several samples, because each discards most rows and its coefficients are noisy.
    samples = [balanced_counts(groups, balance, rng) for _ in range(draws)]
    settings: dict[str, object] = {
        "like": examples.features,
        "penalty": "l1",
        "tolerance": tolerance,
    }
    first_head, selection = _probe(examples, candidates, samples[0], **settings)
    heads = [first_head]
    # As in the authors' code, select c on the first sample only. Selecting it on all ten would take
    # ten times as many fits.
    for counts in samples[1:]:
        head, _ = _probe(examples, [selection["c"]], counts, **settings)
        heads.append(head)
    weight = torch.stack([head_weight for head_weight, _ in heads]).mean(0)
    bias = torch.stack([head_bias for _, head_bias in heads]).mean(0)
    logits = partial(linear_logits, (weight, bias))
    _, scores = examples.best([logits])
    facts = {
        "groups": np.bincount(groups).tolist(),
        "rows_per_group": int(samples[0][groups == 0].sum()),
    }
    return logits, {**selection, **facts, **scores}


def balanced_counts(groups: Codes, balance: str, rng: np.random.Generator) -> Codes:
    """Return the number of times (n,) to use each row so that all groups have the same size.

    Args:
        groups: (n,) codes.
        balance: "sub" for the size of the smallest group, "up" for the largest.
        rng: random number generator.
    """
    sizes = np.bincount(groups)
    target = sizes.min() if balance == "sub" else sizes.max()
    # For example, "up" with groups of 10 and 25 counts each row of the smaller group twice, and
    # five of them a third time.
    counts = (target // sizes)[groups]
    for group, size in enumerate(sizes):
        rows = np.flatnonzero(groups == group)
        counts[rng.choice(rows, target % size, replace=False)] += 1
    return counts


# Baseline name -> the function that trains it, and its source.
BASELINES: dict[str, tuple[Callable[..., Predictor], str]] = {
    "erm-linear": (linear_probe, "Radford et al. 2021; Kumar et al. 2022"),
    "erm-adapter": (erm_adapter, "Gao et al. 2021"),
    "wise-ft": (partial(linear_probe, alphas=[i / 10 for i in range(11)]), "Wortsman et al. 2022"),
    "dfr-sub": (dfr, "Kirichenko et al. 2023"),
    "dfr-up": (partial(dfr, balance="up"), "Kirichenko et al. 2023"),
    "contrastive-adapter": (contrastive_adapter, "Zhang and Ré 2022"),
}


def baselines() -> dict[str, tuple[Callable[..., Predictor], str]]:
    """Return the baselines for tasks on groups."""
    return BASELINES
