"""Which side to project, the texts, the images or both? Measured on real CLIP embeddings and on the miniature world.

python -m eval.experiments.image_side                                      # print the tables
python -m eval.experiments.image_side --json eval/results/image_side.json  # and write them

One projection is fitted from prompts (and, for methods that use images, from unlabelled ones that are not measured on),
and applied to the texts, to the images or to both; what stands between image and text then is P, its transpose or P^T P
(`vldebias.hosts.side`). Prompts that state the attribute are left alone on the text side, as `vldebias.debias` does;
images state nothing. "products" are scores with projected images that are not normalised, as an index that ranks by
inner products may keep them; a model normalises. Beside the bias stands what it costs:

rank_kept        Spearman's correlation of the scores of images of one group before and after: is the order that has
                 nothing to do with the attribute still there?
stated@k         share of the first k images that show the stated attribute, for prompts that name it; 1 is right, and
                 what a random ranking gives is the share in the gallery
query_cosine     mean cosine of a query with itself, before and after; image_cosine, of an image

CelebA is read as in embeddings.py, and skipped with a message where it is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor
from torch.nn.functional import normalize

from eval.experiments.embeddings import LAM, World, celeba, chance, facts, file, worlds
from eval.experiments.run import parser, run, skip
from vldebias.api import fit_projection
from vldebias.data import Labels, cross
from vldebias.edit import Edit
from vldebias.evaluation.accuracies import GroupRows
from vldebias.evaluation.result import Provenance, TaskResult
from vldebias.evaluation.texts import Texts
from vldebias.hosts.side import IMAGE, SIDES, TEXT
from vldebias.methods import METHODS, Need
from vldebias.metrics.rankings import rankings
from vldebias.metrics.skew import log_ratios
from vldebias.prompts import PromptSet, load_prompts

Floats = NDArray[np.float64]
COMPARED = ("orth", "orth-cali", "cali", "cali+equalise")
REAL_K, WORLD_K = 50, 100
SEARCH = "Retrieval: skew in gender of the first images for queries that nothing was fitted on, and what it costs"
AGE = "Zero-shot old or young; groups are age x gender, the projections are about gender"
CLASSES = "Zero-shot landbird or waterbird; groups are label x place, the projections are about the place"


@dataclass(frozen=True)
class Row:
    """One edit on one side; unit: images are normalised after it, as a model does."""

    method: str = "none"
    side: str = ""
    edit: Edit | None = None
    unit: bool = True

    @property
    def name(self) -> str:
        """What tables call it."""
        return ", ".join(filter(None, (self.method, self.side, "" if self.unit else "products")))

    def at(self, seam: str) -> Edit | None:
        """The edit at a seam, None where it is left alone."""
        return self.edit if self.side and seam in SIDES[self.side] else None

    def texts(self, texts: Texts, prompts: Sequence[str], keep_stated: bool = True) -> Tensor:
        """Normalised texts (n, d)."""
        return texts.under(prompts, self.at(TEXT), keep_stated=keep_stated)

    def images(self, rows: Tensor) -> Tensor:
        """Images (n, d) from normalised ones."""
        edit = self.at(IMAGE)
        changed = rows if edit is None else edit(rows)
        return normalize(changed, dim=1) if self.unit else changed


def fitted(texts: Texts, prompts: PromptSet, images: Tensor, methods: Sequence[str] = COMPARED) -> list[Row]:
    """Every method on every side, "none" first; on the image side also without normalising after it."""
    rows = [Row()]
    for method in methods:
        reference = images if Need.IMAGES in METHODS[method].needs else None
        edit = fit_projection(texts.host, prompts, method=method, lam=LAM, reference=reference)
        rows += [Row(method, side, edit) for side in SIDES]
        rows.append(Row(method, "image", edit, unit=False))
    return rows


@dataclass(frozen=True, eq=False)
class Search:
    """A gallery (n, d) of two groups, queries that state nothing, and prompts that state a value: group -> prompts."""

    texts: Texts
    images: Tensor
    groups: Labels
    queries: tuple[str, ...]
    stated: Mapping[str, tuple[str, ...]]
    k: int

    def scores(self, row: Row, prompts: Sequence[str]) -> Floats:
        """(q, n), rounded: a prompt that the edit removes entirely would be ranked by the rounding of its zeros."""
        return (row.texts(self.texts, prompts) @ row.images(self.images).T).numpy().round(12)

    def measure(self, row: Row) -> dict[str, Floats]:
        """Metric -> values per query, stated prompt or image."""
        base, scores = self.scores(Row(), self.queries), self.scores(row, self.queries)
        best, uniform = self.groups.codes[rankings(scores)], np.array([0.5, 0.5])
        queries = self.texts.embed(self.queries)
        return {
            f"max_skew@{self.k}": log_ratios(best, self.k, uniform).max(axis=1),
            "rank_kept": rank_kept(base, scores, self.groups.codes),
            f"stated@{self.k}": self.stated_share(row),
            "query_cosine": (row.texts(self.texts, self.queries) * queries).sum(1).numpy(),
            "image_cosine": (normalize(row.images(self.images), dim=1) * self.images).sum(1).numpy(),
        }

    def stated_share(self, row: Row) -> Floats:
        """Share of the first k images (s,) that show what the prompt states."""
        shares = []
        for value, prompts in self.stated.items():
            best = self.groups.codes[rankings(self.scores(row, prompts))[:, : self.k]]
            shares.append((best == self.groups.names.index(value)).mean(axis=1))
        return np.concatenate(shares)

    def fill(self, rows: Sequence[Row], result: TaskResult) -> TaskResult:
        """Figures of all rows; intervals over queries, stated prompts or images, given the others."""
        measured = {row.name: self.measure(row) for row in rows}
        over = {f"stated@{self.k}": "stated prompts", "image_cosine": "images"}
        for metric in measured["none"]:
            values = {name: metrics[metric] for name, metrics in measured.items()}
            n = {over.get(metric, "queries"): len(values["none"]), "gallery": len(self.groups)}
            result.add_resampled(metric, values, better="lower" if metric.startswith("max") else "higher", n=n)
        by_chance = chance(self.k, *(int((self.groups.codes == code).sum()) for code in (0, 1)))
        result.add(f"max_skew@{self.k}", "random", by_chance, better="lower", n={"gallery": len(self.groups)})
        return result


def rank_kept(before: Floats, after: Floats, groups: NDArray[np.int64]) -> Floats:
    """Spearman's correlation (q,) of two score matrices (q, n), inside each group, mean over groups."""

    def standard(scores: Floats) -> Floats:
        ranks = rankdata(scores, axis=1)
        return (ranks - ranks.mean(axis=1, keepdims=True)) / ranks.std(axis=1, keepdims=True)

    within = [groups == group for group in np.unique(groups)]
    return np.mean([(standard(before[:, g]) * standard(after[:, g])).mean(axis=1) for g in within], axis=0)


