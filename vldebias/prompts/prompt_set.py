"""Load and make prompt sets: class prompts, spurious prompts, and pairs that should have the same embedding."""

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from vldebias.errors import InvalidInputError, PromptSetError, did_you_mean, shortened
from vldebias.files import prompt_file, prompt_names, read_yaml
from vldebias.prompts.stated_words import StatedWords
from vldebias.prompts.templates import check_slots, fill

Prompts = tuple[str, ...]

MAX_PAIRS = 200_000
_LISTS = ("classes", "class_names", "spurious", "held_out_classes", "held_out_class_names")
_GROUPS = ("groups", "held_out_groups")
_ENDINGS = (".yaml", ".yml")
# Of which a colour word in front says something about a person; professions are added.
_PEOPLE = """
    person people human humans adult adults individual man men woman women boy boys girl girls child children kid
    kids baby babies teenager teenagers guy guys lady ladies gentleman gentlemen family families couple couples
    student students worker workers colleague colleagues friend friends neighbor neighbors customer customers
    patient patients citizen citizens parent parents father mother husband wife son daughter celebrity celebrities
    male female young old elderly middle-aged
"""


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
        templates: from which `groups` were made; empty if these are listed one by one.
        stated_words: words and phrases by which a prompt states the attribute (see `StatedWords`).
        parts: the one-attribute sets of a set over several attributes, else empty. Solve them jointly, with one
            term each: `groups` pools them, and there the attribute with the most pairs drowns the others.
        description, source, limits, note: prose on purpose, origin, limitations and anything else to know.

    Raises:
        PromptSetError: values other than texts, a group of one, a repeated prompt, or classes without names.
    """

    name: str
    groups: tuple[Prompts, ...]
    spurious: Prompts = ()
    classes: Prompts = ()
    class_names: Prompts = ()
    held_out_groups: tuple[Prompts, ...] = ()
    held_out_classes: Prompts = ()
    held_out_class_names: Prompts = ()
    attributes: Mapping[str, Prompts] = field(default_factory=dict, hash=False)
    templates: Prompts = ()
    stated_words: Prompts = ()
    parts: tuple["PromptSet", ...] = ()
    description: str = ""
    source: str = ""
    limits: str = ""
    note: str = ""
    _recipe: "Recipe | None" = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        with _naming(f"prompt set {self.name!r}"):
            content = _validated(_Content, {key: getattr(self, key) for key in _Content.model_fields})
            for kind in ("", "held_out_"):
                names, classes = len(getattr(self, f"{kind}class_names")), len(getattr(self, f"{kind}classes"))
                if names != classes:
                    raise PromptSetError(f"{kind}class_names: got {names} names; expected {classes}, one per class.")
            if len(content.attributes) == 1:
                raise PromptSetError(f"attributes: got {self.attributes}; expected two or more values and their words.")
            if seen := set(chain(*content.groups)).intersection(chain(*content.held_out_groups)):
                raise PromptSetError(f"held_out_groups: got {min(seen)!r}, which groups has; expected unseen prompts.")
        for key, value in content:
            object.__setattr__(self, key, value)

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return every pair of every group, in the order of the groups."""
        return tuple(pair for group in self.groups for pair in combinations(group, 2))

    @cached_property
    def held_out_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return every pair of every held-out group."""
        return tuple(pair for group in self.held_out_groups for pair in combinations(group, 2))

    @cached_property
    def texts(self) -> Prompts:
        """Return every text that is embedded, without repetition: classes, spurious prompts and the pairs."""
        own = (*self.classes, *self.held_out_classes, *self.spurious)
        groups = (*self.groups, *self.held_out_groups, *(part.texts for part in self.parts))
        return tuple(dict.fromkeys((*own, *chain.from_iterable(groups))))

    @cached_property
    def hash(self) -> str:
        """Return the SHA-256 of prompts, words and their order, without name, prose and file formatting."""
        content = {key: getattr(self, key) for key in (*_LISTS, *_GROUPS, "stated_words")}
        content["attributes"] = list(self.attributes.items())
        content["parts"] = [part.hash for part in self.parts]
        text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def values_in(self, text: str) -> tuple[str, ...]:
        """Return the values of the attribute (of all attributes, where the set has parts) that a text names, in order.

        Whole words are matched from left to right, the longest phrase first (`StatedWords`), so that "an East Asian
        man" does not name "Asian" as well. A text states a value if it names no other.
        """
        words, values = self._owners
        named = set(words.find(text))
        return tuple(value for value, own in values.items() if own & named)

    def by_value(self, texts: Iterable[str] | None = None) -> dict[str, Prompts]:
        """Return attribute value -> the texts that name it and no other, as for a zero-shot classifier.

        texts: to choose from; a value may then have no text. None: the spurious prompts if they cover every value, as
        they describe the attribute alone, else the groups.

        Raises:
            PromptSetError: `texts` is None and the set has several attributes, or a value has no prompt of its own.
        """
        if texts is None:
            if not self.names_values:
                empty = [value for value, own in self._by_value.items() if not own]
                raise PromptSetError(
                    f"prompt set {self.name!r}: expected one attribute with words for each value, and a prompt that "
                    f"names it alone; got {max(1, len(self.parts))} attributes of {len(self._by_value)} values, no "
                    f"prompt for {empty}; add one under `spurious`, or use the sets of one attribute"
                )
            return dict(self._by_value)
        named = [(text, self.values_in(text)) for text in dict.fromkeys(texts)]
        return {value: tuple(text for text, hit in named if hit == (value,)) for value in self._owners[1]}

    @property
    def names_values(self) -> bool:
        """Return whether `by_value()` succeeds: the set has one attribute, and each value has prompts of its own."""
        return not self.parts and len(self.attributes) > 1 and all(self._by_value.values())

    @cached_property
    def _by_value(self) -> dict[str, Prompts]:
        own = self.by_value(self.spurious)
        return own if all(own.values()) else self.by_value(chain(*self.groups))

    @cached_property
    def _owners(self) -> tuple[StatedWords, dict[str, set[str]]]:
        """The words of all values of all parts, and value -> its words; equal but for their case, words are one."""
        pairs = [(v, word) for part in self.parts or (self,) for v, own in part.attributes.items() for word in own]
        words, values = StatedWords(word for _, word in pairs), dict[str, set[str]]()
        for value, word in pairs:
            values.setdefault(value, set()).update(words.find(word)[:1])
        return words, values

    def __repr__(self) -> str:
        counts = f"{len(self.classes)} classes, {len(self.spurious)} spurious, {len(self.pairs)} pairs"
        return f"PromptSet({self.name!r}, {counts}, hash={self.hash[:12]})"

    def to_yaml(self, path: str | Path) -> Path:
        """Write a YAML file that `load_prompts` can read (its stem becomes the name) and return its path.

        Raises:
            PromptSetError: the path does not end in .yaml, or the set was put together by hand or changed.
        """
        path = Path(path)
        if path.suffix not in _ENDINGS:
            raise PromptSetError(f"path: got {str(path)!r}; expected a name that ends in .yaml.")
        if self._recipe is None or _build(self._recipe, self.name) != self:  # dataclasses.replace copies the recipe
            raise PromptSetError(f"{self.name!r}: got a set made by hand or changed; expected one of make_prompt_set.")
        content = self._recipe.model_dump(mode="json", exclude_unset=True)
        path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110), encoding="utf-8")
        return path


def list_prompts() -> list[str]:
    """Return the sorted names of the packaged prompt sets, the stems of prompts/*.yaml."""
    return prompt_names()


def load_prompts(name_or_path: str | Path | Mapping[str, Any] | PromptSet) -> PromptSet:
    """Return a prompt set by its name or from a YAML file; return a PromptSet unchanged.

    name_or_path: a name from `list_prompts`; or a path: a Path, or a text with a folder or .yaml in it; or the content
    of such a file as a mapping, with an optional `name` (default "custom").

    Raises:
        PromptSetError: unknown name, or a file that cannot be read or does not follow the schema.
    """
    if isinstance(name_or_path, PromptSet):
        return name_or_path
    if isinstance(name_or_path, Mapping):
        return _made({k: v for k, v in name_or_path.items() if k != "name"}, str(name_or_path.get("name", "custom")))
    if not isinstance(name_or_path, (str, Path)):
        raise PromptSetError(
            f"prompts: got {name_or_path!r}; expected a path, a PromptSet, a mapping with the keys of a file, or one "
            f"of {', '.join(list_prompts())}."
        )
    path = Path(name_or_path)
    if not isinstance(name_or_path, Path) and path.suffix not in _ENDINGS and len(path.parts) < 2:
        return _packaged(name_or_path)
    path = path.expanduser()
    with _naming(str(path)):
        return _build(_recipe(path), path.stem)


@cache  # what comes with the package does not change
def _packaged(name: str) -> PromptSet:
    return load_prompts(prompt_file(name))


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
    pairing: str = "aligned",
) -> PromptSet:
    """Make a prompt set from word lists: the pairs combine attribute words, templates and concepts.

    Args:
        attribute: value -> words: {"male": ["male", "man"], "female": ["female", "woman"]}.
        concepts: what the pairs are about: ["doctor", "nurse"].
        templates: each with {attribute} and {concept}; "a" before either becomes "an" where it has to.
        spurious: prompts for the attribute alone; {attribute} stands for each word in turn. The default is that of
            section 7.3.1 of the thesis; an empty list means no such prompts.
        test_concepts: concepts for the held-out groups.
        class_template: the prompt without the attribute, with {concept}.
        stated_words: words by which a prompt states the attribute; none: the words of `attribute`.
        pairing: "aligned": first words of all values are a group, second words another, and so on.
            "all": all words of all values are one group, as the paper has it for Waterbirds.

    Raises:
        PromptSetError: as `load_prompts`, naming the argument.
    """
    words = {"train": concepts} | ({"test": test_concepts} if len(test_concepts) else {})
    content: dict[str, Any] = {"attribute": attribute, "templates": templates, "class_template": class_template}
    content |= {"concepts": words, "pairing": pairing}
    optional = {"spurious": spurious, "stated_words": stated_words}
    return _made(content | {key: value for key, value in optional.items() if len(value)}, name)


# ---- the schema of a file --------------------------------------------------------------------------------------


def _once(items: Sequence[Hashable]) -> Any:
    if repeated := [item for item, count in Counter(items).items() if count > 1]:
        raise ValueError(f"each once, not {repeated[0]!r} twice")
    return items


def _pairs_once(groups: Sequence[Sequence[str]]) -> Any:
    _check_size(groups)
    _once([tuple(sorted(pair)) for group in groups for pair in combinations(group, 2)])
    return groups


def _words_once(attribute: dict[str, Prompts]) -> Any:
    _once(tuple(chain(*attribute.values())))
    return attribute


def _list_as(key: str) -> BeforeValidator:
    return BeforeValidator(lambda value: {key: value} if isinstance(value, (list, tuple)) else value)


_Text = Annotated[str, Field(pattern=r"^\S(?s:.*\S)?\Z")]  # without spaces at either end
_Any = Annotated[tuple[_Text, ...], AfterValidator(_once)]
_Texts = Annotated[_Any, Field(min_length=1)]
_Group = Annotated[_Any, Field(min_length=2)]
_Pair = Annotated[_Any, Field(min_length=2, max_length=2)]
_Groups = Annotated[tuple[_Group, ...], Field(min_length=1), AfterValidator(_pairs_once)]
_Named = Annotated[dict[_Text, _Text], Field(min_length=1)]


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, regex_engine="python-re")


# The fields of a PromptSet that hold texts.
_TEXTS: dict[str, Any] = dict.fromkeys((*_LISTS, "templates", "stated_words"), (_Any, ...))
_TEXTS |= {"groups": (_Groups, ...), "attributes": (dict[_Text, _Any], ...)}
_TEXTS["held_out_groups"] = (Annotated[tuple[_Group, ...], AfterValidator(_pairs_once)], ...)
_Content = create_model("_Content", __base__=_Schema, **_TEXTS)


class Concepts(_Schema):
    """Hold the concepts of the pairs; `like` appends both lists of another set."""

    like: _Text = ""
    train: _Texts = ()
    test: _Texts = ()


class Stated(_Schema):
    """Hold the words that state the attribute; those in `before_person` do so only before a word for a person."""

    like: _Text = ""
    words: _Any = ()  # an empty list: nothing counts as stated
    before_person: _Texts = ()


class Recipe(_Schema):
    """Define the schema of a file of prompts/; prompts/README.md describes its keys."""

    description: _Text = ""
    source: _Text = ""
    limits: _Text = ""
    note: _Text = ""
    classes: _Named = {}
    held_out_classes: _Named = {}
    spurious: _Texts = ()
    pairs: Annotated[tuple[_Pair, ...], Field(min_length=1)] = ()
    groups: _Groups = ()
    held_out_groups: _Groups = ()
    attribute: Annotated[dict[_Text, _Texts], Field(min_length=2), AfterValidator(_words_once)] = {}
    templates: _Texts = ()
    class_template: _Text = "A photo of a {concept}."
    concepts: Annotated[Concepts, _list_as("train")] = Concepts()
    pairing: Literal["aligned", "all"] = "aligned"
    stated_words: Annotated[Stated, _list_as("words")] = Stated()
    parts: _Texts = ()

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        """Refuse a file that writes its pairs in no way or in two: listed, made from words, or taken from parts."""
        keys, made, listed = self.model_fields_set, ("attribute", "templates", "concepts"), ("pairs", "groups")
        ways = [way for way in (listed, made[1:], ("parts",)) if keys.intersection(way)]
        if len(ways) != 1:
            came = " and ".join(key for way in ways for key in way if key in keys) or "no pairs"
            raise ValueError(f"pairs: got {came}; expected pairs or groups; or {', '.join(made)}; or parts")
        generated = ways[0] == made[1:]
        missing = [key for key in made if generated and key not in keys]
        others = ("classes", "held_out_classes", "held_out_groups") if generated else ("class_template", "pairing")
        for key in (*missing, *keys.intersection(others)):
            came = "no such key" if key in missing else "this key"
            raise ValueError(f"{key}: got {came}; expected {', '.join(made)} together, or none of them")
        return self


# ---- from a file to a set --------------------------------------------------------------------------------------


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Put the file or the set in front of every PromptSetError raised inside."""
    try:
        yield
    except PromptSetError as error:
        raise PromptSetError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None


def _validated(model: type[BaseModel], content: Any) -> Any:
    """Check content against a schema; the error names the first key that is wrong, in pydantic's words."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    said, came = str(first["msg"]).removeprefix("Value error, "), shortened(repr(first["input"]), 60)
    if first["type"] == "value_error" and not key:
        raise PromptSetError(f"{said}.")
    if first["type"] == "extra_forbidden":
        said = f"a known key; {did_you_mean(first['loc'][-1], Recipe.model_fields, 'take it out')}"
    elif first["type"] in ("string_type", "string_pattern_mismatch"):
        said = "text without spaces at either end, in quotes where YAML reads it as something else"
    raise PromptSetError(f"{key or 'file'}: got {came}; expected: {said}; see prompts/README.md.")


def _recipe(path: Path) -> Recipe:
    try:
        recipe: Recipe = _validated(Recipe, read_yaml(path))
    except InvalidInputError as error:
        raise PromptSetError(str(error)) from None
    return recipe


def _made(content: Any, name: str) -> PromptSet:
    with _naming(f"prompt set {name!r}"):
        return _build(_validated(Recipe, content), name)


def _build(recipe: Recipe, name: str) -> PromptSet:
    """The set that a file describes."""
    words = tuple(chain(*recipe.attribute.values()))
    fields: dict[str, Any] = {key: getattr(recipe, key) for key in ("description", "source", "limits", "note")}
    fields |= _generated(recipe) if recipe.templates else _listed(recipe)
    fields |= {"attributes": recipe.attribute, "stated_words": words, "spurious": []}
    if "stated_words" in recipe.model_fields_set:
        fields["stated_words"] = _stated(recipe.stated_words)
    for i, template in enumerate(recipe.spurious):
        check_slots(f"spurious[{i}]", template, optional=("attribute",))
        if "{" in template and not words:
            raise PromptSetError(f"spurious[{i}]: got {template!r}; expected an 'attribute' to fill it with.")
        fields["spurious"] += [fill(template, attribute=word) for word in words] if "{" in template else [template]
    parts = []
    for part in recipe.parts:
        own = _recipe(prompt_file(part))
        if own.parts:  # also what keeps two sets from being parts of each other
            raise PromptSetError(f"parts: got {part!r}, which has parts itself; expected sets of one attribute.")
        parts.append(_build(own, part))
    for key in (*_LISTS, *_GROUPS, "stated_words") if parts else ():
        fields[key] = tuple(dict.fromkeys(chain(fields[key], *(getattr(part, key) for part in parts))))
    return PromptSet(name=name, parts=tuple(parts), _recipe=recipe, **fields)


def _borrowed(name: str, key: str) -> Any:
    """What another packaged set writes under a key, literally: one level, so that there are no circles."""
    recipe = _recipe(prompt_file(name))
    if key not in recipe.model_fields_set or getattr(recipe, key).like:
        raise PromptSetError(f"{key}.like: got {name!r}; expected a set that spells out its {key}.")
    return getattr(recipe, key)


def _stated(own: Stated) -> Prompts:
    if not own.model_fields_set:
        raise PromptSetError("stated_words: got no words; expected words, before_person or like.")
    other = _borrowed(own.like, "stated_words") if own.like else Stated()
    words, adjectives = [*own.words, *other.words], [*own.before_person, *other.before_person]
    if adjectives:  # "white" states a race in "a white doctor", not in "a doctor in a white coat"
        concepts = _borrowed("professions-gender", "concepts")
        nouns = [form for noun in (*concepts.train, *concepts.test) for form in (noun, f"{noun}s")]
        words += [f"{one} {noun}" for one in adjectives for noun in dict.fromkeys((*_PEOPLE.split(), *nouns))]
    return tuple(dict.fromkeys(words))


def _listed(recipe: Recipe) -> dict[str, Any]:
    fields: dict[str, Any] = {"groups": (*recipe.groups, *recipe.pairs), "held_out_groups": recipe.held_out_groups}
    for kind, classes in (("", recipe.classes), ("held_out_", recipe.held_out_classes)):
        fields |= {f"{kind}classes": tuple(classes.values()), f"{kind}class_names": tuple(classes)}
    return fields


def _generated(recipe: Recipe) -> dict[str, Any]:
    for i, template in enumerate(recipe.templates):
        check_slots(f"templates[{i}]", template, ("attribute", "concept"))
    check_slots("class_template", recipe.class_template, ("concept",))
    own, like = recipe.concepts, recipe.concepts.like
    other = _borrowed(like, "concepts") if like else Concepts()
    names = {"": (*own.train, *other.train), "held_out_": (*own.test, *other.test)}
    if not names[""] or len({*chain(*names.values())}) < sum(map(len, names.values())):
        raise PromptSetError("concepts: expected at least one under 'train:', and each once, in train or in test.")
    rows: list[Prompts] = [tuple(chain(*recipe.attribute.values()))]
    if recipe.pairing == "aligned":
        counts = {value: len(words) for value, words in recipe.attribute.items()}
        if len(set(counts.values())) > 1:
            raise PromptSetError(f"attribute: got word counts {counts}; expected equal ones, or 'pairing: all'.")
        rows = list(zip(*recipe.attribute.values(), strict=True))
    _check_size(rows, len(recipe.templates) * sum(map(len, names.values())))
    fields: dict[str, Any] = {"templates": recipe.templates}
    for kind, some in names.items():
        fields[f"{kind}class_names"] = some
        fields[f"{kind}classes"] = tuple(fill(recipe.class_template, concept=concept) for concept in some)
        fields[f"{kind}groups"] = tuple(
            tuple(fill(template, attribute=word, concept=concept) for word in row)
            for concept in some
            for template in recipe.templates
            for row in rows
        )
    return fields


def _check_size(rows: Sequence[Sequence[str]], times: int = 1) -> None:
    # Before the prompts are made: a file of a few lines can stand for billions of pairs.
    pairs = times * sum(len(row) * (len(row) - 1) // 2 for row in rows)
    if pairs > MAX_PAIRS:
        raise PromptSetError(f"pairs: got {pairs:,} pairs; expected at most {MAX_PAIRS:,}.")
