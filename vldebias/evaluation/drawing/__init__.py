"""Drawing with the same noise without and with projections, into a folder that can be resumed."""

from vldebias.evaluation.drawing.drawn import DrawnSet
from vldebias.evaluation.drawing.plan import Plan, Variant
from vldebias.evaluation.drawing.run import draw

__all__ = ["DrawnSet", "Plan", "Variant", "draw"]
