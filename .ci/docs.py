"""Provide documentation pages from elsewhere in the checkout: pictures of committed results and the
commands' help."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from examples import linked, split_docstring

REFERENCES = ("reference.md", "reference-measuring.md")
"""Pages that list public objects as `::: PATH`; each object gets a page of its own."""
REFERENCE = re.compile(r"^::: (?P<path>[\w.]+)\n(?P<options>(?: +.*\n)*)", re.MULTILINE)

ROOT = Path(__file__).parents[1]
# page -> its title and the commands whose help it contains, including subcommands; `commands` has
# the others
COMMANDS = {
    "commands": ("Commands", ()),
    "commands/train": ("Commands: train, losses", ("train", "losses")),
    "commands/audit": (
        "Commands: audit, diagnose, demo, label",
        ("audit", "diagnose", "demo", "label"),
    ),
    "commands/eval": ("Commands: eval", ("eval",)),
    "commands/records": ("Commands: records", ("records",)),
}
WIDE = ("methods/", "fine-tuning", "commands")


def on_files(files: Files, config: Any) -> Files:
    """Add `pictures/` (eval/results) and the pages of the commands."""
    for picture in sorted((ROOT / "eval" / "results").glob("*.png")):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    for protocol in sorted((ROOT / "prompts" / "protocol").glob("*.yaml")):
        place = f"protocol/{protocol.name}"
        files.append(File.generated(config, place, abs_src_path=str(protocol)))
    for page, content in _commands().items():
        files.append(File.generated(config, f"{page}.md", content=content))
    for name in REFERENCES:
        listed = (ROOT / "docs" / name).read_text(encoding="utf-8")
        for match in REFERENCE.finditer(listed):
            for path in _objects(match):
                page = _page_of(path)
                files.append(File.generated(config, page, content=_reference_page(path)))
    return files


def _objects(match: re.Match[str]) -> list[str]:
    """Return the objects that a `:::` block documents: the object itself, or the members it
    lists."""
    members = re.search(r"members: \[(.*)\]", match["options"])
    if members is None:
        return [match["path"]]
    return [f"{match['path']}.{name.strip()}" for name in members[1].split(",")]


def _page_of(path: str) -> str:
    """Return the page of a public object."""
    return f"reference/{path.rpartition('.')[2]}.md"


def _docstring_of(path: str) -> str:
    """Return the docstring of a public object."""
    module, _, name = path.rpartition(".")
    return inspect.getdoc(getattr(import_module(module), name)) or ""


def _reference_page(path: str) -> str:
    """Return the page of a public object: how to import it, its summary, examples and signature."""
    module, _, name = path.rpartition(".")
    # Programs define objects that users import from the package or from `vldebias.study`.
    for public in ("vldebias.study", "vldebias"):
        if name in import_module(public).__all__:
            module = public
    page = ""
    if name == "debias":  # searching for it finds all names that contain it
        page += "---\nsearch:\n  boost: 8\n---\n\n"
    parts = split_docstring(_docstring_of(path))
    page += f"# {name}\n\n```python\nfrom {module} import {name}\n```\n\n"
    page += f"{linked(parts.summary)}\n"
    if parts.examples:
        examples = re.sub(r" *# doctest: .*", "", parts.examples.strip())
        page += f"\n```pycon\n{examples}\n```\n"
    options = "    options:\n      heading: Signature\n      toc_label: Signature\n"
    return f"{page}\n::: {path}\n{options}"


def _linked(match: re.Match[str]) -> str:
    """Return a table row for each object of a `:::` block: a link, and its first sentence."""
    rows = []
    for path in _objects(match):
        name = path.rpartition(".")[2]
        first_paragraph = " ".join(_docstring_of(path).split("\n\n")[0].split())
        sentence = re.split(r"(?<=[.:;]) ", first_paragraph)[0].rstrip(":;")
        rows.append(f"| [`{name}`]({_page_of(path)}) | {sentence.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fix links to pictures, which are in `pictures/` on the site, and give wide tables more
    room."""
    if page.file.src_uri.startswith(WIDE):
        page.meta["hide"] = ["toc"]
    if page.file.src_uri in REFERENCES:
        markdown = re.sub(
            r"(?:^:::.*\n(?:(?: +.*)?\n)*)+",
            lambda block: (
                "| object | purpose |\n| --- | --- |\n"
                + REFERENCE.sub(_linked, block[0].replace("\n\n", "\n"))
                + "\n"
            ),
            markdown,
            flags=re.MULTILINE,
        )
    # On the site, the prompts of the protocol are in `protocol/`.
    markdown = markdown.replace("](../../prompts/protocol/", "](../protocol/")
    return re.sub(
        r"\]\((\.\./)+eval/results/",
        lambda m: "](" + m[0][2:].replace("../eval/results/", "", 1) + "pictures/",
        markdown,
    )


def on_page_content(html: str, **_: Any) -> str:
    """Replace formulas with MathML, which browsers render without a script or a network."""
    from latex2mathml.converter import convert

    def mathml(formula: re.Match[str]) -> str:
        latex = unescape(formula["latex"]).strip()
        if formula["open"] == "(":
            return convert(latex, display="inline")
        # On a phone, a wide formula scrolls inside its box instead of widening the page.
        return f'<div class="formula">{convert(latex, display="block")}</div>'

    return re.sub(
        r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>',
        mathml,
        html,
        flags=re.DOTALL,
    )


def _commands() -> dict[str, str]:
    """Return page -> `--help` of its commands, as shown by a terminal of 100 columns."""
    import typer

    from vldebias.cli import app

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, one in getattr(command, "commands", {}).items():
            yield from walk(one, (*words, name))

    parts = {page: [f"# {title}\n"] for page, (title, _) in COMMANDS.items()}
    plain = os.environ | {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    for words in walk(typer.main.get_command(app), ()):
        asked = subprocess.run(
            [sys.executable, "-m", "vldebias", *words, "--help"],
            env=plain,
            capture_output=True,
            text=True,
            check=True,
        )
        name = " ".join(words)
        of = {
            first: page
            for page, (_, own) in COMMANDS.items()
            for first in own
            if f"{name} ".startswith(f"{first} ")
        }
        page = of[max(of, key=len)] if of else "commands"
        parts[page].append(f"## vldebias {name}\n\n```text\n{asked.stdout.strip()}\n```\n")
    return {page: "\n".join(found) for page, found in parts.items()}
