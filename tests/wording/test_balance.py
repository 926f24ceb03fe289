"""Balanced prompts: which prompts state a value (lists written by hand), shares, seeds, order,
errors."""

import dataclasses
import json
import os
import random
import re
import unicodedata
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.prompts import can_balance, load_prompts, make_prompt_set
from vldebias.wording import Balancer, balance_prompts
from vldebias.wording.assignment import EvenSampler
from vldebias.wording.balance import _are_as_even, _warn_of_processes

SPEC = yaml.safe_load((Path(__file__).parent / "balance_spec.yaml").read_text(encoding="utf-8"))
ALONE = []
for kind in ("stated", "named", "none", "mixed", "context", "unclear", "other"):
    ALONE += [(kind, prompt) for prompt in SPEC[kind]]
FIRST = {"gender": "female", "age": "old", "race": "Asian", "skin-tone": "dark"}
ATTRIBUTES = []
for names, written_of_prompt in SPEC["attributes"].items():
    ATTRIBUTES += [(names, *row) for row in written_of_prompt.items()]


def state(prompt: str, names: str = "gender") -> str:
    values = tuple(FIRST[name] for name in names.split())
    return Balancer(names.split()).write([prompt], [values])[0]


def _unmarked(line: str) -> str:
    """Return the prompt for a line in which <female> is added and <woman|person> replaces."""
    return re.sub(r"<[^<>|]*> ", "", re.sub(r"<[^<>|]*\|(.*?)>", r"\1", line))


@pytest.mark.parametrize("line", SPEC["open"])
def test_the_word_goes_where_it_is_marked(line):
    prompt = _unmarked(line)
    if re.match("<[A-Z]", line):
        prompt = prompt[0].upper() + prompt[1:]
    assert state(prompt) == re.sub(r"<(.*?)(?:\|.*?)?>", r"\1", line)


@pytest.mark.parametrize(("kind", "prompt"), ALONE)
def test_in_doubt_a_prompt_is_left_unchanged(kind, prompt):
    out = balance_prompts(prompt, "gender")
    assert (out.prompts, out.values) == ([prompt], [None])
    assert re.sub("^context: .+", "context", out.reasons[0]) in _REASONS[kind]


_NOBODY = {"no person", "not plain"}
_NOT_READ = ("Dutch", "Polish", "Greek", "Thai", "Hebrew", "Hindi")
_REASONS = {
    "unclear": {"no person", "not plain", "named"},
    "stated": {"stated"},
    "named": {"named", *_NOBODY},  # a name alone is no noun for a person
    "none": {"named", *_NOBODY},
    "mixed": {"stated", *_NOBODY},
    "context": {"context"},
    "other": {f"language: {name}" for name in _NOT_READ},
}


@pytest.mark.parametrize(("names", "prompt", "result"), ATTRIBUTES)
def test_articles_placeholders_other_attributes_and_several(names, prompt, result):
    assert state(prompt, names) == result


@pytest.mark.parametrize(
    ("prompt", "result"),
    [
        ("a woman in a park", "a Latina woman in a park"),
        ("A photo of a {race} woman", "A photo of a Latina woman"),
        ("a nurse checking her notes", "a Latina nurse checking her notes"),
        ("a chef and her brother", "a Latina chef and her Latino brother"),
        ("AN ACTRESS ON STAGE", "A LATINA ACTRESS ON STAGE"),
        ("1girl, smiling", "Latina 1girl, smiling"),
        ("a nurse checking his notes", "a Latino nurse checking his notes"),
        ("a nurse", "a Latino nurse"),
    ],
)
def test_an_origin_agrees_with_a_stated_gender(prompt, result):
    shares = {value: float(value == "Latino") for value in load_prompts("race").attributes}
    assert balance_prompts(prompt, "race", shares=shares).prompts == [result]


def test_every_prompt_keeps_its_words():
    prompts = [*map(_unmarked, SPEC["open"]), *(prompt for _, prompt in ALONE)]
    for prompt, written in zip(
        prompts, balance_prompts(prompts, ["gender", "age", "race"]).prompts, strict=True
    ):
        missing = Counter(re.findall(r"\w+", written.lower()))
        gone = Counter(re.findall(r"\w+", prompt.lower())) - missing
        assert set(gone) <= {"a", "an", "person", "people", "child"}


def test_a_stated_value_is_not_stated_again():
    prompts = list(map(_unmarked, SPEC["open"]))
    written = balance_prompts(prompts, "gender").prompts
    again = balance_prompts(written, "gender")
    assert (again.prompts, set(again.values)) == (written, {None})


