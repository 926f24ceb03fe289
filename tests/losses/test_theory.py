"""Test the theorems of the papers in small discrete worlds with exact expectations."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from slow_losses import unit_rows
from torch import Tensor, nn

from eval.experiments.label_margins import margins
from vldebias import losses
from vldebias.metrics import k_variance

# Two classes of two points: tau+ = 1/2. Temperature 1, as in the papers' theory.
CLASS = [0, 0, 1, 1]
TAU_PLUS = 0.5
WORLDS = [unit_rows(len(CLASS), 3, seed=seed) for seed in (0, 1)]
Loss = Callable[..., Tensor]


def reflected(rows: Tensor, x: Tensor, plus: Tensor) -> Tensor:
    """Reflect x and plus, which swaps them and preserves all similarities between rows."""
    axis = x - plus
    if float(axis.detach().norm()) < 1e-12:
        return rows
    axis = axis / axis.norm()
    return rows - 2 * (rows @ axis)[..., None] * axis


def one_sided(
    loss: Loss, x: Tensor, plus: Tensor, negatives: Tensor, samples: Tensor | None = None
) -> Tensor:
    """Return the loss of one anchor with its positive and negatives.

    The package's losses are means of both directions. With reflected rows for the anchor's side,
    the other direction sees the same similarities, and therefore has the same value.
    """
    texts = torch.cat([plus[None], negatives])
    images = torch.cat([x[None], reflected(negatives, x, plus)])
    further = {}
    if samples is not None:
        both = [samples, reflected(samples, x, plus)]
        further["positives"] = tuple(side.expand(len(texts), *side.shape) for side in both)
    return loss(images, texts, temperature=1.0, reduction="none", **further)[0]


def multisets(points: Sequence[int], n: int) -> Iterator[tuple[list[int], float]]:
    """Yield every multiset of n uniform draws from some points, with its probability."""
    for drawn in itertools.combinations_with_replacement(points, n):
        orders = math.factorial(n)
        for point in set(drawn):
            orders //= math.factorial(drawn.count(point))
        yield list(drawn), orders / len(points) ** n


def anchors(labels: list[int] = CLASS) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield each point with the points in its class and the points in the other classes."""
    for i, label in enumerate(labels):
        same = [j for j, other in enumerate(labels) if other == label]
        yield i, same, [j for j in range(len(labels)) if j not in same]


def expected(z: Tensor, n: int, *, of_other_class: bool) -> float:
    """Return E[InfoNCE] with n negatives of the other class (eq. 3.1), or of all points."""
    total = 0.0
    for i, same, other in anchors():
        for plus in same:
            for drawn, weight in multisets(other if of_other_class else range(len(CLASS)), n):
                value = one_sided(losses.info_nce, z[i], z[plus], z[drawn])
                total += weight * float(value) / len(CLASS) / len(same)
    return total


@pytest.mark.parametrize("z", WORLDS)
@pytest.mark.parametrize("n", [1, 2, 6])
def test_lemma_3_1_the_biased_loss_is_above_the_unbiased_one_less_two_terms(
    z: Tensor, n: int
) -> None:
    gap = 0.0
    for i, same, other in anchors():
        scores = torch.exp(z @ z[i])
        gap += min(0.0, float(torch.log(scores[same].mean() / scores[other].mean()))) / len(CLASS)
    least = expected(z, n, of_other_class=True) + gap
    biased = expected(z, n, of_other_class=False)
    assert biased >= least - math.e**1.5 * math.sqrt(math.pi / (2 * n))
    assert biased >= least - 0.2 / n  # the last term is far smaller than its bound


@pytest.mark.parametrize("n", [1, 2, 3])
def test_equation_3_3_is_the_unbiased_loss_by_inclusion_and_exclusion(n: int) -> None:
    z = WORLDS[0]
    total = 0.0
    for i, same, _ in anchors():
        for plus, k in itertools.product(same, range(n + 1)):
            parts = itertools.product(multisets(same, k), multisets(range(len(CLASS)), n - k))
            for (positives, p), (negatives, q) in parts:
                value = float(one_sided(losses.info_nce, z[i], z[plus], z[positives + negatives]))
                sign = math.comb(n, k) * (-TAU_PLUS) ** k / (1 - TAU_PLUS) ** n
                total += sign * p * q * value / len(CLASS) / len(same)
    assert total == pytest.approx(expected(z, n, of_other_class=True), abs=1e-12)


