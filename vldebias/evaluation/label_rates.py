"""How often images of each group are given a label that harms: the FairFace tables of the CLIP paper (section 7.1)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vldebias.data import Embeddings
from vldebias.errors import InvalidInputError
from vldebias.evaluation.gallery import scores
from vldebias.evaluation.images import ImageTask, names_of, prompts_of
from vldebias.evaluation.reference_images import disjoint
from vldebias.evaluation.result import NONE, TaskResult, percentiles
from vldebias.evaluation.task import OneOrMore, Session, SeveralPrompts, register_task
from vldebias.evaluation.texts import Texts
from vldebias.metrics.bootstrap import wilson_interval
from vldebias.progress import SILENT, Progress
from vldebias.prompts import load_prompts

if TYPE_CHECKING:
    from vldebias.edit import Edit

Hits = NDArray[np.bool_]


@register_task
class LabelRatesTask(ImageTask):
    """Every image takes the nearest of all labels; how often that is one of the watched kinds, by group.

    Rows `label_rate` (subset "crime-related, race: Black") with Wilson's interval and a paired change, and
    `label_rate_gap` (subset "crime-related, race"), largest less smallest rate over the values, by resampling the
    images of each value. Source: Radford et al. (2021), section 7.1, Tables 6 and 7; their prompts are not published.

    prompts: sets that the methods are fitted on, solved jointly.
    labels: kind -> prompts; "person" is what an image should be. watch: the kinds whose rates are figures.
    by: columns whose values are compared. A column that the user's embeddings lack is left out and named.
    """

    task: Literal["label-rates"] = "label-rates"
    prompts: SeveralPrompts
    labels: Annotated[dict[str, OneOrMore], Field(min_length=2)]
    watch: Annotated[OneOrMore, Field(min_length=1)]
    by: Annotated[OneOrMore, Field(min_length=1)]

    @model_validator(mode="after")
    def _kinds_are_there(self) -> Self:
        strangers = [kind for kind in self.watch if kind not in self.labels]
        if strangers:
            raise ValueError(f"watch: expected kinds of labels, {list(self.labels)}, got {strangers}")
        return self

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """Those that the methods are fitted on."""
        return names_of(self.prompts)

    def texts(self) -> tuple[str, ...]:
        """The prompts of the sets and every label."""
        return tuple(dict.fromkeys((*prompts_of(self.prompts), *chain(*self.labels.values()))))

    def fitting(self, session: Session) -> Self:
        """By the columns that the user's embeddings have.

        Raises:
            InvalidInputError: there is none of them.
        """
        if session.options.embeddings is None:
            return self
        there = session.file[0].labels
        kept = tuple(column for column in self.by if column in there)
        if not kept:
            raise InvalidInputError(f"{self.name}: expected a column for one of {list(self.by)}, got {list(there)}")
        if kept != self.by:
            session.say(f"{self.name}: by {', '.join(c for c in self.by if c not in kept)} left out: no such column")
        return self.model_copy(update={"by": kept})

    def measure(
        self,
        images: Embeddings,
        texts: Texts,
        *,
        reference: Embeddings | None = None,
        edits: Mapping[str, Edit] | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Measure image embeddings with the columns `by`; see `GroupsTask.measure` for the others.

        Raises:
            InvalidInputError: a column that is missing, or widths that do not fit.
        """
        sets = [load_prompts(one) for one in self.prompts]
        prompts = list(chain(*self.labels.values()))
        self.check_images(images, texts, prompts[0])
        columns = {column: images.column(column) for column in self.by}
        others, counts = disjoint(reference, images, progress, self.methods)
        with progress.step(self.name):
            fitted = self.fit(texts, sets, neutral=self.labels[next(iter(self.labels))], reference=others, edits=edits)
            rows = images.unit
            kinds = np.array([kind for kind, several in self.labels.items() for _ in several])
            taken = {
                name: kinds[scores(self.rows(texts, prompts, one.edit), self.images(rows, one.edit)).argmax(axis=0)]
                for name, one in fitted.items()
            }
        about = self.provenance(
            self.name,
            images,
            texts,
            sets,
            {name: one.about for name, one in fitted.items()},
            reference=others,
            title=self.title,
            description="Share of images whose nearest label is of a watched kind, by group.",
            n={"images": len(images), **counts},
            settings={"labels": {kind: list(several) for kind, several in self.labels.items()}, "by": list(self.by)},
        )
        out = TaskResult(about, details={name: one.details for name, one in fitted.items()})
        for kind in self.watch:
            hits = {name: one == kind for name, one in taken.items()}
            for column, labels in columns.items():
                groups = {value: labels.codes == code for code, value in enumerate(labels.names)}
                self._add(out, kind, column, {v: mine for v, mine in groups.items() if mine.any()}, hits)
        return [out]

    def _add(
        self, out: TaskResult, kind: str, column: str, groups: Mapping[str, Hits], hits: Mapping[str, Hits]
    ) -> None:
        """The rates of every value of a column, and the gap between them."""
        for value, mine in groups.items():
            n = int(mine.sum())
            for name, hit in hits.items():
                moved = hit[mine].astype(float) - hits[NONE][mine]
                by = 1.96 * float(moved.std()) / n**0.5
                change = (float(moved.mean()), float(moved.mean()) - by, float(moved.mean()) + by)
                share, interval = float(hit[mine].mean()), wilson_interval(int(hit[mine].sum()), n)
                subset = f"{kind}, {column}: {value}"
                out.add("label_rate", name, share, interval, n={"images": n}, change=change, subset=subset)
        if len(groups) < 2:
            return
        for name, hit in hits.items():
            plain, own = self._drawn(list(groups.values()), hits[NONE], hit)
            gap, before = (float(np.ptp([one[mine].mean() for mine in groups.values()])) for one in (hit, hits[NONE]))
            change = (gap - before, *percentiles(gap - before, own - plain))
            images = {"images": int(sum(mine.sum() for mine in groups.values()))}
            interval = percentiles(gap, own)
            low, high = min(interval[0], gap), max(interval[1], gap)
            out.add("label_rate_gap", name, gap, (low, high), n=images, change=change, subset=f"{kind}, {column}")

    def _drawn(self, groups: list[Hits], plain: Hits, own: Hits) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Gaps (b,) without and with a method when the images of every value are drawn again, by four counts."""
        rng = np.random.default_rng(self.seed)
        rates = []
        for mine in groups:
            patterns = np.bincount(2 * plain[mine] + own[mine], minlength=4)
            drawn = rng.multinomial(mine.sum(), patterns / mine.sum(), self.resamples) / mine.sum()
            rates.append((drawn[:, 2] + drawn[:, 3], drawn[:, 1] + drawn[:, 3]))
        before, after = (np.stack([one[i] for one in rates], 1) for i in (0, 1))
        return before.max(1) - before.min(1), after.max(1) - after.min(1)
