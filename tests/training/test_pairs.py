"""Test the pairs of a data set, and the distribution and record of caption noise."""

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import binomtest, chisquare
from training_parts import caption, image_data, pairs_of, picture, tiny_towers

from vldebias.data import ImageData, Labels
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.training.monitor import Monitor
from vldebias.training.pairs import Pairs, open_images
from vldebias.training.settings import load_settings


def test_pairs_match_the_rows_of_the_data() -> None:
    source = pairs_of(image_data(5), label="kind")
    assert (source.items, source.name, source.ids[4]) == (5, "own", "id4")
    assert source.captions == tuple((caption(i),) for i in range(5))
    assert source.read(3) == picture(3)
    assert source.labels.codes.tolist() == [0, 1, 2, 0, 1]
    assert pairs_of(image_data(5)).labels is None
    assert pairs_of(image_data(3, captions=()), views="two").captions == ()


def test_captions_from_labels_omit_unknown_rows() -> None:
    data = image_data(6, kinds=["owl", None, "cat", "", None, None], captions=())
    with pytest.warns(VldebiasWarning, match="own: 4 of 6 rows have no caption .* id1, id3, id4$"):
        source = pairs_of(data, label="kind", caption_template="a {} {}")
    assert source.captions == (("an owl owl",), ("a cat cat",))
    assert source.ids == ("id0", "id2")
    assert source.labels.codes.tolist() == [2, 0]
    assert source.read(1) == picture(2)


def test_held_out_data_equal_to_training_data_raise_an_error_and_an_overlap_warns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def monitor(first: int, name: str, **options: Any) -> Monitor | None:
        opened = replace(data(first, name), **options)
        monkeypatch.setattr(
            "vldebias.training.monitor.open_images",
            lambda *_, held_out: opened if held_out else None,
        )
        chosen = load_settings(data="own", val_split="val")
        return Monitor.held_out(chosen, data(0, "b"), tiny_towers())[0]

    def data(first: int, name: str) -> Any:
        return replace(image_data(10, path=lambda row: f"{first + row}.png"), fingerprint=name)

    assert monitor(100, "a") is not None
    assert monitor(100, "a", captions=()) is None, "there is nothing to score"
    with pytest.warns(VldebiasWarning, match="5 of 10 images are also in the training data"):
        monitor(5, "a")
    for first, name in ((1, "a"), (100, "b")):
        with pytest.raises(InvalidInputError, match="these images are also in the training data"):
            monitor(first, name)


def test_crossed_groups_only_include_combinations_that_occur() -> None:
    places = Labels.from_values(["land", "water", "land", "land", "water", None], ("land", "water"))
    data = replace(image_data(6), labels={**image_data(6).labels, "place": places})
    pairs = pairs_of(data, group_dro="kind, place")
    assert pairs.groups.names == ("cat/land", "dog/water", "owl/land")
    assert pairs.groups.codes.tolist() == [0, 1, 2, 0, 1, -1]
    assert pairs_of(data, group_dro="place").groups.names == ("land", "water")
    cats = replace(data, labels={"kind": Labels.from_values(["cat"] * 6)})
    with pytest.raises(InvalidInputError, match="two groups"):
        pairs_of(cats, group_dro="kind")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(4):
        Image.new("RGB", (8, 8), (number * 60, 0, 0)).save(folder / f"{number}.png")
    return folder


