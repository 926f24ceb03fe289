"""Test plans: pixels equal the pipeline's own, an image only depends on its prompt and seed, and
interrupted runs resume."""

import copy
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, cycle, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.study.painted_by_hand import chosen

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers import DDIMScheduler, StableDiffusionImg2ImgPipeline
from diffusers_tiny import sd, sd3, with_own_components

from tests.refusals import refused
from vldebias import debias, fit_projections
from vldebias.errors import InvalidInputError
from vldebias.hosts.attachment import Attachment, attachment_of
from vldebias.hosts.loading import Loaded
from vldebias.judge.plan import GeneratedImages, Plan, PlannedImage, identity
from vldebias.methods import METHODS, Need
from vldebias.methods.declared import PIPELINES
from vldebias.miniature import load_clip
from vldebias.projection.fingerprint import Fingerprint
from vldebias.prompts import PromptSet, load_prompts, make_prompt_set
from vldebias.study.edit_check import check
from vldebias.study.tasks.generation import GenerationTask
from vldebias.study.tasks.variants import Variant, generate, prepared
from vldebias.utils.pictures import write_png
from vldebias.wording import balance_prompts

SIZE = {"height": 16, "width": 16}
PEOPLE = make_prompt_set("people", {"male": ["male"], "female": ["female"]}, ["doctor", "nurse"])
BARE = "cali, stated not kept"


def task(**changes: Any) -> GenerationTask:
    settings = {
        "attribute": PEOPLE,
        "attributes": ["gender"],
        "variants": {"cali": {}},
        "concepts": "train",
    }
    settings |= {
        "images": 3,
        "stated_images": 1,
        "steps": 2,
        "guidance": 3.0,
        "batch_size": 4,
        "options": SIZE,
    }
    return GenerationTask.build(settings | changes)


