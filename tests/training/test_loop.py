"""The loop: what a plain loop of torch does, and the same weights after an interrupt as without."""

from __future__ import annotations

import copy
import json
import os
import signal
import threading
import warnings
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_towers import SIZE, tiny_towers, tokenize
from torch import Tensor, nn

from eval.experiments.tensor_batches import TensorBatches
from vldebias.errors import InvalidInputError
from vldebias.training.loop import HISTORY, STATE, DivergedError, Entry, InterruptedRunError, _signals, fit, steps_of
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.optim import cosine_rate, parameter_groups
from vldebias.training.settings import LoopSettings, LossSettings

N, B, STEPS = 24, 6, 7
IMAGES = torch.rand(N, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
CAPTIONS = [f"number {i}" for i in range(N)]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "average": {"ema": 0.9},
    "sharp": {"sharpness": "sam", "rho": 0.1},
    "accumulated": {"accumulation": 2},
    "together": {"accumulation": 2, "negatives": "step"},
    "linear": {"schedule": "linear"},
    "fp16": {"precision": "fp16", "lr": 0.01},
    "queue": {"loss": {"queue": {"rows": 8, "momentum": 0.5}}, "accumulation": 2},
    "momentum": {"optimizer": {"name": "SGD", "momentum": 0.9}, "schedule": "OneCycleLR", "lr": 0.01},
    "everything": {"ema": 0.9, "sharpness": "asam", "accumulation": 2, "precision": "bf16", "clip_norm": None},
}


def batches(images: Tensor = IMAGES) -> TensorBatches:
    return TensorBatches(images, CAPTIONS, tokenize=tokenize, batch_size=B, seed=3)


def settings(**given: Any) -> LoopSettings:
    return LoopSettings(**{"steps": STEPS, "batch_size": B, "lr": 0.05, "save_every": 0.0, "seed": 5, **given})


def trainee(loss: str = "nuclr", fourier: float = 0.0, **more: Any) -> Trainee:
    chosen = LossSettings(loss=loss, **more)  # type: ignore[arg-type]
    return Trainee(tiny_towers(), build_objective(chosen, temperature=0.3, items=N, dim=6), fourier=fourier)


def weights(made: Trainee) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in made.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_it_does_what_a_plain_loop_does() -> None:
    chosen = settings(weight_decay=0.1, warmup=0.3, clip_norm=0.5, lr_end=0.01, beta1=0.8, beta2=0.9)
    made = trainee("info_nce")
    history = fit(made, batches(), chosen)
    naive = trainee("info_nce")
    optimizer = torch.optim.AdamW(parameter_groups(naive, 0.1), lr=1.0, betas=(0.8, 0.9))
    order, losses = batches().starting(0), []
    naive.train()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = cosine_rate(step, STEPS, peak=0.05, warmup=0.3, end=0.01)
        torch.manual_seed((((5 * 1_000_003 + step) * 1009) * 65_537) % 2**63)  # the dropout of this step
        loss = naive(next(order))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(naive.parameters(), 0.5)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert [entry["loss"] for entry in history] == pytest.approx(losses)
    for name, tensor in weights(made).items():
        torch.testing.assert_close(tensor, naive.state_dict()[name])
    assert not made.training


@pytest.mark.parametrize(("kind", "stop"), list(zip(KINDS, cycle([1, 4]), strict=False)))
def test_an_interrupted_run_ends_with_the_weights_of_a_whole_one(kind: str, stop: int, tmp_path: Path) -> None:
    own = dict(KINDS[kind])
    given: dict[str, Any] = {"fourier": 0.4, **({"loss": "rince", **own.pop("loss")} if "loss" in own else {})}
    chosen = settings(**own)
    whole = trainee(**given)
    expected = fit(whole, batches(), chosen)

    def interrupt(entry: Entry, steps: int) -> None:
        if entry["step"] == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(trainee(**given), batches(), chosen, folder=tmp_path, on_step=interrupt)
    seen: list[float] = []
    resumed = trainee(**given)
    history = fit(resumed, batches(), chosen, folder=tmp_path, on_step=lambda entry, _: seen.append(entry["step"]))
    assert seen == list(range(stop, STEPS))
    assert same(weights(resumed), weights(whole))
    assert [entry["loss"] for entry in history] == [entry["loss"] for entry in expected]
    finished = trainee(**given)
    fit(finished, batches(), chosen, folder=tmp_path)
    assert same(weights(finished), weights(whole)), "a run that is done changes nothing"


def still(**given: Any) -> Any:
    """Settings under which nothing moves, so that features are what they were."""
    return settings(steps=2, lr=1e-30, weight_decay=0.0, warmup=0.0, **given)


