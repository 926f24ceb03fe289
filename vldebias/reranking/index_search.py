"""Deal pages of search results from an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, VldebiasError, shortened
from vldebias.reranking.candidates import UNKNOWN, Candidates, Floats, Mask, Rows, as_floats
from vldebias.reranking.groups import ZERO_SHOT
from vldebias.reranking.ids import as_ids
from vldebias.reranking.index import IndexGroups
from vldebias.reranking.orders import quota
from vldebias.reranking.report import AS_FOUND, Report
from vldebias.utils.phrases import quantity

# Number of results to read for each one that is shown, at first and at most, and how many times as
# many to read next if a group cannot fill its places. Every call of an index costs a search.
FIRST, MOST = 5, 320
_TIMES = 4

# Approximate indexes may return some results out of order, up to this share of the places.
_MOST_RISES = 0.1
# The scores of this many results are compared with their vectors' similarity to the query. If it
# explains less of their variance, the vectors are those of other results or of another model.
_ENOUGH_TO_COMPARE = 20
_FOLLOWS = 0.5

IndexCall = Callable[[NDArray[np.floating], int], tuple[object, object, object]]
"""Function from a query vector (d,) and n to the ids, scores and vectors of the best n results."""


class _Results:
    """Read an index's results for a query on demand.

    Args:
        call: the function that searches the index.
        vector: vector (d,) of the query.
        groups: the groups of the index's vectors.

    Attributes:
        ids: ids (n,) of the results that were read, best first.
        scores: their scores (n,).
        labels: their groups.
    """

    def __init__(self, call: IndexCall, vector: NDArray[np.floating], groups: IndexGroups) -> None:
        self._call = call
        self._vector = vector
        self._groups = groups
        self._n_requested = 0
        self.ids: NDArray[np.generic] = np.empty(0, np.int64)
        self.scores: Floats = np.empty(0)
        self.labels = groups.predict(np.empty((0, len(vector))))
        self._features: NDArray[np.floating] = np.empty((0, len(vector)))

    def read(self, n: int) -> None:
        """Read the best n results, unless as many or all there are were read before."""
        is_end = len(self.ids) < self._n_requested
        if n > self._n_requested and not is_end:
            try:
                received = self._call(self._vector, n)
            except (OSError, VldebiasError):
                raise  # Callers may handle errors of the connection themselves.
            except Exception as error:
                raise InvalidInputError(
                    f"index_call: asked for {n:,} results, it raised {type(error).__name__}:"
                    f" {shortened(str(error), 200)}. If the store has a limit, return fewer"
                    " results, at most its limit"
                ) from error
            found = results_of(received, len(self._vector))
            self.ids, self.scores, self._features = found[0][:n], found[1][:n], found[2][:n]
            self.labels = self._groups.predict(self._features)
            self._n_requested = n

    def ended(self) -> str:
        """Return how many results there were, if fewer than requested, or ""."""
        n = len(self.ids)
        if n == self._n_requested:
            return ""
        return f"the index returned {quantity(n, 'result')} for n = {self._n_requested:,}"

    def problem(self) -> str:
        """Return why the vectors of the results cannot be used, or ""."""
        is_broken = self.labels.is_broken
        if is_broken is not None and is_broken.any():
            first = self.ids.tolist()[int(is_broken.argmax())]
            return (
                f"index_call: {int(is_broken.sum())} of {len(is_broken)} vectors have no direction"
                f" (zeros, NaN or infinite), the first is that of id {first!r}; their group is"
                " unknown, so they keep their places"
            )
        if len(self.ids) < _ENOUGH_TO_COMPARE or np.ptp(self.scores) == 0:
            return ""
        # Cosines, inner products and squared distances are all sums of multiples of these.
        vectors = self._features.astype(np.float64)
        products = vectors @ self._vector.astype(np.float64)
        squares = np.einsum("nd,nd->n", vectors, vectors)
        ones = np.ones_like(squares)
        inputs = np.stack([products / np.sqrt(squares), products, squares, ones], axis=1)
        fitted = inputs @ np.linalg.lstsq(inputs, self.scores, rcond=None)[0]
        explained = 1 - np.var(self.scores - fitted) / np.var(self.scores)
        if explained >= _FOLLOWS:
            return ""
        return (
            "index_call: the scores do not follow the vectors' similarity to the query (R2"
            f" {explained:.2f}), from the first result, id {self.ids.tolist()[0]!r}; return each"
            " result's own vector, by the model that embeds the queries"
        )

    def candidates(self, rows: Rows) -> Candidates:
        """Return some of the results as candidates."""
        is_near = self.labels.is_near
        return Candidates(
            self.scores[rows],
            self.labels.codes[rows],
            self.labels.names,
            self._groups.shares,
            is_near=None if is_near is None else is_near[rows],
            near_shares=self._groups.near_shares,
        )


def search_page(
    groups: IndexGroups,
    call: IndexCall,
    vector: NDArray[np.floating],
    k: int,
    *,
    page: int,
    query: str = "",
    is_stated: bool = False,
) -> Report:
    """Search an index, and return the report on one page of re-ranked results.

    Every page is dealt from the results that earlier pages did not show, so that no result is on
    two pages or on none. How many results are read for a page does not depend on later pages.

    Args:
        groups: the groups of the index's vectors, and their shares.
        call: function that searches the index.
        vector: vector (d,) of the query.
        k: number of results per page.
        page: number of the page, from 1.
        query: text of the query, for the report.
        is_stated: whether the query states a value, so that results keep their order.

    Raises:
        InvalidInputError: If the index does not return ids, scores and vectors.
    """
    results = _Results(call, vector, groups)
    order = np.empty(0, np.intp)
    if is_stated or groups.doubt:
        results.read(k * page)
        about = (AS_FOUND, "stated" if is_stated else "unreliable labels", ZERO_SHOT)
        reason = "the query is stated" if is_stated else groups.doubt
        rows = np.arange(len(results.ids))[k * (page - 1) :]
        candidates = results.candidates(rows)
        order = candidates.ranked[:k]
    else:
        about = (quota.__name__, "index shares", ZERO_SHOT)
        reason = ""
        shown = np.empty(0, np.intp)
        n = 0
        for number in range(1, page + 1):
            n = max(n, FIRST * k * number)
            rows, candidates, is_enough = _remaining(results, groups, n, shown, k)
            while not is_enough and n < MOST * k * number:
                n = min(n * _TIMES, MOST * k * number)
                rows, candidates, is_enough = _remaining(results, groups, n, shown, k)
            order = quota(candidates, min(k, len(candidates)))
            if not len(rows):
                break  # All results are on earlier pages.
            shown = np.concatenate([shown, rows[order]])
    # Nothing is checked yet.
    checked = np.full(len(rows), UNKNOWN)
    keys = results.ids[rows]
    more = {"reason": reason, "problem": results.problem(), "used": groups.used}
    return Report(candidates, about, order, keys, checked, query, ended=results.ended(), **more)


def _remaining(
    results: _Results, groups: IndexGroups, n: int, shown: Rows, k: int
) -> tuple[Rows, Candidates, bool]:
    """Return the results that no page has shown, and whether they are enough for the next page.

    Args:
        results: the results of the index.
        groups: the groups of the index's vectors, and their shares.
        n: number of results to read.
        shown: rows of the results on earlier pages.
        k: number of results per page.

    Returns:
        The rows (m,) of the results, the candidates (m,), and whether each group can fill its
        places, or there are no more results.
    """
    results.read(n)
    n_found = min(n, len(results.ids))
    rows = np.setdiff1d(np.arange(n_found), shown)
    candidates = results.candidates(rows)
    codes = candidates.codes
    is_near = cast("Mask", candidates.is_near)
    # Each group's candidates near the border, and its others, must fill their own places.
    near_shares = groups.near_shares
    shares = np.concatenate([groups.shares * (1 - near_shares), groups.shares * near_shares])
    places = int((codes[:k] != UNKNOWN).sum())
    # A quota rounds twice: for the group, and for its part.
    needed = np.where(shares > 0, np.minimum(places, np.ceil(places * shares) + 1), 0)
    g = len(groups.shares)
    available = np.bincount(codes[codes >= 0] + g * is_near[codes >= 0], minlength=2 * g)
    return rows, candidates, n_found < n or bool((available >= needed).all())


def results_of(
    found: object, width: int
) -> tuple[NDArray[np.generic], Floats, NDArray[np.floating]]:
    """Return the ids (n,), scores (n,) and vectors (n, d) that an index returned for a query.

    Args:
        found: the return value of `index_call`. Results with the id -1 are dropped.
        width: width d of the query's vector.

    Raises:
        InvalidInputError: If ids, scores or vectors are missing, their lengths differ, ids have
            fractions or repeat, or scores increase.
    """
    parts = tuple(found) if isinstance(found, tuple | list) else ()
    if len(parts) != 3 or any(part is None for part in parts):
        raise InvalidInputError(
            "index_call: expected ids, scores and vectors of the results, got"
            f" {str(found)[:60]}; ask the index to return vectors too"
        )
    # Stores that are not asked for vectors return None for each.
    features: Any = parts[2]
    if isinstance(features, list | tuple) or getattr(features, "dtype", None) == np.dtype(object):
        n_missing = sum(vector is None for vector in features)
        if n_missing:
            raise InvalidInputError(
                f"index_call: {n_missing} of {len(features)} results have no vector (None); ask the"
                " index to return vectors too, such as with_vectors=True or include=['embeddings']"
            )
    ids = as_ids(parts[0])
    # Numbers other than integers are stored as objects.
    listed = ids.ravel() if ids.dtype.kind == "O" else ()
    fractions = [key for key in listed if isinstance(key, float) and key % 1]
    if fractions:
        raise InvalidInputError(
            f"index_call: got ids such as {fractions[0]}; return ids, scores, vectors, in this"
            " order"
        )
    scores = as_floats(parts[1], "index_call: scores")
    if not (isinstance(features, np.ndarray) and features.dtype == np.float32):
        features = as_floats(features, "index_call: vectors")
    if not ids.size:
        return ids.reshape(0), np.empty(0), np.empty((0, width))
    if ids.ndim != 1 or scores.shape != ids.shape or features.shape[:-1] != ids.shape:
        raise InvalidInputError(
            "index_call: expected ids (n,), scores (n,) and vectors (n, d) for one query, got"
            f" shapes {ids.shape}, {scores.shape} and {features.shape}"
        )
    is_missing = ids == -1
    if is_missing.any():
        ids, scores, features = ids[~is_missing], scores[~is_missing], features[~is_missing]
    number_of_id = Counter(ids.tolist())
    if len(number_of_id) < len(ids):
        key, number = number_of_id.most_common(1)[0]
        raise InvalidInputError(
            f"index_call: {len(ids)} results have only {len(number_of_id)} different ids, such as"
            f" {key!r} {number} times; return each result once, with its own id"
        )
    if not np.isfinite(scores).all():
        raise InvalidInputError("index_call: expected finite scores, got NaN or infinity")
    falls = scores[1:] <= scores[:-1]
    if falls.all():
        return ids, scores, features
    rises = int((~falls).sum())
    if rises > _MOST_RISES * len(falls):
        raise InvalidInputError(
            f"index_call: the scores rise in {rises} of {len(falls)} places, such as from"
            f" {scores[falls.argmin()]:g} to {scores[falls.argmin() + 1]:g}, but the best result"
            " must come first; return ids, scores, vectors, and -distance if these are distances"
        )
    order = np.argsort(-scores, kind="stable")
    return ids[order], scores[order], features[order]
