"""`vldebias demo` and `vldebias label`: the pages in apps/, which know their own options."""

from __future__ import annotations

import typer

from vldebias.errors import InvalidInputError
from vldebias.resources import load_app

__all__ = ["PASSED_ON", "demo", "label"]

# Everything after the name of the command, --help included, goes to the page's own parser.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def demo(context: typer.Context) -> None:
    """Open a page that compares generations, inspects, retrieves and exports; offline on the embedded models."""
    _run("compare", context.args)


def label(context: typer.Context) -> None:
    """Open a page on which people label generated images, blinded and shuffled; every answer is kept at once."""
    _run("label", context.args)


def _run(name: str, arguments: list[str]) -> None:
    try:
        load_app(name).main(arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "gradio":
            raise
        raise InvalidInputError(
            "this page needs Gradio, which is not installed: pip install 'vldebias[demo]'"
        ) from error
