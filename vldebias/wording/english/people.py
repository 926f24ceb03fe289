"""Find the people in a plain English prompt, or leave the prompt unchanged.

The reader knows one form: a common noun for a person, with known words before it, that stands where
a person stands and is followed by the end of the clause, a preposition or a verb. `_read_people`
asks two kinds of questions about each noun for a person, in order:

1. Is nobody shown? ("a nurse's uniform", "a nurse uniform", "a song for nurses") Then the noun is
   passed over.
2. Is there any doubt? `DOUBTS` lists the questions. A single doubt leaves the whole prompt
   unchanged, because a wrong change is worse than none. A new kind of mistake is met by a word in a
   list or by a stricter form, never by an exception.

The word lists are in `prompts/english/words.txt`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from vldebias.prompts.english.words import (
    REMEMBERED_WORDS,
    STOPS,
    adjective,
    base,
    classes,
    countries,
    gendered,
    has_listed,
    is_inflected,
    is_plural,
    is_proper,
    kinds,
    listed,
    lists,
    origins,
    person,
    singular,
)
from vldebias.wording.english.names import find_names
from vldebias.wording.english.phrases import (
    POSSESSIVE,
    PersonPhrase,
    Persons,
    extend_left,
    is_compound,
    is_gendered_noun,
    place_of_value,
    skip_medium,
)
from vldebias.wording.english.text import Text, read_text
from vldebias.wording.reasons import NAMED, NO_PERSON, NOT_PLAIN

_ONE_OF = re.compile(
    r"\b(?:(?<!from )(?<!one )another(?! group)|the others?|others)\b|\bone (?:is|of|\w+s)\b",
    re.IGNORECASE,
)
# Lists of words before "of" that show somebody: "a portrait of a nurse".
_SHOWN_OF = ("picture", "shows-owner", "group", "part", "body-part", "number", "shows-bare")
_PASSED_OVER = frozenset({"for", "by", "like", "as"})
_LONGEST_TAG = 4  # words before a noun without a determiner
_LONGEST_MARKED = 2  # words before a marked noun without a determiner
_LONGEST_NAME = 4  # words in a clause that may be a name
_LONGEST_ACRONYM = 4  # letters
_LONGEST_FRAME = 6  # words before the person in "a black and white photo of"


# ---- one noun for a person


@dataclass
class Noun:
    """A noun for a person, with what the questions need to know.

    Attributes:
        text: The text.
        i: The position of the noun in the words of the text.
        found: The people before it.
        word, noun: The noun as written, and in the singular.
        after: The word after it, or "" at the end of the clause.
        plural: Whether it means several people.
        start, first: Where the phrase starts without determiners, and its first noun.
        opening: Where the phrase starts with its determiners.
        has_determiner, is_definite: Whether a determiner precedes it, and whether that is "the".
        relation: The word before the phrase, or "" at the start of a clause.
        before_relation: The word before that.
        modifiers: The words of the phrase before the noun.
        compound: The noun in the singular with the word before it.
        in_clause: Whether a verb or a preposition follows, as in "nurse holding".
        is_linked: Whether the word before the phrase joins a person to another one.
    """

    text: Text
    i: int
    found: list[PersonPhrase]

    def __post_init__(self) -> None:
        text = self.text
        i = self.i
        self.word = text.bare[i]
        self.noun = singular(self.word)
        self.after = text.after(i)
        self.plural = is_plural(self.word) or listed(self.word, "collective")
        self.start, self.first = extend_left(text, i)
        determiner = text.before(self.start)
        self.opening = self.start
        while listed(text.before(self.opening), "determiner"):
            self.opening -= 1
        self.has_determiner = self.opening < self.start or determiner.endswith(POSSESSIVE)
        self.is_definite = determiner == "the"
        self.relation = text.before(self.opening)
        self.before_relation = text.before(self.opening - 1) if self.opening else ""
        self.modifiers = text.low[self.start : i]
        self.compound = f"{text.before(i)} {self.noun}"
        self.in_clause = (
            listed(self.after, "preposition", "opens-clause", "human-verb")
            or is_inflected(self.after, "s", "ed")
            or self.after.endswith("ing")
        )
        self.is_linked = (
            listed(self.relation, "joins", "preposition", "past", "adds")
            or self.relation.endswith("ing")
            or is_inflected(self.relation, "s", "ed")
        )


# ---- nobody is shown


def may_be_person(text: Text, i: int) -> bool:
    """Return whether word i is a noun for a person, and no owner, quotation or verb."""
    word = text.bare[i]
    is_owner = text.low[i] != word
    if text.silent[i] or is_owner or is_inflected(word, "ed") or listed(word, "no-single-value"):
        return False
    if listed(f"{word} {text.after(i)}", "thing-phrase"):
        return False
    if listed(word, "collective"):
        return text.after(i) != "of"  # "a team of nurses" are the nurses
    is_phrase = listed(f"{text.before(i)} {singular(word)}", "person-phrase")  # "mail carrier"
    return is_phrase or person(word) or is_gendered_noun(word)


def is_head(text: Text, i: int) -> bool:  # noqa: PLR0911 (one question after the other)
    """Return whether the phrase of word i ends with it, unlike in "a nurse uniform"."""
    word = text.bare[i]
    after = text.after(i)
    rest = text.after(i + 1)
    is_end = not rest or listed(rest, *STOPS)
    plural = is_plural(word)
    if not plural and listed(text.before(i), "number-word"):
        return False  # "two passenger trains"
    if after in ("and", "or") and "a" in kinds(word) and not plural and adjective(rest):
        return False  # "adult and juvenile giraffes"
    if not after or listed(after, "preposition", "function"):
        return True
    if not plural and (kinds(word).startswith("a") or listed(word, "style-noun", "size", "age")):
        # "a professional drawing a bridge", not "a professional drawing" or "an ancient road"
        is_made = not listed(after, "made") and listed(rest, "determiner", "preposition")
        return after.endswith("ing") and is_made
    if listed(after, "asleep") or (after.endswith("ly") and set(kinds(after)).isdisjoint("nx")):
        return True
    if listed(after, "shows-person", "tag"):
        return not rest  # "a nurse sticker"
    if after.endswith("ing"):
        is_thing = listed(after, "made", "room") or listed(rest, "room")
        return listed(rest, "determiner") or not is_thing
    if listed(after, "past"):
        is_verb = listed(rest, "determiner", "preposition") and rest != "of"
        return is_verb or "n" not in kinds(after)
    if is_inflected(after, "ed"):
        return is_end or rest.endswith(("ing", "ly"))
    start, _ = extend_left(text, i)
    if plural:
        is_verb = is_end and classes(after).startswith("v")
        is_counted = listed(text.before(start), "number-word") or text.before(start).isdigit()
        is_counted |= text.before(start) == "of" and listed(text.before(start - 1), "group")
        is_followed = is_counted or listed(rest, "determiner")
        return is_verb or ("v" in classes(after) and is_followed)
    if text.before(start - 1) == "and" and classes(after).startswith("v"):
        return listed(text.before(start), "article")  # "a nurse and a doctor walk"
    if not (is_inflected(after, "s") and listed(text.before(start), "determiner")):
        return False
    is_object = listed(rest, "determiner", "preposition") and not rest.isdigit()
    return is_object or rest.endswith("ly") or is_plain_verb(text, i)


def is_plain_verb(text: Text, i: int) -> bool:
    """Return whether a verb with its object follows word i: "a cook slices onions"."""
    verb = classes(base(text.after(i)))
    return verb.startswith("v") or ("v" in verb and is_plural(text.after(i + 1)))


def _is_not_shown(n: Noun) -> bool:
    """Return whether a word keeps the person out of the picture: "a song for nurses"."""
    if n.relation not in _PASSED_OVER:
        return False
    # Further people may be shown: "pouring wine for a guest", "pulled up by a guide", "as a waiter
    # waves". `is_hidden` doubts them. "Carrying a bag for a neighbor" needs no neighbor.
    may_be_shown = n.has_determiner and not n.plural and bool(n.found)
    if n.relation == "for":
        return not may_be_shown or listed(base(n.text.after(n.found[-1].head)), "produces")
    if n.relation == "as":
        return not (may_be_shown and is_inflected(n.after, "s"))
    if n.relation == "by":
        is_credit = n.before_relation != "up" and listed(
            n.before_relation, "credit-verb", "picture"
        )
        is_agent = n.before_relation.endswith(("ed", "ing")) or listed(n.before_relation, "past")
        is_agent &= not is_credit
        return not is_agent and (is_credit or not may_be_shown)
    return True


def _is_mentioned(n: Noun) -> bool:
    """Return whether the noun names somebody before it, or the second half of a group."""
    is_again = n.noun in _nouns_of(n.text, n.found) and not n.modifiers
    if is_again and n.text.low[n.opening] in ("the", "this", "these"):
        return n.after not in ("in", "with", "wearing", "on", "who")
    if not (n.found and n.plural and n.found[-1].plural):
        return False
    is_joined = n.relation in ("and", "&", "or") and not n.has_determiner
    return is_joined and n.opening == n.found[-1].head + 2


def _nouns_of(text: Text, people: Sequence[PersonPhrase]) -> set[str]:
    return {singular(text.bare[phrase.head]) for phrase in people}


# ---- doubts about the whole prompt


def has_one_of_several(text: Text) -> bool:
    """Doubt about people without a noun: "one sings while the other sleeps", "hugging someone"."""
    return _ONE_OF.search(text.prompt) is not None or has_listed(text.low, "indefinite-person")


def shows_owner(text: Text) -> bool:
    """Doubt about somebody who is shown by a body part: "a client's chin"."""
    return any(
        text.low[i] != word
        and not text.silent[i]
        and listed(text.after(i), "body-part")
        and person(word)
        for i, word in enumerate(text.bare)
    )


# ---- doubts about a noun


def is_hidden(n: Noun) -> bool:
    """Doubt that the person is in the picture: "without a nurse", "running from a thief"."""
    if n.relation == "of":
        shown = singular(n.before_relation)
        is_odd = shown in ("pair", "eye") or (listed(shown, "group") and not n.plural)
        # The person is a picture in the picture: "a cook next to a poster of a nurse".
        is_odd |= bool(n.found) and listed(shown, "picture")
        is_counted = n.plural and listed(n.text.low[n.opening], "number-word")
        is_depiction = listed(shown, "depiction", "toy")
        is_shown = shown == "full" or (is_counted and not is_depiction)
        return is_odd or not (is_shown or listed(shown, *_SHOWN_OF))
    is_result = n.relation == "to" and "from" in n.text.low[: n.opening]  # "from ape to hunter"
    if is_result or listed(n.relation, "hides") or has_listed(n.modifiers, "not-subject"):
        return True
    if n.relation == "and" and n.text.credited[n.opening - 1]:
        return True  # "by Ada and an artist"
    is_agent = n.before_relation.endswith(("ed", "ing")) or listed(n.before_relation, "past")
    if n.relation in _PASSED_OVER and not is_agent:
        return True
    if n.relation in ("for", "as") or (n.relation == "at" and n.is_definite):
        return True  # "at the dentist"
    is_there = n.before_relation in ("this", "there", "it", "that") and not n.found
    # "that is a nurse", but not "a bear that is a nurse"
    is_there &= n.text.opens[n.opening - 2]
    return listed(n.relation, "not-subject", "unsure-relation", "copula") and not is_there


def is_absent(n: Noun) -> bool:
    """Doubt about somebody who is not there: "the driver is not in the car", "left by a guard"."""
    before = n.text.low[n.text.clause_start(n.i) : n.opening]
    if n.relation == "by":
        # "once surrounded by tourists", "not surrounded by tourists"
        is_past = has_listed(before, "negation") or not {"once", "used"}.isdisjoint(before)
        is_past &= n.before_relation == "surrounded"
        return is_past or listed(n.before_relation, "leaves")
    is_left = n.relation in ("where", "which") and has_listed(before, "vacant")
    # "take out the worker", "a tower that once had a keeper"
    is_taken_out = has_listed(before, "takes") and n.relation in ("out", "away")
    if is_left or is_taken_out or "once" in before:
        return True
    # "an empty chair where the receptionist would sit", "the guard has been erased"
    behind = _rest_of_clause(n.text, n.i)
    if listed(n.after, "modal") or ("been" in behind and has_listed(behind, "erased")):
        return True
    edges = [k for k, word in enumerate(behind) if listed(word, "picture-edge")]
    is_outside = any(has_listed(behind[max(0, k - 2) : k], "beyond") for k in edges)
    is_negated = has_listed(behind[1:2], "negation") and not "".join(behind[2:3]).endswith("ing")
    is_negated = is_negated and listed(n.after, "copula")
    if is_outside or is_negated or listed(n.after, "negated"):
        return True
    # "the farmer is off having lunch", "soldiers out on patrol"
    first, following = ([*behind[listed(n.after, "copula") :], "", ""])[:2]
    return listed(first, "away") and not listed(following, "article", "around")


def is_of_fiction(n: Noun) -> bool:
    """Doubt about a figure of a game or a film: "a marine from warhammer"."""
    source = _rest_of_clause(n.text, n.i)[1:]
    if n.after != "from" or not source:
        return False
    is_place = listed(source[0], "article", "owner", "preposition", "place-of-people")
    is_place |= not countries().isdisjoint((source[0], " ".join(source[:2])))
    return not is_place or any(map(_is_name_only, source))


def _is_name_only(word: str) -> bool:
    """Return whether a lower-case word is unknown, or known only as a name."""
    return not is_word(word) or (kinds(word) != "" and not kinds(word).strip("lf"))


def may_be_creature(n: Noun) -> bool:
    """Doubt about a person who may be an animal: "a wizard, cat, hat", "a cook who is a fox"."""
    text = n.text
    if has_listed(text.low, "like-human"):
        return True
    rest = _rest_of_clause(text, n.i)
    behind = n.i + 1 + len(rest)
    for first, stop in _clauses(text, 0, len(text.low)):
        is_near = stop <= n.opening or first == behind
        clause = text.low[first:stop]
        is_part = listed(clause[-1], "animal-part")  # "lion head"
        is_bare = not (clause[0].endswith("ing") or has_listed(clause, "preposition"))
        if is_near and is_bare and any(map(_is_creature, clause if is_part else clause[-1:])):
            return True
    is_same = rest[:2] in (["who", "is"], ["that", "is"]) and any(map(_is_creature, rest[2:4]))
    # "a shaman with the head of a fox", "a shaman with a fox head"
    near = [rest[max(0, k - 3) : k + 2] for k, word in enumerate(rest) if _is_creature(word)]
    return is_same or any(has_listed(words, "animal-part") for words in near)


def _is_creature(word: str) -> bool:
    return _is_animal(word) or listed(word, "creature")


def is_uncommon(n: Noun) -> bool:
    """Doubt about a noun that is not in the list of common nouns: "a punk", "a shepherd"."""
    if listed(n.word, "strict-thing", "style-noun"):
        return True
    if listed(n.word, "gendered-noun", "gendered-title") or listed(n.compound, "person-phrase"):
        return False
    if is_gendered_noun(n.word) and classes(n.noun):
        return False  # not "mothman"
    forms = (n.word, n.noun, n.noun.rsplit("-", 1)[-1])
    return not (has_listed(forms, "common-person") or is_bare_frame(n) or acts_like_person(n))


def acts_like_person(n: Noun) -> bool:
    """Return whether a verb of a person follows: "a butcher weighing sausages"."""
    return n.has_determiner and not n.plural and listed(n.after, "human-verb")


def is_bare_frame(n: Noun) -> bool:
    """Return whether a prompt is nothing but a picture of somebody: "nurse, studio portrait".

    Any noun for a person is one in such a frame.
    """
    text = n.text
    is_known = n.first == n.i and bool(n.relation or kinds(n.noun))  # not "schlapsinger"
    is_known |= classes(n.compound)[:1] in ("p", "c")
    is_known |= n.first + 1 == n.i and listed(text.low[n.first], "organization")
    if n.found or n.after or not is_known or sum(text.opens[1 : n.opening + 1]):
        return False
    before = text.low[: n.opening]
    is_pictured = n.relation == "of" and listed(n.before_relation, "picture")
    if before and not (is_pictured and len(before) <= _LONGEST_FRAME):
        return False
    return all(
        has_listed(text.low[first:stop], "picture", "tag", "style-word", "medium", "frame-tag")
        for first, stop in _clauses(text, n.i + 1, len(text.low))
    )


def is_not_open(n: Noun) -> bool:
    """Doubt about an office or a figure of one gender."""
    is_alike = n.plural and has_listed(n.modifiers, "kinship")  # "twin toddlers"
    # "a half elf", "the first person on the moon"
    if is_alike or has_listed(n.modifiers, "unseen", "century-name"):
        return True
    return has_listed((n.noun, *n.modifiers, *n.noun.split("-")), "not-open")


def is_toy_or_animal(n: Noun) -> bool:
    """Doubt about "a toy soldier", "a badger warrior" and "a cat with a baby"."""
    is_thing = has_listed(n.modifiers, "toy", "brand", "baby", "like-animal")
    is_thing &= not listed(n.compound, "person-phrase")  # "a ceramic artist"
    if is_thing or listed(n.compound, "thing-phrase") or _is_young_animal(n):
        return True
    if n.first == n.i and listed(n.noun, "cued-thing") and has_listed(n.text.low, "thing-cue"):
        return True  # "two knights on a chessboard", but not "a fashion model"
    is_worn = listed(n.noun, "thing-sense") and has_listed(n.modifiers, "thing-adjective")
    if is_worn or listed(n.after, "thing-verb"):
        return True  # "grey joggers folded on a chair"
    return _is_animal_with_role(n)


def _is_animal_with_role(n: Noun) -> bool:
    """Return whether an animal stands before the noun: "a badger warrior"."""
    modifiers = n.modifiers[:-1] if listed(n.noun, "handles") else n.modifiers  # "a dog groomer"
    parts = ["", *n.noun.split("-")[:-1], *"-".join(modifiers).split("-")]
    return any(map(_is_animal, parts))


def _is_young_animal(n: Noun) -> bool:
    """Return whether a child is an animal's: "a baby (red panda)", "a monkey with a child"."""
    if listed(n.noun, "baby"):
        return any(map(_is_animal, n.text.bare))
    return n.noun in ("child", "kid") and _is_animal(n.before_relation)


