"""Measure zero-shot accuracy by group (Tables 7.1 to 7.4), and the distance of prompts of one pair
(Table 7.6).

A group is a label together with a spurious value (Sagawa et al., 2020). Source: sections 7.3.1,
7.4.1 and 7.6.1 of the thesis. Figures depend on an image only by its group and whether it is right,
without and with a method. So resamples are multinomial counts over these cells. Intervals do not
cover for the worst of several groups that are about equally hard, or with fewer than about 30
images, or within a few images of 0 or 1 (`eval/experiments/coverage.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, product
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator
from torch import Tensor

from vldebias.data import Embeddings, Labels, UnitRows, cross
from vldebias.edits.edit import Edit
from vldebias.errors import InvalidInputError
from vldebias.hosts import Host, resolve
from vldebias.measure.classification import (
    Reweighted,
    Statistic,
    interval_of,
    mean_accuracy,
    worst_areas,
)
from vldebias.measure.metric import computed
from vldebias.measure.resampling import resampled_counts, wilson_interval
from vldebias.measure.result import NONE, TaskProvenance, TaskResult
from vldebias.methods import Problem, get_method
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, StatedWords
from vldebias.schema import Lam
from vldebias.study.classifiers import BASELINES, Examples
from vldebias.study.images import (
    ImageTask,
    disjoint,
    doubt_chance,
    doubt_labels,
    doubt_space,
    sets_by_column,
)
from vldebias.study.task import Data, Prompts, Session, Task, register_task

Mask = NDArray[np.bool_]
Key = tuple[str, float | None]  # a method, and lam where several are compared

BARE: Key = (NONE, None)
MEDIAN = "none@median"
ABOUT_MEDIAN = (
    "the model as it is, with its threshold at the median of its own scores; it needs no label, and"
    " assumes that about half of the images are of each class"
)
ABOUT = (
    "An image counts as the class whose prompt is nearest. A group is a label together with a"
    " spurious value. Intervals: 95 % percentile bootstrap over images, the worst group picked"
    " again in each resample; Wilson's for one group and where no resample varies; of areas normal"
    " draws with DeLong's covariance."
)


class Split(NamedTuple):
    """Hold the images of a split whose label and spurious value are both known."""

    units: UnitRows
    target: NDArray[np.int64]  # (n,) index of the right class prompt
    groups: Labels  # label x spurious value, such as "landbird/water"
    values: Labels  # the spurious value
    facts: dict[str, Any]  # for the provenance, without local folders


@register_task
class GroupsTask(ImageTask):
    """Measure group robustness of zero-shot classification; gives the blocks `name` and "`name`:
    cosines".

    Rows `worst_group`, `average`, `average_reweighted` and `gap`; of two classes also
    `worst_group_auc`, the lowest area over the spurious values, and the method "none@median"; then
    `accuracy` of every group.

    prompts: a set with class prompts that name the labels (see `class_of`).
    label, spurious: columns; a group is one value of each, such as "landbird/water"; images of
    which one is unknown
        are counted and left out.
    lams: also rows of these lambda for the methods that have one, overall metrics only; 0 is P0
    alone, and no change at
        all for "cali".
    train, val: splits with the same columns, for `baselines` (names in
    `vldebias.study.classifiers.BASELINES`);
        those use labels, and their rows say so.
    group_weights: group -> weight of `average_reweighted`. By default the sizes of the groups in
    `train`, where that
        is given and every group of it occurs in `data`.
    """

    task: Literal["groups"] = "groups"
    prompts: Prompts
    label: str
    spurious: str
    lams: tuple[Lam, ...] = ()
    train: Data | None = None
    val: Data | None = None
    baselines: tuple[str, ...] = ()
    group_weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.label == self.spurious:
            raise ValueError(f"label and spurious: expected two columns, got {self.label!r} twice")
        if not set(self.baselines) <= set(BASELINES):
            raise ValueError(
                f"baselines: expected some of {list(BASELINES)}, got {list(self.baselines)}"
            )
        if self.baselines and (self.train is None or self.val is None):
            raise ValueError("baselines need labelled images: name splits under `train` and `val`")
        if self.lams and not any(get_method(one).has_lam for one in self.methods):
            raise ValueError(f"lams: expected a method that has a lambda, got {list(self.methods)}")
        return self

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Return the task of one prompt set; by default with the columns that its classes and
        attribute values name."""
        sets = [one for of in sets_by_column(fields.get("prompts")).values() for one in of]
        if len(sets) > 1:
            raise InvalidInputError(
                f"prompts: expected one prompt set, got {[one.name for one in sets]}"
            )
        prompts, label, spurious = sets[0], fields.get("label"), fields.get("spurious")
        named = {name: labels.names for name, labels in session.embedded("images").labels.items()}
        label = label or next(
            (one for one in named if one != spurious and class_of(named[one], prompts)), None
        )
        others, values = (
            [one for one in named if one != label],
            set(map(str.casefold, prompts.attributes)),
        )
        of_values = [one for one in others if values & set(map(str.casefold, named[one]))]
        spurious = spurious or next((one[0] for one in (of_values, others) if len(one) == 1), None)
        if label is None or spurious is None:
            raise InvalidInputError(
                f"groups: give label= and spurious=, two of the columns {sorted(named)}; not one"
                f" column has the values {list(prompts.class_names)}, which the class prompts of"
                f" {prompts.name} name, or the attribute's"
            )
        return super().of_given(
            session, {**fields, "label": label, "spurious": spurious, "prompts": prompts}
        )

    def texts(self) -> tuple[str, ...]:
        """Return the class prompts, spurious prompts and pairs."""
        return tuple(self.prompts.texts)

    def measure(
        self,
        images: Embeddings,
        texts: Host,
        *,
        train: Embeddings | None = None,
        val: Embeddings | None = None,
        reference: Embeddings | None = None,
        edits: Mapping[str, Edit] | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Measure accuracy by group on image embeddings with the columns `label` and `spurious`.

        texts: the host of the same model. train, val: for the baselines. reference: unlabelled
        images, for methods that use some. edits: name -> an edit that was fitted before, measured
        like a method.
        """
        prompts, split = self.prompts, self._split(images)
        learn, select = (None if one is None else self._split(one) for one in (train, val))
        if self.baselines and (learn is None or select is None):
            progress.say(
                f"{self.name}: no split to train or select on in the file, so the baselines are"
                " left out"
            )
        self.check_images(images, texts, prompts.classes[0])
        doubt_labels(images, (self.label, self.spurious), [prompts])
        others, counts = disjoint(reference, images, self.methods)
        with progress.bar(self.name) as advance:
            fitted = self.fit(texts, [prompts], reference=others, edits=edits)
            about: dict[str, Mapping[str, Any]] = {
                method: self.about(edit) for method, edit in fitted.items()
            }
            every: dict[Key, Edit | None] = {
                (method, None): edit for method, edit in fitted.items()
            }
            swept = [one.name for one in map(get_method, self.methods) if one.has_lam]
            for method, lam in product(swept, dict.fromkeys(self.lams)):
                if lam != about[method].get("lam"):  # its own lambda stands among the others
                    of_lam = self.model_copy(update={"methods": (method,), "lam": lam})
                    every[method, lam] = of_lam.fit(texts, [prompts], reference=others)[method]
            advance(0, f"{len(every)} methods")
            right, margins = self._classified(split, texts, every)
            if margins:
                about[MEDIAN] = {"assumes": ABOUT_MEDIAN}
            if learn is not None and select is not None and self.baselines:
                chosen_on = select.units[:], select.target, select.groups.codes
                classes, whole = texts.embed(prompts.classes).float(), split.units[:]
                examples = Examples(learn.units[:], learn.target, classes, chosen_on, self.seed)
                for name in self.baselines:
                    advance(0, name)
                    train_on, source = BASELINES[name]
                    logits, chosen = train_on(examples)
                    right[name, None] = logits(whole).argmax(1).numpy() == split.target
                    about[name] = {"source": source, "chosen": chosen, "uses_labels": True}
        weights, tested = self.group_weights, split.groups.counts
        sizes = {} if learn is None else {name: n for name, n in learn.groups.counts.items() if n}
        if weights is None and sizes and all(tested.get(name) for name in sizes):
            weights = {name: float(sizes.get(name, 0)) for name in tested}
        facts = {
            name: one and one.facts
            for name, one in (("data", split), ("train", learn), ("val", select))
        }
        provenance = self.provenance(
            self.name,
            images,
            texts,
            [prompts],
            about,
            reference=others,
            settings={**facts, "group_weights": weights},
            title="Zero-shot group robustness (Tables 7.2 to 7.4)",
            description=ABOUT + (f" {MEDIAN} is {ABOUT_MEDIAN}." if margins else ""),
            n={**{key: split.facts[key] for key in ("images", "unknown")}, **counts},
        )
        result = TaskResult(provenance)
        self._add_accuracies(result, right, split.groups, weights)
        if margins:
            places = split.target == 1, split.values.codes
            areas, drawn, n = worst_areas(
                margins, *places, resamples=self.resamples, seed=self.seed
            )
            result.add_draws("worst_group_auc", areas, drawn, n=n)
        return [result, *self._cosines(provenance, fitted, texts)]

    def _split(self, data: Embeddings) -> Split:
        labels, values, prompts = data.column(self.label), data.column(self.spurious), self.prompts
        known, classes = labels.known & values.known, class_of(labels.names, prompts)
        if not known.any():
            raise InvalidInputError(
                f"no image has a known value in both columns {self.label!r} and {self.spurious!r}"
            )
        if not classes:
            wanted = (
                f"expected labels that each name one of the classes {list(prompts.class_names)}"
            )
            came = (
                f"got {list(labels.names)}; rename the labels, or use indices of the classes,"
                " from 0"
            )
            raise InvalidInputError(f"{prompts.name}: {wanted}, {came}")
        target = np.array(classes, dtype=np.int64)[labels.codes[known]]
        groups = cross(labels[known], values[known])
        facts = {key: value for key, value in data.about.items() if key not in ("cache", "file")}
        facts |= {
            "images": len(target),
            "unknown": int((~known).sum()),
            "images per group": groups.counts,
        }
        units = data.unit if known.all() else data.unit.some(known)
        return Split(units, target, groups, values[known], facts)

    def _classified(
        self, split: Split, texts: Host, every: Mapping[Key, Any]
    ) -> tuple[dict[Key, Mask], dict[str, Any]]:
        """Return which of the n images are right, and of two classes how much the second leads
        under each method."""
        prompts, shared = self.prompts, dict[UnitRows, dict[Key, Tensor]]()
        for key, edit in every.items():  # images that several methods share are read once for all
            shared.setdefault(self.images(split.units, edit), {})[key] = self.rows(
                texts, prompts.classes, edit
            )
        scores = {
            key: of.numpy()
            for seen, rows in shared.items()
            for key, of in seen.products(rows).items()
        }
        right: dict[Key, Mask] = {key: scores[key].argmax(1) == split.target for key in every}
        doubt_space(split.units, texts, prompts.texts)
        doubt_chance(
            scores[BARE].argmax(1),
            split.target,
            prompts.class_names,
            f"{prompts.name}: the class prompts",
        )
        if len(prompts.classes) != 2:
            return right, {}
        margins = {
            method: np.diff(scores[method, lam])[:, 0] for method, lam in every if lam is None
        }
        median = (margins[NONE] > np.median(margins[NONE])) == (split.target == 1)
        return {BARE: right[BARE], (MEDIAN, None): median} | right, margins

    def _add_accuracies(
        self,
        result: TaskResult,
        right: Mapping[Key, Mask],
        groups: Labels,
        weights: Mapping[str, float] | None,
    ) -> None:
        """Add every metric of groups for every method, then the `accuracy` of each group with
        Wilson's interval.

        right: which of the n images are right; that of "none" is the baseline of changes.
        """
        names, codes, size = (
            groups.names,
            np.asarray(groups.codes, np.int64),
            np.array([*groups.counts.values()]),
        )
        statistics: dict[str, Statistic] = {one.name: of for one, of in computed("groups")}
        if weights is not None:
            if set(weights) != set(names) or {
                n > 0 for name, n in groups.counts.items() if weights[name]
            } != {True}:
                wanted = (
                    f"a weight for each of {groups.counts}, not all 0, and 0 for a group without"
                    " images"
                )
                raise InvalidInputError(f"group_weights: expected {wanted}; got {dict(weights)}")
            statistics["average_reweighted"] = Reweighted(
                np.array([weights[name] for name in names])
            )
        held = dict[Key, tuple[NDArray[np.int64], NDArray[np.int64]]]()
        for key, one in right.items():
            cells = np.bincount(
                4 * codes + 2 * right[BARE] + one, minlength=4 * len(names)
            ).reshape(-1, 2, 2)
            held[key] = (
                cells,
                np.concatenate(list(resampled_counts(cells, self.resamples, self.seed))),
            )
        n = {"images": len(groups), "smallest group": int(size[size > 0].min())}
        for (metric, of), ((method, lam), (cells, drawn)) in product(
            statistics.items(), held.items()
        ):
            value, interval, change = interval_of(of, cells, drawn)
            details: dict[str, Any] = {} if lam is None else {"lam": lam}
            result.add(metric, method, value, interval, n=n, change=change, **details)
        for ((method, lam), (cells, drawn)), g in product(
            held.items(), np.flatnonzero(size).tolist()
        ):
            if lam is None:
                value, _, change = interval_of(mean_accuracy, cells[[g]], drawn[:, [g]])
                interval, n = (
                    wilson_interval(int(cells[g, :, 1].sum()), int(size[g])),
                    {"images": int(size[g])},
                )
                result.add("accuracy", method, value, interval, n=n, change=change, subset=names[g])

    def _cosines(
        self, provenance: TaskProvenance, fitted: Mapping[str, Edit | None], texts: Host
    ) -> list[TaskResult]:
        """Give `cosine` of a class with a value, mean over its texts, and `cosine_spread` over the
        values."""
        prompts = self.prompts
        by_value = {value: own for value, own in prompts.by_value(prompts.spurious).items() if own}
        if not by_value:
            return []
        about = {
            "task": f"{self.name}: cosines",
            "title": "Cosines of class prompts with spurious prompts (Table 7.1)",
            "description": (
                "Cosine of each class prompt under a method with the spurious prompts of a value,"
                " averaged; the spread is the largest minus the smallest over the values. Nothing"
                " is sampled, so intervals have no width."
            ),
            "methods": {method: provenance.methods[method] for method in fitted},
            "settings": {"spurious prompts": by_value},
        }
        tables = dict[str, NDArray[np.float64]]()
        for method, edit in fitted.items():
            rows = self.rows(texts, prompts.classes, edit)
            tables[method] = np.stack(
                [(rows @ texts.embed(own).T).mean(1).numpy() for own in by_value.values()], 1
            )
        result = TaskResult(provenance.model_copy(update=about))
        for (i, name), (j, (value, own)) in product(
            enumerate(prompts.class_names), enumerate(by_value.items())
        ):
            cosines = {method: float(table[i, j]) for method, table in tables.items()}
            result.add_draws(
                "cosine", cosines, n={"spurious prompts": len(own)}, subset=f"{name} / {value}"
            )
        n = {"spurious prompts": sum(map(len, by_value.values()))}
        spreads = {method: np.ptp(of, axis=1).tolist() for method, of in tables.items()}
        for i, name in enumerate(prompts.class_names):
            result.add_draws(
                "cosine_spread", {m: of[i] for m, of in spreads.items()}, n=n, subset=name
            )
        result.add_draws("cosine_spread", {m: float(np.mean(of)) for m, of in spreads.items()}, n=n)
        return [result]


def class_of(labels: tuple[str, ...], prompts: PromptSet) -> list[int]:
    """Return for each label the index of the class prompt that names it; nothing unless each names
    one of its own.

    By name, in any case: the class of that name ("landbird"), or the only class whose name contains
    it as a word ("dark" in "dark hair"). Labels that are all digits are indices. By name, because
    labels in alphabetical order ("blond", "dark") would otherwise be the wrong way round without a
    sign of it.
    """
    names, chosen = [name.casefold() for name in prompts.class_names], list[int]()
    for label in map(str.casefold, labels):
        word = StatedWords([label] if any(map(str.isalnum, label)) else [])
        named = (
            [int(label)]
            if label.isdecimal()
            else [i for i, name in enumerate(names) if word.find(name)]
        )
        found = [names.index(label)] if label in names else named
        if len(found) == 1 and found[0] < len(names):
            chosen += found
    return chosen if len(names) > 1 and len(labels) == len(set(chosen)) else []


@register_task
class TextsTask(Task):
    """Measure mean |z_i - z_j| over the pairs of prompt sets, of fitted and of unseen concepts
    (section 7.6.1).

    All prompts are edited, those that state their attribute too. Resampled over concepts, whose
    pairs share prompts.

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
            raise InvalidInputError(
                "methods: the task texts measures one method; name it with method="
            )
        sets = {column: of[0] for column, of in sets_by_column(fields.get("prompts")).items()}
        return super().of_given(session, {"sets": sets, **fields})

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return what embeds the prompts, and the name that the user gave it."""
        encoder = resolve(session.pipeline.host, tokenizer=session.pipeline.tokenizer)
        return {"encoder": encoder, "model": session.options.pipeline, "progress": session.progress}

    def measure(
        self, encoder: Host, *, model: str | None = None, progress: Progress = SILENT
    ) -> list[TaskResult]:
        """Measure every set with a host (`vldebias.hosts.resolve`); model: what it is called, by
        default its name."""
        results, lam = [], self.lam if get_method(self.method).has_lam else None
        for name, prompts in self.sets.items():
            provenance = TaskProvenance(
                task=f"{self.name} {name}",
                title="Distance of prompts that differ in the attribute alone (Table 7.6)",
                description=(
                    "Mean L2 distance of the two prompts of a pair, without and with the"
                    " projection: pairs that it was fitted on, and pairs of concepts that it was"
                    " not. Resampled over concepts."
                ),
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
            parts = [
                (part, of)
                for part, of in (("train", prompts.groups), ("unseen", prompts.held_out_groups))
                if of
            ]
            with progress.bar(provenance.task):
                edits = {role: problem.fit(self.method, role) for role in encoder.roles}
                for role, (part, groups) in product(encoder.roles, parts):
                    rows, sums = encoder.embed(list(chain(*groups)), role), {}
                    for method, own in ((NONE, rows), (self.method, edits[role](rows))):
                        each = [torch.pdist(of.double()) for of in own.split([*map(len, groups)])]
                        sums[method] = np.array([(float(of.sum()), len(of)) for of in each])
                    result.add_resampled(
                        "pair_distance",
                        sums,
                        n={"concepts": len(groups), "pairs": int(sums[NONE][:, 1].sum())},
                        statistic=lambda drawn: (
                            drawn[..., 0].sum(-1) / drawn[..., 1].sum(-1)
                        ),  # over all pairs
                        subset=part if len(encoder.roles) == 1 else f"{part}, {role}",
                        resamples=self.resamples,
                        seed=self.seed,
                    )
            results.append(result)
        return results
