"""Declare the command and the extra of the demo."""

from vldebias.programs import Entry, Program

PROGRAM = Program(
    commands={
        "demo": Entry(
            "commands",
            "demo_command",
            "Open a page that shows images, a search and a classifier before and after debiasing.",
            extras="demo",
        ),
    },
    extras={"demo": "gradio"},
)
