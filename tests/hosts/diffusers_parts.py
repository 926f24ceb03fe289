"""Tokenizers, encoders, denoisers and autoencoders of a few channels, each built once from its config."""

import gzip
import inspect
import json
import warnings
from functools import cache
from pathlib import Path

import torch
from torch import nn

WORDS = "a photo of the male female man woman doctor nurse pilot cook , and with an old young person smiling at work"


def seeded(make):
    """Build each component once, the same in every run, in evaluation mode."""

    @cache
    def build():
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # diffusers warns of its own imports
            return make().eval()

    return build


def fresh(make):
    """A text encoder for whoever asks, since a pipeline may be attached to it; all of them share their numbers."""
    first = seeded(make)

    def build():
        with torch.random.fork_rng():
            model = make().eval()
        for parameter, known in zip(model.parameters(), first().parameters(), strict=True):
            parameter.data = known.data
        return model

    return build


# ---- tokenizers ----------------------------------------------------------------------------------------------


@cache
def _clip_vocabulary():
    """Vocabulary and merges of CLIP, from the file that open_clip ships."""
    import open_clip

    path = Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")[1 : 49152 - 256 - 2 + 1]
    merges = [tuple(line.split()) for line in lines]
    letters = list(open_clip.tokenizer.bytes_to_unicode().values())
    words = [*letters, *(f"{x}</w>" for x in letters), *("".join(m) for m in merges)]
    return {word: i for i, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}, merges


@cache
def clip_tokenizer():
    from transformers import CLIPTokenizer

    vocab, merges = _clip_vocabulary()
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=77)


@cache
def t5_tokenizer():
    """A word-level Unigram vocabulary in the layout of T5: <pad> 0, </s> 1, <unk> 2."""
    from transformers import T5Tokenizer

    words = [(f"▁{word}", -2.0) for word in dict.fromkeys(WORDS.split())]
    letters = [(letter, -9.0) for letter in "▁abcdefghijklmnopqrstuvwxyz.-"]
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return T5Tokenizer(vocab=[*special, *words, *letters], extra_ids=0, model_max_length=64)


@cache
def gemma_tokenizer():
    """A small BPE in the layout of Gemma: nothing at the end of a text, <pad> is not <eos>."""
    from diffusers import SanaPipeline
    from tokenizers import Tokenizer, models, normalizers, trainers
    from transformers import GemmaTokenizer

    instruction = inspect.signature(SanaPipeline.__call__).parameters["complex_human_instruction"].default

    raw = Tokenizer(models.BPE())
    raw.normalizer = normalizers.Replace(" ", "▁")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=special, show_progress=False)
    raw.train_from_iterator([WORDS, *instruction], trainer)
    model = json.loads(raw.to_str())["model"]
    return GemmaTokenizer(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]], model_max_length=512)


# ---- encoders ------------------------------------------------------------------------------------------------


def _clip_config():
    from transformers import CLIPTextConfig

    sizes = {"hidden_size": 32, "intermediate_size": 37, "num_attention_heads": 4, "num_hidden_layers": 3}
    ids = {"bos_token_id": 49406, "eos_token_id": 49407, "pad_token_id": 49407}
    return CLIPTextConfig(**sizes, **ids, vocab_size=49408, projection_dim=32)


@fresh
def clip():
    from transformers import CLIPTextModel

    return CLIPTextModel(_clip_config())


@fresh
def clip_with_projection():
    from transformers import CLIPTextModelWithProjection

    return CLIPTextModelWithProjection(_clip_config())


@fresh
def t5():
    from transformers import T5Config, T5EncoderModel

    sizes = {"d_model": 80, "d_ff": 37, "d_kv": 8, "num_heads": 2, "num_layers": 2}
    return T5EncoderModel(T5Config(**sizes, vocab_size=len(t5_tokenizer())))


@fresh
def umt5():
    from transformers import UMT5Config, UMT5EncoderModel

    sizes = {"d_model": 80, "d_ff": 37, "d_kv": 8, "num_heads": 2, "num_layers": 2}
    return UMT5EncoderModel(UMT5Config(**sizes, vocab_size=len(t5_tokenizer())))


@fresh
def gemma():
    from transformers import Gemma2Config, Gemma2Model

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "attn_implementation": "eager"}
    return Gemma2Model(Gemma2Config(**sizes, **heads, vocab_size=len(gemma_tokenizer())))


# ---- denoisers and autoencoders ------------------------------------------------------------------------------


def _vae(latent_channels):
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2}
    sizes = {"block_out_channels": [4, 8], "norm_num_groups": 2, "latent_channels": latent_channels}
    return AutoencoderKL(**blocks, **sizes, sample_size=16, shift_factor=0.06, scaling_factor=0.2)


@seeded
def vae():
    return _vae(4)


@seeded
def flux_vae():
    return _vae(1)


@seeded
def dc_vae():
    from diffusers import AutoencoderDC

    blocks = ("ResBlock", "EfficientViTBlock")
    return AutoencoderDC(
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=blocks,
        decoder_block_types=blocks,
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
    )


_UNET = {
    "block_out_channels": (8, 16),
    "norm_num_groups": 2,
    "layers_per_block": 1,
    "sample_size": 8,
    "attention_head_dim": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
}
_XL = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 32 + 6 * 8,
    "cross_attention_dim": 64,
}


def make_unet(**config):
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(**_UNET, up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), **config)


@seeded
def unet():
    return make_unet(cross_attention_dim=32)


@seeded
def unet_xl():
    return make_unet(**_XL)


@seeded
def refiner_unet():
    return make_unet(**_XL | {"cross_attention_dim": 32, "projection_class_embeddings_input_dim": 32 + 5 * 8})


@seeded
def controlnet():
    from diffusers import ControlNetModel

    config = {k: v for k, v in _UNET.items() if k != "sample_size"}
    model = ControlNetModel(**config, cross_attention_dim=32, conditioning_embedding_out_channels=(4, 8))
    for parameter in model.parameters():  # its output layers start at zero and would hide the prompt
        nn.init.normal_(parameter, std=0.1)
    return model


@seeded
def sd3_transformer():
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=80,
        caption_projection_dim=32,
        pooled_projection_dim=64,
    )


@seeded
def flux_transformer():
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=80,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )


@seeded
def chroma_transformer():
    from diffusers import ChromaTransformer2DModel

    return ChromaTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=80,
        axes_dims_rope=(4, 4, 8),
        approximator_hidden_dim=32,
        approximator_layers=1,
        approximator_num_channels=16,
    )


@seeded
def pixart_transformer():
    from diffusers import PixArtTransformer2DModel

    return PixArtTransformer2DModel(
        sample_size=8,
        patch_size=2,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=3,
        cross_attention_dim=24,
        caption_channels=80,
        in_channels=4,
        out_channels=8,
    )


@seeded
def sana_transformer():
    from diffusers import SanaTransformer2DModel

    return SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=16,
        sample_size=8,
    )


@seeded
def aura_transformer():
    from diffusers import AuraFlowTransformer2DModel

    return AuraFlowTransformer2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=80,
        pos_embed_max_size=64,
    )
