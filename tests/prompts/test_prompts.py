import dataclasses
import re
from collections.abc import Callable
from itertools import combinations, pairwise
from math import comb
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from tests.refusals import refused
from vldebias.errors import PromptSetError
from vldebias.prompts import PromptSet, list_prompts, load_prompts, make_prompt_set
from vldebias.prompts.recipe import MAX_PAIRS, Recipe
from vldebias.prompts.stated_words import StatedWords

GENDER = {"male": ["male", "man"], "female": ["female", "woman"]}

LISTED = {"description": "d", "source": "s", "groups": [["a cat", "a dog", "an owl"]]}
MADE = {
    "description": "d",
    "source": "s",
    "attribute": {"male": ["male"], "female": ["female"]},
    "templates": ["a {attribute} {concept}"],
    "concepts": {"train": ["doctor", "architect"], "test": ["nurse"]},
}


def write(folder: Path, content: object, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def small(**fields: object) -> PromptSet:
    return PromptSet(**{"name": "small", "groups": (("a", "b"),), **fields})  # type: ignore[arg-type]


# ---- the sets that come with the package


README = Path(__file__).parents[2].joinpath("prompts/README.md")


def failing(law: Callable[[PromptSet], bool]) -> list[str]:
    """The sets of the package for which a law does not hold."""
    return [name for name in list_prompts() if not law(load_prompts(name))]


def test_every_set_says_what_for_where_from_and_what_not() -> None:
    readme = README.read_text()
    assert list_prompts() == sorted(list_prompts())
    assert [name for name in list_prompts() if load_prompts(name).name != name or f"`{name}`" not in readme] == []
    assert failing(lambda prompts: bool(prompts.description and prompts.source and prompts.limits)) == []


def test_pairs_are_all_pairs_of_each_group() -> None:
    def law(prompts: PromptSet) -> bool:
        return all(
            list(pairs) == [pair for group in groups for pair in combinations(group, 2)]
            and len(set(map(frozenset, pairs))) == len(pairs)
            and all(a != b for a, b in pairs)
            and not set(prompts.class_names) & set(prompts.held_out_class_names)
            for pairs, groups in (
                (prompts.pairs, prompts.groups),
                (prompts.held_out_pairs, prompts.held_out_groups),
            )
        )

    assert failing(law) == []


def test_pairs_and_spurious_prompts_are_stated_and_queries_are_not() -> None:
    def law(prompts: PromptSet) -> bool:
        stated = StatedWords(prompts.stated_words)
        told = all(stated.match(p) for group in prompts.groups for p in group) or not prompts.templates
        return told and not any(stated.match(prompt) for prompt in (*prompts.classes, *prompts.held_out_classes))

    assert failing(law) == []


def test_articles_fit() -> None:
    def law(prompts: PromptSet) -> bool:
        texts = [*prompts.classes, *prompts.spurious, *(p for pair in prompts.pairs for p in pair)]
        words = [pair for text in texts for pair in pairwise(text.lower().rstrip(".").split())]
        return not any(
            (first == "a" and second[0] in "aeio") or (first == "an" and second[0] not in "aeiou")
            for first, second in words
        )

    assert failing(law) == []


def test_waterbirds_is_the_papers_verbatim() -> None:
    prompts = load_prompts("waterbirds")
    endings = ("with land background.", "with water background.", "in the ocean", "in the water.", "in the forest.")
    birds = ("landbird", "waterbird")
    assert prompts.class_names == birds
    assert prompts.classes == tuple(f"This is a picture of a {bird}." for bird in birds)
    assert prompts.groups == tuple(tuple(f"This is a picture of a {b} {e}" for e in endings) for b in birds)
    places = ("a forest", "a moutain", "a wood", "an ocean", "a beach", "a port")
    pictures = [f"This is a picture of {place}." for place in places]
    backgrounds = ["This is a land background.", "This is a water background."]
    assert sorted(prompts.spurious) == sorted(pictures + backgrounds)
    assert len(prompts.pairs) == 2 * comb(5, 2)


def test_celeba_is_the_papers_verbatim() -> None:
    prompts = load_prompts("celeba")
    assert prompts.classes == tuple(f"A photo of a celebrity with {hair} hair." for hair in ("dark", "blond"))
    assert prompts.pairs == tuple(
        tuple(f"A photo of a {gender} celebrity with {hair} hair." for gender in ("male", "female"))
        for hair in ("dark", "blond")
    )
    people = ("male", "male celebrity", "man", "female", "female celebrity", "woman")
    assert prompts.spurious == tuple(f"A photo of a {person}." for person in people)


def test_professions_are_the_papers_split() -> None:
    gender, race = load_prompts("professions-gender"), load_prompts("professions-race")
    assert len(gender.class_names) == 80
    assert len(gender.held_out_class_names) == 20
    assert gender.class_names[:3] == ("actor", "architect", "audiologist")
    assert gender.held_out_class_names[-3:] == ("security guard", "scientist", "web developer")
    assert race.class_names == gender.class_names
    assert ("A photo of a male doctor.", "A photo of a female doctor.") in gender.pairs
    words = ("a white", "a black", "an Asian", "an Indian", "a Latino")
    assert tuple(f"A photo of {word} pilot." for word in words) in race.held_out_groups
    assert len(race.pairs) == 80 * comb(5, 2)
    assert "A photo of an accountant." in gender.held_out_classes


def test_fairface_is_made_of_its_parts() -> None:
    prompts = load_prompts("fairface")
    assert [part.name for part in prompts.parts] == ["fairface-gender", "fairface-race", "fairface-age"]
    assert prompts.pairs == tuple(pair for part in prompts.parts for pair in part.pairs)
    assert prompts.classes == prompts.parts[0].classes
    assert "A photo of an evil person." in prompts.classes
    assert len(prompts.classes) == 10
    assert [len(part.pairs) for part in prompts.parts] == [10, 10 * comb(7, 2), 10]
    assert len(prompts.parts[1].attributes) == 7


@pytest.mark.parametrize(
    ("name", "stated", "left"),
    [
        ("gender", "a photo of a Woman, smiling", "a photo of a manager"),
        ("gender", "the king's portrait", "a chairman of mankind"),
        ("gender", "a non-binary doctor", "an actor and a waiter"),
        ("race", "a white doctor", "a doctor in a white coat"),
        ("race", "two Black women", "a black car"),
        ("race", "an African-American nurse", "an American nurse"),
        ("age", "an old man", "an old house"),
        ("age", "a 25-year-old pilot", "a pilot with 25 planes"),
        ("skin-tone", "a dark-skinned pilot", "a pilot in a dark room"),
        ("skin-tone", "a tan firefighter", "a firefighter with a tan bag"),
        ("backgrounds", "a duck on the beach", "a waterbird"),
        ("backgrounds", "a bear in water", "a sea lion, a river otter"),
    ],
)
def test_stated_words_tell_requests_from_look_alikes(name: str, stated: str, left: str) -> None:
    words = StatedWords(load_prompts(name).stated_words)
    assert words.match(stated)
    assert not words.match(left)


# ---- loading


@pytest.mark.parametrize("as_type", [str, Path])
def test_a_path_is_read(tmp_path: Path, as_type: type) -> None:
    prompts = load_prompts(as_type(write(tmp_path, LISTED)))
    assert load_prompts(prompts) is prompts
    assert prompts.name == "mine"
    assert prompts.pairs == tuple(combinations(["a cat", "a dog", "an owl"], 2))


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(
        PromptSetError, match=r"got the prompt set 'gendr'; expected one of age, .*did you mean 'gender'"
    ):
        load_prompts("gendr")
    with pytest.raises(PromptSetError, match=r"'zzzz'; expected one of .* choose one of them"):
        load_prompts("zzzz")
    for value in (None, 3, ["gender"]):
        with pytest.raises(PromptSetError, match=r"expected a name, a path or a PromptSet, or a mapping .*; names"):
            load_prompts(value)  # type: ignore[arg-type]


def test_a_made_set_from_a_file(tmp_path: Path) -> None:
    prompts = load_prompts(write(tmp_path, MADE))
    assert prompts.groups == (("a male doctor", "a female doctor"), ("a male architect", "a female architect"))
    assert prompts.held_out_pairs == (("a male nurse", "a female nurse"),)
    assert prompts.classes == ("A photo of a doctor.", "A photo of an architect.")
    assert prompts.class_names == ("doctor", "architect")
    assert prompts.held_out_classes == ("A photo of a nurse.",)
    assert prompts.templates == ("a {attribute} {concept}",)
    assert prompts.stated_words == ("male", "female")
    assert prompts.attributes == {"male": ("male",), "female": ("female",)}
    assert prompts.spurious == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("description: !!python/object/apply:os.system ['true']", r"got the tag .*os\.system in line 1; expected no"),
        (LISTED | {"group": []}, "group: unknown key; expected one of attribute, .*; did you mean 'groups'"),
        (MADE | {"concepts": {"trian": ["a"]}}, r"concepts.trian: unknown key; expected one of like, test, train; did"),
        (LISTED | {"groups": "a"}, r"groups: got 'a' \(str\); expected a list; write one item per line"),
        (LISTED | {"groups": [["a", False]]}, r"groups\[0\]\[1\]: got False \(bool\); expected text; put quotes"),
        (LISTED | {"groups": [["a"]]}, r"groups\[0\]: got \['a'\] \(list\); expected at least 2 items"),
        (LISTED | {"groups": []}, r"groups: got \[\] \(list\); expected at least 1 items"),
        (LISTED | {"groups": [["a", "a"]]}, r"groups\[0\]: got 'a' twice; expected each once"),
        (LISTED | {"groups": [["a", "b"], ["b", "a"]]}, r"groups: got the pair \['a', 'b'\] twice"),
        (LISTED | {"groups": [["a", " b"]]}, r"groups\[0\]\[1\]: got ' b' \(str\); expected text that is not blank"),
        (LISTED | {"pairs": [["a", "b", "c"]]}, r"pairs\[0\]: got .* expected two prompts; use 'groups'"),
        (
            LISTED | {"held_out_groups": [["a cat", "x"]]},
            "held_out_groups: got 'a cat', which groups has; expected unseen",
        ),
        (LISTED | {"spurious": None}, "spurious: got nothing; expected a value; write one after the colon"),
        (LISTED | {"spurious": ["x", "x"]}, "spurious: got 'x' twice"),
        (LISTED | {"spurious": ["{attribute}"]}, r"spurious\[0\]: .*expected an 'attribute' to fill it with"),
        (LISTED | {"classes": ["x"]}, r"classes: got \['x'\] \(list\); expected a mapping"),
        (LISTED | {"classes": {"x": "same", "y": "same"}}, "classes: got 'same' twice"),
        (LISTED | {"pairing": "all"}, "pairing: got this key; expected it not to be there without templates"),
        (LISTED | {"templates": ["x"]}, "pairs: got groups and templates; expected one way to write them"),
        *(
            ({k: v for k, v in MADE.items() if k != key}, f"{key}: got no such key; .* add '{key}: ...'")
            for key in ("attribute", "templates", "concepts")
        ),
        ({"description": "d"}, "pairs: got no pairs; expected one way to write them"),
        (MADE | {"classes": {"x": "y"}}, "classes: got this key; expected it not to be there beside templates"),
        (MADE | {"attribute": {"male": ["male"]}}, r"attribute: got .*male.* expected at least 2 items"),
        (MADE | {"attribute": {"m": ["x"], "f": []}}, r"attribute.f: got \[\] \(list\); expected at least 1 items"),
        (
            MADE | {"attribute": {"m": ["x"], "f": ["x"]}},
            "attribute: got 'x' under 'm' and under 'f'; expected each word",
        ),
        (MADE | {"attribute": {"m": ["x", "y"], "f": ["z"]}}, "attribute: got word counts .*write 'pairing: all'"),
        (MADE | {"templates": ["a {concept}"]}, r"templates\[0\]: .*expected \{attribute\} and"),
        (
            MADE | {"templates": ["{attribute} {concept} {x}"]},
            r"templates\[0\]: got .*write it in braces, and no other",
        ),
        (MADE | {"class_template": "a photo"}, r"class_template: got 'a photo'; expected \{concept\}"),
        (MADE | {"spurious": ["{concept}"]}, r"spurious\[0\]: .*expected no placeholder but \{attribute\}"),
        (MADE | {"pairing": "some"}, r"pairing: got 'some' \(str\); expected Input should be 'aligned' or 'all'"),
        (MADE | {"concepts": {"test": ["x"]}}, r"concepts: got no train concepts; .*add 'train:"),
        (MADE | {"concepts": ["x", "x"]}, "concepts: got 'x' twice; expected each concept once, in train or in test"),
        (MADE | {"concepts": {"train": ["x"], "test": ["x"]}}, "concepts: got 'x' twice"),
        (MADE | {"concepts": {"like": "profesions-gender"}}, "got the prompt set 'profesions-gender'.*did you mean"),
        (MADE | {"concepts": {"like": "gender"}}, "concepts.like: got 'gender'; expected a set that spells out"),
        (MADE | {"stated_words": {"like": "celeba"}}, "stated_words.like: got 'celeba'; expected a set that spells"),
        (MADE | {"stated_words": {}}, "stated_words: got no words; expected words, before_person or like"),
        ({"description": "d", "parts": ["fairface"]}, "parts: got 'fairface', which has parts itself"),
        ({"description": "d", "parts": ["nowhere"]}, "got the prompt set 'nowhere'; expected one of"),
    ],
)
def test_an_error_names_file_key_and_remedy(tmp_path: Path, content: object, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(PromptSetError, match=message) as caught:
        load_prompts(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "text",
    [
        "? [a, b]\n: c",
        "1: 2",
        "null: 2",
        "{description: 2020-13-45}",
        "{groups: [[2020-01-01, 99999999999999999999999]]}",
        "{groups: {a: {b: {c: {}}}}}",
        "{attribute: {1: [x], 2: [y]}, templates: ['{attribute} {concept}'], concepts: [z]}",
        "{attribute: {a: [x], b: [y]}, templates: ['{attribute} {concept}'], concepts: {like: [gender]}}",
        "{stated_words: {like: 3}, groups: [[a, b]]}",
        "{stated_words: ['!!'], groups: [[a, b]], parts: [gender]}",
        "{parts: ['../gender']}",
        "{parts: ['a\\0b']}",
        "concepts: {1: 2}",
        "{stated_words: {[]: 2}}",
        "{attribute: {a: [x], b: [y]}, groups: [[.inf, .nan]]}",
    ],
)
def test_crafted_files_are_refused_in_words(tmp_path: Path, text: str) -> None:
    with pytest.raises(PromptSetError, match=r"^.*mine\.yaml: .*(got|unknown key).*expected"):
        load_prompts(write(tmp_path, text))


def test_what_a_file_holds_can_be_given_as_a_mapping(tmp_path: Path) -> None:
    made = load_prompts({"name": "mine", **MADE})
    assert made == load_prompts(write(tmp_path, MADE))
    assert load_prompts(LISTED).name == "custom"
    with pytest.raises(PromptSetError, match=r"^prompt set 'x': group: unknown key; .*did you mean 'groups'"):
        load_prompts({"name": "x", "group": []})


def test_a_set_that_would_explode_is_refused_before_it_is_made(tmp_path: Path) -> None:
    one_group = {"groups": [[f"p{i}" for i in range(700)]]}
    with pytest.raises(PromptSetError, match=r"pairs: got 244,650 pairs; expected at most 200,000"):
        load_prompts(write(tmp_path, one_group))
    many = [f"c{i}" for i in range(MAX_PAIRS + 1)]
    attribute = {"a": ["x"], "b": ["y"]}
    with pytest.raises(PromptSetError, match=r"pairs: got 200,001 pairs; expected at most 200,000"):
        make_prompt_set("big", attribute, many)


# ---- making and writing


def test_words_templates_and_concepts_make_the_pairs() -> None:
    templates = ["A {attribute} {concept}.", "A {concept} who is a {attribute} person."]
    concepts = ["doctor", "engineer", "heir"]
    prompts = make_prompt_set("mine", GENDER, concepts, templates)
    assert len(prompts.pairs) == 2 * len(templates) * len(concepts)
    assert prompts.pairs[:2] == (("A male doctor.", "A female doctor."), ("A man doctor.", "A woman doctor."))
    assert ("An heir who is a male person.", "An heir who is a female person.") in prompts.pairs
    assert prompts.spurious == tuple(f"A photo of a {w}." for w in ("male", "man", "female", "woman"))
    assert prompts.stated_words == ("male", "man", "female", "woman")


def test_pairing_all_makes_one_group_of_all_words() -> None:
    words = {"land": ["land", "forest"], "water": ["water", "ocean", "lake"]}
    prompts = make_prompt_set("mine", words, ["dog"], ["a {concept}, {attribute}"], pairing="all")
    assert prompts.groups == (tuple(f"a dog, {w}" for w in ("land", "forest", "water", "ocean", "lake")),)
    assert len(prompts.pairs) == comb(5, 2)


def test_spurious_prompts_can_be_given_or_left_out() -> None:
    assert make_prompt_set("mine", GENDER, ["doctor"], spurious=[]).spurious == ()
    given = make_prompt_set("mine", GENDER, ["doctor"], spurious=["a {attribute}", "gender"]).spurious
    assert given == ("a male", "a man", "a female", "a woman", "gender")


@refused(
    ({"attribute": ["male", "female"]}, "attribute: got .* expected a mapping of values to words"),
    ({"attribute": {"m": "male", "f": "female"}}, r"attribute.m: got 'male' \(str\); expected a list"),
    ({"concepts": "doctor"}, r"concepts.train: got 'doctor' \(str\); expected a list"),
    ({"concepts": []}, r"concepts.train: got \[\] \(list\)"),
    ({"templates": []}, r"templates: got \[\] \(list\)"),
    ({"pairing": "none"}, "pairing: got 'none'"),
    ({"test_concepts": ["doctor"]}, "concepts: got 'doctor' twice"),
    error=PromptSetError,
)
def test_make_names_the_argument(change: dict[str, object]) -> None:
    arguments = {"attribute": GENDER, "concepts": ["doctor"], **change}
    make_prompt_set("mine", **arguments)  # type: ignore[arg-type]


def test_a_custom_set_comes_back_from_its_file(tmp_path: Path) -> None:
    made = make_prompt_set("mine", GENDER, ["doctor", "nurse"], test_concepts=["pilot"], stated_words=["he", "she"])
    read = load_prompts(made.to_yaml(tmp_path / "mine.yaml"))
    assert read == made
    assert read.hash == made.hash
    assert "A photo of a male doctor." not in (tmp_path / "mine.yaml").read_text()  # stays words and templates


def test_every_set_comes_back_from_its_file(tmp_path: Path) -> None:
    assert failing(lambda prompts: load_prompts(prompts.to_yaml(tmp_path / f"{prompts.name}.yaml")) == prompts) == []


def test_a_set_made_by_hand_or_changed_comes_back_prompt_by_prompt(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    by_hand = small(classes=("é",), class_names=("no",), attributes={"x": ("x",), "y": ("y",)}, spurious=("s",))
    assert load_prompts(by_hand.to_yaml(path)) == by_hand
    changed = dataclasses.replace(load_prompts("celeba"), name="small", spurious=())
    assert load_prompts(changed.to_yaml(path)) == changed


def test_writing_is_refused_where_it_would_lose_something(tmp_path: Path) -> None:
    with pytest.raises(PromptSetError, match=r"path: got '.*mine.txt'; expected a name that ends in .yaml"):
        small().to_yaml(tmp_path / "mine.txt")
    with pytest.raises(PromptSetError, match="parts: got a changed set of several attributes"):
        dataclasses.replace(load_prompts("fairface"), spurious=()).to_yaml(tmp_path / "mine.yaml")


# ---- the object


def test_the_hash_is_over_prompts_and_not_over_prose_or_formatting(tmp_path: Path) -> None:
    plain = load_prompts(write(tmp_path, LISTED))
    text = "# a comment\ngroups:\n- - a cat\n  - 'a dog'\n  - \"an owl\"\nsource: another\ndescription: other words\n"
    assert load_prompts(write(tmp_path, text, "other.yaml")).hash == plain.hash
    assert len(plain.hash) == 64
    changed = [
        {"groups": (("a cat", "an owl", "a dog"),)},
        {"groups": (("a cat", "a dog"),)},
        {"spurious": ("an animal",)},
        {"classes": ("x",), "class_names": ("x",)},
        {"held_out_groups": (("x", "y"),)},
        {"stated_words": ("cat",)},
        {"attributes": {"x": ("x",), "y": ("y",)}},
        {"parts": (plain,)},
    ]
    hashes = [dataclasses.replace(plain, **change).hash for change in changed]  # type: ignore[arg-type]
    assert len({plain.hash, *hashes}) == 1 + len(changed)
    assert {plain: 1}[load_prompts(tmp_path / "mine.yaml")] == 1
    assert repr(plain) == f"PromptSet('mine', 0 classes, 0 spurious, 3 pairs, hash={plain.hash[:12]})"
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"groups": ()}, "groups: got no groups"),
        ({"groups": (("a",),)}, r"groups\[0\]: got 1 prompt; expected two or more"),
        ({"groups": ("ab",)}, r"groups\[0\]: got 'ab'; expected a tuple of texts"),
        ({"groups": [("a", "b")]}, "expected a tuple of groups"),
        ({"spurious": "abc"}, "spurious: got 'abc'; expected a tuple of texts"),
        ({"spurious": ("",)}, "expected a tuple of texts"),
        ({"classes": ("x",)}, "class_names: got 0 names; expected 1, one per class"),
        ({"attributes": {"x": ("x",)}}, "attributes: got .* expected two or more values"),
        ({"attributes": {"x": "x", "y": "y"}}, r"attributes\['x'\]: got 'x'; expected a tuple"),
    ],
)
def test_a_set_made_by_hand_is_checked(fields: dict[str, object], message: str) -> None:
    with pytest.raises(PromptSetError, match=message) as caught:
        small(**fields)
    assert str(caught.value).startswith("prompt set 'small': ")


# ---- prompts/README.md


def test_the_two_custom_sets_of_the_readme_are_the_same(tmp_path: Path) -> None:
    readme = README.read_text()
    section = readme.split("## Your own set, in one screen")[1].split("## Keys")[0]
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", section, flags=re.MULTILINE)
    code, text = (dedent(block).strip() for block in blocks)
    call = code.removeprefix("made = vldebias.").split("\nmade.to_yaml")[0]
    made = eval(call, {"make_prompt_set": make_prompt_set})
    read = load_prompts(write(tmp_path, text, "glasses.yaml"))
    assert read.hash == made.hash
    assert len(made.pairs) == 3
    assert [key for key in Recipe.model_fields if f"`{key}`" not in readme.split("## Keys")[1]] == []


def test_the_table_of_the_readme_counts_right() -> None:
    rows = {line.split("`")[1]: line for line in README.read_text().splitlines() if line.startswith("| `")}

    def law(prompts: PromptSet) -> bool:
        held_out = f" ({len(prompts.held_out_pairs)})" if prompts.held_out_pairs else ""
        return f"| {len(prompts.pairs)}{held_out} |" in rows[prompts.name]

    assert failing(law) == []
