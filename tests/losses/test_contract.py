"""Test what all losses have in common: shapes, types, symmetry, errors, blocks, precision,
derivatives, and modules."""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import torch
from slow_losses import derived, unit_rows
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.refusals import refused
from vldebias import losses
from vldebias.errors import InvalidInputError
from vldebias.losses import Loss
from vldebias.losses.catalog import BUILT_IN


@dataclass(frozen=True)
class Case:
    """Describe a loss with settings; `extra` returns its arguments after the features for n
    rows."""

    name: str
    function: Callable[..., Tensor]
    module: Any
    settings: dict[str, Any] = field(default_factory=dict)
    extra: Callable[[int], tuple[Tensor, ...]] = lambda n: ()
    # q / t is too large for float32, so the value is a constant multiple of the equation's.
    squashed: bool = False

    def __call__(self, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        extra = (value.to(x.device) for value in self.extra(len(x)))
        return self.function(x, y, *extra, **self.settings, **options)


def _global(
    x: Tensor, y: Tensor, index: Tensor, *, temperature: Any, module: Any, **options: Any
) -> Tensor:
    """Return the loss of a new module, whose temperature must be a number."""
    loss = module(2 * len(x), temperature=float(torch.as_tensor(temperature).detach()), **options)
    return loss.to(x.device, x.dtype if x.dtype == torch.float64 else torch.float32)(x, y, index)


def _labels(n: int) -> tuple[Tensor]:
    return (torch.arange(n) % 3,)


EXTRA: dict[str, Callable[[int], tuple[Tensor, ...]]] = {
    "": lambda n: (),
    "labels": _labels,
    "captions": _labels,
    "index": lambda n: (torch.arange(n),),
}


def declared(loss: Loss) -> Case:
    """Return a case for a declared loss with its default settings."""
    return Case(
        loss.name,
        getattr(losses, loss.name),
        loss.load_module(),
        settings={"q": 0.5} if loss.name == "rince" else {},
        extra=EXTRA[loss.reads],
        squashed=loss.least_temperature is not None,
    )


rince = functools.partial(Case, function=losses.rince, module=losses.RINCE)
# Every declared loss, plus settings that cover other branches.
SUMS = [
    *(declared(loss) for loss in BUILT_IN if not loss.has_state),
    rince("rince-warm", settings={"q": 0.01}),
    rince("rince-lam", settings={"q": 0.5, "lam": 0.01}, squashed=True),
    rince("rince-symmetric", settings={"q": 1.0}, squashed=True),
    Case(
        "debiased-zero",
        losses.debiased,
        losses.Debiased,
        {"tau_plus": 0.5, "floor": 0.0},
    ),
    Case(
        "hard_negative-2",
        losses.hard_negative,
        losses.HardNegative,
        {"beta": 2.0},
    ),
    Case(
        "gce-smoothed",
        losses.gce,
        losses.GCE,
        {"q": 0.7, "smoothing": 0.1},
        _labels,
    ),
]
GLOBAL = [
    Case(name, _global, None, settings, EXTRA["index"])
    for name, settings in (
        ("sogclr", {"module": losses.SogCLR}),
        ("isogclr", {"module": losses.ISogCLR, "kl_radius": 0.5, "temperature_lr": 0.1}),
        ("nuclr", {"module": losses.NUCLR, "popularity_lr": 0.1, "zeta_init": -0.05}),
    )
]
EVERY = SUMS + GLOBAL
cases = pytest.mark.parametrize("loss", EVERY, ids=lambda case: case.name)
sums = pytest.mark.parametrize("loss", SUMS, ids=lambda case: case.name)
within = pytest.mark.parametrize("within_view", [False, True])


def _features(n: int = 7, d: int = 5, **options: Any) -> tuple[Tensor, Tensor]:
    x = unit_rows(n, d, seed=3)
    y = torch.nn.functional.normalize(x + unit_rows(n, d, seed=4), dim=1)
    return x.to(**options).requires_grad_(), y.to(**options).requires_grad_()


@cases
@within
@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_the_loss_is_the_mean_of_the_losses_per_pair(
    loss: Case, within_view: bool, device: str
) -> None:
    for dtype in (torch.float32, torch.float64):
        x, y = _features(device=device, dtype=dtype)
        loss_of_pairs = loss(x, y, temperature=0.2, reduction="none", within_view=within_view)
        mean = loss(x, y, temperature=0.2, within_view=within_view)
        assert loss_of_pairs.shape == (7,)
        assert mean.shape == ()
        assert loss_of_pairs.dtype == dtype
        assert mean.dtype == dtype
        assert loss_of_pairs.device == mean.device == x.device
        torch.testing.assert_close(mean, loss_of_pairs.mean())


@cases
@within
def test_swapping_directions_or_permuting_rows_does_not_change_the_loss(
    loss: Case, within_view: bool
) -> None:
    x, y = _features()
    options = {"temperature": 0.1, "reduction": "none", "within_view": within_view}
    value = loss(x, y, **options)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loss(y, x, **options), value)
    extra = [argument[order] for argument in loss.extra(7)]
    torch.testing.assert_close(
        loss.function(x[order], y[order], *extra, **loss.settings, **options), value[order]
    )