def _is_animal(word: str) -> bool:
    is_usual = adjective(word) or gendered(word) or listed(word, "not-animal")
    return ("x" in kinds(word)[:2] or listed(word, "animal")) and not is_usual


def is_new_compound(n: Noun) -> bool:
    """Doubt about nouns that are no known pair: "gloom piper", "cloud farmer"."""
    start = n.first if n.has_determiner else skip_medium(n.text, n.first, n.i)
    if start == n.i:
        return False  # "pixel art knight"
    last = n.text.low[n.i - 1]
    is_pair = listed(n.compound, "person-phrase", "pair") or classes(n.compound)[:1] in ("p", "c")
    is_kind = listed(last, "thing-person", "occupational", "organization", "genre")
    is_open = listed(n.noun, "occupation", "handles") or not classes(n.noun)
    is_both = person(last) and not listed(last, "baby")  # not "baby driver"
    return not (is_pair or is_kind or is_open or is_both or is_plain_compound(n))


def is_plain_compound(n: Noun) -> bool:
    """Return whether a compound has an article and known nouns only: "a choir conductor"."""
    nouns = n.text.low[n.first : n.i]
    article = n.text.before(n.start)
    return article in ("a", "an") and all("n" in kinds(noun.split("-")[-1]) for noun in nouns)


