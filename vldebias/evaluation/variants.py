"""Define one way to debias a pipeline, with any method for pipelines or a saved edit, and its description in words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator, model_validator

from vldebias.edit import Edit
from vldebias.evaluation.result import NONE as NONE  # the pipeline as it is
from vldebias.evaluation.task import Lam, Prompts, SeveralPrompts, Share, Strict
from vldebias.methods import METHODS, Method, Need, Problem, get_method, load_edit, load_edits
from vldebias.prompts import BalancedPrompts, Balancer, PromptSet, can_balance, load_prompts

if TYPE_CHECKING:
    from vldebias.hosts import Attachment, Host


def is_for_pipelines(method: str | Method) -> bool:
    """Return whether a method is for pipelines.

    Raises:
        InvalidInputError: no method of this name.
    """
    chosen = get_method(method)
    return chosen.rewrites or (chosen.pipelines and not chosen.uses_images)


class Variant(Strict):
    """Hold one way to debias the pipeline: the arguments of `vldebias.debias`, with any method for pipelines.

    prompts: sets that are solved jointly; none: the set that is generated. method: its name.
    lam = 500 is the paper's (section 7.6); "default" chooses its own. max_loss: most that neutral texts may lose.
    shares: value -> share of the images, of "balanced-prompts". strength: share of the edit, and of "balanced-prompts"
    share of the images. projection: a folder that `save_pretrained` or `vldebias debias --out` wrote, in place of
    prompts, method, lam and max_loss.
    """

    prompts: SeveralPrompts = ()
    method: str = "cali"
    lam: Annotated[Lam, Field(allow_inf_nan=False)] = 500.0
    strength: Share = 1.0
    keep_stated: bool = True
    max_loss: Annotated[float, Field(gt=0, lt=1)] | None = None
    shares: dict[str, float] | None = None
    projection: Path | None = None

    @field_validator("method")
    @classmethod
    def _known(cls, given: str) -> str:
        if not is_for_pipelines(given):
            expected = ", ".join(filter(is_for_pipelines, METHODS))
            raise ValueError(f"method {given!r} is not for pipelines; expected one of {expected}")
        return given

    @model_validator(mode="after")
    def _fits(self) -> Variant:
        clash = self.model_fields_set & {"prompts", "method", "lam", "max_loss", "shares"}
        if self.projection is not None and clash:
            raise ValueError(f"a saved projection carries its own {', '.join(sorted(clash))}; leave them out")
        if self.projection is None and not self.rewrites:
            if self.shares:
                raise ValueError(f"shares are of the method 'balanced-prompts', got method {self.method!r}")
            missing = bool(self.attributes) and not any(part.spurious for part in self.attributes)
            if missing and Need.SPURIOUS in get_method(self.method).needs:
                raise ValueError(
                    f"method {self.method!r} needs spurious prompts and the sets have none; use method='cali'"
                )
        return self

    @property
    def sets(self) -> list[PromptSet]:
        """Return the prompt sets, loaded."""
        return [load_prompts(given) for given in self.prompts]

    @property
    def attributes(self) -> list[PromptSet]:
        """Return one set per attribute."""
        return [part for given in self.sets for part in (given.parts or (given,))]

    @property
    def rewrites(self) -> bool:
        """Return whether prompts are balanced, the default for sets about persons; the pipeline is then unchanged."""
        if self.projection is not None:
            return False
        method = get_method(self.method)
        stands_for = method.name == "default" and self.max_loss is None  # a bound is of an edit
        return method.rewrites or (stands_for and bool(self.attributes) and all(map(can_balance, self.attributes)))

    def balanced(self, prompts: Sequence[str]) -> BalancedPrompts:
        """Return the prompts of a whole plan with values stated, in the shares of the variant."""
        sets = self.sets[0] if len(self.prompts) == 1 else self.sets
        return Balancer(sets, strength=self.strength, shares=self.shares).next(prompts)

    @property
    def weight(self) -> float | None:
        """Return lam, for methods that take one."""
        return self.lam if not self.rewrites and get_method(self.method).has_lam else None

    @cached_property
    def edits(self) -> Mapping[str, Edit] | Edit:
        """Return the saved edits, one per role or a single one."""
        assert self.projection is not None
        single = (self.projection / "config.json").is_file()
        return load_edit(self.projection) if single else load_edits(self.projection)

    def on(self, *prompts: Prompts) -> Variant:
        """Return the variant for a task that generates `prompts`; it is fitted on them if it names no sets."""
        return self if self.prompts or self.projection is not None else self.model_copy(update={"prompts": prompts})

    def attach(self, pipe: Any, *, keep_stated: bool) -> AbstractContextManager[Attachment]:
        """Attach the variant to a pipeline."""
        from vldebias.api import debias

        common: dict[str, Any] = {"strength": self.strength, "keep_stated": keep_stated}
        if self.projection is not None:
            return debias(pipe, self.edits, **common)
        return debias(pipe, self.sets, method=self.method, lam=self.weight, max_loss=self.max_loss, **common)

    def fitted(self, host: Host, role: str) -> Edit:
        """Return the edit for one role of a host."""
        if self.projection is None:
            problem = Problem.of(host, self.sets, lam=self.weight, max_loss=self.max_loss)
            return problem.fit(self.method, role)
        return self.edits[role] if isinstance(self.edits, Mapping) else self.edits

    @property
    def planned(self) -> dict[str, Any]:
        """Return the description of the variant that a plan stores.

        sets: name of each prompt set -> its hash. projection: digest of the tensors of a saved edit.
        """
        keys = ("strength", "keep_stated", "max_loss", "shares")
        told = {key: value for key in keys if (value := getattr(self, key)) is not None}
        if self.projection is None:
            name = "balanced-prompts" if self.rewrites else get_method(self.method).name
            return told | {"sets": {one.name: one.hash for one in self.sets}, "method": name, "lam": self.weight}
        edits = list(self.edits.values() if isinstance(self.edits, Mapping) else [self.edits])
        first, tensors = edits[0].provenance, [t for edit in edits for _, t in sorted(edit.tensors().items())]
        digests = "".join(hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for tensor in tensors)
        known = METHODS.get(first.method)
        lam = first.lam if isinstance(first.lam, float) and (known is None or known.has_lam) else None
        told |= {"sets": {first.prompts or "projection": first.prompts_hash or ""}, "method": first.method, "lam": lam}
        return told | {"projection": hash_of(digests)}


def hash_of(text: str) -> str:
    """Return a short hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
