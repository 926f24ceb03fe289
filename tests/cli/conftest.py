"""Provide helpers that call the commands."""

import shlex

from typer.testing import CliRunner

from vldebias.cli import app


def call(line: str, *arguments: str, code: int = 0, with_stderr: bool = False) -> str:
    """Return the stdout of a command, which must succeed unless another exit code is expected. With
    `with_stderr`, also return stderr.

    The line is split as in a shell; arguments that may contain spaces follow it.
    """
    words = [*shlex.split(line), *arguments]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout + done.stderr if with_stderr else done.stdout
