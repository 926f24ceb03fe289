"""What features hold, as a task: can the attribute be read, which group suffers, which labels are wrong, what margins.

`vldebias.diagnose` asks it of arrays, `vldebias diagnose` of a file, a suite of a data set; `vldebias.diagnostics` has
each question as a function.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field

from vldebias.data import Embeddings, Labels, cross
from vldebias.diagnostics import HiddenGroups, Margins, geometry, hidden_groups, margins, readable, wrong_labels
from vldebias.diagnostics.folds import Folds, fold_numbers, unit_rows
from vldebias.diagnostics.labels import PENALTY
from vldebias.errors import InvalidInputError
from vldebias.evaluation.images import IMAGES, Fitted, ImageTask, Methods, names_of, prompts_of
from vldebias.evaluation.reference_images import disjoint
from vldebias.evaluation.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.evaluation.task import Count, Prompts, Session, register_task
from vldebias.evaluation.texts import Texts
from vldebias.metrics.bootstrap import wilson_interval
from vldebias.pictures import for_matplotlib, subplots
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Plot

    from vldebias.edit import Edit

READERS = {"linear": "linear_probe", "neighbour": "neighbour_probe"}
FEW = 30  # rows of a group below which its accuracy is no reason for advice
QUANTILES = (5, 25, 50, 75, 95)


@register_task
class DiagnoseTask(ImageTask):
    """Probes, hidden groups, wrong labels and margins of image features; one block.

    labels: column of the classes. groups: column of an attribute, whose values are what probes read and whose crossing
        with the classes gives the groups; one of both is enough.
    prompts: the attribute's prompt set, for methods that are fitted on texts, and for hidden groups where `groups` is
        not given. side: which features methods change, here the images unless another one is named.
    folds, permutations: of the probes, see `vldebias.diagnostics.readable`.

    Rows: `linear_probe` and `neighbour_probe` of the attribute for every method (facts on chance in the settings),
    `class_probe` of the classes; `accuracy` of every group by a classifier that did not see the row, `worst_group`;
    `suspect_labels`; medians of margins; figures of the features' shape.
    """

    task: Literal["diagnose"] = "diagnose"
    labels: str | None = None
    groups: str | None = None
    prompts: Prompts | None = None
    methods: Methods = (NONE,)
    side: Literal["text", "image", "both"] | None = "image"
    folds: Annotated[Count, Field(ge=2)] = 5
    permutations: Annotated[Count, Field(ge=2)] = 20

    @property
    def prompt_sets(self) -> tuple[str, ...]:
        """The one set, where there is one."""
        return () if self.prompts is None else names_of([self.prompts])

    def texts(self) -> tuple[str, ...]:
        """What methods are fitted on."""
        return () if self.prompts is None else prompts_of([self.prompts])

    def inputs(self, session: Session) -> dict[str, Any]:
        """The features, and where there is a prompt set the texts of the same model."""
        if self.prompts is not None:
            return super().inputs(session)
        return {"images": session.embedded(self.data), "progress": session.progress}

    def fingerprints(self, session: Session) -> dict[str, Any]:
        """The features, and where there is a prompt set the weights of the model."""
        if self.prompts is not None or session.options.embeddings is None:
            return super().fingerprints(session)
        return {"data": session.fingerprint(self.data), "unknown": list(session.options.unknown)}

    def measure(
        self,
        images: Embeddings,
        texts: Texts | None = None,
        *,
        head: Any = None,
        reference: Embeddings | None = None,
        edits: Mapping[str, Edit] | None = None,
        progress: Progress = SILENT,
    ) -> list[TaskResult]:
        """Diagnose features.

        Args:
            images: features (n, d) with the columns `labels` and `groups`.
            texts: the text side of the same model; with `prompts`, what methods are fitted on.
            head: of `vldebias.diagnostics.margins`, on features of length 1; by default ridge regression on all rows.
            reference: for methods that use unlabelled images. edits: name -> fitted before, measured like a method.

        Raises:
            InvalidInputError: neither column, a column that is missing, methods without prompts and texts.
        """
        if self.labels is None and self.groups is None:
            raise InvalidInputError(
                f"expected labels= (classes), groups= (an attribute) or both; the features come with columns "
                f"{sorted(images.labels)}"
            )
        classes, attribute = (None if c is None else images.column(c) for c in (self.labels, self.groups))
        prompts = None if self.prompts is None else load_prompts(self.prompts)
        fitted = self._fitted(images, texts, prompts, reference, edits, progress)
        out = TaskResult(
            self._provenance(images, texts, prompts, fitted),
            details={name: one.details for name, one in fitted.items()},
        )
        advice = []
        with progress.step(self.name) as bar:
            if attribute is not None:
                bar.note(f"reading {self.groups}")
                advice.append(self._probes(out, images, attribute, fitted, self.groups or "", READERS))
            if classes is not None:
                bar.note(f"reading {self.labels}")
                self._probes(out, images, classes, fitted, self.labels or "", {"linear": "class_probe"})
                bar.note("groups")
                hidden = self._hidden(images, classes, texts, prompts)
                advice.append(self._groups(out, images, classes, attribute, hidden))
                bar.note("labels")
                advice.append(self._labels(out, wrong_labels(images.features, classes, self.folds, seed=self.seed)))
                bar.note("margins")
                self._margins(out, images, classes, head)
        out.provenance.description, out.provenance.settings["advice"] = " ".join(advice), advice
        return [out]

    def _fitted(
        self,
        images: Embeddings,
        texts: Texts | None,
        prompts: PromptSet | None,
        reference: Embeddings | None,
        edits: Mapping[str, Edit] | None,
        progress: Progress,
    ) -> dict[str, Fitted]:
        if texts is None or prompts is None:
            if list(self.methods) != [NONE]:
                raise InvalidInputError(
                    f"methods: {[str(m) for m in self.methods[1:]]} are fitted on texts; expected prompts= and a model "
                    "or text embeddings beside them"
                )
            return {NONE: self.fitted(None)} | {name: self.fitted(edit) for name, edit in (edits or {}).items()}
        self.check_images(images, texts, prompts.spurious[0])
        others, _ = disjoint(reference, images, progress)
        return self.fit(texts, [prompts], reference=others, edits=edits)

    def _provenance(
        self, images: Embeddings, texts: Texts | None, prompts: PromptSet | None, fitted: Mapping[str, Fitted]
    ) -> TaskProvenance:
        settings: dict[str, Any] = {
            "labels": self.labels,
            "groups": self.groups,
            "probes": "balanced accuracy out of sample: shrinkage discriminant, penalty chosen inside of the folds; "
            "nearest neighbour by cosine, at most 5,000 rows among 20,000",
            "folds": self.folds,
            "chance": {},
            "wrong labels": "ridge regression on one-hot targets out of fold, penalty 1",
        }
        title = " by ".join(filter(None, (self.labels, self.groups)))
        fields: dict[str, Any] = {"title": title, "description": "", "n": {"images": len(images)}}
        methods = {name: one.about for name, one in fitted.items()}
        if texts is not None and prompts is not None:
            return self.provenance(self.name, images, texts, [prompts], methods, settings=settings, **fields)
        about = images.about
        return TaskProvenance(
            task=self.name,
            model=str(about.get("model") or "unnamed model"),
            split=" ".join(str(about[key]) for key in ("data", "split") if about.get(key)) or "unnamed split",
            seeds=[self.seed],
            methods={name: dict(one) for name, one in methods.items()},
            data={"images": str(about["digest"])} if about.get("digest") else {},
            settings=settings,
            **fields,
        )

    # ---- the four questions ----------------------------------------------------------------------------------

    def _probes(
        self,
        out: TaskResult,
        images: Embeddings,
        column: Labels,
        fitted: Mapping[str, Fitted],
        name: str,
        metrics: Mapping[str, str],
    ) -> str:
        """Rows of one column for every method, and what they say of the attribute."""
        rows = images.unit
        how: dict[str, Any] = {"folds": self.folds, "permutations": self.permutations, "seed": self.seed}
        read = {method: readable(self.images(rows, one.edit).whole(), column, **how) for method, one in fitted.items()}
        for reader, metric in metrics.items():
            values = {method: one[reader].accuracy for method, one in read.items()}
            draws = {method: one[reader].draws(self.resamples, self.seed) for method, one in read.items()}
            out.add_draws(metric, values, draws, n={"images": len(read[NONE][reader].codes)}, subset=name)
            out.provenance.settings["chance"][f"{metric} of {name}"] = {
                method: round(one[reader].limit, 4) for method, one in read.items()
            }
        plain = read[NONE]
        text = (
            f"{name}: a linear reader names it in {plain['linear'].accuracy:.0%} of images that it did not see, the "
            f"nearest neighbour in {plain['neighbour'].accuracy:.0%} (chance at most {plain['linear'].limit:.0%})"
        )
        if plain["linear"].at_chance:  # whatever a method does then, it is not what took it out
            return f"{text}; there is nothing to remove."
        removed = [method for method, one in read.items() if method != NONE and one["linear"].at_chance]
        kept = [method for method, one in read.items() if method != NONE and not one["linear"].at_chance]
        if removed:
            text += f"; removed for a linear reader by {', '.join(removed)}"
        if kept:
            least = min(kept, key=lambda method: read[method]["linear"].accuracy)
            text += f"; lessened at most by {least} ({read[least]['linear'].accuracy:.0%}), not removed"
        elif not removed:
            text += "; try --methods with a prompt set"
        return text + "."

    def _hidden(
        self, images: Embeddings, classes: Labels, texts: Texts | None, prompts: PromptSet | None
    ) -> HiddenGroups | None:
        """Groups by the attribute's prompts where nobody labelled it."""
        if texts is None or prompts is None:
            return None
        by_value = prompts.by_value()
        rows = torch.stack([texts.embed(several).mean(0) for several in by_value.values()])
        return hidden_groups(images.features, classes, "texts", texts=rows, names=tuple(by_value))

    def _groups(
        self,
        out: TaskResult,
        images: Embeddings,
        classes: Labels,
        attribute: Labels | None,
        hidden: HiddenGroups | None,
    ) -> str:
        """Accuracy by group of a classifier that did not see the row; agreement of hidden groups with true ones."""
        if attribute is not None:
            groups, origin = cross(classes, attribute), f"by {self.groups}"
        elif hidden is not None:
            groups, origin = hidden.groups, "by the prompts' texts"
        else:
            hidden = hidden_groups(images.features, classes, "errors", folds=self.folds, seed=self.seed)
            wrong = sum(n for name, n in hidden.sizes.items() if name.endswith("/wrong"))
            return (
                f"{wrong:,} of {len(images):,} rows are misread by a classifier that did not see them: name a column "
                "of groups or a prompt set to learn whether they have something in common."
            )
        if hidden is not None and attribute is not None:
            for key, value in hidden.f1(groups).items():
                out.add("hidden_f1", NONE, value, n={"images": int(groups.known.sum())}, subset=f"by texts, {key}")
        known = classes.known & groups.known
        rows, codes = unit_rows(images.features)[torch.from_numpy(known)], classes.codes[known]
        values = np.unique(codes)
        codes = np.searchsorted(values, codes)
        parts = Folds.of(rows, fold_numbers(codes, self.folds, self.seed))
        right = parts.scores(codes, len(values), balanced=False, penalty=PENALTY).argmax(1).numpy() == codes
        shares = {}
        for code in np.unique(groups.codes[known]):
            mine = groups.codes[known] == code
            n, hits = int(mine.sum()), int(right[mine].sum())
            shares[groups.names[code]] = (hits / n, n)
            low, high = wilson_interval(hits, n)
            out.add("accuracy", NONE, hits / n, (low, high), n={"images": n}, subset=groups.names[code])
        counted = {name: one for name, one in shares.items() if one[1] >= FEW} or shares
        worst = min(counted, key=lambda name: counted[name][0])
        return (
            f"Worst group {origin}: {worst}, {shares[worst][1]:,} images, {shares[worst][0]:.0%} right where all are "
            f"{right.mean():.0%}: reweight it (baselines dfr or contrastive-adapter, with these groups) first."
        )

    def _labels(self, out: TaskResult, listed: pd.DataFrame) -> str:
        """How many labels another class fits better."""
        suspect = int((listed.confidence < 0).sum())
        low, high = wilson_interval(suspect, len(listed))
        out.add("suspect_labels", NONE, suspect / len(listed), (low, high), n={"images": len(listed)})
        return (
            f"{suspect:,} of {len(listed):,} labels fit another class better: look at the first of them, the least "
            "credible, by eye; rare rows and hard ones are among them."
        )

    def _margins(self, out: TaskResult, images: Embeddings, classes: Labels, head: Any) -> None:
        """Medians and quartiles of the margins of every class, the features' shape, and a plot."""
        known = classes.known
        rows = unit_rows(images.features)[torch.from_numpy(known)]
        codes = classes.codes[known]
        if head is None:
            values = np.unique(codes)
            codes = np.searchsorted(values, codes)
            names = tuple(classes.names[value] for value in values)
            head = Folds.of(rows, fold_numbers(codes, self.folds, self.seed)).head(codes, len(values), PENALTY)
        else:
            names = classes.names
        result = margins(head, rows, Labels(codes, names), seed=self.seed)
        for metric, values_ in _margin_kinds(result).items():
            for code, name in enumerate(names):
                mine = values_[codes == code]
                if len(mine):
                    low, middle, high = map(float, np.percentile(mine, (25, 50, 75)))
                    out.add(metric, NONE, middle, (low, high), n={"images": len(mine)}, subset=name)
        for code, name in enumerate(names):
            n = {"images": int((codes == code).sum())}
            out.add("k_variance", NONE, float(result.variance[code]), n=n, subset=name)
        shape = geometry(rows, Labels(codes, names), seed=self.seed)
        for metric in ("alignment", "uniformity", "within_variance", "effective_rank", "same_cosine", "other_cosine"):
            out.add(metric, NONE, getattr(shape, metric), n={"images": len(rows)})
        out.pictures["margins"] = (
            "Margins by class: 5 % to 95 % as a line, quartiles as a bar, the median as a tick.",
            _plot(result),
        )


