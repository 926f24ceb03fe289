"""Data sets by name, and errors that tell what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from data_folders import celeba_txt, celeba_values, fairface, save, waterbirds

from tests.refusals import refused
from vldebias.data import DataSource, data_source, list_data, open_data, register_data
from vldebias.data.pictures import file_images
from vldebias.data.sources import _SOURCES
from vldebias.errors import InvalidInputError

NAMES = ["celeba", "fairface", "huggingface", "manifest", "utkface", "waterbirds"]


@pytest.fixture
def registered() -> Iterator[str]:
    def open_own(root: Path, split: str, *, ending: str = "png") -> Any:
        return file_images("own", split, root, [f"a.{ending}"], {})

    register_data("own", DataSource(open_own, "test", "a.png", "my camera"))
    yield "own"
    del _SOURCES["own"]


def test_every_data_set_opens_with_its_own_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    waterbirds(tmp_path / "waterbirds", [(0, 2, 0), (1, 0, 1)])
    assert len(open_data("waterbirds", "~/waterbirds")) == 1
    (celeba_txt(tmp_path / "celeba", celeba_values(3), [0, 1, 2]) / "img_align_celeba").mkdir()
    fairface(tmp_path / "fairface", "val", [("3-9", "Male", "White")])
    save(tmp_path / "utkface/1_1_4_20170110213001988.jpg")
    for name in ("waterbirds", "celeba", "fairface", "utkface"):
        data = open_data(name, tmp_path / name)
        assert (data.name, data.split, len(data)) == (name, data_source(name).split, 1)
        assert open_data(name, str(tmp_path / name), data.split).ids == data.ids


@pytest.mark.parametrize("name", NAMES)
def test_every_data_set_says_what_it_is(name: str) -> None:
    source = data_source(name)
    assert source.layout
    assert source.source
    with pytest.raises(InvalidInputError, match=f"{name}: expected its root: .* Get it from ") as caught:
        open_data(name)
    assert source.layout in str(caught.value)
    assert source.source in str(caught.value)


def test_options() -> None:
    assert data_source("waterbirds").options == ()
    assert data_source("fairface").options == ("padding",)
    assert {"image", "caption", "id", "labels", "names", "split_column"} <= set(data_source("manifest").options)
    assert {"streaming", "config", "revision"} <= set(data_source("huggingface").options)


def test_options_reach_the_reader(tmp_path: Path, registered: str) -> None:
    assert open_data(registered, tmp_path).ids == ("a.png",)
    assert open_data(registered, tmp_path, "val", ending="jpg").ids == ("a.jpg",)
    assert list_data() == sorted([*NAMES, registered])
    with pytest.raises(InvalidInputError, match="data set 'own' is there already; choose another name"):
        register_data(registered, data_source("celeba"))


@refused(
    (
        "waterbird",
        ".",
        {},
        r"unknown data set 'waterbird'; did you mean 'waterbirds'\? There are: celeba, fairface",
    ),
    ("birds", ".", {}, r"the worlds 'birds' and 'portraits' are opened with vldebias.miniature.data.open_world"),
    ("zzz", ".", {}, r"unknown data set 'zzz'\. There are: celeba"),
    ("waterbirds", ".", {"pad": 1}, r"waterbirds: unknown options \['pad'\]; expected none for this data set"),
    ("fairface", ".", {"pad": 1}, r"fairface: unknown options \['pad'\]; expected padding"),
    ("celeba", "no/where", {}, r"celeba: no/where does not exist; expected list_attr_celeba .* Get it from mmlab"),
)
def test_what_cannot_be_opened_says_why(name: str, root: str, options: dict[str, Any]) -> None:
    open_data(name, root, **options)
