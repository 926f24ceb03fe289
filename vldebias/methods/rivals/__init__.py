"""The field's methods beside those of this package, each by the same name in every command, table and page."""

from vldebias.methods.rivals.bend import BendVLM
from vldebias.methods.rivals.dear import DeAR
from vldebias.methods.rivals.edits import Affine, Residual, TwoTowers
from vldebias.methods.rivals.erasure import INLP, LEACE, SFID, ClipClip
from vldebias.methods.rivals.insights import PRISM, PrismMini, RoboShot
from vldebias.methods.rivals.wording import AllValues, EachValue, Entigen, Suffix

__all__ = [
    "INLP",
    "LEACE",
    "PRISM",
    "SFID",
    "Affine",
    "AllValues",
    "BendVLM",
    "ClipClip",
    "DeAR",
    "EachValue",
    "Entigen",
    "PrismMini",
    "Residual",
    "RoboShot",
    "Suffix",
    "TwoTowers",
]
