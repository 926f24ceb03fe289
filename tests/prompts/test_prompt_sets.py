"""Test prompt sets: packaged sets, users' files, sets from word lists, and which prompts name which
value."""

import dataclasses
import re
from collections.abc import Callable
from itertools import chain, combinations, pairwise
from math import comb
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from vldebias.errors import InvalidInputError
from vldebias.prompts import PromptSet, StatedWords, list_prompts, load_prompts, make_prompt_set
from vldebias.prompts.prompt_set import MAX_PAIRS, Recipe

README = Path(__file__).parents[2].joinpath("prompts/README.md").read_text()
GENDER = {"male": ["male", "man"], "female": ["female", "woman"]}
LISTED: dict[str, Any] = {
    "description": "d",
    "source": "s",
    "variants": [["a cat", "a dog", "an owl"]],
}
MADE: dict[str, Any] = {
    "description": "d",
    "source": "s",
    "attribute": {"male": ["male"], "female": ["female"]},
    "templates": ["a {attribute} {concept}"],
    "concepts": {"train": ["doctor", "architect"], "test": ["nurse"]},
}


def write(folder: Path, content: object, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(
        content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
    )
    return path


def small(**fields: Any) -> PromptSet:
    return PromptSet(**{"name": "small", "variants": (("a", "b"),), **fields})


# ---- packaged prompt sets


def failing(law: Callable[[PromptSet], bool]) -> list[str]:
    """Return the packaged sets that violate a rule."""
    return [name for name in list_prompts() if not law(load_prompts(name))]


def test_every_set_documents_purpose_source_and_limits() -> None:
    assert list_prompts() == sorted(list_prompts())
    assert failing(lambda prompts: prompts.name in list_prompts()) == []
    undescribed = [name for name in list_prompts() if f"`{name}`" not in README]
    assert not undescribed, f"prompts/README.md has no line for {undescribed}"
    assert (
        failing(lambda prompts: bool(prompts.description and prompts.source and prompts.limits))
        == []
    )


def test_pairs_are_all_pairs_of_each_group() -> None:
    def law(prompt_set: PromptSet) -> bool:
        both = (
            (prompt_set.pairs, prompt_set.variants),
            (prompt_set.held_out_pairs, prompt_set.held_out_variants),
        )
        return not set(prompt_set.class_names) & set(prompt_set.held_out_class_names) and all(
            list(pairs) == [pair for group in groups for pair in combinations(group, 2)]
            and len({frozenset(pair) for pair in pairs if pair[0] != pair[1]}) == len(pairs)
            for pairs, groups in both
        )

    assert failing(law) == []


def test_pairs_state_values_and_queries_do_not() -> None:
    def law(prompt_set: PromptSet) -> bool:
        stated = StatedWords(prompt_set.stated_words)
        pairs_are_stated = all(stated.find(prompt) for prompt in chain(*prompt_set.variants))
        return pairs_are_stated and not any(
            stated.find(prompt) for prompt in (*prompt_set.classes, *prompt_set.held_out_classes)
        )

    assert failing(law) == []


def test_articles_match_the_following_word() -> None:
    def law(prompt_set: PromptSet) -> bool:
        texts = chain(
            prompt_set.classes,
            prompt_set.held_out_classes,
            *prompt_set.variants,
            *prompt_set.held_out_variants,
        )
        words = []
        for text in texts:
            words += pairwise(text.lower().rstrip(".").split())
        wrong = {"a": "aeio", "an": "bcdfghjklmnpqrstvwxyz"}
        return not any(second[0] in wrong.get(first, "") for first, second in words)

    assert failing(law) == []


def test_waterbirds_is_the_papers_verbatim() -> None:
    prompts = load_prompts("waterbirds")
    endings = (
        "with land background.",
        "with water background.",
        "in the ocean",
        "in the water.",
        "in the forest.",
    )
    birds = ("landbird", "waterbird")
    assert prompts.class_names == birds
    assert prompts.classes == tuple(f"This is a picture of a {bird}." for bird in birds)
    assert prompts.variants == tuple(
        tuple(f"This is a picture of a {b} {e}" for e in endings) for b in birds
    )
    places = ("a forest", "a moutain", "a wood", "an ocean", "a beach", "a port")
    pictures = [f"This is a picture of {place}." for place in places]
    backgrounds = ["This is a land background.", "This is a water background."]
    assert sorted(prompts.spurious) == sorted(pictures + backgrounds)
    assert len(prompts.pairs) == 2 * comb(5, 2)


def test_celeba_is_the_papers_verbatim() -> None:
    prompts = load_prompts("celeba")
    assert prompts.classes == tuple(
        f"A photo of a celebrity with {hair} hair." for hair in ("dark", "blond")
    )
    assert prompts.pairs == tuple(
        tuple(f"A photo of a {gender} celebrity with {hair} hair." for gender in ("male", "female"))
        for hair in ("dark", "blond")
    )
    people = ("male", "male celebrity", "man", "female", "female celebrity", "woman")
    assert prompts.spurious == tuple(f"A photo of a {person}." for person in people)


def test_professions_are_the_papers_split() -> None:
    gender = load_prompts("professions-gender")
    race = load_prompts("professions-race")
    assert (len(gender.class_names), len(gender.held_out_class_names)) == (80, 20)
    assert gender.class_names[:3] == ("actor", "architect", "audiologist")
    assert gender.held_out_class_names[-3:] == ("security guard", "scientist", "web developer")
    assert race.class_names == gender.class_names
    assert ("A photo of a male doctor.", "A photo of a female doctor.") in gender.pairs
    words = ("a white", "a black", "an Asian", "an Indian", "a Latino")
    assert tuple(f"A photo of {word} pilot." for word in words) in race.held_out_variants
    assert len(race.pairs) == 80 * comb(5, 2)
    assert "A photo of an accountant." in gender.held_out_classes


def test_fairface_is_made_of_its_parts() -> None:
    prompts = load_prompts("fairface")
    assert [part.name for part in prompts.parts] == [
        "fairface-gender",
        "fairface-race",
        "fairface-age",
    ]
    assert prompts.pairs == tuple(chain(*(part.pairs for part in prompts.parts)))
    assert prompts.classes == prompts.parts[0].classes
    by_value = prompts.by_value(prompts.spurious)
    assert list(by_value) == list(chain(*(part.attributes for part in prompts.parts)))
    assert all(
        part.by_value() == {value: by_value[value] for value in part.attributes}
        for part in prompts.parts
    )
    with pytest.raises(InvalidInputError, match="3 attributes"):
        prompts.by_value()
    assert not prompts.names_values


@pytest.mark.parametrize(
    ("name", "stated", "unstated"),
    [
        ("gender", "a photo of a Woman, smiling", "a photo of a manager"),
        ("gender", "the king's portrait", "a chairman of mankind"),
        ("race", "a white doctor", "a doctor in a white coat"),
        ("age", "a 25-year-old pilot", "a pilot with 25 planes"),
        ("backgrounds", "a bear in water", "a sea lion, a river otter"),
    ],
)
def test_stated_words_distinguish_requests_from_similar_phrases(
    name: str, stated: str, unstated: str
) -> None:
    words = StatedWords(load_prompts(name).stated_words)
    assert words.find(stated)
    assert not words.find(unstated)


# ---- loading


def test_a_set_is_loaded_from_a_path(tmp_path: Path) -> None:
    prompts = load_prompts(write(tmp_path, LISTED))
    assert load_prompts(prompts) is prompts
    assert load_prompts(str(tmp_path / "mine.yaml")) == prompts
    assert prompts.name == "mine"
    assert prompts.pairs == tuple(combinations(["a cat", "a dog", "an owl"], 2))


def test_an_unknown_name_lists_the_known_names() -> None:
    names = {
        "gendr": r"'gendr'; did you mean 'gender'\? \(expected one of age, ",
        "no/gender": "^no/gender: ",
    }
    for name, message in names.items():
        with pytest.raises(InvalidInputError, match=message):
            load_prompts(name)
    with pytest.raises(InvalidInputError, match=r"\['gender'\]"):
        load_prompts(["gender"])  # type: ignore[arg-type]


def test_a_set_defined_by_word_lists_is_loaded_from_a_file(tmp_path: Path) -> None:
    prompts = load_prompts(write(tmp_path, MADE))
    assert prompts.variants == (
        ("a male doctor", "a female doctor"),
        ("a male architect", "a female architect"),
    )
    assert prompts.held_out_pairs == (("a male nurse", "a female nurse"),)
    assert prompts.classes == ("A photo of a doctor.", "A photo of an architect.")
    assert prompts.class_names == ("doctor", "architect")
    assert prompts.held_out_classes == ("A photo of a nurse.",)
    assert prompts.templates == ("a {attribute} {concept}",)
    assert prompts.stated_words == ("male", "female")
    assert prompts.attributes == {"male": ("male",), "female": ("female",)}
    assert prompts.spurious == ()
    assert load_prompts({"name": "mine", **MADE}) == prompts
    assert load_prompts(LISTED).name == "custom"
    assert load_prompts(MADE | {"stated_words": []}).stated_words == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("description: !!python/object/apply:os.system ['true']", "os.system"),
        (LISTED | {"variant": []}, "did you mean 'variants'"),
        (MADE | {"concepts": {"trian": ["a"]}}, "concepts.trian: "),
        (LISTED | {"variants": [["a", False]]}, "variants.0.1: "),
        (LISTED | {"variants": [["a"]]}, "variants.0: "),
        (LISTED | {"variants": [["a", "a"]]}, "variants[0]: "),
        (LISTED | {"variants": [["a", "b"], ["b", "a"]]}, "variants: "),
        (LISTED | {"spurious": ["{attribute}"]}, "'{attribute}'"),
        (LISTED | {"classes": {"x": "same", "y": "same"}}, "classes: "),
        (LISTED | {"templates": ["x"]}, "pairs: got templates and variants"),
        *(
            ({k: v for k, v in MADE.items() if k != key}, "pairs: ")
            for key in ("attribute", "templates", "concepts")
        ),
        ({"description": "d"}, "pairs: got none"),
        (MADE | {"attribute": {"m": ["x"]}}, "attribute: "),
        (MADE | {"attribute": {"m": ["x"], "f": ["x"]}}, "attribute: "),
        (MADE | {"attribute": {"m": ["x", "y"], "f": ["z"]}}, "attribute: "),
        (
            MADE | {"templates": ["a {concept}"]},
            "'a {concept}'; expected {attribute} and {concept}",
        ),
        (MADE | {"class_template": "a photo"}, "'a photo'; expected {concept}"),
        (MADE | {"spurious": ["{concept}"]}, "'{concept}'; expected {attribute}"),
        (MADE | {"concepts": {"train": ["x"], "test": ["x"]}}, "held_out_variants: "),
        (MADE | {"concepts": {"like": "profesions-gender"}}, "'profesions-gender'"),
        (
            {"description": "d", "parts": ["nowhere"]},
            "got the prompt set 'nowhere'; expected one of",
        ),
        ("{parts: ['../gender']}", "got the prompt set"),
        ("null: 2", "None"),
        ({"variants": [[f"p{i}" for i in range(700)]]}, "244,650 pairs; expected at most 200,000"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, content: object, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InvalidInputError, match=re.escape(message)) as caught:
        load_prompts(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_set_with_too_many_prompts_is_rejected_before_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = {"a": ["x", "v"], "b": ["y", "w"], "c": ["z", "u"]}
    with pytest.raises(InvalidInputError, match=r"200,004 pairs; expected at most 200,000"):
        make_prompt_set("big", words, [f"c{i}" for i in range(MAX_PAIRS // 6)], test_concepts=["d"])
    monkeypatch.setattr("vldebias.prompts.prompt_set.MAX_PAIRS", 10 * 2 * 3)
    assert len(make_prompt_set("large", words, [f"c{i}" for i in range(10)]).pairs) == 10 * 2 * 3


# ---- creating and writing


def test_words_templates_and_concepts_form_the_pairs() -> None:
    templates = ["A {attribute} {concept}.", "A {concept} who is a {attribute} person."]
    prompts = make_prompt_set("mine", GENDER, ["doctor", "heir"], templates)
    assert len(prompts.pairs) == 2 * 2 * 2
    assert prompts.pairs[:2] == (
        ("A male doctor.", "A female doctor."),
        ("A man doctor.", "A woman doctor."),
    )
    assert ("An heir who is a male person.", "An heir who is a female person.") in prompts.pairs
    assert prompts.spurious == tuple(
        f"A photo of a {w}." for w in ("male", "man", "female", "woman")
    )


def test_a_set_can_be_reloaded_from_its_file(tmp_path: Path) -> None:
    assert (
        failing(
            lambda prompts: (
                load_prompts(prompts.to_yaml(tmp_path / f"{prompts.name}.yaml")) == prompts
            )
        )
        == []
    )
    made = make_prompt_set(
        "mine", GENDER, ["doctor", "nurse"], test_concepts=["pilot"], stated_words=["he", "she"]
    )
    read = load_prompts(made.to_yaml(tmp_path / "mine.yaml"))
    assert (read, read.hash) == (made, made.hash)
    # The set is stored as words and templates.
    assert "A photo of a male doctor." not in (tmp_path / "mine.yaml").read_text()
    plain = (
        make_prompt_set("plain", GENDER, ["médecin"])
        .to_yaml(tmp_path / "plain.yaml")
        .read_text(encoding="utf-8")
    )
    assert ("médecin" in plain, "null" in plain) == (True, False)


def test_writing_fails_if_it_would_lose_information(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"mine\.txt"):
        load_prompts("gender").to_yaml(tmp_path / "mine.txt")
    for prompts in (small(), dataclasses.replace(load_prompts("fairface"), spurious=())):
        with pytest.raises(InvalidInputError, match="constructed directly or modified"):
            prompts.to_yaml(tmp_path / "mine.yaml")


# ---- the prompt set object


def test_a_set_may_refer_to_packaged_sets() -> None:
    like = load_prompts(MADE | {"concepts": {"train": ["pilot"], "like": "professions-winobias"}})
    assert like.class_names == ("pilot", *load_prompts("professions-winobias").class_names)
    stated = load_prompts(MADE | {"stated_words": {"words": ["he"], "like": "celeba"}}).stated_words
    assert stated == tuple(dict.fromkeys(("he", *load_prompts("gender").stated_words)))
    assert load_prompts({"parts": ["fairface", "age"]}).parts == (
        *load_prompts("fairface").parts,
        load_prompts("age"),
    )


def test_the_hash_covers_prompts_but_not_descriptions_or_formatting(tmp_path: Path) -> None:
    plain = load_prompts(write(tmp_path, LISTED))
    text = (
        "# a comment\nvariants:\n- - a cat\n  - 'a dog'\n  - \"an owl\"\nsource:"
        " another\ndescription: other words\n"
    )
    assert load_prompts(write(tmp_path, text, "other.yaml")).hash == plain.hash
    changed: list[dict[str, Any]] = [
        {"variants": (("a cat", "an owl", "a dog"),)},
        {"variants": (("a cat", "a dog"),)},
        {"spurious": ("an animal",)},
        {"classes": ("x",), "class_names": ("x",)},
        {"held_out_variants": (("x", "y"),)},
        {"stated_words": ("cat",)},
        {"attributes": {"x": ("x",), "y": ("y",)}},
        {"parts": (plain,)},
    ]
    hashes = [dataclasses.replace(plain, **change).hash for change in changed]
    assert len({plain.hash, *hashes}) == 1 + len(changed)
    assert {plain: 1}[load_prompts(tmp_path / "mine.yaml")] == 1
    assert repr(plain) == "PromptSet('mine', 0 classes, 0 spurious, 3 pairs, hash=d04ee08b0b30)"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"variants": ()}, "variants"),
        ({"variants": ("ab",)}, "variants.0"),
        ({"spurious": "abc"}, "spurious"),
        ({"classes": ("x",)}, "class_names: "),
        ({"held_out_class_names": ("x",)}, "held_out_class_names: "),
        ({"held_out_variants": (("x", "y"), ("y", "x"))}, "variants: "),
        ({"held_out_variants": (("a", "x"),)}, "held_out_variants: got 'a'"),
        ({"attributes": {"x": "x", "y": "y"}}, "attributes.x"),
    ],
)
def test_a_manually_created_set_is_validated(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        small(**fields)


# ---- which prompts name which value


@pytest.mark.parametrize("name", [name for name in list_prompts() if name != "fairface"])
def test_every_value_of_every_set_has_its_own_prompts(name: str) -> None:
    prompts = load_prompts(name)
    prompts_of_value = prompts.by_value()
    assert list(prompts_of_value) == list(prompts.attributes)
    assert prompts.names_values
    matchers = {value: StatedWords(words) for value, words in prompts.attributes.items()}
    for prompt in {*prompts.spurious, *chain(*prompts.variants)}:
        assert list(prompts.values_in(prompt)) == [
            value for value, words in matchers.items() if words.find(prompt)
        ]
    for value, value_prompts in prompts_of_value.items():
        assert value_prompts
        assert all(
            [
                name_of_matcher
                for name_of_matcher in matchers
                if matchers[name_of_matcher].find(prompt)
            ]
            == [value]
            for prompt in value_prompts
        )


def test_spurious_prompts_take_precedence_and_pairs_are_used_if_they_omit_a_value() -> None:
    water = ("This is a water background.", "This is a picture of an ocean.")
    assert load_prompts("waterbirds").by_value()["water"] == water
    words = {"with": ["bespectacled"], "without": ["clear-eyed"]}
    spurious = ["A photo of a bespectacled person."]
    assert make_prompt_set("glasses", words, ["doctor"], spurious=spurious).by_value() == {
        "with": ("A photo of a bespectacled doctor.",),
        "without": ("A photo of a clear-eyed doctor.",),
    }


def test_a_value_without_its_own_prompt_is_named() -> None:
    mixed = small(
        variants=(("a man and a woman", "a man"),), attributes={"m": ("man",), "w": ("woman",)}
    )
    with pytest.raises(InvalidInputError, match=r"no prompt for \['w'\]"):
        mixed.by_value()
    assert not mixed.names_values


def test_the_longest_phrase_names_the_value() -> None:
    asian = small(attributes={"Asian": ("Asian",), "East": ("East Asian",)})
    assert asian.values_in("an east-asian man") == ("East",)
    assert asian.values_in("an Asian man from the East") == ("Asian",)
    assert asian.values_in("an East Asian and an Asian man") == ("Asian", "East")
    assert asian.values_in("a Caucasian man") == ()
    both = small(attributes={**asian.attributes, "other": ("ASIAN",)})
    # A word shared by two values names both.
    assert both.values_in("an Asian man") == ("Asian", "other")
    texts = ("an Asian", "an Asian", "an Asian and an East Asian", "a man")
    assert asian.by_value(texts) == {"Asian": ("an Asian",), "East": ()}


def test_the_two_custom_sets_in_the_readme_are_equal(tmp_path: Path) -> None:
    section = README.split("## Your own set")[1].split("## Keys")[0]
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", section, flags=re.MULTILINE)
    code, text = (dedent(block).strip() for block in blocks)
    call = code.removeprefix("made = vldebias.").split("\nmade.to_yaml")[0]
    made = eval(call, {"make_prompt_set": make_prompt_set})
    assert load_prompts(write(tmp_path, text, "glasses.yaml")).hash == made.hash
    assert len(made.pairs) == 3
    assert [
        key for key in Recipe.model_fields if f"`{key}`" not in README.split("## Keys")[1]
    ] == []