def generated_in(folder: Path, pipe: Any = None, **changes: Any) -> GeneratedImages:
    pipe = pipe or sd()
    generation_task = task(**changes)
    return generate(
        pipe, generation_task.plan(identity(pipe)), generation_task.resolved_variants, folder
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.png"))
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> GeneratedImages:
    return generated_in(tmp_path_factory.mktemp("whole"))


def pixels(made: GeneratedImages, image: PlannedImage) -> np.ndarray:
    return np.asarray(made.read(image)).astype(int)


def plan(**changes: Any) -> Plan:
    settings = {
        "attribute": "professions-gender",
        "concepts": "unseen",
        "stated_images": 2,
        "seeds": [0, 4],
    } | changes
    return task(**settings).plan({"pipeline": "Tiny", "id": None, "fingerprint": None})


def test_every_prompt_has_its_images_under_every_variant_with_the_same_noise() -> None:
    images = plan().all_images
    plain, stated = (
        Counter(planned.variant for planned in images if bool(planned.stated) is is_stated)
        for is_stated in (False, True)
    )
    assert plain == dict.fromkeys(["none", "cali"], 20 * 3 * 2)
    assert stated == dict.fromkeys(["none", "cali", BARE], 40 * 2 * 2)
    assert {image.seed for image in images if image.stated is None} == {
        0,
        1,
        2,
        40_000,
        40_001,
        40_002,
    }
    noise = {(image.prompt, image.seed, image.noise) for image in images}
    assert (
        len(noise)
        == len({planned[:2] for planned in noise})
        == len({planned[2] for planned in noise})
    )
    assert images[0].under("cali") in images
    assert images[0].path == "none/a-photo-of-an-accountant-6d71559d/0.png", (
        "judgements and labels refer to it"
    )
    pinned = PlannedImage("a photo of a nurse", "nurse", path="", variant="none", seed=10_000)
    assert pinned.noise == 159895270975431  # different noise would give different images


def test_given_subjects_replace_the_unseen_concepts() -> None:
    made = plan(attribute="backgrounds", subjects=["waterbird"])
    assert [prompt for prompt in made.prompts if prompt[3] is None] == [
        ("a photo of a waterbird", "waterbird", "unseen", None)
    ]
    stated = [(concept, value) for _, concept, _, value in made.prompts if value]
    assert stated == [("waterbird", value) for value in load_prompts("backgrounds").attributes]


@given(size=st.integers(1, 40), images=st.integers(1, 5))
def test_batches_are_the_images_in_order_and_do_not_mix_stated_prompts_with_others(
    size: int, images: int
) -> None:
    made = plan(attribute=PEOPLE, concepts="train", batch_size=size, images=images)
    for variant in made.variants:
        images = [image for image in made.all_images if image.variant == variant]
        batches = made.batches(images)
        assert sorted(chain(*batches)) == list(range(len(images)))
        kinds = [{images[i].stated is not None for i in batch} for batch in batches]
        assert all(len(kind) == 1 for kind in kinds)
        assert all(
            len(b) == size
            for b, kind, after in zip(batches, kinds, kinds[1:], strict=False)
            if kind == after
        )


@pytest.mark.parametrize(
    "name", ["professions-gender", "professions-race", "skin-tone", "backgrounds"]
)
def test_stated_prompts_know_their_value_and_concept(name: str) -> None:
    """In these sets, a group has one prompt per value, in order, and the groups follow the
    classes."""
    prompt_set = load_prompts(name)
    train = (prompt_set.variants, prompt_set.class_names)
    unseen = (prompt_set.held_out_variants, prompt_set.held_out_class_names)
    for part, (groups, concepts) in {"train": train, "unseen": unseen}.items():
        planned = plan(attribute=prompt_set, concepts=part).prompts
        expected = [
            *zip(
                chain(*groups),
                cycle(prompt_set.attributes),
                np.repeat(concepts, len(prompt_set.attributes)),
            )
        ]
        assert [
            (prompt, value, concept) for prompt, concept, _, value in planned if value
        ] == expected


def test_prompts_with_similar_paths_have_different_files() -> None:
    classes = ("A nurse.", "a nurse", *(f"{'very ' * 30}{age} nurse" for age in ("old", "young")))
    similar = PromptSet(
        "alike",
        PEOPLE.variants,
        classes=classes,
        class_names=tuple("wxyz"),
        attributes=PEOPLE.attributes,
    )
    paths = [
        image.path for image in plan(attribute=similar, concepts="train", stated=False).all_images
    ]
    # File systems may ignore case, and file names are limited to 255 bytes.
    assert len({path.lower() for path in paths}) == len(paths)
    for path in paths:
        assert all(len(part) < 100 for part in Path(path).parts)


def test_a_plan_can_be_read_back_from_its_file(tmp_path: Path) -> None:
    made = plan(options={"height": 64, "negative_prompt": "blurry"})
    assert made.settle(tmp_path).plan == GeneratedImages.open(tmp_path).plan == made
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="not a valid plan"):
        GeneratedImages.open(tmp_path)
    with pytest.raises(InvalidInputError, match="no such file"):
        GeneratedImages.open(tmp_path / "nowhere")


@refused(
    ({"images": 0}, "images"),
    ({"images": 10_001}, "images"),
    ({"seeds": []}, "seeds"),
    ({"variants": {"none": {}}}, "none"),
    ({"variants": {"a b": {}, "A-B": {}}}, "folder names"),
    ({"variants": {"x" * 60 + "a": {}, "x" * 60 + "b": {}}}, "folder names"),
    (
        {"attribute": replace(PEOPLE, classes=(), class_names=()), "concepts": "train"},
        "has no train classes",
    ),
    (
        {"attribute": replace(PEOPLE, held_out_classes=("a x",), held_out_class_names=("x",))},
        "requires unseen pairs",
    ),
    (
        {"attribute": replace(PEOPLE, variants=(("a nurse", "a cook"),)), "concepts": "train"},
        "'a nurse' states",
    ),
    ({"variants": {"cali": {"method": "magic"}}}, "magic"),
    ({"variants": {"cali": {"method": "bend-vlm"}}}, "does not support pipelines"),
    ({"subjects": ["nurse"]}, "nurse"),
    ({"subjects": ["astronaut", "astronaut"]}, "astronaut"),
    ({"variants": {"cali": {"lam": -1.0}}}, "lam"),
    ({"variants": {"cali": {"lam": float("nan")}}}, "lam"),
    ({"variants": {"cali": {"projection": "folder", "lam": 3.0}}}, "already determines lam"),
)
def test_invalid_plans_are_rejected(changes: dict[str, Any]) -> None:
    plan(**changes)


