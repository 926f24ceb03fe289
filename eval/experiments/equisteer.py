"""EquiSteer (Gaintseva et al., ECCV 2026, arXiv 2607.01147) by its formulas, as a baseline.

For every cross-attention and time, with c the output at one position of the picture:

    s_v = mean c of texts with value v - mean c of texts without it, of length 1
    gate   leave a prompt unchanged if max over positions of <c, s_v> exceeds t_v for any v, at one
           layer in the first pass; t_v is midway between the mean of these maxima over texts with
           v and that over neutral texts (Eq. 5)
    erase  c - P c, P the projection on the span of all s_v (Eq. 7)
    add    + a_v s_v, a_v the mean of the maxima over texts with v (Eq. 8)

Texts without a value are those of the other value if there are two, as in the authors' code, and
neutral ones otherwise. The layer of the gate is the one that separates both kinds of texts best.
The authors' code adds t_v in place of a_v by default, and can restore the length of each output;
this module follows the formulas of the paper.
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
    """Select the prompts to leave unchanged by the first pass of one layer: its directions (values,
    d), and a threshold for each."""

    layer: str
    directions: Tensor
    thresholds: Tensor

    def leaves_unchanged(
        self, pipe: Any, prompts: Sequence[str], noise: Sequence[int], steps: int
    ) -> list[bool]:
        """Return for each image whether the gate leaves its prompt unchanged."""
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
    """Generate prompts, text i from noise i, and yield the outputs of the cross-attentions for the
    conditional half, (b, positions, d), batch by batch.

    first_pass: only yield those of the first pass.
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
    """Return a unit direction for each value, (values, d), from the mean response (d,) to texts
    with each value and to neutral ones."""
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
    """Fit what is erased and added, as an edit with the layers of another one, and the gate."""
    layers = [name for name, _ in like.layers]
    kinds = {**texts_of_value, NEUTRAL: neutral}
    sums: dict[Place, dict[str, Tensor]] = {}
    for kind, texts in kinds.items():
        for place, output in outputs(pipe, texts, steps, layers):
            of_place = sums.setdefault(place, {})
            added = output.mean(1).sum(0) / len(texts)
            of_place[kind] = of_place.get(kind, 0) + added
    directions = {place: directions_of(means) for place, means in sums.items()}
    # The largest response along each direction, (values,), for each text of a kind.
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
    """Return the threshold of each value, (values,), from the largest responses to the texts of
    each kind, kind -> (texts, values)."""
    values = [kind for kind in maxima if kind != NEUTRAL]
    thresholds = []
    for place, value in enumerate(values):
        with_it = maxima[value][:, place].mean()
        without = maxima[NEUTRAL][:, place].mean()
        thresholds.append((with_it + without) / 2)
    return torch.stack(thresholds)


def separation(maxima: Mapping[str, Tensor]) -> float:
    """Return how often the largest response to a text with a value exceeds that to a neutral one
    (AUROC), as the mean over values."""
    shares = []
    for i, value in enumerate(kind for kind in maxima if kind != NEUTRAL):
        above = maxima[value][:, i, None] > maxima[NEUTRAL][:, i]
        shares.append(float(above.double().mean()))
    return sum(shares) / len(shares)
