"""All methods for texts and images, ours and the field's: what each needs, gains and costs, on one set of images.

python -m eval.experiments.rivals --on real --json eval/results/rivals_real.json
python -m eval.experiments.rivals --on miniature --json eval/results/rivals_miniature.json
python -m eval.experiments.rivals --on few --json eval/results/rivals_few.json

The tables of docs/methods and the plot of gain against cost are made from these by rivals_table.py.

Every method is fitted on a reference and measured by `vldebias.evaluate` on images that are not in it. A method that
needs labels gets the true ones of the reference, and once more the zero-shot ones of the model.

real       1000 images of CelebA, CLIP ViT-B/32 (see embeddings.py). Ten random halves: fitted on one, measured on as
           many men as women of the other. Queries: 51 professions. Groups: old or young (the mean of the 32 stated
           prompts of each is its class text) by gender.
miniature  renders without correlation are measured, others with the world's own are fitted on, of three seeds.
           Queries: the ten concepts of FairFace, professions. Groups: birds by place, hair by gender.

A value is the mean over the splits, its interval the mean of the 95 % bootstrap intervals of one split (over queries;
of groups over images), a change that of the paired ones: what one study of this size would see. `<metric>, splits`
holds the lowest and the highest split as its interval. Beside what `vldebias.evaluate` measures:

order_kept     Spearman's correlation of the scores of images of one group before and after, mean over queries and
               groups: is what has nothing to do with the attribute still there?
seconds        for fitting, on one core
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch.nn.functional import normalize

from eval.experiments import embeddings
from eval.experiments.embeddings import FILE, Floats, Gallery, Rows, celeba, file
from eval.experiments.run import parser, run
from eval.metrics import ORDER_KEPT, SECONDS
from vldebias.data import Embeddings, cross
from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.evaluation.result import Measurement, Result, TaskProvenance, TaskResult
from vldebias.evaluation.run import evaluate
from vldebias.evaluation.task import Texts
from vldebias.methods import METHODS, Lian, Method, Need, Problem, Reference
from vldebias.methods.closed_form import CALI, EQUALISE, ClosedForm
from vldebias.methods.presets import LAM_OF_DEFAULT
from vldebias.metrics import Metric
from vldebias.metrics.metric import metric_of
from vldebias.prompts import PromptSet, load_prompts

OURS = (
    "difference",
    "orth",
    "orth-cali",
    "cali",
    "equalise",
    "difference+equalise",
    "cali+equalise",
    "auto",
)
THEIRS = ("roboshot", "each-value", "lian")
LABELLED = ("leace", "spd", "sfid", "bend-vlm")


class _Light(Method):
    """A closed form at the lam of the default."""

    def __init__(self, form: ClosedForm) -> None:
        self.form, self.color, self.delegates, self.source = form, form.color, True, "this package"
        self.name, self.title = f"{form.name}, lam {LAM_OF_DEFAULT:g}", f"{form.title}, lam {LAM_OF_DEFAULT:g}"
        self.needs = form.needs

    def fit(self, problem: Problem, role: str) -> Edit:
        return self.form.fit(replace(problem, lam=LAM_OF_DEFAULT), role)


class ZeroShotLabels(Method):
    """A method that needs labelled images, given the model's own zero-shot labels even where there are others."""

    def __init__(self, name: str) -> None:
        self.method = METHODS[name]
        for own in ("source", "color", "pipelines", "side"):
            setattr(self, own, getattr(self.method, own))
        self.name, self.title = f"{name}, zero-shot labels", f"{self.method.title}, zero-shot labels"
        self.needs = frozenset(self.method.needs - {Need.LABELS} | {Need.IMAGES})

    def fit(self, problem: Problem, role: str) -> Edit:
        assert problem.reference is not None
        blind = replace(problem, reference=replace(problem.reference, labels={}))
        return self.method.fit(blind, role).stamped(uses_images=True, labels="zero-shot")


LIGHT, WEAKER = _Light(CALI), _Light(CALI + EQUALISE)
SPLITS, SEEDS, RESAMPLES = 10, (9013, 9023, 9033), 300
KEPT = ("max_skew", "ndkl", "query_cosine", "image_cosine", "recall", "worst_group", "average", "order_kept", "seconds")


