"""Measure zero-shot accuracy by group (Tables 7.1 to 7.4).

A group is a combination of a label and a spurious value (Sagawa et al., 2020). Source: sections
7.3.1 and 7.4.1 of the thesis. The metrics only depend on the group of each image and on whether it
is classified correctly with and without a method, so resamples are multinomial counts over these
cells. Intervals are too narrow for the worst of several groups with similar accuracy, for fewer
than about 30 images, and if all but a few images are right or wrong
(`eval/experiments/coverage.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import chain, product
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor

from vldebias import programs
from vldebias.data import Embeddings, Labels, cross
from vldebias.data.rows import UnitRows
from vldebias.errors import InvalidInputError, one_line
from vldebias.hosts import Host
from vldebias.measure.classification import (
    IntervalRule,
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
from vldebias.measure.rows import MEDIAN, NONE, ON_VAL, TaskProvenance, TaskResult
from vldebias.methods import get_compared
from vldebias.methods.reference import class_of
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet
from vldebias.study.doubts import check_images, doubt_chance, doubt_labels, doubt_space
from vldebias.study.inputs import Inputs
from vldebias.study.split import Data
from vldebias.study.task import AttributeField, register_task
from vldebias.study.tasks.examples import Examples, Predictor
from vldebias.study.tasks.images import (
    NOT_MEASURED,
    ImageTask,
    facts_of,
    sets_by_column,
    taught_apart,
)
from vldebias.utils.arrays import Counts, Floats, Mask
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT, Progress
from vldebias.utils.schema import Lam

Key = tuple[str, float | None]  # method, and its lambda if it belongs to a sweep
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]

BARE: Key = (NONE, None)
ABOUT_MEDIAN = (
    "the unedited model with its threshold at the median of its scores, which requires no labels,"
    " but assumes that about half of the images belong to each class"
)
ABOUT = (
    "Each image is assigned to the class with the nearest prompt. A group is a combination of a"
    " label and a spurious value. The intervals are 95% percentile bootstrap intervals over images,"
    " with the worst group chosen again in each resample. For a single group, and if no resample"
    " varies, they are Wilson intervals. For areas under the curve, they use normal draws with"
    " DeLong's covariance."
)
ABOUT_COSINES = (
    "Mean cosine between each class prompt, as edited by a method, and the spurious prompts for a"
    " value. The spread is the largest mean minus the smallest mean over the values. Nothing is"
    " sampled, so the intervals have zero width."
)


class GroupedImages:
    """The images in a split whose label and spurious value are known.

    Attributes:
        units: rows (n, d) of length 1.
        target: index (n,) of the correct class prompt.
        groups: label x spurious value, such as "landbird/water".
        values: spurious value (n,) of each image.
        n_unknown: number of images with an unknown label or value.
        facts: metadata for the provenance, without local folders.

    Args:
        images: embeddings of a split, with label columns.
        label: name of the label column.
        spurious: name of the column with the spurious values.
        attribute: prompt set with a class prompt for each label.

    Raises:
        InvalidInputError: If no image is left, or a label does not name a class.
    """

    def __init__(
        self, images: Embeddings, label: str, spurious: str, prompt_set: PromptSet
    ) -> None:
        labels = images.column(label)
        values = images.column(spurious)
        # An image with an unknown label or value does not belong to any group, so it is only
        # counted.
        known = labels.known & values.known
        if not known.any():
            raise InvalidInputError(
                f"no image has a known value in both {label!r} and {spurious!r}; check the columns"
            )
        classes = class_of(labels.names, prompt_set)
        if not classes:
            raise InvalidInputError(
                f"{prompt_set.name}: expected each label to name one of the classes"
                f" {list(prompt_set.class_names)}, got {list(labels.names)}; rename the labels,"
                " or use class indices that start at 0"
            )
        self.units: UnitRows = images.unit if known.all() else images.unit.select(known)
        self.target = np.array(classes, dtype=np.int64)[labels.codes[known]]
        # Cross labels and values: 2 labels and 2 values give the group codes 0 to 3.
        self.groups: Labels = cross(labels[known], values[known])
        self.values: Labels = values[known]
        self.n_unknown = int((~known).sum())
        self.facts = facts_of(images)
        self.facts["images"] = len(self.target)
        self.facts["unknown"] = self.n_unknown
        self.facts["images per group"] = self.groups.counts


@register_task
class GroupsTask(ImageTask):
    """Measure the group robustness of zero-shot classification.

    The result has the blocks `name` and "`name`: cosines".

    The rows are `worst_group`, `average`, `average_reweighted`, `gap`, and the `accuracy` of every
    group. With baselines, there is also `gap_reweighted`. With two classes, there are also
    `worst_group_auc`, the lowest area under the ROC curve over the spurious values; the method
    "none@median"; and `difference_to_median`, the paired difference between each method and
    "none@median".

    Attributes:
        attribute: prompt set whose class prompts name the labels (see `class_of`).
        label, spurious: names of two columns. A group is one value of each, such as
            "landbird/water". Images with an unknown value are counted and left out.
        lams: further values of lambda for methods that take one, reported with overall metrics
            only. With 0, methods use P0 alone, and "cali" has no effect. If there is a `val` split,
            there is also the method "cali@val", which uses the lambda with the best worst-group
            accuracy on `val`. Its rows are marked as using labels.
        train, val: splits with the same columns, for `lams` and `baselines`.
        baselines: names of supervised baselines, such as "erm-linear" or "dfr-sub". Their rows are
            marked as using labels.
        group_weights: group -> weight in `average_reweighted`. By default, weights are the group
            sizes in `train`, if every training group has test images.
    """

    task: Literal["groups"] = "groups"
    attribute: AttributeField
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
        known = _known_baselines() if self.baselines else {}
        if not set(self.baselines) <= set(known):
            raise ValueError(
                f"baselines: expected some of {list(known)}, got {list(self.baselines)}"
            )
        if self.lams and not self._methods_with_lam():
            raise ValueError(f"lams: expected a method that takes lam, got {list(self.methods)}")
        return self

    def check_sources(self, names: Container[str]) -> None:
        """Raise InvalidInputError if the images or the splits for baselines are missing."""
        super().check_sources(names)
        if self.baselines and ("train" not in names or "val" not in names):
            raise InvalidInputError(
                "baselines need labelled images; specify splits under `train` and `val`"
            )

    @classmethod
    def from_inputs(cls, inputs: Inputs, settings: Mapping[str, object]) -> Self:
        """Create the task for one prompt set.

        By default, columns are found by matching their values to class names and attribute values.

        Args:
            inputs: inputs passed by the user.
            settings: task settings by name.

        Raises:
            InvalidInputError: If there are several prompt sets, or the columns are ambiguous.
        """
        sets = list(chain(*sets_by_column(settings.get("attribute")).values()))
        if len(sets) > 1:
            names = [prompt_set.name for prompt_set in sets]
            raise InvalidInputError(f"attribute: expected one prompt set, got {names}")
        prompt_set = sets[0]
        columns = {name: labels.names for name, labels in inputs["images"].labels.items()}
        # By default, the label is the first column whose values match the class prompts.
        label = settings.get("label") or None
        for name, values in columns.items():
            is_other = name != settings.get("spurious")
            if label is None and is_other and class_of(tuple(values), prompt_set):
                label = name
        spurious = settings.get("spurious") or _spurious_column(columns, label, prompt_set)
        if label is None or spurious is None:
            raise InvalidInputError(
                f"groups: pass label= and spurious=, two of the columns {sorted(columns)}, because"
                f" none of them, or more than one, has the values {list(prompt_set.class_names)}"
                f" (the classes in {prompt_set.name}) or the attribute's values"
            )
        chosen = {"label": label, "spurious": spurious, "attribute": prompt_set}
        return cls.build({**settings, **chosen})

    def with_options(self, options: Options) -> Self:
        """Return the task with the user's options.

        The lambda sweep is dropped if none of the user's methods takes a lambda.
        """
        task = self
        if options.methods and not any(
            get_compared(name).declaration.has_lam for name in options.methods
        ):
            task = self.model_copy(update={"lams": ()})
        return super(GroupsTask, task).with_options(options)

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
            images: images (n, d) to measure.
            texts: host of the model that embedded the images.
            train: images to train the baselines on.
            val: images to select baselines and lambda on.
            reference: unlabelled images, for methods that use them.
            edits: name -> fitted edit, measured like a method.
            progress: object that shows progress bars.

        Raises:
            InvalidInputError: If images and text have different widths, a label names no class, or
                weights do not match the groups.
        """
        columns = (self.label, self.spurious)
        reference, images, reference_counts = taught_apart(
            reference, images, self.methods, self.seed
        )
        if NOT_MEASURED in reference_counts:
            progress.print_line(
                f"{self.name}: the default learns from {reference_counts[NOT_MEASURED]} labelled"
                f" images, so the other {len(images)} are measured"
            )
        tested = GroupedImages(images, *columns, self.attribute)
        learning = None if train is None else GroupedImages(train, *columns, self.attribute)
        selecting = None if val is None else GroupedImages(val, *columns, self.attribute)
        check_images(images, texts, self.attribute.classes[0])
        doubt_labels(images, columns, [self.attribute])

        with progress.bar(self.name) as advance:
            # Fit every method at its default lambda (None in the key), then at each lambda in the
            # sweep.
            fitted = self.fit(texts, [self.attribute], reference=reference, edits=edits)
            facts_of_method: dict[str, Mapping[str, object]] = {}
            edit_of_key: dict[Key, Edit | None] = {}
            for method, edit in fitted.items():
                facts_of_method[method] = self.about(edit)
                edit_of_key[method, None] = edit
            for method, lam in product(self._methods_with_lam(), dict.fromkeys(self.lams)):
                if lam != facts_of_method[method].get("lam"):
                    at_lam = self.model_copy(update={"methods": (method,), "lam": lam})
                    edit_of_key[method, lam] = at_lam.fit(
                        texts, [self.attribute], reference=reference
                    )[method]
            if selecting is not None and self.lams:
                self._add_lams_on_val(edit_of_key, facts_of_method, selecting, texts)
            advance(0, f"{len(edit_of_key)} methods")
            right_of_key, margins = self._classify(tested, texts, edit_of_key)
            description = ABOUT
            if margins:
                facts_of_method[MEDIAN] = {"assumes": ABOUT_MEDIAN}
                description += f" {MEDIAN} is {ABOUT_MEDIAN}."
            if learning is not None and selecting is not None:
                for name in self.baselines:
                    advance(0, name)
                    facts_of_method[name] = self._learn(
                        name, learning, selecting, texts, tested, right_of_key
                    )
                description += self._not_fitted(facts_of_method, progress)
            elif self.baselines:
                progress.print_line(
                    f"{self.name}: the file has no splits to train and select on, so the baselines"
                    " are left out"
                )

        weights = self._weights(tested, learning)
        provenance = self.provenance(
            self.name,
            images,
            texts,
            [self.attribute],
            facts_of_method,
            reference=reference,
            settings={
                "data": tested.facts,
                "train": None if learning is None else learning.facts,
                "val": None if selecting is None else selecting.facts,
                "group_weights": weights,
            },
            title="Zero-shot group robustness (Chuang's thesis, Tables 7.2 to 7.4)",
            description=description,
            n={
                "images": len(tested.target),
                "unknown": tested.n_unknown,
                **reference_counts,
            },
        )
        result = TaskResult(provenance)
        self._add_accuracies(result, right_of_key, tested.groups, weights)
        if margins:
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
        """Return the weight of each group in `average_reweighted`.

        The weights come from the settings, or are the sizes of the training groups. The result is
        None if there are no weights, or a training group has no test images.

        Raises:
            InvalidInputError: If a group has no weight, or a group without images has one.
        """
        tested_sizes = tested.groups.counts
        weights = self.group_weights
        if weights is not None:
            has_images = {n > 0 for name, n in tested_sizes.items() if weights.get(name)}
            if set(weights) != set(tested.groups.names) or has_images != {True}:
                raise InvalidInputError(
                    f"group_weights: expected a weight for each of {tested_sizes}, not all 0, and 0"
                    f" for groups without images; got {dict(weights)}"
                )
            return weights
        if learning is None:
            return None
        sizes = {name: n for name, n in learning.groups.counts.items() if n}
        # A group without test images has no accuracy, and an average that omits it would not be
        # comparable.
        if not sizes or not all(tested_sizes.get(name) for name in sizes):
            return None
        return {name: float(sizes.get(name, 0)) for name in tested_sizes}

    def _add_lams_on_val(
        self,
        edit_of_key: dict[Key, Edit | None],
        facts_of_method: dict[str, Mapping[str, object]],
        selecting: GroupedImages,
        texts: Host,
    ) -> None:
        """Add each method at the lambda with the best worst-group accuracy on the validation split.

        On a tie, the smallest lambda is chosen, because it changes the embeddings least.
        """
        for method in self._methods_with_lam():
            edit_of_lam: dict[float, Edit | None] = {}
            for (name, lam), edit in edit_of_key.items():
                # The default lambda is unknown if it differs between the method's parts.
                value = facts_of_method[name].get("lam") if lam is None else lam
                if name == method and isinstance(value, float):
                    edit_of_lam[value] = edit
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
        """Return the worst-group accuracy on some images, with an edit or without one (None)."""
        rows = {"edit": self.rows(texts, self.attribute.classes, edit)}
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
    ) -> dict[str, object]:
        """Train a baseline and return its provenance entry.

        A mask (n,) of the correctly classified images is added to `right_of_key`. If the baseline
        cannot be fitted, nothing is added, and the entry contains the reason as "not_fitted".
        """
        classes = texts.embed(self.attribute.classes).float()  # (k, d)
        train_on, source = _known_baselines()[name]
        # Select settings by worst-group accuracy on this split, as the baselines' authors do.
        chosen_on = selecting.units[:], selecting.target, selecting.groups.codes
        facts: dict[str, object] = {"source": source, "uses_labels": True}
        try:
            examples = Examples(learning.units[:], learning.target, classes, chosen_on, self.seed)
            logits, chosen = train_on(examples)
            predicted = logits(tested.units[:]).argmax(1).numpy()
        except Exception as error:  # solvers raise arbitrary errors; keep measuring other methods
            return facts | {"not_fitted": one_line(error)}
        right_of_key[name, None] = predicted == tested.target
        return facts | {"chosen": chosen}

    def _not_fitted(self, facts: Mapping[str, Mapping[str, object]], progress: Progress) -> str:
        """Report baselines that could not be fitted, and return sentences about them.

        Args:
            facts: baseline -> its provenance entry.
            progress: progress object that prints the sentences.
        """
        sentences = ""
        for name in self.baselines:
            if "not_fitted" in facts[name]:
                sentence = f"{name} could not be fitted: {facts[name]['not_fitted']}"
                progress.print_line(f"{self.name}: {sentence}")
                sentences += f" {sentence}."
        return sentences

    def _classify(
        self, tested: GroupedImages, texts: Host, edit_of_key: Mapping[Key, Edit | None]
    ) -> tuple[dict[Key, Mask], dict[str, Floats]]:
        """Return a mask (n,) of the correctly classified images for each method.

        With two classes, also return the score differences (n,) between the second and the first
        class.
        """
        classes = self.attribute.classes
        # If several methods share their images, read the images only once.
        rows_of_images: dict[UnitRows, dict[Key, Tensor]] = {}
        for key, edit in edit_of_key.items():
            rows = rows_of_images.setdefault(self.images(tested.units, edit), {})
            rows[key] = self.rows(texts, classes, edit)
        scores: dict[Key, Floats] = {}
        for images, rows in rows_of_images.items():
            for key, products in images.products(rows).items():
                scores[key] = products.numpy()

        right = {key: scores[key].argmax(1) == tested.target for key in edit_of_key}
        doubt_space(tested.units, texts, self.attribute.texts)
        doubt_chance(
            scores[BARE].argmax(1),
            tested.target,
            self.attribute.class_names,
            f"{self.attribute.name}: the class prompts",
        )
        if len(classes) != 2:
            return right, {}
        methods = [method for method, lam in edit_of_key if lam is None]
        margins = {method: np.diff(scores[method, None])[:, 0] for method in methods}
        # Biased scores often rank images well, but their threshold is poor. Moving the threshold to
        # the median requires neither edits nor labels, and is the simplest baseline for an edit.
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
        """Add every group metric for every method, followed by the `accuracy` of each group.

        Accuracies have Wilson intervals.

        Args:
            result: the result to add rows to.
            right: mask (n,) of the correct images for each method; changes are relative to "none".
            groups: groups (n,) of the images.
            weights: group -> weight in `average_reweighted`.
        """
        # metric name -> (statistic, interval rule)
        statistics: dict[str, tuple[Statistic, IntervalRule]] = {
            metric.name: (compute, metric.interval) for metric, compute in computed("groups")
        }
        if weights is not None:
            listed = np.array([weights[name] for name in groups.names])
            # Weight groups as in the training split (Sagawa et al., 2020). For example, the test
            # split of Waterbirds is balanced over backgrounds, but its training split is not.
            statistics["average_reweighted"] = Reweighted(listed), "weighted mean"
            # The gaps published for the baselines are computed from this average.
            if self.baselines:
                statistics["gap_reweighted"] = ReweightedGap(listed), "gap"
        cells_of_key = {key: self._cells(groups, right[BARE], right[key]) for key in right}

        sizes = np.array(list(groups.counts.values()))
        n = {"images": len(groups), "smallest group": int(sizes[sizes > 0].min())}
        for metric, (statistic, rule) in statistics.items():
            for (method, lam), cells in cells_of_key.items():
                value, interval, change = interval_of(statistic, rule, *cells)
                if lam is None:
                    result.add(metric, method, value, interval, n=n, change=change)
                else:
                    result.add(metric, method, value, interval, n=n, change=change, lam=lam)
        if (MEDIAN, None) in right:
            self._add_differences_to_median(result, right, groups, statistics, n)
        for (method, lam), (counts, resampled) in cells_of_key.items():
            if lam is not None:
                continue
            for group in np.flatnonzero(sizes).tolist():
                size = int(sizes[group])
                hits = int(counts[group, :, 1].sum())
                value, _, change = interval_of(
                    mean_accuracy, "mean", counts[[group]], resampled[:, [group]]
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
        statistics: Mapping[str, tuple[Statistic, IntervalRule]],
        n: Mapping[str, int],
    ) -> None:
        """Add the paired difference between each method and "none@median" for each bias metric."""
        at_median = right[MEDIAN, None]
        for method, lam in right:
            if lam is not None or method in (NONE, MEDIAN):
                continue
            cells = self._cells(groups, at_median, right[method, lam])
            for name, (statistic, rule) in statistics.items():
                metric = get_metric(name)
                if metric.kind == "bias":
                    _, _, (value, low, high) = interval_of(statistic, rule, *cells)
                    # With very few images, the resamples may not be centred on the value.
                    interval = (min(low, value), max(high, value))
                    result.add(TO_MEDIAN, method, value, interval, n=n, subset=metric.title)

    def _cells(self, groups: Labels, before: Mask, after: Mask) -> tuple[Counts, Counts]:
        """Return image counts (g, 2, 2), and their resamples.

        The axes are the group, and whether an image is classified correctly without a method and
        with it.
        """
        codes = np.asarray(groups.codes, np.int64)
        # Four cells per group are sufficient for every group statistic, and keep changes paired.
        cell = 4 * codes + 2 * before + after
        counts = np.bincount(cell, minlength=4 * len(groups.names)).reshape(-1, 2, 2)
        # Using the same seed for all methods also pairs the differences between methods.
        blocks = list(resampled_counts(counts, self.resamples, self.seed))
        return counts, np.concatenate(blocks)

    def _cosines(
        self, provenance: TaskProvenance, fitted: Mapping[str, Edit | None], texts: Host
    ) -> list[TaskResult]:
        """Return the block of mean cosines between classes and spurious values.

        It contains the mean `cosine` of each class with each value's prompts, and the
        `cosine_spread` over values. It is empty if no spurious prompt states a value.
        """
        prompt_set = self.attribute
        groups = prompt_set.by_value(prompt_set.spurious)
        texts_of_value = {value: group for value, group in groups.items() if group}
        if not texts_of_value:
            return []
        update = {
            "task": f"{self.name}: cosines",
            "title": "Cosines of class prompts with spurious prompts (Chuang's thesis, Table 7.1)",
            "description": ABOUT_COSINES,
            "methods": {method: provenance.methods[method] for method in fitted},
            "settings": {"spurious prompts": texts_of_value},
        }
        result = TaskResult(provenance.model_copy(update=update))
        # Compute mean cosines (classes, values) by method. Only class prompts are edited, because
        # the spurious prompts represent the directions that an edit should remove from the classes.
        tables: dict[str, Floats] = {}
        for method, edit in fitted.items():
            rows = self.rows(texts, prompt_set.classes, edit)
            columns = []
            for group in texts_of_value.values():
                columns.append((rows @ texts.embed(group).T).mean(1).numpy())
            tables[method] = np.stack(columns, 1)

        for i, name in enumerate(prompt_set.class_names):
            for j, (value, group) in enumerate(texts_of_value.items()):
                cosines = {method: float(table[i, j]) for method, table in tables.items()}
                n = {"spurious prompts": len(group)}
                result.add_draws("cosine", cosines, n=n, subset=f"{name} / {value}")
        # Add the spread of the cosines per class, and its mean over classes.
        n = {"spurious prompts": sum(map(len, texts_of_value.values()))}
        spreads = {method: np.ptp(table, axis=1).tolist() for method, table in tables.items()}
        for i, name in enumerate(prompt_set.class_names):
            spreads_of_class = {method: values[i] for method, values in spreads.items()}
            result.add_draws("cosine_spread", spreads_of_class, n=n, subset=name)
        means = {method: float(np.mean(values)) for method, values in spreads.items()}
        result.add_draws("cosine_spread", means, n=n)
        return [result]


def _known_baselines() -> dict[str, tuple[Callable[..., Predictor], str]]:
    """Return the supervised baselines: the function that trains each one, and its source."""
    known: dict[str, tuple[Callable[..., Predictor], str]] = {}
    for baselines in programs.hooks("baselines"):
        known |= baselines()
    return known


def _spurious_column(
    columns: Mapping[str, Sequence[str]], label: object, prompt_set: PromptSet
) -> str | None:
    """Return the only other column that contains a value of the attribute.

    If no column does, return the only other column. Two matching columns, such as "gender" and
    "gender of the photographer", are ambiguous, and the result is None.
    """
    candidates = [name for name in columns if name != label]
    attribute_values = {value.casefold() for value in prompt_set.attributes}
    matches = []
    for name in candidates:
        if attribute_values & {value.casefold() for value in columns[name]}:
            matches.append(name)
    for names in (matches, candidates):
        if len(names) == 1:
            return names[0]
    return None
