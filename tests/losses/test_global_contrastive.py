"""Compare SogCLR and NUCLR with Algorithm 1; test limits, state and learned popularity."""

import math
from typing import Any

import pytest
import torch
from slow_losses import GlobalContrast, ItemTemperatures, unit_rows
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.losses import NUCLR, ISogCLR, SogCLR, estimate_popularity, info_nce

N = 12
B = 5
TAU = 0.2


def _features(seed: int, n: int = B) -> tuple[Tensor, Tensor]:
    return unit_rows(n, 4, seed=2 * seed).requires_grad_(), unit_rows(
        n, 4, seed=2 * seed + 1
    ).requires_grad_()


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {"gamma": 0.8},
        {"gamma": 1.0},
        {"gamma": 0.3, "popularity_lr": 0.7},
        {"gamma": 0.8, "popularity_lr": 0.5, "zeta_init": -0.0625},
        {"gamma": 0.8, "popularity_lr": 0.5, "within_view": True},
    ],
)
def test_the_loss_matches_algorithm_1(settings: dict[str, Any], chunk_size: int | None) -> None:
    """With `within_view`, phi_i includes both views of the other items with the zeta of each
    item."""
    loss = NUCLR(N, temperature=TAU, chunk_size=chunk_size, **settings).double()
    lr = settings.get("popularity_lr", 0.0)
    first = settings.get("zeta_init", 0.0)
    within = settings.get("within_view", False)
    slow = [GlobalContrast(N, TAU, settings["gamma"], lr, first, within) for _ in "xy"]
    generator = torch.Generator().manual_seed(7)
    for step, items in enumerate(torch.randperm(N, generator=generator)[:B] for _ in range(6)):
        x, y = _features(step)
        value = loss(x, y, items)
        gradients = torch.autograd.grad(value, (x, y))
        outcomes = [slow[0].step(x, y, items.tolist()), slow[1].step(y, x, items.tolist())]
        assert value.item() == pytest.approx(sum(v for v, _ in outcomes) / 2, rel=1e-9)
        for ours, expected in zip(
            gradients, torch.autograd.grad(sum(c for _, c in outcomes) / 2, (x, y)), strict=True
        ):
            torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-10)
    for side in (0, 1):
        seen = sorted(slow[side].u)
        assert loss.log_u[side].exp()[seen].tolist() == pytest.approx(
            [slow[side].u[i] for i in seen], rel=1e-9
        )
        assert loss.zeta[side].tolist() == pytest.approx(slow[side].zeta, abs=1e-10)
        assert loss.zeta_mean[side].tolist() == pytest.approx(slow[side].mean, abs=1e-10)
        assert float(loss.xi[side]) == pytest.approx(slow[side].xi, abs=1e-10)
    assert (loss.zeta.std() > 1e-3) == (lr > 0)


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("within_view", [False, True])
@pytest.mark.parametrize(("rho", "lr"), [(0.5, 0.1), (1.2, 0.02), (0.3, 0.0)])
def test_isogclr_matches_a_loop_over_items(
    rho: float, lr: float, within_view: bool, chunk_size: int | None
) -> None:
    """Some temperatures reach the minimum of 0.125, which float32 represents exactly."""
    loss = ISogCLR(
        N,
        temperature=0.25,
        kl_radius=rho,
        temperature_lr=lr,
        minimum_temperature=0.125,
        within_view=within_view,
        chunk_size=chunk_size,
    ).double()
    slow = [ItemTemperatures(N, 0.25, 0.8, rho, lr, 0.125, within_view) for _ in "xy"]
    generator = torch.Generator().manual_seed(7)
    for step, items in enumerate(torch.randperm(N, generator=generator)[:B] for _ in range(6)):
        x, y = _features(step)
        value = loss(x, y, items)
        outcomes = [slow[0].step(x, y, items.tolist()), slow[1].step(y, x, items.tolist())]
        assert value.item() == pytest.approx(sum(v for v, _ in outcomes) / 2, rel=1e-9)
        torch.testing.assert_close(
            torch.autograd.grad(value, (x, y)),
            torch.autograd.grad(sum(c for _, c in outcomes) / 2, (x, y)),
            rtol=1e-7,
            atol=1e-10,
        )
    for side in (0, 1):
        assert loss.tau[side].tolist() == pytest.approx(slow[side].tau, rel=1e-9)
    assert (loss.tau.std() > 1e-3) == (lr > 0)


