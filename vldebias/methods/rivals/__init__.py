"""The field's methods beside those of this package, each by the same name in every command, table and page."""

from typing import Any

from vldebias.gone import missing
from vldebias.methods.rivals.bend import BendVLM
from vldebias.methods.rivals.dear import DeAR
from vldebias.methods.rivals.edits import Affine, Residual, TwoTowers
from vldebias.methods.rivals.erasure import INLP, LEACE, SFID, ClipClip
from vldebias.methods.rivals.insights import PRISM, RoboShot
from vldebias.methods.rivals.wording import EachValue, Entigen, Suffix

__all__ = [
    "INLP",
    "LEACE",
    "PRISM",
    "SFID",
    "Affine",
    "BendVLM",
    "ClipClip",
    "DeAR",
    "EachValue",
    "Entigen",
    "Residual",
    "RoboShot",
    "Suffix",
    "TwoTowers",
]


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
