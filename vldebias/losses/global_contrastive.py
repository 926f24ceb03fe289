"""Compute the global contrastive loss, a softmax over the whole data set from small batches, and
popularity."""

from __future__ import annotations

import math
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, warn
from vldebias.losses.catalog import NUCLRSettings, SogCLRSettings
from vldebias.losses.checks import check_count, check_interval, check_labels, check_temperature
from vldebias.losses.contrast import BatchOptions, Contrast
from vldebias.losses.processes import gather_rows, sum_over_processes


class GlobalContrastiveLoss(nn.Module):
    """Compute tau log(e^{-xi/tau} + phi_i), phi_i over all n items of the dataset: NUCLR, Wang et
    al. (2024), Algorithm 1.

        phi_i = sum_{j != i} exp((E_ij - E_ii - zeta_j) / tau)
        E_ij = <image_i, text_j>, and texts to images

    A batch of B sees B - 1 of the n - 1 terms, and the logarithm of a batch estimate is biased. So
    each item keeps a moving average u_i <- (1 - gamma) u_i + gamma phi_i(batch), from the first
    estimate on, and the gradient is tau / (e^{-xi/tau} + u_i) times that of phi_i (eq. 15). zeta_j
    is the margin of item j, learned along eq. 14 until e^{zeta_j/tau} is proportional to its
    popularity, as `estimate_popularity` finds it from all similarities at once. Popular items,
    often false negatives, are pushed away less. xi is the largest |zeta| so far.

    popularity_lr = 0 (the default) leaves zeta: zeta_init = 0 is SogCLR (Yuan et al., 2022), and on
    a batch that is the whole dataset tau times `info_nce`; NUCLR sets it > 0, after a few epochs
    without.

    The value is the running estimate of the objective; its gradient is eq. 15, with u a constant.
    State moves in training mode with gradients enabled, and is only read otherwise: a second pass
    over the same batch, as SAM makes it, belongs in evaluation mode. It is kept in buffers, (2, n),
    row 0 for images as anchors and row 1 for texts, so a checkpoint resumes exactly; log_u is in
    logarithms since e^{2/t} overflows at t = .01.

    zeta fluctuates by about its step size. So `log_popularity` is of zeta_mean, an average over the
    visits of an item in which later ones weigh more (Shamir and Zhang, 2013, eta = 3), in place of
    the paper's momentum.

    Args:
        dataset_size: n, the number of items that `index` refers to.
        temperature: tau, fixed: the state is in its units. The paper tunes it within .01 to .07.
        gamma: in (0, 1], weight of the newest estimate in u.
        popularity_lr: step size of zeta, >= 0, .1 to .3 at every n: a visit of item j changes
            zeta_j/tau by popularity_lr (r_j - 1), r_j the ratio of the popularity that the batch
            shows to e^{zeta_j/tau}. It needs some 4 / popularity_lr visits of each item. May be
            changed before every step.
        zeta_init: first value of zeta; 0 or -.05 in the paper.
        options: reduction, chunk_size, gather and within_view, see `info_nce`. With `gather` every
            process keeps the same state.
    """

    log_u: Tensor
    zeta: Tensor
    zeta_mean: Tensor
    visits: Tensor
    xi: Tensor

    def __init__(
        self,
        dataset_size: int,
        *,
        temperature: float = 0.05,
        gamma: float = 0.8,
        popularity_lr: float = 0.0,
        zeta_init: float = 0.0,
        **options: Unpack[BatchOptions],
    ) -> None:
        super().__init__()
        unknown = sorted(set(options) - set(BatchOptions.__annotations__))
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {unknown[0]!r}")
        check_count("dataset_size", dataset_size, 2)
        check_interval("gamma", gamma, "(0, 1]")
        check_temperature(temperature)
        self.dataset_size = dataset_size
        self.temperature = temperature
        self.gamma = gamma
        self.popularity_lr = popularity_lr
        self.reduction = options.get("reduction", "mean")
        self.chunk_size = options.get("chunk_size")
        self.gather = options.get("gather", False)
        self.within_view = options.get("within_view", False)
        # log 0: the item was not seen yet.
        self.register_buffer("log_u", torch.full((2, dataset_size), -torch.inf))
        self.register_buffer("zeta", torch.full((2, dataset_size), float(zeta_init)))
        self.register_buffer("zeta_mean", torch.full((2, dataset_size), float(zeta_init)))
        self.register_buffer("visits", torch.zeros(dataset_size))
        self.register_buffer("xi", torch.full((2,), abs(float(zeta_init))))

    @classmethod
    def from_settings(cls, settings: SogCLRSettings, **options: Any) -> Self:
        """Build the loss of a training run; margins start at zero for SogCLR."""
        zeta_init = settings.zeta_init if isinstance(settings, NUCLRSettings) else 0.0
        return cls(gamma=settings.gamma, zeta_init=zeta_init, **options)

    def schedule(self, settings: SogCLRSettings, step: int, steps: int) -> None:
        """Learn the popularity from a share of the steps on; SogCLR never does.

        Args:
            settings: the settings that the loss declares.
            step: the update that comes next, from 0.
            steps: number of updates of the whole training.
        """
        if isinstance(settings, NUCLRSettings):
            is_waiting = step < settings.popularity_wait * steps
            self.popularity_lr = 0.0 if is_waiting else settings.popularity_lr

    @property
    def log_popularity(self) -> Tensor:
        """Return the log (2, n) of the learned popularity up to a constant: of texts, then of
        images."""
        return self.zeta_mean / self.temperature

    def forward(self, image_features: Tensor, text_features: Tensor, index: Tensor) -> Tensor:
        """Return the loss of a batch.

        Args:
            image_features: (n, d), rows of norm 1.
            text_features: (n, d), rows of norm 1.
            index: (n,) integers in 0 .. dataset_size - 1, the item of the data set that each row
                is; no item twice.
        """
        batch = Contrast(
            image_features,
            text_features,
            temperature=self.temperature,
            reduction=self.reduction,
            chunk_size=self.chunk_size,
            gather=self.gather,
            within_view=self.within_view,
        )
        check_labels("index", index, len(batch.positive))
        items = gather_rows(index) if batch.gather else index
        low = int(items.min())
        high = int(items.max())
        if low < 0 or high >= self.dataset_size:
            raise InvalidInputError(
                f"index: expected 0 .. {self.dataset_size - 1}, got {low} .. {high}"
            )
        if len(items.unique()) < len(items):
            raise InvalidInputError(
                "index: an item is twice in the batch; sample without replacement"
            )
        moving = self.training and torch.is_grad_enabled()
        learning = moving and self.popularity_lr > 0
        # Algorithm 1, lines 4-7, for both directions at once: value and gradient, after the state
        # has moved
        zeta = self.zeta[:, items].to(batch.positive.dtype).requires_grad_(learning)
        (log_sum,) = batch.sums(1.0, margin=zeta / self.temperature)
        # Log phi (2, n): the batch's sum over `count` negatives stands for that over all n - 1
        # (twice with both views).
        negatives = (self.dataset_size - 1) * (2 if self.within_view else 1)
        log_phi = log_sum - batch.positive + math.log(negatives) - math.log(batch.count)
        # Log u (2, B) of the joint batch after its step.
        new = log_phi.detach()
        new = gather_rows(new.T).T if batch.gather else new
        old = self.log_u[:, items].to(new.dtype)
        # u <- (1 - gamma) u + gamma phi in logarithms; the first estimate is taken as it is.
        keep = math.log1p(-self.gamma) if self.gamma < 1 else -math.inf
        log_u = torch.where(
            old == -torch.inf, new, torch.logaddexp(old + keep, new + math.log(self.gamma))
        )
        gradient = self._popularity_gradient(batch, zeta, log_phi, log_u) if learning else None
        xi = self.xi[:, None].to(log_u.dtype)
        log_denominator = torch.logaddexp(log_u[:, batch.rows], -xi / self.temperature)
        # Its value is taken away again: what stays is its gradient, eq. 15 with u as a constant.
        weighted = self.temperature * torch.exp(log_phi.detach() - log_denominator) * log_phi
        if moving:
            self.log_u[:, items] = log_u.to(self.log_u.dtype)
        if gradient is not None:
            step = self.popularity_lr * self.temperature
            self.zeta[:, items] -= step * gradient.to(self.zeta.dtype)
            self.visits[items] += 1
            # Shamir and Zhang's weight (eta + 1) / (t + eta) of visit t, with eta = 3.
            weight = 4 / (self.visits[items] + 3)
            self.zeta_mean[:, items] += weight * (self.zeta[:, items] - self.zeta_mean[:, items])
            self.xi.copy_(torch.maximum(self.xi, self.zeta[:, items].abs().amax(1)))
        return batch.reduce(self.temperature * log_denominator + weighted - weighted.detach())

    def _popularity_gradient(
        self, batch: Contrast, zeta: Tensor, log_phi: Tensor, log_u: Tensor
    ) -> Tensor:
        """Return n G(zeta_j) (2, B) = 1 - r_j, with the mean of eq. 14 corrected.

        Eq. 14 as printed averages over the rows of the batch, 1/B, next to a term 1/n. An item j
        moves only when it is in the batch, and then each other row i is there with probability
        (B - 1) / (n - 1), which the factor (n - 1) / (B - 1) of phi already makes up for. So 1/B
        has n/B times the expectation of eq. 12, and the popularity would come out as much too
        large; 1/n is taken here. The positive pair weighs e^{-zeta_i/tau}, as in eq. 14, and not
        e^{-xi/tau}, which eq. 15 has for the weights of the model.
        """
        margin = -zeta.detach() / self.temperature
        log_denominator = torch.logaddexp(log_u, margin)
        weighted = (
            self.temperature
            * torch.exp(log_phi.detach() - log_denominator[:, batch.rows])
            * log_phi
        )
        (repulsion,) = torch.autograd.grad(weighted.sum(), zeta, retain_graph=True)
        repulsion = sum_over_processes(repulsion) if batch.gather else repulsion
        return repulsion - torch.exp(margin - log_denominator) + 1


