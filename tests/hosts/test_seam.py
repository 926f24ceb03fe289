"""Seams and reading: what threads, copies and modes of a model may meet."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from vldebias.hosts.seam import MethodSeam, bare, reading


def test_reading_is_eval_without_gradients_and_comes_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    model[0].eval()
    with torch.autocast("cpu", dtype=torch.bfloat16), reading(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        assert model(torch.ones(1, 2)).dtype == torch.float32
    assert [module.training for module in model.modules()] == [True, False, True]


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


def test_the_last_of_three_readers_gives_the_modes_back() -> None:
    model = nn.Dropout().train()
    with reading(model):
        with reading(model):
            with reading(model):
                assert not model.training
            assert not model.training
        assert not model.training
    assert model.training


def test_an_error_inside_gives_the_modes_back() -> None:
    model = nn.Dropout().train()
    with pytest.raises(ZeroDivisionError), reading(model):
        _ = 1 / 0
    assert model.training


class Host:
    def encode(self, x: int, scale: int = 1) -> int:
        """Docs."""
        return x * scale


class Seam(MethodSeam):
    def __call__(self, *args: int, **kwargs: int) -> int:
        call = self.bind(*args, **kwargs)
        return int(self.project("joint", self.original(*call.args, **call.kwargs)))


def test_a_seam_stands_in_for_a_method_and_leaves_no_trace() -> None:
    host = Host()
    seam = Seam("Host", lambda role, x, texts: -x, host, "encode")
    seam.put_on()
    assert host.encode(2, scale=3) == -6
    assert (host.encode.__name__, host.encode.__doc__) == ("encode", "Docs.")
    with bare():
        assert host.encode(2) == 2
    seam.take_off()
    assert host.encode(2) == 2
    assert vars(host) == {}
    host.encode = mine = lambda x: 10 * x
    seam = Seam("Host", lambda role, x, texts: -x, host, "encode")
    seam.put_on()
    assert host.encode(2) == -20
    seam.take_off()
    assert host.encode is mine