@pytest.mark.parametrize("loss", ["info_nce", "rince", "debiased", "hard_negative"])
@pytest.mark.parametrize("together", [False, True])
def test_momentum_0_and_a_queue_of_the_last_step_is_the_loss_over_both(loss: str, together: bool) -> None:
    chosen = still(**({"accumulation": 2, "negatives": "step"} if together else {}))
    rows = B * chosen.accumulation
    queued, plain = trainee(loss, queue={"rows": rows, "momentum": 0.0}), trainee(loss)
    for made in (queued, plain):
        made.model.drop.p = 0.0
    history = fit(queued, batches(), chosen)
    source = batches()
    found = [plain(source.batch(number), features=True) for number in range(2 * chosen.accumulation)]
    newer = [torch.cat([f[name] for f in found[chosen.accumulation :]]) for name in ("first", "second")]
    older = [torch.cat([f[name] for f in found[: chosen.accumulation]]) for name in ("first", "second")]
    plain.objective.loss.reduction = "none"
    joint = [torch.cat(both) for both in zip(newer, older, strict=True)]
    assert history[1]["loss"] == pytest.approx(float(plain.objective.loss(*joint)[:rows].mean().detach()), rel=1e-5)
    first = plain.objective.loss(*older).mean()
    assert history[0]["loss"] == pytest.approx(float(first.detach()), rel=1e-5), "empty at first"
    assert queued.objective.queue is not None
    torch.testing.assert_close(queued.objective.queue.negatives()[0].sort(0).values, newer[0].sort(0).values)


def test_the_queue_is_filled_by_the_slow_copy() -> None:
    made = trainee("rince", queue={"rows": 12, "momentum": 0.9})
    made.model.drop.p = 0.0
    expected, slow = [], copy.deepcopy(made.model.state_dict())
    source, live = batches(), trainee("rince")
    live.model.drop.p = 0.0

    def step(entry: Entry, steps: int) -> None:
        """Before the next step the copy moves towards what the model is now."""
        after.append(copy.deepcopy(made.model.state_dict()))

    after = [copy.deepcopy(slow)]
    fit(made, batches(), settings(steps=3), on_step=step)
    for number in range(3):
        weight = 1 - min(0.9, (number + 1) / (number + 10))
        slow = {name: torch.lerp(slow[name], after[number][name], weight) for name in slow}
        live.model.load_state_dict(slow)
        expected.append(live(source.batch(number), features=True)["first"].detach())
    assert made.objective.queue is not None
    torch.testing.assert_close(made.objective.queue.images, torch.cat([expected[2], expected[1]]), atol=1e-5, rtol=1e-4)


def test_a_queue_needs_to_know_how_long_and_how_wide_it_may_be() -> None:
    chosen = LossSettings(loss="rince", queue={"rows": N})  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="queue: 24 rows of 24 pairs: each would meet itself"):
        build_objective(chosen, temperature=0.3, items=N, dim=6)
    with pytest.raises(InvalidInputError, match="queue: expected dim"):
        build_objective(chosen, temperature=0.3, items=None)
    with pytest.raises(InvalidInputError, match="spread does not read queue"):
        build_objective(LossSettings(loss="spread", queue={"rows": 2}), temperature=0.3, items=N, dim=6)  # type: ignore[arg-type]


