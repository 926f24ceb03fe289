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
from itertools import chain, product
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from vldebias.data import Embeddings, Labels, UnitRows, cross
from vldebias.edits.edit import Edit
from vldebias.errors import InvalidInputError, SuspectInputWarning, warn
from vldebias.hosts import Host
from vldebias.measure.kept import (
    chance_kept,
    hits_of_value,
    kept_share,
    resampled_kept_shares,
)
from vldebias.measure.metric import computed
from vldebias.measure.rankings import first_hits, max_skews, reach, resampled_places
from vldebias.measure.resampling import percentile_interval, recentred_interval, resampled_weights
from vldebias.measure.result import CHANCE, NONE, TaskResult
from vldebias.methods import Problem
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, StatedWords, load_prompts
from vldebias.schema import Count
from vldebias.study.images import (
    ImageTask,
    disjoint,
    doubt_labels,
    doubt_space,
    doubt_values,
    sets_by_column,
)
from vldebias.study.task import Session, SeveralPrompts, register_task

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
Edits = Mapping[str, Edit | None]  # method -> what it does, None for the model as it is
Means = Mapping[tuple[str, str], Mapping[str, Floats]]  # (metric, subset) -> method -> values (n,)

RECALL = (1, 5, 10)  # the k of recall@k of captions
MOST_CAPTIONS = (
    10_000  # images up to which recall of captions is measured: its cost grows with the square
)
# A gallery is uneven where one group has so many times the images of another: at 1.5, of two groups
# 60 % and 40 %, a random ranking has a MaxSkew of .18 against even shares.
UNEVEN = 1.5
_BLOCK = 1 << 23  # entries of a block of rankings: bounds the memory


