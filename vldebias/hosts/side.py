"""Which side of an image-text model a projection acts on: its texts, its images, or both.

With P the projection, x an image and z a text before normalising, the model compares

    "text"     <x, P z> / (|x| |P z|)
    "image"    <P x, z> / (|P x| |z|),         where <P x, z> = <x, P^T z>
    "both"     <P x, P z> / (|P x| |P z|),     where <P x, P z> = <x, P^T P z>

It is one projection, fitted once. What stands between x and z is P, P^T or P^T P:

- orth, P0: symmetric and P0 P0 = P0, so the three numerators are one and only the norms differ;
- cali, C = (I + lam M)^-1: symmetric, so "text" and "image" differ in the norms alone; "both" is C^2, which shrinks
  each direction twice, 1 / (1 + lam s^2)^2 where one side shrinks it to 1 / (1 + lam s^2): about a larger lam;
- orth-cali, P* = P0 C: not symmetric. "text" is P0 C, "image" its transpose C P0, "both" C P0 C, which is symmetric.

An edit that was fitted for images, or has another map for them (`Edit.image`), names its side itself (`Edit.side`).
Which side to take, and what the norms do: docs/explanation/which-method.md.
"""

from __future__ import annotations

from vldebias.errors import InvalidInputError

TEXT, IMAGE = "joint", "image"
"""Roles of the two seams: the output of the text tower, and that of the image tower, in their joint space."""

SIDES = {"text": (TEXT,), "image": (IMAGE,), "both": (TEXT, IMAGE)}


def roles_of(side: str) -> tuple[str, ...]:
    """The roles of a side.

    Raises:
        InvalidInputError: an unknown side.
    """
    if side not in SIDES:
        raise InvalidInputError(f"side: expected one of {', '.join(SIDES)}, got {side!r}")
    return SIDES[side]