def test_rates_of_parameters_scale_their_steps() -> None:
    """Of plain descent, whose steps are in proportion to the rate."""
    chosen = settings(steps=1, optimizer="SGD", weight_decay=0.0, clip_norm=None)
    moved = []
    for rates in (None, 0.25):
        made = trainee("info_nce")
        made.rates = {} if rates is None else {made.model.image.weight: rates}
        before = weights(made)
        fit(made, batches(), chosen)
        moved.append({name: tensor - before[name] for name, tensor in weights(made).items()})
    whole, scaled = moved
    for name in whole:
        share = 0.25 if name == "model.image.weight" else 1.0
        torch.testing.assert_close(scaled[name], share * whole[name], atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_step_finish_and_saves_it(number: signal.Signals, tmp_path: Path) -> None:
    chosen = settings(save_every=60.0, sharpness="sam")
    before = signal.getsignal(number)

    def interrupt(entry: Entry, steps: int) -> None:
        if entry["step"] == 2:
            os.kill(os.getpid(), number)

    with pytest.raises(InterruptedRunError, match=number.name) as stopped:
        fit(trainee(), batches(), chosen, folder=tmp_path, on_step=interrupt)
    assert stopped.value.signal == number
    assert signal.getsignal(number) is before
    seen: list[float] = []
    resumed, whole = trainee(), trainee()
    fit(resumed, batches(), chosen, folder=tmp_path, on_step=lambda entry, _: seen.append(entry["step"]))
    fit(whole, batches(), chosen)
    assert seen == [3, 4, 5, 6]
    assert same(weights(resumed), weights(whole))


def test_a_second_signal_stops_at_once() -> None:
    with _signals() as seen:
        os.kill(os.getpid(), signal.SIGINT)
        assert seen == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_other_threads_leave_signals_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def run() -> None:
        with _signals() as signals:
            seen.append((signal.getsignal(signal.SIGINT), list(signals)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(before, [])]


def test_the_history_lies_beside_the_state_and_follows_it(tmp_path: Path) -> None:
    """Lines of steps that are done again go; one that cannot be read is missed, and the run goes on."""
    chosen, path = settings(save_every=60.0), tmp_path / HISTORY

    def killed(entry: Entry, steps: int) -> None:
        if entry["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        fit(trainee(), batches(), chosen, folder=tmp_path, on_step=killed)
    kept = path.read_text()
    assert kept.count("\n") == 3
    for later, warned in ((kept + '{"step": 3, "loss": 9}\n{"st', 0), (kept.split("\n", 1)[1], 1)):
        path.write_text(later)
        state = (tmp_path / STATE).read_bytes()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = fit(trainee(), batches(), chosen, folder=tmp_path)
        assert [entry["step"] for entry in history] == list(range(warned, STEPS))
        assert [json.loads(line) for line in path.read_text().splitlines()] == history
        assert [str(w.message).split(": ")[1] for w in caught] == [
            "has 2 of the 3 steps that the state beside it has behind it; the run goes on"
        ] * warned
        (tmp_path / STATE).write_bytes(state)


def test_what_a_run_wrote_before_its_first_checkpoint_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / HISTORY).write_text('{"step": 0, "loss": 9.0}\n')
    history = fit(trainee(), batches(), settings(), folder=tmp_path)
    assert [json.loads(line) for line in (tmp_path / HISTORY).read_text().splitlines()] == history


def test_the_average_is_what_is_scored_and_kept() -> None:
    seen: list[Tensor] = []

    def monitor(towers: Any) -> dict[str, float]:
        seen.append(towers.model.image.weight.detach().clone())
        return {"score": float(len(seen))}

    made = trainee()
    history = fit(made, batches(), settings(ema=0.9, eval_every=3), monitor=monitor)
    assert [entry["step"] for entry in history if "score" in entry] == [2, 5, 6]
    assert torch.equal(seen[-1], made.model.image.weight)
    live = trainee()
    fit(live, batches(), settings())
    assert not torch.equal(live.model.image.weight, made.model.image.weight)


def test_a_short_run_is_not_scored_at_every_step() -> None:
    history = fit(trainee(), batches(), settings(steps=15), monitor=lambda towers: {"score": 1.0})
    assert [entry["step"] for entry in history if "score" in entry] == [1, 3, 5, 7, 9, 11, 13, 14]


def test_autocast_leaves_weights_in_single_precision() -> None:
    made = trainee()
    history = fit(made, batches(), settings(precision="bf16"))
    assert all(parameter.dtype == torch.float32 for parameter in made.parameters())
    plain = fit(trainee(), batches(), settings())
    assert history[0]["loss"] != plain[0]["loss"]
    assert history[0]["loss"] == pytest.approx(plain[0]["loss"], rel=0.05)


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    fit(trainee(), batches(), settings(), folder=tmp_path, identity={"lr": 1e-3})
    with pytest.raises(InvalidInputError, match=r"lr 0.001 there and 0.01 here.*Choose another folder"):
        fit(trainee(), batches(), settings(), folder=tmp_path, identity={"lr": 1e-2})
    with pytest.raises(InvalidInputError, match="steps 7 there and 9 here"):
        fit(trainee(), batches(), settings(steps=9), folder=tmp_path, identity={"lr": 1e-3})


def test_epochs_that_come_to_another_number_of_steps_are_another_run(tmp_path: Path) -> None:
    one, two = (settings(steps=None, epochs=number) for number in (0.5, 1.0))
    fit(trainee(), batches(), one, folder=tmp_path, identity={"steps": None})
    with pytest.raises(InvalidInputError, match="steps 2 there and 4 here"):
        fit(trainee(), batches(), two, folder=tmp_path, identity={"steps": None})
    same_length = fit(trainee(), batches(), settings(steps=2), folder=tmp_path, identity={"steps": 2})
    assert len(same_length) == 2, "steps and epochs that mean the same are one run"


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    broken = IMAGES.clone()
    last = batches().sampler.rows(3)
    broken[int(last[0])] = torch.nan
    with pytest.raises(DivergedError, match=r"step 3: the loss is nan.*last checkpoint is kept"):
        fit(trainee("info_nce"), batches(broken), settings(), folder=tmp_path)
    resumed = fit(trainee("info_nce"), batches(), settings(), folder=tmp_path)
    assert [entry["step"] for entry in resumed] == list(range(STEPS))


@pytest.mark.parametrize("clip_norm", [1.0, None])
def test_a_gradient_that_is_no_number_reaches_no_weight(clip_norm: float | None, tmp_path: Path) -> None:
    """The loss is still finite then; one step more and the checkpoint would hold nothing but NaN."""
    made = trainee("info_nce")
    chosen = settings(clip_norm=clip_norm, ema=0.9)

    def break_the_fourth(entry: Entry, steps: int) -> None:
        if entry["step"] == 2:
            made.model.image.weight.register_hook(lambda gradient: gradient * float("inf"))

    with pytest.raises(DivergedError, match=r"step 3: the loss is \d.*norm of its gradient (inf|nan)"):
        fit(made, batches(), chosen, folder=tmp_path, on_step=break_the_fourth)
    assert all(bool(tensor.isfinite().all()) for tensor in made.parameters())
    resumed = trainee("info_nce")
    fit(resumed, batches(), chosen, folder=tmp_path)
    assert all(bool(tensor.isfinite().all()) for tensor in resumed.parameters())


def test_without_a_limit_the_gradient_is_as_it_is() -> None:
    free, loose, tight = trainee("info_nce"), trainee("info_nce"), trainee("info_nce")
    for made, limit in ((free, None), (loose, 1e9), (tight, 1e-9)):
        fit(made, batches(), settings(clip_norm=limit))
    assert same(weights(free), weights(loose))
    assert not same(weights(free), weights(tight))


def test_what_the_loop_holds_is_given_back_when_it_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    import vldebias.training.loop as loop

    made = trainee()
    made.model.logit_scale = nn.Parameter(torch.tensor(1.0), requires_grad=False)

    def refuse(*arguments: Any) -> None:
        assert not isinstance(made.model.logit_scale, nn.Parameter), "held while it runs"
        raise InvalidInputError("no")

    monkeypatch.setattr(loop, "parameter_groups", refuse)
    with pytest.raises(InvalidInputError, match="no"):
        fit(made, batches(), settings())
    assert isinstance(made.model.logit_scale, nn.Parameter)


def test_the_seed_and_the_micro_batch_choose_the_randomness() -> None:
    """With accumulation the micro-batches of a step have other dropout, and so have the steps."""
    drawn: list[float] = []

    class Noting(Trainee):
        def forward(self, batch: Any) -> Tensor:
            drawn.append(float(torch.rand(())))
            return super().forward(batch)

    objective = build_objective(LossSettings(loss="info_nce"), temperature=0.3, items=N)
    fit(Noting(tiny_towers(), objective), batches(), settings(steps=3, accumulation=2))
    assert len(set(drawn)) == 6


def test_steps_follow_from_epochs() -> None:
    assert steps_of(settings(steps=None, epochs=2.5), batches()) == 10
    assert steps_of(settings(steps=None, epochs=2.5, accumulation=2), batches()) == 5
    assert steps_of(settings(steps=3), batches()) == 3

    class Stream:
        items = per_epoch = None

    with pytest.raises(InvalidInputError, match="epochs: a stream does not say how long it is; give steps"):
        steps_of(settings(steps=None, epochs=1.0), Stream())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sam", "asam"])
def test_the_radius_moves_the_weights(kind: str) -> None:
    one, other = trainee("info_nce"), trainee("info_nce")
    for made, rho in ((one, None), (other, 0.3)):
        fit(made, batches(), settings(steps=3, sharpness=kind, rho=rho))
    assert not same(weights(one), weights(other))


def test_the_schedule_of_the_loss_is_told_every_step() -> None:
    made, seen = trainee(), list[tuple[int, int]]()
    made.objective.at = lambda step, steps: seen.append((step, steps))  # type: ignore[method-assign]
    fit(made, batches(), settings(steps=3, accumulation=2))
    assert seen == [(0, 3), (1, 3), (2, 3)]


def test_what_is_frozen_is_asked_in_evaluation_mode_and_the_rest_in_training_mode() -> None:
    made, seen = trainee("info_nce"), list[tuple[bool, bool]]()
    made.model.image.requires_grad_(False)
    before = made.model.image.weight.detach().clone()
    made.model.image.register_forward_hook(lambda part, *_: seen.append((part.training, made.model.letters.training)))
    fit(made, batches(), settings(steps=2))
    assert seen == [(False, True)] * 2
    assert torch.equal(made.model.image.weight, before)
