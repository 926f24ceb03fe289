"""Probe features (n, d) for attribute leakage, worst-off groups and label errors.

Two scikit-learn probes are cross-validated and compared with permuted labels. The linear probe
shows what a projection can remove, and the nearest-neighbour probe what a search can still find.
Balanced accuracy is the share of correctly predicted rows per value, averaged over values.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import Embeddings, Labels, cross
from vldebias.errors import InvalidInputError, check_arguments, need
from vldebias.hosts import Host
from vldebias.hosts.loading import text_host
from vldebias.measure.resampling import wilson_interval
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.methods import Method, get_method
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import Result
from vldebias.study.doubts import check_images
from vldebias.study.task import with_looks
from vldebias.study.tasks.images import disjoint, fit_method, split_of
from vldebias.utils.arrays import Codes, Floats

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.base import BaseEstimator
    from sklearn.linear_model import Ridge

    from vldebias.typing import AnyArray, ColumnLike, ModelLike, PromptSetLike

BLOCK = 8192  # rows converted to float64 at a time
FOLDS = 5
PERMUTATIONS = 100  # number of label permutations for the chance limit
SEARCHED = 20_000  # maximum number of rows for the nearest-neighbour search
FEW = 30  # minimum size of a group that advice is based on
# Metric -> the role of the column that is predicted, and the kind of probe.
PROBES = {"linear_probe": ("groups", "linear"), "neighbour_probe": ("groups", "neighbour")}
PROBES["class_probe"] = "labels", "linear"


def _known(
    features: AnyArray, labels: Labels | ColumnLike
) -> tuple[Tensor, Codes, tuple[str, ...]]:
    """Return the labelled rows as float32 unit vectors, their label codes, and the value names.

    Raises:
        InvalidInputError: If the lengths differ, features are not finite, there are fewer than two
            values, or a value has fewer than `FOLDS` rows.
    """
    rows = torch.as_tensor(features).detach().cpu()
    column = Labels.from_array(labels)
    if rows.ndim != 2 or len(rows) != len(column):
        raise InvalidInputError(
            f"labels: expected {len(rows)} labels, one per row of features, got {len(column)}"
        )
    known = rows[torch.from_numpy(column.known)]
    # Use float32 and convert block by block to save memory, because a probe copies the rows for
    # each fold.
    unit = torch.cat([normalize(block.float(), dim=1) for block in known.split(BLOCK)])
    if not unit.isfinite().all():
        raise InvalidInputError(
            f"features: expected finite numbers, got NaN or infinity among {len(rows)} rows"
        )
    values, codes, sizes = np.unique(
        column.codes[column.known], return_inverse=True, return_counts=True
    )
    # With fewer rows than folds, the value could be missing from a fold.
    if len(values) < 2 or sizes.min() < FOLDS:
        raise InvalidInputError(
            f"labels: expected two or more values with at least {FOLDS} rows each, got"
            f" {column.counts}"
        )
    return unit, codes, tuple(column.names[value] for value in values)


def _out_of_fold(
    model: BaseEstimator, rows: Tensor, codes: Codes, targets: np.ndarray, seed: int
) -> np.ndarray:
    """Return a scikit-learn model's out-of-fold prediction for each row."""
    selection = need("sklearn.model_selection")
    # Stratify the folds, so that each of them contains rare values.
    folds = selection.StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(rows, codes)
    predicted: np.ndarray = selection.cross_val_predict(
        model, rows.numpy(), targets, cv=list(folds)
    )
    return predicted


def _ridge(rows: Tensor) -> Ridge:
    """Return a ridge regression whose penalty is the mean column variance times the number of rows.

    The labels may be wrong, so they must not be used to select the penalty.
    """
    variance = float(rows.double().var(0, correction=0).mean())
    return need("sklearn.linear_model").Ridge(alpha=max(variance * len(rows), 1e-12))


def leads(scores: Floats, codes: Codes) -> tuple[Floats, Codes]:
    """Return each row's lead over the best other class, and the code of that class, both (n,)."""
    # (n, k): one-hot classes
    is_class = np.arange(scores.shape[1]) == codes[:, None]
    rival = np.where(is_class, -np.inf, scores).argmax(1)
    return scores[is_class] - scores[np.arange(len(codes)), rival], rival


