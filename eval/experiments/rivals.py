"""Compare the requirements, benefits and costs of all our methods and published methods.

    python -m eval.experiments.rivals --on real --json eval/results/rivals_real.json
    python -m eval.experiments.rivals --on miniature --json eval/results/rivals_miniature.json

Every method is fitted on a reference and measured by `vldebias.evaluate` on images outside of the
reference. Methods that need labels get the true labels of the reference.

    real       1000 CelebA images with CLIP ViT-B/32 (see embeddings.py). There are ten random
               splits into a half for fitting and a half for measuring, with equally many men and
               women. The queries are 51 professions, and the groups are old or young by gender,
               where the class embedding is the mean of 32 prompts that state the age.
    miniature  Renders without correlations for measuring, and renders with the world's correlations
               for fitting, for three seeds. The groups are birds by place and hair by gender.

A value is the mean over splits, and its interval is the mean of the splits' 95% bootstrap intervals
(over queries, or over images for groups). Changes use paired intervals. This is the result that a
single study of this size would get.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eval.experiments import embeddings
from eval.experiments.embeddings import FILE, Gallery, Rows, celeba
from eval.photographs import is_present
from eval.tables import parser, run
from vldebias.data import Embeddings
from vldebias.errors import VldebiasWarning
from vldebias.hosts import Host, TextTable
from vldebias.measure.rows import CHANCE, NONE, Measurement, TaskProvenance, TaskResult
from vldebias.methods import (
    METHODS,
    Method,
    Need,
    Problem,
    Reference,
)
from vldebias.methods.baselines.zero_shot import Dat
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import Result
from vldebias.study.evaluating import evaluate

NAMED = (
    "difference",
    "orth",
    "orth-cali",
    "cali",
    "cali+equalise",
    "difference+equalise",
    "roboshot",
    "spd",
    "sfid",
    "bend-vlm",
)
SPLITS, SEEDS, RESAMPLES = 10, (9013, 9023, 9033), 300
KEPT = ("max_skew", "retained", "worst_group", "average")


def compared() -> list[Method]:
    """Return all methods for retrieval and classification."""
    return [METHODS[name] for name in NAMED]


DAT_OF_CELEBA = Dat(images=128, power=1.0)  # the authors' setting for this task


@dataclass(frozen=True, eq=False)
class Split:
    """A reference and a gallery, with queries or classes embedded by the same model."""

    texts: Host
    reference: Embeddings
    gallery: Embeddings
    prompt_set: PromptSet
    attribute: str
    queries: tuple[str, ...] = ()
    k: int = 0
    classes: PromptSet | None = None
    label: str = ""

    def fit(self, methods: Iterable[Method]) -> dict[str, Edit]:
        """Return the fitted edits by title."""
        edits, sets = {}, self.classes or self.prompt_set
        labelled = Reference(
            self.reference.features,
            labels=self.reference.labels,
            within_classes=self.classes is not None,
        )
        for method in methods:
            reference = labelled if method.uses_images else None
            problem = Problem(self.texts, [sets], reference=reference, neutral=self.queries)
            edits[method.declaration.title] = problem.fit(method, "text")
        return edits

    def measure(self, edits: Mapping[str, Edit]) -> Result:
        """Measure the skew and its cost, or the accuracy by group."""
        common: dict[str, Any] = {"methods": edits, "resamples": RESAMPLES}
        if self.classes is not None:
            gallery, columns = self.gallery, {"label": self.label, "spurious": self.attribute}
            return evaluate(
                self.texts, gallery, attribute=self.classes, task="groups", **columns, **common
            )
        how: dict[str, Any] = {"queries": self.queries, "k": self.k, "resample": "queries"}
        return evaluate(
            self.texts, self.gallery, attribute={self.attribute: self.prompt_set}, **how, **common
        )


def task(name: str, title: str, splits: Sequence[Split], methods: Sequence[Method]) -> TaskResult:
    """Return a task with the means over splits."""
    rows_of_figure: dict[tuple[str, str], list[Measurement]] = {}
    facts_of_method: dict[str, dict[str, Any]] = {
        NONE: {"name": "none", "needs": []},
        CHANCE: {"name": "random rankings", "needs": []},
    }
    for number, split in enumerate(splits):
        with warnings.catch_warnings():
            # The results reflect what the methods warn about.
            warnings.simplefilter("ignore", VldebiasWarning)
            edits = split.fit(methods)
            result = split.measure(edits)
        shown = (NONE, CHANCE, *edits)
        for row in result.rows:
            is_kept = row.metric.partition("@")[0] in KEPT
            if is_kept and row.method in shown and not row.subset:
                rows_of_figure.setdefault((row.metric, row.method), []).append(row)
        for method in methods:
            method_title = method.declaration.title
            facts_of_method[method_title] = facts(method, edits[method_title])
        protocol = result.provenance[0]
        print(f"{name}: split {number + 1} of {len(splits)}", file=sys.stderr)
    done = TaskResult(
        TaskProvenance(
            task=name,
            title=title,
            description=(
                "Mean over splits; intervals: mean over splits of the 95% bootstrap intervals of"
                " one split."
            ),
            split=str(splits[0].gallery.about.get("data", "")),
            methods=facts_of_method,
            seeds=list(range(len(splits))),
            n={**protocol.n, "splits": len(splits), "reference": len(splits[0].reference)},
            settings={"k": splits[0].k, "resamples": RESAMPLES, "queries": list(splits[0].queries)},
            model=protocol.model,
            fingerprint=protocol.fingerprint,
            attribute=protocol.attribute,
            attribute_hash=protocol.attribute_hash,
        )
    )
    for rows in rows_of_figure.values():
        add_mean(done, rows)
    return done


def add_mean(result: TaskResult, rows: Sequence[Measurement]) -> None:
    """Add the mean over splits of a metric, its interval and its change."""
    first = rows[0]
    value, low, high = np.mean([[row.value, *row.interval] for row in rows], axis=0).tolist()
    changes = [row.change for row in rows if row.change is not None]
    result.add(
        first.metric,
        first.method,
        value,
        (low, high),
        n={**first.n, "splits": len(rows)},
        change=tuple(np.mean(changes, axis=0).tolist()) if changes else None,
        uses_labels=first.uses_labels,
    )


def facts(method: Method, edit: Edit) -> dict[str, Any]:
    """Return facts about a method for tables."""
    name_of_need = {Need.IMAGES: "images", Need.LABELS: "labels"}
    needs = ["texts", *(word for need, word in name_of_need.items() if need in method.needs)]
    if edit.provenance.uses_images and not method.uses_images:
        needs.append("images")
    return {"name": method.name, "source": method.declaration.source, "needs": needs}


def real(methods: Sequence[Method], splits: int = SPLITS) -> Iterator[TaskResult]:
    """Measure retrieval of professions and classification of age by gender on CelebA."""
    title = "Retrieval of professions among real photographs: gender"
    yield task("celeba professions", title, list(professions(splits)), methods)
    yield task(
        "celeba age",
        "Old or young among real photographs: groups by gender",
        list(ages(splits)),
        [*methods, DAT_OF_CELEBA],
    )


def halves(data: Gallery, splits: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield random halves of the rows, for fitting and for measuring."""
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(data.images))
        yield np.sort(order[:500]), order[500:]


