"""What the documentation takes from elsewhere in the checkout: pictures of committed results and
the commands' help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# page -> its title and the commands whose help it has, with all below them; `commands` has the
# others
COMMANDS = {
    "commands": ("Commands", ()),
    "commands/train": ("Commands: train", ("train",)),
    "commands/audit": (
        "Commands: audit, diagnose, demo, label",
        ("audit", "diagnose", "demo", "label"),
    ),
    "commands/eval": ("Commands: eval", ("eval",)),
}
WIDE = ("methods/", "fine-tuning", "commands")


def on_files(files: Files, config: Any) -> Files:
    """Add `pictures/` (eval/results) and the pages of the commands."""
    for picture in sorted((ROOT / "eval" / "results").glob("*.png")):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    for page, content in _commands().items():
        files.append(File.generated(config, f"{page}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to pictures hold in a checkout; on the site they lie in `pictures/`. Wide tables get
    room."""
    if page.file.src_uri.startswith(WIDE):
        page.meta["hide"] = ["toc"]
    return re.sub(
        r"\]\((\.\./)+eval/results/",
        lambda m: "](" + m[0][2:].replace("../eval/results/", "", 1) + "pictures/",
        markdown,
    )


def on_page_content(html: str, **_: Any) -> str:
    """Replace formulas with MathML, which browsers render without a script or a network."""
    from latex2mathml.converter import convert

    def mathml(formula: re.Match[str]) -> str:
        display = "block" if formula["open"] == "[" else "inline"
        return convert(unescape(formula["latex"]).strip(), display=display)

    return re.sub(
        r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>',
        mathml,
        html,
        flags=re.DOTALL,
    )


def _commands() -> dict[str, str]:
    """Page -> `--help` of its commands, as a terminal of 100 columns shows it."""
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
