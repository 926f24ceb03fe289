"""Who reads attributes from drawn images, and what they said."""

from vldebias.evaluation.judging.clip import ClipJudge, Question
from vldebias.evaluation.judging.judges import ClassifierJudge, FunctionJudge, Judge, MiniatureJudge

__all__ = ["ClassifierJudge", "ClipJudge", "FunctionJudge", "Judge", "MiniatureJudge", "Question"]
