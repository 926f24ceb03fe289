"""Tell where the context of a prompt fixes an attribute: "a Catholic priest", "a Zulu warrior".

A value is fixed when somebody who knows the facts would call a picture with another value wrong,
not when it would be rare: a nurse, a welder and a CEO are open. In doubt it is fixed. The facts are
lists in `facts/`, each file with its source; which facts count, and where they have to stand, is
the table `RULES` at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from vldebias.prompts.english.facts import Fact, lists_of_word
from vldebias.prompts.english.scene import Scene, is_capital, read_scene
from vldebias.prompts.english.words import has_gendered, lists, origins
from vldebias.prompts.prompt_set import PromptSet

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
    kinds = {rule.kind for rule in find_rules(text, start, end)}
    return attribute_kind(prompt_set) in kinds


def attribute_kind(prompt_set: PromptSet) -> str:
    """Return "gender", "race", "skin tone" or "age" by the words of the values; else ""."""
    last_words = {word.lower().split()[-1] for word in chain(*prompt_set.attributes.values())}
    if has_gendered(last_words):
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
        if word not in ("playing", "portraying", "plays", "portrays"):
            continue
        for j in range(i + 1, min(i + 7, len(words))):
            if scene.is_person(j):
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
    if scene.has("modern-war") or _is_after(scene, 1975):
        return False
    if scene.has("war-site") and scene.has_in_phrase("armed"):
        return True  # "a drummer at Shiloh"; a waiter there is of today
    if scene.has("war-place") and _is_after(scene, 1945):
        return True  # "a soldier in Saigon, 1968"
    return scene.has("war") or _has_named_event(scene)


def _has_named_event(scene: Scene) -> bool:
    """Whether an event has a name: "Battle of Maip\u00fa", "Gordon Riots"."""
    for fact in scene.facts("event-of"):
        if _is_followed_by_place(scene, fact.first):
            return True
    for fact in scene.facts("event"):
        if _is_behind_capital(scene, fact.first):
            return True
    return False


def _is_followed_by_place(scene: Scene, i: int) -> bool:
    """Whether an event word has a capital and its place behind it: "Battle of ..."."""
    return is_capital(scene.text, i) and scene.text.after(i) in ("of", "in")


def _is_behind_capital(scene: Scene, i: int) -> bool:
    """Whether an event word is the last of a name in capitals: "Gordon Riots"."""
    if i == 0 or scene.text.opens[i]:
        return False
    return is_capital(scene.text, i) and is_capital(scene.text, i - 1)


def _is_before(scene: Scene, year: int) -> bool:
    """Whether the scene is dated to before a year."""
    return scene.year is not None and scene.year < year


def _is_after(scene: Scene, year: int) -> bool:
    """Whether the scene is dated to after a year."""
    return scene.year is not None and scene.year > year


def _is_dated(scene: Scene, year: int) -> bool:
    """Whether the scene is of before a year, by its date or by an event."""
    return _is_before(scene, year) or _is_event(scene)


def _has_women_too(scene: Scene) -> bool:
    """Whether women are known to have fought in the force: "a Soviet sniper"."""
    if scene.year == 1936 and "militia" in scene.text.bare:
        return True  # those of Spain
    return scene.has("women-too")


def _has_history(scene: Scene, *names: str) -> bool:
    """Whether a fact of history is about the subject, or about the scene of a subject in it."""
    if scene.has_on_subject(*names):
        return True
    return scene.has(*names) and not _looks_on(scene)


# ---- gender


def _has_body_of_one_sex(scene: Scene) -> bool:
    """Whether the subject has or undergoes what bodies of one sex do: no doctor who treats it."""
    has_state = scene.has_owned("body-state") or scene.does("body")
    if has_state or _nurses_child(scene):
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
    for word in words[verb + 1 : verb + 5]:
        if "suckling" in lists_of_word(word):
            return True
    return False


def _has_closed_office(scene: Scene) -> bool:
    """Whether a rule in force gives the subject's office to one gender: an imam."""
    return scene.has_on_subject("closed-office")


def _acts_on_closed_stage(scene: Scene) -> bool:
    """Whether the subject is of a theatre of one gender, where costumes are part of it."""
    return scene.has_on_subject("stage-office")


def _studies_at_closed_school(scene: Scene) -> bool:
    return scene.has("closed-school") and "enrolled" in scene.roles


