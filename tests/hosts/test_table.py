"""Embeddings that someone else has made, as a host: what they have to be, and what cannot be done with them."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import vldebias
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts import TextTable
from vldebias.prompts import PromptSet


def test_rows_of_any_kind_are_kept_as_directions() -> None:
    table = TextTable({"a": torch.tensor([3.0, 4.0]), "b": np.array([0.0, -2.0]), "c": [5, 12]}, model_id="theirs")
    found = table.embed(["c", "a", "b", "a"], "joint")
    expected = torch.tensor([[5 / 13, 12 / 13], [0.6, 0.8], [0.0, -1.0], [0.6, 0.8]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    assert (table.dim("joint"), table.space("joint"), table.fingerprint(), table.model_id) == (
        2,
        "table.joint",
        None,
        "theirs",
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "expected rows"),
        ({"a": [1.0, 0.0], "b": [1.0]}, r"expected rows \(d,\) of one width, got \[\(1,\), \(2,\)\]"),
        ({"a": [[1.0, 0.0], [1.0, 0.0]]}, r"of one width, got \[\(2, 2\)\]"),
        ({"a": 1.0}, r"of one width, got \[\(\)\]"),
        ({"a": [1.0], "b": [0.0], "c": [math.nan]}, r"2 rows are zero or not finite, such as \['b', 'c'\]"),
    ],
)
def test_other_rows_are_refused(rows: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        TextTable(rows)


def test_prompts_that_are_missing_are_counted_and_named() -> None:
    table = TextTable({"a": [1.0, 0.0]})
    with pytest.raises(
        InvalidInputError, match=r"5 of 6 prompts are not in the file, such as \['b', 'c', 'd'\]; store"
    ):
        table.embed(list("abcdef"), "joint")


def test_nothing_can_be_attached(gender: PromptSet) -> None:
    texts = [text for pair in gender.groups for text in pair] + list(gender.spurious)
    table = TextTable({text: torch.randn(4) for text in texts})
    with pytest.raises(UnsupportedHostError, match=r"table of text embeddings: .* needs the model itself"):
        vldebias.debias(table, gender, method="cali")
