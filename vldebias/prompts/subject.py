"""Find the subject of a prompt: the noun phrase of an unnamed person whose attribute value is not stated.

No parser is used. A noun for a person is looked up, its phrase extends to the left over adjectives and nouns, and the
surrounding words decide whether it is a person in the picture. In doubt the prompt has no subject.
"""

from __future__ import annotations

from typing import NamedTuple

from vldebias.prompts.english import (
    STOPS,
    Text,
    adjective,
    base,
    classes,
    gendered,
    kinds,
    listed,
    lists,
    named,
    person,
    person_names,
    singular,
    verb,
)

_POSSESSIVE = ("'s", "s'")


class Subject(NamedTuple):
    """Hold a noun phrase: its adjectives with their offsets, and the offset at which its nouns start."""

    adjectives: tuple[tuple[int, str], ...]
    noun: int


def find_subject(prompt: str, gender: bool = True) -> Subject | str:
    """Return the subject of a prompt, or the reason why it has none.

    Args:
        prompt: an English prompt for an image generator.
        gender: whether the attribute is gender: then a noun that states a gender is not a subject. For any other
            attribute such a noun can be one.
    """
    text = Text(prompt)
    letters = [c for c in prompt if c.isalpha()]
    if len(letters) > 4 and all(c.isupper() for c in letters):
        return "upper case"
    if text.foreign:
        return "not English"
    if gender and any(map(gendered, text.low)):
        return "stated"
    spaced = f" {' '.join(text.low)} "
    if any(f" {phrase} " in spaced for phrase in lists()["unique"]):
        return "named"
    names, seen = person_names(text), False
    for i, word in enumerate(text.low):
        maybe = person(word) or listed(singular(word), "thing") or (not gender and listed(word, "gendered-noun"))
        maybe = maybe or listed(f"{text.before(i)} {singular(word)}", "person-phrase")
        if maybe and not text.silent[i] and not listed(word, "no-single-value"):
            seen = True
            if found := _phrase(text, i):
                return "named" if named(text, names, i) else found
    return "named" if names else "no person in the picture" if seen else "no person"


def _phrase(text: Text, i: int) -> Subject | None:
    """The phrase whose head is word i, a noun for a person; None where it is no person in the picture."""
    low, one = text.low, singular(text.low[i])
    plural = low[i] != one
    start, noun = _left(text, i)
    determiner, own = text.before(start), low[start:i]
    bare = not plural and not listed(determiner, "determiner") and not determiner.endswith(_POSSESSIVE)
    if determiner == "no" or not _is_head(text, i, plural, determiner) or _thing(text, i, one, own):
        return None
    at = start
    while at and not text.opens[at] and (listed(low[at - 1], "determiner") or low[at - 1].endswith(_POSSESSIVE)):
        at -= 1
    if not _in_picture(text, text.before(at), at - 1, bare) or (bare and not _tag(text, one, start, own)):
        return None
    return Subject(tuple((text.start[j], low[j]) for j in range(start, noun)), text.start[noun])


def _is_head(text: Text, i: int, plural: bool, determiner: str) -> bool:
    """Whether word i is the last noun of its phrase, not a modifier as in "nurse shark"."""
    after, rest = text.after(i), text.after(i + 1)
    if not after or listed(after, *STOPS, "asleep", "tag") or listed(f"{after} {rest}", "verb-pair"):
        return True
    if after.endswith("ly") and not set(kinds(after)) & set("nx"):
        return True
    own, known, like_adjective = kinds(after), kinds(base(after)), "a" in kinds(text.low[i])
    described = listed(rest, "determiner", "pronoun") or adjective(rest)
    if after.endswith("s") and after != singular(base(after)) and not plural and "v" in known:
        # A verb in its third person, or a noun in the plural: "the chef cooks a meal", "the nurse uniforms".
        verbal = known.find("v") < (known + "n").find("n")
        return not classes(after).startswith("n") and not person(after) and (described or verbal)
    if person(after) or gendered(after) or (listed(after, "made") and not listed(rest, "determiner")):
        return False  # "a child drawing", "an old master painting"
    if after.endswith("ing"):
        return not (like_adjective and not listed(after, "human-verb") and _noun_follows(text, i + 1))
    if verb(after, plural):
        return own.find("v") < own.find("n") or after.endswith("ed") or plural or described
    return not (like_adjective and not plural) and not _noun_follows(text, i)  # "an alien liquid"


def _noun_follows(text: Text, i: int) -> bool:
    """Whether adjectives and nouns after word i end in a noun, which is then the head: "a giant floating castle"."""
    for j in range(i + 1, len(text)):
        word = text.low[j]
        if text.opens[j] or listed(word, *STOPS, "tag"):
            return False
        if not adjective(word) and (set(kinds(word)) & set("npx") or not kinds(word).strip("fli")):
            return True
    return False


