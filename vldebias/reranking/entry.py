"""Define `rerank` and parse its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import (
    CLOSE_LABELS,
    InvalidInputError,
    SuspectInputWarning,
    did_you_mean,
    warn,
)
from vldebias.reranking.candidates import (
    UNKNOWN,
    Candidates,
    Floats,
    Rows,
    as_floats,
)
from vldebias.reranking.groups import POOL, Groups
from vldebias.reranking.orders import expected, fair, quota
from vldebias.reranking.proportional import mopr
from vldebias.reranking.report import Positions, Report

if TYPE_CHECKING:
    from vldebias.methods.method import AttributeLike

Reranker = Callable[[Candidates, int], Rows]
RERANKERS: dict[str, Reranker] = {
    "quota": quota,
    "expected": expected,
    "fair": fair,
    "mopr": mopr,
}
_MANY_SCORES = 5  # fewer scores often ascend by chance


def rerank(  # noqa: PLR0913 (accepts inputs in several forms)
    scores: object,
    k: int | None = None,
    *,
    labels: object = None,
    probabilities: object = None,
    features: object = None,
    attribute: AttributeLike | None = None,
    model: object = None,
    shares: object = POOL,
    method: str | Reranker | None = None,
    ids: object = None,
    checked: Mapping[int, object] | Mapping[str, object] | None = None,
) -> Positions:
    """Re-rank search results so that every group gets its requested share of the top k.

    Only the scores and groups are needed; queries are not changed. Specify the groups with exactly
    one of `labels`, `probabilities`, or `features` with `attribute` and `model`.

    Args:
        scores: scores (n,) for one query or (q, n) for several, or a mapping from id to score.
            Higher is better.
        k: number of results to show. If None, all are shown.
        labels: group of each candidate (n,). None, NaN, "" and "unknown" mean that the group is
            unknown. Such candidates keep their places and do not count towards any group. Pass a
            mapping from column to labels to cross several columns ("female/old"). A mapping from id
            to label is accepted with `ids` or if `scores` is a mapping.
        probabilities: group probabilities (n, g), or a mapping from group to probabilities (n,).
            The most likely group is used as the label.
        features: features (n, d) of the candidates, for zero-shot labels with `attribute`.
        attribute: prompt set with words for its values, or several prompt sets to cross.
        model: model that embeds the prompts, or a mapping from prompt to embedding.
        shares: requested shares: "pool" for the shares among all candidates, "even" for equal
            shares, or a mapping from group to share.
        method: "quota" (every prefix has the requested shares), "expected" (like the quota, but
            allows for doubtful labels), "fair" (only corrects differences that chance does not
            explain), "mopr", or a function of `Candidates` and k, such as
            functools.partial(fair, alpha=0.3). If None, "quota" for labels and "expected" for
            probabilities. Zero-shot labels have probabilities if at least 50 images per group were
            passed and the groups' cosines differ clearly.
        ids: ids (n,) or (q, n) as returned by an index, with -1 for no result. Labels,
            probabilities and features then refer to the rows of the index.
        checked: true groups of randomly sampled candidates that were checked by hand, by row, or by
            id if ids are used. `Positions.to_check` returns a sample to check. The report then
            contains the true shares with intervals.

    Returns:
        An int64 array of positions (k,) or (q, k), or the ids if ids were passed, padded with -1.
        It is shorter if there are fewer than k candidates. Its `reports` attribute contains one
        report per query. Use `print(positions.report)` to show the first one.

    Raises:
        InvalidInputError: If an argument is invalid.

    Warns:
        SuspectInputWarning: If a group has too few candidates for its share, or if five or more
            scores ascend, as distances do.

    >>> scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    >>> rerank(scores, 4, labels=["m", "m", "m", "f", "f", "f"]).tolist()
    [0, 3, 1, 4]
    """
    if k is not None:
        check_k(k)
    table, id_rows = _read_scores(scores, ids)
    # These arrays (q, n) contain each query's scores, the candidates' rows in labels and features,
    # and their keys in the result.
    lists = np.atleast_2d(table)
    rows: Rows = np.broadcast_to(np.arange(lists.shape[1]), lists.shape)
    keys: NDArray[np.generic] = rows
    if id_rows is not None:
        keys = id_rows
        labels, rows = _rows_of_ids(id_rows, labels, is_index=not isinstance(scores, Mapping))
    n = int(rows.max(initial=UNKNOWN)) + 1
    groups = Groups.read(labels, probabilities, features, attribute, model)
    if method is None:
        method = "quota" if groups.probabilities is None else "expected"
    reranker = _reranker(method)
    if len(groups.codes) < n or (ids is None and len(groups.codes) > n):
        raise InvalidInputError(
            f"got {len(groups.codes)} groups for {n} candidates; expected one per candidate"
        )
    code_of_checked = _read_checked(checked, groups.names, keys)

    reports = []
    target = shares if isinstance(shares, str) else "requested"
    about = (_name_of(method), f"{target} shares", groups.source)
    for query, scores_of_query in enumerate(lists):
        # An index pads with -1 if it finds fewer candidates.
        places = np.flatnonzero(rows[query] != UNKNOWN)
        candidates = groups.candidates(scores_of_query[places], rows[query][places], shares)
        order = _order(candidates, reranker, k)
        keys_of_query = keys[query][places]
        codes = _codes_of(keys_of_query, code_of_checked)
        reports.append(Report(candidates, about, order, keys_of_query, codes))
    _warn_of_distances([report.candidates.scores for report in reports])
    # Without k, all candidates are shown, so a group with less than its share needs no warning.
    if k is not None:
        warn_of_short(reports, "pass more candidates or request other shares")
    return Positions.from_reports(reports, is_single=table.ndim == 1)


def check_k(k: int | None) -> None:
    """Raise an error unless k is a positive integer."""
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or k < 1:
        raise InvalidInputError(f"k: expected a whole number of 1 or more, got {k!r}")


def _name_of(method: str | Reranker) -> str:
    """Return a method's name for reports, such as "fair" for partial(fair, alpha=0.3)."""
    function = getattr(method, "func", method)
    return str(getattr(function, "__name__", function))


