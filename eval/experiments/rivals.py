"""Compare the requirements, benefits and costs of all our methods and published methods.

    python -m eval.experiments.rivals --on real --json eval/results/rivals_real.json
    python -m eval.experiments.rivals --on miniature --json eval/results/rivals_miniature.json
    python -m eval.experiments.rivals --on few --json eval/results/rivals_few.json

Every method is fitted on a reference and measured by `vldebias.evaluate` on images outside of the
reference. Methods that need labels are measured with the true labels of the reference and with the
model's zero-shot labels.

    real       1000 CelebA images with CLIP ViT-B/32 (see embeddings.py). There are ten random
               splits into a half for fitting and a half for measuring, with equally many men and
               women. The queries are 51 professions, and the groups are old or young by gender,
               where the class embedding is the mean of 32 prompts that state the age.
    miniature  Renders without correlations for measuring, and renders with the world's correlations
               for fitting, for three seeds. The queries are FairFace's ten concepts and
               professions, and the groups are birds by place and hair by gender.

A value is the mean over splits, and its interval is the mean of the splits' 95% bootstrap intervals
(over queries, or over images for groups). Changes use paired intervals. This is the result that a
single study of this size would get. In addition to the metrics in `vldebias.evaluate`, `order_kept`
is Spearman's correlation between scores before and after within groups, as the mean over queries
and groups. It measures whether information that is unrelated to the attribute is preserved.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch.nn.functional import normalize

from eval.experiments import embeddings
from eval.experiments.embeddings import Floats, Gallery, Rows, celeba, file
from eval.tables import parser, run
from vldebias.data import Embeddings, cross
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.hosts import Host, TextTable
from vldebias.measure.rows import CHANCE, NONE, Measurement, TaskProvenance, TaskResult
from vldebias.methods import (
    METHODS,
    EditMethod,
    Method,
    Need,
    Problem,
    Reference,
    get_edit_method,
)
from vldebias.methods.baselines.queries import Lian
from vldebias.methods.baselines.zero_shot import Dat, Sage
from vldebias.methods.closed_form import CALI, EQUALISE, ClosedForm
from vldebias.metrics import Metric
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import Result
from vldebias.study.evaluating import evaluate

NAMED = (
    "difference",
    "orth",
    "orth-cali",
    "cali",
    "equalise",
    "difference+equalise",
    "cali+equalise",
    "default+reference",
    "roboshot",
    "each-value",
    "lian",
    "tie",
)
LABELLED = ("leace", "spd", "sfid", "bend-vlm")
LAM_OF_DEFAULT = 100.0  # see `vldebias.methods.presets.Default.selected`
SPLITS, SEEDS, RESAMPLES = 10, (9013, 9023, 9033), 300
KEPT = ("max_skew", "retained", "query_cosine", "worst_group", "average")
ORDER_KEPT = Metric("order_kept", "rank correlation", "utility", "higher")


class _Light(EditMethod):
    """A closed-form projection with the default lam."""

    delegates = True

    def __init__(self, form: ClosedForm) -> None:
        self.form = form
        self.declaration = replace(
            form.declaration,
            name=f"{form.name}, lam {LAM_OF_DEFAULT:g}",
            title=f"{form.declaration.title}, lam {LAM_OF_DEFAULT:g}",
            source="this package",
            settings=frozenset(),
        )

    def fit(self, problem: Problem, role: str) -> Edit:
        return self.form.fit(replace(problem, lam=LAM_OF_DEFAULT), role)


class ZeroShotLabels(EditMethod):
    """A method that uses the model's zero-shot labels even if true labels exist."""

    def __init__(self, method: str | Method) -> None:
        self.method = get_edit_method(method)
        declaration = self.method.declaration
        self.declaration = replace(
            declaration,
            name=f"{declaration.name}, zero-shot labels",
            title=f"{declaration.title}, zero-shot labels",
            needs=declaration.needs - {Need.LABELS} | {Need.IMAGES},
        )

    def fit(self, problem: Problem, role: str) -> Edit:
        assert problem.reference is not None
        blind = replace(problem, reference=replace(problem.reference, labels={}))
        return self.method.fit(blind, role).with_provenance(uses_images=True, labels="zero-shot")


