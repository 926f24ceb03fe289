"""Test that every format in the tables of the data page is read by its command."""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from brought import CAPTIONS, FORMS, PROMPTS

from vldebias.data import open_data
from vldebias.data.prompt_file import read_prompts

pytest.importorskip("datasets")
pytestmark = [
    pytest.mark.usefixtures("hf_cache"),
    pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning"),
]
PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/data.md"


def rows(name: str, forms: Mapping[str, Callable[[Path], Path]]) -> list[Any]:
    """Return the rows of a table on the page, each with the function that writes its format."""
    text = PAGE.read_text(encoding="utf-8")
    part = re.search(rf"<!-- {name}:begin -->(.*)<!-- {name}:end -->", text, re.DOTALL)
    assert part is not None
    lines = [line for line in part.group(1).splitlines() if line.startswith("| ")][2:]
    cells = [re.split(r"(?<!\\)\|", line)[1:4] for line in lines]
    return [
        pytest.param(write, *(cell.strip().strip("`") for cell in row[1:]), id=write.__name__)
        for write, row in zip(forms.values(), cells, strict=True)
    ]


def begins_with(path: Path, example: str) -> bool:
    """Return True if a file, or a file in a folder, starts with the given line from the page."""
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    content = files[0].read_bytes()
    encoding = "utf-16" if content.startswith(b"\xff\xfe") else "utf-8-sig"
    line = example.replace("\u21e5", "\t").replace("\\|", "|")
    return content.decode(encoding).startswith(line)


@pytest.mark.parametrize(("write", "example", "passed"), rows("captions", FORMS))
def test_the_documented_command_reads_captions(
    write: Callable[[Path], Path],
    example: str,
    passed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write(tmp_path)
    (argument,) = shlex.split(passed)
    assert path == tmp_path / argument
    assert not example or begins_with(path, example)
    # Users run the commands next to the data.
    monkeypatch.chdir(tmp_path)
    data = open_data("captions", argument, "train")
    assert tuple(data.captions) == CAPTIONS
    assert data.read(0).mode == "RGB"


@pytest.mark.parametrize(("write", "example", "passed"), rows("prompts", PROMPTS))
def test_the_documented_command_reads_prompts(
    write: Callable[[Path], Path], example: str, passed: str, tmp_path: Path
) -> None:
    path = write(tmp_path)
    (argument,) = shlex.split(passed)
    assert path == tmp_path / argument
    assert not example or begins_with(path, example)
    assert read_prompts(path).prompts == CAPTIONS
