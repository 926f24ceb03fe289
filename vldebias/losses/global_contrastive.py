"""Estimate a softmax over an entire data set, and the popularity of its items, from batches."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, warn
from vldebias.losses.catalog import NUCLRSettings, SogCLRSettings
from vldebias.losses.checks import check_count, check_interval, check_labels, check_temperature
from vldebias.losses.contrast import BatchOptions, Contrast, keywords_of
from vldebias.losses.processes import gather_rows, sum_over_processes
from vldebias.losses.sums import once_differentiable

# For `estimate_popularity`: the gradient norm of eq. 8 at which it stops, and the most iterations
_TOLERANCE = 1e-12
_ITERATIONS = 10_000


class SogCLR(nn.Module):
    """Estimate InfoNCE over an entire data set from batches (Yuan et al., 2022).

    Both images and texts are anchors:

        tau log(1 + phi_i)
        phi_i = sum_{j != i} exp((E_ij - E_ii) / tau),   E_ij = <image_i, text_j>

    A batch of B items contains only B - 1 of the n - 1 terms, and the logarithm of an estimate from
    one batch is biased. The loss therefore stores a moving average for each item, u_i <- (1 -
    gamma) u_i + gamma phi_i(batch), initialised with the first estimate. The gradient is tau / (1 +
    u_i) times the gradient of phi_i. If the batch is the entire data set, the loss equals tau times
    `info_nce`.

    The value is the running estimate of the objective. Its gradient treats u as a constant. The
    state is only updated in training mode with gradients enabled, so a second pass over the same
    batch, as in SAM, must run in evaluation mode. The state is stored in buffers (2, n), so that a
    run can resume exactly from a checkpoint. Row 0 is for images as anchors and row 1 for texts. u
    is stored as its logarithm, because e^{2/t} overflows at t = 0.01.

    Args:
        dataset_size: n, the number of items that `index` refers to.
        temperature: tau, which cannot be learned because the state depends on it. Wang et
            al. (2024) tune it between 0.01 and 0.07.
        gamma: weight of the new estimate in u, in (0, 1].
        options: reduction, chunk_size, gather, within_view and precision, as for `info_nce`. With
            `gather`, the state is the same in all processes.

    >>> import torch
    >>> loss = SogCLR(dataset_size=100, temperature=0.2)
    >>> images = torch.eye(4)
    >>> loss(images, images, index=torch.tensor([7, 42, 60, 99]))  # their rows in the data set
    tensor(0.1022)
    """

    log_u: Tensor
    # Settings that `schedule` changes, and a new loss does not take.
    _scheduled: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        dataset_size: int,
        *,
        temperature: float,
        gamma: float = 0.8,
        **options: Unpack[BatchOptions],
    ) -> None:
        super().__init__()
        defaults = keywords_of(Contrast)
        unknown = sorted(set(options) - set(defaults))
        if unknown:
            raise TypeError(f"{type(self).__name__}: no option {unknown[0]!r}; remove it")
        check_count("dataset_size", dataset_size, 2)
        check_interval("gamma", gamma, "(0, 1]")
        check_temperature(temperature)
        self.dataset_size = dataset_size
        self.temperature = temperature
        self.gamma = gamma
        self.keywords = tuple(defaults)
        for name, value in {**defaults, **options}.items():
            setattr(self, name, value)
        # -inf is log 0 and marks items that have not been visited yet.
        self.register_buffer("log_u", torch.full((2, dataset_size), -torch.inf))

    @classmethod
    def from_settings(
        cls,
        settings: SogCLRSettings,
        *,
        dataset_size: int,
        temperature: float,
        **options: Unpack[BatchOptions],
    ) -> Self:
        """Build the loss for a training run.

        Args:
            settings: settings as declared in `Loss.settings`.
            dataset_size: number of rows in the training data.
            temperature: divisor of the cosines, above 0.
            options: the options that all losses have, such as `chunk_size` and `gather`.
        """
        values = settings.model_dump(exclude=set(cls._scheduled))
        return cls(dataset_size, temperature=temperature, **values, **options)

    def schedule(self, settings: SogCLRSettings, step: int, steps: int) -> None:
        """Do nothing before an update; subclasses change settings here.

        Args:
            settings: settings as declared in `Loss.settings`.
            step: index of the next update, from 0.
            steps: total number of updates.
        """

    def forward(self, image_features: Tensor, text_features: Tensor, index: Tensor) -> Tensor:
        """Return the loss for a batch.

        Args:
            image_features: (n, d), rows of norm 1.
            text_features: (n, d), rows of norm 1.
            index: (n,) distinct integers in 0 .. dataset_size - 1, the item in each row.
        """
        batch, items = self._batch(image_features, text_features, index, self.temperature)
        (log_sum,) = batch.sums(1.0)
        log_phi = self._log_phi(batch, log_sum - batch.positive)
        log_u = self._averaged(batch, items, log_phi.detach())
        return self._loss(batch, log_phi, log_u, torch.zeros_like(log_u[:, :1]))

    @property
    def _is_learning(self) -> bool:
        """Return whether the state is updated."""
        return self.training and torch.is_grad_enabled()

    def _batch(
        self, image_features: Tensor, text_features: Tensor, index: Tensor, temperature: float
    ) -> tuple[Contrast, Tensor]:
        """Return the batch and the items of the joint batch (B,), after checking them."""
        options = {name: getattr(self, name) for name in self.keywords}
        batch = Contrast(image_features, text_features, temperature=temperature, **options)
        check_labels("index", index, len(batch.positive))
        items = gather_rows(index) if batch.gather else index
        low = int(items.min())
        high = int(items.max())
        if low < 0 or high >= self.dataset_size:
            raise InvalidInputError(
                f"index: expected row numbers 0 .. {self.dataset_size - 1}, got {low} .. {high}"
            )
        if len(items.unique()) < len(items):
            raise InvalidInputError(
                "index: an item occurs twice in the batch; sample without replacement"
            )
        return batch, items

    def _log_phi(self, batch: Contrast, log_sum: Tensor) -> Tensor:
        """Return log phi (2, n), given the logarithm of its sum over the batch's negatives."""
        # Scale the sum over `count` negatives to all n - 1 items, or to twice as many items with
        # both views.
        negatives = (self.dataset_size - 1) * (2 if batch.within_view else 1)
        return log_sum + math.log(negatives) - math.log(batch.count)

    def _averaged(self, batch: Contrast, items: Tensor, log_phi: Tensor) -> Tensor:
        """Return log u (2, B) of the joint batch after the update, and store it.

        This is the moving average between eq. 13 and 14 of Wang et al. (2024). The value and the
        gradient use the updated state.
        """
        new = gather_rows(log_phi.T).T if batch.gather else log_phi
        # index_select and index_copy_ are faster than indexing with a tensor.
        old = self.log_u.index_select(1, items).to(new.dtype)
        # Compute (1 - gamma) u + gamma phi in logarithms. The first estimate initialises u.
        log_old_weight = math.log1p(-self.gamma) if self.gamma < 1 else -math.inf
        log_u = torch.logaddexp(old + log_old_weight, new + math.log(self.gamma))
        log_u = torch.where(old == -torch.inf, new, log_u)
        if self._is_learning:
            self.log_u.index_copy_(1, items, log_u.to(self.log_u.dtype))
        return log_u

    def _loss(self, batch: Contrast, log_phi: Tensor, log_u: Tensor, log_pair: Tensor) -> Tensor:
        """Return the loss, given the logarithm (2, 1) of the pair's own term."""
        log_denominator = torch.logaddexp(log_u[:, batch.rows], log_pair)
        # This term's own value is subtracted below, so that it only contributes the gradient of
        # eq. 15, with u treated as a constant.
        weighted = self.temperature * torch.exp(log_phi.detach() - log_denominator) * log_phi
        return batch.reduce(self.temperature * log_denominator + weighted - weighted.detach())


