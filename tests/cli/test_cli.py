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
from tests.refusals import refused
from vldebias.cli import app, common
from vldebias.errors import InvalidInputError, VldebiasError, warn
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


def heard(*arguments: str, code: int = 0) -> str:
    """Rows and what is said beside them, which a pipe leaves on stderr."""
    done = RUNNER.invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout + done.stderr


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_names_the_command(path: tuple[str, ...]) -> None:
    text = run(*path, "--help")
    assert "Example" in text
    assert f"vldebias {' '.join(path)}" in text.split("Example")[1]


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


WRONG = [
    ["eval", "nosuch"],
    ["eval", "miniature", "--methods", "none,nosuch"],
    ["eval", "report", "nosuch.json"],
    ["eval", "compare", "nosuch.json", "nosuch.json"],
    ["eval", "fairface", "--embeddings", "nosuch.npz"],
    ["debias", "gender", "--model", "miniature", "--method", "nosuch", "--out", "nosuch"],
    ["eval", "waterbirds", "--data-root", "nosuch"],
]


def test_what_is_wrong_is_told_without_torch() -> None:
    script = f"""
import sys
from vldebias.cli import app
from vldebias.errors import VldebiasError
for arguments in {WRONG}:
    try:
        app(arguments, standalone_mode=False)
    except VldebiasError as error:
        print('nosuch' in str(error), 'torch' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True False"] * len(WRONG)


def test_the_names_of_methods_are_those_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    from vldebias.cli.common import check_names
    from vldebias.cli.complete import METHOD_NAMES
    from vldebias.methods import METHODS

    assert list(METHODS) == METHOD_NAMES
    check_names(["a method that is registered later"])  # whoever has opened the registry asks that
    monkeypatch.delitem(sys.modules, "vldebias.methods")
    for name in ("nosuch", "midpoint"):
        with pytest.raises(InvalidInputError) as ours:
            check_names([name])
        with pytest.raises(InvalidInputError) as theirs:
            METHODS.named(name)
        assert str(ours.value) == str(theirs.value)


def test_methods_are_those_of_the_registry() -> None:
    from vldebias.methods import METHODS

    listed = {row["name"]: row for row in json.loads(run("methods", "--json"))}
    assert list(listed) == list(METHODS)
    assert listed["cali"] == {
        "name": "cali",
        "title": METHODS["cali"].title,
        "source": METHODS["cali"].source,
        "group": "prompts alone",
        "needs": ["prompt pairs"],
        "lam": True,
        "pipelines": True,
        "models": True,
        "side": "text",
    }
    assert all(name in run("methods") for name in ("orth-cali", "balanced-prompts", "prompt pairs"))
    groups = {name: row["group"] for name, row in listed.items()}
    assert (groups["equalise"], groups["leace"]) == ("unlabelled images", "labelled images")


def test_a_method_of_ones_own_is_listed_and_fitted(tmp_path: Path) -> None:
    from vldebias.methods import Method, register_method
    from vldebias.projection import CalibratedProjection

    class Nothing(Method):
        name, title, source = "nothing-at-all", "does nothing", "a test"

        def fit(self, problem: vldebias.methods.Problem, role: str) -> CalibratedProjection:
            return CalibratedProjection.identity(problem.host.dim(role), self.name)

    register_method(Nothing())
    assert "nothing-at-all" in [row["name"] for row in json.loads(run("methods", "--json"))]
    run("debias", "gender", "--model", "miniature", "--method", "nothing-at-all", "--out", str(tmp_path))
    assert vldebias.load_edit(tmp_path / "joint").method == "nothing-at-all"


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("command", [("methods",), ("prompts", "list")], ids=" ".join)
def test_a_list_never_cuts_a_name(command: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(common, "out", Console(width=width, force_terminal=True, color_system=None))
    lines = run(*command).splitlines()
    rows = json.loads(run(*command, "--json"))
    groups = list(dict.fromkeys(row.get("group") for row in rows))
    heads = [line for line in lines if line.endswith(":") and line[:-1] in groups]
    listed = [line.split()[0] for line in lines if not line.startswith(" ") and line not in heads]
    names = {row["name"] for row in rows}
    assert sorted(listed) == sorted(names)
    assert len(heads) == (3 if "methods" in command else 0)
    assert max(map(len, lines)) <= width


LISTS = ["methods", "prompts list", "eval list", "eval data birds --option n=40"]


@pytest.mark.parametrize("command", LISTS)
def test_a_pipe_gets_tabs_and_nothing_else(command: str) -> None:
    head, *rows = (line.split("\t") for line in run(*command.split()).splitlines())
    assert rows
    assert {len(row) for row in rows} == {len(head)}
    told = json.loads(run(*command.split(), "--json"))
    if command.endswith(("methods", "list")):
        assert sorted(row[0] for row in rows) == sorted(one["name"] for one in told)


@pytest.mark.parametrize("path", [*COMMANDS, ("train", "--settings")], ids=" ".join)
def test_no_help_cuts_a_name(path: tuple[str, ...]) -> None:
    asked = path if "--settings" in path else (*path, "--help")
    done = RUNNER.invoke(app, asked, env={"COLUMNS": "80"}, catch_exceptions=False)
    assert done.exit_code == 0
    assert "…" not in done.output


def test_version_and_prompts() -> None:
    assert run("--version").strip() == vldebias.__version__
    listed = json.loads(run("prompts", "list", "--json"))
    assert [s["name"] for s in listed] == list_prompts()
    assert listed[0]["hash"] == load_prompts(listed[0]["name"]).hash
    shown = json.loads(run("prompts", "show", "waterbirds", "--json"))
    assert shown["pairs"] == [list(pair) for pair in load_prompts("waterbirds").pairs]
    short, whole = (run("prompts", "show", "gender", *more).splitlines() for more in ((), ("--all",)))
    assert len(short) < len(whole)


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
    with pytest.raises(VldebiasError, match=r"expected value=word,word .*got 'bespectacled'"):
        run("prompts", "new", str(tmp_path / "x.yaml"), "--attribute", "bespectacled", "--concept", "doctor")


@refused(
    (("debias", "gender", "--out", "x"), "got both or neither"),
    (("debias", "gender", "--out", "x", "--model", "a", "--pipeline", "b"), "got both or neither"),
    (("debias", "gender", "--out", "x", "--pipeline", "b", "--pretrained", "c"), "goes with --model"),
    (
        ("debias", "gender", "--out", "x", "--model", "ViT-Z", "--pretrained", "openai"),
        "not an open_clip architecture",
    ),
    (("debias", "gender", "--out", "x", "--model", "./nowhere"), "cannot load './nowhere'"),
    (("debias", "gender", "--out", "x", "--model", "m", "--dtype", "int3"), "expected one of float32"),
    (("debias", "gender", "--model", "m", "--projection", "x", "--lam", "1"), "--lam is about fitting"),
    (("debias", "gender", "--model", "m", "--projection", "x"), "neither a folder nor"),
    (("debias", "gender", "--model", "miniature", "--merge", str(Path(__file__).parent)), "not empty"),
    (("debias", "gender", "--model", "m", "--check", "--method", "cali"), "--method is about fitting, and --check"),
    error=VldebiasError,
)
def test_bad_input(arguments: tuple[str, ...]) -> None:
    run(*arguments)


@refused(
    (("gendre",), r"got the prompt set 'gendre'; .*did you mean 'gender'"),
    (("gender", "--method", "calli"), r"method: expected one of none, orth, .*did you mean 'cali'"),
    (("gender", "--method", "equalise"), "--method equalise uses unlabelled images"),
    (("gender", "--lam", "much"), "--lam: expected a number from 0 on, got 'much'"),
    (("gender", "--device", "cpuu"), "--device: got 'cpuu'; expected auto, cpu, .*did you mean 'cpu'"),
    (("gender", "--device", "cuda:x"), "--device: got 'cuda:x'; expected auto"),
    (("gender", "--device", "cuda:99"), "--device cuda:99: torch .* CUDA devices here; run on the CPU without"),
    error=VldebiasError,
)
def test_a_wrong_name_is_told_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("vldebias.loading.load_host", lambda *_, **__: pytest.fail("a model was loaded"))
    run("debias", *arguments, "--model", "huge/model", "--out", str(tmp_path / "x"))


@pytest.mark.parametrize("there", [True, False])
def test_the_device_is_a_gpu_where_there_is_one(
    there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vldebias.cli import common

    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU [with brackets]")
    assert common.device_of("auto") == ("cuda" if there else "cpu")
    assert ("device: cuda (a GPU [with brackets])" in capsys.readouterr().err) == there
    assert common.device_of("cpu") == "cpu"


def test_a_warning_with_brackets_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda: warn("a name [/b] and [red]another[/red]"))
    cli.main()
    assert tuple(capsys.readouterr()) == ("", "warning: a name [/b] and [red]another[/red]\n")


def test_errors_leave_the_process_with_one_message_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["vldebias", "prompts", "show", "gendre"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error:")
    assert "gender" in err


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_debias_saves_what_attaches_and_is_looked_at_again(tmp_path: Path) -> None:
    from vldebias.miniature import load_clip

    options = ("waterbirds", "--model", "miniature")
    fitted = json.loads(run("debias", *options, "--method", "cali", "--out", str(tmp_path / "b"), "--json"))
    assert list(fitted["roles"]) == ["joint"]
    before, after = fitted["roles"]["joint"]["diagnostics"]["waterbirds"]["pair_distance"]
    assert after < before / 2
    model, _, tokenizer = load_clip()
    projection = vldebias.CalibratedProjection.from_pretrained(tmp_path / "b" / "joint")
    with vldebias.debias(model, projection, tokenizer=tokenizer) as attachment:
        assert attachment.state == "attached"
    again = ("debias", *options, "--projection", str(tmp_path / "b"))
    told = json.loads(run(*again, "--json"))["roles"]["joint"]["diagnostics"]["waterbirds"]
    for key in ("pair_distance", "spurious_spread"):
        assert told[key] == pytest.approx(fitted["roles"]["joint"]["diagnostics"]["waterbirds"][key], rel=1e-5)


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_merge_writes_a_checkpoint_that_runs_alone(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from vldebias.miniature import load_clip

    run("debias", "gender", "--model", "miniature", "--method", "cali", "--merge", str(tmp_path / "merged"))
    merged, _, tokenizer = load_clip()
    merged.load_state_dict(load_file(tmp_path / "merged" / "open_clip_model.safetensors"))
    attached, _, _ = load_clip()
    ids = tokenizer(["A photo of a doctor."])
    with vldebias.debias(attached, "gender", method="cali", tokenizer=tokenizer), torch.no_grad():
        expected = attached.encode_text(ids)
    with torch.no_grad():
        torch.testing.assert_close(merged.encode_text(ids), expected, rtol=1e-4, atol=1e-5)
