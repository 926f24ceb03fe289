"""What the documentation takes from elsewhere in the checkout: pictures of committed results and the commands' help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> Files:
    """Add `pictures/` (eval/results) and the page of the commands."""
    for picture in sorted((ROOT / "eval" / "results").glob("*.png")):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    files.append(File.generated(config, "commands.md", content=_commands()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to pictures are those that hold in a checkout; on the site they lie in `pictures/`."""
    return re.sub(
        r"\]\((\.\./)+eval/results/",
        lambda m: "](" + m[0][2:].replace("../eval/results/", "", 1) + "pictures/",
        markdown,
    )


def _commands() -> str:
    """`--help` of every command, as a terminal of 100 columns shows it."""
    import typer

    from vldebias.cli import app

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, one in getattr(command, "commands", {}).items():
            yield from walk(one, (*words, name))

    parts = ["# Commands\n"]
    plain = os.environ | {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    for words in walk(typer.main.get_command(app), ()):
        asked = subprocess.run(
            [sys.executable, "-m", "vldebias", *words, "--help"], env=plain, capture_output=True, text=True, check=True
        )
        parts.append(f"## vldebias {' '.join(words)}\n\n```text\n{asked.stdout.strip()}\n```\n")
    return "\n".join(parts)
