"""Image quality beside bias: CLIPScore and FID."""

from vldebias.evaluation.scores.clip_score import evaluate_clip_score
from vldebias.evaluation.scores.fid import evaluate_fid
from vldebias.evaluation.scores.inception import InceptionFeatures

__all__ = ["InceptionFeatures", "evaluate_clip_score", "evaluate_fid"]
