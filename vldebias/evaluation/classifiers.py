"""Classifiers that learn from labelled images: rows of Table 7.2 to compare with methods that need no labels.

`BASELINES` has them by name; groups tasks take the names under `baselines`. Groups to balance are class x zero-shot
prediction, as in Zhang and Ré (2022), who assume that nobody knows the groups. `logistic_regression` is solved to
convergence: a convex problem has one answer, whatever the solver (scikit-learn's `saga` solves the same problem under
an L1 penalty, fifty times slower).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, need, warn
from vldebias.losses.sums import softplus
from vldebias.metrics.classification import group_accuracy
from vldebias.registry import Registry

Codes = NDArray[np.int64]
Logits = Callable[[Tensor], Tensor]  # of features (m, d): (m, k)
Score = tuple[float, float]  # worst group and average on the validation split
Penalty = Literal["l1", "l2"]
CHUNK = 16384  # rows per product
_WORRYING = 10  # times the tolerance

# ---- what a classifier learns from ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Split:
    """features (n, d) of norm 1, labels (n,) 0 .. k - 1, and groups (n,) of which those of a class belong together."""

    features: Tensor
    labels: Codes
    groups: Codes | None = None


@dataclass(frozen=True, eq=False)
class Examples:
    """A training split, the zero-shot classifier (k, d), a validation split to select on or None, and a seed."""

    train: Split
    zero_shot: Tensor
    val: Split | None
    seed: int

    @cached_property
    def predicted(self) -> Codes:
        """(n,) classes that the zero-shot classifier gives to the training rows."""
        return (self.train.features @ self.zero_shot.T).argmax(1).numpy()

    @cached_property
    def groups(self) -> Codes:
        """(n,) groups of the training rows to balance, numbered by those that occur."""
        cells = self.train.labels * len(self.zero_shot) + self.predicted
        return np.unique(cells, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def score(self, logits: Logits) -> Score | None:
        """Return worst group and average on the validation split, or None without one."""
        if self.val is None or self.val.groups is None:
            return None
        groups = self.val.labels * (int(self.val.groups.max()) + 1) + self.val.groups
        with torch.no_grad():
            accuracy = group_accuracy(logits(self.val.features).argmax(1), self.val.labels, groups)
        return accuracy.worst, accuracy.average


@dataclass(frozen=True, eq=False)
class Predictor:
    """A fitted classifier: features (m, d) to logits (m, k).

    chosen: what was selected on the way (c, alpha, epoch, accuracies on the validation split), in plain values.
    """

    logits: Logits
    chosen: Mapping[str, Any]

    @torch.no_grad()
    def __call__(self, features: Tensor) -> Tensor:
        """Return logits."""
        return self.logits(features)

    @classmethod
    def scored(cls, logits: Logits, score: Score | None, **chosen: Any) -> Predictor:
        """Return a classifier that tells its score on the validation split."""
        told = {} if score is None else {"val_worst_group": score[0], "val_average": score[1]}
        return cls(logits, {**chosen, **told})


@dataclass(frozen=True)
class Baseline:
    """A classifier by name: `train` makes a predictor of examples and the settings; source: the paper it is from."""

    name: str
    source: str
    train: Callable[..., Predictor]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @torch.inference_mode(False)
    def fit(
        self, features: Tensor, labels: NDArray[Any], zero_shot: Tensor, *,
        val: tuple[Tensor, NDArray[Any], NDArray[Any]] | None = None, seed: int = 0,
    ) -> Predictor:  # fmt: skip
        """Fit to the features of a training split. The same arguments and seed give the same predictor.

        Args:
            features: (n, d) float32 image features, rows of norm 1.
            labels: (n,) classes 0 .. k - 1, all of which occur.
            zero_shot: (k, d) text features of the classes, rows of norm 1: the zero-shot classifier.
            val: features, labels and groups of a split to select settings and epochs on, by the worst group, ties
                broken by the average, as the authors' code of Zhang and Ré (2022) does.
            seed: of every random draw; the global generators are neither read nor moved.

        Raises:
            InvalidInputError: shapes or labels that do not fit.
        """
        for x, y in ((features, labels), (val or (features, labels))[:2]):
            if x.ndim != 2 or x.shape[1] != zero_shot.shape[1] or len(y) != len(x):
                expected = f"features (n, {zero_shot.shape[1]}) and n labels"
                raise InvalidInputError(f"baseline: expected {expected}, got {tuple(x.shape)} and {len(y)} labels")
        rows = np.bincount(labels, minlength=len(zero_shot))
        if not rows.all() or len(rows) != max(len(zero_shot), 2):
            raise InvalidInputError(f"train labels: expected rows of two or more classes, got {rows.tolist()} rows")
        examples = Examples(Split(features, labels), zero_shot, None if val is None else Split(*val), seed)
        return self.train(examples, **self.settings)


# ---- logistic regression --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scaling:
    """Features x as (x - shift) / scale; the solver folds it into the coefficients and never carries it out."""

    shift: Tensor
    scale: Tensor

    @classmethod
    def standard(cls, features: Tensor) -> Scaling:
        """Return the scaling to mean 0 and variance 1 in every column; a constant column keeps its scale."""
        chunks = features.split(CHUNK)
        mean = torch.stack([_double(x).sum(0) for x in chunks]).sum(0) / len(features)
        scale = (torch.stack([(_double(x) - mean).square().sum(0) for x in chunks]).sum(0) / len(features)).sqrt()
        return cls(mean, torch.where(scale > 1e-8, scale, torch.ones_like(scale)))


@dataclass(frozen=True, eq=False)
class Coefficients:
    """weight (r, d) and bias (r,) float64 on scaled features; two classes have one row, k > 2 classes have k."""

    weight: Tensor
    bias: Tensor

    def unscaled(self, scaling: Scaling | None) -> Coefficients:
        """Return the same classifier for features that are not scaled."""
        if scaling is None:
            return self
        weight = self.weight / scaling.scale
        return Coefficients(weight, self.bias - weight @ scaling.shift)

    def head(self) -> tuple[Tensor, Tensor]:
        """Return weight (k, d) and bias (k,), a row for each class; the logits of two classes sum to 0."""
        halves = torch.tensor([-0.5, 0.5], dtype=torch.float64)
        one = len(self.weight) == 1
        return (halves[:, None] * self.weight, halves * self.bias) if one else (self.weight, self.bias)


@torch.inference_mode(False)
@torch.enable_grad()
def logistic_regression(
    features: Tensor, labels: Codes, n_classes: int, *, c: float, penalty: Penalty = "l2",
    scaling: Scaling | None = None, counts: NDArray[Any] | None = None, start: Coefficients | None = None,
    tolerance: float = 1e-6, max_iterations: int = 5000,
) -> Coefficients:  # fmt: skip
    """Minimise R(W) + c sum_i counts_i CE(W x_i + b, y_i), the objective of scikit-learn's LogisticRegression.

    R is |W|_2^2 / 2 or |W|_1; the bias is not penalised. Two classes have one weight vector, the difference of the
    logits; k > 2 have a softmax. L-BFGS-B in float64; under "l1", W = U - V with U, V >= 0, which is smooth.

    Args:
        features: (n, d) of any floating dtype, read in chunks. labels: (n,) classes 0 .. n_classes - 1.
        c: > 0, the smaller the stronger the penalty.
        scaling: the penalty is on the coefficients of features that are scaled by it; the result is, too.
        counts: (n,) how many times each row is there, or its weight; None: once.
        start: where the solver begins; another start gives the same answer, later or sooner.
        tolerance: largest entry of the gradient of the mean loss, penalty included, at which the solver stops.

    Warns:
        VldebiasWarning: the gradient is still large after `max_iterations`.
    """
    optimize = need("scipy.optimize")
    rows, dim = (1 if n_classes == 2 else n_classes), features.shape[1]
    size, split = rows * dim, penalty == "l1"
    y = torch.from_numpy(labels)
    weights = torch.ones(len(y)) if counts is None else torch.from_numpy(np.asarray(counts))
    total = float(weights.sum(dtype=torch.float64))
    strength = 1 / (c * total)

    def unpacked(flat: Tensor) -> Coefficients:
        """W and b of one vector, which holds W and b, or U, V and b under "l1"."""
        weight = flat[:size] - flat[size : 2 * size] if split else flat[:size]
        return Coefficients(weight.reshape(rows, dim), flat[-rows:])

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Mean loss plus penalty and the gradient, a chunk of rows at a time."""
        leaf = torch.from_numpy(flat.copy()).requires_grad_()
        value = strength * (leaf[:-rows].sum() if split else leaf[:-rows].square().sum() / 2)
        value.backward()
        whole = value.detach()
        for first in range(0, len(y), CHUNK):
            chunk = slice(first, first + CHUNK)
            x = _double(features[chunk])
            raw = unpacked(leaf).unscaled(scaling)
            logits = x @ raw.weight.T + raw.bias
            if n_classes == 2:
                logits = torch.cat([torch.zeros_like(logits), logits], 1)
            losses = F.cross_entropy(logits, y[chunk], reduction="none")
            loss = (losses * weights[chunk].to(losses)).sum() / total
            loss.backward()
            whole = whole + loss.detach()
        assert leaf.grad is not None
        return float(whole), leaf.grad.numpy()

    begin = np.zeros(size + rows) if start is None else np.r_[start.weight.numpy().ravel(), start.bias.numpy()]
    bounds = None
    if split:
        begin = np.concatenate([np.maximum(begin[:size], 0), np.maximum(-begin[:size], 0), begin[size:]])
        bounds = optimize.Bounds(np.r_[np.zeros(2 * size), np.full(rows, -np.inf)], np.full(2 * size + rows, np.inf))
    limits = {"maxiter": max_iterations, "maxfun": 2 * max_iterations, "maxcor": 20, "gtol": tolerance, "ftol": 0.0}
    solved = optimize.minimize(objective, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=limits)
    held = (solved.x == 0) & (solved.jac > 0) & (np.arange(len(begin)) < (2 * size if split else 0))
    left = float(np.abs(solved.jac[~held]).max())  # a bound holds what its gradient pushes out of it
    if left > _WORRYING * tolerance:
        warn(
            f"logistic regression (c = {c:g}): a gradient of {left:.1e} is left after {solved.nit} iterations; "
            "the coefficients are not final. Choose a smaller c or a larger tolerance"
        )
    return unpacked(torch.from_numpy(solved.x))


