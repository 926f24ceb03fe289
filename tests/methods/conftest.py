"""The miniature pipeline, as tests of several methods use it."""

from typing import Any

import pytest


@pytest.fixture(scope="module")
def pipe() -> Any:
    from vldebias.miniature import load_pipeline

    made = load_pipeline()
    made.set_progress_bar_config(disable=True)
    return made
