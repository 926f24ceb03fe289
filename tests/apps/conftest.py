"""The browser of the end-to-end tests; without one they are skipped, and the summary says so in capitals."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import find_browser

MISSING = (
    "no browser: install Debian's chromium and `pip install playwright axe-playwright-python`, or name a Chromium in "
    "VLDEBIAS_BROWSER"
)
_skipped: set[str] = set()


@pytest.fixture(scope="module", autouse=True)
def _swept() -> Iterator[None]:
    """Gradio leaves event loops open wherever it is imported: collected here, not in some other test."""
    yield
    gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The loops that `_swept` collects are no news in the tests of the pages."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A headless Chromium; one for each module, since playwright keeps an event loop running in this thread."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _skip(request)
    path = find_browser()
    if path is None:
        _skip(request)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


def _skip(request: pytest.FixtureRequest) -> None:
    _skipped.add(request.node.nodeid)
    pytest.skip(MISSING)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _skipped:
        terminalreporter.section("THE BROWSER WAS NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(f"{', '.join(sorted(_skipped))}: {MISSING}")
