"""Take the screenshots of the labelling page and the demo for the documentation.

In `python -m eval.screens RUN`, RUN is a folder written by `vldebias quickstart`. The command
writes results/{label,demo}-{1280,390}.png. It needs Chromium and playwright, like the
browser tests.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from eval.tables import RESULTS, plain_parser
from tests.apps.browsing import COLOURS, answers, free_port, opened, served, settled
from vldebias.utils.pictures import decode

HEIGHTS = {1280: 900, 390: 844}  # screenshot heights by width


def main() -> None:
    """Take all screenshots."""
    options = plain_parser(__doc__)
    options.add_argument("run", type=Path, help="folder of `vldebias quickstart`")
    options.add_argument("--browser", default="/usr/bin/chromium", help="a Chromium")
    arguments = options.parse_args()
    run = arguments.run
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        chromium = playwright.chromium.launch(
            executable_path=arguments.browser, args=["--no-sandbox"]
        )
        scratch = Path(folder)
        label(chromium, run, scratch)
        demo(chromium, scratch)
        chromium.close()


def label(chromium: Browser, run: Path, scratch: Path) -> None:
    """Take a screenshot of `vldebias label` at its first question."""
    images = next(path for path in sorted((run / "images").iterdir()) if path.is_dir())
    words = ["label", str(images), "--attribute", "gender", "--questions", "15"]
    words += ["--out", str(scratch / "answers.jsonl")]
    with served(words, scratch / "label.log", free_port()) as (address, _):

        def begin(page: Page) -> None:
            page.get_by_label("Your name").fill("Ada")
            page.get_by_role("button", name="Start").click()
            page.locator("#question h2").wait_for()

        screenshots_of(chromium, "label", address, begin)


def demo(chromium: Browser, scratch: Path) -> None:
    """Take a screenshot of `vldebias demo`."""
    with served(["demo"], scratch / "demo.log", free_port()) as (address, _):
        assert answers(address)
        screenshots_of(chromium, "demo", address)


def screenshots_of(chromium: Browser, name: str, address: str, begin: Any = None) -> None:
    """Save the first screen of a page at both widths.

    `begin` is an action to perform on the page first, such as answering a question.
    """
    for width, height in HEIGHTS.items():
        with opened(chromium, address, width, height) as page:
            if begin is not None:
                begin(page)
            page.locator("img").first.wait_for()
            settled(page)
            png = page.screenshot(animations="disabled")
        few = decode(png).quantize(COLOURS)
        few.save(RESULTS / f"{name}-{width}.png", optimize=True)


if __name__ == "__main__":
    main()
