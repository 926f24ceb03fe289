"""On Ray: the figures of one array to the digit, a worker killed in the midst, embedding that goes on after a kill.

Skipped where Ray is not installed; `.ci/environments ray` has it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ray = pytest.importorskip("ray", reason="Ray is not installed: .ci/environments ray runs these tests")
from embed_parts import Counting, Stream, contents, embed, make_data, shards  # noqa: E402
from sharded_parts import FEATURES, figures  # noqa: E402

from vldebias.data import Embeddings, OnRay, Shards  # noqa: E402
from vldebias.data.unit_rows import UnitRows  # noqa: E402
from vldebias.errors import InvalidInputError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray itself, and those of made features
CUTS = [1, 3, 400, 401, 900, 1290]
TEXTS = torch.from_numpy(np.random.default_rng(3).normal(size=(4, FEATURES.shape[1]))).float()


@pytest.fixture(scope="module")
def two() -> Iterator[OnRay]:
    """Two workers on this machine, which find the modules of these tests."""
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(Path(__file__).parent), *sys.path])))
        ray.init("local", num_cpus=2, object_store_memory=200_000_000, **quiet)
        yield OnRay()
        ray.shutdown()


@pytest.fixture
def files(tmp_path: Path) -> Shards:
    for i, part in enumerate(np.split(FEATURES, CUTS)):
        np.save(tmp_path / f"{i}.npy", part)
    return Shards.open(f"{tmp_path}/*.npy")


@pytest.mark.parametrize("task", ["retrieval", "groups"])
def test_two_workers_have_the_figures_of_one_array(two: OnRay, files: Shards, task: str) -> None:
    assert figures(task, files.on(two)) == figures(task, FEATURES)


def test_the_blocks_of_a_data_set_are_shards(two: OnRay) -> None:
    dataset = ray.data.from_numpy(np.split(FEATURES, CUTS))
    shards_ = Shards.of_ray(dataset, "data")
    assert np.array_equal(shards_[:], FEATURES)
    assert figures("groups", shards_) == figures("groups", FEATURES)
    lists = ray.data.from_items([{"emb": row.tolist()} for row in FEATURES[:20].astype(np.float32)])
    assert np.array_equal(Shards.of_ray(lists, "emb")[:], FEATURES[:20].astype(np.float32))
    with pytest.raises(InvalidInputError, match=r"expected a column 'features', found \['data'\]"):
        Shards.of_ray(dataset)


def killed_once(mark: Path, work: Any, part: Any) -> Any:
    """`work`, but the first worker that comes here is killed, as a machine that goes away kills it."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return work(part)
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(OnRay):
    """Kills one worker in every pass."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.passes = folder, 0

    def _tasks(self, work: Any, parts: Any) -> Any:
        self.passes += 1
        return super()._tasks(partial(killed_once, self.folder / f"{self.passes}.killed", work), parts)


@pytest.mark.parametrize("task", ["retrieval", "groups"])
def test_a_worker_that_is_killed_in_every_pass_changes_nothing(
    two: OnRay, files: Shards, tmp_path: Path, task: str
) -> None:
    deadly = Deadly(tmp_path)
    assert figures(task, files.on(deadly)) == figures(task, FEATURES)
    assert deadly.passes >= 2
    assert len(list(tmp_path.glob("*.killed"))) == deadly.passes


def test_an_error_of_the_work_comes_back_as_it_is(two: OnRay) -> None:
    broken = FEATURES.copy()
    broken[700] = 0
    rows = Shards.of_arrays(np.split(broken, CUTS)).on(two)
    with pytest.raises(InvalidInputError, match=r"1 rows are zero or not finite, such as \['row 700'\]"):
        rows @ TEXTS.T
    with pytest.raises(ZeroDivisionError):
        list(two.each(lambda n: 1 // n, [2, 0]))


def test_rankings_are_merged_by_the_workers(two: OnRay) -> None:
    """Forty parts in a tree of eights: this process gets one result."""
    got: list[Any] = []

    class Counted(OnRay):
        def _got(self, result: Any) -> Any:
            got.append(super()._got(result))
            return got[-1]

    parts = np.array_split(FEATURES, 40)
    ranked = Shards.of_arrays(parts).on(Counted()).top(TEXTS, 50)
    assert np.array_equal(ranked, Embeddings.of(FEATURES).unit.top(TEXTS, 50))
    assert len(got) == 1
    assert isinstance(Shards.of_arrays(parts).unit, UnitRows)


HOW: dict[str, Any] = {"shard_size": 4, "batch_size": 3, "workers": 0}


@pytest.mark.parametrize("data", ["images", "stream"])
def test_a_pool_embeds_to_the_same_bytes(two: OnRay, tmp_path: Path, data: str) -> None:
    made = {"images": lambda: make_data(50, {7}), "stream": lambda: Stream(50, {7})}[data]
    embed(made(), Counting(), tmp_path / "alone", **HOW)
    found = embed(made(), Counting(), tmp_path / "pool", **HOW, runner=two)
    assert contents(tmp_path / "pool") == contents(tmp_path / "alone")
    assert found.about["images"] == 50


class Killed(Counting):
    """An encoder whose process is killed at its second batch, once."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        forward = self.encoder.forward

        def deadly(batch: Any) -> Any:
            if self.batches and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return forward(batch)

        object.__setattr__(self.encoder, "forward", deadly)


def test_an_actor_that_is_killed_is_replaced_and_its_shard_done_again(two: OnRay, tmp_path: Path) -> None:
    embed(make_data(50), Counting(), tmp_path / "alone", **HOW)
    embed(make_data(50), Killed(tmp_path / "killed"), tmp_path / "pool", **HOW, runner=two)
    assert (tmp_path / "killed").exists()
    assert contents(tmp_path / "pool") == contents(tmp_path / "alone")


def test_the_store_is_the_checkpoint(two: OnRay, tmp_path: Path) -> None:
    """A pool that failed leaves complete shards; the next, or a single process, goes on with the others."""
    embed(make_data(50), Counting(), tmp_path / "alone", **HOW)
    failing = Counting(stop_at=11, stop_with=RuntimeError)
    with pytest.raises(RuntimeError):
        embed(make_data(50), failing, tmp_path / "pool", **HOW, runner=two)
    there = len(shards(tmp_path / "pool"))
    assert 0 < there < 13
    rest = Counting()
    embed(make_data(50), rest, tmp_path / "pool", **HOW)
    assert rest.images == 50 - sum(min(4, 50 - 4 * i) for i in range(there)) or there > 2
    assert contents(tmp_path / "pool") == contents(tmp_path / "alone")