def may_be_title(n: Noun) -> bool:
    """Doubt about "the last dreamer", "riders of light" and prompts in title case."""
    if any(map(str.istitle, n.text.words[1:])) and not any(n.text.capital):
        return True
    is_sentence = n.in_clause or n.after in ("is", "are", "was", "were", "has", "have")
    if n.is_definite and not n.relation and not is_sentence:
        return True
    is_group = listed(n.noun, "group", "collective") or n.noun == "member"
    return n.after == "of" and not is_group


def is_stray_plural(n: Noun) -> bool:
    """Doubt about a plural without a determiner or a verb: "fresh bread, happy neighbours"."""
    is_odd = is_plural(n.word) and n.text.before(n.start) in ("a", "an")  # "an astronauts"
    if not n.plural or n.has_determiner or n.in_clause or (n.found and n.is_linked):
        return is_odd
    if n.relation == "by" and n.before_relation == "surrounded":
        return is_odd  # a place, like "among"
    is_tag = n.text.opens[n.opening] and n.opening > 0
    return is_tag or n.relation not in ("", "of", "and", "with", "&")


def is_described_as_other(n: Noun) -> bool:
    """Doubt about people who are something else: "the crew are unicorns", "a nurse is a robot"."""
    rest = n.text.after(n.i + 1)
    is_noun = kinds(rest).startswith(("n", "x")) and not listed(rest, *STOPS)
    is_noun |= listed(rest, "article", "owner")
    # "a person is stone carving"
    is_verb = rest.endswith("ing") or n.text.after(n.i + 2).endswith("ing")
    return listed(n.after, "copula") and not is_verb and is_noun


