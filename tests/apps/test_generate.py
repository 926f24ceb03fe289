"""Test `vldebias generate`: two rows start from the same noise, and a second run continues in the
same folder."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.cli.conftest import call as run
from vldebias.errors import InvalidInputError, StorageError
from vldebias.miniature import load_pipeline
from vldebias.study import grids
from vldebias.study.tasks import variants
from vldebias.utils.files import digest
from vldebias.utils.phrases import asked_for, in_words

EDITOR = "A photo of an editor."
QUICK = ("--images", "4", "--steps", "2")


def generate(folder: Path, *options: str, prompt: str = EDITOR) -> dict[str, Any]:
    """Return the JSON output from a run with four pictures per row."""
    command = ("generate", prompt, "--out", str(folder), "--json", *QUICK, *options)
    return json.loads(run(*command))


def pixels(folder: Path) -> dict[str, str]:
    """Return the digest of each picture by path."""
    return {str(path.relative_to(folder)): digest(path) for path in folder.glob("*/*/*.png")}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("generate")
    return folder, generate(folder, "--attribute", "gender")


def test_prompts_values_and_seeds_are_saved(finished_run: tuple[Path, dict[str, Any]]) -> None:
    folder, facts = finished_run
    assert json.loads((folder / "generate.json").read_text()) == facts
    rows = {
        name: [p for p in facts["pictures"] if p["method"] == name] for name in facts["methods"]
    }
    plain = rows["none"]
    balanced = rows["balanced-prompts"]
    assert [p["noise"] for p in plain] == [p["noise"] for p in balanced]
    assert len({p["noise"] for p in plain}) == 4
    assert {p["prompt"] for p in plain} == {EDITOR}
    values = [p["values"]["gender"] for p in balanced]
    assert sorted(values) == ["female", "female", "male", "male"]
    assert all(f"{value} editor" in p["prompt"] for p, value in zip(balanced, values, strict=True))
    assert facts["sentences"][1].startswith("Balanced prompts: asked for 2 men and 2 women")
    assert all((folder / p["file"]).is_file() for p in facts["pictures"])


def test_the_grid_contains_a_row_for_each_method(finished_run: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = finished_run
    with Image.open(folder / "grid.png") as grid:
        _, left, above = grids.layout(4 * 198)
        expected = (left + 4 * 198, above + 2 * 198)
        assert grid.size == expected


def test_a_terminal_gets_text_and_a_table(tmp_path: Path) -> None:
    output = run(
        "generate", "A photo of a king.", "--attribute", "gender", "--out", str(tmp_path), *QUICK
    )
    assert "# Balanced prompts: left unchanged (states the attribute)" in output
    header = "method\timages\tasked for\tseen\tprompt"
    assert header in output
    assert pixels(tmp_path)  # copied from the row without a method


def test_several_attributes_and_methods_can_be_combined(tmp_path: Path) -> None:
    facts = generate(
        tmp_path,
        *("--attribute", "gender", "--attribute", "age"),
        *("--method", "default", "--method", "cali"),
    )
    assert list(facts["methods"]) == ["none", "balanced-prompts", "cali"]
    values = [tuple(p["values"].values()) for p in facts["pictures"] if p["values"]["age"]]
    assert len(set(values)) == 4
    assert len(facts["sentences"]) == 6


def ends_after(count: int, error: BaseException) -> Callable[..., Any]:
    """Return a `write_png` that raises after the given number of pictures."""
    pictures_written = []
    write = variants.write_png

    def write_png(*arguments: Any, **options: Any) -> Path:
        if len(pictures_written) == count:
            raise error
        pictures_written.append(arguments)
        return write(*arguments, **options)

    return write_png


def test_a_second_run_resumes_after_ctrl_c(
    tmp_path: Path, finished_run: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("generate", EDITOR, "--attribute", "gender", "--out", str(tmp_path), *QUICK)
    with monkeypatch.context() as patched:
        patched.setattr(variants, "write_png", ends_after(3, KeyboardInterrupt()))
        output = run(*command, code=130, with_stderr=True)
    assert "3 finished images are kept; run the same command again to continue" in output
    first = pixels(tmp_path)
    run(*command)
    assert first.items() <= pixels(tmp_path).items()
    assert pixels(tmp_path) == pixels(finished_run[0])


def test_a_full_disk_does_not_affect_finished_images(
    tmp_path: Path, finished_run: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = StorageError(errno.ENOSPC, "cannot write 6.png: no space is left")
    with monkeypatch.context() as patched:
        patched.setattr(variants, "write_png", ends_after(5, full))
        with pytest.raises(StorageError, match=r"no space is left; 5 finished images are kept"):
            generate(tmp_path, "--attribute", "gender")
    generate(tmp_path, "--attribute", "gender")
    assert pixels(tmp_path) == pixels(finished_run[0])


def test_a_finished_folder_is_not_generated_again(
    finished_run: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, facts = finished_run
    monkeypatch.setattr(variants, "write_png", ends_after(0, AssertionError("generated again")))
    assert generate(folder, "--attribute", "gender") == facts


def test_a_folder_rejects_different_settings(
    finished_run: tuple[Path, dict[str, Any]],
) -> None:
    with pytest.raises(InvalidInputError, match="a different folder"):
        generate(finished_run[0], "--attribute", "gender", "--seed", "1")


def test_different_settings_get_a_different_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("generate", "a cook", "--attribute", "gender", "--images", "1", "--steps", "1")
    for seed in ("0", "1"):
        run(*command, "--seed", seed)
    assert len(list((tmp_path / "vldebias-generate").iterdir())) == 2


def test_counts_of_values_that_are_adjectives_are_printed_in_words() -> None:
    assert in_words({"young": 3, "old": 0}) == "3 young and 0 old"
    assert in_words({"pale": 1, "tan": 2, "dark": 3}) == "1 pale, 2 tan and 3 dark"


def test_two_people_are_counted_as_two(tmp_path: Path) -> None:
    command = ("generate", "two doctors", "--attribute", "gender", "--out", str(tmp_path))
    facts = json.loads(run(*command, "--images", "2", "--steps", "2", "--json"))
    asked = "asked for one man and one woman in each of 2 images"
    note = "the judge only looks at one person per image"
    assert facts["sentences"] == [
        "As generated: 2 images.",
        f"Balanced prompts: {asked}; {note}.",
    ]
    *_, picture = facts["pictures"]
    assert picture["values"]["gender"] == {"male": 1, "female": 1}
    assert not picture["seen"]
    printed = run(*command, "--images", "2", "--steps", "2")
    assert "\tone man and one woman\t\ttwo doctors, a " in printed


BOTH = {"male": 1, "female": 1}


@pytest.mark.parametrize(
    ("values", "seen", "judged", "words"),
    [
        (["male", "female", "male"], {}, False, "asked for 2 men and 1 woman"),
        (
            ["female"] * 3,
            {"male": 1, "female": 2},
            True,
            "asked for 3 women and 0 men, seen: 2 women and 1 man",
        ),
        (
            [BOTH, {"female": 1, "male": 1}],
            {},
            False,
            "asked for one man and one woman in each of 2 images",
        ),
        ([BOTH], {"male": 1}, True, "asked for one man and one woman in 1 image; the judge only"),
        (
            [{"female": 2, "male": 1}, {"male": 12, "female": 1}, {"male": 1, "female": 2}],
            {},
            False,
            "asked for one man and two women in each of 2 images and 12 men and one woman in 1",
        ),
        ([{"male": None, "female": None}] * 2, {}, False, "asked for men and women in each of 2"),
    ],
)
def test_requested_people_are_described_per_image(
    values: list[Any], seen: dict[str, int], judged: bool, words: str
) -> None:
    assert asked_for(values, ["male", "female"], seen, judged=judged).startswith(words)


def test_a_wrong_name_is_rejected_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="leace"):
        generate(tmp_path, "--attribute", "gender", "--method", "leace")
    with pytest.raises(InvalidInputError, match="empty"):
        generate(tmp_path, "--attribute", "gender", prompt=" ")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def other_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the miniature pipeline with slightly different weights."""
    pipe = load_pipeline()
    with torch.no_grad():
        pipe.unet.conv_out.weight.mul_(1.02)
    folder = tmp_path_factory.mktemp("pipelines") / "other"
    pipe.save_pretrained(folder)
    return folder


