"""Define the cross-attention edit, which sets an attribute value inside a denoiser.

At each cross-attention layer and timestep, the mean responses to prompts that state different
values differ along a few directions, which form the attribute's span. The edit only changes an
output c within that span:

    add    c' = c + a e_v                      the effect of the sampled value is added
    shift  c' = c - P mean(c) + P m + a e_v    the mean over positions is replaced first
    set    c' = c - P c + P m + a e_v          every position is replaced first

P projects onto the span of the effects e_v, m is their center and a is the amount. `shift` and
`set` remove the output's component in the span (the projection in Lemma 7.1), which includes part
of the prompt's subject and of other attributes that it states. With strength s, the output is c + s
(c' - c). Times are the timesteps passed to a denoiser. For a different scheduler or number of
steps, the edit is interpolated between the fitted times.

If a prompt's text is unknown, the gate examines the responses in the first pass. Its linear
readouts detect whether there is a person, and whether a value is stated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.projection.edit import Edit, Provenance

Form = Literal["add", "shift", "set"]
MIN_AUROC = 0.95  # readouts with a lower AUROC are ignored


class LayerMap(NamedTuple):
    """Store the edit for one cross-attention layer at one timestep.

    Attributes:
        basis: (d, rank) basis of the span.
        center: (d,) center inside the span, which is zero for the form "add".
        effects: (values, d) effects inside the span, including amounts.
    """

    basis: Tensor
    center: Tensor
    effects: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class CrossAttentionEdit(Edit):
    """Set one attribute value in every cross-attention output.

    The form "add" adds the value's effect. "shift" and "set" replace the output's component in the
    span of the effects.

    Attributes:
        times: (t,) float32, ascending: the timesteps that the denoiser receives.
        center: (t, d) mean response, with all layers concatenated.
        effects: (t, values, d) difference between the mean response to a value's prompts and the
            center.
        amounts: (t, values, layers) multiplier of each value's effect.
        gate: (values + 1, d). A response y in the first pass states value v if gate_v y > offset_v,
            and shows a person if the last row exceeds its offset. Without any rows, nothing can be
            detected.
        gate_offsets: (values + 1,).
        auroc: the AUROC on responses to held-out prompts, by readout ("stated" or "person") and
            layer. The gate uses the best layer.
        layers: the name and width of each cross-attention layer.
        form: "add", "shift" or "set".
        rank: the maximum number of directions in the span, strongest first, or 0 for all.
        attribute: the name of the prompt set.
        words: the words for each value.
        adjectives: see `PromptSet`. Used for analysing prompts when the edit is attached again.
        phrase: see `PromptSet`.
        stated: see `PromptSet.stated_words`.
    """

    kind = "cross-attention"
    axes: ClassVar[Mapping[str, str]] = {
        "times": "time",
        "center": "time d",
        "effects": "time value d",
        "amounts": "time value layer",
        "gate": "reading d",
        "gate_offsets": "reading",
    }
    dtype = torch.float32

    times: Tensor
    center: Tensor
    effects: Tensor
    amounts: Tensor
    gate: Tensor
    gate_offsets: Tensor
    auroc: dict[str, dict[str, float]]
    layers: tuple[tuple[str, int], ...]
    form: Form
    rank: int
    attribute: str
    words: dict[str, tuple[str, ...]]
    adjectives: dict[str, str]
    phrase: dict[str, str]
    stated: tuple[str, ...]
    provenance: Provenance
    side = "denoiser"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.times.diff().le(0).any():
            raise InvalidInputError(f"times: expected ascending numbers, got {self.times.tolist()}")
        check_form(self.form)
        total = sum(width for _, width in self.layers)
        if len(self.gate) not in (0, len(self.words) + 1):
            raise InvalidInputError(
                f"gate: expected {len(self.words) + 1} rows, or none; got {len(self.gate)}"
            )
        counts = (len(self.words), len(self.layers), total)
        if counts != (self.effects.shape[1], self.amounts.shape[2], self.dim):
            raise InvalidInputError(
                f"expected {self.effects.shape[1]} values and {self.amounts.shape[2]} layers with a"
                f" total width of {self.dim}, as in the tensors; got {counts}"
            )

    @property
    def values(self) -> tuple[str, ...]:
        """Return the values, in the order of the effects."""
        return tuple(self.words)

    def __repr__(self) -> str:
        numbers = sum(getattr(self, name).numel() for name in self.axes)
        return (
            f"{type(self).__name__}({self.method} of {self.attribute}, {len(self.values)} values,"
            f" {len(self.layers)} layers, {len(self.times)} times, {4 * numbers / 1e6:.1f} MB)"
        )

    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        """Return `z` at strength 0, and raise an error otherwise.

        The edit acts inside a denoiser and cannot be applied to embeddings.
        """
        self.check_input(z, strength)
        if strength == 0:
            return z
        raise InvalidInputError(
            f"{self.method} acts inside a denoiser and cannot be applied to embeddings; attach it"
            " with vldebias.debias(pipe, edit)"
        )

    @property
    def can_read(self) -> bool:
        """Return whether the gate can detect stated values."""
        return max(self.auroc.get("stated", {}).values(), default=0.0) >= MIN_AUROC

    def reading(self, response: Tensor) -> tuple[bool, str | None]:
        """Return what the gate detects in a response (d,) of a first pass.

        If no layer distinguishes people from things in held-out prompts, every response is assumed
        to show a person.

        Returns:
            Whether the response shows a person, and the value that its prompt states, or None.
        """
        scores = (self.gate.double() @ response.double() - self.gate_offsets).tolist()
        score_of_value = dict(zip(self.values, scores[:-1], strict=True))
        likeliest = max(score_of_value, key=lambda value: score_of_value[value])
        detects_persons = max(self.auroc["person"].values(), default=0.0) >= MIN_AUROC
        shows_person = scores[-1] > 0 or not detects_persons
        return shows_person, likeliest if score_of_value[likeliest] > 0 else None

    def at(self, time: float) -> dict[str, LayerMap]:
        """Return each layer's map at a given time, in float32 on the CPU.

        For the form "add", which removes nothing, centers are zero. Maps are interpolated between
        fitted times. Outside their range, the nearest fitted time is used.
        """
        center, effects, amounts = (
            _between(self.times, rows, time) for rows in (self.center, self.effects, self.amounts)
        )
        maps = {}
        start = 0
        for number, (name, width) in enumerate(self.layers):
            part = slice(start, start + width)
            basis = span(effects[:, part], self.rank)
            inside = basis @ basis.T
            amount = amounts[:, number, None]
            replaced = center[part] @ inside
            if self.form == "add":  # nothing is removed, so the center is 0
                replaced = torch.zeros_like(replaced)
            maps[name] = LayerMap(
                basis.float(), replaced.float(), (amount * effects[:, part] @ inside).float()
            )
            start += width
        return maps


def check_form(form: str) -> None:
    """Raise InvalidInputError for an unknown form."""
    if form not in get_args(Form):
        raise InvalidInputError(f"form: expected one of {list(get_args(Form))}, got {form!r}")


def span(effects: Tensor, rank: int = 0) -> Tensor:
    """Return an orthonormal basis (d, r) of the span of effects, strongest directions first.

    Directions below a thousandth of the strongest are treated as rounding errors. The centered
    effects of k values span at most k - 1 directions.

    Args:
        effects: (values, d).
        rank: the maximum number of directions, or 0 for all.
    """
    _, lengths, directions = torch.linalg.svd(effects.double(), full_matrices=False)
    count = int((lengths > 1e-3 * lengths[0]).sum()) if lengths[0] > 0 else 0
    return directions[: min(count, rank) if rank else count].T


def joint(maps: Sequence[LayerMap]) -> LayerMap:
    """Return the map for several attributes at one layer, in their joint span.

    The center is the mean of the individual centers, and the effects are concatenated. In the joint
    span, effects add up, so an image gets one value per attribute.
    """
    if len(maps) == 1:
        return maps[0]
    basis = span(torch.cat([part.basis for part in maps], dim=1).T)
    inside = basis @ basis.T
    center = torch.stack([part.center for part in maps]).mean(0).double() @ inside
    effects = torch.cat([part.effects for part in maps])
    return LayerMap(basis.float(), center.float(), effects)


def steer(output: Tensor, basis: Tensor, target: Tensor, form: str, strength: float) -> Tensor:
    """Add a target to an output (b, positions, d).

    The forms "shift" and "set" first remove the output's component in the span.

    Args:
        output: the output of the cross-attention layer.
        basis: (d, r) orthonormal directions of the span.
        target: (b, d), added after the output's component in the span has been removed according to
            the form.
        form: "add" removes nothing, "shift" the mean over positions, "set" every position.
        strength: the fraction of the change to apply.
    """
    if form == "add":
        return output + strength * target[:, None]
    removed = output if form == "set" else output.mean(1, keepdim=True)
    return output + strength * (target[:, None] - (removed @ basis) @ basis.T)


def _between(times: Tensor, rows: Tensor, time: float) -> Tensor:
    """Interpolate rows (t, ...) linearly between the fitted times, in float64."""
    place = int(torch.searchsorted(times, time))
    if place == 0 or place == len(times):
        return rows[min(place, len(times) - 1)].double()
    low, high = float(times[place - 1]), float(times[place])
    share = (time - low) / (high - low)
    return torch.lerp(rows[place - 1].double(), rows[place].double(), share)
