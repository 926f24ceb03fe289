"""What went, and what to take in its place; whoever looks a name up and does not find it asks here."""

from __future__ import annotations

_NO_GAIN = "its figures were those of no edit (docs/generation/figures.md)"
_MIDPOINT = f"{_NO_GAIN}; take 'difference', or 'weighted-values' where a judge reads images"
_BALANCED = f"{_NO_GAIN}; take 'weighted-values', which is fitted to judged images as well"
_P0_AND_IMAGES = "take 'cali+equalise' or 'difference+equalise', or sum the terms: METHODS[{0!r}] + METHODS['equalise']"
_PRISM_MINI = "it ranks as 'orth' does; take 'orth', with side='image' for the images"
_ALL_VALUES = "take 'suffix', or write the words into the prompts"

METHODS = {
    **dict.fromkeys(("midpoint", "midpoint-end", "cali-midpoint"), _MIDPOINT),
    "balanced": _BALANCED,
    "orth+equalise": _P0_AND_IMAGES.format("orth"),
    "orth-cali+equalise": _P0_AND_IMAGES.format("orth-cali"),
    "leace-text": "take 'leace', which erases the attribute from images, or 'difference' for texts",
    "prism-mini": _PRISM_MINI,
    "all-values": _ALL_VALUES,
}
KINDS = {"affine": _MIDPOINT, "following": _BALANCED}
"""Kinds of saved edits that only methods of these had."""
NAMES = {
    **dict.fromkeys(("vldebias.methods.Affine", "vldebias.methods.Midpoint"), _MIDPOINT),
    **dict.fromkeys(("vldebias.methods.Balanced", "vldebias.methods.Following"), _BALANCED),
    "vldebias.methods.PrismMini": _PRISM_MINI,
    "vldebias.methods.rivals.AllValues": _ALL_VALUES,
}
"""Classes and functions by their full names."""


def missing(module: str, name: str) -> Exception:
    """The error of a module that has no such name, for its `__getattr__`.

    Of one that went an ImportError: `from module import name` puts a sentence of its own in the place of others.
    """
    instead = NAMES.get(f"{module}.{name}")
    if instead is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return ImportError(f"{name!r} went from {module!r}: {instead}")
