"""Tables 7.1 and A.9 on texts: cosines with spurious prompts, and pairs that name no class."""

from dataclasses import replace

import pytest
import torch
from groups_parts import PROMPTS, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.diagnostics import diagnose, spurious_cosine
from vldebias.errors import InvalidInputError
from vldebias.evaluation.groups.agnostic import class_agnostic
from vldebias.evaluation.groups.cosines import cosine_figures, spurious_by_value
from vldebias.evaluation.result import Figure
from vldebias.projection import CalibratedProjection
from vldebias.prompts import list_prompts, load_prompts

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")


def pick(figures: list[Figure], metric: str, method: str, subset: str) -> Figure:
    (found,) = [f for f in figures if (f.metric, f.method, f.subset) == (metric, method, subset)]
    return found


def measured(methods: tuple[str, ...] = ("none", "orth", "cali")) -> tuple[list[Figure], dict]:
    side = texts()
    projections = {method: side.fit(PROMPTS, method, 1000.0) for method in methods}
    return cosine_figures(side, PROMPTS, projections, task="t"), projections


@pytest.mark.parametrize("method", ["none", "orth", "cali"])
def test_cosines_are_those_of_the_diagnostics(method: str) -> None:
    figures, projections = measured()
    side = texts()
    named = [p for p in PROMPTS.spurious if p != "a sky"]
    table = spurious_cosine(side.embed(PROMPTS.classes), side.embed(named), projections[method])
    for i, name in enumerate(PROMPTS.class_names):
        for j, value in enumerate(("land", "water")):
            found = pick(figures, "cosine", method, f"{name} / {value}")
            assert found.value == pytest.approx(float(table[i, j]), abs=1e-9)
            assert found.interval == (found.value, found.value)
            assert found.n == {"spurious prompts": 1}
    spread = (table.amax(1) - table.amin(1)).tolist()
    assert [pick(figures, "cosine_spread", method, n).value for n in PROMPTS.class_names] == pytest.approx(spread)
    assert pick(figures, "cosine_spread", method, "").value == pytest.approx(sum(spread) / 2)


def test_spread_is_that_of_diagnose_and_falls() -> None:
    figures, projections = measured()
    side = texts()
    named = side.embed([p for p in PROMPTS.spurious if p != "a sky"])
    pairs = torch.stack([side.embed(pair) for pair in PROMPTS.pairs])
    found = diagnose(projections["cali"], pairs=pairs, classes=side.embed(PROMPTS.classes), spurious=named)
    before, after = (pick(figures, "cosine_spread", method, "") for method in ("none", "cali"))
    assert (before.value, after.value) == pytest.approx(found.spurious_spread)
    assert after.change == pytest.approx((after.value - before.value,) * 3)
    assert after.value < 0.1 < before.value
    assert pick(figures, "cosine_spread", "orth", "").value == pytest.approx(0, abs=1e-9)  # A^T P* = 0


def test_several_spurious_prompts_of_a_value_are_averaged() -> None:
    more = replace(PROMPTS, attributes={"land": ("land", "sky"), "water": ("water",)})
    assert spurious_by_value(more) == {"land": ("a land background", "a sky"), "water": ("a water background",)}
    side = texts()
    found = pick(cosine_figures(side, more, {"none": None}, task="t"), "cosine", "none", "landbird / land")
    cosines = side.embed(["a landbird"]) @ side.embed(["a land background", "a sky"]).T
    assert found.value == pytest.approx(float(cosines.mean()))
    assert found.n == {"spurious prompts": 2}


def test_values_are_found_by_whole_words() -> None:
    waterbirds = spurious_by_value(load_prompts("waterbirds"))
    assert waterbirds == {
        "land": ("This is a land background.", "This is a picture of a forest."),
        "water": ("This is a water background.", "This is a picture of an ocean."),
    }
    celeba = spurious_by_value(load_prompts("celeba"))
    assert len(celeba["male"]) == len(celeba["female"]) == 3
    assert not set(celeba["male"]) & set(celeba["female"])  # "female" does not hold "male"
    woods = replace(PROMPTS, spurious=("a woodland", "a landscape", "Land, ho", "a water background"))
    assert spurious_by_value(woods)["land"] == ("Land, ho",)
    assert set(spurious_by_value(load_prompts("fairface"))) >= {"Male", "White", "old"}


def test_without_named_values_there_are_no_cosines() -> None:
    assert cosine_figures(texts(), replace(PROMPTS, attributes={}), {"none": None}, task="t") == []


def test_strength_acts_on_cosines() -> None:
    side = texts()
    projections = {"none": None, "cali": side.fit(PROMPTS, "cali", 1000.0)}
    half, full = (cosine_figures(side, PROMPTS, projections, task="t", strength=s) for s in (0.5, 1.0))
    values = [pick(f, "cosine_spread", "cali", "").value for f in (full, half)]
    assert values[0] < values[1] < pick(full, "cosine_spread", "none", "").value


def test_agnostic_pairs_of_waterbirds_and_celeba() -> None:
    water = class_agnostic(load_prompts("waterbirds"))
    words = ("a land background", "a forest", "a water background", "an ocean", "a water")
    assert water.groups == (tuple(f"a photo of {word}" for word in words),)
    assert len(water.pairs) == 10
    celeba = class_agnostic(load_prompts("celeba"))
    assert celeba.pairs == (
        ("a photo of a male", "a photo of a female"),
        ("a photo of a man", "a photo of a woman"),
    )


@pytest.mark.parametrize("name", list_prompts())
def test_agnostic_pairs_name_no_class_and_leave_the_rest(name: str) -> None:
    given_set = load_prompts(name)
    made = class_agnostic(given_set)
    assert not any(f" {c.casefold()}" in p.casefold() for p in sum(made.groups, ()) for c in given_set.class_names)
    assert (made.spurious, made.classes, made.stated_words) == (
        given_set.spurious,
        given_set.classes,
        given_set.stated_words,
    )
    assert made.hash != given_set.hash
    assert len(made.parts) == len(given_set.parts)
    assert all(part.hash != old.hash for part, old in zip(made.parts, given_set.parts, strict=True))


def test_agnostic_pairs_need_words() -> None:
    with pytest.raises(InvalidInputError, match="birds: class-agnostic pairs are made of the words of the attribute"):
        class_agnostic(replace(PROMPTS, attributes={}))


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.5, 30.0, 1000.0]))
def test_pairs_of_the_spurious_prompts_themselves_would_change_nothing(seed: int, lam: float) -> None:
    """Why the pairs are other sentences: M maps into the span of A, so P0 (I + lam M)^-1 = P0."""
    spurious = torch.randn(4, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    pairs = torch.stack([spurious[:2], spurious[2:]])
    calibrated = CalibratedProjection.fit(pairs, spurious, lam).matrix()
    torch.testing.assert_close(calibrated, CalibratedProjection.fit(None, spurious).matrix())
