"""The benchmark of the cache runs on tiny sizes and compares features that agree; times are never tested."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_embedding_cache", ROOT / "eval" / "bench_embedding_cache.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_embedding_cache"] = module
    spec.loader.exec_module(module)
    return module


bench = load_script()


def test_tiny_sizes_run(capsys: pytest.CaptureFixture[str]) -> None:
    timings = bench.run([(6, 4)], repetitions=1)
    assert [(t.images, t.shard_size) for t in timings] == [(6, 4)]
    assert timings[0].bytes > 6 * 128 * 2
    bench.print_timings(timings)
    assert "times faster" in capsys.readouterr().out


def test_a_cache_that_differs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = bench.embed_images

    def noisy(*arguments, **options):  # type: ignore[no-untyped-def]
        found = honest(*arguments, **options)
        found.features[:] = np.random.default_rng().normal(size=found.features.shape)
        return found

    monkeypatch.setattr(bench, "embed_images", noisy)
    with pytest.raises(RuntimeError, match="the cache gives other features than the model"):
        bench.run([(6, 4)], repetitions=1)


def test_the_committed_timings_are_of_the_sizes_in_the_script() -> None:
    committed = json.loads((ROOT / "eval" / "results" / "bench_embedding_cache.json").read_text())
    assert [(t["images"], t["shard_size"]) for t in committed["timings"]] == bench.SIZES
    assert all(t["ratio"] == pytest.approx(t["compute"] / t["read"]) for t in committed["timings"])
