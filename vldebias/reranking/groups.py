"""Determine the groups of candidates from labels, probabilities, or zero-shot predictions."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vldebias.data.label_values import (
    USUAL_VALUES,
    groups_as_many_as_rows,
    misspelt,
)
from vldebias.data.labels import Labels, cross
from vldebias.errors import CLOSE_LABELS, InvalidInputError, did_you_mean, received, warn_of_input
from vldebias.measure.resampling import distinct
from vldebias.reranking.candidates import (
    UNKNOWN,
    Candidates,
    Floats,
    Mask,
    Rows,
    as_floats,
    warn_of_rows,
)
from vldebias.reranking.nearest import borders_of, labels_and_margins, shares_near
from vldebias.utils.arrays import refuse_masked
from vldebias.utils.label_words import names_no_group, written_alike

POOL, EVEN = "pool", "even"
ZERO_SHOT = "predicted groups"  # source of groups that were estimated from features
_MOST_CODES = 4  # If there are more numeric names, they may be ages or scores.


@dataclass(frozen=True, eq=False)
class Groups:
    """Store the groups of all rows that scores or ids refer to.

    Attributes:
        names: names of the groups (g,).
        codes: group of each row (n,) as a position in `names`, or -1 if unknown.
        probabilities: group probabilities (n, g), if available.
        is_near: mask (n,) of the rows near the border of their group, or None for given labels.
        source: where the groups come from, for reports.
        doubt: why the groups cannot be trusted, or "".
        is_broken: mask (n,) of the rows whose features have no direction, or None.
        used: a line for reports about how the groups were predicted, or "".
    """

    names: tuple[str, ...]
    codes: NDArray[np.integer]
    probabilities: Floats | None = None
    is_near: Mask | None = None
    source: str = "given labels"
    doubt: str = ""
    is_broken: Mask | None = None
    used: str = ""

    @classmethod
    def of_labels(cls, labels: object) -> Groups:
        """Return the groups in a label column, or the combinations of several columns."""
        columns = labels if isinstance(labels, Mapping) else {"": labels}
        if not columns:
            raise InvalidInputError("labels: got an empty mapping; expected at least one column")
        parts = []
        for column, values in columns.items():
            parts.append(cls._of_column(values, f"labels {column!r}" if column else "labels"))
        return cls.crossed(parts)

    @classmethod
    def _of_column(cls, labels: object, where: str) -> Groups:
        """Return the groups in one label column, which messages refer to as `where`."""
        if isinstance(labels, str) or getattr(labels, "ndim", 1) != 1:
            raise InvalidInputError(
                f"{where}: got {received(labels)}; expected a group for each candidate"
            )
        refuse_masked(labels, where)
        different, code_of_row = _factorised(labels)
        texts = [str(value).strip() for value in different]
        unknown = set()
        for text, value in zip(texts, different, strict=True):
            is_nan = value != value
            if not text or names_no_group(text) or is_nan:
                unknown.add(text)
        names = tuple(sorted(set(texts) - unknown))
        if not names:
            raise InvalidInputError(
                f"{where}: all are unknown (None, NaN, '', 'n/a', 'unknown' and the like); expected"
                " a group for each candidate"
            )
        code_of_name = {name: code for code, name in enumerate(names)}
        codes = np.array([code_of_name.get(text, UNKNOWN) for text in texts])[code_of_row]
        _check_names(Labels(codes, names), where)
        return cls(names, codes)

    @classmethod
    def of_probabilities(cls, probabilities: Any) -> Groups:
        """Return groups from probabilities, using the most likely group as the label."""
        names: Sequence[str] | None = None
        if hasattr(probabilities, "columns"):
            probabilities = {name: probabilities[name] for name in probabilities.columns}
        if isinstance(probabilities, Mapping):
            names = list(map(str, probabilities))
            columns = [as_floats(column, "probabilities") for column in probabilities.values()]
            probabilities = np.stack(columns, axis=-1)
        table = as_floats(probabilities, "probabilities")
        is_table = table.ndim == 2 and table.shape[1] >= 2
        is_known = np.asarray(np.isfinite(table).all(axis=-1))
        if not is_table or table[is_known].min(initial=0.0) < 0:
            raise InvalidInputError(
                f"probabilities: expected non-negative numbers (n, groups), got shape {table.shape}"
            )
        if not np.allclose(table[is_known].sum(axis=1), 1, atol=1e-3):
            raise InvalidInputError("probabilities: expected rows that sum to 1; rescale them")
        if names is None:
            names = [str(group) for group in range(table.shape[1])]
        warn_of_rows(~is_known, "probabilities", "are NaN or infinite")
        table = np.where(is_known[:, None], table, 0.0)
        labels, margins = labels_and_margins(table)
        codes = np.where(is_known, labels, UNKNOWN)
        is_near = margins < borders_of(codes, margins, len(names))[labels]
        return cls(tuple(names), codes, table, is_near, "given probabilities")

    @classmethod
    def crossed(cls, parts: Sequence[Groups]) -> Groups:
        """Cross several groupings ("female/old"); rows with any unknown group become unknown."""
        if len(parts) == 1:
            return parts[0]
        crossed = cross(*(Labels(part.codes.astype(np.int64), part.names) for part in parts))
        masks = [part.is_near for part in parts if part.is_near is not None]
        # A row near the border of any attribute may belong to another crossed group.
        is_near = np.logical_or.reduce(masks) if masks else None
        return cls(crossed.names, crossed.codes, None, is_near, parts[0].source)

    def with_groups_of(self, shares: object) -> Groups:
        """Return the groups, with those that no candidate has but for which a share is requested.

        If a query only finds women, men are still a group. But if the shares lack a group that
        candidates have, the names may be spelled differently, which `requested_shares` reports.
        """
        if not isinstance(shares, Mapping) or not set(self.names) <= set(map(str, shares)):
            return self
        absent = [str(name) for name in shares if str(name) not in self.names]
        for name, share in shares.items():
            text = str(name).strip()
            if share != 0 and (not text or names_no_group(text)):
                raise InvalidInputError(
                    f"shares: got a share of {name!r}, which is read as an unknown group; rename"
                    " the group in labels and shares"
                )
        if self.probabilities is not None:
            return self
        return replace(self, names=(*self.names, *absent))

    def candidates(self, scores: Floats, rows: Rows, shares: object) -> Candidates:
        """Return the candidates for one query.

        Args:
            scores: scores (n,) of the candidates.
            rows: the candidates' rows (n,) in the groups.
            shares: requested shares, as for `vldebias.rerank`.

        Raises:
            InvalidInputError: If shares are invalid.
        """
        codes = self.codes[rows]
        is_near = None if self.is_near is None else self.is_near[rows]
        return Candidates(
            scores,
            codes,
            self.names,
            requested_shares(shares, codes, self.names),
            None if self.probabilities is None else self.probabilities[rows],
            is_near,
            None if is_near is None else shares_near(codes, is_near, len(self.names)),
        )


def _check_names(labels: Labels, where: str) -> None:
    """Warn about misspelt groups, and about numbers that are not codes.

    Raises:
        InvalidInputError: If there are almost as many groups as rows, as with ids or ages.
    """
    problem = groups_as_many_as_rows(labels)
    if problem:
        raise InvalidInputError(f"{where}: {problem}")
    problems = misspelt(labels.names, USUAL_VALUES) + written_alike(labels.names)
    are_numbers = all(re.fullmatch(r"[-+]?\d+", name) for name in labels.names)
    if are_numbers and len(labels.names) > max(_MOST_CODES, 0.5 * labels.known.sum()):
        problems.append(
            f"{len(labels.names)} groups that are numbers, such as {', '.join(labels.names[:4])};"
            " if these are ages or scores, group them first"
        )
    if problems:
        warn_of_input(f"{where}: {'; also '.join(problems)}")


def _factorised(values: object) -> tuple[list[Hashable], NDArray[np.intp]]:
    """Return a column's distinct values, and the index (n,) of each row's value."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    elif hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ndarray) and values.dtype.kind in "iub" and values.size:
        names, codes = distinct(values.astype(np.int8) if values.dtype == bool else values)
        return names.tolist(), codes
    try:
        if hasattr(values, "tolist"):
            values = values.tolist()
        listed = list(cast("Iterable[Hashable]", values))
        different = list(dict.fromkeys(listed))
        code_of_value = {value: code for code, value in enumerate(different)}
        codes = np.fromiter(map(code_of_value.__getitem__, listed), np.intp, len(listed))
    except TypeError:
        first = values
        if isinstance(values, Iterable):
            first = next((value for value in values if not isinstance(value, Hashable)), values)
        raise InvalidInputError(
            "labels: expected a string or number per candidate, got the"
            f" {type(first).__name__} {str(first)[:60]}; for several attributes, pass a mapping"
            " from column to labels"
        ) from None
    return different, codes


