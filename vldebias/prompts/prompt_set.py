"""Load and make prompt sets: class prompts, spurious prompts, and groups that should have the same embedding."""

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain, combinations, product
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from vldebias.errors import InvalidInputError, PromptSetError, did_you_mean, shortened
from vldebias.files import prompt_file, prompt_names, read_yaml, write_atomically
from vldebias.prompts.words import StatedWords, check_slots, fill

MAX_PAIRS = 200_000
_HASHED = ("classes", "class_names", "spurious", "held_out_classes", "held_out_class_names", "stated_words")
# A colour before one of these nouns says something about a person; professions are added.
_PEOPLE = """
    person people human humans adult adults individual man men woman women boy boys girl girls child children kid
    kids baby babies teenager teenagers guy guys lady ladies gentleman gentlemen family families couple couples
    student students worker workers colleague colleagues friend friends neighbor neighbors customer customers
    patient patients citizen citizens parent parents father mother husband wife son daughter celebrity celebrities
    male female young old elderly middle-aged
"""


def _once(items: Sequence[Hashable]) -> Any:
    if repeated := [item for item, count in Counter(items).items() if count > 1]:
        raise ValueError(f"each entry once, not {repeated[0]!r} twice")
    return items


def _pairs_once(groups: Sequence[Sequence[str]]) -> Any:
    _check_size(groups)
    _once([tuple(sorted(pair)) for group in groups for pair in combinations(group, 2)])
    return groups


