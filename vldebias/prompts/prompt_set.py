"""Load and make prompt sets, and find the words by which a text states an attribute."""

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
from typing import Annotated, Any, get_type_hints

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    create_model,
)

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.files import explain, packaged, read_yaml, write_atomically
from vldebias.markup import html_table
from vldebias.prompts.english import lists

MAX_PAIRS = 200_000
_LISTS = (
    "spurious",
    "classes",
    "class_names",
    "held_out_classes",
    "held_out_class_names",
    "stated_words",
)
_PROSE = {"description", "source", "limits", "note", "templates"}
# A word is a run of letters and digits; Han and kana, written without spaces, are one word per
# character.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)
# English goes by sound: "yoo" and "won" take "a" though written with a vowel, a silent h takes
# "an".
_CONSONANT_SOUND = re.compile(
    r"uni(?![mn]|d(?!i))|unanim|us[aeiu]|ut[aeio]|ur[aeiou]|ubiq|uk[ru]|ugand|uygh|eu|ewe|onc?e\b",
    re.IGNORECASE,
)
_VOWEL_SOUND = re.compile(r"[aeiou]|hour|honest|honou?r|heir", re.IGNORECASE)

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Texts = tuple[_Text, ...]
_Groups = tuple[Annotated[_Texts, Field(min_length=2)], ...]


class StatedWords:
    """Find the words of a prompt set in a text.

    Whole words are matched, ignoring case: "man" is found in "Man," and "man's", not in "manager".
    Whatever is not a letter or digit only separates words, so "dark-skinned" is "dark skinned",
    also as a tokenizer decodes it ("dark - skinned"), and "male" is found in "male-dominated": the
    safe error, since such a prompt is left alone.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._entries: dict[str, str] = {}
        for word in words:
            self._entries.setdefault(_split(word), word)
        if "" in self._entries:
            raise InvalidInputError(
                f"stated words: got {self._entries['']!r}; expected letters or digits"
            )
        longest_first = "|".join(sorted(self._entries, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<!\S)(?:{longest_first})(?!\S)")

    @property
    def phrases(self) -> tuple[str, ...]:
        """Return the words and phrases as `split` writes them."""
        return tuple(self._entries)

    @staticmethod
    def split(text: str) -> str:
        """Return the words of a text, ignoring case, with a space between each two."""
        return _split(text)

    @staticmethod
    def spans(text: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the text whose letters are compared, and the start and end of each word in it."""
        plain = _folded(text)
        return plain, [match.span() for match in _WORD.finditer(plain)]

    @staticmethod
    def stands_alone(letter: str) -> bool:
        """Return whether a letter is a word by itself, as those of Chinese and Japanese are."""
        return _WORD.fullmatch(letter + "a") is None

    def find(self, text: str) -> tuple[str, ...]:
        """Return the words that `text` contains, spelled as given, once each, in order of
        appearance.

        Matches run from left to right, the longest first, without overlap: "white woman" is one
        phrase.
        """
        return tuple(
            dict.fromkeys(self._entries[one] for one in self._pattern.findall(_split(text)) if one)
        )


def _split(text: str) -> str:
    return " ".join(_WORD.findall(_folded(text)))


def _folded(text: str) -> str:
    """Return a text without case, in which full-width letters are plain ones."""
    return unicodedata.normalize("NFKC", text).casefold()


def append_word(text: str, word: str) -> str:
    """Append a word to a text; an "a" or "an" at the end of the text is changed to the one that
    fits the word.

    >>> [append_word("a ", word) for word in ("Asian", "doctor", "university", "hour")]
    ['an Asian', 'a doctor', 'a university', 'an hour']
    """
    n = "n" if _VOWEL_SOUND.match(word) and not _CONSONANT_SOUND.match(word) else ""
    return re.sub(r"\b(a)n? $", rf"\g<1>{n} ", text, flags=re.IGNORECASE) + word


