"""Reference implementations of the losses: slow, with loops over rows and plain exponentials."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Row = Callable[[Tensor, list[Tensor], list[Tensor]], Tensor]


def unit_rows(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64), dim=1).to(dtype)


def of_rows(
    anchors: Tensor,
    candidates: Tensor,
    row: Row,
    t: Tensor,
    within: bool = False,
    positives: Tensor | None = None,
) -> Tensor:
    losses = []
    for i, x in enumerate(anchors):
        plus = x @ candidates[i] / t
        minus = [x @ candidates[j] / t for j in range(len(candidates)) if j != i]
        if within:
            minus += [x @ anchors[j] / t for j in range(len(anchors)) if j != i]
        samples = [plus] if positives is None else [x @ v / t for v in positives[i]]
        losses.append(row(plus, minus, samples))
    return torch.stack(losses)


def both(direction: Callable[..., Tensor], x: Tensor, y: Tensor, *arguments: Any) -> Tensor:
    """Return the mean (n,) of both directions."""
    return (direction(x, y, *arguments) + direction(y, x, *arguments)) / 2


def derived(function: Callable[..., Tensor], *inputs: Tensor) -> list[Any]:
    """Return a loss and the gradients of its weighted sum with respect to the inputs."""
    values = function(*inputs)
    weights = torch.linspace(0.5, 1.5, values.numel(), dtype=values.dtype).reshape(values.shape)
    return [
        values.detach(),
        *torch.autograd.grad((values * weights).sum(), inputs, allow_unused=True),
    ]


def total(values: list[Tensor]) -> Tensor:
    return torch.stack([torch.exp(value) for value in values]).sum()


def info_nce_row(plus: Tensor, minus: list[Tensor], samples: list[Tensor]) -> Tensor:
    """Return eq. 5.2 of the thesis."""
    return -torch.log(torch.exp(plus) / (torch.exp(plus) + total(minus)))


def rince_row(q: float, lam: float) -> Row:
    """Return the loss in section 5.2 of the thesis."""

    def row(plus: Tensor, minus: list[Tensor], samples: list[Tensor]) -> Tensor:
        return -torch.exp(q * plus) / q + (lam * (torch.exp(plus) + total(minus))) ** q / q

    return row


def weighted(values: list[Tensor], beta: float, score_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the mean of `score_of` with importance weights e^{beta s} / Z_beta (section 4.1.2 of
    the thesis)."""
    z = total([beta * value for value in values]) / len(values)
    return torch.stack([torch.exp(beta * value) / z * score_of(value) for value in values]).mean()


def hcl_row(
    tau_plus: float, beta: float, floor: Callable[[], Tensor], below_floor: str = "floor"
) -> Row:
    """Return eq. 4.4 of the thesis; beta = 0 gives eq. 3.6 and 3.7, and "biased" is the rule of
    appendix A.1.1."""

    def row(plus: Tensor, minus: list[Tensor], samples: list[Tensor]) -> Tensor:
        mean_all = weighted(minus, beta, torch.exp)
        mean_plus = weighted(samples, beta, torch.exp)
        g = (mean_all - tau_plus * mean_plus) / (1 - tau_plus)
        if below_floor == "floor":
            g = torch.maximum(g, floor())
        elif g <= floor():
            g = mean_all
        return -torch.log(torch.exp(plus) / (torch.exp(plus) + len(minus) * g))

    return row


def spread(
    anchors: Tensor, candidates: Tensor, labels: list[int], t: Tensor, alpha: float, within: bool
) -> Tensor:
    """Return eq. 1-3 of the spread paper for one direction, with both views or only the opposite
    view."""
    losses = []
    n = len(anchors)
    for i in range(n):
        batch = [(candidates[j], labels[j], False) for j in range(n)]
        batch += [(anchors[j], labels[j], j == i) for j in range(n)] if within else []
        batch = [(z, label) for z, label, itself in batch if not itself]
        positives = [anchors[i] @ z / t for z, label in batch if label == labels[i]]
        different = [anchors[i] @ z / t for z, label in batch if label != labels[i]]
        rest = total(different) if different else torch.zeros((), dtype=t.dtype)
        attract = -torch.stack(
            [torch.log(torch.exp(s) / (torch.exp(s) + rest)) for s in positives]
        ).mean()
        repel = -torch.log(torch.exp(anchors[i] @ candidates[i] / t) / total(positives))
        losses.append(alpha * attract + (1 - alpha) * repel)
    return torch.stack(losses)


