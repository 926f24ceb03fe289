"""Build the models of the miniature world (tokenizer, CLIP, VAE, judge and UNet)."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from eval.miniature import birds, people, portraits
from eval.miniature.training import Stage, cosine, generator, read_weights_metadata, save_tensors
from eval.miniature.twin import to_transformers
from eval.miniature.vocabulary import (
    DRAWN_BIRDS,
    DRAWN_PEOPLE,
    PAPER_WORDS,
    bird_prompts,
    learn_merges,
    people_prompts,
)
from eval.miniature.widen import widened
from eval.miniature.world import shuffled
from vldebias.errors import InvalidInputError
from vldebias.losses import info_nce
from vldebias.miniature.architectures import (
    CONFIGS,
    AttributeNetwork,
    Widths,
    build_clip,
)
from vldebias.miniature.autoencoder import PatchAutoencoder
from vldebias.miniature.models import load_text_tower, load_vae, load_weights
from vldebias.miniature.tokenizer import open_clip_tokenizer, save_tokenizer
from vldebias.miniature.words import BIRD_FIELDS, PEOPLE_FIELDS, WORLDS
from vldebias.training.optim import Average
from vldebias.utils.files import only_writer, write_atomically
from vldebias.utils.progress import Progress

if TYPE_CHECKING:
    import open_clip

WIDE = Widths(joint=256, vision=128, text=256)  # width of the packaged CLIP
STEPS = {"narrow": 1300, "clip": 2400, "vae": 10_000, "judge": 600, "draft": 3450, "unet": 2800}
# Numbers of portraits in CLIP batches. The narrow model sees equally many birds, the other fewer.
BATCH = {
    "narrow": 128,
    "clip": 128,
    "vae": 12,
    "judge": 64,
    "draft": 96,
    "unet": 96,
}
STAGES = ("tokenizer", *STEPS)
PROFESSIONS_PER_BATCH = 16
TALKATIVE = (
    0.15,
    0.05,
    0.20,
    0.30,
    0.30,
)  # shares of captions by the number of other things they mention, while CLIP learns words
MIXED_SHARE = 0.1  # share of the judge's portraits in which hair, face or beard contradict the rest
POOL = 40_000  # number of renders whose latents are used to train the UNet
PORTRAIT_SHARE = (
    2 / 3
)  # share of portraits among images for training the VAE, judge and draft; the rest are birds
BLOCK = 384  # images rendered at once, a multiple of every batch size in _Pictures
NOT_THERE = -100  # class that cross-entropy ignores, such as the profession of a bird
EMPTY_SHARE = 0.1  # share of captions replaced with "" for classifier-free guidance

# Further training data for the UNet. The draft generates professions well, but not yet birds or the
# requested tone, so the data are mostly birds with more detailed captions. The biases of
# professions and places do not change.
DRAWN_PORTRAIT_SHARE = 1 / 3

_Worlds = tuple[birds.Birds, portraits.Portraits]


def build(
    out: Path | str,
    *,
    seed: int = 0,
    stages: Sequence[str] | None = None,
    device: str | None = None,
    resume: bool = True,
    scale: float = 1.0,
) -> Path:
    """Train the models of the miniature world and write them to a folder like the packaged one.

    This takes a few hours on two CPU cores. A killed build resumes from the last checkpoint, which
    is written every minute. On the same machine and with the same number of threads, the weights
    are the same as in an uninterrupted build.

    Args:
        out: The output folder. Set VLDEBIAS_MINIATURE to this folder to load the build.
        seed: The seed for the weights and all training images.
        stages: The stages to run (by default all), in the order of STAGES. Each stage needs the
            previous ones.
        device: "cpu" or "cuda". By default, a GPU is used if available.
        resume: Whether to keep finished stages.
        scale: A factor for the numbers of training steps, for quick tests.

    Returns:
        The output folder.

    Raises:
        InvalidInputError: If a stage is unknown, if the scale is not positive, or if a different
            build is writing to the folder.
    """
    chosen = STAGES if stages is None else tuple(stages)
    unknown = sorted(set(chosen) - set(STAGES), key=chosen.index)
    if unknown:
        raise InvalidInputError(f"unknown stages {unknown}, expected any of {list(STAGES)}")
    if not scale > 0:
        raise InvalidInputError(f"scale must be positive, got {scale}")
    out, device = Path(out), device or ("cuda" if torch.cuda.is_available() else "cpu")
    with Progress() as progress, only_writer(out, progress.print_line):
        for name in sorted(set(chosen), key=STAGES.index):
            if name == "tokenizer":
                save_tokenizer(learn_merges([*bird_prompts(), *people_prompts(), PAPER_WORDS]), out)
            else:
                steps = max(1, round(STEPS[name] * scale))
                stage = Stage(name, out, seed, steps, device, progress)
                if not resume or read_weights_metadata(stage.weights) != stage.settings:
                    torch.manual_seed(seed)
                    _TRAINERS[name](stage)
    return out


def _train_narrow(stage: Stage) -> None:
    """Write a CLIP model trained on studio portraits and birds, and its text tower.

    The files are narrow.safetensors and the text encoder for the pipeline.
    """
    tokenizer = open_clip_tokenizer(stage.out)
    model = build_clip(tokenizer.vocab_size).to(stage.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.98), weight_decay=0.05)
    render = partial(_worlds, stage, people.STUDIO, PROFESSIONS_PER_BATCH, BATCH[stage.name])
    stage.train(
        model,
        optimizer,
        lambda step: _contrast(stage, model, tokenizer, render(step)),
        cosine(stage.steps, 1e-3),
    )
    stage.finish(model)
    tower = {
        k: v
        for k, v in to_transformers(load_weights(stage.weights)).items()
        if k.startswith("text_model.")
    }
    save_tensors(tower, stage.out / "text.safetensors", stage.settings)


def _train_clip(stage: Stage) -> None:
    """Continue training the narrow model on varied portraits, and write clip.safetensors."""
    from open_clip.transformer import PatchDropout

    tokenizer = open_clip_tokenizer(stage.out)
    model = build_clip(tokenizer.vocab_size, WIDE)
    model.load_state_dict(
        widened(load_weights(stage.out / "narrow.safetensors"), model.state_dict())
    )
    model = model.to(stage.device)
    model.logit_scale.requires_grad_(False)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 6e-4, betas=(0.9, 0.98))

    def loss(step: int) -> torch.Tensor:
        # At first, captions are detailed and images mostly masked, which speeds up training. At the
        # end, both are unmodified.
        done = step / stage.steps
        torch.manual_seed(stage.stream * 1_000_003 + step)  # which patches
        model.visual.patch_dropout = PatchDropout(0.5) if done < 0.35 else torch.nn.Identity()
        life = replace(people.LIFE, said=TALKATIVE) if done < 0.6 else people.LIFE
        some = PROFESSIONS_PER_BATCH if done < 0.6 else None
        return _contrast(
            stage, model, tokenizer, _worlds(stage, life, some, BATCH[stage.name] // 4, step)
        )

    stage.train(model, optimizer, loss, cosine(stage.steps, 6e-4, warmup=80))
    stage.finish(model)


def _worlds(stage: Stage, life: people.Life, jobs: int | None, flock: int, step: int) -> _Worlds:
    """Return the birds and portraits for a training step, with `jobs` (or all) professions."""
    crowd = BATCH[stage.name]
    # A batch contains few professions, so that people with the same job differ only in gender, tone
    # and age.
    some = [people.PROFESSIONS[k] for k in shuffled(len(people.PROFESSIONS), f"step {step}")[:jobs]]
    return (
        birds.sample(flock, seed=stage.stream, start=step * flock),
        portraits.sample(crowd, seed=stage.stream, start=step * crowd, professions=some, life=life),
    )


def _contrast(
    stage: Stage,
    model: "open_clip.CLIP",
    tokenizer: "open_clip.SimpleTokenizer",
    worlds: _Worlds,
) -> torch.Tensor:
    """Return the contrastive losses for birds and portraits, weighted by their shares."""
    sizes = [len(world.images) for world in worlds]
    images = torch.cat([world.images for world in worlds]).to(stage.device) * 2 - 1
    captions = [caption for world in worlds for caption in world.captions]
    image_features = F.normalize(model.encode_image(images), dim=-1).split(sizes)
    text_features = F.normalize(encode_captions(model, tokenizer, captions), dim=-1).split(sizes)
    temperature = 1 / model.logit_scale.exp().clamp(max=100)
    losses = (
        info_nce(x, y, temperature=temperature)
        for x, y in zip(image_features, text_features, strict=True)
    )
    return sum(size * loss for size, loss in zip(sizes, losses, strict=True)) / sum(sizes)


def encode_captions(
    model: "open_clip.CLIP", tokenizer: "open_clip.SimpleTokenizer", captions: Sequence[str]
) -> torch.Tensor:
    """Encode captions without computing duplicates and padding.

    The tower is causal, so padding after the end token does not affect earlier tokens.
    """
    unique = sorted(set(captions))
    device = model.positional_embedding.device
    ids = tokenizer(unique).to(device)
    ends = ids.argmax(dim=1)
    parts = []
    by_length = ends.argsort(stable=True)
    for rows in by_length.chunk(3):
        here, end = ids[rows], ends[rows]
        length = int(end.max()) + 1
        x = model.token_embedding(here[:, :length]) + model.positional_embedding[:length]
        x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
        parts.append(x[torch.arange(len(rows), device=device), end])
    row = {unique[k]: i for i, k in enumerate(by_length.tolist())}
    return (torch.cat(parts) @ model.text_projection)[
        torch.tensor([row[c] for c in captions], device=device)
    ]


def _train_vae(stage: Stage) -> None:
    """Write vae.safetensors, scaled to latents with unit variance."""
    vae = PatchAutoencoder(**CONFIGS["vae"]).to(stage.device)
    optimizer = torch.optim.AdamW(vae.parameters(), 2e-3)
    seed, batch = stage.stream, BATCH[stage.name]
    pictures = _Pictures(seed)

    def loss(step: int) -> torch.Tensor:
        x = pictures.batch(step, batch).images.to(stage.device) * 2 - 1
        (posterior,) = vae.encode(x, return_dict=False)
        noise = torch.randn(posterior.mean.shape, generator=generator(seed, step)).to(stage.device)
        restored = vae.decode(posterior.mean + posterior.std * noise).sample
        # Edges are essential in faces, but contribute little to the squared error.
        likeness = (
            F.mse_loss(restored, x) + 0.3 * F.l1_loss(restored, x) + 0.1 * _edge_loss(restored - x)
        )
        return likeness + 2e-6 * posterior.kl().mean()

    stage.train(vae, optimizer, loss, cosine(stage.steps, 2e-3))
    others = _Pictures(seed + 1)  # held-out images
    images = torch.cat([others.batch(number, BLOCK).images for number in range(4)])
    scale = 1 / _latents(vae, images, stage.device).std().item()
    write_atomically(stage.out / "vae.json", json.dumps({"scaling_factor": scale}, indent=1) + "\n")
    stage.finish(vae)


def _edge_loss(difference: torch.Tensor) -> torch.Tensor:
    """Return the mean absolute gradient of a difference between images (n, c, h, w)."""
    return sum(
        (difference.diff(dim=axis).abs().mean() for axis in (2, 3)),
        torch.zeros((), device=difference.device),
    )


def _train_judge(stage: Stage) -> None:
    """Write judge.safetensors, trained half on reconstructions, which resemble generated images."""
    judge, vae = AttributeNetwork().to(stage.device), load_vae(stage.out).to(stage.device)
    optimizer = torch.optim.AdamW(judge.parameters(), 2e-3, weight_decay=0.01)
    batch, pictures = BATCH[stage.name], _Pictures(stage.stream, mixed=MIXED_SHARE)

    def loss(step: int) -> torch.Tensor:
        seen = pictures.batch(step, batch)
        images = seen.images.to(stage.device)
        with torch.no_grad():
            restored = vae.decode(vae.encode(images * 2 - 1)[0].mean)[0]
        logits = judge(torch.cat([images, (restored / 2 + 0.5).clamp(0, 1)]))
        losses = []
        for name, truth in seen.fields.items():
            target = truth.to(stage.device).repeat(2)
            losses.append(F.cross_entropy(logits[name], target, ignore_index=NOT_THERE))
        unclear = logits["gender"][
            seen.mixed.to(stage.device).repeat(2)
        ]  # there is no correct answer for contradictory cues
        losses.append(-unclear.log_softmax(dim=1).mean(dim=1).sum() / len(images))
        return torch.stack(losses).mean()

    stage.train(judge, optimizer, loss, cosine(stage.steps, 2e-3))
    stage.finish(judge.eval())


def _train_draft(stage: Stage) -> None:
    """Write draft.safetensors, the UNet trained with captions like CLIP's."""
    _train_noise_predictor(stage, _Pictures(stage.stream, is_biased=True))