def _check_size(groups: Sequence[Sequence[str]], times: int = 1) -> None:
    pairs = times * sum(len(group) * (len(group) - 1) // 2 for group in groups)
    if pairs > MAX_PAIRS:
        raise PromptSetError(f"pairs: got {pairs:,} pairs; expected at most {MAX_PAIRS:,}.")


def _trimmed(text: str) -> str:
    if not text or text != text.strip():
        raise ValueError("text without spaces at either end")
    return text


_Text = Annotated[str, AfterValidator(_trimmed)]
_Texts = Annotated[tuple[_Text, ...], AfterValidator(_once)]
_Some = Annotated[_Texts, Field(min_length=1)]
_Groups = Annotated[tuple[Annotated[_Texts, Field(min_length=2)], ...], AfterValidator(_pairs_once)]


@dataclass(frozen=True)
class PromptSet:
    """Hold the prompts about one spurious attribute, on which predictions of the classes should not depend.

    Attributes:
        name: stem of the YAML file it comes from, or the name it was made with.
        groups: prompts that differ in the attribute alone; every two prompts of a group are a pair.
        spurious: prompts that describe the attribute (columns of A in P0 = I - A (A^T A)^+ A^T).
        classes: prompts of the classes, whose differences should be kept; one per name in `class_names`.
        held_out_groups, held_out_classes, held_out_class_names: the same for held-out concepts.
        attributes: value of the attribute -> words for it.
        templates: templates that `groups` were made from; empty if the groups are listed one by one.
        stated_words: words and phrases by which a prompt states the attribute (see `StatedWords`).
        parts: the one-attribute sets of a set over several attributes, else empty. Solve them jointly, with one
            term each: `groups` pools them, and there the attribute with the most pairs drowns the others.
        description, source, limits, note: purpose, origin, limitations and anything else to know.

    Raises:
        PromptSetError: values other than texts, a group of one, a repeated prompt, or classes without names.
    """

    name: str
    groups: Annotated[_Groups, Field(min_length=1)]
    spurious: _Texts = ()
    classes: _Texts = ()
    class_names: _Texts = ()
    held_out_groups: _Groups = ()
    held_out_classes: _Texts = ()
    held_out_class_names: _Texts = ()
    attributes: Annotated[dict[_Text, _Texts], Field()] = field(default_factory=dict, hash=False)
    templates: _Texts = ()
    stated_words: _Texts = ()
    parts: tuple["PromptSet", ...] = ()
    description: str = ""
    source: str = ""
    limits: str = ""
    note: str = ""
    _recipe: Any = field(default=None, init=False, repr=False, compare=False)  # dataclasses.replace leaves it out

    def __post_init__(self) -> None:
        with _naming(f"prompt set {self.name!r}"):
            content = _Content.model_validate({key: getattr(self, key) for key in _Content.model_fields})
            for key, value in content:
                object.__setattr__(self, key, value)
            names, counts = (self.class_names, self.held_out_class_names), (self.classes, self.held_out_classes)
            if list(map(len, names)) != list(map(len, counts)):
                raise PromptSetError(f"class_names: got {names}; expected one name for each class and held-out class.")
            if seen := {*chain(*self.groups)}.intersection(chain(*self.held_out_groups)):
                raise PromptSetError(
                    f"held_out_groups: got {min(seen)!r} of groups; expected other prompts than there."
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
        """Return every text that is embedded, without repetition: classes, spurious prompts and the pairs."""
        own = (*self.classes, *self.held_out_classes, *self.spurious)
        return tuple(dict.fromkeys(chain(own, *self.groups, *self.held_out_groups, *(p.texts for p in self.parts))))

    @cached_property
    def hash(self) -> str:
        """Return the SHA-256 of prompts, words and their order, without name, prose and file formatting."""
        content: dict[str, Any] = {key: getattr(self, key) for key in (*_HASHED, "groups", "held_out_groups")}
        content |= {"attributes": list(self.attributes.items()), "parts": [part.hash for part in self.parts]}
        text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def values_in(self, text: str) -> tuple[str, ...]:
        """Return the values of the attribute (of all attributes, where the set has parts) that a text names, in order.

        The longest phrase counts (`StatedWords`): "an East Asian man" does not name "Asian" as well.
        """
        words, values = self._owners
        named = set(words.find(text))
        return tuple(value for value, own in values.items() if own & named)

    @cached_property
    def _owners(self) -> tuple[StatedWords, dict[str, set[str]]]:
        """Return the words of all values of all parts, and value -> its words; case is ignored."""
        pairs = [(v, word) for part in self.parts or (self,) for v, own in part.attributes.items() for word in own]
        words, values = StatedWords(word for _, word in pairs), dict[str, set[str]]()
        for value, word in pairs:
            values.setdefault(value, set()).update(words.find(word)[:1])
        return words, values

    def by_value(self, texts: Iterable[str] | None = None) -> dict[str, tuple[str, ...]]:
        """Return attribute value -> the texts that name it and no other, as for a zero-shot classifier.

        texts: to choose from. None: the spurious prompts if they cover every value, else the groups; then
        PromptSetError is raised unless `names_values`.
        """
        if texts is not None:
            named = [(text, self.values_in(text)) for text in dict.fromkeys(texts)]
            return {value: tuple(text for text, hit in named if hit == (value,)) for value in self._owners[1]}
        if not self.names_values:
            empty = [value for value, own in self._by_value.items() if not own]
            raise PromptSetError(
                f"prompt set {self.name!r}: got {max(1, len(self.parts))} attributes and no prompt for {empty}; "
                "expected one attribute, and for each value a prompt that names it alone, such as one of `spurious`"
            )
        return dict(self._by_value)

    @cached_property
    def _by_value(self) -> dict[str, tuple[str, ...]]:
        own = self.by_value(self.spurious)
        return own if all(own.values()) else self.by_value(chain(*self.groups))

    @property
    def names_values(self) -> bool:
        """Return whether `by_value()` succeeds: the set has one attribute, and each value has prompts of its own."""
        return not self.parts and len(self.attributes) > 1 and all(self._by_value.values())

    def __repr__(self) -> str:
        counts = f"{len(self.classes)} classes, {len(self.spurious)} spurious, {len(self.pairs)} pairs"
        return f"PromptSet({self.name!r}, {counts}, hash={self.hash[:12]})"

    def to_yaml(self, path: str | Path) -> Path:
        """Write a YAML file that `load_prompts` can read (its stem becomes the name) and return its path.

        Raises:
            PromptSetError: the path does not end in .yaml, or the set was made by hand or changed.
        """
        path = Path(path)
        if path.suffix != ".yaml":
            raise PromptSetError(f"path: got {str(path)!r}; expected a name that ends in .yaml.")
        if self._recipe is None:
            raise PromptSetError(f"{self.name!r}: got a set made by hand or changed; expected one of make_prompt_set.")
        content = self._recipe.model_dump(mode="json", exclude_unset=True)
        return write_atomically(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_HINTS = get_type_hints(PromptSet, include_extras=True)
_CHECKED: Any = {name: (kind, ...) for name, kind in _HINTS.items() if hasattr(kind, "__metadata__")}
_Content = create_model("_Content", __base__=_Schema, **_CHECKED)


def _list_as(key: str) -> BeforeValidator:
    return BeforeValidator(lambda value: {key: value} if isinstance(value, (list, tuple)) else value)


class _Concepts(_Schema):  # `like` adds those of another set
    like: _Text = ""
    train: _Some = ()
    test: _Some = ()


class _Stated(_Schema):  # those in `before_person` state the attribute only before a word for a person
    like: _Text = ""
    words: _Texts = ()
    before_person: _Some = ()


class Recipe(_Schema):
    """Define the schema of a file of prompts/; prompts/README.md describes its keys."""

    description: _Text = ""
    source: _Text = ""
    limits: _Text = ""
    note: _Text = ""
    classes: dict[_Text, _Text] = {}
    spurious: _Some = ()
    groups: _Groups = ()
    attribute: Annotated[dict[_Text, _Some], Field(min_length=2)] = {}
    templates: _Some = ()
    class_template: _Text = "A photo of a {concept}."
    concepts: Annotated[_Concepts, _list_as("train")] = _Concepts()
    stated_words: Annotated[_Stated | None, _list_as("words")] = None
    parts: _Some = ()


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Raise errors of a file or a schema as a PromptSetError that names the file or the set, and the wrong key."""
    try:
        yield
    except (InvalidInputError, PromptSetError) as error:
        raise PromptSetError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    except ValidationError as error:
        raise PromptSetError(f"{where}: {_of_key(error.errors()[0])}") from None


def _of_key(first: Any) -> str:
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    expected, came = str(first["msg"]).removeprefix("Value error, "), shortened(repr(first["input"]), 60)
    if first["type"] == "extra_forbidden":
        expected = f"a known key; {did_you_mean(first['loc'][-1], Recipe.model_fields, 'take it out')}"
    elif first["type"] == "string_type":
        expected = "text, in quotes where YAML reads it as something else"
    return f"{key or 'file'}: got {came}; expected {expected}; see prompts/README.md."


def _check_keys(keys: set[str]) -> None:
    """Refuse pairs that are written in no way or in two: made from words, listed, or taken from parts."""
    made = ("attribute", "templates", "concepts")
    ways = [keys.intersection(way) for way in (made[1:], ("groups",), ("parts",))]
    if sum(map(bool, ways)) != 1:
        came = " and ".join(sorted(set().union(*ways))) or "none"
        raise PromptSetError(f"pairs: got {came}; expected attribute, templates and concepts; or groups; or parts.")
    for key in set(made) - keys if ways[0] else ():
        raise PromptSetError(f"{key}: got none; expected {', '.join(made)} together.")


def _build(content: Any, name: str) -> PromptSet:
    """Return the set that the content of a file describes."""
    recipe = Recipe.model_validate(content)
    _check_keys(recipe.model_fields_set)
    attribute, words = recipe.attribute, tuple(chain(*recipe.attribute.values()))
    for i, template in enumerate(recipe.spurious):
        check_slots(f"spurious[{i}]", template, optional=("attribute",) if words else ())
    for i, template in enumerate(recipe.templates):
        check_slots(f"templates[{i}]", template, ("attribute", "concept"))
    check_slots("class_template", recipe.class_template, ("concept",))
    if len(set(words)) < len(words) or (recipe.templates and len(set(map(len, attribute.values()))) > 1):
        raise PromptSetError(f"attribute: got {attribute}; expected each word once, and equally many for each value.")
    train, test = recipe.concepts.train, recipe.concepts.test
    if recipe.concepts.like:
        like = _packaged(recipe.concepts.like)
        train, test = (*train, *like.class_names), (*test, *like.held_out_class_names)
    if {*train}.intersection(test) or (recipe.templates and not train):
        raise PromptSetError("concepts: expected at least one under 'train:', and each once, in train or in test.")
    rows = list(zip(*attribute.values(), strict=True)) if recipe.templates else []
    _check_size(rows, len(recipe.templates) * len(train + test))  # few lines can stand for billions of pairs

    def groups(concepts: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        slots = product(concepts, recipe.templates, rows)
        return tuple(tuple(fill(text, attribute=w, concept=concept) for w in row) for concept, text, row in slots)

    classes = recipe.classes or {one: fill(recipe.class_template, concept=one) for one in train}
    spurious = [(text, words if "{" in text else ("",)) for text in recipe.spurious]
    fields: dict[str, Any] = {
        "groups": recipe.groups or groups(train),
        "classes": tuple(classes.values()),
        "class_names": tuple(classes),
        "held_out_groups": groups(test),
        "held_out_classes": tuple(fill(recipe.class_template, concept=one) for one in test),
        "held_out_class_names": test,
        "spurious": tuple(fill(text, attribute=word) for text, own in spurious for word in own),
        "stated_words": words if recipe.stated_words is None else _stated(recipe.stated_words),
    }
    parts = tuple(own for part in map(_packaged, recipe.parts) for own in part.parts or (part,))
    for key in fields if parts else ():
        fields[key] = tuple(dict.fromkeys(chain(fields[key], *(getattr(part, key) for part in parts))))
    fields |= {key: getattr(recipe, key) for key in ("description", "source", "limits", "note", "templates")}
    made = PromptSet(name=name, parts=parts, attributes=attribute, **fields)
    object.__setattr__(made, "_recipe", recipe)
    return made


def _stated(own: _Stated) -> tuple[str, ...]:
    words = (*own.words, *(_packaged(own.like).stated_words if own.like else ()))
    if own.before_person:  # "white" states a race in "a white doctor", not in "a doctor in a white coat"
        jobs = _packaged("professions-gender")
        nouns = [form for job in (*jobs.class_names, *jobs.held_out_class_names) for form in (job, f"{job}s")]
        people = dict.fromkeys((*_PEOPLE.split(), *nouns))
        words += tuple(f"{adjective} {noun}" for adjective in own.before_person for noun in people)
    return tuple(dict.fromkeys(words))


@cache  # what comes with the package does not change
def _packaged(name: str) -> PromptSet:
    with _naming("prompts"):
        return load_prompts(prompt_file(name))


def list_prompts() -> list[str]:
    """Return the sorted names of the packaged prompt sets, the stems of prompts/*.yaml."""
    return prompt_names()


def load_prompts(name_or_path: str | Path | Mapping[str, Any] | PromptSet) -> PromptSet:
    """Return a prompt set by its name, from a YAML file, or from the content of one as a mapping (with a `name`).

    A text with a folder or .yaml in it is a path, any other a name of `list_prompts`. A PromptSet is returned as it is.

    Raises:
        PromptSetError: an unknown name, an unreadable file, or one that does not follow the schema.
    """
    if isinstance(name_or_path, PromptSet):
        return name_or_path
    if isinstance(name_or_path, Mapping):
        name = str(name_or_path.get("name", "custom"))
        with _naming(f"prompt set {name!r}"):
            return _build({key: value for key, value in name_or_path.items() if key != "name"}, name)
    if not isinstance(name_or_path, (str, Path)):
        known = ", ".join(list_prompts())
        raise PromptSetError(
            f"prompts: got {name_or_path!r}; expected a path, a PromptSet, a mapping or one of {known}."
        )
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and path.suffix != ".yaml" and len(path.parts) < 2:
        return _packaged(name_or_path)
    path = path.expanduser()
    with _naming(str(path)):
        return _build(read_yaml(path), path.stem)


def make_prompt_set(
    name: str,
    attribute: Mapping[str, Sequence[str]],
    concepts: Sequence[str],
    templates: Sequence[str] = ("A photo of a {attribute} {concept}.",),
    spurious: Sequence[str] = ("A photo of a {attribute}.",),
    *,
    test_concepts: Sequence[str] = (),
    class_template: str = "A photo of a {concept}.",
    stated_words: Sequence[str] = (),
) -> PromptSet:
    """Make a prompt set from word lists: the pairs combine attribute words, templates and concepts.

    Args:
        attribute: value -> words, equally many for each: {"male": ["male", "man"], "female": ["female", "woman"]}.
        concepts, test_concepts: what the pairs are about, ["doctor", "nurse"], and concepts of the held-out groups.
        templates: each with {attribute} and {concept}; "a" before either becomes "an" where it has to.
        spurious: prompts for the attribute alone, in which {attribute} stands for each word; empty: no such prompts.
        class_template: the prompt without the attribute, with {concept}.
        stated_words: words by which a prompt states the attribute; none: the words of `attribute`.

    Raises:
        PromptSetError: as `load_prompts`, naming the argument.
    """
    content: dict[str, Any] = {"attribute": attribute, "templates": templates, "class_template": class_template}
    content["concepts"] = {"train": concepts} | ({"test": test_concepts} if len(test_concepts) else {})
    optional = {"spurious": spurious, "stated_words": stated_words}
    return load_prompts(content | {"name": name} | {key: value for key, value in optional.items() if len(value)})
