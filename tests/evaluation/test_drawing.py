"""Drawing: the pixels are the pipeline's own, an image depends on prompt and seed, runs go on where they stopped."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import gender, sd, sdxl
from drawn_by_hand import chosen

from vldebias import debias
from vldebias.edit import Fingerprint
from vldebias.errors import AlreadyAttachedError, InvalidInputError
from vldebias.evaluation import drawing
from vldebias.evaluation.drawing import (
    NOT_KEPT,
    Drawn,
    DrawnSet,
    Plan,
    draw,
    identity,
    joint_fingerprint,
    make_plan,
)
from vldebias.evaluation.variants import Variant
from vldebias.hosts.attachment import attachment_of
from vldebias.methods import METHODS, Need
from vldebias.pictures import write_png
from vldebias.prompts import PromptSet, balance_prompts

SIZE = {"height": 16, "width": 16}
JOBS = ("doctor", "nurse")
PEOPLE = PromptSet(
    "people",
    groups=tuple((f"a photo of a male {job}", f"a photo of a female {job}") for job in JOBS),
    classes=tuple(f"a photo of a {job}" for job in JOBS),
    class_names=JOBS,
    attributes={"male": ("male",), "female": ("female",)},
    stated_words=("male", "female"),
)
VARIANTS = {"cali": Variant(prompts=(PEOPLE,))}


def plan_for(pipe: Any, variants: dict[str, Variant] = VARIANTS, **changes: Any) -> Plan:
    settings = {"concepts": "train", "stated": True, "images": 3, "stated_images": 1, "seeds": [0], "steps": 2}
    settings |= {"guidance": 3.0, "batch_size": 4, "options": SIZE} | changes
    return make_plan(identity(pipe), PEOPLE, variants, **settings)


def drawn_in(folder: Path, variants: dict[str, Variant] = VARIANTS, **changes: Any) -> DrawnSet:
    pipe = sd()
    return draw(pipe, plan_for(pipe, variants, **changes), variants, folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.png"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> DrawnSet:
    return drawn_in(tmp_path_factory.mktemp("whole"))


def pixels(drawn: DrawnSet, image: Drawn) -> np.ndarray:
    return np.asarray(drawn.read(image)).astype(int)


def test_every_image_is_what_the_pipeline_draws_from_its_noise(whole: DrawnSet) -> None:
    for image in (whole.images[1], whole.images[-1]):
        pipe, noise = sd(), torch.Generator().manual_seed(image.noise)
        call = {"generator": noise, "num_inference_steps": 2, "guidance_scale": 3.0, **SIZE}
        if image.variant == "none":
            expected = pipe(image.prompt, **call).images[0]
        else:
            assert image.variant.endswith(NOT_KEPT)
            with debias(pipe, PEOPLE, method="cali", keep_stated=False):
                expected = pipe(image.prompt, **call).images[0]
        assert np.abs(pixels(whole, image) - np.asarray(expected).astype(int)).max() <= 1  # batched here, single there


def test_stated_prompts_are_left_alone_unless_told_otherwise(whole: DrawnSet) -> None:
    by_variant = {name: chosen(whole, variant=name, stated=True) for name in whole.plan.variants}
    changed = 0
    for none, kept, bare in zip(*by_variant.values(), strict=True):
        assert (pixels(whole, none) == pixels(whole, kept)).all()
        changed += int((pixels(whole, none) != pixels(whole, bare)).any())
        assert whole.about(kept)["left_alone"] is True
        assert whole.about(bare)["left_alone"] is whole.about(none)["left_alone"] is False
    assert changed


def test_a_file_says_how_it_was_made(whole: DrawnSet) -> None:
    image = chosen(whole, variant="cali").images[2]
    about = whole.about(image)
    expected = {"prompt": image.prompt, "seed": image.seed, "noise": image.noise, "variant": "cali", "method": "cali"}
    expected |= {"sets": {"people": PEOPLE.hash}, "lam": 500.0, "strength": 1.0, "keep_stated": True}
    expected |= {"steps": 2, "guidance": 3.0, "options": SIZE, "pipeline": "StableDiffusionPipeline"}
    expected |= {"left_alone": False, "flagged": False}
    assert expected.items() <= about.items()
    assert {"model", "fingerprint", "version"} <= about.keys()
    with Image.open(whole.path(image)) as opened:
        assert json.loads(opened.text["vldebias"]) == about
    assert whole.about(whole.images[0])["method"] == "none"
    settings = whole.result(settings={}, task="people", title="", description="").provenance.settings
    assert "fingerprints" not in str(settings)
    assert "StableDiffusionPipeline" in str(settings)


def test_missing_and_damaged_files_are_drawn_again_and_no_others(whole: DrawnSet, tmp_path: Path) -> None:
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    drawn, before = DrawnSet.open(tmp_path), contents(tmp_path)
    missing, cut, garbage, other, stranger = (drawn.path(image) for image in drawn.images[3:8])
    missing.unlink()
    cut.write_bytes(cut.read_bytes()[:-40])
    garbage.write_bytes(b"no picture")
    write_png(drawn.read(drawn.images[6]), other, {"prompt": "another"})
    Image.new("RGB", (16, 16)).save(stranger)
    assert drawn.missing == [drawn.images[3]]
    damaged = {missing, cut, garbage, other, stranger}
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png") if path not in damaged}
    drawn_in(tmp_path)
    assert contents(tmp_path) == before
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert DrawnSet.open(tmp_path).missing == []


class Interrupted(sd().__class__):  # type: ignore[misc]
    """A pipeline that the user stops in its fourth batch."""

    calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        type(self).calls += 1
        if type(self).calls == 4:
            raise KeyboardInterrupt
        return super().__call__(*args, **kwargs)


def test_an_interrupted_run_goes_on(whole: DrawnSet, tmp_path: Path) -> None:
    pipe = sd(Interrupted)
    plan = plan_for(sd())
    bar = dict(pipe._progress_bar_config)
    with pytest.raises(KeyboardInterrupt):
        draw(pipe, plan, VARIANTS, tmp_path)
    assert attachment_of(pipe) is None
    assert pipe._progress_bar_config == bar
    assert 0 < len(contents(tmp_path)) < len(contents(whole.folder))
    drawn_in(tmp_path)
    assert contents(tmp_path) == contents(whole.folder)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"steps": 3}, "steps was 2 and is 3 now"),
        ({"guidance": 4.0}, "guidance was 3.0 and is 4.0 now"),
        ({"images": 2}, "images was 3 and is 2 now"),
        ({"variants": {"cali": Variant(prompts=(PEOPLE,), lam=1.0)}}, "variants differ"),
        ({"options": SIZE | {"eta": 1.0}}, 'options was {"height": 16, "width": 16} and is'),
    ],
)
def test_other_settings_are_refused_in_a_folder_with_images(
    whole: DrawnSet, changes: dict[str, Any], told: str
) -> None:
    before = contents(whole.folder)
    with pytest.raises(
        InvalidInputError, match=f"other settings: {told}.*Draw into another folder, repeat the settings"
    ):
        drawn_in(whole.folder, **changes)
    assert contents(whole.folder) == before


def test_other_weights_and_schedulers_are_refused(whole: DrawnSet) -> None:
    from diffusers import DDIMScheduler
    from diffusers_tiny import own

    trained = own(sd())
    with torch.no_grad():
        for weight in trained.unet.parameters():
            weight.mul_(1.1)
    with pytest.raises(InvalidInputError, match="the weights of unet are others"):
        draw(trained, plan_for(trained), VARIANTS, whole.folder)
    pipe = sd(scheduler=DDIMScheduler(beta_start=0.01, clip_sample=False, steps_offset=1))
    with pytest.raises(InvalidInputError, match="scheduler was"):
        draw(pipe, plan_for(pipe), VARIANTS, whole.folder)


def test_rounding_of_the_fingerprint_is_not_another_model(whole: DrawnSet) -> None:
    """The images keep the fingerprint that the plan was begun with, and none is drawn again."""
    plan = plan_for(sd())
    prints = {n: p | {"norms": [x + 1e-6 for x in p["norms"]]} for n, p in plan.model["fingerprints"].items()}
    before = contents(whole.folder)
    drawn = draw(sd(), plan.model_copy(update={"model": plan.model | {"fingerprints": prints}}), VARIANTS, whole.folder)
    assert drawn.plan == whole.plan
    assert contents(whole.folder) == before


def matching(one: dict[str, Any], other: dict[str, Any]) -> bool:
    mark = Fingerprint.of(one)
    return mark is not None and mark.matches(Fingerprint.of(other))


def test_one_fingerprint_stands_for_all_components() -> None:
    from diffusers_tiny import own

    prints = identity(sd())["fingerprints"]
    joint = joint_fingerprint(prints)
    assert matching(joint, joint_fingerprint(dict(reversed(prints.items()))))
    trained = own(sd())
    with torch.no_grad():
        for weight in trained.unet.parameters():
            weight.mul_(1.1)
    assert not matching(joint, joint_fingerprint(identity(trained)["fingerprints"]))
    assert not matching(joint, joint_fingerprint({n: p for n, p in prints.items() if n != "vae"}))
    assert joint_fingerprint(prints | {"vae": None}) is None
    assert joint_fingerprint({}) is None


def test_a_pipeline_that_carries_a_projection_is_refused(tmp_path: Path) -> None:
    pipe = sd()
    with debias(pipe, gender()), pytest.raises(AlreadyAttachedError, match=r"carries .*call .remove\(\) on it first"):
        draw(pipe, plan_for(pipe), VARIANTS, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_other_families_draw_too(tmp_path: Path) -> None:
    pipe = sdxl()
    drawn = draw(pipe, plan_for(pipe, images=1), VARIANTS, tmp_path)
    assert drawn.missing == []
    none, bare = (chosen(drawn, variant=v, stated=True) for v in ("none", f"cali{NOT_KEPT}"))
    assert any((pixels(drawn, a) != pixels(drawn, b)).any() for a, b in zip(none, bare, strict=True))


def test_black_images_of_a_safety_checker_are_marked() -> None:
    def pipe(prompts: list[str], **_: Any) -> SimpleNamespace:
        return SimpleNamespace(images=[Image.new("RGB", (4, 4))] * len(prompts), nsfw_content_detected=[False, True])

    assert drawing.through(pipe, ["a", "b"], [0, 1], {})[1] == [False, True]


# ---- images that are left alone ------------------------------------------------------------------------------


def calls_of(pipe: Any) -> list[list[str]]:
    """The prompts of every call from here on."""
    kept: list[list[str]] = []
    original = type(pipe).__call__

    class Counting(type(pipe)):  # type: ignore[misc]
        def __call__(self, prompts: list[str], **options: Any) -> Any:
            kept.append(prompts)
            return original(self, prompts, **options)

    pipe.__class__ = Counting
    return kept


def test_images_that_are_left_alone_are_copied_and_equal_to_drawn_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten images under "none" and "cali", four of them stated: by twos, two batches of "cali" need no pipeline."""
    pipe = sd()
    plan, calls = plan_for(pipe, batch_size=2), calls_of(pipe)
    draw(pipe, plan, VARIANTS, tmp_path / "copied")
    assert len(calls) == 5 + 3 + 2  # none, cali, cali with stated prompts not kept
    monkeypatch.setattr(drawing, "_copy", lambda *_: None)
    draw(pipe, plan, VARIANTS, tmp_path / "drawn")
    assert len(calls) == 10 + 5 + 5 + 2
    assert contents(tmp_path / "copied") == contents(tmp_path / "drawn")


