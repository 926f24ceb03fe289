"""The losses by their names, and model and loss as one module."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_towers import SIZE, tiny_towers, tokenize
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.losses import (
    GlobalContrastiveLoss,
    debiased_contrastive,
    hard_negative_contrastive,
    info_nce,
    rince,
    sigmoid,
    spread,
)
from vldebias.training.batches import Batch
from vldebias.training.objective import Trainee, build_objective, unit
from vldebias.training.passes import Passes
from vldebias.training.settings import LossSettings

N, T = 8, 0.2


def features(seed: int) -> Tensor:
    return F.normalize(torch.randn(N, 5, generator=torch.Generator().manual_seed(seed)), dim=1)


X, Y = features(0), features(1)
BATCH = Batch(images=torch.zeros(N, 3, 1, 1), index=torch.arange(N), labels=torch.arange(N) % 3)
FUNCTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "info_nce": ({}, lambda: info_nce(X, Y, temperature=T)),
    "rince": ({"q": 0.3, "lam": 0.1}, lambda: rince(X, Y, temperature=T, q=0.3, lam=0.1)),
    "debiased": ({"tau_plus": 0.2}, lambda: debiased_contrastive(X, Y, temperature=T, tau_plus=0.2)),
    "hard_negative": (
        {"tau_plus": 0.2, "beta": 0.5, "form": "jsd"},
        lambda: hard_negative_contrastive(X, Y, temperature=T, tau_plus=0.2, beta=0.5, form="jsd"),
    ),
    "sigmoid": ({}, lambda: sigmoid(X, Y, temperature=T, bias=-10.0)),
    "spread": ({"spread_alpha": 0.3}, lambda: spread(X, Y, BATCH.labels, temperature=T, alpha=0.3, within_view=False)),
    "sogclr": ({}, lambda: GlobalContrastiveLoss(N, temperature=T)(X, Y, BATCH.index)),
    "nuclr": ({"zeta_init": 0.1}, lambda: GlobalContrastiveLoss(N, temperature=T, zeta_init=0.1)(X, Y, BATCH.index)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_is_the_function_of_its_name(name: str) -> None:
    given, function = FUNCTIONS[name]
    objective = build_objective(LossSettings(loss=name, temperature=T, **given), temperature=9.0, items=N)
    torch.testing.assert_close(objective(X, Y, BATCH), function())
    assert objective.temperature == pytest.approx(T)


def test_two_views_count_the_own_view_among_the_negatives() -> None:
    objective = build_objective(LossSettings(loss="info_nce"), temperature=T, items=N, two_views=True)
    torch.testing.assert_close(objective(X, Y, BATCH), info_nce(X, Y, temperature=T, within_view=True))


def test_the_model_s_temperature_is_taken_where_none_is_given_and_may_be_learned() -> None:
    objective = build_objective(LossSettings(loss="info_nce", learn_temperature=True), temperature=T, items=N)
    objective(X, Y, BATCH).backward()
    (parameter,) = objective.parameters()
    assert parameter.grad is not None
    assert parameter.grad != 0
    assert objective.temperature == pytest.approx(T)


def test_schedules_move_the_loss() -> None:
    warmed = build_objective(LossSettings(loss="rince", q=0.4, q_start=0.01), temperature=T, items=N)
    seen = []
    for step in range(4):
        warmed.at(step, 4)
        seen.append(warmed.loss.q)
    assert seen == pytest.approx([0.01, 0.14, 0.27, 0.4])
    annealed = build_objective(LossSettings(loss="hard_negative", beta=2.0, beta_changes=2), temperature=T, items=N)
    annealed.at(3, 4)
    assert annealed.loss.beta == 1.0
    popular = build_objective(LossSettings(loss="nuclr", popularity_lr=0.5), temperature=T, items=N)
    popular.at(0, 10)
    assert popular.loss.popularity_lr == 0.0
    popular.at(2, 10)
    assert popular.loss.popularity_lr == 0.5


def test_sogclr_never_moves_its_popularity() -> None:
    objective = build_objective(LossSettings(loss="sogclr"), temperature=T, items=N)
    objective.at(9, 10)
    objective(X.clone().requires_grad_(), Y, BATCH)
    assert not objective.loss.zeta.any()


def test_what_a_loss_cannot_do_without_is_said() -> None:
    with pytest.raises(InvalidInputError, match=r"info_nce does not read lam, q; it reads .*temperature"):
        build_objective(LossSettings(loss="info_nce", q=0.3, lam=0.1), temperature=T, items=N)
    with pytest.raises(InvalidInputError, match="which a stream does not say"):
        build_objective(LossSettings(loss="sogclr"), temperature=T, items=None)
    objective = build_objective(LossSettings(loss="spread"), temperature=T, items=N)
    with pytest.raises(InvalidInputError, match="spread: reads the labels of every pair"):
        objective(X, Y, Batch(images=BATCH.images))


def test_the_other_settings_reach_the_loss() -> None:
    """Those that no value at one step shows: memory of the state, rows held at once, processes."""
    for loss in ("sogclr", "nuclr"):
        made = build_objective(LossSettings(loss=loss, gamma=0.3), temperature=T, items=N)
        assert made.loss.gamma == 0.3
    split = build_objective(LossSettings(loss="info_nce", chunk_size=3), temperature=T, items=N, gather=True)
    assert (split.loss.chunk_size, split.loss.gather) == (3, True)
    assert not build_objective(LossSettings(loss="info_nce"), temperature=T, items=N).loss.gather
    popular = build_objective(
        LossSettings(loss="nuclr", popularity_lr=0.25, popularity_start=0.6), temperature=T, items=N
    )
    seen = []
    for step in range(5):
        popular.at(step, 5)
        seen.append(popular.loss.popularity_lr)
    assert seen == [0.0, 0.0, 0.0, 0.25, 0.25]


def test_the_state_of_a_global_loss_has_the_memory_that_was_asked_for() -> None:
    slow, fast = (build_objective(LossSettings(loss="sogclr", gamma=g), temperature=T, items=N) for g in (0.1, 1.0))
    for made in (slow, fast):
        made(X.clone().requires_grad_(), Y, BATCH)
        made(Y.clone().requires_grad_(), Y, BATCH)  # the second estimate, which gamma weighs
    assert not torch.allclose(slow.loss.log_u, fast.loss.log_u)


ROWS, OWN_T = 6, 0.3
IMAGES = torch.rand(ROWS, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
CAPTIONS = ["a cat", "a dog", "a cat", "an owl", "a dog", "a cat"]
PAIRS = Batch(images=IMAGES, texts=tokenize(CAPTIONS), index=torch.arange(ROWS))


def trainee(two_views: bool = False, fourier: float = 0.0) -> Trainee:
    objective = build_objective(LossSettings(loss="info_nce"), temperature=OWN_T, items=ROWS, two_views=two_views)
    made = Trainee(tiny_towers(), objective, fourier=fourier)
    return made.eval()


def test_it_is_the_loss_of_the_features() -> None:
    made = trainee()
    towers: Any = made.towers
    expected = info_nce(unit(towers.image(IMAGES)), unit(towers.text(PAIRS.texts)), temperature=OWN_T)
    torch.testing.assert_close(made(PAIRS), expected)


def test_captions_that_repeat_go_through_the_tower_once_with_the_same_gradient() -> None:
    made = trainee()
    towers: Any = made.towers
    seen: list[int] = []
    text = towers.text

    def counted(texts: dict[str, Tensor]) -> Tensor:
        seen.append(len(texts["ids"]))
        return text(texts)

    towers.text = counted
    made(PAIRS).backward()
    assert seen == [3]
    fast = made.model.letters.weight.grad.clone()
    made.zero_grad()
    info_nce(unit(towers.image(IMAGES)), unit(text(PAIRS.texts)), temperature=OWN_T).backward()
    torch.testing.assert_close(fast, made.model.letters.weight.grad)


def test_two_views_read_no_text() -> None:
    made = trainee(two_views=True)
    towers: Any = made.towers
    views = IMAGES.flip(3)
    expected = info_nce(unit(towers.image(IMAGES)), unit(towers.image(views)), temperature=OWN_T, within_view=True)
    torch.testing.assert_close(made(Batch(images=IMAGES, views=views)), expected)


def test_amplitudes_are_mixed_of_pixels_whatever_is_taken_off_them() -> None:
    plain, shifted = trainee(fourier=0.5), trainee(fourier=0.5)
    shifted.towers.mean, shifted.towers.std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)  # type: ignore[misc]
    mean, std = (torch.tensor(v)[:, None, None] for v in (shifted.towers.mean, shifted.towers.std))
    image = shifted.towers.image
    shifted.towers.image = lambda images: image(images * std + mean)  # type: ignore[misc]
    torch.manual_seed(1)
    expected = plain._mixed(IMAGES)
    torch.manual_seed(1)
    torch.testing.assert_close(shifted._mixed((IMAGES - mean) / std) * std + mean, expected)
    assert not torch.allclose(expected, IMAGES, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_normalised_in_single(dtype: torch.dtype) -> None:
    features = unit(torch.rand(4, 9).to(dtype))
    assert features.dtype == torch.float32
    torch.testing.assert_close(features.norm(dim=1), torch.ones(4))


def test_a_batch_moves_all_its_parts() -> None:
    there: Any = SimpleNamespace(accelerator=SimpleNamespace(device="meta"))
    moved = Passes._there(there, Batch(images=IMAGES, texts=PAIRS.texts, index=torch.arange(ROWS), labels=None))
    assert moved.images.is_meta
    assert moved.texts["ids"].is_meta
    assert moved.index is not None
    assert moved.index.is_meta
    assert moved.labels is None
    assert len(moved) == ROWS


def test_mixing_finds_partners_among_both_views_and_leaves_running_statistics() -> None:
    made = trainee(two_views=True, fourier=1.0)
    towers: Any = made.towers
    seen: list[Tensor] = []
    image = towers.image

    def noted(images: Tensor) -> Tensor:
        seen.append(images)
        return image(images)

    towers.image = noted
    made(Batch(images=IMAGES, views=IMAGES.flip(3)))
    assert [len(images) for images in seen] == [2 * ROWS, 2 * ROWS], "once for partners, once for the loss"
    torch.testing.assert_close(seen[0], torch.cat([IMAGES, IMAGES.flip(3)]))
    assert not torch.allclose(seen[0][ROWS:], seen[1][ROWS:]), "second views are mixed too"


def test_a_partner_of_another_image_is_not_the_own_other_view() -> None:
    """Views that are all the same: the own other view is the most similar, and mixing with it changes nothing."""
    batch, seen = Batch(images=IMAGES, views=IMAGES.clone()), {}
    for partner in ("any", "other"):
        made = trainee(two_views=True, fourier=1.0)
        made.eval()
        made.partner = partner  # type: ignore[assignment]
        seen[partner] = made._mixed(torch.cat([batch.images, IMAGES]), views=2)
    torch.testing.assert_close(seen["any"], IMAGES.repeat(2, 1, 1, 1), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(seen["other"], IMAGES.repeat(2, 1, 1, 1), atol=1e-2)


def test_the_look_for_partners_moves_no_running_statistics() -> None:
    """Batch normalisation would see every batch twice."""
    plain, mixed = trainee(), trainee(fourier=0.5)
    for made in (plain, mixed):
        made.model.norm = torch.nn.BatchNorm1d(made.model.image.out_features)
        image, towers = made.towers.image, made.towers
        towers.image = lambda images, image=image, made=made: made.model.norm(image(images))  # type: ignore[misc]
        made.train()
        made(PAIRS)
    assert int(plain.model.norm.num_batches_tracked) == int(mixed.model.norm.num_batches_tracked) == 1
