"""Write the table of edits of a small captioner, and the error of the list of refusals."""

from __future__ import annotations

import csv
from pathlib import Path

from apps.captions.reading import NOT_STATED, StatementReader
from eval.tables import paragraph, read, rows_in, span, table
from vldebias.data.label_values import REFUSALS, UNDECIDED, is_refusal
from vldebias.measure.rows import NONE
from vldebias.prompts import load_prompts

_ANSWERS = Path(__file__).parents[2] / "tests" / "apps" / "captions" / "refusals.csv"

# Methods in the table, of those in the result, and their names on the page.
_TITLES = {
    NONE: "none",
    "features, difference of means": "features: difference of means",
    "features, LEACE": "features: LEACE",
    "features, cali": "features: cali",
    "hidden states, orth of word differences": "hidden states: orth of word differences",
    "neutral_texts": "text: `neutral_texts`, always",
    "abstaining, one margin": "text: `neutral_texts` if the odds are small, one margin",
    "abstaining, one margin per word": "text: the same, one margin per word",
}


def edits() -> str:
    """Write what each edit does to the captions."""
    result = read("captioner")
    clear = rows_in(result, "captions")
    unclear = rows_in(result, "captions, unclear")
    males = rows_in(result, "captions, unclear", "male")
    lines = []
    for method, title in _TITLES.items():
        male = males.get((method, "share"))
        cider = clear[method, "cider"].value / clear[NONE, "cider"].value
        lines.append(
            (
                title,
                span(clear[method, "said_wrong"]),
                f"{clear[method, 'said_right'].value:.3f}",
                f"{clear[method, 'said_none'].value:.3f}",
                f"{clear[method, 'said_gap'].value:+.3f}",
                f"{unclear[method, 'unclear_said'].value:.3f}",
                "" if male is None else f"{male.value:.2f}",
                f"{cider:.2f}",
            )
        )
    n = clear[NONE, "said_wrong"].n["images"]
    m = unclear[NONE, "unclear_said"].n["unclear images"]
    head = ("edit", "wrong", "right", "none", "gap", "unclear", "male", "CIDEr")
    note = (
        f"Wrong, right, none: shares of the captions of {n:,} photographs with a clear gender. Gap:"
        " women called men minus men called women. Unclear: share of the captions of"
        f" {m} unclear photographs that state a gender; male: how many of these say male. CIDEr is"
        " relative to no edit. Brackets: 95% intervals. From `eval/results/captioner.json`."
    )
    return table(head, *lines, note=note)


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
        f" Of the answers that it was written with, it finds {found['development', 'yes']} of"
        f" {len(hits['development', 'yes'])} refusals, of which half are worded to be hard, and"
        f" takes {found['development', 'no']} of {len(hits['development', 'no'])} others for"
        " refusals. Short ones, such as “Declined.”, and other languages are not found. So look at"
        " `captions.csv` before you report refusals."
    )
