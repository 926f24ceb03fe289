"""Declare the commands, names and hooks of the audit."""

from vldebias.programs import Entry, Program

PROGRAM = Program(
    commands={
        "audit": Entry(
            "commands",
            "audit_command",
            "Predict what each prompt's images will show, with intervals, before generating any.",
            extras="clip,eval",
        ),
        "records": Entry(
            "records.commands",
            "app",
            "Record who appears in a model's images, and check, show and predict from such"
            " records.",
        ),
    },
    names={"audit": "advice"},
    hooks={"images judged": "recorded:write_records", "section": "section:section_of"},
)
