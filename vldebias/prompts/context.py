"""Tell where the context of a prompt fixes an attribute: "a Catholic priest", "a Zulu warrior".

A value is fixed when somebody who knows the facts would call a picture with another value wrong,
not when it would be rare: a nurse, a welder and a CEO are open. In doubt it is fixed. The facts are
lists in `facts/`, each file with its source; which facts count, and where they have to stand, is
the table `RULES` at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from vldebias.prompts.english import gendered, lists, origins
from vldebias.prompts.facts import lists_of_word
from vldebias.prompts.prompt_set import PromptSet
from vldebias.prompts.scene import Scene, is_capital

_KIND_OF_LIST = {"age": "age", "skin": "skin tone", "origin": "race"}
_ORIGINS = ("people", "people-capital")
_HISTORY = ("troops", "one-origin", "period", "war")


def is_fixed_by_context(text: str, start: int, end: int, prompt_set: PromptSet) -> bool:
    """Return whether the facts in a prompt leave one value of an attribute to a person.

    Args:
        text: the prompt.
        start: offset of the noun phrase of the person, without its determiners.
        end: offset behind its last noun.
        prompt_set: the attribute. Gender, race, skin tone and age are known by the words of their
            values; of any other attribute nothing is known, so nothing is fixed.
    """
    kind = attribute_kind(prompt_set)
    return any(rule.kind == kind for rule in find_rules(text, start, end))


def attribute_kind(prompt_set: PromptSet) -> str:
    """Return "gender", "race", "skin tone" or "age" by the words of the values; else ""."""
    last_words = {
        word.lower().split()[-1] for words in prompt_set.attributes.values() for word in words
    }
    if any(map(gendered, last_words)):
        return "gender"
    known = {kind: len(last_words & lists()[name].keys()) for name, kind in _KIND_OF_LIST.items()}
    likeliest = max(known, key=lambda kind: known[kind])
    return likeliest if known[likeliest] else ""


# ---- what takes facts back


def _is_pretended(scene: Scene) -> bool:
    """Whether the scene is fiction, costume or acting: "a child dressed as a crusader"."""
    return scene.has("pretends", "invents") or _plays_a_part(scene)


def _plays_a_part(scene: Scene) -> bool:
    """Whether somebody plays somebody: "an actor playing a Wehrmacht officer"."""
    words = scene.text.bare
    for i, word in enumerate(words):
        if word in ("playing", "portraying", "plays", "portrays"):
            if any(scene.is_person(j) for j in range(i + 1, min(i + 7, len(words)))):
                return True
    return False


def _is_shown(scene: Scene) -> bool:
    """Whether history is only shown: in a museum, on a stage, on a film set."""
    return _is_pretended(scene) or scene.has_place("shows")


def _looks_on(scene: Scene) -> bool:
    """Whether the subject is of today and looks at history: a tourist, a historian, a fan.

    "a teacher in Edo" is of Edo; "a teacher of Edo poetry" is not, nor a tourist anywhere.
    """
    if "visitor" in scene.roles:
        return not scene.has_year_before(1950)
    return "observer" in scene.roles and not scene.is_set_before(1950)


# ---- history: when and where


def _is_event(scene: Scene) -> bool:
    """Whether the prompt names a war or another event up to 1975: "Battle of Blenheim"."""
    if scene.has("modern-war") or (scene.year is not None and scene.year > 1975):
        return False
    if scene.has("war-site") and scene.has_in_phrase("armed"):
        return True
    if scene.has("war-place") and scene.year is not None and scene.year > 1945:
        return True  # "Saigon, 1968"
    return scene.has("war") or any(
        _is_named_event(scene, fact.first, fact.name == "event-of")
        for name in ("event", "event-of")
        for fact in scene.facts(name)
    )


def _is_named_event(scene: Scene, i: int, needs_of: bool) -> bool:
    """Whether an event word at i is part of a name: "Battle of Maipú", "Gordon Riots"."""
    text = scene.text
    if not is_capital(text, i):
        return False
    if needs_of:
        return text.after(i) in ("of", "in")
    return i > 0 and not text.opens[i] and is_capital(text, i - 1)


def _is_before(scene: Scene, year: int) -> bool:
    return scene.year is not None and scene.year < year


def _is_dated(scene: Scene, year: int) -> bool:
    """Whether the scene is of before a year, by its date or by an event without one."""
    if scene.year is not None and scene.year < year:
        return True
    return _is_event(scene)


def _has_history(scene: Scene, *names: str) -> bool:
    """Whether a fact of history is about the subject, or about the scene of a subject in it."""
    if _is_shown(scene):
        return False
    if scene.has_on_subject(*names):
        return True
    return scene.has(*names) and not _looks_on(scene)


# ---- gender


def _has_body_of_one_sex(scene: Scene) -> bool:
    """Whether the subject has or undergoes what bodies of one sex do: no doctor who treats it."""
    if scene.has_owned("body-state") or _nurses_child(scene):
        return True  # "a pregnant surgeon", "a dentist five months pregnant"
    treats = "treats" in scene.roles
    works_beside = "treats-by-work" in scene.roles
    if scene.has_in_phrase("body"):
        return not (treats or works_beside)  # "a prostate cancer researcher"
    if treats:
        return False
    if "patient" in scene.roles:
        return scene.has("body")  # "a patient talking to a doctor about a vasectomy"
    if works_beside:
        return scene.undergoes("body")  # "a teacher with endometriosis"
    return scene.has_owned("body") and not scene.speaks_of("body")


def _nurses_child(scene: Scene) -> bool:
    """Whether the subject nurses a child at the breast: "nursing a two-month-old"."""
    words = scene.text.bare
    if "nursing" not in words[scene.head + 1 :] or scene.noun.startswith("nurse"):
        return False
    verb = words.index("nursing", scene.head + 1)
    nearby = words[verb + 1 : verb + 5]
    return any("suckling" in lists_of_word(word) for word in nearby)


def _has_closed_office(scene: Scene) -> bool:
    if scene.has_on_subject("stage-office"):
        return True  # costumes are part of it
    return scene.has_on_subject("closed-office") and not _is_pretended(scene)


def _studies_at_closed_school(scene: Scene) -> bool:
    return scene.has("closed-school") and "enrolled" in scene.roles


def _is_clergy_of_closed_church(scene: Scene) -> bool:
    return scene.has_in_phrase("clergy") and scene.has("church") and not _is_pretended(scene)


def _plays_in_league(scene: Scene) -> bool:
    if "league-staff" in scene.roles or _is_pretended(scene):
        return False
    if scene.has_in_phrase("league") or (scene.has("league") and "athlete" in scene.roles):
        return True
    if "ball-role" not in scene.roles:
        return False
    return scene.has_in_phrase("club") or _plays_for_named_club(scene)


def _plays_for_named_club(scene: Scene) -> bool:
    """Whether two words with capitals before a player name a club: "Leeds United striker"."""
    positions = range(scene.first, scene.head)
    capitals = [
        i for i in positions if scene.text.capital[i] and scene.text.bare[i] not in origins()
    ]
    return len(capitals) > 1


def _plays_in_early_world_cup(scene: Scene) -> bool:
    # The first World Cup of women was played in 1991.
    staff = "league-staff" in scene.roles and "athlete" not in scene.roles
    return scene.has("world-cup") and _is_before(scene, 1991) and not staff


def _is_of_closed_troops(scene: Scene) -> bool:
    if _is_shown(scene) or scene.has("women-too"):
        return False
    on_subject = scene.has_on_subject("troops")
    return on_subject or (scene.has("troops") and scene.has_in_phrase("armed"))


def _is_armed_of_the_past(scene: Scene) -> bool:
    if _is_shown(scene) or scene.has("women-too") or _looks_on(scene):
        return False
    if scene.year == 1936 and "militia" in scene.text.bare:
        return False  # women fought in those of Spain
    return scene.has_in_phrase("armed") and _is_dated(scene, 1950)


def _is_warrior_of_a_people(scene: Scene) -> bool:
    if _is_shown(scene):
        return False
    if scene.has_in_phrase("warrior") and scene.has_in_phrase(*_ORIGINS):
        return True
    return scene.has_in_phrase("closed-warrior", "armed") and scene.has_in_phrase("past-people")


def _holds_office_of_the_past(scene: Scene) -> bool:
    if _is_shown(scene) or _looks_on(scene) or scene.has("women-too"):
        return False
    if not scene.has_in_phrase("learned"):
        return False
    law = scene.has("lawmaker") or "lawmaker" in scene.roles
    return _is_dated(scene, 1919 if law else 1900)


def _founds_or_rules_by_old_law(scene: Scene) -> bool:
    return scene.has("founders") and not _is_shown(scene) and not _looks_on(scene)


def _is_closed_until(scene: Scene) -> bool:
    for name, year in _OPENED.items():
        if scene.has(name) and _is_before(scene, year) and not _is_shown(scene):
            return "observer" not in scene.roles
    return False


def _is_on_old_expedition(scene: Scene) -> bool:
    if _is_shown(scene) or _looks_on(scene):
        return False
    return scene.has("expedition") and scene.has_in_phrase("aboard")


def _flies_to_the_moon(scene: Scene) -> bool:
    return scene.has("moon-program") and scene.has_in_phrase("astronaut") and not _is_shown(scene)


def _nurses_in_old_war(scene: Scene) -> bool:
    if not scene.noun.startswith("nurse") or _is_shown(scene):
        return False
    if scene.year is None:
        return _is_event(scene)
    return scene.year < 1945 and (scene.has("closed-nurse") or _is_event(scene))


# ---- race and skin tone


def _is_of_a_people(scene: Scene) -> bool:
    """Whether the subject's own words say where the person is from: "Hmong farmer", "Vikings"."""
    facts = [fact for name in _ORIGINS for fact in scene.facts(name)]
    for fact in facts:
        if fact.name == "people-capital" and not is_capital(scene.text, fact.first):
            continue
        if scene.is_in_phrase(fact) and not _is_worn(scene, fact.first):
            return True
        if scene.follows_as_tag(fact) or scene.owns_subject(fact):
            return True
    return scene.is_from("country")


