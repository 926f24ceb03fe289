"""The global contrastive loss: the softmax over the whole dataset, from small batches (SogCLR, NUCLR)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.losses.blocks import Rows
from vldebias.losses.checks import check_interval, check_labels, matched
from vldebias.losses.contrast import Reduction, check_options, per_row, reduce, without_autocast
from vldebias.losses.processes import gather_rows, own_rows, sum_over_processes

__all__ = ["GlobalContrastiveLoss"]

_IMAGES, _TEXTS = 0, 1  # row of the state that belongs to the anchors of this kind


class GlobalContrastiveLoss(nn.Module):
    """tau log(e^{-xi/tau} + phi_i) with phi_i over all n items of the dataset, Wang et al. (2025), Algorithm 1.

        phi_i = sum_{j != i} exp((E_ij - E_ii - zeta_j) / tau)     E_ij = <image_i, text_j>, and texts to images

    A batch of B sees B - 1 of the n - 1 terms, and the logarithm of a batch estimate is biased. So each item keeps a
    moving average u_i <- (1 - gamma) u_i + gamma phi_i(batch), its first value being the first estimate, and the
    gradient is tau / (e^{-xi/tau} + u_i) times that of phi_i (eq. 15). Popularity: zeta_j is the margin of item j,
    learned along eq. 14 (e^{zeta/tau} is proportional to how much of all conditional probability item j gets, see
    `estimate_popularity`); popular items, often false negatives, are pushed away less. xi is the largest |zeta| so
    far, which spares the positive pair.

    popularity_lr = 0 (the default) leaves zeta where it is: zeta_init = 0 is SogCLR (Yuan et al., 2022), NUCLR sets
    popularity_lr > 0, after a few epochs without. A batch that is the whole dataset gives tau times `info_nce`.

    The value is the running estimate of the objective; its gradient is eq. 15, not the derivative of the value
    (u is a constant in it). State moves in training mode with gradients enabled, and is read only otherwise: a
    second pass over the same batch, as SAM makes it, belongs in evaluation mode.
    It is kept in the buffers log_u, zeta, velocity (2, n) and xi (2,), row 0 for images as anchors and row 1 for
    texts, so a checkpoint of the module resumes exactly. log_u is -inf for items not seen yet; the logarithm keeps
    e^{2/t} finite at t = .01. zeta is defined up to a constant, and in small batches drifts upward as one.

    Args:
        dataset_size: n, how many items `index` counts.
        temperature: tau, fixed: the state is in its units. The paper tunes it within .01 to .07.
        gamma: in (0, 1], weight of the newest estimate in u.
        popularity_lr: step size of zeta, >= 0; may be set anew every step.
        popularity_momentum: momentum of the steps of zeta, in [0, 1).
        zeta_init: first value of zeta; 0 or -.05 in the paper.
        reduction, chunk_size, gather, within_view: see `info_nce`. With `gather` every process keeps the same state.

    Raises:
        InvalidInputError: a setting outside its interval.
    """

    log_u: Tensor
    zeta: Tensor
    velocity: Tensor
    xi: Tensor

    def __init__(
        self,
        dataset_size: int,
        *,
        temperature: float = 0.05,
        gamma: float = 0.8,
        popularity_lr: float = 0.0,
        popularity_momentum: float = 0.9,
        zeta_init: float = 0.0,
        reduction: Reduction = "mean",
        chunk_size: int | None = None,
        gather: bool = False,
        within_view: bool = False,
    ) -> None:
        super().__init__()
        check_interval("dataset_size", dataset_size, "[2, inf)")
        check_interval("gamma", gamma, "(0, 1]")
        check_interval("popularity_lr", popularity_lr, "[0, inf)")
        check_interval("popularity_momentum", popularity_momentum, "[0, 1)")
        check_options(temperature, reduction, chunk_size)
        self.dataset_size, self.temperature, self.gamma = dataset_size, temperature, gamma
        self.popularity_lr, self.popularity_momentum = popularity_lr, popularity_momentum
        self.reduction: Reduction = reduction
        self.chunk_size, self.gather, self.within_view = chunk_size, gather, within_view
        self.register_buffer("log_u", torch.full((2, dataset_size), -torch.inf))
        self.register_buffer("zeta", torch.full((2, dataset_size), float(zeta_init)))
        self.register_buffer("velocity", torch.zeros(2, dataset_size))
        self.register_buffer("xi", torch.full((2,), abs(float(zeta_init))))

    @property
    def log_popularity(self) -> Tensor:
        """(2, n) log of the learned popularity, zeta / tau, up to a constant per row.

        Row 0 is that of the texts, the negatives of images as anchors, row 1 that of the images.
        """
        return self.zeta / self.temperature

    def forward(self, image_features: Tensor, text_features: Tensor, index: Tensor) -> Tensor:
        """Loss of image_features (n, d) and text_features (n, d), rows of norm 1.

        Args:
            image_features: (n, d).
            text_features: (n, d).
            index: (n,) integers, which item of the dataset each row is; no item twice.

        Raises:
            InvalidInputError: an index outside 0 .. dataset_size - 1 or twice in the batch, and what `info_nce`
                refuses.
        """
        image, text = matched(image_features, text_features)
        check_labels("index", index, len(image))
        with without_autocast(image):
            items = self._items(gather_rows(index) if self.gather else index)
            images, texts = (gather_rows(image), gather_rows(text)) if self.gather else (image, text)
            own = (images, texts) if self.within_view else (None, None)
            forward = self._direction(_IMAGES, image, texts, own[0], items)
            backward = self._direction(_TEXTS, text, images, own[1], items)
            return reduce((forward + backward) / 2, self.reduction, self.gather)

    def _items(self, index: Tensor) -> Tensor:
        """(B,) items of the joint batch."""
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= self.dataset_size:
            raise InvalidInputError(f"index: expected 0 .. {self.dataset_size - 1}, got {low} .. {high}")
        if len(index.unique()) < len(index):
            raise InvalidInputError("index: an item is twice in the batch; sample without replacement")
        return index

    def _direction(self, side: int, anchors: Tensor, other: Tensor, own: Tensor | None, items: Tensor) -> Tensor:
        """(n,) value and gradient of one direction, after the state has moved (Algorithm 1, lines 4-7)."""
        moving = self.training and torch.is_grad_enabled()
        learning = moving and self.popularity_lr > 0
        zeta = self.zeta[side, items].to(anchors.dtype).requires_grad_(learning)
        log_phi = self._log_phi(anchors, other, own, zeta)
        log_u = self._moved_average(side, items, log_phi)
        mine = own_rows(len(anchors), len(other))
        if learning:
            gradient = self._popularity_gradient(zeta, log_phi, log_u, mine)
        log_denominator = torch.logaddexp(log_u[mine], -self.xi[side].to(log_u.dtype) / self.temperature)
        weighted = self.temperature * torch.exp(log_phi.detach() - log_denominator) * log_phi
        if moving:
            self.log_u[side, items] = log_u.to(self.log_u.dtype)
        if learning:
            self._step(side, items, gradient)
        return self.temperature * log_denominator + weighted - weighted.detach()

    def _log_phi(self, anchors: Tensor, other: Tensor, own: Tensor | None, zeta: Tensor) -> Tensor:
        """(n,) log of the estimate of phi from the batch."""
        views = 1 if own is None else 2
        log_n = math.log(views * (self.dataset_size - 1))

        def row_loss(rows: Rows, zeta: Tensor) -> Tensor:
            margin = zeta.repeat(views) / self.temperature
            return torch.logsumexp(rows.negatives - margin, dim=1) - rows.positive + log_n - math.log(rows.count)

        options = {"temperature": self.temperature, "chunk_size": self.chunk_size}
        return per_row(row_loss, anchors, other, own, zeta, **options)  # type: ignore[arg-type]

    def _moved_average(self, side: int, items: Tensor, log_phi: Tensor) -> Tensor:
        """(B,) log u of the joint batch after its step."""
        new = log_phi.detach()
        new = gather_rows(new) if self.gather else new
        old = self.log_u[side, items].to(new.dtype)
        keep = math.log1p(-self.gamma) if self.gamma < 1 else -math.inf
        return torch.where(old == -torch.inf, new, torch.logaddexp(old + keep, new + math.log(self.gamma)))

    def _popularity_gradient(self, zeta: Tensor, log_phi: Tensor, log_u: Tensor, mine: slice) -> Tensor:
        """(B,) G(zeta_j) of eq. 14, in which the positive pair weighs e^{-zeta_i/tau}."""
        margin = -zeta.detach() / self.temperature
        log_denominator = torch.logaddexp(log_u, margin)
        weighted = self.temperature * torch.exp(log_phi.detach() - log_denominator[mine]) * log_phi
        (repulsion,) = torch.autograd.grad(weighted.sum(), zeta, retain_graph=True)
        repulsion = sum_over_processes(repulsion) if self.gather else repulsion
        return (repulsion - torch.exp(margin - log_denominator)) / len(zeta) + 1 / self.dataset_size

    def _step(self, side: int, items: Tensor, gradient: Tensor) -> None:
        """Gradient descent with momentum on the items of the batch, and xi_{t+1} = max(xi_t, |zeta_{t+1}|)."""
        velocity = self.popularity_momentum * self.velocity[side, items] + gradient.to(self.velocity.dtype)
        self.velocity[side, items] = velocity
        self.zeta[side, items] -= self.popularity_lr * velocity
        self.xi[side] = torch.maximum(self.xi[side], self.zeta[side, items].abs().max())

    def extra_repr(self) -> str:
        """The settings."""
        names = ("dataset_size", "temperature", "gamma", "popularity_lr", "popularity_momentum")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
