"""What the tests in a browser share: a server as a process, a page of a given width, pictures, axe-core."""

import io
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

ARTEFACTS = Path(os.environ.get("VLDEBIAS_ARTEFACTS") or Path(__file__).parent / "artefacts")
WIDE, NARROW = 1280, 390
PATIENCE = 120_000  # ms: the machine may have other things to do
COLOURS = 96  # of a screenshot
GRAVE = ("serious", "critical")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """VLDEBIAS_BROWSER, else a Chromium on the path."""
    named = os.environ.get("VLDEBIAS_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def served(arguments: Sequence[str], log: Path, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`python -m vldebias ...` as a process of its own: (address, process) once it answers; ended afterwards."""
    address = f"http://127.0.0.1:{port}"
    with log.open("ab") as output:
        command = [sys.executable, "-m", "vldebias", *arguments, "--port", str(port)]
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | {"OMP_NUM_THREADS": "1"})
        try:
            _wait(address, process, log)
            yield address, process
        finally:
            process.kill()
            process.wait()


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < end:
        if process.poll() is not None:
            raise AssertionError(f"the server ended with {process.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except urllib.error.HTTPError:  # it wants a password: it answers
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no answer from {address}:\n{log.read_text()}")


@contextmanager
def opened(
    browser: Any, address: str, width: int = WIDE, height: int = 900, go: bool = True, **options: Any
) -> Iterator[Any]:
    """A page in a context of its own, so that two of them are two visitors; it must ask nobody but the server, and
    nothing of it may be blocked by the policy that the server sends.

    go: load the page; else the test does, once or several times.
    """
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    asked: list[str] = []
    blocked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on(
        "console", lambda said: said.type == "error" and "Content Security" in said.text and blocked.append(said.text)
    )
    try:
        if go:
            page.goto(address)
        yield page
        assert elsewhere(asked, address) == []
        assert blocked == []
    finally:
        context.close()


def elsewhere(urls: Sequence[str], address: str) -> list[str]:
    """Requests that left the machine."""
    host = re.escape(address.removeprefix("http"))
    ours = re.compile(rf"(http|ws){host}([/?#]|$)|data:|blob:|about:")
    return [url for url in urls if not ours.match(url)]


def shoot(page: Any, name: str, *, full: bool = True) -> Path:
    """A picture of the page in the artefact folder, in few colours: small enough to be committed."""
    # Asked anew at each look: a picture that the page puts in while one waits is lazy again, and never comes.
    page.wait_for_function("[...document.images].every(one => { one.loading = 'eager'; return one.complete; })")
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    path = ARTEFACTS / f"{name}.png"
    with Image.open(io.BytesIO(page.screenshot(full_page=full, animations="disabled"))) as picture:
        picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    return path


def settled(page: Any) -> None:
    """Wait until styles and fonts have come and no colour is on its way to another: contrast is measured after that."""
    page.wait_for_load_state("load")
    page.evaluate(
        """async () => {
            await document.fonts.ready;
            await new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)));
            const ends = one => one.effect?.getComputedTiming().endTime !== Infinity && one.playState === "running";
            await Promise.allSettled(document.getAnimations().filter(ends).map(one => one.finished));
        }"""
    )


def violations(page: Any) -> list[str]:
    """What axe-core finds serious or critical, one line each."""
    from axe_playwright_python.sync_playwright import Axe

    settled(page)
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {node['html'][:200]}"
        for one in found
        if one["impact"] in GRAVE
        for node in one["nodes"]
    ]


def sideways(page: Any) -> int:
    """By how many pixels the page is wider than its window: 0 where nobody has to scroll sideways."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
