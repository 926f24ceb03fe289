"""Zero-shot classification by group (Tables 7.1-7.4 and A.9): worst group, averages, gap, with and without a method.

Source: sections 7.3.1 and 7.4.1 of the thesis; groups are label x spurious value (Sagawa et al., 2020). Everything
comes from one matrix of image features: a method is another (k, d) matrix of class texts, its scores are one product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator
from torch import Tensor

from vldebias.data import Embeddings, Labels, UnitRows, cross
from vldebias.errors import InvalidInputError
from vldebias.evaluation.accuracies import AreaRows, GroupRows
from vldebias.evaluation.images import IMAGES, Fitted, ImageTask, names_of, prompts_of, sets_by_column
from vldebias.evaluation.plausible import doubt_chance, doubt_labels, doubt_space, spaced
from vldebias.evaluation.reference_images import disjoint
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.task import Data, Lam, Prompts, Session, register_task
from vldebias.evaluation.texts import Texts
from vldebias.methods import class_offset, get_method, with_offset
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, StatedWords, load_prompts

if TYPE_CHECKING:
    from vldebias.edit import Edit

AGNOSTIC, OFFSET = "orth-cali, class-agnostic", "offset"
INTERVALS = (
    "95 % percentile bootstrap over images, the worst group picked again in every resample; Wilson's for the accuracy "
    "of one group and for worst group and average at 0 or 1; the reweighted average is put together from those where a "
    "group is at 0 or 1; of areas normal draws with DeLong's covariance"
)


@dataclass(frozen=True, eq=False)
class GroupSplit:
    """The images of a split whose label and spurious value are both known.

    Attributes:
        units: the features (n, d), read and L2-normalised a block at a time.
        target: (n,) index of the right class prompt.
        groups: Labels of n rows, label x spurious value ("landbird/water"), none unknown.
        values: Labels of n rows, the spurious value alone.
        unknown: images left out because label or spurious value is unknown.
        about: where the embeddings come from.
    """

    units: UnitRows
    target: NDArray[np.int64]
    groups: Labels
    values: Labels
    unknown: int
    about: dict[str, Any]

    @classmethod
    def of(cls, data: Embeddings, prompts: PromptSet, label: str, spurious: str) -> GroupSplit:
        """The split of two label columns, the first of which the class prompts name.

        Raises:
            InvalidInputError: no such column, one column twice, no image with both known, labels that the class
                prompts do not name.
        """
        if label == spurious:
            raise InvalidInputError(f"label and spurious: expected two columns, got {label!r} twice")
        names, values = data.column(label), data.column(spurious)
        known = names.known & values.known
        if not known.any():
            raise InvalidInputError(f"no image has both {label!r} and {spurious!r}; are the columns the right ones?")
        kept = data.unit if known.all() else data.unit.some(known)
        target = np.array(class_of(names.names, prompts), dtype=np.int64)[names.codes[known]]
        groups = cross(names[known], values[known])
        return cls(kept, target, groups, values[known], int((~known).sum()), dict(data.about))

    def __len__(self) -> int:
        return len(self.target)

    @cached_property
    def features(self) -> Tensor:
        """All of them at once, (n, d) float32, L2-normalised: for baselines, which train on them."""
        return self.units.whole()

    @property
    def facts(self) -> dict[str, Any]:
        """What a provenance says about these images; where their features were kept is nobody else's business."""
        about = {key: value for key, value in self.about.items() if key not in ("cache", "file")}
        return {**about, "images": len(self), "unknown": self.unknown, "images per group": self.groups.counts}

    def right(self, scores: Tensor) -> NDArray[np.bool_]:
        """(n,) mask of the images that scores (n, k) classify right; the first of equal scores wins."""
        return np.asarray(scores.argmax(1).cpu().numpy() == self.target)

    def codes_in(self, names: tuple[str, ...]) -> NDArray[np.int64]:
        """The group of every image (n,) as an index into `names`, the groups of another split.

        Raises:
            InvalidInputError: a group that occurs here is not among them.
        """
        strangers = [name for name, n in self.groups.counts.items() if n and name not in names]
        if strangers:
            raise InvalidInputError(f"groups: expected those of the test split {list(names)}, got {strangers} too")
        code = np.array([names.index(name) if name in names else -1 for name in self.groups.names], dtype=np.int64)
        return code[self.groups.codes]


