"""Generated images before and after (Tables 7.6 and 7.7, section 7.6.4)."""

from vldebias.evaluation.generation.backgrounds import evaluate_backgrounds
from vldebias.evaluation.generation.evaluator import evaluate_generation, generate
from vldebias.evaluation.generation.parts import measure_drawn

__all__ = ["evaluate_backgrounds", "evaluate_generation", "generate", "measure_drawn"]
