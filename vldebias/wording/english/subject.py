"""Find noun phrases for the people whom an English prompt shows.

No parser is used. Nouns for people are looked up in word lists, their phrases extend to the left
over adjectives and nouns, and the surrounding words determine whether the person is in the picture.
In case of doubt, the prompt counts as not understood.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

from vldebias.prompts.english.words import (
    STOPS,
    adjective,
    base,
    classes,
    gendered,
    has_gendered,
    has_gendered_ending,
    has_listed,
    is_proper,
    kinds,
    listed,
    person,
    singular,
)
from vldebias.wording.english.names import find_names, is_known, is_named, is_of_picture
from vldebias.wording.english.text import Text, read_text

# A possessive acts as a determiner, as in "the king's guard".
_POSSESSIVE = ("'s", "s'")
_LONGEST_PHRASE = 20  # words
_NEAR = 8  # words
_AGENT_ENDINGS = ("er", "or", "ist", "ian", "ant", "eer", "host", "mage")
# Endings of words that no dictionary lists but that are no names: "retrofuturistic", "cyberpunk".
_DERIVED = re.compile(r"(?:istic|ish|ist|ic|al|ous|ful|less|ed|ing|y|punk|core)$")
# Reasons to skip a noun: it does not refer to a person, or the rules cannot decide.
_NOBODY = "no person"
_UNCLEAR = "not understood"


class PersonPhrase(NamedTuple):
    """A noun phrase for a person in an English text.

    `English.find` converts phrases to mentions. Two phrases may refer to the same person.

    Attributes:
        words: The offset and the lower-case form of each adjective and of the first noun.
        start: The offset of the first word after determiners ("tired" in "two tired coaches").
        end: The offset of the end of the last noun.
        place: The last offset at which a value may be inserted.
        plural: Whether the last noun is in the plural.
        opening: The position of the first determiner in the words of the text.
        head: The position of the last noun.
        named: Whether the text names the person.
    """

    words: list[tuple[int, str]]
    start: int
    end: int
    place: int
    plural: bool
    opening: int
    head: int
    named: bool = False


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
    # "Edward Hopper style" does not name a person in the picture.
    names = find_names(text)
    names = [name for name in names if not _is_style(text, name[1])]
    names = [name for name in names if not _is_of_animal(text, *name)]
    has_names = not all(is_of_picture(text, first) for first, _ in names)
    is_unclear = False
    subjects: list[PersonPhrase] = []
    for i in range(len(text.bare)):
        if not _may_be_person(text, i):
            continue
        subject = _phrase(text, i)
        if isinstance(subject, PersonPhrase):
            if is_named(text, names, subject.opening, i):
                subject = subject._replace(named=True)
            reason = "" if subject.named else _why_name(text, i)
            if subjects and not reason:
                reason = _why_nobody_else(text, subject, subjects)
            if not reason:
                subjects.append(subject)
                # In "a Black nurse and a patient", "Black" is not the name of the patient.
                names = [name for name in names if not subject.opening <= name[0] <= subject.head]
        else:
            reason = subject
        is_overlapping = len(subjects) > 1 and subjects[-1].start < subjects[-2].end
        if is_overlapping or (reason == _UNCLEAR and not is_gendered_noun(text.bare[i])):
            is_unclear = True  # "an elder general" is one person
    heads = {subject.head for subject in subjects}
    is_unclear = is_unclear or (bool(subjects) and _has_unknown_person(text, heads))
    if is_unclear or _leaves_one_out(text, subjects):
        return _UNCLEAR
    if subjects:
        return tuple(subjects)
    return "named" if has_names else _NOBODY


def _is_style(text: Text, stop: int) -> bool:
    """Return whether a name before word `stop` is that of a style, unlike "Ada styled by"."""
    is_style = has_listed(text.low[stop - 1 :][:2], "style-word")
    return is_style and text.low[stop : stop + 2] != ["styled", "by"]


def _is_of_animal(text: Text, first: int, stop: int) -> bool:
    """Return whether a name is that of an animal: "Garfield the cat", "a dog named Tom"."""
    is_before = text.low[stop : stop + 1] == ["the"] and _is_animal(text.after(stop))
    return is_before or (
        text.before(first) in ("called", "named") and _is_animal(text.before(first - 1))
    )


def _leaves_one_out(text: Text, subjects: Sequence[PersonPhrase]) -> bool:
    """Return whether a person is only mentioned by a pronoun or in a comparison.

    Examples are "hugging someone", "one cook stirs, another chops" and "more cooks than waiters".
    """
    has_group = any(subject.plural for subject in subjects)
    for i, word in enumerate(text.low if subjects else ()):
        before = text.before(i)
        after = text.after(i)
        is_compared = word == "than" and singular(after) != after and person(after)
        is_object = word in ("someone", "somebody") and not after.endswith("s")
        if is_compared or is_object:
            return True
        is_behind = subjects[0].head < i
        if is_behind and listed(word, "introduces") and has_gendered(text.low[i + 1 : i + 7]):
            # The person is introduced again as a man or woman: "a person, capturing a young man".
            return True
        is_pronoun = listed(word, "pronoun-noun") and "the" in (before, text.before(i - 1))
        is_pronoun |= word in ("another", "others") and before != "one"
        is_alone = not after or listed(after, *STOPS) or base(after) != after or word == "others"
        # In "two people, one reading and the other asleep", the group includes both.
        if is_pronoun and is_alone and not has_group and not _is_of_things(text, i):
            return True
    return False


def _is_of_things(text: Text, i: int) -> bool:
    """Return whether pronoun i refers to a thing: "a cup in one hand, a book in the other"."""
    for j in range(i - 1, -1, -1):
        if text.low[j] == "one" and text.after(j):
            noun = text.after(j)
            return not (person(noun) or listed(noun, *STOPS)) and "n" in kinds(noun)
    return False


def _has_unknown_person(text: Text, heads: Collection[int]) -> bool:
    """Return whether an unlisted noun may refer to an additional person: "a show jumper pulls".

    `heads` contains the positions of the nouns of known people.
    """
    for i, noun in enumerate(text.low):
        if text.before(i) == "another" and noun != text.bare[i] and person(text.bare[i]):
            return True  # The owner of a thing is someone else: "another person's shirt".
        is_known = person(noun) or gendered(noun) or listed(noun, *STOPS, "thing")
        if text.silent[i] or i in heads or is_known or not is_agent(noun):
            continue
        start, _ = _extend_left(text, i)
        # The noun is joined to a person: "a cashier and a bagger".
        is_joined = text.before(start - 1) == "and" and start - 3 in heads
        after = text.after(i)
        gerund = f"{noun[:-2]}ing"
        acts = after.endswith("s") and classes(base(after)).startswith("v")
        acts |= listed(after, "human-verb")
        acts = acts and base(gerund) != gerund  # not "a corridor gleams"
        if listed(text.before(start), "one-determiner") and (is_joined or acts):
            return True
    return False


def is_agent(noun: str) -> bool:
    """Return whether a noun ends like a profession and is not a known thing."""
    return noun.endswith(_AGENT_ENDINGS) and not listed(noun, "agent-like", "animal")


def _ends_phrase(text: Text, i: int) -> bool:
    """Return whether noun i is at the end of a phrase."""
    after = text.after(i)
    return not after or listed(after, *STOPS) or after.endswith("ing")


def _may_be_person(text: Text, i: int) -> bool:
    """Return whether word i may be a noun for a person."""
    word = text.bare[i]
    # Past tenses look like nouns for people: "I chased".
    is_verb = word.endswith("ed") and base(word) != word
    if len(word) == 1 or is_verb or text.silent[i] or listed(word, "no-single-value", "asleep"):
        return False
    if word != text.low[i] and (singular(word) != word or not _shows_body(text, i)):
        return False  # The owner of a thing is not shown: "a nurse's uniform".
    # The context may turn a thing into a person, as in "a fan in the stands".
    is_noun = person(word) or is_gendered_noun(word)
    # Some nouns for people are part of a thing: "hero shot".
    is_noun = is_noun and not listed(f"{word} {text.after(i)}", "thing-phrase")
    if is_noun or listed(singular(word), "thing") or _has_face(text, i):
        return True
    phrase = f"{text.before(i)} {singular(word)}"
    return listed(phrase, "person-phrase") or (classes(phrase) == "p" and is_agent(singular(word)))


def _has_face(text: Text, i: int) -> bool:
    """Return whether the prompt mentions the face of word i, as in "the face of a mover"."""
    noun = singular(text.low[i])
    # Words with the ending of a profession may be things: "newspaper".
    is_thing = classes(noun) == "n" and not listed(noun, "thing", "unsure")
    if is_thing or not is_agent(noun) or not _ends_phrase(text, i):
        return False  # Only people have faces here, unlike "the face of a tower clock".
    for j in range(i - 1, max(-1, i - 6), -1):
        if text.low[j] == "of":
            return listed(text.before(j), "face")
    return False


def leaves_out_gendered(text: Text, subjects: Sequence[PersonPhrase]) -> bool:
    """Return whether the phrases leave out somebody, as in "a family, woman, men, girl is taller".

    Args:
        text: The text.
        subjects: The noun phrases for people, in order of appearance.
    """
    heads = {singular(text.low[subject.head]) for subject in subjects}
    for i, word in enumerate(text.low):
        is_in_phrase = any(subject.opening <= i <= subject.head for subject in subjects)
        is_other = is_gendered_noun(word) and singular(word) not in heads and not is_in_phrase
        if not is_other or text.silent[i] or text.credited[i] or not _ends_phrase(text, i):
            continue
        start, _ = _extend_left(text, i)
        determiner = text.before(start)
        link = text.before(start - 1) if determiner else determiner
        is_shown = not listed(determiner, "possessor", "preposition", "not-subject")
        if (
            is_shown
            and not listed(link, "not-subject", "unsure-relation")
            and link not in ("by", "for", "as")
        ):
            return True
    return False


def is_gendered_noun(word: str) -> bool:
    """Return whether a lower-case word is a gendered noun for a person."""
    if listed(word, "gendered-noun", "gendered-title") or has_gendered_ending(word):
        return True
    return gendered(word) and word.endswith(("man", "men"))


def _why_nobody_else(text: Text, subject: PersonPhrase, subjects: Sequence[PersonPhrase]) -> str:
    """Return why a phrase after others does not add a person, or "" if it adds one.

    It may repeat a person ("a nurse at a desk. The nurse smiles"), or it may be a brand name ("a
    pilot in a Spitfire") or a baby, whose gender is not visible in a picture.
    """
    if _is_object_in_brackets(text, subject.opening):
        return ""
    head = subject.head
    noun = singular(text.low[head])
    words = text.low[subject.opening : head]
    is_make = text.capital[head] and not text.words[head].isupper()
    # A word right behind the person is a verb: "a chef leads a team".
    is_verb = head == subjects[-1].head + 1 and not text.opens[head]
    is_next_sentence = not text.is_same_sentence(subjects[-1].head, head)
    is_thing = listed(noun, "baby") or (is_next_sentence and listed(noun, "thing"))
    # The person is a model for the picture: "based on a real person".
    is_model = noun in ("person", "individual") and has_listed(words, "real")
    if is_make or is_verb or is_thing or is_model:
        return _NOBODY
    nouns = [singular(text.low[earlier.head]) for earlier in subjects]
    if _is_further_tag(text, subject):
        return _why_no_further_tag(text, subject, subjects, not set(nouns).isdisjoint(words))
    is_of_group = any(
        earlier.plural and listed(text.low[earlier.opening], "number-word") for earlier in subjects
    )
    is_in_brackets = "(" in text.prompt[subjects[-1].end : subject.start]
    if is_of_group and not subject.plural and (is_next_sentence or is_in_brackets):
        # A single person after a group may be a member: "two people. One person reads".
        return _UNCLEAR
    is_apposed = subject.opening == subjects[-1].head + 1
    return _why_not_again(text, subject, noun in nouns, is_next_sentence, is_apposed)


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
    return _NOBODY if subject.named and not is_again else _UNCLEAR


def _why_not_again(
    text: Text, subject: PersonPhrase, is_again: bool, is_next_sentence: bool, is_apposed: bool
) -> str:
    """Return why a phrase may refer to an earlier person, or "" if it does not.

    `is_again` is True if an earlier person has the same noun.
    """
    is_definite = listed(text.low[subject.opening], "definite")
    if is_again and (is_next_sentence or is_definite):
        # Without adjectives, the noun repeats a person; otherwise it may be another one.
        return _NOBODY if is_next_sentence and len(subject.words) == 1 else _UNCLEAR
    if is_definite and subject.plural and listed(text.low[subject.opening + 1], "number"):
        return _UNCLEAR  # "the two figures" are those mentioned before.
    # A definite or general noun may repeat a person: "a swimmer on a rock, the athlete looks".
    is_clause = is_next_sentence or (text.opens[subject.opening] and not is_apposed)
    is_repeated = is_definite or text.low[subject.head] in ("figure", "character", "being")
    return _UNCLEAR if is_clause and is_repeated else ""


def _is_further_tag(text: Text, subject: PersonPhrase) -> bool:
    """Return whether a phrase has no determiner and is not joined to the previous phrase."""
    opening = subject.opening
    is_bare = not listed(text.low[opening], "determiner") or text.low[opening].isdigit()
    # A number is part of an age, not a determiner: "68 year old man".
    is_bare = is_bare and not subject.plural
    before = text.before(opening)
    return is_bare and not listed(before, "joins") and not before.endswith("ing")


# ---- noun phrases


def _phrase(text: Text, i: int) -> PersonPhrase | str:
    """Return the phrase with head i, or the reason why it is not a person in the picture."""
    plural = singular(text.bare[i]) != text.bare[i]
    start, first_noun = _extend_left(text, i)
    reason = _why_no_person(text, i, start, plural)
    if reason:
        return reason
    # A singular noun without a determiner is a tag ("doctor, 4k") or not a person at all.
    determiner = text.before(start)
    has_determiner = listed(determiner, "determiner") or determiner.endswith(_POSSESSIVE)
    is_bare = not plural and not has_determiner
    # The word before all determiners is decisive, such as "by" in "by all the masters".
    opening = start
    while listed(text.before(opening), "determiner"):
        opening -= 1
    reason = _why_not_shown(text, opening - 1, is_bare, i)
    if is_bare:
        start = _skip_medium(text, start, i)
        first_noun = max(start, first_noun)
        reason = reason or _why_no_tag(text, start, first_noun, i)
    place = _place_of_value(text, start, first_noun, i, has_determiner)
    if reason or place is None:
        return reason or _UNCLEAR
    words = [(text.start[j], text.low[j]) for j in range(start, first_noun + 1)]
    end = text.start[i] + len(text.bare[i])
    return PersonPhrase(words, text.start[start], end, text.start[place], plural, opening, i)


def _why_no_person(text: Text, i: int, start: int, plural: bool) -> str:
    """Return why a phrase is not a person, regardless of what precedes it, or "" if it is one."""
    is_denied = text.before(start) == "no" or text.low[max(0, start - 3) : start : 2] == [
        "no",
        "or",
    ]
    # Relatives of this kind look alike: "twin toddlers".
    is_alike = plural and has_listed(text.low[start:i], "kinship")
    # The figure is only half a person: "half plant, half mechanic".
    is_half = text.low[i - 1 : i] in (["half"], ["part"])
    is_other = is_denied or is_alike or is_half or _is_abstract(text, i, start, plural)
    is_other = is_other or _is_credit(text, i, start) or _is_for_animal(text, i, start)
    if is_other or _is_audience(text, i):
        return _NOBODY
    words = text.low[max(0, start - 1) : i + 1]
    # Numbers, letters and articles that do not fit the noun: "a persons hand", "a tf2 scout".
    is_one = words[0] in ("a", "an", "one")
    is_misspelled = is_one and plural and not any(map(person, words[:-1]))
    is_misspelled |= any(re.fullmatch(r"[a-z]|[a-z]{2,}\d+", word) for word in words[1:])
    before = text.before(start - 1)
    is_count = not before or listed(before, *STOPS, "inexact") or before.endswith("ing")
    is_misspelled |= words[0].isdigit() and not (is_count or text.capital[start - 2])
    is_diagram = has_listed(text.low, "diagram")  # Diagrams show roles, not people.
    reason = ""
    if is_diagram or is_misspelled or _is_title(text, i, start, plural):
        reason = _UNCLEAR
    elif not _is_head(text, i, plural):
        reason = _UNCLEAR if _may_be_subject(text, i, start, plural) else _NOBODY
    elif _has_parts(text, i, start):
        reason = _UNCLEAR if plural else _NOBODY
    elif _is_thing(text, i, start) and not _has_face(text, i):
        reason = _UNCLEAR if _may_be_human(text, i, start) else _NOBODY
    elif not plural and _counts_several(words):
        reason = _UNCLEAR
    return reason


def _counts_several(words: Sequence[str]) -> bool:
    """Return whether a phrase in the singular counts several people: "two anime character"."""
    is_number = len(words) > 2 and listed(words[0], "number-word")
    is_number = is_number or (words[0].isdigit() and 1 < int(words[0]) < 13)
    return is_number and not has_listed(words, "time-noun")


def _is_abstract(text: Text, i: int, start: int, plural: bool) -> bool:
    """Return whether a noun is none for people here: "its size dwarfs the boxes", "his youth"."""
    is_verb = plural and "v" in classes(base(text.low[i]))
    is_verb = is_verb and (listed(text.after(i), "article") or text.before(i) == "that")
    # Only things and animals own people by "its".
    is_of_things = plural and text.before(start) == "its"
    is_time = text.low[i] == "youth" and listed(text.before(start), "possessor")
    return is_verb or is_of_things or is_time


def _has_parts(text: Text, i: int, start: int) -> bool:
    """Return whether word i is followed by several parts: "giants arms", "character faces"."""
    after = text.after(i)
    rest = text.after(i + 1)
    plural = singular(text.low[i]) != text.low[i]
    is_part = listed(singular(after), "face", "picture")
    is_part = is_part or (plural and listed(singular(after), "body-part"))
    is_part = is_part and singular(after) != after and (not rest or listed(rest, *STOPS))
    return is_part and text.low[i] == text.bare[i] and (plural or not text.before(start))


def _is_credit(text: Text, i: int, start: int) -> bool:
    """Return whether a phrase praises the picture: "photographer of the year", "by an artist"."""
    if text.low[i + 1 : i + 3] == ["of", "the"] and has_listed(
        text.low[i + 3 : i + 4], "time-noun"
    ):
        return True
    clause = text.low[text.clause_start(start) : i]
    is_maker = listed(text.low[i], "art-tag")
    is_praised = text.opens[start] and has_listed(clause, "praise") and not text.after(i)
    is_joint = not text.opens[start] and "by" in clause and "and" in clause
    where = start - listed(text.before(start), "article")
    is_joint |= text.before(where) == "and" and text.credited[where - 1]
    return listed(text.after(i), "award") or (is_maker and (is_praised or is_joint))


def _is_for_animal(text: Text, i: int, start: int) -> bool:
    """Return whether a noun stands for an animal: "a newborn (otter)", "a dog, a loyal friend"."""
    noun = text.low[i]
    if listed(noun, "baby", "young-animal"):
        for word in text.low[i + 1 : i + 4]:
            if _is_animal(word):
                return True
            if listed(word, *STOPS) or base(word) != word:
                return False
    # A copula calls the people animals: "the workers are farm animals".
    if listed(text.after(i), "copula") and any(map(_is_animal, text.low[i + 2 : i + 4])):
        return True
    before = [word for word in text.low[:start] if not listed(word, "companion")]
    is_companion = listed(singular(noun), "companion")
    return is_companion and any(map(_is_animal, before)) and not any(map(person, before))


def _is_audience(text: Text, i: int) -> bool:
    """Return whether a picture only addresses some people: "an ad that attracts gamers"."""
    words = text.low[max(text.clause_start(i), i - 6) : i]
    is_group = singular(text.bare[i]) != text.bare[i] and "by" not in words
    return is_group and any(listed(base(word), "appeals") for word in words)


def _is_title(text: Text, i: int, start: int, plural: bool) -> bool:
    """Return whether a phrase may be the title of a film, a game or a book."""
    link = text.before(start)
    following = text.low[i + 1 : i + 3]
    modifiers = text.low[start:i]
    is_year = re.fullmatch(r"(?:19|20)\d\d", "".join(following[:1])) is not None
    if link == "your":
        return text.opens[start - 1] and not text.after(i)
    if is_year and has_listed(text.low[max(0, start - 2) : i], "picture", "depiction"):
        return True  # A year follows the title of a work: "the film alien (1979)".
    if plural:
        return _is_title_in_plural(text, i, start)
    # An adjective behind the kind of work begins a title: "the movie lone survivor".
    if any(listed(word, "depiction") and adjective(rest) for word, rest in pairwise(modifiers)):
        return True
    if link not in ("", "of"):
        return False
    is_lord = not link and following == ["of", "the"] and text.words[i].istitle()
    # Capitals around "of the" mark a title: "Lord of the Rings".
    is_lord = is_lord and "".join(text.words[i + 3 : i + 4]).istitle()
    has_title_word = bool(modifiers) and listed(text.low[i], "title-role")
    # A tag with a year, or with a word that is typical of titles, may be one: "taxi driver, 1976".
    return is_lord or is_year or has_title_word or has_listed(modifiers, "game")


def _is_title_in_plural(text: Text, i: int, start: int) -> bool:
    """Apply `_is_title` to a plural."""
    link = text.before(start)
    following = text.low[i + 1 : i + 3]
    # "couple, super models" are the couple again
    is_couple = text.opens[start] and has_listed(text.low[:start], "group-left-unchanged")
    # A prompt that consists of "the" and a plural names a painting.
    is_painting = link == "the" and start == 1 and following[:1] in ([], ["by"])
    # Capitals around "of" mark an institution: "House of Representatives".
    is_office = link == "of" and text.words[i].istitle() and text.words[start - 2].istitle()
    # A plural before "of the" or "of" and a name is a title: "The Riders of Rohan".
    is_name = text.words[i].istitle() and "".join(text.words[i + 2 : i + 3]).istitle()
    is_order = following == ["of", "the"] or (following[:1] == ["of"] and is_name)
    is_order = is_order and not listed(link.replace("the", ""), "determiner")
    return is_couple or is_painting or is_office or is_order


def _why_name(text: Text, i: int) -> str:
    """Return why word i may belong to a name, as in "larry page", or "" if it does not."""
    first, _ = _extend_left(text, i)
    before = text.before(i)
    link = text.before(first)
    is_unknown = not kinds(before) and not listed(before, *STOPS)
    # An unknown word may be a family name: "martin garrix dj".
    given_name = text.before(i - 1) if is_unknown else before
    classes_of_name = set(kinds(given_name))
    is_surname = classes(text.bare[i]) == "l"  # Some plurals are only family names: "bill hicks".
    # Rare nouns are family names behind a given name: "bob lazar".
    is_rare = "u" in kinds(text.bare[i]) or is_unknown or is_surname
    is_given_name = "f" in classes_of_name and (is_rare or classes_of_name <= set("fliu"))
    # Adjectives, places and periods may be given names, too: "young", "paris".
    is_other = "a" in classes_of_name or listed(given_name, "no-name")
    is_other = is_other or any(map(is_proper, text.low[first:i]))
    is_one = singular(text.bare[i]) == text.bare[i] or is_surname
    is_one = is_one and link in ("", "of")
    if is_given_name and is_one and not is_other:
        return _UNCLEAR
    if link == "the":
        link = text.before(first - 1)
        if link and set(kinds(link)) <= set("fliu") and not listed(link, *STOPS):
            return _UNCLEAR  # A name precedes "the": "Conan the librarian".
    # A role, a comparison or a name in the phrase names the person: "an actor as Hamlet".
    rest = text.after(i + 1)
    is_part = text.after(i) == "as" and not listed(rest, *STOPS, "pronoun")
    is_part |= text.after(i) == "like" and bool(rest) and set(kinds(rest)) <= set("fliu")
    may_be_name = map(partial(_is_unknown_name, text), range(first, i))
    if is_part or (text.before(first) == "the" and any(may_be_name)):
        return _UNCLEAR
    if not text.capital[i] or singular(text.bare[i]) != text.bare[i]:
        return ""
    # Capitals next to the noun make it a name: "Chief Sitting Bull", "Mason & Baker".
    neighbours = [i + 1] if text.after(i) else []
    neighbours += [i + 2 * step for step in (-1, 1) if text.low[i + step : i + step + 1] == ["and"]]
    for number in neighbours:
        is_name = text.capital[number] and not is_proper(text.low[number])
        if is_name and not text.words[number].isupper():
            return _UNCLEAR
    return _UNCLEAR if before in ("called", "named") else ""


def _is_unknown_name(text: Text, i: int) -> bool:
    """Return whether word i is in no dictionary and capitalized within a sentence."""
    is_capitalized = text.words[i].istitle() and text.capital[i] and not text.sentence[i]
    return is_capitalized and not is_known(text.low[i])


def _is_head(text: Text, i: int, plural: bool) -> bool:
    """Return whether word i is the last noun in its phrase, unlike "nurse" in "nurse shark"."""
    after = text.after(i)
    rest = text.after(i + 1)
    is_end = not after or listed(after, *STOPS) or listed(rest, "determiner")
    # Words for styles describe the next noun: "a minimalist advertising poster".
    is_of_style = listed(text.low[i], "style-noun") and (not is_end or not after)
    is_of_style |= after == "aesthetic"
    # A number between two nouns belongs to a product: "commodore 64 computer".
    is_number = after.isdigit() and rest[1:].isalpha() and not listed(rest, *STOPS, "unit", "tag")
    is_of_style = is_of_style or is_number
    is_relative = listed(text.low[i], "relative") and text.capital[i + 1 : i + 2] == [True]
    if not is_of_style and (_shows_body(text, i) or (is_relative and after)):
        return True  # A name follows a relative: "my aunt Rosa".
    is_counted = i > 0 and listed(text.low[i - 1], "number-word") and not plural
    if is_of_style or (is_counted and not is_gendered_noun(text.bare[i])):
        return False  # The number belongs to a later noun: "two passenger trains".
    if _ends_with_head(after, rest):
        return plural or "a" not in kinds(text.low[i]) or not _may_be_adjective(text, i)
    start, _ = _extend_left(text, i)
    determiner = text.before(start)
    if not plural:
        # An unknown word in -s after a person is a verb: "a janitor waltzes".
        is_unknown = not kinds(after) and listed(determiner, "article")
        if after.endswith("s") and (is_unknown or base(after) != after):
            return _is_verb(after, rest, determiner)
        link = text.before(start - 1) if listed(determiner, "article") else determiner
        is_helper = link == "and" or listed(base(link), "helper")
        if is_helper and classes(after).startswith("v"):
            return True  # A bare verb follows the object of "help": "helping a patient walk".
    return not _is_of_work(after, rest) and not _is_before_noun(text, i, plural)


def _may_be_adjective(text: Text, i: int) -> bool:
    """Return whether word i may describe a noun behind it: "professional digital art"."""
    after = text.after(i)
    rest = text.after(i + 1)
    if after == "and":  # Both words describe a later noun: "a stoic and weary face".
        return bool(rest) and not listed(rest, *STOPS) and not person(rest)
    is_verb = after.endswith(("ing", "ed")) or listed(after, "past", *STOPS)
    # Before a comma, only words for sizes are adjectives: "a giant, ridiculous hat".
    return not is_verb if after else listed(text.low[i], "size")


def _is_of_work(after: str, rest: str) -> bool:
    """Return whether a work of art follows: "a child drawing", not "a child drawing a cat"."""
    is_adjective = "a" in kinds(rest) and not listed(rest, *STOPS)
    has_object = listed(rest, "determiner") or is_adjective or rest == "at"
    return listed(after, "made") and not has_object


def _may_be_subject(text: Text, i: int, start: int, plural: bool) -> bool:
    """Return whether a verb may follow word i, in which case i can still be a head."""
    after = text.after(i)
    is_verb = after.endswith(("s", "ing")) and base(after) != after
    # The verb may follow an adverb or noun: "a programmer pair programming".
    is_verb = is_verb or (text.after(i + 1).endswith("ing") and not person(after))
    # After "and", the verb is in the plural: "the chef and the sommelier taste wine".
    is_verb = is_verb or (text.before(start - 1) == "and" and "v" in classes(after))
    # not "nurse uniforms"
    is_plural = plural and not text.capital[i]  # not "the Champions League"
    determiner = text.before(start)
    return is_plural or (is_verb and (listed(determiner, "determiner") or determiner == "while"))


def _is_in_clause(text: Text, i: int) -> bool:
    """Return whether word i is more than a tag, as in "customer reading a magazine"."""
    after = text.after(i)
    return after.endswith("ing") or listed(after, "preposition")


def _shows_body(text: Text, i: int) -> bool:
    """Return whether the phrase of word i ends in a body part, as in "a miner's rough hands"."""
    is_possessive = text.low[i] != text.bare[i]
    noun = i
    while is_possessive and adjective(text.after(i)):
        i += 1
    if not listed(text.after(i), "body-part"):
        return False
    following = text.after(i + 1)
    start, _ = _extend_left(text, noun)
    if not is_possessive and "a" in classes(text.low[noun]):
        return False  # The word is an adjective of the body part: "a pig with human hands".
    if not is_possessive and listed(text.before(start), "determiner"):
        # "a blacksmith arm wrestling", but not "a clown face" (while "shocked gamer face" is a tag)
        return following.endswith("ing")
    # The hands act for the person: "a barista's hands pouring milk".
    is_verb = following.endswith("ing") and not listed(following, "made")
    is_verb = is_verb or (text.after(i).endswith("s") and classes(following).startswith("v"))
    return is_verb or not _noun_follows(text, i + 1)


def _is_before_noun(text: Text, i: int, plural: bool) -> bool:
    """Return whether word i modifies the next noun, as in "an alien liquid"."""
    after = text.after(i)
    word_classes = kinds(text.low[i])
    # "volunteer" is more often a person than an adjective, unlike "alien".
    is_adjective = "a" in word_classes.split("p")[0] or listed(text.low[i], "size")
    is_noun = plural or not is_adjective
    if after.endswith("ing"):
        rest = text.after(i + 1)
        if listed(rest, "room") or classes(f"{after} {rest}"):
            return True  # The gerund belongs to a known compound: "a doctor waiting room".
        if is_noun or listed(after, "human-verb"):
            return False  # The gerund is what the person does: "a nurse reading".
        return _noun_follows(text, i + 1)
    # A picture follows its audience: "a kids cartoon".
    is_picture = plural and listed(after, "picture")
    is_picture = is_picture and not listed(text.after(i + 1), "determiner")
    if is_picture or (listed(text.low[i], "size") and adjective(after)):
        return True  # A word for a size describes a later noun: "a giant smooth stone".
    if plural and "v" in classes(after):
        # "nurses walk", "chefs cook in a kitchen"; not "artists room"
        rest = text.after(i + 1)
        is_verb = classes(after).startswith("v") or listed(rest, *STOPS) or "r" in kinds(rest)
        # Clothes are not what the people do: "bikers jacket in leather".
        return not is_verb or listed(after, "carried")
    return _noun_follows(text, i)


def _is_verb(word: str, rest: str, determiner: str) -> bool:
    """Return whether a word ending in -s is a verb, as in "the chef cooks", not "nurse uniforms".

    `rest` is the word after it, and `determiner` belongs to the noun before it.
    """
    verb_classes = classes(base(word))
    is_noun_too = not set("nx").isdisjoint(verb_classes + classes(word))
    if not is_noun_too or listed(rest, "determiner", "pronoun"):
        return True
    if not listed(determiner, "determiner"):
        # "nurse carries tray", "farmer feeds chickens" or "pilot climbs into cockpit", but not
        # "pilot lights on a stove" or "nurse scrubs pattern"
        is_object = listed(word, "human-verb") and "n" in kinds(rest) and not listed(rest, *STOPS)
        is_object = is_object or singular(rest) != rest or listed(rest, "towards")
        return verb_classes.startswith("v") and is_object
    if (adjective(rest) and not listed(rest, *STOPS)) or singular(rest) != rest:
        return True
    if listed(determiner, "one-determiner"):
        # At the end of a phrase, the word is a verb: "a trucker hunches over a pie".
        is_end = not rest or listed(rest, *STOPS, "verb-preposition") or rest.endswith("ly")
        return is_end or not classes(word)
    return verb_classes.startswith("v")


def _ends_with_head(after: str, rest: str) -> bool:
    """Return whether a phrase ends before two given words."""
    if listed(after, "past") and not rest and "n" in kinds(after):
        return False  # The past form is a noun here: "a DJ set".
    if not after or listed(after, *STOPS, "asleep", "tag", "past") or after.startswith("mid-"):
        return True
    if rest in ("to", "by") and listed(after, "part"):
        return True  # The words form an adverb: "back to back", "side by side".
    if adjective(after) and listed(rest, "preposition"):
        return True  # An adjective with a complement follows the noun: "a master deep in thought".
    return after.endswith("ly") and set(kinds(after)).isdisjoint("nx")


def _noun_follows(text: Text, i: int) -> bool:
    """Return whether word i is followed by a head noun, as in "a giant floating castle"."""
    word = text.after(i)
    last = ""
    while word and not listed(word, *STOPS, "tag"):
        if not adjective(word):
            return True
        i += 1
        last = word
        word = text.after(i)
    # The last adjective may be the noun: "alien liquid".
    return "n" in classes(last) and not (gendered(last) or listed(last, "size"))


def _extend_left(text: Text, i: int) -> tuple[int, int]:
    """Return where the phrase of word i and its first noun start: "tired old | police officer"."""
    start = i
    first_noun = i
    while not text.opens[start] and i - start < _LONGEST_PHRASE:
        word = text.low[start - 1]
        following = text.low[start]
        joins = listed(word, "degree")
        # "and" joins two adjectives of the phrase: "tall and tired".
        if word == "and" and start > 1:
            joins = adjective(following) and adjective(text.low[start - 2])
        is_compound = first_noun == start and _is_compound(word, following)
        if not is_compound and not joins:
            if _is_before_phrase(text, start - 1, i):
                break
            # Values are inserted before the first noun, as in "tired old | police officer".
            is_compound = _is_part_of_noun(text, start, text.low[i])
        start -= 1
        if is_compound and first_noun == start + 1:
            first_noun = start
    return start, first_noun


def _skip_medium(text: Text, start: int, i: int) -> int:
    """Return where a tag starts after words for the medium: "anime style | archer"."""
    if listed(text.low[i], "art-tag"):
        return start  # The medium belongs to the profession: "watercolor artist".
    for j in range(i - 1, start - 1, -1):
        word = text.low[j]
        # In "style consultant", "style" is not a medium.
        is_medium = listed(word, "medium") and (j > start or not listed(word, "style-word"))
        if is_medium or listed(f"{text.before(j)} {word}", "medium"):
            return j + 1
    return start


def _begins_with_style(text: Text, first_noun: int, i: int) -> bool:
    """Return whether a noun before head i may describe the picture, as in "film still welder"."""
    if listed(text.low[i], "art-tag", "thing"):
        return False
    nouns = [j for j in range(first_noun, i) if not (text.capital[j] or adjective(text.low[j]))]
    if len(nouns) > 2:
        return True  # Many nouns in a row are a list of tags: "epic mask helmet robot ninja".
    for j in range(first_noun, i):
        is_style = listed(text.low[j], "picture", "style-word")
        if is_style and not _is_compound(text.low[j], text.low[j + 1]):
            return True
    return False


def _is_before_phrase(text: Text, j: int, i: int) -> bool:
    """Return whether word j is outside of the phrase with head i, such as "the" or "draw"."""
    word = text.low[j]
    # A missing space ends a phrase, too: "a painting ofa politician".
    is_joined = word.startswith("of") and not kinds(word)
    # The verb is outside of the phrase: "learn to become chefs".
    becomes = listed(word, "becomes") and "n" not in classes(word)
    if word.endswith(_POSSESSIVE) or listed(word, *STOPS, "not-subject") or is_joined or becomes:
        return True
    has_object = singular(text.bare[i]) != text.bare[i] or not has_listed(text.low, "article")
    # A verb of another person precedes the phrase: "doctor examining patient".
    is_verb = word.endswith("s") and base(word) != word and classes(base(word)).startswith("v")
    is_verb = is_verb or (word.endswith("ing") and has_object)
    return (is_verb and person(text.before(j))) or (listed(word, "draw") and text.opens[j])


def _place_of_value(
    text: Text, start: int, first_noun: int, i: int, has_determiner: bool
) -> int | None:
    """Return the last position in the phrase with head i at which a value fits, or None."""
    if has_listed(text.low[start:i], "adjective-or-noun") and first_noun < i:
        # In "a patient teacher", the teacher is patient, but not in "a patient advocate".
        return first_noun if _is_compound(text.low[i - 1], text.low[i]) else None
    if first_noun in (start, i) or "-" in text.low[first_noun]:
        return first_noun
    # An adjective before several nouns may belong to the first: "a small business owner".
    is_of_person = [
        listed(word, "age", "style-adjective", "of-character")
        or word.endswith(("-old", "-looking"))
        for word in text.low[start:first_noun]
    ]
    if is_of_person[-1] or person(text.low[first_noun]):
        return first_noun
    described = text.low[first_noun - 1]
    # The last adjective does not describe the person, so a False always precedes the noun.
    place = start + is_of_person.index(False)
    if text.low[place] == "and":
        place = start  # Joined adjectives stay together: "a fierce and unkempt goblin warrior".
    is_adjective = adjective(described) and set(classes(described)).isdisjoint("no")
    # Without a determiner, a phrase may begin with a name, as in "Negro leagues shortstop".
    is_sure = has_determiner or is_proper(described) or is_adjective
    return place if is_sure else None


def _is_compound(word: str, following: str) -> bool:
    """Return whether two words are known as a compound noun, such as "police officer"."""
    if listed(f"{word} {singular(following)}", "person-phrase", "pair"):
        return True
    return classes(f"{word} {following}") in ("c", "p", "n") and not listed(word, "age")


def _is_part_of_noun(text: Text, start: int, head: str) -> bool:
    """Return whether the word before start is part of the noun, as in "civil engineer"."""
    word = text.low[start - 1]
    if not _is_description(word) or listed(word, "occupational", "toy"):
        return True  # The word specifies the trade: "a wooden toy maker".
    if _is_compound(text.before(start - 1), word):
        return True  # The word ends a compound: "a red cross | nurse".
    is_gerund = word.endswith("ing") and "n" in kinds(word) and text.low[start] == head
    # The gerund is what the person teaches: "swimming coach".
    return is_gerund and listed(singular(head), "gerund-head")


def _is_description(word: str) -> bool:
    """Return whether a word describes a noun without classifying it, unlike "ceramic"."""
    if is_proper(word) or listed(word, "size", "age", "skin", "style-adjective", "relation"):
        return True
    if "-" in word and set("nv").intersection(classes(word.rsplit("-", 1)[1])[:1]):
        return word.endswith(("ed", "-time"))  # "a one-legged pirate", not "a deep-sea welder"
    # A relational adjective tells the kind: "a legal adviser".
    return listed(word, "of-character") or (adjective(word) and "o" not in classes(word))


def _is_thing(text: Text, i: int, start: int) -> bool:
    """Return whether noun i is an animal or a thing, as in "a toy soldier" or "a rack server"."""
    noun = singular(text.bare[i])
    modifiers = text.low[start:i]
    after = text.after(i)
    # The noun is the picture itself: "a sprite of".
    is_picture = listed(noun, "picture") and after in ("about", "of")
    # The character is a picture of the next person: "a full character of a monk".
    is_drawn = noun == "character" and (listed(after, "picture") or after == "of")
    # The figure is a body: "a cat with a graceful figure".
    is_body = noun == "figure" and text.before(start) in ("its", "their", "the")
    is_body |= noun == "figure" and text.before(start - 1) == "with"
    is_body |= noun == "character" and text.before(start).endswith(_POSSESSIVE)
    if is_picture or is_drawn or is_body or _is_thing_by_modifiers(noun, modifiers):
        return True
    near = text.low[max(0, i - _NEAR) : i + _NEAR]
    is_plural = noun != text.bare[i]
    is_counted = is_plural and listed(text.before(start), "determiner")
    is_strict = listed(text.bare[i], "strict-thing") and not is_counted
    is_strict = is_strict and not has_listed(modifiers, "thing-person", "occupational")
    is_strict = is_strict and not listed(" ".join([*modifiers[-1:], noun]), "person-phrase")
    # "a nyc diner", but not "a tea picker"
    is_plain = all("a" in kinds(word) or not kinds(word) for word in modifiers)
    if is_strict and (is_plural or is_plain):
        is_verb = after.endswith(("s", "ing")) and base(after) != after
        return not is_verb and not has_listed(near, "person-cue")
    if listed(noun, "cued-thing"):
        # The model is presented as a thing: "a model of an atom", "pointing at a model".
        relation = text.before(start - 1)
        is_object = listed(relation, "presents") and not listed(after, "human-verb")
        is_made = noun == "model" and (after == "of" or is_object or _is_of_thing(modifiers))
        has_cue = has_listed(text.low, "thing-cue") and not has_listed(modifiers, "thing-person")
        has_cue = has_cue and not listed(after, "human-verb")
        return is_made or has_cue
    if noun in ("head", "chair"):
        nouns_behind = map(singular, text.low[i + 2 : i + 5])
        # "the head of the department" is a person
        return after != "of" or not has_listed(nouns_behind, "organization")
    return listed(noun, "thing") and not _is_human(noun, modifiers, after, near)


def _is_of_thing(modifiers: Sequence[str]) -> bool:
    """Return whether the last modifier of "model" is a thing, as in "a cloud model"."""
    for word in modifiers[-1:]:
        is_of_person = person(word) or gendered(word) or listed(word, "thing-person", "style-word")
        is_of_person |= listed(f"{word} model", "person-phrase")
        return "n" in kinds(word) and not (is_of_person or adjective(word))
    return False


def _may_be_human(text: Text, i: int, start: int) -> bool:
    """Return whether a thing may be a person, as in "a clumsy server spilling soup"."""
    if has_listed(map(singular, text.low[start:i]), "animal"):
        return True  # Someone works with animals: "a dog walker".
    noun = text.bare[i]
    after = text.after(i)
    is_held = listed(text.before(start - 1), "encloses", "handled")
    if is_held or text.low[i + 1 : i + 3] == ["in", "hand"]:
        return False  # Somebody holds the thing: "waving a fan", "smoker in hand".
    is_described = listed(text.before(start), "determiner") or listed(after, "preposition")
    is_unsure = listed(noun, "unsure") and after != "of"
    is_unsure |= listed(noun, "thing") and after.endswith("ing")
    is_unsure |= listed(noun, "cued-thing") and start == i and after != "of"
    return is_unsure and is_described


def _is_thing_by_modifiers(noun: str, modifiers: Sequence[str]) -> bool:
    """Return whether modifiers turn a noun into a thing, product, toy or animal.

    Examples are "dish washer", "a Ford Explorer" and "a rabbit detective".
    """
    phrase = " ".join([*modifiers[-1:], noun])
    is_known = modifiers and (listed(phrase, "thing-phrase") or classes(phrase) in ("n", "x"))
    if (is_known and not listed(phrase, "person-phrase")) or listed(noun, "animal"):
        return True
    for kind, exceptions in (("brand", "brand-person"), ("toy", "toy-handles")):
        if has_listed(modifiers, kind) and not listed(noun, exceptions):
            return True
    if listed(noun, "handles"):
        modifiers = modifiers[:-1]  # "a horse trainer"; not "a panda mad scientist"
    return any(map(_is_animal, modifiers))


def _is_animal(word: str) -> bool:
    """Return whether a word is a noun for animals."""
    # Usual words for people are not animals, although they can be: "a male nurse".
    is_usual = gendered(word) or adjective(word) or listed(word, "not-animal")
    return listed(singular(word), "animal") or ("x" in kinds(word)[:2] and not is_usual)


def _is_human(noun: str, modifiers: Sequence[str], after: str, near: Sequence[str]) -> bool:
    """Return whether a noun that is often a thing is a person, as in "a fan in the stands"."""
    if noun in ("character", "figure"):
        # A thing before the noun turns the character into one: "a teapot character".
        last = "".join([word for word in modifiers if not gendered(word)][-1:])
        return not last or adjective(last) or person(last) or listed(last, "thing-person")
    is_human = listed(after, "human-verb") or has_listed(modifiers, "thing-person")
    return is_human or has_listed(near, "person-cue")


def _why_no_tag(text: Text, start: int, first_noun: int, i: int) -> str:
    """Return why a noun without a determiner is not a subject, or "" if it is: "doctor, 4k"."""
    modifiers = text.low[start:i]
    last = text.low[start - 1] if start else ""
    is_unclear = False
    if last and text.opens[start]:
        # "a wolf, druid" is one figure, and "fisher, baker, miner, farmer" are several people.
        is_unclear = _is_animal(last) or (
            person(last) and not (modifiers or _is_in_clause(text, i))
        )
    elif last in ("and", "or") and start > 1:
        joined = text.low[start - 2]  # "and" may be part of a term: "rhythm and blues singer".
        is_unclear = not (person(joined) or is_gendered_noun(joined))
    # "Pond Skater" may be an animal, and "rathian boss" a character in a game.
    is_title = bool(modifiers) and all(
        text.capital[j] and text.words[j].istitle() for j in range(start, i + 1)
    )
    is_person = any(listed(word, "title") or "f" in kinds(word) for word in modifiers)
    is_unclear |= is_title and not (is_person or all(map(is_proper, modifiers)))
    if not is_gendered_noun(text.bare[i]):
        is_unclear |= not all(is_known(word) or _DERIVED.search(word) for word in modifiers)
    # A verb separates two nouns, unlike in "horse riding instructor": "bus overtaking coach".
    verbs = [word for word in modifiers[1:] if word.endswith("ing")]
    is_gerund_head = listed(singular(text.low[i]), "gerund-head")
    is_unclear |= any(
        base(verb) != verb and not (is_gerund_head and "n" in kinds(verb)) for verb in verbs
    )
    if is_unclear:
        return _UNCLEAR
    is_in_brackets = _is_object_in_brackets(text, start)
    if not is_in_brackets and _is_tag_of_style(text, start, i):
        return _UNCLEAR if _is_in_clause(text, i) else _NOBODY
    is_unclear = not is_in_brackets and _is_among_tags(text, start, i)
    return _UNCLEAR if is_unclear or _begins_with_style(text, first_noun, i) else ""


def _is_among_tags(text: Text, start: int, i: int) -> bool:
    """Return whether a later tag is more than a noun with its adjectives: "a book, travel guide".

    Tags about the picture or a person do not count: "3d render, pastry chef".
    """
    is_alone = not text.after(i) or _is_in_clause(text, i)
    is_first = not any(map(person, text.low[:start]))
    if not is_first or (all(map(adjective, text.low[start:i])) and is_alone):
        return False
    first = 0
    for stop in range(1, start + 1):
        if not text.opens[stop]:
            continue
        tag = text.low[first:stop]
        first = stop
        is_of_picture = has_listed(tag, "picture", "medium", "style-word", "tag", "picture-tag")
        words = [word for word in tag if not listed(word, "determiner")]
        if not (is_of_picture or all(map(adjective, words))):
            return True
    return False


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
    verb = text.after(i)
    is_verb = verb.endswith("ing") and base(verb) != verb and not listed(verb, "made")
    acts = is_verb and listed(text.after(i + 1), "preposition", "determiner")
    is_described = is_described or acts
    return clauses_before > 1 and not is_described


def _is_object_in_brackets(text: Text, start: int) -> bool:
    """Return whether a phrase in brackets follows a verb: "(mage:1.1) fighting (paladin:1.1)"."""
    is_in_brackets = text.prompt[: text.start[start]].endswith(("(", "["))
    return is_in_brackets and start > 0 and text.low[start - 1].endswith("ing")


def _is_on_thing(text: Text, where: int) -> bool:
    """Return whether a noun is an image in the image: "a cook beside a poster of a nurse"."""
    if not listed(text.low[where], "picture"):
        return False
    start, _ = _extend_left(text, where)
    words = [word for word in text.low[:start] if not listed(word, "determiner")]
    if not words or listed(words[-1], "takes-picture"):
        return False
    return any(person(word) or is_gendered_noun(word) for word in words)


def _why_not_shown(text: Text, where: int, bare: bool, head: int) -> str:
    """Return why the words before a phrase exclude the person from the picture, or "".

    `where` is the position of the word before the phrase. `bare` is True without a determiner.
    """
    relation = text.before(where + 1)
    before = text.before(where)
    clause = text.low[text.clause_start(where) : where]
    reason = ""
    if listed(singular(text.low[head]), "double-sense", "tool-sense"):
        reason = _why_not_double(text, where, head)
    # The word before the first of two people counts for both: "for pet owners and tourists".
    if relation == "and" and person(before):
        first, _ = _extend_left(text, where - 1)
        if text.before(first) in ("for", "by", "like"):
            reason = _why_not_shown(text, first - 1, bare, where - 1)
    if reason:
        return reason
    if relation == "of":
        reason = _why_not_of(text, where, head)
    elif relation == "by":
        reason = _why_not_by(before, clause)
    elif relation == "for":
        reason = _why_not_for(clause)
    elif relation == "as":
        reason = _why_not_as(clause, text.after(head))
    elif _is_elsewhere(text, where, head):
        reason = _NOBODY
    elif _is_unsure_relation(text, where, bare, head):
        reason = _UNCLEAR
    return reason


def _is_elsewhere(text: Text, where: int, head: int) -> bool:
    """Return whether the word before a phrase shows that it is no person in the picture."""
    relation = text.before(where + 1)
    before = text.before(where)
    # The noun stands for the place: "at the hairdresser".
    is_place = relation == "at" and text.low[where + 1] == "the" and not listed(before, "addresses")
    # The characters are letters: "a motto in chinese characters".
    is_place |= relation == "in" and singular(text.low[head]) == "character"
    clause = text.low[text.clause_start(where) : where]
    is_metaphor = listed(relation, "copula") and _is_metaphor(clause)
    is_tribute = listed(relation, "not-subject", "worn") or listed(before, "tribute")
    return is_place or is_metaphor or is_tribute


def _is_unsure_relation(text: Text, where: int, bare: bool, head: int) -> bool:
    """Return whether the word before a phrase leaves open whether the person is shown."""
    relation = text.before(where + 1)
    before = text.before(where)
    clause = text.low[text.clause_start(where) : where]
    is_word = any(kinds(word) or listed(word, *STOPS) for word in clause)
    # Unknown words before a copula are a name: "tajo brenn is a singer".
    is_name = listed(relation, "copula") and not is_word
    # Without an article, the noun may be no person: "beside chef".
    is_infinitive = relation == "to" and "v" in classes(text.low[head])
    is_joined = listed(relation, "joins", "draw") and not is_infinitive
    # A prompt without articles is in telegram style: "receptionist greeting guest at hotel".
    is_present = relation.endswith("ing") and not listed(base(relation), "draw", "pretend")
    is_joined |= is_present and not has_listed(text.low, "article")
    is_bare = bare and bool(relation) and not is_joined
    is_bought = relation == "from" and has_listed(clause, "receives")
    is_unsure = listed(relation, "unsure-relation") and before != "across" and not is_bought
    # What somebody becomes may not be shown: "puppies become chefs".
    is_unsure |= listed(base(before if relation == "into" else relation), "becomes")
    return is_name or is_bare or is_unsure


def _why_not_double(text: Text, where: int, head: int) -> str:
    """Apply `_why_not_shown` to nouns with two senses: "with a crook", "lying under a coach"."""
    after = text.after(head)
    relation = text.before(where + 1)
    before = text.before(where)
    if not relation or listed(before, "addresses") or listed(relation, "meets"):
        return ""
    acts = after.endswith(("s", "ing")) and base(after) != after
    acts = acts or listed(after, "human-verb") or after == "who"
    is_handled = listed(relation, "handled", "encloses") or before in ("pair", "pint")
    if is_handled or text.low[head + 1 : head + 3] == ["in", "hand"]:
        # The verb may be that of someone else: "a tourist on a coach looking out".
        return _UNCLEAR if acts else _NOBODY
    modifiers = [word for word in text.low[where + 1 : head] if not listed(word, "determiner")]
    is_person = has_listed(modifiers, "of-character") or not all(map(adjective, modifiers))
    is_of = relation == "of" and before != "front"
    # A receiver or one of two sides is a person: "a referee between two boxers".
    is_receiver = relation == "to" and not listed(before, "approaches")
    is_receiver |= relation == "between"
    is_linked = listed(relation, "preposition") or relation.endswith("ing")
    if acts or is_person or is_of or is_receiver or not is_linked:
        # A noun before it, a verb or "of" show that it is a person: "beside a tour guide".
        return ""
    return _NOBODY if listed(singular(text.low[head]), "tool-sense") else _UNCLEAR


def _is_metaphor(subject: Sequence[str]) -> bool:
    """Return whether a thing is called a person: "time is a thief", "the sea is a painter"."""
    noun = "".join(subject[-1:])
    is_alone = len(subject) == 1 or (len(subject) == 2 and listed(subject[0], "determiner"))
    is_pronoun = listed(noun, *STOPS)
    is_person = person(noun) or is_gendered_noun(noun) or gendered(noun)
    # A word for a role or for the picture is no metaphor: "the subject is a nurse".
    is_role = listed(noun, "thing", "generic", "picture", "names-role")
    return is_alone and "n" in kinds(noun) and not (is_pronoun or is_person or is_role)


def _why_not_for(clause: Sequence[str]) -> str:
    """Apply `_why_not_shown` to "for": "plays for a patient", not "sewing a dress for a nurse"."""
    verbs = [base(word) for word in clause if base(word) != word]
    # "a character sheet for a pilot" shows the pilot
    if has_listed(verbs, "serves") or "character" in clause:
        return ""
    return _NOBODY if not verbs or has_listed(verbs, "produces") else _UNCLEAR


def _why_not_as(clause: Sequence[str], after: str) -> str:
    """Apply `_why_not_shown` to "as": "smiles as the judge enters", not "dressed as a nurse"."""
    if after.endswith("s") and base(after) != after:
        return ""
    verb = clause[-2] if len(clause) > 1 and clause[-1] == "up" else "".join(clause[-1:])
    return _NOBODY if verb.endswith(("ed", "ing")) else _UNCLEAR


def _why_not_by(before: str, clause: Sequence[str]) -> str:
    """Apply `_why_not_shown` to "by": "pulled up by a guide", not "painted by a master"."""
    if listed(before, "credit-verb", "picture") and before != "up":
        return _NOBODY
    if before.endswith(("ed", "ing")) or listed(before, "past"):
        return ""
    return _NOBODY if has_listed(clause, "credit-verb", "picture") else _UNCLEAR


def _why_not_of(text: Text, where: int, head: int) -> str:
    """Apply `_why_not_shown` to "of": "a portrait of a nurse", not "a statue of a nurse"."""
    if _is_on_thing(text, where - 1):
        return _NOBODY
    before = text.before(where)
    if text.low[where + 1] in ("this", "these"):
        return _UNCLEAR  # "a photo of this model" refers to another picture
    clause = text.low[text.clause_start(where) : where]
    # There is no determiner or adjective before the noun, as in "change of guard".
    is_term = where + 1 == head and singular(text.bare[head]) == text.bare[head]
    parts = ("picture", "group", "part", "body-part", "container", "number")
    # The owner is shown if somebody touches the thing: "checking the ticket of a passenger".
    is_group = listed(before, "group") and singular(text.bare[head]) == text.bare[head]
    if is_group and not listed(text.low[where + 1], "determiner", "number"):
        return _UNCLEAR  # A group needs a plural: "a group of police officer" is misspelled.
    is_carried = listed(before, "carried") and has_listed(clause, "touches")
    if is_carried or listed(singular(before), *parts):
        return ""
    if "for" in clause and has_listed(clause[: clause.index("for")], "picture"):
        return ""  # A purpose may precede "of": "a portrait for my website of a lawyer".
    is_depiction = listed(before, "toy", "depiction")
    return _NOBODY if is_depiction or is_term or person(before) else _UNCLEAR
