"""Ask an image editor to keep the person, for everything that an instruction does not change."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from vldebias.errors import check_kind
from vldebias.prompts import load_prompts
from vldebias.prompts.attribute import Attribute
from vldebias.utils.phrases import listed_words
from vldebias.wording.languages import ENGLISH, language_of

ASPECTS = ("skin tone", "facial features", "apparent age", "gender")
# Aspect -> the prompt set whose values are read after the verb.
_SETS = {"gender": "gender", "apparent age": "age", "skin tone": "race"}
# Words that ask for a change of an aspect wherever they occur.
_WORDS = {
    "skin tone": r"skin|complexion|tan(?:ned)?(?=[\s,]*(?:[.!;]|$|and\b))|sunburn\w*|rac(?:e|ial)"
    r"|ethnic\w*|pale[rd]?|freckles|vitiligo|make-?up|powder|redness|black[- ]and[- ]white"
    r"|gr[ae]yscale|monochrome|sepia|colou?ri[sz]e",
    "apparent age": r"ag(?:e|ed|es|ing)|older|younger|wrinkl\w+|crow's feet|rejuvenat\w+"
    r"|youth\w*|years|toddler|adult|grown|pensioners?"
    r"|in (?:his|her|my|their) (?:\w+ )?\w+(?:ties|teens)|at \d\d",
    "gender": r"gender\w*|sex|feminin\w+|masculin\w+"
    r"|(?:fe)?male(?: (?:version|counterpart))?(?=\s*(?:$|[.,;!?]| of))",
    "facial features": r"noses?|lips|jaw\w*|cheek\w*|chin|beard|mou?stache"
    r"|(?:big|small|larg|wid)(?:ger|er) eyes|eyes (?:\w+er|blue|green|brown)",
}
# Words for another person or another kind of picture, in which nothing of the person is kept.
_OTHER = (
    r"swap|someone else|somebody else|(?:different|another) (?:person|man|woman|face)|twins"
    r"|celebrity|zombie|alien|robot|vampire|werewolf|monster|mannequin|statue|doll|character"
    r"|anime|manga|cartoon|caricature|comic|avatar|pixar|disney|ghibli|painting|drawing|sketch"
    r"|style of|face on(?:to)?"
)
_DETERMINER = r"(?:the|this|that|these|those|a|an|my|his|her|their|our|your|both)"
_PERSON_WORD = (
    r"(?:wo)?m[ae]n|persons?|people|boys?|girls?|guys?|lad(?:y|ies)|gentlem[ae]n|child|children|kids?"
    r"|couple|subject|individual|model|bride|groom|mother|father|(?:grand)?(?:ma|pa|mother|father)"
    r"|dad|mum|mom|sister|brother|son|daughter|husband|wife|aunt|uncle|friend|family|bab(?:y|ies)"
    r"|\w+m[ae]n|doctor|nurse|students?|workers?|actor|actress|singer|figure|portrait"
)
# The person that the instruction is about, as the object of a verb.
_PERSON = (
    rf"(?:him|her(?! \w+'s)|them|me|us|every(?:one|body)|grand(?:ma|pa)"
    rf"|{_DETERMINER} (?:[\w-]+ ){{0,2}}?(?:{_PERSON_WORD})(?!'s|\w))"
    r"(?: (?:in|on|at) (?:the|this) (?:picture|photo|image|left|right|middle|cent(?:er|re)))?"
)
_CHANGE = r"make|turn|change|convert|transform|morph"
# A face that is changed, but not one that is only mentioned ("remove the mask from her face")
_FACE = (
    rf"(?<!from )(?<!off )(?<!over )(?<!on )(?<!around )(?:{_DETERMINER}|\b\w{{1,40}}'s) faces?"
    r"|(?:lines|bags|circles) (?:around|under)"
)
_STOP = r"in|on|at|of|next|with|who|so|wearing|holding|for|while"
# All repetitions are bounded, so that the time grows linearly with the length of an instruction.
_PHRASE = rf"(?P<value>(?:(?!\b(?:{_STOP})\b)[^.,;!?]){{0,200}})"
_ADVERB = (
    r"(?:(?:to|be|looks?|seem|appear|become|more|about|around|a bit|a little|slightly|much) ){0,6}"
)
# Value words that also describe things ("make the jacket black") count only as what a person is:
# "make him black", "she should be black".
_BARE = {
    "skin tone": r"black|white|brown|dark(?:er)?|light(?:er)?|fair(?:er)?",
    "apparent age": r"old|young|\w+teen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|\d\d",
}
_IS = (
    re.compile(
        rf"\b(?:{_CHANGE}) {_PERSON} {_ADVERB}"
        rf"(?P<value>an? [^.,;!?]*|[\w-]+(?: [\w-]+)?(?=\s*(?:$|[.,;!?]|(?:and|{_STOP})\b)))",
        re.IGNORECASE,
    ),
    re.compile(
        rf"\b(?:be|is|are|looks?) {_ADVERB}(?P<value>[\w-]+)(?=\s*(?:$|[.,;!?]))", re.IGNORECASE
    ),
)
# What a person becomes: "the singer an old man", "the guy to a woman", "born a boy".
_BECOMES = (
    *_IS,
    re.compile(rf"\b(?:{_CHANGE})\b[^.;!?]{{0,200}}?\b(?:in)?to {_PHRASE}", re.IGNORECASE),
    re.compile(rf"\b(?:{_CHANGE}) {_DETERMINER} (?:[\w-]+ ){{1,3}}?an? {_PHRASE}", re.IGNORECASE),
    re.compile(rf"\b(?:as|like|born|become|be) {_PHRASE}", re.IGNORECASE),
)
# Another person takes the place: "turn him into Batman", "change the people to Mexicans".
_REPLACED = re.compile(rf"\breplace {_PERSON}|\b(?:{_CHANGE}) {_PERSON} (?:in)?to\b", re.IGNORECASE)
_REPLACEMENT = re.compile(rf"\breplace\b[^.;!?]{{0,200}}? (?:with|by) {_PHRASE}", re.IGNORECASE)
# "Make him look like Brad Pitt", but not "like a New York policeman"
_NAME = re.compile(rf"{_PERSON} (?:look like|into(?: an?)?) [A-Z]\w+ [A-Z]\w+")
_PRONOUN = re.compile(r"\b(?:s?he|his|hers?|him(?:self)?|herself)\b", re.IGNORECASE)
_QUOTED = re.compile(r"\"[^\"]*\"|“[^“”]*”")


class KeptPerson(NamedTuple):
    """An editing instruction that asks to keep the person.

    Attributes:
        prompt: the instruction, followed by the sentence.
        sentence: the added text, or "" if nothing is added.
        reason: why aspects are left out of the sentence, or None if none is.
    """

    prompt: str
    sentence: str
    reason: str | None


def keep_person(instruction: str) -> KeptPerson:
    """Ask an image editor to keep what an English instruction does not ask to change in a person.

    Editors may lighten skin, or change gender, age and faces that the instruction does not mention.
    The sentence has the same words for everybody, and leaves out what the instruction may ask to
    change, by words such as "older" and by what follows its verb ("into a woman"). It is offered
    for trial: its effect has not been measured, and it may make edits weaker.

    See also docs/how-to/edited-images.md.

    Args:
        instruction: the prompt for the editor, such as "Put him in a suit".

    >>> keep_person("Put him in a suit").prompt
    "Put him in a suit; keep the person's skin tone, facial features, apparent age and gender as in
    the photo"
    >>> keep_person("Make her older")[1:]
    ("; keep the person's skin tone and gender as in the photo", 'asks to change apparent age')
    """
    expected = "one string. For several: [keep_person(text) for text in texts]"
    check_kind("instruction", instruction, str, expected)
    if not instruction.strip():
        return KeptPerson(instruction, "", "empty")
    if "keep the person's" in instruction.casefold():
        return KeptPerson(instruction, "", "asks to keep the person")
    if language_of(instruction) is not ENGLISH:
        return KeptPerson(instruction, "", "not in English")
    asked = asked_changes(instruction)
    # A face that gets older, or one of another gender, has other features.
    changed = asked | {"facial features"} if asked - {"skin tone"} else asked
    kept = [aspect for aspect in ASPECTS if aspect not in changed]
    reason = f"asks to change {listed_words([a for a in ASPECTS if a in asked])}" if asked else None
    if not kept:
        return KeptPerson(instruction, "", reason)
    request = f"eep the person's {listed_words(kept)} as in the photo"
    is_sentence = instruction.rstrip().endswith((".", "!", "?"))
    sentence = f" K{request}." if is_sentence else f"; k{request}"
    return KeptPerson(instruction + sentence, sentence, reason)


def asked_changes(instruction: str) -> set[str]:
    """Return the aspects of a person that an instruction may ask to change.

    Args:
        instruction: the prompt for the editor.

    >>> sorted(asked_changes("Give her a tan and make her older"))
    ['apparent age', 'skin tone']
    """
    text = _QUOTED.sub("", instruction)
    is_other = _matches(_OTHER, text) or _REPLACED.search(text) or _NAME.search(text)
    if is_other or any(_stated(match["value"]) for match in _REPLACEMENT.finditer(text)):
        return set(ASPECTS)
    asked = {aspect for aspect, words in _WORDS.items() if _matches(words, text)}
    if re.search(_FACE, text, re.IGNORECASE):
        asked |= {"skin tone", "facial features", "apparent age"}
    for pattern in _BECOMES:
        for match in pattern.finditer(text):
            asked |= _stated(match["value"])
            if pattern in _IS:
                asked |= {name for name, words in _BARE.items() if _matches(words, match["value"])}
    return asked


def _stated(value: str) -> set[str]:
    """Return the aspects of which a phrase states a value, apart from pronouns."""
    phrase = _PRONOUN.sub("", value)
    return {aspect for aspect, read in _attributes().items() if ENGLISH.states(phrase, read)}


def _matches(words: str, text: str) -> bool:
    return re.search(rf"\b(?:{words})\b", text, re.IGNORECASE) is not None


@cache
def _attributes() -> dict[str, Attribute]:
    """Return aspect -> the attribute whose values are read."""
    return {aspect: Attribute(load_prompts(name), {}) for aspect, name in _SETS.items()}
