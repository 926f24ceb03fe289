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
        if mark:
            docstring.value = (
                before + "\nExamples:\n" + textwrap.indent(mark.lstrip("\n") + after, "    ")
            )
