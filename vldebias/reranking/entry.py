"""Define `rerank` and parse its inputs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import (
    CLOSE_LABELS,
    REMOVED,
    InvalidInputError,
    check_arguments,
    check_kind,
    did_you_mean,
    warn_of_input,
)
from vldebias.reranking.candidates import (
    UNKNOWN,
    Candidates,
    Floats,
    Mask,
    Rows,
    as_floats,
    warn_of_rows,
)
from vldebias.reranking.groups import EVEN, POOL, ZERO_SHOT, Groups
from vldebias.reranking.ids import as_ids, rows_of_ids
from vldebias.reranking.index import IndexGroups
from vldebias.reranking.orders import quota
from vldebias.reranking.report import AS_FOUND, Positions, Report, check_count

if TYPE_CHECKING:
    from vldebias.hosts import Host
    from vldebias.typing import AnyArray, AttributeLike, ById, ColumnLike, ModelLike

Reranker = Callable[[Candidates, int], Rows]
_MANY_SCORES = 5  # fewer scores often ascend by chance
# Even shares are worse than no re-ranking if there are this many times as many candidates of one
# group as of another, among at least this many candidates.
_UNEVEN = 1.5
_MANY_CANDIDATES = 100


@check_arguments("shares")
def rerank(  # noqa: PLR0913 (accepts inputs in several forms)
    scores: AnyArray | ById[float],
    k: int | None = None,
    *,
    labels: ColumnLike | Mapping[str, ColumnLike] | ById[Hashable] | None = None,
    probabilities: AnyArray | Mapping[str, AnyArray] | None = None,
    features: AnyArray | None = None,
    attribute: AttributeLike | None = None,
    model: Host | ModelLike | None = None,
    shares: str | Mapping[str, float] = POOL,
    index: IndexGroups | str | Path | None = None,
    method: str | Reranker | None = None,
    ids: AnyArray | Sequence[Hashable] | None = None,
    checked: ById[Hashable] | None = None,
) -> Positions:
    """Re-rank search results so that every group gets its requested share of the top k.

    Pass all images of a collection as candidates. The first results of an index are as skewed as
    the query; for these, use `queries.search` (`vldebias.debias_queries`) or pass `index`. Only the
    scores and groups are needed; queries are not changed. Specify the groups with exactly one of
    `labels`, `probabilities`, or `features` with either `attribute` and `model`, or `index`. With
    `attribute`, `labels` of 20 candidates or more are enough: the others' groups are predicted.

    Without labels, only gender is predicted. Other attributes keep the order of the results, as
    does gender if fewer than five candidates look like one of the groups, and the report explains
    why. Candidates that show nobody have no group.

    See also docs/how-to/rerank.md.

    Args:
        scores: scores (n,) for one query or (q, n) for several, as an array, a tensor or a list, or
            a mapping from id to score. Higher is better.
        k: number of results to show. If None, all are shown.
        labels: group of each candidate (n,), as an array, a tensor, a list or a pandas column.
            None, NaN, "" and "unknown" mean that the group is unknown. Such candidates keep their
            places and do not count towards any group; with `attribute`, their groups are predicted.
            Pass a mapping from column to labels to cross
            several columns ("female/old"). A mapping from id to label is accepted with `ids` or if
            `scores` is a mapping.
        probabilities: group probabilities (n, g), or a mapping from group to probabilities (n,).
            The most likely group is used as the label, and candidates for which it is hardly more
            likely than the next are near the border.
        features: features (n, d) of the candidates, as an array or a tensor, from which groups are
            predicted with `attribute`.
        attribute: prompt set with words for its values, or its name or file, or several to cross.
        model: open_clip or transformers model that embeds the prompts, a `Host`, or a mapping from
            prompt to embedding (d,).
        shares: requested shares: "pool" for the shares among all candidates, "even" for equal
            shares, or a mapping from group to share, which needs labels.
        index: the groups and their shares in the whole index that the candidates come from:
            `queries.index`, or a file that it saved.
        method: the order, a function of `Candidates` and k. Default: the quota, with which every
            prefix has the requested shares. Without labels, it also deals each group's places to
            its candidates near the border with another group and to the others.
        ids: ids (n,) or (q, n) as returned by an index, integers or strings, with -1 for no result.
            Labels, probabilities and features are then those of the rows of the index, or of the
            candidates of a single query.
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
        SuspectInputWarning: If a group has too few candidates for its share, if five or more scores
            ascend, as distances do, if features or probabilities are NaN or infinite, or if even
            shares are requested from uneven candidates.

    >>> scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    >>> rerank(scores, 4, labels=["m", "m", "m", "f", "f", "f"]).tolist()
    [0, 3, 1, 4]
    """
    if k is not None:
        check_count(k, "k")
    table, id_rows = _read_scores(scores, ids)
    # These arrays (q, n) contain each query's scores, the candidates' rows in labels and features,
    # and their keys in the result.
    lists = np.atleast_2d(table)
    rows: Rows = np.broadcast_to(np.arange(lists.shape[1]), lists.shape)
    keys: NDArray[np.generic] = rows if id_rows is None else id_rows
    if id_rows is not None:
        source = next((part for part in (labels, probabilities, features) if part is not None), ())
        by_row, rows = rows_of_ids(id_rows, source, is_index=not isinstance(scores, Mapping))
        labels = None if labels is None else cast("ColumnLike", by_row)
    n = int(rows.max(initial=UNKNOWN)) + 1
    expected = "queries.index or its file; vectors are passed to debias_queries as reference="
    check_kind("index", index, IndexGroups | str | Path | None, expected)
    saved = IndexGroups.load(index) if isinstance(index, str | Path) else index
    groups = _read_groups(labels, probabilities, features, attribute, model, saved)
    if isinstance(shares, Mapping) and groups.source == ZERO_SHOT and labels is None:
        # Wrong labels with right shares are further from these shares than a quota by both.
        raise InvalidInputError(
            "shares: got shares of groups that are predicted without labels, which are too often"
            " wrong for them; pass labels= of 20 candidates or more, or leave shares out"
        )
    if ids is not None and len(groups.codes) < n:
        raise InvalidInputError(
            f"ids: the label of id {n - 1} is expected in row {n - 1}, but there are"
            f" {len(groups.codes)} labels; pass labels as a mapping from id to label"
        )
    if len(groups.codes) < n or (ids is None and len(groups.codes) > n):
        raise InvalidInputError(
            f"got {len(groups.codes)} groups for {n} candidates; expected one per candidate"
        )
    target = shares if isinstance(shares, str) else "requested"
    if saved is not None:
        shares, target = _shares_of_index(saved, groups, shares), "index"
    groups = groups.with_groups_of(shares)
    code_of_checked = read_checked(checked, groups.names, keys)
    queries = list(zip(lists, rows, keys, strict=True))
    are_shared = id_rows is None
    pools = _pools(queries, groups, shares, saved, code_of_checked, are_shared=are_shared)
    _warn_of_distances([pool.scores for pool, _, _ in pools])
    if target == EVEN and not groups.doubt:
        _warn_of_uneven(groups)
    chosen = _chosen(method, groups, target)
    positions = _Pages(pools, *chosen, k, groups.doubt, groups.used, table.ndim == 1)(1)
    # Without k, all candidates are shown, so a group with less than its share needs no warning.
    if k is not None:
        warn_of_short(positions.reports, "pass more candidates or request other shares")
    return positions


_Pool = tuple[Candidates, NDArray[np.generic], NDArray[np.integer]]
"""A query's candidates, their keys (n,) and their checked groups (n,)."""


