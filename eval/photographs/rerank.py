"""Measure how often the interval for a re-ranked list of photographs contains the true share.

python -m eval.photographs.rerank --json eval/results/photographs_rerank.json

Every gallery is searched with all kinds of queries. The top results are re-ranked by default, with
estimated groups, some photographs are "checked" (their true group is passed to `vldebias.rerank`),
and the interval for each group is compared with its true share in the results. This is repeated
with different samples of checked photographs. Intervals for the coverage resample galleries (a data
set with an attribute), because lists from the same gallery share images and checks.

The baseline is "error rates of the gallery", which applies the exact share of each true group among
all photographs with a label to the results of every query.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import vldebias
from eval.experiments import embeddings
from eval.photographs import Floats, Rows, Strings, galleries, is_present, queries, texts, unit
from eval.tables import parser, resampled_ratio, run
from vldebias.errors import SuspectInputWarning
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.metrics import Metric
from vldebias.prompts import PromptSet
from vldebias.reranking import Positions

QUERIES = 12  # number of queries per gallery and sample
SAMPLES = 3  # number of samples of queries and of checked photographs
RESAMPLES = 2000
COMPOSITIONS = (None, (0.5, 0.5), (0.1, 0.9), (0.9, 0.1))  # shares of two groups; None: as found
NO_CHECKS = "error rates of the gallery"


@dataclass(frozen=True, eq=False)
class Gallery:
    """Photographs with labels for an attribute, and the inputs for re-ranking them.

    Attributes:
        name: The data set and the attribute.
        features: The unit features (n, d).
        true: The true groups (n,).
        prompts: A prompt set, or its name, for zero-shot labels.
        table: The text embeddings (d,).
        queries: The search queries.
    """

    name: str
    features: Floats
    true: Strings
    prompt_set: str | PromptSet
    table: Mapping[str, Floats]
    queries: Sequence[str]

    def composed(self, shares: Sequence[float] | None) -> Gallery:
        """Return a gallery with the given shares for the sorted groups, unless they are None."""
        if shares is None:
            return self
        members = [np.flatnonzero(self.true == group) for group in np.unique(self.true)]
        size = min(len(rows) / share for rows, share in zip(members, shares, strict=True))
        rng = np.random.default_rng(0)
        chosen = []
        for rows, share in zip(members, shares, strict=True):
            chosen.append(rng.permutation(rows)[: int(size * share)])
        rows = np.sort(np.concatenate(chosen))
        return replace(self, features=self.features[rows], true=self.true[rows])


def all_galleries() -> Iterator[Gallery]:
    """Yield all galleries, from a small model and from CLIP ViT-B/32."""
    found = []
    asked = [text for kind, listed in queries().items() if kind != "no person" for text in listed]
    for name, photos in galleries().items():
        for attribute, values in photos.labels.items():
            known = values != ""
            found.append(
                Gallery(
                    f"{name}, {attribute}",
                    photos.features[known],
                    values[known],
                    attribute,
                    texts(),
                    asked,
                )
            )
    if is_present(embeddings.FILE):
        found += celeba()
    for gallery in found:
        if len(np.unique(gallery.true)) == 2:
            for shares in COMPOSITIONS:
                yield gallery.composed(shares)
        else:
            n = len(np.unique(gallery.true))
            yield gallery
            yield gallery.composed([1 / n] * n)


def celeba() -> Iterator[Gallery]:
    """Yield CelebA galleries for gender and age, embedded with CLIP ViT-B/32."""
    gallery = embeddings.celeba()
    listed = [text for group in gallery.prompt_set.variants for text in group]
    aged = [text for text in listed if " old " in text]
    age = PromptSet(
        name="young-old",
        attributes={"young": ("young",), "old": ("old",)},
        variants=tuple((text.replace("an old", "a young"), text) for text in aged),
    )
    host = gallery.texts
    wanted = [*listed, *gallery.queries]
    vectors = unit(host.embed(wanted, host.roles[0]).numpy())
    table = dict(zip(wanted, vectors, strict=True))
    for attribute, prompts in {"gender": gallery.prompt_set, "age": age}.items():
        column = gallery.images.column(attribute)
        true = np.array(column.names)[column.codes]
        yield Gallery(
            f"CelebA, {attribute}",
            unit(gallery.rows.numpy()),
            true,
            prompts,
            table,
            gallery.queries,
        )


@dataclass(frozen=True)
class Design:
    """A rule for selecting photographs to check.

    Attributes:
        k: The number of displayed results.
        n: The number of checks.
        among: Where to sample: "list" (results of the same query), "lists" (results of all
            queries), "others" (results of other queries) or "gallery" (all photographs).
    """

    k: int
    n: int
    among: str

    def __str__(self) -> str:
        place = {
            "list": "of the list",
            "lists": "of the lists of all queries",
            "others": "of the lists of other queries",
            "gallery": "of the whole gallery",
        }
        return f"{self.n} {place[self.among]}, k {self.k}"


DESIGNS = (
    Design(50, 20, "list"),
    Design(50, 30, "list"),
    Design(50, 100, "lists"),
    Design(50, 100, "others"),
    Design(50, 20, "gallery"),
    Design(50, 100, "gallery"),
    Design(50, 300, "gallery"),
    Design(20, 100, "lists"),
    Design(20, 100, "gallery"),
)


def lists_of(gallery: Gallery, sample: int) -> Iterator[dict[str, Any]]:
    """Yield the coverage and width of the intervals for each list and design."""
    rng = np.random.default_rng([sample, len(gallery.true)])
    chosen = rng.permutation(len(gallery.queries))[:QUERIES]
    vectors = np.stack([gallery.table[gallery.queries[place]] for place in chosen])
    scores = (vectors.astype(np.float64) @ gallery.features.T.astype(np.float64)).round(12)
    rerank = partial(
        vldebias.rerank,
        features=gallery.features,
        attribute=gallery.prompt_set,
        model=gallery.table,
    )
    candidates = rerank(scores[0], 1).report.candidates
    labels = np.array(candidates.names)[candidates.codes]
    for k in {design.k for design in DESIGNS}:
        for first in np.asarray(rerank(scores, k)):
            covered = _by_error_rates(gallery.true, labels, first, rng)
            yield {"method": f"{NO_CHECKS}, k {k}", **covered}
    for design in DESIGNS:
        reports = []
        for rows, to_check in _checks(design, scores, rerank, rng):
            # As for users, a true group that is not the label of any photograph cannot be passed.
            checked = {row: true for row in to_check if (true := str(gallery.true[row])) in labels}
            reports += rerank(rows, design.k, checked=checked).reports
        for report in reports:
            ends = {}
            for group, (_, low, high) in (report.expected or {}).items():
                ends[group] = (low, high)
            covered = _covered(ends, gallery.true[report.order], np.unique(gallery.true))
            yield {"method": str(design), **covered}


def _checks(
    design: Design,
    scores: NDArray[np.float64],
    rerank: Callable[..., Positions],
    rng: np.random.Generator,
) -> Iterator[tuple[NDArray[np.float64], list[int]]]:
    """Yield the scores (q, n) of queries with the rows to check for them."""
    seed = int(rng.integers(1 << 31))
    if design.among == "list":
        for row in scores:
            yield row[None], rerank(row, design.k).to_check(design.n, seed=seed)
    elif design.among == "lists":
        yield scores, rerank(scores, design.k).to_check(design.n, seed=seed)
    elif design.among == "others":
        for half in (0, 1):
            other_half = scores[1 - half :: 2]
            yield scores[half::2], rerank(other_half, design.k).to_check(design.n, seed=seed)
    else:
        yield scores, rng.permutation(scores.shape[1])[: design.n].tolist()


def _covered(
    ends: Mapping[str, tuple[float, float]], true: Strings, groups: Sequence[str]
) -> dict[str, float]:
    """Return the share of groups whose interval contains the true share, and the mean width."""
    hits = []
    widths = []
    for group in groups:
        if group in ends:
            low, high = ends[group]
            share = float((true == group).mean())
            hits.append(low - 1e-9 <= share <= high + 1e-9)
            widths.append(high - low)
    if not hits:
        return {}
    return {"coverage": float(np.mean(hits)), "width": float(np.mean(widths))}


def _by_error_rates(
    true: Strings, labels: Strings, first: Rows, rng: np.random.Generator
) -> dict[str, float]:
    """Return the coverage and width based on the error rates in the entire gallery."""
    groups = np.unique(true)
    counts = np.zeros((1000, len(groups)))
    for label in np.unique(labels[first]):
        members = true[labels == label]
        rates = [float((members == group).mean()) for group in groups]
        counts += rng.multinomial(int((labels[first] == label).sum()), rates, size=1000)
    counts += rng.uniform(-0.5, 0.5, size=counts.shape)
    low, high = np.quantile(counts / len(first), [0.025, 0.975], axis=0).clip(0, 1)
    ends = dict(zip(map(str, groups), zip(low, high, strict=True), strict=True))
    return _covered(ends, true[first], groups)


METRICS = (
    Metric("coverage", "true shares inside their 95% interval", bounds=(0.0, 1.0)),
    Metric("width", "mean width of the intervals", bounds=(0.0, 1.0)),
)


def measured() -> TaskResult:
    """Return the coverage and width of the intervals."""
    records = []
    for gallery in all_galleries():
        for sample in range(SAMPLES):
            for record in lists_of(gallery, sample):
                records.append({"gallery": gallery.name, **record})
    table = pd.DataFrame(records)
    result = TaskResult(
        TaskProvenance(
            task="coverage of true shares",
            title="True shares of a re-ranked list: how often the interval covers them",
            description="Re-ranked by estimated groups; photographs, and CelebA by CLIP ViT-B/32.",
            settings={"queries": QUERIES, "samples": SAMPLES, "level": 0.95},
        )
    )
    for method, rows in table.groupby("method", sort=False):
        for metric in METRICS:
            sums = rows.dropna().groupby("gallery")[metric.name].agg(["sum", "count"]).to_numpy()
            mean, ends = resampled_ratio(sums, RESAMPLES)
            n = {"lists": int(sums[:, 1].sum()), "clusters": len(sums)}
            result.add(metric, str(method), mean, ends, n=n)
    return result


def main() -> None:
    arguments = parser(__doc__).parse_args()
    if not is_present():
        return
    with warnings.catch_warnings():
        # The warning that a group has too few candidates for its share is expected here.
        warnings.simplefilter("ignore", SuspectInputWarning)
        run("photographs_rerank", lambda: [measured()], arguments.json)


if __name__ == "__main__":
    main()
