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

The norms: |P z| is the same for all images, so retrieval on the text side depends on P alone, and |P x| is the same for
all classes, so classification on the image side does. In retrieval on the image side |P x| has a say, and not a fair
one: images of one group lie farther out along what is removed, so less of them is left, and normalising lifts their
cosines with every text at once. On real CLIP embeddings this outweighs what equalising against means of images gains on
the text side (measured: "cali+equalise, image side" in eval/results/beyond.json). Ranked by the products <P x, z>
instead, images come in the order of the text side for every symmetric P.

What an image has lost, no text gets back. With P0 no image has a part along a spurious prompt any more (A^T P* x = 0):
each of them scores 0 with every image. And `keep_stated` is about texts: on the image side "a photo of a female doctor"
meets the same images as any other prompt and no longer finds women.

That is about an edit that is one map, as all closed forms are. One that was fitted for images, or has another map for
them (`Edit.image`), names its side itself (`Edit.side`).

So: the text side for retrieval, and wherever people may ask for an attribute by name. Either side for classification,
where orth-cali may do better on the images. The image side for features that others will search or classify with texts
of their own; keep them unnormalised (P x) where they are ranked. Both sides only after measuring: it is another method.
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