# ---- any method ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
@pytest.mark.parametrize("method", [name for name, m in METHODS.items() if m.pipelines and Need.IMAGES not in m.needs])
def test_every_method_for_pipelines_is_a_variant(method: str, tmp_path: Path) -> None:
    spurious = replace(PEOPLE, name="more-gender", spurious=("a photo of a male", "a photo of a female"))
    variants = {method if method != "none" else "bare": Variant(prompts=(spurious,), method=method)}
    drawn = drawn_in(tmp_path, variants, images=1, stated=False)
    assert drawn.missing == []
    none, other = (chosen(drawn, variant=name) for name in drawn.plan.variants)
    changed = any((pixels(drawn, a) != pixels(drawn, b)).any() for a, b in zip(none, other, strict=True))
    assert changed or method in ("none", "auto", "fair-diffusion")  # the last guides after more steps than are drawn
    expected = "balanced-prompts" if method == "default" else method  # the default of sets about persons
    assert drawn.about(other.images[0])["method"] == expected


def test_shares_and_strength_of_a_balancing_variant_are_those_of_its_images(tmp_path: Path) -> None:
    """All images of a prompt have a value at the share of one, and half of them at strength 0.5."""
    sure = {"sure": Variant(prompts=(PEOPLE,), method="balanced-prompts", shares={"male": 0.0, "female": 1.0})}
    drawn = drawn_in(tmp_path / "sure", sure, images=4, stated=False)
    assert {drawn.about(image)["value"] for image in chosen(drawn, variant="sure")} == {"female"}
    half = {"half": Variant(prompts=(PEOPLE,), method="balanced-prompts", strength=0.5)}
    drawn = drawn_in(tmp_path / "half", half, images=4, stated=False)
    told = [drawn.about(image) for image in chosen(drawn, variant="half")]
    assert sorted(about["left_alone"] for about in told) == [False] * 4 + [True] * 4
    assert {about["value"] for about in told if about["left_alone"]} == {None}
    assert {about["value"] for about in told if not about["left_alone"]} == {"male", "female"}


