"""Drawn images joined with what people said about them: counts by variant, prompt and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.record import DrawnRecord, by_variant
from vldebias.evaluation.human.annotations import Annotations
from vldebias.evaluation.human.votes import Counts, count_votes, measures

__all__ = ["Labelled"]


@dataclass(frozen=True, eq=False)
class Labelled:
    """Counts of the answers of people, by variant, prompt and seed.

    variants: name -> (prompt, seed) -> row of `counts` (images, c) and column of `table` (annotators, images).
    prompts: those labelled under every variant, with their concept.
    """

    names: tuple[str, ...]
    variants: dict[str, dict[tuple[str, int], int]]
    paths: tuple[str, ...]
    counts: Counts
    table: NDArray[np.int64]
    annotators: tuple[str, ...]
    others: tuple[str, ...]
    prompts: dict[str, str]
    left_out: int

    @classmethod
    def of(
        cls,
        annotations: Annotations,
        records: Sequence[DrawnRecord],
        attribute: str,
        names: tuple[str, ...],
        votes: str,
    ) -> Labelled:
        """Join annotations and drawn images by the paths of the images.

        Raises:
            InvalidInputError: no drawn image was labelled, or no prompt under every variant; see also
                `Annotations.table`, `by_variant` and `count_votes`.
        """
        drawn = by_variant(records)
        paths = tuple(record.path for record in records)
        table, annotators, others = annotations.table(attribute, names, paths)
        counts = count_votes(table, len(names), votes)
        row = {path: i for i, path in enumerate(paths) if counts[i].any()}
        if not row:
            raise InvalidInputError(
                f"annotations: none of {len(paths)} drawn images was labelled; the annotations are about "
                f"{list(others[:3])}, the drawn images are {list(paths[:3])}: paths are below the folder of images"
            )
        variants = {
            name: {key: row[record.path] for key, record in images.items() if record.path in row}
            for name, images in drawn.items()
        }
        concepts = {record.prompt: record.concept for record in records}
        everywhere = set.intersection(*({prompt for prompt, _ in images} for images in variants.values()))
        if not everywhere:
            raise InvalidInputError(
                f"annotations: no prompt is labelled under every variant {list(variants)}; label more images, or leave "
                "out the records of a variant"
            )
        some = {prompt for images in variants.values() for prompt, _ in images}
        prompts = {prompt: concept for prompt, concept in concepts.items() if prompt in everywhere}
        return cls(
            names, variants, paths, counts, table, annotators, others, prompts, left_out=len(some) - len(everywhere)
        )

    @property
    def images(self) -> int:
        """Labelled images of all variants."""
        return sum(map(len, self.variants.values()))

    def by_prompt(self, variant: str) -> Counts:
        """Counts (prompts, c) of all labelled images of each prompt."""
        number = {prompt: i for i, prompt in enumerate(self.prompts)}
        total = np.zeros((len(number), self.counts.shape[1]))
        for (prompt, _), row in self.variants[variant].items():
            if prompt in number:
                total[number[prompt]] += self.counts[row]
        return total

    def of_prompt(self, prompt: str) -> dict[str, Counts]:
        """variant -> counts (n, c) of the images of one prompt whose seeds are labelled under every variant."""
        seeds = set.intersection(*({s for p, s in images if p == prompt} for images in self.variants.values()))
        chosen = sorted(seeds)
        return {v: self.counts[[images[prompt, s] for s in chosen]] for v, images in self.variants.items()}

    def spread(self) -> dict[str, float]:
        """Standard deviation of the discrepancy over prompts: what the paper's tables print after plus-minus."""
        of = measures(self.names)[0][3]
        return {v: float(of(self.by_prompt(v)).std(ddof=1)) for v in self.variants if len(self.prompts) > 1}

    def codes(self, variant: str | None = None) -> NDArray[np.int64]:
        """Answers (annotators, images) of a variant, or of all."""
        chosen = self.variants.values() if variant is None else [self.variants[variant]]
        return self.table[:, sorted({row for images in chosen for row in images.values()})]
