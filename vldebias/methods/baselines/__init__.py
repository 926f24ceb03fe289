"""Implement methods of other papers as baselines."""

from vldebias.methods.baselines import erasure as erasure
from vldebias.methods.baselines import queries as queries
from vldebias.methods.baselines import wording as wording
from vldebias.methods.baselines import zero_shot as zero_shot
