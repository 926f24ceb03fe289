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

ROOT = Path(__file__).parents[1]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def printed_in_terminal(command: Sequence[str], columns: int, folder: Path) -> str:
    """Return what a command prints on a terminal of the given width, without colours.

    Progress and warnings on stderr are not included.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    environment["TERM"] = "xterm"
    environment["PYTHONPATH"] = str(ROOT)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=follower,
            stderr=errors,
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
        code = process.wait()
        errors.seek(0)
        assert code == 0, errors.read().decode()
    text = b"".join(chunks).decode().replace("\r\n", "\n")
    return ESCAPES.sub("", text)
