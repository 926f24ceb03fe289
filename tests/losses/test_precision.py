"""Test losses with similarities computed in half precision, and the size of blocks."""

from functools import partial

import pytest
import torch
from torch.nn.functional import normalize

from vldebias import losses
from vldebias.losses import contrast, sums

N = 192
DIM = 64
LOSSES = {
    "info_nce": losses.info_nce,
    "sigmoid": losses.sigmoid,
    "rince": partial(losses.rince, q=0.4),
}
FORMS = {
    "whole": {},
    "blocks": {"chunk_size": 50},
    "within a view": {"within_view": True},
    "each": {"reduction": "none"},
}


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of similar pairs, as from a trained model."""
    generator = torch.Generator().manual_seed(0)
    images = normalize(torch.randn(N, DIM, generator=generator), dim=1)
    texts = normalize(images + 0.15 * torch.randn(N, DIM, generator=generator), dim=1)
    return images, texts


def step(loss, precision: str, temperature: float, rounds: bool = False, **form):
    """Return the loss and its gradients for images, texts and temperature.

    rounds: Use features as produced by bfloat16 towers.
    """
    made = [rows.bfloat16().float() if rounds else rows for rows in pairs()]
    images, texts = (rows.requires_grad_() for rows in made)
    t = torch.tensor(temperature, requires_grad=True)
    value = loss(images, texts, temperature=t, precision=precision, **form).mean()
    return value.detach(), torch.autograd.grad(value, (images, texts, t))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_close_to_float32(name, form, precision):
    loss = partial(LOSSES[name], **FORMS[form])
    for temperature in (0.07, 0.02):
        exact, exact_gradients = step(loss, "float32", temperature)
        _, noisy_gradients = step(loss, "float32", temperature, rounds=True)
        value, gradients = step(loss, precision, temperature)
        torch.testing.assert_close(value, exact, rtol=1e-3, atol=1e-4)
        for k in (0, 1):  # not more than the change caused by bfloat16 towers
            error = (gradients[k] - exact_gradients[k]).norm()
            noise = (noisy_gradients[k] - exact_gradients[k]).norm()
            assert error < 1.5 * noise
        torch.testing.assert_close(gradients[2], exact_gradients[2], rtol=0.02, atol=1e-2)
    # This shows that something was rounded.
    assert not torch.equal(gradients[0], exact_gradients[0])


def test_an_unknown_similarity_precision_raises_an_error():
    images, texts = pairs()
    with pytest.raises(losses.checks.InvalidInputError, match="precision"):
        losses.info_nce(images, texts, temperature=0.07, precision="int8")


def test_block_height_on_a_gpu_depends_on_its_memory(monkeypatch):
    """Blocks of any height give the same value, including those chosen for a GPU with little
    memory."""
    large = torch.empty(65536, 1, device="meta")
    assert sums.rows_at_once(large, large) * len(large) <= 1 << 26
    expected = step(losses.info_nce, "float32", 0.07)
    monkeypatch.setattr(sums, "rows_at_once", lambda *_: 7)
    value, gradients = step(losses.info_nce, "float32", 0.07)
    torch.testing.assert_close(value, expected[0])
    for gradient, before in zip(gradients, expected[1], strict=True):
        torch.testing.assert_close(gradient, before, rtol=1e-4, atol=1e-6)


CLASSES = torch.arange(N) % 50
SUMMED = {
    "pairs": losses.info_nce,
    "both views": partial(losses.info_nce, within_view=True),
    "several sums": partial(losses.hard_negative, beta=1.5),
    "other classes": partial(losses.spread, labels=CLASSES),
    "captions": partial(losses.gce, captions=CLASSES),
    "captions of both views": partial(losses.gce, captions=CLASSES, within_view=True),
}


@pytest.mark.parametrize("name", SUMMED)
@pytest.mark.parametrize("height", [7, N, 2 * N])
def test_shared_exponentials_and_blocks_do_not_change_sums(name, height, monkeypatch):
    """A block of similarities in a wide range needs one exponential for the rows and another for
    the columns."""
    expected = step(SUMMED[name], "float32", 0.07)
    for narrow, kept in ((sums._NARROW, height), (0.0, height), (0.0, 0)):
        monkeypatch.setattr(sums, "_NARROW", narrow)
        if kept:
            monkeypatch.setattr(sums, "rows_at_once", lambda *_: height)
        form = {} if kept else {"chunk_size": height}
        value, gradients = step(SUMMED[name], "float32", 0.07, **form)
        torch.testing.assert_close(value, expected[0])
        for gradient, before in zip(gradients, expected[1], strict=True):
            torch.testing.assert_close(gradient, before, rtol=1e-4, atol=1e-6)


def test_autocast_decides_the_precision_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.float16)
    assert contrast._factor_dtype("autocast", "cuda") is torch.float16
    assert contrast._factor_dtype("autocast", "cpu") is None
    assert contrast._factor_dtype("float32", "cuda") is None
    assert contrast._factor_dtype("bfloat16", "cuda") is torch.bfloat16
