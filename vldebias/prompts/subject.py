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
    if len(prompt) > 4 and prompt.isupper():
        return "upper case"
    if text.foreign:
        return "not English"
    if gender and any(map(gendered, text.low)):
        return "stated"
    if any(f" {phrase} " in f" {' '.join(text.low)} " for phrase in (*lists()["unique"], *lists()["famous-phrase"])):
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
    if determiner == "no" or not _is_head(text, i, plural) or _thing(text, i, one, own):
        return None
    at = start
    while listed(text.before(at), "determiner"):
        at -= 1
    if not _in_picture(text, text.before(at), at - 1, bare) or (bare and not _tag(text, one, start, own)):
        return None
    return Subject(tuple((text.start[j], low[j]) for j in range(start, noun)), text.start[noun])


def _is_head(text: Text, i: int, plural: bool) -> bool:
    """Whether word i is the last noun of its phrase, not a modifier as in "nurse shark"."""
    after, rest = text.after(i), text.after(i + 1)
    adverb = after.endswith("ly") and not set(kinds(after)) & set("nx")
    if not after or adverb or listed(after, *STOPS, "asleep", "tag", "past"):
        return True
    described = listed(rest, "determiner", "pronoun") or adjective(rest)
    if after.endswith("s") and not plural and "v" in (known := kinds(base(after))):
        # A verb in its third person, or a noun in the plural: "the chef cooks a meal", "the nurse uniforms".
        return not classes(after).startswith("n") and (described or known.find("v") < (known + "n").find("n"))
    if listed(after, "made") and not listed(rest, "determiner"):
        return False  # "a child drawing", "an old master painting"
    if after.endswith("ing"):
        return listed(after, "human-verb") or "a" not in kinds(text.low[i]) or not _noun_follows(text, i + 1)
    return (plural and "v" in classes(after)) or not _noun_follows(text, i)  # "an alien liquid"


def _noun_follows(text: Text, i: int) -> bool:
    """Whether adjectives and nouns after word i end in a noun, which is then the head: "a giant floating castle"."""
    while (word := text.after(i)) and not listed(word, *STOPS, "tag"):
        if not adjective(word):
            return True
        i += 1
    return False


def _left(text: Text, i: int) -> tuple[int, int]:
    """Where the phrase of word i starts, and where its nouns do: "tired old | police officer"."""
    start = noun = i
    while start and (not text.opens[start] or _listed_adjectives(text, start)):
        word, last = text.low[start - 1], text.low[start]
        compound = classes(f"{word} {last}") in ("c", "p", "n")
        compound = compound or listed(f"{word} {singular(last)}", "person-phrase", "pair")
        joins = word == "and" and start > 1 and adjective(last) and adjective(text.low[start - 2])
        joins = joins or word in ("very", "quite", "most", "so")
        if not (noun == start and compound) and not joins:
            if listed(word, *STOPS, "not-subject") or word.endswith(_POSSESSIVE):
                break
            if listed(word, "draw") and text.opens[start - 1]:
                break
            place = listed(word, "place-adjective") and text.capital(start)
            gerund = word.endswith("ing") and "n" in kinds(word) and listed(singular(text.low[i]), "gerund-head")
            describes = adjective(word) or listed(word, "size", "age", "skin")
            compound = not describes or listed(word, "occupational") or place or gerund
        start -= 1
        noun = start if noun == start + 1 and compound and not joins else noun
    return start, noun


def _listed_adjectives(text: Text, start: int) -> bool:
    """Whether the comma before word `start` stands between adjectives of one phrase: "a tired, friendly author"."""
    first = start - 1
    while first and not text.opens[first] and adjective(text.low[first]):
        first -= 1
    return adjective(text.low[start]) and listed(text.low[first], "determiner")


def _thing(text: Text, i: int, one: str, own: list[str]) -> bool:
    """Whether a noun is an animal or a thing here: "a rabbit detective", "a toy soldier", "a server in a rack"."""
    phrase, after = f"{own[-1]} {one}" if own else "", text.after(i)
    if listed(phrase, "thing-phrase") or classes(phrase) in ("n", "x"):
        return True
    for kind, handles in (("brand", "brand-person"), ("toy", "toy-handles")):  # "a Ford Explorer", "a toy soldier"
        if any(listed(word, kind) for word in own) and not listed(one, handles):
            return True
    if any(map(_animal, own)) and not listed(one, "handles"):
        return True
    if listed(one, "cued-thing"):
        return any(listed(word, "thing-cue") for word in text.low) or (one == "model" and after == "of" and not own)
    if one in ("head", "chair"):
        return not (after == "of" and any(listed(singular(word), "organization") for word in text.low[i + 2 : i + 5]))
    human = listed(after, "human-verb") or any(listed(word, "thing-person") for word in own)
    human = human or (one in ("character", "figure") and (not own or adjective(own[-1])))
    return listed(one, "thing") and not human


def _animal(word: str) -> bool:
    other = gendered(word) or adjective(word) or listed(word, "not-animal")  # "a male nurse"
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
    if listed(relation, "not-subject"):
        return False
    if relation == "by":
        moves = before.endswith(("ed", "ing")) or listed(before, "past")
        return moves and not listed(before, "credit-verb", "picture")
    if relation == "of":
        kind = ("picture", "group", "part", "container", "number")
        return any(listed(word, *kind) for word in (before, singular(before)))
    return not (bare and relation) or listed(relation, "joins", "draw")
