"""Fourier mixing: against plain sums, and its laws of amplitude and phase."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.training.fourier import FourierMixing, mix_amplitudes, most_similar

SIZES = st.tuples(st.integers(1, 6), st.integers(1, 6))
COMMON = settings(max_examples=40, deadline=None)


def pictures(n: int, h: int = 6, w: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(n, 3, h, w, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def amplitude(images: Tensor) -> Tensor:
    return torch.fft.fft2(images).abs()


def same_phase(one: Tensor, other: Tensor, least: float = 1e-6) -> bool:
    """Whether both spectra point the same way, wherever both are more than rounding."""
    a, b = torch.fft.fft2(one), torch.fft.fft2(other)
    seen = (a.abs() > least) & (b.abs() > least)
    return bool((((a / a.abs() - b / b.abs()).abs() < 1e-6) | ~seen).all())


def transformed(channel: list[list[float]]) -> list[list[complex]]:
    """The equation of the transform, as it reads."""
    height, width = len(channel), len(channel[0])
    return [
        [
            sum(
                channel[h][w] * cmath.exp(-2j * math.pi * (h / height * u + w / width * v))
                for h in range(height)
                for w in range(width)
            )
            for v in range(width)
        ]
        for u in range(height)
    ]


def mixed_by_hand(channel: list[list[float]], partner: list[list[float]], beta: float) -> list[list[complex]]:
    height, width = len(channel), len(channel[0])
    f, g = transformed(channel), transformed(partner)
    spectrum = [
        [cmath.rect((1 - beta) * abs(f[u][v]) + beta * abs(g[u][v]), cmath.phase(f[u][v])) for v in range(width)]
        for u in range(height)
    ]
    return [
        [
            sum(
                spectrum[u][v] * cmath.exp(2j * math.pi * (h / height * u + w / width * v))
                for u in range(height)
                for v in range(width)
            )
            / (height * width)
            for w in range(width)
        ]
        for h in range(height)
    ]


@pytest.mark.parametrize(("h", "w"), [(4, 4), (3, 5), (5, 4), (1, 3)])
def test_it_is_the_equation(h: int, w: int) -> None:
    images, partner, weight = pictures(3, h, w), torch.tensor([2, 0, 1]), torch.tensor([0.3, 1.0, 0.0])
    found = mix_amplitudes(images, partner, weight.double())
    for k in range(3):
        for c in range(3):
            expected = mixed_by_hand(images[k, c].tolist(), images[partner[k], c].tolist(), float(weight[k].double()))
            assert max(abs(value.imag) for row in expected for value in row) < 1e-12  # the image stays real
            assert found[k, c].flatten().tolist() == pytest.approx(
                [value.real for row in expected for value in row], abs=1e-12
            )


@COMMON
@given(SIZES, st.integers(0, 1000), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_amplitudes_are_mixed_and_phases_kept(size: tuple[int, int], seed: int, weight: list[float]) -> None:
    images, partner, w = pictures(4, *size, seed), torch.tensor([1, 3, 0, 0]), torch.tensor(weight).double()
    found = mix_amplitudes(images, partner, w)
    own, others, share = amplitude(images), amplitude(images[partner]), w[:, None, None, None]
    torch.testing.assert_close(amplitude(found), (1 - share) * own + share * others, rtol=1e-9, atol=1e-9)
    assert same_phase(found, images)


@COMMON
@given(SIZES, st.integers(0, 1000), st.floats(0, 1))
def test_limits(size: tuple[int, int], seed: int, weight: float) -> None:
    images, partner = pictures(4, *size, seed), torch.tensor([1, 3, 0, 0])
    nothing, everything = torch.zeros(4), torch.ones(4)
    torch.testing.assert_close(mix_amplitudes(images, partner, nothing), images, rtol=0, atol=1e-12)
    itself = mix_amplitudes(images, torch.arange(4), torch.full((4,), weight))
    torch.testing.assert_close(itself, images, rtol=0, atol=1e-12)
    taken = mix_amplitudes(images, partner, everything)
    torch.testing.assert_close(amplitude(taken), amplitude(images[partner]), rtol=1e-9, atol=1e-9)


def test_a_frequency_that_is_not_there_comes_in_with_phase_zero() -> None:
    """A grey image has a constant only, whose phase is 0; it becomes what all phases 0 make of the partner."""
    images = torch.cat([torch.ones(1, 3, 4, 6, dtype=torch.float64), pictures(1, 4, 6)])
    found = mix_amplitudes(images, torch.tensor([1, 0]), torch.ones(2))
    torch.testing.assert_close(found[0], torch.fft.ifft2(amplitude(images[1])).real)
    assert found.isfinite().all()


def test_each_image_has_its_own_weight_and_channels_do_not_mix() -> None:
    images, partner = pictures(3), torch.tensor([1, 2, 0])
    together = mix_amplitudes(images, partner, torch.tensor([0.0, 0.5, 1.0]))
    for k, w in enumerate([0.0, 0.5, 1.0]):
        assert torch.equal(together[k], mix_amplitudes(images, partner, torch.full((3,), w))[k])
    dark = images.clone()
    dark[1, 0] = 0.0
    changed = mix_amplitudes(dark, partner, torch.ones(3))[0] != mix_amplitudes(images, partner, torch.ones(3))[0]
    assert changed.flatten(1).any(dim=1).tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_transform_is_in_single_precision_and_the_type_stays(dtype: torch.dtype) -> None:
    images, partner, weight = pictures(3).to(dtype), torch.tensor([1, 2, 0]), torch.rand(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = mix_amplitudes(images, partner, weight)
        assert torch.equal(most_similar(images.flatten(1)), most_similar(images.double().flatten(1)))
    assert found.dtype == dtype
    expected = mix_amplitudes(images.double(), partner, weight)
    torch.testing.assert_close(found.double(), expected.to(dtype).double(), rtol=torch.finfo(dtype).eps, atol=1e-5)


@COMMON
@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 1000), st.integers(1, 9))
def test_the_most_similar_is_the_other_row_of_largest_cosine(n: int, d: int, seed: int, chunk_size: int) -> None:
    features = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = most_similar(features, chunk_size=chunk_size).tolist()
    for k, row in enumerate(features):
        cosines = [float(torch.cosine_similarity(row, other, dim=0)) for other in features]
        others = [cosine for other, cosine in enumerate(cosines) if other != k]
        assert found[k] != k
        assert cosines[found[k]] == pytest.approx(max(others), abs=1e-12)


def test_similarity_does_not_see_lengths() -> None:
    features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [50.0, 50.0]])
    assert most_similar(features).tolist() == [1, 0, 1]


def test_mixing_a_batch() -> None:
    images, features = pictures(6), pictures(6, seed=1).flatten(1)
    generator = torch.Generator().manual_seed(3)
    found = FourierMixing(0.2)(images, features, generator)
    weight = 0.2 * torch.rand(6, generator=torch.Generator().manual_seed(3))
    assert torch.equal(found, mix_amplitudes(images, most_similar(features), weight))
    assert not torch.equal(found, FourierMixing(0.2)(images, features, generator))  # the generator went on
    torch.testing.assert_close(FourierMixing(0.0)(images, features), images)


def test_weights_are_uniform_up_to_alpha() -> None:
    """Read off the brightness: all images are black but one, which is the most similar to all of them."""
    images = torch.zeros(2001, 1, 1, 1, dtype=torch.float64)
    images[0] = 1
    features = torch.cat([torch.zeros(1, 2001), torch.eye(2001)[1:]])
    features[:, 0] = 1
    weight = FourierMixing(0.5)(images, features, torch.Generator().manual_seed(0))[1:].flatten()
    assert 0 <= float(weight.min()) < 0.005
    assert 0.495 < float(weight.max()) < 0.5
    assert float(weight.mean()) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: FourierMixing(1.5), r"alpha: expected a number in \[0, 1\], got 1.5"),
        (lambda: FourierMixing()(pictures(3), torch.ones(2, 4)), "features: expected one row per image, 3, got 2"),
        (lambda: most_similar(torch.ones(1, 4)), r"features: expected \(b, d\) with b >= 2, got \(1, 4\)"),
        (lambda: most_similar(torch.ones(3, 4), chunk_size=0), r"chunk_size: expected a number in \[1, inf\), got 0"),
        (
            lambda: mix_amplitudes(torch.ones(3, 4, 4), torch.arange(3), torch.ones(3)),
            r"images: expected floating-point \(b, c, h, w\), got torch.float32 \(3, 4, 4\)",
        ),
        (
            lambda: mix_amplitudes(torch.ones(3, 3, 4, 4, dtype=torch.uint8), torch.arange(3), torch.ones(3)),
            r"images: expected floating-point .*, got torch.uint8",
        ),
        (
            lambda: mix_amplitudes(pictures(3), torch.ones(3), torch.ones(3)),
            r"partner: expected integers \(3,\), got torch.float32 \(3,\)",
        ),
        (
            lambda: mix_amplitudes(pictures(3), torch.arange(3), torch.ones(2)),
            r"weight: expected \(3,\), one per image, got \(2,\)",
        ),
    ],
)
def test_other_inputs_are_refused(call: object, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        call()  # type: ignore[operator]
