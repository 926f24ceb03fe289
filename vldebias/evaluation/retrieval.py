"""Measure skew of text-to-image retrieval (Table 7.5): are the first k images spread over the groups, at what cost?

Source: section 7.4.2 of Chuang's thesis (Chuang et al., "Debiasing Vision-Language Models via Biased Prompts", 2023)
with MaxSkew and NDKL of Geyik et al. (2019).

Intervals over queries: the queries are a sample of what people ask, such as professions; the gallery is taken as it is.
Over images: the queries are fixed by the protocol, and the gallery is a sample. A resampled gallery repeats images, so
its first k hold fewer different ones and a maximum over groups strays further up. So the resampled values are moved to
have their mean at the value, and percentiles are taken then (`recentred_interval`). Such an interval covers the
expected value of the metric on a gallery of this size; it says nothing of a gallery of infinite size, whose MaxSkew is
lower (`eval/experiments/coverage_shares.py` counts how often).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, product
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from vldebias.data import Embeddings, Labels, UnitRows, cross
from vldebias.errors import InvalidInputError, SuspectInputWarning, warn
from vldebias.evaluation.images import (
    IMAGES,
    ImageTask,
    disjoint,
    doubt_labels,
    doubt_space,
    doubt_values,
    prompts_of,
    sets_by_column,
    spaced,
)
from vldebias.evaluation.result import CHANCE, NONE, TaskResult
from vldebias.evaluation.session import Session, Texts
from vldebias.evaluation.task import Count, Number, Prompts, SeveralPrompts, Strict, register_task
from vldebias.metrics.bootstrap import recentred_interval, resampled_weights
from vldebias.metrics.metric import computed
from vldebias.metrics.rankings import first_hits, log_ratios, ndkls, random_rankings, reach, resampled_places
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, StatedWords, load_prompts

if TYPE_CHECKING:
    from vldebias.edit import Edit

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
Project = Callable[[Sequence[str]], Tensor]  # prompts -> normalised rows under one method

BALANCED = 0.2  # by how much the largest group of a balanced gallery exceeds the mean at most
RECALL = (1, 5, 10)  # the k of recall@k of captions
MOST_CAPTIONS = 10_000  # images up to which recall of captions is measured: its cost grows with the square
_INTERVALS = {
    "queries": "mean over queries: bootstrap over queries, given the gallery; one query: bootstrap over images",
    "images": "bootstrap over images of the gallery, given the queries",
}
_RECENTRED = "over images: percentiles of resampled galleries, moved to have their mean at the value"
_ABOUT = ("data_fingerprint", "digest", "preprocessing", "dtype", "source", "values read as unknown")

# ---- skew of a gallery ---------------------------------------------------------------------------------------


class SkewOptions(Strict):
    """Hold the conventions of a skew, in which papers differ.

    k: how many of the first results are looked at, one or more values.
    prior: share that a group should have: "uniform" (1 / number of groups that the gallery has; the paper's) or
        "dataset" (its share of the gallery).
    floor: shares below it count as `floor`. None: MaxSkew needs none, and MinSkew, which is -inf where a group is
        missing from the first k, takes 1 / (2 k), half an image.
    ties: "stable" (equal scores keep the order of the rows) or "random" (one seeded order for all queries).
    resamples, seed: of the bootstrap over images and of the random rankings; the seed also decides random ties.
    """

    k: Annotated[list[Count], BeforeValidator(lambda k: list(k) if np.ndim(k) else [k])]
    prior: Literal["uniform", "dataset"] = "uniform"
    floor: Annotated[float, Field(gt=0, le=1), Number] | None = None
    ties: Literal["stable", "random"] = "stable"
    resamples: Count = 2000
    seed: Annotated[int, Field(ge=0), Number] = 0

    @model_validator(mode="after")
    def _different(self) -> Self:
        for name in ("k", "queries"):
            given = getattr(self, name, None)
            if isinstance(given, list) and (not given or len(set(given)) < len(given)):
                raise ValueError(f"{name}: expected one or more different ones, got {given}")
        return self


@dataclass(frozen=True, eq=False)
class Gallery:
    """Hold the images whose group is known and the conventions of their skew; labels: one per image, all known.

    Groups without an image are left out: nothing could retrieve them.

    Raises:
        InvalidInputError: fewer than two groups, or fewer images than k.
    """

    labels: Labels
    options: SkewOptions

    def __post_init__(self) -> None:
        if not self.labels.known.all():
            raise InvalidInputError(f"gallery: {int((~self.labels.known).sum())} images have no known group")
        if len(self.names) < 2:
            raise InvalidInputError(f"skew needs images of two groups, got {self.labels.counts}")
        if max(self.options.k) > len(self.labels):
            raise InvalidInputError(
                f"k: expected at most the {len(self.labels)} images whose group is known, got {max(self.options.k)}; "
                "choose a smaller k"
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the groups that have an image."""
        return tuple(name for name, n in self.labels.counts.items() if n)

    @cached_property
    def codes(self) -> NDArray[np.unsignedinteger]:
        """Return positions (n,) in `names`, in the smallest integer type, since small types sort in linear time."""
        held = np.bincount(self.labels.codes, minlength=len(self.labels.names)) > 0
        return (np.cumsum(held) - 1).astype(np.min_scalar_type(len(self.names)))[self.labels.codes]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Return the number of images (g,) of each group."""
        return np.bincount(self.codes, minlength=len(self.names))

    @cached_property
    def prior(self) -> Floats:
        """Return the prior p (g,)."""
        uniform = self.options.prior == "uniform"
        return np.full(len(self.names), 1 / len(self.names)) if uniform else self.sizes / self.sizes.sum()

    def rank(self, texts: Mapping[str, Tensor], images: Mapping[str, UnitRows]) -> dict[str, Rows]:
        """Return method -> first rows (q, m) for its texts (q, d) among its images (n, d).

        As many as the resamples read; images that several methods share are read once for all their texts.
        """
        own, sharing = self.options, defaultdict(list)
        ranked: dict[str, Rows] = {}
        for method, rows in images.items():
            sharing[id(rows)].append(method)
        for methods in sharing.values():
            rows, of = images[methods[0]], [texts[method] for method in methods]
            order = rows.top(torch.cat(of), reach(max(own.k), len(rows)), ties=own.ties, seed=own.seed)
            ranked |= zip(methods, np.split(order, np.cumsum([len(some) for some in of])[:-1]), strict=True)
        return ranked

    def measure(self, groups: NDArray[np.integer], prior: Floats, relevant: Mask | None = None) -> dict[str, Floats]:
        """Return metric -> value (r,) of r rankings, given the groups (r, m) of their first rows.

        relevant: (r, m) whether each of the rows is, for precision@k.
        """
        values = {}
        for k in self.options.k:
            ratios = log_ratios(groups, k, prior, floor=self.options.floor or 0.0)
            with np.errstate(divide="ignore"):
                least = np.log((self.options.floor or 1 / (2 * k)) / prior)
            values[f"max_skew@{k}"] = np.nanmax(ratios, axis=1)
            values[f"min_skew@{k}"] = np.nanmin(np.maximum(ratios, least), axis=1)
            values[f"ndkl@{k}"] = ndkls(groups, k, prior)
            if relevant is not None:
                values[f"precision@{k}"] = relevant[:, :k].mean(axis=1)
            values |= {f"{own.name}@{k}": of(groups[:, :k], prior) for own, of in computed("rankings")}
        return values

    def values(self, ranked: Rows, relevant: Mask | None = None) -> dict[str, Floats]:
        """Return metric -> value (q,) of each query, from its ranking (q, m); relevant: (q, n), by row."""
        top = ranked[:, : max(self.options.k)]
        hits = None if relevant is None else np.take_along_axis(relevant, top, axis=1)
        return self.measure(self.codes[top], self.prior, hits)

    def resampled(self, ranked: Mapping[str, Rows], relevant: Mask | None = None) -> dict[str, dict[str, Floats]]:
        """Return method -> metric -> values (q, resamples) on galleries of n images sampled with replacement.

        All methods and queries see the same resamples, which makes their differences paired. The data set's prior is
        that of the resample. In a large gallery only counts of ranked rows, and of all others together, are sampled.
        """
        n, own = len(self.codes), self.options
        read = np.unique(np.concatenate([orders.ravel() for orders in ranked.values()]))
        read = np.arange(n) if 2 * len(read) > n else read  # else nothing is drawn of the others but their number
        codes, hits = self.codes[read], None if relevant is None else relevant[:, read]
        places = {method: np.searchsorted(read, orders) for method, orders in ranked.items()}
        others, rng = self.sizes - np.bincount(codes, minlength=len(self.names)), np.random.default_rng((own.seed, 1))
        blocks: dict[str, list[dict[str, Floats]]] = {method: [] for method in ranked}
        for weights in resampled_weights(n, own.resamples, own.seed, among=len(read)):
            prior = self.prior
            if own.prior == "dataset":
                held = np.stack([weights[:, codes == a].sum(axis=1) for a in range(len(self.names))], axis=1)
                rest = rng.multinomial(n - held.sum(axis=1), others / others.sum()) if others.any() else 0
                prior = (held + rest) / n
            weights = np.asfortranarray(weights.astype(np.min_scalar_type(weights.max())))
            for method, orders in places.items():
                each = []
                for query, order in enumerate(orders):
                    top = resampled_places(order, weights, max(own.k))
                    of_query = None if hits is None else hits[query, order][top]
                    each.append(self.measure(codes[order][top], prior, of_query))
                blocks[method].append({metric: np.stack([one[metric] for one in each]) for metric in each[0]})
        return {
            method: {metric: np.concatenate([part[metric] for part in parts], axis=1) for metric in parts[0]}
            for method, parts in blocks.items()
        }

    def random(self) -> dict[str, Floats]:
        """Return metric -> values (resamples,) of rankings that are random permutations of the gallery.

        Their mean is the expectation that a fair ranking of this gallery has. MaxSkew of a random ranking is above 0:
        the first k of a balanced gallery are not exactly balanced.
        """
        own = self.options
        blocks = random_rankings(len(self.codes), max(own.k), own.resamples, own.seed)
        parts = [self.measure(self.codes[rows], self.prior) for rows in blocks]
        return {metric: np.concatenate([part[metric] for part in parts]) for metric in parts[0]}


# ---- the task ------------------------------------------------------------------------------------------------


class Queries(Strict):
    """Name the class prompts of a prompt set, or its held-out ones, as queries."""

    of: Prompts
    held_out: bool = False

    def texts(self) -> tuple[str, ...]:
        """Return the prompts."""
        return self.of.held_out_classes if self.held_out else self.of.classes


@register_task
class RetrievalTask(SkewOptions, ImageTask):
    """Measure skew of retrieval: MaxSkew@k, MinSkew@k and NDKL@k of every method, mean over queries and per query.

    One block per attribute, named "<name> <attribute>". Images whose attribute is unknown are left out of its gallery
    and counted. Method "random" is the expectation under random rankings of the gallery, with the middle 95 % of it.
    Utility rows: recall of the gallery's captions, where the texts have them and the images are at most
    `MOST_CAPTIONS`; precision@k, where every query names one value of another column ("nurse" in "A photo of a nurse.",
    of a column of jobs); zero-shot accuracy of `classes`.

    prompts: attribute -> prompt set that the methods are fitted on, or several that are solved jointly. An attribute is
        a column ("gender") or an intersection of columns ("gender x race").
    queries: texts, or class prompts of a set.
    k: how many of the first results are looked at. prior, floor, ties: conventions of the skew, see `SkewOptions`.
    resample: what the interval of a mean over queries is about: "queries", where they are a sample of what people ask,
        or "images", where the protocol fixes them. Rows of one query are always about images.
    classes: column -> value -> its class prompt, of columns that have nothing to do with the attribute; a column of the
        attribute itself is left out, as are images without a label in one of the columns.
    """

    task: Literal["retrieval"] = "retrieval"
    prompts: Annotated[dict[str, SeveralPrompts], Field(min_length=1)]
    queries: Queries | list[str]
    resample: Literal["queries", "images"] = "images"
    classes: dict[str, dict[str, str]] = Field(default_factory=dict)

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task; by default the queries are the class prompts and k is a twentieth of the images.

        One column and one prompt set belong together, whatever they are called.
        """
        sets, images = sets_by_column(fields.get("prompts")), session.embedded(IMAGES)
        if len(sets) == len(images.labels) == 1 and not isinstance(fields["prompts"], Mapping):
            sets = dict(zip(images.labels, sets.values(), strict=True))
        asked = _queries(fields.get("queries"), list(chain(*sets.values())))
        few = max(10, len(images) // 20)
        return super().of_given(session, {"k": few, **fields, "prompts": sets, "queries": asked})

    def asked(self) -> tuple[str, ...]:
        """Return the queries."""
        return self.queries.texts() if isinstance(self.queries, Queries) else tuple(self.queries)

    def texts(self) -> tuple[str, ...]:
        """Return the prompts of all sets, the queries and the class prompts; captions are in the data."""
        classes = (prompt for prompts in self.classes.values() for prompt in prompts.values())
        return tuple(dict.fromkeys((*prompts_of(chain(*self.prompts.values())), *self.asked(), *classes)))

    def fitting(self, session: Session) -> Self:
        """Return the task with only the attributes and classes that the user's embeddings have labels of.

        Raises:
            InvalidInputError: there is no attribute of them.
        """
        if session.options.embeddings is None:
            return self
        there = session.file[0].labels
        fitting = {name: sets for name, sets in self.prompts.items() if set(name.split(" x ")) <= set(there)}
        left_out = [name for name in self.prompts if name not in fitting]
        if not fitting:
            raise InvalidInputError(
                f"{self.name}: expected a column for one of {left_out}, got {list(there)}; name it label.COLUMN in the "
                "file"
            )
        if left_out:
            missing = sorted({column for name in left_out for column in name.split(" x ")} - set(there))
            session.progress.say(
                f"{self.name}: {', '.join(left_out)} left out: the embeddings have no column {missing}"
            )
        classes = {column: texts for column, texts in self.classes.items() if column in there}
        return self.model_copy(update={"prompts": fitting, "classes": classes})

    def measure(
        self,
        images: Embeddings,
        texts: Texts,
        *,
        reference: Embeddings | None = None,
        edits: Mapping[str, Edit] | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Measure skew and utility on image embeddings.

        Args:
            images: the gallery, with a column for every attribute. texts: the text side of the same model.
            reference: unlabelled images, for the methods that use some.
            edits: name -> an edit that was fitted before, measured like a method.

        Raises:
            InvalidInputError: a column that is not there or has a single group, k above the number of images, widths
                of texts and images that differ, no query, class prompts that do not fit the names of a column.
        """
        queries = self.asked()
        if not queries:
            raise InvalidInputError(f"queries: expected one or more texts; {self.queries!r} has none")
        for column, prompts in self.classes.items():
            if set(prompts) != set(names := images.column(column).names):
                raise InvalidInputError(
                    f"classes.{column}: expected a prompt for each of {list(names)}, got {list(prompts)}"
                )
        self.check_images(images, texts, queries[0])
        others, counts = disjoint(reference, images, progress, self.methods)
        results = []
        for attribute, of in self.prompts.items():
            sets, name = [load_prompts(one) for one in of], f"{self.name} {attribute}"
            columns = [column.strip() for column in attribute.split(" x ")]
            labels = cross(*map(images.column, columns))
            doubt_labels(images, columns, sets)
            with progress.step(name) as bar:
                try:
                    held = Gallery(labels[labels.known], self)
                except InvalidInputError as error:
                    raise InvalidInputError(f"{name}: {error}") from None
                bar.note(f"fitting {len(self.methods) - 1} methods")
                fitted = self.fit(texts, sets, neutral=queries, reference=others, edits=edits)
                bar.note(f"ranking {len(held.labels)} images for {len(queries)} queries")
                n = {"queries": len(queries), "images": len(held.labels)}
                classes = {column: texts for column, texts in self.classes.items() if column not in columns}
                relevant = next((c for c in images.labels if c not in columns and _names_one(images, c, queries)), None)
                told = {
                    "title": f"Retrieval, {attribute}: skew of the first results (as in Table 7.5)",
                    "description": f"Text queries against a gallery of images; skew over {attribute} of the first k, "
                    f"mean over queries and per query. Intervals: {_INTERVALS[self.resample]}.",
                    "n": {**n, "unknown": int((~labels.known).sum()), "groups": len(held.names), **counts},
                    "settings": {
                        **{name: getattr(self, name) for name in SkewOptions.model_fields},
                        "floor": self.floor or "MaxSkew: none; MinSkew: 1 / (2 k)",
                        "prior shares": dict(zip(held.names, held.prior.tolist(), strict=True)),
                        "groups": labels.counts,
                        "images left out, not readable": len(images.about.get("skipped", ())),
                        "gallery": {key: images.about[key] for key in _ABOUT if key in images.about},
                        "queries": list(queries),
                        "resample": self.resample,
                        "intervals": f"95 %; {_INTERVALS[self.resample]}; {_RECENTRED}",
                        "random": f"mean of {self.resamples} random rankings, middle 95 % of a mean over the queries",
                        "recall": "a hit is any image with the same caption; images are resampled by caption",
                        "precision": relevant and f"an image is relevant where its {relevant} is what the query names",
                        "accuracy": {column: list(prompts.values()) for column, prompts in classes.items()},
                    },
                }
                about = {method: one.about for method, one in fitted.items()}
                provenance = self.provenance(name, images, texts, sets, about, reference=others, **told)
                result = TaskResult(provenance, details={method: one.details for method, one in fitted.items()})
                features = images.unit
                seen = {method: self.images(features, one.edit) for method, one in fitted.items()}
                under: dict[str, Project] = {m: partial(self.rows, texts, edit=one.edit) for m, one in fitted.items()}
                rows = {method: project(queries) for method, project in under.items()}
                known = {id(of): of if labels.known.all() else of.some(labels.known) for of in seen.values()}
                named = None if relevant is None else relevance(images.column(relevant)[labels.known], queries)
                ranked = held.rank(rows, {method: known[id(of)] for method, of in seen.items()})
                self._add_skews(result, held, ranked, queries, named)
                self._add_cosines(result, rows, seen, n)
                add_recall(result, images, texts, under, seen, self)
                add_accuracy(result, images, classes, under, seen, self)
                doubt_space(images.unit[spaced(len(images))], texts, [*queries, *prompts_of(sets)])
                for column, prompt_set in product(columns, sets):
                    doubt_values(images, column, texts, prompt_set)
                results.append(result)
        return results

    def _add_skews(
        self, result: TaskResult, held: Gallery, ranked: Mapping[str, Rows], queries: Sequence[str],
        relevant: Mask | None,
    ) -> None:  # fmt: skip
        """Add every metric of the rankings: means over queries first, then each query."""
        n = {"queries": len(queries), "images": len(held.labels)}
        values = {method: held.values(order, relevant) for method, order in ranked.items()}
        drawn, chance = held.resampled(ranked, relevant), held.random()
        for metric in values[NONE]:
            one = {method: of[metric] for method, of in values.items()}
            if self.resample == "queries":
                result.add_resampled(metric, one, n=n, resamples=self.resamples, seed=self.seed)
            else:
                means = {method: of[metric].mean(axis=0) for method, of in drawn.items()}
                point = {method: float(of.mean()) for method, of in one.items()}
                result.add_draws(metric, point, means, n=n, interval=recentred_interval)
            if metric in chance:
                rng, fair = np.random.default_rng(self.seed), float(chance[metric].mean())
                of_means = rng.choice(chance[metric], size=(self.resamples, len(queries))).mean(axis=1)
                low, high = np.quantile(of_means, [0.025, 0.975]).tolist()
                result.add(metric, CHANCE, fair, (low, high), n=n)
                bare, largest = float(one[NONE].mean()), float(held.sizes.max() / held.sizes.mean())
                uneven = self.prior == "uniform" and largest >= 1 + BALANCED
                if metric.startswith("max_skew@") and bare < fair and uneven:
                    sizes = ", ".join(f"{name} {size}" for name, size in zip(held.names, held.sizes, strict=True))
                    warn(
                        f"{result.provenance.task}: {metric} of none is {bare:.3f} and that of random rankings "
                        f"{fair:.3f} (images: {sizes}), so a method that ranks like chance reads as worse and no "
                        'verdict is given; give prior="dataset"',
                        SuspectInputWarning,
                    )
        for metric, (i, query) in product(values[NONE], enumerate(queries)):
            point = {method: float(of[metric][i]) for method, of in values.items()}
            own = {method: of[metric][i] for method, of in drawn.items()}
            result.add_draws(metric, point, own, n=n, interval=recentred_interval, subset=query)

    def _add_cosines(
        self, result: TaskResult, rows: Mapping[str, Tensor], images: Mapping[str, UnitRows], n: Mapping[str, int]
    ) -> None:
        """Add the cosine of each query, and where images are changed of each image, with itself before and after."""
        for method, one in images.items():
            if one is not images[NONE]:
                pairs = zip(images[NONE].split(), one.split(), strict=True)
                mean = sum(float((a.double() * b.double()).sum()) for a, b in pairs) / len(one)
                result.add("image_cosine", method, mean, n={"images": len(one)}, change=(mean - 1,) * 3)
        kept = {method: (rows[NONE] * row).sum(dim=1).numpy() for method, row in rows.items()}
        if self.resample == "queries":
            result.add_resampled("query_cosine", kept, n=n, resamples=self.resamples, seed=self.seed)
        else:
            result.add_draws("query_cosine", {m: float(of.mean()) for m, of in kept.items()}, n=n)


# ---- what it costs ---------------------------------------------------------------------------------------------


def add_recall(
    result: TaskResult, gallery: Embeddings, texts: Texts, under: Mapping[str, Project],
    images: Mapping[str, UnitRows], task: RetrievalTask,
) -> None:  # fmt: skip
    """Add recall of the gallery's captions, where the texts include them.

    Image to text: is the image's caption among the first k different captions? Text to image: is an image with this
    caption among the first k? A caption counts once for each of its images, which are drawn together, for they are not
    independent; the subset "" is the mean of both directions.
    """
    captioned = np.array([bool(caption) for caption in gallery.captions], dtype=bool)
    if not captioned.any() or len(gallery) > MOST_CAPTIONS:
        return
    captions, code = np.unique(np.array(gallery.captions)[captioned], return_inverse=True)
    if not texts.holds(captions.tolist()):
        return
    codes, own = torch.from_numpy(code), torch.arange(len(captions))
    ahead: dict[str, dict[str, NDArray[np.int64]]] = {"image to text": {}, "text to image": {}}
    for method, project in under.items():
        rows, seen = project(captions.tolist()).float(), images[method][captioned]
        ahead["image to text"][method] = first_hits(seen, rows, codes, own).numpy()
        ahead["text to image"][method] = first_hits(rows, seen, own, codes).numpy()[code]
    table: dict[tuple[str, str], dict[str, Floats]] = {}
    for k in RECALL:
        hits = {way: {m: (a < k).astype(float) for m, a in by.items()} for way, by in ahead.items()}
        both = {m: np.mean([hits[way][m] for way in hits], axis=0) for m in under}
        table |= {(f"recall@{k}", subset): values for subset, values in {"": both, **hits}.items()}
    _add_means(result, table, {"images": int(captioned.sum()), "captions": len(captions)}, task, code)


def add_accuracy(
    result: TaskResult, gallery: Embeddings, classes: Mapping[str, Mapping[str, str]], under: Mapping[str, Project],
    images: Mapping[str, UnitRows], task: RetrievalTask,
) -> None:  # fmt: skip
    """Add zero-shot accuracy in each column, and the mean over columns where there are several.

    Scores are float64 products, rounded to far more digits than matter: equal images tie whatever the order of sums.
    """
    if not classes:
        return
    known = np.logical_and.reduce([gallery.column(column).known for column in classes])
    if not known.any():
        raise InvalidInputError(f"classes: no image has a label in every one of {list(classes)}")
    right: dict[str, dict[str, Floats]] = {}
    for column, prompts in classes.items():
        labels, right[column] = gallery.column(column), {}
        for method, project in under.items():
            texts = project([prompts[name] for name in labels.names]).double()
            blocks = [texts @ some.double().T for some in images[method].some(known).split(1 << 13)]
            nearest = torch.cat(blocks, dim=1).numpy().round(12).argmax(axis=0)
            right[column][method] = (nearest == labels.codes[known]).astype(float)
    mean = {method: np.mean([by[method] for by in right.values()], axis=0) for method in under}
    subsets = {"": mean} if len(right) == 1 else {"": mean, **right}
    n = {"images": int(known.sum()), "without a label": int((~known).sum())}
    _add_means(result, {("accuracy", subset): values for subset, values in subsets.items()}, n, task)


def _add_means(
    result: TaskResult, table: Mapping[tuple[str, str], Mapping[str, Floats]], n: Mapping[str, int],
    task: RetrievalTask, clusters: NDArray[np.integer] | None = None,
) -> None:  # fmt: skip
    """Rows of means over images: (metric, subset) -> method -> values (n,), whole clusters drawn where given."""
    cells = [(key, method) for key, values in table.items() for method in values]
    sums = np.stack([table[key][method] for key, method in cells], axis=1)
    sizes = np.ones(len(sums))
    if clusters is not None:
        sizes = np.bincount(clusters).astype(float)
        sums = np.stack([np.bincount(clusters, weights=column) for column in sums.T], axis=1)
    weights = (block.astype(float) for block in resampled_weights(len(sizes), task.resamples, task.seed))
    draws = dict(zip(cells, np.concatenate([w @ sums / (w @ sizes)[:, None] for w in weights]).T, strict=True))
    for key, by_method in table.items():
        point = {method: float(one.mean()) for method, one in by_method.items()}
        drawn = {method: draws[key, method] for method in by_method}
        result.add_draws(key[0], point, drawn, n=n, interval=recentred_interval, subset=key[1])


def _queries(given: Any, sets: Sequence[PromptSet]) -> list[str]:
    """Texts to ask for: those given, the class prompts of a set, or those of the sets themselves."""
    if isinstance(given, Queries):
        return list(given.texts())
    if isinstance(given, (str, PromptSet)):
        return list(load_prompts(given).classes)
    texts = list(given) if given is not None else list(dict.fromkeys(p for s in sets for p in s.classes))
    if not texts:
        missing = "got none" if given is not None else f"{[s.name for s in sets]} have no class prompts"
        raise InvalidInputError(f"queries: expected a list of texts, {missing}; give queries=")
    return texts


def _names_one(images: Embeddings, column: str, queries: Sequence[str]) -> bool:
    """Whether every query names exactly one of the values of a column."""
    words = StatedWords([name for name in images.column(column).names if any(map(str.isalnum, name))])
    return all(len(words.find(query)) == 1 for query in queries)


def relevance(labels: Labels, queries: Sequence[str]) -> Mask:
    """Return whether (q, n) the label of image n is the one that query q names; an unknown label is not relevant."""
    words = StatedWords([name for name in labels.names if any(map(str.isalnum, name))])
    codes = np.array([labels.names.index(words.find(query)[0]) for query in queries])
    return codes[:, None] == labels.codes
