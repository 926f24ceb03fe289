"""Does the popularity that NUCLR learns in small batches come to that of all similarities, at which steps?

python -m eval.experiments.run popularity_steps

Fixed features of 300 pairs; the loss goes over them in batches of 60 for 40 epochs, and moves nothing but its state.
Beside it stands what Sinkhorn's iteration finds on all similarities at once (`vldebias.losses.estimate_popularity`).
"last" is the popularity of the last step, "average" that which is reported.
"""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from eval.experiments.cells import Cell
from vldebias.losses import GlobalContrastiveLoss, estimate_popularity

PAIRS, BATCH, DIM = 300, 60, 16
REPORTED = "momentum 0, average"


def work(cell: Cell) -> dict[str, float]:
    """One temperature, step and seed: correlation and spread beside the optimum; with momentum 0 of both readings."""
    generator = torch.Generator().manual_seed(cell["seed"])
    x = normalize(torch.randn(PAIRS, DIM, generator=generator), dim=1)
    y = normalize(x + 0.8 * torch.randn(PAIRS, DIM, generator=generator) + 0.3, dim=1)
    tau, momentum = cell["temperature"], cell["settings"]["popularity_momentum"]
    loss = GlobalContrastiveLoss(
        PAIRS, temperature=tau, popularity_lr=cell["popularity_lr"], popularity_momentum=momentum
    )
    for _ in range(cell["steps"]):
        for items in torch.randperm(PAIRS, generator=generator).split(BATCH)[: PAIRS // BATCH]:
            loss(x[items].requires_grad_(), y[items], items)
    oracle = [
        estimate_popularity(e, temperature=tau, tolerance=1e-4).log_popularity.float() for e in (x @ y.T, y @ x.T)
    ]
    figures = beside(loss.zeta / tau, oracle)
    if momentum == 0:
        figures |= {f"{REPORTED}: {name}": value for name, value in beside(loss.log_popularity, oracle).items()}
    return figures


def beside(found: torch.Tensor, oracle: list[torch.Tensor]) -> dict[str, float]:
    """Means over both sides."""
    pairs = list(zip(found, oracle, strict=True))
    correlation = [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in pairs]
    spread = [float(one.std() / other.std()) for one, other in pairs]
    return {"correlation": sum(correlation) / 2, "spread": sum(spread) / 2}
