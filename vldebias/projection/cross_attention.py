"""Define the edit of cross-attention, which sets an attribute's value inside a denoiser.

At each cross-attention and time, the mean responses to texts that state different values differ
along a few directions, the span of the attribute. The edit changes an output c only in that span:

    add    c' = c + a e_v                      the effect of the sampled value is added
    shift  c' = c - P mean(c) + P m + a e_v    the mean over positions is replaced first
    set    c' = c - P c + P m + a e_v          every position is replaced first

P projects onto the span of the effects e_v, m is their center and a the amount. `shift` and `set`
remove the part of the output in the span (the projection of Lemma 7.1), which includes part of the
prompt's subject and of other attributes that it states. With strength s the output is c + s (c' -
c). Times are the timesteps that a denoiser receives. For another scheduler or number of steps, the
edit is interpolated between the fitted times.

If the text of a prompt is unknown, the gate reads the responses of the first pass: linear readings
r distinguish a person from none, and a stated value from an open one.
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
MIN_AUROC = 0.95  # a reading with a lower AUROC is ignored


class LayerMap(NamedTuple):
    """Store the edit of one cross-attention at one time.

    Attributes:
        basis: (d, rank) of the span.
        center: (d,) inside the span; zero for the form "add".
        effects: (values, d) inside the span, amounts included.
    """

    basis: Tensor
    center: Tensor
    effects: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class CrossAttentionEdit(Edit):
    """Give every cross-attention output one value of the attribute.

    The form "add" adds the effect of the value. "shift" and "set" replace the part of the output in
    the span of the effects.

    Attributes:
        times: (t,) float32, ascending: the timesteps that the denoiser receives.
        center: (t, d) mean response, the widths of all layers one after the other.
        effects: (t, values, d) difference of the mean response to texts of a value from the center.
        amounts: (t, values, layers) multiple of its effect that a value gets.
        gate: (values + 1, d). A response y of the first pass states value v if gate_v y > offset_v,
            and shows a person if the last row exceeds its offset. Without rows nothing can be read.
        gate_offsets: (values + 1,).
        auroc: "stated" and "person" -> layer -> AUROC of the responses on texts that the reading
            was not fitted to; the best layer is read.
        layers: name and width of each cross-attention.
        form: "add", "shift" or "set".
        rank: largest number of directions of the span, the strongest first; 0: all.
        attribute: name of the prompt set.
        words: value -> its words.
        adjectives: see `PromptSet`; prompts are read with them if the edit is attached again.
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
                f"expected {self.effects.shape[1]} values and {self.amounts.shape[2]} layers of a"
                f" total width of {self.dim}, as the tensors have; got {counts}"
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
        """Refuse a strength above 0, because the edit acts inside a denoiser."""
        self.check_input(z, strength)
        if strength == 0:
            return z
        raise InvalidInputError(
            f"{self.method} acts inside a denoiser and cannot be applied to embeddings; attach it"
            " with vldebias.debias(pipe, edit)"
        )

    @property
    def can_read(self) -> bool:
        """Return whether the gate distinguishes stated values from open ones."""
        return max(self.auroc.get("stated", {}).values(), default=0.0) >= MIN_AUROC

    def reading(self, response: Tensor) -> tuple[bool, str | None]:
        """Return what the gate reads in a response (d,) of a first pass.

        If no layer distinguishes persons from things in texts that the reading was not fitted to,
        every prompt counts as one about a person.

        Returns:
            Whether it shows a person, and the value that its prompt states, or None.
        """
        scores = (self.gate.double() @ response.double() - self.gate_offsets).tolist()
        score_of_value = dict(zip(self.values, scores[:-1], strict=True))
        likeliest = max(score_of_value, key=lambda value: score_of_value[value])
        detects_persons = max(self.auroc["person"].values(), default=0.0) >= MIN_AUROC
        shows_person = scores[-1] > 0 or not detects_persons
        return shows_person, likeliest if score_of_value[likeliest] > 0 else None

    def at(self, time: float) -> dict[str, LayerMap]:
        """Return layer -> its map at a time, float32 on the CPU.

        The center of a map is zero for the form "add", which removes nothing. Between two fitted
        times everything is interpolated; before the first and after the last one the nearest is
        used.
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
            if self.form == "add":  # nothing is removed, so there is nothing to replace
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
    """Return an orthonormal basis (d, r) of the span of effects, the strongest directions first.

    Directions below a thousandth of the strongest one are rounding: for k values that sum to their
    center, k - 1 directions are left.

    Args:
        effects: (values, d).
        rank: the largest number of directions; 0: all.
    """
    _, lengths, directions = torch.linalg.svd(effects.double(), full_matrices=False)
    count = int((lengths > 1e-3 * lengths[0]).sum()) if lengths[0] > 0 else 0
    return directions[: min(count, rank) if rank else count].T


def joint(maps: Sequence[LayerMap]) -> LayerMap:
    """Return the map of several attributes at one layer, in the joint span.

    The center is the mean of their centers, and the effects are concatenated. In the joint span
    effects add up, so an image gets one value of each attribute.
    """
    if len(maps) == 1:
        return maps[0]
    basis = span(torch.cat([part.basis for part in maps], dim=1).T)
    inside = basis @ basis.T
    center = torch.stack([part.center for part in maps]).mean(0).double() @ inside
    effects = torch.cat([part.effects for part in maps])
    return LayerMap(basis.float(), center.float(), effects)


def steer(output: Tensor, basis: Tensor, target: Tensor, form: str, strength: float) -> Tensor:
    """Return an output (b, positions, d) with a target added.

    "shift" and "set" first remove the part of the output in the span; "add" removes nothing.

    Args:
        output: the output of the cross-attention.
        basis: (d, r) orthonormal directions of the span.
        target: (b, d), added after the form removed the output's part in the span.
        form: "add" removes nothing, "shift" the mean over positions, "set" every position.
        strength: share of the change that is applied.
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