@pytest.mark.parametrize("gamma", [0.3, 1.0])
@pytest.mark.parametrize("within_view", [False, True])
@pytest.mark.parametrize("module", [SogCLR, NUCLR])
def test_sogclr_on_the_whole_dataset_is_info_nce(
    module: type[SogCLR], gamma: float, within_view: bool
) -> None:
    """With zeta = 0 and all items in the batch, the loss is tau times InfoNCE, in value and
    gradient."""
    x, y = _features(1, N)
    loss = module(N, temperature=TAU, gamma=gamma, within_view=within_view)
    ours = loss(x, y, torch.arange(N))
    expected = TAU * info_nce(x, y, temperature=TAU, within_view=within_view)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    for a, b in zip(
        torch.autograd.grad(ours, (x, y)), torch.autograd.grad(expected, (x, y)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def _learned(n: int, batch: int, *, tau: float, lr: float) -> list[tuple[Tensor, Tensor]]:
    """Return, for both sides, the learned popularity and the popularity computed from all
    similarities."""
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(n, 8, generator=generator), dim=1)
    y = torch.nn.functional.normalize(
        x + 0.55 * torch.randn(n, 8, generator=generator) + 0.3, dim=1
    )
    loss = NUCLR(n, temperature=tau, popularity_lr=lr)
    for _ in range(40):
        for items in torch.randperm(n, generator=generator).split(batch)[: n // batch]:
            loss(x[items].requires_grad_(), y[items], items)
    oracle = [estimate_popularity(e, temperature=tau)[1].float() for e in (x @ y.T, y @ x.T)]
    return list(zip(loss.log_popularity, oracle, strict=True))


@pytest.mark.parametrize("lr", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("tau", [0.05, 0.2])
def test_the_popularity_converges_to_that_of_all_similarities(tau: float, lr: float) -> None:
    """The reference is Sinkhorn's iteration on all similarities; both temperatures need the same
    steps."""
    for reported, expected in _learned(240, 60, tau=tau, lr=lr):
        assert float(torch.corrcoef(torch.stack([reported, expected]))[0, 1]) > 0.94
        assert 0.5 < float(reported.std() / expected.std()) < 1.15
        assert abs(float(reported.mean())) < 1.5  # the constant hardly drifts


def test_sogclr_stores_eight_bytes_for_each_item() -> None:
    buffers = SogCLR(1000, temperature=TAU).buffers()
    assert sum(buffer.nbytes for buffer in buffers) == 8 * 1000


# ---- the popularity from all similarities at once: the optimum of eq. 8, its equation 9, and the
# truth it approximates


def _similarity(n: int = 15, seed: int = 1) -> Tensor:
    return unit_rows(n, 3, seed=seed) @ unit_rows(n, 3, seed=seed + 50).T


def popularity_objective(zeta: Tensor, similarity: Tensor, *, temperature: float) -> Tensor:
    """Return eq. 8 of Wang et al. (2024), convex in zeta (n,) and constant along zeta + c."""
    shares = ((similarity - zeta) / temperature).softmax(dim=1)
    weights = shares.diagonal() * (zeta / temperature).exp()  # e^{E_ii/tau} divided by the sum
    return (zeta - temperature * weights.log()).mean()


def test_the_gradient_of_the_convex_objective_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    e = _similarity()
    zeta = estimate_popularity(e, temperature=TAU)[0].requires_grad_()
    (gradient,) = torch.autograd.grad(popularity_objective(zeta, e, temperature=TAU), zeta)
    assert float(gradient.norm()) <= 2e-12
    assert (
        abs(float(zeta.detach().mean())) < 1e-12
    )  # zeta is centred, since a constant could be added
    monkeypatch.setattr("vldebias.losses.global_contrastive._ITERATIONS", 3)
    with pytest.warns(VldebiasWarning, match=r"after 3 iterations.* expected 1\.0e-12"):
        estimate_popularity(e, temperature=TAU)
    with pytest.raises(ValueError, match=r"\(15, 14\)"):
        estimate_popularity(e[:, 1:], temperature=TAU)


def test_equation_9_holds_and_its_matrix_is_doubly_stochastic() -> None:
    k = torch.exp(_similarity() / TAU)
    q = estimate_popularity(_similarity(), temperature=TAU)[1].exp()
    share = k / (k / q).sum(1, keepdim=True)
    torch.testing.assert_close(share.sum(0), q, rtol=1e-9, atol=0)
    torch.testing.assert_close((share / q).sum(1), torch.ones(15, dtype=torch.float64))


def test_the_estimate_matches_the_true_popularity_of_a_known_distribution() -> None:
    """In section 3.3, x is in a half disc, y is in a square, and p(y | x) is known. The uniform
    popularity is much less accurate."""
    generator = torch.Generator().manual_seed(0)
    n = 300
    draws = torch.rand(3000, 2, generator=generator, dtype=torch.float64)
    disc = draws * torch.tensor([2.0, 1.0], dtype=torch.float64) - torch.tensor(
        [1.0, 0.0], dtype=torch.float64
    )
    x = disc[disc.square().sum(1) <= 1][:n]
    slope = x / TAU
    # This is, per axis, the integral of e^{x y / tau} over [0, 1] and its inverse.
    total = torch.expm1(slope) / slope
    y = (
        torch.log1p(torch.rand(n, 2, generator=generator, dtype=torch.float64) * torch.expm1(slope))
        / slope
    )
    true = (torch.exp(x @ y.T / TAU) / total.prod(1)[:, None]).sum(0).log()
    popularity = estimate_popularity(x @ y.T, temperature=TAU)[1]
    assert (popularity - true).std() < 0.2 * true.std()


@pytest.mark.parametrize("start", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("signal", [0.55, 1.0])
def test_the_temperatures_of_isogclr_settle_at_the_optimum_of_its_objective(
    start: float, signal: float
) -> None:
    """On fixed features, 100 visits with the default step suffice, and tau no longer swings."""
    n, d = 64, 256
    shared, image_side, text_side = (unit_rows(n, d, seed=seed) for seed in (0, 1, 2))
    # All images share a direction, and all texts another, as in CLIP.
    images = normalize(image_side[:1] + signal * shared + 0.25 * unit_rows(n, d, seed=3), dim=1)
    texts = normalize(text_side[:1] + signal * shared + 0.25 * unit_rows(n, d, seed=4), dim=1)
    loss = ISogCLR(n, temperature=start)
    visits = []
    for _ in range(120):
        loss(images, texts, torch.arange(n))
        visits.append(loss.tau[0].clone())
    last = torch.stack(visits[100:])

    cosines = (images @ texts.T).double()
    margins = cosines - cosines.diagonal()[:, None]
    others = margins[~torch.eye(n, dtype=torch.bool)].view(n, n - 1)
    grid = torch.logspace(-2.3, -0.3, 800, dtype=torch.float64)
    log_g = torch.logsumexp(others[:, None] / grid[:, None], 2) - math.log(n - 1)
    best = grid[(grid * (log_g + loss.kl_radius)).argmin(1)]
    assert ((last.mean(0) / best).median() - 1).abs() < 0.15
    swing = (last.amax(0) - last.amin(0)) / last.mean(0)
    assert swing.median() < 0.02


def test_a_radius_that_no_batch_can_reach_is_refused() -> None:
    """No weights of 15 negatives are further from equal ones than log 15 = 2.71 nats."""
    rows = unit_rows(16, 4, seed=0)
    with pytest.raises(InvalidInputError, match=r"kl_radius: expected less than 2\.71.*15 neg"):
        ISogCLR(16, temperature=0.05)(rows, rows, torch.arange(16))
    ISogCLR(16, temperature=0.05, kl_radius=2.7)(rows, rows, torch.arange(16))


def test_nuclr_stores_28_bytes_for_each_item() -> None:
    def bytes_of(items: int) -> int:
        state = NUCLR(items, temperature=TAU).state_dict()
        return sum(tensor.nbytes for tensor in state.values())

    assert bytes_of(2_000) - bytes_of(1_000) == 28_000