X = unit_rows(4, 3)


@cases
def test_invalid_features_and_options_raise_errors(loss: Case) -> None:
    for x, y, options, named in (
        (X, X[:3], {}, r"same shape.* \(4, 3\) and \(3, 3\)"),
        (X[0], X[0], {}, r"image_features.* \(3,\)"),
        (X, X.float(), {}, "float64 and torch.float32"),
        (X.long(), X.long(), {}, "image_features.* torch.int64"),
        (X[:1], X[:1], {}, "n = 1"),
        (X, X, {"temperature": 0.0}, "temperature.* 0.0"),
        (X, X, {"reduction": "sum"}, "reduction.* 'sum'"),
        (X, X, {"chunk_size": 0}, "chunk_size.* 0"),
    ):
        stated = {"temperature": 0.1} | options
        with pytest.raises(InvalidInputError, match=named):
            loss(x, y, **stated)
        if options and loss.module is not None:
            with pytest.raises(InvalidInputError, match=named):
                loss.module(**loss.settings, **stated)


def calling(name: str, *features: Any, **settings: Any) -> Callable[[], Tensor]:
    return lambda: getattr(losses, name)(X, X, *features, **{"temperature": 1.0, **settings})


FOUR = torch.arange(4)
of_items = losses.NUCLR(4, temperature=0.05)


