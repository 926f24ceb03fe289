"""Build tokenizers of every kind from a few words; for CLIP, from its first merges."""

import copy
import gzip
import inspect
import json
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

JOBS = ("doctor", "nurse", "pilot")
WORDS = (
    "a",
    "an",
    "photo",
    "of",
    "man",
    "woman",
    "male",
    "female",
    "young",
    "old",
    "person",
    "the",
    "manager",
)
WORDS += (*JOBS, "chef")
SENTENCE = (
    "a photo of the male female man woman doctor nurse pilot cook , and with an old young person"
    " smiling at work"
)
"""Contains the words used in the test prompts."""

MERGES = 2048  # of CLIP's 48,894 merges, whose embeddings would dominate the run time
CLIP_IDS = 2 * 256 + MERGES + 2


@cache
def clip_merges() -> list[str]:
    """Return open_clip's merges for the words above, and the first of the others."""
    from open_clip.tokenizer import default_bpe

    lines = (
        gzip.decompress(Path(default_bpe()).read_bytes())
        .decode("utf-8")
        .split("\n")[1 : 49152 - 256 - 2 + 1]
    )
    words = " ".join((*WORDS, SENTENCE))
    used = [line.replace(" ", "").removesuffix("</w>") in words for line in lines]
    kept = sorted(range(len(lines)), key=lambda rank: (not used[rank], rank))[:MERGES]
    return [lines[rank] for rank in sorted(kept)]


@cache
def open_clip_tokenizer(length: int = 77) -> Any:
    """Return open_clip's own class; the last two ids are the start and end tokens."""
    from open_clip import SimpleTokenizer

    with TemporaryDirectory() as folder:
        path = Path(folder, "merges.gz")
        path.write_bytes(gzip.compress("\n".join(("#version: 0.2", *clip_merges())).encode()))
        return SimpleTokenizer(str(path), context_length=length)


@cache
def clip_tokenizer() -> Any:
    """Return transformers' class, with the same ids."""
    from open_clip.tokenizer import bytes_to_unicode

    from vldebias.miniature.tokenizer import make_clip_tokenizer

    merges = [tuple(line.split()) for line in clip_merges()]
    letters = list(bytes_to_unicode().values())
    words = [
        *letters,
        *(f"{x}</w>" for x in letters),
        *map("".join, merges),
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    ids = {word: i for i, word in enumerate(words)}
    return make_clip_tokenizer(ids, merges, model_max_length=77)


@cache
def bert_tokenizer() -> Any:
    """Return WordPiece with [CLS] and [SEP], as in ChineseCLIP and ALIGN."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import PreTrainedTokenizerFast

    special = {
        f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")
    }
    vocabulary = (*special.values(), *WORDS)
    backend = BertWordPieceTokenizer({word: i for i, word in enumerate(vocabulary)}, lowercase=True)
    return PreTrainedTokenizerFast(tokenizer_object=backend._tokenizer, **special)


def hf_tokenizer() -> Any:
    """Return the tokenizer above in open_clip's wrapper."""
    from open_clip.tokenizer import HFTokenizer, get_clean_fn

    tokenizer = object.__new__(HFTokenizer)
    how = {"strip_sep_token": False, "tokenizer_mode": ""}
    vars(tokenizer).update(
        tokenizer=bert_tokenizer(), context_length=12, clean_fn=get_clean_fn("whitespace"), **how
    )
    return tokenizer


def _unigram(special: list[str], template: str, lower: bool, **names: Any) -> Any:
    """Return SentencePiece with one piece per known word; other words are split into letters."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [(token, 0.0) for token in special] + [
        (f"\u2581{word}", -1.0) for word in WORDS if len(word) > 1
    ]
    pieces += [(letter, -10.0) for letter in "\u2581abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=special.index("<unk>")))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    if lower:
        tokenizer.normalizer = normalizers.Lowercase()
    pairs = [(token, special.index(token)) for token in special if token in template]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=pairs)
    # Unlike the tokenizers of these models, transformers 4 would also return token_type_ids.
    inputs = ["input_ids", "attention_mask"]
    names = {"unk_token": "<unk>", "eos_token": "</s>", **names}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names)


@cache
def siglip_tokenizer() -> Any:
    """Return a tokenizer like SigLIP's: no start token, padded with the end token, lower case
    only."""
    return _unigram(["<unk>", "</s>"], "$A </s>", False, pad_token="</s>", model_max_length=64)


@cache
def roberta_tokenizer() -> Any:
    """Return a tokenizer with the special ids of XLM-RoBERTa, as in AltCLIP."""
    names = {"bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>"}
    return _unigram(
        ["<s>", "<pad>", "</s>", "<unk>"], "<s> $A </s>", True, **names, model_max_length=77
    )


@cache
def t5_tokenizer() -> Any:
    """Return a word-level Unigram vocabulary in the layout of T5: <pad> 0, </s> 1, <unk> 2."""
    import transformers

    words = [(f"▁{word}", -2.0) for word in dict.fromkeys(SENTENCE.split())]
    letters = [(letter, -9.0) for letter in "▁abcdefghijklmnopqrstuvwxyz.-"]
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces = [*special, *words, *letters]
    settings: dict[str, Any] = {"extra_ids": 0, "model_max_length": 64}
    if takes_vocabulary(transformers.T5Tokenizer):
        return transformers.T5Tokenizer(vocab=pieces, **settings)
    backend = _t5_backend(pieces)
    return transformers.T5TokenizerFast(tokenizer_object=backend, **settings)


def takes_vocabulary(kind: Any) -> bool:
    """Return whether a tokenizer class can be built from a vocabulary in memory, as in transformers
    5."""
    return "vocab" in inspect.signature(kind.__init__).parameters


def _t5_backend(pieces: list[tuple[str, float]]) -> Any:
    """Return the backend that T5Tokenizer builds from a vocabulary in transformers 5."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    space = {"replacement": "▁", "prepend_scheme": "always"}
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space)]
    )
    tokenizer.decoder = decoders.Metaspace(**space)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


