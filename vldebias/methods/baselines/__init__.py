"""Implement methods of other papers as baselines."""

from vldebias.methods.baselines import bend as bend
from vldebias.methods.baselines import erasure as erasure
from vldebias.methods.baselines import half_way as half_way
from vldebias.methods.baselines import wording as wording