def _double(x: Tensor) -> Tensor:
    """Return float64, a copy where autograd could not keep the tensor."""
    x = x.detach().double()
    return x.clone() if x.is_inference() else x


# ---- linear ---------------------------------------------------------------------------------------------------

LINEAR = (1.0, 10.0, 30.0, 100.0, 1000.0, 10000.0)


def _linear(weight: Tensor, bias: Tensor) -> Logits:
    """Return the logits of a weight (k, d) and a bias (k,)."""
    return lambda x: x @ weight.to(x).T + bias.to(x)


def _best(scores: list[Score | None]) -> int:
    """Return the index of the best score, the first on a tie; 0 without a validation split."""
    return max(range(len(scores)), key=lambda i: scores[i] or (0.0, 0.0))


def _solve(
    examples: Examples, c: float, counts: Codes | None, start: Coefficients | None, how: Mapping[str, Any]
) -> Coefficients:
    """Fit on the rows that `counts` (n,) leaves, each as often as it says."""
    features, labels = examples.train.features, examples.train.labels
    if counts is not None and not counts.all():
        rows = np.flatnonzero(counts)
        features = features[torch.from_numpy(rows)]
        labels, counts = labels[rows], counts[rows]
    return logistic_regression(features, labels, len(examples.zero_shot), c=c, counts=counts, start=start, **how)


