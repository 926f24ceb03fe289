"""Rows before the first step: missing images, held-out images that are learned from, groups by columns and texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from training_parts import image_data

from tests.refusals import refused
from vldebias.data import ImageData, Labels, open_data
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.hosts.towers import towers
from vldebias.miniature import load_clip
from vldebias.miniature.data import open_world
from vldebias.training.pairs import PairSource, make_pairs
from vldebias.training.rows import check_held_out, groups_of, present
from vldebias.training.settings import load_settings


def folder(path: Path, n: int, *, seed: int = 0, quality: int = 95) -> ImageData:
    path.mkdir()
    noise = np.random.default_rng(seed).integers(0, 256, (n, 4, 4, 3), dtype=np.uint8)
    for k, small in enumerate(noise):
        Image.fromarray(small).resize((64, 64), Image.Resampling.BICUBIC).save(path / f"{k}.jpg", quality=quality)
    rows = "".join(f"{k}.jpg,caption {k}\n" for k in range(n))
    (path / "own.csv").write_text("image,caption\n" + rows)
    data = open_data("manifest", path / "own.csv", caption="caption")
    assert isinstance(data, ImageData)
    return data


def test_missing_images_are_left_out_and_many_are_refused(tmp_path: Path) -> None:
    data = folder(tmp_path / "a", 20)
    assert present(data, load_settings(data="a.csv")) is data
    (tmp_path / "a" / "3.jpg").unlink()
    with pytest.warns(
        VldebiasWarning, match=r"own: 1 of 20 images \(5%\) are not there, such as .*3.jpg; they are left"
    ):
        left = present(data, load_settings(data="a.csv"))
    assert left.ids == tuple(name for name in data.ids if name != "3.jpg")
    for k in range(12):
        (tmp_path / "a" / f"{k}.jpg").unlink(missing_ok=True)
    with pytest.raises(
        InvalidInputError, match=r"12 of 20 images \(60%\) are not there.*expected at most 10%.*--allow-m"
    ):
        present(data, load_settings(data="a.csv"))
    with pytest.warns(VldebiasWarning, match="12 of 20"):
        assert len(present(data, load_settings(data="a.csv", allow_missing=True))) == 8
    with pytest.raises(InvalidInputError, match=r"12 of 20 .*on_error skip"):
        present(data, load_settings(data="a.csv", allow_missing=True, on_error="raise"))


def test_held_out_data_that_are_learned_from_are_refused_and_copies_counted(tmp_path: Path) -> None:
    data, other = folder(tmp_path / "a", 30), folder(tmp_path / "b", 30, seed=1)
    clean = check_held_out(other, data)
    assert clean is not None
    assert (clean.same, clean.near, clean.held_out, clean.compared) == (0, 0, 30, 30)
    with pytest.raises(
        InvalidInputError, match="they are the data to learn from, so their scores say nothing; name an"
    ):
        check_held_out(data, data)
    with pytest.raises(InvalidInputError, match="28 of 28 images are files to learn from as well"):
        check_held_out(data[:28], data)
    with pytest.warns(VldebiasWarning, match="2 of 9 images are files to learn from as well"):
        check_held_out(mixed(tmp_path), data)
    again = folder(tmp_path / "again", 30, quality=60)  # the same pictures, stored anew
    with pytest.warns(
        VldebiasWarning, match="0 of 30 images are files .* of 30 that were looked at 30 are next to equal"
    ):
        found = check_held_out(again, data)
    assert found is not None
    assert (found.same, found.near) == (0, 30)


def mixed(tmp_path: Path) -> ImageData:
    """Two images of the one folder and seven of the other."""
    rows = "".join(f"{name}\n" for name in ["a/0.jpg", "a/1.jpg", *(f"b/{k}.jpg" for k in range(7))])
    (tmp_path / "mixed.csv").write_text("image\n" + rows)
    data = open_data("manifest", tmp_path / "mixed.csv")
    assert isinstance(data, ImageData)
    return data


@pytest.fixture(scope="module")
def data() -> ImageData:
    return open_world("birds", n=60, seed=5)


@pytest.fixture(scope="module")
def found() -> Any:
    model, preprocess, tokenizer = load_clip()
    return towers(model, tokenizer, preprocess)


def test_columns_are_crossed_without_what_does_not_occur(data: ImageData, found: Any) -> None:
    groups = groups_of(data, load_settings(data="birds", balance="label,place"), found)
    assert groups is not None
    for row in range(len(data)):
        label, place = (data.column(name) for name in ("label", "place"))
        assert groups.names[groups.codes[row]] == f"{label.names[label.codes[row]]}/{place.names[place.codes[row]]}"
    assert set(groups.codes.tolist()) == set(range(len(groups.names)))
    assert groups_of(data, load_settings(data="birds"), found) is None
    pairs = make_pairs(data, load_settings(data="birds", balance="label,place"), groups)
    assert pairs.taken(np.array([3, 1])).groups.codes.tolist() == groups.codes[[3, 1]].tolist()  # type: ignore[union-attr]


def test_texts_stand_for_a_column_that_there_is_not(data: ImageData, found: Any) -> None:
    settings = load_settings(data="birds", group_dro="texts", group_texts="waterbirds", workers=0)
    groups = groups_of(data, settings, found)
    assert groups is not None
    place = data.column("place")
    named = [place.names[code] for code in place.codes]
    agreeing = np.mean([name == groups.names[code] for name, code in zip(named, groups.codes, strict=True)])
    assert agreeing > 0.8


@refused(
    ({"balance": "texts"}, "balance or group_dro 'texts' needs group_texts"),
    ({"balance": "label", "group_dro": "place"}, "expected the same columns"),
    ({"group_texts": "waterbirds"}, "group_texts 'waterbirds' goes with balance or group_dro with 'texts'"),
    ({"group_dro_step": 0.1}, "group_dro_step 0.1 goes with group_dro"),
    ({"debias_during": True}, "debias_during True goes with debias"),
    ({"keep_pairs": 1.0}, "keep_pairs 1.0 goes with debias and negatives: micro"),
    ({"wise_ft": 0.5, "tune": "lora"}, "wise_ft 0.5 goes with tune: all, text, image or heads"),
    ({"val_split": "train"}, "val_split 'train' is the split that is learned from, .*name another split"),
    ({"track": "tensorbord"}, "track: expected tensorboard, trackio, wandb, got 'tensorbord'"),
)
def test_settings_that_do_not_go_together(given: dict[str, Any]) -> None:
    load_settings(data="birds", **given)


def test_one_group_is_none(found: Any) -> None:
    data = image_data(4, labels=["cat"] * 4)
    with pytest.raises(InvalidInputError, match="expected two groups or more"):
        groups_of(data, load_settings(data="own", balance="kind"), found)


def test_numbers_and_nothing_are_no_captions_of_pairs() -> None:
    data = replace(image_data(4), labels={"kind": Labels.of(["0", "1", "0", "1"])})
    with pytest.raises(InvalidInputError, match=r"captions of .a photo of a \{\}.*are numbers, such as '0'.*in words"):
        PairSource.of(data, label="kind", caption_template="a photo of a {}.")
    said = ImageData(
        "own", "train", ("a", "b", "c"), data.read, {}, fingerprint="x", captions=("nan", "a dog", "a cat")
    )
    with pytest.warns(VldebiasWarning, match=r"own: 1 of 3 rows \(33%\) have no caption and are left out, such as a"):
        assert PairSource.of(said).captions == ("a dog", "a cat")
