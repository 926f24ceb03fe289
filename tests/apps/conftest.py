"""Provide a browser for the end-to-end tests.

If there is none, hosted CI fails. Elsewhere, the summary says in capitals that these tests were
skipped.
"""

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "no browser: install Debian's chromium and `pip install playwright axe-playwright-python`, or"
    " name a Chromium in VLDEBIAS_BROWSER"
)


@pytest.fixture(scope="module", autouse=True)
def _swept() -> Iterator[None]:
    """Collect the event loops that Gradio leaves open on import, so that no other test reports
    them."""
    yield
    gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings about the loops that `_swept` collects."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start a headless Chromium for each module, because playwright keeps an event loop running in
    its thread."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _skip()
    path = os.environ.get("VLDEBIAS_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        _skip()
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield opened
        opened.close()


def _skip() -> NoReturn:
    if os.environ.get("GITHUB_ACTIONS"):
        pytest.fail(MISSING)
    pytest.skip(MISSING)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the reason in capitals, which also puts it among the last lines of .ci/run."""
    reports = terminalreporter.getreports("skipped")
    skipped = [report for report in reports if MISSING in str(report.longrepr)]
    if skipped:
        terminalreporter.section("THE BROWSER WAS NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(f"{len(skipped)} tests: {MISSING}")
        with open(os.environ.get("NOT_TRIED", os.devnull), "a", encoding="utf-8") as file:
            file.write(f"{len(skipped)} tests of pages: {MISSING}\n")
