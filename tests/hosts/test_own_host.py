"""A host of another package, in one file: its models are found, attached to in three states, and left as they were."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vldebias
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts import HOSTS, Host, register_host, resolve
from vldebias.hosts.open_clip import OpenClipHost

ACME = """
import torch
from torch.nn.functional import normalize

from vldebias.errors import UnsupportedHostError
from vldebias.hosts import Host
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hosts.seam import Installed, MethodSeam, reading


class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = torch.nn.Linear(26, 8)

    def embed(self, prompts):
        return self.head(torch.tensor([[p.count(chr(97 + i)) for i in range(26)] for p in prompts]).float())


class Seam(MethodSeam):
    def __call__(self, prompts):
        return self.project("joint", self.original(prompts), lambda: prompts)


class AcmeHost(Host):
    library, name, roles, held = "acme", "Acme", ("joint",), ("model",)

    def __init__(self, model):
        self.model, self.exclusive_modules = model, (model,)

    def read(self, prompts, role):
        with reading(self.model):
            rows = normalize(self.model.embed(prompts).double(), dim=-1)
        return {(role, prompt): row for prompt, row in zip(prompts, rows)}

    def space(self, role):
        return "acme.joint"

    def fingerprint(self):
        return weights_fingerprint(self.model)

    def install(self, apply):
        seam = Seam(self.name, apply, self.model, "embed")
        seam.put_on()
        return Installed([seam])

    def merge(self, edits, strength):
        raise UnsupportedHostError("Acme cannot merge")
"""
PROMPTS = ["a photo of a doctor", "a photo of a male nurse", "a photo of a chef"]


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package beside this one, which names no host."""
    (tmp_path / "acme.py").write_text(ACME)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(HOSTS, "_items", dict(HOSTS._all()))
    monkeypatch.delitem(sys.modules, "acme", raising=False)
    yield importlib.import_module("acme")
    sys.modules.pop("acme", None)


@torch.no_grad()
def test_it_is_attached_to_in_three_states_and_leaves_no_trace(acme: Any) -> None:
    register_host(acme.AcmeHost)

    class Finer(acme.Tower):  # by the library of its base
        pass

    model = Finer()
    before = dict(vars(model))
    bare: Tensor = model.embed(PROMPTS)
    assert isinstance(resolve(model), acme.AcmeHost)
    attachment = vldebias.debias(model, "gender")
    expected = attachment.projections["joint"](bare)
    expected[1] = bare[1]  # states it
    torch.testing.assert_close(model.embed(PROMPTS), expected)
    assert not torch.equal(expected, bare)
    with attachment.disabled():
        assert torch.equal(model.embed(PROMPTS), bare)
    attachment.remove()
    assert torch.equal(model.embed(PROMPTS), bare)
    assert vars(model) == before
    assert vldebias.attachment_of(model) is None


def test_an_entry_point_names_it(acme: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "acme-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[vldebias.hosts]\nacme = acme:AcmeHost\n")
    with pytest.raises(UnsupportedHostError, match=r"no model of open_clip, transformers or diffusers\.\n"):
        resolve(acme.Tower())
    monkeypatch.setattr(HOSTS, "_searched", False)
    assert isinstance(resolve(acme.Tower()), acme.AcmeHost)
    with pytest.raises(UnsupportedHostError, match=r"no model of open_clip, transformers, diffusers or acme\.\n"):
        resolve(nn.Linear(2, 2))


@pytest.mark.parametrize("given", [nn.Linear, Host, "acme", None])
def test_what_is_no_host_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInputError, match="expected a class that derives from"):
        register_host(given)


def test_a_library_has_one_host() -> None:
    assert register_host(OpenClipHost) is OpenClipHost
    with pytest.raises(InvalidInputError, match="host 'open_clip': there is one of this name"):
        register_host(type("Mine", (Host,), {"library": "open_clip"}))
