"""FairImagen: fair PCA of a pipeline's text states, and noise along the groups put back (Fu et al., NeurIPS 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vldebias.edit import Edit, Provenance, Rows
from vldebias.errors import InvalidInputError
from vldebias.hosts.draws import uniform_number
from vldebias.methods.labelled import stated_texts
from vldebias.methods.method import Need, Problem, register_method
from vldebias.methods.shares import AllShares, Shares
from vldebias.methods.steer import SampledEdit, SamplingMethod
from vldebias.projection import CalibratedProjection, span_of

_KEPT = 1800 / 2048  # of the width: what the authors keep of the pooled states of Stable Diffusion 3


def fair_pca(rows: Tensor, one_hot: Tensor, keep: int | None = None) -> Tensor:
    """(d, r) orthonormal: what fair PCA drops of rows (n, d), so that U U^T = I minus the projection on it.

    Kleindessner et al. (2023), as FairImagen calls it: with Z the centred one-hot groups (n, g), R spans the null space
    of Z^T X, and U = R V for the eigenvectors V of R^T X^T X R with the `keep` largest eigenvalues; None: all of them.
    At full width what is dropped is the span of Z^T X alone, the differences of the groups' means: method "difference",
    over all texts that state a value.
    """
    x, z = rows.double(), one_hot.double()
    informative = span_of((z - z.mean(0)).T @ x)
    rest = torch.linalg.qr(informative, mode="complete").Q[:, informative.shape[1] :]
    if keep is None or keep >= rest.shape[1]:
        return informative
    inside = x @ rest
    _, vectors = torch.linalg.eigh(inside.T @ inside)  # ascending
    return torch.cat([informative, rest @ vectors[:, : rest.shape[1] - keep]], 1)


@dataclass(frozen=True, eq=False, repr=False)
class FairStates(SampledEdit):
    """z -> U U^T z + |z| noise^2 s u_g, with a group g drawn for each row, and s what one of its texts says along u_g.

    Attributes:
        plain: U U^T. directions: (g, d), of each group's mean from that of all, at length 1.
        said: (g, n), what the texts of each group say along it. noise: the authors' `enoise`, which they apply twice.
    """

    kind = "fair-states"
    axes: ClassVar = {"directions": "g d", "said": "g n"}
    parts: ClassVar = {"plain": CalibratedProjection}

    plain: CalibratedProjection
    directions: Tensor
    said: Tensor
    noise: float
    shares: Shares
    stratify: int | None
    provenance: Provenance

    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor:
        """States (b, ..., d), each with the noise of its image.

        Raises:
            InvalidInputError: the prompts and seeds of the rows are not given, or are of another number.
        """
        self.check_strength(strength)
        if strength == 0:
            return z
        codes = self.codes(rows)
        if len(codes) != len(z) or rows is None:
            raise InvalidInputError(f"{self!r}: {len(z)} embeddings for {len(codes)} images; expected one for each")
        drawn = rows.seeds if rows.numbers is None else rows.numbers
        assert drawn is not None  # `codes` refuses rows without either
        texts = zip(drawn, rows.texts, strict=True)
        which = [int(uniform_number(number, text, "noise") * self.said.shape[1]) for number, text in texts]
        added = self.noise**2 * self.said[codes, which][:, None] * self.directions[codes]
        wide = z if z.dtype in (torch.float32, torch.float64) else z.float()
        noise = wide.norm(dim=-1, keepdim=True) * added.reshape(-1, *[1] * (z.ndim - 2), z.shape[-1]).to(wide)
        return torch.lerp(wide, self.plain(wide) + noise, strength).to(z.dtype)


class FairImagen(SamplingMethod):
    """Fair PCA of every state of a prompt, then noise along a group that is drawn for each image; see `FairStates`.

    By the formulas of the authors' code. An approximation of what it does: here each tensor of a pipeline has a
    projection of its own, fitted to the states at the end of the stated prompts at length 1, where theirs is fitted to
    the pooled ones of Stable Diffusion 3 and applied to both.

    Args:
        shares, stratify: see `SamplingMethod`; the authors draw groups evenly.
        keep: dimensions that are kept; None: seven eighths, as the authors keep 1800 of 2048. The width: all but what
            tells the groups apart.
        noise: 0 for the projection alone; the authors recommend 0.6.
    """

    name, title, source = "fair-pca", "fair PCA and noise along the groups", "Fu et al., 2025 (FairImagen)"
    color, needs = "#cc79a7", frozenset({Need.PAIRS, Need.VALUES})

    def __init__(
        self,
        shares: AllShares | None = None,
        *,
        keep: int | None = None,
        noise: float = 0.6,
        stratify: int | None = None,
    ) -> None:
        super().__init__(shares, stratify=stratify)
        if noise < 0 or (keep is not None and keep < 1):
            raise InvalidInputError(f"expected noise from 0 on and dimensions to keep, got noise={noise}, keep={keep}")
        self.keep, self.noise = keep, noise

    def check(self, problem: Problem) -> None:
        """Refuse what `SamplingMethod` refuses, and several attributes: the authors' crossed groups are not here."""
        super().check(problem)
        if len(problem.attributes) > 1:
            raise InvalidInputError(f"{self.name}: expected one attribute, got {len(problem.attributes)}")

    def settings(self) -> dict[str, Any]:
        """All but the shares."""
        return {"keep": self.keep, "noise": self.noise}

    def fit(self, problem: Problem, role: str) -> Edit:
        """The projection of the stated prompts' states, and what each group says along its direction."""
        stated = stated_texts(problem, role)
        rows, groups = stated.one_hot()
        keep = round(_KEPT * rows.shape[1]) if self.keep is None else self.keep
        dropped = fair_pca(rows, groups, keep)
        directions = torch.nn.functional.normalize((groups - groups.mean(0)).T @ rows, dim=1)
        own = [rows[groups[:, g] > 0] @ directions[g] for g in range(groups.shape[1])]
        said = torch.stack([one[: min(map(len, own))] for one in own])
        origin = Provenance(self.name)
        plain = CalibratedProjection(dropped, dropped, origin, dropped.shape[1])
        return FairStates(plain, directions, said, self.noise, self.wanted(problem), self.stratify, origin)


register_method(FairImagen())
