"""Tell where the context of a prompt fixes an attribute: "a Catholic priest", "a Zulu warrior".

A value is fixed when somebody who knows the facts would call a picture with another value wrong,
not when it would be rare: a nurse, a welder and a CEO are open. In doubt it is fixed. The facts are
lists in `facts/`, each file with its source; which facts count, and where they have to stand, is
the table `RULES` at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from vldebias.prompts.english.words import origins
from vldebias.wording.english.facts import find_facts, lists_of_word
from vldebias.wording.english.scene import Scene, is_capital, read_scene
from vldebias.wording.english.text import Text, read_text

KINDS = ("gender", "origin", "skin", "age")
_ORIGINS = ("people", "people-capital")


# ---- exceptions: facts that fix nothing


def _is_pretended(scene: Scene) -> bool:
    """Return whether the scene is fiction, costume or acting: "a child dressed as a crusader"."""
    if scene.has("pretends", "invents"):
        return True
    # Somebody plays somebody: "an actor playing a Wehrmacht officer".
    words = scene.text.bare
    for i, word in enumerate(words):
        if word in ("playing", "portraying", "plays", "portrays"):
            return any(map(scene.is_person, range(i + 1, min(i + 7, len(words)))))
    return False


def _is_shown(scene: Scene) -> bool:
    """Return whether history is only shown: in a museum, on a stage, on a film set."""
    return _is_pretended(scene) or scene.has_place("shows")


def _looks_on(scene: Scene) -> bool:
    """Return whether the subject is a person of today who looks at history: a tourist, a fan.

    "a teacher in Edo" is of Edo; "a teacher of Edo poetry" is not, nor a tourist anywhere.
    """
    if scene.has_role("visitor"):
        return not scene.has_year_before(1950)
    return scene.has_role("observer") and not scene.is_set_before(1950)


def _has_women_too(scene: Scene) -> bool:
    """Return whether women are known to have fought in the troops: "a Soviet sniper"."""
    if scene.year == 1936 and "militia" in scene.text.bare:
        return True  # those of Spain
    return scene.has("women-too")


# ---- history: when and where


def _is_event(scene: Scene) -> bool:
    """Return whether the prompt names a war or another event up to 1975: "Battle of Blenheim"."""
    if scene.has("modern-war") or _is_after(scene, 1975):
        return False
    if scene.has("war-site") and scene.has_in_phrase("armed"):
        return True  # "a drummer at Shiloh"; a waiter there is a person of today
    if scene.has("war-place") and _is_after(scene, 1945):
        return True  # "a soldier in Saigon, 1968"
    return scene.has("war") or _has_named_event(scene)


def _has_named_event(scene: Scene) -> bool:
    """Return whether an event has a name in capitals: "Battle of Maipú", "Gordon Riots"."""
    text = scene.text
    for fact in scene.facts("event-of"):
        has_place_behind = text.after(fact.first) in ("of", "in")
        if has_place_behind and is_capital(text, fact.first):
            return True
    for fact in scene.facts("event"):
        is_first = fact.first == 0 or text.opens[fact.first]
        if not is_first and is_capital(text, fact.first) and is_capital(text, fact.first - 1):
            return True
    return False


def _is_before(scene: Scene, year: int) -> bool:
    """Return whether the scene is dated to before a year."""
    return scene.year is not None and scene.year < year


def _is_after(scene: Scene, year: int) -> bool:
    """Return whether the scene is dated to after a year."""
    return scene.year is not None and scene.year > year


def _is_dated(scene: Scene, year: int) -> bool:
    """Return whether the scene is before a year, by its date or by an event."""
    return _is_before(scene, year) or _is_event(scene)


# ---- gender


def _has_body_of_one_sex(scene: Scene) -> bool:
    """Return whether the subject has a condition of one sex; a doctor who treats it has not."""
    if scene.does("body"):
        return True  # "a nurse expecting triplets"
    treats = scene.has_role("treats")
    works_beside = scene.has_role("treats-by-work")
    if scene.has_in_phrase("body"):
        return not (treats or works_beside)  # "a prostate cancer researcher"
    if treats:
        return False
    if scene.has_role("patient"):
        return scene.has("body")  # "a patient talking to a doctor about a vasectomy"
    if works_beside:
        return scene.undergoes("body")  # "a teacher with endometriosis"
    return scene.has_owned("body") and not scene.speaks_of("body")


def _nurses_child(scene: Scene) -> bool:
    """Return whether the subject nurses a child at the breast: "nursing a two-month-old"."""
    words = scene.text.bare
    if "nursing" not in words[scene.head + 1 :] or scene.is_called("nurse"):
        return False
    verb = words.index("nursing", scene.head + 1)
    return any("suckling" in lists_of_word(word) for word in words[verb + 1 : verb + 5])


def _plays_in_league(scene: Scene) -> bool:
    """Return whether the subject plays in a league of one gender, and does not only work there."""
    if scene.has_role("league-staff"):
        return False
    if scene.has_in_phrase("league"):
        return True  # "an NFL quarterback"
    if scene.has_role("athlete") and scene.has("league"):
        return True  # "a goalkeeper in the Bundesliga"
    if not scene.has_role("ball-role"):
        return False
    # Two words with capitals before a player name a club: "Leeds United striker".
    capitals = [i for i in range(scene.first, scene.head) if scene.text.capital[i]]
    names = [i for i in capitals if scene.text.bare[i] not in origins()]
    return len(names) > 1 or scene.has_in_phrase("club")


def _nurses_in_old_war(scene: Scene) -> bool:
    """Return whether the subject is a nurse of an army before 1945, who were women by rule."""
    if not scene.is_called("nurse"):
        return False
    if scene.year is None:
        return _is_event(scene)
    is_at_war = scene.has("closed-nurse") or _is_event(scene)
    return scene.year < 1945 and is_at_war


# ---- race and age


def _is_of_a_people(scene: Scene) -> bool:
    """Return whether the subject's own words state an origin: "Hmong farmer", "Vikings"."""
    for fact in scene.facts(*_ORIGINS):
        if fact.name == "people-capital" and not is_capital(scene.text, fact.first):
            continue
        # "a doctor, Nigerian", "a Zulu king's guard"
        if scene.follows_as_tag(fact) or scene.owns_subject(fact):
            return True
        # Before a player of roles an origin is a costume: "a Viking cosplayer".
        is_costume = fact.first < scene.head and scene.has_role("player-of-roles")
        if scene.is_in_phrase(fact) and not is_costume:
            return True
    return scene.is_from("country")