def pipelines(*names: str | Path) -> list[str]:
    return [part for name in names for part in ("--pipeline", str(name))]


def test_two_pipelines_are_compared_for_the_same_prompts_and_noise(
    tmp_path: Path, other_pipeline: Path
) -> None:
    facts = generate(tmp_path, "--attribute", "gender", *pipelines("miniature", other_pipeline))
    first, second = facts["pipelines"].values()
    assert list(facts["pipelines"]) == ["miniature", "other"]
    for name in ("noise", "prompt", "values"):
        assert [p[name] for p in first["pictures"]] == [p[name] for p in second["pictures"]]
    assert first["labelled_by"] == second["labelled_by"] == "the packaged judge"
    files = [sorted((tmp_path / name).glob("*/*/*.png")) for name in ("miniature", "other")]
    assert len(files[0]) == len(files[1]) == 8
    assert all(digest(a) != digest(b) for a, b in zip(*files, strict=True))
    assert facts["sentences"][-1].startswith("Seconds per image: miniature 0.")
    page = Path(facts["page"]).read_text()
    assert page.count('<label class="face') == 16
    assert "asked for 2 men and 2 women" in page


def test_the_time_of_the_first_pipeline_is_kept_if_the_second_is_interrupted(
    tmp_path: Path, other_pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("--attribute", "gender", *pipelines("miniature", other_pipeline))
    with monkeypatch.context() as patched:
        patched.setattr(variants, "write_png", ends_after(10, KeyboardInterrupt()))
        run("generate", EDITOR, "--out", str(tmp_path), *QUICK, *command, code=130)
    facts = generate(tmp_path, *command)
    assert all(part["seconds_per_image"] for part in facts["pipelines"].values())
    assert "unknown" not in facts["sentences"][-1]


def test_own_images_take_the_place_of_a_pipeline_in_natural_order_with_their_labels(
    tmp_path: Path, finished_run: tuple[Path, dict[str, Any]]
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for name, colour in (("1.png", "red"), ("2.jpg", "green"), ("10.png", "blue")):
        Image.new("RGB", (300, 200), colour).save(own / name)
    answer = {"annotator": "ada", "attribute": "gender", "time": "2026-01-01T00:00:00Z"}
    values = {"1.png": "female", "2.jpg": "male", "10.png": "cannot tell"}
    lines = [json.dumps(answer | {"image": k, "value": v}) for k, v in values.items()]
    (own / "answers.jsonl").write_text("\n".join(lines) + "\n")
    command = ("--attribute", "gender", *pipelines("miniature", own, finished_run[0]))
    facts = generate(tmp_path / "out", *command)
    own_facts = facts["pipelines"]["own"]
    assert [p["file"] for p in own_facts["pictures"]] == list(values)
    assert own_facts["sentences"] == ["As generated: 1 man and 1 woman seen, 1 unclear."]
    assert own_facts["labelled_by"] == "people"
    # A folder written by the command is matched by its plan, and labelled as it was.
    saved = facts["pipelines"][finished_run[0].name]
    assert saved["sentences"] == finished_run[1]["sentences"]
    assert saved["pictures"] == finished_run[1]["pictures"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a" * 5000,), "expected the id or folder"),
        (("miniature", "miniature"), "used twice"),
        (("miniature", "./nowhere"), "no such folder"),
        (("miniature", ""), "got ''"),
        (("miniature", "FILE"), "id or folder of a diffusers pipeline"),
        (("miniature", "MINIATURE"), "used twice"),
        (("miniature", "BROKEN"), "cannot read 2.png"),
        (("miniature", "PARENT"), "expected one of them, such as .*copy"),
        (("miniature", "AROUND"), "is inside the folder of images"),
        (("miniature", "EMPTY"), "neither a diffusers pipeline"),
        (("SAVED", "EMPTY"), "at least one pipeline"),
        (("miniature", "SAVED"), "none of its images has the prompt"),
        (("miniature", "nobody/no-such-pipeline"), "cannot load 'nobody/no-such-pipeline'"),
        (("miniature", "DAMAGED"), "cannot load .*damaged"),
    ],
)
def test_unsuitable_pipelines_are_rejected_before_generation(
    names: tuple[str, ...],
    message: str,
    tmp_path: Path,
    finished_run: tuple[Path, dict[str, Any]],
) -> None:
    for name in ("empty", "Miniature", "broken"):
        (tmp_path / name).mkdir()
        if name != "empty":
            Image.new("RGB", (8, 8)).save(tmp_path / name / "1.png")
    (tmp_path / "broken" / "2.png").write_text("text")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "model_index.json").write_text("{")
    shutil.copytree(finished_run[0], tmp_path / "parent" / "copy")
    folders = {
        "EMPTY": tmp_path / "empty",
        "FILE": tmp_path / "broken" / "1.png",
        "MINIATURE": tmp_path / "Miniature",
        "BROKEN": tmp_path / "broken",
        "PARENT": tmp_path / "parent",
        "DAMAGED": tmp_path / "damaged",
        "AROUND": tmp_path,
        "SAVED": finished_run[0],
    }
    sources = [folders.get(name, name) for name in names]
    with pytest.raises(InvalidInputError, match=message):
        generate(tmp_path / "out", "--attribute", "gender", *pipelines(*sources), prompt="a baker")
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_to_the_folder_of_own_images(tmp_path: Path) -> None:
    own = tmp_path / "out" / "own images"
    own.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(own / "1.png")
    command = ("--attribute", "gender", *pipelines("miniature", own))
    printed = run("generate", EDITOR, "--out", str(own.parent), *QUICK, *command, with_stderr=True)
    assert "own images: As generated: 1 image.\n" in printed
    assert f"vldebias label '{own}' --attribute gender" in printed
    assert [path.name for path in own.iterdir()] == ["1.png"]


def test_a_pipeline_with_a_name_in_other_letters_has_its_own_folder(
    tmp_path: Path, other_pipeline: Path
) -> None:
    shutil.copytree(other_pipeline, tmp_path / "コピー")
    out = tmp_path / "out"
    facts = generate(out, "--attribute", "gender", *pipelines("miniature", tmp_path / "コピー"))
    assert list(facts["pipelines"]) == ["miniature", "コピー"]
    folders = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert len(folders) == 2
    assert folders[1].startswith("pipeline-")


def test_the_miniature_is_not_mistaken_for_a_folder_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "miniature").mkdir()
    assert len(generate(tmp_path / "out", "--attribute", "gender")["pictures"]) == 8