def _margin_kinds(found: Margins) -> dict[str, np.ndarray]:
    kinds = {"margin": found.margin, "gn_margin": found.normalised}
    if (found.lipschitz * found.variance).any():  # else classes are points, and there is nothing to divide by
        kinds |= {"kv_margin": found.kv, "kv_gn_margin": found.kv_gn}
    return kinds


def _plot(found: Margins) -> Plot:
    """Distributions of the margins by class, one panel for each kind."""
    kinds, names = _margin_kinds(found), [for_matplotlib(name) for name in found.names]
    figure, axes = subplots(1, len(kinds), (12, 1.5 + 0.35 * len(found.names)))
    for axis, (name, values) in zip(axes, kinds.items(), strict=True):
        for y, _ in enumerate(found.names):
            mine = values[found.codes == y]
            if len(mine):
                least, low, middle, high, most = np.percentile(mine, QUANTILES)
                axis.plot([least, most], [y, y], color="C0", linewidth=1)
                axis.plot([low, high], [y, y], color="C0", linewidth=6, alpha=0.5, solid_capstyle="butt")
                axis.plot([middle], [y], marker="|", color="C1", markersize=12)
        axis.axvline(0, color="grey", linewidth=0.5)
        axis.set_title(name.replace("_", " "))
        axis.set_ylim(-0.5, len(found.names) - 0.5)
        axis.set_yticks(range(len(found.names)), names if axis is axes[0] else [""] * len(names))
    return figure


