"""Test what the ComfyUI nodes compute, without ComfyUI. tests/integrations runs them in the real
one."""

import json
import random
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import vldebias
from apps.comfyui.alternatives import choose_alternatives
from apps.comfyui.balancing import (
    ATTRIBUTES,
    balance,
    problem_of,
    read_shares,
    single_settings,
)
from apps.comfyui.rows import FAMILIES, Conditioning, family_of, join_rows
from apps.comfyui.saving import write_records
from tests.growth import growth
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.utils.pictures import read_png

ROOT = Path(__file__).parents[2]
NODES = ROOT / "apps" / "comfyui"
CEO = "A photo of a CEO in an office"
# "female: 75%, male: 25%" as typed on Chinese and Japanese keyboards
WIDE = "female\uff1a\uff17\uff15\uff05\uff0cmale\uff1a25"


def test_values_are_even_and_written_into_the_prompts() -> None:
    balanced = balance([CEO], "gender", 4)
    assert Counter(balanced.values) == {"female": 2, "male": 2}
    assert balanced.prompts == [
        f"A photo of a {value} CEO in an office" for value in balanced.values
    ]
    assert balanced.seeds == [0, 1, 2, 3]
    assert balanced.reasons.splitlines()[0] == f"image 1: {balanced.values[0]}"


@pytest.mark.parametrize(
    ("attribute", "images"), [*((name, 1) for name in ATTRIBUTES), ("gender", 3), ("gender", 5)]
)
def test_consecutive_runs_of_a_queue_continue_one_even_sequence(
    attribute: str, images: int
) -> None:
    for seed in (0, 7):
        values = Counter[str]()
        for index in range(41):
            text = f"{CEO}, {index}"  # it may change between runs
            values.update(balance([text], attribute, images, seed=seed, index=index).values)
        assert max(values.values()) - min(values.values()) <= 2
        assert "" not in values


@pytest.mark.parametrize(
    ("prompts", "attribute", "images"), [([CEO], "race", 3), ([CEO, CEO], "gender", 2)]
)
def test_runs_of_several_images_do_not_reuse_indices(
    prompts: list[str], attribute: str, images: int
) -> None:
    together = balance([CEO], attribute, 2 * images * len(prompts), seed=5)
    first = balance(prompts, attribute, images, seed=5, index=0)
    second = balance(prompts, attribute, images, seed=5, index=1)
    assert first.values + second.values == together.values
    assert first.seeds + second.seeds == together.seeds


def test_a_list_of_prompts_is_assigned_values_as_one_run() -> None:
    balanced = balance(["a CEO", "a nurse", "a chef", "a pilot"], "gender", 1)
    assert balanced.seeds == [0, 1, 2, 3]
    assert [line.split(":")[0] for line in balanced.reasons.splitlines()] == [
        f"image {number}" for number in (1, 2, 3, 4)
    ]
    with pytest.raises(InvalidInputError, match=r"prompts: got \[\]"):
        balance([], "gender", 1)


def test_settings_given_as_lists_apply_to_all_prompts() -> None:
    assert single_settings({"images": [4], "seed": [7, 7]}) == {"images": 4, "seed": 7}
    with pytest.raises(InvalidInputError, match="seed: got a list of 2 different values"):
        single_settings({"images": [4], "seed": [7, 8]})
    with pytest.raises(InvalidInputError, match="seed: got a list of 0 different values"):
        single_settings({"seed": []})


def test_prompts_that_state_a_value_are_left_unchanged_with_the_reason() -> None:
    balanced = balance(["a lady editor"], "gender", 2)
    assert balanced.prompts == ["a lady editor"] * 2
    assert balanced.values == ["", ""]
    assert balanced.reasons == "\n".join(
        f"image {number}: left unchanged (states the attribute)" for number in (1, 2)
    )


def test_a_group_is_mixed_in_one_image() -> None:
    balanced = balance(["five engineers"], "gender", 2)
    assert sorted(balanced.values) == ["3 female, 2 male", "3 male, 2 female"]
    assert all("women" in text and " men" in text for text in balanced.prompts)


def test_each_person_gets_a_value_in_any_text() -> None:
    pair = "a doctor and a nurse in room {}"
    runs = [balance([pair.format(index)], "gender", 1, index=index) for index in range(4)]
    values = [run.values[0] for run in runs]
    assert sorted(values) == ["female, female", "female, male", "male, female", "male, male"]
    for index, value in enumerate(values):
        doctor, nurse = value.split(", ")
        expected = f"a {doctor} doctor and a {nurse} nurse in room {index}"
        assert runs[index].prompts == [expected]


