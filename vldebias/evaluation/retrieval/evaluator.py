"""Skew of text-to-image retrieval (Table 7.5): are the first k images spread over the groups, and what does it cost?

Source: section 7.4.2 of Chuang's thesis (Chuang et al., "Debiasing Vision-Language Models via Biased Prompts", 2023)
with MaxSkew and NDKL of Geyik et al. (2019). The protocol of Table 7.5: the validation split of FairFace, the ten
queries of Table A.7, k = 1000, a uniform prior, one projection per attribute column, the mean over queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vldebias.api import fit_projection
from vldebias.data import Embeddings, cross
from vldebias.errors import InvalidInputError
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Figure
from vldebias.evaluation.retrieval.figures import Task
from vldebias.evaluation.retrieval.scores import scores
from vldebias.evaluation.retrieval.setting import Attribute, Setting
from vldebias.evaluation.retrieval.skew import Gallery, Rules
from vldebias.evaluation.retrieval.utility import Utility, relevance, utility_figures
from vldebias.evaluation.texts import Texts
from vldebias.metrics.rankings import rankings
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

__all__ = ["Utility", "evaluate_retrieval"]

METHODS = ("none", "orth", "orth-cali", "cali")
BETTER = {"max_skew": "lower", "min_skew": "higher", "ndkl": "lower", "precision": "higher"}
ByMethod = Mapping[str, np.ndarray]


def evaluate_retrieval(
    gallery: Embeddings,
    texts: Texts,
    prompts: Mapping[str, PromptSet | Sequence[PromptSet]],
    *,
    task: str,
    queries: Sequence[str],
    k: int | Sequence[int],
    methods: Sequence[str] = METHODS,
    lam: float | None = None,
    strength: float = 1.0,
    keep_stated: bool = True,
    prior: str = "uniform",
    floor: float | None = None,
    ties: str = "stable",
    resample: str = "queries",
    utility: Utility | None = None,
    resamples: int = 2000,
    seed: int = 0,
    on_step: Callable[[str], None] | None = None,
) -> list[Part]:
    """MaxSkew@k, MinSkew@k and NDKL@k of every method, mean over queries and per query, with utility beside them.

    One part per attribute, named "<task> <attribute>". Images whose attribute is unknown are left out of its gallery
    and counted. Method "random" is the expectation under random rankings of the gallery, with the middle 95 % of it.

    Args:
        gallery: image embeddings with a column for every attribute.
        texts: the text side of the same model.
        prompts: attribute -> prompt set that the projection is fitted on. An attribute is a column ("gender") or an
            intersection ("gender x race"); several sets for one attribute are solved jointly.
        queries: what is asked; each is projected as a model with the projection attached would.
        k: how many of the first results are looked at; one value or several.
        methods: "none" is always measured and is the base of every change.
        lam, strength, keep_stated: see `vldebias.debias`.
        prior, floor, ties: conventions of the skew, see `Rules`.
        resample: what the interval of a mean over queries is about: "queries", where they are a sample of what people
            ask, or "images", where the protocol fixes them and the gallery is the sample. Figures of one query are
            always about images. `retrieval_figures` says what such an interval covers.
        utility: what else to measure; the cosine of each query with itself always is.
        resamples, seed: of the bootstrap, the random rankings and random ties.
        on_step: told what is being done.

    Raises:
        InvalidInputError: a column that is not there or has a single group, k above the number of images, widths of
            texts and images that differ, no queries or one twice, an option out of its range.
    """
    if not prompts:
        raise InvalidInputError("prompts: expected attribute -> prompt set for at least one attribute, got none")
    setting = Setting(
        gallery=gallery,
        images=gallery.normalised(),
        texts=texts,
        queries=tuple(queries),
        methods=tuple(dict.fromkeys(("none", *methods))),
        lam=lam,
        strength=strength,
        keep_stated=keep_stated,
        rules=Rules((k,) if isinstance(k, int) else tuple(k), prior, floor, ties, resamples, seed),
        resample=resample,
        utility=utility or Utility(),
    )
    tell = on_step or (lambda step: None)
    found = []
    for name, given in prompts.items():
        tell(f"{task} {name}: fitting {len(setting.methods) - 1} projections")
        attribute = _attribute(setting, f"{task} {name}", name, given)
        tell(f"{task} {name}: ranking {len(attribute.gallery.labels)} images for {len(queries)} queries")
        found.append(Part(_figures(setting, attribute), attribute.protocol(setting)))
    return found


def _attribute(s: Setting, task: str, name: str, given: PromptSet | Sequence[PromptSet]) -> Attribute:
    """The labels of an attribute and the projections of every method."""
    labels = cross(*(s.gallery.column(column.strip()) for column in name.split(" x ")))
    sets = (given,) if isinstance(given, PromptSet) else tuple(given)
    try:
        gallery = Gallery(labels[labels.known], s.rules)
    except InvalidInputError as error:
        raise InvalidInputError(f"{task}: {error}") from None
    fitted: dict[str, CalibratedProjection | None] = {
        method: None if method == "none" else fit_projection(s.texts.host, sets, method=method, lam=s.lam)
        for method in s.methods
    }
    return Attribute(task, name, sets, labels, gallery, fitted)


def _figures(s: Setting, a: Attribute) -> list[Figure]:
    """Skew, cosine of the queries, and what else the utility asks for."""
    under = {
        method: partial(s.texts.under, projection=projection, strength=s.strength, keep_stated=s.keep_stated)
        for method, projection in a.fitted.items()
    }
    texts = {method: project(s.queries) for method, project in under.items()}
    n = {"queries": len(s.queries), "images": len(a.gallery.labels)}
    task = Task(a.task, n, a.details(s.strength), s.rules.resamples, s.rules.seed)
    utility = utility_figures(s.gallery, s.images, s.utility.apart_from(a.name), under, task)
    return [*_skew_figures(s, a, texts, task), *_cosines(s, texts, task), *utility]


def _skew_figures(s: Setting, a: Attribute, texts: Mapping[str, Tensor], task: Task) -> list[Figure]:
    """Every metric of the ranking: means over queries first, then each query."""
    known, column = a.labels.known, s.utility.relevant
    images = s.images[torch.from_numpy(known)]
    relevant = None if column is None else relevance(s.gallery.column(column)[known], column, s.queries)
    ranked = {
        method: rankings(scores(rows, images), ties=s.rules.ties, seed=s.rules.seed) for method, rows in texts.items()
    }
    values = {method: a.gallery.values(rows, relevant) for method, rows in ranked.items()}
    drawn = a.gallery.resampled(ranked, relevant)
    chance = a.gallery.random()
    means: list[Figure] = []
    each: list[Figure] = []
    for metric in values["none"]:
        better = BETTER[metric.split("@")[0]]
        one = {method: found[metric] for method, found in values.items()}
        draws = {method: found[metric] for method, found in drawn.items()}
        means += _means(s.resample, metric, better, one, draws, task)
        if metric in chance:
            means.append(task.at_random(metric, better, chance[metric], len(s.queries)))
        each += task.each_query(metric, better, one, draws, s.queries)
    return means + each


def _means(resample: str, metric: str, better: str, values: ByMethod, draws: ByMethod, task: Task) -> list[Figure]:
    if resample == "queries":
        return task.over_queries(metric, better, values)
    point = {method: float(found.mean()) for method, found in values.items()}
    return task.over_draws(metric, better, point, {method: found.mean(axis=0) for method, found in draws.items()})


def _cosines(s: Setting, texts: Mapping[str, Tensor], task: Task) -> list[Figure]:
    """Cosine of each query with itself before and after: what the projection takes from it."""
    kept = {method: (texts["none"] * rows).sum(dim=1).numpy() for method, rows in texts.items()}
    if s.resample == "queries":
        return task.over_queries("query_cosine", "higher", kept)
    return task.exact("query_cosine", "higher", {method: float(found.mean()) for method, found in kept.items()})
