"""Who reads the pictures: the classifier of the miniature world where it knows the attribute, else a zero-shot CLIP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vldebias.evaluation.generation.backgrounds import background_judge
from vldebias.evaluation.judging.clip import ClipJudge, Question
from vldebias.evaluation.judging.judges import FunctionJudge, Judge, JudgePanel, MiniatureJudge
from vldebias.prompts import PromptSet

from .compare_settings import Mitigation

if TYPE_CHECKING:
    from .compare_engine import Engine

__all__ = ["SURE", "make_judge"]

SURE = 0.8  # an answer with less probability counts as unknown
KNOWN = {"gender": "gender", "skin tone": "tone", "age": "age"}  # what the miniature's classifier calls them


def make_judge(engine: Engine, mitigation: Mitigation) -> tuple[Judge, tuple[str, ...]]:
    """A judge of every attribute of `mitigation`, and the name that each of them has in its answers."""
    miniature = engine.pipeline_name == "miniature"
    judges: dict[str, Judge] = {}
    read: list[str] = []
    for name, prompts in zip(mitigation.names, mitigation.sets, strict=True):
        if miniature and name in KNOWN:
            judges.setdefault("miniature", MiniatureJudge())
            read.append(KNOWN[name])
        else:
            judges[name] = _asked(engine, name, prompts)
            read.append(next(iter(judges[name].names)))
    return (next(iter(judges.values())) if len(judges) == 1 else JudgePanel(*judges.values())), tuple(read)


def _asked(engine: Engine, name: str, prompts: PromptSet) -> Judge:
    """The image-text model, asked in the words of the prompt set whether a picture shows one of them, or none."""
    loaded = engine.clip()
    given = {"preprocess": loaded.preprocess, "tokenizer": loaded.tokenizer, "name": loaded.name}
    if name == "background":
        judge = background_judge(loaded.host, **given)
        return FunctionJudge(
            {name: judge.names[name]},
            lambda images: {name: judge.predict(images)[name]},
            name=judge.name,
            version=judge.fingerprint,
        )
    return ClipJudge(loaded.host, **given, questions={name: Question.about(prompts)})
