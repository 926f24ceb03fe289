"""The field's methods beside those of this package, each by the same name in every command, table and page."""

from typing import Any

from vldebias.gone import missing
from vldebias.methods.rivals.bend import BendVLM
from vldebias.methods.rivals.dear import DeAR
from vldebias.methods.rivals.edits import Affine, Residual, TwoTowers
from vldebias.methods.rivals.erasure import INLP, LEACE, SFID, SPD, ClipClip
from vldebias.methods.rivals.fair_diffusion import FairDiffusion, Sega
from vldebias.methods.rivals.fair_pca import FairImagen
from vldebias.methods.rivals.half_way import Lian
from vldebias.methods.rivals.insights import PRISM, RoboShot
from vldebias.methods.rivals.wording import EachValue, Entigen, Suffix

__all__ = [
    "INLP",
    "LEACE",
    "PRISM",
    "SFID",
    "SPD",
    "Affine",
    "BendVLM",
    "ClipClip",
    "DeAR",
    "EachValue",
    "Entigen",
    "FairDiffusion",
    "FairImagen",
    "Lian",
    "Residual",
    "RoboShot",
    "Sega",
    "Suffix",
    "TwoTowers",
]


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
