"""The rows and measures of eval/image_side.py: one projection on texts, images or both, and what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, log
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.api import fit_projection
from vldebias.data import Labels, cross
from vldebias.evaluation.groups.figures import Classified, GroupFigures
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Figure, Protocol
from vldebias.evaluation.texts import Texts
from vldebias.hosts.sides import IMAGE, SIDES, TEXT
from vldebias.metrics.rankings import log_ratios, rankings
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

__all__ = ["LAM", "METHODS", "Row", "Search", "class_part", "fitted", "rank_kept", "search_part"]

Floats = NDArray[np.float64]
METHODS = ("orth", "orth-cali", "cali", "cali+equalise")
LAM = 1000.0


@dataclass(frozen=True)
class Row:
    """One projection on one side; unit: images are normalised after it, as a model does."""

    method: str = "none"
    side: str = ""
    projection: CalibratedProjection | None = None
    unit: bool = True

    @property
    def name(self) -> str:
        """What tables call it."""
        return ", ".join(filter(None, (self.method, self.side, "" if self.unit else "products")))

    def of(self, seam: str) -> CalibratedProjection | None:
        """The projection at a seam, None where it is left alone."""
        return self.projection if self.side and seam in SIDES[self.side] else None

    def texts(self, texts: Texts, prompts: Sequence[str], keep_stated: bool = True) -> Tensor:
        """Normalised texts (n, d)."""
        return texts.under(prompts, self.of(TEXT), keep_stated=keep_stated)

    def images(self, rows: Tensor) -> Tensor:
        """Images (n, d) from normalised ones."""
        projection = self.of(IMAGE)
        changed = rows if projection is None else projection(rows)
        return normalize(changed, dim=1) if self.unit else changed


def fitted(texts: Texts, prompts: PromptSet, reference: Tensor) -> list[Row]:
    """Every method on every side, "none" first; on the image side also without normalising after it."""
    found = [Row()]
    for method in METHODS:
        name, _, images = method.partition("+")
        given = reference if images else None
        projection = fit_projection(texts.host, prompts, method=name, lam=LAM, reference_images=given)
        found += [Row(method, side, projection) for side in SIDES]
        found.append(Row(method, "image", projection, unit=False))
    return found


@dataclass(frozen=True)
class Search:
    """A gallery, the column to be fair in, queries, and prompts that state a value: value -> prompts."""

    texts: Texts
    images: Tensor
    groups: Labels
    queries: tuple[str, ...]
    stated: Mapping[str, tuple[str, ...]]
    k: int

    def scores(self, row: Row, prompts: Sequence[str]) -> Floats:
        """Scores (n prompts, n images)."""
        return (row.texts(self.texts, prompts) @ row.images(self.images).T).numpy()

    def measure(self, row: Row) -> dict[str, Floats]:
        """Metric -> values of one row of the table, each over queries, stated prompts or images."""
        scores, base = self.scores(row, self.queries), self.scores(Row(), self.queries)
        prior = np.full(len(self.groups.names), 1 / len(self.groups.names))
        best = self.groups.codes[rankings(scores)]
        queries = self.texts.embed(self.queries)
        return {
            f"max_skew@{self.k}": log_ratios(best, self.k, prior).max(axis=1),
            "rank_kept": rank_kept(base, scores, self.groups.codes),
            f"stated@{self.k}": self.stated_share(row),
            "query_cosine": (row.texts(self.texts, self.queries) * queries).sum(1).numpy(),
            "image_cosine": (normalize(row.images(self.images), dim=1) * self.images).sum(1).numpy(),
        }

    def stated_share(self, row: Row) -> Floats:
        """Share of the first k images (s,) that show what the prompt states."""
        found = []
        for value, prompts in self.stated.items():
            best = self.groups.codes[rankings(self.scores(row, prompts))[:, : self.k]]
            found.append((best == self.groups.names.index(value)).mean(axis=1))
        return np.concatenate(found)

    def floor(self) -> float:
        """Expected MaxSkew@k of a random ranking of two groups: a hypergeometric mean."""
        a, b = (int((self.groups.codes == code).sum()) for code in (0, 1))
        chances = [comb(a, x) * comb(b, self.k - x) / comb(a + b, self.k) for x in range(self.k + 1)]
        return sum(p * log(2 * max(x, self.k - x) / self.k) for x, p in enumerate(chances))


def rank_kept(before: Floats, after: Floats, groups: NDArray[np.int64]) -> Floats:
    """Spearman's correlation (q,) of two score matrices (q, n), inside each group, mean over groups."""

    def within(group: int) -> Floats:
        one, other = (_standard(rankdata(scores[:, groups == group], axis=1)) for scores in (before, after))
        return (one * other).mean(axis=1)

    return np.mean([within(group) for group in np.unique(groups)], axis=0)


def _standard(ranks: Floats) -> Floats:
    return (ranks - ranks.mean(axis=1, keepdims=True)) / ranks.std(axis=1, keepdims=True)


BETTER = {"max_skew": "lower"}
OVER = {"stated": "stated prompts", "image_cosine": "images"}


def search_part(search: Search, rows: Sequence[Row], protocol: Protocol) -> Part:
    """Figures of all rows; intervals over queries, stated prompts or images, given the others."""
    measured = {row.name: search.measure(row) for row in rows}
    found = []
    for metric in measured["none"]:
        values = {name: metrics[metric] for name, metrics in measured.items()}
        kind = metric.partition("@")[0]
        n = {OVER.get(kind, "queries"): len(values["none"]), "gallery": len(search.groups)}
        found += figures(Measured(protocol.task, metric, BETTER.get(kind, "higher"), n, values, details=_details(rows)))
    value = search.floor()
    n = {"gallery": len(search.groups)}
    at_random = Figure(
        task=protocol.task,
        metric=f"max_skew@{search.k}",
        method="random",
        value=value,
        interval=(value, value),
        better="lower",
        n=n,
    )
    return Part([*found, at_random], protocol)


def class_part(
    images: Tensor, rows: Sequence[Row], classes: Callable[[Row], Tensor], label: Labels, by: Labels, protocol: Protocol
) -> Part:
    """Worst group and average of nearest class texts; groups are label x by. Intervals over images.

    Of rows that are not normalised there is nothing to tell: the length of an image does not choose its class.
    """
    rows = [row for row in rows if row.unit]
    right = {row: ((row.images(images) @ classes(row).T).argmax(1).numpy() == label.codes) for row in rows}
    methods = [Classified(row.name, right[row], _details([row])[row.name]) for row in rows]
    found = GroupFigures(right[rows[0]], cross(label, by)).overall(protocol.task, methods)
    return Part(found, protocol)


def _details(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    with_lam = ("cali", "orth-cali", "cali+equalise")
    return {row.name: {"lam": LAM} if row.method in with_lam else {} for row in rows}
