"""One way to debias a pipeline that draws: with any method, or with an edit that was saved; and the same in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    Field,
    InstanceOf,
    PlainSerializer,
    field_validator,
    model_serializer,
    model_validator,
)

from vldebias.edit import Edit
from vldebias.evaluation.result import NONE as NONE  # the pipeline as it is
from vldebias.evaluation.task import Lam, Prompts, SeveralPrompts, Share, Strict
from vldebias.methods import METHODS, Bounded, Method, Need, Problem, SamplingMethod, get_method, load_edit, load_edits
from vldebias.methods.closed_form import PerHost
from vldebias.prompts import PromptSet, load_prompts

if TYPE_CHECKING:
    from vldebias.hosts import Attachment, Host


# A method by its name, or itself.
Chosen = str | Annotated[InstanceOf[Method], PlainSerializer(lambda given: f"{given.name} {_given(given)}")]


def is_for_pipelines(method: str | Method) -> bool:
    """Whether a method is for pipelines.

    Raises:
        InvalidInputError: no method of this name.
    """
    chosen = get_method(method)
    return chosen.pipelines and not chosen.uses_images


class _Setting(Strict):
    """What a variant and its description share."""

    strength: Share = 1.0
    keep_stated: bool = True
    max_loss: Annotated[float, Field(gt=0, lt=1)] | None = None
    shares: dict[str, float] | None = None
    stratify: Annotated[int, Field(ge=1)] | None = None
    judged: Annotated[int, Field(ge=1)] | None = None


class Variant(_Setting):
    """One way to debias the pipeline: what `vldebias.debias` takes, with any method for pipelines.

    method: a name, or in Python a Method; one that needs judged images has them drawn by the generation task.
    prompts: sets that are solved jointly; none: the set that is drawn. lam = 500 is the paper's (section 7.6);
    "default" chooses its own.
    max_loss: most that neutral texts may lose. shares, stratify: of "steer" and "stated-value", which draw a value for
    each image by its seed. judged: images that the method was fitted to, once they are. projection: a folder that
    `save_pretrained` or `vldebias debias --out` wrote, in the place of prompts, method, lam and max_loss.
    """

    prompts: SeveralPrompts = ()
    method: Chosen = "cali"
    lam: Annotated[Lam, Field(allow_inf_nan=False)] = 500.0
    projection: Path | None = None

    @field_validator("method")
    @classmethod
    def _known(cls, given: str | Method) -> str | Method:
        if not is_for_pipelines(given):
            raise ValueError(
                f"method {given!r} is not for pipelines; expected one of {', '.join(filter(is_for_pipelines, METHODS))}"
            )
        return given

    @model_validator(mode="after")
    def _fits(self) -> Variant:
        if self.projection is not None:
            clash = self.model_fields_set & {"prompts", "method", "lam", "max_loss", "shares", "stratify", "judged"}
            if clash:
                raise ValueError(f"a saved projection carries its own {', '.join(sorted(clash))}; leave them out")
            return self
        if (self.shares or self.stratify) and not isinstance(get_method(self.method), SamplingMethod):
            raise ValueError(
                f"shares and stratify are of the methods 'steer' and 'stated-value', got method {self.method!r}"
            )
        attributes = [part for given in self.sets for part in (given.parts or (given,))]
        spurious = Need.SPURIOUS in get_method(self.method).needs
        if spurious and attributes and not any(part.spurious for part in attributes):
            raise ValueError(f"method {self.method!r} needs spurious prompts and the sets have none; use method='cali'")
        return self

    @property
    def sets(self) -> list[PromptSet]:
        """The prompt sets, loaded."""
        return [load_prompts(given) for given in self.prompts]

    @property
    def solver(self) -> Method:
        """The method with its shares and its bound."""
        method = get_method(self.method)
        if isinstance(method, SamplingMethod) and (self.shares or self.stratify):
            method = type(method)(self.shares, stratify=self.stratify)
        return method if self.max_loss is None else Bounded(method, self.max_loss)

    @property
    def weight(self) -> float | None:
        """lam; None of a method that chooses its own for each pipeline, "default", where none was given."""
        method = get_method(self.method)
        own = isinstance(method, PerHost) and method.spares is not None and "lam" not in self.model_fields_set
        return None if own else self.lam

    @cached_property
    def edits(self) -> Mapping[str, Edit] | Edit:
        """The saved edits: of each role, or one."""
        assert self.projection is not None
        single = (self.projection / "config.json").is_file()
        return load_edit(self.projection) if single else load_edits(self.projection)

    def on(self, *prompts: Prompts) -> Variant:
        """The variant of a task that draws `prompts`: fitted on them where it names no sets."""
        return self if self.prompts or self.projection is not None else self.model_copy(update={"prompts": prompts})

    def attach(self, pipe: Any, *, keep_stated: bool | None = None) -> AbstractContextManager[Attachment]:
        """Attached to a pipeline; keep_stated in the place of its own."""
        from vldebias.api import debias

        common: dict[str, Any] = {"strength": self.strength}
        common["keep_stated"] = self.keep_stated if keep_stated is None else keep_stated
        if self.projection is not None:
            return debias(pipe, self.edits, **common)
        return debias(pipe, self.sets, method=self.solver, lam=self.weight, **common)

    def fitted(self, host: Host, role: str) -> Edit:
        """The edit for one role of a host."""
        if self.projection is None:
            return Problem.of(host, self.sets, lam=self.weight).fit(self.solver, role)
        return self.edits[role] if isinstance(self.edits, Mapping) else self.edits

    @property
    def planned(self) -> PlannedVariant:
        """The variant in words."""
        common: dict[str, Any] = {name: getattr(self, name) for name in _Setting.model_fields}
        if self.projection is None:
            sets, method = {given.name: given.hash for given in self.sets}, get_method(self.method)
            given = None if isinstance(self.method, str) else _given(method)
            return PlannedVariant(sets=sets, method=method.name, lam=self.weight, given=given, **common)
        edits = self.edits.values() if isinstance(self.edits, Mapping) else [self.edits]
        first = next(iter(edits)).provenance
        lam = first.lam if isinstance(first.lam, float) else None
        hashes = [
            hashlib.sha256(t.numpy().tobytes()).hexdigest() for e in edits for _, t in sorted(e.tensors().items())
        ]
        sets = {first.prompts or "projection": first.prompts_hash or ""}
        return PlannedVariant(sets=sets, method=first.method, lam=lam, **common, projection=hash_of("".join(hashes)))


class PlannedVariant(_Setting):
    """A Variant in words. only_stated: draws the prompts that state their attribute and no others.

    given: digest of what the method was given beyond its name, such as readings. judged: images that a judge read for
    its fit. projection: digest of the tensors of a saved edit.
    """

    sets: dict[str, str] = Field(description="name of each prompt set -> its hash")
    method: str
    lam: float | None
    only_stated: bool = False
    given: str | None = None
    projection: str | None = None

    @model_serializer(mode="wrap")
    def _brief(self, handler: Any) -> dict[str, Any]:
        """Without what it does not have: plans and pictures of earlier versions say nothing of it."""
        rare = ("max_loss", "shares", "stratify", "given", "judged", "projection")
        return {name: value for name, value in handler(self).items() if value is not None or name not in rare}


def lam_of(method: str, lam: float | None) -> float | None:
    """`lam`, of a method that has one: a plan says it of every method, and so do results of earlier versions."""
    known = METHODS.get(method)
    return lam if known is None or known.has_lam else None


def _given(method: Method) -> str | None:
    """Digest of the settings of a method; None where it has none."""
    settings = method.settings()
    return hash_of(json.dumps(settings, sort_keys=True)) if settings else None


def hash_of(text: str) -> str:
    """A short hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
