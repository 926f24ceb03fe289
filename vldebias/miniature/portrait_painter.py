"""Paints cartoon people: uniform and headgear tell the profession, hair and beard the gender presentation."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.miniature.canvas import SIZE, Canvas, Frame
from vldebias.miniature.hashing import Draws, shuffled
from vldebias.miniature.people import PROFESSIONS

__all__ = ["Looks", "paint"]

BEARD_SHARE = 0.6  # of the men


class Looks(NamedTuple):
    """What a portrait shows, (n,) indices each."""

    profession: NDArray[np.int64]
    gender: NDArray[np.int64]
    tone: NDArray[np.int64]
    age: NDArray[np.int64]
    hair: NDArray[np.int64]


def _colours(*rows: tuple[float, float, float]) -> NDArray[np.float32]:
    return np.array(rows, np.float32)


_SKIN = _colours((0.98, 0.86, 0.76), (0.90, 0.73, 0.58), (0.76, 0.57, 0.42), (0.55, 0.38, 0.26), (0.34, 0.22, 0.15))
_HAIR = _colours((0.10, 0.07, 0.05), (0.36, 0.21, 0.10), (0.88, 0.74, 0.38), (0.60, 0.22, 0.08))
_GREY = _colours((0.74, 0.74, 0.76))
_EYES = _colours((0.05, 0.05, 0.08))
_LIPS = _colours((0.65, 0.20, 0.20))
_UNIFORMS = _colours(
    (0.95, 0.95, 0.97),
    (0.30, 0.75, 0.75),
    (0.85, 0.70, 0.15),
    (0.12, 0.17, 0.40),
    (0.30, 0.45, 0.75),
    (0.08, 0.08, 0.08),
    (0.95, 0.50, 0.10),
    (0.20, 0.50, 0.25),
    (0.60, 0.30, 0.60),
    (0.60, 0.60, 0.65),
    (0.85, 0.15, 0.20),
    (0.95, 0.50, 0.70),
)
# Headgear: a shape and its colour; "none" first.
_HEADGEAR: tuple[tuple[str, tuple[float, float, float]], ...] = (
    ("none", (0.0, 0.0, 0.0)),
    ("cap", (0.95, 0.95, 0.95)),
    ("helmet", (0.85, 0.10, 0.10)),
    ("tall hat", (0.97, 0.97, 0.97)),
    ("brimmed hat", (0.85, 0.75, 0.35)),
    ("beret", (0.55, 0.10, 0.25)),
    ("goggles", (0.20, 0.60, 0.90)),
    ("headband", (0.95, 0.95, 0.20)),
    ("bubble", (0.70, 0.85, 0.95)),
    ("helmet", (0.95, 0.80, 0.10)),
    ("cap", (0.10, 0.13, 0.35)),
)
# Each profession is one combination of uniform and headgear.
_COMBINATION = shuffled(len(_UNIFORMS) * len(_HEADGEAR), "profession looks")[: len(PROFESSIONS)]
UNIFORM, HEADGEAR = np.divmod(_COMBINATION, len(_HEADGEAR))


def paint(draws: Draws, looks: Looks) -> torch.Tensor:
    """(n, 3, 32, 32) pictures of the given looks."""
    canvas = Canvas(draws.n)
    frame = Frame(0.5 + draws.uniform("x", -0.04, 0.04), 0.45 + draws.uniform("y", -0.03, 0.03))
    canvas.paint(np.ones((draws.n, SIZE, SIZE), bool), draws.uniforms("wall", 3, 0.45, 0.95))
    skin = _SKIN[looks.tone] * draws.uniform("skin light", 0.95, 1.04)[:, None]
    natural = _HAIR[looks.hair] * draws.uniform("hair light", 0.85, 1.1)[:, None]
    hair = np.where(looks.age[:, None] == 1, _GREY * draws.uniform("grey light", 0.9, 1.1)[:, None], natural)
    _paint_figure(canvas, frame, looks, hair, skin, draws)
    _paint_face(canvas, frame, looks, hair, skin, draws)
    _paint_headgear(canvas, frame, looks, draws)
    canvas.add_noise(draws, 0.02)
    return canvas.to_tensor()


def _paint_figure(
    canvas: Canvas,
    frame: Frame,
    looks: Looks,
    hair: NDArray[np.float32],
    skin: NDArray[np.float32],
    draws: Draws,
) -> None:
    """Long hair behind, uniform, neck and head."""
    long_hair = frame.ellipse(0, 0.02, 0.27, 0.3) | frame.box(-0.27, 0.27, 0, 0.33)
    canvas.paint(long_hair & _each(looks.gender == 1), hair)
    uniform = _UNIFORMS[UNIFORM[looks.profession]] * draws.uniforms("uniform light", 3, 0.9, 1.08)
    canvas.paint(frame.ellipse(0, 0.62, 0.42, 0.38) & (frame.y > 0.3), np.clip(uniform, 0, 1))
    canvas.paint(frame.box(-0.07, 0.07, 0.15, 0.32), skin * 0.93)
    canvas.paint(frame.ellipse(0, 0, 0.18, 0.23), skin)


def _paint_face(
    canvas: Canvas,
    frame: Frame,
    looks: Looks,
    hair: NDArray[np.float32],
    skin: NDArray[np.float32],
    draws: Draws,
) -> None:
    """Fringe, beard, wrinkles, eyes and lips."""
    fringe = np.where(looks.gender == 1, -0.08, -0.1)[:, None, None]
    canvas.paint(frame.ellipse(0, -0.03, 0.2, 0.25) & (frame.y < fringe), hair)
    bearded = (looks.gender == 0) & (draws.uniform("beard") < BEARD_SHARE)
    canvas.paint(frame.ellipse(0, 0.05, 0.17, 0.2) & (frame.y > 0.09) & _each(bearded), hair * 0.9)
    wrinkles = frame.box(-0.14, -0.04, 0.03, 0.065) | frame.box(0.04, 0.14, 0.03, 0.065)
    canvas.paint(wrinkles & _each(looks.age == 1), skin * 0.72)
    canvas.paint(frame.ellipse(-0.07, 0, 0.022, 0.025) | frame.ellipse(0.07, 0, 0.022, 0.025), _EYES)
    canvas.paint(frame.box(-0.05, 0.05, 0.098, 0.122), _LIPS)


def _paint_headgear(canvas: Canvas, frame: Frame, looks: Looks, draws: Draws) -> None:
    kind = HEADGEAR[looks.profession]
    light = draws.uniform("headgear light", 0.92, 1.05)[:, None]
    for k, (shape, colour) in enumerate(_HEADGEAR):
        mask = _headgear(frame, shape) & _each(kind == k)
        canvas.paint(mask, np.clip(np.array(colour, np.float32) * light, 0, 1))


def _headgear(frame: Frame, shape: str) -> NDArray[np.bool_]:
    """(n, 32, 32) mask of a shape of headgear, on every image."""
    if shape == "cap":
        return frame.box(-0.2, 0.2, -0.25, -0.12)
    if shape == "helmet":
        return frame.ellipse(0, -0.1, 0.24, 0.2) & (frame.y < -0.08)
    if shape == "tall hat":
        return frame.box(-0.17, 0.17, -0.42, -0.13)
    if shape == "brimmed hat":
        return frame.box(-0.33, 0.33, -0.17, -0.11) | frame.box(-0.17, 0.17, -0.28, -0.13)
    if shape == "beret":
        return frame.ellipse(-0.05, -0.2, 0.25, 0.08)
    if shape == "goggles":
        return frame.box(-0.17, 0.17, -0.045, 0.045)
    if shape == "headband":
        return frame.box(-0.18, 0.18, -0.145, -0.095)
    if shape == "bubble":
        return frame.ellipse(0, 0, 0.33, 0.38) & ~frame.ellipse(0, 0, 0.29, 0.335)
    return np.zeros(frame.x.shape, bool)


def _each(condition: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return condition[:, None, None]
