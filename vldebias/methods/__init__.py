"""Methods: what is fitted to prompts and perhaps to images, and the edits of embeddings that come out.

`METHODS` has them by name. Adding one is `register_method`, or an entry point of the group "vldebias.methods".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError
from vldebias.gone import missing
from vldebias.methods.auto import Auto
from vldebias.methods.bound import Bound
from vldebias.methods.boundary import Boundary, class_offset, with_offset
from vldebias.methods.bounded import Bounded
from vldebias.methods.closed_form import ClosedForm, Term
from vldebias.methods.diagnostics import Diagnostics
from vldebias.methods.labelled import Labelled, ZeroShotLabels, labelled
from vldebias.methods.leaning import Leaning
from vldebias.methods.method import METHODS, Method, Need, Problem, Show, get_method, register_method
from vldebias.methods.rank_shares import RankShares, TargetShares
from vldebias.methods.reference import Reference
from vldebias.methods.rivals import (
    INLP,
    LEACE,
    PRISM,
    SFID,
    SPD,
    BendVLM,
    ClipClip,
    DeAR,
    Entigen,
    FairDiffusion,
    FairImagen,
    Lian,
    RoboShot,
    Sega,
    Suffix,
)
from vldebias.methods.shares import Shares
from vldebias.methods.stated import StatedValue
from vldebias.methods.steer import SamplingMethod, Steer, Steering
from vldebias.methods.uce import UCE, UCEAll
from vldebias.methods.weighted import Weighted, WeightedValues

__all__ = [
    "INLP",
    "LEACE",
    "METHODS",
    "PRISM",
    "SFID",
    "SPD",
    "UCE",
    "Auto",
    "BendVLM",
    "Bound",
    "Boundary",
    "Bounded",
    "ClipClip",
    "ClosedForm",
    "DeAR",
    "Diagnostics",
    "Entigen",
    "FairDiffusion",
    "FairImagen",
    "Labelled",
    "Leaning",
    "Lian",
    "Method",
    "Need",
    "Problem",
    "RankShares",
    "Reference",
    "RoboShot",
    "SamplingMethod",
    "Sega",
    "Shares",
    "Show",
    "StatedValue",
    "Steer",
    "Steering",
    "Suffix",
    "TargetShares",
    "Term",
    "UCEAll",
    "Weighted",
    "WeightedValues",
    "ZeroShotLabels",
    "class_offset",
    "get_method",
    "labelled",
    "load_edit",
    "load_edits",
    "register_method",
    "with_offset",
]


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)


def load_edit(directory_or_repo: str | Path, *, revision: str | None = None, token: str | None = None) -> Edit:
    """An edit of any kind that `save_pretrained` or `push_to_hub` wrote, from a folder or a hub repository.

    Raises:
        InvalidInputError: no such folder or repository, damaged files, or a kind that no installed package knows.
    """
    list(METHODS)  # those of other packages bring their own kinds
    edit: Edit = Edit.from_pretrained(directory_or_repo, revision=revision, token=token)
    return edit


def load_edits(directory: str | Path) -> Mapping[str, Edit]:
    """Role -> edit, from a folder with one folder per role, as `vldebias debias --out` writes.

    Raises:
        InvalidInputError: no such folders.
    """
    folder = Path(directory)
    roles = sorted(path.parent for path in folder.glob("*/config.json"))
    if not roles:
        raise InvalidInputError(
            f"{folder}: expected one folder per role with a config.json, as `vldebias debias --out` writes"
        )
    return {path.name: load_edit(path) for path in roles}
