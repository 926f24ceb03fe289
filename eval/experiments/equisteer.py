"""Implement the baseline EquiSteer (Gaintseva et al., ECCV 2026, arXiv 2607.01147).

For every cross-attention layer and time step, where c is the output at one image position:

    s_v    difference between the mean of c for prompts with value v and for prompts without it,
           scaled to length 1
    gate   leaves a prompt unchanged if the maximum of <c, s_v> over positions exceeds t_v for any v
           in one layer in the first pass, where t_v is midway between the means of these maxima for
           prompts with v and for neutral prompts (Eq. 5)
    erase  c - P c, where P is the projection on the span of all s_v (Eq. 7)
    add    + a_v s_v, where a_v is the mean of the maxima for prompts with v (Eq. 8)

Prompts without a value are those with the other value if there are two, as in the authors' code,
and neutral prompts otherwise. The gate uses the layer that separates both kinds of prompts best. By
default, the authors' code adds t_v instead of a_v, and it can restore the length of each output.
This module follows the formulas in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vldebias.projection.cross_attention import CrossAttentionEdit

BATCH = 24
NEUTRAL = "neutral"
Place = tuple[float, str]  # a time and a layer


@dataclass(frozen=True)
class Gate:
    """Select prompts to leave unchanged, based on the outputs of one layer in the first pass."""

    layer: str
    directions: Tensor
    thresholds: Tensor

    def leaves_unchanged(
        self, pipe: Any, prompts: Sequence[str], noise: Sequence[int], steps: int
    ) -> list[bool]:
        """Return, for each image, whether the gate leaves its prompt unchanged."""
        is_left: list[bool] = []
        for _, output in outputs(pipe, prompts, steps, [self.layer], noise, first_pass=True):
            largest = (output @ self.directions.T).amax(1)
            is_left += (largest > self.thresholds).any(1).tolist()
        return is_left


def outputs(
    pipe: Any,
    prompts: Sequence[str],
    steps: int,
    layers: Sequence[str],
    noise: Sequence[int] | None = None,
    first_pass: bool = False,
) -> Iterator[tuple[Place, Tensor]]:
    """Generate images and yield batches of conditional cross-attention outputs (b, positions, d).

    Prompt i uses noise i. If `first_pass` is True, only the outputs in the first pass are yielded.
    """
    modules = dict(pipe.unet.named_modules())
    seeds = range(len(prompts)) if noise is None else noise
    kept: list[tuple[Place, Tensor]] = []
    times: list[float] = []

    def begin(module: Any, args: Any) -> None:
        times.append(float(args[1]))

    def keeper(layer: str) -> Callable[..., None]:
        def keep(module: Any, args: Any, output: Tensor) -> None:
            kept.append(((times[-1], layer), output.chunk(2)[1].double()))

        return keep

    def stop(pipe: Any, step: int, time: Any, tensors: Any) -> Any:
        pipe._interrupt = first_pass
        return tensors

    handles = [pipe.unet.register_forward_pre_hook(begin)]
    for layer in layers:
        module = modules[layer.removeprefix("unet.")]
        handles.append(module.register_forward_hook(keeper(layer)))
    try:
        for start in range(0, len(prompts), BATCH):
            batch = slice(start, start + BATCH)
            pipe(
                list(prompts[batch]),
                num_inference_steps=steps,
                generator=[torch.Generator().manual_seed(seed) for seed in seeds[batch]],
                output_type="latent",
                callback_on_step_end=stop,
            )
            yield from kept
            kept.clear()
    finally:
        for handle in handles:
            handle.remove()


def directions_of(means: Mapping[str, Tensor]) -> Tensor:
    """Return unit directions (values, d) from the mean outputs (d,) for each kind of prompts."""
    values = [kind for kind in means if kind != NEUTRAL]
    rows = []
    for place, value in enumerate(values):
        contrast = values[1 - place] if len(values) == 2 else NEUTRAL
        row = means[value] - means[contrast]
        rows.append(row / row.norm())
    return torch.stack(rows)


def fit(
    pipe: Any,
    like: CrossAttentionEdit,
    texts_of_value: Mapping[str, Sequence[str]],
    neutral: Sequence[str],
    steps: int,
) -> tuple[CrossAttentionEdit, Gate]:
    """Fit EquiSteer as an edit of the same layers as `like`, and its gate."""
    layers = [name for name, _ in like.layers]
    kinds = {**texts_of_value, NEUTRAL: neutral}
    sums: dict[Place, dict[str, Tensor]] = {}
    for kind, texts in kinds.items():
        for place, output in outputs(pipe, texts, steps, layers):
            of_place = sums.setdefault(place, {})
            added = output.mean(1).sum(0) / len(texts)
            of_place[kind] = of_place.get(kind, 0) + added
    directions = {place: directions_of(means) for place, means in sums.items()}
    # The maximum response along each direction (values,) for each prompt, by kind of prompts.
    maxima: dict[Place, dict[str, Tensor]] = {}
    for kind, texts in kinds.items():
        for place, output in outputs(pipe, texts, steps, layers):
            of_place = maxima.setdefault(place, {})
            largest = (output @ directions[place].T).amax(1)
            of_place[kind] = torch.cat([of_place.get(kind, largest[:0]), largest])
    times = sorted({time for time, _ in directions})
    effects = []
    amounts = []
    for time in times:
        effects.append(torch.cat([directions[time, layer] for layer in layers], dim=1))
        of_values = torch.zeros(len(texts_of_value), len(layers))
        for place, value in enumerate(texts_of_value):
            for number, layer in enumerate(layers):
                of_values[place, number] = maxima[time, layer][value][:, place].mean()
        amounts.append(of_values)
    edit = replace(
        like,
        times=torch.tensor(times),
        center=torch.zeros(len(times), like.dim),
        effects=torch.stack(effects).float(),
        amounts=torch.stack(amounts),
        form="set",
        rank=0,
    )
    gates = {layer: maxima[times[-1], layer] for layer in layers}
    layer = max(layers, key=lambda layer: separation(gates[layer]))
    return edit, Gate(layer, directions[times[-1], layer], thresholds_of(gates[layer]))


def thresholds_of(maxima: Mapping[str, Tensor]) -> Tensor:
    """Return the threshold for each value (values,) from the maximum responses (texts, values)."""
    values = [kind for kind in maxima if kind != NEUTRAL]
    thresholds = []
    for place, value in enumerate(values):
        with_it = maxima[value][:, place].mean()
        without = maxima[NEUTRAL][:, place].mean()
        thresholds.append((with_it + without) / 2)
    return torch.stack(thresholds)


def separation(maxima: Mapping[str, Tensor]) -> float:
    """Return the mean AUROC of the maximum responses for prompts with a value or neutral ones."""
    shares = []
    for i, value in enumerate(kind for kind in maxima if kind != NEUTRAL):
        above = maxima[value][:, i, None] > maxima[NEUTRAL][:, i]
        shares.append(float(above.double().mean()))
    return sum(shares) / len(shares)
