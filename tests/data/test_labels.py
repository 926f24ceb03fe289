"""Labels and their intersections, as laws."""

from __future__ import annotations

import re

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from vldebias.data import UNKNOWN, Labels, cross
from vldebias.data.labels import doubts
from vldebias.errors import InvalidInputError

NAMES = ("a", "b", "c")
values = st.lists(st.sampled_from([*NAMES, None, ""]), max_size=30)
tables = st.lists(st.tuples(*[st.sampled_from([*NAMES, None])] * 3), max_size=30)


def back(labels: Labels) -> list[str | None]:
    return [labels.names[code] if code != UNKNOWN else None for code in labels.codes]


@given(values)
def test_values_come_back(rows: list[str | None]) -> None:
    labels = Labels.of(rows)
    assert back(labels) == [row or None for row in rows]
    assert labels.names == tuple(sorted({row for row in rows if row}))
    assert back(Labels.of(rows, NAMES)) == back(labels)


@given(values)
def test_counts_and_known_add_up(rows: list[str | None]) -> None:
    labels = Labels.of(rows, NAMES)
    assert list(labels.counts) == list(NAMES)
    assert all(labels.counts[name] == rows.count(name) for name in NAMES)
    assert sum(labels.counts.values()) == labels.known.sum() == len(rows) - rows.count(None) - rows.count("")


@given(values, st.data())
def test_rows_are_picked_in_order(rows: list[str | None], data: st.DataObject) -> None:
    labels = Labels.of(rows, NAMES)
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if rows else []
    assert back(labels[np.array(picked, dtype=int)]) == [rows[i] or None for i in picked]
    assert back(labels[labels.known]) == [row for row in rows if row]
    assert back(labels[1:3]) == [row or None for row in rows[1:3]]


@given(tables)
def test_cross_joins_names_and_is_unknown_where_one_is(rows: list[tuple[str | None, ...]]) -> None:
    columns = [Labels.of([row[k] for row in rows], NAMES) for k in range(3)]
    crossed = cross(*columns)
    assert back(crossed) == [None if None in row else "/".join(row) for row in rows]
    assert crossed.names == tuple(f"{x}/{y}/{z}" for x in NAMES for y in NAMES for z in NAMES)
    assert np.array_equal(cross(columns[0], cross(*columns[1:])).codes, crossed.codes)


@refused(
    (np.zeros((2, 2), int), ("a",), r"expected integer codes \(n,\), got \(2, 2\)"),
    (np.zeros(2), ("a",), r"got \(2,\) of float64"),
    (np.array([0, 1]), ("a",), r"expected codes -1 \(unknown\) .. 0 for \['a'\], got \[1\]"),
    (np.array([-2]), ("a",), r"got \[-2\]"),
    (np.array([0]), ("a", "a"), "a name stands twice"),
)
def test_what_is_no_label_is_refused(codes: np.ndarray, names: tuple[str, ...]) -> None:
    Labels(codes, names)


@pytest.mark.parametrize(
    ("column", "names", "codes"),
    [
        (["f", "", "m"], ("f", "m"), [0, -1, 1]),
        (np.array(["f", "", "m"]), ("f", "m"), [0, -1, 1]),
        (np.array([b"f", b"\xc3\xbc"]), ("f", "ü"), [0, 1]),
        (["f", None, float("nan")], ("f",), [0, -1, -1]),
        ([10, 2, -1], ("-1", "2", "10"), [2, 1, 0]),
        (torch.tensor([-1, 1]), ("-1", "1"), [0, 1]),
        (np.array([-1.0, np.nan]), ("-1",), [0, -1]),
        ([10, 2, None], ("2", "10"), [1, 0, -1]),
        (torch.tensor([3, 1, 3], dtype=torch.uint8), ("1", "3"), [1, 0, 1]),
        (torch.tensor([1.0, 0.0, float("nan")], requires_grad=True), ("0", "1"), [1, 0, -1]),
        ((True, False), ("no", "yes"), [1, 0]),
        (pandas.Series(["f", None], dtype="string"), ("f",), [0, -1]),
        (pandas.Series(["m", "f"], dtype="category"), ("f", "m"), [1, 0]),
        ([], (), []),
        (Labels.of(["x"]), ("x",), [0]),
    ],
)
def test_columns_as_people_have_them(column: object, names: tuple[str, ...], codes: list[int]) -> None:
    labels = Labels.of_array(column)
    assert (labels.names, labels.codes.tolist()) == (names, codes)


