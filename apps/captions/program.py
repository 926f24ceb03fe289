"""Declare the commands and functions that evaluate captions and answers."""

from vldebias.programs import Entry, Program

PROGRAM = Program(
    commands={
        "eval captions": Entry("commands", "captions", ""),
        "eval vqa": Entry("commands", "vqa", ""),
    },
    names={"evaluate_captions": "captions", "study.evaluate_vqa": "answers"},
)
