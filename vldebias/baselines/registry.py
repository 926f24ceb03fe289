"""The baselines of Table 7.2 by name, each with the settings that it has by default."""

from __future__ import annotations

from vldebias.baselines.adapters import ERMAdapter
from vldebias.baselines.base import Baseline
from vldebias.baselines.contrastive import ContrastiveAdapter
from vldebias.baselines.probes import DFR, ERMLinear, WiSEFT
from vldebias.errors import InvalidInputError

__all__ = ["BASELINES", "get_baseline"]

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
    """The baseline of this name.

    Raises:
        InvalidInputError: no such baseline; the message lists those there are.
    """
    if name not in BASELINES:
        raise InvalidInputError(f"baseline: expected one of {', '.join(BASELINES)}, got {name!r}")
    return BASELINES[name]