def _pools(
    queries: Sequence[tuple[Floats, Rows, NDArray[np.generic]]],
    groups: Groups,
    shares: object,
    index: IndexGroups | None,
    code_of_checked: Mapping[int | str, int],
    *,
    are_shared: bool,
) -> list[_Pool]:
    """Return the candidates of each query.

    Args:
        queries: the scores, rows and keys (n,) of each query's candidates.
        groups: the groups of all rows.
        shares: the requested shares.
        index: the groups of an index, whose shares apply to predicted groups.
        code_of_checked: the true groups of checked candidates, by row or id.
        are_shared: whether all queries have the same candidates in the same order.

    Raises:
        InvalidInputError: If scores are not finite.
    """
    pools: list[_Pool] = []
    for scores, rows, keys in queries:
        # An index pads with -1 if it finds fewer candidates. The arrays are copied, so that later
        # changes do not reach the report.
        is_found = rows != UNKNOWN
        found = scores[is_found]
        if not np.isfinite(found).all():
            raise InvalidInputError(
                f"scores: {int((~np.isfinite(found)).sum())} of {len(found)} are NaN or infinite;"
                " remove these candidates"
            )
        if pools and are_shared:
            pool, found_keys, codes = pools[0]
            pools.append((replace(pool, scores=found), found_keys, codes))
            continue
        pool = groups.candidates(found, rows[is_found], shares)
        if index is not None and groups.source == ZERO_SHOT:
            pool = replace(pool, shares=index.shares, near_shares=index.near_shares)
        found_keys = keys[is_found]
        pools.append((pool, found_keys, codes_of(found_keys, code_of_checked)))
    return pools


