"""Who is shown? Decide by the words before an English noun phrase if its person is in the picture.

"a portrait of a nurse" shows the nurse, "a statue of a nurse" and "painted by a nurse" do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from vldebias.prompts.english.words import (
    STOPS,
    adjective,
    base,
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


def why_not_shown(text: Text, where: int, head: int) -> str:
    """Return why the words before a phrase exclude the person from the picture, or "".

    Args:
        text: The text.
        where: The position of the word before the phrase and its determiners.
        head: The position of the last noun of the phrase.
    """
    relation = text.before(where + 1)
    clause = text.low[text.clause_start(where) : where]
    # Nobody is there: "an open door, as if waiting for a guest".
    reason = NOBODY if relation and has_listed(clause, "simile") else ""
    if listed(singular(text.low[head]), "double-sense", "tool-sense"):
        reason = _why_not_double(text, where, head)
    if reason:
        return reason
    if relation == "of":
        return _why_not_of(text, where, head)
    if relation == "by":
        return _why_not_by(text.before(where))
    if relation in ("for", "as"):
        is_bare = not (listed(text.low[where + 1], "determiner") or is_plural(text.bare[head]))
        is_for = relation == "for"
        return _why_not_for(clause, is_bare) if is_for else _why_not_as(clause, text.after(head))
    if _is_elsewhere(text, where, head):
        return NOBODY
    # Unknown words before a copula are a name: "tajo brenn is a singer".
    is_word = any(kinds(word) or listed(word, *STOPS) for word in clause)
    is_unsure = listed(relation, "copula") and not is_word
    # "buying flowers from a vendor" shows the vendor.
    is_bought = relation == "from" and has_listed(clause, "receives")
    is_unsure |= listed(relation, "unsure-relation") and not is_bought
    return UNCLEAR if is_unsure else ""


def _is_elsewhere(text: Text, where: int, head: int) -> bool:
    """Return whether the word before a phrase shows that it is no person in the picture."""
    relation = text.before(where + 1)
    if listed(relation, "not-subject"):
        return True
    # People in general are not shown: "the things a person may feel".
    if kinds(relation).startswith("n") and listed(text.after(head), "modal"):
        return True
    # A thing is called a person: "time is a thief", "the sea is a painter".
    clause = text.low[text.clause_start(where) : where]
    modifiers = [word for word in clause[-3:-1] if not listed(word, "determiner")]
    is_thing = "n" in kinds("".join(clause[-1:])) and not listed(clause[-1], *STOPS)
    return listed(relation, "copula") and is_thing and not modifiers


def _why_not_double(text: Text, where: int, head: int) -> str:
    """Apply `why_not_shown` to nouns with two senses: "with a crook", "lying under a coach"."""
    relation = text.before(where + 1)
    modifiers = [word for word in text.low[where + 1 : head] if not listed(word, "determiner")]
    # A noun before it, a verb or "of" show that it is a person: "beside a tour guide".
    is_person = not all(map(adjective, modifiers)) or is_inflected(text.after(head), "s", "ing")
    # So does a receiver or one of two sides: "a referee between two boxers".
    if is_person or relation in ("of", "to", "between"):
        return ""
    if relation == "and" and kinds(text.before(where)).startswith("n"):
        return NOBODY  # "an ale and a porter"
    if not listed(relation, "preposition"):
        return ""
    return NOBODY if listed(singular(text.low[head]), "tool-sense") else UNCLEAR


def _why_not_for(clause: Sequence[str], is_bare: bool) -> str:
    """Apply `why_not_shown` to "for": "plays for a patient", not "sewing a dress for a nurse"."""
    verbs = [base(word) for word in clause if base(word) != word]
    # "a profile picture for a gamer" and "illustration for nurse" show them.
    is_pictured = has_listed(clause, "shows-owner", *(["shows-bare"] if is_bare else []))
    if has_listed(verbs, "serves") or is_pictured:
        return ""
    return NOBODY if not verbs or has_listed(verbs, "produces") else UNCLEAR


def _why_not_as(clause: Sequence[str], after: str) -> str:
    """Apply `why_not_shown` to "as": "smiles as the judge enters", not "dressed as a nurse"."""
    if is_inflected(after, "s"):
        return ""
    verb = clause[-2] if len(clause) > 1 and clause[-1] == "up" else "".join(clause[-1:])
    return NOBODY if verb.endswith(("ed", "ing")) else UNCLEAR


def _why_not_by(before: str) -> str:
    """Apply `why_not_shown` to "by": "pulled up by a guide", not "painted by a master"."""
    if listed(before, "credit-verb", "picture"):
        return NOBODY
    return "" if before.endswith(("ed", "ing")) or listed(before, "past") else UNCLEAR


def _why_not_of(text: Text, where: int, head: int) -> str:
    """Apply `why_not_shown` to "of": "a portrait of a nurse", not "a statue of a nurse"."""
    clause = text.low[text.clause_start(where) : where]
    if where > 0 and _is_on_thing(text, where - 1):
        return NOBODY
    before = text.before(where)
    is_one = not (is_plural(text.bare[head]) or listed(text.low[where + 1], "determiner"))
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
