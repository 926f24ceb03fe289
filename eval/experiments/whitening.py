"""Whitening of the span, as of LEACE (Belrose et al., 2023, Theorem 4.3), in cross-attention.

For every cross-attention and time, with c the output at one position of the picture, B an
orthonormal basis of the span of the effects, m the center and S the covariance of outputs within
the texts of a value:

    set       c' = c - B B^T (c - m) + a e_v    what `vldebias.projection.cross_attention` does
    whitened  c' = c - B R^T (c - m) + a e_v    with R = S^-1 B (B^T S^-1 B)^-1

Of all maps after which no linear reading tells the values, the second one changes c least in the
norm of S^-1. It takes off what is read in the span after the rest of the output has explained its
part: R^T (c - m) = B^T (c - m) + R^T (c - m without its part in the span). So it is "set", less
B R^T times what lies outside of the span, which "set" does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eval.experiments.equisteer import Place, outputs
from vldebias.api import debias
from vldebias.projection.cross_attention import CrossAttentionEdit

RIDGE = 1e-3  # of the mean variance, added to every direction


@dataclass(frozen=True)
class Spread:
    """The center (d,) of outputs, and their covariance (d, d) within the texts of a value."""

    center: Tensor
    covariance: Tensor

    def correction(self, output: Tensor, basis: Tensor) -> Tensor:
        """Return what "whitened" adds to "set", (..., d): -B R^T times the part of an output
        (..., d) outside of the span of the basis (d, r)."""
        solved = torch.linalg.solve(self.covariance, basis)
        reading = solved @ torch.linalg.inv(basis.T @ solved)  # R
        centered = output - self.center
        outside = centered - (centered @ basis) @ basis.T
        return -(outside @ reading) @ basis.T


def fit(
    pipe: Any, layers: Sequence[str], texts_of_value: Mapping[str, Sequence[str]], steps: int
) -> dict[Place, Spread]:
    """Return (time, layer) -> the spread of outputs over positions and texts; text i of every value
    starts from noise i."""
    centers: dict[Place, list[Tensor]] = {}
    covariances: dict[Place, list[Tensor]] = {}
    for texts in texts_of_value.values():
        sums: dict[Place, Tensor] = {}
        products: dict[Place, Tensor] = {}
        counts: dict[Place, int] = {}
        for place, output in outputs(pipe, texts, steps, layers):
            rows = output.flatten(0, 1)
            sums[place] = sums.get(place, 0) + rows.sum(0)
            products[place] = products.get(place, 0) + rows.T @ rows
            counts[place] = counts.get(place, 0) + len(rows)
        for place, count in counts.items():
            mean = sums[place] / count
            covariance = products[place] / count - torch.outer(mean, mean)
            centers.setdefault(place, []).append(mean)
            covariances.setdefault(place, []).append(covariance)
    spreads = {}
    for place, means in centers.items():
        covariance = torch.stack(covariances[place]).mean(0)
        ridge = RIDGE * covariance.diagonal().mean() * torch.eye(len(covariance)).double()
        spreads[place] = Spread(torch.stack(means).mean(0), covariance + ridge)
    return spreads


@contextmanager
def attached(
    pipe: Any, edit: CrossAttentionEdit, spreads: Mapping[Place, Spread], seed: int
) -> Iterator[Any]:
    """Attach an edit with its span whitened, for prompts that are all dealt a value, with guidance;
    the hooks of this file run behind those of the package."""
    modules = dict(pipe.unet.named_modules())
    times: list[float] = []

    def begin(module: Any, args: Any) -> None:
        times.append(float(args[1]))

    def whiten(layer: str, output: Tensor) -> Tensor:
        basis = edit.at(times[-1])[layer].basis.double()
        negative, positive = output.chunk(2)
        added = spreads[times[-1], layer].correction(positive.double(), basis)
        return torch.cat([negative, positive + added.to(output)])

    with debias(pipe, edit) as attachment:
        attachment.seed = seed
        handles = [pipe.unet.register_forward_pre_hook(begin)]
        for layer, _ in edit.layers:
            module = modules[layer.removeprefix("unet.")]

            def hook(module: Any, args: Any, output: Tensor, layer: str = layer) -> Tensor:
                return whiten(layer, output)

            handles.append(module.register_forward_hook(hook))
        try:
            yield attachment
        finally:
            for handle in handles:
                handle.remove()
