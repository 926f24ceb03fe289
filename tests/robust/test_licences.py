"""Test that every list, picture and weight file that ships has a row in the table of licences."""

import re
import subprocess
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "licences.md"
# What the wheel contains (pyproject.toml), what the pages show, and the repository's third-party
# tables.
SHIPPED = (
    *("vldebias", "prompts", "apps", "docs"),
    *("eval/counts", "eval/records", "eval/suites", "eval/results"),
)
# Code, text and figures of this project, and packaging settings, which are under the project's
# licence.
OURS = ("*.py", "*.md", "*.typed", "*/pyproject.toml", "*/requirements.txt", "*/LICENSE")
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".svg")
KNOWN = {"MIT", "WordNet", "Apache-2.0", "CC BY 4.0", "CC0"}
KNOWN |= {"public domain (US government)"}


def shipped() -> list[str]:
    """Return the files that need a row: everything except code and text, and only the pictures
    among results."""
    listed = subprocess.run(
        ["git", "ls-files", *SHIPPED], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = []
    for name in listed:
        is_result = name.startswith("eval/results/") and Path(name).suffix not in PICTURES
        if not is_result and not any(fnmatchcase(name, pattern) for pattern in OURS):
            files.append(name)
    return files


def rows() -> list[list[str]]:
    """Return the cells of the table: files, description, origin, licence."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines if line.startswith("| `")]
    assert {len(row) for row in cells} == {4}
    return cells


def patterns_of(row: list[str]) -> list[str]:
    """Return the files of a row. Names without a folder are in the folder of the first one."""
    names = re.findall(r"`(.+?)`", row[0])
    folder = names[0].rpartition("/")[0]
    return [name if "/" in name else f"{folder}/{name}" for name in names]


def all_patterns() -> list[str]:
    return [pattern for row in rows() for pattern in patterns_of(row)]


def unlisted(files: list[str], patterns: list[str]) -> list[str]:
    return [file for file in files if not any(fnmatchcase(file, of) for of in patterns)]


@pytest.fixture(scope="module")
def files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout: git lists what is shipped")
    return shipped()


def test_every_shipped_file_has_a_row_and_every_row_a_file(files: list[str]) -> None:
    patterns = all_patterns()
    assert len(files) > 80
    assert unlisted(files, patterns) == [], f"give each a row in {PAGE.name}, with its source"
    assert [of for of in patterns if not any(fnmatchcase(file, of) for file in files)] == []
    assert [of for of, count in Counter(patterns).items() if count > 1] == []


def test_a_new_list_picture_or_weight_would_be_detected() -> None:
    patterns = all_patterns()
    for new in (
        "vldebias/wording/english/facts/new.txt",
        "vldebias/miniature/weights/new.bin",
        "docs/new.jpg",
        "apps/audit/calibrations/new.csv",
    ):
        assert unlisted([new], patterns) == [new]


def test_licences_are_known_and_third_party_ones_are_next_to_their_files() -> None:
    for _, _, source, licence in rows():
        name, _, place = licence.partition(", in ")
        assert name in KNOWN
        assert source
        if place:
            assert (ROOT / place.strip("`")).stat().st_size > 200
        assert place or name != "WordNet"


def test_the_licence_in_a_file_header_matches_the_table(files: list[str]) -> None:
    """Headers of lists state "licence: NAME" if it differs from the project's licence."""
    stated = re.compile(r"^#.*\blicen[cs]e:? (Apache-2\.0|CC BY-SA 4\.0|CC BY 4\.0|CC0)", re.M)
    found = 0
    for file in files:
        if not file.endswith((".txt", ".csv")):
            continue
        head = (ROOT / file).read_text(encoding="utf-8")[:1500]
        for name in stated.findall(head):
            found += 1
            (row,) = [row for row in rows() if not unlisted([file], patterns_of(row))]
            assert row[3].startswith(name), file
    assert found >= 2
