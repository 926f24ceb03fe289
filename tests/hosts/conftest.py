"""Tiny models from their configs, tokenizers made here, and what a model looks like from outside: all offline."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vldebias.prompts import PromptSet

JOBS = ("doctor", "nurse", "chef", "pilot")


@pytest.fixture
def gender() -> PromptSet:
    return PromptSet(
        name="tiny-gender",
        groups=tuple((f"a photo of a male {job}", f"a photo of a female {job}") for job in JOBS),
        spurious=("a photo of a man", "a photo of a woman"),
        stated_words=("man", "woman", "male", "female"),
    )


@pytest.fixture
def age() -> PromptSet:
    return PromptSet(
        name="tiny-age",
        groups=tuple((f"a photo of a young {job}", f"a photo of an old {job}") for job in JOBS),
        spurious=("a photo of a young person", "a photo of an old person"),
        stated_words=("young", "old"),
    )


def _contents(value: object) -> object:
    """Dictionaries by their items (hooks, parameters, children), all else by identity."""
    return {key: id(item) for key, item in value.items()} if isinstance(value, dict) else id(value)


@pytest.fixture
def state_of() -> Callable[[nn.Module], Any]:
    """Everything that an attachment could leave behind on a model or any module inside."""

    def state(model: nn.Module) -> Any:
        return {
            name: {key: _contents(value) for key, value in vars(module).items()}
            for name, module in model.named_modules()
        }

    return state


@pytest.fixture(scope="session")
def clip_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vocab.json and merges.txt of CLIP, from the vocabulary that open_clip ships."""
    from open_clip.tokenizer import bytes_to_unicode, default_bpe

    lines = gzip.decompress(Path(default_bpe()).read_bytes()).decode("utf-8").split("\n")[1 : 49152 - 256 - 2 + 1]
    letters = list(bytes_to_unicode().values())
    words = [*letters, *(f"{x}</w>" for x in letters), *("".join(line.split()) for line in lines)]
    vocabulary = {word: i for i, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
    folder = tmp_path_factory.mktemp("clip_tokenizer")
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def clip_tokenizer(clip_files: Path) -> Any:
    from transformers import CLIPTokenizer

    return CLIPTokenizer.from_pretrained(clip_files, model_max_length=77)


WORDS = ("a", "an", "photo", "of", "man", "woman", "male", "female", "young", "old", "person", "the", "manager", *JOBS)


@pytest.fixture(scope="session")
def bert_tokenizer() -> Any:
    """WordPiece with [CLS] and [SEP], as ChineseCLIP and ALIGN have it."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import PreTrainedTokenizerFast

    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    backend = BertWordPieceTokenizer({word: i for i, word in enumerate((*special, *WORDS))}, lowercase=True)
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=backend._tokenizer, **dict(zip(names, special, strict=True)))


def _unigram(special: list[str], template: str, lower: bool, **names: Any) -> Any:
    """Sentencepiece in which every word is one piece and what is not a word is spelled in letters."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [(token, 0.0) for token in special] + [(f"\u2581{word}", -1.0) for word in WORDS if len(word) > 1]
    pieces += [(letter, -10.0) for letter in "\u2581abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=special.index("<unk>")))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    if lower:
        tokenizer.normalizer = normalizers.Lowercase()
    pairs = [(token, special.index(token)) for token in special if token in template]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=pairs)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


@pytest.fixture(scope="session")
def siglip_tokenizer() -> Any:
    """No start token, padded with the end token, and only lower case is known: as SigLIP was trained."""
    return _unigram(
        ["<unk>", "</s>"], "$A </s>", False, unk_token="<unk>", eos_token="</s>", pad_token="</s>", model_max_length=64
    )


@pytest.fixture(scope="session")
def roberta_tokenizer() -> Any:
    """The special ids of XLM-RoBERTa, as AltCLIP has it."""
    return _unigram(
        ["<s>", "<pad>", "</s>", "<unk>"],
        "<s> $A </s>",
        True,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        model_max_length=77,
    )


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32)
