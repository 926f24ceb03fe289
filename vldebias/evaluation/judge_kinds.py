"""What a suite says of who reads drawn images: one model per `kind`, and other packages add theirs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Field

from vldebias.evaluation.backgrounds import background_judge
from vldebias.evaluation.judges import ClassifierJudge, ClipJudge, Judge, MiniatureJudge, Question, TableJudge
from vldebias.evaluation.task import OneOrMore, Session, Strict, named_by
from vldebias.loading import Loaded
from vldebias.prompts import PromptSet
from vldebias.registry import Registry

T = TypeVar("T", bound="JudgeSpec")


class Judged(Protocol):
    """What a judge reads of the task whose images it judges, a `GenerationTask`."""

    @property
    def noun(self) -> str:
        """What its concepts are called."""

    @property
    def drawn_set(self) -> PromptSet:
        """What is drawn."""

    def judging_model(self, session: Session) -> Loaded:
        """The image-text model that the user or the suite names."""


class JudgeSpec(Strict, ABC):
    """Who reads attributes from drawn images. Subclasses name their kind, `kind: Literal["clip"] = "clip"`."""

    kind: str

    @abstractmethod
    def open(self, task: Judged, session: Session) -> Judge:
        """The judge, for the prompts of a task and with what the user of a session chose."""


JUDGES: Registry[type[JudgeSpec]] = Registry("judge", "vldebias.judges", named_by(JudgeSpec, "kind"), instances=False)


def register_judge(spec: type[T]) -> type[T]:
    """Make a kind of judge known to suites, as `judge: {kind: NAME}`; returns it.

    Raises:
        InvalidInputError: no judge with a kind, or another one has the kind.
    """
    JUDGES.register(spec)
    return spec


@register_judge
class MiniatureSpec(JudgeSpec):
    """The classifier of the embedded world: profession, gender, tone and age of people; species, bird, place and
    background of birds."""

    kind: Literal["miniature"] = "miniature"

    def open(self, task: Judged, session: Session) -> Judge:
        """The weights that ship with the package."""
        return MiniatureJudge()


@register_judge
class ClassifierSpec(JudgeSpec):
    """An image classifier of transformers for one attribute; values: value -> the labels of it that mean that."""

    kind: Literal["classifier"] = "classifier"
    model: str
    attribute: str
    values: dict[str, OneOrMore] | None = None

    def open(self, task: Judged, session: Session) -> Judge:
        """The classifier with this name."""
        return ClassifierJudge.load(self.model, self.attribute, self.values, device=session.options.device)


@register_judge
class TableSpec(JudgeSpec):
    """Labels that were made elsewhere: a table with a row per image, see `TableJudge`."""

    kind: Literal["table"] = "table"
    table: Path
    attributes: Annotated[tuple[str, ...], Field(min_length=1)]
    values: dict[str, tuple[str, ...]] | None = None

    def open(self, task: Judged, session: Session) -> Judge:
        """The table."""
        return TableJudge(self.table, self.attributes, self.values)


class ZeroShotSpec(JudgeSpec, ABC):
    """An image-text model that is asked about images. model, pretrained: --judge takes their place."""

    model: str | None = None
    pretrained: str | None = None

    def of_model(self, loaded: Loaded) -> dict[str, Any]:
        """What every zero-shot judge is given of its model."""
        given = {"model": loaded.host, "preprocess": loaded.preprocess, "tokenizer": loaded.tokenizer}
        return given | {"name": loaded.name}


@register_judge
class ClipSpec(ZeroShotSpec):
    """Zero-shot, by prompts: attribute -> value -> its prompts; reject: prompts for images that show none of them."""

    kind: Literal["clip"] = "clip"
    prompts: Annotated[dict[str, dict[str, OneOrMore]], Field(min_length=1)]
    reject: tuple[str, ...] = ()

    def open(self, task: Judged, session: Session) -> Judge:
        """It is also asked which concept an image shows, by the class prompts: whether the subject is kept."""
        questions, prompts = {a: Question(values, self.reject) for a, values in self.prompts.items()}, task.drawn_set
        names = [*prompts.class_names, *prompts.held_out_class_names]
        classes = [*prompts.classes, *prompts.held_out_classes]
        questions.setdefault(task.noun, Question({n: (text,) for n, text in zip(names, classes, strict=True)}))
        return ClipJudge(**self.of_model(task.judging_model(session)), questions=questions)


@register_judge
class BackgroundsSpec(ZeroShotSpec):
    """Zero-shot, for land and water behind an animal."""

    kind: Literal["backgrounds"] = "backgrounds"

    def open(self, task: Judged, session: Session) -> Judge:
        """It knows the animals that are drawn."""
        subjects = task.drawn_set.held_out_class_names
        return background_judge(**self.of_model(task.judging_model(session)), subjects=subjects)
