"""Files with a prompt a line: what is left out, and what is refused by the name of the file."""

from pathlib import Path

import pytest

from vldebias.errors import InvalidInputError
from vldebias.prompts.prompt_file import read_prompts

CHAIR = "A red chair"
CASTLE = "A doctor in a castle."


def test_comments_empty_lines_and_repeats_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(f"# mine\n {CHAIR}\n\n{CASTLE}\n{CHAIR}", encoding="utf-8-sig")
    assert read_prompts(file) == (CHAIR, CASTLE)


@pytest.mark.parametrize("content", [None, b"", b"# a comment alone", b"\x89PNG\r\n\x1a\n\x00"])
def test_a_file_without_prompts_is_refused_by_its_name(
    content: bytes | None, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"prompts\.txt"):
        read_prompts(file)
