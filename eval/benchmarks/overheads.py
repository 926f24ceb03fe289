"""Compare what users wait for with bare loops, bare proxies and smaller folders.

`python -m eval.benchmarks.speed --only generation,training,label,serve` runs these parts. Times are
CPU times on a single thread, medians of alternating runs.
"""

from __future__ import annotations

import copy
import io
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import open_clip
import torch
from PIL import Image
from torch import Tensor

import vldebias
from apps.shares.answers import AnnotationLog
from eval.benchmarks.servers import PROMPT, processor_seconds, running
from eval.tables import medians
from vldebias.hosts.clip.towers import Towers
from vldebias.miniature import load_pipeline
from vldebias.training.batches import Batch
from vldebias.training.loop import BETAS, fit
from vldebias.training.objective import Objective, Trainee
from vldebias.training.settings import TrainSettings

Row = dict[str, Any]


def row_of(
    what: str, size: str, seconds: dict[str, float], difference: float, within: float
) -> Row:
    """Return a row for the times of "ours" and "plain"."""
    ratio = seconds["plain"] / seconds["ours"]
    return {
        "what": what,
        "size": size,
        **seconds,
        "ratio": ratio,
        "difference": difference,
        "within": within,
    }


def generation(images: int = 8, steps: int = 20, repetitions: int = 7) -> Iterator[Row]:
    """Compare a pipeline with cross-attention editing to the same pipeline without it.

    Results are compared for a prompt that states the value, which the edit leaves unchanged.
    """
    pipes = {"ours": load_pipeline(), "plain": load_pipeline()}
    for pipe in pipes.values():
        pipe.set_progress_bar_config(disable=True)
    vldebias.debias(pipes["ours"], "gender", method="cross-attention")

    def draw(pipe: Any, prompt: str = "A photo of a doctor.") -> Tensor:
        generator = torch.Generator().manual_seed(0)
        pictures: Tensor = pipe(
            prompt,
            num_images_per_prompt=images,
            num_inference_steps=steps,
            generator=generator,
            output_type="pt",
        ).images
        return pictures

    calls = {name: lambda pipe=pipe: draw(pipe) for name, pipe in pipes.items()}
    seconds = medians(calls, repetitions)
    ours, plain = (draw(pipe, "A photo of a female doctor.") for pipe in pipes.values())
    yield row_of(
        "cross-attention / bare pipeline",
        f"miniature, {images} images, {steps} steps",
        seconds,
        float((ours - plain).abs().max()),
        0.0,
    )


def training(
    architecture: str = "ViT-S-32-alt", pairs: int = 16, steps: int = 2, repetitions: int = 3
) -> Iterator[Row]:
    """Compare `vldebias train` with a loop of open_clip: the same model, batch, loss and updates.

    Results are compared by the loss of every step of the first run.
    """
    model, _, preprocess = open_clip.create_model_and_transforms(architecture)
    towers = Towers(model, open_clip.get_tokenizer(architecture), preprocess)
    tokens = towers.tokenize([f"A photo of thing {row}." for row in range(pairs)])
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(pairs, 3, *towers.size, generator=generator)
    settings = TrainSettings(
        data="birds", loss="info_nce", learn_temperature=True, steps=steps, weight_decay=0.0
    )
    twin = copy.deepcopy(model)
    trainee = Trainee(towers, Objective(settings, temperature=towers.temperature, items=None))
    batch = Batch(images, tokens)
    batches: Any = SimpleNamespace(
        per_epoch=None, starting=lambda first: (batch for _ in range(first, steps))
    )

    def ours() -> list[float]:
        return [entry["loss"] for entry in fit(trainee, batches, settings)]

    def plain() -> list[float]:
        (ids,) = tokens.values()
        return bare_loop(twin, images, ids, settings)

    difference = max(abs(a - b) for a, b in zip(ours(), plain(), strict=True))
    seconds = medians({"ours": ours, "plain": plain}, repetitions)
    yield row_of(
        "vldebias train / loop of open_clip",
        f"{architecture}, {steps} steps, batch {pairs}",
        seconds,
        difference,
        1e-3,
    )


def bare_loop(model: Any, images: Tensor, ids: Tensor, settings: TrainSettings) -> list[float]:
    """Train a model of open_clip with its own loss, and return the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=BETAS, weight_decay=0.0)
    loss_of = open_clip.ClipLoss()
    model.train()
    losses = []
    steps = settings.steps or 0
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = settings.learning_rate(step, steps)
        optimizer.zero_grad()
        loss = loss_of(*model(images, ids))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm or float("inf"))
        optimizer.step()
        losses.append(loss.item())
    return losses


def label(small: int = 1_000, large: int = 10_000) -> Iterator[Row]:
    """Compare the time per image in a large labelling study with that in a small one.

    All images are shown and labelled. Results are compared by the number of missing answers.
    """
    seconds = {}
    missing = 0
    for name, count in {"plain": small, "ours": large}.items():
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            missing += count - label_all(Path(folder), count)
            seconds[name] = (time.process_time() - start) / count
    size = f"an image of {large:,} / of {small:,}"
    yield row_of("label / label with fewer images", size, seconds, float(missing), 0.0)


def label_all(folder: Path, count: int) -> int:
    """Show every image of a study to an annotator, and return the number of stored answers."""
    from apps.label.session import open_study

    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "png")
    for number in range(count):
        (folder / f"{number}.png").write_bytes(picture.getvalue())
    study = open_study(folder, ["gender"], most=None)
    place = study.start("ada")
    while place.step is not None:
        study.view(place)
        place = study.answer(place, 0)
    return len(AnnotationLog(folder / "answers.jsonl").answers())


def serve(repetitions: int = 5) -> Iterator[Row]:
    """Compare the time from start to first answer of `vldebias serve` with that of bare proxies."""
    import httpx2

    seconds: dict[str, list[float]] = {"serve": [], "bare": [], "balancing": []}
    with running("direct"):
        for name in [*seconds] * repetitions:
            with running(name) as (url, file):
                httpx2.post(url, json={"prompt": PROMPT}, timeout=60).raise_for_status()
                seconds[name].append(processor_seconds(file))
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    plain = {"bare": "a bare proxy", "balancing": "a bare proxy that calls balance_prompts"}
    for name, title in plain.items():
        times = {"ours": middle["serve"], "plain": middle[name]}
        # All of them forward the answer of the same server.
        yield row_of(f"vldebias serve / {title}", "start to first answer", times, 0.0, 0.0)
