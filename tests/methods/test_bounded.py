"""Test the bounded loss: the bound is satisfied and tight, lam is its multiplier, and the loss is
monotone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

import vldebias
from tests.fewer import few
from tests.methods.made import unit
from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.hosts import TextTable, resolve
from vldebias.methods import Problem
from vldebias.methods.bounded import bounded, losses
from vldebias.projection.projection import CalibratedProjection
from vldebias.projection.provenance import Provenance
from vldebias.prompts import PromptSet, load_prompts

DIM = 12
LAMS = [0.1, 1.0, 3.0, 10.0, 100.0, 1e4, 1e7]
seeds = st.integers(0, 10_000)
laws = settings(max_examples=20, deadline=None)


def pairs(seed: int, n: int = 4) -> Tensor:
    """Return pairs whose differences vary widely in length, so that lam affects them one after
    another."""
    first = unit(n, DIM, seed=seed)
    steps = 10.0 ** -torch.arange(n, dtype=torch.float64)
    return torch.stack([first, first + steps[:, None] * unit(n, DIM, seed=seed + 1)], 1)


@laws
@given(seed=seeds, rank=st.integers(1, 5))
def test_the_loss_never_decreases_with_lam_or_strength(seed: int, rank: int) -> None:
    texts = unit(20, DIM, seed=seed + 2)
    several = [pairs(seed), pairs(seed + 7, 2)]
    any_matrix = unit(DIM, rank, seed=seed), 2 * unit(DIM, rank, seed=seed + 1)
    unbounded = CalibratedProjection(0.0, *any_matrix, Provenance("any"))
    for edits in (
        [CalibratedProjection(lam=[lam, 5 * lam]).fit(several) for lam in LAMS],
        [replace(unbounded, left=t / 20 * unbounded.left) for t in range(1, 21)],
    ):
        swept = torch.stack([losses(edit, texts) for edit in edits])
        assert (swept.diff(dim=0) > -1e-12).all()
        assert (swept[-1] > swept[0] + 1e-3).any()


@laws
@given(
    seed=seeds,
    max_loss=st.sampled_from([1e-4, 0.02, 0.1]),
    with_p0=st.booleans(),
)
def test_the_bound_is_satisfied_and_tight(seed: int, max_loss: float, with_p0: bool) -> None:
    before = CalibratedProjection(lam=1000.0).fit(
        pairs(seed), unit(3, DIM, seed=seed + 5) if with_p0 else None
    )
    texts = unit(15, DIM, seed=seed + 2)
    after = bounded(before, 3 * texts, max_loss)
    lost, at_first = (losses(edit, texts).max() for edit in (after, before))
    assert lost <= max_loss + 1e-12
    assert at_first <= max_loss if after is before else lost > 0.999 * max_loss


@laws
@given(seed=seeds)
def test_without_p0_lam_is_lowered(seed: int) -> None:
    several = [pairs(seed), pairs(seed + 7, 2)]
    after = bounded(
        CalibratedProjection(lam=[500.0, 2000.0]).fit(several), unit(9, DIM, seed=seed + 2), 0.01
    )
    assert isinstance(after.lam, tuple)
    assert after.lam[1] == pytest.approx(4 * after.lam[0])
    assert after.lam[0] < 500
    again = CalibratedProjection(lam=list(after.lam)).fit(several)
    torch.testing.assert_close(after.matrix(), again.matrix(), atol=1e-9, rtol=1e-9)
    assert after.method == "cali"


def test_with_p0_the_strength_is_lowered() -> None:
    before = CalibratedProjection(lam=1000.0).fit(pairs(0), unit(3, DIM, seed=5))
    after = bounded(before, unit(9, DIM, seed=2), 0.02)
    assert after.method == "orth-cali, bounded"
    step = torch.eye(DIM) - after.matrix()
    full_step = torch.eye(DIM) - before.matrix()
    t = float(step.flatten() @ full_step.flatten() / full_step.square().sum())
    assert 0 < t < 1
    torch.testing.assert_close(step, t * full_step)


@settings(max_examples=15, deadline=None)
@given(seed=seeds, max_loss=st.sampled_from([0.01, 0.05, 0.2]))
def test_no_vector_within_the_bound_is_less_biased(seed: int, max_loss: float) -> None:
    """For a single text, no z with <z, z0> = 1 and at most this loss has a smaller z^T M z."""
    data = pairs(seed)
    text = unit(1, DIM, seed=seed + 2)
    difference = data[:, 0] - data[:, 1]

    def bias(z: Tensor) -> Tensor:
        return (z @ difference.T).square().sum(1)

    edited = bounded(CalibratedProjection(lam=1e12).fit(data), text, max_loss)(text)
    edited = edited / (edited @ text.T)
    # Random z on the bound: z0 + r u with u orthogonal to z0, |u| = 1, and r from the cosine; some
    # are near `found`.
    radius = (1 / (1 - max_loss) ** 2 - 1) ** 0.5
    around = torch.cat(
        [unit(300, DIM, seed=seed + 3), edited - text + 0.01 * unit(300, DIM, seed=seed + 4)]
    )
    sideways = normalize(around - (around @ text.T) * text, dim=1)
    shrunk = radius * torch.linspace(0, 1, 10, dtype=torch.float64)[:, None, None] * sideways
    neighbours = (text + shrunk).flatten(0, 1)
    assert (neighbours @ text.T / neighbours.norm(dim=1, keepdim=True)).min() >= 1 - max_loss - 1e-9
    assert bias(edited) <= bias(neighbours).min() + 1e-9
    assert bias(edited) < 0.999 * bias(text)


@pytest.mark.parametrize("lam", [1e12, 1e17])
def test_an_extremely_large_lam_is_bounded(lam: float) -> None:
    texts = unit(9, DIM, seed=2)
    assert (
        losses(bounded(CalibratedProjection(lam=lam).fit(pairs(1)), texts, 0.01), texts).max()
        <= 0.01
    )


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_debias_bounds_the_loss_on_a_model() -> None:
    from vldebias.miniature import load_clip

    model, _, tokenizer = load_clip()
    host = resolve(model, tokenizer=tokenizer)
    gender = few(load_prompts("gender"))
    tokens = tokenizer(list(gender.classes))
    for method in ("orth", "cali"):
        for how, expected in (({}, 0.997), ({"max_loss": 0.002}, 0.998)):
            with torch.no_grad():
                before = model.encode_text(tokens, normalize=True)
                with vldebias.debias(host, gender, method=method, **how) as attachment:
                    least = (before * model.encode_text(tokens, normalize=True)).sum(1).min()
                    fitted = attachment.projections["text"]
            assert (least > expected - 1e-5) == bool(how)
            assert fitted.provenance.max_loss == how.get("max_loss")
    with pytest.raises(InvalidInputError, match="max_loss"):
        vldebias.debias(host, fitted, max_loss=0.1)


BARE = PromptSet("bare", variants=(("a man", "a woman"),))


@refused(*((max_loss, "max_loss") for max_loss in (0.0, 1.0, 1e-7, "0.02", True, float("nan"))))
def test_invalid_bounds_are_rejected(max_loss: Any) -> None:
    Problem(TextTable({"a": [1.0]}), BARE, max_loss=max_loss)


def test_a_set_without_classes_cannot_be_bounded() -> None:
    with pytest.raises(InvalidInputError, match=r"bare: .*class prompts"):
        Problem(TextTable({"a": [1.0]}), BARE, max_loss=0.1).fit("none", "text")
    assert Problem(TextTable({"a": [1.0]}), BARE, neutral=["a person"]).neutral == ("a person",)


@pytest.mark.parametrize("recorded_rank", [0, 2])
def test_an_asymmetric_projection_is_weakened_by_its_strength(
    recorded_rank: int,
) -> None:
    """The factors (whiten, project, unwhiten) matter, not the rank that a method recorded."""
    scale = torch.linspace(0.2, 1.0, DIM, dtype=torch.float64)[:, None]
    basis = torch.linalg.qr(unit(DIM, 2, seed=1)).Q
    before = CalibratedProjection(
        0.0, scale * basis, basis / scale, Provenance("own"), recorded_rank
    )
    texts = unit(9, DIM, seed=2)
    max_loss = float(losses(before, texts).max()) / 4
    after = bounded(before, texts, max_loss)
    assert losses(after, texts).max() == pytest.approx(max_loss)
    step = torch.eye(DIM) - after.matrix()
    full_step = torch.eye(DIM) - before.matrix()
    t = float(step.flatten() @ full_step.flatten() / full_step.square().sum())
    torch.testing.assert_close(step, t * full_step)


@pytest.mark.parametrize("recorded_rank", [0, 3])
def test_a_projection_that_removes_directions_has_no_multiplier(recorded_rank: int) -> None:
    basis = torch.linalg.qr(unit(DIM, 3, seed=1)).Q
    removing = CalibratedProjection(0.0, basis, basis, Provenance("own"), recorded_rank)
    texts = unit(9, DIM, seed=2)
    max_loss = float(losses(removing, texts).max()) / 4
    assert losses(bounded(removing, texts, max_loss), texts).max() == pytest.approx(max_loss)
    with pytest.raises(InvalidInputError, match="at_multiple: expected a symmetric projection"):
        removing.at_multiple(0.5)
