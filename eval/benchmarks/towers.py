"""Compare attached text towers, image decoding and image embedding with plain code.

`python -m eval.benchmarks.speed --only towers,pictures,folder` runs these parts. Times are CPU
times on a single thread, or wall times for folders, which are read by several processes. Each round
calls every variant once, and the minimum over rounds is used, because it is least affected by other
programs. `bare again` measures the plain code a second time to show the noise.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

import vldebias
from vldebias import miniature
from vldebias.data import embed_images, file_images
from vldebias.hosts.clip.images import image_encoder
from vldebias.utils.pictures import decode
from vldebias.utils.progress import SILENT

Row = dict[str, Any]
JOBS = ("doctor", "nurse", "pilot", "chef", "woman who codes", "male teacher")
NO_CHANGE = 1e-5
MANY = 100  # calls with more prompts take half a minute, and run without a warm-up call


def minima(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
    is_warm: bool = False,
) -> dict[str, float]:
    """Return the shortest time of each call in seconds.

    Unless `is_warm` is True, which means that the variants just ran on smaller inputs, each is
    called once first.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    if not is_warm:
        for call in calls.values():
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            call()
            times[name].append(clock() - start)
    return {name: min(values) for name, values in times.items()}


# ---- text towers
# --------------------------------------------------------------------------------------


def towers(
    architecture: str = "ViT-B-32",
    rounds: Mapping[int, int] | None = None,
    modes: tuple[str, ...] = ("eager", "compiled"),
) -> Iterator[Row]:
    """Compare `encode_text` with and without an attachment, both compiled and not compiled.

    `rounds` maps numbers of prompts to numbers of rounds, in ascending order of prompts.
    """
    import open_clip

    rounds = rounds or {1: 20, 32: 3, 256: 1, 1000: 1}
    model = open_clip.create_model(architecture).eval()
    tokenizer = open_clip.get_tokenizer(architecture)
    for mode in modes:
        bare = model.encode_text
        attachment = vldebias.debias(
            model, "professions-gender", method="cali", lam=1000, tokenizer=tokenizer
        )
        attached = model.encode_text
        if mode == "compiled":
            # Use one graph for all numbers of prompts except 1, which torch always specialises.
            bare = torch.compile(bare, fullgraph=True, dynamic=True)
            attached = torch.compile(attached, fullgraph=True, dynamic=True)
        for count, repetitions in rounds.items():
            ids = tokenizer([f"A photo of a {JOBS[i % len(JOBS)]}, {i}." for i in range(count)])
            (edit,) = attachment.projections.values()
            row = _tower_row(bare, attached, ids, repetitions, is_warm=count > MANY)
            features = row.pop("features")
            row["difference"] = _unlike(features, edit.matrix().float())
            row["within"] = NO_CHANGE
            yield {
                "what": f"attached / bare encode_text, {mode}",
                "size": f"ViT-B/32, {count} texts",
                **row,
                "ms of the edit alone": 1e3 * _edit_alone(model, ids),
            }
        attachment.remove()


@torch.no_grad()
def _tower_row(
    bare: Callable[[Tensor], Tensor],
    attached: Callable[[Tensor], Tensor],
    ids: Tensor,
    rounds: int,
    is_warm: bool,
) -> Row:
    """Compare both variants on the same texts, alternately."""
    features: dict[str, Tensor] = {}

    def encode(name: str, way: Callable[[Tensor], Tensor]) -> None:
        features[name] = way(ids)

    ways = {"plain": bare, "ours": attached, "bare again": bare}
    calls = {name: partial(encode, name, way) for name, way in ways.items()}
    seconds = minima(calls, rounds, is_warm=is_warm)
    changed = (features["ours"] - features["plain"]).norm(dim=1) > NO_CHANGE
    return {
        **seconds,
        "ratio": seconds["plain"] / seconds["ours"],
        "attached / bare": seconds["ours"] / seconds["plain"],
        "bare again / bare": seconds["bare again"] / seconds["plain"],
        "ms more a call": 1e3 * (seconds["ours"] - seconds["plain"]),
        "share of texts that are changed": float(changed.double().mean()),
        "features": features,
    }


def _unlike(features: Mapping[str, Tensor], matrix: Tensor) -> float:
    """Return the largest relative distance of attached rows from bare or edited rows."""
    bare = features["plain"]
    left_unchanged = (features["ours"] - bare).norm(dim=1)
    edited = (features["ours"] - bare @ matrix.T).norm(dim=1)
    return float((torch.minimum(left_unchanged, edited) / bare.norm(dim=1)).max())


@torch.no_grad()
def _edit_alone(model: Any, ids: Tensor, rounds: int = 15) -> float:
    """Return the seconds that an uncompiled attached call spends outside of the tower."""
    hook = model.encode_text
    tower = hook.original
    features = torch.randn(len(ids), model.text_projection.shape[1])
    hook.original = lambda text, normalize=False: features
    seconds = minima({"edit": partial(hook, ids)}, rounds)["edit"]
    hook.original = tower
    return seconds