LIGHT, WEAKER = _Light(CALI), _Light(CALI + EQUALISE)


def compared() -> list[Method]:
    """Return all methods for retrieval and classification, with true and zero-shot labels."""
    sides = [Lian("text"), Lian("image")]
    named = [METHODS[name] for name in (*NAMED, *LABELLED)]
    return [*named, LIGHT, WEAKER, *sides, *(ZeroShotLabels(name) for name in LABELLED)]


def classifying(sage: Sage, dat: Dat) -> list[Method]:
    """Return the methods that are only for classification, including DAT with zero-shot labels."""
    return [sage, dat, ZeroShotLabels(dat)]


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
        """Return the fitted edits by title, except for methods that need missing embeddings."""
        edits, sets = {}, self.classes or self.prompt_set
        labelled = Reference(
            self.reference.features,
            labels=self.reference.labels,
            within_classes=self.classes is not None,
        )
        for method in methods:
            reference = labelled if method.uses_images or method.name == WEAKER.name else None
            edit = Problem(self.texts, [sets], reference=reference, neutral=self.queries).fit(
                method, "text"
            )
            if hasattr(edit, "wordings"):
                try:
                    self.texts.under(self.queries or sets.classes, "text", edit)
                except InvalidInputError as error:
                    print(f"{method.name}: left out: {error}", file=sys.stderr)
                    continue
            edits[method.declaration.title] = edit
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

    def order_kept(self, edits: Mapping[str, Edit]) -> dict[str, float]:
        """Return Spearman's correlation between scores before and after, within groups."""
        asked = self.queries or (self.classes.classes if self.classes else ())
        rows, codes = self.gallery.unit[:].double(), self.gallery.column(self.attribute).codes
        if self.classes is not None:
            codes = cross(
                self.gallery.column(self.label), self.gallery.column(self.attribute)
            ).codes
        known = codes >= 0
        rows, codes = rows[torch.from_numpy(known)], codes[known]
        base = (self.texts.embed(asked) @ rows.T).numpy()
        kept = {"none": 1.0}
        for name, edit in edits.items():
            seen = rows if edit.side == "text" else normalize(edit.image(rows), dim=1)
            scores = (self.texts.under(asked, "text", edit) @ seen.T).numpy().round(12)
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", RuntimeWarning
                )  # ignore queries with constant scores, for which it is NaN
                kept[name] = float(np.nan_to_num(rank_kept(base, scores, codes)).mean())
        return kept


def rank_kept(before: Floats, after: Floats, groups: Rows) -> Floats:
    """Return Spearman's correlation (q,) between score matrices (q, n), as the mean over groups."""

    def standard(scores: Floats) -> Floats:
        ranks = rankdata(scores, axis=1)
        return (ranks - ranks.mean(axis=1, keepdims=True)) / ranks.std(axis=1, keepdims=True)

    within = [groups == group for group in np.unique(groups)]
    return np.mean(
        [(standard(before[:, g]) * standard(after[:, g])).mean(axis=1) for g in within], axis=0
    )


def task(name: str, title: str, splits: Sequence[Split], methods: Sequence[Method]) -> TaskResult:
    """Return a task with the means over splits."""
    rows_of_figure: dict[tuple[str, str], list[Measurement]] = {}
    orders: dict[str, list[float]] = {}
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
        for method_title, value in split.order_kept(edits).items():
            orders.setdefault(method_title, []).append(value)
        for method in methods:
            method_title = method.declaration.title
            if method_title in edits:
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
    for method_title, values in orders.items():
        ends = (min(values), max(values))
        done.add(ORDER_KEPT, method_title, float(np.mean(values)), ends, n={"splits": len(values)})
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
    labels = {"labels": edit.provenance.labels} if edit.provenance.labels else {}
    return {"name": method.name, "source": method.declaration.source, "needs": needs, **labels}


