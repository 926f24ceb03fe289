"""Provide helpers that call the commands."""

from typer.testing import CliRunner

from vldebias.cli import app


def call(*arguments: str, code: int = 0, heard: bool = False) -> str:
    """Return the stdout of a command, which must succeed unless another exit code is expected. With
    `heard`, also return stderr."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout + done.stderr if heard else done.stdout
