"""Find facts in a prompt that determine a value, as in "a Catholic priest" or "a Zulu warrior".

A fact determines a value if an informed viewer would call an image with a different value wrong,
not just unusual. A nurse, a welder or a CEO can have any gender. In case of doubt, the value counts
as determined. `facts/` lists the facts with their sources, and the `RULES` table at the end defines
which facts count and where they must appear.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import NamedTuple

from vldebias.prompts.english.words import origins
from vldebias.wording.english.facts import find_facts, lists_of_word
from vldebias.wording.english.scene import Scene, read_scene
from vldebias.wording.english.text import read_text

KINDS = ("gender", "origin", "skin", "age")
_ORIGINS = ("people", "people-capital")
# Fiction, costumes or acting, as in "a child dressed as a crusader".
_FICTION = ("pretends", "invents")


# ---- exceptions: facts that do not determine a value


def _is_shown(scene: Scene) -> bool:
    """Return whether history is only shown, for example in a museum or on a film set."""
    return scene.has(*_FICTION) or scene.has_place("shows")


def _looks_on(scene: Scene) -> bool:
    """Return whether the subject is a present-day observer of history, such as a tourist.

    "a teacher in Edo" lived in Edo, but "a teacher of Edo poetry" or a tourist need not have.
    """
    if scene.has_role("visitor"):
        return not scene.has_year_before(1950)
    return scene.has_role("observer") and not scene.is_set_before(1950)


# ---- historical time and place


def _is_event(scene: Scene) -> bool:
    """Return whether the prompt names an event up to 1975, such as "Battle of Blenheim"."""
    if scene.has("modern-war") or _is_after(scene, 1975):
        return False
    if scene.has("war-site") and scene.has_in_phrase("armed"):
        return True  # The site of a battle counts for soldiers only, not for "a waiter at Shiloh".
    if scene.has("war-place") and _is_after(scene, 1945):
        return True  # A place counts if its war is dated: "a soldier in Saigon, 1968".
    return scene.has("war") or _has_named_event(scene)


def _has_named_event(scene: Scene) -> bool:
    """Return whether there is a capitalized event, such as "Battle of Maipú" or "Gordon Riots"."""
    text = scene.text
    for fact in scene.facts("event-of"):
        has_place_behind = text.after(fact.first) in ("of", "in")
        if has_place_behind and scene.is_capital(fact.first):
            return True
    for fact in scene.facts("event"):
        is_name = scene.is_capital(fact.first) and scene.is_capital(fact.first - 1)
        if is_name and text.before(fact.first):
            return True
    return False


def _is_after(scene: Scene, year: int) -> bool:
    """Return whether the scene is dated after a year."""
    return scene.year is not None and scene.year > year


# ---- gender


def _has_body_of_one_sex(scene: Scene) -> bool:
    """Return whether the subject, and not just their patient, has a sex-specific condition."""
    if scene.does("body"):
        return True  # The condition may be what the subject does: "a nurse expecting triplets".
    treats = scene.has_role("treats")
    works_beside = scene.has_role("treats-by-work")
    if scene.has_in_phrase("body"):
        # The condition may be the subject of the work: "a prostate cancer researcher".
        return not (treats or works_beside)
    if treats:
        return False
    if scene.has_role("patient"):
        return scene.has("body")  # Any condition in the text is the patient's.
    if works_beside:
        return scene.undergoes("body")  # Who works beside patients must undergo the condition.
    return scene.has_owned("body") and not scene.speaks_of("body")


def _nurses_child(scene: Scene) -> bool:
    """Return whether the subject breastfeeds a child, as in "nursing a two-month-old"."""
    words = scene.text.bare
    if "nursing" not in words[scene.head + 1 :] or scene.is_called("nurse"):
        return False
    verb = words.index("nursing", scene.head + 1)
    return any("suckling" in lists_of_word(word) for word in words[verb + 1 : verb + 5])


def _plays_in_league(scene: Scene) -> bool:
    """Return whether the subject plays, rather than works, in a single-gender league."""
    if scene.has_role("league-staff"):
        return False
    if scene.has_in_phrase("league"):
        return True  # The league is named before the player: "an NFL quarterback".
    if scene.has_role("athlete") and scene.has("league"):
        return True  # An athlete plays in any league of the text: "a goalkeeper in the Bundesliga".
    if not scene.has_role("ball-role"):
        return False
    # Two capitalized words before a player are a club, as in "Leeds United striker".
    capitals = [i for i in range(scene.first, scene.head) if scene.text.capital[i]]
    names = [i for i in capitals if scene.text.bare[i] not in origins()]
    return len(names) > 1 or scene.has_in_phrase("club")


def _nurses_in_old_war(scene: Scene) -> bool:
    """Return whether the subject is a military nurse before 1945; these had to be women."""
    if not scene.is_called("nurse"):
        return False
    if scene.year is None:
        return _is_event(scene)
    is_at_war = scene.has("closed-nurse") or _is_event(scene)
    return scene.year < 1945 and is_at_war


# ---- race and age


def _is_of_a_people(scene: Scene) -> bool:
    """Return whether the prompt states the subject's origin, as in "Hmong farmer"."""
    for fact in scene.facts(*_ORIGINS):
        if fact.name == "people-capital" and not scene.is_capital(fact.first):
            continue
        # An origin may follow as a tag or belong to the owner: "a doctor, Nigerian".
        if scene.follows_as_tag(fact) or scene.owns_subject(fact):
            return True
        # For someone who plays a role, the origin is a costume, as in "a Viking cosplayer".
        is_costume = fact.first < scene.head and scene.has_role("player-of-roles")
        if scene.is_in_phrase(fact) and not is_costume:
            return True
    return scene.is_from("country")