def distances_of_dcl(
    z: Tensor, labels: list[int], pair: tuple[int, int], n: int | None, m: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return every distance of an anchor's debiased loss from its limit with its probability.

    This is Delta in Theorem 3.4 for eq. 3.5 and 3.7 with Q = N. Its mean bounds the difference
    between the two losses.

    Args:
        z: The representations of the points.
        labels: The class of each point.
        pair: The anchor x and its positive x+.
        n: The number of negatives. If None, every point is used once, and the mean is exact.
        m: The number of positives.
    """
    i, plus = pair
    _, same, other = list(anchors(labels))[i]
    tau_plus = 1 / len(set(labels))
    points = range(len(labels))
    batches = [(list(points), 1.0)] if n is None else list(multisets(points, n))
    n = n or len(labels)

    def debiased(images: Tensor, texts: Tensor, **options: object) -> Tensor:
        return losses.debiased(images, texts, tau_plus=tau_plus, **options)

    other_mean = float(torch.exp(z[other] @ z[i]).mean())
    limit = math.log1p(n * other_mean / math.exp(float(z[i] @ z[plus])))
    distances = []
    for (negatives, p), (samples, q) in itertools.product(batches, multisets(same, m)):
        value = one_sided(debiased, z[i], z[plus], z[negatives], z[samples])
        distances.append((abs(float(value) - limit), p * q))
    found, weights = np.array(distances).T
    return found, weights


def distance_of_dcl(z: Tensor, labels: list[int], n: int | None, m: int) -> float:
    """Return the mean distance of the debiased loss from its limit."""
    means = []
    for i, same, _ in anchors(labels):
        for plus in same:
            found, weights = distances_of_dcl(z, labels, (i, plus), n, m)
            means.append(found @ weights)
    return float(np.mean(means))


@pytest.mark.parametrize(("n", "m"), [(2, 2), (4, 1), (8, 2)])
def test_theorem_3_4_bounds_the_tail_of_the_distance(n: int, m: int) -> None:
    found, weights = distances_of_dcl(WORLDS[0], CLASS, (0, 1), n, m)
    assert weights.sum() == pytest.approx(1)
    for distance in np.linspace(0.05, 2, 20):
        tail = float(weights[found >= distance].sum())
        by_n = math.exp(-n * distance**2 * (1 - TAU_PLUS) ** 2 / (2 * math.e**3))
        by_m = math.exp(-m * distance**2 * ((1 - TAU_PLUS) / TAU_PLUS) ** 2 / (2 * math.e**3))
        assert tail <= 2 * by_n + 2 * by_m


@pytest.mark.parametrize("seed", [0, 1])
def test_theorem_3_3_the_debiased_loss_converges_as_n_and_m_grow(seed: int) -> None:
    def bound(tau_plus: float, n: int, m: int) -> float:
        by_m = tau_plus * math.sqrt(math.pi / (2 * m))
        return math.e**1.5 / (1 - tau_plus) * (math.sqrt(math.pi / (2 * n)) + by_m)

    # With classes of one point, M causes no error, and there are few multisets.
    z = unit_rows(3, 3, seed=seed)
    by_n = [distance_of_dcl(z, [0, 1, 2], n, 1) for n in (4, 16)]
    assert by_n[0] > by_n[1]
    assert all(error <= bound(1 / 3, n, 1) for error, n in zip(by_n, (4, 16), strict=True))
    by_m = [distance_of_dcl(WORLDS[seed], CLASS, None, m) for m in (1, 4, 16)]
    assert by_m[0] > by_m[1] > by_m[2]
    assert all(error <= bound(0.5, 4, m) for error, m in zip(by_m, (1, 4, 16), strict=True))


@pytest.mark.parametrize("z", WORLDS)
@pytest.mark.parametrize("n", [1, 4])
def test_lemma_3_5_the_debiased_loss_bounds_that_of_the_mean_classifier(z: Tensor, n: int) -> None:
    means = torch.stack([z[:2].mean(0), z[2:].mean(0)])
    supervised = nn.functional.cross_entropy(z @ means.T, torch.tensor(CLASS))
    debiased = 0.0
    for i, same, other in anchors():
        negative = float(torch.exp(z[other] @ z[i]).mean())
        for plus in same:
            ratio = negative / math.exp(float(z[i] @ z[plus]))
            debiased += math.log1p(n * ratio) / len(CLASS) / len(same)
    assert float(supervised) <= debiased


def samples_of_dcl(z: Tensor, n: int, m: int) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """Yield every sample (x, x+, negatives, positives) with its probability and debiased loss."""

    def debiased(images: Tensor, texts: Tensor, **options: object) -> Tensor:
        return losses.debiased(images, texts, tau_plus=TAU_PLUS, **options)

    for i, same, _ in anchors():
        drawn = itertools.product(same, multisets(range(len(CLASS)), n), multisets(same, m))
        for plus, (negatives, p), (positives, q) in drawn:
            value = one_sided(debiased, z[i], z[plus], z[negatives], z[positives])
            weight = p * q / len(CLASS) / len(same)
            yield (i, plus, *negatives, *positives), weight, float(value)


def test_theorem_3_6_bounds_the_loss_on_all_data_by_that_on_a_sample() -> None:
    """Test each step of the proof, with constants. The exponentials of differences between
    similarities are in [e^-2, e^2], and the floor over e^{s+} is at least e^-2."""
    n, m, delta = 2, 1, 0.1
    tau_minus = 1 - TAU_PLUS
    encoders = [unit_rows(len(CLASS), 3, seed=seed) for seed in range(4)]
    found = [list(samples_of_dcl(z, n, m)) for z in encoders]
    drawn = np.array([sample for sample, _, _ in found[0]])
    weights = np.array([weight for _, weight, _ in found[0]])
    values = np.array([[value for _, _, value in rows] for rows in found])
    # Lemma 3.8: the loss is Lipschitz in the exponentials of its N + M similarities, and bounded.
    eta = math.e**2 * math.sqrt(1 / n + TAU_PLUS**2 / m) / tau_minus
    largest = math.log1p(n * math.e**2 / tau_minus)
    for z, own in zip(encoders, values, strict=True):
        assert own.max() <= largest
        similarities = (z @ z.T).numpy()
        ratios = np.exp(
            similarities[drawn[:, :1], drawn[:, 2:]]
            - similarities[drawn[:, 0], drawn[:, 1]][:, None]
        )
        is_same = (drawn[:, None, :2] == drawn[:, :2]).all(2)
        rises = abs(own[:, None] - own)[is_same]
        distances = np.linalg.norm(ratios[:, None] - ratios, axis=2)[is_same]
        assert (rises <= eta * distances + 1e-12).all()
    # Lemma 3.7 for a finite class of encoders, whose Rademacher complexity is simulated.
    rng = np.random.default_rng(0)
    features = torch.stack(encoders).numpy()[:, drawn].reshape(len(encoders), len(drawn), -1)
    expected_losses = values @ weights
    # A sum of many signs is nearly normal.
    noise = rng.standard_normal((200, *features.shape[1:]))
    slack = []
    for size in (10**8, 10**10):
        counts = rng.multinomial(size, weights)
        scaled = features * np.sqrt(counts)[:, None]
        complexity = np.einsum("rsd,fsd->rf", noise, scaled).max(1).mean()
        by_class = 2 * math.sqrt(2) * math.e**2 * eta * math.sqrt(6 * (n + m)) * complexity / size
        slack.append(by_class + 3 * largest * math.sqrt(math.log(2 / delta) / (2 * size)))
        losses_on_sample = values @ counts / size
        assert abs(losses_on_sample - expected_losses).max() <= slack[-1]
        # Theorem 3.6
        z = encoders[losses_on_sample.argmin()]
        means = torch.stack([z[:2].mean(0), z[2:].mean(0)])
        supervised = float(nn.functional.cross_entropy(z @ means.T, torch.tensor(CLASS)))
        by_n = math.sqrt(math.pi / (2 * n))
        by_m = TAU_PLUS * math.sqrt(math.pi / (2 * m))
        finite = math.e**1.5 / tau_minus * (by_n + by_m)
        assert supervised <= expected_losses.min() + finite + 2 * slack[-1]
    assert slack[1] == pytest.approx(slack[0] / 10, rel=0.1)
    assert slack[1] < expected_losses.max() - expected_losses.min()  # it tells encoders apart


def worst_case(z: Tensor) -> float:
    """Return L*_inf of section 4.3.2, the loss with the hardest negative of each anchor."""
    total = 0.0
    for i, same, other in anchors():
        scores = z @ z[i]
        total += float(scores[other].max() - scores[same].mean()) / len(CLASS)
    return total


POLE = unit_rows(1, 3, seed=5)
OPTIMUM = torch.cat([POLE, POLE, -POLE, -POLE])


def test_theorem_4_4_classes_that_are_points_far_apart_minimise_the_worst_case() -> None:
    """With two classes, the points are opposite, where L*_inf = -2 at temperature 1."""
    assert worst_case(OPTIMUM) == pytest.approx(-2)
    assert min(worst_case(unit_rows(len(CLASS), 3, seed=seed)) for seed in range(200)) > -2


def test_theorem_4_5_bounds_the_errors_of_the_nearest_neighbour() -> None:
    informative = 0
    for seed, noise in itertools.product(range(50), (0.05, 0.2, 0.5)):
        z = nn.functional.normalize(OPTIMUM + noise * unit_rows(len(CLASS), 3, seed=seed), dim=1)
        excess = worst_case(z) + 2
        room = 4 - 2 * 2 * (1 + 1) * math.sqrt(excess)
        if excess > 1 or room <= 0:
            continue
        centres = torch.stack([z[0], z[2]])
        wrong = (torch.cdist(z, centres).argmin(1) != torch.tensor(CLASS)).double().mean()
        assert float(wrong) <= 8 * excess / room**2
        informative += 8 * excess / room**2 < 0.5
    assert informative >= 20


@pytest.mark.parametrize("z", WORLDS)
def test_proposition_4_3_hard_negatives_near_the_worst_case_exponentially_in_beta(
    z: Tensor,
) -> None:
    """With tau+ = 0 and the other class as negatives, HCL is L(f, q_beta^-) with Q negatives."""
    for i, same, other in anchors():
        for plus in same:
            scores = z[other] @ z[i]
            hardest = float(scores.max())
            gap = hardest - float(scores.min())
            worst = math.log1p(len(other) * math.exp(hardest - float(z[i] @ z[plus])))

            def at(
                beta: float, i: int = i, plus: int = plus, other: Sequence[int] = other
            ) -> float:
                def loss(images: Tensor, texts: Tensor, **options: object) -> Tensor:
                    return losses.hard_negative(images, texts, tau_plus=0.0, beta=beta, **options)

                return float(one_sided(loss, z[i], z[plus], z[other]))

            errors = [worst - at(beta) for beta in (0.0, 5.0, 10.0, 20.0, 40.0)]
            assert min(errors) >= -1e-12
            assert errors == sorted(errors, reverse=True)
            for beta, error in zip((5.0, 10.0, 20.0, 40.0), errors[1:], strict=True):
                assert error <= 2 * math.exp(-beta * gap)


@pytest.mark.parametrize("beta", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("z", WORLDS)
def test_lemma_4_6_alignment_bounds_the_variance_with_one_positive(z: Tensor, beta: float) -> None:
    """The constant comes from the proof: e^{2/t^2} / t^2, times the largest ratio of q_beta^+ to
    p^+ squared, at t = 1."""
    means = z.reshape(2, 2, 3).mean(1).repeat_interleave(2, 0)
    variances = []
    for spread in (1.0, 0.1, 0.01):
        points = nn.functional.normalize(means + spread * (z - means), dim=1)
        variance = alignment = largest = 0.0
        for i, same, _ in anchors():
            scores = points[same] @ points[i]
            weights = torch.softmax(beta * scores, dim=0)
            mean = weights @ scores.exp()
            variance += float(weights @ (scores.exp() - mean).square()) / len(CLASS)
            alignment += float((points[same] - points[i]).square().sum(1).mean()) / 2 / len(CLASS)
            largest = max(largest, float(weights.max()) * len(same))
        assert 0 < variance <= math.e**2 * largest**2 * alignment
        variances.append(variance)
    # Alignment falls to a hundredth as classes shrink to a tenth, and the variance with it.
    assert variances[2] <= variances[1] / 100


def symmetric(images: Tensor, texts: Tensor, **options: object) -> Tensor:
    """Return RINCE with q = 1, K = 1 and lam = 1/2: -e^{s+}/2 + e^{s-}/2."""
    return losses.rince(images, texts, q=1.0, lam=0.5, **options)


@cache
def swaps(loss: Loss) -> tuple[Tensor, Tensor]:
    """Return the losses (60, 4) of pairs under random encoders, as they are and with the positive
    and the negative of the anchor swapped."""
    right, swapped = [], []
    for seed in range(60):
        triples = list(zip(*unit_rows(12, 3, seed=seed).split(4), strict=True))
        right.append([float(one_sided(loss, x, v, w[None])) for x, v, w in triples])
        swapped.append([float(one_sided(loss, x, w, v[None])) for x, v, w in triples])
    return torch.tensor(right, dtype=torch.float64), torch.tensor(swapped, dtype=torch.float64)


def risks(noise: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Return the clean and the noisy risk (60,) of random encoders of pairs (x, v): with
    probability `noise` (4,) the positive and the negative of an anchor are swapped."""
    right, swapped = swaps(loss)
    return right.mean(1), ((1 - noise) * right + noise * swapped).mean(1)


@pytest.mark.parametrize("eta", [0.1, 0.3, 0.45])
def test_corollary_5_1_the_minimiser_of_the_noisy_risk_nearly_minimises_the_clean_one(
    eta: float,
) -> None:
    noise = torch.linspace(0, eta, 4, dtype=torch.float64)
    clean, noisy = risks(noise, symmetric)
    reached = float(clean[noisy.argmin()])
    assert reached <= (float(clean.min()) + 2 * eta * math.e) / (1 - 2 * eta)
    # Equal noise for all pairs only rescales the risk of a symmetric loss, unlike the risk of
    # InfoNCE.
    level = torch.full((4,), eta, dtype=torch.float64)
    clean, noisy = risks(level, symmetric)
    torch.testing.assert_close(noisy, (1 - 2 * eta) * clean)
    clean, noisy = risks(level, losses.info_nce)
    assert not torch.equal(noisy.argsort(), clean.argsort())


def slopes(q: float, positive: float, negative: float) -> tuple[float, float]:
    """Return the size of the gradient in s+ and in s- for one negative and lam = 1/2."""
    s = torch.tensor([positive, negative], dtype=torch.float64, requires_grad=True)
    heights = (1 - s.square()).sqrt()
    zero = torch.zeros(2, dtype=torch.float64)
    x = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    plus = torch.stack([s[0], heights[0], zero[0]])
    minus = torch.stack([s[1], zero[1], heights[1]])

    def loss(images: Tensor, texts: Tensor, **options: object) -> Tensor:
        return losses.rince(images, texts, q=q, lam=0.5, **options)

    value = one_sided(loss, x, plus, minus[None])
    (slope,) = torch.autograd.grad(value, s)
    return abs(float(slope[0])), abs(float(slope[1]))


def test_figure_5_2_small_q_learns_from_hard_positives_and_large_q_from_easy_ones() -> None:
    scores = [-0.9, -0.5, 0.0, 0.5, 0.9]
    by_positive = {q: [slopes(q, s, 0.0)[0] for s in scores] for q in (0.001, 1.0)}
    assert by_positive[0.001] == sorted(by_positive[0.001], reverse=True)
    assert by_positive[1.0] == sorted(by_positive[1.0])
    for q in (0.001, 0.5, 1.0):  # every q puts more weight on hard negatives
        by_negative = [slopes(q, 0.0, s)[1] for s in scores]
        assert by_negative == sorted(by_negative)


def nuclr_toy(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, y (n, 2) and the true popularity in the world of section 3.3: x in a half disc, y
    in a square, p(y | x) proportional to e^{x y / 0.2}."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(20 * n, 2, generator=generator, dtype=torch.float64)
    disc = draws * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
    x = disc[disc.square().sum(1) <= 1][:n]
    slope = x / 0.2
    uniform = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    y = torch.log1p(uniform * torch.expm1(slope)) / slope
    total = torch.expm1(slope) / slope  # per axis, the integral of e^{x y / tau} over [0, 1]
    popularity = (torch.exp(x @ y.T / 0.2) / total.prod(1)[:, None]).sum(0)
    return x, y, popularity


def nuclr_risk() -> float:
    """Return the true risk in the same world, summed over a grid."""
    grid = torch.cartesian_prod(
        torch.linspace(-1, 1, 801, dtype=torch.float64)[:-1] + 1 / 800,
        torch.linspace(0, 1, 401, dtype=torch.float64)[:-1] + 1 / 800,
    )
    a = grid[grid.square().sum(1) <= 1] / 0.2
    log_total = torch.log(torch.expm1(a) / a).sum(1)
    mean_y = 1 / (1 - torch.exp(-a)) - 1 / a
    return 0.2 * float((log_total - (a * mean_y).sum(1)).mean())


def test_theorem_1_of_nuclr_learned_popularity_removes_the_error_that_uniform_leaves() -> None:
    errors = {"uniform": [], "learned": []}
    terms = {"uniform": [], "learned": []}
    risk = nuclr_risk()
    for n in (50, 400):
        gaps = {name: [] for name in errors}
        sums = {name: [] for name in errors}
        for seed in range(3):
            x, y, truth = nuclr_toy(n, seed)
            similarity = x @ y.T
            found = losses.estimate_popularity(similarity, temperature=0.2)[1].exp()
            weights = {
                # The optimal constant, and the learned popularity rescaled to the true one.
                "uniform": torch.full((n,), float(1 / (1 / truth).mean())).double(),
                "learned": found * (1 / found).sum() / (1 / truth).sum(),
            }
            for name, popularity in weights.items():
                sums_of_rows = torch.logsumexp(similarity / 0.2 - popularity.log(), dim=1)
                value = 0.2 * float((sums_of_rows - similarity.diagonal() / 0.2).mean())
                gaps[name].append(abs(value - risk))
                error = (1 / popularity - 1 / truth).abs().sum()
                sums[name].append(
                    float(error * torch.exp((similarity.diagonal() - 1) / 0.2).mean())
                )
        for name in errors:
            errors[name].append(float(np.mean(gaps[name])))
            terms[name].append(float(np.mean(sums[name])))
    assert terms["learned"][1] < 0.5 * terms["learned"][0]  # the error term vanishes
    assert terms["uniform"][1] > 0.8 * terms["uniform"][0]  # it remains for uniform popularity
    assert errors["learned"][1] < 0.5 * errors["uniform"][1]


@pytest.mark.parametrize("alpha", [0.25, 0.5, 1.0])
def test_theorem_1_of_spread_the_loss_is_alignment_uniformity_and_negatives(alpha: float) -> None:
    z = WORLDS[0]
    views = nn.functional.normalize(z + 0.3 * WORLDS[1], dim=1)
    # The population consists of both views of every point with equal weight.
    points = torch.cat([z, views])
    labels = torch.tensor(CLASS * 2)
    scores = points @ points.T / 0.5
    same = labels[:, None] == labels
    attract = float(scores[same].mean())
    augmented = float((scores.diagonal(len(z))).mean())
    own = torch.stack(
        [row[mask].exp().mean().log() for row, mask in zip(scores, same, strict=True)]
    )
    other = torch.stack(
        [row[~mask].exp().mean().log() for row, mask in zip(scores, same, strict=True)]
    )
    align = -(alpha * attract + (1 - alpha) * augmented)
    limit = align + (1 - alpha) * float(own.mean()) + alpha * float(other.mean())
    errors = []
    for copies in (4, 16, 64):
        value = losses.spread(
            z.repeat(copies, 1),
            views.repeat(copies, 1),
            torch.tensor(CLASS * copies),
            alpha=alpha,
            temperature=0.5,
        )
        positives = 4 * copies - 1
        negatives = 4 * copies
        counted = (1 - alpha) * math.log(positives) + alpha * math.log(negatives)
        errors.append(abs(float(value) - counted - limit))
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[2] < 0.02


def strata(spread: float) -> tuple[Tensor, Tensor]:
    """Return three points (4, 3, 3) in each of four strata, and the mean (4, 3) of each stratum.

    The first two strata make up one class, and the others another one.
    """
    centres = unit_rows(4, 3, seed=3)
    noise = unit_rows(12, 3, seed=4).reshape(4, 3, 3)
    points = nn.functional.normalize(centres[:, None] + spread * noise, dim=2)
    return points, points.mean(1)


def halved(distances: Tensor) -> Tensor:
    """Return ||a - b||^2 / 2 - 1, which is -a b for vectors of length 1."""
    return distances.square() / 2 - 1


@pytest.mark.parametrize(("spread", "scale"), [(0.0, 1.0), (0.3, 1.5)])
def test_lemmas_1_and_2_of_spread_bound_the_errors_of_mean_classifiers(
    spread: float, scale: float
) -> None:
    """The lemmas hold for some lambda and eta (`scale`). If strata are points, these are 1, and the
    bounds are exact."""
    points, means = strata(spread)
    delta = halved(torch.cdist(means, means))
    by_stratum = nn.functional.cross_entropy(
        points.reshape(12, 3) @ means.T, torch.arange(4).repeat_interleave(3)
    )
    first = torch.logsumexp(-scale * delta, dim=1).mean() - 1
    of_class = means.reshape(2, 2, 3).mean(1)
    by_class = nn.functional.cross_entropy(
        points.reshape(12, 3) @ of_class.T, torch.arange(2).repeat_interleave(6)
    )
    # (stratum, class): the mean over the strata of each class, intra for the own class.
    to_class = delta.reshape(4, 2, 2).mean(2)
    intra = to_class[torch.arange(4), torch.arange(2).repeat_interleave(2)]
    second = (torch.logsumexp(-scale * to_class, dim=1) + intra).mean()
    for error, bound in ((by_stratum, first), (by_class, second)):
        assert error <= bound + 1e-12
        if spread == 0:
            assert float(error) == pytest.approx(float(bound), abs=1e-12)
        else:
            assert bound < error + 0.8  # it is close enough to say something


Shares = list[float]  # the probability of each point of the world


def noisy_draws(p: float) -> Iterator[tuple[Tensor, float, Shares, Shares]]:
    """Yield the scores of each anchor with all points, whether its label is right or not.

    Labels are right with probability p. A point has the label of the anchor, or the other one.

    Yields:
        The scores (4,), the probability of the anchor, and those of its positives and negatives.
    """
    for x, scores in enumerate(WORLDS[0] @ WORLDS[0].T):
        for weight in (p, 1 - p):  # also the probability that a positive is of the anchor's class
            positive = [weight / 2 if y == CLASS[x] else (1 - weight) / 2 for y in CLASS]
            yield scores, weight / len(CLASS), positive, [0.5 - share for share in positive]


def mean_score(scores: Tensor, shares: Shares) -> float:
    """Return the expected score of a point."""
    return float(scores @ torch.tensor(shares, dtype=scores.dtype))


def mean_log_sum(scores: Tensor, *draws: Shares) -> float:
    """Return the expected log of the sum of e^score over independent draws."""
    total = 0.0
    for points in itertools.product(range(len(CLASS)), repeat=len(draws)):
        weight = math.prod(shares[point] for shares, point in zip(draws, points, strict=True))
        total += weight * float(torch.logsumexp(scores[list(points)], dim=0))
    return total


def correction_weights(p: float, m: int) -> np.ndarray:
    """Return the weights (m + 1,) of Lemma 7, with its matrices Q and P as printed."""
    q = np.zeros((m + 1, m + 1))
    for i, j in itertools.product(range(m + 1), repeat=2):
        more, fewer = (m - j, j) if j <= i else (j, m - j)
        apart = abs(i - j)
        for k in range(min(fewer, more - apart) + 1):
            ways = math.comb(fewer, k) * math.comb(more, apart + k)
            q[i, j] += ways * (1 - p) ** (apart + 2 * k) * p ** (m - apart - 2 * k)
    return np.linalg.solve(p * q + (1 - p) * q[::-1], np.eye(m + 1)[1])


@pytest.mark.parametrize("p", [0.6, 0.9])
@pytest.mark.parametrize("m", [2, 3])
def test_lemmas_6_and_7_of_spread_debias_losses_with_noisy_labels(p: float, m: int) -> None:
    scale = (2 * p - 1) ** 2
    right, wrong = (p**2 + (1 - p) ** 2) / scale, 2 * p * (1 - p) / scale
    weights = correction_weights(p, m)
    if m == 2:  # the triplet loss of Lemma 6
        assert weights == pytest.approx([-wrong / 2, right, -wrong / 2])
    debiased = 0.0
    for scores, weight, positive, negative in noisy_draws(p):
        value = wrong * mean_score(scores, negative) - right * mean_score(scores, positive)
        for k, factor in enumerate(weights):
            draws = [positive] * k + [negative] * (m - k)
            value += factor * mean_log_sum(scores, *draws)
        debiased += weight * value
    clean = sum(
        weight * (mean_log_sum(scores, same, *[other] * (m - 1)) - mean_score(scores, same))
        for scores, weight, same, other in noisy_draws(1.0)
    )
    assert debiased == pytest.approx(clean, abs=1e-9)


SIMPLEX = torch.eye(3, dtype=torch.float64) - 1 / 3
SIMPLEX = SIMPLEX / SIMPLEX.norm(dim=1, keepdim=True)


def trained_error(targets: Tensor, seed: int) -> float:
    """Return the least error of unit embeddings with a linear head of rows of norm 1 at most.

    Args:
        targets: p(label | x) of each point, (points, labels).
        seed: Random seed of the first embeddings and head.
    """
    f, head = (unit_rows(n, 3, seed=seed + n).requires_grad_() for n in targets.shape)
    optimizer = torch.optim.Adam([f, head], lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        error = error_of(targets, nn.functional.normalize(f, dim=1), head)
        error.backward()
        optimizer.step()
    return float(error.detach())


def error_of(targets: Tensor, f: Tensor, head: Tensor) -> Tensor:
    """Return the mean cross-entropy of embeddings and a head, whose rows get norm 1 at most."""
    bounded = head / head.norm(dim=1, keepdim=True).clamp(min=1)
    return nn.functional.cross_entropy(f @ bounded.T, targets)


@pytest.mark.parametrize("strata_per_class", [1, 2])
def test_observations_1_and_2_of_spread_collapse_is_best_only_if_strata_do_not_differ(
    strata_per_class: int,
) -> None:
    """The labels are strata in observation 1, and classes, with one stratum each, in 2."""
    classes = torch.arange(6) // 2
    of_class = classes[:, None] == torch.arange(3).repeat_interleave(strata_per_class)
    targets = of_class.double() / strata_per_class
    head = SIMPLEX.repeat_interleave(strata_per_class, 0)
    collapsed = float(error_of(targets, SIMPLEX[classes], head))
    # The bound of lemma 3 for collapsed embeddings, with c_K = -1/2.
    others = 2 * strata_per_class * math.exp(-0.5)
    assert collapsed == pytest.approx(math.log(strata_per_class * math.e + others) - 1)
    trained = [trained_error(targets, seed) for seed in range(3)]
    assert min(trained) == pytest.approx(collapsed, abs=1e-4)
    assert min(trained) >= collapsed - 1e-12
    if strata_per_class == 1:
        # Without condition 1: the second point of each class may belong to the next class.
        distinct = targets.clone()
        distinct[1::2] = (targets[1::2] + targets[1::2].roll(-1, 0)) / 2
    else:
        # Without condition 2: every point belongs to one stratum.
        distinct = torch.eye(6, dtype=torch.float64)
    best_of_collapsed = float(error_of(distinct, SIMPLEX[classes], head))
    assert trained_error(distinct, 0) < best_of_collapsed - 0.05


def information(joint: np.ndarray) -> float:
    """Return the mutual information of two variables with a joint distribution."""
    product = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    return float((joint * np.log(joint / product)).sum())


@pytest.mark.parametrize("seed", range(5))
def test_observation_3_of_spread_collapse_loses_information_about_new_labels(seed: int) -> None:
    """Injective maps leave mutual information unchanged, so labels stand for the embeddings."""
    rng = np.random.default_rng(seed)
    of_x = rng.dirichlet(np.ones(6))
    old, new = (rng.dirichlet(np.ones(3), size=6) for _ in range(2))
    collapsed = np.einsum("x,xa,xb->ab", of_x, old, new)
    assert information(collapsed) < information(of_x[:, None] * new)


# ---- chapter 8: a world of three classes, eight points each, and a linear classifier


def chapter_8(seed: int) -> tuple[Tensor, np.ndarray, tuple[Tensor, Tensor]]:
    """Return features, codes and head of three classes of eight points."""
    codes = np.repeat(np.arange(3), 8)
    centres = 2 * torch.eye(3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(24, 3, generator=generator, dtype=torch.float64)
    return centres[codes] + 0.3 * noise, codes, (centres, torch.zeros(3, dtype=torch.float64))


def w1(a: Tensor, b: Tensor) -> float:
    """Return W1 of two uniform samples of the same size, which is the mean k-variance of a single
    pair."""
    costs = torch.cdist(a, b).numpy()
    return float(costs[linear_sum_assignment(costs)].mean())


def test_gradients_of_margins_agree_with_autograd() -> None:
    codes = np.arange(60) % 3
    rows = torch.randn(60, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows += 2 * nn.functional.one_hot(torch.from_numpy(codes), 5)
    torch.manual_seed(0)
    head = nn.Linear(5, 3).double()
    values, variance = margins(head, rows, codes)
    leaf = rows.clone().requires_grad_()
    scores = head(leaf)
    label_scores = scores[range(60), codes]
    rest = scores.scatter(1, torch.from_numpy(codes)[:, None], -torch.inf)
    margin = label_scores - rest.max(1).values
    (slope,) = torch.autograd.grad(margin.sum(), leaf)
    np.testing.assert_allclose(values["margin"], margin.detach(), atol=1e-9)
    np.testing.assert_allclose(
        values["gn_margin"], margin.detach() / (slope.norm(dim=1) + 1e-6), atol=1e-9
    )
    spreads = np.array([k_variance(rows[codes == code].float()).value for code in range(3)])
    steepest = [float(slope.norm(dim=1)[codes == code].max()) for code in range(3)]
    np.testing.assert_allclose(variance, spreads)
    # Each class has 20 rows.
    np.testing.assert_allclose(values["kv_margin"], margin.detach() / np.mean(spreads * steepest))
    np.testing.assert_allclose(values["kv_gn_margin"], values["gn_margin"] / np.mean(spreads))
    largest = np.linalg.svd(head.weight.detach().numpy())[1][0]
    np.testing.assert_allclose(values["sn_margin"], margin.detach() / largest)
    total = float((rows - rows.mean(0)).square().sum(1).mean().sqrt())
    np.testing.assert_allclose(values["tv_gn_margin"], values["gn_margin"] / total, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_equation_8_3_lipschitz_times_k_variance_bounds_the_deviation_of_margins(seed: int) -> None:
    """Test the inequality behind Theorem 8.2 for all pairs of samples of two points."""
    features, codes, head = chapter_8(seed)
    found, _ = margins(head, features, codes)
    margin = found["margin"]
    steepest = margin / found["gn_margin"]
    for code in range(3):
        rows = np.flatnonzero(codes == code)
        pairs = np.array(list(itertools.product(rows, repeat=2)))
        means = margin[pairs].mean(1)
        deviations = abs(means[:, None] - means)
        # (sample, twin, point of the sample, point of the twin)
        costs = torch.cdist(features, features).numpy()[pairs[:, None, :, None], pairs[:, None]]
        straight = (costs[..., 0, 0] + costs[..., 1, 1]) / 2
        crossed = (costs[..., 0, 1] + costs[..., 1, 0]) / 2
        distances = np.minimum(straight, crossed)
        assert distances[3, 7] == pytest.approx(w1(features[pairs[3]], features[pairs[7]]))
        assert np.mean(deviations) <= steepest[rows].max() * np.mean(distances)


def test_lemma_8_3_margins_are_lipschitz_if_the_scores_are() -> None:
    features, codes, head = chapter_8(0)
    steepest = float(head[0].norm(dim=1).max())
    for code in range(3):
        found, _ = margins(head, features[codes == code], np.full(8, code))
        margin = torch.tensor(found["margin"])
        rise = (margin[:, None] - margin).abs()
        distance = torch.cdist(features[codes == code], features[codes == code])
        assert (rise <= 2 * steepest * distance + 1e-12).all()


@pytest.mark.parametrize(
    ("name", "slope", "gamma"),
    # The distance between two rows of the head; 1 for gradient-normalised margins (Theorem 8.4).
    [("margin", math.sqrt(8), 2.0), ("gn_margin", 1.0, 0.7)],
)
def test_theorems_8_2_and_8_4_bound_the_risk_on_new_draws(
    name: str, slope: float, gamma: float
) -> None:
    features, codes, head = chapter_8(0)
    margin = margins(head, features, codes)[0][name]
    risk = (margin <= 0).mean()
    rng = np.random.default_rng(0)
    delta = 0.1
    broken = []
    bounds = []
    for _ in range(100):
        rows = np.concatenate([rng.choice(np.flatnonzero(codes == c), 200) for c in range(3)])
        variance = np.mean([k_variance(part, k=100).value for part in features[rows].split(200)])
        bound = (margin[rows] <= gamma).mean() + slope / gamma * variance
        bounds.append(bound + math.sqrt(math.log(1 / delta) / (2 * len(rows))))
        broken.append(risk > bounds[-1])
    assert np.mean(bounds) < 0.7  # the bound is not vacuous
    assert np.mean(broken) <= delta


@pytest.mark.parametrize("gamma", [1.0, 4.0, 8.0])
def test_lemma_8_12_margins_separate_the_classes(gamma: float) -> None:
    features, codes, (weight, _) = chapter_8(1)
    scores = features @ weight.T
    steepest = float(weight.norm(dim=1).max())
    for y, other in itertools.combinations(range(3), 2):
        lead = scores[:, y] - scores[:, other]
        loss = (gamma - lead[codes == y]).relu().mean() + (
            gamma + lead[codes == other]
        ).relu().mean()
        distance = w1(features[codes == y], features[codes == other])
        assert distance >= (gamma - float(loss) / 2) / steepest


def test_theorem_8_7_the_k_variance_of_samples_varies_less_with_larger_k() -> None:
    features, _, _ = chapter_8(2)
    points = features[:8]
    spread_out = float((points - points.mean(0)).square().sum(1).mean())
    rng = np.random.default_rng(0)
    spreads = []
    for k in (1, 4, 16):
        drawn = [k_variance(points[rng.integers(0, 8, 2 * k)], k=k).value for _ in range(150)]
        assert np.var(drawn) <= 4 * spread_out / k
        spreads.append(np.var(drawn))
    assert spreads[0] > spreads[1] > spreads[2]


def test_lemma_8_5_the_k_variance_of_a_sample_is_rarely_far_below_the_truth() -> None:
    features, _, _ = chapter_8(2)
    points = features[:8]
    distances = torch.cdist(points, points)
    truth = float(distances.mean())  # for k = 1, of two independent points
    pairs = 100
    slack = math.sqrt(2 * float(distances.max()) ** 2 * math.log(1 / 0.1) / pairs)
    assert slack < truth / 2  # otherwise the bound would hold for any values
    rng = np.random.default_rng(0)
    estimates = [k_variance(points[rng.integers(0, 8, 2 * pairs)], k=1).value for _ in range(60)]
    assert np.mean(np.array(estimates) + slack < truth) <= 0.1


def uniform_k_variance(dimension: int, width: int, k: int) -> float:
    """Return the k-variance of a cube of a dimension, in a space of `width` dimensions."""
    rng = np.random.default_rng(0)
    rows = rng.random((8 * k, dimension))
    axes = np.linalg.qr(rng.normal(size=(width, dimension)))[0]
    return k_variance(rows @ axes.T, k=k).value


@pytest.mark.parametrize("dimension", [3, 6])
def test_proposition_8_9_k_variance_falls_with_the_dimension_of_the_set(dimension: int) -> None:
    values = [uniform_k_variance(dimension, 6, k) for k in (50, 400)]
    assert values[1] / values[0] == pytest.approx(8 ** (-1 / dimension), rel=0.1)
    # C_1 of proposition B.6, which bounds the k-variance by 2 C_1 m^(-1/d).
    constant = 54 + 27 / (3 ** (dimension / 2 - 1) - 1)
    assert values[1] <= 2 * constant * 400 ** (-1 / dimension)


def test_proposition_8_10_k_variance_of_tight_clusters_falls_with_the_root_of_k() -> None:
    rng = np.random.default_rng(0)
    centres = unit_rows(4, 3, seed=1).numpy() / 2
    values = []
    for k in (25, 100, 400):
        radius = 0.5 * math.sqrt(len(centres) / k) / 50
        offsets = rng.uniform(-1, 1, size=(40 * k, 3)) * radius / math.sqrt(3)
        rows = centres[rng.integers(0, len(centres), 40 * k)] + offsets
        values.append(k_variance(rows, k=k).value)
        assert values[-1] <= 24 * math.sqrt(len(centres) / k)
    assert values[1] == pytest.approx(values[0] / 2, rel=0.25)
    assert values[2] == pytest.approx(values[1] / 2, rel=0.25)


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
def test_theorem_6_of_ssa_needs_the_logarithm_of_the_number_of_classes(
    tau: float, seed: int | None
) -> None:
    """The last line of (4) in SSA-CLR drops the class shares, which is only an inequality with
    log M on the right. A constant encoder (no seed) reaches the corrected bound, so without log M
    it breaks it."""
    n_classes, per_class = 4, 3
    count = n_classes * per_class
    features = torch.eye(1, 3, dtype=torch.float64).expand(count, 3)
    if seed is not None:
        features = unit_rows(count, 3, seed=seed)
    of_class = features.reshape(n_classes, per_class, 3)
    means = of_class.mean(1)
    # Pairs are two independent points of a class, so their mean similarity is that of the means.
    aligned = (means * means).sum(1).mean() / tau
    unsupervised = torch.logsumexp(features @ features.T / tau, 1).mean() - math.log(count)
    unsupervised = unsupervised - aligned
    scores = torch.einsum("cpd,yd->cpy", of_class, means) / tau
    supervised = -scores.log_softmax(2).diagonal(dim1=0, dim2=2).mean()
    assert supervised <= unsupervised + math.log(n_classes) + 1e-12
    if seed is None:
        assert supervised == pytest.approx(float(unsupervised) + math.log(n_classes))
        assert supervised > unsupervised + 1