def test_a_group_next_to_a_person_is_described() -> None:
    (value,) = balance(["three students and a teacher"], "gender", 1).values
    students, more_students, teacher = value.split(", ")
    assert {students[0], more_students[0]} == {"1", "2"}
    assert teacher in ("female", "male")


def test_an_input_that_was_removed_says_what_to_do_instead() -> None:
    # ComfyUI passes connected inputs that a node does not declare.
    with pytest.raises(InvalidInputError, match=r"^original: .* removed; balance the user's"):
        single_settings({"images": [1], "original": ["a nurse", "a cook"]})


@pytest.mark.parametrize(
    "text", ["female: 75, male: 25", "Female=.75; male=.25", "female: 75 %\nmale: 25 %", WIDE]
)
def test_shares_may_be_percentages_or_fractions(text: str) -> None:
    assert read_shares(text, "gender") == {"female": 0.75, "male": 0.25}
    assert Counter(balance([CEO], "gender", 4, text).values) == {"female": 3, "male": 1}


def test_rounded_shares_and_blank_shares_are_accepted() -> None:
    shares = read_shares("White: 33.3, Black: 33.3, Asian: 33.3", "race")
    assert sum(shares.values()) == pytest.approx(1)
    assert read_shares(" \n", "race") is None


@pytest.mark.parametrize(
    ("attribute", "shares", "words"),
    [
        ("gender", "female 75", ["female 75", "nothing for even shares"]),
        ("gender", "woman: 75, male: 25", ["'woman'", "female"]),
        ("gender", "femal: 100", ["'femal'", "one of male, female"]),
        ("race", "african: 100", ["'african'", "one of White, Black, Asian, Indian, Latino"]),
        ("gender", "female: 70, male: 40", ["110", "100"]),
        ("gender", "female: 3, male: 1", ["sum to 4"]),
        ("gender", "female: 50, FEMALE: 50", ["twice"]),
        ("gender", "female: -1, male: 2", ["female: -1"]),
        ("gendre", "", ["'gendre'", "did you mean 'gender'?"]),
        ("professions-gender", "", ["expected one of"]),
    ],
)
def test_invalid_shares_and_attributes_are_explained(
    attribute: str, shares: str, words: list[str]
) -> None:
    sentence = problem_of(attribute, shares)
    for word in words:
        assert word in sentence
    with pytest.raises(InvalidInputError):
        balance([CEO], attribute, 4, shares)


def test_inputs_linked_from_other_nodes_are_not_validated_early() -> None:
    assert problem_of(None, None) is None
    assert problem_of("gender", None) is None


@pytest.mark.parametrize(
    "numbers",
    [{"images": 0}, {"images": 65}, {"images": 4, "index": -1}, {"images": 4, "seed": -1}],
)
def test_numbers_out_of_range_are_rejected(numbers: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match=list(numbers)[-1]):
        balance([CEO], "gender", **numbers)


def test_alternatives_are_chosen_for_each_image() -> None:
    syntax = "{red|blue} hat, (CEO:1.2), <lora:film:0.8> BREAK __colour__, {2$$a|b}, {0.3::c|d}"
    prompts = balance([syntax], "gender", 16).prompts
    assert {text.split()[0] for text in prompts} == {"red", "blue"}
    for text in prompts:
        rest = text.replace("female ", "").replace("male ", "").split(" ", 1)[1]
        assert rest == syntax.split(" ", 1)[1]


@pytest.mark.parametrize(
    "text", ['{"subject": "a CEO | a nurse"}', "{gender}", r"\{a|b\}", "a | b", "{a}", "(a|b)"]
)
def test_braces_without_alternatives_are_left_unchanged(text: str) -> None:
    assert choose_alternatives(text, "0") == text


def conditioning(length: int, value: float, **options: Any) -> Conditioning:
    return [
        [torch.full((1, length, 3), value), {"pooled_output": torch.full((1, 2), value)} | options]
    ]


