"""Pictures of held-out images: cosines by class and hardest negatives, against their definitions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_towers import prepare, tiny_image, tiny_towers

from vldebias.data import ImageData, Labels
from vldebias.pictures import picture_metadata
from vldebias.training.held_out import ANCHORS, draw_held_out
from vldebias.training.monitor import Monitor

NAMES = ("cat", "dog", "owl")


def monitor(codes: Any, read: Any = tiny_image) -> Monitor:
    codes = np.asarray(codes)
    ids = tuple(f"id{i}" for i in range(len(codes)))
    data = ImageData("made up", "val", ids, read, {"kind": Labels(codes, NAMES)}, lambda: "none")
    return Monitor(data, "kind", template="a {}", workers=0)


def test_both_pictures_say_what_they_show(tmp_path: Path) -> None:
    codes = np.arange(24) % 3
    codes[5] = -1
    towers = tiny_towers(2)
    asked = monitor(codes)
    files = draw_held_out(asked, asked.features(towers), tmp_path)
    assert set(files.values()) == {"cosines.png", "hardest.png"}
    assert towers.model.training
    towers.model.eval()
    with torch.no_grad():
        rows = torch.nn.functional.normalize(towers.image(torch.stack([prepare(tiny_image(i)) for i in range(24)])))
    cosines = (rows @ rows.T).numpy()
    pairs = [(i, j) for i in range(24) for j in range(i) if codes[i] >= 0 and codes[j] >= 0]
    told = picture_metadata(tmp_path / "cosines.png")
    for name, same in (("of one class", True), ("of two classes", False)):
        own = [cosines[i, j] for i, j in pairs if (codes[i] == codes[j]) == same]
        assert told[name] == pytest.approx(np.mean(own), abs=1e-3)  # pixels are kept in half precision
    shown = picture_metadata(tmp_path / "hardest.png")["ids"]
    assert len(shown) == ANCHORS
    for anchor, *negatives in ([int(name[2:]) for name in line] for line in shown):
        rivals = [i for i in range(24) if codes[i] >= 0 and codes[i] != codes[anchor]]
        assert all(codes[row] not in (-1, codes[anchor]) for row in negatives)
        hardest = sorted(rivals, key=lambda row: -cosines[anchor, row])[: len(negatives)]
        assert cosines[anchor, negatives] == pytest.approx(cosines[anchor, hardest], abs=2e-3)


def test_nothing_is_drawn_of_a_single_class(tmp_path: Path) -> None:
    asked = monitor([0, 0, 0, -1])
    assert draw_held_out(asked, asked.features(tiny_towers()), tmp_path) == {}
    assert not list(tmp_path.iterdir())


def test_two_classes_of_few_images_are_enough(tmp_path: Path) -> None:
    read = lambda i: Image.new("RGB", (4, 4), (40 * i, 0, 200))  # noqa: E731
    asked = monitor([0, 0, 1, 1], read)
    assert draw_held_out(asked, asked.features(tiny_towers()), tmp_path)
    assert [len(line) for line in picture_metadata(tmp_path / "hardest.png")["ids"]] == [3] * 4