@cache
def gemma_tokenizer() -> Any:
    """Return a small BPE in the layout of Gemma: no end token, and <pad> is not <eos>."""
    import transformers
    from diffusers import SanaPipeline
    from tokenizers import Tokenizer, models, normalizers, trainers

    instruction = (
        inspect.signature(SanaPipeline.__call__).parameters["complex_human_instruction"].default
    )
    raw = Tokenizer(models.BPE())
    raw.normalizer = normalizers.Replace(" ", "▁")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=special, show_progress=False)
    raw.train_from_iterator([SENTENCE, *instruction], trainer)
    model = json.loads(raw.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    if takes_vocabulary(transformers.GemmaTokenizer):
        return transformers.GemmaTokenizer(
            vocab=model["vocab"], merges=merges, model_max_length=512
        )
    backend = _gemma_backend(model["vocab"], merges)
    return transformers.GemmaTokenizerFast(
        tokenizer_object=backend, add_bos_token=False, model_max_length=512
    )


def _gemma_backend(vocabulary: dict[str, int], merges: list[tuple[str, ...]]) -> Any:
    """Return the backend that GemmaTokenizer builds from a vocabulary in transformers 5."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    settings: dict[str, Any] = {"fuse_unk": True, "unk_token": "<unk>", "byte_fallback": True}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **settings))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def right_gemma_tokenizer() -> Any:
    tokenizer = copy.deepcopy(gemma_tokenizer())
    tokenizer.padding_side = "right"
    return tokenizer


CHAT, INST = (
    (Path(__file__).parent / f"{name}.jinja").read_text("utf-8") for name in ("chat", "inst")
)
SPECIAL = (
    "<pad> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>"
    " [SYS] [/SYS] [INST] [/INST] <|begin_of_text|> <|start_header_id|> <|end_header_id|>"
    " <|eot_id|>"
)


@cache
def chat_bpe() -> Any:
    from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    how = {"special_tokens": SPECIAL.split(), "initial_alphabet": alphabet, "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=600, **how)
    # Some system messages are removed by their length, so they need a hundred tokens instead of
    # five hundred.
    raw.train_from_iterator([SENTENCE] * 9 + [DEFAULT_PROMPT_TEMPLATE["template"]] * 2, trainer)
    return raw


def chat_tokenizer(template: str = CHAT, **settings: Any) -> Any:
    """Return a byte-level tokenizer with a chat template, as in Qwen, Mistral and GLM."""
    from transformers import PreTrainedTokenizerFast

    settings |= {"pad_token": "<pad>", "eos_token": "<|im_end|>", "model_max_length": 2048}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=copy.deepcopy(chat_bpe()), **settings)
    tokenizer.chat_template = template
    return tokenizer


inst_tokenizer = partial(chat_tokenizer, INST)
left_tokenizer = partial(chat_tokenizer, padding_side="left")


class Processor:
    """A tokenizer that accepts images and returns positions, like a processor."""

    def __init__(self, make: Any = chat_tokenizer, positions: bool = False) -> None:
        self.tokenizer = make()
        self.positions = positions

    def __call__(self, text: Any, images: Any = None, videos: Any = None, **settings: Any) -> Any:
        tokens = self.tokenizer(text, **settings)
        if images is not None:  # represents an image of three tokens
            image_pad = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
            rows = []
            for ids in tokens.input_ids.tolist():
                rows.append([])
                for token in ids:
                    rows[-1] += [token] * (3 if token == image_pad else 1)
            tokens["input_ids"] = torch.tensor(rows)
            tokens["attention_mask"] = (tokens["input_ids"] != self.tokenizer.pad_token_id).long()
        if self.positions:
            tokens["position_ids"] = (tokens.attention_mask.cumsum(1) - 1).clamp(min=0)
        return tokens

    def __getattr__(self, name: str) -> Any:
        if name == "tokenizer":
            raise AttributeError(name)
        return getattr(self.tokenizer, name)


class Spelled(Processor):
    """Return lists of ids, one per chat, like processors of images."""

    def apply_chat_template(self, chat: Any, tokenize: bool = False, **settings: Any) -> Any:
        text = self.tokenizer.apply_chat_template(chat, tokenize=False)
        return (
            [self.tokenizer(text).input_ids]
            if tokenize
            else self.tokenizer.apply_chat_template(chat, **settings)
        )


processor = Processor
left_processor = partial(Processor, left_tokenizer, positions=True)