def professions(splits: int = SPLITS) -> Iterator[Split]:
    """Yield splits for 51 professions, with galleries of equally many men and women."""
    data = celeba()
    prompts = replace(data.prompt_set, stated_words=("man", "woman"))
    for seed, (seen, rest) in enumerate(halves(data, splits)):
        pool = data.pool(seed, rest)
        gallery = data.images[np.sort(pool)]
        yield Split(
            data.texts,
            data.images[seen],
            gallery,
            prompts,
            attribute="gender",
            queries=data.queries,
            k=50,
        )


def ages(splits: int = SPLITS) -> Iterator[Split]:
    """Yield splits for age by gender, where classes are means of prompts that state the age."""
    data = celeba()
    prompts = replace(data.prompt_set, stated_words=("man", "woman"))
    men, women = (tuple(side) for side in zip(*prompts.pairs, strict=True))
    own = {
        f"{age} (mean of {len(men) // 2})": [p for p in (*men, *women) if f" {age} " in p]
        for age in ("old", "young")
    }
    asked = dict.fromkeys((*men, *women, *prompts.spurious))
    rows = dict(zip(asked, data.texts.embed(list(asked)), strict=True))
    rows |= {name: data.texts.embed(texts).mean(0) for name, texts in own.items()}
    texts = TextTable(rows, "CLIP ViT-B/32 openai")
    classes = replace(prompts, name="age", classes=tuple(own), class_names=("old", "young"))
    for seen, rest in halves(data, splits):
        gallery, reference = data.images[np.sort(rest)], data.images[seen]
        yield Split(
            texts, reference, gallery, prompts, attribute="gender", classes=classes, label="age"
        )


def rendered(world: str, attribute: str, set_name: str) -> list[Split]:
    """Return splits of renders, one for each reference, with the same gallery."""
    texts, features = embeddings.miniature()
    classes = load_prompts(set_name)
    gallery = features(world, n=1500, seed=9002, balanced=True)
    references = [features(world, n=800, seed=seed, balanced=False) for seed in SEEDS]
    how = {"attribute": attribute, "label": "label", "classes": classes}
    return [Split(texts, reference, gallery, classes, **how) for reference in references]


def miniature(methods: Sequence[Method]) -> Iterator[TaskResult]:
    """Measure classification of birds by place and of hair by gender."""
    birds = rendered("birds", "place", "waterbirds")
    yield task("birds", "Landbird or waterbird: groups by place", birds, [*methods, Dat()])
    hair = rendered("portraits", "gender", "celeba")
    yield task("hair", "Dark or blond hair: groups by gender", hair, [*methods, DAT_OF_CELEBA])


WORLDS: dict[str, Callable[..., Iterable[TaskResult]]] = {
    "real": real,
    "miniature": miniature,
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--on", choices=tuple(WORLDS), required=True, help="which images")
    options.add_argument("--splits", type=int, help="number of splits, by default 10")
    args = options.parse_args()
    if args.on == "real" and not is_present(FILE):
        raise SystemExit(1)
    how = {"splits": args.splits} if args.splits and args.on == "real" else {}
    run(f"rivals_{args.on}", lambda: WORLDS[args.on](compared(), **how), args.json)


if __name__ == "__main__":
    main()
