"""Baselines that learn from labelled images: rows of Table 7.2 beside the methods that need no data."""

from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.evaluation.baselines.adapters import AdapterHead, ERMAdapter
from vldebias.evaluation.baselines.contrastive import ContrastiveAdapter
from vldebias.evaluation.baselines.probes import DFR, ERMLinear, LinearHead, WiSEFT
from vldebias.evaluation.baselines.problem import Baseline, Predictor

__all__ = [
    "BASELINES",
    "DFR",
    "AdapterHead",
    "Baseline",
    "ContrastiveAdapter",
    "ERMAdapter",
    "ERMLinear",
    "LinearHead",
    "Predictor",
    "WiSEFT",
    "get_baseline",
]

BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        ERMLinear(),
        ERMAdapter(),
        WiSEFT(),
        DFR(),
        DFR(name="dfr-up", title="DFR (Up)", balance="up"),
        ContrastiveAdapter(),
    )
}


def get_baseline(name: str) -> Baseline:
    """The baseline of this name, with the settings that it has by default.

    Raises:
        InvalidInputError: no such baseline; the message lists those there are.
    """
    if name not in BASELINES:
        hint = did_you_mean(name, BASELINES)
        raise InvalidInputError(f"baseline: expected one of {', '.join(BASELINES)}, got {name!r}; {hint}")
    return BASELINES[name]
