"""Check precomputed text embeddings, without importing torch."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from vldebias.errors import InvalidInputError, shortened
from vldebias.utils.arrays import Floats

if TYPE_CHECKING:
    from torch import Tensor


class MissingTextsError(InvalidInputError):
    """Raised if precomputed text embeddings lack a text."""


class TextRows:
    """Store precomputed text embeddings as float64 rows.

    Attributes:
        row_of_prompt: a mapping from prompt to its embedding (d,), not normalised.

    Args:
        rows: a mapping from prompt to its embedding, (d,) or (1, d).

    Raises:
        InvalidInputError: If there are no prompts, the rows differ in width, or a row is zero or
            not finite.
    """

    def __init__(self, rows: Mapping[str, ArrayLike | Tensor]) -> None:
        self.row_of_prompt: dict[str, Floats] = {}
        for prompt, values in rows.items():
            if hasattr(values, "detach"):
                values = values.detach().cpu().double().numpy()
            row = np.asarray(values, dtype=np.float64)
            self.row_of_prompt[prompt] = row[0] if row.shape[:-1] == (1,) else row
        shapes = {row.shape for row in self.row_of_prompt.values()}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise InvalidInputError(
                "text embeddings: expected rows (d,) of the same width, got"
                f" {shortened(str(sorted(shapes)), 60)}; to use a model's state dict, load it into"
                " the model and pass that"
            )
        # Rows that are zero or not finite cannot be normalised.
        rows_of_prompts = self.row_of_prompt.items()
        bad = [text for text, row in rows_of_prompts if not (np.isfinite(row).all() and row.any())]
        if bad:
            raise InvalidInputError(
                f"text embeddings: the rows of {len(bad)} prompts are zero or not finite, such as"
                f" {bad[:3]}; embed these prompts again"
            )

    def check(self, prompts: Sequence[str]) -> None:
        """Raise an InvalidInputError if any of the prompts has no row."""
        check_present(
            prompts,
            self.row_of_prompt,
            "add them (`vldebias eval show SUITE --texts` lists them), or evaluate with the model",
        )

    def embed(self, prompts: Sequence[str]) -> Floats:
        """Return the L2-normalised rows (n, d) of prompts.

        Raises:
            InvalidInputError: If any of the prompts has no row.
        """
        self.check(prompts)
        rows = np.stack([self.row_of_prompt[prompt] for prompt in prompts])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def check_present(texts: Sequence[str], rows: Container[str], remedy: str) -> None:
    """Raise a MissingTextsError if any of the texts has no row.

    Args:
        texts: the texts that are needed.
        rows: a mapping from text to row, which may compute its rows on request.
        remedy: what the message advises.
    """
    missing = [text for text in texts if text not in rows]
    if missing:
        raise MissingTextsError(
            f"text embeddings: {len(missing)} of {len(texts)} prompts are missing, such as"
            f" {missing[:3]}; {remedy}"
        )
