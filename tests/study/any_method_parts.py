"""Create a small world of embeddings in which gender leaks into jobs: a gallery, a reference, and
text from the same model."""

from itertools import chain

import numpy as np
import torch

from vldebias import make_prompt_set
from vldebias.data import Embeddings, Labels

JOBS = ("doctor", "nurse", "pilot", "clerk", "cook", "judge", "baker")
GENDER = make_prompt_set("g", {"male": ["male"], "female": ["female"]}, JOBS)
DIM = 24
AXES = torch.linalg.qr(
    torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
)[0]


def texts() -> dict[str, torch.Tensor]:
    """Return prompt -> row. Every job leans towards one gender, and a stated gender is visible."""
    prompts = dict.fromkeys(chain(GENDER.classes, GENDER.spurious, *GENDER.variants))
    noise = torch.randn(
        len(prompts), DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )
    rows = {}
    for prompt, noisy in zip(prompts, noise, strict=True):
        words = prompt.lower().replace(".", "").split()
        job = next((i for i, name in enumerate(JOBS) if name in words), None)
        gender = 0.0
        if "male" in words:
            gender = -1.0
        elif "female" in words:
            gender = 1.0
        body = AXES[1]
        if job is not None:
            body = AXES[2 + job]
            gender += 0.4 if job % 2 else -0.4
        rows[prompt] = AXES[10] + body + gender * AXES[0] + 0.05 * noisy
    return rows


def images(n: int = 400, seed: int = 0) -> Embeddings:
    """Return pictures of people at work. The column "split" assigns them to a gallery and a
    reference."""
    rng = np.random.default_rng(seed)
    job = rng.integers(len(JOBS), size=n)
    gender = rng.integers(2, size=n)
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
    """Return the rows of a split."""
    data = images()
    return data[data.column("split").codes == data.column("split").names.index(name)]