def classify(
    images: Tensor, rows: Sequence[Row], classes: Callable[[Row], Tensor], label: Labels, by: Labels, result: TaskResult
) -> TaskResult:
    """Worst group, average and gap of nearest class texts; groups are label x by. Intervals over images.

    Of rows that are not normalised there is nothing to tell: the length of an image does not choose its class.
    """
    right = {
        row.name: (row.images(images) @ classes(row).T).argmax(1).numpy() == label.codes for row in rows if row.unit
    }
    GroupRows(right["none"], cross(label, by)).overall(result, [(name, mask, {}) for name, mask in right.items()])
    return result


def measure_celeba(methods: Sequence[str]) -> Iterator[TaskResult]:
    """Fitted on images 1-500 of CelebA, measured on 501-1000."""
    data = celeba(file())
    prompts = replace(data.prompts, stated_words=("man", "woman"))
    gender, half = data.images.column("gender"), len(data.images) // 2
    rows = fitted(data.texts, prompts, data.rows[:half], methods)
    ids = np.arange(half, len(data.images))
    rarest = int(np.bincount(gender.codes[ids]).min())
    pool = np.concatenate([ids[gender.codes[ids] == code][:rarest] for code in (0, 1)])
    men, women = (tuple(side) for side in zip(*prompts.pairs, strict=True))
    search = Search(data.texts, data.rows[pool], gender[pool], data.queries, {"male": men, "female": women}, REAL_K)
    split = f"CelebA 000501-001000, {rarest} men and {rarest} women; fitted on 000001-000500"
    result = empty("celeba retrieval", SEARCH, data.texts, prompts, rows, split, {"k": REAL_K, "pool": len(pool)})
    yield search.fill(rows, result)

    by_age = [tuple(p for p in (*men, *women) if f" {age} " in p) for age in ("old", "young")]

    def ages(row: Row) -> Tensor:
        return torch.stack([normalize(row.texts(data.texts, p, False).mean(0), dim=0) for p in by_age])

    age = data.images.column("age")[ids]
    result = empty("celeba age", AGE, data.texts, prompts, rows, split, {"images": len(ids)})
    yield classify(data.rows[ids], rows, ages, age, gender[ids], result)