def fill(template: str, **words: str) -> str:
    """Fill the slots of a template, which have to be those of `words`; an "a" or "an" before one is
    made to fit.

    >>> fill("A photo of a {attribute} {concept}.", attribute="Asian", concept="architect")
    'A photo of an Asian architect.'
    """
    *parts, end = re.split(r"\{([^{}]*)\}", template)
    texts, slots = parts[::2], parts[1::2]
    if set(slots) != words.keys() or set("{}").intersection("".join([*texts, end])):
        expected = " and ".join(f"{{{slot}}}" for slot in words) or "no {slot}"
        raise InvalidInputError(f"template: got {template!r}; expected {expected}")
    return (
        "".join(append_word(text, words[slot]) for text, slot in zip(texts, slots, strict=True))
        + end
    )


@dataclass(frozen=True)
class PromptSet:
    """Hold the prompts about an attribute on which predictions of the classes should not depend.

    Attributes:
        name: stem of the YAML file it comes from, or the name it was made with.
        groups: prompts that differ in the attribute alone; every two prompts of a group are a pair.
        spurious: prompts that describe the attribute (columns of A in P0 = I - A (A^T A)^+ A^T).
        classes: prompts of the classes, whose differences should be kept; one per name in
            `class_names`.
        held_out_groups, held_out_classes, held_out_class_names: the same for held-out concepts.
        attributes: value of the attribute -> words for it.
        templates: templates that `groups` were made from; empty if the groups are listed one by
            one.
        stated_words: words and phrases by which a prompt states the attribute (see `StatedWords`).
        adjectives: value -> the adjective by which it is said before a noun ("blind"); empty: the
            words of `attributes` that are adjectives.
        phrase: value -> the phrase by which it is said behind a noun ("who is deaf"); empty: values
            are said by adjectives.
        parts: the one-attribute sets of a set over several attributes, else empty. Solve them
            jointly, with one term each: `groups` pools them, and there the attribute with the most
            pairs drowns the others.
        description, source, limits, note: purpose, origin, limitations and anything else to know.

    Raises:
        InvalidInputError: other values than texts, a group of one, a repeated prompt, or classes
            without names.
    """

    name: str
    groups: Annotated[_Groups, Field(min_length=1)]
    spurious: _Texts = ()
    classes: _Texts = ()
    class_names: _Texts = ()
    held_out_groups: _Groups = ()
    held_out_classes: _Texts = ()
    held_out_class_names: _Texts = ()
    attributes: dict[_Text, _Texts] = field(default_factory=dict, hash=False)
    templates: _Texts = ()
    stated_words: _Texts = ()
    adjectives: dict[_Text, _Text] = field(default_factory=dict, hash=False)
    phrase: dict[_Text, _Text] = field(default_factory=dict, hash=False)
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
        groups = (*self.groups, *self.held_out_groups)
        once: dict[str, Sequence[object]] = {
            f"groups[{i}]": group for i, group in enumerate(groups)
        }
        once |= {key: getattr(self, key) for key in _LISTS}
        once["held_out_groups"] = (*{*chain(*self.groups)}, *{*chain(*self.held_out_groups)})
        once["groups"] = [pair for group in groups for pair in combinations(sorted(group), 2)]
        for key, entries in once.items():
            if len(set(entries)) < len(entries):
                twice = Counter(entries).most_common(1)[0][0]
                raise InvalidInputError(f"{key}: got {twice!r} twice; expected it once")
        for part in ("", "held_out_"):
            names, n = getattr(self, f"{part}class_names"), len(getattr(self, f"{part}classes"))
            if len(names) != n:
                raise InvalidInputError(
                    f"{part}class_names: got {len(names)} names; expected {n}, one for each class"
                )
        self._check_ways_of_saying()

    def _check_ways_of_saying(self) -> None:
        """Raise InvalidInputError unless `adjectives` or `phrase` say each value."""
        if self.adjectives and self.phrase:
            raise InvalidInputError(
                "phrase: got adjectives as well; expected values that are said before the noun or"
                " behind it, not both"
            )
        for key in ("adjectives", "phrase"):
            said = getattr(self, key)
            different = set(said).symmetric_difference(self.attributes)
            if said and different:
                raise InvalidInputError(
                    f"{key}: got {list(said)}; expected each value of {list(self.attributes)},"
                    f" add or remove {min(different)!r}"
                )

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return every pair of every group, in the order of the groups."""
        return tuple(pair for group in self.groups for pair in combinations(group, 2))

    @cached_property
    def held_out_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return every pair of every held-out group."""
        return tuple(pair for group in self.held_out_groups for pair in combinations(group, 2))

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Return every text that is embedded, without repetition: classes, spurious prompts and the
        groups."""
        own = chain(
            self.classes, self.held_out_classes, self.spurious, *self.groups, *self.held_out_groups
        )
        return tuple(dict.fromkeys(chain(own, *(part.texts for part in self.parts))))

    @cached_property
    def hash(self) -> str:
        """Return the SHA-256 of prompts, words and their order, without name, prose and file
        formatting."""
        content: dict[str, Any] = {
            key: getattr(self, key) for key in (*_LISTS, "groups", "held_out_groups")
        }
        content |= {
            "attributes": list(self.attributes.items()),
            "parts": [part.hash for part in self.parts],
        }
        for key in ("adjectives", "phrase"):  # sets without them keep the hash that they had
            if getattr(self, key):
                content[key] = list(getattr(self, key).items())
        text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def values_in(self, text: str) -> tuple[str, ...]:
        """Return the values that a text names, in order; "an East Asian man" does not name "Asian"
        as well."""
        words, spelled = self._words_of_values
        named = set(words.find(text))
        return tuple(value for value, own in spelled.items() if not named.isdisjoint(own))

    @cached_property
    def _words_of_values(self) -> tuple[StatedWords, dict[str, set[str]]]:
        spelled = defaultdict[str, set[str]](set)
        for value, own in chain(*(part.attributes.items() for part in self.parts or (self,))):
            spelled[value].update(map(_split, own))
        return StatedWords(chain(*spelled.values())), spelled

    def by_value(self, texts: Iterable[str] | None = None) -> dict[str, tuple[str, ...]]:
        """Return attribute value -> the texts that name it and no other, as for a zero-shot
        classifier.

        texts: to choose from. None: the spurious prompts if they cover every value, else the
        groups; then InvalidInputError is raised unless `names_values`.
        """
        if texts is not None:
            named = [(text, self.values_in(text)) for text in dict.fromkeys(texts)]
            return {
                value: tuple(text for text, hit in named if hit == (value,))
                for value in self._words_of_values[1]
            }
        found = self.by_value(self.spurious)
        found = found if all(found.values()) else self.by_value(chain(*self.groups))
        empty = [value for value, own in found.items() if not own]
        if self.parts or len(self.attributes) < 2 or empty:
            raise InvalidInputError(
                f"prompt set {self.name!r}: got {max(1, len(self.parts))} attributes and no prompt"
                f" for {empty}; expected one attribute, and for each value a prompt that names it"
                " alone, such as one of `spurious`"
            )
        return found

    @property
    def names_values(self) -> bool:
        """Return whether `by_value()` succeeds: the set has one attribute, and each value has
        prompts of its own."""
        with suppress(InvalidInputError):
            return bool(self.by_value())
        return False

    def __repr__(self) -> str:
        counts = (
            f"{len(self.classes)} classes, {len(self.spurious)} spurious, {len(self.pairs)} pairs"
        )
        return f"PromptSet({self.name!r}, {counts}, hash={self.hash[:12]})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the values with their words, and prompts of each kind."""
        rows: list[tuple[str, str, str]] = []
        for part in self.parts or (self,):
            rows += [("value", value, ", ".join(words)) for value, words in part.attributes.items()]
        kinds = {"class prompt": self.classes, "spurious prompt": self.spurious}
        for kind, texts in kinds.items():
            rows += [(kind, text, "") for text in texts[:3]]
        rows += [("pair", first, second) for first, second in self.pairs[:3]]
        return html_table(repr(self), ("kind", "text", "words or partner"), rows)

    def to_yaml(self, path: str | Path) -> Path:
        """Write a YAML file that `load_prompts` can read (its stem becomes the name) and return its
        path.

        Raises:
            InvalidInputError: the path does not end in .yaml, or the set was made by hand or
                changed.
        """
        path, recipe = Path(path), vars(self).get("recipe")
        if path.suffix != ".yaml":
            raise InvalidInputError(f"path: got {str(path)!r}; expected a name that ends in .yaml")
        if recipe is None:
            raise InvalidInputError(
                f"{self!r}: got a set made by hand or changed; expected one of make_prompt_set"
            )
        content = recipe.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        return write_atomically(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


_FIELDS: dict[str, Any] = {
    key: (kind, ...) for key, kind in get_type_hints(PromptSet, include_extras=True).items()
}
_CHECKS = create_model("PromptSet", **_FIELDS)


class _Concepts(BaseModel, extra="forbid"):  # `like` adds those of another set
    like: _Text = ""
    train: _Texts = ()
    test: _Texts = ()


class _Stated(
    BaseModel, extra="forbid"
):  # those in `before_person` state it only before a word for a person
    like: _Text = ""
    words: _Texts = ()
    before_person: _Texts = ()


def _mapping(key: str) -> Any:
    return BeforeValidator(lambda given: given if isinstance(given, dict) else {key: given})


class Recipe(BaseModel, extra="forbid"):
    """Define the schema of a file of prompts/; prompts/README.md describes its keys."""

    description: _Text = ""
    source: _Text = ""
    limits: _Text = ""
    note: _Text = ""
    classes: dict[_Text, _Text] = {}
    spurious: _Texts = ()
    groups: _Groups = ()
    attribute: Annotated[
        dict[_Text, Annotated[_Texts, Field(min_length=1)]], Field(min_length=2)
    ] = {}
    templates: _Texts = ()
    class_template: _Text = "A photo of a {concept}."
    concepts: Annotated[_Concepts, _mapping("train")] = _Concepts()
    stated_words: Annotated[_Stated, _mapping("words")] | None = None
    adjectives: dict[_Text, _Text] = {}
    phrase: dict[_Text, _Text] = {}
    parts: _Texts = ()


def _build(content: Mapping[str, Any], name: str) -> PromptSet:
    """Return the set that the content of a file describes; ValueError says what is wrong."""
    recipe = Recipe.model_validate(content)
    attribute, templates, concepts = recipe.attribute, recipe.templates, recipe.concepts
    train, test, words = concepts.train, concepts.test, tuple(chain(*attribute.values()))
    if concepts.like:
        like = _packaged(concepts.like)
        train, test = (*train, *like.class_names), (*test, *like.held_out_class_names)
    came = recipe.model_fields_set & {"templates", "concepts", "groups", "parts"}
    if came not in ({"templates", "concepts"}, {"groups"}, {"parts"}) or (
        templates and not (attribute and train)
    ):
        said = " and ".join(sorted(came)) or "none"
        raise ValueError(
            f"pairs: got {said}; expected attribute, templates and concepts to train on; groups; or"
            " parts"
        )
    if len(set(words)) < len(words) or (templates and len(set(map(len, attribute.values()))) > 1):
        raise ValueError(
            f"attribute: got {attribute}; expected each word once, and equally many for each value"
        )
    rows = list(zip(*attribute.values(), strict=True)) if templates else []
    pairs = len(templates) * len(train + test) * len(rows) * comb(len(attribute), 2)
    pairs += sum(comb(len(group), 2) for group in recipe.groups)  # counted before they are made
    if pairs > MAX_PAIRS:
        raise ValueError(f"pairs: got {pairs:,} pairs; expected at most {MAX_PAIRS:,}")
    texts = [
        [fill(t, attribute=w) for w in words] if words and "{" in t else [fill(t)]
        for t in recipe.spurious
    ]
    ways = (*recipe.adjectives.values(), *recipe.phrase.values())  # of saying it, which state it
    stated = recipe.stated_words or _Stated(words=(*words, *ways))
    known = stated.words + (_packaged(stated.like).stated_words if stated.like else ())
    if (
        stated.before_person
    ):  # "white" states a race in "a white doctor", not in "a doctor in a white coat"
        jobs = _packaged("professions-gender")
        nouns = [
            form
            for job in (*jobs.class_names, *jobs.held_out_class_names)
            for form in (job, f"{job}s")
        ]
        known += tuple(map(" ".join, product(stated.before_person, (*lists()["people"], *nouns))))
    fields: dict[str, Any] = {
        "spurious": tuple(chain(*texts)),
        "stated_words": tuple(dict.fromkeys(known)),
    }
    for part, own, groups, given in (
        ("", train, recipe.groups, recipe.classes),
        ("held_out_", test, (), {}),
    ):
        made = (
            tuple(fill(t, attribute=w, concept=one) for w in row)
            for one, t, row in product(own, templates, rows)
        )
        classes = given or {one: fill(recipe.class_template, concept=one) for one in own}
        fields[f"{part}groups"] = (*groups, *made)
        fields |= {f"{part}classes": tuple(classes.values()), f"{part}class_names": tuple(classes)}
    parts = tuple(own for part in map(_packaged, recipe.parts) for own in part.parts or (part,))
    for key in fields if parts else ():
        fields[key] = tuple(
            dict.fromkeys(chain(fields[key], *(getattr(part, key) for part in parts)))
        )
    fields |= {"adjectives": recipe.adjectives, "phrase": recipe.phrase}
    prompts = PromptSet(
        name=name, parts=parts, attributes=attribute, **fields, **recipe.model_dump(include=_PROSE)
    )
    vars(prompts)["recipe"] = recipe  # for to_yaml; dataclasses.replace leaves it out
    return prompts


@cache  # what comes with the package does not change
def _packaged(name: str) -> PromptSet:
    if name not in (files := packaged("prompts")):
        known, hint = ", ".join(files), did_you_mean(name, files)
        raise InvalidInputError(
            f"got the prompt set {name!r}; expected one of {known}, or a .yaml file; {hint}"
        )
    return load_prompts(files[name])


def list_prompts() -> list[str]:
    """Return the sorted names of the packaged prompt sets, the stems of prompts/*.yaml."""
    return list(packaged("prompts"))


def load_prompts(name_or_path: str | Path | Mapping[str, Any] | PromptSet) -> PromptSet:
    """Return a prompt set by its name, from a YAML file, or from the content of one as a mapping
    (with a `name`).

    A text with a folder or .yaml in it is a path. A PromptSet is returned as it is.

    Raises:
        InvalidInputError: an unknown name, an unreadable file, or one that does not follow the
            schema.
    """
    if isinstance(name_or_path, PromptSet):
        return name_or_path
    if isinstance(name_or_path, Mapping):
        content = dict(name_or_path)
        name = where = str(content.pop("name", "custom"))
    elif not isinstance(name_or_path, (str, Path)):
        raise InvalidInputError(
            f"prompts: got {name_or_path!r}; expected a name, a path, a PromptSet or a mapping"
        )
    else:
        path = Path(name_or_path).expanduser()
        if isinstance(name_or_path, str) and path.suffix != ".yaml" and len(path.parts) < 2:
            return _packaged(name_or_path)
        content, name, where = read_yaml(path), path.stem, str(path)
    try:
        return _build(content, name)
    except ValueError as error:
        problem = (
            explain(error, "", Recipe.model_fields) if isinstance(error, ValidationError) else error
        )
        raise InvalidInputError(f"{where}: {problem}; see prompts/README.md") from None


def make_prompt_set(  # noqa: PLR0913 - a recipe has as many keys
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
) -> PromptSet:
    """Make a prompt set from word lists: the pairs combine attribute words, templates and concepts.

    Args:
        attribute: value -> words, equally many for each: {"male": ["male", "man"], "female":
            ["female", "woman"]}.
        concepts, test_concepts: what the pairs are about, ["doctor", "nurse"], and concepts of the
            held-out groups.
        templates: each with {attribute} and {concept}; "a" before either becomes "an" where it has
            to.
        spurious: prompts for the attribute alone, in which {attribute} stands for each word; empty:
            no such prompts.
        class_template: the prompt without the attribute, with {concept}.
        stated_words: words by which a prompt states the attribute; none: the words of `attribute`.
        adjectives: value -> how balanced prompts say it before a noun, {"blind": "blind"}; None:
            by the words of `attribute` that are known as adjectives.
        phrase: value -> how they say it behind a noun, {"deaf": "who is deaf"}, in place of
            adjectives.

    Raises:
        InvalidInputError: as `load_prompts`, naming the argument.
    """
    content: dict[str, Any] = {
        "name": name,
        "attribute": attribute,
        "templates": templates,
        "spurious": spurious,
    }
    content |= {
        "concepts": {"train": concepts, "test": test_concepts},
        "class_template": class_template,
    }
    content |= {"adjectives": dict(adjectives or {}), "phrase": dict(phrase or {})}
    return load_prompts(content | {"stated_words": list(stated_words) or None})
