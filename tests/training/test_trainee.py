"""The model and its loss as one module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_towers import SIZE, tiny_towers, tokenize
from torch import Tensor

from vldebias.losses import info_nce
from vldebias.training.batch import Batch
from vldebias.training.objectives import build_objective
from vldebias.training.settings import LossSettings
from vldebias.training.trainee import Trainee, unit

N, T = 6, 0.3
IMAGES = torch.rand(N, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
CAPTIONS = ["a cat", "a dog", "a cat", "an owl", "a dog", "a cat"]
BATCH = Batch(images=IMAGES, texts=tokenize(CAPTIONS), index=torch.arange(N))


def trainee(two_views: bool = False, fourier: float = 0.0) -> Trainee:
    objective = build_objective(LossSettings(loss="info_nce"), temperature=T, items=N, two_views=two_views)
    made = Trainee(tiny_towers(), objective, fourier=fourier)
    return made.eval()


def test_it_is_the_loss_of_the_features() -> None:
    made = trainee()
    towers: Any = made.towers
    expected = info_nce(unit(towers.image(IMAGES)), unit(towers.text(BATCH.texts)), temperature=T)
    torch.testing.assert_close(made(BATCH), expected)


def test_captions_that_repeat_go_through_the_tower_once_with_the_same_gradient() -> None:
    made = trainee()
    towers: Any = made.towers
    seen: list[int] = []
    text = towers.text

    def counted(texts: dict[str, Tensor]) -> Tensor:
        seen.append(len(texts["ids"]))
        return text(texts)

    towers.text = counted
    made(BATCH).backward()
    assert seen == [3]
    fast = made.model.letters.weight.grad.clone()
    made.zero_grad()
    info_nce(unit(towers.image(IMAGES)), unit(text(BATCH.texts)), temperature=T).backward()
    torch.testing.assert_close(fast, made.model.letters.weight.grad)


def test_two_views_read_no_text() -> None:
    made = trainee(two_views=True)
    towers: Any = made.towers
    views = IMAGES.flip(3)
    expected = info_nce(unit(towers.image(IMAGES)), unit(towers.image(views)), temperature=T, within_view=True)
    torch.testing.assert_close(made(Batch(images=IMAGES, views=views)), expected)


def test_fourier_mixing_changes_the_images_and_none_of_the_captions() -> None:
    plain, mixed = trainee(), trainee(fourier=0.5)
    torch.manual_seed(0)
    assert not torch.allclose(plain(BATCH), mixed(BATCH))
    torch.manual_seed(1)
    first = mixed(BATCH)
    torch.manual_seed(1)
    assert torch.equal(first, mixed(BATCH))


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
    moved = Batch(images=IMAGES, texts=BATCH.texts, index=torch.arange(N), labels=None).to("meta")
    assert moved.images.is_meta
    assert moved.texts["ids"].is_meta
    assert moved.index is not None
    assert moved.index.is_meta
    assert moved.labels is None
    assert len(moved) == N


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
    assert [len(images) for images in seen] == [2 * N, 2 * N], "once for partners, once for the loss"
    torch.testing.assert_close(seen[0], torch.cat([IMAGES, IMAGES.flip(3)]))
    assert not torch.allclose(seen[0][N:], seen[1][N:]), "second views are mixed too"


def test_the_look_for_partners_moves_no_running_statistics() -> None:
    """Batch normalisation would see every batch twice."""
    plain, mixed = trainee(), trainee(fourier=0.5)
    for made in (plain, mixed):
        made.model.norm = torch.nn.BatchNorm1d(made.model.image.out_features)
        image, towers = made.towers.image, made.towers
        towers.image = lambda images, image=image, made=made: made.model.norm(image(images))  # type: ignore[misc]
        made.train()
        made(BATCH)
    assert int(plain.model.norm.num_batches_tracked) == int(mixed.model.norm.num_batches_tracked) == 1
