"""Load and create prompt sets, and find the words that text uses to state an attribute."""

import hashlib
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain, combinations, product
from math import comb
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    create_model,
)

from vldebias.errors import RENAMED, InvalidInputError, check_arguments, check_kind, shortened
from vldebias.prompts.english.words import begins_with_person
from vldebias.utils.files import explain, packaged, read_yaml, write_atomically
from vldebias.utils.formats import FORMAT, check_format
from vldebias.utils.markup import html_table
from vldebias.utils.names import check_path, is_file_of_set, kind_of_path, packaged_set

MAX_PAIRS = 200_000
_LISTS = (
    "spurious", "classes", "class_names", "held_out_classes", "held_out_class_names",
    "stated_words",
)  # fmt: skip
# Keys of a recipe that a prompt set contains without changes.
_COPIED = {"adjectives", "phrase", "languages", "templates"} | {
    "description", "source", "limits", "note",
}  # fmt: skip
# A word is a sequence of letters and digits. In Han and kana text, every character counts as a
# word.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)
# The article depends on the sound: "university" and "one" take "a", a silent h takes "an".
_CONSONANT_SOUND = re.compile(
    r"uni(?![mn]|d(?!i))|unanim|us[aeiu]|ut[aeio]|ur[aeiou]|ubiq|uk[ru]|ugand|uygh|eu|ewe|onc?e\b",
    re.IGNORECASE,
)
_VOWEL_SOUND = re.compile(r"[aeiou]|hour|honest|honou?r|heir", re.IGNORECASE)

_PERSON = " person"  # ends a phrase that stands for the words before any noun for a person

T = TypeVar("T")
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Texts = tuple[_Text, ...]
_WordsOfValues = dict[_Text, Annotated[_Texts, Field(min_length=1)]]
_Variants = tuple[Annotated[_Texts, Field(min_length=2)], ...]