@dataclass(frozen=True)
class Probe:
    """A probe's out-of-fold balanced accuracy.

    Attributes:
        accuracy: balanced accuracy over all rows.
        limit: accuracy that permuted labels exceed in 2.5% of cases (normal approximation).
        draws: (b,) bootstrap accuracies, with rows resampled within each value.
    """

    accuracy: float
    limit: float
    draws: Floats

    @property
    def is_at_chance(self) -> bool:
        """Return whether the accuracy is at most `limit`, as it would be for random guesses."""
        return self.accuracy <= self.limit


def readable(
    features: AnyArray,
    labels: Labels | ColumnLike,
    reader: str = "linear",
    *,
    seed: int = 0,
    resamples: int = 2000,
) -> Probe:
    """Measure how well a cross-validated probe predicts labels from features.

    Args:
        features: embeddings (n, d), one row per image.
        labels: values (n,); rows with unknown values are ignored.
        reader: the probe: "linear" for scikit-learn's linear discriminant analysis with equal
            priors and Ledoit-Wolf shrinkage, or "neighbour", which predicts the label of the row
            with the largest cosine.
        seed: random seed for the folds and the bootstrap.
        resamples: number of bootstrap resamples.

    Returns:
        The probe's accuracy, the limit for guessing, and the bootstrap accuracies.

    Raises:
        InvalidInputError: If features are not finite, or a value has fewer than five rows.
    """
    rows, codes, names = _known(features, labels)
    rng = np.random.default_rng(seed)
    if reader == "linear":
        discriminant = need("sklearn.discriminant_analysis").LinearDiscriminantAnalysis
        # Use equal priors, because balanced accuracy weights all values equally. With empirical
        # priors, a probe could simply predict the most frequent value.
        priors = np.full(len(names), 1 / len(names))
        model = discriminant(solver="lsqr", shrinkage="auto", priors=priors)
    else:
        # Use a sample of the rows, because the nearest-neighbour probe computes n x n cosines.
        sample = np.sort(rng.permutation(len(codes))[:SEARCHED])
        rows = rows[torch.from_numpy(sample)]
        codes = np.unique(codes[sample], return_inverse=True)[1]
        model = need("sklearn.neighbors").KNeighborsClassifier(1, metric="cosine")
    predicted = _out_of_fold(model, rows, codes, codes, seed)
    sizes = np.bincount(codes)
    # (values,): share of correctly predicted rows per value
    shares = np.bincount(codes, weights=predicted == codes) / sizes
    # The accuracy expected by chance depends on n, the values and the predictions. Estimate it by
    # permuting the labels, which works for any predictions.
    by_chance = []
    for _ in range(PERMUTATIONS):
        permuted = rng.permutation(codes)
        hits = np.bincount(permuted, weights=predicted == permuted)
        by_chance.append((hits / sizes).mean())
    limit = float(np.mean(by_chance) + 1.96 * np.std(by_chance, ddof=1))
    # Resample within values, because balanced accuracy does not depend on their sizes. Reuse the
    # out-of-fold predictions, because refitting the probe on each resample would take 2,000 fits.
    hits = np.random.default_rng(seed).binomial(sizes, shares, (resamples, len(sizes)))
    return Probe(float(shares.mean()), limit, (hits / sizes).mean(1))


def wrong_labels(features: AnyArray, labels: Labels | ColumnLike, *, seed: int = 0) -> pd.DataFrame:
    """Rank all labelled rows, starting with the least credible label.

    Each row is scored by a ridge regression on one-hot targets that was fitted on the other folds.
    The confidence is the score of the given label minus the best score of any other label. If it is
    negative, a different label fits better.

    Args:
        features: embeddings (n, d), one row per image.
        labels: values (n,).
        seed: random seed for the folds.

    Returns:
        A data frame with one row per labelled image: `row` (index into `features`), `given` (its
        label), `proposed` (the value with the highest score) and `confidence`.

    Raises:
        InvalidInputError: If features are not finite, or a value has fewer than five rows.
    """
    rows, codes, names = _known(features, labels)
    scores = _out_of_fold(_ridge(rows), rows, codes, np.eye(len(names))[codes], seed)
    lead, _ = leads(scores, codes)
    frame = need("pandas").DataFrame(
        {
            "row": np.flatnonzero(Labels.from_array(labels).known),
            "given": np.array(names)[codes],
            "proposed": np.array(names)[scores.argmax(1)],
            "confidence": lead,
        }
    )
    return frame.sort_values("confidence", kind="stable", ignore_index=True)


