"""Estimate the true group shares in re-ranked results from manually checked candidates."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from vldebias.measure.resampling import Interval
from vldebias.reranking.candidates import UNKNOWN, Candidates, Floats, Rows

# Minimum number of checked candidates for an interval, unless all results were checked.
ENOUGH = 20

# Prior standard deviations of the coefficients, in log odds. `python -m eval.photographs.rerank`
# measures the coverage of the resulting intervals.
_LABEL = 2.5
_SCORE = 1.0
_SHOWN = 1.0
_OTHER_LABEL = 1.0

_DRAWS = 1000
_PROPOSALS = 4 * _DRAWS
_STEPS = 100  # maximum number of Newton steps; about ten are needed
_HALVINGS = 40
_FREEDOM = 6  # degrees of freedom of the proposal


def true_shares(
    candidates: Candidates, first: Rows, checked: NDArray[np.integer], *, seed: int = 0
) -> dict[str, Interval] | None:
    """Estimate each group's true share of the results with a known label.

    Checked results are counted. The true groups of the other results are predicted by a logistic
    regression that is fitted to the checked candidates:

        log odds(true group is a) = u[label is a] + b z + v[label is a] * is_shown + w[label],

    where z is the normal score of the candidate's rank, and is_shown is 1 for results and 0 for
    other candidates. For three or more groups, w distinguishes labels other than a. A query that
    prefers a group also moves its mislabelled members to the top, so labels are wrong more often
    among the results than among other candidates. b and v account for this. The coefficients have
    independent normal priors with mean 0. They are sampled from their posterior, and the true
    groups are then sampled given the coefficients. The checked candidates may be a random sample of
    results, of other candidates, or of both.

    Args:
        candidates: the candidates for one query.
        first: rows (k,) of the results.
        checked: true group of each candidate (n,) as a position in `candidates.names`, or -1 if it
            was not checked.
        seed: random seed.

    Returns:
        Each group's true share with its 95% interval. None if fewer than 20 candidates with a known
        label were checked and some results remain unchecked.

    >>> import numpy as np
    >>> from vldebias import rerank
    >>> report = rerank([0.9, 0.8, 0.7, 0.6], 4, labels=["m", "f", "m", "f"]).report
    >>> checked = np.array([1, 0, 1, 1])  # positions in report.candidates.names
    >>> shares = true_shares(report.candidates, report.order, checked)
    >>> shares["m"].value
    0.75
    """
    is_labelled = candidates.codes != UNKNOWN
    shown = first[is_labelled[first]]
    rows = np.flatnonzero(is_labelled & (checked != UNKNOWN))
    unchecked = shown[checked[shown] == UNKNOWN]
    if not len(shown) or (len(unchecked) and len(rows) < ENOUGH):
        return None
    n_groups = len(candidates.names)
    counted = checked[shown]
    counts = np.bincount(counted[counted != UNKNOWN], minlength=n_groups)
    # The true number of results in each group: draws (draws, g) and their means (g,).
    draws = np.broadcast_to(counts, (_DRAWS, n_groups)).astype(np.float64)
    means = counts.astype(np.float64)
    if len(unchecked):
        predicted, expected = _predicted(candidates, shown, checked, rows, unchecked, seed)
        draws += predicted
        means += expected
    ends = np.quantile(draws / len(shown), [0.025, 0.975], axis=0).clip(0, 1)
    shares = {}
    for group, name in enumerate(candidates.names):
        low, high = ends[:, group]
        shares[name] = Interval(float(means[group] / means.sum()), float(low), float(high))
    return shares


def _predicted(
    candidates: Candidates,
    shown: Rows,
    checked: NDArray[np.integer],
    rows: Rows,
    unchecked: Rows,
    seed: int,
) -> tuple[Floats, Floats]:
    """Sample the true number of unchecked results in each group.

    Args:
        candidates: the candidates for one query.
        shown: rows of all results with a known label.
        checked: true group of each candidate (n,), or -1 if it was not checked.
        rows: rows of the checked candidates, used to fit the regression.
        unchecked: rows of the results that were not checked.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    n_groups = len(candidates.names)
    draws = np.empty((_DRAWS, n_groups))
    means = np.empty(n_groups)
    for group in range(n_groups):
        if n_groups == 2 and group == 1:
            draws[:, 1] = len(unchecked) - draws[:, 0]
            means[1] = len(unchecked) - means[0]
            break
        fitted = _inputs(candidates, shown, rows, group)
        coefficients = _posterior(fitted, checked[rows] == group, rng)
        unseen = _inputs(candidates, shown, unchecked, group)
        probabilities = _logistic(coefficients @ unseen.T)
        is_member = rng.random(probabilities.shape) < probabilities
        # Counts are integers, so add uniform noise of up to half a candidate to smooth them.
        halves = rng.uniform(-0.5, 0.5, size=_DRAWS)
        draws[:, group] = is_member.sum(axis=1) + halves
        means[group] = probabilities.mean(axis=0).sum()
    return draws, means


