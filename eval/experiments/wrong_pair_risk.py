"""Compare RINCE's risk with wrong captions to its risk with right ones, for random encoders.

    python -m eval.experiments.wrong_pair_risk --json eval/results/wrong_pair_risk.json

A share eta of the images gets a caption drawn, independently of the image, from the distribution of
the negatives. At q = 1 and lam = 1 / (K + 1), the risk with wrong captions is exactly 1 - eta times
the clean one for every encoder (docs/explanation/losses.md), so noise does not move the minimiser.
The ratios of other settings differ between encoders.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import normalize

from eval.tables import parser, run
from vldebias.losses import rince
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.metrics import Metric

ETA = 0.8
ENCODERS = 20
PAIRS, DIMENSIONS = 512, 64  # so 511 negatives
TEMPERATURE = 0.1
# Settings of the loss by name; the default of `lam` is 1 / (K + 1).
SETTINGS: dict[str, dict[str, float]] = {
    "q = 1, default lam": {"q": 1.0},
    "q = 1, lam = 0.01": {"q": 1.0, "lam": 0.01},
    "q = 0.4, default lam": {"q": 0.4},
}
RATIOS = {
    name: Metric(f"ratio_{name}", f"risk with wrong captions over clean risk, {title}")
    for name, title in (("lowest", "the lowest of all encoders"), ("highest", "the highest"))
}


def risks(images: torch.Tensor, texts: torch.Tensor, **settings: float) -> tuple[float, float]:
    """Return the clean risk, and the expected risk if wrong captions are the captions of a batch.

    The loss of one direction is linear in the distribution of the caption, so the expectation over
    a random caption is the mean over all cyclic shifts.
    """
    shifted = [
        float(rince(images, texts.roll(i, 0), temperature=TEMPERATURE, **settings))
        for i in range(len(images))
    ]
    return shifted[0], (1 - ETA) * shifted[0] + ETA * sum(shifted) / len(shifted)


def measure() -> Iterator[TaskResult]:
    """Yield the lowest and highest ratio over encoders, for each setting."""
    n = {"encoders": ENCODERS}
    result = TaskResult(
        TaskProvenance(
            task="wrong pairs",
            description=__doc__ or "",
            n=n,
            seeds=list(range(ENCODERS)),
            settings={"eta": ETA, "pairs": PAIRS, "temperature": TEMPERATURE},
        )
    )
    ratios: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for seed in range(ENCODERS):
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(2, PAIRS, DIMENSIONS, generator=generator, dtype=torch.float64)
        # From an encoder that tells few pairs apart to one that tells nearly all apart.
        images = normalize(noise[0], dim=1)
        texts = normalize(
            images * (0.5 + 1.5 * seed / ENCODERS) + noise[1] / DIMENSIONS**0.5, dim=1
        )
        for name, settings in SETTINGS.items():
            clean, noisy = risks(images, texts, **settings)
            ratios[name].append(noisy / clean)
    for name, values in ratios.items():
        result.add(RATIOS["lowest"], NONE, min(values), n=n, subset=name)
        result.add(RATIOS["highest"], NONE, max(values), n=n, subset=name)
    yield result


def main() -> None:
    """Measure, print and write the ratios."""
    run("wrong_pair_risk", measure, parser(__doc__).parse_args().json)


if __name__ == "__main__":
    main()
