"""Baselines that learn from labelled images: rows of Table 7.2 beside the methods that need no data.

`BASELINES` has them by name. Adding one is `register_baseline`, or an entry point of the group "vldebias.baselines".
"""

from vldebias.evaluation.baselines.adapters import AdapterHead, ERMAdapter
from vldebias.evaluation.baselines.contrastive import ContrastiveAdapter
from vldebias.evaluation.baselines.group_dro import GroupDRO
from vldebias.evaluation.baselines.probes import DFR, ERMLinear, LinearHead, WiSEFT
from vldebias.evaluation.baselines.problem import Baseline, Predictor
from vldebias.registry import Registry, instances_of

__all__ = [
    "BASELINES",
    "DFR",
    "AdapterHead",
    "Baseline",
    "ContrastiveAdapter",
    "ERMAdapter",
    "ERMLinear",
    "GroupDRO",
    "LinearHead",
    "Predictor",
    "WiSEFT",
    "get_baseline",
    "register_baseline",
]


BASELINES: Registry[Baseline] = Registry("baseline", "vldebias.baselines", instances_of(Baseline))
register_baseline, get_baseline = BASELINES.register, BASELINES.named
for _baseline in (
    ERMLinear(),
    ERMAdapter(),
    WiSEFT(),
    DFR(),
    DFR(name="dfr-up", title="DFR (Up)", balance="up"),
    GroupDRO(),
    ContrastiveAdapter(),
):
    register_baseline(_baseline)
