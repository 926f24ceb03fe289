"""Declare the command and the extra of the server for assistants."""

from vldebias.programs import Entry, Program

PROGRAM = Program(
    commands={
        "mcp": Entry(
            "commands",
            "mcp",
            "Offer balance_prompts and audit_prompts to assistants over the Model Context"
            " Protocol.",
        ),
    },
    extras={"mcp": "mcp"},
)
