"""Who is one of several? Decide whether an English noun phrase adds a person to those before it.

It may also describe one of them ("a CEO, a leader of hundreds"). A prompt that shows somebody
without a noun phrase ("hugging someone") counts as not understood.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vldebias.prompts.english.words import (
    STOPS,
    base,
    classes,
    ends_phrase,
    has_gendered,
    has_listed,
    is_inflected,
    kinds,
    listed,
    person,
    singular,
)
from vldebias.wording.english.is_person import is_agent, is_in_clause, is_object_in_brackets
from vldebias.wording.english.phrases import (
    NOBODY,
    UNCLEAR,
    PersonPhrase,
    extend_left,
    is_gendered_noun,
)
from vldebias.wording.english.text import Text

_SENTENCE_END = re.compile(r"[.;!?\n|]")


def why_nobody_else(text: Text, subject: PersonPhrase, subjects: Sequence[PersonPhrase]) -> str:
    """Return why a phrase after others does not add a person, or "" if it adds one.

    It may repeat a person ("a nurse at a desk. The nurse smiles") or be a brand name ("a pilot in a
    Spitfire").
    """
    if not subjects or is_object_in_brackets(text, subject.opening):
        return ""
    last = subjects[-1]
    if listed(text.low[subject.head], "collective") and text.low[subject.opening] == "the":
        return NOBODY  # in the background: "a diver waits; the crew watches"
    is_next_sentence = not text.is_same_sentence(last.head, subject.head)
    if _is_no_noun_for_person(text, subject.head, last.head, is_next_sentence):
        return NOBODY
    nouns = [singular(text.bare[earlier.head]) for earlier in subjects]
    # A number is part of an age, not a determiner: "68 year old man".
    opening = subject.opening
    is_bare = not listed(text.low[opening], "determiner") or text.low[opening].isdigit()
    before = text.before(opening)
    is_joined = listed(before, "joins", "preposition") or before.endswith("ing")
    if is_bare and not subject.plural and not is_joined:
        return _why_no_further_tag(text, subject, subjects, nouns)
    is_member = _may_be_member(text, subject, subjects, is_next_sentence)
    if is_member or _may_describe_again(text, subject, last, is_next_sentence):
        return UNCLEAR
    is_again = singular(text.bare[subject.head]) in nouns
    is_apposed = opening == last.head + 1
    return _why_not_again(text, subject, is_again, is_next_sentence, is_apposed)


def _is_no_noun_for_person(text: Text, head: int, last_head: int, is_next_sentence: bool) -> bool:
    """Return whether the word is a make, a verb or, in a new sentence, a thing."""
    is_make = text.capital[head] and not text.words[head].isupper()
    # A word right behind the person is a verb.
    is_verb = head == last_head + 1 and not text.opens[head]
    return is_make or is_verb or (is_next_sentence and listed(singular(text.low[head]), "thing"))


def _may_be_member(
    text: Text, subject: PersonPhrase, subjects: Sequence[PersonPhrase], is_next_sentence: bool
) -> bool:
    """Return whether a single person may belong to a group: "two people. One person reads"."""
    sizes = [text.low[earlier.opening] for earlier in subjects if earlier.plural]
    if subject.plural or not has_listed(sizes, "number-word"):
        return False
    is_member = text.low[subject.opening] == "the" and listed(text.low[subject.head], "generic")
    return is_next_sentence or is_member


def _may_describe_again(
    text: Text, subject: PersonPhrase, last: PersonPhrase, is_next_sentence: bool
) -> bool:
    """Return whether a clause may describe the last person: "a main character. A young helper"."""
    is_new = listed(text.low[subject.opening], "article") and text.opens[subject.opening]
    if not is_new or subject.plural or last.plural:
        return False
    head, last_head = text.low[subject.head], text.low[last.head]
    if is_next_sentence:
        return listed(last_head, "picture-person")
    # "a runner crossing a line, a tall man with a scar", but not "a runner, a man with a scar"
    is_described = is_gendered_noun(head) and text.after(subject.head) == "with"
    is_other = is_gendered_noun(last_head) and (
        listed(last_head, "female-noun") != listed(head, "female-noun")
    )
    return is_described and text.after(last.head).endswith("ing") and not is_other


def _why_no_further_tag(
    text: Text, subject: PersonPhrase, subjects: Sequence[PersonPhrase], nouns: Sequence[str]
) -> str:
    """Apply `why_nobody_else` to a tag without a determiner. `nouns` are those of `subjects`."""
    is_first_bare = not listed(text.low[subjects[0].opening], "determiner")
    # Tags with verbs are people of their own: "officer holding the tape".
    heads = (subjects[-1].head, subject.head)
    is_like_first = is_first_bare and all(is_in_clause(text, head) for head in heads)
    # "a thief at a lock, thief girl"
    is_again = not set(nouns).isdisjoint(text.low[subject.opening : subject.head])
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
    why = _why_same_noun(text, subject, is_next_sentence, is_definite) if is_again else ""
    if why:
        return why
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


def _why_same_noun(
    text: Text, subject: PersonPhrase, is_next_sentence: bool, is_definite: bool
) -> str:
    """Return why a phrase with the noun of an earlier person may refer to it, or ""."""
    if "only" in text.low[subject.opening - 1 : subject.head]:
        return NOBODY  # "a woman on a bed, only one woman visible"
    if is_next_sentence and text.low[subject.opening] in ("a", "an"):
        return UNCLEAR  # "A person eats. A person sweeps"
    if not (is_next_sentence or is_definite):
        return ""
    # Without adjectives, the noun repeats a person; otherwise it may be another one.
    return NOBODY if is_next_sentence and len(subject.words) == 1 else UNCLEAR


# ---- the same person


def group_mentions(text: Text, subjects: Sequence[PersonPhrase]) -> list[list[PersonPhrase]]:
    """Group noun phrases that refer to the same person.

    "a CEO, a leader of hundreds" is one person, "a cook, a waiter and a guest" are three.

    Args:
        text: The text.
        subjects: The noun phrases for people, in order of appearance.
    """
    persons = [[subject] for subject in subjects[:1]]
    for number in range(1, len(subjects)):
        subject = subjects[number]
        # The phrase may describe members of the preceding group: "two cooks, a woman and a man".
        group = persons[-1]
        words = _words_between(text, subjects, number)
        goes_on = not words or (len(group) > 1 and words == ["and"])
        is_of_group = goes_on and group[0].plural
        if is_of_group and not _SENTENCE_END.search(_gap(text, subjects, number)):
            if not is_gendered_noun(text.low[subject.head]) and len(group) == 1:
                persons[-1] = [subject]  # "two people, a cook and a waiter": only these two
            else:
                group.append(subject)
        elif _is_same(text, subjects, number):
            group.append(subject)
        else:
            persons.append([subject])
    return persons


def _is_same(text: Text, subjects: Sequence[PersonPhrase], number: int) -> bool:
    """Return whether a phrase refers to the same person as the phrase before it."""
    subject = subjects[number]
    words = _words_between(text, subjects, number)
    if not words and _is_in_list(text, subjects, number):
        return False
    if text.low[subject.head] == "person" and text.before(subject.head) == "single":
        return True  # "a single person" is the person already described.
    is_new_sentence = _SENTENCE_END.search(_gap(text, subjects, number)) is not None
    is_man = is_gendered_noun(text.low[subject.head])
    if words:
        # A description may follow the complement of a noun: "the hero of a film, a woman".
        is_apposed = words[0] == "of" and text.opens[subject.opening] and not is_new_sentence
        # "there is a waiter" introduces somebody, unlike "the painter is a woman".
        return (listed(words[-1], "is-also") and "there" not in words) or (is_man and is_apposed)
    # A phrase with a verb of its own is someone else: "a baker serving a guest, a waiter holding".
    verb = text.after(subject.head)
    is_clause = verb.endswith(("s", "ing")) and base(verb) != verb
    # A description may be a sentence: "an office worker. A man in his thirties".
    is_description = is_man and verb in ("in", "with")
    return not is_clause and (is_description or not is_new_sentence)


def _is_in_list(text: Text, subjects: Sequence[PersonPhrase], number: int) -> bool:
    """Return whether a phrase and the one right before it are items in the same list."""
    # "a vet, a farmer and a cow" are two people.
    end = subjects[number].head
    if listed(text.after(end), "adds") and listed(text.after(end + 1), "determiner"):
        return True
    # "a nurse, a doctor, a patient" and "a cook, a waiter and a guest" are three.
    if number > 1 and not _words_between(text, subjects, number - 1):
        return True
    if number + 1 == len(subjects):
        return False
    words_behind = _words_between(text, subjects, number + 1)
    return not words_behind or listed(words_behind[0], "adds")


def _words_between(text: Text, subjects: Sequence[PersonPhrase], number: int) -> list[str]:
    """Return the words between the previous phrase and a phrase with its determiners."""
    return text.low[subjects[number - 1].head + 1 : subjects[number].opening]


def _gap(text: Text, subjects: Sequence[PersonPhrase], number: int) -> str:
    """Return the characters between the previous phrase and a phrase."""
    return text.prompt[subjects[number - 1].end : text.start[subjects[number].opening]]


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


def leaves_one_out(text: Text, subjects: Sequence[PersonPhrase]) -> bool:
    """Return whether a person has no phrase in `subjects`, such as a pronoun or an unlisted noun.

    Examples are "hugging someone", "one cook stirs, another chops" and "more cooks than waiters".

    Args:
        text: The text.
        subjects: The noun phrases for people, in order of appearance.
    """
    if _has_unknown_person(text, subjects):
        return True
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
