"""Pairs of a data set, and noise of a known rate: its law, and what is known to be wrong afterwards."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare
from training_parts import NAMES, caption, image_data, picture

from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.training.augmentation import CropNoise
from vldebias.training.pairs import Pairs, PairSource, caption_of, class_noise, mixture_noise


def test_pairs_are_the_rows_of_the_data() -> None:
    source = PairSource.of(image_data(5), label="kind")
    assert (source.items, source.name) == (5, "own")
    assert [source.captions[i] for i in range(5)] == [caption(i) for i in range(5)]
    assert source.read(3) == picture(3)
    assert source.ids[4] == "id4"
    assert source.labels is not None
    assert source.labels.codes.tolist() == [0, 1, 2, 0, 1]
    assert PairSource.of(image_data(5)).labels is None


def test_captions_from_labels_leave_out_unknown_rows() -> None:
    data = image_data(4, labels=["owl", None, "cat", ""], captions=False)
    with pytest.warns(
        VldebiasWarning, match="own: 2 of 4 rows .50%. have no caption and are left out, such as id1, id3"
    ):
        source = PairSource.of(data, label="kind", caption_template="a {} {}")
    assert source.captions == ("a owl owl", "a cat cat")
    assert source.ids == ("id0", "id2")
    assert source.labels is not None
    assert source.labels.codes.tolist() == [2, 0]
    assert source.read(1) == picture(2)


def test_two_views_need_no_captions() -> None:
    source = PairSource.of(image_data(3, captions=False), with_captions=False, label="kind")
    assert (source.items, source.captions) == (3, ())


def test_what_does_not_fit_says_why() -> None:
    bare = image_data(3, captions=False)
    with pytest.raises(InvalidInputError, match=r"own: has no captions. Name their column when .* \(caption=...\)"):
        PairSource.of(bare)
    with pytest.raises(InvalidInputError, match="caption_template needs label"):
        PairSource.of(bare, caption_template="a {}")
    with pytest.raises(InvalidInputError, match=r"expected \{\} where the class goes, got 'a photo'"):
        caption_of("a photo", "cat")
    with pytest.raises(InvalidInputError, match="no column 'race'; there are"):
        PairSource.of(bare, label="race", caption_template="a {}")
    empty = image_data(2, labels=[None, None], captions=False)
    with pytest.raises(InvalidInputError, match="not one of 2 rows has a caption"):
        PairSource.of(empty, label="kind", caption_template="a {}")


def test_clean_pairs_are_not_wrong() -> None:
    source = PairSource.of(image_data(4))
    pairs = Pairs.clean(source)
    assert (pairs.captions, pairs.items, pairs.own) == (source.captions, 4, source)
    assert pairs.wrong.tolist() == [False] * 4


def test_mixture_noise_knows_which_captions_changed() -> None:
    source = PairSource.of(image_data(300), label="kind")
    pairs = Pairs.with_mixture_noise(source, 0.5, seed=1)
    assert 0.4 < pairs.wrong.mean() < 0.6
    assert pairs.wrong.tolist() == [pairs.captions[i] != source.captions[i] for i in range(300)]
    assert set(pairs.captions) <= set(source.captions)
    assert pairs.read(7) == source.read(7)
    assert pairs.labels is source.labels
    assert Pairs.with_mixture_noise(source, 0.5, seed=1).captions == pairs.captions


def test_an_equal_caption_from_another_row_is_not_wrong() -> None:
    source = PairSource.of(image_data(200), label="kind", caption_template="a {}")
    pairs = Pairs.with_mixture_noise(source, 1.0, seed=0)
    assert 0.5 < pairs.wrong.mean() < 0.8  # two of three classes


def test_class_noise_reaches_captions_made_from_labels() -> None:
    source = PairSource.of(image_data(600), label="kind", caption_template="a {}")
    pairs = Pairs.with_class_noise(source, 0.8, seed=3)
    assert pairs.labels is not None
    assert pairs.captions == tuple(f"a {NAMES[code]}" for code in pairs.labels.codes)
    assert source.labels is not None
    assert pairs.wrong.tolist() == (pairs.labels.codes != source.labels.codes).tolist()
    assert 0.3 < pairs.wrong.mean() < 0.5
    both = Pairs.with_mixture_noise(pairs, 0.5, seed=4)
    assert both.own is source
    assert both.wrong.tolist() == [a != b for a, b in zip(both.captions, source.captions, strict=True)]


def test_class_noise_without_captions_is_wrong_by_label() -> None:
    source = PairSource.of(image_data(300, captions=False), label="kind", with_captions=False)
    pairs = Pairs.with_class_noise(source, 1.0, seed=0)
    assert source.labels is not None
    assert pairs.labels is not None
    assert pairs.wrong.tolist() == (pairs.labels.codes != source.labels.codes).tolist()
    assert 0.4 < pairs.wrong.mean() < 0.6


def test_noise_that_cannot_be_says_why() -> None:
    with pytest.raises(InvalidInputError, match="class noise needs the column of classes; give label"):
        Pairs.with_class_noise(PairSource.of(image_data(3)), 0.5, 0)
    with pytest.raises(InvalidInputError, match="class noise does not reach captions that people wrote"):
        Pairs.with_class_noise(PairSource.of(image_data(3), label="kind"), 0.5, 0)
    with pytest.raises(InvalidInputError, match="mixture noise needs captions"):
        Pairs.with_mixture_noise(PairSource.of(image_data(3), with_captions=False), 0.5, 0)
    source = PairSource.of(image_data(30), label="kind", caption_template="a {}")
    with pytest.raises(InvalidInputError, match="has noise already; class noise comes before any other"):
        Pairs.with_class_noise(Pairs.with_mixture_noise(source, 1.0, 0), 0.5, 0)


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


@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
def test_class_noise_flips_half_of_eta_to_the_next_class(eta: float) -> None:
    labels = np.random.default_rng(0).integers(-1, 3, N)
    noisy = class_noise(labels, eta, 3, seed=5)
    assert (noisy[labels == -1] == -1).all()
    for k, other in ((0, 1), (1, 2), (2, 0)):
        rows = noisy[labels == k]
        assert set(rows) <= {k, other}
        assert fits(int((rows == other).sum()), len(rows), eta / 2)


def naive_patch(image: torch.Tensor, y: int, x: int, h: int, w: int) -> torch.Tensor:
    patch = image[None, :, y : y + h, x : x + w]
    return torch.nn.functional.interpolate(patch, image.shape[1:], mode="bilinear", align_corners=False)[0]


def test_a_cropped_image_is_one_of_its_patches() -> None:
    images, (h, w) = torch.rand(6, 3, 10, 15), (2, 3)
    cropped = CropNoise(1.0)(images, torch.Generator().manual_seed(0))
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


def test_what_does_not_fit_says_why_of_noise() -> None:
    for call in (lambda: mixture_noise(3, 1.1, 0), lambda: class_noise([0], -0.1, 1, 0), lambda: CropNoise(2)):
        with pytest.raises(InvalidInputError, match=r"eta: expected a noise rate in \[0, 1\], got"):
            call()
    with pytest.raises(InvalidInputError, match="expected 3 captions, got 2"):
        mixture_noise(3, 0.5, 0, ["a", "b"])
    with pytest.raises(InvalidInputError, match="expected 3 captions, got 1"):
        mixture_noise(3, 0.5, 0).applied(["a"])
