"""Measure the activation memory for fitting cross-attention, by image size and batch size.

    python -m eval.experiments.fit_memory --json eval/results/steer_memory.json

The denoisers of Stable Diffusion 1.5 and XL run one pass on PyTorch's meta device, which does not
allocate memory. The result is the maximum total size of tensors that are alive at the same time.
Precision is half, guidance doubles the rows in a batch, and attention is fused, as on a GPU, so
that attention weights are not stored. Model weights, the autoencoder and additional memory of GPU
kernels are not counted. No weights are downloaded.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from eval.tables import parser, run, subset
from vldebias.metrics import Metric
from vldebias.report.result import TaskProvenance, TaskResult

SIZES = (512, 768, 1024)  # pixels
BATCHES = (1, 2, 4, 8)  # images
PEAK = Metric("peak", "largest sum of activations, GB", "fact", "lower")
SD = {
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
    "block_out_channels": (320, 640, 1280, 1280),
}
SDXL = {
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "cross_attention_dim": 2048,
    "attention_head_dim": (5, 10, 20),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}


class FusedAttention(TorchFunctionMode):
    """Replace attention with an empty output, so that attention weights are not allocated."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return an empty tensor with the shape of the output."""
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            query = args[0] if args else kwargs["query"]
            return torch.empty_like(query)
        return func(*args, **kwargs)


class PeakMemory(TorchDispatchMode):
    """Track the bytes in all live storages, whose maximum is `peak`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        # Exclude the weights, because operations may return views of them.
        self._known = {weight.untyped_storage()._cdata for weight in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count the storages of its outputs."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        """Add a storage until it is freed."""
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        size = storage.nbytes()
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        """Subtract a storage that was freed."""
        self._known.discard(key)
        self.current -= size


def peak_of(unet: UNet2DConditionModel, size: int, images: int) -> int:
    """Return the activation bytes in one guided pass for images of a given size in pixels."""
    rows = 2 * images
    like = {"device": "meta", "dtype": torch.float16}
    latents = torch.empty(rows, 4, size // 8, size // 8, **like)
    states = torch.empty(rows, 77, unet.config.cross_attention_dim, **like)
    conditions = {
        "text_embeds": torch.empty(rows, 1280, **like),
        "time_ids": torch.empty(rows, 6, **like),
    }
    time = torch.empty(rows, **like)
    with torch.no_grad(), FusedAttention(), PeakMemory(unet) as memory:
        unet(latents, time, states, added_cond_kwargs=conditions)
    return memory.peak


def measure() -> Iterator[TaskResult]:
    """Yield the peak memory of both denoisers."""
    provenance = TaskProvenance(
        task="fit memory",
        title="Memory of the cross-attention fit",
        description="Activations of one guided pass in half precision, without weights.",
        settings={"sizes": list(SIZES), "batches": list(BATCHES)},
    )
    result = TaskResult(provenance)
    for name, config in (("Stable Diffusion 1.5", SD), ("Stable Diffusion XL", SDXL)):
        with torch.device("meta"):
            unet = UNet2DConditionModel(sample_size=64, **config)  # type: ignore[arg-type]
        unet.to(torch.float16).eval()
        for size in SIZES:
            for images in BATCHES:
                peak = peak_of(unet, size, images) / 1e9
                place = subset({"size": size, "batch_size": images})
                result.add(PEAK, name, round(peak, 2), n={"passes": 1}, subset=place)
    yield result


def main() -> None:
    arguments = parser(__doc__).parse_args()
    run("steer_memory", measure, arguments.json)


if __name__ == "__main__":
    main()