# ---- shares, seeds, order

NURSE = "A photo of a nurse."


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 101])
@pytest.mark.parametrize("seed", [0, 1])
def test_even_shares_differ_by_one_at_most(n, seed):
    counts = Counter(balance_prompts([NURSE] * n, "race", seed=seed).values)
    assert sum(counts.values()) == n
    assert max(counts.values()) - min([*counts.values(), *[0] * (5 - len(counts))]) <= 1


@pytest.mark.parametrize(
    ("seed", "share"), [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.7), (4, 0.7), (5, 0.95)]
)
def test_calls_of_one_image_keep_the_shares_of_each_prompt(seed, share):
    balancer = Balancer("gender", seed=seed, shares={"female": share, "male": 1 - share})
    counts_of_prompt = {prompt: Counter() for prompt in (NURSE, "a doctor", "a pilot")}
    for prompt in random.Random(seed).choices(list(counts_of_prompt), k=60):
        counts_of_prompt[prompt].update(balancer.next([prompt]).values)
        assert (
            abs(counts_of_prompt[prompt]["female"] - share * counts_of_prompt[prompt].total()) < 1
        )


@pytest.mark.parametrize(("share", "strength"), [(0.5, 1), (0.7, 1), (0.95, 1), (0.5, 0.3)])
def test_shares_hold_over_images_of_one_prompt_and_of_twenty(share, strength):
    for prompts in ([NURSE] * 20, load_prompts("professions-gender").classes[:20]):
        balancer = Balancer(
            "gender", shares={"female": share, "male": 1 - share}, strength=strength
        )
        counts = Counter(balancer.next(prompts).values)
        assert counts["female"] == pytest.approx(20 * share * strength)
        assert counts["male"] == pytest.approx(20 * (1 - share) * strength)


def test_the_seed_decides_the_order_alone():
    first, again, reseeded = (
        balance_prompts([NURSE] * 12, "gender", seed=seed) for seed in (0, 0, 4)
    )
    assert (
        first
        == again
        == Balancer("gender", seed=0).next([NURSE] * 12)
        == balance_prompts((text for text in [NURSE] * 12), "gender", seed=0)
    )
    assert first.values != reseeded.values
    assert Counter(first.values) == Counter(reseeded.values)


def test_without_a_seed_each_call_draws_anew_and_can_be_repeated():
    calls = [balance_prompts(NURSE, "gender") for _ in range(60)]
    counts = Counter(call.values[0] for call in calls)
    assert 15 <= counts["female"] <= 45
    assert all(balance_prompts(NURSE, "gender", seed=call.seed) == call for call in calls)


def test_a_balancer_forgets_the_prompt_asked_for_least_recently(monkeypatch):
    monkeypatch.setattr("vldebias.wording.balance._MOST", 2)
    balancer = Balancer("gender", seed=0)
    for prompt in ("a nurse", "a cook", "a nurse", "a pilot"):
        balancer.next([prompt])
    assert [balancer._sampler.images_of(p) for p in ("a nurse", "a cook", "a pilot")] == [2, 0, 1]
    values = [balancer.next([f"a nurse in room {i}"]).values[0] for i in range(100)]
    assert Counter(values) == {"female": 50, "male": 50}


def test_a_balancer_is_even_with_threads():
    balancer = Balancer("gender")
    with ThreadPoolExecutor(8) as pool:
        calls = list(pool.map(lambda _: balancer.next([NURSE]), range(200)))
    assert Counter(call.values[0] for call in calls) == {"female": 100, "male": 100}


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_a_value_by_its_index_is_even_and_needs_no_memory(share):
    shares = {"female": share, "male": 1 - share}
    made = [Balancer("gender", shares, seed=5).at(NURSE, i) for i in range(40)]
    assert sum(call.values == ["female"] for call in made) == round(40 * share)
    assert all(call.seed == 5 for call in made)
    balancer = Balancer("gender", shares, seed=5)
    assert [balancer.at(NURSE, i) for i in reversed(range(40))] == made[::-1]
    reseeded = Balancer("gender", shares, seed=6)
    assert [reseeded.at(NURSE, i).values for i in range(40)] != [call.values for call in made]


def test_values_of_several_sets_by_index_cross_evenly():
    balancer = Balancer(["gender", "age"], seed=0)
    values = [balancer.at("a cook", i).values[0] for i in range(8)]
    assert set(Counter(values).values()) == {2}
    assert balancer.at("a red car", 3).reasons == [("no person", "no person")]