def _is_clergy_of_closed_church(scene: Scene) -> bool:
    """Whether the subject is of the clergy of a church that ordains one gender."""
    return scene.has_in_phrase("clergy") and scene.has("church")


def _plays_in_league(scene: Scene) -> bool:
    """Whether the subject plays in a league of one gender, and does not only work there."""
    if "league-staff" in scene.roles:
        return False
    if scene.has_in_phrase("league"):
        return True  # "an NFL quarterback"
    if "athlete" in scene.roles and scene.has("league"):
        return True  # "a goalkeeper in the Bundesliga"
    if "ball-role" not in scene.roles:
        return False
    return scene.has_in_phrase("club") or _plays_for_named_club(scene)


def _plays_for_named_club(scene: Scene) -> bool:
    """Whether two words with capitals before a player name a club: "Leeds United striker"."""
    capitals = 0
    for i in range(scene.first, scene.head):
        is_nation = scene.text.bare[i] in origins()
        if scene.text.capital[i] and not is_nation:
            capitals += 1
    return capitals > 1


def _plays_in_early_world_cup(scene: Scene) -> bool:
    """Whether the subject plays a World Cup before 1991, the year of the first one of women."""
    if "league-staff" in scene.roles and "athlete" not in scene.roles:
        return False
    return scene.has("world-cup") and _is_before(scene, 1991)


def _is_of_closed_troops(scene: Scene) -> bool:
    """Whether the subject is of an army or a unit of men: "a Roman legionary"."""
    if scene.has_on_subject("troops"):
        return True
    return scene.has("troops") and scene.has_in_phrase("armed")


def _is_armed_of_the_past(scene: Scene) -> bool:
    """Whether the subject is of a state's army before 1950 or in a war up to Vietnam."""
    return scene.has_in_phrase("armed") and _is_dated(scene, 1950)


def _is_warrior_of_a_people(scene: Scene) -> bool:
    """Whether the subject fights for a people of old: "a Zulu warrior", "an Assyrian archer"."""
    if scene.has_in_phrase("warrior") and scene.has_in_phrase(*_ORIGINS):
        return True
    return scene.has_in_phrase("closed-warrior", "armed") and scene.has_in_phrase("past-people")


def _holds_office_of_the_past(scene: Scene) -> bool:
    """Whether the subject has an office or a learned profession when the law closed it."""
    if not scene.has_in_phrase("learned"):
        return False
    makes_law = scene.has("lawmaker") or "lawmaker" in scene.roles
    opened = 1919 if makes_law else 1900
    return _is_dated(scene, opened)


def _founds_or_rules_by_old_law(scene: Scene) -> bool:
    """Whether the scene is an assembly of old: "the Constitutional Convention"."""
    return scene.has("founders")


def _is_closed_until(scene: Scene) -> bool:
    """Whether the scene is at a place before the year that opened it: "a stock broker in 1929"."""
    if "observer" in scene.roles:
        return False
    for name, year in _OPENED.items():
        if _is_before(scene, year) and scene.has(name):
            return True
    return False


def _is_on_old_expedition(scene: Scene) -> bool:
    """Whether the subject is aboard a voyage or a mission of men: "Shackleton's expedition"."""
    return scene.has("expedition") and scene.has_in_phrase("aboard")


def _flies_to_the_moon(scene: Scene) -> bool:
    """Whether the subject is an astronaut of Mercury, Gemini or Apollo."""
    return scene.has("moon-program") and scene.has_in_phrase("astronaut")


def _nurses_in_old_war(scene: Scene) -> bool:
    """Whether the subject is a nurse of an army before 1945, who were women by rule."""
    if not scene.noun.startswith("nurse"):
        return False
    if scene.year is None:
        return _is_event(scene)
    is_at_war = scene.has("closed-nurse") or _is_event(scene)
    return scene.year < 1945 and is_at_war


# ---- race and skin tone


def _is_of_a_people(scene: Scene) -> bool:
    """Whether the subject's own words say where the person is from: "Hmong farmer", "Vikings"."""
    for name in _ORIGINS:
        for fact in scene.facts(name):
            needs_capital = name == "people-capital"
            if needs_capital and not is_capital(scene.text, fact.first):
                continue
            if _says_origin(scene, fact):
                return True
    return scene.is_from("country")


