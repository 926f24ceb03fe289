"""Methods of others, as baselines: each is its formula, its source and how it reads a problem."""

from vldebias.methods.baselines import bend as bend
from vldebias.methods.baselines import erasure as erasure
from vldebias.methods.baselines import half_way as half_way
from vldebias.methods.baselines import wording as wording