def compared() -> list[Method]:
    """Ours, theirs, and those that need labels with the true and with the zero-shot ones."""
    sides = [Lian("text"), Lian("image")]
    named = [METHODS[name] for name in (*OURS, *THEIRS, *LABELLED)]
    return [*named, LIGHT, WEAKER, *sides, *(ZeroShotLabels(name) for name in LABELLED)]


@dataclass(frozen=True, eq=False)
class Split:
    """One reference, one gallery, the texts of the same model; queries to rank for, or classes to tell apart."""

    texts: Texts
    reference: Embeddings
    gallery: Embeddings
    prompts: PromptSet
    attribute: str
    queries: tuple[str, ...] = ()
    k: int = 0
    classes: PromptSet | None = None
    label: str = ""

    def fit(self, methods: Iterable[Method]) -> tuple[dict[str, Edit], dict[str, float]]:
        """Title -> edit, and the seconds that it took; methods that ask for texts nobody has are left out."""
        edits, seconds = {}, {}
        for method in methods:
            sets = [self.classes or self.prompts]
            reference = Reference(
                self.reference.features, labels=self.reference.labels, within_classes=self.classes is not None
            )
            given = reference if method.uses_images or method.name in ("auto", WEAKER.name) else None
            began = time.perf_counter()
            edit = Problem.of(self.texts.host, sets, reference=given, neutral=self.queries).fit(method, "joint")
            took = time.perf_counter() - began
            if hasattr(edit, "wordings"):
                try:
                    self.texts.under(self.queries or sets[0].classes, edit)
                except InvalidInputError as error:
                    print(f"{method.name}: left out: {error}", file=sys.stderr)
                    continue
            edits[method.title], seconds[method.title] = edit, took
        return edits, seconds

    def measure(self, edits: Mapping[str, Edit]) -> Result:
        """Skew and what it costs, or accuracy by group."""
        common: dict[str, Any] = {"methods": edits, "resamples": RESAMPLES}
        if self.classes is not None:
            gallery, columns = self.gallery, {"label": self.label, "spurious": self.attribute}
            return evaluate(self.texts.host, gallery, prompts=self.classes, task="groups", **columns, **common)
        how: dict[str, Any] = {"queries": self.queries, "k": self.k, "resample": "queries"}
        if any(self.gallery.captions):
            how["utility"] = {"captions": True, "recall_k": [5]}
        return evaluate(self.texts.host, self.gallery, prompts={self.attribute: self.prompts}, **how, **common)

    def order_kept(self, edits: Mapping[str, Edit]) -> dict[str, float]:
        """Spearman's correlation of scores before and after, inside the groups."""
        asked = self.queries or (self.classes.classes if self.classes else ())
        rows, codes = self.gallery.normalised().double(), self.gallery.column(self.attribute).codes
        if self.classes is not None:
            codes = cross(self.gallery.column(self.label), self.gallery.column(self.attribute)).codes
        known = codes >= 0
        rows, codes = rows[torch.from_numpy(known)], codes[known]
        base = (self.texts.embed(asked) @ rows.T).numpy()
        kept = {"none": 1.0}
        for name, edit in edits.items():
            seen = rows if edit.side == "text" else normalize(edit.image(rows), dim=1)
            scores = (self.texts.under(asked, edit) @ seen.T).numpy().round(12)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # a query whose scores are all alike keeps no order
                kept[name] = float(np.nan_to_num(rank_kept(base, scores, codes)).mean())
        return kept


def rank_kept(before: Floats, after: Floats, groups: Rows) -> Floats:
    """Spearman's correlation (q,) of two score matrices (q, n), inside each group, mean over groups."""

    def standard(scores: Floats) -> Floats:
        ranks = rankdata(scores, axis=1)
        return (ranks - ranks.mean(axis=1, keepdims=True)) / ranks.std(axis=1, keepdims=True)

    within = [groups == group for group in np.unique(groups)]
    return np.mean([(standard(before[:, g]) * standard(after[:, g])).mean(axis=1) for g in within], axis=0)