class StatedWords:
    """Find a prompt set's words in text.

    Matches entire words and ignores case: "man" is found in "Man," and "man's", but not in
    "manager". All characters other than letters and digits separate words, so "dark-skinned" equals
    "dark skinned", even as decoded by a tokenizer ("dark - skinned"). "male" is also found in
    "male-dominated". This errs on the safe side, because the prompt then stays unchanged. A phrase
    that ends with "person" stands for the words before any noun for a person: "white person" is
    found in "a white doctor", but not in "a doctor in a white coat".
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._entries: dict[str, str] = {}
        for word in words:
            self._entries.setdefault(self.split(word), word)
        if "" in self._entries:
            raise InvalidInputError(
                f"stated words: got {self._entries['']!r}; expected letters or digits"
            )
        before = {entry.removesuffix(_PERSON) for entry in self._entries if entry.endswith(_PERSON)}
        # Try long phrases first, so that "white woman" is not matched as "white".
        longest_first = "|".join(sorted(before.union(self._entries), key=len, reverse=True))
        self._pattern = re.compile(rf"(?<!\S)(?:{longest_first})(?!\S)")

    @staticmethod
    def split(text: str) -> str:
        """Return the lowercase words in a text, separated by spaces."""
        return " ".join(_WORD.findall(_folded(text)))

    def find(self, text: str) -> tuple[str, ...]:
        """Return the words that `text` contains, without repetition, in order of appearance.

        Words are spelled as they were passed to the constructor. Matches do not overlap, and the
        longest one wins: "white woman" is one phrase.
        """
        words = self.split(text)
        found: dict[str, None] = {}
        for match in self._pattern.finditer(words):
            phrase = match[0]
            if phrase not in self._entries:
                following = words[match.end() :].split(maxsplit=3)
                phrase = f"{phrase}{_PERSON}" if begins_with_person(following) else ""
            if phrase:  # without words, the pattern only matches ""
                found[self._entries[phrase]] = None
        return tuple(found)


def _folded(text: str) -> str:
    """Return a string in lowercase, with full-width characters replaced by their usual forms."""
    return unicodedata.normalize("NFKC", text).casefold()


def append_word(text: str, word: str) -> str:
    """Append a word to a text, and correct the "a" or "an" before it.

    Args:
        text: the text, which may end with an article.
        word: the word to append, without an article.

    >>> [append_word("a ", word) for word in ("Asian", "doctor", "university", "hour")]
    ['an Asian', 'a doctor', 'a university', 'an hour']
    """
    has_vowel_sound = _VOWEL_SOUND.match(word) and not _CONSONANT_SOUND.match(word)
    n = "n" if has_vowel_sound else ""
    return re.sub(r"\b(a)n? $", rf"\g<1>{n} ", text, flags=re.IGNORECASE) + word


def fill(template: str, **words: str) -> str:
    """Fill the slots in a template, and correct the "a" or "an" before each slot.

    Args:
        template: a text with slots in braces.
        words: the words for all slots, by name.

    Raises:
        InvalidInputError: If the template contains other slots or single braces.

    >>> fill("A photo of a {attribute} {concept}.", attribute="Asian", concept="architect")
    'A photo of an Asian architect.'
    """
    *parts, end = re.split(r"\{([^{}]*)\}", template)
    texts = parts[::2]
    slots = parts[1::2]
    if set(slots) != words.keys() or set("{}").intersection("".join([*texts, end])):
        expected = " and ".join(f"{{{slot}}}" for slot in words) or "no {slot}"
        raise InvalidInputError(f"template: got {template!r}; expected {expected}")
    filled = ""
    for text, slot in zip(texts, slots, strict=True):
        filled += append_word(text, words[slot])
    return filled + end


def _pairs_of(variants: Iterable[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """Return all pairs of prompts within each group, in group order."""
    return tuple(chain.from_iterable(combinations(group, 2) for group in variants))


@dataclass(frozen=True)
class PromptSet:
    """Prompts about an attribute that should not affect predictions.

    See also docs/how-to/attribute.md.

    Attributes:
        name: the stem of its YAML file, or the name passed to `make_prompt_set`.
        variants: tuples of prompts that differ only in the attribute. Any two prompts in a tuple
            form a pair.
        spurious: prompts that describe only the attribute (columns of A in
            P0 = I - A (A^T A)^+ A^T).
        classes: the class prompts, whose differences should be preserved. There is one per name in
            `class_names`.
        held_out_variants: the variants for held-out concepts.
        held_out_classes: the class prompts for held-out concepts.
        held_out_class_names: the names of these classes.
        attributes: the words for each value of the attribute.
        templates: the templates for `variants`, or empty if the variants were listed explicitly.
        stated_words: the words and phrases a prompt uses to state the attribute (see
            `StatedWords`).
        adjectives: the adjective before a noun for each value ("blind"). If empty, the adjectives
            in `attributes` are used.
        phrase: the phrase after a noun for each value ("who is deaf"). If empty, adjectives are
            used.
        languages: adjectives by language code and value, such as {"de": {"blind": "blind"}}.
        parts: the sets for individual attributes, if there are several. Solve them jointly with one
            term each, because the attribute with the most pairs would dominate the pooled
            `variants`.
        description: the purpose of the set.
        source: the origin of the set.
        limits: the limitations of the set.
        note: any other notes.

    Raises:
        InvalidInputError: If a value is not a string, a group has only one prompt, a prompt is
            repeated, or classes have no names.

    >>> from vldebias import load_prompts
    >>> gender = load_prompts("gender")
    >>> gender.pairs[0]
    ('A photo of a male person.', 'A photo of a female person.')
    >>> gender.values_in("A photo of a female doctor.")
    ('female',)
    """

    name: str
    variants: Annotated[_Variants, Field(min_length=1)]
    spurious: _Texts = ()
    classes: _Texts = ()
    class_names: _Texts = ()
    held_out_variants: _Variants = ()
    held_out_classes: _Texts = ()
    held_out_class_names: _Texts = ()
    attributes: dict[_Text, _Texts] = field(default_factory=dict, hash=False)
    templates: _Texts = ()
    stated_words: _Texts = ()
    adjectives: dict[_Text, _Text] = field(default_factory=dict, hash=False)
    phrase: dict[_Text, _Text] = field(default_factory=dict, hash=False)
    languages: dict[_Text, dict[_Text, _Text]] = field(default_factory=dict, hash=False)
    parts: tuple["PromptSet", ...] = ()
    description: str = ""
    source: str = ""
    limits: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        try:
            vars(self).update(_CHECKS.model_validate(vars(self)))
        except ValidationError as error:
            raise InvalidInputError(f"PromptSet: {explain(error)}") from None
        self._check_repetitions()
        for part in ("", "held_out_"):
            names = getattr(self, f"{part}class_names")
            n = len(getattr(self, f"{part}classes"))
            if len(names) != n:
                raise InvalidInputError(
                    f"{part}class_names: got {len(names)} names; expected {n}, one per class"
                )
        self._check_words_of_values()

    def _check_repetitions(self) -> None:
        """Raise InvalidInputError if a prompt, a pair or a word is listed twice."""
        variants = (*self.variants, *self.held_out_variants)
        entries_of_key: dict[str, Sequence[object]] = {key: getattr(self, key) for key in _LISTS}
        entries_of_key |= {f"variants[{i}]": group for i, group in enumerate(variants)}
        # A prompt may occur in several tuples, but not in both a training and a held-out one.
        trained = dict.fromkeys(chain(*self.variants))
        held_out = dict.fromkeys(chain(*self.held_out_variants))
        entries_of_key["held_out_variants"] = (*trained, *held_out)
        entries_of_key["variants"] = _pairs_of(map(sorted, variants))
        for key, entries in entries_of_key.items():
            if len(set(entries)) < len(entries):
                repeated = Counter(entries).most_common(1)[0][0]
                raise InvalidInputError(f"{key}: got {repeated!r} twice; expected it once")

    def _check_words_of_values(self) -> None:
        """Raise InvalidInputError unless `adjectives` or `phrase` cover every value."""
        if self.adjectives and self.phrase:
            raise InvalidInputError(
                "got both adjectives and phrase; expected either adjectives before the noun or"
                " phrases after it"
            )
        words_of_key = {"adjectives": self.adjectives, "phrase": self.phrase}
        words_of_key |= {f"languages.{code}": words for code, words in self.languages.items()}
        for key, word_of_value in words_of_key.items():
            different = set(word_of_value).symmetric_difference(self.attributes)
            if word_of_value and different:
                raise InvalidInputError(
                    f"{key}: got {list(word_of_value)}; expected each value of"
                    f" {list(self.attributes)}, add or remove {min(different)!r}"
                )

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return all pairs of prompts within each group, in group order."""
        return _pairs_of(self.variants)

    @cached_property
    def held_out_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return all pairs of prompts within each held-out group."""
        return _pairs_of(self.held_out_variants)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Return all distinct prompts to embed: class prompts, spurious prompts and variants."""
        classes = (*self.classes, *self.held_out_classes)
        variants = chain(*self.variants, *self.held_out_variants)
        texts_of_parts = chain(*(part.texts for part in self.parts))
        return tuple(dict.fromkeys(chain(classes, self.spurious, variants, texts_of_parts)))

    @cached_property
    def hash(self) -> str:
        """Return the SHA-256 of the prompts and words, ignoring name, prose and formatting."""
        content: dict[str, object] = {key: getattr(self, key) for key in _LISTS}
        # Stored results contain hashes with these keys.
        content |= {"groups": self.variants, "held_out_groups": self.held_out_variants}
        content["attributes"] = list(self.attributes.items())
        content["parts"] = [part.hash for part in self.parts]
        # Omit these if empty, so that the hashes of older sets do not change.
        for key in ("adjectives", "phrase", "languages"):
            if getattr(self, key):
                content[key] = list(getattr(self, key).items())
        text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def values_in(self, text: str) -> tuple[str, ...]:
        """Return the values that a text names, in order.

        The longest match wins: "an East Asian man" does not also name "Asian".
        """
        words, words_of_value = self._words_of_values
        named = set(words.find(text))
        return tuple(value for value, spelled in words_of_value.items() if named & spelled)

    @cached_property
    def _words_of_values(self) -> tuple[StatedWords, dict[str, set[str]]]:
        words_of_value = defaultdict[str, set[str]](set)
        for part in self.parts or (self,):
            for value, words in part.attributes.items():
                words_of_value[value].update(map(StatedWords.split, words))
        return StatedWords(chain(*words_of_value.values())), words_of_value

    def by_value(self, texts: Iterable[str] | None = None) -> dict[str, tuple[str, ...]]:
        """Group texts by the value that they name, as needed for a zero-shot classifier.

        Texts that name no value or several values are left out.

        Args:
            texts: texts to choose from. If None, the spurious prompts are used if they cover every
                value, and the variants otherwise.

        Raises:
            InvalidInputError: If `texts` is None and `names_values` is False.
        """
        if texts is not None:
            return self._sorted_by_value(texts)
        texts_of_value = self._sorted_by_value(self.spurious)
        if not all(texts_of_value.values()):
            texts_of_value = self._sorted_by_value(chain(*self.variants))
        empty = [value for value, prompts in texts_of_value.items() if not prompts]
        has_one_attribute = not self.parts and len(self.attributes) > 1
        if empty or not has_one_attribute:
            raise InvalidInputError(
                f"prompt set {self.name!r}: got {max(1, len(self.parts))} attributes and no prompt"
                f" for {empty}; expected one attribute, and for each value a prompt that names only"
                " this value, such as one of `spurious`"
            )
        return texts_of_value

    def _sorted_by_value(self, texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the texts that name exactly one value, by value."""
        _, words_of_value = self._words_of_values
        texts_of_value: dict[str, list[str]] = {value: [] for value in words_of_value}
        for text in dict.fromkeys(texts):
            values = self.values_in(text)
            if len(values) == 1:
                texts_of_value[values[0]].append(text)
        return {value: tuple(prompts) for value, prompts in texts_of_value.items()}

    @property
    def names_values(self) -> bool:
        """Return whether the set has one attribute, and prompts for each of its values."""
        with suppress(InvalidInputError):
            return bool(self.by_value())
        return False

    def __repr__(self) -> str:
        counts = (
            f"{len(self.classes)} classes, {len(self.spurious)} spurious, {len(self.pairs)} pairs"
        )
        return f"PromptSet({self.name!r}, {counts}, hash={self.hash[:12]})"

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks: values with their words, and example prompts."""
        rows: list[tuple[str, str, str]] = []
        for part in self.parts or (self,):
            rows += [("value", value, ", ".join(words)) for value, words in part.attributes.items()]
        kinds = {"class prompt": self.classes, "spurious prompt": self.spurious}
        for kind, texts in kinds.items():
            rows += [(kind, text, "") for text in texts[:3]]
        rows += [("pair", first, second) for first, second in self.pairs[:3]]
        return html_table(repr(self), ("kind", "text", "words or partner"), rows)

    def to_yaml(self, path: str | Path) -> Path:
        """Write a YAML file for `load_prompts`.

        The set is loaded under the stem of the file name.

        Args:
            path: the path of the file, which must end in .yaml.

        Returns:
            The path.

        Raises:
            InvalidInputError: If the path does not end in .yaml, or the set was constructed
                directly or modified.
        """
        path = Path(path)
        recipe = vars(self).get("recipe")
        if path.suffix != ".yaml":
            raise InvalidInputError(f"path: got {str(path)!r}; expected a name ending in .yaml")
        if recipe is None:
            raise InvalidInputError(
                f"{self!r}: cannot write a set that was constructed directly or modified; create it"
                " with make_prompt_set"
            )
        content = recipe.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        content = {FORMAT: recipe.format_version, **content}
        import yaml

        return write_atomically(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


_FIELDS: dict[str, Any] = {
    key: (kind, ...) for key, kind in get_type_hints(PromptSet, include_extras=True).items()
}
_CHECKS = create_model("PromptSet", **_FIELDS)
setattr(PromptSet, "__init__", check_arguments()(PromptSet.__init__))  # noqa: B010  (for mypy)


class _Concepts(BaseModel, extra="forbid"):
    """Concepts for the pairs, plus the concepts in the set named by `like`."""

    like: _Text = ""
    train: _Texts = ()
    test: _Texts = ()


class _Stated(BaseModel, extra="forbid"):
    """Stated words. Those in `before_person` count only before a noun for people."""

    like: _Text = ""
    words: _Texts = ()
    before_person: _Texts = ()


def _mapping(key: str) -> BeforeValidator:
    """Return a validator that converts a list to a mapping with only this key."""

    def as_mapping(content: object) -> object:
        return content if isinstance(content, dict) else {key: content}

    return BeforeValidator(as_mapping)


class Recipe(BaseModel, extra="forbid"):
    """Schema for prompt set files, whose keys are described in prompts/README.md."""

    format_version: Literal[1] = 1
    description: _Text = ""
    source: _Text = ""
    limits: _Text = ""
    note: _Text = ""
    classes: dict[_Text, _Text] = {}
    spurious: _Texts = ()
    variants: _Variants = ()
    attribute: Annotated[_WordsOfValues, Field(min_length=2)] = {}
    templates: _Texts = ()
    class_template: _Text = "A photo of a {concept}."
    concepts: Annotated[_Concepts, _mapping("train")] = _Concepts()
    stated_words: Annotated[_Stated, _mapping("words")] | None = None
    adjectives: dict[_Text, _Text] = {}
    phrase: dict[_Text, _Text] = {}
    languages: dict[_Text, dict[_Text, _Text]] = {}
    parts: _Texts = ()


def _build(content: Mapping[str, object], name: str) -> PromptSet:
    """Build a prompt set from the content of a file, or raise ValueError if it is invalid."""
    recipe = Recipe.model_validate(content)
    # Add the concepts of the set named by `like`.
    trained = recipe.concepts.train
    held_out = recipe.concepts.test
    if recipe.concepts.like:
        like = _packaged(recipe.concepts.like)
        trained += like.class_names
        held_out += like.held_out_class_names
    _check_recipe(recipe, trained, held_out)
    # Fill each spurious prompt's slot with each of the attribute's words.
    words = list(chain(*recipe.attribute.values()))
    spurious: list[str] = []
    for template in recipe.spurious:
        if words and "{" in template:
            spurious += [fill(template, attribute=word) for word in words]
        else:
            spurious.append(fill(template))
    classes = recipe.classes or _class_prompts(recipe, trained)
    held_out_classes = _class_prompts(recipe, held_out)
    fields: dict[str, Any] = {
        "spurious": tuple(spurious),
        "stated_words": _stated_words_of(recipe),
        "variants": recipe.variants + _filled_variants(recipe, trained),
        "classes": tuple(classes.values()),
        "class_names": tuple(classes),
        "held_out_variants": _filled_variants(recipe, held_out),
        "held_out_classes": tuple(held_out_classes.values()),
        "held_out_class_names": tuple(held_out_classes),
    }
    # A set with several attributes pools the prompts of its parts.
    parts: list[PromptSet] = []
    for part in map(_packaged, recipe.parts):
        parts += part.parts or (part,)
    if parts:
        for key, texts in fields.items():
            fields[key] = _joined(texts, [getattr(part, key) for part in parts])
    prompt_set = PromptSet(
        name=name,
        parts=tuple(parts),
        attributes=recipe.attribute,
        **fields,
        **recipe.model_dump(include=_COPIED),
    )
    vars(prompt_set)["recipe"] = recipe  # for to_yaml; dataclasses.replace does not copy it
    return prompt_set


def _check_recipe(recipe: Recipe, trained: Sequence[str], held_out: Sequence[str]) -> None:
    """Raise ValueError if a recipe does not define its pairs, or defines too many."""
    # Pairs come from templates, from groups or from parts.
    keys = recipe.model_fields_set & {"templates", "concepts", "variants", "parts"}
    is_known = keys in ({"templates", "concepts"}, {"variants"}, {"parts"})
    has_words = bool(recipe.attribute) and bool(trained)
    can_fill = has_words or not recipe.templates
    if not is_known or not can_fill:
        received = " and ".join(sorted(keys)) or "none"
        raise ValueError(
            f"pairs: got {received}; expected variants, parts, or an attribute with templates and"
            " training concepts"
        )
    words = list(chain(*recipe.attribute.values()))
    for template, word in product(recipe.templates, words):
        if re.search(r"\ban? \{attribute\}", template) and re.match(r"(?:an?|the) ", word):
            raise ValueError(
                f"attribute: got {word!r}; expected words without an article, since the template is"
                f" {template!r}. For whole sentences, pass `variants` to load_prompts"
            )
    lengths = {len(value_words) for value_words in recipe.attribute.values()}
    is_uneven = bool(recipe.templates) and len(lengths) > 1
    if len(set(words)) < len(words) or is_uneven:
        raise ValueError(
            f"attribute: got {recipe.attribute}; expected each word once, and the same number"
            " of words per value"
        )
    # Count the pairs before building them: a file can request millions.
    pairs = sum(comb(len(group), 2) for group in recipe.variants)
    if recipe.templates:
        concepts = len(trained) + len(held_out)
        count = len(recipe.templates) * concepts * max(lengths)
        pairs += count * comb(len(recipe.attribute), 2)
    if pairs > MAX_PAIRS:
        raise ValueError(f"pairs: got {pairs:,} pairs; expected at most {MAX_PAIRS:,}")


def _stated_words_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the words a prompt uses to state the attribute."""
    stated = recipe.stated_words
    if stated is None:
        words = chain(*recipe.attribute.values())
        return _joined(words, [recipe.adjectives.values(), recipe.phrase.values()])
    known = list(stated.words)
    if stated.like:
        known += _packaged(stated.like).stated_words
    # "white" states a race in "a white doctor", not in "a doctor in a white coat".
    known += [f"{word}{_PERSON}" for word in stated.before_person]
    return _joined(known, [])


def _class_prompts(recipe: Recipe, concepts: Sequence[str]) -> dict[str, str]:
    """Return the class prompts, which do not mention the attribute, by concept."""
    return {concept: fill(recipe.class_template, concept=concept) for concept in concepts}


def _filled_variants(recipe: Recipe, concepts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return one group per concept, template and row of corresponding words."""
    if not recipe.templates:
        return ()
    rows = list(zip(*recipe.attribute.values(), strict=True))
    variants: list[tuple[str, ...]] = []
    for concept, template, row in product(concepts, recipe.templates, rows):
        prompts = [fill(template, attribute=word, concept=concept) for word in row]
        variants.append(tuple(prompts))
    return tuple(variants)


def _joined(first: Iterable[T], rest: Iterable[Iterable[T]]) -> tuple[T, ...]:
    """Return the distinct entries of all arguments, in order."""
    return tuple(dict.fromkeys(chain(first, *rest)))


@cache  # packaged sets do not change
def _packaged(name: str) -> PromptSet:
    """Return a packaged set."""
    return load_prompts(packaged_set(name))


def list_prompts() -> list[str]:
    """Return the sorted names of the packaged prompt sets.

    See also docs/how-to/attribute.md.

    >>> "gender" in list_prompts()
    True
    """
    return list(packaged("prompts"))


def load_prompts(name_or_path: str | Path | Mapping[str, object] | PromptSet) -> PromptSet:
    """Load a prompt set.

    See also docs/how-to/attribute.md.

    Args:
        name_or_path: the name of a packaged set, the path of a YAML file (with a folder or the
            extension .yaml), the content of such a file as a mapping (with a `name`), or a
            PromptSet, which is returned unchanged.

    Returns:
        The prompt set.

    Raises:
        InvalidInputError: If the name is unknown, or the file cannot be read or does not match the
            schema.

    >>> prompts = load_prompts("gender")
    >>> prompts.name, list(prompts.attributes)
    ('gender', ['male', 'female'])
    """
    if isinstance(name_or_path, PromptSet):
        return name_or_path
    if isinstance(name_or_path, Mapping):
        content = dict(name_or_path)
        _check_mapping(content)
        name = str(content.pop("name", "custom"))
        return _checked(content, name, name)
    expected = "a prompt set, such as 'gender' (see vldebias.list_prompts()), or its .yaml file"
    check_kind("attribute", name_or_path, str | Path, expected)
    if isinstance(name_or_path, str) and not is_file_of_set(name_or_path):
        if name_or_path not in packaged("prompts"):
            _refuse_name(name_or_path)
        return _packaged(name_or_path)
    path = Path(name_or_path).expanduser()
    content = read_yaml(path)
    return _checked(content, str(content.pop("name", path.stem)), str(path))


def _check_mapping(content: Mapping[str, object]) -> None:
    """Raise an error for a mapping of values to shares or to words, which is no prompt set."""
    if all(isinstance(share, int | float) for share in content.values()):
        raise InvalidInputError(
            f"attribute: got the shares {content}; expected a prompt set, such as 'gender';"
            " pass the shares as shares="
        )
    fields = {"name", *Recipe.model_fields}
    # A field's former name is answered with its new one later.
    called = {new for name in content for new in (name, *RENAMED.get(name, ()))}
    if not fields & called:
        entries = content.items()
        words = {value: [text] if isinstance(text, str) else text for value, text in entries}
        raise InvalidInputError(
            f"attribute: got words for the values {', '.join(map(str, content))}; expected a prompt"
            f" set: vldebias.make_prompt_set('custom', {shortened(str(words), 200)},"
            " concepts=['doctor', 'nurse']); if the words are not adjectives, balanced prompts also"
            " need phrase=, such as {'with': 'with glasses', 'without': 'without glasses'}"
        )


def _refuse_name(name: str) -> None:
    """Raise an error that says what a text is, if it is not the name of a prompt set."""
    names = [part.strip() for part in name.split(",")]
    if len(names) > 1 and all(part in packaged("prompts") for part in names):
        options = " ".join(f"--attribute {part}" for part in names)
        raise InvalidInputError(
            f"attribute: got several names in one text, {name!r}; pass a list, {names}, or"
            f" {options} on the command line"
        )
    if len(name.split()) > 1:
        raise InvalidInputError(
            f"attribute: got the text {shortened(name, 60)!r}; expected a prompt set, such as"
            " 'gender' (see vldebias.list_prompts()). Pass texts as prompts, to the model or to"
            " vldebias.balance_prompts(prompts, attribute)"
        )
    if kind_of_path(name) == "edit":
        check_path(name)  # the error says what the folder is
    if Path(name).suffix:
        raise InvalidInputError(
            f"attribute: got the file {name!r}; expected a prompt set, such as 'gender', or its"
            " .yaml file. To balance a file of prompts: vldebias prompts balance"
            f" {name} --attribute gender"
        )
    for known in ("gender", "race", "age", "skin-tone"):
        prompt_set = _packaged(known)
        if prompt_set.values_in(name) or name.lower() in prompt_set.stated_words:
            raise InvalidInputError(
                f"attribute: {name!r} is a value of {known!r}; expected the prompt set, {known!r}"
            )
    packaged_set(name)  # raises an error with similar names


def _checked(content: Mapping[str, object], name: str, place: str) -> PromptSet:
    """Build a set, and include the source of its content in error messages."""
    check_format(content, place, missing=1)
    try:
        return _build(content, name)
    except ValidationError as error:
        problem: object = explain(error, "", Recipe.model_fields)
    except ValueError as error:
        problem = error
    raise InvalidInputError(
        f"{place}: {problem}; see help(vldebias.make_prompt_set),"
        " or let `vldebias prompts new` write the file"
    )


@check_arguments()
def make_prompt_set(  # noqa: PLR0913 - the keys of a recipe
    name: str,
    attribute: Mapping[str, Sequence[str]],
    concepts: Sequence[str],
    templates: Sequence[str] = ("A photo of a {attribute} {concept}.",),
    spurious: Sequence[str] = ("A photo of a {attribute}.",),
    *,
    test_concepts: Sequence[str] = (),
    class_template: str = "A photo of a {concept}.",
    stated_words: Sequence[str] = (),
    adjectives: Mapping[str, str] | None = None,
    phrase: Mapping[str, str] | None = None,
    languages: Mapping[str, Mapping[str, str]] | None = None,
) -> PromptSet:
    """Create a prompt set from word lists.

    Its pairs combine the attribute words, templates and concepts. Balanced prompts also need
    `adjectives` or `phrase`, unless the words in `attribute` are known adjectives for a person.

    See also docs/how-to/attribute.md.

    Args:
        name: the name of the set.
        attribute: the same number of words for each value, such as {"male": ["male", "man"],
            "female": ["female", "woman"]}.
        concepts: the concepts in the pairs, such as ["doctor", "nurse"].
        templates: the templates with {attribute} and {concept}. "a" becomes "an" if needed.
        spurious: templates that mention only the attribute, with {attribute}; may be empty.
        test_concepts: the concepts in the held-out variants.
        class_template: the prompt without the attribute, with {concept}.
        stated_words: the words a prompt uses to state the attribute. If empty, the words in
            `attribute` are used.
        adjectives: adjectives for balanced prompts by value, such as {"blind": "blind"}. If None,
            the known adjectives in `attribute` are used.
        phrase: phrases after the noun for balanced prompts by value, such as
            {"deaf": "who is deaf"}, instead of adjectives.
        languages: adjectives by language code and value, such as {"de": {"blind": "blind"}}. German
            adjectives have no ending, and Romance ones are in the masculine singular.

    Returns:
        The prompt set.

    Raises:
        InvalidInputError: If an argument is invalid. The message names it.

    >>> glasses = make_prompt_set(
    ...     "glasses",
    ...     {"with": ["with glasses"], "without": ["without glasses"]},
    ...     concepts=["doctor", "teacher"],
    ...     templates=["A photo of a {concept} {attribute}."],
    ...     spurious=["A photo of a person {attribute}."],
    ...     phrase={"with": "with glasses", "without": "without glasses"},
    ... )
    >>> from vldebias import balance_prompts
    >>> balance_prompts(["A photo of a doctor."] * 2, glasses, seed=0).prompts
    ['A photo of a doctor without glasses.', 'A photo of a doctor with glasses.']
    """
    content: dict[str, object] = {
        "name": name,
        "attribute": attribute,
        "templates": templates,
        "spurious": spurious,
        "concepts": {"train": concepts, "test": test_concepts},
        "class_template": class_template,
        "adjectives": adjectives or {},
        "phrase": phrase or {},
        "languages": languages or {},
        "stated_words": list(stated_words) or None,
    }
    return load_prompts(content)
