"""Declare the names and the extra of the inspect-ai task."""

from vldebias.programs import Program

PROGRAM = Program(
    names={"record_of_log": "logs", "who_appears": "task"},
    extras={"inspect": "inspect_ai"},
)
