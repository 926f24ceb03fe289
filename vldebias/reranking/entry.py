"""Re-rank what a search returned: `rerank`, and how its inputs are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, SuspectInputWarning, did_you_mean, warn
from vldebias.reranking.candidates import UNKNOWN, Candidates, Floats, Rows, best_rows
from vldebias.reranking.orders import det_const_sort, fair, mmr, pbm, quota
from vldebias.reranking.proportional import mopr
from vldebias.reranking.report import Positions, Report

Reranker = Callable[[Candidates, int], Rows]
RERANKERS: dict[str, Reranker] = {
    "quota": quota,
    "fair": fair,
    "pbm": pbm,
    "mopr": mopr,
    "mmr": mmr,
    "detconstsort": det_const_sort,
}
# Methods that depend only on the best k of each group: the others are not read.
_READ_BEST = (quota, fair, pbm, det_const_sort, mopr)
POOL = "pool"
# CLIP's logit scale: cosines times this are its own log odds.
_SCALE = 100.0


class Groups(NamedTuple):
    """Hold the groups of all rows that scores or ids refer to.

    names: of the groups, (g,). codes: (n,), -1 where unknown. probabilities: (n, g) or None.
    """

    names: tuple[str, ...]
    codes: NDArray[np.integer]
    probabilities: Floats | None = None


class Lists(NamedTuple):
    """Hold the candidates of q queries.

    scores: (q, n). rows: (q, n) where they stand in labels and features, -1 where a list is
    shorter. ids: (q, n) what they are called, or None. is_single: whether one query came, without
    its axis.
    """

    scores: Floats
    rows: Rows
    ids: NDArray[Any] | None
    is_single: bool


def rerank(  # noqa: PLR0913 (inputs in the forms in which users have them)
    scores: Any,
    k: int | None = None,
    *,
    labels: Any = None,
    probabilities: Any = None,
    features: Any = None,
    prompts: Any = None,
    model: Any = None,
    shares: Any = None,
    method: str | Reranker = "quota",
    ids: Any = None,
    accuracy: Any = None,
) -> Positions:
    """Return the positions of the first k results in a new order, in which every group has its
    share.

    Nothing is embedded and no query is changed: it works on existing scores. Groups come from one
    of labels, probabilities, and features with prompts.

    Args:
        scores: (n,) of one query or (q, n) of several, higher is better; or id -> score.
        k: how many are shown; None: all.
        labels: (n,) group of each candidate; None, NaN, "" and "unknown" are unknown, keep their
            places and count to no group. Or column -> labels, for intersections ("female/old").
            With ids= or a mapping of scores also id -> label.
        probabilities: (n, g) of the groups, or group -> (n,): the likeliest is the label, and the
            report's shares read them all.
        features: (n, d) of the candidates. With prompts= they are labelled by the texts of the
            values, zero-shot; method "mmr" compares them.
        prompts: a prompt set with words for its values, or several for intersections.
        model: what embeds them: a model, or a mapping from prompt to embedding.
        shares: None for even shares, "pool" for those among all candidates, or group -> share.
        method: "quota" (`vldebias.reranking.quota`: the shares hold in every prefix), "fair" (only
            what chance does not explain is mended), "pbm", "mopr", "mmr", "detconstsort", or a
            function of `Candidates` and k, such as functools.partial(mmr, weight=0.3).
        ids: (n,) or (q, n) of the candidates, -1 for none, as an index returns them; labels,
            probabilities and features are then of all rows of the index.
        accuracy: how often labels are right: a number, group -> number, or a confusion (g, g) of a
            labelled sample, true groups in rows. The report then has the shares of true groups.

    Returns:
        Positions (k,) or (q, k), int64; ids where ids were given, filled up with -1. As an array
        with `reports`, one a query: `print(positions.report)`. Fewer candidates than k: as many as
        there are.

    Raises:
        InvalidInputError: what does not fit, by its name.

    Warns:
        SuspectInputWarning: a group has fewer candidates than its share needs.

    >>> scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    >>> rerank(scores, 4, labels=["m", "m", "m", "f", "f", "f"]).tolist()
    [0, 3, 1, 4]
    """
    if k is not None and (not isinstance(k, (int, np.integer)) or k < 1):
        raise InvalidInputError(f"k: expected a whole number of 1 or more, or None, got {k!r}")
    if not callable(method) and method not in RERANKERS:
        raise InvalidInputError(
            f"method: got {method!r}; expected one of {', '.join(RERANKERS)}, or a function of"
            f" candidates and k; {did_you_mean(method, RERANKERS)}"
        )
    reranker = method if callable(method) else RERANKERS[method]
    lists, labels = _lists(scores, ids, labels)
    n = int(lists.rows.max(initial=UNKNOWN)) + 1
    groups = _groups(labels, probabilities, features, prompts, model, n)
    if len(groups.codes) < n or (ids is None and len(groups.codes) > n):
        raise InvalidInputError(
            f"got groups of {len(groups.codes)} rows for {n} candidates; expected one for each"
        )
    unit = None
    if features is not None and reranker not in _READ_BEST:
        unit = _unit_rows(features)

    orders = []
    reports = []
    for query, row in enumerate(lists.scores):
        # -1 fills up what an index returns where it has found fewer.
        places = np.flatnonzero(lists.rows[query] != UNKNOWN)
        candidates = _candidates(row[places], lists.rows[query][places], groups, unit, shares)
        order = _order(candidates, reranker, k)
        returned = places if lists.ids is None else lists.ids[query][places]
        orders.append(returned[order])
        reports.append(Report(candidates, _name(method), order, accuracy))
    # Of all candidates a group may have fewer than its share, which is no surprise.
    if k is not None:
        _warn_of_short(reports)
    return Positions.from_reports(_joined(orders, lists.is_single), tuple(reports))


def _lists(scores: Any, ids: Any, labels: Any) -> tuple[Lists, Any]:
    """Return the lists of candidates, and the labels in the order of their rows."""
    by_id = isinstance(scores, Mapping)
    if by_id:
        if ids is not None:
            raise InvalidInputError("ids: got some, and scores are a mapping by id; leave ids out")
        ids = list(scores)
        scores = list(scores.values())
    table = _floats(scores, "scores")
    if table.ndim not in (1, 2) or not table.size:
        raise InvalidInputError(f"scores: expected (n,) or (q, n), got shape {table.shape}")
    is_single = table.ndim == 1
    table = np.atleast_2d(table)
    rows = np.broadcast_to(np.arange(table.shape[1]), table.shape)
    id_rows = None
    if ids is not None:
        if hasattr(ids, "detach"):
            ids = ids.detach().cpu().numpy()
        id_rows = np.asarray(ids)
        if id_rows.dtype.kind not in "iu":
            # The objects that they are: numpy would make texts of numbers beside texts.
            objects = np.empty(id_rows.size, dtype=object)
            objects[:] = id_rows.ravel().tolist()
            id_rows = objects.reshape(id_rows.shape)
        id_rows = np.atleast_2d(id_rows)
        if id_rows.shape != table.shape:
            raise InvalidInputError(
                f"ids: expected one for each score {table.shape}, got {id_rows.shape}"
            )
        labels, rows = _rows_of_ids(id_rows, labels, is_index=not by_id)
    return Lists(table, rows, id_rows, is_single), labels


def _order(candidates: Candidates, reranker: Reranker, k: int | None) -> Rows:
    """Return the new order of the first k candidates, read as few as the method needs."""
    n = len(candidates)
    count = n if k is None else min(k, n)
    if reranker is mopr and count == n and k is None:
        raise InvalidInputError("method 'mopr' chooses k of the candidates: give k")
    if reranker not in _READ_BEST or count == n:
        return np.asarray(reranker(candidates, count))
    # Those behind the best k of their own group are behind in any order of these methods.
    best = []
    for group in range(UNKNOWN, len(candidates.names)):
        rows = np.flatnonzero(candidates.codes == group)
        best.append(rows[best_rows(candidates.scores[rows], count)])
    read = np.sort(np.concatenate(best))
    return read[reranker(candidates.picked(read), count)]


def _candidates(
    scores: Floats, rows: Rows, groups: Groups, unit: NDArray[Any] | None, shares: Any
) -> Candidates:
    """Return the candidates of one query, which stand in these rows of groups and features."""
    if not np.isfinite(scores).all():
        raise InvalidInputError(
            f"scores: {int((~np.isfinite(scores)).sum())} of {len(scores)} are NaN or infinite;"
            " leave these candidates out"
        )
    codes = groups.codes[rows]
    return Candidates(
        scores,
        codes,
        groups.names,
        _shares(shares, codes, groups.names),
        None if unit is None else unit[rows],
        None if groups.probabilities is None else groups.probabilities[rows],
    )


def _rows_of_ids(id_rows: NDArray[Any], labels: Any, *, is_index: bool) -> tuple[Any, Rows]:
    """Return the labels in rows, and the rows (q, n) of the candidates, -1 for none.

    labels: by id, or of the rows. is_index: whether whole numbers are rows of an index.
    """
    is_none = np.zeros(id_rows.shape, dtype=bool)
    if id_rows.dtype.kind in "iu":
        is_none = id_rows == UNKNOWN
    has_columns = isinstance(labels, Mapping) and all(
        np.ndim(column) == 1 for column in labels.values()
    )
    if isinstance(labels, Mapping) and not has_columns:
        row_of_id = {key: row for row, key in enumerate(dict.fromkeys(id_rows.ravel().tolist()))}
        rows = np.array([[row_of_id[key] for key in listed] for listed in id_rows.tolist()])
        labels = [labels.get(key) for key in row_of_id]
    elif is_index and id_rows.dtype.kind in "iu":
        rows = id_rows.astype(np.intp)
    elif len(id_rows) == 1:
        rows = np.arange(id_rows.shape[1])[None]
    else:
        raise InvalidInputError(
            "ids: got texts for several queries; expected labels as a mapping from id to label"
        )
    if rows[~is_none].min(initial=0) < 0:
        raise InvalidInputError("ids: expected rows of the labels from 0 on, or -1 for none")
    return labels, np.where(is_none, UNKNOWN, rows)


def _groups(
    labels: Any, probabilities: Any, features: Any, prompts: Any, model: Any, n: int
) -> Groups:
    """Return the groups of all rows, from the one thing that says them.

    Raises:
        InvalidInputError: none of them, or several.
    """
    sources = {"labels": labels, "probabilities": probabilities, "prompts": prompts}
    inputs = [name for name, source in sources.items() if source is not None]
    if len(inputs) > 1:
        raise InvalidInputError(
            f"got {' and '.join(inputs)}; expected one that says the group of each candidate"
        )
    if prompts is not None:
        if features is None or model is None:
            raise InvalidInputError(
                "prompts: candidates are labelled by them with features= (n, d) of the candidates"
                " and model=, a model or a mapping from prompt to embedding"
            )
        return zero_shot_groups(features, prompts, model)
    if probabilities is not None:
        return _of_probabilities(probabilities)
    if labels is not None:
        return _of_labels(labels)
    if features is None:
        raise InvalidInputError(
            "expected labels=, probabilities=, or features= with prompts= and model=, which say the"
            " group of each candidate"
        )
    return Groups(("any",), np.zeros(n, dtype=np.int8))


def _of_labels(labels: Any) -> Groups:
    """Return groups of labels, or of the combinations of several columns."""
    columns = labels if isinstance(labels, Mapping) else {"": labels}
    parts = []
    for column, values in columns.items():
        different, code_of_row = _factorised(values)
        texts = [_text(value) for value in different]
        names = sorted(set(texts) - {""})
        if not names:
            raise InvalidInputError(
                f"labels{column and f' {column!r}'}: none is known; expected a group of each"
                " candidate (None, NaN, '' and 'unknown' are unknown)"
            )
        code_of_name = {name: code for code, name in enumerate(names)}
        codes = np.array([code_of_name.get(text, UNKNOWN) for text in texts])
        parts.append(Groups(tuple(names), codes[code_of_row]))
    return _crossed(parts)


def _factorised(values: Any) -> tuple[list[Any], NDArray[np.intp]]:
    """Return the different values of a column, and the place (n,) of each row's value among
    them."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    elif hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ndarray) and values.dtype.kind in "iub" and values.size:
        low = int(values.min())
        span = int(values.max()) - low + 1
        # Counted where there are few, which takes a pass and no sort.
        if span <= len(values):
            places = values.astype(np.intp) - low
            is_there = np.bincount(places, minlength=span) > 0
            return (np.flatnonzero(is_there) + low).tolist(), (is_there.cumsum() - 1)[places]
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    place_of_value: dict[Any, int] = {}
    codes = [place_of_value.setdefault(value, len(place_of_value)) for value in listed]
    return list(place_of_value), np.array(codes, dtype=np.intp)


