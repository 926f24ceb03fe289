"""The `vldebias` command: results on stdout, progress and messages on stderr."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer

import vldebias
from vldebias.cli import apps, evaluate, prompts
from vldebias.cli.audit import audit_command, diagnose_command
from vldebias.cli.common import App, say
from vldebias.cli.debias import debias_command
from vldebias.cli.generate import generate_command
from vldebias.cli.quickstart import quickstart
from vldebias.cli.serve import serve
from vldebias.cli.train import train
from vldebias.errors import VldebiasError, VldebiasWarning, missing_extra

__all__ = ["app", "main"]

app = App(
    "Mitigate and measure bias in vision-language models, in closed form, without training or"
    " labels."
)
app.command()(quickstart)
app.command("generate")(generate_command)
app.command("debias")(debias_command)
app.command()(prompts.methods)
app.command("train")(train)
app.command("audit")(audit_command)
app.command("diagnose")(diagnose_command)
app.command("serve")(serve)
app.command("demo")(apps.demo_command)
app.command("label")(apps.label_command)
app.add_typer(evaluate.app, name="eval")
app.add_typer(prompts.app, name="prompts")


def main() -> None:
    """Run the command; an error that vldebias raises on purpose is one message and exit code 2, no
    traceback."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", VldebiasWarning)
        setattr(warnings, "showwarning", _show_warning)  # noqa: B010  (mypy takes a plain assignment for an error)
        try:
            app()
        except (VldebiasError, OSError) as error:
            say(error, "error", "red")
            raise SystemExit(2) from None
        except ModuleNotFoundError as error:
            named = missing_extra(error)
            if named is None:
                raise
            say(named, "error", "red")
            raise SystemExit(2) from None
        except SystemExit as end:  # typer makes a 130 of Ctrl-C, without a word
            if end.code == 130:
                say("interrupted")
            raise


def _show_warning(message: Any, category: type[Warning], *_: Any) -> None:
    if issubclass(category, VldebiasWarning):
        say(message, "warning", "yellow")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(vldebias.__version__)
        raise typer.Exit
