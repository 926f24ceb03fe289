"""What a projection costs a retrieval: recall of captions, accuracy on unrelated classes, precision of the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.data import Embeddings, Labels
from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import Figure
from vldebias.evaluation.retrieval.figures import Task
from vldebias.evaluation.retrieval.scores import scores
from vldebias.metrics.rankings import resampled_weights
from vldebias.metrics.recall import first_hits
from vldebias.stated import StatedWords

__all__ = ["Utility", "relevance", "utility_figures"]

Floats = NDArray[np.float64]
Project = Callable[[Sequence[str]], Tensor]  # prompts -> normalised rows under one method


@dataclass(frozen=True)
class Utility:
    """What is measured beside the skew; nothing by default but the cosine of each query with itself.

    Attributes:
        captions: recall between images and the captions of the gallery.
        recall_k: the k of recall@k.
        classes: column -> one prompt for each name of the column, in the order of the names: zero-shot accuracy on
            classes that have nothing to do with the attribute; a column of the attribute itself is left out of its
            figures. Images without a label in one column are left out.
        relevant: a column whose names appear in the queries ("nurse" in "A photo of a nurse."): precision@k, the share
            of the first k images that have the name as their label; an unknown label is not relevant.

    Raises:
        InvalidInputError: a `recall_k` that is not made of integers >= 1.
    """

    captions: bool = False
    recall_k: tuple[int, ...] = (1, 5, 10)
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    relevant: str | None = None

    def __post_init__(self) -> None:
        if not self.recall_k or any(isinstance(k, bool) or not isinstance(k, int) or k < 1 for k in self.recall_k):
            raise InvalidInputError(f"recall_k: expected integers >= 1, got {list(self.recall_k)}")

    def apart_from(self, attribute: str) -> Utility:
        """Without the columns of an attribute, "gender" or "gender x race": that they change is what was wanted."""
        own = {column.strip() for column in attribute.split(" x ")}
        return replace(self, classes={c: prompts for c, prompts in self.classes.items() if c not in own})

    def check(self, gallery: Embeddings) -> None:
        """Refuse what the gallery cannot give: captions that are not there, prompts that do not fit the names."""
        if self.captions and not any(gallery.captions):
            raise InvalidInputError("utility: captions=True and the gallery has no captions; turn it off or add them")
        for column, prompts in self.classes.items():
            names = gallery.column(column).names
            if isinstance(prompts, (str, Mapping)) or len(prompts) != len(names):
                raise InvalidInputError(
                    f"utility: classes[{column!r}]: expected a list with a prompt for each of {list(names)}, "
                    f"got {prompts!r}"
                )


def relevance(labels: Labels, column: str, queries: Sequence[str]) -> NDArray[np.bool_]:
    """(q, n): is the label of image n the one that query q names? column: what the labels are called.

    Raises:
        InvalidInputError: a query names none of the labels' names, or several.
    """
    words = StatedWords(labels.names)
    found = {query: words.find(query) for query in queries}
    wrong = {query: list(names) for query, names in found.items() if len(names) != 1}
    if wrong:
        raise InvalidInputError(
            f"utility: relevant={column!r}: expected each query to name one of {list(labels.names)}, got {wrong}"
        )
    wanted = np.array([labels.names.index(found[query][0]) for query in queries])
    return wanted[:, None] == labels.codes


def utility_figures(
    gallery: Embeddings, images: Tensor, utility: Utility, under: Mapping[str, Project], task: Task
) -> list[Figure]:
    """Recall@k and accuracy of every method, with intervals over images.

    images: (n, d) normalised float32 features. Images that share a caption are drawn together, for they are not
    independent. The subset "" of a recall is the mean of both directions.
    """
    found: list[Figure] = []
    if utility.captions:
        found += _recall(gallery, images, utility.recall_k, under, task)
    if utility.classes:
        found += _accuracy(gallery, images, utility.classes, under, task)
    return found


def _recall(
    gallery: Embeddings, images: Tensor, ks: Sequence[int], under: Mapping[str, Project], task: Task
) -> list[Figure]:
    """Image to text: is the image's caption among the first k different captions? Text to image: is an image with this
    caption among the first k? A caption counts once for each of its images."""
    given = np.array([bool(caption) for caption in gallery.captions])
    texts, code = np.unique(np.array(gallery.captions)[given], return_inverse=True)
    seen, codes, own = images[torch.from_numpy(given)], torch.from_numpy(code), torch.arange(len(texts))
    ahead: dict[str, dict[str, NDArray[np.int64]]] = {"image to text": {}, "text to image": {}}
    for method, project in under.items():
        rows = project(texts.tolist()).float()
        ahead["image to text"][method] = first_hits(seen, rows, codes, own).numpy()
        ahead["text to image"][method] = first_hits(rows, seen, own, codes).numpy()[code]
    n = {"images": int(given.sum()), "captions": len(texts)}
    table: dict[tuple[str, str], dict[str, Floats]] = {}
    for k in ks:
        hits = {way: {m: (a < k).astype(float) for m, a in found.items()} for way, found in ahead.items()}
        both = {m: np.mean([hits[way][m] for way in hits], axis=0) for m in under}
        table |= {(f"recall@{k}", subset): values for subset, values in {"": both, **hits}.items()}
    return _means(table, task, n, clusters=code)


def _accuracy(
    gallery: Embeddings,
    images: Tensor,
    classes: Mapping[str, Sequence[str]],
    under: Mapping[str, Project],
    task: Task,
) -> list[Figure]:
    """Zero-shot accuracy in each column, and the mean over columns where there are several."""
    known = np.logical_and.reduce([gallery.column(column).known for column in classes])
    if not known.any():
        raise InvalidInputError(f"utility: no image has a label in every one of {list(classes)}")
    seen = images[torch.from_numpy(known)]
    right: dict[str, dict[str, Floats]] = {}
    for column, prompts in classes.items():
        labels = gallery.column(column).codes[known]
        right[column] = {
            method: (scores(project(prompts), seen).argmax(axis=0) == labels).astype(float)
            for method, project in under.items()
        }
    mean = {method: np.mean([found[method] for found in right.values()], axis=0) for method in under}
    n = {"images": int(known.sum()), "without a label": int((~known).sum())}
    subsets = {"": mean} if len(right) == 1 else {"": mean, **right}
    return _means({("accuracy", subset): values for subset, values in subsets.items()}, task, n)


def _means(
    table: Mapping[tuple[str, str], Mapping[str, Floats]],
    task: Task,
    n: Mapping[str, int],
    clusters: NDArray[np.integer] | None = None,
) -> list[Figure]:
    """Figures of means over images: (metric, subset) -> method -> values (n,), whole clusters drawn where given."""
    cells = [(key, method) for key, values in table.items() for method in values]
    values = np.stack([table[key][method] for key, method in cells], axis=1)
    draws = dict(zip(cells, _drawn_means(values, clusters, task.resamples, task.seed).T, strict=True))
    found: list[Figure] = []
    for key, by_method in table.items():
        point = {method: float(one.mean()) for method, one in by_method.items()}
        drawn = {method: draws[key, method] for method in by_method}
        found += task.over_draws(key[0], "higher", point, drawn, subset=key[1], n=n)
    return found


def _drawn_means(values: Floats, clusters: NDArray[np.integer] | None, resamples: int, seed: int) -> Floats:
    """Means (resamples, m) of values (n, m) over rows drawn with replacement, whole clusters of rows at a time."""
    sizes = np.ones(len(values)) if clusters is None else np.bincount(clusters).astype(float)
    sums = values if clusters is None else np.stack([np.bincount(clusters, weights=column) for column in values.T], 1)
    drawn = (weights.astype(float) for weights in resampled_weights(len(sizes), resamples, seed))
    return np.concatenate([w @ sums / (w @ sizes)[:, None] for w in drawn])