def _text(value: Any) -> str:
    """Return a label as a text, "" where it is unknown."""
    if value is None or value != value:
        return ""
    text = str(value).strip()
    return "" if text.lower() in ("unknown", "nan", "none", "<na>") else text


def _of_probabilities(probabilities: Any) -> Groups:
    """Return groups by their probabilities, of which the largest is the label."""
    names: Sequence[str] | None = None
    if hasattr(probabilities, "columns"):
        names = [str(name) for name in probabilities.columns]
        probabilities = probabilities.to_numpy()
    elif isinstance(probabilities, Mapping):
        names = list(map(str, probabilities))
        columns = [_floats(column, "probabilities") for column in probabilities.values()]
        probabilities = np.stack(columns, axis=-1)
    table = _floats(probabilities, "probabilities")
    if table.ndim != 2 or table.shape[1] < 2 or table.min() < 0:
        raise InvalidInputError(
            f"probabilities: expected (n, groups), none below 0, got shape {table.shape}"
        )
    if not np.allclose(table.sum(axis=1), 1, atol=1e-3):
        raise InvalidInputError("probabilities: expected rows that sum to 1")
    if names is None:
        names = [str(group) for group in range(table.shape[1])]
    return Groups(tuple(names), table.argmax(axis=1), table)


def zero_shot_groups(features: Any, prompts: Any, model: Any) -> Groups:
    """Return groups by the texts of the values, with the model's own probabilities: the softmax of
    100 times the cosines, as CLIP has it.

    Args:
        features: (n, d) of the candidates, or blocks of them. prompts: a set with words for its
            values, or several for intersections. model: what embeds them.
    """
    # Imported here: torch takes seconds, and labels need none of it.
    from vldebias.methods import Problem

    problem = Problem(model, prompts)
    role = problem.host.roles[0]
    weights = []
    for prompt_set in problem.attributes:
        weights.append(problem.zero_shot(prompt_set, role).numpy().astype(np.float64))
    blocks = [features] if hasattr(features, "shape") or isinstance(features, list) else features
    tables: list[list[Floats]] = [[] for _ in weights]
    for block in blocks:
        unit = _unit_rows(block)
        for values, parts in zip(weights, tables, strict=True):
            if values.shape[1] != unit.shape[1]:
                raise InvalidInputError(
                    f"features: got width {unit.shape[1]}, and the model's texts have"
                    f" {values.shape[1]}; expected both of one model"
                )
            # Rounded, so that equal rows tie whatever the order of sums.
            cosines = (unit @ values.T).round(12)
            odds = np.exp(_SCALE * (cosines - cosines.max(axis=1, keepdims=True)))
            parts.append(odds / odds.sum(axis=1, keepdims=True))
    groups = []
    for prompt_set, parts in zip(problem.attributes, tables, strict=True):
        table = np.concatenate(parts)
        groups.append(Groups(tuple(prompt_set.attributes), table.argmax(axis=1), table))
    return _crossed(groups)


