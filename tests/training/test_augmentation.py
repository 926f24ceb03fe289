"""Augmentation: its laws, that it reads its own generator alone, and that none is exactly the preprocessing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import v2

from vldebias.errors import InvalidInputError
from vldebias.training.augmentation import CAPTIONS, VIEWS, Augmentation, Draws, augmentation, crop_box
from vldebias.training.noise import CropNoise

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
SIZE = (12, 16)


@dataclass
class FakeTowers:
    """What augmentation reads of the towers."""

    size: tuple[int, int] = SIZE
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def prepare(self, image: Image.Image) -> Tensor:
        return torch.full((3, *self.size), float(np.asarray(image).mean()))


TOWERS: Any = FakeTowers()


def noisy_picture(size: tuple[int, int] = (40, 30), seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def own(**draws: Any) -> Augmentation:
    return Augmentation(SIZE, MEAN, STD, Draws(**draws))


def pixels(image: Tensor) -> Tensor:
    """Undoes the normalisation."""
    return image * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]


def test_none_is_the_towers_preprocessing() -> None:
    image = noisy_picture()
    assert torch.equal(augmentation("none", TOWERS)(image, seeded(0)), TOWERS.prepare(image))


def test_kinds_have_their_draws_and_take_others() -> None:
    assert augmentation("captions", TOWERS) == Augmentation(SIZE, MEAN, STD, CAPTIONS)
    assert augmentation("views", TOWERS) == Augmentation(SIZE, MEAN, STD, VIEWS)
    given = augmentation("views", TOWERS, crop=(0.5, 0.6), flip=0, noise=CropNoise(0.1))
    assert given == Augmentation(SIZE, MEAN, STD, replace(VIEWS, crop=(0.5, 0.6), flip=0), CropNoise(0.1))


def test_a_crop_of_all_is_a_resize_and_a_normalisation() -> None:
    image = noisy_picture((16, 12))  # of the ratio and size that are asked for
    found = own(crop=(1.0, 1.0))(image, seeded(0))
    if (crop := crop_box(12, 16, (1.0, 1.0), seeded(0))) == (0, 0, 12, 16):
        expected = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 255
        assert torch.allclose(pixels(found), expected, atol=1e-6)
    assert crop == (0, 0, 12, 16)
    assert found.shape == (3, *SIZE)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("share", [(0.9, 1.0), (0.08, 1.0), (0.3, 0.3)])
@pytest.mark.parametrize("size", [(30, 40), (40, 40), (90, 20)])
def test_crops_have_the_law_of_torchvision(share: tuple[float, float], size: tuple[int, int]) -> None:
    theirs = v2.RandomResizedCrop(8, scale=share)
    blank = torch.zeros(3, *size)
    asked = [theirs.make_params([blank]) for _ in range(700)]
    other = np.array([[crop[name] for name in ("top", "left", "height", "width")] for crop in asked])
    generator = seeded(0)
    mine = np.array([crop_box(*size, share, generator) for _ in range(700)])
    assert (mine[:, :2] >= 0).all()
    assert (mine[:, :2] + mine[:, 2:] <= size).all()
    for column in range(4):
        assert ks_2samp(mine[:, column], other[:, column]).pvalue > 1e-4


@pytest.mark.parametrize(("name", "rate"), [("flip", 0.3), ("grayscale", 0.2)])
def test_probabilities_are_kept(name: str, rate: float) -> None:
    image = noisy_picture((16, 12))
    base = own(crop=(1.0, 1.0))
    expected = {"flip": lambda x: x.flip(-1), "grayscale": lambda x: x.mean(0, keepdim=True).expand_as(x)}[name]
    changed = 0
    for seed in range(400):
        plain = pixels(base(image, seeded(seed)))
        found = pixels(own(crop=(1.0, 1.0), **{name: rate})(image, seeded(seed)))
        if not torch.equal(found, plain):
            changed += 1
            distance = (found - expected(plain)).abs().max()
            assert distance < 1e-5 if name == "flip" else bool((found[0] - found[1]).abs().max() < 1e-5)
    assert abs(changed - 400 * rate) < 4 * (400 * rate * (1 - rate)) ** 0.5


def test_jitter_moves_brightness_contrast_saturation_and_hue() -> None:
    image = Image.new("RGB", (16, 12), (200, 80, 40))
    hues, values, saturations = [], [], []
    for seed in range(300):
        found = pixels(own(crop=(1.0, 1.0), jitter=0.5)(image, seeded(seed))).mean(dim=(1, 2))
        h, s, v = np.asarray(Image.new("RGB", (1, 1), tuple((found * 255).int().tolist())).convert("HSV"))[0, 0] / 255
        hues.append(min(h, 1 - h))
        values.append(v)
        saturations.append(s)
    unchanged = np.isclose(values, 200 / 255, atol=0.01) & np.isclose(saturations, 0.8, atol=0.02)
    assert 0.1 < unchanged.mean() < 0.35  # a fifth keeps its colours, some of the others nearly
    assert max(hues) < 0.2  # a tenth of the circle, from a hue of .04
    assert np.std(values) > 0.05
    assert np.std(saturations) > 0.05
    assert np.std(hues) > 0.01


@pytest.mark.parametrize("kind", ["captions", "views"])
def test_it_reads_its_generator_alone(kind: Any) -> None:
    augment, image = augmentation(kind, TOWERS, noise=CropNoise(0.5)), noisy_picture()
    state = torch.random.get_rng_state()
    one = augment(image, seeded(5))
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(99)
    np.random.seed(99)
    assert torch.equal(augment(image, seeded(5)), one)
    assert not torch.equal(augment(image, seeded(6)), one)


def test_threads_do_not_disturb_each_other() -> None:
    augment, image = augmentation("views", TOWERS), noisy_picture()
    alone = [augment(image, seeded(seed)) for seed in range(60)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: augment(image, seeded(seed)), range(60)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_crop_noise_comes_last_and_also_without_augmentation() -> None:
    image = noisy_picture()
    generator = seeded(3)
    clean = augmentation("views", TOWERS)(image, generator)
    expected = CropNoise(1.0)(clean[None], generator)[0]
    assert torch.equal(augmentation("views", TOWERS, noise=CropNoise(1.0))(image, seeded(3)), expected)
    ramp: Any = replace(TOWERS)
    ramp.prepare = lambda image: torch.arange(192.0).view(1, 12, 16).expand(3, 12, 16)
    found = augmentation("none", ramp, noise=CropNoise(1.0))(image, seeded(3))
    assert found.unique().numel() < 192
    assert not torch.equal(found, ramp.prepare(image))


def test_what_does_not_fit_says_why() -> None:
    with pytest.raises(InvalidInputError, match=r"crop: expected 0 < smallest <= largest <= 1, got \(0.5, 0.4\)"):
        Draws(crop=(0.5, 0.4))
    with pytest.raises(InvalidInputError, match=r"expected numbers in \[0, 1\], got {'flip': 2}"):
        Draws(flip=2)
    with pytest.raises(InvalidInputError, match=r"augmentation none draws nothing; got {'flip': 0.5}"):
        augmentation("none", TOWERS, flip=0.5)
    with pytest.raises(InvalidInputError, match="expected none, captions or views, got 'simclr'"):
        augmentation("simclr", TOWERS)  # type: ignore[arg-type]
