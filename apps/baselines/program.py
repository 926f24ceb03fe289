"""Declare the supervised baselines."""

from vldebias.programs import Program

PROGRAM = Program(hooks={"baselines": "classifiers:baselines"})