def supcon(
    anchors: Tensor, candidates: Tensor, labels: list[int], t: Tensor, within: bool
) -> Tensor:
    """Return eq. 2 of Khosla et al. (2020) for one direction, with both views or only the opposite
    view."""
    losses = []
    n = len(anchors)
    for i in range(n):
        batch = [(candidates[j], labels[j]) for j in range(n)]
        if within:
            batch += [(anchors[j], labels[j]) for j in range(n) if j != i]
        denominator = total([anchors[i] @ z / t for z, _ in batch])
        terms = [
            -torch.log(torch.exp(anchors[i] @ z / t) / denominator)
            for z, label in batch
            if label == labels[i]
        ]
        losses.append(torch.stack(terms).mean())
    return torch.stack(losses)


def cyclip(
    x: Tensor, y: Tensor, t: Tensor, within: bool, cross_modal: float, in_modal: float
) -> Tensor:
    """Return the loss of Goel et al. (2022), whose last two terms use cosines."""
    losses = both(of_rows, x, y, info_nce_row, t, within)
    terms = []
    for i in range(len(x)):
        cross = [(x[i] @ y[j] - x[j] @ y[i]) ** 2 for j in range(len(x))]
        within_views = [(x[i] @ x[j] - y[i] @ y[j]) ** 2 for j in range(len(x))]
        terms.append(
            cross_modal * torch.stack(cross).sum() + in_modal * torch.stack(within_views).sum()
        )
    return losses + torch.stack(terms)


class ItemTemperatures:
    """Compute iSogCLR for one direction, in plain numbers; u_0 is the first estimate of g."""

    def __init__(
        self, n: int, tau: float, gamma: float, rho: float, lr: float, least: float, within: bool
    ) -> None:
        self.tau = [tau] * n
        self.gamma = gamma
        self.rho = rho
        self.lr = lr
        self.least = least
        self.within = within
        self.u: dict[int, float] = {}

    def step(self, x: Tensor, y: Tensor, items: list[int]) -> tuple[float, Tensor]:
        """Return the value, and the gradient of the features as a scalar to differentiate."""
        b = len(items)
        views = [y, x] if self.within else [y]
        value = 0.0
        carrier = x.new_zeros(())
        for i, item in enumerate(items):
            tau = self.tau[item]
            h = [x[i] @ view[j] - x[i] @ y[i] for view in views for j in range(b) if j != i]
            g = total([score / tau for score in h]) / len(h)
            new = float(g.detach())
            old = self.u.get(item)
            self.u[item] = new if old is None else (1 - self.gamma) * old + self.gamma * new
            u = self.u[item]
            value += tau * (math.log(u) + self.rho) / b
            carrier = carrier + tau / u * g / b
            scores = [float(score.detach()) for score in h]
            mean = sum(score * math.exp(score / tau) for score in scores) / len(h)
            gradient = math.log(u) + self.rho - mean / (u * tau)
            self.tau[item] = max(tau - self.lr * gradient, self.least)
            # u moves with its derivative in 1/tau, which is that of log g.
            change = mean / float(g.detach()) * (1 / self.tau[item] - 1 / tau)
            self.u[item] *= math.exp(change)
        return value, carrier


def sigmoid_row(bias: Tensor) -> Row:
    """Return eq. 1 of SigLIP, where the loss of a pair is half the sum of its row plus half the sum
    of its column."""

    def row(plus: Tensor, minus: list[Tensor], samples: list[Tensor]) -> Tensor:
        return -torch.log(1 / (1 + torch.exp(-plus - bias))) + sum(
            torch.log(1 + torch.exp(s + bias)) for s in minus
        )

    return row


