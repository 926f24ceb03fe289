"""Recognise nouns for people that do not refer to a person in an English prompt.

They may be things ("a toy soldier", "a rack server"), animals ("a rabbit detective"), titles of
works ("Lord of the Rings"), credits or names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from vldebias.prompts.english.words import (
    STOPS,
    adjective,
    base,
    classes,
    gendered,
    has_listed,
    is_inflected,
    is_plural,
    kinds,
    listed,
    person,
    singular,
)
from vldebias.wording.english.phrases import (
    POSSESSIVE,
    is_gendered_noun,
    is_head,
    shows_body,
)
from vldebias.wording.english.text import Text

# Reasons to skip a noun: it does not refer to a person, or the rules cannot decide.
NOBODY = "no person"
UNCLEAR = "not understood"
_NEAR = 8  # words
_AGENT_ENDINGS = ("er", "or", "ist", "ian", "ant", "eer", "host", "mage")


def is_agent(noun: str) -> bool:
    """Return whether a noun ends like a profession and is not a known thing."""
    return noun.endswith(_AGENT_ENDINGS) and not listed(noun, "agent-like", "animal")


def may_be_person(text: Text, i: int) -> bool:
    """Return whether word i may be a noun for a person."""
    word = text.bare[i]
    # Past tenses look like nouns for people: "I chased".
    is_verb = is_inflected(word, "ed")
    if len(word) == 1 or is_verb or text.silent[i] or listed(word, "no-single-value", "asleep"):
        return False
    if word != text.low[i] and (is_plural(word) or not shows_body(text, i)):
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
    if not is_agent(noun) or (classes(noun) == "n" and not listed(noun, "thing", "unsure")):
        return False  # Only people have faces here, unlike "the face of a tower clock".
    for j in range(i - 1, max(-1, i - 6), -1):
        if text.low[j] == "of":
            return listed(text.before(j), "face")
    return False


def why_no_person(text: Text, i: int, start: int) -> str:
    """Return why a phrase is not a person, regardless of what precedes it, or "" if it is one.

    Args:
        text: The text.
        i: The position of the last noun of the phrase.
        start: The position of the first word of the phrase, without determiners.
    """
    if _is_nobody(text, i, start):
        return NOBODY
    reason = ""
    # Diagrams show roles, not people.
    is_diagram = has_listed(text.low, "diagram")
    # "a monkey with a baby"
    may_be_cub = listed(text.low[i], "baby") and any(map(is_animal, text.low[:start]))
    if may_be_cub or is_diagram or _is_title(text, i, start):
        reason = UNCLEAR
    elif not is_head(text, i):
        reason = UNCLEAR if _may_be_subject(text, i, start) else NOBODY
    elif _is_thing(text, i, start) and not _has_face(text, i):
        reason = UNCLEAR if _may_be_human(text, i, start) else NOBODY
    return reason


def _is_nobody(text: Text, i: int, start: int) -> bool:
    """Return whether a phrase certainly shows no person: "no nurse", "half mechanic"."""
    is_denied = text.before(start) == "no"
    is_denied |= text.low[max(0, start - 3) : start : 2] == ["no", "or"]  # "no cook or nurse"
    # Relatives of this kind look alike: "twin toddlers".
    is_alike = is_plural(text.bare[i]) and has_listed(text.low[start:i], "kinship")
    # The prompt denies that somebody is visible: "the guest is absent", "an unseen choir".
    described = text.low[start:i] + text.low[i + 2 : i + 3] * listed(text.after(i), "copula")
    is_unseen = has_listed(described, "unseen") or "not in view" in " ".join(text.low[i : i + 10])
    if is_denied or is_alike or is_unseen:
        return True
    return (
        _is_credit(text, i, start)
        or _is_for_animal(text, i, start)
        or _is_companion_of_thing(text, i, start)
    )


def _is_credit(text: Text, i: int, start: int) -> bool:
    """Return whether a phrase praises the picture: "photographer of the year", "by an artist"."""
    behind = text.low[i + 1 : i + 4]
    is_of_time = behind[:2] == ["of", "the"] and has_listed(behind[2:], "time-noun")
    clause = text.low[text.clause_start(start) : i]
    is_praised = text.opens[start] and has_listed(clause, "praise")
    is_joint = "by" in clause and "and" in clause
    is_maker = listed(text.low[i], "art-tag") and (is_praised or is_joint)
    return is_of_time or is_maker or listed(text.after(i), "award")


def _is_for_animal(text: Text, i: int, start: int) -> bool:
    """Return whether a noun stands for an animal: "a newborn (otter)", "a horse is a DJ"."""
    noun = text.low[i]
    is_predicate = text.before(start) in ("a", "an") and text.before(start - 1) == "is"
    clause = text.low[text.clause_start(i) : start]
    if is_predicate and any(map(is_animal, clause)) and not any(map(person, clause)):
        return True
    behind = text.low[i + 1 : i + 4]
    is_young = listed(noun, "baby", "young-animal")
    if (is_young or noun == "child") and text.before(start) == "with":
        if is_animal(text.before(start - 1)):
            return True  # "a gorilla with child"
    if is_young:
        for word in behind:
            if is_animal(word):
                return True
            if listed(word, *STOPS) or base(word) != word:
                break
    # A copula or a comparison calls the person an animal: "the workers are farm animals".
    is_like = behind == ["that", "looks", "like"]
    if is_like or has_listed(behind[1:2], "article"):
        behind = text.low[i + 1 : i + 9]
    return (is_like or listed(text.after(i), "copula")) and any(map(is_animal, behind))


def _is_companion_of_thing(text: Text, i: int, start: int) -> bool:
    """Return whether a noun belongs to a thing or an animal: "a dog, a loyal friend"."""
    is_companion = listed(singular(text.low[i]), "companion")
    if text.before(start) == "its":
        # "a monkey and its baby", but not "a horse and its rider"
        return is_companion or is_plural(text.bare[i]) or listed(text.low[i], "baby")
    if text.after(i) == "to":
        return is_companion and not any(map(person, text.low[i + 2 : i + 5]))
    # "ducklings behind their mother"
    is_companion |= text.before(start) == "their" and listed(text.low[i], "relative")
    before = [word for word in text.low[:start] if not listed(word, "companion")]
    return is_companion and any(map(is_animal, before)) and not any(map(person, before))


def _may_be_subject(text: Text, i: int, start: int) -> bool:
    """Return whether a verb may follow word i, in which case i can still be a head."""
    after = text.after(i)
    # The verb may follow an adverb or noun: "a programmer pair programming".
    is_verb = is_inflected(after, "s", "ing")
    is_verb = is_verb or (text.after(i + 1).endswith("ing") and not person(after))
    # After "and", the verb is in the plural: "the chef and the sommelier taste wine".
    is_verb = is_verb or (text.before(start - 1) == "and" and "v" in classes(after))
    # not "nurse uniforms"
    is_group = is_plural(text.bare[i]) and not text.capital[i]  # not "the Champions League"
    determiner = text.before(start)
    return is_group or (is_verb and (listed(determiner, "determiner") or determiner == "while"))


# ---- titles and names


def _is_title(text: Text, i: int, start: int) -> bool:
    """Return whether a phrase may be the title of a film, a game or a book."""
    link = text.before(start)
    following = text.low[i + 1 : i + 3]
    modifiers = text.low[start:i]
    is_year = re.fullmatch(r"(?:19|20)\d\d", "".join(following[:1])) is not None
    if is_year and has_listed(text.low[max(0, start - 2) : i], "picture", "depiction"):
        return True  # A year follows the title of a work: "the film alien (1979)".
    if link == "the" and start == 1 and following[:1] == ["by"]:
        return "".join(text.words[i + 2 : i + 3]).istitle()  # "the milkmaid by Vermeer"
    if is_plural(text.bare[i]):
        return _is_title_in_plural(text, i, start)
    # An adjective behind the kind of work begins a title: "the movie lone survivor".
    if any(listed(word, "depiction") and adjective(rest) for word, rest in pairwise(modifiers)):
        return True
    # Capitals before "of the" mark a title: "Lord of the Rings".
    is_lord = following == ["of", "the"] and text.words[i].istitle()
    has_title_word = bool(modifiers) and listed(text.low[i], "title-role")
    # A tag with a year, or with a word that is typical of titles, may be one: "taxi driver, 1976".
    is_work = is_lord or is_year or has_title_word or has_listed(modifiers, "game")
    return is_work and link in ("", "of")


def _is_title_in_plural(text: Text, i: int, start: int) -> bool:
    """Apply `_is_title` to a plural."""
    following = text.low[i + 1 : i + 3]
    # "couple, super models" are the couple again
    is_couple = text.opens[start] and has_listed(text.low[:start], "group-left-unchanged")
    is_counted = text.before(i - 1) == "the" and listed(text.low[i - 1], "number-word")
    # A number in capitals begins a name: "The Twelve Apostles".
    is_counted &= text.words[i - 1].istitle() and text.words[i].istitle()
    # A plural before "of the" or "of" and a name is a title: "The Riders of Rohan".
    is_name = text.words[i].istitle() and "".join(text.words[i + 2 : i + 3]).istitle()
    is_order = following == ["of", "the"] or (following[:1] == ["of"] and is_name)
    return (
        is_couple
        or is_counted
        or (is_order and not listed(text.before(start).replace("the", ""), "determiner"))
    )


# ---- things and animals


def _is_thing(text: Text, i: int, start: int) -> bool:
    """Return whether noun i is an animal or a thing, as in "a toy soldier" or "a rack server"."""
    noun = singular(text.bare[i])
    modifiers = text.low[start:i]
    after = text.after(i)
    # Machines stand on furniture: "an ice cream maker on a table", but not "a runner on a table".
    is_placed = after == "on" and has_listed(text.low[i + 2 : i + 5], "furniture")
    is_placed = is_placed and is_agent(noun) and "n" in kinds("".join(modifiers[-1:]))
    if is_placed or _is_drawn(text, i, start) or _is_thing_by_modifiers(noun, modifiers):
        return True
    is_counted = is_plural(text.bare[i]) and listed(text.before(start), "determiner")
    is_strict = listed(text.bare[i], "strict-thing") and not is_counted
    if listed(noun, "cued-thing") and not is_strict:
        return _is_cued_thing(text, i, start)
    if noun in ("head", "chair"):
        nouns_behind = map(singular, text.low[i + 2 : i + 5])
        # "the head of the department" is a person
        return after != "of" or not has_listed(nouns_behind, "organization")
    near = text.low[max(0, i - _NEAR) : i + _NEAR]
    is_its = "its" in text.low[i : i + _NEAR]  # "a printer at work, its tray full"
    is_robot = is_its and "robot" in modifiers  # "a robot cook and its arms"
    is_human = not is_its and _is_human(noun, modifiers, after, near)
    return is_robot or ((is_strict or listed(noun, "thing")) and not is_human)


def _is_drawn(text: Text, i: int, start: int) -> bool:
    """Return whether noun i is a body or a picture: "a cat's figure", "a character of a monk"."""
    noun = singular(text.bare[i])
    after = text.after(i)
    before = text.before(start)
    if noun == "figure":
        is_owned = listed(before, "possessor", "definite") or before == "its"
        return is_owned or text.before(start - 1) == "with"
    # The character is a picture of the next person: "a full character of a monk".
    is_picture = listed(after, "picture") or after == "of" or before.endswith(POSSESSIVE)
    is_picture |= has_listed(text.low, "lettering")
    return noun == "character" and is_picture


def _is_cued_thing(text: Text, i: int, start: int) -> bool:
    """Return whether noun i is a thing according to its context, as in "a model of an atom"."""
    modifiers = text.low[start:i]
    after = text.after(i)
    # The model is presented as a thing: "pointing at a model".
    is_made = after == "of" or listed(text.before(start - 1), "presents")
    word = "".join(modifiers[-1:])
    is_of_person = person(word) or gendered(word) or listed(f"{word} model", "person-phrase")
    # The last modifier is a thing: "a cloud model".
    is_of_thing = "n" in kinds(word) and not (is_of_person or adjective(word))
    if singular(text.bare[i]) == "model" and (is_made or is_of_thing):
        return True
    has_cue = has_listed(text.low, "thing-cue") and not has_listed(modifiers, "thing-person")
    return has_cue and not listed(after, "human-verb")


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
    if is_known:
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
    return listed(singular(word), "animal") or ("x" in kinds(word)[:2] and not is_usual)


def _is_human(noun: str, modifiers: Sequence[str], after: str, near: Sequence[str]) -> bool:
    """Return whether a noun that is often a thing is a person, as in "a fan in the stands"."""
    if noun in ("character", "figure"):
        # A thing before the noun turns the character into one: "a teapot character".
        last = "".join([word for word in modifiers if not gendered(word)][-1:])
        return not last or adjective(last) or person(last) or listed(last, "thing-person")
    is_human = listed(after, "human-verb") or has_listed(modifiers, "thing-person")
    return is_human or has_listed(near, "person-cue")
