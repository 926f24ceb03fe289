from pathlib import Path

import pytest

from vldebias import resources
from vldebias.errors import PromptSetError
from vldebias.resources import prompt_file, prompt_names, prompts_dir


def layout(folder: Path, *sets: str) -> Path:
    for name in sets:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return folder / "vldebias"


def test_this_installation_has_its_prompts() -> None:
    assert prompt_names()
    assert all((prompts_dir() / f"{name}.yaml").is_file() for name in prompt_names())
    assert prompt_file("gender") == prompts_dir() / "gender.yaml"


def test_a_wheel_carries_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = layout(tmp_path, "vldebias/_resources/prompts/x.yaml", "prompts/stranger.yaml")
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert prompt_names() == ["x"]


def test_a_checkout_has_them_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resources, "_PACKAGE", layout(tmp_path, "prompts/b.yaml", "prompts/a.yaml", "prompts/README.md")
    )
    assert prompt_names() == ["a", "b"]


def test_a_folder_without_sets_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", layout(tmp_path, "prompts/README.md"))
    with pytest.raises(PromptSetError, match=r"got no prompt sets .*_resources/prompts or .*prompts; .*reinstall"):
        prompts_dir()


def test_a_name_is_not_a_way_out_of_the_folder() -> None:
    with pytest.raises(PromptSetError, match=r"got the prompt set '\.\./secret'; expected one of"):
        prompt_file("../secret")
