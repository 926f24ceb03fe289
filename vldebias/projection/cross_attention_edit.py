"""Define the cross-attention edit, which sets an attribute value inside a denoiser.

At each cross-attention layer and timestep, the effect e_v of value v is the difference between the
layer's mean response to prompts that state v and the mean over all values. With strength s, the
edit changes an output c of the layer at every position to

    c' = c + s a_v e_v

where the amount a_v depends on the timestep that the denoiser receives. For a different scheduler
or number of steps, effects are interpolated between the fitted timesteps.

If a prompt's text is unknown, the gate examines the responses in the first pass. Its linear
readouts detect whether there is a person, and whether a value is stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.projection.edit import Edit
from vldebias.projection.provenance import Provenance, Word
from vldebias.utils.markup import code_span

MIN_AUROC = 0.95  # readouts with a lower AUROC are ignored
MIN_CLARITY = 0.13
"""The clarity below which a model hardly follows a value's words. On three small models, clarity
was at most 0.12 for attributes that words do not change, and at least 0.14 for the others."""


@dataclass(frozen=True, eq=False, repr=False)
class CrossAttentionEdit(Edit):
    """Set one attribute value in every cross-attention output by adding its effect.

    Attributes:
        times: (t,) float32, ascending: the timesteps that the denoiser receives.
        effects: (t, values, d) difference between the mean response to a value's prompts and the
            mean over all values, with all layers concatenated.
        amounts: (t, values) multiplier of each value's effect.
        gate: (values + 1, d). A response y in the first pass states value v if gate_v y > offset_v,
            and shows a person if the last row exceeds its offset. Without any rows, nothing can be
            detected.
        gate_offsets: (values + 1,), the offset of each row of the gate.
        auroc: the AUROC on responses to held-out prompts, by readout ("stated" or "person") and
            layer. The gate uses the best layer.
        layers: the name and width of each cross-attention layer.
        clarity: how clearly the model responds to each value's words in the first step: the size of
            the effect relative to the differences between subjects, times the mean cosine between
            the effect on one subject and on the others. Empty if the edit was fitted on only one
            subject.
        attribute: the name of the prompt set.
        words: the words for each value.
        adjectives: the adjective for each value, for analysing prompts when the edit is attached
            again.
        phrase: the words after the noun for each value, if it has no adjective.
        stated: words that state a value. Prompts that contain one are left unchanged.
    """

    kind = "cross-attention"
    axes: ClassVar[Mapping[str, str]] = {
        "times": "time",
        "effects": "time value d",
        "amounts": "time value",
        "gate": "reading d",
        "gate_offsets": "reading",
    }
    dtype = torch.float32

    times: Tensor
    effects: Tensor
    amounts: Tensor
    gate: Tensor
    gate_offsets: Tensor
    auroc: dict[str, dict[str, float]]
    layers: tuple[tuple[str, int], ...]
    clarity: dict[str, float]
    attribute: str
    words: dict[str, tuple[Word, ...]]
    adjectives: dict[str, Word]
    phrase: dict[str, Word]
    stated: tuple[Word, ...]
    provenance: Provenance
    side = "denoiser"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.times.diff().le(0).any():
            raise InvalidInputError(f"times: expected ascending numbers, got {self.times.tolist()}")
        total = sum(width for _, width in self.layers)
        if len(self.gate) not in (0, len(self.words) + 1):
            raise InvalidInputError(
                f"gate: expected {len(self.words) + 1} rows, or none; got {len(self.gate)}"
            )
        counts = (len(self.words), total)
        if counts != (self.effects.shape[1], self.dim):
            raise InvalidInputError(
                f"expected {self.effects.shape[1]} values and layers with a total width of"
                f" {self.dim}, as in the tensors; got {counts}"
            )

    @property
    def values(self) -> tuple[str, ...]:
        """Return the values, in the order of the effects."""
        return tuple(self.words)

    def __repr__(self) -> str:
        numbers = sum(getattr(self, name).numel() for name in self.axes)
        clarity = f", clarity: {self.clarity_in_words}" if self.clarity else ""
        return (
            f"{type(self).__name__}({self.method} of {self.attribute}, {len(self.values)} values,"
            f" {len(self.layers)} layers, {len(self.times)} times, {4 * numbers / 1e6:.1f} MB"
            f"{clarity})"
        )

    @property
    def clarity_in_words(self) -> str:
        """Return the clarity of each value, such as "female 0.42, male 0.42"."""
        return ", ".join(f"{value} {clarity:.2f}" for value, clarity in self.clarity.items())

    def effect_in_words(self) -> str:
        effect = super().effect_in_words()
        if self.clarity:
            effect += (
                "\n\nHow clearly the model responds to each value:"
                f" {code_span(self.clarity_in_words)}. Below {MIN_CLARITY},\nit hardly follows the"
                " words for the value."
            )
        return effect

    @property
    def unclear_values(self) -> list[str]:
        """Return the values whose words the model hardly follows."""
        return [value for value, clarity in self.clarity.items() if clarity < MIN_CLARITY]

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

    def at(self, time: float) -> dict[str, Tensor]:
        """Return each layer's effects (values, d) times their amounts, in float32 on the CPU.

        Effects are interpolated between fitted times. Outside the fitted range, the nearest fitted
        time is used.
        """
        effects = _between(self.times, self.effects, time)
        effects *= _between(self.times, self.amounts, time)[:, None]
        widths = [width for _, width in self.layers]
        parts = effects.float().split(widths, dim=1)
        return {name: part for (name, _), part in zip(self.layers, parts, strict=True)}

    def acts_at(self, time: float) -> bool:
        """Return whether the amount at a time is more than a twentieth of the largest one."""
        return bool(_between(self.times, self.amounts, time).max() >= self.amounts.max() / 20)


def _between(times: Tensor, rows: Tensor, time: float) -> Tensor:
    """Interpolate rows (t, ...) linearly between the fitted times, in float64."""
    place = int(torch.searchsorted(times, time))
    if place == 0 or place == len(times):
        return rows[min(place, len(times) - 1)].double()
    low, high = float(times[place - 1]), float(times[place])
    share = (time - low) / (high - low)
    return torch.lerp(rows[place - 1].double(), rows[place].double(), share)


def clarity_sentence(clarity: Mapping[str, float]) -> str:
    """Return a sentence about how clearly a model responds to each value's words.

    If the model hardly responds to some values, the sentence names them and suggests a remedy.
    """
    numbers = ", ".join(f"{value} {number:.2f}" for value, number in clarity.items())
    unclear = [repr(value) for value, number in clarity.items() if number < MIN_CLARITY]
    scale = "0 is no effect, 1 an effect as large as the differences between subjects; expected"
    in_brackets = f"(clarity: {numbers}; {scale} at least {MIN_CLARITY})"
    if not unclear:
        return f"this model responds to the words for each value {in_brackets}"
    return (
        f"this model hardly responds to the words for {', '.join(unclear)} {in_brackets}, so"
        " neither cross-attention nor balanced prompts can be expected to change who appears."
        " Generate 16 images that state the value. If they do not show it, use other words for it"
        " or fine-tune the model"
    )
