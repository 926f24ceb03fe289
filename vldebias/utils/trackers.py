"""Convert metric names so that experiment trackers accept them."""

from __future__ import annotations

import re

# MLflow accepts letters, digits, _ - . / and spaces, but not "@", nor ":" on Windows.
_INVALID = re.compile(r"[^\w\-. /]", re.ASCII)
_MAX_LENGTH = 250  # maximum length that MLflow stores


def tracker_name(name: str) -> str:
    """Return a name that MLflow, Weights & Biases and TensorBoard accept.

    >>> tracker_name("max_skew@20"), tracker_name("recall@1 image->text")
    ('max_skew_at_20', 'recall_at_1 image to text')
    """
    text = name.replace("@", "_at_").replace("->", " to ").replace("+", "_and_")
    text = _INVALID.sub("_", text)
    # MLflow normalises names such as "a//b" and "../a", which could make them collide.
    parts = [part.strip(". ") for part in text.split("/")]
    return "/".join(filter(None, parts))[:_MAX_LENGTH] or "figure"
