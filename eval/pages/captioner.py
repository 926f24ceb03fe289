"""Write the table of edits of a small captioner."""

from __future__ import annotations

from eval.tables import read, rows_in, span, table
from vldebias.measure.rows import NONE

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
