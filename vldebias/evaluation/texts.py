"""Texts under a method: prompts in, normalised rows out, projected as an attachment would project them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Never

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.api import fit_projection
from vldebias.attachment import Apply
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts import Host, resolve
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet
from vldebias.stated import StatedWords

__all__ = ["TextTable", "Texts"]


class TextTable(Host):
    """Text embeddings that were computed before, in the place of a model: fits and measures, attaches to nothing.

    Args:
        rows: prompt -> embedding (d,).
        model_id: which model they come from.

    Raises:
        InvalidInputError: no prompts, or rows that are not (d,) of one width, finite and of a length above 0.
    """

    name = "table of text embeddings"
    roles = ("joint",)
    owned = ()

    def __init__(self, rows: Mapping[str, Tensor], model_id: str | None = None) -> None:
        if not rows:
            raise InvalidInputError("text embeddings: expected at least one prompt, got none")
        wide = {prompt: row.detach().cpu().double() for prompt, row in rows.items()}
        shapes = {tuple(row.shape) for row in wide.values()}
        if len(shapes) > 1 or len(next(iter(shapes))) != 1:
            raise InvalidInputError(f"text embeddings: expected rows (d,) of one width, got {sorted(shapes)}")
        bad = [prompt for prompt, row in wide.items() if not (row.isfinite().all() and row.any())]
        if bad:
            raise InvalidInputError(f"text embeddings: {len(bad)} rows are zero or not finite, such as {bad[:3]}")
        self._rows = {prompt: normalize(row, dim=0) for prompt, row in wide.items()}
        self.model_id = model_id

    def embed(self, prompts: Sequence[str], role: str) -> Tensor:
        """The stored rows of `prompts`, normalised; every prompt must be in the table."""
        missing = [prompt for prompt in prompts if prompt not in self._rows]
        if missing:
            raise InvalidInputError(
                f"text embeddings: {len(missing)} prompts are not in the file, such as {missing[:3]}; "
                "store their embeddings too, or evaluate with the model"
            )
        return torch.stack([self._rows[prompt] for prompt in prompts])

    def dim(self, role: str) -> int:
        """Width of the rows."""
        return len(next(iter(self._rows.values())))

    def space(self, role: str) -> str:
        """The name of this space."""
        return "table.joint"

    def fingerprint(self) -> None:
        """None: the weights are not at hand."""

    def install(self, apply: Apply) -> Callable[[], None]:
        """Refused: there is nothing to attach to."""
        return self._refuse()

    def merge(self, projections: Mapping[str, CalibratedProjection], strength: float) -> None:
        """Refused: there are no weights."""
        self._refuse()

    def _refuse(self) -> Never:
        raise UnsupportedHostError(f"{self.name}: attaching needs the model itself")


class Texts:
    """The text side of an evaluation. Every prompt goes through the tower once, whatever the number of methods.

    Args:
        model: an open_clip or transformers image-text model, or a TextTable.
        tokenizer: where it cannot be found from the model.

    Raises:
        UnsupportedHostError: see `vldebias.debias`; also a pipeline, which has no images to compare with.
    """

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        host = resolve(model, tokenizer=tokenizer)
        if host.generative:
            raise UnsupportedHostError(f"{host.name}: expected an image-text model; a pipeline is evaluated by images")
        self.host: Host = _Remembering(host)

    def embed(self, prompts: Sequence[str]) -> Tensor:
        """L2-normalised float64 rows (n, d), not projected."""
        return self.host.embed(prompts, self.host.roles[0])

    def fit(self, prompts: PromptSet, method: str, lam: float | None = None) -> CalibratedProjection | None:
        """The projection of `method`; None for "none"."""
        return None if method == "none" else fit_projection(self.host, prompts, method=method, lam=lam)

    def under(
        self,
        prompts: Sequence[str],
        projection: CalibratedProjection | None,
        *,
        strength: float = 1.0,
        keep_stated: bool = True,
    ) -> Tensor:
        """L2-normalised float64 rows (n, d) as a model with `projection` attached gives them.

        keep_stated: leave prompts alone that name an attribute word of the projection, as `vldebias.debias` does.
        """
        rows = self.embed(prompts)
        if projection is None:
            return rows
        changed = normalize(projection(rows, strength), dim=-1)
        if not keep_stated or not projection.stated_words:
            return changed
        gate = StatedWords(projection.stated_words)
        stated = torch.tensor([gate.match(prompt) for prompt in prompts])
        return torch.where(stated[:, None], rows, changed)


class _Remembering(Host):
    """A host that embeds every prompt once."""

    owned = ()

    def __init__(self, host: Host) -> None:
        self._host = host
        self.name, self.model_id, self.roles, self.generative = host.name, host.model_id, host.roles, host.generative
        self._rows: dict[tuple[str, str], Tensor] = {}
        self._fingerprint, self._image_fingerprint = cache(host.fingerprint), cache(host.image_fingerprint)

    def embed(self, prompts: Sequence[str], role: str) -> Tensor:
        new = [prompt for prompt in dict.fromkeys(prompts) if (role, prompt) not in self._rows]
        if new:
            self._rows.update(zip(((role, p) for p in new), self._host.embed(new, role), strict=True))
        return torch.stack([self._rows[role, prompt] for prompt in prompts])

    def dim(self, role: str) -> int:
        return self._host.dim(role)

    def space(self, role: str) -> str:
        return self._host.space(role)

    def fingerprint(self) -> dict[str, Any] | None:
        return self._fingerprint()

    def image_fingerprint(self) -> dict[str, Any] | None:
        return self._image_fingerprint()

    def install(self, apply: Apply) -> Callable[[], None]:
        return self._host.install(apply)

    def merge(self, projections: Mapping[str, CalibratedProjection], strength: float) -> None:
        self._host.merge(projections, strength)
