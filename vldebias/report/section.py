"""Show sections that programs add to their results, on the page and in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vldebias import programs

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.report.measurements import Measurements


class Section(Protocol):
    """What a program shows for a result instead of tables of measures."""

    def html(self, folder: Path) -> str:
        """Return the section as HTML.

        Args:
            folder: the run's folder, which may contain images.
        """

    def lines(self, room: int, width: int) -> list[str]:
        """Return the section as at most `room` lines of text.

        Args:
            room: the maximum number of lines.
            width: the maximum length of a line.
        """


def section_of(result: Measurements, frame: pd.DataFrame) -> Section | None:
    """Return the section that a program shows for a result, or None.

    Args:
        result: the result to show.
        frame: the data frame that `readable` returns for the result.
    """
    for make_section in programs.hooks("section"):
        section: Section | None = make_section(result, frame)
        if section is not None:
            return section
    return None
