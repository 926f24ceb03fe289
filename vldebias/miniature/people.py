"""The words of the world of portraits: professions, attributes, concepts, and how they lean in the data."""

import numpy as np
from numpy.typing import NDArray

from vldebias.miniature.hashing import shuffled

__all__ = ["AGES", "CONCEPTS", "GENDERS", "PROFESSIONS", "TEST_PROFESSIONS", "TONES", "TRAIN_PROFESSIONS"]


def _names(text: str) -> tuple[str, ...]:
    return tuple(" ".join(name.split()) for name in text.split(","))


# The paper's random split of 100 job titles (Chuang et al., 2023, repository chingyaoc/debias_vl, MIT).
TRAIN_PROFESSIONS = _names(
    """
    actor, architect, audiologist, author, baker, barber, blacksmith, bricklayer, bus driver,
    butcher, chef, chemist, cleaner, coach, comedian, computer programmer, construction worker,
    consultant, counselor, dancer, dentist, designer, dietitian, dj, doctor, driver, economist,
    electrician, engineer, entrepreneur, farmer, florist, graphic designer, hairdresser, historian,
    journalist, judge, lawyer, librarian, magician, makeup artist, mathematician, marine biologist,
    mechanic, model, musician, nanny, nurse, optician, painter, pastry chef, pediatrician,
    photographer, plumber, police officer, politician, professor, psychologist, real estate agent,
    receptionist, recruiter, researcher, sailor, salesperson, surveyor, singer, social worker,
    software developer, statistician, surgeon, teacher, technician, therapist, tour guide,
    translator, vet, videographer, waiter, writer, zoologist
    """
)
TEST_PROFESSIONS = _names(
    """
    accountant, astronaut, biologist, carpenter, civil engineer, clerk, detective, editor,
    firefighter, interpreter, manager, nutritionist, paramedic, pharmacist, physicist, pilot,
    reporter, security guard, scientist, web developer
    """
)
PROFESSIONS = (*TRAIN_PROFESSIONS, *TEST_PROFESSIONS)

GENDERS = ("male", "female")
TONES = ("pale", "light-skinned", "tan", "brown-skinned", "dark-skinned")
AGES = ("young", "old")
HAIRS = ("black", "brown", "blond", "red")

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
    """`count` evenly spaced values, dealt out by a shuffle that depends on the name alone."""
    return np.linspace(low, high, count)[shuffled(count, name)]


def _graded_jobs(name: str, low: float, high: float) -> NDArray[np.float64]:
    """The same for professions: train and test each span the whole range, so both lean equally far."""
    train = _graded(f"{name}, train", len(TRAIN_PROFESSIONS), low, high)
    return np.concatenate([train, _graded(f"{name}, test", len(TEST_PROFESSIONS), low, high)])


# What the world leans towards. Who leans where is dealt out by a shuffle and claims nothing about people.
MALE_SHARE = _graded_jobs("gender", 0.08, 0.92)
TONE_TILT = _graded_jobs("tone", -1.2, 1.2)
OLD_SHARE = _graded_jobs("age", 0.1, 0.5)
CONCEPT_GENDER = _graded("concept gender", len(CONCEPTS), -1.5, 1.5)
CONCEPT_TONE = _graded("concept, tone", len(CONCEPTS), -1.5, 1.5)


def tone_shares(profession: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n, 5) chances of the tones in a profession: an exponential tilt along the five tones."""
    weights = np.exp(TONE_TILT[profession][:, None] * np.linspace(-1, 1, len(TONES)))
    return weights / weights.sum(axis=1, keepdims=True)


def concept_shares(gender: NDArray[np.int64], tone: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n, 10) chances that the caption of a person names each concept."""
    male = np.where(gender == 0, 1.0, -1.0)[:, None]
    dark = np.linspace(-1, 1, len(TONES))[tone][:, None]
    weights = np.exp(male * CONCEPT_GENDER + dark * CONCEPT_TONE)
    return weights / weights.sum(axis=1, keepdims=True)
