"""Test that the files that earlier versions wrote are read, and that newer formats are refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from apps.audit.records.schema import Record
from apps.shares.answers import AnnotationLog
from tests import formats
from tests.formats import CURRENT, FINGERPRINT, WRITERS, example
from vldebias.errors import InvalidInputError
from vldebias.judge.plan import GeneratedImages
from vldebias.methods import load_edit
from vldebias.prompts import load_prompts
from vldebias.report.conclusion import Conclusion
from vldebias.report.result import Result
from vldebias.reranking.index import IndexGroups
from vldebias.study.run_files import record_pages
from vldebias.training.loop import read_state
from vldebias.training.run import Outcome
from vldebias.training.settings import TrainSettings, load_settings
from vldebias.utils.formats import check_format

HOW = (
    "the file that is written today differs from the example in tests/formats, which version 1.0"
    " wrote. If the change is intended, add a new format as described in tests/formats/__init__.py;"
    " never change an example"
)
WORDS = re.compile(r',\n +"(sentence|everyday|words)": ".*"')  # words of a conclusion


def folder_of_edit(name: str, tmp_path: Path) -> Path:
    """Return a folder with an example as its edit."""
    tmp_path.joinpath("projection.safetensors").write_bytes(example(name, 1).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("edit.safetensors", formats.edit()),
        ("cross-attention.safetensors", formats.cross_attention()),
    ],
)
def test_an_edit_of_format_1_is_read(name: str, made: Any, tmp_path: Path) -> None:
    loaded: Any = load_edit(folder_of_edit(name, tmp_path))
    assert type(loaded) is type(made)
    assert loaded.provenance == made.provenance
    assert loaded.settings() == made.settings()
    for tensor in made.axes:
        assert torch.equal(getattr(loaded, tensor), getattr(made, tensor))


@pytest.mark.parametrize("name", ["result.json", "compact-result.json"])
def test_a_result_of_format_1_is_read(name: str) -> None:
    loaded = Result.read(example(name, 1))
    assert loaded == formats.result()
    assert loaded.row("birds", "gap", "cali").change == (-0.25, -0.375, -0.125)


def test_a_record_of_format_1_is_read() -> None:
    assert Record.read(example("record.json", 1)) == formats.record()


@pytest.mark.parametrize("version", [2, 3])
def test_the_groups_of_an_index_are_read(version: int) -> None:
    loaded = IndexGroups.load(example("index.safetensors", version), groups=[("female", "male")])
    made = formats.index()
    assert loaded.fingerprint == FINGERPRINT
    assert loaded.doubt == "too few images"
    assert loaded.share_of_name() == {"female": 0.75, "male": 0.25}
    (attribute,) = loaded.attributes
    (expected,) = made.attributes
    assert attribute.names == expected.names
    for left, right in (
        (loaded.shares, made.shares),
        (loaded.near_shares, made.near_shares),
        (loaded.person, made.person),
        (attribute.texts, expected.texts),
        (attribute.borders, expected.borders),
    ):
        np.testing.assert_array_equal(left, right)


def test_the_groups_of_an_index_of_format_1_must_be_fitted_again() -> None:
    with pytest.raises(InvalidInputError, match=r"expected 0.borders.* fit the shares again with"):
        IndexGroups.load(example("index.safetensors", 1))


def test_a_prompt_set_of_format_1_is_read() -> None:
    loaded = load_prompts(example("prompt-set.yaml", 1))
    assert loaded == formats.prompt_set()
    assert loaded.hash == "71748ec0ae5c20a95c79c8985c0e1ccc361ea208b81520b54a2ad99f9870ef1a"


def test_answers_of_format_1_are_read() -> None:
    assert AnnotationLog(example("answers.jsonl", 1)).read() == formats.answers()


def test_the_record_of_a_training_run_of_format_1_is_read() -> None:
    run = json.loads(example("run.json", 1).read_text(encoding="utf-8"))
    check_format(run, "run.json")
    assert set(run) == set(Outcome.__annotations__)
    settings = TrainSettings.model_validate(run["settings"])
    assert settings.model_dump() == load_settings(**formats.SETTINGS).model_dump()
    assert (run["wrong_pairs"]["scored"], run["kept"][0]["column"]) == (24, "label")
    conclusions = [Conclusion.model_validate(conclusion) for conclusion in run["conclusions"]]
    # Version 1.0 had no everyday words for measures and methods.
    expected = [{**conclusion, "everyday": "", "words": ""} for conclusion in run["conclusions"]]
    assert [one.model_dump(mode="json") for one in conclusions] == expected


@pytest.mark.parametrize("name", sorted(set(WRITERS) - {"run.json", "compact-result.json"}))
def test_todays_files_equal_the_examples_of_their_format(name: str, tmp_path: Path) -> None:
    """A training run and a Parquet file depend on the versions of other libraries."""
    path = tmp_path / name
    WRITERS[name](path)
    stored = example(name, CURRENT[name])
    if path.suffix == ".safetensors":
        # The header of an edit contains the version of the package.
        assert described(path) == described(stored), HOW
    else:
        written, expected = (file.read_text(encoding="utf-8") for file in (path, stored))
        if name == "result.json":
            # Readers draw the conclusions again, so a version may reword them.
            written, expected = (WORDS.sub("", text) for text in (written, expected))
        assert written == expected, HOW


def described(path: Path) -> dict[str, Any]:
    """Return the header and tensors of a safetensors file, without what a release changes."""
    with safe_open(path, "pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name).tolist() for name in file.keys()}  # noqa: SIM118
    config = json.loads(header.pop("config", "{}"))
    if config.pop("vldebias_version", None) is not None:
        header.pop("sha256")  # covers the config
    return {"header": header, "config": config, "tensors": tensors}


# ---- newer and invalid versions


def change_json(path: Path, version: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "format_version": version, "new": 1}), encoding="utf-8")


def change_lines(path: Path, version: Any) -> None:
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    line = json.dumps({**json.loads(first), "format_version": version, "new": 1})
    path.write_text("\n".join([line, *rest]), encoding="utf-8")


def change_yaml(path: Path, version: Any) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content |= {"format_version": version, "new": 1}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def change_edit(path: Path, version: Any) -> None:
    with safe_open(path, "pt") as file:
        header = file.metadata()
    config = {**json.loads(header["config"]), "format_version": version, "new": 1}
    save_file(load_file(path), path, header | {"config": json.dumps(config)})


def change_index(path: Path, version: Any) -> None:
    with safe_open(path, "pt") as file:
        header = file.metadata()
    save_file(load_file(path), path, header | {"format_version": str(version), "new": "1"})


READERS: dict[str, tuple[Callable[[Path, Any], None], Callable[[Path], object]]] = {
    "edit.safetensors": (change_edit, lambda path: load_edit(path.parent)),
    "cross-attention.safetensors": (change_edit, lambda path: load_edit(path.parent)),
    "result.json": (change_json, Result.read),
    "compact-result.json": (change_json, Result.read),
    "record.json": (change_json, Record.read),
    "index.safetensors": (change_index, IndexGroups.load),
    "prompt-set.yaml": (change_yaml, load_prompts),
    "answers.jsonl": (change_lines, lambda path: AnnotationLog(path).read()),
    "run.json": (change_json, lambda path: check_format(json.loads(path.read_text()), path)),
}


def changed(name: str, version: Any, tmp_path: Path) -> Path:
    """Return a copy of an example with a different version and a field that is unknown here."""
    is_edit = name in {"edit.safetensors", "cross-attention.safetensors"}
    path = tmp_path / ("projection.safetensors" if is_edit else name)
    path.write_bytes(example(name, CURRENT[name]).read_bytes())
    READERS[name][0](path, version)
    return path


@pytest.mark.parametrize("name", READERS)
def test_a_newer_format_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    newer = CURRENT[name] + 1
    path = changed(name, newer, tmp_path)
    with pytest.raises(InvalidInputError) as error:
        READERS[name][1](path)
    line = ", line 1" if name == "answers.jsonl" else ""
    assert str(error.value) == (
        f"{path}{line} has format {newer}; this version of vldebias reads formats up to"
        f" {CURRENT[name]}: upgrade with pip install --upgrade vldebias"
    )


@pytest.mark.parametrize("version", [True, 1.0, 1.5, "1x", "one", -1, 0, None, [1], {"a": 1}])
@pytest.mark.parametrize("name", READERS)
def test_a_version_that_is_no_positive_whole_number_is_refused(
    name: str, version: Any, tmp_path: Path
) -> None:
    path = changed(name, version, tmp_path)
    with pytest.raises(
        InvalidInputError, match=r"format_version: got .*; expected .*1.*\. Correct it"
    ):
        READERS[name][1](path)


def test_a_huge_version_is_described_in_few_words() -> None:
    for version in (10**18, 10**30, 16**5000, -(16**5000)):
        with pytest.raises(InvalidInputError) as error:
            check_format({"format_version": version}, "a.json")
        assert len(str(error.value)) < 150


def test_a_huge_version_in_a_yaml_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.yaml"
    path.write_text(f"format_version: 0x{'f' * 60}\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"set.yaml has format above 10\^19"):
        load_prompts(path)


@pytest.mark.parametrize("name", ["result.json", "record.json", "prompt-set.yaml", "answers.jsonl"])
def test_a_file_that_may_be_handwritten_or_older_has_format_1(name: str, tmp_path: Path) -> None:
    path = tmp_path / example(name, 1).name
    text = example(name, 1).read_text(encoding="utf-8")
    for spelled in ('"format_version": 1, ', ' "format_version": 1,\n', '"format_version":1,'):
        text = text.replace(spelled, "")
    text = text.replace("format_version: 1\n", "")
    assert "format_version" not in text
    path.write_text(text, encoding="utf-8")
    _, read = READERS[name]
    assert read(path) == read(example(name, 1))


@pytest.mark.parametrize("name", ["edit.safetensors", "index.safetensors"])
def test_edits_and_index_shares_must_state_their_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / ("projection.safetensors" if name.startswith("edit") else name)
    stored = example(name, 1)
    with safe_open(stored, "pt") as file:
        header = file.metadata()
    header.pop("format_version", None)
    if "config" in header:
        config = json.loads(header["config"])
        del config["format_version"]
        header["config"] = json.dumps(config)
    save_file(load_file(stored), path, header)
    with pytest.raises(
        InvalidInputError, match=r"format_version: got (nothing|None); expected (1|a whole)"
    ):
        READERS[name][1](path)


def test_the_files_inside_a_folder_of_a_run_are_checked_too(tmp_path: Path) -> None:
    newer = '{"format_version": 2, "new": 1}'
    for name in ("plan.json", "manifest.json"):
        (tmp_path / name).write_text(newer, encoding="utf-8")
    torch.save({"format_version": 2, "new": 1}, tmp_path / "state.pt")
    for read in (
        lambda: GeneratedImages.open(tmp_path),
        lambda: record_pages(tmp_path, []),
        lambda: read_state(tmp_path / "state.pt"),
    ):
        with pytest.raises(InvalidInputError, match=r"has format 2; .*pip install --upgrade"):
            read()
