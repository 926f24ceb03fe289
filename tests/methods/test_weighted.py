"""Weights of stated values by the prompt: which state comes out, where the weight comes from, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vldebias.api import debias, fit_projections
from vldebias.edit import Provenance
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.methods import METHODS, Need, Problem, Weighted, WeightedValues, load_edit
from vldebias.miniature import load_clip, load_pipeline
from vldebias.prompts import load_prompts

SET = load_prompts("professions-gender")
FIVE = SET.classes[:5]
PROMPTS = ["A photo of a nurse.", "A photo of a web developer."]
STATED = [["A photo of a male nurse.", "A photo of a male web developer."],
          ["A photo of a female nurse.", "A photo of a female web developer."]]  # fmt: skip


@pytest.fixture(scope="module")
def pipe() -> Any:
    made = load_pipeline()
    made.set_progress_bar_config(disable=True)
    return made


@pytest.fixture
def readings() -> dict[str, dict[float, float]]:
    """Shares that rise by 2 over the weights and fall along the list of professions; .1 above even in the middle."""
    return {p: {w: 0.6 + 2 * (w - 0.5) + 0.03 * (2 - i) for w in (0.35, 0.5, 0.6)} for i, p in enumerate(FIVE)}


def encode(pipe: Any, prompts: list[str] = PROMPTS) -> Tensor:
    with torch.no_grad():
        return pipe.encode_prompt(list(prompts), "cpu", 1, False)[0]


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_states_are_those_of_the_stated_prompts_in_the_shares_of_the_weight(pipe: Any, weight: float) -> None:
    first, second = (encode(pipe, stated) for stated in STATED)
    with debias(pipe, SET, method=WeightedValues(weight=weight)):
        torch.testing.assert_close(encode(pipe), weight * first + (1 - weight) * second)


def test_at_equal_weights_it_is_the_mean_of_each_value(pipe: Any) -> None:
    with debias(pipe, SET, method=WeightedValues(weight=0.5)):
        found = encode(pipe)
    with debias(pipe, SET, method="each-value"):
        torch.testing.assert_close(encode(pipe), found)


def test_each_prompt_has_a_weight_of_its_own(pipe: Any) -> None:
    """By a slope made by hand, batches and single prompts alike."""
    problem = Problem.of(pipe, SET)
    texts = problem.embed(PROMPTS, "sequence")
    apart = texts[0] - texts[1]
    slope = torch.cat([apart, -(texts.mean(0) @ apart)[None]]) * (0.5 / apart.square().sum())
    slope[-1] += 0.5  # weights .75 and .25
    edit = Weighted(("male", "female"), len(apart), slope=slope)
    torch.testing.assert_close(edit.weights(texts), torch.tensor([0.75, 0.25], dtype=torch.float64))
    first, second = (encode(pipe, stated) for stated in STATED)
    expected = torch.stack([0.75 * first[0] + 0.25 * second[0], 0.25 * first[1] + 0.75 * second[1]])
    with debias(pipe, edit):
        torch.testing.assert_close(encode(pipe), expected)
        torch.testing.assert_close(encode(pipe, PROMPTS[1:]), expected[1:])


class TestFitted:
    def test_the_weight_is_where_the_shares_are_expected_to_be_even(self, pipe: Any, readings: Any) -> None:
        """The mean share is .6 at equal weights and rises by 2: the mean weight is .45."""
        problem = Problem.of(pipe, SET)
        edit = WeightedValues(readings).fit(problem, "sequence")
        assert float(edit.weights(problem.embed(FIVE, "sequence")).mean()) == pytest.approx(0.45)

    def test_a_lean_that_the_text_tells_is_found_on_other_texts(self, pipe: Any) -> None:
        problem = Problem.of(pipe, SET)
        texts, others = (problem.embed(one, "sequence") for one in (SET.classes, SET.held_out_classes))
        lean = (texts - texts.mean(0)) @ texts[0]
        lean *= 0.2 / lean.abs().max()
        told = {p: {w: 0.5 + float(s) + (w - 0.5) for w in (0.4, 0.6)} for p, s in zip(SET.classes, lean, strict=True)}
        found = WeightedValues(told).fit(problem, "sequence").weights(others)
        truth = (others - texts.mean(0)) @ texts[0]
        assert float(torch.corrcoef(torch.stack([found, -truth]))[0, 1]) > 0.9

    def test_three_states_strength_and_saved(self, pipe: Any, readings: Any, tmp_path: Any) -> None:
        bare = encode(pipe)
        edits = fit_projections(pipe, SET, method=WeightedValues(readings))
        attachment = debias(pipe, edits)
        full = encode(pipe)
        assert not torch.allclose(full, bare)
        assert torch.equal(encode(pipe, STATED[0]), encode(load_pipeline(), STATED[0]))  # the gate
        attachment.strength = 0.5
        torch.testing.assert_close(encode(pipe), (full + bare) / 2)
        with attachment.disabled():
            assert torch.equal(encode(pipe), bare)
        with pytest.raises(VldebiasError, match="cannot become part of weights"):
            attachment.merge()
        attachment.remove()
        assert torch.equal(encode(pipe), bare)
        loaded = load_edit(edits["sequence"].save_pretrained(tmp_path))
        with debias(pipe, loaded):
            assert torch.equal(encode(pipe), full)

    def test_it_reads_the_class_prompts_at_three_weights(self, pipe: Any) -> None:
        asked: list[float] = []

        def show(method: Any, prompts: Any) -> dict[str, tuple[float, ...]]:
            asked.append(method.weight)
            told = 0.5 + (method.weight - 0.5)
            some = prompts if method.weight == 0.5 else prompts[1:]  # the pictures of one say nothing, but once
            return dict.fromkeys(some, (told, 1 - told))

        method = METHODS["weighted-values"].read(Problem.of(pipe, SET), show)
        assert asked == [0.5, 0.35, 0.65]
        assert isinstance(method, WeightedValues)
        assert Need.JUDGED not in method.needs
        assert list(method.readings) == list(SET.classes[1:])
        assert method.readings[FIVE[1]] == pytest.approx({w: w for w in asked})


def test_what_it_refuses(pipe: Any, readings: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"expected readings or a weight from 0 to 1, got weight=1\.5"):
        WeightedValues(weight=1.5)
    with pytest.raises(InvalidInputError, match="each at two weights or more, got 5 prompts, 5 of them"):
        WeightedValues({p: {0.5: 0.5} for p in FIVE})
    with pytest.raises(InvalidInputError, match=r"falls by 2\.00 a weight; expected a rise"):
        WeightedValues({p: {1 - w: s for w, s in shares.items()} for p, shares in readings.items()})
    with pytest.raises(InvalidInputError, match="expected an attribute of two values, got"):
        debias(pipe, "skin-tone", method=WeightedValues(weight=0.5))
    with pytest.raises(InvalidInputError, match="expected one attribute"):
        debias(pipe, [SET, "skin-tone"], method=WeightedValues(weight=0.5))
    with pytest.raises(InvalidInputError, match=r"expected finite \(d \+ 1,\) for two wordings"):
        Weighted.build({"slope": torch.tensor([torch.nan])}, {"words": ["a", "b"], "width": 3}, Provenance("weighted"))
    with pytest.raises(VldebiasError, match="weighted-values"):
        debias(load_clip()[0], SET, method="weighted-values")