def _probe(
    examples: Examples, c: float, candidates: Iterable[float], counts: Codes | None = None, **how: Any
) -> tuple[Coefficients, float, Score | None]:
    """Fit a logistic regression whose strength c the validation split selects; return it, c and its score."""
    solved: list[Coefficients] = []
    scores: list[Score | None] = []
    values = sorted(candidates) if examples.val is not None else [c]
    for value in values:  # from the strongest penalty on: each solution is a good start for the next
        solved.append(_solve(examples, value, counts, solved[-1] if solved else None, how))
        scores.append(examples.score(_linear(*solved[-1].unscaled(how.get("scaling")).head())))
    best = _best(scores)
    return solved[best], values[best], scores[best]


def erm_linear(
    examples: Examples, *, c: float = 30.0, candidates: tuple[float, ...] = LINEAR, tolerance: float = 1e-6
) -> Predictor:
    """Fit the linear probe of Radford et al. (2021): L2 penalty, its strength selected on a validation split.

    Theirs is on features that are not normalised; ours is on normalised ones, with candidates to match. Zhang and Ré
    (2022) fit theirs with SGD, so it depends on learning rate and epochs; ours is the optimum.
    """
    fitted, strength, score = _probe(examples, c, candidates, tolerance=tolerance)
    return Predictor.scored(_linear(*fitted.head()), score, c=strength)