def diagnose(
    features: Any,
    labels: Any = None,
    *,
    groups: Any = None,
    texts: Any = None,
    head: Any = None,
    seed: int = 0,
    prompts: str | PromptSet | None = None,
    methods: str | Sequence[Any] = (),
    reference: Any = None,
    edits: Mapping[str, Edit] | None = None,
    folds: int = 5,
    progress: Progress | bool | None = None,
) -> Result:
    """Ask features what they hold: is an attribute readable, which group suffers, which labels are wrong, what margins.

    Args:
        features: (n, d) of one model, as an array, a tensor, or `vldebias.data.Embeddings`; compared at length 1.
        labels: (n,) classes, or the name of a column of the embeddings; None, NaN and "" are unknown.
        groups: (n,) values of an attribute, or the name of a column.
        texts: prompt -> embedding (d,), or the image-text model that the features are from; with `prompts`.
        head: classifier on features of length 1, see `vldebias.diagnostics.margins`; by default a ridge regression.
        prompts: the attribute's prompt set. methods: names or methods that are fitted on it and measured beside "none";
            reference: image features (m, d) for those that use some. edits: name -> an edit that was fitted before.
        folds: every row is read by classifiers of the others.

    Returns:
        A `Result` of one task, "diagnose"; the description of its provenance has sentences on what to do. "Removed"
        stands there of a method only where a linear reader is at chance, out of sample.

    Raises:
        InvalidInputError: neither labels nor groups, lengths that do not fit, or a class with fewer rows than folds.

    >>> diagnose(features, smiling, groups=gender).to_pandas()  # doctest: +SKIP
    """
    data = features if isinstance(features, Embeddings) else Embeddings.of(features)
    columns: dict[str, str] = {}
    for field, given in (("labels", labels), ("groups", groups)):
        if isinstance(given, str):
            columns[field] = given
        elif given is not None:
            data = Embeddings(data.features, data.ids, {**data.labels, field: Labels.of_array(given)}, (), data.about)
            columns[field] = field
    fields: dict[str, Any] = {"name": "diagnose", "title": "What the features hold", "data": IMAGES, "seed": seed}
    task = DiagnoseTask.build({**fields, **columns, "prompts": prompts, "methods": methods, "folds": folds})
    side = None if texts is None else texts if isinstance(texts, Texts) else Texts(texts)
    kept = None if reference is None else reference if isinstance(reference, Embeddings) else Embeddings.of(reference)
    shown = progress if isinstance(progress, Progress) else Progress.on() if progress else SILENT
    began = time.monotonic()
    with shown:
        parts = task.measure(data, side, head=head, reference=kept, edits=edits, progress=shown)
    return Result.of("diagnose", parts, seconds=round(time.monotonic() - began, 3))
