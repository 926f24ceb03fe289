"""The text side of diffusers pipelines that read chats, several layers or several encoders: no denoiser, no VAE."""

import copy
import functools
import inspect
import warnings
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import diffusers_parts as parts
import diffusers_tiny
import tiny_tokenizers
import torch
from diffusers_parts import fresh
from tiny_tokenizers import SENTENCE, gemma_tokenizer
from torch import nn

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "{% for m in messages %}{% if m.role == 'system' %}[SYS]{{ m.content[0].text }}[/SYS]"
    "{% else %}[INST]{{ m.content[0].text }}[/INST]{% endif %}{% endfor %}"
)
VOCABULARY = 600
SPECIAL = (
    *("<pad>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("[SYS]", "[/SYS]", "[INST]", "[/INST]", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    "<|eot_id|>",
)


@cache
def _bpe():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE

    # The system message of some is cut off by its length: it has to be a hundred tokens, not five hundred.
    raw.train_from_iterator([SENTENCE] * 9 + [DEFAULT_PROMPT_TEMPLATE["template"]] * 2, trainer)
    return raw


def chat_tokenizer(template=CHAT, **settings):
    """Bytes and words, in chats; as Qwen, Mistral and GLM have it."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=copy.deepcopy(_bpe()),
        pad_token="<pad>",
        eos_token="<|im_end|>",
        model_max_length=2048,
        **settings,
    )
    tokenizer.chat_template = template
    return tokenizer


class Processor:
    """A tokenizer that takes images, and returns positions, as processors do."""

    def __init__(self, tokenizer, positions=False):
        self.tokenizer, self.positions = tokenizer, positions

    def __call__(self, text, images=None, videos=None, **settings):
        tokens = self.tokenizer(text, **settings)
        if images is not None:  # stands for an image of three tokens
            one = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
            rows = [[t for i in row for t in ([i] * 3 if i == one else [i])] for row in tokens.input_ids.tolist()]
            tokens["input_ids"] = torch.tensor(rows)
            tokens["attention_mask"] = (tokens["input_ids"] != self.tokenizer.pad_token_id).long()
        if self.positions:
            tokens["position_ids"] = (tokens.attention_mask.cumsum(1) - 1).clamp(min=0)
        return tokens

    def __getattr__(self, name):
        if name == "tokenizer":
            raise AttributeError(name)
        return getattr(self.tokenizer, name)


class Stub(nn.Module):
    """In the place of a denoiser or VAE, which encoding does not need."""

    dtype, device = torch.float32, torch.device("cpu")
    temporal_compression_ratio, spatial_compression_ratio = 4, 8

    def __init__(self, **config):
        super().__init__()
        self.config = SimpleNamespace(**config)


# ---- encoders --------------------------------------------------------------------------------------------------


def _qwen(layers=4, vocabulary=VOCABULARY, **config):
    from transformers import Qwen3Config, Qwen3Model

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": layers, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return Qwen3Model(Qwen3Config(**sizes, **heads, vocab_size=vocabulary, attn_implementation="eager", **config))


@fresh
def qwen():
    return _qwen()


class _WithImages(nn.Module):
    """Takes pixels, and looks at none of them."""

    model = property(lambda self: self.inner)

    def __init__(self, layers=4):
        super().__init__()
        self.inner = _qwen(layers)
        ids = _bpe()
        self.config = self.inner.config
        self.config.image_token_id = ids.token_to_id("<|image_pad|>")
        self.config.vision_end_token_id = ids.token_to_id("<|vision_end|>")

    dtype = property(lambda self: self.inner.dtype)
    device = property(lambda self: self.inner.device)

    def forward(self, input_ids, attention_mask=None, pixel_values=None, image_grid_thw=None, **settings):
        if (
            settings.get("position_ids") is not None and settings["position_ids"].ndim == 3
        ):  # of time, height and width, which are one for texts
            settings["position_ids"] = settings["position_ids"][0]
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, **settings)


@fresh
def qwen_vl():
    return _WithImages()


@fresh
def deep():
    return _qwen(31)


@fresh
def deeper():
    return _WithImages(36)


@fresh
def large_vocabulary():
    return _qwen(vocabulary=128_001)


@fresh
def bert():
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertModel(BertConfig(**sizes, vocab_size=len(bert_tokenizer())))


def bert_tokenizer():
    return tiny_tokenizers.bert_tokenizer(tuple(SENTENCE.split()), model_max_length=77)


class _Glm(nn.Module):
    """ChatGLM gives its hidden states as (tokens, b, d)."""

    def __init__(self):
        super().__init__()
        self.inner = _qwen()
        self.config = self.inner.config

    dtype = property(lambda self: self.inner.dtype)
    device = property(lambda self: self.inner.device)

    def forward(self, input_ids, attention_mask, position_ids, output_hidden_states):
        states = self.inner(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, output_hidden_states=True
        ).hidden_states
        return SimpleNamespace(hidden_states=[state.transpose(0, 1) for state in states])


@fresh
def chat_glm():
    return _Glm()


@fresh
def long_clip():
    """HiDream has CLIP read 128 tokens."""
    from transformers import CLIPTextModelWithProjection

    config = copy.deepcopy(parts.clip_with_projection().config)
    config.max_position_embeddings = 128
    return CLIPTextModelWithProjection(config)


# ---- cases -----------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A family: its class, its text side, and how `encode_prompt` is asked.

    end: the token that ends a prompt; None where it is the last of the prompt.
    call: further arguments of `encode_prompt`.
    padded: on which side the ids that the encoder is given are padded; inside: before the end of the template.
    length: to which a call pads unless told otherwise, where the default of the class would take a test seconds.
    """

    pipeline: str
    components: Any
    end: str | None = None
    call: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    padded: str = "right"
    length: int | None = None

    def make(self):
        import diffusers

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # diffusers warns of its own imports
            cls = getattr(diffusers, self.pipeline)
        if self.length is not None:
            cls = type(self.pipeline, (cls,), {"__call__": shorter(cls.__call__, self.length)})
        given = self.components()
        takes = inspect.signature(cls.__init__).parameters
        config = {"in_channels": 16, "sample_size": 8, "patch_size": 1, "patch_size_t": 1, "target_size": 16}
        config |= {
            "image_embed_dim": 8,
            "in_visual_dim": 4,
            "enable_text_attention_mask": True,
            "guidance_embeds": False,
        }
        known = {"transformer": Stub(**config), "vae": None, "scheduler": None}
        need = {n: known.get(n) for n, p in takes.items() if p.default is p.empty and n != "self"}
        pipe = cls(**need | given)
        for name, value in self.settings.items():
            setattr(pipe, name, value)
        return pipe


def shorter(call, length):
    """`__call__` of a pipeline, with another default of the length that prompts are padded to."""

    @functools.wraps(call)
    def same(*args, **kwargs):
        return call(*args, **{"max_sequence_length": length} | kwargs)

    signature = inspect.signature(call)
    names = signature.parameters
    changed = names | {"max_sequence_length": names["max_sequence_length"].replace(default=length)}
    same.__signature__ = signature.replace(parameters=list(changed.values()))
    return same


def encode(pipe, case, prompt, **call):
    """What `encode_prompt` returns."""
    return diffusers_tiny.encode(pipe, prompt, **case.call | call)


# ---- the table -------------------------------------------------------------------------------------------------


def inst_tokenizer():
    return chat_tokenizer(INST)


def left_tokenizer():
    return chat_tokenizer(padding_side="left")


def processor():
    return Processor(chat_tokenizer())


def left_processor():
    return Processor(left_tokenizer(), positions=True)


def right_gemma_tokenizer():
    tokenizer = copy.deepcopy(gemma_tokenizer())
    tokenizer.padding_side = "right"
    return tokenizer


def _component(entry):
    if isinstance(entry, dict):
        return Stub(**entry)
    return (globals().get(entry) or parts.builder(entry))() if isinstance(entry, str) else entry


def _case(pipeline, end=None, call=None, settings=None, padded="right", length=None, **components):
    def make():
        return {name: _component(entry) for name, entry in components.items()}

    return Case(pipeline, make, end, call or {}, settings or {}, padded, length)


KREA = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)

CASES = {name: _case(**entry) for name, entry in parts.TABLE["texts"].items()}
CASES["Krea2"].settings["prompt_template_encode_start_idx"] = len(chat_tokenizer()(KREA).input_ids)
