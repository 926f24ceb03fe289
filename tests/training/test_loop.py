"""Compare the training loop with a plain torch loop and with large batches, and test resuming after
a kill."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from training_parts import SIZE, Stream, equal, letters_of, plain, tiny_towers

from eval.experiments.tensor_batches import TensorBatches
from vldebias.errors import InvalidInputError
from vldebias.losses.catalog import BUILT_IN
from vldebias.training.batches import Batch, StreamBatches
from vldebias.training.loop import (
    HISTORY,
    STATE,
    DivergedError,
    Entry,
    Run,
    fit,
    make_accelerator,
    read_state,
)
from vldebias.training.objective import Objective, Trainee
from vldebias.training.optim import climbed
from vldebias.training.settings import LoopSettings, LossSettings

N = 24
B = 6
STEPS = 7
STOP = Mock(side_effect=KeyboardInterrupt)
IMAGES = torch.rand(N, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
CAPTIONS = [f"number {i}" for i in range(N)]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "average": {"ema": 0.9},
    "sam": {"sharpness": "sam", "rho": 0.1},
    "asam": {"sharpness": "asam"},
    "accumulated": {"accumulation": 2},
    "all negatives": {"accumulation": 2, "negatives": "step"},
    "fp16": {"precision": "fp16", "lr": 0.01},
    "everything": {
        "ema": 0.9,
        "sharpness": "asam",
        "accumulation": 2,
        "precision": "bf16",
        "clip_norm": None,
    },
}


def batches(images: Tensor = IMAGES, loss: str = "") -> Any:
    if loss == "stream":
        how: dict[str, Any] = {"tokenize": letters_of, "batch_size": B, "seed": 3}
        return StreamBatches(Stream(5 * N, shards=5), plain, buffer=4, **how)  # type: ignore[arg-type]
    groups = torch.arange(N) % 3
    return TensorBatches(images, CAPTIONS, tokenize=letters_of, groups=groups, batch_size=B, seed=3)


def settings(**changes: Any) -> LoopSettings:
    return LoopSettings(
        **{"steps": STEPS, "batch_size": B, "lr": 0.05, "save_every": 0.0, "seed": 5, **changes}
    )


def trainee(loss: str = "nuclr", fourier: float = 0.0, **loss_settings: Any) -> Trainee:
    chosen = LossSettings(loss=loss, **loss_settings)  # type: ignore[arg-type]
    return Trainee(
        tiny_towers(), Objective(chosen, temperature=0.3, items=N, groups=3), fourier=fourier
    )


def weights(made: Trainee) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in made.state_dict().items()}


def at_step(number: int, do: Any) -> Any:
    return lambda entry, _: do() if entry["step"] == number else None


@pytest.mark.parametrize(("sharpness", "rho"), [("none", 0), ("sam", 0.05), ("asam", 2.0)])
def test_training_matches_a_plain_loop(sharpness: Any, rho: float) -> None:
    made = trainee("info_nce")
    naive = trainee("info_nce")
    history = fit(
        made, batches(), settings(weight_decay=0.1, warmup=0.3, clip_norm=0.5, sharpness=sharpness)
    )
    decaying = [
        {"params": [p], "weight_decay": 0.1 * (p.ndim > 1)}
        for p in naive.parameters()
        if p.requires_grad
    ]
    optimizer = torch.optim.AdamW(decaying, lr=1.0, betas=(0.9, 0.98))
    rates = [0.05 * share for share in (0.5, 1, 1, 0.9045085, 0.6545085, 0.3454915, 0.0954915)]
    order = batches().starting(0)
    losses = []
    naive.train()

    def slope(step: int, batch: Batch) -> float:
        # This sets the dropout of this step.
        torch.manual_seed((((5 * 1_000_003 + step) * 1009) * 65_537) % 2**63)
        optimizer.zero_grad()
        loss = naive(batch)
        loss.backward()
        return float(loss.detach())

    for step, batch in zip(range(STEPS), order, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rates[step]
        losses.append(slope(step, batch))
        if rho:
            with climbed(list(naive.parameters()), sharpness, rho):
                slope(step, batch)
        torch.nn.utils.clip_grad_norm_(naive.parameters(), 0.5)
        optimizer.step()
    assert [entry["loss"] for entry in history] == pytest.approx(losses, rel=1e-4)
    assert [entry["lr"] for entry in history] == pytest.approx(rates)
    assert all(0 < entry["seconds"] < 60 for entry in history)
    # If a gradient is pure rounding error, AdamW changes a weight by the full learning rate.
    for name, tensor in weights(made).items():
        is_near = torch.isclose(tensor, naive.state_dict()[name], rtol=1e-4, atol=1e-4)
        assert is_near.double().mean() > 0.95
    assert not made.training


def interruptions() -> list[Any]:
    """Return (kind, step, loss): each kind with one loss. Other combinations are slow tests."""
    losses = ("nuclr", "group_dro", "stream")
    cases = []
    for place, kind in enumerate(KINDS):
        for loss in losses:
            is_quick = loss == losses[place % len(losses)] or kind == "everything"
            marks = () if is_quick else pytest.mark.slow
            cases.append(pytest.param(kind, (1, 4)[place % 2], loss, marks=marks))
    return cases


@pytest.mark.parametrize(("kind", "step", "loss"), interruptions())
def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_run(
    kind: str, step: int, loss: str, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"fourier": 0.4}
    if loss == "stream":
        how = {"loss": "rince"}
    if loss == "group_dro":
        how = {
            "loss": "info_nce",
            "group_dro": "place",
            "group_dro_step": 0.5,
            "learn_temperature": True,
        }
    chosen = settings(**KINDS[kind])
    uninterrupted = trainee(**how)
    resumed = trainee(**how)
    finished = trainee(**how)
    go: Any = partial(fit, settings=chosen)
    expected = go(uninterrupted, batches(loss=loss))
    with pytest.raises(KeyboardInterrupt):
        go(trainee(**how), batches(loss=loss), folder=tmp_path, on_step=at_step(step, STOP))
    seen: list[float] = []
    history = go(
        resumed,
        batches(loss=loss),
        folder=tmp_path,
        on_step=lambda entry, _: seen.append(entry["step"]),
    )
    assert seen == list(range(step, STEPS))
    assert equal(weights(resumed), weights(uninterrupted))
    assert [entry["loss"] for entry in history] == [entry["loss"] for entry in expected]
    fit(finished, batches(loss=loss), chosen, folder=tmp_path)
    assert equal(weights(finished), weights(uninterrupted)), "a completed run changes nothing"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_a_signal_the_step_finishes_and_is_saved(
    number: signal.Signals, tmp_path: Path
) -> None:
    chosen = settings(save_every=60.0, sharpness="sam")
    before = signal.getsignal(number)
    interrupt = at_step(2, lambda: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt) as stopped:
        fit(trainee(), batches(), chosen, folder=tmp_path, on_step=interrupt)
    assert stopped.value.args == (number,)
    assert signal.getsignal(number) is before
    seen: list[float] = []
    resumed = trainee()
    uninterrupted = trainee()
    fit(
        resumed,
        batches(),
        chosen,
        folder=tmp_path,
        on_step=lambda entry, _: seen.append(entry["step"]),
    )
    fit(uninterrupted, batches(), chosen)
    assert seen == [3, 4, 5, 6]
    assert equal(weights(resumed), weights(uninterrupted))
    twice = at_step(2, lambda: [os.kill(os.getpid(), number) for _ in range(2)])
    with pytest.raises(KeyboardInterrupt):
        fit(trainee(), batches(), chosen, folder=tmp_path / "twice", on_step=twice)
    assert read_state(tmp_path / "twice" / STATE) is None, "a second signal raises immediately"


def test_a_process_killed_while_writing_a_checkpoint_preserves_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(state: Any, path: Path) -> None:
        if state["step"] == 4:
            Path(path).write_bytes(b"half, as kill -9 leaves it")
            raise KeyboardInterrupt
        save(state, path)

    uninterrupted = trainee()
    resumed = trainee()
    save = torch.save
    fit(uninterrupted, batches(), settings())
    monkeypatch.setattr(torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        fit(trainee(), batches(), settings(), folder=tmp_path)
    monkeypatch.setattr(torch, "save", save)
    history = fit(resumed, batches(), settings(), folder=tmp_path)
    assert len(history) == STEPS
    assert equal(weights(resumed), weights(uninterrupted))


class Foreign:
    """Write a file when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("unpickled",)


