"""Find the extent of an English noun phrase, and decide whether a noun is its head.

No parser is used. Phrases extend from their last noun to the left over adjectives and nouns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vldebias.prompts.english.words import (
    STOPS,
    adjective,
    base,
    classes,
    ends_phrase,
    gendered,
    has_gendered_ending,
    has_listed,
    is_inflected,
    is_plural,
    is_proper,
    kinds,
    listed,
    person,
    singular,
)
from vldebias.wording.english.text import Text

# A possessive acts as a determiner, as in "the king's guard".
POSSESSIVE = ("'s", "s'")
_LONGEST_PHRASE = 20  # words


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


# The noun phrases for each person in a text, in order of appearance.
Persons = Sequence[Sequence[PersonPhrase]]


def is_gendered_noun(word: str) -> bool:
    """Return whether a lower-case word is a gendered noun for a person."""
    if listed(word, "gendered-noun", "gendered-title") or has_gendered_ending(word):
        return True
    return gendered(word) and word.endswith(("man", "men"))


# ---- the extent of a phrase


def extend_left(text: Text, i: int) -> tuple[int, int]:
    """Return where the phrase of word i and its first noun start: "tired old | police officer"."""
    start = i
    first_noun = i
    while not text.opens[start] and i - start < _LONGEST_PHRASE:
        word = text.low[start - 1]
        following = text.low[start]
        joins = listed(word, "degree")
        # "and" joins two adjectives of the phrase: "tall and tired".
        if word == "and":
            joins = adjective(following) and adjective(text.before(start - 1))
        compounds = first_noun == start and is_compound(word, following)
        if not compounds and not joins:
            if _is_before_phrase(text, start - 1, i):
                break
            # Values are inserted before the first noun, as in "tired old | police officer".
            compounds = _is_part_of_noun(text, start, text.low[i])
        start -= 1
        if compounds and first_noun == start + 1:
            first_noun = start
    return start, first_noun


def _is_before_phrase(text: Text, j: int, i: int) -> bool:
    """Return whether word j is outside of the phrase with head i, such as "the" or "draw"."""
    word = text.low[j]
    # A missing space ends a phrase, too: "a painting ofa politician".
    is_joined = word.startswith("of") and not kinds(word)
    # The verb is outside of the phrase: "learn to become chefs".
    becomes = listed(word, "becomes") and "n" not in classes(word)
    if word.endswith(POSSESSIVE) or listed(word, *STOPS, "not-subject") or is_joined or becomes:
        return True
    has_object = is_plural(text.bare[i]) or not has_listed(text.low, "article")
    # A verb of another person precedes the phrase: "doctor examining patient".
    is_verb = is_inflected(word, "s") and classes(base(word)).startswith("v")
    is_verb = is_verb or (word.endswith("ing") and has_object)
    return (is_verb and person(text.before(j))) or (listed(word, "draw") and text.opens[j])


def is_compound(word: str, following: str) -> bool:
    """Return whether two words are known as a compound noun, such as "police officer"."""
    if listed(f"{word} {singular(following)}", "person-phrase", "pair"):
        return True
    return classes(f"{word} {following}") in ("c", "p", "n") and not listed(word, "age")


def _is_part_of_noun(text: Text, start: int, head: str) -> bool:
    """Return whether the word before start is part of the noun, as in "civil engineer"."""
    word = text.low[start - 1]
    if not _is_description(word) or listed(word, "occupational", "toy"):
        return True  # The word specifies the trade: "a wooden toy maker".
    if is_compound(text.before(start - 1), word):
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


def skip_medium(text: Text, start: int, i: int) -> int:
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


def place_of_value(
    text: Text, start: int, first_noun: int, i: int, has_determiner: bool
) -> int | None:
    """Return the last position in the phrase with head i at which a value fits, or None.

    Args:
        text: The text.
        start: The position of the first word of the phrase, without determiners.
        first_noun: The position of the first noun of the phrase.
        i: The position of the head.
        has_determiner: Whether a determiner precedes the phrase.
    """
    if has_listed(text.low[start:i], "adjective-or-noun"):
        # In "a patient teacher", the teacher is patient, but not in "a patient advocate".
        return first_noun if is_compound(text.low[i - 1], text.low[i]) else None
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
    is_adjective = adjective(described) and set(classes(described)).isdisjoint("no")
    # Without a determiner, a phrase may begin with a name, as in "Negro leagues shortstop".
    is_sure = has_determiner or is_proper(described) or is_adjective
    return place if is_sure else None


# ---- the head of a phrase


def is_head(text: Text, i: int) -> bool:
    """Return whether word i is the last noun in its phrase, unlike "nurse" in "nurse shark"."""
    plural = is_plural(text.bare[i])
    after = text.after(i)
    is_relative = listed(text.low[i], "relative") and text.capital[i + 1 : i + 2] == [True]
    if is_relative or shows_body(text, i):
        return True  # A name follows a relative: "my aunt Rosa".
    # A number before a singular belongs to a later noun: "two passenger trains".
    is_counted = listed(text.before(i), "number-word") and not plural
    is_counted = is_counted and not is_gendered_noun(text.bare[i])
    # Words for styles and words before an owner are adjectives: "a professional women's event".
    if is_counted or listed(text.low[i], "style-noun") or after.endswith(POSSESSIVE):
        return False
    if _follows_phrase(after, text.after(i + 1)):
        return plural or "a" not in kinds(text.low[i]) or not _may_be_adjective(text, i)
    return (not plural and _precedes_verb(text, i)) or not _is_before_noun(text, i)


def _precedes_verb(text: Text, i: int) -> bool:
    """Return whether a verb follows noun i in the singular, as in "helping a patient walk"."""
    after = text.after(i)
    start, _ = extend_left(text, i)
    determiner = text.before(start)
    has_article = listed(determiner, "article")
    if listed(determiner, "possessor") and "a" in kinds(text.low[i]):
        return False  # "their individual changes"
    # An unknown word in -s after a person is a verb: "a janitor waltzes".
    if after.endswith("s") and (base(after) != after or (has_article and not kinds(after))):
        return _is_verb(after, text.after(i + 1), determiner)
    # A bare verb follows the object of "help", and two nouns that are joined.
    link = text.before(start - 1) if has_article else determiner
    is_bare_verb = classes(after).startswith("v") and not adjective(text.low[i])
    return is_bare_verb and (link == "and" or listed(base(link), "helper"))


def _follows_phrase(after: str, rest: str) -> bool:
    """Return whether a noun phrase ends before two given words."""
    if listed(after, "past") and not rest and "n" in kinds(after):
        return False  # The past form is a noun here: "a DJ set".
    if ends_phrase(after) or listed(after, "asleep", "tag", "past") or after.startswith("mid-"):
        return True
    if rest in ("to", "by") and listed(after, "part"):
        return True  # The words form an adverb: "back to back", "side by side".
    if adjective(after) and listed(rest, "preposition"):
        return True  # An adjective with a complement follows the noun: "a master deep in thought".
    return after.endswith("ly") and set(kinds(after)).isdisjoint("nx")


def _may_be_adjective(text: Text, i: int) -> bool:
    """Return whether word i may describe a noun behind it: "professional digital art"."""
    after = text.after(i)
    rest = text.after(i + 1)
    if after == "and":  # Both words describe a later noun: "a stoic and weary face".
        return not listed(rest, *STOPS)
    is_verb = after.endswith(("ing", "ed")) or listed(after, "past", *STOPS)
    if after:
        return not is_verb
    # Before a comma: "a giant, ridiculous hat", "an ancient, weathered rock".
    rest = "".join(text.low[i + 1 : i + 2])
    is_in_row = kinds(text.low[i]).startswith("a") and adjective(rest) and not rest.endswith("ing")
    return is_in_row or listed(text.low[i], "size")


def shows_body(text: Text, i: int) -> bool:
    """Return whether the phrase of word i ends in a body part, as in "a miner's rough hands"."""
    is_possessive = text.low[i] != text.bare[i]
    noun = i
    while is_possessive and adjective(text.after(i)):
        i += 1
    if not listed(text.after(i), "body-part"):
        return False
    following = text.after(i + 1)
    start, _ = extend_left(text, noun)
    if not is_possessive and "a" in classes(text.low[noun]):
        return False  # The word is an adjective of the body part: "a pig with human hands".
    if not is_possessive and listed(text.before(start), "determiner"):
        # "a blacksmith arm wrestling", but not "a clown face" (while "shocked gamer face" is a tag)
        return following.endswith("ing")
    # The hands act for the person: "a barista's hands pouring milk".
    is_verb = following.endswith("ing") and not listed(following, "made")
    is_verb = is_verb or (text.after(i).endswith("s") and classes(following).startswith("v"))
    return is_verb or not _noun_follows(text, i + 1)


def _is_before_noun(text: Text, i: int) -> bool:
    """Return whether word i modifies the next noun, as in "an alien liquid"."""
    after = text.after(i)
    rest = text.after(i + 1)
    plural = is_plural(text.bare[i])
    if after.endswith("ing"):
        return _is_of_work(after, rest) or _is_before_gerund(text, i)
    # A picture follows its audience: "a kids cartoon".
    is_picture = plural and listed(after, "picture") and not listed(rest, "determiner")
    # A word for a size describes a later noun: "a giant smooth stone".
    if is_picture or _is_of_work(after, rest) or (listed(text.low[i], "size") and adjective(after)):
        return True
    if plural and "v" in classes(after):
        # "nurses walk", "chefs cook in a kitchen"; not "artists room"
        is_verb = classes(after).startswith("v") or listed(rest, *STOPS) or "r" in kinds(rest)
        # Clothes are not what the people do: "bikers jacket in leather".
        return not is_verb or listed(after, "carried")
    return _noun_follows(text, i)


def _is_before_gerund(text: Text, i: int) -> bool:
    """Return whether word i and a gerund describe a noun: "a doctor waiting room"."""
    after = text.after(i)
    if listed(text.after(i + 1), "room"):
        return True
    # "volunteer" is more often a person than an adjective, unlike "alien".
    is_adjective = "a" in kinds(text.low[i]).split("p")[0] or listed(text.low[i], "size")
    # The gerund is what the person does: "a nurse reading".
    acts = is_plural(text.bare[i]) or not is_adjective or listed(after, "human-verb")
    is_noun = classes(after).startswith("n") and not listed(text.after(i + 1), "article")
    return not acts and (is_noun or _noun_follows(text, i + 1))


def _is_of_work(after: str, rest: str) -> bool:
    """Return whether the next word is a noun for a work of art, as in "a child drawing".

    In "a child drawing a cat", it is a verb.
    """
    is_adjective = "a" in kinds(rest) and not listed(rest, *STOPS)
    has_object = listed(rest, "determiner") or is_adjective or rest == "at"
    return listed(after, "made") and not has_object


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
        is_object = listed(word, "human-verb") and "n" in kinds(rest)
        is_object = is_object or is_plural(rest) or listed(rest, "towards")
        return verb_classes.startswith("v") and is_object
    if (adjective(rest) and not listed(rest, *STOPS)) or is_plural(rest):
        return True
    if listed(determiner, "one-determiner"):
        # At the end of a phrase, the word is a verb: "a trucker hunches over a pie".
        is_end = ends_phrase(rest) or listed(rest, "verb-preposition") or rest.endswith("ly")
        return is_end or not classes(word)
    return verb_classes.startswith("v")


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
    return "n" in classes(last)
