"""Test that sums of terms equal the dense formula and satisfy the guarantees of each term."""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vldebias.hosts import TextTable
from vldebias.methods import METHODS, Problem
from vldebias.methods.closed_form import (
    BOTH,
    CALI,
    DIFFERENCE,
    EQUALISE,
    ORTH,
    ClosedForm,
    class_texts,
    pair_scatters,
)
from vldebias.methods.equalise import image_scatter
from vldebias.projection.projection import CalibratedProjection
from vldebias.prompts import PromptSet

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")

SUMS = (EQUALISE, *(term + EQUALISE for term in (CALI, ORTH, DIFFERENCE, BOTH)))
WORDS = ("man", "woman", "child")
laws = settings(max_examples=10, deadline=None, derandomize=True)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw text and image embeddings with two or three values, any number of concepts, and with or
    without classes."""
    dim = draw(st.integers(8, 40))
    values = draw(st.integers(2, 3))
    classes = draw(st.sampled_from([0, 2, 3]))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    words = WORDS[:values]
    concepts = [f"c{i}" for i in range(draw(st.integers(1, 12)))]
    prompts = PromptSet(
        name="any",
        attributes={word: (word,) for word in words},
        variants=tuple(tuple(f"{word} {concept}" for word in words) for concept in concepts),
        spurious=tuple(f"photo {word}" for word in words),
        classes=tuple(concepts[:classes]),
        class_names=tuple(concepts[:classes]),
    )
    texts = list(chain(concepts, prompts.spurious, *prompts.variants))
    rows = torch.randn(len(texts), dim, generator=noise, dtype=torch.float64)
    images = torch.randn(200, dim, generator=noise, dtype=torch.float64)
    table = TextTable(dict(zip(texts, rows, strict=True)))
    lam = draw(st.sampled_from([1e-2, 1.0, 1e3, 1e7]))
    return Problem(table, prompts, lam=lam, reference=images)


def image_rows(problem: Problem) -> tuple[Tensor, float]:
    """Return the weighted differences between image means and their lam, as when only
    equalising."""
    prompts = problem.sets[0]
    scatter = image_scatter(problem, prompts, "text", class_texts(problem, prompts, "text"))
    assert isinstance(problem.lam, float)
    return scatter, problem.lam


def dense_p0(method: ClosedForm, problem: Problem) -> Tensor:
    rows = [term.span(problem, "text") for term in method.terms if term.span is not None]
    d = problem.host.dim("text")
    basis = torch.cat([*rows, torch.zeros(1, d, dtype=torch.float64)])
    return torch.eye(d, dtype=torch.float64) - torch.linalg.pinv(basis) @ basis


@laws
@given(problems())
def test_a_bounded_sum_is_between_the_sum_and_the_identity(problem: Problem) -> None:
    """I - t (I - P) leaves at most (1 - t) of the original gap plus t times the gap that the sum
    leaves."""
    rows, lam = image_rows(problem)
    neutral = list(chain(*problem.sets[0].variants))
    for method in SUMS[2:]:
        unbounded = problem.fit(method, "text")
        kept = replace(problem, max_loss=0.1, neutral=tuple(neutral)).fit(method, "text")
        assert isinstance(unbounded, CalibratedProjection)
        assert isinstance(kept, CalibratedProjection)
        t = float(kept.left.norm() / unbounded.left.norm())
        remaining = torch.linalg.matrix_norm(rows @ kept.matrix(), 2)
        assert remaining <= (1 - t) * torch.linalg.matrix_norm(rows, 2) + t * 0.5 / lam**0.5 * (
            1 + 1e-6
        ), method.name


@laws
@given(problems())
def test_every_sum_matches_its_dense_formula(problem: Problem) -> None:
    """P0 is applied last, as in the paper. Prompt pairs are used unchanged, and image differences
    after P0 is applied to them."""
    rows, lam = image_rows(problem)
    pairs = pair_scatters(problem, "text")[0]
    eye = torch.eye(rows.shape[1], dtype=torch.float64)
    for method in SUMS:
        p0 = dense_p0(method, problem)
        M = lam * p0 @ rows.T @ rows @ p0
        if "cali" in method.name:
            M += lam * pairs.T @ pairs
        P = method.fit(problem, "text")
        assert (P.matrix() @ (eye + M) - p0).abs().max() < 1e-8 * (1 + M.abs().max()), method.name
        assert (p0 @ P.matrix() - P.matrix()).abs().max() < 1e-8, method.name  # A^T P z = 0


@laws
@given(problems())
def test_without_images_the_solution_matches_the_paper(problem: Problem) -> None:
    """In Lemma 7.1, I + lam M inverts the part that comes from the pairs, which leaves P0. Images
    have no effect."""
    pairs = pair_scatters(problem, "text")[0]
    method = METHODS["orth-cali"]
    assert isinstance(method, ClosedForm)
    spurious = problem.host.embed(problem.sets[0].spurious, "text")
    paper = CalibratedProjection.solve([pairs], spurious, problem.lam)
    assert torch.equal(method.fit(problem, "text").matrix(), paper.matrix())