def test_several_sets_give_tuples_and_cross():
    out = balance_prompts(["a software developer"] * 4, ["gender", "age"])
    assert Counter(out.values) == dict.fromkeys(product(("female", "male"), ("young", "old")), 1)
    for prompt, (gender, age) in zip(out.prompts, out.values, strict=True):
        assert prompt == f"{'an old' if age == 'old' else 'a young'} {gender} software developer"


@pytest.mark.parametrize("strength", [2, -0.1, "1", None, float("nan")])
def test_a_strength_that_is_no_share_is_refused_by_each_way_of_balancing(strength):
    balancer = Balancer("gender", strength=strength)
    with pytest.raises(InvalidInputError, match=r"strength: got .* a share"):
        balancer.next([NURSE])
    with pytest.raises(InvalidInputError, match=r"strength: got .* a share"):
        balancer.at(NURSE, 0)


def test_write_puts_the_same_values_into_second_prompts():
    written = Balancer("gender").write(["a nurse", "a tree", "a cook"], ["female", "male", None])
    assert written == ["a female nurse", "a tree", "a cook"]
    assert Balancer(["gender", "age"]).write(["a nurse"], [None]) == ["a nurse"]
    for value in ("female", ("female",), ["female"]):
        with pytest.raises(InvalidInputError, match=r"female.* 2 prompt sets"):
            Balancer(["gender", "age"]).write(["a nurse"], [value])


@refused(
    ({"values": ["female"]}, "values: got .'female'. for 2 prompts"),
    ({"values": "fm"}, "values: got 'fm' for 2 prompts"),
    ({"values": ["female", "purple"]}, "values: got 'purple' .* expected one of .*'female'"),
    ({"values": ["female", ("male",)]}, r"values: got \('male',\) for a person"),
    ({"values": [None, None], "prompts": "a nurse"}, "prompts: got 'a nurse'"),
)
def test_values_that_cannot_be_written_are_refused(options):
    Balancer("gender").write(**{"prompts": ["a nurse", "a cook"]} | options)


def test_numbers_of_numpy_are_whole_numbers():
    balancer = Balancer("gender", seed=np.int64(3))
    assert json.dumps(balancer.seed) == "3"
    expected = Balancer("gender", seed=3).at(["a nurse"] * 2, [4, 5])
    for indices in (np.array([4, 5]), (number for number in (4, 5))):
        assert balancer.at(["a nurse"] * 2, indices).prompts == expected.prompts
    balancer.restart(np.int32(7))
    assert (
        balancer.next(["a nurse"]).prompts == balance_prompts("a nurse", "gender", seed=7).prompts
    )


@pytest.mark.parametrize("seed", [None, "1", 1.5])
def test_a_balancer_starts_again_with_a_whole_number_alone(seed):
    with pytest.raises(InvalidInputError, match=r"seed: got .* expected a whole number"):
        Balancer("gender").restart(seed)


def test_sets_that_are_not_about_persons_are_refused():
    hats = make_prompt_set(
        "hats", {"hat": ["wearing a hat"], "none": ["without a hat"]}, ["cook", "nurse"]
    )
    for prompts in (load_prompts("waterbirds"), load_prompts("backgrounds"), hats):
        assert not can_balance(prompts)
        with pytest.raises(InvalidInputError, match=prompts.name):
            balance_prompts("a nurse", prompts)
    assert all(
        can_balance(load_prompts(name)) for name in ("gender", "race", "age", "skin-tone", "celeba")
    )
    assert can_balance(
        make_prompt_set("glasses", {"with": ["bespectacled"], "without": ["clear-eyed"]}, ["cook"])
    )


def test_a_set_may_be_the_content_of_one():
    content = {
        "name": "sight",
        "attribute": {"blind": ["blind"], "sighted": ["sighted"]},
        "templates": ["a {attribute} {concept}"],
        "concepts": ["cook"],
        "adjectives": {"blind": "blind", "sighted": "sighted"},
    }
    out = balance_prompts(["a tired cook"] * 2, content)
    assert sorted(out.prompts) == ["a tired blind cook", "a tired sighted cook"]


# ---- sets of one's own: how values are said

HEARING = {"deaf": ["deaf"], "hearing": ["hearing"]}
PHRASE = {"deaf": "who is deaf", "hearing": "who can hear"}