class Gallery:
    """Hold images whose group is known (labels, one per image) and the conventions of their skew,
    see `RetrievalTask`.

    Groups without an image are left out: nothing could retrieve them. codes: (n,) positions in
    `names`, in the smallest integer type, since small types sort in linear time.

    other_prior: name of the prior that was not asked for, where the gallery is uneven: its figures
    stand beside, since no ranking of an uneven gallery is fair by both. "" where it is even.

    Raises:
        InvalidInputError: fewer than two groups, or fewer images than k.
    """

    def __init__(
        self,
        labels: Labels,
        k: Sequence[int],
        prior: str = "uniform",
        resamples: int = 2000,
        seed: int = 0,
    ) -> None:
        self.k, self.by_size, self.resamples, self.seed = k, prior == "dataset", resamples, seed
        self.names = tuple(name for name, n in labels.counts.items() if n)
        if len(self.names) < 2:
            raise InvalidInputError(
                f"gallery: expected images of two or more groups, got {labels.counts}"
            )
        if max(k) > (n := len(labels)):
            raise InvalidInputError(
                f"k: expected at most {n} images of known group, got {max(k)}; choose a smaller k"
            )
        _, codes, self.sizes = np.unique(labels.codes, return_inverse=True, return_counts=True)
        self.codes = codes.astype(np.min_scalar_type(len(self.names)))
        self.own_shares: Floats = self.sizes / self.sizes.sum()
        self.even_shares: Floats = np.full(len(self.names), 1 / len(self.names))
        self.prior = self.own_shares if self.by_size else self.even_shares
        is_uneven = self.sizes.max() >= UNEVEN * self.sizes.min()
        name_of_other = "uniform" if self.by_size else "dataset"
        self.other_prior = name_of_other if is_uneven else ""

    def measure(
        self, groups: NDArray[np.integer], own_shares: Floats, relevant: Mask | None = None
    ) -> dict[str, Floats]:
        """Return metric -> value (r,) of r rankings from the groups (r, m) of their first rows, and
        their relevance.

        own_shares: of the groups in the gallery, (g,) or of each ranking (r, g).
        """
        prior = own_shares if self.by_size else self.even_shares
        other = self.even_shares if self.by_size else own_shares
        values = dict[str, Floats]()
        for k in self.k:
            first = groups[:, :k]
            for metric, compute in computed("rankings"):
                values[f"{metric.name}@{k}"] = compute(first, prior)
            if self.other_prior:
                values[f"max_skew_{self.other_prior}@{k}"] = max_skews(first, other)
            if relevant is not None:
                values[f"precision@{k}"] = relevant[:, :k].mean(axis=1)
        return values

    def skews(
        self, ranked: Mapping[str, Rows], relevant: Mask | None = None
    ) -> dict[str, dict[str, Floats]]:
        """Return method -> metric -> values (q, 1 + resamples) of the gallery, then of the same
        resampled ones for all.

        ranked: method -> first rows (q, m) of each query. relevant: (q, n) whether each image is.
        The data set's prior is that of the resample. In a large gallery only counts of ranked rows
        are sampled, and of the others by group.
        """
        n, g = len(self.codes), len(self.names)
        read = np.unique(np.concatenate([orders.ravel() for orders in ranked.values()]))
        read = np.arange(n) if 2 * len(read) > n else read
        codes, hits = self.codes[read], None if relevant is None else relevant[:, read]
        others, rng = (
            self.sizes - np.bincount(codes, minlength=g),
            np.random.default_rng([self.seed, 1]),
        )
        places = {method: np.searchsorted(read, orders) for method, orders in ranked.items()}
        blocks: dict[str, list[list[dict[str, Floats]]]] = {method: [] for method in ranked}
        itself = np.ones((1, len(read)), dtype=np.int32)
        own_shares = self.own_shares
        for i, weights in enumerate(
            chain([itself], resampled_weights(n, self.resamples, self.seed, len(read)))
        ):
            if i and (self.by_size or self.other_prior):
                rest = rng.multinomial(n - weights.sum(axis=1), others / max(others.sum(), 1))
                sizes = [weights[:, codes == group].sum(axis=1) for group in range(g)]
                own_shares = (np.stack(sizes, axis=1) + rest) / n
            weights = np.asfortranarray(weights.astype(np.min_scalar_type(weights.max())))
            for method, orders in places.items():
                blocks[method].append([])
                for query, order in enumerate(orders):
                    top = resampled_places(order, weights, max(self.k))
                    of_query = None if hits is None else hits[query, order][top]
                    blocks[method][-1].append(self.measure(codes[order][top], own_shares, of_query))
        return {
            method: {
                m: np.block([[one[m] for one in each] for each in zip(*parts, strict=True)])
                for m in parts[0][0]
            }
            for method, parts in blocks.items()
        }

    def random(self) -> dict[str, Floats]:
        """Return metric -> values (resamples,) of random permutations of the gallery.

        MaxSkew of a random ranking is above 0: the first k of a balanced gallery are not exactly
        balanced.
        """
        rng, n, k, parts = (
            np.random.default_rng(self.seed),
            len(self.codes),
            max(self.k),
            list[dict[str, Floats]](),
        )
        few = (
            n > 10_000 and n > 50 * k
        )  # where `Generator.choice` samples k rows without an array of n
        size = max(1, _BLOCK // (k if few else n))
        for start in range(0, self.resamples, size):
            b = min(size, self.resamples - start)
            if few:
                groups = self.codes[np.stack([rng.choice(n, k, replace=False) for _ in range(b)])]
            else:
                groups = rng.permuted(np.tile(self.codes, (b, 1)), axis=1)[:, :k]
            parts.append(self.measure(groups, self.own_shares))
        return {metric: np.concatenate([part[metric] for part in parts]) for metric in parts[0]}


def _asked(given: Any) -> Any:
    """Read queries: texts, a prompt set whose class prompts are asked for, or {of: SET, held_out:
    true}."""
    if isinstance(given, Mapping) and "of" in given and set(given) <= {"of", "held_out"}:
        own = load_prompts(given["of"])
        return list(own.held_out_classes if given.get("held_out") else own.classes)
    return list(load_prompts(given).classes) if isinstance(given, (str, PromptSet)) else given


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
    jointly. An attribute is
        a column ("gender") or an intersection of columns ("gender x race").
    queries: texts, or a prompt set whose class prompts are asked for; in a file also {of: SET,
    held_out: true}.
    k: how many of the first results are looked at, one or more values; equal scores keep the order
    of the images.
    prior: share that a group should have: "uniform" (1 / number of groups in the gallery; the
    paper's) or "dataset"
        (its share of the gallery). Of an uneven gallery (`UNEVEN`) MaxSkew@k is measured against
        the other one too, and a conclusion gives no verdict where the two disagree.
    resample: what the interval of a mean over queries is about: "queries", where they are a sample
    of what people ask,
        or "images", where the protocol fixes them. Rows of one query are always about images.
    classes: column -> value -> its class prompt; a column of the attribute itself is left out, as
    are images without a
        label in one of the columns.
    """

    task: Literal["retrieval"] = "retrieval"
    prompts: Annotated[dict[str, SeveralPrompts], Field(min_length=1)]
    queries: Annotated[list[str], BeforeValidator(_asked)]
    k: Annotated[list[Count], BeforeValidator(lambda k: list(k) if np.ndim(k) else [k])]
    prior: Literal["uniform", "dataset"] = "uniform"
    resample: Literal["queries", "images"] = "images"
    classes: dict[str, dict[str, str]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _different(self) -> Self:
        for name, given in (("k", self.k), ("queries", self.queries)):
            if not given or len(set(given)) < len(given):
                raise ValueError(f"{name}: expected one or more different values, got {given}")
        return self

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task; by default of the class prompts, k a twentieth, and the only column with
        the only set."""
        sets, images = sets_by_column(fields.get("prompts")), session.embedded("images")
        if len(sets) == len(images.labels) == 1 and not isinstance(fields["prompts"], Mapping):
            sets = dict(zip(images.labels, sets.values(), strict=True))
        asked = list(
            dict.fromkeys(prompt for one in chain(*sets.values()) for prompt in one.classes)
        )
        few = max(10, len(images) // 20)
        return super().of_given(session, {"k": few, "queries": asked, **fields, "prompts": sets})

    def texts(self) -> tuple[str, ...]:
        """Return the prompts of all sets, the queries and the class prompts; captions are in the
        data."""
        sets = chain(*(one.texts for one in chain(*self.prompts.values())))
        return tuple(
            dict.fromkeys(
                (*sets, *self.queries, *chain(*(of.values() for of in self.classes.values())))
            )
        )

    def measure(
        self,
        images: Embeddings,
        texts: Host,
        *,
        reference: Embeddings | None = None,
        edits: Mapping[str, Edit] | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Rank the gallery for every query under every method, and measure; gives a result for each
        attribute.

        images: the gallery, with the label columns of the attributes. texts: the host of the same
        model.
        reference: unlabelled images, for methods that use some. edits: name -> an edit that was
        fitted before.
        """
        self.check_images(images, texts, self.queries[0])
        for column, prompts in self.classes.items():
            if set(prompts) != set(names := images.column(column).names):
                wanted = f"expected a prompt for each of {list(names)}"
                raise InvalidInputError(f"classes.{column}: {wanted}, got {list(prompts)}")
        others, counts = disjoint(reference, images, self.methods)
        features, results = images.unit, []
        for attribute, sets in self.prompts.items():
            name, columns = (
                f"{self.name} {attribute}",
                [column.strip() for column in attribute.split(" x ")],
            )
            labels = cross(*map(images.column, columns))
            doubt_labels(images, columns, sets)
            with progress.bar(name) as advance:
                held = Gallery(labels[labels.known], self.k, self.prior, self.resamples, self.seed)
                advance(0, f"fitting {len(self.methods) - 1} methods")
                fitted = self.fit(texts, sets, neutral=self.queries, reference=others, edits=edits)
                advance(0, f"ranking {len(held.codes)} images for {len(self.queries)} queries")
                found = (
                    (c, relevance(of[labels.known], self.queries))
                    for c, of in images.labels.items()
                )
                named, relevant = next(
                    ((c, of) for c, of in found if of is not None and c not in columns), ("", None)
                )
                n = {"queries": len(self.queries), "images": len(held.codes)}
                provenance = self.provenance(
                    name,
                    images,
                    texts,
                    sets,
                    {method: self.about(edit) for method, edit in fitted.items()},
                    reference=others,
                    title=f"Retrieval, {attribute}: skew of the first results (as in Table 7.5)",
                    description=(
                        f"Text queries against a gallery of images; skew over {attribute} of the"
                        " first k, mean over queries and per query. Means are resampled over"
                        f" {self.resample}, one query over images."
                        f"{self._uneven_words(held, others, texts, sets)}"
                    ),
                    n={
                        **n,
                        "unknown": int((~labels.known).sum()),
                        "groups": len(held.names),
                        **counts,
                    },
                    settings={
                        "prior shares": dict(zip(held.names, held.prior.tolist(), strict=True)),
                        "groups": labels.counts,
                        "gallery": {
                            key: of
                            for key, of in images.about.items()
                            if key not in ("cache", "file")
                        },
                        "column of precision": named,
                    },
                )
                result = TaskResult(provenance)
                rows = {
                    method: self.rows(texts, self.queries, edit) for method, edit in fitted.items()
                }
                seen = {method: self.images(features, edit) for method, edit in fitted.items()}
                self._add_skews(result, held, rows, seen, labels.known, relevant)
                self._add_kept(result, held, rows, seen, np.flatnonzero(labels.known))
                for method, of in seen.items():
                    if of is not features:
                        pairs = zip(features.split(), of.split(), strict=True)
                        mean = sum(float((a.double() * b.double()).sum()) for a, b in pairs) / len(
                            of
                        )
                        result.add(
                            "image_cosine",
                            method,
                            mean,
                            n={"images": len(of)},
                            change=(mean - 1,) * 3,
                        )
                self._add_recall(result, images, texts, fitted)
                classes = {
                    column: of for column, of in self.classes.items() if column not in columns
                }
                if classes:
                    self._add_accuracy(result, images, texts, fitted, classes)
                doubt_space(features, texts, [*self.queries, *chain(*(one.texts for one in sets))])
                for column, prompt_set in product(columns, sets):
                    doubt_values(images, column, texts, prompt_set)
                results.append(result)
        return results

    def _add_skews(
        self,
        result: TaskResult,
        held: Gallery,
        queries: Mapping[str, Tensor],
        images: Mapping[str, UnitRows],
        known: Mask,
        relevant: Mask | None,
    ) -> None:
        """Add every metric of the rankings and the queries: means over queries first, then each
        query."""
        ranked = dict[str, Rows]()
        for of in dict.fromkeys(
            images.values()
        ):  # images that several methods share are read once for all queries
            methods, own = (
                [method for method in images if images[method] is of],
                of if known.all() else of.some(known),
            )
            order = own.top(
                torch.cat([queries[method] for method in methods]), reach(max(self.k), len(own))
            )
            ranked |= zip(methods, np.split(order, len(methods)), strict=True)
        n = {"queries": len(self.queries), "images": len(held.codes)}
        skews, chance = (
            held.skews({method: ranked[method] for method in images}, relevant),
            held.random(),
        )
        points = {
            metric: {method: of[metric][:, 0] for method, of in skews.items()}
            for metric in skews[NONE]
        }
        draws = {
            metric: {method: of[metric][:, 1:] for method, of in skews.items()} for metric in points
        }
        kept = {
            method: (queries[NONE] * rows).sum(dim=1).numpy() for method, rows in queries.items()
        }
        for metric, each in {**points, "query_cosine": kept}.items():
            if self.resample == "queries":
                result.add_resampled(metric, each, n=n, resamples=self.resamples, seed=self.seed)
            else:  # no image changes a cosine of queries, which is exact
                means = (
                    {method: of.mean(axis=0) for method, of in draws[metric].items()}
                    if metric in draws
                    else None
                )
                value = {method: float(of.mean()) for method, of in each.items()}
                result.add_draws(metric, value, means, n=n, interval=recentred_interval)
            if metric == f"max_skew@{self.k[0]}":
                none = float(each[NONE].mean())
                warn_of_uneven_gallery(held, self.k[0], none, float(chance[metric].mean()))
            if metric in chance:
                rng, fair = np.random.default_rng(self.seed), float(chance[metric].mean())
                of_means = rng.choice(
                    chance[metric], size=(self.resamples, len(self.queries))
                ).mean(axis=1)
                result.add(metric, CHANCE, fair, percentile_interval(of_means), n=n)
        for metric, (i, query) in product(points, enumerate(self.queries)):
            value = {method: float(of[i]) for method, of in points[metric].items()}
            drawn = {method: of[i] for method, of in draws[metric].items()}
            result.add_draws(metric, value, drawn, n=n, interval=recentred_interval, subset=query)

    def _add_kept(
        self,
        result: TaskResult,
        gallery: Gallery,
        queries: Mapping[str, Tensor],
        images: Mapping[str, UnitRows],
        known: Rows,
    ) -> None:
        """Add the share of the first hits inside each value that are still there after an edit,
        mean over values and queries.

        known: rows of the images whose group is known. Values with no more images than hits are
        left out: nothing could be lost.
        """
        n = {"queries": len(self.queries), "images": len(known)}
        for k in self.k:
            first = hits_of_value(k, len(gallery.names))
            members = [known[gallery.codes == group] for group in range(len(gallery.names))]
            members = [rows for rows in members if len(rows) > first]
            if not members:
                continue
            metric = f"kept@{k}"
            shares: dict[str, list[Floats]] = {method: [] for method in queries}
            draws: dict[str, list[Floats]] = {method: [] for method in queries}
            chance = []
            for group, rows in enumerate(members):
                rankings = {
                    method: images[method].some(rows).top(asked, reach(first, len(rows)))
                    for method, asked in queries.items()
                }
                for method, ranking in rankings.items():
                    pairs = zip(rankings[NONE], ranking, strict=True)
                    share = [kept_share(before, after, first) for before, after in pairs]
                    shares[method].append(np.array(share))
                if self.resample == "images":
                    of_group = self._resampled_kept(rankings, first, len(rows), group)
                    for method, values in of_group.items():
                        draws[method].append(values)
                size = self.resamples * len(self.queries)
                random = chance_kept(first, len(rows), size, self.seed + group)
                chance.append(random.reshape(self.resamples, -1).mean(axis=1))
            means = {method: np.mean(values, axis=0) for method, values in shares.items()}
            if self.resample == "queries":
                result.add_resampled(metric, means, n=n, resamples=self.resamples, seed=self.seed)
            else:
                value = {method: float(mean.mean()) for method, mean in means.items()}
                drawn = {method: np.mean(values, axis=0) for method, values in draws.items()}
                result.add_draws(metric, value, drawn, n=n, interval=recentred_interval)
            random = np.mean(chance, axis=0)
            result.add(metric, CHANCE, float(random.mean()), percentile_interval(random), n=n)

    def _resampled_kept(
        self, rankings: Mapping[str, Rows], first: int, n: int, seed: int
    ) -> dict[str, Floats]:
        """Return the mean over queries (resamples,) of what each method keeps in one value."""
        total = {method: np.zeros(self.resamples) for method in rankings}
        for query, before in enumerate(rankings[NONE]):
            after = {method: ranking[query] for method, ranking in rankings.items()}
            shares = resampled_kept_shares(
                before, after, first, n, self.resamples, self.seed + seed
            )
            for method, values in shares.items():
                total[method] += values
        return {method: values / len(self.queries) for method, values in total.items()}

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
        captions, code = np.unique(np.array(gallery.captions)[captioned], return_inverse=True)
        try:
            texts.embed(captions.tolist())
        except InvalidInputError:  # a table of embeddings lacks some
            return
        codes, own, table = (
            torch.from_numpy(code),
            torch.arange(len(captions)),
            defaultdict[Any, Any](dict),
        )
        for method, edit in edits.items():
            rows = self.rows(texts, captions.tolist(), edit).float()
            seen = self.images(gallery.unit, edit)[captioned]
            ahead = (
                first_hits(seen, rows, codes, own).numpy(),
                first_hits(rows, seen, own, codes).numpy()[code],
            )
            for k in RECALL:
                hits = np.array(ahead) < k
                for way, of in zip(
                    ("", "image to text", "text to image"), (hits.mean(axis=0), *hits), strict=True
                ):
                    table[f"recall@{k}", way][method] = of
        self._add_means(
            result, table, {"images": int(captioned.sum()), "captions": len(captions)}, code
        )

    def _add_accuracy(
        self,
        result: TaskResult,
        gallery: Embeddings,
        texts: Host,
        edits: Edits,
        classes: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Add zero-shot accuracy in each column, and the mean over columns where there are several.

        Scores are float64 products, rounded to far more digits than matter: equal images tie in any
        order of sums.
        """
        known = np.logical_and.reduce([gallery.column(column).known for column in classes])
        if not known.any():
            raise InvalidInputError(
                f"classes: no image has a label in every one of {list(classes)}"
            )
        table = defaultdict[Any, Any](dict)
        for method, edit in edits.items():
            images = self.images(gallery.unit, edit).some(known)
            for column, prompts in classes.items():
                labels = gallery.column(column)
                rows = self.rows(texts, [prompts[name] for name in labels.names], edit).double()
                scores = torch.cat(
                    [rows @ some.double().T for some in images.split(1 << 13)], dim=1
                )
                right = scores.numpy().round(12).argmax(axis=0) == labels.codes[known]
                table["accuracy", column][method] = right
        means = {method: np.mean([of[method] for of in table.values()], axis=0) for method in edits}
        parts = table if len(classes) > 1 else {}
        n = {"images": int(known.sum()), "without a label": int((~known).sum())}
        self._add_means(result, {("accuracy", ""): means, **parts}, n, np.arange(n["images"]))

    def _add_means(
        self, result: TaskResult, table: Means, n: Mapping[str, int], clusters: NDArray[np.integer]
    ) -> None:
        """Add means over images, whole clusters drawn together."""
        every = [np.ones(len(clusters)), *chain(*(of.values() for of in table.values()))]
        sums = np.stack([np.bincount(clusters, of) for of in every], axis=1)
        blocks = resampled_weights(len(sums), self.resamples, self.seed, len(sums))
        total, *drawn = np.concatenate([weights.astype(float) @ sums for weights in blocks]).T
        draws = (one / total for one in drawn)
        for (metric, subset), each in table.items():
            point = {method: float(of.mean()) for method, of in each.items()}
            own = dict(zip(each, draws, strict=False))
            result.add_draws(metric, point, own, n=n, interval=recentred_interval, subset=subset)

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
            sizes = dict(zip(gallery.names, gallery.sizes.tolist(), strict=True))
            words += (
                f" The gallery is uneven ({_counted(sizes)}): MaxSkew is shown against even shares"
                " and against its own."
            )
        if reference is None:
            return words
        for prompts in sets:
            sizes = _sizes_by_texts(reference, texts, prompts)
            if max(sizes.values()) >= UNEVEN * min(sizes.values()):
                words += (
                    " The reference images are uneven by what the texts take them for:"
                    f" {_counted(sizes)}."
                )
        return words


def _counted(sizes: Mapping[str, int]) -> str:
    """Write numbers of images: "700 male, 300 female"."""
    return ", ".join(f"{size:,} {name}" for name, size in sizes.items())


def _sizes_by_texts(images: Embeddings, texts: Host, prompts: PromptSet) -> dict[str, int]:
    """Return value of a prompt set -> number of images that are nearest to its texts."""
    values = Problem(texts, prompts).zero_shot(prompts, texts.roles[0])
    sizes = np.zeros(len(values), dtype=int)
    for rows in images.unit.split(1 << 13):
        nearest = (rows.double() @ values.double().T).argmax(dim=1)
        sizes += np.bincount(nearest.numpy(), minlength=len(values))
    return dict(zip(prompts.attributes, sizes.tolist(), strict=True))


def warn_of_uneven_gallery(gallery: Gallery, k: int, none: float, chance: float) -> None:
    """Warn that random rankings are more skewed than the model's, so that the gallery is the skew.

    none, chance: MaxSkew@k of the model without a method, and of random rankings.
    """
    if not gallery.other_prior or chance <= none:
        return
    sizes = dict(zip(gallery.names, gallery.sizes.tolist(), strict=True))
    warn(
        f"MaxSkew@{k}: a random ranking of this gallery has {chance:.3f}, the model {none:.3f}. The"
        f" gallery itself is the skew ({_counted(sizes)}): no edit of texts mends that. Measure on"
        " as many images of each group, or against the gallery's own shares (prior='dataset').",
        SuspectInputWarning,
    )


def relevance(labels: Labels, queries: Sequence[str]) -> Mask | None:
    """Return whether (q, n) the label of image n is the one that query q names; an unknown label is
    not relevant.

    None unless every query names exactly one of the labels.
    """
    words = StatedWords([name for name in labels.names if any(map(str.isalnum, name))])
    named = [words.find(query) for query in queries]
    if any(len(one) != 1 for one in named):
        return None
    return np.array([labels.names.index(one[0]) for one in named])[:, None] == labels.codes
