"""Probe features (n, d) for readable attributes, worst-off groups, wrong labels and narrow margins.

Two scikit-learn probes are scored out of fold and compared with permuted labels: a linear one shows what a projection
can remove, the nearest neighbour what a search can still find. Balanced accuracy is the mean over values of the share
of rows predicted right, so chance is 1 / |values| whatever their shares. Margins are those of chapter 8 of the thesis:
gradient-normalised they are distances to the decision boundary, and divided by the k-variance of the classes they
distinguish true labels from random ones (Figure 8-2).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.data import Embeddings, Labels, cross
from vldebias.errors import InvalidInputError, need
from vldebias.evaluation.images import IMAGES, ImageTask, Methods, disjoint, prompts_of
from vldebias.evaluation.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.evaluation.session import Session, Texts
from vldebias.evaluation.task import Prompts, register_task
from vldebias.methods import get_method
from vldebias.metrics import k_variance
from vldebias.metrics.bootstrap import wilson_interval
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.edit import Edit

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
BLOCK = 8192  # rows in float64 at once
FOLDS = 5
PERMUTATIONS = 100  # of labels, for chance
SEARCHED = 20_000  # rows among which neighbours are sought at most
FEW = 30  # rows of a group below which its accuracy is no reason for advice
READERS = {"linear": "linear_probe", "neighbour": "neighbour_probe"}


# ---- the questions, each as a function -----------------------------------------------------------------------


def known_rows(features: Any, labels: Any) -> tuple[Tensor, Codes, tuple[str, ...]]:
    """Return float32 rows of length 1 with a known label, their codes, and the names of the values that occur.

    Raises:
        InvalidInputError: not (n, d), not finite, other lengths, a value with fewer rows than folds or less than two.
    """
    rows, column = torch.as_tensor(features).detach().cpu(), Labels.of_array(labels)
    if rows.ndim != 2 or len(rows) != len(column):
        raise InvalidInputError(f"labels: expected {len(rows)}, one for each row of features, got {len(column)}")
    unit = torch.cat([normalize(block.float(), dim=1) for block in rows[torch.from_numpy(column.known)].split(BLOCK)])
    if not unit.isfinite().all():
        raise InvalidInputError(f"features: expected finite numbers, got NaN or infinity in {len(rows)} rows")
    values, codes, sizes = np.unique(column.codes[column.known], return_inverse=True, return_counts=True)
    if len(values) < 2 or sizes.min() < FOLDS:
        raise InvalidInputError(f"labels: expected two or more values of {FOLDS} rows or more, got {column.counts}")
    return unit, codes, tuple(column.names[value] for value in values)


def out_of_fold(model: Any, rows: Tensor, codes: Codes, targets: Any, seed: int) -> Any:
    """Return what a scikit-learn model predicts for each row when it is fitted on the other folds."""
    selection = need("sklearn.model_selection")
    folds = list(selection.StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(rows, codes))
    return selection.cross_val_predict(model, rows.numpy(), targets, cv=folds)


def ridge(rows: Tensor) -> Any:
    """Return ridge regression, for one-hot targets: scores are near 1 for the given class and 0 for others.

    The penalty is the mean variance of a column: a penalty selected on labels that may be wrong would fit their errors.
    """
    return need("sklearn.linear_model").Ridge(
        alpha=max(float(rows.double().var(0, correction=0).mean()) * len(rows), 1e-12)
    )


def class_scores(rows: Tensor, codes: Codes, seed: int) -> Tensor:
    """Return the scores (n, classes) of every row by a `ridge` classifier fitted on the other folds."""
    return torch.from_numpy(out_of_fold(ridge(rows), rows, codes, np.eye(codes.max() + 1)[codes], seed))


def balanced_accuracy(right: NDArray[np.bool_], codes: Codes) -> float:
    """Return the mean, over the values that occur, of the share of rows (n,) that are right."""
    sizes = np.bincount(codes)
    return float((np.bincount(codes, weights=right)[sizes > 0] / sizes[sizes > 0]).mean())


@dataclass(frozen=True, eq=False)
class Readability:
    """Hold a probe's out-of-fold result: rows predicted right (n,), their values (n,), accuracies at chance (b,)."""

    right: NDArray[np.bool_]
    codes: Codes
    chance: Floats

    @cached_property
    def accuracy(self) -> float:
        """Return the balanced accuracy."""
        return balanced_accuracy(self.right, self.codes)

    def draws(self, resamples: int, seed: int) -> Floats:
        """Return balanced accuracies (resamples,) of rows that were resampled within each value."""
        sizes = np.bincount(self.codes)
        shares = np.bincount(self.codes, weights=self.right) / sizes
        drawn = np.random.default_rng(seed).binomial(sizes, shares, (resamples, len(sizes)))
        return np.asarray((drawn / sizes).mean(1))

    @property
    def limit(self) -> float:
        """Return the balanced accuracy that permuted labels exceed in 2.5 % of cases (normal approximation)."""
        return float(self.chance.mean() + 1.96 * self.chance.std(ddof=1))

    @property
    def at_chance(self) -> bool:
        """Return whether the accuracy is no higher than permuted labels give."""
        return self.accuracy <= self.limit


