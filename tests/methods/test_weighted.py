"""Weights of stated values by the prompt: which state comes out, where the weight comes from, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import StableDiffusionImg2ImgPipeline
from torch import Tensor

from vldebias.api import debias
from vldebias.edit import Provenance, Rows
from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasError
from vldebias.hosts import resolve
from vldebias.methods import METHODS, Need, Problem, Weighted, WeightedValues
from vldebias.methods.rivals.wording import rewrite_prompt
from vldebias.miniature import load_clip
from vldebias.prompts import load_prompts

pytestmark = pytest.mark.usefixtures("two_noises")

SET = load_prompts("professions-gender")
FIVE = SET.classes[:5]
PROMPTS = ["A photo of a nurse.", "A photo of a web developer."]
STATED = [["A photo of a male nurse.", "A photo of a male web developer."],
          ["A photo of a female nurse.", "A photo of a female web developer."]]  # fmt: skip


@pytest.fixture
def readings() -> dict[str, dict[float, float]]:
    """Shares that rise by 2 over the weights and fall along the list of professions; .1 above even in the middle."""
    return {p: {w: 0.6 + 2 * (w - 0.5) + 0.03 * (2 - i) for w in (0.35, 0.5, 0.6)} for i, p in enumerate(FIVE)}


def encode(pipe: Any, prompts: list[str] = PROMPTS) -> Tensor:
    with torch.no_grad():
        return pipe.encode_prompt(list(prompts), "cpu", 1, False)[0]


def rows(pipe: Any, prompts: list[str]) -> Rows:
    """What an edit is told of prompts in a call of the pipeline."""
    return Rows(tuple(prompts), begun=resolve(pipe).first_step_similarity)


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


@pytest.mark.filterwarnings("ignore:.*nothing says which model")  # made by hand
def test_each_prompt_has_a_weight_of_its_own(pipe: Any) -> None:
    """Along a line in where each begins; batches, repeats and single prompts alike."""
    nurse, developer = resolve(pipe).first_step_similarity(list(zip(*STATED, strict=True))).tolist()
    edit = Weighted(("male", "female"), 128, line=torch.tensor([0.2, 1.0], dtype=torch.float64))
    first, second = (encode(pipe, stated) for stated in STATED)
    weights = torch.tensor([0.2 + nurse, 0.2 + developer])[:, None, None]
    assert abs(nurse - developer) > 0.01
    expected = weights * first + (1 - weights) * second
    with debias(pipe, edit):
        torch.testing.assert_close(encode(pipe), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(encode(pipe, PROMPTS[1:]), expected[1:], rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*nothing says which model")  # made by hand
@pytest.mark.parametrize(("line", "weight"), [((-3.0, 0.1), 0.0), ((3.0, 0.1), 1.0)])
def test_a_weight_is_never_beyond_the_stated_prompts(pipe: Any, line: tuple[float, float], weight: float) -> None:
    expected = encode(pipe, STATED[0 if weight else 1])
    with debias(pipe, Weighted(("male", "female"), 128, line=torch.tensor(line, dtype=torch.float64))):
        torch.testing.assert_close(encode(pipe), expected)


class TestFitted:
    @pytest.mark.slow
    def test_the_weight_is_where_the_shares_are_expected_to_be_even(self, pipe: Any, readings: Any) -> None:
        """The mean share is .6 at equal weights and rises by 2: the mean weight is .45."""
        edit = WeightedValues(readings).fit(Problem.of(pipe, SET), "sequence")
        assert float(edit.weights(rows(pipe, list(FIVE))).mean()) == pytest.approx(0.45)

    @pytest.mark.slow
    def test_a_lean_that_the_first_step_tells_is_found_for_other_prompts(self, pipe: Any) -> None:
        """Shares .3 + .8 p at equal weights, rising by 1: even at the weight .7 - .8 p."""
        begun = (
            resolve(pipe)
            .first_step_similarity([(rewrite_prompt(p, "male"), rewrite_prompt(p, "female")) for p in FIVE])
            .tolist()
        )
        told = {p: {w: 0.3 + 0.8 * s + (w - 0.5) for w in (0.45, 0.55)} for p, s in zip(FIVE, begun, strict=True)}
        edit = WeightedValues(told).fit(Problem.of(pipe, SET), "sequence")
        torch.testing.assert_close(edit.line, torch.tensor([0.7, -0.8], dtype=torch.float64))
        others = rows(pipe, list(SET.held_out_classes[:2]))
        pairs = [(rewrite_prompt(p, "male"), rewrite_prompt(p, "female")) for p in others.texts]
        expected = 0.7 - 0.8 * others.begun(pairs)
        torch.testing.assert_close(edit.weights(others), expected)

    def test_where_nothing_is_told_apart_all_have_the_mean_weight(self, pipe: Any, readings: Any) -> None:
        same = {prompt: {0.4: 0.5, 0.6: 0.7} for prompt in FIVE}
        edit = WeightedValues(same).fit(Problem.of(pipe, SET), "sequence")
        torch.testing.assert_close(edit.line, torch.tensor([0.4, 0.0], dtype=torch.float64))

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
    line = {"line": torch.zeros(2)}
    with pytest.raises(InvalidInputError, match=r"words: expected those of two wordings, got \('a',\)"):
        Weighted.build(line, {"words": ["a"], "width": 3}, Provenance("weighted"))
    edit = Weighted(("male", "female"), 128, line=torch.tensor([0.5, 1.0]))
    with pytest.raises(InvalidInputError, match="expected the pipeline beside the prompts; attach it"):
        edit.weights(Rows(("A photo of a nurse.",)))
    image = StableDiffusionImg2ImgPipeline(**pipe.components, requires_safety_checker=False)
    with pytest.raises(UnsupportedHostError, match="expected a text-to-image pipeline whose first step"):
        debias(image, SET, method=WeightedValues(readings))
    with pytest.raises(VldebiasError, match="weighted-values"):
        debias(load_clip()[0], SET, method="weighted-values")