def _is_of_past_region(scene: Scene) -> bool:
    """Return whether the scene is before 1900, when the region says the origin."""
    if scene.year is None:
        return _is_event(scene)
    return scene.year < 1900


def _is_veteran_of_something(scene: Scene) -> bool:
    """Return whether the subject is a veteran of something: "a veteran of many tours"."""
    return scene.has_in_phrase("veteran") and scene.text.after(scene.head) == "of"


# ---- the rules

# A function of a scene, and what it takes besides.
_Condition = tuple[Callable[..., bool], *tuple[Any, ...]]
# The fields of a `Rule` after its kind.
_Row = tuple[tuple[_Condition, ...], tuple[_Condition, ...], str, str]


class Rule(NamedTuple):
    """Hold one way in which context fixes an attribute.

    Attributes:
        kind: of the attribute, one of `KINDS`.
        needs: what has to be in a scene, each as a function of it with its other arguments.
        unless: the exceptions, likewise.
        fixed: a prompt to which the rule applies.
        open: a prompt that looks like it, to which no rule of this kind applies.
    """

    kind: str
    needs: tuple[_Condition, ...]
    unless: tuple[_Condition, ...]
    fixed: str
    open: str

    def fixes(self, scene: Scene) -> bool:
        """Return whether a scene has all that the rule needs, and no exception."""
        # Plain loops: this runs for each person of each prompt.
        for condition, *arguments in self.needs:
            if not condition(scene, *arguments):
                return False
        for condition, *arguments in self.unless:
            if condition(scene, *arguments):
                return False
        return True


# Exceptions. Where women fought as well, being in arms says no gender.
_NEVER = ()
_PRETENDED = ((_is_pretended,),)
_SHOWN = ((_is_shown,),)
_SEEN = ((_is_shown,), (_looks_on,))
_OBSERVED = ((_is_shown,), (Scene.has_role, "observer"))
_IN_ARMS = ((_is_shown,), (_has_women_too,))
_IN_ARMS_SEEN = ((_is_shown,), (_has_women_too,), (_looks_on,))
_TREATED = ((Scene.has_role, "treats", "staff-of-age", "works-with-age"),)
_WAR_OF_VETERANS = ("veteran-war", "war", "war-site")  # those of fifty years ago

# Facts that fix nothing without a date or a fact of another list.
_INERT = frozenset(
    {
        *("medium", "aboard", "armed", "learned", "lawmaker", "observer", "visitor", "resident"),
        *("treats", "treats-by-work", "league-staff", "staff-of-age", "works-with-age", "thing"),
    }
)