def wise_ft(
    examples: Examples, *, alpha: float = 0.5, logit_scale: float = 100.0, c: float = 30.0,
    candidates: tuple[float, ...] = LINEAR, tolerance: float = 1e-6,
) -> Predictor:  # fmt: skip
    """Interpolate weights: (1 - alpha) zero-shot + alpha linear probe (Wortsman et al., 2022).

    For linear classifiers the mean of the weights is the mean of the logits. The paper fine-tunes from the zero-shot
    weights; our probe is the optimum of a convex problem, so how the two logits weigh against each other rests on
    `logit_scale`, what cosines are multiplied by, and c. alpha is .5, as the paper recommends, without a validation
    split, and selected on it after c with one.
    """
    fitted, strength, _ = _probe(examples, c, candidates, tolerance=tolerance)
    weight, bias = fitted.head()
    zero_shot = logit_scale * examples.zero_shot.detach().double().cpu()
    values = [i / 10 for i in range(11)] if examples.val is not None else [alpha]
    heads = [_linear((1 - a) * zero_shot + a * weight, a * bias) for a in values]
    scores = [examples.score(head) for head in heads]
    best = _best(scores)
    return Predictor.scored(heads[best], scores[best], c=strength, alpha=values[best])


def dfr(
    examples: Examples, *, balance: str = "sub", draws: int = 10, c: float = 0.1, penalty: Penalty = "l1",
    candidates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0), tolerance: float = 1e-5,
) -> Predictor:  # fmt: skip
    """Reweight deep features: logistic regression on group-balanced data (Kirichenko et al., 2023).

    As in the authors' code for training data: features standardised over the training split, L1 penalty, c selected on
    one balanced sample, coefficients averaged over ten; the candidates span those used there for Waterbirds and CelebA.
    balance "sub" takes from every group as many rows as the smallest one has. "up" takes every row as often as it fits
    into the largest group and draws the remainder without replacement, our choice: drawing with replacement has the
    same mean and varies more.
    """
    rng, scaling = np.random.default_rng(examples.seed), Scaling.standard(examples.train.features)
    samples = [balanced_counts(examples.groups, balance, rng) for _ in range(draws)]
    how: dict[str, Any] = {"scaling": scaling, "penalty": penalty, "tolerance": tolerance}
    fitted, strength, _ = _probe(examples, c, candidates, samples[0], **how)
    solved = [fitted]
    for counts in samples[1:]:
        solved.append(_solve(examples, strength, counts, solved[-1], how))
    weight, bias = (torch.stack([getattr(one, name) for one in solved]).mean(0) for name in ("weight", "bias"))
    logits = _linear(*Coefficients(weight, bias).unscaled(scaling).head())
    sizes = np.bincount(examples.groups)
    told = {"c": strength, "groups": sizes.tolist(), "rows_per_group": int(samples[0][examples.groups == 0].sum())}
    return Predictor.scored(logits, examples.score(logits), **told)


