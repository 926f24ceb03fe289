"""What a suite says of who reads drawn images: one model per `kind`, and other packages add theirs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from vldebias.data.tables import ENDINGS, read_table
from vldebias.errors import InvalidInputError
from vldebias.evaluation.backgrounds import background_judge
from vldebias.evaluation.judges import ClassifierJudge, ClipJudge, Judge, MiniatureJudge, Question, TableJudge
from vldebias.evaluation.task import OneOrMore, Session, Strict, named_by, one_of
from vldebias.files import read_yaml
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

    def judging_model(self, session: Session, judge: JudgeSpec | None = None) -> Loaded:
        """The image-text model of a judge, that the user or the suite names."""


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
    """An image-text model that is asked about images. model, pretrained: --judge stands for the first judge's."""

    model: str | None = None
    pretrained: str | None = None

    def of_model(self, loaded: Loaded) -> dict[str, Any]:
        """What every zero-shot judge is given of its model."""
        parts = {"model": loaded.host, "preprocess": loaded.preprocess, "tokenizer": loaded.tokenizer}
        return parts | {"name": loaded.name}


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
        return ClipJudge(**self.of_model(task.judging_model(session, self)), questions=questions)


@register_judge
class BackgroundsSpec(ZeroShotSpec):
    """Zero-shot, for land and water behind an animal."""

    kind: Literal["backgrounds"] = "backgrounds"

    def open(self, task: Judged, session: Session) -> Judge:
        """It knows the animals that are drawn."""
        subjects = task.drawn_set.held_out_class_names
        return background_judge(**self.of_model(task.judging_model(session, self)), subjects=subjects)


def judge_to_compare(name: str, first: JudgeSpec | None, judge: Judge, attributes: Sequence[str]) -> JudgeSpec | None:
    """What `--second-judge` names: the judge that the first one, `judge`, is compared with.

    name: "miniature", a table of labels with the columns `image` and some of the attributes, a YAML file with what a
        suite says of a judge, or an image-text model, NAME or NAME:TAG, that is asked what `first` is asked.

    Returns:
        None where a table has none of the attributes.

    Raises:
        InvalidInputError: a file that cannot be read; a model where the first judge is none that is asked by prompts.
    """
    path = Path(name)
    if name == "miniature":
        return MiniatureSpec()
    if path.suffix.lower() in (".yaml", ".yml"):
        try:
            spec: JudgeSpec = TypeAdapter(Annotated[Any, one_of(JUDGES, "kind")]).validate_python(read_yaml(path))
        except ValidationError as error:
            raise InvalidInputError(f"{path}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
        return spec
    if path.suffix.lower() in ENDINGS:
        there = set(read_table(path).column_names)
        known = tuple(one for one in dict.fromkeys(chain(*(a.split(" x ") for a in attributes))) if one in there)
        values = {one: tuple(judge.names[one]) for one in known}
        return TableSpec(table=path, attributes=known, values=values) if known else None
    if not isinstance(first, ZeroShotSpec):
        raise InvalidInputError(
            f"--second-judge {name}: the suite's judge is not asked by prompts, so no model can be asked the same; "
            "expected 'miniature', a table of labels or the YAML file of a judge"
        )
    own, colon, tag = name.rpartition(":") if not path.exists() else (name, "", "")
    return first.model_copy(update={"model": own if colon else name, "pretrained": tag if colon else None})