@dataclass(frozen=True)
class _Pages:
    """Deal pages of results. Each page is dealt from what earlier pages have left.

    Attributes:
        pools: each query's candidates, their keys (n,) and their checked groups (n,).
        reranker: the method.
        about: the method, the target and the source of the groups, for reports.
        k: number of results per page, or None for all.
        reason: why the results keep their order, or "".
        used: a line about how the groups were predicted, or "".
        is_single: whether to return (k,) for the only query.
    """

    pools: Sequence[_Pool]
    reranker: Reranker
    about: tuple[str, str, str]
    k: int | None
    reason: str
    used: str
    is_single: bool

    def __call__(self, number: int) -> Positions:
        """Return a page, counted from 1."""
        reports = []
        for candidates, keys, codes in self.pools:
            order = self._order(candidates)
            for _ in range(number - 1):
                if not len(candidates):
                    break
                left = np.delete(np.arange(len(candidates)), order)
                candidates, keys, codes = candidates.subset(left), keys[left], codes[left]
                order = self._order(candidates)
            more = {"reason": self.reason, "used": self.used}
            reports.append(Report(candidates, self.about, order, keys, codes, **more))
        return Positions.from_reports(reports, is_single=self.is_single, page=self)

    def _order(self, candidates: Candidates) -> Rows:
        """Return the re-ranked first page of candidates."""
        n = len(candidates)
        return np.asarray(self.reranker(candidates, n if self.k is None else min(self.k, n)))


def _read_groups(
    labels: object,
    probabilities: object,
    features: AnyArray | None,
    attribute: AttributeLike | None,
    model: Host | ModelLike | None,
    index: IndexGroups | None,
) -> Groups:
    """Return the groups of all rows, using whichever source was passed.

    Args:
        labels: the group of each row (n,), or None if unknown.
        probabilities: the probability of each group for each row.
        features: image features of the rows, from which groups are predicted.
        attribute: the prompt set that names the predicted groups.
        model: the model that embeds the prompts.
        index: the groups of an index, to predict groups without a prompt set.

    Raises:
        InvalidInputError: If no source or more than one source was passed.
    """
    sources = {"labels": labels, "probabilities": probabilities, "attribute": attribute}
    if features is not None and attribute is not None and probabilities is None:
        del sources["labels"]  # Some candidates are labelled.
    inputs = [name for name, source in sources.items() if source is not None]
    if len(inputs) > 1:
        raise InvalidInputError(f"got {' and '.join(inputs)}; expected only one source of groups")
    if labels is not None and attribute is None:
        return Groups.of_labels(labels)
    if probabilities is not None:
        return Groups.of_probabilities(probabilities)
    if attribute is not None:
        if features is None or model is None:
            raise InvalidInputError(
                "attribute: predicting groups also needs features= (n, d) of the candidates and"
                " model=, a model or a mapping from prompt to embedding"
            )
        return _partly_labelled(labels, features, attribute, model)
    if index is not None and features is not None:
        return _predicted(index, features)
    raise InvalidInputError(
        "the groups are missing: expected labels=, probabilities=, or features= with attribute="
        " and model=, or with index="
    )