@refused(
    (lambda: losses.GroupWeights(1), "^groups: "),
    (lambda: losses.GroupWeights(2, step=0), "^step: "),
    (lambda: losses.GroupWeights(2)(torch.ones(3), torch.arange(3)), "^groups: .* 0 to 1, got 2"),
    (lambda: losses.GroupWeights(2.5), "^groups: .* whole number"),
    (calling("rince", q=0.0), "^q: "),
    (calling("rince", q="0.5"), "^q: .* got '0.5'"),
    (calling("rince", q=0.4, lam="0.1"), "^lam: .* got '0.1'"),
    (calling("rince", q=0.4, chunk_size=2.5), "^chunk_size: .* whole number .* got 2.5"),
    (calling("info_nce", chunk_size=True), "^chunk_size: .* got True"),
    (lambda: losses.info_nce(X, X.to("meta"), temperature=1.0), "same device, got cpu and meta"),
    (calling("rince", q=0.4, lam=1.5), "^lam: "),
    (calling("info_nce", temperature=torch.ones(1)), "^temperature: "),
    (calling("sigmoid", bias=torch.ones(1)), r"^bias: .* \(1,\)"),
    *(
        (calling("sigmoid", bias=bias), "^bias: expected a finite number")
        for bias in ("1", math.nan, math.inf, 10**400)
    ),
    (lambda: losses.Sigmoid(temperature=0.1, bias=math.nan), "^bias: .* got nan"),
    (calling("spread", FOUR, alpha=1.5), "^alpha: "),
    (calling("spread", FOUR.tolist()), "^labels: .* got list"),
    (calling("supcon", FOUR[:3]), r"^labels: .* \(4,\).* torch.int64 .* \(3,\)"),
    (lambda: losses.spread(X.tolist(), X, FOUR, temperature=1.0), "^image_features: .* got list"),
    (calling("gce", FOUR, q=1.5), "^q: "),
    (lambda: losses.q_warmup(10, 10), "^step: "),
    (calling("gce", FOUR, smoothing=1.0), "^smoothing: "),
    (calling("gce", FOUR[:3]), r"^captions: .* \(4,\).* torch.int64 .* \(3,\)"),
    (calling("debiased", tau_plus=1.0), "^tau_plus: "),
    (calling("debiased", X[:, None].long()), "^positives: .* torch.int64"),
    (
        calling("debiased", X[:, :0, None].expand(-1, -1, 3)),
        r"^positives: .* \(4, 0, 3\)",
    ),
    (
        calling("debiased", (X[:, None], X[:, None].expand(-1, 2, -1))),
        r"^positives: .* \(4, 1, 3\) and .* \(4, 2, 3\)",
    ),
    (calling("debiased", [[1.0]]), "^positives: .* got list"),
    (calling("debiased", (X[:, None], None)), "^positives: .* and NoneType"),
    (calling("hard_negative", beta=-1.0), "^beta: "),
    (calling("hard_negative", floor=-1.0), "^floor: "),
    (lambda: losses.NUCLR(1, temperature=0.05), "^dataset_size: "),
    (lambda: losses.NUCLR(3.5, temperature=0.05), "^dataset_size: .* whole number"),
    (lambda: losses.NUCLR(4, temperature=0.05, gamma=0.0), "^gamma: "),
    (lambda: losses.NUCLR(4, temperature=0.0), "^temperature: "),
    (calling("cyclip", cross_modal=-1.0), "^cross_modal: "),
    (calling("cyclip", in_modal=math.nan), "^in_modal: "),
    (lambda: losses.ISogCLR(4, temperature=0.05, kl_radius=0.0), "^kl_radius: "),
    (lambda: losses.ISogCLR(4, temperature=0.05, temperature_lr=-1.0), "^temperature_lr: "),
    (lambda: losses.ISogCLR(4, temperature=0.05, minimum_temperature=0), "^minimum_temperature: "),
    (lambda: of_items(X, X, FOUR / 1), "^index: expected an integer tensor"),
    (lambda: of_items(X, X, FOUR // 2), "^index: .* twice"),
    (lambda: of_items(X, X, FOUR - 1), "^index: expected row numbers 0 .. 3, got -1 .. 2"),
    (lambda: of_items(X, X, FOUR + 1), "^index: expected row numbers 0 .. 3, got 1 .. 4"),
    (lambda: losses.estimate_popularity(X @ X.T * torch.nan, temperature=1.0), "^similarity: some"),
    (lambda: losses.estimate_popularity(X @ X.T, temperature=0.0), "^temperature: "),
    (
        lambda: losses.InfoNCE(temperature=0.009, learnable_temperature=True),
        "^temperature: .* minimum 0.01, got",
    ),
)
def test_values_out_of_range_and_wrong_shapes_raise_errors(call: Any) -> None:
    call()


@pytest.mark.parametrize("loss", SUMS, ids=lambda loss: loss.name)
def test_a_second_derivative_is_correct_or_raises_an_error(loss: Case) -> None:
    """With torch's own decorator, `torch.autograd.grad` would return a wrong derivative."""
    x, y = _features()
    x = x.double().requires_grad_()

    def value(rows: Tensor) -> Tensor:
        return loss(rows, y.double(), temperature=0.5)

    with contextlib.suppress(InvalidInputError):
        (gradient,) = torch.autograd.grad(value(x), x, create_graph=True)
        direction = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape_as(x)
        (second,) = torch.autograd.grad((gradient * direction).sum(), x)
        # Directional derivative by a central difference of gradients.
        ends = list[Tensor]()
        for step in (-1e-5, 1e-5):
            moved = (x + step * direction).detach().requires_grad_()
            ends += torch.autograd.grad(value(moved), moved)
        torch.testing.assert_close(second, (ends[1] - ends[0]) / 2e-5, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(losses.LOSSES))
def test_every_loss_requires_a_temperature_and_says_so(name: str) -> None:
    declaration = losses.LOSSES[name]
    module = declaration.load_module()
    forms = [module, module if declaration.has_state else getattr(losses, name)]
    for form in forms:
        parameter = inspect.signature(form).parameters.get("temperature")
        documented = form.__doc__
        if form is module:
            # Modules refer to the documentation of their base class.
            documented += losses.ContrastiveLoss.__doc__
        assert "temperature: t" in documented
        if parameter is not None:
            assert parameter.kind is parameter.KEYWORD_ONLY
            assert parameter.default is parameter.empty
    needed = {"dataset_size": 4} if declaration.reads == "index" else {}
    if name == "rince":
        needed = {"q": 0.4}
    with pytest.raises(TypeError, match="temperature"):
        module(**needed)
    if not declaration.has_state:
        extra = (torch.arange(4),) if declaration.reads else ()
        with pytest.raises(TypeError, match="keyword-only argument: 'temperature'"):
            forms[1](X, X, *extra, **needed)


def test_rince_requires_q() -> None:
    with pytest.raises(TypeError, match="keyword-only argument: 'q'"):
        losses.rince(X, X, temperature=0.1)
    with pytest.raises(TypeError, match="RINCE: pass q=, which has no default"):
        losses.RINCE(temperature=0.1)


class LargestTensor(TorchDispatchMode):
    """Record the size of the largest tensor that an operation returned."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.numel())
        return out


def _derived(loss: Case, n: int, chunk_size: int | None, **options: Any) -> list[Tensor | None]:
    """Return the per-pair losses, and the gradients of their weighted sum with respect to features
    and temperature."""
    t = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    how = {"chunk_size": chunk_size, **options}
    return derived(
        lambda x, y, t: loss(x, y, temperature=t, reduction="none", **how), *_features(n, 4), t
    )


@cases
@within
def test_blocks_change_neither_value_nor_gradient(loss: Case, within_view: bool) -> None:
    unblocked = _derived(loss, 23, None, within_view=within_view)
    for chunk_size in (1, 7, 23, 100):
        for ours, expected in zip(
            _derived(loss, 23, chunk_size, within_view=within_view), unblocked, strict=True
        ):
            if ours is not None:
                torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        x, y = _features(23, 4)
        blocks = loss(
            x, y, temperature=0.1, chunk_size=5, reduction="none", within_view=within_view
        )
    torch.testing.assert_close(blocks, unblocked[0])


@cases
def test_no_tensor_grows_quadratically_with_the_batch(loss: Case) -> None:
    n = 96
    chunk_size = 8
    with LargestTensor() as unblocked:
        _derived(loss, n, None, within_view=False)
    with LargestTensor() as blocks:
        _derived(loss, n, chunk_size, within_view=False)
    assert unblocked.size > chunk_size * n
    assert blocks.size <= chunk_size * n


@cases
def test_blocks_are_not_kept_for_the_backward_pass(loss: Case) -> None:
    """The memory that autograd keeps after the forward pass is linear in n. Keeping all blocks
    would take n^2."""
    assert _held(loss, 192, 8) < 2.2 * _held(loss, 96, 8)
    # The sigmoid loss computes its gradient with each block, so it never keeps the full matrix. The
    # spread loss does not keep it if classes are as large as here.
    if loss.name not in ("sigmoid", "spread"):
        assert _held(loss, 96, None) >= 96 * 96


@within
def test_the_spread_loss_of_small_classes_keeps_its_similarities(within_view: bool) -> None:
    """This changes neither the value nor the gradient, computed without keeping any."""
    n = 300
    uneven = (torch.rand(n, generator=torch.Generator().manual_seed(0)) ** 2 * 20).long()
    results = []
    for chunk_size in (None, 50):
        loss = Case("spread", losses.spread, None, {"alpha": 0.4}, lambda n: (uneven,))
        results.append(_derived(loss, n, chunk_size, within_view=within_view))
        is_kept = _held(loss, n, chunk_size) >= n * n
        assert is_kept == (chunk_size is None)
    for kept, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(kept, recomputed, rtol=1e-10, atol=1e-10)


def _held(loss: Case, n: int, chunk_size: int | None) -> int:
    """Count the numbers in tensors that are saved for the backward pass."""
    held: dict[int, Tensor] = {}

    def hold(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x, y = _features(n, 4)
    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        loss(x, y, temperature=0.1, chunk_size=chunk_size, within_view=False)
    return sum(
        tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in held.values()
    )


def _pairs(kind: str, n: int = 8) -> tuple[Tensor, Tensor]:
    x = unit_rows(n, 16, seed=1)
    y = unit_rows(n, 16, seed=2)
    repeated = x[:1].expand(n, -1).clone()
    return {
        "random": (x, y),
        "perfect": (x, x.clone()),
        "opposite": (x, -x),
        "collapsed": (repeated, repeated.clone()),
    }[kind]


@sums
@pytest.mark.filterwarnings("ignore:rince. q / temperature is")
def test_value_and_gradient_are_finite_at_the_temperature_of_clip(loss: Case) -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for kind, dtype, within_view in product(
        ("random", "perfect", "opposite", "collapsed"), dtypes, (False, True)
    ):
        x, y = (features.to(dtype).requires_grad_() for features in _pairs(kind))
        t = torch.tensor(0.01, requires_grad=True)
        value = loss(x, y, temperature=t, within_view=within_view)
        assert value.dtype == torch.float32
        assert torch.isfinite(value)
        for gradient in torch.autograd.grad(value, (x, y, t)):
            assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "loss", [case for case in SUMS if not case.squashed], ids=lambda case: case.name
)
def test_half_precision_features_do_not_reduce_the_precision_of_the_loss(
    loss: Case, dtype: torch.dtype
) -> None:
    """The error in the loss of rounded features is at most 1e-4. Rounded logits would cause an
    error of 0.25."""
    x, y = (features.to(dtype) for features in _pairs("random"))
    exact = loss(x.double(), y.double(), temperature=0.01, reduction="none")
    torch.testing.assert_close(
        loss(x, y, temperature=0.01, reduction="none").double(), exact, rtol=1e-4, atol=1e-4
    )


@sums
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_autocast_does_not_change_the_loss(loss: Case, chunk_size: int | None) -> None:
    """This includes backward(), in which autocast must not round products either."""
    x, y = (features.float().requires_grad_() for features in _pairs("random"))
    plain = loss(x, y, temperature=0.05, chunk_size=chunk_size)
    expected = torch.autograd.grad(loss(x.double(), y.double(), temperature=0.05), (x, y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ y.T).dtype == torch.bfloat16  # autocast does round, so the test can fail
        value = loss(x, y, temperature=0.05, chunk_size=chunk_size)
        assert torch.equal(value, plain)
        for ours, exact in zip(torch.autograd.grad(value, (x, y)), expected, strict=True):
            torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-5)


OPTIONS: dict[str, Any] = {
    "temperature": 0.2,
    "reduction": "none",
    "chunk_size": 4,
    "within_view": True,
}


@sums
def test_a_module_returns_the_value_of_its_function(loss: Case) -> None:
    x, y = _features()
    ours = loss.module(**loss.settings, **OPTIONS)(x, y, *loss.extra(7))
    torch.testing.assert_close(ours, loss(x, y, **OPTIONS), rtol=1e-6, atol=1e-6)
    with pytest.raises(TypeError, match="no 'chunksize'; did you mean 'chunk_size'"):
        loss.module(**loss.settings, temperature=0.1, chunksize=3)
    across = loss.module(**loss.settings, **(OPTIONS | {"within_view": False}))
    assert not torch.allclose(ours, across(x, y, *loss.extra(7)))


@sums
def test_a_learned_temperature_follows_the_gradient_of_the_function(loss: Case) -> None:
    x, y = _features()
    step = 1e-6
    learned = loss.module(
        **loss.settings | {"temperature": 0.2, "learnable_temperature": True}
    ).double()
    learned(x, y, *loss.extra(7)).backward()
    values = [
        loss(x, y, temperature=0.2 * torch.tensor(sign * step, dtype=x.dtype).exp())
        for sign in (1, -1)
    ]
    gradient = learned.temperature.log_temperature.grad
    assert float(gradient) == pytest.approx(
        float((values[0] - values[1]).detach()) / (2 * step), rel=1e-3
    )
