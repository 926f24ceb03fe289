"""Plans: which images there are, that variants share their noise, and that names stay apart."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing import DrawnSet, Plan, make_plan
from vldebias.evaluation.variants import NONE, Variant, is_for_pipelines
from vldebias.methods import METHODS
from vldebias.prompts import PromptSet, load_prompts, make_prompt_set

MODEL: dict[str, Any] = {"pipeline": "Tiny", "id": None, "fingerprints": {}}

FEW = make_prompt_set("few", {"male": ["male"], "female": ["female"]}, ["vet", "dj"])


def plan(prompts: PromptSet | None = None, variants: dict[str, Variant] | None = None, **changes: Any) -> Plan:
    settings = {"concepts": "unseen", "stated": True, "images": 3, "stated_images": 2, "seeds": [0, 4], "steps": 2}
    settings |= {"guidance": 3.0, "batch_size": 7, "options": {}} | changes
    chosen = {"cali": Variant()} if variants is None else variants
    return make_plan(MODEL, prompts or load_prompts("professions-gender"), chosen, **settings)


def test_every_prompt_has_its_images_under_every_variant() -> None:
    made = plan()
    counts = Counter((image.variant, image.stated is not None) for image in made.all_images)
    plain, stated = 20 * 3 * 2, 40 * 2 * 2
    assert counts == {
        ("none", False): plain,
        ("cali", False): plain,
        ("none", True): stated,
        ("cali", True): stated,
        ("cali, stated not kept", True): stated,
    }
    assert {image.seed for image in made.all_images if image.stated is None} == {0, 1, 2, 40_000, 40_001, 40_002}


def test_noise_is_the_same_under_every_variant_and_different_for_every_prompt_and_seed() -> None:
    noise: dict[tuple[str, int], set[int]] = {}
    for image in plan().all_images:
        noise.setdefault((image.prompt, image.seed), set()).add(image.noise)
    assert all(len(found) == 1 for found in noise.values())
    assert len(set(chain(*noise.values()))) == len(noise)


@given(size=st.integers(1, 40), images=st.integers(1, 5))
def test_batches_are_the_images_in_order_and_do_not_mix_stated_prompts_with_others(size: int, images: int) -> None:
    made = plan(FEW, {"cali": Variant(prompts=(FEW,))}, concepts="train", batch_size=size, images=images)
    for variant in made.variants:
        batches = list(made.batches(variant))
        assert list(chain(*batches)) == made.of(variant)
        kinds = [{image.stated is not None for image in batch} for batch in batches]
        assert all(len(kind) == 1 for kind in kinds)
        assert all(len(b) == size for b, kind, after in zip(batches, kinds, kinds[1:], strict=False) if kind == after)


@pytest.mark.parametrize("name", ["professions-gender", "professions-race", "skin-tone", "backgrounds"])
@pytest.mark.parametrize("part", ["train", "unseen"])
def test_stated_prompts_know_their_value_and_concept(name: str, part: str) -> None:
    """In these sets a group has one prompt for each value, in order, and groups follow the classes."""
    prompts = load_prompts(name)
    groups = prompts.groups if part == "train" else prompts.held_out_groups
    concepts = prompts.class_names if part == "train" else prompts.held_out_class_names
    expected = [
        (p, v, c) for g, c in zip(groups, concepts, strict=True) for p, v in zip(g, prompts.attributes, strict=True)
    ]
    made = plan(prompts, concepts=part)
    assert [(p.prompt, p.stated, p.concept) for p in made.prompts if p.stated] == expected


def test_prompts_that_look_alike_in_a_path_have_different_files() -> None:
    groups = (("a man", "a woman"),)
    words = {"male": ("man",), "female": ("woman",)}
    prompts = PromptSet("alike", groups, classes=("A nurse.", "a nurse"), class_names=("x", "y"), attributes=words)
    long = make_prompt_set("long", words, [f"{'very ' * 30}{end}" for end in ("old nurse", "young nurse")])
    for one in (prompts, long):
        paths = [image.path for image in plan(one, concepts="train").all_images]
        assert len({path.lower() for path in paths}) == len(paths)
        assert all(len(part) < 100 for path in paths for part in Path(path).parts)


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    made = plan(options={"height": 64, "negative_prompt": "blurry"})
    made.settle(tmp_path)
    assert Plan.read(tmp_path / "plan.json") == made
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": 0}, r"images: Input should be greater than or equal to 1; got 0"),
        ({"images": 10_001}, r"images: Input should be less than or equal to 10000; got 10001"),
        ({"seeds": []}, r"seeds: expected different numbers from 0 on, got \[\]"),
        ({"seeds": [-1]}, r"seeds: expected different numbers"),
        ({"options": {"guidance_scale": 1}}, r"options: \['guidance_scale'\] are set by the plan; use steps="),
        ({"variants": {"none": Variant()}}, r"not 'none', which is drawn always"),
        ({"variants": {"a b": Variant(), "A-B": Variant()}}, r"stay different as names of folders"),
        ({"variants": {"a": Variant(), "a, stated not kept": Variant()}}, r"stay different as names of folders"),
    ],
)
def test_errors_say_what_was_expected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        plan(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": ("nothing",)}, "nothing"),
        ({"method": "magic"}, "expected one of .*cali.*, got 'magic'"),
        ({"method": "target-shares"}, "is not for pipelines; expected one of none, .*balanced-prompts"),
        ({"lam": -1.0}, "greater than or equal to 0"),
        ({"lam": float("nan")}, "greater than or equal to 0"),
        ({"shares": {"male": 1.0}}, "are of the method 'balanced-prompts', got method 'cali'"),
        ({"projection": "folder", "lam": 3.0}, "a saved projection carries its own lam; leave them out"),
        (
            {"prompts": (PromptSet("bare", (("a", "b"),)),), "method": "orth"},
            "needs spurious prompts and the sets have none",
        ),
    ],
)
def test_a_variant_that_cannot_be_fitted_is_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Variant(**arguments)


@pytest.mark.parametrize("name", [name for name in METHODS if name != NONE and is_for_pipelines(name)])
def test_rows_carry_a_lam_only_of_a_method_that_has_one(name: str, tmp_path: Path) -> None:
    made = plan(variants={"mine": Variant(method=name, lam=7.0, strength=0.5)}, stated=False)
    expected = {"strength": 0.5} | ({"lam": 7.0} if METHODS[name].has_lam else {})
    told = DrawnSet(tmp_path, made, made.all_images).result(task="t", description="", settings={})
    assert told.details == {"none": {}, "mine": expected}