# Place or profession, the year in which women were first admitted, and somebody there before.
_ADMITTED = (
    ("exchange", 1967, "a stock broker in", 1929),
    ("supreme-court", 1981, "a Supreme Court justice in", 1954),
    ("academy", 1976, "a cadet at West Point in", 1960),
    ("cosmonaut", 1963, "a cosmonaut in", 1961),
    ("astronaut", 1978, "an astronaut in", 1966),
)
_GENDER_RULES: tuple[_Row, ...] = (
    (
        ((Scene.has_owned, "body-state"),),
        _NEVER,
        "a pregnant surgeon",
        "a surgeon in a wide coat",
    ),
    (
        ((_has_body_of_one_sex,),),
        _NEVER,
        "a person giving birth",
        "a urologist reading a chart",
    ),
    (
        ((_nurses_child,),),
        _NEVER,
        "a teacher nursing a newborn",
        "a teacher nursing a cup of tea",
    ),
    # ---- rules in force
    (
        ((Scene.has_on_subject, "closed-office"),),
        _PRETENDED,
        "an imam at prayer",
        "a priest in a village church",
    ),
    (
        ((Scene.has_on_subject, "stage-office"),),
        _NEVER,  # costumes are part of this theatre
        "a kabuki actor in a costume",
        "an actor in a costume",
    ),
    (
        ((Scene.has, "closed-school"), (Scene.has_role, "enrolled")),
        _NEVER,
        "a Barnard College student",
        "a professor at Barnard College",
    ),
    (
        ((Scene.has_in_phrase, "clergy"), (Scene.has, "church")),
        _PRETENDED,
        "a Catholic bishop blessing the crowd",
        "a student at a Catholic school",
    ),
    (((_plays_in_league,),), _PRETENDED, "an NFL quarterback", "an NFL referee"),
    # ---- history: the first World Cup of women was in 1991
    (
        ((Scene.has, "world-cup"), (_is_before, 1991)),
        ((Scene.has_role, "league-staff"),),
        "a captain at the 1966 World Cup final",
        "a referee at the 1966 World Cup final",
    ),
    (
        ((Scene.has_on_subject, "troops"),),
        _IN_ARMS,
        "a Roman legionary",
        "a legionary costume on a dancer",
    ),
    (
        ((Scene.has, "troops"), (Scene.has_in_phrase, "armed")),
        _IN_ARMS,
        "a soldier marching with the Wehrmacht",
        "a farmer watching the Wehrmacht",
    ),
    (
        ((Scene.has_in_phrase, "armed"), (_is_dated, 1950)),
        _IN_ARMS_SEEN,
        "a soldier in 1916",
        "a soldier in 2016",
    ),
    (
        ((Scene.has_in_phrase, "warrior"), (Scene.has_in_phrase, *_ORIGINS)),
        _SHOWN,
        "a Zulu warrior",
        "a Zulu weaver",
    ),
    (
        (
            (Scene.has_in_phrase, "closed-warrior", "armed"),
            (Scene.has_in_phrase, "past-people"),
        ),
        _SHOWN,
        "an Assyrian archer",
        "an Assyrian potter",
    ),
    (
        ((Scene.has_in_phrase, "learned"), (_is_dated, 1900)),
        _IN_ARMS_SEEN,
        "an envoy in 1780",
        "a farmer in 1780",
    ),
    (
        (
            (Scene.has_in_phrase, "learned"),
            (Scene.has_fact_or_role, "lawmaker"),
            (_is_dated, 1919),
        ),
        _IN_ARMS_SEEN,
        "a senator in 1910",
        "a senator in 1990",
    ),
    (
        ((Scene.has, "founders"),),
        _SEEN,
        "delegates signing the Declaration of Independence",
        "a tourist looking at the Declaration of Independence",
    ),
    *(
        (((Scene.has, name), (_is_before, year)), _OBSERVED, f"{who} {then}", f"{who} 2019")
        for name, year, who, then in _ADMITTED
    ),
    (
        ((Scene.has, "expedition"), (Scene.has_in_phrase, "aboard")),
        _SEEN,
        "a member of Shackleton's expedition",
        "a member of a climbing expedition",
    ),
    (
        ((Scene.has, "moon-program"), (Scene.has_in_phrase, "astronaut")),
        _SHOWN,
        "an Apollo astronaut",
        "an astronaut above the Moon",
    ),
    (((_nurses_in_old_war,),), _SHOWN, "a nurse in the Crimean War", "a nurse in 2019"),
)
_RACE_RULES: tuple[_Row, ...] = (
    (((_is_of_a_people,),), _NEVER, "a Hmong farmer", "a chef in a Japanese restaurant"),
    # Institutions of one origin.
    (
        ((Scene.has_on_subject, "troops", "one-origin"),),
        _SHOWN,
        "a Ku Klux Klan member",
        "a tourist in a Viking museum",
    ),
    (
        ((Scene.has, "troops", "one-origin"),),
        _SEEN,
        "a cook marching with the Wehrmacht",
        "a historian marching to the Wehrmacht exhibition",
    ),
    (((_is_of_past_region,),), _SEEN, "a merchant in the Middle Ages", "a banker in London"),
    # Armies and offices of nations that are mixed today.
    (
        (
            (Scene.has, "open-nation", "open-country"),
            (_is_dated, 1950),
            (Scene.has_in_phrase, "armed", "learned", "colonial"),
        ),
        _SEEN,
        "a German soldier in 1943",
        "a factory worker in 1943",
    ),
    (
        ((Scene.has_in_phrase, "rooted"), (Scene.has, "country")),
        _SHOWN,
        "a herder in Mongolia",
        "a journalist in Mongolia",
    ),
)
_SKIN_RULES: tuple[_Row, ...] = (
    *_RACE_RULES,
    (
        ((Scene.has_on_subject, "skin-mark"),),
        _NEVER,
        "a person with albinism",
        "a person in a white coat",
    ),
    (
        ((Scene.has_owned, "skin-mark"),),
        _NEVER,
        "a cook at a stove, with albinism",
        "a cook at a stove, with a white hat",
    ),
)
_AGE_RULES: tuple[_Row, ...] = (
    (
        ((Scene.has_own_age, "age-word"),),
        _NEVER,
        "a college freshman",
        "a new manager at a desk",
    ),
    (
        ((Scene.has_in_phrase, "illness-of-age"),),
        _TREATED,
        "a dementia patient",
        "a dementia researcher",
    ),
    (
        ((Scene.has, "illness-of-age"), (Scene.has_role, "patient")),
        _TREATED,
        "a patient talking about dementia",
        "a journalist talking about dementia",
    ),
    (
        ((Scene.undergoes, "illness-of-age"),),
        _TREATED,
        "a person with dementia",
        "a researcher studying dementia",
    ),
    (
        ((Scene.has_on_subject, "level"), (Scene.has_role, "learner")),
        _NEVER,
        "a high school student",
        "a kindergarten teacher",
    ),
    (
        ((Scene.has, "mature"), (Scene.has_role, "resident")),
        _NEVER,
        "a resident of a nursing home",
        "a nurse in a nursing home",
    ),
    (
        ((Scene.has_stated_age,),),
        _NEVER,
        "a barista in her forties",
        "a waiter with a 30-year-old Bordeaux",
    ),
    (
        ((Scene.has_in_phrase, "veteran"), (Scene.has, *_WAR_OF_VETERANS)),
        _NEVER,
        "a veteran of World War II",
        "a soldier in 1943",
    ),
    (
        ((_is_veteran_of_something,),),
        _NEVER,
        "a veteran of many tours",
        "a veteran teacher at a desk",
    ),
    # Active athletes are young.
    (((_plays_in_league,),), _PRETENDED, "an NBA player", "an NBA coach"),
    (
        ((Scene.is_called, "gymnast"), (Scene.has, "olympics")),
        _PRETENDED,
        "a gymnast at the Olympics",
        "a reporter at the Olympics",
    ),
)
RULES = (
    *(Rule("gender", *row) for row in _GENDER_RULES),
    *(Rule("origin", *row) for row in _RACE_RULES),
    *(Rule("skin", *row) for row in _SKIN_RULES),
    *(Rule("age", *row) for row in _AGE_RULES),
)
_RULES_OF_KIND = {kind: [rule for rule in RULES if rule.kind == kind] for kind in KINDS}


def _has_only_inert_facts(text: Text) -> bool:
    """Return whether a prompt is too plain for any rule but those about ages."""
    if "nursing" in text.bare or any(map(str.isdigit, text.prompt)):
        return False
    return all(fact.name in _INERT for fact in find_facts(text))


def find_rules(text: str, start: int, end: int, kind: str) -> list[Rule]:
    """Return the rules that fix an attribute of a person: the facts of the prompt leave one value.

    Args:
        text: a prompt.
        start, end: offsets of the person's noun phrase, without its determiners.
        kind: of the attribute, as in `Attribute.kind`; no facts are known of others than `KINDS`.
    """
    if kind not in _RULES_OF_KIND or (kind != "age" and _has_only_inert_facts(read_text(text))):
        return []
    scene = read_scene(text, start, end)
    return [rule for rule in _RULES_OF_KIND[kind] if rule.fixes(scene)]
