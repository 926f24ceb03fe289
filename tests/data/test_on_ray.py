"""On Ray: the figures of one array to the digit, a worker killed in the midst, embedding that goes on after a kill.

The first part has a stand-in for Ray, which is slow to install: what it gives up is told in a sentence, and a pass does
not wait for ever. The second is skipped where Ray is not installed; `.ci/environments ray` has it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from data_parts import Counting, contents, embed, make_data, shards
from sharded_parts import FEATURES, figures

from vldebias.data import OnRay, Shards
from vldebias.errors import InvalidInputError, VldebiasError

WIDTH = FEATURES.shape[1]
TEXTS = torch.from_numpy(np.random.default_rng(3).normal(size=(4, WIDTH))).float()
CUTS = [1, 3, 400, 401, 900, 1290]
PARTS = np.split(FEATURES, CUTS)


# ---- what Ray gives up -----------------------------------------------------------------------------------------------


class RayError(Exception):
    cause: Exception | None = None


class Ray:
    """Tasks are done where they are asked for; `dead` says with what, and `silent` that no result ever comes."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, dead: RayError | None = None, *, silent: bool = False) -> None:
        self.dead, self.silent, self.waited = dead, silent, list[float]()

    def is_initialized(self) -> bool:
        return True

    def put(self, value: Any) -> Any:
        return value

    def remote(self, function: Any) -> Any:
        one = SimpleNamespace(remote=function)
        return SimpleNamespace(options=lambda **_: one)

    def wait(self, results: list[Any], *, timeout: float, fetch_local: bool) -> tuple[list[Any], list[Any]]:
        self.waited.append(timeout)
        return ([], results) if self.silent else (results, [])

    def get(self, result: Any) -> Any:
        if self.dead is not None:
            raise self.dead
        return result

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeManagerAddress": "10.0.0.7", "Alive": False}, {"NodeManagerAddress": "10.0.0.8", "Alive": True}]


def on(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The passes over shards on Ray."""
    monkeypatch.setattr("vldebias.data.parallel.need", lambda name: ray)
    shards_ = Shards(PARTS, OnRay(timeout=3, retries=2))
    unit = shards_.unit
    return [lambda: unit.products({"a": TEXTS})["a"], lambda: unit.top(TEXTS, 30), shards_.digest]


def test_passes_are_those_of_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    products, top, digest = on(Ray(), monkeypatch)
    whole = Shards([FEATURES]).unit
    assert torch.equal(products(), whole.products({"a": TEXTS})["a"])
    assert np.array_equal(top(), whole.top(TEXTS, 30))
    assert digest() == Shards(PARTS).digest()


def test_workers_that_die_and_nodes_that_give_no_answer_are_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class WorkerCrashedError(RayError):
        pass

    for one in on(Ray(WorkerCrashedError("raylet, C++ frames")), monkeypatch):
        with pytest.raises(VldebiasError, match=r"died at the same part 3 times.*WorkerCrashedError.*10\.0\.0\.7"):
            one()
    ray = Ray(silent=True)
    for one in on(ray, monkeypatch):
        with pytest.raises(VldebiasError, match=r"no worker gave a result for 3 seconds; .*10\.0\.0\.7.*timeout="):
            one()
    assert set(ray.waited) == {3}


@pytest.mark.parametrize("own", [InvalidInputError("row 3 is zero"), ZeroDivisionError("once")])
def test_an_error_of_the_work_comes_back_as_it_was_raised(own: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, outer = RayError("task"), RayError("of Ray Data")
    inner.cause, outer.__cause__ = own, inner
    for raised in (inner, outer):
        with pytest.raises(type(own), match=str(own)):
            on(Ray(raised), monkeypatch)[0]()


# ---- with Ray --------------------------------------------------------------------------------------------------------

with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: .ci/environments ray has it")
of_ray = pytest.mark.filterwarnings("ignore")  # of Ray itself, and those of made features
HOW: dict[str, Any] = {"shard_size": 4, "batch_size": 3, "workers": 0}


@pytest.fixture(scope="module")
def two() -> Iterator[OnRay]:
    """Two workers on this machine, which find the modules of these tests."""
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(Path(__file__).parent), *sys.path])))
        ray.init("local", num_cpus=2, object_store_memory=200_000_000, **quiet)
        yield OnRay()
        ray.shutdown()


@pytest.fixture
def files(tmp_path: Path) -> Shards:
    for i, part in enumerate(PARTS):
        np.save(tmp_path / f"{i}.npy", part)
    return Shards.open(f"{tmp_path}/*.npy")


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

    def map(self, work: Any, parts: Any) -> Any:
        self.passes += 1
        return super().map(partial(killed_once, self.folder / f"{self.passes}.killed", work), parts)


@with_ray
@of_ray
@pytest.mark.parametrize("task", ["retrieval", "groups"])
def test_two_workers_have_the_figures_of_one_array_also_when_one_is_killed(
    two: OnRay, files: Shards, tmp_path: Path, task: str
) -> None:
    expected = figures(task, FEATURES)
    assert figures(task, files.on(two)) == expected
    deadly = Deadly(tmp_path)
    assert figures(task, files.on(deadly)) == expected
    assert deadly.passes >= 2
    assert len(list(tmp_path.glob("*.killed"))) == deadly.passes


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


@with_ray
@of_ray
def test_a_pool_embeds_to_the_same_bytes_killed_or_failed(two: OnRay, tmp_path: Path) -> None:
    """An actor that is killed is replaced; a pool that failed leaves shards from which another run goes on."""
    embed(make_data(50, {7}), Counting(), tmp_path / "alone", **HOW)
    embed(make_data(50, {7}), Counting(), tmp_path / "pool", **HOW, runner=two)
    embed(make_data(50, {7}), Killed(tmp_path / "killed"), tmp_path / "again", **HOW, runner=two)
    assert (tmp_path / "killed").exists()
    failing, rest = Counting(stop_at=11, stop_with=RuntimeError), Counting()
    with pytest.raises(RuntimeError):
        embed(make_data(50, {7}), failing, tmp_path / "failed", **HOW, runner=two)
    assert 0 < len(shards(tmp_path / "failed")) < 13
    embed(make_data(50, {7}), rest, tmp_path / "failed", **HOW)
    assert rest.images < 49
    for folder in ("pool", "again", "failed"):
        assert contents(tmp_path / folder) == contents(tmp_path / "alone")
