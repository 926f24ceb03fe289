"""Test the calibrated projection against its dense formula and the properties in Lemmas 7.1 and
7.2."""

import itertools
import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from tests.methods.made import unit as embeddings
from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.projection.projection import (
    CalibratedProjection,
    _is_too_large,
    _on_one_device,
    scatter_of,
)


def fit(pairs: Any, spurious: Any = None, lam: Any = 1000.0) -> CalibratedProjection:
    return CalibratedProjection(lam).fit(pairs, spurious)


def fit_groups(groups: Any, spurious: Any = None, lam: Any = 1000.0) -> CalibratedProjection:
    return CalibratedProjection.solve([scatter_of(groups)], spurious, lam)


S8 = embeddings(3, 2, 8)
A8 = embeddings(2, 8, seed=1)


def scatter(pairs: Tensor) -> Tensor:
    """Compute sum_S (z_i - z_j)(z_i - z_j)^T one outer product at a time."""
    return sum(torch.outer(a - b, a - b) for a, b in pairs)


def dense_p0(d: int, spurious: Tensor | None) -> Tensor:
    eye = torch.eye(d, dtype=torch.float64)
    if spurious is None:
        return eye
    A = spurious.T
    return eye - A @ torch.linalg.pinv(A.T @ A, hermitian=True) @ A.T


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, float]:
    d = draw(st.integers(2, 24))
    n = draw(st.integers(1, 40))
    m = draw(st.integers(1, min(6, d - 1)))
    seed = draw(st.integers(0, 2**20))
    lam = draw(st.sampled_from([0.0, 1e-3, 1.0, 500.0, 1000.0, 1e6]))
    return embeddings(n, 2, d, seed=seed), embeddings(m, d, seed=seed + 1), lam


laws = settings(max_examples=40, deadline=None, derandomize=True)
SIZES = [(6, 1, 2), (6, 100, 2), (64, 5, 3), (512, 31, 2), (768, 80, 10)]


@pytest.mark.parametrize(
    ("d", "pairs", "spurious", "lam"),
    [
        *[(*size, lam) for size, lam in itertools.product(SIZES, (1.0, 500.0, 1000.0))],
        pytest.param(4096, 1000, 20, 1000.0, marks=pytest.mark.slow),
    ],
)
def test_fit_equals_the_dense_formula(d: int, pairs: int, spurious: int, lam: float) -> None:
    S = embeddings(pairs, 2, d)
    A = embeddings(spurious, d, seed=1)
    differences = S[:, 0] - S[:, 1]
    inverse = torch.linalg.inv(
        torch.eye(d, dtype=torch.float64) + lam / pairs * differences.T @ differences
    )
    expected = dense_p0(d, A) @ inverse
    projection = fit(S, A, lam)
    assert (projection.matrix() - expected).abs().max() < 1e-8
    z = embeddings(4, d, seed=2)
    assert (projection(z) - z @ expected.T).abs().max() < 1e-8


@laws
@given(problems())
def test_lam_zero_gives_p0(problem: tuple[Tensor, Tensor, float]) -> None:
    S, A, _ = problem
    for projection in (fit(S, A, 0.0), fit(None, A)):
        assert (projection.matrix() - dense_p0(A.shape[1], A)).abs().max() < 1e-9
        assert projection.method == "orth"
        assert projection.lam == 0


def eq_7_3(P: Tensor, P0: Tensor, pairs: Tensor, lam: float) -> Tensor:
    return (P - P0).square().sum() + lam / len(pairs) * sum(
        (P @ (a - b)).square().sum() for a, b in pairs
    )


def eq_7_4(z: Tensor, z0: Tensor, pairs: Tensor, lam: float) -> Tensor:
    return (z - z0).square().sum() + lam / len(pairs) * sum(
        (z @ a - z @ b).square() for a, b in pairs
    )


@laws
@given(problems(), st.integers(0, 1000), st.sampled_from([1e-3, 1e-1, 1.0]))
def test_no_perturbation_lowers_the_objectives(
    problem: tuple[Tensor, Tensor, float], seed: int, size: float
) -> None:
    S, A, lam = problem
    lam = max(lam, 1e-3)
    d = A.shape[1]
    P0 = dense_p0(d, A)
    P = fit(S, A, lam).matrix()
    z0 = embeddings(d, seed=seed)
    step = size * embeddings(d, d, seed=seed + 1)
    assert eq_7_3(P + step, P0, S, lam) > eq_7_3(P, P0, S, lam)
    z = fit(S, None, lam)(z0)
    assert eq_7_4(z + step[0], z0, S, lam) > eq_7_4(z, z0, S, lam)


