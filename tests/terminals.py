"""Run commands in a terminal of a given width."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def printed_in_terminal(command: Sequence[str], columns: int, folder: Path) -> str:
    """Return what a command prints on a terminal of the given width, without colours.

    Progress and warnings on stderr are not included.
    """
    with tempfile.TemporaryFile() as errors:
        text, code = output_on_terminal(command, columns, folder, errors)
        errors.seek(0)
        assert code == 0, errors.read().decode()
    return ESCAPES.sub("", text)


def output_on_terminal(
    command: Sequence[str], columns: int, folder: Path, errors: IO[bytes] | None = None
) -> tuple[str, int]:
    """Return what a command prints on a terminal of the given width, and its exit code.

    Args:
        command: the words of the command.
        columns: the width of the terminal.
        folder: the working directory.
        errors: the file to which stderr is written. By default, the terminal.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    environment["TERM"] = "xterm"
    environment["PYTHONPATH"] = str(ROOT)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower if errors is None else errors,
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
    return b"".join(chunks).decode().replace("\r\n", "\n"), process.wait()
