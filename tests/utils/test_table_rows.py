"""Test how a column that a user named is found."""

import pytest

from vldebias.utils.table_rows import find_column


@pytest.mark.parametrize(
    ("names", "name", "expected"),
    [
        (["Gender Label", "gender label"], "gender label", "gender label"),
        (["Gender Label", "id"], "gender_label", "Gender Label"),
        (["Gender Label", "gender-label"], "gender_label", None),  # either could be meant
        (["id"], "gender_label", None),
    ],
)
def test_a_column_is_found_if_only_one_can_be_meant(
    names: list[str], name: str, expected: str | None
) -> None:
    assert find_column(names, name) == expected
