"""Probe features (n, d): is an attribute readable, which group suffers, which labels are wrong, how wide are margins.

Two readers tell what is readable, out of sample and beside what permuted labels give. A linear one says what a
projection can remove; the nearest neighbour says what a search still knows. Balanced accuracy is the mean over values
of the share of rows that is read right, so chance is 1 / |values| whatever their shares. Margins are those of chapter 8
of the thesis: gradient-normalised they are distances to the border, and divided by the k-variance of the classes they
tell true labels from random ones (Figure 8-2).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.data import Embeddings, Labels, cross
from vldebias.errors import InvalidInputError, need
from vldebias.evaluation.images import IMAGES, Fitted, ImageTask, Methods, disjoint, names_of, prompts_of
from vldebias.evaluation.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.evaluation.task import Count, Prompts, Session, Texts, register_task
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
PERMUTATIONS = 100  # of labels, for chance
ASKED, SEARCHED = 5_000, 20_000  # rows that look for their nearest neighbour at most, and rows among which
FEW = 30  # rows of a group below which its accuracy is no reason for advice
READERS = {"linear": "linear_probe", "neighbour": "neighbour_probe"}


# ---- classifiers that never judge a row that they were fitted on ---------------------------------------------


def unit_rows(features: object) -> Tensor:
    """Return finite rows (n, d) of length 1 in float32; a row of zeros stays one.

    Raises:
        InvalidInputError: not (n, d), or not finite.
    """
    rows = torch.as_tensor(features).detach().cpu()
    if rows.ndim != 2 or not len(rows):
        raise InvalidInputError(f"features: expected (n, d) with n > 0, got shape {tuple(rows.shape)}")
    unit = torch.cat([normalize(block.float(), dim=1) for block in rows.split(BLOCK)])
    if not unit.isfinite().all():
        bad = int((~unit.isfinite().all(1)).nonzero()[0])
        raise InvalidInputError(f"features: expected finite numbers, row {bad} has NaN or infinity")
    return unit


def known_rows(features: Any, labels: Any) -> tuple[Tensor, Codes, tuple[str, ...]]:
    """Return unit rows with a known label, their codes, and the names of the values that occur; `labels` of n rows.

    Raises:
        InvalidInputError: other lengths, or fewer than two values that occur.
    """
    rows, column = unit_rows(features), Labels.of_array(labels)
    if len(rows) != len(column):
        raise InvalidInputError(f"labels: expected {len(rows)}, one for each row of features, got {len(column)}")
    values, codes = np.unique(column.codes[column.known], return_inverse=True)
    if len(values) < 2:
        raise InvalidInputError(f"labels: expected two or more values, got {list(column.names)}")
    return rows[torch.from_numpy(column.known)], codes, tuple(column.names[value] for value in values)


def fold_numbers(codes: Codes, folds: int, seed: int) -> Codes:
    """Return a fold 0 .. folds - 1 of every row (n,), every class dealt evenly.

    Raises:
        InvalidInputError: folds below 2, or a class with fewer rows than that.
    """
    least = np.bincount(codes).min()
    if folds < 2 or least < folds:
        raise InvalidInputError(f"folds: expected 2 .. {least}, rows of the smallest class, got {folds}")
    rng, number = np.random.default_rng(seed), np.empty(len(codes), dtype=np.int64)
    for code in range(codes.max() + 1):
        rows = rng.permutation(np.flatnonzero(codes == code))
        number[rows] = (np.arange(len(rows)) + rng.integers(folds)) % folds
    return number


def ridge(rows: Tensor, codes: Codes, classes: int) -> tuple[Tensor, Tensor]:
    """Return weight (classes, d) and bias (classes,) of ridge regression on one-hot targets.

    Scores are near 1 for the given class and 0 for others. The penalty is the mean variance of a column: one that is
    chosen on labels that may be wrong would learn them.
    """
    x = rows.double().numpy()
    alpha = max(float(((x - x.mean(0)) ** 2).sum()) / x.shape[1], 1e-12)
    solved = need("sklearn.linear_model").Ridge(alpha=alpha).fit(x, np.eye(classes)[codes])
    return torch.from_numpy(solved.coef_), torch.from_numpy(solved.intercept_)


def out_of_fold(rows: Tensor, codes: Codes, classes: int, folds: int, seed: int) -> Tensor:
    """Return scores (n, classes) of every row by a `ridge` classifier that was fitted on the other folds."""
    number, scores = torch.from_numpy(fold_numbers(codes, folds, seed)), torch.empty(len(rows), classes)
    for fold in range(folds):
        weight, bias = ridge(rows[number != fold], codes[number != fold], classes)
        scores[number == fold] = (rows[number == fold].double() @ weight.T + bias).float()
    return scores


def balanced_accuracy(right: NDArray[np.bool_], codes: Codes) -> float:
    """Return the mean over the values that occur of the share of rows (n,) that is right."""
    sizes = np.bincount(codes)
    return float((np.bincount(codes, weights=right)[sizes > 0] / sizes[sizes > 0]).mean())


# ---- the questions, each as a function -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Readability:
    """How well a reader names a value, out of sample.

    Attributes:
        right: (n,) which rows it names right. codes: (n,) their values. chance: (b,) balanced accuracies of what it
            names against permuted labels.
    """

    right: NDArray[np.bool_]
    codes: Codes
    chance: Floats

    @cached_property
    def accuracy(self) -> float:
        """Balanced accuracy."""
        return balanced_accuracy(self.right, self.codes)

    def draws(self, resamples: int, seed: int) -> Floats:
        """Return balanced accuracies (resamples,) of rows that were resampled within each value."""
        sizes = np.bincount(self.codes)
        shares = np.bincount(self.codes, weights=self.right) / sizes
        drawn = np.random.default_rng(seed).binomial(sizes, shares, (resamples, len(sizes)))
        return np.asarray((drawn / sizes).mean(1))

    @property
    def limit(self) -> float:
        """The balanced accuracy that permuted labels exceed in 2.5 % of cases (normal, from mean and deviation)."""
        return float(self.chance.mean() + 1.96 * self.chance.std(ddof=1))

    @property
    def at_chance(self) -> bool:
        """Whether nothing was read: the figure is one that permuted labels give."""
        return self.accuracy <= self.limit


def readable(features: Any, labels: Any, *, folds: int = 5, seed: int = 0) -> dict[str, Readability]:
    """Return how well a "linear" reader and the nearest "neighbour" name the labels of features, out of sample.

    The linear reader is scikit-learn's discriminant with equal priors and the shrinkage of Ledoit and Wolf. The
    neighbour is the one with the largest cosine other than the row itself, of at most 5,000 rows sampled among 20,000.

    Args:
        features: (n, d), any length of rows; compared at length 1.
        labels: (n,) values; unknown ones are left out.
        folds: every row is read by a reader of the others.

    Raises:
        InvalidInputError: shapes that do not fit, fewer than two values, or a value with fewer rows than folds.
    """
    rows, codes, names = known_rows(features, labels)
    number, rng, x = fold_numbers(codes, folds, seed), np.random.default_rng(seed), rows.numpy()
    discriminant = need("sklearn.discriminant_analysis").LinearDiscriminantAnalysis
    linear = discriminant(solver="lsqr", shrinkage="auto", priors=np.full(len(names), 1 / len(names)))
    named = np.empty_like(codes)
    for fold in range(folds):
        named[number == fold] = linear.fit(x[number != fold], codes[number != fold]).predict(x[number == fold])
    asked = np.sort(rng.permutation(len(codes))[:ASKED])
    nearest = _nearest(rows, asked, np.sort(rng.permutation(len(codes))[:SEARCHED]))

    def read(said: Codes, truth: Codes) -> Readability:
        dealt = (rng.permutation(truth) for _ in range(PERMUTATIONS))
        return Readability(said == truth, truth, np.array([balanced_accuracy(said == one, one) for one in dealt]))

    return {"linear": read(named, codes), "neighbour": read(codes[nearest], codes[asked])}


def _nearest(rows: Tensor, asked: Codes, among: Codes) -> Codes:
    """For each row that is asked, the row of `among` with the largest cosine, itself left out."""
    gallery, nearest = rows[torch.from_numpy(among)], []
    for some in np.array_split(asked, -(-len(asked) // 1024)):
        cosines = rows[torch.from_numpy(some)] @ gallery.T
        cosines[torch.from_numpy(some[:, None] == among)] = -torch.inf
        nearest.append(among[cosines.argmax(1).numpy()])
    return np.concatenate(nearest)


def wrong_labels(features: Any, labels: Any, folds: int = 5, *, seed: int = 0) -> pd.DataFrame:
    """Return every labelled row, the least credible label first: columns row, given, proposed, confidence.

    Each row is scored by ridge regression on one-hot targets that was fitted on the other folds; confidence is the
    score of the given label less the best other one, so below 0 another label fits better.

    Args:
        features: (n, d). labels: (n,), unknown ones are left out.

    Raises:
        InvalidInputError: shapes that do not fit, fewer than two classes, or a class with fewer rows than folds.
    """
    rows, codes, names = known_rows(features, labels)
    scores = out_of_fold(rows, codes, len(names), folds, seed)
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
    """Return the score (n,) of the given class less the best other one of scores (n, k), and which that is."""
    own = scores.gather(1, codes[:, None])[:, 0]
    best = scores.scatter(1, codes[:, None], -torch.inf).max(1)
    return own - best.values, best.indices


def margins(head: Any, features: Any, codes: Codes, *, seed: int = 0) -> tuple[dict[str, Floats], Floats]:
    """Return margins (n,) of rows under a linear classifier by metric, and the k-variance (k,) of the classes.

    "margin" is eq. 8.1; "gn_margin" the margin over the length of its gradient by the features, plus 1e-6 as in section
    8.3.2; "kv_margin" is the margin over E_c[Lip_c Var_c], with the largest gradient of a class as Lip_c, and
    "kv_gn_margin" the normalised one over E_c[Var_c] (section 8.4). The last two are missing where classes are points.

    Args:
        head: (weight (k, d), bias (k,)) or nn.Linear. features: (n, d) as the head takes them. codes: (n,) classes.

    Raises:
        InvalidInputError: shapes that do not fit, a class that the head does not have or of one row.
    """
    rows, which = torch.as_tensor(features).detach().cpu(), torch.as_tensor(codes)
    parts = (head.weight, head.bias) if isinstance(head, nn.Linear) else head
    if not isinstance(parts, (tuple, list)) or len(parts) != 2:
        raise InvalidInputError(f"head: expected (weight, bias) or nn.Linear, got {head!r}")
    weight = torch.as_tensor(parts[0]).detach().cpu().double()
    bias = torch.zeros(len(weight)) if parts[1] is None else torch.as_tensor(parts[1]).detach().cpu()
    if weight.ndim != 2 or weight.shape[1] != rows.shape[1] or bias.shape != weight.shape[:1]:
        raise InvalidInputError(
            f"head: expected weight (k, {rows.shape[1]}) and bias (k,), got {tuple(weight.shape)}, {tuple(bias.shape)}"
        )
    sizes = np.bincount(codes, minlength=len(weight))
    if len(sizes) > len(weight) or sizes[sizes > 0].min() < 2:
        raise InvalidInputError(
            f"labels: expected classes 0 .. {len(weight) - 1} of the head, each with two rows or more (one has no "
            f"k-variance), got {sizes.tolist()}"
        )
    scores = torch.cat([block.double() @ weight.T for block in rows.split(BLOCK)]) + bias.double()
    margin, rival = margin_of(scores, which)
    slope = torch.cdist(weight, weight)[which, rival].numpy()
    there = [(code, codes == code) for code in np.flatnonzero(sizes)]
    variance, steepest = np.zeros(len(sizes)), np.zeros(len(sizes))
    for code, mine in there:
        variance[code] = k_variance(rows[torch.from_numpy(mine)].float(), seed=seed)
        steepest[code] = slope[mine].max()
    shares = sizes / len(codes)
    found = {"margin": margin.numpy(), "gn_margin": margin.numpy() / (slope + 1e-6)}
    if (steepest * variance).any():
        found["kv_margin"] = found["margin"] / float(shares @ (steepest * variance))
        found["kv_gn_margin"] = found["gn_margin"] / float(shares @ variance)
    return found, variance


def hidden_groups(features: Any, labels: Any, texts: Any, names: Sequence[str]) -> Labels:
    """Return groups "class/part" of every row: its class and the nearest text (m, d), by `names`."""
    column = Labels.of_array(labels)
    part = (unit_rows(features) @ unit_rows(texts).T).argmax(1).numpy()
    codes = np.where(column.known, column.codes * len(names) + part, -1)
    return Labels(codes, tuple(f"{name}/{one}" for name in column.names for one in names))


# ---- all of them, as a task ----------------------------------------------------------------------------------


@register_task
class DiagnoseTask(ImageTask):
    """Probes, hidden groups, wrong labels and margins of image features; one block.

    labels: column of the classes. groups: column of an attribute, whose values are what probes read and whose crossing
        with the classes gives the groups; one of both is enough.
    prompts: the attribute's prompt set, for methods that are fitted on texts, and for hidden groups where `groups` is
        not given. side: which features methods change, here the images unless another one is named.
    folds: of the probes, see `readable`.

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
    folds: Annotated[Count, Field(ge=2)] = 5

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
        details = {name: one.details for name, one in fitted.items()}
        out, advice = TaskResult(self._provenance(images, texts, prompts, fitted), details=details), []
        with progress.step(self.name) as bar:
            if attribute is not None:
                bar.note(f"reading {self.groups}")
                advice.append(self._probes(out, images, attribute, fitted, self.groups or "", READERS))
            if classes is not None:
                bar.note(f"reading {self.labels}")
                self._probes(out, images, classes, fitted, self.labels or "", {"linear": "class_probe"})
                bar.note("groups, labels, margins")
                hidden = None
                if texts is not None and prompts is not None:
                    by_value = prompts.by_value()
                    rows = torch.stack([texts.embed(several).mean(0) for several in by_value.values()])
                    hidden = hidden_groups(images.features, classes, rows, tuple(by_value))
                advice += self._classes(out, images, classes, attribute, hidden, head)
        out.provenance.description, out.provenance.settings["advice"] = " ".join(advice), advice
        return [out]

    def _provenance(
        self, images: Embeddings, texts: Texts | None, prompts: PromptSet | None, fitted: Mapping[str, Fitted]
    ) -> TaskProvenance:
        about, known = images.about, dict[str, Any]()
        if texts is not None and prompts is not None:
            known |= {"fingerprint": texts.fingerprint, "prompts": prompts.name, "prompts_hash": prompts.hash}
        return TaskProvenance(
            task=self.name,
            title=" by ".join(filter(None, (self.labels, self.groups))),
            description="",
            model=str(about.get("model") or (texts and texts.host.model_id) or "unnamed model"),
            split=" ".join(str(about[key]) for key in ("data", "split") if about.get(key)) or "unnamed split",
            seeds=[self.seed],
            n={"images": len(images)},
            methods={name: dict(one.about) for name, one in fitted.items()},
            data={"images": str(about["digest"])} if about.get("digest") else {},
            settings={
                "labels": self.labels,
                "groups": self.groups,
                "probes": "balanced accuracy out of sample: scikit-learn's discriminant, equal priors, Ledoit-Wolf "
                f"shrinkage; nearest neighbour by cosine, at most {ASKED:,} rows among {SEARCHED:,}",
                "folds": self.folds,
                "chance": {},
                "wrong labels": "ridge regression on one-hot targets out of fold, penalty 1",
            },
            **known,
        )

    def _probes(
        self,
        out: TaskResult,
        images: Embeddings,
        column: Labels,
        fitted: Mapping[str, Fitted],
        name: str,
        metrics: Mapping[str, str],
    ) -> str:
        """Add rows of one column for every method; return what they say of the attribute."""
        rows = {method: self.images(images.unit, one.edit).whole() for method, one in fitted.items()}
        read = {method: readable(of, column, folds=self.folds, seed=self.seed) for method, of in rows.items()}
        for reader, metric in metrics.items():
            values = {method: one[reader].accuracy for method, one in read.items()}
            draws = {method: one[reader].draws(self.resamples, self.seed) for method, one in read.items()}
            out.add_draws(metric, values, draws, n={"images": len(read[NONE][reader].codes)}, subset=name)
            limits = {method: round(one[reader].limit, 4) for method, one in read.items()}
            out.provenance.settings["chance"][f"{metric} of {name}"] = limits
        plain, others = read[NONE], {method: one["linear"] for method, one in read.items() if method != NONE}
        text = (
            f"{name}: a linear reader names it in {plain['linear'].accuracy:.0%} of images that it did not see, the "
            f"nearest neighbour in {plain['neighbour'].accuracy:.0%} (chance at most {plain['linear'].limit:.0%})"
        )
        if plain["linear"].at_chance:  # whatever a method does then, it is not what took it out
            return f"{text}; there is nothing to remove."
        if removed := [method for method, one in others.items() if one.at_chance]:
            text += f"; removed for a linear reader by {', '.join(removed)}"
        if kept := {method: one.accuracy for method, one in others.items() if not one.at_chance}:
            least = min(kept, key=lambda method: kept[method])
            text += f"; lessened at most by {least} ({kept[least]:.0%}), not removed"
        return f"{text}." if others else f"{text}; try --methods with a prompt set."

    def _classes(
        self,
        out: TaskResult,
        images: Embeddings,
        classes: Labels,
        attribute: Labels | None,
        hidden: Labels | None,
        head: Any,
    ) -> list[str]:
        """Add accuracy by group, suspect labels and margins, of classifiers that did not see the row; return advice."""
        rows, codes, names = known_rows(images.features, classes)
        scores, known = out_of_fold(rows, codes, len(names), self.folds, self.seed), classes.known
        right, advice = scores.argmax(1).numpy() == codes, ""
        groups = hidden if attribute is None else cross(classes, attribute)
        if groups is None:
            advice = (
                f"{(~right).sum():,} of {len(images):,} rows are misread by a classifier that did not see them: name a "
                "column of groups or a prompt set to learn whether they have something in common."
            )
        else:
            of, shares = groups.codes[known], {}
            for code in np.unique(of[of >= 0]):
                n, hits = int((of == code).sum()), int(right[of == code].sum())
                shares[groups.names[code]] = (hits / n, n)
                subset = groups.names[code]
                out.add("accuracy", NONE, hits / n, wilson_interval(hits, n), n={"images": n}, subset=subset)
            counted = {name: one for name, one in shares.items() if one[1] >= FEW} or shares
            worst = min(counted, key=lambda name: counted[name][0])
            origin = "by the prompts' texts" if attribute is None else f"by {self.groups}"
            advice = (
                f"Worst group {origin}: {worst}, "
                f"{shares[worst][1]:,} images, {shares[worst][0]:.0%} right where all are {right[of >= 0].mean():.0%}: "
                "reweight it (baselines dfr or contrastive-adapter, with these groups) first."
            )
        suspect, n = int((margin_of(scores, torch.from_numpy(codes))[0] < 0).sum()), len(codes)
        out.add("suspect_labels", NONE, suspect / n, wilson_interval(suspect, n), n={"images": n})
        if head is None:
            head = ridge(rows, codes, len(names))
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
            advice,
            f"{suspect:,} of {n:,} labels fit another class better: look at the first of them, the least credible, by "
            "eye; rare rows and hard ones are among them.",
        ]


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
    """Probe embeddings for attribute leakage, worst-off groups, label errors and margins.

    Args:
        features: (n, d) of one model, as an array, a tensor, or `vldebias.data.Embeddings`; compared at length 1.
        labels: (n,) classes, or the name of a column of the embeddings; None, NaN and "" are unknown.
        groups: (n,) values of an attribute, or the name of a column.
        texts: prompt -> embedding (d,), or the image-text model that the features are from; with `prompts`.
        head: linear classifier on features of length 1, (weight (k, d), bias (k,)) or nn.Linear, whose margins are
            measured; by default a ridge regression.
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
    began = time.monotonic()
    with progress if isinstance(progress, Progress) else Progress.on() if progress else SILENT as shown:
        parts = task.measure(data, side, head=head, reference=kept, edits=edits, progress=shown or SILENT)
    return Result.of("diagnose", parts, seconds=round(time.monotonic() - began, 3))
