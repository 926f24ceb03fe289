"""Test that trackers accept the names of figures."""

import re

from hypothesis import given
from hypothesis import strategies as st

from vldebias.utils.trackers import tracker_name


@given(st.text(max_size=300))
def test_any_name_is_converted_to_one_that_mlflow_accepts(text: str) -> None:
    name = tracker_name(text)
    assert re.fullmatch(r"[\w\-. /]{1,250}", name, re.ASCII)
    # MLflow uses names as file names, so they must not point outside their folder.
    assert not name.startswith("/")
    assert ".." not in name.split("/")
    assert "//" not in name


def test_valid_names_are_unchanged() -> None:
    assert tracker_name("birds/worst_group/orth-cali") == "birds/worst_group/orth-cali"
    assert tracker_name("default+reference") == "default_and_reference"