@laws
@given(st.lists(st.integers(2, 7), min_size=1, max_size=4), st.integers(0, 1000))
def test_group_identity_matches_all_pairs(sizes: list[int], seed: int) -> None:
    groups = [embeddings(n, 16, seed=seed + k) for k, n in enumerate(sizes)]
    pairs = []
    for group in groups:
        pairs += [torch.stack(pair) for pair in itertools.combinations(group, 2)]
    pairs = torch.stack(pairs)
    rows = scatter_of(groups)
    torch.testing.assert_close(rows.T @ rows, scatter(pairs) / len(pairs))
    A = embeddings(2, 16, seed=seed + 99)
    torch.testing.assert_close(
        fit_groups(groups, A).matrix(), fit(pairs, A).matrix(), atol=1e-9, rtol=0
    )


def test_several_attributes_are_solved_jointly() -> None:
    gender = embeddings(8, 2, 24)
    race = embeddings(30, 2, 24, seed=1)
    A = embeddings(4, 24, seed=2)
    M = 700.0 / 8 * scatter(gender) + 300.0 / 30 * scatter(race)
    expected = dense_p0(24, A) @ torch.linalg.inv(torch.eye(24, dtype=torch.float64) + M)
    edit = fit([gender, race], A, [700.0, 300.0])
    swapped_edit = fit([race, gender], A.flip(0), [300.0, 700.0])
    assert (edit.matrix() - expected).abs().max() < 1e-9
    assert (swapped_edit.matrix() - expected).abs().max() < 1e-9
    assert edit.lam == (700.0, 300.0)
    chained = fit(race, A, 300.0).matrix() @ fit(gender, A, 700.0).matrix()
    assert (chained - expected).abs().max() > 1e-2, (
        "sequential projections must differ, otherwise this test shows nothing"
    )


@pytest.mark.parametrize("count", [8, 9, 65, 200])  # blocks of a Gram matrix have 64 rows here
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_more_pairs_than_dimensions_equal_the_dense_formula(count: int, dtype: torch.dtype) -> None:
    sets = [embeddings(count, 2, 8).to(dtype), embeddings(5, 2, 8, seed=1).to(dtype)]
    groups = list(embeddings(count, 3, 8, seed=2)) + list(embeddings(4, 5, 8, seed=3))
    A = embeddings(2, 8, seed=4)
    pairs = [torch.stack(pair) for group in groups for pair in itertools.combinations(group, 2)]
    M = 700.0 / len(pairs) * scatter(torch.stack(pairs))
    for pairs_of_set, weight in zip(sets, (500.0, 30.0), strict=True):
        M += weight / len(pairs_of_set) * scatter(pairs_of_set.double())
    expected = dense_p0(8, A) @ torch.linalg.inv(torch.eye(8, dtype=torch.float64) + M)
    edit = CalibratedProjection.solve([*sets, scatter_of(groups)], A, [500.0, 30.0, 700.0])
    assert (edit.matrix() - expected).abs().max() < 1e-12


def test_weights_of_zero_keep_the_factors_small_and_still_reject_nan() -> None:
    many = embeddings(100, 2, 8)
    assert fit([S8, many], A8, [1000.0, 0.0]).rank == fit(S8, A8).rank == 5
    many[99, 0, 0] = math.nan
    for sets, lam in (([many], 1000.0), ([S8, many], [1000.0, 0.0])):
        with pytest.raises(InvalidInputError, match="1 values are NaN"):
            fit(sets, A8, lam)
    many[99, 0] = S8[0, 0] * 1e200  # its square overflows
    assert fit(many)(S8[0, 0]).abs().max() < 1e-9


def test_a_fit_neither_changes_nor_keeps_its_arrays() -> None:
    for pairs in (embeddings(3, 2, 8).numpy(), embeddings(100, 2, 8).numpy()):
        spurious = embeddings(2, 8, seed=1).numpy()
        before = pairs.copy(), spurious.copy()
        edit = fit(pairs, spurious)
        assert (pairs == before[0]).all()
        assert (spurious == before[1]).all()
        matrix = edit.matrix()
        pairs[:] = 0.0
        spurious[:] = 0.0
        assert torch.equal(edit.matrix(), matrix)


