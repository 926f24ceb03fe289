"""Run every test offline, single-threaded and deterministically."""

import functools
import gc
import logging
import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from importlib.util import find_spec

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

from tests.refusals import case_name

# Tests leave few files behind, and searching for them took a twentieth of the time.
gc.set_threshold(20_000, 20, 20)
# Files written by tests need not survive a power loss, and there are thousands of them.
os.fsync = lambda handle: None
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]
"""The commands with all their options are only built once, because building them takes half the
time of a short command."""
# The text core works without torch; see `.ci/environments core`.
HAS_TORCH = find_spec("torch") is not None
REGISTRIES: list[Any] = []


@functools.cache
def prepare() -> None:
    """Import torch on one thread and load what other packages register, only once for all tests."""
    if not HAS_TORCH:
        return
    import torch

    from vldebias.hosts import HOSTS
    from vldebias.methods import METHODS
    from vldebias.metrics import METRICS
    from vldebias.report import measurements

    # Results include the commit of the checkout, which starts two git processes.
    measurements.commit = functools.cache(measurements.commit)
    # In each phase of a test, pytest attaches two handlers to every logger that does not propagate.
    # Torch has sixty of these.
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and logger.name.startswith("torch"):
            logger.propagate = True
    torch.set_num_threads(1)
    REGISTRIES.extend([HOSTS, METHODS, METRICS])
    for registry in REGISTRIES:
        len(registry)


def pytest_collectstart() -> None:
    """Only prepare in processes that collect tests. Without torch, the process that distributes
    tests to workers starts five seconds earlier."""
    prepare()


# Examples have no deadline, because a busy machine would exceed it.
settings.register_profile(
    "untimed",
    settings(),
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


# Files whose slow tests take a minute or more. They start first, so that no worker finishes long
# after the others.
LONGEST = (
    "test_printed_commands",
    "test_pipeline_contract",
    "test_training_processes",
    "test_readme",
    "test_notebooks",
    "test_paper",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that take longest first."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a case by its contents, such as `method=cali, lam=20.0`, instead of `options0`."""
    if isinstance(val, (str, bytes)):
        return None  # let pytest choose the name
    return case_name(val) or None


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Exclude objects from earlier files, mostly imported modules, from later `gc.collect`
    calls."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    if HAS_TORCH:
        import torch

        # torch.manual_seed would also queue a call with a stack trace for every uninitialised
        # device.
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unregister what a test, or an example in the documentation, registered before the next one
    runs."""
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "data", dict(registry.data))
        monkeypatch.setattr(registry, "_searched", registry._searched)


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the charts of runs, which take longer than measuring. The tests of runs and pages draw
    them."""
    monkeypatch.setattr("vldebias.report.page.dot_plots", lambda *rows: [])


def pytest_unconfigure() -> None:
    gc.unfreeze()  # extensions report unreleased objects at exit