class NUCLR(SogCLR):
    """Estimate a contrastive loss over an entire data set, with learned margins.

    This is algorithm 1 of Wang et al. (2024), with both images and texts as anchors:

        tau log(e^{-xi/tau} + phi_i)
        phi_i = sum_{j != i} exp((E_ij - E_ii - zeta_j) / tau),   E_ij = <image_i, text_j>

    The averages u of phi are those of `SogCLR`; the gradient is tau / (e^{-xi/tau} + u_i) times the
    gradient of phi_i (eq. 15).

    zeta_j is the margin of item j. It is learned with eq. 14 and converges to the point where
    e^{zeta_j/tau} is proportional to the item's popularity, which `estimate_popularity` computes
    from all similarities at once. Popular items, which are often false negatives, are pushed away
    less. xi is the largest |zeta| so far. With popularity_lr = 0, the default, zeta is constant;
    set it above 0 after a few epochs.

    zeta fluctuates by about its step size. The paper uses momentum; here, `log_popularity` is
    computed from zeta_mean, an average over an item's visits that gives later visits more weight
    (Shamir and Zhang, 2013, eta = 3).

    Args:
        dataset_size: n, the number of items that `index` refers to.
        temperature: tau, as for `SogCLR`.
        gamma: weight of the new estimate in u, in (0, 1].
        popularity_lr: step size for zeta, >= 0; 0.1 to 0.3 is suitable for any n. Each visit to
            item j changes zeta_j/tau by popularity_lr (r_j - 1), where r_j is the ratio of its
            popularity in the batch to e^{zeta_j/tau}. About 4 / popularity_lr visits to each item
            are needed. The step size may be changed before every step.
        zeta_init: initial value of zeta. The paper uses 0 or -0.05.
        options: reduction, chunk_size, gather, within_view and precision, as for `info_nce`.

    >>> import torch
    >>> loss = NUCLR(dataset_size=100, temperature=0.2, zeta_init=-0.05)
    >>> images = torch.eye(4)
    >>> loss(images, images, index=torch.tensor([7, 42, 60, 99]))  # their rows in the data set
    tensor(0.0984)
    """

    zeta: Tensor
    zeta_mean: Tensor
    visits: Tensor
    xi: Tensor
    _scheduled = frozenset({"popularity_lr", "popularity_wait"})

    def __init__(
        self,
        dataset_size: int,
        *,
        temperature: float,
        gamma: float = 0.8,
        popularity_lr: float = 0.0,
        zeta_init: float = 0.0,
        **options: Unpack[BatchOptions],
    ) -> None:
        super().__init__(dataset_size, temperature=temperature, gamma=gamma, **options)
        self.popularity_lr = popularity_lr
        self.register_buffer("zeta", torch.full((2, dataset_size), zeta_init))
        self.register_buffer("zeta_mean", torch.full((2, dataset_size), zeta_init))
        self.register_buffer("visits", torch.zeros(dataset_size))
        self.register_buffer("xi", torch.full((2,), abs(zeta_init)))

    def schedule(  # type: ignore[override]  # its settings extend those of SogCLR
        self, settings: NUCLRSettings, step: int, steps: int
    ) -> None:
        """Learn items' popularity only after a share `popularity_wait` of all steps.

        Args:
            settings: settings as declared in `Loss.settings`.
            step: index of the next update, from 0.
            steps: total number of updates.
        """
        is_waiting = step < settings.popularity_wait * steps
        self.popularity_lr = 0.0 if is_waiting else settings.popularity_lr

    def forward(self, image_features: Tensor, text_features: Tensor, index: Tensor) -> Tensor:
        """Return the loss for a batch.

        Args:
            image_features: (n, d), rows of norm 1.
            text_features: (n, d), rows of norm 1.
            index: (n,) distinct integers in 0 .. dataset_size - 1, the item in each row.
        """
        batch, items = self._batch(image_features, text_features, index, self.temperature)
        learns_popularity = self._is_learning and self.popularity_lr > 0
        old_zeta = self.zeta.index_select(1, items)
        zeta = old_zeta.to(batch.positive.dtype, copy=True).requires_grad_(learns_popularity)
        (log_sum,) = batch.sums(1.0, margin=zeta / self.temperature)
        log_phi = self._log_phi(batch, log_sum - batch.positive)
        log_u = self._averaged(batch, items, log_phi.detach())
        log_pair = -self.xi[:, None].to(log_u.dtype) / self.temperature
        value = self._loss(batch, log_phi, log_u, log_pair)
        if learns_popularity:
            gradient = self._popularity_gradient(batch, zeta, log_phi, log_u)
            self._step_popularity(items, old_zeta, gradient)
        return value

    def _step_popularity(self, items: Tensor, zeta: Tensor, gradient: Tensor) -> None:
        """Update the margins (2, B) of items and their mean by the gradient (2, B)."""
        zeta = zeta - self.popularity_lr * self.temperature * gradient.to(zeta.dtype)
        self.zeta.index_copy_(1, items, zeta)
        visits = self.visits.index_select(0, items) + 1
        self.visits.index_copy_(0, items, visits)
        # Shamir and Zhang give visit t the weight (eta + 1) / (t + eta), here with eta = 3.
        mean = self.zeta_mean.index_select(1, items)
        self.zeta_mean.index_copy_(1, items, mean + 4 / (visits + 3) * (zeta - mean))
        self.xi.copy_(torch.maximum(self.xi, zeta.abs().amax(1)))

    def _popularity_gradient(
        self, batch: Contrast, zeta: Tensor, log_phi: Tensor, log_u: Tensor
    ) -> Tensor:
        """Return n G(zeta_j) = 1 - r_j (2, B), with a corrected mean in eq. 14.

        As printed, eq. 14 averages over the rows of the batch with 1/B, but also has a term 1/n. An
        item j is only updated if it is in the batch. Any other row i is then in the batch with
        probability (B - 1) / (n - 1), and the factor (n - 1) / (B - 1) in phi already compensates
        for that. With 1/B, the expectation would therefore be n/B times the first term of the
        gradient of eq. 10 (eq. 12 has the same factor), and the popularity would be too large by
        n/B, so this function uses 1/n. The positive pair has weight
        e^{-zeta_i/tau}, as in eq. 14. Eq. 15, the gradient for the model, uses e^{-xi/tau}.
        """
        margin = -zeta.detach() / self.temperature
        log_denominator = torch.logaddexp(log_u, margin)
        weighted = (
            self.temperature
            * torch.exp(log_phi.detach() - log_denominator[:, batch.rows])
            * log_phi
        )
        repulsion = batch.margin_gradient(weighted.sum(), zeta)
        repulsion = sum_over_processes(repulsion) if batch.gather else repulsion
        return repulsion - torch.exp(margin - log_denominator) + 1

    @property
    def log_popularity(self) -> Tensor:
        """Return the log popularity (2, n) of texts (row 0) and images (row 1) up to a constant."""
        return self.zeta_mean / self.temperature