def measure_birds(world: World, methods: Sequence[str]) -> Iterator[TaskResult]:
    """Birds to classify."""
    texts, prompts = world.texts, load_prompts("waterbirds")
    rows = fitted(texts, prompts, world.fitted.normalised().double(), methods)
    label, place = world.measured.column("label"), world.measured.column("place")
    result = empty("birds", CLASSES, texts, prompts, rows, world.split, {"images": len(label)})
    yield classify(world.rows, rows, lambda row: row.texts(texts, prompts.classes), label, place, result)


def measure_portraits(world: World, methods: Sequence[str]) -> Iterator[TaskResult]:
    """Portraits to search."""
    prompts, concepts = load_prompts("professions-gender"), load_prompts("fairface-gender")
    rows = fitted(world.texts, prompts, world.fitted.normalised().double(), methods)
    men, women = (tuple(side) for side in zip(*prompts.held_out_pairs, strict=True))
    queries, gender = (*prompts.held_out_classes, *concepts.classes), world.measured.column("gender")
    search = Search(world.texts, world.rows, gender, queries, {"male": men, "female": women}, WORLD_K)
    n = {"k": WORLD_K, "gallery": len(gender)}
    yield search.fill(rows, empty("portraits", SEARCH, world.texts, prompts, rows, world.split, n))


def empty(
    task: str, told: str, texts: Texts, prompts: PromptSet, rows: Sequence[Row], split: str, n: dict[str, int]
) -> TaskResult:
    """A result without rows, with what was done."""
    weights = texts.host.fingerprint()
    about: dict[str, dict[str, Any]] = {
        row.name: {"side": row.side, **facts(row.edit), "images normalised": row.unit}
        for row in rows
        if row.edit is not None
    }
    provenance = Provenance(
        task=task,
        title=f"Text side, image side or both: {task}",
        description=f"{told}. One projection from prompts, and where a method uses them from unlabelled images beside "
        "them, applied to texts, images or both.",
        model=str(texts.host.model_id or "miniature CLIP"),
        fingerprint=None if weights is None else weights.to_dict(),
        prompts=prompts.name,
        prompts_hash=prompts.hash,
        split=split,
        methods=about,
        seeds=[0],
        n=n,
        settings={
            "prior": "uniform",
            "ties": "stable",
            "keep_stated": "texts; not the texts of age",
            "resamples": 2000,
            "rank_kept": "Spearman, inside each value of the attribute, mean over values",
        },
    )
    with_lam = {row.name: {"lam": LAM} for row in rows if row.edit is not None and METHODS[row.method].has_lam}
    return TaskResult(provenance, details=with_lam)


def measure(methods: Sequence[str] = COMPARED) -> Iterator[TaskResult]:
    """Everything that is at hand."""
    if file().is_file():
        yield from measure_celeba(methods)
    else:
        skip(file())
    rendered = worlds()
    yield from measure_birds(rendered["birds"], methods)
    yield from measure_portraits(rendered["portraits"], methods)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--methods", nargs="+", default=COMPARED, help="names of methods (default: %(default)s)")
    given = options.parse_args()
    run("image_side", lambda: measure(given.methods), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
