"""Train the two small pipelines from scratch on a CPU.

    python -m eval.small_models.train clip --out results/small_models
    python -m eval.small_models.train pixart --out results/small_models

Training takes seven minutes for `clip` and two for `pixart` on one core. --seed determines the
images, their order, the noise and the times.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_model
from torch import Tensor

from eval.small_models.models import KINDS, Parts, make_parts
from eval.small_models.world import Painter
from eval.tables import plain_parser
from vldebias.training.optim import Average

PICTURES = 8000
BATCH = {"clip": 32, "pixart": 40}
STEPS = {"clip": 1800, "pixart": 700}
"""With so few steps, `pixart` does not always follow words that state a sex or hair color."""
PEAK_RATE = 2e-3
WARMUP = 200
SAVED_EVERY = 1000  # steps
EMPTY_SHARE = 0.1  # share of captions to replace with an empty one, for guidance


def rate(step: int, steps: int) -> float:
    """Return the learning rate factor, with linear warm-up and cosine decay in the second half."""
    done = step / steps
    decay = 1.0 if done < 0.5 else 0.5 * (1 + math.cos(math.pi * (2 * done - 1)))
    return min(1.0, (step + 1) / WARMUP) * decay


def to_tensor(pictures: list[np.ndarray]) -> Tensor:
    """Return images as a tensor (n, 3, height, width) in [-1, 1]."""
    return torch.from_numpy(np.stack(pictures)).movedim(-1, 1).float() / 127.5 - 1


def loss_of(parts: Parts, clean: Tensor, ids: Tensor, rng: torch.Generator) -> Tensor:
    """Return the mean squared error of the prediction at random times."""
    scheduler = parts.scheduler
    times = torch.randint(0, scheduler.config.num_train_timesteps, (len(clean),), generator=rng)
    noise = torch.randn(clean.shape, generator=rng)
    predicted = parts.predict(scheduler.add_noise(clean, noise, times), times, ids)
    return (predicted - scheduler.get_velocity(clean, noise, times)).square().mean()


def train(kind: str, seed: int, steps: int, out: Path) -> None:
    """Train a pipeline and write the averaged weights to a folder."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(seed)
    painter = Painter(seed)
    samples = [painter.sample() for _ in range(PICTURES)]
    parts = make_parts(kind)
    parts.autoencoder.fit(to_tensor([sample.picture for sample in samples]))
    latents = parts.autoencoder.encode(to_tensor([sample.picture for sample in samples]))
    ids = parts.tokens([sample.caption for sample in samples])
    empty_ids = parts.tokens([""])
    modules = parts.modules.train()
    learned = {name: p for name, p in modules.named_parameters() if p.requires_grad}
    average = Average(learned, 0.995)
    optimizer = torch.optim.AdamW(learned.values(), betas=(0.9, 0.98), weight_decay=0.01)
    started = time.process_time()
    recent = 0.0
    batch = BATCH[kind]
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * rate(step, steps)
        chosen = torch.randint(0, PICTURES, (batch,), generator=rng)
        is_empty = torch.rand(batch, generator=rng) < EMPTY_SHARE
        batch_ids = torch.where(is_empty[:, None], empty_ids, ids[chosen])
        loss = loss_of(parts, latents[chosen], batch_ids, rng)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned.values(), 1.0)
        optimizer.step()
        average.update(step)
        recent = 0.98 * recent + 0.02 * loss.item() if step else loss.item()
        if step % 250 == 0:
            seconds = time.process_time() - started
            print(f"{kind} step {step}, loss {recent:.4f}, {seconds:.0f} s", flush=True)
        if (step + 1) % SAVED_EVERY == 0 or step + 1 == steps:
            metadata = {"kind": kind, "seed": seed, "steps": steps, "done": step + 1}
            out.mkdir(parents=True, exist_ok=True)
            with average.applied():
                path = out / f"{kind}.safetensors"
                save_model(modules, str(path), metadata={"vldebias": json.dumps(metadata)})


def main() -> None:
    """Train the pipeline named on the command line."""
    options = plain_parser(__doc__)
    options.add_argument("kind", choices=KINDS)
    options.add_argument("--out", type=Path, default=Path("results/small_models"))
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--steps", type=int, help=f"default: {STEPS}")
    arguments = options.parse_args()
    # Products of small gradients are subnormal numbers, which are slow.
    torch.set_flush_denormal(True)
    train(arguments.kind, arguments.seed, arguments.steps or STEPS[arguments.kind], arguments.out)


if __name__ == "__main__":
    main()
