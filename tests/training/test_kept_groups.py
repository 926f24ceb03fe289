"""Test the estimate of right captions, weighted pairs, and the share of each group that is kept."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize
from training_parts import image_data, pairs_of

from vldebias.data import Labels
from vldebias.errors import VldebiasWarning
from vldebias.losses import LOSSES, info_nce
from vldebias.training.batches import Batch
from vldebias.training.kept_groups import kept_by_group, warn_of_lost_groups
from vldebias.training.objective import Objective
from vldebias.training.settings import load_settings
from vldebias.training.suspects import right_captions


def scored(n: int, share: float, apart: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of n pairs, and which captions are right."""
    rng = np.random.default_rng(seed)
    is_right = rng.random(n) < share
    return (0.1 * rng.normal(size=n) + 0.1 * apart * is_right).astype(np.float32), is_right


EXCHANGED = (0.1 * np.random.default_rng(9).normal(size=500)).astype(np.float32)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8, 1.0])
def test_two_normals_estimate_the_share_and_rank_as_the_scores(share: float) -> None:
    scores, is_right = scored(2000, share, apart=2.5)
    scores[3] = np.nan
    right = right_captions(scores, EXCHANGED)
    assert right.share == pytest.approx(share, abs=0.05)
    assert right.weights[3] == 0
    known = np.isfinite(scores)
    assert (np.diff(right.weights[known][np.argsort(scores[known])]) >= 0).all()
    if share < 1:
        expected = (right.weights[known] > 0.5) == is_right[known]
        assert expected.mean() > 0.85


def test_without_exchanged_captions_every_scored_pair_counts_fully() -> None:
    scores = np.array([0.1, np.nan, 0.3], np.float32)
    right = right_captions(scores, np.array([], np.float32))
    assert (right.share, right.weights.tolist()) == (1.0, [1.0, 0.0, 1.0])
    same = right_captions(np.full(5, 0.2, np.float32), EXCHANGED)
    assert same.weights.tolist() == [1.0] * 5


def unit(n: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(n, 6, generator=generator), dim=1)


def test_a_weighted_loss_is_the_weighted_mean_over_pairs() -> None:
    images, texts = unit(8, 0), unit(8, 1)
    weights = torch.rand(8, generator=torch.Generator().manual_seed(2))
    settings = load_settings(data="own", steps=1, temperature=0.2)
    objective = Objective(settings, temperature=0.2, items=8, is_weighted=True)
    per_pair = info_nce(images, texts, temperature=0.2, reduction="none")
    loss = objective(images, texts, Batch(images, weights=weights))
    assert float(loss) == pytest.approx(float((per_pair * weights).sum() / weights.sum()))
    none = objective(images, texts, Batch(images, weights=torch.zeros(8)))
    assert float(none) == 0, "a batch without right captions has no influence"


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_equal_weights_do_not_change_any_loss(name: str) -> None:
    images, texts = unit(8, 0), unit(8, 1)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    batch: dict[str, Any] = {"index": torch.arange(8), "labels": labels, "captions": labels}
    losses = []
    for is_weighted in (False, True):
        radius = {"kl_radius": 1.0} if name == "isogclr" else {}  # below the log of 7 negatives
        settings = load_settings(data="own", steps=1, loss=name, label="kind", **radius)
        objective = Objective(settings, temperature=0.2, items=8, is_weighted=is_weighted)
        weights = torch.full((8,), 0.3) if is_weighted else None
        objective.schedule(0, 1)
        loss = objective(images, texts, Batch(images, weights=weights, **batch))
        losses.append(float(loss.detach()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_joined_batches_keep_their_weights() -> None:
    parts = [Batch(torch.zeros(2, 1), weights=torch.full((2,), value)) for value in (0.1, 0.9)]
    assert Batch.joined(parts).weights.tolist() == pytest.approx([0.1, 0.1, 0.9, 0.9])


def pairs_with_groups(n: int = 400) -> Any:
    values = ["dark"] * (n // 2) + ["blond"] * (n // 2 - 10) + [None] * 10
    labels = {
        "hair": Labels.from_values(values),
        "one": Labels.from_values(["same"] * n),
        "other": Labels.from_values(["a", "b"] * (n // 2)),
    }
    return pairs_of(image_data(n, labels=labels), label="hair")


def test_the_kept_share_of_each_group_is_compared_with_all_others() -> None:
    pairs = pairs_with_groups()
    weights = np.ones(400, np.float32)
    weights[200:260] = 0  # of 190 blond pairs
    weights[:20] = 0  # of 200 dark pairs
    settings = load_settings(data="own", label="hair", group_dro="one, hair", keep=0.8)
    dark, blond = kept_by_group(pairs, settings, weights)
    groups = {group["value"]: group for group in (dark, blond)}
    assert groups["blond"]["n"] == 190
    assert groups["blond"]["share"] == pytest.approx(130 / 190)
    assert groups["blond"]["change"][0] == pytest.approx(130 / 190 - 180 / 200)
    low, high = groups["blond"]["interval"]
    assert low < 130 / 190 < high
    assert groups["blond"]["change"][2] < 0 < groups["dark"]["change"][1]
    with pytest.warns(VldebiasWarning, match=r"of 190 pairs with hair = blond, 68% count"):
        warn_of_lost_groups([dark, blond])


def test_newcombe_interval_of_his_example() -> None:
    """Newcombe (1998), Table II: 56/70 - 48/80 has the interval [0.0524, 0.3339]."""
    values = ["a"] * 70 + ["b"] * 80
    pairs = pairs_of(image_data(150, labels={"kind": Labels.from_values(values)}), label="kind")
    weights = np.repeat([1, 0, 1, 0], [56, 14, 48, 32]).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        # His interval is not corrected for the number of groups.
        patch.setattr("vldebias.training.kept_groups.LEVEL", 0.9)
        first, _ = kept_by_group(pairs, load_settings(data="own", label="kind", keep=0.5), weights)
    assert first["change"] == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


@pytest.mark.filterwarnings("error")
def test_equal_groups_give_no_warning() -> None:
    pairs = pairs_with_groups()
    weights = (np.arange(400) % 5 > 0).astype(np.float32)
    settings = load_settings(data="own", label="hair", keep=0.8)
    warn_of_lost_groups(kept_by_group(pairs, settings, weights))
    assert kept_by_group(pairs, load_settings(data="own", keep=0.8), weights) == []