def test_a_checkpoint_that_contains_code_raises_an_error_without_executing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(Foreign(), STATE)
    with pytest.raises(InvalidInputError, match="not a readable checkpoint"):
        read_state(tmp_path / STATE)
    assert os.listdir() == [STATE]


def test_the_history_file_matches_the_checkpoint(tmp_path: Path) -> None:
    """Lines for steps that will be repeated are removed, and a damaged file is repaired."""
    chosen = settings(save_every=60.0)
    path = tmp_path / HISTORY
    # This file is left by a run that was killed before its first checkpoint.
    path.write_text('{"step": 0, "loss": 9.0}\n')
    interrupt = at_step(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        fit(trainee(), batches(), chosen, folder=tmp_path, on_step=interrupt)
    kept = path.read_text()
    state = (tmp_path / STATE).read_bytes()
    assert kept.count("\n") == 3
    for later in (kept + '{"step": 3, "loss": 9}\n{"st', "half"):
        path.write_text(later)
        (tmp_path / STATE).write_bytes(state)
        history = fit(trainee(), batches(), chosen, folder=tmp_path)
        assert [entry["step"] for entry in history] == list(range(STEPS))
        assert [json.loads(line) for line in path.read_text().splitlines()] == history


def test_a_second_run_in_the_same_folder_raises_an_error(tmp_path: Path) -> None:
    def beside() -> None:
        with ThreadPoolExecutor() as pool, pytest.raises(InvalidInputError):
            pool.submit(fit, trainee(), batches(), settings(), folder=tmp_path).result()
        refused.append(True)

    refused: list[bool] = []
    history = fit(trainee(), batches(), settings(), folder=tmp_path, on_step=at_step(1, beside))
    assert (len(refused), len(history)) == (1, STEPS)


def test_a_checkpoint_of_a_different_model_raises_an_error_and_changes_nothing(
    tmp_path: Path,
) -> None:
    fit(trainee(), batches(), settings(), folder=tmp_path)
    larger = trainee()
    larger.model.image.bias.requires_grad_(False)
    before = weights(larger)
    with pytest.raises(InvalidInputError, match="of a different model or loss"):
        fit(larger, batches(), settings(), folder=tmp_path)
    assert equal(weights(larger), before)


def test_a_checkpoint_contains_trained_parameters_and_no_code(tmp_path: Path) -> None:
    """Frozen weights are loaded with the model. The file only contains tensors and plain values."""
    made = trainee()
    made.model.letters.requires_grad_(False)
    fit(made, batches(), settings(ema=0.9), folder=tmp_path)
    state = read_state(tmp_path / STATE)
    assert state["step"] == STEPS
    assert set(state["average"]) == {"model.image.weight", "model.image.bias"}
    assert set(state["average"]) | {"objective.loss.log_u", "objective.loss.zeta"} <= set(
        state["tensors"]
    )
    assert not any("letters" in name for name in state["tensors"])
    for wrong in ({"step": print}, {"step": 3}):
        torch.save(wrong, tmp_path / STATE)
        with pytest.raises(InvalidInputError, match=r"state\.pt: not a readable checkpoint"):
            read_state(tmp_path / STATE)


def test_a_flipped_bit_in_a_checkpoint_is_detected(tmp_path: Path) -> None:
    """If it were not detected, the rest of the run would use wrong tensors."""
    made = trainee()
    path = tmp_path / STATE
    fit(made, batches(), settings(steps=2), folder=tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(made.model.image.weight.detach().numpy().tobytes())] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InvalidInputError, match=r"state\.pt"):
        read_state(path)


