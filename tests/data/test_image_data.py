"""ImageData: rows, checks, and a fingerprint that is worked out when asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from data_folders import picture

from tests.refusals import refused
from vldebias.data import ImageData, Labels
from vldebias.errors import InvalidInputError


def make(**changes: Any) -> ImageData:
    fields: dict[str, Any] = {
        "name": "tiny",
        "split": "test",
        "ids": ("a", "b", "c"),
        "read": picture,
        "labels": {"label": Labels.of(["x", "y", None])},
        "fingerprint": "f",
        "captions": ("A", "B", "C"),
    }
    return ImageData(**fields | changes)


def test_rows_keep_what_belongs_together() -> None:
    data = make()
    some = data[[2, 0]]
    assert (some.ids, some.captions, len(some)) == (("c", "a"), ("C", "A"), 2)
    assert some.column("label").codes.tolist() == [-1, 0]
    assert some.read(0) == picture(2)
    assert some[np.array([False, True])].read(0) == picture(0)
    assert data[1:].ids == ("b", "c")


def test_rows_have_a_fingerprint_of_their_own() -> None:
    data = make()
    found = {data.fingerprint, data[[0, 1]].fingerprint, data[[1, 0]].fingerprint, data[[0]].fingerprint}
    assert len(found) == 4
    assert data[[0, 1]].fingerprint == make()[:2].fingerprint


def test_a_fingerprint_is_worked_out_once_and_only_if_asked() -> None:
    calls = []

    def slow() -> str:
        calls.append(1)
        return "worked out"

    data = make(fingerprint=slow)
    rows, text = data[[0]], repr(data)
    assert calls == []
    assert [data.fingerprint, data.fingerprint, len(calls)] == ["worked out", "worked out", 1]
    assert rows.fingerprint == make(fingerprint="worked out")[[0]].fingerprint
    assert len(calls) == 1
    assert text == "ImageData(tiny test, 3 images, columns ['label'], captions)"


def test_a_copy_with_other_labels_has_the_same_fingerprint() -> None:
    assert dataclasses.replace(make(), labels={}).fingerprint == "f"


def test_a_fingerprint_is_needed_and_stays() -> None:
    with pytest.raises(TypeError, match="fingerprint"):
        ImageData(name="a", split="b", ids=(), read=picture, labels={})
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().fingerprint = "other"  # type: ignore[misc]


@refused(
    ({"ids": ("a", "b", "a")}, "tiny: 1 ids are there more than once"),
    ({"labels": {"label": Labels.of(["x"])}}, r"expected 3 rows in every column, got \{'label': 1\}"),
    ({"captions": ("A",)}, r"expected 3 rows in every column, got \{'captions': 1\}"),
    ({"more_captions": ((),)}, r"expected 3 rows in every column, got \{'more_captions': 1\}"),
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    make(**changes)


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(InvalidInputError, match=r"tiny: no column 'gender'; there are \['label'\]"):
        make().column("gender")