def test_rows_have_states_and_pooled_vectors_in_the_order_of_the_images() -> None:
    rows = [conditioning(77, float(value)) for value in range(4)]
    ((states, options),) = join_rows(rows, FAMILIES["SDXLClipModel"])
    assert states.shape == (4, 77, 3)
    assert states[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert options["pooled_output"].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_shorter_prompts_are_repeated_if_attention_ignores_repetition() -> None:
    two = torch.arange(154 * 3.0).reshape(1, 154, 3)
    three = torch.arange(231 * 3.0).reshape(1, 231, 3)
    rows: list[Conditioning] = [[[two, {}]], [[three, {}]]]
    ((states, _),) = join_rows(rows, FAMILIES["SD1ClipModel"])
    queries = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for row, prompt_states in enumerate((two[0], three[0])):
        joined = states[row]
        expected = torch.softmax(queries @ prompt_states.T, dim=-1) @ prompt_states
        torch.testing.assert_close(torch.softmax(queries @ joined.T, dim=-1) @ joined, expected)


@pytest.mark.parametrize(
    ("encoder", "lengths"),
    [
        ("SD3ClipModel", (256, 257)),
        ("FluxClipModel", (256, 257)),
        ("SD1ClipModel", (6 * 77, 7 * 77)),  # joined, they would be too long
    ],
)
def test_lengths_that_cannot_be_joined_are_rejected(encoder: str, lengths: tuple[int, int]) -> None:
    rows = [conditioning(length, 0.0) for length in lengths]
    with pytest.raises(InvalidInputError, match=f"{lengths[0]}, {lengths[1]}"):
        join_rows(rows, FAMILIES[encoder])


def test_other_conditioning_options_are_preserved_and_must_agree() -> None:
    hooks = object()
    rows = [conditioning(77, 0.0, hooks=hooks, guidance=3.5, mask=None) for _ in range(2)]
    ((_, options),) = join_rows(rows, FAMILIES["FluxClipModel"])
    assert options["hooks"] is hooks
    assert options["guidance"] == 3.5
    assert options["mask"] is None
    rows[1][0][1]["guidance"] = 4.0
    with pytest.raises(InvalidInputError, match="guidance"):
        join_rows(rows, FAMILIES["FluxClipModel"])


def test_the_entries_of_a_schedule_are_preserved() -> None:
    rows = [conditioning(77, value) + conditioning(77, value + 10) for value in (0.0, 1.0)]
    joined = join_rows(rows, FAMILIES["SD1ClipModel"])
    assert [states[:, 0, 0].tolist() for states, _ in joined] == [[0, 1], [10, 11]]
    with pytest.raises(InvalidInputError, match="steps"):
        join_rows([rows[0], conditioning(77, 0.0)], FAMILIES["SD1ClipModel"])


def test_unsupported_text_encoders_are_rejected_by_name() -> None:
    class FluxClipModel_:  # noqa: N801  # as ComfyUI names the class that it makes for a file
        pass

    class LuminaModel(FluxClipModel_):
        pass

    assert family_of(FluxClipModel_()).name == "Flux"
    with pytest.raises(UnsupportedHostError, match=r"LuminaModel.*Balance Prompt"):
        family_of(LuminaModel())


def test_the_package_has_the_fields_the_registry_requires() -> None:
    package = tomllib.loads((NODES / "pyproject.toml").read_text())
    project = package["project"]
    assert project["name"] == "balanced-prompts"
    assert (NODES / project["license"]["file"]).read_text() == (ROOT / "LICENSE").read_text()
    assert (NODES / "requirements.txt").read_text().split() == project["dependencies"]
    assert project["version"] == vldebias.__version__
    assert project["dependencies"] == [f"vldebias>={vldebias.__version__}"]
    assert (NODES / package["tool"]["comfy"]["web"]).is_dir()


def test_the_wheel_does_not_include_the_nodes() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = built["targets"]["wheel"]
    assert wheel["only-include"] == ["vldebias", "apps"]
    assert "apps/comfyui" in wheel["exclude"]
    assert not any("comfyui" in path for path in wheel["force-include"])


@pytest.mark.parametrize("name", ["balance-prompt", "one-sampler-call"])
def test_workflow_images_contain_their_workflows(name: str) -> None:
    path = NODES / "example_workflows" / f"{name}.json"
    with Image.open(path.with_suffix(".png"), formats=["PNG"]) as image:
        workflow = json.loads(image.info["workflow"])
    assert workflow == json.loads(path.read_text())
    assert path.with_suffix(".png").stat().st_size < 150_000
    kinds = {node["type"] for node in workflow["nodes"]}
    assert kinds & {"BalancedPromptsText", "BalancedPromptsEncode"}


def test_every_full_block_of_a_run_has_exact_shares_from_any_seed() -> None:
    seventy = "female: 70, male: 30"
    for seed in range(40):
        for images in (2, 4, 10):
            values = balance([CEO], "gender", images, seed=seed).values
            for row in range(0, images, 2):
                assert sorted(values[row : row + 2]) == ["female", "male"]
        values = balance([CEO], "gender", 7, seed=seed).values
        assert abs(values.count("female") - values.count("male")) == 1
        values = balance([CEO], "gender", 20, seventy, seed=seed).values
        assert values[:10].count("female") == values[10:].count("female") == 7
        values = balance(["a CEO", "a nurse", "a chef", "a pilot"], "gender", 1, seed=seed).values
        assert Counter(values) == {"female": 2, "male": 2}


@pytest.mark.parametrize("images", [1, 4])
@pytest.mark.parametrize("stride", range(2, 11))
def test_the_first_value_does_not_depend_on_the_remainder_of_the_seed(
    images: int, stride: int
) -> None:
    for start in (0, 1):
        values = Counter(
            balance([CEO], "gender", images, seed=seed).values[0]
            for seed in range(start, start + 100 * stride, stride)
        )
        assert 25 <= values["female"] <= 75


def test_the_seed_of_a_single_image_is_its_index() -> None:
    for seed in range(20):
        single = balance([CEO], "gender", 1, seed=seed).values
        assert single == balance([CEO], "gender", 1, seed=0, index=seed).values


def test_values_are_written_into_saved_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = SimpleNamespace(get_output_directory=lambda: str(tmp_path))
    monkeypatch.setitem(sys.modules, "folder_paths", paths)
    (tmp_path / "sub").mkdir()
    results = []
    for number in range(2):
        info = PngInfo()
        info.add_text("workflow", "{}")
        Image.new("RGB", (8, 8)).save(tmp_path / "sub" / f"{number}.png", pnginfo=info)
        results.append({"filename": f"{number}.png", "subfolder": "sub", "type": "output"})
    write_records(results, ["female", ""], ["a female nurse", "a chair"], [])
    for number, facts in enumerate(
        [{"value": "female", "prompt": "a female nurse"}, {"value": "", "prompt": "a chair"}]
    ):
        image, metadata = read_png(tmp_path / "sub" / f"{number}.png", pixels=False)
        assert metadata == facts
        assert image.info["workflow"] == "{}"
    for columns in ((["female"], [], []), (["a", "b"], ["a"], []), ([], [], [])):
        with pytest.raises(ValueError, match="for 2 images; connect"):
            write_records(results, *columns)


INNERMOST = re.compile(r"(?<!\\)\{((?:[^{}$\\:]|:(?!:))*\|(?:[^{}$\\:]|:(?!:))*)\}")


@settings(max_examples=400)
@given(st.text(alphabet="{{}}||ab:\\$", max_size=24), st.integers(0, 9))
def test_alternatives_are_chosen_as_by_replacing_the_first_innermost_one(
    text: str, key: int
) -> None:
    expected = text
    generator = random.Random(str(key))
    while match := INNERMOST.search(expected):
        branch = generator.choice(match[1].split("|"))
        expected = expected[: match.start()] + branch + expected[match.end() :]
    try:
        json.loads(text)
        expected = text if text.lstrip().startswith(("{", "[")) else expected
    except ValueError:
        pass
    assert choose_alternatives(text, str(key)) == expected


@pytest.mark.parametrize(
    ("start", "end"),
    [("{a|", ""), ("{a|", "}"), ("{", "}"), ("{", "|}"), ("{a|b}", ""), ("{a|\\", "}"), ("a|", "")],
)
def test_the_cost_of_alternatives_is_linear(start: str, end: str) -> None:
    def choose(n: int) -> None:
        choose_alternatives("{" + start * n + end * n, "0")

    assert growth(choose, 3000) < 3


def test_seeds_wrap_around_after_the_largest_seed_of_a_sampler() -> None:
    largest = 2**64 - 1
    assert balance([CEO], "gender", 3, seed=largest).seeds == [largest, 0, 1]
    with pytest.raises(InvalidInputError, match="seed"):
        balance([CEO], "gender", 3, seed=largest + 1)
