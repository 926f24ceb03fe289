"""Test that objectives use the named losses, and that model and loss form a single module."""

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from training_parts import SIZE, letters_of, tiny_towers

from tests.losses import slow_losses
from vldebias import losses
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.losses import info_nce
from vldebias.training.augmentation import mix_amplitudes, most_similar
from vldebias.training.batches import Batch
from vldebias.training.objective import Objective, Trainee, unit
from vldebias.training.settings import LossSettings

N = 8
T = 0.2


def features(seed: int) -> Tensor:
    return F.normalize(torch.randn(N, 5, generator=torch.Generator().manual_seed(seed)), dim=1)


def built(
    loss: str,
    *,
    items: int | None = N,
    groups: int | None = None,
    gather: bool = False,
    **settings: Any,
) -> Any:
    chosen = LossSettings(loss=loss, **settings)  # type: ignore[arg-type]
    return Objective(chosen, temperature=T, items=items, groups=groups, gather=gather)


X = features(0)
Y = features(1)
BATCH = Batch(
    torch.zeros(N, 3, 1, 1),
    index=torch.arange(N),
    labels=torch.arange(N) % 3,
    captions=torch.arange(N) // 2,
)
HARD: dict[str, Any] = {"tau_plus": 0.2, "beta": 0.5}
SPREAD: Any = {"alpha": 0.3, "within_view": False}
FUNCTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "info_nce": ({}, lambda: info_nce(X, Y, temperature=T)),
    "rince": ({"q": 0.3, "lam": 0.1}, lambda: losses.rince(X, Y, temperature=T, q=0.3, lam=0.1)),
    "debiased": (
        {"tau_plus": 0.2},
        lambda: losses.debiased(X, Y, temperature=T, tau_plus=0.2),
    ),
    "hard_negative": (HARD, lambda: losses.hard_negative(X, Y, temperature=T, **HARD)),
    "sigmoid": ({}, lambda: losses.sigmoid(X, Y, temperature=T, bias=-10.0)),
    "spread": (
        {"spread_alpha": 0.3},
        lambda: losses.spread(X, Y, BATCH.labels, temperature=T, **SPREAD),
    ),
    "supcon": ({}, lambda: losses.supcon(X, Y, BATCH.labels, temperature=T, within_view=False)),
    "cyclip": ({"in_modal": 0.5}, lambda: losses.cyclip(X, Y, temperature=T, in_modal=0.5)),
    "isogclr": (
        {"kl_radius": 0.5},
        lambda: losses.ISogCLR(N, temperature=T, kl_radius=0.5)(X, Y, BATCH.index),
    ),
    "sogclr": ({}, lambda: losses.SogCLR(N, temperature=T)(X, Y, BATCH.index)),
    "gce": (
        {"gce_q": 0.5, "smoothing": 0.1},
        lambda: losses.gce(X, Y, BATCH.captions, temperature=T, q=0.5, smoothing=0.1),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_objective_matches_the_loss_function_it_names(name: str) -> None:
    settings, function = FUNCTIONS[name]
    objective = Objective(
        LossSettings(loss=name, temperature=T, **settings), temperature=9.0, items=N
    )  # type: ignore[arg-type]
    torch.testing.assert_close(objective(X, Y, BATCH), function())
    assert objective.temperature == pytest.approx(T)


def test_rince_lam_depends_on_the_batch_unless_it_is_set() -> None:
    objective = built("rince", q=0.4)
    for rows in (3, N):
        expected = losses.rince(X[:rows], Y[:rows], temperature=T, q=0.4, lam=1 / rows)
        torch.testing.assert_close(objective(X[:rows], Y[:rows], BATCH), expected)
    chosen = LossSettings(loss="rince", q=0.4)
    two_views = Objective(chosen, temperature=T, items=N, two_views=True)
    expected = losses.rince(X, Y, temperature=T, q=0.4, lam=1 / (2 * N - 1), within_view=True)
    torch.testing.assert_close(two_views(X, Y, BATCH), expected)
    assert built("rince", lam=0.2).loss.lam == 0.2


def test_the_temperature_of_the_model_is_the_default_and_may_be_learned() -> None:
    objective = built("info_nce", learn_temperature=True)
    objective(X, Y, BATCH).backward()
    (parameter,) = objective.parameters()
    assert parameter.grad != 0
    assert objective.temperature == pytest.approx(T)


def test_rince_raises_the_temperature_of_clip_unless_it_is_set() -> None:
    """With q / t = 40, the weights of pairs would differ by a factor of e^40. A given temperature
    is used, with a warning above e^20."""
    for loss, model_temperature, settings, wanted in (
        ("rince", 0.01, None, 0.1),
        ("rince", 0.5, None, 0.5),
        ("rince", 0.5, 0.0195, 0.0195),
        ("rince", 0.5, 0.02, 0.02),
        ("info_nce", 0.01, None, 0.01),
    ):
        chosen = LossSettings(loss=loss, temperature=settings)  # type: ignore[arg-type]
        with (
            pytest.warns(VldebiasWarning, match="temperature 0.0195")
            if settings == 0.0195
            else nullcontext()
        ):
            assert Objective(chosen, temperature=model_temperature, items=N).temperature == wanted


def test_schedules_change_the_loss() -> None:
    warmed = built("rince", q=0.4, q_start=0.01)
    seen = []
    for step in range(4):
        warmed.schedule(step, 4)
        seen.append(warmed.loss.q)
    assert seen == pytest.approx([0.01, 0.14, 0.27, 0.4])
    popular = built("nuclr", popularity_lr=0.5)
    still = built("sogclr")
    for step, rate in ((0, 0.0), (1, 0.0), (2, 0.5)):
        popular.schedule(step, 10)
        assert popular.loss.popularity_lr == rate
    still.schedule(9, 10)
    still(X.clone().requires_grad_(), Y, BATCH)
    assert not hasattr(still.loss, "zeta"), "only nuclr has margins"


def test_the_papers_settings_are_passed_to_the_loss() -> None:
    nuclr = built("nuclr", gamma=0.5, zeta_init=-0.05, popularity_wait=0.5)
    assert nuclr.loss.gamma == 0.5
    assert nuclr.loss.zeta.unique().tolist() == pytest.approx([-0.05])
    for step, is_learning in ((4, False), (5, True)):
        nuclr.schedule(step, 10)
        assert (nuclr.loss.popularity_lr > 0) == is_learning
    debiased = built("debiased", floor=0.0, below_floor="biased")
    assert (debiased.loss.floor, debiased.loss.below_floor) == (0.0, "biased")


def test_beta_is_annealed_in_equal_steps_as_in_appendix_a_2_2() -> None:
    annealed = built("hard_negative", beta=1.0, beta_changes=4)
    constant = built("hard_negative")
    seen = []
    for step in range(8):
        annealed.schedule(step, 8)
        constant.schedule(step, 8)
        seen.append(annealed.loss.beta)
        assert constant.loss.beta == 1.0
    assert seen == pytest.approx([1, 1, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25])


@pytest.mark.parametrize("loss", ["debiased", "hard_negative"])
def test_a_low_temperature_of_the_debiased_loss_warns_except_with_the_authors_rule(
    loss: str,
) -> None:
    with pytest.warns(VldebiasWarning, match="below_floor"):
        built(loss, temperature=0.01)
    built(loss, temperature=0.01, below_floor="biased")
    built(loss, temperature=0.1)


@pytest.mark.parametrize("two_views", [False, True])
@pytest.mark.parametrize(("loss", "beta"), [("debiased", 0.0), ("hard_negative", 0.5)])
def test_several_positives_match_a_loop(loss: str, beta: float, two_views: bool) -> None:
    """With M = 3, the positives are the other half of the pair and two further views. Images only
    have their caption, three times."""
    settings: dict[str, Any] = {"tau_plus": 0.2, "positives": 3}
    if beta:
        settings["beta"] = beta
    chosen = LossSettings(loss=loss, **settings)  # type: ignore[arg-type]
    objective = Objective(chosen, temperature=T, items=N, two_views=two_views)
    further = torch.stack([features(2), features(3)], dim=1)
    of_texts = torch.cat([X[:, None], further], dim=1)
    of_images = Y[:, None].expand_as(of_texts)
    if two_views:
        of_images = torch.cat([Y[:, None], further], dim=1)
    row = slow_losses.hcl_row(0.2, beta, lambda: torch.tensor(math.exp(-1 / T)))
    t = torch.tensor(T)
    first = slow_losses.of_rows(X, Y, row, t, two_views, of_images)
    second = slow_losses.of_rows(Y, X, row, t, two_views, of_texts)
    measured = objective(X, Y, BATCH, further_features=further)
    torch.testing.assert_close(measured, ((first + second) / 2).mean())
    alone = Objective(
        chosen.model_copy(update={"positives": 1}), temperature=T, items=N, two_views=two_views
    )
    assert not torch.isclose(measured, alone(X, Y, BATCH), rtol=1e-4)
    with pytest.raises(InvalidInputError, match="positives"):
        objective(X, Y, BATCH)


def test_group_dro_weights_the_losses_of_the_groups() -> None:
    """All groups start with the same weight. Then the group with the higher loss gets more."""
    objective = built("info_nce", group_dro="place", group_dro_step=1.0, groups=2)
    groups = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    loss_of_pairs = info_nce(X, Y, temperature=T, reduction="none")
    means = torch.stack([loss_of_pairs[groups == g].mean() for g in (0, 1)])
    weights = (means - means.logsumexp(0)).exp()
    loss = objective(X.clone().requires_grad_(), Y, Batch(images=BATCH.images, groups=groups))
    torch.testing.assert_close(loss, (weights * means).sum())


ROWS = 6
IMAGES = torch.rand(ROWS, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
PAIRS = Batch(
    IMAGES,
    letters_of(["a cat", "a dog", "a cat", "an owl", "a dog", "a cat"]),
    index=torch.arange(ROWS),
)


def trainee(two_views: bool = False, **settings: Any) -> Any:
    objective = Objective(
        LossSettings(loss="info_nce"), temperature=T, items=ROWS, two_views=two_views
    )
    return Trainee(tiny_towers(), objective, **settings).eval()


def noted(made: Any, name: str) -> list[Any]:
    """Record the inputs of one of the trainee's towers."""
    seen: list[Any] = []
    tower = getattr(made.towers, name)
    setattr(made.towers, name, lambda inputs: seen.append(inputs) or tower(inputs))
    return seen


def test_the_trainee_returns_the_loss_of_its_features_and_two_views_do_not_need_text() -> None:
    made = trainee()
    image = made.towers.image
    text = made.towers.text
    torch.testing.assert_close(
        made(PAIRS), info_nce(unit(image(IMAGES)), unit(text(PAIRS.texts)), temperature=T)
    )
    made = trainee(two_views=True)
    views = IMAGES.flip(3)
    image = made.towers.image
    read = noted(made, "text")
    expected = info_nce(unit(image(IMAGES)), unit(image(views)), temperature=T, within_view=True)
    torch.testing.assert_close(made(Batch(images=IMAGES, views=views)), expected)
    assert not read
    # The comparison is in single precision.
    torch.testing.assert_close(unit(torch.rand(4, 9).bfloat16()).norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("two_views", [False, True])
def test_further_views_are_positives_of_their_image(two_views: bool) -> None:
    settings = LossSettings(loss="debiased", positives=3)
    objective = Objective(settings, temperature=T, items=ROWS, two_views=two_views)
    made = Trainee(tiny_towers(), objective).eval()
    further = torch.rand(ROWS, 2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    batch = replace(PAIRS, more_views=further)
    if two_views:
        batch = Batch(images=IMAGES, views=IMAGES.flip(3), more_views=further)
    image = made.towers.image
    first = unit(image(IMAGES))
    second = unit(image(IMAGES.flip(3))) if two_views else unit(made.towers.text(PAIRS.texts))
    other_views = torch.stack([unit(image(further[:, number])) for number in (0, 1)], dim=1)
    torch.testing.assert_close(
        made(batch), objective(first, second, batch, further_features=other_views)
    )
    torch.testing.assert_close(made(batch, features=True)["further_features"], other_views)


def test_repeated_captions_are_encoded_once_with_the_same_gradient() -> None:
    made = trainee()
    text = made.towers.text
    seen = noted(made, "text")
    made(PAIRS).backward()
    assert [len(texts["ids"]) for texts in seen] == [3]
    fast = made.model.letters.weight.grad.clone()
    made.zero_grad()
    info_nce(unit(made.towers.image(IMAGES)), unit(text(PAIRS.texts)), temperature=T).backward()
    torch.testing.assert_close(fast, made.model.letters.weight.grad)


def test_amplitudes_are_mixed_before_normalisation() -> None:
    shifted = trainee(fourier=0.5)
    shifted.towers.mean = (0.5, 0.4, 0.3)
    shifted.towers.std = (0.2, 0.3, 0.4)
    mean, std = (torch.tensor(v)[:, None, None] for v in (shifted.towers.mean, shifted.towers.std))
    image = shifted.towers.image
    shifted.towers.image = lambda images: image(images * std + mean)
    torch.manual_seed(1)
    expected = mix_amplitudes(IMAGES, most_similar(image(IMAGES)), 0.5 * torch.rand(ROWS))
    torch.manual_seed(1)
    torch.testing.assert_close(shifted._mixed((IMAGES - mean) / std) * std + mean, expected)
    assert not torch.allclose(expected, IMAGES, atol=1e-3)


def test_partners_for_mixing_may_be_in_either_view() -> None:
    made = trainee(two_views=True, fourier=1.0)
    seen = noted(made, "image")
    made(Batch(images=IMAGES, views=IMAGES.flip(3)))
    assert [len(images) for images in seen] == [2 * ROWS, 2 * ROWS], (
        "once for partners, once for the loss"
    )
    torch.testing.assert_close(seen[0], torch.cat([IMAGES, IMAGES.flip(3)]))
    assert not torch.allclose(seen[0][ROWS:], seen[1][ROWS:]), "second views are mixed too"


def test_searching_for_partners_does_not_update_running_statistics() -> None:
    """If it did, batch normalisation would count every batch twice."""
    plain = trainee()
    mixed = trainee(fourier=0.5)
    for made in (plain, mixed):
        made.model.norm = torch.nn.BatchNorm1d(made.model.image.out_features)
        image = made.towers.image
        towers = made.towers
        towers.image = lambda images, image=image, made=made: made.model.norm(image(images))
        made.train()
        made(PAIRS)
    assert (
        int(plain.model.norm.num_batches_tracked) == int(mixed.model.norm.num_batches_tracked) == 1
    )