def _is_of_past_region(scene: Scene) -> bool:
    """Return whether the scene is set before 1900, when a region implies an origin."""
    if scene.year is None:
        return _is_event(scene)
    return scene.year < 1900


def _is_veteran_of_something(scene: Scene) -> bool:
    """Return whether the subject is a veteran of something, as in "a veteran of many tours"."""
    return scene.has_in_phrase("veteran") and scene.text.after(scene.head) == "of"


# ---- the rules

_Condition = Callable[[Scene], bool]


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
        for condition in self.needs:
            if not condition(scene):
                return False
        for condition in self.unless:
            if condition(scene):
                return False
        return True


def _rule(fixed: str, unless: tuple[_Condition, ...], *needs: _Condition) -> Rule:
    return Rule("", fixed, needs, unless)


# Conditions, each of which calls the `Scene` method in quotation marks.
_has = partial(methodcaller, "has")
_role = partial(methodcaller, "has_role")
_in_phrase = partial(methodcaller, "has_in_phrase")
_on_subject = partial(methodcaller, "has_on_subject")
_owned = partial(methodcaller, "has_owned")
_own_age = partial(methodcaller, "has_own_age")
_undergoes = partial(methodcaller, "undergoes")
_called = partial(methodcaller, "is_called")


def _before(year: int) -> _Condition:
    return lambda scene: scene.year is not None and scene.year < year


def _dated_before(year: int) -> _Condition:
    """Return a condition for scenes that a date or a historical event places before a year."""
    return lambda scene: _before(year)(scene) or _is_event(scene)


# Exceptions. If women fought too, being armed does not determine the gender.
_NEVER = ()
_PRETENDED = (_has(*_FICTION),)
_SHOWN = (_is_shown,)
_SEEN = (_is_shown, _looks_on)
_OBSERVED = (_is_shown, _role("observer"))
_IN_ARMS = (_is_shown, _has("women-too"))
_IN_ARMS_SEEN = (_is_shown, _has("women-too"), _looks_on)
_TREATED = (_role("treats", "staff-of-age", "works-with-age"),)
_WAR_OF_VETERANS = ("veteran-war", "war", "war-site")  # wars at least fifty years ago

# Facts that do not determine a value without a date or a fact from a different list.
_INERT = frozenset(
    {
        *("medium", "aboard", "armed", "learned", "lawmaker", "observer", "visitor", "resident"),
        *("treats", "treats-by-work", "league-staff", "staff-of-age", "works-with-age", "thing"),
    }
)

