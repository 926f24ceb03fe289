"""Pairs of a data set: where captions come from, which rows stay out, and the truth about noise."""

from __future__ import annotations

import numpy as np
import pytest
from training_parts import NAMES, caption, image_data, picture

from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.training.pairs import Pairs, PairSource, caption_of


def test_pairs_are_the_rows_of_the_data() -> None:
    source = PairSource.of(image_data(5), label="kind")
    assert (source.items, source.name, source.left_out) == (5, "own", 0)
    assert [source.caption(i) for i in range(5)] == [caption(i) for i in range(5)]
    assert source.image(3) == picture(3)
    assert source.ids[4] == "id4"
    assert source.labels is not None
    assert source.labels.codes.tolist() == [0, 1, 2, 0, 1]
    assert PairSource.of(image_data(5)).labels is None


def test_captions_from_labels_leave_out_unknown_rows() -> None:
    data = image_data(4, labels=["owl", None, "cat", ""], captions=False)
    with pytest.warns(VldebiasWarning, match="own: 2 of 4 rows have no caption and are left out, such as id1, id3"):
        source = PairSource.of(data, label="kind", caption_template="a {} {}")
    assert source.captions == ("a owl owl", "a cat cat")
    assert source.ids == ("id0", "id2")
    assert source.labels is not None
    assert source.labels.codes.tolist() == [2, 0]
    assert source.image(1) == picture(2)
    assert source.left_out == 2


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
    assert pairs.wrong.tolist() == [pairs.caption(i) != source.caption(i) for i in range(300)]
    assert set(pairs.captions) <= set(source.captions)
    assert pairs.image(7) == source.image(7)
    assert pairs.labels is source.labels
    assert Pairs.with_mixture_noise(source, 0.5, seed=1).captions == pairs.captions


def test_an_equal_caption_from_another_row_is_not_wrong() -> None:
    source = PairSource.of(image_data(200), label="kind", caption_template="a {}")
    pairs = Pairs.with_mixture_noise(source, 1.0, seed=0)
    assert 0.5 < pairs.wrong.mean() < 0.8  # two of three classes


def test_class_noise_reaches_captions_made_from_labels() -> None:
    source = PairSource.of(image_data(600), label="kind", caption_template="a {}")
    pairs = Pairs.with_class_noise(source, 0.8, seed=3, related={"cat": "dog", "dog": "cat"})
    assert pairs.labels is not None
    assert pairs.captions == tuple(f"a {NAMES[code]}" for code in pairs.labels.codes)
    assert source.labels is not None
    assert pairs.wrong.tolist() == (pairs.labels.codes != source.labels.codes).tolist()
    assert not pairs.wrong[2::3].any()  # owls have no related class
    assert 0.3 < np.delete(pairs.wrong, np.s_[2::3]).mean() < 0.5
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
