"""What the tests of the commands share: how they are called."""

from typer.testing import CliRunner

from vldebias.cli import app


def call(*arguments: str, code: int = 0, heard: bool = False) -> str:
    """Stdout of a command, which goes well unless another code is expected; heard: with what it
    says on stderr."""
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout + done.stderr if heard else done.stdout
