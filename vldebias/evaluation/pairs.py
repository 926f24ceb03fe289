"""Measure the distance of prompts that differ in the attribute alone, before and after an edit (Table 7.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError
from vldebias.evaluation.images import sets_by_column
from vldebias.evaluation.result import NONE, TaskProvenance, TaskResult
from vldebias.evaluation.session import Session
from vldebias.evaluation.task import Lam, Prompts, Task, register_task
from vldebias.hosts import Host, resolve
from vldebias.methods import Problem, get_method
from vldebias.progress import SILENT, Progress


@register_task
class TextsTask(Task):
    """Measure mean |z_i - z_j| over the pairs of prompt sets, of fitted and of unseen concepts (section 7.6.1).

    All prompts are edited, those that state their attribute too. Resampled over concepts, whose pairs share prompts.

    sets: what the rows are called -> prompt set. method: any that edits embeddings.
    """

    task: Literal["texts"] = "texts"
    sets: Annotated[dict[str, Prompts], Field(min_length=1)]
    method: Annotated[str, AfterValidator(lambda given: get_method(given).name)] = "cali"
    lam: Lam = 500.0

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task for the given prompt sets; InvalidInputError: several methods."""
        if "methods" in fields:
            raise InvalidInputError("methods: the task texts measures one method; name it with method=")
        sets = {column: of[0] for column, of in sets_by_column(fields.get("prompts")).items()}
        return super().of_given(session, {"sets": sets, **fields})

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return what embeds the prompts, and the name that the user gave it."""
        encoder = resolve(session.pipeline.host, tokenizer=session.pipeline.tokenizer)
        return {"encoder": encoder, "model": session.options.pipeline, "progress": session.progress}

    def measure(self, encoder: Host, *, model: str | None = None, progress: Progress = SILENT) -> list[TaskResult]:
        """Measure every set with a host (`vldebias.hosts.resolve`); model: what it is called, by default its name."""
        results, lam = [], self.lam if get_method(self.method).has_lam else None
        for name, prompts in self.sets.items():
            provenance = TaskProvenance(
                task=f"{self.name} {name}",
                title="Distance of prompts that differ in the attribute alone (Table 7.6)",
                description="Mean L2 distance of the two prompts of a pair, without and with the projection: pairs "
                "that it was fitted on, and pairs of concepts that it was not. Resampled over concepts.",
                model=model or encoder.name,
                fingerprint=encoder.weights,
                prompts=prompts.name,
                prompts_hash=prompts.hash,
                split="texts",
                methods={NONE: {}, self.method: {"lam": lam, "strength": 1.0}},
                seeds=[self.seed],
                n={"pairs": len(prompts.pairs), "unseen pairs": len(prompts.held_out_pairs)},
                settings=self.settings({"roles": list(encoder.roles)}),
            )
            result, problem = TaskResult(provenance), Problem(encoder, prompts, lam=lam)
            parts = [(part, of) for part, of in (("train", prompts.groups), ("unseen", prompts.held_out_groups)) if of]
            with progress.bar(provenance.task):
                edits = {role: problem.fit(self.method, role) for role in encoder.roles}
                for role, (part, groups) in product(encoder.roles, parts):
                    own = {NONE: None, self.method: edits[role]}
                    sums = {method: _sums(encoder, role, groups, edit) for method, edit in own.items()}
                    result.add_resampled(
                        "pair_distance",
                        sums,
                        n={"concepts": len(groups), "pairs": int(sums[NONE][:, 1].sum())},
                        statistic=lambda drawn: drawn[..., 0].sum(-1) / drawn[..., 1].sum(-1),  # over all pairs
                        subset=part if len(encoder.roles) == 1 else f"{part}, {role}",
                        resamples=self.resamples,
                        seed=self.seed,
                    )
            results.append(result)
        return results


def _sums(host: Host, role: str, groups: Sequence[Sequence[str]], edit: Edit | None) -> NDArray[np.float64]:
    """Return the sum of distances over the pairs of each group, and how many these are (n, 2)."""
    rows = host.embed(list(chain(*groups)), role)
    rows = rows if edit is None else edit(rows)
    distances = [torch.pdist(own.double()) for own in rows.split([len(group) for group in groups])]
    return np.array([(float(own.sum()), len(own)) for own in distances])
