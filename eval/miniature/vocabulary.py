"""Define the shares of caption kinds, and learn byte-pair merges from every possible prompt."""

import itertools
from collections import Counter
from collections.abc import Iterable

import regex

from eval.miniature import birds, everyday, people
from eval.miniature.world import TEMPLATES, sentence
from vldebias.miniature.tokenizer import Pair, byte_characters

Word = tuple[str, ...]

# CLIP splits text into contractions, words, single digits and everything else.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"

# Shares of caption kinds for birds and people in the second round of training the UNet, in which it
# learns to follow captions.
DRAWN_BIRDS = (0.30, 0.40, 0.05, 0.10, 0.15)  # few captions combine a class and a background
DRAWN_PEOPLE = {
    "profession": 0.30,
    "gender and profession": 0.16,
    "tone and profession": 0.24,
    "age and profession": 0.12,
    "two attributes and profession": 0.13,
    "gender": 0.01,
    "tone": 0.01,
    "age": 0.01,
    "concept": 0.01,
    "celebrity": 0.01,
}

# Prompts in the paper with words that are in no caption. These are also single tokens.
PAPER_WORDS = (
    "a photo of a white person, a black person, an asian person, an indian person, a latino person."
    " a face of a man, a woman, a boy, a girl. a painting, a drawing, a cartoon portrait of"
    " someone. it's on the water."
)


def bird_prompts() -> list[str]:
    """Return prompts with all possible contents of bird captions."""
    sides = [end.format(side) for end in birds.SCENES for side in birds.BACKGROUNDS]
    ends = [f" in the {place}" for place in birds.PLACES] + sides
    names = [name + end for name in (*birds.SPECIES, *birds.CLASSES) for end in ("", *ends)]
    scenes = [*birds.PLACES, "moutain", *(f"{side} background" for side in birds.BACKGROUNDS)]
    return [
        sentence(text, template) for template in range(len(TEMPLATES)) for text in (*names, *scenes)
    ]


def people_prompts() -> list[str]:
    """Return prompts with all possible words in portrait captions."""
    words = [*people.GENDERS, "man", "woman", *people.TONES, *people.AGES, "elderly"]
    hairs = [f"celebrity with {hair} hair" for hair in ("dark", "blond", "red", "grey")]
    described = [f"{word} person" for word in (*words, *people.CONCEPTS)]
    jobs = [f"{gender} {name}" for name in people.PROFESSIONS for gender in people.GENDERS]
    seen = [f"person {phrase}" for phrase in everyday.all_phrases()]
    texts = [*people.PROFESSIONS, *described, *hairs, *jobs, *seen]
    return [sentence(text, template) for template in range(len(TEMPLATES)) for text in texts]


def learn_merges(texts: Iterable[str], limit: int = 1500) -> list[Pair]:
    """Return up to `limit` byte-pair merges, until each word is a single token.

    The most frequent pair is merged first. Ties are broken alphabetically, so that the result
    depends only on the texts.
    """
    symbols = byte_characters()
    words = regex.compile(_WORDS)
    counts: Counter[Word] = Counter()
    for text in texts:
        for word in words.findall(text.lower()):
            characters = [symbols[byte] for byte in word.encode()]
            counts[(*characters[:-1], characters[-1] + "</w>")] += 1
    merges: list[Pair] = []
    while len(merges) < limit:
        pairs: Counter[Pair] = Counter()
        for word, count in counts.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        counts = Counter({_merged(word, best): count for word, count in counts.items()})
    return merges


def _merged(word: Word, pair: Pair) -> Word:
    result: list[str] = []
    i = 0
    while i < len(word):
        here = word[i : i + 2] == pair
        result.append("".join(pair) if here else word[i])
        i += 2 if here else 1
    return tuple(result)
