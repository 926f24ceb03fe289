"""Provide fixtures for the record tests."""

from collections.abc import Callable

import pytest

from eval.record_sources import RECORDS
from vldebias.records.page import read_records, render


@pytest.fixture
def render_page() -> Callable[[], str]:
    """Render the page for the committed records."""
    return lambda: render(read_records([RECORDS]))
