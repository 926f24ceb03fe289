"""Store the results of a search and describe them in a sentence, without loading a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vldebias.utils.phrases import counted, listed_words, person

METHODS = ("default", "cali", "orth-cali")
# The default edits no search, because re-ranking is recommended. The first method is preselected.
SEARCH_METHODS = ("difference", "cali", "orth-cali")
ROWS = ("As found", "Re-ranked", "Edited")


@dataclass(frozen=True)
class Found:
    """Results for one query.

    Attributes:
        rows: rows of the gallery, best first. All of them are shown and counted.
        groups: the group of each image in `rows`.
        counts: number of images in `rows` by group.
        skew: MaxSkew of these rows.
    """

    rows: tuple[int, ...]
    groups: tuple[str, ...]
    counts: dict[str, int]
    skew: float

    @property
    def top(self) -> int:
        """Return how many results are shown and counted."""
        return len(self.rows)

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Found:
        """Return results that were saved as JSON."""
        return cls(**facts | {name: tuple(facts[name]) for name in ("rows", "groups")})


@dataclass(frozen=True)
class Answer:
    """Store the results for one query: as found, re-ranked, and maybe with the query edited.

    Attributes:
        column: name of the label column used for counting.
        reranked: results for the unedited query, re-ranked by the groups that the model predicts.
        edited: results for the query as edited by a method, or None.
        stated: words in the query that name a value. If there are any, nothing is changed.
        source: source of the images and labels, or "" if no citation is needed.
        left_out: number of near-duplicates that would be among the first results as found.
    """

    query: str
    column: str
    before: Found
    reranked: Found
    edited: Found | None = None
    stated: tuple[str, ...] = ()
    source: str = ""
    left_out: int = 0

    @property
    def rows(self) -> tuple[Found, ...]:
        """Return the results of the two or three rows."""
        rows = (self.before, self.reranked)
        return rows if self.edited is None else (*rows, self.edited)

    def gain(self, found: Found) -> float:
        """Return how much more even the shares are than as found, at the displayed precision."""
        return round(self.before.skew, 2) - round(found.skew, 2)

    def kept(self, found: Found) -> int:
        """Return how many of the first images as found remain among the first."""
        return len(set(self.before.rows) & set(found.rows))

    def movement(self, found: Found, row: int) -> str:
        """Describe where a shown image was as found, such as " (was 5)" or " (new)"."""
        if row not in self.before.rows:
            return " (new)"
        was = self.before.rows.index(row)
        # The no-break space keeps the words in parentheses on one line.
        return "" if was == found.rows.index(row) else f" (was\N{NO-BREAK SPACE}{was + 1})"

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

    def summary(self) -> list[tuple[str, str, str]]:
        """Return a line for each row: its name, the counts, and the results it keeps."""
        cells = []
        for name, found in zip(ROWS, self.rows, strict=False):
            counts = [counted(count, value) for value, count in found.counts.items()]
            cells.append((name, ", ".join(counts), f"{self.kept(found)} of {found.top}"))
        return cells

    def near_duplicates(self) -> str:
        """Return a sentence on the near-duplicates that are left out, or "" if there are none."""
        if not self.left_out:
            return ""
        shots = "near-duplicate shot" if self.left_out == 1 else "near-duplicate shots"
        return f"Left out: {self.left_out} {shots} of scenes that are shown."

    def counted(self) -> str:
        """Describe which images are shown and how they are counted."""
        return (
            f"The {self.before.top} images that are shown are counted. Below each image are its"
            " rank now, its rank as found if it moved, and its label in the column"
            f" “{self.column}”, which is used for counting; images without one are left out."
        )
