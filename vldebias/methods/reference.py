"""Hold the image features that methods are fitted to, with or without labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError


@dataclass(frozen=True, eq=False)
class Reference:
    """Hold image features, their labels if any, and how to split them by zero-shot values.

    Attributes:
        features: (n, d) tensor or ndarray, or an iterable of batches (b, d); normalised or not.
        labels: column -> a value for each of the n images, as strings (None and "" are unknown) or an object with
            `codes` and `names`; only used by methods that need labelled images (`vldebias.methods.labelled`).
        confidence: rows whose pseudo-label has a lower probability are left out; in [0, 1).
        within_classes: compare means within pseudo-classes, if the prompt set has at least two classes: groups score
            alike within a class (worst group). False: groups score alike overall (shares of a ranking).
        logit_scale: inverse temperature of the probabilities; 100 in CLIP models.

    Raises:
        InvalidInputError: a number outside its range.
    """

    features: Any
    confidence: float = 0.0
    within_classes: bool = True
    logit_scale: float = 100.0
    labels: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < 1 or not self.logit_scale > 0:
            raise InvalidInputError(
                "expected a confidence in [0, 1) and a logit_scale above 0, got "
                f"{self.confidence} and {self.logit_scale}"
            )

    def read(self, rows: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the zero-shot value (b,) of each unit row (b, d) among unit texts (a, d), and its probability (b,).

        Raises:
            InvalidInputError: rows and texts have different widths.
        """
        if rows.shape[1] != texts.shape[1]:
            raise InvalidInputError(
                f"reference: image features have width {rows.shape[1]}, texts {texts.shape[1]}; embed both with one "
                "model"
            )
        probability, value = (self.logit_scale * rows @ texts.T).softmax(1).max(1)
        return value, probability

    def batches(self, size: int = 4096) -> Iterator[Tensor]:
        """Yield the features as L2-normalised float64 batches (b, d).

        Raises:
            InvalidInputError: features are not floats (n, d), not finite, or zero in a row.
        """
        whole = getattr(self.features, "features", self.features)  # data.Embeddings hold them under that name
        parts = [whole] if hasattr(whole, "shape") else whole
        for some in (part[start : start + size] for part in parts for start in range(0, len(part), size)):
            rows = some.detach().cpu() if isinstance(some, Tensor) else torch.from_numpy(some.copy())
            if rows.ndim != 2 or not rows.is_floating_point():
                came = f"{rows.dtype} {tuple(rows.shape)}"
                raise InvalidInputError(f"reference: expected image features (n, d), got {came}")
            lengths = rows.double().norm(dim=1, keepdim=True)
            if bad := int((~lengths.isfinite() | (lengths == 0)).sum()):
                raise InvalidInputError(f"reference: {bad} of {len(rows)} image features are zero or not finite")
            yield rows.double() / lengths
