"""Choose the protocol's professions according to its rule, and write them to its file.

python -m eval.record_subjects

Everything else in the file is written by hand.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from apps.audit.counts import FOLDER
from vldebias.prompts import load_prompts
from vldebias.utils.files import write_atomically

ROOT = Path(__file__).parents[1]
FILE = ROOT / "prompts" / "protocol" / "who-appears-1.yaml"
COUNTS = ROOT / "eval" / "counts"
# Occupations in the paper's list with a feminine form in everyday use, so that the other form is
# not neutral.
WITH_FEMALE_FORM = {"actor": "actress", "waiter": "waitress"}


def public_lists() -> list[set[str]]:
    """Return the occupations in each public list of counts or prompts."""
    lists = []
    for file in (
        FOLDER / "fair-diffusion.csv",
        FOLDER / "stay-fair.csv",
        FOLDER / "sd35.csv",
        COUNTS / "stable-bias.csv",
    ):
        lists.append(set(pd.read_csv(file, comment="#")["prompt"]))
    lists.append(set(load_prompts("professions-winobias").class_names))
    return lists


def chosen_professions(number: int) -> list[str]:
    """Return the paper's professions that occur in most public lists (ties: alphabetical)."""
    paper = load_prompts("professions-gender")
    lists = public_lists()

    def rank(profession: str) -> tuple[int, str]:
        return -sum(profession in names for names in lists), profession

    names = [*paper.class_names, *paper.held_out_class_names]
    neutral = [name for name in names if name not in WITH_FEMALE_FORM]
    return sorted(neutral, key=rank)[:number]


def written() -> str:
    """Return the content of the protocol's file, with the professions that the rule chooses."""
    head, _, rest = FILE.read_text(encoding="utf-8").partition("professions:\n")
    everyday = rest[rest.index("everyday:\n") :]
    professions = chosen_professions(100 - everyday.count("\n  - "))
    listed = "".join(f"  - {name}\n" for name in professions)
    return f"{head}professions:\n{listed}{everyday}"


if __name__ == "__main__":
    write_atomically(FILE, written())
