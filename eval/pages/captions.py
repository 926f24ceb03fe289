"""Write the error of the list of refusals."""

from __future__ import annotations

import csv
from pathlib import Path

from apps.captions.reading import NOT_STATED, StatementReader
from eval.tables import paragraph
from vldebias.data.label_values import REFUSALS, UNDECIDED, is_refusal
from vldebias.prompts import load_prompts

_ANSWERS = Path(__file__).parents[2] / "tests" / "apps" / "captions" / "refusals.csv"


def refusals() -> str:
    """Write how many refusals the list finds, and how many other answers it takes for refusals."""
    reader = StatementReader(load_prompts("gender"))
    hits: dict[tuple[str, str], list[bool]] = {}
    with _ANSWERS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            text = row["answer"]
            counts = is_refusal(text) and reader.stated_value([text]) == NOT_STATED
            hits.setdefault((row["part"], row["is_refusal"]), []).append(counts)
    found = {part: sum(part_hits) for part, part_hits in hits.items()}
    return paragraph(
        f"Refusals are found by {len(REFUSALS)} English phrases, and {len(UNDECIDED)} words mark"
        " answers such as “I cannot tell”. On"
        f" {len(hits['held out', 'yes'])} refusals that were written in the words of models and not"
        f" used for the list, it finds {found['held out', 'yes']}, and it takes"
        f" {found['held out', 'no']} of {len(hits['held out', 'no'])} other answers for refusals."
        " On the answers used to write the list, half of whose refusals are hard on purpose, it"
        f" finds {found['development', 'yes']} of {len(hits['development', 'yes'])} refusals and"
        f" takes {found['development', 'no']} of {len(hits['development', 'no'])} others for"
        " refusals. Short ones, such as “Declined.”, and other languages are not found. So look at"
        " `captions.csv` before you report refusals."
    )
