"""What a retrieval is asked to measure, checked, and the protocol that says so beside the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vldebias.data import Embeddings, Labels
from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import Protocol
from vldebias.evaluation.retrieval.skew import Gallery, Rules
from vldebias.evaluation.retrieval.utility import Utility
from vldebias.evaluation.texts import Texts
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

__all__ = ["Attribute", "Setting"]

_INTERVALS = {
    "queries": "mean over queries: bootstrap over queries, given the gallery; one query: bootstrap over images",
    "images": "bootstrap over images of the gallery, given the queries",
}
_ABOUT = ("data_fingerprint", "preprocessing", "dtype", "source")  # what the figures depend on, of what is known
_RECENTRED = "over images: percentiles of resampled galleries, moved to have their mean at the value"


@dataclass(frozen=True)
class Setting:
    """What all attributes of one evaluation share; see `evaluate_retrieval`. images: (n, d) normalised float32.

    Raises:
        InvalidInputError: no queries or one twice, `resample` out of its range, a utility that the gallery does not
            have, texts and images of different widths.
    """

    gallery: Embeddings
    images: Tensor
    texts: Texts
    queries: tuple[str, ...]
    methods: tuple[str, ...]
    lam: float | None
    strength: float
    keep_stated: bool
    rules: Rules
    resample: str
    utility: Utility

    def __post_init__(self) -> None:
        if not self.queries or len(set(self.queries)) < len(self.queries):
            raise InvalidInputError(f"queries: expected one or more different texts, got {list(self.queries)}")
        if self.resample not in _INTERVALS:
            raise InvalidInputError(f"resample: expected 'queries' or 'images', got {self.resample!r}")
        self.utility.check(self.gallery)
        width = self.texts.embed(self.queries[:1]).shape[1]
        if width != self.gallery.dim:
            raise InvalidInputError(
                f"texts have width {width}, images {self.gallery.dim}: they are not of one model; embed both with one"
            )


@dataclass(frozen=True)
class Attribute:
    """One attribute of an evaluation.

    Attributes:
        task: name of its block of figures.
        name: column, or intersection of columns ("gender x race").
        sets: the prompt sets of its projection, solved jointly where there are several.
        labels: of every image; gallery: the images whose label is known.
        fitted: method -> projection, None for "none".
    """

    task: str
    name: str
    sets: Sequence[PromptSet]
    labels: Labels
    gallery: Gallery
    fitted: Mapping[str, CalibratedProjection | None]

    def details(self, strength: float) -> dict[str, dict[str, Any]]:
        """Method -> strength and lam of its figures; lam only where pairs have a weight."""
        return {
            method: {"strength": strength, "lam": _lam(projection)}
            for method, projection in self.fitted.items()
            if projection is not None
        }

    def protocol(self, s: Setting) -> Protocol:
        """All that is needed to repeat the figures of this attribute."""
        about = s.gallery.about
        details = self.details(s.strength)
        used = {m: {"method": p.method, "rank": p.rank, **details[m]} for m, p in self.fitted.items() if p is not None}
        return Protocol(
            task=self.task,
            title=f"Retrieval, {self.name}: skew of the first results (as in Table 7.5)",
            description=(
                f"Text queries against a gallery of images; skew over {self.name} of the first k, mean over queries "
                f"and per query. Intervals: {_INTERVALS[s.resample]}."
            ),
            model=str(about.get("model") or s.texts.host.model_id or "unnamed model"),
            fingerprint=s.texts.host.fingerprint(),
            prompts="+".join(one.name for one in self.sets),
            prompts_hash="+".join(one.hash for one in self.sets),
            split=" ".join(str(about[key]) for key in ("data", "split") if key in about) or "unnamed gallery",
            methods={"none": {}, **used},
            seeds=[s.rules.seed],
            n={
                "images": len(self.gallery.labels),
                "unknown": int((~self.labels.known).sum()),
                "queries": len(s.queries),
                "groups": len(self.gallery.names),
            },
            settings={**self._conventions(s), **_utility_conventions(s.utility.apart_from(self.name))},
        )

    def _conventions(self, s: Setting) -> dict[str, Any]:
        """Everything that changes a figure of the skew, to be printed with it."""
        rules, gallery = s.rules, self.gallery
        floors = {f"max_skew@{k}": rules.floor or 0.0 for k in rules.k}
        floors |= {f"min_skew@{k}": rules.floor or 1 / (2 * k) for k in rules.k}
        return {
            "k": list(rules.k),
            "prior": rules.prior,
            "prior shares": dict(zip(gallery.names, gallery.prior().tolist(), strict=True)),
            "ties": rules.ties,
            "floor": floors,
            "groups": self.labels.counts,
            "groups left out, without an image": [name for name, n in self.labels.counts.items() if not n],
            "images left out, group unknown": int((~self.labels.known).sum()),
            "images left out, not readable": len(s.gallery.about.get("skipped", ())),
            "gallery": {key: s.gallery.about[key] for key in _ABOUT if key in s.gallery.about},
            "queries": list(s.queries),
            "keep_stated": s.keep_stated,
            "resample": s.resample,
            "resamples": rules.resamples,
            "seed": rules.seed,
            "intervals": f"95 %; {_INTERVALS[s.resample]}; {_RECENTRED}",
            "random": f"mean of {rules.resamples} random rankings, with the middle 95 % of a mean over the queries",
        }


def _lam(projection: CalibratedProjection) -> float | None:
    """The lam that all jointly solved sets share; None where nothing is weighted."""
    if projection.method in ("orth", "difference"):
        return None
    return projection.lam[0] if isinstance(projection.lam, tuple) else projection.lam


def _utility_conventions(utility: Utility) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if utility.captions:
        found["recall"] = "a hit is any image with the same caption; images drawn by caption; both directions and mean"
    if utility.classes:
        found["accuracy"] = {column: list(prompts) for column, prompts in utility.classes.items()}
    if utility.relevant:
        found["precision"] = f"an image is relevant where its {utility.relevant} is the one that the query names"
    return found
