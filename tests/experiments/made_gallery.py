"""A small model made of axes: texts that lean to a value, images with their gender."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from eval.experiments.embeddings import Gallery
from vldebias.data import Embeddings, Labels
from vldebias.evaluation.task import Texts
from vldebias.hosts import TextTable
from vldebias.prompts import PromptSet

DIM = 24
AXES = torch.eye(DIM, dtype=torch.float64)
JOBS = ("doctor", "nurse", "pilot", "teacher", "cook", "judge")
VALUES = ("man", "woman")


def gallery(n: int = 400) -> Gallery:
    """Images with their gender, and prompts about it; the jobs are classes and queries."""
    draw = torch.Generator().manual_seed(0)
    leaning = {job: AXES[2 + i] + (0.5 if i % 2 else -0.5) * (AXES[0] - AXES[1]) for i, job in enumerate(JOBS)}
    rows = {"a man": AXES[0] + AXES[20], "a woman": AXES[1] + AXES[20], **leaning}
    rows |= {f"{word} {job}": text + 0.7 * AXES[v] for job, text in leaning.items() for v, word in enumerate(VALUES)}
    noisy = {p: row + 0.03 * torch.randn(DIM, generator=draw, dtype=torch.float64) for p, row in rows.items()}
    prompts = PromptSet(
        name="made",
        attributes={"man": ("man",), "woman": ("woman",)},
        classes=JOBS,
        class_names=JOBS,
        spurious=("a man", "a woman"),
        groups=tuple((f"man {job}", f"woman {job}") for job in JOBS),
    )
    gender, job = (torch.randint(0, values, (n,), generator=draw) for values in (2, len(JOBS)))
    images = AXES[gender] + AXES[2 + job] + 0.2 * torch.randn(n, DIM, generator=draw, dtype=torch.float64)
    codes: NDArray[np.int64] = gender.numpy()
    held = Embeddings(normalize(images, dim=1).numpy(), tuple(map(str, range(n))), {"gender": Labels(codes, VALUES)})
    return Gallery(held, Texts(TextTable(noisy, "made")), JOBS, prompts)