def _says_origin(scene: Scene, fact: Fact) -> bool:
    """Whether an origin is the subject's, by its place: in the phrase, as a tag, before it."""
    if scene.is_in_phrase(fact) and not _is_worn(scene, fact.first):
        return True
    return scene.follows_as_tag(fact) or scene.owns_subject(fact)


def _is_worn(scene: Scene, i: int) -> bool:
    """Whether an origin is a costume: "a Viking cosplayer"."""
    return "player-of-roles" in scene.roles and i < scene.head


def _has_history_of_one_origin(scene: Scene) -> bool:
    """Whether the subject is of an institution of one origin: the Klan, the Shaolin."""
    return _has_history(scene, "troops", "one-origin")


def _is_of_past_region(scene: Scene) -> bool:
    """Whether the scene is of before 1900, where the region decides."""
    if scene.year is None:
        return _is_event(scene)
    return scene.year < 1900


def _is_of_old_nation(scene: Scene) -> bool:
    """Whether the subject is of an army or office, before 1950, of a nation that is mixed today."""
    if not scene.has("open-nation", "open-country"):
        return False
    return _is_dated(scene, 1950) and scene.has_in_phrase("armed", "learned", "colonial")


def _is_rooted_in_country(scene: Scene) -> bool:
    """Whether the subject lives where the work is: "a herder in Mongolia"."""
    return scene.has_in_phrase("rooted") and scene.has("country")


def _has_marked_skin(scene: Scene) -> bool:
    """Whether the skin has a mark that says its tone: albinism, freckles."""
    return scene.has_on_subject("skin-mark") or scene.has_owned("skin-mark")


# ---- age


def _has_word_of_age(scene: Scene) -> bool:
    """Whether a word says the subject's age: "a freshman", "a Gen Z barista"."""
    return scene.has_own_age("age-word")


def _has_illness_of_age(scene: Scene) -> bool:
    """Whether the subject has an illness of an age, and does not treat it: dementia."""
    if scene.roles & {"treats", "staff-of-age", "works-with-age"}:
        return False
    if "patient" in scene.roles or scene.has_in_phrase("illness-of-age"):
        return scene.has("illness-of-age")
    return scene.undergoes("illness-of-age")


def _learns_at_level(scene: Scene) -> bool:
    """Whether the subject learns at a level of school: "a high school student"."""
    return "learner" in scene.roles and scene.has_on_subject("level")


def _is_cared_for(scene: Scene) -> bool:
    """Whether the subject lives in a home for the old."""
    return scene.has("mature") and "resident" in scene.roles


def _has_years(scene: Scene) -> bool:
    """Whether the subject's age is said in years: "a barista in her forties"."""
    return scene.has_stated_age()


def _is_veteran_of_old_war(scene: Scene) -> bool:
    """Whether the subject is a veteran of something, or of a war of fifty years ago."""
    if not scene.has_in_phrase("veteran"):
        return False
    return scene.text.after(scene.head) == "of" or scene.has("veteran-war", "war", "war-site")


def _competes_young(scene: Scene) -> bool:
    """Whether the subject is an active athlete of a league, or a gymnast at the Olympic Games."""
    if _plays_in_league(scene):
        return True
    return scene.noun.startswith("gymnast") and scene.has("olympics")


