"""What apps/ needs to be a Hugging Face Space: the lines that its README begins with, and a file that serves."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from browsing import free_port
from packaging.requirements import Requirement
from packaging.version import Version

import vldebias

APPS = Path(__file__).parents[2] / "apps"
KNOWN = {"gray", "red", "yellow", "green", "blue", "indigo", "purple", "pink"}


def test_the_readme_begins_as_a_space_does() -> None:
    _, front, text = (APPS / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    told = yaml.safe_load(front)
    assert told["sdk"] == "gradio"
    assert {told["colorFrom"], told["colorTo"]} <= KNOWN
    assert len(told["short_description"]) <= 60
    assert (APPS / told["app_file"]).is_file()
    pyproject = (APPS.parent / "pyproject.toml").read_text()
    (needed,) = (line.split('"')[1] for line in pyproject.splitlines() if line.startswith("demo = "))
    assert Version(told["sdk_version"]) in Requirement(needed).specifier
    assert f"vldebias-{vldebias.__version__}-py3-none-any.whl[demo]" in text


@pytest.mark.slow
def test_the_space_answers_and_opens_no_paths() -> None:
    port = free_port()
    environment = os.environ | {"GRADIO_SERVER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(APPS / "space.py")], env=environment, stdout=subprocess.DEVNULL)
    address, end = f"http://127.0.0.1:{port}", time.monotonic() + 120
    try:
        while True:
            try:
                with urllib.request.urlopen(address, timeout=5) as answer:
                    page, headers = answer.read().decode(), answer.headers
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.5)
        assert "A toy world of cartoons" in page
        assert "frame-ancestors 'self' https://huggingface.co" in headers["content-security-policy"]
        assert headers["x-frame-options"] is None  # it would forbid the hub too
        assert headers["x-content-type-options"] == "nosniff"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{address}/gradio_api/file={APPS / 'space.py'}", timeout=5)
    finally:
        process.kill()
        process.wait()
