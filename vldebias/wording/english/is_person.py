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
from vldebias.wording.english.phrases import (
    NOBODY,
    POSSESSIVE,
    UNCLEAR,
    extend_left,
    is_compound,
    is_gendered_noun,
)
from vldebias.wording.english.text import Text

_NEAR = 8  # words
_AGENT_ENDINGS = ("er", "or", "ist", "ian", "ant", "eer", "host", "mage")


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
    is_lower = not text.capital[i] or text.sentence[i]
    is_noun = is_noun or (is_lower and is_misspelt_person(word))
    # "a team of nurses" are the nurses.
    is_noun |= is_lower and listed(word, "collective") and text.after(i) != "of"
    # Some nouns for people are part of a thing: "hero shot".
    is_noun = is_noun and not listed(f"{word} {text.after(i)}", "thing-phrase")
    if is_noun or listed(singular(word), "thing") or _has_face(text, i):
        return True
    phrase = f"{text.before(i)} {singular(word)}"
    return listed(phrase, "person-phrase") or (classes(phrase) == "p" and is_agent(singular(word)))


def is_agent(noun: str) -> bool:
    """Return whether a noun ends like a profession and is not a known thing."""
    return noun.endswith(_AGENT_ENDINGS) and not listed(noun, "agent-like", "animal")


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
    # Relatives of this kind look alike: "twin toddlers".
    is_alike = is_plural(text.bare[i]) and has_listed(text.low[start:i], "kinship")
    # Somebody is not visible: "the guest is absent", "an unseen choir".
    described = text.low[start:i] + text.low[i + 2 : i + 3] * listed(text.after(i), "copula")
    is_unseen = has_listed(described, "unseen") or "not in view" in " ".join(text.low[i : i + 10])
    is_nobody = is_alike or is_unseen or _is_credit(text, i, start)
    if is_nobody or _is_for_animal(text, i, start) or _is_companion_of_thing(text, i, start):
        return NOBODY
    # Diagrams show roles, not people, and screen captures show mostly text.
    before = text.low[:start]
    is_diagram = has_listed(before, "diagram") or "screen capture" in " ".join(before[:4])
    is_diagram = is_diagram and not any(map(person, before))
    # "a monkey with a baby"
    may_be_cub = listed(text.low[i], "baby") and any(map(is_animal, text.low[:start]))
    if may_be_cub or is_diagram or _is_title(text, i, start):
        return UNCLEAR
    if not is_head(text, i):
        return UNCLEAR if _may_be_subject(text, i, start) else NOBODY
    if _is_thing(text, i, start) and not _has_face(text, i):
        return UNCLEAR if _may_be_human(text, i, start) else NOBODY
    return ""


def _is_credit(text: Text, i: int, start: int) -> bool:
    """Return whether a phrase praises the picture: "photographer of the year", "by an artist"."""
    behind = text.low[i + 1 : i + 4]
    is_of_time = behind[:2] == ["of", "the"] and has_listed(behind[2:], "time-noun")
    clause = text.low[text.clause_start(start) : i]
    is_praised = text.opens[start] and has_listed(clause, "praise")
    is_maker = listed(text.low[i], "art-tag") and is_praised
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
    # A copula calls the person an animal: "the workers are farm animals".
    if has_listed(behind[1:2], "article"):
        behind = text.low[i + 1 : i + 9]
    return listed(text.after(i), "copula") and any(map(is_animal, behind))


def _is_companion_of_thing(text: Text, i: int, start: int) -> bool:
    """Return whether a noun belongs to a thing or an animal: "a dog, a loyal friend"."""
    is_companion = listed(singular(text.low[i]), "companion")
    if text.before(start) == "its":
        # "a monkey and its baby", but not "a horse and its rider"
        return is_companion or is_plural(text.bare[i]) or listed(text.low[i], "baby")
    before = [word for word in text.low[:start] if not listed(word, "companion")]
    return is_companion and any(map(is_animal, before)) and not any(map(person, before))


def _may_be_subject(text: Text, i: int, start: int) -> bool:
    """Return whether a verb may follow word i, in which case i can still be a head."""
    after = text.after(i)
    # The verb may follow an adverb or noun: "a programmer pair programming".
    is_verb = is_inflected(after, "s", "ing")
    is_thing = person(after) or is_animal(after)
    is_verb = is_verb or (text.after(i + 1).endswith("ing") and not is_thing)
    # After "and", the verb is in the plural: "the chef and the sommelier taste wine".
    is_verb = is_verb or (text.before(start - 1) == "and" and "v" in classes(after))
    # not "nurse uniforms"
    is_group = is_plural(text.bare[i]) and not text.capital[i]  # not "the Champions League"
    determiner = text.before(start)
    return is_group or (is_verb and (listed(determiner, "determiner") or determiner == "while"))


# ---- titles