def _left(text: Text, i: int) -> tuple[int, int]:
    """Where the phrase of word i starts, and where its nouns do: "tired old | police officer"."""
    start = noun = i
    while start and (not text.opens[start] or _listed_adjectives(text, start)):
        word, last = text.low[start - 1], text.low[start]
        own, plain = kinds(word), listed(word, "size", "age", "skin")
        together = not plain and classes(f"{word} {last}") in (("p",) if start == i else ("c", "p", "n"))
        compound = together or listed(f"{word} {singular(last)}", "person-phrase", "pair")
        joins = word == "and" and start > 1 and adjective(last) and adjective(text.low[start - 2])
        joins = joins or word in ("very", "quite", "most", "so") or (word.endswith("ly") and "r" in own)
        if not (noun == start and compound) and not joins:
            if listed(word, *STOPS) or word.endswith(_POSSESSIVE):
                break
            describes = adjective(word) or plain or listed(word, "origin")
            describes = describes or (word.endswith("ing") and start == i and listed(singular(last), "anybody"))
            if not describes and _begins_before(text, start, i):
                break
            related = "o" in own and word.endswith(("al", "ary", "ar")) and not listed(word, "descriptive")
            place = listed(word, "place-adjective") and text.capital(start)
            gerund = word.endswith("ing") and "n" in own and listed(singular(text.low[i]), "gerund-head")
            compound = not plain and (listed(word, "occupational") or related or place or gerund)
            compound = compound or not describes
        start -= 1
        noun = start if noun == start + 1 and compound and not joins else noun
    return start, noun


def _begins_before(text: Text, start: int, i: int) -> bool:
    """Whether the word before word `start` is no noun of the phrase of word i but a verb, or an order to draw."""
    at, word = start - 1, text.low[start - 1]
    subject, own = text.before(at), kinds(word)
    if text.opens[at] and text.sentence[at] and listed(word, "draw"):
        return True
    brand = text.capital(at) and not text.sentence[at]
    verbal = own[:1] in ("v", "r") and not brand and (not set(own) & set("np") or singular(subject) != subject)
    third = word.endswith("s") and (subject in ("that", "who", "which") or (verb(word, False) and person(subject)))
    object_of = singular(word) != word and start != i and "v" in kinds(text.low[start])  # "balls hide children"
    return verbal or third or (object_of and not listed(word, "plural-modifier"))


def _listed_adjectives(text: Text, start: int) -> bool:
    """Whether the comma before word `start` stands between adjectives of one phrase: "a tired, friendly author"."""
    first = start - 1
    while first and not text.opens[first] and adjective(text.low[first]):
        first -= 1
    return adjective(text.low[start]) and listed(text.low[first], "determiner")


def _thing(text: Text, i: int, one: str, own: list[str]) -> bool:
    """Whether a noun is an animal or a thing here: "a rabbit detective", "a toy soldier", "a server in a rack"."""
    phrase, after = f"{own[-1]} {one}" if own else "", text.after(i)
    if listed(phrase, "person-phrase"):
        return False
    if listed(phrase, "thing-phrase") or classes(phrase) in ("n", "x") or (one == "elder" and text.before(i) == "the"):
        return True
    for kind, handles in (("brand", "brand-person"), ("toy", "toy-handles")):  # "a Ford Explorer", "a toy soldier"
        if any(listed(word, kind) for word in own) and not listed(one, handles):
            return True
    if any(map(_animal, own)) and not listed(one, "handles"):
        return True
    cued = any(listed(word, "thing-cue") for word in text.low)
    if one == "model":
        return cued or (after == "of" and not own) or own[-1:] in (["3d"], ["d"], ["scale"], ["clay"])
    if listed(one, "cued-thing"):
        return cued
    if one in ("head", "chair"):
        return not (after == "of" and any(listed(singular(word), "organization") for word in text.low[i + 2 : i + 5]))
    human = any(listed(word, "thing-person", "human-adjective") for word in own)
    human = human or listed(text.after(i + 1) if after == "is" else after, "human-verb")
    human = human or (one in ("character", "figure") and (not own or adjective(own[-1])))
    if after in ("in", "with", "on", "at", "behind"):
        human = human or any(listed(word, "human-thing") for word in text.low[i + 2 : i + 8])
    return listed(one, "thing") and (cued or not human)


def _animal(word: str) -> bool:
    if gendered(word):  # "a male nurse"
        return False
    other = adjective(word) or listed(word, "not-animal")
    return listed(singular(word), "animal") or ("x" in kinds(word)[:2] and not other)


def _tag(text: Text, one: str, start: int, own: list[str]) -> bool:
    """Whether a noun without a determiner is a subject: "doctor, 4k", not "a lake, award winning photographer"."""
    clauses = sum(text.opens[1 : start + 1])
    if (listed(one, "style-tag") and (clauses or not own)) or (listed(one, "art-tag") and clauses):
        return False
    return clauses < 2 or any(adjective(word) or set(kinds(word)) & set("npa") for word in own)


def _in_picture(text: Text, relation: str, where: int, bare: bool) -> bool:
    """Whether what stands before a phrase leaves the person in the picture: not "a painting by a master"."""
    before = text.before(where) if relation else ""
    if listed(relation, "not-subject") or (relation, before) == ("on", "based"):
        return False
    if relation == "by":
        moves = (before.endswith(("ed", "ing")) or listed(before, "past")) and not listed(before, "picture")
        return moves and not listed(before, "credit-verb")
    if relation == "of":
        kind = ("picture", "group", "part", "container", "number")
        return not before or any(listed(word, *kind) for word in (before, singular(before)))
    if bare and relation:
        return listed(relation, "joins", "draw") or relation.endswith("ing")
    return True
