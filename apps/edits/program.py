"""Declare the command and the function that evaluate edited images."""

from vldebias.programs import Entry, Program

PROGRAM = Program(
    commands={"eval edits": Entry("commands", "edits", "")},
    names={"study.evaluate_edits": "edits"},
)
