"""Provide fixtures for the record tests."""

from collections.abc import Callable

import pytest

from apps.audit.records.page import read_records, render
from eval.record_sources import RECORDS


@pytest.fixture
def render_page() -> Callable[[], str]:
    """Render the page for the committed records."""
    return lambda: render(read_records([RECORDS]))
