"""Declare the commands, names and hooks of the audit."""

from vldebias.programs import Entry, Program

PROGRAM = Program(
    commands={
        "audit": Entry(
            "commands",
            "audit_command",
            "Show who appears in images of each prompt's subject, counted, with intervals.",
            extras="clip,eval",
        ),
        "records": Entry(
            "records.commands",
            "app",
            "Record who appears in a model's images, and check and show such records.",
        ),
    },
    names={"audit": "advice"},
    hooks={"images judged": "recorded:write_records", "section": "section:section_of"},
)
