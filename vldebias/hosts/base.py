"""What every host family offers: embed prompts, name its spaces, carry a projection at its seam, merge it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from vldebias.attachment import Apply
from vldebias.errors import ProjectionMismatchError, UnsupportedHostError
from vldebias.fingerprint import fingerprint_matches
from vldebias.hosts.sides import IMAGE
from vldebias.projection import CalibratedProjection

__all__ = ["Host"]


class Host(ABC):
    """One model or pipeline, seen as tensors with a role.

    name: class of the model, for messages. model_id: where its weights came from, if it says so.
    roles: the tensors that debias() projects by default. generative: the preset is cali 500, else orth-cali 1000.
    owned, shared: see vldebias.attachment.Claims.
    """

    name: str
    model_id: str | None = None
    roles: tuple[str, ...]
    generative: bool = False
    owned: Sequence[object]
    shared: Sequence[object] = ()

    @abstractmethod
    def embed(self, prompts: Sequence[str], role: str) -> Tensor:
        """L2-normalised (n, d) float64 CPU embeddings of `prompts` in the space of `role`, never projected."""

    @abstractmethod
    def space(self, role: str) -> str:
        """Name of the space of `role`, e.g. "open_clip.joint" or "StableDiffusionXLPipeline.sequence"."""

    @abstractmethod
    def fingerprint(self) -> dict[str, Any] | None:
        """vldebias.fingerprint.weights_fingerprint of the text tower(s)."""

    def image_fingerprint(self) -> dict[str, Any] | None:
        """The same of the image tower in the space of the texts; None where there is none."""
        return None

    def at(self, side: str) -> Host:
        """This host with its seams at `side` (see `vldebias.hosts.sides`).

        Raises:
            UnsupportedHostError: a side that it has not.
        """
        if side == "text":
            return self
        raise UnsupportedHostError(
            f"{self.name}: side={side!r} needs an image tower that shares a space with the texts, and here is none; "
            "use side='text'"
        )

    def fitted_as(self, role: str) -> str:
        """The role whose projection serves `role`: another one where two seams lie in one space."""
        return role

    @abstractmethod
    def install(self, apply: Apply) -> Callable[[], None]:
        """Put `apply` at the seam; returns the function that takes it off and leaves no trace."""

    @abstractmethod
    def merge(self, projections: Mapping[str, CalibratedProjection], strength: float) -> None:
        """Fold the projections into plain weights; raises UnsupportedHostError where weights cannot hold them."""

    def dim(self, role: str) -> int:
        """Width of the embeddings of `role`."""
        return self.embed(["a photo"], role).shape[-1]

    def check(self, role: str, projection: CalibratedProjection) -> None:
        """Refuse a projection that was fitted for another space, width or set of weights.

        All three, because two spaces of one model can share a width (ViT-L/14: 768 before and after its text head).
        The text tower is compared in every case: its texts are what the projection was fitted on. The image tower is
        compared where images have a part in it: at their own seam, and for what was fitted on their means.
        """
        space = self.space(role)
        refit = "fit again on this host with vldebias.debias(host, prompts)"
        if projection.space is not None and projection.space != space:
            raise ProjectionMismatchError(
                f"{self.name}: the projection belongs to space {projection.space!r}, here it is {space!r}; {refit}"
            )
        if projection.dim != self.dim(role):
            raise ProjectionMismatchError(
                f"{self.name}: the projection has dim {projection.dim}, {role!r} has {self.dim(role)}; {refit}"
            )
        if not fingerprint_matches(projection.fingerprint, self.fingerprint()):
            raise ProjectionMismatchError(
                f"{self.name}: the projection was fitted on other weights ({projection.model_id or 'unnamed model'}); "
                f"the fingerprint of this text tower differs; {refit}"
            )
        images = role == IMAGE or "equalise" in projection.method
        if images and not fingerprint_matches(projection.image_fingerprint, self.image_fingerprint()):
            raise ProjectionMismatchError(
                f"{self.name}: the projection was fitted beside another image tower "
                f"({projection.model_id or 'unnamed model'}); the fingerprint of this one differs; {refit}"
            )
