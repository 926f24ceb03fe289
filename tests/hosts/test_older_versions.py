"""A host older than what was tried: said once, and used all the same."""

import warnings

import pytest
from torch import nn

import vldebias
from vldebias import hosts
from vldebias.errors import VldebiasWarning
from vldebias.miniature import load_clip


@pytest.fixture
def tower() -> tuple[nn.Module, object]:
    model, _, tokenizer = load_clip()
    return model, tokenizer


@pytest.fixture(autouse=True)
def _afresh() -> None:
    hosts._warn_of_older.cache_clear()


def warned(tower: tuple[nn.Module, object]) -> list[str]:
    model, tokenizer = tower
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", VldebiasWarning)
        vldebias.debias(model, "waterbirds", tokenizer=tokenizer).remove()
    return [str(one.message) for one in caught if "older than" in str(one.message)]


def test_an_older_host_is_told_of_once_and_attached(
    tower: tuple[nn.Module, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("open_clip.__version__", "3.2.9.dev0")
    (said,) = warned(tower)
    assert said.startswith("open_clip 3.2.9.dev0 is older than 3.3, the lowest version")
    assert "pip install --upgrade 'vldebias[clip]'" in said
    assert warned(tower) == []


@pytest.mark.parametrize("version", ["3.3", "3.3.0", "3.10", "4.0.0rc1"])
def test_no_other_is(version: str, tower: tuple[nn.Module, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("open_clip.__version__", version)
    assert warned(tower) == []
