"""Compare the time of losses on a GPU under autocast with open_clip's loss.

python -m eval.benchmarks.speed --only gpu_losses --json eval/results/bench_gpu_losses.json

This part is skipped without a GPU. A step computes the loss and the gradients for both features in
autocast precision. Wall times are minima over alternating rounds, and peak GPU memory is in MB.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias import losses

DIM = 512
TEMPERATURE = 0.05
CHUNK = 4096


def ways() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Return loss functions by name, where "plain" is open_clip's loss."""
    from open_clip.loss import ClipLoss

    ours = partial(losses.info_nce, temperature=TEMPERATURE)

    def plain(images: Tensor, texts: Tensor) -> Tensor:
        loss: Tensor = ClipLoss()(images, texts, 1 / TEMPERATURE)
        return loss

    return {
        "plain": plain,
        "plain, compiled": torch.compile(plain),
        "ours": ours,
        "ours, float32": partial(ours, precision="float32"),
        f"ours, blocks of {CHUNK}": partial(ours, chunk_size=CHUNK),
    }


def step(loss: Callable[[Tensor, Tensor], Tensor], images: Tensor, texts: Tensor) -> float:
    """Run a step with gradients in mixed precision and return the loss."""
    rows = [features.detach().requires_grad_() for features in (images, texts)]
    with torch.autocast(images.device.type, torch.bfloat16):
        value = loss(*rows)
    torch.autograd.grad(value, rows)
    return float(value.detach())


def gpu_losses(
    batches: tuple[int, ...] = (4096, 16384, 65536), rounds: int = 5, device: str = "cuda"
) -> Iterator[dict[str, Any]]:
    """Yield a row for each batch size."""
    if device == "cuda" and not torch.cuda.is_available():
        return
    for batch in batches:
        generator = torch.Generator().manual_seed(0)
        made = normalize(torch.randn(2, batch, DIM, generator=generator), dim=-1)
        images, texts = made.to(device, torch.bfloat16)
        calls = {name: partial(step, loss, images, texts) for name, loss in ways().items()}
        measured = {name: _measured(call, rounds, device) for name, call in calls.items()}
        seconds = {name: facts["seconds"] for name, facts in measured.items()}
        row: dict[str, Any] = {
            "what": "info_nce under autocast / open_clip's, on a GPU",
            "size": f"batch {batch}",
            **seconds,
            "ratio": seconds["plain"] / seconds["ours"],
        }
        plain = measured["plain"]["value"]
        values = [facts["value"] for name, facts in measured.items() if name.startswith("ours")]
        # Both round to bfloat16, but in a different order.
        row["difference"] = max(abs(value - plain) / abs(plain) for value in values)
        row["within"] = 0.02
        for name, facts in measured.items():
            row[f"value, {name}"] = facts["value"]
            row[f"peak MB, {name}"] = facts["peak"]
        yield row


def _measured(call: Callable[[], float], rounds: int, device: str) -> Mapping[str, Any]:
    """Return a call's value, shortest time and peak memory, or NaN if memory is exhausted."""
    nothing = dict.fromkeys(("value", "seconds", "peak"), float("nan"))
    on_gpu = device == "cuda"
    try:
        value = call()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            call()  # copies the value to the CPU, which waits for the GPU
            times.append(time.perf_counter() - start)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return nothing
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else float("nan")
    return {"value": value, "seconds": min(times), "peak": peak}