@pytest.mark.parametrize(
    "name",
    [name for name in METHODS if name != "none" and PIPELINES in METHODS[name].declaration.hosts],
)
def test_only_methods_that_take_lam_have_it_in_their_rows(name: str, tmp_path: Path) -> None:
    made = plan(variants={"mine": {"method": name, "lam": 7.0, "strength": 0.5}}, stated=False)
    result = made.settle(tmp_path).result(task="t", description="", settings={})
    result.add_draws("fid", {"none": 1.0, "mine": 2.0}, n={"images": 3})
    lam = 7.0 if METHODS[name].declaration.has_lam else None
    assert [(row.lam, row.strength) for row in result.rows] == [(None, None), (lam, 0.5)]
    assert (result.provenance.model, result.provenance.n["prompts"]) == ("Tiny", len(made.prompts))


def test_every_image_equals_what_the_pipeline_generates_from_its_noise(
    finished: GeneratedImages,
) -> None:
    assert [finished.images[i].variant for i in (1, -1)] == ["none", BARE]
    for image in (finished.images[1], finished.images[-1]):
        pipe = sd()
        noise = torch.Generator().manual_seed(image.noise)
        if image.variant == BARE:
            debias(pipe, PEOPLE, method="cali", keep_stated=False)
        call = {"generator": noise, "num_inference_steps": 2, "guidance_scale": 3.0, **SIZE}
        expected = pipe(image.prompt, **call).images[0]
        # One was generated in a batch and the other individually.
        assert np.abs(pixels(finished, image) - np.asarray(expected).astype(int)).max() <= 1


def test_stated_prompts_are_unchanged_by_default(finished: GeneratedImages) -> None:
    none, kept, bare = (
        list(chosen(finished, variant=name, stated=True)) for name in finished.plan.variants
    )
    assert {finished.metadata(image)["left_unchanged"] for image in kept} == {True}
    assert {finished.metadata(image)["left_unchanged"] for image in none + bare} == {False}
    assert any(
        (pixels(finished, a) != pixels(finished, b)).any() for a, b in zip(none, bare, strict=True)
    )


def test_a_result_counts_prompts_without_and_with_a_stated_value(finished: GeneratedImages) -> None:
    values = [value for *_, value in finished.plan.prompts]
    result = finished.result(settings={}, task="generation", title="", description="")
    n_stated = len(values) - values.count(None)
    assert n_stated > 0
    assert result.provenance.n == {
        "prompts": values.count(None),
        "stated": n_stated,
        "images": len(finished.plan.all_images),
    }


def test_an_image_file_describes_how_it_was_generated(finished: GeneratedImages) -> None:
    image = chosen(finished, variant="cali").images[2]
    record = finished.metadata(image)
    expected = {
        "prompt": image.prompt,
        "seed": image.seed,
        "noise": image.noise,
        "variant": "cali",
        "method": "cali",
    }
    expected |= {
        "sets": {"people": PEOPLE.hash},
        "lam": 500.0,
        "strength": 1.0,
        "keep_stated": True,
        "steps": 2,
    }
    expected |= {
        "guidance": 3.0,
        "options": SIZE,
        "pipeline": "StableDiffusionPipeline",
        "left_unchanged": False,
    }
    assert (expected | {"flagged": False}).items() <= record.items()
    assert {"model", "fingerprint", "version"} <= record.keys()
    assert json.loads(Image.open(finished.path(image)).text["vldebias"]) == record
    assert finished.metadata(finished.images[0])["method"] == "none"


def test_black_images_of_a_safety_checker_are_marked() -> None:
    pipe = sd()
    made = SimpleNamespace(
        images=[Image.new("RGB", (4, 4))] * 2, nsfw_content_detected=[False, True]
    )
    call: dict[str, Any] = {}
    pipe.__class__ = type(
        "Checked", (type(pipe),), {"__call__": lambda *_, **options: call.update(options) or made}
    )
    with prepared(pipe, None, ["a doctor"] * 2, [0, 1], negative_prompt="blurry") as pictures_of:
        assert [flagged for _, flagged in pictures_of([0, 1])] == [False, True]
        assert pipe._progress_bar_config["disable"], "there would be a progress bar for each batch"
    assert call["negative_prompt"] == ["blurry"] * 2


