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

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from vldebias.data import Embeddings, Labels, UnitRows, cross
from vldebias.errors import InvalidInputError, SuspectInputWarning, warn
from vldebias.evaluation.gallery import Gallery, SkewOptions
from vldebias.evaluation.images import (
    ImageTask,
    disjoint,
    doubt_labels,
    doubt_space,
    doubt_values,
    sets_by_column,
)
from vldebias.evaluation.result import CHANCE, NONE, TaskResult
from vldebias.evaluation.session import Session, Texts
from vldebias.evaluation.task import Prompts, SeveralPrompts, Strict, register_task
from vldebias.metrics.bootstrap import percentile_interval, recentred_interval, resampled_weights
from vldebias.metrics.rankings import first_hits
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
        sets, images = sets_by_column(fields.get("prompts")), session.embedded("images")
        if len(sets) == len(images.labels) == 1 and not isinstance(fields["prompts"], Mapping):
            sets = dict(zip(images.labels, sets.values(), strict=True))
        asked = fields.get("queries")
        if isinstance(asked, (str, PromptSet)):
            asked = load_prompts(asked).classes
        elif asked is None:
            asked = dict.fromkeys(prompt for one in chain(*sets.values()) for prompt in one.classes)
        asked = list(asked.texts() if isinstance(asked, Queries) else asked)
        if not asked:
            raise InvalidInputError(
                "queries: expected one or more texts, and the prompt sets have no class prompts; give queries="
            )
        for column in (*chain(*(attribute.split(" x ") for attribute in sets)), *fields.get("classes", ())):
            images.column(column.strip())  # an unknown one is refused; a suite leaves it out
        few = max(10, len(images) // 20)
        return super().of_given(session, {"k": few, **fields, "prompts": sets, "queries": asked})

    def asked(self) -> tuple[str, ...]:
        """Return the queries."""
        return self.queries.texts() if isinstance(self.queries, Queries) else tuple(self.queries)

    def texts(self) -> tuple[str, ...]:
        """Return the prompts of all sets, the queries and the class prompts; captions are in the data."""
        classes = (prompt for prompts in self.classes.values() for prompt in prompts.values())
        return tuple(
            dict.fromkeys((*chain(*(one.texts for one in chain(*self.prompts.values()))), *self.asked(), *classes))
        )

    def measure(
        self, images: Embeddings, texts: Texts, *, reference: Embeddings | None = None,
        edits: Mapping[str, Edit] | None = None, progress: Progress = SILENT,
    ) -> list[TaskResult]:  # fmt: skip
        """Rank the gallery for every query under every method, and measure; gives a result for each attribute.

        Args:
            images: the gallery, with the label columns of every attribute. texts: the text side of the same model.
            reference: unlabelled images, for the methods that use some.
            edits: name -> an edit that was fitted before, measured like a method.
        """
        queries = self.asked()
        if not queries:
            raise InvalidInputError(f"queries: expected one or more texts, {self.queries!r} has none")
        self.check_images(images, texts, queries[0])
        there = {name: of for name, of in self.prompts.items() if set(name.split(" x ")) <= set(images.labels)}
        left_out = [name for name in self.prompts if name not in there]
        missing = sorted({column for name in left_out for column in name.split(" x ")} - set(images.labels))
        if not there:
            raise InvalidInputError(
                f"{self.name}: expected a label column for one of {left_out}, got {list(images.labels)}; "
                "call it label.COLUMN in the file"
            )
        if left_out:
            listed = f"{', '.join(left_out)} left out: the embeddings have no column {missing}"
            progress.say(f"{self.name}: {listed}")
        asked_of = {column: texts for column, texts in self.classes.items() if column in images.labels}
        for column, prompts in asked_of.items():
            if set(prompts) != set(names := images.column(column).names):
                wanted = f"expected a prompt for each of {list(names)}"
                raise InvalidInputError(f"classes.{column}: {wanted}, got {list(prompts)}")
        others, counts = disjoint(reference, images, self.methods)
        results = []
        for attribute, of in there.items():
            sets, name = [load_prompts(one) for one in of], f"{self.name} {attribute}"
            columns = [column.strip() for column in attribute.split(" x ")]
            labels = cross(*map(images.column, columns))
            doubt_labels(images, columns, sets)
            with progress.step(name) as bar:
                held = Gallery(labels[labels.known], self)
                bar.note(f"fitting {len(self.methods) - 1} methods")
                fitted = self.fit(texts, sets, neutral=queries, reference=others, edits=edits)
                bar.note(f"ranking {len(held.codes)} images for {len(queries)} queries")
                n = {"queries": len(queries), "images": len(held.codes)}
                classes = {column: texts for column, texts in asked_of.items() if column not in columns}
                found = (
                    (c, relevance(images.column(c)[labels.known], queries)) for c in images.labels if c not in columns
                )
                relevant, named = next(((c, of) for c, of in found if of is not None), (None, None))
                settings = {
                    "floor": self.floor or "MaxSkew: none; MinSkew: 1 / (2 k)",
                    "prior shares": dict(zip(held.names, held.prior.tolist(), strict=True)),
                    "groups": labels.counts,
                    "images left out, not readable": len(images.about.get("skipped", ())),
                    "gallery": {key: images.about[key] for key in _ABOUT if key in images.about},
                    "queries": list(queries),
                    "intervals": f"95 %; {_INTERVALS[self.resample]}; {_RECENTRED}",
                    "random": f"mean of {self.resamples} random rankings, middle 95 % of a mean over the queries",
                    "recall": "a hit is any image with the same caption; images are resampled by caption",
                    "precision": relevant and f"an image is relevant where its {relevant} is what the query names",
                    "accuracy": {column: list(prompts.values()) for column, prompts in classes.items()},
                }
                provenance = self.provenance(
                    name, images, texts, sets, {method: one.about for method, one in fitted.items()},
                    reference=others,
                    title=f"Retrieval, {attribute}: skew of the first results (as in Table 7.5)",
                    description=f"Text queries against a gallery of images; skew over {attribute} of the first k, mean "
                    f"over queries and per query. Intervals: {_INTERVALS[self.resample]}.",
                    n={**n, "unknown": int((~labels.known).sum()), "groups": len(held.names), **counts},
                    settings=settings,
                )  # fmt: skip
                result = TaskResult(provenance, details={method: one.details for method, one in fitted.items()})
                features = images.unit
                seen = {method: self.images(features, one.edit) for method, one in fitted.items()}
                under: dict[str, Project] = {m: partial(self.rows, texts, edit=one.edit) for m, one in fitted.items()}
                rows = {method: project(queries) for method, project in under.items()}
                known = {of: of if labels.known.all() else of.some(labels.known) for of in seen.values()}
                ranked = held.rank(rows, {method: known[of] for method, of in seen.items()})
                self._add_skews(result, held, ranked, queries, named)
                self._add_cosines(result, rows, seen, n)
                self._add_recall(result, images, texts, under, seen)
                self._add_accuracy(result, images, classes, under, seen)
                doubt_space(images.unit, texts, [*queries, *chain(*(one.texts for one in sets))])
                for column, prompt_set in product(columns, sets):
                    doubt_values(images, column, texts, prompt_set)
                results.append(result)
        return results

    def _add_skews(
        self, result: TaskResult, held: Gallery, ranked: Mapping[str, Rows], queries: Sequence[str],
        relevant: Mask | None,
    ) -> None:  # fmt: skip
        """Add every metric of the rankings: means over queries first, then each query."""
        n = {"queries": len(queries), "images": len(held.codes)}
        values = {method: held.values(order, relevant) for method, order in ranked.items()}
        drawn, chance = held.resampled(ranked, relevant), held.random()
        for metric in values[NONE]:
            self._add_over_queries(
                result, metric, {m: of[metric] for m, of in values.items()},
                {m: of[metric].mean(axis=0) for m, of in drawn.items()}, n=n,
            )  # fmt: skip
            if metric in chance:
                rng, fair = np.random.default_rng(self.seed), float(chance[metric].mean())
                of_means = rng.choice(chance[metric], size=(self.resamples, len(queries))).mean(axis=1)
                result.add(metric, CHANCE, fair, percentile_interval(of_means), n=n)
                bare, largest = float(values[NONE][metric].mean()), float(held.sizes.max() / held.sizes.mean())
                uneven = self.prior == "uniform" and largest >= 1 + BALANCED
                if metric.startswith("max_skew@") and bare < fair and uneven:
                    sizes = ", ".join(f"{name} {size}" for name, size in zip(held.names, held.sizes, strict=True))
                    warn(
                        f"{result.provenance.task}: {metric} is {bare:.3f}, below that of random rankings, {fair:.3f}, "
                        f"since groups differ in size ({sizes}): ranking like chance would count as worse, so no "
                        'verdict is given; give prior="dataset"',
                        SuspectInputWarning,
                    )
        for metric, (i, query) in product(values[NONE], enumerate(queries)):
            point = {method: float(of[metric][i]) for method, of in values.items()}
            own = {method: of[metric][i] for method, of in drawn.items()}
            result.add_draws(metric, point, own, n=n, interval=recentred_interval, subset=query)

    def _add_over_queries(
        self, result: TaskResult, metric: str, each: Mapping[str, Floats], drawn: Mapping[str, Floats] | None,
        n: Mapping[str, int],
    ) -> None:  # fmt: skip
        """Add means over queries of each (q,), resampled over queries, or with draws over images (None: exact)."""
        if self.resample == "queries":
            result.add_resampled(metric, each, n=n, resamples=self.resamples, seed=self.seed)
        else:
            how: dict[str, Any] = {} if drawn is None else {"interval": recentred_interval}
            result.add_draws(metric, {m: float(of.mean()) for m, of in each.items()}, drawn, n=n, **how)

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
        self._add_over_queries(result, "query_cosine", kept, None, n)

    # ---- what it costs -----------------------------------------------------------------------------------------

    def _add_recall(
        self, result: TaskResult, gallery: Embeddings, texts: Texts, under: Mapping[str, Project],
        images: Mapping[str, UnitRows],
    ) -> None:  # fmt: skip
        """Add recall of the gallery's captions, where the texts include them.

        Image to text: is the image's caption among the first k different captions? Text to image: is an image with this
        caption among the first k? A caption counts once for each of its images, which are drawn together, for they are
        not independent; the subset "" is the mean of both directions.
        """
        captioned = np.array([bool(caption) for caption in gallery.captions], dtype=bool)
        if not captioned.any() or len(gallery) > MOST_CAPTIONS:
            return
        captions, code = np.unique(np.array(gallery.captions)[captioned], return_inverse=True)
        if not texts.holds(captions.tolist()):
            return
        codes, own, ahead = torch.from_numpy(code), torch.arange(len(captions)), dict[str, list[NDArray[np.int64]]]()
        for method, project in under.items():
            rows, seen = project(captions.tolist()).float(), images[method][captioned]
            to_text, to_image = first_hits(seen, rows, codes, own), first_hits(rows, seen, own, codes)
            ahead[method] = [to_text.numpy(), to_image.numpy()[code]]
        table: dict[tuple[str, str], dict[str, Floats]] = {}
        for k in RECALL:
            hits = {method: np.array(of) < k for method, of in ahead.items()}
            table[f"recall@{k}", ""] = {method: of.mean(axis=0) for method, of in hits.items()}
            for i, way in enumerate(("image to text", "text to image")):
                table[f"recall@{k}", way] = {method: of[i].astype(float) for method, of in hits.items()}
        self._add_means(result, table, {"images": int(captioned.sum()), "captions": len(captions)}, code)

    def _add_accuracy(
        self, result: TaskResult, gallery: Embeddings, classes: Mapping[str, Mapping[str, str]],
        under: Mapping[str, Project], images: Mapping[str, UnitRows],
    ) -> None:  # fmt: skip
        """Add zero-shot accuracy in each column, and the mean over columns where there are several.

        Scores are float64 products, rounded to far more digits than matter: equal images tie in any order of sums.
        """
        if not classes:
            return
        known = np.logical_and.reduce([gallery.column(column).known for column in classes])
        if not known.any():
            raise InvalidInputError(f"classes: no image has a label in every one of {list(classes)}")
        right: dict[str, dict[str, Floats]] = {column: {} for column in classes}
        for (column, prompts), (method, project) in product(classes.items(), under.items()):
            labels = gallery.column(column)
            texts = project([prompts[name] for name in labels.names]).double()
            blocks = [texts @ some.double().T for some in images[method].some(known).split(1 << 13)]
            nearest = torch.cat(blocks, dim=1).numpy().round(12).argmax(axis=0)
            right[column][method] = (nearest == labels.codes[known]).astype(float)
        mean = {method: np.mean([by[method] for by in right.values()], axis=0) for method in under}
        subsets = {"": mean} if len(right) == 1 else {"": mean, **right}
        n = {"images": int(known.sum()), "without a label": int((~known).sum())}
        table = {("accuracy", subset): values for subset, values in subsets.items()}
        self._add_means(result, table, n, np.arange(n["images"]))

    def _add_means(
        self, result: TaskResult, table: Mapping[tuple[str, str], Mapping[str, Floats]], n: Mapping[str, int],
        clusters: NDArray[np.integer],
    ) -> None:  # fmt: skip
        """Add means over images: (metric, subset) -> method -> values (n,), whole clusters drawn together."""
        sizes = np.bincount(clusters).astype(float)
        columns = [column for values in table.values() for column in values.values()]
        sums = np.stack([np.bincount(clusters, weights=column) for column in columns], axis=1)
        blocks = resampled_weights(len(sizes), self.resamples, self.seed, len(sizes))
        draws = iter(
            np.concatenate([w @ sums / (w @ sizes)[:, None] for w in (block.astype(float) for block in blocks)]).T
        )
        for (metric, subset), values in table.items():
            point = {method: float(one.mean()) for method, one in values.items()}
            drawn = {method: next(draws) for method in values}
            result.add_draws(metric, point, drawn, n=n, interval=recentred_interval, subset=subset)


def relevance(labels: Labels, queries: Sequence[str]) -> Mask | None:
    """Return whether (q, n) the label of image n is the one that query q names; an unknown label is not relevant.

    None unless every query names exactly one of the labels.
    """
    words = StatedWords([name for name in labels.names if any(map(str.isalnum, name))])
    named = [words.find(query) for query in queries]
    if any(len(one) != 1 for one in named):
        return None
    return np.array([labels.names.index(one[0]) for one in named])[:, None] == labels.codes
