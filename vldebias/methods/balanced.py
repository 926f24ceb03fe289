"""The affine form whose level follows the prompt, so that what is drawn of it comes out even.

At the midpoint of the values (`vldebias.methods.affine`) a pipeline still leans, with another lean for each subject: it
was trained on pictures that do. Part of that lean can be told from the text. `Balanced` is given how often the pipeline
itself drew the first value for some prompts, at levels c between the values (c = 1: that of the first, 0: the midpoint,
-1: that of the second), as a judge reads the pictures, and takes

    c(e) = (1/2 - s(e)) / b,

with s(e) the share that is expected at the midpoint, by ridge regression on the text e, its penalty by leave-one-out,
and b the slope of the shares over the levels, the same for all prompts. A judge is needed once, for the prompts that it
is fitted on; a prompt is then given one embedding, and nothing is sampled. It draws nothing by itself:
`vldebias.evaluation.readings` does, for `Balanced.read` to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from vldebias.edit import Provenance, Rows
from vldebias.errors import InvalidInputError
from vldebias.methods.affine import Affine, Midpoint
from vldebias.methods.method import Method, Need, Problem, Show, register_method

PENALTIES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 1e6)  # of the mean squared length of a centred text
APART = 0.5  # of the second level that is read, from the midpoint
LARGEST = 2.0  # a level beyond twice what the texts of a value are is none that the pipeline knows


@dataclass(frozen=True, eq=False, repr=False)
class Following(Affine):
    """`Affine` with its levels + c(e) apart, where c(e) = bias + slope . e of a text e of unit length.

    Attributes:
        apart: (n, rank), half the difference between the levels of the two values at each place.
        slope: (d + 1,), the bias last.
    """

    kind = "following"

    apart: Tensor
    slope: Tensor

    def offsets(self, texts: Tensor) -> Tensor:
        """c (b,) of texts (b, d), unit rows at their end."""
        slope = self.slope.to(texts.device)
        return (texts.double() @ slope[:-1] + slope[-1]).clamp(-LARGEST, LARGEST)

    def level(self, place: Tensor, rows: Rows | None) -> Tensor:
        """See `Affine.level`."""
        if rows is None or rows.embed is None:
            raise InvalidInputError(f"{self!r}: expected the prompt of each row, which its level follows")
        c = self.offsets(rows.embed(rows.texts)).to(place.device).view(-1, *[1] * place.ndim)
        return super().level(place, rows) + c * self.apart.to(place.device)[place]

    def tensors(self) -> dict[str, Tensor]:
        """Those of `Affine`, what is apart, and the slope."""
        return {**super().tensors(), "apart": self.apart, "slope": self.slope}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], provenance: Provenance) -> Self:
        """From `tensors`, checked."""
        plain, (apart, slope) = Affine.build(tensors, settings, provenance), (tensors["apart"], tensors["slope"])
        expected = (tuple(plain.levels.shape), (plain.dim + 1,))
        if (tuple(apart.shape), tuple(slope.shape)) != expected or not torch.cat(
            [apart.flatten(), slope]
        ).isfinite().all():
            raise InvalidInputError(f"apart, slope: expected finite {expected}, got {apart.shape}, {slope.shape}")
        return cls(plain.plain, plain.levels, provenance, apart, slope, before=plain.before)


class Balanced(Method):
    """The midpoint, moved for each prompt to where the pipeline is expected to draw both values alike.

    Args:
        readings: prompt -> level c -> share of the first value among its pictures drawn with `Midpoint(level=c)`, or
            with a `Balanced` that gave it that level (`Following.offsets`); of three prompts or more, each at two
            levels or more. None: they are still to be made (`read`), and it cannot be fitted.
        calibrated: see `Midpoint`.

    Raises:
        InvalidInputError: other readings; or shares that do not rise with the level, which then balances nothing.
    """

    name, title, source, color = "balanced", "affine form, level by the prompt", "this package", "#bd9e39"
    needs, models = frozenset({Need.PAIRS, Need.VALUES, Need.JUDGED}), False

    def __init__(
        self, readings: Mapping[str, Mapping[float, float]] | None = None, *, calibrated: bool = False
    ) -> None:
        self.midpoint = Midpoint(calibrated=calibrated)
        self.has_lam = calibrated
        self.readings = {prompt: dict(shares) for prompt, shares in (readings or {}).items()}
        if readings is None:
            return
        self.needs = self.needs - {Need.JUDGED}
        self.rise, self.shares = rise_and_shares(self.name, self.readings, "level", middle=0.0)

    def check(self, problem: Problem) -> None:
        """Refuse what `Midpoint` refuses, several attributes or more than two values; and no readings."""
        super().check(problem)
        self.midpoint.at(1.0).check(problem)

    def settings(self) -> dict[str, Any]:
        """The readings."""
        return {"readings": self.readings, "calibrated": self.midpoint.calibrated}

    def read(self, problem: Problem, show: Show) -> Balanced:
        """Read the class prompts at the midpoint, at a level against their lean, and at the levels that follow.

        Where a pipeline has several text states, the levels of its first role count.

        Raises:
            InvalidInputError: as `check`; or too few prompts whose images tell the value.
        """
        self.midpoint.at(1.0).check(problem)
        prompts, readings = problem.attributes[0].classes, {}
        middle = {prompt: shares[0] for prompt, shares in show(self.midpoint, prompts).items()}
        against = -APART if sum(middle.values()) > len(middle) / 2 else APART
        for prompt, shares in show(self.midpoint.at(against), prompts).items():
            if prompt in middle:
                readings[prompt] = {0.0: middle[prompt], against: shares[0]}
        first, role = Balanced(readings, calibrated=self.midpoint.calibrated), problem.host.roles[0]
        levels = first.fit(problem, role).offsets(problem.embed(readings, role)).tolist()
        followed = show(first, list(readings))
        for prompt, level in zip(readings, levels, strict=True):
            if prompt in followed:
                readings[prompt][level] = followed[prompt][0]
        return Balanced(readings, calibrated=self.midpoint.calibrated)

    def fit(self, problem: Problem, role: str) -> Following:
        """The regression and the closed form."""
        plain, one = self.midpoint.fit(problem, role), self.midpoint.at(1.0).fit(problem, role)
        lean, bias = ridge(problem.embed(list(self.readings), role), self.shares)
        slope = torch.cat([-lean, lean.new_tensor([0.5 - bias])]) / self.rise
        return Following(plain.plain, plain.levels, plain.provenance, one.levels - plain.levels, slope)


def rise_and_shares(
    name: str, readings: Mapping[str, Mapping[float, float]], what: str, *, middle: float
) -> tuple[float, Tensor]:
    """Rise of the share of the first value, per level, the same for all prompts; and the share of each at the middle.

    readings: prompt -> level -> share of the first value. what: "level", or what else stands in its place.

    Raises:
        InvalidInputError: too few readings, others than shares, or shares that do not rise.
    """
    if len(readings) < 3 or any(len(shares) < 2 for shares in readings.values()):
        few = [prompt for prompt, shares in readings.items() if len(shares) < 2]
        raise InvalidInputError(
            f"{name}: expected shares of three prompts or more, each at two {what}s or more, got "
            f"{len(readings)} prompts, {len(few)} of them at fewer {what}s: {few[:3]}"
        )
    rows = [torch.tensor(list(shares.items()), dtype=torch.float64).T for shares in readings.values()]
    if not all(((share >= 0) & (share <= 1)).all() for _, share in rows):
        raise InvalidInputError(f"{name}: expected shares from 0 to 1; leave out prompts whose pictures say nothing")
    apart = [(level - level.mean(), share) for level, share in rows]
    rise = float(sum(level @ share for level, share in apart) / sum(level @ level for level, _ in apart))
    if not rise > 0:
        raise InvalidInputError(
            f"{name}: the share of the first value falls by {-rise:.2f} a {what}; expected a rise: are "
            f"{what}s and shares those of the same value, the first of the prompt set?"
        )
    return rise, torch.stack([share.mean() - rise * (level.mean() - middle) for level, share in rows])


def ridge(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """Slope (d,) and bias of y (n,) on rows x (n, d); the penalty of `PENALTIES` with the least error leave-one-out."""
    mean, middle = x.mean(0), float(y.mean())
    kernel = (x - mean) @ (x - mean).T
    eye = torch.eye(len(x), dtype=x.dtype)
    best: tuple[float, Tensor] | None = None
    for penalty in PENALTIES:
        solved = torch.linalg.inv(kernel + penalty * kernel.diagonal().mean() * eye)
        hat = kernel @ solved + 1 / len(x)  # the mean takes part in what is left out
        error = float((((y - middle) - kernel @ solved @ (y - middle)) / (1 - hat.diagonal())).square().mean())
        if best is None or error < best[0]:
            best = error, (x - mean).T @ solved @ (y - middle)
    assert best is not None
    return best[1], middle - float(best[1] @ mean)


register_method(Balanced())
