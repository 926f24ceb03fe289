"""The YAML schema of a prompt set, and the prompts that a file in it stands for: words put into templates."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictStr, ValidationError

from vldebias import errors
from vldebias.errors import PromptSetError, did_you_mean
from vldebias.files import prompt_file, read_yaml
from vldebias.prompts.stated_words import before_person

MAX_PAIRS = 200_000


def refuse(key: str, came: str, expected: str, remedy: str) -> NoReturn:
    """As `vldebias.errors.fail`, of a prompt set."""
    errors.fail(key, came, expected, remedy, PromptSetError)


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Put the file or the set in front of every PromptSetError raised inside."""
    try:
        yield
    except PromptSetError as error:
        raise PromptSetError(f"{where}: {error}") from None


# ---- templates ---------------------------------------------------------------------------------------------

_SLOT = re.compile(r"(?:\b(?P<article>[Aa])n?\s+)?\{(?P<slot>[^{}]*)\}")
# English goes by sound: "yoo" and "won" take "a" though written with a vowel, a silent h takes "an".
_CONSONANT_SOUND = re.compile(
    r"uni(?![mn]|d(?!i))|unanim|us[aeiu]|ut[aeio]|ur[aeiou]|ubiq|uk[ru]|ugand|uygh|eu|ewe|onc?e\b", re.IGNORECASE
)
_SILENT_H = re.compile(r"hour|honest|honou?r|heir", re.IGNORECASE)


def article(word: str) -> str:
    """Choose "a" or "an" by the first letters of `word`.

    A vowel takes "an", but not where it sounds like a consonant ("a university", "a European"); a silent h
    does ("an heir"). Initials go by their first letter ("a MC"): list such prompts one by one.

    >>> [article(word) for word in ("Asian", "doctor", "university", "uninsured", "hour")]
    ['an', 'a', 'a', 'an', 'an']
    """
    vowel = word[:1].lower() in set("aeiou") and not _CONSONANT_SOUND.match(word)
    return "an" if vowel or _SILENT_H.match(word) else "a"


def fill(template: str, **words: str) -> str:
    """Put words into the slots; an "a" or "an" right before a slot is made to fit, all else stays verbatim.

    >>> fill("A photo of a {attribute} {concept}.", attribute="Asian", concept="architect")
    'A photo of an Asian architect.'
    """

    def put(match: re.Match[str]) -> str:
        word = words[match["slot"]]
        if match["article"] is None:
            return word
        return f"{match['article']}{article(word)[1:]} {word}"  # keeps the capital of "A"

    return _SLOT.sub(put, template)


def check_slots(key: str, template: str, required: Collection[str] = (), optional: Collection[str] = ()) -> None:
    """Refuse a template that lacks a required slot or has another one.

    Raises:
        PromptSetError: naming `key` and the slots that are expected.
    """
    slots = {match["slot"] for match in _SLOT.finditer(template)}
    rest = _SLOT.sub("", template)
    if slots >= set(required) and slots <= {*required, *optional} and not set("{}") & set(rest):
        return
    expected = " and ".join(f"{{{slot}}}" for slot in required or optional)
    expected = expected if required else f"no placeholder but {expected}"
    refuse(key, repr(template), expected, "write it in braces, and no other braces")


# ---- the schema --------------------------------------------------------------------------------------------

_GENERATED = ("templates", "concepts")
_LISTED = ("pairs", "groups")


def _clean(text: str) -> str:
    if not text or text != text.strip():
        raise ValueError("text that is not blank, without spaces at either end")
    return text


def _bare_list_as(key: str) -> BeforeValidator:
    return BeforeValidator(lambda value: {key: value} if isinstance(value, list) else value)


