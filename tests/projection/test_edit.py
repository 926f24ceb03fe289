"""Test that saved and uploaded edits are bit-exact, complete and safe to load."""

import json
import math
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
import yaml
from huggingface_hub import constants
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import vldebias
from tests.formats import cross_attention
from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.methods import load_edit
from vldebias.projection import edit as edit_module
from vldebias.projection.card import model_card
from vldebias.projection.edit import Edit, Rowwise, _digest
from vldebias.projection.fingerprint import Fingerprint
from vldebias.projection.projection import CalibratedProjection
from vldebias.projection.provenance import Choice, Provenance

FILES = {"projection.safetensors", "README.md"}


def fitted(lam: float | list[float] = 1000.0) -> CalibratedProjection:
    generator = torch.Generator().manual_seed(0)
    pairs = [torch.randn(4, 2, 12, generator=generator) for _ in range(2)]
    projection = CalibratedProjection(lam=lam).fit(pairs, torch.randn(3, 12, generator=generator))
    return projection.with_provenance(
        space="open_clip.text",
        model_id="ViT-B-32/openai",
        fingerprint=Fingerprint(structure="ab12", tensors=((1.0, 0.25), (2.5, -3.0))),
        image_fingerprint=Fingerprint(structure="cd34", tensors=((1.5, 0.75),)),
        attribute="gender+race",
        attribute_hash="0123+4567",
        stated_words=("man", "woman", "Müller"),
        max_loss=0.02,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return SAVED.save_pretrained(tmp_path / "saved")


@pytest.mark.parametrize("lam", [1000.0, [500.0, 0.125]])
def test_save_and_load_round_trip_is_exact(tmp_path: Path, lam: float | list[float]) -> None:
    saved = fitted(lam)
    assert saved.save_pretrained(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == FILES
    loaded = CalibratedProjection.from_pretrained(tmp_path / "a" / "b")
    assert torch.equal(loaded.left, saved.left)
    assert torch.equal(loaded.right, saved.right)
    assert loaded.provenance == saved.provenance
    assert loaded.spurious_rank == saved.spurious_rank == 3
    z = torch.randn(3, 12)
    assert torch.equal(loaded(z), saved(z))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_values_are_rejected(
    bad: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Non-finite values are rejected on creation, on saving, and when a file is loaded."""
    edit = fitted()
    edit.left[3, 1] = bad
    for use in (lambda: replace(edit, lam=1.0), lambda: edit.save_pretrained(tmp_path)):
        with pytest.raises(InvalidInputError, match=r"'left' \(12, \d+\) has 1 NaN or infinite"):
            use()
    assert not any(tmp_path.iterdir())
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(Edit, "__post_init__", lambda self: setattr(self, "dim", 12))
        edit.save_pretrained(tmp_path)
    with pytest.raises(InvalidInputError, match=r"'left' \(12, \d+\) has 1 NaN or infinite values"):
        load_edit(tmp_path)


@dataclass(frozen=True, eq=False, repr=False)
class Move(Edit):
    kind = "test-move"
    axes: ClassVar = {"left": "d rank", "right": "d rank", "by": "d"}

    left: torch.Tensor
    right: torch.Tensor
    by: torch.Tensor
    provenance: Provenance

    def __call__(self, z: torch.Tensor, strength: float = 1.0) -> torch.Tensor:
        raise NotImplementedError


@refused(
    ({"right": torch.ones(3, 1)}, r"^right: .* \(d, rank\).*'d': 3, 'rank': 2.* \(3, 1\)"),
    ({"by": torch.ones(2)}, r"^by: .* \(d\).*'d': 3.* \(2,\)"),
    ({"by": torch.ones(3, 1)}, r"^by: .* \(3, 1\)"),
)
def test_axes_with_the_same_name_must_have_the_same_size(change: dict[str, Any]) -> None:
    edit = Move(torch.ones(3, 2), torch.ones(3, 2), torch.ones(3), Provenance("move"))
    assert edit.dim == 3
    replace(edit, **change)


def test_projection_dtype_is_float64() -> None:
    with pytest.raises(InvalidInputError, match=r"^left: .* of torch.float64.* got torch.float32"):
        replace(fitted(), left=fitted().left.float())


def test_nothing_in_the_package_uses_pickle() -> None:
    root = Path(vldebias.__file__).parent
    banned = (
        "import pickle",
        "torch.load(",
        "allow_pickle=True",
        "import dill",
        "import joblib",
        "pickle_load",
    )
    texts = {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    uses = []
    for path, text in texts.items():
        uses += [f"{path.relative_to(root)}: {word}" for word in banned if word in text]
    assert uses == ["training/loop.py: torch.load("]  # a run loads its own state with weights_only
    (call,) = re.findall(r"torch\.load\([^\n]*", texts[root / "training/loop.py"])
    assert "weights_only=True" in call


NUMBERS = tuple((100.0, 10.0) for _ in range(20))
SAVED = fitted()
PRINT = Fingerprint(structure="a", tensors=NUMBERS, adapters=2.0, texts=((3.0, 4.0), (1.0, 0.0)))


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"structure": "b"}, False),
        ({"tensors": NUMBERS[1:]}, False),
        ({"tensors": ((100.4, 10.4),) * 20}, True),  # bfloat16
        ({"tensors": ((100.6, 10.0),) * 20}, False),
        ({"tensors": ((100.0, 10.6),) * 20}, False),
        ({"tensors": (*NUMBERS[1:], (101.4, 10.0))}, True),
        ({"tensors": (*NUMBERS[1:], (101.6, 10.0))}, False),  # a single tensor
        ({"texts": ((3.0, 4.19), (1.0, 0.0))}, True),
        ({"texts": ((3.0, 4.0), (1.0, 0.05))}, False),  # a different activation or tokenizer
        ({"texts": ()}, True),
        # Adapters change the text features.
        ({"texts": ((3.0, 4.0), (1.0, 0.05)), "adapters": 3.0}, True),
    ],
)
def test_fingerprints_match_only_for_the_same_weights(
    change: dict[str, Any], is_same: bool
) -> None:
    changed = PRINT.model_copy(update=change)
    assert (PRINT.matches(changed), changed.matches(PRINT)) == (is_same, is_same)
    assert PRINT.same_adapters(changed) == (changed.adapters == 2.0)
    assert len({PRINT, changed}) == 1 + bool(change)
    assert PRINT.matches(None)
    assert PRINT.same_adapters(None)
    assert Fingerprint.model_validate_json(json.dumps(changed.to_dict())) == changed
    bare = changed.model_copy(update={"adapters": 0.0, "texts": ()})
    assert bare.to_dict().keys() == {"structure", "tensors"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[dict[str, Any]]]:
    """Return a folder that stands in for the hub, with one subfolder per repository, and the
    recorded calls."""
    root = tmp_path / "hub"
    calls = list[dict[str, Any]]()

    def create(repo_id: str, **options: Any) -> Any:
        calls.append({"repo_id": repo_id, **options})
        return type("Repo", (), {"repo_id": repo_id})

    def upload(*, repo_id: str, folder_path: str, commit_message: str) -> str:
        shutil.copytree(folder_path, root / repo_id)
        return f"https://hub.example/{repo_id}/commit/1"

    def download(repo_id: str, **options: Any) -> str:
        calls.append({"repo_id": repo_id, **options})
        return str(root / repo_id)

    monkeypatch.chdir(tmp_path)
    for name, function in {
        "create_repo": create,
        "upload_folder": upload,
        "snapshot_download": download,
    }.items():
        monkeypatch.setattr(huggingface_hub, name, function)
    return root, calls


def test_an_edit_can_be_pushed_and_pulled(hub: tuple[Path, list[dict[str, Any]]]) -> None:
    root, calls = hub
    address = fitted().push_to_hub("someone/gender", private=True)
    assert address.endswith("someone/gender/commit/1")
    loaded = CalibratedProjection.from_pretrained("someone/gender", revision="v1")
    assert torch.equal(loaded.matrix(), fitted().matrix())
    repository = {"repo_id": "someone/gender"}
    pulled = {"revision": "v1", "allow_patterns": ["*projection.safetensors"]}
    assert calls == [repository | {"private": True, "exist_ok": True}, repository | pulled]
    assert {path.name for path in (root / "someone/gender").iterdir()} == FILES
    card = (root / "someone/gender/README.md").read_text()
    assert card.startswith("---\n")
    assert all(
        text in card
        for text in ("library_name: vldebias", "ViT-B-32/openai", "measure before and after")
    )


def test_the_card_of_an_edit_without_an_effect_says_so() -> None:
    card = CalibratedProjection.identity(8).card()
    assert "changes nothing and reduces no bias" in card


@pytest.mark.parametrize(
    "name",
    ["a\n\n# Heading", "<img src=x onerror=alert(1)>", "[click](https://evil.example)", "a ` b"],
)
def test_names_are_escaped_in_the_model_card(name: str) -> None:
    origin = replace(fitted().provenance, attribute=name, model_id=name, method=name)
    card = model_card(origin, "text", "", [name])
    markdown = pytest.importorskip("markdown", reason="pip install 'vldebias[docs]'")
    _, _, body = card.removeprefix("---\n").partition("\n---\n")
    html = markdown.markdown(body)
    assert html.count("<h1>") == 1
    assert re.sub(r"</?(h1|p|pre|code)>", "", html).count("<") == 0


def test_the_hub_can_list_a_card_under_its_model() -> None:
    origin = replace(fitted().provenance, model_id="openai/clip-vit-base-patch32")
    header = yaml.safe_load(model_card(origin, "text", "").split("---")[1])
    assert header["base_model"] == "openai/clip-vit-base-patch32"
    assert header["pipeline_tag"] == "zero-shot-image-classification"
    assert header["license"] == "other"
    assert header["license_link"].endswith("openai/clip-vit-base-patch32")
    denoiser = yaml.safe_load(model_card(origin, "denoiser", "").split("---")[1])
    assert denoiser["pipeline_tag"] == "text-to-image"
    local = yaml.safe_load(
        model_card(replace(origin, model_id="a <b>"), "text", "").split("---")[1]
    )
    assert "base_model" not in local


@pytest.mark.usefixtures("hub")
def test_a_denied_upload_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, refusal in (
        (OSError("no access.\n\n(Request ID: 7)"), "no access; "),
        (OSError(), "OSError: ; "),
    ):
        monkeypatch.setattr(huggingface_hub, "create_repo", Mock(side_effect=error))
        with pytest.raises(InvalidInputError, match=f"someone/gender: not uploaded: {refusal}"):
            fitted().push_to_hub("someone/gender")


@refused(
    ({}, "edits: got an empty mapping; expected an edit"),
    ("my-edit", r"pass vldebias.load_edit\('my-edit'\)"),
)
def test_anything_but_edits_is_rejected_before_anything_is_uploaded(edits: Any) -> None:
    vldebias.push_to_hub(edits, "user/none")


@dataclass(frozen=True, eq=False, repr=False)
class Reversed(Rowwise):
    """Reverse rows."""

    kind: ClassVar[str] = "reversed"
    provenance: Provenance

    def _replacement(self, unit: torch.Tensor, image: bool) -> torch.Tensor:
        return -unit


def test_rows_keep_their_length_and_texts_are_unchanged_by_an_edit_of_images() -> None:
    edit = Reversed(Provenance("reversed"))
    object.__setattr__(edit, "dim", 4)
    rows = torch.arange(8.0).reshape(2, 4)
    torch.testing.assert_close(edit(rows), -rows)
    object.__setattr__(edit, "side", "image")
    assert torch.equal(edit(rows), rows)
    torch.testing.assert_close(edit.image(rows), -rows)


def test_edits_by_role_are_uploaded_together(hub: tuple[Path, list[dict[str, Any]]]) -> None:
    edits = {"sequence": fitted(1.0), "pooled": fitted(2.0)}
    vldebias.push_to_hub(edits, "user/both")
    assert "Roles: `sequence`, `pooled`." in (hub[0] / "user/both/README.md").read_text()
    back = load_edit("user/both")
    assert {role: edit.provenance for role, edit in back.items()} == {
        r: edit.provenance for r, edit in edits.items()
    }


def test_offline_use_and_unknown_repositories_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert constants.HF_HUB_OFFLINE, "tests must never access the network"
    for name in ("no-one/nothing", "not a name", "a/b/c", "x" * 5000):
        with pytest.raises(InvalidInputError, match=f"{name[:200]}: neither a folder nor a repo"):
            CalibratedProjection.from_pretrained(name)
    for path in ("/nowhere/at/all", "./nothing"):
        with pytest.raises(InvalidInputError, match=f"{path}: no such folder; check the path"):
            CalibratedProjection.from_pretrained(path)


def tamper(folder: Path, change: dict[str, Any], tensors: dict[str, Any], *, signed: bool) -> None:
    """Change a saved edit; `signed` updates the digest to match."""
    path = folder / "projection.safetensors"
    with safe_open(path, "pt") as file:
        header = file.metadata()
    plain = json.loads(header["config"])
    plain |= {"provenance": plain["provenance"] | change.pop("provenance", {})} | change
    header["config"] = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))  # unchanged
    content = load_file(path) | tensors
    if signed:
        header["sha256"] = _digest(header["config"], content)
    save_file(content, path, header)


@refused(
    *(({"provenance": {"lam": lam}}, {}, True, "lam") for lam in (-1.0, math.inf)),
    ({"provenance": {"extra": 1}}, {}, True, "extra"),
    ({"provenance": {"fingerprint": {"structure": "a", "tensors": []}}}, {}, True, "fingerprint"),
    ({"format_version": 3}, {}, True, "has format 3; .*up to 1: upgrade"),
    ({"settings": {"spurious_rank": "x"}}, {}, True, "integer"),
    ({"provenance": {"stated_words": ["a" * 1000]}}, {}, True, "stated_words"),
    ({"provenance": {"attribute": "a" * 1_000_000}}, {}, True, "config of 1,.* at most 1,000,000"),
    ({}, {"left": SAVED.left * 1e300}, True, r"'left'.* values up to .*e\+"),
    ({}, {"right": -1e30 * torch.ones_like(SAVED.right)}, True, "'right'.* up to 1e\\+30"),
    ({"kind": "target-shares"}, {}, True, "expected projection. search with vldebias.rerank"),
    ({}, {"bias": torch.zeros(1)}, True, "left, right, got .*bias"),
    ({}, {"bias": torch.zeros(1)}, False, "damaged"),
    ({}, {"left": torch.ones(12, 11).double()}, False, "damaged"),
    ({}, {"left": SAVED.left.reshape(-1, 12)}, False, "damaged"),
)
def test_a_folder_without_a_projection_is_rejected(
    folder: Path, change: dict[str, Any], tensors: dict[str, torch.Tensor], signed: bool
) -> None:
    tamper(folder, change, tensors, signed=signed)
    CalibratedProjection.from_pretrained(folder)


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "pickle": lambda content: b"\x80\x04K\x01.",
    "length beyond the file": lambda content: b"\xff" * 64,
    "cut off": lambda content: content[:-8],
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_files_that_are_not_safetensors_are_rejected(folder: Path, damage: str) -> None:
    path = folder / "projection.safetensors"
    path.write_bytes(DAMAGED[damage](path.read_bytes()))
    with pytest.raises(InvalidInputError, match=r"projection\.safetensors: missing or unreadable"):
        load_edit(folder)


def test_identical_edits_are_saved_as_identical_files(tmp_path: Path) -> None:
    edit = fitted(1000.0)
    contents = set()
    for number in range(8):
        folder = edit.save_pretrained(tmp_path / str(number))
        contents.add((folder / "projection.safetensors").read_bytes())
    (content,) = contents
    assert json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]


def test_a_flipped_bit_is_always_detected(folder: Path) -> None:
    """Flip one bit in every second byte of the text and one bit in every number."""
    path = folder / "projection.safetensors"
    saved = fitted()
    data = path.read_bytes()
    chance = random.Random(0)
    text = len(data) - 8 * (saved.left.numel() + saved.right.numel())
    places = [
        *range(0, text, 2),
        *(place + chance.randrange(8) for place in range(text, len(data), 8)),
    ]
    refused = 0
    for place in places:
        flipped = bytes([data[place] ^ (1 << chance.randrange(8))])
        path.write_bytes(data[:place] + flipped + data[place + 1 :])
        try:
            loaded: Any = load_edit(folder)
        except InvalidInputError:
            refused += 1
            continue
        assert loaded.provenance == saved.provenance, place
        assert torch.equal(loaded.left, saved.left), place
        assert torch.equal(loaded.right, saved.right), place
    assert refused > len(places) // 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_fingerprint_with_unusable_numbers_matches_nothing(bad: float) -> None:
    weights = ((1.0, 0.5), (2.0, -1.0))
    plain = Fingerprint(structure="a", tensors=weights, texts=((1.0, 2.0),) * 3)
    assert plain.matches(plain)
    damaged = plain.model_copy(update={"texts": ((1.0, bad),) * 3})
    assert not damaged.same_texts(plain)
    assert not plain.same_texts(damaged)
    assert not damaged.matches(plain)
    damaged = plain.model_copy(update={"tensors": ((1.0, bad), (2.0, -1.0))})
    assert not damaged.matches(plain)
    assert not plain.matches(damaged)


@pytest.mark.parametrize("longer", [0, 1])
def test_a_config_of_the_greatest_length_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longer: int
) -> None:
    fitted().save_pretrained(tmp_path)
    with safe_open(tmp_path / "projection.safetensors", framework="pt") as file:
        length = len(file.metadata()["config"])
    monkeypatch.setattr(edit_module, "_LONGEST_CONFIG", length - longer)
    if longer:
        with pytest.raises(InvalidInputError, match="characters; expected at most"):
            load_edit(tmp_path)
    else:
        assert isinstance(load_edit(tmp_path), Edit)


def test_only_readouts_that_separate_held_out_prompts_are_used() -> None:
    edit = cross_attention()
    blind = replace(edit, auroc={"stated": {"mid": 0.6}, "person": {"mid": 0.6}})
    assert edit.can_read
    assert not blind.can_read
    assert edit.reading(torch.tensor([1.0, 0.0])) == (True, "female")
    assert edit.reading(torch.zeros(2)) == (False, None)
    assert blind.reading(torch.zeros(2)) == (True, None)  # a person, to be on the safe side


def test_an_edit_of_text_pairs_is_not_compared_with_image_encoders() -> None:
    assert not fitted().provenance.uses_images


def test_the_repr_of_a_provenance_leaves_out_what_the_default_decided() -> None:
    choice = Choice(attribute="gender", method="cali", lam=1.0, reason="a test")
    decided = replace(fitted().provenance, choice=choice, declined=(choice,))
    assert repr(decided) == repr(fitted().provenance)


def test_words_in_the_file_of_a_cross_attention_edit_are_bounded(tmp_path: Path) -> None:
    cross_attention().save_pretrained(tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    with safe_open(path, "pt") as file:
        settings = json.loads(file.metadata()["config"])["settings"]
    tamper(tmp_path, {"settings": settings | {"stated": ["a" * 1000]}}, {}, signed=True)
    with pytest.raises(InvalidInputError, match="at most 200 characters"):
        load_edit(tmp_path)
