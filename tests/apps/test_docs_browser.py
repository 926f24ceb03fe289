"""Test the built documentation in a browser: nothing overflows, and axe finds no violations."""

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.apps.browsing import NARROW, WIDE, check_page, opened

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
# Pages with wide code, wide tables, images, printed frames and generated reference material.
PAGES = (
    "",
    "how-to/balance-prompts/",
    "how-to/comfyui/",
    "how-to/generate/",
    "explanation/evidence/",
    "explanation/projection/",
    "tutorials/audit-a-prompt-list/",
    "commands/eval/",
    "reference/",
)
OVERFLOWING_CODE = """() =>
    [...document.querySelectorAll(".md-content pre:not(.framed) > code")]
        .filter(code => code.scrollWidth > code.clientWidth + 1)
        .map(code => code.textContent.slice(0, 80))"""
SMALL_IMAGES = """() =>
    [...document.querySelectorAll(".md-content img")]
        .filter(image => !image.closest("a")
            && image.getBoundingClientRect().width < 0.5 * image.naturalWidth)
        .map(image => image.src)"""

# Elements beyond the right edge that no ancestor scrolls to, such as formulas, tables and code.
OUTSIDE = """() => {
    const scrolls = element => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
    const isReachable = element => {
        for (let up = element; up !== document.body; up = up.parentElement)
            if (scrolls(up)) return true;
        return false;
    };
    return [...document.querySelectorAll(".md-content *")]
        .filter(element => element.getBoundingClientRect().right > innerWidth + 1)
        .filter(element => !isReachable(element))
        .map(element => element.outerHTML.slice(0, 80));
}"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serve files without logging each request."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the documentation into a temporary folder."""
    pytest.importorskip("mkdocs")
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    command += ["--config-file", str(ROOT / ".mkdocs.yml"), "--site-dir", str(site)]
    # Pages about commands are built by running them.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return site


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Serve the documentation and return its address."""
    handler = functools.partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# The width changes the layout and the scheme changes the colours, so two screens cover both.
@pytest.mark.parametrize(("width", "colours"), [(WIDE, "dark"), (NARROW, "light")])
def test_pages_fit_and_are_readable(browser: Any, address: str, width: int, colours: Any) -> None:
    with opened(browser, address, width, go=False, color_scheme=colours) as page:
        for name in PAGES:
            page.goto(f"{address}/{name}")
            page.wait_for_load_state("load")
            assert page.evaluate(OVERFLOWING_CODE) == [], name
            assert page.evaluate(SMALL_IMAGES) == [], name
            check_page(page)


def test_no_page_scrolls_sideways_on_a_phone(browser: Any, site: Path, address: str) -> None:
    pages = sorted(file.parent.relative_to(site).as_posix() for file in site.rglob("index.html"))
    assert len(pages) > len(PAGES)
    wide = {}
    with opened(browser, address, NARROW, go=False) as page:
        for name in pages:
            page.goto(f"{address}/{name}/")
            width = page.evaluate("document.documentElement.scrollWidth")
            outside = page.evaluate(OUTSIDE)
            if width > NARROW or outside:
                wide[name] = (width, outside)
    assert wide == {}


FIRST_FOUND = {
    "waterbirds": "Evaluate a CLIP model",
    "fairface": "Evaluate a CLIP model",
    "celeba": "Evaluate a CLIP model",
    "stable diffusion": "Ship a Stable Diffusion pipeline",
    "lawyer": "Evidence",
    "pairs.html": "Fine-tune on noisy captions",
    "debias": "debias",
}


def test_a_search_finds_the_page_of_a_task_first(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        box = page.get_by_role("textbox", name="Search")
        for query, title in FIRST_FOUND.items():
            box.fill("")
            box.press_sequentially(query)
            page.wait_for_function(
                "title => document.querySelector('.md-search-result__item h1')?.textContent"
                " === title",
                arg=title,
            )


def test_the_page_of_an_object_shows_an_example_before_its_signature(
    browser: Any, address: str
) -> None:
    with opened(browser, address, go=False) as page:
        for name in ("debias", "rince", "rerank"):
            page.goto(f"{address}/reference/{name}/")
            code = page.locator(".md-content pre > code").all_inner_texts()
            assert code[0].split()[-1] == name, "the import is shown"
            assert code[1].startswith(">>> ")
            assert code[2].startswith(f"{name}("), "the signature is shown"
