"""A small world of embeddings in which gender leaks into jobs: a gallery, a reference, the texts of the same model."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vldebias import make_prompt_set
from vldebias.data import Embeddings, Labels, save_embeddings

JOBS = ("doctor", "nurse", "pilot", "clerk", "cook", "judge", "baker")
GENDER = make_prompt_set("g", {"male": ["male"], "female": ["female"]}, JOBS)
DIM = 24
AXES = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64))[0]
METHODS = ("none", "orth-cali", "cali", "difference", "equalise", "auto")


def texts() -> dict[str, torch.Tensor]:
    """Prompt -> row; every job leans to one gender, and a stated gender shows."""
    prompts = dict.fromkeys(chain(GENDER.classes, GENDER.spurious, *GENDER.groups))
    noise = torch.randn(len(prompts), DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    rows = {}
    for prompt, noisy in zip(prompts, noise, strict=True):
        words = prompt.lower().replace(".", "").split()
        job = next((i for i, name in enumerate(JOBS) if name in words), None)
        stated = -1.0 if "male" in words else 1.0 if "female" in words else 0.0
        lean = 0.0 if job is None else 0.4 * (1 if job % 2 else -1)
        body = AXES[1] if job is None else AXES[2 + job]
        rows[prompt] = AXES[10] + body + (stated + lean) * AXES[0] + 0.05 * noisy
    return rows


def images(n: int = 400, seed: int = 0) -> Embeddings:
    """Pictures of people at work; column "split" deals them to a gallery and a reference."""
    rng = np.random.default_rng(seed)
    job, gender = rng.integers(len(JOBS), size=n), rng.integers(2, size=n)
    signs = torch.from_numpy(2.0 * gender - 1)[:, None]
    noise = torch.from_numpy(rng.normal(size=(n, DIM)))
    features = AXES[10] + AXES[2 + job] + 0.8 * signs * AXES[0] + 0.3 * noise
    labels = {
        "job": Labels(job, JOBS),
        "gender": Labels(gender, ("male", "female")),
        "split": Labels((np.arange(n) % 4 == 0).astype(int), ("test", "reference")),
    }
    return Embeddings(features.float().numpy(), tuple(map(str, range(n))), labels)


def part(name: str) -> Embeddings:
    """The rows of a split."""
    data = images()
    return data[data.column("split").codes == data.column("split").names.index(name)]


def write_suite(folder: Path, images: Embeddings, *more: dict[str, Any], **fields: Any) -> Path:
    """A suite that searches `images`, and the embeddings that it needs, in files; more: its other tasks."""
    save_embeddings(folder / "images.npz", images)
    save_embeddings(folder / "reference.npz", part("reference"))
    rows = texts()
    np.savez(folder / "texts.npz", text=torch.stack(list(rows.values())).numpy(), prompts=np.array(list(rows)))
    prompts = str(GENDER.to_yaml(folder / "g.yaml"))
    task = {"task": "retrieval", "name": "jobs", "title": "Jobs", "data": {"name": "mine"}, "k": 20, "resamples": 5}
    task |= {"prompts": {"gender": prompts}, "queries": list(GENDER.classes)}
    tasks = [{**one, **fields} for one in (task, *({"prompts": prompts, **other} for other in more))]
    about = {"title": "Mine", "description": "d", "source": "s", "needs": "embeddings", "tasks": tasks}
    (folder / "mine.yaml").write_text(json.dumps(about))
    return folder / "mine.yaml"
