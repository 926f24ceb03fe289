"""No command loses a word in a terminal of 80 columns."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
FRAMES = re.compile(r"[─-╿]+")

LISTS = ["methods", "eval list", "prompts list", "eval show waterbirds"]
HELP = [
    f"{command} --help"
    for command in (
        "",
        "debias",
        "train",
        "audit",
        "diagnose",
        "generate",
        "rerank",
        "serve",
        "mcp",
        "demo",
        "label",
        "quickstart",
        "eval",
        "eval shares",
        "eval waterbirds",
        "prompts",
        "prompts balance",
    )
]
MODELS = [
    "eval data birds --option n=40",
    "debias gender --model miniature --method difference",
    "audit prompts.txt --attribute gender --model miniature",
    "prompts balance prompts.txt --attribute gender --seed 1",
    "rerank results.csv --k 2 --attribute gender",
    f"eval gate {ROOT / 'eval/results/quickstart.json'} --max-gap 0.3",
]


def printed(command: str, columns: int, folder: Path) -> str:
    """Return what a command prints in a terminal of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    environment |= {"TERM": "xterm", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "vldebias", *command.split()],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        cwd=folder,
        env=environment,
    )
    os.close(follower)
    chunks = []
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # Linux reports a closed terminal as an error
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(leader)
    assert process.wait() == 0, b"".join(chunks).decode()
    text = b"".join(chunks).decode().replace("\r\n", "\n")
    return ESCAPES.sub("", text)


def words(text: str) -> set[str]:
    return set(FRAMES.sub(" ", text).split())


def check(command: str, folder: Path) -> None:
    narrow = printed(command, 80, folder)
    wide = printed(command, 400, folder)
    assert words(wide) - words(narrow) == set()
    assert words(narrow) - words(wide) == set()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prompts.txt").write_text("A photo of a nurse.\nA photo of a pilot on a ship.\n")
    rows = ["id,score,gender", "1,.9,male", "2,.8,male", "3,.7,female", "4,.6,male"]
    (tmp_path / "results.csv").write_text("\n".join(rows))
    return tmp_path


@pytest.mark.parametrize("command", LISTS[:2])
def test_lists_lose_no_word(command: str, folder: Path) -> None:
    check(command, folder)


@pytest.mark.slow
@pytest.mark.parametrize("command", [*LISTS[2:], *HELP, *MODELS])
def test_no_command_loses_a_word(command: str, folder: Path) -> None:
    check(command, folder)
