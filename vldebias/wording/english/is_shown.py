"""Who is shown? Decide by the words before an English noun phrase if its person is in the picture.

"a portrait of a nurse" shows the nurse, "a statue of a nurse" and "painted by a nurse" do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from vldebias.prompts.english.words import (
    STOPS,
    adjective,
    base,
    classes,
    has_listed,
    is_inflected,
    is_plural,
    kinds,
    listed,
    nouns_near,
    person,
    singular,
)
from vldebias.wording.english.phrases import NOBODY, UNCLEAR, extend_left, is_gendered_noun
from vldebias.wording.english.text import Text


def why_not_shown(text: Text, where: int, bare: bool, head: int) -> str:
    """Return why the words before a phrase exclude the person from the picture, or "".

    Args:
        text: The text.
        where: The position of the word before the phrase and its determiners.
        bare: Whether the phrase is in the singular and has no determiner.
        head: The position of the last noun of the phrase.
    """
    relation = text.before(where + 1)
    clause = text.low[text.clause_start(where) : where]
    # Nobody is there: "an open door, as if waiting for a guest".
    reason = NOBODY if relation and has_listed(clause, "simile") else ""
    if listed(singular(text.low[head]), "double-sense", "tool-sense"):
        reason = _why_not_double(text, where, head)
    # The word before the first of two people counts for both: "for pet owners and tourists".
    if relation in ("and", "or") and person(text.before(where)):
        first, _ = extend_left(text, where - 1)
        first -= listed(text.before(first), "article")
        if text.before(first) in ("for", "by", "like", "with"):
            reason = why_not_shown(text, first - 1, bare, where - 1)
    if reason:
        return reason
    if relation == "of":
        reason = _why_not_of(text, where, head)
    elif relation == "by":
        reason = _why_not_by(text.before(where), clause)
    elif relation == "for":
        reason = _why_not_for(clause)
    elif relation == "as":
        reason = _why_not_as(clause, text.after(head))
    elif _is_elsewhere(text, where, head):
        reason = NOBODY
    elif _is_unsure_relation(text, where, bare, head):
        reason = UNCLEAR
    return reason


def _is_elsewhere(text: Text, where: int, head: int) -> bool:
    """Return whether the word before a phrase shows that it is no person in the picture."""
    relation = text.before(where + 1)
    before = text.before(where)
    # The noun stands for the place: "at the hairdresser".
    is_place = relation == "at" and text.low[where + 1] == "the" and not listed(before, "addresses")
    clause = text.low[text.clause_start(where) : where]
    is_metaphor = listed(relation, "copula") and _is_metaphor(clause)
    # People in general are not shown: "the things a person may feel".
    is_general = kinds(relation).startswith("n") and listed(text.after(head), "modal")
    is_tribute = listed(relation, "not-subject", "worn") or listed(before, "tribute")
    return is_place or is_metaphor or is_tribute or is_general


def _is_metaphor(subject: Sequence[str]) -> bool:
    """Return whether a thing is called a person: "time is a thief", "the sea is a painter"."""
    noun = "".join(subject[-1:])
    words = [word for word in subject[-3:-1] if not listed(word, "determiner")]
    is_alone = not words or (len(words) == 1 and words[0] in ("and", "but", "while", "where"))
    # A word for a role or for the picture is no metaphor: "the subject is a nurse".
    is_role = listed(noun, *STOPS, "thing", "generic", "picture", "names-role")
    return is_alone and "n" in kinds(noun) and not is_role


def _is_unsure_relation(text: Text, where: int, bare: bool, head: int) -> bool:
    """Return whether the word before a phrase leaves open whether the person is shown."""
    relation = text.before(where + 1)
    before = text.before(where)
    clause = text.low[text.clause_start(where) : where]
    # Unknown words before a copula are a name: "tajo brenn is a singer".
    is_word = any(kinds(word) or listed(word, *STOPS) for word in clause)
    is_unsure = listed(relation, "copula") and not is_word
    # Without an article, the noun may be a verb or part of a name: "a dog ready to guard".
    is_joined = listed(relation, "joins", "draw", "preposition") or relation.endswith("ing")
    if relation == "to" and "v" in classes(text.low[head]):
        is_joined = any(map(person, clause))  # "customer talking to guide"
    is_unsure |= bare and relation != "" and not is_joined
    is_bought = relation == "from" and has_listed(clause, "receives")
    is_unsure |= listed(relation, "unsure-relation") and before != "across" and not is_bought
    # What somebody becomes may not be shown: "puppies become chefs".
    return is_unsure or listed(base(before if relation == "into" else relation), "becomes")


def _why_not_double(text: Text, where: int, head: int) -> str:
    """Apply `why_not_shown` to nouns with two senses: "with a crook", "lying under a coach"."""
    relation = text.before(where + 1)
    before = text.before(where)
    if listed(before, "addresses") or listed(relation, "meets"):
        return ""
    after = text.after(head)
    acts = is_inflected(after, "s", "ing")
    is_handled = listed(relation, "handled", "encloses")
    if is_handled or text.low[head + 1 : head + 3] == ["in", "hand"]:
        # The verb may be that of someone else: "a tourist on a coach looking out".
        return UNCLEAR if acts else NOBODY
    modifiers = [word for word in text.low[where + 1 : head] if not listed(word, "determiner")]
    # A noun before it, a verb or "of" show that it is a person: "beside a tour guide".
    is_person = not all(map(adjective, modifiers))
    # So does a receiver or one of two sides: "a referee between two boxers".
    is_side = relation in ("of", "to", "between")
    is_linked = listed(relation, "preposition") or relation.endswith("ing")
    is_with_thing = relation == "and" and kinds(before).startswith("n")
    is_with_thing &= not listed(before, "group")
    if acts or is_person or is_side or not (is_linked or is_with_thing):
        return ""
    # "an ale and a porter"
    is_thing = is_with_thing or listed(singular(text.low[head]), "tool-sense")
    return NOBODY if is_thing else UNCLEAR


def _why_not_for(clause: Sequence[str]) -> str:
    """Apply `why_not_shown` to "for": "plays for a patient", not "sewing a dress for a nurse"."""
    verbs = [base(word) for word in clause if base(word) != word]
    # "a character sheet for a pilot" shows the pilot
    if has_listed(verbs, "serves") or has_listed(clause, "shows-owner"):
        return ""
    return NOBODY if not verbs or has_listed(verbs, "produces") else UNCLEAR


def _why_not_as(clause: Sequence[str], after: str) -> str:
    """Apply `why_not_shown` to "as": "smiles as the judge enters", not "dressed as a nurse"."""
    if is_inflected(after, "s"):
        return ""
    verb = clause[-2] if len(clause) > 1 and clause[-1] == "up" else "".join(clause[-1:])
    return NOBODY if verb.endswith(("ed", "ing")) else UNCLEAR


def _why_not_by(before: str, clause: Sequence[str]) -> str:
    """Apply `why_not_shown` to "by": "pulled up by a guide", not "painted by a master"."""
    if listed(before, "credit-verb", "picture"):
        return NOBODY
    if before.endswith(("ed", "ing")) or listed(before, "past"):
        return ""
    return NOBODY if has_listed(clause, "credit-verb", "picture") else UNCLEAR


def _why_not_of(text: Text, where: int, head: int) -> str:
    """Apply `why_not_shown` to "of": "a portrait of a nurse", not "a statue of a nurse"."""
    clause = text.low[text.clause_start(where) : where]
    if (where > 0 and _is_on_thing(text, where - 1)) or ("like", "the") in pairwise(clause[-5:]):
        return NOBODY  # "a tree with branches like the arms of an elder"
    before = text.before(where)
    if text.low[where + 1] in ("this", "these"):
        return UNCLEAR  # "a photo of this model" refers to another picture
    is_one = not (is_plural(text.bare[head]) or listed(text.low[where + 1], "determiner", "number"))
    if listed(before, "group") and is_one:
        return UNCLEAR  # A group needs a plural: "a group of police officer" is misspelled.
    # The owner is shown if somebody touches the thing: "checking the ticket of a passenger".
    is_carried = listed(before, "carried") and has_listed(clause, "touches")
    parts = ("picture", "shows-owner", "group", "part", "body-part", "container", "number")
    if is_carried or has_listed((singular(before), *nouns_near(before)), *parts):
        return ""  # The word may have a wrong letter: "portait of a nurse".
    if "for" in clause and has_listed(clause[: clause.index("for")], "picture"):
        return ""  # A purpose may precede "of": "a portrait for my website of a lawyer".
    # There is no determiner or adjective before the noun, as in "change of guard".
    is_term = where + 1 == head and not is_plural(text.bare[head])
    is_depiction = listed(before, "toy", "depiction")
    return NOBODY if is_depiction or is_term or person(before) else UNCLEAR


def _is_on_thing(text: Text, where: int) -> bool:
    """Return whether a noun is an image in the image: "a cook beside a poster of a nurse"."""
    if not listed(text.low[where], "picture"):
        return False
    start, _ = extend_left(text, where)
    words = [word for word in text.low[:start] if not listed(word, "determiner")]
    if not words or listed(words[-1], "takes-picture"):
        return False
    return any(person(word) or is_gendered_noun(word) for word in words)
