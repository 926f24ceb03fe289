"""Measure zero-shot accuracy by group (Tables 7.1 to 7.4).

A group is a label together with a spurious value (Sagawa et al., 2020). Source: sections 7.3.1
and 7.4.1 of the thesis. Figures depend on an image only by its group and whether it is right,
without and with a method. So resamples are multinomial counts over these cells. Intervals do not
cover for the worst of several groups that are about equally hard, or with fewer than about 30
images, or within a few images of 0 or 1 (`eval/experiments/coverage.py`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import chain, product
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from vldebias.data import Embeddings, Labels, UnitRows, cross
from vldebias.errors import InvalidInputError, one_line
from vldebias.hosts import Host
from vldebias.measure.classification import (
    Reweighted,
    ReweightedGap,
    Statistic,
    interval_of,
    lowest_accuracy,
    mean_accuracy,
    worst_areas,
)
from vldebias.measure.metric import TO_MEDIAN, computed, get_metric
from vldebias.measure.resampling import resampled_counts, wilson_interval
from vldebias.measure.rows import MEDIAN, ON_VAL
from vldebias.methods import get_compared
from vldebias.methods.reference import class_of
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet
from vldebias.report.result import NONE, TaskProvenance, TaskResult
from vldebias.study.doubts import check_images, doubt_chance, doubt_labels, doubt_space
from vldebias.study.inputs import Data, Inputs
from vldebias.study.task import Prompts, register_task
from vldebias.study.tasks.classifiers import BASELINES
from vldebias.study.tasks.examples import Examples
from vldebias.study.tasks.images import ImageTask, disjoint, facts_of, sets_by_column
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Lam

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Key = tuple[str, float | None]  # a method, and lam where several are compared
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]

BARE: Key = (NONE, None)
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
ABOUT_COSINES = (
    "Cosine of each class prompt under a method with the spurious prompts of a value, averaged; the"
    " spread is the largest minus the smallest over the values. Nothing is sampled, so intervals"
    " have no width."
)


class GroupedImages:
    """Hold the images of a split whose label and spurious value are both known.

    units: rows (n, d) of length 1. target: (n,) index of the right class prompt. groups: label x
    spurious value, such as "landbird/water". values: the spurious values. facts: for the
    provenance, without local folders.

    Args:
        images: the split. label, spurious: two of its columns. prompts: whose class prompts the
            labels name.

    Raises:
        InvalidInputError: no image is left, or labels do not each name a class.
    """

    def __init__(self, images: Embeddings, label: str, spurious: str, prompts: PromptSet) -> None:
        labels = images.column(label)
        values = images.column(spurious)
        # An image of unknown label or value belongs to no group. It is counted, never guessed.
        known = labels.known & values.known
        if not known.any():
            raise InvalidInputError(
                f"no image has a known value in both columns {label!r} and {spurious!r}"
            )
        classes = class_of(labels.names, prompts)
        if not classes:
            raise InvalidInputError(
                f"{prompts.name}: expected labels that each name one of the classes"
                f" {list(prompts.class_names)}, got {list(labels.names)}; rename the labels,"
                " or use indices of the classes, from 0"
            )
        self.units: UnitRows = images.unit if known.all() else images.unit.picked(known)
        self.target = np.array(classes, dtype=np.int64)[labels.codes[known]]
        # Codes of label x value: with 2 labels and 2 values the groups 0 to 3.
        self.groups: Labels = cross(labels[known], values[known])
        self.values: Labels = values[known]
        self.facts = facts_of(images)
        self.facts["images"] = len(self.target)
        self.facts["unknown"] = int((~known).sum())
        self.facts["images per group"] = self.groups.counts


@register_task
class GroupsTask(ImageTask):
    """Measure group robustness of zero-shot classification; gives the blocks `name` and "`name`:
    cosines".

    Rows `worst_group`, `average`, `average_reweighted` and `gap`, with baselines `gap_reweighted`;
    of two classes also `worst_group_auc`, the lowest area over the spurious values, the method
    "none@median", and `difference_to_median`, the paired difference of each method from it; then
    `accuracy` of every group.

    prompts: a set with class prompts that name the labels (see `class_of`).
    label, spurious: columns; a group is one value of each, such as "landbird/water"; images of
        which one is unknown are counted and left out.
    lams: also rows of these lambda for the methods that have one, overall metrics only; 0 is P0
        alone, and no change at all for "cali". With `val`, also the method "cali@val" for "cali":
        at the lambda whose worst group on `val` is best. It uses labels, and its rows say so.
    train, val: splits with the same columns, for `lams` and for `baselines` (names in
        `vldebias.study.tasks.classifiers.BASELINES`); those use labels, and their rows say so.
    group_weights: group -> weight of `average_reweighted`. By default the sizes of the groups in
        `train`, where that is given and every group of it occurs in the images.
    """

    task: Literal["groups"] = "groups"
    prompts: Prompts
    label: str
    spurious: str
    lams: tuple[Lam, ...] = ()
    train: Data | None = None
    val: Data | None = None
    baselines: tuple[str, ...] = ()
    group_weights: dict[str, Weight] | None = None

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.label == self.spurious:
            raise ValueError(f"label and spurious: expected two columns, got {self.label!r} twice")
        if not set(self.baselines) <= set(BASELINES):
            raise ValueError(
                f"baselines: expected some of {list(BASELINES)}, got {list(self.baselines)}"
            )
        if self.lams and not self._methods_with_lam():
            raise ValueError(f"lams: expected a method that has a lambda, got {list(self.methods)}")
        return self

    def check_sources(self, names: Container[str]) -> None:
        """Raise InvalidInputError where images are missing, or those that baselines learn from."""
        super().check_sources(names)
        if self.baselines and ("train" not in names or "val" not in names):
            raise InvalidInputError(
                "baselines need labelled images: name splits under `train` and `val`"
            )

    @classmethod
    def from_inputs(cls, inputs: Inputs, settings: Mapping[str, Any]) -> Self:
        """Return the task of one prompt set; by default with the columns that its classes and
        attribute values name.

        Args:
            inputs: what the user passed.
            settings: the task's settings by name.

        Raises:
            InvalidInputError: several prompt sets, or columns that nothing decides.
        """
        sets = list(chain(*sets_by_column(settings.get("prompts")).values()))
        if len(sets) > 1:
            names = [prompts.name for prompts in sets]
            raise InvalidInputError(f"prompts: expected one prompt set, got {names}")
        prompts = sets[0]
        columns = {name: labels.names for name, labels in inputs["images"].labels.items()}
        label = settings.get("label") or None
        spurious = settings.get("spurious")
        if label is None:
            # The first column whose values the class prompts name.
            for name, values in columns.items():
                if name != spurious and class_of(tuple(values), prompts):
                    label = name
                    break
        if not spurious:
            # The only other column with a value of the attribute, else the only other one. Two with
            # such values, "gender" and "gender of the photographer": the user has to say which.
            candidates = [name for name in columns if name != label]
            attribute_values = {value.casefold() for value in prompts.attributes}
            matches = []
            for name in candidates:
                if attribute_values & set(map(str.casefold, columns[name])):
                    matches.append(name)
            if len(matches) != 1:
                matches = candidates
            spurious = matches[0] if len(matches) == 1 else None
        if label is None or spurious is None:
            raise InvalidInputError(
                f"groups: give label= and spurious=, two of the columns {sorted(columns)}; not one"
                f" column has the values {list(prompts.class_names)}, which the class prompts of"
                f" {prompts.name} name, or the attribute's"
            )
        chosen = {"label": label, "spurious": spurious, "prompts": prompts}
        return cls.build({**settings, **chosen})

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's choices; no lambda is swept where none of the user's
        methods has one."""
        task = self
        if options.methods and not any(
            get_compared(name).declaration.has_lam for name in options.methods
        ):
            task = self.model_copy(update={"lams": ()})
        return super(GroupsTask, task).with_options(options)

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

        Args:
            images: (n, d), what is measured.
            texts: the host of the same model.
            train: images that the baselines learn from.
            val: images for the baselines, and to choose a lambda.
            reference: unlabelled images, for methods that use some.
            edits: name -> an edit that was fitted before, measured like a method.
            progress: shows how far it is.

        Raises:
            InvalidInputError: images and texts of different widths, labels that name no class,
                weights that do not fit the groups.
        """
        # Images whose label and spurious value are known: to test on, to learn from, to select by.
        columns = (self.label, self.spurious)
        tested = GroupedImages(images, *columns, self.prompts)
        learning = None if train is None else GroupedImages(train, *columns, self.prompts)
        selecting = None if val is None else GroupedImages(val, *columns, self.prompts)
        check_images(images, texts, self.prompts.classes[0])
        doubt_labels(images, columns, [self.prompts])
        reference, reference_counts = disjoint(reference, images, self.methods)

        with progress.bar(self.name) as advance:
            # Every method at its own lambda, then at each lambda of the sweep.
            fitted = self.fit(texts, [self.prompts], reference=reference, edits=edits)
            facts_of_method: dict[str, Mapping[str, Any]] = {}
            edit_of_key: dict[Key, Edit | None] = {}
            for method, edit in fitted.items():
                facts_of_method[method] = self.about(edit)
                # lam None marks the row with the method's own lambda, whatever that is; the other
                # lambdas of the sweep are keys of their own.
                edit_of_key[method, None] = edit
            for method, lam in product(self._methods_with_lam(), dict.fromkeys(self.lams)):
                if lam != facts_of_method[method].get("lam"):
                    task = self.model_copy(update={"methods": (method,), "lam": lam})
                    edits_at_lam = task.fit(texts, [self.prompts], reference=reference)
                    edit_of_key[method, lam] = edits_at_lam[method]
            if selecting is not None and self.lams:
                self._add_lams_on_val(edit_of_key, facts_of_method, selecting, texts)
            advance(0, f"{len(edit_of_key)} methods")
            # Which images each of them gets right; of two classes also how far the second leads.
            right_of_key, margins = self._classify(tested, texts, edit_of_key)
            description = ABOUT
            if margins:
                facts_of_method[MEDIAN] = {"assumes": ABOUT_MEDIAN}
                description += f" {MEDIAN} is {ABOUT_MEDIAN}."
            # Baselines learn from the labels of another split.
            if learning is not None and selecting is not None:
                for name in self.baselines:
                    advance(0, name)
                    facts_of_method[name] = self._learn(
                        name, learning, selecting, texts, tested, right_of_key
                    )
                description += self._not_fitted(facts_of_method, progress)
            elif self.baselines:
                progress.say(
                    f"{self.name}: no split to train or select on in the file, so the baselines are"
                    " left out"
                )

        weights = self._weights(tested, learning)
        provenance = self.provenance(
            self.name,
            images,
            texts,
            [self.prompts],
            facts_of_method,
            reference=reference,
            settings={
                "data": tested.facts,
                "train": None if learning is None else learning.facts,
                "val": None if selecting is None else selecting.facts,
                "group_weights": weights,
            },
            title="Zero-shot group robustness (Tables 7.2 to 7.4)",
            description=description,
            n={
                "images": tested.facts["images"],
                "unknown": tested.facts["unknown"],
                **reference_counts,
            },
        )
        result = TaskResult(provenance)
        self._add_accuracies(result, right_of_key, tested.groups, weights)
        if margins:
            # The lowest area under the curve over the spurious values.
            areas, draws, n_of_value = worst_areas(
                margins,
                tested.target == 1,
                tested.values.codes,
                resamples=self.resamples,
                seed=self.seed,
            )
            result.add_draws("worst_group_auc", areas, draws, n=n_of_value)
        return [result, *self._cosines(provenance, fitted, texts)]

    def _weights(
        self, tested: GroupedImages, learning: GroupedImages | None
    ) -> Mapping[str, float] | None:
        """Return group -> weight of `average_reweighted`: as the settings say, else the sizes of
        the groups in training; None where a group of training is never tested.

        Raises:
            InvalidInputError: a group without a weight, or a weight of a group without images.
        """
        tested_sizes = tested.groups.counts
        weights = self.group_weights
        if weights is not None:
            has_images = {n > 0 for name, n in tested_sizes.items() if weights.get(name)}
            if set(weights) != set(tested.groups.names) or has_images != {True}:
                raise InvalidInputError(
                    f"group_weights: expected a weight for each of {tested_sizes}, not all 0, and 0"
                    f" for a group without images; got {dict(weights)}"
                )
            return weights
        if learning is None:
            return None
        sizes = {name: n for name, n in learning.groups.counts.items() if n}
        # A group that is never tested has no accuracy to weigh, and leaving it out silently would
        # change what the average means.
        if not sizes or not all(tested_sizes.get(name) for name in sizes):
            return None
        return {name: float(sizes.get(name, 0)) for name in tested_sizes}

    def _add_lams_on_val(
        self,
        edit_of_key: dict[Key, Edit | None],
        facts_of_method: dict[str, Mapping[str, Any]],
        selecting: GroupedImages,
        texts: Host,
    ) -> None:
        """Add each method that has a lambda at the one whose worst group on the validation split is
        best, as another method; of equal ones at the smallest lambda, which changes least."""
        for method in self._methods_with_lam():
            edit_of_lam: dict[float, Edit | None] = {}
            for (name, lam), edit in edit_of_key.items():
                if lam is None:
                    # None too if parts of the method have lambdas of their own.
                    lam = facts_of_method[name].get("lam")
                if name == method and lam is not None:
                    edit_of_lam[lam] = edit
            accuracy_of_lam: dict[float, float] = {}
            for lam in sorted(edit_of_lam):
                accuracy_of_lam[lam] = self._worst_group(selecting, texts, edit_of_lam[lam])
            chosen_lam = max(accuracy_of_lam, key=accuracy_of_lam.__getitem__)
            edit_of_key[f"{method}{ON_VAL}", None] = edit_of_lam[chosen_lam]
            facts_of_method[f"{method}{ON_VAL}"] = {
                **facts_of_method[method],
                "lam": chosen_lam,
                "chosen": {"val_worst_group": accuracy_of_lam[chosen_lam]},
                "uses_labels": True,
            }

    def _worst_group(self, images: GroupedImages, texts: Host, edit: Edit | None) -> float:
        """Return the accuracy of the worst group under an edit."""
        rows = {"edit": self.rows(texts, self.prompts.classes, edit)}
        scores = self.images(images.units, edit).products(rows)["edit"].numpy()
        is_right = scores.argmax(1) == images.target
        sizes = np.array(list(images.groups.counts.values()))
        hits = np.bincount(images.groups.codes, is_right, minlength=len(sizes))
        return float(lowest_accuracy(hits, sizes))

    def _methods_with_lam(self) -> list[str]:
        return [method.name for method in self.compared_methods() if method.declaration.has_lam]

    def _learn(
        self,
        name: str,
        learning: GroupedImages,
        selecting: GroupedImages,
        texts: Host,
        tested: GroupedImages,
        right_of_key: dict[Key, Mask],
    ) -> dict[str, Any]:
        """Train a baseline and add which images (n,) it gets right; return its entry in the
        provenance.

        If it cannot be fitted, nothing is added, and the entry has the reason as "not_fitted".
        """
        classes = texts.embed(self.prompts.classes).float()  # (k, d)
        train_on, source = BASELINES[name]
        # A baseline is selected by its worst group on this split, as its authors do: these group
        # labels are a part of what it costs.
        chosen_on = selecting.units[:], selecting.target, selecting.groups.codes
        facts: dict[str, Any] = {"source": source, "uses_labels": True}
        try:
            examples = Examples(learning.units[:], learning.target, classes, chosen_on, self.seed)
            logits, chosen = train_on(examples)
            predicted = logits(tested.units[:]).argmax(1).numpy()
        except Exception as error:  # of any solver: the other rows of the suite are measured
            return facts | {"not_fitted": one_line(error)}
        right_of_key[name, None] = predicted == tested.target
        return facts | {"chosen": chosen}

    def _not_fitted(self, facts: Mapping[str, Mapping[str, Any]], progress: Progress) -> str:
        """Return sentences about the baselines that could not be fitted, and report each of them.

        facts: baseline -> its entry in the provenance.
        """
        sentences = ""
        for name in self.baselines:
            if "not_fitted" in facts[name]:
                sentence = f"{name} could not be fitted: {facts[name]['not_fitted']}"
                progress.say(f"{self.name}: {sentence}")
                sentences += f" {sentence}."
        return sentences

    def _classify(
        self, tested: GroupedImages, texts: Host, edit_of_key: Mapping[Key, Edit | None]
    ) -> tuple[dict[Key, Mask], dict[str, Floats]]:
        """Return which of the n images are right, and of two classes how much the second leads
        under each method: (n,) each."""
        classes = self.prompts.classes
        # Images that several methods share are read once for all.
        rows_of_images: dict[UnitRows, dict[Key, Tensor]] = {}
        for key, edit in edit_of_key.items():
            rows = rows_of_images.setdefault(self.images(tested.units, edit), {})
            rows[key] = self.rows(texts, classes, edit)
        scores: dict[Key, Floats] = {}
        for images, rows in rows_of_images.items():
            for key, products in images.products(rows).items():
                scores[key] = products.numpy()

        right: dict[Key, Mask] = {}
        for key in edit_of_key:
            right[key] = scores[key].argmax(1) == tested.target
        doubt_space(tested.units, texts, self.prompts.texts)
        doubt_chance(
            scores[BARE].argmax(1),
            tested.target,
            self.prompts.class_names,
            f"{self.prompts.name}: the class prompts",
        )
        if len(classes) != 2:
            return right, {}
        margins = {}
        for method, lam in edit_of_key:
            if lam is None:
                # Score of the second class less that of the first, (n,): its sign is the decision,
                # its order the ROC curve.
                margins[method] = np.diff(scores[method, lam])[:, 0]
        # The cheapest baseline, without any edit or label: biased scores often order images well
        # and are cut at the wrong place. An edit has to beat it.
        is_second = margins[NONE] > np.median(margins[NONE])
        at_median = is_second == (tested.target == 1)
        return {BARE: right[BARE], (MEDIAN, None): at_median} | right, margins

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
        statistics: dict[str, Statistic] = {
            metric.name: compute for metric, compute in computed("groups")
        }
        if weights is not None:
            listed = np.array([weights[name] for name in groups.names])
            # Groups weigh as in training (Sagawa et al., 2020): the test split of Waterbirds is
            # balanced over backgrounds, its training split is not.
            statistics["average_reweighted"] = Reweighted(listed)
            # The published gaps of baselines, which learn from labels, take this average.
            if self.baselines:
                statistics["gap_reweighted"] = ReweightedGap(listed)
        cells_of_key = {key: self._cells(groups, right[BARE], right[key]) for key in right}

        sizes = np.array(list(groups.counts.values()))
        n = {"images": len(groups), "smallest group": int(sizes[sizes > 0].min())}
        for metric, statistic in statistics.items():
            for (method, lam), cells in cells_of_key.items():
                value, interval, change = interval_of(statistic, *cells)
                details: dict[str, Any] = {} if lam is None else {"lam": lam}
                result.add(metric, method, value, interval, n=n, change=change, **details)
        if (MEDIAN, None) in right:
            self._add_differences_to_median(result, right, groups, statistics, n)
        for (method, lam), (counts, resampled) in cells_of_key.items():
            if lam is not None:
                continue
            for group in np.flatnonzero(sizes).tolist():
                size = int(sizes[group])
                hits = int(counts[group, :, 1].sum())
                value, _, change = interval_of(
                    mean_accuracy, counts[[group]], resampled[:, [group]]
                )
                result.add(
                    "accuracy",
                    method,
                    value,
                    wilson_interval(hits, size),
                    n={"images": size},
                    change=change,
                    subset=groups.names[group],
                )

    def _add_differences_to_median(
        self,
        result: TaskResult,
        right: Mapping[Key, Mask],
        groups: Labels,
        statistics: Mapping[str, Statistic],
        n: Mapping[str, int],
    ) -> None:
        """Add for each measure of bias how far each method is from the threshold at the median, as
        a paired difference: both are resampled on the same images."""
        at_median = right[MEDIAN, None]
        for method, lam in right:
            if lam is not None or method in (NONE, MEDIAN):
                continue
            cells = self._cells(groups, at_median, right[method, lam])
            for name, statistic in statistics.items():
                metric = get_metric(name)
                if metric.kind == "bias":
                    _, _, (value, low, high) = interval_of(statistic, *cells)
                    # Of very few images the middle of the resamples may lie beside the value.
                    interval = (min(low, value), max(high, value))
                    result.add(TO_MEDIAN, method, value, interval, n=n, subset=metric.title)

    def _cells(self, groups: Labels, before: Mask, after: Mask) -> tuple[Counts, Counts]:
        """Return numbers of images by group, right without a method and right with it: (g, 2, 2),
        and their resamples."""
        codes = np.asarray(groups.codes, np.int64)
        # Each image falls into one of four cells of its group: wrong twice, mended, spoilt, right
        # twice. The counts hold all that any statistic of groups needs, and keep a change paired:
        # the same resample gives both sides.
        cell = 4 * codes + 2 * before + after
        counts = np.bincount(cell, minlength=4 * len(groups.names)).reshape(-1, 2, 2)
        # One seed for all methods: their resamples hold the same images, so that differences of
        # methods are paired too.
        blocks = list(resampled_counts(counts, self.resamples, self.seed))
        return counts, np.concatenate(blocks)

    def _cosines(
        self, provenance: TaskProvenance, fitted: Mapping[str, Edit | None], texts: Host
    ) -> list[TaskResult]:
        """Return the block of `cosine` of a class with a value, mean over its texts, and
        `cosine_spread` over the values; none where no spurious prompt names a value."""
        prompts = self.prompts
        texts_of_value = prompts.by_value(prompts.spurious)
        texts_of_value = {value: group for value, group in texts_of_value.items() if group}
        if not texts_of_value:
            return []
        update = {
            "task": f"{self.name}: cosines",
            "title": "Cosines of class prompts with spurious prompts (Table 7.1)",
            "description": ABOUT_COSINES,
            "methods": {method: provenance.methods[method] for method in fitted},
            "settings": {"spurious prompts": texts_of_value},
        }
        result = TaskResult(provenance.model_copy(update=update))
        # (classes, values) under each method: mean cosines of a class prompt with a value's texts.
        # The class prompts are edited, the spurious ones are not: they stand for the directions
        # that an edit should move the classes away from.
        tables: dict[str, Floats] = {}
        for method, edit in fitted.items():
            rows = self.rows(texts, prompts.classes, edit)
            columns = []
            for group in texts_of_value.values():
                columns.append((rows @ texts.embed(group).T).mean(1).numpy())
            tables[method] = np.stack(columns, 1)

        for i, name in enumerate(prompts.class_names):
            for j, (value, group) in enumerate(texts_of_value.items()):
                cosines = {method: float(table[i, j]) for method, table in tables.items()}
                n = {"spurious prompts": len(group)}
                result.add_draws("cosine", cosines, n=n, subset=f"{name} / {value}")
        # How far the cosines of each class lie apart, and the mean over the classes.
        n = {"spurious prompts": sum(map(len, texts_of_value.values()))}
        spreads = {method: np.ptp(table, axis=1).tolist() for method, table in tables.items()}
        for i, name in enumerate(prompts.class_names):
            spreads_of_class = {method: values[i] for method, values in spreads.items()}
            result.add_draws("cosine_spread", spreads_of_class, n=n, subset=name)
        means = {method: float(np.mean(values)) for method, values in spreads.items()}
        result.add_draws("cosine_spread", means, n=n)
        return [result]
