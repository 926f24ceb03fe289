"""Find the people whom an English prompt shows.

Nouns for people are looked up in word lists. The words of their phrases and the surrounding words
determine whether the person is in the picture. In case of doubt, the prompt counts as not
understood.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from vldebias.prompts.english.words import (
    STOPS,
    adjective,
    base,
    classes,
    ends_phrase,
    has_gendered,
    has_listed,
    is_inflected,
    is_plural,
    kinds,
    listed,
    person,
    singular,
)
from vldebias.wording.english.names import find_names, is_named, is_of_picture
from vldebias.wording.english.phrases import (
    POSSESSIVE,
    PersonPhrase,
    extend_left,
    is_compound,
    is_gendered_noun,
    place_of_value,
    skip_medium,
)
from vldebias.wording.english.shown import why_not_shown
from vldebias.wording.english.text import Text, read_text
from vldebias.wording.english.things import (
    NOBODY,
    UNCLEAR,
    is_agent,
    is_animal,
    may_be_person,
    why_no_person,
)


def is_foreign(text: Text) -> bool:
    """Return whether a text contains more foreign words than English words."""
    foreign = 0
    before = ""
    for word in text.words:
        # "van" in "Vincent van Gogh" does not count as a foreign word.
        is_listed = listed(word.lower(), "foreign") and not before[:1].isupper()
        foreign += is_listed or word[0] > "\u024f"
        before = word
    return foreign > sum(listed(word, "english") for word in text.low)


@lru_cache(maxsize=1000)  # called for each image generated from a prompt
def find_subjects(prompt: str) -> tuple[PersonPhrase, ...] | str:
    """Return the people in a prompt in order of appearance, or the reason why none are found.

    If a noun may refer to an additional person, the prompt counts as not understood.
    """
    text = read_text(prompt)
    names = _names_of_people(text)
    has_names = not all(is_of_picture(text, first) for first, _ in names)
    subjects: list[PersonPhrase] = []
    depicted: set[str] = set()
    is_unclear = False
    for i in range(len(text.bare)):
        if not may_be_person(text, i):
            continue
        phrase = _read_phrase(text, i)
        noun = singular(text.bare[i])
        if phrase == NOBODY and has_listed(text.low[max(0, i - 4) : i], "statue"):
            depicted.add(noun)
        elif noun in depicted and text.before(i) == "the":
            phrase = NOBODY  # "a statue of a cook. The cook looks angry"
        if isinstance(phrase, PersonPhrase):
            phrase = _checked(text, phrase, names, subjects)
        if isinstance(phrase, PersonPhrase):
            subjects.append(phrase)
            # In "a Black nurse and a patient", "Black" is not the name of the patient.
            names = [name for name in names if not phrase.opening <= name[0] <= phrase.head]
        is_unclear |= phrase == UNCLEAR
        # "an elder general" is one person
        is_overlapping = len(subjects) > 1 and subjects[-1].start < subjects[-2].end
        if is_overlapping or (phrase == UNCLEAR and not is_gendered_noun(text.bare[i])):
            return UNCLEAR
    if not subjects:
        reason = UNCLEAR if is_unclear else NOBODY
        return "named" if has_names else reason
    if _has_unknown_person(text, subjects) or _leaves_one_out(text, subjects):
        return UNCLEAR
    return tuple(subjects)


def _names_of_people(text: Text) -> list[tuple[int, int]]:
    """Return the (first, stop) positions of names, except those of styles and animals."""
    names: list[tuple[int, int]] = []
    for first, stop in find_names(text):
        behind = text.low[stop : stop + 2]
        # "Edward Hopper style" is a style, but "Ada styled by" is a person.
        is_style = has_listed(text.low[stop - 1 : stop + 1], "style-word")
        # "Garfield the cat" and "a dog named Tom" are animals.
        is_of_animal = behind[:1] == ["the"] and is_animal(text.after(stop))
        is_called = text.before(first) in ("called", "named")
        is_of_animal = is_of_animal or (is_called and is_animal(text.before(first - 1)))
        if not is_of_animal and (not is_style or behind == ["styled", "by"]):
            names.append((first, stop))
    return names


def _checked(
    text: Text,
    phrase: PersonPhrase,
    names: list[tuple[int, int]],
    subjects: Sequence[PersonPhrase],
) -> PersonPhrase | str:
    """Return a phrase for an additional person, or the reason why it is not one."""
    if is_named(text, names, phrase.opening, phrase.head):
        phrase = phrase._replace(named=True)
    reason = _why_nobody_else(text, phrase, subjects) if subjects else ""
    return reason or phrase


# ---- reading one phrase


def _read_phrase(text: Text, i: int) -> PersonPhrase | str:
    """Return the phrase with head i, or the reason why it is not a person in the picture."""
    start, first_noun = extend_left(text, i)
    reason = why_no_person(text, i, start)
    if reason:
        return reason
    # A singular noun without a determiner is a tag ("doctor, 4k") or not a person at all.
    plural = is_plural(text.bare[i])
    determiner = text.before(start)
    has_determiner = listed(determiner, "determiner") or determiner.endswith(POSSESSIVE)
    is_bare = not plural and not has_determiner
    # The word before all determiners is decisive, such as "by" in "by all the masters".
    opening = start
    while listed(text.before(opening), "determiner"):
        opening -= 1
    reason = why_not_shown(text, opening - 1, is_bare, i)
    if is_bare:
        start = skip_medium(text, start, i)
        first_noun = max(start, first_noun)
        reason = reason or _why_no_tag(text, start, first_noun, i)
    place = place_of_value(text, start, first_noun, i, has_determiner)
    if reason or place is None:
        return reason or UNCLEAR
    words = [(text.start[j], text.low[j]) for j in range(start, first_noun + 1)]
    end = text.start[i] + len(text.bare[i])
    return PersonPhrase(words, text.start[start], end, text.start[place], plural, opening, i)


def _why_no_tag(text: Text, start: int, first_noun: int, i: int) -> str:
    """Return why a noun without a determiner is not a subject, or "" if it is: "doctor, 4k"."""
    is_in_brackets = _is_object_in_brackets(text, start)
    if not is_in_brackets and _is_tag_of_style(text, start, i):
        return UNCLEAR if _is_in_clause(text, i) else NOBODY
    # A verb separates two nouns, unlike in "horse riding instructor": "bus overtaking coach".
    has_verb = any(is_inflected(word, "ing") for word in text.low[start + 1 : i])
    is_clause = has_verb and not listed(singular(text.low[i]), "gerund-head")
    return UNCLEAR if is_clause or _begins_with_style(text, first_noun, i) else ""


def _is_in_clause(text: Text, i: int) -> bool:
    """Return whether word i is more than a tag, as in "customer reading a magazine"."""
    after = text.after(i)
    return after.endswith("ing") or listed(after, "preposition")


def _is_tag_of_style(text: Text, start: int, i: int) -> bool:
    """Return whether a tag may describe the picture instead of a person: "oil, master"."""
    noun = singular(text.bare[i])
    clauses_before = sum(text.opens[1 : start + 1])
    is_style = listed(noun, "style-tag") and (clauses_before or start == i)
    if is_style or (clauses_before and listed(noun, "art-tag")):
        return True
    # A late tag needs words that describe a person: "a lake, fog, elderly fisher".
    words = text.low[start:i]
    is_described = any(adjective(word) or set(kinds(word)) & set("npa") for word in words)
    # ... or an action of a person: "pixel art, 16-bit, gravedigger leaning on a shovel".
    has_verb = text.after(i).endswith("ing")
    acts = has_verb and listed(text.after(i + 1), "preposition", "determiner")
    return clauses_before > 1 and not (is_described or acts)


def _begins_with_style(text: Text, first_noun: int, i: int) -> bool:
    """Return whether a noun before head i may describe the picture, as in "film still welder"."""
    if listed(text.low[i], "art-tag", "thing"):
        return False
    nouns = [j for j in range(first_noun, i) if not (text.capital[j] or adjective(text.low[j]))]
    if len(nouns) > 2:
        return True  # Many nouns in a row are a list of tags: "epic mask helmet robot ninja".
    for j in range(first_noun, i):
        is_style = listed(text.low[j], "picture", "style-word")
        if is_style and not is_compound(text.low[j], text.low[j + 1]):
            return True
    return False


def _is_object_in_brackets(text: Text, start: int) -> bool:
    """Return whether a phrase in brackets follows a verb: "(mage:1.1) fighting (paladin:1.1)"."""
    is_in_brackets = text.prompt[: text.start[start]].endswith(("(", "["))
    return is_in_brackets and text.low[start - 1].endswith("ing")


# ---- several people


def _why_nobody_else(text: Text, subject: PersonPhrase, subjects: Sequence[PersonPhrase]) -> str:
    """Return why a phrase after others does not add a person, or "" if it adds one.

    It may repeat a person ("a nurse at a desk. The nurse smiles") or be a brand name ("a pilot in a
    Spitfire").
    """
    if _is_object_in_brackets(text, subject.opening):
        return ""
    last = subjects[-1]
    is_next_sentence = not text.is_same_sentence(last.head, subject.head)
    if _is_no_noun_for_another(text, subject.head, last.head, is_next_sentence):
        return NOBODY
    nouns = [singular(text.bare[earlier.head]) for earlier in subjects]
    if _is_further_tag(text, subject):
        words = text.low[subject.opening : subject.head]
        return _why_no_further_tag(text, subject, subjects, not set(nouns).isdisjoint(words))
    is_of_group = any(
        earlier.plural and listed(text.low[earlier.opening], "number-word") for earlier in subjects
    )
    is_member = text.low[subject.opening] == "the" and listed(text.low[subject.head], "generic")
    if is_of_group and not subject.plural and (is_next_sentence or is_member):
        # A single person after a group may be a member: "two people. One person reads".
        return UNCLEAR
    is_again = singular(text.bare[subject.head]) in nouns
    is_apposed = subject.opening == last.head + 1
    return _why_not_again(text, subject, is_again, is_next_sentence, is_apposed)


def _is_no_noun_for_another(text: Text, head: int, last: int, is_next_sentence: bool) -> bool:
    """Return whether word `head` is no person after a person at `last`: "a chef leads a team"."""
    noun = singular(text.low[head])
    is_make = text.capital[head] and not text.words[head].isupper()
    # A word right behind the person is a verb.
    is_verb = head == last + 1 and not text.opens[head]
    return is_make or is_verb or (is_next_sentence and listed(noun, "thing"))


def _is_further_tag(text: Text, subject: PersonPhrase) -> bool:
    """Return whether a phrase has no determiner and is not joined to the previous phrase."""
    opening = subject.opening
    is_bare = not listed(text.low[opening], "determiner") or text.low[opening].isdigit()
    # A number is part of an age, not a determiner: "68 year old man".
    is_bare = is_bare and not subject.plural
    before = text.before(opening)
    return is_bare and not listed(before, "joins") and not before.endswith("ing")


def _why_no_further_tag(
    text: Text, subject: PersonPhrase, subjects: Sequence[PersonPhrase], is_again: bool
) -> str:
    """Apply `_why_nobody_else` to a tag. `is_again` is True for "a thief at a lock, thief girl"."""
    is_first_bare = not listed(text.low[subjects[0].opening], "determiner")
    # Tags with verbs are people of their own: "officer holding the tape".
    heads = (subjects[-1].head, subject.head)
    is_like_first = is_first_bare and all(_is_in_clause(text, head) for head in heads)
    if is_like_first and not (is_again or subject.named):
        return ""
    return NOBODY if subject.named else UNCLEAR


def _why_not_again(
    text: Text, subject: PersonPhrase, is_again: bool, is_next_sentence: bool, is_apposed: bool
) -> str:
    """Return why a phrase may refer to an earlier person, or "" if it does not.

    `is_again` is True if an earlier person has the same noun.
    """
    is_definite = listed(text.low[subject.opening], "definite")
    if is_again and "only" in text.low[subject.opening - 1 : subject.head]:
        return NOBODY  # "a woman on a bed, only one woman visible"
    if is_again and is_next_sentence and text.low[subject.opening] in ("a", "an"):
        return UNCLEAR  # "A person eats. A person sweeps"
    if is_again and (is_next_sentence or is_definite):
        # Without adjectives, the noun repeats a person; otherwise it may be another one.
        return NOBODY if is_next_sentence and len(subject.words) == 1 else UNCLEAR
    if is_definite and listed(text.low[subject.opening + 1], "number"):
        return UNCLEAR  # "the two figures" are those mentioned before.
    # A definite or general noun may repeat a person: "a swimmer on a rock, the athlete looks".
    is_clause = is_next_sentence or (text.opens[subject.opening] and not is_apposed)
    is_general = text.low[subject.head] in ("figure", "character", "being", "subject")
    # "1girl, light around the character", but not "a hacker, the main character"
    is_called = is_apposed or listed(text.before(subject.opening), "is-also")
    is_repeated = is_definite and is_general and not is_called
    is_repeated |= is_clause and (is_definite or is_general)
    return UNCLEAR if is_repeated else ""


# ---- people without a noun phrase


def _has_unknown_person(text: Text, subjects: Sequence[PersonPhrase]) -> bool:
    """Return whether an unlisted noun may refer to an additional person: "a show jumper pulls"."""
    heads = {subject.head for subject in subjects}
    for i, noun in enumerate(text.low):
        if text.before(i) == "another" and noun != text.bare[i]:
            return True  # The owner of a thing is someone else: "another person's shirt".
        if person(noun) or not is_agent(noun) or listed(noun, *STOPS, "thing"):
            continue
        start, _ = extend_left(text, i)
        # The noun is joined to a person: "a cashier and a bagger".
        is_joined = text.before(start - 1) == "and" and start - 3 in heads
        after = text.after(i)
        acts = after.endswith("s") and classes(base(after)).startswith("v")
        acts = acts and is_inflected(f"{noun[:-2]}ing", "ing")  # not "a corridor gleams"
        if listed(text.before(start), "one-determiner") and (is_joined or acts):
            return True
    return False


def _leaves_one_out(text: Text, subjects: Sequence[PersonPhrase]) -> bool:
    """Return whether a person is mentioned only by a pronoun, a number or in a comparison.

    Examples are "hugging someone", "the first cook helps the second cook" and "more cooks than
    waiters".
    """
    has_group = any(subject.plural for subject in subjects)
    for i, word in enumerate(text.low):
        after = text.after(i)
        # "more tired cooks than busy waiters", but not "a cook smaller than the waiter"
        nouns = text.low[i + 1 : i + 4] if "more" in text.low[:i] else [after]
        is_compared = word == "than" and (after == "those" or any(map(person, nouns)))
        is_compared |= word == "other" and after == "half"
        is_object = word in ("someone", "somebody") and not after.endswith("s")
        # The person is introduced again as a man or woman: "a person, capturing a young man".
        is_again = listed(word, "introduces") and has_gendered(text.low[i + 2 : i + 7])
        if is_compared or is_object or (is_again and subjects[0].head < i):
            return True
        # In "two people, one reading and the other asleep", the group includes both.
        if not has_group and _is_pronoun_for_another(text, i):
            return True
    return False


def _is_pronoun_for_another(text: Text, i: int) -> bool:
    """Return whether word i is a pronoun for one more person: "one cook stirs, another chops"."""
    word = text.low[i]
    is_definite = "the" in (text.before(i), text.before(i - 1))
    if word not in ("another", "others") and not (is_definite and listed(word, "pronoun-noun")):
        return False
    after = text.after(i)
    is_alone = word == "others" or ends_phrase(after) or base(after) != after
    # The pronoun may refer to a thing: "a cup in one hand, a book in the other".
    ones = [text.after(j) for j in range(i) if text.low[j] == "one"]
    return is_alone and not (ones and "n" in kinds(ones[-1]))
