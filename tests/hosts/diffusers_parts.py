"""Tokenizers, encoders, denoisers and autoencoders of a few channels, each built once from its config."""

import gzip
import inspect
import json
import warnings
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import torch
import yaml
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


# ---- denoisers, autoencoders, schedulers -------------------------------------------------------------------------

TABLE = yaml.safe_load((Path(__file__).parent / "diffusers.yaml").read_text("utf-8"))


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
    return MODELS.get(entry) or globals().get(entry) or partial(made, {"class": entry})


def make_unet(**changes):
    return made(TABLE["models"]["unet"] | changes)
