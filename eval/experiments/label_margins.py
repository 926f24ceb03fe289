"""Measure the margins of networks that fit digits with correct or partly random labels.

    python -m eval.experiments.run label_margins

This corresponds to Figure 8-2 in the thesis, and to Figure 8-3, in which correct labels of an easy
and of a hard task are compared: scikit-learn's digits, and MNIST (`make mnist`) at the same size.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from apps.diagnose.diagnosis import BLOCK, leads
from eval.experiments.mnist import read
from eval.experiments.run import Cell
from vldebias.errors import InvalidInputError
from vldebias.metrics import k_variance
from vldebias.typing import AnyArray
from vldebias.utils.arrays import Codes, Floats

LEARNED = 300  # number of training images
GAP = "generalisation error"
EASY, HARD = "scikit-learn's digits", "MNIST"


def margins(
    head: nn.Linear | tuple[AnyArray, AnyArray], features: AnyArray, codes: Codes, *, seed: int = 0
) -> tuple[dict[str, Floats], Floats]:
    """Return the margins (n,) of a linear classifier, and the k-variance (k,) of its classes.

    - "margin": score of the row's class minus the best other score (eq. 8.1 of the thesis).
    - "sn_margin": margin / spectral norm of the weight (Table A.11; Bartlett et al., 2017).
    - "gn_margin": margin / (norm of the margin's gradient + 1e-6), section 8.3.2.
    - "tv_gn_margin": gn_margin / square root of the total variance E ||x - E x||^2 of the features,
      which Table A.11 writes Var(||x||^2) (Jiang et al., 2019).
    - "kv_margin": margin / E_c[Lip_c Var_c], where Lip_c is the largest gradient norm in a class.
    - "kv_gn_margin": gn_margin / E_c[Var_c], section 8.4.

    A margin is left out if its divisor is zero: both kv margins if all rows of each class are
    identical, "tv_gn_margin" if all rows are identical, and "sn_margin" if all weights are zero.

    Args:
        head: (weight (k, d), bias (k,)) or nn.Linear.
        features: inputs (n, d) of the head.
        codes: classes (n,).
        seed: random seed for the k-variance.

    Returns:
        A dict from the metric names above to margins (n,), and the k-variance of each class (k,).

    Raises:
        InvalidInputError: If the shapes do not match, or a class has only one row.
    """
    rows = torch.as_tensor(features).detach().cpu()
    if isinstance(head, nn.Linear):
        zeros = torch.zeros(head.out_features)
        head = (head.weight, zeros if head.bias is None else head.bias)
    weight = torch.as_tensor(head[0]).detach().cpu().double()
    bias = torch.as_tensor(head[1]).detach().cpu()
    sizes = np.bincount(codes, minlength=len(weight))
    has_shapes = weight.shape == (len(sizes), rows.shape[1]) and bias.shape == weight.shape[:1]
    if not has_shapes or sizes[sizes > 0].min() < 2:
        raise InvalidInputError(
            f"head: expected a weight (k, {rows.shape[1]}), a bias (k,) and two or more rows per"
            f" class; got {tuple(weight.shape)}, {tuple(bias.shape)} and classes with"
            f" {sizes.tolist()} rows"
        )
    scores = torch.cat([block.double() @ weight.T for block in rows.split(BLOCK)]) + bias
    margin, rival = leads(scores.numpy(), codes)
    # The margin is linear with gradient w_y - w_rival, so its Lipschitz constant (n,) is the
    # distance between two rows of the weight matrix.
    slope = torch.cdist(weight, weight).numpy()[codes, rival]
    variance = np.zeros(len(sizes))
    steepest = np.zeros(len(sizes))
    for code in np.flatnonzero(sizes):
        members = rows[torch.from_numpy(codes == code)].float()
        variance[code] = k_variance(members, seed=seed).value
        steepest[code] = slope[codes == code].max()

    gn_margin = margin / (slope + 1e-6)
    margin_of_metric = {"margin": margin, "gn_margin": gn_margin}
    norm = float(torch.linalg.matrix_norm(weight, 2))
    if norm > 0:
        margin_of_metric["sn_margin"] = margin / norm
    total = float(rows.float().var(0, correction=0).sum())
    if total > 0:
        margin_of_metric["tv_gn_margin"] = gn_margin / np.sqrt(total)
    shares = sizes / len(codes)
    # Leave out the kv margins if all rows of each class are identical, since they divide by zero.
    if (steepest * variance).any():
        margin_of_metric["kv_margin"] = margin / float(shares @ (steepest * variance))
        margin_of_metric["kv_gn_margin"] = gn_margin / float(shares @ variance)
    return margin_of_metric, variance


def task(data: str) -> tuple[torch.Tensor, np.ndarray]:
    """Return grey images (n, 64) of 8 x 8 pixels in [0, 1], and their digits (n,)."""
    if data == HARD:
        images, digits = read("test")
        pixels = nn.functional.adaptive_avg_pool2d(images / 255, 8).flatten(1)
        return pixels, digits.astype(np.int64)
    images, digits = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), digits


def medians(seed: int, share: float = 0.0, data: str = EASY, steps: int = 600) -> dict[str, float]:
    """Return the median margins of a network that fits labels, a share of which are random.

    The result includes the generalisation error, which is the difference between the accuracies on
    training images and on held-out images.

    Raises:
        RuntimeError: If the network does not fit all labels.
    """
    pixels, digits = task(data)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(digits))
    rows, unseen = order[:LEARNED], order[LEARNED:]
    labels = digits[rows].copy()
    is_random = rng.random(LEARNED) < share
    labels[is_random] = rng.integers(0, 10, is_random.sum())
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
    head = nn.Linear(64, 10)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 3e-3)
    target = torch.tensor(labels)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(head(body(pixels[rows])), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    features = body(pixels).detach()
    predicted = head(features).argmax(1).numpy()
    if (predicted[rows] != labels).any():
        raise RuntimeError(f"seed {seed}, share {share}: the network does not fit all labels")
    margins_of_rows, _ = margins(head, features[rows], labels)
    medians_of_metric = {name: float(np.median(values)) for name, values in margins_of_rows.items()}
    # The spectral norm of the whole network is at most the product of those of its layers.
    for layer in body[::2]:
        medians_of_metric["sn_margin"] /= float(torch.linalg.matrix_norm(layer.weight.detach(), 2))
    return medians_of_metric | {GAP: 1 - float((predicted == digits)[unseen].mean())}


def work(cell: Cell) -> dict[str, float]:
    """Return the generalisation error, and the ratios of margins with correct labels to these."""
    medians_of_metric = medians(cell["seed"], steps=cell["steps"], **cell["settings"])
    figures = {GAP: medians_of_metric.pop(GAP)}
    if cell["settings"]:
        correct = medians(cell["seed"], steps=cell["steps"])
        for name, value in medians_of_metric.items():
            figures[f"ratio, {name}"] = correct[name] / value
    return figures
