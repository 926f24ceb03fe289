"""Prompt sets: the prompts that name the classes, the spurious attribute, and the pairs that should agree."""

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import yaml

from vldebias.recipes import Recipe, fail, naming, read_recipe, render, validate
from vldebias.resources import prompt_file, prompt_names

__all__ = ["PromptSet", "list_prompts", "load_prompts", "make_prompt_set"]

Prompts = tuple[str, ...]
Pair = tuple[str, str]

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
    def hash(self) -> str:
        """SHA-256 of prompts, words and their order; not of name, prose, or the formatting of a file."""
        content = {key: getattr(self, key) for key in (*_LISTS, *_GROUPS, "stated_words")}
        content["attributes"] = list(self.attributes.items())
        content["parts"] = [part.hash for part in self.parts]
        text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

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
            fail("path", repr(str(path)), "a name that ends in .yaml", "add the ending")
        text = yaml.safe_dump(self._content(), sort_keys=False, allow_unicode=True, width=110)
        path.write_text(text, encoding="utf-8")
        return path

    def _content(self) -> dict[str, Any]:
        # A copy by dataclasses.replace carries the recipe of its original: only a recipe that still makes
        # this set is written.
        if self._recipe is not None and _build(self._recipe, self.name) == self:
            return self._recipe.model_dump(exclude_unset=True)
        if self.parts:
            fail("parts", "a changed set of several attributes", "one attribute", "write its parts one by one")
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


def load_prompts(name_or_path: str | Path | PromptSet) -> PromptSet:
    """A prompt set by its name or from a YAML file; a PromptSet comes back unchanged.

    Args:
        name_or_path: a name from `list_prompts`, or a path: a Path, or a text with a folder or .yaml in it.

    Raises:
        PromptSetError: unknown name, or a file that cannot be read or does not follow the schema; the message
            names file and key, what came, what was expected and what to do.
    """
    if isinstance(name_or_path, PromptSet):
        return name_or_path
    path = _locate(name_or_path)
    with naming(str(path)):
        return _build(read_recipe(path), path.stem)


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
        fail("attribute", repr(attribute), "a mapping of values to words", "write {'male': ['male', 'man'], ...}")
    default = ["A photo of a {attribute}."]
    content = {
        "description": description,
        "source": source,
        "attribute": {value: _list(words) for value, words in attribute.items()},
        "templates": _list(templates),
        "class_template": class_template,
        "concepts": {"train": _list(concepts)} | ({"test": _list(test_concepts)} if test_concepts else {}),
        "pairing": pairing,
    }
    optional = {
        "spurious": default if spurious is None else _list(spurious),
        "stated_words": _list(stated_words),
    }
    with naming(f"prompt set {name!r}"):
        return _build(validate(content | {key: value for key, value in optional.items() if value}), name)


def _list(words: Sequence[str]) -> Any:
    """A list for the schema, which refuses by name what is none: a text would fall apart into letters."""
    return list(words) if isinstance(words, (list, tuple)) else words


def _locate(name_or_path: str | Path) -> Path:
    if not isinstance(name_or_path, (str, Path)):
        came = f"{name_or_path!r} ({type(name_or_path).__name__})"
        fail("prompts", came, "a name, a path or a PromptSet", f"names are {', '.join(list_prompts())}")
    path = Path(name_or_path)
    if isinstance(name_or_path, Path) or path.suffix in _ENDINGS or len(path.parts) > 1:
        return path.expanduser()
    return prompt_file(name_or_path)


def _build(recipe: Recipe, name: str) -> PromptSet:
    fields = render(recipe)
    if recipe.parts:
        fields |= _joined(fields, tuple(_part(part) for part in recipe.parts))
    return PromptSet(name=name, _recipe=recipe, **fields)


def _part(name: str) -> PromptSet:
    path = prompt_file(name)
    with naming(path.name):
        recipe = read_recipe(path)
        if recipe.parts:  # also what keeps two sets from being parts of each other
            fail("parts", f"{name!r}, which has parts itself", "sets of one attribute", "name its parts")
        return _build(recipe, path.stem)


def _joined(fields: dict[str, Any], parts: tuple[PromptSet, ...]) -> dict[str, Any]:
    joined: dict[str, Any] = {"parts": parts}
    for key in (*_LISTS, *_GROUPS, "stated_words"):
        joined[key] = tuple(dict.fromkeys(chain(fields[key], *(getattr(part, key) for part in parts))))
    return joined


def _pairs(groups: Sequence[Prompts]) -> tuple[Pair, ...]:
    return tuple(pair for group in groups for pair in combinations(group, 2))


def _check(prompts: PromptSet) -> None:
    for key in (*_LISTS, "templates", "stated_words"):
        _check_texts(key, getattr(prompts, key))
    for key in _GROUPS:
        _check_groups(key, getattr(prompts, key))
    _check_attributes(prompts.attributes)
    if not prompts.groups:
        fail("groups", "no groups", "at least one group of two prompts", "add one")
    for kind in ("", "held_out_"):
        names, classes = getattr(prompts, f"{kind}class_names"), getattr(prompts, f"{kind}classes")
        if len(names) != len(classes):
            fail(f"{kind}class_names", f"{len(names)} names", f"{len(classes)}, one per class", "name each")
    seen = set(chain(*prompts.groups)).intersection(chain(*prompts.held_out_groups))
    if seen:
        fail("held_out_groups", f"{min(seen)!r}, which groups has", "unseen prompts", "take it out of one")


def _check_attributes(attributes: object) -> None:
    if not isinstance(attributes, Mapping) or len(attributes) == 1:
        fail("attributes", f"{attributes!r}", "two or more values and their words", "write {value: words, ...}")
    for value, words in attributes.items():
        _check_texts(f"attributes[{value!r}]", words)


def _check_texts(key: str, texts: object) -> None:
    if not isinstance(texts, tuple) or not all(map(_is_text, texts)):
        fail(key, f"{texts!r}", "a tuple of texts without spaces at the ends", "write (text,) for a single one")
    repeated = _repeated(texts)
    if repeated:
        fail(key, f"{repeated[0]!r} twice", "each once", "take one of them out")


def _check_groups(key: str, groups: object) -> None:
    if not isinstance(groups, tuple):
        fail(key, f"{groups!r}", "a tuple of groups", "write ((prompt, prompt),)")
    for i, group in enumerate(groups):
        _check_texts(f"{key}[{i}]", group)
        if len(group) < 2:
            fail(f"{key}[{i}]", f"{len(group)} prompt", "two or more", "add the prompts it is paired with")
    repeated = _repeated(frozenset(pair) for pair in _pairs(groups))
    if repeated:
        fail(key, f"the pair {sorted(repeated[0])} twice", "each pair once", "take one of them out")


def _is_text(text: object) -> bool:
    return isinstance(text, str) and bool(text) and text == text.strip()


def _repeated(items: Iterable[Hashable]) -> list[Any]:
    return [item for item, count in Counter(items).items() if count > 1]
