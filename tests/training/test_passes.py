"""The gradient of a step: with all its negatives that of one large batch, and a number in every precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_towers import SIZE, tiny_towers, tokenize
from torch import Tensor, nn

from eval.experiments.tensor_batches import TensorBatches
from vldebias.errors import InvalidInputError
from vldebias.training.batches import Batch
from vldebias.training.loop import DivergedError, fit, make_accelerator
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.passes import Passes, Precision
from vldebias.training.settings import LoopSettings, LossSettings

N, B, MICRO = 24, 4, 3
IMAGES = torch.rand(N, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(N) % 3
MORE: dict[str, dict[str, Any]] = {
    "positives": {"positives": 3},
    "queue": {"queue": {"rows": 7}},
    "distill": {"distill": 0.7},
}
LOSSES: dict[str, dict[str, Any]] = {
    "info_nce": {"learn_temperature": True, "chunk_size": 5},
    "rince": {"q": 0.5},
    "debiased": {},
    "hard_negative": {"beta": 2.0},
    "sogclr": {},
    "nuclr": {"popularity_lr": 0.1, "popularity_start": 0.0},
    "sigmoid": {"learn_temperature": True},
    "spread": {},
}


def made(loss: str, more: dict[str, Any] | None = None, **given: Any) -> Trainee:
    chosen = LossSettings(loss=loss, **LOSSES[loss], **more or {})  # type: ignore[arg-type]
    trainee = Trainee(tiny_towers(), build_objective(chosen, temperature=0.3, items=N, dim=6), **given).double()
    trainee.objective.at(1, 2)
    return trainee


def micro(size: int = B, two_views: bool = False, further: int = 0) -> list[Batch]:
    def brighter(images: Tensor, generator: torch.Generator) -> Tensor:
        return images + torch.rand(len(images), 3, 1, 1, generator=generator)

    captions = [f"number {i % 9}" for i in range(N)]
    source = TensorBatches(
        IMAGES.double(),
        None if two_views else captions,
        tokenize=None if two_views else tokenize,
        labels=LABELS,
        augment=brighter if two_views or further else None,
        two_views=two_views,
        further=further,
        batch_size=size,
        seed=3,
    )
    return [source.batch(number) for number in range(B * MICRO // size)]


def passes(trainee: Trainee, **given: Any) -> Passes:
    settings = LoopSettings(steps=2, batch_size=B, accumulation=MICRO, **given)
    accelerator = make_accelerator(cpu=True)
    return Passes(accelerator, trainee, trainee, settings, Precision(settings.mixed_precision, accelerator.device))


def gradients(trainee: Trainee) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in trainee.named_parameters() if p.grad is not None}
    trainee.zero_grad()
    return found


@pytest.mark.parametrize("loss", LOSSES)
def test_with_all_negatives_it_is_the_gradient_of_one_large_batch(loss: str) -> None:
    whole, cached = made(loss).eval(), made(loss).eval()
    for trainee in (whole, cached):
        trainee.objective.train()  # its state moves, and dropout, which one batch draws otherwise, does not
    expected = whole(micro(B * MICRO)[0])
    expected.backward()
    value = passes(cached, negatives="step")(0, micro())
    assert float(value) == pytest.approx(float(expected.detach()))
    there, here = gradients(whole), gradients(cached)
    assert there.keys() == here.keys()
    for name, gradient in there.items():
        torch.testing.assert_close(here[name], gradient, rtol=1e-9, atol=1e-12)
    for name, buffer in whole.objective.named_buffers():
        torch.testing.assert_close(dict(cached.objective.named_buffers())[name], buffer)


@pytest.mark.parametrize("more", MORE)
def test_so_it_is_with_further_positives_a_queue_and_a_frozen_model(more: str) -> None:
    """Of micro-batches that are the parts of the one: augmentations are drawn by the batch."""
    whole, cached = (made("hard_negative", MORE[more]).eval() for _ in range(2))
    parts = micro(further=3 if more == "positives" else 0)
    joint = Batch(
        torch.cat([part.images for part in parts]),
        texts={name: torch.cat([part.texts[name] for part in parts]) for name in parts[0].texts},
        further=None if more != "positives" else torch.cat([p.further for p in parts if p.further is not None]),
    )
    for trainee in (whole, cached):
        if trainee.objective.queue is not None:
            rows = torch.nn.functional.normalize(torch.arange(30.0).reshape(5, 6).sin().double(), dim=1)
            trainee.objective.queue.push(rows, -rows)
        if more == "distill":
            trainee.frozen = tiny_towers(1)
            trainee.frozen.model.double().eval()
    expected = whole(joint)
    expected.backward()
    plain = made("hard_negative").eval()
    assert abs(float(expected.detach()) - float(plain(replace(joint, further=None)).detach())) > 1e-4
    assert float(passes(cached, negatives="step")(0, parts)) == pytest.approx(float(expected.detach()))
    here = gradients(cached)
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(here[name], gradient, rtol=1e-9, atol=1e-12)


def test_further_positives_are_those_of_the_loss() -> None:
    trainee = made("debiased", {"positives": 3}).eval()
    (batch,) = micro(B * MICRO, further=3)
    assert batch.further is not None
    assert batch.further.shape == (B * MICRO, 3, 3, SIZE, SIZE)
    features = trainee(batch, features=True)
    assert features["positives"].shape == (B * MICRO, 3, 6)
    for m in range(3):
        of_view = torch.nn.functional.normalize(trainee.towers.image(batch.further[:, m]), dim=1)
        torch.testing.assert_close(features["positives"][:, m], of_view)
    loss = trainee.objective.loss
    by_hand = loss(features["first"], features["second"], features["positives"])
    torch.testing.assert_close(trainee(batch), by_hand)
    assert not torch.allclose(by_hand, loss(features["first"], features["second"]))


def test_a_step_of_apart_negatives_is_another_one() -> None:
    apart, together = made("info_nce").eval(), made("info_nce").eval()
    one, other = passes(apart)(0, micro()), passes(together, negatives="step")(0, micro())
    assert float(one) < float(other) - 0.5, "fewer negatives, lower loss"
    found = gradients(apart)
    mean = sum(apart(batch) for batch in micro()) / MICRO
    mean.backward()
    assert float(one) == pytest.approx(float(mean.detach()))
    for name, gradient in gradients(apart).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)


def test_both_passes_draw_the_same_dropout_and_mixing() -> None:
    trainee = made("info_nce", fourier=0.5).train()
    trainee.model.insert = nn.Dropout(0.5)
    image = trainee.towers.image
    trainee.towers.image = lambda pixels: trainee.model.insert(image(pixels))  # type: ignore[method-assign]
    drawn: list[Tensor] = []
    trainee.model.insert.register_forward_hook(lambda *arguments: drawn.append(arguments[-1].detach()))
    passes(trainee, negatives="step")(0, micro())
    looks = 2  # of each micro-batch and pass: one that finds the partners, and one that learns
    assert len(drawn) == 2 * looks * MICRO
    for first, second in zip(drawn[: looks * MICRO], drawn[looks * MICRO :], strict=True):
        assert torch.equal(first, second)


def test_two_views_go_together_too() -> None:
    whole, cached = made("info_nce").eval(), made("info_nce").eval()
    parts = micro(two_views=True)
    joint = Batch(
        torch.cat([part.images for part in parts]),
        views=torch.cat([part.views for part in parts if part.views is not None]),
        index=torch.cat([part.index for part in parts if part.index is not None]),
    )
    whole(joint).backward()
    passes(cached, negatives="step")(0, parts)
    here = gradients(cached)
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(here[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["no", "bf16", "fp16"])
def test_the_precision_is_that_of_the_launch_unless_it_is_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", name)
    assert LoopSettings(steps=1).mixed_precision == name
    assert LoopSettings(steps=1, precision="no").mixed_precision == "no"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with pytest.raises(InvalidInputError, match="--mixed_precision fp8: expected no, bf16, fp16"):
        LoopSettings(steps=1).mixed_precision  # noqa: B018


def test_shards_have_no_scale() -> None:
    with pytest.raises(InvalidInputError, match="precision fp16: FSDP"):
        Precision("fp16", torch.device("cpu"), sharded=True)


def half(loss_scale: float, steps: int = 3) -> tuple[Trainee, list[float]]:
    trainee = Trainee(tiny_towers(), build_objective(LossSettings(loss="info_nce"), temperature=0.3, items=N))
    seen: list[float] = []

    class Scaled(nn.Module):
        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return ((first * second).sum() * loss_scale).half().float()

        temperature = 0.3

    trainee.objective.loss = Scaled()
    batches = TensorBatches(IMAGES, ["number 1"] * N, tokenize=tokenize, batch_size=B, seed=3)
    settings = LoopSettings(steps=steps, batch_size=B, precision="fp16", lr=0.1)
    fit(trainee, batches, settings, on_step=lambda entry, _: seen.append(entry["loss"]))
    return trainee, seen


def test_an_overflow_of_the_scale_costs_a_step_and_not_the_run() -> None:
    start = tiny_towers().model.state_dict()
    moved, _ = half(1.0, steps=12)
    assert any(not torch.equal(moved.model.state_dict()[name], start[name]) for name in start)
    stayed, seen = half(1e3, steps=1)  # 65536 times a thousand is no half-precision number
    assert len(seen) == 1
    assert all(torch.equal(stayed.model.state_dict()[name], start[name]) for name in start)
    with pytest.raises(DivergedError, match="loss is inf"):
        half(1e9, steps=1)
