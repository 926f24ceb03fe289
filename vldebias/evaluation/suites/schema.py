"""The schema of a suite: what `vldebias eval NAME` measures, on which data, with which conventions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from vldebias.errors import InvalidInputError
from vldebias.resources import likely

__all__ = [
    "AnnotationsTask",
    "ClipScore",
    "Data",
    "Fid",
    "GenerationTask",
    "GroupsTask",
    "JudgeSpec",
    "Queries",
    "RetrievalTask",
    "Strips",
    "Suite",
    "Task",
    "TextsTask",
    "UtilitySpec",
    "VariantSpec",
]

Method = Literal["none", "orth", "cali", "orth-cali"]
Methods = tuple[Method, ...]
ALL_METHODS: Methods = ("none", "orth", "orth-cali", "cali")
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9 ._-]*$")]
Lam = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
# One text, or several.
OneOrMore = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(_Strict):
    """Which images: a name of `vldebias eval data`, a split of it, and options of its reader.

    The worlds "birds" and "portraits" are rendered; everything else lies under --data-root.
    """

    name: str
    split: str = "test"
    options: dict[str, Any] = {}


class GroupsTask(_Strict):
    """Zero-shot classification by group (Tables 7.1-7.4 and A.9); see `evaluate_groups` for the fields."""

    task: Literal["groups"]
    name: Name
    title: str
    data: Data
    prompts: str
    label: str
    spurious: str
    methods: Methods = ALL_METHODS
    lam: Lam | None = None
    strength: Share = 1.0
    lams: tuple[Lam, ...] = ()
    class_agnostic: bool = False
    train: Data | None = None
    val: Data | None = None
    baselines: tuple[str, ...] = ()
    resamples: Count = 2000
    seed: int = 0

    @model_validator(mode="after")
    def _trained_on(self) -> GroupsTask:
        if self.baselines and self.train is None:
            raise ValueError("baselines are trained: name the split under `train`")
        return self


class Queries(_Strict):
    """Class prompts of a prompt set as queries, or its held-out ones."""

    of: str
    held_out: bool = False


class UtilitySpec(_Strict):
    """What retrieval is to keep: see `vldebias.evaluation.retrieval.evaluator.Utility`.

    classes: column -> value -> its class prompt. relevant: the column that says which images a query is about.
    """

    captions: bool = False
    recall_k: tuple[Count, ...] = (1, 5, 10)
    classes: dict[str, dict[str, str]] = {}
    relevant: str | None = None


class RetrievalTask(_Strict):
    """Skew of retrieval (Table 7.5); see `evaluate_retrieval` for the fields.

    prompts: column, or intersection "gender x race" -> prompt set, or several that are solved jointly.
    """

    task: Literal["retrieval"]
    name: Name
    title: str
    data: Data
    prompts: Annotated[dict[str, OneOrMore], Field(min_length=1)]
    queries: Queries | Annotated[list[str], Field(min_length=1)]
    k: Annotated[list[Count], Field(min_length=1), BeforeValidator(lambda k: [k] if isinstance(k, int) else k)]
    methods: Methods = ALL_METHODS
    lam: Lam | None = None
    strength: Share = 1.0
    prior: Literal["uniform", "dataset"] = "uniform"
    floor: float | None = None
    ties: Literal["stable", "random"] = "stable"
    resample: Literal["queries", "images"] = "images"
    utility: UtilitySpec = UtilitySpec()
    resamples: Count = 2000
    seed: int = 0


class JudgeSpec(_Strict):
    """Who reads attributes from drawn images.

    kind: "clip" (zero-shot, prompts: attribute -> value -> its prompts; reject: prompts for images that show none of
    them), "backgrounds" (the same for land and water behind an animal), "classifier" (a transformers image classifier
    for one attribute), "miniature" (the classifier of the embedded world).
    model, pretrained: of all kinds but the last; --judge takes their place.
    """

    kind: Literal["clip", "backgrounds", "classifier", "miniature"]
    model: str | None = None
    pretrained: str | None = None
    prompts: dict[str, dict[str, OneOrMore]] = {}
    reject: tuple[str, ...] = ()
    attribute: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> JudgeSpec:
        if self.kind == "clip" and not self.prompts:
            raise ValueError("a clip judge needs `prompts`: attribute -> value -> prompt")
        if self.kind == "classifier" and not (self.model and self.attribute):
            raise ValueError("a classifier needs `model` and the `attribute` that it reads")
        return self


class VariantSpec(_Strict):
    """One way to debias the pipeline: the arguments of `vldebias.debias`."""

    prompts: tuple[str, ...]
    method: Literal["orth", "cali", "orth-cali"] = "cali"
    lam: Lam = 500.0
    strength: Share = 1.0
    keep_stated: bool = True


class Strips(_Strict):
    """Pictures at several strengths: these concepts of the prompt set, this many seeds each."""

    concepts: Annotated[list[str], Field(min_length=1)]
    strengths: tuple[Share, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    seeds: Count = 2


class ClipScore(_Strict):
    """CLIPScore of the images against their prompts. The model: this one, else --model, else that of the judge."""

    model: str | None = None
    pretrained: str | None = None


class Fid(_Strict):
    """FID of each variant against the images of none.

    features: "clip" (the model of CLIPScore) or "inception" (needs torch-fidelity, and downloads its weights).
    """

    features: Literal["clip", "inception"] = "clip"


class GenerationTask(_Strict):
    """Discrepancy of generated images (Tables 7.6 and 7.7); see `evaluate_generation` for the fields.

    subjects: draw these in the place of the unseen concepts of the prompt set (section 7.6.4).
    """

    task: Literal["generation"]
    name: Name
    title: str
    prompts: str
    subjects: tuple[str, ...] = ()
    attributes: Annotated[list[str], Field(min_length=1)]
    judge: JudgeSpec
    variants: Annotated[dict[str, VariantSpec], Field(min_length=1)]
    images: Count = 100
    seeds: Annotated[list[int], Field(min_length=1)] = [0]
    concepts: Literal["train", "unseen", "both"] = "both"
    stated: bool = True
    stated_images: Count = 8
    noun: str = "professions"
    steps: Count = 50
    guidance: float = 7.5
    batch_size: Count = 8
    sure: Share = 0.8
    strips: Strips | None = None
    clip_score: ClipScore | None = None
    fid: Fid | None = None
    resamples: Count = 2000
    seed: int = 0


class TextsTask(_Strict):
    """Distance of pairs before and after, on concepts of the fit and on unseen ones (Table 7.6). Draws nothing.

    sets: what the rows are called -> prompt set. host: which of the two hosts on the command line.
    """

    task: Literal["texts"]
    name: Name
    title: str
    host: Literal["model", "pipeline"] = "pipeline"
    sets: Annotated[dict[str, str], Field(min_length=1)]
    method: Literal["orth", "cali", "orth-cali"] = "cali"
    lam: Lam = 500.0
    resamples: Count = 2000
    seed: int = 0


class AnnotationsTask(_Strict):
    """Discrepancy from labels that people gave (Table 7.8); the files come with --labels and --drawn."""

    task: Literal["annotations"]
    name: Name
    title: str
    attribute: str
    names: Annotated[list[str], Field(min_length=2)]
    votes: Literal["majority", "each"] = "majority"
    resamples: Count = 2000
    seed: int = 0


Task = GroupsTask | RetrievalTask | GenerationTask | TextsTask | AnnotationsTask


class Suite(_Strict):
    """What one YAML file holds. needs: what the user has to bring, for `eval list` and for messages.

    host: weights that are used unless the command line names others: "miniature" for the embedded world.
    headline: (task, metric) of the figures that the terminal shows; all wholes where there are none.
    """

    name: Name
    title: str
    description: str
    source: str
    needs: str
    host: Literal["miniature"] | None = None
    headline: tuple[tuple[str, str], ...] = ()
    tasks: Annotated[tuple[Annotated[Task, Field(discriminator="task")], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _different_names(self) -> Suite:
        names = [task.name for task in self.tasks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two tasks are called {twice[0]!r}; give each its own name")
        return self

    def only(self, names: Iterable[str]) -> Suite:
        """The suite with some of its tasks; all of them where no name is given.

        Raises:
            InvalidInputError: no task of that name; the message lists them.
        """
        wanted, there = list(names), [task.name for task in self.tasks]
        for name in wanted:
            if name not in there:
                raise InvalidInputError(
                    f"{self.name}: no task {name!r}; expected one of {', '.join(there)}; {likely(name, there)}"
                )
        return self.model_copy(update={"tasks": tuple(t for t in self.tasks if not wanted or t.name in wanted)})
