"""Define the people in the world of portraits: their attributes, the bias of the data, and
captions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eval.miniature import everyday
from eval.miniature.world import TEMPLATES, Codes, Draws, sentence, shuffled
from vldebias.errors import InvalidInputError
from vldebias.miniature.words import (
    AGES,
    GENDERS,
    PROFESSIONS,
    TEST_PROFESSIONS,
    TONES,
    TRAIN_PROFESSIONS,
)

# The ten concepts of the paper's FairFace queries.
CONCEPTS = (
    "good",
    "evil",
    "smart",
    "dumb",
    "attractive",
    "unattractive",
    "lawful",
    "criminal",
    "friendly",
    "unfriendly",
)


def _graded(name: str, count: int, low: float, high: float) -> NDArray[np.float64]:
    """`count` evenly spaced values, assigned by a shuffle that depends on the name alone."""
    return np.linspace(low, high, count)[shuffled(count, name)]


def _graded_jobs(name: str, low: float, high: float) -> NDArray[np.float64]:
    """Return the same for professions: train and test both span the whole range, so both lean
    equally far."""
    train = _graded(f"{name}, train", len(TRAIN_PROFESSIONS), low, high)
    return np.concatenate([train, _graded(f"{name}, test", len(TEST_PROFESSIONS), low, high)])


# The bias of the world. Its directions are assigned by a shuffle and make no claim about people.
MALE_SHARE = _graded_jobs("gender", 0.08, 0.92)
TONE_TILT = _graded_jobs("tone", -1.5, 1.5)
OLD_SHARE = _graded_jobs("age", 0.1, 0.5)
CONCEPT_GENDER = _graded("concept gender", len(CONCEPTS), -1.5, 1.5)
CONCEPT_TONE = _graded("concept, tone", len(CONCEPTS), -1.5, 1.5)


def tone_shares(profession: Codes) -> NDArray[np.float64]:
    """Return (n, 5) probabilities of the tones in a profession: an exponential tilt along the five
    tones."""
    weights = np.exp(TONE_TILT[profession][:, None] * np.linspace(-1, 1, len(TONES)))
    return weights / weights.sum(axis=1, keepdims=True)


def concept_shares(gender: Codes, tone: Codes, lean: float = 1.0) -> NDArray[np.float64]:
    """Return (n, 10) probabilities of the concept of a person, which only shows indirectly in a
    smile, a place, or light."""
    male = np.where(gender == 0, 1.0, -1.0)[:, None]
    dark = np.linspace(-1, 1, len(TONES))[tone][:, None]
    weights = np.exp(lean * (male * CONCEPT_GENDER + dark * CONCEPT_TONE))
    return weights / weights.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Looks:
    """The attributes of portraits, (n,) indices each."""

    profession: Codes
    gender: Codes
    tone: Codes
    age: Codes
    hair: Codes
    concept: Codes
    off_duty: NDArray[np.bool_]

    def contents(self, picture: int, variant: int) -> dict[str, str]:
        """Return what a caption of each kind says about the person in a picture; `variant` in 0..11
        selects the wording."""
        name = PROFESSIONS[self.profession[picture]]
        gender = GENDERS[self.gender[picture]]
        tone = TONES[self.tone[picture]]
        age = AGES[self.age[picture]]
        concept = CONCEPTS[self.concept[picture]]
        pair = (f"{age} {gender}", f"{tone} {gender}", f"{age} {tone}")[variant % 3]
        nouns = (*_GENDER_NOUNS[self.gender[picture]], f"{gender} person", "person")
        # The visible colour.
        hair = "grey" if age == "old" else _HAIR_WORDS[self.hair[picture]]
        described = f" with {hair} hair" * (variant % 4 != 3)
        return {
            "profession": name,
            "gender and profession": f"{gender} {name}",
            "tone and profession": f"{tone} {name}",
            "age and profession": f"{age} {name}",
            "concept and profession": f"{concept} {name}",
            "two attributes and profession": f"{pair} {name}",
            "person": "person",
            "gender": nouns[variant % 4],
            "tone": f"{tone} person",
            "age": f"{_AGE_WORDS[self.age[picture]][variant % 2]} person",
            "concept": f"{concept} person",
            "celebrity": f"{gender} " * (variant % 4 >= 2) + "celebrity" + described,
        }


# Often enough that a model can follow gender, tone and age in a text, rarely enough that it has its
# own prior for the professions.
CAPTION_SHARES = {
    "profession": 0.36,
    "gender and profession": 0.20,
    "tone and profession": 0.12,
    "age and profession": 0.10,
    "two attributes and profession": 0.06,
    "gender": 0.04,
    "tone": 0.03,
    "age": 0.02,
    "concept": 0.04,
    "celebrity": 0.03,
}
# The same for pictures that show more: some captions only name a person, or add a concept to the
# profession.
LIFE_CAPTIONS = {
    "profession": 0.32,
    "gender and profession": 0.16,
    "tone and profession": 0.08,
    "age and profession": 0.07,
    "concept and profession": 0.06,
    "two attributes and profession": 0.05,
    "person": 0.07,
    "gender": 0.06,
    "tone": 0.03,
    "age": 0.02,
    "concept": 0.05,
    "celebrity": 0.03,
}
MOST_WORDS = 14  # maximum length of the text inside a template, limited by the towers


@dataclass(frozen=True)
class Life:
    """What portraits show besides the person and the job, and how much of it captions mention.

    Attributes:
        off_duty: share of the people in everyday dress, which reveals nothing about their
            profession.
        seen: factor on how often places, light, weather and the like are visible; 0: a dull room,
            as in a studio.
        said: shares of the captions by how many of these things they name, starting with none.
            Captions that only name a person name one if possible.
        captions: shares of the kinds of captions, by what they say about the person.
        concepts: factor on how strongly the concept of a person correlates with gender and tone.

    Raises:
        InvalidInputError: a number outside of [0, 1].
    """

    off_duty: float = 0.4
    seen: float = 1.0
    said: tuple[float, ...] = (0.34, 0.10, 0.28, 0.20, 0.08)
    captions: Mapping[str, float] = field(default_factory=lambda: LIFE_CAPTIONS)
    concepts: float = 0.6

    def __post_init__(self) -> None:
        for name in ("off_duty", "seen", "concepts"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInputError(
                    f"{name} must be a number in [0, 1], got {getattr(self, name)}"
                )


LIFE = Life()
STUDIO = Life(off_duty=0.0, seen=0.0, said=(1.0,), captions=CAPTION_SHARES, concepts=1.0)
USUAL = LIFE  # the training data of the packaged models


def stated(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of the captions that state gender, tone and age.

    Two of three pairs of attributes have each of them; three of four "gender" captions and half of
    the celebrities are called male or female, a man or a woman.
    """
    alone = {
        "gender": shares["gender"] * 0.75 + shares["celebrity"] * 0.5,
        "tone": shares["tone"],
        "age": shares["age"],
    }
    pairs = shares["two attributes and profession"] * 2 / 3
    return {name: shares[f"{name} and profession"] + pairs + rest for name, rest in alone.items()}


