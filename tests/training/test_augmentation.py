"""Test augmentation and Fourier mixing: their distributions, and naive implementations."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import v2

from vldebias.training.augmentation import Augmentation, mix_amplitudes, most_similar

MEAN = (0.5, 0.4, 0.3)
STD = (0.2, 0.3, 0.4)
SIZE = (12, 16)


def noisy_picture(size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    )


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def augmentation(**draws: Any) -> Augmentation:
    return Augmentation(SIZE, MEAN, STD, **draws)


def pixels(image: Tensor) -> Tensor:
    return image * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]


def test_a_crop_of_the_whole_image_only_resizes_and_normalises() -> None:
    image = noisy_picture((16, 12))  # an image with the requested ratio and size
    seed = next(
        seed
        for seed in range(99)
        if augmentation(crop=1.0).box(12, 16, seeded(seed)) == (0, 0, 12, 16)
    )
    view = augmentation(crop=1.0)(image, seeded(seed))
    expected = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 255
    assert torch.allclose(pixels(view), expected, atol=1e-6)
    assert (view.shape, view.dtype) == ((3, *SIZE), torch.float32)


@pytest.mark.parametrize("bounds", [{}, {"crop": 0.08}])
@pytest.mark.parametrize("size", [(30, 40), (90, 20)])
def test_crops_are_distributed_as_in_torchvision(
    bounds: dict[str, float], size: tuple[int, int]
) -> None:
    theirs = v2.RandomResizedCrop(8, scale=(bounds.get("crop", 0.9), 1.0))
    blank = torch.zeros(3, *size)
    # Called `_get_params` before torchvision 0.21.
    make_params = getattr(theirs, "make_params", None) or theirs._get_params
    parameters = [make_params([blank]) for _ in range(700)]
    expected = np.array(
        [[crop[name] for name in ("top", "left", "height", "width")] for crop in parameters]
    )
    generator = seeded(0)
    boxes = np.array([augmentation(**bounds).box(*size, generator) for _ in range(700)])
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= size).all()
    for column in range(4):
        assert ks_2samp(boxes[:, column], expected[:, column]).pvalue > 1e-4


def test_half_of_the_images_are_mirrored() -> None:
    image = noisy_picture((16, 12))
    plain = augmentation(crop=1.0)
    views = [augmentation(crop=1.0, flip=True)(image, seeded(seed)) for seed in range(400)]
    crops = [plain(image, seeded(seed)) for seed in range(400)]
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(views, crops, strict=True)]
    assert all(m or torch.equal(a, b) for m, a, b in zip(mirrored, views, crops, strict=True))
    assert abs(sum(mirrored) - 200) < 40


def test_jitter_moves_brightness_contrast_saturation_and_hue() -> None:
    image = Image.new("RGB", (16, 12), (200, 80, 40))
    hues = []
    values = []
    saturations = []
    for seed in range(300):
        means = pixels(augmentation(crop=1.0, jitter=0.5)(image, seeded(seed))).mean(dim=(1, 2))
        h, s, v = (
            np.asarray(
                Image.new("RGB", (1, 1), tuple((means * 255).int().tolist())).convert("HSV")
            )[0, 0]
            / 255
        )
        hues.append(min(h, 1 - h))
        values.append(v)
        saturations.append(s)
    unchanged = np.isclose(values, 200 / 255, atol=0.01) & np.isclose(saturations, 0.8, atol=0.02)
    # A fifth of the images keep their colours, and some of the others nearly do.
    assert 0.1 < unchanged.mean() < 0.35
    assert max(hues) < 0.2  # a tenth of the circle, starting at a hue of 0.04
    assert min(np.std(values), np.std(saturations)) > 0.05
    assert np.std(hues) > 0.01


def test_grayscale_converts_the_requested_share_of_images() -> None:
    image = noisy_picture()
    gray = 0
    for seed in range(200):
        view = pixels(augmentation(crop=1.0, grayscale=0.3)(image, seeded(seed)))
        gray += torch.allclose(view[0], view[1], atol=1e-5)
    assert 35 <= gray <= 85, "a binomial of 200 at .3, within four deviations"


def test_blur_preserves_the_mean_and_removes_fine_detail() -> None:
    augment = Augmentation((32, 32), MEAN, STD, crop=1.0, blur=0.5)
    sharp = Augmentation((32, 32), MEAN, STD, crop=1.0)
    image = noisy_picture((32, 32))
    blurred = 0
    for seed in range(100):
        before = pixels(sharp(image, seeded(seed)))
        after = pixels(augment(image, seeded(seed)))
        assert abs(float(before.mean() - after.mean())) < 0.02
        assert float(after.std()) <= float(before.std()) + 1e-5
        blurred += float(after.std()) < 0.95 * float(before.std())
    # Half of the images are blurred, but a small sigma changes them by less than 5%.
    assert 25 <= blurred <= 65, "half of them, some with only a small sigma"


@pytest.mark.parametrize("draws", [{}, {"crop": 0.08, "flip": True, "jitter": 1.0}])
def test_augmentation_depends_only_on_its_generator(draws: dict[str, Any]) -> None:
    augment = augmentation(**draws)
    image = noisy_picture()
    state = torch.random.get_rng_state()
    augmented = augment(image, seeded(5))
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(99)
    np.random.seed(99)
    assert torch.equal(augment(image, seeded(5)), augmented)
    assert not torch.equal(augment(image, seeded(6)), augmented)


COMMON = settings(max_examples=40, deadline=None)


def pictures(n: int, h: int = 6, w: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, h, w, generator=seeded(seed), dtype=torch.float64)


def amplitude(images: Tensor) -> Tensor:
    return torch.fft.fft2(images).abs()


@COMMON
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.integers(0, 1000),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_mixing_changes_amplitudes_and_preserves_phases(
    size: tuple[int, int], seed: int, weight: list[float]
) -> None:
    images = pictures(4, *size, seed)
    partner = torch.tensor([1, 3, 0, 0])
    w = torch.tensor(weight).double()
    mixed = mix_amplitudes(images, partner, w)
    share = w[:, None, None, None]
    wanted = (1 - share) * amplitude(images) + share * amplitude(images[partner])
    torch.testing.assert_close(amplitude(mixed), wanted, rtol=1e-9, atol=1e-9)
    a = torch.fft.fft2(mixed)
    b = torch.fft.fft2(images)
    seen = (a.abs() > 1e-6) & (b.abs() > 1e-6)
    assert bool((((a / a.abs() - b / b.abs()).abs() < 1e-6) | ~seen).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_mixing_uses_single_precision_and_preserves_the_dtype(dtype: torch.dtype) -> None:
    images = pictures(3).to(dtype)
    partner = torch.tensor([1, 2, 0])
    weight = torch.rand(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = mix_amplitudes(images, partner, weight)
        assert torch.equal(
            most_similar(images.flatten(1)), most_similar(images.double().flatten(1))
        )
    assert mixed.dtype == dtype
    expected = mix_amplitudes(images.double(), partner, weight)
    torch.testing.assert_close(
        mixed.double(), expected.to(dtype).double(), rtol=torch.finfo(dtype).eps, atol=1e-5
    )


@COMMON
@given(st.integers(2, 24), st.integers(0, 1000))
def test_the_most_similar_row_has_the_largest_cosine(n: int, seed: int) -> None:
    features = torch.randn(n, 3, generator=seeded(seed), dtype=torch.float64)
    cosines = torch.nn.functional.cosine_similarity(features[:, None], features[None], dim=2)
    for k, partner in enumerate(most_similar(features).tolist()):
        others = cosines[k][torch.arange(n) != k]
        assert partner != k
        assert float(cosines[k, partner]) == pytest.approx(float(others.max()), abs=1e-12)