def test_a_phrase_goes_behind_the_noun():
    hearing = make_prompt_set("hearing", HEARING, ["cook"], phrase=PHRASE)
    assert can_balance(hearing)
    shares = {"deaf": 1, "hearing": 0}
    prompts = ["A tired line cook in a kitchen", "a nurse, 35mm", "two cooks", "a deaf cook"]
    out = balance_prompts(prompts, hearing, shares=shares)
    assert out.prompts == [
        "A tired line cook who is deaf in a kitchen",
        "a nurse who is deaf, 35mm",
        "two cooks",
        "a deaf cook",
    ]
    assert out.reasons == [None, None, "not plain", "stated"]
    both = balance_prompts("a cook at home", ["gender", hearing], shares={"female": 1} | shares)
    assert both.prompts == ["a female cook who is deaf at home"]


def test_two_sets_of_an_unknown_kind_are_not_about_the_same_attribute():
    sight = make_prompt_set("sight", {"blind": ["blind"], "sighted": ["sighted"]}, ["cook"])
    mood = make_prompt_set("mood", {"glad": ["glad"], "sad": ["sad"]}, ["cook"])
    assert balance_prompts("a cook", [sight, mood]).reasons == [(None, None)]


def test_a_modified_prompt_set_keeps_its_declared_adjectives():
    sight = make_prompt_set("sight", {"sighted": ["sighted"], "zorgish": ["zorgish"]}, ["cook"])
    assert can_balance(dataclasses.replace(sight, note="another note"))


def test_adjectives_are_declared_where_no_word_is_known_as_one(tmp_path):
    attribute = {"wheelchair": ["in a wheelchair"], "walking": ["on foot"]}
    adjectives = {"wheelchair": "wheelchair-using", "walking": "walking"}
    bare = make_prompt_set("mobility", attribute, ["cook"])
    with pytest.raises(InvalidInputError, match=r"'wheelchair' .*add `adjectives` .*`phrase` "):
        balance_prompts("a nurse", bare)
    made = make_prompt_set("mobility", attribute, ["cook"], adjectives=adjectives)
    saved = load_prompts(made.to_yaml(tmp_path / "mobility.yaml"))
    assert saved.hash == made.hash != bare.hash
    out = balance_prompts("a rich lawyer", saved, shares={"wheelchair": 1, "walking": 0})
    assert out.prompts == ["a rich wheelchair-using lawyer"]


def test_any_religion_is_a_stated_one():
    faiths = {"Muslim": ["Muslim"], "Christian": ["Christian"]}
    made = make_prompt_set("faith", faiths, ["cook"], adjectives={v: v for v in faiths})
    out = balance_prompts(["a Hindu priest", "a rabbi", "a cook"], made)
    assert out.reasons == ["stated", "stated", None]


@refused(
    ({"adjectives": {"deaf": "deaf"}}, "adjectives: .*'hearing'"),
    ({"phrase": {**PHRASE, "mute": "who is mute"}}, "phrase: .*'mute'"),
    (
        {"phrase": PHRASE, "adjectives": {"deaf": "deaf", "hearing": "hearing"}},
        "both adjectives and phrase",
    ),
)
def test_ways_of_saying_values_are_checked(how):
    make_prompt_set("hearing", HEARING, ["cook"], **how)


@refused(
    ({"shares": {"female": 0.95}}, "shares: .* sum to 1"),
    ({"shares": {"feminine": 1}}, "shares: got 'feminine'"),
    ({"shares": {"female": 2, "male": -1}}, "shares: .* sum to 1"),
    ({"shares": {"female": "half"}}, "shares: got 'half' for 'female'"),
    ({"shares": {"female": float("nan"), "male": 1}}, "shares: .* sum to 1"),
    ({"find": 3}, "find: got 3"),
    ({"attribute": []}, "attribute: .* at least one prompt set"),
    ({"attribute": ["gender", "professions-gender"]}, "attribute: .* same attribute"),
    ({"attribute": ["gender", "fairface"]}, "attribute: .* same attribute"),
    ({"prompts": "a nurse \ud83d"}, "prompts: got 'a nurse .* index 0 of 1"),
    ({"seed": True}, "seed: got True"),
    ({"people": "mix"}, "people: got 'mix'"),
)
def test_what_cannot_be_balanced_is_refused(options):
    balance_prompts(**{"prompts": "a nurse", "attribute": "gender"} | options)


