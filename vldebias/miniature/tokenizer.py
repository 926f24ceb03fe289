"""A byte-level BPE vocabulary in CLIP's scheme, learnt from prompts and readable by both tokenizer families.

open_clip pads with id 0, which is the byte "!" in this scheme; the transformers tokenizer is told to do the same
(as Stable Diffusion 2 does), so both give the same ids, padding included.
"""

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

from vldebias.errors import InvalidInputError, need
from vldebias.files import write_atomically
from vldebias.miniature.world import BUILD

if TYPE_CHECKING:
    from open_clip import SimpleTokenizer
    from transformers import CLIPTokenizer

CONTEXT_LENGTH = 24
MERGES_FILE = "merges.txt.gz"

END = "</w>"

Pair = tuple[str, str]


def byte_characters() -> dict[int, str]:
    """A printable character for each of the 256 bytes, in the order of CLIP's ids (0 is "!")."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    spare = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + k) for k, byte in enumerate(spare)}


def save_tokenizer(merges: list[Pair], folder: Path) -> None:
    """Writes the merges as open_clip reads them: a header, one pair a line, no newline at the end."""
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    # A zero time stamp keeps the file the same from build to build.
    write_atomically(folder / MERGES_FILE, gzip.compress("\n".join(lines).encode(), mtime=0))


def load_merges(folder: Path) -> list[Pair]:
    """Reads the merges of a build.

    Raises:
        InvalidInputError: the folder has none.
    """
    path = folder / MERGES_FILE
    if not path.is_file():
        raise InvalidInputError(f"no tokenizer at {path}; build one with {BUILD.format(folder)}")
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")[1:]
    return [(first, second) for first, second in (line.split() for line in lines)]


def vocabulary(merges: list[Pair]) -> dict[str, int]:
    """Token to id: bytes, bytes that end a word, merges, start, end."""
    alphabet = byte_characters().values()
    tokens = [*alphabet, *(character + END for character in alphabet), *("".join(pair) for pair in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return {token: i for i, token in enumerate(tokens)}


def open_clip_tokenizer(folder: Path) -> "SimpleTokenizer":
    """open_clip's own tokenizer over the vocabulary of a build: texts -> ids (n, 24), padded with 0."""
    SimpleTokenizer = need("open_clip").SimpleTokenizer

    load_merges(folder)  # says what is missing, and how to make it
    return SimpleTokenizer(bpe_path=str(folder / MERGES_FILE), context_length=CONTEXT_LENGTH)


def transformers_tokenizer(folder: Path) -> "CLIPTokenizer":
    """The twin in transformers; pads with "!" (id 0) and, being told to split it, still reads "!" in a text."""
    CLIPTokenizer = need("transformers").CLIPTokenizer

    merges = load_merges(folder)
    return CLIPTokenizer(
        vocab=vocabulary(merges),
        merges=merges,
        pad_token="!",
        model_max_length=CONTEXT_LENGTH,
        split_special_tokens=True,
    )
