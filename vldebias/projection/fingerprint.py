"""Define the fingerprints that identify a model's weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

# Rounding to bfloat16 moves a tensor by 1.6e-3 of its norm, whereas fine-tuning moves it by at
# least 1%.
_TOLERANCE = 5e-3
# Tolerance for individual tensors. Rounding exceeds it in fewer than one in a million tensors.
_TOLERANCE_OF_TENSOR = 1.5e-2
# Running a model in bfloat16 moves a text embedding by 1% to 2% of its norm.
_TOLERANCE_OF_TEXT = 4e-2
# Numbers are compared relative to their tensor's norm, or to this value if it is larger.
_SMALLEST_NORM = 1e-3


class Fingerprint(BaseModel, frozen=True, extra="forbid"):
    """Identify weights by two numbers per tensor (`vldebias.hosts.host`).

    Attributes:
        structure: a hash of parameter names and shapes.
        tensors: each tensor's norm, and its dot product with a fixed vector.
        adapters: the norm of all LoRA weights added to these tensors, or 0. It is not part of the
            comparison of weights.
        texts: a few numbers derived from each of three text embeddings, or an empty tuple if no
            text could be embedded.
    """

    structure: str
    tensors: tuple[tuple[float, float], ...] = Field(min_length=1)
    adapters: float = 0.0
    texts: tuple[tuple[float, ...], ...] = ()

    def matches(self, fingerprint: Fingerprint | None) -> bool:
        """Return whether a fingerprint may identify the same weights, or True if it is None."""
        if fingerprint is None:
            return True
        if self.structure != fingerprint.structure or len(self.tensors) != len(fingerprint.tensors):
            return False
        # Rounding to bfloat16 may change the numbers, so they only agree within the tolerances.
        numbers = np.array(self.tensors)
        other_numbers = np.array(fingerprint.tensors)
        norms = np.maximum(numbers, other_numbers)[:, :1]
        deviation = np.abs(numbers - other_numbers) / np.maximum(norms, _SMALLEST_NORM)
        if not deviation.max() <= _TOLERANCE_OF_TENSOR:
            return False
        # Also compare all tensors together (2,), because fine-tuning may move each tensor by less
        # than its tolerance.
        root_mean_square = np.sqrt(np.square(deviation).mean(0))
        if not root_mean_square.max() <= _TOLERANCE:
            return False
        # The same weights embed text differently if their adapters differ.
        return not self.same_adapters(fingerprint) or self.same_texts(fingerprint)

    def same_texts(self, fingerprint: Fingerprint) -> bool:
        """Return whether both models embed the three texts identically, or True if unknown."""
        for numbers, other_numbers in zip(self.texts, fingerprint.texts, strict=False):
            distance = math.dist(numbers, other_numbers)
            if not distance <= _TOLERANCE_OF_TEXT * math.hypot(*numbers) < math.inf:
                return False
        return True

    def same_adapters(self, fingerprint: Fingerprint | None) -> bool:
        """Return whether a fingerprint has the same adapters, or True if it is None."""
        return fingerprint is None or math.isclose(
            self.adapters, fingerprint.adapters, rel_tol=_TOLERANCE
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return self.model_dump(mode="json", exclude_defaults=True)
