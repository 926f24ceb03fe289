"""Measure the distance between prompts that differ only in the attribute (Table 7.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Literal, Self

import numpy as np
import torch
from pydantic import AfterValidator, Field

from vldebias.errors import InvalidInputError
from vldebias.hosts import Host, resolve
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.methods import Problem, get_method
from vldebias.study.inputs import Inputs
from vldebias.study.task import AttributeField, Task, register_task
from vldebias.study.tasks.images import sets_by_column
from vldebias.utils.arrays import Floats
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Lam

MethodName = Annotated[str, AfterValidator(lambda name: get_method(name).name)]


@register_task
class TextsTask(Task):
    """Measure the mean of |z_i - z_j| over prompt pairs, for fitted and for unseen concepts.

    Every prompt is edited, even if it states the attribute. The bootstrap resamples concepts
    instead of pairs, because the pairs of a concept share prompts (section 7.6.1 of the thesis).

    Attributes:
        attribute: name -> prompt set; the name becomes part of the name of the set's block.
        method: method that edits embeddings.
        lam: the method's lambda, if it takes one.
    """

    task: Literal["texts"] = "texts"
    attribute: Annotated[dict[str, AttributeField], Field(min_length=1)]
    method: MethodName = "cali"
    lam: Lam = 500.0

    @classmethod
    def from_inputs(cls, inputs: Inputs, settings: Mapping[str, object]) -> Self:
        """Return the task for the prompt sets.

        Args:
            inputs: inputs passed by the user.
            settings: task settings by name.

        Raises:
            InvalidInputError: If the settings contain `methods`.
        """
        if "methods" in settings:
            raise InvalidInputError(
                "methods: the task 'texts' measures a single method; pass it as method="
            )
        fields = dict(settings)
        listed = sets_by_column(fields.pop("attribute", None))
        sets = {column: prompt_sets[0] for column, prompt_sets in listed.items()}
        return cls.build({"attribute": sets, **fields})

    def prepare(self, inputs: Inputs) -> dict[str, object]:
        """Return the prompt encoder and the pipeline name that the user passed."""
        pipeline = inputs.pipeline
        encoder = resolve(pipeline.host, tokenizer=pipeline.tokenizer)
        return {
            "encoder": encoder,
            "model": inputs.options.pipeline,
            "progress": inputs.progress,
        }

    def measure(
        self, encoder: Host, *, model: str | None = None, progress: Progress = SILENT
    ) -> list[TaskResult]:
        """Measure every prompt set.

        Args:
            encoder: the host that embeds the prompts (`vldebias.hosts.resolve`).
            model: model name in reports; the host's name by default.
            progress: object that shows progress bars.
        """
        # Only record lambda if the method takes it. Otherwise, the report would suggest that it had
        # an effect.
        lam = self.lam if get_method(self.method).declaration.has_lam else None
        results = []
        for name, prompt_set in self.attribute.items():
            facts = {"lam": lam, "strength": 1.0}
            provenance = TaskProvenance(
                task=f"{self.name} {name}",
                title=(
                    "Distance between prompts that differ only in the attribute (Chuang's thesis,"
                    " Table 7.6)"
                ),
                description=(
                    "Mean L2 distance between the two prompts in a pair, with and without the"
                    " projection, for the pairs it was fitted on and for pairs with held-out"
                    " concepts. The bootstrap resamples concepts."
                ),
                model=model or encoder.name,
                fingerprint=encoder.weights,
                attribute=prompt_set.name,
                attribute_hash=prompt_set.hash,
                split="texts",
                methods={NONE: {}, self.method: facts},
                seeds=[self.seed],
                n={"pairs": len(prompt_set.pairs), "unseen pairs": len(prompt_set.held_out_pairs)},
                settings=self.settings({"roles": list(encoder.roles)}),
            )
            result = TaskResult(provenance)
            # Only unseen concepts test generalisation. A projection is fitted to make the training
            # pairs equal, so their distance shrinks by construction.
            groups_of_part = {"train": prompt_set.variants}
            if prompt_set.held_out_variants:
                groups_of_part["unseen"] = prompt_set.held_out_variants
            with progress.bar(provenance.task):
                problem = Problem(encoder, prompt_set, lam=lam)
                for role in encoder.roles:
                    edit = problem.fit(self.method, role)
                    for part, groups in groups_of_part.items():
                        rows = encoder.embed(list(chain(*groups)), role)
                        lengths = list(map(len, groups))
                        sums = {NONE: _sums(rows, lengths), self.method: _sums(edit(rows), lengths)}
                        result.add_resampled(
                            "pair_distance",
                            sums,
                            n={"concepts": len(groups), "pairs": int(sums[NONE][:, 1].sum())},
                            # Mean distance over all pairs, from sums (b, groups, 2).
                            statistic=lambda sums: sums[..., 0].sum(-1) / sums[..., 1].sum(-1),
                            subset=part if len(encoder.roles) == 1 else f"{part}, {role}",
                            resamples=self.resamples,
                            seed=self.seed,
                        )
            results.append(result)
        return results


def _sums(rows: torch.Tensor, lengths: Sequence[int]) -> Floats:
    """Return the sum of pairwise distances and the number of pairs for each group (groups, 2)."""
    sums = []
    for group in rows.split(list(lengths)):
        # Compare all pairs within a concept: one pair for two values, six pairs for four.
        distances = torch.pdist(group.double())
        sums.append((float(distances.sum()), len(distances)))
    return np.array(sums)