class ISogCLR(SogCLR):
    """Estimate a contrastive loss over an entire data set, with a temperature for each item.

    This is the bimodal form of Qiu et al., iSogCLR (2023), averaged over images and texts as
    anchors:

        tau_i (log g_i + rho)
        g_i = 1/(n - 1) sum_{j != i} exp((E_ij - E_ii) / tau_i),   E_ij = <image_i, text_j>

    The minimum over tau_i weights the negatives with a softmax whose Kullback-Leibler divergence
    from equal weights is rho, so items with many similar negatives get a higher temperature. u is
    a moving average of g, as in `SogCLR`, and the gradient is tau_i / u_i times the gradient of
    g_i. After each batch, tau_i is lowered by `temperature_lr` times the gradient

        log u_i + rho - 1/(u_i tau_i) mean_{j != i} (E_ij - E_ii) exp((E_ij - E_ii) / tau_i)

    without the momentum of the paper's algorithm. Because g_i depends on tau_i, u_i is moved along,
    by its derivative in 1/tau_i; a stale u_i would make tau_i swing around a value above the
    optimum. The temperatures are stored in the buffer `tau` (2, n), in the units of cosines.

    Args:
        dataset_size: n, the number of items that `index` refers to.
        temperature: initial tau of every item, above 0.
        gamma: weight of the new estimate in u, in (0, 1].
        kl_radius: rho, in nats, below the logarithm of the number of negatives in a batch, because
            otherwise every tau falls to the minimum.
        temperature_lr: step size of tau, >= 0.
        minimum_temperature: lower bound of tau, tau_0 in the paper.
        options: reduction, chunk_size, gather, within_view and precision, as for `info_nce`.

    >>> import torch
    >>> loss = ISogCLR(dataset_size=100, temperature=0.2, kl_radius=1.0)
    >>> images = torch.eye(4)
    >>> loss(images, images, index=torch.tensor([7, 42, 60, 99])).detach()
    tensor(-0.8000)
    """

    tau: Tensor

    def __init__(
        self,
        dataset_size: int,
        *,
        temperature: float,
        gamma: float = 0.8,
        kl_radius: float = 3.0,
        temperature_lr: float = 0.001,
        minimum_temperature: float = 0.005,
        **options: Unpack[BatchOptions],
    ) -> None:
        super().__init__(dataset_size, temperature=temperature, gamma=gamma, **options)
        check_interval("kl_radius", kl_radius, "(0, inf)")
        check_interval("temperature_lr", temperature_lr, "[0, inf)")
        check_interval("minimum_temperature", minimum_temperature, "(0, inf)")
        self.kl_radius = kl_radius
        self.temperature_lr = temperature_lr
        self.minimum_temperature = minimum_temperature
        self.register_buffer("tau", torch.full((2, dataset_size), temperature))

    def forward(self, image_features: Tensor, text_features: Tensor, index: Tensor) -> Tensor:
        """Return the loss for a batch.

        Args:
            image_features: (n, d), rows of norm 1.
            text_features: (n, d), rows of norm 1.
            index: (n,) distinct integers in 0 .. dataset_size - 1, the item in each row.
        """
        # Anchors have temperatures of their own, so similarities are cosines.
        batch, items = self._batch(image_features, text_features, index, 1.0)
        if self.kl_radius >= math.log(batch.count):
            raise InvalidInputError(
                f"kl_radius: expected less than {math.log(batch.count):.2f}, the logarithm of"
                f" {batch.count} negatives, got {self.kl_radius:g}; lower it, or raise the batch"
                " size"
            )
        tau = self.tau.index_select(1, items)[:, batch.rows].to(batch.positive.dtype)
        means = torch.empty_like(tau)

        def log_sum_of_block(side: int, cosines: Tensor, block: slice) -> Tensor:
            log_sum, mean = _TemperedSum.apply(cosines, tau[side, block])
            means[side, block] = mean
            return log_sum

        log_sum = batch.each_row(log_sum_of_block) - batch.positive / tau
        log_g = log_sum - math.log(batch.count)
        log_u = self._averaged(batch, items, log_g.detach())
        log_u_here = log_u[:, batch.rows]
        weights = torch.exp(log_g.detach() - log_u_here)
        if self._is_learning and self.temperature_lr > 0:
            # The mean of (E_ij - E_ii) / tau_i under the softmax of the negatives.
            mean_margin = (means - batch.positive.detach()) / tau
            gradient = log_u_here + self.kl_radius - weights * mean_margin
            moved = (tau - self.temperature_lr * gradient).clamp_(min=self.minimum_temperature)
            carried = log_u_here + mean_margin * (tau / moved - 1)
            if batch.gather:
                moved, carried = gather_rows(moved.T).T, gather_rows(carried.T).T
            self.tau.index_copy_(1, items, moved.to(self.tau.dtype))
            self.log_u.index_copy_(1, items, carried.to(self.log_u.dtype))
        weighted = tau * weights * log_g
        return batch.reduce(tau * (log_u_here + self.kl_radius) + weighted - weighted.detach())


