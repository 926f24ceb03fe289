"""Test the command line: only JSON on stdout, one clear message and exit code 2 for bad input, and
examples in every help text."""

import json
import os
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import click
import numpy as np
import pytest
import torch
import typer
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

import vldebias
import vldebias.cli as cli
from apps.shares.answers import ANSWERS, AnnotationLog
from tests.cli.conftest import call as run
from tests.processes import run_python
from tests.refusals import refused
from vldebias.cli import app, common
from vldebias.data import Embeddings, save_embeddings
from vldebias.errors import EXTRAS_OF_COMMAND, MissingPackageError, VldebiasError, warn
from vldebias.hosts.loading import Loaded
from vldebias.methods import METHODS, Reference
from vldebias.methods.listing import declarations
from vldebias.miniature import load_clip, open_world
from vldebias.prompts import list_prompts, load_prompts
from vldebias.study.inputs import Inputs
from vldebias.study.suite import load_suite
from vldebias.study.suite_texts import texts_of_packaged_suite
from vldebias.utils.devices import device_of
from vldebias.utils.files import packaged
from vldebias.utils.options import Options

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")


def commands(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of a command and of all commands below it."""
    paths = [path]
    for name, child in getattr(command, "commands", {}).items():
        paths += commands(child, (*path, name))
    return paths


COMMANDS = commands(typer.main.get_command(app))


def sections_of(help_text: str) -> dict[str, list[str]]:
    """Return the lines of each section of a help text, and those before the first as ""."""
    sections: dict[str, list[str]] = {"": []}
    title = ""
    for line in help_text.splitlines():
        if re.fullmatch(r"[A-Z][a-z ]+:", line):
            title = line.removesuffix(":")
            sections[title] = []
        else:
            sections[title].append(line)
    return sections


def entries_of(lines: list[str]) -> list[str]:
    """Return the name and text of each argument or option in a section, on one line each."""
    entries: list[str] = []
    for line in filter(None, lines):
        if re.match(r"  \S", line):
            entries.append("")
        entries[-1] += f"{line.strip()}  "
    return entries


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_the_same_style_of_help(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(
        app, (*path, "--help"), env={"COLUMNS": "80"}, prog_name="vldebias", catch_exceptions=False
    )
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    # No frames, cut words, types, braces or bracketed remarks of the libraries.
    assert not re.search(r"[─-╿…]|<\w+|\[(default|required|\d+<=)|\.{4}", shown.output)
    assert not re.search(r"[{}]", lines[0])
    sections = sections_of(shown.output)
    assert lines[0].startswith(f"Usage: {' '.join(('vldebias', *path))} [OPTIONS]")
    assert re.match("  [A-Z]", lines[2])
    titles = list(sections)
    assert titles[1] == "Examples"
    assert [title for title in titles if title in ("Arguments", "Options", "Commands")] == [
        title for title in ("Arguments", "Options", "Commands") if title in titles
    ]
    # Lines are neither wrapped nor padded, so that pasting them into a shell works.
    examples = list(filter(None, sections["Examples"]))
    assert all(line.startswith("  ") for line in examples)
    assert any(f"vldebias {' '.join(path)}".strip() in line for line in examples)
    assert lines.index("Examples:") < 35, "first screen"
    for title in titles[2:]:
        for entry in entries_of(sections[title]):
            name, _, text = entry.strip().partition("  ")
            assert text.strip().endswith((".", ".)", '."')), name
            assert not re.search(r"(?i)\(default|defaults? to|default is", text), name
    assert ("Generated images" in titles) == (path == ("eval", "run"))


@pytest.mark.parametrize(
    ("called", "place"),
    [
        ("balance", "'prompts balance'"),
        ("compare", "'eval compare'"),
        ("list", "'eval list' or 'prompts list'"),
        ("quickstrat", "'quickstart'"),
    ],
)
def test_a_command_without_its_group_is_reported_with_the_group(called: str, place: str) -> None:
    done = CliRunner().invoke(app, (called, "x"))
    assert done.exit_code == 2
    assert f"Did you mean {place}?" in done.output


def test_brackets_in_a_help_text_are_not_markup() -> None:
    help_text = CliRunner().invoke(app, ("mcp", "--help"), env={"COLUMNS": "100"}).output
    assert "pip install '.[mcp]'" in " ".join(help_text.split())


def test_help_and_lists_do_not_import_torch() -> None:
    light_commands = [
        ["--help"],
        ["debias", "--help"],
        ["label", "--help"],
        ["prompts", "list"],
        ["eval", "list"],
    ]
    script = f"""
import sys, vldebias
from vldebias.cli import app
vldebias.balance_prompts("a nurse", "gender")
for arguments in {light_commands}:
    app(arguments, standalone_mode=False)
    heavy = {{'torch', 'scipy', 'gradio', 'transformers', 'diffusers', 'matplotlib'}}
    print(sorted(heavy & set(sys.modules)))
"""
    done = run_python(script)
    assert done.stderr == ""
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == ["[]"] * len(
        light_commands
    )


def test_listed_methods_match_the_registry() -> None:
    listed = {row["name"]: row for row in json.loads(run("methods", "--json"))}
    assert list(listed) == list(declarations())
    assert set(METHODS) < set(listed)
    assert listed["cali"]["needs"] == ["prompt pairs"]
    assert listed["cali"]["settings"] == ["lam"]
    assert listed["rerank"]["for"] == ["results"]
    assert "(Chuang et al." in run("methods")


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("command", ["methods", "prompts list"])
def test_a_list_never_truncates_a_name(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(common, "out", lambda: console)
    lines = run(command).splitlines()
    assert max(map(len, lines)) <= width
    assert {row["name"] for row in json.loads(run(command, "--json"))} <= {
        line.split(" ")[0] for line in lines
    }


@pytest.mark.parametrize(
    "command", ["methods", "prompts list", "eval list", "eval data birds --option n=40"]
)
def test_piped_output_is_only_tab_separated_values(command: str) -> None:
    head, *rows = (line.split("\t") for line in run(command).splitlines())
    assert rows
    assert {len(row) for row in rows} == {len(head)}


def test_a_terminal_gets_a_grid(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # This allows two columns more than the text, because rich before 13.8 keeps two spaces after
    # the last cell.
    console = Console(width=22, force_terminal=True, color_system=None)
    monkeypatch.setattr(common, "out", lambda: console)
    common.print_grid(("a", "bcd", "e"), [("long", "y" * 11, "z")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["a     bcd          e", "long  yyyyyyyyyyy  z"]
    # Nothing is interpreted as markup, neither in the header nor in a cell.
    common.print_grid(("[b]", "c"), [("[d]", "e")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["[b]  c", "[d]  e"]


def test_version_and_prompt_sets_are_printed(tmp_path: Path) -> None:
    assert run("--version") == run("--version", "methods") == f"{vldebias.__version__}\n"
    listed = json.loads(run("prompts", "list", "--json"))
    assert [s["name"] for s in listed] == list_prompts()
    assert listed[0]["hash"] == load_prompts(listed[0]["name"]).hash
    path = tmp_path / "waterbirds.yaml"
    path.write_text(run("prompts", "show", "waterbirds"))
    assert load_prompts(path).hash == load_prompts("waterbirds").hash
    assert run("prompts", "show", str(path)) == path.read_text()


def test_prompts_new_writes_a_set_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "glasses.yaml"
    attributes = "--attribute with=bespectacled --attribute without=clear-eyed"
    command = f"prompts new {path} {attributes} --concept doctor,nurse"
    assert "2 pairs" in run(command, with_stderr=True)
    assert load_prompts(path).pairs[1] == (
        "A photo of a bespectacled nurse.",
        "A photo of a clear-eyed nurse.",
    )
    with pytest.raises(VldebiasError, match="exists"):
        run(command)
    with pytest.raises(VldebiasError, match=r"--attribute bespectacled: expected name=value"):
        run("prompts new x.yaml --attribute bespectacled --concept doctor")


@refused(
    ("debias gender --out x", "either --model"),
    ("debias gender --out x --model ./nowhere", "./nowhere: no such folder; check the path"),
    ("debias gender --out x --model m --dtype int3", "expected one of float32"),
    ("debias gender --model m --projection x --lam 1", "--lam "),
    ("debias gender --model m --projection x", "neither a folder nor"),
    (f"debias gender --model miniature --merge {Path(__file__).parent}", "not empty"),
    ("debias gender --model m --check --method cali", "--method "),
    ("debias gender --model miniature --method equalise", "images"),
    ("prompts show gendre", "got the prompt set 'gendre'"),
    (f"quickstart --out {__file__}", "is a file; choose a writable folder"),
    error=VldebiasError,
)
def test_invalid_input_is_explained(command: str) -> None:
    run(command)


@refused(
    ("gendre", r"got the prompt set 'gendre'; did you mean 'gender'\? \(expected one of age, "),
    ("gender --method calli", r"method: got 'calli'; did you mean 'cali'.*one of none, orth, "),
    ("gender --device cpuu", "device cpuu: .* such as auto, cpu"),
    ("gender --device cuda:99", "device cuda:99: .* such as auto, cpu"),
    (f"gender --out {__file__}", "is a file; choose a writable folder"),
    error=VldebiasError,
)
def test_a_wrong_name_is_reported_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setattr(
        "vldebias.hosts.loading.load_host", lambda *_, **__: pytest.fail("a model was loaded")
    )
    run(f"debias {arguments} --model huge/model")


def test_an_unwritable_folder_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(VldebiasError, match=f"{tmp_path} is not writable"):
        common.check_out(tmp_path / "new" / "in")


def test_the_device_is_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_gpu, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda has_gpu=has_gpu: has_gpu)
        assert (device_of("auto"), device_of("cpu")) == (device, "cpu")


def test_a_warning_with_brackets_is_printed_unchanged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "a name [/b] and [red]another[/red]" * 3
    monkeypatch.setattr(cli, "app", lambda: [warn(text) for _ in range(3)])
    cli.main()
    # It is only shown once: checking and then reading a file raises the same warning twice.
    assert tuple(capsys.readouterr()) == ("", f"warning: {text}\n")


@pytest.mark.parametrize("error", [VldebiasError("x"), FileNotFoundError("x"), KeyboardInterrupt()])
def test_errors_end_the_process_with_one_message_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    monkeypatch.setattr(
        sys.modules["vldebias.cli.quickstart"], "check_out", Mock(side_effect=error)
    )
    monkeypatch.setattr(sys, "argv", ["vldebias", "quickstart"])
    message, code = (
        ("interrupted", "130") if isinstance(error, KeyboardInterrupt) else ("error: x", "2")
    )
    with pytest.raises(SystemExit, match=code):
        cli.main()
    assert tuple(capsys.readouterr()) == ("", f"{message}\n")


@pytest.mark.parametrize("outer", [ImportError, VldebiasError])
def test_an_interrupt_during_a_library_import_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outer: type[Exception],
) -> None:
    """Compiled libraries turn the interrupt into an ImportError, which a host may re-raise as one
    of our errors."""

    def interrupted() -> None:
        try:
            raise ImportError("initialization failed") from KeyboardInterrupt()
        except ImportError as error:
            raise outer("cannot be loaded") from error

    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit, match="130"):
        cli.main()
    assert tuple(capsys.readouterr()) == ("", "interrupted\n")


def test_debias_saves_an_edit_that_can_be_attached_and_inspected(tmp_path: Path) -> None:
    options = "debias waterbirds --model miniature"
    printed = run(f"{options} --method cali --lam 200 --out {tmp_path / 'b'} --json")
    fitted = json.loads(printed)["roles"]["text"]
    before, after = fitted["diagnostics"]["waterbirds"]["pair_distance"]
    assert after < before / 2
    assert vldebias.CalibratedProjection.from_pretrained(tmp_path / "b" / "text").lam == 200
    command = f"{options} --projection {tmp_path / 'b'}"
    role = json.loads(run(command, "--json"))["roles"]["text"]
    assert role["provenance"] == fitted["provenance"]
    assert "choice" not in role["provenance"]
    for key in ("pair_distance", "spurious_spread"):
        saved_figure, known = (
            report["diagnostics"]["waterbirds"][key] for report in (role, fitted)
        )
        assert saved_figure == pytest.approx(known, rel=1e-5)
    copied = run(command, "--out", str(tmp_path / "c"), with_stderr=True)
    assert "pair distance\twaterbirds\ttext" in copied
    assert f" -> {tmp_path / 'c' / 'text'}" in copied
    (tmp_path / "c" / "text").rename(tmp_path / "c" / "sequence")
    with pytest.raises(
        VldebiasError, match="for the role 'sequence', but the model only has the roles text"
    ):
        run(options, "--projection", str(tmp_path / "c"))


def test_reference_has_the_same_effect_as_in_python(tmp_path: Path) -> None:
    model, _, tokenizer = load_clip()
    features = (
        np.random.default_rng(0)
        .standard_normal((200, model.text_projection.shape[1]))
        .astype(np.float32)
    )
    file = save_embeddings(tmp_path / "images.npz", Embeddings.from_arrays(features))
    options = f"--reference {file} --method difference --out {tmp_path / 'a'}"
    run(f"debias fairface-gender --model miniature {options}")
    saved = vldebias.CalibratedProjection.from_pretrained(tmp_path / "a" / "text")
    reference = Reference(features)
    fitted = vldebias.fit_projections(
        model, "fairface-gender", method="difference", tokenizer=tokenizer, reference=reference
    ).only
    assert saved.method == "difference+equalise"
    torch.testing.assert_close(saved.matrix(), fitted.matrix(), atol=1e-6, rtol=0)


def test_labels_of_a_folder_move_the_boundary_as_those_of_a_file(tmp_path: Path) -> None:
    images = open_world("birds", n=60)
    folder = tmp_path / "birds"
    folder.mkdir()
    for row in range(60):
        images.read(row).save(folder / f"{row:02d}.png")
    inputs = Inputs(Options(out=tmp_path, model="miniature", reference=folder))
    margins = inputs["reference"].unit[:].double() @ inputs.texts.embed(
        load_prompts("waterbirds").classes
    ).diff(dim=0).T.squeeze(1)
    # Call those images water birds that score highest, so that text alone is often wrong.
    answers = AnnotationLog(folder / ANSWERS)
    for row, is_high in enumerate((margins > margins.quantile(0.8)).tolist()):
        name = "waterbird" if is_high else "landbird"
        answers.append(f"{row:02d}.png", "ada", "class", name)
    command = "debias waterbirds --model miniature --reference"
    done = run(command, str(folder), "--out", str(tmp_path / "edit"), with_stderr=True)
    assert "60 of 60 images have a label of class" in done
    assert done.count("Moved the boundary") == 1
    edit = vldebias.CalibratedProjection.from_pretrained(tmp_path / "edit" / "text")
    assert edit.method == "difference+boundary"
    rows = Inputs(Options(out=tmp_path, model="miniature", reference=folder))["reference"]
    file = save_embeddings(tmp_path / "birds.npz", rows)
    run(command, str(file), "--out", str(tmp_path / "same"))
    same = vldebias.CalibratedProjection.from_pretrained(tmp_path / "same" / "text")
    torch.testing.assert_close(same.matrix(), edit.matrix(), atol=1e-6, rtol=0)


def test_a_declined_default_writes_nothing_and_exits_with_code_1(tmp_path: Path) -> None:
    command = "debias gender --model miniature"
    saved = tmp_path / "saved"
    run(command, "--method", "difference", "--out", str(saved))
    before = {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    done = run(command, "--out", str(saved), code=1, with_stderr=True)
    assert done.count("Re-ranking leaves less of the skew") == 1
    assert "(--method difference)" in done
    assert "vldebias.rerank(" in done
    assert f"nothing was written to {saved}" in done
    assert {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()} == before
    run(command, "--merge", str(tmp_path / "merged"), code=1)
    assert not (tmp_path / "merged").exists()
    facts = json.loads(run(command, "--json", code=1))
    assert facts["roles"] == {}
    (declined,) = facts["declined"]
    assert (declined["attribute"], declined["method"]) == ("gender", "default: none")
    assert declined["reason"].startswith("Re-ranking leaves less of the skew")


def test_the_set_for_which_the_default_declines_is_left_out(tmp_path: Path) -> None:
    command = f"debias gender waterbirds --model miniature --out {tmp_path}"
    done = run(command, with_stderr=True)
    assert "gender: no edit. Re-ranking" in done
    assert vldebias.load_edit(tmp_path)["text"].provenance.attribute == "waterbirds"
    declined = json.loads(run(command, "--json"))["roles"]["text"]["provenance"]["declined"]
    assert [choice["attribute"] for choice in declined] == ["gender"]


def test_the_first_example_of_debias_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = run("debias", "--help").split("Examples")[1]
    program, *arguments = examples.strip(" :\n").splitlines()[0].split()
    assert program == "vldebias"
    assert "gender" in run(*arguments)
    card = (tmp_path / "edit" / "text" / "README.md").read_text()
    assert "measure before and after" in card
    assert "mitigates" not in card


def test_merge_writes_a_checkpoint_that_runs_without_the_package(tmp_path: Path) -> None:
    run(f"debias waterbirds --pipeline miniature --method orth --merge {tmp_path}")
    assert (tmp_path / "model_index.json").is_file()
    folder = tmp_path / "new" / "in"
    command = f"debias gender --model miniature --method cali --merge {folder}"
    assert f"saved to {folder}" in run(command, with_stderr=True)
    merged, _, tokenizer = load_clip()
    merged.load_state_dict(load_file(folder / "open_clip_model.safetensors"))
    attached = load_clip()[0]
    ids = tokenizer(["A photo of a doctor."])
    with vldebias.debias(attached, "gender", method="cali", tokenizer=tokenizer), torch.no_grad():
        torch.testing.assert_close(
            merged.encode_text(ids), attached.encode_text(ids), rtol=1e-4, atol=1e-5
        )


def test_a_check_prints_a_table_or_json_and_fails_on_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    findings = [("sound", True, ""), ("merged", None, "why"), ("removed", False, "")]
    check = Mock(return_value=iter(findings))
    loaded = Loaded(Mock(), "tiny")
    monkeypatch.setattr("vldebias.study.edit_check.check", check)
    monkeypatch.setattr("vldebias.hosts.loading.load_host", lambda **_: loaded)
    printed = run("debias gender waterbirds --model tiny --check", code=1, with_stderr=True)
    assert "tiny (Mock); " in printed
    assert "sound\tok\t\nmerged\tnot tried\twhy\nremoved\tWRONG\t\n" in printed
    check.assert_called_once_with(loaded, "gender", num_inference_steps=2)
    loaded.host.set_progress_bar_config.assert_called_once_with(disable=True)


def test_gradio_does_not_send_telemetry() -> None:
    variables = {f"GRADIO_ANALYTICS_{name}" for name in ("ENABLED", "MAX_EVENTS")}
    script = "import os, apps.demo.commands; print(*[os.environ[n] for n in NAMES])"
    environment = {name: os.environ[name] for name in os.environ if name not in variables}
    done = run_python(script.replace("NAMES", repr(sorted(variables))), env=environment)
    assert done.stdout.split() == ["False", "200"]


@pytest.mark.parametrize("command", ["demo", "label ."])
def test_missing_gradio_is_reported_with_the_command_that_installs_it(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The pages also need other packages, which the extra installs as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("apps.label.session.open_study", Mock())
    for package in ("gradio", "PIL"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingPackageError, match=r"gradio is not installed: pip install '\.\[demo\]'"
    ):
        run(command)
    assert EXTRAS_OF_COMMAND.get() == ""  # later errors name no extras of this command


def test_options_are_passed_to_the_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = Mock()
    gradio = ModuleType("gradio")
    gradio.__spec__ = ModuleSpec("gradio", None)
    monkeypatch.setitem(sys.modules, "gradio", gradio)
    monkeypatch.setitem(sys.modules, "apps.demo.page", page.demo_page)
    monkeypatch.setitem(sys.modules, "apps.label.page", page.label_page)
    monkeypatch.setattr("apps.label.commands.credentials", page.serving.credentials)
    monkeypatch.setattr("apps.label.session.open_study", page.label.open_study)
    run("demo --model m --device cpu --port 65535 --public")
    model = {"model": "m", "device": "cpu", "embeddings": None, "images": None}
    page.demo_page.serve_demo.assert_called_once_with(model, port=65535, public=True)
    run("demo", "--port", "65536", code=2)
    run("label", str(tmp_path), "--attribute", "gender", "--questions", "0")
    page.serving.credentials.assert_called_once_with(public=False)
    how = {"file": None, "annotators": [], "most": None, "sample": "judge"}
    page.label.open_study.assert_called_once_with(tmp_path, ["gender"], [], **how)
    page.label_page.serve_study.assert_called_once_with(
        page.label.open_study.return_value, port=None, public=False
    )
    run("label", str(tmp_path), "--choices", "race")
    page.label.open_study.assert_called_with(tmp_path, [], ["race"], **how | {"most": 200})


def test_help_names_values_alike_and_lists_the_suites() -> None:
    audit = run("audit", "--help")
    assert re.search(r"--out +PATH", audit)
    assert re.search(r"--measure +N", audit)
    assert re.search(r"--width +X", audit)
    options = audit[audit.index("Options") :]
    assert options.index("Measurement") < options.index("--width") < options.index("Other texts")
    suites = " ".join(run("eval", "--help").split())
    assert "<bool>" not in suites
    assert ", ".join(packaged("suites")) in suites


HEAVY = ("torch", "numpy", "pyarrow", "pandas", "datasets")


def run_and_look_for_imports(*args: str, folder: Path | None = None) -> tuple[str, str]:
    """Run a command in a separate process. Return stderr, and stdout with a last line that lists
    the imported `HEAVY` modules."""
    code = (
        "import sys; from vldebias.cli import main\n"
        "try: main()\n"
        f"finally: print([name for name in {HEAVY} if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = run_python(code, *args, check=False, cwd=folder, env=environment, timeout=300)
    return done.stderr, done.stdout


HERE = ("--model", "miniature", "--data-root", ".")


@pytest.mark.parametrize(
    ("arguments", "missing", "unloaded"),
    [
        (("waterbirds",), "this suite needs --data-root", HEAVY),
        (("waterbirds", *HERE), "metadata.csv or metadata_waterbirds.csv not found", ("torch",)),
        (("celeba", *HERE), "list_attr_celeba.txt not found", ("torch",)),
        (("fairface", *HERE), "fairface_label_val.csv not found", ("torch",)),
    ],
)
def test_a_suite_without_its_data_is_rejected_before_libraries_are_imported(
    arguments: tuple[str, ...], missing: str, unloaded: tuple[str, ...], tmp_path: Path
) -> None:
    stderr, stdout = run_and_look_for_imports("eval", *arguments, folder=tmp_path)
    assert missing in stderr
    assert not [name for name in unloaded if f"'{name}'" in stdout]


def test_a_gallery_smaller_than_k_is_rejected_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "val").mkdir()
    rows = ["file,age,gender,race"]
    for number, gender in enumerate(("Male", "Female")):
        Image.new("RGB", (8, 8)).save(tmp_path / f"val/{number}.jpg")
        rows.append(f"val/{number}.jpg,20-29,{gender},White")
    (tmp_path / "fairface_label_val.csv").write_text("\n".join(rows))
    stderr, stdout = run_and_look_for_imports("eval", "fairface", *HERE, folder=tmp_path)
    assert "expected at least k = 1000 images, got 2" in stderr
    assert "vldebias eval show fairface > mine.yaml" in stderr
    assert "torch" not in stdout


def test_a_table_with_missing_images_is_rejected_before_torch_is_imported(tmp_path: Path) -> None:
    rows = "filepath,title\nmissing/0.jpg,A nurse.\nmissing/1.jpg,A pilot.\n"
    (tmp_path / "captions.csv").write_text(rows)
    stderr, stdout = run_and_look_for_imports("train", "--data", "captions.csv", folder=tmp_path)
    assert "missing/0.jpg" in stderr
    assert "torch" not in stdout


def test_missing_training_data_is_rejected_before_numpy_is_imported(tmp_path: Path) -> None:
    for name in ("nofolder", "captions/", "./captions", "a/b/c", "nobody/nothing"):
        stderr, stdout = run_and_look_for_imports(
            "train", "--data", name, "--model", "miniature", folder=tmp_path
        )
        assert name in stderr
        assert "no such file or folder" in stderr
        assert stdout == "[]\n"


def test_a_result_that_does_not_exist_is_named_with_its_neighbour(tmp_path: Path) -> None:
    folder = tmp_path / "it's"
    folder.mkdir()
    (folder / "result.json").touch()
    done = CliRunner().invoke(app, ["eval", "gate", str(folder / "resul.json")])
    assert done.exit_code == 2
    message = " ".join(done.stderr.split())
    assert f"{folder}/resul.json: no such file or folder; did you mean 'result.json'?" in message


def test_packaged_suite_prompts_are_printed_without_torch(tmp_path: Path) -> None:
    _, stdout = run_and_look_for_imports("eval", "show", "fairface", "--texts", folder=tmp_path)
    *texts, imported = stdout.splitlines()
    assert tuple(texts) == load_suite("fairface").texts()
    assert "torch" not in imported


@pytest.mark.parametrize("name", packaged("suites"))
def test_prompts_read_without_torch_match_the_validated_suite(name: str) -> None:
    assert texts_of_packaged_suite(name) == load_suite(name).texts()
