"""The committed sheet: which pictures a rule chooses, and that every pixel of theirs stands where it says."""

import numpy as np
import pytest
import torch

from eval.experiments import sheet
from eval.experiments.generation_picture import Unseen, as_images
from vldebias.miniature.birds import CLASSES, SPECIES


def made(size: int) -> Unseen:
    """Twelve professions; under "cali" the change grows with 7 i mod 12."""
    draws = np.random.default_rng(3).integers(0, 256, (2, 12 * 11, size, size, 3), dtype=np.uint8)
    pixels = {m: as_images(one).unflatten(0, (12, 11)) for m, one in zip(("none", "cali"), draws, strict=True)}
    names = [f"profession {i}" for i in range(12)]
    return Unseen(names, pixels, {}, np.argsort(7 * np.arange(12) % 12))


def test_the_professions_are_those_around_the_median_change() -> None:
    unseen = made(4)
    change = 7 * np.arange(12) % 12
    assert sorted(change[unseen.middle(5)]) == [3, 4, 5, 6, 7]
    assert change[unseen.middle(1)] == [5]


@pytest.mark.parametrize(("size", "zoom"), [(16, 4), (32, 2), (64, 1), (96, 1)])
def test_a_hundred_pictures_stand_where_the_labels_say(size: int, zoom: int) -> None:
    unseen = made(size)
    birds = torch.rand(2, len(sheet.BIRDS), 3, size, size, generator=torch.Generator().manual_seed(0))
    strips = sheet.rows(unseen, "cali", *birds)
    assert sum(len(before) for _, before, _ in strips) == 100
    assert [label for label, _, _ in strips[:5]] == [f"profession {i}" for i in unseen.middle(5)]
    assert strips[5][0] == f"{CLASSES[0]} to\n{SPECIES[7]}"
    shown = np.asarray(sheet.composed(strips, ("as it is", "with cali")))
    for half in (0, 1):
        for i, strip in enumerate(strips):
            for column in (0, 9):
                top = sheet.HEAD + i * zoom * size
                left = sheet.LABEL + zoom * ((10 * half + column) * size + half * sheet.GAP)
                found = shown[top : top + zoom * size : zoom, left : left + zoom * size : zoom]
                assert (found == (strip[1 + half][column] * 255).round().byte().permute(1, 2, 0).numpy()).all()


def test_the_world_has_as_many_birds_as_the_sheet_shows() -> None:
    assert len(sheet.BIRDS) == 50
    assert sheet.BIRDS[:2] == CLASSES
