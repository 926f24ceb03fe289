"""Store the results of a search and describe them in a sentence, without loading a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vldebias.utils.phrases import counted, listed_words, person

METHODS = ("default", "cali", "orth-cali")
# The default edits no search, because re-ranking is recommended. The first method is preselected.
SEARCH_METHODS = ("difference", "cali", "orth-cali")
ROWS = ("As found", "Edited", "Re-ranked")


@dataclass(frozen=True)
class Found:
    """Results for one query.

    Attributes:
        rows: rows of the gallery, best first.
        groups: the group of each image in `rows`.
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
    """Store the results for one query: as found, with the query edited, and re-ranked.

    Attributes:
        column: name of the label column used for counting.
        edited: results for the query as edited by a method.
        reranked: results for the unedited query, re-ranked by the groups that the model predicts.
        stated: words in the query that name a value. If there are any, nothing is changed.
        source: source of the images and labels, or "" if no citation is needed.
    """

    query: str
    column: str
    before: Found
    edited: Found
    reranked: Found
    stated: tuple[str, ...] = ()
    source: str = ""

    @property
    def rows(self) -> tuple[Found, Found, Found]:
        """Return the results of the three rows."""
        return self.before, self.edited, self.reranked

    def gain(self, found: Found) -> float:
        """Return how much more even the shares are than as found, at the displayed precision."""
        return round(self.before.skew, 2) - round(found.skew, 2)

    def kept(self, found: Found) -> int:
        """Return how many of the first images as found remain among the first."""
        return len(set(self.before.first) & set(found.first))

    def movement(self, found: Found, row: int) -> str:
        """Describe where a shown image was as found, such as " (was 5)" or " (new)"."""
        if row not in self.before.rows:
            return " (new)"
        was = self.before.rows.index(row)
        return "" if was == found.rows.index(row) else f" (was {was + 1})"

    def left(self, found: Found) -> dict[int, str]:
        """Return the images shown as found that are not shown in a row: row -> "2. man"."""
        before = zip(self.before.rows, self.before.groups, strict=True)
        gone = {}
        for place, (row, group) in enumerate(before, start=1):
            if row not in found.rows:
                gone[row] = f"{place}. {person(group)}"
        return gone

    def left_in_words(self, found: Found) -> str:
        """Describe the images that are no longer shown in a row, by their ranks as found."""
        gone = list(self.left(found).values())
        if not gone:
            return ""
        return f"No longer in the first {len(found.rows)}: {listed_words(gone)}, ranked as found."

    def reason(self) -> str:
        """Return why the query is not edited, or "" if it is."""
        if self.stated:
            words = " and ".join(f"“{word}”" for word in self.stated)
            return (
                f"Left unchanged: the query states the {self.column} ({words}), so all rows are the"
                " same."
            )
        return ""

    def summary(self) -> list[tuple[str, str, str, str]]:
        """Return a line for each row: its name, the groups, MaxSkew, and the results it keeps."""
        cells = []
        for name, found in zip(ROWS, self.rows, strict=True):
            shares = found.shares.items()
            counts = [counted(round(share * found.top), value) for value, share in shares]
            kept = f"{self.kept(found)} of {found.top}"
            cells.append((name, ", ".join(counts), f"{found.skew:.2f}", kept))
        return cells

    def counted(self) -> str:
        """Describe which images are shown and how they are counted."""
        shown = len(self.before.rows)
        return (
            f"The first {shown} of {self.before.top} are shown, with their ranks now and, if they"
            f" moved, as found. The word below each image is its label in the column"
            f" “{self.column}”, which is used for counting. MaxSkew is 0 if the"
            " groups are even."
        )
