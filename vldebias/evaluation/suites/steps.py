"""From one task of a suite to the call of its evaluator, and what a task depends on, so that it can be reused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.plan import Variant
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Protocol, Result
from vldebias.evaluation.suites.schema import (
    AnnotationsTask,
    Data,
    GenerationTask,
    GroupsTask,
    RetrievalTask,
    Task,
    TextsTask,
)
from vldebias.evaluation.suites.session import Session, file_digest
from vldebias.evaluation.suites.studio import judge_of, run_generation, scorer_of
from vldebias.prompts import PromptSet, load_prompts

__all__ = ["STEPS", "Step", "key_of"]


@dataclass(frozen=True)
class Step:
    """How a kind of task is run, and what its figures depend on beyond the task itself."""

    run: Callable[[Session, Any], list[Part]]
    depends: Callable[[Session, Any], Mapping[str, Any]]


def key_of(session: Session, task: Task) -> str:
    """Changes whenever the figures of a task may: its fields, prompts, weights, data, and the version of vldebias."""
    from vldebias import __version__

    content = {
        "task": task.model_dump(mode="json"),
        "prompts": {name: load_prompts(name).hash for name in sorted(_sets(task))},
        "strict": session.options.strict,
        "limit": session.options.limit,
        "version": __version__,
        **STEPS[task.task].depends(session, task),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _sets(task: Task) -> set[str]:
    """Names of the prompt sets of a task."""
    if isinstance(task, GroupsTask):
        return {task.prompts}
    if isinstance(task, RetrievalTask):
        queries = set() if isinstance(task.queries, list) else {task.queries.of}
        return queries | {name for names in task.prompts.values() for name in names}
    if isinstance(task, GenerationTask):
        return {task.prompts, *(name for variant in task.variants.values() for name in variant.prompts)}
    return set(task.sets.values()) if isinstance(task, TextsTask) else set()


# ---- images against texts ------------------------------------------------------------------------------------


def _groups(session: Session, task: GroupsTask) -> list[Part]:
    from vldebias.evaluation.groups.evaluator import evaluate_groups

    train = session.embedded(task.train) if task.train and session.has(task.train) else None
    val = session.embedded(task.val) if task.val and session.has(task.val) else None
    if task.baselines and train is None:
        session.say(f"{task.name}: no training split in the file, so the baselines that need labels are left out")
    test = session.embedded(task.data)
    with session.step(task.name) as on_step:
        return evaluate_groups(
            test,
            session.texts,
            load_prompts(task.prompts),
            task=task.name,
            label=task.label,
            spurious=task.spurious,
            methods=task.methods,
            lam=task.lam,
            strength=task.strength,
            lams=task.lams,
            class_agnostic=task.class_agnostic,
            train=train,
            val=val,
            baselines=task.baselines if train is not None else (),
            resamples=task.resamples,
            seed=task.seed,
            on_step=on_step,
        )


def _retrieval(session: Session, task: RetrievalTask) -> list[Part]:
    from vldebias.evaluation.retrieval.evaluator import Utility, evaluate_retrieval

    gallery = session.embedded(task.data)
    classes = {
        column: _class_prompts(column, prompts, gallery.column(column).names)
        for column, prompts in task.utility.classes.items()
    }
    utility = Utility(
        captions=task.utility.captions,
        recall_k=task.utility.recall_k,
        classes=classes,
        relevant=task.utility.relevant,
    )
    with session.step(task.name) as on_step:
        return evaluate_retrieval(
            gallery,
            session.texts,
            {column: _loaded(names) for column, names in task.prompts.items()},
            task=task.name,
            queries=queries_of(task),
            k=task.k,
            methods=task.methods,
            lam=task.lam,
            strength=task.strength,
            prior=task.prior,
            floor=task.floor,
            ties=task.ties,
            resample=task.resample,
            utility=utility,
            resamples=task.resamples,
            seed=task.seed,
            on_step=on_step,
        )


def queries_of(task: RetrievalTask) -> list[str]:
    """The texts that a retrieval task asks for."""
    if isinstance(task.queries, list):
        return task.queries
    prompts = load_prompts(task.queries.of)
    return list(prompts.held_out_classes if task.queries.held_out else prompts.classes)


def _loaded(names: tuple[str, ...]) -> PromptSet | list[PromptSet]:
    sets = [load_prompts(name) for name in names]
    return sets[0] if len(sets) == 1 else sets


def _class_prompts(column: str, prompts: Mapping[str, str], names: tuple[str, ...]) -> list[str]:
    """One prompt per name of the column, in the order of the names."""
    if set(prompts) != set(names):
        raise InvalidInputError(
            f"utility.classes.{column}: expected a prompt for each of {list(names)}, got {list(prompts)}"
        )
    return [prompts[name] for name in names]


def _of_images(session: Session, task: GroupsTask | RetrievalTask) -> dict[str, Any]:
    """What figures about images depend on: the weights of both towers, and the images of every split."""
    splits: list[Data | None] = [task.data]
    if isinstance(task, GroupsTask):
        splits += [task.train, task.val]
    images = session.options.embeddings is None
    return {
        "texts": session.texts.host.fingerprint(),
        "images": [session.encoder.digest, session.encoder.preprocessing] if images else None,
        "dtype": session.options.feature_dtype if images else None,
        "data": [session.fingerprint(split) for split in splits if split is not None],
    }


# ---- texts alone ---------------------------------------------------------------------------------------------


def _texts(session: Session, task: TextsTask) -> list[Part]:
    """Table 7.6: one part per prompt set."""
    from vldebias.evaluation.generation.pair_distances import pair_distances

    parts = []
    for name, prompts in ((name, load_prompts(file)) for name, file in task.sets.items()):
        said = f"{task.name} {name}"
        with session.step(said):
            figures = pair_distances(
                _host(session, task),
                prompts,
                {task.method: Variant((prompts,), task.method, task.lam)},
                task=said,
                noun="concepts",
                resamples=task.resamples,
                seed=task.seed,
            )
        parts.append(Part(figures, _texts_protocol(session, task, said, prompts)))
    return parts


def _host(session: Session, task: TextsTask) -> Any:
    return session.pipeline.host if task.host == "pipeline" else session.texts.host


def _texts_protocol(session: Session, task: TextsTask, said: str, prompts: PromptSet) -> Protocol:
    from vldebias.hosts import resolve

    host = resolve(_host(session, task))
    return Protocol(
        task=said,
        title="Distance of prompts that differ in the attribute alone (Table 7.6)",
        description="Mean L2 distance of the two prompts of a pair, without and with the projection: pairs that it was "
        "fitted on, and pairs of concepts that it was not. Resampled over concepts.",
        model=session.options.pipeline or session.options.model or host.name,
        fingerprint=host.fingerprint(),
        prompts=prompts.name,
        prompts_hash=prompts.hash,
        split="texts",
        methods={"none": {}, task.method: {"lam": task.lam, "strength": 1.0}},
        seeds=[task.seed],
        n={"pairs": len(prompts.pairs), "unseen pairs": len(prompts.held_out_pairs)},
        settings={"roles": list(host.roles), "resamples": task.resamples, "seed": task.seed},
    )


def _of_texts(session: Session, task: TextsTask) -> dict[str, Any]:
    from vldebias.hosts import resolve

    return {"host": resolve(_host(session, task)).fingerprint()}


# ---- labels of people ----------------------------------------------------------------------------------------


def _annotations(session: Session, task: AnnotationsTask) -> list[Part]:
    """Table 7.8, from the files of the annotators and the folder of images."""
    from vldebias.evaluation.drawing.drawn import DrawnSet
    from vldebias.evaluation.human.annotations import read_annotations
    from vldebias.evaluation.human.evaluator import evaluate_annotations

    labels, folder = _brought(session)
    drawn = DrawnSet.open(folder)
    annotations = read_annotations(labels, attribute=task.attribute if _all_csv(labels) else None)
    if task.attribute not in annotations.attributes:
        session.say(f"{task.name}: nobody labelled {task.attribute}, so it is left out")
        return []
    plain = [image for image in drawn if image.stated is None]
    with session.step(task.name):
        return evaluate_annotations(
            annotations,
            plain,
            attribute=task.attribute,
            names=task.names,
            task=task.name,
            votes=task.votes,
            drawn=_protocol_of(folder, drawn.plan.prompt_set_hash),
            resamples=task.resamples,
            seed=task.seed,
        )


def _brought(session: Session) -> tuple[list[Path], Path]:
    """The files of the annotators and the folder of images."""
    labels, folder = list(session.options.labels), session.options.drawn
    if not labels or folder is None:
        raise InvalidInputError(f"expected labels and the folder of drawn images; this suite needs {session.needs}")
    return labels, folder


def _all_csv(paths: list[Path]) -> bool:
    """Whether the files are tables whose rows need not say which attribute they are about."""
    return all(path.suffix.lower() == ".csv" and "attribute" not in _header(path) for path in paths)


def _header(path: Path) -> str:
    with path.open(encoding="utf-8-sig") as file:
        return file.readline()


def _protocol_of(folder: Path, prompts_hash: str) -> Protocol | None:
    """How the images were drawn, from the result of the run that drew them (<out>/images/<task>), if it is there."""
    path = folder.resolve().parents[1] / "result.json"
    if not path.is_file():
        return None
    drawn = [p for p in Result.read(path).protocols if p.prompts_hash == prompts_hash and p.split == "generated"]
    return drawn[0] if drawn else None


def _of_annotations(session: Session, task: AnnotationsTask) -> dict[str, Any]:
    labels, folder = _brought(session)
    return {"labels": [file_digest(path) for path in labels], "drawn": file_digest(folder / "plan.json")}


def _of_generation(session: Session, task: GenerationTask) -> dict[str, Any]:
    from vldebias.hosts import resolve

    scored = task.clip_score is not None or (task.fid is not None and task.fid.features == "clip")
    return {
        "pipeline": resolve(session.pipeline.host).fingerprint(),
        "judge": judge_of(session, task).fingerprint,
        "scored by": resolve(scorer_of(session, task).host).fingerprint() if scored else None,
    }


STEPS = {
    "groups": Step(_groups, _of_images),
    "retrieval": Step(_retrieval, _of_images),
    "texts": Step(_texts, _of_texts),
    "generation": Step(run_generation, _of_generation),
    "annotations": Step(_annotations, _of_annotations),
}
