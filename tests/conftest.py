"""Run every test offline, single-threaded and deterministically."""

import functools
import gc
import logging
import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from importlib.util import find_spec

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

from tests.refusals import case_name

# What tests leave behind is small, and looking for it took a twentieth of the time.
gc.set_threshold(20_000, 20, 20)
# What tests write need not survive a loss of power, and they write thousands of files.
os.fsync = lambda handle: None
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]
"""The commands with all their options are built once, not for each call: half of what a short one
takes."""
HAS_TORCH = find_spec("torch") is not None  # the core is text alone: `.ci/environments core`
REGISTRIES: list[Any] = []


@functools.cache
def prepare() -> None:
    """Import torch on one thread, and load what other packages register, once instead of in every
    test."""
    if not HAS_TORCH:
        return
    import torch

    from vldebias.hosts import HOSTS
    from vldebias.methods import METHODS
    from vldebias.metrics import METRICS
    from vldebias.report import result

    # Results name the commit of the checkout, for which two processes of git are started.
    result.commit = functools.cache(result.commit)
    # In each phase of a test pytest hangs two handlers on every logger that keeps its messages to
    # itself. Torch has sixty of these.
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and logger.name.startswith("torch"):
            logger.propagate = True
    torch.set_num_threads(1)
    REGISTRIES.extend([HOSTS, METHODS, METRICS])
    for registry in REGISTRIES:
        len(registry)


def pytest_collectstart() -> None:
    """Prepare only processes that collect tests: the one that distributes them to workers starts
    five seconds earlier without torch."""
    prepare()


# No test is timed: on a busy machine an example that took too long would fail it.
settings.register_profile(
    "untimed",
    settings(),
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


# Files whose slow tests take a minute and more. They begin first, so that no worker is left alone
# with one of them at the end.
LONGEST = (
    "test_printed_commands",
    "test_pipeline_contract",
    "test_training_processes",
    "test_readme",
    "test_notebooks",
    "test_paper",
    "test_kills",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a case by its content, such as `method=cali, lam=20.0`, instead of `options0`."""
    if isinstance(val, (str, bytes)):
        return None  # pytest's own way
    return case_name(val) or None


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Objects of earlier files, mostly imported modules, are excluded from later `gc.collect`
    calls."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    if HAS_TORCH:
        import torch

        # That of every device, unopened, notes each time who asked.
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test (or an example of the documentation) registered before the next one
    runs."""
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "data", dict(registry.data))
        monkeypatch.setattr(registry, "_searched", registry._searched)


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs skip their charts, which take longer than measuring; the tests of runs and pages draw
    them."""
    monkeypatch.setattr("vldebias.report.page._drawn", lambda *rows: [])


def pytest_unconfigure() -> None:
    gc.unfreeze()  # extensions say at exit what was never freed
