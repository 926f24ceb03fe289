"""Test that the Python code and the commands in the documentation run unchanged and print the
output shown below them.

To regenerate outputs, run `VLDEBIAS_REWRITE=1 python -m pytest -m slow
tests/experiments/test_readme.py -k below`.
"""

import argparse
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx2
import numpy as np
import pytest
import torch
import typer
from stand_ins import use_two_steps
from typer.testing import CliRunner

import vldebias
from eval.notebooks import alike
from tests.apps.browsing import free_port
from tests.apps.false_upstream import KEY, FalseUpstream, served
from vldebias.cli import app
from vldebias.miniature import load_clip

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", ROOT / "eval" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_output(kind: str) -> list[Any]:
    """Return each block with its file and the output below it, or None if there is no output."""
    blocks = re.compile(rf"```{kind}\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
    cases = []
    for path in FILES:
        name = path.relative_to(ROOT)
        for i, block in enumerate(blocks.finditer(path.read_text(encoding="utf-8"))):
            # test_tutorials.py runs the other tutorial blocks in order.
            is_tutorial = path.parent.name == "tutorials"
            if (
                is_tutorial
                and kind != "console"
                and "pretrained" not in block[1].replace("save_pretrained", "")
            ):
                continue
            cases.append(pytest.param(block[1], block[2], path, id=f"{name}-{i}"))
    return cases


def check_output(block: str, expected: str | None, path: Path, printed: str) -> None:
    """Check that a block prints the output below it. VLDEBIAS_REWRITE=1 rewrites it."""
    if expected is None:
        return
    printed = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    if os.environ.get("VLDEBIAS_REWRITE") and not alike(expected, printed):
        text = path.read_text(encoding="utf-8")
        fence = f"{block}```\n\n```text\n"
        assert text.count(fence + expected + "```") == 1
        path.write_text(
            text.replace(f"{fence}{expected}```", f"{fence}{printed}```"), encoding="utf-8"
        )
        expected = printed
    assert alike(expected, printed), f"{path.name} says:\n{expected}\nit prints:\n{printed}"


def commands(block: str) -> Iterator[list[str]]:
    """Return the words of each `vldebias` command in a block, without redirections and pipes."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(re.split(r" [>|] ", line)[0], comments=True)
        if "vldebias" in words:
            yield words[words.index("vldebias") + 1 :]


def known(words: list[str]) -> click.Command:
    """Return the command that the words call, after checking that it has all options."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while getattr(command, "commands", None) and rest:
        if command.name == "eval" and rest[0] not in command.commands:
            rest.insert(0, "run")
        command = command.commands[rest.pop(0)]
    options = set()
    for parameter in command.params:
        options.update(parameter.opts, parameter.secondary_opts)
    written = {word.split("=")[0] for word in rest if word.startswith("--")}
    assert written <= options, f"vldebias {shlex.join(words)}: no {written - options}"
    return command


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the embedded models in place of those from the hub. No page prints what their pictures
    show."""
    import open_clip
    from diffusers import StableDiffusionPipeline
    from transformers import AutoTokenizer, CLIPModel

    from tests.transformers_clip import load_transformers_clip
    from vldebias.miniature import load_clip, load_pipeline

    def pipeline(name: str, **options: Any) -> Any:
        pipe = load_pipeline()
        monkeypatch.setattr(pipe, "to", lambda device: pipe, raising=False)
        return pipe

    def clip(name: str, pretrained: str) -> Any:
        model, preprocess, _ = load_clip()
        return model, preprocess, preprocess

    use_two_steps(monkeypatch)
    monkeypatch.setattr(StableDiffusionPipeline, "from_pretrained", pipeline)
    monkeypatch.setattr(open_clip, "create_model_and_transforms", clip)
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda name: load_clip()[2])
    monkeypatch.setattr(CLIPModel, "from_pretrained", lambda name: load_transformers_clip()[0])
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda name: load_transformers_clip()[1])


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
@pytest.mark.parametrize(("block", "expected", "path"), with_output("python"))
def test_python_code_runs_and_prints_the_output_below_it(
    block: str,
    expected: str | None,
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(block, "docs", "exec"), {"__name__": "__main__"})
    check_output(block, expected, path, capsys.readouterr().out)


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
def test_the_line_for_an_index_runs_with_test_doubles() -> None:
    """Run the call in docs/index.md with functions as `embed` and `index_call`."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    (call,) = re.findall(r"^\| a vector index \| `(.*?)` \|", text, re.MULTILINE)
    model, _, tokenize = load_clip()

    def embed(texts: list[str]) -> np.ndarray:
        with torch.no_grad():
            return model.encode_text(tokenize(texts)).numpy()

    def index_call(vector: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores = vectors @ vector
        rows = scores.argsort()[::-1][:n]
        return rows, scores[rows], vectors[rows]

    vectors = np.random.default_rng(0).normal(size=(600, 256)).astype(np.float32)
    names = {"vldebias": vldebias, "embed": embed, "vectors": vectors, "index_call": index_call}
    assert len(eval(call, {**names, "text": "A photo of a doctor."})) == 50


def test_the_server_for_a_hosted_api_balances_a_client_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replace the public server with a local one, and the printed port with a free one."""
    text = (ROOT / "docs" / "how-to" / "images-api.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n(vldebias serve .*?)```", text, re.DOTALL)
    block = block.replace("8790", str(free_port()))
    upstream = FalseUpstream()
    with served(upstream.app) as address:
        block = block.replace("https://api.openai.com/v1", address)
        (words,) = commands(block)
        assert words[words.index("--upstream") + 1] == address
        # This is the line with which a client configures its address.
        for name, value in re.findall(r"^export (\w+)=(\S+)$", block, re.MULTILINE):
            monkeypatch.setenv(name, value)
        base_url = os.environ["OPENAI_BASE_URL"]
        monkeypatch.setenv("PYTHONUNBUFFERED", "1")
        command = [sys.executable, "-m", "vldebias", *words]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                printed = next((line for line in process.stderr if "base_url=" in line), "")
                assert printed.strip().endswith(f"base_url={base_url}")
                answer = httpx2.post(
                    f"{base_url}/images/generations",
                    json={"prompt": "A photo of a CEO", "n": 4},
                    headers={"authorization": f"Bearer {KEY}"},
                )
            finally:
                process.terminate()
    assert answer.status_code == 200, answer.text
    prompts = sorted(call["prompt"] for call in upstream.seen)
    assert prompts == ["A photo of a female CEO"] * 2 + ["A photo of a male CEO"] * 2


def test_the_lines_for_comfyui_link_the_nodes_and_install_the_package(tmp_path: Path) -> None:
    """Replace ComfyUI with a folder whose Python records its arguments."""
    text = (ROOT / "docs" / "how-to" / "comfyui.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n(ln -s .*?)```", text, re.DOTALL)
    nodes = tmp_path / "ComfyUI" / "custom_nodes"
    python = tmp_path / "ComfyUI" / ".venv" / "bin" / "python"
    for folder in (nodes, python.parent):
        folder.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@" > ~/asked\n')
    python.chmod(0o755)
    environment = os.environ | {"HOME": str(tmp_path)}
    subprocess.run(["bash", "-ec", block], cwd=ROOT, env=environment, check=True)

    folder, *arguments, package = (tmp_path / "asked").read_text().splitlines()
    assert arguments == ["-m", "pip", "install"]
    project = tomllib.loads((Path(folder) / package / "pyproject.toml").read_text())["project"]
    assert project["name"] == "vldebias"
    # Load the nodes from the folder as ComfyUI does.
    (link,) = nodes.iterdir()
    spec = importlib.util.spec_from_file_location("nodes_of_comfyui", link / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.comfy_entrypoint)


def test_the_readme_is_short_and_starts_with_a_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.index("eval/results/first_plot.png") < text.index("```")
    assert len(text.split()) <= 950
    without_code = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    assert len(re.findall(r"(?<![\w.])\d*\.\d+\b", without_code)) <= 30


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
@pytest.mark.parametrize(("block", "expected", "path"), with_output("bash"))
def test_commands_run_and_print_the_output_below_them(
    block: str, expected: str | None, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`bash` blocks run offline unchanged. `console` blocks name models on the hub or users' own
    folders."""
    monkeypatch.chdir(tmp_path)
    printed = ""
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("printf "):  # it writes a file that the next command reads
            subprocess.run(["bash", "-ec", line], check=True)
        for words in commands(line):
            if known(words).name == "run":
                words = ["eval", "run", *words[1:]] if "run" not in words else words
            ran = CliRunner().invoke(app, words)
            assert ran.exit_code == 0, (words, ran.output, ran.exception)
            first = re.search(r" \| head -(\d+)$", line)
            printed += "".join(
                ran.stdout.splitlines(keepends=True)[: int(first[1]) if first else None]
            )
    check_output(block, expected, path, printed)


MODULES = re.compile(r"`?(python -m (eval[\w.]*)((?: [\w./-]+)*))`?")


def printed_modules() -> list[tuple[str, str]]:
    commands = set()
    for path in FILES:
        for command in MODULES.finditer(path.read_text(encoding="utf-8")):
            commands.add((command[2], command[3].strip()))
    return sorted(commands)


@pytest.mark.parametrize(("module", "arguments"), printed_modules())
def test_a_printed_module_accepts_its_arguments(
    module: str, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only parse the arguments, because some measurements take hours."""
    path = ROOT / Path(*module.split("."))
    assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    loaded = importlib.import_module(module)
    if arguments and (path / "__main__.py").exists():
        loaded = importlib.import_module(f"{module}.__main__")
    # This command does not take arguments.
    if not {"argparse", "parser", "plain_parser"} & vars(loaded).keys():
        assert not arguments
        return
    parsed = []
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser, *arguments: Any) -> Any:
        parsed.append(parse(parser, *arguments))
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [module, *shlex.split(arguments)])
    with pytest.raises(ParsedError):
        loaded.main()
    assert parsed


class ParsedError(Exception):
    """Raise this error once a command has parsed its arguments."""
