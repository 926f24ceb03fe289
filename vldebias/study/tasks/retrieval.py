"""Measure the skew of text-to-image retrieval (Table 7.5) and the cost of a method.

Source: section 7.4.2 of Chuang's thesis (Chuang et al., "Debiasing Vision-Language Models via
Biased Prompts", 2023), with MaxSkew and NDKL from Geyik et al. (2019).

A resampled gallery repeats images, which biases a maximum over groups upwards. Intervals over
images are therefore shifted so that the mean of the resamples equals the value
(`recentred_interval`). They cover the expected value for a gallery of this size, as measured in
`eval/experiments/coverage.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from vldebias.data import Embeddings, Labels, cross
from vldebias.errors import InvalidInputError
from vldebias.hosts import Host
from vldebias.measure.rankings import first_hits
from vldebias.measure.representation import counts_of_groups
from vldebias.measure.resampling import (
    percentile_interval,
    recentred_interval,
    resampled_weights,
    wilson_interval,
)
from vldebias.measure.retained import chance_shared, hits_of_value, resampled_shared, shared
from vldebias.measure.rows import CHANCE, NONE, TaskProvenance, TaskResult
from vldebias.methods import Problem
from vldebias.projection.edit import Edit
from vldebias.prompts import StatedWords
from vldebias.study.doubts import check_images, doubt_labels, doubt_space, doubt_values
from vldebias.study.inputs import Inputs
from vldebias.study.suite_texts import read_queries
from vldebias.study.task import AttributeFields, register_task
from vldebias.study.tasks.gallery import UNEVEN, Gallery, counted
from vldebias.study.tasks.images import ImageTask, disjoint, facts_of, sets_by_column
from vldebias.study.tasks.rankings import BLOCK, LabelledImages, Rankings
from vldebias.utils.arrays import Floats, Mask, Rows
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Count

Edits = Mapping[str, Edit | None]  # method -> its edit, None for the original model
Means = Mapping[tuple[str, str], Mapping[str, Floats]]  # (metric, subset) -> method -> values (n,)

# A query gets worse if the difference between the groups' shares of its results and of the gallery
# rises by more than this.
WORSE_BY = 0.05
RECALL = (1, 5, 10)  # values of k for caption recall
# Largest gallery for which caption recall is measured. Its cost is quadratic in the gallery size.
MOST_CAPTIONS = 10_000


@register_task
class RetrievalTask(ImageTask):
    """Measure the skew of retrieval with MaxSkew@k, MinSkew@k and NDKL@k for every method.

    Each metric is reported per query and as a mean over queries. There is one block per attribute,
    named "<name> <attribute>". Images whose attribute is unknown are excluded from its gallery and
    counted. The method "random" is the expectation over random rankings of the gallery, with its
    central 95% range.

    These rows measure utility:

    - caption recall, if all captions in the gallery were embedded and there are at most
      `MOST_CAPTIONS` images;
    - precision@k, if every query names one value of a column other than the attribute's (such as
      "nurse" in "A photo of a nurse." for a column of jobs);
    - zero-shot accuracy for `classes`.

    Attributes:
        attribute: label column -> the prompt set that the methods are fitted on, or several sets
            that are solved jointly. An attribute is a column ("gender") or an intersection of
            columns ("gender x race").
        queries: strings, or a prompt set whose class prompts are the queries. A suite file may also
            use {of: SET, held_out: true}.
        k: one or more numbers of top results to measure. Images with equal scores keep their order.
        prior: target share of each group: "uniform" (1 / number of groups in the gallery, as in the
            paper) or "dataset" (the group's share of the gallery). For an uneven gallery
            (`UNEVEN`), MaxSkew@k is also measured against the other prior, and there is no verdict
            if the two disagree.
        resample: what the bootstrap resamples for a mean over queries: "queries" if they are a
            sample of what people search for, "images" if the protocol fixes the queries. For
            individual queries, images are always resampled.
        classes: column -> value -> class prompt. The attribute's own columns are excluded, as are
            images without a label in any of the columns.
    """

    ranks_results: ClassVar[bool] = True

    task: Literal["retrieval"] = "retrieval"
    attribute: Annotated[dict[str, AttributeFields], Field(min_length=1)]
    queries: Annotated[list[str], BeforeValidator(read_queries)]
    # A single number is converted to a list.
    k: Annotated[list[Count], BeforeValidator(lambda k: list(k) if np.ndim(k) else [k])]
    prior: Literal["uniform", "dataset"] = "uniform"
    resample: Literal["queries", "images"] = "images"
    classes: dict[str, dict[str, str]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        for name in ("k", "queries"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(
                    f"{name}: expected at least one value and no duplicates, got {values}"
                )
        return self

    @classmethod
    def from_inputs(cls, inputs: Inputs, settings: Mapping[str, object]) -> Self:
        """Create the task for `vldebias.evaluate`.

        By default, the queries are the class prompts, and k is a twentieth of the images (at least
        10). If there is only one label column and one prompt set, they are paired.

        Args:
            inputs: inputs passed by the user.
            settings: task settings by name.
        """
        images = inputs["images"]
        sets = sets_by_column(settings.get("attribute"))
        # With labels=gender and attribute="fairface", pair the only column with the only set even
        # though their names differ.
        is_only_pair = len(sets) == len(images.labels) == 1
        if is_only_pair and not isinstance(settings["attribute"], Mapping):
            sets = dict(zip(images.labels, sets.values(), strict=True))
        queries: dict[str, None] = {}
        for prompt_set in chain(*sets.values()):
            queries |= dict.fromkeys(prompt_set.classes)
        # With a small k, any ranking is skewed by chance. With k = n, every ranking has the skew of
        # the gallery.
        defaults = {"k": max(10, len(images) // 20), "queries": list(queries)}
        return cls.build({**defaults, **settings, "attribute": sets})

    def measure(
        self,
        images: Embeddings,
        texts: Host,
        *,
        reference: Embeddings | None = None,
        edits: Mapping[str, Edit] | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Rank the gallery for every query with every method, and measure the rankings.

        Args:
            images: the gallery, with a label column for each attribute.
            texts: host of the model that embedded the images.
            reference: unlabelled images, for methods that use them.
            edits: name -> fitted edit, measured like a method.
            progress: object that shows progress bars.

        Returns:
            A result for each attribute.

        Raises:
            InvalidInputError: If images and text have different widths, a column is missing, or
                the gallery has fewer than two groups or fewer images than k.
        """
        # Validate everything before fitting.
        check_images(images, texts, self.queries[0])
        self._check_classes(images)
        reference, reference_counts = disjoint(reference, images, self.methods)
        # Methods that do not edit images share this object, so rankings read it only once.
        features = images.unit
        results = []
        for attribute, sets in self.attribute.items():
            with progress.bar(f"{self.name} {attribute}") as advance:
                # 1. The gallery contains the images whose group is known. Other images are counted,
                # and still used for recall and accuracy. For "gender x race", two columns are
                # crossed, and an image must be known in both.
                columns = list(map(str.strip, attribute.split(" x ")))
                labels = cross(*map(images.column, columns))
                doubt_labels(images, columns, sets)
                labelled = LabelledImages.draw(
                    self.compared_methods(), images, columns, sets, self.seed, max(self.k)
                )
                if labelled is not None:
                    labels = Labels(np.where(labelled.mask, -1, labels.codes), labels.names)
                gallery = Gallery(
                    labels[labels.known], self.k, self.prior, self.resamples, self.seed
                )
                # 2. Fit every method on the prompt sets. A bounded method may not change the
                # queries by more than its bound.
                advance(0, f"fitting {len(self.methods) - 1} methods")
                edits_of_method = self.fit(
                    texts, sets, neutral=self.queries, reference=reference, edits=edits
                )
                # 3. Edit queries and images with each method, and re-rank the results if requested.
                advance(0, f"ranking {len(gallery.codes)} images for {len(self.queries)} queries")
                queries_of_method = {}
                images_of_method = {}
                for method, edit in edits_of_method.items():
                    queries_of_method[method] = self.rows(texts, self.queries, edit)
                    images_of_method[method] = self.images(features, edit)
                rankings = Rankings(
                    queries_of_method, images_of_method, labels.known, labelled=labelled
                )
                rankings.rerank(self.compared_methods(), texts, sets, self.queries, max(self.k))
                # 4. Measure the groups among the first k, then the cost.
                provenance = self._provenance(
                    attribute, gallery, labels, images, texts, edits_of_method, reference, rankings
                )
                provenance.n.update(reference_counts)
                result = TaskResult(provenance)
                # List first the unit that is resampled, since reports use the first one.
                counts = {"images": len(gallery.codes), "queries": len(self.queries)}
                counts = {self.resample: counts[self.resample], **counts}
                self._add_skews(result, gallery, rankings, images, columns, counts)
                self._add_retained(result, gallery, rankings, counts)
                self._add_queries_worse(result, gallery, rankings)
                if edits or "search" in rankings.reranked:
                    result.provenance.settings["leaning"] = self._leaning(gallery, rankings)
                for method, cosine in rankings.image_cosines().items():
                    # Without a method, the cosine is 1. The change from it is exact, so the
                    # interval has no width.
                    change = (cosine - 1, cosine - 1, cosine - 1)
                    n_images = {"images": len(images)}
                    result.add("image_cosine", method, cosine, n=n_images, change=change)
                # Re-ranking does not change the model, so recall and accuracy stay the same.
                edits_of_models = dict(edits_of_method)
                for method in rankings.reranked:
                    del edits_of_models[method]
                self._add_recall(result, images, texts, edits_of_models)
                self._add_accuracy(result, images, texts, edits_of_models, columns)
                # 5. Warn about suspicious inputs; this does not affect the results.
                prompts_of_sets = chain(*(prompt_set.texts for prompt_set in sets))
                doubt_space(features, texts, [*self.queries, *prompts_of_sets])
                for column, prompt_set in product(columns, sets):
                    doubt_values(images, column, texts, prompt_set)
            results.append(result)
        return results

    def _check_classes(self, images: Embeddings) -> None:
        """Raise InvalidInputError if the class prompts do not match the values in their column."""
        for column, prompt_of_value in self.classes.items():
            names = images.column(column).names
            if set(prompt_of_value) != set(names):
                raise InvalidInputError(
                    f"classes.{column}: expected a prompt for each of {list(names)}, got"
                    f" {list(prompt_of_value)}"
                )

    def _provenance(
        self,
        attribute: str,
        gallery: Gallery,
        labels: Labels,
        images: Embeddings,
        texts: Host,
        edits: Edits,
        reference: Embeddings | None,
        rankings: Rankings,
    ) -> TaskProvenance:
        """Return the provenance of an attribute's result.

        The description mentions an uneven gallery or reference. `labels` covers all images, whereas
        `gallery` only contains images with known labels.
        """
        sets = self.attribute[attribute]
        words = (
            f"Text queries are run against an image gallery. The skew of the first k results by"
            f" {attribute} is reported as a mean over queries and for each query. Means have"
            f" intervals over {self.resample}, and individual queries have intervals over images."
        )
        if gallery.other_prior:
            words += (
                f" The gallery is uneven ({counted(gallery.size_of_group)}), so MaxSkew is shown"
                " against equal shares and against the gallery's own shares."
            )
        if reference is not None:
            # Count the reference images that are nearest to each value's prompts. With uneven
            # counts, methods that equalise the means of the reference find a wrong direction.
            for prompt_set in sets:
                values = Problem(texts, prompt_set).zero_shot(prompt_set, texts.roles[0])
                sizes = np.zeros(len(values), dtype=int)
                for rows in reference.unit.split(BLOCK):
                    nearest = (rows.double() @ values.double().T).argmax(dim=1)
                    sizes += np.bincount(nearest.numpy(), minlength=len(values))
                if max(sizes) >= UNEVEN * min(sizes):
                    size_of_value = dict(zip(prompt_set.attributes, sizes.tolist(), strict=True))
                    words += (
                        " The reference images are unevenly distributed over the nearest prompts:"
                        f" {counted(size_of_value)}."
                    )
        n_labelled = 0 if rankings.labelled is None else len(rankings.labelled.features)
        if rankings.used:
            words += f" {rankings.used}"
        return self.provenance(
            f"{self.name} {attribute}",
            images,
            texts,
            sets,
            {method: self.about(edit) for method, edit in edits.items()},
            reference=reference,
            title=f"Retrieval, {attribute}: skew of the first results (Chuang's thesis, Table 7.5)",
            description=words,
            n={
                "queries": len(self.queries),
                "images": len(gallery.codes),
                "unknown": int((~labels.known).sum()) - n_labelled,
                "groups": len(gallery.names),
                **({"labelled, not measured": n_labelled} if n_labelled else {}),
            },
            settings={
                "re-ranking": rankings.used,
                "prior shares": dict(zip(gallery.names, gallery.prior.tolist(), strict=True)),
                "groups": labels.counts,
                "gallery": facts_of(images),
            },
        )

    def _add_skews(
        self,
        result: TaskResult,
        gallery: Gallery,
        rankings: Rankings,
        images: Embeddings,
        columns: Sequence[str],
        n: Mapping[str, int],
    ) -> None:
        """Add every ranking and query metric, first as means and then for each query.

        Args:
            result: the result to add rows to.
            gallery: images with a known group.
            rankings: queries and images as edited by each method.
            images: all images, including those whose group is unknown.
            columns: the attribute's own columns, which are not used for precision.
            n: number of queries and images.
        """
        remaining = [column for column in images.labels if column not in columns]
        other_columns = {column: images.labels[column][rankings.known] for column in remaining}
        column_of_precision, relevant = relevance(other_columns, self.queries)
        result.provenance.settings["column of precision"] = column_of_precision
        # method -> metric -> (q, 1 + resamples), first for the gallery, then for its resamples
        skews = gallery.skews(rankings.first(max(self.k)), relevant, rankings.labels)
        chance = gallery.random()
        for metric in skews[NONE]:
            values = {method: skews[method][metric][:, 0] for method in skews}
            draws = {method: skews[method][metric][:, 1:].mean(axis=0) for method in skews}
            self._add_mean_over_queries(result, metric, values, draws, n)
            if metric in chance:
                # Average as many random rankings as there are queries, because a mean over 20
                # queries varies less than a single ranking.
                size = (self.resamples, len(self.queries))
                rng = np.random.default_rng(self.seed)
                means = rng.choice(chance[metric], size=size).mean(axis=1)
                expected = float(chance[metric].mean())
                result.add(metric, CHANCE, expected, percentile_interval(means), n=n)
        metric = f"max_skew@{self.k[0]}"
        model_skew = float(skews[NONE][metric][:, 0].mean())
        gallery.warn_if_uneven(self.k[0], model_skew, float(chance[metric].mean()))
        # Query cosines do not depend on the images, so they are exact.
        unedited = rankings.queries[NONE]
        queries = rankings.queries.items()
        cosines = {method: (unedited * rows).sum(dim=1).numpy() for method, rows in queries}
        self._add_mean_over_queries(result, "query_cosine", cosines, None, n)

        # For individual queries, images are resampled even if means are resampled over queries.
        n_of_query = {"images": n["images"], "queries": n["queries"]}
        for metric in skews[NONE]:
            for i, query in enumerate(self.queries):
                result.add_draws(
                    metric,
                    {method: float(skews[method][metric][i, 0]) for method in skews},
                    {method: skews[method][metric][i, 1:] for method in skews},
                    n=n_of_query,
                    interval=recentred_interval,
                    subset=query,
                )

    def _add_mean_over_queries(
        self,
        result: TaskResult,
        metric: str,
        values: Mapping[str, Floats],
        draws: Mapping[str, Floats] | None,
        n: Mapping[str, int],
    ) -> None:
        """Add each method's mean over queries, with an interval from resampled queries or images.

        Args:
            result: the result to add rows to.
            metric: name of the metric, with its k.
            values: method -> values (q,), one per query.
            draws: method -> means over queries (resamples,) for resampled images. None if the
                values do not depend on the images.
            n: number of queries and images.
        """
        if self.resample == "queries":
            result.add_resampled(metric, values, n=n, resamples=self.resamples, seed=self.seed)
        else:
            means = {method: float(values[method].mean()) for method in values}
            result.add_draws(metric, means, draws, n=n, interval=recentred_interval)

    def _add_retained(
        self, result: TaskResult, gallery: Gallery, rankings: Rankings, n: Mapping[str, int]
    ) -> None:
        """Add the share of each value's own top hits that are among the results.

        Also add the share of the unedited search's results that stay. A value with no more images
        than hits is skipped, because all of its images are always hits.
        """
        size = len(gallery.codes)
        lists = rankings.first(max(self.k))
        for k in self.k:
            first = hits_of_value(k, len(gallery.names))
            # One array (q, m) per value: its images' rows, best first.
            hits = [
                rankings.unedited(np.flatnonzero(gallery.codes == group), first)
                for group in range(len(gallery.names))
                if gallery.sizes[group] > first
            ]
            if not hits:
                continue
            # method -> values (q, 2) of both shares, and their means (2, resamples) over queries
            values: dict[str, list[Floats]] = {method: [] for method in lists}
            draws = {method: np.zeros((2, self.resamples)) for method in lists}
            for query in range(len(self.queries)):
                hits_of_query = [rows[query] for rows in hits]
                ranked = {method: rows[query] for method, rows in lists.items()}
                top_hits = np.concatenate([rows[:first] for rows in hits_of_query])
                for method, rows in ranked.items():
                    shares = shared(top_hits, rows[:k]), shared(ranked[NONE][:k], rows[:k])
                    values[method].append(np.array(shares))
                if self.resample == "images":
                    labels = {method: rows[query] for method, rows in rankings.labels.items()}
                    resampled = resampled_shared(
                        hits_of_query, first, ranked, k, size, self.resamples, self.seed, labels
                    )
                    # Sum query by query, so that memory use does not depend on their number.
                    for method, shares_of_resamples in resampled.items():
                        draws[method] += shares_of_resamples / len(self.queries)
            for place, (name, m) in enumerate({"retained": first * len(hits), "stay": k}.items()):
                metric = f"{name}@{k}"
                of_queries = {method: np.stack(rows)[:, place] for method, rows in values.items()}
                of_resamples = {method: table[place] for method, table in draws.items()}
                self._add_mean_over_queries(result, metric, of_queries, of_resamples, n)
                number = self.resamples * len(self.queries)
                random = chance_shared(m, k, size, number, self.seed)
                random = random.reshape(self.resamples, -1).mean(axis=1)
                result.add(metric, CHANCE, float(random.mean()), percentile_interval(random), n=n)

    def _add_queries_worse(self, result: TaskResult, gallery: Gallery, rankings: Rankings) -> None:
        """Add the share of queries whose results get further from the gallery's shares.

        On the mean over queries, most methods reduce the skew, but for some queries it increases.
        """
        lists = rankings.first(max(self.k))
        n = {"queries": len(self.queries)}
        for k in self.k:
            distances = {m: self._distances(gallery, rows[:, :k]) for m, rows in lists.items()}
            unedited = distances.pop(NONE)
            for method, rows in distances.items():
                worse = int((rows - unedited > WORSE_BY).sum())
                interval = wilson_interval(worse, len(rows))
                result.add(f"queries_worse@{k}", method, worse / len(rows), interval, n=n)

    def _distances(self, gallery: Gallery, rows: Rows) -> Floats:
        """Return the mean difference (q,) between the groups' shares of rows (q, k) and of all."""
        shares = counts_of_groups(gallery.codes[rows], len(gallery.names)) / rows.shape[1]
        distances: Floats = np.abs(shares - gallery.gallery_shares).mean(axis=1)
        return distances

    def _leaning(self, gallery: Gallery, rankings: Rankings) -> list[dict[str, object]]:
        """Return which group each query's first results favour, the most skewed query first.

        This is the group whose share among them exceeds its share of the gallery the most. Each
        query also has the group's share, the share of results that stay and whether the results
        get worse for each method, and whether the excess is larger than for 95% of random rankings.
        """
        k, g = self.k[0], len(gallery.names)
        lists = {name: rows[:, :k] for name, rows in rankings.first(max(self.k)).items()}
        shares = {m: counts_of_groups(gallery.codes[rows], g) / k for m, rows in lists.items()}
        distances = {name: self._distances(gallery, rows) for name, rows in lists.items()}
        unedited = lists.pop(NONE)
        excess = shares[NONE] - gallery.gallery_shares
        rng = np.random.default_rng(self.seed)
        random = rng.multivariate_hypergeometric(gallery.sizes, k, size=self.resamples) / k
        limit = np.quantile((random - gallery.gallery_shares).max(axis=1), 0.95)
        leaning = []
        for query in np.argsort(-excess.max(axis=1), kind="stable"):
            group = int(excess[query].argmax())
            stay = {name: shared(unedited[query], rows[query]) for name, rows in lists.items()}
            leaning.append(
                {
                    "query": self.queries[query],
                    "group": gallery.names[group],
                    "gallery": float(gallery.gallery_shares[group]),
                    "beyond_chance": bool(excess[query, group] > limit),
                    "share": {name: float(rows[query, group]) for name, rows in shares.items()},
                    "stay": stay,
                    "worse": {
                        name: bool(distances[name][query] - distances[NONE][query] > WORSE_BY)
                        for name in lists
                    },
                }
            )
        return leaning

    def _add_recall(
        self, result: TaskResult, gallery: Embeddings, texts: Host, edits: Edits
    ) -> None:
        """Add the recall of the gallery's captions, if they were embedded.

        For image to text, an image is a hit if its caption is among the first k different captions.
        For text to image, a caption is a hit if an image with this caption is among the first k
        images. The subset "" is the mean of both directions. A caption counts once for each of its
        images, which are resampled together.
        """
        captioned = np.array([bool(caption) for caption in gallery.captions], dtype=bool)
        if not captioned.any() or len(gallery) > MOST_CAPTIONS:
            return
        # code: (images,) caption number of each image
        captions, code = np.unique(np.array(gallery.captions)[captioned], return_inverse=True)
        try:
            texts.embed(captions.tolist())
        except InvalidInputError:
            # Recall cannot be measured, because the text embeddings lack some of the captions.
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
                # (2, n): both directions for each image
                hits = np.array([to_text, to_image]) < k
                # Average over both directions first, because each image is resampled as a unit.
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
        """Add the mean zero-shot accuracy over columns, and each column's own if there are several.

        `columns` contains the attribute's own columns, which are excluded.
        """
        classes = {column: self.classes[column] for column in self.classes if column not in columns}
        if not classes:
            return
        # Use the same images for all columns and for their mean.
        known = np.logical_and.reduce([gallery.column(column).known for column in classes])
        if not known.any():
            raise InvalidInputError(
                f"classes: no image has a label in all of the columns {list(classes)}"
            )
        table: dict[tuple[str, str], dict[str, Floats]] = defaultdict(dict)
        for method, edit in edits.items():
            images = self.images(gallery.unit, edit).select(known)
            for column, prompt_of_value in classes.items():
                labels = gallery.column(column)
                prompts = [prompt_of_value[name] for name in labels.names]
                rows = self.rows(texts, prompts, edit).double()
                blocks = [rows @ block.double().T for block in images.split(BLOCK)]
                # Round the scores, so that equal images tie regardless of the summation order.
                scores = torch.cat(blocks, dim=1).numpy().round(12)
                table["accuracy", column][method] = scores.argmax(axis=0) == labels.codes[known]
        means = {}
        for method in edits:
            means[method] = np.mean([of_method[method] for of_method in table.values()], axis=0)
        # With a single column, its own row would repeat the mean.
        rows_of_result: Means = {("accuracy", ""): means}
        if len(classes) > 1:
            rows_of_result = {**rows_of_result, **table}
        n = {"images": int(known.sum()), "without a label": int((~known).sum())}
        self._add_means(result, rows_of_result, n, np.arange(n["images"]))

    def _add_means(
        self, result: TaskResult, table: Means, n: Mapping[str, int], clusters: NDArray[np.integer]
    ) -> None:
        """Add means over images, resampling images in the same cluster together.

        `clusters` (n,) contains each image's cluster number.
        """
        # Sum over the images in each cluster. The first column contains ones, to count images; the
        # others contain the values for each row and method in the table.
        columns = [np.ones(len(clusters))]
        for of_methods in table.values():
            columns += of_methods.values()
        sums = np.stack([np.bincount(clusters, column) for column in columns], axis=1)
        blocks = resampled_weights(len(sums), self.resamples, self.seed, len(sums))
        resampled = np.concatenate([weights.astype(float) @ sums for weights in blocks])
        # A resample of clusters may contain more or fewer than n images, so divide by the actual
        # number. The shape is (resamples, values).
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


def relevance(columns: Mapping[str, Labels], queries: Sequence[str]) -> tuple[str, Mask | None]:
    """Find the column whose labels the queries name, and return it with a relevance matrix (q, n).

    An image is relevant to a query if the query names its label. Images with unknown labels are not
    relevant.

    Args:
        columns: column -> image labels.
        queries: q search texts.

    Returns:
        The first column for which every query names exactly one label, with its relevance matrix,
        or "" and None if there is no such column.
    """
    for column, labels in columns.items():
        # Match entire words, so that "nurse" does not match "nursery". Skip labels without letters
        # or digits, such as "?", which could match anywhere.
        words = StatedWords([name for name in labels.names if any(map(str.isalnum, name))])
        names_of_query = list(map(words.find, queries))
        if all(len(names) == 1 for names in names_of_query):
            codes = [labels.names.index(names[0]) for names in names_of_query]
            return column, np.array(codes)[:, None] == labels.codes
    return "", None
