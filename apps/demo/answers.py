"""Store the results of a search and describe them in a sentence, without loading a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vldebias.report.phrases import persons

METHODS = ("default", "cali", "orth-cali")
RERANK = "re-rank"  # re-ranks search results without editing a model
# Without reference images, the default does not change any search, so it is not listed first.
SEARCH_METHODS = ("difference", "cali", "orth-cali", "default", RERANK)


@dataclass(frozen=True)
class Found:
    """Results for one query.

    Attributes:
        rows: rows of the gallery, best first.
        groups: the group of each picture in `rows`.
        first: the first `top` rows, which determine the shares.
        shares: share of each group in these rows.
        skew: MaxSkew of these rows.
    """

    rows: tuple[int, ...]
    groups: tuple[str, ...]
    first: tuple[int, ...]
    shares: dict[str, float]
    skew: float
    top: int

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Found:
        """Return results that were saved as JSON."""
        lists = {name: tuple(facts[name]) for name in ("rows", "groups", "first")}
        return cls(**facts | lists)


@dataclass(frozen=True)
class Answer:
    """Store the results for one query, without and with a method.

    Attributes:
        column: name of the label column used for counting.
        why: why the method has no effect, or "" if it has one.
        stated: words in the query that name a value. If there are any, the query is left unchanged.
        source: source of the pictures and labels, or "" if no citation is needed.
    """

    query: str
    column: str
    before: Found
    after: Found
    why: str = ""
    stated: tuple[str, ...] = ()
    source: str = ""

    @property
    def is_worse(self) -> bool:
        """Return whether the shares are less even than before, at the displayed precision."""
        return round(self.after.skew, 2) > round(self.before.skew, 2)

    def reason(self) -> str:
        """Return why the method does not change the results, or "" if it affects the query."""
        if self.stated:
            words = " and ".join(f"“{word}”" for word in self.stated)
            return (
                f"Left unchanged: the query states the {self.column} ({words}), so both rows are"
                " the same."
            )
        if self.why:
            return f"Both rows are the same because the default attaches nothing. {self.why}"
        return ""

    def sentence(self) -> str:
        """Describe how many of the top results are in each group, before and after."""
        before = self.before
        after = self.after
        shares = ", ".join(
            f"{persons(name)} {share:.0%} → {after.shares[name]:.0%}"
            for name, share in before.shares.items()
        )
        skews = f"MaxSkew@{before.top} {before.skew:.2f} → {after.skew:.2f}"
        kept = len(set(before.first) & set(after.first))
        return (
            f"Of the first {before.top} pictures: {shares}. {skews} (0 is even). {kept} of the"
            f" {before.top} remain."
        )

    def counted(self) -> str:
        """Describe which pictures are shown and how they are counted."""
        shown = len(self.before.rows)
        return (
            f"The first {shown} of {self.before.top} are shown. The word below each picture is its"
            f" label in the column “{self.column}”, which is used for counting."
        )
