"""Erasing an attribute from labelled embeddings: LEACE, INLP and SPD, and the dimensions of CLIP-clip and SFID."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError, need
from vldebias.methods.labelled import Labelled, labelled, stated_texts
from vldebias.methods.method import Method, Need, Problem, register_method
from vldebias.methods.rivals.edits import Affine, TwoTowers
from vldebias.projection import CalibratedProjection, span_of

_OF_IMAGES = frozenset({Need.LABELS, Need.VALUES})


def leace(rows: Tensor, one_hot: Tensor, shrinkage: float | None = None) -> Affine:
    """The least change of rows (n, d), in the norm of their covariance, after which no affine probe reads a concept.

    Belrose et al. (2023), Theorem 4.3: r(x) = x - W^+ P W (x - mean) with W = Sigma_xx^(-1/2), P the orthogonal
    projection on the columns of W Sigma_xz. Where W is regular the covariance of r(x) with the concept is 0 whatever W
    is, so that shrinking Sigma_xx costs none of the guarantee and only changes the norm in which the change is least.

    Args:
        rows: (n, d). one_hot: (n, k), the concept.
        shrinkage: share in [0, 1] of the scaled identity in Sigma_xx; None: what Ledoit and Wolf (2004, Lemma 3.2 and
            section 3.3) estimate. 0 is the theorem's own covariance, of pseudoinverse where it is singular.
    """
    x, z = rows.double(), one_hot.double()
    mean = x.mean(0)
    centred, n = x - mean, len(x)
    covariance = centred.T @ centred / n
    share = _ledoit_wolf(centred, covariance) if shrinkage is None else shrinkage
    scale = covariance.diagonal().mean()
    covariance = (1 - share) * covariance + share * scale * torch.eye(len(mean), dtype=x.dtype)
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > values[-1] * len(mean) * torch.finfo(x.dtype).eps
    roots, basis = values[kept].sqrt(), vectors[:, kept]
    whitened = (basis / roots) @ (basis.T @ (centred.T @ (z - z.mean(0)) / n))  # W Sigma_xz
    u, s, _ = torch.linalg.svd(whitened, full_matrices=False)
    u = u[:, s > s[0] * 1e-8]
    left, right = (basis * roots) @ (basis.T @ u), (basis / roots) @ (basis.T @ u)
    return Affine(left, right, left @ (right.T @ mean))


def _ledoit_wolf(centred: Tensor, covariance: Tensor) -> float:
    """The share of the identity that is expected to bring the covariance closest to the true one."""
    n, d = centred.shape
    scale = covariance.diagonal().mean()
    apart = covariance.square().sum() - d * scale**2
    noise = (centred.square().sum(1).square().mean() - covariance.square().sum()) / n
    return float((noise / apart).clamp(0, 1)) if apart > 0 else 1.0


def inlp(labels: Sequence[tuple[Tensor, Tensor]], rounds: int) -> Tensor:
    """Rows (r, d) of all probes that were read off and removed, one after another, from rows and codes per attribute.

    Ravfogel et al. (2020), Algorithm 1. A round ends an attribute where its probe does no better than a constant.
    """
    removed: list[Tensor] = []
    for rows, codes in labels:
        left = rows - rows.mean(0)
        constant = int(torch.bincount(codes).max()) / len(codes)
        for _ in range(rounds):
            if removed:
                left = left - (left @ (basis := torch.linalg.qr(torch.cat(removed).T)[0])) @ basis.T
            weight, accuracy = _probe(left, codes)
            if accuracy <= constant:
                break
            removed.append(weight)
    if not removed:
        raise InvalidInputError("inlp: no probe reads the attribute from these images, so there is nothing to remove")
    return torch.cat(removed)


def _probe(rows: Tensor, codes: Tensor, decay: float = 1e-3) -> tuple[Tensor, float]:
    """Weights (k - 1, d) of a logistic regression and its accuracy on the rows it was fitted to."""
    k, scale = int(codes.max()) + 1, rows.square().sum(1).mean().sqrt().clamp(min=torch.finfo(rows.dtype).tiny)
    weight = torch.zeros(k, rows.shape[1] + 1, dtype=rows.dtype, requires_grad=True)
    inputs = torch.cat([rows / scale, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
    optimizer = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(inputs @ weight.T, codes) + decay * weight[:, :-1].square().sum()
        loss.backward()
        return loss

    with torch.inference_mode(False), torch.enable_grad():
        inputs, codes = inputs.clone(), codes.clone()
        optimizer.step(closure)
    kept = weight.detach()
    accuracy = float(((inputs @ kept.T).argmax(1) == codes).double().mean())
    _, s, vh = torch.linalg.svd(kept[:, :-1] - kept[:, :-1].mean(0), full_matrices=False)
    return vh[s > s[0] * 1e-8], accuracy


class LEACE(Method):
    """Least-squares concept erasure of images with labels; see `leace`."""

    name, title, source = "leace", "LEACE of images", "Belrose et al., 2023, Theorem 4.3"
    color, needs, pipelines, side = "#66c2a5", _OF_IMAGES, False, "image"

    def fit(self, problem: Problem, role: str) -> Edit:
        """The eraser of images."""
        return TwoTowers(images=leace(*labelled(problem, role).one_hot()))


class INLP(Method):
    """Iterative nullspace projection of images with labels; see `inlp`.

    rounds: of probes for each attribute, at most. With fewer images than dimensions a probe is never at chance on what
    it was fitted to, so the number decides.
    """

    name, title = "inlp", "iterative nullspace projection"
    source = "Ravfogel et al., 2020, Algorithm 1"
    color, needs, pipelines, side = "#7570b3", _OF_IMAGES, False, "image"
    listed = False  # "spd" is the same probes with the neutral mean put back

    def __init__(self, rounds: int = 8) -> None:
        self.rounds = rounds

    def fit(self, problem: Problem, role: str) -> Edit:
        """P0 of all probes, for images."""
        rows = inlp(labelled(problem, role).known(), self.rounds)
        projection = CalibratedProjection.solve([], rows)
        return TwoTowers(images=Affine.linear(projection.left, projection.right))


class ClipClip(Method):
    """The dimensions with the highest mutual information with the attribute are dropped from both towers.

    share: of the dimensions that is dropped, at least one.
    """

    name, title = "clip-clip", "CLIP-clip"
    source = "Wang et al., 2021"
    color, needs, pipelines, side = "#d95f02", _OF_IMAGES, False, "both"
    listed = False  # "sfid" chooses dimensions too, and loses less of what they say

    def __init__(self, share: float = 0.2) -> None:
        if not 0 < share < 1:
            raise InvalidInputError(f"share: expected a share of the dimensions in (0, 1), got {share}")
        self.share = share

    def fit(self, problem: Problem, role: str) -> Edit:
        """Both maps; information is added up over attributes."""
        selection = need("sklearn.feature_selection")
        images = labelled(problem, role)
        known = [(rows.numpy(), codes.numpy()) for rows, codes in images.known()]
        information = torch.from_numpy(sum(selection.mutual_info_classif(*one, random_state=0) for one in known))
        width = images.rows.shape[1]
        dims = information.argsort(descending=True, stable=True)[: max(1, round(self.share * width))]
        clipped = Affine.imputing(dims, torch.zeros(len(dims)), width)
        return TwoTowers(clipped, clipped)


class SFID(Method):
    """The dimensions that a random forest reads the attribute from take their mean over the rows it is unsure of.

    Of images with labels, and of the texts of the prompt set that state a value.

    dims: how many are replaced; the authors take 100 of CLIP's 512 or more. A narrower space gives up a fifth, which
    100 are of 512. confidence: a row counts as unsure where no value is more probable, by the trees that have not seen
    it; where there is no such row, the mean is that of all.
    """

    name, title = "sfid", "selective feature imputation"
    source = "Jung et al., 2024"
    color, pipelines, side = "#e7298a", False, "both"
    needs = frozenset({Need.LABELS, Need.VALUES, Need.PAIRS})

    def __init__(self, dims: int = 100, confidence: float = 0.7) -> None:
        if dims < 1:
            raise InvalidInputError(f"dims: expected a number of dimensions, at least 1, got {dims}")
        self.dims, self.confidence = dims, confidence

    def fit(self, problem: Problem, role: str) -> Edit:
        """The maps of both towers, each from a forest of its own."""
        return TwoTowers(self._imputed(stated_texts(problem, role)), self._imputed(labelled(problem, role)))

    def _imputed(self, given: Labelled) -> Affine:
        width = given.rows.shape[1]
        importance, neutral = _read_by_forests(given, self.confidence)
        count = min(self.dims, max(1, width // 5))
        dims = importance.argsort(descending=True, stable=True)[:count]
        return Affine.imputing(dims, neutral[dims], width)


def _read_by_forests(given: Labelled, confidence: float) -> tuple[Tensor, Tensor]:
    """Importance (d,) of each dimension to forests that read the values, and the mean row (d,) that they are unsure of.

    A row is unsure where the trees that have not seen it give no value more than `confidence`; where there is none, the
    mean is that of all.
    """
    ensemble, width = need("sklearn.ensemble"), given.rows.shape[1]
    importance, unsure = torch.zeros(width, dtype=torch.float64), []
    for rows, codes in given.known():
        forest = ensemble.RandomForestClassifier(100, oob_score=True, random_state=0)
        forest.fit(rows.numpy(), codes.numpy())
        importance += torch.from_numpy(forest.feature_importances_)
        sure = torch.from_numpy(forest.oob_decision_function_).nan_to_num(0).amax(1)
        unsure.append(rows[sure <= confidence])
    neutral = torch.cat(unsure) if any(len(one) for one in unsure) else given.rows
    return importance, neutral.mean(0)


class SPD(Method):
    """Subspace projection debiasing: what probes read is projected out, and the mean of unsure rows put back there.

    With B an orthonormal basis of the rows of `inlp` and m the mean of the rows that a forest is unsure of (those of
    SFID), x -> x - B B^T (x - m), for images by their labels and for texts by the value that they state. By the formula
    of the paper (Zhao et al., CVPR 2026, 2511.18123); their code was not to be had.

    rounds: of probes for each attribute, at most; the authors take 5. confidence: as of SFID.
    """

    name, title = "spd", "subspace projection and neutral mean"
    source = "Zhao et al., 2026"
    color, pipelines, side = "#b15928", False, "both"
    needs = frozenset({Need.LABELS, Need.VALUES, Need.PAIRS})

    def __init__(self, rounds: int = 5, confidence: float = 0.7) -> None:
        self.rounds, self.confidence = rounds, confidence

    def fit(self, problem: Problem, role: str) -> Edit:
        """The maps of both towers, each from probes and a forest of its own."""
        return TwoTowers(self._projected(stated_texts(problem, role)), self._projected(labelled(problem, role)))

    def _projected(self, given: Labelled) -> Affine:
        basis = span_of(inlp(given.known(), self.rounds))
        _, neutral = _read_by_forests(given, self.confidence)
        return Affine(basis, basis, basis @ (basis.T @ neutral))


for _method in (LEACE(), INLP(), ClipClip(), SFID(), SPD()):
    register_method(_method)
