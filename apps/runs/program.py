"""Declare `vldebias eval runs`."""

from vldebias.programs import Entry, Program

PROGRAM = Program(commands={"eval runs": Entry("commands", "runs", "")})
