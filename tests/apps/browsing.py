"""Provide helpers for browser tests: a server process, a page of a given width, images,
axe-core."""

import io
import os
import re
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
WIDE = 1280
NARROW = 390
PATIENCE = 120_000  # ms, generous because the machine may be busy
COLOURS = 96  # the palette of a saved screenshot


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def served(
    arguments: Sequence[str], log: Path, port: int
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `vldebias ...` as `running` does."""
    command = ["-m", "vldebias", *arguments, "--port", str(port)]
    with running(command, log, port) as server:
        yield server


@contextmanager
def running(
    arguments: Sequence[str], log: Path, port: int, folder: Path | None = None, **variables: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run Python with these arguments in a separate process, yield (address, process) once it
    responds, and stop it afterwards."""
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            stdout=output,
            stderr=output,
            env=environment,
        )
        try:
            end = time.monotonic() + PATIENCE / 1000
            while not answers(address):
                assert process.poll() is None, f"the server ended:\n{log.read_text()}"
                assert time.monotonic() < end, f"no answer:\n{log.read_text()}"
                time.sleep(0.2)
            yield address, process
        finally:
            process.kill()
            process.wait()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError as error:  # the server responds, but asks for a password
        return isinstance(error, urllib.error.HTTPError)


@contextmanager
def opened(
    browser: Any,
    address: str,
    width: int = WIDE,
    height: int = 900,
    go: bool = True,
    **options: Any,
) -> Iterator[Any]:
    """Open a page in a new browser context, so that two pages are two visitors.

    On exit, check that the page only contacted the server and that the server's content security
    policy blocked nothing.

    Args:
        browser: The browser from the fixture.
        address: The address of the page.
        width: The window width in pixels.
        height: The window height in pixels.
        go: Whether to load the page. Otherwise, the test loads it.
        options: Additional options for the browser context.
    """
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    ours = re.compile(
        rf"(http|ws){re.escape(address.removeprefix('http'))}([/?#]|$)|data:|blob:|about:"
    )
    requested_urls: list[str] = []
    console_messages: list[Any] = []
    page.on("request", lambda request: requested_urls.append(request.url))
    page.on("console", lambda message: console_messages.append(message))
    try:
        if go:
            page.goto(address)
        yield page
        assert [url for url in requested_urls if not ours.match(url)] == []
        assert [
            message.text
            for message in console_messages
            if message.type == "error" and "Content Security" in message.text
        ] == []
    finally:
        context.close()


def check_page(page: Any, name: str = "", *, full: bool = True) -> None:
    """Check that axe-core finds no violations and that the page does not scroll sideways. With a
    name, save a screenshot as an artefact."""
    from axe_playwright_python.sync_playwright import Axe

    settled(page)
    findings = []
    for violation in Axe().run(page).response["violations"]:
        title = f"{violation['id']} ({violation['impact']}): {violation['help']}"
        findings += [f"{title}: {node['html'][:200]}" for node in violation["nodes"]]
    assert not findings, "\n".join(findings)
    assert (
        page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        <= 0
    )
    if name:
        # This is repeated on every poll, because images that the page inserts in the meantime
        # load lazily and might never load.
        page.wait_for_function(
            "[...document.images].every(one => { one.loading = 'eager'; return one.complete; })"
        )
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        with Image.open(
            io.BytesIO(page.screenshot(full_page=full, animations="disabled"))
        ) as image:
            image.convert("RGB").quantize(COLOURS).save(ARTEFACTS / f"{name}.png", optimize=True)


def settled(page: Any) -> None:
    """Wait until styles and fonts are loaded and colour transitions have ended, so that contrast
    can be measured."""
    page.wait_for_load_state("load")
    # Gradio shows "Loading..." outside all landmarks until the page is ready.
    page.wait_for_function("!document.querySelector('p.loading')")
    page.evaluate("""async () => {
            await document.fonts.ready;
            await new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)));
            const endsOnce = animation =>
                animation.effect?.getComputedTiming().endTime !== Infinity;
            const ends = animation => endsOnce(animation) && animation.playState === "running";
            const running = document.getAnimations().filter(ends);
            await Promise.allSettled(running.map(animation => animation.finished));
        }""")
