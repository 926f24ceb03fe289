"""Test the nodes in a real ComfyUI.

These tests need a checkout (COMFYUI=DIR) and a Python with ComfyUI's requirements
(COMFYUI_PYTHON=PATH). Otherwise, they are skipped, and the summary says so.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "comfyui" / "run_comfyui.py"


def test_the_nodes_run_in_a_real_comfyui() -> None:
    if not os.environ.get("COMFYUI"):
        pytest.skip(
            "NOT TRIED IN COMFYUI: set COMFYUI to a checkout of Comfy-Org/ComfyUI, and"
            " COMFYUI_PYTHON to a Python that has its requirements"
        )
    python = os.environ.get("COMFYUI_PYTHON") or sys.executable
    done = subprocess.run([python, SCRIPT], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "all passed" in done.stdout