def task(name: str, title: str, splits: Sequence[Split], methods: Sequence[Method]) -> TaskResult:
    """One block: means over splits of what each of them gives."""
    gathered: dict[tuple[str, str], list[Measurement]] = {}
    extra: dict[tuple[Metric, str], list[float]] = {}
    about: dict[str, dict[str, Any]] = {"none": {"name": "none", "needs": []}}
    last: TaskProvenance | None = None
    for number, split in enumerate(splits):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VldebiasWarning)  # what they warn of is among the figures
            edits, seconds = split.fit(methods)
            result = split.measure(edits)
        for row in result.rows:
            if not row.subset and row.metric.partition("@")[0] in KEPT and row.method != "random":
                gathered.setdefault((row.metric, row.method), []).append(row)
        for metric, values in ((ORDER_KEPT, split.order_kept(edits)), (SECONDS, seconds)):
            for method, value in values.items():
                extra.setdefault((metric, method), []).append(value)
        about |= {m.title: facts(m, edits[m.title]) for m in methods if m.title in edits}
        last = result.provenance[0]
        print(f"{name}: split {number + 1} of {len(splits)}", file=sys.stderr)
    assert last is not None
    done = TaskResult(
        TaskProvenance(
            task=name,
            title=title,
            description="Mean over splits; intervals: mean over splits of the 95 % bootstrap intervals of one split.",
            model=last.model,
            fingerprint=last.fingerprint,
            prompts=last.prompts,
            prompts_hash=last.prompts_hash,
            split=str(splits[0].gallery.about.get("data", "")),
            methods=about,
            seeds=list(range(len(splits))),
            n={**last.n, "splits": len(splits), "reference": len(splits[0].reference)},
            settings={"k": splits[0].k, "resamples": RESAMPLES, "queries": list(splits[0].queries)},
        )
    )
    for (metric, method), rows in gathered.items():
        numbers = np.array([[row.value, *row.interval] for row in rows])
        value, low, high = numbers.mean(0).tolist()
        changes = [row.change for row in rows if row.change is not None]
        change = tuple(np.mean(changes, axis=0).tolist()) if changes else None
        labels = {"uses_labels": rows[0].uses_labels}
        n = {**rows[0].n, "splits": len(rows)}
        done.add(metric, method, value, (low, high), n=n, change=change, **labels)
        spread = (float(numbers[:, 0].min()), float(numbers[:, 0].max()))
        known = metric_of(metric)
        splits_of = Metric(f"{metric}, splits", f"{known.title}, splits", "fact", known.better)
        done.add(splits_of, method, value, spread, n=n, **labels)
    for (extra_metric, method), values in extra.items():
        n, ends = {"splits": len(values)}, (min(values), max(values))
        done.add(extra_metric, method, float(np.mean(values)), ends, n=n)
    return done


def facts(method: Method, edit: Edit) -> dict[str, Any]:
    """What a table says of a method beside its figures."""
    labels = {"labels": edit.provenance.labels} if edit.provenance.labels else {}
    return {
        "name": method.name,
        "source": method.source,
        "needs": needs(method) + (["images"] if edit.provenance.uses_images and not method.uses_images else []),
        "side": edit.side,
        "chosen": edit.method,
        **labels,
    }


def needs(method: Method) -> list[str]:
    """What it needs beyond words for the attribute."""
    told = {Need.IMAGES: "images", Need.LABELS: "labels"}
    return ["texts", *(word for need, word in told.items() if need in method.needs)]


def real(methods: Sequence[Method], splits: int = SPLITS) -> Iterator[TaskResult]:
    """CelebA: retrieval of professions, and age by gender."""
    title = "Retrieval of professions among real photographs: gender"
    yield task("celeba professions", title, list(professions(splits)), methods)
    yield task("celeba age", "Old or young among real photographs: groups by gender", list(ages(splits)), methods)


def halves(data: Gallery, splits: int) -> Iterator[tuple[Rows, Rows]]:
    """Rows that may be seen, and the others, of random orders."""
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(data.images))
        yield np.sort(order[:500]), order[500:]


def professions(splits: int = SPLITS) -> Iterator[Split]:
    """51 professions asked of as many men as women."""
    data = celeba(file())
    prompts = replace(data.prompts, stated_words=("man", "woman"))
    for seed, (seen, rest) in enumerate(halves(data, splits)):
        (pool,) = data.pools([seed], rest)
        gallery = data.images[np.sort(pool)]
        yield Split(data.texts, data.images[seen], gallery, prompts, attribute="gender", queries=data.queries, k=50)


