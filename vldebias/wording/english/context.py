"""Find facts in a prompt that determine a value, as in "a Catholic priest" or "a Zulu warrior".

A fact determines a value if an informed viewer would call an image with a different value wrong,
not just unusual. A nurse, a welder or a CEO can have any gender. `facts/` lists the facts with
their sources. A listed word in the person's phrase, a listed fact about the scene, or an early date
determines the value, whoever it is about.
"""

from __future__ import annotations

from vldebias.wording.english.dates import AGE_BEFORE_NOUN, AGE_BEHIND, year_of_word
from vldebias.wording.english.facts import find_facts
from vldebias.wording.english.text import read_text

# Kind of attribute -> lists of facts that count in the person's phrase.
_IN_PHRASE = {
    kind: frozenset(names.split())
    for kind, names in {
        "gender": "body-state body closed-office stage-office league troops",
        "origin": "people people-capital past-people troops one-origin country",
        "skin": "people people-capital past-people troops one-origin country skin-mark",
        "age": "body-state league age-word illness-of-age level veteran learner",
    }.items()
}
# Kind of attribute -> lists of facts that count anywhere in the prompt.
_ANYWHERE = {
    kind: frozenset(names.split())
    for kind, names in {
        "gender": "body-state body closed-office closed-school church league world-cup war war-site"
        " event founders expedition moon-program academy period",
        "origin": "one-origin troops war war-site event period country",
        "skin": "one-origin troops war war-site event period country skin-mark",
        "age": "body-state illness-of-age mature veteran-war league olympics level",
    }.items()
}
# Roles that only men had among certain peoples: "a Zulu warrior", "an Assyrian archer".
_ROLES_OF_PEOPLES = (
    (frozenset({"warrior"}), frozenset({"people", "people-capital"})),
    (frozenset({"armed", "closed-warrior", "learned"}), frozenset({"past-people"})),
)
# Kind of attribute -> the first year in which no date of the scene determines a value.
_FIRST_OPEN_YEAR = {"gender": 1980, "origin": 1950, "skin": 1950, "age": 0}


def words_of_fact(prompt: str, start: int, end: int, kind: str) -> str:
    """Return the words that determine an attribute of a person, or "".

    Args:
        prompt: The prompt.
        start: The start of the person's noun phrase, excluding determiners.
        end: The end of the last noun in the phrase.
        kind: The attribute's `Attribute.kind`. Facts are known for gender, origin, skin and age.
    """
    if kind not in _IN_PHRASE:
        return ""
    text = read_text(prompt)
    lists_in_phrase: set[str] = set()
    for name, first, stop in find_facts(text):
        is_in_phrase = start <= text.start[first] and text.start[stop - 1] < end
        if name in _ANYWHERE[kind] or (is_in_phrase and name in _IN_PHRASE[kind]):
            return " ".join(text.words[first:stop])
        if is_in_phrase:
            lists_in_phrase.add(name)
    if kind == "gender":
        for roles, peoples in _ROLES_OF_PEOPLES:
            if roles & lists_in_phrase and peoples & lists_in_phrase:
                return prompt[start:end]
    for i, word in enumerate(text.words):
        year = year_of_word(text, i)
        if year is not None and year < _FIRST_OPEN_YEAR[kind]:
            return word
    if kind == "age":
        stated = AGE_BEHIND.search(prompt) or AGE_BEFORE_NOUN.search(prompt)
        if stated:
            return stated[0].strip(" ,")
    return ""
