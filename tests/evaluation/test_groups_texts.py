"""Tables 7.1 and A.9 on texts: cosines with spurious prompts, and pairs that name no class."""

from dataclasses import replace

import pytest
import torch
from groups_parts import PROMPTS, birds, measure, texts
from hypothesis import given, settings
from hypothesis import strategies as st
from made_figures import cell

from vldebias.evaluation.result import TaskResult
from vldebias.methods.diagnostics import spurious_cosine, text_diagnostics
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

pytestmark = [
    pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning"),
    pytest.mark.filterwarnings("ignore::vldebias.errors.SuspectInputWarning"),  # images and texts are noise here
]


def cosines(prompts: PromptSet = PROMPTS, methods: tuple[str, ...] = ("none",), strength: float = 1.0) -> TaskResult:
    """The block of cosines, without rows where there is none."""
    blocks = measure(birds(40), prompts=prompts, methods=methods, strength=strength, resamples=2)
    found = [block for block in blocks if block.provenance.task == "birds: cosines"]
    return found[0] if found else TaskResult(blocks[0].provenance)


def measured(methods: tuple[str, ...] = ("none", "orth", "cali")) -> tuple[TaskResult, dict]:
    return cosines(methods=methods), {method: texts().fit(PROMPTS, method, 1000.0) for method in methods}


@pytest.mark.parametrize("method", ["none", "orth", "cali"])
def test_cosines_are_those_of_the_diagnostics(method: str) -> None:
    figures, projections = measured()
    side = texts()
    named = [p for p in PROMPTS.spurious if p != "a sky"]
    table = spurious_cosine(side.embed(PROMPTS.classes), side.embed(named), projections[method])
    for i, name in enumerate(PROMPTS.class_names):
        for j, value in enumerate(("land", "water")):
            found = cell(figures, "cosine", method, f"{name} / {value}")
            assert found.value == pytest.approx(float(table[i, j]), abs=1e-9)
            assert found.interval == (found.value, found.value)
            assert found.n == {"spurious prompts": 1}
    spread = (table.amax(1) - table.amin(1)).tolist()
    assert [cell(figures, "cosine_spread", method, n).value for n in PROMPTS.class_names] == pytest.approx(spread)
    assert cell(figures, "cosine_spread", method, "").value == pytest.approx(sum(spread) / 2)


def test_spread_is_that_of_diagnose_and_falls() -> None:
    figures, projections = measured()
    side = texts()
    named = side.embed([p for p in PROMPTS.spurious if p != "a sky"])
    pairs = torch.stack([side.embed(pair) for pair in PROMPTS.pairs])
    found = text_diagnostics(projections["cali"], pairs=pairs, classes=side.embed(PROMPTS.classes), spurious=named)
    before, after = (cell(figures, "cosine_spread", method, "") for method in ("none", "cali"))
    assert (before.value, after.value) == pytest.approx(found.spurious_spread)
    assert after.change == pytest.approx((after.value - before.value,) * 3)
    assert after.value < 0.1 < before.value
    assert cell(figures, "cosine_spread", "orth", "").value == pytest.approx(0, abs=1e-9)  # A^T P* = 0


def test_several_spurious_prompts_of_a_value_are_averaged() -> None:
    more = replace(PROMPTS, attributes={"land": ("land", "sky"), "water": ("water",)})
    side = texts()
    found = cell(cosines(more), "cosine", "none", "landbird / land")
    expected = side.embed(["a landbird"]) @ side.embed(["a land background", "a sky"]).T
    assert found.value == pytest.approx(float(expected.mean()))
    assert found.n == {"spurious prompts": 2}


def test_without_named_values_there_are_no_cosines() -> None:
    assert cosines(replace(PROMPTS, attributes={})).rows == []


def test_strength_acts_on_cosines() -> None:
    half, full = (cosines(methods=("none", "cali"), strength=s) for s in (0.5, 1.0))
    values = [cell(f, "cosine_spread", "cali", "").value for f in (full, half)]
    assert values[0] < values[1] < cell(full, "cosine_spread", "none", "").value


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.5, 30.0, 1000.0]))
def test_pairs_of_the_spurious_prompts_themselves_would_change_nothing(seed: int, lam: float) -> None:
    """Why the pairs are other sentences: M maps into the span of A, so P0 (I + lam M)^-1 = P0."""
    spurious = torch.randn(4, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    pairs = torch.stack([spurious[:2], spurious[2:]])
    calibrated = CalibratedProjection.fit(pairs, spurious, lam).matrix()
    torch.testing.assert_close(calibrated, CalibratedProjection.fit(None, spurious).matrix())
