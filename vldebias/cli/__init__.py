"""Define the `vldebias` command: results on stdout, progress and messages on stderr."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from functools import partial
from typing import Annotated, ClassVar

import typer

import vldebias
from vldebias import programs
from vldebias.cli.common import App, print_message
from vldebias.cli.lazy import LazyGroup
from vldebias.errors import VldebiasError, VldebiasWarning, missing_extra
from vldebias.programs import Entry

__all__ = ["app", "main"]


COMMANDS = {
    "quickstart": Entry(
        "vldebias.cli.quickstart",
        "quickstart",
        "Measure bias and utility before and after debiasing, offline and in a few minutes.",
        extras="clip,diffusers,eval",
    ),
    "debias": Entry(
        "vldebias.cli.debias",
        "debias_command",
        "Fit an edit for a model or pipeline, and report its effect on text embeddings.",
        extras="clip",
    ),
    "methods": Entry(
        "vldebias.cli.prompts",
        "methods",
        "List the methods, with the models they work on, their requirements and their sources.",
    ),
    "train": Entry(
        "vldebias.cli.train",
        "train",
        "Fine-tune an image-text model on captions, some of which may be wrong.",
        extras="train",
    ),
    "losses": Entry(
        "vldebias.cli.train",
        "losses",
        "List the losses for `vldebias train`, with their purpose, settings, inputs and sources.",
    ),
    "rerank": Entry(
        "vldebias.cli.rerank",
        "rerank_command",
        "Re-rank search results to the groups' shares among all results.",
        extras="torch",
    ),
    "eval": Entry(
        "vldebias.cli.evaluate",
        "app",
        "Measure bias and utility before and after debiasing, with error bars.",
        extras="eval",
    ),
    "prompts": Entry(
        "vldebias.cli.prompts",
        "app",
        "Balance prompts, make captions neutral, and list, show and create prompt sets.",
    ),
}
"""The commands of the library. `vldebias --help` shows them in this order, followed by those of the
programs. Each is imported when it is called."""


class Commands(LazyGroup):
    """The group of all `vldebias` commands."""

    entries: ClassVar = {**COMMANDS, **programs.commands()}


app = App(
    """
    Balance who appears in the images of diffusion models and in search results, remove bias
    directions from CLIP in closed form, fine-tune CLIP on noisy captions, and measure gains and
    costs with confidence intervals.

    Examples:
      vldebias quickstart
      vldebias generate "A photo of a doctor." --attribute gender
      vldebias debias --help
    """,
    cls=Commands,
)


def main() -> None:
    """Run the command line, printing expected errors without a traceback (exit code 2)."""
    with warnings.catch_warnings():
        # By default, Python shows a warning only once per line of code, even if it applies to
        # several models.
        warnings.simplefilter("always", VldebiasWarning)
        show = partial(_show_warning, set())
        setattr(warnings, "showwarning", show)  # noqa: B010  (mypy rejects a plain assignment)
        try:
            app()
        except (VldebiasError, OSError, ImportError) as error:
            if was_interrupted(error):
                print_message("interrupted")
                raise SystemExit(130) from None
            message = str(error)
            if not isinstance(error, VldebiasError | OSError):
                # If the module belongs to an optional extra, explain how to install it. Any other
                # failed import is a bug and needs a traceback.
                advice = missing_extra(error) if isinstance(error, ModuleNotFoundError) else None
                if advice is None:
                    raise
                message = str(advice)
            # The message of a StorageError, which is a VldebiasError, already contains this advice.
            elif not isinstance(error, VldebiasError) and error.errno == errno.ENOSPC:
                message += "; free some space and run the same command again"
            print_message(message, "error", "red")
            _discard_output()
            raise SystemExit(2) from None
        except SystemExit as end:  # on Ctrl-C, Typer exits with code 130 without a message
            if end.code == 130:
                print_message("interrupted")
            raise


def _discard_output() -> None:
    """Discard pending output that cannot be written, for example because the disk is full.

    Otherwise, Python would try to flush it again at exit and change the exit code to 120.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def was_interrupted(error: BaseException) -> bool:
    """Return whether an error was caused by Ctrl-C.

    If a compiled library is interrupted during its import, it raises an ImportError instead of a
    KeyboardInterrupt.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _show_warning(
    shown: set[str], message: Warning | str, category: type[Warning], *_: object
) -> None:
    """Show a warning unless its message was shown before, since files may be read twice."""
    if issubclass(category, VldebiasWarning) and str(message) not in shown:
        shown.add(str(message))
        print_message(message, "warning", "yellow")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(vldebias.__version__)
        raise typer.Exit