class _TemperedSum(torch.autograd.Function):
    """Compute log sum_j e^{s_ij / tau_i} (c,), and the mean of s_ij (c,) under that softmax.

    Only the sum has a gradient, with respect to s. Plain torch would keep several matrices.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
        weights = s / tau[:, None]
        log_sum = weights.logsumexp(1)
        weights.sub_(log_sum[:, None]).exp_()
        # Entries that are not negatives are -inf with weight 0, whose product is NaN.
        mean = weights.mul_(s).nansum(1)
        ctx.save_for_backward(s, tau, log_sum)
        ctx.mark_non_differentiable(mean)
        return log_sum, mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        s, tau, log_sum = ctx.saved_tensors
        weights = s / tau[:, None]
        weights.sub_(log_sum[:, None]).exp_()
        return weights.mul_((outer[0] / tau)[:, None]), None


def estimate_popularity(similarity: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """Estimate the popularity of n items from their similarities.

    Solves eq. 8 and 9 of Wang et al., NUCLR (2024). At the optimum, with K = e^{E/tau},

        q_j = sum_i K_ij / sum_k K_ik / q_k,

    so K becomes doubly stochastic if its columns are divided by q and its rows by their sums.
    Instead of using gradient descent, the function alternates these two scalings (Sinkhorn's
    algorithm), each of which is an exact minimisation, so no step size is needed. It computes in
    logarithms and in float64.

    Args:
        similarity: (n, n), similarities E_ij of anchor x_i and item y_j, with pairs on the
            diagonal.
        temperature: tau > 0.

    Returns:
        zeta: (n,) float64 margins with mean 0.
        log_popularity: (n,) zeta / tau, the log of q_j = sum_i p(y_j | x_i) up to a constant.

    >>> import torch
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
    # Start with equally popular items, q_j = 1.
    logits = similarity.detach().double() / temperature
    log_q = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    for iteration in range(1, _ITERATIONS + 1):
        log_total = torch.logsumexp(logits - log_q, dim=1)
        # At the optimum, sum_i K_ij / total_i equals q_j.
        scaled = torch.logsumexp(logits - log_total[:, None], dim=0)
        norm = float(torch.expm1(scaled - log_q).norm()) / len(logits)
        if norm <= _TOLERANCE or iteration == _ITERATIONS:
            break
        log_q = scaled
    if norm > _TOLERANCE:
        warn(
            f"popularity: gradient norm {norm:.1e} after {_ITERATIONS} iterations, expected"
            f" {_TOLERANCE:.1e}; raise the temperature"
        )
    # Eq. 9 only determines q up to a factor, so centre its logarithm.
    log_q = log_q - log_q.mean()
    return log_q * temperature, log_q
