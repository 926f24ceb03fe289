"""Name a split of a data set in a suite."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from vldebias.utils.schema import Strict


class Data(Strict):
    """A data set split that a suite uses.

    Attributes:
        name: data set name, as listed by `vldebias eval data`, or packaged data: "birds",
            "portraits" or "photographs".
        split: name of the split.
        options: options for the data set reader.
        root: folder that contains the data set. Default: --data-root.
    """

    name: str
    split: str = "test"
    options: dict[str, object] = Field(default_factory=dict)
    root: Path | None = None
