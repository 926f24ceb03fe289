"""A host of another package, `tower_parts`: found by what it says or by an entry point, and attached to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from tower_parts import Tower, TowerHost

import vldebias
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts import HOSTS, Host, register_host, resolve
from vldebias.prompts import PromptSet

PROMPTS = ["a photo of a doctor", "a photo of a male nurse", "a photo of a chef"]


def test_it_is_attached_to_in_three_states_and_leaves_no_trace(gender: PromptSet) -> None:
    register_host(TowerHost)

    class Finer(Tower):  # by the library of its base
        pass

    model = Finer()
    bare = model.encode(PROMPTS)
    assert isinstance(resolve(model), TowerHost)
    attachment = vldebias.debias(model, gender)
    expected = attachment.projections["joint"](bare)
    expected[1] = bare[1]  # states it
    torch.testing.assert_close(model.encode(PROMPTS), expected)
    assert not torch.equal(expected, bare)
    with attachment.disabled():
        assert torch.equal(model.encode(PROMPTS), bare)
    attachment.remove()
    assert torch.equal(model.encode(PROMPTS), bare)
    assert vars(model) == {}
    assert vldebias.attachment_of(model) is None


def test_an_entry_point_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "acme-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[vldebias.hosts]\ntower_parts = tower_parts:TowerHost\n")
    with pytest.raises(UnsupportedHostError, match=r"no model of open_clip, transformers or diffusers\.\n"):
        resolve(Tower())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(HOSTS, "_searched", False)
    assert isinstance(resolve(Tower()), TowerHost)
    with pytest.raises(UnsupportedHostError, match=r"transformers, diffusers or tower_parts\.\n"):
        resolve(nn.Linear(2, 2))


@pytest.mark.parametrize("given", [nn.Linear, Host, "acme", type("Mine", (Host,), {"library": "open_clip"})])
def test_what_is_no_host_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"expected a class that derives from|taken"):
        register_host(given)