def _predicted(index: IndexGroups, features: AnyArray) -> Groups:
    """Return the groups of features (n, d), and warn about broken rows."""
    groups = index.predict(features)
    if groups.is_broken is not None:
        warn_of_rows(groups.is_broken, "features", "have no direction (zeros, NaN or infinite)")
    return groups


def _partly_labelled(
    labels: object, features: AnyArray, attribute: AttributeLike, model: Host | ModelLike
) -> Groups:
    """Return the groups of rows, which are predicted unless all attributes of a row are labelled.

    Args:
        labels: the value of each row (n,), or a mapping from prompt set to values, or None.
        features: image features (n, d) of the rows.
        attribute: one or several prompt sets.
        model: the model that embeds the prompts.
    """
    from vldebias.methods import Problem
    from vldebias.methods.few_labels import labelled_groups

    problem = Problem(model, attribute)
    sets = problem.attributes
    columns: Mapping[str, Any] = {}
    if labels is not None:
        columns = labels if isinstance(labels, Mapping) else {sets[0].name: labels}
    groups = _predicted(
        IndexGroups.fit(problem.host, attribute, features, labels=columns), features
    )
    parts = []
    for prompt_set, codes in zip(sets, labelled_groups(columns, sets), strict=True):
        if codes is None or groups.doubt:
            return groups
        parts.append(Groups(tuple(prompt_set.attributes), codes))
    known = Groups.crossed(parts).codes
    is_near = cast("Mask", groups.is_near) & (known == UNKNOWN)
    codes = np.where(known == UNKNOWN, groups.codes, known)
    return replace(groups, codes=codes, is_near=is_near)


def _shares_of_index(index: IndexGroups, groups: Groups, shares: object) -> Mapping[str, float]:
    """Return the groups' shares in an index by name.

    Raises:
        InvalidInputError: If other shares were requested, or the groups have other names.
    """
    if shares != POOL:
        raise InvalidInputError(f"got shares={shares!r} and index=; expected only one of them")
    if not set(groups.names) <= set(index.names):
        raise InvalidInputError(
            f"index: contains the shares of {list(index.names)}, but the groups are"
            f" {list(groups.names)}; expected the same names"
        )
    return index.share_of_name()


def _chosen(
    method: str | Reranker | None, groups: Groups, target: str
) -> tuple[Reranker, tuple[str, str, str]]:
    """Return the function that re-ranks, and the method, target and source for reports.

    If the groups cannot be trusted, the function keeps the order.

    Raises:
        InvalidInputError: If the name of the method is unknown.
    """
    is_function = callable(method) and not isinstance(method, type)
    if not (method is None or is_function or (isinstance(method, str) and method == "quota")):
        raise InvalidInputError(
            f"method: got {method!r}; expected a function of candidates and k;"
            f" {REMOVED['rerank-fair']}"
        )
    if groups.doubt:
        about = (AS_FOUND, "unreliable labels", groups.source)
        return (lambda candidates, k: candidates.ranked[:k]), about
    reranker = method if callable(method) else quota
    # The name of functools.partial(order, share=0.3) is "order".
    function = getattr(reranker, "func", reranker)
    name = str(getattr(function, "__name__", function))
    return reranker, (name, f"{target} shares", groups.source)


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


