"""Test EquiSteer against its formulas: the edit against loops over positions, its gate against
maxima counted pair by pair, and a fit on the miniature against hooks defined here."""

from typing import Any

import numpy as np
import pytest
import torch

from eval.experiments.equisteer import (
    NEUTRAL,
    Gate,
    directions_of,
    fit,
    separation,
    thresholds_of,
)
from vldebias.api import fit_projections
from vldebias.methods import CrossAttention
from vldebias.miniature import load_pipeline
from vldebias.projection.cross_attention import CrossAttentionEdit, steer
from vldebias.prompts import make_prompt_set

NAMES = ("baker", "judge")
AGES = ("young", "old")
Fitted = tuple[Any, CrossAttentionEdit, Gate]


def made(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_directions_are_differences_between_texts_with_and_without_a_value() -> None:
    two = {"a": made(6), "b": made(6, seed=1), NEUTRAL: made(6, seed=2)}
    difference = (two["a"] - two["b"]).numpy()
    expected = difference / np.sqrt((difference**2).sum())
    np.testing.assert_allclose(directions_of(two)[0].numpy(), expected)
    np.testing.assert_allclose(directions_of(two)[1].numpy(), -expected)
    three = {**two, "c": made(6, seed=3)}
    for place, value in enumerate("abc"):
        difference = (three[value] - three[NEUTRAL]).numpy()
        expected = difference / np.sqrt((difference**2).sum())
        np.testing.assert_allclose(directions_of(three)[place].numpy(), expected)


def test_the_gate_is_midway_between_the_two_kinds_of_text() -> None:
    maxima = {"a": made(5, 2) + 1, "b": made(7, 2, seed=1), NEUTRAL: made(4, 2, seed=2)}
    for place, value in enumerate("ab"):
        with_it = sum(float(row[place]) for row in maxima[value]) / len(maxima[value])
        neutral = sum(float(row[place]) for row in maxima[NEUTRAL]) / len(maxima[NEUTRAL])
        assert float(thresholds_of(maxima)[place]) == pytest.approx((with_it + neutral) / 2)
    shares = []
    for place, value in enumerate("ab"):
        pairs = [(p[place], q[place]) for p in maxima[value] for q in maxima[NEUTRAL]]
        shares.append(sum(p > q for p, q in pairs) / len(pairs))
    assert separation(maxima) == pytest.approx(float(sum(shares)) / 2)


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    pipe = load_pipeline()
    pipe.set_progress_bar_config(disable=True)
    ages = make_prompt_set("age", {"young": ["young"], "old": ["old"]}, NAMES)
    (ours,) = fit_projections(pipe, ages, method=CrossAttention(concepts=2, steps=2)).values()
    texts = {value: [f"A photo of a {value} {name}." for name in NAMES] for value in AGES}
    neutral = [f"A photo of a {name}." for name in NAMES]
    edit, gate = fit(pipe, ours, texts, neutral, 2)
    return pipe, edit, gate


@pytest.mark.slow
def test_outputs_lose_the_span_and_gain_one_direction(fitted: Fitted) -> None:
    """Compare with a loop over directions, each made orthogonal to the previous ones, at every
    position."""
    _, edit, _ = fitted
    place = 1
    start = edit.layers[0][1]
    name, width = edit.layers[1]
    rows = edit.effects[place, :, start : start + width].double().numpy()
    output = made(1, 9, width)
    layer_map = edit.at(float(edit.times[place]))[name]
    target = layer_map.center + layer_map.effects[1]
    got = steer(output, layer_map.basis.double(), target.double()[None], "set", 1.0)[0].numpy()
    for position, c in enumerate(output[0].numpy()):
        erased = c.copy()
        before: list[np.ndarray] = []
        for row in rows:
            direction = row.copy()
            for earlier in before:
                direction -= (direction @ earlier) * earlier
            length = np.sqrt((direction**2).sum())
            if length < 1e-3:  # the two values are opposite points on a line
                continue
            before.append(direction / length)
            erased -= (erased @ before[-1]) * before[-1]
        expected = erased + float(edit.amounts[place, 1, 1]) * rows[1]
        np.testing.assert_allclose(got[position], expected, atol=2e-5)


@pytest.mark.slow
def test_fit_and_gate_match_the_recorded_outputs(
    fitted: Fitted,
) -> None:
    pipe, edit, gate = fitted

    def first_output(layer: str, text: str, noise: int) -> Any:
        """Return a layer's output in the first pass, (positions, d)."""
        seen = []
        module = dict(pipe.unet.named_modules())[layer.removeprefix("unet.")]
        handle = module.register_forward_hook(lambda module, args, output: seen.append(output[-1]))
        generator = torch.Generator().manual_seed(noise)
        pipe(text, num_inference_steps=2, generator=generator, output_type="latent")
        handle.remove()
        return seen[0].double().numpy()

    name, width = edit.layers[0]
    of_value = {}
    for value in AGES:
        texts = [f"A photo of a {value} {job}." for job in NAMES]
        of_value[value] = [first_output(name, text, i) for i, text in enumerate(texts)]
    means = {value: np.mean([c.mean(0) for c in of_value[value]], axis=0) for value in AGES}
    direction = means["old"] - means["young"]
    direction /= np.sqrt((direction**2).sum())
    np.testing.assert_allclose(edit.effects[-1, 1, :width].numpy(), direction, atol=1e-4)
    amount = np.mean([(c @ direction).max() for c in of_value["old"]])
    assert float(edit.amounts[-1, 1, 0]) == pytest.approx(amount, rel=1e-3)
    texts = ["A photo of an old baker.", "A photo of a baker.", "A photo of a robin."]
    expected = []
    for noise, text in enumerate(texts):
        largest = (first_output(gate.layer, text, noise) @ gate.directions.numpy().T).max(0)
        expected.append(bool((largest > gate.thresholds.numpy()).any()))
    assert gate.leaves_unchanged(pipe, texts, [0, 1, 2], 2) == expected
