"""The augmentation of whole batches against what it stands for: one image at a time, and exact pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp
from torchvision.transforms.v2 import functional as T

from vldebias.training.augmentation import Draws, crop_box
from vldebias.training.batch_augmentation import BatchAugmentation, _turned
from vldebias.training.noise import CropNoise

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def augment(noise: CropNoise | None = None, **draws: object) -> BatchAugmentation:
    return BatchAugmentation(MEAN, STD, Draws(**{"crop": (1.0, 1.0), **draws}), noise)  # type: ignore[arg-type]


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    return T.normalize(pixels, list(MEAN), list(STD))


def pixels_of(images: torch.Tensor) -> torch.Tensor:
    return images * torch.tensor(STD).view(-1, 1, 1) + torch.tensor(MEAN).view(-1, 1, 1)


def test_crops_have_the_places_and_sizes_of_single_ones() -> None:
    """A ramp says where it was cropped: its corners hold their coordinates."""
    n, side = 3000, 64
    axis = torch.arange(side, dtype=torch.float32) + 0.5
    ramp = torch.stack([axis.expand(side, side), axis[:, None].expand(side, side), torch.zeros(side, side)])
    found = augment(crop=(0.2, 0.8))(ramp.expand(n, 3, side, side), seeded(0))
    step = found[:, 0, 0, 32] - found[:, 0, 0, 31], found[:, 1, 32, 0] - found[:, 1, 31, 0]
    width, height = (one.numpy() * side for one in step)
    left = found[:, 0, 0, 32].numpy() - width / 2 - step[0].numpy() / 2
    top = found[:, 1, 32, 0].numpy() - height / 2 - step[1].numpy() / 2
    generator = seeded(1)
    single = np.array([crop_box(side * 16, side * 16, (0.2, 0.8), generator) for _ in range(n)]) / 16
    inside = (single[:, 2:] < side * 0.98).all(axis=1)  # where it would lead out of the image, the two differ
    mine = np.stack([top, left, height, width], axis=1)
    within = (mine[:, 2:] < side * 0.98).all(axis=1)
    for column in range(4):
        assert ks_2samp(mine[within, column], single[inside, column]).pvalue > 1e-4
    assert (mine[:, :2] > -0.01).all()
    assert (mine[:, :2] + mine[:, 2:] < side + 0.01).all()


def test_mirror_images() -> None:
    images = torch.rand(400, 3, 6, 6)
    base = augment()(images, seeded(0))  # a crop of all still varies in shape; the same draws without the mirror
    found = augment(flip=0.3)(images, seeded(0))
    mirrored = augment(flip=1.0)(images, seeded(0))
    kept = torch.isclose(found, base, atol=1e-5).flatten(1).all(1)
    turned = torch.isclose(found, mirrored, atol=1e-5).flatten(1).all(1)
    assert (kept ^ turned).all()
    assert abs(int(turned.sum()) - 120) < 4 * (400 * 0.3 * 0.7) ** 0.5
    assert torch.allclose(mirrored, base.flip(-1), atol=1e-4)


def test_grey_is_pillows() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8))
    pixels = T.pil_to_tensor(image).float()[None] / 255
    size = augment(grayscale=1.0)
    base = pixels_of(augment()(normalised(pixels), seeded(0)))
    found = pixels_of(size(normalised(pixels), seeded(0)))
    expected = T.rgb_to_grayscale(base, num_output_channels=3)
    assert torch.allclose(found, expected, atol=1e-3)
    some = augment(grayscale=0.25)(normalised(pixels).expand(800, 3, 6, 6), seeded(1))
    grey = (pixels_of(some)[:, 0] - pixels_of(some)[:, 1]).abs().flatten(1).amax(1) < 1e-5
    assert abs(int(grey.sum()) - 200) < 4 * (800 * 0.25 * 0.75) ** 0.5


def test_colours_change_by_their_strength_and_stay_colours() -> None:
    colour = torch.tensor([0.7, 0.4, 0.2]).view(1, 3, 1, 1).expand(2000, 3, 4, 4)
    found = pixels_of(augment(jitter=0.5)(normalised(colour), seeded(0)))
    assert found.min() > -1e-5
    assert found.max() < 1 + 1e-5
    same = torch.isclose(found, colour, atol=1e-4).flatten(1).all(1)
    assert abs(int(same.sum()) - 400) < 4 * (2000 * 0.2 * 0.8) ** 0.5
    luma = T.rgb_to_grayscale(found).mean(dim=(1, 2, 3))
    assert 0.15 < luma.min() < 0.35  # .45 by factors .6 to 1.4
    assert luma.max() < 0.75
    assert luma.std() > 0.05


@pytest.mark.parametrize(("third", "expected"), [(0, (0.8, 0.3, 0.1)), (1, (0.1, 0.8, 0.3)), (2, (0.3, 0.1, 0.8))])
def test_a_third_of_the_circle_permutes_the_channels(third: int, expected: tuple[float, ...]) -> None:
    pixels = torch.tensor([0.8, 0.3, 0.1]).view(1, 3, 1, 1)
    angle = torch.full((1, 1, 1, 1), 2 * torch.pi * third / 3)
    assert torch.allclose(_turned(pixels, angle).flatten(), torch.tensor(expected), atol=1e-6)


def test_it_reads_its_generator_alone_and_ends_with_crop_noise() -> None:
    images = torch.rand(5, 3, 10, 10)
    before, state = images.clone(), torch.random.get_rng_state()
    full = {"crop": (0.3, 0.9), "jitter": 1.0, "flip": 0.5, "grayscale": 0.2}
    one, two = (augment(**full)(images, seeded(4)) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(images, before)
    assert not torch.equal(one, augment(**full)(images, seeded(5)))
    generator = seeded(4)
    expected = CropNoise(1.0)(augment(**full)(images, generator), generator)
    assert torch.equal(augment(CropNoise(1.0), **full)(images, seeded(4)), expected)