# ---- images
# --------------------------------------------------------------------------------------


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return an image with smooth colors and fine grain, which compresses like a photograph."""
    rng = np.random.default_rng(seed)
    coarse = np.tanh(rng.normal(size=(height // 16 + 1, width // 16 + 1, 3)))
    smooth = Image.fromarray(((coarse + 1) * 127).astype(np.uint8))
    pixels = np.asarray(smooth.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    grain = rng.normal(0, 6, size=(height, width, 3))
    return Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))


def _jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def _by_pillow(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    image.load()
    return image


def _as_before(content: bytes) -> Image.Image:
    return ImageOps.exif_transpose(_by_pillow(content)).convert("RGB")


def pictures(
    sizes: tuple[tuple[int, int], ...] = ((640, 480), (1920, 1280), (4000, 3000)),
    side: int = 224,
    rounds: int = 9,
) -> Iterator[Row]:
    """Compare `decode` with and without a draft size of `side` pixels with Pillow's `load`."""
    for width, height in sizes:
        content = _jpeg(photo(width, height))
        draft = partial(decode, content, draft=2 * side)
        ways = {
            "plain": partial(_by_pillow, content),
            "ours": partial(decode, content),
            "with copies, as before": partial(_as_before, content),
            "draft": draft,
        }
        seconds = minima(ways, rounds)
        small = _pixels(draft(), side)
        exact = _pixels(decode(content), side)
        read = np.asarray(decode(content), dtype=int)
        difference = np.abs(read - np.asarray(_as_before(content), dtype=int)).max()
        yield {
            "what": "decode a JPEG / Pillow's load",
            "size": f"{width} x {height}",
            **seconds,
            "ratio": seconds["plain"] / seconds["ours"],
            "decode / Pillow": seconds["ours"] / seconds["plain"],
            "draft / Pillow": seconds["draft"] / seconds["plain"],
            "difference": float(difference),
            "within": 0.0,
            "mean pixel change of a draft, sd": float(np.abs(small - exact).mean() / exact.std()),
        }


def _pixels(image: Image.Image, side: int) -> np.ndarray:
    """Return the pixels of an image after resizing as for CLIP."""
    return np.asarray(ImageOps.fit(image, (side, side), Image.Resampling.BICUBIC), dtype=float)


# ---- image folders
# --------------------------------------------------------------------------------------


class _Files(torch.utils.data.Dataset[Tensor]):
    """A typical data set for a DataLoader, which loads and preprocesses images."""

    def __init__(self, paths: list[Path], prepare: Callable[[Image.Image], Tensor]) -> None:
        self.paths = paths
        self.prepare = prepare

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.paths[index]) as image:
            return self.prepare(image.convert("RGB"))


def folder(
    count: int = 96,
    size: tuple[int, int] = (1280, 960),
    workers: tuple[int, ...] = (0, 2),
    rounds: int = 2,
) -> Iterator[Row]:
    """Compare `embed_images` with a DataLoader with the same number of workers.

    The model is so small that loading images takes most of the time.
    """
    model, preprocess, _ = miniature.load_clip()
    encoder = image_encoder(model, preprocess)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "images")
        root.mkdir()
        for i in range(count):
            (root / f"{i:04d}.jpg").write_bytes(_jpeg(photo(*size, seed=i % 4)))
        paths = sorted(root.iterdir())
        data = file_images("pictures", "all", root, [path.name for path in paths], {})
        for number in workers:
            ways = {
                "plain": partial(_by_loader, model, _Files(paths, preprocess), number),
                "ours": lambda n=number: _embedded(data, encoder, n),
                "fast": lambda n=number: _embedded(data, encoder, n, fast=True),
            }
            seconds = minima(ways, rounds, time.perf_counter)
            ours = ways["ours"]()
            near = torch.nn.functional.cosine_similarity(ours, ways["fast"]())
            yield {
                "what": "embed a folder / DataLoader",
                "size": f"{count} JPEGs of {size[0]} x {size[1]}, workers {number}",
                **seconds,
                "ratio": seconds["plain"] / seconds["ours"],
                "embed / DataLoader": seconds["ours"] / seconds["plain"],
                "fast / DataLoader": seconds["fast"] / seconds["plain"],
                "difference": float((ours - ways["plain"]()).abs().max()),
                "within": 2e-3,
                "cosine of fast and exact features, least": float(near.min()),
            }


@torch.inference_mode()
def _by_loader(model: Any, files: _Files, workers: int) -> Tensor:
    loader = torch.utils.data.DataLoader(files, batch_size=64, num_workers=workers)
    return torch.cat([model.encode_image(batch).half() for batch in loader]).float()


def _embedded(data: Any, encoder: Any, workers: int, fast: bool = False) -> Tensor:
    with tempfile.TemporaryDirectory() as cache:
        rows = embed_images(
            data, encoder, cache, workers=workers, fast=fast, progress=SILENT
        ).features
        return torch.from_numpy(np.array(rows)).float()
