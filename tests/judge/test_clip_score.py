"""Test CLIPScore and FID against their definitions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.linalg import sqrtm

from eval.miniature import portraits
from eval.miniature.people import STUDIO
from vldebias.errors import VldebiasWarning
from vldebias.hosts import resolve
from vldebias.hosts.clip.images import image_encoder
from vldebias.hosts.loading import Loaded
from vldebias.judge.plan import GeneratedImages
from vldebias.judge.scores import scored
from vldebias.miniature import load_clip
from vldebias.prompts import make_prompt_set
from vldebias.study.tasks.generation import GenerationTask
from vldebias.utils.pictures import write_png

JOBS = ("nurse", "chef", "pilot")
SET = make_prompt_set("jobs", {"male": ["male"], "female": ["female"]}, JOBS)


@pytest.fixture(scope="module")
def clip() -> Loaded:
    model, preprocess, tokenizer = load_clip()
    return Loaded(model, "miniature", tokenizer, preprocess)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> GeneratedImages:
    """Return portraits of the right profession in place of generated images: 3 prompts, 4 seeds, 2
    variants."""
    folder = tmp_path_factory.mktemp("drawn")
    settings = {
        "attribute": SET,
        "attributes": ["gender"],
        "variants": {"cali": {}},
        "concepts": "train",
        "stated": False,
    }
    task = GenerationTask.build(settings | {"images": 4, "steps": 1, "batch_size": 1})
    made = task.plan({"pipeline": "Painter", "id": None, "fingerprint": None}).settle(folder)
    how = {"seed": 1, "balanced": True, "life": STUDIO}
    # The shape is (3, 8, 3, h, w).
    shown = torch.stack([portraits.sample(8, professions=[job], **how).images for job in JOBS])
    pixels = (
        (shown.unflatten(1, (2, 4)).transpose(0, 1).flatten(0, 2) * 255)
        .round()
        .byte()
        .permute(0, 2, 3, 1)
        .numpy()
    )
    for image, picture in zip(made, pixels, strict=True):
        write_png(Image.fromarray(picture), made.path(image), {})
    return made


def evaluate(clip: Loaded, drawn: GeneratedImages):
    texts = resolve(clip.host, tokenizer=clip.tokenizer)
    encoder = image_encoder(clip.host, clip.preprocess)
    (part,) = scored(
        drawn, encoder, texts, "generation", clip=True, fid=False, resamples=100, seed=0
    )
    return {row.method: row for row in part.rows}, part.provenance


def test_scores_are_means_over_prompts_and_changes_are_paired(clip, drawn) -> None:
    figures, protocol = evaluate(clip, drawn)
    score = {"none": [], "cali": []}  # every prompt has the same number of images
    with torch.no_grad():
        for image in drawn:
            picture = clip.host.encode_image(
                clip.preprocess(drawn.read(image))[None], normalize=True
            )
            text = clip.host.encode_text(clip.tokenizer([image.prompt]), normalize=True)
            score[image.variant].append(100 * max(float(picture @ text.T), 0))
    mean = {variant: np.mean(scores) for variant, scores in score.items()}
    assert figures["none"].value == pytest.approx(mean["none"], abs=1e-3)
    assert figures["cali"].change[0] == pytest.approx(mean["cali"] - mean["none"], abs=1e-3)
    assert (figures["cali"].n, figures["cali"].better) == ({"prompts": 3, "images": 12}, "higher")
    assert protocol.settings["preprocessing"].startswith("Preprocess(")


def test_a_single_prompt_is_resampled_over_images(clip, drawn) -> None:
    figures, _ = evaluate(
        clip, replace(drawn, images=tuple(image for image in drawn if image.concept == "nurse"))
    )
    assert figures["none"].n == {"prompts": 1, "images": 4}
    assert figures["none"].interval[0] < figures["none"].value < figures["none"].interval[1]


def test_two_prompts_count_equally_regardless_of_their_images(clip, drawn) -> None:
    first, second = JOBS[:2]
    few = [image for image in drawn if image.concept == second]
    few = few[:1] + [image for image in few[1:] if image.variant != few[0].variant][:1]
    many = [image for image in drawn if image.concept == first]
    values = []
    for images in (many, few, many + few):
        figures, _ = evaluate(clip, replace(drawn, images=tuple(images)))
        values.append(figures["none"].value)
    assert values[2] == pytest.approx((values[0] + values[1]) / 2)
    assert abs(values[0] - values[1]) > 1e-3


class Colours:
    """Return the mean and deviation of each channel: six features."""

    name = "colours"
    preprocessing = "none"
    dim = 6
    fingerprint = None

    def encode(self, images) -> torch.Tensor:
        pixels = np.stack(
            [np.asarray(image, dtype=np.float64).reshape(-1, 3) / 255 for image in images]
        )
        return torch.from_numpy(np.concatenate([pixels.mean(1), pixels.std(1)], axis=1))


def test_fid_is_the_distance_of_gaussians_to_the_images_without_a_method(drawn) -> None:
    twins = [replace(image, variant="again") for image in drawn if image.variant == "cali"]
    plan = drawn.plan.model_copy(update={"variants": {**drawn.plan.variants, "again": {}}})
    drawn = replace(drawn, plan=plan, images=(*drawn.images, *twins))
    with pytest.warns(VldebiasWarning, match="FID of 12 images: fewer than 2048"):
        (part,) = scored(drawn, Colours(), None, "t", clip=False, fid=True)
    cali, again = part.rows
    assert again.value == pytest.approx(cali.value), (
        "each variant is compared with the same images only"
    )
    images = {
        v: [drawn.read(image) for image in drawn if image.variant == v] for v in ("none", "cali")
    }
    a, b = (Colours().encode(images[v]).numpy() for v in ("cali", "none"))
    ca = np.cov(a, rowvar=False)
    cb = np.cov(b, rowvar=False)
    root = np.real(sqrtm(ca @ cb))
    assert cali.value == pytest.approx(
        ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(ca + cb - 2 * root), rel=1e-4
    )
    assert (cali.method, cali.change, cali.n["reference images"]) == ("cali", None, 12)