def test_only_missing_and_damaged_files_are_generated_again(
    finished: GeneratedImages, tmp_path: Path
) -> None:
    shutil.copytree(finished.folder, tmp_path, dirs_exist_ok=True)
    made = GeneratedImages.open(tmp_path)
    before = contents(tmp_path)
    damaged = missing, cut, garbage, replaced, unrelated = [
        made.path(image) for image in made.images[3:8]
    ]
    missing.unlink()
    cut.write_bytes(cut.read_bytes()[:-40])
    garbage.write_bytes(b"no picture")
    write_png(made.read(made.images[6]), replaced, {"prompt": "another"})
    Image.new("RGB", (16, 16)).save(unrelated)
    times = {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png") if path not in damaged
    }
    generated_in(tmp_path)
    assert contents(tmp_path) == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


def counting(pipe: Any, stop: int = 0) -> list[list[str]]:
    """Record the prompts of every call from now on, and interrupt the call with the given
    number."""
    kept: list[list[str]] = []
    original = type(pipe).__call__

    class Counting(type(pipe)):  # type: ignore[misc]
        def __call__(self, prompts: list[str], **options: Any) -> Any:
            kept.append(prompts)
            if len(kept) == stop:
                raise KeyboardInterrupt
            return original(self, prompts, **options)

    pipe.__class__ = Counting
    return kept


def test_an_interrupted_run_resumes(finished: GeneratedImages, tmp_path: Path) -> None:
    pipe = sd()
    generation_task = task()
    made = generation_task.plan(identity(pipe))
    bar = dict(pipe._progress_bar_config)
    counting(pipe, stop=4)
    with pytest.raises(KeyboardInterrupt):
        generate(pipe, made, generation_task.resolved_variants, tmp_path)
    assert (attachment_of(pipe), pipe._progress_bar_config) == (None, bar)
    assert 0 < len(contents(tmp_path)) < len(contents(finished.folder))
    generated_in(tmp_path)
    assert contents(tmp_path) == contents(finished.folder)


def test_a_default_that_is_an_edit_on_the_pipeline_is_rejected(tmp_path: Path) -> None:
    """If it were accepted, the plan would claim that values are assigned evenly, and the wrong
    chance level would be shown."""
    generation_task = task(variants={"default": {"method": "default", "attribute": "gender"}})
    pipe = sd(StableDiffusionImg2ImgPipeline)
    made = generation_task.plan(identity(pipe))
    assert made.variants["default"]["method"] == "balanced-prompts"
    with pytest.raises(InvalidInputError, match=r"only edits existing images .* default is an"):
        generate(pipe, made, generation_task.resolved_variants, tmp_path)
    assert not contents(tmp_path)
    for variant in (Variant(method="cali"), Variant(method="default", attribute=("waterbirds",))):
        variant.check_pipeline(pipe)


def trained() -> Any:
    pipe = with_own_components(sd())
    with torch.no_grad():
        for weight in pipe.unet.parameters():
            weight.mul_(1.1)
    return pipe


def with_another_scheduler() -> Any:
    return sd(scheduler=DDIMScheduler(beta_start=0.01, clip_sample=False, steps_offset=1))


@pytest.mark.parametrize(
    ("pipe", "changes", "named"),
    [
        (sd, {"steps": 3}, "steps was 2 and is now 3"),
        (sd, {"images": 2}, "images was 3 and is now 2"),
        (sd, {"variants": {"cali": {"lam": 1.0}}}, "variants"),
        (sd, {"options": SIZE | {"eta": 1.0}}, "options"),
        (trained, {}, "the weights differ"),
        (with_another_scheduler, {}, "scheduler was"),
    ],
)
def test_differences_from_an_existing_folder_are_rejected(
    finished: GeneratedImages, pipe: Callable[[], Any], changes: dict[str, Any], named: str
) -> None:
    before = contents(finished.folder)
    with pytest.raises(InvalidInputError, match=named):
        generated_in(finished.folder, pipe(), **changes)
    assert contents(finished.folder) == before


