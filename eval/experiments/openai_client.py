"""Run the real openai client through `vldebias serve`, in front of a fake image server.

    python -m eval.experiments.openai_client               # print the client's results
    python -m eval.experiments.openai_client --out FILE

It needs openai, uvicorn and starlette (`make test-integrations` installs them). The server is that
in the tests, for which words in the prompt select how it fails.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.apps.false_upstream import KEY, FalseUpstream, served

CEO = "A photo of a CEO in an office"
LIBRARIES = ("openai", "httpx2", "starlette", "uvicorn")


@contextlib.contextmanager
def serving(upstream: str, *options: str) -> Iterator[str]:
    """Run the command in a separate process and yield its base_url."""
    command = [sys.executable, "-m", "vldebias", "serve", "--upstream", upstream, "--port", "0"]
    command += ["--attribute", "gender", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = ""
        while "base_url=" not in line:
            line += process.stderr.readline()
        yield line.split("base_url=")[1].strip()
    finally:
        process.terminate()
        rest = process.communicate(timeout=20)[1]
    has_leaked = any(text in rest for text in (CEO, KEY))
    assert not has_leaked, "a prompt or a key was logged"


def runs(base_url: str, upstream: FalseUpstream) -> Iterator[str]:
    """Yield a line for each client call."""
    import openai

    client = openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=20)

    def generate(prompt: str, n: int = 1, **more: Any) -> Any:
        return client.images.generate(model="tiny", prompt=prompt, n=n, **more)

    def prompts(made: Any) -> list[str]:
        return [image.revised_prompt for image in made.data]

    made = generate(CEO, 4, extra_body={"seed": 5})
    yield f"n=4: {Counter(prompts(made))}, {made.usage.total_tokens} tokens"
    yield f"  the server saw seeds {sorted(call['seed'] for call in upstream.seen)}"
    raw = client.images.with_raw_response.generate(model="tiny", prompt="A king", n=2)
    yield f"a stated value: {raw.headers['x-vldebias']}"
    yield f"other paths: models {[model.id for model in client.models.list()]}"
    events = client.images.generate(model="tiny", prompt=CEO, stream=True, partial_images=1)
    yield f"streamed: {len(list(events))} events"
    raw = client.images.with_raw_response.generate(model="tiny", prompt="A lopsided CEO", n=4)
    yield f"refused for women: {raw.headers['x-vldebias']}"
    yield f"asked again after 503: {len(prompts(generate('A moody CEO', 2)))} images"
    stranger = client.with_options(api_key="sk-wrong")
    yield failure("wrong key", lambda: stranger.images.generate(prompt=CEO))
    for name, prompt, n in (
        ("rate limit", "A busy chef", 3),
        ("moderation", "A forbidden chef", 3),
        ("n=0", "A chef", 0),
        ("n=99", "A chef", 99),
        ("no prompt", "", 1),
    ):
        yield failure(name, lambda prompt=prompt, n=n: generate(prompt, n))
    hasty = client.with_options(timeout=0.5)
    yield failure(
        "a client that stops waiting", lambda: hasty.images.generate(prompt="A slow chef", n=2)
    )
    for _ in range(500):
        if upstream.cancelled == 2:
            break
        time.sleep(0.02)
    yield f"  calls that were cancelled then: {upstream.cancelled} of 2"
    with ThreadPoolExecutor(8) as pool:
        several = pool.map(lambda _: prompts(generate("Portrait of a nurse"))[0], range(41))
        yield f"41 requests of one image by 8 threads: {Counter(several)}"


def failure(name: str, call: Callable[[], Any]) -> str:
    """Describe how the client reports a failure."""
    try:
        call()
    except Exception as error:
        status = getattr(error, "status_code", None)
        code = getattr(error, "code", None)
        body = getattr(error, "body", None)
        message = body.get("message") if isinstance(body, dict) else str(error)
        return f"{name}: {type(error).__name__} {status} {code}: {message}"
    return f"{name}: no error"


def main() -> None:
    """Run the client, print its results, and write them to --out."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, help="also write the lines here")
    out = options.parse_args().out
    upstream = FalseUpstream()
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    lines = [versions]
    with served(upstream.app) as address, serving(address) as base_url:
        lines += runs(base_url, upstream)
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if out:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