STATED = stated(CAPTION_SHARES)
GENDER_STATED = STATED["gender"]

_GENDER_NOUNS = (("male", "man"), ("female", "woman"))
_AGE_WORDS = (("young", "young"), ("old", "elderly"))
_HAIR_WORDS = ("dark", "dark", "blond", "red")


def write_captions(
    draws: Draws,
    looks: Looks,
    scene: everyday.Scene,
    life: Life = USUAL,
    shares: Mapping[str, float] | None = None,
) -> list[str]:
    """Return one caption per image, in lower case, with or without a full stop; `shares` by kind
    replaces that of `life`.

    Raises:
        InvalidInputError: an unknown kind of caption.
    """
    shares = life.captions if shares is None else shares
    kinds = list(shares)
    if unknown := [name for name in kinds if name not in LIFE_CAPTIONS]:
        raise InvalidInputError(
            f"shares: unknown kinds of captions {unknown}; expected some of {list(LIFE_CAPTIONS)}"
        )
    kind = draws.choice("caption content", np.array(list(shares.values())))
    count = draws.choice("phrases", np.array(life.said))
    bare = int(len(life.said) > 1)  # the minimum number of things that "a person" is combined with
    mixed = draws.uniforms("which phrases", 16)
    template, variant = draws.integers("template", len(TEMPLATES)), draws.integers("variant", 12)
    proper, stop = draws.uniform("article") < 0.5, draws.uniform("stop") < 0.5
    captions = []
    for i in range(draws.n):
        name = kinds[kind[i]]
        text = looks.contents(i, int(variant[i]))[name]
        more = scene.phrases(i, int(looks.hair[i]), bool(looks.age[i] == 1))
        if name == "celebrity":  # already mentions the hair
            more.pop()
        order = np.argsort(mixed[i, : len(more)])[: max(count[i], bare * (name == "person"))]
        clauses = [more[k] for k in order]
        while (
            sum(len(t.replace("-", " - ").split()) for t in (text, *clauses)) > MOST_WORDS
            and len(clauses) > 1
        ):
            clauses.pop()
        captions.append(
            sentence(" ".join([text, *clauses]), template[i], proper=proper[i], stop=bool(stop[i]))
        )
    return captions
