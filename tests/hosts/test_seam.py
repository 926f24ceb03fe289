"""Seams and reading: what threads, copies and modes of a model may meet."""

import copy
import multiprocessing
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import diffusers_tiny
import models_tiny
import pytest
import torch
from torch import nn

from vldebias.errors import VldebiasError
from vldebias.hosts import resolve
from vldebias.hosts.base import BARE, TOKENIZING, during, hook_methods, reading


def test_a_model_that_is_read_in_several_threads_gets_its_modes_back() -> None:
    """The second reader finds eval mode, which is not what the last one may leave behind."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with reading(model):
            first_in.set()
            assert second_in.wait(10)
        first_out.set()

    def second() -> None:
        assert first_in.wait(10)
        with reading(model):
            second_in.set()
            assert first_out.wait(10)
            assert not model.training

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(first), pool.submit(second)]:
            done.result()
    assert all(module.training for module in model.modules())


class Host:
    def encode(self, x: int, scale: int = 1) -> int:
        """Docs."""
        return x * scale


def test_a_hook_stands_in_for_a_method_and_leaves_no_trace() -> None:
    host, attachment = Host(), SimpleNamespace(state="attached")
    change = lambda original, call: -original(*call.args, **call.kwargs)  # noqa: E731
    take_off = hook_methods(attachment, host, {"encode": change})
    assert host.encode(2, scale=3) == -6
    assert (host.encode.__name__, host.encode.__doc__) == ("encode", "Docs.")
    with during(BARE):
        assert host.encode(2) == 2
    take_off()
    assert host.encode(2) == 2
    assert vars(host) == {}
    host.encode = mine = lambda x: 10 * x
    attachment.host = SimpleNamespace(name="Host")
    take_off = hook_methods(attachment, host, {"encode": change})
    assert host.encode(2) == -20
    ours, host.encode = host.encode, None
    with pytest.raises(VldebiasError, match="replaced"):
        take_off()
    host.encode = ours
    take_off()
    assert host.encode is mine


@pytest.mark.parametrize("kind", ["transformers", "diffusers"])
def test_threads_never_meet_in_a_tokenizer(kind: str) -> None:
    """Fast tokenizers set how they cut and pad before they read, and fail or mix where two threads do so at once."""
    inside, met = threading.Lock(), []

    def guarded(tokenizer: Any) -> Any:
        class Guarded(type(tokenizer)):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                met.append(not inside.acquire(blocking=False))
                try:
                    time.sleep(0.002)
                    return super().__call__(*args, **kwargs)
                finally:
                    if not met[-1]:
                        inside.release()

        other = copy.copy(tokenizer)
        other.__class__ = Guarded
        return other

    if kind == "diffusers":
        pipe = diffusers_tiny.sd()
        pipe.tokenizer = guarded(pipe.tokenizer)
        hosts = [resolve(pipe), resolve(pipe)]
    else:
        case = models_tiny.Transformers("CLIPModel")
        tokenizer = guarded(case.tokenizer)
        hosts = [resolve(case.host, tokenizer=tokenizer) for _ in range(2)]
    expected = hosts[0].embed(["a photo of a doctor"], hosts[0].roles[0])
    for host in hosts:
        host.memory = {}
    met.clear()
    with ThreadPoolExecutor(4) as pool:
        rows = [pool.submit(hosts[i % 2].read, ["a photo of a doctor"], hosts[0].roles[0]) for i in range(8)]
        found = [next(iter(one.result().values())) for one in rows]
    assert met, "nothing was tokenised, so that this tests nothing"
    assert not any(met)
    for row in found:
        torch.testing.assert_close(row, expected[0])


def take() -> None:
    sys.exit(0 if TOKENIZING.acquire(timeout=5) else 1)


def test_a_worker_that_is_forked_while_a_thread_tokenises_can_tokenise() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with TOKENIZING:
            held.set()
            done.wait(20)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        assert held.wait(10)
        worker = multiprocessing.get_context("fork").Process(target=take)
        worker.start()
        worker.join(15)
        done.set()
    assert worker.exitcode == 0