def is_long(n: Noun) -> bool:
    """Doubt about a long row of words without a determiner, which may be several tags."""
    return not n.has_determiner and n.i - n.start > _LONGEST_TAG


def begins_badly(n: Noun) -> bool:
    """Doubt about the start of the phrase: "film the last pilot", "self - made officer"."""
    start = n.text.start[n.opening]
    end = n.text.start[n.i] + len(n.text.words[n.i])
    is_behind_dash = re.search(r"[\w'] -+ $", n.text.prompt[:start]) and not n.has_determiner
    if is_behind_dash or n.text.prompt[end : end + 3] == " - ":
        return True
    if is_inflected(n.relation, "s") and not (n.has_determiner or n.plural):
        return True  # "stands guard"
    if not n.relation or n.is_linked or listed(n.relation, "picture", "draw"):
        return False
    if n.has_determiner or n.plural:
        return not listed(n.relation, "function", "opens-clause", "article")
    return not listed(n.relation, "medium")


def is_late_tag(n: Noun) -> bool:
    """Doubt about a bare noun in a later clause, which may be about the picture: "oil, master"."""
    if n.plural or n.has_determiner or n.in_clause:
        return False
    start = skip_medium(n.text, n.start, n.i)
    if listed(n.noun, "art-tag") and n.i + 1 < len(n.text.low):
        return True  # "wildlife photographer, leopard on a branch"
    if n.text.prompt[: n.text.start[start]].rstrip().endswith(":"):
        return False
    clauses_before = sum(n.text.opens[1 : start + 1])
    is_style = listed(n.noun, "style-tag", "art-tag") or start == n.i
    return clauses_before > 1 or (clauses_before == 1 and is_style)


