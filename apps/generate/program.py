"""Declare the command that generates images with and without a method."""

from vldebias.programs import Entry, Program

PROGRAM = Program(
    commands={
        "generate": Entry(
            "commands",
            "generate_command",
            "Generate images for a prompt with and without balanced prompts, from the same noise.",
            extras="diffusers,eval",
        ),
    },
)