def ages(splits: int = SPLITS) -> Iterator[Split]:
    """Old or young by gender; a class is the mean of the prompts that state it."""
    data = celeba(file())
    prompts = replace(data.prompts, stated_words=("man", "woman"))
    men, women = (tuple(side) for side in zip(*prompts.pairs, strict=True))
    own = {
        f"{age} (mean of {len(men) // 2})": [p for p in (*men, *women) if f" {age} " in p] for age in ("old", "young")
    }
    asked = dict.fromkeys((*men, *women, *prompts.spurious))
    rows = dict(zip(asked, data.texts.embed(list(asked)), strict=True))
    rows |= {name: data.texts.embed(texts).mean(0) for name, texts in own.items()}
    texts = Texts(rows, model_id="CLIP ViT-B/32 openai")
    classes = replace(prompts, name="age", classes=tuple(own), class_names=("old", "young"))
    for seen, rest in halves(data, splits):
        gallery, reference = data.images[np.sort(rest)], data.images[seen]
        yield Split(texts, reference, gallery, prompts, attribute="gender", classes=classes, label="age")


def miniature(
    methods: Sequence[Method], images: int = 1500, reference: int = 800, seeds: Sequence[int] = SEEDS
) -> Iterator[TaskResult]:
    """Portraits to search and to classify, birds to classify."""
    texts, features = embeddings.miniature()
    birds, portraits = (features(name, images, 9002, True) for name in ("birds", "portraits"))
    nature, people = ([features(name, reference, s, False) for s in seeds] for name in ("birds", "portraits"))
    fair, jobs = load_prompts("fairface-gender"), load_prompts("professions-gender")
    search: dict[str, Any] = {"texts": texts, "gallery": portraits, "attribute": "gender"}
    concepts = [Split(reference=r, prompts=fair, queries=fair.classes, k=150, **search) for r in people]
    yield task("portraits", "Retrieval of ten concepts among portraits: gender", concepts, methods)
    unseen = [Split(reference=r, prompts=jobs, queries=jobs.held_out_classes, k=50, **search) for r in people]
    yield task("professions", "Retrieval of unseen professions among portraits: gender", unseen, methods)
    place = load_prompts("waterbirds")
    common: dict[str, Any] = {"texts": texts, "label": "label"}
    wild = [
        Split(reference=r, gallery=birds, prompts=place, classes=place, attribute="place", **common) for r in nature
    ]
    yield task("birds", "Landbird or waterbird: groups by place", wild, methods)
    hair = load_prompts("celeba")
    heads = [
        Split(reference=r, gallery=portraits, prompts=hair, classes=hair, attribute="gender", **common) for r in people
    ]
    yield task("hair", "Dark or blond hair: groups by gender", heads, methods)


SIZES = {"20": 20, "50": 50, "200": 200, "gallery": None}
UNLABELLED = ("difference", "cali", "equalise", "difference+equalise", "cali+equalise", "auto")


def few(methods: Sequence[Method], splits: int = 5) -> Iterator[TaskResult]:
    """The search for professions by the number of reference images; None: those that are searched."""
    chosen = [method for method in methods if method.name in UNLABELLED]
    for name, size in SIZES.items():
        some = [
            replace(split, reference=split.gallery if size is None else split.reference[_some(split, size, seed)])
            for seed, split in enumerate(professions(splits))
        ]
        title = f"Retrieval of professions among real photographs, reference: {name}" + " images" * (size is not None)
        yield task(f"reference: {name}", title, some, chosen)


def _some(split: Split, size: int, seed: int) -> Rows:
    return np.sort(np.random.default_rng(seed).permutation(len(split.reference))[:size])


WORLDS: dict[str, Callable[..., Iterable[TaskResult]]] = {
    "real": real,
    "miniature": miniature,
    "few": few,
}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--on", choices=tuple(WORLDS), required=True, help="which images")
    options.add_argument("--splits", type=int, help="of photographs, fewer than the 10 (few: 5) for a shorter run")
    given = options.parse_args()
    if given.on != "miniature" and not file().is_file():
        print(f"{FILE}: not found; set VLDEBIAS_REAL to its folder", file=sys.stderr)
        return 2
    how = {"splits": given.splits} if given.splits and given.on != "miniature" else {}
    run(f"rivals_{given.on}", lambda: WORLDS[given.on](compared(), **how), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