# Place or profession -> the year in which women were first admitted to it.
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
        applies: whether the facts are in a scene.
        unless: what takes these facts back, each a function of the scene.
        fixed: a prompt to which the rule applies.
        open: a prompt that looks like it, to which no rule of this kind applies.
    """

    kind: str
    applies: Callable[[Scene], bool]
    unless: tuple[Callable[[Scene], bool], ...]
    fixed: str
    open: str

    def fixes(self, scene: Scene) -> bool:
        """Return whether the facts are in a scene and nothing takes them back."""
        if not self.applies(scene):
            return False
        for reopens in self.unless:
            if reopens(scene):
                return False
        return True


# What takes facts back; where women fought as well, being in arms says no gender.
_NEVER = ()
_PRETENDED = (_is_pretended,)
_SHOWN = (_is_shown,)
_SEEN = (_is_shown, _looks_on)
_IN_ARMS = (_is_shown, _has_women_too)
_IN_ARMS_SEEN = (_is_shown, _has_women_too, _looks_on)

_GENDER_RULES = (
    (_has_body_of_one_sex, _NEVER, "a person giving birth", "a urologist reading a chart"),
    (_has_closed_office, _PRETENDED, "an imam at prayer", "a priest in a village church"),
    (_acts_on_closed_stage, _NEVER, "a kabuki actor in a costume", "an actor in a costume"),
    (
        _studies_at_closed_school,
        _NEVER,
        "a Barnard College student",
        "a professor at Barnard College",
    ),
    (
        _is_clergy_of_closed_church,
        _PRETENDED,
        "a Catholic bishop blessing the crowd",
        "a student at a Catholic school",
    ),
    (_plays_in_league, _PRETENDED, "an NFL quarterback", "an NFL referee"),
    (
        _plays_in_early_world_cup,
        _NEVER,
        "a player of the 1966 World Cup final",
        "a player of the 2019 World Cup final",
    ),
    (_is_of_closed_troops, _IN_ARMS, "a Roman legionary", "a legionary costume on a dancer"),
    (_is_armed_of_the_past, _IN_ARMS_SEEN, "a soldier in 1916", "a soldier in 2016"),
    (_is_warrior_of_a_people, _SHOWN, "a Zulu warrior", "a Zulu weaver"),
    (_holds_office_of_the_past, _IN_ARMS_SEEN, "an envoy in 1780", "a farmer in 1780"),
    (
        _founds_or_rules_by_old_law,
        _SEEN,
        "delegates signing the Declaration of Independence",
        "a tourist looking at the Declaration of Independence",
    ),
    (_is_closed_until, _SHOWN, "a stock broker in 1929", "a stock broker in 2019"),
    (
        _is_on_old_expedition,
        _SEEN,
        "a member of Shackleton's expedition",
        "a member of a climbing expedition",
    ),
    (_flies_to_the_moon, _SHOWN, "an Apollo astronaut", "an astronaut above the Moon"),
    (_nurses_in_old_war, _SHOWN, "a nurse in the Crimean War", "a nurse in 2019"),
)
_RACE_RULES = (
    (_is_of_a_people, _NEVER, "a Hmong farmer", "a chef in a Japanese restaurant"),
    (
        _has_history_of_one_origin,
        _SHOWN,
        "a Ku Klux Klan member",
        "a tourist in a Viking museum",
    ),
    (_is_of_past_region, _SEEN, "a merchant in the Middle Ages", "a banker in London"),
    (_is_of_old_nation, _SEEN, "a German soldier in 1943", "a factory worker in 1943"),
    (_is_rooted_in_country, _SHOWN, "a herder in Mongolia", "a journalist in Mongolia"),
)
_SKIN_RULES = (
    *_RACE_RULES,
    (_has_marked_skin, _NEVER, "a person with albinism", "a person in a white coat"),
)
_AGE_RULES = (
    (_has_word_of_age, _NEVER, "a college freshman", "a new manager at a desk"),
    (_has_illness_of_age, _NEVER, "a person with dementia", "a researcher studying dementia"),
    (_learns_at_level, _NEVER, "a high school student", "a kindergarten teacher"),
    (_is_cared_for, _NEVER, "a resident of a nursing home", "a nurse in a nursing home"),
    (_has_years, _NEVER, "a barista in her forties", "a waiter with a 30-year-old Bordeaux"),
    (_is_veteran_of_old_war, _NEVER, "a veteran of World War II", "a soldier in 1943"),
    (_competes_young, _PRETENDED, "an NBA player", "an NBA coach"),
)
_RULES_OF_KIND = {
    "gender": _GENDER_RULES,
    "race": _RACE_RULES,
    "skin tone": _SKIN_RULES,
    "age": _AGE_RULES,
}


def _all_rules() -> Iterator[Rule]:
    """Yield the rules of all kinds."""
    for kind, rules in _RULES_OF_KIND.items():
        for rule in rules:
            yield Rule(kind, *rule)


RULES = tuple(_all_rules())


@lru_cache(maxsize=1000)  # the images of a prompt ask again, and once for each attribute
def find_rules(text: str, start: int, end: int) -> tuple[Rule, ...]:
    """Return the rules that fix an attribute of the person at start to end of a prompt."""
    scene = read_scene(text, start, end)
    return tuple(rule for rule in RULES if rule.fixes(scene))
