"""Load the miniature CLIP model with transformers."""

from pathlib import Path
from typing import TYPE_CHECKING

from eval.miniature.twin import to_transformers
from vldebias.errors import need
from vldebias.miniature import weights_dir
from vldebias.miniature.architectures import (
    HEAD_WIDTH,
    IMAGE_MEAN,
    IMAGE_STD,
    LAYERS,
    MLP_RATIO,
    PATCH_SIZE,
    Widths,
    text_config,
)
from vldebias.miniature.models import load_weights
from vldebias.miniature.tokenizer import transformers_tokenizer
from vldebias.miniature.words import SIZE

if TYPE_CHECKING:
    from transformers import CLIPImageProcessor, CLIPModel, CLIPTokenizer


def load_transformers_clip(
    folder: Path | None = None,
) -> "tuple[CLIPModel, CLIPTokenizer, CLIPImageProcessor]":
    """Return a CLIPModel in eval mode, a tokenizer and an image processor.

    They use the weights of the given build, or the packaged ones.
    """
    transformers = need("transformers")
    folder = weights_dir() if folder is None else folder
    tokenizer, weights = transformers_tokenizer(folder), load_weights(folder / "clip.safetensors")
    towers = Widths.from_weights(weights)
    vision = transformers.CLIPVisionConfig(
        image_size=SIZE,
        patch_size=PATCH_SIZE,
        hidden_size=towers.vision,
        intermediate_size=int(towers.vision * MLP_RATIO),
        num_hidden_layers=LAYERS,
        num_attention_heads=towers.vision // HEAD_WIDTH,
        hidden_act="gelu",
        layer_norm_eps=1e-5,
        projection_dim=towers.joint,
    )
    text = text_config(len(tokenizer), towers.text, towers.joint)
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=towers.joint
        )
    )
    missing, unexpected = model.load_state_dict(to_transformers(weights), strict=False)
    if unexpected or [name for name in missing if not name.endswith("position_ids")]:
        raise RuntimeError(f"state dicts differ: missing {missing}, unexpected {unexpected}")
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": SIZE},
        crop_size={"height": SIZE, "width": SIZE},
        image_mean=list(IMAGE_MEAN),
        image_std=list(IMAGE_STD),
    )
    return model.eval(), tokenizer, processor