def table(path: Path, names: list[str], rows: list[list[str]]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return str(path)


def opened(held_out: bool = False, **options: Any) -> ImageData:
    data = open_images(load_settings(**options), held_out=held_out)
    assert isinstance(data, ImageData)
    return data


def test_a_table_with_splits_separates_them_and_one_without_has_one_split(
    images: Path, tmp_path: Path
) -> None:
    rows = [[f"images/{number}.png", f"number {number}"] for number in range(4)]
    path = table(tmp_path / "pairs.csv", ["image", "caption"], rows)
    assert opened(data=path).captions == tuple(f"number {number}" for number in range(4))
    with pytest.raises(InvalidInputError, match="'split'"):
        opened(data=path, split="test")
    split = [[*row, "train" if number else "val"] for number, row in enumerate(rows)]
    path = table(tmp_path / "split.csv", ["image", "caption", "split"], split)
    assert len(opened(data=path)) == 3
    assert len(opened(data=path, split="all")) == 4
    assert opened(data=path, val_split="val", held_out=True).captions == ("number 0",)
    assert len(opened(data="own", val_data=path, held_out=True)) == 4
    assert opened(data=path, label="caption", group_dro="split").labels.keys() == {
        "caption",
        "split",
    }
    assert not load_settings(data=path).has_held_out


def test_relative_paths_are_resolved_against_image_root(images: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "tables"
    elsewhere.mkdir()
    path = table(elsewhere / "below.csv", ["image", "caption"], [["3.png", "three"]])
    assert opened(data=path, image_root=str(images)).read(0).getpixel((0, 0)) == (180, 0, 0)
    absolute = table(
        elsewhere / "absolute.csv", ["image", "caption"], [[str(images / "2.png"), "two"]]
    )
    with pytest.raises(InvalidInputError, match="lead outside"):
        opened(data=absolute)
    assert opened(data=absolute, allow_outside=True).read(0).getpixel((0, 0)) == (120, 0, 0)


def test_noise_records_changed_captions_and_depends_on_its_seed() -> None:
    source = pairs_of(image_data(300), label="kind")
    pairs, again, reseeded = (source.with_noise(0.5, seed=seed) for seed in (1, 1, 2))
    assert 0.4 < pairs.wrong.mean() < 0.6
    assert pairs.wrong.tolist() == [
        new != old for new, old in zip(pairs.captions, source.captions, strict=True)
    ]
    assert set(pairs.captions) <= set(source.captions)
    assert pairs.captions == again.captions != reseeded.captions
    assert source.wrong is None
    selected = pairs.select(np.array([3, 1]))
    assert selected.captions == (pairs.captions[3], pairs.captions[1])
    assert selected.wrong.tolist() == pairs.wrong[[3, 1]].tolist()  # type: ignore[union-attr]


N = 20_000
# Some captions are more frequent than others.
CAPTIONS = [f"text {int(k)}" for k in np.random.default_rng(0).geometric(0.2, N)]


def test_replaced_captions_follow_the_data_distribution_independently_of_images() -> None:
    source = Pairs.noise(N, 0.7, 1)
    moved = source != np.arange(N)
    counts = Counter(CAPTIONS[i] for i in source[moved])
    expected = {text: count / N * moved.sum() for text, count in Counter(CAPTIONS).items()}
    common = [text for text, count in expected.items() if count > 20]
    observed = [counts[text] for text in common] + [
        moved.sum() - sum(counts[text] for text in common)
    ]
    wanted = [expected[text] for text in common]
    assert chisquare(observed, [*wanted, moved.sum() - sum(wanted)]).pvalue > 1e-4
    commonest = Counter(CAPTIONS).most_common(1)[0][0]
    is_commonest = np.array([text == commonest for text in CAPTIONS])
    is_commonest_now = is_commonest[Pairs.noise(N, 1.0, 2)]
    assert (
        binomtest(
            int(is_commonest_now[is_commonest].sum()),
            int(is_commonest.sum()),
            float(is_commonest.mean()),
        ).pvalue
        > 1e-4
    )


@given(st.integers(1, 50), st.integers(0, 9), st.floats(0, 1), st.floats(0, 1))
def test_more_noise_includes_the_changes_of_less_noise(
    n: int, seed: int, first_share: float, second_share: float
) -> None:
    less, noisier = (Pairs.noise(n, eta, seed) for eta in sorted((first_share, second_share)))
    changed = less != np.arange(n)
    assert (noisier[changed] == less[changed]).all()