def _crossed(parts: Sequence[Groups]) -> Groups:
    """Return the combinations of several groupings: "female/old", unknown where one is."""
    if len(parts) == 1:
        return parts[0]
    names = ["/".join(combination) for combination in product(*(part.names for part in parts))]
    codes = np.zeros(len(parts[0].codes), dtype=np.intp)
    is_known = np.ones(len(codes), dtype=bool)
    tables = []
    for part in parts:
        if len(part.codes) != len(codes):
            raise InvalidInputError("labels: expected columns of one length")
        codes = codes * len(part.names) + part.codes
        is_known &= part.codes != UNKNOWN
        if part.probabilities is not None:
            tables.append(part.probabilities)
    probabilities = None
    if len(tables) == len(parts):
        # Attributes are taken as independent given the image.
        probabilities = tables[0]
        for table in tables[1:]:
            joint = probabilities[:, :, None] * table[:, None, :]
            probabilities = joint.reshape(len(codes), -1)
    return Groups(tuple(names), np.where(is_known, codes, UNKNOWN), probabilities)


def _shares(shares: Any, codes: NDArray[np.integer], names: Sequence[str]) -> Floats:
    """Return the shares (g,) that are asked for, with sum 1.

    Raises:
        InvalidInputError: other groups, or numbers below 0 or of another sum.
    """
    if shares is None:
        return np.full(len(names), 1 / len(names))
    if isinstance(shares, str):
        if shares != POOL:
            raise InvalidInputError(
                f"shares: got {shares!r}; expected None, 'pool' or group -> share"
            )
        return pool_shares(codes, len(names))
    if isinstance(shares, Mapping):
        unknown = [name for name in shares if str(name) not in names]
        if unknown:
            hint = did_you_mean(unknown[0], names)
            raise InvalidInputError(f"shares: got {unknown}; the groups are {list(names)}; {hint}")
        values = np.array([float(shares.get(name, 0.0)) for name in names])
    else:
        values = _floats(shares, "shares")
    if values.shape != (len(names),) or values.min() < 0 or abs(values.sum() - 1) > 1e-6:
        raise InvalidInputError(
            f"shares: expected numbers from 0 on with sum 1, one for each of {list(names)}, got"
            f" {values.tolist()}"
        )
    return values / values.sum()