@refused(
    ([0.5, 1.0], "expected strings or integers, got float64"),
    ([np.inf], "expected strings or integers, got float64"),
    (np.zeros((2, 2)), r"expected strings or integers \(n,\), got \(2, 2\) of float64"),
    ("female", r"expected strings or integers \(n,\), got \(\)"),
    ([b"\xff"], "expected strings or bytes of UTF-8, got b'.xff'"),
)
def test_columns_that_are_no_labels_are_refused(column: object) -> None:
    Labels.of_array(column)


def test_whole_numbers_may_index_names() -> None:
    labels = Labels.of_array([1, 0, -1, 1], ["a", "b"])
    assert repr(labels) == "Labels(4 rows, {'a': 1, 'b': 2}, 1 unknown)"
    for call, match in (
        (lambda: Labels.of_array([2], ["a", "b"]), r"got \[2\]"),
        (lambda: Labels.of(["a", "x"], ["a", "b"]), r"expected one of \['a', 'b'\], got \['x'\]"),
        (lambda: cross(Labels.of(["a"]), labels), r"got lengths \[1, 4\]"),
        (lambda: cross(), r"got lengths \[\]"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            call()


@given(values, st.sets(st.sampled_from(NAMES)))
def test_what_unknown_names_is_unknown_and_nothing_else(rows: list[str | None], marks: set[str]) -> None:
    labels = Labels.of(rows).without(marks)
    assert back(labels) == [None if row in marks else row or None for row in rows]
    assert set(labels.names) == {row for row in rows if row} - marks


@pytest.mark.parametrize(
    ("column", "unknown"),
    [
        ([1, 0, -1], -1),
        ([1, 0, -1], "-1"),
        ([1.0, 0.0, -1.0], np.float32(-1)),
        (np.array([1, 0, 255], "u1"), (255, "?")),
        (["1", "0", "?"], ["?", -1]),
        (["1", "0", b"?"], b"?"),
        (Labels(np.array([1, 0, 2]), ("0", "1", "nobody")), "nobody"),
        ([1, 0, float("nan")], -1),
        ([1, 0, None], ()),
    ],
)
def test_unknown_is_what_the_user_says_it_is(column: object, unknown: object) -> None:
    labels = Labels.of_array(column, unknown=unknown)
    assert (labels.names, labels.codes.tolist()) == (("0", "1"), [1, 0, UNKNOWN])


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20))
def test_numbers_are_values_whatever_their_sign(column: list[int]) -> None:
    assert [int(name or "nothing") for name in back(Labels.of_array(column))] == column
    shifted = Labels.of_array(np.array(column) + 10)
    assert shifted.codes.tolist() == Labels.of_array(column).codes.tolist()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["a", "b"] * 5, []),
        ([0, 1, 2] * 5, []),
        ([-1, 1] * 5, []),
        ([-1, 0, 1] * 5, [r"for '-1'; say unknown='-1'"]),  # as the codes of a column of pandas
        ([-2, -1, 0, 1] * 5, []),  # a scale
        (["m", "f", "Unknown"] * 5, [r"for 'Unknown'; say unknown='Unknown'"]),
        (["none", "glasses"] * 5, []),
        (["Male", "male", "f"] * 5, [r"'Male' and 'male' differ by case or blanks alone; write them alike"]),
        (["a b", "a  b ", "f"] * 5, [r"'a  b ' and 'a b' differ"]),
        (["nan", "m", "f"] * 5, [r"a group of its own for 'nan'; say unknown='nan' if it is none"]),
        (["None", "NaN", "f"] * 5, [r"'NaN' and for 'None'; say unknown='NaN'"]),
        ([255, 0, 1] * 5, [r"for '255'"]),
        ([-99, 0, 1] * 5, [r"for '-99'"]),
        ([99, 98, 97] * 5, []),  # ages
        (Labels(np.zeros(9, int), ("a", "b")), []),  # a name without a row is no small group
        (["a"] * 5 + ["b"] * 4, [r"groups of fewer than 5 rows: 'b' \(4\)"]),
        (["a"] * 5 + list("bcdefgh"), [r"'f' \(1\) and 2 more; mend the value"]),
        (list(range(101)) * 9, [r"^101 groups in 909 rows, such as '0', '1', '2'; row numbers and scores"]),
        (["FEMALE", "female"] * 2, ["differ", "fewer than 5 rows"]),
    ],
)
def test_columns_that_look_like_a_slip_are_doubted(rows: list, said: list[str]) -> None:
    found = doubts(Labels.of_array(rows))
    assert len(found) == len(said)
    for one, pattern in zip(found, said, strict=True):
        assert re.search(pattern, one)