def real(methods: Sequence[Method], splits: int = SPLITS) -> Iterator[TaskResult]:
    """Measure retrieval of professions and classification of age by gender on CelebA."""
    title = "Retrieval of professions among real photographs: gender"
    yield task("celeba professions", title, list(professions(splits)), methods)
    yield task(
        "celeba age",
        "Old or young among real photographs: groups by gender",
        list(ages(splits)),
        [*methods, *classifying(age_templates(), DAT_OF_CELEBA)],
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
        (pool,) = data.pools([seed], rest)
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


def miniature(methods: Sequence[Method]) -> Iterator[TaskResult]:
    """Measure retrieval and classification of portraits and classification of birds."""
    texts, features = embeddings.miniature()
    birds, portraits = (
        features(name, n=1500, seed=9002, balanced=True) for name in ("birds", "portraits")
    )
    nature, people = (
        [features(name, n=800, seed=seed, balanced=False) for seed in SEEDS]
        for name in ("birds", "portraits")
    )
    fair, jobs, place, hair = map(
        load_prompts, ("fairface-gender", "professions-gender", "waterbirds", "celeba")
    )

    def search(prompt_set: PromptSet, queries: tuple[str, ...], k: int) -> list[Split]:
        how = {"attribute": "gender", "queries": queries, "k": k}
        return [Split(texts, r, portraits, prompt_set, **how) for r in people]

    def classify(
        prompt_set: PromptSet, gallery: Embeddings, attribute: str, references: list[Embeddings]
    ) -> list[Split]:
        how = {"attribute": attribute, "label": "label", "classes": prompt_set}
        return [Split(texts, r, gallery, prompt_set, **how) for r in references]

    ten = "Retrieval of ten concepts among portraits: gender"
    yield task("portraits", ten, search(fair, fair.classes, 150), methods)
    unseen = "Retrieval of unseen professions among portraits: gender"
    yield task("professions", unseen, search(jobs, jobs.held_out_classes, 50), methods)
    places = "Landbird or waterbird: groups by place"
    landbirds = classify(place, birds, "place", nature)
    yield task("birds", places, landbirds, [*methods, *classifying(Sage(), Dat())])
    genders = "Dark or blond hair: groups by gender"
    colours = classify(hair, portraits, "gender", people)
    yield task("hair", genders, colours, [*methods, *classifying(Sage(), DAT_OF_CELEBA)])


def age_templates() -> Sage:
    """Return SAGE with prompts that state the age as templates.

    The embeddings of SAGE's own templates are not available.
    """
    texts = [text for pair in celeba().prompt_set.pairs for text in pair]
    wordings = []
    for text in texts:
        if " an old " in text:
            wordings.append((text, text.replace(" an old ", " a young ")))
    sage = Sage(wordings)
    title = f"SAGE, {len(wordings)} stated prompts as templates"
    sage.declaration = replace(sage.declaration, title=title)
    return sage


SIZES = {"20": 20, "50": 50, "200": 200, "gallery": None}
UNLABELLED = (
    "difference",
    "cali",
    "equalise",
    "difference+equalise",
    "cali+equalise",
    "default+reference",
)


def few(methods: Sequence[Method], splits: int = 5) -> Iterator[TaskResult]:
    """Measure profession search as a function of the number of reference images."""
    chosen = [method for method in methods if method.name in UNLABELLED]
    for name, size in SIZES.items():
        samples = []
        for seed, split in enumerate(professions(splits)):
            order = np.random.default_rng(seed).permutation(len(split.reference))
            own = split.gallery if size is None else split.reference[np.sort(order[:size])]
            samples.append(replace(split, reference=own))
        title = (
            f"Retrieval of professions among real photographs, reference: {name}"
            + " images" * (size is not None)
        )
        yield task(f"reference: {name}", title, samples, chosen)


WORLDS: dict[str, Callable[..., Iterable[TaskResult]]] = {
    "real": real,
    "miniature": miniature,
    "few": few,
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--on", choices=tuple(WORLDS), required=True, help="which images")
    options.add_argument(
        "--splits", type=int, help="number of splits, by default 10 (5 for --on few)"
    )
    args = options.parse_args()
    if args.on in ("real", "few") and not file().is_file():
        options.error(f"{file()} not found. Set VLDEBIAS_REAL to its folder")
    how = {"splits": args.splits} if args.splits and args.on != "miniature" else {}
    run(f"rivals_{args.on}", lambda: WORLDS[args.on](compared(), **how), args.json)


if __name__ == "__main__":
    main()
