"""On Ray: the figures of one array to the digit, a worker killed in the midst, embedding that goes
on after a kill.

Skipped where Ray is not installed; `.ci/environments ray` has it.
"""

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_parts import Counting, contents, embed, make_data, shards
from sharded_parts import FEATURES, figures

from vldebias.data import OnRay, Shards
from vldebias.errors import InvalidInputError, VldebiasError

PARTS = np.split(FEATURES, [1, 3, 400, 401, 900, 1290])


pytestmark = [
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is not installed: .ci/environments ray has it"
    ),
    pytest.mark.filterwarnings("ignore"),  # of Ray itself, and those of made features
]
HOW: dict[str, Any] = {"shard_size": 4, "batch_size": 3, "workers": 0}


@pytest.fixture(scope="module")
def two() -> Iterator[OnRay]:
    """Two workers on this machine, which find the modules of these tests."""
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, [str(Path(__file__).parent), *sys.path]))
        )
        ray.init("local", num_cpus=2, object_store_memory=200_000_000, **quiet)
        yield OnRay()
        ray.shutdown()


@pytest.fixture
def files(tmp_path: Path) -> Shards:
    for i, part in enumerate(PARTS):
        np.save(tmp_path / f"{i}.npy", part)
    return Shards.open(f"{tmp_path}/*.npy")


def dying(part: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raising(error: Exception, part: int) -> None:
    raise error


@pytest.mark.parametrize("workers", [None, 1])
def test_an_error_of_the_work_is_raised_and_a_part_that_kills_its_workers_ends_the_pass(
    two: OnRay, workers: int | None
) -> None:
    runner = OnRay(workers=workers)
    for error in (InvalidInputError("row 3 is zero"), ZeroDivisionError("once")):
        with pytest.raises(type(error), match=str(error)):
            list(runner.map(partial(raising, error), [0, 1]))
    with pytest.raises(VldebiasError, match="died 4 times"):
        list(runner.map(dying, [0]))


def killed_once(mark: Path, work: Any, part: Any) -> Any:
    """`work`, but the first worker that comes here is killed, as a machine that goes away kills
    it."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return work(part)
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(OnRay):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.passes = 0

    def map(self, work: Any, parts: Any) -> Any:
        self.passes += 1
        # A new worker imports all anew: of some fifty passes the first two show what is to be seen.
        if self.passes > 2:
            return super().map(work, parts)
        return super().map(partial(killed_once, self.folder / f"{self.passes}.killed", work), parts)


@pytest.mark.parametrize("task", ["retrieval", "groups"])
def test_two_workers_have_the_figures_of_one_array_also_when_one_is_killed(
    two: OnRay, files: Shards, tmp_path: Path, task: str
) -> None:
    expected = figures(task, FEATURES)
    assert figures(task, files.on(two)) == expected
    deadly = Deadly(tmp_path)
    assert figures(task, files.on(deadly)) == expected
    assert len(list(tmp_path.glob("*.killed"))) == 2


class Killed(Counting):
    def __init__(self, mark: Path) -> None:
        super().__init__()
        forward = self.encoder.forward

        def deadly(batch: Any) -> Any:
            if self.batches and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return forward(batch)

        object.__setattr__(self.encoder, "forward", deadly)


def test_a_pool_embeds_to_the_same_bytes_killed_or_failed(two: OnRay, tmp_path: Path) -> None:
    """An actor that is killed is replaced; a pool that failed leaves shards from which another run
    goes on."""
    embed(make_data(50, {7}), Counting(), tmp_path / "alone", **HOW)
    embed(make_data(50, {7}), Counting(), tmp_path / "pool", **HOW, runner=two)
    embed(
        make_data(50, {7}),
        Killed(tmp_path / "killed"),
        tmp_path / "again",
        **HOW,
        runner=OnRay(workers=1),
    )
    assert (tmp_path / "killed").exists()
    failing = Counting(stop_at=11, stop_with=RuntimeError)
    rest = Counting()
    with pytest.raises(RuntimeError):
        embed(make_data(50, {7}), failing, tmp_path / "failed", **HOW, runner=OnRay(workers=1))
    assert 0 < len(shards(tmp_path / "failed")) < 13
    embed(make_data(50, {7}), rest, tmp_path / "failed", **HOW)
    assert rest.images < 49
    for folder in ("pool", "again", "failed"):
        assert contents(tmp_path / folder) == contents(tmp_path / "alone")
