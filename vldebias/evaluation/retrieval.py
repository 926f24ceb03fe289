"""Skew of text-to-image retrieval (Table 7.5): are the first k images spread over the groups, and what does it cost?

Source: section 7.4.2 of Chuang's thesis (Chuang et al., "Debiasing Vision-Language Models via Biased Prompts", 2023)
with MaxSkew and NDKL of Geyik et al. (2019). The protocol of Table 7.5: the validation split of FairFace, the ten
queries of Table A.7, k = 1000, a uniform prior, one projection per attribute column, the mean over queries.

Intervals over queries: the queries are a sample of what people ask, such as professions; the gallery is taken as it is.
Over images: the queries are fixed by the protocol, and the gallery is a sample. That needs care: a resampled gallery
repeats images, so its first k hold fewer different ones and a maximum over groups strays further up. So the resampled
values are moved to have their mean at the value, and percentiles are taken then (`recentred_interval`). Such an
interval covers the expected value of the metric on a gallery of this size; it says nothing of a gallery of infinite
size, whose MaxSkew is lower. `eval/benchmarks/skew.py` simulates the coverage of both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from vldebias.data import Embeddings, Labels, UnitRows, cross
from vldebias.errors import InvalidInputError
from vldebias.evaluation.gallery import Gallery, SkewOptions, scores
from vldebias.evaluation.images import IMAGES, Fitted, ImageTask, names_of, prompts_of, sets_by_column
from vldebias.evaluation.plausible import doubt_labels, doubt_space, doubt_values, spaced
from vldebias.evaluation.reference_images import disjoint
from vldebias.evaluation.result import CHANCE, TaskResult
from vldebias.evaluation.task import Count, Session, SeveralPrompts, Strict, register_task
from vldebias.evaluation.texts import Texts
from vldebias.metrics.bootstrap import recentred_interval, resampled_weights
from vldebias.metrics.rankings import first_hits
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, StatedWords, load_prompts

if TYPE_CHECKING:
    from vldebias.edit import Edit

Floats = NDArray[np.float64]
Project = Callable[[Sequence[str]], Tensor]  # prompts -> normalised rows under one method

_INTERVALS = {
    "queries": "mean over queries: bootstrap over queries, given the gallery; one query: bootstrap over images",
    "images": "bootstrap over images of the gallery, given the queries",
}
_RECENTRED = "over images: percentiles of resampled galleries, moved to have their mean at the value"
_ABOUT = (
    "data_fingerprint",
    "digest",
    "preprocessing",
    "dtype",
    "source",
    "values read as unknown",
)  # of the gallery, what figures depend on


class Queries(Strict):
    """Class prompts of a prompt set as queries, or its held-out ones."""

    of: str
    held_out: bool = False

    def texts(self) -> tuple[str, ...]:
        """The prompts."""
        prompts = load_prompts(self.of)
        return prompts.held_out_classes if self.held_out else prompts.classes


class Utility(Strict):
    """What retrieval is to keep; nothing by default but the cosine of each query with itself.

    captions: recall between images and the captions of the gallery; recall_k: the k of recall@k.
    classes: column -> value -> its class prompt: zero-shot accuracy on classes that have nothing to do with the
        attribute; a column of the attribute itself is left out, as are images without a label in one of the columns.
    relevant: a column whose names appear in the queries ("nurse" in "A photo of a nurse."): precision@k, the share of
        the first k images that have the name as their label; an unknown label is not relevant.
    """

    captions: bool = False
    recall_k: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 5, 10)
    classes: dict[str, dict[str, str]] = Field(default_factory=dict)
    relevant: str | None = None

    def check(self, gallery: Embeddings) -> None:
        """Refuse what the gallery cannot give: captions that are not there, prompts that do not fit the names."""
        if self.captions and not any(gallery.captions):
            raise InvalidInputError("utility: captions: true and the gallery has no captions; turn it off or add them")
        for column, prompts in self.classes.items():
            names = gallery.column(column).names
            if set(prompts) != set(names):
                raise InvalidInputError(
                    f"utility.classes.{column}: expected a prompt for each of {list(names)}, got {list(prompts)}"
                )

    def apart_from(self, attribute: str) -> Utility:
        """Without the columns of an attribute, "gender" or "gender x race": that they change is what was asked for."""
        own = _columns([attribute])
        return self.model_copy(update={"classes": {c: p for c, p in self.classes.items() if c not in own}})

    def conventions(self) -> dict[str, Any]:
        """What a provenance says about it."""
        texts = {
            "recall": "a hit is any image with the same caption; images drawn by caption; both directions and mean",
            "accuracy": {column: list(prompts.values()) for column, prompts in self.classes.items()},
            "precision": f"an image is relevant where its {self.relevant} is the one that the query names",
        }
        measures = {"recall": self.captions, "accuracy": self.classes, "precision": self.relevant}
        return {name: text for name, text in texts.items() if measures[name]}


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
        """Of the class prompts as queries and a twentieth of the images as k, where nothing else is asked for.

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
        """The queries."""
        return self.queries.texts() if isinstance(self.queries, Queries) else tuple(self.queries)

    def texts(self) -> tuple[str, ...]:
        """The prompts of all sets, the queries and the class prompts; captions are in the data."""
        sets = chain(*self.prompts.values())
        classes = (prompt for prompts in self.utility.classes.values() for prompt in prompts.values())
        return tuple(dict.fromkeys((*prompts_of(sets), *self.asked(), *classes)))

    def of_attributes(self, names: Collection[str]) -> Self:
        """Of some of its attributes; class prompts of the columns of the others are not asked for either."""
        prompts = {name: sets for name, sets in self.prompts.items() if name in names}
        left_out = _columns(self.prompts) - _columns(prompts)
        classes = {column: texts for column, texts in self.utility.classes.items() if column not in left_out}
        return self.model_copy(
            update={"prompts": prompts, "utility": self.utility.model_copy(update={"classes": classes})}
        )

    def fitting(self, session: Session) -> Self:
        """Of the attributes that the user's embeddings have labels of; the others are named.

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
                "label.COLUMN in the file, or say which it is with --key label.COLUMN=NAME"
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
            images: the gallery, with a column for every attribute.
            texts: the text side of the same model.
            reference: unlabelled images, for the methods that use some.
            edits: name -> an edit that was fitted before, measured like a method.

        Raises:
            InvalidInputError: a column that is not there or has a single group, k above the number of images, widths
                of texts and images that differ, no query.
        """
        gallery, queries = images, self.asked()
        if not queries:
            raise InvalidInputError(f"queries: expected one or more texts; {self.queries!r} has none")
        self.utility.check(gallery)
        self.check_images(gallery, texts, queries[0])
        others, counts = disjoint(reference, gallery, progress, self.methods)
        results = []
        for attribute, of in self.prompts.items():
            sets = [load_prompts(one) for one in of]
            name = f"{self.name} {attribute}"
            columns = [column.strip() for column in attribute.split(" x ")]
            labels = cross(*map(gallery.column, columns))
            doubt_labels(gallery, columns, sets)
            with progress.step(name) as bar:
                try:
                    held = Gallery(labels[labels.known], self)
                except InvalidInputError as error:
                    raise InvalidInputError(f"{name}: {error}") from None
                bar.note(f"fitting {len(self.methods) - 1} methods")
                fitted = self.fit(texts, sets, neutral=queries, reference=others, edits=edits)
                bar.note(f"ranking {len(held.labels)} images for {len(queries)} queries")
                n = {
                    "images": len(held.labels),
                    "unknown": int((~labels.known).sum()),
                    "queries": len(queries),
                    "groups": len(held.names),
                    **counts,
                }
                provenance = self.provenance(
                    name,
                    gallery,
                    texts,
                    sets,
                    {method: one.about for method, one in fitted.items()},
                    reference=others,
                    title=f"Retrieval, {attribute}: skew of the first results (as in Table 7.5)",
                    description=f"Text queries against a gallery of images; skew over {attribute} of the first k, mean "
                    f"over queries and per query. Intervals: {_INTERVALS[self.resample]}.",
                    n=n,
                    settings=self._conventions(gallery, held, labels, queries)
                    | self.utility.apart_from(attribute).conventions(),
                )
                result = TaskResult(provenance, details={method: one.details for method, one in fitted.items()})
                _Block(self, gallery, held, labels, texts, queries, fitted, result).fill(attribute)
                doubt_space(gallery.unit[spaced(len(gallery))], texts, [*queries, *prompts_of(sets)])
                for column, prompt_set in product(columns, sets):
                    doubt_values(gallery, column, texts, prompt_set)
                results.append(result)
        return results

    def _conventions(self, all_: Embeddings, held: Gallery, labels: Labels, queries: Sequence[str]) -> dict[str, Any]:
        """Everything that changes a figure of the skew, to be printed with it."""
        floors = {f"max_skew@{k}": self.floor or 0.0 for k in self.k}
        floors |= {f"min_skew@{k}": self.floor or 1 / (2 * k) for k in self.k}
        return {
            "k": list(self.k),
            "prior": self.prior,
            "prior shares": dict(zip(held.names, held.prior().tolist(), strict=True)),
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
    result: TaskResult

    def fill(self, attribute: str) -> None:
        """Skew, cosine of the queries, and what else the utility asks for."""
        features = self.gallery.unit
        images = {method: self.task.images(features, one.edit) for method, one in self.fitted.items()}
        under: dict[str, Project] = {
            method: partial(self.task.rows, self.texts, edit=one.edit) for method, one in self.fitted.items()
        }
        rows = {method: project(self.queries) for method, project in under.items()}
        self._skew(rows, images)
        self._cosines(rows, images)
        utility = self.task.utility.apart_from(attribute)
        if utility.captions:
            self._recall(utility, under, images)
        if utility.classes:
            self._accuracy(utility, under, images)

    def _skew(self, rows: Mapping[str, Tensor], images: Mapping[str, UnitRows]) -> None:
        """Every metric of the ranking: means over queries first, then each query."""
        known, column, task = self.labels.known, self.task.utility.relevant, self.task
        features = {id(all_): all_ if known.all() else all_.some(known) for all_ in images.values()}
        relevant = None if column is None else relevance(self.gallery.column(column)[known], column, self.queries)
        ranked = self.held.rank(rows, {method: features[id(all_)] for method, all_ in images.items()})
        values = {method: self.held.values(order, relevant) for method, order in ranked.items()}
        drawn = self.held.resampled(ranked, relevant)
        chance = self.held.random()
        n = {"queries": len(self.queries), "images": len(self.held.labels)}
        for metric in values["none"]:
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
                low, high = np.quantile(of_means, [0.025, 0.975])
                self.result.add(metric, CHANCE, float(chance[metric].mean()), (float(low), float(high)), n=n)
        for metric in values["none"]:
            for i, query in enumerate(self.queries):
                point = {method: float(of[metric][i]) for method, of in values.items()}
                own = {method: of[metric][i] for method, of in drawn.items()}
                self.result.add_draws(metric, point, own, n=n, interval=recentred_interval, subset=query)

    def _cosines(self, rows: Mapping[str, Tensor], images: Mapping[str, UnitRows]) -> None:
        """Cosine of each query, and where images are changed of each image, with itself before and after."""
        moved = {method: one for method, one in images.items() if one is not images["none"]}
        for method, one in moved.items():
            pairs = zip(images["none"].split(), one.split(), strict=True)
            mean = sum(float((a.double() * b.double()).sum()) for a, b in pairs) / len(one)
            self.result.add("image_cosine", method, mean, n={"images": len(one)}, change=(mean - 1,) * 3)
        kept = {method: (rows["none"] * row).sum(dim=1).numpy() for method, row in rows.items()}
        n = {"queries": len(self.queries), "images": len(self.held.labels)}
        if self.task.resample == "queries":
            resamples, seed = self.task.resamples, self.task.seed
            self.result.add_resampled("query_cosine", kept, n=n, resamples=resamples, seed=seed)
            return
        self.result.add_draws("query_cosine", {method: float(values.mean()) for method, values in kept.items()}, n=n)

    # ---- what it costs ---------------------------------------------------------------------------------------

    def _recall(self, utility: Utility, under: Mapping[str, Project], images: Mapping[str, UnitRows]) -> None:
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
        for k in utility.recall_k:
            hits = {way: {m: (a < k).astype(float) for m, a in by.items()} for way, by in ahead.items()}
            both = {m: np.mean([hits[way][m] for way in hits], axis=0) for m in under}
            table |= {(f"recall@{k}", subset): values for subset, values in {"": both, **hits}.items()}
        self._means(table, {"images": int(captioned.sum()), "captions": len(captions)}, code)

    def _accuracy(self, utility: Utility, under: Mapping[str, Project], images: Mapping[str, UnitRows]) -> None:
        """Zero-shot accuracy in each column, and the mean over columns where there are several."""
        known = np.logical_and.reduce([self.gallery.column(column).known for column in utility.classes])
        if not known.any():
            raise InvalidInputError(f"utility: no image has a label in every one of {list(utility.classes)}")
        right: dict[str, dict[str, Floats]] = {}
        for column, prompts in utility.classes.items():
            labels = self.gallery.column(column)
            texts = [prompts[name] for name in labels.names]
            own = labels.codes[known]
            right[column] = {
                method: (scores(project(texts), images[method].some(known)).argmax(axis=0) == own).astype(float)
                for method, project in under.items()
            }
        mean = {method: np.mean([by[method] for by in right.values()], axis=0) for method in under}
        subsets = {"": mean} if len(right) == 1 else {"": mean, **right}
        n = {"images": int(known.sum()), "without a label": int((~known).sum())}
        self._means({("accuracy", subset): values for subset, values in subsets.items()}, n)

    def _means(
        self,
        table: Mapping[tuple[str, str], Mapping[str, Floats]],
        n: Mapping[str, int],
        clusters: NDArray[np.integer] | None = None,
    ) -> None:
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


def relevance(labels: Labels, column: str, queries: Sequence[str]) -> NDArray[np.bool_]:
    """(q, n): is the label of image n the one that query q names? column: what the labels are called.

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
