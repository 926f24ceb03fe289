"""The `vldebias` command: results on stdout, progress and messages on stderr."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from functools import partial
from typing import Annotated, Any

import typer

import vldebias
from vldebias.cli.common import App, say
from vldebias.cli.lazy import Entry, LazyGroup
from vldebias.errors import StorageError, VldebiasError, VldebiasWarning, missing_extra

__all__ = ["app", "main"]


COMMANDS = {
    "quickstart": Entry(
        "quickstart",
        "quickstart",
        "Measure bias and utility before and after on the embedded photographs and the miniature"
        " world, offline, in under two minutes.",
    ),
    "generate": Entry(
        "generate",
        "generate_command",
        "Generate pictures of a prompt without and with balanced prompts, from the same noise.",
    ),
    "debias": Entry(
        "debias",
        "debias_command",
        "Fit an edit for a model or pipeline and report what it does to the model's own texts.",
    ),
    "methods": Entry(
        "prompts",
        "methods",
        "List the methods that --method takes: what each works on, what it needs, and where it"
        " comes from.",
    ),
    "train": Entry(
        "train",
        "train",
        "Fine-tune an image-text model on captions of which some are wrong.",
    ),
    "losses": Entry(
        "train",
        "losses",
        "List the losses that `vldebias train --loss` takes: what each is for, its settings, what"
        " it reads, and where it comes from.",
    ),
    "audit": Entry(
        "audit",
        "audit_command",
        "Predict each prompt's share before any image is generated, with an interval, from its"
        " text alone.",
    ),
    "diagnose": Entry(
        "audit",
        "diagnose_command",
        "Probe embeddings for attribute leakage, worst-off groups, label errors and margins.",
    ),
    "records": Entry(
        "records",
        "app",
        "Record who appears in a model's images, and check, compare and predict from records.",
    ),
    "rerank": Entry(
        "rerank",
        "rerank_command",
        "Re-rank results that a search returned, so that each group has its share of the first k.",
    ),
    "serve": Entry(
        "serve",
        "serve",
        "Serve image APIs with balanced prompts: a request for n images becomes n requests to the"
        " server that you name, each with a value in its prompt.",
    ),
    "mcp": Entry(
        "mcp",
        "mcp",
        "Offer balance_prompts and audit_prompts to assistants, by the Model Context Protocol.",
    ),
    "demo": Entry(
        "apps",
        "demo_command",
        "Open a page that compares generated images, a search and a classification before and"
        " after.",
    ),
    "label": Entry(
        "apps",
        "label_command",
        "Label images by hand: one at a time, blinded, in a different order for each annotator.",
    ),
    "eval": Entry(
        "evaluate",
        "app",
        "Measure bias and utility before and after, with error bars: vldebias eval SUITE.",
    ),
    "prompts": Entry(
        "prompts",
        "app",
        "Balance prompts; list, show and make prompt sets, which describe a bias.",
    ),
}
"""The commands in the order of `vldebias --help`; each is imported when it is called."""


class Commands(LazyGroup):
    """The commands of `vldebias`."""

    entries = COMMANDS


app = App(
    "Mitigate and measure bias in vision-language models, in closed form, without training or"
    " labels.",
    cls=Commands,
    rich_markup_mode=None,  # what draws boxes takes as long to import as all else together
)


def main() -> None:
    """Run the command; an error that vldebias raises on purpose is one message and exit code 2, no
    traceback."""
    with warnings.catch_warnings():
        # Python shows a warning once for each line of code; two models may need it twice.
        warnings.simplefilter("always", VldebiasWarning)
        show = partial(_show_warning, set())
        setattr(warnings, "showwarning", show)  # noqa: B010  (mypy takes a plain assignment for an error)
        try:
            app()
        except (VldebiasError, OSError) as error:
            if was_interrupted(error):
                say("interrupted")
                raise SystemExit(130) from None
            advice = ""
            is_full = getattr(error, "errno", None) == errno.ENOSPC
            if is_full and not isinstance(error, StorageError):  # which has its own advice
                advice = "; make room, and run the same command again"
            say(f"{error}{advice}", "error", "red")
            _give_up_output()
            raise SystemExit(2) from None
        except ModuleNotFoundError as error:
            # A library that an extra brings; anything else that
            # is missing is a bug, and keeps its traceback.
            named = missing_extra(error)
            if named is None:
                raise
            say(named, "error", "red")
            raise SystemExit(2) from None
        except ImportError as error:
            if not was_interrupted(error):
                raise
            say("interrupted")
            raise SystemExit(130) from None
        except SystemExit as end:  # typer makes a 130 of Ctrl-C, without a word
            if end.code == 130:
                say("interrupted")
            raise


def _give_up_output() -> None:
    """Drop output that cannot be written, as to a full disk: Python would try again at its end, and
    turn the exit code into 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def was_interrupted(error: BaseException) -> bool:
    """Return whether an error comes from Ctrl-C: compiled libraries that are being imported make an
    ImportError of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _show_warning(shown: set[str], message: Any, category: type[Warning], *_: Any) -> None:
    """Show a warning; a file that is checked and then read would repeat its words."""
    if issubclass(category, VldebiasWarning) and str(message) not in shown:
        shown.add(str(message))
        say(message, "warning", "yellow")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(vldebias.__version__)
        raise typer.Exit