def is_doubtful_other(n: Noun) -> bool:
    """Doubt that a further person is another one: "a CEO, a leader of hundreds"."""
    if not n.found:
        return False
    if n.noun in _nouns_of(n.text, n.found) or n.i == n.found[-1].head + 1:
        return True
    # "an actor who plays a doctor", "a pilot and two other men"
    if listed(base(n.relation), "plays") or "other" in n.text.low[n.opening : n.i]:
        return True
    is_clause = n.has_determiner and listed(n.relation, "opens-clause")
    # "three people, two women and one man" are three people.
    is_part = n.found[-1].plural and n.opening == n.found[-1].head + 1
    is_linked = n.is_linked or is_clause or (n.plural and not n.relation and not is_part)
    return not (is_linked or is_in_list(n))


def is_in_list(n: Noun) -> bool:
    """Return whether the noun is in a list with "and": "a lawyer, a judge and a clerk"."""
    text = n.text
    last = n.found[-1]
    # "two doctors, a woman and a man" are two people.
    if last.plural or not n.has_determiner or n.opening != last.head + 1:
        return False
    for word in text.low[n.i + 1 :]:
        if listed(word, "preposition", "function") or word.endswith("ing"):
            return word == "and"
    return False


def is_named(n: Noun) -> bool:
    """Doubt about names: before the noun, next to it, or after a word that renames the person."""
    text = n.text
    start = text.clause_start(n.opening)
    if any(_is_name_clause(text, *clause) for clause in _clauses(text, 0, start)):
        return True
    # What is before "portrait of" is about the picture.
    is_pictured = n.relation == "of" and listed(n.before_relation, "picture")
    first = n.opening if is_pictured else start
    stop = n.i + 1
    is_renamed = has_listed(_rest_of_clause(text, n.i), "name-behind")
    for k in range(first, len(text.low)):
        if k > n.i and text.opens[k]:
            break
        stop = k + 1
        # A name behind the noun is somebody else, or a place, unless it is next to the noun, or
        # compared with it: "a ninja as Ada".
        is_renamed |= k > n.i and listed(text.low[k], "renames")
        is_near = k <= n.i + 1 or is_renamed
        if is_near and not (text.credited[k] or text.silent[k]) and _may_be_name(text, k):
            return True
    # The next clause may be a name: "a singer, marga polk".
    is_end = stop == n.i + 1 and stop < len(text.low)
    return is_end and _is_name_clause(text, *next(_clauses(text, stop, len(text.low))))


