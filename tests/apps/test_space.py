"""Test the demo as a Gradio Space: its settings, and the page that a Space would start."""

import shutil
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from browsing import check_page, free_port, opened, running
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "apps/demo/space"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_settings_name_the_app_and_versions_that_the_package_accepts() -> None:
    _, settings, _ = (SPACE / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    space = yaml.safe_load(settings)
    assert space["sdk"] == "gradio"
    assert (SPACE / space["app_file"]).is_file()
    assert len(space["short_description"]) <= 60  # the Hub rejects longer ones
    demo = map(Requirement, PROJECT["optional-dependencies"]["demo"])
    gradio = next(package for package in demo if package.name == "gradio")
    assert Version(space["sdk_version"]) in gradio.specifier
    python = Requirement(f"python{PROJECT['requires-python']}")
    assert Version(space["python_version"]) in python.specifier


def test_the_requirements_are_this_package_with_the_extra_of_the_demo() -> None:
    lines = (SPACE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (package,) = map(Requirement, lines)
    assert (package.name, package.extras) == (PROJECT["name"], {"demo"})
    assert Version(PROJECT["version"]) in package.specifier


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the app as a Space does: from a copy of its folder, on the port that it is given."""
    folder = tmp_path_factory.mktemp("space") / "app"
    shutil.copytree(SPACE, folder)
    port = free_port()
    variables = {"GRADIO_SERVER_PORT": str(port), "PYTHONPATH": str(ROOT)}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VLDEBIAS_AUTH", raising=False)
        with running(["app.py"], folder.parent / "log", port, folder, **variables) as (address, _):
            yield address


@pytest.mark.slow
def test_a_space_shows_the_page_without_a_password_in_the_frame_of_the_hub(address: str) -> None:
    with urllib.request.urlopen(address, timeout=30) as answer:
        assert answer.status == 200
        assert "frame-ancestors https://huggingface.co" in answer.headers["content-security-policy"]
        assert "x-frame-options" not in answer.headers
    upload = urllib.request.Request(f"{address}/gradio_api/upload", data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(upload, timeout=30)


@pytest.mark.slow
def test_a_visitor_of_a_space_generates_images(address: str, browser: Any) -> None:
    with opened(browser, address) as page:
        page.get_by_label("Prompt").fill("A photo of a cook.")
        page.locator("#rows.stale").wait_for()
        page.locator("#generate-button").click()
        page.wait_for_function(
            "document.querySelector('#verdict').innerText.includes('cook')"
            " && document.querySelector('#rows:not(.stale)')"
        )
        check_page(page)
