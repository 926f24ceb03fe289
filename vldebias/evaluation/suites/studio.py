"""The generation tasks of a suite: a pipeline draws, a judge reads, CLIPScore and FID beside it, strips to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.drawn import DrawnSet
from vldebias.evaluation.drawing.plan import Variant, slug
from vldebias.evaluation.generation.backgrounds import background_judge, subject_prompts
from vldebias.evaluation.generation.evaluator import evaluate_generation
from vldebias.evaluation.generation.strengths import draw_strengths, prompts_of
from vldebias.evaluation.judging.clip import ClipJudge, Question
from vldebias.evaluation.judging.judges import ClassifierJudge, Judge, MiniatureJudge
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Protocol
from vldebias.evaluation.scores.clip_score import evaluate_clip_score
from vldebias.evaluation.scores.fid import Extractor, evaluate_fid
from vldebias.evaluation.scores.inception import InceptionFeatures
from vldebias.evaluation.suites.schema import GenerationTask, VariantSpec
from vldebias.evaluation.suites.session import Session
from vldebias.evaluation.texts import Texts
from vldebias.hosts.images import image_encoder
from vldebias.loading import Loaded
from vldebias.prompts import PromptSet, load_prompts

__all__ = ["image_folder", "judge_of", "run_generation"]


def run_generation(session: Session, task: GenerationTask) -> list[Part]:
    """Tables 7.6 and 7.7 for one prompt set."""
    pipe, prompts, folder = session.pipeline.host, prompts_for(task), image_folder(session, task)
    variants = {name: _variant(spec) for name, spec in task.variants.items()}
    parts = evaluate_generation(
        pipe,
        prompts,
        judge_of(session, task),
        folder,
        task=task.name,
        attributes=task.attributes,
        variants=variants,
        images=task.images,
        seeds=task.seeds,
        concepts=task.concepts,
        stated=task.stated,
        stated_images=task.stated_images,
        pair_table=False,
        noun=task.noun,
        steps=task.steps,
        guidance=task.guidance,
        batch_size=task.batch_size,
        sure=task.sure,
        resamples=task.resamples,
        seed=task.seed,
        progress=session.progress,
    )
    if task.strips is not None:
        parts[0] = _with_strips(session, task, prompts, variants, parts[0])
    return parts + _quality(session, task, folder, parts[0].protocol)


def prompts_for(task: GenerationTask) -> PromptSet:
    """The prompt set that is drawn, with the task's own subjects where it names some."""
    return subject_prompts(task.subjects, task.prompts) if task.subjects else load_prompts(task.prompts)


def _quality(session: Session, task: GenerationTask, folder: Path, drawn: Protocol) -> list[Part]:
    """CLIPScore and FID of the prompts that state no attribute, as far as the task asks for them."""
    if task.clip_score is None and task.fid is None:
        return []
    images = [image for image in DrawnSet.open(folder) if image.stated is None]
    parts = []
    if task.clip_score is not None:
        loaded = scorer_of(session, task)
        encoder = image_encoder(loaded.host, loaded.preprocess, name=loaded.name)
        texts = Texts(loaded.host, loaded.tokenizer)
        with session.step(f"{task.name}: CLIPScore"):
            common: dict[str, Any] = {"drawn": drawn, "resamples": task.resamples, "seed": task.seed}
            parts += evaluate_clip_score(images, folder, encoder, texts, task=f"{task.name}: CLIPScore", **common)
    if task.fid is not None:
        with session.step(f"{task.name}: FID"):
            extractor = _features(session, task)
            parts += evaluate_fid(images, folder, extractor, task=f"{task.name}: FID", drawn=drawn)
    return parts


def scorer_of(session: Session, task: GenerationTask) -> Loaded:
    """The model of CLIPScore: the task's, else the user's, else that of the judge."""
    if task.clip_score is not None and task.clip_score.model is not None:
        return session.image_text(task.clip_score.model, task.clip_score.pretrained)
    return session.model if session.options.model is not None else _judging_model(session, task)


def _features(session: Session, task: GenerationTask) -> Extractor:
    if task.fid is not None and task.fid.features == "inception":
        return InceptionFeatures(device=session.options.device)
    loaded = scorer_of(session, task)
    return image_encoder(loaded.host, loaded.preprocess, name=loaded.name)


def image_folder(session: Session, task: GenerationTask) -> Path:
    """Where the images of a task lie: "<out>/images/<task>"."""
    return session.options.out / "images" / slug(task.name)


def _variant(spec: VariantSpec) -> Variant:
    return Variant(spec.prompts, spec.method, spec.lam, spec.strength, spec.keep_stated)


def _with_strips(
    session: Session, task: GenerationTask, prompts: PromptSet, variants: dict[str, Variant], part: Part
) -> Part:
    """The part with pictures of a few prompts at several strengths of the first variant."""
    assert task.strips is not None
    name, variant = next(iter(variants.items()))
    with session.step(f"{task.name}: strengths") as on_step:
        plot = draw_strengths(
            session.pipeline.host,
            prompts_of(prompts, task.strips.concepts),
            variant,
            strengths=task.strips.strengths,
            seeds=range(task.strips.seeds),
            steps=task.steps,
            guidance=task.guidance,
            on_step=on_step,
        )
    told = f"The same noise at several strengths of {name}, row by row; strength 0 is the pipeline as it is."
    return Part(part.figures, part.protocol, {**part.plots, f"{slug(task.name)}-strengths": (told, plot)})


def judge_of(session: Session, task: GenerationTask) -> Judge:
    """The judge that the suite names, or the model that the user names in its place."""
    spec = task.judge
    if spec.kind == "miniature":
        return MiniatureJudge()
    if spec.kind == "classifier":
        assert spec.model is not None
        assert spec.attribute is not None
        return ClassifierJudge.load(spec.model, spec.attribute, device=session.options.device)
    loaded = _judging_model(session, task)
    given: dict[str, Any] = {
        "model": loaded.host,
        "preprocess": loaded.preprocess,
        "tokenizer": loaded.tokenizer,
        "name": loaded.name,
    }
    if spec.kind == "backgrounds":
        return background_judge(**given, subjects=prompts_for(task).held_out_class_names)
    questions = {attribute: Question(values, spec.reject) for attribute, values in spec.prompts.items()}
    questions.setdefault(task.noun, _concepts(prompts_for(task)))
    return ClipJudge(**given, questions=questions)


def _judging_model(session: Session, task: GenerationTask) -> Loaded:
    """The image-text model behind the judge: the user's, else the suite's."""
    chosen = (task.judge.model, task.judge.pretrained)
    if session.options.judge is not None:
        chosen = (session.options.judge, session.options.judge_pretrained)
    if chosen[0] is None:
        raise InvalidInputError(f"{task.name}: no image-text model for the judge or for CLIPScore; give --judge")
    return session.image_text(chosen[0], chosen[1])


def _concepts(prompts: PromptSet) -> Question:
    """Which concept an image shows, by the class prompts themselves: whether a projection keeps the subject."""
    names = [*prompts.class_names, *prompts.held_out_class_names]
    texts = [*prompts.classes, *prompts.held_out_classes]
    return Question({name: (text,) for name, text in zip(names, texts, strict=True)})