@dataclass(frozen=True)
class Column:
    """A label column, with the name that results and sentences use for it."""

    name: str
    labels: Labels

    @property
    def title(self) -> str:
        """Return the noun for this column in sentences: its name, or "class" for "labels"."""
        return "class" if self.name == "labels" else self.name

    @classmethod
    def of_texts(cls, rows: Tensor, host: Host, attribute: PromptSet) -> Column:
        """Label each row with the value whose prompts are nearest.

        Args:
            rows: unit rows (n, d).
            host: the model, used to embed text.
            attribute: prompt set of the attribute, with prompts for each value.
        """
        texts_of_value = attribute.by_value()
        centres = torch.stack([host.embed(group).mean(0) for group in texts_of_value.values()])
        codes = (rows @ centres.float().T).argmax(1).numpy()
        return cls("the prompts' texts", Labels(codes, tuple(texts_of_value)))


@check_arguments()
def diagnose(
    features: Embeddings | AnyArray,
    labels: Labels | ColumnLike | str | None = None,
    *,
    groups: Labels | ColumnLike | str | None = None,
    texts: Host | ModelLike | None = None,
    seed: int = 0,
    attribute: PromptSetLike | None = None,
    methods: str | Sequence[str | Method] = (),
    reference: Embeddings | AnyArray | None = None,
) -> Result:
    """Probe embeddings for attribute leakage, worst groups and label errors.

    The result has one task, "diagnose", with these rows:

    - `linear_probe` and `neighbour_probe` for the attribute, and `class_probe`, for every method;
    - `accuracy` for every group within every class, from out-of-fold predictions;
    - `suspect_labels`, the share of labels that fit a different class better.

    The description in the provenance contains advice. It only calls an attribute "removed" by a
    method if a linear probe is then no better than chance on held-out rows.

    See also docs/how-to/diagnose.md.

    Args:
        features: embeddings (n, d) from one model, as an array, a tensor, or
            `vldebias.data.Embeddings`; they are normalised to length 1.
        labels: classes (n,), or the name of a column. None, NaN and "" are unknown.
        groups: values (n,) of an attribute, or the name of a column.
        texts: a mapping from prompt to embedding (d,), or the image-text model that produced the
            features; used with `attribute`.
        seed: random seed for the folds and the bootstrap.
        attribute: the attribute's prompt set. Without `groups`, each image gets the value whose
            prompts are nearest.
        methods: methods or their names, fitted on `attribute` and compared with "none".
        reference: image features (m, d) for methods that use them.

    Returns:
        A `Result` with the rows above; `to_pandas()` returns them as a data frame. Values are
        shares in [0, 1] with 95% intervals (balanced accuracy for probes).
        `provenance[0].settings["advice"]` is a list of sentences.

    Raises:
        InvalidInputError: If neither labels nor groups are passed, lengths differ, methods are
            passed without prompts and texts, or a class has fewer than five rows.

    >>> import numpy as np
    >>> features = np.random.default_rng(0).normal(size=(100, 16))
    >>> smiling, gender = features[:, 0] > 0, features[:, 1] > 0
    >>> result = diagnose(features, smiling, groups=gender)
    >>> rows = result.to_pandas().set_index("metric")
    >>> print(round(rows.loc["linear_probe", "value"], 1))  # decodable
    0.9
    """
    start = time.monotonic()
    data = features if isinstance(features, Embeddings) else Embeddings.from_arrays(features)
    columns = _columns(data, labels, groups)
    listed = [methods] if isinstance(methods, str) else methods
    compared = [get_method(method) for method in listed]
    # method -> features (n, d) of length 1
    rows = {NONE: data.unit[:]}
    # The groups are the attribute's values. Without a group column, assign each image the value
    # whose prompts are nearest.
    parts = columns.get("groups")
    facts: dict[str, object] = {"model": data.about.get("model"), "methods": {}}
    if attribute is not None and texts is not None:
        attribute = load_prompts(attribute)
        host = text_host(texts)
        check_images(data, host, attribute.spurious[0])
        edited, facts = _edited_rows(data, host, attribute, compared, reference)
        rows |= edited
        parts = parts or Column.of_texts(rows[NONE], host, attribute)
    elif any(method.name != NONE for method in compared):
        raise InvalidInputError(
            "methods: methods are fitted on text; also pass attribute= and texts="
        )
    facts["model"] = str(facts["model"] or "unnamed model")
    digest = data.about.get("digest")
    title = " by ".join(column.name for column in columns.values())
    provenance = {
        "task": "diagnose",
        "title": f"Information in the features: {title}",
        "description": "",  # set once all rows are added
        "n": {"images": len(data)},
        "split": split_of(data),
        "data": {"images": str(digest)} if digest else {},
        "seeds": [seed],
        **facts,
    }
    result = TaskResult(TaskProvenance.model_validate(provenance))
    advice = _add_probes(result, columns, rows, seed)
    if "labels" in columns:
        advice += _add_suspects(result, data, columns["labels"], parts, seed)
    result.provenance.description = " ".join(advice)
    result.provenance.settings["advice"] = advice
    return Result.from_tasks("diagnose", [result], seconds=round(time.monotonic() - start, 3))


