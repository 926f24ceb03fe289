"""For the pages of public objects: examples first, links to pages, and inherited docstrings."""

from __future__ import annotations

import re
import textwrap
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import griffe

DOCS = Path(__file__).parents[1] / "docs"
PAGE = re.compile(r"\bdocs/(?P<page>[\w/-]+)\.md")


class Docstring(NamedTuple):
    """Store the parts of a docstring: its summary, its doctests, and the rest."""

    summary: str
    examples: str
    rest: str


def split_docstring(text: str) -> Docstring:
    """Return the parts of a docstring whose doctests, if any, are at its end."""
    before, mark, after = text.partition("\n>>> ")
    paragraphs = before.strip().split("\n\n")
    end = 1
    while end < len(paragraphs) and paragraphs[end - 1].rstrip().endswith(":"):
        end += 1  # a list belongs to the preceding sentence
    summary = "\n\n".join(paragraphs[:end])
    rest = "\n\n".join(paragraphs[end:])
    return Docstring(summary, mark.lstrip("\n") + after if mark else "", rest)


def linked(text: str) -> str:
    """Return a text for a page below `reference/` with links instead of paths of pages."""

    def link(match: re.Match[str]) -> str:
        title = (DOCS / f"{match['page']}.md").read_text(encoding="utf-8")
        heading = re.search(r"^# (.*)$", title, re.MULTILINE)
        return f"[{heading[1] if heading else match['page']}](../{match['page']}.md)"

    return PAGE.sub(link, text)


def inherit_docstrings(owner: griffe.Module | griffe.Class) -> None:
    """Give members of all classes that have no docstring the one of the base class."""
    for name, member in owner.members.items():
        if isinstance(member, griffe.Alias):  # imported, and visited where it is defined
            continue
        if isinstance(member, griffe.Module | griffe.Class):
            inherit_docstrings(member)
        if not isinstance(owner, griffe.Class) or member.docstring is not None:
            continue
        for base in owner.mro():
            inherited = base.members.get(name)
            if inherited is not None and inherited.docstring is not None:
                member.docstring = copy(inherited.docstring)  # with its style of sections
                member.docstring.parent = member
                break


class Examples(griffe.Extension):
    """Move doctests to the front, and remove what the page of an object already shows.

    Members without a docstring get the one that they inherit, without which they are not shown.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Fill in the inherited docstrings once all classes are loaded."""
        inherit_docstrings(pkg)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        docstring = obj.docstring
        if docstring is None:
            return
        parts = split_docstring(docstring.value)
        if obj.is_attribute:
            docstring.value = linked(docstring.value)
        elif obj.parent is not None and obj.parent.is_module:
            # The page already starts with summary and examples.
            docstring.value = linked(parts.rest)
        elif parts.examples and "Examples:" not in docstring.value:
            examples = textwrap.indent(parts.examples, "    ")
            docstring.value = f"{parts.summary}\n\nExamples:\n{examples}\n\n{parts.rest}"
