"""Test relations between the losses, large exponentials, and the effect of settings and
temperatures."""

import math
import warnings
from functools import partial
from itertools import product

import pytest
import torch
from slow_losses import both, derived, of_rows, rince_row, unit_rows
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias import losses
from vldebias.errors import InvalidInputError

T = 0.1
N = 8
X = unit_rows(N, 16, seed=3)
Y = normalize(X + unit_rows(N, 16, seed=4), dim=1)
# With q = 1 at the temperature of CLIP, the loss warns that gradients underflow.
pytestmark = pytest.mark.filterwarnings("ignore:rince. q / temperature is")
large_lam = pytest.mark.filterwarnings("ignore:rince. lam 1 times")


@large_lam
@pytest.mark.parametrize("lam", [0.01, 1.0])
def test_rince_converges_to_info_nce_plus_log_lam(lam: float) -> None:
    """Test Lemma 5.2: value and gradient converge, with an error proportional to q."""
    x = X.clone().requires_grad_()
    y = Y.clone().requires_grad_()
    value, *gradients = derived(lambda x, y: losses.info_nce(x, y, temperature=T), x, y)
    expected = [value + math.log(lam), *gradients]
    errors = []
    for q in (1e-3, 1e-4, 1e-6):
        ours = derived(lambda x, y, q=q: losses.rince(x, y, temperature=T, q=q, lam=lam), x, y)
        errors.append(max(float((a - b).abs().max()) for a, b in zip(ours, expected, strict=True)))
    assert errors[2] < 1e-3
    assert errors[0] > 5 * errors[1] > 25 * errors[2]


@pytest.mark.parametrize("within_view", [False, True])
@pytest.mark.parametrize("q", [0.01, 0.4, 1.0])
@pytest.mark.parametrize("n", [2, 9, 64])
def test_the_default_lam_of_rince_balances_pull_and_push_at_every_batch_size(
    n: int, q: float, within_view: bool
) -> None:
    """With equal similarities, the loss and its derivative in the common similarity are 0."""
    rows = torch.ones(n, 1, dtype=torch.float64)
    options = {"temperature": 0.5, "within_view": within_view, "reduction": "none"}
    negatives = (n - 1) * (2 if within_view else 1)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    loss = losses.rince(scale * rows, rows, q=q, **options)
    (slope,) = torch.autograd.grad(loss.sum(), scale)
    assert loss.abs().max() < 1e-9
    if not within_view:  # without the other view, the negatives change with the square of the scale
        assert abs(float(slope)) < 1e-9
    pushed = losses.rince(rows, rows, q=q, lam=2 / (negatives + 1), **options)
    pulled = losses.rince(rows, rows, q=q, lam=0.5 / (negatives + 1), **options)
    assert (pulled < 0).all()
    assert (pushed > 0).all()


@pytest.mark.parametrize("eta", [0.3, 0.8, 0.95])
@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0])
def test_wrong_captions_scale_the_risk_of_rince_at_q_1_and_the_default_lam(
    eta: float, strength: float
) -> None:
    """Test the proposition in docs/explanation/losses.md: a wrong caption has the distribution of
    the negatives, so the noisy risk of any encoder is 1 - eta times the clean one."""
    images = unit_rows(N, 16, seed=5)
    texts = normalize(strength * images + unit_rows(N, 16, seed=6), dim=1)

    def risks(**settings: float) -> tuple[float, float]:
        """Return the clean risk, and that with a caption drawn from all captions of the batch."""
        shifted = [
            float(losses.rince(images, texts.roll(i, 0), temperature=0.5, q=1.0, **settings))
            for i in range(N)
        ]
        return shifted[0], (1 - eta) * shifted[0] + eta * sum(shifted) / N

    clean, noisy = risks()
    assert noisy == pytest.approx((1 - eta) * clean, rel=1e-6, abs=1e-6)
    clean, noisy = risks(lam=0.01)
    assert noisy != pytest.approx((1 - eta) * clean, rel=1e-2)


def test_rince_warns_once_if_lam_is_too_large_for_the_batch() -> None:
    rows = torch.eye(401)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            losses.rince(rows, rows, temperature=1.0, q=0.5, lam=0.01)
    (warning,) = caught
    assert "lam 0.01 times 400 negatives is 4, above 3" in str(warning.message)
    assert "the default is 1 / (negatives + 1) = 0.0025" in str(warning.message)
    # No warning for lam K = 3, a smaller batch, or the default.
    losses.rince(rows, rows, temperature=1.0, q=0.5, lam=0.0075)
    losses.rince(rows, rows, temperature=1.0, q=0.5)
    losses.rince(rows[:301], rows[:301], temperature=1.0, q=0.5, lam=0.01)


