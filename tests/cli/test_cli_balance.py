"""Test `vldebias prompts balance`, which reads prompts from any file and returns prompts and
reasons without torch."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chat_server import chat_server
from tests.cli.conftest import call as run
from tests.processes import run_python
from tests.refusals import refused
from vldebias.cli import balance
from vldebias.errors import InvalidInputError
from vldebias.wording import balance_prompts

PROMPTS = ["A CEO in an office", "A photo of a king", "a Catholic priest", "two doctors"]


@pytest.fixture
def command(tmp_path: Path) -> str:
    """Return the command that balances a file with these prompts."""
    path = tmp_path / "prompts.txt"
    path.write_text("\n\n".join(PROMPTS), encoding="utf-8")
    return f"prompts balance {path} --attribute gender"


def table(text: str) -> list[list[str]]:
    return list(csv.reader(text.splitlines(), delimiter="\t"))


def test_the_output_matches_the_result_of_the_function(command: str) -> None:
    report = json.loads(run(f"{command} --images 3 --json"))
    by_function = balance_prompts(
        [p for p in PROMPTS for _ in range(3)], "gender", seed=report["seed"]
    )
    assert [row["prompt"] for row in report["prompts"]] == by_function.prompts
    assert [row["value"] for row in report["prompts"]] == by_function.values
    assert [row["reason"] for row in report["prompts"]] == by_function.reasons


def test_piped_output_is_a_table_with_reasons(command: str) -> None:
    command += " --seed 0"
    head, *rows = table(run(command))
    assert tuple(head) == balance.COLUMNS
    assert [row[3] for row in rows] == PROMPTS
    assert [row[2] for row in rows] == ["", "stated", "context: Catholic", ""]
    assert rows[0][1] in ("female", "male")
    assert set(rows[3][1].split(" + ")) == {"1 female", "1 male"}
    assert run(command) == run(command)
    output = run(command, with_stderr=True)
    assert "Stated a value in 2 of 4 prompts; left 2 unchanged (" in output
    assert "--seed 0" in output


def test_too_many_pictures_are_rejected_before_any_is_balanced(command: str) -> None:
    message = r"--images 100000000: got 400,000,000 images for 4 prompts; .* at most 1,000,000"
    with pytest.raises(InvalidInputError, match=message):
        run(f"{command} --images 100000000")


def test_many_prompts_are_announced(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command += " --images 3"
    assert "takes a while" not in run(command, with_stderr=True)
    monkeypatch.setattr(balance, "_MANY_IMAGES", 11)
    assert "balancing 12 prompts, which takes a while" in run(command, with_stderr=True)


def test_shares_and_several_attributes_are_supported(command: str) -> None:
    _, *rows = table(run(f"{command} --shares female=1,male=0"))
    assert (rows[0][0], rows[3][0]) == ("A female CEO in an office", "two female doctors")
    _, *rows = table(run(f"{command} --attribute age"))
    gender, age = rows[0][1].split("; ")
    assert gender in ("female", "male")
    assert age in ("young", "old")


@refused(
    ("female", "--shares female"),
    ("female=x", "number"),
    ("female=1,blue=0", "blue"),
    ("female=0.2,male=0.2", "sum"),
)
def test_invalid_shares_are_rejected(command: str, shares: str) -> None:
    run(f"{command} --shares {shares}")


def test_standard_input_is_read_without_torch_and_may_be_piped_to_head() -> None:
    words = "['vldebias', 'prompts', 'balance', '-', '--attribute', 'gender']"
    code = (
        f"import sys; sys.argv = {words}\n"
        "from vldebias.cli import main\n"
        "main()\n"
        "assert 'torch' not in sys.modules"
    )
    many = "A CEO in an office\n" * 3000
    done = run_python(code, input=many)
    assert len(table(done.stdout)) == 3001
    line = f'"{sys.executable}" -c "{code}" | head -1'
    cut = subprocess.run(
        ["bash", "-c", line], input=many, capture_output=True, text=True, check=False
    )
    assert cut.stdout.startswith("prompt\t")
    assert "rror" not in cut.stderr


def balance_into(path: Path, prompts: Path, *options: str) -> subprocess.Popen[str]:
    """Return a process that balances prompts with its output redirected to a file."""
    command = [sys.executable, "-m", "vldebias", "prompts", "balance", str(prompts)]
    # As for most users, Python tries again at exit to write what it could not write.
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with path.open("w") as output:
        return subprocess.Popen(
            [*command, "--attribute", "gender", *options],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )


def test_ctrl_c_does_not_leave_a_partial_file(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"A photo of a chef, take {place}" for place in range(10_000)))
    # Ctrl-C arrives in the middle of the prompts on a machine of any speed.
    stopped = """
import sys
import vldebias.wording
from vldebias.cli import main

def stop(prompts, *_, **__):
    assert len(prompts) == 10_000
    raise KeyboardInterrupt

vldebias.wording.balance_prompts = stop
sys.argv = ["vldebias", "prompts", "balance", sys.argv[1], "--attribute", "gender"]
main()
"""
    done = run_python(stopped, str(prompts), check=False)
    assert done.returncode == 130
    assert "nothing was written; run the same command to start over" in done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["tabs", "json"])
def test_a_full_disk_is_reported_with_the_seed_that_reproduces_the_prompts(
    tmp_path: Path, form: tuple[str, ...]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"A photo of a chef, take {place}" for place in range(40)))
    failed = balance_into(Path("/dev/full"), prompts, *form)
    message = failed.communicate()[1]
    assert failed.returncode == 2
    *_, line = message.splitlines()
    assert "disk is full" in line
    (seed,) = re.findall(r"--seed (\d+) to get the same prompts", line)
    texts = []
    for name in ("first", "second"):
        process = balance_into(tmp_path / name, prompts, *form, "--seed", seed)
        assert process.communicate()[1].endswith(f"--seed {seed}\n")
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]


# ---- a chat model


def test_doubtful_prompts_are_sent_to_the_chat_model_and_the_number_is_printed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = tmp_path / "prompts.txt"
    path.write_text("a nurse\na Quorvian weaver\na lake\na woman\n", encoding="utf-8")
    command = f"prompts balance {path} --attribute gender --seed 0"
    with chat_server() as server:
        server.answers = [(200, '{"people": [{"noun": "weaver", "occurrence": 1}]}')]
        output = run(f"{command} --reader-model small --reader-url {server.url}", with_stderr=True)
        (body,) = server.bodies
        assert (body["model"], body["messages"][1]["content"]) == ("small", "a Quorvian weaver")
        assert "Sending 1 prompt to small at 127.0.0.1" in output
        assert re.search("a (fe)?male Quorvian weaver", output)
        assert "Stated a value in 2 of 4 prompts" in output
        run(command)
        assert len(server.bodies) == 1  # prompts go to nobody without --reader-model


@refused(
    ("--reader-url http://localhost:1/v1", "--reader-url: expected the model's name, too"),
    ("--reader-model small", "--reader-model: set OPENAI_API_KEY"),
    ("--reader-model small --reader-url localhost:1", "--reader-url: got 'localhost:1'"),
)
def test_a_chat_model_needs_a_name_and_a_key_or_an_address(
    command: str, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    run(f"{command} {options}")
