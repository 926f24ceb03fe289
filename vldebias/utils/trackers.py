"""Write names of figures so that experiment trackers accept them."""

from __future__ import annotations

import re

# MLflow takes letters, digits and _ - . / and blanks; it refuses "@", and ":" on Windows.
_REFUSED = re.compile(r"[^\w\-. /]", re.ASCII)
_LONGEST = 250  # characters that MLflow stores


def tracker_name(name: str) -> str:
    """Return a name that MLflow, Weights & Biases and TensorBoard accept.

    >>> tracker_name("max_skew@20"), tracker_name("recall@1 image->text")
    ('max_skew_at_20', 'recall_at_1 image to text')
    """
    text = name.replace("@", "_at_").replace("->", " to ").replace("+", "_and_")
    text = _REFUSED.sub("_", text)
    # A path that MLflow would take for another one, such as "a//b" and "../a".
    parts = [part.strip(". ") for part in text.split("/")]
    return "/".join(filter(None, parts))[:_LONGEST] or "figure"
