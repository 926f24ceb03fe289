"""Labels that people gave: the file of the labelling app, shares, discrepancy, agreement (Table 7.8)."""

from vldebias.evaluation.human.annotations import read_annotations
from vldebias.evaluation.human.evaluator import evaluate_annotations
from vldebias.evaluation.human.log import AnnotationLog

__all__ = ["AnnotationLog", "evaluate_annotations", "read_annotations"]
