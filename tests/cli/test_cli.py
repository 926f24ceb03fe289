"""The command line: JSON alone on stdout, one clear message and exit code 2 on bad input, examples in every help."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

import vldebias
import vldebias.cli as cli
from tests.cli.conftest import call as run
from tests.refusals import refused
from vldebias.cli import app, common
from vldebias.errors import VldebiasError, warn
from vldebias.prompts import list_prompts, load_prompts


def commands(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    children = getattr(command, "commands", None)
    return [path] if children is None else [c for n, child in children.items() for c in commands(child, (*path, n))]


COMMANDS = commands(typer.main.get_command(app))


@pytest.mark.parametrize("path", [*COMMANDS, ("train", "--settings")], ids=" ".join)
def test_a_help_has_an_example_and_two_screens_and_cuts_no_name(path: tuple[str, ...]) -> None:
    asked = path if "--settings" in path else (*path, "--help")
    done = CliRunner().invoke(app, asked, env={"COLUMNS": "80"}, catch_exceptions=False)
    assert done.exit_code == 0
    assert "…" not in done.output
    if "--settings" not in path:
        assert f"vldebias {' '.join(path)}" in done.output.split("Example")[1]
        assert len(done.output.splitlines()) <= 100


def test_help_and_lists_do_without_torch() -> None:
    asked = [["--help"], ["debias", "--help"], ["label", "--help"], ["prompts", "list"], ["eval", "list"]]
    script = f"""