@laws
@given(problems(), st.integers(1, 3))
def test_duplicate_prompts_do_not_change_the_projection(
    problem: tuple[Tensor, Tensor, float], times: int
) -> None:
    S, A, lam = problem
    again = torch.cat(
        [A.flip(0), *[2.0 * A] * times, A.sum(0, keepdim=True), torch.zeros_like(A[:1])]
    )
    projection = fit(S, again, lam)
    assert (projection.matrix() - fit(S, A, lam).matrix()).abs().max() < 1e-8
    assert (
        fit(S.flip(1).repeat(times + 1, 1, 1), A, lam).matrix() - fit(S, A, lam).matrix()
    ).abs().max() < 1e-8
    assert projection.rank <= len(A) + len(S)


@pytest.mark.parametrize("lam", [1e8, 1e15, 1e20, 1e300])
def test_pair_differences_vanish_as_lam_increases(lam: float) -> None:
    S = embeddings(3, 2, 6)
    A = embeddings(1, 6, seed=1)
    limit = fit(None, S[:, 0] - S[:, 1]).matrix()
    for pairs in (S, S.repeat(2, 1, 1), S.repeat(5, 1, 1)):
        # At a finite lam, a fraction 1 / (1 + lam s) of each direction remains, so the result is
        # within 100 / lam of the limit.
        assert (fit(pairs, None, lam).matrix() - limit).abs().max() < 100 / lam + 1e-12
        assert (
            fit(pairs, A, lam).matrix() - fit(None, A).matrix() @ limit
        ).abs().max() < 100 / lam + 1e-12


def test_a_wide_space_does_not_need_a_dense_matrix() -> None:
    d = 200_000  # a d x d matrix would take 320 GB
    S = embeddings(3, 2, d)
    A = embeddings(2, d, seed=1)
    projection = fit(S, A)
    assert (projection.dim, projection.rank) == (d, 5)
    assert (projection(embeddings(2, d, seed=2)) @ A.T).abs().max() < 1e-9
    groups = fit_groups([S[:, 0]])
    assert groups.rank == 2


@laws
@given(problems(), st.floats(0, 1, allow_subnormal=False))
def test_strength_is_linear(problem: tuple[Tensor, Tensor, float], strength: float) -> None:
    S, A, lam = problem
    z = embeddings(3, A.shape[1], seed=5)
    projection = fit(S, A, lam)
    torch.testing.assert_close(
        projection(z, strength), z + strength * (projection(z) - z), atol=1e-12, rtol=0
    )


TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", [(16,), (1, 16), (5, 16), (2, 3, 16), (0, 16)])
def test_shape_and_dtype_are_preserved(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    projection = fit(embeddings(5, 2, 16), embeddings(2, 16, seed=1))
    z = embeddings(*shape, seed=2)
    rows = z.to(dtype)
    assert projection(rows, 0.0) is rows
    got = projection(rows)
    assert torch.equal(rows, z.to(dtype)), "the argument is not modified"
    assert (got.shape, got.dtype, got.device) == (z.shape, dtype, z.device)
    torch.testing.assert_close(got.double(), projection(z), atol=TOLERANCE[dtype], rtol=0)


def test_half_precision_output_is_rounded_once_and_autocast_has_no_effect() -> None:
    projection = fit(embeddings(20, 2, 64), embeddings(3, 64, seed=1))
    half = embeddings(50, 64, seed=2).half()
    assert torch.equal(projection(half), projection(half.float()).half())
    z = half.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert (z @ z.T).dtype == torch.bfloat16, (
            "autocast must be active, otherwise this test shows nothing"
        )
        inside = projection(z)
    assert torch.equal(inside, projection(z))


def test_embeddings_beyond_the_range_of_float16_keep_their_direction() -> None:
    projection = fit(embeddings(20, 2, 64), embeddings(3, 64, seed=1))
    z = torch.cat([6e4 * embeddings(50, 64, seed=2).sign(), embeddings(2, 64, seed=3)]).half()
    exact = projection(z.double())
    is_beyond = exact.abs().amax(1) > torch.finfo(torch.float16).max
    assert is_beyond.any()
    got = projection(z)
    assert got.isfinite().all()
    assert torch.equal(got[~is_beyond], projection(z[~is_beyond].float()).half())
    torch.testing.assert_close(
        normalize(got.double(), dim=1), normalize(exact, dim=1), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_are_returned_as_arrays_even_if_read_only_or_reversed(dtype: type) -> None:
    S, A, z = (
        t.numpy().astype(dtype)
        for t in (embeddings(5, 2, 16), embeddings(2, 16, seed=1), embeddings(3, 16))
    )
    for array in (S, z):
        array.setflags(write=False)
    projection = fit(S[::-1], A)
    got = projection(z)
    assert isinstance(got, np.ndarray)
    assert projection(z, 0.0) is z
    assert (got.shape, got.dtype) == (z.shape, z.dtype)
    assert (got == projection(torch.from_numpy(z.copy())).numpy()).all()
    assert np.allclose(projection(z[::-1]), got[::-1])


def test_gradients_only_flow_through_the_projection() -> None:
    S = embeddings(3, 2, 8).requires_grad_()
    projection = fit(S, embeddings(1, 8, seed=1).requires_grad_())
    assert not projection.left.requires_grad
    z = embeddings(2, 8, seed=2).requires_grad_()
    (gradient,) = torch.autograd.grad(projection(z).sum(), z)
    torch.testing.assert_close(gradient, projection.matrix().sum(0).expand(2, -1))
    assert torch.autograd.gradcheck(projection, (z,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "problem", [(S8, A8), (S8, None), (None, A8)], ids=["orth-cali", "cali", "orth"]
)
def test_inference_mode_has_no_lasting_effect(
    dtype: torch.dtype, problem: tuple[Tensor | None, Tensor | None]
) -> None:
    with torch.inference_mode():
        projection = fit(*problem)
        projection(embeddings(2, 8).to(dtype))
    z = embeddings(2, 8).to(dtype).requires_grad_()
    projection(z).sum().backward()
    assert z.grad is not None


def test_meta_tensors_pass_through() -> None:
    assert fit(S8)(torch.empty(2, 8, device="meta")).shape == (2, 8)


NAN = S8.clone()
NAN[0, 0, 0] = float("nan")


@refused(
    ((S8[0],), r"pairs: .*\(n, 2, d\), got \(2, 8\)"),
    ((torch.zeros(4, 3, 8),), r"pairs: .*\(n, 2, d\), got \(4, 3, 8\)"),
    (("gender",), r"pairs: .* got str"),
    ((NAN,), "1 values are NaN"),
    ((S8, A8 / 0.0), "16 values"),
    ((S8, A8[0]), r"spurious: .*\(m, d\).* got \(8,\)"),
    ((S8, A8[:, :5]), r"got widths \[5, 8\]"),
    ((S8, A8, -1.0), r"lam: .* got -1.0"),
    ((S8, A8, 10**400), r"lam: expected finite numbers >= 0, got 10+\.\.\.0+$"),
    ((S8.to_sparse(),), r"got a sparse one \(.*\); pass pairs\.to_dense\(\)"),
    ((S8.numpy().astype(object),), r"pairs: got an array \(.*\) of object; expected numbers"),
    ((S8.to(torch.complex64),), "pairs: .* of torch.complex64"),
    ((S8, A8, "much"), r"lam: .* got 'much'"),
    ((S8, A8, [1.0, 2.0]), r"\(1\), got \[1.0, 2.0\]"),
    *((given, "lam above 0") for given in ((None,), (S8, None, 0.0))),
    ((S8[:, [0, 0]],), "whose embeddings differ"),
)
def test_inputs_without_a_solution_are_rejected(arguments: tuple) -> None:
    fit(*arguments)


@refused(
    (torch.tensor([[1.0] * 8, [math.inf] * 8]), "NaN or infinite values in 1 of 2 rows"),
    (np.full((3, 8), np.nan), "NaN or infinite values in 3 of 3 rows"),
    (np.ones((2, 8), dtype=object), r"z: got an array \(2, 8\) of object; expected numbers"),
)
def test_transform_rejects_embeddings_that_are_not_finite_numbers(z: Any) -> None:
    fit(S8).transform(z)


def test_invalid_groups_embeddings_and_strengths_are_rejected() -> None:
    for groups in ([], [A8, A8[:1]]):
        with pytest.raises(InvalidInputError, match="two or more"):
            scatter_of(groups)
    float8 = torch.zeros(2, 8).to(torch.float8_e4m3fn)
    for z in (torch.zeros(2, 9), torch.zeros(2, 8).long(), float8, "a photo"):
        with pytest.raises(InvalidInputError, match=r"\(..., 8\)"):
            fit(S8)(z)
    for strength in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidInputError, match="strength"):
            fit(S8)(A8, strength)


@pytest.mark.parametrize(("device", "solved_on"), [("meta", "meta"), ("mps", "cpu")])
def test_arrays_are_solved_on_their_device_unless_it_has_no_float64(
    device: str, solved_on: str
) -> None:
    scatter = Mock(device=torch.device(device))
    moved, _ = _on_one_device([scatter], None)
    scatter.to.assert_called_once_with(torch.device(solved_on))
    assert moved == [scatter.to.return_value]


def test_method_rank_repr_and_trace_are_recorded() -> None:
    for edit in (fit(S8), fit(S8, A8, 10.0), fit_groups([S8[:, 0]])):
        assert edit.removed == pytest.approx(8 - float(edit.matrix().trace()))
    assert [fit(S8).method, fit(S8, A8).method, fit(None, A8).method] == [
        "cali",
        "orth-cali",
        "orth",
    ]
    assert [fit(S8).rank, fit(S8, A8).rank, fit(None, A8).rank] == [3, 5, 2]
    assert CalibratedProjection.solve([S8[:, 0]]).lam == 1000.0
    nothing = CalibratedProjection.identity(8)
    assert (nothing.spurious_rank, nothing.lam, nothing.get_params()) == (0, 0.0, {"lam": 0.0})
    assert "choice" not in repr(nothing.provenance)
    assert (
        repr(fit(S8))
        == "CalibratedProjection(cali, lam=1000.0, rank=3, dim 8, space unknown, model unknown)"
    )


def test_projections_follow_the_estimator_interface() -> None:
    clone = pytest.importorskip(
        "sklearn.base", reason="scikit-learn is not installed with the core alone"
    ).clone

    made = CalibratedProjection(lam=7.0)
    assert made.get_params() == {"lam": 7.0}
    assert repr(made) == "CalibratedProjection(lam=7.0), not fitted"
    with pytest.raises(InvalidInputError, match=r"call \.fit"):
        made(S8[:, 0])
    assert made.fit(S8, A8) is made
    assert (made.lam, made.dim) == (7.0, 8)
    assert torch.equal(made.transform(S8[:, 0]), made(S8[:, 0]))
    assert torch.equal(made.image(S8[:, 0]), made(S8[:, 0]))
    torch.testing.assert_close(clone(made).fit(S8, A8).matrix(), made.matrix())
    # Refitting discards the first fit.
    torch.testing.assert_close(made.fit(S8).matrix(), fit(S8, None, 7.0).matrix())


def test_a_weight_shared_by_all_attributes_is_recorded_as_a_single_number() -> None:
    scatters = [scatter_of(list(S8)), scatter_of(list(embeddings(3, 2, 8, seed=2)))]
    assert CalibratedProjection.solve(scatters, None, (3.0, 3.0)).lam == 3.0
    assert CalibratedProjection.solve(scatters, None, (3.0, 4.0)).lam == (3.0, 4.0)


def test_repr_of_the_identity_is_no_edit() -> None:
    assert repr(CalibratedProjection.identity(3)) == "no edit (none)"


def test_embeddings_and_weights_whose_product_overflows_are_rejected() -> None:
    pairs = torch.randn(6, 2, 16, dtype=torch.float64)
    assert CalibratedProjection(lam=1e300).fit(pairs).matrix().isfinite().all()
    assert CalibratedProjection(lam=1.0).fit(pairs * 1e160).matrix().isfinite().all()
    with pytest.raises(InvalidInputError, match=r"pairs and lam: got 1e\+300 .*not finite"):
        CalibratedProjection(lam=1e300).fit(pairs * 1e160)


@pytest.mark.parametrize(
    ("trace", "is_too_large"), [(0.0, False), (1e6, False), (1e30, True), (float("nan"), True)]
)
def test_only_a_trace_that_rounds_the_identity_away_is_too_large(
    trace: float, is_too_large: bool
) -> None:
    assert _is_too_large(trace) is is_too_large


@pytest.mark.parametrize("n", [2, 20])
def test_attributes_of_two_models_are_rejected_whether_rows_are_few_or_many(n: int) -> None:
    scatters = [torch.ones(n, 8), torch.ones(n, 5)]
    with pytest.raises(InvalidInputError, match=r"expected finite .* got widths \[5, 8\]"):
        CalibratedProjection.solve(scatters, lam=1.0)
