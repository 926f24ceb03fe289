"""Builds the miniature models from nothing: tokenizer, CLIP, VAE, judge, UNet, measurements, model cards."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from vldebias.errors import InvalidInputError
from vldebias.files import write_atomically
from vldebias.miniature import birds, people, portraits
from vldebias.miniature.architectures import Judge, build_clip, build_scheduler, build_unet, build_vae
from vldebias.miniature.measure import write_metrics
from vldebias.miniature.model_cards import write_cards
from vldebias.miniature.models import load_text_tower, load_vae, read_metadata
from vldebias.miniature.tokenizer import learn_merges, open_clip_tokenizer, save_tokenizer
from vldebias.miniature.training import Average, Stage, cosine, generator
from vldebias.miniature.world import shuffled
from vldebias.progress import Progress

if TYPE_CHECKING:
    import open_clip
    from diffusers import AutoencoderKL

__all__ = ["STAGES", "build"]

STEPS = {"clip": 1300, "vae": 2000, "judge": 1200, "unet": 4500}
BATCH = {"clip": 128, "vae": 64, "judge": 64, "unet": 96}  # of the CLIP: per world
STAGES = ("tokenizer", *STEPS, "measure", "cards")
PROFESSIONS_PER_BATCH = 16
POOL = 40_000  # renders whose latents the UNet is trained on
EMPTY_SHARE = 0.1  # captions replaced by the empty prompt, for classifier-free guidance

# Prompts of the paper whose words no caption of the two worlds has: they shall be whole words, too.
_PAPER_WORDS = (
    "a photo of a white person, a black person, an asian person, an indian person, a latino person. "
    "a face of a man, a woman, a boy, a girl. a painting, a drawing, a cartoon portrait of someone. it's on the water."
)


def build(
    out: Path | str,
    *,
    seed: int = 0,
    stages: Sequence[str] | None = None,
    device: str | None = None,
    resume: bool = True,
    scale: float = 1.0,
) -> Path:
    """Trains the miniature world's models and writes them to `out`, in the layout of the shipped folder.

    Made to fit into two hours on two CPU cores. Killed and called again, it goes on from the last checkpoint (one a
    minute) and, on the same machine and number of threads, ends with the same weights.

    Args:
        out: folder to write; point VLDEBIAS_MINIATURE to it to load the build.
        seed: of the weights and of all training images.
        stages: which of STAGES to run, in their order (all by default); each needs those before it.
        device: "cpu" or "cuda"; a GPU where there is one by default.
        resume: keep stages that are finished and go on from checkpoints; False starts every stage anew.
        scale: factor on the number of training steps and of measured images, for trying things out.

    Returns:
        The folder.

    Raises:
        InvalidInputError: an unknown stage, or a scale that is not positive.
    """
    chosen = STAGES if stages is None else tuple(stages)
    unknown = [name for name in chosen if name not in STAGES]
    if unknown:
        raise InvalidInputError(f"unknown stages {unknown}; expected some of {list(STAGES)}")
    if not scale > 0:
        raise InvalidInputError(f"scale must be positive, got {scale}")
    out, device = Path(out), device or ("cuda" if torch.cuda.is_available() else "cpu")
    with Progress.on() as progress:
        for name in STAGES:
            if name not in chosen:
                continue
            if name == "tokenizer":
                prompts = [*birds.caption_prompts(), *people.caption_prompts(), _PAPER_WORDS]
                save_tokenizer(learn_merges(prompts), out)
            elif name == "measure":
                write_metrics(out, scale=scale, device=device, progress=progress)
            elif name == "cards":
                write_cards(out)
            else:
                stage = Stage(name, out, seed, max(1, round(STEPS[name] * scale)), device, resume, progress)
                if not resume or read_metadata(stage.weights) != stage.settings:
                    torch.manual_seed(seed)
                    _TRAINERS[name](stage)
    return out


def _train_clip(stage: Stage) -> None:
    """Writes clip.safetensors to a folder that holds the tokenizer: both worlds, a contrastive loss for each."""
    tokenizer = open_clip_tokenizer(stage.out)
    model = build_clip(tokenizer.vocab_size).to(stage.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.98), weight_decay=0.05)
    seed, batch = stage.stream, BATCH[stage.name]

    def loss(step: int) -> torch.Tensor:
        # Few professions in a batch, so that colleagues must be told apart by gender, tone and age.
        mixed = shuffled(len(people.PROFESSIONS), f"step {step}")
        some = [people.PROFESSIONS[k] for k in mixed[:PROFESSIONS_PER_BATCH]]
        worlds = (
            birds.sample(batch, seed=seed, start=step * batch),
            portraits.sample(batch, seed=seed, start=step * batch, professions=some),
        )
        images = torch.cat([world.images for world in worlds]).to(stage.device) * 2 - 1
        captions = [caption for world in worlds for caption in world.captions]
        image_features = F.normalize(model.encode_image(images), dim=-1)
        text_features = F.normalize(encode_captions(model, tokenizer, captions), dim=-1)
        pairs = zip(image_features.chunk(2), text_features.chunk(2), strict=True)
        temperature = 1 / model.logit_scale.exp().clamp(max=100)
        return sum((contrastive_loss(x, y, temperature) for x, y in pairs), torch.zeros((), device=stage.device)) / 2

    stage.train(model, optimizer, loss, cosine(stage.steps, 1e-3))
    stage.finish(model)


def contrastive_loss(
    image_features: torch.Tensor, text_features: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """InfoNCE, mean of both directions; features (n, d) normalised, row i belongs with row i."""
    logits = image_features @ text_features.T / temperature
    target = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def encode_captions(
    model: "open_clip.CLIP", tokenizer: "open_clip.SimpleTokenizer", captions: Sequence[str]
) -> torch.Tensor:
    """`model.encode_text` of the captions, without the cost of repeated captions and of padding.

    The tower is causal: what follows the end token changes nothing before it.
    """
    unique = sorted(set(captions))
    row = {caption: i for i, caption in enumerate(unique)}
    device = model.positional_embedding.device
    ids = tokenizer(unique).to(device)
    length = int(ids.argmax(dim=1).max()) + 1
    x = model.token_embedding(ids[:, :length]) + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    ends = x[torch.arange(len(unique), device=device), ids.argmax(dim=1)]
    return (ends @ model.text_projection)[torch.tensor([row[caption] for caption in captions], device=device)]


def _train_vae(stage: Stage) -> None:
    """Writes vae.safetensors, scaled so that latents have unit variance."""
    vae = build_vae().to(stage.device)
    optimizer = torch.optim.AdamW(vae.parameters(), 2e-3)
    seed, batch = stage.stream, BATCH[stage.name]

    def loss(step: int) -> torch.Tensor:
        x = portraits.sample(batch, seed=seed, start=step * batch).images.to(stage.device) * 2 - 1
        posterior = vae.encode(x).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator(seed, step)).to(stage.device)
        restored = vae.decode(posterior.mean + posterior.std * noise).sample
        return F.mse_loss(restored, x) + 0.3 * F.l1_loss(restored, x) + 1e-5 * posterior.kl().mean()

    stage.train(vae, optimizer, loss, cosine(stage.steps, 2e-3))
    scale = 1 / _latents(vae, 2000, seed + 1, stage.device).std().item()
    write_atomically(stage.out / "vae.json", json.dumps({"scaling_factor": scale}, indent=1) + "\n")
    stage.finish(vae)


def _train_judge(stage: Stage) -> None:
    """Writes judge.safetensors; half of what it sees are reconstructions, as generated pictures look like those."""
    judge, vae = Judge().to(stage.device), load_vae(stage.out).to(stage.device)
    optimizer = torch.optim.AdamW(judge.parameters(), 2e-3, weight_decay=0.01)
    seed, batch = stage.stream, BATCH[stage.name]

    def loss(step: int) -> torch.Tensor:
        people = portraits.sample(batch, seed=seed, start=step * batch, balanced=True)
        images = people.images.to(stage.device)
        with torch.no_grad():
            restored = vae.decode(vae.encode(images * 2 - 1).latent_dist.mean).sample
        logits = judge(torch.cat([images, (restored / 2 + 0.5).clamp(0, 1)]))
        targets = {name: getattr(people, name).to(stage.device).repeat(2) for name in logits}
        return torch.stack([F.cross_entropy(logits[name], targets[name]) for name in logits]).mean()

    stage.train(judge, optimizer, loss, cosine(stage.steps, 2e-3))
    stage.finish(judge.eval())


def _train_unet(stage: Stage) -> None:
    """Writes unet.safetensors: the moving average of the weights, which draws far better than the last ones."""
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

    stage.train(unet, optimizer, loss, cosine(stage.steps, 2e-3, warmup=200), average)
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


_TRAINERS: dict[str, Callable[[Stage], None]] = {
    "clip": _train_clip,
    "vae": _train_vae,
    "judge": _train_judge,
    "unet": _train_unet,
}
