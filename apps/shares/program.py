"""Declare the command and the task that compute shares from labels of images."""

from vldebias.programs import Entry, Program

PROGRAM = Program(
    commands={"eval shares": Entry("commands", "shares", "")},
    names={"study.SharesTask": "task"},
    tasks={"shares": "task"},
    hooks={"answers": "answers:labels_of_folder"},
)