def _is_worn(scene: Scene, i: int) -> bool:
    """Whether an origin is a costume: "a Viking cosplayer"."""
    return "player-of-roles" in scene.roles and i < scene.head


def _has_history_of_one_origin(scene: Scene) -> bool:
    return _has_history(scene, "troops", "one-origin")


def _is_of_past_region(scene: Scene) -> bool:
    if _is_shown(scene) or _looks_on(scene):
        return False
    if _is_before(scene, 1900):
        return True
    return scene.year is None and _is_event(scene)


def _is_of_old_nation(scene: Scene) -> bool:
    if _is_shown(scene) or _looks_on(scene) or not scene.has("open-nation", "open-country"):
        return False
    return _is_dated(scene, 1950) and scene.has_in_phrase("armed", "learned", "colonial")


def _is_rooted_in_country(scene: Scene) -> bool:
    return scene.has_in_phrase("rooted") and scene.has("country") and not _is_shown(scene)


def _has_marked_skin(scene: Scene) -> bool:
    return scene.has_on_subject("skin-mark") or scene.has_owned("skin-mark")


# ---- age


def _has_word_of_age(scene: Scene) -> bool:
    return scene.has_own_age("age-word")


def _has_illness_of_age(scene: Scene) -> bool:
    if "treats" in scene.roles or "staff-of-age" in scene.roles or "works-with-age" in scene.roles:
        return False
    if "patient" in scene.roles or scene.has_in_phrase("illness-of-age"):
        return scene.has("illness-of-age")
    return scene.undergoes("illness-of-age")


