"""Skew of text-to-image retrieval (Table 7.5): are the first k images spread over the groups, and what does it cost?

Source: section 7.4.2 of Chuang's thesis (Chuang et al., "Debiasing Vision-Language Models via Biased Prompts", 2023)
with MaxSkew and NDKL of Geyik et al. (2019). The protocol of Table 7.5: the validation split of FairFace, the ten
queries of Table A.7, k = 1000, a uniform prior, one projection per attribute column, the mean over queries.

Intervals over queries: the queries are a sample of what people ask, such as professions; the gallery is taken as it is.
Over images: the queries are fixed by the protocol, and the gallery is a sample. A resampled gallery repeats images, so
its first k hold fewer different ones and a maximum over groups strays further up. So the resampled values are moved to
have their mean at the value, and percentiles are taken then (`recentred_interval`). Such an interval covers the
expected value of the metric on a gallery of this size; it says nothing of a gallery of infinite size, whose MaxSkew is
lower (`eval/experiments/coverage_shares.py` counts how often).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    Fitted,
    ImageTask,
    disjoint,
    doubt_labels,
    doubt_space,
    doubt_values,
    names_of,
    prompts_of,
    sets_by_column,
    spaced,
)
from vldebias.evaluation.result import CHANCE, NONE, TaskResult
from vldebias.evaluation.task import Count, Number, Session, SeveralPrompts, Strict, Texts, register_task
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
MOST_CAPTIONS = 10_000  # images up to which recall of captions is measured unasked: its cost grows with the square
_INTERVALS = {
    "queries": "mean over queries: bootstrap over queries, given the gallery; one query: bootstrap over images",
    "images": "bootstrap over images of the gallery, given the queries",
}
_RECENTRED = "over images: percentiles of resampled galleries, moved to have their mean at the value"
_ABOUT = ("data_fingerprint", "digest", "preprocessing", "dtype", "source", "values read as unknown")

# ---- skew of a gallery ---------------------------------------------------------------------------------------


class SkewOptions(Strict):
    """The conventions of a skew, in which papers differ.

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
    """The images whose group is known, and what counts as skew among them; labels: one per image, all known.

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
        """The groups that have an image."""
        return tuple(name for name, n in self.labels.counts.items() if n)

    @cached_property
    def codes(self) -> NDArray[np.unsignedinteger]:
        """(n,) positions in `names`, in the smallest type that holds them: small ones sort in linear time."""
        held = np.bincount(self.labels.codes, minlength=len(self.labels.names)) > 0
        return (np.cumsum(held) - 1).astype(np.min_scalar_type(len(self.names)))[self.labels.codes]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(g,) images of each group."""
        return np.bincount(self.codes, minlength=len(self.names))

    @cached_property
    def prior(self) -> Floats:
        """p (g,)."""
        uniform = self.options.prior == "uniform"
        return np.full(len(self.names), 1 / len(self.names)) if uniform else self.sizes / self.sizes.sum()

    def rank(self, texts: Mapping[str, Tensor], images: Mapping[str, UnitRows]) -> dict[str, Rows]:
        """Return method -> the first rows (q, m) for its texts (q, d) among its images (n, d).

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
        """Return metric -> value (r,) of r rankings, of whose first rows the groups (r, m) are given.

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
        """Return method -> metric -> values (q, resamples) on galleries of n images drawn with replacement.

        All methods and queries see the same resamples, which makes their differences paired. The data set's prior is
        that of the resample. Of a large gallery no more is drawn than how often each row of the rankings is there.
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
    """Class prompts of a prompt set as queries, or its held-out ones."""

    of: str
    held_out: bool = False

    def texts(self) -> tuple[str, ...]:
        """Return the prompts."""
        prompts = load_prompts(self.of)
        return prompts.held_out_classes if self.held_out else prompts.classes


class Utility(Strict):
    """What retrieval is to keep: does it still find what was asked for?

    captions: recall between images and the captions of the gallery; None: where it has captions that the texts hold,
        and at most `MOST_CAPTIONS` images. recall_k: the k of recall@k.
    classes: column -> value -> its class prompt: zero-shot accuracy on classes that have nothing to do with the
        attribute; a column of the attribute itself is left out, as are images without a label in one of the columns.
    relevant: a column whose names appear in the queries ("nurse" in "A photo of a nurse."): precision@k, the share of
        the first k images that have the name as their label; an unknown label is not relevant. None: the first column
        of which every query names one value; "": none.
    """

    captions: bool | None = None
    recall_k: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 5, 10)
    classes: dict[str, dict[str, str]] = Field(default_factory=dict)
    relevant: str | None = None

    def apart_from(self, attribute: str, gallery: Embeddings, queries: Sequence[str], texts: Texts) -> Utility:
        """Return what is measured on a gallery, apart from an attribute ("gender x race"), which may change.

        Raises:
            InvalidInputError: captions that are not there, prompts that do not fit the names of a column.
        """
        if self.captions and not any(gallery.captions):
            raise InvalidInputError("utility: captions: true and the gallery has no captions; turn it off or add them")
        for column, prompts in self.classes.items():
            if set(prompts) != set(names := gallery.column(column).names):
                raise InvalidInputError(
                    f"utility.classes.{column}: expected a prompt for each of {list(names)}, got {list(prompts)}"
                )
        own, captions, relevant = _columns([attribute]), self.captions, self.relevant
        classes = {column: prompts for column, prompts in self.classes.items() if column not in own}
        if captions is None:
            captioned = tuple(dict.fromkeys(caption for caption in gallery.captions if caption))
            captions = len(captioned) > 0 and len(gallery) <= MOST_CAPTIONS and texts.holds(captioned)
        if relevant is None:
            others = [(column, labels) for column, labels in gallery.labels.items() if column not in own]
            relevant = next((column for column, labels in others if _names_one(labels, queries)), "")
        return self.model_copy(update={"classes": classes, "captions": captions, "relevant": relevant})

    def conventions(self) -> dict[str, Any]:
        """Return what a provenance says about it."""
        told: dict[str, Any] = {}
        if self.captions:
            told["recall"] = (
                "a hit is any image with the same caption; images drawn by caption; both directions and mean"
            )
        if self.classes:
            told["accuracy"] = {column: list(prompts.values()) for column, prompts in self.classes.items()}
        if self.relevant:
            told["precision"] = f"an image is relevant where its {self.relevant} is the one that the query names"
        return told


@register_task
class RetrievalTask(SkewOptions, ImageTask):
    """Skew of retrieval: MaxSkew@k, MinSkew@k and NDKL@k of every method, mean over queries and per query.

    One block per attribute, named "<name> <attribute>". Images whose attribute is unknown are left out of its gallery
    and counted. Method "random" is the expectation under random rankings of the gallery, with the middle 95 % of it.

    prompts: attribute -> prompt set that the methods are fitted on, or several that are solved jointly. An attribute is
        a column ("gender") or an intersection of columns ("gender x race").
    queries: what is asked: texts, or class prompts of a set.
    k: how many of the first results are looked at. prior, floor, ties: conventions of the skew, see `SkewOptions`.
    resample: what the interval of a mean over queries is about: "queries", where they are a sample of what people ask,
        or "images", where the protocol fixes them. Rows of one query are always about images.
    utility: what else to measure.
    """

    task: Literal["retrieval"] = "retrieval"
    prompts: Annotated[dict[str, SeveralPrompts], Field(min_length=1)]
    queries: Queries | list[str]
    resample: Literal["queries", "images"] = "images"
    utility: Utility = Utility()

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task, of the class prompts as queries and a twentieth of the images as k by default.

        One column and one prompt set belong together, whatever they are called.
        """
        sets, images = sets_by_column(fields.get("prompts")), session.embedded(IMAGES)
        if len(sets) == len(images.labels) == 1 and not isinstance(fields["prompts"], Mapping):
            sets = dict(zip(images.labels, sets.values(), strict=True))
        asked = _queries(fields.get("queries"), list(chain(*sets.values())))
        few = max(10, len(images) // 20)
        return super().of_given(session, {"k": few, **fields, "prompts": sets, "queries": asked})

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """Those of the attributes and of the queries."""
        of_queries = () if isinstance(self.queries, list) else (self.queries.of,)
        return *of_queries, *names_of(chain(*self.prompts.values()))

    def asked(self) -> tuple[str, ...]:
        """Return the queries."""
        return self.queries.texts() if isinstance(self.queries, Queries) else tuple(self.queries)

    def texts(self) -> tuple[str, ...]:
        """Return the prompts of all sets, the queries and the class prompts; captions are in the data."""
        classes = (prompt for prompts in self.utility.classes.values() for prompt in prompts.values())
        return tuple(dict.fromkeys((*prompts_of(chain(*self.prompts.values())), *self.asked(), *classes)))

    def of_attributes(self, names: Collection[str]) -> Self:
        """Return the task of some attributes; class prompts of the columns of the others are not asked for either."""
        prompts = {name: sets for name, sets in self.prompts.items() if name in names}
        left_out = _columns(self.prompts) - _columns(prompts)
        classes = {column: texts for column, texts in self.utility.classes.items() if column not in left_out}
        utility = self.utility.model_copy(update={"classes": classes})
        return self.model_copy(update={"prompts": prompts, "utility": utility})

    def fitting(self, session: Session) -> Self:
        """Return the task of the attributes that the user's embeddings have labels of; the others are named.

        Raises:
            InvalidInputError: there is none of them.
        """
        if session.options.embeddings is None:
            return self
        there = session.file[0].labels
        fitting = [name for name in self.prompts if _columns([name]) <= set(there)]
        left_out = [name for name in self.prompts if name not in fitting]
        if not fitting:
            raise InvalidInputError(
                f"{self.name}: expected a column for one of {list(self.prompts)}, got {list(there)}; name it "
                "label.COLUMN in the file"
            )
        if left_out:
            missing = sorted(_columns(self.prompts) - set(there))
            session.say(f"{self.name}: {', '.join(left_out)} left out: the embeddings have no column {missing}")
        return self.of_attributes(fitting)

    def measure(
        self,
        images: Embeddings,
        texts: Texts,
        *,
        reference: Embeddings | None = None,
        edits: Mapping[str, Edit] | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Measure image embeddings.

        Args:
            images: the gallery, with a column for every attribute. texts: the text side of the same model.
            reference: unlabelled images, for the methods that use some.
            edits: name -> an edit that was fitted before, measured like a method.

        Raises:
            InvalidInputError: a column that is not there or has a single group, k above the number of images, widths
                of texts and images that differ, no query.
        """
        queries = self.asked()
        if not queries:
            raise InvalidInputError(f"queries: expected one or more texts; {self.queries!r} has none")
        self.check_images(images, texts, queries[0])
        others, counts = disjoint(reference, images, progress, self.methods)
        results = []
        for attribute, of in self.prompts.items():
            sets, name = [load_prompts(one) for one in of], f"{self.name} {attribute}"
            columns = [column.strip() for column in attribute.split(" x ")]
            utility = self.utility.apart_from(attribute, images, queries, texts)
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
                n = {"images": len(held.labels), "unknown": int((~labels.known).sum()), "queries": len(queries)}
                told = {
                    "title": f"Retrieval, {attribute}: skew of the first results (as in Table 7.5)",
                    "description": f"Text queries against a gallery of images; skew over {attribute} of the first k, "
                    f"mean over queries and per query. Intervals: {_INTERVALS[self.resample]}.",
                    "n": {**n, "groups": len(held.names), **counts},
                    "settings": self._conventions(images, held, labels, queries) | utility.conventions(),
                }
                about = {method: one.about for method, one in fitted.items()}
                provenance = self.provenance(name, images, texts, sets, about, reference=others, **told)
                result = TaskResult(provenance, details={method: one.details for method, one in fitted.items()})
                _Block(self, images, held, labels, texts, queries, fitted, utility, result).fill()
                doubt_space(images.unit[spaced(len(images))], texts, [*queries, *prompts_of(sets)])
                for column, prompt_set in product(columns, sets):
                    doubt_values(images, column, texts, prompt_set)
                results.append(result)
        return results

    def _conventions(self, all_: Embeddings, held: Gallery, labels: Labels, queries: Sequence[str]) -> dict[str, Any]:
        """Everything that changes a figure of the skew, to be printed with it."""
        floors = {f"max_skew@{k}": self.floor or 0.0 for k in self.k}
        floors |= {f"min_skew@{k}": self.floor or 1 / (2 * k) for k in self.k}
        return {
            "k": list(self.k),
            "prior": self.prior,
            "prior shares": dict(zip(held.names, held.prior.tolist(), strict=True)),
            "ties": self.ties,
            "floor": floors,
            "groups": labels.counts,
            "groups left out, without an image": [name for name, n in labels.counts.items() if not n],
            "images left out, group unknown": int((~labels.known).sum()),
            "images left out, not readable": len(all_.about.get("skipped", ())),
            "gallery": {key: all_.about[key] for key in _ABOUT if key in all_.about},
            "queries": list(queries),
            "resample": self.resample,
            "resamples": self.resamples,
            "seed": self.seed,
            "intervals": f"95 %; {_INTERVALS[self.resample]}; {_RECENTRED}",
            "random": f"mean of {self.resamples} random rankings, with the middle 95 % of a mean over the queries",
        }


@dataclass(frozen=True, eq=False)
class _Block:
    """One attribute: what its rows are made of. labels: of every image; held: the images whose label is known."""

    task: RetrievalTask
    gallery: Embeddings
    held: Gallery
    labels: Labels
    texts: Texts
    queries: tuple[str, ...]
    fitted: Mapping[str, Fitted]
    utility: Utility
    result: TaskResult

    def fill(self) -> None:
        """Add skew, cosine of the queries, and what else the utility asks for."""
        features = self.gallery.unit
        images = {method: self.task.images(features, one.edit) for method, one in self.fitted.items()}
        under: dict[str, Project] = {
            method: partial(self.task.rows, self.texts, edit=one.edit) for method, one in self.fitted.items()
        }
        rows = {method: project(self.queries) for method, project in under.items()}
        self._skew(rows, images)
        self._cosines(rows, images)
        if self.utility.captions:
            self._recall(under, images)
        if self.utility.classes:
            self._accuracy(under, images)

    @property
    def _n(self) -> dict[str, int]:
        return {"queries": len(self.queries), "images": len(self.held.labels)}

    def _skew(self, rows: Mapping[str, Tensor], images: Mapping[str, UnitRows]) -> None:
        """Every metric of the ranking: means over queries first, then each query."""
        known, column, task, n = self.labels.known, self.utility.relevant, self.task, self._n
        features = {id(all_): all_ if known.all() else all_.some(known) for all_ in images.values()}
        relevant = relevance(self.gallery.column(column)[known], column, self.queries) if column else None
        ranked = self.held.rank(rows, {method: features[id(all_)] for method, all_ in images.items()})
        values = {method: self.held.values(order, relevant) for method, order in ranked.items()}
        drawn, chance = self.held.resampled(ranked, relevant), self.held.random()
        for metric in values[NONE]:
            one = {method: of[metric] for method, of in values.items()}
            if task.resample == "queries":
                self.result.add_resampled(metric, one, n=n, resamples=task.resamples, seed=task.seed)
            else:
                means = {method: of[metric].mean(axis=0) for method, of in drawn.items()}
                point = {method: float(of.mean()) for method, of in one.items()}
                self.result.add_draws(metric, point, means, n=n, interval=recentred_interval)
            if metric in chance:
                rng = np.random.default_rng(task.seed)
                of_means = rng.choice(chance[metric], size=(task.resamples, len(self.queries))).mean(axis=1)
                low, high = np.quantile(of_means, [0.025, 0.975]).tolist()
                self.result.add(metric, CHANCE, float(chance[metric].mean()), (low, high), n=n)
                self._warn_of_prior(metric, float(one[NONE].mean()), float(chance[metric].mean()))
        for metric, (i, query) in product(values[NONE], enumerate(self.queries)):
            point = {method: float(of[metric][i]) for method, of in values.items()}
            own = {method: of[metric][i] for method, of in drawn.items()}
            self.result.add_draws(metric, point, own, n=n, interval=recentred_interval, subset=query)

    def _warn_of_prior(self, metric: str, none: float, chance: float) -> None:
        """Warn where the gallery itself is further from the prior than what is found in it.

        Of a balanced gallery there is no skew to remove then, which the table says.
        """
        largest = float(self.held.sizes.max() / self.held.sizes.mean())
        if not metric.startswith("max_skew@") or none >= chance or self.task.prior != "uniform":
            return
        if largest >= 1 + BALANCED:
            sizes = ", ".join(f"{name} {n}" for name, n in zip(self.held.names, self.held.sizes.tolist(), strict=True))
            warn(
                f"{self.result.provenance.task}: {metric} of none is {none:.3f} and that of random rankings "
                f"{chance:.3f} (images: {sizes}), so a method that ranks like chance reads as worse and no verdict is "
                'given; give prior="dataset"',
                SuspectInputWarning,
            )

    def _cosines(self, rows: Mapping[str, Tensor], images: Mapping[str, UnitRows]) -> None:
        """Cosine of each query, and where images are changed of each image, with itself before and after."""
        for method, one in images.items():
            if one is not images[NONE]:
                pairs = zip(images[NONE].split(), one.split(), strict=True)
                mean = sum(float((a.double() * b.double()).sum()) for a, b in pairs) / len(one)
                self.result.add("image_cosine", method, mean, n={"images": len(one)}, change=(mean - 1,) * 3)
        kept = {method: (rows[NONE] * row).sum(dim=1).numpy() for method, row in rows.items()}
        if self.task.resample == "queries":
            resamples, seed = self.task.resamples, self.task.seed
            self.result.add_resampled("query_cosine", kept, n=self._n, resamples=resamples, seed=seed)
        else:
            self.result.add_draws("query_cosine", {m: float(of.mean()) for m, of in kept.items()}, n=self._n)

    # ---- what it costs ---------------------------------------------------------------------------------------

    def _recall(self, under: Mapping[str, Project], images: Mapping[str, UnitRows]) -> None:
        """Image to text: is the image's caption among the first k different captions? Text to image: is an image with
        this caption among the first k? A caption counts once for each of its images, which are drawn together, for
        they are not independent; the subset "" is the mean of both directions.
        """
        captioned = np.array([bool(caption) for caption in self.gallery.captions])
        captions, code = np.unique(np.array(self.gallery.captions)[captioned], return_inverse=True)
        codes, own = torch.from_numpy(code), torch.arange(len(captions))
        ahead: dict[str, dict[str, NDArray[np.int64]]] = {"image to text": {}, "text to image": {}}
        for method, project in under.items():
            rows, seen = project(captions.tolist()).float(), images[method][captioned]
            ahead["image to text"][method] = first_hits(seen, rows, codes, own).numpy()
            ahead["text to image"][method] = first_hits(rows, seen, own, codes).numpy()[code]
        table: dict[tuple[str, str], dict[str, Floats]] = {}
        for k in self.utility.recall_k:
            hits = {way: {m: (a < k).astype(float) for m, a in by.items()} for way, by in ahead.items()}
            both = {m: np.mean([hits[way][m] for way in hits], axis=0) for m in under}
            table |= {(f"recall@{k}", subset): values for subset, values in {"": both, **hits}.items()}
        self._means(table, {"images": int(captioned.sum()), "captions": len(captions)}, code)

    def _accuracy(self, under: Mapping[str, Project], images: Mapping[str, UnitRows]) -> None:
        """Zero-shot accuracy in each column, and the mean over columns where there are several.

        Scores are float64 products, rounded far below their meaning: equal images tie whatever the order of sums.
        """
        classes = self.utility.classes
        known = np.logical_and.reduce([self.gallery.column(column).known for column in classes])
        if not known.any():
            raise InvalidInputError(f"utility: no image has a label in every one of {list(classes)}")
        right: dict[str, dict[str, Floats]] = {}
        for column, prompts in classes.items():
            labels, right[column] = self.gallery.column(column), {}
            for method, project in under.items():
                texts = project([prompts[name] for name in labels.names]).double()
                blocks = [texts @ some.double().T for some in images[method].some(known).split(1 << 13)]
                nearest = torch.cat(blocks, dim=1).numpy().round(12).argmax(axis=0)
                right[column][method] = (nearest == labels.codes[known]).astype(float)
        mean = {method: np.mean([by[method] for by in right.values()], axis=0) for method in under}
        subsets = {"": mean} if len(right) == 1 else {"": mean, **right}
        n = {"images": int(known.sum()), "without a label": int((~known).sum())}
        self._means({("accuracy", subset): values for subset, values in subsets.items()}, n)

    def _means(
        self, table: Mapping[tuple[str, str], Mapping[str, Floats]], n: Mapping[str, int],
        clusters: NDArray[np.integer] | None = None,
    ) -> None:  # fmt: skip
        """Rows of means over images: (metric, subset) -> method -> values (n,), whole clusters drawn where given."""
        cells = [(key, method) for key, values in table.items() for method in values]
        sums = np.stack([table[key][method] for key, method in cells], axis=1)
        sizes = np.ones(len(sums))
        if clusters is not None:
            sizes = np.bincount(clusters).astype(float)
            sums = np.stack([np.bincount(clusters, weights=column) for column in sums.T], axis=1)
        weights = resampled_weights(len(sizes), self.task.resamples, self.task.seed)
        means = np.concatenate([w @ sums / (w @ sizes)[:, None] for w in (block.astype(float) for block in weights)])
        draws = dict(zip(cells, means.T, strict=True))
        for (metric, subset), by_method in table.items():
            point = {method: float(one.mean()) for method, one in by_method.items()}
            drawn = {method: draws[(metric, subset), method] for method in by_method}
            self.result.add_draws(metric, point, drawn, n=n, interval=recentred_interval, subset=subset)


def _columns(attributes: Iterable[str]) -> set[str]:
    """Those that attributes are made of: "gender x race" of two."""
    return {column.strip() for attribute in attributes for column in attribute.split(" x ")}


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


def _names_one(labels: Labels, queries: Sequence[str]) -> bool:
    """Whether every query names exactly one of the values."""
    words = StatedWords([name for name in labels.names if any(map(str.isalnum, name))])
    return all(len(words.find(query)) == 1 for query in queries)


def relevance(labels: Labels, column: str, queries: Sequence[str]) -> Mask:
    """Return (q, n): is the label of image n the one that query q names? column: what the labels are called.

    Raises:
        InvalidInputError: a query names none of the labels' names, or several.
    """
    words = StatedWords(labels.names)
    named = {query: words.find(query) for query in queries}
    wrong = {query: list(names) for query, names in named.items() if len(names) != 1}
    if wrong:
        raise InvalidInputError(
            f"utility: relevant={column!r}: expected each query to name one of {list(labels.names)}, got {wrong}"
        )
    codes = np.array([labels.names.index(named[query][0]) for query in queries])
    return codes[:, None] == labels.codes
