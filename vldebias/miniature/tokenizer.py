"""Load and save CLIP's byte-level BPE vocabulary, for open_clip and transformers.

open_clip pads with id 0, which is the byte "!". The transformers tokenizer is configured to do the
same, as in Stable Diffusion 2, so that both return the same ids, including the padding.
"""

import gzip
import inspect
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from vldebias.errors import InvalidInputError, need
from vldebias.utils.files import storage_errors, write_atomically

if TYPE_CHECKING:
    from open_clip import SimpleTokenizer
    from transformers import CLIPTokenizer

CONTEXT_LENGTH = 24
MERGES_FILE = "merges.txt.gz"
# Build command shown in messages about missing weights.
BUILD = "`python -m eval.miniature --out {}` in a checkout of vldebias"

Pair = tuple[str, str]


def byte_characters() -> dict[int, str]:
    """Return a printable character for each byte, in the order of CLIP's ids (0 is "!")."""
    plain = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    # Spaces and control bytes are represented by characters from code point 256 on, as in GPT-2.
    spare = [byte for byte in range(256) if byte not in plain]
    characters = {byte: chr(byte) for byte in plain}
    for number, byte in enumerate(spare):
        characters[byte] = chr(256 + number)
    return characters


def save_tokenizer(merges: list[Pair], folder: Path) -> None:
    """Write the merges in open_clip's format.

    The file consists of a header and one pair per line, without a newline at the end.

    Args:
        merges: token pairs, the most frequent first.
        folder: weights folder.
    """
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    # Leave out the time stamp, so that every build writes the same file.
    write_atomically(folder / MERGES_FILE, gzip.compress("\n".join(lines).encode(), mtime=0))


def load_merges(folder: Path) -> list[Pair]:
    """Load the merges from a weights folder.

    Raises:
        InvalidInputError: If the folder does not contain merges.
    """
    path = folder / MERGES_FILE
    if not path.is_file():
        raise InvalidInputError(f"no tokenizer at {path}; build one with {BUILD.format(folder)}")
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    merges = list[Pair]()
    for line in lines[1:]:
        first, second = line.split()
        merges.append((first, second))
    return merges


def vocabulary(merges: list[Pair]) -> dict[str, int]:
    """Return all token ids: bytes, bytes at the end of a word, merges, and start and end."""
    alphabet = byte_characters().values()
    tokens = list(alphabet)
    tokens += [character + "</w>" for character in alphabet]
    tokens += ["".join(pair) for pair in merges]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return {token: number for number, token in enumerate(tokens)}


def open_clip_tokenizer(folder: Path) -> "SimpleTokenizer":
    """Load open_clip's tokenizer with a folder's vocabulary, padding ids (n, 24) with 0."""
    load_merges(folder)  # Raises an error if there are none.
    return need("open_clip").SimpleTokenizer(
        bpe_path=str(folder / MERGES_FILE), context_length=CONTEXT_LENGTH
    )


def transformers_tokenizer(folder: Path) -> "CLIPTokenizer":
    """Load the transformers tokenizer with a folder's vocabulary.

    It pads with "!" (id 0), but does not treat a "!" in the text as padding.
    """
    merges = load_merges(folder)
    return make_clip_tokenizer(
        vocabulary(merges),
        merges,
        pad_token="!",
        model_max_length=CONTEXT_LENGTH,
        split_special_tokens=True,
    )


def make_clip_tokenizer(
    ids: dict[str, int], merges: list[Pair], **settings: str | int | bool
) -> "CLIPTokenizer":
    """Create a transformers CLIPTokenizer from a vocabulary in memory.

    transformers 5 accepts the vocabulary directly. For transformers 4, it is written to temporary
    files.

    Args:
        ids: token ids by token.
        merges: token pairs, the most frequent first.
        settings: further tokenizer arguments, such as `model_max_length`.
    """
    tokenizer_class = need("transformers").CLIPTokenizer
    if "vocab_file" not in inspect.signature(tokenizer_class.__init__).parameters:
        return tokenizer_class(vocab=ids, merges=merges, **settings)
    with TemporaryDirectory() as folder, storage_errors(folder):
        vocabulary_file = Path(folder, "vocab.json")
        vocabulary_file.write_text(json.dumps(ids), encoding="utf-8")
        merges_file = Path(folder, "merges.txt")
        lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
        merges_file.write_text("\n".join(lines), encoding="utf-8")
        return tokenizer_class(str(vocabulary_file), str(merges_file), **settings)
