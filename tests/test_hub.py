"""Projections on disk and on a hub that is a folder: bit-exact, complete, and closed to anything else."""

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, constants, hub_mixin
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors.torch import load_file, save_file

import vldebias.hub
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.projection import CalibratedProjection

FILES = {"projection.safetensors", "config.json", "README.md"}


def fitted(lam: float | list[float] = 1000.0) -> CalibratedProjection:
    generator = torch.Generator().manual_seed(0)
    pairs = [torch.randn(4, 2, 12, generator=generator) for _ in range(2)]
    projection = CalibratedProjection.fit(pairs, torch.randn(3, 12, generator=generator), lam)
    return replace(
        projection,
        space="open_clip.joint",
        model_id="ViT-B-32/openai",
        fingerprint={"structure": "ab12", "norms": [1.0, 2.5], "waves": [0.25, -3.0]},
        image_fingerprint={"structure": "cd34", "norms": [1.5], "waves": [0.75]},
        prompts="gender+race",
        prompts_hash="0123+4567",
        stated_words=("man", "woman", "Müller"),
    )


@pytest.mark.parametrize("lam", [1000.0, [500.0, 0.125]])
def test_round_trip_is_exact(tmp_path: Path, lam: float | list[float]) -> None:
    saved = fitted(lam)
    assert saved.save_pretrained(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    loaded = CalibratedProjection.from_pretrained(tmp_path / "a" / "b")
    assert torch.equal(loaded.left, saved.left)
    assert torch.equal(loaded.right, saved.right)
    assert loaded.left.dtype == torch.float64
    metadata = [f.name for f in fields(saved) if f.name not in ("left", "right", "_cast")]
    assert len(metadata) == 9
    for name in metadata:
        assert getattr(loaded, name) == getattr(saved, name), name
    z = torch.randn(3, 12)
    assert torch.equal(loaded(z), saved(z))


def test_round_trip_without_metadata_and_of_every_method(tmp_path: Path) -> None:
    pairs, spurious = torch.randn(2, 2, 6), torch.randn(2, 6)
    for k, arguments in enumerate([(pairs,), (None, spurious), (pairs, spurious)]):
        saved = CalibratedProjection.fit(*arguments)
        assert saved.left.is_contiguous(), "as it will be once loaded, or products differ in the last bit"
        assert saved.right.is_contiguous()
        saved.save_pretrained(tmp_path / str(k))
        loaded = CalibratedProjection.from_pretrained(str(tmp_path / str(k)))
        assert (loaded.method, loaded.fingerprint, loaded.stated_words) == (saved.method, None, ())
        assert torch.equal(loaded.matrix(), saved.matrix())


def test_saving_twice_replaces(tmp_path: Path) -> None:
    fitted().save_pretrained(tmp_path)
    other = CalibratedProjection.fit(torch.randn(2, 2, 6))
    other.save_pretrained(tmp_path)
    assert torch.equal(CalibratedProjection.from_pretrained(tmp_path).matrix(), other.matrix())


def test_what_is_written(tmp_path: Path) -> None:
    fitted().save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (config["dim"], config["rank"], config["format"]) == (12, 11, 1)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n")
    assert "library_name: vldebias" in card
    assert "measure before and after" in card


def test_nothing_in_the_package_unpickles() -> None:
    root = Path(vldebias.hub.__file__).parent
    banned = ("import pickle", "torch.load(", "allow_pickle=True", "import dill", "import joblib", "pickle_load")
    found = [
        f"{path.relative_to(root)}: {word}"
        for path in root.rglob("*.py")
        for word in banned
        if word in path.read_text(encoding="utf-8")
    ]
    assert found == []


# --- the hub, as a folder


class FolderHub(HfApi):
    """Stands in for the hub: repositories are folders, and calls are written down."""

    root: Path
    calls: list[tuple[str, dict]]

    def create_repo(self, repo_id: str, **options):
        self.calls.append(("create_repo", {"repo_id": repo_id, "token": self.token, **options}))
        return type("Repo", (), {"repo_id": repo_id})

    def upload_folder(self, *, repo_id: str, folder_path: Path, **options) -> str:
        self.calls.append(("upload_folder", {"repo_id": repo_id, **options}))
        shutil.copytree(folder_path, self.root / repo_id)
        return f"https://hub.example/{repo_id}/commit/1"


@pytest.fixture
def folder_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[FolderHub]:
    FolderHub.root, FolderHub.calls = tmp_path / "hub", []

    def download(repo_id: str, *, revision: str | None, token: str | None, allow_patterns: list[str]) -> str:
        FolderHub.calls.append(("download", {"repo_id": repo_id, "revision": revision, "token": token}))
        assert set(allow_patterns) == FILES - {"README.md"}
        return str(FolderHub.root / repo_id)

    monkeypatch.setattr(hub_mixin, "HfApi", FolderHub)
    monkeypatch.setattr(vldebias.hub, "snapshot_download", download)
    return FolderHub


def test_push_and_pull(folder_hub: type[FolderHub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved = fitted()
    url = saved.push_to_hub("someone/gender", private=True, token="hf_made_up")
    assert url == "https://hub.example/someone/gender/commit/1"
    assert {path.name for path in (folder_hub.root / "someone/gender").iterdir()} == FILES
    (_, created), (_, uploaded) = folder_hub.calls
    assert created == {"repo_id": "someone/gender", "token": "hf_made_up", "private": True, "exist_ok": True}
    assert uploaded["commit_message"].startswith("Upload orth-cali projection (vldebias ")
    loaded = CalibratedProjection.from_pretrained("someone/gender", revision="v1", token="hf_made_up")
    assert torch.equal(loaded.matrix(), saved.matrix())
    assert folder_hub.calls[-1][1] == {"repo_id": "someone/gender", "revision": "v1", "token": "hf_made_up"}


def test_a_folder_of_that_name_comes_first(
    folder_hub: type[FolderHub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fitted().save_pretrained("someone/gender")
    CalibratedProjection.from_pretrained("someone/gender")
    assert folder_hub.calls == []


def test_offline_and_unknown_repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert constants.HF_HUB_OFFLINE, "the tests must never reach the network"
    with pytest.raises(InvalidInputError, match="no-one/nothing: neither a folder nor a repository that can be read"):
        CalibratedProjection.from_pretrained("no-one/nothing")
    with pytest.raises(InvalidInputError, match="expected a folder written by save_pretrained or the name of a hub"):
        CalibratedProjection.from_pretrained("not a name")

    def missing(*_: object, **__: object) -> str:
        response = type("Response", (), {"headers": {}, "request": None, "status_code": 404, "text": ""})()
        raise RepositoryNotFoundError("404: no such repository", response=response)

    monkeypatch.setattr(vldebias.hub, "snapshot_download", missing)
    with pytest.raises(InvalidInputError, match="404: no such repository"):
        CalibratedProjection.from_pretrained("no-one/nothing")


@pytest.mark.parametrize("place", ["/nowhere/at/all", "./nothing", "a/b/c"])
def test_a_path_that_is_no_folder(place: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{place}: no such folder; expected one written by save_pretrained"):
        CalibratedProjection.from_pretrained(place)


# --- damaged folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fitted().save_pretrained(tmp_path / "saved")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lam": -1.0}, "lam"),
        ({"lam": float("nan")}, "lam"),
        ({"lam": "1000"}, "lam"),
        ({"method": "magic"}, "method"),
        ({"dim": "12"}, "dim"),
        ({"rank": 0}, "rank"),
        ({"format": 2}, "format"),
        ({"extra": 1}, "extra"),
        ({"stated_words": [1]}, "stated_words"),
        ({"fingerprint": {"norms": [1.0]}}, "fingerprint"),
        ({"space": 3}, "space"),
    ],
)
def test_a_config_that_is_none(folder: Path, change: dict, text: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(InvalidInputError, match=rf"config.json: not the config of a projection: (?s:.*){text}"):
        CalibratedProjection.from_pretrained(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"dim": 12}'])
def test_a_config_that_is_no_json_or_lacks_keys(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(InvalidInputError, match=r"config.json: not the config of a projection"):
        CalibratedProjection.from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", r"config.json: missing; expected a folder written by CalibratedProjection.save_pretrained"),
        ("projection.safetensors", r"projection.safetensors: unreadable .*; save the projection again"),
    ],
)
def test_a_missing_file(folder: Path, name: str, text: str) -> None:
    (folder / name).unlink()
    with pytest.raises(InvalidInputError, match=text):
        CalibratedProjection.from_pretrained(folder)


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"\xff" * 64])
def test_factors_that_are_no_safetensors(folder: Path, content: bytes) -> None:
    (folder / "projection.safetensors").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"projection\.safetensors: unreadable"):
        CalibratedProjection.from_pretrained(folder)


def test_truncated_factors(folder: Path) -> None:
    path = folder / "projection.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InvalidInputError, match=r"projection\.safetensors: unreadable"):
        CalibratedProjection.from_pretrained(folder)


def drop_left(factors: dict) -> None:
    del factors["left"]


def add_key(factors: dict) -> None:
    factors["bias"] = torch.zeros(1)


def narrow(factors: dict) -> None:
    factors["left"] = factors["left"][:, 1:].contiguous()


def transpose(factors: dict) -> None:
    factors["right"] = factors["right"].T.contiguous()


def nan(factors: dict) -> None:
    factors["right"][0, 0] = float("nan")


def halve(factors: dict) -> None:
    factors["left"] = factors["left"].half()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (drop_left, r"expected factors {'left': \(12, 11\), 'right': \(12, 11\)} as config.json says, got {'right'"),
        (add_key, r"expected factors .* got .*'bias': \(1,\)"),
        (narrow, r"expected factors .* got .*'left': \(12, 10\)"),
        (transpose, r"expected factors .* got .*'right': \(11, 12\)"),
        (nan, r"the factors hold NaN or infinite values; fit and save the projection again"),
        (halve, r"expected float64 factors, got \['torch.float16', 'torch.float64'\]"),
    ],
)
def test_tampered_factors(folder: Path, damage, text: str) -> None:
    path = folder / "projection.safetensors"
    factors = load_file(path)
    damage(factors)
    save_file(factors, path)
    with pytest.raises(VldebiasError, match=text):
        CalibratedProjection.from_pretrained(folder)
