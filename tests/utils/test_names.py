"""Test that names listed without importing a library match the library."""

import json
import re
import subprocess
import sys

import open_clip
import pytest
import typer

from vldebias.cli import Commands, app
from vldebias.errors import InvalidInputError
from vldebias.utils.names import (
    architectures,
    check_name_without_weights,
    check_weights,
)


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def tags_of_architecture() -> dict[str, list[str]]:
    """Return the names known in a process that has not imported torch or open_clip."""
    script = """
import json, sys
from vldebias.utils.names import _tags_of, architectures
print(json.dumps({name: list(_tags_of(name)) for name in architectures()}))
assert not {"torch", "open_clip"} & set(sys.modules)
"""
    done = run(script)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_architectures_match_open_clip_and_need_no_import(
    tags_of_architecture: dict[str, list[str]],
) -> None:
    assert sorted(tags_of_architecture) == sorted(open_clip.list_models())
    assert set(architectures()) == set(open_clip.list_models())


def test_weights_match_open_clip_and_need_no_import(
    tags_of_architecture: dict[str, list[str]],
) -> None:
    for name, tags in tags_of_architecture.items():
        if not name.endswith("-quickgelu"):  # derived from the other names on import
            assert tags == open_clip.list_pretrained_tags_by_model(name)
    check_weights("ViT-B-32", "laion2b_s34b_b79k")
    with pytest.raises(InvalidInputError, match=r"'nosuch'; expected one of openai, .* file"):
        check_weights("ViT-B-32", "nosuch")


SLIPS = [
    ("debias gendre --model ViT-B-32 --pretrained openai", "gendre"),
    ("debias gender --model ViT-B-23 --pretrained openai", "did you mean 'ViT-B-32'"),
    ("debias gender --model ViT-B-32 --pretrained openay", "'openay'; did you mean 'openai'?"),
    ("debias gender --model miniature --method calli", "calli"),
    ("debias gender --model miniature --reference nosuch.npz", "nosuch.npz: no such file"),
    ("debias gender --moddel x", "--moddel"),
    ("eval waterbird --model miniature", "waterbird"),
    ("eval waterbirds --model miniature --data-root nosuch", "--data-root nosuch: no such"),
    ("train --model ViT-B-23 --pretrained openai --data birds", "ViT-B-23"),
    ("train --data birds --set foo=1", "foo: unknown key"),
    ("generate x --attribute gendre", "gendre"),
    ("prompts balance nosuch.txt --attribute gender", "nosuch.txt: no such file"),
    ("prompts balance README.md --attribute gendre", "gendre"),
]


@pytest.fixture(scope="module")
def answers_to_slips() -> list[tuple[int, str]]:
    """Return the exit code and the message of each command, in one process that never imports
    torch."""
    script = """
import contextlib, io, json, sys
from vldebias.cli import main
answers = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["vldebias", *arguments.split()]
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            main()
    except SystemExit as end:
        answers.append([end.code, message.getvalue()])
    assert "torch" not in sys.modules, arguments
print(json.dumps(answers))
"""
    done = run(script, json.dumps([arguments for arguments, _ in SLIPS]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("place", range(len(SLIPS)), ids=[arguments for arguments, _ in SLIPS])
def test_a_typo_in_the_arguments_is_reported_before_torch_is_imported(
    place: int, answers_to_slips: list[tuple[int, str]]
) -> None:
    code, message = answers_to_slips[place]
    assert code == 2
    assert SLIPS[place][1] in message


def test_the_list_of_commands_shows_the_first_paragraph_of_each_help() -> None:
    group = typer.main.get_command(app)
    for name, entry in Commands.entries.items():
        command = group.commands[name]
        assert command.name == name
        first = command.help.split("\n\n")[0]
        assert re.sub(r"\[/?bold\]", "", first) == entry.summary


def test_a_misspelt_architecture_and_one_without_weights_are_rejected_by_name() -> None:
    with pytest.raises(InvalidInputError, match="did you mean '--model ViT-B-32 --pretrained TAG'"):
        check_name_without_weights("ViT-B32")
    with pytest.raises(InvalidInputError, match=r"without weights.*openai"):
        check_name_without_weights("ViT-B-32")
    for name in ("miniature", "bert-base-uncased", "gpt2"):  # hub ids are accepted
        check_name_without_weights(name)