def pool_shares(codes: NDArray[np.integer], g: int) -> Floats:
    """Return the shares (g,) of the groups among the candidates of known group."""
    counts = np.bincount(codes[codes != UNKNOWN], minlength=g)
    shares: Floats = counts / max(counts.sum(), 1)
    return shares


def _name(method: Any) -> str:
    """Return what a method is called in a report."""
    function = getattr(method, "func", method)
    return str(getattr(function, "__name__", function))


def _floats(values: Any, name: str) -> Floats:
    """Return numbers as float64: an array, a tensor on any device, or a list."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name}: expected numbers, got {str(values)[:60]}") from None


def _unit_rows(features: Any) -> Floats:
    """Return features (n, d) at length 1."""
    rows = _floats(features, "features")
    if rows.ndim != 2:
        raise InvalidInputError(f"features: expected (n, d), got shape {rows.shape}")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)


def _joined(orders: Sequence[NDArray[Any]], is_single: bool) -> NDArray[Any]:
    """Return the orders of all queries as one array, shorter ones filled up with -1."""
    if is_single:
        return orders[0]
    joined = np.full((len(orders), max(map(len, orders))), UNKNOWN, dtype=orders[0].dtype)
    for query, order in enumerate(orders):
        joined[query, : len(order)] = order
    return joined


def _warn_of_short(reports: Sequence[Report]) -> None:
    """Warn once of the groups that have fewer candidates than their shares need."""
    short = [(query, report.short) for query, report in enumerate(reports) if report.short]
    if not short:
        return
    query, lacking = short[0]
    words = ", ".join(f"{number} of {group!r}" for group, number in lacking.items())
    where = "" if len(reports) == 1 else f" (query {query}; {len(short)} of {len(reports)} queries)"
    warn(
        f"rerank: there are too few candidates: {words} are missing among the first"
        f" {len(reports[query].order)}{where}; pass more candidates, or ask for other shares",
        SuspectInputWarning,
    )
