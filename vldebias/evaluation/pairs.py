"""How far apart prompts are that differ in the attribute alone, before and after (Table 7.6). Draws nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from vldebias.edit import Edit
from vldebias.evaluation.images import names_of, prompts_of, sets_by_column
from vldebias.evaluation.result import TaskProvenance, TaskResult
from vldebias.evaluation.task import Lam, Options, Prompts, Session, Task, register_task
from vldebias.evaluation.variants import NONE, Variant
from vldebias.hosts import Host, resolve
from vldebias.methods import get_method
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts

Floats = NDArray[np.float64]


@register_task
class TextsTask(Task):
    """Distance of pairs before and after, on concepts of the fit and on unseen ones; a block per prompt set.

    sets: what the rows are called -> prompt set. host: which of the two hosts on the command line. method: any.
    """

    task: Literal["texts"] = "texts"
    host: Literal["model", "pipeline"] = "pipeline"
    sets: Annotated[dict[str, Prompts], Field(min_length=1)]
    method: Annotated[str, AfterValidator(lambda given: get_method(given).name)] = "cali"
    lam: Lam = 500.0

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Of the prompt sets that were given, on the model where it is no pipeline."""
        sets = {column: of[0] for column, of in sets_by_column(fields.get("prompts")).items()}
        models = isinstance(session.pipeline.host, Mapping) or not resolve(session.pipeline.host).generative
        own = {"sets": sets, "host": "model" if models else "pipeline"}
        return super().of_given(session, {**own, **fields})

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """All of them."""
        return names_of(self.sets.values())

    def with_options(self, options: Options) -> Self:
        """With the user's lambda in the place of its own."""
        changed = {} if options.lam is None else {"lam": options.lam}
        return super().with_options(options).model_copy(update=changed)

    def texts(self) -> tuple[str, ...]:
        """Return the pairs of all sets, where an image-text model embeds them."""
        sets = map(load_prompts, self.sets.values()) if self.host == "model" else ()
        return tuple(dict.fromkeys(t for s in sets for t in (*prompts_of([s]), *chain(*s.held_out_groups))))

    def _host(self, session: Session) -> Host:
        return resolve(session.pipeline.host) if self.host == "pipeline" else session.texts.host

    def fingerprints(self, session: Session) -> dict[str, Any]:
        """The weights of the host."""
        fingerprint = self._host(session).fingerprint()
        return {"host": fingerprint and fingerprint.to_dict()}

    def inputs(self, session: Session) -> dict[str, Any]:
        """The host, and what the user calls it."""
        name = session.options.pipeline or session.options.model
        return {"host": self._host(session), "model": name, "progress": session.progress}

    def measure(self, host: Host, *, model: str | None = None, progress: Progress = SILENT) -> list[TaskResult]:
        """Measure every set on a host (see `vldebias.hosts.resolve`); model: what it is called, its name by default."""
        results, printed = [], host.fingerprint()
        boot = {"resamples": self.resamples, "seed": self.seed}
        for name, prompts in ((name, load_prompts(of)) for name, of in self.sets.items()):
            variant = Variant(prompts=(prompts,), method=self.method, lam=self.lam)
            details = {"lam": variant.weight, "strength": variant.strength}
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
                settings={"roles": list(host.roles), **boot},
            )
            result = TaskResult(provenance, details={self.method: details})
            with progress.step(provenance.task):
                add_pair_distances(result, host, prompts, {self.method: variant}, noun="concepts", **boot)
            results.append(result)
        return results


def add_pair_distances(
    result: TaskResult, host: Host, prompts: PromptSet, variants: Mapping[str, Variant], *, noun: str = "professions",
    resamples: int = 2000, seed: int = 0,
) -> None:  # fmt: skip
    """Add the mean |P z_i - P z_j| over the pairs of `prompts`, "train" and "unseen" (section 7.6.1).

    Every pair is changed, whether a prompt states its attribute or not. Resampled over groups of prompts, one for each
    concept: the pairs of a group share their prompts. A host with several roles has rows for each of them, with the
    subset "unseen, pooled".

    Raises:
        InvalidInputError: a variant that rewrites prompts, which has no edit.
    """
    for role in host.roles:
        edits: dict[str, tuple[Edit | None, float]] = {NONE: (None, 1.0)}
        edits |= {name: (variant.fitted(host, role), variant.strength) for name, variant in variants.items()}
        for part, groups in (("train", prompts.groups), ("unseen", prompts.held_out_groups)):
            if groups:
                pairs = np.array([len(group) * (len(group) - 1) / 2 for group in groups])
                result.add_resampled(
                    "pair_distance",
                    {name: _distances(host, role, groups, *edit) for name, edit in edits.items()},
                    n={noun: len(groups), "pairs": int(pairs.sum())},
                    statistic=lambda sums, held: sums.sum(axis=-1) / held.sum(axis=-1),  # mean over pairs of all groups
                    shared=(pairs,),
                    subset=part if len(host.roles) == 1 else f"{part}, {role}",
                    resamples=resamples,
                    seed=seed,
                )


def _distances(host: Host, role: str, groups: Sequence[Sequence[str]], edit: Edit | None, strength: float) -> Floats:
    """Sum over the pairs of each group."""
    flat = list(dict.fromkeys(chain.from_iterable(groups)))
    rows = host.embed(flat, role) if edit is None else edit(host.embed(flat, role), strength)
    sums = []
    for group in groups:
        first, second = zip(*combinations([flat.index(prompt) for prompt in group], 2), strict=True)
        sums.append(float(torch.linalg.vector_norm(rows[list(first)] - rows[list(second)], dim=-1).sum()))
    return np.array(sums)
