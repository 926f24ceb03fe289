"""On Ray: the figures of one array to the digit, nothing printed, everything given back, and what
is killed in the midst: a worker, the program, every worker at one row.

Skipped where Ray is not installed; `.ci/environments ray` has it.
"""

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_parts import Counting, contents, embed, make_data, shards
from sharded_parts import FEATURES, figures

from vldebias.data import ImageData, OnRay, Shards
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
        with OnRay() as runner:
            yield runner
            assert ray.is_initialized()
        assert ray.is_initialized()  # not started by the runner, so not ended by it
        ray.shutdown()


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.1)
    return is_so()


def all_is_free() -> bool:
    import ray

    return ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"]


@pytest.fixture
def files(tmp_path: Path) -> Shards:
    for i, part in enumerate(PARTS):
        np.save(tmp_path / f"{i}.npy", part)
    return Shards.open(f"{tmp_path}/*.npy")


def held() -> int:
    """How many objects of Ray this process refers to, which Ray keeps as long."""
    from ray._private.worker import global_worker

    return len(global_worker.core_worker.get_all_reference_counts())


def squared(part: int) -> np.ndarray:
    return np.full(300_000, part**2)


def of_odd_parts(part: int) -> int:
    if part % 2 == 0:
        raise ZeroDivisionError(part)
    return part


@pytest.mark.parametrize("workers", [None, 1])
def test_passes_print_nothing_warn_of_nothing_and_give_everything_back(
    two: OnRay, workers: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    runner = OnRay(workers=workers)
    before = held()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = [int(result[0]) for result in runner.map(squared, range(7))]
    assert values == [0, 1, 4, 9, 16, 25, 36]
    assert list(runner.map(squared, [])) == []
    with pytest.raises(ZeroDivisionError, match="2") as kept:
        list(runner.map(of_odd_parts, [1, 2, 3, 4, 5, 6, 7, 8]))
    first = runner.map(squared, range(100))
    assert next(first)[0] == 0
    first.close()
    assert wait_until(all_is_free)
    # The error is kept as a notebook keeps it, with the variables of its frames.
    assert kept.value.__traceback__ is not None
    assert wait_until(lambda: held() <= before)
    assert capfd.readouterr() == ("", "")


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
        return super().map(partial(killed_once, self.folder / f"{self.passes}.killed", work), parts)


@pytest.mark.parametrize("task", ["retrieval", "groups"])
def test_two_workers_have_the_figures_of_one_array_also_when_one_is_killed(
    two: OnRay, files: Shards, tmp_path: Path, task: str
) -> None:
    expected = figures(task, FEATURES)
    assert figures(task, files.on(two)) == expected
    deadly = Deadly(tmp_path)
    assert figures(task, files.on(deadly)) == expected
    assert len(list(tmp_path.glob("*.killed"))) == deadly.passes >= 2


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


def deadly_data(mark: Path) -> ImageData:
    """50 pictures; until `mark` exists, who reads number 23 is killed."""
    whole = make_data(50, {7})

    def read(index: int) -> Any:
        if index == 23 and not mark.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return whole.read(index)

    return replace(whole, read=read)


def test_a_row_that_kills_every_worker_ends_the_pass_and_the_next_goes_on(
    two: OnRay, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    with pytest.raises(VldebiasError, match="died 4 times at part 6 of 13"):
        embed(deadly_data(mended), Counting(), tmp_path / "row", **HOW, runner=two)
    assert wait_until(all_is_free)
    assert 0 < len(shards(tmp_path / "row")) < 13
    mended.touch()
    embed(deadly_data(mended), Counting(), tmp_path / "row", **HOW, runner=two)
    embed(make_data(50, {7}), Counting(), tmp_path / "alone", **HOW)
    assert contents(tmp_path / "row") == contents(tmp_path / "alone")


PROGRAM = """
import os, signal, sys
from pathlib import Path
from data_parts import Counting, embed, make_data
from dataclasses import replace
from vldebias.data import OnRay

data = make_data(50, {7})
program = os.getpid()

def read(index):
    if index == 40:
        os.kill(program, signal.SIGKILL)
    return data.read(index)

how = {"shard_size": 4, "batch_size": 3, "workers": 0}
embed(replace(data, read=read), Counting(), Path(sys.argv[1]), **how, runner=OnRay(workers=1))
"""


def test_a_program_that_is_killed_gives_its_actors_back_and_another_goes_on(
    two: OnRay, tmp_path: Path
) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    killed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "killed")],
        env=os.environ | {"RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert wait_until(all_is_free)
    assert 0 < len(shards(tmp_path / "killed")) < 13
    rest = Counting()
    embed(make_data(50, {7}), rest, tmp_path / "killed", **HOW)
    assert 0 < rest.images < 49
    embed(make_data(50, {7}), Counting(), tmp_path / "alone", **HOW)
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")
