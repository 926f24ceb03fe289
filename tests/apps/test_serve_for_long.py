"""`vldebias serve` in a process of its own, for 2,000 requests of 200 clients: none is lost, values
are even, memory stays flat."""

import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from browsing import free_port
from false_upstream import FalseServices, served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc"),
]
AT_ONCE = 200
BEFORE = 500  # requests after which all is loaded and every prompt of the test has been read
REQUESTS = 2000
JOBS = ("doctor", "nurse", "pilot", "CEO", "teacher")
PADDING = (
    "x" * 20_000
)  # of each request, so that bodies that are kept show: 30 MB of the last 1,500
GROWTH = 10_000_000  # bytes


@pytest.fixture
def services() -> FalseServices:
    return FalseServices()


@pytest.fixture
def server(services: FalseServices) -> Iterator[tuple[int, str]]:
    """The id of the process, and its base_url."""
    port = free_port()
    with served(services.app) as upstream:
        command = [sys.executable, "-m", "vldebias", "serve", "--upstream", upstream]
        command += ["--attribute", "gender", "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            base_url = f"http://127.0.0.1:{port}/v1"
            wait_for(base_url)
            yield process.pid, base_url
        finally:
            process.terminate()
            process.wait(timeout=30)


def wait_for(base_url: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{base_url}/models", timeout=30).close()
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.1)
        else:
            return


def resident_bytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    kilobytes = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert kilobytes is not None
    return 1024 * int(kilobytes[1])


def test_of_2000_requests_none_is_lost_and_none_is_kept(
    services: FalseServices, server: tuple[int, str]
) -> None:
    process, base_url = server
    services.seen.clear()
    limits = httpx2.Limits(max_connections=AT_ONCE)
    with (
        httpx2.Client(limits=limits, timeout=120) as client,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):

        def ask(number: int) -> int:
            prompt = f"A photo of a {JOBS[number % len(JOBS)]}."
            if number % 2:
                path, body = "images/generations", {"prompt": prompt}
            else:
                message = {"role": "user", "content": prompt}
                path, body = "chat/completions", {"messages": [message], "modalities": ["image"]}
            answer = client.post(f"{base_url}/{path}", json={**body, "user": PADDING})
            return answer.status_code

        statuses = Counter(threads.map(ask, range(BEFORE)))
        before = resident_bytes(process)
        statuses += Counter(threads.map(ask, range(BEFORE, REQUESTS)))
        after = resident_bytes(process)
    assert statuses == {200: REQUESTS}
    assert len(services.seen) == REQUESTS
    for job in JOBS:
        women = sum(f"female {job}" in prompt for prompt in services.prompts())
        assert women == REQUESTS / len(JOBS) / 2
    assert after - before < GROWTH