_Text = Annotated[StrictStr, AfterValidator(_clean)]
_Texts = Annotated[list[_Text], Field(min_length=1)]
_Named = Annotated[dict[_Text, _Text], Field(min_length=1)]
_Groups = Annotated[list[Annotated[list[_Text], Field(min_length=2)]], Field(min_length=1)]
_Pairs = Annotated[list[Annotated[list[_Text], Field(min_length=2, max_length=2)]], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Concepts(_Strict):
    """What the pairs are about; `like` takes both lists from another set and puts them behind these."""

    like: _Text | None = None
    train: _Texts | None = None
    test: _Texts | None = None

    def names(self) -> dict[str, tuple[str, ...]]:
        """Train concepts under "", test concepts under "held_out_"."""
        train, test = list(self.train or ()), list(self.test or ())
        if self.like:
            other = _borrow(self.like, "concepts")
            train += other.train or ()
            test += other.test or ()
        if not train:
            refuse("concepts", "no train concepts", "at least one", "add 'train: [...]'")
        repeated = next((concept for concept, n in Counter([*train, *test]).items() if n > 1), None)
        if repeated:
            refuse("concepts", f"{repeated!r} twice", "each concept once, in train or in test", "take one out")
        return {"": tuple(train), "held_out_": tuple(test)}


class StatedRecipe(_Strict):
    """Words that state the attribute; `before_person` only do so in front of a word for a person."""

    like: _Text | None = None
    words: list[_Text] | None = None  # an empty list: nothing counts as stated
    before_person: _Texts | None = None

    def all_words(self) -> tuple[str, ...]:
        """These words, those of `like`, and the phrases that `before_person` makes."""
        words, adjectives = list(self.words or ()), list(self.before_person or ())
        if self.like:
            other = _borrow(self.like, "stated_words")
            words += other.words or ()
            adjectives += other.before_person or ()
        if adjectives:
            professions = _borrow("professions-gender", "concepts")
            words += before_person(adjectives, [*(professions.train or ()), *(professions.test or ())])
        if not self.model_fields_set:
            refuse("stated_words", "no words", "words, before_person or like", "add one of them")
        return tuple(dict.fromkeys(words))


class Recipe(_Strict):
    """A file of prompts/, as prompts/README.md describes it key by key."""

    description: _Text | None = None
    source: _Text | None = None
    limits: _Text | None = None
    note: _Text | None = None
    classes: _Named | None = None
    held_out_classes: _Named | None = None
    spurious: _Texts | None = None
    pairs: _Pairs | None = None
    groups: _Groups | None = None
    held_out_groups: _Groups | None = None
    attribute: Annotated[dict[_Text, _Texts], Field(min_length=2)] | None = None
    templates: _Texts | None = None
    class_template: _Text = "A photo of a {concept}."
    concepts: Annotated[Concepts, _bare_list_as("train")] | None = None
    pairing: Literal["aligned", "all"] = "aligned"
    stated_words: Annotated[StatedRecipe, _bare_list_as("words")] | None = None
    parts: _Texts | None = None

    def check_keys(self) -> None:
        """Each file writes its pairs in one way: listed, made from words, or taken from parts."""
        keys = self.model_fields_set
        ways = [way for way in (_LISTED, _GENERATED, ("parts",)) if keys.intersection(way)]
        if len(ways) != 1:
            came = " and ".join(key for way in ways for key in way if key in keys) or "no pairs"
            choice = "pairs or groups; or attribute, templates and concepts; or parts"
            refuse("pairs", came, f"one way to write them: {choice}", "choose one")
        generated = ways[0] is _GENERATED
        for key in ("attribute", *_GENERATED):
            if generated and key not in keys:
                refuse(key, "no such key", "attribute, templates and concepts together", f"add '{key}: ...'")
        for key in ("classes", "held_out_classes", "held_out_groups") if generated else ("class_template", "pairing"):
            if key in keys:
                other = "beside templates, which make it" if generated else "without templates"
                refuse(key, "this key", f"it not to be there {other}", "take it out")

    def fields(self) -> dict[str, Any]:
        """Fields of the PromptSet that it describes (a set of parts: without `groups` and `parts`)."""
        attributes = {value: tuple(words) for value, words in (self.attribute or {}).items()}
        owners: dict[str, str] = {}
        for value, words in attributes.items():
            for word in words:
                if word in owners:
                    came = f"{word!r} under {owners[word]!r} and under {value!r}"
                    refuse("attribute", came, "each word once", "take one of them out")
                owners[word] = value
        fields = {name: getattr(self, name) or "" for name in ("description", "source", "limits", "note")}
        fields |= {"attributes": attributes, "spurious": self._spurious_prompts(tuple(owners))}
        fields |= {"stated_words": tuple(owners) if self.stated_words is None else self.stated_words.all_words()}
        return fields | (self._generated(self.concepts, attributes) if self.concepts else self._listed())

    def _spurious_prompts(self, words: Sequence[str]) -> tuple[str, ...]:
        prompts: list[str] = []
        for i, template in enumerate(self.spurious or ()):
            check_slots(f"spurious[{i}]", template, optional=("attribute",))
            if "{" in template and not words:
                refuse(f"spurious[{i}]", repr(template), "an 'attribute' to fill it with", "add 'attribute: ...'")
            prompts += [fill(template, attribute=word) for word in words] if "{" in template else [template]
        return tuple(prompts)

    def _listed(self) -> dict[str, Any]:
        groups, held_out = [*(self.groups or ()), *(self.pairs or ())], self.held_out_groups or []
        _check_size([*groups, *held_out])
        fields: dict[str, Any] = {"groups": tuple(map(tuple, groups)), "held_out_groups": tuple(map(tuple, held_out))}
        for kind, classes in (("", self.classes or {}), ("held_out_", self.held_out_classes or {})):
            fields |= {f"{kind}classes": tuple(classes.values()), f"{kind}class_names": tuple(classes)}
        return fields

    def _generated(self, concepts: Concepts, attributes: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
        templates = tuple(self.templates or ())
        for i, template in enumerate(templates):
            check_slots(f"templates[{i}]", template, ("attribute", "concept"))
        check_slots("class_template", self.class_template, ("concept",))
        names = concepts.names()
        rows: list[tuple[str, ...]] = [tuple(chain(*attributes.values()))]
        if self.pairing == "aligned":
            counts = {value: len(words) for value, words in attributes.items()}
            if len(set(counts.values())) > 1:
                remedy = "give every value as many words, or write 'pairing: all' to pair every word with every other"
                refuse("attribute", f"word counts {counts}", "the same number of words for every value", remedy)
            rows = list(zip(*attributes.values(), strict=True))
        _check_size(rows, len(templates) * sum(map(len, names.values())))
        fields: dict[str, Any] = {"templates": templates}
        for kind, concept_names in names.items():
            fields[f"{kind}class_names"] = concept_names
            fields[f"{kind}classes"] = tuple(fill(self.class_template, concept=concept) for concept in concept_names)
            fields[f"{kind}groups"] = tuple(
                tuple(fill(template, attribute=word, concept=concept) for word in row)
                for concept in concept_names
                for template in templates
                for row in rows
            )
        return fields


# ---- reading and validating --------------------------------------------------------------------------------


def read_recipe(path: Path) -> Recipe:
    """Read and validate one file; an error names it and the key."""
    content = read_yaml(path, error=PromptSetError)
    with naming(str(path)):
        return validate(content)


def validate(content: object) -> Recipe:
    """Check the parsed content of a file against the schema.

    Raises:
        PromptSetError: for the first key that is unknown, missing or of the wrong kind.
    """
    if not isinstance(content, dict):
        refuse("file", _show(content), "a mapping of keys to values", "see prompts/README.md for the keys")
    _refuse_nothing(content)
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        _explain(error, content)
    recipe.check_keys()
    return recipe


def _refuse_nothing(content: Mapping[Any, Any], prefix: str = "") -> None:
    for key, value in content.items():
        if value is None:
            refuse(f"{prefix}{key}", "nothing", "a value", "write one after the colon, or take the key out")
        if isinstance(value, dict):
            _refuse_nothing(value, f"{prefix}{key}.")


def _show(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


_EXPECTED = {
    "string_type": ("text", 'put quotes around what YAML reads as something else ("no", "2020")'),
    "list_type": ("a list", "write one item per line after '- '"),
    "dict_type": ("a mapping", "write 'key: value' lines"),
    "model_type": ("a mapping", "see prompts/README.md for its keys"),
    "too_short": ("more items", "add them, or leave the key out if it is optional"),
    "too_long": ("two prompts", "use 'groups' for more than two prompts that are all paired"),
}


def _explain(error: ValidationError, content: Mapping[str, Any]) -> NoReturn:
    first = error.errors(include_url=False)[0]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    kind = first["type"]
    if kind == "extra_forbidden":
        inner: dict[str | int, type[BaseModel]] = {"concepts": Concepts, "stated_words": StatedRecipe}
        known = sorted((inner[first["loc"][0]] if len(first["loc"]) > 1 else Recipe).model_fields)
        remedy = did_you_mean(first["loc"][-1], known, "take it out")
        raise PromptSetError(f"{key}: unknown key; expected one of {', '.join(known)}; {remedy}")
    if kind == "missing":
        refuse(key, f"no such key among {sorted(map(str, content))}", "the key", f"add '{key}: ...'")
    expected, remedy = _EXPECTED.get(kind, (str(first["msg"]).removeprefix("Value error, "), "correct it"))
    if kind == "too_short":
        expected = f"at least {first['ctx']['min_length']} items"
    refuse(key, _show(first["input"]), expected, remedy)


def _borrow(name: str, key: str) -> Any:
    """What another packaged set writes under a key, literally: one level, so that there are no circles."""
    value = getattr(read_recipe(prompt_file(name)), key)
    if value is None or value.like:
        refuse(f"{key}.like", repr(name), f"a set that spells out its {key}", "name the set it takes them from")
    return value


def _check_size(rows: Sequence[Sequence[str]], times: int = 1) -> None:
    # Before the prompts are made: a file of a few lines can stand for billions of pairs.
    pairs = times * sum(len(row) * (len(row) - 1) // 2 for row in rows)
    if pairs > MAX_PAIRS:
        refuse("pairs", f"{pairs:,} pairs", f"at most {MAX_PAIRS:,}", "use fewer words, templates or concepts")