def test_the_average_is_scored_and_saved_and_a_run_is_scored_ten_times() -> None:
    seen: list[Tensor] = []

    def monitor(towers: Any) -> dict[str, float]:
        assert not towers.model.training
        seen.append(towers.model.image.weight.detach().clone())
        return {"score": float(len(seen))}

    made = trainee()
    live = trainee()
    history = fit(made, batches(), settings(ema=0.9, eval_every=3), monitor=monitor)
    assert [entry["step"] for entry in history if "score" in entry] == [2, 5, 6]
    assert torch.equal(seen[-1], made.model.image.weight)
    fit(live, batches(), settings())
    assert not torch.equal(live.model.image.weight, made.model.image.weight)
    # By default, eval_every evaluates at most ten times, including the last step.
    history = fit(trainee(), batches(), settings(steps=11), monitor=lambda towers: {"score": 1.0})
    assert [entry["step"] for entry in history if "score" in entry] == [1, 3, 5, 7, 9, 10]


def test_a_non_finite_loss_stops_the_run_and_preserves_the_checkpoint(
    tmp_path: Path,
) -> None:
    broken = IMAGES.clone()
    broken[int(batches().sampler.rows(3)[0])] = torch.nan
    with pytest.raises(DivergedError, match="step 3: the loss is nan"):
        fit(trainee("info_nce"), batches(broken), settings(), folder=tmp_path)
    resumed = fit(trainee("info_nce"), batches(), settings(), folder=tmp_path)
    assert [entry["step"] for entry in resumed] == list(range(STEPS))