def _columns(
    data: Embeddings,
    labels: Labels | ColumnLike | str | None,
    groups: Labels | ColumnLike | str | None,
) -> dict[str, Column]:
    """Return the label and group columns, keyed by role ("labels", "groups").

    Raises:
        InvalidInputError: If neither is given, or their length differs from the number of features.
    """
    columns = {}
    for role, values in (("labels", labels), ("groups", groups)):
        if values is None:
            continue
        if isinstance(values, str):
            columns[role] = Column(values, data.column(values))
        else:
            columns[role] = Column(role, Labels.from_array(values))
    if not columns:
        raise InvalidInputError(
            f"expected labels= (classes) or groups= (an attribute); columns: {sorted(data.labels)}"
        )
    for role, column in columns.items():
        if len(column.labels) != len(data):
            raise InvalidInputError(
                f"{role}: expected {len(data)} labels, one per row of features, got"
                f" {len(column.labels)}"
            )
    return columns


def _edited_rows(
    data: Embeddings,
    host: Host,
    attribute: PromptSet,
    methods: Sequence[Method],
    reference: Embeddings | AnyArray | None,
) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Return each method's edited features (n, d) by method name, and provenance fields."""
    if reference is not None and not isinstance(reference, Embeddings):
        reference = Embeddings.from_arrays(reference)
    kept = disjoint(reference, data)[0]
    unit = data.unit[:]
    rows = {}
    entries = {}
    for method in methods:
        edit = fit_method(host, attribute, method, reference=kept)
        if edit is None:
            continue
        # Apply `edit.image` even though the edit was fitted on text, because the question is
        # whether edited image features still reveal the attribute.
        blocks = [normalize(edit.image(block), dim=1) for block in unit.split(BLOCK)]
        rows[method.name] = torch.cat(blocks)
        origin = edit.provenance
        entries[method.name] = {"lam": origin.lam, "attribute": origin.attribute, "side": "image"}
    facts = {
        "model": data.about.get("model") or host.model_id,
        "methods": with_looks(entries, methods),
        "attribute": attribute.name,
        "attribute_hash": attribute.hash,
        "fingerprint": host.weights,
    }
    return rows, facts


def _add_probes(
    result: TaskResult, columns: Mapping[str, Column], rows: Mapping[str, Tensor], seed: int
) -> list[str]:
    """Add a row for each probe and method, and store the chance limits in the settings.

    Returns:
        A list with the sentence from `how_readable`, or an empty list without an attribute.
    """
    probes: dict[str, dict[str, Probe]] = {}
    limits: dict[str, dict[str, float]] = {}
    for metric, (role, reader) in PROBES.items():
        if role not in columns:
            continue
        column = columns[role]
        probe_of_method = {}
        for method, features in rows.items():
            probe_of_method[method] = readable(features, column.labels, reader, seed=seed)
        result.add_draws(
            metric,
            {method: probe.accuracy for method, probe in probe_of_method.items()},
            {method: probe.draws for method, probe in probe_of_method.items()},
            n={"images": int(column.labels.known.sum())},
            subset=column.name,
        )
        probes[metric] = probe_of_method
        limits[f"{metric} of {column.name}"] = {
            method: probe.limit for method, probe in probe_of_method.items()
        }
    result.provenance.settings = {
        "probes": "balanced accuracy over five folds; see vldebias.diagnose",
        "chance": limits,
    }
    if "groups" not in columns:
        return []
    neighbour = probes["neighbour_probe"][NONE]
    return [how_readable(columns["groups"].name, probes["linear_probe"], neighbour)]


