"""Text embeddings in the place of a model, for users without the model: an auditor, or a model behind an API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.base import Apply, Host


class TextTable(Host):
    """Text embeddings that were computed before, in the place of a model: fits and measures, attaches to nothing.

    Args:
        rows: prompt -> embedding (d,), or (1, d) as a model gives it; tensor, ndarray or list.
        model_id: which model they come from.

    Raises:
        InvalidInputError: no prompts, or rows that are not (d,) of one width, finite and of a length above 0.
    """

    name = "table of text embeddings"
    roles = ("joint",)
    exclusive_modules = ()

    def __init__(self, rows: Mapping[str, Any], model_id: str | None = None) -> None:
        wide = {prompt: torch.as_tensor(row).detach().cpu().double() for prompt, row in rows.items()}
        wide = {prompt: row[0] if row.ndim == 2 and len(row) == 1 else row for prompt, row in wide.items()}
        shapes = {tuple(row.shape) for row in wide.values()}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise InvalidInputError(f"text embeddings: expected rows (d,) of one width, got {sorted(shapes) or 'none'}")
        bad = [prompt for prompt, row in wide.items() if not (row.isfinite().all() and row.any())]
        if bad:
            raise InvalidInputError(f"text embeddings: {len(bad)} rows are zero or not finite, such as {bad[:3]}")
        self._rows = {prompt: normalize(row, dim=0) for prompt, row in wide.items()}
        self.model_id = model_id

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        """The stored rows of `prompts`, normalised.

        Raises:
            InvalidInputError: prompts that are not in the table.
        """
        missing = [prompt for prompt in prompts if prompt not in self._rows]
        if missing:
            raise InvalidInputError(
                f"text embeddings: {len(missing)} of {len(prompts)} prompts are not in the file, such as "
                f"{missing[:3]}; store their embeddings too (`vldebias eval show SUITE --texts` lists "
                "them), or evaluate with the model"
            )
        return {(role, prompt): self._rows[prompt] for prompt in prompts}

    def dim(self, role: str) -> int:
        """Width of the rows."""
        return len(next(iter(self._rows.values())))

    def space(self, role: str) -> str:
        """The name of this space."""
        return "table.joint"

    def install(self, apply: Apply) -> Callable[[], None]:
        """Refused: there is nothing to attach to."""
        raise UnsupportedHostError(f"{self.name}: attaching needs the model itself")

    def merge(self, edits: Mapping[str, Edit], strength: float) -> None:
        """Refused: there are no weights."""
        raise UnsupportedHostError(f"{self.name}: merging needs the model itself")