def requested_shares(shares: object, codes: NDArray[np.integer], names: Sequence[str]) -> Floats:
    """Return the requested shares (g,), which sum to 1.

    Args:
        shares: "pool", "even", or the share of each group by name.
        codes: group of each candidate (n,) as a position in `names`, or -1 if unknown.
        names: names of the g groups.

    Raises:
        InvalidInputError: If a group is unknown, a share is negative, or the sum is not 1.
    """
    if isinstance(shares, str) and shares == EVEN:
        return np.full(len(names), 1 / len(names))
    if isinstance(shares, str) and shares == POOL:
        return pool_shares(codes, len(names))
    # In a list, the order of the groups would be a guess.
    if not isinstance(shares, Mapping):
        raise InvalidInputError(
            f"shares: got {shares!r}; expected 'pool', 'even' or a mapping from group to share,"
            f" such as {dict.fromkeys(names, round(1 / len(names), 2))}"
        )
    unknown = [name for name in shares if str(name) not in names]
    if unknown:
        hint = did_you_mean(str(unknown[0]), names, "use these names", CLOSE_LABELS)
        raise InvalidInputError(f"shares: got {unknown}; the groups are {list(names)}; {hint}")
    # Labels may be numbers, but group names are strings.
    share_of_name = {str(name): share for name, share in shares.items()}
    values = as_floats([share_of_name.get(name, 0.0) for name in names], "shares")
    sums_to_one = abs(values.sum() - 1) <= 1e-6  # This is False if a share is NaN.
    if values.shape != (len(names),) or values.min() < 0 or not sums_to_one:
        raise InvalidInputError(
            f"shares: expected non-negative numbers that sum to 1, one for each of {list(names)};"
            f" got {values.tolist()}"
        )
    return values / values.sum()


def pool_shares(codes: NDArray[np.integer], g: int) -> Floats:
    """Return the shares (g,) among candidates whose group is known.

    Args:
        codes: group of each candidate (n,), or -1 if unknown.
        g: number of groups.
    """
    counts = np.bincount(codes + 1, minlength=g + 1)[1:]  # UNKNOWN is -1
    shares: Floats = counts / max(counts.sum(), 1)
    return shares
