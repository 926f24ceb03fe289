"""Counts of a data set, and images that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_folders import celeba_txt, celeba_values, picture, save, waterbirds
from PIL import Image

from vldebias.data import (
    Embeddings,
    ImageData,
    ImageStream,
    Labels,
    Record,
    check_images,
    describe,
    group_counts,
    open_data,
)
from vldebias.data.pictures import file_images
from vldebias.errors import InvalidInputError

ROWS = [(0, 2, 0), (0, 2, 1), (1, 2, 0), (0, 2, 0)]


class Stream:
    """Six rows of which the third and fifth cannot be read."""

    name, split, fingerprint = "stream", "test", "f"

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        self.names: dict[str, tuple[str, ...]] = {}

    def records(self, start: int = 0) -> Iterator[Record]:
        return (Record(str(i), lambda i=i: self._read(i)) for i in range(start, 6))

    def _read(self, i: int) -> Image.Image:
        if i in (2, 4):
            raise OSError(f"broken {i}")
        return picture(i)


def own(n: int, **labels: Labels) -> ImageData:
    return ImageData("own", "test", tuple(map(str, range(n))), picture, labels, "f", captions=("",) * n)


def test_groups_of_images_and_of_embeddings(tmp_path: Path) -> None:
    data = open_data("waterbirds", waterbirds(tmp_path, ROWS))
    counts = {"landbird/land": 2, "landbird/water": 1, "waterbird/land": 1, "waterbird/water": 0}
    assert group_counts(data, "label", "place") == counts
    assert group_counts(data, "place") == {"land": 3, "water": 1}
    embeddings = Embeddings(np.ones((4, 2), np.float32), data.ids, data.labels)
    assert group_counts(embeddings, "label", "place") == counts
    with pytest.raises(InvalidInputError, match="no column 'gender'"):
        group_counts(data, "label", "gender")


def test_a_description_counts_everything_once(tmp_path: Path) -> None:
    found = describe(open_data("waterbirds", waterbirds(tmp_path, ROWS, images=False)))
    assert found == {
        "name": "waterbirds",
        "split": "test",
        "images": 4,
        "columns": {
            "label": {"counts": {"landbird": 3, "waterbird": 1}, "unknown": 0},
            "place": {"counts": {"land": 3, "water": 1}, "unknown": 0},
        },
        "intersections": {
            "label x place": {
                "counts": {"landbird/land": 2, "landbird/water": 1, "waterbird/land": 1, "waterbird/water": 0},
                "unknown": 0,
            }
        },
        "captions": 0,
        "about": {"root": str(tmp_path)},
    }
    assert json.loads(json.dumps(found)) == found
    data = own(3, a=Labels.of(["x", None, "x"]), b=Labels.of(["p", "p", None]))
    assert group_counts(data, "a", "b") == {"x/p": 1}
    assert describe(data)["columns"]["a"] == {"counts": {"x": 2}, "unknown": 1}
    assert describe(data)["intersections"]["a x b"] == {"counts": {"x/p": 1}, "unknown": 2}
    many = Labels(np.zeros(3, int), tuple(map(str, range(101))))
    assert describe(own(3, years=many, a=data.column("a"), b=data.column("b")))["intersections"].keys() == {"a x b"}


def test_many_columns_are_crossed_only_when_asked_for(tmp_path: Path) -> None:
    (celeba_txt(tmp_path, celeba_values(9), [2] * 9) / "img_align_celeba").mkdir()
    data = open_data("celeba", tmp_path)
    found = describe(data)
    assert len(found["columns"]) == 42
    assert len(found["intersections"]) == 6
    assert list(describe(data, ["Male", "Young"])["intersections"]) == ["Male x Young"]
    with pytest.raises(InvalidInputError, match="no column 'Old'"):
        describe(data, ["Male", "Old"])


def test_a_stream_is_described_without_reading_images() -> None:
    class Labelled(Stream):
        def __init__(self) -> None:
            super().__init__()
            self.names = {"sex": ("f", "m", "x")}

        def records(self, start: int = 0) -> Iterator[Record]:
            rows = [{"sex": "m"}, {"sex": None}, {"sex": "f", "tone": "dark"}]
            return (Record(str(i), lambda: self._read(2), row, "text" * i) for i, row in enumerate(rows[start:], start))

    found = describe(Labelled())
    assert (found["name"], found["images"], found["captions"]) == ("stream", 3, 2)
    assert found["columns"] == {
        "sex": {"counts": {"f": 1, "m": 1, "x": 0}, "unknown": 1},
        "tone": {"counts": {"dark": 1}, "unknown": 2},
    }
    assert found["intersections"]["sex x tone"] == {"counts": {"f/dark": 1, "m/dark": 0, "x/dark": 0}, "unknown": 2}


def broken(root: Path, n: int = 600) -> tuple[ImageData, list[str]]:
    files = [f"{i:03d}.png" for i in range(n)]
    for file in files:
        save(root / file)
    (root / files[7]).write_bytes(b"no picture")
    (root / files[300]).write_bytes((root / files[300]).read_bytes()[:60])
    (root / files[599]).unlink()
    return file_images("own", "test", root, files, {}), files


def test_every_image_that_cannot_be_read_is_named_in_order(tmp_path: Path) -> None:
    data, files = broken(tmp_path)
    found = check_images(data, progress=False)
    assert [name for name, _ in found] == [files[7], files[300], files[599]]
    assert found[0][1].startswith("not a picture in one of the formats ")
    assert "truncated" in found[1][1]
    assert found[2][1] == "No such file or directory"
    assert check_images(data[:7], progress=False) == []


def test_a_sample_is_drawn_by_its_seed() -> None:
    reads: list[int] = []

    def read(index: int) -> Image.Image:
        reads.append(index)
        return picture()

    def drawn(seed: int, sample: int) -> list[int]:
        reads.clear()
        data = ImageData("o", "t", tuple("abcdefgh"), read, {}, "f")
        assert check_images(data, sample=sample, seed=seed, progress=False) == []
        return sorted(reads)

    assert drawn(0, 3) == drawn(0, 3)
    assert len(set(drawn(0, 3))) == 3
    assert len({tuple(drawn(seed, 3)) for seed in range(9)}) > 1
    assert drawn(0, 99) == list(range(8))


def test_a_stream_is_checked_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(Stream(), ImageStream)
    assert check_images(Stream(), progress=False) == [("2", "broken 2"), ("4", "broken 4")]
    assert check_images(Stream(), sample=3) == [("2", "broken 2")]
    out, err = capsys.readouterr()
    assert out == ""
    assert "3/3" in err
    with pytest.raises(InvalidInputError, match="expected a positive sample, got 0"):
        check_images(Stream(), sample=0)
