"""The text side of diffusers pipelines that read chats, several layers or several encoders: no denoiser, no VAE."""

import copy
import inspect
import warnings
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import diffusers_parts as parts
import diffusers_tiny as tiny
import torch
from diffusers_parts import WORDS, fresh
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
    raw.train_from_iterator([WORDS] * 9 + [DEFAULT_PROMPT_TEMPLATE["template"]] * 2, trainer)
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

    def __init__(self):
        super().__init__()
        self.inner = _qwen()
        ids = _bpe()
        self.config = self.inner.config
        self.config.image_token_id = ids.token_to_id("<|image_pad|>")
        self.config.vision_end_token_id = ids.token_to_id("<|vision_end|>")

    dtype = property(lambda self: self.inner.dtype)
    device = property(lambda self: self.inner.device)

    def forward(self, input_ids, attention_mask=None, pixel_values=None, image_grid_thw=None, **settings):
        if settings.get("position_ids") is not None:  # of time, height and width, which are one for texts
            settings["position_ids"] = settings["position_ids"][0]
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, **settings)


@fresh
def qwen_vl():
    return _WithImages()


@fresh
def deep():
    return _qwen(31)


@fresh
def large_vocabulary():
    return _qwen(vocabulary=128_001)


@fresh
def bert():
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertModel(BertConfig(**sizes, vocab_size=len(bert_tokenizer())))