def _is_title(text: Text, i: int, start: int) -> bool:
    """Return whether a phrase may be the title of a film, a game or a book."""
    link = text.before(start)
    following = text.low[i + 1 : i + 3]
    is_year = re.fullmatch(r"(?:19|20)\d\d", "".join(following[:1])) is not None
    # "Baby Driver, film poster"
    is_row = start < min(i, 2) and all(map(str.istitle, text.words[: i + 1]))
    if is_row and following and text.opens[i + 1] and _names_work(_next_tag(text, i)):
        return True
    if link == "the" and start == 1:
        is_by = following[:1] == ["by"]  # "the milkmaid by Vermeer"
        # "the constant gardener, book cover"
        is_alone = not following or text.opens[i + 1]
        is_alone = is_alone or (following[0] == "of" and text.opens[i + 3 : i + 4] == [True])
        tag = _next_tag(text, i) if is_alone else []
        if (is_by and "".join(text.words[i + 2 : i + 3]).istitle()) or is_year or _names_work(tag):
            return True
    if is_plural(text.bare[i]):
        return _is_title_in_plural(text, i, start)
    # Capitals before "of" mark a title: "Lord of the Rings", "Soldier of Fortune".
    is_lord = following[:1] == ["of"] and text.words[i].istitle()
    is_lord &= following[1:] == ["the"] or "".join(text.words[i + 2 : i + 3]).istitle()
    # A tag with a year may be one: "taxi driver, 1976".
    return (is_lord or is_year) and link in ("", "of")


def _names_work(tag: Sequence[str]) -> bool:
    """Return whether a tag behind a title names a kind of work, such as "book cover"."""
    return has_listed(tag[-1:], "work") and not has_listed(tag, "preposition")


def _is_title_in_plural(text: Text, i: int, start: int) -> bool:
    """Apply `_is_title` to a plural."""
    following = text.low[i + 1 : i + 3]
    is_counted = text.before(i - 1) == "the" and listed(text.low[i - 1], "number-word")
    # A number in capitals begins a name: "The Twelve Apostles".
    is_counted &= text.words[i - 1].istitle() and text.words[i].istitle()
    # A plural before "of the" or "of" and a name is a title: "The Riders of Rohan".
    is_name = text.words[i].istitle() and "".join(text.words[i + 2 : i + 3]).istitle()
    is_order = following == ["of", "the"] or (following[:1] == ["of"] and is_name)
    is_order &= not listed(text.before(start).replace("the", ""), "determiner")
    return is_counted or is_order


# ---- the head of a phrase


def is_head(text: Text, i: int) -> bool:
    """Return whether word i is the last noun in its phrase, unlike "nurse" in "nurse shark"."""
    plural = is_plural(text.bare[i])
    after = text.after(i)
    is_relative = listed(text.low[i], "relative") and text.capital[i + 1 : i + 2] == [True]
    # The verb of a group follows its members: "a group of hikers rests".
    is_group = plural and is_inflected(after, "s") and has_listed(text.low[:i], "group")
    # "nurse sticker", but not "nurse sticker album"
    is_pictured = listed(after, "shows-person") and ends_phrase(text.after(i + 1))
    if is_relative or is_group or is_pictured or shows_body(text, i):
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
    # A word for a size describes a later noun: "a giant smooth stone".
    if _is_of_work(after, rest) or (listed(text.low[i], "size") and adjective(after)):
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
    has_object |= rest == "on" and after.endswith("ing")  # "a child painting on a wall"
    return listed(after, "made") and not has_object


def _is_verb(word: str, rest: str, determiner: str) -> bool:
    """Return whether a word ending in -s is a verb, as in "the chef cooks", not "nurse uniforms".

    `rest` is the word after it, and `determiner` belongs to the noun before it.
    """
    # "alien pilots in a ship" are pilots, unlike in "the alien pilots a ship".
    may_be_people = person(word) and not listed(determiner, "one-determiner")
    if may_be_people and not listed(word, "human-verb"):
        return listed(rest, "determiner", "pronoun") or person(rest)
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
    if _is_described_as_thing(text, i, start):
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
    is_human = not is_its and _is_human(noun, modifiers, after, near)
    return (is_strict or listed(noun, "thing")) and not is_human


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
    return noun in ("character", "avatar") and is_picture


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


# ---- tags


def why_no_tag(text: Text, start: int, first_noun: int, i: int) -> str:
    """Return why a noun without a determiner is not a subject, or "" if it is: "doctor, 4k"."""
    is_in_brackets = is_object_in_brackets(text, start)
    if not is_in_brackets and _is_tag_of_style(text, start, i):
        return UNCLEAR if is_in_clause(text, i) else NOBODY
    if _is_credit_tag(text, start, i):
        return UNCLEAR
    return UNCLEAR if _begins_with_style(text, first_noun, i) else ""


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


def is_object_in_brackets(text: Text, start: int) -> bool:
    """Return whether a phrase in brackets follows a verb: "(mage:1.1) fighting (paladin:1.1)"."""
    is_in_brackets = text.prompt[: text.start[start]].endswith(("(", "["))
    return is_in_brackets and start > 0 and text.low[start - 1].endswith("ing")
