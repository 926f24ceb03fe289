"""A gate for any edit of texts: only those that lean are changed, by a sensitivity that is measured.

What a text makes of the attribute is the gap between the mean scores of two values, in deviations of its scores,

    lean(q) = max_ab |<q, D_ab>| / std(<q, rows>),

over the reference images with their zero-shot values, or without a reference over the texts of the prompt set that
state a value (`vldebias.methods.auto.PredictedGap`). A text whose lean is below `least` comes back bit for bit. That
only sensitive queries are to be debiased is the idea of reward-gated debiasing (2607.00423); the measure is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Edit, Provenance, Rows
from vldebias.errors import InvalidInputError
from vldebias.methods.auto import image_gap, text_gap
from vldebias.methods.method import Around, Method, Problem, get_method

LEAST = 0.2  # deviations: what Cohen (1988) calls a small difference


@dataclass(frozen=True, eq=False, repr=False)
class Gated(Edit):
    """An edit of those texts alone that lean by `least` or more.

    Attributes:
        differences: (p, d) of the mean rows of two values. spread: (r, d), whose product with a text is as long as the
            deviation of its scores. least: in deviations. edit: what changes them.
    """

    kind = "gated"

    differences: Tensor
    spread: Tensor
    least: float
    edit: Edit
    provenance: Provenance

    @property
    def dim(self) -> int:
        """Width of the edit inside."""
        return self.edit.dim

    def leans(self, z: Tensor) -> Tensor:
        """How far each text (..., d) leans, (...), in deviations of its scores."""
        unit = normalize(z.double(), dim=-1)
        apart, along = (unit @ rows.to(unit).T for rows in (self.differences, self.spread))
        return apart.abs().amax(-1) / along.norm(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)

    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor:
        """Texts (..., d), each edited where it leans, else as it is."""
        self.check_strength(strength)
        if strength == 0:
            return z
        return torch.where((self.leans(z) >= self.least)[..., None], self.edit(z, strength, rows), z)

    def check_tensors(self) -> None:
        """That of the edit inside too."""
        super().check_tensors()
        self.edit.check_tensors()

    def tensors(self) -> dict[str, Tensor]:
        """Its own, and those of the edit as "edit.name"."""
        inside = {f"edit.{name}": tensor for name, tensor in self.edit.tensors().items()}
        return {"differences": self.differences, "spread": self.spread} | inside

    def settings(self) -> dict[str, Any]:
        """Its own, and kind and settings of the edit."""
        return {"least": self.least, "kind": self.edit.kind, "edit": self.edit.settings()}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], provenance: Provenance) -> Gated:
        """See `Edit.build`."""
        own = {name.removeprefix("edit."): t for name, t in tensors.items() if name.startswith("edit.")}
        inside = Edit.kinds[settings["kind"]].build(own, settings["edit"], provenance)
        if any(tensors[name].ndim != 2 or tensors[name].shape[1] != inside.dim for name in ("differences", "spread")):
            raise InvalidInputError(f"differences, spread: expected tensors (n, {inside.dim})")
        return cls(tensors["differences"], tensors["spread"], float(settings["least"]), inside, provenance)


class Leaning(Around):
    """A method for texts that lean alone: `Leaning("cali")`, `Leaning("bend-vlm", least=0.5)`.

    least: the lean from which on a text is edited, in deviations of its scores.

    Raises:
        InvalidInputError: a lean that is not positive; when it is fitted, a method that edits images, reads prompts or
            draws a value for each image.
    """

    def __init__(self, method: str | Method, least: float = LEAST) -> None:
        if not 0 < least < float("inf"):
            raise InvalidInputError(f"least: expected a lean above 0, in deviations, got {least!r}")
        self.method, self.least = get_method(method), float(least)
        super().__init__(self.method)
        self.name, self.title = f"{self.name}, leaning", f"{self.title}, where a text leans"

    def settings(self) -> dict[str, Any]:
        """Those of the method, and the lean."""
        return {**self.method.settings(), "least": self.least}

    def fit(self, problem: Problem, role: str) -> Edit:
        """The method's edit behind the gate."""
        edit = self.method.fit(problem, role)
        if edit.side != "text" or edit.sampled or edit.reads_text:
            raise InvalidInputError(
                f"{self.name}: expected a method that edits the embeddings of texts, got {edit!r}; "
                "what acts on images, draws values or reads prompts has no text to leave alone"
            )
        if problem.reference is None:
            gaps = [text_gap(problem, prompts, role, 0, resamples=0) for prompts in problem.attributes]
        else:
            images = torch.cat(list(problem.reference.batches()))
            gaps = [image_gap(problem, prompts, role, images, 0, resamples=0) for prompts in problem.attributes]
        differences = torch.cat([gap.differences[0] for gap in gaps])
        rows = gaps[0].centred
        spread = torch.linalg.qr(rows, mode="r").R / (len(rows) - 1) ** 0.5
        return Gated(differences, spread, self.least, edit, edit.provenance)