# Place or profession, the year in which women were first admitted, and an earlier example.
_ADMITTED = (
    ("exchange", 1967, "a stock broker in", 1929),
    ("supreme-court", 1981, "a Supreme Court justice in", 1954),
    ("academy", 1976, "a cadet at West Point in", 1960),
    ("cosmonaut", 1963, "a cosmonaut in", 1961),
    ("astronaut", 1978, "an astronaut in", 1966),
)
_GENDER_RULES = (
    _rule("a pregnant surgeon", _NEVER, _owned("body-state")),
    _rule("a person giving birth", _NEVER, _has_body_of_one_sex),
    _rule("a teacher nursing a newborn", _NEVER, _nurses_child),
    # ---- current rules
    _rule("an imam at prayer", _PRETENDED, _on_subject("closed-office")),
    _rule("a kabuki actor in a costume", _NEVER, _on_subject("stage-office")),
    _rule("a Barnard College student", _NEVER, _has("closed-school"), _role("enrolled")),
    _rule("a Catholic bishop blessing the crowd", _PRETENDED, _in_phrase("clergy"), _has("church")),
    _rule("an NFL quarterback", _PRETENDED, _plays_in_league),
    # ---- history (the first Women's World Cup took place in 1991)
    _rule(
        "a captain at the 1966 World Cup final",
        (_role("league-staff"),),
        _has("world-cup"),
        _before(1991),
    ),
    _rule("a Roman legionary", _IN_ARMS, _on_subject("troops")),
    _rule("a soldier marching with the Wehrmacht", _IN_ARMS, _has("troops"), _in_phrase("armed")),
    _rule("a soldier in 1916", _IN_ARMS_SEEN, _in_phrase("armed"), _dated_before(1950)),
    _rule("a Zulu warrior", _SHOWN, _in_phrase("warrior"), _in_phrase(*_ORIGINS)),
    _rule(
        "an Assyrian archer",
        _SHOWN,
        _in_phrase("closed-warrior", "armed"),
        _in_phrase("past-people"),
    ),
    _rule("an envoy in 1780", _IN_ARMS_SEEN, _in_phrase("learned"), _dated_before(1900)),
    _rule(
        "a senator in 1910",
        _IN_ARMS_SEEN,
        _in_phrase("learned"),
        _has("lawmaker"),
        _dated_before(1919),
    ),
    _rule("delegates signing the Declaration of Independence", _SEEN, _has("founders")),
    *(
        _rule(f"{who} {then}", _OBSERVED, _has(name), _before(year))
        for name, year, who, then in _ADMITTED
    ),
    _rule("a member of Shackleton's expedition", _SEEN, _has("expedition"), _in_phrase("aboard")),
    _rule("an Apollo astronaut", _SHOWN, _has("moon-program"), _in_phrase("astronaut")),
    _rule("a nurse in the Crimean War", _SHOWN, _nurses_in_old_war),
)
_RACE_RULES = (
    _rule("a Hmong farmer", _NEVER, _is_of_a_people),
    # Institutions whose members all have the same origin.
    _rule("a Ku Klux Klan member", _SHOWN, _on_subject("troops", "one-origin")),
    _rule("a cook marching with the Wehrmacht", _SEEN, _has("troops", "one-origin")),
    _rule("a merchant in the Middle Ages", _SEEN, _is_of_past_region),
    # Armies and offices of nations that are diverse today.
    _rule(
        "a German soldier in 1943",
        _SEEN,
        _has("open-nation", "open-country"),
        _dated_before(1950),
        _in_phrase("armed", "learned", "colonial"),
    ),
    _rule("a herder in Mongolia", _SHOWN, _in_phrase("rooted"), _has("country")),
)
_SKIN_RULES = (
    *_RACE_RULES,
    _rule("a person with albinism", _NEVER, _on_subject("skin-mark")),
    _rule("a cook at a stove, with albinism", _NEVER, _owned("skin-mark")),
)
_AGE_RULES = (
    _rule("a college freshman", _NEVER, _own_age("age-word")),
    _rule("a dementia patient", _TREATED, _in_phrase("illness-of-age")),
    _rule("a patient talking about dementia", _TREATED, _has("illness-of-age"), _role("patient")),
    _rule("a person with dementia", _TREATED, _undergoes("illness-of-age")),
    _rule("a high school student", _NEVER, _on_subject("level"), _role("learner")),
    _rule("a resident of a nursing home", _NEVER, _has("mature"), _role("resident")),
    _rule("a barista in her forties", _NEVER, Scene.has_stated_age),
    _rule("a veteran of World War II", _NEVER, _in_phrase("veteran"), _has(*_WAR_OF_VETERANS)),
    _rule("a veteran of many tours", _NEVER, _is_veteran_of_something),
    # Active athletes are usually young.
    _rule("an NBA player", _PRETENDED, _plays_in_league),
    _rule("a gymnast at the Olympics", _PRETENDED, _called("gymnast"), _has("olympics")),
)
RULES = (
    *(rule._replace(kind="gender") for rule in _GENDER_RULES),
    *(rule._replace(kind="origin") for rule in _RACE_RULES),
    *(rule._replace(kind="skin") for rule in _SKIN_RULES),
    *(rule._replace(kind="age") for rule in _AGE_RULES),
)
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
    may_be_dated = "nursing" in reading.bare or any(map(str.isdigit, reading.prompt))
    # For most prompts, only the rules about age need to be checked.
    if kind != "age" and not may_be_dated:
        if all(fact.name in _INERT for fact in find_facts(reading)):
            return []
    scene = read_scene(text, start, end)
    return [rule for rule in _RULES_OF_KIND[kind] if rule.fixes(scene)]
