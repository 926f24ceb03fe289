"""Trains the one small CLIP on both worlds, with a contrastive loss for each."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from vldebias.miniature import birds, portrait_captions, portraits
from vldebias.miniature.architecture import build_clip
from vldebias.miniature.hashing import shuffled
from vldebias.miniature.stage import Stage
from vldebias.miniature.tokenizer import learn_merges, open_clip_tokenizer, save_tokenizer
from vldebias.miniature.training import Job, cosine

if TYPE_CHECKING:
    import open_clip

__all__ = ["BATCH", "STEPS", "make_tokenizer", "train"]

STEPS = 1300
BATCH = 128  # per world
PER_BATCH = 16  # professions in a batch
PEAK_RATE = 1e-3

# Prompts of the paper whose words no caption of the two worlds has: they shall be whole words, too.
_PAPER_WORDS = (
    "a photo of a white person, a black person, an asian person, an indian person, a latino person. "
    "a face of a man, a woman, a boy, a girl. a painting, a drawing, a cartoon portrait of someone. it's on the water."
)


def make_tokenizer(out: Path) -> None:
    """Learns the vocabulary from what captions of the worlds and prompts of the paper can say."""
    prompts = [*birds.caption_prompts(), *portrait_captions.caption_prompts(), _PAPER_WORDS]
    save_tokenizer(learn_merges(prompts), out)


def train(stage: Stage) -> None:
    """Writes clip.safetensors to a folder that holds the tokenizer."""
    tokenizer = open_clip_tokenizer(stage.out)
    torch.manual_seed(stage.seed)
    model = build_clip(tokenizer.vocab_size).to(stage.device)
    optimizer = torch.optim.AdamW(model.parameters(), PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.05)

    def loss(step: int) -> torch.Tensor:
        worlds = (
            birds.sample(BATCH, seed=stage.stream, start=step * BATCH),
            portraits.sample(BATCH, seed=stage.stream, start=step * BATCH, professions=some_professions(step)),
        )
        images = torch.cat([world.images for world in worlds]).to(stage.device) * 2 - 1
        captions = [caption for world in worlds for caption in world.captions]
        image_features = F.normalize(model.encode_image(images), dim=-1)
        text_features = F.normalize(encode_captions(model, tokenizer, captions), dim=-1)
        pairs = zip(image_features.chunk(2), text_features.chunk(2), strict=True)
        temperature = 1 / model.logit_scale.exp().clamp(max=100)
        return sum((contrastive_loss(x, y, temperature) for x, y in pairs), torch.zeros((), device=stage.device)) / 2

    stage.train(Job(stage.name, {"clip": model}, optimizer, loss, cosine(stage.steps, PEAK_RATE)))
    stage.finish(model)


def some_professions(step: int) -> list[str]:
    """The professions of one batch: few, so that colleagues must be told apart by gender, tone and age."""
    return [portraits.PROFESSIONS[k] for k in shuffled(len(portraits.PROFESSIONS), f"step {step}")[:PER_BATCH]]


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
