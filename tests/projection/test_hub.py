"""Test loading by name: an unreachable hub is only tried once, code is never executed, and errors
are explained."""

import builtins
import json
import shutil
import socket
import ssl
import time
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import open_clip
import pytest
import torch
from huggingface_hub import constants
from open_clip.factory import load_state_dict
from safetensors.torch import load_file

from tests.transformers_clip import load_transformers_clip
from vldebias.data import open_data
from vldebias.errors import InvalidInputError
from vldebias.hosts.loading import load_host
from vldebias.judge.judges import ClassifierJudge, Judge
from vldebias.methods import load_edit
from vldebias.projection.hub import offline_reason
from vldebias.study.inputs import Inputs
from vldebias.utils.options import Options

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")


def classifier(name: str) -> Judge:
    return ClassifierJudge(model=name, attribute="gender").ready(None, Inputs(Options(out=Path())))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in load_transformers_clip():
        part.save_pretrained(tmp_path / "clip")
    return tmp_path / "clip"


def test_cached_files_are_used_offline(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "models--nobody--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    # transformers 4 has its own copy.
    monkeypatch.setattr("transformers.utils.hub.TRANSFORMERS_CACHE", str(tmp_path), raising=False)
    assert type(load_host(model="nobody/small").host).__name__ == "CLIPModel"


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record every attempt to reach a server. Every attempt fails immediately."""
    import datasets

    made: list[Any] = []

    def refused(address: Any, *_: Any, **__: Any) -> Any:
        made.append(address)
        raise socket.gaierror(-2, "Name or service not known")

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refused)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    return made


ADVICE = {
    "a name without a slash": "neither a folder here nor OWNER/NAME",
    "a pipeline": "neither a folder here nor OWNER/NAME",
    "a repository": r"huggingface\.co does not respond\).* `hf download nobody/nothing ",
    "a repository of open_clip": r"huggingface\.co does not respond\).* `hf download nobody/noth",
    "weights of open_clip": r"huggingface\.co does not respond\).* file of weights as `pretrained`",
}
LOADS: dict[str, Callable[[], Any]] = {
    "a name without a slash": lambda: load_host(model="nosuch"),
    "a repository": lambda: load_host(model="nobody/nothing"),
    "a pipeline": lambda: load_host(pipeline="nosuch"),
    "weights of open_clip": lambda: load_host(model="ViT-B-32", pretrained="openai"),
    "a repository of open_clip": lambda: load_host(model="hf-hub:nobody/nothing"),
    "a data set": lambda: open_data("huggingface", "nope"),
    "an edit": lambda: load_edit("nobody/nothing"),
    "a classifier": lambda: classifier("nosuch"),
}


@pytest.mark.parametrize("call", LOADS)
def test_an_unreachable_hub_is_tried_and_reported_once(call: str, attempts: list[Any]) -> None:
    with pytest.raises(InvalidInputError, match=ADVICE.get(call, r"\w")):
        LOADS[call]()
    assert attempts == [("huggingface.co", 443)]
    assert constants.HF_HUB_OFFLINE is False, "users who are back online are not kept offline"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        HTTPError("https://huggingface.co", 404, "Not Found", Message(), None),
        URLError(ssl.SSLCertVerificationError()),
    ],
)
def test_a_reachable_hub_is_used_as_usual(
    answer: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def urlopen(*_: object, **__: object) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    with offline_reason("nosuch") as why:
        assert (why, constants.HF_HUB_OFFLINE) == ("", False)


def test_local_files_do_not_need_the_hub(attempts: list[Any], tmp_path: Path) -> None:
    with offline_reason(tmp_path) as why:
        assert why == ""
    load_host(model="miniature")
    assert attempts == []


def test_a_folder_without_weights_is_not_randomly_initialised(folder: Path) -> None:
    (folder / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": open_clip.get_model_config("ViT-B-32"), "preprocess_cfg": {}})
    )
    with pytest.raises(InvalidInputError, match="weights"):
        load_host(model=f"local-dir:{folder}")


PICKLE = (
    r"it contains Python objects in addition to tensors \(a pickle\).* convert it: "
    r"safetensors\.torch\.save_file"
)


def test_a_pickled_checkpoint_is_rejected_with_a_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    torch.save(state | {"made by": Path("x")}, file)
    with pytest.raises(InvalidInputError, match=PICKLE):
        load_host(model=str(folder))
    monkeypatch.setattr(
        open_clip,
        "create_model_from_pretrained",
        lambda name, pretrained: load_state_dict(pretrained),
    )
    with pytest.raises(InvalidInputError, match=PICKLE):
        load_host(model="ViT-B-32", pretrained=str(file))


def test_damaged_and_missing_weights_are_rejected_with_a_message(folder: Path) -> None:
    for content in (b"", b"\x08" + bytes(20), b"\xff" * 64):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(InvalidInputError, match=r"cannot load .*clip'"):
            load_host(model=str(folder))
    for content, kind in (
        (b"<!DOCTYPE html><p>Log in", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1", "is a Git LFS pointer"),
    ):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(InvalidInputError, match=f"model.safetensors {kind}, not weights"):
            load_host(model=str(folder))
    for option in ("model", "pipeline"):
        with pytest.raises(InvalidInputError, match=r"it contains none of .*\.json"):
            load_host(**{option: str(folder.parent)})


@pytest.mark.parametrize("load", [load_host, classifier])
def test_code_in_a_folder_is_never_executed(
    load: Callable[[str], Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = ("AutoConfig", "AutoModel", "AutoModelForImageClassification", "AutoImageProcessor")
    theirs = {"auto_map": dict.fromkeys(classes, "theirs.Theirs")}
    custom_classes = {"model_type": "theirs", "image_processor_type": "Theirs"}
    for name in ("config.json", "preprocessor_config.json"):
        (folder / name).write_text(
            json.dumps(json.loads((folder / name).read_text()) | theirs | custom_classes)
        )
    mark = folder / "ran"
    (folder / "theirs.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Theirs: pass\n")
    questions: list[str] = []
    monkeypatch.setattr(builtins, "input", lambda text="": questions.append(text) or "y")
    with pytest.raises(InvalidInputError):
        load(str(folder))
    assert (questions, mark.exists()) == ([], False)
