"""Find facts in a prompt that determine a value, as in "a Catholic priest" or "a Zulu warrior".

A fact determines a value if an informed viewer would call an image with a different value wrong,
not just unusual. A nurse, a welder or a CEO can have any gender. In case of doubt, the value counts
as determined. `facts/` lists the facts with their sources, and `rules.txt` defines which facts
count and where they must appear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from vldebias.prompts.english.words import lists
from vldebias.wording.english.facts import find_facts
from vldebias.wording.english.scene import Scene, read_scene
from vldebias.wording.english.text import read_text

KINDS = ("gender", "origin", "skin", "age")


# ---- exceptions: facts that do not determine a value


def _is_shown(scene: Scene) -> bool:
    """Return whether history is only shown, for example in a museum or on a film set."""
    # Fiction, costumes or acting, as in "a child dressed as a crusader".
    is_fiction = scene.has("pretends", "invents")
    return is_fiction or scene.has_place("shows")


# ---- historical time and place


def _is_event(scene: Scene) -> bool:
    """Return whether the prompt names a historical event, such as "Battle of Maipú"."""
    # Two capitals in a row are an event, too: "Gordon Riots".
    events = [fact.first for fact in scene.facts("event") if scene.is_capital(fact.first)]
    return scene.has("war") or any(i and scene.is_capital(i - 1) for i in events)


def _is_after(scene: Scene, year: int | str) -> bool:
    """Return whether the scene is dated after a year."""
    return scene.year is not None and scene.year > int(year)


# ---- gender


def _has_body_of_one_sex(scene: Scene) -> bool:
    """Return whether the subject, and not just their patient, has a sex-specific condition."""
    if scene.has_role("treats"):
        return False
    if scene.has_role("treats-by-work"):
        return scene.undergoes("body")  # Who works beside patients must undergo the condition.
    return scene.has_owned("body")


# ---- the time of the scene


def _is_before(scene: Scene, year: str) -> bool:
    """Return whether the scene is dated before a year."""
    return scene.year is not None and scene.year < int(year)


def _is_dated_before(scene: Scene, year: str) -> bool:
    """Return whether a date or a historical event places the scene before a year."""
    return _is_before(scene, year) or _is_event(scene)


# ---- the rules


# All other conditions are methods of `Scene`.
_OF_SCENE = (_has_body_of_one_sex, _is_after, _is_before, _is_dated_before, _is_event, _is_shown)
_CONDITIONS: dict[str, Callable[..., bool]] = {
    function.__name__: function for function in _OF_SCENE
}
# A function, and its arguments after the scene.
_Condition = tuple[Callable[..., bool], tuple[str, ...]]


class Rule(NamedTuple):
    """A rule for when the context in a prompt determines the value of an attribute.

    Attributes:
        kind: The kind of the attribute, one of `KINDS`.
        fixed: A prompt to which the rule applies.
        needs: The conditions that a scene must all meet.
        unless: The exceptions, which prevent the rule from applying.
    """

    kind: str
    fixed: str
    needs: tuple[_Condition, ...]
    unless: tuple[_Condition, ...]

    def fixes(self, scene: Scene) -> bool:
        """Return whether the rule applies to a scene."""
        # Plain loops are fastest, and this runs for every person in every prompt.
        for function, arguments in self.needs:
            if not function(scene, *arguments):
                return False
        for function, arguments in self.unless:
            if function(scene, *arguments):
                return False
        return True


def _read_rules() -> Iterator[Rule]:
    """Read the rules in `rules.txt`, which explains the format."""
    text = Path(__file__).with_name("rules.txt").read_text(encoding="utf-8")
    for kinds, fixed, conditions in re.findall(r"(?m)^(\w.*?): (.+)\n((?:  .+\n)+)", text):
        needs: list[_Condition] = []
        unless: list[_Condition] = []
        for line in conditions.splitlines():
            name, *arguments = line.replace("unless ", "").split()
            function = _CONDITIONS.get(f"_{name}") or getattr(Scene, name)
            conditions_of_line = unless if "unless " in line else needs
            conditions_of_line.append((function, tuple(arguments)))
        for kind in kinds.split():
            yield Rule(kind, fixed, tuple(needs), tuple(unless))


RULES = tuple(_read_rules())
_RULES_OF_KIND = {kind: [rule for rule in RULES if rule.kind == kind] for kind in KINDS}


def find_rules(text: str, start: int, end: int, kind: str) -> list[Rule]:
    """Return the rules by which facts in a prompt determine an attribute of a person.

    Args:
        text: The prompt.
        start: The start of the person's noun phrase, excluding determiners.
        end: The end of the last noun in the phrase.
        kind: The attribute's `Attribute.kind`. There are rules only for the kinds in `KINDS`.
    """
    if kind not in _RULES_OF_KIND:
        return []
    reading = read_text(text)
    may_be_dated = any(map(str.isdigit, reading.prompt))
    # For most prompts, only the rules about age need to be checked.
    if kind != "age" and not may_be_dated:
        inert_lists = lists()["inert-fact"]
        if all(fact.name in inert_lists for fact in find_facts(reading)):
            return []
    scene = read_scene(text, start, end)
    return [rule for rule in _RULES_OF_KIND[kind] if rule.fixes(scene)]


def words_of_fact(text: str, start: int, end: int, kind: str) -> str:
    """Return the words without which no rule would apply: "soldier ... 1916", or "".

    Args:
        text, start, end, kind: See `find_rules`.
    """
    reading = read_text(text)
    words = ""
    stop = 0
    for first, word in zip(reading.start, reading.words, strict=True):
        last = first + len(word)
        # Spaces keep the offsets of the person's noun phrase.
        if not find_rules(f"{text[:first]}{' ' * len(word)}{text[last:]}", start, end, kind):
            is_next = not text[stop:first].strip()
            words += f"{' ' if is_next else ' ... '}{word}" if words else word
            stop = last
    return words
