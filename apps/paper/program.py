"""Declare `vldebias eval paper`."""

from vldebias.programs import Entry, Program

PROGRAM = Program(commands={"eval paper": Entry("commands", "paper", "")})
