"""What a visitor asks for, checked before any model sees it: texts, attributes, and how to mitigate them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from urllib.parse import urlencode

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.methods import METHODS, Method, Need
from vldebias.prompts import PromptSet, load_prompts, make_prompt_set
from vldebias.prompts.stated_words import StatedWords

ATTRIBUTES = {"gender": "gender", "race": "race", "skin tone": "skin-tone", "age": "age", "background": "backgrounds"}
"""What the page calls an attribute -> its prompt set."""
OWN = "own words"
PRESET = "default"
LONGEST = 300  # characters of a prompt: more than any CLIP reads
MANY_LINES = 24
MOST_PICTURES, MOST_STEPS, MOST_GUIDANCE, LARGEST_SEED = 16, 100, 30.0, 2**31 - 1
MOST_BESIDE = 2  # methods that are drawn beside the chosen one: more would be stamps
_UNMET = {Need.IMAGES, Need.LABELS, Need.TRAINING, Need.JUDGED}  # what no visitor can give
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


def methods_for(*, pipeline: bool, model: bool) -> list[Method]:
    """The registered methods that the page can fit, for what draws, for what classifies and retrieves, or for both.

    Those that act on images are left out: the page changes texts alone.
    """
    suited = [m for m in METHODS.values() if (pipeline and m.pipelines) or (model and m.models)]
    return [method for method in suited if not method.needs & _UNMET and method.side == "text"]


def check_text(text: object, name: str) -> str:
    """`text` on one line, without control characters.

    Raises:
        InvalidInputError: it is no text, empty, or longer than 300 characters.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"{name}: expected a text, got {type(text).__name__}")
    whole = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be written anywhere
    line = " ".join(_CONTROL.sub(" ", whole).split())
    if not line:
        raise InvalidInputError(f"{name}: it is empty; write a few words, such as 'A photo of a doctor.'")
    if len(line) > LONGEST:
        raise InvalidInputError(f"{name}: {len(line):,} characters; the most is {LONGEST}, so make it shorter")
    return line


def check_lines(text: object, name: str, least: int) -> tuple[str, ...]:
    """The different lines of `text`, each checked as `check_text` does.

    Raises:
        InvalidInputError: fewer than `least` lines or more than 24.
    """
    given = text.splitlines() if isinstance(text, str) else text
    if not isinstance(given, Sequence):
        raise InvalidInputError(f"{name}: expected lines of text, got {type(given).__name__}")
    if len(given) > 10 * MANY_LINES:
        raise InvalidInputError(f"{name}: {len(given):,} lines; the most is {MANY_LINES}")
    lines = dict.fromkeys(check_text(line, name) for line in given if not isinstance(line, str) or line.strip())
    if not least <= len(lines) <= MANY_LINES:
        raise InvalidInputError(
            f"{name}: expected {least} to {MANY_LINES} different lines, got {len(lines)}; write one per line"
        )
    return tuple(lines)


