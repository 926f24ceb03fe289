"""Baselines that learn from labelled images: rows of Table 7.2 beside the methods that need no data."""

from vldebias.baselines.adapters import AdapterHead, ERMAdapter
from vldebias.baselines.base import Baseline, Predictor
from vldebias.baselines.contrastive import ContrastiveAdapter
from vldebias.baselines.probes import DFR, ERMLinear, LinearHead, WiSEFT
from vldebias.baselines.registry import BASELINES, get_baseline

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
