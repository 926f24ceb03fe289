"""The miniature models with fresh weights, and the names that the weights of the CLIP have in either library."""

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from vldebias.errors import InvalidInputError, need
from vldebias.miniature.birds import PLACES, SPECIES
from vldebias.miniature.people import AGES, GENDERS, PROFESSIONS, TONES
from vldebias.miniature.tokenizer import CONTEXT_LENGTH
from vldebias.miniature.world import SIZE, WORLDS

if TYPE_CHECKING:
    import open_clip
    from diffusers import DDIMScheduler, UNet2DConditionModel
    from transformers import CLIPConfig

    from vldebias.miniature.autoencoder import PatchAutoencoder

HEAD_WIDTH, LAYERS, MLP_RATIO, PATCH_SIZE = 32, 3, 4.0, 8  # of both towers; the patches are the vision tower's


class Widths(NamedTuple):
    """Widths of a CLIP: of the joint space, of the vision tower and of the text tower."""

    joint: int
    vision: int
    text: int

    @classmethod
    def of(cls, weights: Mapping[str, torch.Tensor]) -> "Widths":
        """The widths of weights of open_clip."""
        joint, vision = weights["text_projection"].shape[1], weights["visual.proj"].shape[0]
        return cls(joint, vision, weights["text_projection"].shape[0])


NARROW = Widths(joint=128, vision=96, text=128)  # reads studio portraits; its text tower is the pipeline's
WIDE = Widths(joint=256, vision=128, text=256)  # goes on from it with portraits of all their life
# Pixels in [0, 1] are mapped to [-1, 1].
IMAGE_MEAN = (0.5, 0.5, 0.5)
IMAGE_STD = (0.5, 0.5, 0.5)
LATENTS = (12, 8, 8)  # channels, height, width
# What the judge reads, and from which of the worlds it learns to (all of them where none is named).
PEOPLE_FIELDS = {"profession": len(PROFESSIONS), "gender": len(GENDERS), "tone": len(TONES), "age": len(AGES)}
BIRD_FIELDS = {"species": len(SPECIES), "place": len(PLACES)}
FIELDS = {"world": len(WORLDS), **PEOPLE_FIELDS, **BIRD_FIELDS}

# open_clip name: transformers name, in a residual block and outside of one.
_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_PLAIN = {
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "logit_scale": "logit_scale",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
}


def build_clip(vocab_size: int, towers: Widths = NARROW) -> "open_clip.CLIP":
    """An open_clip CLIP (GELU, causal text tower pooled at the largest id, which is the end token)."""
    open_clip = need("open_clip")
    common = {"layers": LAYERS, "mlp_ratio": MLP_RATIO}
    return open_clip.CLIP(
        embed_dim=towers.joint,
        vision_cfg=open_clip.CLIPVisionCfg(
            image_size=SIZE, patch_size=PATCH_SIZE, width=towers.vision, head_width=HEAD_WIDTH, **common
        ),
        text_cfg=open_clip.CLIPTextCfg(
            vocab_size=vocab_size,
            context_length=CONTEXT_LENGTH,
            width=towers.text,
            heads=towers.text // HEAD_WIDTH,
            **common,
        ),
    )


def transformers_config(vocab_size: int, towers: Widths = NARROW) -> "CLIPConfig":
    """The configuration of the same model in transformers."""
    transformers = need("transformers")

    def common(width: int) -> dict[str, Any]:
        return {
            "hidden_size": width,
            "intermediate_size": int(width * MLP_RATIO),
            "num_hidden_layers": LAYERS,
            "num_attention_heads": width // HEAD_WIDTH,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "projection_dim": towers.joint,
        }

    text = transformers.CLIPTextConfig(
        vocab_size=vocab_size,
        max_position_embeddings=CONTEXT_LENGTH,
        pad_token_id=0,
        bos_token_id=vocab_size - 2,
        eos_token_id=vocab_size - 1,
        **common(towers.text),
    )
    vision = transformers.CLIPVisionConfig(image_size=SIZE, patch_size=PATCH_SIZE, **common(towers.vision))
    return transformers.CLIPConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=towers.joint
    )