def readable(features: Any, labels: Any, reader: str = "linear", *, seed: int = 0) -> Readability:
    """Return how well a probe predicts the labels (n,) of features (n, d) out of fold; unknown labels are left out.

    "linear" is scikit-learn's discriminant with equal priors and the shrinkage of Ledoit and Wolf; "neighbour" takes
    the value of the row with the largest cosine, among at most 20,000 rows. Raises: see `known_rows`.
    """
    rows, codes, names = known_rows(features, labels)
    rng = np.random.default_rng(seed)
    if reader == "linear":
        discriminant = need("sklearn.discriminant_analysis").LinearDiscriminantAnalysis
        model = discriminant(solver="lsqr", shrinkage="auto", priors=np.full(len(names), 1 / len(names)))
    else:
        some = np.sort(rng.permutation(len(codes))[:SEARCHED])
        rows, codes = rows[torch.from_numpy(some)], np.unique(codes[some], return_inverse=True)[1]
        model = need("sklearn.neighbors").KNeighborsClassifier(1, metric="cosine")
    named = out_of_fold(model, rows, codes, codes, seed)
    dealt = (rng.permutation(codes) for _ in range(PERMUTATIONS))
    return Readability(named == codes, codes, np.array([balanced_accuracy(named == one, one) for one in dealt]))


def wrong_labels(features: Any, labels: Any, *, seed: int = 0) -> pd.DataFrame:
    """Return every labelled row, the least credible label first: columns row, given, proposed, confidence.

    Each row is scored by ridge regression on one-hot targets that was fitted on the other folds; confidence is the
    score of the given label less the best other one, so below 0 another label fits better. Raises: see `known_rows`.
    """
    rows, codes, names = known_rows(features, labels)
    scores = class_scores(rows, codes, seed)
    frame = need("pandas").DataFrame(
        {
            "row": np.flatnonzero(Labels.of_array(labels).known),
            "given": [names[code] for code in codes],
            "proposed": [names[code] for code in scores.argmax(1).tolist()],
            "confidence": margin_of(scores, torch.from_numpy(codes))[0].numpy(),
        }
    )
    return frame.sort_values("confidence", kind="stable", ignore_index=True)


