"""The miniature world as a data set: the renders of its own functions, rounded to bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.refusals import refused
from vldebias.data import UNKNOWN
from vldebias.miniature import birds, portraits
from vldebias.miniature.data import open_world


def pixels(data, index: int) -> torch.Tensor:
    return torch.from_numpy(np.asarray(data.read(index)).copy()).permute(2, 0, 1).float() / 255


def test_birds_are_the_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vldebias.miniature.data._BLOCK", 7)  # blocks must not show
    data = open_world("birds", n=20, seed=3, start=5, balanced=True)
    world = birds.sample(20, seed=3, start=5, balanced=True)
    for i in range(20):
        assert (pixels(data, i) - world.images[i]).abs().max() <= 0.5 / 255 + 1e-6
    for column, field, names in (
        ("label", world.label, birds.CLASSES),
        ("place", world.background, birds.BACKGROUNDS),
        ("species", world.species, birds.SPECIES),
    ):
        assert data.column(column).names == names
        assert data.column(column).codes.tolist() == field.tolist()
    assert data.captions == tuple(world.captions)
    assert data.ids[:2] == ("3/000005", "3/000006")


def test_portraits_are_the_renders() -> None:
    data = open_world("portraits", n=120, seed=4)
    world = portraits.sample(120, seed=4)
    assert (pixels(data, 119) - world.images[119]).abs().max() <= 0.5 / 255 + 1e-6
    for column, names in (
        ("profession", portraits.PROFESSIONS),
        ("gender", portraits.GENDERS),
        ("tone", portraits.TONES),
        ("age", portraits.AGES),
        ("hair", portraits.HAIRS),
    ):
        assert data.column(column).names == names
        assert data.column(column).codes.tolist() == getattr(world, column).tolist()
    assert data.captions == tuple(world.captions)


def test_portraits_may_show_more_of_a_life() -> None:
    life = portraits.Life(off_duty=0.5)
    data, world = open_world("portraits", n=40, seed=4, life=life), portraits.sample(40, seed=4, life=life)
    assert data.column("duty").codes.tolist() == world.off_duty.long().tolist()
    assert set(data.column("duty").codes) == {0, 1}
    assert data.captions == tuple(world.captions)
    assert data.about["life"]["off_duty"] == 0.5


def test_hair_is_dark_or_blond_where_it_is_either() -> None:
    data = open_world("portraits", n=120, seed=4)
    hair, age, label = (data.column(name) for name in ("hair", "age", "label"))
    for i in range(120):
        shown = "grey" if age.names[age.codes[i]] == "old" else hair.names[hair.codes[i]]
        expected = {"black": "dark", "brown": "dark", "blond": "blond"}.get(shown)
        assert (label.names[label.codes[i]] if label.codes[i] != UNKNOWN else None) == expected


def test_a_fingerprint_names_the_images() -> None:
    seen = [
        open_world("birds", n=20, seed=1),
        open_world("birds", n=21, seed=1),
        open_world("birds", n=20, seed=2),
        open_world("birds", n=20, seed=1, start=1),
        open_world("birds", n=20, seed=1, balanced=True),
        open_world("portraits", n=20, seed=1),
    ]
    assert len({data.fingerprint for data in seen}) == len(seen)
    assert open_world("birds", n=20, seed=1, split="val").fingerprint == seen[0].fingerprint


@refused(
    ("cats", {}, "unknown world 'cats'; there are birds, portraits"),
    ("birds", {"n": 0}, "birds: expected at least one image, got n = 0"),
    ("birds", {"n": 3, "seed": -1}, "must not be negative"),
    ("birds", {"n": 3, "life": portraits.LIFE}, "life is of portraits; birds have none"),
)
def test_what_does_not_fit_says_why(world: str, options: dict[str, Any]) -> None:
    open_world(world, **options)
