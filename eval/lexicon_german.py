"""Build the list of German nouns for people in both genders, `languages/de/persons.txt`.

The source is german-nouns 1.2.5, a table of nouns from the German Wiktionary (CC BY-SA 4.0). Two
nouns form a pair if the second is feminine and adds the ending "-in" to the first, with or without
an umlaut, as in Arzt and Ärztin.

    python -m eval.lexicon_german nouns.csv vldebias/wording/languages/de/persons.txt
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from eval.tables import plain_parser

_UMLAUTS = str.maketrans("aouAOU", "äöüÄÖÜ")
_HEADER = """\
# German nouns for people: masculine, feminine, and the genitive singular and nominative plural of
# the masculine. "-" stands for the masculine form: "Bäcker Bäckerin -s -".
# From german-nouns 1.2.5 (github.com/gambolputty/german-nouns), a table of nouns from the German
# Wiktionary. Licence: CC BY-SA 4.0 (creativecommons.org/licenses/by-sa/4.0).
# eval/lexicon_german.py finds pairs by the ending "-in". The things and animals among them are
# listed in words.txt.
"""


def feminine_candidates(noun: str) -> Iterator[str]:
    """Yield the possible feminine forms of a masculine noun."""
    stem = noun.removesuffix("e")
    yield stem + "in"
    vowels = list(re.finditer("au|[aou]", stem, re.IGNORECASE))
    if vowels:
        start = vowels[-1].start()
        yield stem[:start] + stem[start].translate(_UMLAUTS) + stem[start + 1 :] + "in"
    if noun.endswith("erer"):
        yield noun[:-2] + "in"  # Zauberer, Zauberin


def read_nouns(table: Path) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Return the first row of each masculine noun, and the set of feminine nouns."""
    masculine: dict[str, dict[str, str]] = {}
    feminine: set[str] = set()
    with table.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if "m" in (row["genus"], row["genus 1"]):
                masculine.setdefault(row["lemma"], row)
            if row["genus"] == "f":
                feminine.add(row["lemma"])
    return masculine, feminine


def pairs(table: Path) -> Iterator[str]:
    """Yield one line for each pair of nouns."""
    masculine, feminine_nouns = read_nouns(table)
    for noun, row in masculine.items():
        feminine = [form for form in feminine_candidates(noun) if form in feminine_nouns]
        if not feminine or len(noun) < 3:
            continue
        forms = [noun, feminine[0]]
        for name in ("genitiv singular", "nominativ plural"):
            form = row[name] or row[f"{name} 1"]
            # Only the ending of "Bäckers" is stored, as "-s".
            forms.append(f"-{form.removeprefix(noun)}" if form.startswith(noun) else form)
        if all(forms) and not any(" " in form for form in forms):
            yield " ".join(forms)


def main() -> None:
    parser = plain_parser(__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    lines = sorted(set(pairs(arguments.table)))
    arguments.out.write_text(_HEADER + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