def estimate_popularity(
    similarity: Tensor,
    *,
    temperature: float,
    tolerance: float = 1e-12,
    max_iterations: int = 10_000,
) -> tuple[Tensor, Tensor]:
    """Return the popularity of n items from their similarities, eq. 8 and 9 of Wang et al., NUCLR
    (2024).

    At the optimum q_j = sum_i K_ij / sum_k K_ik / q_k with K = e^{E/tau} (eq. 9): K divided by its
    columns' q and its rows' sums is doubly stochastic. So instead of gradient descent the two
    scalings alternate (Sinkhorn's iteration, each an exact minimisation), in logarithms and
    float64, without a step size to choose.

    Args:
        similarity: (n, n), E_ij of anchor x_i and item y_j; the diagonal are the pairs.
        temperature: tau > 0.
        tolerance: stop at this norm of the gradient of eq. 8; or after max_iterations, with a
            warning.
        max_iterations: stop after so many iterations, with a warning if the tolerance is not
            reached.

    Returns:
        zeta: (n,) float64 margins with mean 0. log_popularity: zeta / tau, the log of q_j = sum_i
            p(y_j | x_i) up to
        a constant.

    >>> one_popular = torch.tensor([[0.9, 0.1, 0.8], [0.2, 0.9, 0.8], [0.1, 0.1, 0.9]])
    >>> int(estimate_popularity(one_popular, temperature=0.2)[0].argmax())
    2
    """
    check_temperature(temperature)
    if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1] or len(similarity) < 2:
        raise InvalidInputError(
            f"similarity: expected shape (n, n) with n >= 2, got {tuple(similarity.shape)}"
        )
    if not torch.isfinite(similarity).all():
        raise InvalidInputError("similarity: some values are NaN or infinite; check the features")
    # (n, n) logits; the iteration begins with all items equally popular, q_j = 1.
    logits = similarity.detach().double() / temperature
    log_q = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    for iteration in range(1, max_iterations + 1):
        log_total = torch.logsumexp(logits - log_q, dim=1)
        # sum_i K_ij / total_i against q_j: their ratio is the column sum that the optimum has at 1
        scaled = torch.logsumexp(logits - log_total[:, None], dim=0)
        norm = float(torch.expm1(scaled - log_q).norm()) / len(logits)
        if norm <= tolerance or iteration == max_iterations:
            break
        log_q = scaled
    if norm > tolerance:
        message = (
            f"popularity: gradient norm {norm:.1e} after {max_iterations} iterations, asked for"
            f" {tolerance:.1e}"
        )
        warn(f"{message}; raise max_iterations or the temperature")
    # Eq. 9 determines q up to a factor.
    log_q = log_q - log_q.mean()
    return log_q * temperature, log_q
