"""Real processes on the miniature CLIP: killed without warning and resumed, launched in twos."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from embed_parts import contents, shards
from slow_cache import BATCH, SHARD, N, embed_birds

from vldebias.data import Embeddings

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("slow_cache.py")
BAD = {33: 1, 90: 4}  # row -> shard


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Embeddings, Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return embed_birds(folder)[0], folder


def test_killed_in_the_middle_it_goes_on_and_ends_the_same(
    undisturbed: tuple[Embeddings, Path], tmp_path: Path
) -> None:
    expected, whole = undisturbed
    running = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(tmp_path), "0.15"],
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while len(shards(tmp_path)) < 3:
        assert running.poll() is None, "the program ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    done = [int(path.stem.removeprefix("shard-")) for path in shards(tmp_path)]
    assert 3 <= len(done) < -(-N // SHARD)
    times = {path: path.stat().st_mtime_ns for path in shards(tmp_path)}
    resumed, batches = embed_birds(tmp_path)
    kept = sum(min(SHARD, N - i * SHARD) for i in done) - sum(shard in done for shard in BAD.values())
    assert sum(batches) == N - len(BAD) - kept
    assert len(batches) <= -(-N // BATCH) - 2 * len(done) + 2
    assert {path: path.stat().st_mtime_ns for path in times} == times  # finished shards were left alone
    left = {name: content for name, content in contents(tmp_path).items() if not name.endswith(".partial")}
    assert left == contents(whole)
    assert np.array_equal(resumed.features, expected.features)
    assert resumed.ids == expected.ids
    assert resumed.about["skipped"] == expected.about["skipped"]


def test_two_processes_write_what_one_writes(undisturbed: tuple[Embeddings, Path], tmp_path: Path) -> None:
    """Shards 0, 2 and 4 are there: what is missing is dealt out, not every second of all."""
    expected, whole = undisturbed
    shutil.copytree(whole, tmp_path / "cache")
    for shard in (1, 3, 5, 6, 7):
        shards(tmp_path / "cache")[0].with_name(f"shard-{shard:05d}.safetensors").unlink()
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    done = subprocess.run(
        [*launch, str(PROGRAM), str(tmp_path / "cache"), "0", str(tmp_path / "told")],
        env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads((tmp_path / f"told.{rank}").read_text()) for rank in (0, 1)]
    assert [sum(one["batches"]) for one in told] == [49, 40]  # 1, 5, 7 without row 33, and 3, 6
    assert {one["sum"] for one in told} == {float(expected.normalised().double().sum())}
    assert contents(tmp_path / "cache") == contents(whole)
