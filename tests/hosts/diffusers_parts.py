"""Encoders, denoisers and autoencoders of a few channels, each built once from its config."""

import warnings
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import tiny_tokenizers
import torch
import yaml
from tiny_tokenizers import CLIP_IDS, gemma_tokenizer, t5_tokenizer
from torch import nn


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


# ---- encoders ------------------------------------------------------------------------------------------------


def _clip_config():
    from transformers import CLIPTextConfig

    sizes = {"hidden_size": 32, "intermediate_size": 37, "num_attention_heads": 4, "num_hidden_layers": 3}
    ids = {"bos_token_id": CLIP_IDS - 2, "eos_token_id": CLIP_IDS - 1, "pad_token_id": CLIP_IDS - 1}
    return CLIPTextConfig(**sizes, **ids, vocab_size=CLIP_IDS, projection_dim=32)


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


# ---- denoisers, autoencoders, schedulers -------------------------------------------------------------------------

SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # half a second sooner, where there is libyaml
TABLE = yaml.load((Path(__file__).parent / "diffusers.yaml").read_text("utf-8"), SAFE)


def made(config):
    """An object of diffusers; config: its class, or "folder:class" of a pipeline's own, and its arguments."""
    folder, _, cls = config["class"].rpartition(":")
    arguments = {name: value for name, value in config.items() if name != "class"}
    built = getattr(import_module(f"diffusers{folder and '.pipelines.'}{folder}"), cls)(**arguments)
    for parameter in built.parameters() if isinstance(built, nn.Module) else ():
        if not parameter.any():  # some layers start at zero, and would hide the prompt
            nn.init.normal_(parameter, std=0.1)
    return built


MODELS = {name: seeded(partial(made, config)) for name, config in TABLE["models"].items()}


def builder(entry, anew=False):
    """Makes what an entry of the table stands for, once if it is a model; anew: each time, for what has a state."""
    if not isinstance(entry, str | dict):
        return lambda: entry
    if isinstance(entry, dict):
        return partial(made, entry) if anew else seeded(partial(made, entry))
    known = MODELS | vars(tiny_tokenizers) | globals()
    return known.get(entry) or partial(made, {"class": entry})
