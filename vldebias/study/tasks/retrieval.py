"""Measure skew of text-to-image retrieval (Table 7.5): are the first k images spread over the
groups, at what cost?

Source: section 7.4.2 of Chuang's thesis (Chuang et al., "Debiasing Vision-Language Models via
Biased Prompts", 2023) with MaxSkew and NDKL of Geyik et al. (2019).

A resampled gallery repeats images, so a maximum over groups strays further up. Intervals over
images are therefore moved to have the mean of their draws at the value (`recentred_interval`), and
cover the expected value on a gallery of this size (counted in
`eval/experiments/coverage_shares.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from vldebias.data import Embeddings, Labels, UnitRows, cross
from vldebias.edits.edit import Edit
from vldebias.errors import InvalidInputError
from vldebias.hosts import Host
from vldebias.measure.kept import (
    chance_kept,
    hits_of_value,
    kept_share,
    resampled_kept_shares,
)
from vldebias.measure.rankings import first_hits, reach
from vldebias.measure.resampling import percentile_interval, recentred_interval, resampled_weights
from vldebias.methods import Problem, Rerank
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, StatedWords, load_prompts
from vldebias.report.result import CHANCE, NONE, TaskResult
from vldebias.reranking import RERANKERS, Candidates
from vldebias.reranking.entry import pool_shares, zero_shot_groups
from vldebias.schema import Count
from vldebias.study.doubts import check_images, doubt_labels, doubt_space, doubt_values
from vldebias.study.inputs import Inputs
from vldebias.study.task import SeveralPrompts, register_task
from vldebias.study.tasks.gallery import UNEVEN, Gallery, counted
from vldebias.study.tasks.images import ImageTask, disjoint, sets_by_column

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
Edits = Mapping[str, Edit | None]  # method -> what it does, None for the model as it is
Means = Mapping[tuple[str, str], Mapping[str, Floats]]  # (metric, subset) -> method -> values (n,)

RECALL = (1, 5, 10)  # the k of recall@k of captions
# Images up to which recall of captions is measured: its cost grows with the square.
MOST_CAPTIONS = 10_000
BLOCK = 1 << 13  # rows in float64 at once


def _read_queries(queries: Any) -> Any:
    """Read queries: texts, a prompt set whose class prompts are asked for, or {of: SET, held_out:
    true}."""
    if isinstance(queries, (str, PromptSet)):
        return list(load_prompts(queries).classes)
    if isinstance(queries, Mapping) and "of" in queries and set(queries) <= {"of", "held_out"}:
        prompts = load_prompts(queries["of"])
        return list(prompts.held_out_classes if queries.get("held_out") else prompts.classes)
    return queries


def _read_k(k: Any) -> list[Any]:
    """Read one or several numbers of results."""
    return list(k) if np.ndim(k) else [k]


class Rankings(NamedTuple):
    """Hold the rows by which every method ranks the images of a gallery."""

    queries: dict[str, Tensor]  # method -> (q, d)
    images: dict[str, UnitRows]  # method -> (n, d), of all images
    known: Mask  # (n,) images whose group is known
    # method that re-ranks -> re-ranked rows (q, m) among those of known group
    reranked: dict[str, Rows]
    # method -> zero-shot labels (known,), each of which has its places
    labels: dict[str, NDArray[np.integer]]


@register_task
class RetrievalTask(ImageTask):
    """Measure skew of retrieval: MaxSkew@k, MinSkew@k and NDKL@k of every method, mean over queries
    and per query.

    One block per attribute, named "<name> <attribute>". Images whose attribute is unknown are left
    out of its gallery and counted. Method "random" is the expectation under random rankings of the
    gallery, with the middle 95 % of it. Utility rows: recall of the gallery's captions, where the
    texts have them and the images are at most `MOST_CAPTIONS`; precision@k, where every query names
    one value of another column ("nurse" in "A photo of a nurse.", of a column of jobs); zero-shot
    accuracy of `classes`.

    prompts: attribute -> prompt set that the methods are fitted on, or several that are solved
        jointly. An attribute is a column ("gender") or an intersection of columns
        ("gender x race").
    queries: texts, or a prompt set whose class prompts are asked for; in a file also {of: SET,
        held_out: true}.
    k: how many of the first results are looked at, one or more values; equal scores keep the order
        of the images.
    prior: share that a group should have: "uniform" (1 / number of groups in the gallery; the
        paper's) or "dataset" (its share of the gallery). Of an uneven gallery (`UNEVEN`) MaxSkew@k
        is measured against the other one too, and a conclusion gives no verdict where the two
        disagree.
    resample: what the interval of a mean over queries is about: "queries", where they are a sample
        of what people ask, or "images", where the protocol fixes them. Rows of one query are
        always about images.
    classes: column -> value -> its class prompt; a column of the attribute itself is left out, as
        are images without a label in one of the columns.
    """

    ranks_results: ClassVar[bool] = True

    task: Literal["retrieval"] = "retrieval"
    prompts: Annotated[dict[str, SeveralPrompts], Field(min_length=1)]
    queries: Annotated[list[str], BeforeValidator(_read_queries)]
    k: Annotated[list[Count], BeforeValidator(_read_k)]
    prior: Literal["uniform", "dataset"] = "uniform"
    resample: Literal["queries", "images"] = "images"
    classes: dict[str, dict[str, str]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        for name in ("k", "queries"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name}: expected one or more different values, got {values}")
        return self

    @classmethod
    def from_inputs(cls, inputs: Inputs, settings: Mapping[str, Any]) -> Self:
        """Return the task; by default of the class prompts, k a twentieth, and the only column with
        the only set."""
        images = inputs["images"]
        sets = sets_by_column(settings.get("prompts"))
        # labels=gender with prompts="fairface": the only column goes with the only set, whatever it
        # is called.
        is_only_pair = len(sets) == len(images.labels) == 1
        if is_only_pair and not isinstance(settings["prompts"], Mapping):
            sets = dict(zip(images.labels, sets.values(), strict=True))
        queries: dict[str, None] = {}
        for prompts in chain(*sets.values()):
            queries |= dict.fromkeys(prompts.classes)
        # Neither few nor all: the first ten of any ranking are uneven by chance, and k = n has the
        # skew of the gallery whatever the ranking.
        defaults = {"k": max(10, len(images) // 20), "queries": list(queries)}
        return super().from_inputs(inputs, {**defaults, **settings, "prompts": sets})

    def texts(self) -> tuple[str, ...]:
        """Return the prompts of all sets, the queries and the class prompts; captions are in the
        data."""
        texts: dict[str, None] = {}
        for prompts in chain(*self.prompts.values()):
            texts |= dict.fromkeys(prompts.texts)
        texts |= dict.fromkeys(self.queries)
        for prompt_of_value in self.classes.values():
            texts |= dict.fromkeys(prompt_of_value.values())
        return tuple(texts)

    def measure(
        self,
        images: Embeddings,
        texts: Host,
        *,
        reference: Embeddings | None = None,
        edits: Mapping[str, Edit] | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Rank the gallery for every query under every method, and measure.

        Args:
            images: the gallery, with the label columns of the attributes.
            texts: the host of the same model.
            reference: unlabelled images, for methods that use some.
            edits: name -> an edit that was fitted before.

        Returns:
            A result for each attribute.

        Raises:
            InvalidInputError: images and texts of different widths, columns that are missing, a
                gallery with fewer than two groups or fewer images than k.
        """
        # What can be refused is refused before anything is fitted.
        check_images(images, texts, self.queries[0])
        for column, prompt_of_value in self.classes.items():
            names = images.column(column).names
            if set(prompt_of_value) != set(names):
                raise InvalidInputError(
                    f"classes.{column}: expected a prompt for each of {list(names)}, got"
                    f" {list(prompt_of_value)}"
                )
        reference, reference_counts = disjoint(reference, images, self.methods)
        results = []
        for attribute in self.prompts:
            result = self._measure_attribute(
                attribute, images, texts, reference, reference_counts, edits, progress
            )
            results.append(result)
        return results

    def _measure_attribute(
        self,
        attribute: str,
        images: Embeddings,
        texts: Host,
        reference: Embeddings | None,
        reference_counts: Mapping[str, int],
        edits: Mapping[str, Edit] | None,
        progress: Progress,
    ) -> TaskResult:
        """Return the block of one attribute: a column, or an intersection of columns."""
        name = f"{self.name} {attribute}"
        sets = self.prompts[attribute]
        columns = [column.strip() for column in attribute.split(" x ")]
        # "gender x race" crosses two columns; an image that is unknown in one of them is unknown
        # here.
        labels = cross(*map(images.column, columns))
        doubt_labels(images, columns, sets)
        with progress.bar(name) as advance:
            # (n,) images that take part in the gallery; the others are counted, and still serve
            # recall and accuracy.
            known = labels.known
            gallery = Gallery(labels[known], self.k, self.prior, self.resamples, self.seed)
            advance(0, f"fitting {len(self.methods) - 1} methods")
            # A bounded method may change the queries no more than its bound allows: they are what
            # is asked for.
            fitted = self.fit(texts, sets, neutral=self.queries, reference=reference, edits=edits)
            advance(0, f"ranking {len(gallery.codes)} images for {len(self.queries)} queries")
            column_of_precision, relevant = self._relevance(images, columns, known)
            provenance = self.provenance(
                name,
                images,
                texts,
                sets,
                {method: self.about(edit) for method, edit in fitted.items()},
                reference=reference,
                title=f"Retrieval, {attribute}: skew of the first results (as in Table 7.5)",
                description=(
                    f"Text queries against a gallery of images; skew over {attribute} of the"
                    " first k, mean over queries and per query. Means are resampled over"
                    f" {self.resample}, one query over images."
                    f"{self._uneven_words(gallery, reference, texts, sets)}"
                ),
                n={
                    "queries": len(self.queries),
                    "images": len(gallery.codes),
                    "unknown": int((~known).sum()),
                    "groups": len(gallery.names),
                    **reference_counts,
                },
                settings={
                    "prior shares": dict(zip(gallery.names, gallery.prior.tolist(), strict=True)),
                    "groups": labels.counts,
                    "gallery": _without_folders(images.about),
                    "column of precision": column_of_precision,
                },
            )
            result = TaskResult(provenance)
            features = images.unit
            rankings = Rankings(
                {method: self.rows(texts, self.queries, edit) for method, edit in fitted.items()},
                {method: self.images(features, edit) for method, edit in fitted.items()},
                known,
                {},
                {},
            )
            reranking = {}
            for method in self.compared_methods():
                if isinstance(method, Rerank):
                    reranking[method.name] = method
            if reranking:
                rankings = self._with_reranked(rankings, reranking, texts, sets)
            # What a method does to the groups, then what it costs.
            self._add_skews(result, gallery, rankings, relevant)
            self._add_kept(result, gallery, rankings)
            self._add_image_cosines(result, features, rankings.images)
            # A re-ranking changes no model: what captions and class prompts find stays as it is.
            edits_of_models = {name: fitted[name] for name in fitted if name not in reranking}
            self._add_recall(result, images, texts, edits_of_models)
            self._add_accuracy(result, images, texts, edits_of_models, columns)
            prompts_of_sets = chain(*(prompts.texts for prompts in sets))
            doubt_space(features, texts, [*self.queries, *prompts_of_sets])
            for column in columns:
                for prompts in sets:
                    doubt_values(images, column, texts, prompts)
        return result

    def _relevance(
        self, images: Embeddings, columns: Sequence[str], known: Mask
    ) -> tuple[str, Mask | None]:
        """Return the first column beside the attribute's that the queries name, and whether (q, n)
        each image is relevant to each query; "" and None where there is none."""
        for column, labels in images.labels.items():
            if column not in columns:
                relevant = relevance(labels[known], self.queries)
                if relevant is not None:
                    return column, relevant
        return "", None

    def _add_skews(
        self, result: TaskResult, gallery: Gallery, rankings: Rankings, relevant: Mask | None
    ) -> None:
        """Add every metric of the rankings and the queries: means over queries first, then each
        query.

        relevant: (q, n) whether an image of known group is relevant to a query.
        """
        ranked = self._ranked(rankings)
        skews = gallery.skews(ranked, relevant, rankings.labels)
        chance = gallery.random()
        n = {"queries": len(self.queries), "images": len(gallery.codes)}
        # metric -> method -> values of the queries (q,), and draws of them (q, resamples)
        values: dict[str, dict[str, Floats]] = {}
        draws: dict[str, dict[str, Floats]] = {}
        for metric in skews[NONE]:
            # Column 0 is the gallery as it is, the others are its resamples (see `Gallery.skews`).
            values[metric] = {method: skews[method][metric][:, 0] for method in skews}
            draws[metric] = {method: skews[method][metric][:, 1:] for method in skews}

        for metric in values:
            self._add_mean_over_queries(result, metric, values[metric], draws[metric], n)
            bare = float(values[metric][NONE].mean())
            if metric == f"max_skew@{self.k[0]}":
                gallery.warn_if_uneven(self.k[0], bare, float(chance[metric].mean()))
            if metric in chance:
                self._add_chance(result, metric, chance[metric], n)
        cosines = {}
        for method, rows in rankings.queries.items():
            cosines[method] = (rankings.queries[NONE] * rows).sum(dim=1).numpy()
        # No image changes a cosine of queries, which is exact.
        self._add_mean_over_queries(result, "query_cosine", cosines, None, n)

        for metric in values:
            for i, query in enumerate(self.queries):
                result.add_draws(
                    metric,
                    {method: float(of_queries[i]) for method, of_queries in values[metric].items()},
                    {method: of_queries[i] for method, of_queries in draws[metric].items()},
                    n=n,
                    interval=recentred_interval,
                    subset=query,
                )

    def _with_reranked(
        self,
        rankings: Rankings,
        reranking: Mapping[str, Rerank],
        texts: Host,
        sets: Sequence[PromptSet],
    ) -> Rankings:
        """Return the rankings with those of methods that re-rank what the model finds, without an
        edit or with one.

        The labels are zero-shot, as a user has them. Shares are even, or those of the candidates
        where the gallery's own are the prior.
        """
        images_of_method = {}
        for name in (NONE, *reranking):
            images = rankings.images[name]
            images_of_method[name] = (
                images if rankings.known.all() else images.picked(rankings.known)
            )
        groups = zero_shot_groups(images_of_method[NONE].split(BLOCK), sets, texts)
        shares = np.full(len(groups.names), 1 / len(groups.names))
        if self.prior == "dataset":
            shares = pool_shares(groups.codes, len(groups.names))
        n = len(groups.codes)
        # Each label needs rows for its places in every resample (`reach`).
        length = min(n, len(groups.names) * 2 * reach(max(self.k), n))
        reranked = {}
        for name, method in reranking.items():
            blocks_of_images = list(images_of_method[name].split(BLOCK))
            lists = []
            for query in rankings.queries[name]:
                blocks = [block.double() @ query.double() for block in blocks_of_images]
                scores = torch.cat(blocks).numpy().round(12)
                found = Candidates(scores, groups.codes, groups.names, shares)
                lists.append(RERANKERS[method.order](found, length))
            reranked[name] = np.stack(lists)
        # The quota gives a label as many places in any resample; the other orders are read as they
        # are.
        labels = {name: groups.codes for name in reranking if reranking[name].order == "quota"}
        return rankings._replace(reranked=reranked, labels=labels)

    def _ranked(self, rankings: Rankings) -> dict[str, Rows]:
        """Return method -> first rows (q, m) of each query, among the images of known group."""
        # Images that several methods share are read once for all queries.
        methods_of_images: dict[UnitRows, list[str]] = {}
        for method, images in rankings.images.items():
            methods_of_images.setdefault(images, []).append(method)
        ranked: dict[str, Rows] = {}
        for images, methods in methods_of_images.items():
            # A selection is a copy of indices; with all labels known the gallery is read where it
            # lies.
            rows = images if rankings.known.all() else images.picked(rankings.known)
            queries = torch.cat([rankings.queries[method] for method in methods])
            # More than k rows: a resample lacks a part of the first k and moves later ones up
            # (`reach`).
            order = rows.top(queries, reach(max(self.k), len(rows)))
            ranked |= zip(methods, np.split(order, len(methods)), strict=True)
        ranked |= rankings.reranked
        return {method: ranked[method] for method in rankings.images}

    def _add_mean_over_queries(
        self,
        result: TaskResult,
        metric: str,
        values: Mapping[str, Floats],
        draws: Mapping[str, Floats] | None,
        n: Mapping[str, int],
    ) -> None:
        """Add the mean over queries of every method.

        values: method -> (q,). draws: method -> (q, resamples) over images; None: exact.
        """
        if self.resample == "queries":
            result.add_resampled(metric, values, n=n, resamples=self.resamples, seed=self.seed)
            return
        means = {method: float(of_queries.mean()) for method, of_queries in values.items()}
        mean_draws = None
        if draws is not None:
            mean_draws = {method: of_queries.mean(axis=0) for method, of_queries in draws.items()}
        result.add_draws(metric, means, mean_draws, n=n, interval=recentred_interval)

    def _add_chance(
        self, result: TaskResult, metric: str, values: Floats, n: Mapping[str, int]
    ) -> None:
        """Add what random rankings give, with an interval of the mean over as many queries."""
        rng = np.random.default_rng(self.seed)
        # As many random rankings are averaged as there are queries: a mean over 20 queries is
        # nearer to its expectation than one ranking.
        size = (self.resamples, len(self.queries))
        means = rng.choice(values, size=size).mean(axis=1)
        result.add(metric, CHANCE, float(values.mean()), percentile_interval(means), n=n)

    def _add_kept(self, result: TaskResult, gallery: Gallery, rankings: Rankings) -> None:
        """Add the share of the first hits inside each value that are still there after an edit,
        mean over values and queries.

        Values with no more images than hits are left out: nothing could be lost.
        """
        known_rows = np.flatnonzero(rankings.known)
        n = {"queries": len(self.queries), "images": len(known_rows)}
        for k in self.k:
            first = hits_of_value(k, len(gallery.names))
            members = []
            for group in range(len(gallery.names)):
                rows = known_rows[gallery.codes == group]
                if len(rows) > first:
                    members.append(rows)
            if members:
                self._add_kept_at(k, result, rankings, members, first, n)

    def _add_kept_at(
        self,
        k: int,
        result: TaskResult,
        rankings: Rankings,
        members: Sequence[Rows],
        first: int,
        n: Mapping[str, int],
    ) -> None:
        """Add the rows of `_add_kept` for one k.

        members: rows of the images of each value. first: how many hits inside a value are compared.
        """
        # method -> an array for each value: shares (q,) of the queries, and their mean (resamples,)
        shares: dict[str, list[Floats]] = {method: [] for method in rankings.queries}
        draws: dict[str, list[Floats]] = {method: [] for method in rankings.queries}
        chance = []
        for group, rows in enumerate(members):
            order_of_method = self._ranked_in_value(rankings, rows, first)
            for method, order in order_of_method.items():
                # For each query the share of its first hits that are still among the first.
                pairs = zip(order_of_method[NONE], order, strict=True)
                kept_shares = np.array([kept_share(*pair, first) for pair in pairs])
                shares[method].append(kept_shares)
            if self.resample == "images":
                # Each value has a seed of its own: its images are another sample, and one seed
                # would pair the noise of values that have nothing to do with each other.
                resampled = self._resampled_kept(order_of_method, first, len(rows), group)
                for method, values in resampled.items():
                    draws[method].append(values)
            size = self.resamples * len(self.queries)
            random = chance_kept(first, len(rows), size, self.seed + group)
            chance.append(random.reshape(self.resamples, -1).mean(axis=1))

        metric = f"kept@{k}"
        means = {method: np.mean(values, axis=0) for method, values in shares.items()}
        if self.resample == "queries":
            result.add_resampled(metric, means, n=n, resamples=self.resamples, seed=self.seed)
        else:
            result.add_draws(
                metric,
                {method: float(mean.mean()) for method, mean in means.items()},
                {method: np.mean(values, axis=0) for method, values in draws.items()},
                n=n,
                interval=recentred_interval,
            )
        random = np.mean(chance, axis=0)
        result.add(metric, CHANCE, float(random.mean()), percentile_interval(random), n=n)

    def _ranked_in_value(self, rankings: Rankings, rows: Rows, first: int) -> dict[str, Rows]:
        """Return method -> first rows (q, m) of each query among the images of one value."""
        order_of_method = {}
        for method, queries in rankings.queries.items():
            # By position in all images, since some methods edit images too.
            images = rankings.images[method].picked(rows)
            order_of_method[method] = images.top(queries, reach(first, len(rows)))
        # A re-ranked list has its images of this value in its own order; those behind it follow.
        known_rows = np.flatnonzero(rankings.known)
        for method, lists in rankings.reranked.items():
            orders = []
            for listed, base in zip(lists, order_of_method[NONE], strict=True):
                inside = np.searchsorted(rows, known_rows[listed])
                inside = inside[np.isin(known_rows[listed], rows)]
                rest = base[~np.isin(base, inside)]
                orders.append(np.concatenate([inside, rest])[: len(base)])
            order_of_method[method] = np.stack(orders)
        return order_of_method

    def _resampled_kept(
        self, rankings: Mapping[str, Rows], first: int, n: int, seed: int
    ) -> dict[str, Floats]:
        """Return the mean over queries (resamples,) of what each method keeps in one value."""
        # Summed query by query, so that memory does not grow with their number.
        total = {method: np.zeros(self.resamples) for method in rankings}
        for query, before in enumerate(rankings[NONE]):
            after = {method: ranking[query] for method, ranking in rankings.items()}
            shares = resampled_kept_shares(
                before, after, first, n, self.resamples, self.seed + seed
            )
            for method, values in shares.items():
                total[method] += values
        return {method: values / len(self.queries) for method, values in total.items()}

    def _add_image_cosines(
        self, result: TaskResult, features: UnitRows, images: Mapping[str, UnitRows]
    ) -> None:
        """Add the mean cosine of an image with itself under each method that edits images."""
        for method, edited in images.items():
            if edited is features:
                continue
            total = 0.0
            for before, after in zip(features.split(), edited.split(), strict=True):
                total += float((before.double() * after.double()).sum())
            mean = total / len(edited)
            # Without a method an image is its own: cosine 1. Exact, so the change has no width.
            change = (mean - 1, mean - 1, mean - 1)
            result.add("image_cosine", method, mean, n={"images": len(edited)}, change=change)

    def _add_recall(
        self, result: TaskResult, gallery: Embeddings, texts: Host, edits: Edits
    ) -> None:
        """Add recall of the gallery's captions, where the texts include them; the subset "" is the
        mean of both ways.

        Image to text: is the image's caption among the first k different captions? Text to image:
        is an image with this caption among the first k? A caption counts once for each of its
        images, which are drawn together.
        """
        captioned = np.array([bool(caption) for caption in gallery.captions], dtype=bool)
        if not captioned.any() or len(gallery) > MOST_CAPTIONS:
            return
        # code: (images,) the number of each image's caption
        captions, code = np.unique(np.array(gallery.captions)[captioned], return_inverse=True)
        try:
            texts.embed(captions.tolist())
        except InvalidInputError:
            # A table of embeddings lacks some of the captions.
            return
        code_of_image = torch.from_numpy(code)
        code_of_caption = torch.arange(len(captions))
        table: dict[tuple[str, str], dict[str, Floats]] = defaultdict(dict)
        for method, edit in edits.items():
            rows = self.rows(texts, captions.tolist(), edit).float()
            images = self.images(gallery.unit, edit)[captioned]
            to_text = first_hits(images, rows, code_of_image, code_of_caption).numpy()
            to_image = first_hits(rows, images, code_of_caption, code_of_image).numpy()[code]
            for k in RECALL:
                # (2, n): both ways of each image
                hits = np.array([to_text, to_image]) < k
                # Both ways of an image are averaged first: they are of one unit that is resampled.
                table[f"recall@{k}", ""][method] = hits.mean(axis=0)
                table[f"recall@{k}", "image to text"][method] = hits[0]
                table[f"recall@{k}", "text to image"][method] = hits[1]
        n = {"images": int(captioned.sum()), "captions": len(captions)}
        self._add_means(result, table, n, code)

    def _add_accuracy(
        self,
        result: TaskResult,
        gallery: Embeddings,
        texts: Host,
        edits: Edits,
        columns: Sequence[str],
    ) -> None:
        """Add zero-shot accuracy in each column, and the mean over columns where there are several.

        columns: of the attribute itself, which are left out.
        """
        classes = {column: self.classes[column] for column in self.classes if column not in columns}
        if not classes:
            return
        # One set of images for all columns, so that the mean over columns is of the same images as
        # its parts.
        known = np.logical_and.reduce([gallery.column(column).known for column in classes])
        if not known.any():
            raise InvalidInputError(
                f"classes: no image has a label in every one of {list(classes)}"
            )
        table: dict[tuple[str, str], dict[str, Floats]] = defaultdict(dict)
        for method, edit in edits.items():
            images = self.images(gallery.unit, edit).picked(known)
            for column, prompt_of_value in classes.items():
                labels = gallery.column(column)
                prompts = [prompt_of_value[name] for name in labels.names]
                nearest = _nearest(self.rows(texts, prompts, edit), images)
                table["accuracy", column][method] = nearest == labels.codes[known]
        means = {}
        for method in edits:
            means[method] = np.mean([of_method[method] for of_method in table.values()], axis=0)
        # With one column the mean is the column, and a second row would repeat it.
        rows_of_result: Means = {("accuracy", ""): means}
        if len(classes) > 1:
            rows_of_result = {**rows_of_result, **table}
        n = {"images": int(known.sum()), "without a label": int((~known).sum())}
        self._add_means(result, rows_of_result, n, np.arange(n["images"]))

    def _add_means(
        self, result: TaskResult, table: Means, n: Mapping[str, int], clusters: NDArray[np.integer]
    ) -> None:
        """Add means over images; images of one cluster are resampled together.

        clusters: (n,) number of the cluster of each image.
        """
        # Summed over the images of each cluster: a column of ones, which counts them, then a column
        # for each row and method of the table.
        columns = [np.ones(len(clusters))]
        for of_methods in table.values():
            columns += of_methods.values()
        sums = np.stack([np.bincount(clusters, column) for column in columns], axis=1)
        blocks = resampled_weights(len(sums), self.resamples, self.seed, len(sums))
        resampled = np.concatenate([weights.astype(float) @ sums for weights in blocks])
        # A resample of clusters holds more or fewer images than n, so each mean is divided by its
        # own number. (resamples, values)
        draws = resampled[:, 1:] / resampled[:, :1]

        column = 0
        for (metric, subset), of_methods in table.items():
            means = {}
            draws_of_method = {}
            for method, of_images in of_methods.items():
                means[method] = float(of_images.mean())
                draws_of_method[method] = draws[:, column]
                column += 1
            result.add_draws(
                metric, means, draws_of_method, n=n, interval=recentred_interval, subset=subset
            )

    def _uneven_words(
        self,
        gallery: Gallery,
        reference: Embeddings | None,
        texts: Host,
        sets: Sequence[PromptSet],
    ) -> str:
        """Write which of gallery and reference images hold uneven numbers of the values; "" where
        none does."""
        words = ""
        if gallery.other_prior:
            words += (
                f" The gallery is uneven ({counted(gallery.size_of_group)}): MaxSkew is shown"
                " against even shares and against its own."
            )
        if reference is None:
            return words
        for prompts in sets:
            sizes = _sizes_by_texts(reference, texts, prompts)
            # Methods that equalise means of the reference read this unevenness as a direction.
            if max(sizes.values()) >= UNEVEN * min(sizes.values()):
                words += (
                    " The reference images are uneven by what the texts take them for:"
                    f" {counted(sizes)}."
                )
        return words


def _nearest(rows: Tensor, images: UnitRows) -> Rows:
    """Return for each image (n,) the position of the nearest of the texts' rows (k, d).

    Scores are float64 products, rounded to far more digits than matter: equal images tie in any
    order of sums.
    """
    texts = rows.double()
    scores = [texts @ block.double().T for block in images.split(BLOCK)]
    return torch.cat(scores, dim=1).numpy().round(12).argmax(axis=0)


def _without_folders(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a provenance tells of images: not where this machine keeps them."""
    return {key: value for key, value in facts.items() if key not in ("cache", "file")}


def _sizes_by_texts(images: Embeddings, texts: Host, prompts: PromptSet) -> dict[str, int]:
    """Return value of a prompt set -> number of images that are nearest to its texts."""
    values = Problem(texts, prompts).zero_shot(prompts, texts.roles[0])
    sizes = np.zeros(len(values), dtype=int)
    for rows in images.unit.split(BLOCK):
        nearest = (rows.double() @ values.double().T).argmax(dim=1)
        sizes += np.bincount(nearest.numpy(), minlength=len(values))
    return dict(zip(prompts.attributes, sizes.tolist(), strict=True))


def relevance(labels: Labels, queries: Sequence[str]) -> Mask | None:
    """Return whether (q, n) the label of image n is the one that query q names; an unknown label is
    not relevant.

    None unless every query names exactly one of the labels.
    """
    # Whole words, so that "nurse" is not found in "nursery". A label without a letter, such as "?",
    # could be found anywhere.
    words = StatedWords([name for name in labels.names if any(map(str.isalnum, name))])
    codes = []
    for query in queries:
        names = words.find(query)
        if len(names) != 1:
            return None
        codes.append(labels.names.index(names[0]))
    return np.array(codes)[:, None] == labels.codes
