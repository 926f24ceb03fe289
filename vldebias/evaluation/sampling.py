"""Which images people are asked about: by lot, more of them where the judge may be wrong, with known probabilities.

The strata are the judge's answers under each method, each cut at the median of its confidence. Labels are shared out
by how many images a stratum has and how unsure the judge is of them (Neyman, 1934), one after the other by the rule of
Huntington and Hill, so that a larger sample holds the smaller one. What follows from it is unbiased whatever the judge
does, since every image has a known probability to be drawn and answers count one over it; the judge only decides how
wide the intervals are.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from vldebias.errors import InvalidInputError
from vldebias.evaluation.task import Count, Strict, explain
from vldebias.files import write_atomically

LEAST = 2  # labels of each stratum, where it has as many images
ERROR = 0.05  # a judge that is surer than this is asked about as if it were not


class Stratum(Strict):
    """Images that have one probability of being drawn.

    name: what they have in common. images: paths in the order in which they are drawn. spread: standard deviation that
    is expected of what people say within it. labels: how many of the first are drawn.
    """

    name: str
    images: Annotated[tuple[str, ...], Field(min_length=1)]
    spread: Annotated[float, Field(gt=0, le=0.5)]
    labels: Count


class LabelSample(Strict):
    """A sample of images for labelling, as it is kept beside the answers.

    attribute: by whose answers it is drawn. judge: who gave them. seed: of the lot.
    """

    version: Literal[1] = 1
    attribute: str
    judge: str
    seed: int
    strata: Annotated[tuple[Stratum, ...], Field(min_length=1)]

    @classmethod
    def draw(
        cls,
        paths: Sequence[str],
        within: Sequence[str],
        said: Sequence[str],
        confidence: NDArray[np.float64],
        labels: int,
        *,
        attribute: str,
        judge: str,
        seed: int = 0,
    ) -> LabelSample:
        """Draw images for labelling.

        Args:
            paths: (n,) of all images, each once. within: (n,) what figures are made of apart, such as methods.
            said: (n,) answers of the judge, "unknown" among them. confidence: (n,) its probability of that.
            labels: how many images; LEAST of each stratum are drawn in any case, and all of them at most.

        Raises:
            InvalidInputError: no images, a path twice, unequal lengths, probabilities outside [0, 1].
        """
        sure = np.asarray(confidence, dtype=np.float64)
        if not paths or not len(paths) == len(within) == len(said) == len(sure) == len(set(paths)):
            raise InvalidInputError(
                f"sample: expected an answer, a confidence and what it belongs to for each of some different images, "
                f"got {len(set(paths))} different images of {len(paths)}, {len(within)}, {len(said)}, {len(sure)}"
            )
        if not ((sure >= 0) & (sure <= 1)).all():
            raise InvalidInputError(f"confidence: expected probabilities, got {sure.min():.3g} .. {sure.max():.3g}")
        answers: dict[tuple[str, str], list[int]] = defaultdict(list)
        for i, key in enumerate(zip(within, said, strict=True)):
            answers[key].append(i)
        strata = []
        for (part, answer), rows in sorted(answers.items()):
            middle = np.median(sure[rows])
            above = sure[rows] > middle if sure[rows].max() > middle else sure[rows] >= middle  # many may be alike
            surer = [i for i, more in zip(rows, above, strict=True) if more]
            for name, own in (("surer", surer), ("less sure", sorted({*rows} - {*surer}))):
                if own:
                    wrong = min(max(1 - float(sure[own].mean()), ERROR), 0.5)
                    lots = [hashlib.sha256(f"{seed}\0{paths[i]}".encode()).digest() for i in own]
                    spread = (wrong * (1 - wrong)) ** 0.5
                    images = tuple(paths[i] for _, i in sorted(zip(lots, own, strict=True)))
                    strata.append(Stratum(name=f"{part}: {answer}, {name}", images=images, spread=spread, labels=1))
        return cls(attribute=attribute, judge=judge, seed=seed, strata=tuple(strata)).of_size(labels)

    def of_size(self, labels: int) -> LabelSample:
        """The same with so many labels: it holds every smaller one."""
        counts = [min(LEAST, len(one.images)) for one in self.strata]

        def turn(i: int) -> tuple[float, int]:  # the largest first
            one, n = self.strata[i], counts[i]
            return -len(one.images) * one.spread / (n * (n + 1)) ** 0.5, i

        waiting = [turn(i) for i, one in enumerate(self.strata) if counts[i] < len(one.images)]
        heapq.heapify(waiting)
        for _ in range(labels - sum(counts)):
            if not waiting:
                break
            _, i = heapq.heappop(waiting)
            counts[i] += 1
            if counts[i] < len(self.strata[i].images):
                heapq.heappush(waiting, turn(i))
        strata = tuple(one.model_copy(update={"labels": n}) for one, n in zip(self.strata, counts, strict=True))
        return self.model_copy(update={"strata": strata})

    @property
    def weights(self) -> Mapping[str, float]:
        """Path of each image that is drawn -> one over the probability of that."""
        return {path: len(one.images) / one.labels for one in self.strata for path in one.images[: one.labels]}

    @property
    def population(self) -> frozenset[str]:
        """All images that it is drawn from."""
        return frozenset(path for one in self.strata for path in one.images)

    def write(self, path: Path) -> None:
        """Keep it, as JSON."""
        write_atomically(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> LabelSample:
        """The sample that `write` kept.

        Raises:
            InvalidInputError: a file that cannot be read, or holds something else.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise InvalidInputError(f"{path}: is no sample for labelling: {explain(error, cls)}") from error
        except OSError as error:
            raise InvalidInputError(f"{path}: cannot be read: {error.strerror}") from error