def test_rounding_of_the_fingerprint_is_not_a_different_model(finished: GeneratedImages) -> None:
    """The images keep the fingerprint with which the plan was started, and none of them are
    generated again."""
    generation_task = task()
    before = contents(finished.folder)
    model = generation_task.plan(identity(sd())).model
    rounded = model["fingerprint"] | {
        "tensors": [[x + 1e-6, y] for x, y in model["fingerprint"]["tensors"]]
    }
    made = generate(
        sd(),
        generation_task.plan(model | {"fingerprint": rounded}),
        generation_task.resolved_variants,
        finished.folder,
    )
    assert (made.plan, contents(finished.folder)) == (finished.plan, before)


def test_one_fingerprint_covers_all_components() -> None:
    fewer = with_own_components(sd())
    offloaded = with_own_components(sd())
    fewer.vae = None
    offloaded.vae.to("meta")
    joint, again, tuned, part, unknown = (
        identity(pipe)["fingerprint"] for pipe in (sd(), sd(), trained(), fewer, offloaded)
    )
    assert [Fingerprint(**joint).matches(Fingerprint(**pipe)) for pipe in (again, tuned, part)] == [
        True,
        False,
        False,
    ]
    assert unknown is None
    fewer.unet.peft_config = {"a style": None}
    fewer.register_to_config(_name_or_path="own/pipe")
    named = [
        (identity_of_pipe["id"], identity_of_pipe["adapters"])
        for identity_of_pipe in map(identity, (fewer, offloaded))
    ]
    assert named == [("own/pipe", ["a style"]), (None, [])]


def test_images_of_unchanged_prompts_are_copied_and_equal_generated_ones(tmp_path: Path) -> None:
    """Generate ten images under "none" and "cali" in batches of two. Four of the images are stated,
    so two batches of "cali" do not need a pipeline."""
    pipe = sd()
    calls = counting(pipe)
    made = generated_in(tmp_path, pipe, batch_size=2)
    assert len(calls) == 5 + 3 + 2  # none, cali, and cali applied to stated prompts too
    stated = list(chosen(made, variant="cali", stated=True))[:2]
    texts, noise = zip(*((image.prompt, image.noise) for image in stated), strict=True)
    attach = partial(debias, pipe, PEOPLE, method="cali")
    with prepared(
        pipe, attach, texts, noise, num_inference_steps=2, guidance_scale=3.0, **SIZE
    ) as pictures_of:
        again = pictures_of([0, 1])
    for image, (picture, _) in zip(stated, again, strict=True):
        assert np.array_equal(pixels(made, image), np.asarray(picture))


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
@pytest.mark.parametrize(
    "method",
    [
        name
        for name, method in METHODS.items()
        if PIPELINES in method.declaration.hosts and Need.IMAGES not in method.needs
    ],
)
def test_every_method_for_pipelines_can_be_a_variant(method: str, tmp_path: Path) -> None:
    spurious = replace(
        PEOPLE, name="more-gender", spurious=("a photo of a male", "a photo of a female")
    )
    made = generated_in(
        tmp_path, attribute=spurious, variants={"mine": {"method": method}}, images=1, stated=False
    )
    none, mitigated = (chosen(made, variant=name) for name in made.plan.variants)
    changed = any(
        (pixels(made, a) != pixels(made, b)).any() for a, b in zip(none, mitigated, strict=True)
    )
    assert changed or method == "none"
    # This is the default for prompt sets about people.
    expected = "balanced-prompts" if method == "default" else method
    assert made.metadata(mitigated.images[0])["method"] == expected


def test_the_strength_of_a_balancing_variant_is_its_share_of_images(tmp_path: Path) -> None:
    half = {"half": {"method": "balanced-prompts", "strength": 0.5}}
    made = generated_in(tmp_path, variants=half, images=4, stated=False)
    records = [made.metadata(image) for image in chosen(made, variant="half")]
    assert sorted(record["left_unchanged"] for record in records) == [False] * 4 + [True] * 4
    assert {record["value"] for record in records if record["left_unchanged"]} == {None}
    assert {record["value"] for record in records if not record["left_unchanged"]} == {
        "male",
        "female",
    }


