"""Declare the command and the function that diagnose embeddings."""

from vldebias.programs import Entry, Program

PROGRAM = Program(
    commands={
        "diagnose": Entry(
            "commands",
            "diagnose_command",
            "Probe embeddings for attribute leakage, worst-performing groups and label errors.",
            extras="eval",
        ),
    },
    names={"diagnose": "diagnosis"},
)
