"""Bounded loss: the bound holds, it is used up, lam is its multiplier, and what bisection rests on is monotone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

import vldebias
from tests.fewer import few
from tests.refusals import refused
from vldebias.edit import Provenance
from vldebias.errors import InvalidInputError
from vldebias.hosts import TextTable, resolve
from vldebias.methods import Problem
from vldebias.methods.bounded import Bound, bounded, losses
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet, load_prompts

DIM = 12
seeds = st.integers(0, 10_000)
LAMS = [0.1, 1.0, 3.0, 10.0, 100.0, 1e4, 1e7]


def unit(*shape: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=draw, dtype=torch.float64), dim=-1)


def pairs(seed: int, n: int = 4) -> Tensor:
    """Pairs whose differences have very different lengths, so that lam reaches them one after the other."""
    first = unit(n, DIM, seed=seed)
    steps = 10.0 ** -torch.arange(n, dtype=torch.float64)
    return torch.stack([first, first + steps[:, None] * unit(n, DIM, seed=seed + 1)], 1)


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_the_loss_of_every_text_never_falls_as_lam_grows(seed: int) -> None:
    texts = unit(20, DIM, seed=seed + 2)
    several = [pairs(seed), pairs(seed + 7, 2)]
    swept = torch.stack([losses(CalibratedProjection(lam=[lam, 5 * lam]).fit(several), texts) for lam in LAMS])
    assert (swept.diff(dim=0) > -1e-12).all()
    assert (swept[-1] > swept[0] + 1e-3).any()


@settings(max_examples=20, deadline=None)
@given(seed=seeds, rank=st.integers(1, 5))
def test_the_loss_never_falls_as_strength_grows_whatever_the_matrix(seed: int, rank: int) -> None:
    left, right = unit(DIM, rank, seed=seed), 2 * unit(DIM, rank, seed=seed + 1)
    any_matrix = CalibratedProjection.of(left, right, Provenance("any"))
    texts = unit(20, DIM, seed=seed + 2)
    swept = torch.stack([losses(any_matrix.at_strength(t / 20), texts) for t in range(1, 21)])
    assert (swept.diff(dim=0) > -1e-12).all()


@settings(max_examples=20, deadline=None)
@given(
    seed=seeds,
    loss=st.sampled_from([1e-4, 0.02, 0.1]),
    over=st.sampled_from(["every", "mean"]),
    with_p0=st.booleans(),
)
def test_the_bound_holds_and_is_used_up(seed: int, loss: float, over: str, with_p0: bool) -> None:
    spurious = unit(3, DIM, seed=seed + 5) if with_p0 else None
    before = CalibratedProjection(lam=1000.0).fit(pairs(seed), spurious)
    texts = unit(15, DIM, seed=seed + 2)
    after = bounded(before, 3 * texts, Bound(loss, over))
    found = losses(after, texts)
    value = found.max() if over == "every" else found.mean()
    assert value <= loss + 1e-12
    if after is not before:
        assert value > 0.999 * loss
    else:
        assert losses(before, texts).mean() <= loss


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_without_p0_it_is_the_same_method_at_a_smaller_lam(seed: int) -> None:
    several = [pairs(seed), pairs(seed + 7, 2)]
    after = bounded(CalibratedProjection(lam=[500.0, 2000.0]).fit(several), unit(9, DIM, seed=seed + 2), Bound(0.01))
    assert isinstance(after.lam, tuple)
    assert after.lam[1] == pytest.approx(4 * after.lam[0])
    assert after.lam[0] < 500
    again = CalibratedProjection(lam=list(after.lam)).fit(several)
    torch.testing.assert_close(after.matrix(), again.matrix(), atol=1e-9, rtol=1e-9)
    assert after.method == "cali"


def test_with_p0_it_is_the_same_projection_at_a_smaller_strength() -> None:
    before = CalibratedProjection(lam=1000.0).fit(pairs(0), unit(3, DIM, seed=5))
    after = bounded(before, unit(9, DIM, seed=2), Bound(0.02))
    assert after.method == "orth-cali, bounded"
    step, whole = torch.eye(DIM) - after.matrix(), torch.eye(DIM) - before.matrix()
    t = float(step.flatten() @ whole.flatten() / whole.square().sum())
    assert 0 < t < 1
    torch.testing.assert_close(step, t * whole)
    torch.testing.assert_close(after(unit(9, DIM, seed=3)), before(unit(9, DIM, seed=3), strength=t))


@settings(max_examples=15, deadline=None)
@given(seed=seeds, loss=st.sampled_from([0.01, 0.05, 0.2]))
def test_nothing_within_the_bound_is_less_biased(seed: int, loss: float) -> None:
    """For one text: no z with <z, z0> = 1 and this loss at most has a smaller z^T M z."""
    data, text = pairs(seed), unit(1, DIM, seed=seed + 2)
    difference = data[:, 0] - data[:, 1]

    def bias(z: Tensor) -> Tensor:
        return (z @ difference.T).square().sum(1)

    found = bounded(CalibratedProjection(lam=1000000000000.0).fit(data), text, Bound(loss))(text)
    found = found / (found @ text.T)
    # Random z on the bound: z0 + r u with u orthogonal to z0, |u| = 1, r from the cosine; some of them near `found`.
    radius = (1 / (1 - loss) ** 2 - 1) ** 0.5
    around = torch.cat([unit(300, DIM, seed=seed + 3), found - text + 0.01 * unit(300, DIM, seed=seed + 4)])
    sideways = normalize(around - (around @ text.T) * text, dim=1)
    shrunk = radius * torch.linspace(0, 1, 10, dtype=torch.float64)[:, None, None] * sideways
    others = (text + shrunk).flatten(0, 1)
    assert (others @ text.T / others.norm(dim=1, keepdim=True)).min() >= 1 - loss - 1e-9
    assert bias(found) <= bias(others).min() + 1e-9
    assert bias(found) < 0.999 * bias(text)


@pytest.mark.parametrize("lam", [1e12, 1e17])
def test_a_lam_that_saturates_is_bounded_all_the_same(lam: float) -> None:
    texts = unit(9, DIM, seed=2)
    after = bounded(CalibratedProjection(lam=lam).fit(pairs(1)), texts, Bound(0.01))
    assert losses(after, texts).max() <= 0.01


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_on_a_model(tmp_path: Path) -> None:
    from vldebias.miniature import load_clip

    model, _, tokenizer = load_clip()
    host, gender = resolve(model, tokenizer=tokenizer), few(load_prompts("gender"))

    def cosines(prompts: tuple[str, ...], given: Any = gender, **how: Any) -> Tensor:
        tokens = tokenizer(list(prompts))
        with torch.no_grad():
            before = model.encode_text(tokens, normalize=True)
            with vldebias.debias(host, given, **how):
                return (before * model.encode_text(tokens, normalize=True)).sum(1)

    for method in ("orth", "cali"):
        assert cosines(gender.classes, method=method).min() < 0.997
        assert cosines(gender.classes, method=method, max_loss=0.002).min() > 0.998 - 1e-5
    mine = ("A photo of an old person.", "A photo of a pilot.")
    found = cosines(mine, method="cali", max_loss=Bound(0.001, over="mean", neutral=mine))
    assert found.mean() == pytest.approx(0.999, abs=1e-5)
    assert found.min() < 0.999 < found.max()
    fitted = vldebias.fit_projection(host, gender, method="orth", max_loss=0.002)
    again = vldebias.CalibratedProjection.from_pretrained(fitted.save_pretrained(tmp_path / "saved"))
    assert (again.method, again.provenance.max_loss) == ("orth, bounded", 0.002)
    assert torch.equal(again.left, fitted.left)
    with pytest.raises(InvalidInputError, match="max_loss belong"):
        cosines(mine, fitted, max_loss=0.1)


@refused(
    *(((loss,), {}, "max_loss") for loss in (0.0, 1.0, 1e-7, "0.02", True, float("nan"))),
    ((0.1,), {"over": "most"}, "'most'"),
    ((0.1,), {"neutral": "a photo"}, "'a photo'"),
)
def test_what_is_no_bound(given_loss: Any, how: Any) -> None:
    Bound(*given_loss, **how)


def test_a_set_without_classes() -> None:
    bare = PromptSet("bare", groups=(("a man", "a woman"),))
    with pytest.raises(InvalidInputError, match="bare: expected neutral texts"):
        Problem(TextTable({"a": [1.0]}), (bare,)).neutral_prompts()
    assert Problem(TextTable({"a": [1.0]}), (bare,), neutral=("a person",)).neutral_prompts() == ("a person",)
