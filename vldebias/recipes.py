"""The YAML schema of a prompt set, and the prompts that a file in it stands for."""

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictStr, ValidationError

from vldebias.errors import PromptSetError
from vldebias.resources import prompt_file
from vldebias.stated import before_person
from vldebias.templates import check_slots, fill

__all__ = ["MAX_BYTES", "MAX_PAIRS", "Recipe", "fail", "naming", "read_recipe", "render", "validate"]

MAX_BYTES = 1_000_000
MAX_PAIRS = 200_000


def fail(key: str, came: str, expected: str, remedy: str) -> NoReturn:
    """Raise a PromptSetError of the form: key: got ...; expected ...; remedy."""
    raise PromptSetError(f"{key}: got {came}; expected {expected}; {remedy}.")


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Put the file or the set in front of every PromptSetError raised inside."""
    try:
        yield
    except PromptSetError as error:
        raise PromptSetError(f"{where}: {error}") from None


# ---- the schema --------------------------------------------------------------------------------------------


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


class Stated(_Strict):
    """Words that state the attribute; `before_person` only do so in front of a word for a person."""

    like: _Text | None = None
    words: list[_Text] | None = None  # an empty list: nothing counts as stated
    before_person: _Texts | None = None


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
    stated_words: Annotated[Stated, _bare_list_as("words")] | None = None
    parts: _Texts | None = None


# ---- reading and validating --------------------------------------------------------------------------------


def read_recipe(path: Path) -> Recipe:
    """Read and validate one file; the error names the key, not the file (see `naming`)."""
    return validate(_read(path))


def validate(content: object) -> Recipe:
    """Check the parsed content of a file against the schema.

    Raises:
        PromptSetError: for the first key that is unknown, missing or of the wrong kind.
    """
    if not isinstance(content, dict):
        fail("file", _show(content), "a mapping of keys to values", "see prompts/README.md for the keys")
    _refuse_nothing(content)
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        _explain(error, content)
    _check_keys(recipe)
    return recipe


def _refuse_nothing(content: Mapping[Any, Any], prefix: str = "") -> None:
    for key, value in content.items():
        if value is None:
            fail(f"{prefix}{key}", "nothing", "a value", "write one after the colon, or take the key out")
        if isinstance(value, dict):
            _refuse_nothing(value, f"{prefix}{key}.")


def _read(path: Path) -> object:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        fail("file", f"{type(error).__name__} ({error.strerror})", "a file that can be read", "check the path")
    if len(data) > MAX_BYTES:
        fail("file", f"more than {MAX_BYTES:,} bytes", "a short list of prompts", "split it into several sets")
    try:
        text = data.decode("utf-8")
        _refuse_repeated_keys(yaml.compose(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        fail("file", " ".join(str(error).split()), "YAML in UTF-8", "correct the file at that place")


def _refuse_repeated_keys(node: yaml.Node | None, depth: int = 0) -> None:
    """YAML keeps the last of two equal keys without a word: half a word list would vanish."""
    if not isinstance(node, yaml.MappingNode) or depth > 2:  # the schema has no deeper mappings
        return
    seen = set()
    for key, value in node.value:
        if key.value in seen:
            line = key.start_mark.line + 1
            fail(str(key.value), f"the key a second time in line {line}", "each key once", "merge the two")
        seen.add(key.value)
        _refuse_repeated_keys(value, depth + 1)


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
    key = _path(first["loc"])
    kind = first["type"]
    if kind == "extra_forbidden":
        _unknown_key(first["loc"])
    if kind == "missing":
        fail(key, f"no such key among {sorted(map(str, content))}", "the key", f"add '{key}: ...'")
    expected, remedy = _EXPECTED.get(kind, (str(first["msg"]).removeprefix("Value error, "), "correct it"))
    if kind == "too_short":
        expected = f"at least {first['ctx']['min_length']} items"
    fail(key, _show(first["input"]), expected, remedy)


def _path(loc: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _unknown_key(loc: Sequence[str | int]) -> NoReturn:
    inner: dict[str | int, type[BaseModel]] = {"concepts": Concepts, "stated_words": Stated}
    known = sorted((inner[loc[0]] if len(loc) > 1 else Recipe).model_fields)
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    remedy = f"did you mean {close[0]!r}?" if close else "take it out"
    raise PromptSetError(f"{_path(loc)}: unknown key; expected one of {', '.join(known)}; {remedy}")


_GENERATED = ("templates", "concepts")
_LISTED = ("pairs", "groups")


def _check_keys(recipe: Recipe) -> None:
    """Each file writes its pairs in one way: listed, made from words, or taken from parts."""
    given = recipe.model_fields_set
    ways = [way for way in (_LISTED, _GENERATED, ("parts",)) if given.intersection(way)]
    if len(ways) != 1:
        came = " and ".join(key for way in ways for key in way if key in given) or "no pairs"
        choice = "pairs or groups; or attribute, templates and concepts; or parts"
        fail("pairs", came, f"one way to write them: {choice}", "choose one")
    generated = ways[0] is _GENERATED
    for key in ("attribute", *_GENERATED):
        if generated and key not in given:
            fail(key, "no such key", "attribute, templates and concepts together", f"add '{key}: ...'")
    for key in ("classes", "held_out_classes", "held_out_groups") if generated else ("class_template", "pairing"):
        if key in given:
            other = "beside templates, which make it" if generated else "without templates"
            fail(key, "this key", f"it not to be there {other}", "take it out")


# ---- what a recipe makes -----------------------------------------------------------------------------------


def render(recipe: Recipe) -> dict[str, Any]:
    """Fields of the PromptSet that a recipe describes (a set of parts: without `groups` and `parts`)."""
    attributes = {value: tuple(words) for value, words in (recipe.attribute or {}).items()}
    _check_attribute(attributes)
    fields = {name: getattr(recipe, name) or "" for name in ("description", "source", "limits", "note")}
    fields |= {"attributes": attributes, "spurious": _spurious(recipe, attributes)}
    fields |= {"stated_words": _stated(recipe.stated_words, attributes)}
    fields |= _generated(recipe, recipe.concepts, attributes) if recipe.concepts else _listed(recipe)
    return fields


def _check_attribute(attributes: Mapping[str, tuple[str, ...]]) -> None:
    seen: dict[str, str] = {}
    for value, words in attributes.items():
        for word in words:
            if word in seen:
                came = f"{word!r} under {seen[word]!r} and under {value!r}"
                fail("attribute", came, "each word once", "take one of them out")
            seen[word] = value


def _spurious(recipe: Recipe, attributes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    words = [word for value in attributes.values() for word in value]
    prompts: list[str] = []
    for i, template in enumerate(recipe.spurious or ()):
        check_slots(f"spurious[{i}]", template, optional=("attribute",))
        if "{" in template and not words:
            fail(f"spurious[{i}]", repr(template), "an 'attribute' to fill it with", "add 'attribute: ...'")
        prompts += [fill(template, attribute=word) for word in words] if "{" in template else [template]
    return tuple(prompts)


def _stated(stated: Stated | None, attributes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if stated is None:
        return tuple(word for words in attributes.values() for word in words)
    words, adjectives = list(stated.words or ()), list(stated.before_person or ())
    if stated.like:
        other = _borrow(stated.like, "stated_words")
        words += other.words or ()
        adjectives += other.before_person or ()
    if adjectives:
        professions = _borrow("professions-gender", "concepts")
        words += before_person(adjectives, [*(professions.train or ()), *(professions.test or ())])
    if not stated.model_fields_set:
        fail("stated_words", "no words", "words, before_person or like", "add one of them")
    return tuple(dict.fromkeys(words))


def _borrow(name: str, key: str) -> Any:
    """What another packaged set writes under a key, literally: one level, so that there are no circles."""
    path = prompt_file(name)
    with naming(path.name):
        value = getattr(read_recipe(path), key)
    if value is None or value.like:
        fail(f"{key}.like", repr(name), f"a set that spells out its {key}", "name the set it takes them from")
    return value


def _listed(recipe: Recipe) -> dict[str, Any]:
    classes, held_out = recipe.classes or {}, recipe.held_out_classes or {}
    groups = [*(recipe.groups or ()), *(recipe.pairs or ())]
    held_out_groups = recipe.held_out_groups or []
    _check_size([*groups, *held_out_groups])
    return {
        "groups": tuple(map(tuple, groups)),
        "held_out_groups": tuple(map(tuple, held_out_groups)),
        "classes": tuple(classes.values()),
        "class_names": tuple(classes),
        "held_out_classes": tuple(held_out.values()),
        "held_out_class_names": tuple(held_out),
    }


def _generated(recipe: Recipe, concepts: Concepts, attributes: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    templates = tuple(recipe.templates or ())
    for i, template in enumerate(templates):
        check_slots(f"templates[{i}]", template, ("attribute", "concept"))
    check_slots("class_template", recipe.class_template, ("concept",))
    train, test = _concepts(concepts)
    rows = _rows(attributes, recipe.pairing)
    _check_size(rows, len(templates) * (len(train) + len(test)))

    def groups(names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        return tuple(
            tuple(fill(template, attribute=word, concept=concept) for word in row)
            for concept in names
            for template in templates
            for row in rows
        )

    return {
        "templates": templates,
        "groups": groups(train),
        "held_out_groups": groups(test),
        "classes": tuple(fill(recipe.class_template, concept=concept) for concept in train),
        "class_names": train,
        "held_out_classes": tuple(fill(recipe.class_template, concept=concept) for concept in test),
        "held_out_class_names": test,
    }


def _concepts(concepts: Concepts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    train, test = list(concepts.train or ()), list(concepts.test or ())
    if concepts.like:
        other = _borrow(concepts.like, "concepts")
        train += other.train or ()
        test += other.test or ()
    if not train:
        fail("concepts", "no train concepts", "at least one", "add 'train: [...]'")
    repeated = next((concept for concept, n in Counter([*train, *test]).items() if n > 1), None)
    if repeated:
        fail("concepts", f"{repeated!r} twice", "each concept once, in train or in test", "take one out")
    return tuple(train), tuple(test)


def _rows(attributes: Mapping[str, tuple[str, ...]], pairing: str) -> tuple[tuple[str, ...], ...]:
    if pairing == "all":
        return (tuple(word for words in attributes.values() for word in words),)
    counts = {value: len(words) for value, words in attributes.items()}
    if len(set(counts.values())) > 1:
        remedy = "give every value as many words, or write 'pairing: all' to pair every word with every other"
        fail("attribute", f"word counts {counts}", "the same number of words for every value", remedy)
    return tuple(zip(*attributes.values(), strict=True))


def _check_size(rows: Sequence[Sequence[str]], times: int = 1) -> None:
    # Before the prompts are made: a file of a few lines can stand for billions of pairs.
    pairs = times * sum(len(row) * (len(row) - 1) // 2 for row in rows)
    if pairs > MAX_PAIRS:
        fail("pairs", f"{pairs:,} pairs", f"at most {MAX_PAIRS:,}", "use fewer words, templates or concepts")
