"""Measure the distance of prompts that differ in the attribute alone, before and after (Table 7.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import AfterValidator, Field

from vldebias.evaluation.images import names_of, prompts_of, sets_by_column
from vldebias.evaluation.result import NONE, TaskProvenance, TaskResult
from vldebias.evaluation.task import Lam, Options, Prompts, Session, Task, register_task
from vldebias.hosts import Host, resolve
from vldebias.methods import Problem, get_method
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts


@register_task
class TextsTask(Task):
    """Measure mean |P z_i - P z_j| over the pairs of a prompt set, fitted and unseen concepts (section 7.6.1).

    Every pair is changed, whether a prompt states its attribute or not. Resampled over groups of prompts, one for each
    concept: the pairs of a group share their prompts. A block per prompt set; rows per role of the host.

    sets: what the rows are called -> prompt set. host: which of the two hosts on the command line. method: any that
    has an edit.
    """

    task: Literal["texts"] = "texts"
    host: Literal["model", "pipeline"] = "pipeline"
    sets: Annotated[dict[str, Prompts], Field(min_length=1)]
    method: Annotated[str, AfterValidator(lambda given: get_method(given).name)] = "cali"
    lam: Lam = 500.0

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task for the given prompt sets, on the model where it is no pipeline."""
        sets = {column: of[0] for column, of in sets_by_column(fields.get("prompts")).items()}
        models = isinstance(session.pipeline.host, Mapping) or not resolve(session.pipeline.host).generative
        return super().of_given(session, {"sets": sets, "host": "model" if models else "pipeline", **fields})

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """Return all prompt sets."""
        return names_of(self.sets.values())

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's lambda in place of its own."""
        changed = {} if options.lam is None else {"lam": options.lam}
        return super().with_options(options).model_copy(update=changed)

    def texts(self) -> tuple[str, ...]:
        """Return the pairs of all sets, where an image-text model embeds them."""
        sets = map(load_prompts, self.sets.values()) if self.host == "model" else ()
        return tuple(dict.fromkeys(t for s in sets for t in (*prompts_of([s]), *chain(*s.held_out_groups))))

    def _host(self, session: Session) -> Host:
        return resolve(session.pipeline.host) if self.host == "pipeline" else session.texts.host

    def fingerprints(self, session: Session) -> dict[str, Any]:
        """Return the fingerprint of the host's weights."""
        fingerprint = self._host(session).fingerprint()
        return {"host": fingerprint and fingerprint.to_dict()}

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return the host and the name that the user gave it."""
        name = session.options.pipeline or session.options.model
        return {"host": self._host(session), "model": name, "progress": session.progress}

    def measure(self, host: Host, *, model: str | None = None, progress: Progress = SILENT) -> list[TaskResult]:
        """Measure every set on a host (see `vldebias.hosts.resolve`); model: what it is called, its name by default.

        Raises:
            InvalidInputError: a method that rewrites prompts, which has no edit.
        """
        results, printed = [], host.fingerprint()
        lam = self.lam if get_method(self.method).has_lam else None
        details = {"lam": lam, "strength": 1.0}
        for name, prompts in ((name, load_prompts(of)) for name, of in self.sets.items()):
            provenance = TaskProvenance(
                task=f"{self.name} {name}",
                title="Distance of prompts that differ in the attribute alone (Table 7.6)",
                description="Mean L2 distance of the two prompts of a pair, without and with the projection: pairs "
                "that it was fitted on, and pairs of concepts that it was not. Resampled over concepts.",
                model=model or host.name,
                fingerprint=None if printed is None else printed.to_dict(),
                prompts=prompts.name,
                prompts_hash=prompts.hash,
                split="texts",
                methods={NONE: {}, self.method: details},
                seeds=[self.seed],
                n={"pairs": len(prompts.pairs), "unseen pairs": len(prompts.held_out_pairs)},
                settings={"roles": list(host.roles), "resamples": self.resamples, "seed": self.seed},
            )
            result = TaskResult(provenance, details={self.method: details})
            with progress.step(provenance.task):
                self._fill(result, host, prompts, lam)
            results.append(result)
        return results

    def _fill(self, result: TaskResult, host: Host, prompts: PromptSet, lam: float | None) -> None:
        for role in host.roles:
            edits = {NONE: None, self.method: Problem.of(host, prompts, lam=lam).fit(self.method, role)}
            for part, groups in (("train", prompts.groups), ("unseen", prompts.held_out_groups)):
                if groups:
                    pairs = np.array([len(group) * (len(group) - 1) / 2 for group in groups])
                    result.add_resampled(
                        "pair_distance",
                        {name: _distances(host, role, groups, edit) for name, edit in edits.items()},
                        n={"concepts": len(groups), "pairs": int(pairs.sum())},
                        statistic=lambda sums, held: sums.sum(axis=-1) / held.sum(axis=-1),  # mean over all pairs
                        shared=(pairs,),
                        subset=part if len(host.roles) == 1 else f"{part}, {role}",
                        resamples=self.resamples,
                        seed=self.seed,
                    )


def _distances(host: Host, role: str, groups: Sequence[Sequence[str]], edit: Any) -> np.ndarray:
    """Sum over the pairs of each group."""
    flat = list(dict.fromkeys(chain.from_iterable(groups)))
    rows = host.embed(flat, role) if edit is None else edit(host.embed(flat, role), 1.0)
    sums = []
    for group in groups:
        first, second = zip(*combinations([flat.index(prompt) for prompt in group], 2), strict=True)
        sums.append(float(torch.linalg.vector_norm(rows[list(first)] - rows[list(second)], dim=-1).sum()))
    return np.array(sums)