def _rest_of_clause(text: Text, i: int) -> list[str]:
    """Return the words behind word i in its clause."""
    stop = i + 1
    while not text.opens[stop]:
        stop += 1
    return text.low[i + 1 : stop]


def _clauses(text: Text, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the (first, stop) positions of the clauses between two positions."""
    for k in range(start + 1, stop + 1):
        if text.opens[k]:
            yield start, k
            start = k


def _is_name_clause(text: Text, first: int, stop: int) -> bool:
    """Return whether a clause is, or includes, a name that is no artist's or style's."""
    words = text.bare[first:stop]
    if text.credited[first] or text.silent[first] or listed(words[-1], "style-word"):
        return False
    if any(
        listed(words[k], "famous", "token")
        or (listed(words[k], "given-name") and "l" in kinds((*words, "x")[k + 1]))
        or (text.capital[first + k] and k and not is_word(words[k]))
        for k in range(len(words))
        if not text.credited[first + k]
    ):
        return True
    has_word = any(is_word(word) and kinds(word)[:1] not in ("f", "l") for word in words)
    is_full_name = len(words) > 1 and "f" in kinds(words[0]) and "l" in kinds(words[1])
    # "Hector. A pilot", "Maria, a nurse"
    is_apart = text.sentence[stop] or (text.words[first].istitle() and first == 0)
    is_given_name = len(words) == 1 and "f" in kinds(words[0]) and is_apart
    is_name = is_full_name or is_given_name or not has_word
    return len(words) < _LONGEST_NAME and is_name


def _may_be_name(text: Text, k: int) -> bool:
    """Return whether word k may be part of a name."""
    word = text.words[k]
    low = text.bare[k]
    is_acronym = word.isupper() and len(word) <= _LONGEST_ACRONYM
    if listed(low, "famous", "token") or not (is_acronym or is_word(low)):
        return True
    is_start = text.sentence[k] or text.opens[k]
    if text.capital[k] and not is_start and not word.isupper() and not is_proper(low):
        return True
    return listed(low, "given-name") and "l" in kinds(text.after(k) or "x")


@lru_cache(REMEMBERED_WORDS)
def is_word(word: str) -> bool:
    """Return whether a lower-case word is known, apart from names."""
    word = word.strip("'-")
    if len(word) < 3 or word[0].isdigit() or word.endswith("ing"):
        return True
    if "-" in word and not listed(word, "modern"):
        return all(map(is_word, word.split("-")))
    forms = {word, singular(word), base(word)}
    forms.update(word.removesuffix(ending) for ending in ("er", "ly", "est", "y", "ish", "s"))
    if any(len(form) > 2 and classes(form).strip("lfi") for form in forms):
        return True
    if has_listed(forms, "modern") or any(word in words for words in lists().values()):
        return True
    return word in origins() or person(word) or gendered(word)


def leaves_one_out(text: Text, found: Sequence[PersonPhrase]) -> bool:
    """Doubt that a noun which is not understood is a person: "while a stenographer types"."""
    heads = {phrase.head for phrase in found}
    for i in sorted(set(range(len(text.bare))) - heads):
        noun = singular(text.bare[i])
        if listed(noun, "thing", "unsure") and text.after(i).endswith("ing"):
            return True  # "a drone operator filming a scientist"
        is_common = listed(noun, "common-person") and may_be_person(text, i)
        if not is_common or is_head(text, i):
            continue
        start, _ = extend_left(text, i)
        is_verb = "v" in kinds(text.after(i)) and listed(text.before(start), "determiner")
        if is_verb and not heads & set(range(start, i + 3)):
            return True
    return False


# The questions in order, each with the reason that a doubt gives.
DOUBTS_ABOUT_PROMPT: tuple[tuple[Callable[[Text], bool], str], ...] = (
    (has_one_of_several, NOT_PLAIN),
    (shows_owner, NOT_PLAIN),
)
DOUBTS: tuple[tuple[Callable[[Noun], bool], str], ...] = (
    (is_hidden, NOT_PLAIN),
    (is_absent, NOT_PLAIN),
    (is_of_fiction, NAMED),
    (may_be_creature, NOT_PLAIN),
    (is_uncommon, NOT_PLAIN),
    (is_not_open, NOT_PLAIN),
    (is_toy_or_animal, NOT_PLAIN),
    (is_new_compound, NOT_PLAIN),
    (may_be_title, NOT_PLAIN),
    (is_stray_plural, NOT_PLAIN),
    (is_described_as_other, NOT_PLAIN),
    (is_long, NOT_PLAIN),
    (begins_badly, NOT_PLAIN),
    (is_late_tag, NOT_PLAIN),
    (is_doubtful_other, NOT_PLAIN),
    (is_named, NAMED),
)


# ---- people whom somebody else has found


def has_word_for_person(prompt: str) -> bool:
    """Return whether a prompt has a noun for a person, whatever its place, except in quotations."""
    text = read_text(prompt)
    return any(
        not text.silent[i] and (person(word) or is_gendered_noun(word))
        for i, word in enumerate(text.bare)
    )


def is_markable(prompt: str, mark: int) -> bool:
    """Return whether a mark is at the first letter of a noun, or of a word before it."""
    text = read_text(prompt)
    # Words after the last one that is read are ignored.
    is_unread = len(text.prompt) <= mark < len(prompt)
    return is_unread or _head_of_mark(text, mark) is not None


@lru_cache(maxsize=1000)
def find_marked(prompt: str, marks: tuple[int, ...]) -> list[tuple[PersonPhrase, str]]:
    """Return the phrases of marked people without asking about doubts, each with a reason or "".

    The reason is "named" next to a proper name, and "not plain" for nouns such as "family", which
    cannot have one value.

    Args:
        prompt: The prompt.
        marks: The offset of the noun for each person, or of a word before it in its phrase.
    """
    text = read_text(prompt)
    found: list[PersonPhrase] = []
    marked: list[tuple[PersonPhrase, str]] = []
    heads = {_head_of_mark(text, mark) for mark in marks}
    for i in sorted(head for head in heads if head is not None):
        noun = Noun(text, i, found)
        if text.silent[i] or listed(noun.word, "no-single-value") or _is_mentioned(noun):
            continue
        # An adjective, as in "a human knee", unlike "a human praying".
        is_adjective = "a" in kinds(noun.word) and not noun.after.endswith("ing")
        if is_adjective and not is_head(text, i):
            continue
        phrase = _phrase(noun, is_marked=True)
        if phrase is not None:
            found.append(phrase)
            is_body = listed(noun.word, "group", "group-left-unchanged", "body-of-people")
            reason = NOT_PLAIN if is_body and not (noun.plural or person(noun.word)) else ""
            is_named = _has_name(noun) or noun.after in ("named", "called")
            marked.append((phrase, NAMED if is_named else reason))
    # A value for one of two people is worse than none: "a runner passes another".
    return [] if len(marked) == 1 and has_one_of_several(text) else marked


def _head_of_mark(text: Text, mark: int) -> int | None:
    """Return the position of the noun at a mark, or after it in its phrase, or None."""
    first = bisect_left(text.start, mark)
    if first == len(text.start) or text.start[first] != mark:
        return None
    for i in range(first, len(text.low)):
        if listed(text.low[i], *STOPS) or (i > first and text.opens[i]):
            break
        word = text.bare[i]
        is_person = person(word) or is_gendered_noun(word) or listed(word, "collective")
        # The first of several nouns is no head: "child actor".
        is_modifier = person(text.after(i)) and is_head(text, i + 1) and may_be_person(text, i)
        if is_person and not is_modifier:
            return i
    word = text.bare[first]
    is_noun = not set(kinds(word)).isdisjoint("npx") or set(kinds(word)).isdisjoint("avr")
    is_noun &= len(word) > 1 and not listed(text.low[first], *STOPS)
    return first if is_noun else None


# ---- all people


@lru_cache(maxsize=1000)  # called for each image generated from a prompt
def find_subjects(prompt: str) -> tuple[PersonPhrase, ...] | str:
    """Return the people in a prompt in order, or the reason why it stays unchanged."""
    text = read_text(prompt)
    for is_doubtful, reason in DOUBTS_ABOUT_PROMPT:
        if is_doubtful(text):
            return reason
    found: list[PersonPhrase] = []
    for noun in _nouns(text, found):
        for doubt, reason in DOUBTS:
            if doubt(noun):
                return reason
        phrase = _phrase(noun)
        if phrase is None:
            return NOT_PLAIN
        found.append(phrase)
    if found:
        return NOT_PLAIN if leaves_one_out(text, found) else tuple(found)
    if any(not text.credited[first] for first, _ in find_names(text)):
        return NAMED
    is_unknown = any(
        listed(text.before(i), "article") and text.words[i].islower() and not is_word(word)
        for i, word in enumerate(text.bare)
    )
    is_group = has_listed(text.low, "group-left-unchanged")
    is_unsure = any(may_show_person(text, i) for i in range(len(text.bare)))
    return NOT_PLAIN if is_unknown or is_group or is_unsure else NO_PERSON


def may_show_person(text: Text, i: int) -> bool:
    """Return whether word i may be a person who does something: "a chef painting plates"."""
    after = text.after(i)
    is_doing = after.endswith("ing") or adjective(after)
    return is_doing and may_be_person(text, i) and not is_head(text, i)


def find_persons(prompt: str) -> Persons:
    """Return all people whom a description shows, also those who could not get a value for sure.

    To read a caption, no person needs to be certain, since nothing is changed.
    """
    text = read_text(prompt)
    found: list[PersonPhrase] = []
    for noun in _nouns(text, found):
        is_of_thing = noun.relation == "of" and listed(noun.before_relation, "depiction", "toy")
        is_thing = has_listed(noun.modifiers, "toy") or _is_animal_with_role(noun)
        is_thing |= _is_young_animal(noun)
        if is_of_thing or is_thing or listed(noun.relation, "not-subject", "unsure-relation"):
            continue
        phrase = _phrase(noun)
        if phrase is not None:
            found.append(phrase._replace(named=_has_name(noun)))
    persons = [[phrase] for phrase in found[:1]]
    for number in range(1, len(found)):
        if _describes_previous(text, found, number):
            persons[-1].append(found[number])
        else:
            persons.append([found[number]])
    return persons


def _describes_previous(text: Text, found: Sequence[PersonPhrase], number: int) -> bool:
    """Return whether a phrase is about the person before it: "a CEO, a man in his fifties"."""
    previous, phrase = found[number - 1], found[number]
    if phrase.opening != previous.head + 1 or not text.is_same_sentence(previous.head, phrase.head):
        return False
    if number + 1 == len(found):
        return True
    # "a cook, a waiter and a guest" are three people.
    following = text.low[phrase.head + 1 : found[number + 1].opening]
    return bool(following) and not listed(following[0], "adds", "joins")


def _nouns(text: Text, found: list[PersonPhrase]) -> Iterator[Noun]:
    """Yield the nouns for people who may be shown, given the list of people found so far."""
    for i in range(len(text.bare)):
        if may_be_person(text, i) and is_head(text, i):
            noun = Noun(text, i, found)
            if not (_is_not_shown(noun) or _is_mentioned(noun)):
                yield noun


def _phrase(n: Noun, *, is_marked: bool = False) -> PersonPhrase | None:
    """Return the phrase of a noun, or None if the place for a value is unsure.

    Before a noun that is marked as a person, the value fits in any case.
    """
    text = n.text
    start = n.start
    first = n.first
    if is_marked and not n.has_determiner and n.i - start > _LONGEST_MARKED:
        # A long row of words is likely to be several tags.
        start = n.i
        while not text.opens[start] and is_compound(text.low[start - 1], text.low[start]):
            start -= 1
        first = start
    elif not (n.plural or n.has_determiner):
        start = skip_medium(text, start, n.i)
        first = max(start, first)
    place = place_of_value(text, start, first, n.i, n.has_determiner)
    if place is None:
        if not is_marked:
            return None
        place = first
    if is_marked and not all(map(is_word, n.text.low[first : n.i])):
        first = n.i  # an unknown word is no part of the noun
    words = [(text.start[j], text.low[j]) for j in range(start, first + 1)]
    end = text.start[n.i] + len(n.word)
    return PersonPhrase(words, text.start[start], end, text.start[place], n.plural, n.opening, n.i)


def _has_name(n: Noun) -> bool:
    """Return whether a name is next to a phrase: "Ada Smith, a singer", "a singer called Ada"."""
    text = n.text
    for first, stop in find_names(text):
        if text.credited[first]:
            continue
        is_inside = n.opening <= first <= n.i
        is_called = first > n.i and has_listed(text.low[n.i + 1 : first], "is-also")
        is_next = stop == n.opening or first == n.i + 1
        if is_inside or is_called or is_next:
            return True
    return False