def build_vae() -> "PatchAutoencoder":
    """64 x 64 pictures to latents and back."""
    from vldebias.miniature.autoencoder import PatchAutoencoder

    return PatchAutoencoder((12, 32, 48, 64), latent_channels=LATENTS[0], norm_num_groups=8, sample_size=SIZE)


def build_unet(text_width: int = NARROW.text) -> "UNet2DConditionModel":
    """The noise predictor: two resolutions, text read by cross-attention in all blocks."""
    UNet2DConditionModel = need("diffusers").UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=LATENTS[1],
        in_channels=LATENTS[0],
        out_channels=LATENTS[0],
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(64, 96),
        layers_per_block=1,
        cross_attention_dim=text_width,
        attention_head_dim=4,
        norm_num_groups=16,
    )


def build_scheduler() -> "DDIMScheduler":
    """The noise schedule of Stable Diffusion."""
    DDIMScheduler = need("diffusers").DDIMScheduler

    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.012,
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )


class AttributeNetwork(nn.Module):
    """A small classifier of pictures of both worlds.

    A convolutional network with one head per field of `FIELDS`, trained on renders and on their VAE reconstructions.
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 96, 128)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.Flatten())
        inputs = widths[-1] * (SIZE // 2 ** (len(widths) - 1)) ** 2
        self.heads = nn.ModuleDict({name: nn.Linear(inputs, count) for name, count in FIELDS.items()})

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits (n, classes) of each field, for images (n, 3, 64, 64) in [0, 1]."""
        features = self.features(images * 2 - 1)
        return {name: head(features) for name, head in self.heads.items()}

    @torch.no_grad()
    def predict(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the pictures show.

        Args:
            images: (n, 3, 64, 64) in [0, 1].

        Returns:
            For each field `name` the most likely label (n,) under `name`, and the probabilities (n, classes) of
            all labels under `name_probabilities`. `world` indexes WORLDS; profession, gender, tone and age, which
            mean nothing of a bird, index PROFESSIONS, GENDERS, TONES and AGES; species and place, which mean nothing
            of a portrait, index SPECIES and PLACES of the birds.

        Raises:
            InvalidInputError: images of another shape.
        """
        if images.ndim != 4 or images.shape[1:] != (3, SIZE, SIZE):
            raise InvalidInputError(
                f"the judge reads images (n, 3, {SIZE}, {SIZE}) in [0, 1], got {tuple(images.shape)}"
            )
        weight = next(self.parameters())
        probabilities = {name: z.softmax(dim=1) for name, z in self(images.to(weight)).items()}
        labels = {name: p.argmax(dim=1) for name, p in probabilities.items()}
        return labels | {f"{name}_probabilities": p for name, p in probabilities.items()}


def to_transformers(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """State dict of an open_clip CLIP to the state dict of a CLIPModel with `transformers_config`: the same numbers."""
    renamed = {new: weights[old] for old, new in _PLAIN.items()}
    renamed["text_projection.weight"] = weights["text_projection"].T.contiguous()
    renamed["visual_projection.weight"] = weights["visual.proj"].T.contiguous()
    for name, tensor in weights.items():
        tower, in_block, rest = name.partition("transformer.resblocks.")
        if not in_block:
            continue
        layer, _, inner = rest.partition(".")
        prefix = f"{'vision_model' if tower == 'visual.' else 'text_model'}.encoder.layers.{layer}"
        module, _, kind = inner.rpartition(".")
        if module == "attn":  # open_clip stacks query, key and value, transformers keeps them apart
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                renamed[f"{prefix}.self_attn.{letter}_proj.{kind.removeprefix('in_proj_')}"] = part.clone()
        else:
            renamed[f"{prefix}.{_BLOCK[module]}.{kind}"] = tensor
    return renamed


Judge = AttributeNetwork  # its name up to 0.2
