"""Test that results on Ray match those of a single array, that nothing is printed, that all objects
are freed, and that killed workers and programs are handled. The tests are skipped if Ray is not
installed; `.ci/environments ray` installs it."""

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
from ray_program import HOW
from sharded_parts import FEATURES, figures

from vldebias.data import ImageData, OnRay, Shards
from vldebias.errors import InvalidInputError, VldebiasError

PARTS = np.split(FEATURES, [1, 3, 400, 401, 900, 1290])


pytestmark = [
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is not installed: .ci/environments ray has it"
    ),
    pytest.mark.filterwarnings("ignore"),  # Ray's own tasks, and those of generated features
]
PROGRAM = Path(__file__).with_name("ray_program.py")


@pytest.fixture(scope="module")
def two() -> Iterator[OnRay]:
    """Start two workers on this machine that can import the modules of these tests."""
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, [str(Path(__file__).parent), *sys.path]))
        )
        ray.init("local", num_cpus=2, object_store_memory=200_000_000, **quiet)
        with OnRay() as runner:
            yield runner
        # The runner only shuts Ray down if it started Ray.
        assert ray.is_initialized()
        ray.shutdown()


def wait_until(condition: Callable[[], bool]) -> bool:
    """Return True if the condition is met within two minutes. Ray frees objects with a delay."""
    end = time.monotonic() + 120
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def is_all_free() -> bool:
    """Return True if no task or actor uses a processor, and the object store is empty."""
    import ray

    return ray.available_resources() == ray.cluster_resources()