def how_readable(attribute: str, linear: Mapping[str, Probe], neighbour: Probe) -> str:
    """Describe how well an attribute can be decoded from features, and which methods remove it.

    Args:
        attribute: name of the attribute, as used in the sentence.
        linear: method -> linear probe of the features that it edited, including "none".
        neighbour: nearest-neighbour probe of the unedited features.

    >>> nothing = np.empty(0)
    >>> linear = {"none": Probe(0.9, 0.6, nothing), "cali": Probe(0.5, 0.6, nothing)}
    >>> how_readable("gender", linear, Probe(0.8, 0.6, nothing)).split("; ")[-1]
    'removed by cali.'
    """
    removed = [method for method, probe in linear.items() if probe.is_at_chance]
    ability = "can be read from the features"
    conclusion = ""
    # If the attribute cannot be decoded from unedited features, no method can remove it.
    if NONE in removed and neighbour.is_at_chance:
        ability = "cannot be read from the features"
        conclusion = "; nothing to remove"
    elif NONE in removed:
        ability = "can be read from the features, but not linearly"
        conclusion = "; nothing to remove for a linear edit"
    elif removed:
        conclusion = f"; removed by {', '.join(removed)}"
    elif len(linear) > 1:
        conclusion = "; removed by none of the methods"
    return (
        f"{attribute} {ability}: on held-out images, a linear probe has a balanced accuracy of"
        f" {linear[NONE].accuracy:.0%}, nearest neighbours {neighbour.accuracy:.0%} (at most"
        f" {linear[NONE].limit:.0%} by chance){conclusion}."
    )


def _add_suspects(
    result: TaskResult, data: Embeddings, column: Column, parts: Column | None, seed: int
) -> list[str]:
    """Add the accuracy of each group and the share of suspect labels, and return advice on both.

    `column` contains the classes, and `parts` the groups, if any.
    """
    classes = column.labels
    frame = wrong_labels(data.features, classes, seed=seed)
    advice = []
    if parts is not None:
        groups = cross(classes, parts.labels)
        in_class = _accuracies(frame, groups)
        for code, hits, size, share in in_class.itertuples():
            result.add(
                "accuracy",
                NONE,
                float(share),
                wilson_interval(int(hits), int(size)),
                n={"images": int(size)},
                subset=groups.names[code],
            )
        alone = _accuracies(frame, parts.labels)
        # A group of three images may be the worst by chance, so small groups are reported but do
        # not trigger advice.
        large = in_class[in_class["size"] >= FEW]
        if not large.empty:
            worst = large["mean"].idxmin()
            lowest = alone["mean"][alone["size"] >= FEW].idxmin()
            mean = in_class["sum"].sum() / in_class["size"].sum()
            class_code, value_code = divmod(int(worst), len(parts.labels.names))
            advice.append(
                f"Worst group by {parts.name}: {parts.labels.names[value_code]} with"
                f" {column.title} {classes.names[class_code]}, {large['mean'][worst]:.0%} of"
                f" {large['size'][worst]:,.0f} images correct (by {parts.name} alone:"
                f" {parts.labels.names[lowest]}, {alone['mean'][lowest]:.0%}; all: {mean:.0%});"
                " give it more weight in training."
            )
    n = len(frame)
    of_column = "" if column.title == "class" else f" of {column.name}"
    suspect = int((frame.confidence < 0).sum())
    advice.append(
        f"{suspect:,} of {n:,} labels{of_column} fit another class better: either the label or the"
        " classifier is wrong; check the least credible first."
    )
    result.add("suspect_labels", NONE, suspect / n, wilson_interval(suspect, n), n={"images": n})
    return advice


def _accuracies(frame: pd.DataFrame, groups: Labels) -> pd.DataFrame:
    """Return a table of hits ("sum"), "size" and accuracy ("mean"), with one row per group code.

    Args:
        frame: given and proposed labels of each row, as returned by `wrong_labels`.
        groups: groups of all rows of the data.
    """
    right = (frame.given == frame.proposed).groupby(groups.codes[frame.row])
    return right.agg(["sum", "size", "mean"]).query("index >= 0")  # -1 marks unknown groups