@register_task
class GroupsTask(ImageTask):
    """Group robustness of zero-shot classification: blocks `name`, "`name`: lambda" and "`name`: cosines".

    Rows `worst_group`, `average`, `average_reweighted`, `gap` with percentile intervals over images, of two classes
    `worst_group_auc`, the lowest area over the spurious values, and `accuracy` of every group with Wilson's. Where such
    intervals do not cover is said in `vldebias.evaluation.accuracies`. A sweep has the overall metrics only.

    prompts: a set with class prompts that name the labels (see `class_of`).
    label, spurious: columns; a group is one value of each, such as "landbird/water"; images of which one is unknown
        are counted and left out.
    lams: a sweep over these lambda for the methods that have one; 0 is P0 alone, and no change at all for "cali".
    offset: every method also with the boundary between two classes put back, from the images of `data` without their
        labels (`vldebias.methods.class_offset`): rows "cali, offset".
    class_agnostic: "orth-cali" also with pairs that name no class (Table A.9).
    train, val: splits with the same columns, for `baselines` (names in `vldebias.evaluation.baselines.BASELINES`);
        those use labels, and their rows say so. true_groups: let them see the groups of `train`; by default they go by
        zero-shot predictions, as in Table 7.2.
    group_weights: group -> weight of `average_reweighted`. By default the sizes of the groups in `train`, where that
        is given and every group of it occurs in `data`.
    """

    task: Literal["groups"] = "groups"
    prompts: Prompts
    label: str
    spurious: str
    lams: tuple[Lam, ...] = ()
    class_agnostic: bool = False
    offset: bool = False
    train: Data | None = None
    val: Data | None = None
    baselines: tuple[str, ...] = ()
    true_groups: bool = False
    group_weights: dict[str, float] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        from vldebias.evaluation.baselines import get_baseline

        for name in self.baselines:
            get_baseline(name)
        if self.baselines and self.train is None:
            raise ValueError("baselines are trained: name the split under `train`")
        if self.lams and not self.swept():
            raise ValueError(f"lams: expected a method that has a lambda, got {list(self.methods)}")
        return self

    @classmethod
    def of_given(cls, session: Session, fields: Mapping[str, Any]) -> Self:
        """Of one prompt set, and of the columns that its class prompts and the attribute's values name.

        Raises:
            InvalidInputError: several prompt sets, or columns that they do not tell.
        """
        sets = sets_by_column(fields.get("prompts"))
        if len(sets) > 1 or len(next(iter(sets.values()))) > 1:
            raise InvalidInputError("prompts: expected one prompt set")
        ((prompts,),) = sets.values()
        columns = _columns(session.embedded(IMAGES), prompts, fields.get("label"), fields.get("spurious"))
        return super().of_given(session, {**fields, **columns, "prompts": prompts})

    @property
    def prompt_set(self) -> PromptSet:
        """The one set, loaded."""
        return load_prompts(self.prompts)

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """The one set."""
        return names_of([self.prompts])

    @property
    def splits(self) -> tuple[Data | None, ...]:
        """Test, reference, training and validation."""
        return *super().splits, self.train, self.val

    def texts(self) -> tuple[str, ...]:
        """Classes, spurious prompts and pairs, and the pairs without class names."""
        own = [self.prompt_set]
        return prompts_of([*own, own[0].class_agnostic()] if self.class_agnostic else own)

    def fitting(self, session: Session) -> Self:
        """Without baselines where the user's embeddings have no training split."""
        if not self.baselines or session.options.embeddings is None or session.optional(self.train) is not None:
            return self
        session.say(f"{self.name}: no training split in the file, so the baselines that need labels are left out")
        return self.model_copy(update={"baselines": ()})

    def inputs(self, session: Session) -> dict[str, Any]:
        """Those of every task on images, and the splits that baselines are trained and selected on."""
        return super().inputs(session) | {"train": session.optional(self.train), "val": session.optional(self.val)}

    def measure(
        self,
        images: Embeddings,
        texts: Texts,
        *,
        train: Embeddings | None = None,
        val: Embeddings | None = None,
        reference: Embeddings | None = None,
        edits: Mapping[str, Edit] | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Measure image embeddings.

        Args:
            images: features (n, d) with the columns `label` and `spurious`.
            texts: the text side of the same model.
            train, val: for the baselines. reference: unlabelled images, for the methods that use some.
            edits: name -> an edit that was fitted before, measured like a method.

        Raises:
            InvalidInputError: columns, labels, weights or widths that do not fit, baselines without `train`.
            ProjectionMismatchError: an edit that belongs to another model.
        """
        prompts, test = self.prompt_set, images
        split = GroupSplit.of(test, prompts, self.label, self.spurious)
        learn, select = (
            None if s is None else GroupSplit.of(s, prompts, self.label, self.spurious) for s in (train, val)
        )
        self.check_images(test, texts, prompts.classes[0])
        doubt_labels(test, (self.label, self.spurious), [prompts])
        others, counts = disjoint(reference, test, progress, self.methods)
        with progress.step(self.name) as bar:
            fitted = self.fit(texts, [prompts], reference=others, edits=edits)
            if self.class_agnostic:
                fitted[AGNOSTIC] = self.fitted(texts.fit(prompts.class_agnostic(), "orth-cali", self.lam))
            block = _Block(self, test, split, texts, prompts, fitted, others, counts, bar.note)
            return block.results(learn, select)

    def names(self) -> list[str]:
        """Names of the methods."""
        return [get_method(method).name for method in self.methods]

    def swept(self) -> list[str]:
        """Methods that a lambda changes and that have none of their own."""
        return [m.name for m in map(get_method, self.methods) if m.has_lam and not m.own_lam]


@dataclass(frozen=True, eq=False)
class _Block:
    """What the blocks of one measurement share; counts: images of the reference; note: tells what is being done."""

    task: GroupsTask
    test: Embeddings
    split: GroupSplit
    texts: Texts
    prompts: PromptSet
    fitted: dict[str, Fitted]
    reference: Embeddings | None
    counts: Mapping[str, int]
    note: Callable[[str], None]

    def results(self, learn: GroupSplit | None, select: GroupSplit | None) -> list[TaskResult]:
        """The whole, the sweep over lambda, the cosines."""
        task, split = self.task, self.split
        weights = task.group_weights
        if weights is None and learn is not None:
            sizes, tested = learn.groups.counts, split.groups.counts
            if all(tested.get(name) for name, n in sizes.items() if n):
                weights = {name: float(sizes.get(name, 0)) for name in split.groups.names}
        settings = {
            "label": task.label,
            "spurious": task.spurious,
            "data": split.facts,
            "train": learn and learn.facts,
            "val": select and select.facts,
            "group_weights": weights,
            "intervals": INTERVALS,
            "resamples": task.resamples,
            "seed": task.seed,
        }
        scores = self._scores(self.fitted)
        right = {method: split.right(one) for method, one in scores.items()}
        doubt_space(split.units[spaced(len(split))], self.texts, prompts_of([self.prompts]))
        nearest, names = scores["none"].argmax(1).cpu().numpy(), self.prompts.class_names
        doubt_chance(nearest, split.target, names, f"{self.prompts.name}: the class prompts")
        moved = self._with_offsets(scores) if task.offset else {}
        trained = self._baselines(learn, select)
        rows = GroupRows(right["none"], split.groups, weights, task.resamples, task.seed)
        about = {method: one.about for method, one in self.fitted.items()}
        main = self._result(
            "",
            "Zero-shot group robustness (Tables 7.2, 7.4 and A.9)",
            "An image counts as the class whose prompt is nearest. A group is a label together with a spurious value; "
            "the worst of them is picked again in every resample of the images.",
            about | {name: facts for name, (_, facts) in (*moved.items(), *trained.items())},
            settings,
        )
        rights: list[Any] = [(method, mask, {}) for method, mask in right.items()]
        rights += [
            (name, mask, {key: told[key] for key in ("lam", "strength")}) for name, (mask, told) in moved.items()
        ]
        rights += [(name, mask, {"uses_labels": True}) for name, (mask, _) in trained.items()]
        rows.overall(main, rights)
        if len(self.prompts.classes) == 2:
            margins = {method: (one[:, 1] - one[:, 0]).cpu().numpy() for method, one in scores.items()}
            AreaRows(split.target == 1, split.values, task.resamples, task.seed).add(main, margins)
        rows.by_group(main, rights)
        results = [main]
        if task.lams:
            kept = {method: facts for method, facts in about.items() if method in task.names()}
            swept = self._result(
                "lambda",
                "Sensitivity to lambda (Table 7.3)",
                "The same images and prompts, with projections of several lambda; rows without lambda for comparison.",
                kept,
                settings | {"lams": list(task.lams)},
            )
            rights = [(method, right[method], {}) for method in task.names() if method not in task.swept()]
            rows.overall(swept, [*rights, *self._sweep()])
            results.append(swept)
        by_value = {value: own for value, own in self.prompts.by_value(self.prompts.spurious).items() if own}
        if by_value:
            cosines = self._result(
                "cosines",
                "Cosines of class prompts with spurious prompts (Table 7.1)",
                "Cosine of each class prompt, projected, with the spurious prompts of a value, as they are, averaged; "
                "the spread is the largest minus the smallest over the values. Texts alone: nothing is drawn, so "
                "intervals have no width.",
                about,
                {"spurious prompts": by_value},
            )
            self._cosines(cosines, by_value)
            results.append(cosines)
        return results

    def _result(
        self, kind: str, title: str, description: str, methods: Mapping[str, Any], settings: dict[str, Any]
    ) -> TaskResult:
        """An empty block; kind: "" or what follows the task in its name."""
        gate = StatedWords(self.prompts.stated_words)
        stated = [prompt for prompt in self.prompts.classes if gate.match(prompt)]
        provenance = self.task.provenance(
            f"{self.task.name}: {kind}" if kind else self.task.name,
            self.test,
            self.texts,
            [self.prompts],
            methods,
            reference=self.reference,
            title=title,
            description=description,
            n={"images": len(self.split), "unknown": self.split.unknown, **self.counts},
            settings={**settings, "class prompts left alone, they state the attribute": stated},
        )
        return TaskResult(provenance, details={method: one.details for method, one in self.fitted.items()})

    def _scores(self, several: Mapping[str, Fitted]) -> dict[str, Tensor]:
        """Method -> (n, k) scores of the images under it; images that methods share are read once for all of them."""
        images: dict[int, UnitRows] = {}
        texts: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for method, one in several.items():
            seen = self.task.images(self.split.units, one.edit)
            images[id(seen)] = seen
            texts[id(seen)][method] = self.task.rows(self.texts, self.prompts.classes, one.edit)
        scores: dict[str, Tensor] = {}
        for which, rows in texts.items():
            self.note(", ".join(rows))
            scores |= images[which].products(rows)
        return {method: scores[method] for method in several}

    def _with_offsets(self, scores: Mapping[str, Tensor]) -> dict[str, tuple[NDArray[np.bool_], dict[str, Any]]]:
        """Name -> what a method gets right with the boundary put back, and what is told of it."""
        moved = {}
        for method, one in self.fitted.items():
            if one.edit is not None:
                by = class_offset(scores["none"], scores[method])
                right = self.split.right(with_offset(scores[method], by))
                moved[f"{method}, {OFFSET}"] = right, {**one.about, OFFSET: by}
        return moved

    def _sweep(self) -> Iterator[tuple[str, NDArray[np.bool_], Mapping[str, Any]]]:
        """Every method that a lambda changes, at every lambda."""
        for method in self.task.swept():
            for lam in dict.fromkeys(self.task.lams):
                edit = self.texts.fit(self.prompts, method, lam, reference=self.reference)
                one = self.task.fitted(edit, float(lam))
                name = f"{method}, lam = {lam:g}"
                yield method, self.split.right(self._scores({name: one})[name]), one.details

    def _cosines(self, result: TaskResult, by_value: Mapping[str, tuple[str, ...]]) -> None:
        """`cosine` of a class with a value, mean over its spurious prompts, and `cosine_spread` over the values.

        The spread is the largest minus the smallest: a class that leans to no value has 0.
        """
        used, names = sum(map(len, by_value.values())), self.prompts.class_names
        cells: dict[tuple[str, str, int], dict[str, float]] = {}
        for method, one in self.fitted.items():
            classes = self.task.rows(self.texts, self.prompts.classes, one.edit)
            columns = [(classes @ self.texts.embed(own).T).mean(1).numpy() for own in by_value.values()]
            table = np.stack(columns, 1)
            spread = table.max(1) - table.min(1)
            for i, name in enumerate(names):
                for j, (value, own) in enumerate(by_value.items()):
                    cells.setdefault(("cosine", f"{name} / {value}", len(own)), {})[method] = float(table[i, j])
            for name, of_class in (*zip(names, spread, strict=True), ("", spread.mean())):
                cells.setdefault(("cosine_spread", name, used), {})[method] = float(of_class)
        for (metric, subset, n), values in cells.items():
            result.add_draws(metric, values, n={"spurious prompts": n}, subset=subset)

    def _baselines(
        self, learn: GroupSplit | None, select: GroupSplit | None
    ) -> dict[str, tuple[NDArray[np.bool_], dict[str, Any]]]:
        """Name -> what a baseline (Table 7.2) that is given labels of images gets right, and what is told of it."""
        from vldebias.evaluation.baselines import get_baseline

        if not self.task.baselines:
            return {}
        if learn is None:
            raise InvalidInputError(
                f"baselines {list(self.task.baselines)} are trained; expected train=, a split with labels"
            )
        groups, trained = self.split.groups.names, {}
        zero_shot = self.texts.embed(self.prompts.classes).float()
        held_out = None if select is None else (select.features, select.target, select.codes_in(groups))
        for name in self.task.baselines:
            self.note(name)
            baseline = get_baseline(name)
            known = learn.codes_in(groups) if self.task.true_groups else None
            predict = baseline.fit(
                learn.features, learn.target, zero_shot, groups=known, val=held_out, seed=self.task.seed
            )
            about = {"chosen": dict(predict.chosen), "uses_labels": True, "true_groups": self.task.true_groups}
            trained[name] = self.split.right(predict(self.split.features)), {**asdict(baseline), **about}
        return trained


def _columns(data: Embeddings, prompts: PromptSet, label: str | None, spurious: str | None) -> dict[str, str]:
    """The columns of the groups: the one that the class prompts name, and the one of the attribute's values."""

    def fits(column: str) -> bool:
        try:
            return bool(class_of(data.labels[column].names, prompts))
        except InvalidInputError:
            return False

    there = [name for name in data.labels if name != spurious]
    label = label or next((name for name in there if fits(name)), None)
    others = [name for name in data.labels if name != label]
    values = {value.casefold() for value in prompts.attributes}
    named = [name for name in others if values & {value.casefold() for value in data.labels[name].names}]
    spurious = spurious or next((one[0] for one in (named, others) if len(one) == 1), None)
    if label is None or spurious is None:
        raise InvalidInputError(
            f"groups: say which columns are label= and spurious=; there are {sorted(data.labels)}, and the class "
            f"prompts of {prompts.name} name {list(prompts.class_names)}"
        )
    return {"label": label, "spurious": spurious}


def class_of(labels: tuple[str, ...], prompts: PromptSet) -> list[int]:
    """For each label the index of the class prompt that names it.

    By name, in any case: the class of that name ("landbird"), or the only class whose name contains it as a word
    ("dark" in "dark hair"). Labels that are all digits are indices. By name, because labels in alphabetical order
    ("blond", "dark") would otherwise be the wrong way round without a sign of it.

    Raises:
        InvalidInputError: a label that names no class or several, or two labels that name one.
    """
    names = [name.casefold() for name in prompts.class_names]
    if len(names) < 2:
        raise InvalidInputError(f"{prompts.name}: expected prompts for two or more classes, got {len(names)}")

    def matches(label: str) -> list[int]:
        if label in names:
            return [names.index(label)]
        if label.isdecimal():
            return [int(label)] if int(label) < len(names) else []
        word = StatedWords([label]) if any(map(str.isalnum, label)) else StatedWords([])
        return [i for i, name in enumerate(names) if word.match(name)]

    classes = [matches(label.casefold()) for label in labels]
    chosen = [one[0] for one in classes if len(one) == 1]
    if len(chosen) < len(labels) or len(set(chosen)) < len(labels):
        raise InvalidInputError(
            f"{prompts.name}: expected labels that each name one of the classes {list(prompts.class_names)}, "
            f"got {list(labels)}; rename the labels, or use class indices 0 .. {len(names) - 1}"
        )
    return chosen