def test_a_saved_edit_is_a_variant_and_another_is_another(whole: DrawnSet, tmp_path: Path) -> None:
    from vldebias import fit_projection

    for lam in (500.0, 5.0):
        fit_projection(sd(), PEOPLE, method="cali", lam=lam).save_pretrained(tmp_path / f"edit{lam:g}")
    variants = {"cali": Variant(projection=tmp_path / "edit500")}
    drawn = drawn_in(tmp_path / "images", variants)
    for image in whole:
        assert (pixels(drawn, image) == pixels(whole, image)).all()
    assert drawn.plan.variants["cali"]["lam"] == 500
    with pytest.raises(InvalidInputError, match="variants differ"):
        drawn_in(tmp_path / "images", {"cali": Variant(projection=tmp_path / "edit5")})


def test_balanced_prompts_are_drawn_as_if_written_by_hand_and_others_stay(tmp_path: Path) -> None:
    """The whole plan is balanced once; noise is that of the original prompt; what is left alone is copied."""
    variants = {"balanced-prompts": Variant(prompts=("gender",), method="balanced-prompts")}
    drawn = drawn_in(tmp_path, variants, images=4, as_written=True, stated=True, batch_size=3)
    assert list(drawn.plan.variants) == ["none", "balanced-prompts"]
    own = [image for image in drawn if image.variant == "balanced-prompts"]
    written = balance_prompts([image.prompt for image in own], "gender")
    values: dict[str, list[str | None]] = {}
    for image, text, value in zip(own, written.prompts, written.values, strict=True):
        values.setdefault(image.prompt, []).append(value)
        about, twin = drawn.about(image), image.under("none")
        assert (about["value"], about["drawn prompt"], about["prompt"]) == (value, text, image.prompt)
        same = drawn.path(image).is_file() and np.array_equal(pixels(drawn, image), pixels(drawn, twin))
        assert same == (text == image.prompt) == about["left_alone"]
    assert all(
        sorted(own) == ["female"] * 2 + ["male"] * 2 for prompt, own in values.items() if prompt in PEOPLE.classes
    )
    assert {p.part for p in drawn.plan.prompts} == {"train", "wordings", "others"}
    assert all(value is None for p in drawn.plan.prompts if p.part == "others" for value in values[p.prompt])
    image = next(i for i in own if i.prompt == PEOPLE.classes[0])
    batch = next(b for b in drawn.plan.batches(image.variant) if image in b)
    texts = [drawn.about(one)["drawn prompt"] for one in batch]
    noise = [torch.Generator().manual_seed(one.noise) for one in batch]
    expected = sd()(texts, generator=noise, num_inference_steps=2, guidance_scale=3.0, output_type="pil", **SIZE).images
    for one, picture in zip(batch, expected, strict=True):
        assert np.array_equal(np.asarray(picture), pixels(drawn, one))