def _reranker(method: str | Reranker) -> Reranker:
    """Return the function for a method.

    Raises:
        InvalidInputError: If the name is unknown.
    """
    if callable(method):
        return method
    if method not in list(RERANKERS):
        raise InvalidInputError(
            f"method: got {method!r}; expected one of {', '.join(RERANKERS)}, or a function of"
            f" candidates and k; {did_you_mean(str(method), RERANKERS)}"
        )
    return RERANKERS[method]


def _read_scores(scores: object, ids: object) -> tuple[Floats, NDArray[np.generic] | None]:
    """Return the scores (n,) or (q, n), and the ids (q, n) if ids were passed."""
    if isinstance(scores, Mapping):
        if ids is not None:
            raise InvalidInputError("ids: scores is already a mapping from id to score; remove ids")
        ids = list(scores)
        scores = list(scores.values())
    table = as_floats(scores, "scores")
    if table.ndim not in (1, 2) or not table.size:
        raise InvalidInputError(f"scores: expected (n,) or (q, n), got shape {table.shape}")
    if ids is None:
        return table, None
    id_rows = np.atleast_2d(as_ids(ids))
    shape = np.atleast_2d(table).shape
    if id_rows.shape != shape:
        raise InvalidInputError(f"ids: expected one per score, shape {shape}; got {id_rows.shape}")
    return table, id_rows


def as_ids(ids: object) -> NDArray[np.generic]:
    """Return ids as an array of integers, or of objects if they are not integers."""
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    array: NDArray[np.generic] = np.asarray(ids)
    if array.dtype.kind in "iu":
        return array
    # Use an object array, because numpy would convert numbers mixed with strings to strings.
    objects = np.empty(array.size, dtype=object)
    objects[:] = array.ravel().tolist()
    return objects.reshape(array.shape)


def _read_checked(
    checked: Mapping[int, object] | Mapping[str, object] | None,
    names: Sequence[str],
    keys: NDArray[np.generic],
) -> dict[int | str, int]:
    """Return the true groups of checked candidates, as positions in `names` by row or id.

    Raises:
        InvalidInputError: If `checked` is not a mapping, a group is unknown, or no key belongs to a
            candidate.
    """
    if checked is None:
        return {}
    if not isinstance(checked, Mapping):
        raise InvalidInputError(
            f"checked: expected a mapping from row or id to true group, got {str(checked)[:60]}"
        )
    codes: dict[int | str, int] = {}
    for key, group in checked.items():
        if str(group) not in names:
            raise InvalidInputError(
                f"checked: got group {group!r} for {key!r}; expected one of {list(names)};"
                f" {did_you_mean(str(group), names, 'correct it', CLOSE_LABELS)}"
            )
        codes[key] = list(names).index(str(group))
    if codes and codes.keys().isdisjoint(keys.ravel().tolist()):
        raise InvalidInputError(
            f"checked: none of the {len(codes)} keys is a candidate; expected rows or ids such as"
            f" {keys.ravel().tolist()[0]!r}, got {next(iter(codes))!r}"
        )
    return codes


