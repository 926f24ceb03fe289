"""Projections on disk and on a hub that is a folder: bit-exact, complete, and closed to anything else."""

import base64
import json
import math
import multiprocessing
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import vldebias
from tests.refusals import refused
from vldebias import edit_folder
from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.methods.rivals.edits import TwoTowers
from vldebias.projection import CalibratedProjection
from vldebias.provenance import Fingerprint, Provenance

FILES = {"projection.safetensors", "config.json", "README.md"}


def fitted(lam: float | list[float] = 1000.0) -> CalibratedProjection:
    generator = torch.Generator().manual_seed(0)
    pairs = [torch.randn(4, 2, 12, generator=generator) for _ in range(2)]
    projection = CalibratedProjection.fit(pairs, torch.randn(3, 12, generator=generator), lam)
    return projection.stamped(
        space="open_clip.joint",
        model_id="ViT-B-32/openai",
        fingerprint=Fingerprint("ab12", (1.0, 2.5), (0.25, -3.0)),
        image_fingerprint=Fingerprint("cd34", (1.5,), (0.75,)),
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
    assert loaded.provenance == saved.provenance
    assert loaded.spurious_rank == saved.spurious_rank == 3
    z = torch.randn(3, 12)
    assert torch.equal(loaded(z), saved(z))


class Shift(Edit):
    """Of another package, and no dataclass: nothing looks at it when it is made."""

    kind = "test-shift"

    def __init__(self, by: torch.Tensor, provenance: Provenance) -> None:
        self.by, self.provenance = by, provenance

    dim = property(lambda self: len(self.by))

    def __call__(self, z: torch.Tensor, strength: float = 1.0, rows: object = None) -> torch.Tensor:
        return z + strength * self.by.to(z)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"by": self.by}

    @classmethod
    def build(cls, tensors: Mapping[str, torch.Tensor], settings: object, provenance: Provenance) -> "Shift":
        return cls(tensors["by"], provenance)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused(bad: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When made, when saved, and when loaded from where somebody else wrote them."""
    left = fitted().left.clone()
    left[3, 1] = bad
    with pytest.raises(InvalidInputError, match=r"'left' \(12, \d+\) holds 1 NaN or infinite values"):
        replace(fitted(), left=left)
    shift = Shift(torch.tensor([bad, 1.0]), Provenance("shift"))
    with pytest.raises(InvalidInputError, match=r"'by' \(2,\) holds 1 NaN or infinite values"):
        shift.save_pretrained(tmp_path)
    assert not any(tmp_path.iterdir())
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(Shift, "check_tensors", lambda self: None)
        shift.save_pretrained(tmp_path)
    with pytest.raises(InvalidInputError, match=r"'by' \(2,\) holds 1 NaN or infinite values"):
        vldebias.load_edit(tmp_path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"images.right": (3, 2)}, r"images\.right: expected a tensor \(d, rank\) with d = 3, rank = 1, got \(3, 2\)$"),
        ({"texts.shift": (2,)}, r"texts\.shift: expected a tensor \(d\) with d = 3, got \(2,\)$"),
        ({"images.left": (4, 1)}, r"images\.left: expected a tensor \(d, rank\) with d = 3.*, got \(4, 1\)$"),
        ({"images.left": None}, r"images\.left: expected a tensor \(d, rank\).*, got None$"),
        ({"bias": (3,)}, r"^bias: not among the tensors texts\.left, texts\.right, texts\.shift, images\.left"),
        (dict.fromkeys(("images.left", "images.right", "images.shift")), ""),
    ],
)
def test_axes_have_one_size_in_a_part_and_the_width_is_that_of_all(change: dict, text: str) -> None:
    """The ranks of two towers differ, their width does not; a part may be left out, a tensor of it may not."""
    shapes = {"texts.left": (3, 2), "texts.right": (3, 2), "texts.shift": (3,)}
    shapes |= {"images.left": (3, 1), "images.right": (3, 1), "images.shift": (3,)} | change
    tensors = {name: torch.ones(shape) for name, shape in shapes.items() if shape is not None}
    if text:
        with pytest.raises(InvalidInputError, match=text):
            TwoTowers.build(tensors, {}, Provenance("both"))
    else:
        edit = TwoTowers.build(tensors, {}, Provenance("both"))
        assert (edit.images, edit.dim, edit.tensors().keys()) == (None, 3, tensors.keys())


def test_what_is_written(tmp_path: Path) -> None:
    fitted().save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (config["dim"], config["rank"], config["format"]) == (12, 11, 2)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n")
    assert "library_name: vldebias" in card
    assert "measure before and after" in card


def test_nothing_in_the_package_unpickles() -> None:
    root = Path(vldebias.__file__).parent
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

    monkeypatch.setattr(huggingface_hub, "HfApi", FolderHub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
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

    monkeypatch.setattr(huggingface_hub, "snapshot_download", missing)
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
        ({"lam": float("nan")}, "got the number NaN"),
        ({"lam": "1000"}, "lam"),
        ({"method": ""}, "method"),
        ({"dim": "12"}, "dim"),
        ({"rank": -1}, "rank"),
        ({"lam": math.inf}, "got the number Infinity"),
        ({"format": 3}, "format"),
        ({"sha256": None}, "sha256"),
        ({"extra": 1}, "extra"),
        ({"stated_words": [1]}, "stated_words"),
        ({"fingerprint": {"norms": [1.0]}}, "fingerprint"),
        ({"space": 3}, "space"),
        ("", "expected JSON"),
        ("{", "expected JSON"),
        ("null", "object"),
        ('{"dim": 12}', "lam"),
    ],
)
def test_a_config_that_is_none(folder: Path, change: dict | str, text: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(change if isinstance(change, str) else json.dumps({**config, **change}))
    with pytest.raises(InvalidInputError, match=rf"config.json: not the config of a projection: (?s:.*){text}"):
        CalibratedProjection.from_pretrained(folder)


def test_an_edit_of_another_kind_is_refused_and_the_kind_that_fits_is_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"kind": "shares"}
    tensors = load_file(folder / "projection.safetensors")
    config["sha256"] = edit_folder._digest(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        InvalidInputError, match=r"holds an edit of kind 'shares'; expected projection; vldebias\.load_"
    ):
        CalibratedProjection.from_pretrained(folder)


@refused(
    ("config.json", r"config.json: missing; expected a folder written by CalibratedProjection.save_pretrained"),
    ("projection.safetensors", r"projection.safetensors: unreadable .*; save the projection again"),
)
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    CalibratedProjection.from_pretrained(folder)


@pytest.mark.parametrize(
    "damage", [lambda _: b"", lambda _: b"\x80\x04K\x01.", lambda _: b"\xff" * 64, lambda whole: whole[:-8]]
)
def test_factors_that_are_no_safetensors(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    path = folder / "projection.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInputError, match=r"projection\.safetensors: unreadable"):
        CalibratedProjection.from_pretrained(folder)


def tamper(folder: Path, damage: Callable[[dict], dict]) -> None:
    path = folder / "projection.safetensors"
    with safe_open(path, "pt") as file:
        header = file.metadata()
    save_file(damage(load_file(path)), path, header)


@pytest.mark.parametrize("change", [{"bias": torch.zeros(1)}, {"left": torch.ones(12, 11).double()}])
def test_tampered_factors(folder: Path, change: dict[str, torch.Tensor]) -> None:
    tamper(folder, lambda factors: factors | change)
    with pytest.raises(InvalidInputError, match=r"projection.safetensors: damaged: its content has not the"):
        CalibratedProjection.from_pretrained(folder)


# --- folders of the first format, which has neither kind nor digest

OLD = {
    "projection.safetensors": """
mAAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJmb3JtYXQiOiJwdCJ9LCJsZWZ0Ijp7ImR0eXBlIjoiRjY0Iiwic2hhcGUiOlszLDJdLCJkYXRhX29mZnNl
dHMiOlswLDQ4XX0sInJpZ2h0Ijp7ImR0eXBlIjoiRjY0Iiwic2hhcGUiOlszLDJdLCJkYXRhX29mZnNldHMiOls0OCw5Nl19fQAAAAAAAAAATI6RnseM
5T8AAAAAAAAAAEyOkZ7HjOW/AAAAAAAA8D8AAAAAAAAAAAAAAAAAAAAAzTt/Zp6g5j8AAAAAAAAAAMw7f2aeoOa/AAAAAAAA8D8AAAAAAAAAAA==
""",
    "config.json": """{"dim": 3, "fingerprint": {"norms": [1.0], "structure": "ab", "waves": [0.5]}, "format": 1,
"image_fingerprint": null, "lam": 10.0, "method": "orth-cali", "model_id": "m", "prompts": "gender",
"prompts_hash": "0123", "rank": 2, "space": "open_clip.joint", "stated_words": ["man"], "vldebias_version": "0.1.0"}""",
}
"""As the first edition wrote it, of one pair (e1, e2), the spurious e3 and lam = 10."""


@pytest.fixture
def old_folder(tmp_path: Path) -> Path:
    (tmp_path / "projection.safetensors").write_bytes(base64.b64decode(OLD["projection.safetensors"]))
    (tmp_path / "config.json").write_text(OLD["config.json"])
    return tmp_path


def test_an_old_folder_is_read(old_folder: Path, tmp_path: Path) -> None:
    with pytest.warns(VldebiasWarning, match=r"is of the first edition and has no digest.* write it again"):
        loaded = CalibratedProjection.from_pretrained(old_folder)
    axes = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(loaded.matrix(), CalibratedProjection.fit(axes[None, :2], axes[2:], 10.0).matrix())
    expected = Provenance(
        "orth-cali",
        10.0,
        space="open_clip.joint",
        model_id="m",
        fingerprint=Fingerprint("ab", (1.0,), (0.5,)),
        prompts="gender",
        prompts_hash="0123",
        stated_words=("man",),
    )
    assert loaded.provenance == expected
    again = vldebias.load_edit(loaded.save_pretrained(tmp_path / "new"))
    assert again.provenance == expected
    assert torch.equal(again.matrix(), loaded.matrix())
    (old_folder / "config.json").write_text(OLD["config.json"].replace("orth-cali", "cali+equalise"))
    with pytest.warns(VldebiasWarning, match="first edition"):
        assert CalibratedProjection.from_pretrained(old_folder).provenance.uses_images


def test_a_new_folder_that_calls_itself_old_is_held_to_its_digest(tmp_path: Path) -> None:
    """A config that lost its digest would let damaged factors pass for those of the first edition."""
    saved = fitted()
    saved.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("sha256", "kind", "settings", "choice", "labels", "max_loss", "uses_images"):
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config | {"format": 1, "lam": 10.0}))
    with pytest.warns(VldebiasWarning, match=r"config.json: describes another projection .* or the file was edited"):
        assert CalibratedProjection.from_pretrained(tmp_path).provenance == saved.provenance
    content = bytearray((tmp_path / "projection.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "projection.safetensors").write_bytes(content)
    with pytest.raises(InvalidInputError, match="damaged"):
        CalibratedProjection.from_pretrained(tmp_path)


@pytest.mark.parametrize("change", [{"rank": 0}, {"rank": None}, {"method": "auto: none"}])
def test_a_rank_that_does_not_go_with_the_method(old_folder: Path, change: dict) -> None:
    (old_folder / "config.json").write_text(json.dumps(json.loads(OLD["config.json"]) | change))
    with pytest.raises(InvalidInputError, match=r"rank: expected"):
        CalibratedProjection.from_pretrained(old_folder)


@pytest.mark.filterwarnings("ignore:.*first edition:vldebias.errors.VldebiasWarning")
@refused(
    (lambda f: {"right": f["right"]}, r"expected factors {'left': \(3, 2\), 'right': \(3, 2\)} as .*, got {'right'"),
    (lambda f: f | {"bias": torch.zeros(1)}, r"expected factors .* got .*'bias': \(1,\)"),
    (lambda f: f | {"right": f["right"].T.contiguous()}, r"expected factors .* got .*'right': \(2, 3\)"),
    (lambda f: f | {"right": f["right"] * torch.nan}, r"'right' \(3, 2\) holds 6 NaN .*; fit and save the projection"),
    (lambda f: f | {"left": f["left"].half()}, r"left: expected torch.float64, got torch.float16; fit and save the"),
)
def test_tampered_factors_of_an_old_folder(old_folder: Path, damage: Callable[[dict], dict]) -> None:
    tamper(old_folder, damage)
    CalibratedProjection.from_pretrained(old_folder)


# --- kills and flipped bits


def save_forever(folder: Path, edits: list[CalibratedProjection]) -> None:
    while True:
        for edit in edits:
            edit.save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children start at once where processes fork")
def test_a_killed_save_leaves_the_old_edit_or_the_new(tmp_path: Path) -> None:
    """120 kills between two projections that save over each other: one of them is there afterwards, whole."""
    edits = [fitted(lam).stamped(model_id=f"lam {lam}") for lam in (1.0, 1000.0)]
    edits[0].save_pretrained(tmp_path)
    chance, context, interrupted = random.Random(0), multiprocessing.get_context("fork"), 0
    seen = set()
    for _ in range(120):
        writer = context.Process(target=save_forever, args=(tmp_path, edits))
        writer.start()
        time.sleep(chance.uniform(0.002, 0.03))
        writer.kill()
        writer.join()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = CalibratedProjection.from_pretrained(tmp_path)
        (whole,) = [edit for edit in edits if edit.provenance == loaded.provenance]
        assert torch.equal(loaded.left, whole.left)
        assert torch.equal(loaded.right, whole.right)
        assert all("a save was interrupted" in str(one.message) for one in caught)
        interrupted += bool(caught)
        seen.add(loaded.lam)
    assert seen == {1.0, 1000.0}
    assert interrupted, "no kill came between the two files: the test tries nothing"


def one_bit(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


@pytest.mark.parametrize("name", ["projection.safetensors", "config.json"])
def test_a_flipped_bit_never_gives_another_edit(folder: Path, name: str) -> None:
    """Of every byte of the text and of each number one bit: refused, or with a warning what was saved, or that."""
    path, saved = folder / name, fitted()
    data, chance = (folder / name).read_bytes(), random.Random(0)
    text = len(data) - 8 * (saved.left.numel() + saved.right.numel()) if name.endswith(".safetensors") else len(data)
    places = [*range(0, text, 2), *(place + chance.randrange(8) for place in range(text, len(data), 8))]
    refused = 0
    for place in places:
        path.write_bytes(one_bit(data, place, chance.randrange(8)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VldebiasWarning)
            try:
                loaded = vldebias.load_edit(folder)
            except InvalidInputError:
                refused += 1
                continue
        assert loaded.provenance == saved.provenance, place
        assert torch.equal(loaded.left, saved.left), place
        assert torch.equal(loaded.right, saved.right), place
    assert refused > len(places) // (2 if name == "projection.safetensors" else 20)
