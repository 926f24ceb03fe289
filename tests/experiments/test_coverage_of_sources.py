"""Test the coverage table for the source papers: every row that is marked as implemented names
something that exists."""

import importlib
import re
from itertools import chain
from pathlib import Path

import pytest
import typer

from eval.pages.sources import (
    ALGEBRA,
    OURS,
    PAPERS,
    STATES,
    covered,
    headlines,
    kind_of,
    row_of,
)
from vldebias.cli import app
from vldebias.errors import InvalidInputError
from vldebias.study.suite import load_suite

ROOT = Path(__file__).parents[2]
ROWS = [pytest.param(row, id=f"{row['source']} {row['what']}") for row in covered()]


def is_suite(name: str) -> bool:
    """Return whether a suite is packaged."""
    try:
        load_suite(name)
    except InvalidInputError:
        return False
    return True


def is_command(words: list[str]) -> bool:
    """Return whether the command line has a command with these options, or `eval` has this
    suite."""
    command = typer.main.get_command(app)
    for place, word in enumerate(words):
        if word.startswith("--"):
            return any(word in parameter.opts for parameter in command.params)
        commands = getattr(command, "commands", {})
        if word not in commands:
            return words[place - 1] == "eval" and is_suite(word)
        command = commands[word]
    return True


def is_test(path: str, name: str) -> bool:
    """Return whether a test file contains a test with this name."""
    file = ROOT / path
    pattern = rf"^ *def {re.escape(name)}\("
    return file.is_file() and bool(re.search(pattern, file.read_text("utf-8"), re.MULTILINE))


def is_importable(name: str) -> bool:
    """Return whether a dotted name is an attribute of a module."""
    module, _, attribute = name.rpartition(".")
    return hasattr(importlib.import_module(module), attribute)


def exists(proof: str) -> bool:
    """Return whether a command, a test, a file or a Python name exists."""
    if proof.startswith("vldebias "):
        return is_command(proof.split()[1:])
    if "::" in proof:
        return is_test(*proof.split("::"))
    if "/" in proof:
        return (ROOT / proof).is_file()
    return is_importable(proof)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_names_an_existing_proof_or_a_reason(row: dict[str, str]) -> None:
    assert row["source"] in PAPERS
    assert row["state"] in STATES
    assert row["what"]
    assert row["where"]
    if row["state"] == "works":
        assert row["reason"] in {"", ALGEBRA, OURS}
        assert kind_of(row["proof"]) in {"a test", "a function", "a command", "packaged prompts"}
    elif row["state"] == "experiment":
        assert kind_of(row["proof"]) == "a run"
    else:
        assert row["reason"]
    if row["state"] == "absent":
        assert not row["proof"]
    else:
        assert exists(row["proof"]), row["proof"]


def test_no_row_is_listed_twice() -> None:
    keys = [(row["source"], row["what"]) for row in covered()]
    assert len(keys) == len(set(keys))


def test_every_headline_names_one_committed_row_or_a_reason() -> None:
    for entry in chain(*headlines().values()):
        assert entry["why"]
        place = entry.get("ours", {})
        for method in {place.get("method"), place.get("base")} - {None}:
            row_of(place, method)
    with pytest.raises(ValueError, match="expected one row for"):
        row_of({"file": "popularity", "task": "popularity", "metric": "none"}, "NUCLR")
