"""Report the shares before and after re-ranking, the estimated true shares, and the cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import Interval
from vldebias.reranking.candidates import UNKNOWN, Candidates, Rows
from vldebias.reranking.checks import ENOUGH, true_shares
from vldebias.reranking.groups import POOL
from vldebias.utils.json_values import JSON
from vldebias.utils.markup import html_table

AS_FOUND = "none"  # Method name in reports of results that were not re-ranked.
RARE = 0.1  # If a group's share is smaller, some kinds of queries become more skewed.


@dataclass(frozen=True, eq=False)
class Report:
    """Report on the re-ranking of one query's results.

    Attributes:
        candidates: the re-ranked candidates.
        about: the method, the target and where the groups come from, such as ("quota", "pool
            shares", "given labels").
        order: rows (k,) of the candidates in their new order.
        keys: id of each candidate (n,), or its row if there are no ids.
        checked: true group of each candidate (n,) as a position in the group names, or -1 if it was
            not checked.
        query: text of the query, if known.
        how_to_check: how to pass the true groups of some results.
        reason: why the results keep their order, or "" if they were re-ranked.
        problem: what is wrong with the vectors of the results, or "".
        used: a line about how the groups were predicted, or "".
        ended: how many results an index returned, if it returned fewer than requested, or "".

    >>> from vldebias import rerank
    >>> scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    >>> positions = rerank(scores, 4, labels=["m", "m", "m", "f", "f", "f"])
    >>> report = positions.report
    >>> report.counts_before, report.counts
    ({'f': 1, 'm': 3}, {'f': 2, 'm': 2})
    >>> report.kept
    0.75
    """

    candidates: Candidates
    about: tuple[str, str, str]
    order: Rows
    keys: NDArray[np.generic]
    checked: NDArray[np.integer]
    query: str = ""
    how_to_check: str = (
        "label the results that positions.to_check() returns and pass their true groups as"
        " `checked`"
    )
    reason: str = ""
    problem: str = ""
    used: str = ""
    ended: str = ""

    @property
    def before(self) -> Rows:
        """Return the rows (k,) of the top k by score."""
        return self.candidates.ranked[: len(self.order)]

    @property
    def counts_before(self) -> dict[str, int]:
        """Return the number of results per group in the top k by score, according to labels."""
        return self._counts(self.before)

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of results per group in the new top k, according to labels."""
        return self._counts(self.order)

    @property
    def unknown(self) -> int:
        """Return the number of results in the new top k whose group is unknown."""
        return int((self.candidates.codes[self.order] == UNKNOWN).sum())

    @property
    def short(self) -> dict[str, int]:
        """Return how many results are missing from each group that has too few candidates."""
        if self.about[0] == AS_FOUND:
            return {}
        names = self.candidates.names
        known = len(self.order) - self.unknown
        missing = {}
        for name, share in zip(names, self.candidates.shares, strict=True):
            places = int(np.floor(share * known + 1e-9))
            if self._available[name] < places:
                missing[name] = places - self._available[name]
        return missing

    @property
    def kept(self) -> float:
        """Return the share of the original top k that is also in the new top k."""
        return float(np.isin(self.before, self.order).mean()) if len(self.order) else 1.0

    @property
    def score_lost(self) -> float:
        """Return the decrease in the mean score of the top k."""
        if not len(self.order):
            return 0.0
        scores = self.candidates.scores
        return float(scores[self.before].mean() - scores[self.order].mean())

    @property
    def moved(self) -> float:
        """Return the mean number of places by which results in the new top k moved."""
        if not len(self.order):
            return 0.0
        place = np.empty(len(self.candidates), dtype=np.intp)
        place[self.candidates.ranked] = np.arange(len(self.candidates))
        return float(np.abs(place[self.order] - np.arange(len(self.order))).mean())

    @property
    def notes(self) -> list[str]:
        """Return what to know about the requested shares."""
        notes = [self.problem] if self.problem else []
        n, k = len(self.candidates), len(self.order)
        names, shares = self.candidates.names, self.candidates.shares
        if not k:
            return ["nothing was found"]
        if self.ended and k == n:
            notes.append(self.ended)
        if self.about[0] == AS_FOUND:
            return notes
        if self.about[1] == f"{POOL} shares" and k < n / 4:
            notes.append(
                f"the shares are those of these {n:,} candidates; if they are the first results of"
                " an index, they are as skewed as the query, so pass index= or use queries.search"
            )
        present = [name for name, number in self._available.items() if number]
        if len(present) == 1:
            notes.append(f"all candidates with a known group are {present[0]}")
        rare = [name for name, share in zip(names, shares, strict=True) if 0 < share < RARE]
        if rare:
            notes.append(
                f"{', '.join(rare)}: with a share under {RARE:.0%}, a list may be more skewed than"
                " before"
            )
        return notes

    @cached_property
    def _available(self) -> dict[str, int]:
        """Return the number of candidates in each group."""
        return self._counts(np.arange(len(self.candidates)))

    @property
    def n_checked(self) -> int:
        """Return the number of checked candidates with a known label."""
        return int(((self.candidates.codes != UNKNOWN) & (self.checked != UNKNOWN)).sum())

    @cached_property
    def expected(self) -> dict[str, Interval] | None:
        """Return each group's true share with its 95% interval.

        The result is None if too few candidates were checked for `true_shares`.
        """
        return true_shares(self.candidates, self.order, self.checked)

    def to_dict(self) -> dict[str, JSON]:
        """Return the results as JSON values."""
        expected = self.expected
        shares = self.candidates.shares.tolist()
        return {
            "query": self.query,
            "method": self.about[0],
            "target": self.about[1],
            "groups from": self.about[2],
            "k": len(self.order),
            "shares": dict(zip(self.candidates.names, shares, strict=True)),
            "counts before": self.counts_before,
            "counts": self.counts,
            "unknown": self.unknown,
            "short": self.short,
            "checked": self.n_checked,
            "expected": expected and {name: list(share) for name, share in expected.items()},
            "kept": self.kept,
            "score lost": self.score_lost,
            "moved": self.moved,
            "notes": self.notes,
            "reason": self.reason,
            "used": self.used,
        }

    def __str__(self) -> str:
        k = len(self.order)
        before = _words(self.counts_before)
        name = f"{self.query}: " if self.query else ""
        how = "by {}, {}, {}".format(*self.about)
        if self.about[0] == AS_FOUND:
            how = f"as found, because {self.reason}"
        lines = [f"{name}first {k} {how}: {before} -> {_words(self.counts)}"]
        if self.used and self.about[0] != AS_FOUND:
            lines.insert(0, self.used)
        if self.unknown:
            lines.append(f"{self.unknown} results whose group is unknown keep their places")
        end = self.ended or "there are no more candidates"
        for group, number in self.short.items():
            lines.append(f"{group}: {number} fewer than requested; {end}")
        lines += self.notes
        expected = self.expected
        if expected is not None:
            parts = []
            for group, (value, low, high) in expected.items():
                parts.append(f"{group} {value:.0%} [{low:.0%}, {high:.0%}]")
            lines.append(
                f"true shares, 95% intervals: {', '.join(parts)}; {self.n_checked} candidates"
                " were checked"
            )
        elif k:
            needed = f"{ENOUGH} are needed" if k > ENOUGH else f"all {k} are needed"
            lines.append(
                f"true shares unknown: {self.how_to_check}; {needed}, {self.n_checked} were passed"
            )
        lines.append(
            f"{self.kept:.0%} of the first {k} stay; a result moves {self.moved:.1f} places; mean"
            f" score {0.0 - self.score_lost:+.4f}"
        )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return an HTML table of the groups' counts before and after, with what `print` shows."""
        before, after = self.counts_before, self.counts
        rows = [(name, before[name], after[name]) for name in self.candidates.names]
        return html_table(str(self), ("group", "before", "after"), rows)

    def _counts(self, rows: Rows) -> dict[str, int]:
        codes = self.candidates.codes[rows]
        counts = np.bincount(codes[codes != UNKNOWN], minlength=len(self.candidates.names))
        return dict(zip(self.candidates.names, counts.tolist(), strict=True))


class Positions(np.ndarray):
    """Store positions or ids in their new order, with a report for each query.

    Attributes:
        reports: one `Report` per query. Slices and the results of arithmetic have no reports.

    >>> from vldebias import rerank
    >>> scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    >>> positions = rerank(scores, 4, labels=["m", "m", "m", "f", "f", "f"])
    >>> positions
    Positions([0, 3, 1, 4])
    >>> len(positions.to_check(2))  # results to label by hand
    2
    """

    reports: tuple[Report, ...]
    _page: Callable[[int], Positions] | None

    @classmethod
    def from_reports(
        cls,
        reports: Sequence[Report],
        *,
        is_single: bool,
        page: Callable[[int], Positions],
    ) -> Positions:
        """Create an array (q, k) of the reports' ids or rows, padded with -1.

        Args:
            reports: one report per query.
            is_single: whether to return (k,) for the only query.
            page: function that returns another page.
        """
        rows = [report.keys.take(report.order) for report in reports]
        shape = (len(rows), max(map(len, rows), default=0))
        kinds = {keys_in_order.dtype for keys_in_order in rows if len(keys_in_order)}
        # An empty list may have another type than the ids of other queries.
        kind = next(iter(kinds), np.dtype(np.intp)) if len(kinds) < 2 else np.dtype(object)
        table = np.full(shape, UNKNOWN, dtype=kind)
        for query, keys_in_order in enumerate(rows):
            table[query, : len(keys_in_order)] = keys_in_order
        positions = (table[0] if is_single else table).view(cls)
        positions.reports = tuple(reports)
        positions._page = page
        return positions

    def __array_finalize__(self, source: NDArray[np.generic] | None) -> None:
        self.reports = ()
        self._page = None

    def page(self, number: int) -> Positions:
        """Return another page of results, with the same shares and the same number of results.

        A page's results are removed before the next page is dealt, so no result is on two pages,
        and none is left out.

        Args:
            number: number of the page, from 1, which is this one.

        Raises:
            InvalidInputError: If the number is not a positive integer, or for slices.

        >>> from vldebias import rerank
        >>> scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
        >>> rerank(scores, 2, labels=["m", "m", "m", "f", "f", "f"]).page(2)
        Positions([1, 4])
        """
        if self._page is None:
            raise InvalidInputError("page: a slice has no pages; expected the result of `rerank`")
        check_count(number, "page")
        return self._page(number)

    @property
    def report(self) -> Report:
        """Return the report for the first query."""
        return self.reports[0]

    def to_check(self, n: int = 30, *, seed: int | None = None) -> list[int | str]:
        """Sample results to check by hand, for the `checked` argument of `rerank` or `search`.

        The sample is drawn at random from the results of all queries, with equal numbers per label
        if possible. Results that were already checked or whose label is unknown are excluded.

        Args:
            n: sample size.
            seed: random seed. If None, every call draws another sample, so that two people who
                check some results do not check the same ones.

        Returns:
            The ids, or the rows if there are no ids. There may be fewer than n.
        """
        label_of_key = {}
        for report in self.reports:
            for row in report.order:
                label = int(report.candidates.codes[row])
                if label != UNKNOWN and report.checked[row] == UNKNOWN:
                    label_of_key[report.keys[row]] = label
        keys_of_label: dict[int, list[int | str]] = {}
        keys = list(label_of_key)
        for place in np.random.default_rng(seed).permutation(len(keys)):
            keys_of_label.setdefault(label_of_key[keys[place]], []).append(keys[place])
        # Alternate between the labels to balance the sample.
        rounds = zip_longest(*keys_of_label.values())
        sample = [key for keys_of_round in rounds for key in keys_of_round if key is not None]
        return [key.item() if isinstance(key, np.generic) else key for key in sample[:n]]


def check_count(number: object, name: str) -> None:
    """Raise an error unless a number is a positive integer.

    Args:
        number: the number.
        name: argument name, for messages.
    """
    if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < 1:
        raise InvalidInputError(f"{name}: expected a whole number of 1 or more, got {number!r}")


def _words(counts: dict[str, int]) -> str:
    """Format counts as "30 male, 20 female"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
