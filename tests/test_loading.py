"""Hosts by name: local folders as transformers and diffusers write them, the miniature, clear errors."""

import shutil
from pathlib import Path

import pytest
import torch

import vldebias
from vldebias.errors import InvalidInputError
from vldebias.loading import load_host
from vldebias.miniature import load_pipeline, load_transformers_clip

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clip")
    for part in load_transformers_clip():
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pipeline_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    load_pipeline().save_pretrained(folder)
    return folder


def test_a_transformers_folder(clip_folder: Path) -> None:
    loaded = load_host(model=str(clip_folder))
    assert type(loaded.host).__name__ == "CLIPModel"
    assert not loaded.host.training
    with vldebias.debias(loaded.host, "gender", tokenizer=loaded.tokenizer) as attachment:
        assert attachment.projections["joint"].model_id == str(clip_folder)


def test_a_diffusers_folder(pipeline_folder: Path) -> None:
    loaded = load_host(pipeline=str(pipeline_folder))
    assert type(loaded.host).__name__ == "StableDiffusionPipeline"
    with vldebias.debias(loaded.host, "professions-gender") as attachment:
        assert list(attachment.projections) == ["sequence"]


@pytest.mark.parametrize(("option", "dtype"), [("model", torch.bfloat16), ("pipeline", torch.float32)])
def test_the_miniature(option: str, dtype: torch.dtype) -> None:
    loaded = load_host(**{option: "miniature"}, dtype=str(dtype).removeprefix("torch."))
    assert loaded.name == "miniature"
    assert (loaded.tokenizer is None) == (option == "pipeline")
    assert getattr(loaded.host, "unet", loaded.host).parameters().__next__().dtype == dtype


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot load .*offline use a local folder"):
        load_host(model=str(tmp_path))
    with pytest.raises(InvalidInputError, match="cannot load"):
        load_host(pipeline=str(tmp_path))


@pytest.mark.parametrize("option", ["model", "pipeline"])
def test_an_id_of_the_hub_that_cannot_be_had_is_told_at_once(option: str) -> None:
    """The tests run with HF_HUB_OFFLINE=1."""
    said = (
        r"cannot load 'nobody/nothing': there is no such folder, it is not in .*, and HF_HUB_OFFLINE is set; fetch it"
    )
    with pytest.raises(InvalidInputError, match=said + r".*`hf download nobody/nothing --local-dir DIR`"):
        load_host(**{option: "nobody/nothing"})


def test_what_the_cache_has_is_taken_from_it(
    clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    repository = tmp_path / "models--nobody--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(clip_folder, repository / "snapshots" / ("0" * 40))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert type(load_host(model="nobody/small").host).__name__ == "CLIPModel"
