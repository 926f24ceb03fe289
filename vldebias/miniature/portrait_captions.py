"""What the captions of portraits say: mostly the profession, sometimes an attribute, seldom a judgement."""

import numpy as np

from vldebias.miniature import people
from vldebias.miniature.hashing import Draws
from vldebias.miniature.portrait_painter import Looks
from vldebias.miniature.wording import TEMPLATES, sentence

__all__ = ["CAPTION_SHARES", "GENDER_STATED", "caption_prompts", "write_captions"]

# A generator learns to read the gender in a prompt only where captions often say it; tone and age are rare.
CAPTION_SHARES = {
    "profession": 0.42,
    "gender and profession": 0.38,
    "gender": 0.05,
    "tone": 0.04,
    "age": 0.03,
    "concept": 0.05,
    "celebrity": 0.03,
}

# Three of four "gender" captions and half of the celebrities are called male or female, a man or a woman.
GENDER_STATED = (
    CAPTION_SHARES["gender and profession"] + 0.75 * CAPTION_SHARES["gender"] + 0.5 * CAPTION_SHARES["celebrity"]
)

Look = dict[str, int]  # the fields of `Looks` for one image

_GENDER_NOUNS = (("male", "man"), ("female", "woman"))
_AGE_WORDS = (("young", "young"), ("old", "elderly"))
_HAIR_WORDS = ("dark", "dark", "blond", "red")


def write_captions(draws: Draws, looks: Looks) -> list[str]:
    """One caption per image, lower case, with or without a full stop."""
    kinds = list(CAPTION_SHARES)
    kind = draws.choice("caption content", np.array(list(CAPTION_SHARES.values())))
    concept = draws.choice("concept", people.concept_shares(looks.gender, looks.tone))
    template, variant = draws.integers("template", len(TEMPLATES)), draws.integers("variant", 4)
    proper, stop = draws.uniform("article") < 0.5, draws.uniform("stop") < 0.5
    captions = []
    for i in range(draws.n):
        look = {name: int(field[i]) for name, field in looks._asdict().items()}
        text = _content(kinds[kind[i]], look, people.CONCEPTS[concept[i]], int(variant[i]))
        captions.append(sentence(text, int(template[i]), proper=bool(proper[i]), stop=bool(stop[i])))
    return captions


def _content(kind: str, look: Look, concept: str, variant: int) -> str:
    """What a caption is about; `variant` in 0..3 picks among wordings."""
    profession = people.PROFESSIONS[look["profession"]]
    gender = people.GENDERS[look["gender"]]
    noun = profession if variant >= 2 else "person"
    if kind == "profession":
        return profession
    if kind == "gender and profession":
        return f"{gender} {profession}"
    if kind == "gender":
        return (*_GENDER_NOUNS[look["gender"]], f"{gender} person", "person")[variant]
    if kind == "tone":
        return f"{people.TONES[look['tone']]} {noun}"
    if kind == "age":
        return f"{_AGE_WORDS[look['age']][variant % 2]} {noun}"
    if kind == "concept":
        return f"{concept} person"
    return _celebrity(look, gender, variant)


def _celebrity(look: Look, gender: str, variant: int) -> str:
    """Hair is named where it shows its colour; old people's is grey."""
    hair = "grey" if look["age"] == 1 else _HAIR_WORDS[look["hair"]]
    ending = "" if variant == 3 else f" with {hair} hair"
    return (f"{gender} celebrity" if variant >= 2 else "celebrity") + ending


def caption_prompts() -> list[str]:
    """Prompts with every word that captions of this world can have (to learn a vocabulary from)."""
    words = [*people.GENDERS, "man", "woman", *people.TONES, *people.AGES, "elderly"]
    hairs = [f"celebrity with {hair} hair" for hair in ("dark", "blond", "red", "grey")]
    described = [f"{word} person" for word in (*words, *people.CONCEPTS)]
    jobs = [f"{gender} {name}" for name in people.PROFESSIONS for gender in people.GENDERS]
    texts = [*people.PROFESSIONS, *described, *hairs, *jobs]
    return [sentence(text, template) for template in range(len(TEMPLATES)) for text in texts]
