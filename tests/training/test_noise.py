"""The laws of the noise: its rate, the marginals that it leaves alone, and what it calls wrong."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from vldebias.errors import InvalidInputError
from vldebias.training.noise import CropNoise, class_noise, mixture_noise, related_classes

N = 20_000
# Some texts are frequent, as captions are.
CAPTIONS = [f"text {int(k)}" for k in np.random.default_rng(0).geometric(0.2, N)]


def fits(count: int, n: int, rate: float) -> bool:
    return bool(binomtest(count, n, rate).pvalue > 1e-4) if 0 < rate < 1 else count == n * rate


@pytest.mark.parametrize("eta", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("seed", [0, 7])
def test_the_rate_of_wrong_captions(eta: float, seed: int) -> None:
    by_row = mixture_noise(N, eta, seed)
    assert fits(int(by_row.wrong.sum()), N, eta * (1 - 1 / N))
    assert (by_row.wrong == (by_row.source != np.arange(N))).all()
    by_text = mixture_noise(N, eta, seed, CAPTIONS)
    assert (by_text.source == by_row.source).all()
    share = np.array(list(Counter(CAPTIONS).values())) / N
    assert fits(int(by_text.wrong.sum()), N, eta * (1 - float((share**2).sum())))
    after = by_text.applied(CAPTIONS)
    assert by_text.wrong.tolist() == [new != old for new, old in zip(after, CAPTIONS, strict=True)]


def test_replaced_captions_follow_the_captions_of_the_data() -> None:
    noise = mixture_noise(N, 0.7, 1, CAPTIONS)
    moved = noise.source != np.arange(N)
    drawn = Counter(CAPTIONS[i] for i in noise.source[moved])
    expected = {text: count / N * moved.sum() for text, count in Counter(CAPTIONS).items()}
    common = [text for text, count in expected.items() if count > 20]
    observed = [drawn[text] for text in common] + [moved.sum() - sum(drawn[text] for text in common)]
    wanted = [expected[text] for text in common]
    assert chisquare(observed, [*wanted, moved.sum() - sum(wanted)]).pvalue > 1e-4


def test_a_replaced_caption_says_nothing_about_its_image() -> None:
    """Independence: the text drawn for rows with the most frequent caption is distributed as for all others."""
    noise = mixture_noise(N, 1.0, 2, CAPTIONS)
    most = Counter(CAPTIONS).most_common(1)[0][0]
    own = np.array([text == most for text in CAPTIONS])
    drawn = own[noise.source]
    assert fits(int(drawn[own].sum()), int(own.sum()), float(own.mean()))


@given(st.integers(0, 50), st.integers(0, 9), st.floats(0, 1), st.floats(0, 1))
def test_more_noise_keeps_what_less_noise_did(n: int, seed: int, one: float, other: float) -> None:
    less, more = (mixture_noise(n, eta, seed) for eta in sorted((one, other)))
    assert (more.source[less.wrong] == less.source[less.wrong]).all()


def test_noise_follows_its_seed() -> None:
    assert (mixture_noise(100, 0.5, 3).source == mixture_noise(100, 0.5, 3).source).all()
    assert (mixture_noise(100, 0.5, 3).source != mixture_noise(100, 0.5, 4).source).any()


@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
def test_class_noise_flips_half_of_eta_to_the_related_class(eta: float) -> None:
    labels = np.random.default_rng(0).integers(-1, 3, N)
    noisy = class_noise(labels, eta, (1, 2, 2), seed=5)
    assert (noisy[labels == -1] == -1).all()
    assert (noisy[labels == 2] == 2).all()
    for k, other in ((0, 1), (1, 2)):
        rows = noisy[labels == k]
        assert set(rows) <= {k, other}
        assert fits(int((rows == other).sum()), len(rows), eta / 2)


def test_related_classes_by_name() -> None:
    assert related_classes(("cat", "dog", "owl")) == (1, 2, 0)
    assert related_classes(("cat", "dog")) == (1, 0)
    assert related_classes(("cat", "dog", "owl"), {"owl": "cat"}) == (0, 1, 0)
    with pytest.raises(InvalidInputError, match=r"related: no classes \['cow'\]; there are \['cat', 'dog'\]"):
        related_classes(("cat", "dog"), {"cow": "cat"})


def naive_patch(image: torch.Tensor, y: int, x: int, h: int, w: int) -> torch.Tensor:
    patch = image[None, :, y : y + h, x : x + w]
    return torch.nn.functional.interpolate(patch, image.shape[1:], mode="bilinear", align_corners=False)[0]


@pytest.mark.parametrize("size", [0.2, 0.5, 1.0])
def test_a_cropped_image_is_one_of_its_patches(size: float) -> None:
    images = torch.rand(6, 3, 10, 15)
    h, w = round(10 * size), round(15 * size)
    cropped = CropNoise(1.0, size)(images, torch.Generator().manual_seed(0))
    for image, result in zip(images, cropped, strict=True):
        patches = [naive_patch(image, y, x, h, w) for y in range(10 - h + 1) for x in range(15 - w + 1)]
        assert any(torch.allclose(result, patch, atol=1e-6) for patch in patches)


def test_crops_have_their_rate_and_every_place() -> None:
    # The image says where it was cropped: its pixels hold their own number.
    images = torch.arange(100.0).view(1, 1, 10, 10).expand(4000, 3, 10, 10)
    cropped = CropNoise(0.6)(images, torch.Generator().manual_seed(1))
    changed = (cropped != images).flatten(1).any(dim=1)
    assert fits(int(changed.sum()), 4000, 0.6)
    corners = cropped[changed, 0, 0, 0].long()
    rows = torch.bincount(corners // 10, minlength=9)
    columns = torch.bincount(corners % 10, minlength=9)
    assert len(rows) == len(columns) == 9
    assert chisquare(rows.numpy()).pvalue > 1e-4
    assert chisquare(columns.numpy()).pvalue > 1e-4


def test_crop_noise_follows_its_generator_and_leaves_its_input() -> None:
    images = torch.rand(8, 3, 10, 10)
    before = images.clone()
    one, two = (CropNoise(0.5)(images, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(images, before)
    untouched = CropNoise(0.0)(images, torch.Generator())
    assert torch.equal(untouched, images)
    assert untouched.data_ptr() != images.data_ptr()
    assert not torch.equal(one, CropNoise(0.5)(images, torch.Generator().manual_seed(3)))


def test_what_does_not_fit_says_why() -> None:
    for call in (lambda: mixture_noise(3, 1.1, 0), lambda: class_noise([0], -0.1, [0], 0), lambda: CropNoise(2)):
        with pytest.raises(InvalidInputError, match=r"eta: expected a noise rate in \[0, 1\], got"):
            call()
    with pytest.raises(InvalidInputError, match="expected 3 captions, got 2"):
        mixture_noise(3, 0.5, 0, ["a", "b"])
    with pytest.raises(InvalidInputError, match="expected 3 captions, got 1"):
        mixture_noise(3, 0.5, 0).applied(["a"])
    with pytest.raises(InvalidInputError, match=r"expected labels \(n,\) in -1 .. 1, one per entry of related"):
        class_noise([2], 0.5, [1, 0], 0)
    with pytest.raises(InvalidInputError, match=r"related: expected classes 0 .. 1, got \[1, 2\]"):
        class_noise([1], 0.5, [1, 2], 0)
    with pytest.raises(InvalidInputError, match=r"size: expected a share in \(0, 1\], got 0"):
        CropNoise(0.5, 0)