def _inputs(candidates: Candidates, shown: Rows, rows: Rows, group: int) -> Floats:
    """Return the regression inputs (rows, d) of some candidates for one group.

    Each input is scaled by the prior standard deviation of its coefficient, so that all
    coefficients have a standard normal prior.
    """
    labels = candidates.codes[rows][:, None]
    is_group = np.concatenate([labels == group, labels != group], axis=1)
    is_shown = np.isin(rows, shown)[:, None]
    ranked = np.sort(candidates.scores[candidates.codes != UNKNOWN])
    # Convert ranks to fractions in (0, 1), using the mean rank for ties.
    below = np.searchsorted(ranked, candidates.scores[rows], side="left")
    not_above = np.searchsorted(ranked, candidates.scores[rows], side="right")
    fractions = (below + not_above) / (2 * len(ranked))
    normal_scores = np.array([NormalDist().inv_cdf(fraction) for fraction in fractions])
    columns = [_LABEL * is_group, _SCORE * normal_scores[:, None], _SHOWN * (is_shown & is_group)]
    if len(candidates.names) > 2:
        other_labels = [code for code in range(len(candidates.names)) if code != group]
        columns.append(_OTHER_LABEL * (labels == other_labels))
    return np.concatenate(columns, axis=1)


def _posterior(inputs: Floats, is_group: NDArray[np.bool_], rng: np.random.Generator) -> Floats:
    """Sample coefficients (draws, d) of a logistic regression with standard normal priors.

    This uses importance resampling. The proposal is a multivariate t distribution that is centred
    at the mode and scaled by the curvature.
    """
    mode, curvature = _mode(inputs, is_group)
    root = np.linalg.cholesky(np.linalg.inv(curvature))
    normal = rng.normal(size=(_PROPOSALS, inputs.shape[1]))
    scale = np.sqrt(rng.chisquare(_FREEDOM, size=_PROPOSALS) / _FREEDOM)
    standard = normal / scale[:, None]
    proposals = mode + standard @ root.T
    freedom = _FREEDOM + inputs.shape[1]
    log_proposed = -freedom / 2 * np.log1p((standard**2).sum(axis=1) / _FREEDOM)
    log_weights = _log_posterior(proposals, inputs, is_group) - log_proposed
    weights = np.exp(log_weights - log_weights.max())
    return proposals[rng.choice(_PROPOSALS, size=_DRAWS, p=weights / weights.sum())]


def _mode(inputs: Floats, is_group: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return the posterior mode (d,) and the negative Hessian (d, d) at the mode."""
    d = inputs.shape[1]
    mode = np.zeros(d)
    for _ in range(_STEPS):
        probabilities = _logistic(inputs @ mode)
        gradient = inputs.T @ (is_group - probabilities) - mode
        spread = probabilities * (1 - probabilities)
        curvature = (inputs * spread[:, None]).T @ inputs + np.eye(d)
        step = np.linalg.solve(curvature, gradient)
        if np.abs(step).max() < 1e-6:
            break
        # A Newton step may overshoot if the groups are well separated, so halve it until the
        # concave log posterior increases.
        current = _log_posterior(mode[None], inputs, is_group)[0]
        for _ in range(_HALVINGS):
            if _log_posterior((mode + step)[None], inputs, is_group)[0] >= current:
                break
            step /= 2
        mode = mode + step
    return mode, curvature


def _log_posterior(coefficients: Floats, inputs: Floats, is_group: NDArray[np.bool_]) -> Floats:
    """Return the log posterior density (m,) of coefficients (m, d), up to a constant."""
    log_odds = coefficients @ inputs.T
    log_likelihood = (log_odds * is_group - np.logaddexp(0, log_odds)).sum(axis=1)
    log_prior = -0.5 * (coefficients**2).sum(axis=1)
    density: Floats = log_likelihood + log_prior
    return density


def _logistic(log_odds: Floats) -> Floats:
    probabilities: Floats = 0.5 * (1 + np.tanh(log_odds / 2))
    return probabilities