def read_checked(
    checked: Mapping[int, object] | Mapping[str, object] | None,
    names: Sequence[str],
    keys: NDArray[np.generic],
) -> dict[int | str, int]:
    """Return the true groups of checked candidates, as positions in `names` by row or id.

    Args:
        checked: mapping from row or id to true group, or None if no candidate was checked.
        names: names of the groups.
        keys: rows or ids of the candidates.

    Raises:
        InvalidInputError: If `checked` is not a mapping, a group is unknown, or no key belongs to a
            candidate.
    """
    if checked is None:
        return {}
    check_kind("checked", checked, Mapping, "a mapping from row or id to true group")
    codes: dict[int | str, int] = {}
    for key, group in checked.items():
        if str(group) not in names:
            raise InvalidInputError(
                f"checked: got group {group!r} for {key!r}; expected one of {list(names)};"
                f" {did_you_mean(str(group), names, 'correct it', CLOSE_LABELS)}"
            )
        codes[key] = list(names).index(str(group))
    candidates = dict.fromkeys(keys.ravel().tolist())
    strangers = [key for key in codes if key not in candidates]
    if strangers and len(strangers) == len(codes):
        raise InvalidInputError(
            f"checked: none of the {len(codes)} keys is a candidate; expected rows or ids such as"
            f" {next(iter(candidates), None)!r}, got {strangers[0]!r}"
        )
    if strangers:
        warn_of_input(
            f"checked: {len(strangers):,} of {len(codes):,} keys are no candidates and are left"
            f" out, such as {strangers[0]!r}",
        )
    return codes


def codes_of(
    keys: NDArray[np.generic], code_of_key: Mapping[int | str, int]
) -> NDArray[np.integer]:
    """Return the code of each key (n,), or -1 for keys without a code.

    Args:
        keys: rows or ids (n,) of candidates.
        code_of_key: codes by row or id.
    """
    if not code_of_key:
        return np.full(len(keys), UNKNOWN)
    return np.array([code_of_key.get(key, UNKNOWN) for key in keys.tolist()])


def _warn_of_distances(lists: Sequence[Floats]) -> None:
    """Warn if the scores of every query ascend, as distances of search results do."""
    are_ascending = all(bool((scores[1:] > scores[:-1]).all()) for scores in lists)
    if are_ascending and max(map(len, lists)) >= _MANY_SCORES:
        warn_of_input(
            "rerank: the scores ascend from the first to the last candidate, as distances do, but"
            " the highest score is taken as the best; for distances, pass -distances (in `vldebias"
            " rerank` --columns distance=COLUMN)",
        )


def _warn_of_uneven(groups: Groups) -> None:
    """Warn if the groups of the candidates are uneven, so that even shares are a new skew."""
    counts = np.bincount(groups.codes[groups.codes != UNKNOWN], minlength=len(groups.names))
    if counts.sum() >= _MANY_CANDIDATES and counts.max() >= _UNEVEN * counts.min():
        parts = [f"{count:,} {name}" for name, count in zip(groups.names, counts, strict=True)]
        warn_of_input(
            f"rerank: shares='even', but the candidates are {', '.join(parts)}; in an uneven"
            " collection, even shares are further from its shares than most searches; use"
            " shares='pool', or index= for the first results of an index",
        )


def warn_of_short(reports: Sequence[Report], remedy: str) -> None:
    """Warn once if groups have too few candidates for their shares.

    Args:
        reports: one report per query.
        remedy: what to do, for the message, unless an index returned fewer results than requested.
    """
    short = [(query, report.short) for query, report in enumerate(reports) if report.short]
    if not short:
        return
    query, lacking = short[0]
    words = ", ".join(f"{number} of {group!r}" for group, number in lacking.items())
    where = "" if len(reports) == 1 else f" (query {query}; {len(short)} of {len(reports)} queries)"
    cause = "rerank: too few candidates"
    if reports[query].ended:
        cause = f"search: {reports[query].ended}"
        remedy = (
            "if there are more, raise the store's limit, or the part that an approximate search"
            " reads (nprobe, ef)"
        )
    warn_of_input(
        f"{cause}: {words} missing in the first {len(reports[query].order)}{where}; {remedy}"
    )
