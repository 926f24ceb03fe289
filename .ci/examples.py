"""For the documentation: doctests at the end of a docstring are a section of examples."""

from __future__ import annotations

import textwrap
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Puts a heading before them, which Google's style asks for and a reader of the source can do
    without."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        docstring = obj.docstring
        if docstring is None or ">>> " not in docstring.value or "Examples:" in docstring.value:
            return
        before, mark, after = docstring.value.partition("\n>>> ")
        if not mark:
            return
        # Example first: directly after the summary.
        paragraphs = before.split("\n\n")
        end = 1
        while end < len(paragraphs) and paragraphs[end - 1].rstrip().endswith(":"):
            end += 1  # a list belongs to the sentence before it
        summary = "\n\n".join(paragraphs[:end])
        rest = "\n\n".join(paragraphs[end:])
        example = textwrap.indent(mark.lstrip("\n") + after, "    ")
        docstring.value = f"{summary}\n\nExamples:\n{example}\n\n{rest}"
