"""The command line: JSON alone on stdout, one clear message and exit code 2 on bad input, examples in every help."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import vldebias
from vldebias.cli import app
from vldebias.errors import VldebiasError
from vldebias.prompts import list_prompts, load_prompts

RUNNER = CliRunner()


def commands(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    children = getattr(command, "commands", None)
    return [path] if children is None else [c for n, child in children.items() for c in commands(child, (*path, n))]


COMMANDS = commands(typer.main.get_command(app))


def run(*arguments: str) -> str:
    done = RUNNER.invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_commands_of_the_contract() -> None:
    names = {path[0] for path in COMMANDS}
    assert {"quickstart", "debias", "prompts", "merge", "miniature"} <= names


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_names_the_command(path: tuple[str, ...]) -> None:
    text = run(*path, "--help")
    assert "Example" in text
    assert f"vldebias {' '.join(path)}" in text.split("Example")[1]


def test_version() -> None:
    assert run("--version").strip() == vldebias.__version__


def test_prompts_list_json_is_the_whole_of_stdout() -> None:
    listed = json.loads(run("prompts", "list", "--json"))
    assert [s["name"] for s in listed] == list_prompts()
    assert listed[0]["hash"] == load_prompts(listed[0]["name"]).hash


def test_prompts_show() -> None:
    shown = json.loads(run("prompts", "show", "waterbirds", "--json"))
    assert shown["pairs"] == [list(pair) for pair in load_prompts("waterbirds").pairs]
    assert "This is a picture of a landbird." in run("prompts", "show", "waterbirds")


def test_prompts_show_cuts_long_lists_unless_asked() -> None:
    assert len(run("prompts", "show", "gender", "--all").splitlines()) > len(
        run("prompts", "show", "gender").splitlines()
    )


def test_prompts_new_writes_a_set_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "glasses.yaml"
    words = ("--attribute", "with=bespectacled", "--attribute", "without=clear-eyed", "--concept", "doctor,nurse")
    run("prompts", "new", str(path), *words)
    assert load_prompts(path).pairs == (
        ("A photo of a bespectacled doctor.", "A photo of a clear-eyed doctor."),
        ("A photo of a bespectacled nurse.", "A photo of a clear-eyed nurse."),
    )
    with pytest.raises(VldebiasError, match="exists"):
        run("prompts", "new", str(path), *words)


def test_prompts_new_explains_the_attribute_option(tmp_path: Path) -> None:
    with pytest.raises(VldebiasError, match=r"expected value=word,word .*got 'bespectacled'"):
        run("prompts", "new", str(tmp_path / "x.yaml"), "--attribute", "bespectacled", "--concept", "doctor")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("debias", "gender", "--out", "x"), "got both or neither"),
        (("debias", "gender", "--out", "x", "--model", "a", "--pipeline", "b"), "got both or neither"),
        (("debias", "gender", "--out", "x", "--pipeline", "b", "--pretrained", "c"), "goes with --model"),
        (
            ("debias", "gender", "--out", "x", "--model", "ViT-Z", "--pretrained", "openai"),
            "not an open_clip architecture",
        ),
        (("debias", "gender", "--out", "x", "--model", "./nowhere"), "cannot load './nowhere'"),
        (("debias", "gender", "--out", "x", "--model", "m", "--dtype", "int3"), "expected one of float32"),
        (("miniature", "render", "cats", "--out", "x.png"), "expected one of portraits, birds, got 'cats'"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(VldebiasError, match=message):
        run(*arguments)


def test_merge_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(VldebiasError, match="not empty"):
        run("merge", "gender", "--model", "miniature", "--out", str(tmp_path))


def test_errors_leave_the_process_with_one_message_and_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from vldebias.cli import main; main()", "prompts", "show", "gendre"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error:")
    assert "gender" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_path_that_cannot_be_written_is_one_message_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = ("miniature", "render", "birds", "-n", "1", "--out", str(tmp_path / "file" / "x.png"))
    done = subprocess.run([sys.executable, "-m", "vldebias", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error:")
    assert "Traceback" not in done.stderr


def test_render_is_the_same_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run("miniature", "render", "birds", "--out", str(tmp_path / f"{name}.png"), "-n", "9", "--seed", "3")
    a, b = (Image.open(tmp_path / f"{name}.png") for name in ("a", "b"))
    assert a.size == (96, 96)
    assert a.tobytes() == b.tobytes()
    truth = json.loads((tmp_path / "a.json").read_text())
    assert len(truth["captions"]) == len(truth["group"]) == 9


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_debias_saves_what_attaches_again(tmp_path: Path) -> None:
    from vldebias.miniature import load_clip

    told = json.loads(
        run("debias", "waterbirds", "--model", "miniature", "--method", "cali", "--out", str(tmp_path), "--json")
    )
    assert list(told["roles"]) == ["joint"]
    before, after = told["roles"]["joint"]["diagnostics"]["waterbirds"]["pair_distance"]
    assert after < before / 2
    model, _, tokenizer = load_clip()
    projection = vldebias.CalibratedProjection.from_pretrained(tmp_path / "joint")
    with vldebias.debias(model, projection, tokenizer=tokenizer) as attachment:
        assert attachment.state == "attached"


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_merge_writes_a_checkpoint_that_runs_alone(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from vldebias.miniature import load_clip

    run("merge", "gender", "--model", "miniature", "--method", "cali", "--out", str(tmp_path / "merged"))
    merged, _, tokenizer = load_clip()
    merged.load_state_dict(load_file(tmp_path / "merged" / "open_clip_model.safetensors"))
    attached, _, _ = load_clip()
    ids = tokenizer(["A photo of a doctor."])
    with vldebias.debias(attached, "gender", method="cali", tokenizer=tokenizer), torch.no_grad():
        expected = attached.encode_text(ids)
    with torch.no_grad():
        torch.testing.assert_close(merged.encode_text(ids), expected, rtol=1e-4, atol=1e-5)
