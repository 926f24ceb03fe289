"""Provide fixtures for the tests of records."""

from collections.abc import Callable

import pytest

from eval.record_sources import RECORDS
from vldebias.records.page import read_records, render


@pytest.fixture
def render_page() -> Callable[[], str]:
    """Render the page of the committed records."""
    return lambda: render(read_records([RECORDS]))
