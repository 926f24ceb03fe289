"""Erase an attribute with affine maps fitted to labelled rows.

The methods are LEACE, SPD, SFID and RoboShot for image-text models, and fair PCA for pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence

from vldebias.errors import InvalidInputError, need
from vldebias.methods.declared import DECLARED, Declaration
from vldebias.methods.labelled_rows import Labelled, labelled, stated_texts
from vldebias.methods.method import EditMethod, Problem, register_method
from vldebias.projection.edit import Edit, Rowwise
from vldebias.projection.projection import CalibratedProjection, span_of
from vldebias.projection.provenance import Provenance

_SURE = 0.7  # rows predicted with a higher probability count as sure, as in SFID's code
_DECAY = 1e-3  # weight of the squared norm of a probe's weights
# Fraction of dimensions that FairImagen's authors keep in Stable Diffusion 3's pooled states.
_KEPT = 1800 / 2048


Affine = tuple[Tensor, Tensor, Tensor]
"""left, right (d, rank) and shift (d,) of the map x -> x - (x right) left^T + |x| shift, fitted to
rows of norm 1."""


@dataclass(frozen=True, eq=False, repr=False)
class TwoTowers(Rowwise):
    """Apply one `Affine` map to images, and another or none to text.

    Attributes:
        left: (2, rank, d), the transposed left factors of the maps for text and for images.
        right: (2, rank, d), the transposed right factors of the maps for text and for images.
        shift: (2, d), the shifts of the maps for text and for images.
        side: "both", or "image" if text is left unchanged.
    """

    kind = "two-towers"
    axes: ClassVar = {"left": "towers rank d", "right": "towers rank d", "shift": "towers d"}

    left: Tensor
    right: Tensor
    shift: Tensor
    side: str
    provenance: Provenance = field(default_factory=lambda: Provenance("two-towers"))

    @classmethod
    def from_maps(cls, images: Affine, texts: Affine | None = None) -> TwoTowers:
        """Return the edit for two maps.

        Args:
            images: the map for images.
            texts: the map for text. If None, text is left unchanged.
        """
        side = "both" if texts else "image"
        towers = (texts or images, images)  # if text stays unchanged, the first map is not used
        left_factor = pad_sequence([tower[0].T for tower in towers], batch_first=True)
        right_factor = pad_sequence([tower[1].T for tower in towers], batch_first=True)
        shift = torch.stack([tower[2] for tower in towers])
        return cls(left_factor, right_factor, shift, side)

    def _replacement(self, unit: Tensor, image: bool) -> Tensor:
        tower = int(image)
        # Use two thin products, as in `CalibratedProjection`, because the rank is far below d.
        removed = (unit @ self.right[tower].T) @ self.left[tower]
        return unit - removed + self.shift[tower]


@dataclass(frozen=True, repr=False)
class Eraser(EditMethod):
    """Fit a map to labelled images and, if it acts on both towers, another map to text.

    The map for text is fitted only to text that states a value.
    """

    declaration: Declaration
    erased: Callable[[Labelled], Affine]

    def fit(self, problem: Problem, role: str) -> Edit:
        images = self.erased(labelled(problem, role))
        if self.declaration.side != "both":
            return TwoTowers.from_maps(images)
        return TwoTowers.from_maps(images, self.erased(stated_texts(problem, role)))


def leace(labelled_rows: Labelled) -> Affine:
    """Return the smallest change of rows that hides a concept from affine probes.

    The size of the change is measured in the covariance norm.

    Source: Belrose et al. (2023), Theorem 4.3, r(x) = x - W^+ P W (x - mean). Here, W is
    Sigma_xx^(-1/2), and P is the orthogonal projection onto the columns of W Sigma_xz, so W^+ P W =
    Sigma_xz (Sigma_zx Sigma_xx^+ Sigma_xz)^+ Sigma_zx Sigma_xx^+. For any invertible W, the
    covariance between r(x) and the concept is 0. Shrinking Sigma_xx towards the scaled identity, by
    the amount estimated by Ledoit and Wolf (2004, Lemma 3.2 and section 3.3), therefore preserves
    the guarantee and only changes the norm in which the change is minimal.
    """
    x, z = labelled_rows.one_hot()
    shrunk = torch.from_numpy(need("sklearn.covariance").ledoit_wolf(x.numpy())[0])
    left_factor = (x - x.mean(0)).T @ (z - z.mean(0)) / len(x)  # Sigma_xz
    right_factor = torch.linalg.pinv(shrunk, hermitian=True) @ left_factor
    # One-hot columns sum to 1, so the matrix is singular and needs a pseudo-inverse.
    right_factor = right_factor @ torch.linalg.pinv(
        left_factor.T @ right_factor, hermitian=True, rtol=1e-12
    )
    return left_factor, right_factor, left_factor @ (right_factor.T @ x.mean(0))


def sfid(labelled_rows: Labelled) -> Affine:
    """Replace the dimensions most important to a random forest with their mean over unsure rows.

    A row is unsure if the forest gives no value a probability above `_SURE`. The authors replace at
    least 100 of CLIP's 512 dimensions. In a narrower space, the same share (a fifth) is replaced.
    """
    width = labelled_rows.rows.shape[1]
    # Replacing dimensions means applying I - B B^T, where B has columns of the identity, and adding
    # their means.
    importance, neutral = _read_by_forests(labelled_rows)
    number = min(100, max(1, width // 5))
    dims = importance.argsort(descending=True, stable=True)[:number]
    basis = torch.eye(width, dtype=torch.float64)[:, dims]
    return basis, basis, basis @ (basis.T @ neutral)


def spd(labelled_rows: Labelled) -> Affine:
    """Project out the directions of linear probes, replacing them with the mean of unsure rows.

    Let B be an orthonormal basis of the rows of `null_space_probes`, and m the mean of the rows for
    which a forest's prediction is unsure (as in SFID). The map is x -> x - B B^T (x - m). This
    follows the formula in the paper (2511.18123), whose code is not public.
    """
    basis = span_of(null_space_probes(labelled_rows.known()))
    _, neutral = _read_by_forests(labelled_rows)
    return basis, basis, basis @ (basis.T @ neutral)


def _read_by_forests(labelled_rows: Labelled) -> tuple[Tensor, Tensor]:
    """Return each dimension's importance (d,) to random forests, and the mean of unsure rows.

    The forests predict the values. A row is unsure if trees that were not fitted to it give no
    value a probability above `_SURE`. If there are no such rows, all rows are used.
    """
    ensemble = need("sklearn.ensemble")
    width = labelled_rows.rows.shape[1]
    importance = torch.zeros(width, dtype=torch.float64)
    unsure = labelled_rows.rows[:0]
    for rows, codes in labelled_rows.known():
        forest = ensemble.RandomForestClassifier(100, oob_score=True, random_state=0)
        forest.fit(rows.numpy(), codes.numpy())
        importance += torch.from_numpy(forest.feature_importances_)
        # Use out-of-bag predictions, because a tree predicts its own training rows with certainty.
        sure = torch.from_numpy(forest.oob_decision_function_).amax(1)
        unsure = torch.cat([unsure, rows[sure <= _SURE]])
    if not len(unsure):
        unsure = labelled_rows.rows
    return importance, unsure.mean(0)


def null_space_probes(labels: Sequence[tuple[Tensor, Tensor]], rounds: int = 5) -> Tensor:
    """Return the weights (r, d) of linear probes that are fitted and projected out one by one.

    This is Algorithm 1 of Ravfogel et al. (2020). An attribute is finished when its probe is no
    better than a constant prediction.

    Args:
        labels: for each attribute, rows (n, d) and codes (n,).
        rounds: maximum number of probes per attribute.
    """
    removed = labels[0][0][:0]
    for rows, codes in labels:
        remaining = rows - rows.mean(0)
        for _ in range(rounds):
            basis = torch.linalg.qr(removed.T).Q
            remaining = remaining - (remaining @ basis) @ basis.T
            weight, accuracy = _probe(remaining, codes)
            # If predicting the most frequent value is as accurate, no linear information is left.
            if accuracy <= int(codes.bincount().max()) / len(codes):
                break
            removed = torch.cat([removed, weight])
    if not len(removed):
        raise InvalidInputError(
            "spd: no linear probe predicts the attribute; pass more images or different labels"
        )
    return removed


def _probe(rows: Tensor, codes: Tensor) -> tuple[Tensor, float]:
    """Return the weights (k - 1, d) of a logistic regression and its training accuracy."""
    # Rows shrink with every projection, so rescale them to keep the effect of weight decay
    # constant.
    scale = rows.square().sum(1).mean().sqrt().clamp(min=torch.finfo(rows.dtype).tiny)
    # Fitting needs gradients, even inside a user's no_grad or inference_mode.
    with torch.inference_mode(False), torch.enable_grad():
        inputs = pad(rows / scale, (0, 1), value=1.0)
        codes = codes.clone()
        weight = inputs.new_zeros(int(codes.max()) + 1, inputs.shape[1]).requires_grad_()
        optimizer = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(inputs @ weight.T, codes) + _DECAY * weight[:, :-1].square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    accuracy = float(((inputs @ weight.detach().T).argmax(1) == codes).double().mean())
    without_bias = weight.detach()[:, :-1]
    # Softmax weights are determined up to a common vector, so k values have k - 1 directions.
    return span_of(without_bias - without_bias.mean(0)).T, accuracy


def roboshot(harmful: Tensor, helpful: Tensor) -> Affine:
    """Return the map (I + T T^T)(I - Q Q^T) for harmful and helpful insights.

    Q and T are orthonormal bases of the harmful and the helpful insights. Adila et al. (2024,
    Algorithm 1) apply the vectors one by one and normalise in between, which only changes norms,
    because each basis is orthonormal.

    Args:
        harmful: rows (m, d) of harmful insights.
        helpful: rows (n, d) of helpful insights.
    """
    q = span_of(harmful)
    t = span_of(helpful)
    # (I + T T^T)(I - Q Q^T) = I - Q Q^T + T (T - Q Q^T T)^T
    left_factor = torch.cat([q, -t], 1)
    right_factor = torch.cat([q, t - q @ (q.T @ t)], 1)
    return left_factor, right_factor, harmful.new_zeros(harmful.shape[1])


class RoboShot(EditMethod):
    """Remove harmful insights from images and amplify helpful ones, with the map of `roboshot`.

    The authors obtain the insights from a language model. Here they come from the prompt set:
    harmful insights are differences between prompts for two values, and helpful insights are
    differences between two class prompts.
    """

    declaration = DECLARED["roboshot"]

    def fit(self, problem: Problem, role: str) -> Edit:
        embed = partial(problem.host.embed, role=role)
        harmful = []
        for prompt_set in problem.attributes:
            rows_of_values = [embed(texts) for texts in prompt_set.by_value().values()]
            for rows, other_rows in combinations(rows_of_values, 2):
                # Pair text i for one value with text i for the other, ignoring surplus text.
                harmful.append(rows[: len(other_rows)] - other_rows[: len(rows)])
        helpful = [embed(prompt_set.classes).diff(dim=0) for prompt_set in problem.sets]
        return TwoTowers.from_maps(roboshot(torch.cat(harmful), torch.cat(helpful)))


def fair_pca(x: Tensor, z: Tensor, keep: int) -> Tensor:
    """Return the orthonormal directions (d, r) that fair PCA drops.

    The method is from Kleindessner et al. (2023), and FairImagen uses it. Let Z be the centred
    one-hot groups. R spans the null space of Z^T X, and U = R V for the eigenvectors V of
    R^T X^T X R with the `keep` largest eigenvalues. U U^T is then I minus the projection onto the
    dropped directions. At full width, these directions span only Z^T X, the differences between
    group means, and the result is the same as that of the method "difference" over all text that
    states a value.

    Args:
        x: rows (n, d) to project.
        z: one-hot groups (n, g).
        keep: number of directions to keep.
    """
    informative = span_of((z - z.mean(0)).T @ x)
    rest = torch.linalg.qr(informative, mode="complete").Q[:, informative.shape[1] :]
    inside = x @ rest
    _, vectors = torch.linalg.eigh(inside.T @ inside)  # in ascending order of eigenvalue
    dropped = max(0, rest.shape[1] - keep)
    return torch.cat([informative, rest @ vectors[:, :dropped]], 1)


class FairImagen(EditMethod):
    """Project every token state of a prompt with fair PCA (`fair_pca`), for one attribute.

    Unlike in the authors' code, each tensor of a pipeline has its own projection, fitted to the
    normalised states at the end of the prompts that state a value, and several attributes are not
    combined into one. The authors' code also samples a group for each image and moves the states
    towards it (`enoise`), so that images from one prompt lean towards different groups. This
    implementation omits that step, so its results are for the projection only.
    """

    declaration = DECLARED["fair-pca"]

    def fit(self, problem: Problem, role: str) -> Edit:
        self._only_attribute(problem)
        # The dropped directions form an orthonormal basis B, and the projection is I - B B^T.
        rows, groups = stated_texts(problem, role).one_hot()
        dropped = fair_pca(rows, groups, round(_KEPT * rows.shape[1]))
        return CalibratedProjection(
            lam=0.0,
            left=dropped,
            right=dropped,
            provenance=Provenance(self.name),
            spurious_rank=dropped.shape[1],
        )


register_method(Eraser(DECLARED["leace"], leace))
register_method(Eraser(DECLARED["sfid"], sfid))
register_method(Eraser(DECLARED["spd"], spd))
register_method(RoboShot())
register_method(FairImagen())