@pytest.mark.parametrize("clip_norm", [1.0, None])
def test_a_non_finite_gradient_does_not_change_any_weight(
    clip_norm: float | None, tmp_path: Path
) -> None:
    """The loss is still finite at this step. After another step, the checkpoint would only contain
    NaN."""
    made = trainee("info_nce")
    weight = list[Any]()
    weight.append(made.model.image.weight)
    break_gradient = at_step(
        2, lambda: weight[0].register_hook(lambda gradient: gradient * float("inf"))
    )
    with pytest.raises(DivergedError, match=r"step 3: the loss is \d.* gradient is (inf|nan)"):
        fit(
            made,
            batches(),
            settings(clip_norm=clip_norm, ema=0.9),
            folder=tmp_path,
            on_step=break_gradient,
        )
    assert all(bool(tensor.isfinite().all()) for tensor in made.parameters())


def half(scale: float, steps: int) -> tuple[Trainee, list[Entry]]:
    class Scaled(nn.Module):
        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return ((first * second).sum() * scale).half().float()

        def schedule(self, settings: Any, step: int, steps: int) -> None:
            pass

        temperature = 0.3

    made = trainee("info_nce")
    made.objective.loss = Scaled()
    return made, fit(made, batches(), settings(steps=steps, precision="fp16", lr=0.1))


def test_an_overflow_of_the_loss_scale_skips_a_step_and_does_not_stop_the_run() -> None:
    start = tiny_towers().model.state_dict()
    assert not equal(half(1.0, steps=12)[0].model.state_dict(), start)
    stayed, seen = half(1e3, steps=1)  # 65536 times a thousand overflows half precision
    assert len(seen) == 1
    assert equal(stayed.model.state_dict(), start)
    with pytest.raises(DivergedError, match="loss is inf"):
        half(1e9, steps=1)


def test_the_number_of_steps_is_computed_from_epochs() -> None:
    # 4 batches per epoch.
    assert settings(steps=None, epochs=2.5).updates(4) == 10
    assert settings(steps=None, epochs=2.5, accumulation=2).updates(4) == 5
    assert settings(steps=3).updates(None) == 3
    with pytest.raises(InvalidInputError, match="expected steps instead"):
        settings(steps=None, epochs=1.0).updates(None)


def test_every_micro_batch_has_its_own_seed_and_the_loss_is_scheduled_at_every_step() -> None:
    drawn = list[float]()
    made = trainee("info_nce")
    scheduled = list[tuple[int, int]]()
    made.model.image.register_forward_hook(lambda *_: drawn.append(float(torch.rand(()))))
    made.objective.schedule = lambda step, steps: scheduled.append((step, steps))  # type: ignore[method-assign]
    fit(made, batches(), settings(steps=3, accumulation=2))
    assert len(set(drawn)) == 6
    assert scheduled == [(0, 3), (1, 3), (2, 3)]


def test_frozen_modules_run_in_evaluation_mode_and_others_in_training_mode() -> None:
    made = trainee("info_nce")
    seen = list[list[bool]]()
    parts = (made.model.image, made.model.letters, made.model.drop)
    made.model.image.requires_grad_(False)
    before = made.model.image.weight.detach().clone()
    made.model.image.register_forward_hook(
        lambda *_: seen.append([part.training for part in parts])
    )
    fit(made, batches(), settings(steps=2))
    assert seen == [[False, True, True]] * 2
    assert torch.equal(made.model.image.weight, before)


# ---- all negatives of a step in the memory of a single micro-batch

