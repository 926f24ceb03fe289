"""Trains the VAE, the judge that looks at its pictures, and the UNet of the small Stable Diffusion."""

import json
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from vldebias.miniature import portraits
from vldebias.miniature.architecture import build_scheduler, build_unet, build_vae
from vldebias.miniature.judge import Judge
from vldebias.miniature.loading import load_text_tower, load_vae
from vldebias.miniature.stage import Stage
from vldebias.miniature.training import Average, Job, cosine, generator

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

__all__ = ["STEPS", "train_judge", "train_unet", "train_vae"]

STEPS = {"vae": 2000, "judge": 1200, "unet": 4500}
BATCH = {"vae": 64, "judge": 64, "unet": 96}
POOL = 40_000  # renders whose latents the UNet is trained on
EMPTY_SHARE = 0.1  # captions replaced by the empty prompt, for classifier-free guidance


def train_vae(stage: Stage) -> None:
    """Writes vae.safetensors, scaled so that latents have unit variance."""
    torch.manual_seed(stage.seed)
    vae = build_vae().to(stage.device)
    optimizer = torch.optim.AdamW(vae.parameters(), 2e-3)
    seed, batch = stage.stream, BATCH["vae"]

    def loss(step: int) -> torch.Tensor:
        x = portraits.sample(batch, seed=seed, start=step * batch).images.to(stage.device) * 2 - 1
        posterior = vae.encode(x).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator(seed, step)).to(stage.device)
        restored = vae.decode(posterior.mean + posterior.std * noise).sample
        return F.mse_loss(restored, x) + 0.3 * F.l1_loss(restored, x) + 1e-5 * posterior.kl().mean()

    stage.train(Job(stage.name, {"vae": vae}, optimizer, loss, cosine(stage.steps, 2e-3)))
    scale = 1 / _latents(vae, 2000, seed + 1, stage.device).std().item()
    (stage.out / "vae.json").write_text(json.dumps({"scaling_factor": scale}, indent=1) + "\n")
    stage.finish(vae)


def train_judge(stage: Stage) -> None:
    """Writes judge.safetensors; half of what it sees are reconstructions, as generated pictures look like those."""
    torch.manual_seed(stage.seed)
    judge, vae = Judge().to(stage.device), load_vae(stage.out).to(stage.device)
    optimizer = torch.optim.AdamW(judge.parameters(), 2e-3, weight_decay=0.01)
    seed, batch = stage.stream, BATCH["judge"]

    def loss(step: int) -> torch.Tensor:
        people = portraits.sample(batch, seed=seed, start=step * batch, balanced=True)
        images = people.images.to(stage.device)
        with torch.no_grad():
            restored = vae.decode(vae.encode(images * 2 - 1).latent_dist.mean).sample
        logits = judge(torch.cat([images, (restored / 2 + 0.5).clamp(0, 1)]))
        targets = {name: getattr(people, name).to(stage.device).repeat(2) for name in logits}
        return torch.stack([F.cross_entropy(logits[name], targets[name]) for name in logits]).mean()

    stage.train(Job(stage.name, {"judge": judge}, optimizer, loss, cosine(stage.steps, 2e-3)))
    stage.finish(judge.eval())


def train_unet(stage: Stage) -> None:
    """Writes unet.safetensors: the moving average of the weights, which draws far better than the last ones."""
    torch.manual_seed(stage.seed)
    unet = build_unet().to(stage.device)
    optimizer = torch.optim.AdamW(unet.parameters(), 2e-3, weight_decay=0.01)
    average = Average(unet)
    signal = build_scheduler().alphas_cumprod.to(stage.device)
    latents, hidden, row = _pool(stage)

    def loss(step: int) -> torch.Tensor:
        source, n = generator(stage.stream, step), BATCH["unet"]
        pick = torch.randint(len(latents), (n,), generator=source)
        empty = torch.rand(n, generator=source) < EMPTY_SHARE
        time = torch.randint(len(signal), (n,), generator=source).to(stage.device)
        noise = torch.randn((n, *latents.shape[1:]), generator=source).to(stage.device)
        captions = torch.where(empty, 0, row[pick])
        alpha = signal[time].view(-1, 1, 1, 1)
        noisy = alpha.sqrt() * latents[pick.to(stage.device)] + (1 - alpha).sqrt() * noise
        return F.mse_loss(unet(noisy, time, hidden[captions.to(stage.device)]).sample, noise)

    rate = cosine(stage.steps, 2e-3, warmup=200)
    stage.train(Job(stage.name, {"unet": unet}, optimizer, loss, rate, average))
    average.copy_to_live()
    stage.finish(unet)


@torch.no_grad()
def _pool(stage: Stage) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Latents (n, 4, 8, 8), hidden states of the distinct captions (m, 24, d; row 0: empty), caption rows (n,)."""
    vae, (text_model, tokenizer) = load_vae(stage.out).to(stage.device), load_text_tower(stage.out)
    size, seed = min(POOL, stage.steps * BATCH["unet"]), stage.stream
    latents = _latents(vae, size, seed, stage.device) * vae.config.scaling_factor
    captions = portraits.captions(size, seed=seed)
    texts = ["", *sorted(set(captions))]
    number = {text: i for i, text in enumerate(texts)}
    ids = tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt").input_ids
    hidden = torch.cat([text_model(part).last_hidden_state for part in ids.split(500)]).to(stage.device)
    return latents, hidden, torch.tensor([number[caption] for caption in captions])


@torch.no_grad()
def _latents(vae: "AutoencoderKL", n: int, seed: int, device: str) -> torch.Tensor:
    """(n, 4, 8, 8) latents of the first n portraits of a seed, as the VAE gives them."""
    parts = []
    for start in range(0, n, 500):
        images = portraits.sample(min(500, n - start), seed=seed, start=start).images.to(device)
        parts.append(vae.encode(images * 2 - 1).latent_dist.mean)
    return torch.cat(parts)