def in_child(function):
    """Return the result of a function in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps(function()).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read, "rb") as answer:
        return json.loads(answer.read())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_workers_do_not_assign_values_in_step():
    drawn, fixed = Balancer("gender"), Balancer("gender", seed=3)

    def assign(balancer):
        return [balancer.next([NURSE]).values[0] for _ in range(60)]

    orders = [tuple(in_child(lambda: assign(drawn))) for _ in range(3)]
    assert len({*orders, tuple(assign(drawn))}) == 4
    with drawn._lock:  # as if another thread of the parent assigned values meanwhile
        assert len(in_child(lambda: assign(drawn))) == 60
    assert in_child(lambda: assign(fixed)) == assign(Balancer("gender", seed=3))
    assert in_child(lambda: fixed.at(NURSE, 7).values) == fixed.at(NURSE, 7).values


def test_a_call_of_indices_is_even_in_itself():
    balancer = Balancer(["gender", "age"], seed=0)
    alone = [balancer.at(NURSE, index) for index in range(8)]
    call = balancer.at([NURSE] * 8, range(8))
    assert call.prompts == [made.prompts[0] for made in alone]
    assert call.people == [made.people[0] for made in alone]
    for indices in ([0] * 4, [1, 3, 5, 7], [9, 2**60, 4, 4]):
        call = balancer.at([NURSE] * 4, indices)
        assert call == balancer.at([NURSE] * 4, indices)
        genders = Counter(gender for gender, _ in call.values)
        assert set(genders.values()) == {2}
    with pytest.raises(InvalidInputError, match="got 1 for 2 prompts"):
        balancer.at([NURSE] * 2, 3)


@given(st.lists(st.integers(0, 2**64), min_size=1, max_size=9), st.integers(0, 5))
def test_whatever_the_indices_a_call_is_even(indices, seed):
    call = Balancer("gender", seed=seed).at([NURSE] * len(indices), indices)
    counts = Counter(call.values)
    assert abs(counts["female"] - counts["male"]) <= 1


@pytest.mark.parametrize(
    "prompt",
    [
        "un médecin dans un hôpital",
        "una enfermera en la estación",
        "um médico cansado",
        "Ein müder Arzt in der Küche",
        "병원에 있는 의사",
        "男性のパイロット",
        "a café owner",
    ],
)
def test_accents_in_two_characters_are_read_as_in_one(prompt: str) -> None:
    """macOS writes accents as separate characters; unchanged prompts stay identical, character for
    character."""
    apart = unicodedata.normalize("NFD", prompt)
    assert apart != prompt
    expected = balance_prompts([prompt] * 2, "gender", seed=0)
    found = balance_prompts([apart] * 2, "gender", seed=0)
    assert (found.values, found.reasons) == (expected.values, expected.reasons)
    written = Balancer("gender", seed=0).write([apart], ["female"])
    if expected.reasons == [None, None]:
        assert found.prompts == expected.prompts
        assert written == [expected.prompts[expected.values.index("female")]]
    else:
        assert found.prompts == [apart] * 2
        assert written == [apart]


def test_english_with_the_accent_of_a_loanword_is_english() -> None:
    for prompt in ("a café owner",):
        assert balance_prompts(prompt, "gender", seed=0).reasons == [None]
    for prompt in ("a médica cansada", "a chef à mesa"):
        assert balance_prompts(prompt, "gender", seed=0).reasons == ["stated"]


@pytest.mark.parametrize(
    ("prompt", "seen"),
    [
        ("a doc\u00adtor", "a doctor"),
        ("a nu\u200brse at work", "a nurse at work"),
        ("\ufeffa fire\u00adfigh\u2060ter", "a firefighter"),
        ("a fe\u00admale nurse", "a female nurse"),
        ("ein Kranken\u00adpfleger", "ein Krankenpfleger"),
    ],
)
def test_characters_that_nobody_sees_hide_no_word(prompt: str, seen: str) -> None:
    found = balance_prompts([prompt] * 2, "gender", seed=0)
    expected = balance_prompts([seen] * 2, "gender", seed=0)
    assert found.values == expected.values
    assert found.reasons == expected.reasons
    assert found.people == expected.people
    is_open = expected.reasons == [None, None]
    assert found.prompts == (expected.prompts if is_open else [prompt] * 2)


def test_a_joined_emoji_and_a_prompt_without_a_person_stay_unchanged() -> None:
    for prompt in ("\U0001f469\u200d\u2695\ufe0f a doctor", "a red\u00addish car"):
        assert balance_prompts(prompt, "gender").prompts == [prompt]


def test_a_prompt_in_capitals_stays_in_capitals() -> None:
    assert state("A CEO IN AN OFFICE", "race") == "AN ASIAN CEO IN AN OFFICE"
    assert state("A CEO", "race") == "An Asian CEO"


@pytest.mark.parametrize(
    ("prompt", "result"),
    [
        ("time is a thief, melting hourglass", "time is a thief, melting hourglass"),
        ("this is a nurse in a ward", "this is a female nurse in a ward"),
        ("a sheriff's deputy taking notes", "a female sheriff's deputy taking notes"),
        ("the ship's captain at the wheel", "the female ship's captain at the wheel"),
        ("a driver's mate with a crate", "a female driver's mate with a crate"),
        ("an old deep-sea salvage diver", "an old female deep-sea salvage diver"),
        ("a kind doctor", "a kind female doctor"),
        ("a kind kindergarten teacher", "a kind female kindergarten teacher"),
        ("a very tall basketball referee", "a very tall female basketball referee"),
        ("a cross supervisor", "a cross female supervisor"),
        ("a cross country runner", "a female cross country runner"),
        ("a 35-year-old data analyst", "a 35-year-old female data analyst"),
        ("an air traffic controller yawning", "a female air traffic controller yawning"),
        ("a nurse and her grandfather", "a nurse and her grandfather"),
        # or that of a placeholder, in any spelling
        ("a {Gender} cook", "a Female cook"),
        ("{GENDER} COOK", "FEMALE COOK"),
        ("a {{gender}} cook", "a {{gender}} cook"),  # a variable of another tool
        ("a { gender } cook", "a female cook"),
        ("{Gender} cook, tired", "Female cook, tired"),
    ],
)
def test_the_place_of_a_value_is_where_the_noun_of_the_person_begins(prompt, result):
    assert balance_prompts(prompt, "gender", shares={"female": 1, "male": 0}).prompts == [result]


def test_a_seed_shared_by_several_processes_is_warned_about_once(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    _warn_of_processes.cache_clear()
    balancer = Balancer("gender", seed=0)
    with pytest.warns(VldebiasWarning, match="one of 8 processes.*balance all prompts before"):
        values = balancer.next([NURSE]).values
    # The pytest settings turn any further warning into an error.
    balancer.next([NURSE])
    _warn_of_processes.cache_clear()
    Balancer("gender").next([NURSE])  # each process draws its own seed
    Balancer("gender", seed=0).at(NURSE, 3)
    balance_prompts([NURSE] * 8, "gender", seed=0)  # balanced before the processes split it
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert Balancer("gender", seed=0).next([NURSE]).values == values


def test_a_call_of_indices_may_not_be_off_by_two():
    prompts = ["a", "a"]
    even = [[["male"]], [["female"]]]
    assert _are_as_even(prompts, even[::-1], even)
    assert not _are_as_even(prompts, [[["male"]], [["male"]]], even)
    # The sorted counts are equal, but each value differs from an even call by two.
    prompts = ["a"] * 4
    three_men = [[["male"]], [["male"]], [["male"]], [["female"]]]
    three_women = [[["female"]], [["female"]], [["female"]], [["male"]]]
    assert not _are_as_even(prompts, three_women, three_men)


def test_an_outcome_that_is_two_short_comes_before_one_that_is_one_short():
    thirds = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
    sampler = EvenSampler(0, 10)
    # For this prompt, b lacks most. Over all prompts, c does.
    sampler._counts[0, 0]["prompt"] = Counter({"a": 4, "b": 1, "c": 2})
    sampler._totals[0, 0, "a", "b", "c"] = Counter({"a": 4, "b": 9, "c": 2})
    assert sampler.assign(0, 0, "prompt", 1, thirds) == ["b"]


def test_the_examples_of_how_prompts_are_read_are_right() -> None:
    folder = Path(__file__).parents[2] / "docs" / "how-to"
    page = (folder / "how-prompts-are-read.md").read_text(encoding="utf-8")
    results = dict(re.findall(r"^\| `(.+?)` \| `(.+?)` \|", page, re.MULTILINE))
    assert len(results) > 10
    page = (folder / "balance-prompts.md").read_text(encoding="utf-8")
    for reason, examples in re.findall(r"^\| `(.+?)` \| .*?: (\".*) \|$", page, re.MULTILINE):
        results |= dict.fromkeys(re.findall(r'"(.+?)"', examples), reason)
    assert {"stated", "named", "no person", "edit", "not plain"} <= set(results.values())
    for prompt, result in results.items():
        balanced = balance_prompts([prompt] * 4, "gender", seed=0)
        assert result in {*balanced.prompts, *balanced.reasons}, prompt