def is_running(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def processes_with(mark: str) -> list[str]:
    """Return the processes with a given text in their environment, which child processes
    inherit."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = file.read_bytes()
        except OSError:  # it has ended in the meantime, or belongs to a different user
            continue
        if mark.encode() in environment:
            found.append(file.parent.name)
    return found


@pytest.fixture
def files(tmp_path: Path) -> Shards:
    for i, part in enumerate(PARTS):
        np.save(tmp_path / f"{i}.npy", part)
    return Shards.open(f"{tmp_path}/*.npy")


def large(part: int) -> tuple[int, np.ndarray]:
    """Return the worker, and more data than Ray sends without its object store."""
    if part == 6:
        raise ZeroDivisionError(part)
    return os.getpid(), np.full(300_000, part**2)


@pytest.mark.parametrize("workers", [None, 1])
def test_passes_are_silent_do_not_warn_and_free_all_objects(
    two: OnRay, workers: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    runner = OnRay(workers=workers)
    assert wait_until(is_all_free)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = list(runner.map(large, range(6)))
    assert [int(squares[0]) for _, squares in values] == [0, 1, 4, 9, 16, 25]
    actors = {process for process, _ in values}
    del values
    assert list(runner.map(large, [])) == []
    with pytest.raises(ZeroDivisionError, match="6") as kept:
        list(runner.map(large, range(40)))
    stopped = runner.map(large, range(40))
    assert next(stopped)[1][0] == 0
    stopped.close()
    # Keep the error and the variables of its frames alive, as a notebook does.
    assert kept.value.__traceback__ is not None
    assert wait_until(is_all_free)
    if workers is not None:
        assert wait_until(lambda: not any(map(is_running, actors)))
    assert capfd.readouterr() == ("", "")


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("no pickle of this")


def unpicklable(part: int) -> Unpicklable:
    return Unpicklable()


@pytest.fixture
def one_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a single retry. A new worker imports all modules, which takes up most of the time of
    these tests."""
    monkeypatch.setattr("vldebias.data.parallel.RETRIES", 1)


def dying(part: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raising(error: Exception, part: int) -> None:
    raise error


@pytest.mark.usefixtures("one_retry")
@pytest.mark.parametrize("workers", [None, 1])
def test_worker_errors_are_raised_and_a_part_that_kills_its_workers_ends_the_pass(
    two: OnRay, workers: int | None
) -> None:
    runner = OnRay(workers=workers)
    for error in (InvalidInputError("row 3 is zero"), ZeroDivisionError("once")):
        with pytest.raises(type(error), match=str(error)):
            list(runner.map(partial(raising, error), [0, 1]))
    with pytest.raises(VldebiasError, match=r"part 1 of 1: .*no pickle of this"):
        list(runner.map(unpicklable, [0]))
    with pytest.raises(VldebiasError, match="part 1 of 2: workers died 2 times"):
        list(runner.map(dying, [0, 1]))
    assert wait_until(is_all_free)


def killed_once(mark: Path, work: Any, part: Any) -> Any:
    """Run `work`, but kill the first worker, as if its machine had failed."""
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
        # New workers import all modules, so only run the first two of about fifty passes.
        if self.passes > 2:
            return super().map(work, parts)
        return super().map(partial(killed_once, self.folder / f"{self.passes}.killed", work), parts)


@pytest.mark.parametrize("task", ["retrieval", "groups"])
def test_two_workers_match_a_single_array_even_if_one_is_killed(
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


def test_a_pool_writes_the_same_bytes_after_kills_and_errors(two: OnRay, tmp_path: Path) -> None:
    """A killed actor is replaced. A failed pool leaves shards from which another run resumes."""
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


def deadly_data(mended: Path) -> ImageData:
    """Return 50 images, one of which is unreadable. Until `mended` exists, reading row 23 kills the
    worker."""
    whole = make_data(50, {7})

    def read(row: int) -> Any:
        if row == 23 and not mended.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return whole.read(row)

    return replace(whole, read=read)


@pytest.mark.usefixtures("one_retry")
def test_a_row_that_kills_every_worker_is_reported_and_other_shards_are_kept(
    two: OnRay, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    with pytest.raises(VldebiasError, match=r"row 23 \('img23'\): every worker"):
        embed(deadly_data(mended), Counting(), tmp_path / "row", **HOW, runner=two)
    assert wait_until(is_all_free)
    assert 5 <= len(shards(tmp_path / "row")) < 13
    mended.touch()
    embed(deadly_data(mended), Counting(), tmp_path / "row", **HOW, runner=two)
    embed(make_data(50, {7}), Counting(), tmp_path / "alone", **HOW)
    assert contents(tmp_path / "row") == contents(tmp_path / "alone")


class OutOfMemory(Counting):
    """Kill every worker, as if it had run out of memory."""

    def __init__(self) -> None:
        super().__init__()

        def deadly(batch: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        object.__setattr__(self.encoder, "forward", deadly)


@pytest.mark.usefixtures("one_retry")
def test_workers_that_die_in_the_model_are_reported_with_the_rows_of_the_shard(
    two: OnRay, tmp_path: Path
) -> None:
    with pytest.raises(VldebiasError, match=r"rows 0 to 3 .*can be read separately.*died 2 times"):
        embed(make_data(4), OutOfMemory(), tmp_path, **HOW, runner=two)


@pytest.mark.parametrize("is_own", [False, True])
def test_a_killed_program_leaves_no_processes_and_a_second_one_resumes(
    two: OnRay, tmp_path: Path, is_own: bool
) -> None:
    """The program either starts Ray itself or runs on a cluster."""
    import ray

    environment = os.environ | {"MARK_OF_TEST": str(tmp_path)}
    if not is_own:
        environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    killed = subprocess.run(
        [sys.executable, PROGRAM, tmp_path / "killed", "40"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (killed.returncode, killed.stdout, killed.stderr) == (-signal.SIGKILL, "", "")
    assert wait_until(is_all_free)
    assert wait_until(lambda: not processes_with(str(tmp_path)))
    assert 0 < len(shards(tmp_path / "killed")) < 13
    rest = Counting()
    embed(make_data(50, {7}), rest, tmp_path / "killed", **HOW)
    assert 0 < rest.images < 49
    embed(make_data(50, {7}), Counting(), tmp_path / "alone", **HOW)
    assert contents(tmp_path / "killed") == contents(tmp_path / "alone")


def test_a_program_that_starts_ray_prints_nothing_and_shuts_it_down(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path / "cache"],
        env=os.environ | {"MARK_OF_TEST": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert wait_until(lambda: not processes_with(str(tmp_path)))
    assert len(shards(tmp_path / "cache")) == 13


def test_the_block_on_the_data_page_runs_as_pasted(
    two: OnRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs/how-to/data.md"
    part = page.read_text(encoding="utf-8").split("<!-- ray:begin -->")[1]
    block = part.split("```py\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(page), "exec"), {})
    assert "retrieval gender" in capsys.readouterr().out