def _learns_at_level(scene: Scene) -> bool:
    return scene.has("level") and "learner" in scene.roles and scene.has_on_subject("level")


def _is_cared_for(scene: Scene) -> bool:
    return scene.has("mature") and "resident" in scene.roles


def _has_years(scene: Scene) -> bool:
    return scene.has_stated_age()


def _is_veteran_of_old_war(scene: Scene) -> bool:
    return scene.has_in_phrase("veteran") and scene.has("veteran-war", "war", "war-site")


def _competes_young(scene: Scene) -> bool:
    if _plays_in_league(scene):
        return True
    return scene.noun.startswith("gymnast") and scene.has("olympics")


_OPENED = {
    "supreme-court": 1981,
    "exchange": 1967,
    "academy": 1976,
    "cosmonaut": 1963,
    "astronaut": 1978,
}


class Rule(NamedTuple):
    """Hold one way in which context fixes an attribute.

    Attributes:
        kind: "gender", "race", "skin tone" or "age".
        applies: whether the rule applies to a scene.
        fixed: a prompt to which it applies.
        open: a prompt that looks like it, to which no rule of this kind applies.
    """

    kind: str
    applies: Callable[[Scene], bool]
    fixed: str
    open: str


_GENDER_RULES = (
    Rule("gender", _has_body_of_one_sex, "a person giving birth", "a urologist reading a chart"),
    Rule("gender", _has_closed_office, "an imam at prayer", "a priest in a village church"),
    Rule(
        "gender",
        _studies_at_closed_school,
        "a Barnard College student",
        "a professor at Barnard College",
    ),
    Rule(
        "gender",
        _is_clergy_of_closed_church,
        "a Catholic bishop blessing the crowd",
        "a student at a Catholic school",
    ),
    Rule("gender", _plays_in_league, "an NFL quarterback", "an NFL referee"),
    Rule(
        "gender",
        _plays_in_early_world_cup,
        "a player of the 1966 World Cup final",
        "a player of the 2019 World Cup final",
    ),
    Rule("gender", _is_of_closed_troops, "a Roman legionary", "a legionary costume on a dancer"),
    Rule("gender", _is_armed_of_the_past, "a soldier in 1916", "a soldier in 2016"),
    Rule("gender", _is_warrior_of_a_people, "a Zulu warrior", "a Zulu weaver"),
    Rule("gender", _holds_office_of_the_past, "an envoy in 1780", "a farmer in 1780"),
    Rule(
        "gender",
        _founds_or_rules_by_old_law,
        "delegates signing the Declaration of Independence",
        "a tourist looking at the Declaration of Independence",
    ),
    Rule("gender", _is_closed_until, "a stock broker in 1929", "a stock broker in 2019"),
    Rule(
        "gender",
        _is_on_old_expedition,
        "a member of Shackleton's expedition",
        "a member of a climbing expedition",
    ),
    Rule("gender", _flies_to_the_moon, "an Apollo astronaut", "an astronaut above the Moon"),
    Rule("gender", _nurses_in_old_war, "a nurse in the Crimean War", "a nurse in 2019"),
)
_RACE_RULES = (
    ("race", _is_of_a_people, "a Hmong farmer", "a chef in a Japanese restaurant"),
    ("race", _has_history_of_one_origin, "a Ku Klux Klan member", "a tourist in a Viking museum"),
    ("race", _is_of_past_region, "a merchant in the Middle Ages", "a banker in London"),
    ("race", _is_of_old_nation, "a German soldier in 1943", "a factory worker in 1943"),
    ("race", _is_rooted_in_country, "a herder in Mongolia", "a journalist in Mongolia"),
)
_AGE_RULES = (
    Rule("age", _has_word_of_age, "a college freshman", "a new manager at a desk"),
    Rule("age", _has_illness_of_age, "a person with dementia", "a researcher studying dementia"),
    Rule("age", _learns_at_level, "a high school student", "a kindergarten teacher"),
    Rule("age", _is_cared_for, "a resident of a nursing home", "a nurse in a nursing home"),
    Rule("age", _has_years, "a barista in her forties", "a waiter with a 30-year-old Bordeaux"),
    Rule("age", _is_veteran_of_old_war, "a veteran of World War II", "a soldier in 1943"),
    Rule("age", _competes_young, "an NBA player", "an NBA coach"),
)
RULES = (
    *_GENDER_RULES,
    *(Rule(*rule) for rule in _RACE_RULES),
    *(Rule("skin tone", *rule[1:]) for rule in _RACE_RULES),
    Rule("skin tone", _has_marked_skin, "a person with albinism", "a person in a white coat"),
    *_AGE_RULES,
)


@lru_cache(maxsize=1000)  # the images of a prompt ask again, and once for each attribute
def find_rules(text: str, start: int, end: int) -> tuple[Rule, ...]:
    """Return the rules that fix an attribute of the person at start to end of a prompt."""
    scene = Scene(text, start, end)
    return tuple(rule for rule in RULES if rule.applies(scene))