def test_a_saved_edit_is_a_variant_identified_by_its_content(
    finished: GeneratedImages, tmp_path: Path
) -> None:
    for lam in (500.0, 5.0):
        fit_projections(sd(), PEOPLE, method="cali", lam=lam).only.save_pretrained(
            tmp_path / f"edit{lam:g}"
        )
    made = generated_in(
        tmp_path / "images", variants={"cali": {"projection": tmp_path / "edit500"}}
    )
    for image in finished:
        assert (pixels(made, image) == pixels(finished, image)).all()
    assert made.plan.variants["cali"]["lam"] == 500
    with pytest.raises(InvalidInputError, match="variants"):
        generated_in(tmp_path / "images", variants={"cali": {"projection": tmp_path / "edit5"}})


def test_balanced_prompts_match_manual_rewriting_and_others_are_unchanged(
    tmp_path: Path,
) -> None:
    """The entire plan is balanced at once, the noise belongs to the original prompt, and images of
    unchanged prompts are copied."""
    variants = {"balanced": Variant(attribute=("gender",), method="balanced-prompts")}
    made = generated_in(tmp_path, variants=variants, images=4, as_written=True, batch_size=3)
    assert {part for _, _, part, _ in made.plan.prompts} == {"train", "wordings", "others"}
    images = [image for image in made if image.variant == "balanced"]
    written = balance_prompts([image.prompt for image in images], "gender", seed=0)
    counts = Counter(zip((image.prompt for image in images), written.values, strict=True))
    for image, text, value in zip(images, written.prompts, written.values, strict=True):
        record = made.metadata(image)
        assert record["value"] == value
        assert record["generated prompt"] == text
        assert record["prompt"] == image.prompt
        is_same = np.array_equal(pixels(made, image), pixels(made, image.under("none")))
        assert is_same == (text == image.prompt) == record["left_unchanged"]
    assert all(
        counts[prompt, value] == 2 for prompt, value in product(PEOPLE.classes, ("male", "female"))
    )
    for generated in images:
        if generated.part == "others":
            assert counts[generated.prompt, "male"] == counts[generated.prompt, "female"] == 0
    batch = [images[i] for i in made.plan.batches(images)[0]]
    texts = [made.metadata(generated)["generated prompt"] for generated in batch]
    noise = [torch.Generator().manual_seed(generated.noise) for generated in batch]
    expected = sd()(
        texts, generator=noise, num_inference_steps=2, guidance_scale=3.0, output_type="pil", **SIZE
    ).images
    for generated, picture in zip(batch, expected, strict=True):
        assert np.array_equal(np.asarray(picture), pixels(made, generated))


# Tiny models are narrow, and merging changes the empty prompt.
@pytest.mark.filterwarnings("ignore")
def test_a_check_passes_for_a_correct_host_and_reports_what_it_cannot_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, _, tokenizer = load_clip()

    def checks(host: Any, tokenizer: Any = None) -> dict[str, bool | None]:
        call = {} if tokenizer else {"num_inference_steps": 2, **SIZE}
        steps = check(Loaded(host, "tiny", tokenizer), PEOPLE, **call)
        is_right = {name: passed for name, passed, _ in steps}
        assert attachment_of(host) is None, "an edit is merged or removed"
        return is_right

    right = checks(copy.deepcopy(model), tokenizer)
    assert set(right.values()) == {True}
    assert checks(with_own_components(sd())) == right
    unsure = right | {"merging changes nothing": None}
    assert checks(sd3()) == unsure
    assert (
        checks(with_own_components(sd(StableDiffusionImg2ImgPipeline)))
        == {"generated": None} | unsure
    )
    with pytest.raises(InvalidInputError, match="tokenizer"):
        next(check(Loaded(model, "tiny", str), PEOPLE))
    monkeypatch.setattr(Attachment, "remove", lambda self: None)
    steps = check(Loaded(copy.deepcopy(model), "tiny", tokenizer), PEOPLE)
    assert [next(steps)[1] for _ in range(6)] == [True] * 5 + [False], "a trace remains"