def _codes_of(
    keys: NDArray[np.generic], code_of_key: Mapping[int | str, int]
) -> NDArray[np.integer]:
    """Return the code of each key (n,), or -1 for keys without a code."""
    if not code_of_key:
        return np.full(len(keys), UNKNOWN)
    return np.array([code_of_key.get(key, UNKNOWN) for key in keys.tolist()])


def _order(candidates: Candidates, reranker: Reranker, k: int | None) -> Rows:
    """Return the re-ranked top k, passing the method as few candidates as possible."""
    n = len(candidates)
    count = n if k is None else min(k, n)
    # The package's methods only depend on the best candidates in each group.
    if reranker in RERANKERS.values() and count < n:
        best = candidates.best_of_groups(count)
        return best[reranker(candidates.subset(best), count)]
    if reranker is mopr and k is None:
        raise InvalidInputError("method 'mopr' needs k=, the number of results to show")
    return np.asarray(reranker(candidates, count))


def _rows_of_ids(
    id_rows: NDArray[np.generic], labels: object, *, is_index: bool
) -> tuple[object, Rows]:
    """Return the labels by row, and each candidate's row (q, n), or -1 if it has none.

    Args:
        id_rows: ids (q, n).
        labels: mapping from id to label, or the labels of the rows.
        is_index: whether integer ids are rows of an index.
    """
    is_integer = id_rows.dtype.kind in "iu"
    is_none = (id_rows == UNKNOWN) & is_integer
    rows: Rows
    # In a mapping from column to labels, the values are lists.
    if isinstance(labels, Mapping) and any(np.ndim(label) != 1 for label in labels.values()):
        keys = id_rows.ravel().tolist()
        row_of_id = {key: row for row, key in enumerate(dict.fromkeys(keys))}
        rows = np.array([row_of_id[key] for key in keys]).reshape(id_rows.shape)
        labels = list(map(labels.get, row_of_id))
    elif is_index and is_integer:
        rows = id_rows.astype(np.intp)
    elif len(id_rows) == 1:
        rows = np.arange(id_rows.shape[1])[None]
    else:
        raise InvalidInputError(
            "ids: for text ids of several queries, expected labels as a mapping from id to label"
        )
    if rows[~is_none].min(initial=0) < 0:
        raise InvalidInputError(
            f"ids: expected an index into the labels (0 or more), or -1 for a missing result; got"
            f" {rows[~is_none].min()}"
        )
    return labels, np.where(is_none, UNKNOWN, rows)


def _warn_of_distances(lists: Sequence[Floats]) -> None:
    """Warn once if the scores of every query ascend, as distances of search results do."""
    are_ascending = all(bool((scores[1:] > scores[:-1]).all()) for scores in lists)
    if are_ascending and max(map(len, lists)) >= _MANY_SCORES:
        warn(
            "rerank: the scores ascend from the first to the last candidate, as distances do, but"
            " the highest score is taken as the best; for distances, pass -distances (in `vldebias"
            " rerank` --columns distance=COLUMN)",
            SuspectInputWarning,
        )


def warn_of_short(reports: Sequence[Report], remedy: str) -> None:
    """Warn once if groups have too few candidates for their shares.

    Args:
        reports: one report per query.
        remedy: what to do, for the message.
    """
    short = [(query, report.short) for query, report in enumerate(reports) if report.short]
    if not short:
        return
    query, lacking = short[0]
    words = ", ".join(f"{number} of {group!r}" for group, number in lacking.items())
    where = "" if len(reports) == 1 else f" (query {query}; {len(short)} of {len(reports)} queries)"
    warn(
        f"rerank: too few candidates: {words} missing in the first"
        f" {len(reports[query].order)}{where}; {remedy}",
        SuspectInputWarning,
    )