def test_a_floor_of_zero_supports_features_that_are_not_normalised() -> None:
    """Their g may be below e^{-1/t}, the default floor; negative estimates are clamped to 0."""
    x = 0.1 * X - 2
    y = 0.1 * Y - 2
    options = {"temperature": 1.0, "reduction": "none"}
    low = losses.debiased(x, -y, tau_plus=0.05, floor=0.0, **options)
    with pytest.warns(UserWarning, match="expected rows of norm 1"):
        high = losses.debiased(x, -y, tau_plus=0.05, **options)
    assert (low < high).all()
    nothing_left = losses.debiased(X, X, tau_plus=0.99, floor=0.0, **options)
    assert (nothing_left == 0).any()
    assert torch.isfinite(nothing_left).all()


def test_repulsion_spreads_a_collapsed_class_and_attraction_does_not() -> None:
    """If a class has collapsed, a small spread lowers L_repel and raises L_attract."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    centre = torch.eye(2, dtype=torch.float64)[labels]
    spread_out = normalize(centre + 0.05 * unit_rows(6, 2, seed=5), dim=1)
    for alpha, better in ((0.0, True), (1.0, False)):
        collapsed, apart = (
            losses.spread(z, z, labels, temperature=0.5, alpha=alpha) for z in (centre, spread_out)
        )
        assert (apart < collapsed) == better


@pytest.mark.parametrize(
    ("temperature", "q", "dtype", "lost"),
    [
        (0.001, 0.5, torch.float32, True),
        (0.01, 1.0, torch.float16, True),
        (0.01, 0.5, torch.float32, False),
        (0.02, 0.9, torch.float16, True),
        (0.03, 0.5, torch.float16, False),
        (0.01, 1.0, torch.float64, False),
        (0.00145, 1.0, torch.float64, True),
        (0.0016, 1.0, torch.float64, False),
    ],
)
def test_rince_warns_if_gradients_underflow(
    temperature: float, q: float, dtype: torch.dtype, lost: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """The warning is issued if and only if the squared gradient of pairs with cosine 0
    underflows."""
    x = torch.eye(4, 8, dtype=dtype).requires_grad_()
    y = torch.eye(4, 8, dtype=dtype).roll(4, 1)  # every cosine is 0
    (gradient,) = torch.autograd.grad(losses.rince(x, y, temperature=temperature, q=q), x)
    messages = [
        str(warning.message)
        for warning in recwarn
        if "so the gradient of pairs with a cosine below" in str(warning.message)
    ]
    assert bool(messages) == lost
    squared = gradient if dtype == torch.float16 else gradient.square()
    assert bool((squared == 0).all()) == lost


@pytest.mark.parametrize("name", ["rince", "info_nce", "sigmoid"])
def test_losses_warn_if_features_are_not_normalised(name: str) -> None:
    settings = {"q": 0.5} if name == "rince" else {}
    for size in (1.2, 0.1):
        with pytest.warns(UserWarning, match=rf"expected rows of norm 1, got {size}; normalise"):
            getattr(losses, name)(size * X.float(), size * Y.float(), temperature=T, **settings)


@pytest.mark.parametrize("name", ["rince", "info_nce", "sigmoid"])
def test_losses_recognise_a_logit_scale(name: str) -> None:
    loss = partial(getattr(losses, name), X, Y, **{"q": 0.5} if name == "rince" else {})
    for scale in (100.0, torch.tensor(100.0), torch.tensor(4.605)):
        with pytest.warns(UserWarning, match=r"^temperature: .* logit scale\? Pass 1 / it, or exp"):
            loss(temperature=scale)
    for refused_value in (-2.66, torch.tensor(-2.66)):
        with pytest.raises(InvalidInputError, match=r"got -2\.6.* pass its exponential"):
            loss(temperature=refused_value)
    for refused_value in (0.0, torch.tensor(0.0), torch.tensor(torch.nan)):
        with pytest.raises(InvalidInputError, match=r"^temperature: expected a positive number"):
            loss(temperature=refused_value)
    loss(temperature=1.0)


@pytest.mark.parametrize(
    ("dtype", "limit", "q", "t"),
    [
        *((torch.float32, 30, q, 0.01) for q in (0.5, 1.0)),
        *(
            (torch.float16, math.log(16376 * t), q, t)
            for q, t in product((0.4, 1.0), (0.01, 0.03, 0.05, 0.1))
        ),
        (torch.float64, 300, 1.0, 0.002),
    ],
)
def test_the_scale_of_rince_does_not_change_the_direction_of_the_gradient(
    dtype: torch.dtype, limit: float, q: float, t: float
) -> None:
    """Above the limit x of a dtype, loss and gradients are those of the equation times e^{x - q/t},
    also for a learned temperature. Squared gradients are finite; float16 gradients are at most
    65504.
    """

    def inputs(wide: torch.dtype) -> list[Tensor]:
        features = [rows.to(dtype).to(wide).requires_grad_() for rows in (X, Y)]
        return [*features, torch.tensor(t, dtype=torch.float64, requires_grad=True)]

    ours = derived(lambda x, y, t: losses.rince(x, y, temperature=t, q=q, lam=0.1), *inputs(dtype))
    equation = derived(
        lambda x, y, t: both(of_rows, x, y, rince_row(q, 0.1), t).mean(), *inputs(torch.float64)
    )
    for gradient, exact in zip(ours, equation, strict=True):
        torch.testing.assert_close(
            gradient.double(), exact * math.exp(min(limit - q / t, 0)), rtol=1e-3, atol=1e-3
        )
        assert (
            dtype == torch.float64 or gradient.abs().max() < torch.finfo(torch.float32).max ** 0.5
        )


def test_a_learned_temperature_may_start_at_a_rounded_minimum() -> None:
    rounded = losses.Temperature(0.009997, learnable=True, minimum=0.01)
    assert float(rounded().detach()) == pytest.approx(0.01)
    with pytest.raises(InvalidInputError, match=r"at least the minimum 0\.01, got 0\.005"):
        losses.Temperature(0.005, learnable=True, minimum=0.01)


def test_a_temperature_can_leave_its_minimum() -> None:
    """A clamp in the graph would have no gradient below the bound, and the parameter would never
    change again."""
    temperature = losses.Temperature(0.02, learnable=True)
    parameter: nn.Parameter = temperature.log_temperature  # type: ignore[assignment]
    with torch.no_grad():
        parameter.fill_(math.log(0.001))
    value = temperature()
    assert float(value.detach()) == pytest.approx(0.01)
    value.backward()
    assert float(parameter.grad) == pytest.approx(0.01)
    assert list(losses.InfoNCE(temperature=0.1).parameters()) == []
    assert len(list(losses.Sigmoid(temperature=0.1).parameters())) == 2


def test_q_and_beta_may_change_from_step_to_step() -> None:
    rince = losses.RINCE(q=0.01, temperature=0.2)
    hcl = losses.HardNegative(temperature=0.2)
    rince.q = losses.q_warmup(9, 10)
    assert losses.q_warmup(0, 1) == 0.01
    hcl.beta = 0.5
    torch.testing.assert_close(rince(X, Y), losses.rince(X, Y, temperature=0.2, q=0.4))
    torch.testing.assert_close(hcl(X, Y), losses.hard_negative(X, Y, temperature=0.2, beta=0.5))


LOSSES = torch.tensor([1.0, 3.0, 3.5, 9.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 2, -1])


def test_group_weights_match_algorithm_1_of_group_dro() -> None:
    weights = losses.GroupWeights(3, step=0.1).double()
    assert set(weights.state_dict()) == {"log_weights"}
    q = [1 / 3] * 3
    for _ in range(4):
        means = [2.0, 0.0, 3.5]
        q = [
            value * 2.718281828459045 ** (0.1 * mean) for value, mean in zip(q, means, strict=True)
        ]
        q = [value / sum(q) for value in q]
        losses_of_images = LOSSES.clone().requires_grad_()
        value = weights(losses_of_images, GROUPS)
        assert float(value.detach()) == pytest.approx(
            sum(a * b for a, b in zip(q, means, strict=True))
        )
        (gradient,) = torch.autograd.grad(value, losses_of_images)
        assert gradient.tolist() == pytest.approx([q[0] / 2, q[0] / 2, q[2], 0.0])
    assert weights.log_weights.exp().tolist() == pytest.approx(q)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (losses.GroupWeights(3), (LOSSES, GROUPS)),
        (
            losses.NUCLR(N, temperature=T, popularity_lr=0.5),
            (X, Y, torch.arange(N)),
        ),
    ],
)
def test_state_is_constant_in_evaluation_mode_and_without_gradients(
    module: nn.Module, inputs: tuple[Tensor, ...]
) -> None:
    module(*inputs)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        module(*inputs)
    module.eval()(*inputs)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    module.train()(*inputs)
    assert not all(torch.equal(before[name], value) for name, value in module.state_dict().items())
