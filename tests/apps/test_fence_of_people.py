"""Test that twelve small inputs about people give the same rows and sentences as before."""

import json
from typing import Any

import pytest

from tests.apps.fence_of_people import FILE, described

STORED = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return described()


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize("name", STORED)
def test_rows_and_sentences_are_as_stored(name: str, found: dict[str, Any]) -> None:
    assert json.loads(json.dumps(found[name])) == STORED[name]


def test_all_inputs_are_stored(found: dict[str, Any]) -> None:
    assert list(found) == list(STORED)
