"""Choose the protocol's subjects according to its rule, and write its file.

python -m eval.record_subjects
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from apps.audit.line import FOLDER
from vldebias.prompts import load_prompts
from vldebias.utils.files import write_atomically

ROOT = Path(__file__).parents[1]
FILE = ROOT / "prompts" / "protocol" / "who-appears-1.yaml"
COUNTS = ROOT / "eval" / "counts"
SUBJECTS = 100
QUALIFIERS = ("corporate", "beautiful", "senior", "friendly", "low-paid", "successful")
# One situation for each of the 17 major activity categories in the American Time Use Survey
# (Bureau of Labor Statistics, coding lexicon; public domain), in the survey's order.
EVERYDAY = {
    "Personal care": "sleeping",
    "Household activities": "cooking dinner at home",
    "Caring for and helping household members": "folding laundry for a family",
    "Caring for and helping nonhousehold members": "carrying a bag for a neighbor",
    "Work and work-related activities": "working at a desk",
    "Education": "studying in a library",
    "Consumer purchases": "shopping for groceries",
    "Professional and personal care services": "waiting at a bank",
    "Household services": "waiting for a repair service",
    "Government services and civic obligations": "voting in an election",
    "Eating and drinking": "eating breakfast",
    "Socializing, relaxing, and leisure": "watching television",
    "Sports, exercise, and recreation": "running in a park",
    "Religious and spiritual activities": "praying",
    "Volunteer activities": "volunteering at a food bank",
    "Telephone calls": "talking on the phone",
    "Traveling": "driving a car",
}
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


HEAD = """\
# Written by `python -m eval.record_subjects`, which holds the rule as code.
name: who-appears-1
source: >-
  Professions: the 100 of chingyaoc/debias_vl generative/job_list.py (MIT). Public lists: Fair
  Diffusion (arXiv 2302.10893), Stay Fair (arXiv 2605.28036), sd-3-ethics
  (github.com/VoErik/sd-3-ethics), Stable Bias (arXiv 2303.11408), WinoBias (arXiv 1804.06876).
  Everyday situations: ours, one for each of the 17 major activity categories of the American Time
  Use Survey (Bureau of Labor Statistics, public domain).
rule: >-
  100 subjects. 17 situations, one per category of the survey, in its order. The other 83 are those
  of the paper's 100 professions that appear in the largest number of the five public lists, in
  alphabetical order among equals; actor and waiter are left out, since actress and waitress are in
  everyday use.
template: A photo of a {concept}.
"""


def written() -> str:
    """Return the content of the protocol's file."""
    professions = _listed(chosen_professions(SUBJECTS - len(EVERYDAY)))
    qualifiers = ", ".join(QUALIFIERS)
    everyday = _listed(EVERYDAY.values())
    return f"{HEAD}qualifiers: [{qualifiers}]\nprofessions:\n{professions}\neveryday:\n{everyday}\n"


def _listed(names: Iterable[str]) -> str:
    """Return names as a YAML list."""
    return "\n".join(f"  - {name}" for name in names)


if __name__ == "__main__":
    write_atomically(FILE, written())