def margin_of(scores: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the score (n,) of the given class less the best other score, and the class of that, for scores (n, k)."""
    own = scores.gather(1, codes[:, None])[:, 0]
    best = scores.scatter(1, codes[:, None], -torch.inf).max(1)
    return own - best.values, best.indices


def margins(head: Any, features: Any, codes: Codes, *, seed: int = 0) -> tuple[dict[str, Floats], Floats]:
    """Return the margins (n,) of a linear classifier by metric, and the k-variance (k,) of the classes.

    "margin" is eq. 8.1; "gn_margin" the margin over the length of its gradient by the features, plus 1e-6 as in section
    8.3.2; "kv_margin" is the margin over E_c[Lip_c Var_c], with the largest gradient of a class as Lip_c, and
    "kv_gn_margin" the normalised one over E_c[Var_c] (section 8.4). The last two are missing where classes are points.

    Args:
        head: (weight (k, d), bias (k,)) or nn.Linear. features: (n, d) as the head takes them. codes: (n,) classes.

    Raises:
        InvalidInputError: shapes that do not fit, a class that the head does not have or of one row.
    """
    rows, which = torch.as_tensor(features).detach().cpu(), torch.as_tensor(codes)
    if isinstance(head, nn.Linear):
        head = head.weight, torch.zeros(head.out_features) if head.bias is None else head.bias
    weight, bias = (torch.as_tensor(part).detach().cpu().double() for part in head)
    sizes = np.bincount(codes, minlength=len(weight))
    if weight.shape != (len(sizes), rows.shape[1]) or bias.shape != weight.shape[:1] or sizes[sizes > 0].min() < 2:
        raise InvalidInputError(
            f"head: expected weight (k, {rows.shape[1]}) and bias (k,) of the classes, each with two rows or more (one "
            f"has no k-variance), got {tuple(weight.shape)}, {tuple(bias.shape)} and {sizes.tolist()} rows"
        )
    scores = torch.cat([block.double() @ weight.T for block in rows.split(BLOCK)]) + bias
    margin, rival = margin_of(scores, which)
    slope = torch.cdist(weight, weight)[which, rival].numpy()
    variance, steepest = np.zeros(len(sizes)), np.zeros(len(sizes))
    for code in np.flatnonzero(sizes):
        mine = codes == code
        variance[code] = k_variance(rows[torch.from_numpy(mine)].float(), seed=seed)
        steepest[code] = slope[mine].max()
    shares = sizes / len(codes)
    found = {"margin": margin.numpy(), "gn_margin": margin.numpy() / (slope + 1e-6)}
    if (steepest * variance).any():
        found["kv_margin"] = found["margin"] / float(shares @ (steepest * variance))
        found["kv_gn_margin"] = found["gn_margin"] / float(shares @ variance)
    return found, variance


def hidden_groups(features: Any, labels: Any, texts: Any, names: Sequence[str]) -> Labels:
    """Return the group "class/part" of every row: its class and the name of the nearest text (m, d)."""
    column, rows = Labels.of_array(labels), torch.as_tensor(features).float()
    part = (rows @ normalize(torch.as_tensor(texts).float(), dim=1).T).argmax(1).numpy()
    codes = np.where(column.known, column.codes * len(names) + part, -1)
    return Labels(codes, tuple(f"{name}/{one}" for name in column.names for one in names))


# ---- all of them, as a task ----------------------------------------------------------------------------------


@register_task
class DiagnoseTask(ImageTask):
    """Measure probes, hidden groups, wrong labels and margins of image features; gives one block.

    labels: column of the classes. groups: column of an attribute; probes predict its values, and its combinations
        with the classes are the groups. One of the two columns is enough.
    prompts: the attribute's prompt set, for methods that are fitted on texts, and for hidden groups where `groups` is
        not given. side: which features methods change, here the images unless another one is named.

    Rows: `linear_probe` and `neighbour_probe` of the attribute for every method (facts on chance in the settings),
    `class_probe` of the classes; `accuracy` of every group by a classifier that did not see the row;
    `suspect_labels`; medians of margins with their quartiles.
    """

    task: Literal["diagnose"] = "diagnose"
    labels: str | None = None
    groups: str | None = None
    prompts: Prompts | None = None
    methods: Methods = (NONE,)
    side: Literal["text", "image", "both"] | None = "image"

    def texts(self) -> tuple[str, ...]:
        """Return the prompts that methods are fitted on."""
        return () if self.prompts is None else prompts_of([self.prompts])

    def inputs(self, session: Session) -> dict[str, Any]:
        """Return the features and, where there is a prompt set, the texts of the same model."""
        if self.prompts is not None:
            return super().inputs(session)
        return {"images": session.embedded(self.data), "progress": session.progress}

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
        """Measure probes, groups, labels and margins of image features.

        Args:
            images: features (n, d) with the columns `labels` and `groups`.
            texts: the text side of the same model; with `prompts`, what methods are fitted on.
            head: linear classifier of `margins`, on features of length 1; by default ridge regression on all rows.
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
        prompts = None if self.prompts is None or texts is None else load_prompts(self.prompts)
        by_value: dict[str, Tensor] = {}
        if texts is None or prompts is None:
            if named := [name for one in self.methods if (name := get_method(one).name) != NONE]:
                raise InvalidInputError(
                    f"methods: {', '.join(named)} are fitted on texts; expected prompts= and a model "
                    "or text embeddings beside them"
                )
            fitted = {NONE: self.fitted(None)} | {name: self.fitted(edit) for name, edit in (edits or {}).items()}
        else:
            self.check_images(images, texts, prompts.spurious[0])
            fitted = self.fit(texts, [prompts], reference=disjoint(reference, images, progress)[0], edits=edits)
            by_value = {value: texts.embed(own).mean(0) for value, own in prompts.by_value().items()}
        about, chance, advice = images.about, dict[str, Any](), list[str]()
        provenance = TaskProvenance(
            task=self.name,
            title=" by ".join(filter(None, (self.labels, self.groups))),
            description="",
            model=str(about.get("model") or (texts and texts.host.model_id) or "unnamed model"),
            fingerprint=None if texts is None else texts.fingerprint,
            prompts="" if prompts is None else prompts.name,
            prompts_hash="" if prompts is None else prompts.hash,
            split=" ".join(str(about[key]) for key in ("data", "split") if about.get(key)) or "unnamed split",
            seeds=[self.seed],
            n={"images": len(images)},
            methods={name: dict(one.about) for name, one in fitted.items()},
            data={"images": str(about["digest"])} if about.get("digest") else {},
            settings={
                "labels": self.labels,
                "groups": self.groups,
                "probes": "balanced accuracy out of five folds: scikit-learn's discriminant, equal priors, Ledoit-Wolf "
                f"shrinkage; nearest neighbour by cosine, among at most {SEARCHED:,} rows",
                "chance": chance,
                "wrong labels": "ridge regression on one-hot targets out of fold, penalty the variance of a column",
            },
        )
        out = TaskResult(provenance, details={name: one.details for name, one in fitted.items()})
        with progress.step(self.name) as bar:
            rows = {method: self.images(images.unit, one.edit).whole() for method, one in fitted.items()}
            if attribute is not None:
                bar.note(f"reading {self.groups}")
                read = {
                    reader: self._probe(out, metric, rows, attribute, self.groups or "", reader, chance)
                    for reader, metric in READERS.items()
                }
                advice.append(_of_probes(self.groups or "", read["linear"], read["neighbour"][NONE]))
            if classes is not None:
                bar.note(f"reading {self.labels}")
                self._probe(out, "class_probe", rows, classes, self.labels or "", "linear", chance)
                bar.note("groups, labels, margins")
                groups, origin = (None, "") if attribute is None else (cross(classes, attribute), f"by {self.groups}")
                if attribute is None and by_value:
                    groups = hidden_groups(rows[NONE], classes, torch.stack(list(by_value.values())), tuple(by_value))
                    origin = "by the prompts' texts"
                advice += self._classes(out, images, classes, groups, origin, head)
        provenance.description, provenance.settings["advice"] = " ".join(advice), advice
        return [out]

    def _probe(
        self, out: TaskResult, metric: str, rows: Mapping[str, Any], column: Labels, name: str, reader: str,
        chance: dict[str, Any],
    ) -> dict[str, Readability]:  # fmt: skip
        """Add a row of one column and one reader for every method, and to `chance` what permuted labels give."""
        read = {method: readable(of, column, reader, seed=self.seed) for method, of in rows.items()}
        values = {method: one.accuracy for method, one in read.items()}
        draws = {method: one.draws(self.resamples, self.seed) for method, one in read.items()}
        out.add_draws(metric, values, draws, n={"images": len(read[NONE].codes)}, subset=name)
        chance[f"{metric} of {name}"] = {method: round(one.limit, 4) for method, one in read.items()}
        return read

    def _classes(
        self, out: TaskResult, images: Embeddings, classes: Labels, groups: Labels | None, origin: str, head: Any
    ) -> list[str]:
        """Add accuracy by group, suspect labels and margins, of classifiers that did not see the row; return advice."""
        rows, codes, names = known_rows(images.features, classes)
        scores, known = class_scores(rows, codes, self.seed), classes.known
        right, advice = scores.argmax(1).numpy() == codes, list[str]()
        if groups is None:
            advice.append(
                f"{(~right).sum():,} of {len(images):,} rows are misread by a classifier that did not see them: name a "
                "column of groups or a prompt set to learn whether they have something in common."
            )
        else:
            of, shares = groups.codes[known], list[tuple[float, int, str]]()
            for code in np.unique(of[of >= 0]):
                n, hits, subset = int((of == code).sum()), int(right[of == code].sum()), groups.names[code]
                out.add("accuracy", NONE, hits / n, wilson_interval(hits, n), n={"images": n}, subset=subset)
                shares += [(hits / n, n, subset)] if n >= FEW else []
            for share, n, worst in sorted(shares)[:1]:
                advice.append(
                    f"Worst group {origin}: {worst}, {n:,} images, {share:.0%} right where all are "
                    f"{right[of >= 0].mean():.0%}: reweight it (baseline dfr-sub, with these groups) first."
                )
        suspect, n = int((margin_of(scores, torch.from_numpy(codes))[0] < 0).sum()), len(codes)
        out.add("suspect_labels", NONE, suspect / n, wilson_interval(suspect, n), n={"images": n})
        if head is None:
            fitted = ridge(rows).fit(rows.double().numpy(), np.eye(len(names))[codes])
            head = (fitted.coef_, fitted.intercept_)
        else:  # its classes are all that the column knows, whether they occur or not
            codes, names = classes.codes[known], classes.names
        found, variance = margins(head, rows, codes, seed=self.seed)
        for metric, values in found.items():
            for code in np.unique(codes):
                low, middle, high = map(float, np.percentile(values[codes == code], (25, 50, 75)))
                n_rows = {"images": int((codes == code).sum())}
                out.add(metric, NONE, middle, (low, high), n=n_rows, subset=names[code])
        for code, name in enumerate(names):
            out.add("k_variance", NONE, float(variance[code]), n={"images": int((codes == code).sum())}, subset=name)
        return [
            *advice,
            f"{suspect:,} of {n:,} labels fit another class better: look at the first of them, the least credible, by "
            "eye; rare rows and hard ones are among them.",
        ]


def _of_probes(name: str, linear: Mapping[str, Readability], neighbour: Readability) -> str:
    """Return what the probes of an attribute say."""
    plain, others = linear[NONE], {method: one for method, one in linear.items() if method != NONE}
    text = (
        f"{name}: a linear reader names it in {plain.accuracy:.0%} of images that it did not see, the nearest "
        f"neighbour in {neighbour.accuracy:.0%} (chance at most {plain.limit:.0%})"
    )
    if plain.at_chance:  # whatever a method does then, it is not what took it out
        return f"{text}; there is nothing to remove."
    if removed := [method for method, one in others.items() if one.at_chance]:
        text += f"; removed for a linear reader by {', '.join(removed)}"
    if kept := {method: one.accuracy for method, one in others.items() if not one.at_chance}:
        least = min(kept, key=lambda method: kept[method])
        text += f"; lessened at most by {least} ({kept[least]:.0%}), not removed"
    return f"{text}." if others else f"{text}; try --methods with a prompt set."


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
) -> Result:
    """Probe embeddings for attribute leakage, worst-off groups, label errors and margins.

    Args:
        features: (n, d) of one model, as an array, a tensor, or `vldebias.data.Embeddings`; compared at length 1.
        labels: (n,) classes, or the name of a column of the embeddings; None, NaN and "" are unknown.
        groups: (n,) values of an attribute, or the name of a column.
        texts: prompt -> embedding (d,), or the image-text model that the features are from; with `prompts`.
        head: linear classifier on features of length 1, (weight (k, d), bias (k,)) or nn.Linear, whose margins are
            measured; by default a ridge regression.
        prompts: the attribute's prompt set. methods: names or methods, fitted on it and compared with "none";
            reference: image features (m, d) for those that use some.

    Returns:
        A `Result` of one task, "diagnose"; the description of its provenance has sentences on what to do. It
        says "removed" of a method only if a linear probe is at chance, out of sample.

    Raises:
        InvalidInputError: neither labels nor groups, lengths that do not fit, or a class with fewer than five rows.

    >>> diagnose(features, smiling, groups=gender).to_pandas()  # doctest: +SKIP
    """
    data, began = features if isinstance(features, Embeddings) else Embeddings.of(features), time.monotonic()
    columns: dict[str, str] = {}
    for field, given in (("labels", labels), ("groups", groups)):
        if isinstance(given, str):
            columns[field] = given
        elif given is not None:
            data = Embeddings(data.features, data.ids, {**data.labels, field: Labels.of_array(given)}, (), data.about)
            columns[field] = field
    fields: dict[str, Any] = {"name": "diagnose", "title": "What the features hold", "data": IMAGES, "seed": seed}
    task = DiagnoseTask.build({**fields, **columns, "prompts": prompts, "methods": methods})
    side = texts if texts is None or isinstance(texts, Texts) else Texts(texts)
    kept = reference if reference is None or isinstance(reference, Embeddings) else Embeddings.of(reference)
    parts = task.measure(data, side, head=head, reference=kept)
    return Result.of("diagnose", parts, seconds=round(time.monotonic() - began, 3))
