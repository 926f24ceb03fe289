"""Declare the command of the labelling page, which needs the demo's extra, and its task."""

from vldebias.programs import Entry, Program

PROGRAM = Program(
    commands={
        "label": Entry(
            "commands",
            "label_command",
            "Label images by hand, one at a time, blinded, in a different order for each"
            " annotator.",
            extras="demo",
        ),
    },
    tasks={"people": "people"},
)
