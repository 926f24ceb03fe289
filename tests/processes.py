"""Run Python in separate processes."""

import subprocess
import sys
from typing import Any


def run_python(
    script: str, *arguments: str, check: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a script with arguments in a new process, which must succeed if `check` is True."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0 or not check, done.stderr
    return done