@cache
def bert_tokenizer():
    from tokenizers import BertWordPieceTokenizer
    from transformers import PreTrainedTokenizerFast

    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = dict.fromkeys((*special, *WORDS.split()))
    backend = BertWordPieceTokenizer({word: i for i, word in enumerate(words)}, lowercase=True)
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    named = dict(zip(names, special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend._tokenizer, model_max_length=77, **named)


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
    """

    pipeline: str
    components: Any
    end: str | None = None
    call: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    padded: str = "right"

    def make(self):
        import diffusers

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # diffusers warns of its own imports
            cls = getattr(diffusers, self.pipeline)
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


def encode(pipe, case, prompt, **call):
    """What `encode_prompt` returns."""
    takes = inspect.signature(pipe.encode_prompt).parameters
    count = 1 if isinstance(prompt, str) else len(prompt)
    given = {"device": "cpu", "do_classifier_free_guidance": False, "batch_size": count, "guidance_scale": 1.0}
    given |= {"prompt_2": None, "prompt_3": None, "prompt_4": None, "dtype": torch.float32, "image": None}
    images = call.pop("images", 1)
    given |= {"num_images_per_prompt": images, "num_videos_per_prompt": images, "clean_caption": False}
    with torch.no_grad():
        return pipe.encode_prompt(prompt=prompt, **{k: v for k, v in (given | case.call | call).items() if k in takes})


def _chat(**more):
    return lambda: {"text_encoder": qwen(), "tokenizer": chat_tokenizer()} | {n: make() for n, make in more.items()}


def _t5(**more):
    return lambda: {"text_encoder": parts.t5(), "tokenizer": parts.t5_tokenizer()} | {n: f() for n, f in more.items()}


def _gemma(**settings):
    def components():
        tokenizer = copy.deepcopy(parts.gemma_tokenizer())
        for name, value in settings.items():
            setattr(tokenizer, name, value)
        return {"text_encoder": parts.gemma(), "tokenizer": tokenizer}

    return components


def _edit():
    return {"text_encoder": qwen_vl(), "tokenizer": chat_tokenizer(), "processor": Processor(chat_tokenizer())}


def _hidream():
    clip = {f"text_encoder{n}": long_clip() for n in ("", "_2")}
    clip |= {f"tokenizer{n}": parts.clip_tokenizer() for n in ("", "_2")}
    return clip | {
        "text_encoder_3": parts.t5(),
        "tokenizer_3": parts.t5_tokenizer(),
        "text_encoder_4": qwen(),
        "tokenizer_4": chat_tokenizer(),
    }


def _kandinsky5():
    return {"text_encoder": qwen(), "tokenizer": Processor(chat_tokenizer()), **_clip_2()}


def _clip_2():
    return {"text_encoder_2": parts.clip(), "tokenizer_2": parts.clip_tokenizer()}


SHORT = {"max_sequence_length": 40}
TURN = "<|im_end|>"
BYT5 = {"text_encoder_2": parts.t5, "tokenizer_2": parts.t5_tokenizer}
QUOTED = {"tokenizer_max_length": 400, "tokenizer_2_max_length": 20}

KREA = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
)

CASES = {
    "QwenImage": Case("QwenImagePipeline", _chat(), TURN),
    "QwenImageEdit": Case("QwenImageEditPipeline", _edit, TURN),
    "QwenImageEditPlus": Case("QwenImageEditPlusPipeline", _edit, TURN),
    "Flux2": Case(
        "Flux2Pipeline",
        lambda: {"text_encoder": deep(), "tokenizer": chat_tokenizer(INST)},
        "[/INST]",
        {"max_sequence_length": 512},
        {"system_message": "You draw."},
    ),
    "Flux2Klein": Case(
        "Flux2KleinPipeline",
        lambda: {"text_encoder": deep(), "tokenizer": chat_tokenizer()},
        TURN,
        {"max_sequence_length": 512},
    ),
    "ZImage": Case("ZImagePipeline", _chat(), TURN),
    "ZImageOmni": Case("ZImageOmniPipeline", _chat(siglip=Stub, siglip_processor=Stub), TURN),
    "HunyuanImage": Case("HunyuanImagePipeline", _chat(**BYT5), TURN, settings=QUOTED),
    "HunyuanImageRefiner": Case(
        "HunyuanImageRefinerPipeline", _chat(), "<|eot_id|>", settings={"tokenizer_max_length": 400}
    ),
    "HunyuanDiT": Case(
        "HunyuanDiTPipeline",
        lambda: {
            "text_encoder": bert(),
            "tokenizer": bert_tokenizer(),
            "text_encoder_2": parts.t5(),
            "tokenizer_2": parts.t5_tokenizer(),
            "requires_safety_checker": False,
        },
    ),
    "Lumina": Case("LuminaPipeline", _gemma(padding_side="right")),
    "Lumina2": Case("Lumina2Pipeline", _gemma(), call={"max_sequence_length": 256}),
    "PRX": Case("PRXPipeline", _t5(), call={"negative_prompt": ""}),
    "CogView3Plus": Case("CogView3PlusPipeline", _t5(), call=SHORT),
    "CogView4": Case(
        "CogView4Pipeline",
        lambda: {"text_encoder": qwen(), "tokenizer": chat_tokenizer(padding_side="left")},
        padded="left",
    ),
    "Kolors": Case(
        "KolorsPipeline",
        lambda: {
            "text_encoder": chat_glm(),
            "tokenizer": Processor(chat_tokenizer(padding_side="left"), positions=True),
            "unet": Stub(sample_size=8),
        },
        padded="left",
    ),
    "HiDream": Case(
        "HiDreamImagePipeline", _hidream, call={"max_sequence_length": 128}, settings={"default_sample_size": 16}
    ),
    "Bria": Case("BriaPipeline", _t5(vae=parts.MODELS["vae"]), call={"max_sequence_length": 128}),
    "BriaFibo": Case("BriaFiboPipeline", lambda: {"text_encoder": large_vocabulary(), "tokenizer": chat_tokenizer()}),
    "OvisImage": Case("OvisImagePipeline", _chat(), TURN),
    "Kandinsky5Image": Case("Kandinsky5T2IPipeline", _kandinsky5, TURN, settings={"resolutions": [(64, 64)]}),
    "Kandinsky3": Case("Kandinsky3Pipeline", lambda: _t5()() | {"unet": Stub(), "movq": Stub()}),
    "DeepFloydIF": Case(
        "IFPipeline",
        lambda: (
            _t5()()
            | {"unet": Stub(), "safety_checker": None, "feature_extractor": None, "watermarker": None}
            | {"requires_safety_checker": False}
        ),
    ),
    "Wan": Case("WanPipeline", lambda: {"text_encoder": parts.umt5(), "tokenizer": parts.t5_tokenizer()}, call=SHORT),
    "CogVideoX": Case("CogVideoXPipeline", _t5(), call={"max_sequence_length": 226}),
    "Latte": Case("LattePipeline", _t5()),
    "MotifVideo": Case("MotifVideoPipeline", _t5(guider=Stub), call=SHORT),
    "Krea2": Case(
        "Krea2Pipeline",
        lambda: _chat()() | {"text_encoder": qwen_vl(), "text_encoder_select_layers": (1, 2, 4)},
        TURN,
        settings={"prompt_template_encode_start_idx": len(chat_tokenizer()(KREA).input_ids)},
        padded="inside",
    ),
    "Cosmos": Case("CosmosTextToWorldPipeline", _t5(safety_checker=Stub), call=SHORT),
    "LTX": Case("LTXPipeline", _t5(), call=SHORT),
    "LTX2": Case(
        "LTX2Pipeline",
        lambda: _gemma()() | {"audio_vae": None, "connectors": Stub(), "vocoder": None},
        call={"max_sequence_length": 64},
    ),
    "LTX2DFR": Case(
        "LTX2DFRPipeline",
        lambda: _gemma()() | {"audio_vae": None, "connectors": Stub(), "vocoder": None},
        call={"max_sequence_length": 64},
    ),
    "Mochi": Case("MochiPipeline", _t5(), call=SHORT),
    "Allegro": Case("AllegroPipeline", _t5(), call=SHORT),
    "HunyuanVideo": Case("HunyuanVideoPipeline", lambda: _chat()() | _clip_2(), "<|eot_id|>"),
    "HunyuanVideo15": Case(
        "HunyuanVideo15Pipeline", _chat(guider=Stub, vae=lambda: Stub(latent_channels=4), **BYT5), TURN, settings=QUOTED
    ),
    "Kandinsky5Video": Case("Kandinsky5T2VPipeline", _kandinsky5, TURN),
    "EasyAnimate": Case("EasyAnimatePipeline", _chat(), TURN),
    "SanaVideo": Case("SanaVideoPipeline", _gemma(), call={"max_sequence_length": 300}),
}

gender = tiny.gender