def _train_unet(stage: Stage) -> None:
    """Write unet.safetensors, the draft after further training."""
    pictures = _Pictures(
        stage.stream,
        is_biased=True,
        bird_captions=DRAWN_BIRDS,
        portrait_share=DRAWN_PORTRAIT_SHARE,
        people_captions=DRAWN_PEOPLE,
    )
    _train_noise_predictor(stage, pictures, start=stage.out / "draft.safetensors")


def _train_noise_predictor(stage: Stage, pictures: "_Pictures", start: Path | None = None) -> None:
    """Write the moving average of the weights, which is far better than the final weights."""
    from diffusers import DDIMScheduler, UNet2DConditionModel
    from safetensors.torch import load_file

    latents, hidden, row = _pool(stage, pictures)
    unet = UNet2DConditionModel(cross_attention_dim=hidden.shape[-1], **CONFIGS["unet"])
    if start:
        unet.load_state_dict({name: tensor.float() for name, tensor in load_file(start).items()})
    unet = unet.to(stage.device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(unet.parameters(), 2e-3, weight_decay=0.01)
    average = Average(dict(unet.named_parameters()), 0.999)
    signal = DDIMScheduler(**CONFIGS["scheduler"]).alphas_cumprod.to(stage.device)

    def loss(step: int) -> torch.Tensor:
        source, n = generator(stage.stream, step), BATCH[stage.name]
        pick = torch.randint(len(latents), (n,), generator=source)
        empty = torch.rand(n, generator=source) < EMPTY_SHARE
        time = torch.randint(len(signal), (n,), generator=source).to(stage.device)
        noise = torch.randn((n, *latents.shape[1:]), generator=source).to(stage.device)
        captions = torch.where(empty, 0, row[pick])
        alpha = signal[time].view(-1, 1, 1, 1)
        noisy = alpha.sqrt() * latents[pick.to(stage.device)] + (1 - alpha).sqrt() * noise
        return F.mse_loss(unet(noisy, time, hidden[captions.to(stage.device)]).sample, noise)

    # The average of weights needs a long phase with a high rate, which falls to 0 at the end.
    slow = cosine(round(stage.steps * 30 / 23), 2e-3, warmup=200)
    stage.train(
        unet,
        optimizer,
        loss,
        lambda step: slow(step) * min(1.0, 2 - 2 * step / stage.steps),
        average,
    )
    average.copy_to_live()
    stage.finish(unet)


@torch.no_grad()
def _pool(stage: Stage, pictures: "_Pictures") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return latents (n, c, 8, 8), caption states (m, 24, d) and caption rows (n,).

    The first caption is empty. The images have the world's bias, from which the generator's bias
    results.
    """
    vae, (text_model, tokenizer) = load_vae(stage.out).to(stage.device), load_text_tower(stage.out)
    size = min(POOL, stage.steps * BATCH[stage.name])
    parts, captions = [], []
    for number in stage.progress.track(range(-(-size // BLOCK)), description="latents"):
        seen = pictures.batch(number, BLOCK)
        parts.append(_latents(vae, seen.images, stage.device) * vae.config.scaling_factor)
        captions += seen.captions
    texts = ["", *sorted(set(captions))]
    number_of = {text: i for i, text in enumerate(texts)}
    ids = tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt").input_ids
    hidden = torch.cat([text_model(part).last_hidden_state for part in ids.split(500)]).to(
        stage.device
    )
    return torch.cat(parts), hidden, torch.tensor([number_of[caption] for caption in captions])


@torch.no_grad()
def _latents(vae: "PatchAutoencoder", images: torch.Tensor, device: str) -> torch.Tensor:
    """Return the VAE latents (n, c, 8, 8) of images (n, 3, 64, 64) in [0, 1]."""
    return torch.cat([vae.encode(part.to(device) * 2 - 1)[0].mean for part in images.split(250)])


@dataclass(frozen=True)
class _Seen:
    """Images (n, 3, 64, 64) in [0, 1] from both worlds, with captions and true values (n,)."""

    images: torch.Tensor
    captions: list[str]
    fields: dict[str, torch.Tensor]
    mixed: torch.Tensor  # portraits with contradictory gender cues


class _Pictures:
    """A stream of images from both worlds, rendered in blocks because small batches are slow.

    Args:
        seed: The seed of the stream.
        is_biased: Whether the images have the world's bias.
        portrait_share: The share of portraits.
        people_captions: The shares of the kinds of captions for portraits.
        bird_captions: The shares of the kinds of captions for birds.
        mixed: The share of portraits with a cue for the other gender, whose gender is then unknown.
    """

    def __init__(
        self,
        seed: int,
        *,
        is_biased: bool = False,
        portrait_share: float = PORTRAIT_SHARE,
        people_captions: Mapping[str, float] = people.CAPTION_SHARES,
        bird_captions: tuple[float, ...] = birds.SHARES,
        mixed: float = 0.0,
    ) -> None:
        self.seed, self.is_biased, self.mixed = seed, is_biased, mixed
        self.portraits = round(BLOCK * portrait_share)
        self.people_captions, self.bird_captions = people_captions, bird_captions
        self._number, self._block = -1, _Seen(torch.empty(0), [], {}, torch.empty(0))

    def batch(self, step: int, n: int) -> _Seen:
        """Return n images for a step, where n must divide the block size."""
        number, place = divmod(step * n, BLOCK)
        if number != self._number:
            self._number, self._block = number, self._render(number)
        rows = slice(place, place + n)
        whole = self._block
        fields = {name: truth[rows] for name, truth in whole.fields.items()}
        return _Seen(whole.images[rows], whole.captions[rows], fields, whole.mixed[rows])

    def _render(self, number: int) -> _Seen:
        """Render a block, and shuffle it so that batches contain both worlds."""
        crowd, flock = self.portraits, BLOCK - self.portraits
        portrait = portraits.sample(
            crowd,
            seed=self.seed,
            start=number * crowd,
            balanced=not self.is_biased,
            life=people.STUDIO,
            shares=self.people_captions,
            mixed=self.mixed,
        )
        bird = birds.sample(
            flock,
            seed=self.seed,
            start=number * flock,
            balanced=not self.is_biased,
            shares=self.bird_captions,
        )
        order = torch.randperm(BLOCK, generator=generator(self.seed, number))
        kind = torch.tensor([WORLDS.index("portraits")] * crowd + [WORLDS.index("birds")] * flock)
        fields = {"world": kind}
        fields |= {
            name: torch.cat([getattr(portrait, name), _nothing(flock)]) for name in PEOPLE_FIELDS
        }
        fields |= {name: torch.cat([_nothing(crowd), getattr(bird, name)]) for name in BIRD_FIELDS}
        mixed = torch.cat([portrait.mixed, torch.zeros(flock, dtype=torch.bool)])
        fields["gender"] = torch.where(mixed, NOT_THERE, fields["gender"])
        captions = [*portrait.captions, *bird.captions]
        return _Seen(
            torch.cat([portrait.images, bird.images])[order],
            [captions[i] for i in order.tolist()],
            {name: truth[order] for name, truth in fields.items()},
            mixed[order],
        )


def _nothing(n: int) -> torch.Tensor:
    return torch.full((n,), NOT_THERE)


_TRAINERS: dict[str, Callable[[Stage], None]] = {
    "narrow": _train_narrow,
    "clip": _train_clip,
    "vae": _train_vae,
    "judge": _train_judge,
    "draft": _train_draft,
    "unet": _train_unet,
}
