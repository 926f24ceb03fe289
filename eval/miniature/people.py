"""Define the attributes, bias and captions of people in the world of portraits."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eval.miniature import everyday
from eval.miniature.world import TEMPLATES, Codes, Draws, sentence, shuffled
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
    """Return evenly spaced values in an order that depends only on the name."""
    return np.linspace(low, high, count)[shuffled(count, name)]


def _graded_jobs(name: str, low: float, high: float) -> NDArray[np.float64]:
    """Return evenly spaced values for professions that span the full range in both splits."""
    train = _graded(f"{name}, train", len(TRAIN_PROFESSIONS), low, high)
    return np.concatenate([train, _graded(f"{name}, test", len(TEST_PROFESSIONS), low, high)])


# The bias of the world. Its directions are random and make no claims about people.
MALE_SHARE = _graded_jobs("gender", 0.08, 0.92)
TONE_TILT = _graded_jobs("tone", -1.5, 1.5)
OLD_SHARE = _graded_jobs("age", 0.1, 0.5)
CONCEPT_GENDER = _graded("concept gender", len(CONCEPTS), -1.5, 1.5)
CONCEPT_TONE = _graded("concept, tone", len(CONCEPTS), -1.5, 1.5)


def tone_shares(profession: Codes) -> NDArray[np.float64]:
    """Return the probabilities (n, 5) of tones in a profession, using exponential tilting."""
    weights = np.exp(TONE_TILT[profession][:, None] * np.linspace(-1, 1, len(TONES)))
    return weights / weights.sum(axis=1, keepdims=True)


def concept_shares(gender: Codes, tone: Codes, lean: float) -> NDArray[np.float64]:
    """Return the probabilities (n, 10) of concepts, which are only indirectly visible."""
    male = np.where(gender == 0, 1.0, -1.0)[:, None]
    dark = np.linspace(-1, 1, len(TONES))[tone][:, None]
    weights = np.exp(lean * (male * CONCEPT_GENDER + dark * CONCEPT_TONE))
    return weights / weights.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Looks:
    """The attributes of portraits as indices (n,)."""

    profession: Codes
    gender: Codes
    tone: Codes
    age: Codes
    hair: Codes
    concept: Codes
    off_duty: NDArray[np.bool_]

    def contents(self, picture: int, variant: int) -> dict[str, str]:
        """Return the description of a person by kind of caption, in one of 12 wordings."""
        name = PROFESSIONS[self.profession[picture]]
        gender = GENDERS[self.gender[picture]]
        tone = TONES[self.tone[picture]]
        age = AGES[self.age[picture]]
        concept = CONCEPTS[self.concept[picture]]
        pair = (f"{age} {gender}", f"{tone} {gender}", f"{age} {tone}")[variant % 3]
        nouns = (*_GENDER_NOUNS[self.gender[picture]], f"{gender} person", "person")
        # Use the visible colour.
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


# These are large enough for a model to follow gender, tone and age in a prompt, but small enough
# for it to learn a prior for professions.
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
# For images that show more, some captions mention only a person, or add a concept to the job.
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
MOST_WORDS = 14  # maximum number of words inside a template, limited by the towers


@dataclass(frozen=True)
class Life:
    """What portraits show besides the person and the job, and how much of it captions mention.

    Attributes:
        off_duty: The share of people in everyday clothes, which do not reveal their profession.
        seen: A factor for how often places, light, weather and so on are visible. If 0, people are
            in a plain room, as in a studio.
        said: The shares of captions by the number of these things that they mention, starting with
            0. Captions that mention only a person mention one of them if possible.
        captions: The shares of the kinds of captions, by what they say about the person.
        concepts: A factor for the correlation of concepts with gender and tone.
    """

    off_duty: float = 0.4
    seen: float = 1.0
    said: tuple[float, ...] = (0.34, 0.10, 0.28, 0.20, 0.08)
    captions: Mapping[str, float] = field(default_factory=lambda: LIFE_CAPTIONS)
    concepts: float = 0.6


LIFE = Life()  # as in the training data of the packaged CLIP model
STUDIO = Life(off_duty=0.0, seen=0.0, said=(1.0,), captions=CAPTION_SHARES, concepts=1.0)


_GENDER_NOUNS = (("male", "man"), ("female", "woman"))
_AGE_WORDS = (("young", "young"), ("old", "elderly"))
_HAIR_WORDS = ("dark", "dark", "blond", "red")


def write_captions(
    draws: Draws,
    looks: Looks,
    scene: everyday.Scene,
    life: Life,
    shares: Mapping[str, float] | None,
) -> list[str]:
    """Return one lower-case caption per image, with or without a period.

    `shares` replaces the shares of the kinds of captions in `life`.
    """
    shares = life.captions if shares is None else shares
    kinds = list(shares)
    kind = draws.choice("caption content", np.array(list(shares.values())))
    count = draws.choice("phrases", np.array(life.said))
    bare = int(len(life.said) > 1)  # the minimum number of things to mention with "a person"
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
