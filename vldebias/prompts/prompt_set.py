"""Prompt sets: the prompts that name the classes, the spurious attribute, and the pairs that should agree."""

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import yaml

from vldebias.errors import PromptSetError
from vldebias.files import prompt_file, prompt_names
from vldebias.prompts.recipe import Recipe, fill, naming, read_recipe, refuse, validate
from vldebias.prompts.stated_words import StatedWords

Prompts = tuple[str, ...]
Pair = tuple[str, str]

AGNOSTIC = "a photo of a {attribute}"

_LISTS = ("classes", "class_names", "spurious", "held_out_classes", "held_out_class_names")
_ENDINGS = (".yaml", ".yml")
_GROUPS = ("groups", "held_out_groups")


@dataclass(frozen=True)
class PromptSet:
    """Prompts around one spurious attribute, which must not decide about the classes.

    Attributes:
        name: stem of the YAML file it comes from, or the name it was made with.
        groups: prompts that differ in the attribute alone; every two prompts of a group are a pair. A group
            of two is an ordinary pair. Of a larger one the pair sum is had from the scatter around its mean.
        spurious: prompts that describe the attribute (columns of A in P0 = I - A (A^T A)^+ A^T).
        classes: prompts that name what should be kept, one per name in `class_names`.
        held_out_groups, held_out_classes, held_out_class_names: the same for concepts that `groups` does not
            use, to measure on unseen prompts.
        attributes: value of the attribute -> words for it.
        templates: what made `groups`; empty where they are listed one by one.
        stated_words: words and phrases by which a prompt states the attribute (see `StatedWords`).
        parts: the one-attribute sets of a set over several attributes, else empty. Solve them jointly, with one
            term each: `groups` pools them, and there the attribute with the most pairs drowns the others.
        description, source, limits, note: prose: what for, where from, what not, what to know.

    Raises:
        PromptSetError: a field is not a tuple of texts, a group has fewer than two prompts or one twice, a
            prompt is listed twice, or classes and their names differ in number.
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
    _recipe: Recipe | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        with naming(f"prompt set {self.name!r}"):
            _check(self)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Every pair of every group, in the order of the groups."""
        return _pairs(self.groups)

    @cached_property
    def held_out_pairs(self) -> tuple[Pair, ...]:
        """Every pair of every held-out group."""
        return _pairs(self.held_out_groups)

    @cached_property
    def texts(self) -> Prompts:
        """Every text that fitting and asking embed, each once: classes, spurious prompts, both sides of the pairs."""
        own = (*self.classes, *self.held_out_classes, *self.spurious)
        groups = (*self.groups, *self.held_out_groups, *(part.texts for part in self.parts))
        return tuple(dict.fromkeys((*own, *chain.from_iterable(groups))))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of prompts, words and their order; not of name, prose, or the formatting of a file."""
        content = {key: getattr(self, key) for key in (*_LISTS, *_GROUPS, "stated_words")}
        content["attributes"] = list(self.attributes.items())
        content["parts"] = [part.hash for part in self.parts]
        text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def values_in(self, text: str) -> tuple[str, ...]:
        """The values of the attribute (of all attributes, where the set has parts) that a text names, in their order.

        Whole words from left to right, the longest phrase first (`StatedWords`), so that "an East Asian man" does not
        name "Asian" as well. A text states a value if it names this one alone.
        """
        words, owners = self._words_of_values
        named = {value for word in words.find(text) for value in owners[word]}
        return tuple(value for value in self._values if value in named)

    def by_value(self, texts: Iterable[str] | None = None) -> dict[str, tuple[str, ...]]:
        """Value of the attribute -> the texts that name this value and no other: those of a zero-shot classifier.

        Args:
            texts: to choose from; a value may then be left without one. None: the spurious prompts where they cover
                every value, since they are about the attribute alone, else the groups.

        Raises:
            PromptSetError: without `texts`, and the set has no attribute words or several attributes, or a value has
                no prompt of its own.
        """
        if texts is not None:
            named = {text: self.values_in(text) for text in dict.fromkeys(texts)}
            return {value: tuple(text for text, hit in named.items() if hit == (value,)) for value in self._values}
        if self.parts or len(self.attributes) < 2:
            kind = f"{len(self.parts)} attributes" if self.parts else "no words for its attribute"
            raise PromptSetError(
                f"prompt set {self.name!r}: expected one attribute with words for each value, got {kind}; "
                "use the sets of one attribute, or give the set an `attribute` mapping"
            )
        empty = [value for value, own in self._prompts_of_values.items() if not own]
        if empty:
            raise PromptSetError(
                f"prompt set {self.name!r}: no prompt names a word of {empty} alone; add one under `spurious`"
            )
        return dict(self._prompts_of_values)

    @property
    def names_values(self) -> bool:
        """Whether `by_value()` has an answer: it is about one attribute, each value of which has prompts of its own."""
        return not self.parts and len(self.attributes) > 1 and all(self._prompts_of_values.values())

    @cached_property
    def _prompts_of_values(self) -> dict[str, Prompts]:
        """Value -> the spurious prompts that name it alone, or prompts of the groups where some value has none."""
        prompts = self.by_value(self.spurious)
        return prompts if all(prompts.values()) else self.by_value(chain(*self.groups))

    @cached_property
    def _values(self) -> dict[str, Prompts]:
        """Value -> words, of all parts."""
        values: dict[str, Prompts] = {}
        for part in self.parts or (self,):
            for value, words in part.attributes.items():
                values[value] = (*values.get(value, ()), *words)
        return values

    @cached_property
    def _words_of_values(self) -> tuple[StatedWords, dict[str, list[str]]]:
        """The words of all values, and the values that each stands for; equal but for their case, they are one."""
        words = StatedWords(chain(*self._values.values()))
        owners: dict[str, list[str]] = {word: [] for word in words.words}
        for value, own in self._values.items():
            for word in own:
                owners[words.find(word)[0]].append(value)
        return words, owners

    def class_agnostic(self) -> "PromptSet":
        """The set with pairs of "a photo of a [attribute word]", which name no class; all else stays (Table A.9).

        Section A.4.2 of the thesis takes "a photo of a [spurious attribute]" in the place of "a photo of a [class
        name] with [spurious attribute]" and finds that robustness drops: class names matter. Pairs of the spurious
        prompts themselves would not do: their differences lie in the span of A, where P0 is zero, so that
        P0 (I + lam M)^-1 = P0. The paper's rows differ, so its pairs were other sentences, which it does not print;
        these are the quoted template, filled with the words of the set.

        Values with as many words each are paired word by word, in their order (CelebA: male and female, man and
        woman). Otherwise all words are one group, every two of them a pair, as Table A.5 has it for Waterbirds.
        A set over several attributes is changed part by part.

        Raises:
            PromptSetError: the set names no words of its attribute.
        """
        parts = tuple(part.class_agnostic() for part in self.parts)
        if not (parts or self.attributes):
            raise PromptSetError(
                f"{self.name}: class-agnostic pairs are made of the words of the attribute and the set names none; "
                "give it `attribute: {value: [word, ...], ...}`"
            )
        rows = [tuple(fill(AGNOSTIC, attribute=word) for word in words) for words in self.attributes.values()]
        aligned = len(set(map(len, rows))) == 1
        groups = tuple(zip(*rows, strict=True)) if aligned else (tuple(dict.fromkeys(chain(*rows))),)
        if parts:
            groups = tuple(dict.fromkeys(group for part in parts for group in part.groups))
        name = f"{self.name}, class-agnostic"
        return replace(self, name=name, parts=parts, groups=groups, held_out_groups=())

    def __repr__(self) -> str:
        counts = f"{len(self.classes)} classes, {len(self.spurious)} spurious, {len(self.pairs)} pairs"
        return f"PromptSet({self.name!r}, {counts}, hash={self.hash[:12]})"

    def to_yaml(self, path: str | Path) -> Path:
        """Write a file that `load_prompts` reads back (its stem becomes the name) and return its path.

        A set made from words stays words, templates and concepts; any other is written prompt by prompt, and
        its templates are then lost.

        Raises:
            PromptSetError: the path does not end in .yaml, or a changed set has parts.
        """
        path = Path(path)
        if path.suffix not in _ENDINGS:
            refuse("path", repr(str(path)), "a name that ends in .yaml", "add the ending")
        text = yaml.safe_dump(self._content(), sort_keys=False, allow_unicode=True, width=110)
        path.write_text(text, encoding="utf-8")
        return path

    def _content(self) -> dict[str, Any]:
        # A copy by dataclasses.replace carries the recipe of its original: only a recipe that still makes
        # this set is written.
        if self._recipe is not None and _build(self._recipe, self.name) == self:
            return self._recipe.model_dump(exclude_unset=True)
        if self.parts:
            refuse("parts", "a changed set of several attributes", "one attribute", "write its parts one by one")
        content = {
            **{key: getattr(self, key) for key in ("description", "source", "limits", "note")},
            "classes": dict(zip(self.class_names, self.classes, strict=True)),
            "held_out_classes": dict(zip(self.held_out_class_names, self.held_out_classes, strict=True)),
            "spurious": list(self.spurious),
            "attribute": {value: list(words) for value, words in self.attributes.items()},
            **{key: [list(group) for group in getattr(self, key)] for key in _GROUPS},
        }
        content = {key: value for key, value in content.items() if value}
        return content | {"stated_words": list(self.stated_words)}  # also where empty, against the default


def list_prompts() -> list[str]:
    """Names of the sets that come with the package, sorted: the stems of prompts/*.yaml."""
    return prompt_names()


def load_prompts(name_or_path: str | Path | Mapping[str, Any] | PromptSet) -> PromptSet:
    """A prompt set by its name or from a YAML file; a PromptSet comes back unchanged.

    Args:
        name_or_path: a name from `list_prompts`; or a path: a Path, or a text with a folder or .yaml in it; or what
            such a file holds, as a mapping, with a `name` beside it ("custom" without one).

    Raises:
        PromptSetError: unknown name, or a file that cannot be read or does not follow the schema; the message
            names file and key, what came, what was expected and what to do.
    """
    if isinstance(name_or_path, PromptSet):
        return name_or_path
    if isinstance(name_or_path, Mapping):
        content = dict(name_or_path)
        name = str(content.pop("name", "custom"))
        with naming(f"prompt set {name!r}"):
            return _build(validate(content), name)
    if not isinstance(name_or_path, (str, Path)):
        came = f"{name_or_path!r} ({type(name_or_path).__name__})"
        names = f"names are {', '.join(list_prompts())}"
        refuse("prompts", came, "a name, a path or a PromptSet, or a mapping with the keys of a file", names)
    path = Path(name_or_path)
    if not isinstance(name_or_path, Path) and path.suffix not in _ENDINGS and len(path.parts) < 2:
        return _read_once(prompt_file(name_or_path))
    return _read(path.expanduser())


def _read(path: Path) -> PromptSet:
    recipe = read_recipe(path)
    with naming(str(path)):
        return _build(recipe, path.stem)


_read_once = cache(_read)  # what comes with the package does not change


def make_prompt_set(
    name: str,
    attribute: Mapping[str, Sequence[str]],
    concepts: Sequence[str],
    templates: Sequence[str] = ("A photo of a {attribute} {concept}.",),
    spurious: Sequence[str] | None = None,
    *,
    test_concepts: Sequence[str] = (),
    class_template: str = "A photo of a {concept}.",
    stated_words: Sequence[str] = (),
    pairing: str = "aligned",
    description: str = "A custom set.",
    source: str = "made from a word list",
) -> PromptSet:
    """A set from a short word list: attribute words x templates x concepts make the pairs.

    Args:
        name: what to call it.
        attribute: value -> words: {"male": ["male", "man"], "female": ["female", "woman"]}.
        concepts: what the pairs are about: ["doctor", "nurse"].
        templates: each with {attribute} and {concept}; "a" before either becomes "an" where it has to.
        spurious: prompts for the attribute alone; {attribute} stands for each word in turn.
            None: "A photo of a {attribute}." (section 7.3.1 of the thesis). An empty list: no such prompts.
        test_concepts: concepts for the held-out groups.
        class_template: the prompt without the attribute, with {concept}.
        stated_words: words by which a prompt states the attribute; none: the words of `attribute`.
        pairing: "aligned": first words of all values are a group, second words another, and so on.
            "all": all words of all values are one group, as the paper has it for Waterbirds.

    Raises:
        PromptSetError: as `load_prompts`, naming the argument.
    """
    if not isinstance(attribute, Mapping):
        refuse("attribute", repr(attribute), "a mapping of values to words", "write {'male': ['male', 'man'], ...}")
    content = {
        "description": description,
        "source": source,
        "attribute": {value: _list(words) for value, words in attribute.items()},
        "templates": _list(templates),
        "class_template": class_template,
        "concepts": {"train": _list(concepts)} | ({"test": _list(test_concepts)} if test_concepts else {}),
        "pairing": pairing,
    }
    default = ["A photo of a {attribute}."] if spurious is None else _list(spurious)
    optional = {"spurious": default, "stated_words": _list(stated_words)}
    with naming(f"prompt set {name!r}"):
        return _build(validate(content | {key: value for key, value in optional.items() if value}), name)


def _list(words: Sequence[str]) -> Any:
    """A list for the schema, which refuses by name what is none: a text would fall apart into letters."""
    return list(words) if isinstance(words, (list, tuple)) else words


def _build(recipe: Recipe, name: str) -> PromptSet:
    fields = recipe.fields()
    if recipe.parts:
        parts = []
        for part_name in recipe.parts:
            own = read_recipe(prompt_file(part_name))
            if own.parts:  # also what keeps two sets from being parts of each other
                refuse("parts", f"{part_name!r}, which has parts itself", "sets of one attribute", "name its parts")
            parts.append(_build(own, part_name))
        for key in (*_LISTS, *_GROUPS, "stated_words"):
            fields[key] = tuple(dict.fromkeys(chain(fields[key], *(getattr(part, key) for part in parts))))
        fields["parts"] = tuple(parts)
    return PromptSet(name=name, _recipe=recipe, **fields)


def _pairs(groups: Sequence[Prompts]) -> tuple[Pair, ...]:
    return tuple(pair for group in groups for pair in combinations(group, 2))


def _check(prompts: PromptSet) -> None:
    for key in (*_LISTS, "templates", "stated_words"):
        _check_texts(key, getattr(prompts, key))
    for key in _GROUPS:
        groups = getattr(prompts, key)
        if not isinstance(groups, tuple):
            refuse(key, f"{groups!r}", "a tuple of groups", "write ((prompt, prompt),)")
        for i, group in enumerate(groups):
            _check_texts(f"{key}[{i}]", group)
            if len(group) < 2:
                refuse(f"{key}[{i}]", f"{len(group)} prompt", "two or more", "add the prompts it is paired with")
        repeated = _repeated(frozenset(pair) for pair in _pairs(groups))
        if repeated:
            refuse(key, f"the pair {sorted(repeated[0])} twice", "each pair once", "take one of them out")
    if not isinstance(prompts.attributes, Mapping) or len(prompts.attributes) == 1:
        expected = "two or more values and their words"
        refuse("attributes", f"{prompts.attributes!r}", expected, "write {value: words, ...}")
    for value, words in prompts.attributes.items():
        _check_texts(f"attributes[{value!r}]", words)
    if not prompts.groups:
        refuse("groups", "no groups", "at least one group of two prompts", "add one")
    for kind in ("", "held_out_"):
        names, classes = getattr(prompts, f"{kind}class_names"), getattr(prompts, f"{kind}classes")
        if len(names) != len(classes):
            refuse(f"{kind}class_names", f"{len(names)} names", f"{len(classes)}, one per class", "name each")
    seen = set(chain(*prompts.groups)).intersection(chain(*prompts.held_out_groups))
    if seen:
        refuse("held_out_groups", f"{min(seen)!r}, which groups has", "unseen prompts", "take it out of one")


def _check_texts(key: str, texts: object) -> None:
    if not isinstance(texts, tuple) or not all(
        isinstance(text, str) and text and text == text.strip() for text in texts
    ):
        refuse(key, f"{texts!r}", "a tuple of texts without spaces at the ends", "write (text,) for a single one")
    repeated = _repeated(texts)
    if repeated:
        refuse(key, f"{repeated[0]!r} twice", "each once", "take one of them out")


def _repeated(items: Iterable[Hashable]) -> list[Any]:
    return [item for item, count in Counter(items).items() if count > 1]