MICRO = 3
LOSSES: dict[str, dict[str, Any]] = {
    **{loss.name: {} for loss in BUILT_IN},
    "info_nce": {"learn_temperature": True, "chunk_size": 5},
    "rince": {"q": 0.5},
    "hard_negative": {"beta": 2.0},
    "nuclr": {"popularity_lr": 0.1},
    "isogclr": {"kl_radius": 1.0},
    "sigmoid": {"learn_temperature": True},
}


def exact(loss: str, **loss_settings: Any) -> Trainee:
    made = trainee(loss, **loss_settings, **LOSSES[loss]).double().eval()
    # Only the loss is in training mode: its state must be updated, but dropout would differ between
    # batch sizes.
    made.objective.train()
    made.objective.schedule(1, 2)
    return made


def micro(size: int = 4, two_views: bool = False) -> list[Batch]:
    arguments: dict[str, Any] = {
        "captions": [f"number {i % 9}" for i in range(N)],
        "tokenize": letters_of,
    }
    if two_views:
        arguments = {
            "augment": lambda images, g: images + torch.rand(len(images), 3, 1, 1, generator=g),
            "two_views": True,
        }
    source = TensorBatches(
        IMAGES.double(), labels=torch.arange(N) % 3, batch_size=size, seed=3, **arguments
    )
    return [source.batch(number) for number in range(4 * MICRO // size)]


def gradient(made: Trainee, parts: list[Batch], **changes: Any) -> tuple[Tensor, dict[str, Tensor]]:
    chosen = LoopSettings(steps=2, batch_size=4, accumulation=MICRO, **changes)
    loss = Run(made, chosen, make_accelerator(cpu=True), None, {}, 2).gradient(0, parts)
    return loss, gradients(made)


def gradients(made: Trainee) -> dict[str, Tensor]:
    gradient_of_name = {
        name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None
    }
    made.zero_grad()
    return gradient_of_name


def close(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert second.keys() == first.keys()
    for name, gradient in second.items():
        torch.testing.assert_close(first[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("loss", "size"), [*((loss, 4) for loss in LOSSES), ("rince", 6)])
def test_with_all_negatives_the_gradient_equals_that_of_one_large_batch(
    loss: str, size: int
) -> None:
    one_batch = exact(loss)
    cached = exact(loss)
    expected = one_batch(micro(4 * MICRO)[0])
    expected.backward()
    value, slopes = gradient(cached, micro(size), negatives="step")
    assert float(value) == pytest.approx(float(expected.detach()))
    close(slopes, gradients(one_batch))
    close(dict(cached.objective.named_buffers()), dict(one_batch.objective.named_buffers()))


def test_with_separate_negatives_a_step_is_the_mean_of_its_micro_batches() -> None:
    apart = exact("info_nce")
    apart_gradient, slopes = gradient(apart, micro())
    expected, _ = gradient(exact("info_nce"), micro(), negatives="step")
    assert float(apart_gradient) < float(expected) - 0.5, "fewer negatives give a lower loss"
    mean = sum(apart(batch) for batch in micro()) / MICRO
    mean.backward()
    assert float(apart_gradient) == pytest.approx(float(mean.detach()))
    close(slopes, gradients(apart))


def test_both_passes_use_the_same_dropout_and_mixing() -> None:
    made = exact("info_nce", fourier=0.5)
    made.model.insert = nn.Dropout(0.5).train()
    image = made.towers.image
    made.towers.image = lambda pixels: made.model.insert(image(pixels))  # type: ignore[method-assign]
    drawn: list[Tensor] = []
    made.model.insert.register_forward_hook(lambda *arguments: drawn.append(arguments[-1].detach()))
    gradient(made, micro(), negatives="step")
    looks = 2  # each micro-batch has two passes, one that finds the partners and one that trains
    assert len(drawn) == 2 * looks * MICRO
    for first, second in zip(drawn[: looks * MICRO], drawn[looks * MICRO :], strict=True):
        assert torch.equal(first, second)


# ---- processes


def test_several_processes_without_a_process_group_raise_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`accelerate launch --cpu --num_processes 2` starts a process in this way, and it would train
    alone."""
    make_accelerator(cpu=True)
    for environment in (
        {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "True"},
        {"WORLD_SIZE": "2"},
    ):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            with pytest.raises(InvalidInputError, match="torchrun"):
                make_accelerator(cpu=True)