import sys
from vldebias.cli import app
for arguments in {asked}:
    app(arguments, standalone_mode=False)
    print(sorted({{'torch', 'scipy', 'gradio', 'transformers', 'diffusers', 'matplotlib'}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == ["[]"] * len(asked)


def test_methods_are_those_of_the_registry(tmp_path: Path) -> None:
    from vldebias.methods import METHODS, Method, register_method
    from vldebias.projection import CalibratedProjection

    class Nothing(Method):
        name, title, source = "nothing-at-all", "does nothing", "a test"

        def fit(self, problem: vldebias.methods.Problem, role: str) -> CalibratedProjection:
            return CalibratedProjection.identity(problem.host.dim(role), self.name)

    register_method(Nothing())
    listed = {row["name"]: row for row in json.loads(run("methods", "--json"))}
    assert list(listed) == list(METHODS)
    assert listed["cali"]["needs"] == ["prompt pairs"]
    assert listed["cali"]["lam"]
    run("debias", "gender", "--model", "miniature", "--method", "nothing-at-all", "--out", str(tmp_path))
    assert vldebias.load_edit(tmp_path / "joint").method == "nothing-at-all"


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("command", [("methods",), ("prompts", "list")], ids=" ".join)
def test_a_list_never_cuts_a_name(command: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "out", Console(width=width, force_terminal=True, color_system=None))
    lines = run(*command).splitlines()
    assert max(map(len, lines)) <= width
    assert {row["name"] for row in json.loads(run(*command, "--json"))} <= {line.split(" ")[0] for line in lines}


@pytest.mark.parametrize("command", ["methods", "prompts list", "eval list", "eval data birds --option n=40"])
def test_a_pipe_gets_tabs_and_nothing_else(command: str) -> None:
    head, *rows = (line.split("\t") for line in run(*command.split()).splitlines())
    assert rows
    assert {len(row) for row in rows} == {len(head)}


def test_version_and_prompts(tmp_path: Path) -> None:
    assert run("--version").strip() == vldebias.__version__
    listed = json.loads(run("prompts", "list", "--json"))
    assert [s["name"] for s in listed] == list_prompts()
    assert listed[0]["hash"] == load_prompts(listed[0]["name"]).hash
    path = tmp_path / "waterbirds.yaml"
    path.write_text(run("prompts", "show", "waterbirds"))
    assert load_prompts(path).hash == load_prompts("waterbirds").hash


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
    with pytest.raises(VldebiasError, match=r"--attribute bespectacled: expected name=value"):
        run("prompts", "new", str(tmp_path / "x.yaml"), "--attribute", "bespectacled", "--concept", "doctor")


@refused(
    (("debias", "gender", "--out", "x"), "either --model"),
    (("debias", "gender", "--out", "x", "--pipeline", "b", "--pretrained", "c"), "either --model"),
    (("debias", "gender", "--out", "x", "--model", "./nowhere"), "cannot load './nowhere'"),
    (("debias", "gender", "--out", "x", "--model", "m", "--dtype", "int3"), "expected one of float32"),
    (("debias", "gender", "--model", "m", "--projection", "x", "--lam", "1"), "--lam "),
    (("debias", "gender", "--model", "m", "--projection", "x"), "neither a folder nor"),
    (("debias", "gender", "--model", "miniature", "--merge", str(Path(__file__).parent)), "not empty"),
    (("debias", "gender", "--model", "m", "--check", "--method", "cali"), "--method "),
    (("debias", "gender", "--model", "miniature", "--method", "equalise"), "images"),
    (("debias", "gender", "--model", "miniature", "--reference", "nowhere.npz"), r"nowhere\.npz"),
    error=VldebiasError,
)
def test_bad_input(arguments: tuple[str, ...]) -> None:
    run(*arguments)


@refused(
    (("gendre",), r"got the prompt set 'gendre'; .*did you mean 'gender'"),
    (("gender", "--method", "calli"), r"method: expected one of none, orth, .*did you mean 'cali'"),
    (("gender", "--device", "cpuu"), "--device cpuu: .* Expected auto, cpu"),
    (("gender", "--device", "cuda:99"), "--device cuda:99: .* Expected auto, cpu"),
    (("gender", "--out", __file__), "is a file; name a folder that can be written"),
    error=VldebiasError,
)
def test_a_wrong_name_is_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("vldebias.hosts.loading.load_host", lambda *_, **__: pytest.fail("a model was loaded"))
    run("debias", *arguments, "--model", "huge/model")


def test_the_device_is_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert (common.device_of("auto"), common.device_of("cpu")) == (device, "cpu")


def test_a_warning_with_brackets_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda: warn("a name [/b] and [red]another[/red]"))
    cli.main()
    assert tuple(capsys.readouterr()) == ("", "warning: a name [/b] and [red]another[/red]\n")


@pytest.mark.parametrize("error", [VldebiasError("what came"), FileNotFoundError(2, "No such file", "what came")])
def test_errors_leave_the_process_with_one_message_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error:")
    assert "what came" in err


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_debias_saves_what_attaches_and_is_inspected_again(tmp_path: Path) -> None:
    from vldebias.miniature import load_clip

    options = ("waterbirds", "--model", "miniature")
    how = ("--method", "cali", "--lam", "200")
    fitted = json.loads(run("debias", *options, *how, "--out", str(tmp_path / "b"), "--json"))["roles"]["joint"]
    before, after = fitted["diagnostics"]["waterbirds"]["pair_distance"]
    assert after < before / 2
    model, _, tokenizer = load_clip()
    projection = vldebias.CalibratedProjection.from_pretrained(tmp_path / "b" / "joint")
    assert projection.lam == 200
    with vldebias.debias(model, projection, tokenizer=tokenizer) as attachment:
        assert attachment.state == "attached"
    again = ("debias", *options, "--projection", str(tmp_path / "b"))
    told = json.loads(run(*again, "--json"))["roles"]["joint"]
    assert told["provenance"] == fitted["provenance"]
    for key in ("pair_distance", "spurious_spread"):
        kept, known = (one["diagnostics"]["waterbirds"][key] for one in (told, fitted))
        assert kept == pytest.approx(known, rel=1e-5)
    assert "pair distance\twaterbirds\tjoint" in run(*again)


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
def test_reference_gives_what_the_function_gives(tmp_path: Path) -> None:
    import numpy as np
    import torch

    from vldebias.data import Embeddings, embed_images, save_embeddings
    from vldebias.hosts.images import image_encoder
    from vldebias.methods import Reference
    from vldebias.miniature import load_clip, open_world

    model, preprocess, tokenizer = load_clip()
    people = open_world("portraits", n=200)
    features = np.asarray(embed_images(people, image_encoder(model, preprocess), tmp_path / "cache").features)
    file = save_embeddings(tmp_path / "images.npz", Embeddings(features, tuple(map(str, range(200))), {}))
    given = ("debias", "fairface-gender", "--model", "miniature", "--reference", str(file))
    run(*given, "--out", str(tmp_path / "a"))
    saved = vldebias.CalibratedProjection.from_pretrained(tmp_path / "a" / "joint")
    fitted = vldebias.fit_projection(model, "fairface-gender", tokenizer=tokenizer, reference=Reference(features))
    assert saved.method == "cali+equalise"
    torch.testing.assert_close(saved.matrix(), fitted.matrix(), atol=1e-6, rtol=0)
    told = json.loads(run(*given, "--method", "auto", "--json"))
    assert {one["method"] for one in told["roles"]["joint"]["provenance"]["choice"]["candidates"]} >= {
        "cali",
        "equalise",
    }


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_merge_writes_a_checkpoint_that_runs_alone(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from vldebias.miniature import load_clip

    run("debias", "gender", "--model", "miniature", "--method", "cali", "--merge", str(tmp_path / "new" / "in"))
    merged, _, tokenizer = load_clip()
    merged.load_state_dict(load_file(tmp_path / "new" / "in" / "open_clip_model.safetensors"))
    attached, _, _ = load_clip()
    ids = tokenizer(["A photo of a doctor."])
    with vldebias.debias(attached, "gender", method="cali", tokenizer=tokenizer), torch.no_grad():
        expected = attached.encode_text(ids)
    with torch.no_grad():
        torch.testing.assert_close(merged.encode_text(ids), expected, rtol=1e-4, atol=1e-5)
