"""Probe features (n, d) for readable attributes, worst-off groups, wrong labels and narrow margins.

Two scikit-learn probes are scored out of fold and compared with permuted labels: a linear one shows
what a projection can remove, the nearest neighbour what a search can still find. Balanced accuracy
is the mean over values of the share of rows predicted right. Margins are those of chapter 8 of the
thesis (Figure 8-2).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.data import Embeddings, Labels, cross
from vldebias.errors import InvalidInputError, need
from vldebias.hosts.loading import text_host
from vldebias.measure.resampling import wilson_interval
from vldebias.measure.result import NONE, Result, TaskProvenance, TaskResult
from vldebias.methods import get_method
from vldebias.metrics import k_variance
from vldebias.prompts import PromptSet, load_prompts
from vldebias.study.doubts import check_images
from vldebias.study.images import disjoint, fit_method

if TYPE_CHECKING:
    import pandas as pd

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
BLOCK = 8192  # rows in float64 at once
FOLDS = 5
SEARCHED = 20_000  # rows among which neighbours are sought at most
FEW = 30  # rows of a group below which its accuracy is no reason for advice
LARGEST_SUBSET = 1000  # rows of a subset of the k-variance at most; a pair of these takes a second
# Metric -> what is predicted, and by which reader.
PROBES = {"linear_probe": ("groups", "linear"), "neighbour_probe": ("groups", "neighbour")}
PROBES["class_probe"] = "labels", "linear"


def _known(features: Any, labels: Any) -> tuple[Tensor, Codes, tuple[str, ...]]:
    """Return float32 rows of length 1 with a known label, their codes, and the names of the values
    that occur."""
    rows, column = torch.as_tensor(features).detach().cpu(), Labels.of_array(labels)
    if rows.ndim != 2 or len(rows) != len(column):
        raise InvalidInputError(
            f"labels: expected {len(rows)}, one for each row of features, got {len(column)}"
        )
    unit = torch.cat(
        [
            normalize(block.float(), dim=1)
            for block in rows[torch.from_numpy(column.known)].split(BLOCK)
        ]
    )
    if not unit.isfinite().all():
        raise InvalidInputError(
            f"features: expected finite numbers, got NaN or infinity in {len(rows)} rows"
        )
    values, codes, sizes = np.unique(
        column.codes[column.known], return_inverse=True, return_counts=True
    )
    if len(values) < 2 or sizes.min() < FOLDS:
        raise InvalidInputError(
            f"labels: expected two or more values of {FOLDS} rows or more, got {column.counts}"
        )
    return unit, codes, tuple(column.names[value] for value in values)


def _out_of_fold(model: Any, rows: Tensor, codes: Codes, targets: Any, seed: int) -> Any:
    """Return what a scikit-learn model predicts for each row when it is fitted on the other
    folds."""
    selection = need("sklearn.model_selection")
    folds = selection.StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(rows, codes)
    return selection.cross_val_predict(model, rows.numpy(), targets, cv=list(folds))


def _ridge(rows: Tensor) -> Any:
    """Return ridge regression; its penalty is the mean variance of a column, as wrong labels may
    not select it."""
    variance = float(rows.double().var(0, correction=0).mean())
    return need("sklearn.linear_model").Ridge(alpha=max(variance * len(rows), 1e-12))


def _margin(scores: Floats, codes: Codes) -> tuple[Floats, Codes]:
    """Return the score (n,) of the given class less the best other score, and the class of that,
    for scores (n, k)."""
    given = np.arange(scores.shape[1]) == codes[:, None]
    rival = np.where(given, -np.inf, scores).argmax(1)
    return scores[given] - scores[np.arange(len(codes)), rival], rival


class Probe(NamedTuple):
    """Hold a probe's balanced accuracy out of fold, and draws (b,) of it from rows resampled within
    values."""

    accuracy: float
    limit: float  # what permuted labels exceed in 2.5 % of cases (normal approximation)
    draws: Floats


def readable(
    features: Any, labels: Any, reader: str = "linear", *, seed: int = 0, resamples: int = 2000
) -> Probe:
    """Return how well a probe predicts the labels (n,) of features (n, d) out of fold; unknown
    labels are left out.

    reader: "linear", scikit-learn's discriminant with equal priors and the shrinkage of Ledoit and
    Wolf, or "neighbour", the value of the row with the largest cosine. Features that are not finite
    and a value of fewer than five rows raise InvalidInputError.
    """
    rows, codes, names = _known(features, labels)
    rng = np.random.default_rng(seed)
    if reader == "linear":
        discriminant = need("sklearn.discriminant_analysis").LinearDiscriminantAnalysis
        model = discriminant(
            solver="lsqr", shrinkage="auto", priors=np.full(len(names), 1 / len(names))
        )
    else:
        some = np.sort(rng.permutation(len(codes))[:SEARCHED])
        rows, codes = rows[torch.from_numpy(some)], np.unique(codes[some], return_inverse=True)[1]
        model = need("sklearn.neighbors").KNeighborsClassifier(1, metric="cosine")
    named, sizes = _out_of_fold(model, rows, codes, codes, seed), np.bincount(codes)
    dealt = (codes, *(rng.permutation(codes) for _ in range(100)))
    shares, *chance = (np.bincount(one, weights=named == one) / sizes for one in dealt)
    by_chance = np.mean(chance, axis=1)
    drawn = np.random.default_rng(seed).binomial(sizes, shares, (resamples, len(sizes))) / sizes
    return Probe(
        float(shares.mean()), float(by_chance.mean() + 1.96 * by_chance.std(ddof=1)), drawn.mean(1)
    )


def wrong_labels(features: Any, labels: Any, *, seed: int = 0) -> pd.DataFrame:
    """Return every labelled row, the least credible label first: columns row, given, proposed,
    confidence.

    Ridge regression on one-hot targets of the other folds scores each row; confidence is the score
    of the given label less the best other one, so below 0 another label fits better. Raises: see
    `readable`.
    """
    rows, codes, names = _known(features, labels)
    scores = _out_of_fold(_ridge(rows), rows, codes, np.eye(len(names))[codes], seed)
    given, proposed = np.array(names)[codes], np.array(names)[scores.argmax(1)]
    found = {
        "row": np.flatnonzero(Labels.of_array(labels).known),
        "given": given,
        "proposed": proposed,
    }
    frame = need("pandas").DataFrame(found | {"confidence": _margin(scores, codes)[0]})
    return frame.sort_values("confidence", kind="stable", ignore_index=True)


def margins(
    head: Any, features: Any, codes: Codes, *, seed: int = 0
) -> tuple[dict[str, Floats], Floats]:
    """Return the margins (n,) of a linear classifier by metric, and the k-variance (k,) of the
    classes.

    "margin" is eq. 8.1; "gn_margin" the margin over the length of its gradient plus 1e-6 (section
    8.3.2); "kv_margin" the margin over E_c[Lip_c Var_c], with the largest gradient of a class as
    Lip_c, and "kv_gn_margin" the normalised one over E_c[Var_c] (section 8.4). The last two are
    missing where classes are points.

    head: (weight (k, d), bias (k,)) or nn.Linear. features: (n, d) as the head takes them. codes:
    (n,) classes. Shapes that do not fit and a class of a single row raise InvalidInputError.
    """
    if isinstance(head, nn.Linear):
        head = head.weight, torch.zeros(head.out_features) if head.bias is None else head.bias
    rows, weight, bias = (torch.as_tensor(part).detach().cpu() for part in (features, *head))
    weight, sizes = weight.double(), np.bincount(codes, minlength=len(weight))
    if (
        weight.shape != (len(sizes), rows.shape[1])
        or bias.shape != weight.shape[:1]
        or sizes[sizes > 0].min() < 2
    ):
        raise InvalidInputError(
            f"head: got weight {tuple(weight.shape)}, bias {tuple(bias.shape)} and classes of"
            f" {sizes.tolist()} rows; expected (k, {rows.shape[1]}), (k,) and two or more rows of"
            " each class"
        )
    scores = torch.cat([block.double() @ weight.T for block in rows.split(BLOCK)]) + bias
    margin, rival = _margin(scores.numpy(), codes)
    slope = torch.cdist(weight, weight).numpy()[codes, rival]
    variance, steepest = np.zeros((2, len(sizes)))
    for code in np.flatnonzero(sizes):
        members = rows[torch.from_numpy(codes == code)].float()
        # The thesis's k is half of the rows; the cost of a pair of subsets is cubic in k.
        subset_size = min(len(members) // 2, LARGEST_SUBSET)
        variance[code] = k_variance(members, k=subset_size, seed=seed)
        steepest[code] = slope[codes == code].max()
    found, shares = {"margin": margin, "gn_margin": margin / (slope + 1e-6)}, sizes / len(codes)
    if (steepest * variance).any():
        found["kv_margin"] = margin / float(shares @ (steepest * variance))
        found["kv_gn_margin"] = found["gn_margin"] / float(shares @ variance)
    return found, variance


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

    features: (n, d) of one model, as an array, a tensor, or `vldebias.data.Embeddings`; compared at
    length 1.
    labels: (n,) classes; groups: (n,) values of an attribute; or names of columns. None, NaN and ""
    are unknown.
    texts: prompt -> embedding (d,), or the image-text model that the features are from; with
    `prompts`.
    head: linear classifier on features of length 1, (weight (k, d), bias (k,)) or nn.Linear; None:
    ridge regression.
    prompts: the attribute's prompt set: without `groups`, its texts tell the value of each image.
    methods: names or methods, fitted on it and compared with "none"; reference: image features (m,
    d) for those that use some.

    The result has one task, "diagnose": `linear_probe` and `neighbour_probe` of the attribute and
    `class_probe` for every method, `accuracy` of every group by a classifier that did not see the
    row, `suspect_labels`, and medians of margins with their quartiles. The description of its
    provenance says what to do, and "removed" of a method only if a linear probe is at chance, out
    of sample. Neither labels nor groups, lengths that do not fit, methods without prompts and
    texts, and a class with fewer than five rows raise InvalidInputError.

    >>> diagnose(features, smiling, groups=gender).to_pandas()  # doctest: +SKIP
    """
    data, began = (
        features if isinstance(features, Embeddings) else Embeddings.of(features),
        time.monotonic(),
    )
    given = {role: one for role, one in (("labels", labels), ("groups", groups)) if one is not None}
    if not given:
        raise InvalidInputError(
            f"expected labels= (classes) or groups= (an attribute), such as {sorted(data.labels)}"
        )
    kinds = [get_method(one) for one in ([methods] if isinstance(methods, str) else methods)]
    if any(one.name != NONE for one in kinds) and (prompts is None or texts is None):
        raise InvalidInputError(
            "methods: got some without texts to fit them on; expected prompts= and texts= too"
        )
    called = {role: one if isinstance(one, str) else role for role, one in given.items()}
    columns = {
        role: data.column(one) if isinstance(one, str) else Labels.of_array(one)
        for role, one in given.items()
    }
    for role, column in columns.items():
        if len(column) != len(data):
            raise InvalidInputError(
                f"{role}: expected {len(data)}, one for each row of features, got {len(column)}"
            )
    classes, attribute, rows = columns.get("labels"), columns.get("groups"), {NONE: data.unit[:]}
    parts, origin, model = attribute, f"by {called.get('groups')}", data.about.get("model")
    split = (
        " ".join(str(data.about[key]) for key in ("data", "split") if data.about.get(key))
        or "unnamed split"
    )
    about: dict[str, Any] = {
        "title": " by ".join(called.values()),
        "n": {"images": len(data)},
        "split": split,
    }
    about |= {
        "data": {"images": str(data.about["digest"])} if data.about.get("digest") else {},
        "methods": {},
    }
    if prompts is not None and texts is not None:
        own, side = load_prompts(prompts), text_host(texts)
        about |= {"prompts": own.name, "prompts_hash": own.hash, "fingerprint": side.weights}
        model = model or side.model_id
        check_images(data, side, own.spurious[0])
        other = (
            reference
            if reference is None or isinstance(reference, Embeddings)
            else Embeddings.of(reference)
        )
        kept = disjoint(other, data)[0]
        for method in kinds:
            if (edit := fit_method(side, own, method, reference=kept)) is not None:
                blocks = [normalize(edit.image(block), dim=1) for block in rows[NONE].split(BLOCK)]
                rows[method.name], of = torch.cat(blocks), edit.provenance
                about["methods"][method.name] = {
                    "lam": of.lam,
                    "prompts": of.prompts,
                    "side": "image",
                }
        if attribute is None:
            centres = torch.stack(
                [side.embed(some).mean(0) for some in own.by_value().values()]
            ).float()
            parts = Labels((rows[NONE] @ centres.T).argmax(1).numpy(), tuple(own.by_value()))
            origin = "by the prompts' texts"
    about |= {"model": str(model or "unnamed model"), "seeds": [seed], "description": ""}
    out, chance, advice = (
        TaskResult(TaskProvenance(task="diagnose", **about)),
        dict[str, Any](),
        list[str](),
    )
    read = dict[str, dict[str, Probe]]()
    for metric, (role, reader) in PROBES.items():
        if role in columns:
            probes = {
                method: readable(of, columns[role], reader, seed=seed)
                for method, of in rows.items()
            }
            values, draws = (
                {m: one.accuracy for m, one in probes.items()},
                {m: one.draws for m, one in probes.items()},
            )
            out.add_draws(
                metric,
                values,
                draws,
                n={"images": int(columns[role].known.sum())},
                subset=called[role],
            )
            chance[f"{metric} of {called[role]}"] = {
                method: one.limit for method, one in probes.items()
            }
            read[metric] = probes
    if attribute is not None:
        linear, neighbour = read["linear_probe"], read["neighbour_probe"][NONE].accuracy
        removed = [method for method, one in linear.items() if one.accuracy <= one.limit]
        # where nothing can be read without a method, it is not the method that removed it
        said = (
            "nothing to remove"
            if NONE in removed
            else f"removed by {', '.join(removed) or 'no method'}"
        )
        advice.append(
            f"{called['groups']}: a linear probe predicts it in {linear[NONE].accuracy:.0%} of"
            f" held-out images, nearest neighbours in {neighbour:.0%} (chance at most"
            f" {linear[NONE].limit:.0%}); {said}."
        )
    if classes is not None:
        listed = wrong_labels(data.features, classes, seed=seed)
        suspect, n = int((listed.confidence < 0).sum()), len(listed)
        if parts is not None:
            groups = cross(classes, parts)
            found = listed.assign(
                group=groups.codes[listed.row], right=listed.given == listed.proposed
            )
            sizes = found.query("group >= 0").groupby("group").right.agg(["sum", "size", "mean"])
            for code, hits, size, share in sizes.itertuples():
                many, name = {"images": int(size)}, groups.names[code]
                out.add(
                    "accuracy",
                    NONE,
                    float(share),
                    wilson_interval(int(hits), int(size)),
                    n=many,
                    subset=name,
                )
            if len(large := sizes[sizes["size"] >= FEW]):
                _, size, share = large.loc[worst := large["mean"].idxmin()]
                advice.append(
                    f"Worst group {origin}: {groups.names[worst]}, {size:,.0f} images, {share:.0%}"
                    f" right (all: {sizes['sum'].sum() / sizes['size'].sum():.0%}); reweight it"
                    " first."
                )
        advice.append(
            f"{suspect:,} of {n:,} labels fit another class better: look at them, the least"
            " credible first."
        )
        out.add("suspect_labels", NONE, suspect / n, wilson_interval(suspect, n), n={"images": n})
        known, which, names = _known(data.features, classes)
        if head is None:
            fitted = _ridge(known).fit(known.double().numpy(), np.eye(len(names))[which])
            head = (fitted.coef_, fitted.intercept_)
        else:  # its classes are all that the column knows, whether they occur or not
            which, names = classes.codes[classes.known], classes.names
        of_metric, variance = margins(head, known, which, seed=seed)
        for code, name in enumerate(names):
            many = {"images": int((which == code).sum())}
            for metric, margin in of_metric.items() if many["images"] else ():
                low, middle, high = map(float, np.percentile(margin[which == code], (25, 50, 75)))
                out.add(metric, NONE, middle, (low, high), n=many, subset=name)
            out.add("k_variance", NONE, float(variance[code]), n=many, subset=name)
    probed = "balanced accuracy out of five folds; see vldebias.diagnose"
    out.provenance.description = " ".join(advice)
    out.provenance.settings = {"probes": probed, "chance": chance, "advice": advice}
    return Result.of("diagnose", [out], seconds=round(time.monotonic() - began, 3))