class GlobalContrast:
    """Compute NUCLR's Algorithm 1 for one direction, in plain numbers.

    u_0 is the first estimate of phi.
    The mean follows mean_k = (1 - 4 / (k + 3)) mean_{k-1} + 4 / (k + 3) zeta_k, where k only counts
    the visits to the item.
    """

    def __init__(
        self, n: int, tau: float, gamma: float, lr: float, zeta: float, within: bool
    ) -> None:
        self.n = n
        self.tau = tau
        self.gamma = gamma
        self.lr = lr
        self.within = within
        self.mean = [zeta] * n
        self.visits = [0] * n
        self.u: dict[int, float] = {}
        self.zeta = [zeta] * n
        self.xi = abs(zeta)

    def step(self, x: Tensor, y: Tensor, items: list[int]) -> tuple[float, Tensor]:
        """Return the value, and eq. 15 as a scalar to differentiate."""
        tau = self.tau
        b = len(items)
        views = [y, x] if self.within else [y]
        exps = [
            [
                total(
                    [(x[i] @ view[j] - x[i] @ y[i] - self.zeta[items[j]]) / tau for view in views]
                )
                for j in range(b)
            ]
            for i in range(b)
        ]
        scale = (self.n - 1) / (b - 1)
        phi = [scale * sum(exps[i][j] for j in range(b) if j != i) for i in range(b)]
        for i, item in enumerate(items):
            old = self.u.get(item)
            new = float(phi[i].detach())
            self.u[item] = new if old is None else (1 - self.gamma) * old + self.gamma * new
        eps_w = math.exp(-self.xi / tau)
        value = sum(tau * math.log(eps_w + self.u[item]) for item in items) / b
        carrier = sum(tau / (eps_w + self.u[item]) * phi[i] for i, item in enumerate(items)) / b
        self._popularity(exps, scale, items)
        return value, carrier

    def _popularity(self, exps: list[list[Tensor]], scale: float, items: list[int]) -> None:
        tau = self.tau
        b = len(items)
        eps = [math.exp(-self.zeta[item] / tau) for item in items]
        gradients = []
        for j in range(b):
            gradient = 1 / self.n
            for i in range(b):
                slope = -eps[j] / tau if i == j else -scale * float(exps[i][j].detach()) / tau
                # The paper divides by b, which is inconsistent.
                gradient += tau / (eps[i] + self.u[items[i]]) * slope / self.n
            gradients.append(gradient)
        for item, gradient in zip(items, gradients, strict=True):
            self.zeta[item] -= self.lr * self.n * tau * gradient  # lr in units of tau
            self.visits[item] += 1
            self.mean[item] += 4 / (self.visits[item] + 3) * (self.zeta[item] - self.mean[item])
        self.xi = max(self.xi, *(abs(self.zeta[item]) for item in items)) if self.lr else self.xi


def gce(
    anchors: Tensor,
    candidates: Tensor,
    captions: list[int],
    t: Tensor,
    q: float,
    smoothing: float,
    within: bool,
) -> Tensor:
    """Return (1 - p^q) / q over the captions of the batch for one direction."""
    n = len(anchors)
    views = [candidates, *([anchors] if within else [])]
    losses = []
    for i in range(n):
        masses = {}
        surprise = {}
        for caption in set(captions):
            rows = [(v, j) for v in range(len(views)) for j in range(n) if captions[j] == caption]
            scores = [anchors[i] @ views[v][j] / t for v, j in rows if not (v == 1 and j == i)]
            masses[caption] = (
                total(scores) / len(rows) if scores else torch.zeros((), dtype=t.dtype)
            )
            surprise[caption] = (scores, len(rows))
        mass = torch.stack(list(masses.values())).sum()
        p = masses[captions[i]] / mass
        loss = -p.log() if q == 0 else (1 - p**q) / q
        even = sum(
            (mass.log() - s) / size for scores, size in surprise.values() for s in scores
        ) / len(masses)
        losses.append((1 - smoothing) * loss + smoothing * even)
    return torch.stack(losses)