def _between(value: object, low: float, high: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise InvalidInputError(f"{name}: expected a number from {low:g} to {high:g}, got {value!r}")
    if not low <= value <= high:
        raise InvalidInputError(f"{name}: expected a number from {low:g} to {high:g}, got {value:g}")
    return value


def _whole(value: object, low: int, high: int, name: str) -> int:
    found = _between(value, low, high, name)
    if found != int(found):
        raise InvalidInputError(f"{name}: expected a whole number, got {found:g}")
    return int(found)


def _lam(value: object) -> float | None:
    """A number, or the text of one; None and "" are the preset."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        told = repr(str(value)[:20])
        raise InvalidInputError(f"lambda: expected a number, or nothing for the paper's, got {told}") from None
    return _between(number, 0, 1e9, "lambda")


def own_values(words: str) -> dict[str, list[str]]:
    """Value -> words, from lines "value: word, other word"; a line without a colon is its own word.

    Raises:
        InvalidInputError: fewer than two values, a value without words, or one that stands twice.
    """
    values: dict[str, list[str]] = {}
    for line in check_lines(words, OWN, least=2):
        value, colon, rest = line.partition(":")
        named = [word.strip() for word in (rest if colon else value).split(",") if word.strip()]
        if not value.strip() or not named or value.strip() in values:
            raise InvalidInputError(f"{OWN}: expected 'value: word, other word', each value once, got {line!r}")
        values[value.strip()] = named
    return values


def own_set(words: str) -> PromptSet:
    """A prompt set from a visitor's words (see `own_values`), paired over the professions of the paper.

    Raises:
        InvalidInputError, PromptSetError: words that make no pairs.
    """
    people = load_prompts("professions-gender")
    return make_prompt_set(OWN, own_values(words), people.class_names, test_concepts=people.held_out_class_names)


@dataclass(frozen=True)
class Mitigation:
    """Which attributes to mitigate, and how; arguments as of `vldebias.debias`.

    attributes: keys of ATTRIBUTES. words: lines of an attribute in the visitor's own words, or "". method: a name in
    METHODS. lam: None is the preset of the paper.
    """

    attributes: tuple[str, ...] = ("gender",)
    words: str = ""
    method: str = PRESET
    lam: float | None = None
    strength: float = 1.0
    keep_stated: bool = True

    @classmethod
    def of(
        cls,
        attributes: object,
        words: object = "",
        method: object = PRESET,
        lam: object = None,
        strength: object = 1.0,
        keep_stated: object = True,
    ) -> Mitigation:
        """From what a form or a client sends.

        Raises:
            InvalidInputError, PromptSetError: a value that is not on offer; the message names it.
        """
        chosen = (attributes,) if isinstance(attributes, str) else attributes or ()
        if not isinstance(chosen, Sequence) or not all(isinstance(name, str) for name in chosen):
            raise InvalidInputError(f"attributes: expected some of {', '.join(ATTRIBUTES)}, got {attributes!r:.80}")
        strangers = [name for name in chosen if name not in ATTRIBUTES]
        if strangers:
            raise InvalidInputError(f"attributes: expected some of {', '.join(ATTRIBUTES)}, got {strangers[:3]}")
        if words is not None and not isinstance(words, str):
            raise InvalidInputError(f"{OWN}: expected lines of text, got {type(words).__name__}")
        own = words or ""
        if not chosen and not own.strip():
            raise InvalidInputError("attributes: none is chosen; choose one, or write your own words")
        known = [one.name for one in methods_for(pipeline=True, model=True)]
        if method not in (None, "automatic", *known):
            close = did_you_mean(str(method)[:80], known)
            raise InvalidInputError(f"method: expected one of {', '.join(known)}, got {method!r:.80}; {close}")
        found = cls(
            attributes=tuple(dict.fromkeys(chosen)),
            words=own.strip(),
            method=PRESET if method in (None, "automatic") else str(method),
            lam=_lam(lam),
            strength=float(_between(strength, 0, 1, "strength")),
            keep_stated=bool(keep_stated),
        )
        assert found.sets  # read them now: a set that cannot be made is told before anything is drawn
        return found

    @cached_property
    def sets(self) -> tuple[PromptSet, ...]:
        """The prompt sets, that of the own words last."""
        shipped = tuple(load_prompts(ATTRIBUTES[name]) for name in self.attributes)
        return (*shipped, own_set(self.words)) if self.words else shipped

    @property
    def names(self) -> tuple[str, ...]:
        """What the page calls each of `sets`."""
        return (*self.attributes, OWN) if self.words else self.attributes

    def stated(self, text: str) -> tuple[str, ...]:
        """The words by which `text` states an attribute; empty where it states none, or where such are not kept."""
        words = tuple(dict.fromkeys(word for one in self.sets for word in one.stated_words))
        return StatedWords(words).find(text) if words and self.keep_stated else ()


@dataclass(frozen=True)
class Drawing:
    """What to draw: `number` pictures of a prompt; picture i starts from the noise of seed + i on every side.

    beside: methods that are drawn of the same noise too, fitted with what their presets say.
    """

    prompt: str
    number: int = 4
    seed: int = 0
    steps: int = 20
    guidance: float = 3.0
    beside: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, prompt: object, number: object, seed: object, steps: object, guidance: object, beside: object = ()
    ) -> Drawing:
        """From what a form or a client sends.

        Raises:
            InvalidInputError: a value out of its range; the message names it.
        """
        return cls(
            prompt=check_text(prompt, "prompt"),
            number=_whole(number, 1, MOST_PICTURES, "pictures"),
            seed=_whole(seed, 0, LARGEST_SEED, "seed"),
            steps=_whole(steps, 1, MOST_STEPS, "steps"),
            guidance=float(_between(guidance, 0, MOST_GUIDANCE, "guidance")),
            beside=_methods_beside(beside),
        )


def _methods_beside(given: object) -> tuple[str, ...]:
    known = [one.name for one in methods_for(pipeline=True, model=False)]
    found = dict.fromkeys(given) if isinstance(given, (list, tuple)) and all(one in known for one in given) else None
    if found is None or len(found) > MOST_BESIDE:
        raise InvalidInputError(f"beside: expected at most {MOST_BESIDE} of {', '.join(known)}, got {given!r:.80}")
    return tuple(found)


# ---- settings in an address ------------------------------------------------------------------------------------


def link(drawing: Drawing, mitigation: Mitigation) -> str:
    """The query of an address that `from_link` reads; what is as by default is left out."""
    told = asdict(drawing) | asdict(mitigation) | {"attributes": ",".join(mitigation.attributes)}
    told |= {"keep_stated": int(mitigation.keep_stated), "beside": ",".join(drawing.beside)}
    usual = {"words": "", "lam": None, "beside": ""}
    return urlencode({name: value for name, value in told.items() if name not in usual or value != usual[name]})


def from_link(query: Mapping[str, str], usual: Drawing) -> tuple[Drawing, Mitigation] | None:
    """The settings in the query of an address, those of `usual` where it says nothing; None where it has none.

    Raises:
        InvalidInputError, PromptSetError: a value that is not on offer; the message names it.
    """
    names = (*Drawing.__dataclass_fields__, *Mitigation.__dataclass_fields__)
    given = {name: query[name] for name in names if name in query}
    if not given:
        return None
    numbers = {name: _number(given[name], name) for name in ("number", "seed", "steps", "guidance") if name in given}
    strength, kept = given.get("strength", "1"), given.get("keep_stated", "1")
    beside = {"beside": [name for name in given.get("beside", "").split(",") if name]}
    if kept not in ("0", "1"):
        raise InvalidInputError(f"keep_stated: expected 0 or 1, got {kept!r:.40}")
    mitigation = Mitigation.of(
        [name for name in given.get("attributes", "gender").split(",") if name],
        given.get("words", ""),
        given.get("method"),
        given.get("lam"),
        _number(strength, "strength"),
        kept == "1",
    )
    return Drawing.of(**asdict(usual) | {"prompt": given.get("prompt", usual.prompt)} | numbers | beside), mitigation


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(f"{name}: expected a number, got {text!r:.40}") from None
