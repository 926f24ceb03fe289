"""Groups inside of classes that nobody labelled: by texts, by clusters, by the errors of a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.data import Labels
from vldebias.diagnostics.folds import Codes, Folds, fold_numbers, unit_rows
from vldebias.diagnostics.labels import PENALTY
from vldebias.errors import InvalidInputError, need

By = Literal["texts", "clusters", "errors"]


@dataclass(frozen=True, eq=False)
class HiddenGroups:
    """Classes cut in groups.

    Attributes:
        groups: Labels (n,) "class/part"; unknown where the class is.
        by: how they were found.
        classes: (n,) codes of the classes, -1 where unknown.
    """

    groups: Labels
    by: By
    classes: Codes

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each group."""
        return self.groups.counts

    def parts(self) -> Labels:
        """The part alone, what follows the class: groups for baselines and `wrong_labels` alike."""
        names = tuple(dict.fromkeys(name.rpartition("/")[2] for name in self.groups.names))
        code = np.array([names.index(name.rpartition("/")[2]) for name in self.groups.names] + [-1])
        return Labels(code[self.groups.codes], names)

    def f1(self, truth: Any) -> dict[str, float]:
        """How well the true groups (n,) are found: the mean F1 over them, of the smallest, and without any cut.

        In every class found groups are matched with true ones one to one so that the sum of F1 is largest; a true group
        without a partner has 0. Keys: mean, smallest, and "one cluster" and "smallest, one cluster", the same two where
        every class is one group.
        """
        true = Labels.of_array(truth)
        if len(true) != len(self.groups):
            raise InvalidInputError(f"truth: expected {len(self.groups)} values, got {len(true)}")
        known = true.known & self.groups.known
        if not known.any():
            raise InvalidInputError("truth: expected some rows where group and truth are known, got none")
        classes = self.classes[known]
        mean, least = _matched(classes, true.codes[known], self.groups.codes[known])
        whole, least_whole = _matched(classes, true.codes[known], np.zeros(known.sum(), dtype=np.int64))
        return {"mean": mean, "smallest": least, "one cluster": whole, "smallest, one cluster": least_whole}


def hidden_groups(
    features: Any,
    labels: Any,
    by: By = "texts",
    *,
    texts: Any = None,
    names: tuple[str, ...] = (),
    parts: int = 2,
    folds: int = 5,
    seed: int = 0,
) -> HiddenGroups:
    """Cut every class (n,) of features (n, d) in groups, without labels of groups.

    by "texts": the nearest of `texts` (m, d), embeddings of what may hide, such as "a photo on water"; `names` of them.
    by "clusters": k-means in each class, as many clusters as `parts` (Sohoni et al., 2020); needs scikit-learn. It
    finds the main direction of a class, whatever that is: read its F1 beside that of no cut at all.
    by "errors": rows that a ridge classifier of the other folds gets right, and the rest (as JTT, Liu et al., 2021).

    Feed `parts()` as the group column to `vldebias.evaluate(task="groups", baselines=...)`.

    Raises:
        InvalidInputError: shapes that do not fit, texts missing or of another width, or another way.
    """
    rows, column = unit_rows(features), Labels.of_array(labels)
    if len(rows) != len(column):
        raise InvalidInputError(f"labels: expected {len(rows)}, one for each row of features, got {len(column)}")
    known = torch.from_numpy(column.known)
    part: NDArray[np.int64] = np.full(len(rows), -1)
    if by == "texts":
        if texts is None:
            raise InvalidInputError('by="texts": expected texts (m, d), embeddings of what may hide in the classes')
        named = unit_rows(texts, "texts")
        if named.shape[1] != rows.shape[1] or len(named) < 2:
            raise InvalidInputError(f"texts: expected two or more (m, {rows.shape[1]}), got {tuple(named.shape)}")
        if names and len(names) != len(named):
            raise InvalidInputError(f"names: expected {len(named)}, one for each text, got {len(names)}")
        part_names = tuple(names) or tuple(f"text {i}" for i in range(len(named)))
        part = (rows @ named.T).argmax(1).numpy()
    elif by == "clusters":
        cluster = need("sklearn.cluster")
        part_names = tuple(f"cluster {i}" for i in range(parts))
        for code in range(len(column.names)):
            mine = column.codes == code
            if mine.sum() >= parts:
                means = cluster.KMeans(parts, n_init=3, random_state=seed)
                part[mine] = means.fit_predict(rows[torch.from_numpy(mine)].numpy())
            else:
                part[mine] = 0
    elif by == "errors":
        part_names = ("right", "wrong")
        codes = column.codes[column.known]
        fold = Folds.of(rows[known], fold_numbers(codes, folds, seed))
        named_as = fold.scores(codes, len(column.names), balanced=False, penalty=PENALTY).argmax(1).numpy()
        part[column.known] = named_as != codes
    else:
        raise InvalidInputError(f"by: expected texts, clusters or errors, got {by!r}")
    groups = tuple(f"{name}/{one}" for name in column.names for one in part_names)
    together = np.where(column.known, column.codes * len(part_names) + part, -1)
    return HiddenGroups(Labels(together, groups), by, column.codes)


def _matched(classes: Codes, true: Codes, found: Codes) -> tuple[float, float]:
    """Mean F1 over the true groups of all classes under the best matching, and that of the smallest."""
    assignment = need("scipy.optimize").linear_sum_assignment
    scores, sizes = [], []
    for code in np.unique(classes):
        mine = classes == code
        groups, a = np.unique(true[mine], return_inverse=True)
        parts, b = np.unique(found[mine], return_inverse=True)
        both = np.zeros((len(groups), len(parts)))
        np.add.at(both, (a, b), 1)
        table = 2 * both / (both.sum(1)[:, None] + both.sum(0))
        row, to = assignment(table, maximize=True)
        f1 = np.zeros(len(groups))
        f1[row] = table[row, to]
        scores.append(f1)
        sizes.append(both.sum(1))
    every, size = np.concatenate(scores), np.concatenate(sizes)
    return float(every.mean()), float(every[size.argmin()])
