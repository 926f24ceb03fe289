"""Who is a person? Decide whether a noun in an English prompt refers to a person.

It may also be part of another noun ("nurse shark"), a thing ("a toy soldier", "a rack server"), an
animal ("a rabbit detective"), the title of a work ("Lord of the Rings") or a word about the picture
("oil, master").
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vldebias.prompts.english.words import (
    STOPS,
    adjective,
    base,
    classes,
    ends_phrase,
    gendered,
    has_listed,
    is_inflected,
    is_misspelt_person,
    is_plural,
    kinds,
    listed,
    person,
    singular,
)
from vldebias.wording.english.is_stated_or_named import is_known
from vldebias.wording.english.phrases import (
    NOBODY,
    UNCLEAR,
    extend_left,
    is_gendered_noun,
)
from vldebias.wording.english.text import Text

_NEAR = 8  # words


def may_be_person(text: Text, i: int) -> bool:
    """Return whether word i may be a noun for a person."""
    word = text.bare[i]
    # Past tenses look like nouns for people: "I chased".
    if is_inflected(word, "ed") or text.silent[i] or listed(word, "no-single-value"):
        return False
    if listed(f"{word} {text.after(i)}", "thing-phrase"):
        return False  # "hero shot"
    if word != text.low[i] and not shows_body(text, i):
        return False  # The owner of a thing is not shown: "a nurse's uniform".
    # "a team of nurses" are the nurses.
    is_team = listed(word, "collective") and text.after(i) != "of"
    is_misspelt = is_misspelt_person(word) and (not text.capital[i] or text.sentence[i])
    if person(word) or is_gendered_noun(word) or is_team or is_misspelt:
        return True
    # The context may turn a thing into a person, as in "a fan in the stands".
    noun = singular(word)
    return listed(noun, "thing") or listed(f"{text.before(i)} {noun}", "person-phrase")


def why_no_person(text: Text, i: int, start: int) -> str:
    """Return why a phrase is not a person, regardless of what precedes it, or "" if it is one.

    Args:
        text: The text.
        i: The position of the last noun of the phrase.
        start: The position of the first word of the phrase, without determiners.
    """
    if is_plural(text.bare[i]) and has_listed(text.low[start:i], "kinship"):
        return NOBODY  # Relatives of this kind look alike: "twin toddlers".
    # "a monkey with a baby"
    may_be_cub = listed(text.low[i], "baby") and any(map(is_animal, text.low[:start]))
    # Screen captures show mostly text.
    is_text = "screen capture" in " ".join(text.low[:4])
    if may_be_cub or is_text or _is_title(text, i, start):
        return UNCLEAR
    if not is_head(text, i):
        return UNCLEAR if _may_be_subject(text, i, start) else NOBODY
    if _is_thing(text, i, start):
        return UNCLEAR if _may_be_human(text, i, start) else NOBODY
    return ""


def _may_be_subject(text: Text, i: int, start: int) -> bool:
    """Return whether a verb may follow word i, in which case i can still be a head."""
    after = text.after(i)
    # The verb may follow an adverb or noun: "a programmer pair programming".
    is_verb = text.after(i + 1).endswith("ing") and not (person(after) or is_animal(after))
    is_verb |= is_inflected(after, "s", "ing")
    is_group = is_plural(text.bare[i])  # not "nurse uniforms"
    return is_group or (is_verb and listed(text.before(start), "determiner"))


# ---- titles


def _is_title(text: Text, i: int, start: int) -> bool:
    """Return whether a phrase may be the title of a film, a game or a book."""
    link = text.before(start)
    following = text.low[i + 1 : i + 3]
    is_year = re.fullmatch(r"(?:19|20)\d\d", "".join(following[:1])) is not None
    # "the constant gardener, book cover", "the tailor of panama, book cover"
    is_whole = not following or text.opens[i + 1]
    is_whole = is_whole or (following[0] == "of" and text.opens[i + 3 : i + 4] == [True])
    # "Baby Driver, neon poster"
    is_row = start < min(i, 2) and all(map(str.istitle, text.words[: i + 1]))
    if is_whole and (is_row or (link == "the" and start == 1)):
        return is_year or _names_work(_next_tag(text, i))
    # Capitals before "of" mark a title: "Lord of the Rings", "The Riders of Rohan".
    is_order = following[:1] == ["of"] and text.words[i].istitle()
    is_order &= following[1:] == ["the"] or "".join(text.words[i + 2 : i + 3]).istitle()
    # A tag with a year may be one: "taxi driver, 1976".
    return (is_order and link in ("", "of", "the")) or (is_year and link in ("", "of"))


def _names_work(tag: Sequence[str]) -> bool:
    """Return whether a tag behind a title names a kind of work, such as "book cover"."""
    return has_listed(tag[-1:], "work") and not has_listed(tag, "preposition")


# ---- the head of a phrase


def is_head(text: Text, i: int) -> bool:
    """Return whether word i is the last noun in its phrase, unlike "nurse" in "nurse shark"."""
    plural = is_plural(text.bare[i])
    after = text.after(i)
    # The verb of a group follows its members: "a group of hikers rests".
    is_group = plural and is_inflected(after, "s") and has_listed(text.low[:i], "group")
    # "nurse sticker", but not "nurse sticker album"
    is_pictured = listed(after, "shows-person") and ends_phrase(text.after(i + 1))
    if is_group or is_pictured or shows_body(text, i):
        return True
    # A number before a singular belongs to a later noun: "two passenger trains".
    is_counted = listed(text.before(i), "number-word") and not plural
    if (is_counted and not is_gendered_noun(text.bare[i])) or listed(text.low[i], "style-noun"):
        return False
    if _follows_phrase(after, text.after(i + 1)):
        return plural or "a" not in kinds(text.low[i]) or not _may_be_adjective(text, i)
    return _precedes_verb(text, i) or not _is_before_noun(text, i)


def _precedes_verb(text: Text, i: int) -> bool:
    """Return whether a verb follows noun i in the singular, as in "helping a patient walk"."""
    after = text.after(i)
    start, _ = extend_left(text, i)
    determiner = text.before(start)
    if after.endswith("s") and base(after) != after:
        return not is_plural(text.bare[i]) and _is_verb(after, text.after(i + 1), determiner)
    # A bare verb follows the object of "help", and two nouns that are joined.
    link = text.before(start - 1) if listed(determiner, "article") else determiner
    is_joined = link == "and" or listed(base(link), "helper")
    return is_joined and classes(after).startswith("v") and not adjective(text.low[i])


def _follows_phrase(after: str, rest: str) -> bool:
    """Return whether a noun phrase ends before two given words."""
    if listed(after, "past") and not rest and "n" in kinds(after):
        return False  # The past form is a noun here: "a DJ set".
    if ends_phrase(after) or listed(after, "asleep", "tag", "past") or after.startswith("mid-"):
        return True
    if not is_known(after):
        # The word may be a verb in -ing with a wrong letter: "a plumber fixng a sink".
        return re.search("[ing]{2,}$", after) is not None or listed(rest, "determiner")
    return after.endswith("ly") and set(kinds(after)).isdisjoint("nx")


def _may_be_adjective(text: Text, i: int) -> bool:
    """Return whether word i may describe a noun behind it: "professional digital art"."""
    after = text.after(i)
    if after == "and":  # Both words describe a later noun: "a stoic and weary face".
        return not listed(text.after(i + 1), *STOPS)
    if after:
        return not (after.endswith(("ing", "ed")) or listed(after, "past", *STOPS))
    # Before a comma: "a giant, ridiculous hat".
    rest = "".join(text.low[i + 1 : i + 2])
    is_in_row = kinds(text.low[i]).startswith("a") and adjective(rest)
    return is_in_row or listed(text.low[i], "size")


def shows_body(text: Text, i: int) -> bool:
    """Return whether the phrase of word i ends in a body part, as in "a miner's rough hands"."""
    is_possessive = text.low[i] != text.bare[i]
    while is_possessive and adjective(text.after(i)):
        i += 1
    if not listed(text.after(i), "body-part"):
        return False
    if not is_possessive and "a" in classes(text.low[i]):
        return False  # The word is an adjective of the body part: "a pig with human hands".
    # The hands act for the person: "a barista's hands pouring milk".
    return text.after(i + 1).endswith("ing") or not _noun_follows(text, i + 1)


def _is_before_noun(text: Text, i: int) -> bool:
    """Return whether word i modifies the next noun, as in "an alien liquid"."""
    after = text.after(i)
    rest = text.after(i + 1)
    if after.endswith("ing"):
        # "a child drawing" is a work of art, but "a child drawing a cat" is a child.
        is_work = listed(after, "made") and rest not in ("at", "on")
        is_size = listed(text.low[i], "size") and _noun_follows(text, i + 1)
        # "a doctor waiting room", "a giant floating castle"
        return listed(rest, "room") or is_size or (is_work and not listed(rest, "determiner"))
    if is_plural(text.bare[i]) and "v" in classes(after):
        # "nurses walk", but clothes are not what people do: "bikers jacket in leather".
        is_verb = classes(after).startswith("v") or listed(rest, *STOPS)
        return not is_verb or listed(after, "carried")
    return _noun_follows(text, i)


def _is_verb(word: str, rest: str, determiner: str) -> bool:
    """Return whether a word ending in -s is a verb, as in "the chef cooks", not "nurse uniforms".

    `rest` is the word after it, and `determiner` belongs to the noun before it.
    """
    if not listed(determiner, "determiner"):
        return False
    if listed(rest, "determiner") or adjective(rest) or is_plural(rest):
        return True
    if listed(determiner, "one-determiner"):
        # At the end of a phrase, the word is a verb: "a trucker hunches over a pie".
        return ends_phrase(rest) or not classes(word)
    return classes(base(word)).startswith("v")


def _noun_follows(text: Text, i: int) -> bool:
    """Return whether word i is followed by a head noun, as in "a giant floating castle"."""
    word = text.after(i)
    while word and not listed(word, *STOPS):
        if not adjective(word):
            return True
        i += 1
        word = text.after(i)
    return False


# ---- things and animals


def _is_thing(text: Text, i: int, start: int) -> bool:
    """Return whether noun i is an animal or a thing, as in "a toy soldier" or "a rack server"."""
    noun = singular(text.bare[i])
    modifiers = text.low[start:i]
    after = text.after(i)
    # The figure is a body, and the character is a picture of the next person: "avatar of a monk".
    is_drawn = noun == "figure" and listed(text.before(start), "definite")
    is_drawn |= noun in ("character", "avatar") and (listed(after, "picture") or after == "of")
    is_thing = _is_thing_by_modifiers(noun, modifiers) or _is_described_as_thing(text, i, start)
    if is_drawn or is_thing:
        return True
    if listed(noun, "cued-thing"):
        return _is_cued_thing(text, i, start)
    if noun in ("head", "chair"):
        # "the head of the department" is a person
        nouns_behind = map(singular, text.low[i + 2 : i + 5])
        return after != "of" or not has_listed(nouns_behind, "organization")
    if not listed(text.bare[i], "strict-thing") and not listed(noun, "thing"):
        return False
    return not _is_human(noun, modifiers, after, text.low[max(0, i - _NEAR) : i + _NEAR])


def _is_described_as_thing(text: Text, i: int, start: int) -> bool:
    """Return whether the words around noun i describe a thing: "grey joggers folded on a chair"."""
    after = text.after(i)
    if listed(after, "thing-verb"):
        return True
    acts = is_inflected(after, "s", "ing") and after not in ("hanging", "lying")
    if acts or not listed(singular(text.bare[i]), "thing-sense"):
        return False
    is_pair = text.low[start - 2 : start] == ["pair", "of"]
    is_offered = is_pair or "product" in text.low
    return is_offered or has_listed(text.low[start:i], "thing-adjective")


def _is_cued_thing(text: Text, i: int, start: int) -> bool:
    """Return whether noun i is a thing according to its context, as in "a model of an atom"."""
    word = "".join(text.low[start:i][-1:])
    is_of_person = person(word) or gendered(word) or listed(f"{word} model", "person-phrase")
    # The last modifier is a thing: "a cloud model".
    is_of_thing = "n" in kinds(word) and not (is_of_person or adjective(word))
    if singular(text.bare[i]) == "model" and (text.after(i) == "of" or is_of_thing):
        return True
    return has_listed(text.low, "thing-cue")


def _may_be_human(text: Text, i: int, start: int) -> bool:
    """Return whether a thing may be a person, as in "a clumsy server spilling soup"."""
    noun = text.bare[i]
    after = text.after(i)
    is_unsure = listed(noun, "cued-thing") and start == i and after != "of"
    is_unsure |= listed(noun, "thing") and after.endswith("ing")
    is_described = listed(text.before(start), "determiner") or listed(after, "preposition")
    return is_described and (is_unsure or listed(noun, "unsure"))


def _is_thing_by_modifiers(noun: str, modifiers: Sequence[str]) -> bool:
    """Return whether modifiers turn a noun into a thing, product, toy or animal.

    Examples are "dish washer", "a Ford Explorer" and "a rabbit detective".
    """
    if listed(" ".join([*modifiers[-1:], noun]), "thing-phrase"):
        return True
    for kind, exceptions in (("brand", "brand-person"), ("toy", "toy-handles")):
        if has_listed(modifiers, kind) and not listed(noun, exceptions):
            return True
    if listed(noun, "handles"):
        modifiers = modifiers[:-1]  # "a horse trainer"; not "a panda mad scientist"
    return any(map(is_animal, modifiers))


def is_animal(word: str) -> bool:
    """Return whether a word is a noun for animals."""
    # Usual words for people are not animals, although they can be: "a male nurse".
    is_usual = gendered(word) or adjective(word) or listed(word, "not-animal")
    return "x" in kinds(word)[:2] and not is_usual


def _is_human(noun: str, modifiers: Sequence[str], after: str, near: Sequence[str]) -> bool:
    """Return whether a noun that is often a thing is a person, as in "a fan in the stands"."""
    if noun in ("character", "figure"):
        # A thing before the noun turns the character into one: "a teapot character".
        last = "".join(modifiers[-1:])
        is_of_thing = not (gendered(last) or adjective(last) or person(last))
        return not (last and is_of_thing) or listed(last, "thing-person")
    is_human = listed(after, "human-verb") or has_listed(modifiers, "thing-person")
    return is_human or has_listed(near, "person-cue")


# ---- tags


def why_no_tag(text: Text, start: int, first_noun: int, i: int) -> str:
    """Return why a noun without a determiner is not a subject, or "" if it is: "doctor, 4k"."""
    if _is_tag_of_style(text, start, i):
        return UNCLEAR if is_in_clause(text, i) else NOBODY
    # A word for a picture before the noun is the medium: "film still welder".
    is_artist = listed(text.low[i], "art-tag", "thing")
    is_style = has_listed(text.low[first_noun:i], "picture") and not is_artist
    return UNCLEAR if is_style or _is_credit_tag(text, start, i) else ""


def _next_tag(text: Text, i: int) -> list[str]:
    """Return the words of the clause behind the one that contains word i."""
    start = i + 1
    while not text.opens[start]:
        start += 1
    stop = min(start + 1, len(text.low))
    while not text.opens[stop]:
        stop += 1
    return text.low[start:stop]


def _is_credit_tag(text: Text, start: int, i: int) -> bool:
    """Return whether a first tag names who made the picture: "wildlife photographer, owl".

    The tag is a noun for an artist behind a word for a kind, and the next tag shows something else.
    """
    is_first = i + 1 < len(text.low) and text.opens[i + 1] and text.clause_start(i) == 0
    if not is_first or start == i or not listed(text.low[i], "art-tag"):
        return False
    tag = _next_tag(text, i)
    is_thing = not set("nx").isdisjoint(kinds(singular(tag[-1]))) and not has_listed(
        tag, "picture", "tag", "person-cue"
    )
    return is_thing and not any(map(person, tag))


def is_in_clause(text: Text, i: int) -> bool:
    """Return whether word i is more than a tag, as in "customer reading a magazine"."""
    after = text.after(i)
    return after.endswith("ing") or listed(after, "preposition")


def _is_tag_of_style(text: Text, start: int, i: int) -> bool:
    """Return whether a tag may describe the picture instead of a person: "oil, master"."""
    noun = singular(text.bare[i])
    # The words before a colon are no tag: "Instagram post: makeup artist at work".
    is_labelled = text.prompt[: text.start[start]].rstrip().endswith(":")
    clauses_before = 0 if is_labelled else sum(text.opens[1 : start + 1])
    is_style = listed(noun, "style-tag") and (clauses_before or start == i)
    if is_style or (clauses_before and listed(noun, "art-tag")):
        return True
    # A late tag needs words that describe a person: "a lake, fog, elderly fisher".
    words = text.low[start:i]
    is_described = any(adjective(word) or set(kinds(word)) & set("npa") for word in words)
    return clauses_before > 1 and not is_described


def is_object_in_brackets(text: Text, start: int) -> bool:
    """Return whether a phrase in brackets follows a verb: "(mage:1.1) fighting (paladin:1.1)"."""
    is_in_brackets = text.prompt[: text.start[start]].endswith(("(", "["))
    return is_in_brackets and start > 0 and text.low[start - 1].endswith("ing")