def balanced_counts(groups: Codes, balance: str, rng: np.random.Generator) -> Codes:
    """Return how often each row (n,) is taken so that all groups have one size: the smallest ("sub") or the largest."""
    sizes = np.bincount(groups)
    target = sizes.min() if balance == "sub" else sizes.max()
    by_group = np.split(np.argsort(groups, kind="stable"), np.cumsum(sizes)[:-1])
    counts = (target // sizes)[groups]
    for rows, size in zip(by_group, sizes, strict=True):
        counts[rng.choice(rows, target % size, replace=False)] += 1
    return counts


# ---- adapters -------------------------------------------------------------------------------------------------


class Adapter(nn.Module):
    """Map x (n, d) to the normalised W2 relu(W1 x + b1) + b2, with W1 (hidden, d) (Gao et al., 2021).

    Logits are cosines with the class texts times 100. The weights are distributed as nn.Linear has them.
    """

    def __init__(self, zero_shot: Tensor, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        d = zero_shot.shape[1]
        self.down, self.up = nn.utils.skip_init(nn.Linear, d, hidden), nn.utils.skip_init(nn.Linear, hidden, d)
        self.texts = zero_shot.detach().clone().float()
        for layer in (self.down, self.up):
            bound = 1 / math.sqrt(layer.in_features)
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return adapted features (n, d) of norm 1."""
        return F.normalize(self.up(F.relu(self.down(x))), dim=-1)

    def logits(self, x: Tensor) -> Tensor:
        """Return logits (n, k), with gradients in the adapter."""
        return 100.0 * self(x) @ self.texts.T


Epoch = Callable[[int, Adapter, torch.Generator], Iterator[Tensor]]  # the losses of an epoch's steps


def _train_adapter(
    examples: Examples, losses: Epoch, *, hidden: int = 128, epochs: int = 100, patience: int = 20, rate: float = 1e-3
) -> Predictor:
    """Train an adapter with SGD, and keep the best epoch on the validation split, the earliest on a tie.

    Momentum .9, weight decay 5e-5, no residual connection, as in the authors' code of Zhang and Ré (2022).
    patience: epochs without a better one before training stops.
    """
    generator = torch.Generator().manual_seed(examples.seed)
    with torch.enable_grad():
        adapter = Adapter(examples.zero_shot, hidden, generator)
        sgd = torch.optim.SGD(adapter.parameters(), lr=rate, momentum=0.9, weight_decay=5e-5)
        best, score, weights = -1, None, None
        for epoch in range(epochs):
            for loss in losses(epoch, adapter, generator):
                sgd.zero_grad()
                loss.backward()
                sgd.step()
            now = examples.score(adapter.logits)
            if now is None:
                best = epoch
            elif score is None or now > score:
                best, score, weights = epoch, now, copy.deepcopy(adapter.state_dict())
            if epoch - best >= patience:
                break
    if weights is not None:
        adapter.load_state_dict(weights)
    adapter.requires_grad_(False)
    return Predictor.scored(adapter.logits, score, epoch=best + 1)


def _batches(rows: Tensor, generator: torch.Generator, size: int = 128) -> Iterator[Tensor]:
    """Yield `rows` in random order, `size` at a time."""
    yield from rows[torch.randperm(len(rows), generator=generator)].split(size)


def _classification_loss(adapter: Adapter, examples: Examples, rows: Tensor) -> Tensor:
    """Return the mean cross-entropy of some training rows."""
    return F.cross_entropy(adapter.logits(examples.train.features[rows]), torch.from_numpy(examples.train.labels)[rows])


def erm_adapter(examples: Examples, **training: Any) -> Predictor:
    """Train an adapter to minimise cross-entropy over the training rows, as Zhang and Ré (2022) do for Table 7.2."""

    def losses(epoch: int, adapter: Adapter, generator: torch.Generator) -> Iterator[Tensor]:
        for rows in _batches(torch.arange(len(examples.train.labels)), generator):
            yield _classification_loss(adapter, examples, rows)

    return _train_adapter(examples, losses, **training)


def anchored_contrastive(anchors: Tensor, positives: Tensor, negatives: Tensor, *, temperature: float) -> Tensor:
    """Return (a,) the mean over positives p of -log e^{s_p} / (e^{s_p} + sum over negatives e^{s_n}).

    Source: Zhang and Ré (2022). The supervised contrastive loss with the other positives left out of the denominator.
    anchors (a, d), positives (a, p, d) and negatives (a, m, d) have norm 1; s are cosines over the temperature.
    """
    scaled = anchors / temperature
    positive = torch.einsum("ad,apd->ap", scaled, positives)
    negative = torch.einsum("ad,amd->am", scaled, negatives)
    return softplus(torch.logsumexp(negative, 1, keepdim=True) - positive).mean(1)


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Training rows by their part: anchors (a,) and their classes (a,), which zero-shot gets wrong; nearest rows of
    other classes (a, m); positives by class, which zero-shot gets right."""

    anchors: Tensor
    classes: Tensor
    nearest: Tensor
    positives: Mapping[int, Tensor]

    @classmethod
    def of(cls, examples: Examples, neighbours: int = 1024, chunk: int = 64) -> Contrasts:
        """Return the contrasts of training rows.

        Raises:
            InvalidInputError: no class has rows of both kinds.
        """
        labels, right = examples.train.labels, examples.predicted == examples.train.labels
        usable = [one for one in np.unique(labels).tolist() if 0 < right[labels == one].sum() < (labels == one).sum()]
        if not usable:
            raise InvalidInputError(
                "contrastive adapter: expected a class that zero-shot gets right in some training rows and wrong in "
                f"others; it gets {int(right.sum())} of {len(right)} right"
            )
        anchors = torch.from_numpy(np.flatnonzero(~right & np.isin(labels, usable)))
        positives = {one: torch.from_numpy(np.flatnonzero(right & (labels == one))) for one in usable}
        classes, features = torch.from_numpy(labels), examples.train.features
        most = len(labels) - int(np.bincount(labels)[usable].max())  # rows of other classes that every anchor has
        nearest = []
        for rows in anchors.split(chunk):
            cosines = (features[rows] @ features.T).masked_fill(classes[rows, None] == classes, -torch.inf)
            nearest.append(cosines.topk(min(neighbours, most), dim=1).indices.to(torch.int32))
        return cls(anchors, classes[anchors], torch.cat(nearest), positives)

    def sample(self, which: Tensor, positives: int, negatives: int, generator: torch.Generator) -> Tensor:
        """Return (b, 1 + positives + negatives) training rows for the anchors `which` (b,), with replacement."""
        rows = torch.empty(len(which), positives, dtype=torch.int64)
        for label, pool in self.positives.items():
            own = self.classes[which] == label
            rows[own] = pool[torch.randint(len(pool), (int(own.sum()), positives), generator=generator)]
        columns = torch.randint(self.nearest.shape[1], (len(which), negatives), generator=generator)
        return torch.cat([self.anchors[which, None], rows, self.nearest[which].gather(1, columns).long()], 1)

    def epoch(self, most: int, generator: torch.Generator) -> Tensor:
        """Return indices of anchors, the same number of each class and at most `most`."""
        own = [torch.nonzero(self.classes == label).flatten() for label in self.positives]
        size = min(most, *map(len, own))
        return torch.cat([one[torch.randperm(len(one), generator=generator)[:size]] for one in own])


def contrastive_adapter(
    examples: Examples, *, temperature: float = 0.1, positives: int = 32, negatives: int = 64, anchors: int = 1024,
    group_size: int = 300, **training: Any,
) -> Predictor:  # fmt: skip
    """Train an adapter by contrast and by classification in turns (Zhang and Ré, 2022).

    As in the authors' code: an epoch of contrast, whose losses are summed over the anchors of a step, and an epoch of
    cross-entropy on groups of equal size, in turns. Our choices, so that a run takes minutes on a CPU and memory grows
    linearly with the rows: the source contrasts an anchor with 2048 positives and as many of its 4096 nearest rows, of
    which those of other classes count; we draw `positives` and `negatives` in every epoch, the latter from the 1024
    nearest rows of other classes, and take at most `anchors` anchors of a class per epoch. A class without a wrong or
    without a right row has no anchors and learns from cross-entropy alone.
    """
    contrasts, features = Contrasts.of(examples), examples.train.features

    def losses(epoch: int, adapter: Adapter, generator: torch.Generator) -> Iterator[Tensor]:
        if epoch % 2:
            for rows in _batches(rows_of_groups(examples.groups, group_size, generator), generator):
                yield _classification_loss(adapter, examples, rows)
            return
        for which in _batches(contrasts.epoch(anchors, generator), generator):
            rows = contrasts.sample(which, positives, negatives, generator)
            anchor, positive, negative = adapter(features[rows]).split([1, positives, negatives], 1)
            yield anchored_contrastive(anchor[:, 0], positive, negative, temperature=temperature).sum()

    return _train_adapter(examples, losses, **training)


def rows_of_groups(groups: Codes, size: int, generator: torch.Generator) -> Tensor:
    """Return row indices, `size` of each group: without replacement where the group is large enough."""
    drawn = []
    for group in range(int(groups.max()) + 1):
        rows = torch.from_numpy(np.flatnonzero(groups == group))
        n = len(rows)
        draw = torch.randint(n, (size,), generator=generator) if n < size else torch.randperm(n, generator=generator)
        drawn.append(rows[draw[:size]])
    return torch.cat(drawn)


BASELINES: Registry[Baseline] = Registry("baseline", "vldebias.baselines", Baseline)
for _baseline in (
    Baseline("erm-linear", "Radford et al. 2021; Kumar et al. 2022", erm_linear),
    Baseline("erm-adapter", "Gao et al. 2021", erm_adapter),
    Baseline("wise-ft", "Wortsman et al. 2022", wise_ft),
    Baseline("dfr-sub", "Kirichenko et al. 2023", dfr),
    Baseline("dfr-up", "Kirichenko et al. 2023", dfr, {"balance": "up"}),
    Baseline("contrastive-adapter", "Zhang and Ré 2022", contrastive_adapter),
):
    BASELINES.register(_baseline)
