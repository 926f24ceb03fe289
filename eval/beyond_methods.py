"""The rows of the table in eval/beyond.py: every method as what it does to texts and to images of one model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.nn.functional import normalize

from vldebias.api import fit_projection
from vldebias.bounded import Bound
from vldebias.choosing import BOUND
from vldebias.equalise import Reference
from vldebias.errors import VldebiasWarning
from vldebias.evaluation.result import Figure
from vldebias.fitting import METHODS
from vldebias.hosts import Host
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet
from vldebias.ranking import TargetShares
from vldebias.targeting import fit_shares

__all__ = ["FIXED", "LOSS", "Row", "equalised", "exact", "image_methods", "text_methods"]

FIXED = ("none", *METHODS, "difference", "equalise", "cali+equalise")  # what "auto" is compared with
LOSS = 0.02  # of cosine, for the row "bounded"


@dataclass(frozen=True)
class Row:
    """A method: the projection of the texts and that of the images, None where a side is left alone."""

    texts: CalibratedProjection | TargetShares | None = None
    images: CalibratedProjection | None = None

    def of_texts(self, rows: Tensor) -> Tensor:
        """L2-normalised texts (n, d) under this method."""
        return _projected(rows, self.texts)

    def of_images(self, rows: Tensor) -> Tensor:
        """L2-normalised image features (n, d) under this method."""
        return _projected(rows, self.images)

    def about(self) -> dict[str, Any]:
        """What a protocol says of it."""
        sides = {"texts": self.texts, "images": self.images}
        return {side: _facts(p) for side, p in sides.items() if p is not None}


def _facts(moved: CalibratedProjection | TargetShares) -> dict[str, Any]:
    if isinstance(moved, TargetShares):
        return {"shares": dict(zip(moved.names, moved.shares.tolist(), strict=True)), "top": moved.top}
    return {"method": moved.method, "lam": moved.lam, "rank": moved.rank}


def _projected(rows: Tensor, projection: CalibratedProjection | TargetShares | None) -> Tensor:
    return normalize(rows if projection is None else projection(rows), dim=-1)


def text_methods(host: Host, prompts: PromptSet, neutral: Sequence[str] = ()) -> dict[str, Row]:
    """Methods that need prompts alone; neutral: texts that "bounded" keeps, the classes of the set by default."""
    settings = {
        **_FROM_TEXTS,
        "auto": {"method": "auto", "max_loss": replace(BOUND, neutral=tuple(neutral))},
        "bounded": {"method": "cali", "max_loss": Bound(LOSS, neutral=tuple(neutral))},
    }
    return _fitted(host, prompts, settings)


def image_methods(
    host: Host, prompts: PromptSet, reference: Reference, neutral: Sequence[str] = (), top: float | None = None
) -> dict[str, Row]:
    """All methods, where unlabelled images are at hand; top: k / n of a ranking, for target shares (uniform ones)."""
    images = {"reference_images": reference}
    settings = {
        **_FROM_TEXTS,
        "equalise": {"method": "equalise", **images},
        "cali+equalise": {"method": "cali", **images},
        "auto": {"method": "auto", "max_loss": replace(BOUND, neutral=tuple(neutral)), **images},
        "bounded": {"method": "cali", "max_loss": Bound(LOSS, neutral=tuple(neutral)), **images},
    }
    found = _fitted(host, prompts, settings)
    both = found["cali+equalise"].texts
    assert isinstance(both, CalibratedProjection)
    found["cali+equalise, image side"] = Row(images=both)
    found["cali+equalise, both sides"] = Row(both, both)
    if top is not None:
        found["target, uniform"] = Row(fit_shares(host, prompts, reference_images=reference, top=top, method="cali"))
    return found


def equalised(host: Host, prompts: PromptSet, reference: Reference, classes: Sequence[str]) -> dict[str, Row]:
    """cali+equalise inside pseudo-classes that are queries, for queries that are not among them."""
    within = replace(prompts, classes=tuple(classes), class_names=tuple(classes))
    settings = {"method": "cali", "reference_images": reference}
    return _fitted(host, within, {"cali+equalise, within queries": settings})


_FROM_TEXTS: Mapping[str, Mapping[str, Any]] = {method: {"method": method} for method in (*METHODS, "difference")}


def _fitted(host: Host, prompts: PromptSet, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Row]:
    """One row per setting, and "none" first; the warnings are what the figures show."""
    rows = {"none": Row()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VldebiasWarning)
        for name, given in settings.items():
            rows[name] = Row(fit_projection(host, prompts, lam=_lam(given), **given))
    return rows


def _lam(given: Mapping[str, Any]) -> float | None:
    """The paper's lambda for models everywhere, except where it is chosen."""
    return None if given["method"] == "auto" else 1000.0


def exact(
    task: str, metric: str, method: str, value: float, better: str, n: Mapping[str, int], subset: str = ""
) -> Figure:
    """A figure that nothing was drawn for."""
    return Figure(
        task=task,
        metric=metric,
        method=method,
        value=value,
        interval=(value, value),
        change=None,
        better=better,
        n=dict(n),
        subset=subset,
    )
