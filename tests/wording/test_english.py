"""Test English prompts as people write them: `english.txt` says what happens to each."""

from pathlib import Path

import pytest

from vldebias.wording import balance_prompts

LINES = (Path(__file__).parent / "english.txt").read_text(encoding="utf-8").splitlines()
ROWS = [line.replace("\\n", "\n").split(" | ") for line in LINES if line and line[:2] != "# "]


@pytest.mark.parametrize("row", ROWS, ids=" | ".join)
def test_a_prompt_is_written_or_left_as_the_table_says(row: list[str]) -> None:
    decision, prompt, *texts = row
    decision, _, attribute = decision.partition(" for ")
    balanced = balance_prompts([prompt] * 4, attribute or "gender", seed=0)
    if decision == "written":
        assert prompt not in balanced.prompts
    else:
        assert set(balanced.prompts) == {prompt}
        assert decision in ("left", balanced.reasons[0].split(":")[0])
    for text in texts:
        assert balance_prompts(prompt, "gender", shares={"female": 1}).prompts == [text]
